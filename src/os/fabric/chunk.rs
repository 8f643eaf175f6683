//! Memory of an end point's buffers, and a message that came into one.
//!
//! Never: memory is freed while the library, or whoever reads a message, has any of it.

use super::sys;
use core::ffi::c_void;
use core::ptr::NonNull;
use rustix::mm;
use std::boxed::Box;
use std::sync::Arc;

/// What an operation brings for the library, and which buffer it is of.
#[repr(C)]
pub struct Context {
    pub of_library: sys::fi_context2,
    pub buffer: usize,
}

/// Memory of some buffers. It is freed with the last who has it: none of it is the library's then, for an
/// end point that could not be closed keeps it for good.
#[derive(Debug)]
pub struct Chunk {
    pub at: NonNull<c_void>,
    pub bytes: usize,
    pub contexts: *mut [Context],
}

// SAFETY: memory that is bound to no thread; what of it is written or read when is the end point's, and
// its messages', to say.
unsafe impl Send for Chunk {}
// SAFETY: the same; a chunk by itself gives nobody access to any of it.
unsafe impl Sync for Chunk {}

impl Drop for Chunk {
    fn drop(&mut self) {
        // SAFETY: mapped, and made from a box, by `grow`; nobody else has it.
        unsafe {
            let _ = mm::munmap(self.at.as_ptr(), self.bytes);
            drop(Box::from_raw(self.contexts));
        }
    }
}

/// A message that came, in a buffer of the end point: to be [given back](super::EndPoint::give_back).
#[derive(Debug)]
pub struct Received {
    pub(super) index: usize,
    pub(super) at: NonNull<u8>,
    pub(super) bytes: usize,
    pub(super) _chunk: Arc<Chunk>,
}

// SAFETY: as the chunk's; the bytes are only read, and stay as they are until it is given back.
unsafe impl Send for Received {}

impl Received {
    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: memory of the chunk, which is alive. The library is done with the buffer, has written so
        // many bytes of it (those that it has not are zeros of a new mapping, or of an earlier
        // message), and is given it again when this is gone.
        unsafe { core::slice::from_raw_parts(self.at.as_ptr(), self.bytes) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use static_assertions::assert_impl_all;

    assert_impl_all!(Chunk: Send, Sync);
    assert_impl_all!(Received: Send);
}
