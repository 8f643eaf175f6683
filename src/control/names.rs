//! The names of services and the places of their sockets.
//!
//! ```text
//! name        <private>/name             for the same user; the directory is this user's alone
//! user@name   <shared>/<uid>/name        for other users; <shared> is root's and sticky,
//!                                        <shared>/<uid> belongs to that user
//! ```
//! Directories are opened component by component without following links, and each is checked by
//! its descriptor, so that the directory in use is the one that was checked.
//!
//! A name that a dead process left behind is taken over under the lock of a file that only this
//! user can open: the kernel releases it with its holder, and the holder removes it. (Any reader of
//! the directory itself could lock that.) Two processes that race cannot both find the name stale.
//! Never: a name is removed that a process still listens on, or that is not a socket.

mod listing;

use super::directories::{
    Directory, PathTooLong, SOCKET_PATH_MAX, euid, open_private, open_shared,
};
pub use super::directories::{
    DirectoryError, private_dir, setup_shared_dir, setup_user_dir, uid_of,
};
pub(super) use listing::namesakes;
pub use listing::{ServiceEntry, Services, list_services, remove_stale};

use super::within::{Running, within};
use crate::config::Config;
use crate::os::call::told;
use crate::os::socket;
use crate::os::socket::SocketConnection;
use core::fmt;
use core::str::FromStr;
use core::time::Duration;
use rustix::fs::{AtFlags, Mode};
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::string::{String, ToString};
use std::sync::Arc;
use std::vec::Vec;

/// Prefix of the name of a service of another host.
pub const SCHEME: &str = "hamlyn://";

/// Longest name of a service, in bytes.
pub const NAME_BYTES_MAX: usize = 64;

/// Longest name of a user, in bytes.
pub const USER_BYTES_MAX: usize = 32;

/// `[user@]name`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServiceName {
    user: Option<String>,
    name: String,
}

/// A text that is no name of a service, on this host or another.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[cfg_attr(not(feature = "unstable-internals"), non_exhaustive)]
pub enum NameError {
    /// The name or the user is empty.
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
    /// A character that does not belong in a file name.
    #[error(
        "{text:?} has {found:?}{}; allowed are a-z A-Z 0-9 . _ -, and neither . nor - as the first{}",
        if matches!(.found, '.' | '-') { " as the first" } else { "" },
        other_form(.text, *.found)
    )]
    Character {
        /// The name or the user.
        text: String,
        /// The first character that is not allowed.
        found: char,
    },
    /// It does not have the form of the name of a service of another host.
    #[cfg(feature = "tls")]
    #[error(
        "{0:?} is no name of a service of another host: that is hamlyn://host:port/service, or \
         hamlyn://service where there is a directory"
    )]
    HostForm(String),
    /// A place does not have its form.
    #[cfg(feature = "tls")]
    #[error("{0:?} is not host:port")]
    Place(String),
    /// The host is neither a name nor an address.
    #[cfg(feature = "tls")]
    #[error("the host of {text:?} {why}")]
    Host {
        /// The whole text.
        text: String,
        /// The fault.
        why: &'static str,
    },
    /// The port is not valid.
    #[cfg(feature = "tls")]
    #[error("the port of {0:?} is none: it is a number from 1 to 65535")]
    Port(String),
    /// It contains a user's name, which has a meaning on one host only.
    #[cfg(feature = "tls")]
    #[error("{0:?} names a user: between hosts there are no users, and a service is a name alone")]
    User(String),
}

/// The form that a name with such a character may be meant to have.
fn other_form(text: &str, found: char) -> String {
    match text.split_once("://") {
        Some((scheme, _)) => std::format!(
            "; nothing is connected to by {scheme}://: a service of another host is \
             hamlyn://host:port/service, and one of this host its name alone"
        ),
        None if matches!(found, ':' | '/') => {
            "; a service of another host is hamlyn://host:port/service".into()
        }
        None => String::new(),
    }
}

/// Whether a text is, or is meant to be, the name of a service of another host, which begins with
/// `hamlyn://` (RFC 3986, 3.1: in letters of either case).
pub fn is_of_other_host(name: &str) -> bool {
    name.as_bytes()
        .get(..SCHEME.len())
        .is_some_and(|start| start.eq_ignore_ascii_case(SCHEME.as_bytes()))
}

impl ServiceName {
    /// Its owner, if not this user.
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
            // An address with a scheme is more often wrong because of that than because of its
            // length.
            if part.len() > max && !part.contains("://") {
                // The error prints a cut text, too.
                let text = part.chars().take(max).collect();
                return Err(NameError::TooLong { text, bytes: part.len(), max });
            }
            let allowed = |(i, c): (usize, char)| {
                c.is_ascii_alphanumeric() || c == '_' || (i > 0 && (c == '.' || c == '-'))
            };
            match part.char_indices().find(|at| !allowed(*at)) {
                Some((_, found)) => {
                    let text = part.chars().take(NAME_BYTES_MAX).collect();
                    Err(NameError::Character { text, found })
                }
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

/// The peers that may connect to a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "unstable-internals"), non_exhaustive)]
pub enum Access {
    /// The same user. The socket lies in this user's own directory. Of other hosts: those that
    /// prove the same identity as this one (the first name in their certificate, or the secret),
    /// and those that the setting [`links_from`](crate::Config::links_from) names.
    SameUser,
    /// Members of a group, and the same user. The socket lies in the shared directory. Of other
    /// hosts: those that the setting [`links_from`](crate::Config::links_from) names.
    Group(u32),
    /// Everybody. The socket lies in the shared directory. Of other hosts: all that have proved
    /// their identity.
    Anyone,
}

/// A name that could not be served. No name was taken.
#[derive(Debug, thiserror::Error)]
#[cfg_attr(not(feature = "unstable-internals"), non_exhaustive)]
pub enum ServeError {
    /// Another process serves it.
    #[error(
        "{} is in use: {} serves it; it is free again when that has ended, or gives it up",
        .path.display(),
        process.map_or("another process".into(), |pid| std::format!("process {pid}"))
    )]
    InUse {
        /// The name.
        path: PathBuf,
        /// Its process, if that can be seen from here.
        process: Option<u32>,
    },
    /// Something that is no socket has the name.
    #[error("{} is not a socket, and is left alone", .0.display())]
    NotASocket(PathBuf),
    /// This user may not serve it.
    #[error("serving {name} is not permitted: {why}")]
    NotPermitted {
        /// The name.
        name: String,
        /// The reason.
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
    /// Another process held the directory, or its parent, for the whole time.
    #[error("another process has kept the directory {} locked", .0.display())]
    Busy(PathBuf),
    /// A look into the directory took too long and was given up; its thread goes on without effect.
    #[error(
        "the directory {} has not answered for {} s: who may read a directory can hold it, so close \
         it to the reading of others (chmod 711)",
        .0.display(), CHANGE_WITHIN.as_secs()
    )]
    Held(PathBuf),
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
    #[error("{}: {error}", .path.display())]
    Os {
        /// The path.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
}

/// A name that this process serves; it is removed when dropped.
#[derive(Debug)]
pub(super) struct NameListener {
    pub(super) fd: OwnedFd,
    pub(super) access: Access,
    /// Until it is removed.
    name: Option<TakenName>,
    /// The process that took the name: a forked child must not remove its parent's name.
    pid: u32,
}

impl NameListener {
    /// The name; empty if it has been given up.
    pub(super) fn name(&self) -> &str {
        self.name.as_ref().map_or("", |taken| &taken.name)
    }
}

/// A name that this process has taken.
#[derive(Debug)]
struct TakenName {
    directory: Directory,
    name: String,
    /// Device and inode of the socket's name.
    identity: (u64, u64),
}

/// Time limit for a change of a directory: longer than another process may lock it.
const CHANGE_WITHIN: Duration = Duration::from_secs(4);

/// Most slow changes at a time; beyond, no more are tried.
const CHANGING_MAX: usize = 16;

/// Takes a name, over from a dead process if need be. Any reader of a directory on the way (the
/// shared one, /tmp) can hold it; so a separate thread does this, within a time limit. A name that
/// is taken later than that is given up at once.
pub(super) fn listen(
    config: &Config,
    service: &ServiceName,
    access: Access,
) -> Result<NameListener, ServeError> {
    let path = || match access {
        Access::SameUser => private_dir(config),
        Access::Group(_) | Access::Anyone => config.shared_dir.clone(),
    };
    let of_thread = (config.clone(), service.clone());
    static LISTENING: Running = Running::new(CHANGING_MAX);
    let listened =
        LISTENING.within(CHANGE_WITHIN, move || try_listen(&of_thread.0, &of_thread.1, access));
    match listened {
        Ok(Some(listened)) => listened,
        Ok(None) => Err(ServeError::Held(path())),
        // Threads are not possible here: the caller does it, and takes the risk of a held
        // directory.
        Err(_) => try_listen(config, service, access),
    }
}

fn try_listen(
    config: &Config,
    service: &ServiceName,
    access: Access,
) -> Result<NameListener, ServeError> {
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
        Err(DirectoryError::Os { path, error })
            if error.kind() == io::ErrorKind::PermissionDenied =>
        {
            let why = std::format!("{}: {error}", path.display());
            return Err(ServeError::NotPermitted { name: service.to_string(), why });
        }
        other => other?,
    };
    let path = directory.path.join(&service.name);
    let os = |error: io::Error| match error.kind() {
        io::ErrorKind::PermissionDenied => ServeError::NotPermitted {
            name: service.to_string(),
            why: std::format!("{}: {error}", path.display()),
        },
        _ => ServeError::Os { path: path.clone(), error },
    };
    let address = directory
        .address(&service.name)
        .map_err(|e| ServeError::PathTooLong { path: e.address, bytes: e.bytes })?;
    let Some(lock) = directory.lock().map_err(|e| os(told("openat", e.into())))? else {
        return Err(ServeError::Busy(directory.path.clone()));
    };
    match rustix::fs::statat(&directory.fd, &*service.name, AtFlags::SYMLINK_NOFOLLOW) {
        Err(rustix::io::Errno::NOENT) => {}
        Err(e) => return Err(os(told("newfstatat", e.into()))),
        Ok(stat) if rustix::fs::FileType::from_raw_mode(stat.st_mode).is_socket() => {
            match socket::try_connect(&address).map(SocketConnection::from) {
                // No process listens: it is dead, or has not begun; under the lock, dead.
                Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => {
                    rustix::fs::unlinkat(&directory.fd, &*service.name, AtFlags::empty())
                        .map_err(|e| os(told("unlinkat", e.into())))?;
                }
                Err(e) if e.kind() == io::ErrorKind::PermissionDenied => return Err(os(e)),
                Ok(there) => {
                    let process = socket::identity(&there).ok().and_then(|who| who.pid);
                    return Err(ServeError::InUse { path, process });
                }
                Err(_) => return Err(ServeError::InUse { path, process: None }),
            }
        }
        Ok(_) => return Err(ServeError::NotASocket(path)),
    }
    let fd = socket::bind(&address).map_err(os)?;
    // No process can connect before it listens, so the permissions are there in time.
    let mode = match access {
        Access::SameUser => 0o600,
        Access::Group(_) => 0o660,
        Access::Anyone => 0o666,
    };
    let prepare = || -> Result<(u64, u64), ServeError> {
        let name = &*service.name;
        if let Access::Group(gid) = access {
            let (group, flags) = (rustix::fs::Gid::from_raw(gid), AtFlags::SYMLINK_NOFOLLOW);
            match rustix::fs::chownat(&directory.fd, name, None, Some(group), flags) {
                Err(rustix::io::Errno::PERM) => {
                    let why = std::format!(
                        "only a member of group {gid} can serve it to that group, and user {} is none",
                        euid()
                    );
                    return Err(ServeError::NotPermitted { name: name.into(), why });
                }
                changed => changed.map_err(|e| os(told("fchownat", e.into())))?,
            }
        }
        rustix::fs::chmodat(&directory.fd, name, Mode::from_raw_mode(mode), AtFlags::empty())
            .map_err(|e| os(told("fchmodat", e.into())))?;
        let stat = rustix::fs::statat(&directory.fd, name, AtFlags::SYMLINK_NOFOLLOW)
            .map_err(|e| os(told("newfstatat", e.into())))?;
        socket::listen(&fd).map_err(os)?;
        Ok((stat.st_dev, stat.st_ino))
    };
    match prepare() {
        Ok(identity) => {
            drop(lock);
            let name = Some(TakenName { directory, name: service.name.clone(), identity });
            Ok(NameListener { fd, access, name, pid: std::process::id() })
        }
        Err(e) => {
            let _ = rustix::fs::unlinkat(&directory.fd, &*service.name, AtFlags::empty());
            Err(e)
        }
    }
}

impl Drop for NameListener {
    fn drop(&mut self) {
        if self.pid != std::process::id() {
            return;
        }
        let Some(taken) = self.name.take() else { return };
        // If the directory is held, the name stays; the next process that wants it takes it over.
        let taken = Arc::new(taken);
        let of_thread = taken.clone();
        if within(CHANGE_WITHIN, move || of_thread.give_up()).is_err() {
            taken.give_up();
        }
    }
}

impl TakenName {
    fn give_up(&self) {
        // Under the lock, so that a name which another process has taken over meanwhile stays.
        if let Ok(Some(_lock)) = self.directory.lock() {
            let stat =
                rustix::fs::statat(&self.directory.fd, &*self.name, AtFlags::SYMLINK_NOFOLLOW);
            if stat.is_ok_and(|stat| (stat.st_dev, stat.st_ino) == self.identity) {
                let _ = rustix::fs::unlinkat(&self.directory.fd, &*self.name, AtFlags::empty());
            }
        }
    }
}

/// The place where a service may be found, and the user that it must belong to.
pub(super) struct ServicePlace {
    directory: Directory,
    name: String,
    /// The user who must serve it.
    pub(super) uid: u32,
}

/// The reason for which a service was not found.
#[derive(Debug, thiserror::Error)]
#[cfg_attr(not(feature = "unstable-internals"), non_exhaustive)]
pub enum FindError {
    /// No such name.
    #[error("nothing is called {name}: {}{}", listed(.looked), others(.name, .namesakes))]
    NotFound {
        /// The service.
        name: String,
        /// The directories that were looked into.
        looked: Vec<Looked>,
        /// The same name of other users, as `user@name`.
        namesakes: Vec<String>,
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

/// A directory in which a name was looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "unstable-internals"), non_exhaustive)]
pub struct Looked {
    /// The directory; or, if it does not exist, the first missing one on its path.
    pub directory: PathBuf,
    /// Whether it exists.
    pub is_there: bool,
    /// Advice if it does not.
    advice: &'static str,
}

impl fmt::Display for Looked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let directory = self.directory.display();
        match self.is_there {
            true => write!(f, "the directory {directory} is there and has no such name"),
            false => write!(f, "the directory {directory} is not there{}", self.advice),
        }
    }
}

fn listed(looked: &[Looked]) -> String {
    let all: Vec<String> = looked.iter().map(Looked::to_string).collect();
    all.join("; ")
}

fn others(name: &str, namesakes: &[String]) -> String {
    match namesakes {
        // Another user's, or this one's own by its user.
        [] if name.contains('@') => {
            "; is its server running, and does it serve it to others, not to \
             its own user alone (`Access`, `hamlyn recv --allow`)?"
                .into()
        }
        [] => "; is its server running, as the same user and with the same directory?".into(),
        [one] => std::format!("; there is {one}"),
        [some @ .., last] => std::format!("; there are {} and {last}", some.join(", ")),
    }
}

impl ServicePlace {
    pub(super) fn address(&self) -> Result<PathBuf, FindError> {
        let too_long = |e: PathTooLong| FindError::PathTooLong { path: e.address, bytes: e.bytes };
        self.directory.address(&self.name).map_err(too_long)
    }

    pub(super) fn path(&self) -> PathBuf {
        self.directory.path.join(&self.name)
    }
}

/// Finds a service: this user's own first in the private directory, then in the shared one. With
/// its user's name, as others write it: first in the shared one.
pub(super) fn find(config: &Config, service: &ServiceName) -> Result<ServicePlace, FindError> {
    let uid = match &service.user {
        Some(user) => uid_of(user)?,
        None => euid(),
    };
    let mut looked = Vec::new();
    let mut unusable = None;
    let private = (uid == euid()).then(|| open_private(config, false));
    let shared = open_shared(config, uid, false);
    let in_turn = match service.user {
        Some(_) => [Some(shared), private],
        None => [private, Some(shared)],
    };
    for directory in in_turn.into_iter().flatten() {
        match directory {
            Ok(directory) => {
                let name = &*service.name;
                match rustix::fs::statat(&directory.fd, name, AtFlags::SYMLINK_NOFOLLOW) {
                    Ok(_) => {
                        return Ok(ServicePlace { directory, name: service.name.clone(), uid });
                    }
                    // It may exist or not.
                    Err(rustix::io::Errno::ACCESS) => {
                        unusable = unusable.or(Some(directory.no_way()));
                        continue;
                    }
                    Err(_) => {}
                }
                looked.push(Looked { directory: directory.path, is_there: true, advice: "" });
            }
            Err(DirectoryError::Missing { path, advice }) => {
                looked.push(Looked { directory: path, is_there: false, advice });
            }
            Err(e) => unusable = unusable.or(Some(e)),
        }
    }
    match unusable {
        Some(e) => Err(e.into()),
        None => {
            let (name, namesakes) = (service.to_string(), Vec::new());
            Err(FindError::NotFound { name, looked, namesakes })
        }
    }
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
