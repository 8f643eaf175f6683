//! Metadata entries (Hamlyn 2.4, Table 2).

use crate::wire::{Key, METADATA_MAX};

/// Whether an entry of a paranoid slot accepts packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum EntryState {
    /// Packets with the entry's key are accepted.
    Open,
    /// Nothing is accepted until the application arms the entry.
    Closed,
    /// Open again with the same key, but packets of messages that began while it was closed are
    /// still on their way: until they have passed, only messages of one packet are accepted.
    Draining,
}

/// One expected message: where its metadata goes, what has arrived of it, and, in paranoid slots,
/// the key and limits that protect it. Lives in the receiver's private memory.
#[derive(Clone, Debug)]
#[repr(C, align(128))]
pub struct MetadataEntry {
    pub(crate) user: [u8; METADATA_MAX],
    /// Sum of the deltas that have arrived, modulo 2^32; zero when the message is complete (2.5).
    pub(crate) accumulator: u32,
    /// Sum of the deltas that were refused because the entry was closed, modulo 2^32; zero when no
    /// message is half refused. Of use only to an entry that is opened again with the same key.
    pub(crate) missed: u32,
    /// Paranoid-mode protection key; supersedes the slot's (2.7).
    pub(crate) key: Key,
    /// Paranoid-mode low limit: first byte that may be written, from the slot's base.
    pub(crate) low: u64,
    /// Paranoid-mode high limit: one past the last byte that may be written.
    pub(crate) high: u64,
    /// The receiver object of the library's upper level; for the application to use.
    pub(crate) receiver: u64,
    pub(crate) user_len: u8,
    pub(crate) state: EntryState,
}

// Table 2 has 128 bytes; two lines, so that entries never share one.
const _: () = assert!(size_of::<MetadataEntry>() == 128);

impl MetadataEntry {
    pub(crate) fn new(state: EntryState, key: Key) -> Self {
        Self {
            user: [0; METADATA_MAX],
            accumulator: 0,
            missed: 0,
            key,
            low: 0,
            high: 0,
            receiver: 0,
            user_len: 0,
            state,
        }
    }

    /// The user metadata of the message that arrived last, up to 60 bytes.
    #[inline]
    pub fn user(&self) -> &[u8] {
        &self.user[..self.user_len as usize]
    }

    /// The packet accumulator: zero when no message is half arrived.
    pub fn accumulator(&self) -> u32 {
        self.accumulator
    }

    /// Whether a paranoid slot accepts packets for this entry. Always open in the other modes.
    pub fn state(&self) -> EntryState {
        self.state
    }

    /// Low and high limit of a paranoid entry, in bytes from the slot's base.
    pub fn limits(&self) -> core::ops::Range<u64> {
        self.low..self.high
    }

    /// What the application stored beside the entry (Table 2: the receive class pointer).
    pub fn receiver(&self) -> u64 {
        self.receiver
    }
}
