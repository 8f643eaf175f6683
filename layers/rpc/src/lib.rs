//! ONC RPC (RFC 5531) on Hamlyn's calls.
#![doc = include_str!("../README.md")]
//!
//! # The parts
//!
//! ```text
//! xdr      values as bytes (RFC 4506)
//! message  the heads of calls and replies
//! ends     calling a program, and answering calls
//! c/       the same for rpcgen's stubs: include/hamlyn_rpc.h
//! ```
//! Of the crates for these formats, `onc-rpc` reads messages with record marks only, with at most 200 bytes of
//! credentials where RFC 5531 has 400; `serde-xdr` is under the GPL, and `xdr-codec` was left in 2017.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod ends;
mod message;
mod xdr;

pub use ends::{Answered, Asked, Caller, Error, Program, Refusal, answer};
pub use message::{AUTH_BYTES_MAX, Auth, Body, Call, Outcome, Reply};
pub use xdr::{Decoder, Encoder, Malformed};
