//! The contents of a stream's messages, and the order in which they are taken. Values only: no
//! operating system, and no trust in the other side.
//!
//! ```text
//!   a message of coalesced records    length  bytes  padding   length  bytes  padding  ..
//!                                     u32     ..     to 4      u32     ..     to 4
//!   its mark (the metadata)           length of the message: 30 bits; last, framed: 1 bit each
//!                                     small messages before it: 4 bytes, absent if there were none
//!   a small message (a fast packet)   its word is length: 8 bits, framed: 1, place: 6,
//!                                     messages with tickets before it: 17
//!   a grant (a ticket on its way)     key: 8   number: 4   size, refused: 4      one cache line
//!   a record in an aperture           length: 12, with its highest bit   offset: 8   length: 4
//!   an ask for a larger buffer        number: 14 bits   pages: 18 bits           a fast packet's word
//! ```
//! All little-endian. A message's number is that of its ticket or its place: so numbers cannot be
//! forged, repeated or skipped, and a link may reorder freely. Each message of one kind tells how
//! many of the other kind were sent before it, so that both are taken in one order. Never: a panic,
//! or a range outside the message, for any bytes.

use alloc::{boxed::Box, collections::VecDeque, vec};
use core::ops::Range;

/// Bytes before each coalesced record.
pub(crate) const HEAD_BYTES: usize = 4;
/// Longest message: 30 bits, in whole pages.
pub(crate) const MESSAGE_BYTES_MAX: usize = (1 << 30) - PAGE;
/// The unit of an ask.
pub(crate) const PAGE: usize = 4096;
/// Most tickets out at one time: they fit into the growth answer, and the number's bits in an ask
/// distinguish them.
pub(crate) const TICKETS_MAX: u32 = 256;

/// Coalesced records that make no sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RecordsError {
    /// A record that reaches beyond its message.
    #[error("a record of {length} bytes at {at} reaches beyond its message of {message} bytes")]
    Record { at: usize, length: usize, message: usize },
    /// Too few bytes for a length.
    #[error("{0} bytes behind the last record of a message are no record")]
    Rest(usize),
}

/// Puts a record behind `fill` bytes of coalesced ones; returns the new count, or `None` if it does
/// not fit.
#[inline]
pub(crate) fn put(buffer: &mut [u8], fill: usize, record: &[u8]) -> Option<usize> {
    let room = buffer.get_mut(fill..)?;
    let (head, room) = room.split_first_chunk_mut::<HEAD_BYTES>()?;
    let padded = record.len().checked_next_multiple_of(4)?;
    let room = room.get_mut(..padded)?;
    *head = (record.len() as u32).to_le_bytes();
    room[..record.len()].copy_from_slice(record);
    Some(fill + HEAD_BYTES + padded)
}

/// The only record of `fill` bytes of coalesced ones, if there is no other. A record in an aperture
/// does not count: its length is more than there is.
#[inline]
pub(crate) fn alone(buffer: &[u8], fill: usize) -> Option<&[u8]> {
    let length = u32::from_le_bytes(*buffer.first_chunk::<HEAD_BYTES>()?) as usize;
    let end = HEAD_BYTES.checked_add(length)?;
    if end.checked_next_multiple_of(4)? == fill { buffer.get(HEAD_BYTES..end) } else { None }
}

/// The record at `at` of a message of coalesced ones, and the offset of the next one; `None` at the
/// end.
#[inline]
pub(crate) fn next(
    message: &[u8],
    at: usize,
) -> Result<Option<(Range<usize>, usize)>, RecordsError> {
    let rest = message.get(at..).unwrap_or(&[]);
    let Some((head, rest)) = rest.split_first_chunk::<HEAD_BYTES>() else {
        return if rest.is_empty() { Ok(None) } else { Err(RecordsError::Rest(rest.len())) };
    };
    let length = u32::from_le_bytes(*head) as usize;
    // 2^32 and a little fits into 64 bits; on smaller machines the record does not fit either.
    match length.checked_next_multiple_of(4) {
        Some(padded) if padded <= rest.len() => {
            let start = at + HEAD_BYTES;
            Ok(Some((start..start + length, start + padded)))
        }
        _ => Err(RecordsError::Record { at, length, message: message.len() }),
    }
}

/// A length with this bit marks a frame that gives the position of the record's bytes in an
/// aperture.
const FAR: u32 = 1 << 31;
const FAR_BYTES: usize = 12;

/// The position of a record's bytes in an aperture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FarRecord {
    pub offset: u64,
    pub length: u32,
}

/// [`put`] for a record in an aperture.
pub(crate) fn put_far(buffer: &mut [u8], fill: usize, far: FarRecord) -> Option<usize> {
    let mut bytes = [0; FAR_BYTES];
    bytes[..8].copy_from_slice(&far.offset.to_le_bytes());
    bytes[8..].copy_from_slice(&far.length.to_le_bytes());
    let end = put(buffer, fill, &bytes)?;
    let head = FAR | FAR_BYTES as u32;
    buffer[fill..fill + HEAD_BYTES].copy_from_slice(&head.to_le_bytes());
    Some(end)
}

/// [`next`] after it returned an error: the frame of a record in an aperture, if it is one.
pub(crate) fn next_far(message: &[u8], at: usize) -> Option<(Range<usize>, usize)> {
    let (head, rest) = message.get(at..)?.split_first_chunk::<HEAD_BYTES>()?;
    let is_far = u32::from_le_bytes(*head) == FAR | FAR_BYTES as u32;
    let start = at + HEAD_BYTES;
    (is_far && rest.len() >= FAR_BYTES).then_some((start..start + FAR_BYTES, start + FAR_BYTES))
}

impl FarRecord {
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (offset, length) = bytes.split_first_chunk::<8>()?;
        let offset = u64::from_le_bytes(*offset);
        Some(Self { offset, length: u32::from_le_bytes(length.try_into().ok()?) })
    }
}

/// The sender's plan of an aperture: records one behind the other, each in one piece, as a ring.
/// The receiver reports how many it has released.
#[derive(Debug)]
pub(crate) struct ApertureSpace {
    bytes: u64,
    /// Positions count on; the offset is the position modulo `bytes`.
    head: u64,
    tail: u64,
    /// The end of each record that is not released.
    ends: VecDeque<u64>,
    released: u64,
}

impl ApertureSpace {
    pub fn new(bytes: u64) -> Self {
        Self { bytes, head: 0, tail: 0, ends: VecDeque::new(), released: 0 }
    }

    /// The position for a record of `length` bytes, if there is room.
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
        // A record that fits into the whole fits into an empty one.
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

/// The description of a message with a ticket, in its metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    /// Coalesced records; otherwise one record as it is.
    pub framed: bool,
    /// The last message. A framed one of no bytes holds no record.
    pub last: bool,
    /// Bytes.
    pub length: u32,
    /// Small messages that were sent before it, modulo 2^32.
    pub small_before: u32,
}

impl Mark {
    pub fn to_bytes(self) -> [u8; 8] {
        let flags = (self.framed as u32) << 31 | (self.last as u32) << 30;
        let word = (flags | self.length & LENGTH_MASK) as u64;
        (word | (self.small_before as u64) << 32).to_le_bytes()
    }

    /// The number of these bytes that are sent.
    pub fn len(self) -> usize {
        if self.small_before == 0 { 4 } else { 8 }
    }

    /// `None`: not the length of a mark.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (word, rest) = bytes.split_first_chunk()?;
        let word = u32::from_le_bytes(*word);
        let small_before = match rest {
            [] => 0,
            before => u32::from_le_bytes(before.try_into().ok()?),
        };
        Some(Self {
            framed: word >> 31 & 1 == 1,
            last: word >> 30 & 1 == 1,
            length: word & LENGTH_MASK,
            small_before,
        })
    }
}

/// Places for small messages, and bytes of each.
pub(crate) const PLACES: u64 = 64;
pub(crate) const PLACE_BYTES: usize = 384;
/// The receiver's report to its sender: how many have been freed.
pub(crate) const FREED_BYTES: usize = 8;

const BEFORE_MASK: u32 = (1 << 16) - 1;

/// The description of a small message, in the word of its packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Small {
    /// Bytes. Those of the packet may be more.
    pub length: u32,
    pub framed: bool,
    /// Its number, modulo the places.
    pub place: u32,
    /// Messages with tickets that were sent before it, modulo 2^16.
    pub tickets_before: u32,
}

impl Small {
    #[inline]
    pub fn to_word(self) -> u32 {
        self.length | (self.framed as u32) << 9 | self.place << 10 | self.tickets_before << 16
    }

    #[inline]
    pub fn from_word(word: u32) -> Self {
        Self {
            length: word & 0x1ff,
            framed: word >> 9 & 1 == 1,
            place: word >> 10 & 63,
            tickets_before: word >> 16,
        }
    }
}

/// The small messages that have come, and the places that are still in use. Messages `freed..freed
/// + PLACES` each have a place of their own, their number modulo the places.
#[derive(Debug)]
pub(crate) struct MessagePlaces {
    freed: u64,
    taken: u64,
    /// One bit for each place.
    arrived: u64,
    words: [u32; PLACES as usize],
    /// The value of `freed` last reported to the sender.
    told: u64,
    /// The value of `freed` at which the next report is due.
    due_at: u64,
}

impl MessagePlaces {
    pub fn new() -> Self {
        let words = [0; PLACES as usize];
        Self { freed: 0, taken: 0, arrived: 0, words, told: 0, due_at: PLACES / 2 }
    }

    /// How many have been taken.
    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// A small message is there, after `tickets` messages with tickets were taken, when at most
    /// `out` more can have been sent. `false`: its place is in use, or its word makes no sense.
    #[inline]
    pub fn arrive(&mut self, word: u32, tickets: u64, out: u64) -> bool {
        let small = Small::from_word(word);
        let after = (small.place as u64).wrapping_sub(self.taken) % PLACES;
        let bit = 1 << small.place;
        let ahead = small.tickets_before.wrapping_sub(tickets as u32) & BEFORE_MASK;
        let is_good = self.taken + after < self.freed + PLACES
            && self.arrived & bit == 0
            && small.length as usize <= PLACE_BYTES
            && ahead as u64 <= out;
        if is_good {
            self.arrived |= bit;
            self.words[small.place as usize] = word;
        }
        is_good
    }

    /// Whether the next one has come.
    #[inline]
    pub fn has_next(&self) -> bool {
        self.arrived >> (self.taken % PLACES) & 1 == 1
    }

    /// Takes the next one, if it has come and just `tickets` messages with tickets were before it.
    #[inline]
    pub fn take(&mut self, tickets: u64) -> Option<Small> {
        if !self.has_next() {
            return None;
        }
        let place = self.taken % PLACES;
        let small = Small::from_word(self.words[place as usize]);
        if small.tickets_before != tickets as u32 & BEFORE_MASK {
            return None;
        }
        self.arrived &= !(1 << place);
        self.taken += 1;
        // The sender may have no place left: one is much to it.
        if self.taken >= self.told + PLACES {
            self.due_at = self.told + 1;
        }
        Some(small)
    }

    /// [`arrive`](Self::arrive) and [`take`](Self::take) in one, for a message that is the next of all
    /// and one record of up to `longest` bytes, at most those of a place. `false`: nothing was done.
    #[inline]
    pub fn pass(&mut self, word: u32, tickets: u64, longest: u32) -> bool {
        let place = (self.taken % PLACES) as u32;
        let next = Small { length: 0, framed: false, place, tickets_before: tickets as u32 };
        // It differs from the expected word in its length alone.
        let is_next = word.wrapping_sub(next.to_word()) <= longest && self.arrived == 0;
        // Using the last place that the sender knows to be free makes a report due.
        let passes = is_next && self.taken + 1 < self.told + PLACES;
        self.taken += passes as u64;
        passes
    }

    /// The first place in use, whose message was taken, is free.
    #[inline]
    pub fn free(&mut self) {
        debug_assert!(self.freed < self.taken);
        self.freed += 1;
    }

    /// Whether a report to the sender is due: half the places are free again, or it may have no
    /// place left.
    #[inline]
    pub fn is_due(&self) -> bool {
        self.freed >= self.due_at
    }

    pub fn freed(&self) -> u64 {
        self.freed
    }

    /// The report was sent.
    pub fn tell(&mut self) {
        self.told = self.freed;
        let has_none = self.taken >= self.told + PLACES;
        self.due_at = self.told + if has_none { 1 } else { PLACES / 2 };
    }
}

/// The part of a ticket that differs from one to the next. It arrives whole: 16 bytes are one
/// packet, one line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TicketGrant {
    pub key: u64,
    /// Low half of the ticket's number.
    pub number: u32,
    /// Bytes that the message may have.
    pub size: u32,
    /// A larger buffer was asked for, and there will not be one.
    pub refused: bool,
}

pub(crate) const GRANT_BYTES: usize = 16;

impl TicketGrant {
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

/// The tickets that are out, and the messages that have come with them. Tickets `taken..armed` each
/// have a slot of their own, their number modulo the slots.
#[derive(Debug)]
pub(crate) struct Window {
    taken: u64,
    armed: u64,
    arrived: Box<[bool]>,
    /// How many have come and wait: usually 0, and then no check is needed.
    waiting: u32,
}

impl Window {
    /// `slots` tickets, from number 0 on, are out.
    pub fn new(slots: u32) -> Self {
        let arrived = vec![false; slots as usize].into();
        Self { taken: 0, armed: slots as u64, arrived, waiting: 0 }
    }

    fn slots(&self) -> u64 {
        self.arrived.len() as u64
    }

    /// The slot of a ticket.
    pub fn slot(&self, number: u64) -> usize {
        (number % self.slots()) as usize
    }

    /// The next message in order.
    pub fn expected(&self) -> u64 {
        self.taken
    }

    /// The message of a slot is complete. `false`: no ticket of that slot is out, or it was used.
    pub fn arrive(&mut self, slot: usize) -> bool {
        let is_open = self.is_open(slot);
        if is_open {
            self.arrived[slot] = true;
            self.waiting += 1;
        }
        is_open
    }

    fn is_open(&self, slot: usize) -> bool {
        let out = self.armed - self.taken;
        let after = (slot as u64 + self.slots() - self.taken % self.slots()) % self.slots();
        slot < self.arrived.len() && after < out && !self.arrived[slot]
    }

    /// The ticket that an [`ask`] names, and the bytes; `None`: no such ticket is out and unused.
    pub fn asked(&self, word: u32) -> Option<(u64, usize)> {
        let mask = NUMBER_MASK;
        let number =
            (self.taken..self.armed).find(|number| *number as u32 & mask == word & mask)?;
        let bytes = (word >> NUMBER_BITS) as usize * PAGE;
        self.is_unused(number).then_some((number, bytes))
    }

    /// Whether a ticket is out, and its message has not come.
    pub fn is_unused(&self, number: u64) -> bool {
        (self.taken..self.armed).contains(&number) && self.is_open(self.slot(number))
    }

    /// Whether the next message in order has arrived.
    #[inline]
    pub fn is_ready(&self) -> bool {
        self.waiting > 0 && self.taken < self.armed && self.arrived[self.slot(self.taken)]
    }

    /// Takes the next message in order, if it has arrived.
    pub fn take(&mut self) -> Option<u64> {
        if !self.is_ready() {
            return None;
        }
        let number = self.taken;
        let slot = self.slot(number);
        self.arrived[slot] = false;
        self.waiting -= 1;
        self.taken += 1;
        Some(number)
    }

    /// Tickets that are out.
    #[inline]
    pub fn out(&self) -> u64 {
        self.armed - self.taken
    }

    /// Slots without a ticket.
    #[inline]
    pub fn unarmed(&self) -> u64 {
        self.slots() - self.out()
    }

    /// Whether half of the slots are without a ticket.
    #[inline]
    pub fn is_short(&self) -> bool {
        self.out() * 2 <= self.slots()
    }

    /// The next ticket is out, if a slot is free for it.
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
        assert!(matches!(next(&message[..8], 0), Err(RecordsError::Record { length: 8, .. })));
        assert_eq!(next(&message[..3], 0), Err(RecordsError::Rest(3)));
        message[..4].fill(0xff);
        assert!(matches!(next(&message, 0), Err(RecordsError::Record { .. })));
        assert_eq!(put(&mut message, 0, b"123456789"), None);
    }

    #[test]
    fn a_record_is_alone_where_nothing_but_its_padding_is_behind_it() {
        let mut buffer = [0xff; 32];
        assert_eq!(alone(&buffer, 0), None);
        for record in [&b""[..], b"1", b"1234", b"12345"] {
            let fill = put(&mut buffer, 0, record).unwrap();
            assert_eq!(alone(&buffer, fill), Some(record));
            // Also bytes of an earlier record.
            let more = put(&mut buffer, fill, b"").unwrap();
            assert_eq!((alone(&buffer, more), alone(&buffer, fill)), (None, Some(record)));
        }
        let far = put_far(&mut buffer, 0, FarRecord { offset: 0, length: 0 }).unwrap();
        assert_eq!(alone(&buffer, far), None);
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
    fn a_small_message_is_not_taken_into_a_place_in_use_nor_beyond_the_tickets() {
        let mut places = MessagePlaces::new();
        let small = |place, tickets_before| {
            Small { length: 1, framed: false, place, tickets_before }.to_word()
        };
        assert!(places.arrive(small(1, 0), 0, 2) && !places.arrive(small(1, 0), 0, 2), "used");
        assert_eq!(places.take(0), None, "the first has not come");
        assert!(places.arrive(small(0, 0), 0, 2));
        assert!(places.take(0).is_some() && places.take(0).is_some() && !places.has_next());
        assert!(!places.arrive(small(0, 0), 0, 2), "it was taken and is not free");
        places.free();
        assert!(places.arrive(small(0, 0), 0, 2));
        let long = Small { length: PLACE_BYTES as u32 + 1, ..Small::from_word(small(2, 0)) };
        assert!(!places.arrive(long.to_word(), 0, 2));
        // With two tickets out, it comes after 0, 1 or 2 of their messages.
        assert!(!places.arrive(small(2, 3), 0, 2) && !places.arrive(small(2, 0), 1, 2));
        assert!(places.arrive(small(2, 1), 0, 2));
        assert_eq!(places.take(0), None);
        assert!(places.take(1).is_some());
    }

    #[test]
    fn the_sender_is_told_of_free_places_by_halves_and_when_it_has_none() {
        let mut places = MessagePlaces::new();
        let take = |places: &mut MessagePlaces| {
            let place = (places.taken() % PLACES) as u32;
            let small = Small { length: 0, framed: false, place, tickets_before: 0 };
            assert!(places.arrive(small.to_word(), 0, 1) && places.take(0).is_some());
        };
        for i in 1..=PLACES / 2 {
            assert!(!places.is_due());
            take(&mut places);
            places.free();
            assert_eq!(places.freed(), i);
        }
        assert!(places.is_due());
        places.tell();
        assert!(!places.is_due());
        for _ in 0..PLACES {
            take(&mut places);
        }
        assert!(!places.is_due(), "there is nothing to tell");
        places.free();
        assert!(places.is_due(), "one is much to who has none");
    }

    #[test]
    fn a_record_in_an_aperture_is_none_of_a_plain_stream() {
        let mut message = [0; 16];
        let far = FarRecord { offset: 1 << 33, length: 7 };
        assert_eq!(put_far(&mut message, 0, far), Some(16));
        assert!(next(&message, 0).is_err());
        assert_eq!(next_far(&message, 0), Some((4..16, 16)));
        assert_eq!(FarRecord::from_bytes(&message[4..16]), Some(far));
        assert_eq!(next_far(&message[..15], 0), None);
        assert_eq!(put_far(&mut message, 1, far), None);
    }

    proptest! {
        // Against a map of the records' positions.
        #[test]
        fn records_in_an_aperture_never_overlap(
            steps in proptest::collection::vec(
                (any::<bool>(), 0u64..9000),
                if cfg!(miri) { 40 } else { 200 },
            )
        ) {
            let mut space = ApertureSpace::new(8192);
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

        // The walk ends, and stays inside, for any bytes.
        #[test]
        fn any_bytes_are_records_or_an_error(
            bytes in proptest::collection::vec(
                prop_oneof![Just(0u8), Just(4), any::<u8>()],
                0..if cfg!(miri) { 40 } else { 200 },
            )
        ) {
            let mut at = 0;
            while let Ok(Some((range, after))) = next(&bytes, at) {
                prop_assert!(range.end <= bytes.len() && after > at && after <= bytes.len());
                at = after;
            }
        }

        #[test]
        fn marks_and_grants_survive(word in any::<u32>(), bytes in any::<[u8; 16]>()) {
            let mark = Mark::from_bytes(&word.to_le_bytes()).unwrap();
            prop_assert_eq!(&mark.to_bytes()[..mark.len()], &word.to_le_bytes());
            let mark = Mark { small_before: word | 1, ..mark };
            prop_assert_eq!((Mark::from_bytes(&mark.to_bytes()), mark.len()), (Some(mark), 8));
            prop_assert_eq!(Small::from_word(word).to_word(), word);
            prop_assert_eq!(TicketGrant::from_bytes(bytes).to_bytes(), bytes);
        }

        // For any reordering by a link: small messages and those with tickets are taken in the
        // order of sending, each once.
        #[test]
        fn both_kinds_are_taken_in_one_order(slots in 1u32..5, choices in proptest::collection::vec(any::<u16>(), 600)) {
            let (mut window, mut places) = (Window::new(slots), MessagePlaces::new());
            // The sender's tickets, and its count of sent messages of each kind.
            let (mut armed, mut next, mut small) = (slots as u64, 0, 0);
            // Its messages in order, and those on the way: their place in that, and a word or not.
            let (mut sent, mut expected, mut on_the_way) = (0u64, 0u64, Vec::new());
            let mut befores = VecDeque::new();
            let (mut held, mut freed) = (0, 0);
            let mut of_ticket = VecDeque::new();
            let mut of_small = VecDeque::new();
            for choice in choices {
                match choice % 5 {
                    0 if small - freed < PLACES => {
                        let place = (small % PLACES) as u32;
                        let length = choice as u32 % 129;
                        let word = Small { length, framed: false, place, tickets_before: next as u32 };
                        on_the_way.push((u64::MAX, word.to_word()));
                        of_small.push_back(sent);
                        (small, sent) = (small + 1, sent + 1);
                    }
                    1 if next < armed => {
                        on_the_way.push((next, 0));
                        befores.push_back(small);
                        of_ticket.push_back(sent);
                        (next, sent) = (next + 1, sent + 1);
                    }
                    2 if !on_the_way.is_empty() => {
                        let (ticket, word) = on_the_way.swap_remove(choice as usize / 5 % on_the_way.len());
                        if ticket == u64::MAX {
                            prop_assert!(places.arrive(word, window.expected(), window.out()));
                            prop_assert!(!places.arrive(word, window.expected(), window.out()));
                        } else {
                            prop_assert!(window.arrive(window.slot(ticket)));
                        }
                    }
                    3 => loop {
                        if places.take(window.expected()).is_some() {
                            prop_assert_eq!(of_small.pop_front(), Some(expected));
                            held += 1;
                        } else if window.is_ready() && befores[0] == places.taken() {
                            window.take();
                            befores.pop_front();
                            prop_assert_eq!(of_ticket.pop_front(), Some(expected));
                        } else {
                            let both = window.is_ready() && places.has_next();
                            prop_assert!(!both, "one of them is the next");
                            break;
                        }
                        expected += 1;
                    },
                    _ => {
                        if held > 0 {
                            held -= 1;
                            places.free();
                        }
                        if places.is_due() {
                            freed = places.freed();
                            places.tell();
                        }
                        armed += window.arm().is_some() as u64;
                    }
                }
            }
        }

        // For any reordering by a link: messages are taken in the order of their numbers, and no
        // more are kept than tickets were out.
        #[test]
        fn messages_are_taken_in_order(slots in 1u32..9, choices in proptest::collection::vec(any::<u16>(), 300)) {
            let mut window = Window::new(slots);
            let mut on_the_way: Vec<u64> = (0..slots as u64).collect();
            let mut expected = 0;
            for choice in choices {
                match choice % 3 {
                    0 if !on_the_way.is_empty() => {
                        let number = on_the_way.swap_remove(choice as usize / 3 % on_the_way.len());
                        prop_assert!(window.arrive(window.slot(number)));
                        prop_assert!(!window.arrive(window.slot(number)));
                    }
                    1 => while let Some(number) = window.take() {
                        prop_assert_eq!(number, expected);
                        expected += 1;
                    },
                    _ => on_the_way.extend(window.arm()),
                }
            }
            while window.arm().is_some_and(|number| { on_the_way.push(number); true }) {}
            on_the_way.iter().for_each(|number| assert!(window.arrive(window.slot(*number))));
            while let Some(number) = window.take() {
                prop_assert_eq!(number, expected);
                expected += 1;
            }
            prop_assert_eq!(window.unarmed(), slots as u64);
        }
    }
}
