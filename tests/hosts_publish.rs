//! Publish and subscribe between hosts: long samples, which go in parts.
#![cfg(not(miri))]

mod support;

use hamlyn::node::CloseReason;
use hamlyn::protocol::{
    GrowError, Manager, PublishConfig, Publisher, ReceiveError, SubscribeConfig, Subscriber,
    WhenSlow,
};
use hamlyn::{Access, Config};
use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::time::Duration;
use support::{Dir, LIMIT, pattern, until};

// ---- two hosts

fn config(dir: &Dir) -> Config {
    let path = dir.path.join("secret");
    let mut options = std::fs::OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&path).unwrap();
    file.write_all("7f".repeat(32).as_bytes()).unwrap();
    dir.config().secret(path).listen("127.0.0.1:0".parse::<SocketAddr>().unwrap())
}

/// A publisher's host, and another.
struct Hosts {
    there: Dir,
    here: Dir,
}

impl Hosts {
    fn new(name: &str) -> Self {
        let [there, here] = ["there", "here"].map(|side| Dir::new(&format!("{name}-{side}"), &[]));
        Self { there, here }
    }

    /// A process of the publisher's host, and what its service is called on the other.
    fn publishing(&self) -> (Manager, String) {
        let manager = Manager::with_config(config(&self.there)).unwrap();
        manager.start_progress().unwrap();
        let name = format!("hamlyn://{}/news", manager.listens_at().unwrap());
        (manager, name)
    }

    fn subscribing(&self) -> Manager {
        Manager::with_config(config(&self.here)).unwrap()
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
    let ((there, name), here) = (hosts.publishing(), hosts.subscribing());
    let publisher = publish(&there, LONG_ONES);
    // The longest takes many times as many parts as there are places.
    let config = SubscribeConfig { depth: 5, ..SubscribeConfig::default() };
    let mut subscriber = Subscriber::connect(&here, &name, config, LIMIT).unwrap();
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
                    // Of whatever length it lies in the pool.
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
        let ((there, name), here) = (hosts.publishing(), hosts.subscribing());
        let publisher = publish(&there, PublishConfig { when_slow, ..LONG_ONES });
        let config = SubscribeConfig { depth: 3, ..SubscribeConfig::default() };
        let mut subscriber = Subscriber::connect(&here, &name, config, LIMIT).unwrap();
        until_joined(&publisher, 1);
        for i in 0..50 {
            let length = if i % 2 == 0 { 20_000 } else { 100 };
            publisher.publish(&pattern(length, i), LIMIT).unwrap();
        }
        // The first has begun, and is kept whatever comes behind it.
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
    let ((there, name), here) = (hosts.publishing(), hosts.subscribing());
    let publisher = publish(&there, LONG_ONES);
    let config = SubscribeConfig { depth: 3, ..SubscribeConfig::default() };
    let mut subscriber = Subscriber::connect(&here, &name, config, LIMIT).unwrap();
    until_joined(&publisher, 1);
    publisher.publish(&[1; LONGEST], LIMIT).unwrap();
    until("parts have come", || {
        let _ = subscriber.try_receive().unwrap();
        publisher.subscribers()[0].untaken > 0
    });
    drop(publisher);
    let end = loop {
        match subscriber.receive(LIMIT) {
            Ok(sample) => panic!("a sample of {} bytes", sample.len()),
            Err(end) => break end,
        }
    };
    assert!(matches!(end, ReceiveError::Ended(CloseReason::TooSlow)), "{end}");
    assert_eq!(subscriber.missed(), 1);
}

#[test]
fn a_publisher_of_longer_samples_than_are_taken_is_left_with_what_is_allowed() {
    let hosts = Hosts::new("long-parts");
    let ((there, name), here) = (hosts.publishing(), hosts.subscribing());
    let publisher = publish(&there, LONG_ONES);
    let config = SubscribeConfig { sample_bytes_max: LONGEST - 1, ..SubscribeConfig::default() };
    let refused = Subscriber::connect(&here, &name, config, LIMIT).err().unwrap();
    assert!(matches!(refused, GrowError::SetUp(_)), "{refused}");
    assert!(refused.to_string().contains("SubscribeConfig::sample_bytes_max"), "{refused}");
    until("it is gone", || publisher.subscribers().is_empty());
}
