//! Tagged remote write: data to an offset, a tag to a queue (Hamlyn 3.3).

use crate::boundary::{
    Copied, bytes, copy_from, elements_out, get, guard, h_status, h_status::*, limit, out,
    out_or_null, put, text,
};
use crate::endpoint::{Exclusive, admission, close, free, full, give, handles, nothing, received};
use crate::links::{access_of, h_admission_t, h_link_t, h_peer_t};
use crate::node::h_node_t;
use crate::seeds::h_seed_t;
use core::ffi::{c_char, c_void};
use hamlyn::protocol::{Tag, TaggedConfig, TaggedReceiver, TaggedSender};

/// Memory that a number of senders write into, each write announced by a tag.
pub struct h_tagged_receiver_t(pub(crate) Exclusive<TaggedReceiver>);

/// The sender's end of a tagged remote write.
pub struct h_tagged_sender_t(Exclusive<TaggedSender>);

handles!(h_tagged_receiver_t, h_tagged_sender_t);

/// A write has arrived.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct h_tag_t {
    /// What its sender gave.
    pub tag: u32,
    /// The link that it came over.
    pub link: h_link_t,
}

impl From<Tag> for h_tag_t {
    fn from(tag: Tag) -> Self {
        Self { tag: tag.tag, link: tag.link.into() }
    }
}

/// Makes a receiver with an area of `bytes` zero bytes, into which up to `senders_max` senders (0:
/// 16) write, each of which may have `tags` tags (0: 256) in the queue. To be freed with
/// h_tagged_receiver_close or h_tagged_receiver_free.
///
/// Errors: H_INVALID, a number is not allowed; H_LIMIT, no memory or queue of that size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_tagged_receiver_new(
    node: *mut h_node_t,
    bytes: usize,
    tags: u32,
    senders_max: u32,
    receiver: *mut *mut h_tagged_receiver_t,
) -> h_status {
    guard(|| {
        let (node, place) = (get(node, "node")?, out(receiver, "receiver")?);
        let mut config = TaggedConfig::new(bytes);
        if tags != 0 {
            config.tags = tags;
        }
        if senders_max != 0 {
            config.senders_max = senders_max;
        }
        let made = TaggedReceiver::new(node.manager()?, config)?;
        place.write(give(h_tagged_receiver_t(Exclusive::new(node, made)?)));
        Ok(())
    })
}

/// A seed from which a sender can be grown, by any process that may connect; each call makes
/// another.
///
/// Errors: H_SYSTEM, the service for seeds cannot be offered.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_tagged_receiver_seed(
    receiver: *mut h_tagged_receiver_t,
    seed: *mut h_seed_t,
) -> h_status {
    guard(|| {
        let receiver = get(receiver, "receiver")?;
        let seed = out(seed, "seed")?;
        seed.write(receiver.0.lock()?.seed()?.into());
        Ok(())
    })
}

/// Lets senders find this receiver by name. `access` is an h_access; `gid` is used for
/// H_ACCESS_GROUP only.
///
/// Errors: H_INVALID, no name of a service; H_IN_USE; H_REFUSED; H_SYSTEM. No name was taken.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_tagged_receiver_serve(
    receiver: *mut h_tagged_receiver_t,
    name: *const c_char,
    access: u32,
    gid: u32,
) -> h_status {
    guard(|| {
        let receiver = get(receiver, "receiver")?;
        let (name, access) = (text(name, "name")?, access_of(access, gid)?);
        Ok(receiver.0.lock()?.serve(name, access)?)
    })
}

/// Asks `admit` about each process that wants to grow a sender; null: all who may connect are let
/// in again. See h_admission_t.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_tagged_receiver_set_admission(
    receiver: *mut h_tagged_receiver_t,
    admit: h_admission_t,
    context: *mut c_void,
) -> h_status {
    guard(|| {
        get(receiver, "receiver")?.0.lock()?.set_admission(admission(admit, context));
        Ok(())
    })
}

/// The next tag, in the order of arrival, waiting at most `timeout_ns`. The data that belongs to it
/// lies in the area by then.
///
/// Errors: H_NOTHING, none is there and the time limit was 0; H_TIMED_OUT; H_FORKED; H_SYSTEM.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_tagged_get_tag(
    receiver: *mut h_tagged_receiver_t,
    timeout_ns: i64,
    tag: *mut h_tag_t,
) -> h_status {
    guard(|| {
        let (receiver, place) = (get(receiver, "receiver")?, out(tag, "tag")?);
        let tag = match timeout_ns {
            0 => receiver.0.enter(0, H_NOTHING)?.0.try_get_tag()?.ok_or_else(nothing)?,
            _ => receiver.0.receive(timeout_ns, |receiver, limit| receiver.get_tag(limit))?,
        };
        place.write(tag.into());
        Ok(())
    })
}

/// The next write with this tag; others that come meanwhile are kept for later calls, in their
/// order. Otherwise as h_tagged_get_tag.
///
/// Errors: also H_MISBEHAVED, a sender sent more tags than its credit and was sent away.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_tagged_get_specific_tag(
    receiver: *mut h_tagged_receiver_t,
    wanted: u32,
    timeout_ns: i64,
    tag: *mut h_tag_t,
) -> h_status {
    guard(|| {
        let (receiver, place) = (get(receiver, "receiver")?, out(tag, "tag")?);
        let (mut receiver, left) = receiver.0.enter(timeout_ns, H_NOTHING)?;
        let tag = received(receiver.get_specific_tag(wanted, left), timeout_ns)?;
        place.write(tag.into());
        Ok(())
    })
}

/// Copies `length` bytes from `offset` of the area to `to`, while nothing arrives.
///
/// Errors: H_INVALID, outside the area.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_tagged_read(
    receiver: *mut h_tagged_receiver_t,
    offset: usize,
    to: *mut c_void,
    length: usize,
) -> h_status {
    guard(|| {
        let receiver = get(receiver, "receiver")?;
        let to = elements_out(to.cast::<u8>(), length, "to")?;
        receiver.0.lock()?.with_bytes(|bytes| copy_from(bytes, offset, to))?
    })
}

/// Where the area's bytes are, and how many; `bytes` may be null. The address stays until the
/// receiver is freed. The bytes change when a write arrives: in calls with the node or its end
/// points, whichever thread makes them. Those that the senders will not write again until they are
/// told stand still.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_tagged_data(
    receiver: *mut h_tagged_receiver_t,
    data: *mut *const c_void,
    bytes: *mut usize,
) -> h_status {
    guard(|| {
        let (receiver, data) = (get(receiver, "receiver")?, out(data, "data")?);
        let bytes = out_or_null(bytes, "bytes")?;
        let (address, length) =
            receiver.0.lock()?.with_bytes(|bytes| (bytes.as_ptr(), bytes.len()))?;
        data.write(address.cast());
        put(bytes, length);
        Ok(())
    })
}

/// How many senders have a connection now.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_tagged_receiver_senders(
    receiver: *mut h_tagged_receiver_t,
    count: *mut usize,
) -> h_status {
    guard(|| {
        let (receiver, count) = (get(receiver, "receiver")?, out(count, "count")?);
        count.write(receiver.0.lock()?.senders());
        Ok(())
    })
}

/// Closes a receiver: what the node has queued leaves first, for at most `timeout_ns`.
/// Then it is freed, whatever is returned.
///
/// Errors: H_TIMED_OUT, messages did not leave; H_FORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_tagged_receiver_close(
    receiver: *mut h_tagged_receiver_t,
    timeout_ns: i64,
) -> h_status {
    guard(|| close(receiver, "receiver", timeout_ns))
}

/// Frees a receiver without waiting. Null is allowed.
/// Its senders are told goodbye; its seeds and names are worthless; the area's memory goes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_tagged_receiver_free(receiver: *mut h_tagged_receiver_t) {
    guard(|| free(receiver, "receiver"));
}

/// Grows a sender from a seed, waiting at most `timeout_ns` for the receiver's answer. To be freed
/// with h_tagged_sender_close or h_tagged_sender_free.
///
/// Errors: H_SEED, no seed, or one of another protocol; H_REFUSED, the seed is old or forged, or
/// the receiver takes no more; H_NOT_FOUND, its process is gone; H_TIMED_OUT; H_LIMIT. Nothing is left
/// of the attempt.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_tagged_sender_grow(
    node: *mut h_node_t,
    seed: *const h_seed_t,
    timeout_ns: i64,
    sender: *mut *mut h_tagged_sender_t,
) -> h_status {
    guard(|| {
        let (node, place) = (get(node, "node")?, out(sender, "sender")?);
        let seed = get(seed, "seed")?.read()?;
        let grown = TaggedSender::grow(node.manager()?, &seed, limit(timeout_ns))?;
        place.write(give(h_tagged_sender_t(Exclusive::new(node, grown)?)));
        Ok(())
    })
}

/// Grows a sender of what is served as "[user@]name"; otherwise as h_tagged_sender_grow.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_tagged_sender_connect(
    node: *mut h_node_t,
    name: *const c_char,
    timeout_ns: i64,
    sender: *mut *mut h_tagged_sender_t,
) -> h_status {
    guard(|| {
        let (node, place) = (get(node, "node")?, out(sender, "sender")?);
        let name = text(name, "name")?;
        let grown = TaggedSender::connect(node.manager()?, name, limit(timeout_ns))?;
        place.write(give(h_tagged_sender_t(Exclusive::new(node, grown)?)));
        Ok(())
    })
}

/// Writes `length` bytes of `data` to the receiver's area at `offset`, and `tag` to its queue.
/// Waits at most `timeout_ns` for room, and for the receiver to take earlier tags.
///
/// Errors, nothing was sent: H_TOO_LONG, for one packet, see h_tagged_bytes_max; H_INVALID, outside
/// the area; H_FULL, the time limit was 0; H_TIMED_OUT; H_CLOSED, H_DIED, the receiver is gone;
/// H_MISBEHAVED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_tagged_send(
    sender: *mut h_tagged_sender_t,
    offset: u64,
    data: *const c_void,
    length: usize,
    tag: u32,
    timeout_ns: i64,
) -> h_status {
    guard(|| {
        let sender = get(sender, "sender")?;
        let data = bytes(data, length, "data")?;
        let (mut sender, left) = sender.0.enter(timeout_ns, H_FULL)?;
        match timeout_ns {
            0 => sender.try_send(offset, data, tag)?.then_some(()).ok_or_else(full),
            _ => Ok(sender.send(offset, data, tag, left)?),
        }
    })
}

/// Most bytes of one write, and the bytes of the receiver's area; either pointer may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_tagged_bytes_max(
    sender: *mut h_tagged_sender_t,
    bytes_max: *mut usize,
    area_bytes: *mut u64,
) -> h_status {
    guard(|| {
        let sender = get(sender, "sender")?;
        let bytes_max = out_or_null(bytes_max, "bytes_max")?;
        let area_bytes = out_or_null(area_bytes, "area_bytes")?;
        let sender = sender.0.lock()?;
        put(bytes_max, sender.bytes_max());
        put(area_bytes, sender.capacity());
        Ok(())
    })
}

/// Who is at the other end, as the kernel says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_tagged_sender_peer(
    sender: *mut h_tagged_sender_t,
    peer: *mut h_peer_t,
) -> h_status {
    guard(|| {
        let sender = get(sender, "sender")?;
        let peer = out(peer, "peer")?;
        peer.write(sender.0.lock()?.connection().peer().into());
        Ok(())
    })
}

/// Which path is taken, and why: a text, copied to `buffer` with a zero byte behind it; `length`,
/// which may be null, gets the bytes before that.
///
/// Errors: H_TOO_LONG, `length` is written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_tagged_sender_explain(
    sender: *mut h_tagged_sender_t,
    buffer: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> h_status {
    guard(|| {
        let sender = get(sender, "sender")?;
        let copied = Copied::new(buffer.cast(), capacity, length)?;
        let text = sender.0.lock()?.explain();
        copied.put_text(&text)
    })
}

/// Closes a sender: what was sent leaves first, for at most `timeout_ns`.
/// Then it is freed, whatever is returned.
///
/// Errors: H_TIMED_OUT, messages did not leave; H_FORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_tagged_sender_close(
    sender: *mut h_tagged_sender_t,
    timeout_ns: i64,
) -> h_status {
    guard(|| close(sender, "sender", timeout_ns))
}

/// Frees a sender without waiting; what it sent is with the receiver already. Null is allowed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_tagged_sender_free(sender: *mut h_tagged_sender_t) {
    guard(|| free(sender, "sender"));
}
