//! Tickets: 44 bytes that anybody may carry.

use crate::boundary::{Failure, elements_out, get, guard, h_status, out, out_or_null, put};
use crate::memory::h_slot_t;
use crate::node::h_node_t;
use hamlyn::wire::{TICKET_BYTES, TicketError};
use hamlyn::{MetadataIndex, Ticket};

/// Bytes of a ticket.
pub const H_TICKET_BYTES: usize = 44;
const _: () = assert!(H_TICKET_BYTES == TICKET_BYTES);

/// The right to send one message: its destination, key and range of bytes. It consists of these
/// bytes alone: they may be copied, sent in a message, written to a file, and used from any
/// process. Their bearer has the right; the receiver revokes it by changing the key.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct h_ticket_t {
    /// In the format for messages and files: little-endian, the same on every machine.
    pub bytes: [u8; H_TICKET_BYTES],
}

impl h_ticket_t {
    #[inline(always)]
    pub(crate) fn read(&self) -> Result<Ticket, Failure> {
        match Ticket::check(&self.bytes) {
            Ok(()) => Ok(Ticket::from_checked(&self.bytes)),
            Err(e) => Err(not_one(e)),
        }
    }
}

#[cold]
#[inline(never)]
fn not_one(e: TicketError) -> Failure {
    Failure::invalid(format!("the ticket is not one: {e}"))
}

impl From<Ticket> for h_ticket_t {
    fn from(ticket: Ticket) -> Self {
        Self { bytes: ticket.to_bytes() }
    }
}

/// The ticket that sends one message to entry `index` of a slot.
///
/// Errors: H_NO_SUCH; H_STATE, the entry of a paranoid slot is not armed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_ticket(
    node: *mut h_node_t,
    slot: h_slot_t,
    index: u32,
    ticket: *mut h_ticket_t,
) -> h_status {
    guard(|| {
        let (node, ticket) = (get(node, "node")?, out(ticket, "ticket")?);
        ticket.write(node.lock()?.ticket(slot.id(), MetadataIndex(index))?.into());
        Ok(())
    })
}

/// The ticket that sends single packets to a slot in fast mode, with h_send_fast.
///
/// Errors: H_NO_SUCH; H_STATE, the slot is paranoid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_fast_ticket(
    node: *mut h_node_t,
    slot: h_slot_t,
    ticket: *mut h_ticket_t,
) -> h_status {
    guard(|| {
        let (node, ticket) = (get(node, "node")?, out(ticket, "ticket")?);
        ticket.write(node.lock()?.fast_ticket(slot.id())?.into());
        Ok(())
    })
}

/// Checks that bytes are a ticket's, and gives the number of data bytes that it allows. Only the
/// receiver knows whether it is valid, when a packet arrives. `capacity` may be null.
///
/// Errors: H_INVALID, not a ticket.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_ticket_capacity(
    ticket: *const h_ticket_t,
    capacity: *mut u64,
) -> h_status {
    guard(|| {
        let ticket = get(ticket, "ticket")?.read()?;
        put(out_or_null(capacity, "capacity")?, ticket.capacity());
        Ok(())
    })
}

/// The node that a ticket leads to, as its h_node_id gives it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_ticket_destination(ticket: *const h_ticket_t, id: *mut u64) -> h_status {
    guard(|| {
        out(id, "id")?.write(get(ticket, "ticket")?.read()?.destination.0);
        Ok(())
    })
}

/// The same right for the bytes from `offset` on, counted from the ticket's first; `at` may be
/// `ticket`.
///
/// Errors: H_INVALID, not a ticket, or outside it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_ticket_at(
    ticket: *const h_ticket_t,
    offset: u64,
    at: *mut h_ticket_t,
) -> h_status {
    guard(|| {
        let moved = get(ticket, "ticket")?.read()?.at(offset)?;
        out(at, "at")?.write(moved.into());
        Ok(())
    })
}

/// The same right without a notification: the data arrives silently. `silent` may be `ticket`.
///
/// Errors: H_INVALID, not a ticket.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_ticket_silent(
    ticket: *const h_ticket_t,
    silent: *mut h_ticket_t,
) -> h_status {
    guard(|| {
        let ticket = get(ticket, "ticket")?.read()?.silent();
        out(silent, "silent")?.write(ticket.into());
        Ok(())
    })
}

const PARTS_MAX: usize = 1 << 20;

/// Divides a ticket's bytes and its share of the packet counter evenly among `count` parts, up to
/// 2^20, for helpers that together send one message: it is announced when all have sent their
/// parts, each once. The ticket itself must no longer be used.
///
/// Errors: H_INVALID, not a ticket, or one that cannot be divided like this.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_ticket_split(
    ticket: *const h_ticket_t,
    parts: *mut h_ticket_t,
    count: usize,
) -> h_status {
    guard(|| {
        let ticket = get(ticket, "ticket")?.read()?;
        let places = elements_out(parts, count, "parts")?;
        if !(1..=PARTS_MAX).contains(&count) {
            return Err(Failure::invalid(format!(
                "count is {count}, and must be 1 to {PARTS_MAX}"
            )));
        }
        for (place, part) in places.iter_mut().zip(ticket.split_evenly(count as u64)?) {
            place.write(part.into());
        }
        Ok(())
    })
}
