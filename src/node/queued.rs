//! Messages that wait in work queues: gathered from send buffer areas (Hamlyn 3.2), or short ones
//! that found no room; they leave in the node's turns, in an order that
//! [`engine::queued`](crate::engine::queued) decides.

use super::link::SentPackets;
use super::send::NodeSendError;
use super::wait::{Look, WaitError};
use super::{Node, TerminusId};
use crate::engine::queued::{Queued, SendWay, SendsQueued};
use crate::interface::LinkId;
use crate::interface::terminus::{Piece, PostError, SendHandle, comes_behind, transmit_turn};
use crate::wire::{Flags, Ticket};
use core::time::Duration;

impl Node {
    /// Queues a message gathered from pieces of send buffer areas (Hamlyn 2.3). It leaves in this
    /// and later calls of `poll`, `recv`, `send` and [`flush`](Self::flush), interleaved packet by
    /// packet with those of other termini. The pieces are needed until
    /// [`is_reusable`](Self::is_reusable).
    pub fn post_send(
        &mut self,
        terminus: TerminusId,
        ticket: &Ticket,
        pieces: &[Piece],
        metadata: &[u8],
    ) -> Result<SendHandle, NodeSendError> {
        self.check_fork()?;
        self.terminus_mut(terminus)?;
        let index = self.route(ticket.destination)?;
        let Some(Some(link)) = self.links.get_mut(index) else {
            return Err(NodeSendError::Unreachable(ticket.destination));
        };
        let Some(tx) = &mut link.tx else {
            return Err(NodeSendError::Unreachable(ticket.destination));
        };
        let packet_bytes = tx.packet_bytes_min();
        let t = &mut self.termini[terminus.0 as usize];
        match t.post_gather(link.id, ticket, pieces, metadata, packet_bytes) {
            Ok(handle) => {
                self.has_queued(index);
                self.transmit_queued(index as u32, self.packets_per_turn());
                Ok(handle)
            }
            Err(PostError::QueueFull(_)) => Err(NodeSendError::Full),
            Err(e) => Err(e.into()),
        }
    }

    /// Whether all bytes of a message have been copied out, so that its buffer may be used again.
    /// It does not mean that the message has arrived.
    #[inline]
    pub fn is_reusable(&self, handle: &SendHandle) -> bool {
        self.termini.get(handle.terminus as usize).is_none_or(|t| t.is_reusable(handle))
    }

    /// Waits until the bytes of one message have been copied out, at most `timeout`; returns
    /// whether they have.
    ///
    /// ```
    /// # let dir = std::env::temp_dir().join(format!("hamlyn-doc-reusable-{}", std::process::id()));
    /// use hamlyn::{MetadataIndex, Node, Piece, SendHandle, SlotConfig};
    /// # use std::time::Duration;
    ///
    /// # let limit = Some(Duration::from_secs(10));
    /// # let config = hamlyn::Config::from_env()?.dir(&dir);
    /// let mut node = Node::with_config(config)?;
    /// # let (area, queue) = (node.message_area(4096)?, node.notification_queue(1)?);
    /// # let slot = node.slot(SlotConfig::new(area, queue))?;
    /// # let ticket = node.ticket(slot, MetadataIndex(0))?;
    /// let terminus = node.primary();
    /// let tag = node.send_buffer(terminus, 64)?;
    /// let handle = node.post_send(terminus, &ticket, &[Piece { tag, offset: 0, length: 5 }], b"")?;
    /// assert!(node.wait_reusable(&handle, limit)?, "the receiver is behind");
    /// // As three numbers, for a handle in another language.
    /// assert!(node.is_reusable(&SendHandle::from_bits(handle.to_bits())));
    /// // All waiting messages, of every terminus.
    /// assert!(node.flush(limit)? && node.queued() == 0);
    /// assert_eq!(node.send_buffer_ref(terminus, tag)?.len(), 64);
    /// node.remove_send_buffer(terminus, tag)?;
    /// # drop(node);
    /// # std::fs::remove_dir_all(&dir).ok();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn wait_reusable(
        &mut self,
        handle: &SendHandle,
        timeout: Option<Duration>,
    ) -> Result<bool, NodeSendError> {
        self.wait_sent(timeout, |node| node.is_reusable(handle))
    }

    /// Messages that wait in the work queues.
    pub fn queued(&self) -> usize {
        self.queued.total()
    }

    /// Waits until every queued message has left, at most `timeout`; returns whether they have.
    pub fn flush(&mut self, timeout: Option<Duration>) -> Result<bool, NodeSendError> {
        self.wait_sent(timeout, |node| node.queued.total() == 0)
    }

    pub(super) fn wait_sent(
        &mut self,
        timeout: Option<Duration>,
        done: impl Fn(&Self) -> bool,
    ) -> Result<bool, NodeSendError> {
        self.check_fork()?;
        if done(self) {
            return Ok(true);
        }
        let mut sent = self.counters.packets_sent.get();
        let look = |node: &mut Self, _| {
            let before = core::mem::replace(&mut sent, node.counters.packets_sent.get());
            match done(node) {
                true => Look::Found(()),
                false if sent != before => Look::Again,
                false => Look::Nothing,
            }
        };
        match self.wait_until(timeout, |_| None, look) {
            Ok(()) => Ok(true),
            Err(WaitError::TimedOut) => Ok(false),
            Err(e) => Err(e.into_send_error(None)),
        }
    }

    /// A message has been put into the work queue for a link.
    pub(super) fn has_queued(&mut self, index: usize) {
        self.queued.posted(index as u32);
        self.turns.call_attention();
    }

    /// The way of a terminus's message over a link now.
    #[inline]
    pub(super) fn way(&mut self, terminus: TerminusId, link: LinkId) -> SendWay {
        let Self { queued, termini, .. } = self;
        queued.way(link.index, || comes_behind(termini, terminus.0 as usize, link))
    }

    /// Before a message that does not wait: sends packets of waiting ones.
    #[cold]
    #[inline(never)]
    pub(super) fn advance_queued(&mut self, terminus: TerminusId, index: usize) {
        let Some(Some(link)) = self.links.get(index) else { return };
        let link = link.id;
        let way = self.way(terminus, link);
        self.send_ahead(link.index, way);
    }
}

impl SendsQueued for Node {
    fn queued(&self) -> &Queued {
        &self.queued
    }

    fn queued_mut(&mut self) -> &mut Queued {
        &mut self.queued
    }

    fn packets_per_turn(&self) -> usize {
        self.config.packets_per_turn as usize
    }

    fn transmit_queued(&mut self, index: u32, packets: usize) {
        let Some(Some(link)) = self.links.get_mut(index as usize) else { return };
        let Some(tx) = &mut link.tx else { return };
        let flags = Flags::empty();
        let mut left = SentPackets { packets: 0, bytes: 0, messages: 0, flags, is_long: false };
        let next = &mut link.next_terminus;
        transmit_turn(&mut self.termini, link.id, tx, next, packets, |sent| {
            left.packets += 1;
            left.bytes += sent.bytes as u64;
            if sent.is_last {
                left.messages += 1;
                left.flags |= sent.flags;
            }
        });
        let mut asks = false;
        if left.packets > 0 {
            left.is_long = left.packets > left.messages;
            asks = tx.have_left(&left);
            self.queued.left(index, left.messages as usize);
        }
        if let Some(violation) = tx.violation() {
            self.end_violating(index as usize, violation);
        } else if asks {
            self.ask_for_bulk(index);
        }
    }
}
