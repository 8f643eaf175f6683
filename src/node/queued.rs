//! Messages that wait in work queues: gathered from send buffer areas (Hamlyn 3.2), or short ones
//! that found no room; they leave in the node's turns.

use super::link::Left;
use super::send::{NodeSendError, outranked};
use super::wait::{Look, Waited};
use super::{Node, TerminusId};
use crate::interface::terminus::{Piece, PostError, SendHandle};
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
                self.transmit_queued(index, self.config.packets_per_turn as usize);
                Ok(handle)
            }
            Err(PostError::QueueFull(_)) => Err(NodeSendError::Full),
            Err(e) => Err(e.into()),
        }
    }

    /// Whether all bytes of a message have been copied out, so that its buffer may be used again.
    /// Not whether it has arrived.
    #[inline]
    pub fn is_reusable(&self, handle: &SendHandle) -> bool {
        self.termini.get(handle.terminus as usize).is_none_or(|t| t.is_reusable(handle))
    }

    /// Waits until the bytes of one message have been copied out, at most `timeout`; says whether
    /// they have.
    pub fn wait_reusable(
        &mut self,
        handle: &SendHandle,
        timeout: Option<Duration>,
    ) -> Result<bool, NodeSendError> {
        self.wait_sent(timeout, |node| node.is_reusable(handle))
    }

    /// Messages that wait in the work queues.
    pub fn queued(&self) -> usize {
        self.queued
    }

    /// Waits until every queued message has left, at most `timeout`; says whether they have.
    pub fn flush(&mut self, timeout: Option<Duration>) -> Result<bool, NodeSendError> {
        self.wait_sent(timeout, |node| node.queued == 0)
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
            Err(Waited::TimedOut) => Ok(false),
            Err(e) => Err(e.into_send_error(None)),
        }
    }

    /// A message has been put into the work queue for a link.
    pub(super) fn has_queued(&mut self, index: usize) {
        if let Some(Some(link)) = self.links.get_mut(index) {
            if link.queued == 0 {
                self.with_queue.push(index as u32);
            }
            link.queued += 1;
            self.queued += 1;
        }
        self.turns.call_attention();
    }

    /// Gives queued packets to every link that has any.
    #[cold]
    #[inline(never)]
    pub(super) fn transmit_all_queued(&mut self) {
        let budget = self.config.packets_per_turn as usize;
        let mut i = 0;
        while let Some(&index) = self.with_queue.get(i) {
            self.transmit_queued(index as usize, budget);
            // One that is done with, or has ended, has been taken off the list.
            i += usize::from(self.with_queue.get(i) == Some(&index));
        }
    }

    /// Before a message that does not wait: packets that do, a bounded number of them. Of the link
    /// that it takes, one, so that messages of equal priority share it; but as many as a turn has
    /// where it would have to wait for them. Of the other links, one of one link, in turn.
    #[cold]
    #[inline(never)]
    pub(super) fn advance_queued(&mut self, terminus: TerminusId, index: usize) {
        let Some(Some(link)) = self.links.get(index) else { return };
        let (id, is_waited_for) = (link.id, link.queued > 0);
        if is_waited_for {
            let own_waits = !self.termini[terminus.0 as usize].is_idle(id);
            let is_behind = own_waits || outranked(&mut self.termini, terminus, id);
            let budget = if is_behind { self.config.packets_per_turn as usize } else { 1 };
            self.transmit_queued(index, budget);
        }
        // Whose turn it is moves on as links leave the list, which skips one now and then.
        let turn = self.queue_turn % self.with_queue.len().max(1);
        self.queue_turn = turn + 1;
        if let Some(&other) = self.with_queue.get(turn)
            && other as usize != index
        {
            self.transmit_queued(other as usize, 1);
        }
    }

    /// A bounded number of queued packets to one link.
    pub(super) fn transmit_queued(&mut self, index: usize, budget: usize) {
        let Some(Some(link)) = self.links.get_mut(index) else { return };
        let Some(tx) = &mut link.tx else { return };
        let flags = Flags::empty();
        let mut left = Left { packets: 0, bytes: 0, messages: 0, flags, is_long: false };
        let next = &mut link.next_terminus;
        crate::interface::terminus::transmit_turn(
            &mut self.termini,
            link.id,
            tx,
            next,
            budget,
            |sent| {
                left.packets += 1;
                left.bytes += sent.bytes as u64;
                if sent.is_last {
                    left.messages += 1;
                    left.flags |= sent.flags;
                }
            },
        );
        let mut asks = false;
        if left.packets > 0 {
            left.is_long = left.packets > left.messages;
            asks = tx.have_left(&left);
            let done = left.messages as usize;
            link.queued -= done;
            self.queued -= done;
            if done > 0 && link.queued == 0 {
                self.with_queue.retain(|waits| *waits as usize != index);
            }
        }
        if let Some(violation) = tx.violation() {
            self.end_violating(index, violation);
        } else if asks {
            self.ask_for_bulk(index as u32);
        }
    }
}
