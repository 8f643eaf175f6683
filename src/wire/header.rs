//! The packet header (Hamlyn, Table 1), its two forms in a ring, and how a packet lies in 64-byte
//! lines.
//!
//! ```text
//! word    0               1                  2                 3    4       5                6, 7
//! whole   stamp | length  destination | slot index | delta     key  offset  metadata_len,    body
//!                                                                           flags, tell, word
//! short   stamp | length, offset | word      body ..
//!         flow, 1
//! ```
//! The first word is written last and read first; its low half, the *stamp*, belongs to the ring
//! (see [`crate::link::ring`]). A whole header may *tell* the reader a number for its flow: for the
//! words 1, 2, 3 and half of 5, which the packets of one ticket have in common. A packet with a short
//! header sends the number instead, as Van Jacobson compressed headers for slow lines (RFC 1144).
//! The body, metadata then data, follows the header at once, so that a short header and up to 48
//! bytes are one line; a long body begins on a line of its own, so that long copies are aligned.

use super::{Destination, Key, MetadataIndex, SlotIndex};

/// Bytes in a cache line, the unit of a ring.
pub const LINE_BYTES: usize = 64;
/// 64-bit words in a line.
pub const LINE_WORDS: usize = 8;
/// 64-bit words that the whole header takes in a packet's first line.
pub const HEADER_WORDS: usize = 6;
/// 64-bit words that the short header takes.
pub const SHORT_HEADER_WORDS: usize = 2;
/// Bytes of metadata and data that fit behind the whole header in the same line.
pub const INLINE_BYTES: usize = (LINE_WORDS - HEADER_WORDS) * 8;
/// Bodies from this size on begin on a line of their own: they are copied by `rep movsb`, which is
/// faster from and to whole lines.
const ALIGNED_MIN: u64 = 768;
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
    #[inline]
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
    #[inline]
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

    /// The words in which all packets of a flow are equal: destination and slot, entry and delta,
    /// key, and lengths and flags.
    #[inline]
    pub fn flow(&self) -> FlowWords {
        let [_, places, entry, key, _, rest] = self.to_words();
        [places, entry, key, rest as u32 as u64]
    }

    /// The header of a packet of a flow, and its reserved bits.
    #[inline]
    pub fn of_flow(flow: &FlowWords, varying: &Varying) -> (Self, u32) {
        let [places, entry, key, rest] = *flow;
        let Varying { offset, length, word } = *varying;
        let rest = rest | (word as u64) << 32;
        Self::from_words(&[(length as u64) << 32, places, entry, key, offset, rest])
    }

    /// The rest of the header: that in which packets of a flow differ.
    #[inline]
    pub fn varying(&self) -> Varying {
        Varying { offset: self.offset, length: self.length, word: self.word }
    }

    /// The layout of this packet's body behind a whole header.
    #[inline]
    pub fn layout(&self) -> BodyLayout {
        BodyLayout::new(HEADER_WORDS, self.body_bytes())
    }

    /// Bytes of metadata and data.
    #[inline]
    pub fn body_bytes(&self) -> u64 {
        self.metadata_len as u64 + self.length as u64
    }
}

/// The words of a header in which all packets of a flow are equal: see [`Header::flow`].
pub type FlowWords = [u64; 4];

/// The part of a header in which packets of a flow differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Varying {
    /// Destination of the data, in bytes from the slot's base.
    pub offset: u64,
    /// Bytes of data.
    pub length: u32,
    /// The word of fast mode.
    pub word: u32,
}

/// The layout of a packet's body, metadata then data, from the packet's first line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BodyLayout {
    /// The first byte of the body.
    pub at: usize,
    /// Lines of the whole packet, header included.
    pub lines: u64,
}

impl BodyLayout {
    /// Behind a header of `header_words`; for any number of bytes below 2^33, also hostile ones,
    /// without overflow.
    #[inline]
    pub fn new(header_words: usize, body_bytes: u64) -> Self {
        let at = if body_bytes < ALIGNED_MIN { header_words * 8 } else { LINE_BYTES };
        Self { at, lines: (at as u64 + body_bytes).div_ceil(LINE_BYTES as u64) }
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
    fn a_line_has_sixteen_bytes_behind_a_whole_header_and_forty_eight_behind_a_short_one() {
        let lines = |words, bytes| BodyLayout::new(words, bytes).lines;
        assert_eq!([0, 16, 17, 80, 81].map(|n| lines(HEADER_WORDS, n)), [1, 1, 2, 2, 3]);
        assert_eq!([0, 48, 49, 112, 113].map(|n| lines(SHORT_HEADER_WORDS, n)), [1, 1, 2, 2, 3]);
        assert_eq!(lines(HEADER_WORDS, ALIGNED_MIN), 1 + ALIGNED_MIN / 64);
        assert_eq!(lines(HEADER_WORDS, 255 + u32::MAX as u64), 1 + (1 << 26) + 4);
    }

    #[test]
    fn a_flow_and_the_rest_are_the_header() {
        let words = [9 << 32, 0x5_0000_0001, 7 << 32 | 3, 99, 1 << 40, 0xabcd_0000_0104];
        let (header, _) = Header::from_words(&words);
        assert_eq!(Header::of_flow(&header.flow(), &header.varying()), (header, 0));
    }
}
