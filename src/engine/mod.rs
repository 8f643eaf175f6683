//! The engine: what a node decides, with no I/O, no threads and no clock of its own.
//!
//! - [`turns`]: which links are looked at, and when.
//! - [`queued`]: which messages that wait leave, and what goes before one that does not.
//! - [`threads`]: which of several threads that wait sleeps for the others, and whom a thread tells.
//! - [`routes`]: which link leads to a node.
//! - [`wait`]: whether whoever waits looks again, lets others run, or sleeps.
//! - [`sleep`]: how a node falls asleep over its links: what it sleeps on, whom it tells, what is looked
//!   at once more; and when a sender wakes it.
//!
//! What performs it, with the system's calls, is in `node`.

pub(crate) mod queued;
pub(crate) mod routes;
pub(crate) mod sleep;
pub(crate) mod threads;
pub(crate) mod turns;
pub(crate) mod wait;
