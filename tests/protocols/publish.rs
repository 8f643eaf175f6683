//! Publish and subscribe: delivery to subscribers, and the policies for slow ones.

use crate::help::{
    Dir, LIMIT, Reached, SHORT, at, is_of_hosts, manager_with, only_on_one_host, until,
};
use hamlyn::Access;
use hamlyn::node::CloseReason;
use hamlyn::protocol::{
    EndPoint, GrowError, Manager, PublishConfig, PublishError, Publisher, ReceiveError, Sample,
    SubscribeConfig, Subscriber, WhenSlow,
};
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

pub const POOL: PublishConfig = PublishConfig {
    short_bytes_max: 64,
    sample_bytes_max: 10_000,
    loans_max: 2,
    backlog: 2,
    history: 0,
    outstanding_max: 2,
    subscribers_max: 4,
    when_slow: WhenSlow::DropOldest,
};

/// Why a test of pools is none over hosts.
pub const NO_POOL: &str = "a publisher's pool is memory, none of which is open to another host";

pub fn publish(manager: &Manager, config: PublishConfig) -> Publisher {
    let publisher = Publisher::new(manager, config).unwrap();
    publisher.serve("news", Access::SameUser).unwrap();
    publisher
}

pub fn subscribe(manager: &Manager, config: SubscribeConfig) -> Subscriber {
    Subscriber::connect(manager, &at("news"), config, LIMIT).unwrap()
}

/// Until so many subscribers are there, and all can be sent samples.
pub fn until_joined(publisher: &Publisher, count: usize) {
    until(|| {
        let subscribers = publisher.subscribers();
        subscribers.len() == count && subscribers.iter().all(|subscriber| subscriber.is_served)
    });
}

fn number(sample: &Sample) -> u64 {
    u64::from_le_bytes(sample.to_vec().unwrap()[..8].try_into().unwrap())
}

#[test]
fn every_subscriber_gets_every_sample_in_order() {
    let dir = Dir::new("publish");
    let there = dir.answering();
    let managers = [dir.manager(), dir.manager(), dir.manager()];
    let config = PublishConfig { when_slow: WhenSlow::Wait, ..POOL };
    let publisher = publish(&there, config);
    let mut subscribers: Vec<_> =
        managers.iter().map(|here| subscribe(here, SubscribeConfig::default())).collect();
    until_joined(&publisher, 3);
    // More than there are places of any kind, short ones and those of the pool in turn.
    const COUNT: u64 = 500;
    let sample = |i: u64| {
        let length = [8, 16, 63, 64, 65, POOL.sample_bytes_max][i as usize % 6];
        let mut bytes = vec![i as u8; length];
        bytes[..8].copy_from_slice(&i.to_le_bytes());
        bytes
    };
    std::thread::scope(|scope| {
        for subscriber in &mut subscribers {
            scope.spawn(move || {
                for i in 0..COUNT {
                    let got = subscriber.receive(LIMIT).unwrap_or_else(|e| panic!("{i}: {e}"));
                    assert_eq!((got.number(), got.missed()), (i, 0));
                    assert!(got.to_vec().unwrap() == sample(i), "sample {i}");
                    assert_eq!(got.as_slice().is_some(), is_of_hosts() || sample(i).len() <= 64);
                    let mut some = [0; 9];
                    assert_eq!(got.copy_to(&mut some).unwrap(), sample(i).len().min(9));
                }
            });
        }
        for i in 0..COUNT {
            assert_eq!(publisher.publish(&sample(i), LIMIT).unwrap(), i);
        }
    });
    assert_eq!((publisher.published(), publisher.dropped()), (COUNT, 0));
    for state in publisher.subscribers() {
        assert_eq!((state.sent, state.behind, state.dropped), (COUNT, 0, 0));
    }
    drop(publisher);
    for mut subscriber in subscribers {
        assert!(matches!(subscriber.receive(LIMIT), Err(ReceiveError::Ended(_))));
        assert!(subscriber.is_ready() && subscriber.missed() == 0);
    }
}

#[test]
fn a_loan_is_published_where_it_was_written_and_its_place_is_used_again() {
    if only_on_one_host(NO_POOL) {
        return;
    }
    let dir = Dir::new("loan");
    let (there, here) = (dir.answering(), dir.manager());
    let publisher = publish(&there, POOL);
    let mut subscriber = subscribe(&here, SubscribeConfig::default());
    until_joined(&publisher, 1);
    for i in 0..100u64 {
        let mut loan = publisher.loan(9_999).unwrap();
        loan.fill(i as u8);
        loan[..8].copy_from_slice(&i.to_le_bytes());
        loan.truncate(9_000);
        publisher.publish_loan(loan, LIMIT).unwrap();
        let sample = subscriber.receive(LIMIT).unwrap();
        assert_eq!((sample.len(), number(&sample)), (9_000, i));
        assert!(sample.as_slice().is_none());
        assert!(sample.to_vec().unwrap()[8..].iter().all(|byte| *byte == i as u8));
    }
    // Loans are bounded, and come back.
    let loans = [publisher.loan(1).unwrap(), publisher.loan(1).unwrap()];
    assert!(matches!(publisher.loan(1), Err(PublishError::Loans(2))));
    assert!(matches!(publisher.publish(&[0; 100], LIMIT), Err(PublishError::Loans(2))));
    drop(loans);
    let other = Publisher::new(&here, POOL).unwrap();
    let foreign = other.publish_loan(publisher.loan(1).unwrap(), LIMIT).unwrap_err();
    assert!(matches!(foreign.error, PublishError::Foreign));
    publisher.publish_loan(foreign.loan, LIMIT).unwrap();
    let too_long = publisher.loan(10_001).unwrap_err();
    assert!(too_long.to_string().contains("at most 10000 are allowed"), "{too_long}");
    let without = Publisher::new(&here, PublishConfig::default()).unwrap();
    let too_long = without.publish(&[0; 1025], LIMIT).unwrap_err();
    assert!(too_long.to_string().contains("at most 1024 are allowed"), "{too_long}");
    assert!(matches!(without.loan(1), Err(PublishError::TooLong { max: 0, .. })));
}

#[test]
fn who_comes_late_gets_the_history_that_it_asks_for() {
    let dir = Dir::new("history");
    let (there, here) = (dir.answering(), dir.manager());
    let publisher = publish(&there, PublishConfig { history: 5, backlog: 9, ..POOL });
    for i in 0..20u64 {
        // One of the pool, and a short one.
        let length = if i % 2 == 0 { 1000 } else { 8 };
        let bytes = [&i.to_le_bytes()[..], &vec![0; length - 8]].concat();
        publisher.publish(&bytes, LIMIT).unwrap();
    }
    for (asked, first) in [(0, 20), (2, 18), (5, 15), (u32::MAX, 15)] {
        let config = SubscribeConfig { history: asked, ..SubscribeConfig::default() };
        let mut subscriber = subscribe(&here, config);
        for expected in first..20 {
            let sample = subscriber.receive(LIMIT).unwrap();
            assert_eq!(
                (sample.number(), number(&sample), sample.missed()),
                (expected, expected, 0)
            );
        }
        assert!(subscriber.try_receive().unwrap().is_none());
        drop(subscriber);
        until_joined(&publisher, 0);
    }
}

#[test]
fn a_publisher_that_drains_waits_until_its_pool_is_read_by_nobody() {
    if only_on_one_host(NO_POOL) {
        return;
    }
    let dir = Dir::new("drain");
    let (there, here) = (dir.answering(), dir.manager());
    let publisher = publish(&there, PublishConfig { backlog: 16, ..POOL });
    let mut subscriber = subscribe(&here, SubscribeConfig::default());
    until_joined(&publisher, 1);
    for i in 0..10 {
        publisher.publish(&[i; 1000], LIMIT).unwrap();
    }
    assert!(!publisher.try_flush().unwrap(), "two at a time");
    assert!(matches!(publisher.drain(SHORT), Err(PublishError::TimedOut)));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for i in 0..10 {
                let sample = subscriber.receive(LIMIT).unwrap();
                std::thread::sleep(Duration::from_millis(1));
                assert_eq!(sample.to_vec().unwrap(), [i; 1000]);
            }
        });
        publisher.drain(LIMIT).unwrap();
        drop(publisher);
    });
}

/// A subscriber that takes nothing while 100 samples are published; then all that it gets.
fn slow(when_slow: WhenSlow) -> (Vec<(u64, u64)>, u64) {
    let dir = Dir::new("slow");
    let (there, here) = (dir.answering(), dir.manager());
    let publisher = publish(&there, PublishConfig { when_slow, backlog: 4, ..POOL });
    let mut subscriber =
        subscribe(&here, SubscribeConfig { depth: 8, ..SubscribeConfig::default() });
    until_joined(&publisher, 1);
    for i in 0..100u64 {
        publisher.publish(&i.to_le_bytes(), LIMIT).unwrap();
    }
    let mut got = Vec::new();
    while let Ok(sample) = subscriber.receive(Some(Duration::from_millis(200))) {
        assert_eq!(number(&sample), sample.number());
        got.push((sample.number(), sample.missed()));
    }
    publisher.publish(&100u64.to_le_bytes(), LIMIT).unwrap();
    let last = subscriber.receive(LIMIT).unwrap();
    got.push((last.number(), last.missed()));
    assert_eq!(publisher.subscribers()[0].dropped, publisher.dropped());
    assert_eq!(subscriber.missed(), publisher.dropped());
    (got, publisher.dropped())
}

#[test]
fn who_is_slow_misses_the_oldest_where_those_are_dropped() {
    let (got, dropped) = slow(WhenSlow::DropOldest);
    // The samples in its own memory, and those that the publisher kept.
    let kept = [(96, 88), (97, 0), (98, 0), (99, 0), (100, 0)];
    assert_eq!((got, dropped), ((0..8).map(|i| (i, 0)).chain(kept).collect(), 88));
}

#[test]
fn who_is_slow_misses_the_newest_where_those_are_dropped() {
    let (got, dropped) = slow(WhenSlow::DropNewest);
    let expected = (0..8).map(|i| (i, 0)).chain([(100, 92)]).collect();
    assert_eq!((got, dropped), (expected, 92));
}

#[test]
fn who_missed_the_last_is_told_when_the_publisher_goes() {
    for misses in [false, true] {
        let dir = Dir::new("last");
        let (there, here) = (dir.answering(), dir.manager());
        let config = PublishConfig { when_slow: WhenSlow::DropNewest, ..POOL };
        let publisher = publish(&there, config);
        let depth = SubscribeConfig { depth: 4, ..SubscribeConfig::default() };
        let mut subscriber = subscribe(&here, depth);
        until_joined(&publisher, 1);
        for i in 0..4 + u64::from(misses) {
            publisher.publish(&i.to_le_bytes(), LIMIT).unwrap();
        }
        drop(publisher);
        for i in 0..4 {
            assert_eq!(number(&subscriber.receive(LIMIT).unwrap()), i);
        }
        let end = subscriber.receive(LIMIT).unwrap_err();
        let expected = if misses { CloseReason::TooSlow } else { CloseReason::Closed };
        let is_it = matches!(&end, ReceiveError::Ended(reason) if *reason == expected);
        assert!(is_it, "misses {misses}: {end}");
    }
}

#[test]
fn publish_waits_for_who_is_to_be_waited_for_and_no_longer_than_it_may() {
    let dir = Dir::new("wait");
    let (there, here) = (dir.answering(), dir.manager());
    let publisher = publish(&there, PublishConfig { when_slow: WhenSlow::Wait, ..POOL });
    let config = SubscribeConfig { depth: 4, ..SubscribeConfig::default() };
    let mut subscriber = subscribe(&here, config);
    until_joined(&publisher, 1);
    for i in 0..4u64 {
        publisher.publish(&i.to_le_bytes(), SHORT).unwrap();
    }
    let refused = publisher.publish(b"the fifth", SHORT);
    assert!(matches!(refused, Err(PublishError::TimedOut)), "{refused:?}");
    assert!(publisher.try_publish(b"the fifth").unwrap().is_none());
    assert_eq!(publisher.published(), 4);
    let fifth = 4u64.to_le_bytes();
    let loan = (!is_of_hosts()).then(|| {
        let mut loan = publisher.loan(8).unwrap();
        loan.copy_from_slice(&fifth);
        let back = publisher.publish_loan(loan, SHORT).unwrap_err();
        assert!(matches!(back.error, PublishError::TimedOut));
        back.loan
    });
    std::thread::scope(|scope| {
        scope.spawn(|| match loan {
            Some(loan) => publisher.publish_loan(loan, LIMIT).unwrap(),
            None => publisher.publish(&fifth, LIMIT).unwrap(),
        });
        for i in 0..5 {
            let sample = subscriber.receive(LIMIT).unwrap();
            assert_eq!((number(&sample), sample.missed()), (i, 0));
        }
    });
    // One that goes is not waited for.
    for _ in 0..4 {
        publisher.publish(b"untaken", LIMIT).unwrap();
    }
    std::thread::scope(|scope| {
        scope.spawn(|| publisher.publish(b"the fifth", LIMIT).unwrap());
        drop(subscriber);
    });
}

#[test]
fn who_is_slow_is_sent_away_where_that_is_said_and_the_others_get_all() {
    let dir = Dir::new("send-away");
    let (there, here, other) = (dir.answering(), dir.manager(), dir.manager());
    let publisher = publish(&there, POOL);
    let away = Some(WhenSlow::SendAway);
    let config = SubscribeConfig { depth: 4, when_slow: away, ..SubscribeConfig::default() };
    let mut slow = subscribe(&here, config);
    let mut quick = subscribe(&other, SubscribeConfig::default());
    until_joined(&publisher, 2);
    for i in 0..50u64 {
        publisher.publish(&i.to_le_bytes(), LIMIT).unwrap();
        assert_eq!(number(&quick.receive(LIMIT).unwrap()), i);
    }
    // Four in its own memory, two in the log.
    assert_eq!((publisher.sent_away(), publisher.misbehaved()), (1, 0));
    until_joined(&publisher, 1);
    for i in 0..4 {
        assert_eq!(number(&slow.receive(LIMIT).unwrap()), i);
    }
    let ended = slow.receive(LIMIT).err().unwrap();
    assert!(matches!(ended, ReceiveError::Ended(CloseReason::TooSlow)), "{ended}");
    assert!(
        ended
            .to_string()
            .contains("what had come has been received: it went, or sent this side away")
    );
}

#[test]
fn a_publisher_that_only_publishes_lets_subscribers_in_and_loses_nothing_of_one_that_keeps_up() {
    for length in [16, POOL.sample_bytes_max / 2] {
        let dir = Dir::new("only-publishes");
        // No progress thread, and no call but this one.
        let there = dir.manager();
        let publisher = publish(&there, PublishConfig { when_slow: WhenSlow::DropNewest, ..POOL });
        let (told, wanted) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let here = dir.manager();
            scope.spawn(move || {
                let mut subscriber = subscribe(&here, SubscribeConfig::default());
                told.send(0).unwrap();
                let mut at_first = 0;
                for received in 1..=300 {
                    subscriber.receive(LIMIT).unwrap();
                    // It may have missed some until it was served, and had taken what was kept for it.
                    if received <= 20 {
                        at_first = subscriber.missed();
                    }
                    assert_eq!(subscriber.missed(), at_first);
                    told.send(received).unwrap();
                }
            });
            // One after the other, so that the subscriber keeps up.
            let mut received = None;
            while received != Some(300) {
                let before = publisher.publish(&vec![1; length], Some(Duration::ZERO)).unwrap();
                if received.is_none() {
                    // No subscriber gets samples until the publisher is there.
                    received = match wanted.recv_timeout(Duration::from_millis(1)) {
                        Ok(received) => Some(received),
                        Err(RecvTimeoutError::Timeout) => None,
                        Err(e) => panic!("{e}"),
                    };
                    if received.is_some() {
                        until_joined(&publisher, 1);
                    }
                    continue;
                }
                received = Some(wanted.recv_timeout(LIMIT.unwrap()).unwrap());
                assert!(before + 1 >= u64::from(received.unwrap() as u32));
            }
        });
    }
}

#[test]
fn who_only_asks_for_its_subscribers_lets_them_in() {
    let dir = Dir::new("only-asks");
    let (there, here) = (dir.manager(), dir.manager());
    let publisher = publish(&there, POOL);
    let subscribing = std::thread::spawn(move || {
        let subscriber = subscribe(&here, SubscribeConfig::default());
        (here, subscriber)
    });
    until_joined(&publisher, 1);
    drop(subscribing.join().unwrap());
    until(|| publisher.subscribers().is_empty());
}

#[test]
fn a_subscriber_may_burden_the_publisher_less_and_not_more() {
    let dir = Dir::new("burden");
    let (there, here) = (dir.answering(), dir.manager());
    use WhenSlow::{DropNewest, DropOldest, SendAway, Wait};
    let all = [Wait, DropOldest, DropNewest, SendAway];
    for (i, when_slow) in all.into_iter().enumerate() {
        let config = PublishConfig { when_slow, ..POOL };
        let publisher = Publisher::new(&there, config).unwrap();
        let seed = publisher.seed().unwrap().reached();
        for (j, asked) in all.into_iter().enumerate() {
            let config = SubscribeConfig { when_slow: Some(asked), ..SubscribeConfig::default() };
            let grown = Subscriber::grow(&here, &seed, config, LIMIT);
            match (grown, j >= i) {
                (Ok(_subscriber), true) => {
                    until_joined(&publisher, 1);
                    assert_eq!(publisher.subscribers()[0].when_slow, asked);
                }
                (Err(GrowError::Refused(why)), false) => {
                    assert!(why.contains(&format!("is to {when_slow}")), "{why}");
                }
                (grown, _) => panic!("{when_slow} {asked}: {:?}", grown.err()),
            }
            until_joined(&publisher, 0);
        }
    }
    for config in [
        SubscribeConfig { depth: 0, ..SubscribeConfig::default() },
        SubscribeConfig { depth: 1 << 16, ..SubscribeConfig::default() },
        SubscribeConfig { outstanding: 0, ..SubscribeConfig::default() },
    ] {
        let refused = Subscriber::connect(&here, &at("news"), config, LIMIT).err().unwrap();
        assert!(matches!(refused, GrowError::SetUp(_)), "{refused}");
    }
}

#[test]
fn who_holds_as_many_samples_as_it_may_gets_more_when_it_has_dropped_one() {
    if only_on_one_host(NO_POOL) {
        return;
    }
    for when_slow in [WhenSlow::DropNewest, WhenSlow::DropOldest] {
        let dir = Dir::new("outstanding");
        let (there, here, other) = (dir.answering(), dir.manager(), dir.manager());
        let publisher = publish(&there, POOL);
        let when_slow = Some(when_slow);
        let mut holds =
            subscribe(&here, SubscribeConfig { when_slow, ..SubscribeConfig::default() });
        let mut drops = subscribe(&other, SubscribeConfig::default());
        until_joined(&publisher, 2);
        let mut held = Vec::new();
        for i in 0..50u64 {
            let mut loan = publisher.loan(10_000).unwrap();
            loan.fill(i as u8);
            publisher.publish_loan(loan, LIMIT).unwrap();
            if i < 2 {
                held.push(holds.receive(LIMIT).unwrap());
            }
            assert_eq!(drops.receive(LIMIT).unwrap().number(), i);
        }
        assert!(holds.try_receive().unwrap().is_none());
        let of = |i: usize| publisher.subscribers()[i].clone();
        assert_eq!((of(0).outstanding, of(0).sent), (2, 2));
        until(|| of(1).outstanding == 0);
        // The samples it holds have not changed; a byte of each is enough to tell.
        for (i, sample) in held.iter().enumerate() {
            assert!(sample.to_vec().unwrap().iter().all(|byte| *byte == i as u8));
        }
        held.clear();
        // The samples kept for it come at once.
        let is_newest = when_slow == Some(WhenSlow::DropNewest);
        until(|| of(0).outstanding == if is_newest { 0 } else { 2 } && of(0).behind == 0);
        publisher.publish(&[50; 100], LIMIT).unwrap();
        let mut got = Vec::new();
        while got.last() != Some(&50) {
            got.push(holds.receive(LIMIT).unwrap().number());
        }
        let expected = if is_newest { vec![50] } else { vec![48, 49, 50] };
        assert_eq!(got, expected);
        assert_eq!(holds.missed(), publisher.dropped());
    }
}

#[test]
fn what_subscribers_held_that_have_gone_is_used_again() {
    if only_on_one_host(NO_POOL) {
        return;
    }
    let dir = Dir::new("gone");
    let there = dir.answering();
    let publisher = publish(&there, POOL);
    for round in 0..20u64 {
        let here = dir.manager();
        let mut subscriber = subscribe(&here, SubscribeConfig::default());
        until_joined(&publisher, 1);
        let mut held = Vec::new();
        for i in 0..2 {
            publisher.publish(&[round as u8; 1000], LIMIT).unwrap();
            let sample = subscriber.receive(LIMIT).unwrap();
            assert_eq!((sample.number(), sample.missed()), (2 * round + i, 0));
            held.push(sample);
        }
        match round % 2 {
            0 => drop(subscriber),
            _ => {
                held.clear();
                drop(subscriber);
            }
        }
        until_joined(&publisher, 0);
        // They can be dropped when the subscriber has gone, and read no more.
        assert!(held.iter().all(|sample| sample.to_vec().is_err()));
    }
    // All places are there: two on loan, while the log has two.
    let _loans = [publisher.loan(1).unwrap(), publisher.loan(1).unwrap()];
}

#[test]
fn any_number_of_threads_publish_and_each_subscriber_has_the_same_order() {
    let dir = Dir::new("publish-threads");
    let there = dir.answering();
    let managers = [dir.manager(), dir.manager()];
    let publisher = publish(&there, PublishConfig { when_slow: WhenSlow::Wait, ..POOL });
    let mut subscribers: Vec<_> =
        managers.iter().map(|here| subscribe(here, SubscribeConfig::default())).collect();
    until_joined(&publisher, 2);
    const THREADS: u64 = 4;
    const EACH: u64 = 300;
    let got: Vec<Vec<u64>> = std::thread::scope(|scope| {
        let receiving: Vec<_> = subscribers
            .iter_mut()
            .map(|subscriber| {
                scope.spawn(move || {
                    let next = |_| number(&subscriber.receive(LIMIT).unwrap());
                    (0..THREADS * EACH).map(next).collect()
                })
            })
            .collect();
        for thread in 0..THREADS {
            let publisher = &publisher;
            scope.spawn(move || {
                for i in 0..EACH {
                    publisher.publish(&(thread << 32 | i).to_le_bytes(), LIMIT).unwrap();
                }
            });
        }
        receiving.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(got[0] == got[1]);
    for thread in 0..THREADS {
        let its = got[0].iter().filter(|n| **n >> 32 == thread).map(|n| n & 0xffff_ffff);
        assert!(its.eq(0..EACH));
    }
}

#[test]
fn rings_that_hold_little_lose_nothing_and_packets_that_hold_too_little_are_refused() {
    let dir = Dir::new("small-rings");
    let manager = |ring_bytes: u32, packet_bytes: u32| {
        let mut config = dir.config();
        (config.ring_bytes, config.bulk_ring_bytes) = (ring_bytes as _, 0);
        config.packet_bytes = packet_bytes;
        manager_with(config)
    };
    let there = manager(8192, 16384);
    there.start_progress().unwrap();
    let config = PublishConfig { short_bytes_max: 1000, when_slow: WhenSlow::Wait, ..POOL };
    let publisher = publish(&there, PublishConfig { sample_bytes_max: 0, ..config });
    let here = manager(8192, 16384);
    let mut subscriber = subscribe(&here, SubscribeConfig::default());
    until_joined(&publisher, 1);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for i in 0..500u64 {
                let bytes = [&i.to_le_bytes()[..], &[i as u8; 992]].concat();
                publisher.publish(&bytes, LIMIT).unwrap();
            }
            publisher.flush(LIMIT).unwrap();
        });
        for i in 0..500 {
            let sample = subscriber.receive(LIMIT).unwrap();
            assert_eq!((number(&sample), sample.missed(), sample.len()), (i, 0, 1000));
        }
    });
    let small = manager(8192, 512);
    let mut refused = subscribe(&small, SubscribeConfig::default());
    assert!(matches!(refused.receive(LIMIT), Err(ReceiveError::Ended(_))));
    assert_eq!(publisher.sent_away(), 1);
}

#[test]
fn one_whose_link_is_full_gets_later_what_the_others_have_got() {
    if only_on_one_host(
        "how much a link holds is the network's to say, and more than the places of a subscriber",
    ) {
        return;
    }
    let dir = Dir::new("full-beside");
    let manager = || {
        let mut config = dir.config();
        (config.ring_bytes, config.bulk_ring_bytes) = (8192, 0);
        manager_with(config)
    };
    // The subscriber that takes nothing is the first or the last to get a sample.
    for takes_nothing in [0, 2] {
        let there = manager();
        there.start_progress().unwrap();
        let config = PublishConfig { when_slow: WhenSlow::Wait, ..POOL };
        let publisher = publish(&there, config);
        let managers = [manager(), manager(), manager()];
        let config = SubscribeConfig { depth: 1024, ..SubscribeConfig::default() };
        let mut subscribers: Vec<_> =
            managers.iter().map(|here| subscribe(here, config.clone())).collect();
        until_joined(&publisher, 3);
        // A ring holds 128 lines, and the places are more.
        let mut count = 0u64;
        let sample = |i: u64| vec![i as u8; [16, 16, 7, 0, 16, 40][i as usize % 6]];
        while let Some(number) = publisher.try_publish(&sample(count)).unwrap() {
            assert_eq!(number, count);
            count += 1;
            for (i, subscriber) in subscribers.iter_mut().enumerate() {
                if i != takes_nothing {
                    let got = subscriber.receive(LIMIT).unwrap();
                    assert_eq!((got.number(), got.missed()), (number, 0));
                    assert_eq!(got.as_slice(), Some(&sample(number)[..]));
                }
            }
            assert!(count < 200, "nothing was full");
        }
        for (i, state) in publisher.subscribers().into_iter().enumerate() {
            let behind = u64::from(i == takes_nothing);
            assert_eq!((state.sent, state.behind), (count - behind, behind), "subscriber {i}");
        }
        let more = count + 20;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for number in count..more {
                    assert_eq!(publisher.publish(&sample(number), LIMIT).unwrap(), number);
                }
            });
            // The publisher waits for the one that has taken nothing.
            subscribers.swap(0, takes_nothing);
            for (i, subscriber) in subscribers.iter_mut().enumerate() {
                for number in if i == 0 { 0 } else { count }..more {
                    let got = subscriber.receive(LIMIT).unwrap();
                    assert_eq!((got.number(), got.missed()), (number, 0));
                    assert_eq!(got.as_slice(), Some(&sample(number)[..]));
                }
            }
        });
        for state in publisher.subscribers() {
            assert_eq!((state.sent, state.behind, state.dropped), (more, 0, 0));
        }
    }
}

#[test]
fn subscribers_are_as_many_as_may_be_and_those_whom_the_owner_wants() {
    let dir = Dir::new("publish-places");
    let (there, here) = (dir.answering(), dir.manager());
    // Of another host's the last place is for users who have none.
    let places = 2 + u32::from(is_of_hosts());
    let publisher = publish(&there, PublishConfig { subscribers_max: places, ..POOL });
    let _two = [0, 1].map(|_| subscribe(&here, SubscribeConfig::default()));
    let third = Subscriber::connect(&here, &at("news"), SubscribeConfig::default(), LIMIT);
    let refused = third.err().unwrap().to_string();
    let says = match is_of_hosts() {
        true => "it has 2 subscribers and may have 3",
        false => "it has 2 subscribers, as many as it may",
    };
    assert!(refused.contains(says), "{refused}");
    publisher.set_admission(|_| Err("not you".into()));
    let refused = Subscriber::connect(&here, &at("news"), SubscribeConfig::default(), LIMIT);
    assert!(refused.err().unwrap().to_string().contains("not you"));
    let wrong = Publisher::new(&there, PublishConfig { loans_max: 0, ..POOL }).err().unwrap();
    assert!(wrong.to_string().contains("loans_max is 0"), "{wrong}");
}

#[test]
fn a_pool_beyond_the_quota_is_refused_with_what_is_allowed() {
    if only_on_one_host(NO_POOL) {
        return;
    }
    let dir = Dir::new("publish-quota");
    let mut config = dir.config();
    config.aperture_bytes_max = 1 << 16;
    let there = manager_with(config);
    let refused = Publisher::new(&there, POOL).err().unwrap().to_string();
    assert!(refused.contains("HAMLYN_APERTURE_BYTES_MAX"), "{refused}");
    // A holder that may not have so much is sent away, and says why in its own counters.
    let there = dir.answering();
    let publisher = publish(&there, POOL);
    let mut config = dir.config();
    config.aperture_map_max = 1 << 16;
    let here = manager_with(config);
    let mut subscriber = subscribe(&here, SubscribeConfig::default());
    assert!(matches!(subscriber.receive(LIMIT), Err(ReceiveError::Ended(_))));
    assert_eq!(publisher.sent_away(), 1);
}

#[test]
fn a_forked_child_publishes_nothing() {
    let dir = Dir::new("publish-forked");
    let (there, here) = (dir.answering(), dir.manager());
    let publisher = publish(&there, POOL);
    let mut subscriber = subscribe(&here, SubscribeConfig::default());
    until_joined(&publisher, 1);
    // SAFETY: the child has this thread alone, and ends with `_exit`, or by its alarm.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: a timer of the child, whose signal ends it.
        unsafe { libc::alarm(5) };
        let told = matches!(publisher.publish(b"child", SHORT), Err(PublishError::Forked(_)))
            && matches!(publisher.loan(1), Err(PublishError::Forked(_)));
        drop((publisher, subscriber));
        // SAFETY: ends the process.
        unsafe { libc::_exit(!told as i32) };
    }
    let mut status = -1;
    // SAFETY: waits for the child just made, into a live integer.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0, "the child was not told, or hung");
    publisher.publish(b"parent", LIMIT).unwrap();
    assert_eq!(subscriber.receive(LIMIT).unwrap().as_slice(), Some(&b"parent"[..]));
}
