//! Both ends of a link over simulated cables, which can be slow, stall, be cut, and lose their
//! contents.

use super::super::late::Late;
use super::*;
use core::sync::atomic::AtomicUsize;
use proptest::prelude::*;
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard};
use std::vec;

const CREDIT: u32 = 64 << 10;
const BATCH: usize = 4096;
/// Time limits that have always, and never, passed.
const NOW: Duration = Duration::ZERO;
const NEVER: Duration = Duration::MAX;

/// Both directions of a cable: the bytes on it, and whether they move.
#[derive(Debug, Default)]
struct Cable {
    ways: [VecDeque<u8>; 2],
    stalls: [bool; 2],
    is_cut: bool,
    /// Bytes that were put on it, each way.
    put: [u64; 2],
    /// Bytes that the cable has not taken.
    waits: [usize; 2],
}

type Shared = Arc<Mutex<Cable>>;

fn lock(cable: &Shared) -> MutexGuard<'_, Cable> {
    cable.lock().unwrap()
}

/// Bytes that a cable buffers unread, like the system.
const CABLE_BYTES: usize = 4 << 10;

/// One end of a cable, which sends in the direction of its own number.
#[derive(Debug)]
struct Plug {
    cable: Shared,
    side: usize,
    bell: Bell,
    unsent: Vec<u8>,
    plain: Vec<u8>,
    received: u64,
    ended: Option<PathEnd>,
}

impl Path for Plug {
    fn plain(&self) -> &[u8] {
        &self.plain
    }

    fn take(&mut self, bytes: usize) {
        self.plain.drain(..bytes);
    }

    fn receive(&mut self, most: usize) -> bool {
        let mut cable = lock(&self.cable);
        if cable.is_cut {
            self.ended.get_or_insert(PathEnd::Cut);
            return false;
        }
        let other = 1 - self.side;
        let bytes = match cable.stalls[other] {
            true => 0,
            false => cable.ways[other].len().min(most.saturating_sub(self.plain.len())),
        };
        self.plain.extend(cable.ways[other].drain(..bytes));
        self.received += bytes as u64;
        bytes > 0
    }

    fn received(&self) -> u64 {
        self.received
    }

    fn ended(&self) -> Option<&PathEnd> {
        self.ended.as_ref()
    }

    fn put(&mut self, bytes: &[u8]) {
        self.unsent.extend_from_slice(bytes);
        lock(&self.cable).waits[self.side] = self.unsent.len();
    }

    fn flush(&mut self) -> bool {
        let mut cable = lock(&self.cable);
        if cable.is_cut {
            return true;
        }
        let own = self.side;
        let room = CABLE_BYTES.saturating_sub(cable.ways[own].len());
        let bytes = self.unsent.len().min(room);
        cable.ways[own].extend(self.unsent.drain(..bytes));
        cable.put[own] += bytes as u64;
        cable.waits[own] = self.unsent.len();
        self.unsent.is_empty()
    }

    fn is_broken(&self) -> bool {
        lock(&self.cable).is_cut
    }

    fn put_end(&mut self) {}

    fn is_delivered(&mut self) -> bool {
        true
    }

    fn break_off(&self) {
        lock(&self.cable).is_cut = true;
    }

    fn tcp(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    fn takes_more(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn may_sleep(&mut self) -> bool {
        true
    }

    fn explain(&self) -> String {
        "a cable".into()
    }
}

impl AsFd for Plug {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

/// Both ends, and the cables at each place.
struct Link {
    ends: [Rails; 2],
    cables: Vec<Shared>,
    /// For each end: the numbers of the packets that it got, in their order.
    got: [Vec<u32>; 2],
    next: [u32; 2],
}

fn live(more: &Arc<AtomicUsize>) -> Arc<Live> {
    Live::new(more, &Arc::new(Late::new(Bell::new().unwrap())))
}

impl Link {
    fn new(count: u8) -> Self {
        Self::granting(count, [CREDIT; 2])
    }

    /// Ends with these credits, of which the smaller counts.
    fn granting(count: u8, credits: [u32; 2]) -> Self {
        let credit = credits[0].min(credits[1]);
        let end = |own_credit| {
            let terms = Terms { count, credit, own_credit, batch_bytes: BATCH };
            Rails::none(terms, live(&Arc::default())).unwrap()
        };
        let cables = vec![Shared::default(); count.into()];
        let (got, next) = Default::default();
        let mut this = Self { ends: credits.map(end), cables, got, next };
        (0..count).for_each(|place| this.join(place));
        this
    }

    fn join(&mut self, place: u8) {
        let cable = Shared::default();
        for (side, end) in self.ends.iter_mut().enumerate() {
            let plug = Plug {
                cable: cable.clone(),
                side,
                bell: Bell::new().unwrap(),
                unsent: vec![],
                plain: vec![],
                received: 0,
                ended: None,
            };
            end.join(place, String::new(), Box::new(plug)).unwrap();
        }
        self.cables[usize::from(place)] = cable;
    }

    /// Whether the link took one more packet; every third may overtake.
    fn put(&mut self, from: usize, bytes: usize) -> bool {
        let end = &mut self.ends[from];
        if !end.flush() {
            return false;
        }
        let number = self.next[from];
        let mut batch = vec![7; bytes.max(super::super::frames::HEADER_BYTES)];
        batch[..4].copy_from_slice(&number.to_le_bytes());
        match number % 3 {
            0 => end.put_long(&batch),
            _ => end.put(&batch),
        }
        end.flush();
        self.next[from] += 1;
        true
    }

    /// Takes incoming packets, like a turn of the node.
    fn take(&mut self, at: usize) -> bool {
        let end = &mut self.ends[at];
        let mut moved = end.plain().is_empty() && end.receive(1);
        while let Some(number) = end.plain().first_chunk() {
            self.got[at].push(u32::from_le_bytes(*number));
            end.take(end.plain().len());
            moved = true;
        }
        end.flush();
        moved
    }

    /// Makes turns until nothing moves any more.
    fn settle(&mut self) {
        let (mut quiet, mut rounds) = (0, 0);
        while quiet < 3 {
            let moved = self.take(0) | self.take(1);
            quiet = if moved { 0 } else { quiet + 1 };
            rounds += 1;
            assert!(rounds < 10_000, "it does not come to rest");
        }
    }

    /// Checks the packets from the other end: each number once, the short ones in their order.
    fn check(&self, at: usize) {
        let got = &self.got[at];
        let shorts = got.iter().filter(|number| **number % 3 != 0);
        assert!(shorts.is_sorted(), "{got:?}");
        let mut all = got.clone();
        all.sort_unstable();
        assert_eq!(all, (0..self.next[1 - at]).collect::<Vec<_>>());
    }

    fn stall(&self, place: usize, stalls: [bool; 2]) {
        lock(&self.cables[place]).stalls = stalls;
    }

    fn put_on(&self, place: usize, way: usize) -> u64 {
        lock(&self.cables[place]).put[way]
    }
}

// A quarter of one end's grant can be more than the other may send.
#[test]
fn ends_that_grant_different_numbers_of_bytes_never_wait_for_one_another() {
    for credits in [[CREDIT, 16 * CREDIT], [16 * CREDIT, CREDIT]] {
        for rails in [2, 1] {
            let mut link = Link::granting(2, credits);
            link.settle();
            if rails == 1 {
                lock(&link.cables[1]).is_cut = true;
                link.settle();
            }
            for from in 0..2 {
                while link.next[from] < 500 {
                    let before = link.next[from];
                    while link.next[from] < 500 && link.put(from, BATCH) {}
                    let at = (credits, rails, from, before);
                    assert!(link.next[from] > before, "{at:?}: nobody says that there is credit");
                    link.settle();
                }
                link.check(1 - from);
            }
        }
    }
}

#[test]
fn a_rail_that_carries_nothing_back_holds_up_no_word_of_what_has_come() {
    for stalled in 0..2 {
        let mut link = Link::new(2);
        link.settle();
        // Packets arrive over both; of the reports back one cable takes all, and delivers none.
        link.stall(stalled, [false, true]);
        while link.next[0] < 1000 {
            let before = link.next[0];
            while link.put(0, BATCH) {}
            assert!(link.next[0] > before, "at {before}: nobody says that there is credit");
            link.settle();
        }
        link.check(1);
    }
}

// A host takes nothing from one rail, and reconnects the other again and again.
#[test]
fn questions_that_a_rail_does_not_take_are_one() {
    let mut link = Link::new(2);
    link.settle();
    link.stall(0, [true, true]);
    while link.put(0, BATCH) {}
    let waits = |link: &Link| lock(&link.cables[0]).waits[0];
    let before = waits(&link);
    for _ in 0..5000 {
        link.join(1);
        link.put(0, 100);
        link.ends[0].flush();
    }
    let after = waits(&link);
    let most = before + CREDIT as usize + BATCH;
    assert!(after <= most, "{before} bytes wait, and then {after}");
    // And it was asked: everything that it has not taken arrives.
    link.stall(0, [false, false]);
    link.settle();
    link.ends.iter_mut().for_each(|end| end.look_for_stalls(NEVER));
    link.settle();
    link.check(1);
}

#[test]
fn nothing_more_is_sent_over_a_rail_that_owes_an_answer_which_another_has_given() {
    for stalled in 0..2 {
        let mut link = Link::new(2);
        link.settle();
        link.stall(stalled, [true, true]);
        link.put(0, 100);
        link.put(0, 100);
        link.ends[0].look_for_stalls(NEVER);
        link.settle();
        let before = link.put_on(stalled, 0);
        for _ in 0..20 {
            assert!(link.put(0, 1000));
            link.settle();
        }
        assert_eq!(link.put_on(stalled, 0), before);
        // It was only slow.
        link.stall(stalled, [false, false]);
        link.settle();
        link.check(1);
        link.ends[0].look_for_stalls(NEVER);
        link.settle();
        let explained = link.ends[0].explain();
        assert!(explained.contains("2 of 2 rails"), "{explained}");
        let before = link.put_on(stalled, 0);
        for _ in 0..20 {
            link.put(0, BATCH);
        }
        assert!(link.put_on(stalled, 0) > before, "it is used again");
    }
}

#[test]
fn what_is_on_a_rail_that_stalls_arrives_over_another_when_the_link_is_left() {
    for stalled in 0..3 {
        let mut link = Link::new(3);
        link.settle();
        link.stall(stalled, [true, true]);
        while link.put(0, BATCH) {}
        link.settle();
        link.ends[0].put_end();
        let mut looks = 0;
        while !(link.ends[0].flush() && link.ends[0].is_delivered()) {
            link.take(1);
            link.ends[0].look_for_stalls(NOW);
            looks += 1;
            assert!(looks < 1000, "{}", link.ends[0].explain());
        }
        link.settle();
        assert_eq!(link.ends[1].ended(), Some(&PathEnd::Said));
        link.check(1);
    }
}

#[test]
fn one_look_takes_from_one_rail_and_each_has_its_turn() {
    const RAILS: usize = 8;
    let mut link = Link::new(RAILS as u8);
    link.settle();
    while link.put(0, 1000) {}
    let came = |link: &Link| {
        let rails = link.ends[1].rails.iter();
        rails.map(|rail| rail.path.received()).collect::<Vec<_>>()
    };
    for round in 0..4 {
        let before = came(&link);
        let mut last = before.clone();
        for look in 0..RAILS {
            assert!(link.ends[1].pass());
            let now = came(&link);
            let from = now.iter().zip(&last).filter(|(now, last)| now > last).count();
            assert_eq!(from, 1, "look {look} of round {round}");
            last = now;
        }
        assert!(last.iter().zip(&before).all(|(last, before)| last > before), "{last:?}");
        link.settle();
        while link.put(0, 1000) {}
    }
}

#[test]
fn rails_that_come_and_go_are_counted_for_whoever_does_not_have_the_link() {
    let more = Arc::new(AtomicUsize::new(0));
    let terms = Terms { count: 3, credit: CREDIT, own_credit: CREDIT, batch_bytes: BATCH };
    let mut link = Link::new(3);
    let live = live(&more);
    link.ends[0] = Rails::none(terms, live.clone()).unwrap();
    let count = || (live.connections(), more.load(core::sync::atomic::Ordering::Relaxed));
    (0..3).for_each(|place| link.join(place));
    assert_eq!(count(), (3, 2));
    link.join(1);
    assert_eq!(count(), (3, 2));
    lock(&link.cables[0]).is_cut = true;
    link.settle();
    assert_eq!((count(), live.has(0), live.has(1)), ((2, 1), false, true));
    drop(link);
    drop(live);
    assert_eq!(more.load(core::sync::atomic::Ordering::Relaxed), 0);
}

proptest! {
    // Rails stall either way, are cut with their contents and come back; ends look for stalls at
    // any time, and take packets when they like. Everything comes once, both ways. In the end the
    // faults stop, one end leaves the link, and learns that all of it arrived.
    #[test]
    fn whatever_befalls_rails_all_arrives_once(
        count in 2u8..=4,
        steps in proptest::collection::vec((any::<u8>(), any::<u8>()), 1..400),
    ) {
        let mut link = Link::new(count);
        let mut stalls = vec![[false; 2]; count.into()];
        for (what, which) in steps {
            let place = which % count;
            let (at, side) = (usize::from(place), usize::from(which >> 7));
            let is_cut = lock(&link.cables[at]).is_cut;
            let others = (0..count).filter(|other| *other != place);
            let lives = |other: u8| {
                let is_cut = lock(&link.cables[usize::from(other)]).is_cut;
                !is_cut && link.ends.iter().all(|end| end.rail(other) == Some(true))
            };
            match what % 16 {
                // One rail lives and does not stall, or the link may be at its end.
                0 if others.clone().any(|o| lives(o) && stalls[usize::from(o)] == [false; 2]) => {
                    lock(&link.cables[at]).is_cut = true;
                }
                1 if others.clone().any(|o| lives(o) && stalls[usize::from(o)] == [false; 2]) => {
                    stalls[at][usize::from(what >> 4) % 2] = true;
                    link.stall(at, stalls[at]);
                }
                2 => {
                    stalls[at] = [false; 2];
                    link.stall(at, stalls[at]);
                }
                3 | 4 if is_cut && link.ends.iter().all(|end| end.rail(place) == Some(false)) => {
                    stalls[at] = [false; 2];
                    link.join(place);
                }
                // Only one end leaves all rails but one, or each might leave the other's last.
                5 if (0..count).all(|o| lives(o) || link.ends[0].rail(o) == Some(false)) => {
                    link.ends[0].look_for_stalls(NOW);
                }
                6 => link.ends[side].look_for_stalls(NEVER),
                7 | 8 => {
                    link.take(side);
                }
                9 => link.settle(),
                _ => {
                    link.put(side, usize::from(what) * usize::from(which) % BATCH);
                }
            }
        }
        for place in 0..usize::from(count) {
            link.stall(place, [false; 2]);
        }
        link.settle();
        for end in &link.ends {
            prop_assert_eq!(end.ended(), None, "{}", end.explain());
        }
        // Batches without a rail have been asked for already; this check asks for the rest.
        link.ends.iter_mut().for_each(|end| end.look_for_stalls(NEVER));
        link.settle();
        link.check(0);
        link.check(1);
        link.ends[0].put_end();
        for look in 0.. {
            if link.ends[0].flush() && link.ends[0].is_delivered() {
                break;
            }
            link.take(1);
            prop_assert!(look < 1000, "{}", link.ends[0].explain());
        }
        link.settle();
        prop_assert_eq!(link.ends[1].ended(), Some(&PathEnd::Said));
    }
}
