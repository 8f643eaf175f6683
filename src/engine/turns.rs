//! Turns: the links of a node that are looked at in a turn, and the end of a turn.
//!
//! ```text
//!   each turn         look_at_active: every link in which packets were found lately
//!   each long turn    the same, and sweep(now): as many idle links as see all within SWEEP_NS
//!   in between        a message for a waiting thread comes straight from the `latest` link's ring
//! ```
//! If there are more than [`ARMED_ABOVE`] links, an idle one is *armed* in time (`choose_to_arm`):
//! its sender signals its next packet, and it is not looked at until then. A node looks for signals
//! as often as it sweeps, at a cost that does not depend on the number of armed links.
//!
//! One word makes a turn a long one: a countdown, which every call for attention sets to one. A
//! link that was empty for a while becomes idle, and active again when something is found in it, or
//! its sender has signalled. Each link is in exactly one list or in none, and knows its place
//! there.
//!
//! The packets of a turn are bounded for each link and, if there are many links, for all together:
//! each link gets the same portion of a [`Budget`], and links without a turn before it is spent are
//! the first in the next. So one user's many links keep others waiting for about a millisecond, and
//! not for the time that emptying them all takes.
//!
//! Never: a walk over links that are armed, or over idle ones but for those of a sweep; an
//! allocation in a turn.

use alloc::vec::Vec;

/// Up to this many links, all are active: a look at each costs less than choosing.
const ALWAYS_ACTIVE: usize = 8;
/// Turns without a packet after which a link is idle, while at most [`ALWAYS_ACTIVE`] are active;
/// fewer if more are, since their turns are longer.
const EMPTY_TURNS_MAX: u32 = 4096;
const EMPTY_TURNS_MIN: u32 = 16;
/// Every idle link is looked at within about this time.
pub(crate) const SWEEP_NS: u64 = 20_000;
/// With no more links than this, none is armed: a sweep looks at so few soon enough, and a thread
/// that sleeps in a call can wait for the bells of all of them.
const ARMED_ABOVE: usize = 126;
/// Links that are armed together, with one barrier, and the pause before the next: so that a node
/// spends a hundredth of its time on it.
pub(crate) const ARMED_AT_A_TIME: usize = 64;
const ARMING_NS: u64 = 1_000_000;
/// Turns after which one is a long one; so many messages may be handed over from one ring while
/// other links wait.
pub(crate) const TURNS_PER_LONG_TURN: u32 = 64;
/// The same for a node with one ring to look at.
const TURNS_PER_LONG_TURN_ALONE: u32 = 1024;
/// Lines taken from one ring in a turn, about: 256 KiB. Counting packets alone would let one link
/// copy a whole bulk ring while the others wait.
pub(crate) const LINES_PER_RING: u64 = 4096;
/// Packets taken in a turn from all links together, if there are more than [`ALWAYS_ACTIVE`]: some
/// 0.2 ms, if each is looked at anew. Idle links in which something is found have a [`Budget`] of
/// their own, and so have the packets of links that have ended; so at most three times as many in a
/// long turn.
const PACKETS_PER_TURN: usize = 2048;
/// The same in lines, about: 2 MiB, which some 0.5 ms copy; of bulk rings of eight links, twice as
/// much.
const LINES_PER_TURN: u64 = 32_768;

/// An amount taken from rings, or its limit: packets, and lines of 64 bytes. A packet is taken
/// whole, so the lines may be exceeded by those of one packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Portion {
    pub packets: usize,
    pub lines: u64,
}

/// The amount that may still be taken from many links together in a turn.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget(Portion);

impl Budget {
    pub fn of_a_turn() -> Self {
        Self(Portion { packets: PACKETS_PER_TURN, lines: LINES_PER_TURN })
    }

    /// The portion of each of `links` links.
    fn portion(links: usize) -> Portion {
        let links = links.max(1);
        Portion {
            packets: (PACKETS_PER_TURN / links).max(1),
            lines: (LINES_PER_TURN / links as u64).max(1),
        }
    }

    /// The rest of the budget.
    pub fn left(&self) -> Portion {
        self.0
    }

    pub fn is_spent(&self) -> bool {
        self.0.packets == 0 || self.0.lines == 0
    }

    pub fn spend(&mut self, taken: Portion) {
        self.0.packets = self.0.packets.saturating_sub(taken.packets);
        self.0.lines = self.0.lines.saturating_sub(taken.lines);
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum List {
    #[default]
    None,
    Active,
    Idle,
    Armed,
}

/// A link's place in the lists, and its figures.
#[derive(Clone, Copy, Debug, Default)]
struct TurnEntry {
    list: List,
    position: u32,
    /// Turns in a row in which nothing was found.
    empty_turns: u32,
    /// Lines that had been taken when they were counted last.
    lines_seen: u64,
}

/// The state that decides the turns of links.
#[derive(Debug)]
pub(crate) struct Turns {
    active: Vec<u32>,
    idle: Vec<u32>,
    armed: Vec<u32>,
    places: Vec<TurnEntry>,
    /// The links before it in `active` have had their turn, if there are many.
    next_active: usize,
    next_idle: usize,
    next_to_arm: usize,
    swept_ns: u64,
    /// The times of the last look for signals, and of the last arming.
    signals_ns: u64,
    armed_ns: u64,
    /// Turns until a long one.
    attention: u32,
    /// The link from which packets were taken last.
    latest: u32,
}

impl Turns {
    pub fn new() -> Self {
        Self {
            active: Vec::new(),
            idle: Vec::new(),
            armed: Vec::new(),
            places: Vec::new(),
            next_active: 0,
            next_idle: 0,
            next_to_arm: 0,
            swept_ns: 0,
            signals_ns: 0,
            armed_ns: 0,
            attention: 1,
            latest: 0,
        }
    }

    /// Links that take part.
    pub fn len(&self) -> usize {
        self.active.len() + self.idle.len() + self.armed.len()
    }

    /// The link from which packets were taken last.
    #[inline]
    pub fn latest(&self) -> u32 {
        self.latest
    }

    /// The `i`th active link.
    #[inline]
    pub fn active(&self, i: usize) -> Option<u32> {
        self.active.get(i).copied()
    }

    /// The links in which packets were found lately.
    pub fn all_active(&self) -> &[u32] {
        &self.active
    }

    /// The `i`th of the links that are looked at, in a turn or in a sweep.
    pub fn looked_at(&self, i: usize) -> Option<u32> {
        let active = self.active.len();
        self.active.get(i).or_else(|| self.idle.get(i.wrapping_sub(active))).copied()
    }

    /// The links whose senders signal their next packets.
    pub fn all_armed(&self) -> &[u32] {
        &self.armed
    }

    /// The `i`th of the links that are not looked at in each turn.
    pub fn quiet(&self, i: usize) -> Option<u32> {
        let armed = self.armed.len();
        self.armed.get(i).or_else(|| self.idle.get(i.wrapping_sub(armed))).copied()
    }

    /// Whether a link's sender signals its next packet.
    pub fn is_armed(&self, link: u32) -> bool {
        self.places.get(link as usize).is_some_and(|place| place.list == List::Armed)
    }

    /// A new link takes part.
    pub fn add(&mut self, link: u32) {
        self.remove(link);
        if self.places.len() <= link as usize {
            self.places.resize(link as usize + 1, TurnEntry::default());
        }
        self.places[link as usize] = TurnEntry::default();
        self.put(link, List::Active);
        self.call_attention();
    }

    /// A link no longer takes part.
    pub fn remove(&mut self, link: u32) {
        let Some(place) = self.places.get_mut(link as usize) else { return };
        let TurnEntry { list, position, .. } = core::mem::take(place);
        let mut position = position as usize;
        let list = match list {
            List::None => return,
            List::Active => {
                if position < self.next_active {
                    // The last link that had its turn takes its place: the last of all, which moves
                    // to that one's place, may not have had its own yet.
                    self.next_active -= 1;
                    let last = self.active[self.next_active];
                    self.active.swap(position, self.next_active);
                    self.places[last as usize].position = position as u32;
                    position = self.next_active;
                }
                &mut self.active
            }
            List::Idle => &mut self.idle,
            List::Armed => &mut self.armed,
        };
        list.swap_remove(position);
        if let Some(&moved) = list.get(position) {
            self.places[moved as usize].position = position as u32;
        }
    }

    /// The active link with the next turn.
    fn next_in_turn(&mut self) -> Option<u32> {
        if self.next_active >= self.active.len() {
            self.next_active = 0;
        }
        let link = self.active.get(self.next_active).copied()?;
        self.next_active += 1;
        Some(link)
    }

    fn put(&mut self, link: u32, to: List) {
        let list = match to {
            List::None => return,
            List::Active => &mut self.active,
            List::Idle => &mut self.idle,
            List::Armed => &mut self.armed,
        };
        let place = &mut self.places[link as usize];
        (place.list, place.position, place.empty_turns) = (to, list.len() as u32, 0);
        list.push(link);
    }

    /// Something is in this link, or may be: it is looked at in each turn from now on. `true`: it
    /// was armed, and a thread that goes to sleep must arm it anew.
    pub fn promote(&mut self, link: u32) -> bool {
        let list = self.places.get(link as usize).map_or(List::None, |place| place.list);
        if matches!(list, List::Idle | List::Armed) {
            self.remove(link);
            self.put(link, List::Active);
        }
        list == List::Armed
    }

    /// Whether it is time to look for signals of links that are armed; the caller then does.
    pub fn signals_are_due(&mut self, now_ns: u64) -> bool {
        let is_due = !self.armed.is_empty() && now_ns.saturating_sub(self.signals_ns) >= SWEEP_NS;
        if is_due {
            self.signals_ns = now_ns;
        }
        is_due
    }

    /// More signals wait than could be taken: they are looked for in the next turn.
    pub fn more_signals(&mut self) {
        self.signals_ns = 0;
    }

    /// Writes the idle links that should be armed now, if any, and returns their number. The caller
    /// arms those whose senders understand it, makes a barrier, looks at each once more, and then
    /// reports those that [are armed](Self::arm) and those that [have something](Self::promote).
    pub fn choose_to_arm(&mut self, now_ns: u64, links: &mut [u32; ARMED_AT_A_TIME]) -> usize {
        let is_time = now_ns.saturating_sub(self.armed_ns) >= ARMING_NS;
        if self.len() <= ARMED_ABOVE || self.idle.is_empty() || !is_time {
            return 0;
        }
        self.armed_ns = now_ns;
        let many = self.idle.len().min(ARMED_AT_A_TIME);
        for link in &mut links[..many] {
            // Links that cannot be armed stay idle, and do not block the others.
            if self.next_to_arm >= self.idle.len() {
                self.next_to_arm = 0;
            }
            *link = self.idle[self.next_to_arm];
            self.next_to_arm += 1;
        }
        many
    }

    /// An idle link's sender will signal its next packet.
    pub fn arm(&mut self, link: u32) {
        if self.places.get(link as usize).is_some_and(|place| place.list == List::Idle) {
            self.remove(link);
            self.put(link, List::Armed);
        }
    }

    /// Nothing was found in a link, of which `lines` have been taken so far.
    fn found_nothing(&mut self, link: u32, lines: u64) {
        let Some(place) = self.places.get_mut(link as usize) else { return };
        if place.lines_seen != lines {
            (place.lines_seen, place.empty_turns) = (lines, 0);
            return;
        }
        place.empty_turns += 1;
        let always = ALWAYS_ACTIVE as u32;
        let longer = self.active.len() as u32 / always;
        let most = (EMPTY_TURNS_MAX / longer.max(1)).max(EMPTY_TURNS_MIN);
        if place.empty_turns >= most && place.list == List::Active {
            let lines_seen = place.lines_seen;
            self.remove(link);
            self.put(link, List::Idle);
            self.places[link as usize].lines_seen = lines_seen;
            self.attention = self.attention.min(TURNS_PER_LONG_TURN);
        }
    }

    /// A turn begins; returns whether it is a long one.
    #[inline]
    pub fn begin(&mut self) -> bool {
        self.attention -= 1;
        self.attention == 0
    }

    /// Whether a message may be handed over without a turn; [`handed_over`](Self::handed_over)
    /// follows if one was.
    #[inline]
    pub fn may_hand_over(&self) -> bool {
        self.attention > 1
    }

    /// A message was handed over, which counts as a turn.
    #[inline]
    pub fn handed_over(&mut self) {
        self.attention -= 1;
    }

    /// The next turn is a long one.
    pub fn call_attention(&mut self) {
        self.attention = 1;
    }

    /// A long turn ends. `is_busy`: so is the next one; `is_alone`: nothing waits for it.
    pub fn end_long_turn(&mut self, is_busy: bool, is_alone: bool) {
        let more_signals = self.signals_ns == 0 && !self.armed.is_empty();
        self.attention = match is_busy || more_signals {
            true => 1,
            false if is_alone && self.len() <= 1 => TURNS_PER_LONG_TURN_ALONE,
            false => TURNS_PER_LONG_TURN,
        };
    }
}

/// A node, or another owner of links that takes packets from them.
pub(crate) trait TakesTurns {
    fn turns(&self) -> &Turns;
    fn turns_mut(&mut self) -> &mut Turns;
    /// Takes a bounded number of packets from a link; returns the number. The link may be gone
    /// afterwards.
    fn take_from(&mut self, link: u32) -> usize;
    /// The same, with at most `most` from each of its rings; returns the amount.
    fn take_portion(&mut self, link: u32, most: Portion) -> Portion;
    /// Whether a packet waits in a link.
    fn is_ready(&self, link: u32) -> bool;
    /// Lines taken from a link since it was made.
    fn lines_taken(&self, link: u32) -> u64;

    /// Takes packets from every active link, within a turn's bounds. Returns their number.
    #[inline]
    fn look_at_active(&mut self) -> usize {
        if self.turns().active.len() > ALWAYS_ACTIVE {
            return self.look_at_many();
        }
        let mut taken = 0;
        let mut i = 0;
        while let Some(link) = self.turns().active(i) {
            let found = self.take_from(link);
            taken += found;
            if found > 0 {
                self.turns_mut().latest = link;
            } else if self.turns().len() > ALWAYS_ACTIVE {
                let lines = self.lines_taken(link);
                self.turns_mut().found_nothing(link, lines);
            }
            i += 1;
        }
        taken
    }

    /// The same for many active links: one after the other, each the same portion, until a turn's
    /// budget is spent; the next turn continues from there.
    #[inline(never)]
    fn look_at_many(&mut self) -> usize {
        let links = self.turns().active.len();
        let portion = Budget::portion(links);
        let mut budget = Budget::of_a_turn();
        let mut taken = 0;
        for _ in 0..links {
            if budget.is_spent() {
                break;
            }
            let Some(link) = self.turns_mut().next_in_turn() else { break };
            let left = budget.left();
            let most = Portion {
                packets: portion.packets.min(left.packets),
                lines: portion.lines.min(left.lines),
            };
            let found = self.take_portion(link, most);
            if found.packets > 0 {
                taken += found.packets;
                budget.spend(found);
                self.turns_mut().latest = link;
            } else {
                let lines = self.lines_taken(link);
                self.turns_mut().found_nothing(link, lines);
            }
        }
        taken
    }

    /// Looks at so many idle links that all are seen within [`SWEEP_NS`], and takes their packets,
    /// within a turn's budget: once that is spent, links with packets become active, and have their
    /// turns as such.
    fn sweep(&mut self, now_ns: u64) -> usize {
        let turns = self.turns_mut();
        let elapsed = now_ns.saturating_sub(turns.swept_ns);
        turns.swept_ns = now_ns;
        let idle = turns.idle.len();
        let looks = (idle as u64).saturating_mul(elapsed).div_ceil(SWEEP_NS) as usize;
        let mut taken = 0;
        let mut budget = Budget::of_a_turn();
        for _ in 0..looks.min(idle) {
            let turns = self.turns_mut();
            if turns.next_idle >= turns.idle.len() {
                turns.next_idle = 0;
            }
            let Some(&link) = turns.idle.get(turns.next_idle) else { break };
            if self.is_ready(link) {
                // Another takes its place, and is looked at next.
                self.turns_mut().promote(link);
                if !budget.is_spent() {
                    let found = self.take_portion(link, budget.left());
                    budget.spend(found);
                    taken += found.packets;
                }
            } else {
                self.turns_mut().next_idle += 1;
            }
        }
        taken
    }

    /// Whether there are links that are not looked at in each turn.
    #[inline]
    fn has_idle(&self) -> bool {
        !self.turns().idle.is_empty() || !self.turns().armed.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::sim::Rng;
    use alloc::vec;
    use core::cell::Cell;

    /// Links that hold so many packets, and a clock that moves by so much a turn.
    struct Node {
        turns: Turns,
        waiting: Vec<u64>,
        lines: Vec<u64>,
        now_ns: u64,
        budget: usize,
        lines_of_a_packet: u64,
        /// Lines taken in this turn.
        in_turn: u64,
        /// Looks at links, and for signals.
        looks: Cell<u64>,
        signal_looks: u64,
        /// Links that cannot be armed.
        never_armed: fn(u32) -> bool,
    }

    impl TakesTurns for Node {
        fn turns(&self) -> &Turns {
            &self.turns
        }
        fn turns_mut(&mut self) -> &mut Turns {
            &mut self.turns
        }
        fn take_from(&mut self, link: u32) -> usize {
            let most = Portion { packets: self.budget, lines: LINES_PER_RING };
            self.take_portion(link, most).packets
        }
        fn take_portion(&mut self, link: u32, most: Portion) -> Portion {
            self.looks.set(self.looks.get() + 1);
            let waiting = &mut self.waiting[link as usize];
            let lines = most.lines.min(LINES_PER_RING);
            let packets = (*waiting)
                .min(self.budget.min(most.packets) as u64)
                .min(lines.div_ceil(self.lines_of_a_packet));
            let lines = packets * self.lines_of_a_packet;
            *waiting -= packets;
            self.lines[link as usize] += lines;
            self.in_turn += lines;
            Portion { packets: packets as usize, lines }
        }
        fn is_ready(&self, link: u32) -> bool {
            self.looks.set(self.looks.get() + 1);
            self.waiting[link as usize] > 0
        }
        fn lines_taken(&self, link: u32) -> u64 {
            self.lines[link as usize]
        }
    }

    impl Node {
        fn new(links: usize) -> Self {
            let mut turns = Turns::new();
            (0..links as u32).for_each(|link| turns.add(link));
            let (waiting, lines) = (vec![0; links], vec![0; links]);
            let (lines_of_a_packet, in_turn) = (1, 0);
            Self {
                turns,
                waiting,
                lines,
                now_ns: 1,
                budget: 64,
                lines_of_a_packet,
                in_turn,
                looks: Cell::new(0),
                signal_looks: 0,
                never_armed: |_| false,
            }
        }

        /// Armed links that have something have signalled it; a bounded number is reported at a
        /// time.
        fn look_for_signals(&mut self) {
            const AT_A_TIME: usize = 64;
            self.signal_looks += 1;
            let has_something = |link: &&u32| self.waiting[**link as usize] > 0;
            let signalled: Vec<u32> =
                self.turns.armed.iter().filter(has_something).take(AT_A_TIME).copied().collect();
            signalled.iter().for_each(|link| assert!(self.turns.promote(*link)));
            if signalled.len() == AT_A_TIME {
                self.turns.more_signals();
            }
        }

        fn arm_idle(&mut self) {
            let mut some = [0; ARMED_AT_A_TIME];
            let many = self.turns.choose_to_arm(self.now_ns, &mut some);
            for &link in some[..many].iter().filter(|link| !(self.never_armed)(**link)) {
                match self.is_ready(link) {
                    true => assert!(!self.turns.promote(link)),
                    false => self.turns.arm(link),
                }
            }
        }

        /// A turn as a node makes it.
        fn turn(&mut self) -> usize {
            self.now_ns += 30;
            self.in_turn = 0;
            if !self.turns.begin() {
                return self.look_at_active();
            }
            if self.turns.signals_are_due(self.now_ns) {
                self.look_for_signals();
            }
            let taken = self.look_at_active() + self.sweep(self.now_ns);
            self.arm_idle();
            self.turns.end_long_turn(false, true);
            taken
        }

        /// Acts as a thread that waits for a message of the latest link.
        fn hand_over(&mut self) -> bool {
            let link = self.turns.latest() as usize;
            if !self.turns.may_hand_over() || self.waiting[link] == 0 {
                return false;
            }
            self.turns.handed_over();
            self.waiting[link] -= 1;
            self.lines[link] += 1;
            true
        }

        /// Each link that takes part is in one list, at the place that it records.
        fn check(&self, takes_part: &[bool]) {
            let turns = &self.turns;
            assert_eq!(turns.len(), takes_part.iter().filter(|takes| **takes).count());
            let lists = [
                (List::Active, &turns.active),
                (List::Idle, &turns.idle),
                (List::Armed, &turns.armed),
            ];
            for (list, links) in lists {
                for (position, &link) in links.iter().enumerate() {
                    let place = turns.places[link as usize];
                    assert!(takes_part[link as usize]);
                    assert_eq!((place.list, place.position as usize), (list, position));
                }
            }
        }
    }

    #[test]
    fn links_come_and_go_in_any_order_and_are_in_one_list_each() {
        for seed in 0..200 {
            let mut rng = Rng::new(seed);
            let mut node = Node::new(0);
            (node.waiting, node.lines) = (vec![0; 40], vec![0; 40]);
            let mut takes_part = vec![false; 40];
            for _ in 0..400 {
                let link = rng.below(40) as u32;
                match rng.below(6) {
                    0 | 1 => {
                        node.turns.add(link);
                        takes_part[link as usize] = true;
                    }
                    2 => {
                        node.turns.remove(link);
                        takes_part[link as usize] = false;
                    }
                    3 => _ = node.turns.promote(link),
                    // Long enough for links without arrivals to become idle.
                    4 => {
                        node.waiting[link as usize] += takes_part[link as usize] as u64;
                        for _ in 0..600 {
                            node.turn();
                        }
                    }
                    _ => {
                        node.turn();
                    }
                }
                node.check(&takes_part);
            }
        }
    }

    #[test]
    fn a_link_that_always_has_messages_keeps_no_other_waiting_longer_than_a_long_turn() {
        let mut node = Node::new(3);
        node.waiting[0] = u64::MAX / 2;
        node.turn();
        for _ in 0..100 {
            node.waiting[1] += 1;
            let mut turns = 0;
            while node.waiting[1] > 0 {
                if !node.hand_over() {
                    node.turn();
                }
                turns += 1;
                assert!(turns <= TURNS_PER_LONG_TURN, "the other waits");
            }
        }
    }

    #[test]
    fn a_turn_is_bounded_over_all_links_together_however_many_are_full() {
        for (links, lines_of_a_packet) in [(9, 1), (9, 257), (100, 17), (400, 257), (5000, 1)] {
            let mut node = Node::new(links);
            node.lines_of_a_packet = lines_of_a_packet;
            node.waiting.fill(u64::MAX / 2);
            for _ in 0..100 {
                let packets = node.turn();
                assert!(packets > 0 && packets <= PACKETS_PER_TURN, "{packets} of {links} links");
                let bound = LINES_PER_TURN + lines_of_a_packet;
                assert!(node.in_turn <= bound, "{} lines of {links} links", node.in_turn);
            }
        }
    }

    #[test]
    fn what_a_sweep_finds_is_bounded_too_and_has_its_turn_next() {
        let mut node = Node::new(3000);
        for _ in 0..2 * EMPTY_TURNS_MAX {
            node.waiting[0] += 1;
            node.turn();
        }
        node.lines_of_a_packet = 257;
        node.waiting[1..].fill(64);
        // Long enough for all of them to be due.
        node.now_ns += 2 * SWEEP_NS;
        node.turns.call_attention();
        node.turn();
        assert_eq!(node.turns.active.len(), 3000);
        assert!(node.in_turn <= LINES_PER_TURN + 257 + 1, "{} lines", node.in_turn);
        for _ in 0..3000 * 257 / LINES_PER_TURN + 1 {
            node.turn();
        }
        assert!(node.waiting[1..].iter().all(|waiting| *waiting < 64), "one had no turn");
    }

    #[test]
    fn no_link_is_passed_over_while_others_are_full_and_come_and_go() {
        for seed in 0..50 {
            let mut rng = Rng::new(seed);
            // All are full at all times; those with even numbers stay, the others come and go.
            let mut node = Node::new(600);
            node.waiting.fill(u64::MAX / 2);
            node.lines_of_a_packet = 257;
            for turn in 0..300 {
                node.turn();
                // One packet a turn: none has a second one before each has had its first.
                let stay = || node.lines.iter().step_by(2);
                let (least, most) = (stay().min().unwrap(), stay().max().unwrap());
                assert!(most - least <= 257, "turn {turn}: {least} and {most} lines");
                // Each turn has 128 of these packets: all have one in six turns, new ones included.
                assert!(least / 257 >= turn / 6, "turn {turn}: {least} lines");
                for _ in 0..rng.below(40) {
                    let link = rng.below(300) as u32 * 2 + 1;
                    match rng.below(2) {
                        0 => node.turns.add(link),
                        _ => node.turns.remove(link),
                    }
                }
            }
            let stays =
                |link: usize| link.is_multiple_of(2) || node.turns.places[link].list != List::None;
            node.check(&(0..600).map(stays).collect::<Vec<_>>());
        }
    }

    #[test]
    fn every_idle_link_is_found_in_time_though_another_is_busy() {
        for links in [9, 100, 3000] {
            let mut node = Node::new(links);
            for _ in 0..2 * EMPTY_TURNS_MAX {
                node.waiting[0] += 1;
                node.turn();
            }
            assert_eq!(node.turns.active, [0], "all but the busy one are idle");
            for link in [1, links / 2, links - 1] {
                node.waiting[link] = 1;
                let since = node.now_ns;
                while node.waiting[link] > 0 {
                    node.waiting[0] += 1;
                    if !node.hand_over() {
                        node.turn();
                    }
                    node.now_ns += 30;
                    // A sweep's time, and the time between two sweeps.
                    let bound = SWEEP_NS + 2 * 60 * TURNS_PER_LONG_TURN as u64;
                    assert!(node.now_ns - since <= bound, "link {link} of {links}");
                }
                assert_eq!(node.turns.places[link].list, List::Active);
            }
        }
    }

    /// A node whose links, all but the first, which is busy, are armed.
    fn all_but_one_armed(links: usize) -> Node {
        let mut node = Node::new(links);
        while node.turns.armed.len() < links - 1 {
            node.waiting[0] += 1;
            node.now_ns += SWEEP_NS;
            node.turn();
        }
        assert_eq!(node.turns.active, [0]);
        node
    }

    #[test]
    fn links_that_are_armed_are_not_looked_at_however_many() {
        for links in [200, 10_000] {
            let mut node = all_but_one_armed(links);
            (node.looks, node.signal_looks) = (Cell::new(0), 0);
            let since_ns = node.now_ns;
            for _ in 0..100_000 {
                node.waiting[0] += 1;
                node.turn();
            }
            assert_eq!(node.looks.get(), 100_000, "the busy one's, of {links}");
            let most = (node.now_ns - since_ns).div_ceil(SWEEP_NS);
            assert!(node.signal_looks > 0 && node.signal_looks <= most, "{}", node.signal_looks);
        }
        // So few are not armed: a sleeping thread waits for their bells.
        let mut node = Node::new(ARMED_ABOVE);
        for _ in 0..100_000 {
            node.now_ns += SWEEP_NS;
            node.turn();
        }
        assert!(node.turns.armed.is_empty());
    }

    #[test]
    fn what_comes_on_links_that_are_armed_is_found_in_time() {
        let mut node = all_but_one_armed(10_000);
        // One of them; and then all at once: each look reports some, and the next turn looks again.
        for (speak, bound) in [(1..2, SWEEP_NS), (2..10_000, 10_000 / 64 * 60 + 2 * SWEEP_NS)] {
            node.waiting[speak.clone()].fill(1);
            let since_ns = node.now_ns;
            while node.waiting[speak.clone()].iter().any(|waiting| *waiting > 0) {
                node.waiting[0] += 1;
                node.turn();
                let bound = bound + 2 * 60 * TURNS_PER_LONG_TURN as u64;
                assert!(
                    node.now_ns - since_ns <= bound,
                    "{speak:?} after {}",
                    node.now_ns - since_ns
                );
            }
        }
        // And again, once they have been idle for a while.
        let mut node = all_but_one_armed(200);
        for round in 0..1000 {
            let link = 1 + round % 199;
            node.waiting[link] += 1;
            node.now_ns += SWEEP_NS;
            (0..TURNS_PER_LONG_TURN).for_each(|_| _ = node.turn());
            assert_eq!(node.waiting[link], 0, "round {round}");
        }
    }

    #[test]
    fn links_that_cannot_be_armed_stand_in_nobodys_way() {
        let mut node = Node::new(1000);
        node.never_armed = |link| link % 2 == 1;
        for _ in 0..20_000 {
            node.waiting[0] += 1;
            node.now_ns += SWEEP_NS;
            node.turn();
        }
        assert_eq!((node.turns.armed.len(), node.turns.idle.len()), (499, 500));
        node.waiting[7] = 1;
        for _ in 0..TURNS_PER_LONG_TURN {
            node.now_ns += SWEEP_NS;
            node.turn();
        }
        assert_eq!(node.waiting[7], 0);
    }

    #[test]
    fn ten_thousand_peers_that_say_nothing_cost_a_turn_no_more_than_a_thousand() {
        let count = |links: usize| {
            let mut node = Node::new(links);
            let turn = |node: &mut Node| {
                node.waiting[0] += 1;
                node.now_ns += SWEEP_NS;
                node.turn();
            };
            // Silent links become idle, and are armed so many in so much time.
            let longest = links as u64 / ARMED_AT_A_TIME as u64 * ARMING_NS / SWEEP_NS;
            let mut turns = 0;
            while node.turns.armed.len() + 1 < links {
                turn(&mut node);
                turns += 1;
                assert!(turns <= 2 * (longest + u64::from(EMPTY_TURNS_MAX)), "{turns} turns");
            }
            let (looks, signal_looks) = (node.looks.get(), node.signal_looks);
            const TURNS: u64 = 64 * TURNS_PER_LONG_TURN as u64;
            (0..TURNS).for_each(|_| turn(&mut node));
            // One of them all is found as soon as any.
            node.waiting[links / 2] = 1;
            (0..TURNS_PER_LONG_TURN).for_each(|_| turn(&mut node));
            assert_eq!(node.waiting[links / 2], 0);
            let capacity = node.turns.places.capacity() * size_of::<TurnEntry>()
                + [&node.turns.active, &node.turns.idle, &node.turns.armed]
                    .map(|list| list.capacity() * size_of::<u32>())
                    .iter()
                    .sum::<usize>();
            ((node.looks.get() - looks) / TURNS, node.signal_looks - signal_looks, capacity / links)
        };
        let (few, many) = (count(1000), count(10_000));
        // Looks a turn, looks for signals, bytes of a link.
        assert_eq!((few.0, few.1), (many.0, many.1));
        assert!(many.2 <= 96, "{} bytes of a link", many.2);
    }

    #[test]
    fn idle_links_are_looked_at_in_long_turns_alone() {
        let mut node = Node::new(1000);
        for _ in 0..2 * EMPTY_TURNS_MAX {
            node.waiting[0] += 1;
            node.turn();
        }
        // A short turn does not see packets of the others.
        node.turns.end_long_turn(false, true);
        node.waiting[1..].fill(1);
        for _ in 1..TURNS_PER_LONG_TURN {
            node.turn();
            assert!(node.waiting[1..].iter().all(|waiting| *waiting == 1));
        }
        node.turn();
        assert!(node.waiting[1..].contains(&0));
    }

    #[test]
    fn what_calls_for_attention_is_looked_at_in_the_next_turn() {
        let mut turns = Turns::new();
        turns.end_long_turn(false, true);
        assert!(turns.may_hand_over() && !turns.begin());
        turns.call_attention();
        assert!(!turns.may_hand_over() && turns.begin());
        turns.end_long_turn(true, true);
        assert!(turns.begin());
    }
}
