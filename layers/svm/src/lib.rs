//! Shared virtual memory by home-based lazy release consistency: HLRC, HLRC-AU and AURC.
//!
//! # The parts
//!
//! ```text
//! machine   the protocol: messages in, messages out; no system call, no clock, no page
//! ```
#![warn(missing_docs)]

#[doc(hidden)]
pub mod machine;
