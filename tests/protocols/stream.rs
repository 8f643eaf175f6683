//! Streams between managers of one process, and one between processes; a sender that lies.
use crate::help::*;
use hamlyn::node::CloseReason;
use hamlyn::protocol::{
    ApertureRecord, ApertureStreamReceiver, ApertureStreamSender, EndPoint, GrowError,
    ReceiveError, Record, RecordBytes, RecordGuard, SendError, StreamConfig, StreamReceiver,
    StreamSender,
};
use hamlyn::wire::TICKET_BYTES;
use hamlyn::{
    Access, Config, Event, Flags, Key, MetadataIndex, Mode, Node, NodeId, Share, SlotConfig,
    SlotId, SlotIndex, Ticket,
};
use std::process::Command;
use std::time::{Duration, Instant};

impl Dir {
    /// Both ends; the managers answer.
    fn pair(&self, config: StreamConfig) -> (StreamReceiver, StreamSender) {
        let (there, here) = (self.answering(), self.answering());
        let receiver = StreamReceiver::new(&there, config).unwrap();
        let sender = StreamSender::grow(&here, &receiver.seed().unwrap().reached(), LIMIT).unwrap();
        (receiver, sender)
    }
}

fn small() -> StreamConfig {
    StreamConfig { buffer_bytes: 1024, buffers: 2, buffers_max: 4, record_bytes_max: 1 << 20 }
}

/// The next record's bytes; it is released.
fn next(receiver: &mut StreamReceiver) -> Vec<u8> {
    let record = receiver.receive(LIMIT).unwrap().keep();
    let bytes = receiver.bytes(&record).unwrap().to_vec();
    receiver.release(&record).unwrap();
    bytes
}

/// A generator that needs no crate: splitmix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// A record of a length that is small, or up to `max`.
    fn record(&mut self, max: usize) -> Vec<u8> {
        let bits = self.next() % (max.ilog2() as u64 + 1);
        let length = (self.next() % (2 << bits)) as usize % (max + 1);
        let first = self.next();
        (0..length).map(|i| (first as usize + i * 7) as u8).collect()
    }
}

#[test]
fn records_arrive_in_order_and_small_ones_leave_together() {
    let dir = Dir::new("stream-order");
    let (mut receiver, mut sender) = dir.pair(StreamConfig::default());
    for i in 0..1000u32 {
        sender.send(&i.to_le_bytes(), LIMIT).unwrap();
    }
    assert!(receiver.try_receive().unwrap().is_none(), "nothing leaves before the flush");
    sender.flush(LIMIT).unwrap();
    let mut records: Vec<Record> = Vec::new();
    for i in 0..1000u32 {
        let record = receiver.receive(LIMIT).unwrap().keep();
        assert_eq!(receiver.bytes(&record).unwrap(), i.to_le_bytes());
        assert_eq!((record.number(), record.len()), (i as u64, 4));
        records.push(record);
    }
    // All of them stand until released, in one buffer: the message was one.
    assert_eq!(receiver.bytes(&records[0]).unwrap(), [0; 4]);
    assert!(records[999].start() > records[0].start());
    receiver.release(&records[499]).unwrap();
    assert!(matches!(receiver.bytes(&records[499]), Err(ReceiveError::Misuse(_))));
    assert!(receiver.bytes(&records[500]).is_ok());
    receiver.release(&records[999]).unwrap();
    assert!(receiver.bytes(&records[999]).is_err());
    assert!(sender.explain().contains("coalesced"), "{}", sender.explain());
}

#[test]
fn a_token_of_another_stream_is_refused() {
    let dir = Dir::new("stream-token");
    let (mut a, mut to_a) = dir.pair(small());
    let (mut b, mut to_b) = dir.pair(small());
    for sender in [&mut to_a, &mut to_b] {
        sender.send(b"x", LIMIT).unwrap();
        sender.flush(LIMIT).unwrap();
    }
    let (of_a, of_b) = (a.receive(LIMIT).unwrap().keep(), b.receive(LIMIT).unwrap().keep());
    assert!(a.bytes(&of_a).is_ok());
    assert!(matches!(a.bytes(&of_b), Err(ReceiveError::Misuse(_))));
    assert!(matches!(a.release(&of_b), Err(ReceiveError::Misuse(_))));
}

#[test]
fn every_length_arrives_as_it_was_sent() {
    let dir = Dir::new("stream-lengths");
    let (mut receiver, mut sender) = dir.pair(small());
    let lengths: Vec<usize> = (0..70)
        .chain([250, 255, 256, 257, 1000, 1020, 1023, 1024, 1025, 4096, 5000, 1 << 20])
        .collect();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for (i, length) in lengths.iter().enumerate() {
                sender.send(&vec![i as u8; *length], LIMIT).unwrap();
                if i % 3 == 0 {
                    sender.flush(LIMIT).unwrap();
                }
            }
            sender.close(LIMIT).unwrap();
        });
        for (i, length) in lengths.iter().enumerate() {
            assert_eq!(next(&mut receiver), vec![i as u8; *length], "length {length}");
        }
        let end = receiver.receive(LIMIT).unwrap_err();
        assert!(matches!(end, ReceiveError::Ended(CloseReason::Closed)), "{end}");
    });
    let error = sender.send(&[0; 2000], LIMIT).unwrap_err();
    assert!(matches!(error, SendError::Ended(CloseReason::Closed)), "{error}");
}

#[test]
fn a_record_that_is_too_long_is_refused_with_the_limit() {
    let dir = Dir::new("stream-long");
    let (mut receiver, mut sender) = dir.pair(small());
    let error = sender.send(&vec![0; (1 << 20) + 1], LIMIT).unwrap_err();
    assert!(matches!(error, SendError::TooLong { max: 0x10_0000, .. }), "{error}");
    assert!(error.to_string().contains("the receiver's record_bytes_max"), "{error}");
    assert_eq!(sender.bytes_max(), 1 << 20);
    sender.send(b"still there", LIMIT).unwrap();
    sender.flush(LIMIT).unwrap();
    assert_eq!(next(&mut receiver), b"still there");
}

#[test]
fn buffers_grow_to_the_limit_and_then_the_sender_waits_until_one_is_released() {
    let dir = Dir::new("stream-limit");
    let (mut receiver, mut sender) = dir.pair(small());
    let mut sent = 0u64;
    let mut records = Vec::new();
    // Two lanes at first; what is held makes more, up to four buffers. On a busy machine a grant
    // may come after one time limit; so the sender must have waited twice, everything received.
    let mut waited = 0;
    while waited < 2 {
        let left = sender.send(&[sent as u8; 600], SHORT);
        sent += left.is_ok() as u64;
        while let Some(record) = receiver.try_receive().unwrap().map(RecordGuard::keep) {
            records.push(record);
        }
        waited = match left {
            Err(SendError::TimedOut) if records.len() as u64 == sent => waited + 1,
            Err(SendError::TimedOut) | Ok(()) => 0,
            Err(e) => panic!("{e}"),
        };
    }
    assert_eq!((sent, receiver.buffers()), (4, 4));
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| sender.send(&[4; 600], LIMIT));
        std::thread::sleep(Duration::from_millis(20));
        assert!(!waits.is_finished());
        for (i, record) in records.iter().enumerate() {
            assert_eq!(receiver.bytes(record).unwrap(), [i as u8; 600]);
        }
        receiver.release(&records[0]).unwrap();
        waits.join().unwrap().unwrap();
    });
    assert_eq!(receiver.bytes(&records[1]).unwrap(), [1; 600]);
    assert_eq!(next(&mut receiver), [4; 600]);
    assert_eq!(receiver.buffers(), 4);
}

#[test]
fn small_records_that_are_flushed_take_places_then_tickets_and_then_wait_for_a_release() {
    let dir = Dir::new("stream-places");
    let (mut receiver, mut sender) = dir.pair(small());
    let mut records = Vec::new();
    // Sent records may arrive a moment later: the sender must have waited twice, everything
    // received.
    let (mut sent, mut waited, mut is_left) = (0u32, 0, false);
    while waited < 2 {
        if !is_left {
            sender.send(&sent.to_le_bytes(), SHORT).unwrap();
        }
        let left = sender.flush(SHORT);
        is_left = left.is_err();
        sent += left.is_ok() as u32;
        while let Some(record) = receiver.try_receive().unwrap().map(RecordGuard::keep) {
            records.push(record);
        }
        waited = match left {
            Err(SendError::TimedOut) if records.len() == sent as usize => waited + 1,
            Err(SendError::TimedOut) | Ok(()) => 0,
            Err(e) => panic!("{e}"),
        };
    }
    // 64 places, and four buffers.
    assert_eq!((records.len(), receiver.buffers()), (68, 4));
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| sender.flush(LIMIT));
        std::thread::sleep(Duration::from_millis(20));
        assert!(!waits.is_finished());
        receiver.release(&records[0]).unwrap();
        waits.join().unwrap().unwrap();
    });
    for (i, record) in records.iter().enumerate().skip(1) {
        assert_eq!(receiver.bytes(record).unwrap(), (i as u32).to_le_bytes());
    }
    assert!(receiver.bytes(&records[0]).is_err());
    assert_eq!(next(&mut receiver), 68u32.to_le_bytes());
}

#[test]
fn larger_buffers_are_used_again_and_hold_at_most_three_times_the_longest_record() {
    let dir = Dir::new("stream-large");
    let (mut receiver, mut sender) = dir.pair(small());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for i in 0..40u8 {
                sender.send(&vec![i; 100_000 + i as usize], LIMIT).unwrap();
            }
            // Two of the longest may be held, and one had come while another was asked for; the
            // next waits for a release.
            for i in 40..45u8 {
                sender.send(&vec![i; 1 << 20], LIMIT).unwrap();
            }
            sender.close(LIMIT).unwrap();
        });
        for i in 0..40u8 {
            assert_eq!(next(&mut receiver), vec![i; 100_000 + i as usize]);
        }
        let mut held =
            vec![receiver.receive(LIMIT).unwrap().keep(), receiver.receive(LIMIT).unwrap().keep()];
        while let Ok(record) = receiver.receive(SHORT).map(RecordGuard::keep) {
            held.push(record);
        }
        assert!(held.len() <= 3, "{}", held.len());
        for (i, record) in (40..).zip(&held) {
            assert_eq!(receiver.bytes(record).unwrap(), vec![i; 1 << 20]);
            receiver.release(record).unwrap();
        }
        for i in 40 + held.len() as u8..45 {
            assert_eq!(next(&mut receiver), vec![i; 1 << 20]);
        }
        assert!(matches!(receiver.receive(LIMIT), Err(ReceiveError::Ended(CloseReason::Closed))));
    });
    let memory = receiver.manager().clone();
    drop(receiver);
    let area = memory.lock().message_area(1).unwrap();
    memory.lock().remove_area(area).unwrap();
}

#[test]
fn a_larger_buffer_that_cannot_be_had_is_refused() {
    let dir = Dir::new("stream-nomem");
    let config = dir.config().area_bytes_max(100_000u64);
    let (there, here) = (manager_with(config), dir.answering());
    there.start_progress().unwrap();
    let mut receiver = StreamReceiver::new(&there, small()).unwrap();
    let mut sender = StreamSender::grow(&here, &receiver.seed().unwrap().reached(), LIMIT).unwrap();
    std::thread::scope(|scope| {
        let sending = scope.spawn(|| {
            let error = sender.send(&vec![1; 500_000], LIMIT).unwrap_err();
            assert!(matches!(error, SendError::TooLong { max: 1024, .. }), "{error}");
            sender.send(b"small", LIMIT).unwrap();
            sender.close(LIMIT).unwrap();
        });
        assert_eq!(next(&mut receiver), b"small");
        sending.join().unwrap();
    });
}

#[test]
fn records_of_random_lengths_are_those_that_were_sent_over_any_ring() {
    for (ring, bulk) in [(512u32, 0u32), (512, 4096), (32 << 10, 1 << 20)] {
        let dir = Dir::new(&format!("stream-random-{ring}-{bulk}"));
        let config = dir.config().ring_bytes(ring).bulk_ring_bytes(bulk);
        let make = || manager_with(config.clone());
        let (there, here) = (make(), make());
        let stream = StreamConfig { buffer_bytes: 4096, buffers: 3, buffers_max: 6, ..small() };
        let mut receiver = StreamReceiver::new(&there, stream).unwrap();
        let seed = receiver.seed().unwrap().reached();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let mut sender = StreamSender::grow(&here, &seed, LIMIT).unwrap();
                let mut random = Random(ring as u64);
                for _ in 0..200 {
                    sender.send(&random.record(1 << 20), LIMIT).unwrap();
                    if random.next().is_multiple_of(4) {
                        sender.flush(LIMIT).unwrap();
                    }
                }
                sender.close(LIMIT).unwrap();
            });
            let mut random = Random(ring as u64);
            for i in 0..200 {
                let wanted = random.record(1 << 20);
                assert!(next(&mut receiver) == wanted, "record {i} over {ring} and {bulk}");
                random.next();
            }
            let end = receiver.receive(LIMIT);
            assert!(matches!(end, Err(ReceiveError::Ended(CloseReason::Closed))));
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
}

#[test]
fn a_message_that_timed_out_goes_on_and_nothing_is_lost_or_doubled() {
    let dir = Dir::new("stream-timeout");
    let config = dir.config().ring_bytes(512u32).bulk_ring_bytes(0u32);
    let (there, here) = (manager_with(config.clone()), dir.manager());
    let mut receiver = StreamReceiver::new(&there, small()).unwrap();
    let seed = receiver.seed().unwrap().reached();
    let mut sender = std::thread::scope(|scope| {
        let growing = scope.spawn(|| StreamSender::grow(&here, &seed, LIMIT).unwrap());
        while !growing.is_finished() {
            there.poll().unwrap();
        }
        growing.join().unwrap()
    });
    let mut random = Random(3);
    let mut wanted = Vec::new();
    // The other end does not poll for now and again. Over a network fewer leave in time.
    let since = Instant::now();
    for i in 0u32.. {
        if i >= 400 && wanted.len() > 40 {
            break;
        }
        assert!(since.elapsed() < LONG, "{}", wanted.len());
        let length = (random.next() % 1000) as usize;
        let record = vec![i as u8; length];
        match sender.send(&record, Some(Duration::from_micros(50))) {
            Ok(()) => wanted.push(record),
            Err(e) => assert!(matches!(e, SendError::TimedOut), "{e}"),
        }
        if random.next().is_multiple_of(3) {
            while let Some(record) = receiver.try_receive().unwrap().map(RecordGuard::keep) {
                let bytes = receiver.bytes(&record).unwrap().to_vec();
                assert!(bytes == wanted[record.number() as usize], "{}", record.number());
                receiver.release(&record).unwrap();
            }
        }
    }
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let since = Instant::now();
            while let Err(e) = sender.close(Some(Duration::from_micros(50))) {
                assert!(matches!(e, SendError::TimedOut), "{e}");
                assert!(since.elapsed() < LIMIT.unwrap());
            }
            sender.flush(LIMIT).unwrap();
            sender.close(LIMIT).unwrap();
        });
        loop {
            match receiver.receive(LIMIT) {
                Ok(record) => {
                    let number = record.number() as usize;
                    assert!(record[..] == wanted[number]);
                    if number + 1 == wanted.len() {
                        break;
                    }
                }
                Err(e) => panic!("{e}"),
            }
        }
    });
    assert!(matches!(receiver.receive(LIMIT), Err(ReceiveError::Ended(CloseReason::Closed))));
}

#[test]
fn one_to_one_and_a_callback_decides_with_whom() {
    let dir = Dir::new("stream-one");
    let (there, here) = (dir.answering(), dir.manager());
    let receiver = StreamReceiver::new(&there, small()).unwrap();
    receiver.serve("stream", Access::SameUser).unwrap();
    let mut asked = 0;
    receiver.set_admission(move |_| {
        asked += 1;
        if asked == 1 { Err("come again".into()) } else { Ok(()) }
    });
    let refused = StreamSender::connect(&here, &at("stream"), LIMIT).err().unwrap();
    assert!(matches!(&refused, GrowError::Refused(text) if text == "come again"), "{refused}");
    let sender = StreamSender::connect(&here, &at("stream"), LIMIT).unwrap();
    let refused = StreamSender::connect(&here, &at("stream"), LIMIT).err().unwrap();
    assert!(matches!(&refused, GrowError::Full(text) if text.contains("already")), "{refused}");
    drop(sender);
    for wrong in [
        StreamConfig { buffers: 0, ..small() },
        StreamConfig { buffers: 257, buffers_max: 300, ..small() },
        StreamConfig { buffers_max: 1, ..small() },
        StreamConfig { buffer_bytes: 8, ..small() },
        StreamConfig { record_bytes_max: 1 << 30, ..small() },
    ] {
        assert!(matches!(StreamReceiver::new(&there, wrong), Err(GrowError::SetUp(_))));
    }
}

#[test]
fn a_sender_that_waits_learns_that_its_receiver_is_gone() {
    let dir = Dir::new("stream-gone");
    let (receiver, mut sender) = dir.pair(small());
    std::thread::scope(|scope| {
        let sending = scope.spawn(|| {
            loop {
                if let Err(e) = sender.send(&[0; 900], LIMIT) {
                    return e;
                }
            }
        });
        std::thread::sleep(Duration::from_millis(30));
        drop(receiver);
        let error = sending.join().unwrap();
        assert!(matches!(error, SendError::Ended(CloseReason::Closed)), "{error}");
    });
    assert!(matches!(sender.send(b"x", LIMIT), Err(SendError::Ended(_))));
    assert!(matches!(sender.flush(LIMIT), Ok(()) | Err(SendError::Ended(_))));
}

#[test]
fn an_abandoned_stream_is_not_taken_for_one_that_is_complete() {
    let dir = Dir::new("stream-abandon");
    let panics = |mut sender: StreamSender| {
        std::thread::spawn(move || {
            sender.send(b"arrives", LIMIT).unwrap();
            sender.flush(LIMIT).unwrap();
            sender.send(b"does not leave", LIMIT).unwrap();
            panic!("as wanted");
        })
        .join()
        .unwrap_err();
    };
    let abandons = |mut sender: StreamSender| {
        sender.send(b"arrives", LIMIT).unwrap();
        sender.flush(LIMIT).unwrap();
        sender.send(b"does not leave", LIMIT).unwrap();
        sender.abandon();
        assert!(matches!(sender.send(b"x", LIMIT), Err(SendError::Ended(_))));
        sender.close(LIMIT).unwrap();
    };
    for way in [&panics as &dyn Fn(StreamSender), &abandons] {
        let (mut receiver, sender) = dir.pair(small());
        way(sender);
        assert_eq!(next(&mut receiver), b"arrives");
        let end = receiver.receive(LIMIT).unwrap_err();
        assert!(matches!(end, ReceiveError::Ended(CloseReason::HungUp)), "{end}");
    }
}

#[test]
fn a_dropped_sender_flushes_what_it_can_and_has_not_said_that_this_was_all() {
    let dir = Dir::new("stream-drop");
    let (mut receiver, mut sender) = dir.pair(small());
    sender.send(b"flushed by drop", LIMIT).unwrap();
    drop(sender);
    assert_eq!(next(&mut receiver), b"flushed by drop");
    assert!(matches!(receiver.receive(LIMIT), Err(ReceiveError::Ended(CloseReason::HungUp))));

    // Both tickets are used, so that the last records, which need a third, cannot leave.
    let (mut receiver, mut sender) = dir.pair(StreamConfig { buffers_max: 2, ..small() });
    sender.send(&[1; 900], LIMIT).unwrap();
    sender.send(&[2; 900], LIMIT).unwrap();
    sender.send(&[3; 200], LIMIT).unwrap();
    sender.send(&[3; 200], LIMIT).unwrap();
    drop(sender);
    assert_eq!(next(&mut receiver), [1; 900]);
    assert_eq!(next(&mut receiver), [2; 900]);
    let end = receiver.receive(LIMIT).unwrap_err();
    assert!(matches!(end, ReceiveError::Ended(CloseReason::HungUp)), "{end}");
}

#[test]
fn a_program_that_holds_every_buffer_is_told() {
    let dir = Dir::new("stream-all-held");
    let (mut receiver, mut sender) = dir.pair(small());
    let kept: Vec<_> = (0..4)
        .map(|_| {
            sender.send(&[1; 900], LIMIT).unwrap();
            receiver.receive(LIMIT).unwrap().keep()
        })
        .collect();
    assert!(receiver.try_receive().unwrap().is_none());
    assert!(receiver.explain().contains("holds all 4 buffers"), "{}", receiver.explain());
    receiver.release(&kept[3]).unwrap();
    assert!(receiver.try_receive().unwrap().is_none());
    assert!(!receiver.explain().contains("holds"), "{}", receiver.explain());

    // Of long records as many as there is memory for.
    let (mut receiver, mut sender) = dir.pair(StreamConfig { buffers_max: 16, ..small() });
    std::thread::scope(|scope| {
        scope.spawn(move || (0..4).for_each(|_| sender.send(&[2; 1 << 20], LIMIT).unwrap()));
        let kept = [(); 3].map(|()| receiver.receive(LIMIT).unwrap().keep());
        until(|| {
            assert!(receiver.try_receive().unwrap().is_none());
            receiver.explain().contains("holds as much of long records as it may")
        });
        receiver.release(&kept[2]).unwrap();
        assert_eq!(next(&mut receiver).len(), 1 << 20);
    });
}

#[test]
fn streams_of_threads_of_one_manager_do_not_mix() {
    let dir = Dir::new("stream-threads");
    let (there, here) = (dir.manager(), dir.manager());
    const THREADS: u64 = 4;
    let mut receivers: Vec<_> =
        (0..THREADS).map(|_| StreamReceiver::new(&there, small()).unwrap()).collect();
    let seeds: Vec<_> = receivers.iter().map(|r| r.seed().unwrap().reached()).collect();
    std::thread::scope(|scope| {
        for (i, receiver) in receivers.iter_mut().enumerate() {
            scope.spawn(move || {
                let mut random = Random(i as u64);
                for _ in 0..500 {
                    assert!(next(receiver) == random.record(3000));
                }
            });
        }
        for (i, seed) in seeds.iter().enumerate() {
            let here = &here;
            scope.spawn(move || {
                let mut sender = StreamSender::grow(here, seed, LIMIT).unwrap();
                let mut random = Random(i as u64);
                for _ in 0..500 {
                    sender.send(&random.record(3000), LIMIT).unwrap();
                }
                sender.close(LIMIT).unwrap();
            });
        }
    });
}

#[test]
fn several_streams_are_waited_for_and_the_end_is_something_to_receive() {
    let dir = Dir::new("stream-any");
    let (mut a, mut to_a) = dir.pair(small());
    let manager = a.manager().clone();
    let ends: [&dyn EndPoint; 1] = [&a];
    assert!(matches!(manager.wait_any(&ends, SHORT), Err(ReceiveError::TimedOut)));
    to_a.send(b"one", LIMIT).unwrap();
    to_a.send(b"two", LIMIT).unwrap();
    to_a.flush(LIMIT).unwrap();
    for wanted in [b"one", b"two"] {
        assert_eq!(manager.wait_any(&[&a], LIMIT).unwrap(), 0);
        assert_eq!(next(&mut a), wanted);
    }
    to_a.close(LIMIT).unwrap();
    assert_eq!(manager.wait_any(&[&a], LIMIT).unwrap(), 0);
    assert!(matches!(a.try_receive(), Err(ReceiveError::Ended(CloseReason::Closed))));
}

// ---- through an aperture

/// Why a test of them is none over hosts.
const NO_APERTURE: &str =
    "to another host records go through the link, over libfabric those below 256 KiB";

/// A copy of the next record, and whether it came through the aperture; it is released.
fn next_far(receiver: &mut ApertureStreamReceiver) -> (Vec<u8>, bool) {
    let record = receiver.receive(LIMIT).unwrap().keep();
    let bytes = receiver.bytes(&record).unwrap();
    assert_eq!(matches!(bytes, RecordBytes::Volatile(_)), record.is_volatile());
    let copy = bytes.to_vec().unwrap();
    assert_eq!(copy.len(), record.len());
    receiver.release(&record).unwrap();
    (copy, record.is_volatile())
}

fn far_pair(dir: &Dir, bytes: u64) -> (ApertureStreamReceiver, ApertureStreamSender) {
    let (there, here) = (dir.answering(), dir.answering());
    let mut receiver = ApertureStreamReceiver::new(&there, small(), bytes).unwrap();
    let mut sender =
        ApertureStreamSender::grow(&here, &receiver.seed().unwrap().reached(), LIMIT).unwrap();
    sender.send(b"hello", LIMIT).unwrap();
    sender.flush(LIMIT).unwrap();
    assert_eq!(next_far(&mut receiver), (b"hello".to_vec(), false));
    let since = Instant::now();
    while !sender.explain().starts_with("records of") {
        assert!(since.elapsed() < LIMIT.unwrap(), "{} {}", sender.explain(), receiver.explain());
        std::thread::sleep(Duration::from_millis(1));
    }
    (receiver, sender)
}

#[test]
fn long_records_come_through_the_aperture_in_order_with_short_ones() {
    if only_on_one_host(NO_APERTURE) {
        return;
    }
    let dir = Dir::new("stream-far");
    let (mut receiver, mut sender) = far_pair(&dir, 300_000);
    assert!(receiver.explain().contains("through an aperture of 303104"));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = Random(5);
            for _ in 0..120 {
                sender.send(&random.record(400_000), LIMIT).unwrap();
            }
            sender.close(LIMIT).unwrap();
        });
        let mut random = Random(5);
        for i in 0..120 {
            let wanted = random.record(400_000);
            let (bytes, is_far) = next_far(&mut receiver);
            assert!(bytes == wanted, "record {i}");
            assert_eq!(is_far, (64 << 10..=303_104).contains(&bytes.len()), "{}", bytes.len());
        }
        assert!(matches!(receiver.receive(LIMIT), Err(ReceiveError::Ended(CloseReason::Closed))));
    });
    // A manager's events about its end points' apertures are not for the application.
    assert!(receiver.manager().next_event().is_none());
}

#[test]
fn a_sender_waits_for_room_in_the_aperture_until_a_record_is_released() {
    if only_on_one_host(NO_APERTURE) {
        return;
    }
    let dir = Dir::new("stream-far-room");
    let (mut receiver, mut sender) = far_pair(&dir, 256 << 10);
    for i in 0..2u8 {
        sender.send(&[i; 100_000], LIMIT).unwrap();
    }
    let error = sender.send(&[2; 100_000], SHORT).unwrap_err();
    assert!(matches!(error, SendError::TimedOut), "{error}");
    let records: Vec<ApertureRecord> =
        (0..2).map(|_| receiver.receive(LIMIT).unwrap().keep()).collect();
    assert!(sender.send(&[2; 100_000], SHORT).is_err(), "received is not released");
    receiver.release(&records[0]).unwrap();
    sender.send(&[2; 100_000], LIMIT).unwrap();
    match receiver.bytes(&records[1]).unwrap() {
        RecordBytes::Volatile(bytes) => {
            let mut part = [0; 10];
            bytes.read(99_990, &mut part).unwrap();
            assert_eq!(part, [1; 10]);
            assert!(
                bytes.read(99_991, &mut part).is_err() && bytes.read(100_001, &mut []).is_err()
            );
        }
        RecordBytes::Still(_) => panic!("it is in the aperture"),
    }
    receiver.release(&records[1]).unwrap();
    assert!(next_far(&mut receiver) == (vec![2; 100_000], true));
    drop(receiver);
    let error = loop {
        if let Err(e) = sender.send(&[3; 100_000], LIMIT) {
            break e;
        }
    };
    assert!(matches!(error, SendError::Ended(_)), "{error}");
}

#[test]
fn a_plain_sender_may_send_to_a_receiver_with_an_aperture_and_not_the_other_way_round() {
    let dir = Dir::new("stream-far-plain");
    let (there, here) = (dir.answering(), dir.answering());
    let mut receiver = ApertureStreamReceiver::new(&there, small(), 1 << 20).unwrap();
    let mut sender = StreamSender::grow(&here, &receiver.seed().unwrap().reached(), LIMIT).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| sender.send(&vec![1; 100_000], LIMIT).unwrap());
        assert!(next_far(&mut receiver) == (vec![1; 100_000], false));
    });
    let plain = StreamReceiver::new(&there, small()).unwrap();
    let refused =
        ApertureStreamSender::grow(&here, &plain.seed().unwrap().reached(), LIMIT).err().unwrap();
    assert!(matches!(&refused, GrowError::Refused(text) if text.contains("path")), "{refused}");
}

#[test]
fn without_an_aperture_long_records_go_through_the_link_and_explain_says_why() {
    let dir = Dir::new("stream-far-none");
    let there = manager_with(dir.config().aperture_bytes_max(0u64));
    there.start_progress().unwrap();
    let here = dir.answering();
    let mut receiver = ApertureStreamReceiver::new(&there, small(), 1 << 20).unwrap();
    let mut sender =
        ApertureStreamSender::grow(&here, &receiver.seed().unwrap().reached(), LIMIT).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            sender.send(&vec![2; 100_000], LIMIT).unwrap();
            assert!(sender.explain().contains("no aperture"), "{}", sender.explain());
        });
        assert!(next_far(&mut receiver) == (vec![2; 100_000], false));
    });
    let why = if opens_memory() { "HAMLYN_APERTURE_BYTES_MAX" } else { "is on another host" };
    assert!(receiver.explain().contains(why), "{}", receiver.explain());
}

#[test]
fn a_streams_aperture_is_never_so_small_that_the_link_would_be_faster() {
    if only_on_one_host(NO_APERTURE) {
        return;
    }
    let dir = Dir::new("stream-far-least");
    let there = manager_with(dir.config().aperture_stream_bytes_min(1u64 << 22));
    there.start_progress().unwrap();
    let mut receiver = ApertureStreamReceiver::new(&there, small(), 300_000).unwrap();
    let here = dir.answering();
    let mut sender =
        ApertureStreamSender::grow(&here, &receiver.seed().unwrap().reached(), LIMIT).unwrap();
    sender.send(b"hello", LIMIT).unwrap();
    sender.flush(LIMIT).unwrap();
    assert_eq!(next_far(&mut receiver), (b"hello".to_vec(), false));
    until(|| sender.explain().contains("through an aperture of 4194304"));
    let larger = ApertureStreamReceiver::new(&there, small(), u64::MAX).err().unwrap();
    assert!(larger.to_string().contains("18446744073709551615"), "{larger}");
}

#[test]
fn a_manager_streams_to_itself_through_an_aperture_too() {
    let dir = Dir::new("stream-far-own");
    let manager = dir.answering();
    let mut own = ApertureStreamReceiver::new(&manager, small(), 1 << 20).unwrap();
    let mut sender =
        ApertureStreamSender::grow(&manager, &own.seed().unwrap().reached(), LIMIT).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| sender.send(&vec![2; 100_000], LIMIT).unwrap());
        assert!(next_far(&mut own).0 == vec![2; 100_000]);
    });
}

#[test]
fn what_stands_in_the_aperture_of_a_sender_that_is_gone_is_received() {
    if only_on_one_host(NO_APERTURE) {
        return;
    }
    let dir = Dir::new("stream-far-gone");
    let (mut receiver, mut sender) = far_pair(&dir, 1 << 20);
    sender.send(&vec![7; 200_000], LIMIT).unwrap();
    sender.send(b"bye", LIMIT).unwrap();
    drop(sender);
    let since = Instant::now();
    while receiver.connection().is_none_or(|c| c.ended().is_none()) {
        assert!(since.elapsed() < LIMIT.unwrap());
    }
    assert!(next_far(&mut receiver) == (vec![7; 200_000], true));
    assert_eq!(next_far(&mut receiver), (b"bye".to_vec(), false));
    assert!(matches!(receiver.receive(LIMIT), Err(ReceiveError::Ended(CloseReason::HungUp))));
}

// ---- a process that dies

#[test]
fn what_was_committed_by_a_sender_that_died_is_received() {
    const ROLE: &str = "HAMLYN_TEST_STREAM_DIES";
    let name = "what_was_committed_by_a_sender_that_died_is_received";
    if let Some(dir) = std::env::var_os(ROLE) {
        let manager = manager_with(Config::from_env().unwrap().dir(dir));
        let mut sender = StreamSender::connect(&manager, &at("mortal"), LIMIT).unwrap();
        for i in 0..300u32 {
            sender.send(&i.to_le_bytes(), LIMIT).unwrap();
            if i % 100 == 99 {
                sender.flush(LIMIT).unwrap();
            }
        }
        sender.send(b"never flushed", LIMIT).unwrap();
        // No destructor runs.
        rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL)
            .unwrap();
        unreachable!();
    }
    let dir = Dir::new("stream-death");
    let manager = dir.answering();
    let mut receiver = StreamReceiver::new(&manager, StreamConfig::default()).unwrap();
    receiver.serve("mortal", Access::SameUser).unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &(crate::support::module() + name)])
        .env(ROLE, &dir.0)
        .spawn()
        .unwrap();
    assert!(!child.wait().unwrap().success());
    let mut came = 0u32;
    let end = loop {
        match receiver.receive(LIMIT) {
            Ok(record) => assert_eq!(record[..], came.to_le_bytes()),
            Err(e) => break e,
        }
        came += 1;
    };
    // Records not yet on the network went with it.
    assert!(came == 300 || is_of_hosts() && came < 300, "{came}");
    assert!(matches!(end, ReceiveError::Ended(CloseReason::Died)), "{end}");
}

// ---- a sender that lies

/// A node that greets like a sender, and what it was told.
struct Liar {
    node: Node,
    link: hamlyn::LinkId,
    ask: Ticket,
    places: Ticket,
    lanes: Vec<(u32, u64)>,
    area: hamlyn::AreaId,
}

impl Liar {
    fn greeting(node: &mut Node, area: hamlyn::AreaId) -> Vec<u8> {
        let queue = node.notification_queue(1).unwrap();
        let slot = node.slot(SlotConfig::new(area, queue).credit(0)).unwrap();
        let grants = node.fast_ticket(slot).unwrap().with_flags(Flags::WAKE);
        let mut greeting = b"HGr2\x03\0\0\0".to_vec();
        greeting.extend([0; 16]);
        greeting.extend(grants.to_bytes());
        greeting.push(0);
        greeting
    }

    /// A sender that takes an aperture; its credit goes where the grants go.
    fn far_greeting(node: &mut Node, area: hamlyn::AreaId) -> Vec<u8> {
        let mut greeting = Self::greeting(node, area);
        let grants = greeting[24..24 + TICKET_BYTES].to_vec();
        *greeting.last_mut().unwrap() = 1;
        greeting.extend(grants);
        greeting
    }

    fn new(dir: &Dir, name: &str) -> Self {
        Self::with(dir, name, Self::greeting)
    }

    fn with(dir: &Dir, name: &str, greet: fn(&mut Node, hamlyn::AreaId) -> Vec<u8>) -> Self {
        let mut node = dir.node();
        let area = node.message_area(4096).unwrap();
        let greeting = greet(&mut node, area);
        let link = node.connect(&at(name), &greeting, Some(Duration::from_secs(10))).unwrap();
        let answer = node.greeting(link).unwrap().to_vec();
        assert_eq!(&answer[..8], b"HAn2\x03\0\0\0");
        let ask = Ticket::from_bytes(&answer[20..20 + TICKET_BYTES]).unwrap();
        let places = Ticket::from_bytes(&answer[20 + TICKET_BYTES..20 + 2 * TICKET_BYTES]).unwrap();
        let lanes = answer[20 + 2 * TICKET_BYTES..]
            .chunks(12)
            .map(|ticket| {
                let (slot, key) = ticket.split_at(4);
                let slot = u32::from_le_bytes(slot.try_into().unwrap());
                (slot, u64::from_le_bytes(key.try_into().unwrap()))
            })
            .collect();
        Self { node, link, ask, places, lanes, area }
    }

    fn there(&self) -> NodeId {
        self.node.peer(self.link).unwrap().node
    }

    fn send(&mut self, lane: usize, data: &[u8], metadata: &[u8]) {
        let ticket = Ticket {
            destination: self.there(),
            slot: SlotIndex(self.lanes[lane].0),
            metadata_index: MetadataIndex(0),
            key: Key(self.lanes[lane].1),
            base: 0,
            bound: 1 << 40,
            flags: Flags::NOTIFY | Flags::WAKE,
            share: Share::WHOLE,
        };
        self.node.send(&ticket, data, metadata, LIMIT).unwrap();
    }

    /// To place 0, for any word.
    fn send_small(&mut self, data: &[u8], word: u32) {
        let ticket = self.places;
        self.node.send_fast(&ticket, data, word, LIMIT).unwrap();
    }

    fn ask(&mut self, word: u32) {
        let ticket = self.ask;
        self.node.send_fast(&ticket, &[], word, LIMIT).unwrap();
    }

    /// Key, number and size of the grant that stands in a lane's cell.
    fn grant(&self, lane: usize) -> (u64, u32, usize) {
        let cell = &self.node.area(self.area).unwrap()[16 * lane..][..16];
        let word = |at: usize| u32::from_le_bytes(cell[at..at + 4].try_into().unwrap());
        (u64::from_le_bytes(cell[..8].try_into().unwrap()), word(8), word(12) as usize)
    }

    /// Lets the receiver look, and waits for a ticket of `bytes` bytes; from then on it is used.
    fn is_granted(
        &mut self,
        receiver: &mut StreamReceiver,
        number: u32,
        bytes: usize,
        limit: Option<Duration>,
    ) -> bool {
        let lane = number as usize % self.lanes.len();
        let since = Instant::now();
        while since.elapsed() < limit.unwrap() {
            assert!(receiver.try_receive().unwrap().is_none());
            self.node.poll().unwrap();
            let (key, of, size) = self.grant(lane);
            if of == number && size >= bytes {
                self.lanes[lane].1 = key;
                return true;
            }
        }
        false
    }
}

/// The word that asks for a buffer of `bytes` bytes, in whole pages, for a ticket.
fn ask_word(number: u32, bytes: usize) -> u32 {
    (bytes.div_ceil(4096) as u32) << 14 | number
}

/// The word of a small message: place, and how many messages with tickets are said to come before.
fn small_word(length: u32, framed: bool, place: u32, tickets_before: u32) -> u32 {
    length | (framed as u32) << 9 | place << 10 | tickets_before << 16
}

fn mark(framed: bool, last: bool, length: u32) -> [u8; 4] {
    ((framed as u32) << 31 | (last as u32) << 30 | length).to_le_bytes()
}

fn lied_to(name: &str, lie: impl FnOnce(&mut Liar)) -> (StreamReceiver, Liar, Dir) {
    lied_to_with(name, small(), lie)
}

fn lied_to_with(
    name: &str,
    config: StreamConfig,
    lie: impl FnOnce(&mut Liar),
) -> (StreamReceiver, Liar, Dir) {
    let dir = Dir::new(&format!("stream-lied-{name}"));
    let manager = dir.answering();
    let receiver = StreamReceiver::new(&manager, config).unwrap();
    receiver.serve(name, Access::SameUser).unwrap();
    let mut liar = Liar::new(&dir, name);
    lie(&mut liar);
    (receiver, liar, dir)
}

/// The good record comes, then the fault, as often as one asks; the liar is sent away.
fn assert_misbehaves(name: &str, lie: impl FnOnce(&mut Liar)) {
    let (mut receiver, mut liar, _dir) = lied_to(name, |liar| {
        liar.send(0, b"good", &mark(false, false, 4));
        lie(liar);
    });
    assert_eq!(next(&mut receiver), b"good", "{name}");
    for _ in 0..2 {
        let error = loop {
            match receiver.receive(LIMIT) {
                Ok(record) => {
                    assert_eq!(record[..], *b"fine");
                    // Released, its place might be used again.
                    let _ = record.keep();
                }
                Err(e) => break e,
            }
        };
        assert!(matches!(error, ReceiveError::Misbehaved(_)), "{name}: {error}");
    }
    let since = Instant::now();
    let told = loop {
        liar.node.poll().unwrap();
        match liar.node.next_event() {
            Some(Event::Closed { link, reason, .. }) if link == liar.link => break Some(reason),
            _ if since.elapsed() > LIMIT.unwrap() => break None,
            _ => {}
        }
    };
    assert_eq!(told, Some(CloseReason::Closed), "{name}");
}

#[test]
fn a_sender_that_lies_is_sent_away_and_never_believed() {
    assert_misbehaves("long", |liar| liar.send(1, b"x", &mark(false, false, 1025)));
    assert_misbehaves("longest", |liar| liar.send(1, b"x", &mark(true, false, (1 << 30) - 1)));
    assert_misbehaves("unmarked", |liar| liar.send(1, b"x", b""));
    assert_misbehaves("misfit", |liar| liar.send(1, b"x", b"12345"));
    assert_misbehaves("beyond", |liar| liar.send(1, &[9, 0, 0, 0, 1, 2], &mark(true, false, 6)));
    assert_misbehaves("rest", |liar| liar.send(1, &[0, 0, 0], &mark(true, false, 3)));
    assert_misbehaves("huge", |liar| liar.send(1, &[0xff; 64], &mark(true, false, 64)));
    assert_misbehaves("nothing", |liar| liar.send(1, b"", &mark(true, false, 0)));
    assert_misbehaves("out-of-turn", |liar| liar.ask(1 << 14 | 77));
    assert_misbehaves("long-small", |liar| liar.send_small(b"x", small_word(385, false, 0, 1)));
    assert_misbehaves("place", |liar| {
        liar.send_small(b"fine", small_word(4, false, 0, 1));
        // Place 0 is in use until its record is released.
        liar.send_small(b"fine", small_word(4, false, 0, 1));
    });
    assert_misbehaves("tickets", |liar| liar.send_small(b"x", small_word(1, false, 0, 7)));
    assert_misbehaves("framed", |liar| {
        liar.send_small(&[9, 0, 0, 0, 1, 2], small_word(6, true, 0, 1));
    });
    assert_misbehaves("entry", |liar| {
        let ticket = Ticket { metadata_index: MetadataIndex(0), ..liar.places };
        liar.node.send(&ticket, b"x", b"", LIMIT).unwrap();
    });
    // Each says that the other was sent before.
    assert_misbehaves("before", |liar| {
        liar.send_small(b"x", small_word(1, false, 0, 2));
        liar.send(1, b"x", &[&mark(false, false, 1)[..], &1u32.to_le_bytes()].concat());
    });
    assert_misbehaves("many-before", |liar| {
        liar.send(1, b"x", &[&mark(false, false, 1)[..], &65u32.to_le_bytes()].concat());
    });
    assert_misbehaves("unused", |liar| {
        liar.send(1, b"fine", &mark(false, false, 4));
        // Ticket 1 has been used.
        liar.ask(1 << 14 | 1);
    });
}

#[test]
fn a_place_outside_of_the_aperture_is_not_read() {
    for (name, offset, length) in
        [("far", 1u64 << 40, 1u32), ("further", u64::MAX, u32::MAX), ("end", 8191, 2)]
    {
        let dir = Dir::new(&format!("stream-lie-{name}"));
        let manager = dir.answering();
        let mut receiver = ApertureStreamReceiver::new(&manager, small(), 8192).unwrap();
        receiver.serve(name, Access::SameUser).unwrap();
        let mut liar = Liar::with(&dir, name, Liar::far_greeting);
        liar.send(0, b"hello", &mark(false, false, 5));
        assert_eq!(next_far(&mut receiver), (b"hello".to_vec(), false));
        let mut message = (1u32 << 31 | 12).to_le_bytes().to_vec();
        message.extend(offset.to_le_bytes());
        message.extend(length.to_le_bytes());
        liar.send(1, &message, &mark(true, false, 16));
        let error = receiver.receive(LIMIT).unwrap_err();
        assert!(matches!(error, ReceiveError::Misbehaved(_)), "{name}: {error}");
        let again = receiver.receive(LIMIT).unwrap_err();
        assert!(matches!(again, ReceiveError::Misbehaved(_)), "{name}: {again}");
    }
}

#[test]
fn the_good_records_before_a_bad_one_of_the_same_message_are_received() {
    let (mut receiver, _liar, _dir) = lied_to("half", |liar| {
        let message = [&[2, 0, 0, 0, b'o', b'k', 0, 0][..], &[200, 0, 0, 0, 0, 0, 0, 0]].concat();
        liar.send(0, &message, &mark(true, false, 16));
    });
    assert_eq!(next(&mut receiver), b"ok");
    assert!(matches!(receiver.receive(LIMIT), Err(ReceiveError::Misbehaved(_))));
}

#[test]
fn a_record_that_is_kept_stays_when_its_sender_is_sent_away_for_the_one_behind_it() {
    let (mut receiver, _liar, _dir) = lied_to("kept", |liar| {
        let message = [&[2, 0, 0, 0, b'o', b'k', 0, 0][..], &[200, 0, 0, 0, 0, 0, 0, 0]].concat();
        liar.send(0, &message, &mark(true, false, 16));
        liar.send(1, b"late", &mark(false, false, 4));
    });
    let kept = receiver.receive(LIMIT).unwrap().keep();
    assert!(matches!(receiver.receive(LIMIT), Err(ReceiveError::Misbehaved(_))));
    assert_eq!(receiver.bytes(&kept).unwrap(), b"ok");
    receiver.release(&kept).unwrap();
    assert!(receiver.bytes(&kept).is_err());
    assert!(matches!(receiver.receive(LIMIT), Err(ReceiveError::Misbehaved(_))));
}

#[test]
fn messages_out_of_order_wait_for_their_turn_and_a_ticket_is_used_once() {
    let (mut receiver, mut liar, _dir) = lied_to("turn", |liar| {
        liar.send(1, b"second", &mark(false, false, 6));
    });
    assert!(matches!(receiver.receive(SHORT), Err(ReceiveError::TimedOut)));
    // One shot: what is sent again is refused, and changes nothing.
    liar.send(1, b"forged", &mark(false, false, 6));
    liar.send(0, b"first", &mark(false, true, 5));
    assert_eq!(next(&mut receiver), b"first");
    assert!(matches!(receiver.receive(LIMIT), Err(ReceiveError::Ended(CloseReason::Closed))));
}

#[test]
fn a_small_message_stands_still_while_its_sender_writes_into_its_place() {
    let (mut receiver, mut liar, _dir) = lied_to("still", |liar| {
        liar.send_small(b"before", small_word(6, false, 0, 0));
    });
    let record = receiver.receive(LIMIT).unwrap().keep();
    assert_eq!(receiver.bytes(&record).unwrap(), b"before");
    let ticket = liar.places.with_flags(Flags::WAKE);
    liar.node.send_fast(&ticket, b"after!", 0, LIMIT).unwrap();
    liar.send(0, b"next", &[&mark(false, false, 4)[..], &1u32.to_le_bytes()].concat());
    let next = receiver.receive(LIMIT).unwrap().keep();
    assert_eq!(receiver.bytes(&next).unwrap(), b"next");
    assert_eq!(receiver.bytes(&record).unwrap(), b"before");
}

#[test]
fn a_message_with_a_ticket_waits_for_the_small_ones_before_it_and_they_for_it() {
    let before = |count: u32| [&mark(false, false, 6)[..], &count.to_le_bytes()].concat();
    let (mut receiver, mut liar, _dir) = lied_to("mixed", |liar| {
        liar.send(0, b"second", &before(1));
        liar.send_small(b"third", small_word(5, false, 1, 1));
    });
    assert!(matches!(receiver.receive(SHORT), Err(ReceiveError::TimedOut)));
    assert!(!receiver.is_ready());
    liar.send_small(b"first", small_word(5, false, 0, 0));
    // All three lie in place 0 of the sender's making: what it wrote last is there.
    assert_eq!(next(&mut receiver), b"first");
    assert_eq!(next(&mut receiver), b"second");
    assert_eq!(receiver.receive(LIMIT).unwrap().len(), 5);
}

#[test]
fn an_ask_beyond_the_limit_is_refused_and_the_ticket_stays_good() {
    let (mut receiver, mut liar, _dir) = lied_to("greedy", |liar| liar.ask(0x3ffff << 14));
    assert!(receiver.receive(SHORT).is_err());
    let since = Instant::now();
    let answered = loop {
        liar.node.poll().unwrap();
        let size =
            u32::from_le_bytes(liar.node.area(liar.area).unwrap()[12..16].try_into().unwrap());
        if size != 0 || since.elapsed() > LIMIT.unwrap() {
            break size;
        }
    };
    assert_eq!(answered, 1 << 31 | 1024);
    liar.send(0, b"as it was", &mark(false, false, 9));
    assert_eq!(next(&mut receiver), b"as it was");
}

#[test]
fn asks_for_every_ticket_make_no_more_memory_than_is_promised() {
    let config = StreamConfig { buffers: 8, buffers_max: 16, ..small() };
    let longest = config.record_bytes_max;
    let (mut receiver, mut liar, _dir) = lied_to_with("all-large", config, |_| {});
    let mut granted = 0;
    while granted < 8 {
        liar.ask(ask_word(granted, longest));
        if !liar.is_granted(&mut receiver, granted, longest, Some(Duration::from_millis(500))) {
            break;
        }
        granted += 1;
    }
    assert_eq!(granted, 3, "buffers of {longest} bytes for messages that have not come");
    // The ask is answered when a buffer is free again.
    liar.send(0, b"x", &mark(false, false, 1));
    assert_eq!(next(&mut receiver), b"x");
    assert!(liar.is_granted(&mut receiver, 3, longest, LIMIT));
}

#[test]
fn a_sender_that_takes_no_grants_is_owed_one_for_each_lane() {
    if only_on_one_host(
        "asks that come together are refused, and how many do is the network's to say",
    ) {
        return;
    }
    let dir = Dir::new("stream-lied-unread");
    let config = dir.config().ring_bytes(4096u32);
    let manager = manager_with(config);
    manager.start_progress().unwrap();
    let mut receiver = StreamReceiver::new(&manager, small()).unwrap();
    receiver.serve("unread", Access::SameUser).unwrap();
    let mut liar = Liar::new(&dir, "unread");
    let ask = liar.ask;
    for i in 0..1000 {
        // Nothing is wrong with the buffer that the ticket has: the answer is the same ticket.
        let _ = liar.node.try_send_fast(&ask, &[], ask_word(i % 2, 0));
        assert!(receiver.try_receive().unwrap().is_none());
    }
    let received = |liar: &Liar| {
        let counters = liar.node.counters();
        counters.iter().find(|row| row.0 == "packets_received").unwrap().1
    };
    assert_eq!(received(&liar), 0, "it took none");
    let mut since = Instant::now();
    let mut before = 0;
    while since.elapsed() < Duration::from_millis(300) {
        liar.node.poll().unwrap();
        assert!(receiver.try_receive().unwrap().is_none());
        if received(&liar) > before {
            (before, since) = (received(&liar), Instant::now());
        }
    }
    // As many as the ring of 64 lines holds, and one a lane.
    assert!((1..=66).contains(&before), "{before} grants were kept for it");
}

#[test]
fn an_ask_for_a_ticket_whose_message_came_with_it_is_dropped() {
    let (mut receiver, mut liar, _dir) = lied_to("late-ask", |_| {});
    liar.ask(ask_word(0, 128 << 10));
    assert!(liar.is_granted(&mut receiver, 0, 128 << 10, LIMIT));
    // Both are there when the receiver looks next.
    let received = |receiver: &StreamReceiver| {
        let counters = receiver.manager().lock().counters();
        counters.iter().find(|row| row.0 == "packets_received").unwrap().1
    };
    let before = received(&receiver);
    liar.ask(ask_word(0, 256 << 10));
    liar.send(0, b"first", &mark(false, false, 5));
    let since = Instant::now();
    while received(&receiver) < before + 2 {
        assert!(since.elapsed() < LIMIT.unwrap());
    }
    assert_eq!(next(&mut receiver), b"first");
    // The stream goes on, with as many large buffers as before.
    for number in 1..6u32 {
        let lane = number as usize % 2;
        if number > 1 {
            assert!(liar.is_granted(&mut receiver, number, 1, LIMIT));
        }
        liar.send(lane, &[number as u8], &mark(false, false, 1));
        assert_eq!(next(&mut receiver), [number as u8]);
    }
    liar.ask(ask_word(6, 1 << 20));
    assert!(liar.is_granted(&mut receiver, 6, 1 << 20, LIMIT));
}

// ---- links that reorder

/// A packet of an honest sender, or a message in one piece.
struct Sent {
    ticket: Ticket,
    data: Vec<u8>,
    metadata: Vec<u8>,
    /// That of a small message.
    word: Option<u32>,
}

/// An honest sender, whose messages and parts of messages come in any order.
struct Reordering {
    liar: Liar,
    random: Random,
    next: u32,
    small: u64,
    asked: Option<usize>,
    on_the_way: Vec<Sent>,
    /// Small messages, asks, messages in parts, and what has overtaken something.
    seen: [u32; 4],
}

impl Reordering {
    fn new(mut liar: Liar, seed: u64, buffer_bytes: usize) -> Self {
        for (number, (_, key)) in liar.lanes.clone().into_iter().enumerate() {
            let grant = key as u128 | (number as u128) << 64 | (buffer_bytes as u128) << 96;
            let at = 16 * number;
            liar.node.area_mut(liar.area).unwrap()[at..at + 16]
                .copy_from_slice(&grant.to_le_bytes());
        }
        let (random, on_the_way) = (Random(seed), Vec::new());
        Self { liar, random, next: 0, small: 0, asked: None, on_the_way, seen: [0; 4] }
    }

    fn freed(&self) -> u64 {
        let at = 16 * self.liar.lanes.len();
        let bytes = &self.liar.node.area(self.liar.area).unwrap()[at..at + 8];
        u64::from_le_bytes(bytes.try_into().unwrap())
    }

    /// Puts a message on the way, if there is a place or a ticket for it.
    fn send(&mut self, data: &[u8], framed: bool, last: bool) -> bool {
        let wants_place = data.len() <= 384 && !last && !self.random.next().is_multiple_of(4);
        if wants_place && self.small - self.freed() < 64 {
            let place = self.small % 64;
            let ticket = self.liar.places;
            self.on_the_way.push(Sent {
                ticket: Ticket { base: ticket.base + 384 * place, ..ticket },
                data: data.to_vec(),
                metadata: Vec::new(),
                word: Some(small_word(data.len() as u32, framed, place as u32, self.next)),
            });
            self.small += 1;
            self.seen[0] += 1;
            return true;
        }
        let lane = self.next as usize % self.liar.lanes.len();
        let (key, number, size) = self.liar.grant(lane);
        assert_eq!(size >> 31, 0, "nothing that is asked for is refused");
        if number != self.next || self.asked.is_some_and(|bytes| size < bytes) {
            return false;
        }
        if size < data.len() {
            // It overtakes what is on the way.
            self.liar.ask(ask_word(self.next, data.len()));
            self.asked = Some(data.len());
            self.seen[1] += 1;
            return false;
        }
        let mut metadata = mark(framed, last, data.len() as u32).to_vec();
        if self.small > 0 {
            metadata.extend((self.small as u32).to_le_bytes());
        }
        let ticket = Ticket {
            destination: self.liar.there(),
            slot: SlotIndex(self.liar.lanes[lane].0),
            metadata_index: MetadataIndex(0),
            key: Key(key),
            base: 0,
            bound: data.len() as u64,
            flags: Flags::NOTIFY | Flags::WAKE,
            share: Share::WHOLE,
        };
        let parts = (1 + self.random.next() % 3).min(data.len().max(1) as u64);
        let mut rest = data;
        for ticket in ticket.split_evenly(parts).unwrap() {
            let (data, after) = rest.split_at(ticket.capacity() as usize);
            let (data, metadata) = (data.to_vec(), metadata.clone());
            self.on_the_way.push(Sent { ticket, data, metadata, word: None });
            rest = after;
        }
        self.seen[2] += (parts > 1) as u32;
        self.asked = None;
        self.next += 1;
        true
    }

    /// Something arrives, whichever.
    fn deliver(&mut self) {
        if self.on_the_way.is_empty() {
            return;
        }
        let i = self.random.next() as usize % self.on_the_way.len();
        self.seen[3] += (i > 0) as u32;
        let Sent { ticket, data, metadata, word } = self.on_the_way.remove(i);
        let sent = match word {
            Some(word) => self.liar.node.send_fast(&ticket, &data, word, LIMIT),
            None => self.liar.node.send(&ticket, &data, &metadata, LIMIT),
        };
        sent.unwrap();
    }
}

/// The next message: a long record as it is, or some together; with how many there are.
fn message_of(
    records: &[Vec<u8>],
    random: &mut Random,
    bytes_max: usize,
) -> (Vec<u8>, bool, usize) {
    if random.next().is_multiple_of(3) || records[0].len() + 8 > bytes_max {
        return (records[0].clone(), false, 1);
    }
    let mut message = Vec::new();
    let most = 1 + random.next() as usize % 8;
    let mut count = 0;
    for record in records.iter().take(most) {
        let padded = record.len().next_multiple_of(4);
        if message.len() + 4 + padded > bytes_max {
            break;
        }
        message.extend((record.len() as u32).to_le_bytes());
        message.extend(record);
        message.resize(message.len() + padded - record.len(), 0);
        count += 1;
    }
    (message, true, count)
}

#[test]
fn records_come_out_whole_and_in_order_however_the_link_reorders() {
    let mut seen = [0; 4];
    for seed in 0..100 {
        let mut random = Random(seed);
        let buffers = 1 + random.next() as u32 % 6;
        let config = StreamConfig {
            buffer_bytes: [64, 256, 1024, 4096][random.next() as usize % 4],
            buffers,
            buffers_max: buffers + random.next() as u32 % 4,
            record_bytes_max: 1 << 16,
        };
        let bytes_max = config.buffer_bytes;
        let longest = [40, 2000, 1 << 16][random.next() as usize % 3];
        let records: Vec<Vec<u8>> = (0..300).map(|_| random.record(longest)).collect();
        let (mut receiver, liar, _dir) = lied_to_with("reorders", config, |_| {});
        let mut sender = Reordering::new(liar, seed, bytes_max);
        // How many were sent, and those received that are not released.
        let (mut sent, mut received, mut has_last) = (0, 0, false);
        let mut held: std::collections::VecDeque<Record> = Default::default();
        let mut message = None;
        let since = Instant::now();
        loop {
            assert!(since.elapsed() < LIMIT.unwrap(), "seed {seed}: {received} of 300");
            sender.liar.node.poll().unwrap();
            match random.next() % 8 {
                0..=3 if sent < records.len() => {
                    let (bytes, framed, count) = message.get_or_insert_with(|| {
                        message_of(&records[sent..], &mut random, bytes_max)
                    });
                    if sender.send(bytes, *framed, false) {
                        sent += *count;
                        message = None;
                    } else {
                        sender.deliver();
                    }
                }
                0..=3 if !has_last => has_last = sender.send(&[], true, true),
                4 | 5 => sender.deliver(),
                _ => match receiver.try_receive().map(|found| found.map(RecordGuard::keep)) {
                    Ok(Some(record)) => {
                        let bytes = receiver.bytes(&record).unwrap();
                        assert!(bytes == records[received], "seed {seed}, record {received}");
                        received += 1;
                        held.push_back(record);
                    }
                    Ok(None) => {}
                    Err(ReceiveError::Ended(CloseReason::Closed)) => break,
                    Err(e) => panic!("seed {seed}, record {received}: {e}"),
                },
            }
            // A sender may have to wait for what is held.
            if random.next().is_multiple_of(8)
                && let Some(record) = held.pop_front()
            {
                let number = record.number() as usize;
                assert!(receiver.bytes(&record).unwrap() == records[number], "it stood still");
                receiver.release(&record).unwrap();
            }
        }
        assert_eq!((received, sender.on_the_way.len()), (300, 0), "seed {seed}");
        (0..4).for_each(|i| seen[i] += sender.seen[i]);
    }
    assert!(seen.iter().all(|count| *count > 100), "{seen:?}");
}

/// A receiver played by hand, whose grants and counts of free places come late and in any order.
struct SlowGrants {
    node: Node,
    random: Random,
    queue: hamlyn::QueueId,
    lanes: Vec<(SlotId, hamlyn::AreaId)>,
    ask: SlotId,
    places: (SlotId, hamlyn::AreaId),
    /// Where the sender takes grants.
    grants: Option<Ticket>,
    /// Messages with tickets, and small ones, that have come.
    next: u32,
    small: u64,
    /// Offset in the sender's memory, and what is written there.
    on_the_way: Vec<(u64, Vec<u8>)>,
    /// Asks, and what has overtaken something.
    seen: [u32; 2],
    records: Vec<Vec<u8>>,
    has_last: bool,
}

impl SlowGrants {
    const BUFFER: u32 = 256;
    const LONGEST: u32 = 1 << 14;

    fn new(dir: &Dir, name: &str, lanes: u32, seed: u64) -> (Self, Vec<u8>) {
        let mut node = node_with(dir.config().bulk_ring_bytes(0u32));
        node.serve(name, Access::SameUser, hamlyn::Accept::Ask).unwrap();
        let queue = node.notification_queue(lanes + 1 + 64).unwrap();
        let mut answer = b"HAn2\x03\0\0\0".to_vec();
        for number in [lanes, Self::BUFFER, Self::LONGEST] {
            answer.extend(number.to_le_bytes());
        }
        let area = node.message_area(1).unwrap();
        let ask = node.slot(SlotConfig::new(area, queue).range(0..0)).unwrap();
        let area = node.message_area(64 * 384).unwrap();
        let places = (node.slot(SlotConfig::new(area, queue).credit(64)).unwrap(), area);
        for slot in [ask, places.0] {
            answer.extend(node.fast_ticket(slot).unwrap().to_bytes());
        }
        let mut made = Vec::new();
        for _ in 0..lanes {
            let area = node.message_area(Self::LONGEST as usize).unwrap();
            let config = SlotConfig::new(area, queue).mode(Mode::ParanoidOneShot);
            let slot = node.slot(config).unwrap();
            node.arm(slot, MetadataIndex(0), Some(0..Self::BUFFER as u64)).unwrap();
            let ticket = node.ticket(slot, MetadataIndex(0)).unwrap();
            answer.extend(ticket.slot.0.to_le_bytes());
            answer.extend(ticket.key.0.to_le_bytes());
            made.push((slot, area));
        }
        let own = Self {
            node,
            random: Random(seed),
            queue,
            lanes: made,
            ask,
            places,
            grants: None,
            next: 0,
            small: 0,
            on_the_way: Vec::new(),
            seen: [0; 2],
            records: Vec::new(),
            has_last: false,
        };
        (own, answer)
    }

    /// A ticket with `size` bytes, which the sender will be told of.
    fn grant(&mut self, number: u32, size: u32) {
        let lane = number as usize % self.lanes.len();
        let slot = self.lanes[lane].0;
        self.node.arm(slot, MetadataIndex(0), Some(0..size as u64)).unwrap();
        let key = self.node.ticket(slot, MetadataIndex(0)).unwrap().key.0;
        let grant = key as u128 | (number as u128) << 64 | (size as u128) << 96;
        let at = 16 * lane as u64;
        // An end that has not seen the one cannot have used or asked for it.
        assert!(self.on_the_way.iter().all(|(other, _)| *other != at));
        self.on_the_way.push((at, grant.to_le_bytes().to_vec()));
    }

    fn take(&mut self, bytes: &[u8], framed: bool) {
        let mut rest = bytes;
        if !framed {
            return self.records.push(bytes.to_vec());
        }
        while let Some((head, after)) = rest.split_first_chunk::<4>() {
            let length = u32::from_le_bytes(*head) as usize;
            self.records.push(after[..length].to_vec());
            rest = &after[length.next_multiple_of(4)..];
        }
    }

    /// Arrivals, and a notification.
    fn step(&mut self, answer: &[u8]) {
        self.node.poll().unwrap();
        if let Some(Event::Request { id, greeting, .. }) = self.node.next_event() {
            self.grants = Some(Ticket::from_bytes(&greeting[24..24 + TICKET_BYTES]).unwrap());
            self.node.accept(id, answer).unwrap();
        }
        if let Some(came) = self.node.try_recv(self.queue).unwrap() {
            if came.is_for(self.places.0) {
                let (length, place) = (came.word as usize & 0x1ff, came.word as usize >> 10 & 63);
                assert_eq!((place as u64, came.word >> 16), (self.small % 64, self.next));
                let bytes =
                    self.node.area(self.places.1).unwrap()[384 * place..][..length].to_vec();
                self.take(&bytes, came.word >> 9 & 1 == 1);
                self.small += 1;
                // Told one by one: an old count may come after a newer one.
                let at = 16 * self.lanes.len() as u64;
                self.on_the_way.push((at, self.small.to_le_bytes().to_vec()));
            } else if came.is_for(self.ask) {
                assert_eq!(came.word & 0x3fff, self.next & 0x3fff, "it asks for its next");
                self.seen[0] += 1;
                self.grant(self.next, (came.word >> 14) * 4096);
            } else {
                let lane = self.next as usize % self.lanes.len();
                let (slot, area) = self.lanes[lane];
                assert!(came.is_for(slot), "tickets are used in order");
                let user = self.node.metadata(slot, MetadataIndex(0)).unwrap().user().to_vec();
                let word = u32::from_le_bytes(user[..4].try_into().unwrap());
                let length = word as usize & ((1 << 30) - 1);
                let bytes = self.node.area(area).unwrap()[..length].to_vec();
                self.take(&bytes, word >> 31 == 1);
                self.has_last |= word >> 30 & 1 == 1;
                self.next += 1;
                self.grant(self.next - 1 + self.lanes.len() as u32, Self::BUFFER);
            }
        }
        if self.random.next().is_multiple_of(4) && !self.on_the_way.is_empty() {
            let i = self.random.next() as usize % self.on_the_way.len();
            self.seen[1] += (i > 0) as u32;
            let (at, bytes) = self.on_the_way.remove(i);
            let grants = self.grants.unwrap();
            let ticket = Ticket { base: grants.base + at, ..grants };
            let _ = self.node.send_fast(&ticket, &bytes, 0, LIMIT);
        }
    }
}

#[test]
fn a_sender_goes_on_however_late_and_in_which_order_its_grants_come() {
    let mut seen = [0; 2];
    for seed in 0..12u64 {
        let mut random = Random(seed);
        let lanes = 1 + random.next() as u32 % 6;
        let longest = [40, 2000, 1 << 14][random.next() as usize % 3];
        let records: Vec<Vec<u8>> = (0..300).map(|_| random.record(longest)).collect();
        let dir = Dir::new("stream-late-grants");
        let (mut receiver, answer) = SlowGrants::new(&dir, "late", lanes, seed);
        std::thread::scope(|scope| {
            let sending = scope.spawn(|| {
                let config = dir.config().bulk_ring_bytes(0u32);
                let manager = manager_with(config);
                let mut sender = StreamSender::connect(&manager, &at("late"), LIMIT).unwrap();
                for record in &records {
                    sender.send(record, LIMIT).unwrap();
                    if !random.next().is_multiple_of(3) {
                        sender.flush(LIMIT).unwrap();
                    }
                }
                sender.close(LIMIT).unwrap();
            });
            let since = Instant::now();
            while !receiver.has_last && since.elapsed() < 3 * LIMIT.unwrap() {
                receiver.step(&answer);
            }
            sending.join().unwrap();
        });
        assert!(receiver.has_last && receiver.records == records, "seed {seed}");
        (0..2).for_each(|i| seen[i] += receiver.seen[i]);
    }
    assert!(seen.iter().all(|count| *count > 100), "{seen:?}");
}

#[test]
fn a_greeting_without_a_ticket_or_with_another_path_is_refused() {
    let dir = Dir::new("stream-greeting");
    let manager = dir.answering();
    let receiver = StreamReceiver::new(&manager, small()).unwrap();
    receiver.serve("greeted", Access::SameUser).unwrap();
    let mut node = dir.node();
    let area = node.message_area(16).unwrap();
    let small = Liar::greeting(&mut node, area);
    let area = node.message_area(4096).unwrap();
    let good = Liar::greeting(&mut node, area);
    let other_path = [&good[..good.len() - 1], &[9]].concat();
    for greeting in [&good[..good.len() - 1], &good[..30], &small, &other_path] {
        assert!(node.connect(&at("greeted"), greeting, Some(Duration::from_secs(10))).is_err());
    }
    assert!(node.connect(&at("greeted"), &good, Some(Duration::from_secs(10))).is_ok());
    drop(receiver);
}

#[test]
fn a_record_is_released_when_it_is_dropped_and_its_sender_goes_on() {
    let dir = Dir::new("stream-guard");
    // Two buffers, and each record needs one of its own.
    let config =
        StreamConfig { buffer_bytes: 1024, buffers: 2, buffers_max: 2, record_bytes_max: 1024 };
    let (mut receiver, mut sender) = dir.pair(config);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for i in 0..100 {
                sender.send(&[i; 600], LIMIT).unwrap();
            }
            sender.close(LIMIT).unwrap();
        });
        for i in 0..100 {
            let record = receiver.receive(LIMIT).unwrap();
            assert_eq!((record.number(), &record[..]), (i as u64, &[i; 600][..]));
            if i % 10 == 9 {
                // One that is never dropped is released with the next.
                std::mem::forget(record);
            }
        }
    });
    assert!(matches!(receiver.receive(LIMIT), Err(ReceiveError::Ended(CloseReason::Closed))));
    assert_eq!(receiver.buffers(), 2);
}

#[test]
fn a_record_that_is_kept_stays_whatever_becomes_of_those_behind_it() {
    let dir = Dir::new("stream-kept");
    let (mut receiver, mut sender) = dir.pair(StreamConfig::default());
    let sending = std::thread::spawn(move || {
        (0..30u8).for_each(|i| sender.send(&[i; 20_000], LIMIT).unwrap());
        sender.close(LIMIT).unwrap();
    });
    let next = |receiver: &mut StreamReceiver, kept: bool| {
        let record = receiver.receive(LIMIT).unwrap();
        kept.then(|| record.keep())
    };
    let released = |receiver: &StreamReceiver, record| receiver.bytes(record).is_err();
    next(&mut receiver, false);
    let first = next(&mut receiver, true).unwrap();
    next(&mut receiver, false);
    let second = next(&mut receiver, true).unwrap();
    next(&mut receiver, false);
    assert_eq!(receiver.bytes(&first).unwrap(), [1; 20_000]);
    receiver.release(&first).unwrap();
    assert!(released(&receiver, &first) && !released(&receiver, &second));
    // As a guard again; then nothing is held.
    assert_eq!(receiver.guard(second).unwrap()[..], [3; 20_000]);
    assert!(released(&receiver, &second) && receiver.guard(second).is_err());
    let third = next(&mut receiver, true).unwrap();
    assert_eq!(receiver.bytes(&third).unwrap(), [5; 20_000]);
    receiver.release(&third).unwrap();
    for i in 6..30 {
        assert_eq!(receiver.receive(LIMIT).unwrap()[..], [i; 20_000]);
    }
    sending.join().unwrap();
}

// Each record takes one of the ways there are: alone in a place, in hand or held; the first, one of or
// the last of a batch.
#[test]
fn records_that_are_dropped_kept_forgotten_and_looked_at_again_stand_still_until_they_are_released()
{
    for seed in 0..20 {
        let mut random = Random(seed);
        let dir = Dir::new("stream-ways");
        let (mut receiver, mut sender) = dir.pair(small());
        let sent: Vec<Vec<u8>> = (0..2000).map(|_| random.record(200)).collect();
        // Batches of one, of a few, and of more than a buffer.
        let flushes: Vec<bool> = {
            let mut every = 1;
            let flush = |i| {
                if i % 100 == 0 {
                    every = [1, 3, 1000][random.next() as usize % 3];
                }
                random.next().is_multiple_of(every)
            };
            (0..sent.len()).map(flush).collect()
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for (record, flushes) in sent.iter().zip(flushes) {
                    sender.send(record, LIMIT).unwrap();
                    if flushes {
                        sender.flush(LIMIT).unwrap();
                    }
                }
                sender.close(LIMIT).unwrap();
            });
            let mut choice = Random(!seed);
            let mut kept: Vec<Record> = Vec::new();
            for (number, expected) in sent.iter().enumerate() {
                let record = receiver.receive(LIMIT).unwrap();
                assert_eq!((record.number(), &record[..]), (number as u64, &expected[..]));
                match choice.next() % 8 {
                    0 => std::mem::forget(record),
                    1 | 2 => kept.push(record.keep()),
                    _ => drop(record),
                }
                for record in &kept {
                    assert_eq!(receiver.bytes(record).unwrap(), sent[record.number() as usize]);
                }
                if !kept.is_empty() && (kept.len() == 3 || choice.next().is_multiple_of(4)) {
                    let up_to = choice.next() as usize % kept.len();
                    let up_to = if kept.len() == 3 { 2 } else { up_to };
                    let last = kept.drain(..=up_to).next_back().unwrap();
                    if choice.next().is_multiple_of(2) {
                        let again = receiver.guard(last).unwrap();
                        assert_eq!(again[..], sent[last.number() as usize]);
                    } else {
                        receiver.release(&last).unwrap();
                    }
                    assert!(receiver.bytes(&last).is_err() && receiver.guard(last).is_err());
                }
                // With every buffer held the sender would wait for ever. How many are depends on time:
                // a small record takes one where the sender has yet to hear of a place that is free.
                if (number % 50 == 49 || receiver.held_up().is_some())
                    && let Some(last) = kept.pop()
                {
                    kept.clear();
                    receiver.release(&last).unwrap();
                }
            }
        });
        assert!(matches!(receiver.receive(LIMIT), Err(ReceiveError::Ended(CloseReason::Closed))));
    }
}

// No code can look at them any more: a receiver that goes on must not wait for a sender that waits
// for it.
#[test]
fn records_that_are_all_forgotten_hold_nobody_up() {
    let dir = Dir::new("stream-forgotten");
    let (mut receiver, mut sender) = dir.pair(small());
    let sending = std::thread::spawn(move || {
        (0..40u8).for_each(|i| sender.send(&[i; 700], LIMIT).unwrap());
        sender.close(LIMIT).unwrap();
    });
    for i in 0..40 {
        let record = receiver.receive(LIMIT).unwrap();
        assert_eq!(record[..], [i; 700]);
        std::mem::forget(record);
    }
    sending.join().unwrap();
    assert!(matches!(receiver.receive(LIMIT), Err(ReceiveError::Ended(CloseReason::Closed))));
}
