//! Datagrams: one at a time, into a receiver that is ready or not (Hamlyn 3.3).

use crate::boundary::{
    Copied, Done, Failure, bytes, get, guard, h_status, h_status::*, out, out_or_null, put,
};
use crate::common::{closed, connected, grown, offered};
use crate::endpoint::{One, give, handles, sent, wrapped};
use crate::links::h_link_t;
use crate::node::h_node_t;
use crate::tickets::h_ticket_t;
use core::ffi::c_void;
use hamlyn::protocol::{Datagram, DatagramReceiver, DatagramSender, Exclusive};

/// Receives datagrams, one at a time. It is ready when it is made, not ready after each datagram,
/// and ready again after h_datagram_ready; a datagram sent while it is not ready is lost.
pub struct h_datagram_receiver_t(pub(crate) One<Receiver>);

pub(crate) struct Receiver {
    inner: DatagramReceiver,
    last: Option<Datagram>,
}

impl Receiver {
    fn last(&self) -> Done<&Datagram> {
        let none = || Failure::new(H_STATE, "no datagram has been received");
        self.last.as_ref().ok_or_else(none)
    }
}

wrapped!(Receiver);

/// Sends datagrams.
pub struct h_datagram_sender_t(One<DatagramSender>);

handles!(
    h_datagram_receiver_t: Exclusive<Receiver>,
    h_datagram_sender_t: Exclusive<DatagramSender>
);

/// A datagram has arrived.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct h_datagram_t {
    /// Where its bytes begin in the receiver's area.
    pub offset: usize,
    /// The number of its bytes.
    pub length: usize,
    /// Whether its sender wants an answer: see h_datagram_reply.
    pub wants_reply: bool,
    /// The link over which it came.
    pub link: h_link_t,
}

impl From<&Datagram> for h_datagram_t {
    fn from(datagram: &Datagram) -> Self {
        Self {
            offset: datagram.offset,
            length: datagram.length,
            wants_reply: datagram.reply.is_some(),
            link: datagram.link.into(),
        }
    }
}

/// Makes a receiver with an area of `bytes` zero bytes, which is ready. To be freed with
/// h_datagram_receiver_close or h_datagram_receiver_free.
///
/// Errors: H_LIMIT, no memory of that size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_datagram_receiver_new(
    node: *mut h_node_t,
    bytes: usize,
    receiver: *mut *mut h_datagram_receiver_t,
) -> h_status {
    guard(|| {
        let (node, place) = (get(node, "node")?, out(receiver, "receiver")?);
        let inner = DatagramReceiver::new(node.manager()?, bytes)?;
        place.write(give(node, Exclusive::new(Receiver { inner, last: None }))?);
        Ok(())
    })
}

offered! {
    receiver: h_datagram_receiver_t, of "a sender", "senders";
    h_datagram_receiver_seed, h_datagram_receiver_serve, h_datagram_receiver_stop_serving,
    h_datagram_receiver_set_admission, h_datagram_receiver_offer
}

/// Receives the next datagram, waiting at most `timeout_ns`. Afterwards, until h_datagram_ready,
/// the receiver is not ready and the datagram's bytes are stable.
///
/// Errors: H_NOTHING, no datagram waits and the time limit was 0; H_TIMED_OUT; H_MISBEHAVED, a
/// sender broke the rules and was disconnected; nothing was received, and the receiver is ready;
/// H_FORKED; H_SYSTEM.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_datagram_receive(
    receiver: *mut h_datagram_receiver_t,
    timeout_ns: i64,
    datagram: *mut h_datagram_t,
) -> h_status {
    guard(|| {
        let (receiver, place) = (get(receiver, "receiver")?, out(datagram, "datagram")?);
        let datagram = receiver.0.receive(timeout_ns, |receiver, limit| {
            let datagram = receiver.inner.receive(limit)?;
            receiver.last = Some(datagram);
            Ok(datagram)
        })?;
        place.write((&datagram).into());
        Ok(())
    })
}

/// Copies the bytes of the last received datagram to `buffer`; `length`, which may be null, gets
/// their number.
///
/// Errors: H_TOO_LONG, `length` is written; H_STATE, no datagram was received; H_INVALID, the
/// receiver was made ready since.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_datagram_read(
    receiver: *mut h_datagram_receiver_t,
    buffer: *mut c_void,
    capacity: usize,
    length: *mut usize,
) -> h_status {
    guard(|| {
        let receiver = get(receiver, "receiver")?;
        let copied = Copied::new(buffer, capacity, length)?;
        let receiver = receiver.0.lock()?;
        receiver.inner.with_bytes(receiver.last()?, |bytes| copied.put(bytes))?
    })
}

/// The address of the last received datagram's bytes, and their number; `length` may be null. They
/// are stable until h_datagram_ready, or until the receiver is freed.
///
/// Errors: as h_datagram_read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_datagram_data(
    receiver: *mut h_datagram_receiver_t,
    data: *mut *const c_void,
    length: *mut usize,
) -> h_status {
    guard(|| {
        let (receiver, data) = (get(receiver, "receiver")?, out(data, "data")?);
        let length = out_or_null(length, "length")?;
        let receiver = receiver.0.lock()?;
        let (address, bytes) =
            receiver.inner.with_bytes(receiver.last()?, |bytes| (bytes.as_ptr(), bytes.len()))?;
        data.write(address.cast());
        put(length, bytes);
        Ok(())
    })
}

/// Answers the last received datagram, with the ticket that came with it, over the same link. Waits
/// at most `timeout_ns` for room. Does not report whether the other side was ready.
///
/// Errors: H_STATE, no datagram was received, or it wants no answer; H_TOO_LONG; H_CLOSED, H_DIED,
/// its sender is gone; H_FULL, H_TIMED_OUT, nothing was sent; H_CUT_OFF.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_datagram_reply(
    receiver: *mut h_datagram_receiver_t,
    data: *const c_void,
    length: usize,
    timeout_ns: i64,
) -> h_status {
    guard(|| {
        let receiver = get(receiver, "receiver")?;
        let data = bytes(data, length, "data")?;
        let (mut receiver, left) = receiver.0.enter(timeout_ns, H_FULL)?;
        let last = *receiver.last()?;
        sent(receiver.inner.reply(&last, data, left), timeout_ns)
    })
}

/// Makes the receiver ready: the bytes of the previous datagram may change from now on. Issued
/// tickets are valid again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_datagram_ready(receiver: *mut h_datagram_receiver_t) -> h_status {
    guard(|| Ok(get(receiver, "receiver")?.0.lock()?.inner.ready()?))
}

/// h_datagram_ready with a new key: every issued ticket is worthless from now on, and senders need
/// a new ticket, or grow again. A datagram that was not received is lost.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_datagram_ready_anew(receiver: *mut h_datagram_receiver_t) -> h_status {
    guard(|| Ok(get(receiver, "receiver")?.0.lock()?.inner.ready_anew()?))
}

/// A ticket to send one datagram to this receiver whenever it is ready; send it along with a
/// datagram, for the answer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_datagram_reply_ticket(
    receiver: *mut h_datagram_receiver_t,
    ticket: *mut h_ticket_t,
) -> h_status {
    guard(|| {
        let (receiver, ticket) = (get(receiver, "receiver")?, out(ticket, "ticket")?);
        ticket.write(receiver.0.lock()?.inner.reply_ticket().into());
        Ok(())
    })
}

closed! {
    /// Its senders get a goodbye; its seeds and names are worthless; its area is freed.
    receiver: h_datagram_receiver_t, "every queued message of the node";
    h_datagram_receiver_close, h_datagram_receiver_free
}

grown! {
    sender: h_datagram_sender_t, "a sender" of "receiver", DatagramSender => Exclusive::new;
    h_datagram_sender_grow, h_datagram_sender_connect, h_datagram_sender_grow_from; h_datagram_sender_close, h_datagram_sender_free
}

/// Sends `length` bytes of `data` to the receiver's area at `offset`, and with them a ticket for
/// the answer, from h_datagram_reply_ticket of a receiver of the same node, or null. Waits at most
/// `timeout_ns` for room. Does not report whether the receiver was ready.
///
/// Errors, nothing was sent: H_TOO_LONG; H_INVALID, outside the area, or a ticket of another node;
/// H_FULL, the time limit was 0; H_TIMED_OUT; H_CLOSED, H_DIED, the receiver is gone. H_CUT_OFF:
/// part was sent, and the rest leaves first in the next call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_datagram_send(
    sender: *mut h_datagram_sender_t,
    offset: u64,
    data: *const c_void,
    length: usize,
    reply: *const h_ticket_t,
    timeout_ns: i64,
) -> h_status {
    guard(|| {
        let sender = get(sender, "sender")?;
        let data = bytes(data, length, "data")?;
        let reply = match reply.is_null() {
            true => None,
            false => Some(get(reply, "reply")?.read()?),
        };
        let (mut sender, left) = sender.0.enter(timeout_ns, H_FULL)?;
        sent(sender.send(data, offset, reply.as_ref(), left), timeout_ns)
    })
}

/// The size of the receiver's area, in bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_datagram_capacity(
    sender: *mut h_datagram_sender_t,
    bytes: *mut u64,
) -> h_status {
    guard(|| {
        let (sender, bytes) = (get(sender, "sender")?, out(bytes, "bytes")?);
        bytes.write(sender.0.lock()?.capacity());
        Ok(())
    })
}

connected!(sender: h_datagram_sender_t; h_datagram_sender_peer, h_datagram_sender_explain);

closed! {
    /// Queued datagrams may be lost.
    sender: h_datagram_sender_t, "every sent message";
    h_datagram_sender_close, h_datagram_sender_free
}
