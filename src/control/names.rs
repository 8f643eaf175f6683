//! What services are called and where their sockets lie.
//!
//! ```text
//! name        <private>/name             for the same user; the directory is this user's alone
//! user@name   <shared>/<uid>/name        for other users; <shared> is root's and sticky,
//!                                        <shared>/<uid> belongs to that user
//! ```
//! Directories are opened component by component without following links, and each is checked by
//! its descriptor, so that what was checked is what is used.
//!
//! Taking over a name that a dead process left behind is done under the lock of a file that only
//! this user can open: the kernel releases it with its holder, and whoever held it removes it. (The
//! directory itself could be locked by whoever may read it.) Two that race cannot both find the
//! name stale. Never: a name is removed that something still listens on, or that is not a socket.

use crate::config::Config;
use crate::os::socket::Connection;
use crate::os::{socket, sys};
use core::fmt;
use core::str::FromStr;
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Component, Path, PathBuf};
use std::string::{String, ToString};
use std::vec::Vec;

/// Longest name of a service, in bytes.
pub const NAME_BYTES_MAX: usize = 64;
/// Longest name of a user, in bytes.
pub const USER_BYTES_MAX: usize = 32;
/// Longest path of a socket that the kernel takes, in bytes.
const SOCKET_PATH_MAX: usize = 107;
/// The file that is locked while names are taken and given up; no service can be called so.
const LOCK_FILE: &str = ".lock";
/// How long another process may be busy in the directory.
const LOCK_NS: u64 = 2_000_000_000;

/// `[user@]name`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServiceName {
    user: Option<String>,
    name: String,
}

/// A text that is no name of a service.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// Nothing there.
    #[error("{0:?} has an empty name or user; a service is [user@]name")]
    Empty(String),
    /// Too long.
    #[error("{text:?} is too long: {bytes} bytes, and at most {max} are allowed")]
    TooLong {
        /// The name or the user.
        text: String,
        /// Its bytes.
        bytes: usize,
        /// Most bytes.
        max: usize,
    },
    /// A character that a file name had better not have.
    #[error(
        "{text:?} has {found:?}; allowed are a-z A-Z 0-9 . _ -, and neither . nor - as the first"
    )]
    Character {
        /// The name or the user.
        text: String,
        /// The first character that is not allowed.
        found: char,
    },
}

impl ServiceName {
    /// Whose it is, if not this user's own.
    pub fn user(&self) -> Option<&str> {
        self.user.as_deref()
    }

    /// The name without the user.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl FromStr for ServiceName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let part = |part: &str, max: usize| {
            if part.is_empty() {
                return Err(NameError::Empty(text.into()));
            }
            if part.len() > max {
                // What is printed is cut, too.
                let text = part.chars().take(max).collect();
                return Err(NameError::TooLong { text, bytes: part.len(), max });
            }
            let allowed = |(i, c): (usize, char)| {
                c.is_ascii_alphanumeric() || c == '_' || (i > 0 && (c == '.' || c == '-'))
            };
            match part.char_indices().find(|at| !allowed(*at)) {
                Some((_, found)) => Err(NameError::Character { text: part.into(), found }),
                None => Ok(part.to_string()),
            }
        };
        let (user, name) = match text.split_once('@') {
            Some((user, name)) => (Some(part(user, USER_BYTES_MAX)?), name),
            None => (None, text),
        };
        Ok(Self { user, name: part(name, NAME_BYTES_MAX)? })
    }
}

impl fmt::Display for ServiceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(user) = &self.user {
            write!(f, "{user}@")?;
        }
        f.write_str(&self.name)
    }
}

/// A directory that cannot be used. Nothing in it was touched.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    /// It is not there.
    #[error("the directory {} is not there{}", .path.display(), .advice)]
    Missing {
        /// Which.
        path: PathBuf,
        /// What to do.
        advice: &'static str,
    },
    /// A part of the path is a link, or no directory.
    #[error("{} is a link or no directory{}", .path.display(), .advice)]
    Link {
        /// Which.
        path: PathBuf,
        /// What to do.
        advice: &'static str,
    },
    /// It belongs to somebody else, who may have made it so that it cannot be used.
    #[error("{} belongs to user {owner}, and must belong to {wanted}{}", .path.display(), .advice)]
    Owner {
        /// Which.
        path: PathBuf,
        /// Whose it is.
        owner: u32,
        /// Whose it must be.
        wanted: String,
        /// What to do.
        advice: &'static str,
    },
    /// Others may change it.
    #[error("{} has mode {mode:o}, and must {wanted}", .path.display())]
    Mode {
        /// Which.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
        /// What they must be.
        wanted: &'static str,
    },
    /// No user of that name.
    #[error("there is no user {0:?} here")]
    NoUser(String),
    /// The system refused.
    #[error("{}: {source}", .path.display())]
    Os {
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// A directory that was checked, held by descriptor.
#[derive(Debug)]
pub(super) struct Directory {
    fd: OwnedFd,
    path: PathBuf,
}

#[derive(Clone, Copy, PartialEq)]
enum Final {
    /// This user's own; others may not write, and where the library chose the place, not look.
    Private { chosen: bool },
    /// Root's; and sticky, unless root alone can make something there.
    Shared,
}

impl Final {
    /// What to do where somebody else has taken the place.
    fn advice(self) -> &'static str {
        match self {
            Self::Private { chosen: true } => {
                "; set HAMLYN_DIR, or XDG_RUNTIME_DIR, to a directory of your own"
            }
            Self::Private { chosen: false } | Self::Shared => "",
        }
    }
}

/// What to do where somebody else has taken a user's place in the shared directory.
const UNKNOWN_SHARED: &str = "; a user of another user namespace has no number here, and anybody may \
     have made it: outside, let root give users their directories (`hamlyn setup USER..`) and close \
     the shared directory to the writing of others (`chmod 755`)";
const TAKEN_SHARED: &str = "; `hamlyn setup USER`, run by root, gives the user a directory there";

fn euid() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Root, or somebody whom this user namespace cannot express: then the permissions must do.
fn is_root_or_unknown(uid: u32) -> bool {
    uid == 0 || socket::known_uid(uid).is_none()
}

/// Opens a directory step by step.
fn open(path: &Path, last: Final) -> Result<Directory, DirectoryError> {
    // The way to a user's own directory may have links (/var/run); it is resolved first, and what
    // is then walked must have none. The way to the shared one has none at all.
    let path = match (last, path.parent(), path.file_name()) {
        (Final::Private { .. }, Some(parent), Some(name)) => {
            let parent = parent.canonicalize().map_err(|source| match source.kind() {
                io::ErrorKind::NotFound => {
                    DirectoryError::Missing { path: parent.into(), advice: "" }
                }
                _ => DirectoryError::Os { path: parent.into(), source },
            })?;
            parent.join(name)
        }
        _ => path.to_path_buf(),
    };
    Ok(Directory { fd: walk(&path, Some(last))?, path })
}

/// Opens each directory on the way, without following links; the last must be as `last` says, or
/// may be on the way itself.
fn walk(path: &Path, last: Option<Final>) -> Result<OwnedFd, DirectoryError> {
    let os = |path: &Path, e: rustix::io::Errno| DirectoryError::Os {
        path: path.into(),
        source: e.into(),
    };
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut at = PathBuf::from("/");
    let mut fd = rustix::fs::open("/", flags, Mode::empty()).map_err(|e| os(&at, e))?;
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
                    Some(Final::Shared) => "; `hamlyn setup`, run by root, makes it",
                    Some(Final::Private { .. }) | None => "",
                };
                return Err(DirectoryError::Missing { path: at, advice });
            }
            Err(e) => return Err(os(&at, e)),
        };
        let stat = rustix::fs::fstat(&fd).map_err(|e| os(&at, e))?;
        check(&at, stat.st_uid, stat.st_mode & 0o7777, last.filter(|_| is_last))?;
    }
    Ok(fd)
}

fn check(path: &Path, owner: u32, mode: u32, last: Option<Final>) -> Result<(), DirectoryError> {
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

/// Where this user's own services lie.
pub fn private_dir(config: &Config) -> PathBuf {
    if let Some(dir) = &config.dir {
        return dir.clone();
    }
    // One that a change of user has left behind is not this user's.
    let is_own = |dir: &Path| {
        use std::os::unix::fs::MetadataExt;
        dir.is_absolute() && dir.metadata().is_ok_and(|m| m.is_dir() && m.uid() == euid())
    };
    match std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from) {
        Some(dir) if is_own(&dir) => dir.join("hamlyn"),
        _ => PathBuf::from(std::format!("/tmp/hamlyn-{}", euid())),
    }
}

fn open_private(config: &Config, create: bool) -> Result<Directory, DirectoryError> {
    let path = private_dir(config);
    let chosen = config.dir.is_none();
    if create {
        // Somebody else may win, and may be somebody else: it is checked below in any case.
        match rustix::fs::mkdir(&path, Mode::RWXU) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => {}
            Err(e) => return Err(DirectoryError::Os { path, source: e.into() }),
        }
    }
    open(&path, Final::Private { chosen })
}

/// `<shared>/<uid>`.
fn open_shared(config: &Config, uid: u32, create: bool) -> Result<Directory, DirectoryError> {
    let shared = open(&config.shared_dir, Final::Shared)?;
    let name = uid.to_string();
    let path = shared.path.join(&name);
    let os = |e: rustix::io::Errno| DirectoryError::Os { path: path.clone(), source: e.into() };
    if create {
        // Others pass, and do not look.
        match rustix::fs::mkdirat(&shared.fd, &*name, Mode::from_raw_mode(0o711)) {
            // The mask of the process may have taken the way from others.
            Ok(()) => rustix::fs::chmodat(
                &shared.fd,
                &*name,
                Mode::from_raw_mode(0o711),
                AtFlags::empty(),
            )
            .map_err(os)?,
            Err(rustix::io::Errno::EXIST) => {}
            // Root lets nobody make one.
            Err(rustix::io::Errno::ACCESS) => {
                return Err(DirectoryError::Missing { path, advice: TAKEN_SHARED });
            }
            Err(e) => return Err(os(e)),
        }
    }
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let fd = match rustix::fs::openat(&shared.fd, &*name, flags, Mode::empty()) {
        Ok(fd) => fd,
        Err(rustix::io::Errno::LOOP | rustix::io::Errno::NOTDIR) => {
            return Err(DirectoryError::Link { path, advice: TAKEN_SHARED });
        }
        Err(rustix::io::Errno::NOENT) => {
            return Err(DirectoryError::Missing { path, advice: "; that user serves nothing" });
        }
        Err(e) => return Err(os(e)),
    };
    let stat = rustix::fs::fstat(&fd).map_err(os)?;
    if stat.st_uid != uid && (uid == euid() || socket::known_uid(stat.st_uid).is_some()) {
        let wanted = std::format!("user {uid}");
        let (owner, advice) = (stat.st_uid, TAKEN_SHARED);
        return Err(DirectoryError::Owner { path, owner, wanted, advice });
    }
    // Within a user namespace whose it is cannot be told; so nobody but root may have put it there.
    let of_shared = rustix::fs::fstat(&shared.fd).map_err(os)?;
    if stat.st_uid != uid && of_shared.st_mode & 0o022 != 0 {
        let wanted = std::format!("user {uid}");
        let (owner, advice) = (stat.st_uid, UNKNOWN_SHARED);
        return Err(DirectoryError::Owner { path, owner, wanted, advice });
    }
    if stat.st_mode & 0o022 != 0 {
        let wanted = "be closed to the writing of others";
        return Err(DirectoryError::Mode { path, mode: stat.st_mode & 0o7777, wanted });
    }
    Ok(Directory { fd, path })
}

/// Makes the shared directory, as root, at start-up of the machine (`hamlyn setup`). One that is
/// there already is checked.
pub fn setup_shared_dir(config: &Config) -> Result<PathBuf, DirectoryError> {
    let path = config.shared_dir.clone();
    let os = |e: rustix::io::Errno| DirectoryError::Os { path: path.clone(), source: e.into() };
    // Nobody else may put something in its place between making and opening it.
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
            rustix::fs::chmodat(&parent, name, open, AtFlags::empty()).map_err(os)?;
        }
        Err(rustix::io::Errno::EXIST) => {}
        Err(e) => return Err(os(e)),
    }
    open_checked_shared(&path)?;
    Ok(path)
}

/// Gives a user, by name or number, a directory in the shared one, as root, so that nobody else can
/// take its place before that user first serves (`hamlyn setup USER`). What somebody else has put
/// there is moved aside.
pub fn setup_user_dir(config: &Config, user: &str) -> Result<PathBuf, DirectoryError> {
    let uid = uid_of(user)?;
    let shared = open(&config.shared_dir, Final::Shared)?;
    let name = uid.to_string();
    let path = shared.path.join(&name);
    let os = |e: rustix::io::Errno| DirectoryError::Os { path: path.clone(), source: e.into() };
    let at = &shared.fd;
    let nofollow = AtFlags::SYMLINK_NOFOLLOW;
    for _ in 0..MOVES_MAX {
        match rustix::fs::mkdirat(at, &*name, Mode::RWXU) {
            Ok(()) => {
                // Root's, and the directory is sticky: nobody puts it aside meanwhile.
                let owner = Some(rustix::fs::Uid::from_raw(uid));
                let open = Mode::from_raw_mode(0o711);
                rustix::fs::chmodat(at, &*name, open, AtFlags::empty()).map_err(os)?;
                rustix::fs::chownat(at, &*name, owner, None, nofollow).map_err(os)?;
                return Ok(path);
            }
            Err(rustix::io::Errno::EXIST) => {}
            Err(e) => return Err(os(e)),
        }
        match rustix::fs::statat(at, &*name, nofollow) {
            Ok(stat)
                if stat.st_uid == uid
                    && rustix::fs::FileType::from_raw_mode(stat.st_mode).is_dir() =>
            {
                return Ok(path);
            }
            Ok(stat) => {
                // No number, so it is nobody's place.
                let number = u64::from_ne_bytes(
                    sys::random()
                        .map_err(|source| DirectoryError::Os { path: path.clone(), source })?,
                );
                let aside = std::format!("{name}.taken-by-{}-{number:016x}", stat.st_uid);
                match rustix::fs::renameat(at, &*name, at, &*aside) {
                    Ok(()) | Err(rustix::io::Errno::NOENT) => {}
                    Err(e) => return Err(os(e)),
                }
            }
            Err(rustix::io::Errno::NOENT) => {}
            Err(e) => return Err(os(e)),
        }
    }
    Err(os(rustix::io::Errno::EXIST))
}

/// How often somebody may be faster than root in taking a place.
const MOVES_MAX: u32 = 16;

fn open_checked_shared(path: &Path) -> Result<(), DirectoryError> {
    open(path, Final::Shared).map(|_| ())
}

/// The number of a user, by name or number.
pub fn uid_of(user: &str) -> Result<u32, DirectoryError> {
    user.parse()
        .ok()
        .or_else(|| sys::uid_of_user(user))
        .ok_or_else(|| DirectoryError::NoUser(user.into()))
}

impl Directory {
    /// The socket's address: through the checked descriptor, which also keeps it short; by its
    /// path where there is no /proc.
    fn address(&self, name: &str) -> Result<PathBuf, PathTooLong> {
        let through = PathBuf::from(std::format!("/proc/self/fd/{}", self.fd.as_raw_fd()));
        let address = if through.exists() { through } else { self.path.clone() }.join(name);
        let bytes = address.as_os_str().len();
        if bytes > SOCKET_PATH_MAX { Err(PathTooLong { address, bytes }) } else { Ok(address) }
    }

    /// Nobody else takes over a name here meanwhile. `None`: another process of this user did not
    /// let go in time.
    fn lock(&self) -> Result<Option<Locked<'_>>, rustix::io::Errno> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        let deadline = sys::monotonic_ns() + LOCK_NS;
        loop {
            let fd = rustix::fs::openat(&self.fd, LOCK_FILE, flags, mode)?;
            match rustix::fs::flock(&fd, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) if self.is_lock_file(&fd)? => {
                    return Ok(Some(Locked { directory: self, _fd: fd }));
                }
                // The file's last holder has removed it.
                Ok(()) | Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::WOULDBLOCK) if sys::monotonic_ns() < deadline => {
                    std::thread::sleep(core::time::Duration::from_millis(1));
                }
                Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
                Err(e) => return Err(e),
            }
        }
    }

    fn is_lock_file(&self, fd: &OwnedFd) -> Result<bool, rustix::io::Errno> {
        let locked = rustix::fs::fstat(fd)?;
        match rustix::fs::statat(&self.fd, LOCK_FILE, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(there) => Ok((there.st_dev, there.st_ino) == (locked.st_dev, locked.st_ino)),
            Err(rustix::io::Errno::NOENT) => Ok(false),
            Err(e) => Err(e),
        }
    }
}

/// The names of a directory, for this process alone.
struct Locked<'a> {
    directory: &'a Directory,
    _fd: OwnedFd,
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        // Before the lock goes: whoever gets it then sees that the file is no longer there.
        let _ = rustix::fs::unlinkat(&self.directory.fd, LOCK_FILE, AtFlags::empty());
    }
}

struct PathTooLong {
    address: PathBuf,
    bytes: usize,
}

/// Who may connect to a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// The same user. The socket lies in this user's own directory.
    SameUser,
    /// Members of a group, and the same user. The socket lies in the shared directory.
    Group(u32),
    /// Everybody. The socket lies in the shared directory.
    Anyone,
}

/// A name that could not be served. No name was taken.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Another process serves it.
    #[error("{} is in use: something listens there", .0.display())]
    InUse(PathBuf),
    /// Something that is no socket has the name.
    #[error("{} is not a socket, and is left alone", .0.display())]
    NotASocket(PathBuf),
    /// It is not this user's to serve.
    #[error("serving {name} is not permitted: {why}")]
    NotPermitted {
        /// Which.
        name: String,
        /// Why.
        why: String,
    },
    /// Longer than the kernel takes.
    #[error(
        "the socket's path {} is too long: {bytes} bytes, and at most {SOCKET_PATH_MAX} are allowed",
        .path.display()
    )]
    PathTooLong {
        /// The path.
        path: PathBuf,
        /// Its bytes.
        bytes: usize,
    },
    /// Another process held the directory all the time.
    #[error("another process has kept the directory {} locked", .0.display())]
    Busy(PathBuf),
    /// The directory cannot be used.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// This process is a child of the one that started the control plane.
    #[error("{}", super::FORKED)]
    Forked,
    /// The greeting is longer than a frame takes.
    #[error("a greeting of {0} bytes; at most {max} are allowed", max = super::GREETING_BYTES_MAX)]
    GreetingTooLong(usize),
    /// The system refused.
    #[error("{}: {source}", .path.display())]
    Os {
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// A name that this process serves; it is removed when dropped.
#[derive(Debug)]
pub(super) struct Listener {
    pub(super) fd: OwnedFd,
    pub(super) access: Access,
    directory: Directory,
    name: String,
    /// Device and inode of the socket's name.
    identity: (u64, u64),
    /// A child that was forked must not remove its parent's name.
    pid: u32,
}

/// Takes a name, over from a dead process if need be.
pub(super) fn listen(
    config: &Config,
    service: &ServiceName,
    access: Access,
) -> Result<Listener, ServeError> {
    if let Some(user) = &service.user {
        let uid = uid_of(user)?;
        if uid != euid() {
            let why = std::format!("this process is user {}, not {user}", euid());
            return Err(ServeError::NotPermitted { name: service.to_string(), why });
        }
    }
    let directory = match access {
        Access::SameUser => open_private(config, true),
        Access::Group(_) | Access::Anyone => open_shared(config, euid(), true),
    };
    let directory = match directory {
        Err(DirectoryError::Os { path, source })
            if source.kind() == io::ErrorKind::PermissionDenied =>
        {
            let why = std::format!("{}: {source}", path.display());
            return Err(ServeError::NotPermitted { name: service.to_string(), why });
        }
        other => other?,
    };
    let path = directory.path.join(&service.name);
    let os = |source: io::Error| match source.kind() {
        io::ErrorKind::PermissionDenied => ServeError::NotPermitted {
            name: service.to_string(),
            why: std::format!("{}: {source}", path.display()),
        },
        _ => ServeError::Os { path: path.clone(), source },
    };
    let address = directory
        .address(&service.name)
        .map_err(|e| ServeError::PathTooLong { path: e.address, bytes: e.bytes })?;
    let Some(lock) = directory.lock().map_err(|e| os(e.into()))? else {
        return Err(ServeError::Busy(directory.path.clone()));
    };
    match rustix::fs::statat(&directory.fd, &*service.name, AtFlags::SYMLINK_NOFOLLOW) {
        Err(rustix::io::Errno::NOENT) => {}
        Err(e) => return Err(os(e.into())),
        Ok(stat) if rustix::fs::FileType::from_raw_mode(stat.st_mode).is_socket() => {
            match socket::try_connect(&address).map(Connection::from) {
                // Nobody listens: its process is dead, or has not begun; under the lock, dead.
                Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => {
                    rustix::fs::unlinkat(&directory.fd, &*service.name, AtFlags::empty())
                        .map_err(|e| os(e.into()))?;
                }
                Err(e) if e.kind() == io::ErrorKind::PermissionDenied => return Err(os(e)),
                Ok(_) | Err(_) => return Err(ServeError::InUse(path)),
            }
        }
        Ok(_) => return Err(ServeError::NotASocket(path)),
    }
    let fd = socket::bind(&address).map_err(os)?;
    // Nobody can connect before it listens, so the permissions are there in time.
    let mode = match access {
        Access::SameUser => 0o600,
        Access::Group(_) => 0o660,
        Access::Anyone => 0o666,
    };
    let prepare = || -> io::Result<(u64, u64)> {
        let name = &*service.name;
        if let Access::Group(gid) = access {
            let gid = rustix::fs::Gid::from_raw(gid);
            rustix::fs::chownat(&directory.fd, name, None, Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
        }
        rustix::fs::chmodat(&directory.fd, name, Mode::from_raw_mode(mode), AtFlags::empty())?;
        let stat = rustix::fs::statat(&directory.fd, name, AtFlags::SYMLINK_NOFOLLOW)?;
        socket::listen(&fd)?;
        Ok((stat.st_dev, stat.st_ino))
    };
    match prepare() {
        Ok(identity) => {
            drop(lock);
            let (name, pid) = (service.name.clone(), std::process::id());
            Ok(Listener { fd, access, directory, name, identity, pid })
        }
        Err(e) => {
            let _ = rustix::fs::unlinkat(&directory.fd, &*service.name, AtFlags::empty());
            Err(os(e))
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if self.pid != std::process::id() {
            return;
        }
        // Under the lock, so that a name which somebody else has taken over meanwhile stays.
        if let Ok(Some(_lock)) = self.directory.lock() {
            let stat =
                rustix::fs::statat(&self.directory.fd, &*self.name, AtFlags::SYMLINK_NOFOLLOW);
            if stat.is_ok_and(|stat| (stat.st_dev, stat.st_ino) == self.identity) {
                let _ = rustix::fs::unlinkat(&self.directory.fd, &*self.name, AtFlags::empty());
            }
        }
    }
}

/// Where a service may be found, and whose it must be.
pub(super) struct Place {
    directory: Directory,
    name: String,
    /// The user who must serve it.
    pub(super) uid: u32,
}

/// Why a service was not found.
#[derive(Debug, thiserror::Error)]
pub enum FindError {
    /// No such name.
    #[error("nothing is called {name}: looked for {}", .looked.join(", "))]
    NotFound {
        /// The service.
        name: String,
        /// The paths tried.
        looked: Vec<String>,
    },
    /// A directory cannot be used.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// Longer than the kernel takes.
    #[error("the socket's path {} is too long: {bytes} bytes", .path.display())]
    PathTooLong {
        /// The path.
        path: PathBuf,
        /// Its bytes.
        bytes: usize,
    },
}

impl Place {
    pub(super) fn address(&self) -> Result<PathBuf, FindError> {
        let too_long = |e: PathTooLong| FindError::PathTooLong { path: e.address, bytes: e.bytes };
        self.directory.address(&self.name).map_err(too_long)
    }

    pub(super) fn path(&self) -> PathBuf {
        self.directory.path.join(&self.name)
    }
}

/// Finds a service: this user's own first in the private directory, then in the shared one.
pub(super) fn find(config: &Config, service: &ServiceName) -> Result<Place, FindError> {
    let uid = match &service.user {
        Some(user) => uid_of(user)?,
        None => euid(),
    };
    let mut looked = Vec::new();
    let mut unusable = None;
    let private = (uid == euid()).then(|| open_private(config, false));
    for directory in private.into_iter().chain([open_shared(config, uid, false)]) {
        match directory {
            Ok(directory) => {
                let name = &*service.name;
                if rustix::fs::statat(&directory.fd, name, AtFlags::SYMLINK_NOFOLLOW).is_ok() {
                    return Ok(Place { directory, name: service.name.clone(), uid });
                }
                looked.push(directory.path.join(name).display().to_string());
            }
            Err(DirectoryError::Missing { path, .. }) => looked.push(path.display().to_string()),
            Err(e) => unusable = unusable.or(Some(e)),
        }
    }
    match unusable {
        Some(e) => Err(e.into()),
        None => Err(FindError::NotFound { name: service.to_string(), looked }),
    }
}

/// A name in one of the directories.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceEntry {
    /// What to connect to.
    pub name: String,
    /// Where its socket lies.
    pub path: PathBuf,
    /// Whose it is; `None` if that cannot be known here.
    pub uid: Option<u32>,
    /// Whether somebody listens; `None` if that may not be asked.
    pub is_alive: Option<bool>,
    /// The process that listens, where it can be seen from here.
    pub pid: Option<u32>,
}

/// The services in this user's own directory and in the shared one, as far as they can be seen.
pub fn list_services(config: &Config) -> Vec<ServiceEntry> {
    let mut found = Vec::new();
    let mut add = |directory: &Directory, user: Option<&str>| {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let Ok(fd) = rustix::fs::openat(&directory.fd, ".", flags, Mode::empty()) else { return };
        let Ok(entries) = rustix::fs::Dir::new(fd) else { return };
        for entry in entries.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.parse::<ServiceName>().is_err() {
                continue;
            }
            let at = AtFlags::SYMLINK_NOFOLLOW;
            let Ok(stat) = rustix::fs::statat(&directory.fd, &*name, at) else { continue };
            if !rustix::fs::FileType::from_raw_mode(stat.st_mode).is_socket() {
                continue;
            }
            let connected = directory.address(&name).ok();
            // Whoever listens there may pass what stops whoever closes it.
            let connected = connected.map(|at| socket::try_connect(&at).map(Connection::from));
            let is_alive = connected.as_ref().and_then(|connected| match connected {
                Ok(_) => Some(true),
                Err(e) => match e.kind() {
                    io::ErrorKind::WouldBlock => Some(true),
                    io::ErrorKind::ConnectionRefused => Some(false),
                    _ => None,
                },
            });
            let listener = connected.and_then(Result::ok).map(socket::identity);
            let pid = listener.and_then(Result::ok).and_then(|listener| listener.pid);
            found.push(ServiceEntry {
                path: directory.path.join(&name),
                name: user.map_or(name.clone(), |user| std::format!("{user}@{name}")),
                uid: socket::known_uid(stat.st_uid),
                is_alive,
                pid,
            });
        }
    };
    if let Ok(directory) = open_private(config, false) {
        add(&directory, None);
    }
    if open_checked_shared(&config.shared_dir).is_ok() {
        let users = std::fs::read_dir(&config.shared_dir).into_iter().flatten().flatten();
        for user in users {
            let name = user.file_name().to_string_lossy().into_owned();
            if let Ok(uid) = name.parse()
                && let Ok(directory) = open_shared(config, uid, false)
            {
                add(&directory, Some(&name));
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

/// Removes a name of this user's that nobody serves any more. `false`: it is served after all, or
/// gone already, or in no directory of this user's.
pub fn remove_stale(config: &Config, entry: &ServiceEntry) -> io::Result<bool> {
    let own = [open_private(config, false), open_shared(config, euid(), false)];
    let parent = entry.path.parent();
    let Some(directory) = own.into_iter().flatten().find(|own| Some(&*own.path) == parent) else {
        return Ok(false);
    };
    let Some(name) = entry.path.file_name().and_then(|name| name.to_str()) else {
        return Ok(false);
    };
    // Whoever serves it anew waits until this is done, or has done it.
    let Some(_lock) = directory.lock()? else {
        return Err(io::Error::new(io::ErrorKind::WouldBlock, "the directory is locked"));
    };
    let stat = match rustix::fs::statat(&directory.fd, name, AtFlags::SYMLINK_NOFOLLOW) {
        Err(rustix::io::Errno::NOENT) => return Ok(false),
        other => other?,
    };
    let address =
        directory.address(name).map_err(|e| io::Error::other(e.address.display().to_string()))?;
    let is_stale = rustix::fs::FileType::from_raw_mode(stat.st_mode).is_socket()
        && socket::try_connect(&address)
            .map(Connection::from)
            .is_err_and(|e| e.kind() == io::ErrorKind::ConnectionRefused);
    if is_stale {
        rustix::fs::unlinkat(&directory.fd, name, AtFlags::empty())?;
    }
    Ok(is_stale)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_wrong_says_how() {
        let parse = |text: &str| text.parse::<ServiceName>();
        assert_eq!(parse("a.b-c_1").unwrap().to_string(), "a.b-c_1");
        let service = parse("me@x").unwrap();
        assert_eq!((service.user(), service.name()), (Some("me"), "x"));
        assert!(matches!(parse(""), Err(NameError::Empty(_))));
        assert!(matches!(parse("@x"), Err(NameError::Empty(_))));
        assert!(matches!(parse("me@"), Err(NameError::Empty(_))));
        assert!(matches!(parse(&"x".repeat(65)), Err(NameError::TooLong { bytes: 65, .. })));
        for bad in ["../x", "a/b", ".hidden", "-x", "a b", "a\0", "a@b@c", "\u{e9}"] {
            assert!(matches!(parse(bad), Err(NameError::Character { .. })), "{bad:?}");
        }
    }
}
