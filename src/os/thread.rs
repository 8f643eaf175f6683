//! Threads of the library's own, and what lets others run: whatever a thread waits for is asked for
//! here or in [`sys`](super::sys), so that a simulation can run all threads as one.

use core::time::Duration;
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
#[cfg(feature = "tls")]
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A thread that somebody may wait for.
#[derive(Debug)]
pub(crate) enum Thread {
    /// One of the system's.
    System(std::thread::JoinHandle<()>),
    /// One of a simulation's.
    #[cfg(all(test, not(loom), not(miri)))]
    Simulated(super::sim::Task),
}

impl Thread {
    /// Whether it is the caller.
    pub fn is_current(&self) -> bool {
        match self {
            Self::System(thread) => thread.thread().id() == std::thread::current().id(),
            // No task waits for itself.
            #[cfg(all(test, not(loom), not(miri)))]
            Self::Simulated(_) => false,
        }
    }

    /// Waits until it has ended. A panic in it is its own.
    pub fn join(self) {
        match self {
            Self::System(thread) => drop(thread.join()),
            #[cfg(all(test, not(loom), not(miri)))]
            Self::Simulated(task) => task.join(),
        }
    }
}

/// Starts a thread with a stack of so many bytes.
pub(crate) fn spawn(
    name: &str,
    stack_bytes: usize,
    run: impl FnOnce() + Send + 'static,
) -> io::Result<Thread> {
    #[cfg(all(test, not(loom), not(miri)))]
    if super::sim::is_running() {
        return Ok(Thread::Simulated(super::sim::spawn(name, run)));
    }
    let builder = std::thread::Builder::new().name(name.into()).stack_size(stack_bytes);
    builder.spawn(run).map(Thread::System)
}

/// Sleeps for so long.
pub(crate) fn sleep(time: Duration) {
    #[cfg(all(test, not(loom), not(miri)))]
    if super::sim::sleep(time) {
        return;
    }
    std::thread::sleep(time);
}

/// Lets another thread have the processor, if one wants it.
pub(crate) fn yield_now() {
    #[cfg(all(test, not(loom), not(miri)))]
    if super::sim::yield_now() {
        return;
    }
    std::thread::yield_now();
}

/// A place where another thread may come first at the worst time, and does in a simulation. Whatever the
/// caller has locked stays locked.
#[cfg(feature = "tls")]
#[inline(always)]
pub(crate) fn may_be_overtaken() {
    #[cfg(all(test, not(loom), not(miri)))]
    super::sim::barrier();
}

/// Locks, also what somebody had locked who panicked: for what is whole between any two steps. In a
/// simulation whoever has it may be another task, which then goes on first.
#[cfg(feature = "tls")]
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    #[cfg(all(test, not(loom), not(miri)))]
    if let Some(guard) = super::sim::lock(mutex) {
        return guard;
    }
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What comes over a channel within a time.
pub(crate) fn receive<T>(from: &Receiver<T>, within: Duration) -> Result<T, RecvTimeoutError> {
    #[cfg(all(test, not(loom), not(miri)))]
    if let Some(received) = super::sim::receive(from, within) {
        return received;
    }
    from.recv_timeout(within)
}
