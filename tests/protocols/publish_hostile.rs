//! Publish and subscribe against peers that lie: subscribers and publishers that speak the protocol
//! by hand.

use crate::help::{Dir, LIMIT, at, only_on_one_host, until};
use crate::hostile::{Liar, Numbers, false_receiver, grown, lent};
use crate::publish::{NO_POOL, POOL, publish, subscribe, until_joined};
use hamlyn::node::ApertureEvent;
use hamlyn::protocol::{
    GrowError, Manager, PublishConfig, PublishError, ReceiveError, SubscribeConfig, Subscriber,
    WhenSlow,
};
use hamlyn::{ApertureAccess, AreaId, Event, LinkId, Node, QueueId, SlotConfig, Ticket};
use std::time::Duration;

const PUBLISH: u8 = 7;
/// From one place to the next.
const STRIDE: u64 = 2112;
const PART: u32 = 1 << 29;
const IN_POOL: u32 = 1 << 30;
const NUMBERED: u32 = 1 << 31;

/// A subscriber by hand.
pub struct Lying {
    liar: Liar,
    area: AreaId,
    queue: QueueId,
    depth: u64,
    got: u64,
}

impl Lying {
    /// One that holds the pool.
    pub fn new(dir: &Dir, depth: u32, when_slow: u8) -> Self {
        let mut made = None;
        let mut liar = Liar::grow(dir, "news", PUBLISH, |node| {
            let area = node.message_area(depth as usize * STRIDE as usize).unwrap();
            let queue = node.notification_queue(depth).unwrap();
            let slot = node.slot(SlotConfig::new(area, queue).credit(depth)).unwrap();
            made = Some((area, queue));
            let places = node.fast_ticket(slot).unwrap().to_bytes();
            [&places[..], &[depth, 0, 2].map(u32::to_le_bytes).concat(), &[when_slow]].concat()
        });
        let (area, queue) = made.unwrap();
        loop {
            liar.node.poll().unwrap();
            let event = liar.node.next_event();
            if matches!(event, Some(Event::Aperture { what: ApertureEvent::Held, .. })) {
                break;
            }
        }
        Self { liar, area, queue, depth: depth as u64, got: 0 }
    }

    /// The next message: its word, and what was written.
    fn next(&mut self) -> (u32, Vec<u8>) {
        let word = self.liar.node.recv(self.queue, LIMIT).unwrap().word;
        let at = (self.got % self.depth * STRIDE) as usize;
        self.got += 1;
        let length = (word & (PART - 1)) as usize;
        (word, self.liar.node.area(self.area).unwrap()[at..at + length].to_vec())
    }

    fn cell(&self, i: u64) -> Ticket {
        let cell = self.liar.ticket_at(0);
        Ticket { base: cell.base + 8 * i, ..cell }
    }

    /// Writes a word of its cell, and waits until it is there.
    pub fn tell(&mut self, there: &Manager, i: u64, word: u64) {
        let (before, at) = (counter(there, "packets_received"), self.cell(i));
        assert!(self.liar.say(&at, &word.to_le_bytes(), 0));
        until(|| counter(there, "packets_received") > before);
    }
}

fn counter(manager: &Manager, name: &str) -> u64 {
    manager.lock().counters().iter().find(|row| row.0 == name).unwrap().1
}

#[test]
fn a_subscriber_that_lies_about_what_it_released_is_sent_away_and_no_other() {
    if only_on_one_host(NO_POOL) {
        return;
    }
    // It has sample 0 by lease 0, and sample 1 by lease 1: a word of its cell, and what it says.
    for (cell, word, why) in [
        (1, 77, "it releases sample 76 by lease 0, which is for sample 0"),
        (1, 2, "it releases sample 1 by lease 0"),
        (2, 1, "it releases sample 0 by lease 1, which is for sample 1"),
        (2, u64::MAX, "lease 1"),
        (0, 3, "it says that it has taken 3 messages, and 2 were sent"),
        (0, u64::MAX, "and 2 were sent"),
    ] {
        let dir = Dir::new("lies");
        let (there, here) = (dir.answering(), dir.manager());
        let publisher = publish(&there, PublishConfig { backlog: 64, ..POOL });
        let mut lying = Lying::new(&dir, 2, 0);
        let mut honest = subscribe(&here, SubscribeConfig::default());
        until_joined(&publisher, 2);
        for i in 0..3 {
            publisher.publish(&[i; 100], LIMIT).unwrap();
        }
        until(|| publisher.subscribers()[0].outstanding == 2);
        let connection = publisher.subscribers()[0].connection.clone();
        assert_eq!(publisher.misbehaved(), 0);
        if cell > 0 {
            // There is room for one more, but for the lease.
            lying.tell(&there, 0, 2);
        }
        lying.tell(&there, cell, word);
        publisher.publish(&[3; 100], LIMIT).unwrap();
        until(|| publisher.misbehaved() == 1);
        let ended = connection.ended().unwrap().to_string();
        assert!(ended.contains(why), "{ended:?} does not say {why:?}");
        until(|| lying.liar.is_gone());
        until_joined(&publisher, 1);
        for i in 0..4 {
            let sample = honest.receive(LIMIT).unwrap();
            assert_eq!((sample.number(), sample.missed()), (i, 0));
            assert_eq!(sample.to_vec().unwrap(), [i as u8; 100]);
        }
        assert_eq!((publisher.misbehaved(), publisher.sent_away()), (1, 0));
    }
}

#[test]
fn what_is_released_twice_is_released_once_and_nothing_outside_of_a_cell_is_written() {
    if only_on_one_host(NO_POOL) {
        return;
    }
    let dir = Dir::new("releases");
    let there = dir.answering();
    let publisher = publish(&there, PublishConfig { when_slow: WhenSlow::DropNewest, ..POOL });
    let mut lying = Lying::new(&dir, 64, 0);
    until_joined(&publisher, 1);
    until(|| {
        publisher.publish(&[7; 100], LIMIT).unwrap();
        publisher.subscribers()[0].sent == 2
    });
    let (word, first) = lying.next();
    // Those before it was served were left out.
    assert!(word & IN_POOL != 0);
    let number = match word & NUMBERED {
        0 => 0,
        _ => u64::from_le_bytes(first[..8].try_into().unwrap()),
    };
    // Its cell has three words.
    for (i, refused) in [(3, 1), (1 << 40, 2)] {
        let outside = Ticket { bound: u64::MAX, ..lying.cell(i) };
        assert!(lying.liar.say(&outside, &1u64.to_le_bytes(), 0));
        until(|| counter(&there, "refused_out_of_bounds") == refused);
    }
    let sent = || publisher.subscribers()[0].sent;
    for _ in 0..2 {
        lying.tell(&there, 1, number + 1);
        publisher.publish(&[9; 100], LIMIT).unwrap();
        assert_eq!((sent(), publisher.misbehaved()), (3, 0));
    }
    // A release of what it does not have is a lie: both are free, and then the first is not.
    let second = publisher.published() - 2;
    lying.tell(&there, 1, second + 1);
    lying.tell(&there, 2, number + 2);
    publisher.publish(&[9; 100], LIMIT).unwrap();
    assert_eq!((sent(), publisher.subscribers()[0].outstanding), (4, 1));
    lying.tell(&there, 2, 99);
    assert_eq!(publisher.misbehaved(), 0);
    let connection = publisher.subscribers()[0].connection.clone();
    publisher.publish(&[9; 100], LIMIT).unwrap();
    let why = connection.ended().unwrap().to_string();
    assert!(why.contains("it releases sample 98 by lease 1, which it does not have"), "{why}");
    assert_eq!(publisher.misbehaved(), 1);
}

#[test]
fn one_that_takes_nothing_releases_nothing_and_floods_costs_others_nothing() {
    if only_on_one_host(NO_POOL) {
        return;
    }
    for when_slow in [WhenSlow::DropOldest, WhenSlow::DropNewest, WhenSlow::SendAway] {
        let dir = Dir::new("flood");
        let (there, here) = (dir.answering(), dir.manager());
        let publisher = publish(&there, POOL);
        let mut lying = Lying::new(&dir, 4, when_slow as u8);
        let mut honest = subscribe(&here, SubscribeConfig::default());
        until_joined(&publisher, 2);
        let stop = std::sync::atomic::AtomicBool::new(false);
        let stopped = || stop.load(std::sync::atomic::Ordering::Relaxed);
        std::thread::scope(|scope| {
            let cell = lying.cell(0);
            let lying = &mut lying;
            scope.spawn(move || {
                // True messages, all the time.
                let start = std::time::Instant::now();
                while !stopped()
                    && start.elapsed() < 2 * crate::help::LONG
                    && lying.liar.say(&cell, &0u64.to_le_bytes(), 0)
                {}
            });
            for i in 0..200u64 {
                let length = if i % 2 == 0 { 8 } else { 5000 };
                let bytes = [&i.to_le_bytes()[..], &vec![i as u8; length - 8]].concat();
                // There is a place for each loan, for any loans that subscribers hold.
                publisher.publish(&bytes, Some(Duration::ZERO)).unwrap();
                let sample = honest.receive(LIMIT).unwrap();
                assert_eq!((sample.number(), sample.missed()), (i, 0));
                assert!(sample.to_vec().unwrap() == bytes);
                let states = publisher.subscribers();
                assert!(states.iter().all(|state| state.outstanding <= 2 && state.untaken <= 64));
            }
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        let is_away = when_slow == WhenSlow::SendAway;
        assert_eq!((publisher.sent_away(), publisher.misbehaved()), (is_away as u64, 0));
        until(|| lying.liar.is_gone() == is_away);
    }
}

#[test]
fn one_that_takes_nothing_holds_a_publisher_that_waits_for_the_time_limit_and_no_longer() {
    if only_on_one_host(NO_POOL) {
        return;
    }
    let dir = Dir::new("holds");
    let there = dir.answering();
    let publisher = publish(&there, PublishConfig { when_slow: WhenSlow::Wait, ..POOL });
    let lying = Lying::new(&dir, 4, 0);
    until(|| {
        let _ = publisher.publish(b"x", Some(Duration::ZERO));
        publisher.subscribers().first().is_some_and(|state| state.sent == 4)
    });
    let refused = publisher.publish(b"x", Some(Duration::from_millis(20)));
    assert!(matches!(refused, Err(PublishError::TimedOut)), "{refused:?}");
    drop(lying);
    publisher.publish(b"x", LIMIT).unwrap();
}

#[test]
fn one_that_does_not_take_the_pool_is_sent_nothing_and_waited_for_by_nobody() {
    if only_on_one_host(NO_POOL) {
        return;
    }
    let dir = Dir::new("no-pool");
    let there = dir.answering();
    let publisher = publish(&there, PublishConfig { when_slow: WhenSlow::Wait, ..POOL });
    // A link, and then no step more of its program: its control plane would take the pool.
    let mut lying = Lying::new(&dir, 4, 0);
    let number = lying.liar.node.apertures_held().next().unwrap();
    lying.liar.node.release_aperture(number).unwrap();
    until(|| publisher.misbehaved() == 1);
    until(|| lying.liar.is_gone());
    for _ in 0..10 {
        publisher.publish(b"x", LIMIT).unwrap();
    }
}

#[test]
fn a_greeting_that_makes_no_sense_is_refused() {
    if only_on_one_host(NO_POOL) {
        return;
    }
    let dir = Dir::new("greetings");
    let there = dir.answering();
    let publisher = publish(&there, POOL);
    let mut numbers = Numbers(3);
    for round in 0..40u64 {
        let mut node = dir.node();
        let places = lent(&mut node, 4 * STRIDE as usize, 4).to_bytes().to_vec();
        let noise = numbers.bytes(80);
        let body = match round % 4 {
            0 => noise,
            1 => [&places[..], &vec![1; round as usize % 13]].concat(),
            // More places than its ticket has bytes for.
            2 => [&places[..], &[5, 0, 2].map(u32::to_le_bytes).concat(), &[0]].concat(),
            _ => [&places[..], &[4, 0, 2].map(u32::to_le_bytes).concat(), &[5]].concat(),
        };
        let greeting = [b"HGr2", &[PUBLISH, 0, 0, 0][..], &[0; 16], &body].concat();
        let refused = node.connect(&at("news"), &greeting, Some(Duration::from_secs(20)));
        assert!(refused.is_err(), "round {round}");
    }
    assert!(publisher.subscribers().is_empty());
}

// ---- publishers that lie

/// A publisher by hand, and its subscriber.
pub struct False {
    pub node: Node,
    link: LinkId,
    places: Ticket,
    pub subscriber: Subscriber,
    sent: u64,
}

/// A pool of three places of 128 bytes.
fn answer(node: &mut Node, leases: u32) -> Vec<u8> {
    answer_with(node, leases, 3, 128)
}

/// Without places: long samples of so many bytes come in parts.
fn answer_with(node: &mut Node, leases: u32, places: u32, bytes: u64) -> Vec<u8> {
    let cell = lent(node, 64, 1000).to_bytes();
    let words = [100, leases, places].map(u32::to_le_bytes).concat();
    [&cell[..], &words, &[bytes, 5, 77].map(u64::to_le_bytes).concat()].concat()
}

impl False {
    pub fn new(dir: &Dir, here: &Manager, pool_bytes: u64) -> Self {
        let mut node = dir.node();
        let answer = answer(&mut node, 2);
        Self::with(node, &answer, here, pool_bytes)
    }

    /// One whose long samples, of up to 5,000 bytes, come in parts.
    fn in_parts(dir: &Dir, here: &Manager) -> Self {
        let mut node = dir.node();
        let answer = answer_with(&mut node, 2, 0, 5000);
        Self::with(node, &answer, here, 0)
    }

    fn with(node: Node, answer: &[u8], here: &Manager, pool_bytes: u64) -> Self {
        let mut node = false_receiver(node, "false", PUBLISH, answer);
        let config = SubscribeConfig { depth: 4, ..SubscribeConfig::default() };
        let subscriber = Subscriber::connect(here, &at("false"), config, LIMIT).unwrap();
        let (link, places) = grown(&mut node);
        if pool_bytes > 0 {
            let id = node.export(link, pool_bytes, ApertureAccess::ReadOnly).unwrap();
            let view = node.aperture_view(id).unwrap();
            view.write(0, &[7; 384]).unwrap();
            until(|| {
                here.poll().unwrap();
                node.poll().unwrap();
                let ready = ApertureEvent::Ready;
                matches!(node.next_event(), Some(Event::Aperture { what, .. }) if what == ready)
            });
        }
        Self { node, link, places, subscriber, sent: 0 }
    }

    fn say(&mut self, word: u32, data: &[u8]) {
        let at = Ticket { base: self.places.base + self.sent % 4 * STRIDE, ..self.places };
        self.sent += 1;
        self.node.try_send_fast_over(self.link, &at, data, word).unwrap();
    }

    pub fn announce(&mut self, place: u32, lease: u32, length: u64) {
        let data = [&place.to_le_bytes()[..], &lease.to_le_bytes(), &length.to_le_bytes()].concat();
        self.say(16 | IN_POOL, &data);
    }
}

#[test]
fn what_a_publisher_says_that_cannot_be_ends_its_link() {
    if only_on_one_host(NO_POOL) {
        return;
    }
    let dir = Dir::new("false-publisher");
    let here = dir.manager();
    type Say = fn(&mut False);
    let numbered = |number: u64| [&number.to_le_bytes()[..], b"text"].concat();
    let cases: &[(&str, u64, Say)] = &[
        ("a message of 2041 bytes in a place of 2040", 0, |f| f.say(2041, b"x")),
        ("a message of 536870911 bytes", 0, |f| f.say(PART - 1, b"x")),
        ("a part of a sample, and there are none", 0, |f| f.say(9 | PART, &[0; 9])),
        ("a part of a sample, and there are none", 4096, |f| f.say(9 | PART, &[0; 9])),
        ("a short sample of 101 bytes, and 100", 0, |f| f.say(101, &[0; 101])),
        ("a numbered message of 7 bytes", 0, |f| f.say(7 | NUMBERED, &[0; 7])),
        ("an announcement of 15 bytes", 4096, |f| f.say(15 | IN_POOL, &[0; 15])),
        ("an announcement of 17 bytes", 4096, |f| f.say(17 | IN_POOL, &[0; 17])),
        ("a pool that it does not share", 0, |f| f.announce(0, 0, 1)),
        ("of 129 bytes in place 0", 4096, |f| f.announce(0, 0, 129)),
        ("in place 3 of a pool of 3", 4096, |f| f.announce(3, 0, 1)),
        ("in place 4294967295", 4096, |f| f.announce(u32::MAX, 0, u64::MAX)),
        ("by lease 2, and there are 2", 4096, |f| f.announce(0, 2, 1)),
        ("by lease 4294967295", 4096, |f| f.announce(0, u32::MAX, 1)),
    ];
    for (why, pool, say) in cases {
        let mut lies = False::new(&dir, &here, *pool);
        // A valid sample is received.
        lies.say(4, b"text");
        let sample = lies.subscriber.receive(LIMIT).unwrap();
        assert_eq!((sample.number(), sample.as_slice()), (5, Some(&b"text"[..])));
        say(&mut lies);
        let error = lies.subscriber.receive(LIMIT).unwrap_err();
        assert!(matches!(error, ReceiveError::Misbehaved(_)), "{error}");
        assert!(error.to_string().contains(why), "{error} does not say {why:?}");
        assert!(matches!(lies.subscriber.receive(LIMIT), Err(ReceiveError::Ended(_))));
    }
    // Numbers go on, and up.
    for number in [5, 4, 0] {
        let mut lies = False::new(&dir, &here, 0);
        lies.say(12 | NUMBERED, &numbered(1 << 60));
        lies.say(4, b"next");
        let first = lies.subscriber.receive(LIMIT).unwrap();
        assert_eq!((first.number(), first.missed()), (1 << 60, (1 << 60) - 5));
        assert_eq!(lies.subscriber.receive(LIMIT).unwrap().number(), (1 << 60) + 1);
        lies.say(12 | NUMBERED, &numbered((1 << 60) + number - 4));
        let error = lies.subscriber.receive(LIMIT).unwrap_err();
        assert!(error.to_string().contains("is the next"), "{error}");
    }
    // To their end, which is none of them.
    for from in [(1 << 63) - 3, u64::MAX - 5] {
        let mut lies = False::new(&dir, &here, 0);
        lies.say(12 | NUMBERED, &numbered(from));
        assert_eq!(lies.subscriber.receive(LIMIT).unwrap().number(), from);
        for number in from + 1..=from + 4 {
            lies.say(4, b"next");
            let sample = lies.subscriber.receive(LIMIT).unwrap();
            assert_eq!((sample.number(), sample.as_slice()), (number, Some(&b"next"[..])));
        }
        if from + 5 == u64::MAX {
            lies.say(4, b"next");
            let error = lies.subscriber.receive(LIMIT).unwrap_err();
            assert!(error.to_string().contains("the last of all numbers"), "{error}");
        }
    }
    let mut lies = False::new(&dir, &here, 0);
    lies.say(12 | NUMBERED, &numbered(u64::MAX));
    assert!(matches!(lies.subscriber.receive(LIMIT), Err(ReceiveError::Misbehaved(_))));
    assert_eq!(here.lock().links().count(), 0);
}

#[test]
fn parts_of_a_sample_that_do_not_make_one_end_the_link() {
    if only_on_one_host(NO_POOL) {
        return;
    }
    let dir = Dir::new("false-parts");
    let here = dir.manager();
    // The first of a sample of so many bytes.
    let first = |length: u64, bytes: &[u8]| [&length.to_le_bytes()[..], bytes].concat();
    type Parts<'a> = &'a [(u32, Vec<u8>)];
    let begun = (PART, first(5000, &[1; 1000]));
    let cases: &[(&str, Parts<'_>)] = &[
        ("the first part of a sample, of 7 bytes", &[(PART, vec![0; 7])]),
        ("a sample of 5001 bytes in parts, and 5000", &[(PART, first(5001, b"x"))]),
        ("a sample of 18446744073709551615 bytes", &[(PART, first(u64::MAX, b"x"))]),
        ("a part of 2 bytes of a sample of 1, of which 1", &[(PART, first(1, b"xy"))]),
        ("a part of 1 bytes of a sample of 0, of which 0", &[(PART, first(0, b"x"))]),
        ("a part of 0 bytes of a sample of 9, of which 9", &[(PART, first(9, b""))]),
        ("a part of 0 bytes of a sample of 5000", &[begun.clone(), (PART, vec![])]),
        (
            "a part of 2001 bytes of a sample of 5000, of which 2000",
            &[begun.clone(), (PART, vec![2; 2000]), (PART, vec![3; 2001])],
        ),
        ("between the parts of sample 6", &[begun.clone(), (0, b"short".to_vec())]),
        ("between the parts of sample 6", &[begun.clone(), (0, vec![0; 90])]),
        ("between the parts of sample 6", &[begun.clone(), (PART | NUMBERED, vec![9; 9])]),
        ("between the parts of sample 6", &[begun.clone(), (PART | IN_POOL, vec![9; 9])]),
        ("between the parts of sample 6", &[begun.clone(), (IN_POOL, vec![0; 16])]),
        ("a sample of a pool, and there is none", &[(IN_POOL, vec![0; 16])]),
        ("a sample of a pool, and there is none", &[(IN_POOL | PART, vec![0; 16])]),
    ];
    for (why, parts) in cases {
        let mut lies = False::in_parts(&dir, &here);
        // A valid sample is received.
        lies.say(12 | PART, &first(4, b"text"));
        let sample = lies.subscriber.receive(LIMIT).unwrap();
        assert_eq!((sample.number(), sample.as_slice()), (5, Some(&b"text"[..])));
        for (bits, part) in *parts {
            lies.say(part.len() as u32 | bits, part);
        }
        let error = lies.subscriber.receive(LIMIT).unwrap_err();
        assert!(matches!(error, ReceiveError::Misbehaved(_)), "{error}");
        assert!(error.to_string().contains(why), "{error} does not say {why:?}");
    }
    // Numbered, with a gap before it, in parts of any length.
    let mut lies = False::in_parts(&dir, &here);
    let numbered = [&9u64.to_le_bytes()[..], &first(300, &[1])].concat();
    lies.say(17 | PART | NUMBERED, &numbered);
    for part in 0..13 {
        assert!(lies.subscriber.try_receive().unwrap().is_none());
        lies.say(23 | PART, &[part; 23]);
    }
    let sample = lies.subscriber.receive(LIMIT).unwrap();
    assert_eq!((sample.number(), sample.missed(), sample.len()), (9, 4, 300));
    let expected: Vec<u8> = [1].into_iter().chain((0..13).flat_map(|part| [part; 23])).collect();
    assert_eq!(sample.as_slice(), Some(&expected[..]));
    drop(lies);
    // Of noise, what is no sample ends the link.
    for seed in 1..30 {
        let mut numbers = Numbers(seed * 99);
        let mut lies = False::in_parts(&dir, &here);
        for _ in 0..200 {
            let length = numbers.below(40);
            let bits = [0, PART, PART, PART, NUMBERED, PART | NUMBERED][numbers.below(6) as usize];
            let mut data = numbers.bytes(length);
            if numbers.below(2) == 0 && data.len() >= 8 {
                data[..8].copy_from_slice(&numbers.below(60).to_le_bytes());
            }
            let at = Ticket { base: lies.sent % 4 * STRIDE, ..lies.places };
            lies.sent += 1;
            let word = data.len() as u32 | bits;
            if lies.node.try_send_fast_over(lies.link, &at, &data, word).is_err() {
                break;
            }
            match lies.subscriber.try_receive() {
                Ok(Some(sample)) => assert!(sample.len() <= 100),
                Ok(None) => {}
                Err(ReceiveError::Misbehaved(_)) => break,
                Err(e) => panic!("{e}"),
            }
            lies.node.poll().unwrap();
        }
    }
}

#[test]
fn a_lease_has_one_sample_and_the_bytes_of_a_pool_are_copied_out_of_it_alone() {
    if only_on_one_host(NO_POOL) {
        return;
    }
    let dir = Dir::new("false-leases");
    let here = dir.manager();
    let mut lies = False::new(&dir, &here, 4096);
    lies.announce(0, 0, 128);
    lies.announce(2, 1, 128);
    let held = lies.subscriber.receive(LIMIT).unwrap();
    let other = lies.subscriber.receive(LIMIT).unwrap();
    for sample in [&held, &other] {
        assert_eq!(sample.to_vec().unwrap(), [7; 128]);
    }
    drop(other);
    lies.announce(1, 1, 0);
    assert!(lies.subscriber.receive(LIMIT).unwrap().is_empty());
    lies.announce(1, 0, 1);
    let error = lies.subscriber.receive(LIMIT).unwrap_err();
    assert!(error.to_string().contains("by lease 0, which another sample has"), "{error}");
    // The link has ended, and with it the pool.
    assert!(held.to_vec().is_err());
}

#[test]
fn a_pool_that_is_smaller_than_was_said_and_answers_that_make_no_sense_are_refused() {
    if only_on_one_host(NO_POOL) {
        return;
    }
    let dir = Dir::new("false-answers");
    let here = dir.manager();
    let mut node = dir.node();
    let mut small = answer(&mut node, 2);
    // 300 places of 128 bytes, in one page.
    small[52..56].copy_from_slice(&300u32.to_le_bytes());
    let mut node = false_receiver(node, "small", PUBLISH, &small);
    let mut subscriber =
        Subscriber::connect(&here, &at("small"), SubscribeConfig::default(), LIMIT).unwrap();
    let (link, places) = grown(&mut node);
    node.export(link, 4096, ApertureAccess::ReadOnly).unwrap();
    until(|| {
        here.poll().unwrap();
        node.poll().unwrap();
        let ready = ApertureEvent::Ready;
        matches!(node.next_event(), Some(Event::Aperture { what, .. }) if what == ready)
    });
    let data = [&0u64.to_le_bytes()[..], &1u64.to_le_bytes()].concat();
    node.try_send_fast_over(link, &places, &data, 16 | IN_POOL).unwrap();
    let error = subscriber.receive(LIMIT).unwrap_err();
    assert!(error.to_string().contains("in 4096 bytes of memory"), "{error}");
    let mut numbers = Numbers(5);
    for round in 0..20 {
        let mut node = dir.node();
        let mut bytes = answer(&mut node, 2);
        match round % 4 {
            0 => bytes.truncate(numbers.below(bytes.len() as u64) as usize),
            1 => bytes = numbers.bytes(100),
            2 => bytes = answer(&mut node, 65),
            _ => bytes[48..52].copy_from_slice(&0u32.to_le_bytes()),
        }
        let _node = false_receiver(node, "answers", PUBLISH, &bytes);
        let grown =
            Subscriber::connect(&here, &at("answers"), SubscribeConfig::default(), LIMIT).err();
        assert!(matches!(grown, Some(GrowError::Answer(_))), "{round}: {grown:?}");
    }
}

#[test]
fn a_subscriber_survives_whatever_a_publisher_writes() {
    if only_on_one_host(NO_POOL) {
        return;
    }
    let dir = Dir::new("publish-storm");
    let here = dir.manager();
    for seed in 1..30 {
        let mut numbers = Numbers(seed * 77);
        let mut lies = False::new(&dir, &here, 4096);
        let mut held = Vec::new();
        for _ in 0..200 {
            let length = numbers.below(40) as u32;
            let word = match numbers.below(3) {
                0 => length,
                1 => 16 | IN_POOL,
                _ => numbers.next() as u32,
            };
            let data = match word & IN_POOL {
                0 => numbers.bytes(length as u64),
                _ => {
                    let lease = numbers.below(3) as u32;
                    let place = numbers.below(4) as u32;
                    let length = numbers.below(150);
                    [&place.to_le_bytes()[..], &lease.to_le_bytes(), &length.to_le_bytes()].concat()
                }
            };
            let at = Ticket { base: numbers.below(4) * STRIDE, ..lies.places };
            if lies.node.try_send_fast_over(lies.link, &at, &data, word).is_err() {
                break;
            }
            match lies.subscriber.receive(LIMIT) {
                Ok(sample) => {
                    assert!(sample.len() <= 128 && sample.to_vec().unwrap().len() == sample.len());
                    held.push(sample);
                    if numbers.below(3) == 0 {
                        held.clear();
                    }
                }
                Err(ReceiveError::Misbehaved(_)) => break,
                Err(e) => panic!("{e}"),
            }
            lies.node.poll().unwrap();
        }
    }
}
