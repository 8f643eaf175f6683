//! Hamlyn beside what programs use today: one message one way, and messages one after another.

use super::baseline::{self, Channel, Patience};
use super::pin::Cores;
use super::row;
use anyhow::Result;
use comfy_table::Table;

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
            let run = || baseline::latency(channel, patience, cores, size, round_trips);
            let one_way_ns = super::median_of(effort.runs, || Ok(run()?.p50))?;
            let run = || baseline::messages_per_s(channel, patience, cores, size, effort.messages);
            let messages_per_s = Some(super::median_of(effort.runs, run)?);
            lines.push(Compared { name: channel.to_string(), waits, one_way_ns, messages_per_s });
        }
    }
    Ok(lines)
}

/// For people.
pub fn table(lines: &[Compared]) -> Table {
    let mut table = row::table(["", "waits", "one way", "messages"]);
    for line in lines {
        let rate = line.messages_per_s.map_or(String::new(), |rate| row::per_second(rate, ""));
        table.add_row([line.name.clone(), line.waits.to_owned(), row::ns(line.one_way_ns), rate]);
    }
    row::align_right(&mut table, [2, 3]);
    table
}
