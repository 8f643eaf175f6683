//! Directories in which services are found: their owners, their write permissions, and their lock.

use crate::config::Config;
use crate::os::{call, environment, socket, sys, thread};
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Component, Path, PathBuf};
use std::string::{String, ToString};
use std::vec::Vec;

/// Longest path of a socket that the kernel takes, in bytes.
pub(super) const SOCKET_PATH_MAX: usize = 107;

/// The file that is locked while names are taken and given up; no service can have this name.
pub(super) const LOCK_FILE: &str = ".lock";

/// How long another process may be busy in the directory.
pub(super) const LOCK_NS: u64 = 2_000_000_000;

/// A directory that cannot be used. Nothing in it was touched.
#[derive(Debug, thiserror::Error)]
#[cfg_attr(not(feature = "unstable-internals"), non_exhaustive)]
pub enum DirectoryError {
    /// It does not exist.
    #[error("the directory {} is not there{}", .path.display(), .advice)]
    Missing {
        /// The directory.
        path: PathBuf,
        /// Advice.
        advice: &'static str,
    },
    /// A part of the path is a link, or no directory.
    #[error("{} is a link or no directory{}", .path.display(), .advice)]
    Link {
        /// The part of the path.
        path: PathBuf,
        /// Advice.
        advice: &'static str,
    },
    /// It belongs to another user, who may have made it to block its use.
    #[error("{} belongs to user {owner}, and must belong to {wanted}{}", .path.display(), .advice)]
    Owner {
        /// The directory.
        path: PathBuf,
        /// Its owner.
        owner: u32,
        /// The owner that it must have.
        wanted: String,
        /// Advice.
        advice: &'static str,
    },
    /// Other users may change it.
    #[error("{} has mode {mode:o}, and must {wanted}", .path.display())]
    Mode {
        /// The directory.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
        /// The rule for its permissions.
        wanted: &'static str,
    },
    /// No user has that name.
    #[error("there is no user {0:?} here")]
    NoUser(String),
    /// The system refused.
    #[error("{} cannot be used: {error}", .path.display())]
    Os {
        /// The directory.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
}

/// A directory that was checked, held by descriptor.
#[derive(Debug)]
pub(super) struct Directory {
    pub(super) fd: OwnedFd,
    pub(super) path: PathBuf,
}

#[derive(Clone, Copy, PartialEq)]
pub(super) enum Final {
    /// This user's own; others may not write, and if the library chose the place, not look.
    Private { chosen: bool },
    /// Root's; and sticky, unless root alone can make something there.
    Shared,
}

impl Final {
    /// Advice for the case that another user has taken the place.
    pub(super) fn advice(self) -> &'static str {
        match self {
            Self::Private { chosen: true } => {
                "; set HAMLYN_DIR, or XDG_RUNTIME_DIR, to a directory of your own"
            }
            Self::Private { chosen: false } => "; the setting dir (HAMLYN_DIR) names it",
            Self::Shared => "",
        }
    }
}

/// Advice for the case that another user has taken a user's place in the shared directory.
pub(super) const UNKNOWN_SHARED: &str = "; a user of another user namespace has no number here, and anybody may \
     have made it: outside, let root give users their directories (`hamlyn setup USER..`) and close \
     the shared directory to the writing of others (`chmod 755`)";

pub(super) const NOTHING_SHARED: &str = "; that user serves nothing to other users; what it serves to itself \
     alone lies in its HAMLYN_DIR, else in $XDG_RUNTIME_DIR/hamlyn, else in /tmp/hamlyn-UID";

pub(super) const TAKEN_SHARED: &str =
    "; `hamlyn setup USER`, run by root, gives the user a directory there";

fn of_call(call: &'static str, error: rustix::io::Errno) -> io::Error {
    call::told(call, error.into())
}

pub(super) fn euid() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Root, or a user whom this user namespace cannot express: then the permissions must suffice.
pub(super) fn is_root_or_unknown(uid: u32) -> bool {
    uid == 0 || socket::known_uid(uid).is_none()
}

/// Opens a directory step by step.
pub(super) fn open(path: &Path, last: Final) -> Result<Directory, DirectoryError> {
    // The path to a user's own directory may contain links (/var/run); it is resolved first, and
    // the walk that follows allows none. The path to the shared directory may contain none at all.
    let path = match (last, path.parent(), path.file_name()) {
        (Final::Private { .. }, Some(parent), Some(name)) => {
            let parent = parent.canonicalize().map_err(|error| match error.kind() {
                io::ErrorKind::NotFound => {
                    DirectoryError::Missing { path: parent.into(), advice: "" }
                }
                _ => DirectoryError::Os { path: parent.into(), error },
            })?;
            parent.join(name)
        }
        _ => path.to_path_buf(),
    };
    Ok(Directory { fd: walk(&path, Some(last))?, path })
}

/// Opens each directory on the way, without following links; the last must be as `last` says, or
/// may be on the way itself.
pub(super) fn walk(path: &Path, last: Option<Final>) -> Result<OwnedFd, DirectoryError> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut at = PathBuf::from("/");
    let mut fd =
        rustix::fs::open("/", flags, Mode::empty()).map_err(|e| os_error(&at, "open", e))?;
    let parts: Vec<_> = path.components().filter(|c| *c != Component::RootDir).collect();
    for (i, part) in parts.iter().enumerate() {
        at.push(part);
        let is_last = i + 1 == parts.len();
        let advice = last.filter(|_| is_last).map_or("", Final::advice);
        let Component::Normal(name) = part else {
            return Err(DirectoryError::Link { path: at, advice });
        };
        fd = match rustix::fs::openat(&fd, *name, flags, Mode::empty()) {
            Ok(next) => next,
            Err(rustix::io::Errno::LOOP | rustix::io::Errno::NOTDIR) => {
                return Err(DirectoryError::Link { path: at, advice });
            }
            Err(rustix::io::Errno::NOENT) => {
                let advice = match last {
                    Some(Final::Shared) => {
                        " (only services for other users need it: `hamlyn setup`, run by root, makes it)"
                    }
                    Some(Final::Private { .. }) | None => "",
                };
                return Err(DirectoryError::Missing { path: at, advice });
            }
            Err(e) => return Err(os_error(&at, "openat", e)),
        };
        let stat = rustix::fs::fstat(&fd).map_err(|e| os_error(&at, "fstat", e))?;
        check(&at, stat.st_uid, stat.st_mode & 0o7777, last.filter(|_| is_last))?;
    }
    Ok(fd)
}

pub(super) fn check(
    path: &Path,
    owner: u32,
    mode: u32,
    last: Option<Final>,
) -> Result<(), DirectoryError> {
    let wrong_owner = |wanted: String| {
        let advice = last.map_or("", Final::advice);
        Err(DirectoryError::Owner { path: path.into(), owner, wanted, advice })
    };
    let wrong_mode =
        |wanted: &'static str| Err(DirectoryError::Mode { path: path.into(), mode, wanted });
    match last {
        None => {
            if !is_root_or_unknown(owner) && owner != euid() {
                return wrong_owner(std::format!("root or user {}", euid()));
            }
            if mode & 0o022 != 0 && mode & 0o1000 == 0 {
                return wrong_mode("be sticky, or closed to the writing of others");
            }
        }
        Some(Final::Private { chosen }) => {
            if owner != euid() {
                return wrong_owner(std::format!("user {}", euid()));
            }
            if mode & 0o022 != 0 {
                return wrong_mode("be closed to the writing of others");
            }
            if chosen && mode & 0o077 != 0 {
                return wrong_mode("be closed to others (0700)");
            }
        }
        Some(Final::Shared) => {
            if !is_root_or_unknown(owner) {
                return wrong_owner("root".into());
            }
            if mode & 0o1000 == 0 && mode & 0o022 != 0 {
                return wrong_mode("be sticky (01777), or closed to the writing of others");
            }
        }
    }
    Ok(())
}

/// The directory of this user's own services.
pub fn private_dir(config: &Config) -> PathBuf {
    if let Some(dir) = &config.dir {
        return dir.clone();
    }
    // A directory left from before a change of user is not this user's.
    let is_own = |dir: &Path| {
        use std::os::unix::fs::MetadataExt;
        dir.is_absolute() && dir.metadata().is_ok_and(|m| m.is_dir() && m.uid() == euid())
    };
    match environment::variable("XDG_RUNTIME_DIR").map(PathBuf::from) {
        Some(dir) if is_own(&dir) => dir.join("hamlyn"),
        _ => PathBuf::from(std::format!("/tmp/hamlyn-{}", euid())),
    }
}

pub(super) fn open_private(config: &Config, create: bool) -> Result<Directory, DirectoryError> {
    let path = private_dir(config);
    let chosen = config.dir.is_none();
    let last = Final::Private { chosen };
    // An existing directory need not be made: making one waits for its parent directory, which
    // others may hold (/tmp, say).
    match open(&path, last) {
        Err(DirectoryError::Missing { .. }) if create => {}
        opened => return opened,
    }
    // Another process may be faster, perhaps another user's: the directory is checked below in any
    // case.
    match rustix::fs::mkdir(&path, Mode::RWXU) {
        Ok(()) => {
            let made = open(&path, last)?;
            // The umask of the process may have denied access to its own user, too.
            let checked = std::format!("/proc/self/fd/{}", made.fd.as_raw_fd());
            let _ = rustix::fs::chmod(checked, Mode::RWXU);
            return Ok(made);
        }
        Err(rustix::io::Errno::EXIST) => {}
        Err(rustix::io::Errno::NOENT) => {
            let path = path.parent().map_or(path.clone(), Path::to_path_buf);
            let advice = match chosen {
                true => last.advice(),
                false => {
                    "; the setting dir (HAMLYN_DIR) names a directory in it, and that one alone is made"
                }
            };
            return Err(DirectoryError::Missing { path, advice });
        }
        Err(e) => return Err(os_error(&path, "mkdir", e)),
    }
    open(&path, last)
}

/// The mode of a user's place: others may pass through, but not list it.
const PASSES: Mode = Mode::from_raw_mode(0o711);

/// The error of a call about `path`.
fn os_error(path: &Path, call: &'static str, e: rustix::io::Errno) -> DirectoryError {
    DirectoryError::Os { path: path.into(), error: of_call(call, e) }
}

/// `<shared>/<uid>`.
pub(super) fn open_shared(
    config: &Config,
    uid: u32,
    create: bool,
) -> Result<Directory, DirectoryError> {
    let shared = open(&config.shared_dir, Final::Shared)?;
    let name = uid.to_string();
    let path = shared.path.join(&name);
    let os = |call, e| os_error(&path, call, e);
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let look = || rustix::fs::openat(&shared.fd, &*name, flags, Mode::empty());
    let mut found = look();
    // As in `open_private`: an existing directory need not be made.
    if create && matches!(found, Err(rustix::io::Errno::NOENT)) {
        match rustix::fs::mkdirat(&shared.fd, &*name, PASSES) {
            // The umask of the process may have denied access to others.
            Ok(()) => rustix::fs::chmodat(&shared.fd, &*name, PASSES, AtFlags::empty())
                .map_err(|e| os("fchmodat", e))?,
            Err(rustix::io::Errno::EXIST) => {}
            // Only root may make one.
            Err(rustix::io::Errno::ACCESS) => {
                return Err(DirectoryError::Missing { path, advice: TAKEN_SHARED });
            }
            Err(e) => return Err(os("mkdirat", e)),
        }
        found = look();
    }
    let fd = match found {
        Ok(fd) => fd,
        Err(rustix::io::Errno::LOOP | rustix::io::Errno::NOTDIR) => {
            return Err(DirectoryError::Link { path, advice: TAKEN_SHARED });
        }
        Err(rustix::io::Errno::NOENT) => {
            return Err(DirectoryError::Missing { path, advice: NOTHING_SHARED });
        }
        Err(e) => return Err(os("openat", e)),
    };
    let stat = rustix::fs::fstat(&fd).map_err(|e| os("fstat", e))?;
    let is_known = || uid == euid() || socket::known_uid(stat.st_uid).is_some();
    let of_shared = rustix::fs::fstat(&shared.fd).map_err(|e| os("fstat", e))?;
    let advice = match stat.st_uid == uid {
        true => None,
        false if is_known() => Some(TAKEN_SHARED),
        // Within a user namespace its owner may be unknown, so only root may have put it there.
        false => Some(UNKNOWN_SHARED).filter(|_| of_shared.st_mode & 0o022 != 0),
    };
    if let Some(advice) = advice {
        let wanted = std::format!("user {uid}");
        return Err(DirectoryError::Owner { path, owner: stat.st_uid, wanted, advice });
    }
    if stat.st_mode & 0o022 != 0 {
        let wanted = "be closed to the writing of others";
        return Err(DirectoryError::Mode { path, mode: stat.st_mode & 0o7777, wanted });
    }
    Ok(Directory { fd, path })
}

/// Makes the shared directory, as root, at start-up of the machine (`hamlyn setup`). An existing
/// one is checked.
pub fn setup_shared_dir(config: &Config) -> Result<PathBuf, DirectoryError> {
    let path = config.shared_dir.clone();
    let os = |call, e| os_error(&path, call, e);
    // No other user may replace it between making and opening it.
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(DirectoryError::Link { path, advice: "" });
    };
    let parent = walk(parent, None)?;
    match rustix::fs::mkdirat(&parent, name, Mode::RWXU) {
        Ok(()) => {
            if euid() != 0 {
                let _ = rustix::fs::unlinkat(&parent, name, AtFlags::REMOVEDIR);
                let wanted = "root".into();
                return Err(DirectoryError::Owner { path, owner: euid(), wanted, advice: "" });
            }
            let open = Mode::from_raw_mode(0o1777);
            rustix::fs::chmodat(&parent, name, open, AtFlags::empty())
                .map_err(|e| os("fchmodat", e))?;
        }
        Err(rustix::io::Errno::EXIST) => {}
        Err(e) => return Err(os("mkdirat", e)),
    }
    open_checked_shared(&path)?;
    Ok(path)
}

/// Gives a user, by name or number, a directory in the shared one, as root, so that no other user
/// can take its place before that user first serves (`hamlyn setup USER`). A directory that another
/// user has put there is moved aside.
///
/// ```no_run
/// # use hamlyn::Config;
/// use hamlyn::services::{setup_shared_dir, setup_user_dir, uid_of};
///
/// // As root, when the machine starts.
/// let config = Config::from_env()?;
/// setup_shared_dir(&config)?;
/// let place = setup_user_dir(&config, "ada")?;
/// println!("{} has {}", uid_of("ada")?, place.display());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn setup_user_dir(config: &Config, user: &str) -> Result<PathBuf, DirectoryError> {
    let uid = uid_of(user)?;
    let shared = open(&config.shared_dir, Final::Shared)?;
    let name = uid.to_string();
    let path = shared.path.join(&name);
    let os = |call, e| os_error(&path, call, e);
    let at = &shared.fd;
    let nofollow = AtFlags::SYMLINK_NOFOLLOW;
    for _ in 0..MOVES_MAX {
        match rustix::fs::mkdirat(at, &*name, Mode::RWXU) {
            Ok(()) => {
                // Root's, and the directory is sticky: no other user moves it aside meanwhile.
                let owner = Some(rustix::fs::Uid::from_raw(uid));
                rustix::fs::chmodat(at, &*name, PASSES, AtFlags::empty())
                    .map_err(|e| os("fchmodat", e))?;
                rustix::fs::chownat(at, &*name, owner, None, nofollow)
                    .map_err(|e| os("fchownat", e))?;
                return Ok(path);
            }
            Err(rustix::io::Errno::EXIST) => {}
            Err(e) => return Err(os("mkdirat", e)),
        }
        match rustix::fs::statat(at, &*name, nofollow) {
            Ok(stat)
                if stat.st_uid == uid
                    && rustix::fs::FileType::from_raw_mode(stat.st_mode).is_dir() =>
            {
                mend(at, &name, uid).map_err(|e| os("fchmod", e))?;
                return Ok(path);
            }
            Ok(stat) => {
                // Not a number, so it is no user's place.
                let number = u64::from_ne_bytes(
                    sys::random()
                        .map_err(|error| DirectoryError::Os { path: path.clone(), error })?,
                );
                let aside = std::format!("{name}.taken-by-{}-{number:016x}", stat.st_uid);
                match rustix::fs::renameat(at, &*name, at, &*aside) {
                    Ok(()) | Err(rustix::io::Errno::NOENT) => {}
                    Err(e) => return Err(os("renameat2", e)),
                }
            }
            Err(rustix::io::Errno::NOENT) => {}
            Err(e) => return Err(os("newfstatat", e)),
        }
    }
    Err(os("mkdirat", rustix::io::Errno::EXIST))
}

/// Restores the mode of a user's place if others cannot pass or may write. If something else is
/// there by now, it is left alone: the user may have moved the directory.
fn mend(shared: &OwnedFd, name: &str, uid: u32) -> Result<(), rustix::io::Errno> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let fd = rustix::fs::openat(shared, name, flags, Mode::empty())?;
    let stat = rustix::fs::fstat(&fd)?;
    let mode = stat.st_mode & 0o7777;
    if stat.st_uid == uid && (!lets_pass(mode) || mode & 0o022 != 0) {
        rustix::fs::fchmod(&fd, PASSES)?;
    }
    Ok(())
}

/// The number of times that another user may be faster than root in taking a place.
pub(super) const MOVES_MAX: u32 = 16;

pub(super) fn open_checked_shared(path: &Path) -> Result<(), DirectoryError> {
    open(path, Final::Shared).map(|_| ())
}

/// The number of a user, by name or number.
pub fn uid_of(user: &str) -> Result<u32, DirectoryError> {
    user.parse()
        .ok()
        .or_else(|| sys::uid_of_user(user))
        .ok_or_else(|| DirectoryError::NoUser(user.into()))
}

/// The rule for the mode of a user's place in the shared directory.
const LETS_PASS: &str = "let others pass, who find no name in it otherwise: its user, or root, says \
     `chmod 711`, and `hamlyn setup USER` by root mends it, too";

/// Whether others find the names in a user's place.
fn lets_pass(mode: u32) -> bool {
    mode & 0o011 == 0o011
}

impl Directory {
    /// Why this process finds no name in it.
    pub(super) fn no_way(&self) -> DirectoryError {
        let path = self.path.clone();
        match rustix::fs::fstat(&self.fd).map(|stat| stat.st_mode & 0o7777) {
            Ok(mode) if !lets_pass(mode) => DirectoryError::Mode { path, mode, wanted: LETS_PASS },
            _ => DirectoryError::Os { path, error: rustix::io::Errno::ACCESS.into() },
        }
    }

    /// The socket's address: through the checked descriptor, which also keeps it short; by its
    /// path without /proc.
    pub(super) fn address(&self, name: &str) -> Result<PathBuf, PathTooLong> {
        let through = PathBuf::from(std::format!("/proc/self/fd/{}", self.fd.as_raw_fd()));
        let address = if through.exists() { through } else { self.path.clone() }.join(name);
        let bytes = address.as_os_str().len();
        if bytes > SOCKET_PATH_MAX { Err(PathTooLong { address, bytes }) } else { Ok(address) }
    }

    /// No other process takes over a name here while the lock is held. `None`: another process of
    /// this user did not release it in time.
    pub(super) fn lock(&self) -> Result<Option<Locked<'_>>, rustix::io::Errno> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        // The limit is on the time for which others have had the lock: opening it waits for the
        // holder of the directory, and then all waiting processes come at once.
        let mut waited_ns = 0;
        loop {
            let fd = rustix::fs::openat(&self.fd, LOCK_FILE, flags, mode)?;
            // Regardless of the umask: other processes of this user open it, also if this one is
            // killed.
            rustix::fs::fchmod(&fd, mode)?;
            match rustix::fs::flock(&fd, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) if self.is_lock_file(&fd)? => {
                    return Ok(Some(Locked { directory: self, _fd: fd }));
                }
                // The file's last holder has removed it.
                Ok(()) | Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::WOULDBLOCK) if waited_ns < LOCK_NS => {
                    let began_ns = sys::monotonic_ns();
                    thread::sleep(core::time::Duration::from_millis(1));
                    waited_ns += sys::monotonic_ns() - began_ns;
                }
                Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
                Err(e) => return Err(e),
            }
        }
    }

    pub(super) fn is_lock_file(&self, fd: &OwnedFd) -> Result<bool, rustix::io::Errno> {
        let locked = rustix::fs::fstat(fd)?;
        match rustix::fs::statat(&self.fd, LOCK_FILE, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(there) => Ok((there.st_dev, there.st_ino) == (locked.st_dev, locked.st_ino)),
            Err(rustix::io::Errno::NOENT) => Ok(false),
            Err(e) => Err(e),
        }
    }
}

/// The names of a directory, for this process alone.
pub(super) struct Locked<'a> {
    pub(super) directory: &'a Directory,
    pub(super) _fd: OwnedFd,
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        // Before the lock is released: the next holder then sees that the file is gone.
        let _ = rustix::fs::unlinkat(&self.directory.fd, LOCK_FILE, AtFlags::empty());
    }
}

pub(super) struct PathTooLong {
    pub(super) address: PathBuf,
    pub(super) bytes: usize,
}
