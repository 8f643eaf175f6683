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

// `for i in 1..HEADER_WORDS`: word by word, by its number in the layout.
#![allow(clippy::needless_range_loop)]

use super::cells::{
    AtomicU64, Line, Lines, Ordering, Word, copy_in, copy_out, prefetch_for_writing,
    write_behind_first,
};
use super::{Body, Full, Source, Transmit};
use crate::wire::{BodyLayout, HEADER_WORDS, Header, INLINE_BYTES, LINE_BYTES, LINE_WORDS};

/// Lines ahead of the one just written that are asked for. The reader has had each line last, so
/// without this every store waits for it to come back: with 8, cores that lie far apart carry 44
/// million short messages a second instead of 18. Measured: bench/README.md.
const PREFETCH_LINES: u64 = 8;

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
    /// Lines written since the ring was made.
    written: u64,
    /// The last FREED that was read and passed the check.
    freed_seen: u64,
    /// Lines before this position may be written without another look at FREED. It is not beyond
    /// the end of the lap, so all of them have the stamp `stamp`.
    room_until: u64,
    stamp: u32,
    /// Before this position, a line may hold the bytes of a body.
    body_until: u64,
    violation: Option<RingViolation>,
}

impl<L: Lines, W: Word> RingWriter<L, W> {
    /// Over lines that are all zero. `packet_bytes` is lowered to the ring's limit, and raised
    /// to a line: the first packet of a message must hold its metadata.
    pub fn new(lines: L, freed: W, packet_bytes: u32) -> Self {
        let count = lines.lines().len();
        assert!(count.is_power_of_two() && (RING_LINES_MIN..=RING_LINES_MAX).contains(&count));
        Self {
            mask: count as u64 - 1,
            lines_log2: count.trailing_zeros(),
            packet_bytes: packet_bytes.clamp(LINE_BYTES as u32, packet_bytes_max(count)),
            lines,
            freed,
            written: 0,
            freed_seen: 0,
            room_until: count as u64 - 1,
            stamp: stamp(0, 0),
            body_until: 0,
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

    #[inline(always)]
    fn line(&self, position: u64) -> &[AtomicU64; 8] {
        let lines = self.lines.lines();
        &lines[place(lines, position)].0
    }

    /// The fast path of [`Transmit::transmit`]: a packet of one line, its body in two words.
    #[inline(always)]
    pub fn push_line(&mut self, header: &Header, body: [u64; 2]) -> Result<(), Full> {
        debug_assert!(header.layout().lines == 1);
        let words = header.to_words();
        self.push_words(header.length, |i| words.get(i).copied().unwrap_or(body[i & 1]))
    }

    /// [`push_line`](Self::push_line) with words that are computed once there is room, so that they
    /// need not be kept until then. `word` returns the words of header and body, except the first.
    #[inline(always)]
    pub fn push_words(&mut self, length: u32, word: impl Fn(usize) -> u64) -> Result<(), Full> {
        if !self.has_room(1) {
            return Err(Full);
        }
        // Read once each: the compiler must assume that a store to the ring changes any of them.
        let (written, lines) = (self.written, self.lines.lines());
        let line = &lines[place(lines, written)].0;
        write_behind_first(line, word);
        let next = written + 1;
        if next < self.body_until {
            self.line(next)[0].store(0, Ordering::Relaxed);
        }
        line[0].store((length as u64) << 32 | self.stamp as u64, Ordering::Release);
        prefetch_for_writing(lines, place(lines, next + PREFETCH_LINES));
        self.written = next;
        Ok(())
    }

    #[inline(always)]
    fn commit(&mut self, word: u64, lines: u64) {
        let next = self.written + lines;
        if next < self.body_until {
            self.line(next)[0].store(0, Ordering::Relaxed);
        }
        self.line(self.written)[0].store(word | self.stamp as u64, Ordering::Release);
        self.written = next;
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
        let layout = header.layout();
        if layout.lines == 1 {
            let mut body = [0u8; INLINE_BYTES];
            body[..metadata.len()].copy_from_slice(metadata);
            let at = metadata.len();
            data.for_each(|position, piece| {
                body[at + position..at + position + piece.len()].copy_from_slice(piece)
            });
            return self.push_line(header, words_of(&body));
        }
        assert!(header.length <= self.packet_bytes, "a packet larger than the link's");
        if !self.has_room(layout.lines) {
            return Err(Full);
        }
        let lines = self.lines.lines();
        let at = place(lines, self.written);
        let words = header.to_words();
        let line = &lines[at].0;
        for i in 1..HEADER_WORDS {
            line[i].store(words[i], Ordering::Relaxed);
        }
        if layout.metadata_line {
            copy_in(lines, at + 1, 0, metadata);
        } else {
            let mut body = [0u8; INLINE_BYTES];
            body[..metadata.len()].copy_from_slice(metadata);
            let body = words_of(&body);
            line[6].store(body[0], Ordering::Relaxed);
            line[7].store(body[1], Ordering::Relaxed);
        }
        let first = at + layout.data_line() as usize;
        data.for_each(|position, piece| copy_in(lines, first, position, piece));
        self.body_until = self.written + layout.lines + self.capacity();
        self.commit(words[0], layout.lines);
        Ok(())
    }
}

/// A body of up to 16 bytes as the two words of a line.
#[inline(always)]
pub fn words_of(body: &[u8; INLINE_BYTES]) -> [u64; 2] {
    let mut words = [[0; 8]; 2];
    words[0].copy_from_slice(&body[..8]);
    words[1].copy_from_slice(&body[8..]);
    words.map(u64::from_le_bytes)
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
}

/// A packet whose header has been copied out of the ring and whose body has not.
#[derive(Debug)]
pub struct Packet<'a> {
    /// The private copy of the header. Not yet checked.
    pub header: Header,
    /// The reserved bits as they arrived.
    pub reserved: u32,
    layout: BodyLayout,
    inline: [u64; 2],
    lines: &'a [super::cells::Line],
    at: usize,
}

/// The first line of a packet, in memory that the writer may still be changing. Read each word
/// once; nothing has been checked.
#[derive(Clone, Copy, Debug)]
pub struct FirstLine<'a> {
    first: u64,
    line: &'a [AtomicU64; LINE_WORDS],
}

impl FirstLine<'_> {
    /// One word. The first still contains the stamp, and has been read already.
    #[inline(always)]
    pub fn word(&self, i: usize) -> u64 {
        if i == 0 { self.first } else { self.line[i].load(Ordering::Relaxed) }
    }

    /// All words.
    #[inline(always)]
    pub fn copy(&self) -> [u64; LINE_WORDS] {
        core::array::from_fn(|i| self.word(i))
    }
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
    fn inline(&self) -> [u64; 2] {
        self.inline
    }

    #[inline(always)]
    fn copy_metadata(&self, to: &mut [u8]) {
        if self.layout.metadata_line {
            let n = to.len().min(LINE_BYTES);
            copy_out(self.lines, self.at + 1, &mut to[..n]);
        } else {
            let bytes = bytes_of(self.inline);
            to.copy_from_slice(&bytes[..to.len()]);
        }
    }

    #[inline(always)]
    fn copy_data(&self, to: &mut [u8]) {
        if self.layout.data_inline {
            let bytes = bytes_of(self.inline);
            let from = self.header.metadata_len as usize;
            to.copy_from_slice(&bytes[from..from + to.len()]);
        } else {
            copy_out(self.lines, self.at + self.layout.data_line() as usize, to);
        }
    }
}

#[inline(always)]
fn bytes_of(words: [u64; 2]) -> [u8; INLINE_BYTES] {
    let mut bytes = [0; INLINE_BYTES];
    bytes[..8].copy_from_slice(&words[0].to_le_bytes());
    bytes[8..].copy_from_slice(&words[1].to_le_bytes());
    bytes
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
        let line = &lines[place(lines, self.read)].0;
        let first = line[0].load(Ordering::Acquire);
        (first as u32 == self.stamp).then_some(FirstLine { first, line })
    }

    /// The next packet, or `None` if none has been committed.
    #[inline(always)]
    pub fn peek(&self) -> Result<Option<Packet<'_>>, RingViolation> {
        self.peek_line().map(|line| self.packet(&line.copy())).transpose()
    }

    /// The packet that begins with the line that [`peek_line`](Self::peek_line) has found.
    #[inline(always)]
    pub fn packet(&self, words: &[u64; LINE_WORDS]) -> Result<Packet<'_>, RingViolation> {
        let lines = self.lines.lines();
        let at = place(lines, self.read);
        let [w0, w1, w2, w3, w4, w5, w6, w7] = *words;
        let (header, reserved) = Header::from_words(&[w0, w1, w2, w3, w4, w5]);
        let inline = [w6, w7];
        let layout = header.layout();
        if layout.lines > self.packet_lines {
            return Err(RingViolation::PacketTooLong {
                lines: layout.lines,
                allowed: self.packet_lines,
                capacity: self.mask + 1,
            });
        }
        Ok(Packet { header, reserved, layout, inline, lines, at })
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
    use super::super::cells::Line;
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
            let data_max = (allowed as usize - 1) * LINE_BYTES;
            for length in [data_max + 1, data_max + 64, 1 << 31, u32::MAX as usize] {
                let ring = ring(count);
                let word = (length as u64) << 32 | stamp(0, 3) as u64;
                ring.lines[0].0[0].store(word, Ordering::Relaxed);
                let lines = 1 + (length as u64).div_ceil(64);
                assert_eq!(
                    ring.reader.peek().unwrap_err(),
                    RingViolation::PacketTooLong { lines, allowed, capacity: count as u64 }
                );
            }
            // The longest that is possible at all is read, and stays inside the ring.
            let mut ring = ring(count);
            let length = data_max;
            let words = header(length, 0).to_words();
            for i in 1..HEADER_WORDS {
                ring.lines[0].0[i].store(words[i], Ordering::Relaxed);
            }
            ring.lines[0].0[0].store(words[0] | stamp(0, 3) as u64, Ordering::Relaxed);
            assert_eq!(ring.receive(), Some((vec![], vec![0; length])));
        }
    }

    #[test]
    fn metadata_longer_than_its_line_is_cut_there() {
        let ring = ring(8);
        let words = header(1, 255).to_words();
        for i in 0..HEADER_WORDS {
            ring.lines[0].0[i].store(words[i], Ordering::Relaxed);
        }
        ring.lines[0].0[0].store(words[0] | stamp(0, 3) as u64, Ordering::Relaxed);
        ring.lines[1].0[7].store(u64::MAX, Ordering::Relaxed);
        ring.lines[2].0[0].store(u64::MAX, Ordering::Relaxed);
        let packet = ring.reader.peek().unwrap().unwrap();
        let mut metadata = [0; 255];
        packet.copy_metadata(&mut metadata);
        assert!(metadata[56..64] == [255; 8] && metadata[64..] == [0; 191]);
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
                            let at = ring.writer.written + 1 + (metadata.len() > INLINE_BYTES) as u64;
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
