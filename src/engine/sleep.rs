//! Falling asleep without losing a wake-up; and a sender's decision to wake another.
//!
//! ```text
//!   Ways::choose      in a call          on words: the bell of each link's peer    (WakeBy::Bell)
//!                     in an event loop   on one descriptor: each link's socket     (WakeBy::Byte)
//!   fall_asleep       announce it on each link that is looked at, and on each that is full;
//!                     a barrier, once for all of them, or a fence; look once more at everything
//!   arm_idle          the same for some idle links of a node that is awake and has very many
//!   signal            a sender that has seen an announcement wakes once for it
//! ```
//! A sender either saw the announcement, or the last look sees its packet: the barrier between the
//! two ensures that (see [`crate::link::sleep`]). If the kernel refuses the barrier, sleeping is
//! cut into [`Naps`].
//!
//! Never: a sleep because of a look from before the announcement; a second announcement that the
//! sender knows already, for each costs it a signal; a sleep without end while there may be a
//! packet whose visibility no barrier has ensured.

use super::turns::{ARMED_AT_A_TIME, TakesTurns};
use crate::link::cells::Word;
use crate::link::sleep::{Signaller, Sleeper, WakeBy};

/// The first nap after announcing, and the longest of those that follow.
const NAP_NS: u64 = 1_000_000;
const NAP_MAX_NS: u64 = 100_000_000;
/// Long turns without a sleep after which a receiver no longer asks the sender for fences.
const AWAKE_TURNS: u32 = 4;

/// The threads that may also look at a node while a thread sleeps in a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Others {
    /// No other: the thread has borrowed the node.
    None,
    /// Threads that share the node, or an event loop that watches its descriptor for them.
    Any,
}

/// The words and the descriptor on which a node may sleep.
#[derive(Debug)]
pub(crate) struct Ways {
    /// Words for which a thread can wait together; 0: for none.
    words_max: usize,
    /// An event loop watches the node's descriptor.
    is_watched: bool,
}

impl Ways {
    /// `words_max`: words for which a thread can wait together.
    pub fn new(words_max: usize) -> Self {
        Self { words_max, is_watched: false }
    }

    /// An event loop watches the descriptor from now on. `true`: none did before, and threads may
    /// sleep on words.
    pub fn watch(&mut self) -> bool {
        !core::mem::replace(&mut self.is_watched, true)
    }

    /// Whether an event loop watches the descriptor.
    pub fn is_watched(&self) -> bool {
        self.is_watched
    }

    /// It has turned out that no thread can wait for words any more.
    pub fn refuse_words(&mut self) {
        self.words_max = 0;
    }

    /// The way to wake a thread that sleeps in a call. The bell, which is quicker, and leaves
    /// nothing to take afterwards; except for: threads that share a watched node, so that one
    /// signal reaches all; more links than words; a peer that does not ring (`all_ring`).
    pub fn choose(&self, others: Others, links: usize, all_ring: impl FnOnce() -> bool) -> WakeBy {
        let for_others = self.is_watched && others == Others::Any;
        match !for_others && self.words_max > 0 && links <= self.words_max && all_ring() {
            true => WakeBy::Bell,
            false => WakeBy::Byte,
        }
    }
}

/// Sleeping while the kernel refuses the barrier that was agreed when connecting: a seccomp filter
/// came later. A sender that looked at the sleep word just before it was written does not wake this
/// side, which looks for the packet after a nap. Its store is then long visible, and a packet that
/// was not found is one whose sender sees that this node sleeps; so naps become longer until
/// something arrives. They never end, for they cost nothing any more.
#[derive(Debug, Default)]
pub(crate) struct Naps {
    /// The length of the next nap; `None`: the barrier works.
    next_ns: Option<u64>,
}

impl Naps {
    /// Whether sleeping is cut into naps.
    pub fn are_needed(&self) -> bool {
        self.next_ns.is_some()
    }

    /// The longest time for the next sleep.
    pub fn take(&mut self) -> Option<u64> {
        let nap_ns = self.next_ns?;
        self.next_ns = Some((nap_ns * 2).min(NAP_MAX_NS));
        Some(nap_ns)
    }

    fn barrier_made(&mut self) {
        self.next_ns = None;
    }

    fn barrier_refused(&mut self) {
        self.next_ns = Some(NAP_NS);
    }
}

/// The step required between an announcement on a link and the last look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum AnnounceStep {
    /// Nothing: the other side knows already.
    Already,
    /// A fence: the other side fences, too.
    NeedsFence,
    /// A barrier that reaches the other side's processor.
    NeedsBarrier,
}

impl AnnounceStep {
    /// After an announcement of this sleeper.
    pub fn by<W: Word>(sleep: &Sleeper<W>) -> Self {
        if sleep.needs_barrier() { Self::NeedsBarrier } else { Self::NeedsFence }
    }
}

/// The knowledge that a link's sender has of its receiver, which is this side.
#[derive(Debug)]
pub(crate) struct Arming {
    /// Long turns after something arrived since the last announcement.
    awake_turns: u32,
    /// Something has arrived, or a signal was taken, since the last announcement: the sender may
    /// have used its one signal.
    is_used: bool,
    by: WakeBy,
}

impl Arming {
    pub fn new() -> Self {
        Self { awake_turns: 0, is_used: true, by: WakeBy::Byte }
    }

    /// Something has arrived: the sender may have used its one signal.
    #[inline]
    pub fn has_taken(&mut self) {
        self.is_used = true;
    }

    /// This side is about to sleep; announces it if the sender does not know it.
    pub fn arm<W: Word>(&mut self, sleep: &mut Sleeper<W>, by: WakeBy) -> AnnounceStep {
        if !self.is_used && self.by == by {
            return AnnounceStep::Already;
        }
        sleep.arm(by);
        *self = Self { awake_turns: 0, is_used: false, by };
        AnnounceStep::by(sleep)
    }

    /// This side does not look until the sender signals any packet. `None`: the sender would not
    /// understand that, and nothing was announced.
    pub fn arm_for_any<W: Word>(&mut self, sleep: &mut Sleeper<W>) -> Option<AnnounceStep> {
        if !sleep.arm_for_any() {
            return None;
        }
        *self = Self { awake_turns: 0, is_used: false, by: WakeBy::Byte };
        Some(AnnounceStep::by(sleep))
    }

    /// A long turn has passed: a sender need not fence any more for a receiver that has not slept
    /// for a while, though something came.
    pub fn count_awake_turn<W: Word>(&mut self, sleep: &mut Sleeper<W>) {
        self.awake_turns += u32::from(self.is_used);
        if self.awake_turns == AWAKE_TURNS {
            self.awake_turns = 0;
            sleep.stop_fences();
        }
    }
}

/// After packets were committed for a receiver that has `announced` its sleep: the way to wake it,
/// once for each announcement. `None`: not for these packets, whose sender did not ask for it
/// (`asks`) and which have left room enough (`is_half_full`).
pub(crate) fn signal<W: Word>(
    sleep: &mut Signaller<W>,
    announced: u64,
    asks: bool,
    is_half_full: impl FnOnce() -> bool,
) -> Option<WakeBy> {
    if !asks && !sleep.is_for_any(announced) && !is_half_full() {
        return None;
    }
    sleep.signalled(announced);
    Some(sleep.how(announced))
}

/// A node, or another owner of links that falls asleep over them.
pub(crate) trait FallsAsleep: TakesTurns {
    /// Tells a link's sender that this side is about to sleep: [`Arming::arm`].
    fn announce(&mut self, link: u32, by: WakeBy) -> AnnounceStep;
    /// Tells a link's receiver that this side is about to sleep until there is room.
    fn announce_for_room(&mut self, link: u32, by: WakeBy) -> AnnounceStep;
    /// Tells a link's sender that this side does not look until a signal: [`Arming::arm_for_any`].
    fn announce_for_any(&mut self, link: u32) -> Option<AnnounceStep>;
    /// The sender may have used its signal.
    fn has_taken(&mut self, link: u32);
    /// Makes the barrier that reaches all processors; `false`: the kernel refuses it.
    fn barrier(&mut self) -> bool;
    /// Makes this thread's own fence.
    fn fence(&mut self);
    /// The barrier was made after a link's announcements.
    fn barrier_made(&mut self, link: u32);
    /// The same, of a link that is full.
    fn barrier_made_for_room(&mut self, link: u32);
    /// The naps of this node.
    fn naps(&mut self) -> &mut Naps;
    /// Whether there is news other than packets and room: from the control plane, or from another
    /// host.
    fn has_news(&mut self) -> bool;
    /// Whether a link has room again, or never will.
    fn room_came(&mut self, link: u32) -> bool;

    /// A link may have something, and is looked at in each turn.
    fn look_again(&mut self, link: u32) {
        if self.turns_mut().promote(link) {
            self.has_taken(link);
        }
    }

    /// Announces that this side sleeps, to be woken by packets and by room on the links that are
    /// `full`.
    /// `true`: nothing waits, and every later packet wakes as announced. `false`: something has
    /// come; do not sleep. Armed links have been looked at, and signal by a byte.
    fn fall_asleep(&mut self, by: WakeBy, full: &[u32]) -> bool {
        if by == WakeBy::Bell {
            // There were more links.
            while let Some(&link) = self.turns().all_armed().last() {
                self.look_again(link);
            }
        }
        let mut announced = AnnounceStep::Already;
        let mut i = 0;
        while let Some(link) = self.turns().looked_at(i) {
            announced = announced.max(self.announce(link, by));
            i += 1;
        }
        for &link in full {
            announced = announced.max(self.announce_for_room(link, by));
        }
        match announced {
            AnnounceStep::Already => {}
            AnnounceStep::NeedsFence => self.fence(),
            AnnounceStep::NeedsBarrier if self.barrier() => {
                let mut i = 0;
                while let Some(link) = self.turns().looked_at(i) {
                    self.barrier_made(link);
                    i += 1;
                }
                full.iter().for_each(|link| self.barrier_made_for_room(*link));
                self.naps().barrier_made();
            }
            AnnounceStep::NeedsBarrier => {
                // Enough if the senders fence, too.
                self.fence();
                self.naps().barrier_refused();
            }
        }
        if self.has_news() || full.iter().any(|link| self.room_came(*link)) {
            return false;
        }
        let mut i = 0;
        while let Some(link) = self.turns().looked_at(i) {
            if self.is_ready(link) {
                self.look_again(link);
                return false;
            }
            i += 1;
        }
        true
    }

    /// Arms some idle links, if there are many: they are not looked at until their senders signal.
    #[inline]
    fn arm_idle(&mut self, now_ns: u64) {
        let mut some = [0; ARMED_AT_A_TIME];
        let many = self.turns_mut().choose_to_arm(now_ns, &mut some);
        if many > 0 {
            self.arm_these(&some[..many]);
        }
    }

    #[cold]
    #[inline(never)]
    fn arm_these(&mut self, some: &[u32]) {
        let mut announced = [None; ARMED_AT_A_TIME];
        for (link, announced) in some.iter().zip(&mut announced) {
            *announced = self.announce_for_any(*link);
        }
        let needs_barrier = announced.contains(&Some(AnnounceStep::NeedsBarrier));
        let is_made = needs_barrier && self.barrier();
        if !is_made {
            self.fence();
        }
        for (&link, announced) in some.iter().zip(announced) {
            let Some(announced) = announced else { continue };
            if is_made {
                self.barrier_made(link);
            }
            if announced == AnnounceStep::NeedsBarrier && !is_made {
                // Its sender may not see it: the kernel refuses the barrier that was agreed.
                self.has_taken(link);
            } else if self.is_ready(link) {
                self.has_taken(link);
                self.turns_mut().promote(link);
            } else {
                self.turns_mut().arm(link);
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::engine::turns::{Portion, SWEEP_NS, Turns};
    use crate::link::cells::{AtomicU64, Ordering};
    use crate::link::sim::Rng;
    use crate::link::sleep::Barrier;
    use alloc::sync::Arc;
    use alloc::vec::Vec;
    use core::cell::RefCell;

    type OneWord = Arc<AtomicU64>;

    /// One side sleeps until the other has done something: a packet, or room.
    struct Side {
        sleep: Sleeper<OneWord>,
        /// The sleeper's writes to its sleep word, and the value that the other side sees.
        written: OneWord,
        seen: OneWord,
        waker: Signaller<OneWord>,
        barrier: Barrier,
        /// Events of the other side that the sleeper does not see yet; and those that it does.
        buffered: u64,
        visible: u64,
        /// The other side has woken the sleeper.
        is_woken: bool,
        /// The other side asks for that with each packet.
        asks: bool,
    }

    impl Side {
        fn new(barrier: Barrier, asks: bool) -> Self {
            let (written, seen) = (OneWord::default(), OneWord::default());
            let (sleep, waker) = (
                Sleeper::new(written.clone(), barrier, true),
                Signaller::new(seen.clone(), barrier, true),
            );
            let (buffered, visible, is_woken) = (0, 0, false);
            Self { sleep, written, seen, waker, barrier, buffered, visible, is_woken, asks }
        }

        /// The other side acts, and looks whether to wake the sleeper. If it does not fence, its
        /// act may become visible only after that look.
        fn act(&mut self) {
            self.buffered += 1;
            if self.barrier == Barrier::Fence || self.waker.fences() {
                self.becomes_visible();
            }
            if let Some(announced) = self.waker.pending() {
                self.is_woken |= signal(&mut self.waker, announced, self.asks, || false).is_some();
            }
        }

        fn becomes_visible(&mut self) {
            self.visible += core::mem::take(&mut self.buffered);
        }

        fn is_announced(&self) {
            self.seen.store(self.written.load(Ordering::Relaxed), Ordering::Relaxed);
        }

        fn waits(&self) -> bool {
            self.visible + self.buffered > 0
        }
    }

    struct Line {
        packets: Side,
        arming: Arming,
        room: Side,
        taken: u64,
    }

    /// A node between whose steps others act, in an order that follows from a seed.
    struct Node {
        turns: Turns,
        lines: RefCell<Vec<Line>>,
        rng: RefCell<Rng>,
        now_ns: u64,
        naps: Naps,
        /// The kernel refuses the barrier.
        is_refused: bool,
        barriers: u64,
        /// The most acts of others between two steps.
        others_most: u64,
    }

    impl Node {
        fn new(seed: u64, links: usize) -> Self {
            let mut rng = Rng::new(seed);
            let mut turns = Turns::new();
            let lines = (0..links as u32).map(|link| {
                turns.add(link);
                let barrier = [Barrier::Asymmetric, Barrier::Fence][(rng.below(4) == 0) as usize];
                let packets = Side::new(barrier, true);
                let room = Side::new(barrier, true);
                Line { packets, arming: Arming::new(), room, taken: 0 }
            });
            let lines = RefCell::new(lines.collect());
            let rng = RefCell::new(rng);
            let naps = Naps::default();
            let (is_refused, barriers, others_most) = (false, 0, 4);
            Self { turns, lines, rng, now_ns: 1, naps, is_refused, barriers, others_most }
        }

        fn below(&self, bound: u64) -> u64 {
            self.rng.borrow_mut().below(bound)
        }

        /// Others act, or their acts become visible.
        fn others(&self) {
            let mut lines = self.lines.borrow_mut();
            for _ in 0..self.below(self.others_most) {
                let line = self.below(lines.len() as u64) as usize;
                let line = &mut lines[line];
                let side = if self.below(3) == 0 { &mut line.room } else { &mut line.packets };
                match self.below(8) {
                    0 => side.act(),
                    1 => side.becomes_visible(),
                    2 => side.is_announced(),
                    _ => {}
                }
            }
        }

        /// Every act is visible in the end.
        fn settle(&self) {
            for line in self.lines.borrow_mut().iter_mut() {
                for side in [&mut line.packets, &mut line.room] {
                    side.becomes_visible();
                    side.is_announced();
                }
            }
        }

        fn line<T>(&self, link: u32, act: impl FnOnce(&mut Line) -> T) -> T {
            self.others();
            act(&mut self.lines.borrow_mut()[link as usize])
        }

        /// A turn as a node makes it.
        fn turn(&mut self) {
            self.now_ns += 100;
            if !self.turns.begin() {
                self.look_at_active();
                return;
            }
            if self.turns.signals_are_due(self.now_ns) {
                self.take_signals();
            }
            self.look_at_active();
            for i in 0..self.turns.all_active().len() {
                let link = self.turns.all_active()[i] as usize;
                let line = &mut self.lines.get_mut()[link];
                line.arming.count_awake_turn(&mut line.packets.sleep);
            }
            self.sweep(self.now_ns);
            self.arm_idle(self.now_ns);
            self.turns.end_long_turn(false, true);
        }

        /// Links whose senders have woken this side are looked at.
        fn take_signals(&mut self) {
            let links = self.lines.get_mut().len() as u32;
            for link in 0..links {
                let side = &mut self.lines.get_mut()[link as usize];
                if core::mem::take(&mut side.packets.is_woken) {
                    side.arming.has_taken();
                    self.look_again(link);
                }
                self.lines.get_mut()[link as usize].room.is_woken = false;
            }
        }

        /// Links on which a packet waits (or room, if this side waits for it) while this side
        /// sleeps without a signal.
        fn unheard(&self, full: &[u32]) -> usize {
            let lines = self.lines.borrow();
            let packets = lines.iter().filter(|l| l.packets.waits() && !l.packets.is_woken);
            let room = |link: &&u32| {
                let room = &lines[**link as usize].room;
                room.waits() && !room.is_woken
            };
            packets.count() + full.iter().filter(room).count()
        }
    }

    impl TakesTurns for Node {
        fn turns(&self) -> &Turns {
            &self.turns
        }
        fn turns_mut(&mut self) -> &mut Turns {
            &mut self.turns
        }
        fn take_from(&mut self, link: u32) -> usize {
            self.take_portion(link, Portion { packets: 2, lines: 2 }).packets
        }
        fn take_portion(&mut self, link: u32, most: Portion) -> Portion {
            self.line(link, |line| {
                let packets = line.packets.visible.min(most.packets as u64);
                line.packets.visible -= packets;
                line.taken += packets;
                if packets > 0 {
                    line.arming.has_taken();
                }
                Portion { packets: packets as usize, lines: packets }
            })
        }
        fn is_ready(&self, link: u32) -> bool {
            self.line(link, |line| line.packets.visible > 0)
        }
        fn lines_taken(&self, link: u32) -> u64 {
            self.line(link, |line| line.taken)
        }
    }

    impl FallsAsleep for Node {
        fn announce(&mut self, link: u32, by: WakeBy) -> AnnounceStep {
            self.line(link, |line| line.arming.arm(&mut line.packets.sleep, by))
        }
        fn announce_for_room(&mut self, link: u32, by: WakeBy) -> AnnounceStep {
            self.line(link, |line| {
                line.room.sleep.arm(by);
                AnnounceStep::by(&line.room.sleep)
            })
        }
        fn announce_for_any(&mut self, link: u32) -> Option<AnnounceStep> {
            self.line(link, |line| line.arming.arm_for_any(&mut line.packets.sleep))
        }
        fn has_taken(&mut self, link: u32) {
            self.line(link, |line| line.arming.has_taken());
        }
        fn barrier(&mut self) -> bool {
            self.others();
            if !self.is_refused {
                self.barriers += 1;
                self.settle();
            }
            !self.is_refused
        }
        fn fence(&mut self) {
            self.others();
            for line in self.lines.get_mut() {
                line.packets.is_announced();
                line.room.is_announced();
            }
        }
        fn barrier_made(&mut self, link: u32) {
            self.line(link, |line| line.packets.sleep.barrier_made());
        }
        fn barrier_made_for_room(&mut self, link: u32) {
            self.line(link, |line| line.room.sleep.barrier_made());
        }
        fn naps(&mut self) -> &mut Naps {
            &mut self.naps
        }
        fn has_news(&mut self) -> bool {
            self.others();
            self.below(50) == 0
        }
        fn room_came(&mut self, link: u32) -> bool {
            self.line(link, |line| core::mem::take(&mut line.room.visible) > 0)
        }
    }

    /// A node with so many links that works, waits and sleeps. Returns how often it slept.
    fn live(seed: u64, links: usize, rounds: usize, is_refused: bool) -> u64 {
        let mut node = Node::new(seed, links);
        let mut sleeps = 0;
        for _ in 0..rounds {
            // Refused from some time on, also while links are armed: a filter that came later.
            node.is_refused |= is_refused && node.below(10) == 0;
            for _ in 0..node.below(6) {
                node.turn();
            }
            let full: Vec<u32> =
                (0..node.below(3)).map(|_| node.below(links as u64) as u32).collect();
            let by = [WakeBy::Byte, WakeBy::Bell][node.below(2) as usize];
            if node.fall_asleep(by, &full) {
                sleeps += 1;
                assert!(node.is_refused || !node.naps.are_needed(), "seed {seed}");
                (0..node.below(20)).for_each(|_| node.others());
                node.settle();
                let unheard = node.unheard(&full);
                assert!(
                    unheard == 0 || node.naps.are_needed(),
                    "seed {seed}: it sleeps over {unheard} links, and nobody wakes it"
                );
                if node.naps.take().is_some() {
                    // Packets from before the nap are found after it; senders of later ones wake.
                    node.take_signals();
                    while node.lines.borrow().iter().any(|line| line.packets.visible > 0) {
                        node.now_ns += SWEEP_NS;
                        node.turn();
                    }
                }
            }
            node.take_signals();
        }
        sleeps
    }

    #[test]
    fn no_wake_up_is_lost_whatever_happens_between_two_steps() {
        let mut sleeps = 0;
        for seed in 0..400 {
            sleeps += live(seed, [1, 2, 5, 12][seed as usize % 4], 200, false);
        }
        assert!(sleeps > 1000, "it slept {sleeps} times");
    }

    #[test]
    fn nor_is_one_where_the_kernel_refuses_the_barrier_from_some_time_on() {
        for seed in 0..400 {
            live(seed, [1, 2, 5, 12][seed as usize % 4], 200, true);
        }
    }

    /// A node without arrivals.
    fn quiet(seed: u64, links: usize) -> Node {
        Node { others_most: 0, ..Node::new(seed, links) }
    }

    /// A node of so many links that those without arrivals are armed: all.
    fn with_armed(seed: u64, links: usize) -> Node {
        let mut node = quiet(seed, links);
        for _ in 0..20_000 {
            node.now_ns += SWEEP_NS;
            node.turn();
        }
        assert_eq!(node.turns.all_armed().len(), links);
        node
    }

    #[test]
    fn what_comes_on_a_link_that_is_armed_is_signalled_whatever_its_sender_asks_for() {
        for seed in 0..3 {
            let mut node = with_armed(seed, 140);
            node.lines.get_mut().iter_mut().for_each(|line| line.packets.asks = false);
            node.others_most = 4;
            let mut signals = 0;
            for round in 0..2000 {
                node.is_refused |= round == 1500;
                (0..node.below(4)).for_each(|_| node.others());
                node.settle();
                for &link in node.turns.all_armed() {
                    let packets = &node.lines.borrow()[link as usize].packets;
                    assert!(packets.is_woken || !packets.waits(), "seed {seed}: link {link}");
                    signals += u64::from(packets.is_woken);
                }
                node.now_ns += SWEEP_NS;
                node.turn();
            }
            assert!(signals > 0, "nothing came on a link that was armed");
        }
    }

    #[test]
    fn whoever_sleeps_on_words_has_no_link_that_signals_by_a_byte() {
        let mut node = with_armed(1, 140);
        node.fall_asleep(WakeBy::Byte, &[]);
        assert_eq!(node.turns.all_armed().len(), 140);
        node.fall_asleep(WakeBy::Bell, &[]);
        assert!(node.turns.all_armed().is_empty());
    }

    fn is_told_again(arming: &mut Arming, sleep: &mut Sleeper<OneWord>, by: WakeBy) -> bool {
        arming.arm(sleep, by) != AnnounceStep::Already
    }

    #[test]
    fn a_sender_is_told_once_until_it_may_have_used_its_signal_or_is_to_wake_otherwise() {
        let mut side = Side::new(Barrier::Asymmetric, true);
        let (mut arming, sleep) = (Arming::new(), &mut side.sleep);
        assert!(is_told_again(&mut arming, sleep, WakeBy::Bell));
        assert!(!is_told_again(&mut arming, sleep, WakeBy::Bell));
        assert!(is_told_again(&mut arming, sleep, WakeBy::Byte));
        assert!(!is_told_again(&mut arming, sleep, WakeBy::Byte));
        arming.has_taken();
        assert!(is_told_again(&mut arming, sleep, WakeBy::Byte));
        // A sender that signals any packet does so by a byte, and hears of it before this side
        // sleeps on words.
        assert!(arming.arm_for_any(sleep).is_some());
        assert!(!is_told_again(&mut arming, sleep, WakeBy::Byte));
        assert!(is_told_again(&mut arming, sleep, WakeBy::Bell));
    }

    #[test]
    fn one_barrier_is_made_for_all_links_and_none_while_their_senders_fence() {
        let mut node = quiet(7, 100);
        for line in node.lines.get_mut() {
            line.packets = Side::new(Barrier::Asymmetric, true);
            assert_eq!(
                line.arming.arm(&mut line.packets.sleep, WakeBy::Bell),
                AnnounceStep::NeedsBarrier
            );
            line.arming.has_taken();
        }
        node.fall_asleep(WakeBy::Bell, &[3, 4]);
        assert_eq!(node.barriers, 1);
        for line in node.lines.get_mut() {
            line.arming.has_taken();
            assert_eq!(
                line.arming.arm(&mut line.packets.sleep, WakeBy::Bell),
                AnnounceStep::NeedsFence
            );
        }
        // A receiver that is awake for long, and takes something, no longer asks for fences.
        let line = &mut node.lines.get_mut()[0];
        line.arming.has_taken();
        for turn in 1..=AWAKE_TURNS {
            line.arming.count_awake_turn(&mut line.packets.sleep);
            assert_eq!(line.packets.sleep.needs_barrier(), turn == AWAKE_TURNS);
        }
    }

    #[test]
    fn a_sender_wakes_once_for_what_was_announced_and_only_if_it_is_to() {
        let mut side = Side::new(Barrier::Fence, false);
        side.sleep.arm(WakeBy::Bell);
        side.is_announced();
        let word = side.waker.pending().unwrap();
        // No sender asks for it, and there is room: the next packet may.
        assert_eq!(signal(&mut side.waker, word, false, || false), None);
        assert_eq!(side.waker.pending(), Some(word));
        assert_eq!(signal(&mut side.waker, word, false, || true), Some(WakeBy::Bell));
        assert_eq!(side.waker.pending(), None);
        side.sleep.arm_for_any();
        side.is_announced();
        let word = side.waker.pending().unwrap();
        assert_eq!(signal(&mut side.waker, word, false, || false), Some(WakeBy::Byte));
    }

    #[test]
    fn naps_become_longer_until_something_is_announced_anew_and_end_with_a_barrier() {
        let mut naps = Naps::default();
        assert_eq!((naps.take(), naps.are_needed()), (None, false));
        naps.barrier_refused();
        let taken: Vec<u64> = (0..10).map(|_| naps.take().unwrap() / NAP_NS).collect();
        assert_eq!(taken, [1, 2, 4, 8, 16, 32, 64, 100, 100, 100]);
        naps.barrier_refused();
        assert_eq!(naps.take(), Some(NAP_NS));
        naps.barrier_made();
        assert_eq!((naps.take(), naps.are_needed()), (None, false));
    }

    #[test]
    fn words_are_slept_on_where_they_reach_all_who_are_to_be_woken() {
        let mut ways = Ways::new(126);
        let by = |ways: &Ways, others, links| ways.choose(others, links, || true);
        assert_eq!(by(&ways, Others::Any, 126), WakeBy::Bell);
        assert_eq!(by(&ways, Others::Any, 127), WakeBy::Byte);
        assert_eq!(ways.choose(Others::None, 1, || false), WakeBy::Byte);
        // An event loop that watches the descriptor must be woken by it; a thread that has borrowed
        // the node need not.
        assert!(ways.watch() && !ways.watch());
        assert_eq!(by(&ways, Others::Any, 1), WakeBy::Byte);
        assert_eq!(by(&ways, Others::None, 1), WakeBy::Bell);
        ways.refuse_words();
        assert_eq!(by(&ways, Others::None, 0), WakeBy::Byte);
        assert_eq!(by(&Ways::new(0), Others::None, 0), WakeBy::Byte);
    }
}
