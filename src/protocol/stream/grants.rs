//! Tickets for a stream's sender: buffers go into slots, and the sender gets a grant for each, and
//! a count of the freed places.
//!
//! Never: a sender's request takes memory beyond the settings; a grant waits for room under the
//! lock.

use super::intake::Intake;
use crate::node::{Node, NodeSendError};
use crate::os::memory::AreaMemory;
use crate::protocol::records::{self, GRANT_BYTES, TicketGrant};
use crate::wire::{MetadataIndex, Ticket};
use std::format;
use std::string::{String, ToString};

impl Intake {
    /// Whether the sender is to get tickets at once.
    #[inline]
    pub(super) fn is_due(&self) -> bool {
        self.window.is_short() || self.places.is_due()
    }

    /// Puts buffers into slots that lack one, and grants their tickets to the sender.
    #[inline]
    pub(super) fn replenish(&mut self, node: &mut Node) {
        if self.asked.is_some() {
            self.answer_ask(node);
        }
        if self.window.unarmed() > 0 {
            self.arm(node);
        }
        self.shared.buffers.is_short(self.asked.is_some() || self.window.unarmed() > 0);
        if !self.ungranted.is_empty() {
            self.grant(node);
        }
        if self.places.is_due() {
            self.tell_freed(node);
        }
    }

    /// Reports the count of freed places to the sender, if the link has room now.
    fn tell_freed(&mut self, node: &mut Node) {
        let Some((connection, grants)) = self.shared.joined.get() else { return };
        let base = grants.base + (GRANT_BYTES * self.slots.len()) as u64;
        let freed = self.places.freed().to_le_bytes();
        match node.try_send_fast_over(connection.link(), &Ticket { base, ..*grants }, &freed, 0) {
            Err(NodeSendError::Full) => {}
            // Or it is gone, or gave a useless ticket, and needs no report.
            _ => self.places.tell(),
        }
    }

    /// The reason why the sender gets no ticket, if this program holds the buffers; as of the last
    /// look.
    pub(super) fn held_up(&self) -> Option<String> {
        let advice = "release records, or copy them";
        if self.asked.is_some() && !self.taken.buffers.is_empty() {
            return Some(format!(
                "this program holds as much of long records as it may: {advice}, or raise \
                 record_bytes_max"
            ));
        }
        let has_more = !self.free.is_empty() || self.buffers < self.config.buffers_max;
        (self.window.out() == 0 && !has_more).then(|| {
            let held = self.taken.buffers.len();
            format!(
                "this program holds all {held} buffers (a record that is kept keeps those behind it, \
                 too): {advice}, or raise buffers_max"
            )
        })
    }

    fn arm(&mut self, node: &mut Node) {
        while self.window.unarmed() > 0 {
            let Some(memory) = self.buffer(node) else { return };
            let Some(number) = self.window.arm() else { return };
            self.put_into_slot(node, number, memory);
        }
    }

    /// A buffer for the next ticket, made if necessary and allowed.
    fn buffer(&mut self, node: &mut Node) -> Option<AreaMemory> {
        // If records are long, the next will be, too. The buffers in slots leave room for one of
        // the longest: otherwise a sender that asks for that would wait for itself.
        let fits = |memory: &AreaMemory| {
            self.large_in_slots + memory.as_ref().len() <= self.config.record_bytes_max
        };
        if let Some(i) = self.free_large.iter().position(fits) {
            return Some(self.free_large.swap_remove(i));
        }
        if let Some(memory) = self.free.pop() {
            return Some(memory);
        }
        if self.buffers >= self.config.buffers_max {
            return None;
        }
        match node.new_memory(self.config.buffer_bytes) {
            Ok(memory) => {
                self.buffers += 1;
                Some(memory)
            }
            Err(_) => {
                // No more can be had; asking each time would cost a system call.
                self.config.buffers_max = self.buffers;
                None
            }
        }
    }

    /// The slot of a ticket gets a buffer and a key, and the sender a grant. The slot's old memory
    /// comes back.
    fn put_into_slot(&mut self, node: &mut Node, number: u64, memory: AreaMemory) {
        let size = memory.as_ref().len();
        let index = self.window.slot(number);
        let slot = &mut self.slots[index];
        let armed = node
            .replace_memory(slot.id, memory)
            .and_then(|before| {
                slot.size = size;
                if size > self.config.buffer_bytes {
                    self.large_in_slots += size;
                }
                node.arm(slot.id, MetadataIndex(0), Some(0..size as u64)).map(|()| before)
            })
            .and_then(|before| {
                node.ticket(slot.id, MetadataIndex(0)).map(|ticket| (before, ticket))
            });
        match armed {
            Ok((before, ticket)) => {
                let grant = TicketGrant {
                    key: ticket.key.0,
                    number: number as u32,
                    size: size as u32,
                    refused: false,
                };
                if slot.empty.is_none() {
                    slot.empty = Some(before);
                } else {
                    self.put_back(before);
                }
                self.owe(index, grant);
            }
            // Its own slots exist as long as the end point does.
            Err(e) => self.fault = Some(e.to_string()),
        }
    }

    /// The sender needs a larger buffer for a ticket that it has.
    #[cold]
    fn answer_ask(&mut self, node: &mut Node) {
        let Some((number, bytes)) = self.asked else { return };
        if !self.window.is_unused(number) {
            // Its message has come meanwhile: an honest sender waits after it has asked.
            self.asked = None;
            return;
        }
        let page = records::PAGE;
        let longest = self.config.record_bytes_max.next_multiple_of(page);
        let index = self.window.slot(number);
        let (slot, size) = (self.slots[index].id, self.slots[index].size);
        let mut refused = bytes > longest;
        if size < bytes && !refused {
            let fits = |memory: &AreaMemory| memory.as_ref().len() >= bytes;
            let found = self.free_large.iter().position(fits);
            let memory = match found {
                Some(i) => Some(self.free_large.swap_remove(i)),
                None => {
                    // Powers of two, so that records of similar lengths share buffers.
                    let wanted = bytes.next_power_of_two().min(longest);
                    // Buffers in slots count. Arming keeps them to one of the longest, so that an
                    // honest sender, which asks for its next ticket, does not wait for itself.
                    let limit = 3 * longest;
                    while self.large_bytes + wanted > limit {
                        let Some(memory) = self.free_large.pop() else { break };
                        self.large_bytes -= memory.as_ref().len();
                        node.drop_memory(memory);
                    }
                    if self.large_bytes + wanted > limit {
                        // Later, when records have been released.
                        return;
                    }
                    let made = node.new_memory(wanted).ok();
                    self.large_bytes += made.as_ref().map_or(0, |_| wanted);
                    refused = made.is_none();
                    made
                }
            };
            if let Some(memory) = memory {
                self.asked = None;
                if size > self.config.buffer_bytes {
                    self.large_in_slots -= size;
                }
                return self.put_into_slot(node, number, memory);
            }
        }
        self.asked = None;
        if let Ok(ticket) = node.ticket(slot, MetadataIndex(0)) {
            let (key, number, size) = (ticket.key.0, number as u32, size as u32);
            self.owe(index, TicketGrant { key, number, size, refused });
        }
    }

    /// A slot's ticket is to be granted to the sender; only its last one, if the sender took none
    /// before.
    fn owe(&mut self, slot: usize, grant: TicketGrant) {
        if self.slots[slot].owed.replace(grant).is_none() {
            self.ungranted.push_back(slot);
        }
    }

    /// Grants tickets to the sender, as far as the link has room now; the others follow later.
    fn grant(&mut self, node: &mut Node) {
        let Some((connection, grants)) = self.shared.joined.get() else { return };
        while let Some(&slot) = self.ungranted.front() {
            if let Some(grant) = self.slots[slot].owed {
                let ticket = Ticket { base: grants.base + (GRANT_BYTES * slot) as u64, ..*grants };
                match node.try_send_fast_over(connection.link(), &ticket, &grant.to_bytes(), 0) {
                    Err(NodeSendError::Full) => return,
                    // Or it is gone, or gave a useless ticket, and needs no grant.
                    _ => self.slots[slot].owed = None,
                }
            }
            self.ungranted.pop_front();
        }
    }
}
