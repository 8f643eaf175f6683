//! How long senders of a node have waited for room, as a histogram.
//!
//! Only a thread that has waited already measures, so that no message pays for it: the clock is
//! read when a sender begins to wait, and once when it sees that the peer has taken something. See
//! docs/decisions/no-clock-on-the-path.md.
//!
//! One writer, any number of readers, as with [`crate::interface::Counters`].

use core::fmt::Write;
use core::sync::atomic::{AtomicU64, Ordering};
use std::string::String;

/// Bounds in microseconds: 1, 4, 16 and so on, up to some 17 seconds.
const BOUNDS: usize = 13;

/// Waits, by their length.
#[derive(Debug, Default)]
pub(super) struct RoomWaits {
    /// Those of at most 4^i microseconds, and of more than the bound before; the last has no bound.
    counts: [AtomicU64; BOUNDS + 1],
    sum_us: AtomicU64,
}

fn add(word: &AtomicU64, n: u64) {
    word.store(word.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
}

impl RoomWaits {
    pub fn record(&self, ns: u64) {
        let us = ns.div_ceil(1000);
        let at = (0..BOUNDS).find(|i| us <= 1 << (2 * i)).unwrap_or(BOUNDS);
        add(&self.counts[at], 1);
        add(&self.sum_us, us);
    }

    /// Lines of a name, a space and a value: `room_waits.le_us_BOUND` counts the waits up to that
    /// bound, including shorter ones.
    pub fn text(&self, text: &mut String) {
        let mut count = 0;
        for (i, word) in self.counts.iter().enumerate() {
            count += word.load(Ordering::Relaxed);
            let _ = match i {
                BOUNDS => writeln!(text, "room_waits.count {count}"),
                i => writeln!(text, "room_waits.le_us_{} {count}", 1u64 << (2 * i)),
            };
        }
        let _ = writeln!(text, "room_waits.sum_us {}", self.sum_us.load(Ordering::Relaxed));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_wait_is_counted_up_to_its_bound() {
        let waits = RoomWaits::default();
        for ns in [0, 1000, 1001, 4_000_000, 60_000_000_000] {
            waits.record(ns);
        }
        let mut text = String::new();
        waits.text(&mut text);
        for line in [
            "room_waits.le_us_1 2",
            "room_waits.le_us_4 3",
            "room_waits.le_us_1024 3",
            "room_waits.le_us_4096 4",
            "room_waits.le_us_16777216 4",
            "room_waits.count 5",
            "room_waits.sum_us 60004003",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}: {text}");
        }
    }
}
