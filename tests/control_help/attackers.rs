//! The common parts of the attacks by processes of other users.
#![allow(dead_code)]

use crate::control_help::{Connects, name, pass_with, start};
use crate::support::*;
use hamlyn::Config;
use hamlyn::control::frame::Memory;
use hamlyn::control::{Accept, Access, Control, setup_shared_dir};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

/// A user that nothing else has; the next ones, too.
pub const ATTACKER: u32 = 54_400;

/// A directory for services of several users. `None`, said loudly: not permitted here.
pub fn shared(test: &str) -> Option<Dir> {
    // SAFETY: a system call without arguments.
    if unsafe { libc::geteuid() } != 0 {
        skipped(&format!("{test}: only root can be several users"));
        return None;
    }
    let dir = Dir::new(test, &[("APERTURES_OF_OTHERS", "yes")]);
    std::fs::set_permissions(&dir.path, std::fs::Permissions::from_mode(0o755)).unwrap();
    setup_shared_dir(&dir.config()).unwrap();
    Some(dir)
}

/// Where root's service `x` for everybody is.
pub fn socket_of(dir: &std::path::Path) -> PathBuf {
    dir.join("shared/0/x")
}

/// An attacker: it begins as root, for what only the test needs, and goes on as `user`.
pub fn attacker(role: &str, dir: &Dir, user: u32) -> Peer {
    Peer::start(role, dir, &format!("{} {user}", dir.path.display()))
}

pub fn become_user(role: &Role) -> u32 {
    let user: u32 = role.args[1].parse().unwrap();
    // SAFETY: system calls with numbers.
    unsafe {
        assert_eq!(libc::setgroups(0, core::ptr::null()), 0);
        assert_eq!(libc::setgid(user), 0);
        assert_eq!(libc::setuid(user), 0);
    }
    user
}

pub fn serves(config: &Config) -> Control {
    let server = start(config);
    server.serve(&name("x"), Access::Anyone, Accept::Automatic(vec![])).unwrap();
    server
}

pub fn still_serves(config: &Config) {
    start(config).connect(&name("x"), b"", LONG).unwrap();
}

/// A TCP connection that blocks the process that closes it last, for an hour.
pub fn lingering() -> (OwnedFd, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let socket = lingering_to(listener.local_addr().unwrap(), 3600);
    (socket, listener.accept().unwrap().0)
}

/// The same for so many seconds, with an other end that another process has and does not read.
pub fn lingering_to(other_end: SocketAddr, seconds: i32) -> OwnedFd {
    let stream = TcpStream::connect(other_end).unwrap();
    stream.set_nonblocking(true).unwrap();
    // The other end does not read: the bytes in its buffer stay there.
    while std::io::Write::write(&mut &stream, &[7; 1 << 16]).is_ok() {}
    stream.set_nonblocking(false).unwrap();
    let linger = libc::linger { l_onoff: 1, l_linger: seconds };
    // SAFETY: pointer and size are those of a live structure.
    let rc = unsafe {
        let size = size_of::<libc::linger>() as libc::socklen_t;
        let value = (&raw const linger).cast();
        libc::setsockopt(stream.as_raw_fd(), libc::SOL_SOCKET, libc::SO_LINGER, value, size)
    };
    assert_eq!(rc, 0);
    stream.into()
}

/// Sends MEMORY_PASS with these descriptors and keeps none: the process that closes one last is
/// blocked. Mostly that is the victim, which has yet to wake up. `false`: the victim takes no
/// descriptors.
pub fn pass_and_close(fd: &OwnedFd, memory: Memory, mut files: Vec<OwnedFd>) -> bool {
    let fd = fd.try_clone().unwrap();
    let passed = Arc::new(OnceLock::new());
    let result = Arc::clone(&passed);
    // The thread that closes is stopped if the victim was faster.
    std::thread::spawn(move || {
        let is_passed = pass_with(&fd, memory, &files.iter().collect::<Vec<_>>()).is_ok();
        let _ = result.set(is_passed);
        while let Some(file) = files.pop() {
            drop(file);
        }
    });
    while passed.get().is_none() {
        std::thread::yield_now();
    }
    passed.get() == Some(&true)
}
