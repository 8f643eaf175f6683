//! The protocols: two managers, many threads, members that die, peers that lie; over rings, and
//! again between hosts (`over`). One program, since each takes time to link.
#![cfg(all(feature = "os", not(miri)))]

#[path = "../control_help/mod.rs"]
mod control_help;
#[path = "../support/mod.rs"]
mod support;

mod calls;
mod datagram;
mod exclusive;
mod general;
mod group;
mod help;
mod hostile;
mod over;
mod publish;
mod publish_ends;
mod publish_hostile;
mod reconnect;
mod stream;
mod stream_loan;
