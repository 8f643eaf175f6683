//! A node used by several threads, and the progress thread.
//!
//! One lock around the node. Whoever sleeps does not hold it. Threads that only send, and must
//! not wait for one another, have a [`DetachedTerminus`](super::DetachedTerminus) each instead.

use super::wait::{Backoff, Step};
use super::{Node, RecvError, SendError};
use crate::interface::terminus::SendHandle;
use crate::interface::{Notification, QueueId};
use crate::os::sys;
use crate::wire::Ticket;
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// A node that several threads use. Cloning shares it.
#[derive(Clone)]
pub struct SharedNode {
    inner: Arc<Inner>,
}

struct Inner {
    node: Mutex<Node>,
    progress: Mutex<Option<Progress>>,
}

struct Progress {
    stop: Arc<AtomicBool>,
    bell: sys::Bell,
    thread: JoinHandle<()>,
}

/// How long a sleeper that shares the node's descriptor with others sleeps at most: what woke
/// another thread may have been meant for this one.
const SHARED_SLEEP_MAX: Duration = Duration::from_millis(5);

impl Node {
    /// Puts the node behind a lock, for several threads.
    pub fn share(self) -> SharedNode {
        SharedNode { inner: Arc::new(Inner { node: Mutex::new(self), progress: Mutex::new(None) }) }
    }
}

impl SharedNode {
    /// The node, for this thread alone until the guard is dropped. A thread that panicked while
    /// it held the guard left the node between two calls, which is a valid state.
    pub fn lock(&self) -> MutexGuard<'_, Node> {
        self.inner.node.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// [`Node::send`], without holding the lock while waiting.
    pub fn send(
        &self,
        ticket: &Ticket,
        data: &[u8],
        metadata: &[u8],
        timeout: Option<Duration>,
    ) -> Result<SendHandle, SendError> {
        let mut backoff = Backoff::new(self.lock().config(), timeout);
        loop {
            {
                let mut node = self.lock();
                match node.try_send(ticket, data, metadata) {
                    Err(SendError::Full) => node.poll()?,
                    // Must be cut while the call lasts; others wait for this thread's progress.
                    Err(SendError::TooLongToTry { .. }) => {
                        return node.send(ticket, data, metadata, timeout);
                    }
                    other => return other,
                };
            }
            match backoff.step() {
                Step::Spin | Step::Yield => std::thread::yield_now(),
                Step::Sleep { .. } => std::thread::sleep(Duration::from_micros(50)),
                Step::TimedOut => return Err(SendError::TimedOut { unfinished: None }),
            }
        }
    }

    /// [`Node::recv`], without holding the lock while waiting. Any number of threads may wait.
    pub fn recv(
        &self,
        queue: QueueId,
        timeout: Option<Duration>,
    ) -> Result<Notification, RecvError> {
        let mut backoff = Backoff::new(self.lock().config(), timeout);
        loop {
            if let Some(notification) = self.lock().try_recv(queue)? {
                return Ok(notification);
            }
            match backoff.step() {
                Step::Spin => core::hint::spin_loop(),
                Step::Yield => std::thread::yield_now(),
                Step::Sleep { deadline_ns } => {
                    let left = deadline_ns.saturating_sub(sys::monotonic_ns());
                    let left = Duration::from_nanos(left).min(SHARED_SLEEP_MAX);
                    self.sleep(None, left).map_err(|e| RecvError::Wait(Arc::new(e)))?;
                }
                Step::TimedOut => return Err(RecvError::TimedOut),
            }
        }
    }

    /// Sleeps on the node's descriptor, and on `bell`, without holding the lock.
    fn sleep(&self, bell: Option<&sys::Bell>, timeout: Duration) -> std::io::Result<()> {
        let fd = {
            let mut node = self.lock();
            match node.prepare_to_wait() {
                Ok(true) => node.as_fd().try_clone_to_owned()?,
                _ => return Ok(()),
            }
        };
        let deadline = sys::monotonic_ns().saturating_add(timeout.as_nanos() as u64);
        match bell {
            None => sys::wait_for(&[(fd.as_fd(), false)], deadline)?,
            Some(bell) => sys::wait_for(&[(fd.as_fd(), false), (bell.as_fd(), false)], deadline)?,
        };
        Ok(())
    }

    /// Starts the progress thread, unless there is one: it polls the node, so that bytes are
    /// deposited and queued messages leave while the application makes no calls. It spins, yields
    /// and sleeps like any receiver. With a watchdog (`watchdog_ms`), packets are discarded when
    /// the application no longer calls [`Node::reset_watchdog`] (Hamlyn 2.8).
    pub fn start_progress(&self) -> std::io::Result<()> {
        let mut progress = self.inner.progress.lock().unwrap_or_else(PoisonError::into_inner);
        if progress.is_some() {
            return Ok(());
        }
        let stop = Arc::new(AtomicBool::new(false));
        let bell = sys::Bell::new()?;
        let heard = bell.try_clone()?;
        // The thread must not keep the node alive that it serves.
        let (weak, stopped) = (Arc::downgrade(&self.inner), stop.clone());
        let config = self.lock().config().clone();
        let thread =
            std::thread::Builder::new().name("hamlyn-progress".into()).spawn(move || {
                let mut backoff = Backoff::new(&config, None);
                while !stopped.load(Ordering::Acquire) {
                    let Some(inner) = weak.upgrade() else { return };
                    let shared = SharedNode { inner };
                    match shared.lock().poll() {
                        Ok(0) => {}
                        Ok(_) => {
                            backoff.restart();
                            continue;
                        }
                        Err(_) => return,
                    }
                    match backoff.step() {
                        Step::Spin => core::hint::spin_loop(),
                        Step::Yield => std::thread::yield_now(),
                        Step::Sleep { .. } | Step::TimedOut => {
                            // Bounded, so that a dropped node is noticed.
                            let _ = shared.sleep(Some(&heard), PROGRESS_SLEEP_MAX);
                        }
                    }
                }
            })?;
        *progress = Some(Progress { stop, bell, thread });
        Ok(())
    }

    /// Stops the progress thread and waits for it.
    pub fn stop_progress(&self) {
        let progress = self.inner.progress.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(Progress { stop, bell, thread }) = progress {
            stop.store(true, Ordering::Release);
            bell.ring();
            let _ = thread.join();
        }
    }

    /// The node itself, if no other clone is left. The progress thread must have been stopped.
    pub fn into_inner(self) -> Result<Node, Self> {
        Arc::try_unwrap(self.inner)
            .map(|inner| inner.node.into_inner().unwrap_or_else(PoisonError::into_inner))
            .map_err(|inner| Self { inner })
    }
}

const PROGRESS_SLEEP_MAX: Duration = Duration::from_secs(1);
