//! libfabric, opened at run time: end points that send and receive messages, with a safe face.
//!
//! ```text
//!   Library::open --choose--> Choice --EndPoint::open--> EndPoint: grow, insert, send, poll
//! ```
//! - `sys`: bindings, made from libfabric's headers; nothing is linked.
//! - `object`: what the library makes, and closing it.
//! - [`library`]: the file, and which provider it offers.
//! - `exit`: nobody is in a call when the process ends.
//! - `chunk`: memory of buffers, and messages in it.
//! - [`endpoint`]: one reliable datagram (RDM) end point with its completion queue and its buffers.
//! - [`memory`]: memory that is open to one end point of another host, and the other end's.
//!
//! Used of libfabric: messages, and writes and reads (RMA) of memory that has an end point and a domain
//! of its own; no atomics. A message that comes is in a buffer that belongs to this process again once its
//! completion was read; memory that is open belongs to it again once its end point has been closed.

mod chunk;
pub mod endpoint;
mod exit;
pub mod library;
pub mod memory;
mod object;
#[allow(missing_docs, non_camel_case_types, non_upper_case_globals, dead_code)]
#[rustfmt::skip]
mod sys;

pub use chunk::Received;
pub use endpoint::{EndPoint, Event, FarMemory, Peer, Sent};
pub use exit::Opened;
pub use library::{Choice, Library};
pub use memory::{Lent, Reached};

use std::string::String;

/// What libfabric refused. What was begun has been undone.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FabricError {
    /// There is no such library, or it is none.
    #[error("{name}: {why}")]
    NoLibrary {
        /// The file.
        name: String,
        /// What the system said.
        why: String,
    },
    /// It is older than what is used of it.
    #[error("{name} is libfabric {}.{}, and 1.17 or a newer one is needed", .version.0, .version.1)]
    TooOld {
        /// The file.
        name: String,
        /// Its version.
        version: (u32, u32),
    },
    /// It has no provider that will do.
    #[error("libfabric {}.{} has no provider {wanted}: {why}", .version.0, .version.1)]
    NoProvider {
        /// Its version.
        version: (u32, u32),
        /// What was asked for.
        wanted: String,
        /// What it said, or what is wrong with those that it has.
        why: String,
    },
    /// Nothing was begun.
    #[error("the process ends, and libfabric with it")]
    Ends,
    /// A call failed.
    #[error("{doing}: {why} ({code})")]
    Refused {
        /// What was being done.
        doing: &'static str,
        /// libfabric's number for it.
        code: i32,
        /// What that means.
        why: String,
    },
}
