//! A listing of services: the names in this user's own directory and in the shared one, as far as
//! they can be seen, with those that dead processes left behind.
//!
//! Never: a directory that another process holds, or fills, blocks the look into others; one user
//! has more names here than [`NAMES_MAX`], or more than a few threads.

use super::super::directories::{
    Directory, euid, open_checked_shared, open_private, open_shared, private_dir,
};
use super::super::lookups::Lookups;
use super::super::within::within;
use super::{CHANGE_WITHIN, ServiceName};
use crate::config::Config;
use crate::os::socket;
use crate::os::socket::SocketConnection;
use core::time::Duration;
use rustix::fs::{AtFlags, Mode, OFlags};
use std::ffi::OsStr;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::string::{String, ToString};
use std::sync::LazyLock;
use std::time::Instant;
use std::vec::Vec;

/// Most users whose places are looked into for a name, and most that are named: any user may have
/// made any number of places.
const USERS_MAX: usize = 1024;
const NAMESAKES_MAX: usize = 4;

/// The owner of a directory in the shared one, by its name. Each user has one spelling: any user
/// may have made other directories whose names also parse as that number.
fn user_of(name: &OsStr) -> Option<u32> {
    let text = name.to_str()?;
    text.parse().ok().filter(|uid: &u32| uid.to_string() == text)
}

/// The same name of other users in the shared directory, as `user@name`, if none was asked for.
pub(in super::super) fn namesakes(config: &Config, service: &ServiceName) -> Vec<String> {
    if service.user.is_some() || open_checked_shared(&config.shared_dir).is_err() {
        return Vec::new();
    }
    let users = std::fs::read_dir(&config.shared_dir).into_iter().flatten().flatten();
    let uids = users.take(USERS_MAX).filter_map(|user| user_of(&user.file_name()));
    let has_it = |uid: &u32| {
        open_shared(config, *uid, false).is_ok_and(|directory| {
            let at = AtFlags::SYMLINK_NOFOLLOW;
            rustix::fs::statat(&directory.fd, &*service.name, at)
                .is_ok_and(|stat| rustix::fs::FileType::from_raw_mode(stat.st_mode).is_socket())
        })
    };
    let found = uids.filter(has_it).take(NAMESAKES_MAX);
    let mut found: Vec<String> = found.map(|uid| std::format!("{uid}@{}", service.name)).collect();
    found.sort();
    found
}

/// A name in one of the directories.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "unstable-internals"), non_exhaustive)]
pub struct ServiceEntry {
    /// The name to connect to.
    pub name: String,
    /// The path of its socket.
    pub path: PathBuf,
    /// Its owner; `None` if it cannot be known here.
    pub uid: Option<u32>,
    /// Whether a process listens; `None` if that may not be asked.
    pub is_alive: Option<bool>,
    /// The process that listens, if it can be seen from here.
    pub pid: Option<u32>,
    /// Its queue of connections is full at this moment; every user who may connect can fill it. A
    /// process listens, but is not identified.
    pub is_full: bool,
    /// Device and inode of the socket. Names with the same lead to one socket: hard links.
    pub socket: (u64, u64),
}

/// The result of [`list_services`].
#[derive(Clone, Debug, Default)]
#[cfg_attr(not(feature = "unstable-internals"), non_exhaustive)]
pub struct Services {
    /// The names, ordered by path.
    pub entries: Vec<ServiceEntry>,
    /// Directories (in the shared one, the shared one itself, or this user's own) that cannot be
    /// looked into, because their owners, or other readers of them or of their parents, hold them:
    /// their contents are unknown.
    pub held: Vec<PathBuf>,
    /// Directories of other users, or the shared one, with more names than are looked at: some of
    /// these are missing here.
    pub cut: Vec<PathBuf>,
}

/// Time limit for a look into one user's directory, and most looks that may be late.
const LOOK_WITHIN: Duration = Duration::from_millis(200);
const HELD_MAX: usize = 16;
/// Time for the places of all users: one person can be many users (subordinate user ids).
const ALL_WITHIN: Duration = Duration::from_secs(4);
/// Most names of another user that are looked at. This user's own are all looked at.
const NAMES_MAX: usize = 1024;

/// Looks into one of these directories in a thread, within a time limit. `None`: it took longer, or
/// too many earlier looks have not come back.
fn look<T: Send + 'static>(
    whose: &ServiceName,
    look: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    static LOOKUPS: LazyLock<Lookups> = LazyLock::new(Lookups::default);
    let running = LOOKUPS.begin(whose).ok()?;
    let look = move || {
        let found = look();
        drop(running);
        found
    };
    within(LOOK_WITHIN, look).ok().flatten()
}

/// The services in this user's own directory and in the shared one, as far as they can be seen.
/// Takes at most 200 ms for each directory that another process holds, and looks into no more after
/// 16 of them, nor after four seconds, nor in more than 1,024 users' places. Of another user it finds
/// at most 1,024 names. `cut` and `held` name the directories that it left out.
///
/// ```
/// # let dir = std::env::temp_dir().join(format!("hamlyn-doc-list-{}", std::process::id()));
/// # let config = hamlyn::Config::from_env()?.dir(&dir);
///
/// use hamlyn::services::{list_services, stat_of};
/// use hamlyn::{Accept, Access, Node};
/// use std::time::Duration;
///
/// let mut node = Node::with_config(config.clone())?;
/// node.serve("here", Access::SameUser, Accept::Automatic(vec![]))?;
/// let services = list_services(&config);
/// let here = services.entries.iter().find(|entry| entry.name == "here").unwrap();
/// assert_eq!(here.pid, Some(std::process::id()));
/// let told = stat_of(&config, &here.name.parse()?, Some(Duration::from_secs(10)))?;
/// assert!(told.lines().any(|line| line.starts_with("packets_received ")));
/// # drop(node);
/// # std::fs::remove_dir_all(&dir).ok();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn list_services(config: &Config) -> Services {
    let mut found = Services::default();
    let of = |user: Option<u32>, name: &str| {
        let user = user.map(|user| user.to_string());
        ServiceName { user, name: name.into() }
    };
    let own = config.clone();
    let in_own = move || open_private(&own, false).map(|directory| list(&directory, None).0);
    match look(&of(None, "own"), in_own) {
        Some(entries) => found.entries = entries.unwrap_or_default(),
        // Its parent is held by others.
        None => found.held.push(private_dir(config)),
    }
    let looked_for = config.shared_dir.clone();
    let users = look(&of(None, "shared"), move || match open_checked_shared(&looked_for) {
        Ok(()) => users_in(&looked_for),
        Err(_) => (Vec::new(), false),
    });
    let Some((users, is_cut)) = users else {
        found.held.push(config.shared_dir.clone());
        return found;
    };
    if is_cut {
        found.cut.push(config.shared_dir.clone());
    }
    // This user may be unable to read the shared directory: its own place in it is known all the
    // same.
    let until = Instant::now() + ALL_WITHIN;
    let others = users.into_iter().filter(|uid| *uid != euid());
    for uid in core::iter::once(euid()).chain(others) {
        if Instant::now() >= until {
            found.cut.push(config.shared_dir.clone());
            break;
        }
        let looking = config.clone();
        let in_place = move || match open_shared(&looking, uid, false) {
            Ok(directory) => list(&directory, Some(uid)),
            Err(_) => (Vec::new(), false),
        };
        let path = config.shared_dir.join(uid.to_string());
        let is_too_many = found.held.len() >= HELD_MAX;
        match if is_too_many { None } else { look(&of(Some(uid), "place"), in_place) } {
            Some((entries, is_cut)) => {
                found.entries.extend(entries);
                if is_cut {
                    found.cut.push(path);
                }
            }
            None => found.held.push(path),
        }
    }
    found.entries.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

/// The users who have a place in the shared directory, and whether time was too short to read all
/// of it. Any user may have put names there that read as users' numbers: a place belongs to its
/// user.
fn users_in(shared: &Path) -> (Vec<u32>, bool) {
    let until = Instant::now() + LOOK_WITHIN / 2;
    let (mut users, mut entries) = (Vec::new(), std::fs::read_dir(shared).into_iter().flatten());
    while Instant::now() < until && users.len() < USERS_MAX {
        let Some(entry) = entries.next() else { return (users, false) };
        let Ok(entry) = entry else { continue };
        let user = user_of(&entry.file_name());
        users.extend(user.filter(|user| entry.metadata().is_ok_and(|found| found.uid() == *user)));
    }
    (users, true)
}

/// The names in a directory, of `user` in the shared one; and whether there are more.
fn list(directory: &Directory, user: Option<u32>) -> (Vec<ServiceEntry>, bool) {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(fd) = rustix::fs::openat(&directory.fd, ".", flags, Mode::empty()) else {
        return (Vec::new(), false);
    };
    let of_another = user.is_some_and(|user| user != euid());
    let entry = |entry: rustix::fs::DirEntry| {
        let name = entry.file_name().to_str().ok()?.to_string();
        name.parse::<ServiceName>().ok()?;
        let at = AtFlags::SYMLINK_NOFOLLOW;
        let stat = rustix::fs::statat(&directory.fd, &*name, at).ok()?;
        if !rustix::fs::FileType::from_raw_mode(stat.st_mode).is_socket() {
            return None;
        }
        let connected = directory.address(&name).ok();
        // The listener there may pass a descriptor that stops the thread that closes it.
        let connected = connected.map(|at| socket::try_connect(&at).map(SocketConnection::from));
        let is_alive = connected.as_ref().and_then(|connected| match connected {
            Ok(_) => Some(true),
            Err(e) => match e.kind() {
                io::ErrorKind::WouldBlock => Some(true),
                io::ErrorKind::ConnectionRefused => Some(false),
                _ => None,
            },
        });
        let is_full = connected.as_ref().is_some_and(|connected| {
            connected.as_ref().is_err_and(|e| e.kind() == io::ErrorKind::WouldBlock)
        });
        let listener = connected.and_then(Result::ok).map(socket::identity);
        let pid = listener.and_then(Result::ok).and_then(|listener| listener.pid);
        Some(ServiceEntry {
            path: directory.path.join(&name),
            name: user.map_or(name.clone(), |user| std::format!("{user}@{name}")),
            uid: socket::known_uid(stat.st_uid),
            is_alive,
            pid,
            is_full,
            socket: (stat.st_dev, stat.st_ino),
        })
    };
    // A name that is no service costs time, too.
    let (until, mut seen) = (Instant::now() + LOOK_WITHIN / 2, 0);
    let mut is_cut = false;
    let entries = rustix::fs::Dir::new(fd).into_iter().flatten().flatten().take_while(|_| {
        seen += 1;
        is_cut = of_another && (seen > NAMES_MAX || Instant::now() >= until);
        !is_cut
    });
    let entries = entries.filter_map(entry).collect();
    (entries, is_cut)
}

/// Removes a name of this user's that no process serves any more. `false`: it is served after all,
/// or gone already, or in no directory of this user's.
///
/// ```
/// # let dir = std::env::temp_dir().join(format!("hamlyn-doc-stale-{}", std::process::id()));
/// use hamlyn::services::{ServiceName, list_services, private_dir, remove_stale, statistics_of};
/// use hamlyn::{Accept, Access, Node};
/// use std::time::Duration;
///
/// # let config = hamlyn::Config::from_env()?.dir(&dir);
/// let mut node = Node::with_config(config.clone())?;
/// node.serve("alive", Access::SameUser, Accept::Automatic(vec![]))?;
/// let name: ServiceName = "alive".parse()?; // Or `user@alive`.
/// assert_eq!((name.name(), name.user()), ("alive", None));
/// let told = statistics_of(&config, &name, Some(Duration::from_secs(10)))?;
/// assert_eq!(told.pid, Some(std::process::id()));
/// // A name that a killed process left behind would be removed; one that is served is not.
/// for entry in &list_services(&config).entries {
///     assert!(!remove_stale(&config, entry)?, "there is none in {:?}", private_dir(&config));
/// }
/// # drop(node);
/// # std::fs::remove_dir_all(&dir).ok();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn remove_stale(config: &Config, entry: &ServiceEntry) -> io::Result<bool> {
    let (config, entry) = (config.clone(), entry.clone());
    let removed = within(CHANGE_WITHIN, move || try_remove_stale(&config, &entry))?;
    let held = || io::Error::new(io::ErrorKind::TimedOut, "the directory does not answer");
    removed.unwrap_or_else(|| Err(held()))
}

fn try_remove_stale(config: &Config, entry: &ServiceEntry) -> io::Result<bool> {
    let own = [open_private(config, false), open_shared(config, euid(), false)];
    let parent = entry.path.parent();
    let Some(directory) = own.into_iter().flatten().find(|own| Some(&*own.path) == parent) else {
        return Ok(false);
    };
    let Some(name) = entry.path.file_name().and_then(|name| name.to_str()) else {
        return Ok(false);
    };
    // A process that serves it anew waits until this is done, or has finished.
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
            .map(SocketConnection::from)
            .is_err_and(|e| e.kind() == io::ErrorKind::ConnectionRefused);
    if is_stale {
        rustix::fs::unlinkat(&directory.fd, name, AtFlags::empty())?;
    }
    Ok(is_stale)
}
