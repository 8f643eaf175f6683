//! Cleans up when a signal ends a process, or the process ends itself from a thread that does not
//! own its node: removes the names that it serves, a partial file, and a directory with keys.

use anyhow::{Context, Result};
use hamlyn::config::Config;
use hamlyn::control::{Access, private_dir};
use rustix::fs::{AtFlags, CWD, FileType, Stat, statat, unlinkat};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

struct Left {
    path: PathBuf,
    /// Device and inode at registration, so that nothing else is removed in its place.
    identity: (u64, u64),
    is_directory: bool,
}

static LEFT: Mutex<Vec<Left>> = Mutex::new(Vec::new());

impl Left {
    /// The file or directory at `path` now, if one exists.
    fn at(path: PathBuf) -> Option<Self> {
        let found = statat(CWD, &path, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        let Stat { st_dev, st_ino, st_mode, .. } = found;
        let is_directory = FileType::from_raw_mode(st_mode) == FileType::Directory;
        Some(Self { path, identity: (st_dev, st_ino), is_directory })
    }

    fn remove(&self) {
        let now = Self::at(self.path.clone());
        if now.is_none_or(|now| now.identity != self.identity) {
            return;
        }
        if self.is_directory {
            let all = || std::fs::remove_dir_all(&self.path);
            // Once more, in case a file was added meanwhile.
            let _ = all().or_else(|_| all());
        } else {
            let _ = unlinkat(CWD, &self.path, AtFlags::empty());
        }
    }
}

/// Removes the file at `path`, or the directory with its content, when this process ends. Does
/// nothing if nothing exists there now.
pub fn remove(path: PathBuf) {
    if let Some(left) = Left::at(path) {
        LEFT.lock().unwrap_or_else(PoisonError::into_inner).push(left);
    }
}

/// Keeps the file: it is complete, or removed already.
pub fn keep(path: &Path) {
    LEFT.lock().unwrap_or_else(PoisonError::into_inner).retain(|left| left.path != path);
}

/// Removes a name that has just been served when this process ends. While it is served no other
/// process can take it over, so it can be removed without the directory's lock.
pub fn remove_name(config: &Config, name: &str, access: Access) {
    let user = rustix::process::geteuid().as_raw().to_string();
    let directory = match access {
        Access::SameUser => private_dir(config),
        Access::Group(_) | Access::Anyone => config.shared_dir.join(user),
    };
    remove(directory.join(name));
}

fn remove_all() {
    for left in LEFT.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
        left.remove();
    }
}

/// Ends this process, from any thread.
pub fn exit(status: i32) -> ! {
    remove_all();
    std::process::exit(status)
}

/// From now on a signal that ends this process first removes the registered files. One call is
/// enough.
pub fn on_signals() -> Result<()> {
    static ARE_HANDLED: AtomicBool = AtomicBool::new(false);
    if ARE_HANDLED.swap(true, Ordering::Relaxed) {
        return Ok(());
    }
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGTERM])
        .context("cannot wait for the signals that end this command")?;
    let thread =
        std::thread::Builder::new().name("signals".into()).stack_size(64 << 10).spawn(move || {
            if let Some(signal) = signals.forever().next() {
                remove_all();
                // Ends the process by the signal itself, as its parent expects to see.
                let _ = signal_hook::low_level::emulate_default_handler(signal);
            }
        });
    thread
        .map(drop)
        .context("cannot start a thread, which waits for the signals that end this command")
}
