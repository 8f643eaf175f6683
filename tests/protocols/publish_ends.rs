//! Publish and subscribe: the memory and the waits that one end imposes on the other when a link is
//! full or ends.

use crate::help::{Dir, LIMIT, is_of_hosts, manager_with, only_on_one_host, until};
use crate::publish::{NO_POOL, POOL, publish, subscribe, until_joined};
use crate::publish_hostile::{False, Lying};
use hamlyn::node::CloseReason;
use hamlyn::protocol::{
    Manager, PublishConfig, PublishError, ReceiveError, SubscribeConfig, WhenSlow,
};
use std::time::Duration;

#[test]
fn one_that_is_behind_in_memory_keeps_nobody_from_the_room_of_its_link() {
    // The other is by hand, and has the pool.
    for is_there in if is_of_hosts() { vec![false] } else { vec![false, true] } {
        let dir = Dir::new("room");
        let here = dir.manager();
        let config = dir.config().ring_bytes(4096u32).bulk_ring_bytes(0u32);
        let there = manager_with(config);
        there.start_progress().unwrap();
        // A ring holds some fifteen of them.
        let config = PublishConfig { short_bytes_max: 200, backlog: 60, ..POOL };
        let publisher = publish(&there, config);
        let lying = is_there.then(|| Lying::new(&dir, 2, 0));
        let config = SubscribeConfig { depth: 1024, ..SubscribeConfig::default() };
        let mut honest = subscribe(&here, config);
        // It holds the pool, and takes nothing more of its link.
        until(|| {
            here.poll().unwrap();
            let states = publisher.subscribers();
            assert_eq!(publisher.sent_away(), 0);
            states.len() == 1 + is_there as usize && states.iter().all(|state| state.is_served)
        });
        while publisher.subscribers().last().unwrap().behind < 60 {
            publisher.publish(&[1; 200], LIMIT).unwrap();
        }
        let published = publisher.published();
        let mut number = 0;
        while number + 1 < published {
            let sample = honest.receive(Some(Duration::from_secs(3)));
            number = sample.unwrap_or_else(|e| panic!("{is_there}: {number}: {e}")).number();
        }
        drop(lying);
    }
}

#[test]
fn a_publisher_that_takes_no_releases_makes_its_subscriber_keep_one_for_each_lease() {
    if only_on_one_host(NO_POOL) {
        return;
    }
    let dir = Dir::new("untold");
    let here = dir.manager();
    let mut lies = False::new(&dir, &here, 4096);
    // It uses a lease again of which it has not been told that it is free.
    let error = (0..20_000).find_map(|_| {
        lies.announce(0, 0, 1);
        lies.subscriber.receive(LIMIT).err()
    });
    let error = error.expect("what it is to be told is bounded").to_string();
    assert!(error.contains("by lease 0, which another sample has"), "{error}");
}

/// Until no link is left.
fn until_ended(here: &Manager) {
    until(|| {
        here.poll().unwrap();
        here.lock().links().count() == 0
    });
}

#[test]
fn samples_of_the_pool_that_came_before_the_end_blame_nobody() {
    if only_on_one_host(NO_POOL) {
        return;
    }
    for has_had_one in [false, true] {
        let dir = Dir::new("end");
        let (there, here) = (dir.answering(), dir.manager());
        let publisher = publish(&there, POOL);
        let mut subscriber = subscribe(&here, SubscribeConfig::default());
        until(|| {
            here.poll().unwrap();
            publisher.subscribers().first().is_some_and(|state| state.is_served)
        });
        if has_had_one {
            publisher.publish(&[1; 1000], LIMIT).unwrap();
            subscriber.receive(LIMIT).unwrap();
        }
        publisher.publish(&[2; 1000], LIMIT).unwrap();
        publisher.publish(&[3; 10], LIMIT).unwrap();
        drop(publisher);
        until_ended(&here);
        let mut got = Vec::new();
        let error = loop {
            match subscriber.receive(LIMIT) {
                Ok(sample) => got.push((sample.number(), sample.missed(), sample.to_vec().is_ok())),
                Err(e) => break e,
            }
        };
        assert!(matches!(error, ReceiveError::Ended(_)), "{has_had_one}: {error}");
        // Samples in the pool cannot be read: they are left out, and missed.
        assert_eq!(got, [(1 + u64::from(has_had_one), 1, true)]);
    }
}

#[test]
fn a_pool_that_goes_with_what_came_last_is_no_end_at_which_all_was_received() {
    if only_on_one_host(NO_POOL) {
        return;
    }
    let dir = Dir::new("cut-off");
    let (there, here) = (dir.answering(), dir.manager());
    let publisher = publish(&there, POOL);
    let mut subscriber = subscribe(&here, SubscribeConfig::default());
    until(|| {
        here.poll().unwrap();
        publisher.subscribers().first().is_some_and(|state| state.is_served)
    });
    publisher.publish(&[1; 10], LIMIT).unwrap();
    publisher.publish(&[2; 1000], LIMIT).unwrap();
    publisher.publish(&[3; 1000], LIMIT).unwrap();
    drop(publisher);
    until_ended(&here);
    assert_eq!(subscriber.receive(LIMIT).unwrap().to_vec().unwrap(), [1; 10]);
    for _ in 0..2 {
        let error = subscriber.receive(LIMIT).unwrap_err();
        assert!(matches!(error, ReceiveError::Ended(CloseReason::HungUp)), "{error:?}");
        assert_eq!(subscriber.missed(), 2);
    }
}

#[test]
fn a_subscriber_that_is_behind_when_its_publisher_goes_is_not_told_that_it_has_had_all() {
    const SAMPLES: u64 = 100;
    for flushes in [false, true] {
        let dir = Dir::new("behind");
        let (there, here) = (dir.answering(), dir.manager());
        let config = PublishConfig { backlog: 200, ..PublishConfig::default() };
        let publisher = publish(&there, config);
        let config = SubscribeConfig { depth: 4, ..SubscribeConfig::default() };
        let mut subscriber = subscribe(&here, config);
        until(|| {
            here.poll().unwrap();
            publisher.subscribers().first().is_some_and(|state| state.is_served)
        });
        for _ in 0..SAMPLES {
            publisher.publish(b"x", LIMIT).unwrap();
        }
        let ends = std::thread::spawn(move || {
            if flushes {
                publisher.flush(LIMIT).unwrap();
            }
            drop(publisher);
        });
        if !flushes {
            ends.join().unwrap();
            until_ended(&here);
        }
        let mut got = 0;
        let end = loop {
            match subscriber.receive(LIMIT) {
                Ok(_) => got += 1,
                Err(ReceiveError::Ended(end)) => break end,
                Err(e) => panic!("{e}"),
            }
        };
        match flushes {
            true => assert_eq!((got, end), (SAMPLES, CloseReason::Closed)),
            false => assert!(got < SAMPLES && end == CloseReason::TooSlow, "{got}: {end}"),
        }
    }
}

#[test]
fn one_that_is_sent_away_blames_nobody_for_what_it_had_not_taken() {
    let dir = Dir::new("slow-end");
    let (there, here) = (dir.answering(), dir.manager());
    let publisher = publish(&there, PublishConfig { when_slow: WhenSlow::SendAway, ..POOL });
    let mut subscriber = subscribe(&here, SubscribeConfig::default());
    until(|| {
        here.poll().unwrap();
        publisher.subscribers().first().is_some_and(|state| state.is_served)
    });
    while publisher.sent_away() == 0 {
        publisher.publish(&[2; 1000], LIMIT).unwrap();
    }
    until_ended(&here);
    loop {
        match subscriber.receive(LIMIT) {
            Ok(_) => {}
            Err(ReceiveError::Ended(_)) => break,
            Err(e) => panic!("{e}"),
        }
    }
}

#[test]
fn what_was_released_is_told_when_there_is_room_again() {
    if only_on_one_host(NO_POOL) {
        return;
    }
    for is_dropped_first in [true, false] {
        told_when_there_is_room(is_dropped_first);
    }
}

fn told_when_there_is_room(is_dropped_first: bool) {
    let dir = Dir::new("told");
    let there = dir.manager();
    let here = manager_with(dir.config().ring_bytes(512u32));
    let config = PublishConfig { outstanding_max: 40, backlog: 40, subscribers_max: 1, ..POOL };
    let (publisher, here) = (publish(&there, config), &here);
    std::thread::scope(move |scope| {
        let joining = scope.spawn(move || subscribe(here, SubscribeConfig::default()));
        until(|| {
            there.poll().unwrap();
            joining.is_finished()
        });
        let mut subscriber = joining.join().unwrap();
        until(|| {
            there.poll().unwrap();
            here.poll().unwrap();
            publisher.subscribers().first().is_some_and(|state| state.is_served)
        });
        for _ in 0..40 {
            publisher.publish(&[1; 1000], LIMIT).unwrap();
        }
        let samples: Vec<_> = (0..40).map(|_| subscriber.receive(LIMIT).unwrap()).collect();
        let mut samples = Some(samples);
        if is_dropped_first {
            samples = None;
        }
        let waits = scope.spawn(move || {
            let ended = subscriber.receive(LIMIT);
            assert!(matches!(ended, Err(ReceiveError::Ended(_))), "{ended:?}");
        });
        // It sleeps.
        std::thread::sleep(Duration::from_millis(300));
        drop(samples);
        let drained = publisher.drain(Some(Duration::from_secs(3)));
        let left = publisher.subscribers()[0].outstanding;
        drop((publisher, there));
        waits.join().unwrap();
        assert!(drained.is_ok(), "{drained:?}: {left} are outstanding");
    });
}

#[test]
fn those_who_come_and_go_leave_nothing_and_are_blamed_for_nothing() {
    if only_on_one_host(NO_POOL) {
        return;
    }
    let dir = Dir::new("come-and-go");
    let there = dir.answering();
    let publisher = publish(&there, PublishConfig { outstanding_max: 1, ..POOL });
    let mut kept = Vec::new();
    for round in 0..30 {
        let here = dir.manager();
        let mut subscriber = subscribe(&here, SubscribeConfig::default());
        until_polled(&publisher, &here);
        publisher.publish(&[round; 1000], LIMIT).unwrap();
        let sample = subscriber.receive(LIMIT).unwrap();
        // In any order, and some after everything else.
        match round % 4 {
            0 => drop((subscriber, sample, here)),
            1 => drop((here, sample, subscriber)),
            2 => drop((sample, here, subscriber)),
            _ => {
                drop((here, subscriber));
                kept.push(sample);
            }
        }
        until(|| publisher.subscribers().is_empty());
        let lying = Lying::new(&dir, 1, 0);
        publisher.publish(&[round; 1000], LIMIT).unwrap();
        drop(lying);
        until(|| publisher.subscribers().is_empty());
    }
    assert_eq!((publisher.misbehaved(), publisher.sent_away(), publisher.dropped()), (0, 0, 0));
    let loans: Vec<_> = (0..2).map(|_| publisher.loan(10_000).unwrap()).collect();
    assert!(matches!(publisher.loan(1), Err(PublishError::Loans(2))));
    drop(kept);
    drop(publisher);
    drop(there);
    for mut loan in loans {
        loan.fill(1);
    }
}

fn until_polled(publisher: &hamlyn::protocol::Publisher, here: &Manager) {
    until(|| {
        here.poll().unwrap();
        publisher.subscribers().len() == 1 && publisher.subscribers()[0].is_served
    });
}

#[test]
fn numbers_of_a_subscriber_that_lied_are_no_part_of_the_counts() {
    if only_on_one_host(NO_POOL) {
        return;
    }
    let dir = Dir::new("counts");
    let there = dir.answering();
    let publisher = publish(&there, POOL);
    let mut lying = Lying::new(&dir, 2, WhenSlow::DropNewest as u8);
    until_joined(&publisher, 1);
    for word in [u64::MAX, 1 << 63, 3] {
        lying.tell(&there, 0, word);
        let state = publisher.subscribers().remove(0);
        assert_eq!((state.untaken, state.outstanding), (0, 0), "{word}");
    }
    lying.tell(&there, 0, 0);
    publisher.publish(&[0; 8], LIMIT).unwrap();
    lying.tell(&there, 0, 1);
    lying.tell(&there, 0, 0);
    for _ in 0..5 {
        publisher.publish(&[0; 8], LIMIT).unwrap();
    }
    let state = publisher.subscribers().remove(0);
    assert!(state.sent + state.dropped + state.behind == 6, "{state:?}");
    assert_eq!(publisher.misbehaved(), 0);
}
