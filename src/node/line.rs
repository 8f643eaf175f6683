//! Messages of one line: up to 16 bytes of metadata and data, beside their header, written into the
//! ring by ordinary stores (direct I/O, Hamlyn 2.3).
//!
//! Each call here returns whether it wrote the line. Never: a line is written while messages wait
//! in work queues, for an end point with an unread report of the control plane (of the link's end,
//! for example), or in a forked child; a message is examined here that is longer, or must wait, or
//! cannot be sent: that is for `send.rs`.

use super::{Node, NodeSendError};
use crate::interface::LinkId;
use crate::link::ring::words_of;
#[cfg(feature = "unstable-internals")]
use crate::wire::TicketBytes;
use crate::wire::{
    FAST_WORD, HEADER_WORDS, Header, INLINE_BYTES, MetadataIndex, OFFSET_WORD, Share, Ticket,
};
use core::time::Duration;

/// A ticket, and the link over which its messages go: [`Node::prepare`].
#[derive(Clone, Debug)]
pub struct PreparedTicket {
    /// The header of a message of one packet, but for its length.
    words: [u64; HEADER_WORDS],
    capacity: u64,
    /// The number of offsets at which a whole line's bytes fit.
    line_offsets: u64,
    link: LinkId,
    ticket: Ticket,
}

impl PreparedTicket {
    /// For messages over one link, which must lead to the ticket's destination: otherwise
    /// [`Manager::send_prepared_now`](crate::protocol::Manager::send_prepared_now) sends nothing.
    /// For the link that leads there, see [`Node::prepare`].
    pub fn new(ticket: &Ticket, link: LinkId) -> Self {
        let words = header_of(ticket, 0, 0, 0).to_words();
        let capacity = ticket.capacity();
        let line_offsets = capacity.saturating_sub(INLINE_BYTES as u64 - 1);
        Self { words, capacity, line_offsets, link, ticket: *ticket }
    }

    /// The ticket that was prepared.
    pub fn ticket(&self) -> &Ticket {
        &self.ticket
    }

    /// The link over which its messages go.
    pub fn link(&self) -> LinkId {
        self.link
    }
}

impl Node {
    /// One line: header and body by ordinary stores (direct I/O, Hamlyn 2.3), with the conditions
    /// of `Segmenter::new` for a message of one packet. False: it is longer, or must wait, or
    /// cannot be sent. The caller has checked that the link leads to the ticket's destination, and
    /// that the process is the parent.
    #[inline(always)]
    pub(super) fn push_line(
        &mut self,
        index: usize,
        ticket: &Ticket,
        data: &[u8],
        metadata: &[u8],
        word: u32,
    ) -> bool {
        let Some(body) = body_of(ticket, data, metadata) else { return false };
        // Messages that wait in work queues, for any link, have their turn, too.
        if self.queued.total() > 0 {
            return false;
        }
        let Some(Some(link)) = self.links.get_mut(index) else { return false };
        let Some(tx) = &mut link.tx else { return false };
        let header = header_of(ticket, data.len() as u32, metadata.len() as u8, word);
        if tx.ring.push_line(&header, body).is_err() {
            return false;
        }
        tx.signal_if_asleep(|| ticket.flags);
        self.count_line(data.len());
        true
    }

    #[inline(always)]
    fn count_line(&self, bytes: usize) {
        self.counters.lines_sent.add(1);
        self.counters.bytes_sent.add(bytes as u64);
    }

    /// Does the look-ups for a ticket once, for a sender that uses it repeatedly: see
    /// [`send_prepared`](Self::send_prepared).
    ///
    /// ```
    /// # let dir = std::env::temp_dir().join(format!("hamlyn-doc-prepare-{}", std::process::id()));
    /// use hamlyn::{LinkId, MetadataIndex, Node, SlotConfig};
    /// # use std::time::Duration;
    ///
    /// # let limit = Some(Duration::from_secs(10));
    /// # let config = hamlyn::Config::from_env()?.dir(&dir);
    /// let mut node = Node::with_config(config)?;
    /// let (area, queue) = (node.message_area(4096)?, node.notification_queue(1)?);
    /// let slot = node.slot(SlotConfig::new(area, queue))?;
    /// let prepared = node.prepare(&node.ticket(slot, MetadataIndex(0))?)?;
    /// assert_eq!((prepared.ticket().capacity(), prepared.link()), (4096, LinkId::SELF));
    /// for _ in 0..3 {
    ///     node.send_prepared(&prepared, b"again", b"", limit)?;
    ///     node.recv(queue, limit)?;
    /// }
    /// # drop(node);
    /// # std::fs::remove_dir_all(&dir).ok();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn prepare(&mut self, ticket: &Ticket) -> Result<PreparedTicket, NodeSendError> {
        self.check_fork()?;
        let index = self.route(ticket.destination)?;
        let Some(Some(link)) = self.links.get(index) else {
            return Err(NodeSendError::Unreachable(ticket.destination));
        };
        Ok(PreparedTicket::new(ticket, link.id))
    }

    /// [`send`](Self::send) with a prepared ticket. If the link to its destination has ended since,
    /// it uses another one that leads there.
    #[inline]
    pub fn send_prepared(
        &mut self,
        prepared: &PreparedTicket,
        data: &[u8],
        metadata: &[u8],
        timeout: Option<Duration>,
    ) -> Result<(), NodeSendError> {
        let may = self.fork_guard.is_parent();
        if metadata.is_empty() && self.push_prepared_if(may, prepared, 0, data, 0) {
            return Ok(());
        }
        self.send_on(self.primary(), &prepared.ticket, data, metadata, timeout)
    }

    /// One line over the link of a prepared ticket, `offset` bytes behind its base; `word` is that
    /// of a fast packet. False: nothing was done, because the message is longer, or must wait, or
    /// cannot be sent, or the control plane has a report that must be handled first.
    #[inline(always)]
    pub(crate) fn push_prepared(
        &mut self,
        prepared: &PreparedTicket,
        offset: u64,
        data: &[u8],
        word: u32,
    ) -> bool {
        let may = self.fork_guard.is_parent_at_rest();
        self.push_prepared_if(may, prepared, offset, data, word)
    }

    #[inline(always)]
    fn push_prepared_if(
        &mut self,
        may: bool,
        prepared: &PreparedTicket,
        offset: u64,
        data: &[u8],
        word: u32,
    ) -> bool {
        // The usual length by itself: its words are read when they are written.
        match <&[u8; INLINE_BYTES]>::try_from(data) {
            Ok(data) => {
                offset < prepared.line_offsets
                    && may
                    && self.push_prepared_words(prepared, offset, data, INLINE_BYTES, word)
            }
            Err(_) => may && self.push_prepared_short(prepared, offset, data, word),
        }
    }

    #[inline(never)]
    fn push_prepared_short(
        &mut self,
        prepared: &PreparedTicket,
        offset: u64,
        data: &[u8],
        word: u32,
    ) -> bool {
        let end = offset.checked_add(data.len() as u64);
        if end.is_none_or(|end| end > prepared.capacity) {
            return false;
        }
        let mut body = [0; INLINE_BYTES];
        let Some(to) = body.get_mut(..data.len()) else { return false };
        to.copy_from_slice(data);
        self.push_prepared_words(prepared, offset, &body, data.len(), word)
    }

    /// `length` bytes of `body`, which fit.
    #[inline(always)]
    fn push_prepared_words(
        &mut self,
        prepared: &PreparedTicket,
        offset: u64,
        body: &[u8; INLINE_BYTES],
        length: usize,
        word: u32,
    ) -> bool {
        let Some(Some(link)) = self.links.get_mut(prepared.link.index as usize) else {
            return false;
        };
        // The index is that of its place. A generation comes again after 65,536 links; the ticket
        // must be for the peer that is there then.
        if self.queued.total() > 0
            || link.id.generation != prepared.link.generation
            || link.peer.node != prepared.ticket.destination
        {
            return false;
        }
        let Some(tx) = &mut link.tx else { return false };
        let words = |i| match i {
            OFFSET_WORD => prepared.words[i] + offset,
            FAST_WORD => prepared.words[i] | (word as u64) << 32,
            _ => prepared.words.get(i).copied().unwrap_or(words_of(body)[i & 1]),
        };
        if tx.ring.push_words(length as u32, words).is_err() {
            return false;
        }
        tx.signal_if_asleep(|| prepared.ticket.flags);
        self.count_line(length);
        true
    }

    /// [`push_line`](Self::push_line) over the link that was used last, if it leads there.
    #[inline(always)]
    pub(super) fn push_line_again(
        &mut self,
        ticket: &Ticket,
        data: &[u8],
        metadata: &[u8],
        word: u32,
    ) -> bool {
        match self.routes.again(&ticket.destination) {
            Some(index) => {
                self.fork_guard.is_parent()
                    && self.push_line(index as usize, ticket, data, metadata, word)
            }
            None => false,
        }
    }

    /// [`push_line_again`](Self::push_line_again) without metadata, of `length` bytes in the two
    /// words of `body`, with a ticket in its wire form. False, too, if the bytes are no ticket.
    #[cfg(feature = "unstable-internals")]
    #[inline(always)]
    pub(super) fn push_bytes_again(
        &mut self,
        ticket: &TicketBytes<'_>,
        length: u32,
        body: impl Fn(usize) -> u64,
    ) -> bool {
        let Some(index) = self.routes.again(&ticket.destination()) else { return false };
        if !self.fork_guard.is_parent() || self.queued.total() > 0 || !ticket.allows(length) {
            return false;
        }
        let Some(Some(link)) = self.links.get_mut(index as usize) else { return false };
        let Some(tx) = &mut link.tx else { return false };
        let word = |i| ticket.header_word(i).unwrap_or_else(|| body(i & 1));
        if tx.ring.push_words(length, word).is_err() {
            return false;
        }
        tx.signal_if_asleep(|| ticket.flags());
        self.count_line(length as usize);
        true
    }

    /// Sends a message that is one line, over one link, if it can be taken now; `false`: it is
    /// longer, or must wait, or cannot be sent, and [`prepare_send`](Self::prepare_send) and
    /// [`advance_send`](Self::advance_send) give the reason. `word` is that of a fast packet.
    #[inline]
    pub(crate) fn try_send_line_over(
        &mut self,
        link: LinkId,
        ticket: &Ticket,
        data: &[u8],
        metadata: &[u8],
        word: u32,
    ) -> bool {
        self.fork_guard.is_parent_at_rest()
            && self.leads_to(link, ticket.destination)
            && self.push_line(link.index as usize, ticket, data, metadata, word)
    }
}

/// Metadata and data of up to 16 bytes together, in the order of the wire; `None`: they are longer,
/// or longer than the ticket allows.
#[inline(always)]
fn body_of(ticket: &Ticket, data: &[u8], metadata: &[u8]) -> Option<[u64; 2]> {
    if ticket.bound < ticket.base || ticket.bound - ticket.base < data.len() as u64 {
        return None;
    }
    // Whole words if the length fits: a copy of variable length is a call.
    match (<&[u8; 16]>::try_from(data), metadata) {
        (Ok(data), []) => Some(words_of(data)),
        _ => short_body_of(ticket, data, metadata),
    }
}

#[inline]
fn short_body_of(ticket: &Ticket, data: &[u8], metadata: &[u8]) -> Option<[u64; 2]> {
    if metadata.is_empty() {
        return short_words_of(data);
    }
    // A message in fast mode has no metadata.
    if ticket.metadata_index == MetadataIndex::FAST {
        return None;
    }
    let mut body = [0u8; INLINE_BYTES];
    body.get_mut(..metadata.len())?.copy_from_slice(metadata);
    body.get_mut(metadata.len()..metadata.len() + data.len())?.copy_from_slice(data);
    Some(words_of(&body))
}

/// Up to 16 bytes of data.
#[inline]
pub(super) fn short_words_of(data: &[u8]) -> Option<[u64; 2]> {
    if let Ok(data) = <&[u8; 8]>::try_from(data) {
        return Some([u64::from_le_bytes(*data), 0]);
    }
    let mut body = [0u8; INLINE_BYTES];
    body.get_mut(..data.len())?.copy_from_slice(data);
    Some(words_of(&body))
}

/// The header of a message of one packet.
#[inline(always)]
fn header_of(ticket: &Ticket, length: u32, metadata_len: u8, word: u32) -> Header {
    debug_assert!(ticket.share >= Share::new(1).unwrap_or(Share::WHOLE));
    Header {
        destination: ticket.destination.destination(),
        slot: ticket.slot,
        metadata_index: ticket.metadata_index,
        key: ticket.key,
        offset: ticket.base,
        length,
        delta: ticket.share.to_wire(),
        metadata_len,
        flags: ticket.flags,
        word,
    }
}
