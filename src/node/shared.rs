//! A node used by several threads, and the progress thread.
//!
//! ```text
//!   thread --- lock --- poll, take --- unlock        (any number, in turn)
//!   nothing there:  nobody sleeps on the node yet -> lead: arm, unlock, sleep on its descriptor
//!                   somebody does                 -> follow: wait on the condition variable
//! ```
//! One lock around the node, and whoever sleeps does not hold it. Of the threads that wait, one
//! leads: it sleeps on the node's descriptor and on a bell. What a thread does while it holds the
//! lock may be what others wait for, or may have taken the leader's signal; so when a guard goes
//! that has moved notifications, queued messages or sent to this node itself, the followers look
//! again and the bell is rung. Threads that only send, and must not wait for one another, have a
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

/// A node that several threads use. Cloning shares it; with the last clone the progress thread
/// stops and the node is dropped.
#[derive(Clone)]
pub struct SharedNode {
    inner: Arc<Inner>,
    /// What the progress thread does not have.
    users: Arc<Users>,
}

/// Stops the progress thread when the last user goes.
struct Users(Arc<Inner>);

impl Drop for Users {
    fn drop(&mut self) {
        self.0.stop_progress();
    }
}

struct Inner {
    state: Mutex<State>,
    /// Followers wait here.
    look_again: Condvar,
    /// Wakes the leader.
    bell: sys::Bell,
    progress: Mutex<Option<Progress>>,
}

struct State {
    node: Node,
    has_leader: bool,
    followers: usize,
}

struct Progress {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

/// The node, for one thread alone until this is dropped.
pub struct NodeGuard<'a> {
    state: Option<MutexGuard<'a, State>>,
    inner: &'a Inner,
    /// Notifications and queued messages before.
    before: (u64, usize),
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

impl NodeGuard<'_> {
    /// The thread becomes the leader, if it may; what it has moved is for followers only, since it
    /// looks for itself.
    fn lead(mut self, leads: bool) -> Self {
        if leads {
            let moved = self.state().moved();
            if moved.0 != self.before.0 && self.state().followers > 0 {
                self.inner.look_again.notify_all();
            }
            self.before = moved;
            self.state_mut().has_leader = true;
        }
        self
    }

    fn state(&self) -> &State {
        self.state.as_ref().expect("taken only while dropping or following")
    }

    fn state_mut(&mut self) -> &mut State {
        self.state.as_mut().expect("taken only while dropping or following")
    }
}

impl State {
    /// What others may wait for: notifications made so far, and messages that wait for room.
    fn moved(&self) -> (u64, usize) {
        (self.node.counters.notifications.get(), self.node.queued)
    }
}

impl Drop for NodeGuard<'_> {
    fn drop(&mut self) {
        let Some(state) = self.state.take() else { return };
        let (notified, queued) = state.moved();
        let has_moved =
            notified != self.before.0 || queued > self.before.1 || state.node.sends_to_itself();
        let (followers, has_leader) = (state.followers > 0, state.has_leader);
        drop(state);
        if followers && (has_moved || !has_leader) {
            self.inner.look_again.notify_all();
        }
        if has_leader && has_moved {
            self.inner.bell.ring();
        }
    }
}

impl Node {
    /// Whether a packet from this node to itself waits.
    fn sends_to_itself(&self) -> bool {
        matches!(self.links.first(), Some(Some(link)) if link.rx.is_ready())
    }

    /// Puts the node behind a lock, for several threads.
    pub fn share(self) -> io::Result<SharedNode> {
        let state = State { node: self, has_leader: false, followers: 0 };
        let inner = Arc::new(Inner {
            state: Mutex::new(state),
            look_again: Condvar::new(),
            bell: sys::Bell::new()?,
            progress: Mutex::new(None),
        });
        Ok(SharedNode { users: Arc::new(Users(inner.clone())), inner })
    }
}

impl Inner {
    /// A thread that panicked while it held the guard left the node between two calls, which is a
    /// valid state.
    fn lock(&self) -> NodeGuard<'_> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let before = state.moved();
        NodeGuard { state: Some(state), inner: self, before }
    }

    /// Waits until something may have come, for a packet or for room towards `room`, leading or
    /// following; at most until `deadline_ns`.
    fn sleep(
        &self,
        mut guard: NodeGuard<'_>,
        room: Option<NodeId>,
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
        // A sender that waits for room sleeps beside a leader, and may take its signals: both look
        // again, the leader because of the bell.
        if !guard.prepare_to_wait_for(room).unwrap_or(false) {
            return Ok(());
        }
        let fd = guard.as_fd().try_clone_to_owned()?;
        let leads = !guard.state().has_leader;
        drop(guard.lead(leads));
        let slept = if leads {
            sys::wait_for(&[(fd.as_fd(), false), (self.bell.as_fd(), false)], deadline_ns)
        } else {
            sys::wait_for(&[(fd.as_fd(), false)], deadline_ns)
        };
        if leads {
            self.bell.silence();
            self.lock().state_mut().has_leader = false;
        }
        slept.map(|_| ())
    }

    fn stop_progress(&self) {
        let progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(Progress { stop, thread }) = progress {
            stop.store(true, Ordering::Release);
            // It leads, follows, or is about to: it takes the lock before either, and looks.
            drop(self.lock());
            self.bell.ring();
            self.look_again.notify_all();
            if thread.thread().id() != std::thread::current().id() {
                let _ = thread.join();
            }
            self.lock().set_watched(false);
        }
    }
}

/// How long the progress thread sleeps at most.
const PROGRESS_SLEEP_MAX_NS: u64 = 1_000_000_000;

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
                    return node.send(ticket, data, metadata, backoff.left());
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
                        .sleep(node, Some(ticket.destination), deadline)
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
                        .sleep(node, None, deadline_ns)
                        .map_err(|e| RecvError::Wait(Arc::new(e)))?;
                }
                Step::TimedOut => return Err(RecvError::TimedOut),
            }
        }
    }

    /// Starts the progress thread, unless there is one: it polls the node, so that bytes are
    /// deposited and queued messages leave while the application makes no calls. It spins, yields
    /// and sleeps like any receiver; messages sent without the flag `WAKE`, which wake nobody, are
    /// deposited within a second. With a watchdog (`watchdog_ms`), packets are discarded when
    /// the application no longer calls [`Node::reset_watchdog`] (Hamlyn 2.8).
    pub fn start_progress(&self) -> io::Result<()> {
        let mut progress = self.inner.progress.lock().unwrap_or_else(PoisonError::into_inner);
        if progress.is_some() {
            return Ok(());
        }
        let stop = Arc::new(AtomicBool::new(false));
        let (inner, stopped) = (self.inner.clone(), stop.clone());
        let config = {
            let mut node = self.lock();
            node.set_watched(true);
            node.config().clone()
        };
        let make_progress = move || {
            let mut backoff = Backoff::new(&config, None);
            loop {
                let mut node = inner.lock();
                if stopped.load(Ordering::Acquire) {
                    return;
                }
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
                        let deadline = sys::monotonic_ns() + PROGRESS_SLEEP_MAX_NS;
                        if inner.sleep(node, None, deadline).is_err() {
                            std::thread::yield_now();
                        }
                    }
                }
            }
        };
        let name = "hamlyn-progress".into();
        let thread = std::thread::Builder::new().name(name).spawn(make_progress)?;
        *progress = Some(Progress { stop, thread });
        Ok(())
    }

    /// Stops the progress thread and waits for it.
    pub fn stop_progress(&self) {
        self.inner.stop_progress();
    }

    /// The node itself, if no other clone is left; stops the progress thread.
    pub fn into_inner(self) -> Result<Node, Self> {
        let Self { inner, users } = self;
        // The last user stops the progress thread as it goes.
        match Arc::try_unwrap(users) {
            Ok(users) => drop(users),
            Err(users) => return Err(Self { inner, users }),
        }
        match Arc::try_unwrap(inner) {
            Ok(inner) => Ok(inner.state.into_inner().unwrap_or_else(PoisonError::into_inner).node),
            Err(inner) => Err(Self { users: Arc::new(Users(inner.clone())), inner }),
        }
    }
}
