//! Apertures: pages of one process mapped into another, for transfers without copies.

use crate::boundary::{
    Done, Failure, bytes, bytes_out, get, guard, h_status, out, out_or_null, put,
};
use crate::common::free;
use crate::endpoint::{End, give, handles};
use crate::links::h_link_t;
use crate::memory::h_area_t;
use crate::node::h_node_t;
use core::ffi::c_void;
use hamlyn::{Aperture, ApertureAccess, ApertureId, ApertureView};

/// An aperture, for its holder or its owner. Any number of threads may use it, without the node.
/// The other side may change its bytes at any time, so they are only ever copied.
pub struct h_aperture_t(End<Pages>);

handles!(h_aperture_t: Pages);

pub(crate) enum Pages {
    Held(Aperture),
    Owned(ApertureView),
}

macro_rules! pages {
    ($aperture:expr, $pages:ident => $call:expr) => {
        match $aperture {
            Pages::Held($pages) => $call,
            Pages::Owned($pages) => $call,
        }
    };
}

/// The aperture; an error in a forked child, where its pages are not mapped.
///
/// # Safety
/// As [`get`].
unsafe fn entered<'a>(aperture: *const h_aperture_t) -> Done<&'a Pages> {
    get(aperture, "aperture")?.0.shared()
}

/// The holder's access to an aperture.
#[repr(C)]
pub enum h_aperture_access {
    /// Read.
    H_APERTURE_READ_ONLY = 0,
    /// Read and write.
    H_APERTURE_READ_WRITE = 1,
}

/// Exports `bytes` of new zeroed memory to the other side of `link`: whole pages of 4096 bytes, one
/// holder, and access (`access`, an h_aperture_access) that is fixed for the aperture's life. All
/// of the memory is charged to this process now. `number` gets the aperture's number, which is the
/// same at both ends of the link; messages refer to the aperture by it. An event of kind
/// H_EVENT_APERTURE_READY reports that the holder has mapped it; H_EVENT_APERTURE_REFUSED gives the
/// reason if it will not.
///
/// Errors: H_INVALID, `bytes` is not whole pages, or `access` is invalid; H_LIMIT; H_FULL, not now:
/// the other side has yet to map others; H_NO_SUCH, no such link; H_STATE, this link cannot carry
/// apertures; H_SYSTEM. Nothing was done.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_export(
    node: *mut h_node_t,
    link: h_link_t,
    bytes: u64,
    access: u32,
    number: *mut u32,
) -> h_status {
    guard(|| {
        let (node, place) = (get(node, "node")?, out(number, "number")?);
        let access = match access {
            0 => ApertureAccess::ReadOnly,
            1 => ApertureAccess::ReadWrite,
            n => {
                let text = format!("access is {n}, and must be one of h_aperture_access, 0 or 1");
                return Err(Failure::invalid(text));
            }
        };
        place.write(node.lock()?.export(link.id(), bytes, access)?.number);
        Ok(())
    })
}

/// Exports a read-only aperture of this node, `number` on `link`, to the other side of `also` as
/// well; `also_number` gets its number there. Both holders see the same pages. Each holder is
/// revoked separately, and the memory is freed with the last; h_aperture_reclaim takes the aperture
/// from all of them. A revoked holder that keeps its mapping sees further writes as long as the
/// memory exists.
///
/// Errors: H_NO_SUCH, no such aperture of this node, or no such link; H_STATE, the aperture is
/// read-write, or this link cannot carry apertures; otherwise as h_export. Nothing was done.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_export_also(
    node: *mut h_node_t,
    link: h_link_t,
    number: u32,
    also: h_link_t,
    also_number: *mut u32,
) -> h_status {
    guard(|| {
        let (node, place) = (get(node, "node")?, out(also_number, "also_number")?);
        let id = ApertureId { link: link.id(), number };
        place.write(node.lock()?.export_also(id, also.id())?.number);
        Ok(())
    })
}

/// Opens an aperture that this node has exported or holds, as soon as its event has come. To be
/// freed with h_aperture_free. `access`, which may be null, gets the holder's access: an
/// h_aperture_access.
///
/// Errors: H_NO_SUCH, it is not an aperture of this node, was revoked, its link has ended, or it
/// has no memory yet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_aperture_open(
    node: *mut h_node_t,
    link: h_link_t,
    number: u32,
    access: *mut u32,
    aperture: *mut *mut h_aperture_t,
) -> h_status {
    guard(|| {
        let (node, place) = (get(node, "node")?, out(aperture, "aperture")?);
        let access = out_or_null(access, "access")?;
        let id = ApertureId { link: link.id(), number };
        let mut locked = node.lock()?;
        let pages = match locked.aperture_view(id) {
            Ok(view) => Pages::Owned(view),
            Err(_) => Pages::Held(locked.aperture(id)?),
        };
        drop(locked);
        let writable = pages!(&pages, pages => pages.access() == ApertureAccess::ReadWrite);
        place.write(give(node, pages)?);
        put(access, writable.into());
        Ok(())
    })
}

/// Frees an aperture handle of h_aperture_open. The aperture stays as it is; see h_aperture_release
/// and h_aperture_revoke. Null is allowed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_aperture_free(aperture: *mut h_aperture_t) {
    guard(|| free(aperture, "aperture"));
}

/// The bytes of an aperture.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_aperture_bytes(
    aperture: *mut h_aperture_t,
    bytes: *mut u64,
) -> h_status {
    guard(|| {
        let (aperture, place) = (entered(aperture)?, out(bytes, "bytes")?);
        place.write(pages!(aperture, pages => pages.bytes()));
        Ok(())
    })
}

/// Copies `length` bytes of `from` to `offset` of an aperture. A message that this thread sends
/// afterwards makes them visible to its receiver.
///
/// Errors: H_INVALID, outside the aperture; H_REFUSED, the holder may not write; H_CLOSED, it was
/// revoked, or its link has ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_aperture_write(
    aperture: *mut h_aperture_t,
    offset: u64,
    from: *const c_void,
    length: usize,
) -> h_status {
    guard(|| {
        let aperture = entered(aperture)?;
        let from = bytes(from, length, "from")?;
        Ok(pages!(aperture, pages => pages.write(offset, from))?)
    })
}

/// Copies `length` bytes from `offset` of an aperture to `to`. The other side may change them at
/// any time: copy the bytes that you need, check the copy, and use only that.
///
/// Errors: H_INVALID, outside the aperture; H_CLOSED, it was revoked, or its link has ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_aperture_read(
    aperture: *mut h_aperture_t,
    offset: u64,
    to: *mut c_void,
    length: usize,
) -> h_status {
    guard(|| {
        let aperture = entered(aperture)?;
        let to = bytes_out(to, length, "to")?;
        Ok(pages!(aperture, pages => pages.read(offset, to))?)
    })
}

/// Stores the word at `offset`, a multiple of 8, atomically, after all of this thread's earlier
/// writes.
///
/// Errors: as h_aperture_write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_aperture_write_u64(
    aperture: *mut h_aperture_t,
    offset: u64,
    value: u64,
) -> h_status {
    guard(|| Ok(pages!(entered(aperture)?, pages => pages.write_u64(offset, value))?))
}

/// Reads the word at `offset`, a multiple of 8, atomically; later reads see all that the writer
/// wrote before the word.
///
/// Errors: as h_aperture_read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_aperture_read_u64(
    aperture: *mut h_aperture_t,
    offset: u64,
    value: *mut u64,
) -> h_status {
    guard(|| {
        let (aperture, place) = (entered(aperture)?, out(value, "value")?);
        place.write(pages!(aperture, pages => pages.read_u64(offset))?);
        Ok(())
    })
}

/// Revokes an aperture that this node has exported, at once: its pages are given back, and later
/// writes of the holder reach no other process. If a read-only aperture has other holders
/// (h_export_also), only this holder is notified; the pages stay for the others, and handles of
/// h_aperture_open go on reading and writing them.
///
/// Errors: H_NO_SUCH.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_aperture_revoke(
    node: *mut h_node_t,
    link: h_link_t,
    number: u32,
) -> h_status {
    guard(|| {
        let id = ApertureId { link: link.id(), number };
        Ok(get(node, "node")?.lock()?.revoke_aperture(id)?)
    })
}

/// Revokes an aperture that this node has exported, at once, and makes a message area of its bytes:
/// from then on they are stable. The bytes are copied once. All holders lose the aperture, those of
/// h_export_also included.
///
/// Errors: H_NO_SUCH; H_LIMIT; H_SYSTEM. The aperture is as it was.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_aperture_reclaim(
    node: *mut h_node_t,
    link: h_link_t,
    number: u32,
    area: *mut h_area_t,
) -> h_status {
    guard(|| {
        let (node, area) = (get(node, "node")?, out(area, "area")?);
        let id = ApertureId { link: link.id(), number };
        area.write(h_area_t { bits: node.lock()?.reclaim_aperture(id)?.to_bits() });
        Ok(())
    })
}

/// Releases an aperture that this node holds, and notifies its owner.
///
/// Errors: H_NO_SUCH.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_aperture_release(
    node: *mut h_node_t,
    link: h_link_t,
    number: u32,
) -> h_status {
    guard(|| {
        let id = ApertureId { link: link.id(), number };
        Ok(get(node, "node")?.lock()?.release_aperture(id)?)
    })
}
