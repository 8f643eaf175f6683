//! Messages that wait in work queues: gathered from send buffer areas (Hamlyn 3.2), or short ones
//! that found no room; they leave in the node's turns.

use super::send::{SendError, count_long};
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
    ) -> Result<SendHandle, SendError> {
        self.check_fork()?;
        self.terminus_mut(terminus)?;
        let index = self.route(ticket.destination)?;
        let Some(Some(link)) = self.links.get_mut(index) else {
            return Err(SendError::Unreachable(ticket.destination));
        };
        let Some(tx) = &mut link.tx else {
            return Err(SendError::Unreachable(ticket.destination));
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
            Err(PostError::QueueFull(_)) => Err(SendError::Full),
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
    ) -> Result<bool, SendError> {
        self.wait_sent(timeout, |node| node.is_reusable(handle))
    }

    /// Messages that wait in the work queues.
    pub fn queued(&self) -> usize {
        self.queued
    }

    /// Waits until every queued message has left, at most `timeout`; says whether they have.
    pub fn flush(&mut self, timeout: Option<Duration>) -> Result<bool, SendError> {
        self.wait_sent(timeout, |node| node.queued == 0)
    }

    pub(super) fn wait_sent(
        &mut self,
        timeout: Option<Duration>,
        done: impl Fn(&Self) -> bool,
    ) -> Result<bool, SendError> {
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
            if !waited.map_err(|e| SendError::Wait(std::sync::Arc::new(e)))? {
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
            let waits = matches!(&self.links[index as usize], Some(link) if link.queued > 0);
            // The link may have ended, and have been taken off the list.
            if waits {
                i += 1;
            } else if self.with_queue.get(i) == Some(&index) {
                self.with_queue.swap_remove(i);
            }
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
            tx.signal_if_asleep(&flags);
            link.queued -= done;
            self.queued -= done;
        }
        let asks = packets > done as u64 && count_long(tx, bytes);
        if let Some(violation) = tx.violation() {
            self.end_violating(index, violation);
        } else if asks {
            self.ask_for_bulk(index as u32);
        }
    }
}
