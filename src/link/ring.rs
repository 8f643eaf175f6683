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
//! writer trusts a FREED that it has not compared with what it wrote.

use super::cells::{AtomicU64, Lines, Ordering, Word, copy_in, copy_out};
use super::{Body, Full, Source, Transmit};
use crate::wire::{BodyLayout, HEADER_WORDS, Header, INLINE_BYTES, LINE_BYTES};

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

/// The other side wrote what an honest one never writes. The ring is not to be used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RingViolation {
    /// A packet claims more lines than a packet can have.
    #[error("a packet claims {lines} lines in a ring of {capacity}")]
    PacketTooLong {
        /// Lines claimed.
        lines: u64,
        /// Lines of the ring.
        capacity: u64,
    },
    /// FREED went back, or past what was written.
    #[error(
        "the reader claims to have freed line {freed}, of {written} written and {before} freed before"
    )]
    FreedOutOfRange {
        /// What it claims.
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
    /// The last FREED that was read and found possible.
    freed_seen: u64,
    /// Before this position, a line may hold the bytes of a body.
    body_until: u64,
    violation: Option<RingViolation>,
}

impl<L: Lines, W: Word> RingWriter<L, W> {
    /// Over lines that are all zero. `packet_bytes` is lowered to what the ring allows.
    pub fn new(lines: L, freed: W, packet_bytes: u32) -> Self {
        let count = lines.lines().len();
        assert!(count.is_power_of_two() && (RING_LINES_MIN..=RING_LINES_MAX).contains(&count));
        Self {
            mask: count as u64 - 1,
            lines_log2: count.trailing_zeros(),
            packet_bytes: packet_bytes.min(packet_bytes_max(count)),
            lines,
            freed,
            written: 0,
            freed_seen: 0,
            body_until: 0,
            violation: None,
        }
    }

    /// What the reader did that no honest reader does, if it did.
    #[inline]
    pub fn violation(&self) -> Option<RingViolation> {
        self.violation
    }

    /// Lines of the ring.
    #[inline]
    pub fn capacity(&self) -> u64 {
        self.mask + 1
    }

    /// Whether all that was written has been read, as far as the reader says.
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
        let freed = self.freed.word().load(Ordering::Acquire);
        if freed < self.freed_seen || freed > self.written {
            self.violation.get_or_insert(RingViolation::FreedOutOfRange {
                freed,
                written: self.written,
                before: self.freed_seen,
            });
        } else {
            self.freed_seen = freed;
        }
    }

    /// One line more than the packet is kept free, so that the line behind it may be cleared.
    #[inline(always)]
    fn has_room(&mut self, lines: u64) -> bool {
        let room = |w: &Self| w.written - w.freed_seen + lines < w.mask + 1;
        room(self) || {
            self.refresh();
            room(self)
        }
    }

    #[inline(always)]
    fn line(&self, position: u64) -> &[AtomicU64; 8] {
        &self.lines.lines()[(position & self.mask) as usize].0
    }

    /// The fast path of [`Transmit::transmit`]: a packet of one line, its body in two words.
    #[inline(always)]
    pub fn push_line(&mut self, header: &Header, body: [u64; 2]) -> Result<(), Full> {
        debug_assert!(header.layout().lines == 1);
        if !self.has_room(1) {
            return Err(Full);
        }
        let line = self.line(self.written);
        let words = header.to_words();
        for i in 1..HEADER_WORDS {
            line[i].store(words[i], Ordering::Relaxed);
        }
        line[6].store(body[0], Ordering::Relaxed);
        line[7].store(body[1], Ordering::Relaxed);
        self.commit(words[0], 1);
        Ok(())
    }

    #[inline(always)]
    fn commit(&mut self, word: u64, lines: u64) {
        let next = self.written + lines;
        if next < self.body_until {
            self.line(next)[0].store(0, Ordering::Relaxed);
        }
        let stamp = stamp(self.written, self.lines_log2) as u64;
        self.line(self.written)[0].store(word | stamp, Ordering::Release);
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
        let (lines, at) = (self.lines.lines(), (self.written & self.mask) as usize);
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

#[inline(always)]
fn words_of(body: &[u8; INLINE_BYTES]) -> [u64; 2] {
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
    /// Read lines are given back in lots of this many.
    lot: u64,
}

/// A packet whose header has been copied out of the ring and whose body has not.
#[derive(Debug)]
pub struct Packet<'a> {
    /// The private copy of the header. Not yet checked.
    pub header: Header,
    /// What stood in reserved bits.
    pub reserved: u32,
    layout: BodyLayout,
    inline: [u64; 2],
    lines: &'a [super::cells::Line],
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
            lot: count as u64 / 8,
            lines,
            freed,
            read: 0,
            published: 0,
        }
    }

    /// Whether a packet has been committed behind the last one that was read. One load.
    #[inline(always)]
    pub fn is_ready(&self) -> bool {
        let line = &self.lines.lines()[(self.read & self.mask) as usize].0;
        line[0].load(Ordering::Acquire) as u32 == stamp(self.read, self.lines_log2)
    }

    /// The next packet, or `None` if none has been committed.
    #[inline(always)]
    pub fn peek(&self) -> Result<Option<Packet<'_>>, RingViolation> {
        let lines = self.lines.lines();
        let at = (self.read & self.mask) as usize;
        let line = &lines[at].0;
        let first = line[0].load(Ordering::Acquire);
        if first as u32 != stamp(self.read, self.lines_log2) {
            return Ok(None);
        }
        let mut words = [0; HEADER_WORDS];
        words[0] = first;
        for i in 1..HEADER_WORDS {
            words[i] = line[i].load(Ordering::Relaxed);
        }
        let inline = [line[6].load(Ordering::Relaxed), line[7].load(Ordering::Relaxed)];
        let (header, reserved) = Header::from_words(&words);
        let layout = header.layout();
        if layout.lines > self.mask {
            return Err(RingViolation::PacketTooLong {
                lines: layout.lines,
                capacity: self.mask + 1,
            });
        }
        Ok(Some(Packet { header, reserved, layout, inline, lines, at }))
    }

    /// The packet of `lines` lines that was peeked at is no longer needed. Says whether FREED
    /// was written, so that a writer that waits for room can be told.
    #[inline(always)]
    pub fn release(&mut self, lines: u64) -> bool {
        self.read += lines;
        self.read - self.published >= self.lot && self.publish()
    }

    /// Gives back what has been read and not yet given back; to be called when nothing is ready.
    /// Says whether there was anything.
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
