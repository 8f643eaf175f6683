//! The common state of all objects of one manager: the node and its locks, waiting, sending,
//! closing.
//!
//! Two locks: Python's, and the node's. Never: a thread asks for Python's lock while it holds the
//! node's (except in admission callbacks, see `admission.rs`); a thread holds Python's lock while
//! another may hold the node's for long (`slow`).

use crate::admission;
use crate::errors::{Kind, OrRaise, ToPy, error};
use crate::wait::{LOOKS, Limit, duration, sliced};
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use core::time::Duration;
use hamlyn::node::NodeSendError;
use hamlyn::os::descriptor::Descriptor;
use hamlyn::os::lock::Lock;
use hamlyn::os::memory::ForkGuard;
use hamlyn::os::poller::Poller;
use hamlyn::os::sys::{Bell, wait_for};
use hamlyn::protocol;
use hamlyn::{LinkId, Node, NodeId, Notification, QueueId};
use pyo3::prelude::*;
use std::cell::RefCell;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Wake, Waker};

/// Messages up to this size are sent with the interpreter's lock held, since copying them takes
/// less time than releasing the lock.
const HELD_BYTES_MAX: usize = 16 << 10;

/// How long a call may keep the node while it waits.
pub(crate) const HOLDING_SLICE: Duration = Duration::from_millis(1);

/// The common state of all objects of one manager.
pub struct Inner {
    /// `None` once it is closed and no buffer is out.
    node: Lock<Option<protocol::Manager>>,
    pub(crate) id: NodeId,
    fork_guard: ForkGuard,
    pub(crate) is_closed: AtomicBool,
    /// Calls in progress that may keep the node's lock for long, and admission callbacks.
    pub slow: Arc<AtomicUsize>,
    /// Buffers of message areas that Python has.
    buffers: AtomicUsize,
    /// Makes `poller` readable when another call has received from a link what an event loop waits
    /// for.
    pub(crate) bell: Arc<Ringer>,
    /// The node's descriptor.
    node_fd: Descriptor,
    /// The node's descriptor and the bell.
    pub(crate) poller: Poller,
    pub(crate) served: Mutex<Vec<String>>,
    /// The next event, once a call has looked whether there is one.
    pub(crate) event: Mutex<Option<hamlyn::Event>>,
    /// End points, to be closed with the manager.
    ends: Mutex<Vec<Weak<dyn Close>>>,
}

/// A call that may keep the node's lock for long.
pub struct Slow<'a>(&'a Inner);

impl Drop for Slow<'_> {
    fn drop(&mut self) {
        self.0.slow.fetch_sub(1, Ordering::Relaxed);
    }
}

/// An end point that is closed with its manager.
pub trait Close: Send + Sync {
    /// Closes it; called without the interpreter's lock.
    fn close(&self);
}

/// Rings a bell in the place of waking a Rust task: once for each wait, and never while the waiter
/// is known to be awake, since it looks before it waits again.
pub(crate) struct Ringer {
    bell: Bell,
    state: AtomicU8,
}

/// A waiter exists, or may: the next ring makes the descriptor readable.
const WAITED_FOR: u8 = 0;
/// The descriptor is readable, or about to be.
const RUNG: u8 = 1;
/// The only waiter is awake.
const AWAKE: u8 = 2;

impl Ringer {
    fn new() -> PyResult<Self> {
        Ok(Self { bell: Bell::new().or_raise()?, state: AtomicU8::new(WAITED_FOR) })
    }

    fn change(&self, from: u8, to: u8) -> bool {
        self.state.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    pub(crate) fn ring(&self) {
        if self.change(WAITED_FOR, RUNG) {
            self.bell.ring();
        }
    }

    /// Makes the descriptor unreadable until the next ring. A ring whose effect on the descriptor
    /// has yet to come stays.
    pub(crate) fn silence(&self) {
        self.settle(WAITED_FOR);
    }

    /// The same, and until [`waits`](Self::waits) no ring has an effect. Only with a single waiter.
    pub(crate) fn is_awake(&self) {
        self.settle(AWAKE);
    }

    fn settle(&self, to: u8) {
        match self.state.load(Ordering::Acquire) {
            RUNG if self.bell.take_ring() => self.state.store(to, Ordering::Release),
            RUNG => {}
            from => _ = self.change(from, to),
        }
    }

    /// To be called before a waiter's last look: from now on a ring wakes it.
    pub(crate) fn waits(&self) {
        self.change(AWAKE, WAITED_FOR);
    }
}

impl Wake for Ringer {
    fn wake(self: Arc<Self>) {
        self.ring();
    }
}

/// Packets that have arrived so far.
fn packets_received(node: &protocol::Manager) -> Option<u64> {
    let counters = node.lock().counters();
    counters.iter().find(|(name, _)| *name == "packets_received").map(|(_, count)| *count)
}

/// The bell of this thread's waits. One for each thread, since a manager remembers wakers until
/// something arrives; a forked child has one of its own.
fn bell_of_thread() -> PyResult<Arc<Ringer>> {
    thread_local! {
        static BELL: RefCell<Option<(u32, Arc<Ringer>)>> = const { RefCell::new(None) };
    }
    let process = std::process::id();
    BELL.with_borrow_mut(|kept| match kept {
        Some((of, bell)) if *of == process => Ok(bell.clone()),
        _ => {
            let bell = Arc::new(Ringer::new()?);
            *kept = Some((process, bell.clone()));
            Ok(bell)
        }
    })
}

pub fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Inner {
    pub(crate) fn new(node: protocol::Manager) -> PyResult<Self> {
        let id = node.id();
        let (bell, poller) = (Ringer::new()?, Poller::new().or_raise()?);
        let node_fd = Descriptor::from(node.try_clone_fd().or_raise()?);
        poller.add(&node_fd, 0).or_raise()?;
        poller.add(&bell.bell, 1).or_raise()?;
        Ok(Self {
            id,
            fork_guard: ForkGuard::new().or_raise()?,
            is_closed: AtomicBool::new(false),
            slow: Arc::default(),
            buffers: AtomicUsize::new(0),
            bell: Arc::new(bell),
            node_fd,
            poller,
            served: Mutex::default(),
            event: Mutex::new(None),
            ends: Mutex::default(),
            node: Lock::new(Some(node)),
        })
    }

    /// The node. Raises `Closed`, and `Forked` in a forked child, before touching any lock: a
    /// thread that the child does not have may have held one.
    #[inline]
    pub fn node(&self) -> PyResult<protocol::Manager> {
        self.check_open()?;
        let node = self.node.try_lock().unwrap_or_else(|| self.node.lock());
        node.clone().ok_or_else(closed)
    }

    /// Calls `act` with the manager, with the interpreter's lock held: for work that never waits,
    /// and does nothing in a forked child. `None`: it was not called, or returned `None`; the
    /// caller then goes on to the general path, which raises the error.
    #[inline]
    pub fn at_once<R>(&self, act: impl FnOnce(&protocol::Manager) -> Option<R>) -> Option<R> {
        if admission::is_inside() || self.is_closed.load(Ordering::Acquire) || self.is_slow() {
            return None;
        }
        act(self.node.try_lock()?.as_ref()?)
    }

    /// Raises in a forked child.
    #[inline]
    pub fn check_fork(&self) -> PyResult<()> {
        if self.fork_guard.is_parent() { Ok(()) } else { Err(hamlyn::node::Forked.to_py()) }
    }

    /// Raises if the manager is closed or belongs to a parent process, and in a callback.
    #[inline]
    pub fn check_open(&self) -> PyResult<()> {
        self.check_fork()?;
        admission::check()?;
        if self.is_closed.load(Ordering::Acquire) { Err(closed()) } else { Ok(()) }
    }

    /// To be held, from before the interpreter's lock is released, by a call that may hold the
    /// node's lock for long.
    pub fn slow(&self) -> Slow<'_> {
        self.slow.fetch_add(1, Ordering::Relaxed);
        Slow(self)
    }

    /// Calls `use_it` with the node's lock held, and the interpreter's unless another thread may
    /// hold the node's for long: `slow` changes under the interpreter's lock only, so it stays true
    /// until that lock is released. Do not poll here, but through the manager, which wakes other
    /// waiters.
    #[inline]
    pub fn with<R: Send>(
        &self,
        py: Python<'_>,
        use_it: impl FnOnce(&mut Node) -> R + Send,
    ) -> PyResult<R> {
        let node = self.node()?;
        let call = || use_it(&mut node.lock());
        if self.is_slow() { Ok(py.detach(call)) } else { Ok(call()) }
    }

    /// Whether a thread may hold the node's lock for long.
    #[inline]
    pub fn is_slow(&self) -> bool {
        self.slow.load(Ordering::Relaxed) > 0
    }

    /// Wakes the event loops.
    pub fn ring(&self) {
        self.bell.ring();
    }

    /// Returns once no thread holds the node's lock.
    pub fn wait_for_lock(&self) {
        if self.check_fork().is_ok() {
            let node = self.node.lock().clone();
            node.iter().for_each(|node| drop(node.lock()));
        }
    }

    /// Registers an end point, to be closed with the manager.
    pub fn register(&self, end: Weak<dyn Close>) {
        let mut ends = locked(&self.ends);
        if ends.len() == ends.capacity() {
            ends.retain(|end| end.strong_count() > 0);
        }
        ends.push(end);
    }

    /// Counts a buffer: the node stays until it has come back. Raises if the node is gone already.
    pub fn lend(&self) -> PyResult<()> {
        // Under the lock, as the last look in `drop_if_done` is.
        let node = self.node.lock();
        if node.is_none() {
            return Err(closed());
        }
        self.buffers.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// A buffer has come back.
    pub fn take_back(&self) {
        // In a forked child the memory is a copy, and everything else is the parent's.
        if self.check_fork().is_ok() && self.buffers.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.drop_if_done();
        }
    }

    /// Drops the node when it is closed and no buffer of its memory is out.
    fn drop_if_done(&self) {
        let mut node = self.node.lock();
        if self.is_closed.load(Ordering::Acquire) && self.buffers.load(Ordering::Acquire) == 0 {
            let node_alone = node.take();
            drop(node);
            admission::outside(self, move || drop(node_alone));
        }
    }

    /// Waits for a notification.
    pub fn receive(
        &self,
        py: Python<'_>,
        queue: QueueId,
        timeout: Option<f64>,
    ) -> PyResult<Notification> {
        let limit = Limit::new(timeout)?;
        for _ in 0..if timeout == Some(0.0) { 1 } else { LOOKS } {
            if let Some(found) = self.try_receive(py, queue)? {
                return Ok(found);
            }
        }
        let node = self.node()?;
        let attempt = |slice| match node.recv(queue, Some(slice)) {
            Ok(notification) => Ok(Some(notification)),
            Err(hamlyn::NodeReceiveError::TimedOut) => Ok(None),
            Err(e) => Err(e),
        };
        match sliced(py, self, limit, attempt)?.or_raise()? {
            Some(notification) => Ok(notification),
            None => Err(hamlyn::NodeReceiveError::TimedOut.to_py()),
        }
    }

    /// Takes the next notification that is there, or comes in one turn.
    #[inline]
    pub fn try_receive(&self, py: Python<'_>, queue: QueueId) -> PyResult<Option<Notification>> {
        let node = self.node()?;
        let look = || node.try_recv(queue);
        let found = if self.is_slow() { py.detach(look) } else { look() };
        found.or_raise()
    }

    /// Whether an event waits.
    pub(crate) fn look_for_event(&self, node: &protocol::Manager) -> bool {
        let mut kept = locked(&self.event);
        if kept.is_none() {
            *kept = node.next_event();
        }
        kept.is_some()
    }

    /// Waits until something has arrived, at most until `limit`; an event that waits to be read
    /// counts if `takes_events`.
    pub(crate) fn wait(&self, py: Python<'_>, limit: Limit, takes_events: bool) -> PyResult<bool> {
        let node = self.node()?;
        // Not the bell of the event loops: they silence it.
        let bell = bell_of_thread()?;
        let waker = Waker::from(bell.clone());
        let has_event = || takes_events && self.look_for_event(&node);
        let attempt = |slice: Duration| {
            bell.silence();
            if node.poll()? > 0 || has_event() {
                return Ok(Some(()));
            }
            let deadline = hamlyn::os::sys::monotonic_ns() + slice.as_nanos() as u64;
            // The wait takes a turn of its own, whose packets no other call sees.
            let before = packets_received(&node);
            if !node.prepare_to_wait(Some(&waker))?
                || packets_received(&node) != before
                || has_event()
            {
                return Ok(Some(()));
            }
            let fds = [(self.node_fd.as_fd(), false), (bell.bell.as_fd(), false)];
            let woken = wait_for(&fds, deadline);
            match woken.map_err(|e| hamlyn::NodeReceiveError::Wait(Arc::new(e)))? {
                true => Ok(Some(())),
                false => Ok::<_, hamlyn::NodeReceiveError>(None),
            }
        };
        let waited = sliced(py, self, limit, attempt);
        // Otherwise the bells of ended threads would stay registered until something arrives.
        py.detach(|| node.wait_no_more(&waker));
        Ok(waited?.or_raise()?.is_some())
    }

    /// Sends one message, over `link` if that is given.
    pub fn send(
        &self,
        py: Python<'_>,
        link: Option<LinkId>,
        ticket: &hamlyn::Ticket,
        data: &[u8],
        metadata: &[u8],
        timeout: Option<f64>,
    ) -> PyResult<()> {
        if link.is_none() && data.len() <= HELD_BYTES_MAX {
            let send = |node: &protocol::Manager| node.send_at_once(ticket, data, metadata);
            if self.at_once(|node| send(node).then_some(())).is_some() {
                return Ok(());
            }
        }
        if data.len() <= HELD_BYTES_MAX && link.is_none() {
            match self.with(py, |node| node.try_send(ticket, data, metadata))? {
                Err(NodeSendError::Full | NodeSendError::TooLongToTry { .. }) => {}
                sent => return sent.map(|_| ()).or_raise(),
            }
        }
        let limit = Limit::new(timeout)?;
        let node = self.node()?;
        let mut unfinished = None;
        let _slow = self.slow();
        let attempt = |slice: Duration| {
            // These hold the node while they wait.
            let short = Some(slice.min(HOLDING_SLICE));
            let sent = match (unfinished.take(), link) {
                (Some(rest), _) => node.lock().send_rest(rest, data, short),
                (None, Some(link)) => node.lock().send_over(link, ticket, data, metadata, short),
                (None, None) => node.send(ticket, data, metadata, Some(slice)),
            };
            // The send has polled, too: this wakes the waiters for the received messages.
            let _ = node.poll();
            match sent {
                Ok(_) => Ok(Some(())),
                Err(NodeSendError::TimedOut { unfinished: rest }) => {
                    unfinished = rest.map(|rest| *rest);
                    Ok(None)
                }
                Err(e) => Err(e),
            }
        };
        match sliced(py, self, limit, attempt)?.or_raise()? {
            Some(()) => Ok(()),
            None => {
                let left = unfinished.as_ref().map_or(0, |rest| rest.bytes_sent());
                let text = format!(
                    "the link stayed full for the whole time limit; {left} of {} bytes have left{}",
                    data.len(),
                    if left == 0 { "" } else { ", and the message will never be complete" }
                );
                Err(error(Kind::TimedOut, text))
            }
        }
    }

    /// Waits until nothing is queued; returns whether it succeeded.
    pub(crate) fn flush(&self, py: Python<'_>, limit: Limit) -> PyResult<bool> {
        let (node, _slow) = (self.node()?, self.slow());
        let attempt = |slice: Duration| {
            let left = node.lock().flush(Some(slice.min(HOLDING_SLICE)));
            let _ = node.poll();
            left.map(|left| left.then_some(()))
        };
        Ok(sliced(py, self, limit, attempt)?.or_raise()?.is_some())
    }

    /// Ends every link and name. Queued messages leave first, for at most `timeout`.
    pub(crate) fn close(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        if !self.fork_guard.is_parent() || self.is_closed.load(Ordering::Acquire) {
            return Ok(());
        }
        admission::check()?;
        let (limit, node) = (Limit::new(timeout)?, self.node()?);
        let within = duration(timeout)?;
        py.detach(|| node.end_within(within));
        let flushed = self.flush(py, limit);
        // Also after Ctrl-C: the other ends then see a hang-up for messages that could not leave.
        if self.is_closed.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let names = core::mem::take(&mut *locked(&self.served));
        let ends = core::mem::take(&mut *locked(&self.ends));
        py.detach(move || {
            for end in ends.iter().filter_map(Weak::upgrade) {
                end.close();
            }
            for name in names {
                node.stop_serving_name(&name);
            }
            let mut guard = node.lock();
            let links: Vec<LinkId> = guard.links().collect();
            for link in links {
                let _ = guard.disconnect(link);
            }
            drop(guard);
            drop(node);
            self.drop_if_done();
        });
        self.ring();
        if flushed? {
            return Ok(());
        }
        let text = "the manager is closed, and messages were left that could not leave in time";
        Err(error(Kind::TimedOut, text))
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let node = self.node.get_mut().take();
        match self.fork_guard.is_parent() {
            true => admission::outside(self, move || drop(node)),
            // The parent's node; threads that are not in this process may hold its locks.
            false => core::mem::forget(node),
        }
    }
}

#[cold]
fn closed() -> PyErr {
    error(Kind::Closed, "the manager is closed")
}
