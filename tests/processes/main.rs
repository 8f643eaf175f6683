//! Several processes: death, forks, users, namespaces, limits, fairness, sleeping and waking,
//! random operations. One program, since each takes time to link; a test that counts something of a
//! process runs in one of its own (`support::alone`).
#![cfg(feature = "os")]

#[path = "../control_help/mod.rs"]
mod control_help;
#[path = "../support/mod.rs"]
mod support;

mod costs;
mod death;
mod directories;
mod fairness;
mod filters;
mod fork;
mod large;
mod limits;
mod random;
mod rlimits;
mod surroundings;
mod users;
mod wake;
mod watchdog;
