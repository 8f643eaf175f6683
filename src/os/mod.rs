//! The operating system: with [`crate::link::cells`], the only place that needs `unsafe`.
//!
//! - [`aperture`]: memory that two processes map, and that its owner can take back.
//! - [`call`]: the errors of system calls in words, and the limits behind them.
//! - [`descriptor`]: a descriptor that a forked child does not close.
//! - [`environment`]: the variables from the process that started this one, if they may be trusted.
//! - `fabric`: end points of libfabric, which is opened at run time.
//! - `inherited`: a descriptor that the process which started this one has left to it.
//! - `library`: opens a library at run time.
//! - [`lock`]: a lock that costs its only user next to nothing.
//! - [`poller`]: one descriptor that waits for many.
//! - `pmix`: the library of launchers that speak PMIx, which is opened at run time.
//! - `pool`: an aperture with many holders, who may only read it.
//! - [`memory`]: memory files, their seals, their mappings, and the checks before a received
//!   descriptor is mapped.
//! - [`socket`]: Unix sockets that keep frames apart and carry descriptors, and the identity of the
//!   other end.
//! - `kernel`: the features that the kernel offers.
//! - `strangers`: threads with a table of descriptors of their own, for those that strangers pass.
//! - `tcp` (feature `tls`): TCP, without waiting, and the kernel's knowledge of the other host.
//! - [`sys`]: barriers, pinning, limits, clocks, event descriptors.
//! - `thread`: the library's own threads, and giving way to others.
//! - `sim`, in tests: all threads of several processes as one, in an order that follows from a
//!   seed.

#![allow(unsafe_code)]

pub mod aperture;
pub mod call;
pub mod descriptor;
pub mod environment;
#[cfg(feature = "libfabric")]
pub mod fabric;
pub(crate) mod inherited;
mod kernel;
mod library;
pub mod lock;
pub mod memory;
pub(crate) mod pmix;
pub mod poller;
pub(crate) mod pool;
#[cfg(any(all(test, not(loom), not(miri)), feature = "simulation"))]
#[cfg_attr(not(test), allow(dead_code, reason = "a package uses less than the tests"))]
pub(crate) mod sim;
pub mod socket;
pub(crate) mod strangers;
pub mod sys;
#[cfg(feature = "tls")]
pub(crate) mod tcp;
pub(crate) mod thread;
