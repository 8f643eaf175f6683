//! Tagged remote write: data to an offset, a tag to a queue (Hamlyn 3.3).

use crate::boundary::{
    bytes, copy_from, elements_out, get, guard, h_status, h_status::*, out, out_or_null, put,
};
use crate::common::{closed, connected, grown, offered};
use crate::endpoint::{One, full, give, handles, nothing, received};
use crate::links::h_link_t;
use crate::node::h_node_t;
use core::ffi::c_void;
use hamlyn::protocol::{Exclusive, Tag, TaggedConfig, TaggedReceiver, TaggedSender};

/// Memory into which several senders write; a tag announces each write.
pub struct h_tagged_receiver_t(pub(crate) One<TaggedReceiver>);

/// The sender's end of a tagged remote write.
pub struct h_tagged_sender_t(One<TaggedSender>);

handles!(
    h_tagged_receiver_t: Exclusive<TaggedReceiver>,
    h_tagged_sender_t: Exclusive<TaggedSender>
);

/// A write has arrived.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct h_tag_t {
    /// The sender's tag.
    pub tag: u32,
    /// The link over which it came.
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
/// Errors: H_LIMIT, a number is not allowed, or there is no memory or queue of that size.
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
        place.write(give(node, Exclusive::new(made))?);
        Ok(())
    })
}

offered! {
    receiver: h_tagged_receiver_t, of "a sender", "senders";
    h_tagged_receiver_seed, h_tagged_receiver_serve, h_tagged_receiver_stop_serving,
    h_tagged_receiver_set_admission, h_tagged_receiver_offer
}

/// Receives the next tag, in the order of arrival, waiting at most `timeout_ns`. Its data is in the
/// area by then.
///
/// Errors: H_NOTHING, no tag waits and the time limit was 0; H_TIMED_OUT; H_FORKED; H_SYSTEM.
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

/// The next write with this tag; other tags that come meanwhile are kept for later calls, in their
/// order. Otherwise as h_tagged_get_tag.
///
/// Errors: also H_MISBEHAVED, a sender sent more tags than its credit and was disconnected.
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

/// The address of the area's bytes, and their number; `bytes` may be null. The address is valid
/// until the receiver is freed. The bytes change when a write arrives: in calls with the node or
/// its end points, in any thread. Bytes that the senders write again only after a message from this
/// program are stable.
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

/// The number of senders that have a connection now.
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

closed! {
    /// Its senders get a goodbye; its seeds and names are worthless; its area is freed.
    receiver: h_tagged_receiver_t, "every queued message of the node";
    h_tagged_receiver_close, h_tagged_receiver_free
}

grown! {
    sender: h_tagged_sender_t, "a sender" of "receiver", TaggedSender => Exclusive::new;
    h_tagged_sender_grow, h_tagged_sender_connect, h_tagged_sender_grow_from; h_tagged_sender_close, h_tagged_sender_free
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

connected!(sender: h_tagged_sender_t; h_tagged_sender_peer, h_tagged_sender_explain);

closed! {
    /// All of its writes are with the receiver already.
    sender: h_tagged_sender_t, "every sent message";
    h_tagged_sender_close, h_tagged_sender_free
}
