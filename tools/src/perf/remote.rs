//! `hamlyn perf remote`: the cost of a peer on another host for messages between two local
//! processes.
//!
//! ```text
//!   this process, near                 far
//!   16 bytes there and back   <-ring-> one process, polled, as the near end
//!   a link over TLS           <------- another, asleep: nothing, or 16 bytes each EVERY
//! ```
//! The node that measures carries both links. The other host is this one, over loopback, and its
//! process shares the far end's processor: the means include its processor time, and the medians do
//! not.

use super::ends::{Far, Initiator, Plan, Test};
use super::pin::{Cores, two_cores};
use super::row::{self, Figure};
use super::stats::median;
use super::{FarEnd, on_core};
use crate::arguments::{Mode, Over, RemoteArguments};
use crate::output;
use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;
use std::time::{Duration, Instant};

/// Between two messages of the busy peer.
const EVERY: Duration = Duration::from_micros(100);

/// The activity of the other host's process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Peer {
    None,
    Idle,
    Busy,
}

impl Peer {
    const ALL: [Self; 3] = [Self::None, Self::Idle, Self::Busy];

    fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Idle => "idle",
            Self::Busy => "busy",
        }
    }
}

/// One run.
struct Run {
    median_ns: f64,
    mean_ns: f64,
    peer_messages_per_s: f64,
}

/// The medians of the runs.
#[derive(Debug, Serialize)]
struct Row {
    test: &'static str,
    /// The activity of the peer on the other host: none, idle, busy.
    peer: &'static str,
    size: usize,
    /// Half a round trip between the two processes of this host: the median of a run, and its mean.
    one_way_ns: f64,
    mean_one_way_ns: f64,
    /// As a multiple of those without a peer.
    of_alone: f64,
    mean_of_alone: f64,
    /// Messages per second from the other host meanwhile.
    peer_messages_per_s: f64,
    /// The raw line, the mean of before and after.
    raw_line_one_way_ns: f64,
    runs: u32,
}

/// Measures and prints.
pub fn run(arguments: &RemoteArguments) -> Result<()> {
    let cores = two_cores()?;
    let count = arguments.count.unwrap_or(500_000);
    let mut runs = Peer::ALL.map(|_| Vec::new());
    let mut lines = Vec::new();
    for _ in 0..arguments.runs {
        for (peer, runs) in Peer::ALL.into_iter().zip(&mut runs) {
            lines.push(super::raw::line_one_way_ns(cores, count.clamp(50, 10_000))?);
            runs.push(
                measure(cores, peer, count)
                    .with_context(|| format!("beside a peer that is {}", peer.name()))?,
            );
        }
    }
    let middle = |figures: Vec<f64>| median(figures).unwrap_or(f64::NAN);
    let of = |runs: &[Run], figure: fn(&Run) -> f64| middle(runs.iter().map(figure).collect());
    let raw_line_one_way_ns = middle(lines);
    let alone = (of(&runs[0], |run| run.median_ns), of(&runs[0], |run| run.mean_ns));
    let rows = Peer::ALL.into_iter().zip(&runs).map(|(peer, runs)| {
        let (one_way_ns, mean) = (of(runs, |run| run.median_ns), of(runs, |run| run.mean_ns));
        Row {
            test: "remote",
            peer: peer.name(),
            size: 16,
            one_way_ns,
            mean_one_way_ns: mean,
            of_alone: one_way_ns / alone.0,
            mean_of_alone: mean / alone.1,
            peer_messages_per_s: of(runs, |run| run.peer_messages_per_s),
            raw_line_one_way_ns,
            runs: arguments.runs,
        }
    });
    if arguments.json {
        return rows.map(|row| serde_json::to_string(&row)).try_for_each(|row| output::line(row?));
    }
    let headings = ["peer elsewhere", "median", "of alone", "mean", "of alone", "its messages/s"];
    let mut table = row::table(headings);
    for row in rows {
        table.add_row([
            row.peer.to_owned(),
            row::ns(row.one_way_ns),
            format!("{:.2}", row.of_alone),
            row::ns(row.mean_one_way_ns),
            format!("{:.2}", row.mean_of_alone),
            format!("{:.0}", row.peer_messages_per_s),
        ]);
    }
    row::align_right(&mut table, 1..6);
    output::line(table)
}

fn measure(cores: Cores, peer: Peer, count: u64) -> Result<Run> {
    let plan =
        |mode| Plan { test: Test::Latency, size: 16, count, mode, links: 0, smallest_rings: false };
    let near = plan(Mode::Polled);
    let here = FarEnd::start_as("remote-here", cores, near, Over::Ring)?;
    let there = match peer {
        Peer::None => None,
        _ => Some(FarEnd::start_as("remote-there", cores, plan(Mode::Blocking), Over::Tls)?),
    };
    let secret = there.as_ref().and_then(FarEnd::secret);
    let at = Far { name: &here.name, secret: secret.as_deref(), over: Over::Ring };
    let there = there.as_ref().map(|there| there.name.as_str());
    on_core(cores.near, || measure_beside(at, near, there, peer))?
}

/// Runs on the calling thread, which is pinned already.
fn measure_beside(at: Far<'_>, near: Plan, there: Option<&str>, peer: Peer) -> Result<Run> {
    let mut initiator = Initiator::new(at, near)?;
    let every = (peer == Peer::Busy).then_some(EVERY);
    let hears = there.map(|there| initiator.hear(there, every)).transpose()?;
    let (before, began) = (initiator.heard(hears)?, Instant::now());
    let Figure::Latency { one_way_ns } = initiator.run()? else { bail!("a latency was wanted") };
    let heard = initiator.heard(hears)? - before;
    ensure!(heard > 0 || peer != Peer::Busy, "the peer that was to be busy sent nothing");
    let peer_messages_per_s = heard as f64 / began.elapsed().as_secs_f64();
    let mean_ns = one_way_ns.mean.unwrap_or(one_way_ns.p50);
    Ok(Run { median_ns: one_way_ns.p50, mean_ns, peer_messages_per_s })
}
