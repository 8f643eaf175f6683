//! Threads of the library's own, and ways to let others run: every wait of a thread goes through
//! this module or [`sys`](super::sys), so that a simulation can run all threads as one.

use super::call::OfCall;
use core::time::Duration;
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A thread that others may wait for. Dropped, it runs on alone.
#[derive(Debug)]
pub(crate) enum Thread {
    /// A thread of the system.
    System(Handle),
    /// A task of a simulation.
    #[cfg(any(all(test, not(loom), not(miri)), feature = "simulation"))]
    Simulated(super::sim::Task),
}

/// The handle of a thread of the system.
#[derive(Debug)]
pub(crate) struct Handle {
    /// `None` only while this is dropped.
    thread: Option<std::thread::JoinHandle<()>>,
    /// Sends nothing, and is closed when the thread ends.
    end: Mutex<Receiver<()>>,
    /// The process that has the thread.
    process: u32,
}

impl Handle {
    fn join(mut self, limit: Duration) -> bool {
        let end = self.end.get_mut().unwrap_or_else(PoisonError::into_inner);
        let has_ended = end.recv_timeout(limit) != Err(RecvTimeoutError::Timeout);
        if has_ended && let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
        has_ended
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // The C library gives the memory of the parent's threads to those that a forked child
        // starts: there the handle may name one of the child's own, which would be detached.
        if self.process != std::process::id() {
            core::mem::forget(self.thread.take());
        }
    }
}

impl Thread {
    /// Whether it is the calling thread.
    pub fn is_current(&self) -> bool {
        match self {
            Self::System(handle) => {
                let own = std::thread::current().id();
                handle.thread.as_ref().is_some_and(|thread| thread.thread().id() == own)
            }
            // No task waits for itself.
            #[cfg(any(all(test, not(loom), not(miri)), feature = "simulation"))]
            Self::Simulated(_) => false,
        }
    }

    /// Waits until it has ended, for at most `limit`; `false`: it runs on, alone. A panic in it
    /// does not reach the caller.
    pub fn join(self, limit: Duration) -> bool {
        match self {
            Self::System(handle) => handle.join(limit),
            #[cfg(any(all(test, not(loom), not(miri)), feature = "simulation"))]
            Self::Simulated(task) => {
                task.join();
                true
            }
        }
    }
}

/// Starts a thread with a stack of `stack_bytes`.
pub(crate) fn spawn(
    name: &str,
    stack_bytes: usize,
    run: impl FnOnce() + Send + 'static,
) -> io::Result<Thread> {
    #[cfg(any(all(test, not(loom), not(miri)), feature = "simulation"))]
    if super::sim::is_running() {
        return Ok(Thread::Simulated(super::sim::spawn(name, run)));
    }
    let builder = std::thread::Builder::new().name(name.into()).stack_size(stack_bytes);
    let (ends, end) = channel::<()>();
    let run = move || {
        let _ends = ends;
        run();
    };
    let thread = builder.spawn(run).of_call("clone")?;
    Ok(Thread::System(Handle {
        thread: Some(thread),
        end: Mutex::new(end),
        process: std::process::id(),
    }))
}

/// Sleeps for `time`.
pub(crate) fn sleep(time: Duration) {
    #[cfg(any(all(test, not(loom), not(miri)), feature = "simulation"))]
    if super::sim::sleep(time) {
        return;
    }
    std::thread::sleep(time);
}

/// Lets another thread have the processor, if one wants it.
pub(crate) fn yield_now() {
    #[cfg(any(all(test, not(loom), not(miri)), feature = "simulation"))]
    if super::sim::yield_now() {
        return;
    }
    std::thread::yield_now();
}

/// A place where another thread may come first at the worst time, and does in a simulation. The
/// caller keeps its locks.
#[cfg(feature = "tls")]
#[inline]
pub(crate) fn may_be_overtaken() {
    #[cfg(any(all(test, not(loom), not(miri)), feature = "simulation"))]
    super::sim::barrier();
}

/// Locks, even after a panic of an earlier holder: for values that are consistent between any two
/// steps. In a simulation the holder may be another task, which then goes on first.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    #[cfg(any(all(test, not(loom), not(miri)), feature = "simulation"))]
    if let Some(guard) = super::sim::lock(mutex) {
        return guard;
    }
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Receives from a channel within a time limit.
pub(crate) fn receive<T>(from: &Receiver<T>, within: Duration) -> Result<T, RecvTimeoutError> {
    #[cfg(any(all(test, not(loom), not(miri)), feature = "simulation"))]
    if let Some(received) = super::sim::receive(from, within) {
        return received;
    }
    from.recv_timeout(within)
}
