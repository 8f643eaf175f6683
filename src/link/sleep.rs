//! Falling asleep without losing a wake-up: the sleep generation.
//!
//! ```text
//!   sleeper (reads packets)             signaller (writes packets)
//!   SLEEP += 1                          commit a packet
//!   barrier                             barrier
//!   look at the ring once more          load SLEEP
//!   sleep until signalled               signal, once for each generation
//! ```
//! SLEEP lies in the sleeper's page and only the sleeper writes it. The two barriers see to it
//! that one of both sees what the other wrote: the sleeper the packet, or the signaller the new
//! generation. A fence on each send would cost three quarters of the rate, so the sleeper pays for
//! both with a barrier that the kernel runs on every core ([`Barrier::Asymmetric`]); where that is
//! refused, the signaller fences once a batch.
//!
//! The same two halves, exchanged, serve a sender that sleeps until there is room: FREED takes the
//! place of the packet.
//!
//! Never: the sleeper sleeps on what it saw before it armed; the signaller relies on SLEEP for
//! anything but the choice to signal. A sleeper that makes its generation race makes its peer
//! signal at each batch, and gains nothing else.

use super::cells::{Ordering, Word, fence};

/// Who pays for keeping a store before a load. Agreed when connecting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Barrier {
    /// The sleeper's barrier reaches the signaller's core (`membarrier`); the signaller fences
    /// nothing but the compiler.
    Asymmetric,
    /// Each side fences for itself.
    Fence,
}

/// The side that sleeps.
#[derive(Debug)]
pub struct Sleeper<W> {
    sleep: W,
    generation: u64,
}

impl<W: Word> Sleeper<W> {
    /// Over this process's own word, which is zero and which nobody else writes.
    pub fn new(sleep: W) -> Self {
        Self { sleep, generation: 0 }
    }

    /// Announces that this side is about to sleep. The caller then runs the barrier that was
    /// agreed, for all that it arms together, looks once more at everything that it waits for, and
    /// sleeps only if there is nothing.
    #[inline]
    pub fn arm(&mut self) {
        self.generation += 1;
        self.sleep.word().store(self.generation, Ordering::Release);
    }
}

/// The side that wakes the other.
#[derive(Debug)]
pub struct Signaller<W> {
    sleep: W,
    /// The last generation that was signalled. Private: the peer can only announce.
    signalled: u64,
    barrier: Barrier,
}

impl<W: Word> Signaller<W> {
    /// Over the other side's word.
    pub fn new(sleep: W, barrier: Barrier) -> Self {
        Self { sleep, signalled: 0, barrier }
    }

    /// After a commit, or once after a batch of them: the generation that the other side has
    /// announced and that was not signalled yet, if there is one. A caller that signals says so
    /// with [`signalled`](Self::signalled); one that does not, because nothing urgent was sent,
    /// asks again after the next commit.
    #[inline(always)]
    pub fn pending(&self) -> Option<u64> {
        match self.barrier {
            #[cfg(not(loom))]
            Barrier::Asymmetric => core::sync::atomic::compiler_fence(Ordering::SeqCst),
            // A barrier that another thread runs on this thread's behalf acts, to the model, as
            // one that this thread runs between its commit and its load.
            _ => fence(Ordering::SeqCst),
        }
        let generation = self.sleep.word().load(Ordering::Relaxed);
        (generation != self.signalled).then_some(generation)
    }

    /// The other side has been signalled for this generation and will not be again.
    #[inline]
    pub fn signalled(&mut self, generation: u64) {
        self.signalled = generation;
    }

    /// [`pending`](Self::pending) and [`signalled`](Self::signalled) together, for a caller that
    /// always signals.
    #[inline(always)]
    pub fn must_signal(&mut self) -> bool {
        let pending = self.pending();
        pending.inspect(|&generation| self.signalled(generation)).is_some()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::cells::AtomicU64;
    use super::*;
    use alloc::sync::Arc;

    #[test]
    fn each_generation_is_signalled_once() {
        let word = Arc::new(AtomicU64::new(0));
        let mut sleeper = Sleeper::new(word.clone());
        for barrier in [Barrier::Asymmetric, Barrier::Fence] {
            let mut signaller = Signaller::new(word.clone(), barrier);
            signaller.must_signal();
            assert!(!signaller.must_signal());
            sleeper.arm();
            assert!(signaller.must_signal());
            assert!(!signaller.must_signal());
            sleeper.arm();
            sleeper.arm();
            assert!(signaller.must_signal());
            assert!(!signaller.must_signal());
        }
    }

    #[test]
    fn a_generation_that_was_not_signalled_is_still_pending() {
        let word = Arc::new(AtomicU64::new(0));
        let mut sleeper = Sleeper::new(word.clone());
        let mut signaller = Signaller::new(word, Barrier::Fence);
        assert_eq!(signaller.pending(), None);
        sleeper.arm();
        assert_eq!((signaller.pending(), signaller.pending()), (Some(1), Some(1)));
        signaller.signalled(1);
        assert_eq!(signaller.pending(), None);
    }

    #[test]
    fn a_generation_that_goes_back_costs_a_signal_and_nothing_else() {
        let word = Arc::new(AtomicU64::new(u64::MAX));
        let mut signaller = Signaller::new(word.clone(), Barrier::Fence);
        assert!(signaller.must_signal() && !signaller.must_signal());
        word.store(3, Ordering::Relaxed);
        assert!(signaller.must_signal() && !signaller.must_signal());
    }
}
