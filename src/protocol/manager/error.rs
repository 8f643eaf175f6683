//! The errors of end points.

#[cfg(feature = "tls")]
use crate::control::hosts::{HostError, MeetingError};
use crate::control::{ConnectError, Reason};
use crate::node::{CloseReason, Forked, NodeSendError};
use crate::protocol::seed::{Kind, SeedError};
use crate::wire::NodeId;
use std::io;
use std::string::{String, ToString};
use std::sync::Arc;

/// A sender that could not be grown. Nothing is left of the attempt.
#[derive(Debug, thiserror::Error)]
#[cfg_attr(not(feature = "unstable-internals"), non_exhaustive)]
pub enum GrowError {
    /// The bytes are no seed.
    #[error(transparent)]
    Seed(#[from] SeedError),
    /// The seed is for another protocol.
    #[error("the seed is of a receiver of kind {found}, and this sender is of kind {wanted}")]
    Kind {
        /// The sender's.
        wanted: Kind,
        /// The seed's.
        found: Kind,
    },
    /// The receiver's process could not be reached: it is gone, or never was.
    #[error("the receiver cannot be reached: {error}{advice}", error = .0, advice = advice(.0))]
    Connect(ConnectError),
    /// Another node than the seed's has its name now.
    #[error("the seed is of node {wanted}, and its name is served by node {found}")]
    OtherNode {
        /// The seed's.
        wanted: NodeId,
        /// The node that serves the name.
        found: NodeId,
    },
    /// The receiver refused: the seed is old or forged, or its owner does not want this peer.
    #[error("the receiver refused: {0}")]
    Refused(String),
    /// The receiver has reached a limit: its senders, those of this user, or its process's links or
    /// bytes of rings.
    #[error("the receiver refused: {0}")]
    Full(String),
    /// The service under this name is no end point.
    #[error("what is served there is no end point, or one of another version")]
    NotAnEndPoint,
    /// The receiver's answer is not valid: the receiver misbehaves.
    #[error("the receiver's answer makes no sense: {0}")]
    Answer(&'static str),
    /// This side has no memory, slots or entries left for the end point.
    #[error("the end point cannot be set up here: {0}")]
    SetUp(String),
    /// The task has dropped the future for which it was grown: see `AsyncManager::set_up`.
    #[error("whoever waited for the connection has given it up")]
    GivenUp,
    /// The calling process is a forked child.
    #[error(transparent)]
    Forked(#[from] Forked),
}

impl GrowError {
    /// From a failed attempt to connect; the other end, on any host, may have refused in its own
    /// words.
    pub(crate) fn of(error: ConnectError) -> Self {
        let refused = match &error {
            ConnectError::Refused { reason, text } => Some((*reason, text)),
            #[cfg(feature = "tls")]
            ConnectError::Host { error, .. } => match error.telling() {
                HostError::Meeting(MeetingError::Refused(reason, text)) => Some((*reason, text)),
                _ => None,
            },
            _ => None,
        };
        let (reason, text) = match refused {
            Some((reason, text)) if is_its_own(reason, text) => (reason, text.clone()),
            _ => return Self::Connect(error),
        };
        match reason {
            Reason::Places | Reason::Connections | Reason::Bytes | Reason::Links => {
                Self::Full(text)
            }
            _ => Self::Refused(text),
        }
    }
}

/// Whether the receiver itself refused, and not its process because it is ending.
fn is_its_own(reason: Reason, text: &str) -> bool {
    !text.is_empty() && reason != Reason::Ending
}

// Not `#[from]`, which would make it the source, too: its sentence is in this one already.
impl From<ConnectError> for GrowError {
    fn from(error: ConnectError) -> Self {
        Self::Connect(error)
    }
}

/// Likely reasons why no process answers.
pub(super) fn advice(error: &ConnectError) -> &'static str {
    match error {
        ConnectError::TimedOut(_) => {
            "; a progress thread (start_progress) answers without calls of the program"
        }
        _ => "",
    }
}

/// Says that a peer is gone, and that all its messages have been received.
fn gone(reason: &CloseReason) -> String {
    match reason {
        CloseReason::Closed => {
            std::format!(
                "the sender is gone, and everything that it sent has been received: {reason}"
            )
        }
        _ => std::format!("the sender is gone, and what had come has been received: {reason}"),
    }
}

/// Nothing was received from an end point, and nothing was taken. (Of a [`Node`](crate::Node)'s own
/// queue: [`NodeReceiveError`](crate::NodeReceiveError).)
#[derive(Clone, Debug, thiserror::Error)]
#[cfg_attr(not(feature = "unstable-internals"), non_exhaustive)]
pub enum ReceiveError {
    /// The time limit has passed.
    #[error("nothing arrived within the time limit")]
    TimedOut,
    /// The peer is gone, and all its messages have been received.
    #[error("{}", gone(.0))]
    Ended(CloseReason),
    /// The server drains ([`Server::drain`](crate::protocol::Server::drain)), and all requests that
    /// it had taken have been received.
    #[error("the server drains, and everything that it had taken has been received")]
    Draining,
    /// The sender broke the protocol's rules; its link has been closed.
    #[error("the sender broke the rules and was sent away: {0}")]
    Misbehaved(String),
    /// The named object does not exist.
    #[error("{0}")]
    Misuse(String),
    /// The calling process is a forked child.
    #[error(transparent)]
    Forked(#[from] Forked),
    /// Sleeping failed.
    #[error("waiting failed: {0}")]
    Wait(Arc<io::Error>),
}

/// A sender of an end point sent nothing. (A [`Node`](crate::Node)'s own messages:
/// [`NodeSendError`].)
#[derive(Debug, thiserror::Error)]
#[cfg_attr(not(feature = "unstable-internals"), non_exhaustive)]
pub enum SendError {
    /// The time limit has passed: the receiver made no progress.
    #[error(
        "the receiver made no room within the time limit; nothing was sent. It is behind, or its \
         program does not receive: a progress thread (start_progress) empties the link, but room for \
         more, or for a record longer than its buffers, comes when the program receives"
    )]
    TimedOut,
    /// Longer than one message may be.
    #[error("{length} bytes are too long: at most {max} are allowed, {limit}; nothing was sent")]
    TooLong {
        /// Bytes to send.
        length: usize,
        /// Most bytes.
        max: usize,
        /// The setting that limits it, and the side that set it.
        limit: &'static str,
    },
    /// Outside of the memory that the receiver lends.
    #[error("bytes {offset}..{} are not inside the receiver's 0..{size}; nothing was sent", .offset.saturating_add(*.length as u64))]
    Outside {
        /// First byte.
        offset: u64,
        /// Bytes.
        length: usize,
        /// Bytes that may be written.
        size: u64,
    },
    /// The time limit passed when part of the message had left. The rest was copied, and leaves
    /// first in the next call; do not send the message again.
    #[error("the time limit cut the message off; the rest of it leaves in the next call")]
    CutOff,
    /// A reply ticket of another node than the sender's own.
    #[error("a reply ticket must be one of this manager's own; nothing was sent")]
    ForeignTicket,
    /// The datagram came without a ticket for an answer.
    #[error("the datagram came without a ticket for an answer; nothing was sent")]
    NoReplyWanted,
    /// The receiver is gone.
    #[error("the receiver is gone, and nothing more can be sent: {0}")]
    Ended(CloseReason),
    /// The receiver broke the protocol's rules; the link has been closed.
    #[error("the receiver broke the rules and was sent away: {0}")]
    Misbehaved(String),
    /// The node's own error.
    #[error(transparent)]
    Node(#[from] NodeSendError),
    /// The calling process is a forked child.
    #[error(transparent)]
    Forked(#[from] Forked),
    /// Waiting failed.
    #[error("waiting failed: {0}")]
    Wait(Arc<io::Error>),
}

/// An end point's error that says why a wait has ended.
macro_rules! of_wait {
    ($error:ty) => {
        impl $error {
            /// The result of a call that does not wait; `None`: it would have had to.
            pub(crate) fn unless_timed_out<R>(result: Result<R, Self>) -> Result<Option<R>, Self> {
                match result {
                    Ok(result) => Ok(Some(result)),
                    Err(Self::TimedOut) => Ok(None),
                    Err(e) => Err(e),
                }
            }
        }

        impl From<crate::node::WaitError> for $error {
            fn from(waited: crate::node::WaitError) -> Self {
                match waited {
                    crate::node::WaitError::TimedOut => Self::TimedOut,
                    crate::node::WaitError::Forked(e) => Self::Forked(e),
                    crate::node::WaitError::Os(e) => Self::Wait(std::sync::Arc::new(e)),
                }
            }
        }
    };
}

pub(in crate::protocol) use of_wait;

of_wait!(ReceiveError);
of_wait!(SendError);

pub(crate) fn set_up(e: impl ToString) -> GrowError {
    GrowError::SetUp(e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::error::Error;
    use std::string::ToString;

    // A program that prints an error with its sources shows each sentence once.
    #[test]
    fn no_source_repeats_what_its_error_has_said() {
        let system = || std::io::Error::other("the system's word");
        let errors: [&dyn Error; 4] = [
            &GrowError::Connect(ConnectError::TimedOut("connecting")),
            &GrowError::from(SeedError::Length(3)),
            &GrowError::Connect(ConnectError::Os { doing: "connecting", error: system() }),
            &crate::node::BuildError::Os { doing: "making".into(), error: system() },
        ];
        for error in errors {
            let mut source = error.source();
            while let Some(inner) = source {
                assert!(!error.to_string().contains(&inner.to_string()), "{error}");
                source = inner.source();
            }
        }
    }
}
