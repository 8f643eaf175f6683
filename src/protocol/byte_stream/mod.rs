//! A byte stream: bytes both ways over one link, between a connecting process and a listener.
//!
//! ```text
//!   writer                                                              reader
//!   write  ---- fast packets: the bytes, word = number and length ---->  window     read
//!          <--- one line, silent: bytes and packets taken -------------  credit
//!   shut   ---- a packet of no bytes ------------------------------->   end of file
//! ```
//! Each side lends the other a *window*: a ring of bytes in its own memory, and a credit word that
//! it deposits into the other's. A writer appends its bytes, as far as the window has been read,
//! and keeps no copy: bytes that [`write_within`](ByteStream::write_within) took are on their way,
//! and arrive even if this process ends. So a peer's bytes never take memory beyond its window, and
//! a writer whose reader does not read waits.
//!
//! Links may reorder, so each packet carries a number; bytes are handed out as far as the numbers
//! are complete. They are copied out of the window under the manager's lock, when no packet can be
//! deposited. A peer that writes wrong bytes into its window, or to the wrong place in it, changes
//! its own bytes only.
//!
//! A packet of its own marks the end of the bytes, so each direction ends by itself. Dropping a
//! stream sends it, too, and closes the connection.

mod ends;
mod flow;
mod listener;

pub use ends::ByteStream;
#[cfg(feature = "tokio")]
pub(crate) use ends::Turned;
pub use listener::ByteListener;
pub(in crate::protocol) use listener::Listening;

use super::GrowError;
use crate::node::CloseReason;
use std::format;
use std::io;
use std::string::String;
use std::sync::Arc;

/// Configuration of a [`ByteListener`] or a [`ByteStream`].
#[derive(Clone, Debug)]
pub struct ByteConfig {
    /// Bytes that the other side may send before they are read: a power of two from 4 KiB to 16
    /// MiB. 256 KiB unless set. Pages are used when they are first written.
    pub window_bytes: u32,
    /// Packets that the other side may send before they are looked at, from 8 to 1,024. 256 unless
    /// set.
    pub packets: u32,
    /// For a listener: connections at one time, accepted or not. 256 unless set.
    pub connections_max: u32,
}

impl Default for ByteConfig {
    fn default() -> Self {
        Self { window_bytes: 256 << 10, packets: 256, connections_max: 256 }
    }
}

const WINDOW_BYTES: core::ops::RangeInclusive<u32> = 4 << 10..=16 << 20;

const PACKETS: core::ops::RangeInclusive<u32> = 8..=1024;

impl ByteConfig {
    fn check(&self) -> Result<(), GrowError> {
        let Self { window_bytes, packets, connections_max } = self;
        let wrong = if !WINDOW_BYTES.contains(window_bytes) || !window_bytes.is_power_of_two() {
            format!(
                "window_bytes is {window_bytes}, and a power of two from 4096 to 16777216 is allowed"
            )
        } else if !PACKETS.contains(packets) {
            format!("packets is {packets}, and 8 to 1024 are allowed")
        } else if *connections_max == 0 {
            "connections_max is 0, and a listener needs one".into()
        } else {
            return Ok(());
        };
        Err(GrowError::SetUp(wrong))
    }
}

/// The reason why a byte stream has ended: the error within the [`io::Error`] of a read or a write.
#[derive(Clone, Debug, thiserror::Error)]
#[cfg_attr(not(feature = "unstable-internals"), non_exhaustive)]
pub enum ByteStreamError {
    /// The peer is gone ([`ConnectionReset`](io::ErrorKind::ConnectionReset); for a write to a peer
    /// that closed its stream, [`BrokenPipe`](io::ErrorKind::BrokenPipe)).
    #[error("the peer is gone: {0}")]
    Ended(CloseReason),
    /// The peer reports that this side broke the rules, or no thread watches over links any more
    /// ([`ConnectionAborted`](io::ErrorKind::ConnectionAborted)).
    #[error("the connection was given up: {0}")]
    Aborted(CloseReason),
    /// The peer broke the protocol's rules, and its link was closed
    /// ([`InvalidData`](io::ErrorKind::InvalidData)).
    #[error("the peer broke the rules and was sent away: {0}")]
    Misbehaved(String),
    /// This side was [shut](ByteStream::shut) ([`BrokenPipe`](io::ErrorKind::BrokenPipe)).
    #[error("this side has shut its direction of the stream, and can write nothing more")]
    Shut,
    /// The time limit has passed; nothing was read or written
    /// ([`TimedOut`](io::ErrorKind::TimedOut)).
    #[error(
        "the peer did not go on within the time limit: it is behind, or its program makes no calls"
    )]
    TimedOut,
    /// The calling process is a forked child ([`Unsupported`](io::ErrorKind::Unsupported)).
    #[error(transparent)]
    Forked(#[from] crate::node::Forked),
    /// Waiting failed; the kind is that of the error.
    #[error("waiting failed: {0}")]
    Wait(Arc<io::Error>),
}

impl From<ByteStreamError> for io::Error {
    fn from(error: ByteStreamError) -> Self {
        let kind = match &error {
            ByteStreamError::Ended(CloseReason::Closed) | ByteStreamError::Shut => {
                io::ErrorKind::BrokenPipe
            }
            ByteStreamError::Ended(_) => io::ErrorKind::ConnectionReset,
            ByteStreamError::Aborted(_) => io::ErrorKind::ConnectionAborted,
            ByteStreamError::Misbehaved(_) => io::ErrorKind::InvalidData,
            ByteStreamError::TimedOut => io::ErrorKind::TimedOut,
            ByteStreamError::Forked(_) => io::ErrorKind::Unsupported,
            ByteStreamError::Wait(e) => e.kind(),
        };
        io::Error::new(kind, error)
    }
}

impl From<crate::node::WaitError> for ByteStreamError {
    fn from(waited: crate::node::WaitError) -> Self {
        match waited {
            crate::node::WaitError::TimedOut => Self::TimedOut,
            crate::node::WaitError::Forked(e) => e.into(),
            crate::node::WaitError::Os(e) => Self::Wait(Arc::new(e)),
        }
    }
}

impl ByteStreamError {
    /// The error of a read or write at the end of a connection.
    fn of(reason: &CloseReason) -> Self {
        match reason {
            CloseReason::Misbehaved(why) => Self::Misbehaved(why.clone()),
            CloseReason::Expelled | CloseReason::TooSlow | CloseReason::Unwatched => {
                Self::Aborted(reason.clone())
            }
            reason => Self::Ended(reason.clone()),
        }
    }
}
