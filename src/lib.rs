//! **Hamlyn**: messages between programs that do not trust one another, at the speed of memory.
//!
//! The sender names the memory that a message lands in, and holds a key for it; the receiver's own
//! library checks every packet and makes every deposit. No system call and no third process stands
//! on the path, and no peer can write a byte outside the memory granted to it. The architecture and
//! its vocabulary come from *An implementation of the Hamlyn sender-managed interface architecture*
//! (Buzzard, Jacobson, Mackey, Marovich, Wilkes; OSDI 1996).
//!
//! # A server and its client
//!
//! ```
//! # let dir = std::env::temp_dir().join(format!("hamlyn-doc-{}", std::process::id()));
//! use hamlyn::protocol::{Client, Manager, Server, ServerConfig};
//! use hamlyn::{Access, Config};
//! use std::time::Duration;
//!
//! let limit = Some(Duration::from_secs(10));
//! let config = Config::from_env()?; // The configuration of `Manager::new()`.
//! # let config = config.dir(&dir);
//!
//! // The server. The kernel identifies the caller; `Access` decides whether it may connect.
//! let server = Server::new(&Manager::with_config(config.clone())?, ServerConfig::default())?;
//! server.serve("shout", Access::SameUser)?;
//! std::thread::spawn(move || {
//!     while let Ok(request) = server.receive(None) {
//!         let reply = request.to_ascii_uppercase();
//!         let _ = request.reply(&reply, limit); // An error: the client is gone.
//!     }
//! });
//!
//! // The client, usually in another process. It waits until the name is served.
//! let client = Client::connect(&Manager::with_config(config)?, "shout", limit)?;
//! assert_eq!(&*client.call(b"hello", limit)?, b"HELLO");
//! # std::fs::remove_dir_all(&dir).ok();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Contents
//!
//! [`protocol`] has end points for any number of threads, found by a name or grown from a
//! [seed](protocol::Seed). **Begin there.**
//!
//! | for | receives | sends |
//! | --- | --- | --- |
//! | calls | [`Server`](protocol::Server) | [`Client`](protocol::Client) |
//! | records in order | [`StreamReceiver`](protocol::StreamReceiver) | [`StreamSender`](protocol::StreamSender) |
//! | the same through shared pages | [`ApertureStreamReceiver`](protocol::ApertureStreamReceiver) | [`ApertureStreamSender`](protocol::ApertureStreamSender) |
//! | one publisher, many subscribers | [`Subscriber`](protocol::Subscriber) | [`Publisher`](protocol::Publisher), on other hosts [`Relay`](protocol::Relay) |
//! | bytes, as over a socket | [`ByteListener`](protocol::ByteListener) | [`ByteStream`](protocol::ByteStream) |
//! | single messages | [`DatagramReceiver`](protocol::DatagramReceiver) | [`DatagramSender`](protocol::DatagramSender) |
//! | writes to an offset, with a tag | [`TaggedReceiver`](protocol::TaggedReceiver) | [`TaggedSender`](protocol::TaggedSender) |
//! | gather, scatter, reduce, barrier | [`Group`](protocol::Group) | [`GroupMember`](protocol::GroupMember), [`GroupHelper`](protocol::GroupHelper) |
//!
//! - [`typed`]: values in messages, checked before they are used.
//! - `io` (feature `tokio`): byte streams as tokio's `AsyncRead` and `AsyncWrite`, for code written
//!   for sockets. `protocol::AsyncServer` and `protocol::AsyncClient` are calls in tasks.
//! - [`job`]: the processes of a parallel program, started together (`hamlyn run`, MPICH's
//!   `mpiexec`), find one another without configuration.
//! - [`Config`]: every setting, with its variable, default and limits.
//! - [`services`]: lists the services of this host, their statistics, and the directories of names.
//! - [`log`]: reports links to an operator, with the reason: through a function of the program's,
//!   or as events of `tracing`.
//! - [`node`]: the lower level, with every mechanism in reach. A [`Node`] has message areas, slots,
//!   tickets and notification queues, and the application's own hooks, observers and sinks on
//!   arriving messages ([`Receiver`]); a [`Manager`](protocol::Manager) of it is for several threads; [`Aperture`] and
//!   [`ApertureView`] are memory that two processes map.
//!
//! # Features
//!
//! | feature | adds |
//! | --- | --- |
//! | `os` (default) | everything outside the pure part: links, names, waiting, end points. Without it the crate is `no_std` with `alloc` |
//! | `tokio` | end points in tokio's tasks, `io` |
//! | `tls` | services on other hosts, over TCP and TLS 1.3 |
//! | `dns` | services on other hosts found in the DNS |
//! | `libfabric` | packets to other hosts over libfabric if both ends ask for it; the library is opened at run time |
//! | `serde` | values that implement serde's traits, as messages |
//! | `tracing` | the entries of [`log`] as events of `tracing` |
//! | `unstable-internals` | the modules below, without any promise of stability: for this project's own tests, command and bindings. With it errors and events can be matched without a wildcard arm, so that a new variant does not compile in the bindings until they handle it |
//!
//! # Inside, from the bottom up
//!
//! - `wire`: the formats of packets and tickets. Values only.
//! - `link`: the transport of packets: one direction of shared memory between two processes that
//!   trust nothing they read from each other; the wake-up of a waiting receiver without a fence at
//!   the sender; a fabric that reorders, loses and corrupts, for tests.
//! - `interface`: the network interface card as a state machine: slots, keys, metadata entries, packet
//!   counting, notification queues, send termini. It has no I/O, no threads, no clock.
//! - `engine`: the decisions of a node, likewise a state machine: the links to poll, and when; the
//!   link that leads to a node; when a waiting thread sleeps, on which object, and its wake-up.
//! - `os`: the only module, beside the copies in `link`, with `unsafe` code: mappings, seals, sockets
//!   that carry descriptors, barriers, the lock of shared nodes.
//! - `control`: names, access, the handshake, death, quotas; one thread, asleep.
//!
//! The first four, and the formats of seeds and records in [`protocol`], are the pure part, built
//! without the feature `os`.
//!
//! # Guarantees
//!
//! A byte of a receiver's message area changes only through a packet whose key, bounds and mode
//! were checked in the receiver's own process (an aperture is no message area). Hostile bytes
//! become an error value and a counter. Without failures no message is lost, and no pattern of
//! sends deadlocks between programs that keep calling, or have a [progress
//! thread](protocol::Manager::start_progress). `SECURITY.md` lists the limits of protection.

#![no_std]
#![deny(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(not(feature = "os"), allow(rustdoc::broken_intra_doc_links))]

// Offsets are 64-bit, and positions of a ring are one atomic word of 64 bits.
#[cfg(not(target_pointer_width = "64"))]
compile_error!("Hamlyn needs a 64-bit target, such as x86_64 or aarch64");

extern crate alloc;
#[cfg(feature = "os")]
extern crate std;
// Code that tests share with programs uses the library's external name.
#[cfg(test)]
extern crate self as hamlyn;

#[cfg(feature = "os")]
pub mod config;
#[cfg_attr(not(feature = "os"), allow(dead_code))]
mod engine;
#[cfg(feature = "tokio")]
pub mod io;
#[cfg(feature = "os")]
pub mod job;
#[cfg(feature = "os")]
pub mod log;
#[cfg(feature = "os")]
pub mod node;
pub mod protocol;
#[cfg(all(test, feature = "os", not(loom), not(miri)))]
mod simulated;
/// Whole simulated nodes, for the tests of this workspace's packages, without any promise:
/// processes that meet, send, sleep, stop and die, in an order and at times that follow from a seed.
/// `tests/simulation.rs` shows their use. A library with this feature is slower, so name it among
/// the `dev-dependencies`.
#[cfg(feature = "simulation")]
#[doc(hidden)]
pub mod simulation {
    pub use crate::link::sim::Rng;
    pub use crate::os::sim::{Ran, Stuck, kill, run, stop};

    /// Waits for so long by the simulated clock.
    pub fn sleep(time: core::time::Duration) {
        crate::os::thread::sleep(time);
    }

    /// Gives other threads a turn.
    pub fn yield_now() {
        crate::os::thread::yield_now();
    }

    /// The simulated clock, in nanoseconds; the system's, outside of a run.
    pub fn now_ns() -> u64 {
        crate::os::sys::monotonic_ns()
    }
}
pub mod typed;

// Internal modules. The public items below re-export the parts that users need; tests use more.
#[cfg(not(feature = "unstable-internals"))]
#[allow(dead_code, unused_imports)]
mod control;
#[cfg(feature = "unstable-internals")]
pub mod control;
#[cfg(not(feature = "unstable-internals"))]
#[allow(dead_code, unused_imports)]
mod interface;
#[cfg(feature = "unstable-internals")]
pub mod interface;
#[cfg(not(feature = "unstable-internals"))]
#[allow(dead_code, unused_imports)]
mod link;
#[cfg(feature = "unstable-internals")]
pub mod link;
#[cfg(all(feature = "os", not(feature = "unstable-internals")))]
#[allow(dead_code, unused_imports)]
mod os;
#[cfg(all(feature = "os", feature = "unstable-internals"))]
pub mod os;
#[cfg(all(feature = "os", not(feature = "unstable-internals")))]
#[allow(dead_code, unused_imports)]
mod transport;
#[cfg(all(feature = "os", feature = "unstable-internals"))]
pub mod transport;
#[cfg(not(feature = "unstable-internals"))]
#[allow(dead_code, unused_imports)]
mod wire;
#[cfg(feature = "unstable-internals")]
pub mod wire;

#[cfg(feature = "os")]
pub use config::Config;
#[cfg(feature = "os")]
pub use control::{Accept, Access};
pub use control::{GREETING_BYTES_MAX, HostPeer, LinkFeatures, Peer, Reason, RequestId};
pub use interface::notification::Consumer;
pub use interface::terminus::{BufferTag, PIECES_MAX, Piece, SendHandle};
pub use interface::{
    AreaId, Deposit, EntryState, Filter, LinkId, Message, MetadataEntry, Mode, Notification,
    QueueId, Receiver, SlotConfig, SlotId, Then,
};
#[cfg(feature = "os")]
pub use node::{
    Aperture, ApertureEvent, ApertureId, ApertureView, Envelope, Event, Node, NodeReceiveError,
    NodeSendError, PreparedTicket, ReceivedLine, TerminusId,
};
#[cfg(feature = "os")]
pub use os::aperture::{AccessError, ApertureAccess, AreaView, Stores};
#[cfg(feature = "os")]
pub use os::memory::{AperturePages, AreaPages, AreaReport, Grant, PagesError};
#[cfg(feature = "os")]
pub use os::sys::{KernelFeature, KernelFeatures, register_barrier};
pub use wire::{
    Destination, Flags, Key, METADATA_MAX, MetadataIndex, NodeId, Share, ShareError, SlotIndex,
    TICKET_BYTES, Ticket, TicketError,
};

/// Services, for tools: lists them, asks for their statistics, and finds the directories of their
/// names.
///
/// ```
/// # let dir = std::env::temp_dir().join(format!("hamlyn-doc-services-{}", std::process::id()));
/// # let config = hamlyn::Config::from_env()?.dir(&dir);
/// use hamlyn::services::{list_services, stat_of};
/// use hamlyn::{Accept, Access, Node};
/// use std::time::Duration;
///
/// let mut node = Node::with_config(config.clone())?;
/// node.serve("greeter", Access::SameUser, Accept::Automatic(Vec::new()))?;
///
/// // Usually another process, of the same user or root.
/// assert!(list_services(&config).entries.iter().any(|service| service.name == "greeter"));
/// let told = stat_of(&config, &"greeter".parse()?, Some(Duration::from_secs(5)))?;
/// assert!(told.contains("links_opened 0"));
/// # std::fs::remove_dir_all(&dir).ok();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[cfg(feature = "os")]
pub mod services {
    pub use crate::control::{
        Looked, ServiceEntry, ServiceName, Services, Statistics, list_services, printable,
        printable_bytes, private_dir, remove_stale, setup_shared_dir, setup_user_dir, stat_of,
        statistics_of, uid_of,
    };
}

// The README's examples compile; some need these features.
#[cfg(all(doctest, feature = "serde", feature = "tokio"))]
#[doc = include_str!("../README.md")]
#[doc = include_str!("../docs/guide.md")]
#[doc = include_str!("../docs/own-protocol.md")]
struct Readme;
