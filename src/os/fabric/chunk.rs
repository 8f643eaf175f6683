//! Memory of an end point's buffers, and a message that came into one.
//!
//! Never: memory is freed while the library, or the reader of a message, uses any of it.

use super::sys;
use core::ffi::c_void;
use core::ptr::NonNull;
use rustix::mm;
use std::boxed::Box;
use std::sync::Arc;

/// The memory that an operation provides for the library, and the number of its buffer.
#[repr(C)]
pub struct Context {
    pub of_library: sys::fi_context2,
    pub buffer: usize,
}

/// Memory of some buffers. It is freed with its last reference: the library then uses none of it,
/// since an end point that could not be closed keeps it for good.
#[derive(Debug)]
pub struct Chunk {
    pub at: NonNull<c_void>,
    pub bytes: usize,
    pub contexts: *mut [Context],
}

// SAFETY: memory that is bound to no thread; the end point and its messages decide when which part
// of it is written or read.
unsafe impl Send for Chunk {}
// SAFETY: the same; a chunk by itself gives no access to its memory.
unsafe impl Sync for Chunk {}

impl Drop for Chunk {
    fn drop(&mut self) {
        // SAFETY: mapped, and made from a box, by `grow`; this is the last reference.
        unsafe {
            let _ = mm::munmap(self.at.as_ptr(), self.bytes);
            drop(Box::from_raw(self.contexts));
        }
    }
}

/// A message that came, in a buffer of the end point: to be [given back](super::FabricEndPoint::give_back).
#[derive(Debug)]
pub struct ReceivedChunk {
    pub(super) index: usize,
    pub(super) at: NonNull<u8>,
    pub(super) bytes: usize,
    pub(super) _chunk: Arc<Chunk>,
}

// SAFETY: like the chunk; the bytes are only read, and do not change until the message is given
// back.
unsafe impl Send for ReceivedChunk {}

impl ReceivedChunk {
    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: memory of the chunk, which is alive. The library has finished with the buffer,
        // has written this number of its bytes (the others are zeros of a new mapping, or of an
        // earlier message), and gets it again only once this is gone.
        unsafe { core::slice::from_raw_parts(self.at.as_ptr(), self.bytes) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use static_assertions::assert_impl_all;

    assert_impl_all!(Chunk: Send, Sync);
    assert_impl_all!(ReceivedChunk: Send);
}
