//! Falling asleep without losing a wake-up: the sleep generation, and the bell.
//!
//! ```text
//!   sleeper (reads packets)             waker (writes packets)
//!   note BELL
//!   SLEEP += 1, and how                 commit a packet
//!   barrier                             barrier
//!   look at the ring once more          load SLEEP
//!   sleep until woken                   wake, once for each generation
//! ```
//! SLEEP lies in the sleeper's page and only the sleeper writes it. The two barriers ensure that at
//! least one side sees the other's write: the sleeper sees the packet, or the waker sees the new
//! generation. A fence on each send would cost three quarters of the rate, so the sleeper pays for
//! both with a barrier that the kernel runs on every core ([`Barrier::Asymmetric`]); where that is
//! refused, the waker fences once a batch. A sleeper that sleeps often asks for such fences, too,
//! for as long as it does so (`FENCE`): the kernel's barrier is made once, and then again only
//! after the fences were no longer asked for.
//!
//! SLEEP says how to wake: by a byte on a socket, which an event loop sees, or by the bell
//! (`BY_BELL`). BELL lies in the waker's page, and only the waker writes it: it changes the bell,
//! and then wakes the threads that sleep on it. The sleeper gives the kernel the value that it
//! noted *before* it announced its sleep. So a waker that has seen the announcement either changes
//! the bell to a value that the kernel no longer accepts, or finds the sleeper asleep. (The
//! sleeper's own page would not do: the waker cannot change it, and a wake-up between the look and
//! the sleep would be lost.)
//!
//! A receiver with very many links makes the same announcement for a link that it stops polling
//! while awake. It then wants a wake-up for any packet there, even one whose sender asked for none
//! (`ANY`).
//!
//! The same halves, exchanged, serve a sender that sleeps until there is room: FREED takes the
//! place of the packet, and ROOM that of SLEEP. Both wake by the one bell.
//!
//! Never: the sleeper sleeps because of a look from before it armed; the waker relies on SLEEP for
//! anything but the choice to wake. A sleeper that makes its generation race makes its peer wake it
//! at each batch, and a waker that makes its bell race makes its peer look; they gain nothing else.

use super::cells::{AtomicU64, Ordering, Word, fence};

/// In a sleep word: wake by the bell.
const BY_BELL: u64 = 1;
/// In a sleep word: fence before each look at it.
const FENCE: u64 = 2;
/// In a sleep word: wake for any packet, whether or not its sender asked for that.
const ANY: u64 = 4;
/// The step from one generation to the next in a sleep word.
const GENERATION: u64 = 8;

/// The side that pays for keeping a store before a load. The sides agree on it when they connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Barrier {
    /// The sleeper's barrier reaches the waker's core (`membarrier`); the waker fences nothing but
    /// the compiler, unless the sleeper asks for it.
    Asymmetric,
    /// Each side fences for itself.
    Fence,
}

/// The way to wake a sleeper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WakeBy {
    /// A byte on a socket.
    Byte,
    /// The bell.
    Bell,
}

/// The side that sleeps.
#[derive(Debug)]
pub struct Sleeper<W> {
    sleep: W,
    value: u64,
    barrier: Barrier,
    /// Whether the waker understands [`BY_BELL`], [`FENCE`] and [`ANY`].
    understood: bool,
    /// The waker fences: it has seen the request.
    peer_fences: bool,
}

impl<W: Word> Sleeper<W> {
    /// Over this process's own word, which is zero and which no other process writes. `understood`:
    /// the waker can ring the bell, and fences when asked.
    pub fn new(sleep: W, barrier: Barrier, understood: bool) -> Self {
        Self { sleep, value: 0, barrier, understood, peer_fences: barrier == Barrier::Fence }
    }

    /// Announces that this side is about to sleep. The caller then runs one barrier for all
    /// sleepers that it arms together, looks once more at everything that it waits for, and sleeps
    /// only if nothing is there. The bell is used only if the other side understands it.
    #[inline]
    pub fn arm(&mut self, by: WakeBy) {
        self.announce(if by == WakeBy::Bell { BY_BELL } else { 0 });
    }

    /// Announces that this side does not look again until a byte tells it of a packet, of any kind.
    /// The same steps must follow as for [`arm`](Self::arm). `false`: the other side would not
    /// understand this, and nothing was announced.
    pub fn arm_for_any(&mut self) -> bool {
        if self.understood {
            self.announce(ANY);
        }
        self.understood
    }

    fn announce(&mut self, how: u64) {
        let mut value = (self.value & !(BY_BELL | FENCE | ANY)) + GENERATION;
        if self.understood {
            value |= how;
            value |= if self.barrier == Barrier::Asymmetric { FENCE } else { 0 };
        }
        self.set(value);
    }

    fn set(&mut self, value: u64) {
        self.value = value;
        self.sleep.word().store(value, Ordering::Release);
    }

    /// Whether the barrier that reaches the waker's core must follow arming; otherwise a
    /// fence is enough.
    #[inline]
    pub fn needs_barrier(&self) -> bool {
        !self.peer_fences
    }

    /// The barrier has been made after arming: the waker fences from now on if it was asked to.
    #[inline]
    pub fn barrier_made(&mut self) {
        self.peer_fences |= self.value & FENCE != 0;
    }

    /// This side has not slept for a while: the waker need not fence any more.
    #[cold]
    pub fn stop_fences(&mut self) {
        if self.value & FENCE != 0 {
            self.peer_fences = false;
            self.set(self.value & !FENCE);
        }
    }
}

/// The side that wakes the other.
#[derive(Debug)]
pub struct Signaller<W> {
    sleep: W,
    /// The last word for which the other side was woken, without [`FENCE`]. Private: the peer can
    /// only announce.
    signalled: u64,
    barrier: Barrier,
    understood: bool,
}

impl<W: Word> Signaller<W> {
    /// Over the other side's word. `understood`: the other side says in it how to be woken.
    pub fn new(sleep: W, barrier: Barrier, understood: bool) -> Self {
        Self { sleep, signalled: 0, barrier, understood }
    }

    /// After a commit, or once after a batch of commits: the other side's announcement, if there is
    /// one for which it was not woken yet. A caller that wakes it then calls
    /// [`signalled`](Self::signalled); a caller that does not, because nothing urgent was sent,
    /// asks again after the next commit.
    #[inline(always)]
    pub fn pending(&self) -> Option<u64> {
        match self.barrier {
            #[cfg(not(loom))]
            Barrier::Asymmetric => core::sync::atomic::compiler_fence(Ordering::SeqCst),
            // A barrier that another thread runs on this thread's behalf acts, to the model, as
            // one that this thread runs between its commit and its load.
            #[cfg(loom)]
            Barrier::Asymmetric if self.fences() => {}
            _ => fence(Ordering::SeqCst),
        }
        let word = self.sleep.word().load(Ordering::Relaxed);
        if word == self.signalled { None } else { self.pending_after(word) }
    }

    /// Whether this side was asked to fence.
    #[cfg(any(loom, test))]
    pub fn fences(&self) -> bool {
        self.sleep.word().load(Ordering::Relaxed) & FENCE != 0
    }

    #[cold]
    #[inline(never)]
    fn pending_after(&self, mut word: u64) -> Option<u64> {
        if self.understood && word & FENCE != 0 {
            fence(Ordering::SeqCst);
            word = self.sleep.word().load(Ordering::Relaxed) & !FENCE;
        }
        (word != self.signalled).then_some(word)
    }

    /// How to wake the other side, which has announced `word`.
    #[inline]
    pub fn how(&self, word: u64) -> WakeBy {
        if self.understood && word & BY_BELL != 0 { WakeBy::Bell } else { WakeBy::Byte }
    }

    /// Whether the other side, which has announced `word`, wants to know of any packet.
    #[inline]
    pub fn is_for_any(&self, word: u64) -> bool {
        self.understood && word & ANY != 0
    }

    /// The other side has been woken for this word and will not be again.
    #[inline]
    pub fn signalled(&mut self, word: u64) {
        self.signalled = word;
    }

    /// The last word for which the other side was woken; 0 before the first.
    pub fn last_signalled(&self) -> u64 {
        self.signalled
    }

    /// [`pending`](Self::pending) and [`signalled`](Self::signalled) together, for a caller that
    /// always wakes: how.
    #[inline(always)]
    pub fn must_signal(&mut self) -> Option<WakeBy> {
        let pending = self.pending()?;
        self.signalled(pending);
        Some(self.how(pending))
    }
}

/// Whether `word`, which a sleeper has announced, is of a later sleep than `told`, for which it was
/// woken last.
pub fn is_another_sleep(word: u64, told: u64) -> bool {
    word / GENERATION != told / GENERATION
}

/// Changes this process's own bell; the caller must then wake the threads that sleep on it. Several
/// threads may call this.
#[inline]
pub fn ring(bell: &impl Word) {
    bell.word().fetch_add(1, Ordering::Release);
}

/// A sleeper's view of the other side's bell.
#[derive(Debug)]
pub struct Ear<W> {
    bell: W,
    heard: u64,
}

impl<W: Word> Ear<W> {
    /// Over the other side's word.
    pub fn new(bell: W) -> Self {
        Self { heard: 0, bell }
    }

    /// Whether the bell has changed since the last call; call this before arming. If so, the
    /// announced generation may have been used up, and the next sleep needs another.
    #[inline]
    pub fn has_rung(&mut self) -> bool {
        let bell = self.bell.word().load(Ordering::Acquire);
        core::mem::replace(&mut self.heard, bell) != bell
    }

    /// The bell, and the value that the kernel must find there for a sleep to begin.
    pub fn expected(&self) -> (&W, u32) {
        (&self.bell, self.heard as u32)
    }
}

/// Wakes a thread that sleeps on a word that its waker cannot change: another process's bell, say,
/// in place of the waker's own word. That saves the kernel a second word in each sleep.
///
/// ```text
///   sleeper                              waker, of the same process
///   say where it is about to sleep       change the own word
///   fence                                fence
///   look at the own word once more       a thread said so: wake it there, until it has left
///   sleep on the other's word; leave
/// ```
/// At least one side sees the other's write. A wake does not reach the sleeper between its last
/// look and its sleep, which is why the waker repeats it.
#[derive(Debug)]
pub struct Elsewhere {
    /// The address at which one thread sleeps, or is about to; 0: no thread does.
    place: AtomicU64,
    /// The number of sleeps so far.
    sleeps: AtomicU64,
}

impl Default for Elsewhere {
    fn default() -> Self {
        Self { place: AtomicU64::new(0), sleeps: AtomicU64::new(0) }
    }
}

impl Elsewhere {
    /// The calling thread is about to sleep at `place`, which is not 0. It then looks at the own
    /// word once more, and [leaves](Self::leave) in any case. `false`: another thread sleeps
    /// elsewhere already, and this one must not.
    #[inline]
    pub fn begin(&self, place: u64) -> bool {
        let is_first =
            self.place.compare_exchange(0, place, Ordering::Acquire, Ordering::Relaxed).is_ok();
        if is_first {
            self.sleeps.fetch_add(1, Ordering::Relaxed);
            fence(Ordering::SeqCst);
        }
        is_first
    }

    /// The calling thread, whose [`begin`](Self::begin) returned `true`, no longer sleeps.
    #[inline]
    pub fn leave(&self) {
        self.place.store(0, Ordering::Release);
    }

    /// The own word has been changed: calls `wake`, with the place and the number of calls before,
    /// until the thread that sleeps there has left or `wake` returns `false`. `false`: no thread
    /// that has not seen the change sleeps elsewhere.
    pub fn wake(&self, mut wake: impl FnMut(u64, u32) -> bool) -> bool {
        fence(Ordering::SeqCst);
        let sleep = self.sleeps.load(Ordering::Relaxed);
        let place = self.place.load(Ordering::Relaxed);
        if place == 0 {
            return false;
        }
        let mut calls = 0;
        // A thread that begins after the count was read sees the change.
        while wake(place, calls)
            && self.place.load(Ordering::Acquire) == place
            && self.sleeps.load(Ordering::Relaxed) == sleep
        {
            calls = calls.saturating_add(1);
        }
        true
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use alloc::sync::Arc;

    fn both(barrier: Barrier) -> (Sleeper<Arc<AtomicU64>>, Signaller<Arc<AtomicU64>>) {
        let word = Arc::new(AtomicU64::new(0));
        (Sleeper::new(word.clone(), barrier, true), Signaller::new(word, barrier, true))
    }

    #[test]
    fn each_generation_is_signalled_once_and_as_it_asks() {
        for barrier in [Barrier::Asymmetric, Barrier::Fence] {
            let (mut sleeper, mut signaller) = both(barrier);
            assert_eq!(signaller.must_signal(), None);
            sleeper.arm(WakeBy::Byte);
            assert_eq!(signaller.must_signal(), Some(WakeBy::Byte));
            assert_eq!(signaller.must_signal(), None);
            sleeper.arm(WakeBy::Byte);
            sleeper.arm(WakeBy::Bell);
            assert_eq!(signaller.must_signal(), Some(WakeBy::Bell));
            assert_eq!(signaller.must_signal(), None);
        }
    }

    #[test]
    fn whoever_wants_to_know_of_any_packet_says_so_until_it_sleeps_again() {
        let (mut sleeper, mut signaller) = both(Barrier::Fence);
        sleeper.arm(WakeBy::Bell);
        assert!(!signaller.is_for_any(signaller.pending().unwrap()));
        assert!(sleeper.arm_for_any());
        let word = signaller.pending().unwrap();
        assert!(signaller.is_for_any(word) && signaller.how(word) == WakeBy::Byte);
        signaller.signalled(word);
        assert_eq!(signaller.pending(), None);
        sleeper.arm(WakeBy::Byte);
        assert!(!signaller.is_for_any(signaller.pending().unwrap()));
        // Not to a waker that would take it for a generation.
        let word = Arc::new(AtomicU64::new(0));
        let mut sleeper = Sleeper::new(word.clone(), Barrier::Fence, false);
        assert!(!sleeper.arm_for_any() && word.load(Ordering::Relaxed) == 0);
    }

    #[test]
    fn a_generation_that_was_not_signalled_is_still_pending() {
        let (mut sleeper, mut signaller) = both(Barrier::Fence);
        assert_eq!(signaller.pending(), None);
        sleeper.arm(WakeBy::Byte);
        let word = signaller.pending().unwrap();
        assert_eq!(signaller.pending(), Some(word));
        signaller.signalled(word);
        assert_eq!(signaller.pending(), None);
    }

    #[test]
    fn whoever_does_not_know_the_bell_is_asked_for_bytes_and_no_fences() {
        let word = Arc::new(AtomicU64::new(0));
        let mut sleeper = Sleeper::new(word.clone(), Barrier::Asymmetric, false);
        let mut signaller = Signaller::new(word.clone(), Barrier::Asymmetric, false);
        for generation in 1..9 {
            sleeper.arm(WakeBy::Bell);
            assert_eq!(word.load(Ordering::Relaxed) % GENERATION, 0);
            sleeper.barrier_made();
            assert!(sleeper.needs_barrier());
            // As a peer does that counts in ones.
            word.store(generation, Ordering::Relaxed);
            assert_eq!(signaller.must_signal(), Some(WakeBy::Byte));
            assert_eq!(signaller.must_signal(), None);
        }
    }

    #[test]
    fn the_barrier_is_made_again_only_when_the_fences_were_stopped() {
        let (mut sleeper, mut signaller) = both(Barrier::Asymmetric);
        sleeper.arm(WakeBy::Bell);
        assert!(sleeper.needs_barrier());
        sleeper.barrier_made();
        sleeper.arm(WakeBy::Bell);
        assert!(!sleeper.needs_barrier());
        assert!(signaller.must_signal().is_some());
        sleeper.stop_fences();
        assert!(sleeper.needs_barrier());
        // Nothing was announced.
        assert_eq!(signaller.must_signal(), None);
        // A barrier that was made for another link before this one was armed says nothing.
        sleeper.barrier_made();
        assert!(sleeper.needs_barrier());
        sleeper.arm(WakeBy::Byte);
        assert_eq!(signaller.must_signal(), Some(WakeBy::Byte));
    }

    #[test]
    fn a_generation_that_goes_back_costs_a_signal_and_nothing_else() {
        let word = Arc::new(AtomicU64::new(!FENCE));
        let mut signaller = Signaller::new(word.clone(), Barrier::Fence, true);
        assert!(signaller.must_signal().is_some() && signaller.must_signal().is_none());
        word.store(4, Ordering::Relaxed);
        assert!(signaller.must_signal().is_some() && signaller.must_signal().is_none());
        word.store(u64::MAX, Ordering::Relaxed);
        assert!(signaller.must_signal().is_some() && signaller.must_signal().is_none());
    }

    #[test]
    fn a_bell_that_was_rung_is_heard_once_and_spoils_what_was_expected() {
        let bell = Arc::new(AtomicU64::new(0));
        let mut ear = Ear::new(bell.clone());
        assert!(!ear.has_rung());
        let before = ear.expected().1;
        ring(&bell);
        assert_ne!(before, bell.load(Ordering::Relaxed) as u32);
        assert!(ear.has_rung() && !ear.has_rung());
        assert_eq!(ear.expected().1, bell.load(Ordering::Relaxed) as u32);
    }

    #[test]
    fn one_that_sleeps_elsewhere_is_woken_until_it_has_left() {
        let elsewhere = Elsewhere::default();
        assert!(!elsewhere.wake(|_, _| panic!("nobody sleeps")));
        assert!(elsewhere.begin(64));
        assert!(!elsewhere.begin(128), "there is one already");
        let mut last = None;
        assert!(elsewhere.wake(|place, calls| {
            last = Some((place, calls));
            if calls == 2 {
                elsewhere.leave();
            }
            true
        }));
        assert_eq!(last, Some((64, 2)));
        // Another sleep at the same place is that of a thread which has seen the change.
        assert!(elsewhere.begin(64));
        assert!(elsewhere.wake(|_, calls| {
            assert_eq!(calls, 0);
            elsewhere.leave();
            elsewhere.begin(64)
        }));
    }
}
