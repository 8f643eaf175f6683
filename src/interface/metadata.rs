//! Metadata entries (Hamlyn 2.4, Table 2).

use super::receiver::Checked;
use super::{LinkId, Refusal};
use crate::link::Body;
use crate::wire::{Header, Key, METADATA_MAX};
use alloc::{boxed::Box, vec::Vec};

/// Whether an entry of a paranoid slot accepts packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum EntryState {
    /// Packets with the entry's key are accepted.
    Open,
    /// Nothing is accepted until the application arms the entry.
    Closed,
    /// Open, and shared by several links: packets with the entry's key are accepted if their link
    /// began its message while the entry was open, and no other link has begun one since.
    Shared,
}

/// One expected message: the place of its metadata, the count of its packets, and, in paranoid
/// slots, the key and limits that protect it. Lives in the receiver's private memory.
#[derive(Clone, Debug)]
#[repr(C, align(128))]
pub struct MetadataEntry {
    pub(crate) user: [u8; METADATA_MAX],
    /// Sum of the deltas that have arrived, modulo 2^32; zero when the message is complete (2.5).
    pub(crate) accumulator: u32,
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
    /// Only of a shared entry.
    pub(crate) senders: Option<Box<EntrySenders>>,
}

/// The packets that several senders of one entry, each on its own link, have sent of their messages
/// of several packets. So a message that one sender leaves unfinished, or sends too early, does not
/// spoil another's. Nothing here depends on the order in which packets arrive.
#[derive(Clone, Debug)]
pub(crate) struct EntrySenders {
    /// The link whose message the accumulator counts, if that is not zero.
    begun_by: LinkId,
    /// By the index of the link.
    links: Vec<SentSum>,
}

/// The sum of the deltas, modulo 2^32, that a link has sent to an entry, refused ones included:
/// zero between two messages (2.5).
#[derive(Clone, Copy, Debug, Default)]
struct SentSum {
    sum: u32,
    generation: u16,
}

impl EntrySenders {
    pub(crate) fn new(links: usize) -> Self {
        Self { begun_by: LinkId::SELF, links: alloc::vec![SentSum::default(); links] }
    }

    /// Makes room for links with indices below `links`.
    pub(crate) fn reserve(&mut self, links: usize) {
        if links > self.links.len() {
            self.links.resize(links, SentSum::default());
        }
    }

    /// The key is another from now on: nothing that was sent before counts.
    fn clear(&mut self) {
        self.links.fill(SentSum::default());
    }

    fn of(&mut self, link: LinkId) -> Option<&mut SentSum> {
        let sent = self.links.get_mut(link.index as usize)?;
        if sent.generation != link.generation {
            *sent = SentSum { sum: 0, generation: link.generation };
        }
        Some(sent)
    }
}

// Table 2 has 128 bytes; two lines, so that entries never share one.
const _: () = assert!(size_of::<MetadataEntry>() == 128);

impl MetadataEntry {
    pub(crate) fn new(state: EntryState, key: Key) -> Self {
        Self {
            user: [0; METADATA_MAX],
            accumulator: 0,
            key,
            low: 0,
            high: 0,
            receiver: 0,
            user_len: 0,
            state,
            senders: None,
        }
    }

    /// Opens the entry for the next message.
    pub(crate) fn open(&mut self) {
        self.state = if self.senders.is_some() { EntryState::Shared } else { EntryState::Open };
        self.accumulator = 0;
        self.user_len = 0;
    }

    /// A packet for an entry that is not simply open: the accumulator before it, if it may be
    /// deposited. If not, the sum that its link has sent is updated, and nothing else changes.
    #[inline(never)]
    pub(crate) fn let_through(&mut self, link: LinkId, delta: u32) -> Result<u32, Refusal> {
        let is_open = self.state == EntryState::Shared;
        if delta == 0 {
            return if is_open { Ok(self.accumulator) } else { Err(Refusal::EntryClosed) };
        }
        let Some(senders) = &mut self.senders else { return Err(Refusal::EntryClosed) };
        let begun_by = senders.begun_by;
        let sent = senders.of(link).ok_or(Refusal::EntryClosed)?;
        if is_open && sent.sum == 0 {
            // The link that begins takes the entry over: a sender that stays silent in the middle
            // of a message keeps no other out.
            return Ok(0);
        }
        if is_open && self.accumulator != 0 && begun_by == link {
            return Ok(self.accumulator);
        }
        sent.sum = sent.sum.wrapping_add(delta);
        Err(Refusal::EntryClosed)
    }

    /// A packet of a message of several was deposited in a shared entry.
    #[inline(never)]
    pub(crate) fn count_sent(&mut self, link: LinkId) {
        if let Some(senders) = &mut self.senders {
            senders.begun_by = link;
            if let Some(sent) = senders.of(link) {
                sent.sum = self.accumulator;
            }
        }
    }

    /// Records a packet that was deposited: its metadata, and its delta.
    #[inline(always)]
    pub(super) fn count<B: Body>(
        &mut self,
        link: LinkId,
        header: &Header,
        body: &B,
        checked: &Checked,
    ) {
        self.count_with(link, header, checked, |user| body.copy_metadata(user));
    }

    /// The same with a private copy of the metadata.
    pub(super) fn count_copied(
        &mut self,
        link: LinkId,
        header: &Header,
        metadata: &[u8],
        checked: &Checked,
    ) {
        self.count_with(link, header, checked, |user| user.copy_from_slice(metadata));
    }

    #[inline(always)]
    fn count_with(
        &mut self,
        link: LinkId,
        header: &Header,
        checked: &Checked,
        copy_metadata: impl FnOnce(&mut [u8]),
    ) {
        // A message begins: the metadata of the one before is no longer valid.
        if header.delta == 0 || checked.before == 0 {
            self.user_len = 0;
        }
        if header.metadata_len != 0 {
            self.user_len = header.metadata_len;
            copy_metadata(&mut self.user[..header.metadata_len as usize]);
        }
        if header.delta != 0 {
            self.accumulator = checked.accumulator;
            if self.state == EntryState::Shared {
                self.count_sent(link);
            }
        }
    }

    /// The one message of a one-shot entry is complete.
    #[inline(always)]
    pub(super) fn close(&mut self) {
        self.state = EntryState::Closed;
    }

    /// Changes the key of a paranoid entry.
    pub(crate) fn set_key(&mut self, key: Key) {
        self.key = key;
        if let Some(senders) = &mut self.senders {
            senders.clear();
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

    /// The application's value beside the entry (Table 2: the receive class pointer).
    pub fn receiver(&self) -> u64 {
        self.receiver
    }
}
