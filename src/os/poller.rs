//! One descriptor that waits for many (epoll).

use super::call::OfCall;
use super::descriptor::Descriptor;
#[cfg(any(all(test, not(loom), not(miri)), feature = "simulation"))]
use super::sys::monotonic_ns;
use super::sys::timespec;
use rustix::event::epoll;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::vec::Vec;

/// One descriptor that waits for many.
#[derive(Debug)]
pub struct Poller(Descriptor);

/// An event of a descriptor that a [`Poller`] watches.
#[derive(Clone, Copy, Debug)]
pub struct Ready {
    /// The tag that it was added with.
    pub tag: u64,
    /// There is something to read, or the other end is gone.
    pub readable: bool,
    /// There is room to write.
    pub writable: bool,
}

/// Most events that [`Poller::wait`] returns at a time.
pub const READY_AT_A_TIME: usize = 64;

impl Poller {
    /// A poller that watches nothing.
    pub fn new() -> io::Result<Self> {
        Ok(Self(epoll::create(epoll::CreateFlags::CLOEXEC).of_call("epoll_create1")?.into()))
    }

    fn flags(writable: bool) -> epoll::EventFlags {
        let base = epoll::EventFlags::IN;
        if writable { base | epoll::EventFlags::OUT } else { base }
    }

    /// Watches for something to read.
    pub fn add(&self, fd: impl AsFd, tag: u64) -> io::Result<()> {
        let data = epoll::EventData::new_u64(tag);
        epoll::add(&self.0, fd, data, Self::flags(false)).of_call("epoll_ctl")
    }

    /// Watches for something to read, with one event: again only when more has come.
    pub fn add_once(&self, fd: impl AsFd, tag: u64) -> io::Result<()> {
        let data = epoll::EventData::new_u64(tag);
        let flags = Self::flags(false) | epoll::EventFlags::ET;
        epoll::add(&self.0, fd, data, flags).of_call("epoll_ctl")
    }

    /// Watches only for room to write.
    pub fn add_write(&self, fd: impl AsFd, tag: u64) -> io::Result<()> {
        let data = epoll::EventData::new_u64(tag);
        epoll::add(&self.0, fd, data, epoll::EventFlags::OUT).of_call("epoll_ctl")
    }

    /// Watches only for room to write, whether it was watched before or not.
    pub fn watch_write(&self, fd: impl AsFd, tag: u64) -> io::Result<()> {
        let data = epoll::EventData::new_u64(tag);
        match epoll::add(&self.0, &fd, data, epoll::EventFlags::OUT) {
            Err(rustix::io::Errno::EXIST) => {
                epoll::modify(&self.0, fd, data, epoll::EventFlags::OUT).of_call("epoll_ctl")
            }
            other => other.of_call("epoll_ctl"),
        }
    }

    /// Watches for room to write as well, or no longer.
    pub fn want_write(&self, fd: impl AsFd, tag: u64, writable: bool) -> io::Result<()> {
        let data = epoll::EventData::new_u64(tag);
        epoll::modify(&self.0, fd, data, Self::flags(writable)).of_call("epoll_ctl")
    }

    /// Stops all events of a descriptor until [`want_write`](Self::want_write) is called again.
    pub fn pause(&self, fd: impl AsFd, tag: u64) -> io::Result<()> {
        let data = epoll::EventData::new_u64(tag);
        epoll::modify(&self.0, fd, data, epoll::EventFlags::empty()).of_call("epoll_ctl")
    }

    /// Stops watching a descriptor.
    pub fn remove(&self, fd: impl AsFd) {
        let _ = epoll::delete(&self.0, fd);
    }

    /// Waits for at most `timeout_ns`, without a limit if `None`; an interruption is an early
    /// return. Returns at most [`READY_AT_A_TIME`] events; the others come first the next time.
    pub fn wait(&self, timeout_ns: Option<u64>, ready: &mut Vec<Ready>) -> io::Result<()> {
        #[cfg(any(all(test, not(loom), not(miri)), feature = "simulation"))]
        if super::sim::is_running() && timeout_ns != Some(0) {
            let until_ns =
                timeout_ns.map_or(u64::MAX, |ns| monotonic_ns().saturating_add(ns.max(1)));
            let mut looked = Ok(());
            let look = || {
                looked = self.wait(Some(0), ready);
                looked.is_err() || !ready.is_empty()
            };
            super::sim::wait(look, until_ns);
            return looked;
        }
        let mut events = [epoll::Event {
            flags: epoll::EventFlags::empty(),
            data: epoll::EventData::new_u64(0),
        }; READY_AT_A_TIME];
        // Milliseconds, rounded up: epoll_pwait2 is newer than the oldest kernel, and waking
        // before a deadline would spin.
        let timeout =
            timeout_ns.map(|ns| timespec(ns.div_ceil(1_000_000).min(i32::MAX as u64) * 1_000_000));
        let n = match epoll::wait(&self.0, &mut events, timeout.as_ref()) {
            Ok(n) => n,
            Err(rustix::io::Errno::INTR) => 0,
            Err(e) => return Err(e).of_call("epoll_wait"),
        };
        ready.extend(events[..n].iter().map(|event| {
            // Copied out: the event is packed.
            let (flags, data) = (event.flags, event.data);
            let other = epoll::EventFlags::OUT;
            Ready {
                tag: data.u64(),
                readable: !(flags - other).is_empty(),
                writable: flags.contains(other),
            }
        }));
        Ok(())
    }
}

impl AsFd for Poller {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
