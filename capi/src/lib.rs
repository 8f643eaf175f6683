//! **libhamlyn**: Hamlyn for C and C++. `include/hamlyn.h` is made from this package by cbindgen
//! (`tests/header`), and installed with the libraries by `make install`.
//!
//! - `boundary`: statuses, messages, checks of arguments, panics caught.
//! - `errors`: which status each error of the library becomes.
//! - `node`, `memory`, `tickets`, `links`, `messages`: the paper's calls.
//! - `job`: the ranks of a parallel program.
//! - `directory`: a program's own directory of services of other hosts.
//! - `log`: what happens to links, with the reasons.
//! - `endpoint`: end points for any number of threads; `common`: the functions that repeat for each
//!   protocol; `seeds`, `tagged` and so on: the functions of one protocol.
//!
//! The contract of every exported function is at the head of `hamlyn.h`; the C program has to keep
//! it. A pointer is null or points to memory as its declaration says; handles to nodes and end
//! points come from this library and have not been freed. Every possible check of an argument comes
//! before the first access through it.

#![allow(non_camel_case_types)]
// Each exported function is unsafe to call for the same reason, the contract above, and its body
// relies on nothing else: it passes its arguments to the checks of `boundary` at once. A note in
// each would hide the important ones.
#![allow(unsafe_op_in_unsafe_fn)]

mod any;
mod aperture;
mod boundary;
mod byte_stream;
mod call;
mod common;
mod datagram;
mod directory;
mod endpoint;
mod errors;
mod group;
mod job;
mod links;
mod log;
mod memory;
mod messages;
mod node;
mod publish;
mod reconnect;
mod seeds;
mod stream;
mod tagged;
mod tickets;
mod waiting;
mod watch;

pub use any::*;
pub use aperture::*;
pub use boundary::{H_FOREVER, h_error_message, h_status, h_status_name};
pub use byte_stream::*;
pub use call::*;
pub use datagram::*;
pub use directory::*;
pub use group::*;
pub use job::*;
pub use links::*;
pub use log::*;
pub use memory::*;
pub use messages::*;
pub use node::*;
pub use publish::*;
pub use reconnect::*;
pub use seeds::*;
pub use stream::*;
pub use tagged::*;
pub use tickets::*;
