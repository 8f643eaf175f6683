//! Hamlyn beside today's channels: one message one way, and messages one after another.

use anyhow::Result;
use hamlyn_tools::perf::baseline::{self, Channel, Patience};
use hamlyn_tools::perf::bracket::{Baselines, bracketed, repeats_max};
use hamlyn_tools::perf::pin::Cores;
use hamlyn_tools::perf::placement::agree;
use hamlyn_tools::perf::{raw, row};

const RAW_ROUND_TRIPS: u64 = 6_400;

/// The duration of a measurement.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Round trips of ends that poll.
    pub polled_round_trips: u64,
    /// Round trips of ends that sleep: some hundred times slower.
    pub blocking_round_trips: u64,
    /// Messages through sockets and pipes.
    pub messages: u64,
    pub runs: u32,
}

impl Effort {
    /// For real figures: each measurement takes about a second.
    pub const FULL: Self = Self {
        polled_round_trips: 20_000,
        blocking_round_trips: 3_000,
        messages: 200_000,
        runs: 5,
    };
    /// For a check that it runs.
    pub const QUICK: Self =
        Self { polled_round_trips: 500, blocking_round_trips: 100, messages: 5_000, runs: 1 };
}

/// A figure, and the raw line measured beside it.
#[derive(Clone, Copy, Debug)]
pub struct Measured {
    pub value: f64,
    pub raw_line_ns: f64,
    /// Whether the raw line stayed the same meanwhile.
    pub is_steady: bool,
}

impl Measured {
    /// The figure of a row from [`measure`](hamlyn_tools::perf::measure).
    pub fn of(row: &row::Row) -> Self {
        let raw_line_ns = row.baselines.raw_line_one_way_ns;
        Self { value: row.figure.value(), raw_line_ns, is_steady: row.steady }
    }

    /// Whether both were measured with the cores in the same placement.
    pub fn compares_with(&self, other: &Self) -> bool {
        self.is_steady && other.is_steady && agree(self.raw_line_ns, other.raw_line_ns)
    }
}

/// One line of the comparison.
#[derive(Clone, Debug)]
pub struct Compared {
    pub name: String,
    pub waits: &'static str,
    /// In nanoseconds.
    pub one_way: Measured,
    /// Messages a second.
    pub rate: Option<Measured>,
}

/// Measurements that [`channels`] makes.
pub const CHANNEL_STEPS: u64 = 2 * Channel::ALL.len() as u64;

/// Each kind of channel, blocking in the kernel and polling. Calls `step` before each measurement.
pub fn channels(
    cores: Cores,
    size: usize,
    effort: Effort,
    mut step: impl FnMut(String),
) -> Result<Vec<Compared>> {
    let mut lines = Vec::new();
    for kind in Channel::ALL {
        for patience in [Patience::Polled, Patience::Blocking] {
            step(format!("{kind}, {}", waits(patience)));
            lines.push(channel(kind, patience, cores, size, effort)?);
        }
    }
    Ok(lines)
}

fn waits(patience: Patience) -> &'static str {
    match patience {
        Patience::Polled => "polled",
        Patience::Blocking => "blocking",
    }
}

/// One of them.
pub fn channel(
    kind: Channel,
    patience: Patience,
    cores: Cores,
    size: usize,
    effort: Effort,
) -> Result<Compared> {
    let round_trips = match patience {
        Patience::Polled => effort.polled_round_trips,
        Patience::Blocking => effort.blocking_round_trips,
    };
    let latency = || baseline::latency(kind, patience, cores, size, round_trips);
    let rate = || baseline::messages_per_s(kind, patience, cores, size, effort.messages);
    let run = bracketed(
        cores,
        repeats_max(round_trips),
        || Ok(Baselines::of_raw_line(raw::line_one_way_ns(cores, RAW_ROUND_TRIPS)?)),
        || {
            let one_way_ns = hamlyn_tools::perf::median_of(effort.runs, || Ok(latency()?.p50))?;
            anyhow::Ok((one_way_ns, hamlyn_tools::perf::median_of(effort.runs, rate)?))
        },
        |_| (),
    )?;
    let raw_line_ns = run.baselines.raw_line_one_way_ns;
    let measured = |value| Measured { value, raw_line_ns, is_steady: run.is_steady };
    let (one_way_ns, messages_per_s) = run.figure;
    Ok(Compared {
        name: kind.to_string(),
        waits: waits(patience),
        one_way: measured(one_way_ns),
        rate: Some(measured(messages_per_s)),
    })
}
