//! `hamlyn perf`: measurements, and the limits that bracket each of them.
//!
//! - [`pin`]: two processors, one for each end.
//! - [`clock`], [`stats`]: times, medians and percentiles.
//! - [`raw`], [`least`], [`copies`]: the limits, measured in the same run: a cache line, a checked
//!   message, memcpy and the bare two-copy ring.
//! - [`placement`]: which runs can be compared, from their raw lines.
//! - [`bracket`]: measures the limits before and after, and repeats disturbed runs.
//! - [`others`]: the share of other processes meanwhile.
//! - [`ends`]: the two ends of a measurement on the public library.
//! - [`protocols`]: the protocols beside the raw interface.
//! - [`idle`]: the cost of unused links.
//! - [`crowd`]: more ends than processors.
//! - `remote`: the cost of a peer on another host for messages on this one.
//! - `bare_tls`: the comparison for links to other hosts.
//! - `pingpong`: the comparison for links over libfabric.
//! - [`baseline`]: Unix socket, TCP and pipe, in processes pinned alike.
//! - [`curve`]: latency and rate by the length of the message.
//! - [`row`]: one result, as JSON and for people.

#[cfg(feature = "tls")]
pub mod bare_tls;
pub mod baseline;
pub mod bracket;
pub mod clock;
pub mod copies;
pub mod crowd;
pub mod curve;
pub mod ends;
pub mod idle;
pub mod least;
pub mod others;
pub mod pin;
#[cfg(feature = "libfabric")]
pub mod pingpong;
pub mod placement;
pub mod protocols;
pub mod raw;
#[cfg(feature = "tls")]
pub mod remote;
pub mod row;
pub mod stats;

use crate::arguments::{Mode, Over, PerfArguments};
use crate::output;
use crate::progress;
use anyhow::{Context, Result, anyhow, bail, ensure};
use baseline::{Channel, Patience};
use bracket::{Bracketed, Limits, bracketed, repeats_max};
use bytesize::ByteSize;
use copies::RingShape;
use ends::{Far, Initiator, Plan, Test};
use pin::{Cores, pin};
use placement::{agree, commonest_line_ns};
use row::{Figure, Row};
use std::io::{BufRead, BufReader};
use std::panic::resume_unwind;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use tempfile::TempDir;

/// The processes that a measurement starts: its own program again, with one of these subcommands.
#[derive(Debug, clap::Subcommand)]
pub enum FarEndCommand {
    /// The far end of a measurement of sockets and pipes
    #[command(hide = true)]
    PerfPeer(baseline::PeerArguments),
    /// The far end of `perf idle`, until standard input ends
    #[command(hide = true)]
    PerfIdleEnd { name: String, core: usize, links: u32 },
    /// The far end of a measurement, until standard input ends
    #[command(hide = true)]
    PerfEnd(ends::EndArguments),
    /// One of the two ends of `perf protocols`
    #[command(hide = true)]
    PerfProtocolEnd(protocols::ends::EndArguments),
}

impl FarEndCommand {
    /// Plays that end.
    pub fn run(self) -> Result<()> {
        match self {
            Self::PerfPeer(arguments) => baseline::run_peer(arguments),
            Self::PerfIdleEnd { name, core, links } => idle::run_end(&name, core, links),
            Self::PerfEnd(arguments) => ends::run_end(arguments),
            Self::PerfProtocolEnd(arguments) => protocols::ends::run_end(&arguments),
        }
    }
}

/// `hamlyn perf latency|rate|bandwidth`.
pub fn run(test: Test, arguments: &PerfArguments) -> Result<()> {
    let bar = progress::steps(arguments.runs as u64, "");
    let row = measure(
        test,
        arguments,
        |run| bar.set_position(run),
        |text| bar.suspend(|| eprintln!("hamlyn: {text}")),
    );
    bar.finish_and_clear();
    let row = row?;
    if arguments.json {
        output::line(serde_json::to_string(&row)?)
    } else {
        output::line(row.to_table())?;
        others::sentence(row.others_percent).map_or(Ok(()), output::line)
    }
}

/// Several runs between the limits; the median of those whose raw lines agree with that of most.
/// Calls `step` with the number done, and `say` with messages for the user. An error if two polling
/// ends would share a processor, or an end failed.
pub fn measure(
    test: Test,
    arguments: &PerfArguments,
    mut step: impl FnMut(u64),
    mut say: impl FnMut(String),
) -> Result<Row> {
    let cores = cores_of(arguments)?;
    let plan = plan(test, arguments, arguments.size)?;
    let beside =
        arguments.beside.map(|size| self::plan(test, arguments, Some(size))).transpose()?;
    let far_end = match &arguments.to {
        Some(_) => None,
        None => Some(FarEnd::start(cores, plan, arguments.over)?),
    };
    let name = match (&arguments.to, &far_end) {
        (Some(name), _) => name.as_str(),
        (None, Some(end)) => end.name.as_str(),
        (None, None) => bail!("there is no other end"),
    };
    let secret = far_end.as_ref().and_then(FarEnd::secret);
    let secret = secret.as_deref();
    let far = Far { name, secret, over: arguments.over };
    let config = plan.config()?;
    let shape = ring_shape(&config, plan.size);
    let limits = Limits {
        cores,
        round_trips: plan.count.clamp(50, 10_000),
        message_bytes: plan.size.max(1),
        shape,
        has_copies: arguments.has_copies,
    };
    // The initiator's node lives in a pinned thread; this thread is not pinned, so that its
    // children may run anywhere.
    let runs = thread::scope(|scope| {
        let (ask, asked) = std::sync::mpsc::channel();
        let (answer, answers) = std::sync::mpsc::channel();
        scope.spawn(move || {
            let initiator = pin(cores.near).and_then(|()| Initiator::new(far, plan));
            let mut initiator = match initiator {
                Ok(initiator) => initiator,
                Err(error) => return drop(answer.send(Err(error))),
            };
            while let Ok(plan) = asked.recv() {
                initiator.plan = plan;
                if answer.send(initiator.run()).is_err() {
                    break;
                }
            }
        });
        let run = |plan| -> Result<Figure> {
            // If the thread is gone, it has left the reason.
            let _ = ask.send(plan);
            answers.recv().context("the measuring end failed")?
        };
        let peers = || {
            let beside = beside.map(|plan| run(plan).map(|figure| figure.value())).transpose()?;
            anyhow::Ok(Peers { beside, ..Peers::measure(cores, plan, arguments)? })
        };
        let mut one = || {
            let before = peers()?;
            let figure = run(plan)?;
            Ok((figure, before.mean(peers()?)))
        };
        (0..arguments.runs.max(1))
            .map(|run| {
                let repeats_max = repeats_max(arguments.count.unwrap_or(u64::MAX));
                let result = bracketed(cores, repeats_max, || limits.measure(), &mut one, &mut say);
                step(run as u64 + 1);
                result
            })
            .collect::<Result<Vec<_>>>()
    })?;
    Ok(Row {
        beside_bytes: beside.map(|plan| plan.size as u64),
        ..to_row(test, plan, protocol(arguments.over)?, runs)
    })
}

/// The requested processors, or two that this process may use.
fn cores_of(arguments: &PerfArguments) -> Result<Cores> {
    let Some(cores) = arguments.cores else { return pin::two_cores() };
    if cores.are_one() && arguments.mode == Mode::Polled {
        bail!(
            "both ends on processor {}: there an end that only looks keeps the other from running, \
             so --mode must be adaptive or blocking",
            cores.near
        );
    }
    Ok(cores)
}

fn plan(test: Test, arguments: &PerfArguments, size: Option<ByteSize>) -> Result<Plan> {
    let size = match (size, test) {
        (Some(size), _) => size.as_u64(),
        (None, Test::Latency | Test::Rate) => 16,
        (None, Test::Bandwidth) => 1 << 20,
    };
    let size = usize::try_from(size)?;
    let (mode, links) = (arguments.mode, arguments.links);
    let bytes = size.max(16) as u64;
    // About a second, the slowest placement included.
    let count = arguments.count.unwrap_or(match (test, mode) {
        (Test::Latency, Mode::Blocking) => 5_000,
        (Test::Latency, _) => ((1 << 32) / bytes).clamp(100, 100_000),
        (Test::Rate | Test::Bandwidth, Mode::Blocking) => ((1 << 31) / bytes).clamp(64, 500_000),
        (Test::Rate | Test::Bandwidth, _) => ((1u64 << 31) / bytes).clamp(64, 5_000_000),
    });
    if size > ends::SIZE_MAX {
        bail!("a message of {size} bytes; a measurement allows at most {}", ends::SIZE_MAX);
    }
    Ok(Plan { test, size, count, mode, links, smallest_rings: false })
}

/// The shape of the ring for a message of `size` bytes.
pub fn ring_shape(config: &hamlyn::config::Config, size: usize) -> RingShape {
    let packet = config.packet_bytes as usize;
    let ring_bytes = match (size, config.bulk_ring_bytes as usize) {
        (2048.., bulk @ 1..) => bulk,
        _ => config.ring_bytes as usize,
    };
    RingShape { packet_bytes: packet.min(ring_bytes / 4), ring_bytes }
}

/// The results of other channels beside a run, in the unit of the test.
#[derive(Clone, Copy, Debug)]
struct Peers {
    /// The same channel with messages of another length.
    beside: Option<f64>,
    /// That waits as Hamlyn does.
    unix_socket: Option<f64>,
    /// Of a link to another host.
    bare_tls: Option<f64>,
    /// The same over libfabric.
    fi_pingpong: Option<f64>,
}

impl Peers {
    fn measure(cores: Cores, plan: Plan, arguments: &PerfArguments) -> Result<Self> {
        let none = Self { beside: None, unix_socket: None, bare_tls: None, fi_pingpong: None };
        let sleeps = plan.mode != Mode::Polled && plan.test == Test::Latency;
        Ok(match arguments.over {
            Over::Ring if arguments.socket || sleeps => {
                Self { unix_socket: Some(unix_socket(cores, plan)?), ..none }
            }
            Over::Ring => none,
            #[cfg(feature = "tls")]
            Over::Tls => Self { bare_tls: Some(bare_tls::measure(cores, plan)?), ..none },
            #[cfg(feature = "libfabric")]
            Over::Fabric => {
                let fabric = pingpong::Fabric::from_env()?;
                Self { fi_pingpong: pingpong::measure(&fabric, cores, plan)?, ..none }
            }
        })
    }

    fn mean(self, other: Self) -> Self {
        let mean = |a: Option<f64>, b: Option<f64>| a.zip(b).map(|(a, b)| (a + b) / 2.0);
        Self {
            beside: mean(self.beside, other.beside),
            unix_socket: mean(self.unix_socket, other.unix_socket),
            bare_tls: mean(self.bare_tls, other.bare_tls),
            fi_pingpong: mean(self.fi_pingpong, other.fi_pingpong),
        }
    }
}

/// Measures a Unix socket whose ends poll or sleep as Hamlyn's do.
fn unix_socket(cores: Cores, plan: Plan) -> Result<f64> {
    let (size, count) = (plan.size.max(1), plan.count);
    let patience = match plan.mode {
        Mode::Polled => Patience::Polled,
        Mode::Adaptive | Mode::Blocking => Patience::Blocking,
    };
    let per_s =
        || baseline::messages_per_s(Channel::UnixSocket, patience, cores, size, count.min(100_000));
    Ok(match plan.test {
        Test::Latency => {
            baseline::latency(Channel::UnixSocket, patience, cores, size, count.min(2_000))?.p50
        }
        Test::Rate => per_s()?,
        Test::Bandwidth => per_s()? * size as f64,
    })
}

/// The interface, and the kind of link.
fn protocol(over: Over) -> Result<String> {
    Ok(match over {
        Over::Ring => "raw".to_owned(),
        #[cfg(feature = "tls")]
        Over::Tls => "raw over TLS".to_owned(),
        #[cfg(feature = "libfabric")]
        Over::Fabric => {
            let pingpong::Fabric { provider, version: (major, minor), .. } =
                pingpong::Fabric::from_env()?;
            format!("raw over libfabric {major}.{minor}, {provider}")
        }
    })
}

fn to_row(test: Test, plan: Plan, protocol: String, runs: Vec<Bracketed<(Figure, Peers)>>) -> Row {
    let line = commonest_line(&runs);
    let (row, (figure, peers)) = row_of(runs, line, |of| of.0);
    let Peers { beside, unix_socket, bare_tls, fi_pingpong } = peers;
    let of = |peer: Option<f64>| peer.map(|peer| figure.value() / peer);
    let (one_way_ns, per_s) = match figure {
        Figure::Latency { .. } => (unix_socket, None),
        _ => (None, unix_socket),
    };
    let mean = match figure {
        Figure::Latency { one_way_ns } => one_way_ns.mean.unwrap_or(one_way_ns.p50),
        figure => figure.value(),
    };
    Row {
        test: test.to_string(),
        protocol,
        size: plan.size as u64,
        mode: plan.mode.to_string(),
        links: plan.links,
        of_beside: of(beside),
        beside,
        unix_socket_one_way_ns: one_way_ns,
        unix_socket_per_s: per_s,
        of_unix_socket: of(unix_socket),
        of_bare_tls: of(bare_tls),
        bare_tls,
        of_fi_pingpong: fi_pingpong.map(|peer| mean / peer),
        fi_pingpong,
        ..row
    }
}

/// The median of the runs beside this raw line, as a row without a name; and its values.
fn row_of<T: Copy>(
    runs: Vec<Bracketed<T>>,
    line_ns: Option<f64>,
    figure: impl Fn(&T) -> Figure,
) -> (Row, T) {
    let repeats = runs.iter().map(|run| run.repeats).sum();
    let mut kept = of_line(runs, line_ns);
    let value = |run: &Bracketed<T>| figure(&run.figure).value();
    kept.sort_by(|a, b| value(a).total_cmp(&value(b)));
    let median = kept[kept.len() / 2];
    let figure = figure(&median.figure);
    let row = Row {
        test: String::new(),
        protocol: String::new(),
        size: 0,
        mode: String::new(),
        links: 0,
        figure,
        relation: None,
        baselines: median.baselines,
        of_least: figure.of_least(&median.baselines),
        beside_bytes: None,
        beside: None,
        of_beside: None,
        unix_socket_one_way_ns: None,
        unix_socket_per_s: None,
        of_unix_socket: None,
        bare_tls: None,
        of_bare_tls: None,
        fi_pingpong: None,
        of_fi_pingpong: None,
        runs: kept.len() as u32,
        spread: [value(&kept[0]), value(&kept[kept.len() - 1])],
        repeats,
        steady: median.is_steady,
        others_percent: others::percent(kept.iter().filter_map(|run| run.others)),
    };
    (row, median.figure)
}

/// The raw line, in nanoseconds, with which those of most runs agree, among the runs during which
/// it stayed the same; `None` if it never did.
fn commonest_line<'a, T: 'a>(runs: impl IntoIterator<Item = &'a Bracketed<T>>) -> Option<f64> {
    let steady = runs.into_iter().filter(|run| run.is_steady);
    let lines: Vec<f64> = steady.map(|run| run.baselines.raw_line_one_way_ns).collect();
    commonest_line_ns(&lines)
}

/// The runs beside this raw line, in nanoseconds; all, without one.
fn of_line<T>(runs: Vec<Bracketed<T>>, line_ns: Option<f64>) -> Vec<Bracketed<T>> {
    let is_kept = |run: &Bracketed<T>| {
        let agrees = |line_ns| agree(line_ns, run.baselines.raw_line_one_way_ns);
        run.is_steady && line_ns.is_some_and(agrees)
    };
    let any_is_kept = runs.iter().any(is_kept);
    runs.into_iter().filter(|run| !any_is_kept || is_kept(run)).collect()
}

/// The far end on this machine: a process of its own, pinned to the other core.
struct FarEnd {
    name: String,
    /// The directory of its secret, if other hosts connect to it.
    secret: Option<TempDir>,
    child: Child,
    /// The far end stops when this is closed.
    input: Option<ChildStdin>,
}

impl FarEnd {
    fn start(cores: Cores, plan: Plan, over: Over) -> Result<Self> {
        Self::start_as("perf", cores, plan, over)
    }

    /// Each of several at a time has a name of its own.
    fn start_as(name: &str, cores: Cores, plan: Plan, over: Over) -> Result<Self> {
        let name = format!("{name}-{}", std::process::id());
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["perf-end", "--name", &name, "--core", &cores.far.to_string()]).args([
            "--mode",
            &plan.mode.to_string(),
            "--links",
            &plan.links.to_string(),
        ]);
        if plan.smallest_rings {
            command.arg("--smallest-rings");
        }
        let secret = match over {
            Over::Ring => None,
            #[cfg(feature = "tls")]
            _ => {
                let directory = tempfile::tempdir()?;
                let path = directory.path().join("secret");
                crate::secret::make_secret(&path, false)?;
                command.env("HAMLYN_SECRET", path).env("HAMLYN_LISTEN", "127.0.0.1:0");
                if over.is_fabric() {
                    command.env("HAMLYN_FABRIC", "trusted");
                }
                Some(directory)
            }
        };
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start the other end")?;
        let mut line = String::new();
        let output = child.stdout.take().context("no output")?;
        let ready = BufReader::new(output).read_line(&mut line);
        let name = line.trim().to_owned();
        let end = Self { name, secret, input: child.stdin.take(), child };
        ready.context("the other end failed")?;
        ensure!(!end.name.is_empty(), "the other end failed");
        Ok(end)
    }

    fn secret(&self) -> Option<PathBuf> {
        self.secret.as_ref().map(|directory| directory.path().join("secret"))
    }
}

impl Drop for FarEnd {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ = self.child.wait();
    }
}

/// Runs `near` and `far` in two threads on the two cores. Both are pinned before either begins, and
/// neither begins if one cannot be pinned, since the other would wait for ever.
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
pub fn median_of(runs: u32, mut run: impl FnMut() -> Result<f64>) -> Result<f64> {
    let figures: Result<Vec<f64>> = (0..runs.max(1)).map(|_| run()).collect();
    Ok(stats::median(figures?).unwrap_or(f64::NAN))
}
