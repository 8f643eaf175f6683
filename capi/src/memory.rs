//! Message areas, notification queues, slots, metadata entries, send buffer areas.

use crate::boundary::{
    Copied, Done, Failure, bytes, copy_from, elements_out, get, guard, h_status, out, out_or_null,
    put,
};
use crate::node::h_node_t;
use core::ffi::{c_int, c_void};
use hamlyn::node::MemoryError;
use hamlyn::{AreaId, AreaPages, BufferTag, MetadataIndex, Mode, QueueId, SlotConfig, SlotId};

/// A message area of a node: contiguous memory for arriving messages. A value, to be copied freely;
/// the name of a removed area is an error.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct h_area_t {
    /// Private to the library.
    pub bits: u64,
}

/// A notification queue of a node. A value.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct h_queue_t {
    /// Private to the library.
    pub bits: u64,
}

/// A slot of a node: base and bound of (part of) an area, a key, metadata entries, a queue. A
/// value.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct h_slot_t {
    /// Private to the library.
    pub bits: u64,
}

impl h_area_t {
    pub(crate) fn id(self) -> AreaId {
        AreaId::from_bits(self.bits)
    }
}

impl h_queue_t {
    pub(crate) fn id(self) -> QueueId {
        QueueId::from_bits(self.bits)
    }
}

impl h_slot_t {
    pub(crate) fn id(self) -> SlotId {
        SlotId::from_bits(self.bits)
    }
}

/// Makes a message area of `bytes` zero bytes, beginning on a page. It lives until h_area_free,
/// or as long as the node.
///
/// Errors: H_INVALID, 0 bytes; H_LIMIT, more than is available, or allowed; H_SYSTEM.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_area_new(
    node: *mut h_node_t,
    bytes: usize,
    area: *mut h_area_t,
) -> h_status {
    guard(|| {
        let (node, area) = (get(node, "node")?, out(area, "area")?);
        area.write(h_area_t { bits: node.lock()?.message_area(bytes)?.to_bits() });
        Ok(())
    })
}

/// Pages of a memory file; the library maps them for itself.
fn pages_of_file(descriptor: c_int, offset: u64, bytes: usize) -> Done<AreaPages> {
    if descriptor < 0 {
        return Err(Failure::invalid(format!("descriptor is {descriptor}, which is none")));
    }
    // SAFETY: the caller's descriptor, which stays open during this call (a number that is not a
    // descriptor is an error); the caller promises the rest about the bytes, as the documentation
    // says.
    let pages = unsafe {
        let file = std::os::fd::BorrowedFd::borrow_raw(descriptor);
        AreaPages::of_file(file, offset, bytes)
    };
    Ok(pages?)
}

/// Makes a message area over pages at an address of the application's own, which it may protect
/// with mprotect at any time. Messages are deposited through a second view, the library's, so no
/// deposit causes a fault, and a handler of SIGSEGV sees the application's own accesses alone.
///
/// `address` and `bytes` are multiples of the page size, and every page is mapped already, with any
/// protection. The pages are *replaced*, as by mmap with MAP_FIXED, by shared ones: zero, readable
/// and writable; their previous bytes are lost. Like the previous pages, they are the
/// application's: it may protect them, make holes in them (MADV_REMOVE: zeros, in both views) and
/// unmap them. A forked child has nothing there (MADV_DONTFORK). After h_area_free, or when the
/// node has been freed, they stay as they are, with their bytes, until the application unmaps them;
/// only the library's view ends.
///
/// The rules of h_area_data for an area's bytes hold for these, too, at both addresses: no thread
/// writes them while the library may read or write them. h_area_data gives the library's address of
/// them.
///
/// Errors: H_INVALID, 0 bytes, not whole pages, or pages that are not mapped; H_LIMIT, after which
/// the pages are replaced, and there is no area; H_SYSTEM. Unless h_error_message says otherwise,
/// the pages are as they were.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_area_over(
    node: *mut h_node_t,
    address: *mut c_void,
    bytes: usize,
    area: *mut h_area_t,
) -> h_status {
    guard(|| {
        let (node, area) = (get(node, "node")?, out(area, "area")?);
        let mut node = node.lock()?;
        // SAFETY: the caller's pages, to be replaced, as the documentation says.
        let pages = unsafe { AreaPages::at(address.cast(), bytes) }?;
        area.write(h_area_t { bits: node.message_area_of(pages)?.to_bits() });
        Ok(())
    })
}

/// Makes a message area of `bytes` bytes from `offset` on, a multiple of the page size, of a memory
/// file. The application may map the file before or afterwards, at any address, and may protect it
/// with mprotect at any time; see h_area_over. The library makes a view of its own, and does not
/// keep the descriptor.
///
/// The file comes from memfd_create with MFD_ALLOW_SEALING, in ordinary pages, is open for reading
/// and writing, is sealed with F_SEAL_SHRINK (truncating the file would kill the process at the
/// next deposit), and is not sealed against writing. No other process writes these bytes while the
/// area exists: use an aperture for memory that another process may write. Forked children have the
/// application's mappings, too, unless it calls madvise with MADV_DONTFORK.
///
/// Errors: H_INVALID, the descriptor is not such a file, or the bytes are not inside; H_LIMIT;
/// H_SYSTEM. Then nothing was done.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_area_of_file(
    node: *mut h_node_t,
    descriptor: c_int,
    offset: u64,
    bytes: usize,
    area: *mut h_area_t,
) -> h_status {
    guard(|| {
        let (node, area) = (get(node, "node")?, out(area, "area")?);
        let mut node = node.lock()?;
        let pages = pages_of_file(descriptor, offset, bytes)?;
        area.write(h_area_t { bits: node.message_area_of(pages)?.to_bits() });
        Ok(())
    })
}

/// Frees an area's memory. Pointers into it are no longer valid. (For h_area_over and
/// h_area_of_file, the library's view ends; the application's stays.)
///
/// Errors: H_IN_USE, slots name it; H_NO_SUCH. Then nothing was done.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_area_free(node: *mut h_node_t, area: h_area_t) -> h_status {
    guard(|| Ok(get(node, "node")?.lock()?.remove_area(area.id())?))
}

/// The address of an area's bytes, and their number; `bytes` may be null. The address is valid
/// until the area or the node is freed.
///
/// The bytes change when a message is deposited: in calls of h_recv, h_recv_block, h_send_msg,
/// h_poll and the like, in any thread, the progress thread included. Bytes for which no message can
/// be on its way are stable: those of a one-shot entry after its notification, or those without a
/// ticket, or all while no thread calls. Reading others meanwhile is a data race; h_area_read and
/// h_area_write copy while no message lands.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_area_data(
    node: *mut h_node_t,
    area: h_area_t,
    data: *mut *mut c_void,
    bytes: *mut usize,
) -> h_status {
    guard(|| {
        let (node, data) = (get(node, "node")?, out(data, "data")?);
        let bytes = out_or_null(bytes, "bytes")?;
        let (address, length) = node.lock()?.area_address(area.id())?;
        data.write(address.cast());
        put(bytes, length);
        Ok(())
    })
}

fn inside(length: usize, offset: usize, of: usize) -> Done<core::ops::Range<usize>> {
    match offset.checked_add(length) {
        Some(end) if end <= of => Ok(offset..end),
        _ => Err(Failure::invalid(format!(
            "{length} bytes from offset {offset} are not inside the {of} that there are"
        ))),
    }
}

/// Copies `length` bytes from `offset` of an area to `to`, while no message lands.
///
/// Errors: H_INVALID, outside the area; H_NO_SUCH.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_area_read(
    node: *mut h_node_t,
    area: h_area_t,
    offset: usize,
    to: *mut c_void,
    length: usize,
) -> h_status {
    guard(|| {
        let node = get(node, "node")?;
        let to = elements_out(to.cast::<u8>(), length, "to")?;
        let node = node.lock()?;
        copy_from(node.area(area.id())?, offset, to)
    })
}

/// Copies `length` bytes from `from` to `offset` of an area, while no message lands.
///
/// Errors: H_INVALID, outside the area; H_NO_SUCH.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_area_write(
    node: *mut h_node_t,
    area: h_area_t,
    offset: usize,
    from: *const c_void,
    length: usize,
) -> h_status {
    guard(|| {
        let node = get(node, "node")?;
        let from = bytes(from, length, "from")?;
        let mut node = node.lock()?;
        let to = node.area_mut(area.id())?;
        let range = inside(length, offset, to.len())?;
        to[range].copy_from_slice(from);
        Ok(())
    })
}

/// Makes a notification queue of `entries` entries.
///
/// Errors: H_INVALID, none or too many entries.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_queue_new(
    node: *mut h_node_t,
    entries: u32,
    queue: *mut h_queue_t,
) -> h_status {
    guard(|| {
        let (node, queue) = (get(node, "node")?, out(queue, "queue")?);
        queue.write(h_queue_t { bits: node.lock()?.notification_queue(entries)?.to_bits() });
        Ok(())
    })
}

/// Removes a queue; notifications that wait in it are lost.
///
/// Errors: H_IN_USE, slots notify through it; H_NO_SUCH. Then nothing was done.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_queue_free(node: *mut h_node_t, queue: h_queue_t) -> h_status {
    guard(|| Ok(get(node, "node")?.lock()?.remove_queue(queue.id())?))
}

/// The checks of a slot for each packet.
#[repr(C)]
pub enum h_mode {
    /// The slot's key and bounds.
    H_MODE_NORMAL = 0,
    /// Key and limits of the metadata entry as well: senders that do not trust one another.
    H_MODE_PARANOID = 1,
    /// As paranoid, and an entry accepts one message until it is armed again: the bytes of an
    /// arrived message are stable.
    H_MODE_PARANOID_ONE_SHOT = 2,
}

/// Configuration of a slot. A 0 in any field but `area` and `queue` selects the default: the whole
/// area, normal mode, one metadata entry.
#[repr(C)]
pub struct h_slot_config_t {
    /// The area for messages.
    pub area: h_area_t,
    /// The queue for notifications.
    pub queue: h_queue_t,
    /// First byte, from the start of the area.
    pub base: u64,
    /// One past the last byte; 0: the end of the area.
    pub bound: u64,
    /// Entries of the metadata area, the most messages on their way at once; 0: one.
    pub metadata_entries: u32,
    /// An h_mode.
    pub mode: u32,
    /// Notifications that may wait in the queue; 0: one for each metadata entry.
    pub credit: u32,
}

/// Makes a slot with a fresh random key.
///
/// Errors: H_NO_SUCH, the area or queue; H_INVALID, range, entries or mode; H_LIMIT, too many
/// slots, or too few entries left in the queue.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_slot_new(
    node: *mut h_node_t,
    config: *const h_slot_config_t,
    slot: *mut h_slot_t,
) -> h_status {
    guard(|| {
        let (node, config) = (get(node, "node")?, get(config, "config")?);
        let slot = out(slot, "slot")?;
        let mode = match config.mode {
            0 => Mode::Normal,
            1 => Mode::Paranoid,
            2 => Mode::ParanoidOneShot,
            n => {
                return Err(Failure::invalid(format!(
                    "config->mode is {n}, and must be one of h_mode, 0 to 2"
                )));
            }
        };
        let mut node = node.lock()?;
        let area = config.area.id();
        let mut wanted = SlotConfig::new(area, config.queue.id()).mode(mode);
        if config.base != 0 || config.bound != 0 {
            let bound =
                if config.bound == 0 { node.area(area)?.len() as u64 } else { config.bound };
            wanted = wanted.range(config.base..bound);
        }
        if config.metadata_entries != 0 {
            wanted = wanted.metadata(config.metadata_entries);
        }
        if config.credit != 0 {
            wanted = wanted.credit(config.credit);
        }
        slot.write(h_slot_t { bits: node.slot(wanted)?.to_bits() });
        Ok(())
    })
}

/// Removes a slot: packets for it are refused from now on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_slot_free(node: *mut h_node_t, slot: h_slot_t) -> h_status {
    guard(|| Ok(get(node, "node")?.lock()?.remove_slot(slot.id())?))
}

/// The slot's index, as tickets and events give it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_slot_index(slot: h_slot_t) -> u32 {
    slot.id().index().0
}

/// Gives a slot a new key: all existing tickets are worthless at once, also for packets on their
/// way. h_arm_limits and h_close_entry change the keys of paranoid entries.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_revoke(node: *mut h_node_t, slot: h_slot_t) -> h_status {
    guard(|| Ok(get(node, "node")?.lock()?.revoke(slot.id())?))
}

/// Arms a metadata entry of a normal slot for the next message, and resets its packet count. If the
/// sender of an unfinished message may still be sending, h_revoke the key first.
///
/// Errors: H_STATE, the slot is paranoid; H_NO_SUCH.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_arm(node: *mut h_node_t, slot: h_slot_t, index: u32) -> h_status {
    guard(|| Ok(get(node, "node")?.lock()?.arm(slot.id(), MetadataIndex(index), None)?))
}

/// Arms a metadata entry of a paranoid slot: a new key, and the bytes from `low` up to but not
/// including `high`, from the slot's base. Tickets made before are worthless.
///
/// Errors: H_INVALID, limits outside the slot; H_STATE, the slot is normal; H_NO_SUCH.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_arm_limits(
    node: *mut h_node_t,
    slot: h_slot_t,
    index: u32,
    low: u64,
    high: u64,
) -> h_status {
    guard(|| {
        let index = MetadataIndex(index);
        Ok(get(node, "node")?.lock()?.arm(slot.id(), index, Some(low..high))?)
    })
}

/// Revokes one sender's right: the paranoid entry accepts nothing until it is armed again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_close_entry(
    node: *mut h_node_t,
    slot: h_slot_t,
    index: u32,
) -> h_status {
    guard(|| Ok(get(node, "node")?.lock()?.close_entry(slot.id(), MetadataIndex(index))?))
}

/// Most bytes of user metadata in a message.
pub const H_METADATA_MAX: usize = 60;

/// The user metadata of the message that an entry received last: up to H_METADATA_MAX bytes, copied
/// to `buffer`; `length`, which may be null, gets their number.
///
/// Errors: H_TOO_LONG, `length` is written; H_NO_SUCH.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_metadata(
    node: *mut h_node_t,
    slot: h_slot_t,
    index: u32,
    buffer: *mut c_void,
    capacity: usize,
    length: *mut usize,
) -> h_status {
    guard(|| {
        let node = get(node, "node")?;
        let copied = Copied::new(buffer, capacity, length)?;
        copied.put(node.lock()?.metadata(slot.id(), MetadataIndex(index))?.user())
    })
}

/// Makes a send buffer area of `bytes` zero bytes, from which h_post_send gathers messages; a node
/// has up to 8. `tag` gets its name.
///
/// Errors: H_LIMIT; H_INVALID, 0 bytes or no tag left; H_SYSTEM.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_send_buffer_new(
    node: *mut h_node_t,
    bytes: usize,
    tag: *mut u8,
) -> h_status {
    guard(|| {
        let (node, tag) = (get(node, "node")?, out(tag, "tag")?);
        let mut node = node.lock()?;
        let primary = node.primary();
        tag.write(node.send_buffer(primary, bytes)?.0);
        Ok(())
    })
}

/// Makes a send buffer area of pages at an address of the application's own, which it may protect
/// at any time; the pages are replaced, and afterwards stay, as h_area_over says.
///
/// Errors: as for h_area_over, and H_INVALID, no tag left.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_send_buffer_over(
    node: *mut h_node_t,
    address: *mut c_void,
    bytes: usize,
    tag: *mut u8,
) -> h_status {
    guard(|| {
        let (node, tag) = (get(node, "node")?, out(tag, "tag")?);
        let mut node = node.lock()?;
        let primary = node.primary();
        // SAFETY: the caller's pages, to be replaced, as the documentation says.
        let pages = unsafe { AreaPages::at(address.cast(), bytes) }?;
        tag.write(node.send_buffer_of(primary, pages)?.0);
        Ok(())
    })
}

/// Makes a send buffer area of bytes of a memory file, possibly those of a message area; see
/// h_area_of_file.
///
/// Errors: as for h_area_of_file, and H_INVALID, no tag left. Then nothing was done.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_send_buffer_of_file(
    node: *mut h_node_t,
    descriptor: c_int,
    offset: u64,
    bytes: usize,
    tag: *mut u8,
) -> h_status {
    guard(|| {
        let (node, tag) = (get(node, "node")?, out(tag, "tag")?);
        let mut node = node.lock()?;
        let primary = node.primary();
        let pages = pages_of_file(descriptor, offset, bytes)?;
        tag.write(node.send_buffer_of(primary, pages)?.0);
        Ok(())
    })
}

/// Frees a send buffer area.
///
/// Errors: H_INVALID, a queued message needs it, or it does not exist; then nothing was done.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_send_buffer_free(node: *mut h_node_t, tag: u8) -> h_status {
    guard(|| {
        let mut node = get(node, "node")?.lock()?;
        let primary = node.primary();
        Ok(node.remove_send_buffer(primary, BufferTag(tag))?)
    })
}

/// Copies `length` bytes from `from` to `offset` of a send buffer area. A queued message that still
/// needs these bytes is sent with the new ones if its packet leaves afterwards; see h_is_reusable.
///
/// Errors: H_INVALID, outside the area, or no such area.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_send_buffer_write(
    node: *mut h_node_t,
    tag: u8,
    offset: usize,
    from: *const c_void,
    length: usize,
) -> h_status {
    guard(|| {
        let node = get(node, "node")?;
        let from = bytes(from, length, "from")?;
        let mut node = node.lock()?;
        let primary = node.primary();
        let to: Result<&mut [u8], MemoryError> = node.send_buffer_mut(primary, BufferTag(tag));
        let to = to?;
        let range = inside(length, offset, to.len())?;
        to[range].copy_from_slice(from);
        Ok(())
    })
}
