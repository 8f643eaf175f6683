//! What a stream's messages hold, and in which order they are taken. Values only: no operating
//! system, and nothing here believes the other side.
//!
//! ```text
//!   a message of coalesced records    length  bytes  padding   length  bytes  padding  ..
//!                                     u32     ..     to 4      u32     ..     to 4
//!   its mark (the metadata)           framed, last: 1 bit each; length of the message: 30 bits
//!   a grant (a ticket on its way)     key: 8   number: 4   size, refused: 4      one cache line
//!   a record in an aperture           length: 12, with its highest bit   offset: 8   length: 4
//!   an ask for a larger buffer        number: 14 bits   pages: 18 bits           a fast packet's word
//! ```
//! All little-endian. A message's number is that of the ticket it used: so numbers cannot be
//! forged, repeated or skipped, and a link may reorder as it likes. Never: a panic, or a range
//! outside the message, whatever the bytes are.

use alloc::{boxed::Box, collections::VecDeque, vec};
use core::ops::Range;

/// Bytes before each coalesced record.
pub(crate) const HEAD_BYTES: usize = 4;
/// Longest message: 30 bits, in whole pages.
pub(crate) const MESSAGE_BYTES_MAX: usize = (1 << 30) - PAGE;
/// What an ask counts in.
pub(crate) const PAGE: usize = 4096;
/// Most tickets out at one time: they fit into the growth answer, and are told apart by the bits
/// of a number that an ask has.
pub(crate) const TICKETS_MAX: u32 = 256;

/// Coalesced records that make no sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FrameError {
    /// A record that reaches beyond its message.
    #[error("a record of {length} bytes at {at} reaches beyond its message of {message} bytes")]
    Record { at: usize, length: usize, message: usize },
    /// Too few bytes for a length.
    #[error("{0} bytes behind the last record of a message are no record")]
    Rest(usize),
}

/// Puts a record behind `fill` bytes of coalesced ones; returns how many there are then, or `None`
/// if it does not fit.
#[inline(always)]
pub(crate) fn put(buffer: &mut [u8], fill: usize, record: &[u8]) -> Option<usize> {
    let room = buffer.get_mut(fill..)?;
    let (head, room) = room.split_first_chunk_mut::<HEAD_BYTES>()?;
    let padded = record.len().checked_next_multiple_of(4)?;
    let room = room.get_mut(..padded)?;
    *head = (record.len() as u32).to_le_bytes();
    room[..record.len()].copy_from_slice(record);
    Some(fill + HEAD_BYTES + padded)
}

/// The record at `at` of a message of coalesced ones, and where the next one begins; `None` at its
/// end.
#[inline(always)]
pub(crate) fn next(message: &[u8], at: usize) -> Result<Option<(Range<usize>, usize)>, FrameError> {
    let rest = message.get(at..).unwrap_or(&[]);
    let Some((head, rest)) = rest.split_first_chunk::<HEAD_BYTES>() else {
        return if rest.is_empty() { Ok(None) } else { Err(FrameError::Rest(rest.len())) };
    };
    let length = u32::from_le_bytes(*head) as usize;
    // 2^32 and a little fits into 64 bits; where it does not, the record does not fit either.
    match length.checked_next_multiple_of(4) {
        Some(padded) if padded <= rest.len() => {
            let start = at + HEAD_BYTES;
            Ok(Some((start..start + length, start + padded)))
        }
        _ => Err(FrameError::Record { at, length, message: message.len() }),
    }
}

/// A length with this bit says that the record's bytes lie in an aperture, where its frame says.
const FAR: u32 = 1 << 31;
const FAR_BYTES: usize = 12;

/// Where the bytes of a record in an aperture are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Far {
    pub offset: u64,
    pub length: u32,
}

/// [`put`] for a record in an aperture.
pub(crate) fn put_far(buffer: &mut [u8], fill: usize, far: Far) -> Option<usize> {
    let mut bytes = [0; FAR_BYTES];
    bytes[..8].copy_from_slice(&far.offset.to_le_bytes());
    bytes[8..].copy_from_slice(&far.length.to_le_bytes());
    let end = put(buffer, fill, &bytes)?;
    let head = FAR | FAR_BYTES as u32;
    buffer[fill..fill + HEAD_BYTES].copy_from_slice(&head.to_le_bytes());
    Some(end)
}

/// [`next`] where that found an error: the frame of a record in an aperture, if it is one.
pub(crate) fn next_far(message: &[u8], at: usize) -> Option<(Range<usize>, usize)> {
    let (head, rest) = message.get(at..)?.split_first_chunk::<HEAD_BYTES>()?;
    let is_far = u32::from_le_bytes(*head) == FAR | FAR_BYTES as u32;
    let start = at + HEAD_BYTES;
    (is_far && rest.len() >= FAR_BYTES).then_some((start..start + FAR_BYTES, start + FAR_BYTES))
}

impl Far {
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (offset, length) = bytes.split_first_chunk::<8>()?;
        let offset = u64::from_le_bytes(*offset);
        Some(Self { offset, length: u32::from_le_bytes(length.try_into().ok()?) })
    }
}

/// The sender's plan of an aperture: records one behind the other, each in one piece, round and
/// round. The receiver tells how many it has released.
#[derive(Debug)]
pub(crate) struct Space {
    bytes: u64,
    /// Positions count on; where they lie is modulo `bytes`.
    head: u64,
    tail: u64,
    /// Where each record that is not released ends.
    ends: VecDeque<u64>,
    released: u64,
}

impl Space {
    pub fn new(bytes: u64) -> Self {
        Self { bytes, head: 0, tail: 0, ends: VecDeque::new(), released: 0 }
    }

    /// Where a record of `length` bytes would begin, if there is room.
    pub fn place(&self, length: u64) -> Option<u64> {
        let at = self.head % self.bytes;
        let skipped = if length > self.bytes - at { self.bytes - at } else { 0 };
        let start = self.head + skipped;
        (length <= self.bytes && start + length - self.tail <= self.bytes).then_some(start)
    }

    /// A record lies there. The next begins on a cache line of its own.
    pub fn take(&mut self, start: u64, length: u64) {
        self.head = (start + length).next_multiple_of(64);
        self.ends.push_back(self.head);
    }

    /// `count` records have been released, from the first on.
    pub fn release(&mut self, count: u64) {
        while self.released < count
            && let Some(end) = self.ends.pop_front()
        {
            self.tail = end;
            self.released += 1;
        }
        // Whatever fits into the whole fits into an empty one.
        if self.ends.is_empty() {
            (self.head, self.tail) = (0, 0);
        }
    }

    /// The offset of a position.
    pub fn offset(&self, position: u64) -> u64 {
        position % self.bytes
    }
}

/// The bits of a mark that are the length.
const LENGTH_MASK: u32 = (1 << 30) - 1;

/// What a message says of itself: four bytes of metadata, so that a record of up to 12 bytes is
/// one cache line with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    /// Coalesced records; else one record as it is.
    pub framed: bool,
    /// Nothing comes after it. A framed one of no bytes holds no record.
    pub last: bool,
    /// Bytes.
    pub length: u32,
}

impl Mark {
    pub fn to_bytes(self) -> [u8; 4] {
        let flags = (self.framed as u32) << 31 | (self.last as u32) << 30;
        (flags | self.length & LENGTH_MASK).to_le_bytes()
    }

    /// `None`: not the length of a mark.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let word = u32::from_le_bytes(bytes.try_into().ok()?);
        Some(Self {
            framed: word >> 31 & 1 == 1,
            last: word >> 30 & 1 == 1,
            length: word & LENGTH_MASK,
        })
    }
}

/// What differs from ticket to ticket. It arrives whole: 16 bytes are one packet, one line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grant {
    pub key: u64,
    /// Low half of the ticket's number.
    pub number: u32,
    /// Bytes that the message may have.
    pub size: u32,
    /// A larger buffer was asked for, and there will be none.
    pub refused: bool,
}

pub(crate) const GRANT_BYTES: usize = 16;

impl Grant {
    pub fn to_bytes(self) -> [u8; GRANT_BYTES] {
        let size = self.size as u64 | (self.refused as u64) << 31;
        let word = self.number as u64 | size << 32;
        (self.key as u128 | (word as u128) << 64).to_le_bytes()
    }

    pub fn from_bytes(bytes: [u8; GRANT_BYTES]) -> Self {
        let both = u128::from_le_bytes(bytes);
        let size = (both >> 96) as u32;
        Self {
            key: both as u64,
            number: (both >> 64) as u32,
            size: size & !(1 << 31),
            refused: size >> 31 == 1,
        }
    }
}

const NUMBER_BITS: u32 = 14;
const NUMBER_MASK: u32 = (1 << NUMBER_BITS) - 1;

/// The word that asks for a buffer of at least `bytes` for ticket `number`.
pub(crate) fn ask(number: u64, bytes: usize) -> u32 {
    (bytes.div_ceil(PAGE) as u32) << NUMBER_BITS | number as u32 & NUMBER_MASK
}

/// The tickets that are out, and the messages that have come with them. Of tickets `taken..armed`
/// each has a lane of its own, its number modulo the lanes.
#[derive(Debug)]
pub(crate) struct Window {
    taken: u64,
    armed: u64,
    arrived: Box<[bool]>,
}

impl Window {
    /// `lanes` tickets, from number 0 on, are out.
    pub fn new(lanes: u32) -> Self {
        Self { taken: 0, armed: lanes as u64, arrived: vec![false; lanes as usize].into() }
    }

    fn lanes(&self) -> u64 {
        self.arrived.len() as u64
    }

    /// The lane of a ticket.
    pub fn lane(&self, number: u64) -> usize {
        (number % self.lanes()) as usize
    }

    /// The next message in order.
    pub fn expected(&self) -> u64 {
        self.taken
    }

    /// The message of a lane is complete. `false`: no ticket of that lane is out, or it was used.
    pub fn arrive(&mut self, lane: usize) -> bool {
        let is_open = self.is_open(lane);
        if is_open {
            self.arrived[lane] = true;
        }
        is_open
    }

    fn is_open(&self, lane: usize) -> bool {
        let out = self.armed - self.taken;
        let after = (lane as u64 + self.lanes() - self.taken % self.lanes()) % self.lanes();
        lane < self.arrived.len() && after < out && !self.arrived[lane]
    }

    /// The ticket that an [`ask`] means, and the bytes; `None`: none that is out and unused.
    pub fn asked(&self, word: u32) -> Option<(u64, usize)> {
        let mask = NUMBER_MASK;
        let number =
            (self.taken..self.armed).find(|number| *number as u32 & mask == word & mask)?;
        let bytes = (word >> NUMBER_BITS) as usize * PAGE;
        self.is_open(self.lane(number)).then_some((number, bytes))
    }

    /// Whether the next message in order has arrived.
    #[inline]
    pub fn is_ready(&self) -> bool {
        self.taken < self.armed && self.arrived[self.lane(self.taken)]
    }

    /// Takes the next message in order, if it has arrived.
    pub fn take(&mut self) -> Option<u64> {
        if !self.is_ready() {
            return None;
        }
        let number = self.taken;
        let lane = self.lane(number);
        self.arrived[lane] = false;
        self.taken += 1;
        Some(number)
    }

    /// Lanes without a ticket.
    #[inline]
    pub fn unarmed(&self) -> u64 {
        self.lanes() - (self.armed - self.taken)
    }

    /// The next ticket is out, if a lane is free for it.
    pub fn arm(&mut self) -> Option<u64> {
        if self.unarmed() == 0 {
            return None;
        }
        self.armed += 1;
        Some(self.armed - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    #[test]
    fn a_record_that_reaches_beyond_its_message_is_an_error() {
        let mut message = [0; 12];
        assert_eq!(put(&mut message, 0, b"12345678"), Some(12));
        assert_eq!(next(&message, 0), Ok(Some((4..12, 12))));
        assert_eq!(next(&message, 12), Ok(None));
        assert!(matches!(next(&message[..8], 0), Err(FrameError::Record { length: 8, .. })));
        assert_eq!(next(&message[..3], 0), Err(FrameError::Rest(3)));
        message[..4].fill(0xff);
        assert!(matches!(next(&message, 0), Err(FrameError::Record { .. })));
        assert_eq!(put(&mut message, 0, b"123456789"), None);
    }

    #[test]
    fn a_message_of_a_lane_without_a_ticket_is_not_taken() {
        let mut window = Window::new(2);
        assert!(window.arrive(1) && !window.arrive(1) && !window.arrive(2));
        assert_eq!(window.take(), None);
        assert!(window.arrive(0));
        assert_eq!((window.take(), window.take(), window.take()), (Some(0), Some(1), None));
        assert!(!window.arrive(0) && !window.arrive(1));
        assert_eq!((window.arm(), window.unarmed()), (Some(2), 1));
        assert!(!window.arrive(1) && window.arrive(0));
        assert_eq!(window.asked(ask(2, 1)), None, "used");
        assert_eq!(window.arm(), Some(3));
        assert_eq!(window.asked(ask(3, PAGE + 1)), Some((3, 2 * PAGE)));
        assert_eq!(window.asked(ask(4, 1)), None);
        assert_eq!(window.arm(), None);
    }

    #[test]
    fn a_record_in_an_aperture_is_none_of_a_plain_stream() {
        let mut message = [0; 16];
        let far = Far { offset: 1 << 33, length: 7 };
        assert_eq!(put_far(&mut message, 0, far), Some(16));
        assert!(next(&message, 0).is_err());
        assert_eq!(next_far(&message, 0), Some((4..16, 16)));
        assert_eq!(Far::from_bytes(&message[4..16]), Some(far));
        assert_eq!(next_far(&message[..15], 0), None);
        assert_eq!(put_far(&mut message, 1, far), None);
    }

    proptest! {
        // Against a map of who lies where.
        #[test]
        fn records_in_an_aperture_never_overlap(steps in proptest::collection::vec((any::<bool>(), 0u64..9000), 200)) {
            let mut space = Space::new(8192);
            let mut there: VecDeque<(u64, u64)> = VecDeque::new();
            let mut released = 0;
            for (puts, length) in steps {
                if !puts {
                    if there.pop_front().is_some() {
                        released += 1;
                        space.release(released);
                    }
                    continue;
                }
                let Some(start) = space.place(length) else {
                    prop_assert!(length > 8192 || !there.is_empty(), "an empty one has room");
                    continue;
                };
                let at = space.offset(start);
                prop_assert!(at + length <= 8192);
                for (other, bytes) in &there {
                    prop_assert!(at + length <= *other || other + bytes <= at);
                }
                space.take(start, length);
                there.push_back((at, length));
            }
        }

        #[test]
        fn records_come_out_as_they_went_in(
            records in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..40), 0..20)
        ) {
            let mut buffer = [0; 1024];
            let mut fill = 0;
            for record in &records {
                fill = put(&mut buffer, fill, record).unwrap();
            }
            let (mut at, mut found) = (0, Vec::new());
            while let Some((range, after)) = next(&buffer[..fill], at).unwrap() {
                found.push(buffer[range].to_vec());
                at = after;
            }
            prop_assert_eq!(found, records);
        }

        // The walk ends, and stays inside, whatever the bytes are.
        #[test]
        fn any_bytes_are_records_or_an_error(
            bytes in proptest::collection::vec(prop_oneof![Just(0u8), Just(4), any::<u8>()], 0..200)
        ) {
            let mut at = 0;
            while let Ok(Some((range, after))) = next(&bytes, at) {
                prop_assert!(range.end <= bytes.len() && after > at && after <= bytes.len());
                at = after;
            }
        }

        #[test]
        fn marks_and_grants_survive(word in any::<u32>(), bytes in any::<[u8; 16]>()) {
            prop_assert_eq!(Mark::from_bytes(&word.to_le_bytes()).unwrap().to_bytes(), word.to_le_bytes());
            prop_assert_eq!(Grant::from_bytes(bytes).to_bytes(), bytes);
        }

        // However a link reorders: messages are taken in the order of their numbers, and no more
        // are kept than tickets were out.
        #[test]
        fn messages_are_taken_in_order(lanes in 1u32..9, choices in proptest::collection::vec(any::<u16>(), 300)) {
            let mut window = Window::new(lanes);
            let mut on_the_way: Vec<u64> = (0..lanes as u64).collect();
            let mut expected = 0;
            for choice in choices {
                match choice % 3 {
                    0 if !on_the_way.is_empty() => {
                        let number = on_the_way.swap_remove(choice as usize / 3 % on_the_way.len());
                        prop_assert!(window.arrive(window.lane(number)));
                        prop_assert!(!window.arrive(window.lane(number)));
                    }
                    1 => while let Some(number) = window.take() {
                        prop_assert_eq!(number, expected);
                        expected += 1;
                    },
                    _ => on_the_way.extend(window.arm()),
                }
            }
            while window.arm().is_some_and(|number| { on_the_way.push(number); true }) {}
            on_the_way.iter().for_each(|number| assert!(window.arrive(window.lane(*number))));
            while let Some(number) = window.take() {
                prop_assert_eq!(number, expected);
                expected += 1;
            }
            prop_assert_eq!(window.unarmed(), lanes as u64);
        }
    }
}
