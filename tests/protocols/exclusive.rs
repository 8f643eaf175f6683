//! An end point of one thread at a time that many threads use.
use crate::help::*;
use hamlyn::protocol::{
    EndPoint, Exclusive, ReceiveError, Tag, TaggedConfig, TaggedReceiver, TaggedSender,
};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

fn take(receiver: &mut TaggedReceiver, limit: Duration) -> Result<Option<Tag>, ReceiveError> {
    match receiver.get_tag(Some(limit)) {
        Ok(tag) => Ok(Some(tag)),
        Err(ReceiveError::TimedOut) => Ok(None),
        Err(e) => Err(e),
    }
}

#[test]
fn while_a_thread_waits_for_an_arrival_others_use_the_end_point() {
    let dir = Dir::new("exclusive");
    let (there, here) = (dir.manager(), dir.manager());
    let receiver = TaggedReceiver::new(&there, TaggedConfig::new(64)).unwrap();
    let seed = receiver.seed().unwrap().reached();
    let receiver = Exclusive::new(receiver);
    std::thread::scope(|scope| {
        let waiting = scope
            .spawn(|| receiver.receive(&there, LIMIT, TaggedReceiver::is_ready_in, take).unwrap());
        // The thread that waits is the one that answers.
        let mut sender = TaggedSender::grow(&here, &seed, LIMIT).unwrap();
        for _ in 0..100 {
            let mut held = receiver.lock_within(LIMIT).unwrap();
            assert!(held.try_get_tag().unwrap().is_none());
        }
        sender.send(0, b"", 7, LIMIT).unwrap();
        assert_eq!(waiting.join().unwrap().unwrap().tag, 7);
    });
}

#[test]
fn each_of_many_threads_that_wait_gets_one_arrival() {
    const THREADS: u32 = 6;
    let dir = Dir::new("exclusive-many");
    let (there, here) = (dir.answering(), dir.manager());
    let receiver = TaggedReceiver::new(&there, TaggedConfig::new(64)).unwrap();
    let mut sender = TaggedSender::grow(&here, &receiver.seed().unwrap().reached(), LIMIT).unwrap();
    let receiver = Exclusive::new(receiver);
    let sum = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                let ready = TaggedReceiver::is_ready_in;
                let tag = receiver.receive(&there, LIMIT, ready, take).unwrap().unwrap();
                sum.fetch_add(tag.tag as usize, Ordering::Relaxed);
            });
        }
        for tag in 1..=THREADS {
            sender.send(0, b"", tag, LIMIT).unwrap();
        }
    });
    assert_eq!(sum.into_inner(), (1..=THREADS as usize).sum());
    let nothing = receiver.receive(&there, Some(Duration::ZERO), |_, _| false, take).unwrap();
    assert!(nothing.is_none());
}

#[test]
fn an_end_point_in_use_is_ready_and_its_lock_has_a_limit() {
    let dir = Dir::new("exclusive-busy");
    let there = dir.manager();
    let receiver = Exclusive::new(TaggedReceiver::new(&there, TaggedConfig::new(64)).unwrap());
    let probe = receiver.probe(&there, TaggedReceiver::is_ready_in);
    assert!(!probe.is_ready());
    let held = receiver.lock();
    assert!(probe.is_ready(), "what another thread leaves has to be looked at");
    assert!(receiver.try_lock().is_none());
    assert!(receiver.lock_within(Some(Duration::from_millis(1))).is_none());
    let short = Some(Duration::from_millis(1));
    let found = receiver.receive(&there, short, TaggedReceiver::is_ready_in, take).unwrap();
    assert!(found.is_none(), "the time is over, and nothing was taken");
    drop(held);
    assert!(receiver.lock_within(short).is_some());
}

#[test]
fn what_is_owed_is_done_by_whoever_had_the_end_point_and_once() {
    let counter = Exclusive::settled_by(0, Some(|done: &mut u32| *done += 1));
    counter.owe();
    counter.settle();
    assert_eq!(*counter.lock(), 1);
    let held = counter.lock();
    counter.owe();
    // Another has it: nothing waits, and nothing is done yet.
    counter.settle();
    assert_eq!(*held, 1);
    drop(held);
    assert_eq!(*counter.lock(), 2);
    counter.settle();
    assert_eq!(*counter.lock(), 2);
}

#[test]
fn a_panic_in_a_call_leaves_the_end_point_to_others() {
    let counter = Exclusive::new(1);
    let entered = AtomicBool::new(false);
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let mut held = counter.lock();
        *held = 2;
        entered.store(true, Ordering::Relaxed);
        panic!("in a call");
    }));
    assert!(panicked.is_err() && entered.into_inner());
    assert_eq!(*counter.try_lock().unwrap(), 2);
}
