//! Messages of one packet, written into the ring by the call that sends them (direct I/O, Hamlyn 2.3).
//!
//! Each call here returns whether it wrote the packet. Never: a packet is written while messages wait
//! in work queues, for an end point with an unread report of the control plane (of the link's end,
//! for example), or in a forked child; a message is examined here that is longer, or must wait, or
//! cannot be sent: that is for `send.rs`.

use super::link::BULK_PACKET_MIN;
use super::{Node, NodeSendError};
use crate::interface::LinkId;
use crate::link::{MessageParts, Source, Transmit};
#[cfg(feature = "unstable-internals")]
use crate::wire::TicketBytes;
use crate::wire::{
    Flags, FlowWords, Header, LINE_BYTES, METADATA_MAX, MetadataIndex, SHORT_HEADER_WORDS, Share,
    Ticket, Varying,
};
use core::time::Duration;

/// Data and metadata bytes of the longest packet that is written here.
const DIRECT_MAX: usize = BULK_PACKET_MIN as usize - 1;
/// Bytes behind a short header in one line.
const LINE_BYTES_MAX: usize = LINE_BYTES - 8 * SHORT_HEADER_WORDS;

/// A ticket, and the link over which its messages go: [`Node::prepare`].
#[derive(Clone, Debug)]
pub struct PreparedTicket {
    /// Of a message of one packet without metadata.
    flow: FlowWords,
    capacity: u64,
    link: LinkId,
    ticket: Ticket,
}

impl PreparedTicket {
    /// For messages over one link, which must lead to the ticket's destination: otherwise
    /// [`Manager::send_prepared_now`](crate::protocol::Manager::send_prepared_now) sends nothing.
    /// For the link that leads there, see [`Node::prepare`].
    pub fn new(ticket: &Ticket, link: LinkId) -> Self {
        let flow = header_of(ticket, 0, 0, 0).flow();
        Self { flow, capacity: ticket.capacity(), link, ticket: *ticket }
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
    /// With the conditions of `Segmenter::new` for a message of one packet. False: it is longer, or
    /// must wait, or cannot be sent. The caller has checked that the link leads to the ticket's
    /// destination, and that the process is the parent.
    #[inline(always)]
    pub(super) fn push(
        &mut self,
        index: usize,
        ticket: &Ticket,
        data: impl MessageParts,
        metadata: &[u8],
        word: u32,
    ) -> bool {
        // One line without a call, and no more than that.
        match metadata.is_empty() && data.bytes() <= LINE_BYTES_MAX as u64 {
            true => self.push_at(index, ticket, ticket.base, data, &[], word),
            false => self.push_lines(index, ticket, ticket.base, data, metadata, word),
        }
    }

    /// A packet of several lines, or with metadata.
    #[inline(never)]
    fn push_lines(
        &mut self,
        index: usize,
        ticket: &Ticket,
        offset: u64,
        data: impl MessageParts,
        metadata: &[u8],
        word: u32,
    ) -> bool {
        // A message in fast mode has no metadata.
        let is_fast = ticket.metadata_index == MetadataIndex::FAST;
        let may = metadata.len() <= METADATA_MAX && (metadata.is_empty() || !is_fast);
        may && self.push_at(index, ticket, offset, data, metadata, word)
    }

    #[inline(always)]
    fn push_at(
        &mut self,
        index: usize,
        ticket: &Ticket,
        offset: u64,
        data: impl MessageParts,
        metadata: &[u8],
        word: u32,
    ) -> bool {
        let length = data.bytes();
        let room = ticket.bound.checked_sub(offset);
        if room.is_none_or(|room| room < length) || length > DIRECT_MAX as u64 {
            return false;
        }
        let flow = header_of(ticket, 0, metadata.len() as u8, 0).flow();
        let varying = Varying { offset, length: length as u32, word };
        self.push_packet(index, flow, varying, metadata, data.part(0..length), ticket.flags)
    }

    /// `varying.length` is the number of bytes in `data`.
    #[inline(always)]
    fn push_packet(
        &mut self,
        index: usize,
        flow: FlowWords,
        varying: Varying,
        metadata: &[u8],
        data: impl Source,
        flags: Flags,
    ) -> bool {
        // Messages that wait in work queues, for any link, have their turn, too.
        if self.queued.total() > 0 {
            return false;
        }
        let Some(Some(link)) = self.links.get_mut(index) else { return false };
        let Some(tx) = &mut link.tx else { return false };
        // Longer ones may belong into the bulk ring.
        let length = varying.length as usize;
        let packet_bytes = tx.ring.packet_bytes() as usize;
        if length + metadata.len() > DIRECT_MAX
            || !metadata.is_empty() && length + metadata.len() > packet_bytes
        {
            return false;
        }
        if tx.ring.push(flow, varying, metadata, data).is_err() {
            return false;
        }
        tx.signal_if_asleep(|| flags);
        self.counters.singles_sent.add(1);
        self.counters.bytes_sent.add(length as u64);
        true
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

    /// One packet over the link of a prepared ticket, `offset` bytes behind its base; `word` is that
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
        let length = data.len() as u64;
        if !may || length > prepared.capacity || offset > prepared.capacity - length {
            return false;
        }
        // The index is that of its place. A generation comes again after 65,536 links; the ticket
        // must be for the peer that is there then.
        let index = prepared.link.index as usize;
        let Some(Some(link)) = self.links.get(index) else { return false };
        if link.id.generation != prepared.link.generation
            || link.peer.node != prepared.ticket.destination
        {
            return false;
        }
        let offset = prepared.ticket.base + offset;
        if data.len() > LINE_BYTES_MAX {
            return self.push_lines(index, &prepared.ticket, offset, data, &[], word);
        }
        let varying = Varying { offset, length: data.len() as u32, word };
        self.push_packet(index, prepared.flow, varying, &[], data, prepared.ticket.flags)
    }

    /// [`push`](Self::push) over the link that was used last, if it leads there.
    #[inline(always)]
    pub(crate) fn push_again(
        &mut self,
        ticket: &Ticket,
        data: &[u8],
        metadata: &[u8],
        word: u32,
    ) -> bool {
        match self.routes.again(&ticket.destination) {
            Some(index) => {
                self.fork_guard.is_parent()
                    && self.push(index as usize, ticket, data, metadata, word)
            }
            None => false,
        }
    }

    /// [`push_again`](Self::push_again) without metadata, with a ticket in its wire form. False, too,
    /// if the bytes are no ticket. Kept: a message in C costs 515 instructions without it, 455 with it.
    #[cfg(feature = "unstable-internals")]
    #[inline(always)]
    pub(crate) fn push_bytes_again(&mut self, ticket: &TicketBytes<'_>, data: &[u8]) -> bool {
        let Some(index) = self.routes.again(&ticket.destination()) else { return false };
        let Ok(length) = u32::try_from(data.len()) else { return false };
        if !self.fork_guard.is_parent() || !ticket.allows(length) {
            return false;
        }
        let varying = Varying { offset: ticket.base(), length, word: 0 };
        self.push_packet(index as usize, ticket.flow(), varying, &[], data, ticket.flags())
    }

    /// Sends a message of one packet, over one link, if it can be taken now; `false`: it is
    /// longer, or must wait, or cannot be sent, and [`prepare_send`](Self::prepare_send) and
    /// [`advance_send`](Self::advance_send) give the reason. `word` is that of a fast packet.
    #[inline]
    pub(crate) fn try_send_packet_over(
        &mut self,
        link: LinkId,
        ticket: &Ticket,
        data: &[u8],
        metadata: &[u8],
        word: u32,
    ) -> bool {
        self.fork_guard.is_parent_at_rest()
            && self.leads_to(link, ticket.destination)
            && self.push(link.index as usize, ticket, data, metadata, word)
    }
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
