//! Messages: h_send_msg, h_recv and h_recv_block of Hamlyn 3.2, and their like.

use crate::boundary::{
    Done, Failure, bytes, elements, get, guard, guard_usual, h_status, h_status::*, limit, out,
    out_or_null, put,
};
use crate::links::h_link_t;
use crate::memory::{h_queue_t, h_slot_t};
use crate::node::h_node_t;
use crate::tickets::h_ticket_t;
use crate::waiting::repeat;
use core::ffi::c_void;
use hamlyn::interface::terminus::PIECES_MAX;
use hamlyn::protocol::Manager;
use hamlyn::wire::{INLINE_BYTES, TicketBytes};
use hamlyn::{BufferTag, MetadataIndex, NodeSendError, Notification, Piece, SendHandle};

/// Names a message that was sent, so that h_is_reusable can be asked about its buffer. A value.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct h_handle_t {
    /// Private to the library.
    pub bits: [u64; 3],
}

/// The handle of a message whose bytes were copied before the call returned.
fn copied() -> h_handle_t {
    h_handle_t { bits: [0; 3] }
}

impl From<SendHandle> for h_handle_t {
    fn from(handle: SendHandle) -> Self {
        Self { bits: handle.to_bits() }
    }
}

/// Sends one message: `length` bytes of `data` land at the ticket's first byte, and
/// `metadata_length` bytes of `metadata`, up to H_METADATA_MAX, in the metadata entry. Both have
/// been copied when the call returns. Waits for room at most `timeout_ns`, and receives meanwhile,
/// so that two nodes that send to each other never deadlock. `handle` may be null.
///
/// Messages leave in order; packets are counted, not sequenced, so that a metadata entry has one
/// message on its way at a time, unless each is a single packet.
///
/// Errors: H_UNREACHABLE, no link leads to the ticket's node; H_TOO_LONG, for the ticket; H_CLOSED,
/// the other side closed during the call; H_TIMED_OUT, nothing has left; H_INCOMPLETE, part of a
/// long message has left, and the receiver has to arm the entry again; H_INVALID; H_FORKED. No
/// error reports an invalid ticket: refusals reveal nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_send_msg(
    node: *mut h_node_t,
    ticket: *const h_ticket_t,
    data: *const c_void,
    length: usize,
    metadata: *const c_void,
    metadata_length: usize,
    timeout_ns: i64,
    handle: *mut h_handle_t,
) -> h_status {
    if metadata_length != 0 || length != INLINE_BYTES {
        return send_any(node, ticket, data, length, metadata, metadata_length, timeout_ns, handle);
    }
    // The usual message. The general path prepares the rest, and finds out the cause of a failure.
    let send = |node: &Manager, ticket: TicketBytes| {
        node.send_bytes_at_once(ticket, &*data.cast::<[u8; INLINE_BYTES]>())
    };
    match guard_usual(|| send_usual(node, ticket, data, handle, send)) {
        Some(status) => status,
        None => {
            let none = core::ptr::null();
            send_any(node, ticket, data, INLINE_BYTES, none, 0, timeout_ns, handle)
        }
    }
}

/// Sends a message with `send`, if its arguments are valid.
#[inline(always)]
unsafe fn send_usual(
    node: *mut h_node_t,
    ticket: *const h_ticket_t,
    data: *const c_void,
    handle: *mut h_handle_t,
    send: impl FnOnce(&Manager, TicketBytes<'_>) -> bool,
) -> bool {
    let is_right = !node.is_null() && node.is_aligned() && handle.is_aligned();
    if !is_right || ticket.is_null() || data.is_null() {
        return false;
    }
    // The conditions that `get`, `bytes` and `out_or_null` check.
    if !send((*node).at_once(), TicketBytes::new(&(*ticket).bytes)) {
        return false;
    }
    if !handle.is_null() {
        handle.write(copied());
    }
    true
}

/// Up to so many bytes, a message is tried as one packet first.
const SHORT_MAX: usize = 1024;

/// Sends any message; the fast path has done nothing of it.
#[allow(clippy::too_many_arguments)] // As h_send_msg.
#[inline(never)]
unsafe fn send_any(
    node: *mut h_node_t,
    ticket: *const h_ticket_t,
    data: *const c_void,
    length: usize,
    metadata: *const c_void,
    metadata_length: usize,
    timeout_ns: i64,
    handle: *mut h_handle_t,
) -> h_status {
    if metadata_length == 0 && length <= SHORT_MAX {
        let send = |node: &Manager, ticket: TicketBytes| {
            node.send_bytes_at_once(ticket, core::slice::from_raw_parts(data.cast(), length))
        };
        if let Some(status) = guard_usual(|| send_usual(node, ticket, data, handle, send)) {
            return status;
        }
    }
    guard(|| {
        let (node, ticket) = (get(node, "node")?, get(ticket, "ticket")?.read()?);
        let data = bytes(data, length, "data")?;
        let place = out_or_null(handle, "handle")?;
        let metadata = bytes(metadata, metadata_length, "metadata")?;
        node.manager()?.send(&ticket, data, metadata, limit(timeout_ns))?;
        put(place, copied());
        Ok(())
    })
}

/// h_send_msg without waiting: H_FULL if the link cannot take the message now, and H_TOO_LONG if it
/// could never take it in one step. A message of up to 256 bytes is queued while the work queue has
/// room.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_try_send_msg(
    node: *mut h_node_t,
    ticket: *const h_ticket_t,
    data: *const c_void,
    length: usize,
    metadata: *const c_void,
    metadata_length: usize,
    handle: *mut h_handle_t,
) -> h_status {
    guard(|| {
        let (node, ticket) = (get(node, "node")?, get(ticket, "ticket")?.read()?);
        let data = bytes(data, length, "data")?;
        let metadata = bytes(metadata, metadata_length, "metadata")?;
        let place = out_or_null(handle, "handle")?;
        node.lock()?.try_send(&ticket, data, metadata)?;
        put(place, copied());
        Ok(())
    })
}

/// Sends one packet in fast mode: `word` arrives in the notification itself. `ticket` is from
/// h_fast_ticket of the receiver. Waits for room at most `timeout_ns`; with 0 it does not wait, and
/// H_FULL means that there is no room. `handle` may be null.
///
/// Errors: as h_send_msg; H_INVALID, too long for one packet, or not a ticket of fast mode.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_send_fast(
    node: *mut h_node_t,
    ticket: *const h_ticket_t,
    data: *const c_void,
    length: usize,
    word: u32,
    timeout_ns: i64,
    handle: *mut h_handle_t,
) -> h_status {
    guard(|| {
        let (node, ticket) = (get(node, "node")?, get(ticket, "ticket")?.read()?);
        let data = bytes(data, length, "data")?;
        let place = out_or_null(handle, "handle")?;
        if ticket.metadata_index != MetadataIndex::FAST {
            return Err(Failure::invalid("the ticket is not one of fast mode: use h_fast_ticket"));
        }
        let sent = repeat(node.manager()?, timeout_ns, |node| -> Done<Option<()>> {
            match node.try_send_fast(&ticket, data, word) {
                Ok(()) => Ok(Some(())),
                Err(NodeSendError::Full) => {
                    node.poll()?;
                    Ok(None)
                }
                Err(e) => Err(e.into()),
            }
        })?;
        match sent {
            Some(()) => put(place, copied()),
            None if timeout_ns == 0 => return Err(Failure::new(H_FULL, "the link is full")),
            None => {
                let text = "the link stayed full for the whole time limit";
                return Err(Failure::new(H_TIMED_OUT, text));
            }
        }
        Ok(())
    })
}

/// Part of a gathered message: `length` bytes from `offset` of a send buffer area.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct h_piece_t {
    /// The send buffer area.
    pub tag: u8,
    /// First byte.
    pub offset: u64,
    /// Number of bytes.
    pub length: u64,
}

/// Queues a message gathered from up to 16 pieces of send buffer areas. It leaves in this and later
/// calls, or in h_flush; do not change the pieces before h_is_reusable. `handle` may be null.
///
/// Errors: H_FULL, the work queue; H_INVALID, a piece outside its area; otherwise as h_send_msg.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_post_send(
    node: *mut h_node_t,
    ticket: *const h_ticket_t,
    pieces: *const h_piece_t,
    count: usize,
    metadata: *const c_void,
    metadata_length: usize,
    handle: *mut h_handle_t,
) -> h_status {
    guard(|| {
        let (node, ticket) = (get(node, "node")?, get(ticket, "ticket")?.read()?);
        let pieces = elements(pieces, count, "pieces")?;
        let metadata = bytes(metadata, metadata_length, "metadata")?;
        let place = out_or_null(handle, "handle")?;
        if count > PIECES_MAX {
            let text = format!("count is {count}, and at most {PIECES_MAX} are allowed");
            return Err(Failure::invalid(text));
        }
        let piece =
            |p: &h_piece_t| Piece { tag: BufferTag(p.tag), offset: p.offset, length: p.length };
        let pieces: Vec<Piece> = pieces.iter().map(piece).collect();
        let mut node = node.lock()?;
        let primary = node.primary();
        put(place, node.post_send(primary, &ticket, &pieces, metadata)?.into());
        Ok(())
    })
}

/// Whether all bytes of a message have been copied out, so that its buffer may be used again. It
/// does not report the message's arrival.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_is_reusable(
    node: *mut h_node_t,
    handle: *const h_handle_t,
    reusable: *mut bool,
) -> h_status {
    guard(|| {
        let (node, handle) = (get(node, "node")?, get(handle, "handle")?);
        let place = out(reusable, "reusable")?;
        place.write(node.lock()?.is_reusable(&SendHandle::from_bits(handle.bits)));
        Ok(())
    })
}

/// The index of a message in fast mode, which has no metadata entry.
pub const H_INDEX_FAST: u32 = u32::MAX;
const _: () = assert!(H_INDEX_FAST == MetadataIndex::FAST.0);

/// A message has arrived.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct h_notification_t {
    /// The slot that it arrived in, as h_metadata, h_arm and the like take it.
    pub slot: h_slot_t,
    /// The message's metadata entry, or H_INDEX_FAST.
    pub index: u32,
    /// In fast mode the word of the message; else 0.
    pub word: u32,
    /// The link over which its last packet came.
    pub link: h_link_t,
}

impl From<Notification> for h_notification_t {
    fn from(n: Notification) -> Self {
        let slot = h_slot_t { bits: n.slot.to_bits() };
        Self { slot, index: n.index.0, word: n.word, link: n.link.into() }
    }
}

/// Takes the next notification of a queue, if a message has arrived; if not, first receives from
/// the links.
///
/// Errors: H_NOTHING; H_NO_SUCH; H_FORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_recv(
    node: *mut h_node_t,
    queue: h_queue_t,
    notification: *mut h_notification_t,
) -> h_status {
    // Not a path of its own: with two callers the shortest path would not be inlined.
    match h_recv_block(node, queue, 0, notification) {
        H_TIMED_OUT => guard(|| Err(Failure::new(H_NOTHING, "no message has arrived"))),
        status => status,
    }
}

/// Waits for the next notification of a queue, at most `timeout_ns`: spins, yields and sleeps as
/// the settings say. Any number of threads may wait, for the same or for different queues.
///
/// Errors: H_TIMED_OUT; H_NO_SUCH; H_FORKED; H_SYSTEM.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_recv_block(
    node: *mut h_node_t,
    queue: h_queue_t,
    timeout_ns: i64,
    notification: *mut h_notification_t,
) -> h_status {
    let usual = || {
        let is_there = !node.is_null() && !notification.is_null();
        if !is_there || !node.is_aligned() || !notification.is_aligned() {
            return false;
        }
        // The conditions that `get` and `out` check.
        let found = (*node).at_once().recv_at_once(queue.id());
        found.map(|found| notification.write(found.into())).is_some()
    };
    match guard_usual(usual) {
        Some(status) => status,
        None => recv_any(node, queue, timeout_ns, notification),
    }
}

/// The general receive; the fast path has taken nothing.
#[inline(never)]
unsafe fn recv_any(
    node: *mut h_node_t,
    queue: h_queue_t,
    timeout_ns: i64,
    notification: *mut h_notification_t,
) -> h_status {
    guard(|| {
        let (node, place) = (get(node, "node")?, out(notification, "notification")?);
        place.write(node.manager()?.recv(queue.id(), limit(timeout_ns))?.into());
        Ok(())
    })
}

/// One turn: receives a bounded number of packets from each link, and gives queued packets to links
/// that have room. `taken`, which may be null, gets the number of received packets, refused ones
/// included; 0 if another thread is taking a turn.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_poll(node: *mut h_node_t, taken: *mut usize) -> h_status {
    guard(|| {
        let node = get(node, "node")?;
        let taken = out_or_null(taken, "taken")?;
        let count = node.manager()?.poll()?;
        put(taken, count);
        Ok(())
    })
}
