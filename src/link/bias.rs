//! A lock's bias towards one thread, which then takes it without a locked instruction.
//!
//! ```text
//!   owner                                  another thread, which holds the lock behind the bias
//!   INSIDE = 1                             OWNER = 0
//!   barrier (the compiler's)               barrier (every core's)
//!   look at OWNER: still this thread? in   wait until INSIDE = 0, then in
//!   ..
//!   INSIDE = 0
//! ```
//! A locked instruction waits until every store before it has reached the other core, and the store
//! before a lock is released is usually that of a packet: it would cost a sender most of its rate.
//! So a thread that alone uses a lock pays for it with two ordinary stores, and the second thread
//! pays once, with a barrier that the kernel runs on every core.
//!
//! INSIDE: Release/Acquire: the next holder of the lock sees the owner's writes under it. Never:
//! OWNER becomes a thread again once it was 0; so an owner that was stopped between two of its
//! steps cannot take itself for a later one.

use super::cells::{AtomicU64, Ordering, fence};
use super::sleep::Barrier;

/// The thread towards which a lock is biased. Threads have numbers other than 0.
#[derive(Debug)]
pub struct Bias {
    owner: AtomicU64,
    inside: AtomicU64,
}

impl Default for Bias {
    fn default() -> Self {
        Self { owner: AtomicU64::new(0), inside: AtomicU64::new(0) }
    }
}

impl Bias {
    /// Biases the lock towards `thread`, which is the caller and holds the lock behind the bias: at
    /// most once in its life. It is inside from now on, and gives the lock behind the bias back.
    pub fn set(&self, thread: u64) {
        self.inside.store(1, Ordering::Relaxed);
        self.owner.store(thread, Ordering::Release);
    }

    /// Takes the lock, if it is biased towards `thread`, which is the caller, and not taken.
    #[inline]
    pub fn enter(&self, thread: u64, barrier: Barrier) -> bool {
        if self.owner.load(Ordering::Relaxed) != thread || self.inside.load(Ordering::Relaxed) != 0
        {
            return false;
        }
        self.inside.store(1, Ordering::Relaxed);
        match barrier {
            #[cfg(not(loom))]
            Barrier::Asymmetric => core::sync::atomic::compiler_fence(Ordering::SeqCst),
            // To the model, the other's barrier is one that this thread runs here.
            _ => fence(Ordering::SeqCst),
        }
        if self.owner.load(Ordering::Relaxed) == thread {
            return true;
        }
        self.leave();
        false
    }

    /// Whether the lock is biased towards `thread`.
    #[cfg(all(test, not(loom)))]
    pub fn owner_is(&self, thread: u64) -> bool {
        self.owner.load(Ordering::Relaxed) == thread
    }

    /// Releases the lock that [`enter`](Self::enter) took.
    #[inline]
    pub fn leave(&self) {
        self.inside.store(0, Ordering::Release);
    }

    /// Ends the bias. The caller holds the lock behind it. `true`: the caller must run the barrier
    /// before it asks [`is_inside`](Self::is_inside).
    pub fn revoke(&self) -> bool {
        let was_biased = self.owner.load(Ordering::Relaxed) != 0;
        if was_biased {
            self.owner.store(0, Ordering::Release);
        }
        was_biased
    }

    /// Whether the owner of the bias has the lock.
    #[inline]
    pub fn is_inside(&self) -> bool {
        self.inside.load(Ordering::Acquire) != 0
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn only_the_owner_enters_and_only_once() {
        let bias = Bias::default();
        assert!(!bias.enter(1, Barrier::Fence));
        bias.set(1);
        assert!(!bias.enter(1, Barrier::Fence) && bias.is_inside(), "it is inside already");
        bias.leave();
        assert!(!bias.enter(2, Barrier::Fence));
        assert!(bias.enter(1, Barrier::Fence) && bias.is_inside());
        assert!(!bias.enter(1, Barrier::Fence), "it is inside already");
        bias.leave();
        assert!(bias.enter(1, Barrier::Asymmetric));
        bias.leave();
        assert!(bias.revoke() && !bias.revoke());
        assert!(!bias.enter(1, Barrier::Fence) && !bias.is_inside());
    }
}
