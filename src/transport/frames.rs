//! The format of a link between two hosts: frames, one behind the other.
//!
//! ```text
//!   the six words of a packet's header, little-endian, with the frame's kind in the place of the
//!   ring's stamp | the packet's metadata | its data
//! ```
//! Never: more bytes are asked for than the largest packet has.

use crate::wire::{HEADER_WORDS, Header, METADATA_MAX};
use alloc::vec::Vec;

/// Bytes of a frame without a packet's body.
pub const HEADER_BYTES: usize = 8 * HEADER_WORDS;

/// In [`Frame::SentAway`], in the place of a metadata index.
const TOO_SLOW: u32 = 1;

/// The way in which one end leaves a link, of which it may notify the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goodbye {
    /// Everything has been sent.
    Said,
    /// Some packets have not been sent.
    HungUp,
    /// The other end broke the rules.
    SentAway,
    /// The other end did not keep up.
    TooSlow,
}

impl Goodbye {
    /// The frame that notifies the other end, if there is one.
    pub fn frame(self) -> Option<HostFrame<'static>> {
        match self {
            Self::Said => Some(HostFrame::Goodbye),
            Self::SentAway => Some(HostFrame::SentAway { is_slow: false }),
            Self::TooSlow => Some(HostFrame::SentAway { is_slow: true }),
            Self::HungUp => None,
        }
    }
}

/// The kind, in the low half of the first word.
mod kind {
    pub const PACKET: u32 = 0;
    pub const GOODBYE: u32 = 1;
    pub const STALE: u32 = 2;
    pub const SENT_AWAY: u32 = 3;
}

/// A frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostFrame<'a> {
    /// A packet of which only the lengths have been checked.
    Packet {
        /// Its header.
        header: Header,
        /// Its metadata.
        metadata: &'a [u8],
        /// Its data.
        data: &'a [u8],
    },
    /// All packets have been sent.
    Goodbye,
    /// Packets were refused because a ticket was revoked.
    Stale {
        /// The ticket's slot.
        slot: u32,
        /// Its metadata index.
        index: u32,
    },
    /// This end disconnects the other, because it broke the rules, or did not keep up.
    SentAway {
        /// It did not keep up.
        is_slow: bool,
    },
}

/// The result of reading the first frame of some bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadFrame<'a> {
    /// A whole frame, and its length in bytes.
    Whole(HostFrame<'a>, usize),
    /// An incomplete frame of this many bytes, or more if its header is incomplete, too.
    Cut(usize),
    /// No honest host sends this.
    Violation,
}

/// Reads a frame. `packet_bytes`: most bytes of data in a packet.
pub fn read(bytes: &[u8], packet_bytes: usize) -> ReadFrame<'_> {
    let Some((head, rest)) = bytes.split_first_chunk::<HEADER_BYTES>() else {
        return ReadFrame::Cut(HEADER_BYTES);
    };
    let mut words = [0; HEADER_WORDS];
    for (word, bytes) in words.iter_mut().zip(head.chunks_exact(8)) {
        *word = u64::from_le_bytes(bytes.try_into().expect("chunks of 8"));
    }
    let (header, reserved) = Header::from_words(&words);
    let (metadata, data) = (header.metadata_len as usize, header.length as usize);
    let frame = match words[0] as u32 {
        kind::PACKET if reserved == 0 && metadata <= METADATA_MAX && data <= packet_bytes => {
            let Some(body) = rest.get(..metadata + data) else {
                return ReadFrame::Cut(HEADER_BYTES + metadata + data);
            };
            let (metadata, data) = body.split_at(metadata);
            return ReadFrame::Whole(
                HostFrame::Packet { header, metadata, data },
                HEADER_BYTES + body.len(),
            );
        }
        kind::STALE => HostFrame::Stale { slot: header.slot.0, index: header.metadata_index.0 },
        kind::GOODBYE => HostFrame::Goodbye,
        kind::SENT_AWAY => HostFrame::SentAway { is_slow: header.metadata_index.0 == TOO_SLOW },
        _ => return ReadFrame::Violation,
    };
    ReadFrame::Whole(frame, HEADER_BYTES)
}

/// Appends a packet's header; its metadata and data are to follow.
pub fn put_header(to: &mut Vec<u8>, header: &Header) {
    put_words(to, &header.to_words());
}

/// The same into `to`, which has [`HEADER_BYTES`].
pub fn write_header(to: &mut [u8], header: &Header) {
    for (to, word) in to.chunks_exact_mut(8).zip(header.to_words()) {
        to.copy_from_slice(&word.to_le_bytes());
    }
}

/// Appends a frame.
pub fn put(to: &mut Vec<u8>, frame: &HostFrame<'_>) {
    let (kind, slot, index) = match frame {
        HostFrame::Packet { header, metadata, data } => {
            put_header(to, header);
            to.extend_from_slice(metadata);
            to.extend_from_slice(data);
            return;
        }
        HostFrame::Goodbye => (kind::GOODBYE, 0, 0),
        HostFrame::Stale { slot, index } => (kind::STALE, *slot, *index),
        HostFrame::SentAway { is_slow } => (kind::SENT_AWAY, 0, u32::from(*is_slow) * TOO_SLOW),
    };
    put_words(to, &[u64::from(kind), u64::from(slot) << 32, u64::from(index), 0, 0, 0]);
}

fn put_words(to: &mut Vec<u8>, words: &[u64; HEADER_WORDS]) {
    for word in words {
        to.extend_from_slice(&word.to_le_bytes());
    }
}
