//! Brackets each run with the physical limits, measured before it and after it.

use super::copies::{self, RingShape};
use super::least::{self, Least};
use super::others::{Others, Taken};
use super::pin::Cores;
use super::placement::{Placement, agree};
use super::raw;
use anyhow::Result;
use serde::{Deserialize, Serialize};

/// Times that a run is repeated because the cores were moved during it ..
const REPEATS_MAX: u32 = 8;
/// .. and one of fewer round trips, whose raw line differs from run to run in any placement.
const REPEATS_MAX_OF_SHORT: u32 = 1;
const SHORT_ROUND_TRIPS: u64 = 2_000;

/// Repeats of a run beside so many round trips of the raw line.
pub fn repeats_max(round_trips: u64) -> u32 {
    if round_trips < SHORT_ROUND_TRIPS { REPEATS_MAX_OF_SHORT } else { REPEATS_MAX }
}

/// The parameters of the limits: the size and ring of the run that they bracket.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub cores: Cores,
    /// Round trips of the raw line and of the least checked message.
    pub round_trips: u64,
    pub message_bytes: usize,
    pub shape: RingShape,
    /// Whether memcpy and the bare two-copy ring are limits, too.
    pub has_copies: bool,
}

/// The physical limits at one time. A limit that was not measured is `NaN`, and left out of a row:
/// all that depend on travel from core to core if both ends share one, the least checked message if
/// the row's is longer than a packet, and copies if only lines count.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Baselines {
    #[serde(default = "not_measured", skip_serializing_if = "is_not_measured")]
    pub raw_line_one_way_ns: f64,
    /// Of the bare checked ring, for a message of the same length: [`Least`].
    #[serde(default = "not_measured", skip_serializing_if = "is_not_measured")]
    pub least_one_way_ns: f64,
    #[serde(default = "not_measured", skip_serializing_if = "is_not_measured")]
    pub least_per_s: f64,
    #[serde(default = "not_measured", skip_serializing_if = "is_not_measured")]
    pub memcpy_bytes_per_s: f64,
    #[serde(default = "not_measured", skip_serializing_if = "is_not_measured")]
    pub copy_ring_bytes_per_s: f64,
    /// A word for the raw line.
    pub placement: Placement,
}

fn not_measured() -> f64 {
    f64::NAN
}

/// Whether a limit, in nanoseconds or per second, was not measured.
pub fn is_not_measured(value: &f64) -> bool {
    value.is_nan()
}

impl Limits {
    /// Measures them now: some tenths of a second. Measured again while the cores are moved
    /// during it, so that the limits are all beside one raw line. An error if an end cannot be
    /// pinned to its processor.
    pub fn measure(&self) -> Result<Baselines> {
        if self.cores.are_one() {
            return self.measure_beside(f64::NAN);
        }
        let raw = || raw::line_one_way_ns(self.cores, self.round_trips);
        let mut before = raw()?;
        let mut attempt = 0;
        loop {
            let baselines = self.measure_beside(before)?;
            let after = raw()?;
            if agree(before, after) || attempt == repeats_max(self.round_trips) {
                return Ok(Baselines::between(baselines, baselines.beside(after)));
            }
            attempt += 1;
            before = after;
        }
    }

    fn measure_beside(&self, raw_line_one_way_ns: f64) -> Result<Baselines> {
        let mut limits = Baselines::of_raw_line(raw_line_one_way_ns);
        let Self { message_bytes, shape, .. } = *self;
        if self.has_copies {
            limits.memcpy_bytes_per_s = copies::memcpy_bytes_per_s(self.cores, message_bytes)?;
            if !self.cores.are_one() {
                limits.copy_ring_bytes_per_s =
                    copies::copy_ring_bytes_per_s(self.cores, message_bytes, shape)?;
            }
        }
        if !self.cores.are_one() {
            let Least { one_way_ns, per_s } =
                least::measure(self.cores, message_bytes, shape, self.round_trips)?;
            (limits.least_one_way_ns, limits.least_per_s) = (one_way_ns, per_s);
        }
        Ok(limits)
    }
}

impl Baselines {
    /// The raw line alone, in nanoseconds.
    pub fn of_raw_line(raw_line_one_way_ns: f64) -> Self {
        Self {
            raw_line_one_way_ns,
            least_one_way_ns: f64::NAN,
            least_per_s: f64::NAN,
            memcpy_bytes_per_s: f64::NAN,
            copy_ring_bytes_per_s: f64::NAN,
            placement: Placement::of_raw_line_ns(raw_line_one_way_ns),
        }
    }

    /// The same beside another raw line, in nanoseconds.
    fn beside(self, raw_line_one_way_ns: f64) -> Self {
        Self { raw_line_one_way_ns, ..self }
    }

    /// The mean of those before and those after a run.
    fn between(before: Self, after: Self) -> Self {
        let mean = |of: fn(&Self) -> f64| (of(&before) + of(&after)) / 2.0;
        Self {
            least_one_way_ns: mean(|limits| limits.least_one_way_ns),
            least_per_s: mean(|limits| limits.least_per_s),
            memcpy_bytes_per_s: mean(|limits| limits.memcpy_bytes_per_s),
            copy_ring_bytes_per_s: mean(|limits| limits.copy_ring_bytes_per_s),
            ..Self::of_raw_line(mean(|limits| limits.raw_line_one_way_ns))
        }
    }
}

/// A run with the limits before and after it.
#[derive(Clone, Copy, Debug)]
pub struct Bracketed<T> {
    pub figure: T,
    pub baselines: Baselines,
    /// Earlier attempts, discarded because the cores moved.
    pub repeats: u32,
    /// False if the cores moved during the last attempt, too.
    pub is_steady: bool,
    /// The share of other processes during it and its limits.
    pub others: Option<Taken>,
}

/// Runs `run` between two measurements of the limits. Repeats it, at most so often, unless the raw
/// lines of the two [`agree`]; calls `say` at each repetition.
pub fn bracketed<T>(
    cores: Cores,
    repeats_max: u32,
    mut measure: impl FnMut() -> Result<Baselines>,
    mut run: impl FnMut() -> Result<T>,
    mut say: impl FnMut(String),
) -> Result<Bracketed<T>> {
    let mut others = Others::begin(cores);
    let mut before = measure()?;
    let mut repeats = 0;
    loop {
        let figure = run()?;
        let after = measure()?;
        let (from, to) = (before.raw_line_one_way_ns, after.raw_line_one_way_ns);
        let is_steady = agree(from, to);
        if is_steady || repeats == repeats_max {
            if !is_steady {
                say(format!(
                    "the raw line went from {from:.0} to {to:.0} ns one way, and the run has been \
                     repeated {repeats} times; its figure belongs to none of them"
                ));
            }
            let baselines = Baselines::between(before, after);
            let others = others.taken();
            return Ok(Bracketed { figure, baselines, repeats, is_steady, others });
        }
        repeats += 1;
        say(format!(
            "the raw line went from {from:.0} to {to:.0} ns one way: the cores were moved, and \
             the run is repeated"
        ));
        (before, others) = (after, Others::begin(cores));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CORES: Cores = Cores { near: 0, far: 0 };

    fn lines(ns: &[f64]) -> impl FnMut() -> Result<Baselines> + '_ {
        let mut ns = ns.iter().copied();
        move || Ok(Baselines::of_raw_line(ns.next().unwrap_or(54.0)))
    }

    #[test]
    fn a_run_during_which_the_cores_moved_is_repeated_and_that_is_said() {
        let (mut runs, mut said) = (0, 0);
        let run = || {
            runs += 1;
            Ok(runs)
        };
        let lines = lines(&[240.0, 54.0, 56.0]);
        let result = bracketed(CORES, REPEATS_MAX, lines, run, |_| said += 1).unwrap();
        assert_eq!((result.figure, result.repeats, said), (2, 1, 1));
        assert!(result.is_steady);
        assert_eq!(result.baselines.raw_line_one_way_ns, 55.0);
        assert_eq!(result.baselines.placement, Placement::Near);
    }

    #[test]
    fn repeating_ends() {
        let mut ns = 1.0;
        let moving = || {
            ns *= 2.0;
            lines(&[ns])()
        };
        let result = bracketed(CORES, REPEATS_MAX, moving, || Ok(()), |_| ()).unwrap();
        assert_eq!((result.repeats, result.is_steady), (REPEATS_MAX, false));
    }
}
