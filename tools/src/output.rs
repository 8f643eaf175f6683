//! Standard output, for lines and tables; and files that replace another atomically when complete.
//!
//! Never: a file replaces a symbolic link, a device or a pipe; a file has a wider mode, or another
//! owner, than the one it replaces; another user gets the content because it first put a file or a
//! link of that name into a directory that all users can write.

use crate::{ending, standard};
use anyhow::{Context, Result, bail, ensure};
use hamlyn::os::environment;
use rustix::fs::{PROC_SUPER_MAGIC, fstat, statfs};
use rustix::process::geteuid;
use std::ffi::OsString;
use std::fmt;
use std::fs::{File, Metadata, Permissions};
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

/// Prints a line. Returns an error, unlike `println!`, which panics: the reader may have left
/// (`hamlyn stat | head`).
pub fn line(text: impl fmt::Display) -> Result<()> {
    self::text(|| writeln!(io::stdout(), "{text}"))
}

/// The same for anything that `print` writes there: it is flushed when this returns.
pub fn text(print: impl FnOnce() -> io::Result<()>) -> Result<()> {
    ensure!(standard::has_output(), "standard output is closed: nobody would have what is printed");
    match print().and_then(|()| io::stdout().flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Err(ReaderGone.into()),
        result => result.context("cannot write to standard output"),
    }
}

/// An error with its causes, each once: many errors include their cause.
pub fn in_words(error: &anyhow::Error) -> String {
    let mut words = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if words.is_empty() {
            words = cause;
        } else if !words.ends_with(&cause) {
            words = format!("{words}: {cause}");
        }
    }
    let of_system = error.chain().filter_map(|cause| cause.downcast_ref::<io::Error>());
    if of_system.filter_map(io::Error::raw_os_error).any(|code| code == FILE_TOO_LARGE) {
        words.push_str(
            ", or than the limit on a file's size (RLIMIT_FSIZE, ulimit -f, LimitFSIZE=)",
        );
    }
    words
}

/// The system's number of "File too large".
const FILE_TOO_LARGE: i32 = rustix::io::Errno::FBIG.raw_os_error();

/// Characters of a line: of the terminal, or from `COLUMNS`; `None` without either.
pub fn width() -> Option<usize> {
    let said = || environment::text("COLUMNS")?.parse().ok().filter(|width| *width > 0);
    match io::stdout().is_terminal().then(crossterm::terminal::size) {
        Some(Ok((width, _))) if width > 0 => Some(width.into()),
        _ => said(),
    }
}

/// Text in lines of at most `width` characters, broken between words; a longer word breaks at the
/// end of the line.
pub fn wrapped(text: &str, width: usize) -> Vec<String> {
    let (width, mut lines) = (width.max(1), vec![String::new()]);
    for word in text.split_whitespace() {
        let letters: Vec<char> = word.chars().collect();
        for (i, part) in letters.chunks(width).enumerate() {
            let line = lines.last_mut().expect("there is one");
            let used = line.chars().count();
            // The whole word counts: a word that fits into a line is not broken.
            let has_room = i == 0 && used + 1 + letters.len() <= width;
            match used {
                0 => line.extend(part),
                _ if has_room => line.extend([' '].iter().chain(part)),
                _ => lines.push(part.iter().collect()),
            }
        }
    }
    lines
}

/// Symbolic links followed for one path, like the kernel's own limit.
const LINKS_MAX: usize = 40;

/// A new file beside `path`, which replaces it when complete, with the mode and the owner of the
/// old file. Readers find the old file or the new one. If a signal ends this process before, the
/// new file is removed.
pub struct Replacement {
    part: NamedTempFile,
    path: PathBuf,
}

impl Replacement {
    /// A replacement of the file that `path` names, through symbolic links. `instead`: a suggestion
    /// for the error if that is no file.
    pub fn new(path: &Path, instead: &str) -> Result<Self> {
        let cannot = || format!("cannot write {}", path.display());
        let (path, replaced) = resolve(path, instead)?;
        // The old content may be secret, and so may the new: the mode is set after the owner.
        let mode = if replaced.is_some() { 0o600 } else { 0o666 };
        let part = tempfile::Builder::new()
            .prefix(".hamlyn-")
            .suffix(".part")
            .permissions(Permissions::from_mode(mode))
            .tempfile_in(folder_of(&path))
            .with_context(cannot)?;
        ending::remove(part.path().to_path_buf());
        if let Some(replaced) = replaced {
            like(part.as_file(), &replaced).with_context(cannot)?;
        }
        Ok(Self { part, path })
    }

    /// Completes the file. `sync`: on the disk, too.
    pub fn finish(&mut self, sync: bool) -> Result<()> {
        let Self { part, path } = self;
        let mut put = || -> io::Result<()> {
            if sync {
                part.as_file().sync_all()?;
            }
            std::fs::rename(part.path(), &*path)?;
            part.disable_cleanup(true);
            ending::keep(part.path());
            if sync {
                // The name, too.
                File::open(folder_of(path))?.sync_all()?;
            }
            Ok(())
        };
        put().with_context(|| format!("cannot write {}", path.display()))
    }
}

impl Write for Replacement {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // Not through `NamedTempFile`'s own `Write`, whose errors contain its path.
        self.part.as_file_mut().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The directory of the file.
pub fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|parent| *parent != Path::new("")).unwrap_or(Path::new("."))
}

/// The file that `path` names, or will name once it is written, and its present metadata. Never a
/// symbolic link, a device, a pipe, or the file that this process was given as its output.
fn resolve(path: &Path, instead: &str) -> Result<(PathBuf, Option<Metadata>)> {
    let no_file = || format!("{} is no file: {instead}", path.display());
    let cannot = || format!("cannot write {}", path.display());
    ensure!(path != Path::new("-"), no_file());
    let mut at = path.to_path_buf();
    for _ in 0..=LINKS_MAX {
        let folder = directory(folder_of(&at))
            .with_context(|| format!("{}: its directory {}", cannot(), folder_of(&at).display()))?;
        at = folder.join(at.file_name().with_context(no_file)?);
        // One look at each name; a later change of it has no effect.
        let found = match at.symlink_metadata() {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok((at, None)),
            found => found.with_context(cannot)?,
        };
        if found.is_symlink() {
            // A link in /proc leads to an open file, which need not have a name.
            let is_proc = statfs(&folder).with_context(cannot)?.f_type == PROC_SUPER_MAGIC;
            ensure!(!is_proc, no_file());
        } else {
            ensure!(found.is_file() && !is_output(&found), no_file());
        }
        let around = folder.symlink_metadata().with_context(cannot)?;
        check_planted(&at, &found, &around).with_context(cannot)?;
        if found.is_file() {
            return Ok((at, Some(found)));
        }
        at = folder.join(at.read_link().with_context(cannot)?);
    }
    bail!("{}: symbolic links that lead to one another", cannot())
}

/// The directory without symbolic links. The kernel's `fs.protected_symlinks` looks at the last name
/// of a path alone, so each link on the way is checked here.
fn directory(path: &Path) -> Result<PathBuf> {
    let mut at = PathBuf::from("/");
    // The names still to walk, the next one last.
    let names = |path: &Path| -> Vec<OsString> {
        path.components().rev().map(|name| name.as_os_str().to_owned()).collect()
    };
    let (mut left, mut links) = (names(&std::path::absolute(path)?), 0);
    while let Some(name) = left.pop() {
        if name == ".." {
            at.pop();
            continue;
        }
        if name == "." {
            continue;
        }
        let next = at.join(&name);
        let found = next.symlink_metadata()?;
        if !found.is_symlink() {
            at = next;
            continue;
        }
        links += 1;
        ensure!(links <= LINKS_MAX, "symbolic links that lead to one another");
        check_planted(&next, &found, &at.symlink_metadata()?)?;
        left.extend(names(&next.read_link()?));
    }
    Ok(at)
}

/// Fails if another user can have put this file or link into this directory for others to write
/// through; the rules are those of the kernel's `fs.protected_regular` and `fs.protected_symlinks`.
fn check_planted(at: &Path, found: &Metadata, directory: &Metadata) -> Result<()> {
    let is_open = directory.mode() & 0o022 != 0;
    let known = [geteuid().as_raw(), directory.uid()];
    let (at, user) = (at.display(), found.uid());
    ensure!(
        !is_open || known.contains(&user),
        "user {user} has put {at} there, in a directory where others can write, and would have \
         what is written: remove it, or write elsewhere"
    );
    Ok(())
}

/// Whether this process writes to it already.
fn is_output(found: &Metadata) -> bool {
    [rustix::stdio::stdout(), rustix::stdio::stderr()].iter().any(|output| {
        fstat(output)
            .is_ok_and(|output| (output.st_dev, output.st_ino) == (found.dev(), found.ino()))
    })
}

/// Gives a new file the owner and the mode of the file that it will replace.
fn like(file: &File, replaced: &Metadata) -> Result<()> {
    let (new, old) = (file.metadata()?, (replaced.uid(), replaced.gid()));
    if (new.uid(), new.gid()) != old && fchown(file, Some(old.0), Some(old.1)).is_err() {
        let (user, group) = old;
        bail!(
            "it is of user {user} and group {group}, and a new file in its place would be of user {} \
             and group {}: remove it first, or write elsewhere",
            new.uid(),
            new.gid()
        );
    }
    Ok(file.set_permissions(Permissions::from_mode(replaced.mode() & 0o777))?)
}

/// Replaces the file that `path` names atomically. Does not flush it to disk.
pub fn replace(path: &Path, text: &str) -> Result<()> {
    // The collector reads every file that ends in .prom, and is another user.
    let mut file = Replacement::new(path, "without --output it goes to standard output")?;
    file.write_all(text.as_bytes()).with_context(|| format!("writing {}", path.display()))?;
    file.finish(false)
}

/// The reader has left. The command ends with success.
#[derive(Debug)]
pub struct ReaderGone;

impl fmt::Display for ReaderGone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("nobody reads standard output any more")
    }
}

impl std::error::Error for ReaderGone {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_that_an_error_has_told_is_not_told_again() {
        let denied = || anyhow::Error::from(io::Error::from_raw_os_error(13));
        let error = denied().context("a: Permission denied (os error 13)").context("b");
        assert_eq!(in_words(&error), "b: a: Permission denied (os error 13)");
        assert_eq!(in_words(&denied().context("a")), "a: Permission denied (os error 13)");
    }

    #[test]
    fn a_link_that_changes_meanwhile_leads_to_no_file_that_was_not_looked_at() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("there"), "").unwrap();
        let is_over = std::sync::atomic::AtomicBool::new(false);
        let relaxed = std::sync::atomic::Ordering::Relaxed;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for target in ["there", "nothing"].iter().cycle() {
                    std::os::unix::fs::symlink(target, at("next")).unwrap();
                    std::fs::rename(at("next"), at("link")).unwrap();
                    if is_over.load(relaxed) {
                        break;
                    }
                }
            });
            let there = at("there").canonicalize().unwrap();
            let wrong = (0..20_000).find_map(|_| {
                let (path, found) = resolve(&at("link"), "").ok()?;
                ((path == there) != found.is_some()).then_some(path)
            });
            is_over.store(true, relaxed);
            assert_eq!(wrong, None);
        });
    }

    #[test]
    fn text_is_broken_between_words_and_what_is_longer_than_a_line_is_broken_anyway() {
        let of = |text| wrapped(text, 7).join("|");
        assert_eq!(of("a bc def  ghij"), "a bc|def|ghij");
        assert_eq!(of("abcdefg h"), "abcdefg|h");
        assert_eq!(of("a bcdefghijk l"), "a|bcdefgh|ijk l");
        assert_eq!(of(""), "");
    }
}
