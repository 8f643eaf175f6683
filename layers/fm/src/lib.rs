//! Illinois Fast Messages, 1.x and 2.x, by the public interface of Hamlyn alone.
#![doc = include_str!("../README.md")]
//!
//! # The parts
//!
//! ```text
//! flow     credit, order and words of packets: a state machine without I/O
//! streams  a message in its handler, and the handler's stack
//! sink     from the ring straight to a suspended handler's buffer
//! joining  which nodes there are, and a link to each
//! state    peers, and the packets that go and come
//! sending  a message in pieces, as packets
//! node     the calls, and handlers that run
//! c        the same for C: include/fm.h and include/fm1.h
//! ```
#![warn(missing_docs)]

mod c;
pub mod flow;
mod joining;
mod node;
mod sending;
mod sink;
mod state;
mod streams;

pub use node::{Endpoint, Figures, Fm, Outgoing};
pub use streams::{Handler, Stream, Verdict};

use std::time::Duration;

/// A call failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no room: outside of handlers for the whole time limit, in a handler now. Nothing was
    /// sent, or, of a message with several packets, not all; its handler sees a message that ends early.
    #[error("{0}")]
    Full(String),
    /// The other node's program has ended, or broke the rules.
    #[error("node {0} has left: {1}")]
    Dead(u32, String),
    /// A length, an identifier or a node out of range.
    #[error("{0}")]
    Limit(String),
    /// A call that is not allowed here.
    #[error("{0}")]
    Misuse(&'static str),
    /// The system refused something.
    #[error("{0}")]
    Os(String),
}

/// The settings of a node.
#[derive(Clone, Debug)]
pub struct Config {
    /// Longest time that a send waits; `None`: without limit. One minute.
    pub time_limit: Option<Duration>,
    /// Room for what one peer has sent and no handler has taken, in bytes: 768 to 1 MiB, a multiple of
    /// 64. 48 KiB. The rings have as much or more.
    pub credit_bytes: u32,
    /// A handler's stack, in bytes. 256 KiB; memory is used as it is touched.
    pub stack_bytes: usize,
    /// Room for what handlers send, beyond one reply of up to [`REPLY_BYTES`] to each message's sender,
    /// in bytes. 64 KiB.
    pub queue_bytes: usize,
    /// Messages of one peer that may be open at once, of those with several packets: 1 to 64. 16.
    pub open_messages: usize,
}

/// A reply of a handler to its message's sender always has room, if it is not longer. Bytes.
pub const REPLY_BYTES: usize = 2048;

impl Default for Config {
    fn default() -> Self {
        Self {
            time_limit: Some(Duration::from_secs(60)),
            credit_bytes: 48 << 10,
            stack_bytes: 256 << 10,
            queue_bytes: 64 << 10,
            open_messages: 16,
        }
    }
}

impl Config {
    pub(crate) fn check(&self) -> Result<(), Error> {
        let Self { credit_bytes, stack_bytes, open_messages, .. } = *self;
        if !(768..=1 << 20).contains(&credit_bytes) || credit_bytes % 64 != 0 {
            return Err(Error::Limit(format!(
                "credit of {credit_bytes} bytes: 768 to 1048576 are allowed, in steps of 64"
            )));
        }
        if !(16 << 10..=1 << 30).contains(&stack_bytes) {
            return Err(Error::Limit(format!(
                "a stack of {stack_bytes} bytes: 16 KiB to 1 GiB are allowed"
            )));
        }
        if !(1..=flow::STREAMS).contains(&open_messages) {
            return Err(Error::Limit(format!(
                "{open_messages} open messages: 1 to 64 are allowed"
            )));
        }
        Ok(())
    }
}
