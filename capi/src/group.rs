//! Groups: parts of many members that arrive together, scatters, barriers (Hamlyn 2.5, 3.3).

use crate::boundary::{
    Copied, Done, Failure, bytes, elements, elements_out, get, guard, h_status, h_status::*, out,
    out_or_null, put,
};
use crate::common::{closed, connected, grown, offered};
use crate::endpoint::{One, give, handles, wrapped};
use crate::node::h_node_t;
use crate::seeds::h_seed_t;
use core::ffi::c_void;
use core::time::Duration;
use hamlyn::protocol::{
    Exclusive, ExclusiveGuard, Group, GroupConfig, GroupError, GroupHelper, GroupMember,
    PART_BYTES, Part,
};
use std::collections::BTreeMap;

/// The root of a group: it receives a part from each member in each round.
pub struct h_group_t(pub(crate) One<Root>);

/// A member of a group.
pub struct h_group_member_t(One<GroupMember>);

/// Sends parts that members of a group have delegated to it.
pub struct h_group_helper_t(One<GroupHelper>);

handles!(
    h_group_t: Exclusive<Root>,
    h_group_member_t: Exclusive<GroupMember>,
    h_group_helper_t: Exclusive<GroupHelper>
);

pub(crate) struct Root {
    inner: Group,
    /// The member that made the last call fail.
    lost: Option<u32>,
    /// The members that were not finished when the last call's time limit passed.
    missing: Vec<u32>,
}

wrapped!(Root);

impl h_group_t {
    /// For one call alone, with the rest of its time limit. Forgets the member that made the last
    /// call fail.
    fn enter(&self, timeout_ns: i64) -> Done<(ExclusiveGuard<'_, Root>, Option<Duration>)> {
        let (mut root, left) = self.0.enter(timeout_ns, H_TIMED_OUT)?;
        (root.lost, root.missing) = (None, Vec::new());
        Ok((root, left))
    }
}

impl Root {
    fn keep<T>(&mut self, result: Result<T, GroupError>) -> Done<T> {
        (self.lost, self.missing) = match &result {
            Err(GroupError::MemberLost { member, .. }) => (Some(*member), Vec::new()),
            Err(GroupError::TimedOut { missing, .. }) => (None, missing.clone()),
            _ => (None, Vec::new()),
        };
        Ok(result?)
    }
}

/// Bytes of a delegated part.
pub const H_PART_BYTES: usize = 52;
const _: () = assert!(H_PART_BYTES == PART_BYTES);

/// A share of a member's part, for a helper to send, once. A value; its bytes may travel in a
/// message or a file.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct h_part_t {
    /// In the format for messages and files.
    pub bytes: [u8; H_PART_BYTES],
}

/// Bytes of the caller.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct h_bytes_t {
    /// Their address.
    pub data: *const c_void,
    /// Their number.
    pub length: usize,
}

/// Makes a group with places for `members` members. In each round each member sends a part of up to
/// `part_bytes` bytes, and receives up to `scatter_bytes` (0: as many as part_bytes), for which it
/// must have room. To be freed with h_group_close or h_group_free.
///
/// Errors: H_LIMIT, a number is not allowed, or there is no memory for it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_group_new(
    node: *mut h_node_t,
    members: u32,
    part_bytes: usize,
    scatter_bytes: usize,
    group: *mut *mut h_group_t,
) -> h_status {
    guard(|| {
        let (node, place) = (get(node, "node")?, out(group, "group")?);
        let mut config = GroupConfig::new(members, part_bytes);
        if scatter_bytes != 0 {
            config.scatter_bytes = scatter_bytes;
        }
        let inner = Group::new(node.manager()?, config)?;
        place.write(give(node, Exclusive::new(Root { inner, lost: None, missing: Vec::new() }))?);
        Ok(())
    })
}

offered! {
    group: h_group_t, of "a member or helper", "members and helpers";
    h_group_seed, h_group_serve, h_group_stop_serving,
    h_group_set_admission, h_group_offer
}

/// A seed from which the member in one place can be grown, and its replacement, if it is lost.
///
/// Errors: H_INVALID, there is no such place.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_group_seed_of(
    group: *mut h_group_t,
    member: u32,
    seed: *mut h_seed_t,
) -> h_status {
    guard(|| {
        let (group, place) = (get(group, "group")?, out(seed, "seed")?);
        place.write(group.0.lock()?.inner.seed_of(member)?.into());
        Ok(())
    })
}

/// Waits at most `timeout_ns` until the part of every member has arrived. The parts are stable
/// until h_group_next_round.
///
/// Errors, arrived parts stay, and the call may be repeated: H_TIMED_OUT; H_DIED, H_CLOSED, a
/// member ended before its part had arrived: the text and h_group_lost name it; H_STATE, members
/// are at a barrier, or the like; H_FORKED; H_SYSTEM.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_group_gather(group: *mut h_group_t, timeout_ns: i64) -> h_status {
    guard(|| {
        let (mut root, left) = get(group, "group")?.enter(timeout_ns)?;
        let result = root.inner.gather(left).map(drop);
        root.keep(result)
    })
}

/// h_group_gather for the parts of any `wanted` members. A lost member is no error while that many
/// can still be reached.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_group_wait_for(
    group: *mut h_group_t,
    wanted: u32,
    timeout_ns: i64,
) -> h_status {
    guard(|| {
        let (mut root, left) = get(group, "group")?.enter(timeout_ns)?;
        let result = root.inner.wait_for(wanted, left).map(drop);
        root.keep(result)
    })
}

/// The member that made the last call with this group fail.
///
/// Errors: H_NOTHING, it did not fail because of a member.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_group_lost(group: *mut h_group_t, member: *mut u32) -> h_status {
    guard(|| {
        let (group, place) = (get(group, "group")?, out(member, "member")?);
        let none = || Failure::new(H_NOTHING, "the last call did not fail because of a member");
        place.write(group.0.lock()?.lost.ok_or_else(none)?);
        Ok(())
    })
}

/// After H_TIMED_OUT of the last call that had this group to itself: the members that it was not
/// finished with, those that have yet to join included. (A call that timed out because another
/// thread was in a call says so, and leaves this list as it was.) `count` gets their number; if
/// that is more than `capacity`, only that many are written and H_TOO_LONG is returned. `members`
/// may be null if `capacity` is 0.
///
/// Errors: H_NOTHING, no member was left out; H_TOO_LONG.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_group_missing(
    group: *mut h_group_t,
    members: *mut u32,
    capacity: usize,
    count: *mut usize,
) -> h_status {
    guard(|| {
        let (group, count) = (get(group, "group")?, out(count, "count")?);
        let places = elements_out(members, capacity, "members")?;
        let root = group.0.lock()?;
        if root.missing.is_empty() {
            return Err(Failure::new(H_NOTHING, "the last call has left no member out"));
        }
        for (place, member) in places.iter_mut().zip(&root.missing) {
            place.write(*member);
        }
        count.write(root.missing.len());
        if root.missing.len() <= capacity {
            return Ok(());
        }
        let text = format!("{} are missing, and there is room for {capacity}", root.missing.len());
        Err(Failure::new(H_TOO_LONG, text))
    })
}

/// The address of one member's part, and the number of its bytes; `length` may be null. It begins
/// at a multiple of 64 bytes, and is stable until h_group_next_round.
///
/// Errors: H_NOTHING, it has not arrived.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_group_part(
    group: *mut h_group_t,
    member: u32,
    data: *mut *const c_void,
    length: *mut usize,
) -> h_status {
    guard(|| {
        let (group, data) = (get(group, "group")?, out(data, "data")?);
        let length = out_or_null(length, "length")?;
        let root = group.0.lock()?;
        let parts = root.inner.parts();
        let Some(part) = parts.part(member) else {
            return Err(Failure::new(H_NOTHING, format!("no part of member {member} is there")));
        };
        data.write(part.as_ptr().cast());
        put(length, part.len());
        Ok(())
    })
}

/// Ends the round: the bytes of its parts may change from now on, and the members may send those of
/// the next. A part that comes later is dropped.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_group_next_round(group: *mut h_group_t) -> h_status {
    guard(|| {
        get(group, "group")?.0.lock()?.inner.next_round();
        Ok(())
    })
}

/// Sends each member its own bytes: `count` of `parts`, one for each place. Waits at most
/// `timeout_ns` for each member to have received the previous scatter, and for members that have
/// yet to join.
///
/// Errors: as h_group_gather, a lost member after all others have been served; H_INVALID, `count`
/// is not the number of places; H_TOO_LONG; nothing was sent then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_group_scatter(
    group: *mut h_group_t,
    parts: *const h_bytes_t,
    count: usize,
    timeout_ns: i64,
) -> h_status {
    guard(|| {
        let group = get(group, "group")?;
        let mut slices = Vec::new();
        for part in elements(parts, count, "parts")? {
            slices.push(bytes(part.data, part.length, "a part's data")?);
        }
        let (mut root, left) = group.enter(timeout_ns)?;
        let members = root.inner.members() as usize;
        if count != members {
            let text = format!("count is {count}, and the group has {members} places");
            return Err(Failure::invalid(text));
        }
        let result = root.inner.scatter(left, |member| slices[member as usize]);
        root.keep(result)
    })
}

/// h_group_scatter to `count` members alone, whose numbers are `members`: `parts[i]` is for
/// `members[i]`. After H_TIMED_OUT, for those that h_group_missing names.
///
/// Errors: as h_group_scatter; H_INVALID, there is no such member, or one is named twice.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_group_scatter_to(
    group: *mut h_group_t,
    members: *const u32,
    parts: *const h_bytes_t,
    count: usize,
    timeout_ns: i64,
) -> h_status {
    guard(|| {
        let group = get(group, "group")?;
        let members = elements(members, count, "members")?;
        let mut slices = BTreeMap::new();
        for (member, part) in members.iter().zip(elements(parts, count, "parts")?) {
            let part = bytes(part.data, part.length, "a part's data")?;
            if slices.insert(*member, part).is_some() {
                return Err(Failure::invalid(format!("member {member} stands there twice")));
            }
        }
        let (mut root, left) = group.enter(timeout_ns)?;
        let result = root.inner.scatter_to(members, left, |member| slices[&member]);
        root.keep(result)
    })
}

/// Waits at most `timeout_ns` until the rest of all messages that a time limit has cut off has
/// left; otherwise it leaves in the group's next calls. The rest for a member that has ended is
/// dropped, and is no error here: h_group_gather and h_group_scatter report the member.
///
/// Errors: H_CUT_OFF, some has not left, and the call may be repeated; H_TIMED_OUT, another thread
/// is in a call with the group; H_FORKED; H_SYSTEM.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_group_flush(group: *mut h_group_t, timeout_ns: i64) -> h_status {
    guard(|| {
        let (mut root, left) = get(group, "group")?.enter(timeout_ns)?;
        let result = root.inner.flush(left);
        root.keep(result)
    })
}

/// Sends the same bytes to each member; otherwise as h_group_scatter.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_group_broadcast(
    group: *mut h_group_t,
    data: *const c_void,
    length: usize,
    timeout_ns: i64,
) -> h_status {
    guard(|| {
        let group = get(group, "group")?;
        let data = bytes(data, length, "data")?;
        let (mut root, left) = group.enter(timeout_ns)?;
        let result = root.inner.broadcast(data, left);
        root.keep(result)
    })
}

/// Waits at most `timeout_ns` until every member has come to its barrier, and lets all of them
/// continue; the round is over.
///
/// Errors: as h_group_gather; h_group_release then lets the waiting members continue.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_group_barrier(group: *mut h_group_t, timeout_ns: i64) -> h_status {
    guard(|| {
        let (mut root, left) = get(group, "group")?.enter(timeout_ns)?;
        let result = root.inner.barrier(left);
        root.keep(result)
    })
}

/// Lets the members that have come to their barrier continue; the round is over. Members that come
/// later continue at once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_group_release(group: *mut h_group_t, timeout_ns: i64) -> h_status {
    guard(|| {
        let (mut root, left) = get(group, "group")?.enter(timeout_ns)?;
        let result = root.inner.release(left);
        root.keep(result)
    })
}

/// The number of places, of members and helpers with a connection now, and the number of the round,
/// from 1 on; each pointer may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_group_members(
    group: *mut h_group_t,
    places: *mut u32,
    joined: *mut u32,
    helpers: *mut usize,
    round: *mut u64,
) -> h_status {
    guard(|| {
        let root = get(group, "group")?.0.lock()?;
        put(out_or_null(places, "places")?, root.inner.members());
        put(out_or_null(joined, "joined")?, root.inner.joined());
        put(out_or_null(helpers, "helpers")?, root.inner.helpers());
        put(out_or_null(round, "round")?, root.inner.round());
        Ok(())
    })
}

/// The number of parts that make this group ready for h_wait_any; all of them unless set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_group_set_wanted(group: *mut h_group_t, wanted: u32) -> h_status {
    guard(|| {
        get(group, "group")?.0.lock()?.inner.set_wanted(wanted);
        Ok(())
    })
}

closed! {
    /// Its members and helpers get a goodbye; pointers to parts are no longer valid.
    group: h_group_t, "every queued message of the node";
    h_group_close, h_group_free
}

grown! {
    /// The root may send it up to `receive_bytes` bytes at once.
    member: h_group_member_t, "a member" of "root", GroupMember => Exclusive::new,
    receive_bytes: usize => receive_bytes;
    h_group_member_grow, h_group_member_connect, h_group_member_grow_from; h_group_member_close, h_group_member_free
}

/// A member's place in the group, from 0 on, the number of places, and the most bytes of a part;
/// each pointer may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_group_member_place(
    member: *mut h_group_member_t,
    number: *mut u32,
    places: *mut u32,
    part_bytes: *mut usize,
) -> h_status {
    guard(|| {
        let member = get(member, "member")?.0.lock()?;
        put(out_or_null(number, "number")?, member.number());
        put(out_or_null(places, "places")?, member.members());
        put(out_or_null(part_bytes, "part_bytes")?, member.part_bytes());
        Ok(())
    })
}

/// Sends this member's part of the round, waiting at most `timeout_ns` for the round to begin and
/// for room.
///
/// Errors, nothing was sent: H_TIMED_OUT; H_TOO_LONG; H_CLOSED, H_DIED, the root is gone; H_STATE,
/// the root is in another operation. H_CUT_OFF: the rest leaves first in the next call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_group_member_send(
    member: *mut h_group_member_t,
    data: *const c_void,
    length: usize,
    timeout_ns: i64,
) -> h_status {
    guard(|| {
        let member = get(member, "member")?;
        let data = bytes(data, length, "data")?;
        let (mut member, left) = member.0.enter(timeout_ns, H_TIMED_OUT)?;
        Ok(member.send(data, left)?)
    })
}

/// Receives the root's next scatter or broadcast, waiting at most `timeout_ns`; copied to `buffer`,
/// which should hold as many bytes as the member was grown to receive. `length`, which may be null,
/// gets the number of bytes.
///
/// Errors: H_TIMED_OUT; H_CLOSED, H_DIED, the root is gone; H_STATE, the root is in another
/// operation; H_TOO_LONG, `buffer` is too small: `length` is written, and the bytes are lost.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_group_member_receive(
    member: *mut h_group_member_t,
    timeout_ns: i64,
    buffer: *mut c_void,
    capacity: usize,
    length: *mut usize,
) -> h_status {
    guard(|| {
        let member = get(member, "member")?;
        let copied = Copied::new(buffer, capacity, length)?;
        let (mut member, left) = member.0.enter(timeout_ns, H_TIMED_OUT)?;
        member.receive_with(left, |bytes| copied.put(bytes))?
    })
}

/// Comes to the barrier: waits at most `timeout_ns` until every member has, and the root lets all
/// continue.
///
/// Errors: H_TIMED_OUT, then repeat the call; H_CLOSED, H_DIED, the root is gone; H_STATE, the root
/// is in another operation.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_group_member_barrier(
    member: *mut h_group_member_t,
    timeout_ns: i64,
) -> h_status {
    guard(|| {
        let (mut member, left) = get(member, "member")?.0.enter(timeout_ns, H_TIMED_OUT)?;
        Ok(member.barrier(left)?)
    })
}

const HELPERS_MAX: usize = 1 << 16;

/// Delegates this member's part of the round, `length` bytes, to `count` helpers, up to 65,536, in
/// nearly equal pieces, in their order. Each helper sends its piece with h_group_helper_send or
/// h_group_member_send_part, and the part has arrived when all pieces have. Waits at most
/// `timeout_ns` for the round to begin. The helpers trust one another, and this member is
/// responsible for them.
///
/// Errors: as h_group_member_send; H_INVALID, `count` is not allowed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_group_member_delegate(
    member: *mut h_group_member_t,
    length: usize,
    timeout_ns: i64,
    parts: *mut h_part_t,
    count: usize,
) -> h_status {
    guard(|| {
        let member = get(member, "member")?;
        let places = elements_out(parts, count, "parts")?;
        if !(1..=HELPERS_MAX).contains(&count) {
            let text = format!("count is {count}, and must be 1 to {HELPERS_MAX}");
            return Err(Failure::invalid(text));
        }
        let (mut member, left) = member.0.enter(timeout_ns, H_TIMED_OUT)?;
        for (place, part) in places.iter_mut().zip(member.delegate(length, count as u32, left)?) {
            place.write(h_part_t { bytes: part.to_bytes() });
        }
        Ok(())
    })
}

/// # Safety
/// As [`get`].
unsafe fn part_of(part: *const h_part_t) -> Done<Part> {
    Ok(Part::from_bytes(&get(part, "part")?.bytes)?)
}

/// The exact number of bytes that a helper has to send for a part.
///
/// Errors: H_INVALID, not a part.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_part_length(part: *const h_part_t, length: *mut usize) -> h_status {
    guard(|| {
        let part = part_of(part)?;
        out(length, "length")?.write(part.length());
        Ok(())
    })
}

/// Sends a part that another member of the group, or this one, has delegated.
///
/// Errors: as h_group_member_send; H_INVALID, not a part.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_group_member_send_part(
    member: *mut h_group_member_t,
    part: *const h_part_t,
    data: *const c_void,
    length: usize,
    timeout_ns: i64,
) -> h_status {
    guard(|| {
        let (member, part) = (get(member, "member")?, part_of(part)?);
        let data = bytes(data, length, "data")?;
        let (mut member, left) = member.0.enter(timeout_ns, H_TIMED_OUT)?;
        Ok(member.send_part(&part, data, left)?)
    })
}

connected!(member: h_group_member_t; h_group_member_peer, h_group_member_explain);

closed! {
    /// Queued messages may be lost.
    member: h_group_member_t, "every sent message";
    h_group_member_close, h_group_member_free
}

grown! {
    helper: h_group_helper_t, "a helper" of "root", GroupHelper => Exclusive::new;
    h_group_helper_grow, h_group_helper_connect, h_group_helper_grow_from; h_group_helper_close, h_group_helper_free
}

/// Sends a part that a member has delegated to this helper, waiting at most `timeout_ns` for room.
///
/// Errors: as h_group_member_send; H_INVALID, not a part.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_group_helper_send(
    helper: *mut h_group_helper_t,
    part: *const h_part_t,
    data: *const c_void,
    length: usize,
    timeout_ns: i64,
) -> h_status {
    guard(|| {
        let (helper, part) = (get(helper, "helper")?, part_of(part)?);
        let data = bytes(data, length, "data")?;
        let (mut helper, left) = helper.0.enter(timeout_ns, H_TIMED_OUT)?;
        Ok(helper.send(&part, data, left)?)
    })
}

closed! {
    /// Queued messages may be lost.
    helper: h_group_helper_t, "every sent message";
    h_group_helper_close, h_group_helper_free
}
