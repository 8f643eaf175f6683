//! Opens files with keys and certificates, and directories of such files.
//!
//! ```text
//!   open("/a/link/b") --> / --> a --> link: its target's directories --> b: the file, opened and looked at
//!                         each belongs to root or to this user, and no other user can write to it
//! ```
//! A secret that another user wrote is known to that user; an authority that another user can write
//! signs for that user. So each file has to satisfy OpenSSH's rule (`StrictModes`), and so does
//! each directory and symbolic link on the path to it, since a directory's writers decide what its
//! names mean. In a sticky directory, such as `/tmp`, no other user can remove the entries of root
//! or of this user.
//!
//! The path is walked step by step, with descriptors, so that the file that was checked is the one
//! that is opened. A descriptor's name (`/proc/self/fd/3`, `/dev/fd/3`) leads to its file directly.
//!
//! Never: a file is checked by its name, and opened by its name afterwards.

use crate::control::directories::{euid, is_root_or_unknown};
use rustix::fs::{
    FileType, Mode, OFlags, PROC_SUPER_MAGIC, Stat, fstat, fstatfs, openat, readlinkat,
};
use rustix::io::Errno;
use std::ffi::{CString, OsStr, OsString};
use std::format;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};
use std::string::String;
use std::vec::Vec;

/// Most symbolic links to follow for one path, the same as the kernel's limit.
const LINKS_MAX: usize = 40;
/// Permissions of other users: to write; to do anything.
const WRITE: u32 = 0o022;
const ANY: u32 = 0o077;
const STICKY: u32 = 0o1000;

/// The users, beside its owner, who may read a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readers {
    /// No other user: a secret or a key.
    Nobody,
    /// Every user: a certificate.
    Everybody,
}

/// The reason why a file or a directory of keys cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KeyFileError {
    /// The system's error.
    #[error("{0}")]
    Os(io::Error),
    /// It, or a directory above it, is open to other users.
    #[error("{0}")]
    Open(String),
}

impl From<Errno> for KeyFileError {
    fn from(error: Errno) -> Self {
        Self::Os(error.into())
    }
}

/// Opens a file for reading that belongs to root or to this process's user. No other user may be
/// able to change it, nor to read it if it is secret.
pub fn open(path: &Path, readers: Readers) -> Result<File, KeyFileError> {
    let way = go(path)?;
    let Some(name) = &way.name else { return Err(Errno::ISDIR.into()) };
    // The walk has followed links in /proc already; such a file cannot be opened otherwise.
    let stay = if way.is_proc { OFlags::empty() } else { OFlags::NOFOLLOW };
    let file =
        openat(&way.directory, &**name, OFlags::RDONLY | OFlags::CLOEXEC | stay, Mode::empty())?;
    let stat = fstat(&file)?;
    check_owner(&way.at, &stat)?;
    let closed_to = if readers == Readers::Nobody { ANY } else { WRITE };
    if stat.st_mode & closed_to != 0 {
        let at = way.at.display();
        let does = if stat.st_mode & WRITE == 0 { "can read" } else { "can write to" };
        let command = if readers == Readers::Nobody { "chmod 600" } else { "chmod go-w" };
        return Err(KeyFileError::Open(format!(
            "others than its owner {does} {at} (mode {:o}, of user {}): {command} {at}",
            stat.st_mode & 0o7777,
            stat.st_uid
        )));
    }
    Ok(file.into())
}

/// Checks a directory for such files in the same manner. It need not be there.
pub fn check_directory(path: &Path) -> Result<(), KeyFileError> {
    match go(path) {
        Ok(CheckedPath { name: None, .. }) => Ok(()),
        Ok(CheckedPath { name: Some(_), .. }) => Err(Errno::NOTDIR.into()),
        Err(KeyFileError::Os(error)) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// The end of a path whose directories have been checked.
struct CheckedPath {
    /// The last directory.
    directory: OwnedFd,
    /// The name in that directory; `None`: the path names the directory itself.
    name: Option<OsString>,
    /// The path of either, without symbolic links.
    at: PathBuf,
    /// The name is a link in /proc.
    is_proc: bool,
}

fn go(path: &Path) -> Result<CheckedPath, KeyFileError> {
    let look = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let root = || openat(rustix::fs::CWD, "/", look | OFlags::DIRECTORY, Mode::empty());
    let path = std::path::absolute(path).map_err(KeyFileError::Os)?;
    // The names still to walk, the next one last.
    let mut left: Vec<OsString> = parts(&path).rev().collect();
    let (mut directory, mut at, mut links) = (root()?, PathBuf::from("/"), 0);
    check_directory_of_way(&at, &fstat(&directory)?, false)?;
    let mut is_sticky = false;
    while let Some(name) = left.pop() {
        let mut next = openat(&directory, &*name, look, Mode::empty())?;
        let mut stat = fstat(&next)?;
        let here = at.join(&name);
        let mut is_proc = false;
        if FileType::from_raw_mode(stat.st_mode) == FileType::Symlink {
            links += 1;
            if links > LINKS_MAX {
                return Err(Errno::LOOP.into());
            }
            is_proc = fstatfs(&directory)?.f_type == PROC_SUPER_MAGIC;
            if !is_proc {
                check_owner(&here, &stat)?;
                let target: CString = readlinkat(&next, "", Vec::new())?;
                let target = PathBuf::from(OsString::from_vec(target.into_bytes()));
                if target.is_absolute() {
                    (directory, at, is_sticky) = (root()?, PathBuf::from("/"), false);
                }
                left.extend(parts(&target).rev());
                continue;
            }
            // The kernel's own link, whose text may not lead to its target.
            next = openat(&directory, &*name, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
            stat = fstat(&next)?;
        }
        if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
            // Checked before it is opened: another user's pipe would block this process.
            check_owner(&here, &stat)?;
            return match left.is_empty() {
                true => Ok(CheckedPath { directory, name: Some(name), at: here, is_proc }),
                false => Err(Errno::NOTDIR.into()),
            };
        }
        match name == *".." {
            true => drop(at.pop()),
            false => at = here,
        }
        check_directory_of_way(&at, &stat, is_sticky)?;
        is_sticky = stat.st_mode & WRITE != 0;
        directory = next;
    }
    Ok(CheckedPath { directory, name: None, at, is_proc: false })
}

/// The names in a path, from the first to the last.
fn parts(path: &Path) -> impl DoubleEndedIterator<Item = OsString> + '_ {
    path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name.into()),
        Component::ParentDir => Some(OsStr::new("..").into()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    })
}

/// `is_in_sticky`: other users can create entries in the directory above.
fn check_directory_of_way(at: &Path, stat: &Stat, is_in_sticky: bool) -> Result<(), KeyFileError> {
    // In a user namespace that does not map root, directories of the system have no known owner.
    if is_in_sticky || !is_root_or_unknown(stat.st_uid) {
        check_owner(at, stat)?;
    }
    if stat.st_mode & WRITE != 0 && stat.st_mode & STICKY == 0 {
        let at = at.display();
        return Err(KeyFileError::Open(format!(
            "others than its owner can write to the directory {at} (mode {:o}, of user {}), and so change \
             every file in it: chmod go-w {at}",
            stat.st_mode & 0o7777,
            stat.st_uid
        )));
    }
    Ok(())
}

fn check_owner(at: &Path, stat: &Stat) -> Result<(), KeyFileError> {
    let (owner, own) = (stat.st_uid, euid());
    if owner == 0 || owner == own {
        return Ok(());
    }
    let at = at.display();
    let wanted = if own == 0 { "root".into() } else { format!("root or to user {own}") };
    Err(KeyFileError::Open(format!(
        "{at} (mode {:o}) belongs to user {owner}, who can change it, and must belong to {wanted}: copy it, \
         or, as root, chown -h {own} {at}",
        stat.st_mode & 0o7777
    )))
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::{PermissionsExt, chown, symlink};
    use std::string::ToString;

    const STRANGER: u32 = 65533;

    fn file(path: &Path, mode: u32) {
        fs::write(path, "x").unwrap();
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    fn said(path: &Path, readers: Readers) -> String {
        open(path, readers).map_or_else(|error| error.to_string(), |_| String::new())
    }

    #[test]
    fn a_file_that_others_can_change_is_refused_and_so_is_a_secret_that_others_can_read() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("keys");
        for (mode, secret, public) in [
            (0o600, None, None),
            (0o400, None, None),
            (0o640, Some("can read"), None),
            (0o644, Some("can read"), None),
            (0o660, Some("can write to"), Some("can write to")),
            (0o666, Some("can write to"), Some("can write to")),
        ] {
            file(&path, mode);
            for (readers, wanted, command) in [
                (Readers::Nobody, secret, "chmod 600 "),
                (Readers::Everybody, public, "chmod go-w "),
            ] {
                let said = said(&path, readers);
                match wanted {
                    None => assert_eq!(said, "", "{mode:o}"),
                    Some(wanted) => {
                        let end = format!("{command}{}", path.display());
                        assert!(said.contains(wanted) && said.ends_with(&end), "{mode:o}: {said}");
                        assert!(said.contains(&format!("mode {mode:o}, of user ")), "{said}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_directory_above_that_others_can_write_is_refused_unless_it_is_sticky() {
        let home = tempfile::tempdir().unwrap();
        let (above, below) = (home.path().join("above"), home.path().join("above/below"));
        fs::create_dir_all(&below).unwrap();
        let path = below.join("keys");
        file(&path, 0o600);
        let mode = |at: &Path, mode| fs::set_permissions(at, Permissions::from_mode(mode)).unwrap();
        for at in [&above, &below] {
            for open_to in [0o777, 0o775, 0o770] {
                mode(at, open_to);
                let end = format!("chmod go-w {}", at.display());
                assert!(said(&path, Readers::Nobody).ends_with(&end), "{open_to:o}");
                let error = check_directory(&below).unwrap_err().to_string();
                assert!(error.ends_with(&end), "{error}");
            }
            mode(at, 0o1777);
            assert_eq!(said(&path, Readers::Nobody), "");
            check_directory(&below).unwrap();
            mode(at, 0o755);
        }
        check_directory(&below.join("not/there")).unwrap();
        assert!(check_directory(&path).is_err());
        assert!(open(&below, Readers::Everybody).is_err());
    }

    #[test]
    fn a_file_a_directory_or_a_link_of_another_user_is_refused() {
        if euid() != 0 {
            let line = "SKIPPED: only root can give files to others\n";
            let _ = std::io::Write::write_all(&mut std::io::stderr().lock(), line.as_bytes());
            return;
        }
        let home = tempfile::tempdir().unwrap();
        let (folder, sticky) = (home.path().join("folder"), home.path().join("sticky"));
        let (path, link) = (folder.join("keys"), sticky.join("link"));
        fs::create_dir(&folder).unwrap();
        fs::create_dir(&sticky).unwrap();
        fs::set_permissions(&sticky, Permissions::from_mode(0o1777)).unwrap();
        file(&path, 0o600);
        symlink("../folder/keys", &link).unwrap();
        assert_eq!(said(&link, Readers::Nobody), "");
        for at in [&path, &folder, &link] {
            let give = |to| std::os::unix::fs::lchown(at, Some(to), None).unwrap();
            give(STRANGER);
            let said = said(&link, Readers::Nobody);
            assert!(said.starts_with(&*at.to_string_lossy()), "{said}");
            assert!(said.contains(&format!("belongs to user {STRANGER}")), "{said}");
            assert!(said.ends_with(&format!("chown -h 0 {}", at.display())), "{said}");
            give(0);
        }
        // A file of root's is accepted for every user; so only a test without root's rights sees
        // the check.
        chown(&path, Some(0), Some(0)).unwrap();
        assert_eq!(said(&path, Readers::Nobody), "");
    }

    #[test]
    fn a_descriptor_is_opened_by_its_name_and_looked_at_as_a_file() {
        let file = rustix::fs::memfd_create("keys", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        for prefix in ["/proc/self/fd", "/dev/fd"] {
            let path = PathBuf::from(format!("{prefix}/{}", file.as_raw_fd()));
            rustix::fs::fchmod(&file, Mode::from_raw_mode(0o600)).unwrap();
            assert_eq!(said(&path, Readers::Nobody), "");
            rustix::fs::fchmod(&file, Mode::from_raw_mode(0o666)).unwrap();
            assert!(said(&path, Readers::Everybody).contains("can write to"));
        }
    }

    #[test]
    fn links_that_lead_to_one_another_and_names_that_are_not_there_are_errors_of_the_system() {
        let home = tempfile::tempdir().unwrap();
        let (one, other) = (home.path().join("one"), home.path().join("other"));
        symlink(&one, &other).unwrap();
        symlink(&other, &one).unwrap();
        assert_eq!(said(&one, Readers::Nobody), io::Error::from(Errno::LOOP).to_string());
        let missing = open(&home.path().join("missing"), Readers::Nobody).unwrap_err();
        assert!(matches!(missing, KeyFileError::Os(e) if e.kind() == io::ErrorKind::NotFound));
        fs::remove_file(&one).unwrap();
        file(&one, 0o600);
        assert_eq!(said(&other, Readers::Nobody), "");
        assert_eq!(
            said(&home.path().join("x/../other"), Readers::Nobody),
            io::Error::from(Errno::NOENT).to_string()
        );
    }
}
