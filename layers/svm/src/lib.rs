//! Shared virtual memory by home-based lazy release consistency: HLRC, HLRC-AU and AURC.
#![doc = include_str!("../README.md")]
//!
//! # The parts
//!
//! ```text
//! svm       joining, and a program's calls
//! space     the path of a fault, of a release and of an acquire
//! blocks    memory that programs ask for
//! c         the same for C: include/svm.h
//! machine   the protocol: messages in, messages out; no system call, no clock, no page
//! memory    the shared space: one memory file, seen twice; twins, frames
//! fault     the handler of a signal
//! node      the client node, and joining
//! serving   the server node, and its thread
//! inbox     messages of several packets
//! ```
#![warn(missing_docs)]

mod blocks;
mod c;
mod fault;
mod inbox;
#[doc(hidden)]
pub mod machine;
mod memory;
mod node;
mod serving;
mod space;
mod svm;

pub use hamlyn_vmmc::Combining;
pub use space::{Figures, Protocol};
pub use svm::{Homes, OBJECTS, Options, Svm};

/// A call failed. The shared space stays as it is, but for calls that order memory and fail by a death:
/// what the others wrote since is seen in part.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// That process died, and with it the answer.
    #[error("process {0} has died")]
    Died(usize),
    /// Arguments that are not allowed, or a call that is not allowed now.
    #[error("{0}")]
    Misuse(String),
    /// The system, the launcher or another process refused.
    #[error("{0}")]
    Refused(String),
    /// The shared space has no room for a block.
    #[error("the shared space has no room for {0} bytes")]
    Full(usize),
}

impl From<machine::Error> for Error {
    fn from(error: machine::Error) -> Self {
        match error {
            machine::Error::Died(process) => Self::Died(process),
            machine::Error::Misuse(why) => Self::Misuse(why.into()),
            wrong => Self::Refused(wrong.to_string()),
        }
    }
}
