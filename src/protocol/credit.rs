//! A receiver's progress, reported to its sender: a counter that only grows, deposited into the
//! sender's memory without a notification (Hamlyn 1: data movement and notification are separate).
//!
//! Links may reorder: an older count that arrives late is ignored. A count beyond the messages sent
//! is a lie, and is ignored, too.

use crate::interface::{AreaId, LinkId, QueueId, SlotConfig, SlotId};
use crate::node::{Node, NodeSendError};
use crate::wire::{Flags, Ticket};
use std::string::{String, ToString};

/// Memory into which one peer deposits without notifying.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cell {
    pub area: AreaId,
    queue: QueueId,
    slot: SlotId,
}

impl Cell {
    /// A cell, and the ticket for it: it moves data, wakes, and notifies no queue. Nothing is left
    /// behind if that fails.
    pub fn new(node: &mut Node, bytes: usize) -> Result<(Self, Ticket), String> {
        let area = node.message_area(bytes).map_err(|e| e.to_string())?;
        let queue = node.notification_queue(1).map_err(|e| {
            let _ = node.remove_area(area);
            e.to_string()
        })?;
        let slot = node.slot(SlotConfig::new(area, queue).credit(0)).map_err(|e| {
            let _ = node.remove_queue(queue);
            let _ = node.remove_area(area);
            e.to_string()
        })?;
        let cell = Self { area, queue, slot };
        match node.fast_ticket(slot) {
            Ok(ticket) => Ok((cell, ticket.with_flags(Flags::WAKE))),
            Err(e) => {
                cell.remove(node);
                Err(e.to_string())
            }
        }
    }

    /// Gives slot, queue and area back.
    pub fn remove(&self, node: &mut Node) {
        let _ = node.remove_slot(self.slot);
        let _ = node.remove_queue(self.queue);
        let _ = node.remove_area(self.area);
    }
}

/// The sender's side: a slot of one word.
#[derive(Debug)]
pub(crate) struct CreditWord {
    cell: Cell,
    /// The latest accepted count.
    known: u64,
}

impl CreditWord {
    /// Makes the slot, and the ticket for the receiver: it moves data, wakes, and notifies no
    /// queue. Nothing is left behind if that fails.
    pub fn new(node: &mut Node) -> Result<(Self, Ticket), String> {
        let (cell, ticket) = Cell::new(node, 8)?;
        Ok((Self { cell, known: 0 }, ticket))
    }

    /// The count, at most `sent`.
    #[inline]
    pub fn read(&mut self, node: &Node, sent: u64) -> u64 {
        if let Ok([a, b, c, d, e, f, g, h]) = node.area(self.cell.area) {
            let told = u64::from_le_bytes([*a, *b, *c, *d, *e, *f, *g, *h]);
            if told > self.known && told <= sent {
                self.known = told;
            }
        }
        self.known
    }

    /// Gives slot, queue and area back.
    pub fn remove(&self, node: &mut Node) {
        self.cell.remove(node);
    }
}

/// The receiver's side: the consumed count, and the count last reported to the sender.
#[derive(Clone, Debug)]
pub(crate) struct CreditReturn {
    ticket: Ticket,
    pub link: LinkId,
    pub consumed: u64,
    /// The count at which the next report is due.
    due: u64,
    every: u64,
}

impl CreditReturn {
    /// `ticket` came from the peer at the other end of `link`.
    pub fn new(ticket: Ticket, link: LinkId, every: u64) -> Self {
        let every = every.max(1);
        Self { ticket, link, consumed: 0, due: every, every }
    }

    /// Whether a report is due.
    #[inline]
    pub fn is_due(&self) -> bool {
        self.consumed >= self.due
    }

    /// Whether the sender has yet to hear of some.
    pub fn is_untold(&self) -> bool {
        self.consumed > self.due - self.every
    }

    /// Reports to the sender. `false`: the link has no room now, and the caller must try again.
    pub fn tell(&mut self, node: &mut Node) -> bool {
        let count = self.consumed.to_le_bytes();
        match node.try_send_fast_over(self.link, &self.ticket, &count, 0) {
            Err(NodeSendError::Full) => false,
            // Otherwise the sender is gone, or gave a useless ticket, and needs no report.
            Ok(_) | Err(_) => {
                self.due = self.consumed + self.every;
                true
            }
        }
    }
}
