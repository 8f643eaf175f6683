//! The lower bound of a checked message: a bare ring of lines whose receiver checks them.
//!
//! ```text
//!   sender                                        receiver
//!   one line: stamp, slot, key, offset, length,
//!   16 bytes of data                 ---------->  polls the stamp; compares slot, key and bounds
//!                                                 deposits the 16 bytes in an area of its own
//!                                                 queues a notification, privately, and finds it
//!   (looks when the ring is full)    <----------  counts the lines that it has read, by eighths
//! ```
//! Lines, stamps and places are those of Hamlyn's ring for a message of 16 bytes, and the ring has
//! as many lines. There is nothing else: one slot table, one link, no metadata entry, no credit, no
//! turn among links, no waiting except polling; no allocation, no call and no clock on the path.
//! The difference to Hamlyn is the price of a library; the difference to the raw line is the price
//! of the checks, of more than one word in a line, and of a ring.
//!
//! Two pinned threads, not processes: the caches know only physical addresses, so a line travels
//! alike (see [`raw`](super::raw)).
#![allow(unsafe_code)]

use super::clock;
use super::pin::Cores;
use super::stats::{RoundTrips, median};
use anyhow::{Result, ensure};
use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

/// Bytes of data in each message.
const DATA_BYTES: usize = 16;
/// Bytes of a receiver's area.
const AREA_BYTES: usize = 4096;
/// Slots of a receiver; one is used.
const SLOTS: usize = 16;
/// Places of the private notification queue.
const QUEUE: usize = 64;
/// Lines prefetched ahead of the one just written, like in Hamlyn's ring.
const PREFETCH_LINES: u64 = 8;
/// Messages whose rate is measured, in each of [`RUNS`]; a tenth as many go before.
const MESSAGES: u64 = 1 << 17;
/// Runs, each in new memory, of which the medians are taken: many short ones, so that a disturbance
/// of a processor spoils some of them and not the median.
const RUNS: u64 = 9;

/// The figures of the least checked message.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Least {
    /// Half of a round trip, in nanoseconds: the median of the medians of a few runs.
    pub one_way_ns: f64,
    /// Messages a second, one after another, all taken by the receiver when the clock stops: the
    /// median of a few runs.
    pub per_s: f64,
}

/// Measures both over rings of `ring_bytes` bytes, a power of two, with `round_trips` in all (100
/// in each run at the least). Some tens of milliseconds. An error if an end cannot be pinned, or a
/// line was refused.
pub fn measure(cores: Cores, ring_bytes: usize, round_trips: u64) -> Result<Least> {
    let (round_trips, messages) = ((round_trips / RUNS).max(100), MESSAGES.min(round_trips * 100));
    let (mut one_way_ns, mut per_s) = (Vec::new(), Vec::new());
    for _ in 0..RUNS {
        one_way_ns.push(run(
            cores,
            ring_bytes,
            |end| end.ping_pong(round_trips),
            |end| end.echo(round_trips),
        )?);
        per_s.push(run(cores, ring_bytes, |end| end.stream(messages), |end| end.take(messages))?);
    }
    let median = |values: Vec<f64>| median(values).unwrap_or(f64::NAN);
    Ok(Least { one_way_ns: median(one_way_ns), per_s: median(per_s) })
}

/// One run in new memory; returns the result of `near`. Both ends report the lines that they
/// refused.
fn run(
    cores: Cores,
    ring_bytes: usize,
    near: impl FnOnce(End) -> (f64, u64) + Send,
    far: impl FnOnce(End) -> u64 + Send,
) -> Result<f64> {
    let (there, back) = (&Ring::new(ring_bytes), &Ring::new(ring_bytes));
    let ((figure, near_refused), far_refused) =
        super::two_threads(cores, || near(End::new(there, back)), || far(End::new(back, there)))?;
    let refused = near_refused + far_refused;
    ensure!(refused == 0, "{refused} lines of the bare checked ring were refused");
    Ok(figure)
}

/// One direction, seen by both threads.
struct Ring {
    lines: Box<[Line]>,
    freed: Alone,
}

/// Word 0: length, stamp. 1: slot. 3: key. 4: offset. 6 and 7: data.
#[repr(C, align(64))]
struct Line([AtomicU64; 8]);

/// A word that has two lines to itself: neighbouring lines are prefetched in pairs.
#[repr(align(128))]
struct Alone(AtomicU64);

impl Ring {
    fn new(bytes: usize) -> Self {
        let lines = (bytes / size_of::<Line>()).max(8);
        assert!(lines.is_power_of_two());
        let line = |_| Line(std::array::from_fn(|_| AtomicU64::new(0)));
        Self { lines: (0..lines).map(line).collect(), freed: Alone(AtomicU64::new(0)) }
    }
}

/// That of a line in its lap, in a ring of `lines` lines; never zero.
fn stamp(position: u64, lines: usize) -> u32 {
    0x8000_0000 | (position >> lines.trailing_zeros()) as u32
}

/// The destination of a message, and its key.
#[derive(Clone, Copy)]
struct Ticket {
    slot: u32,
    key: u64,
    offset: u64,
    length: u32,
}

const TICKET: Ticket = Ticket { slot: 5, key: 0x5bd1_e995_9d1c_a3f7, offset: 64, length: 16 };

struct Writer<'a> {
    lines: &'a [Line],
    freed: &'a AtomicU64,
    written: u64,
    /// The position up to which lines may be written without another check, with the stamp `stamp`.
    room_until: u64,
    stamp: u32,
}

impl<'a> Writer<'a> {
    fn new(ring: &'a Ring) -> Self {
        let (lines, freed) = (&*ring.lines, &ring.freed.0);
        Self {
            lines,
            freed,
            written: 0,
            room_until: lines.len() as u64,
            stamp: stamp(0, lines.len()),
        }
    }

    #[inline(always)]
    fn write(&mut self, ticket: &Ticket, data: [u64; 2]) {
        if self.written == self.room_until {
            (self.room_until, self.stamp) = wait_for_room(self.lines, self.freed, self.written);
        }
        let (lines, mask) = (self.lines, self.lines.len() as u64 - 1);
        let line = &lines[(self.written & mask) as usize].0;
        let store = |i: usize, word| line[i].store(word, Relaxed);
        store(1, (ticket.slot as u64) << 32);
        store(2, 0);
        store(3, ticket.key);
        store(4, ticket.offset);
        store(5, 0);
        store(6, data[0]);
        store(7, data[1]);
        line[0].store((ticket.length as u64) << 32 | self.stamp as u64, Release);
        self.written += 1;
        prefetch_for_writing(lines, ((self.written + PREFETCH_LINES) & mask) as usize);
    }
}

/// The new `room_until` and `stamp`. By value, so that the writer stays in registers.
#[cold]
#[inline(never)]
fn wait_for_room(lines: &[Line], freed: &AtomicU64, written: u64) -> (u64, u32) {
    let count = lines.len() as u64;
    while freed.load(Acquire) + count == written {}
    let until = freed.load(Acquire) + count;
    (until.min((written | (count - 1)) + 1), stamp(written, lines.len()))
}

/// Prefetches a line for writing.
#[inline(always)]
fn prefetch_for_writing(lines: &[Line], index: usize) {
    let line = lines.as_ptr().wrapping_add(index);
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint: it reads and writes nothing, for any address.
    unsafe {
        std::arch::asm!(
            "prefetchw [{line}]",
            line = in(reg) line,
            options(nostack, preserves_flags, readonly),
        );
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = line;
}

/// The memory that a sender may write to, and its key.
struct Slot {
    key: u64,
    area: Box<[u8]>,
}

/// Private to the receiver: how many were put in and taken out since it was made.
struct Queue {
    places: Box<[u64; QUEUE]>,
    put: usize,
    taken: usize,
}

impl Queue {
    #[inline(always)]
    fn push(&mut self, notification: u64) {
        debug_assert!(self.put - self.taken < QUEUE);
        self.places[self.put % QUEUE] = notification;
        self.put += 1;
    }

    #[inline(always)]
    fn pop(&mut self) -> Option<u64> {
        (self.taken != self.put).then(|| {
            self.taken += 1;
            self.places[(self.taken - 1) % QUEUE]
        })
    }
}

struct Reader<'a> {
    lines: &'a [Line],
    freed: &'a AtomicU64,
    read: u64,
    /// The position at which `freed` is written again, and the lap may change.
    publish_at: u64,
    stamp: u32,
    slots: Box<[Slot; SLOTS]>,
    queue: Queue,
    refused: u64,
}

impl<'a> Reader<'a> {
    /// With [`TICKET`]'s slot; the other slots have no area.
    fn new(ring: &'a Ring) -> Self {
        let slot = |i| Slot {
            key: TICKET.key ^ (i as u64 ^ TICKET.slot as u64),
            area: vec![0; if i == TICKET.slot as usize { AREA_BYTES } else { 0 }].into(),
        };
        Self {
            lines: &ring.lines,
            freed: &ring.freed.0,
            read: 0,
            publish_at: ring.lines.len() as u64 / 8,
            stamp: stamp(0, ring.lines.len()),
            slots: Box::new(std::array::from_fn(slot)),
            queue: Queue { places: Box::new([0; QUEUE]), put: 0, taken: 0 },
            refused: 0,
        }
    }

    fn line(&self) -> &'a [AtomicU64; 8] {
        &self.lines[self.read as usize & (self.lines.len() - 1)].0
    }

    /// The next message's notification; waits for its line. `None` if the line was refused.
    ///
    /// A line is checked whole before its first byte is deposited, and each of its words is read
    /// once.
    #[inline(always)]
    fn next(&mut self) -> Option<u64> {
        let line = self.line();
        let first = loop {
            let first = line[0].load(Acquire);
            if first as u32 == self.stamp {
                break first;
            }
        };
        let word = |i: usize| line[i].load(Relaxed);
        let (slot, key, offset, low, high) = (word(1), word(3), word(4), word(6), word(7));
        let place = self.slots.get_mut((slot >> 32) as usize).filter(|slot| slot.key == key);
        let place = place.and_then(|slot| slot.area.get_mut(offset as usize..)?.first_chunk_mut());
        match place {
            Some::<&mut [u8; DATA_BYTES]>(place) if first >> 32 == DATA_BYTES as u64 => {
                *place = (low as u128 | (high as u128) << 64).to_le_bytes();
                self.queue.push(slot | DATA_BYTES as u64);
            }
            _ => self.refused += 1,
        }
        self.read += 1;
        if self.read == self.publish_at {
            (self.publish_at, self.stamp) = end_eighth(self.lines, self.freed, self.read);
        }
        self.queue.pop()
    }
}

/// The new `publish_at` and `stamp`. By value, so that the reader stays in registers.
#[cold]
#[inline(never)]
fn end_eighth(lines: &[Line], freed: &AtomicU64, read: u64) -> (u64, u32) {
    freed.store(read, Release);
    (read + lines.len() as u64 / 8, stamp(read, lines.len()))
}

/// One of the two threads.
struct End<'a> {
    output: Writer<'a>,
    input: Reader<'a>,
}

/// Round trips or messages before the clock starts.
fn warm_up(count: u64) -> u64 {
    (count / 10).max(1)
}

/// Each method takes its halves apart, so that they stay in registers.
impl<'a> End<'a> {
    fn new(output: &'a Ring, input: &'a Ring) -> Self {
        Self { output: Writer::new(output), input: Reader::new(input) }
    }

    /// Nanoseconds one way, the median; and how many lines were refused.
    fn ping_pong(self, round_trips: u64) -> (f64, u64) {
        let Self { mut output, mut input } = self;
        let warm_up = warm_up(round_trips);
        let mut trips = RoundTrips::begin(warm_up + round_trips);
        let mut found = None;
        for trip in 0..warm_up + round_trips {
            output.write(&TICKET, [trip, found.unwrap_or(0)]);
            found = input.next();
            trips.end_one();
        }
        (trips.one_way_ns(warm_up).p50, input.refused)
    }

    /// The other end of it: how many lines were refused.
    fn echo(self, round_trips: u64) -> u64 {
        let Self { mut output, mut input } = self;
        for trip in 0..warm_up(round_trips) + round_trips {
            let found = input.next();
            output.write(&TICKET, [trip, found.unwrap_or(0)]);
        }
        input.refused
    }

    /// Messages per second; the clock stops when the other end has confirmed them all. And the
    /// number of refused lines.
    fn stream(self, messages: u64) -> (f64, u64) {
        let Self { mut output, mut input } = self;
        let mut ns = 0;
        for count in [warm_up(messages), messages] {
            let from = clock::ticks();
            for number in 0..count {
                output.write(&TICKET, [number, 7]);
            }
            input.next();
            ns = clock::elapsed_ns(from, clock::ticks());
        }
        (messages as f64 / (ns as f64 / 1e9), input.refused)
    }

    /// The other end of it: how many lines were refused.
    fn take(self, messages: u64) -> u64 {
        let Self { mut output, mut input } = self;
        for count in [warm_up(messages), messages] {
            let mut found = None;
            for _ in 0..count {
                found = input.next();
            }
            output.write(&TICKET, [count, found.unwrap_or(0)]);
        }
        input.refused
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_deposited_and_found_lap_after_lap() {
        let ring = Ring::new(512);
        let (mut writer, mut reader) = (Writer::new(&ring), Reader::new(&ring));
        for number in 0..100u64 {
            let first = reader.line()[0].load(Relaxed);
            assert_ne!(first as u32, reader.stamp, "line {number} is there before it was written");
            let ticket = Ticket { offset: number, ..TICKET };
            writer.write(&ticket, [number, !number]);
            assert_eq!(reader.next(), Some(5 << 32 | 16));
            let area = &reader.slots[TICKET.slot as usize].area[number as usize..];
            assert_eq!(area[..8], number.to_le_bytes());
            assert_eq!(area[8..16], (!number).to_le_bytes());
        }
        assert_eq!((reader.refused, reader.queue.pop()), (0, None));
    }

    #[test]
    fn a_line_with_a_wrong_key_slot_offset_or_length_deposits_nothing() {
        let ring = Ring::new(4096);
        let (mut writer, mut reader) = (Writer::new(&ring), Reader::new(&ring));
        let wrong = [
            Ticket { key: TICKET.key ^ 1, ..TICKET },
            Ticket { slot: 4, ..TICKET },
            Ticket { slot: u32::MAX, ..TICKET },
            Ticket { offset: AREA_BYTES as u64 - 15, ..TICKET },
            Ticket { offset: u64::MAX - 7, ..TICKET },
            Ticket { length: 17, ..TICKET },
            Ticket { length: 15, ..TICKET },
        ];
        for ticket in &wrong {
            writer.write(ticket, [u64::MAX; 2]);
            assert_eq!(reader.next(), None);
        }
        assert_eq!(reader.refused, wrong.len() as u64);
        assert!(reader.slots.iter().all(|slot| slot.area.iter().all(|byte| *byte == 0)));
        let last = Ticket { offset: AREA_BYTES as u64 - 16, ..TICKET };
        writer.write(&last, [u64::MAX; 2]);
        assert!(reader.next().is_some());
    }

    #[test]
    fn a_sender_waits_until_lines_are_free() {
        let ring = &Ring::new(512);
        let found = std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut writer = Writer::new(ring);
                (0..10_000).for_each(|number| writer.write(&TICKET, [number, 7]));
            });
            let mut reader = Reader::new(ring);
            (0..10_000u64).filter(|_| reader.next().is_some()).count()
        });
        assert_eq!(found, 10_000);
    }
}
