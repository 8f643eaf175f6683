//! Hamlyn beside what programs use today: one message one way, and messages one after another.

use super::baseline::{self, Channel, Patience};
use super::bracket::{Baselines, bracketed};
use super::pin::Cores;
use super::{raw, row};
use anyhow::Result;
use comfy_table::Table;

const RAW_ROUND_TRIPS: u64 = 6_400;

/// How long to measure.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Of ends that ask again and again.
    pub polled_round_trips: u64,
    /// Of ends that sleep: some hundred times slower.
    pub blocking_round_trips: u64,
    /// Of sockets and pipes.
    pub messages: u64,
    pub runs: u32,
}

impl Effort {
    /// For figures: each measurement takes about a second.
    pub const FULL: Self = Self {
        polled_round_trips: 20_000,
        blocking_round_trips: 3_000,
        messages: 200_000,
        runs: 5,
    };
    /// To see that it runs.
    pub const QUICK: Self =
        Self { polled_round_trips: 500, blocking_round_trips: 100, messages: 5_000, runs: 1 };
}

/// One line of the comparison.
#[derive(Clone, Debug)]
pub struct Compared {
    pub name: String,
    pub waits: &'static str,
    pub one_way_ns: f64,
    pub messages_per_s: Option<f64>,
    /// The raw line while this was measured: lines do not compare whose raw lines disagree.
    pub raw_line_one_way_ns: f64,
}

/// Measurements that [`channels`] makes.
pub const CHANNEL_STEPS: u64 = 2 * Channel::ALL.len() as u64;

/// Each kind of channel, waiting in the kernel and asking again and again. `step` is told before
/// each measurement.
pub fn channels(
    cores: Cores,
    size: usize,
    effort: Effort,
    mut step: impl FnMut(String),
) -> Result<Vec<Compared>> {
    let mut lines = Vec::new();
    for channel in Channel::ALL {
        for patience in [Patience::Polled, Patience::Blocking] {
            let (waits, round_trips) = match patience {
                Patience::Polled => ("polled", effort.polled_round_trips),
                Patience::Blocking => ("blocking", effort.blocking_round_trips),
            };
            step(format!("{channel}, {waits}"));
            let latency = || baseline::latency(channel, patience, cores, size, round_trips);
            let rate = || baseline::messages_per_s(channel, patience, cores, size, effort.messages);
            let run = bracketed(
                || Ok(Baselines::of_raw_line(raw::line_one_way_ns(cores, RAW_ROUND_TRIPS)?)),
                || {
                    let one_way_ns = super::median_of(effort.runs, || Ok(latency()?.p50))?;
                    anyhow::Ok((one_way_ns, super::median_of(effort.runs, rate)?))
                },
                |_| (),
            )?;
            let (one_way_ns, messages_per_s) = (run.figure.0, Some(run.figure.1));
            let raw_line_one_way_ns = run.baselines.raw_line_one_way_ns;
            let name = channel.to_string();
            lines.push(Compared { name, waits, one_way_ns, messages_per_s, raw_line_one_way_ns });
        }
    }
    Ok(lines)
}

/// For people.
pub fn table(lines: &[Compared]) -> Table {
    let mut table = row::table(["", "waits", "one way", "messages", "raw line then"]);
    for line in lines {
        let rate = line.messages_per_s.map_or(String::new(), |rate| row::per_second(rate, ""));
        let (one_way, raw) = (row::ns(line.one_way_ns), row::ns(line.raw_line_one_way_ns));
        table.add_row([line.name.clone(), line.waits.to_owned(), one_way, rate, raw]);
    }
    row::align_right(&mut table, [2, 3, 4]);
    table
}
