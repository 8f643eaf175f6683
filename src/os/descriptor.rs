//! A descriptor that only the process that made it closes, and no child forked from it.
//!
//! A child has copies of its parent's descriptors, and may close them all when it begins
//! (`closefrom`, as daemons do). From then on their numbers belong to files that it opens itself.
//! So a descriptor that an object of the library keeps is of this type, or inside an object that a
//! child forgets as a whole.
//!
//! Never: a forked child that drops inherited objects closes a number.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

/// A descriptor that only the process that made it closes. In a forked child it stays open, until
/// the child executes another program or ends.
#[derive(Debug)]
pub struct Descriptor {
    /// `None` only while this is dropped.
    fd: Option<OwnedFd>,
    process: u32,
}

impl From<OwnedFd> for Descriptor {
    fn from(fd: OwnedFd) -> Self {
        Self { fd: Some(fd), process: std::process::id() }
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            core::mem::forget(self.fd.take());
        }
    }
}

impl AsFd for Descriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.fd {
            Some(fd) => fd.as_fd(),
            None => unreachable!("it is taken out when it is dropped, and only then"),
        }
    }
}

impl AsRawFd for Descriptor {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}
