//! One direction of a shared-memory link: one process writes packets, the other reads them.
//!
//! ```text
//!   writer                              reader
//!   push()      ---- WRITTEN ---->      peek()
//!   (refresh)   <---- FREED ------      release()
//! ```
//! WRITTEN: a packet's first word, Release/Acquire: the packet's bytes are complete. Its low half
//! is the *stamp* of the lap; a line whose stamp is another lap's holds no packet yet.
//! FREED: lines read so far, Release/Acquire: these bytes are no longer read.
//!
//! A line that held a body in the lap before could hold, in its first word, any bytes, this lap's
//! stamp among them. So before the writer commits a packet, it clears the first word of the line
//! behind it, if a body may have lain there: the reader looks only at the line behind the last
//! packet that it read. Short messages alone never need it.
//!
//! Both keep their own description of the ring in private memory (CLAN, 3.1) and believe nothing
//! that they read. Never: the reader trusts a length that it has not copied out and checked; the
//! writer trusts a FREED that it has not compared with its own count.

use super::cells::{
    Line, Lines, Ordering, Word, copy_in, copy_into_line, copy_out, copy_out_of_line,
    prefetch_for_reading, prefetch_for_writing,
};
use super::{Body, Full, Source, Transmit};
use crate::wire::{
    BodyLayout, FlowWords, HEADER_WORDS, Header, LINE_BYTES, SHORT_HEADER_WORDS, Varying,
};
use alloc::boxed::Box;

/// Lines ahead of the one just written that are asked for. The reader has had each line last, so
/// without this every store waits for it to come back: with 8, cores that lie far apart carry 44
/// million short messages a second instead of 18. Measured: bench/README.md.
const PREFETCH_LINES: u64 = 8;

/// Flows that either side of a ring remembers: the writer knows by them whether a short header will do,
/// the reader puts the whole one together again.
pub const FLOWS: usize = 32;
/// In the upper half of a packet's first word: it has a short header ..
const SHORT: u32 = 1 << 31;
/// .. and this is the number of its flow.
const FLOW_SHIFT: u32 = 16;
/// Most data bytes behind a short header: the rest of that half.
const SHORT_BYTES_MAX: u32 = (1 << FLOW_SHIFT) - 1;
/// In word 5 of a whole header: one more than the number that it tells.
const TELL_SHIFT: u32 = 16;
/// What a writer remembers, by the numbers of flows.
#[derive(Debug)]
struct ToldFlows {
    /// The flow that the reader was told.
    flows: [FlowWords; FLOWS],
    /// A digest of the one that last sent a whole header. If two have the same, one is told early.
    last: [u64; FLOWS],
}
/// No flow: no header has these words.
const NO_FLOW: FlowWords = [u64::MAX; 4];

/// The one number that a flow may have. Two flows of one number in turn send whole headers.
#[inline(always)]
fn number_of(flow: &FlowWords) -> usize {
    // The slot and the entry.
    ((flow[0] >> 32) ^ flow[1]) as usize % FLOWS
}

/// Word by word: a comparison of all at once would want them in memory.
#[inline(always)]
fn is_same(a: &FlowWords, b: &FlowWords) -> bool {
    a[0] == b[0] && a[1] == b[1] && a[2] == b[2] && a[3] == b[3]
}

/// Fewest lines of a ring. Two would do for messages of one line.
pub const RING_LINES_MIN: usize = 8;
/// Most lines of a ring: 1 GiB.
pub const RING_LINES_MAX: usize = 1 << 24;

/// Data bytes of the largest packet in a ring of `lines` lines: a quarter of the ring, so that
/// writer and reader can work on different packets, less a line for header and one for metadata.
pub const fn packet_bytes_max(lines: usize) -> u32 {
    let quarter = lines / 4;
    ((if quarter < 3 { 1 } else { quarter - 2 }) * LINE_BYTES) as u32
}

/// Lines of a packet of `packet_bytes` data and metadata bytes, at most.
pub const fn packet_lines_max(packet_bytes: u32) -> u64 {
    2 + (packet_bytes as u64).div_ceil(LINE_BYTES as u64)
}

/// The other side wrote values that an honest side never writes. The ring must not be used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RingViolation {
    /// A packet claims more lines than a packet can have.
    #[error("a packet claims {lines} lines; in a ring of {capacity} at most {allowed} are allowed")]
    PacketTooLong {
        /// Lines claimed.
        lines: u64,
        /// Lines of the largest packet.
        allowed: u64,
        /// Lines of the ring.
        capacity: u64,
    },
    /// A packet has a number of a flow that was not told.
    #[error("a packet is of flow {number}, which was not told; there are at most {FLOWS}")]
    UnknownFlow {
        /// The number.
        number: u32,
    },
    /// FREED went back, or past the written lines.
    #[error(
        "the reader claims to have freed line {freed}, of {written} written and {before} freed before"
    )]
    FreedOutOfRange {
        /// The FREED that the reader claims.
        freed: u64,
        /// Lines written so far.
        written: u64,
        /// Lines that it had freed before.
        before: u64,
    },
}

#[inline(always)]
fn stamp(position: u64, lines_log2: u32) -> u32 {
    // Never zero: a cleared line is no packet in any lap.
    0x8000_0000 | (position >> lines_log2) as u32
}

/// The index of a position's line. It is computed from the number of lines: once the compiler knows
/// that this is not zero, no bounds check remains.
#[inline(always)]
fn place(lines: &[Line], position: u64) -> usize {
    position as usize & (lines.len() - 1)
}

/// The writing half. `freed` is the word that the reader writes.
#[derive(Debug)]
pub struct RingWriter<L, W> {
    lines: L,
    freed: W,
    mask: u64,
    lines_log2: u32,
    packet_bytes: u32,
    /// Most bytes of a body behind a short header.
    short_bytes: u32,
    /// Lines written since the ring was made.
    written: u64,
    /// Those of them that are not the first of their packet.
    further: u64,
    /// The last FREED that was read and passed the check.
    freed_seen: u64,
    /// Lines before this position may be written without another look at FREED. It is not beyond
    /// the end of the lap, so all of them have the stamp `stamp`.
    room_until: u64,
    stamp: u32,
    /// Before this position, a line may begin with the bytes of a body.
    body_until: u64,
    flows: Option<Box<ToldFlows>>,
    violation: Option<RingViolation>,
}

impl<L: Lines, W: Word> RingWriter<L, W> {
    /// Over lines that are all zero. `packet_bytes` is lowered to the ring's limit, and raised
    /// to a line: the first packet of a message must hold its metadata.
    pub fn new(lines: L, freed: W, packet_bytes: u32) -> Self {
        let count = lines.lines().len();
        assert!(count.is_power_of_two() && (RING_LINES_MIN..=RING_LINES_MAX).contains(&count));
        let packet_bytes = packet_bytes.clamp(LINE_BYTES as u32, packet_bytes_max(count));
        Self {
            mask: count as u64 - 1,
            lines_log2: count.trailing_zeros(),
            packet_bytes,
            short_bytes: packet_bytes.min(SHORT_BYTES_MAX),
            lines,
            freed,
            written: 0,
            further: 0,
            freed_seen: 0,
            room_until: count as u64 - 1,
            stamp: stamp(0, 0),
            body_until: 0,
            flows: None,
            violation: None,
        }
    }

    /// The reader's violation of the protocol, if there was one.
    #[inline]
    pub fn violation(&self) -> Option<RingViolation> {
        self.violation
    }

    /// The lines.
    pub fn lines(&self) -> &L {
        &self.lines
    }

    /// Gives back what it remembers of flows: each tells its number anew.
    pub fn forget_flows(&mut self) {
        self.flows = None;
    }

    /// Lines of the ring.
    #[inline]
    pub fn capacity(&self) -> u64 {
        self.mask + 1
    }

    /// Lines written since the ring was made.
    #[inline]
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Packets written since the ring was made.
    #[inline]
    pub fn packets(&self) -> u64 {
        self.written - self.further
    }

    /// Whether the reader claims to have read everything that was written.
    pub fn is_drained(&mut self) -> bool {
        self.refresh();
        self.freed_seen == self.written || self.violation.is_some()
    }

    /// Lines that can be written now.
    pub fn free_lines(&mut self) -> u64 {
        self.refresh();
        self.mask - (self.written - self.freed_seen)
    }

    /// Whether the reader, when last asked, had left at least half of the ring unread.
    #[inline]
    pub fn is_half_full(&mut self) -> bool {
        let half = self.capacity() / 2;
        if self.written - self.freed_seen < half {
            return false;
        }
        self.refresh();
        self.written - self.freed_seen >= half
    }

    #[cold]
    #[inline(never)]
    fn refresh(&mut self) {
        // A reader that lied once is not asked again: the ring fills and stays full.
        if self.violation.is_some() {
            return;
        }
        let freed = self.freed.word().load(Ordering::Acquire);
        if freed < self.freed_seen || freed > self.written {
            self.violation = Some(RingViolation::FreedOutOfRange {
                freed,
                written: self.written,
                before: self.freed_seen,
            });
        } else {
            self.freed_seen = freed;
        }
    }

    #[inline(always)]
    fn has_room(&mut self, lines: u64) -> bool {
        self.written + lines <= self.room_until || self.makes_room(lines)
    }

    /// One line more than the packet is kept free, so that the line behind it may be cleared.
    #[cold]
    #[inline(never)]
    fn makes_room(&mut self, lines: u64) -> bool {
        if self.written + lines > self.freed_seen + self.mask {
            self.refresh();
        }
        let until = self.freed_seen + self.mask;
        self.stamp = stamp(self.written, self.lines_log2);
        self.room_until = until.min((self.written | self.mask) + 1);
        self.written + lines <= until
    }

    /// [`Transmit::transmit`] of a packet whose header is given in its parts: `data` is
    /// `varying.length` bytes, `metadata` as many as the flow says. `Full`, too, if it is
    /// larger than the ring's packets.
    #[inline(always)]
    pub fn push<S: Source>(
        &mut self,
        flow: FlowWords,
        varying: Varying,
        metadata: &[u8],
        data: S,
    ) -> Result<(), Full> {
        let number = number_of(&flow);
        let is_known =
            matches!(&self.flows, Some(told) if is_same(&told.flows[number % FLOWS], &flow));
        let Varying { offset, length, word } = varying;
        let body_bytes = metadata.len() as u64 + length as u64;
        let alone = BodyLayout { at: SHORT_HEADER_WORDS * 8, lines: 1 };
        let is_alone = body_bytes <= (LINE_BYTES - alone.at) as u64;
        let fits = is_alone || body_bytes <= self.short_bytes as u64;
        if !is_known || offset >> 32 != 0 || !fits {
            let [places, entry, key, rest] = flow;
            return self.push_whole(places, entry, key, rest, offset, length, word, metadata, data);
        }
        let first = SHORT | (number as u32) << FLOW_SHIFT | length;
        let words = [offset | (word as u64) << 32];
        // The same twice: the compiler makes shorter code of one line.
        match is_alone {
            true => self.write(first, alone, words, metadata, data),
            false => {
                let layout = BodyLayout::new(SHORT_HEADER_WORDS, body_bytes);
                self.write(first, layout, words, metadata, data)
            }
        }
    }

    /// With a whole header, which tells its number the second time in a row. The words of the flow
    /// come one by one, so that they need not lie in memory unless this is called.
    #[allow(clippy::too_many_arguments)]
    #[cold]
    #[inline(never)]
    fn push_whole<S: Source>(
        &mut self,
        places: u64,
        entry: u64,
        key: u64,
        rest: u64,
        offset: u64,
        length: u32,
        word: u32,
        metadata: &[u8],
        data: S,
    ) -> Result<(), Full> {
        let flow = [places, entry, key, rest];
        if length > self.packet_bytes {
            return Err(Full);
        }
        let (header, _) = Header::of_flow(&flow, &Varying { offset, length, word });
        let number = number_of(&flow);
        let digest = key ^ places.rotate_left(16) ^ entry.rotate_left(32) ^ rest.rotate_left(48);
        let new = || Box::new(ToldFlows { flows: [NO_FLOW; FLOWS], last: [0; FLOWS] });
        let told = self.flows.get_or_insert_with(new);
        let tells = told.last[number] == digest && told.flows[number] != flow;
        let [_, w1, w2, w3, w4, w5] = header.to_words();
        let words = [w1, w2, w3, w4, w5 | (tells as u64 * (number as u64 + 1)) << TELL_SHIFT];
        self.write(header.length, header.layout(), words, metadata, data)?;
        if let Some(told) = &mut self.flows {
            told.last[number] = digest;
            told.flows[number] = if tells { flow } else { told.flows[number] };
        }
        Ok(())
    }

    /// Writes a packet, with the words of its header behind the first, whose upper half is `first`.
    #[inline(always)]
    fn write<S: Source, const N: usize>(
        &mut self,
        first: u32,
        layout: BodyLayout,
        words: [u64; N],
        metadata: &[u8],
        data: S,
    ) -> Result<(), Full> {
        if !self.has_room(layout.lines) {
            return Err(Full);
        }
        // Read once each: the compiler must assume that a store to the ring changes any of them.
        let (written, lines) = (self.written, self.lines.lines());
        let at = place(lines, written);
        let line = &lines[at].0;
        for (cell, word) in line[1..].iter().zip(words) {
            cell.store(word, Ordering::Relaxed);
        }
        if !metadata.is_empty() {
            copy_in(lines, at, layout.at, metadata);
        }
        let data_at = layout.at + metadata.len();
        match data.whole() {
            Some(data) if layout.lines == 1 => copy_into_line(&lines[at], data_at, data),
            Some(data) => copy_in(lines, at, data_at, data),
            None => data.for_each(|position, piece| copy_in(lines, at, data_at + position, piece)),
        }
        let next = written + layout.lines;
        if next < self.body_until {
            lines[place(lines, next)].0[0].store(0, Ordering::Relaxed);
        }
        line[0].store((first as u64) << 32 | self.stamp as u64, Ordering::Release);
        if layout.lines > 1 {
            self.body_until = next + self.mask + 1;
            self.further += layout.lines - 1;
        }
        for ahead in 0..layout.lines.min(PREFETCH_LINES) {
            prefetch_for_writing(lines, place(lines, next + PREFETCH_LINES + ahead));
        }
        self.written = next;
        Ok(())
    }
}

impl<L: Lines, W: Word> Transmit for RingWriter<L, W> {
    #[inline(always)]
    fn packet_bytes(&self) -> u32 {
        self.packet_bytes
    }

    #[inline]
    fn transmit<S: Source>(
        &mut self,
        header: &Header,
        metadata: &[u8],
        data: S,
    ) -> Result<(), Full> {
        debug_assert_eq!(header.metadata_len as usize, metadata.len());
        assert!(header.length <= self.packet_bytes, "a packet larger than the link's");
        self.push(header.flow(), header.varying(), metadata, data)
    }
}

/// The reading half. `freed` is this process's own word, which the writer reads.
#[derive(Debug)]
pub struct RingReader<L, W> {
    lines: L,
    freed: W,
    mask: u64,
    lines_log2: u32,
    /// Lines read since the ring was made.
    read: u64,
    /// The last FREED that was written.
    published: u64,
    /// When this many have been read, FREED is written again: read lines are given back many at a
    /// time. An eighth of the ring ends here, so no lap ends before.
    publish_at: u64,
    /// The stamp of the next packet.
    stamp: u32,
    /// Lines of the largest packet. Without this bound, packets of almost the whole ring could
    /// step through it a line at a time, each copied whole.
    packet_lines: u64,
    /// By number: the flows that the writer has told.
    flows: Option<Box<[FlowWords; FLOWS]>>,
}

/// A packet whose header has been copied out of the ring and whose body has not.
#[derive(Debug)]
pub struct Packet<'a> {
    /// The private copy of the header. Not yet checked.
    pub header: Header,
    /// The reserved bits as they arrived.
    pub reserved: u32,
    /// The number of its flow, if it is of one or tells one.
    pub flow: Option<usize>,
    layout: BodyLayout,
    lines: &'a [Line],
    at: usize,
}

impl Packet<'_> {
    /// Lines to [`release`](RingReader::release) when the packet has been handled.
    #[inline(always)]
    pub fn lines(&self) -> u64 {
        self.layout.lines
    }
}

impl Body for Packet<'_> {
    #[inline(always)]
    fn words(&self) -> [u64; 2] {
        words_at(self.lines, self.at, self.layout.at)
    }

    #[inline(always)]
    fn copy_metadata(&self, to: &mut [u8]) {
        copy_out(self.lines, self.at, self.layout.at, to);
    }

    #[inline(always)]
    fn copy_data(&self, to: &mut [u8]) {
        copy_out(self.lines, self.at, self.layout.at + self.header.metadata_len as usize, to);
    }
}

/// Two words of a body of at most 16 bytes, which lies in the packet's first line.
#[inline(always)]
fn words_at(lines: &[Line], at: usize, byte: usize) -> [u64; 2] {
    let line = &lines[at].0;
    [0, 1].map(|i| line.get(byte / 8 + i).map_or(0, |word| word.load(Ordering::Relaxed)))
}

/// The first line of a packet, in memory that the writer may still be changing. Nothing has been
/// checked; only the first word has been read.
#[derive(Clone, Copy, Debug)]
pub struct FirstLine<'a> {
    first: u64,
    lines: &'a [Line],
    at: usize,
    packet_lines: u64,
}

impl<'a> FirstLine<'a> {
    /// The packet as one with a short header and no metadata; `None`: it has a whole one, or claims more
    /// lines than a packet can have. Read its parts once. `ALONE`: only if this line is all of it; the
    /// compiler makes shorter code of that.
    #[inline(always)]
    pub fn short<const ALONE: bool>(&self) -> Option<Short<'a>> {
        let length = (self.first >> 32) as u32 & SHORT_BYTES_MAX;
        let number = (self.first >> (32 + FLOW_SHIFT)) as usize;
        let number = number.checked_sub((SHORT >> FLOW_SHIFT) as usize)?;
        let mut layout = BodyLayout { at: SHORT_HEADER_WORDS * 8, lines: 1 };
        let mut fits = length as usize <= LINE_BYTES - layout.at;
        if !ALONE {
            layout = BodyLayout::new(SHORT_HEADER_WORDS, length as u64);
            fits = layout.lines <= self.packet_lines;
        }
        fits.then_some(Short { number, length, layout, lines: self.lines, at: self.at })
    }
}

/// A packet with a short header.
#[derive(Clone, Copy, Debug)]
pub struct Short<'a> {
    /// The number of its flow.
    pub number: usize,
    length: u32,
    layout: BodyLayout,
    lines: &'a [Line],
    at: usize,
}

impl Short<'_> {
    /// The rest of the header.
    #[inline(always)]
    pub fn varying(&self) -> Varying {
        let word = self.lines[self.at].0[1].load(Ordering::Relaxed);
        Varying { offset: word as u32 as u64, length: self.length, word: (word >> 32) as u32 }
    }

    /// Lines to [`release`](RingReader::release) when the packet has been handled.
    #[inline(always)]
    pub fn lines(&self) -> u64 {
        self.layout.lines
    }
}

impl Body for Short<'_> {
    #[inline(always)]
    fn words(&self) -> [u64; 2] {
        words_at(self.lines, self.at, self.layout.at)
    }

    #[inline(always)]
    fn copy_metadata(&self, to: &mut [u8]) {
        debug_assert!(to.is_empty());
    }

    #[inline(always)]
    fn copy_data(&self, to: &mut [u8]) {
        match self.layout.lines {
            1 => copy_out_of_line(&self.lines[self.at], self.layout.at, to),
            _ => copy_out(self.lines, self.at, self.layout.at, to),
        }
    }
}

impl<L: Lines, W: Word> RingReader<L, W> {
    /// Over lines that were all zero when their writer began.
    pub fn new(lines: L, freed: W) -> Self {
        let count = lines.lines().len();
        assert!(count.is_power_of_two() && (RING_LINES_MIN..=RING_LINES_MAX).contains(&count));
        Self {
            mask: count as u64 - 1,
            lines_log2: count.trailing_zeros(),
            packet_lines: packet_lines_max(packet_bytes_max(count)),
            lines,
            freed,
            read: 0,
            published: 0,
            publish_at: count as u64 / 8,
            stamp: stamp(0, 0),
            flows: None,
        }
    }

    /// The lines.
    pub fn lines(&self) -> &L {
        &self.lines
    }

    /// Lines of the ring.
    #[inline]
    pub fn capacity(&self) -> u64 {
        self.mask + 1
    }

    /// Lines read since the ring was made.
    #[inline]
    pub fn position(&self) -> u64 {
        self.read
    }

    /// Whether a packet has been committed behind the last one that was read. One load.
    #[inline(always)]
    pub fn is_ready(&self) -> bool {
        let lines = self.lines.lines();
        let line = &lines[place(lines, self.read)].0;
        line[0].load(Ordering::Acquire) as u32 == self.stamp
    }

    /// The first line of the next packet, or `None` if none has been committed.
    #[inline(always)]
    pub fn peek_line(&self) -> Option<FirstLine<'_>> {
        let lines = self.lines.lines();
        let at = place(lines, self.read);
        let first = lines[at].0[0].load(Ordering::Acquire);
        prefetch_for_reading(lines, place(lines, self.read + 1));
        let packet_lines = self.packet_lines;
        (first as u32 == self.stamp).then_some(FirstLine { first, lines, at, packet_lines })
    }

    /// The next packet, or `None` if none has been committed.
    #[inline(always)]
    pub fn peek(&mut self) -> Result<Option<Packet<'_>>, RingViolation> {
        match self.peek_line().map(|line| line.first) {
            Some(first) => self.packet(first).map(Some),
            None => Ok(None),
        }
    }

    /// The packet that begins with this word. If it tells the number of its flow, that is remembered,
    /// whether or not the packet is allowed: later ones of the flow are then checked as it is.
    #[inline(always)]
    fn packet(&mut self, first: u64) -> Result<Packet<'_>, RingViolation> {
        let lines = self.lines.lines();
        let at = place(lines, self.read);
        let word = |i: usize| lines[at].0[i].load(Ordering::Relaxed);
        let upper = (first >> 32) as u32;
        let (header, reserved, flow, header_words);
        if upper & SHORT != 0 {
            let number = (upper & !SHORT) >> FLOW_SHIFT;
            let told = self.flows.as_ref().and_then(|flows| flows.get(number as usize));
            let Some(told) = told.filter(|told| **told != NO_FLOW) else {
                return Err(RingViolation::UnknownFlow { number });
            };
            let rest = word(1);
            let (offset, length) = (rest as u32 as u64, upper & SHORT_BYTES_MAX);
            let varying = Varying { offset, length, word: (rest >> 32) as u32 };
            (header, reserved) = Header::of_flow(told, &varying);
            (flow, header_words) = (Some(number as usize), SHORT_HEADER_WORDS);
        } else {
            let last = word(5);
            let tells = (last >> TELL_SHIFT) as u8;
            let words = [first, word(1), word(2), word(3), word(4), last & !(0xff << TELL_SHIFT)];
            (header, reserved) = Header::from_words(&words);
            flow = (tells as usize).checked_sub(1);
            header_words = HEADER_WORDS;
            if let Some(number) = flow {
                if number >= FLOWS {
                    return Err(RingViolation::UnknownFlow { number: number as u32 });
                }
                let flows = self.flows.get_or_insert_with(|| Box::new([NO_FLOW; FLOWS]));
                flows[number] = [words[1], words[2], words[3], words[5] as u32 as u64];
            }
        }
        let layout = BodyLayout::new(header_words, header.body_bytes());
        if layout.lines > self.packet_lines {
            return Err(RingViolation::PacketTooLong {
                lines: layout.lines,
                allowed: self.packet_lines,
                capacity: self.mask + 1,
            });
        }
        Ok(Packet { header, reserved, flow, layout, lines, at })
    }

    /// Releases the packet of `lines` lines that was peeked at. Returns whether FREED was written,
    /// so that the caller can wake a writer that waits for room.
    #[inline(always)]
    pub fn release(&mut self, lines: u64) -> bool {
        self.read += lines;
        self.read >= self.publish_at && self.end_eighth()
    }

    #[cold]
    #[inline(never)]
    fn end_eighth(&mut self) -> bool {
        let eighth = self.capacity() / 8;
        self.publish_at = (self.read / eighth + 1) * eighth;
        self.stamp = stamp(self.read, self.lines_log2);
        self.publish()
    }

    /// Gives back the lines that have been read and not yet given back; call it when no packet is
    /// ready. Returns whether there were any.
    #[inline(always)]
    pub fn publish(&mut self) -> bool {
        let anything = self.published != self.read;
        if anything {
            self.published = self.read;
            self.freed.word().store(self.read, Ordering::Release);
        }
        anything
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::cells::{AtomicU64, Line};
    use super::*;
    use crate::wire::{
        Destination, Flags, Key, LINE_WORDS, METADATA_MAX, MetadataIndex, SlotIndex,
    };
    use alloc::{collections::VecDeque, sync::Arc, vec, vec::Vec};
    use proptest::prelude::*;

    type Writer = RingWriter<Arc<[Line]>, Arc<AtomicU64>>;
    type Reader = RingReader<Arc<[Line]>, Arc<AtomicU64>>;

    struct Ring {
        lines: Arc<[Line]>,
        freed: Arc<AtomicU64>,
        writer: Writer,
        reader: Reader,
    }

    fn ring(lines: usize) -> Ring {
        ring_at(lines, 0)
    }

    /// A ring that has carried `position` lines, all of them short packets, and is empty.
    fn ring_at(count: usize, position: u64) -> Ring {
        let lines: Arc<[Line]> = (0..count).map(|_| Line::default()).collect();
        let freed = Arc::new(AtomicU64::new(position));
        let mut writer = RingWriter::new(lines.clone(), freed.clone(), u32::MAX);
        let mut reader = RingReader::new(lines.clone(), freed.clone());
        (writer.written, writer.freed_seen) = (position, position);
        writer.room_until = position;
        (reader.read, reader.published) = (position, position);
        reader.end_eighth();
        Ring { lines, freed, writer, reader }
    }

    fn header(length: usize, metadata: usize) -> Header {
        Header {
            destination: Destination(1),
            slot: SlotIndex(2),
            metadata_index: MetadataIndex(3),
            key: Key(4),
            offset: 5,
            length: length as u32,
            delta: 6,
            metadata_len: metadata as u8,
            flags: Flags::NOTIFY,
            word: 7,
        }
    }

    /// Bytes that differ from those of other packets and from zero.
    fn bytes(length: usize, salt: usize) -> Vec<u8> {
        (0..length).map(|i| ((i + salt) % 255) as u8 + 1).collect()
    }

    impl Ring {
        fn send(&mut self, metadata: &[u8], data: &[u8]) -> Result<(), Full> {
            self.writer.transmit(&header(data.len(), metadata.len()), metadata, data)
        }

        /// Acts as an interface does: copies the bytes that the header names, then releases.
        fn receive(&mut self) -> Option<(Vec<u8>, Vec<u8>)> {
            let packet = self.reader.peek().expect("an honest writer")?;
            assert_eq!(packet.reserved, 0);
            let mut metadata = vec![0; packet.header.metadata_len as usize];
            let mut data = vec![0; packet.header.length as usize];
            assert_eq!(packet.header, header(data.len(), metadata.len()));
            packet.copy_metadata(&mut metadata);
            packet.copy_data(&mut data);
            let lines = packet.lines();
            self.reader.release(lines);
            Some((metadata, data))
        }
    }

    // By state: empty, full, wrapped.

    #[test]
    fn an_empty_ring_has_no_packet_and_is_drained() {
        let mut ring = ring(RING_LINES_MIN);
        assert!(!ring.reader.is_ready() && ring.receive().is_none());
        assert!(ring.writer.is_drained() && !ring.writer.is_half_full());
    }

    #[test]
    fn a_ring_takes_all_its_lines_but_one_and_then_says_full() {
        for count in [8, 16, 64] {
            let mut ring = ring(count);
            for i in 0..count - 1 {
                assert_eq!(ring.send(&[], &bytes(16, i)), Ok(()), "line {i} of {count}");
                assert_eq!(ring.writer.is_half_full(), i + 1 >= count / 2);
            }
            let before = words(&ring.lines);
            assert_eq!(ring.send(&[], &[]), Err(Full));
            assert_eq!(ring.send(&[], &bytes(17, 0)), Err(Full));
            assert_eq!(words(&ring.lines), before, "a refused packet leaves no trace");
            for i in 0..count - 1 {
                assert_eq!(ring.receive(), Some((vec![], bytes(16, i))));
            }
            assert_eq!(ring.receive(), None);
            ring.reader.publish();
            assert!(ring.writer.is_drained() && !ring.writer.is_half_full());
            assert_eq!(ring.send(&[], &[]), Ok(()));
            assert!(!ring.writer.is_drained());
        }
    }

    #[test]
    fn what_was_read_is_given_back_in_lots_and_the_rest_when_asked() {
        let mut ring = ring(64);
        for i in 0..20 {
            ring.send(&[], &bytes(16, i)).unwrap();
        }
        let mut published = Vec::new();
        for _ in 0..20 {
            ring.receive().unwrap();
            published.push(ring.freed.load(Ordering::Relaxed));
        }
        assert!(published[..7].iter().all(|&f| f == 0), "a store for each packet is too many");
        assert!(published[7..15].iter().all(|&f| f == 8) && published[19] == 16);
        ring.reader.publish();
        assert_eq!(ring.freed.load(Ordering::Relaxed), 20);
    }

    #[test]
    fn the_largest_packet_fits_in_every_ring_beside_another() {
        for log2 in 3..if cfg!(miri) { 6 } else { 12 } {
            let count = 1 << log2;
            let mut ring = ring(count);
            let length = ring.writer.packet_bytes() as usize;
            assert_eq!(length as u32, packet_bytes_max(count));
            for lap in 0..9 {
                let (metadata, data) = (bytes(METADATA_MAX, lap), bytes(length, lap));
                assert_eq!(ring.send(&metadata, &data), Ok(()));
                assert_eq!(ring.send(&data[..1], &data), Ok(()));
                assert_eq!(ring.receive(), Some((metadata, data.clone())));
                assert_eq!(ring.receive(), Some((data[..1].to_vec(), data)));
                ring.reader.publish();
            }
        }
    }

    #[test]
    fn every_size_of_metadata_and_data_goes_through() {
        // An interpreter takes a sample.
        let (count, step) = if cfg!(miri) { (8, 9) } else { (32, 1) };
        let mut ring = ring(count);
        for length in (0..=ring.writer.packet_bytes() as usize).step_by(step) {
            for metadata in (0..=METADATA_MAX).step_by(step) {
                let (metadata, data) = (bytes(metadata, length), bytes(length, metadata));
                ring.send(&metadata, &data).unwrap();
                assert_eq!(ring.receive(), Some((metadata, data)));
                ring.reader.publish();
            }
        }
    }

    #[test]
    fn a_packet_gathered_from_pieces_comes_out_whole() {
        struct Pieces<'a>(&'a [u8], &'a [usize]);
        impl Source for Pieces<'_> {
            fn for_each(&self, mut put: impl FnMut(usize, &[u8])) {
                let mut from = 0;
                for to in self.1.iter().copied().chain([self.0.len()]) {
                    put(from, &self.0[from..to]);
                    from = to;
                }
            }
        }
        let mut ring = ring(32);
        for (length, cuts) in [(16, &[3, 9][..]), (300, &[0, 1, 63, 64, 65, 200, 200]), (0, &[])] {
            // Twelve times, so that a piece also falls across the ring's end.
            for lap in 0..12 {
                let data = bytes(length, lap);
                ring.writer.transmit(&header(length, 0), &[], Pieces(&data, cuts)).unwrap();
                assert_eq!(ring.receive(), Some((vec![], data)));
                ring.reader.publish();
            }
        }
    }

    #[test]
    fn laps_are_counted_past_the_width_of_a_stamp() {
        for &count in if cfg!(miri) { &[8u64][..] } else { &[8, 64] } {
            let wrap = count << 31;
            let mut ring = ring_at(count as usize, wrap - 3 * count);
            for i in 0..5 * count as usize {
                let data = bytes(if i % 3 == 0 { 40 } else { 8 }, i);
                ring.send(&[], &data).unwrap();
                assert_eq!(ring.receive(), Some((vec![], data)));
                assert_eq!(ring.receive(), None);
                ring.reader.publish();
            }
            assert!(ring.reader.read > wrap);
        }
    }

    // By mechanism: stamps.

    /// A body each of whose words is a header's first word with a stamp that a reader may look for.
    fn forged(position: u64, lines_log2: u32, data_lines: usize, laps_on: u64) -> Vec<u8> {
        let mut body = Vec::new();
        for line in 0..data_lines as u64 {
            let word = stamp(position + line + (laps_on << lines_log2), lines_log2) as u64;
            for _ in 0..LINE_WORDS {
                body.extend_from_slice(&word.to_le_bytes());
            }
        }
        body
    }

    #[test]
    fn stamps_in_a_body_are_never_read_as_a_packet() {
        for laps_on in 0..3 {
            // Up to more than a lap of short packets behind the body.
            let shorts = (0..8).chain([15, 17, 40]);
            for short in shorts.filter(|short| !cfg!(miri) || [7, 15, 17].contains(short)) {
                let mut ring = ring(16);
                for round in 0..if cfg!(miri) { 4 } else { 40 } {
                    // One body line, then two: the positions drift, so that each line of the ring
                    // is in turn header, body, and the line behind a packet.
                    let lines = 1 + round % 2;
                    let at = ring.writer.written + 1;
                    let body = forged(at, 4, lines, laps_on);
                    ring.send(&[], &body).unwrap();
                    assert_eq!(ring.receive(), Some((vec![], body)));
                    assert!(!ring.reader.is_ready(), "a body's bytes were taken for a packet");
                    for i in 0..short {
                        ring.send(&[], &bytes(8, i)).unwrap();
                        assert_eq!(ring.receive(), Some((vec![], bytes(8, i))));
                        assert!(!ring.reader.is_ready(), "a body's bytes were taken for a packet");
                    }
                    ring.reader.publish();
                }
            }
        }
    }

    #[test]
    fn a_packet_is_not_seen_before_its_first_word_is() {
        let mut ring = ring(16);
        ring.send(&bytes(60, 0), &bytes(100, 0)).unwrap();
        let word = ring.lines[0].0[0].swap(0, Ordering::Relaxed);
        assert!(!ring.reader.is_ready() && ring.receive().is_none());
        ring.lines[0].0[0].store(word, Ordering::Relaxed);
        assert_eq!(ring.receive(), Some((bytes(60, 0), bytes(100, 0))));
    }

    // By mechanism: writes by the other side.

    fn words(lines: &[Line]) -> Vec<u64> {
        lines.iter().flat_map(|line| &line.0).map(|word| word.load(Ordering::Relaxed)).collect()
    }

    #[test]
    fn a_length_that_no_packet_can_have_is_a_violation() {
        for count in [8, 64] {
            let allowed = packet_lines_max(packet_bytes_max(count));
            let lines_of = |length| BodyLayout::new(HEADER_WORDS, length as u64).lines;
            let data_max = (0..).take_while(|length| lines_of(*length) <= allowed).last().unwrap();
            for length in [data_max + 1, data_max + 64, 1 << 30, i32::MAX as usize] {
                let mut ring = ring(count);
                let word = (length as u64) << 32 | stamp(0, 3) as u64;
                ring.lines[0].0[0].store(word, Ordering::Relaxed);
                let lines = lines_of(length);
                assert_eq!(
                    ring.reader.peek().unwrap_err(),
                    RingViolation::PacketTooLong { lines, allowed, capacity: count as u64 }
                );
            }
            // The longest that is possible at all is read, and stays inside the ring.
            let mut ring = ring(count);
            let length = data_max;
            let words = header(length, 0).to_words();
            for (cell, word) in ring.lines[0].0.iter().zip(words).skip(1) {
                cell.store(word, Ordering::Relaxed);
            }
            ring.lines[0].0[0].store(words[0] | stamp(0, 3) as u64, Ordering::Relaxed);
            assert_eq!(ring.receive(), Some((vec![], vec![0; length])));
        }
    }

    #[test]
    fn the_third_packet_of_a_flow_is_shorter_and_arrives_with_its_whole_header() {
        let mut ring = ring(64);
        let mut lines = Vec::new();
        for i in 0..4 {
            let before = ring.writer.written;
            ring.send(&[], &bytes(48, i)).unwrap();
            lines.push(ring.writer.written - before);
            assert_eq!(ring.receive(), Some((vec![], bytes(48, i))));
        }
        assert_eq!(lines, [2, 2, 1, 1]);
        // An offset that has no place in a short header.
        let far = Header { offset: 1 << 32, ..header(8, 0) };
        ring.writer.transmit(&far, &[], &[1; 8][..]).unwrap();
        assert_eq!(ring.reader.peek().unwrap().unwrap().header, far);
    }

    #[test]
    fn a_flow_that_was_not_told_is_a_violation() {
        for number in [0, 1, FLOWS as u32, (1 << 15) - 1] {
            let mut ring = ring(8);
            let first = SHORT | number << FLOW_SHIFT;
            ring.lines[0].0[0].store((first as u64) << 32 | stamp(0, 3) as u64, Ordering::Relaxed);
            assert_eq!(ring.reader.peek().unwrap_err(), RingViolation::UnknownFlow { number });
        }
        let mut ring = ring(8);
        ring.lines[0].0[5].store((FLOWS as u64 + 1) << TELL_SHIFT, Ordering::Relaxed);
        ring.lines[0].0[0].store(stamp(0, 3) as u64, Ordering::Relaxed);
        let number = FLOWS as u32;
        assert_eq!(ring.reader.peek().unwrap_err(), RingViolation::UnknownFlow { number });
    }

    #[test]
    fn freed_that_goes_back_or_beyond_what_was_written_is_a_violation() {
        for (claim, expected) in [(3u64, true), (4, false), (7, false), (8, true), (u64::MAX, true)]
        {
            let mut ring = ring(8);
            for i in 0..4 {
                ring.send(&[], &bytes(16, i)).unwrap();
                ring.receive().unwrap();
            }
            ring.reader.publish();
            assert!(ring.writer.is_drained());
            for i in 0..3 {
                ring.send(&[], &bytes(16, i)).unwrap();
            }
            ring.freed.store(claim, Ordering::Relaxed);
            ring.writer.is_drained();
            let violation = RingViolation::FreedOutOfRange { freed: claim, written: 7, before: 4 };
            assert_eq!(ring.writer.violation(), expected.then_some(violation));
            if expected {
                assert!(ring.writer.is_drained(), "nobody waits for a reader that lies");
                // The last FREED that passed the check still counts: four more lines, and no line
                // that the reader did not give back.
                let room = (0..8).take_while(|_| ring.send(&[], &[]).is_ok()).count();
                assert_eq!(room, 4);
            }
        }
    }

    #[test]
    fn the_first_violation_is_the_one_reported() {
        let mut ring = ring(8);
        ring.freed.store(9, Ordering::Relaxed);
        ring.writer.is_drained();
        ring.freed.store(10, Ordering::Relaxed);
        ring.writer.is_drained();
        assert!(matches!(
            ring.writer.violation(),
            Some(RingViolation::FreedOutOfRange { freed: 9, .. })
        ));
    }

    // By chance.

    #[derive(Clone, Debug)]
    enum Act {
        Send { metadata: usize, length: usize, forge: Option<u64> },
        Receive(usize),
        Publish,
    }

    fn act() -> impl Strategy<Value = Act> {
        prop_oneof![
            4 => (0..=METADATA_MAX, 0usize..400, proptest::option::of(0u64..3)).prop_map(
                |(metadata, length, forge)| Act::Send { metadata, length, forge }),
            2 => (0usize..17).prop_map(|length| Act::Send { metadata: 0, length, forge: None }),
            3 => (1usize..6).prop_map(Act::Receive),
            2 => Just(Act::Publish),
        ]
    }

    proptest! {
        // The oracle is a queue of values.
        #[test]
        fn any_order_of_calls_gives_what_was_sent_in_the_order_of_sending(
            log2 in 3u32..7,
            acts in proptest::collection::vec(act(), 1..if cfg!(miri) { 12 } else { 200 }),
        ) {
            let mut ring = ring(1 << log2);
            let mut oracle = VecDeque::new();
            for (i, act) in acts.into_iter().enumerate() {
                match act {
                    Act::Send { metadata, length, forge } => {
                        let length = length.min(ring.writer.packet_bytes() as usize);
                        let metadata = bytes(metadata, i);
                        let mut data = bytes(length, i);
                        if let Some(laps_on) = forge {
                            let at = ring.writer.written + 1;
                            data = forged(at, log2, length.div_ceil(64), laps_on);
                            data.truncate(length);
                        }
                        if ring.send(&metadata, &data).is_ok() {
                            oracle.push_back((metadata, data));
                        }
                    }
                    Act::Receive(n) => for _ in 0..n {
                        prop_assert_eq!(ring.receive(), oracle.pop_front());
                    }
                    Act::Publish => { ring.reader.publish(); }
                }
                prop_assert_eq!(ring.reader.is_ready(), !oracle.is_empty());
                prop_assert_eq!(ring.writer.violation(), None);
            }
            while let Some(expected) = oracle.pop_front() {
                prop_assert_eq!(ring.receive(), Some(expected));
            }
            prop_assert_eq!(ring.receive(), None);
            ring.reader.publish();
            prop_assert!(ring.writer.is_drained());
        }

        // Rule 2: hostile bytes never panic, loop, or reach outside the ring. Stamps are put in
        // front of many lines, or the reader would hardly ever look at one.
        #[test]
        fn any_bytes_in_every_line_are_packets_or_a_violation_and_each_step_goes_forward(
            log2 in 3u32..if cfg!(miri) { 4 } else { 6 },
            content in proptest::collection::vec(any::<u64>(), if cfg!(miri) { 9 } else { 200 }),
            lengths in proptest::collection::vec(prop_oneof![0u32..200, any::<u32>()], 64),
            laps in 1u64..4,
        ) {
            let mut ring = ring(1 << log2);
            for lap in 0..laps {
                for (i, line) in ring.lines.iter().enumerate() {
                    for (j, word) in line.0.iter().enumerate() {
                        word.store(content[(i * LINE_WORDS + j + lap as usize) % content.len()], Ordering::Relaxed);
                    }
                    let forged = (lengths[i] as u64) << 32 | stamp(lap << log2, log2) as u64;
                    line.0[0].store(forged, Ordering::Relaxed);
                }
                for _ in 0..=(1 << log2) {
                    let before = ring.reader.read;
                    let Ok(Some(packet)) = ring.reader.peek() else { break };
                    let mut metadata = vec![0; packet.header.metadata_len as usize];
                    let mut data = vec![0; packet.header.length as usize];
                    packet.copy_metadata(&mut metadata);
                    packet.copy_data(&mut data);
                    let lines = packet.lines();
                    prop_assert!((1..1 << log2).contains(&lines));
                    ring.reader.release(lines);
                    prop_assert!(ring.reader.read > before);
                }
            }
        }

        #[test]
        fn whatever_freed_says_the_writer_never_writes_over_what_was_not_given_back(
            claims in proptest::collection::vec(
                prop_oneof![0u64..40, any::<u64>()],
                1..if cfg!(miri) { 20 } else { 60 },
            ),
        ) {
            let mut ring = ring(8);
            let mut believed = 0;
            for (i, claim) in claims.into_iter().enumerate() {
                ring.freed.store(claim, Ordering::Relaxed);
                let length = [8, 40, 64][i % 3];
                let before = ring.writer.written;
                let sent = ring.send(&[], &bytes(length, i)).is_ok();
                let freed = ring.writer.freed_seen;
                prop_assert!(freed == believed || (freed == claim && (believed..=before).contains(&claim)));
                believed = freed;
                prop_assert!(ring.writer.written - believed < 8);
                prop_assert_eq!(sent, ring.writer.written > before);
            }
        }
    }
}
