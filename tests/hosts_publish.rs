//! Publish and subscribe between hosts: long samples, which go in parts, and relays, which publish
//! the samples again on a host of their own.
//!
//! ```text
//!   publisher --TLS--> cable, which counts and can be cut --> subscriber, or relay --rings--> subscribers
//! ```
#![cfg(not(miri))]

#[path = "support/cable.rs"]
mod cable;
mod support;

use cable::Cable;
use hamlyn::node::CloseReason;
use hamlyn::protocol::{
    ConnectionState, GrowError, Manager, PublishConfig, Publisher, ReceiveError, ReconnectPolicy,
    Relay, RelayConfig, RelayError, SubscribeConfig, Subscriber, WhenSlow,
};
use hamlyn::{Access, Config};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use support::{Dir, LIMIT, LONG, listening, pattern, until};

// ---- two hosts

fn config(dir: &Dir) -> Config {
    listening(dir.config().secret(dir.secret()))
}

/// A publisher's host, and another, with a cable between them.
struct Hosts {
    there: Dir,
    here: Dir,
    /// Where the publisher's process listens.
    server: Arc<Mutex<SocketAddr>>,
    cable: Cable,
}

impl Hosts {
    fn new(name: &str) -> Self {
        let settings = [("HOST_TIMEOUT_MS", "2000")];
        let server = Arc::new(Mutex::new("127.0.0.1:1".parse().unwrap()));
        let leads_to = server.clone();
        let cable = Cable::to(move || *leads_to.lock().unwrap(), 1);
        let dirs = ["there", "here"].map(|side| Dir::new(&format!("{name}-{side}"), &settings));
        let [there, here] = dirs;
        Self { there, here, server, cable }
    }

    /// A process of the publisher's host, to which the cable leads from now on.
    fn publishing(&self) -> Manager {
        let manager = Manager::with_config(config(&self.there)).unwrap();
        manager.start_progress().unwrap();
        *self.server.lock().unwrap() = manager.listens_at().unwrap();
        manager
    }

    fn subscribing(&self) -> Manager {
        Manager::with_config(config(&self.here)).unwrap()
    }

    /// The name of the publisher's service on the other host.
    fn name(&self) -> String {
        format!("hamlyn://{}/news", self.cable.at)
    }
}

fn publish(manager: &Manager, config: PublishConfig) -> Publisher {
    let publisher = Publisher::new(manager, config).unwrap();
    publisher.serve("news", Access::SameUser).unwrap();
    publisher
}

fn until_joined(publisher: &Publisher, count: usize) {
    until("subscribers are there", || {
        let subscribers = publisher.subscribers();
        subscribers.len() == count && subscribers.iter().all(|subscriber| subscriber.is_served)
    });
}

const LONGEST: usize = 64 << 10;

const LONG_ONES: PublishConfig = PublishConfig {
    short_bytes_max: 1024,
    sample_bytes_max: LONGEST,
    loans_max: 2,
    backlog: 4,
    history: 0,
    outstanding_max: 2,
    subscribers_max: 16,
    when_slow: WhenSlow::Wait,
};

// ---- long samples

#[test]
fn a_long_sample_goes_to_another_host_in_parts_between_short_ones() {
    let hosts = Hosts::new("parts");
    let (there, here) = (hosts.publishing(), hosts.subscribing());
    let publisher = publish(&there, LONG_ONES);
    // The longest takes many times as many parts as there are places.
    let config = SubscribeConfig { depth: 5, ..SubscribeConfig::default() };
    let mut subscriber = Subscriber::connect(&here, &hosts.name(), config, LIMIT).unwrap();
    until_joined(&publisher, 1);
    let lengths = [0, 16, 1024, 1025, 2032, 2033, 2040, 2041, 4080, 10_000, LONGEST];
    let sample = |i: u64| pattern(lengths[i as usize % lengths.len()], i);
    const COUNT: u64 = 200;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for i in 0..COUNT {
                let mut loan = publisher.loan(sample(i).len()).unwrap();
                loan.copy_from_slice(&sample(i));
                let number = match i % 3 {
                    // A sample of any length lies in the pool.
                    0 => publisher.publish_loan(loan, LIMIT).unwrap(),
                    _ => publisher.publish(&sample(i), LIMIT).unwrap(),
                };
                assert_eq!(number, i);
            }
            publisher.flush(LIMIT).unwrap();
        });
        for i in 0..COUNT {
            let got = subscriber.receive(LIMIT).unwrap();
            assert_eq!((got.number(), got.missed(), got.len()), (i, 0, sample(i).len()));
            assert!(got.to_vec().unwrap() == sample(i), "sample {i}");
            assert!(got.as_slice().is_some(), "it is this process's own");
        }
    });
    let state = &publisher.subscribers()[0];
    assert_eq!((state.sent, state.behind, state.outstanding), (COUNT, 0, 0));
    drop(publisher);
    let end = subscriber.receive(LIMIT);
    assert!(matches!(end, Err(ReceiveError::Ended(CloseReason::Closed))), "{end:?}");
}

#[test]
fn what_a_slow_subscriber_misses_of_long_samples_is_never_a_part() {
    for when_slow in [WhenSlow::DropOldest, WhenSlow::DropNewest] {
        let hosts = Hosts::new("slow-parts");
        let (there, here) = (hosts.publishing(), hosts.subscribing());
        let publisher = publish(&there, PublishConfig { when_slow, ..LONG_ONES });
        let config = SubscribeConfig { depth: 3, ..SubscribeConfig::default() };
        let mut subscriber = Subscriber::connect(&here, &hosts.name(), config, LIMIT).unwrap();
        until_joined(&publisher, 1);
        for i in 0..50 {
            let length = if i % 2 == 0 { 20_000 } else { 100 };
            publisher.publish(&pattern(length, i), LIMIT).unwrap();
        }
        // The first has begun, and is kept for any later ones.
        let mut got = Vec::new();
        let mut missed = 0;
        while got.last() != Some(&50) {
            if got.len() > 1 && publisher.published() == 50 {
                until("nothing is left to be sent", || {
                    publisher.subscribers()[0].behind == 0 || got.last() != Some(&49)
                });
            }
            match subscriber.receive(Some(Duration::from_millis(300))) {
                Ok(sample) => {
                    let number = sample.number();
                    let length = if number % 2 == 0 { 20_000 } else { 100 };
                    assert!(sample.to_vec().unwrap() == pattern(length, number), "{number}");
                    missed += sample.missed();
                    got.push(number);
                }
                Err(ReceiveError::TimedOut) if publisher.published() == 50 => {
                    publisher.publish(&pattern(20_000, 50), LIMIT).unwrap();
                }
                Err(e) => panic!("{when_slow}: {e}"),
            }
        }
        assert_eq!(got[0], 0);
        assert!(missed > 0 && missed + got.len() as u64 == 51, "{when_slow}: {got:?}, {missed}");
        assert_eq!(missed, publisher.dropped());
    }
}

#[test]
fn a_part_that_has_come_of_a_sample_is_missed_where_its_publisher_goes() {
    let hosts = Hosts::new("cut-parts");
    let (there, here) = (hosts.publishing(), hosts.subscribing());
    let publisher = publish(&there, LONG_ONES);
    let config = SubscribeConfig { depth: 3, ..SubscribeConfig::default() };
    let mut subscriber = Subscriber::connect(&here, &hosts.name(), config, LIMIT).unwrap();
    until_joined(&publisher, 1);
    publisher.publish(&[1; LONGEST], LIMIT).unwrap();
    until("parts have come", || {
        let _ = subscriber.try_receive().unwrap();
        publisher.subscribers()[0].untaken > 0
    });
    drop(publisher);
    let end = subscriber.receive(LIMIT).unwrap_err();
    assert!(matches!(end, ReceiveError::Ended(CloseReason::TooSlow)), "{end}");
    assert_eq!(subscriber.missed(), 1);
}

#[test]
fn a_publisher_of_longer_samples_than_are_taken_is_left_with_what_is_allowed() {
    let hosts = Hosts::new("long-parts");
    let (there, here) = (hosts.publishing(), hosts.subscribing());
    let publisher = publish(&there, LONG_ONES);
    let config = SubscribeConfig { sample_bytes_max: LONGEST - 1, ..SubscribeConfig::default() };
    let refused = Subscriber::connect(&here, &hosts.name(), config, LIMIT).err().unwrap();
    assert!(matches!(refused, GrowError::SetUp(_)), "{refused}");
    assert!(refused.to_string().contains("SubscribeConfig::sample_bytes_max"), "{refused}");
    until("it is gone", || publisher.subscribers().is_empty());
}

// ---- relays

fn relay_config() -> RelayConfig {
    RelayConfig {
        publish: PublishConfig { sample_bytes_max: 0, ..LONG_ONES },
        reconnect: ReconnectPolicy {
            delay_max: Duration::from_millis(50),
            ..ReconnectPolicy::default()
        },
        until_closed: false,
        ..RelayConfig::default()
    }
}

/// A relay at work, in a thread of its own.
struct Working {
    stops: Arc<AtomicBool>,
    /// Subscribers that can be sent samples, as it has last seen them.
    served: Arc<AtomicUsize>,
    thread: std::thread::JoinHandle<(Relay, Option<RelayError>)>,
}

impl Working {
    fn new(mut relay: Relay) -> Self {
        relay.serve("news-here", Access::SameUser).unwrap();
        let (stops, served) = <(Arc<AtomicBool>, Arc<AtomicUsize>)>::default();
        let (ends, seen) = (stops.clone(), served.clone());
        let thread = std::thread::spawn(move || {
            while !ends.load(Ordering::Relaxed) {
                let count = relay.subscribers().iter().filter(|one| one.is_served).count();
                seen.store(count, Ordering::Relaxed);
                match relay.pass_on(Some(Duration::from_millis(20))) {
                    Ok(_) | Err(RelayError::TimedOut) => {}
                    Err(end) => return (relay, Some(end)),
                }
            }
            (relay, None)
        });
        Self { stops, served, thread }
    }

    fn until_serves(&self, count: usize) {
        until("it serves its subscribers", || self.served.load(Ordering::Relaxed) == count);
    }

    /// Stops it.
    fn stop(self) -> Relay {
        self.stops.store(true, Ordering::Relaxed);
        let (relay, end) = self.thread.join().unwrap();
        assert!(end.is_none(), "{end:?}");
        relay
    }

    /// It ends by itself.
    fn end(self) -> (Relay, RelayError) {
        let (relay, end) = self.thread.join().unwrap();
        (relay, end.unwrap())
    }
}

fn here(manager: &Manager, config: SubscribeConfig) -> Subscriber {
    Subscriber::connect(manager, "news-here", config, LIMIT).unwrap()
}

/// The next sample, which must be whole and be the one that was published with this seed.
fn expect(subscriber: &mut Subscriber, number: u64, missed: u64, seed: u64) {
    let sample = subscriber.receive(LIMIT).unwrap();
    assert_eq!((sample.number(), sample.missed()), (number, missed));
    assert!(sample.to_vec().unwrap() == pattern(LONGEST, seed), "sample {number}");
}

#[test]
fn each_sample_comes_once_to_a_host_of_any_number_of_subscribers() {
    const COUNT: u64 = 100;
    const BYTES: u64 = COUNT * LONGEST as u64;
    // The cost of one subscriber.
    let one = {
        let hosts = Hosts::new("one");
        let (there, here) = (hosts.publishing(), hosts.subscribing());
        let publisher = publish(&there, LONG_ONES);
        let config = RelayConfig::default().subscribe;
        let mut subscriber = Subscriber::connect(&here, &hosts.name(), config, LIMIT).unwrap();
        until_joined(&publisher, 1);
        let before = hosts.cable.returned();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for i in 0..COUNT {
                    publisher.publish(&pattern(LONGEST, i), LIMIT).unwrap();
                }
                publisher.flush(LIMIT).unwrap();
            });
            (0..COUNT).for_each(|i| expect(&mut subscriber, i, 0, i));
        });
        hosts.cable.returned() - before
    };
    let hosts = Hosts::new("eight");
    let (there, relaying) = (hosts.publishing(), hosts.subscribing());
    let publisher = publish(&there, LONG_ONES);
    let relay = Relay::connect(&relaying, &hosts.name(), relay_config(), LIMIT).unwrap();
    let working = Working::new(relay);
    until_joined(&publisher, 1);
    let managers: Vec<_> = (0..8).map(|_| hosts.subscribing()).collect();
    let subscribers: Vec<_> =
        managers.iter().map(|manager| here(manager, SubscribeConfig::default())).collect();
    working.until_serves(8);
    let before = hosts.cable.returned();
    std::thread::scope(|scope| {
        for mut subscriber in subscribers {
            scope.spawn(move || {
                let first = subscriber.receive(LIMIT).unwrap();
                assert_eq!((first.number(), first.missed()), (0, 0));
                assert!(first.as_slice().is_none(), "it is not in the relay's pool");
                drop(first);
                (1..COUNT).for_each(|i| expect(&mut subscriber, i, 0, i));
            });
        }
        for i in 0..COUNT {
            publisher.publish(&pattern(LONGEST, i), LIMIT).unwrap();
        }
    });
    let eight = hosts.cable.returned() - before;
    let percent = |bytes: u64| bytes * 100 / BYTES;
    support::loud(&format!(
        "{COUNT} samples of 64 KiB: {}% of their bytes to one subscriber, {}% to eight by a relay",
        percent(one),
        percent(eight)
    ));
    assert!((BYTES..BYTES / 100 * 110).contains(&one), "{one} of {BYTES}");
    assert!((BYTES..one / 100 * 105).contains(&eight), "{eight}, and {one} to one");
    let relay = working.stop();
    assert_eq!((relay.missed(), publisher.subscribers().len()), (0, 1));
}

#[test]
fn a_publisher_that_comes_back_is_a_gap_for_subscribers_who_stay() {
    let hosts = Hosts::new("back");
    let (relaying, manager) = (hosts.subscribing(), hosts.subscribing());
    let there = hosts.publishing();
    let publisher = publish(&there, LONG_ONES);
    let relay = Relay::connect(&relaying, &hosts.name(), relay_config(), LIMIT).unwrap();
    let working = Working::new(relay);
    let mut subscriber = here(&manager, SubscribeConfig::default());
    working.until_serves(1);
    let mut next = 0;
    let mut publisher = Some((publisher, there));
    for life in 0..3 {
        let (publisher, _there) = match publisher.take() {
            Some(first) => first,
            None => {
                let there = hosts.publishing();
                (publish(&there, LONG_ONES), there)
            }
        };
        until_joined(&publisher, 1);
        for i in 0..5 {
            publisher.publish(&pattern(LONGEST, life * 5 + i), LIMIT).unwrap();
            // Its own numbers begin anew; at least one is missing.
            let missed = u64::from(life > 0 && i == 0);
            expect(&mut subscriber, next + missed, missed, life * 5 + i);
            next += 1 + missed;
        }
        publisher.flush(LIMIT).unwrap();
    }
    let relay = working.stop();
    assert_eq!((subscriber.missed(), relay.missed()), (2, 2));
}

#[test]
fn what_a_publisher_keeps_comes_after_an_outage_and_what_it_does_not_is_missed() {
    let hosts = Hosts::new("outage");
    let (there, relaying, manager) = (hosts.publishing(), hosts.subscribing(), hosts.subscribing());
    let when_slow = WhenSlow::DropOldest;
    let publisher = publish(&there, PublishConfig { history: 3, when_slow, ..LONG_ONES });
    let publish = |numbers: std::ops::Range<u64>| {
        for i in numbers {
            assert_eq!(publisher.publish(&pattern(LONGEST, i), LIMIT).unwrap(), i);
        }
    };
    // Numbers go on from those that were published before there was a relay.
    publish(0..2);
    let mut config = relay_config();
    config.publish.history = 4;
    let relay = Relay::connect(&relaying, &hosts.name(), config, LIMIT).unwrap();
    let working = Working::new(relay);
    let config = SubscribeConfig { history: 4, ..SubscribeConfig::default() };
    let mut subscriber = here(&manager, config);
    working.until_serves(1);
    until_joined(&publisher, 1);
    (0..2).for_each(|i| expect(&mut subscriber, i, 0, i));
    publish(2..4);
    (2..4).for_each(|i| expect(&mut subscriber, i, 0, i));
    hosts.cable.cut();
    until("it is gone", || publisher.subscribers().is_empty());
    publish(4..10);
    hosts.cable.mend();
    expect(&mut subscriber, 7, 3, 7);
    (8..10).for_each(|i| expect(&mut subscriber, i, 0, i));
    // All that it keeps has been passed on before.
    hosts.cable.cut();
    until("it is gone", || publisher.subscribers().is_empty());
    hosts.cable.mend();
    until_joined(&publisher, 1);
    publish(10..11);
    expect(&mut subscriber, 10, 0, 10);
    let relay = working.stop();
    assert_eq!((relay.missed(), subscriber.missed()), (3, 3));
    assert!(matches!(relay.state(), ConnectionState::Connected { number: 3 }));
}

#[test]
fn subscribers_of_a_relay_see_the_end_of_the_publisher_and_of_nothing_else() {
    let ends = |mut subscriber: Subscriber| match subscriber.receive(LIMIT).unwrap_err() {
        ReceiveError::Ended(reason) => reason,
        other => panic!("{other}"),
    };
    // The publisher says that this was all.
    let hosts = Hosts::new("ends");
    let (there, relaying, manager) = (hosts.publishing(), hosts.subscribing(), hosts.subscribing());
    let config = RelayConfig { until_closed: true, ..relay_config() };
    let publisher = publish(&there, LONG_ONES);
    let working = Working::new(Relay::connect(&relaying, &hosts.name(), config, LIMIT).unwrap());
    let mut subscriber = here(&manager, SubscribeConfig::default());
    working.until_serves(1);
    until_joined(&publisher, 1);
    publisher.publish(&pattern(LONGEST, 7), LIMIT).unwrap();
    publisher.flush(LIMIT).unwrap();
    drop(publisher);
    let (relay, end) = working.end();
    assert!(matches!(end, RelayError::Ended(CloseReason::Closed)), "{end}");
    std::thread::scope(|scope| {
        scope.spawn(|| relay.drain(LIMIT).unwrap());
        expect(&mut subscriber, 0, 0, 7);
    });
    drop(relay);
    assert_eq!(ends(subscriber), CloseReason::Closed);

    // The relay goes, and the publisher does not.
    let publisher = publish(&there, LONG_ONES);
    let relay = Relay::connect(&relaying, &hosts.name(), relay_config(), LIMIT).unwrap();
    let working = Working::new(relay);
    let mut subscriber = here(&manager, SubscribeConfig::default());
    working.until_serves(1);
    until_joined(&publisher, 1);
    publisher.publish(b"short", LIMIT).unwrap();
    assert_eq!(subscriber.receive(LIMIT).unwrap().as_slice(), Some(&b"short"[..]));
    drop(working.stop());
    assert_eq!(ends(subscriber), CloseReason::HungUp);

    // There is no connection for longer than it is to last.
    until("it is gone", || publisher.subscribers().is_empty());
    let mut config = relay_config();
    config.reconnect.outage_max = Some(Duration::from_millis(200));
    let working = Working::new(Relay::connect(&relaying, &hosts.name(), config, LIMIT).unwrap());
    let subscriber = here(&manager, SubscribeConfig::default());
    hosts.cable.cut();
    let (relay, end) = working.end();
    assert!(matches!(end, RelayError::GivenUp(_)), "{end}");
    drop(relay);
    assert_eq!(ends(subscriber), CloseReason::HungUp);
}

#[test]
fn a_subscriber_that_takes_nothing_keeps_nothing_from_others_nor_from_the_publisher() {
    let hosts = Hosts::new("stopped");
    let (there, relaying) = (hosts.publishing(), hosts.subscribing());
    let publisher = publish(&there, LONG_ONES);
    let mut config = relay_config();
    config.publish.when_slow = WhenSlow::DropOldest;
    let working = Working::new(Relay::connect(&relaying, &hosts.name(), config, LIMIT).unwrap());
    let managers = [hosts.subscribing(), hosts.subscribing()];
    let [mut stopped, mut goes_on] =
        managers.each_ref().map(|manager| here(manager, SubscribeConfig::default()));
    working.until_serves(2);
    until_joined(&publisher, 1);
    // The publisher waits for its relay only.
    for i in 0..50 {
        publisher.publish(&pattern(LONGEST, i), Some(LONG / 2)).unwrap();
        expect(&mut goes_on, i, 0, i);
    }
    // The samples it has room for, and those that the relay keeps; it has missed all others.
    let mut got = Vec::new();
    while got.last() != Some(&49) {
        let sample = stopped.receive(LIMIT).unwrap();
        assert!(sample.to_vec().unwrap() == pattern(LONGEST, sample.number()));
        got.push(sample.number());
    }
    assert_eq!(got, [0, 1, 46, 47, 48, 49]);
    assert_eq!(stopped.missed(), 44);
    assert_eq!(working.stop().missed(), 0);
}

#[test]
fn who_comes_late_gets_the_newest_from_the_relay_and_nothing_crosses_for_it() {
    let hosts = Hosts::new("late");
    let (there, relaying, manager) = (hosts.publishing(), hosts.subscribing(), hosts.subscribing());
    let publisher = publish(&there, LONG_ONES);
    let mut config = relay_config();
    config.publish.history = 3;
    let working = Working::new(Relay::connect(&relaying, &hosts.name(), config, LIMIT).unwrap());
    until_joined(&publisher, 1);
    for i in 0..10 {
        publisher.publish(&pattern(LONGEST, i), LIMIT).unwrap();
    }
    let mut first = here(&manager, SubscribeConfig::default());
    while first.receive(LIMIT).unwrap().number() != 9 {}
    let before = hosts.cable.returned();
    for _ in 0..5 {
        let mut late = here(&manager, SubscribeConfig::default());
        (7..10).for_each(|i| expect(&mut late, i, 0, i));
    }
    assert!(hosts.cable.returned() - before < LONGEST as u64);
    drop(working.stop());
}

#[test]
fn another_publisher_with_longer_samples_ends_a_relay_whose_pool_is_too_small() {
    let hosts = Hosts::new("longer");
    let (there, relaying) = (hosts.publishing(), hosts.subscribing());
    let publisher = publish(&there, LONG_ONES);
    let relay = Relay::connect(&relaying, &hosts.name(), relay_config(), LIMIT).unwrap();
    let working = Working::new(relay);
    drop(publisher);
    let longer = PublishConfig { sample_bytes_max: 2 * LONGEST, ..LONG_ONES };
    let _publisher = publish(&there, longer);
    let (_, end) = working.end();
    assert!(matches!(&end, RelayError::GivenUp(why) if why.contains("sample_bytes_max")), "{end}");
}

#[test]
fn a_relay_of_a_publisher_of_its_own_host_copies_from_that_ones_pool() {
    let dir = Dir::new("relay-here", &[]);
    let manager = || Manager::with_config(dir.config()).unwrap();
    let (there, relaying, subscribing) = (manager(), manager(), manager());
    there.start_progress().unwrap();
    let publisher = publish(&there, LONG_ONES);
    let relay = Relay::connect(&relaying, "news", relay_config(), LIMIT).unwrap();
    let working = Working::new(relay);
    let mut subscriber = here(&subscribing, SubscribeConfig::default());
    working.until_serves(1);
    until_joined(&publisher, 1);
    for i in 0..20 {
        publisher.publish(&i.to_string().into_bytes(), LIMIT).unwrap();
        publisher.publish(&pattern(LONGEST, i), LIMIT).unwrap();
        let short = subscriber.receive(LIMIT).unwrap();
        assert_eq!(short.as_slice(), Some(i.to_string().as_bytes()));
        expect(&mut subscriber, 2 * i + 1, 0, i);
    }
    drop(working.stop());
}

// An event loop over a relay whose publisher is away calls it for its attempts, and not between them.
#[test]
fn a_relay_without_connection_is_ready_for_an_attempt_and_not_before() {
    let dir = Dir::new("relay-away", &[]);
    let manager = || Manager::with_config(dir.config()).unwrap();
    let (there, relaying) = (manager(), manager());
    there.start_progress().unwrap();
    let publisher = publish(&there, LONG_ONES);
    let mut config = relay_config();
    config.reconnect.attempt_limit = Duration::from_millis(1);
    let mut relay = Relay::connect(&relaying, "news", config, LIMIT).unwrap();
    drop(publisher);
    let failed = |relay: &Relay| match relay.state() {
        ConnectionState::Reconnecting { failed, .. } => failed,
        _ => 0,
    };
    let mut calls = 0;
    while failed(&relay) < 6 {
        assert_eq!(relaying.wait_any(&[&relay], LIMIT).unwrap(), 0);
        let passed = relay.pass_on(Some(Duration::ZERO));
        assert!(matches!(passed, Err(RelayError::TimedOut)), "{passed:?}");
        calls += 1;
    }
    assert!(calls <= 30, "{calls} calls for six attempts");
}
