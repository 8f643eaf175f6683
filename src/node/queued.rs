//! Messages that wait in work queues: gathered from send buffer areas (Hamlyn 3.2), or short ones
//! that found no room; they leave in the node's turns.

use super::send::{NodeSendError, count_long, outranked};
use super::wait::Backoff;
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
                if link.queued == 0 {
                    self.with_queue.push(index as u32);
                }
                link.queued += 1;
                self.queued += 1;
                self.turns.call_attention();
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
        let mut backoff = Backoff::new(&self.config, timeout);
        while !done(self) {
            let before = self.counters.packets_sent.get();
            let arrived = self.poll()?;
            if arrived > 0 || self.counters.packets_sent.get() != before {
                backoff.restart();
            }
            if done(self) {
                break;
            }
            let waited = self.wait_for_room(&mut backoff, None);
            if !waited.map_err(|e| NodeSendError::Wait(std::sync::Arc::new(e)))? {
                return Ok(false);
            }
        }
        Ok(true)
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
        let counters = &self.counters;
        let (mut flags, mut done, mut bytes, mut packets) = (Flags::empty(), 0, 0u64, 0u64);
        let next = &mut link.next_terminus;
        crate::interface::terminus::transmit_turn(
            &mut self.termini,
            link.id,
            tx,
            next,
            budget,
            |sent| {
                packets += 1;
                bytes += sent.bytes as u64;
                if sent.is_last {
                    done += 1;
                    flags |= sent.flags;
                }
            },
        );
        if packets > 0 {
            counters.packets_sent.add(packets);
            counters.bytes_sent.add(bytes);
            counters.messages_sent.add(done as u64);
            tx.cut_messages += done as u64;
            tx.signal_if_asleep(&flags);
            link.queued -= done;
            self.queued -= done;
            if done > 0 && link.queued == 0 {
                self.with_queue.retain(|waits| *waits as usize != index);
            }
        }
        let asks = packets > done as u64 && count_long(tx, bytes);
        if let Some(violation) = tx.violation() {
            self.end_violating(index, violation);
        } else if asks {
            self.ask_for_bulk(index as u32);
        }
    }
}
