//! The engine: what a node decides, with no I/O, no threads and no clock of its own.
//!
//! - [`turns`]: which links are looked at, and when.

pub(crate) mod turns;
