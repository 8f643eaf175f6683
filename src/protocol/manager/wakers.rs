//! Tasks to wake when something moves: one entry for each wait. The entry of an abandoned wait is
//! not removed when the wait is dropped, which may happen anywhere, also under the lock that guards
//! these entries; a sweep removes such entries when there are twice as many entries as after the
//! last sweep.
//!
//! Never: abandoned waits outnumber the live ones, but for a few; an abandoned wait removes
//! another's waker, even if one task has both.

use core::task::Waker;
use std::sync::{Arc, Weak};
use std::vec::Vec;

/// The number of entries below which there is no sweep.
const SWEEP_MIN: usize = 16;

/// One wait, until it is dropped.
#[derive(Debug, Default)]
pub(crate) struct Awaiting(Arc<()>);

#[derive(Debug)]
struct LeftWaker {
    waker: Waker,
    /// `None`: a caller without an [`Awaiting`], identified by its waker.
    wait: Option<Weak<()>>,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Wakers {
    left: Vec<LeftWaker>,
    sweep_at: usize,
}

impl Wakers {
    /// Adds `waker`, to be woken once for this wait.
    pub fn leave(&mut self, waker: &Waker, wait: Option<&Awaiting>) {
        let is_its = |left: &LeftWaker| match (&left.wait, wait) {
            (None, None) => left.waker.will_wake(waker),
            (Some(known), Some(wait)) => core::ptr::eq(known.as_ptr(), Arc::as_ptr(&wait.0)),
            _ => false,
        };
        if let Some(left) = self.left.iter_mut().find(|left| is_its(left)) {
            return left.waker.clone_from(waker);
        }
        if self.left.len() >= self.sweep_at.max(SWEEP_MIN) {
            self.left.retain(|left| left.wait.as_ref().is_none_or(|wait| wait.strong_count() > 0));
            self.sweep_at = 2 * self.left.len();
        }
        let wait = wait.map(|wait| Arc::downgrade(&wait.0));
        self.left.push(LeftWaker { waker: waker.clone(), wait });
    }

    /// Removes this waker, of a caller without an [`Awaiting`].
    #[cfg(feature = "unstable-internals")]
    pub fn forget(&mut self, waker: &Waker) {
        self.left.retain(|left| left.wait.is_some() || !left.waker.will_wake(waker));
    }

    /// Wakes all, and forgets them.
    pub fn wake(&mut self) {
        self.left.drain(..).for_each(|left| left.waker.wake());
    }

    /// Whether there are no wakers.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.left.is_empty()
    }

    /// The number of wakers.
    #[inline]
    pub fn len(&self) -> usize {
        self.left.len()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use core::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn waits_that_were_given_up_are_forgotten_and_take_nobody_along() {
        let (count, mut wakers) = (Arc::<Count>::default(), Wakers::default());
        let waker = Waker::from(count.clone());
        // Waits of one task, which may wait for several things at a time.
        let stays = Awaiting::default();
        wakers.leave(&waker, Some(&stays));
        for _ in 0..10_000 {
            let wait = Awaiting::default();
            (0..3).for_each(|_| wakers.leave(&waker, Some(&wait)));
            // Each of a task of its own, which is dropped then.
            wakers.leave(&Waker::from(Arc::<Count>::default()), Some(&Awaiting::default()));
        }
        assert!(wakers.len() <= 2 * SWEEP_MIN, "{} are kept", wakers.len());
        let before = count.0.load(Ordering::Relaxed);
        wakers.wake();
        assert!(count.0.load(Ordering::Relaxed) > before && wakers.is_empty());
        // All live ones are kept, however many there are.
        let waits: Vec<Awaiting> = (0..1000).map(|_| Awaiting::default()).collect();
        waits.iter().for_each(|wait| wakers.leave(&waker, Some(wait)));
        assert_eq!(wakers.len(), 1000);
        wakers.leave(&waker, None);
        wakers.leave(&waker, None);
        assert_eq!(wakers.len(), 1001);
        #[cfg(feature = "unstable-internals")]
        {
            wakers.forget(&waker);
            assert_eq!(wakers.len(), 1000);
        }
    }
}
