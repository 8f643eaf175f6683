//! **Hamlyn**: messages between programs that do not trust one another, at the speed of memory.
//!
//! The sender names the memory that a message lands in, and holds a key for it; the receiver's own
//! library checks every packet and makes every deposit. No system call and no third
//! process stands on the path, and no peer can write a byte that it was not given. The
//! architecture is that of *An implementation of the Hamlyn sender-managed interface architecture*
//! (Buzzard, Jacobson, Mackey, Marovich, Wilkes; OSDI 1996); its words are used here.
//!
//! # A tour, from the bottom up
//!
//! - [`wire`]: what a packet and a ticket hold. Values only.
//! - [`link`]: what carries packets. [`link::ring`] is one direction of shared memory between two
//!   processes that believe nothing they read from each other; [`link::cells`] is that memory;
//!   [`link::sleep`] wakes a receiver that waits, and costs a sender no fence; [`link::bias`] makes
//!   a lock cost its only thread two stores; [`link::sim`] is a fabric that reorders, loses and
//!   corrupts, for tests.
//! - [`interface`]: the network interface card as a state machine: slots, keys, metadata entries,
//!   packet counting, notification queues, send termini; hooks, observers and sinks of the
//!   application's own ([`Receiver`]). It has no I/O, no threads, no clock.
//!
//! - `engine`: what a node decides, as a state machine likewise: which links are looked at, and when.
//!
//! These four, and of [`protocol`] what seeds and records are made of, are the pure part: `no_std`
//! with `alloc`, built without the feature `os`.
//!
//! - [`config`]: every setting, with its variable, default and limits.
//! - [`os`]: the only module, beside `link::cells`, with `unsafe` code: mappings, seals, sockets
//!   that carry descriptors, barriers, the lock of shared nodes.
//! - [`log`]: what an operator is told of links, with the reason: by a function of the program's, or
//!   as events of `tracing`.
//! - [`control`]: names, who may connect, the handshake, death, quotas; one thread, asleep.
//! - [`node`]: [`Node`] ties them together and waits: the lower level, with every mechanism in reach.
//!   [`Aperture`] and [`ApertureView`] are memory that two processes map.
//! - [`protocol`]: end points for any number of threads: datagrams, streams, tagged remote write,
//!   groups, requests and replies, byte streams, grown from seeds or found by name. **Begin here.**
//! - [`typed`]: values in messages, checked before they are used.
//! - `io` (feature `tokio`): byte streams as tokio's `AsyncRead` and `AsyncWrite`, for whatever speaks
//!   over a socket.
//!
//! # A first message
//!
//! ```
//! use hamlyn::{Accept, Access, Node, SlotConfig, Ticket, MetadataIndex};
//! use std::time::Duration;
//! # std::thread::scope(|scope| -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = std::env::temp_dir().join(format!("hamlyn-doc-{}", std::process::id()));
//! # let config = hamlyn::Config::from_env()?.dir(&dir);
//! # let config2 = config.clone();
//! // The receiver makes memory, a slot over it, and a ticket that it gives to whoever connects.
//! let mut receiver = Node::with_config(config)?;
//! let area = receiver.message_area(4096)?;
//! let queue = receiver.notification_queue(16)?;
//! let slot = receiver.slot(SlotConfig::new(area, queue))?;
//! let ticket = receiver.ticket(slot, MetadataIndex(0))?;
//! receiver.serve("greeter", Access::SameUser, Accept::Automatic(ticket.to_bytes().to_vec()))?;
//!
//! // The sender, usually another process, connects and writes with the ticket.
//! # let sender = scope.spawn(move || -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! # let config = config2;
//! let mut sender = Node::with_config(config)?;
//! let link = sender.connect("greeter", b"", Duration::from_secs(5))?;
//! let ticket = Ticket::from_bytes(sender.greeting(link)?)?;
//! sender.send(&ticket, b"hello", b"", None)?;
//! sender.close(None)?;
//! # Ok(()) });
//!
//! let message = receiver.recv(queue, Some(Duration::from_secs(5)))?;
//! assert_eq!(message.slot, slot.index());
//! assert_eq!(&receiver.area(area)?[..5], b"hello");
//! # sender.join().unwrap().unwrap();
//! # std::fs::remove_dir_all(&dir).ok();
//! # Ok(()) }).unwrap();
//! ```
//!
//! # What holds
//!
//! A byte of a receiver's message area changes only through a packet whose key, bounds and mode
//! were checked in the receiver's own process (an aperture is no message area). Hostile bytes become an error value and a counter.
//! Absent failures nothing is lost, and no pattern of sends deadlocks between programs that keep
//! calling, or have a [progress thread](node::SharedNode::start_progress). What is *not* protected
//! stands in `SECURITY.md`.

#![no_std]
#![deny(unsafe_code)]
#![cfg_attr(not(feature = "os"), allow(rustdoc::broken_intra_doc_links))]

extern crate alloc;
#[cfg(feature = "os")]
extern crate std;
// What tests share with programs names the library as those do.
#[cfg(test)]
extern crate self as hamlyn;

#[cfg(feature = "os")]
pub mod config;
pub mod control;
#[cfg_attr(not(feature = "os"), allow(dead_code))]
mod engine;
pub mod interface;
#[cfg(feature = "tokio")]
pub mod io;
pub mod link;
#[cfg(feature = "os")]
pub mod log;
#[cfg(feature = "os")]
pub mod node;
#[cfg(feature = "os")]
pub mod os;
pub mod protocol;
#[cfg(all(test, feature = "os", not(loom), not(miri)))]
mod simulated;
pub mod typed;
pub mod wire;

#[cfg(feature = "os")]
pub use config::Config;
#[cfg(feature = "os")]
pub use control::{Accept, Access, Peer};
pub use interface::terminus::{BufferTag, Piece, SendHandle};
pub use interface::{
    AreaId, Deposit, LinkId, Message, MetadataEntry, Mode, Notification, QueueId, Receiver,
    SlotConfig, SlotId, Then,
};
#[cfg(feature = "os")]
pub use node::{
    Aperture, ApertureEvent, ApertureId, ApertureView, Event, Node, NodeReceiveError,
    NodeSendError, PreparedTicket, SharedNode, TerminusId,
};
#[cfg(feature = "os")]
pub use os::aperture::{AccessError, ApertureAccess};
pub use wire::{Flags, Key, MetadataIndex, NodeId, Share, SlotIndex, Ticket};

// The README's examples compile; some need the feature.
#[cfg(all(doctest, feature = "tokio"))]
#[doc = include_str!("../README.md")]
struct Readme;
