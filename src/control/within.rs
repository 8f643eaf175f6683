//! Threads that look into strangers' directories. The owner of a directory, or a reader of it, can
//! hold it for any time (by reading it into a page that never comes, with a writer queued behind):
//! a thread that looks into it then waits in the kernel, and cannot be killed. So nothing here
//! waits for a looking thread, and their number is bounded: here, or by [`lookups`](super::lookups).

use crate::os::thread;
use core::sync::atomic::{AtomicUsize, Ordering};
use core::time::Duration;
use std::io;
use std::sync::mpsc;

/// At most `max` looks of one kind at a time.
pub(super) struct Running {
    max: usize,
    count: AtomicUsize,
}

/// A running look, until it is dropped.
struct RunningLook(&'static Running);

impl Running {
    pub const fn new(max: usize) -> Self {
        Self { max, count: AtomicUsize::new(0) }
    }

    /// [`within`]; `None` also if the maximum is running.
    pub fn within<T: Send + 'static>(
        &'static self,
        limit: Duration,
        look: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<Option<T>> {
        let one = RunningLook(self);
        if self.count.fetch_add(1, Ordering::Relaxed) >= self.max {
            return Ok(None);
        }
        within(limit, move || {
            let _one = one;
            look()
        })
    }
}

impl Drop for RunningLook {
    fn drop(&mut self) {
        self.0.count.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Runs it in a thread that nothing waits for.
pub(super) fn spawn(look: impl FnOnce() + Send + 'static) -> io::Result<()> {
    thread::spawn("hamlyn-look", 256 << 10, look).map(drop)
}

/// The result of a look that takes no longer than the limit. A slower one goes on, and its result
/// is dropped.
pub(super) fn within<T: Send + 'static>(
    limit: Duration,
    look: impl FnOnce() -> T + Send + 'static,
) -> io::Result<Option<T>> {
    let (tell, told) = mpsc::sync_channel(1);
    spawn(move || {
        let _ = tell.send(look());
    })?;
    Ok(thread::receive(&told, limit).ok())
}
