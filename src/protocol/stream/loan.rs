//! A record that is written in place before it leaves.
//!
//! ```text
//!   up to a quarter of a buffer   in the buffer of coalesced ones: one copy less than from a slice
//!   that fits into a buffer       in the buffer, which leaves as it is
//!   longer                        in memory of the sender's own, which is used again
//! ```
//! It is copied from there once, into the link: headers stand between the bytes in a ring, so no
//! record is written there in place.
//!
//! Up to three bytes after a coalesced record pad it to a multiple of four. They are not cleared:
//! the receiver may find in them bytes that this sender has sent before, or bytes of a forgotten
//! loan.
//!
//! Never: bytes that were written into a dropped loan reach a receiver.

use super::sender::{StreamSender, ToSend};
use crate::protocol::SendError;
use crate::protocol::deadline::Deadline;
use crate::protocol::records::HEAD_BYTES;
use core::ops::{Deref, DerefMut};
use core::time::Duration;

/// A record that is being written: the slice of bytes that [`send`](Self::send) sends. Until you
/// write them, they are zero, or bytes of earlier records of this sender, or of a loan that was
/// forgotten (`mem::forget`) instead of dropped. Dropping the loan sends nothing.
pub struct RecordLoan<'a> {
    sender: &'a mut StreamSender,
    length: usize,
    /// In the buffer, behind the coalesced records; otherwise in the memory for long ones.
    is_in_buffer: bool,
    is_sent: bool,
}

impl StreamSender {
    /// A record of `length` bytes, to be written in place and then [sent](RecordLoan::send). Waits
    /// at most `timeout` for room if earlier coalesced records have to leave first. A record that
    /// does not fit into a buffer (of the receiver's `buffer_bytes`, 1 MiB at most) is written into
    /// memory that the sender keeps for the next such record. On an error only that memory may have
    /// changed.
    ///
    /// ```no_run
    /// # use hamlyn::protocol::{SendError, StreamSender};
    /// # fn f(mut sender: StreamSender) -> Result<(), SendError> {
    /// let mut record = sender.loan(8, None)?;
    /// record[..4].copy_from_slice(&7u32.to_le_bytes());
    /// record[4..].fill(0);
    /// record.send(None)
    /// # }
    /// ```
    pub fn loan(
        &mut self,
        length: usize,
        timeout: Option<Duration>,
    ) -> Result<RecordLoan<'_>, SendError> {
        let mut is_in_buffer = length <= self.coalesced_max && self.has_room(length);
        if !is_in_buffer {
            self.check_length(length)?;
            self.empty(Deadline::new(timeout))?;
            is_in_buffer = self.has_room(length);
        }
        if !is_in_buffer && self.long.len() < length {
            self.long.resize(length, 0);
        }
        Ok(RecordLoan { sender: self, length, is_in_buffer, is_sent: false })
    }

    fn has_room(&self, length: usize) -> bool {
        let padded = length.checked_next_multiple_of(4);
        padded.is_some_and(|padded| padded + HEAD_BYTES <= self.limit.saturating_sub(self.fill))
    }

    /// Takes a record that lies in the buffer, behind the coalesced ones.
    fn send_written(&mut self, length: usize, timeout: Option<Duration>) -> Result<(), SendError> {
        let (before, head) = (self.fill, (length as u32).to_le_bytes());
        self.buffer[before..before + HEAD_BYTES].copy_from_slice(&head);
        self.fill = before + HEAD_BYTES + length.next_multiple_of(4);
        if length <= self.coalesced_max {
            return Ok(());
        }
        // It is alone there.
        match self.ship(ToSend::Coalesced, false, timeout) {
            // A part has left: the record is taken, and the rest follows in later calls.
            Err(_) if self.outgoing.is_some() => Ok(()),
            Err(e) => {
                self.fill = before;
                Err(e)
            }
            sent => sent,
        }
    }

    /// A record that does not fit into the buffer.
    fn send_long(&mut self, length: usize, timeout: Option<Duration>) -> Result<(), SendError> {
        let long = core::mem::take(&mut self.long);
        let sent = self.ship(ToSend::Record(&long[..length]), false, timeout);
        self.long = long;
        sent
    }
}

/// A [`RecordLoan`] apart from its sender, for languages that cannot hold a borrow.
#[cfg(feature = "unstable-internals")]
#[derive(Debug)]
pub struct RecordLoanApart {
    length: usize,
    is_in_buffer: bool,
}

#[cfg(feature = "unstable-internals")]
impl StreamSender {
    /// A loan that was [detached](RecordLoan::detach) from this sender. Make no other call on the
    /// sender in between: afterwards the bytes are of other records.
    pub fn attach(&mut self, apart: RecordLoanApart) -> RecordLoan<'_> {
        let RecordLoanApart { length, is_in_buffer } = apart;
        RecordLoan { sender: self, length, is_in_buffer, is_sent: false }
    }
}

#[cfg(feature = "unstable-internals")]
impl RecordLoan<'_> {
    /// The loan apart from its sender, to be [attached](StreamSender::attach) again. Its bytes stay
    /// in place.
    pub fn detach(self) -> RecordLoanApart {
        let apart = RecordLoanApart { length: self.length, is_in_buffer: self.is_in_buffer };
        core::mem::forget(self);
        apart
    }

    /// [`send`](Self::send), which keeps the loan on an error.
    pub fn send_or_keep(&mut self, timeout: Option<Duration>) -> Result<(), SendError> {
        self.send_now(timeout)
    }
}

impl RecordLoan<'_> {
    /// Makes the record shorter; a record of at most `length` bytes stays as it is.
    ///
    /// ```
    /// # let dir = std::env::temp_dir().join(format!("hamlyn-doc-truncate-{}", std::process::id()));
    /// use hamlyn::protocol::{Manager, StreamConfig, StreamReceiver, StreamSender};
    /// # use std::time::Duration;
    ///
    /// # let limit = Some(Duration::from_secs(10));
    /// # let config = hamlyn::Config::from_env()?.dir(&dir);
    /// # let manager = Manager::with_config(config.clone())?;
    /// # let mut receiver = StreamReceiver::new(&manager, StreamConfig::default())?;
    /// # manager.start_progress()?;
    /// # let mut sender = StreamSender::grow(&Manager::with_config(config)?, &receiver.seed()?, limit)?;
    /// let mut record = sender.loan(1000, limit)?; // As long as it may become.
    /// record[..5].copy_from_slice(b"short");
    /// record.truncate(5);
    /// record.send(limit)?;
    /// sender.flush(limit)?;
    /// assert_eq!(receiver.receive(limit)?[..], b"short"[..]);
    /// # std::fs::remove_dir_all(&dir).ok();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn truncate(&mut self, length: usize) {
        if length < self.length {
            // The bytes that are cut off are never sent.
            self[length..].fill(0);
            self.length = length;
        }
    }

    /// Sends the record as [`StreamSender::send`] does: a small one leaves with others, at the
    /// latest with the next flush; the rest of a long one may leave with later calls. On an error
    /// the record is gone, and no part of it was taken.
    #[inline]
    pub fn send(mut self, timeout: Option<Duration>) -> Result<(), SendError> {
        self.send_now(timeout)
    }

    #[inline]
    fn send_now(&mut self, timeout: Option<Duration>) -> Result<(), SendError> {
        let sent = match self.is_in_buffer {
            true => self.sender.send_written(self.length, timeout),
            false => self.sender.send_long(self.length, timeout),
        };
        self.is_sent = sent.is_ok();
        sent
    }
}

impl core::fmt::Debug for RecordLoan<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("RecordLoan").field("length", &self.length).finish_non_exhaustive()
    }
}

impl Deref for RecordLoan<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match self.is_in_buffer {
            true => &self.sender.buffer[self.sender.fill + HEAD_BYTES..][..self.length],
            false => &self.sender.long[..self.length],
        }
    }
}

impl DerefMut for RecordLoan<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        match self.is_in_buffer {
            true => &mut self.sender.buffer[self.sender.fill + HEAD_BYTES..][..self.length],
            false => &mut self.sender.long[..self.length],
        }
    }
}

impl Drop for RecordLoan<'_> {
    #[inline]
    fn drop(&mut self) {
        // Another record, not written whole, would show the receiver these bytes.
        if !self.is_sent && (!self.is_in_buffer || self.sender.outgoing.is_none()) {
            self.fill(0);
        }
    }
}
