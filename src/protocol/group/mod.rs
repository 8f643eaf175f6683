//! Groups (Hamlyn 2.5, 3.3): many processes send a part each to one, the *root*, which is notified
//! once when all parts are there; and the root sends to all. Gather, scatter, reduce, barrier.
//!
//! ```text
//!   member 0 .. n-1                                   root
//!   send(part)        ---- entry of the member ---->  gather: all, or k of n, or names the missing
//!   (its next ticket) <--- ticket cell, silent -----  next_round
//!   receive           <--- one message, counted ----  scatter, broadcast; barrier
//!   (how many)        ---- word, silent ----------->
//! ```
//! # An entry for each member
//!
//! One entry would do to count "all packets of all members" (Hamlyn 2.5), and one notification
//! would come out. But it could not tell which members are missing, and members that do not trust
//! one another would share a counter and a key. So each member has an entry of its own in one
//! paranoid one-shot slot: its own key, limits and count. So no member can spoil another's part, a
//! part that has arrived is stable, and the error for a member that dies names it. The user still
//! waits once, for all of them. *Within* a member's part the paper's mechanism is at work:
//! [`GroupMember::delegate`](crate::protocol::GroupMember::delegate) divides it among helpers,
//! space and count alike, and the root need not know. The helpers of one part trust one another.
//!
//! # Rounds
//!
//! A ticket is for one part of one round. When a round is over, the members whose part has arrived
//! get a new key, and its ticket lands silently in their memory; a member that sends before its
//! ticket has come waits. At most one ticket of a member is out at a time, so links may reorder. If
//! a threshold was met without a member, that member still holds the ticket of its round: when its
//! part comes it is dropped as late, never counted to another round, and the member gets a ticket
//! of the current round.
//!
//! # Lost members
//!
//! A member that ends before its part has arrived ends the root's wait with
//! [`GroupError::MemberLost`], unless the other members suffice for the wait. Its earlier messages
//! count. Another may take its place. A member that sends nonsense is disconnected, with the same
//! effect at the root. Members hear of the root's end at once: [`GroupError::RootLost`].

mod end;
mod root;

pub use end::{Group, Parts};

use super::SendError;
use crate::control::Peer;
use crate::node::{CloseReason, Forked, WaitError};
use crate::wire::TICKET_BYTES;
use std::boxed::Box;
use std::io;
use std::string::{String, ToString};
use std::sync::Arc;
use std::vec::Vec;

/// Role, ticket of the ticket cell, ticket for the root's messages.
pub(super) const MEMBER_BODY: usize = 1 + 2 * TICKET_BYTES;

pub(super) const MEMBER: u8 = 0;

pub(super) const HELPER: u8 = 1;

/// Number, members, bytes of a part, round, ticket for the first part, ticket of the word.
pub(super) const ANSWER_BYTES: usize = 4 + 4 + 8 + 8 + 2 * TICKET_BYTES;

/// Round and ticket.
pub(super) const CELL_BYTES: usize = 8 + TICKET_BYTES;

/// A message of the root: kind and length.
const DOWN_BYTES: usize = 16;

pub(super) const DATA: u64 = 1;

pub(super) const RELEASE: u64 = 2;

/// Parts begin at multiples of this, so that they can be read as numbers of any kind.
const PART_ALIGN: usize = 64;

/// A place with no ticket out yet.
pub(super) const NO_ROUND: u64 = 0;

/// Configuration of a [`Group`].
#[derive(Clone, Debug)]
pub struct GroupConfig {
    /// Number of members.
    pub members: u32,
    /// Most bytes of a member's part.
    pub part_bytes: usize,
    /// Most bytes that a scatter or broadcast sends to a member. As many as `part_bytes` unless
    /// set.
    pub scatter_bytes: usize,
}

impl GroupConfig {
    /// `members` members, parts of up to `part_bytes` bytes in both directions.
    pub fn new(members: u32, part_bytes: usize) -> Self {
        Self { members, part_bytes, scatter_bytes: part_bytes }
    }
}

fn numbers(numbers: &[u32]) -> String {
    let numbers: Vec<String> = numbers.iter().map(u32::to_string).collect();
    numbers.join(", ")
}

/// A wait of a group failed. Parts that have arrived stay, and you may repeat the call.
#[derive(Clone, Debug, thiserror::Error)]
#[cfg_attr(not(feature = "unstable-internals"), non_exhaustive)]
pub enum GroupError {
    /// The time limit has passed.
    #[error(
        "{done} of {wanted} members were done within the time limit; missing: {}",
        numbers(missing)
    )]
    TimedOut {
        /// Members that were served.
        done: u32,
        /// Members that were wanted.
        wanted: u32,
        /// Members that were not served, including those that have yet to join.
        missing: Vec<u32>,
    },
    /// The time limit of a member's or helper's call has passed; nothing was sent or received.
    #[error(
        "the root did not get to it within the time limit; nothing was sent or received. Its program is behind, or makes no calls and has no progress thread (start_progress)"
    )]
    NotInTime,
    /// A member ended before its part had arrived, or before a message to it had left.
    #[error("member {member} ({peer}) is lost, and {arrived} parts have arrived: {reason}")]
    MemberLost {
        /// Its number.
        member: u32,
        /// Its identity, from the kernel.
        peer: Box<Peer>,
        /// The reason for the end of its connection.
        reason: CloseReason,
        /// Parts that have arrived in this round.
        arrived: u32,
    },
    /// The root is gone, and all its messages have been received.
    #[error("the root of the group is gone: {0}")]
    RootLost(CloseReason),
    /// The other side makes another call: a barrier here, a scatter there, or the like.
    #[error("out of step: {0}")]
    OutOfStep(&'static str),
    /// Within the time limit only part of a message left. The rest was copied, and leaves first in
    /// the next call; do not send the part again.
    #[error("the time limit cut the message off; the rest of it leaves in the next call")]
    CutOff,
    /// A part whose length is not allowed.
    #[error("{length} bytes where {allowed} are allowed; nothing was sent")]
    Length {
        /// Bytes to send.
        length: usize,
        /// Bytes allowed.
        allowed: usize,
    },
    /// The request is not possible.
    #[error("{0}")]
    Misuse(String),
    /// The calling process is a forked child.
    #[error(transparent)]
    Forked(#[from] Forked),
    /// Waiting failed.
    #[error("waiting failed: {0}")]
    Wait(Arc<io::Error>),
}

pub(super) fn misuse(e: impl ToString) -> GroupError {
    GroupError::Misuse(e.to_string())
}

impl From<WaitError> for GroupError {
    fn from(waited: WaitError) -> Self {
        match waited {
            WaitError::TimedOut => Self::NotInTime,
            WaitError::Forked(e) => Self::Forked(e),
            WaitError::Os(e) => Self::Wait(Arc::new(e)),
        }
    }
}

impl GroupError {
    pub(super) fn from_send(e: SendError) -> Self {
        match e {
            SendError::Ended(reason) => Self::RootLost(reason),
            SendError::CutOff => Self::CutOff,
            SendError::TimedOut => Self::NotInTime,
            e => misuse(e),
        }
    }
}
