//! Time limits of a call, and a lock that keeps to them.
//!
//! ```text
//!   Within: a deadline, and its wording in an error
//!   Turn:   take(within) --> TurnGuard, until it is dropped; or the time limit passes
//! ```
//! Never: a call waits beyond its time limit because another thread has the lock.

use crate::os::sys::monotonic_ns;
use core::ops::{Deref, DerefMut};
use core::time::Duration;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// The time limit of a launcher's answer.
pub const ANSWER: Duration = Duration::from_secs(30);

/// The deadline of a wait.
#[derive(Clone, Copy, Debug)]
pub struct Within {
    until_ns: u64,
    limit: Option<Duration>,
}

impl Within {
    /// From now on; `None`: without a limit.
    pub fn new(limit: Option<Duration>) -> Self {
        let ns = limit.and_then(|limit| u64::try_from(limit.as_nanos()).ok());
        let until_ns = ns.and_then(|ns| monotonic_ns().checked_add(ns)).unwrap_or(u64::MAX);
        Self { until_ns, limit }
    }

    /// This deadline, or `limit` from now on, whichever is earlier.
    pub fn at_most(self, limit: Duration) -> Self {
        let other = Self::new(Some(limit));
        if other.until_ns < self.until_ns { other } else { self }
    }

    /// The time limit that was given.
    pub fn limit(self) -> Option<Duration> {
        self.limit
    }

    /// The same in milliseconds, for an error.
    pub fn limit_ms(self) -> u64 {
        self.limit.map_or(0, |limit| u64::try_from(limit.as_millis()).unwrap_or(u64::MAX))
    }

    /// The time left.
    pub fn left(self) -> Duration {
        Duration::from_nanos(self.until_ns.saturating_sub(monotonic_ns()))
    }

    /// Whether no time is left.
    pub fn is_over(self) -> bool {
        self.left().is_zero()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A value that one thread at a time may use.
#[derive(Debug, Default)]
pub struct Turn<T> {
    is_taken: Mutex<bool>,
    freed: Condvar,
    value: Mutex<T>,
}

impl<T> Turn<T> {
    /// The value, not in use.
    pub fn new(value: T) -> Self {
        Self { is_taken: Mutex::new(false), freed: Condvar::new(), value: Mutex::new(value) }
    }

    /// The value as soon as it is free; `None`: not within the time limit. A free one needs no
    /// time.
    pub fn take(&self, within: Within) -> Option<TurnGuard<'_, T>> {
        let guard = lock(&self.is_taken);
        let waited = self.freed.wait_timeout_while(guard, within.left(), |is_taken| *is_taken);
        let (mut is_taken, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if *is_taken {
            return None;
        }
        *is_taken = true;
        drop(is_taken);
        // Its previous user is at most about to unlock it.
        Some(TurnGuard { turn: self, value: lock(&self.value) })
    }

    /// The value as soon as it is free, without a limit.
    pub fn lock(&self) -> TurnGuard<'_, T> {
        loop {
            if let Some(taken) = self.take(Within::new(None)) {
                return taken;
            }
        }
    }
}

/// A turn, until it is dropped.
#[derive(Debug)]
pub struct TurnGuard<'a, T> {
    turn: &'a Turn<T>,
    value: MutexGuard<'a, T>,
}

impl<T> Deref for TurnGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for TurnGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

impl<T> Drop for TurnGuard<'_, T> {
    fn drop(&mut self) {
        *lock(&self.turn.is_taken) = false;
        self.turn.freed.notify_one();
    }
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn what_another_has_is_waited_for_no_longer_than_the_limit() {
        let turn = Turn::new(1);
        let soon = || Within::new(Some(Duration::from_millis(1)));
        let taken = turn.lock();
        assert!(turn.take(soon()).is_none());
        assert!(turn.take(Within::new(Some(Duration::ZERO))).is_none());
        drop(taken);
        // A free one can be taken without any time, too.
        *turn.take(Within::new(Some(Duration::ZERO))).unwrap() += 1;
        std::thread::scope(|scope| {
            let taken = turn.lock();
            let other = scope.spawn(|| *turn.lock());
            drop(taken);
            assert_eq!(other.join().unwrap(), 2);
        });
    }

    #[test]
    fn whichever_limit_is_over_first_is_the_one_that_is_told() {
        let minute = Duration::from_secs(60);
        for (limit, told) in
            [(None, 60_000), (Some(minute * 2), 60_000), (Some(minute / 2), 30_000)]
        {
            assert_eq!(Within::new(limit).at_most(minute).limit_ms(), told);
        }
        assert!(!Within::new(None).is_over());
        assert!(!Within::new(Some(Duration::MAX)).is_over());
        assert!(Within::new(Some(Duration::ZERO)).is_over());
    }
}
