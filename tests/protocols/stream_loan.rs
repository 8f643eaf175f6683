//! Records of a stream that are written in place before they leave.

use crate::help::{Dir, LIMIT, Reached, SHORT};
use hamlyn::node::CloseReason;
use hamlyn::protocol::{ReceiveError, SendError, StreamConfig, StreamReceiver, StreamSender};
use hamlyn::typed::{Received, Written};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, byteorder::native_endian};

fn pair(dir: &Dir, config: StreamConfig) -> (StreamReceiver, StreamSender) {
    let (there, here) = (dir.answering(), dir.answering());
    let receiver = StreamReceiver::new(&there, config).unwrap();
    let sender = StreamSender::grow(&here, &receiver.seed().unwrap().reached(), LIMIT).unwrap();
    (receiver, sender)
}

fn small() -> StreamConfig {
    StreamConfig { buffer_bytes: 1024, buffers: 2, buffers_max: 4, record_bytes_max: 1 << 20 }
}

fn pattern(number: usize, length: usize) -> Vec<u8> {
    (0..length).map(|i| (number * 31 + i * 7 + 1) as u8).collect()
}

#[test]
fn loans_of_any_length_arrive_as_they_were_written_among_records_that_are_sent_as_slices() {
    let dir = Dir::new("loan-lengths");
    let (mut receiver, mut sender) = pair(&dir, small());
    // Around a quarter of a buffer, a buffer, and what does not fit into one.
    let around = [0usize, 1, 16, 128, 256, 1024, 4096, 100_000];
    let mut lengths: Vec<usize> =
        around.iter().flat_map(|n| [n.saturating_sub(4), n.saturating_sub(1), *n, n + 1]).collect();
    lengths.extend(lengths.clone().into_iter().rev());
    lengths.push(1 << 20);
    let sent = lengths.clone();
    let sending = std::thread::spawn(move || {
        for (number, length) in sent.into_iter().enumerate() {
            let wanted = pattern(number, length);
            if number % 5 == 4 {
                sender.send(&wanted, LIMIT).unwrap();
                continue;
            }
            let mut loan = sender.loan(length, LIMIT).unwrap();
            assert_eq!(loan.len(), length);
            loan.copy_from_slice(&wanted);
            loan.send(LIMIT).unwrap();
            if number % 3 == 0 {
                sender.flush(LIMIT).unwrap();
            }
        }
        sender.close(LIMIT).unwrap();
    });
    for (number, length) in lengths.into_iter().enumerate() {
        let record = receiver.receive(LIMIT).unwrap();
        assert!(record[..] == pattern(number, length)[..], "record {number} of {length}");
    }
    assert!(matches!(receiver.receive(LIMIT), Err(ReceiveError::Ended(CloseReason::Closed))));
    sending.join().unwrap();
}

#[test]
fn a_loan_that_is_dropped_or_cut_is_not_told_to_the_receiver_by_the_next() {
    let dir = Dir::new("loan-dropped");
    let (mut receiver, mut sender) = pair(&dir, small());
    let lengths = [16, 200, 900, 5000];
    let sending = std::thread::spawn(move || {
        for length in lengths {
            sender.loan(length, LIMIT).unwrap().fill(0xee);
            let mut cut = sender.loan(length, LIMIT).unwrap();
            assert!(cut.iter().all(|byte| *byte == 0));
            cut.fill(0xee);
            cut[..8].fill(0);
            cut.truncate(8);
            cut.truncate(100);
            assert_eq!(cut.len(), 8);
            cut.send(LIMIT).unwrap();
            sender.loan(length, LIMIT).unwrap().send(LIMIT).unwrap();
        }
        sender.close(LIMIT).unwrap();
    });
    for length in lengths {
        for wanted in [8, length] {
            assert_eq!(receiver.receive(LIMIT).unwrap()[..], vec![0; wanted]);
        }
    }
    sending.join().unwrap();
}

#[test]
fn a_loan_that_cannot_leave_in_time_is_not_taken_and_nothing_else_is_lost() {
    let dir = Dir::new("loan-full");
    let (mut receiver, mut sender) = pair(&dir, small());
    assert!(matches!(
        sender.loan((1 << 20) + 1, LIMIT),
        Err(SendError::TooLong { max: 1_048_576, .. })
    ));
    // No receiver: two buffers are filled, and later records wait.
    let mut sent = 0;
    let error = loop {
        let mut loan = match sender.loan(900, SHORT) {
            Ok(loan) => loan,
            Err(e) => break e,
        };
        loan.fill(sent);
        match loan.send(SHORT) {
            Ok(()) => sent += 1,
            Err(e) => break e,
        }
    };
    assert!(matches!(error, SendError::TimedOut), "{error}");
    assert!(sent >= 2);
    for i in 0..sent {
        assert_eq!(receiver.receive(LIMIT).unwrap()[..], [i; 900]);
    }
    let mut loan = sender.loan(900, LIMIT).unwrap();
    loan.fill(99);
    loan.send(LIMIT).unwrap();
    sender.flush(LIMIT).unwrap();
    assert_eq!(receiver.receive(LIMIT).unwrap()[..], [99; 900]);
    drop(receiver);
    let failed = (0..1000).find_map(|_| sender.loan(900, LIMIT).and_then(|l| l.send(LIMIT)).err());
    assert!(matches!(failed, Some(SendError::Ended(_))), "{failed:?}");
}

#[test]
fn a_long_loan_that_is_cut_off_by_its_time_limit_arrives_whole_though_the_next_is_written() {
    let dir = Dir::new("loan-cut-off");
    let (mut receiver, mut sender) = pair(&dir, small());
    let sending = std::thread::spawn(move || {
        let mut sent = 0;
        while sent < 40u8 {
            let Ok(mut loan) = sender.loan(1 << 20, Some(std::time::Duration::ZERO)) else {
                continue;
            };
            loan.fill(sent);
            sent += loan.send(Some(std::time::Duration::from_micros(50))).is_ok() as u8;
        }
        sender.close(LIMIT).unwrap();
    });
    for i in 0..40u8 {
        assert!(receiver.receive(LIMIT).unwrap().iter().all(|byte| *byte == i));
    }
    sending.join().unwrap();
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Debug, PartialEq)]
#[repr(C)]
struct Reading {
    number: native_endian::U64,
    celsius: u8,
}

#[test]
fn a_value_is_written_where_it_leaves_from_and_read_where_it_arrived() {
    let dir = Dir::new("loan-typed");
    let (mut receiver, mut sender) = pair(&dir, StreamConfig::default());
    for i in 0..100u64 {
        let mut loan = sender.loan(size_of::<Reading>(), LIMIT).unwrap();
        let reading = loan.value_mut::<Reading>().unwrap();
        reading.number.set(i);
        reading.celsius = 21;
        loan.send(LIMIT).unwrap();
    }
    sender.flush(LIMIT).unwrap();
    for i in 0..100 {
        let reading = receiver.receive(LIMIT).unwrap().value::<Reading>().unwrap();
        assert_eq!(reading, Reading { number: i.into(), celsius: 21 });
    }
}
