//! Memory of this end point that is open to others, and operations on theirs.
//!
//! ```text
//!   lend: region + key <------- begin_far: write, read ------- keep: own memory
//!                                completion (delivered) ---->  FabricEvent::Far
//! ```
//! Each operation provides one of a few contexts, which has the operation's number. Registered
//! memory stays mapped until the end point is closed, or for good if the library still uses it
//! then.
//!
//! Never: a key is used that this end has not chosen; an operation's memory is unmapped under it.

use super::super::chunk::Context;
use super::super::sys;
use super::{FabricEndPoint, FabricError, FabricEvent, FabricPeer};
use crate::os::memory::RegionLines;
use crate::wire::ApertureAccess;
use core::ffi::{c_int, c_void};
use core::ops::Range;
use std::boxed::Box;
use std::vec::Vec;

/// Most operations of one end point on their way.
pub const FAR_OPS: usize = 17;
/// Buffer numbers from here on are those of operations.
pub(super) const FAR_FIRST: usize = usize::MAX / 2;

/// The operations on their way, and their memory.
#[derive(Debug)]
pub(super) struct FarOps {
    contexts: *mut [Context],
    is_busy: [bool; FAR_OPS],
    memory: Vec<RegionLines>,
}

impl Default for FarOps {
    fn default() -> Self {
        let contexts: Vec<Context> = Vec::new();
        let contexts = Box::into_raw(contexts.into_boxed_slice());
        Self { contexts, is_busy: [false; FAR_OPS], memory: Vec::new() }
    }
}

impl Drop for FarOps {
    fn drop(&mut self) {
        // SAFETY: made from a box; the library no longer uses it, for otherwise this value is
        // forgotten.
        unsafe { drop(Box::from_raw(self.contexts)) };
    }
}

/// Own memory for operations: writes to another end point's memory take their bytes from it, and
/// reads put theirs into it.
#[derive(Clone, Debug)]
pub struct OperationMemory {
    lines: RegionLines,
    descriptor: *mut c_void,
}

// SAFETY: the library's descriptor, for calls with the end point that made it, which is `Send`.
unsafe impl Send for OperationMemory {}

/// Memory of another end point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FarMemory {
    /// Its start, in the addresses of its own provider.
    pub base: u64,
    /// Its key.
    pub key: u64,
}

impl FabricEndPoint {
    /// Opens memory to holders of the key, for reading, and for writing if `access` allows it.
    /// Returns its address for them, and the key.
    pub fn lend(
        &mut self,
        lines: &RegionLines,
        access: ApertureAccess,
        key: u64,
    ) -> Result<FarMemory, FabricError> {
        let rights = match access {
            ApertureAccess::ReadOnly => sys::FI_REMOTE_READ,
            ApertureAccess::ReadWrite => sys::FI_REMOTE_READ | sys::FI_REMOTE_WRITE,
        };
        let at = lines.start();
        // First of all, so that it stays mapped while the library uses it.
        self.far.memory.push(lines.clone());
        let region = self.register(at.cast(), lines.bytes(), u64::from(rights), key)?;
        // SAFETY: it is alive.
        if unsafe { (*region).key } != key {
            return Err(self.library().refused("choosing the key of memory", -22));
        }
        let is_by_address = self.mr_mode() & sys::FI_MR_VIRT_ADDR != 0;
        let base = if is_by_address { at.as_ptr() as u64 } else { 0 };
        Ok(FarMemory { base, key })
    }

    /// Registers own memory for operations on another end point's.
    pub fn keep(&mut self, lines: &RegionLines) -> Result<OperationMemory, FabricError> {
        if self.far.memory.is_empty() {
            let contexts: Vec<Context> = (0..FAR_OPS)
                .map(|op| Context {
                    // SAFETY: memory for the library's own use; zeros are valid.
                    of_library: unsafe { core::mem::zeroed() },
                    buffer: FAR_FIRST + op,
                })
                .collect();
            let contexts = Box::into_raw(contexts.into_boxed_slice());
            // This drops the empty contexts.
            let memory = core::mem::take(&mut self.far.memory);
            self.far = FarOps { contexts, is_busy: [false; FAR_OPS], memory };
        }
        self.far.memory.push(lines.clone());
        let access = u64::from(sys::FI_READ | sys::FI_WRITE);
        let descriptor = self.register_own(lines.start().cast(), lines.bytes(), access)?;
        Ok(OperationMemory { lines: lines.clone(), descriptor })
    }

    /// Writes a part of own memory to `offset` of another's, or with `reads` the other way. An
    /// event follows when it has arrived. `false`: the provider has no room for it now. Own bytes
    /// that change meanwhile arrive in the old or the new state.
    pub fn begin_far(
        &mut self,
        op: usize,
        to: (FabricPeer, FarMemory),
        offset: u64,
        own: (&OperationMemory, Range<usize>),
        reads: bool,
    ) -> Result<bool, FabricError> {
        let (FabricPeer(peer), far) = to;
        let (kept, range) = own;
        assert!(range.start <= range.end && range.end <= kept.lines.bytes(), "within own memory");
        assert!(op < self.far.contexts.len() && !self.far.is_busy[op], "a number that is free");
        let is_own = self.far.memory.iter().any(|own| own.start() == kept.lines.start());
        assert!(is_own, "memory that this end point keeps");
        let Some(_inside) = self.door.enter() else { return Ok(false) };
        let (end, remote) = (self.end(), far.base.wrapping_add(offset));
        // SAFETY: memory of this length that is mapped until this end point is closed, and a
        // context that stays until the completion. Other threads may change these bytes meanwhile;
        // the kernel or the device, or the library's copy, reads them as bytes alone.
        let rc = unsafe {
            let at: *mut c_void = kept.lines.start().as_ptr().add(range.start).cast();
            let context: *mut c_void = self.far.contexts.cast::<Context>().add(op).cast();
            let own = sys::iovec { iov_base: at, iov_len: range.len() };
            let theirs = sys::fi_rma_iov { addr: remote, len: range.len(), key: far.key };
            let mut descriptor = kept.descriptor;
            let message = sys::fi_msg_rma {
                msg_iov: &own,
                desc: &mut descriptor,
                iov_count: 1,
                addr: peer,
                rma_iov: &theirs,
                rma_iov_count: 1,
                context,
                data: 0,
            };
            // Set on each operation: `net` of 1.17 ignores the end point's own setting, and
            // completed writes whose bytes were still on their way.
            let delivered = u64::from(sys::FI_DELIVERY_COMPLETE);
            match reads {
                true => (*(*end).rma).readmsg.expect("it reads")(end, &message, 0),
                false => (*(*end).rma).writemsg.expect("it writes")(end, &message, delivered),
            }
        };
        match rc as i64 {
            0 => {
                self.far.is_busy[op] = true;
                Ok(true)
            }
            rc if rc == -i64::from(sys::FI_EAGAIN) => Ok(false),
            _ => Err(self.library().refused("writing to another host's memory", rc)),
        }
    }

    pub(super) fn far_completed(
        &mut self,
        op: usize,
        error: Option<c_int>,
        events: &mut Vec<FabricEvent>,
    ) {
        let Some(is_busy) = self.far.is_busy.get_mut(op) else { return };
        if core::mem::replace(is_busy, false) {
            let ended = error.map_or(Ok(()), |error| Err(self.library().text(error)));
            events.push(FabricEvent::Far { op, ended });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use static_assertions::assert_impl_all;

    assert_impl_all!(OperationMemory: Send);
}
