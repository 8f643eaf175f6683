//! The lower bound of a checked message: a bare ring of lines whose receiver checks each packet.
//!
//! ```text
//!   sender                                        receiver
//!   one packet of lines: stamp, destination,
//!   length, the data                 ---------->  polls the stamp; compares slot, key and bounds
//!                                                 deposits the data in an area of its own
//!                                                 queues a notification, privately, and finds it
//!   (looks when the ring is full)    <----------  counts the lines that it has read, by eighths
//! ```
//! Stamps and places are those of Hamlyn's ring for a message of the same length, and the ring has
//! as many lines. There is nothing else: one slot table, one link, no metadata entry, no credit, no
//! turn among links, no waiting except polling; no allocation, no call and no clock on the path.
//! The difference to Hamlyn is the price of a library; the difference to the raw line is the price
//! of the checks, of more than one word in a line, and of a ring.
//!
//! Three kinds of packets are measured, and the best of them is the lower bound of its length:
//!
//! - *whole*: a header of 40 bytes names slot, key and offset; 24 bytes of data share its line.
//! - *compressed*: 12 bytes of stamp, flow number, length and offset; the receiver remembers slot
//!   and key of the flow, and checks them as it checks the others. 52 bytes share the line.
//! - *pair*: compressed, and each look of the poll fetches the next line, too, so that both travel
//!   at the same time.
//!
//! A line behind a packet may hold data of the lap before, and so any stamp. The sender of packets
//! that are longer than a line clears its first word before it commits, as Hamlyn's does.
//!
//! Two pinned threads, not processes: the caches know only physical addresses, so a line travels
//! alike (see [`raw`](super::raw)).
#![allow(unsafe_code)]

use super::clock;
use super::copies::{RingShape, copy, copy_short};
use super::pin::Cores;
use super::stats::{RoundTrips, median};
use anyhow::{Result, ensure};
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

/// Bytes of a header that names its whole destination, ..
const WHOLE: usize = 40;
/// .. and of one that names a flow.
const COMPRESSED: usize = 12;
/// Bytes of a receiver's area: of the shortest.
const AREA_BYTES: usize = 4096;
/// Slots of a receiver, and flows; one of each is used.
const SLOTS: usize = 16;
/// Places of the private notification queue.
const QUEUE: usize = 64;
const LINE_BYTES: usize = 64;
/// Lines prefetched ahead of the one just written, like in Hamlyn's ring.
const PREFETCH_LINES: u64 = 8;
/// Messages whose rate is measured, in each of [`RUNS`], ..
const MESSAGES: u64 = 1 << 17;
/// .. or as many as have so many bytes. A tenth as many go before.
const BYTES: u64 = 16 << 20;
/// Runs, each in new memory, of which the medians are taken: many short ones, so that a disturbance
/// of a processor spoils some of them and not the median. Fewer for a check that all works.
const RUNS: u64 = 9;
const RUNS_MIN: u64 = 3;

/// The figures of the least checked message of a length; `NaN` of one that is no single packet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Least {
    /// Half of a round trip, in nanoseconds: the median of the medians of a few runs, of the kind
    /// of packet that has the lowest.
    pub one_way_ns: f64,
    /// Messages a second, one after another, all taken by the receiver when the clock stops: the
    /// median of a few runs, of the kind that has the highest.
    pub per_s: f64,
}

/// Measures messages of `size` bytes, with `round_trips` in all (100 in each run at the least). Some
/// tenths of a second. An error if an end cannot be pinned, or a packet was refused.
pub fn measure(cores: Cores, size: usize, shape: RingShape, round_trips: u64) -> Result<Least> {
    let mut least = Least { one_way_ns: f64::NAN, per_s: f64::NAN };
    if size > shape.packet_bytes.min(LENGTH_MAX) {
        return Ok(least);
    }
    let kinds = [
        of_kind::<WHOLE, false>(cores, size, shape.ring_bytes, round_trips)?,
        of_kind::<COMPRESSED, false>(cores, size, shape.ring_bytes, round_trips)?,
        of_kind::<COMPRESSED, true>(cores, size, shape.ring_bytes, round_trips)?,
    ];
    for kind in kinds {
        least.one_way_ns = least.one_way_ns.min(kind.one_way_ns);
        least.per_s = least.per_s.max(kind.per_s);
    }
    Ok(least)
}

fn of_kind<const HEADER: usize, const PAIR: bool>(
    cores: Cores,
    size: usize,
    ring_bytes: usize,
    round_trips: u64,
) -> Result<Least> {
    let runs = (round_trips / 50).clamp(RUNS_MIN, RUNS);
    let round_trips = (round_trips / runs).max(100);
    let messages = MESSAGES.min(round_trips * 100).min(BYTES / size.max(1) as u64).max(100);
    let run = Run::<HEADER, PAIR> { cores, size, ring_bytes };
    let (mut one_way_ns, mut per_s) = (Vec::new(), Vec::new());
    for _ in 0..runs {
        one_way_ns.push(run.of(|end| end.ping_pong(round_trips), |end| end.echo(round_trips))?);
        per_s.push(run.of(|end| end.stream(messages), |end| end.take(messages))?);
    }
    let median = |values: Vec<f64>| median(values).unwrap_or(f64::NAN);
    Ok(Least { one_way_ns: median(one_way_ns), per_s: median(per_s) })
}

struct Run<const HEADER: usize, const PAIR: bool> {
    cores: Cores,
    size: usize,
    ring_bytes: usize,
}

impl<const HEADER: usize, const PAIR: bool> Run<HEADER, PAIR> {
    /// One, in new memory; returns the result of `near`. Both ends report the packets that they
    /// refused.
    fn of(
        &self,
        near: impl FnOnce(End<'_, HEADER, PAIR>) -> (f64, u64) + Send,
        far: impl FnOnce(End<'_, HEADER, PAIR>) -> u64 + Send,
    ) -> Result<f64> {
        let (there, back) = (&Ring::new(self.ring_bytes), &Ring::new(self.ring_bytes));
        let ((figure, near_refused), far_refused) = super::two_threads(
            self.cores,
            || near(End::new(there, back, self.size)),
            || far(End::new(back, there, self.size)),
        )?;
        let refused = near_refused + far_refused;
        ensure!(refused == 0, "{refused} packets of the bare checked ring were refused");
        Ok(figure)
    }
}

/// One direction, seen by both threads.
struct Ring {
    lines: Box<[Line]>,
    freed: Alone,
}

/// The first of a packet: stamp, and with a whole header length, slot, (nothing), key, offset; with a
/// compressed one flow number and length of 16 bits each, and an offset of 32. Data follows at once,
/// and goes on in the lines behind.
#[repr(C, align(64))]
struct Line([AtomicU64; 8]);

/// A word that has two lines to itself: neighbouring lines are prefetched in pairs.
#[repr(align(128))]
struct Alone(AtomicU64);

impl Ring {
    fn new(bytes: usize) -> Self {
        let lines = (bytes / LINE_BYTES).max(8);
        assert!(lines.is_power_of_two());
        let line = |_| Line(std::array::from_fn(|_| AtomicU64::new(0)));
        Self { lines: (0..lines).map(line).collect(), freed: Alone(AtomicU64::new(0)) }
    }
}

/// That of a packet in its lap, in a ring of `lines` lines; never zero.
#[inline(always)]
fn stamp(position: u64, lines: usize) -> u32 {
    0x8000_0000 | (position >> lines.trailing_zeros()) as u32
}

#[inline(always)]
fn index(position: u64, lines: &[Line]) -> usize {
    position as usize & (lines.len() - 1)
}

/// Lines of a packet.
#[inline(always)]
fn lines_of<const HEADER: usize>(length: usize) -> u64 {
    (HEADER + length).div_ceil(LINE_BYTES) as u64
}

/// The longest packet of either kind.
const LENGTH_MAX: usize = u16::MAX as usize;

/// The longest packet in a ring of `lines` lines: with the line behind it and an eighth that was
/// read and not yet returned, it fits.
fn length_max<const HEADER: usize>(lines: usize) -> usize {
    ((lines - lines / 8 - 1) * LINE_BYTES - HEADER).min(LENGTH_MAX)
}

/// Data beside the header in its line.
const fn beside<const HEADER: usize>(length: usize) -> usize {
    let room = LINE_BYTES - HEADER;
    if length < room { length } else { room }
}

/// The place of the data in the line.
#[inline(always)]
fn data_of<const HEADER: usize>(line: &[AtomicU64; 8]) -> *mut u8 {
    line.as_ptr().cast_mut().cast::<u8>().wrapping_add(HEADER)
}

/// The places of the data in the lines behind the first, and their lengths: one piece, and another
/// if the ring ends in between.
fn behind<const HEADER: usize>(
    lines: &[Line],
    position: u64,
    length: usize,
) -> [(*mut u8, usize); 2] {
    assert!(length <= length_max::<HEADER>(lines.len()));
    let (start, length) =
        (lines.as_ptr().cast_mut().cast::<u8>(), length - beside::<HEADER>(length));
    let at = index(position + 1, lines) * LINE_BYTES;
    let until_end = length.min(lines.len() * LINE_BYTES - at);
    [(start.wrapping_add(at), until_end), (start, length - until_end)]
}

/// The destination of a message, its key, and the number by which its receiver knows both.
#[derive(Clone, Copy)]
struct Ticket {
    slot: u32,
    key: u64,
    flow: u16,
    offset: u64,
}

const TICKET: Ticket = Ticket { slot: 5, key: 0x5bd1_e995_9d1c_a3f7, flow: 3, offset: 64 };

struct Writer<'a, const HEADER: usize> {
    lines: &'a [Line],
    freed: &'a AtomicU64,
    written: u64,
    /// The position up to which lines may be written without another look at `freed`.
    room_until: u64,
}

impl<'a, const HEADER: usize> Writer<'a, HEADER> {
    fn new(ring: &'a Ring) -> Self {
        let (lines, freed) = (&*ring.lines, &ring.freed.0);
        Self { lines, freed, written: 0, room_until: lines.len() as u64 }
    }

    #[inline(always)]
    fn write(&mut self, ticket: &Ticket, data: &[u8]) {
        let (lines, written) = (self.lines, self.written);
        let is_short = data.len() <= LINE_BYTES - HEADER;
        let many = if is_short { 1 } else { lines_of::<HEADER>(data.len()) };
        // And the line behind it, if that is cleared.
        let touched = if is_short { 1 } else { many + 1 };
        if written + touched > self.room_until {
            self.room_until = wait_for_room(lines, self.freed, written + touched);
        }
        // The polled line last and at once: a reader that took it back in between would have to be
        // asked for it again.
        if !is_short {
            write_behind::<HEADER>(lines, written, data);
            lines[index(written + many, lines)].0[0].store(0, Relaxed);
        }
        let line = &lines[index(written, lines)].0;
        let store = |i: usize, word| line[i].store(word, Relaxed);
        let length = data.len() as u64;
        let first = if HEADER == WHOLE {
            store(1, (ticket.slot as u64) << 32);
            store(2, 0);
            store(3, ticket.key);
            store(4, ticket.offset);
            length << 32
        } else {
            // The upper half is overwritten by data.
            store(1, ticket.offset & u32::MAX as u64);
            length << 48 | (ticket.flow as u64) << 32
        };
        let bytes = beside::<HEADER>(data.len());
        // SAFETY: so many bytes lie beside the header. No reader looks at the line before the stamp
        // below is stored: there was room, and only stamps of this lap are waited for.
        unsafe { copy_short(data_of::<HEADER>(line), data.as_ptr(), bytes) }
        line[0].store(first | stamp(written, lines.len()) as u64, Release);
        self.written += many;
        prefetch_for_writing(lines, index(self.written + PREFETCH_LINES, lines));
        for before in 1..many.min(PREFETCH_LINES) {
            prefetch_for_writing(lines, index(self.written + PREFETCH_LINES - before, lines));
        }
    }
}

/// By value, and not inlined, so that the writer of short messages stays in registers.
#[inline(never)]
fn write_behind<const HEADER: usize>(lines: &[Line], position: u64, data: &[u8]) {
    let length = data.len();
    let mut data = &data[beside::<HEADER>(length)..];
    for (to, bytes) in behind::<HEADER>(lines, position, length) {
        let (piece, rest) = data.split_at(bytes);
        // SAFETY: the lines were free, and no reader looks at them before the stamp is stored.
        unsafe { copy(to, piece.as_ptr(), bytes) }
        data = rest;
    }
}

/// The new `room_until`, which is at least `until`. By value, so that the writer stays in registers.
#[cold]
#[inline(never)]
fn wait_for_room(lines: &[Line], freed: &AtomicU64, until: u64) -> u64 {
    loop {
        let room_until = freed.load(Acquire) + lines.len() as u64;
        if room_until >= until {
            return room_until;
        }
    }
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

/// Prefetches a line for reading.
#[inline(always)]
fn prefetch_for_reading(line: &Line) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint: it reads and writes nothing, for any address.
    unsafe {
        std::arch::asm!(
            "prefetcht0 [{line}]",
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

/// The words that a compressed header leaves out.
#[derive(Clone, Copy)]
struct Flow {
    slot: u32,
    key: u64,
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

struct Reader<'a, const HEADER: usize, const PAIR: bool> {
    lines: &'a [Line],
    freed: &'a AtomicU64,
    read: u64,
    /// The position at which `freed` is written again.
    publish_at: u64,
    slots: Box<[Slot; SLOTS]>,
    flows: Box<[Flow; SLOTS]>,
    queue: Queue,
    refused: u64,
}

impl<'a, const HEADER: usize, const PAIR: bool> Reader<'a, HEADER, PAIR> {
    /// With [`TICKET`]'s slot, which has room for `size` bytes, and its flow; the other slots have
    /// no area, and the other flows no slot.
    fn new(ring: &'a Ring, size: usize) -> Self {
        let area_bytes = AREA_BYTES.max(TICKET.offset as usize + size);
        let slot = |i| Slot {
            key: TICKET.key ^ (i as u64 ^ TICKET.slot as u64),
            area: vec![0; if i == TICKET.slot as usize { area_bytes } else { 0 }].into(),
        };
        let flow = |i| Flow {
            slot: if i == TICKET.flow as usize { TICKET.slot } else { u32::MAX },
            key: TICKET.key,
        };
        Self {
            lines: &ring.lines,
            freed: &ring.freed.0,
            read: 0,
            publish_at: ring.lines.len() as u64 / 8,
            slots: Box::new(std::array::from_fn(slot)),
            flows: Box::new(std::array::from_fn(flow)),
            queue: Queue { places: Box::new([0; QUEUE]), put: 0, taken: 0 },
            refused: 0,
        }
    }

    /// The next message's notification; waits for its packet. `None` if the packet was refused.
    ///
    /// A packet is checked whole before its first byte is deposited, and each of its words is read
    /// once.
    #[inline(always)]
    fn next(&mut self) -> Option<u64> {
        let lines = self.lines;
        let line = &lines[index(self.read, lines)].0;
        let (behind, stamp) = (&lines[index(self.read + 1, lines)], stamp(self.read, lines.len()));
        let first = loop {
            let first = line[0].load(Acquire);
            if first as u32 == stamp {
                break first;
            }
            if PAIR {
                prefetch_for_reading(behind);
            }
        };
        let word = |i: usize| line[i].load(Relaxed);
        let (slot, key, offset, length) = if HEADER == WHOLE {
            ((word(1) >> 32) as u32, word(3), word(4), (first >> 32) as usize)
        } else {
            let flow = self.flows.get((first >> 32) as u16 as usize);
            let Flow { slot, key } = *flow.unwrap_or(&Flow { slot: u32::MAX, key: 0 });
            (slot, key, word(1) as u32 as u64, (first >> 48) as usize)
        };
        let place = self.slots.get_mut(slot as usize).filter(|slot| slot.key == key);
        let place = place.and_then(|slot| slot.area.get_mut(offset as usize..)?.get_mut(..length));
        let is_short = length <= LINE_BYTES - HEADER;
        let is_possible = is_short || length <= length_max::<HEADER>(lines.len());
        match place {
            Some(place) if is_possible => {
                let bytes = beside::<HEADER>(length);
                // SAFETY: so many bytes lie beside the header; the packet was complete when the
                // stamp was stored, and no writer touches it before `freed` says so.
                unsafe { copy_short(place.as_mut_ptr(), data_of::<HEADER>(line), bytes) }
                if !is_short {
                    read_behind::<HEADER>(lines, self.read, place);
                }
                self.queue.push((slot as u64) << 32 | length as u64);
            }
            _ => self.refused += 1,
        }
        // A packet that cannot be in the ring counts as one line, and what lies behind it is refused
        // or never looked at.
        self.read += if is_short || !is_possible { 1 } else { lines_of::<HEADER>(length) };
        if self.read >= self.publish_at {
            self.publish_at = publish(lines, self.freed, self.read);
        }
        self.queue.pop()
    }
}

#[inline(never)]
fn read_behind<const HEADER: usize>(lines: &[Line], position: u64, place: &mut [u8]) {
    let length = place.len();
    let mut place = &mut place[beside::<HEADER>(length)..];
    for (from, bytes) in behind::<HEADER>(lines, position, length) {
        let (piece, rest) = place.split_at_mut(bytes);
        // SAFETY: as beside the header.
        unsafe { copy(piece.as_mut_ptr(), from, bytes) }
        place = rest;
    }
}

/// Returns the lines read; the new `publish_at`. By value, so that the reader stays in registers.
#[cold]
#[inline(never)]
fn publish(lines: &[Line], freed: &AtomicU64, read: u64) -> u64 {
    freed.store(read, Release);
    read + lines.len() as u64 / 8
}

/// One of the two threads.
struct End<'a, const HEADER: usize, const PAIR: bool> {
    output: Writer<'a, HEADER>,
    input: Reader<'a, HEADER, PAIR>,
    message: Box<[u8]>,
}

/// Round trips or messages before the clock starts.
fn warm_up(count: u64) -> u64 {
    (count / 10).max(1)
}

/// Each method takes its halves apart, so that they stay in registers.
impl<'a, const HEADER: usize, const PAIR: bool> End<'a, HEADER, PAIR> {
    fn new(output: &'a Ring, input: &'a Ring, size: usize) -> Self {
        let message = black_box(vec![7; size]).into();
        Self { output: Writer::new(output), input: Reader::new(input, size), message }
    }

    /// Nanoseconds one way, the median; and how many packets were refused.
    fn ping_pong(self, round_trips: u64) -> (f64, u64) {
        let Self { mut output, mut input, message } = self;
        let warm_up = warm_up(round_trips);
        let mut trips = RoundTrips::begin(warm_up + round_trips);
        let mut found = 0;
        for _ in 0..warm_up + round_trips {
            output.write(&TICKET, &message);
            found ^= input.next().unwrap_or(0);
            trips.end_one();
        }
        black_box(found);
        (trips.one_way_ns(warm_up).p50, input.refused)
    }

    /// The other end of it: how many packets were refused.
    fn echo(self, round_trips: u64) -> u64 {
        let Self { mut output, mut input, message } = self;
        let mut found = 0;
        for _ in 0..warm_up(round_trips) + round_trips {
            found ^= input.next().unwrap_or(0);
            output.write(&TICKET, &message);
        }
        black_box(found);
        input.refused
    }

    /// Messages per second; the clock stops when the other end has confirmed them all. And the
    /// number of refused packets.
    fn stream(self, messages: u64) -> (f64, u64) {
        let Self { mut output, mut input, message } = self;
        let mut ns = 0;
        for count in [warm_up(messages), messages] {
            let from = clock::ticks();
            for _ in 0..count {
                output.write(&TICKET, &message);
            }
            input.next();
            ns = clock::elapsed_ns(from, clock::ticks());
        }
        (messages as f64 / (ns as f64 / 1e9), input.refused)
    }

    /// The other end of it: how many packets were refused.
    fn take(self, messages: u64) -> u64 {
        let Self { mut output, mut input, message } = self;
        for count in [warm_up(messages), messages] {
            let mut found = 0;
            for _ in 0..count {
                found ^= input.next().unwrap_or(0);
            }
            black_box(found);
            output.write(&TICKET, &message);
        }
        input.refused
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(number: usize, length: usize) -> Vec<u8> {
        (0..length).map(|i| (number * 31 + i * 7) as u8).collect()
    }

    fn area<'a, const H: usize, const P: bool>(reader: &'a Reader<'_, H, P>) -> &'a [u8] {
        &reader.slots[TICKET.slot as usize].area
    }

    fn each_length_arrives_lap_after_lap<const HEADER: usize, const PAIR: bool>() {
        let ring = Ring::new(2048);
        let mut writer = Writer::<HEADER>::new(&ring);
        let mut reader = Reader::<HEADER, PAIR>::new(&ring, 0);
        for number in 0..2000 {
            let position = reader.read;
            let first = ring.lines[index(position, &ring.lines)].0[0].load(Relaxed);
            let stamp = stamp(position, ring.lines.len());
            assert_ne!(first as u32, stamp, "packet {number} is there before it was written");
            let data = data(number, number % 1000);
            writer.write(&Ticket { offset: number as u64, ..TICKET }, &data);
            assert_eq!(reader.next(), Some(5 << 32 | data.len() as u64));
            assert_eq!(area(&reader)[number..][..data.len()], data);
            assert_eq!(writer.written, reader.read);
        }
        assert_eq!((reader.refused, reader.queue.pop()), (0, None));
    }

    #[test]
    fn packets_of_each_length_and_kind_are_deposited_and_found_lap_after_lap() {
        each_length_arrives_lap_after_lap::<WHOLE, false>();
        each_length_arrives_lap_after_lap::<COMPRESSED, false>();
        each_length_arrives_lap_after_lap::<COMPRESSED, true>();
    }

    fn nothing_is_deposited<const HEADER: usize>(wrong: &[Ticket]) {
        let ring = Ring::new(4096);
        let mut writer = Writer::<HEADER>::new(&ring);
        let mut reader = Reader::<HEADER, false>::new(&ring, 0);
        let message = [0xff; 100];
        for ticket in wrong {
            writer.write(ticket, &message);
            assert_eq!(reader.next(), None);
        }
        assert_eq!(reader.refused, wrong.len() as u64);
        assert!(area(&reader).iter().all(|byte| *byte == 0));
        let last = Ticket { offset: AREA_BYTES as u64 - 100, ..TICKET };
        writer.write(&last, &message);
        assert!(reader.next().is_some());
        // A flow grants nothing: a key that has changed since refuses it.
        reader.slots[TICKET.slot as usize].key ^= 1;
        writer.write(&last, &message);
        assert_eq!(reader.next(), None);
    }

    #[test]
    fn a_packet_with_a_wrong_key_slot_flow_or_offset_deposits_nothing() {
        let beyond = Ticket { offset: AREA_BYTES as u64 - 99, ..TICKET };
        nothing_is_deposited::<WHOLE>(&[
            Ticket { key: TICKET.key ^ 1, ..TICKET },
            Ticket { slot: 4, ..TICKET },
            Ticket { slot: u32::MAX, ..TICKET },
            Ticket { offset: u64::MAX - 7, ..TICKET },
            beyond,
        ]);
        nothing_is_deposited::<COMPRESSED>(&[
            Ticket { flow: 4, ..TICKET },
            Ticket { flow: SLOTS as u16, ..TICKET },
            Ticket { flow: u16::MAX, ..TICKET },
            Ticket { offset: u32::MAX as u64, ..TICKET },
            beyond,
        ]);
    }

    #[test]
    fn a_length_that_no_packet_can_have_is_refused() {
        let ring = Ring::new(512);
        let mut reader = Reader::<WHOLE, false>::new(&ring, 1 << 20);
        let line = &ring.lines[0].0;
        line[1].store((TICKET.slot as u64) << 32, Relaxed);
        line[3].store(TICKET.key, Relaxed);
        line[0].store(0xffff_ffff << 32 | stamp(0, 8) as u64, Release);
        assert_eq!((reader.next(), reader.refused, reader.read), (None, 1, 1));
    }

    #[test]
    fn a_sender_waits_until_lines_are_free() {
        for size in [16, 200, 300] {
            let ring = &Ring::new(512);
            let found = std::thread::scope(|scope| {
                scope.spawn(|| {
                    let mut writer = Writer::<COMPRESSED>::new(ring);
                    (0..10_000).for_each(|number| writer.write(&TICKET, &data(number, size)));
                });
                let mut reader = Reader::<COMPRESSED, true>::new(ring, size);
                let is_whole = |number| {
                    reader.next().is_some()
                        && area(&reader)[TICKET.offset as usize..][..size] == data(number, size)
                };
                (0..10_000).map(is_whole).filter(|is_whole| *is_whole).count()
            });
            assert_eq!(found, 10_000);
        }
    }
}
