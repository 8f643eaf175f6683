//! A record while it is looked at, which is released when it is dropped.

use super::{Record, StreamReceiver};
use core::ops::Deref;

/// A record that has arrived: a slice of its bytes, where they arrived. They stand still. Dropped, it is
/// released: its buffer is used again, and a sender that waits for one goes on. Where records before it
/// were kept, its buffer is free when those are released. One that is forgotten
/// ([`mem::forget`](core::mem::forget)) is released with the next that is, or when its receiver waits.
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
    ///
    /// ```
    /// # let dir = std::env::temp_dir().join(format!("hamlyn-doc-keep-{}", std::process::id()));
    /// use hamlyn::protocol::{Manager, Record, StreamConfig, StreamReceiver, StreamSender};
    /// # use std::time::Duration;
    ///
    /// # let limit = Some(Duration::from_secs(10));
    /// # let config = hamlyn::Config::from_env()?.dir(&dir);
    /// # let manager = Manager::with_config(config.clone())?;
    /// let mut receiver = StreamReceiver::new(&manager, StreamConfig::default())?;
    /// # manager.start_progress()?;
    /// let mut sender = StreamSender::grow(&Manager::with_config(config)?, &receiver.seed()?, limit)?;
    /// assert!(sender.try_send(b"one")? && sender.try_send(b"two")? && sender.try_send(b"three")?);
    /// sender.flush(limit)?; // Or `try_flush`, until it says that everything has left.
    ///
    /// let one: Record = receiver.receive(limit)?.keep();
    /// let two = receiver.receive(limit)?.keep();
    /// assert_eq!((one.number(), one.len(), receiver.bytes(&one)?), (0, 3, &b"one"[..]));
    /// println!("at byte {} of its buffer", one.start());
    /// // With the second the first is released, too.
    /// assert_eq!(receiver.guard(two)?[..], b"two"[..]);
    /// let three = receiver.receive(limit)?.keep();
    /// receiver.release(&three)?;
    /// assert!(receiver.try_receive()?.is_none());
    /// # std::fs::remove_dir_all(&dir).ok();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
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
