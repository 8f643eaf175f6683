#![no_std]
extern crate alloc;
#[cfg(feature = "os")]
extern crate std;
pub mod interface;
pub mod link;
pub mod wire;
