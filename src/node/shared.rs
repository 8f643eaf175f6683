//! A node used by several threads, and the progress thread.
//!
//! ```text
//!   thread --- lock --- poll, take --- unlock        (any number, in turn)
//!   nothing there:  nobody sleeps on the node yet -> lead: arm, unlock, sleep on its descriptor
//!                   somebody does                 -> follow: wait on the condition variable
//! ```
//! One lock around the node, and whoever sleeps does not hold it. Of the threads that wait, one
//! leads: it sleeps on the node's descriptor, and what it finds may be for others, so whenever a
//! guard goes that has moved notifications or that ends a lead, the followers look again. Threads
//! that only send, and must not wait for one another, have a
//! [`DetachedTerminus`](super::DetachedTerminus) each instead.

use super::wait::{Backoff, Step};
use super::{Node, RecvError, SendError};
use crate::interface::terminus::SendHandle;
use crate::interface::{Notification, QueueId};
use crate::os::sys;
use crate::wire::{NodeId, Ticket};
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::io;
use std::os::fd::AsFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// A node that several threads use. Cloning shares it.
#[derive(Clone)]
pub struct SharedNode {
    inner: Arc<Inner>,
}

struct Inner {
    state: Mutex<State>,
    /// Followers wait here.
    look_again: Condvar,
    progress: Mutex<Option<Progress>>,
}

struct State {
    node: Node,
    has_leader: bool,
    followers: usize,
}

struct Progress {
    stop: Arc<AtomicBool>,
    bell: sys::Bell,
    thread: JoinHandle<()>,
}

/// The node, for one thread alone until this is dropped.
pub struct NodeGuard<'a> {
    state: Option<MutexGuard<'a, State>>,
    inner: &'a Inner,
    /// Notifications before.
    notified: u64,
}

impl Deref for NodeGuard<'_> {
    type Target = Node;
    fn deref(&self) -> &Node {
        &self.state().node
    }
}

impl DerefMut for NodeGuard<'_> {
    fn deref_mut(&mut self) -> &mut Node {
        &mut self.state_mut().node
    }
}

impl<'a> NodeGuard<'a> {
    fn state(&self) -> &State {
        self.state.as_ref().expect("taken only while dropping or following")
    }

    fn state_mut(&mut self) -> &mut State {
        self.state.as_mut().expect("taken only while dropping or following")
    }

    fn notifications(&self) -> u64 {
        self.state().node.counters.notifications.get()
    }
}

impl Drop for NodeGuard<'_> {
    fn drop(&mut self) {
        if let Some(state) = self.state.take()
            && state.followers > 0
            && (!state.has_leader || state.node.counters.notifications.get() != self.notified)
        {
            drop(state);
            self.inner.look_again.notify_all();
        }
    }
}

impl Node {
    /// Puts the node behind a lock, for several threads.
    pub fn share(self) -> SharedNode {
        let state = State { node: self, has_leader: false, followers: 0 };
        SharedNode {
            inner: Arc::new(Inner {
                state: Mutex::new(state),
                look_again: Condvar::new(),
                progress: Mutex::new(None),
            }),
        }
    }
}

impl Inner {
    /// A thread that panicked while it held the guard left the node between two calls, which is a
    /// valid state.
    fn lock(&self) -> NodeGuard<'_> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let mut guard = NodeGuard { state: Some(state), inner: self, notified: 0 };
        guard.notified = guard.notifications();
        guard
    }

    /// Waits until something may have come, for a packet or for room towards `room`, leading or
    /// following; at most until `deadline_ns`. `bell` ends a lead early.
    fn sleep(
        &self,
        mut guard: NodeGuard<'_>,
        room: Option<NodeId>,
        bell: Option<&sys::Bell>,
        deadline_ns: u64,
    ) -> io::Result<()> {
        if guard.state().has_leader && room.is_none() {
            let Some(mut state) = guard.state.take() else { return Ok(()) };
            state.followers += 1;
            let left = deadline_ns.saturating_sub(sys::monotonic_ns());
            let woken = self.look_again.wait_timeout(state, Duration::from_nanos(left));
            let (mut state, _) = woken.unwrap_or_else(PoisonError::into_inner);
            state.followers -= 1;
            guard.state = Some(state);
            return Ok(());
        }
        // A sender that waits for room sleeps beside a leader: both see the same descriptor, and
        // both look again.
        if !guard.prepare_to_wait_for(room).unwrap_or(false) {
            return Ok(());
        }
        let fd = guard.as_fd().try_clone_to_owned()?;
        let leads = !guard.state().has_leader;
        guard.state_mut().has_leader = true;
        drop(guard);
        let slept = match bell {
            None => sys::wait_for(&[(fd.as_fd(), false)], deadline_ns),
            Some(bell) => sys::wait_for(&[(fd.as_fd(), false), (bell.as_fd(), false)], deadline_ns),
        };
        if leads {
            self.lock().state_mut().has_leader = false;
        }
        slept.map(|_| ())
    }
}

/// How long a sender that waits for room sleeps beside a leader, who may take its signal.
const ROOM_SLEEP_MAX_NS: u64 = 1_000_000;

impl SharedNode {
    /// The node, for this thread alone until the guard is dropped.
    pub fn lock(&self) -> NodeGuard<'_> {
        self.inner.lock()
    }

    /// [`Node::send`], without holding the lock while waiting, except that a message which is
    /// longer than what a link takes at once keeps the node until it has left.
    pub fn send(
        &self,
        ticket: &Ticket,
        data: &[u8],
        metadata: &[u8],
        timeout: Option<Duration>,
    ) -> Result<SendHandle, SendError> {
        let mut backoff = Backoff::new(self.lock().config(), timeout);
        loop {
            let mut node = self.lock();
            match node.try_send(ticket, data, metadata) {
                Err(SendError::Full) => {
                    if node.poll()? > 0 {
                        backoff.restart();
                    }
                }
                Err(SendError::TooLongToTry { .. }) => {
                    return node.send(ticket, data, metadata, timeout);
                }
                other => return other,
            }
            match backoff.step() {
                Step::Spin => drop(node),
                Step::Yield => {
                    drop(node);
                    std::thread::yield_now();
                }
                Step::Sleep { deadline_ns } => {
                    let deadline = deadline_ns.min(sys::monotonic_ns() + ROOM_SLEEP_MAX_NS);
                    self.inner
                        .sleep(node, Some(ticket.destination), None, deadline)
                        .map_err(|e| SendError::Wait(Arc::new(e)))?;
                }
                Step::TimedOut => return Err(SendError::TimedOut { unfinished: None }),
            }
        }
    }

    /// [`Node::recv`], without holding the lock while waiting. Any number of threads may wait, for
    /// the same or for different queues.
    pub fn recv(
        &self,
        queue: QueueId,
        timeout: Option<Duration>,
    ) -> Result<Notification, RecvError> {
        let mut backoff = Backoff::new(self.lock().config(), timeout);
        loop {
            let mut node = self.lock();
            if let Some(notification) = node.try_recv(queue)? {
                return Ok(notification);
            }
            match backoff.step() {
                Step::Spin => drop(node),
                Step::Yield => {
                    drop(node);
                    std::thread::yield_now();
                }
                Step::Sleep { deadline_ns } => {
                    self.inner
                        .sleep(node, None, None, deadline_ns)
                        .map_err(|e| RecvError::Wait(Arc::new(e)))?;
                }
                Step::TimedOut => return Err(RecvError::TimedOut),
            }
        }
    }

    /// Starts the progress thread, unless there is one: it polls the node, so that bytes are
    /// deposited and queued messages leave while the application makes no calls. It spins, yields
    /// and sleeps like any receiver. With a watchdog (`watchdog_ms`), packets are discarded when
    /// the application no longer calls [`Node::reset_watchdog`] (Hamlyn 2.8).
    pub fn start_progress(&self) -> io::Result<()> {
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
                    let mut node = inner.lock();
                    match node.poll() {
                        Ok(0) => {}
                        Ok(_) => {
                            backoff.restart();
                            continue;
                        }
                        Err(_) => return,
                    }
                    match backoff.step() {
                        Step::Spin => drop(node),
                        Step::Yield => {
                            drop(node);
                            std::thread::yield_now();
                        }
                        Step::Sleep { .. } | Step::TimedOut => {
                            // Bounded, so that a node that was dropped is noticed.
                            let deadline = sys::monotonic_ns() + PROGRESS_SLEEP_MAX_NS;
                            let _ = inner.sleep(node, None, Some(&heard), deadline);
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
            // It may be following instead of leading.
            self.inner.look_again.notify_all();
            let _ = thread.join();
        }
    }

    /// The node itself, if no other clone is left and the progress thread has been stopped.
    pub fn into_inner(self) -> Result<Node, Self> {
        Arc::try_unwrap(self.inner)
            .map(|inner| inner.state.into_inner().unwrap_or_else(PoisonError::into_inner).node)
            .map_err(|inner| Self { inner })
    }
}

const PROGRESS_SLEEP_MAX_NS: u64 = 1_000_000_000;
