//! A node used by several threads, and the progress thread.
//!
//! ```text
//!   thread --- lock --- poll, take --- unlock        (any number, in turn)
//!   nothing there:  nobody sleeps on the node yet -> lead: arm, unlock, sleep on its descriptor
//!                   somebody does                 -> follow: wait on the condition variable
//! ```
//! One lock around the node, and whoever sleeps does not hold it. Of the threads that wait, one
//! leads: it sleeps on what the node sleeps on, and on a word or a bell. What a thread does while it holds the
//! lock may be what others wait for, or may have taken the leader's signal; so when a guard goes
//! that has moved notifications, queued messages or sent to this node itself, the followers look
//! again and the bell is rung. Threads that only send, and must not wait for one another, have a
//! [`DetachedTerminus`](super::DetachedTerminus) each instead.

use super::send::{Advanced, Begun};
use super::wait::{Backoff, Step};
use super::{Forked, Node, RecvError, SendError, Unfinished};
use crate::interface::{LinkId, Notification, QueueId};
use crate::os::lock::{Lock, LockGuard};
use crate::os::memory::ForkGuard;
use crate::os::sys;
use crate::wire::Ticket;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use core::time::Duration;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

/// A node that several threads use. Cloning shares it; with the last clone the progress thread
/// stops and the node is dropped. `T` is what a layer above keeps under the same lock.
pub struct SharedNode<T: Attached = ()> {
    inner: Arc<Inner<T>>,
    /// What the progress thread does not have.
    users: Arc<Users<T>>,
}

impl<T: Attached> Clone for SharedNode<T> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), users: self.users.clone() }
    }
}

/// What a layer above keeps under a node's lock.
pub trait Attached: Send + 'static {
    /// Whether [`after_poll`](Self::after_poll) takes the node's events. Where nobody does, one that
    /// waits for the application keeps no thread from sleeping.
    const TAKES_EVENTS: bool = true;

    /// A turn was taken, by whichever thread; to be quick about.
    fn after_poll(&mut self, node: &mut Node);

    /// A thread has found what it waited for, and may have changed what others wait for.
    #[inline(always)]
    fn after_look(&mut self, _: &mut Node) {}

    /// A thread has slept, and taken the signals that there were: whoever sleeps without a thread is
    /// to arm again.
    #[inline(always)]
    fn after_sleep(&mut self) {}

    /// How many wait for something without a thread, to whom [`after_look`](Self::after_look) tells
    /// it.
    #[inline(always)]
    fn waiting(&self) -> usize {
        0
    }
}

/// Turns in which nothing came, and nobody else had the lock, between two looks.
const TURNS_PER_LOOK: u32 = 64;

impl Attached for () {
    const TAKES_EVENTS: bool = false;

    #[inline(always)]
    fn after_poll(&mut self, _: &mut Node) {}
}

/// Stops the progress thread when the last user goes.
struct Users<T: Attached>(Arc<Inner<T>>);

impl<T: Attached> Drop for Users<T> {
    fn drop(&mut self) {
        // The thread is the parent's.
        if !self.0.fork_guard.is_parent() {
            return;
        }
        self.0.stop_progress();
    }
}

struct Inner<T> {
    state: Lock<State<T>>,
    /// Threads that wait for the lock: whoever polls with the lock held lets them have it between
    /// two turns.
    wanted: AtomicU32,
    /// Followers wait here.
    look_again: Condvar,
    /// The node's.
    descriptor: OwnedFd,
    /// Wake the leader, who sleeps on the node's descriptor, or on words.
    bell: sys::Bell,
    word: sys::WakeWord,
    progress: Mutex<Option<Progress>>,
    /// The application has made a receiving call since the progress thread looked last.
    called: AtomicBool,
    /// Threads that sleep in calls of the application.
    asleep: AtomicU32,
    /// Can be asked without the lock, which in a child belongs to a thread that is not there.
    fork_guard: ForkGuard,
}

struct State<T> {
    node: Node,
    attached: T,
    has_leader: bool,
    followers: usize,
}

struct Progress {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

/// The node, for one thread alone until this is dropped.
pub struct NodeGuard<'a, T = ()> {
    state: Option<LockGuard<'a, State<T>>>,
    inner: &'a Inner<T>,
    /// What [`State::moved`] said before, where somebody waited for it then.
    before: (u64, usize),
}

impl<T> Deref for NodeGuard<'_, T> {
    type Target = Node;
    fn deref(&self) -> &Node {
        &self.state().node
    }
}

impl<T> DerefMut for NodeGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut Node {
        &mut self.state_mut().node
    }
}

impl<T> NodeGuard<'_, T> {
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

    /// The node and what is attached to it.
    #[inline]
    pub(crate) fn parts(&mut self) -> (&mut Node, &mut T) {
        let state = self.state_mut();
        (&mut state.node, &mut state.attached)
    }

    #[inline]
    fn state(&self) -> &State<T> {
        self.state.as_ref().expect("taken only while dropping or following")
    }

    #[inline]
    fn state_mut(&mut self) -> &mut State<T> {
        self.state.as_mut().expect("taken only while dropping or following")
    }
}

impl<T> State<T> {
    /// Nobody else waits, so that nobody need be told of anything. Stays so while the lock is held.
    #[inline(always)]
    fn is_alone(&self) -> bool {
        !self.has_leader && self.followers == 0
    }

    /// What others may wait for: packets deposited, links that came or went; and messages that
    /// wait for room.
    #[inline]
    fn moved(&self) -> (u64, usize) {
        (self.node.moved(), self.node.queued)
    }
}

impl<T> Drop for NodeGuard<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        if let Some(state) = self.state.take()
            && !state.is_alone()
        {
            self.inner.tell_others(state, self.before);
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
        self.share_with(())
    }

    /// [`share`](Self::share), with something of a layer above under the same lock.
    pub(crate) fn share_with<T: Attached>(self, attached: T) -> io::Result<SharedNode<T>> {
        let descriptor = self.as_fd().try_clone_to_owned()?;
        let state = State { node: self, attached, has_leader: false, followers: 0 };
        let inner = Arc::new(Inner {
            state: Lock::new(state),
            wanted: AtomicU32::new(0),
            look_again: Condvar::new(),
            called: AtomicBool::new(false),
            asleep: AtomicU32::new(0),
            descriptor,
            bell: sys::Bell::new()?,
            word: sys::WakeWord::default(),
            progress: Mutex::new(None),
            fork_guard: ForkGuard::new()?,
        });
        Ok(SharedNode { users: Arc::new(Users(inner.clone())), inner })
    }
}

impl<T> Inner<T> {
    /// Gives the lock back; those who wait are told what was moved since `before`.
    #[cold]
    #[inline(never)]
    fn tell_others(&self, state: LockGuard<'_, State<T>>, before: (u64, usize)) {
        let (notified, queued) = state.moved();
        let has_moved = notified != before.0 || queued > before.1 || state.node.sends_to_itself();
        let (followers, has_leader) = (state.followers > 0, state.has_leader);
        drop(state);
        if followers && (has_moved || !has_leader) {
            self.look_again.notify_all();
        }
        if has_leader && has_moved {
            self.wake_leader();
        }
    }

    /// Wakes the leader.
    fn wake_leader(&self) {
        // Who sleeps on words, or is about to, has read the value; who does not watches the bell.
        if !self.word.wake() {
            self.bell.ring();
        }
    }
}

impl<T: Attached> Inner<T> {
    /// A thread that panicked while it held the guard left the node between two calls, which is a
    /// valid state.
    #[inline]
    fn lock(&self) -> NodeGuard<'_, T> {
        let state = match self.state.try_lock() {
            Some(state) => state,
            None => self.lock_contended(),
        };
        self.guard(state)
    }

    #[inline(always)]
    fn guard<'a>(&'a self, state: LockGuard<'a, State<T>>) -> NodeGuard<'a, T> {
        let before = if state.is_alone() { (0, 0) } else { state.moved() };
        NodeGuard { state: Some(state), inner: self, before }
    }

    #[inline(always)]
    fn try_lock(&self) -> Option<NodeGuard<'_, T>> {
        Some(self.guard(self.state.try_lock()?))
    }

    /// The lock, or at once an error in a forked child where another thread had it.
    #[inline]
    fn lock_unless_forked(&self) -> Result<NodeGuard<'_, T>, Forked> {
        match self.try_lock() {
            Some(guard) => Ok(guard),
            None if !self.fork_guard.is_parent() => Err(Forked),
            None => Ok(self.lock()),
        }
    }

    #[cold]
    fn lock_contended(&self) -> LockGuard<'_, State<T>> {
        // It would wait for a thread that is not in this process.
        assert!(self.fork_guard.is_parent(), "{Forked}");
        self.wanted.fetch_add(1, Ordering::Relaxed);
        let state = self.state.lock();
        self.wanted.fetch_sub(1, Ordering::Relaxed);
        state
    }

    /// Whether another thread waits for the lock.
    #[inline(always)]
    fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::Relaxed) > 0
    }

    /// Lets the threads that wait for the lock have it, as far as they take it soon.
    #[cold]
    fn let_others(&self) {
        for _ in 0..LET_OTHERS_TURNS {
            if !self.is_wanted() {
                return;
            }
            core::hint::spin_loop();
        }
    }

    /// Between two turns: the threads that wait for the lock have it meanwhile.
    #[inline]
    fn give_way<'a>(&'a self, guard: NodeGuard<'a, T>) -> NodeGuard<'a, T> {
        if !self.is_wanted() {
            return guard;
        }
        drop(guard);
        self.let_others();
        self.lock()
    }

    #[inline(always)]
    fn is_called(&self) {
        // Threads that find it so share the line.
        if !self.called.load(Ordering::Relaxed) {
            self.called.store(true, Ordering::Relaxed);
        }
    }

    /// Whether the application has been in a call since this was asked last.
    fn was_called(&self) -> bool {
        self.called.swap(false, Ordering::Relaxed) || self.asleep.load(Ordering::Relaxed) > 0
    }

    /// [`sleep`](Self::sleep) of a thread of the application, which lives meanwhile.
    fn sleep_in_call<'a>(
        &'a self,
        guard: NodeGuard<'a, T>,
        room: Option<LinkId>,
        deadline_ns: u64,
    ) -> io::Result<NodeGuard<'a, T>> {
        self.asleep.fetch_add(1, Ordering::Relaxed);
        let woken = self.sleep(guard, room, deadline_ns);
        self.is_called();
        self.asleep.fetch_sub(1, Ordering::Relaxed);
        woken
    }

    /// Waits until something may have come, for a packet or for room on link `room`, leading or
    /// following; at most until `deadline_ns`.
    fn sleep<'a>(
        &'a self,
        mut guard: NodeGuard<'a, T>,
        room: Option<LinkId>,
        deadline_ns: u64,
    ) -> io::Result<NodeGuard<'a, T>> {
        if guard.state().has_leader && room.is_none() {
            let Some(mut state) = guard.state.take() else { return Ok(guard) };
            // What this thread has moved since it took the lock, the others have yet to hear of.
            if state.moved().0 != guard.before.0 {
                self.look_again.notify_all();
                self.wake_leader();
                guard.before = state.moved();
            }
            state.followers += 1;
            let left = deadline_ns.saturating_sub(sys::monotonic_ns());
            let mut state = state.wait(&self.look_again, Duration::from_nanos(left));
            state.followers -= 1;
            guard.state = Some(state);
            return Ok(guard);
        }
        // A sender that waits for room sleeps beside a leader, and may take its signals: both look
        // again, the leader because it is told.
        if T::TAKES_EVENTS && guard.has_events() {
            return Ok(self.give_way(guard));
        }
        let Some(sleep) = guard.prepare_to_sleep(room.map(Some)) else {
            return Ok(self.give_way(guard));
        };
        let leads = !guard.state().has_leader;
        let others = leads.then(|| (&self.bell, &self.word, self.word.value()));
        drop(guard.lead(leads));
        let began_ns = sys::monotonic_ns();
        let slept = sleep.sleep(self.descriptor.as_fd(), others, deadline_ns);
        let mut guard = self.lock();
        if leads {
            guard.state_mut().has_leader = false;
        }
        guard.after_sleep(slept, began_ns)?;
        guard.state_mut().attached.after_sleep();
        Ok(guard)
    }

    fn stop_progress(&self) {
        let progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(Progress { stop, thread }) = progress {
            stop.store(true, Ordering::Release);
            // It leads, follows, or is about to: it takes the lock before either, and looks.
            drop(self.lock());
            self.wake_leader();
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

/// How long a thread that polls waits for another to take the lock: a microsecond or so.
const LET_OTHERS_TURNS: u32 = 64;

/// What was found.
pub(crate) enum Look<R> {
    /// What was waited for.
    Found(R),
    /// Something moved, and there may be more at once.
    Again,
    /// Nothing; wait for an arrival.
    Nothing,
    /// Nothing; wait for room on this link, or an arrival.
    Room(LinkId),
}

impl<R> Look<R> {
    /// What was waited for, if it was found.
    pub(crate) fn found(self) -> Option<R> {
        match self {
            Self::Found(result) => Some(result),
            _ => None,
        }
    }

    pub(crate) fn map<S>(self, f: impl FnOnce(R) -> S) -> Look<S> {
        match self {
            Self::Found(result) => Look::Found(f(result)),
            Self::Again => Look::Again,
            Self::Nothing => Look::Nothing,
            Self::Room(link) => Look::Room(link),
        }
    }
}

/// How long whoever polls for tasks has found nothing.
#[cfg(feature = "tokio")]
#[derive(Default)]
pub(crate) struct Patience(Option<Backoff>);

/// What [`SharedNode::turn_in_event_loop`] says is next.
#[cfg(feature = "tokio")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NextTurn {
    /// Another turn, at once.
    Soon,
    /// Tasks may have been woken, and run first.
    LetRun,
    /// Other threads run first.
    LetOthers,
    /// Nothing until the descriptor is readable.
    Sleep {
        /// By the monotonic clock.
        since_ns: u64,
    },
}

/// Why waiting ended without a result.
#[derive(Debug)]
pub(crate) enum Waited {
    /// The time is over.
    TimedOut,
    /// This process was forked from the one that made the node.
    Forked(Forked),
    /// The system refused to wait.
    Os(io::Error),
}

impl Waited {
    pub(crate) fn into_send_error(self, unfinished: Option<Unfinished>) -> SendError {
        match self {
            Self::TimedOut => {
                let begun = unfinished.filter(|u| u.segmenter.packets() > 0);
                SendError::TimedOut { unfinished: begun.map(std::boxed::Box::new) }
            }
            Self::Forked(e) => e.into(),
            Self::Os(e) => SendError::Wait(Arc::new(e)),
        }
    }
}

impl Node {
    /// One try to go on with a message, as a look of [`SharedNode::wait_until`].
    pub(crate) fn look_to_send(
        &mut self,
        unfinished: &mut Unfinished,
        data: &[u8],
        metadata: &[u8],
    ) -> Look<Result<(), SendError>> {
        match self.advance_send(unfinished, data, metadata) {
            Ok(Advanced::Sent) => Look::Found(Ok(())),
            Ok(Advanced::Part) => Look::Again,
            Ok(Advanced::Blocked) => Look::Room(unfinished.link),
            Err(e) => Look::Found(Err(e)),
        }
    }
}

impl<T: Attached> SharedNode<T> {
    /// Polls until `look` has a result, spinning, yielding and sleeping as the settings say, at
    /// most for `timeout`. `look` runs under the lock, before the first turn and after each in which
    /// something may have changed; it names the link on which it waits for room, if it does. The lock is held while spinning,
    /// which costs nothing in a turn, and given up between two turns when another thread wants
    /// it; never while yielding or sleeping.
    #[inline]
    pub(crate) fn wait_until<R>(
        &self,
        timeout: Option<Duration>,
        mut look: impl FnMut(&mut Node, &mut T) -> Look<R>,
    ) -> Result<R, Waited> {
        self.inner.is_called();
        let mut guard = self.inner.lock_unless_forked().map_err(Waited::Forked)?;
        let (node, attached) = guard.parts();
        let room = match look(node, attached) {
            Look::Found(result) => {
                attached.after_look(node);
                return Ok(result);
            }
            Look::Room(link) => Some(link),
            Look::Again | Look::Nothing => None,
        };
        self.wait_on(guard, timeout, room, look)
    }

    /// The first look found nothing.
    #[inline(never)]
    fn wait_on<'a, R>(
        &'a self,
        mut guard: NodeGuard<'a, T>,
        timeout: Option<Duration>,
        mut room: Option<LinkId>,
        mut look: impl FnMut(&mut Node, &mut T) -> Look<R>,
    ) -> Result<R, Waited> {
        let mut backoff = Backoff::new(guard.config(), timeout);
        let mut turns_to_look = 0;
        loop {
            let (node, attached) = guard.parts();
            // Where a look has found nothing, and may now.
            if turns_to_look > 0 && room.is_none() && node.has_direct() {
                if let Look::Found(result) = look(node, attached) {
                    attached.after_look(node);
                    return Ok(result);
                }
                // It may have taken what makes the next look find something.
                turns_to_look = 0;
            }
            let taken = match node.poll() {
                Ok(taken) => taken,
                Err(forked) => return Err(Waited::Forked(forked)),
            };
            if taken > 0 {
                backoff.restart();
            }
            let changed = taken > 0 || node.has_events() || room.is_some() || turns_to_look == 0;
            if changed {
                attached.after_poll(node);
                turns_to_look = TURNS_PER_LOOK;
                room = match look(node, attached) {
                    Look::Found(result) => {
                        attached.after_look(node);
                        return Ok(result);
                    }
                    Look::Again => {
                        backoff.restart();
                        turns_to_look = 0;
                        if backoff.is_over() {
                            let (node, attached) = guard.parts();
                            // Whoever goes on in a task need not wait for anything.
                            node.stir();
                            attached.after_look(node);
                            return Err(Waited::TimedOut);
                        }
                        guard = self.inner.give_way(guard);
                        continue;
                    }
                    Look::Nothing => None,
                    Look::Room(link) => Some(link),
                };
            }
            turns_to_look -= 1;
            match guard.step(&mut backoff) {
                Step::Spin if !self.inner.is_wanted() => continue,
                Step::Spin => guard = self.inner.give_way(guard),
                Step::Yield => {
                    drop(guard);
                    std::thread::yield_now();
                    guard = self.lock();
                }
                Step::Sleep { deadline_ns } => {
                    // What the look took from the control plane may be what a task waits for.
                    let (node, attached) = guard.parts();
                    attached.after_look(node);
                    let deadline_ns = match room {
                        None => deadline_ns,
                        Some(_) => deadline_ns.min(sys::monotonic_ns() + ROOM_SLEEP_MAX_NS),
                    };
                    guard =
                        self.inner.sleep_in_call(guard, room, deadline_ns).map_err(Waited::Os)?;
                }
                Step::TimedOut => {
                    if let Some(link) = room {
                        guard.await_room(link);
                    }
                    let (node, attached) = guard.parts();
                    attached.after_look(node);
                    return Err(Waited::TimedOut);
                }
            }
            // Somebody else may have changed anything.
            turns_to_look = 0;
        }
    }

    /// What can be done at once, without all that waiting needs: with the lock, if that is free, and
    /// where nobody waits for what is done. `None`: `act` was not called, or said so, and
    /// [`wait_until`](Self::wait_until) goes on.
    #[inline(always)]
    pub(crate) fn at_once<R>(&self, act: impl FnOnce(&mut Node, &mut T) -> Option<R>) -> Option<R> {
        let mut state = self.inner.state.try_lock()?;
        let State { node, attached, has_leader, followers } = &mut *state;
        node.is_called();
        let others = *has_leader as usize | *followers | attached.waiting();
        if others == 0 { act(node, attached) } else { None }
    }

    /// The application receives what was there already.
    #[inline(always)]
    pub(crate) fn is_called(&self) {
        self.inner.is_called();
    }

    /// One step of whoever polls in an event loop on behalf of tasks: a turn, and what to do next.
    /// `sleeps` is asked, where nothing is left but to sleep, whether to; the node is armed then, and
    /// its descriptor becomes readable when anything comes.
    #[cfg(feature = "tokio")]
    pub(crate) fn turn_in_event_loop(
        &self,
        patience: &mut Patience,
        is_idle: impl FnOnce(&T) -> bool,
        falls_asleep: impl FnOnce(),
    ) -> Result<NextTurn, Forked> {
        let mut guard = self.inner.lock_unless_forked()?;
        let backoff = patience.0.get_or_insert_with(|| Backoff::new(guard.config(), None));
        let (node, attached) = guard.parts();
        let before = node.moved();
        node.poll()?;
        attached.after_poll(node);
        if node.moved() != before {
            backoff.restart();
            return Ok(NextTurn::LetRun);
        }
        let step = if is_idle(attached) { Step::TimedOut } else { node.step(backoff) };
        match step {
            Step::Spin => Ok(NextTurn::Soon),
            Step::Yield => Ok(NextTurn::LetOthers),
            Step::Sleep { .. } | Step::TimedOut => {
                if !node.prepare_to_wait()? {
                    // What was found is taken, and told, in the next turn.
                    return Ok(NextTurn::LetRun);
                }
                falls_asleep();
                Ok(NextTurn::Sleep { since_ns: sys::monotonic_ns() })
            }
        }
    }

    /// After a sleep that began at `since_ns` of the monotonic clock. `by_peer`: it was ended by what
    /// came, so that the next wait may learn from it.
    #[cfg(feature = "tokio")]
    pub(crate) fn woken_in_event_loop(
        &self,
        patience: &mut Patience,
        by_peer: bool,
        since_ns: u64,
    ) {
        if let Some(backoff) = &mut patience.0 {
            backoff.restart();
        }
        if !by_peer {
            return;
        }
        let mut guard = self.inner.lock();
        let spin_ns = guard.config().spin_ns;
        guard.parts().0.learnt.slept(sys::monotonic_ns() - since_ns, spin_ns);
    }

    /// Whether both are the same node.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// One turn, if no other thread is taking one; says how many packets it took.
    pub(crate) fn try_poll(&self) -> Result<usize, Forked> {
        self.inner.is_called();
        let Some(mut guard) = self.inner.try_lock() else {
            return if self.is_forked() { Err(Forked) } else { Ok(0) };
        };
        let (node, attached) = guard.parts();
        let taken = node.poll()?;
        attached.after_poll(node);
        Ok(taken)
    }

    /// Whether this is a child of the process that shared the node, where nothing can be done.
    pub(crate) fn is_forked(&self) -> bool {
        !self.inner.fork_guard.is_parent()
    }

    /// The node, for this thread alone until the guard is dropped. Panics in a forked child if
    /// another thread of the parent had it: it would wait for ever.
    #[inline]
    pub fn lock(&self) -> NodeGuard<'_, T> {
        self.inner.lock()
    }

    /// [`Node::send`], without holding the lock while waiting.
    pub fn send(
        &self,
        ticket: &Ticket,
        data: &[u8],
        metadata: &[u8],
        timeout: Option<Duration>,
    ) -> Result<(), SendError> {
        let mut outgoing = None;
        let sent = self.wait_until(timeout, |node, _| {
            let unfinished = match &mut outgoing {
                Some(unfinished) => unfinished,
                None => match node.begin_send(ticket, data, metadata) {
                    Ok(Begun::Sent) => return Look::Found(Ok(())),
                    Ok(Begun::Waits(unfinished)) => outgoing.insert(unfinished),
                    Err(e) => return Look::Found(Err(e)),
                },
            };
            node.look_to_send(unfinished, data, metadata)
        });
        match sent {
            Ok(result) => result,
            Err(waited) => Err(waited.into_send_error(outgoing)),
        }
    }

    /// [`Node::recv`], without holding the lock while waiting. Any number of threads may wait, for
    /// the same or for different queues.
    pub fn recv(
        &self,
        queue: QueueId,
        timeout: Option<Duration>,
    ) -> Result<Notification, RecvError> {
        let found = self.wait_until(timeout, |node, _| match node.pop(queue) {
            Ok(Some(notification)) => Look::Found(Ok(notification)),
            Ok(None) => Look::Nothing,
            Err(e) => Look::Found(Err(e)),
        });
        match found {
            Ok(result) => result.map_err(RecvError::from),
            Err(Waited::TimedOut) => Err(RecvError::TimedOut),
            Err(Waited::Forked(e)) => Err(e.into()),
            Err(Waited::Os(e)) => Err(RecvError::Wait(Arc::new(e))),
        }
    }

    /// Starts the progress thread, unless there is one: it polls the node, so that bytes are
    /// deposited and queued messages leave while the application makes no calls. It spins, yields
    /// and sleeps like any receiver; messages sent without the flag `WAKE`, which wake nobody, are
    /// deposited within a second. With a watchdog (`watchdog_ms`), packets are discarded when
    /// the application makes no call that receives, nor [`Node::reset_watchdog`], and does not wait
    /// (Hamlyn 2.8).
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
                let (turn, attached) = node.parts();
                let taken = turn.poll_for_application(inner.was_called());
                attached.after_poll(turn);
                match taken {
                    Ok(0) => {}
                    Ok(_) => {
                        backoff.restart();
                        drop(node);
                        inner.let_others();
                        continue;
                    }
                    Err(_) => return,
                }
                match node.step(&mut backoff) {
                    Step::Spin => {
                        drop(node);
                        inner.let_others();
                    }
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
            Ok(inner) => Ok(inner.state.into_inner().node),
            Err(inner) => Err(Self { users: Arc::new(Users(inner.clone())), inner }),
        }
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use crate::config::WaitMode;
    use std::format;
    use std::vec::Vec;

    #[test]
    fn what_moves_all_the_time_makes_no_time_limit_longer() {
        let dir = std::env::temp_dir().join(format!("hamlyn-again-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        for mode in [WaitMode::Adaptive, WaitMode::Polled, WaitMode::Blocking] {
            let config = crate::config::Config::from_env().unwrap().dir(&dir).wait_mode(mode);
            let shared = Node::with_config(config).unwrap().share().unwrap();
            let mut looks = 0u64;
            let waited = shared.wait_until(Some(Duration::from_millis(5)), |_, _| {
                looks += 1;
                assert!(looks < 20_000_000, "the clock is not looked at");
                Look::<()>::Again
            });
            assert!(matches!(waited, Err(Waited::TimedOut)), "{waited:?}");
        }
        let _ = std::fs::remove_dir_all(&dir);
    }

    #[test]
    fn an_event_that_the_application_does_not_take_keeps_nobody_awake() {
        use crate::control::{Accept, Access};
        let dir = tempfile::tempdir().unwrap();
        let config = crate::config::Config::default().dir(dir.path());
        let config = config.shared_dir(dir.path().join("shared")).wait_mode(WaitMode::Blocking);
        let mut node = Node::with_config(config.clone()).unwrap();
        let queue = node.notification_queue(1).unwrap();
        node.serve("x", Access::SameUser, Accept::Automatic(Vec::new())).unwrap();
        let shared = node.share().unwrap();
        let mut other = Node::with_config(config).unwrap();
        let limit = Duration::from_secs(20);
        let _link = std::thread::scope(|scope| {
            let connected = scope.spawn(|| other.connect("x", b"", limit).unwrap());
            while !shared.lock().has_events() {
                let _ = shared.recv(queue, Some(Duration::from_millis(1)));
            }
            connected.join().unwrap()
        });
        let asleep = || {
            let counters = shared.lock().counters();
            counters.iter().find(|row| row.0 == "sleeps").unwrap().1
        };
        let (before, waits) = (asleep(), 10);
        for _ in 0..waits {
            let _ = shared.recv(queue, Some(Duration::from_millis(1)));
        }
        assert!(shared.lock().has_events() && asleep() >= before + waits);
    }

    #[test]
    fn a_look_that_has_taken_a_message_and_asks_for_another_look_gets_it() {
        let dir = tempfile::tempdir().unwrap();
        // Asleep as soon as the clock is looked at, which is before the next look that is due.
        let config =
            crate::config::Config::default().dir(dir.path()).spin_ns(0u64).yield_count(0u32);
        let mut node = Node::with_config(config).unwrap();
        let area = node.message_area(64).unwrap();
        let queue = node.notification_queue(64).unwrap();
        let slot = node.slot(crate::interface::SlotConfig::new(area, queue)).unwrap();
        let ticket = node.fast_ticket(slot).unwrap();
        let send = |node: &mut Node| node.send_fast(&ticket, &[1], 0, None).unwrap();
        // The ring from which the last message came is the first that is looked at.
        for _ in 0..4 {
            send(&mut node);
            node.recv(queue, None).unwrap();
        }
        let shared = node.share().unwrap();
        let (mut looks, mut has_taken) = (0, false);
        let found = shared.wait_until(Some(Duration::from_secs(20)), |node, ()| {
            looks += 1;
            match (looks, has_taken) {
                // The one after the first turn: a message comes just then.
                (2, _) => send(node),
                (_, true) => return Look::Found(()),
                _ if node.take_next(queue).is_some() => {
                    has_taken = true;
                    return Look::Again;
                }
                _ => {}
            }
            Look::Nothing
        });
        assert!(found.is_ok() && has_taken, "{found:?} after {looks} looks");
        let sleeps = shared.lock().counters.snapshot();
        assert!(sleeps.contains(&("sleeps", 0)), "it slept on what it had taken");
    }

    #[test]
    fn each_call_that_receives_and_each_wait_says_that_the_application_lives() {
        use crate::interface::Discard;
        let dir = tempfile::tempdir().unwrap();
        let config = crate::config::Config::default().dir(dir.path()).watchdog_ms(1u32);
        let config = config.shared_dir(dir.path().join("shared")).wait_mode(WaitMode::Blocking);
        let mut node = Node::with_config(config).unwrap();
        let queue = node.notification_queue(1).unwrap();
        node.set_watched(true);
        let shared = node.share().unwrap();
        let inner = &shared.inner;
        // What the progress thread does.
        let progress = || {
            let mut guard = inner.lock();
            guard.poll_for_application(inner.was_called()).unwrap();
            guard.interface.discarding()
        };
        let silence = || {
            progress();
            std::thread::sleep(Duration::from_millis(3));
            assert_eq!(progress(), Some(Discard::Watchdog));
        };
        // Nothing but the call comes between its time and the look.
        let lives = |what: &str, call: &dyn Fn()| {
            silence();
            call();
            let guard = inner.lock();
            let is_known = guard.interface.discarding().is_none();
            drop(guard);
            let is_called = inner.called.load(Ordering::Relaxed);
            assert!(is_known || is_called, "{what}");
        };
        let now = Some(Duration::ZERO);
        lives("recv", &|| drop(shared.recv(queue, now)));
        lives("recv of the node", &|| drop(shared.lock().recv(queue, now)));
        lives("try_recv", &|| drop(shared.lock().try_recv(queue)));
        lives("pop", &|| assert!(shared.lock().pop(queue).is_ok()));
        lives("poll", &|| assert!(shared.lock().poll().is_ok()));
        lives("wait", &|| drop(shared.lock().wait(now)));
        lives("recv_any", &|| drop(shared.lock().recv_any(&[queue], now)));
        lives("reset_watchdog", &|| shared.lock().reset_watchdog());
        // One that waits is not silent, however long, in an event loop and in a call.
        silence();
        while !shared.lock().prepare_to_wait().unwrap() {}
        std::thread::sleep(Duration::from_millis(3));
        assert_eq!(progress(), None);
        inner.lock().waits_outside = false;
        silence();
        std::thread::scope(|scope| {
            let asleep = scope.spawn(|| shared.recv(queue, Some(Duration::from_secs(20))));
            while inner.asleep.load(Ordering::Relaxed) == 0 {
                std::thread::yield_now();
            }
            std::thread::sleep(Duration::from_millis(3));
            assert_eq!(progress(), None);
            assert!(!asleep.is_finished());
            inner.lock().remove_queue(queue).unwrap();
            inner.lock().stir();
            inner.look_again.notify_all();
            inner.wake_leader();
            drop(asleep.join());
        });
    }

    #[test]
    fn a_thread_that_follows_tells_first_what_it_has_moved() {
        let dir = std::env::temp_dir().join(format!("hamlyn-follow-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let config = crate::config::Config::from_env().unwrap().dir(&dir);
        let shared = Node::with_config(config).unwrap().share().unwrap();
        let inner = &shared.inner;
        let second = 1_000_000_000;
        std::thread::scope(|scope| {
            let leading = scope.spawn(|| {
                drop(inner.sleep(inner.lock(), None, sys::monotonic_ns() + 20 * second).unwrap());
                sys::monotonic_ns()
            });
            while !inner.lock().state().has_leader {
                std::thread::yield_now();
            }
            let mut guard = inner.lock();
            // Stands for a packet that this thread took, and another waits for.
            guard.stir();
            let moved = sys::monotonic_ns();
            drop(inner.sleep(guard, None, moved + 15 * second).unwrap());
            assert!(leading.join().unwrap() - moved < 10 * second, "the leader slept on");
        });
        drop(shared);
        let _ = std::fs::remove_dir_all(&dir);
    }
}
