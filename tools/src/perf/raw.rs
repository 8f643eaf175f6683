//! The physical limit of a message: one cache line from core to core.
//!
//! Two pinned threads hand a word to and fro. Between threads and between processes the line
//! travels alike, because the caches know only physical addresses.
//!
//! The line matters, and so does the phase of the two loops: where the cores share a cache, one
//! line takes 35 ns and the next 75. So many lines are measured, a mean for each, and the median
//! line counts. Both sides poll without a pause, like a polling receiver; this figure decides
//! whether runs can be compared. (With a pause between two looks the line is less disturbed: 25 ns
//! in place of 55.)

use super::pin::Cores;
use super::stats::{RoundTrips, median};
use anyhow::Result;
use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Release};

/// A word that has two lines to itself: neighbouring lines are prefetched in pairs.
#[repr(align(128))]
struct Line(AtomicU64);

/// Lines that are measured, one to each page and at another place in each.
const LINES: usize = 64;
const LINES_PER_PAGE: usize = 4096 / 128;

const READY: u64 = 1;
const STOP: u64 = u64::MAX;

/// Of each line the mean of its round trips, `round_trips` in all; of these the median, halved, in
/// nanoseconds.
pub fn line_one_way_ns(cores: Cores, round_trips: u64) -> Result<f64> {
    let memory: Vec<Line> = (0..LINES * LINES_PER_PAGE).map(|_| Line(AtomicU64::new(0))).collect();
    let lines = || (0..LINES).map(|i| &memory[i * LINES_PER_PAGE + i * 5 % LINES_PER_PAGE]);
    let each = (round_trips / LINES as u64).max(50);
    let here = || {
        let of_line = |line: &Line| {
            while line.0.load(Acquire) != READY {}
            let ns = hand_to_and_fro(line, each);
            line.0.store(STOP, Release);
            ns
        };
        median(lines().map(of_line)).unwrap_or(f64::NAN)
    };
    let there = || lines().for_each(hand_back);
    super::two_threads(cores, here, there).map(|(ns, ())| ns)
}

fn hand_to_and_fro(line: &Line, round_trips: u64) -> f64 {
    let warm_up = round_trips / 4;
    let mut trips = RoundTrips::begin(warm_up + round_trips);
    for trip in 1..=warm_up + round_trips {
        line.0.store(2 * trip, Release);
        while line.0.load(Acquire) != 2 * trip + 1 {}
        trips.end_one();
    }
    trips.mean_one_way_ns(warm_up)
}

/// Even values come from the other side, the odd one behind each goes back.
fn hand_back(line: &Line) {
    line.0.store(READY, Release);
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
}
