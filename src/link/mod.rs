//! Links carry packets from one interface to another, each once or not at all.
//!
//! - [`cells`]: memory shared with a stranger, and the only two functions that copy it.
//! - [`ring`]: one direction of a shared-memory link, over borrowed cells, so that the same
//!   algorithm runs on mapped memory and under loom.
//! - [`sleep`]: the sleep generation, by which a reader that waits is woken.
//! - [`bias`]: a lock that one thread takes without a locked instruction.
//! - [`sim`]: a fabric that delays, reorders, drops and corrupts, from a seed.
//!
//! The interface assumes nothing about order; it does assume that a link makes no duplicates.

pub mod bias;
#[allow(unsafe_code)]
pub mod cells;
pub mod ring;
pub mod sim;
pub mod sleep;

use crate::wire::{Flags, Header};

/// The source of an outgoing packet's data: at most a few slices, in order.
pub trait Source {
    /// Calls `put(position, piece)` for each piece in order; positions are bytes from the start of
    /// the packet's data and leave no gap. Together the pieces are `header.length` bytes.
    fn for_each(&self, put: impl FnMut(usize, &[u8]));
}

impl Source for &[u8] {
    #[inline(always)]
    fn for_each(&self, mut put: impl FnMut(usize, &[u8])) {
        put(0, self)
    }
}

/// The sending half of a link.
pub trait Transmit {
    /// Data and metadata bytes of the largest packet that this link carries.
    fn packet_bytes(&self) -> u32;

    /// Takes the packet whole (its bytes have then been copied out) or not at all.
    /// `header.length` is the number of bytes in `data`, and `header.metadata_len` in `metadata`.
    fn transmit<S: Source>(
        &mut self,
        header: &Header,
        metadata: &[u8],
        data: S,
    ) -> Result<(), Full>;
}

/// The link has no room now. Nothing was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// The body of a packet that has arrived, still in the memory that the sender wrote. Each method
/// copies at most once, and no caller reads the same byte twice.
pub trait Body {
    /// The first 16 bytes of the body if they arrived with the header: metadata, then data.
    fn inline(&self) -> [u64; 2];
    /// Copies the packet's metadata, `to.len()` being the header's `metadata_len`.
    fn copy_metadata(&self, to: &mut [u8]);
    /// Copies the packet's data, `to.len()` being the header's `length`.
    fn copy_data(&self, to: &mut [u8]);
}
    /// The same for packets with these flags.
    #[inline(always)]
    fn packet_bytes_with(&self, _: Flags) -> u32 {
        self.packet_bytes()
    }

