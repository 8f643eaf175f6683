//! A node used by several threads: the lock around it, and the sleepers on it.
//!
//! ```text
//!   thread --- lock --- poll, take --- unlock        (any number, in turn)
//!   nothing there:  no thread sleeps on the node  -> lead: arm, unlock, sleep on its descriptor
//!                   a thread sleeps on it already -> follow: wait on the condition variable
//! ```
//! One lock is around the node, and a sleeping thread does not hold it. Of the threads that wait,
//! one leads: it sleeps on the node's own words or descriptor, and on a word or a bell for the
//! other threads. [`engine::threads`](crate::engine::threads) decides which thread leads, and which
//! threads a dropped guard wakes. Threads that must not wait for one another have a node each.
//!
//! - `look.rs`: a thread takes turns until its condition holds
//! - `progress.rs`: the progress thread
//! - `event_loop.rs`: turns on behalf of tasks

#[cfg(feature = "tokio")]
mod event_loop;
mod look;
mod progress;

#[cfg(feature = "tokio")]
pub(crate) use event_loop::{NextTurn, Patience};

use super::send::BegunSend;
use super::wait::{Look, WaitError};
use super::{Forked, Node, NodeReceiveError, NodeSendError};
use crate::engine::sleep::Others;
use crate::engine::threads::{Asleep, EventProgress, SleepPlace, Threads, ThreadsToWake};
use crate::interface::{LinkId, Notification, QueueId};
use crate::os::call::OfCall;
use crate::os::descriptor::Descriptor;
use crate::os::lock::{Lock, LockGuard};
use crate::os::memory::ForkGuard;
use crate::os::sys;
use crate::wire::Ticket;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use core::time::Duration;
use progress::Progress;
use std::io;
use std::os::fd::AsFd;
use std::sync::{Arc, Condvar, Mutex};

/// A node that several threads use. Cloning shares it; with the last clone the progress thread
/// stops and the node is dropped. `T` is the state of a layer above, under the same lock: a
/// [`Manager`](crate::protocol::Manager)'s.
pub(crate) struct SharedNode<T: Attached = ()> {
    inner: Arc<SharedInner<T>>,
    /// The part that the progress thread does not have.
    users: Arc<Users<T>>,
}

impl<T: Attached> Clone for SharedNode<T> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), users: self.users.clone() }
    }
}

impl<T: Attached> core::fmt::Debug for SharedNode<T> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("SharedNode").finish_non_exhaustive()
    }
}

/// The state of a layer above under a node's lock.
pub(crate) trait Attached: Send + 'static {
    /// Whether [`after_poll`](Self::after_poll) takes the node's events. If not, an event that
    /// waits for the application keeps no thread from sleeping.
    const TAKES_EVENTS: bool = true;

    /// Called after a turn of any thread; must be quick.
    fn after_poll(&mut self, node: &mut Node);

    /// Called after a thread's wait has ended; it may have changed the conditions of others.
    #[inline]
    fn after_look(&mut self, _: &mut Node) {}

    /// Called after a thread has slept and taken the waiting signals: sleepers without a thread
    /// have to arm again.
    #[inline]
    fn after_sleep(&mut self) {}

    /// The number of waiters without a thread, which [`after_look`](Self::after_look) wakes.
    #[inline]
    fn waiting(&self) -> usize {
        0
    }
}

impl Attached for () {
    const TAKES_EVENTS: bool = false;

    #[inline]
    fn after_poll(&mut self, _: &mut Node) {}
}

/// Stops the progress thread when the last user goes.
struct Users<T: Attached>(Arc<SharedInner<T>>);

impl<T: Attached> Drop for Users<T> {
    fn drop(&mut self) {
        // The thread is the parent's.
        if !self.0.fork_guard.is_parent() {
            return;
        }
        self.0.stop_progress();
    }
}

struct SharedInner<T> {
    state: Lock<SharedState<T>>,
    /// Threads that wait for the lock: a thread that polls with the lock held lets them have it
    /// between two turns.
    wanted: AtomicU32,
    /// Followers wait here.
    look_again: Condvar,
    /// The node's.
    descriptor: Descriptor,
    /// Wake the leader, which sleeps on the node's descriptor, or on words.
    bell: sys::Bell,
    word: sys::WakeWord,
    progress: Mutex<Option<Progress>>,
    /// The application has made a receiving call since the progress thread's last check.
    called: AtomicBool,
    /// Threads that sleep in calls of the application.
    asleep: AtomicU32,
    /// Can be read without the lock, which in a child belongs to a thread that is not there.
    fork_guard: ForkGuard,
}

struct SharedState<T> {
    node: Node,
    attached: T,
    threads: Threads,
}

/// The node, for one thread alone until this is dropped.
pub(crate) struct NodeGuard<'a, T = ()> {
    state: Option<LockGuard<'a, SharedState<T>>>,
    inner: &'a SharedInner<T>,
    /// The earlier value of [`SharedState::moved`], if other threads waited then.
    before: EventProgress,
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
    /// The thread falls asleep; before that, other threads hear of the changes under its lock.
    fn fall_asleep(&mut self, for_room: bool) -> Asleep {
        let before = self.before;
        let state = self.state_mut();
        let (moved, own_waits) = (state.moved(), state.node.sends_to_itself());
        let (asleep, told) = state.threads.fall_asleep(for_room, before, moved, own_waits);
        self.before = moved;
        self.inner.tell(told);
        asleep
    }

    /// The node and the state attached to it.
    #[inline]
    pub(crate) fn parts(&mut self) -> (&mut Node, &mut T) {
        let state = self.state_mut();
        (&mut state.node, &mut state.attached)
    }

    #[inline]
    fn state(&self) -> &SharedState<T> {
        self.state.as_ref().expect("taken only while dropping or following")
    }

    #[inline]
    fn state_mut(&mut self) -> &mut SharedState<T> {
        self.state.as_mut().expect("taken only while dropping or following")
    }
}

impl<T> SharedState<T> {
    /// No other thread waits, so none has to be woken. This holds while the lock is held.
    #[inline]
    fn is_alone(&self) -> bool {
        self.threads.is_alone()
    }

    #[inline]
    fn moved(&self) -> EventProgress {
        EventProgress { arrived: self.node.moved(), queued: self.node.queued() }
    }
}

impl<T> Drop for NodeGuard<'_, T> {
    #[inline]
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
    #[cfg(test)]
    pub(crate) fn share(self) -> io::Result<SharedNode> {
        self.share_with(())
    }

    /// [`share`](Self::share), with the state of a layer above under the same lock.
    pub(crate) fn share_with<T: Attached>(self, attached: T) -> io::Result<SharedNode<T>> {
        let descriptor =
            self.as_fd().try_clone_to_owned().of_call("fcntl with F_DUPFD_CLOEXEC")?.into();
        let state = SharedState { node: self, attached, threads: Threads::default() };
        let inner = Arc::new(SharedInner {
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

impl<T> SharedInner<T> {
    /// Gives the lock back; wakes waiting threads if anything moved since `before`.
    #[cold]
    #[inline(never)]
    fn tell_others(&self, state: LockGuard<'_, SharedState<T>>, before: EventProgress) {
        let told = state.threads.told(before, state.moved(), state.node.sends_to_itself());
        drop(state);
        self.tell(told);
    }

    fn tell(&self, told: ThreadsToWake) {
        if told.followers {
            self.look_again.notify_all();
        }
        if told.leader {
            self.wake_leader();
        }
    }

    /// Wakes the leader.
    fn wake_leader(&self) {
        // A thread that sleeps on words, or is about to, has read the value; any other watches the
        // bell.
        if !self.word.wake() {
            self.bell.ring();
        }
    }
}

impl<T: Attached> SharedInner<T> {
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

    #[inline]
    fn guard<'a>(&'a self, state: LockGuard<'a, SharedState<T>>) -> NodeGuard<'a, T> {
        let before = if state.is_alone() { EventProgress::default() } else { state.moved() };
        NodeGuard { state: Some(state), inner: self, before }
    }

    #[inline]
    fn try_lock(&self) -> Option<NodeGuard<'_, T>> {
        Some(self.guard(self.state.try_lock()?))
    }

    /// The lock, or at once an error in a forked child if another thread had it.
    #[inline]
    fn lock_unless_forked(&self) -> Result<NodeGuard<'_, T>, Forked> {
        match self.try_lock() {
            Some(guard) => Ok(guard),
            None if !self.fork_guard.is_parent() => Err(Forked),
            None => Ok(self.lock()),
        }
    }

    #[cold]
    fn lock_contended(&self) -> LockGuard<'_, SharedState<T>> {
        // It would wait for a thread that is not in this process.
        assert!(self.fork_guard.is_parent(), "{Forked}");
        self.wanted.fetch_add(1, Ordering::Relaxed);
        let state = self.state.lock();
        self.wanted.fetch_sub(1, Ordering::Relaxed);
        state
    }

    /// Whether another thread waits for the lock.
    #[inline]
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

    #[inline]
    fn is_called(&self) {
        // Threads that find it set share the line.
        if !self.called.load(Ordering::Relaxed) {
            self.called.store(true, Ordering::Relaxed);
        }
    }

    /// Whether the application has made a call since the last check.
    fn was_called(&self) -> bool {
        self.called.swap(false, Ordering::Relaxed) || self.asleep.load(Ordering::Relaxed) > 0
    }

    /// [`sleep`](Self::sleep) of a thread of the application, which counts as alive meanwhile.
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
        let for_room = room.is_some();
        if guard.state().threads.place(for_room) == SleepPlace::Follows {
            let asleep = guard.fall_asleep(for_room);
            let Some(state) = guard.state.take() else { return Ok(guard) };
            let left = deadline_ns.saturating_sub(sys::monotonic_ns());
            let mut state = state.wait(&self.look_again, Duration::from_nanos(left));
            state.threads.wake(asleep);
            guard.state = Some(state);
            return Ok(guard);
        }
        // A sender that waits for room sleeps beside a leader, and may take its signals: both look
        // again, the leader because it is woken.
        if T::TAKES_EVENTS && guard.has_events() {
            return Ok(self.give_way(guard));
        }
        let Some(sleep) = guard.prepare_to_sleep(room, Others::Any) else {
            return Ok(self.give_way(guard));
        };
        let asleep = guard.fall_asleep(for_room);
        let leads = asleep.place() == SleepPlace::Leads;
        let others = leads.then(|| (&self.bell, &self.word, self.word.value()));
        drop(guard);
        let began_ns = sys::monotonic_ns();
        let slept = sleep.sleep(self.descriptor.as_fd(), others, deadline_ns);
        let mut guard = self.lock();
        guard.state_mut().threads.wake(asleep);
        guard.after_sleep(slept, began_ns, Others::Any)?;
        guard.state_mut().attached.after_sleep();
        Ok(guard)
    }
}

/// How long a thread that polls waits for another to take the lock: a microsecond or so.
const LET_OTHERS_TURNS: u32 = 64;

impl<T: Attached> SharedNode<T> {
    /// The application received a message that was there already.
    #[inline]
    pub(crate) fn is_called(&self) {
        self.inner.is_called();
    }

    /// Whether both are the same node.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// One turn, if no other thread is taking one; returns how many packets it took.
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

    /// Whether this is a child of the process that shared the node; then the node cannot be used.
    pub(crate) fn is_forked(&self) -> bool {
        !self.inner.fork_guard.is_parent()
    }

    /// The node, for this thread alone until the guard is dropped. Panics in a forked child if
    /// another thread of the parent had it: it would wait for ever.
    #[inline]
    pub fn lock(&self) -> NodeGuard<'_, T> {
        self.inner.lock()
    }

    /// [`Node::send`], and with a `word` [`Node::send_fast`], without holding the lock while waiting.
    #[inline]
    pub fn send(
        &self,
        ticket: &Ticket,
        data: &[u8],
        metadata: &[u8],
        word: u32,
        timeout: Option<Duration>,
    ) -> Result<(), NodeSendError> {
        let line = |node: &mut Node| node.push_again(ticket, data, metadata, word);
        if self.at_once(|node, _| line(node).then_some(())).is_some() {
            return Ok(());
        }
        self.send_slowly(ticket, data, metadata, word, timeout)
    }

    #[inline(never)]
    fn send_slowly(
        &self,
        ticket: &Ticket,
        data: &[u8],
        metadata: &[u8],
        word: u32,
        timeout: Option<Duration>,
    ) -> Result<(), NodeSendError> {
        let mut outgoing = None;
        let sent = self.wait_until(timeout, |node, _| {
            let unfinished = match &mut outgoing {
                Some(unfinished) => unfinished,
                None => match node.begin_send(ticket, data, metadata, word) {
                    Ok(BegunSend::Sent) => return Look::Found(Ok(())),
                    Ok(BegunSend::Waits(unfinished)) => outgoing.insert(unfinished),
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
    #[inline]
    pub fn recv(
        &self,
        queue: QueueId,
        timeout: Option<Duration>,
    ) -> Result<Notification, NodeReceiveError> {
        match self.at_once(|node, _| node.take_next(queue)) {
            Some(notification) => Ok(notification),
            None => self.recv_slowly(queue, timeout),
        }
    }

    #[inline(never)]
    fn recv_slowly(
        &self,
        queue: QueueId,
        timeout: Option<Duration>,
    ) -> Result<Notification, NodeReceiveError> {
        let found = self.wait_until(timeout, |node, _| match node.take_direct(queue, None) {
            Some(message) => Look::Found(Ok(message.notification)),
            None => match node.pop(queue) {
                Ok(Some(notification)) => Look::Found(Ok(notification)),
                Ok(None) => Look::Nothing,
                Err(e) => Look::Found(Err(e)),
            },
        });
        match found {
            Ok(result) => result.map_err(NodeReceiveError::from),
            Err(WaitError::TimedOut) => Err(NodeReceiveError::TimedOut),
            Err(WaitError::Forked(e)) => Err(e.into()),
            Err(WaitError::Os(e)) => Err(NodeReceiveError::Wait(Arc::new(e))),
        }
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

    // The thread that took the lock gives it back.
    static_assertions::assert_not_impl_any!(NodeGuard<'static>: Send);
    static_assertions::assert_not_impl_any!(NodeGuard<'static, core::cell::Cell<u8>>: Send, Sync);

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
            assert!(matches!(waited, Err(WaitError::TimedOut)), "{waited:?}");
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
            let connected = scope.spawn(|| other.connect("x", b"", Some(limit)).unwrap());
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
        // Asleep as soon as the clock is read, which is before the next due look.
        let config =
            crate::config::Config::default().dir(dir.path()).spin_ns(0u64).yield_count(0u32);
        let mut node = Node::with_config(config).unwrap();
        let area = node.message_area(64).unwrap();
        let queue = node.notification_queue(64).unwrap();
        let slot = node.slot(crate::interface::SlotConfig::new(area, queue)).unwrap();
        let ticket = node.fast_ticket(slot).unwrap();
        let send = |node: &mut Node| node.send_fast(&ticket, &[1], 0, None).unwrap();
        // The ring of the last message is looked at first.
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
        // The steps of the progress thread.
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
        // No other call comes between its time and the look.
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
        // A waiting application is not silent, for any time, in an event loop and in a call.
        silence();
        while !shared.lock().prepare_to_wait().unwrap() {}
        std::thread::sleep(Duration::from_millis(3));
        assert_eq!(progress(), None);
        inner.lock().sleeping.waits_outside = false;
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
            inner.lock().wake();
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
            while !inner.lock().state().threads.has_leader() {
                std::thread::yield_now();
            }
            let mut guard = inner.lock();
            // Stands for a packet that this thread took, and that another waits for.
            guard.wake();
            let moved = sys::monotonic_ns();
            drop(inner.sleep(guard, None, moved + 15 * second).unwrap());
            assert!(leading.join().unwrap() - moved < 10 * second, "the leader slept on");
        });
        drop(shared);
        let _ = std::fs::remove_dir_all(&dir);
    }
}
