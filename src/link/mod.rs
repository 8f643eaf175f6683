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
mod end;
pub mod ring;
pub mod sim;
pub mod sleep;

pub use end::LinkEnd;

use crate::wire::{Flags, Header};
use core::ops::Range;

/// The source of an outgoing packet's data: at most a few slices, in order.
pub trait Source {
    /// Calls `put(position, piece)` for each piece in order; positions are bytes from the start of
    /// the packet's data and leave no gap. Together the pieces are `header.length` bytes.
    fn for_each(&self, put: impl FnMut(usize, &[u8]));

    /// The data, if it is one piece.
    #[inline]
    fn whole(&self) -> Option<&[u8]> {
        None
    }
}

impl Source for &[u8] {
    #[inline]
    fn for_each(&self, mut put: impl FnMut(usize, &[u8])) {
        put(0, self)
    }

    #[inline]
    fn whole(&self) -> Option<&[u8]> {
        Some(self)
    }
}

/// The data of a message, of which each packet carries a part.
pub trait MessageParts: Copy {
    /// All bytes.
    fn bytes(self) -> u64;
    /// The bytes of this range, which lies inside.
    fn part(self, range: Range<u64>) -> impl Source;
}

impl MessageParts for &[u8] {
    #[inline]
    fn bytes(self) -> u64 {
        self.len() as u64
    }

    #[inline]
    fn part(self, range: Range<u64>) -> impl Source {
        &self[range.start as usize..range.end as usize]
    }
}

/// Slices that make one message, in order.
#[derive(Clone, Copy, Debug)]
pub struct Slices<'a>(pub &'a [&'a [u8]]);

/// A packet's part of some slices.
struct SlicesPart<'a> {
    slices: &'a [&'a [u8]],
    range: Range<u64>,
}

impl MessageParts for Slices<'_> {
    fn bytes(self) -> u64 {
        self.0.iter().fold(0, |sum, slice| sum.saturating_add(slice.len() as u64))
    }

    fn part(self, range: Range<u64>) -> impl Source {
        SlicesPart { slices: self.0, range }
    }
}

impl Source for SlicesPart<'_> {
    fn for_each(&self, mut put: impl FnMut(usize, &[u8])) {
        let mut start = 0;
        for slice in self.slices {
            let end = start + slice.len() as u64;
            let (from, to) = (self.range.start.max(start), self.range.end.min(end));
            if from < to {
                let bytes = &slice[(from - start) as usize..(to - start) as usize];
                put((from - self.range.start) as usize, bytes);
            }
            start = end;
        }
    }
}

/// The sending half of a link.
pub trait Transmit {
    /// Data and metadata bytes of the largest packet that this link carries.
    fn packet_bytes(&self) -> u32;

    /// The same for packets with these flags.
    #[inline]
    fn packet_bytes_with(&self, _: Flags) -> u32 {
        self.packet_bytes()
    }

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
    /// The first 16 bytes of the data, of a packet without metadata; behind its end, any bytes.
    fn words(&self) -> [u64; 2];
    /// Copies the packet's metadata, `to.len()` being the header's `metadata_len`.
    fn copy_metadata(&self, to: &mut [u8]);
    /// Copies the packet's data, `to.len()` being the header's `length`.
    fn copy_data(&self, to: &mut [u8]);
}
