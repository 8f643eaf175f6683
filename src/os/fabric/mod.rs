//! libfabric, opened at run time: end points that send and receive messages, with a safe interface.
//!
//! ```text
//!   Library::open --choose--> Choice --FabricEndPoint::open--> grow, insert, send, poll
//! ```
//! - `sys`: bindings, made from libfabric's headers; the library is not linked.
//! - `object`: the library's objects, and closing them.
//! - [`library`]: the file, and the choice of a provider.
//! - `exit`: keeps threads out of the library when the process ends.
//! - `chunk`: memory of buffers, and messages in it.
//! - [`endpoint`]: one reliable datagram (RDM) end point with its completion queue and its buffers.
//! - [`memory`]: memory that is open to one end point of another host, and the other end's.
//!
//! Of libfabric this uses messages, and writes and reads (RMA) of memory that has an end point and
//! a domain of its own; no atomics. The buffer of an incoming message belongs to this process again
//! once its completion was read; open memory belongs to it again once its end point has been
//! closed.

mod chunk;
pub mod endpoint;
mod exit;
pub mod library;
pub mod memory;
mod object;
#[allow(missing_docs, non_camel_case_types, non_upper_case_globals, dead_code)]
mod sys;

// Where `sys` was made, a word has 64 bits, too.
const _: () = assert!(usize::BITS == 64);

pub use chunk::ReceivedChunk;
pub use endpoint::{FabricEndPoint, FabricEvent, FabricPeer, FarMemory, SendOutcome};
pub use exit::OpenedExit;
pub use library::{Choice, Library};
pub use memory::{LentPages, ReachedMemory};

use std::string::String;

/// An error of libfabric. The operation has been undone.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FabricError {
    /// The library cannot be opened, or is not libfabric.
    #[error("{name}: {why}")]
    NoLibrary {
        /// The file.
        name: String,
        /// The system's error.
        why: String,
    },
    /// The library is too old.
    #[error("{name} is libfabric {}.{}, and 1.17 or a newer one is needed", .version.0, .version.1)]
    TooOld {
        /// The file.
        name: String,
        /// Its version.
        version: (u32, u32),
    },
    /// It has no suitable provider.
    #[error("libfabric {}.{} has no provider {wanted}: {why}", .version.0, .version.1)]
    NoProvider {
        /// Its version.
        version: (u32, u32),
        /// The wanted provider.
        wanted: String,
        /// Its error, or the reasons against the providers that it has.
        why: String,
    },
    /// The process is ending; the call was not made.
    #[error("the process ends, and libfabric with it")]
    Ends,
    /// A call failed.
    #[error("{doing}: {why} ({code})")]
    Refused {
        /// The action that failed.
        doing: &'static str,
        /// libfabric's number of the error.
        code: i32,
        /// The error in words.
        why: String,
    },
}
