//! CLAN's interface between programs and their network interface, by the public interface of Hamlyn alone.
#![doc = include_str!("../README.md")]
//!
//! # The parts
//!
//! ```text
//! events    the event queue
//! trips     tripwires
//! wire      control messages and handles, as bytes
//! ends      shared by hooks and the user's threads without the node's lock
//! board     end points and what peers say, at the node: under its lock, after each turn
//!           board/exports: regions given, taken back, and signals
//! clan      the calls of a program and its end points
//! memory    regions and apertures
//! requests  request queues, and the engine that serves them
//! c         the same for C: include/clan.h; face: for it, and for the layers over this one
//! ```
#![warn(missing_docs)]

mod board;
mod c;
mod clan;
mod ends;
mod events;
#[doc(hidden)]
pub mod face;
mod memory;
mod requests;
mod trips;
mod wire;

pub use board::Figures;
pub use clan::{Clan, Endpoint};
pub use events::{EVENTS_MAX, Event, EventId, EventQueue, Sleeping, Target};
pub use memory::{Aperture, Export, Region, Signal};
pub use requests::{Completion, Done, Request, RequestQueue};
pub use trips::{Trip, Wire};
pub use wire::{HANDLE_BYTES, OOB_BYTES, Rights};

/// A call failed, and changed nothing unless it says so.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No room within the time limit, or now.
    #[error("{0}")]
    Full(String),
    /// The region was taken back by its owner.
    #[error("the exported memory was taken back by its owner")]
    Revoked,
    /// The other end point was closed, or its program has ended. Its earlier messages are here.
    #[error("the other end is closed: {0}")]
    Closed(String),
    /// Arguments out of range, or a call that is not allowed here.
    #[error("{0}")]
    Misuse(String),
    /// The system or the peer refused something.
    #[error("{0}")]
    Refused(String),
    /// Nothing happened within the time limit. Of a put of several packets, a part may have arrived.
    #[error("the time limit passed")]
    TimedOut,
}

/// The settings of a [`Clan`].
#[derive(Clone, Debug)]
pub struct Config {
    /// Those of the node: sleeping and spinning, directories, limits.
    pub node: hamlyn::Config,
    /// End points that wait to be accepted, at most; more are refused. 1 to 65,536; 128.
    pub backlog: u32,
    /// End points of one peer at most. 1 to 1,048,576; 65,536.
    pub endpoints_of_peer_max: u32,
    /// Peers at most. 1,024.
    pub peers_max: u32,
    /// Out-of-band messages that wait at one end point, at most; more are thrown away. 1 to 1,024; 16.
    pub oob_max: u32,
}

impl Config {
    /// The defaults, with the node's settings from the environment.
    pub fn from_env() -> Result<Self, Error> {
        let node = hamlyn::Config::from_env().map_err(|e| Error::Misuse(e.to_string()))?;
        Ok(Self { node, backlog: 128, endpoints_of_peer_max: 65_536, peers_max: 1024, oob_max: 16 })
    }

    fn check(&self) -> Result<(), Error> {
        for (name, value, max) in [
            ("backlog", self.backlog, 65_536),
            ("endpoints_of_peer_max", self.endpoints_of_peer_max, 1 << 20),
            ("peers_max", self.peers_max, 65_536),
            ("oob_max", self.oob_max, 1024),
        ] {
            if !(1..=max).contains(&value) {
                return Err(Error::Misuse(format!("{name} = {value}: 1 to {max} are allowed")));
            }
        }
        Ok(())
    }
}
