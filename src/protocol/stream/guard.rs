//! A record during a look at it; dropping the guard releases it.

use super::{Record, StreamReceiver};
use core::ops::Deref;

/// A record that has arrived: a slice of its bytes, in the memory in which they arrived. They do
/// not change. Dropping the guard releases the record: its buffer is used again, and a sender that
/// waits for one goes on. If earlier records were kept, its buffer is free when those are released.
/// A forgotten guard ([`mem::forget`](core::mem::forget)) is released with the next one, or when
/// its receiver waits.
///
/// [Keep](Self::keep) records that you need several at a time, or later.
pub struct RecordGuard<'a> {
    /// The receiver; the record is its latest.
    receiver: &'a mut StreamReceiver,
}

impl<'a> RecordGuard<'a> {
    #[inline(always)]
    pub(super) fn new(receiver: &'a mut StreamReceiver) -> Self {
        Self { receiver }
    }

    /// The number of records before it.
    pub fn number(&self) -> u64 {
        self.receiver.latest().number
    }

    /// Keeps the record when this is dropped. [`StreamReceiver::release`] releases it, and must be
    /// called some time: until then the record and all later ones stay in memory, and
    /// [`StreamReceiver::bytes`] returns its bytes. The sender waits when no buffers are left.
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
    /// sender.flush(limit)?; // Or `try_flush`, until it returns `true`.
    ///
    /// let one: Record = receiver.receive(limit)?.keep();
    /// let two = receiver.receive(limit)?.keep();
    /// assert_eq!((one.number(), one.len(), receiver.bytes(&one)?), (0, 3, &b"one"[..]));
    /// println!("at byte {} of its buffer", one.start());
    /// // The second releases the first, too.
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
        // The record is this stream's, and is not released while this guard lives.
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
