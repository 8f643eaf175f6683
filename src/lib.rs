#![no_std]
extern crate alloc;
#[cfg(feature = "os")]
extern crate std;
#[cfg(feature = "os")]
pub mod config;
#[cfg(feature = "os")]
pub mod control;
pub mod interface;
pub mod link;
#[cfg(feature = "os")]
pub mod os;
pub mod wire;
