//! A descriptor that the process which started this one has left to it, and named by its number.

use rustix::fd::{BorrowedFd, OwnedFd, RawFd};
use rustix::io::{FdFlags, fcntl_dupfd_cloexec, fcntl_setfd};
use std::io;

/// The lowest number that a copy gets: those below are standard input, output and errors.
const NUMBER_MIN: RawFd = 3;

/// A copy of the descriptor `number`, for this process alone: child processes get neither it nor
/// the copy. Fails if there is no such descriptor.
pub fn inherited(number: RawFd) -> io::Result<OwnedFd> {
    if number < 0 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: the number is used for the two calls below alone, which copy the descriptor and
    // change a flag; the kernel refuses one that is not open, and no descriptor is closed.
    let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
    let own = fcntl_dupfd_cloexec(borrowed, NUMBER_MIN)?;
    fcntl_setfd(borrowed, FdFlags::CLOEXEC)?;
    Ok(own)
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn a_descriptor_that_is_not_open_is_refused() {
        assert!(inherited(-1).is_err());
        assert!(inherited(RawFd::MAX).is_err());
        let (end, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        let copy = inherited(end.as_raw_fd()).unwrap();
        assert_ne!(copy.as_raw_fd(), end.as_raw_fd());
    }
}
