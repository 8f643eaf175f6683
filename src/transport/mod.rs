//! The data path to other hosts, for links that the control plane has made.
//!
//! ```text
//!   node --Transport--> Carrier --frames--> Path --> network
//!     ^                    |                  TLS over TCP (channel), several of them (rails),
//!     +----- Owner <-------+                  or libfabric (fabric)
//! ```
//! - `carrier`: moves packets between a link's rings and a path, in `frames`
//! - `path`: the interface of a connection; `channel`: TLS over TCP; `rails`: several connections;
//!   `fabric`: libfabric beside a connection, and `offer`: what hosts say of it when they meet
//! - `late`: links whose packets the thread of other hosts sends later
//!
//! A node knows a [`Transport`], and the control plane is its [`Owner`]. Without the feature `tls`
//! there is none.

#[cfg(feature = "tls")]
pub mod carrier;
#[cfg(feature = "tls")]
pub mod channel;
#[cfg(feature = "tls")]
#[cfg_attr(not(feature = "libfabric"), path = "no_fabric.rs")]
pub mod fabric;
#[cfg(feature = "tls")]
pub mod frames;
#[cfg(feature = "tls")]
pub mod late;
#[cfg(feature = "tls")]
pub mod offer;
#[cfg(feature = "tls")]
pub mod path;
#[cfg(feature = "tls")]
pub mod rails;

use crate::link::LinkEnd;
use crate::os::aperture::Pages;
use crate::os::thread;
use crate::wire::{ApertureAccess, Reason};
use core::fmt::Debug;
use std::os::fd::{AsFd, OwnedFd};
use std::string::String;
use std::sync::{Arc, Mutex, MutexGuard};

/// The result of a turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// A packet came, or left.
    pub any: bool,
    /// Bytes to send wait until the network takes more.
    pub waits: bool,
    /// Nothing comes or leaves any more.
    pub has_ended: bool,
}

/// The way of a link's packets to another host and back, for the node that has the link. Its
/// descriptor is readable when something may have come.
pub trait Transport: AsFd + Debug + Send {
    /// Moves as many packets as possible, both ways: the node's turn.
    fn turn(&mut self) -> Moved;

    /// The node has written packets into its ring: now, or soon, they leave. `much`: enough for a
    /// system call of their own.
    fn flush(&mut self, much: bool);

    /// Sends as much as the network takes, at once: the ring is full.
    fn flush_now(&mut self);

    /// Whether its descriptor signals everything that comes from now on.
    fn may_sleep(&mut self) -> bool;

    /// The other end's violation of the rules, if it is known.
    fn violation(&self) -> Option<String>;

    /// Describes the transport in words.
    fn explain(&self) -> String;

    /// Whether memory of this process can be opened to the other end; else the reason.
    fn can_lend(&mut self) -> Result<(), String>;

    /// Opens memory to the other end through this descriptor; returns the number of the opening, or
    /// the reason why it cannot.
    fn lend(&mut self, file: OwnedFd, bytes: u64, access: ApertureAccess) -> Result<u32, String>;

    /// Revokes memory that this end opened: the other end no longer accesses it.
    fn revoke(&mut self, number: u32);

    /// Releases memory of the other end's.
    fn release(&mut self, number: u32);
}

/// A link's transport. The node that has the link moves its packets.
pub type HostLink = Arc<Mutex<dyn Transport>>;

/// Locks a link; a panic with the lock held leaves the link as it was.
pub fn lock<T: ?Sized>(link: &Mutex<T>) -> MutexGuard<'_, T> {
    thread::lock(link)
}

/// News of a link, for its node.
#[derive(Debug)]
pub enum News {
    /// Owner of memory: the holder has it.
    Ready(u32),
    /// Owner: the holder refused it.
    Refused(u32, Reason),
    /// Owner: the holder has released it.
    Released(u32),
    /// Holder: it has the memory.
    Held(u32, Pages),
    /// Holder: the owner revoked it.
    Revoked(u32),
    /// The other end has revoked a ticket: this slot and entry refuse its packets.
    Stale {
        /// The slot.
        slot: u32,
        /// The metadata entry.
        index: u32,
    },
}

/// The control plane, as a transport sees it. No call waits.
pub trait Owner: Debug + Send {
    /// Whether it takes news: an application that takes no events is not made to keep them.
    fn takes_news(&self) -> bool;

    /// Takes news.
    fn tell(&self, news: News);

    /// The link has ended, and `more` is known about it. Called once.
    fn has_ended(&self, end: LinkEnd, more: Option<String>);

    /// Hands the link to the thread of other hosts, which sends what waits.
    fn hand_over(&self);
}
