//! A record while it is looked at, which is released when it is dropped.

use super::{Record, StreamReceiver};
use core::ops::Deref;

/// A record that has arrived: a slice of its bytes, where they arrived. They stand still. Dropped, it is
/// released: its buffer is used again, and a sender that waits for one goes on. Where records before it
/// were kept, its buffer is free when those are released. The place of one that is forgotten
/// ([`mem::forget`](core::mem::forget)) is free with the next that is released.
///
/// Whoever needs several at once, or later, [keeps](Self::keep) them.
pub struct RecordGuard<'a> {
    /// Of its latest record.
    receiver: &'a mut StreamReceiver,
}

impl<'a> RecordGuard<'a> {
    #[inline(always)]
    pub(super) fn new(receiver: &'a mut StreamReceiver) -> Self {
        Self { receiver }
    }

    /// How many records came before it.
    pub fn number(&self) -> u64 {
        self.receiver.latest().number
    }

    /// The record is not released when this is dropped, but by [`StreamReceiver::release`], to which it
    /// must come some time; until then it, and whatever comes after it, stays where it is, and
    /// [`StreamReceiver::bytes`] has its bytes. A sender waits when no buffers are left.
    #[inline]
    pub fn keep(self) -> Record {
        let record = self.receiver.keep();
        core::mem::forget(self);
        record
    }
}

impl core::fmt::Debug for RecordGuard<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("RecordGuard")
            .field("record", &self.receiver.latest())
            .finish_non_exhaustive()
    }
}

impl Deref for RecordGuard<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // It is this stream's, and not released as long as it is here.
        self.receiver.latest_bytes()
    }
}

impl AsRef<[u8]> for RecordGuard<'_> {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Drop for RecordGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        self.receiver.let_go();
    }
}
