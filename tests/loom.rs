//! Every interleaving, and every order in which memory may be seen, of the lock-free parts: the
//! same code as in production, over loom's atomics.
//!
//! `make test STEPS=loom`. Each model is as small as it can be and still hold its claim: a model
//! twice as long takes a hundred times as long.
//!
//! No model here can show that FREED must be Release and Acquire. Without them a read of a body
//! could be delayed past the store of FREED and see the bytes of the next lap; loom does not delay
//! loads.
#![cfg(loom)]

use hamlyn::interface::notification::{self, Consumer, Notification, Producer};
use hamlyn::interface::{LinkId, SlotId};
use hamlyn::link::bias::Bias;
use hamlyn::link::cells::Line;
use hamlyn::link::ring::{RingReader, RingWriter};
use hamlyn::link::sleep::{self, Barrier, Ear, Elsewhere, Signaller, Sleeper, WakeBy};
use hamlyn::link::{Body, Transmit};
use hamlyn::wire::{Destination, Flags, Header, Key, MetadataIndex, SlotIndex};
use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use loom::sync::{Condvar, Mutex};
use loom::thread;
use std::sync::Arc;

type Writer = RingWriter<Arc<[Line]>, Arc<AtomicU64>>;
type Reader = RingReader<Arc<[Line]>, Arc<AtomicU64>>;

fn ring() -> (Writer, Reader) {
    let lines: Arc<[Line]> = (0..8).map(|_| Line::default()).collect();
    let freed = Arc::new(AtomicU64::new(0));
    (RingWriter::new(lines.clone(), freed.clone(), 64), RingReader::new(lines, freed))
}

fn header(length: usize) -> Header {
    Header {
        destination: Destination(1),
        slot: SlotIndex(2),
        metadata_index: MetadataIndex(3),
        key: Key(4),
        offset: 5,
        length: length as u32,
        delta: 6,
        metadata_len: 0,
        flags: Flags::NOTIFY,
        word: length as u32,
    }
}

fn try_send(writer: &mut Writer, data: &[u8]) -> bool {
    writer.transmit(&header(data.len()), &[], data).is_ok()
}

fn send(writer: &mut Writer, data: &[u8]) {
    while !try_send(writer, data) {
        assert_eq!(writer.violation(), None);
        thread::yield_now();
    }
}

fn try_receive(reader: &mut Reader) -> Option<Vec<u8>> {
    let packet = reader.peek().expect("an honest writer")?;
    assert_eq!(packet.header, header(packet.header.length as usize), "a header is torn");
    let mut data = vec![0; packet.header.length as usize];
    packet.copy_data(&mut data);
    let lines = packet.lines();
    reader.release(lines);
    Some(data)
}

fn receive(reader: &mut Reader) -> Vec<u8> {
    loop {
        if let Some(data) = try_receive(reader) {
            return data;
        }
        reader.publish();
        thread::yield_now();
    }
}

/// A body whose every word is what a packet of this lap begins with.
fn forged(lap: u64, length: usize) -> Vec<u8> {
    (0..length).map(|i| (0x8000_0000 | lap).to_le_bytes()[i % 8]).collect()
}

#[test]
fn a_packet_is_seen_whole_or_not_at_all() {
    loom::model(|| {
        let (mut writer, mut reader) = ring();
        let sender = thread::spawn(move || {
            send(&mut writer, &forged(0, 24));
            send(&mut writer, &[7; 8]);
        });
        assert_eq!(receive(&mut reader), forged(0, 24));
        assert_eq!(receive(&mut reader), [7; 8]);
        assert_eq!(try_receive(&mut reader), None);
        sender.join().unwrap();
    });
}

// The lines hold bodies of the lap before, which look like packets of this lap. The reader must
// not look at the line behind a packet before it was cleared.
#[test]
fn what_a_body_left_behind_is_never_seen_as_a_packet() {
    loom::model(|| {
        let (mut writer, mut reader) = ring();
        for _ in 0..4 {
            send(&mut writer, &forged(1, 24));
            assert_eq!(receive(&mut reader), forged(1, 24));
        }
        reader.publish();
        let sender = thread::spawn(move || {
            send(&mut writer, &[1; 8]);
            send(&mut writer, &[2; 8]);
        });
        assert_eq!(receive(&mut reader), [1; 8]);
        assert_eq!(receive(&mut reader), [2; 8]);
        assert_eq!(try_receive(&mut reader), None);
        sender.join().unwrap();
    });
}

// The writer fills the ring and waits for FREED: it must not write over what is still being read.
#[test]
fn a_line_is_written_again_only_when_it_has_been_read() {
    loom::model(|| {
        let (mut writer, mut reader) = ring();
        for i in 0..3 {
            assert!(try_send(&mut writer, &[i; 24]));
        }
        let sender = thread::spawn(move || {
            assert!(try_send(&mut writer, &[3; 8]));
            send(&mut writer, &[4; 24]);
            writer
        });
        for i in 0..5u8 {
            let length = if i == 3 { 8 } else { 24 };
            assert_eq!(receive(&mut reader), vec![i; length]);
        }
        reader.publish();
        assert!(sender.join().unwrap().is_drained());
    });
}

/// The byte on the link's socket: what is sent stays until it is taken.
struct Socket {
    is_full: Mutex<bool>,
    condition: Condvar,
}

impl Socket {
    fn new() -> Arc<Self> {
        Arc::new(Self { is_full: Mutex::new(false), condition: Condvar::new() })
    }

    fn put(&self) {
        *self.is_full.lock().unwrap() = true;
        self.condition.notify_one();
    }

    fn wait(&self) {
        let mut is_full = self.is_full.lock().unwrap();
        while !*is_full {
            is_full = self.condition.wait(is_full).unwrap();
        }
        *is_full = false;
    }
}

// A lost wake-up shows as a deadlock, which loom reports.
#[test]
fn a_receiver_that_sleeps_is_always_woken() {
    loom::model(|| {
        let (mut writer, mut reader) = ring();
        let sleep = Arc::new(AtomicU64::new(0));
        let socket = Socket::new();
        let sender = thread::spawn({
            let (sleep, socket) = (sleep.clone(), socket.clone());
            move || {
                let mut signaller = Signaller::new(sleep, Barrier::Asymmetric, true);
                let mut signals = 0;
                for i in 0..2 {
                    assert!(try_send(&mut writer, &[i; 8]));
                    if signaller.must_signal().is_some() {
                        socket.put();
                        signals += 1;
                    }
                }
                signals
            }
        });
        let mut sleeper = Sleeper::new(sleep.clone(), Barrier::Asymmetric, true);
        for i in 0..2 {
            let data = loop {
                if let Some(data) = try_receive(&mut reader) {
                    break data;
                }
                sleeper.arm(WakeBy::Byte);
                fence(Ordering::SeqCst);
                if let Some(data) = try_receive(&mut reader) {
                    break data;
                }
                socket.wait();
            };
            assert_eq!(data, [i; 8]);
        }
        let signals = sender.join().unwrap();
        assert!(signals <= sleep.load(Ordering::Relaxed), "one signal for a generation");
    });
}

// A message that asks for no wake-up leaves the generation to the next one that does.
#[test]
fn a_generation_that_a_quiet_message_left_wakes_for_the_next() {
    loom::model(|| {
        let (mut writer, mut reader) = ring();
        let sleep = Arc::new(AtomicU64::new(0));
        let socket = Socket::new();
        let sender = thread::spawn({
            let (sleep, socket) = (sleep.clone(), socket.clone());
            move || {
                let mut signaller = Signaller::new(sleep, Barrier::Fence, true);
                for i in 0..2 {
                    assert!(try_send(&mut writer, &[i; 8]));
                    if let Some(word) = signaller.pending()
                        && i == 1
                    {
                        signaller.signalled(word);
                        socket.put();
                    }
                }
            }
        });
        let mut sleeper = Sleeper::new(sleep, Barrier::Asymmetric, true);
        let mut got = 0;
        while got < 2 {
            sleeper.arm(WakeBy::Byte);
            fence(Ordering::SeqCst);
            match try_receive(&mut reader) {
                Some(_) => got += 1,
                None => socket.wait(),
            }
        }
        sender.join().unwrap();
    });
}

// The same with the sides exchanged: the sender sleeps until the receiver has given lines back.
#[test]
fn a_sender_that_sleeps_for_room_is_always_woken() {
    loom::model(|| {
        let (mut writer, mut reader) = ring();
        for i in 0..7 {
            assert!(try_send(&mut writer, &[i; 8]));
        }
        let sleep = Arc::new(AtomicU64::new(0));
        let socket = Socket::new();
        let receiver = thread::spawn({
            let (sleep, socket) = (sleep.clone(), socket.clone());
            move || {
                let mut signaller = Signaller::new(sleep, Barrier::Asymmetric, true);
                for i in 0..2 {
                    assert_eq!(receive(&mut reader), [i; 8]);
                    reader.publish();
                    if signaller.must_signal().is_some() {
                        socket.put();
                    }
                }
            }
        });
        let mut sleeper = Sleeper::new(sleep, Barrier::Asymmetric, true);
        loop {
            sleeper.arm(WakeBy::Byte);
            fence(Ordering::SeqCst);
            if try_send(&mut writer, &[9; 24]) {
                break;
            }
            socket.wait();
        }
        receiver.join().unwrap();
    });
}

/// The kernel's futex: it compares and falls asleep in one step, as seen by wakers.
struct Futex {
    sleepers: Mutex<()>,
    condition: Condvar,
}

impl Futex {
    fn new() -> Arc<Self> {
        Arc::new(Self { sleepers: Mutex::new(()), condition: Condvar::new() })
    }

    fn wait(&self, (word, expected): (&Arc<AtomicU64>, u32)) {
        let sleepers = self.sleepers.lock().unwrap();
        if word.load(Ordering::Relaxed) as u32 == expected {
            drop(self.condition.wait(sleepers).unwrap());
        }
    }

    fn wake(&self) {
        let _sleepers = self.sleepers.lock().unwrap();
        self.condition.notify_all();
    }
}

/// Two messages to a receiver that sleeps on the sender's bell. `before` is what it did earlier.
fn wake_by_the_bell(barrier: Barrier, before: fn(&mut Sleeper<Arc<AtomicU64>>)) {
    let (mut writer, mut reader) = ring();
    let (sleep, bell) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let futex = Futex::new();
    let mut sleeper = Sleeper::new(sleep.clone(), barrier, true);
    before(&mut sleeper);
    let sender = thread::spawn({
        let (bell, futex) = (bell.clone(), futex.clone());
        move || {
            let mut signaller = Signaller::new(sleep, barrier, true);
            for i in 0..2 {
                assert!(try_send(&mut writer, &[i; 8]));
                if let Some(by) = signaller.must_signal() {
                    assert_eq!(by, WakeBy::Bell);
                    sleep::ring(&bell);
                    futex.wake();
                }
            }
        }
    });
    let mut ear = Ear::new(bell);
    for i in 0..2 {
        let data = loop {
            if let Some(data) = try_receive(&mut reader) {
                break data;
            }
            ear.has_rung();
            sleeper.arm(WakeBy::Bell);
            fence(Ordering::SeqCst);
            sleeper.barrier_made();
            if let Some(data) = try_receive(&mut reader) {
                break data;
            }
            futex.wait(ear.expected());
        };
        assert_eq!(data, [i; 8]);
    }
    sender.join().unwrap();
}

#[test]
fn a_receiver_that_sleeps_on_the_bell_is_always_woken() {
    for barrier in [Barrier::Asymmetric, Barrier::Fence] {
        loom::model(move || wake_by_the_bell(barrier, |_| {}));
    }
}

// The kernel's barrier was made for an earlier sleep: from then on the sender fences by itself, and
// the receiver makes an ordinary fence.
#[test]
fn fences_that_a_receiver_asked_for_take_the_place_of_the_barrier() {
    loom::model(|| {
        wake_by_the_bell(Barrier::Asymmetric, |sleeper| {
            sleeper.arm(WakeBy::Bell);
            sleeper.barrier_made();
            assert!(!sleeper.needs_barrier());
        });
    });
}

// Its bell stays silent: who wakes it is a thread of its own process, which cannot change the bell.
#[test]
fn a_thread_that_sleeps_on_the_bell_alone_is_always_woken_by_its_own_process() {
    loom::model(|| {
        let (bell, own) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let (futex, elsewhere) = (Futex::new(), Arc::new(Elsewhere::default()));
        let waker = thread::spawn({
            let (own, futex, elsewhere) = (own.clone(), futex.clone(), elsewhere.clone());
            move || {
                own.store(1, Ordering::Relaxed);
                elsewhere.wake(|place, _| {
                    assert_eq!(place, 8);
                    futex.wake();
                    thread::yield_now();
                    true
                });
            }
        });
        while own.load(Ordering::Relaxed) == 0 {
            assert!(elsewhere.begin(8));
            if own.load(Ordering::Relaxed) == 0 {
                futex.wait((&bell, 0));
            }
            elsewhere.leave();
        }
        waker.join().unwrap();
    });
}

// The bell has rung for an earlier generation, and was not heard: the receiver is awake for another
// reason. What it then sleeps on is what it has heard before it arms.
#[test]
fn a_bell_that_was_not_heard_does_not_hide_the_next() {
    loom::model(|| {
        let (sleep, bell) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let futex = Futex::new();
        let (first, second) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let mut sleeper = Sleeper::new(sleep.clone(), Barrier::Fence, true);
        sleeper.arm(WakeBy::Bell);
        let sender = thread::spawn({
            let (bell, futex) = (bell.clone(), futex.clone());
            let (first, second) = (first.clone(), second.clone());
            move || {
                let mut signaller = Signaller::new(sleep, Barrier::Fence, true);
                for data in [first, second] {
                    data.store(1, Ordering::Release);
                    if signaller.must_signal().is_some() {
                        sleep::ring(&bell);
                        futex.wake();
                    }
                }
            }
        });
        let mut ear = Ear::new(bell);
        // Only a sleeper that has heard the bell arms again.
        let mut needs_arming = false;
        for data in [first, second] {
            while data.load(Ordering::Acquire) == 0 {
                needs_arming |= ear.has_rung();
                if needs_arming {
                    sleeper.arm(WakeBy::Bell);
                    needs_arming = false;
                }
                fence(Ordering::SeqCst);
                if data.load(Ordering::Acquire) == 0 {
                    futex.wait(ear.expected());
                }
            }
            // As after any arrival.
            needs_arming = true;
        }
        sender.join().unwrap();
    });
}

fn note(slot: u32, index: u32) -> Notification {
    let link = LinkId { index, generation: index as u16 };
    // As `attach` names the slot below.
    Notification { slot: slot_of(slot), index: MetadataIndex(index), word: 0, link }
}

fn slot_of(slot: u32) -> SlotId {
    SlotId::from_bits(u64::from(slot) << 32 | u64::from(slot + 1))
}

fn attach(producer: &mut Producer, credit: u32, slot: u32) -> u32 {
    let share = producer.attach(credit).unwrap();
    producer.name(share, slot_of(slot));
    share
}

fn push(producer: &mut Producer, share: u32, note: &Notification) {
    while !producer.has_credit(share) {
        thread::yield_now();
    }
    producer.push(share, note);
}

fn pop(consumer: &mut Consumer) -> Notification {
    loop {
        if let Some(note) = consumer.pop() {
            return note;
        }
        thread::yield_now();
    }
}

// The queue is full twice over, so that each entry is written again while the other end may still
// be reading it, and both values of the wrap flag are old ones somewhere.
#[test]
fn a_notification_is_taken_whole_and_once() {
    loom::model(|| {
        let (mut producer, mut consumer) = notification::queue(2).unwrap();
        let share = attach(&mut producer, 2, 7);
        let interface = thread::spawn(move || {
            for i in 0..5 {
                push(&mut producer, share, &note(7, i));
            }
        });
        for i in 0..5 {
            assert_eq!(pop(&mut consumer), note(7, i));
        }
        assert_eq!(consumer.pop(), None);
        interface.join().unwrap();
    });
}

// Two slots share the queue: the credit that one has back may be an entry that the other had.
#[test]
fn an_entry_is_written_again_only_when_it_was_taken_whichever_slot_had_it() {
    loom::model(|| {
        let (mut producer, mut consumer) = notification::queue(2).unwrap();
        let (a, b) = (attach(&mut producer, 1, 0), attach(&mut producer, 1, 1));
        let order = [(a, 0), (b, 1), (b, 2), (a, 3), (b, 4)];
        let interface = thread::spawn(move || {
            for (share, i) in order {
                push(&mut producer, share, &note(share, i));
            }
        });
        for (share, i) in order {
            assert_eq!(pop(&mut consumer), note(share, i));
        }
        assert_eq!(consumer.pop(), None);
        interface.join().unwrap();
    });
}

/// Stands for the mutex. loom's own treats a `try_lock` like a waiting lock, as soon as another
/// thread has it.
struct Behind(AtomicBool);

impl Behind {
    fn try_lock(&self) -> bool {
        self.0.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    fn lock(&self) {
        while !self.try_lock() {
            thread::yield_now();
        }
    }

    fn unlock(&self) {
        self.0.store(false, Ordering::Release);
    }
}

/// A lock as `os::lock` makes it: the bias, and a mutex behind it.
struct Biased {
    bias: Bias,
    mutex: Behind,
    value: loom::cell::UnsafeCell<u32>,
}

// SAFETY: the model checks that no two threads touch the value at once; that is its claim.
unsafe impl Sync for Biased {}

impl Biased {
    /// Becomes the owner under the mutex, and has the lock through the bias then.
    fn own(&self, thread: u64) {
        self.mutex.lock();
        self.bias.set(thread);
        self.mutex.unlock();
        // SAFETY: as above.
        self.value.with_mut(|value| unsafe { *value += 1 });
        self.bias.leave();
    }

    /// From now on the owner has the lock by the mutex, if no other has that, as before a wait.
    fn exchange(&self, thread: u64) {
        if !self.bias.enter(thread, Barrier::Fence) {
            return self.add(thread);
        }
        let has_mutex = self.mutex.try_lock();
        if has_mutex {
            self.bias.revoke();
            self.bias.leave();
        }
        // SAFETY: as above.
        self.value.with_mut(|value| unsafe { *value += 1 });
        match has_mutex {
            true => self.mutex.unlock(),
            false => self.bias.leave(),
        }
    }

    fn add(&self, thread: u64) {
        if self.bias.enter(thread, Barrier::Fence) {
            // SAFETY: as above.
            self.value.with_mut(|value| unsafe { *value += 1 });
            self.bias.leave();
            return;
        }
        self.mutex.lock();
        if self.bias.revoke() {
            fence(Ordering::SeqCst);
        }
        while self.bias.is_inside() {
            thread::yield_now();
        }
        // SAFETY: as above.
        self.value.with_mut(|value| unsafe { *value += 1 });
        self.mutex.unlock();
    }
}

#[test]
fn a_biased_lock_excludes_its_owner_and_the_others() {
    loom::model(|| {
        let lock = Arc::new(Biased {
            bias: Bias::default(),
            mutex: Behind(AtomicBool::new(false)),
            value: loom::cell::UnsafeCell::new(0),
        });
        let other = lock.clone();
        let owner = thread::spawn(move || {
            other.own(1);
            other.exchange(1);
        });
        lock.add(2);
        owner.join().unwrap();
        // SAFETY: the other thread has ended.
        lock.value.with(|value| assert_eq!(unsafe { *value }, 3));
    });
}

/// CLAN's event queue, for which its layer has no build without an operating system.
#[path = "../layers/clan/src/events.rs"]
#[allow(dead_code)]
mod events;

#[allow(dead_code)]
#[derive(Debug)]
enum Error {
    Full(String),
    Misuse(String),
}

fn event_queue(events: u32) -> (events::EventQueue, Arc<AtomicBool>) {
    let is_called = Arc::new(AtomicBool::new(false));
    let called = is_called.clone();
    let call_back = move || called.store(true, Ordering::SeqCst);
    (events::EventQueue::new(events, call_back).unwrap(), is_called)
}

#[test]
fn an_event_that_is_raised_is_taken_after_its_last_raise() {
    loom::model(|| {
        let (queue, _) = event_queue(2);
        let ids = [queue.register(0).unwrap(), queue.register(1).unwrap()];
        let written = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
        let (raiser, writes) = (queue.clone(), written.clone());
        let raising = thread::spawn(move || {
            for number in [0, 1, 0] {
                writes[number].fetch_add(1, Ordering::Relaxed);
                assert!(raiser.raise(ids[number]));
            }
        });
        let mut seen = [0; 2];
        let mut look = || {
            while let Some(event) = queue.take() {
                let number = event.user as usize;
                seen[number] = written[number].load(Ordering::Relaxed);
            }
        };
        look();
        raising.join().unwrap();
        look();
        assert_eq!(seen, [2, 1]);
    });
}

#[test]
fn who_sleeps_after_a_last_take_is_called_back() {
    loom::model(|| {
        let (queue, is_called) = event_queue(1);
        let id = queue.register(7).unwrap();
        let raiser = queue.clone();
        let raising = thread::spawn(move || assert!(raiser.raise(id)));
        let sleeping = queue.sleep();
        let found = queue.take().is_some();
        raising.join().unwrap();
        assert!(found || is_called.load(Ordering::SeqCst), "it would sleep for ever");
        drop(sleeping);
    });
}

#[test]
fn an_event_that_is_unregistered_while_it_is_raised_and_taken_frees_its_place() {
    loom::model(|| {
        let (queue, _) = event_queue(1);
        let id = queue.register(7).unwrap();
        let (raiser, taker) = (queue.clone(), queue.clone());
        let raising = thread::spawn(move || raiser.raise(id));
        let taking = thread::spawn(move || taker.take());
        assert!(queue.unregister(id));
        raising.join().unwrap();
        taking.join().unwrap();
        queue.take();
        queue.register(8).expect("the place is free");
    });
}
