//! The packet header (Hamlyn, Table 1) and how a packet lies in 64-byte lines.
//!
//! ```text
//! word   0        1             2                 3    4       5                          6, 7
//!        stamp |  destination | metadata index |  key  offset  metadata_len, flags, 0 |   inline
//!        length   slot          delta                          fast-mode word             body
//! ```
//! The first word is written last and read first; its low half, the *stamp*, belongs to the ring
//! (see [`crate::link::ring`]). The body follows the header so that
//! - a message of up to 16 bytes, metadata included, is one line;
//! - longer metadata has one line of its own, and longer data lines of its own, so that bulk data
//!   is always aligned to a line.

use super::{Destination, Key, MetadataIndex, SlotIndex};

/// Bytes in a cache line, the unit of a ring.
pub const LINE_BYTES: usize = 64;
/// 64-bit words in a line.
pub const LINE_WORDS: usize = 8;
/// 64-bit words that the header takes in a packet's first line.
pub const HEADER_WORDS: usize = 6;
/// Of these the one with the offset.
#[cfg(any(feature = "os", feature = "unstable-internals"))]
pub(crate) const OFFSET_WORD: usize = 4;
/// Of these the one whose upper half is the fast-mode word.
#[cfg(feature = "os")]
pub(crate) const FAST_WORD: usize = 5;
/// Bytes of metadata and data that fit behind the header in the same line.
pub const INLINE_BYTES: usize = (LINE_WORDS - HEADER_WORDS) * 8;
/// Most bytes of user metadata in a message (Hamlyn 2.2).
pub const METADATA_MAX: usize = 60;

bitflags::bitflags! {
    /// The flags of a ticket and of each packet sent with it.
    ///
    /// ```
    /// use hamlyn::Flags;
    ///
    /// let flags = Flags::NOTIFY | Flags::WAKE;
    /// assert!(flags.contains(Flags::WAKE));
    /// // `Ticket::silent` does this: the data moves without a notification.
    /// assert_eq!(flags - Flags::NOTIFY - Flags::WAKE, Flags::empty());
    /// // Each flag is independent: this message wakes a receiver that sleeps, and is not announced.
    /// assert!(!Flags::WAKE.contains(Flags::NOTIFY));
    /// ```
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Flags: u8 {
        /// Append to the notification queue when the message is complete. Without it, data moves
        /// without a notification (Hamlyn 1: data movement and notification are separate).
        const NOTIFY = 1;
        /// Wake the receiver if it sleeps (Hamlyn 2.6: an interrupt, if requested). A packet without
        /// it wakes nobody, even if it announces its message: it is taken when the receiver looks
        /// for another reason, or the ring is half full. It is independent of `NOTIFY`: a silent
        /// message with it wakes a receiver that waits for other things than notifications.
        const WAKE = 2;
        /// Over one link, packets of tickets with this flag arrive in the order in which one
        /// terminus sent them: none takes the bulk ring, or overtakes others on a link of several
        /// connections. Long messages are slower with it.
        const IN_ORDER = 4;
    }
}

/// Table 1: every packet describes itself completely, because packets may arrive in any order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The interface that the packet is for.
    pub destination: Destination,
    /// The slot there.
    pub slot: SlotIndex,
    /// The entry of the slot's metadata area, or [`MetadataIndex::FAST`].
    pub metadata_index: MetadataIndex,
    /// The slot's key, or the entry's key where the slot is paranoid.
    pub key: Key,
    /// Destination of this packet's data, in bytes from the slot's base.
    pub offset: u64,
    /// Bytes of data in this packet.
    pub length: u32,
    /// The number that the packet adds to the entry's accumulator, modulo 2^32 (Hamlyn 2.5).
    pub delta: u32,
    /// Bytes of metadata in this packet; nonzero only in the first packet of a message.
    pub metadata_len: u8,
    /// Actions on completion of the message.
    pub flags: Flags,
    /// Fast mode only: the one word of metadata that goes into the notification queue entry.
    pub word: u32,
}

impl Header {
    /// The six words of the header; the low half of the first is left zero for the stamp.
    #[inline(always)]
    #[allow(clippy::wrong_self_convention)] // Six words: not to be copied for it.
    pub fn to_words(&self) -> [u64; HEADER_WORDS] {
        [
            (self.length as u64) << 32,
            self.destination.0 as u64 | (self.slot.0 as u64) << 32,
            self.metadata_index.0 as u64 | (self.delta as u64) << 32,
            self.key.0,
            self.offset,
            self.metadata_len as u64 | (self.flags.bits() as u64) << 8 | (self.word as u64) << 32,
        ]
    }

    /// Decodes a private copy of six words. The second value is the reserved bits, together with
    /// flags that have no meaning; in a checked packet it is zero.
    #[inline(always)]
    pub fn from_words(words: &[u64; HEADER_WORDS]) -> (Self, u32) {
        let flags = (words[5] >> 8) as u8;
        let header = Self {
            length: (words[0] >> 32) as u32,
            destination: Destination(words[1] as u32),
            slot: SlotIndex((words[1] >> 32) as u32),
            metadata_index: MetadataIndex(words[2] as u32),
            delta: (words[2] >> 32) as u32,
            key: Key(words[3]),
            offset: words[4],
            metadata_len: words[5] as u8,
            flags: Flags::from_bits_truncate(flags),
            word: (words[5] >> 32) as u32,
        };
        let reserved = (words[5] as u32) >> 16 | (flags & !Flags::all().bits()) as u32;
        (header, reserved)
    }

    /// The layout of this packet's body.
    #[inline(always)]
    pub fn layout(&self) -> BodyLayout {
        BodyLayout::new(self.metadata_len, self.length)
    }
}

/// The layout of a packet's metadata and data, in lines from the packet's first line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BodyLayout {
    /// The metadata has line 1 to itself (it is longer than [`INLINE_BYTES`]).
    pub metadata_line: bool,
    /// Data lies behind the inline metadata, in the header's line.
    pub data_inline: bool,
    /// Lines of the whole packet, header included.
    pub lines: u64,
}

impl BodyLayout {
    /// Computed from any two values, also hostile ones, without overflow.
    #[inline(always)]
    pub fn new(metadata_len: u8, length: u32) -> Self {
        if metadata_len as u64 + length as u64 <= INLINE_BYTES as u64 {
            return Self { metadata_line: false, data_inline: true, lines: 1 };
        }
        let metadata_line = metadata_len as usize > INLINE_BYTES;
        // 255 bytes of claimed metadata must not reach past the line that it has; the interface
        // refuses more than METADATA_MAX, and the ring copies no more than a line.
        let data_lines = (length as u64).div_ceil(LINE_BYTES as u64);
        Self { metadata_line, data_inline: false, lines: 1 + metadata_line as u64 + data_lines }
    }

    /// The line at which data that is not inline begins.
    #[inline(always)]
    pub fn data_line(&self) -> u64 {
        1 + self.metadata_line as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_survives_its_words() {
        let header = Header {
            destination: Destination(0xdead_beef),
            slot: SlotIndex(7),
            metadata_index: MetadataIndex::FAST,
            key: Key(0x0123_4567_89ab_cdef),
            offset: u64::MAX - 3,
            length: u32::MAX,
            delta: 0x8000_0001,
            metadata_len: 60,
            flags: Flags::NOTIFY,
            word: 0xffff_0000,
        };
        assert_eq!(Header::from_words(&header.to_words()), (header, 0));
    }

    #[test]
    fn reserved_bits_are_reported() {
        let mut words = [0; HEADER_WORDS];
        words[5] = 1 << 16;
        assert_ne!(Header::from_words(&words).1, 0);
        for flag in [0x80, 8] {
            words[5] = flag << 8;
            assert_ne!(Header::from_words(&words).1, 0);
        }
    }

    #[test]
    fn sixteen_bytes_with_their_header_are_one_line_and_seventeen_are_not() {
        assert_eq!(BodyLayout::new(0, 16).lines, 1);
        assert_eq!(BodyLayout::new(8, 8).lines, 1);
        assert_eq!(BodyLayout::new(0, 0).lines, 1);
        assert_eq!(BodyLayout::new(0, 17).lines, 2);
        assert_eq!(BodyLayout::new(60, 0).lines, 2);
        assert_eq!(BodyLayout::new(60, 1).lines, 3);
        assert_eq!(BodyLayout::new(255, u32::MAX).lines, 2 + (1 << 26));
    }
}
