//! The physical limit of a message: one cache line from core to core.
//!
//! Two pinned threads hand a word to and fro. Between threads and between processes the line
//! travels alike, because the caches know only physical addresses.

use super::clock;
use super::pin::Cores;
use super::stats::RoundTrips;
use anyhow::Result;
use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Release};

/// The word that is handed over has two lines to itself: neighbouring lines are prefetched in
/// pairs.
#[repr(align(128))]
struct Line(AtomicU64);

const READY: u64 = 1;
const STOP: u64 = u64::MAX;

/// Median of `round_trips` round trips, halved, in nanoseconds.
pub fn line_one_way_ns(cores: Cores, round_trips: u64) -> Result<f64> {
    let line = &Line(AtomicU64::new(0));
    super::two_threads(
        cores,
        || {
            while line.0.load(Acquire) != READY {}
            let ns = hand_to_and_fro(line, round_trips);
            line.0.store(STOP, Release);
            ns
        },
        || {
            line.0.store(READY, Release);
            // Even values come from the other side, the odd one behind each goes back.
            let mut next = 2;
            loop {
                let value = line.0.load(Acquire);
                if value == next {
                    line.0.store(next + 1, Release);
                    next += 2;
                } else if value == STOP {
                    return;
                }
            }
        },
    )
    .map(|(ns, ())| ns)
}

fn hand_to_and_fro(line: &Line, round_trips: u64) -> f64 {
    let mut trips = RoundTrips::new();
    let warm_up = round_trips / 4;
    let mut before = clock::ticks();
    for trip in 0..warm_up + round_trips {
        let next = 2 * (trip + 1);
        line.0.store(next, Release);
        while line.0.load(Acquire) != next + 1 {}
        let now = clock::ticks();
        if trip >= warm_up {
            trips.record_ns(clock::elapsed_ns(before, now));
        }
        before = now;
    }
    trips.one_way_ns().p50
}
