//! Whose turn it is: which links of a node are looked at in a turn, and what ends one.
//!
//! ```text
//!   each turn         look_at_active: every link in which packets were found lately
//!   each long turn    the same, and sweep(now): as many idle links as see all within SWEEP_NS
//!   in between        a message for whoever waits comes straight from the `latest` link's ring
//! ```
//! One word says that a turn is to be a long one: a countdown, which whatever calls for attention
//! sets to one. A link that was empty for a while becomes idle, and active again when something is
//! found in it. Each link is in exactly one list or in none, and knows its place there.
//!
//! Never: a walk over links that are idle, but for those of a sweep; an allocation in a turn.

use alloc::vec::Vec;

/// Up to this many links, all are active: a look at each costs less than choosing.
const ALWAYS_ACTIVE: usize = 8;
/// Turns without a packet after which a link is idle.
const EMPTY_TURNS_MAX: u32 = 4096;
/// Every idle link is looked at within about this time.
pub(crate) const SWEEP_NS: u64 = 20_000;
/// Turns after which one is a long one; so many messages may be handed over from one ring while
/// other links wait.
pub(crate) const TURNS_PER_LONG_TURN: u32 = 64;
/// The same for a node with one ring to look at.
const TURNS_PER_LONG_TURN_ALONE: u32 = 1024;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum List {
    #[default]
    None,
    Active,
    Idle,
}

/// Where a link stands, and what is known of it.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    list: List,
    position: u32,
    /// Turns in which nothing was found, one behind the other.
    empty_turns: u32,
    /// Lines that had been taken when they were counted last.
    lines_seen: u64,
}

/// What has to be known to say whose turn it is.
#[derive(Debug)]
pub(crate) struct Turns {
    active: Vec<u32>,
    idle: Vec<u32>,
    places: Vec<Place>,
    next_idle: usize,
    swept_ns: u64,
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
            places: Vec::new(),
            next_idle: 0,
            swept_ns: 0,
            attention: 1,
            latest: 0,
        }
    }

    /// Links that take part.
    pub fn len(&self) -> usize {
        self.active.len() + self.idle.len()
    }

    /// The link from which packets were taken last.
    #[inline(always)]
    pub fn latest(&self) -> u32 {
        self.latest
    }

    /// The `i`th active link.
    #[inline(always)]
    pub fn active(&self, i: usize) -> Option<u32> {
        self.active.get(i).copied()
    }

    /// The links in which packets were found lately.
    pub fn all_active(&self) -> &[u32] {
        &self.active
    }

    /// A new link takes part.
    pub fn add(&mut self, link: u32) {
        self.remove(link);
        if self.places.len() <= link as usize {
            self.places.resize(link as usize + 1, Place::default());
        }
        self.places[link as usize] = Place::default();
        self.put(link, List::Active);
        self.call_attention();
    }

    /// A link takes part no more.
    pub fn remove(&mut self, link: u32) {
        let Some(place) = self.places.get_mut(link as usize) else { return };
        let Place { list, position, .. } = core::mem::take(place);
        let list = match list {
            List::None => return,
            List::Active => &mut self.active,
            List::Idle => &mut self.idle,
        };
        list.swap_remove(position as usize);
        if let Some(&moved) = list.get(position as usize) {
            self.places[moved as usize].position = position;
        }
    }

    fn put(&mut self, link: u32, to: List) {
        let list = if to == List::Idle { &mut self.idle } else { &mut self.active };
        let place = &mut self.places[link as usize];
        (place.list, place.position, place.empty_turns) = (to, list.len() as u32, 0);
        list.push(link);
    }

    fn is_idle(&self, link: u32) -> bool {
        self.places.get(link as usize).is_some_and(|place| place.list == List::Idle)
    }

    /// Something is in this link, or may be: it is looked at in each turn from now on.
    pub fn promote(&mut self, link: u32) {
        if self.is_idle(link) {
            self.remove(link);
            self.put(link, List::Active);
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
        if place.empty_turns >= EMPTY_TURNS_MAX && place.list == List::Active {
            let lines_seen = place.lines_seen;
            self.remove(link);
            self.put(link, List::Idle);
            self.places[link as usize].lines_seen = lines_seen;
            self.attention = self.attention.min(TURNS_PER_LONG_TURN);
        }
    }

    /// A turn begins; says whether it is to be a long one.
    #[inline(always)]
    pub fn begin(&mut self) -> bool {
        self.attention -= 1;
        self.attention == 0
    }

    /// Whether a message may be handed over without a turn; [`handed_over`](Self::handed_over)
    /// follows if one was.
    #[inline(always)]
    pub fn may_hand_over(&self) -> bool {
        self.attention > 1
    }

    /// A message was handed over, which counts as a turn.
    #[inline(always)]
    pub fn handed_over(&mut self) {
        self.attention -= 1;
    }

    /// The next turn is a long one.
    pub fn call_attention(&mut self) {
        self.attention = 1;
    }

    /// A long turn ends. `is_busy`: so is the next one; `is_alone`: nothing waits for it.
    pub fn end_long_turn(&mut self, is_busy: bool, is_alone: bool) {
        self.attention = match is_busy {
            true => 1,
            false if is_alone && self.len() <= 1 => TURNS_PER_LONG_TURN_ALONE,
            false => TURNS_PER_LONG_TURN,
        };
    }
}

/// A node, or whatever has links and takes packets from them.
pub(crate) trait TakesTurns {
    fn turns(&self) -> &Turns;
    fn turns_mut(&mut self) -> &mut Turns;
    /// Takes a bounded number of packets from a link; says how many. The link may be gone then.
    fn take_from(&mut self, link: u32) -> usize;
    /// Whether a packet waits in a link.
    fn is_ready(&self, link: u32) -> bool;
    /// Lines taken from a link since it was made.
    fn lines_taken(&self, link: u32) -> u64;

    /// Takes what has come from every active link. Returns how many packets.
    #[inline(always)]
    fn look_at_active(&mut self) -> usize {
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

    /// Looks at as many idle links as make all of them seen within [`SWEEP_NS`], and takes what has
    /// come from them.
    fn sweep(&mut self, now_ns: u64) -> usize {
        let turns = self.turns_mut();
        let elapsed = now_ns.saturating_sub(turns.swept_ns);
        turns.swept_ns = now_ns;
        let idle = turns.idle.len();
        let looks = (idle as u64).saturating_mul(elapsed).div_ceil(SWEEP_NS) as usize;
        let mut taken = 0;
        for _ in 0..looks.min(idle) {
            let turns = self.turns_mut();
            if turns.next_idle >= turns.idle.len() {
                turns.next_idle = 0;
            }
            let Some(&link) = turns.idle.get(turns.next_idle) else { break };
            if self.is_ready(link) {
                // Another takes its place, and is looked at next.
                self.turns_mut().promote(link);
                taken += self.take_from(link);
            } else {
                self.turns_mut().next_idle += 1;
            }
        }
        taken
    }

    /// Whether a sweep has anything to look at.
    fn has_idle(&self) -> bool {
        !self.turns().idle.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::sim::Rng;
    use alloc::vec;

    /// Links that hold so many packets, and a clock that moves by so much a turn.
    struct Node {
        turns: Turns,
        waiting: Vec<u64>,
        lines: Vec<u64>,
        now_ns: u64,
        budget: usize,
    }

    impl TakesTurns for Node {
        fn turns(&self) -> &Turns {
            &self.turns
        }
        fn turns_mut(&mut self) -> &mut Turns {
            &mut self.turns
        }
        fn take_from(&mut self, link: u32) -> usize {
            let waiting = &mut self.waiting[link as usize];
            let taken = (*waiting).min(self.budget as u64);
            *waiting -= taken;
            self.lines[link as usize] += taken;
            taken as usize
        }
        fn is_ready(&self, link: u32) -> bool {
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
            Self { turns, waiting, lines, now_ns: 1, budget: 64 }
        }

        /// A turn as a node makes it.
        fn turn(&mut self) -> usize {
            self.now_ns += 30;
            if !self.turns.begin() {
                return self.look_at_active();
            }
            let taken = self.look_at_active() + self.sweep(self.now_ns);
            self.turns.end_long_turn(false, true);
            taken
        }

        /// What whoever waits for a message of the latest link does.
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

        /// Each link that takes part is in one list, where it says that it is.
        fn check(&self, takes_part: &[bool]) {
            let turns = &self.turns;
            assert_eq!(turns.len(), takes_part.iter().filter(|takes| **takes).count());
            for (list, links) in [(List::Active, &turns.active), (List::Idle, &turns.idle)] {
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
                    3 => node.turns.promote(link),
                    // Long enough for those in which nothing comes to become idle.
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
                    // A sweep's time, and what lies between two of them.
                    let bound = SWEEP_NS + 2 * 60 * TURNS_PER_LONG_TURN as u64;
                    assert!(node.now_ns - since <= bound, "link {link} of {links}");
                }
                assert!(!node.turns.is_idle(link as u32));
            }
        }
    }

    #[test]
    fn idle_links_are_looked_at_in_long_turns_alone() {
        let mut node = Node::new(1000);
        for _ in 0..2 * EMPTY_TURNS_MAX {
            node.waiting[0] += 1;
            node.turn();
        }
        // Whatever the others hold, a short turn does not see it.
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
