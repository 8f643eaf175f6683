//! A time limit for several steps.

use crate::os::sys;
use core::time::Duration;

/// A time limit for several steps.
#[derive(Clone, Copy)]
pub(super) struct Deadline(Option<u64>);

impl Deadline {
    pub fn new(timeout: Option<Duration>) -> Self {
        let ns = timeout.and_then(|timeout| u64::try_from(timeout.as_nanos()).ok());
        Self(ns.and_then(|ns| sys::monotonic_ns().checked_add(ns)))
    }

    pub fn left(self) -> Option<Duration> {
        let left =
            |until_ns: u64| Duration::from_nanos(until_ns.saturating_sub(sys::monotonic_ns()));
        self.0.map(left)
    }
}
