//! `hamlyn perf crowd`: more ends than processors, beside threads that keep all processors busy.
//!
//! ```text
//!   pairs: one ping-pong of 16 bytes, then four at once, each between the same two processors
//!   hogs:  256 KiB there and back, in Hamlyn through rings of 512 bytes, beside four threads that
//!          take any processor they are given
//! ```
//! Hamlyn's rows take turns with others: two words of memory and a futex, Unix stream sockets,
//! pipes. The ends of a futex are threads of this process; for all others the far end is a process
//! of its own.

use super::baseline::{self, Channel, Patience};
use super::ends::{Far, Initiator, Plan, Test};
use super::others::{self, Others};
use super::pin::{Cores, pin, two_cores};
use super::stats::median;
use super::{FarEnd, row};
use crate::arguments::{CrowdArguments, Mode, Over};
use crate::output;
use anyhow::{Context, Result, anyhow};
use rustix::thread::futex;
use serde::Serialize;
use std::fmt;
use std::panic::resume_unwind;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::Instant;

/// Pairs of ends at once.
const PAIRS: usize = 4;
/// Threads that keep a processor busy.
const HOGS: usize = 4;
/// Bytes of a message beside them.
const HOGGED_BYTES: usize = 256 << 10;

/// The carrier of the messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Carrier {
    Hamlyn(Mode),
    Futex,
    Channel(Channel),
}

impl fmt::Display for Carrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hamlyn(mode) => write!(f, "Hamlyn, {mode}"),
            Self::Futex => f.write_str("futex"),
            Self::Channel(channel) => channel.fmt(f),
        }
    }
}

/// The same ping-pong alone and beside others: the medians of the runs.
#[derive(Debug, Serialize)]
struct Row {
    test: &'static str,
    channel: String,
    size: usize,
    /// Half a round trip, the mean of a run: alone.
    alone_one_way_ns: f64,
    /// The same beside three other pairs, or beside the hogs.
    crowded_one_way_ns: f64,
    /// The second as a multiple of the first.
    of_alone: f64,
    runs: u32,
    /// The share of the two processors that other processes used meanwhile.
    #[serde(skip_serializing_if = "Option::is_none")]
    others_percent: Option<f64>,
}

/// Measures and prints.
pub fn run(arguments: &CrowdArguments) -> Result<()> {
    let cores = two_cores()?;
    let hamlyn = [Mode::Polled, Mode::Adaptive, Mode::Blocking].map(Carrier::Hamlyn);
    let others = [Carrier::Futex, Carrier::Channel(Channel::UnixSocket)];
    let mut rows = Vec::new();
    for carrier in hamlyn.into_iter().chain(others) {
        // Some tenths of a second, so that making the link does not count.
        let count = arguments.count.unwrap_or(match carrier {
            Carrier::Hamlyn(Mode::Polled | Mode::Adaptive) => 500_000,
            _ => 10_000,
        });
        rows.push(compared("pairs", carrier, 16, arguments.runs, |crowded| {
            pairs(carrier, cores, if crowded { PAIRS } else { 1 }, count)
        })?);
    }
    let count = arguments.count.unwrap_or(200).min(200);
    for carrier in [Carrier::Hamlyn(Mode::Adaptive), Carrier::Channel(Channel::Pipe)] {
        rows.push(compared("hogs", carrier, HOGGED_BYTES, arguments.runs, |crowded| {
            beside_hogs(cores, if crowded { HOGS } else { 0 }, || {
                pair(carrier, cores, 0, HOGGED_BYTES, count, &Barrier::new(1))
            })
        })?);
    }
    if arguments.json {
        return rows.iter().try_for_each(|row| output::line(serde_json::to_string(row)?));
    }
    let mut table = row::table(["", "", "bytes", "alone", "crowded", "of alone"]);
    for row in &rows {
        table.add_row([
            row.test.to_owned(),
            row.channel.clone(),
            row.size.to_string(),
            row::ns(row.alone_one_way_ns),
            row::ns(row.crowded_one_way_ns),
            format!("{:.1}", row.of_alone),
        ]);
    }
    row::align_right(&mut table, 2..6);
    output::line(table)?;
    let most = rows.iter().filter_map(|row| row.others_percent).reduce(f64::max);
    others::sentence(most).map_or(Ok(()), output::line)
}

fn compared(
    test: &'static str,
    carrier: Carrier,
    size: usize,
    runs: u32,
    mut one_way_ns: impl FnMut(bool) -> Result<f64>,
) -> Result<Row> {
    let others = Others::begin(two_cores()?);
    let (mut alone, mut crowded) = (Vec::new(), Vec::new());
    for _ in 0..runs {
        alone.push(one_way_ns(false).with_context(|| format!("{test}, {carrier}, alone"))?);
        crowded.push(one_way_ns(true).with_context(|| format!("{test}, {carrier}, crowded"))?);
    }
    let middle = |figures| median(figures).unwrap_or(f64::NAN);
    let (alone_one_way_ns, crowded_one_way_ns) = (middle(alone), middle(crowded));
    let of_alone = crowded_one_way_ns / alone_one_way_ns;
    Ok(Row {
        test,
        channel: carrier.to_string(),
        size,
        alone_one_way_ns,
        crowded_one_way_ns,
        of_alone,
        runs,
        others_percent: others.percent(),
    })
}

/// The mean over the pairs, in nanoseconds; every second pair has its ends exchanged.
fn pairs(carrier: Carrier, cores: Cores, pairs: usize, count: u64) -> Result<f64> {
    let start = &Barrier::new(pairs);
    let of = |number: usize| {
        let cores = match number % 2 {
            0 => cores,
            _ => Cores { near: cores.far, far: cores.near },
        };
        move || pair(carrier, cores, number, 16, count, start)
    };
    let figures = thread::scope(|scope| {
        let threads: Vec<_> = (0..pairs).map(|number| scope.spawn(of(number))).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic)))
            .collect::<Result<Vec<f64>>>()
    })?;
    Ok(figures.iter().sum::<f64>() / figures.len() as f64)
}

/// Half of a round trip, the mean of `count`. All pairs start together.
fn pair(
    carrier: Carrier,
    cores: Cores,
    number: usize,
    size: usize,
    count: u64,
    start: &Barrier,
) -> Result<f64> {
    let mut measure: Box<dyn FnMut() -> Result<()>> = match carrier {
        Carrier::Hamlyn(mode) => {
            let smallest_rings = size == HOGGED_BYTES;
            let plan = Plan { test: Test::Latency, size, count, mode, links: 0, smallest_rings };
            let made = FarEnd::start_as(&format!("crowd-{number}"), cores, plan, Over::Ring)
                .and_then(|far| {
                    pin(cores.near)?;
                    let at = Far { name: &far.name, secret: None, over: Over::Ring };
                    let initiator = Initiator::new(at, plan)?;
                    Ok((initiator, far))
                });
            let made = begin_all(start, made)?;
            let (mut initiator, far) = made;
            Box::new(move || {
                let _stays = &far;
                initiator.run().map(drop)
            })
        }
        Carrier::Futex => {
            begin_all(start, Ok(()))?;
            Box::new(move || futex_ping_pong(cores, count + warm_up(count)))
        }
        Carrier::Channel(channel) => {
            begin_all(start, Ok(()))?;
            Box::new(move || {
                baseline::latency(channel, Patience::Blocking, cores, size, count).map(drop)
            })
        }
    };
    let began = Instant::now();
    measure()?;
    Ok(began.elapsed().as_nanos() as f64 / (count + warm_up(count)) as f64 / 2.0)
}

/// Warm-up messages, as in all measurements here. They count in these means, equally for all
/// carriers.
fn warm_up(count: u64) -> u64 {
    (count / 10).max(1)
}

/// Waits for the other pairs even after an error, because they would wait for ever.
fn begin_all<T>(start: &Barrier, made: Result<T>) -> Result<T> {
    start.wait();
    made
}

/// Two threads and two words: each waits until its own has changed.
fn futex_ping_pong(cores: Cores, count: u64) -> Result<()> {
    let words = &[const { AtomicU32::new(0) }; 2];
    let wait = move |word: &AtomicU32, until: u32| {
        loop {
            let seen = word.load(Ordering::Acquire);
            if seen == until {
                return;
            }
            // The word itself says whether to go on, for any result.
            let _ = futex::wait(word, futex::Flags::empty(), seen, None);
        }
    };
    let wake = |word: &AtomicU32, number: u32| {
        word.store(number, Ordering::Release);
        let _ = futex::wake(word, futex::Flags::empty(), 1);
    };
    let end = move |own: usize| {
        for number in 1..=count as u32 {
            if own == 0 {
                wake(&words[1], number);
                wait(&words[0], number);
            } else {
                wait(&words[1], number);
                wake(&words[0], number);
            }
        }
    };
    super::two_threads(cores, || end(0), || end(1)).map(drop)
}

/// Runs `measure` beside `hogs` threads, half of them on either processor.
fn beside_hogs(
    cores: Cores,
    hogs: usize,
    measure: impl FnOnce() -> Result<f64> + Send,
) -> Result<f64> {
    let ends = &AtomicBool::new(false);
    thread::scope(|scope| {
        for number in 0..hogs {
            scope.spawn(move || {
                let pinned = pin([cores.near, cores.far][number % 2]);
                while pinned.is_ok() && !ends.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        // In a thread of its own, which is pinned.
        let result = scope.spawn(measure).join();
        ends.store(true, Ordering::Relaxed);
        result.unwrap_or_else(|_| Err(anyhow!("the measuring end failed")))
    })
}
