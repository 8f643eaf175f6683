//! An end point of one thread at a time, for any number of threads: for languages whose programs
//! hand objects to any thread.
//!
//! ```text
//!   a call      lock -> T -> unlock -> work owed meanwhile is done
//!   a receive   lock, look for KEEP, unlock;  wait for the manager;  lock, look ..
//!               one thread at a time waits, since an arrival would wake all of them
//! ```
//! Never: a waiting receive keeps others from the end point for longer than `KEEP`, since the
//! sender may be waiting for another thread's release; a [`Probe`] waits for the lock, whose holder
//! may be waiting for the node, which is locked there.

use super::deadline::Deadline;
use super::{EndPoint, Manager, ReceiveError};
use crate::node::Node;
use crate::os::thread;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicBool, Ordering, fence};
use core::time::Duration;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, TryLockError};

/// How long a receive keeps the end point from other threads while nothing is there: as long as
/// the library spins at most, unless configured.
const KEEP: Duration = Duration::from_micros(50);

/// An end point that belongs to one thread at a time, behind a lock, for any number of threads. A
/// panic in a call leaves it as it was between two steps of that call, and does not poison the
/// lock.
///
/// ```
/// # let dir = std::env::temp_dir().join(format!("hamlyn-doc-exclusive-{}", std::process::id()));
/// # let config = hamlyn::Config::from_env()?.dir(&dir);
///
/// use hamlyn::protocol::{Exclusive, Manager, TaggedConfig, TaggedReceiver};
/// use std::time::Duration;
///
/// let manager = Manager::with_config(config)?;
/// let receiver = TaggedReceiver::new(&manager, TaggedConfig::new(64))?;
/// let receiver = Exclusive::new(receiver);
/// std::thread::scope(|scope| {
///     for _ in 0..2 {
///         scope.spawn(|| receiver.lock().get_tag(Some(Duration::ZERO)).is_err());
///     }
/// });
/// # drop((receiver, manager));
/// # std::fs::remove_dir_all(&dir).ok();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Exclusive<T> {
    state: Mutex<T>,
    /// Whether a thread waits for an arrival.
    is_waited_for: Mutex<bool>,
    waited: Condvar,
    /// Does the owed work.
    settle: Option<fn(&mut T)>,
    is_owed: AtomicBool,
}

/// The end point, for this thread alone.
pub struct ExclusiveGuard<'a, T> {
    of: &'a Exclusive<T>,
    /// `None` only while this is dropped.
    state: Option<MutexGuard<'a, T>>,
}

impl<T> Deref for ExclusiveGuard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        self.state.as_ref().expect("taken only while dropping")
    }
}

impl<T> DerefMut for ExclusiveGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        self.state.as_mut().expect("taken only while dropping")
    }
}

impl<T> Drop for ExclusiveGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        drop(self.state.take());
        self.of.settle();
    }
}

/// An end point for which a thread waits, and that other threads may be using: for
/// [`Manager::wait_any`].
pub struct Probe<'a, T, F> {
    of: &'a Exclusive<T>,
    manager: &'a Manager,
    is_ready: F,
}

impl<T, F: Fn(&T, &Node) -> bool> EndPoint for Probe<'_, T, F> {
    /// Ready also while another thread has it, since that thread's leftovers must be checked.
    fn is_ready_in(&self, node: &Node) -> bool {
        self.of.try_state().is_none_or(|state| (self.is_ready)(&state, node))
    }

    fn manager(&self) -> &Manager {
        self.manager
    }
}

/// The one thread that waits for an arrival.
struct ExclusiveWait<'a, T>(&'a Exclusive<T>);

impl<T> Drop for ExclusiveWait<'_, T> {
    fn drop(&mut self) {
        *self.0.is_waited_for.lock().unwrap_or_else(PoisonError::into_inner) = false;
        self.0.waited.notify_one();
    }
}

impl<T> Exclusive<T> {
    /// Makes one without owed work.
    pub fn new(state: T) -> Self {
        Self::settled_by(state, None)
    }

    /// Makes one with owed work ([`owe`](Self::owe)), which `settle` does.
    pub fn settled_by(state: T, settle: Option<fn(&mut T)>) -> Self {
        Self {
            state: Mutex::new(state),
            is_waited_for: Mutex::new(false),
            waited: Condvar::new(),
            settle,
            is_owed: AtomicBool::new(false),
        }
    }

    /// The end point, without a lock.
    pub fn get_mut(&mut self) -> &mut T {
        self.state.get_mut().unwrap_or_else(PoisonError::into_inner)
    }

    /// The end point; waits as long as other threads have it.
    pub fn lock(&self) -> ExclusiveGuard<'_, T> {
        self.held(self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The end point, unless another thread has it.
    #[inline]
    pub fn try_lock(&self) -> Option<ExclusiveGuard<'_, T>> {
        self.try_state().map(|state| self.held(state))
    }

    /// The end point; waits at most `timeout` (`None`: without limit) while other threads have it.
    /// `None`: one had it all the time.
    #[inline]
    pub fn lock_within(&self, timeout: Option<Duration>) -> Option<ExclusiveGuard<'_, T>> {
        match self.try_lock() {
            None => self.lock_by(Deadline::new(timeout)),
            held => held,
        }
    }

    #[cold]
    fn lock_by(&self, deadline: Deadline) -> Option<ExclusiveGuard<'_, T>> {
        if deadline.left().is_none() {
            return Some(self.lock());
        }
        for round in 0u32.. {
            if let Some(held) = self.try_lock() {
                return Some(held);
            }
            if deadline.left().is_some_and(|left| left.is_zero()) {
                break;
            }
            match round {
                0..100 => core::hint::spin_loop(),
                100..200 => thread::yield_now(),
                _ => thread::sleep(Duration::from_micros(50)),
            }
        }
        None
    }

    #[inline]
    fn held<'a>(&'a self, state: MutexGuard<'a, T>) -> ExclusiveGuard<'a, T> {
        ExclusiveGuard { of: self, state: Some(state) }
    }

    #[inline]
    fn try_state(&self) -> Option<MutexGuard<'_, T>> {
        match self.state.try_lock() {
            Ok(state) => Some(state),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Notes work to be done as soon as the end point is free. The next [`settle`](Self::settle)
    /// does it, or the current or next holder of the end point.
    pub fn owe(&self) {
        self.is_owed.store(true, Ordering::Release);
    }

    /// Does the owed work, unless another thread has the end point, which does it afterwards. Never
    /// waits.
    #[inline]
    pub fn settle(&self) {
        let Some(settle) = self.settle else { return };
        // Either the thread that owes finds the lock free, or the one that gives it back finds the
        // owed work: `is_owed` is written before the lock is tried, and read after it is given
        // back.
        fence(Ordering::SeqCst);
        while self.is_owed.load(Ordering::Acquire) {
            let Some(mut state) = self.try_state() else { return };
            self.is_owed.swap(false, Ordering::AcqRel);
            settle(&mut state);
            drop(state);
            fence(Ordering::SeqCst);
        }
    }

    /// For [`Manager::wait_any`], which may be called while other threads use the end point;
    /// `is_ready` tells whether a receive would return at once.
    pub fn probe<'a, F: Fn(&T, &Node) -> bool>(
        &'a self,
        manager: &'a Manager,
        is_ready: F,
    ) -> Probe<'a, T, F> {
        Probe { of: self, manager, is_ready }
    }

    /// Receives with `take`, waiting at most `timeout` (`None`: without limit). `take` waits no
    /// longer than its argument, and returns `None` if there was nothing. Meanwhile other threads
    /// can use the end point. `is_ready` tells whether `take` would find something. `None`: the
    /// time limit has passed, and nothing was taken; errors are those of `take`, and of waiting.
    ///
    /// ```
    /// # let dir = std::env::temp_dir().join(format!("hamlyn-doc-exclusive-receive-{}", std::process::id()));
    /// use hamlyn::protocol::{Exclusive, Manager, ReceiveError, TaggedConfig, TaggedReceiver};
    /// use hamlyn::protocol::{EndPoint, TaggedSender};
    /// use std::time::Duration;
    ///
    /// # let limit = Some(Duration::from_secs(10));
    /// # let config = hamlyn::Config::from_env()?.dir(&dir);
    /// # let manager = Manager::with_config(config.clone())?;
    /// # manager.start_progress()?;
    /// let receiver = TaggedReceiver::new(&manager, TaggedConfig::new(64))?;
    /// let seed = receiver.seed()?;
    /// // The next holder does the owed work: here it prints a line.
    /// let receiver = Exclusive::settled_by(receiver, Some(|it| println!("{}", it.senders())));
    /// TaggedSender::grow(&Manager::with_config(config)?, &seed, limit)?.send(0, b"hi", 5, limit)?;
    /// let is_ready = |receiver: &TaggedReceiver, node: &_| receiver.is_ready_in(node);
    /// manager.wait_any(&[&receiver.probe(&manager, is_ready)], limit)?;
    /// let tag = receiver.receive(&manager, limit, is_ready, |receiver, keep| {
    ///     match receiver.get_tag(Some(keep)) {
    ///         Err(ReceiveError::TimedOut) => Ok(None),
    ///         tag => tag.map(Some),
    ///     }
    /// })?;
    /// assert_eq!(tag.map(|tag| tag.tag), Some(5));
    /// receiver.owe();
    /// receiver.settle();
    /// assert!(receiver.try_lock().is_some() && receiver.lock_within(limit).is_some());
    /// # std::fs::remove_dir_all(&dir).ok();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn receive<R, E: From<ReceiveError>>(
        &self,
        manager: &Manager,
        timeout: Option<Duration>,
        is_ready: impl Fn(&T, &Node) -> bool,
        mut take: impl FnMut(&mut T, Duration) -> Result<Option<R>, E>,
    ) -> Result<Option<R>, E> {
        if let Some(mut held) = self.try_lock() {
            let found = take(&mut held, timeout.map_or(KEEP, |timeout| timeout.min(KEEP)))?;
            if found.is_some() || timeout.is_some_and(|timeout| timeout.is_zero()) {
                return Ok(found);
            }
        }
        self.receive_by(manager, Deadline::new(timeout), is_ready, take)
    }

    #[cold]
    fn receive_by<R, E: From<ReceiveError>>(
        &self,
        manager: &Manager,
        deadline: Deadline,
        is_ready: impl Fn(&T, &Node) -> bool,
        mut take: impl FnMut(&mut T, Duration) -> Result<Option<R>, E>,
    ) -> Result<Option<R>, E> {
        let Some(_waiting) = self.wait_alone(deadline) else { return Ok(None) };
        loop {
            let Some(mut held) = self.lock_by(deadline) else { return Ok(None) };
            let keep = deadline.left().map_or(KEEP, |left| left.min(KEEP));
            let found = take(&mut held, keep)?;
            drop(held);
            let left = deadline.left();
            if found.is_some() || left.is_some_and(|left| left.is_zero()) {
                return Ok(found);
            }
            match manager.wait_any(&[&self.probe(manager, &is_ready)], left) {
                Ok(_) => {}
                Err(ReceiveError::TimedOut) => return Ok(None),
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// Waits until no other thread waits for an arrival; `None`: one did until the deadline.
    fn wait_alone(&self, deadline: Deadline) -> Option<ExclusiveWait<'_, T>> {
        let mut is_waited_for = self.is_waited_for.lock().unwrap_or_else(PoisonError::into_inner);
        while *is_waited_for {
            is_waited_for = match deadline.left() {
                None => self.waited.wait(is_waited_for).unwrap_or_else(PoisonError::into_inner),
                Some(left) if left.is_zero() => return None,
                Some(left) => {
                    let woken = self.waited.wait_timeout(is_waited_for, left);
                    woken.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        *is_waited_for = true;
        Some(ExclusiveWait(self))
    }
}
