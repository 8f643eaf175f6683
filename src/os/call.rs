//! Errors of system calls, in words: the call, the system's message, and the limit or the setting
//! behind it; and the one limit at which the kernel does not return an error, but kills.
//!
//! Never: a call of this library raises SIGXFSZ.

use std::io;
use std::string::String;

/// A system call that failed.
#[derive(Debug, thiserror::Error)]
#[error("{call}: {error}{}", because(call, error))]
struct SystemCallError {
    call: &'static str,
    error: io::Error,
}

/// Calls that the kernel itself refuses to no process.
const FOR_EVERYBODY: [&str; 9] = [
    "memfd_create",
    "ftruncate",
    "epoll_create1",
    "epoll_ctl",
    "epoll_wait",
    "eventfd2",
    "timerfd_create",
    "socketpair",
    "clone",
];

/// The limit or the setting behind an error, if there is one.
fn because(call: &str, error: &io::Error) -> String {
    let text = match error.raw_os_error() {
        Some(libc::EMFILE) => "the limit on descriptors (RLIMIT_NOFILE, ulimit -n) is reached",
        Some(libc::ENFILE) => "the system has no more descriptors (fs.file-max)",
        Some(libc::EFBIG) => {
            return std::format!(
                ": the limit on a file's size, {} bytes here (RLIMIT_FSIZE, ulimit -f, LimitFSIZE=), \
                 holds for shared memory, too",
                file_size_limit().unwrap_or(u64::MAX)
            );
        }
        // The C library also returns this if there is no memory for a stack.
        Some(libc::EAGAIN) if call == "clone" => {
            "the limit on threads and processes (RLIMIT_NPROC, ulimit -u, or pids.max of the control \
             group) is reached, or one on memory (RLIMIT_AS, ulimit -v; RLIMIT_DATA, ulimit -d)"
        }
        Some(libc::EAGAIN | libc::ENOMEM | libc::EPERM) if call == "mlock" => {
            "the limit on locked memory (RLIMIT_MEMLOCK, ulimit -l) allows no more"
        }
        Some(libc::ENOMEM) => {
            "there is no memory, or a limit on it is reached (RLIMIT_AS, ulimit -v; RLIMIT_DATA, \
             ulimit -d; vm.max_map_count; vm.overcommit_memory)"
        }
        Some(libc::EPERM | libc::EACCES | libc::ENOSYS) if FOR_EVERYBODY.contains(&call) => {
            "a sandbox forbids the call (seccomp, SystemCallFilter=)"
        }
        _ => return String::new(),
    };
    std::format!(": {text}")
}

/// Adds the call's name to an error.
pub trait OfCall<T> {
    /// The result; an error tells the call's name, and the limit behind it.
    fn of_call(self, call: &'static str) -> io::Result<T>;
}

impl<T, E: Into<io::Error>> OfCall<T> for Result<T, E> {
    fn of_call(self, call: &'static str) -> io::Result<T> {
        self.map_err(|error| told(call, error.into()))
    }
}

/// The error, with the call's name, and the limit behind it.
pub fn told(call: &'static str, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), SystemCallError { call, error })
}

/// The soft limit on the size of a file. `None`: there is none, or a sandbox hides it.
fn file_size_limit() -> Option<u64> {
    let mut limits = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the structure is live for the call, which writes nothing else.
    let is_told = unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &mut limits) } == 0;
    (is_told && limits.rlim_cur != libc::RLIM_INFINITY).then_some(limits.rlim_cur)
}

/// Whether a file may get so many bytes, asked before it does: beyond the limit the kernel raises
/// SIGXFSZ, which ends a process that has not provided for it.
pub fn may_grow_to(bytes: u64) -> io::Result<()> {
    match file_size_limit() {
        Some(limit) if bytes > limit => Err(io::Error::from_raw_os_error(libc::EFBIG)),
        _ => Ok(()),
    }
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn an_error_names_its_call_what_the_system_said_and_the_limit_behind_it() {
        let of = |call, code| {
            let error: io::Result<()> = Err(io::Error::from_raw_os_error(code)).of_call(call);
            error.unwrap_err().to_string()
        };
        for (call, code, limit) in [
            ("socket", libc::EMFILE, "RLIMIT_NOFILE"),
            ("socket", libc::ENFILE, "fs.file-max"),
            ("ftruncate", libc::EFBIG, "RLIMIT_FSIZE"),
            ("clone", libc::EAGAIN, "RLIMIT_NPROC"),
            ("mlock", libc::ENOMEM, "RLIMIT_MEMLOCK"),
            ("mlock", libc::EPERM, "RLIMIT_MEMLOCK"),
            ("mmap", libc::ENOMEM, "RLIMIT_AS"),
            ("memfd_create", libc::EPERM, "seccomp"),
        ] {
            let text = of(call, code);
            let said = io::Error::from_raw_os_error(code).to_string();
            assert!(text.starts_with(&std::format!("{call}: {said}: ")), "{text}");
            assert!(text.contains(limit), "{text}");
        }
        assert_eq!(of("read", libc::EIO), "read: Input/output error (os error 5)");
    }
}
