//! SHRIMP's virtual memory-mapped communication (VMMC), on Hamlyn by way of CLAN's regions and apertures.
#![doc = include_str!("../README.md")]
//!
//! # The parts
//!
//! ```text
//! vmmc     export, deliberate update, notifications
//! import   questions for buffers, and the link that two programs share
//! sends    deliberate update that goes on by itself
//! bound    automatic update by stores of this library's, combined or not
//! mirror   automatic update by plain stores, which are tracked
//! track    which bytes of plain memory have changed
//! userfault which of its pages, by the kernel
//! c        the same for C: include/vmmc.h
//! ```
#![warn(missing_docs)]

mod bound;
mod c;
mod import;
mod mirror;
mod sends;
mod track;
#[doc(hidden)]
pub mod userfault;
mod vmmc;

#[doc(hidden)]
pub use bound::Gather;
pub use bound::{Bound, Combining};
pub use hamlyn_clan::{Config, Error, Rights};
pub use mirror::Mirror;
pub use sends::Sends;
#[doc(hidden)]
pub use track::each_run;
pub use track::{PAGE, Tracked, Tracking, Twin, runs};
pub use vmmc::{Buffer, Exporting, Notification, Proxy, Users, Vmmc};
