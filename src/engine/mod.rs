//! The engine: a node's decisions, with no I/O, no threads and no clock of its own.
//!
//! - [`turns`]: the links that are looked at in each turn.
//! - [`queued`]: the queued messages that leave, and those that go before one that does not wait.
//! - [`threads`]: of several waiting threads, the one that sleeps for the others, and those to
//!   notify.
//! - [`routes`]: the link that leads to a node.
//! - [`wait`]: whether a waiting thread looks again, lets others run, or sleeps.
//! - [`sleep`]: how a node falls asleep over its links: on which words or descriptor, whom it
//!   notifies, and its last look; and when a sender wakes it.
//!
//! `node` performs the decisions, with the system's calls.

pub(crate) mod queued;
pub(crate) mod routes;
pub(crate) mod sleep;
pub(crate) mod threads;
pub(crate) mod turns;
pub(crate) mod wait;
