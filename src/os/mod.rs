//! The operating system: with [`crate::link::cells`], the only place that needs `unsafe`.
//!
//! - [`aperture`]: memory that two processes map, and how its owner takes it back.
//! - `lock`: a lock that costs its only user next to nothing.
//! - [`memory`]: memory files, their seals, their mappings, and what is checked before a received
//!   descriptor is mapped.
//! - [`socket`]: Unix sockets that keep frames apart and carry descriptors, and who is at the
//!   other end of one.
//! - [`sys`]: barriers, pinning, limits, clocks, event descriptors, and what the kernel offers.

#![allow(unsafe_code)]

pub mod aperture;
pub(crate) mod lock;
pub mod memory;
pub mod socket;
pub mod sys;
