//! End points of two managers in one process, each with a progress thread or a thread of its own.
#![cfg(all(feature = "os", not(miri)))]

use hamlyn::protocol::{
    EndPoint, GrowError, Manager, ReceiveError, Seed, SendFailure, TaggedConfig, TaggedReceiver,
    TaggedSender,
};
use hamlyn::{Access, Config};
use std::path::PathBuf;
use std::time::Duration;

const LIMIT: Option<Duration> = Some(Duration::from_secs(10));

struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("hamlyn-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Self(dir)
    }

    fn manager(&self) -> Manager {
        Manager::with_config(Config::from_env().unwrap().dir(&self.0)).unwrap()
    }

    /// One that answers while the test does something else.
    fn answering(&self) -> Manager {
        let manager = self.manager();
        manager.start_progress().unwrap();
        manager
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

#[test]
fn tags_arrive_with_their_data() {
    let dir = Dir::new("tags");
    let (there, here) = (dir.answering(), dir.manager());
    let mut receiver = TaggedReceiver::new(&there, TaggedConfig::new(4096)).unwrap();
    let seed = Seed::from_bytes(&receiver.seed().unwrap().to_bytes()).unwrap();
    let mut sender = TaggedSender::grow(&here, &seed, LIMIT).unwrap();
    sender.send(100, b"hello", 7, LIMIT).unwrap();
    let tag = receiver.get_tag(LIMIT).unwrap();
    assert_eq!(tag.tag, 7);
    let mut bytes = [0; 5];
    receiver.read(100, &mut bytes).unwrap();
    assert_eq!(&bytes, b"hello");
    assert_eq!(receiver.senders(), 1);
    assert!(matches!(receiver.read(4095, &mut bytes), Err(ReceiveError::Misuse(_))));
    assert!(sender.explain().contains("ring"), "{}", sender.explain());
}

#[test]
fn a_sender_waits_for_credit_and_is_never_refused() {
    let dir = Dir::new("credit");
    let (there, here) = (dir.answering(), dir.manager());
    let config = TaggedConfig { tags: 4, ..TaggedConfig::new(64) };
    let mut receiver = TaggedReceiver::new(&there, config).unwrap();
    receiver.serve("credit", Access::SameUser).unwrap();
    let mut sender = TaggedSender::connect(&here, "credit", LIMIT).unwrap();
    for tag in 0..4 {
        assert!(sender.try_send(0, &[], tag).unwrap());
    }
    assert!(!sender.try_send(0, &[], 4).unwrap());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for tag in 4..5000u32 {
                sender.send(0, &tag.to_le_bytes(), tag, LIMIT).unwrap();
            }
        });
        for tag in 0..5000 {
            assert_eq!(receiver.get_tag(LIMIT).unwrap().tag, tag);
        }
    });
    let refused: u64 = there
        .lock()
        .counters()
        .iter()
        .filter(|(name, _)| name.starts_with("refused"))
        .map(|(_, value)| value)
        .sum();
    assert_eq!(refused, 0);
}

#[test]
fn a_specific_tag_is_found_and_the_others_keep_their_order() {
    let dir = Dir::new("specific");
    let (there, here) = (dir.answering(), dir.manager());
    let mut receiver = TaggedReceiver::new(&there, TaggedConfig::new(64)).unwrap();
    let mut sender = TaggedSender::grow(&here, &receiver.seed().unwrap(), LIMIT).unwrap();
    for tag in [1, 2, 3, 2] {
        sender.send(0, &[], tag, LIMIT).unwrap();
    }
    assert_eq!(receiver.get_specific_tag(3, LIMIT).unwrap().tag, 3);
    assert_eq!(receiver.get_specific_tag(2, LIMIT).unwrap().tag, 2);
    assert_eq!(receiver.get_tag(LIMIT).unwrap().tag, 1);
    assert_eq!(receiver.get_tag(LIMIT).unwrap().tag, 2);
    let short = Some(Duration::from_millis(20));
    assert!(matches!(receiver.get_specific_tag(9, short), Err(ReceiveError::TimedOut)));
}

#[test]
fn a_write_that_is_too_long_or_outside_is_refused_with_the_limit() {
    let dir = Dir::new("limits");
    let (there, here) = (dir.answering(), dir.manager());
    let receiver = TaggedReceiver::new(&there, TaggedConfig::new(1 << 20)).unwrap();
    let mut sender = TaggedSender::grow(&here, &receiver.seed().unwrap(), LIMIT).unwrap();
    let max = sender.bytes_max();
    assert!(sender.send(0, &vec![0; max], 0, LIMIT).is_ok());
    let error = sender.send(0, &vec![0; max + 1], 0, LIMIT).unwrap_err();
    assert!(matches!(error, SendFailure::TooLong { max: m, .. } if m == max), "{error}");
    let error = sender.send((1 << 20) - 3, &[0; 4], 0, LIMIT).unwrap_err();
    assert!(matches!(error, SendFailure::Outside { size: 0x10_0000, .. }), "{error}");
    assert!(matches!(sender.send(u64::MAX, &[0; 4], 0, LIMIT), Err(SendFailure::Outside { .. })));
}

#[test]
fn a_seed_that_is_old_forged_or_of_another_kind_is_refused_with_the_reason() {
    let dir = Dir::new("seeds");
    let (there, here) = (dir.answering(), dir.manager());
    let receiver = TaggedReceiver::new(&there, TaggedConfig::new(64)).unwrap();
    let seed = receiver.seed().unwrap();
    let mut bytes = seed.to_bytes();
    bytes[12] ^= 1;
    assert!(Seed::from_bytes(&bytes).is_err(), "the checksum finds it");
    let end = bytes.len() - 4;
    let checksum = crc32fast::hash(&bytes[..end]).to_le_bytes();
    bytes[end..].copy_from_slice(&checksum);
    let forged = Seed::from_bytes(&bytes).unwrap();
    let refused = TaggedSender::grow(&here, &forged, LIMIT).err().unwrap();
    assert!(matches!(&refused, GrowError::Refused(text) if text.contains("seed")), "{refused}");
    drop(receiver);
    let refused = TaggedSender::grow(&here, &seed, LIMIT).err().unwrap();
    assert!(
        matches!(&refused, GrowError::Refused(text) if text.contains("no longer")),
        "{refused}"
    );
    drop(there);
    let gone = TaggedSender::grow(&here, &seed, LIMIT).err().unwrap();
    assert!(matches!(gone, GrowError::Connect(_)), "{gone}");
}

#[test]
fn a_callback_decides_who_may_grow_a_sender() {
    let dir = Dir::new("admission");
    let (there, here) = (dir.answering(), dir.manager());
    let receiver = TaggedReceiver::new(&there, TaggedConfig::new(64)).unwrap();
    let mut asked = 0;
    receiver.set_admission(move |peer| {
        asked += 1;
        assert_eq!(peer.pid, Some(std::process::id()));
        if asked == 1 { Err("come again".into()) } else { Ok(()) }
    });
    let seed = receiver.seed().unwrap();
    let refused = TaggedSender::grow(&here, &seed, LIMIT).err().unwrap();
    assert!(matches!(&refused, GrowError::Refused(text) if text == "come again"), "{refused}");
    assert!(TaggedSender::grow(&here, &seed, LIMIT).is_ok());
}

#[test]
fn a_manager_sends_to_itself_and_two_grow_towards_each_other() {
    let dir = Dir::new("self");
    let (a, b) = (dir.manager(), dir.manager());
    let mut own = TaggedReceiver::new(&a, TaggedConfig::new(64)).unwrap();
    let mut sender = TaggedSender::grow(&a, &own.seed().unwrap(), LIMIT).unwrap();
    sender.send(0, b"x", 5, LIMIT).unwrap();
    assert_eq!(own.get_tag(LIMIT).unwrap().tag, 5);
    let other = TaggedReceiver::new(&b, TaggedConfig::new(64)).unwrap();
    let (to_a, to_b) = (own.seed().unwrap(), other.seed().unwrap());
    std::thread::scope(|scope| {
        let there = scope.spawn(|| TaggedSender::grow(&b, &to_a, LIMIT).is_ok());
        assert!(TaggedSender::grow(&a, &to_b, LIMIT).is_ok());
        assert!(there.join().unwrap());
    });
}

#[test]
fn several_end_points_are_waited_for_and_whoever_polls_fills_all() {
    let dir = Dir::new("any");
    let (there, here) = (dir.manager(), dir.manager());
    let mut receivers: Vec<_> =
        (0..3).map(|_| TaggedReceiver::new(&there, TaggedConfig::new(64)).unwrap()).collect();
    let seeds: Vec<_> = receivers.iter().map(|r| r.seed().unwrap()).collect();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for i in [2, 0, 1] {
                let mut sender = TaggedSender::grow(&here, &seeds[i], LIMIT).unwrap();
                sender.send(0, &[], i as u32, LIMIT).unwrap();
            }
        });
        let mut seen = [false; 3];
        while seen != [true; 3] {
            let i = {
                let ends: Vec<&dyn EndPoint> =
                    receivers.iter().map(|r| r as &dyn EndPoint).collect();
                there.wait_any(&ends, LIMIT).unwrap()
            };
            assert_eq!(receivers[i].get_tag(LIMIT).unwrap().tag, i as u32);
            seen[i] = true;
        }
    });
}

#[test]
fn threads_receive_at_end_points_of_one_manager() {
    let dir = Dir::new("threads");
    let (there, here) = (dir.manager(), dir.manager());
    const THREADS: u32 = 4;
    const TAGS: u32 = 2000;
    let mut receivers: Vec<_> =
        (0..THREADS).map(|_| TaggedReceiver::new(&there, TaggedConfig::new(64)).unwrap()).collect();
    let seeds: Vec<_> = receivers.iter().map(|r| r.seed().unwrap()).collect();
    std::thread::scope(|scope| {
        for receiver in &mut receivers {
            scope.spawn(move || {
                for tag in 0..TAGS {
                    assert_eq!(receiver.get_tag(LIMIT).unwrap().tag, tag);
                }
            });
        }
        for seed in &seeds {
            let here = &here;
            scope.spawn(move || {
                let mut sender = TaggedSender::grow(here, seed, LIMIT).unwrap();
                for tag in 0..TAGS {
                    sender.send(0, &[], tag, LIMIT).unwrap();
                }
            });
        }
    });
}

#[test]
fn a_sender_learns_that_its_receiver_is_gone() {
    let dir = Dir::new("gone");
    let (there, here) = (dir.answering(), dir.manager());
    let config = TaggedConfig { tags: 2, ..TaggedConfig::new(64) };
    let receiver = TaggedReceiver::new(&there, config).unwrap();
    let mut sender = TaggedSender::grow(&here, &receiver.seed().unwrap(), LIMIT).unwrap();
    drop(receiver);
    let error = loop {
        if let Err(e) = sender.send(0, &[], 0, LIMIT) {
            break e;
        }
    };
    assert!(matches!(error, SendFailure::Ended(_)), "{error}");
    assert!(sender.connection().ended().is_some());
}
