//! The engine: what a node decides, with no I/O, no threads and no clock of its own.
//!
//! - [`turns`]: which links are looked at, and when.
//! - [`routes`]: which link leads to a node.
//! - [`wait`]: whether whoever waits looks again, lets others run, or sleeps.
//! - [`sleep`]: how a node falls asleep over its links: what it sleeps on, whom it tells, what is looked
//!   at once more; and when a sender wakes it.
//!
//! What performs it, with the system's calls, is in `node`.

pub(crate) mod routes;
pub(crate) mod sleep;
pub(crate) mod turns;
pub(crate) mod wait;
