//! The clock for round trips: the time stamp counter if it is steady (a read costs some 8 ns), else
//! the monotonic clock (some 25 ns).
//!
//! A read's cost stays in the figure. The raw cache line is timed by the same clock in the same
//! way, so that the difference between the two is that of the messages.

use quanta::Clock;
use std::sync::LazyLock;

static CLOCK: LazyLock<Clock> = LazyLock::new(Clock::new);

/// Now, in the clock's own ticks.
#[inline(always)]
pub fn ticks() -> u64 {
    CLOCK.raw()
}

/// From one tick to a later one, in nanoseconds.
#[inline]
pub fn elapsed_ns(from: u64, to: u64) -> u64 {
    CLOCK.delta_as_nanos(from, to)
}

/// The time that `run` takes, in seconds.
pub fn timed<E>(run: impl FnOnce() -> Result<(), E>) -> Result<f64, E> {
    let mut result = Ok(());
    let taken = seconds(|| result = run());
    result.map(|()| taken)
}

/// The time that `run` takes, in seconds.
pub fn seconds(run: impl FnOnce()) -> f64 {
    let from = ticks();
    run();
    elapsed_ns(from, ticks()) as f64 / 1e9
}
