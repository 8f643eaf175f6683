//! `hamlyn perf`: measuring, and what every measurement is bracketed with.
//!
//! - [`pin`]: two processors, one for each end.
//! - [`clock`], [`stats`]: times, medians and percentiles.
//! - [`raw`], [`copies`]: the physical limits, measured in the same run.
//! - [`placement`]: what the raw line tells of where the cores are.
//! - [`bracket`]: measures the limits before and after, and repeats what was disturbed.
//! - [`baseline`]: Unix socket, TCP and pipe, in processes pinned alike.
//! - [`compare`]: those beside Hamlyn.
//! - [`row`]: one result, as JSON and for people.

pub mod baseline;
pub mod bracket;
pub mod clock;
pub mod compare;
pub mod copies;
pub mod pin;
pub mod placement;
pub mod raw;
pub mod row;
pub mod stats;

use anyhow::{Result, anyhow};
use pin::{Cores, pin};
use std::panic::resume_unwind;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// Runs `near` and `far` in two threads on the two cores. Both are pinned before either begins,
/// and neither begins if one cannot be pinned: the other would wait for ever.
fn two_threads<A: Send, B: Send>(
    cores: Cores,
    near: impl FnOnce() -> A + Send,
    far: impl FnOnce() -> B + Send,
) -> Result<(A, B)> {
    let (both, failed) = (&Barrier::new(2), &AtomicBool::new(false));
    fn run_on<T>(
        core: usize,
        both: &Barrier,
        failed: &AtomicBool,
        run: impl FnOnce() -> T,
    ) -> Result<T> {
        let pinned = pin(core);
        failed.fetch_or(pinned.is_err(), Ordering::Relaxed);
        both.wait();
        pinned?;
        if failed.load(Ordering::Relaxed) {
            return Err(anyhow!("the other end could not be pinned to its processor"));
        }
        Ok(run())
    }
    thread::scope(|scope| {
        let near = scope.spawn(|| run_on(cores.near, both, failed, near));
        let far = scope.spawn(|| run_on(cores.far, both, failed, far));
        let near = near.join().unwrap_or_else(|panic| resume_unwind(panic));
        let far = far.join().unwrap_or_else(|panic| resume_unwind(panic));
        Ok((near?, far?))
    })
}

/// Runs `run` in a thread on one core.
fn on_core<T: Send>(core: usize, run: impl FnOnce() -> T + Send) -> Result<T> {
    let pinned = || pin(core).map(|()| run());
    thread::scope(|scope| scope.spawn(pinned).join().unwrap_or_else(|panic| resume_unwind(panic)))
}

/// The median of `runs` figures, of one at the least.
fn median_of(runs: u32, mut run: impl FnMut() -> Result<f64>) -> Result<f64> {
    let figures: Result<Vec<f64>> = (0..runs.max(1)).map(|_| run()).collect();
    Ok(stats::median(figures?).unwrap_or(f64::NAN))
}

/// The limits and what programs use today, for whoever wants to know what a machine can do.
pub fn print_limits(message_bytes: usize) -> Result<()> {
    let cores = pin::two_cores()?;
    let shape = copies::RingShape { packet_bytes: 16 << 10, ring_bytes: 1 << 20 };
    let limits = bracket::Limits { cores, message_bytes, shape, round_trips: 10_000 };
    println!("{}", serde_json::to_string(&limits.measure()?)?);
    println!("{}", compare::table(&compare::channels(cores, 16, compare::Effort::FULL, |_| ())?));
    Ok(())
}
