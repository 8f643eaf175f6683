//! `hamlyn tour`: what Hamlyn does, shown on a real file, under attack, and against the clock.
//!
//! ```text
//!   this process   orders, counts before and after, tables, report
//!   receiver       takes the file; its counters and the file's bytes decide what was refused
//!   sender         sends the file, then small messages all through the attack
//!   stranger       makes each attempt, for real
//!   host, peer     speak each protocol of the upper layer: see `protocols.rs`; and again while
//!                  the stranger attacks those: see `siege.rs`, `guarded.rs` and `rogue.rs`
//!   near, far      two hosts, and `wire`, the attacker between them: see `hosts`
//! ```
//! Each is a process, and a user, of its own where this one has the right to make them so. An
//! attempt counts as refused only if the receiver's counter for it went up and the file's bytes
//! are what they were.

pub mod actor;
mod attack;
mod by_hand;
mod guarded;
mod host;
mod hostile;
#[cfg(feature = "tls")]
mod hosts;
mod peer;
mod protocols;
mod receiver;
mod rogue;
mod sender;
mod siege;
mod stranger;

use crate::arguments::{Mode, Over, PerfArguments, TourArguments};
use crate::output;
use crate::perf::compare::{self, Compared, Effort};
use crate::perf::ends::Test;
use crate::perf::row::{self, Figure, Row};
use crate::perf::{self, pin};
use crate::progress;
use crate::report::{self, Chart, Finding, Section};
use actor::{Actor, Orders, Role, Stage};
use anyhow::{Context, Result, ensure};
use attack::Attack;
use bytesize::ByteSize;
use comfy_table::{ContentArrangement, Table, TableComponent};
use hamlyn::node::Node;
use protocols::Protocol;
use sender::{Beats, Sent};
use serde::{Deserialize, Serialize};
use siege::Siege;
use std::fs::File;
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The hidden subcommand: plays one role.
pub fn play(role: Role) -> Result<()> {
    let orders = Orders::new()?;
    match role {
        Role::Receiver => receiver::run(orders),
        Role::Sender => sender::run(orders),
        Role::Stranger => stranger::run(orders),
        Role::Visitor => visitor(orders),
        Role::Sleeper => sleeper(orders),
        Role::Host => host::run(orders),
        Role::Peer => peer::run(orders),
        Role::GuardedHost => guarded::host(orders),
        Role::GuardedPeer => guarded::peer(orders),
        #[cfg(feature = "tls")]
        Role::Near => hosts::near(orders),
        #[cfg(feature = "tls")]
        Role::Far => hosts::far(orders),
        #[cfg(feature = "tls")]
        Role::Wire => hosts::wire(orders),
        #[cfg(not(feature = "tls"))]
        Role::Near | Role::Far | Role::Wire => {
            anyhow::bail!("this command was built without links to other hosts (feature tls)")
        }
    }
}

/// `hamlyn tour`.
pub fn run(arguments: &TourArguments) -> Result<()> {
    let began = Instant::now();
    let (mut sections, mut findings) = (Vec::new(), Vec::new());
    let mut facts = report::machine();
    let verdict = if arguments.hosts {
        two_hosts(&mut sections, &mut findings)?
    } else {
        let first = transfer_and_attack(arguments, &mut sections, &mut findings)?;
        let second = two_hosts(&mut sections, &mut findings)?;
        let raw_line = measure(arguments, &mut sections, &mut findings)?;
        facts.push(("raw cache line".into(), raw_line));
        first.and(second)
    };
    facts.push(("took".into(), format!("{:.0} s", began.elapsed().as_secs_f32())));
    report::write(&arguments.report, "Hamlyn: a tour", &findings, &facts, &sections)?;
    output::line(format_args!("\nThe report, with charts: {}", arguments.report.display()))?;
    verdict
}

fn heading(text: &str) -> Result<()> {
    output::line(format_args!("\n{text}\n{}", "=".repeat(text.chars().count())))
}

// ---- the file, and the attack on its receiver

/// The inner result: whether everything was refused.
fn transfer_and_attack(
    arguments: &TourArguments,
    sections: &mut Vec<Section>,
    findings: &mut Vec<Finding>,
) -> Result<Result<()>> {
    let stage = Stage::new()?;
    let path = match &arguments.file {
        Some(path) => path.clone(),
        None => std::env::current_exe()?,
    };
    let bytes = std::fs::metadata(&path).map(|metadata| metadata.len());
    let bytes = bytes.with_context(|| format!("cannot read {}", path.display()))?;
    ensure!(
        bytes <= receiver::FILE_BYTES_MAX,
        "{} has {bytes} bytes; the tour sends a file of at most {}",
        path.display(),
        receiver::FILE_BYTES_MAX
    );
    let file = File::open(&path).with_context(|| format!("cannot read {}", path.display()))?;

    heading("A file, from one process to another")?;
    let mut receiver = attack::start_receiver(&stage)?;
    // It has answered, and so it serves.
    let _: receiver::Report = receiver.ask(&receiver::Order::Report)?;
    let mut sender = Actor::start(&stage, Role::Sender, Stdio::from(file), &[])?;
    let service = stage.service(Role::Receiver, receiver::NAME);
    let sent: Sent = sender.ask(&sender::Order::Send { service })?;
    let report: receiver::Report = receiver.ask(&receiver::Order::Report)?;
    let digest = report.digest.context("the file has not arrived")?;
    ensure!(digest == sent.digest, "the digest of what arrived is not that of {}", path.display());
    findings.push(Finding {
        is_good: true,
        text: format!(
            "A file of {} went from one process to another, and is identical there.",
            ByteSize(sent.bytes)
        ),
    });
    let lines = file_lines(&stage, &path.display().to_string(), &sent);
    print_pairs(&lines)?;
    sections.push(Section {
        title: "A file, from one process to another".into(),
        text: vec![
            "The receiver gave the right to send each message once, to its own place, and its \
             own library checked and deposited every packet."
                .into(),
        ],
        header: vec!["what".into(), "value".into()],
        rows: lines.iter().map(|(name, value)| vec![name.clone(), value.clone()]).collect(),
        ..Section::default()
    });
    show_protocols(&stage, sections)?;

    heading("A stranger tries to do harm")?;
    sender.tell(&sender::Order::Beat)?;
    let bar = progress::steps(Attack::steps() + Siege::steps(), "");
    let mut attack = Attack { stage: &stage, receiver: &mut receiver, digest: digest.clone() };
    let step = |what: &str| {
        bar.inc(1);
        bar.set_message(what.to_owned());
    };
    let rows = attack.run(step).and_then(|mut rows| {
        rows.extend(Siege::new(&stage)?.run(step)?);
        Ok(rows)
    });
    bar.finish_and_clear();
    let rows = rows?;
    sender.tell(&sender::Order::Stop)?;
    let beats: Beats = sender.answer().context("the honest sender was disturbed")?;
    let after: receiver::Report = receiver.ask(&receiver::Order::Report)?;

    output::line(attempts(&rows))?;
    let honest = [
        ("the receiver's digest of the file", after.digest.clone().unwrap_or_default()),
        ("is that of the file", if after.digest == Some(digest) { "yes" } else { "NO" }.into()),
        (
            "the honest sender meanwhile",
            format!("sent {} messages, and had {} answers", beats.sent, beats.answered),
        ),
        ("its slowest round trip", row::ns(beats.worst_ns as f64)),
    ]
    .map(|(name, value)| (name.to_owned(), value));
    print_pairs(&honest)?;
    ensure!(beats.sent == beats.answered, "the honest sender lost messages");
    findings.extend(of_attempts(&rows));
    sections.push(Section {
        title: "A stranger tries to do harm".into(),
        text: honest.iter().map(|(name, value)| format!("{name}: {value}")).collect(),
        header: ATTEMPTS_HEADER.map(String::from).into(),
        rows: rows.iter().map(|row| cells(row).into()).collect(),
        ..Section::default()
    });
    Ok(attack::all_refused(&rows))
}

// ---- two hosts, and an attacker between them

/// The inner result: whether everything was refused.
#[cfg(feature = "tls")]
fn two_hosts(sections: &mut Vec<Section>, findings: &mut Vec<Finding>) -> Result<Result<()>> {
    heading(hosts::TITLE)?;
    let bar = progress::steps(hosts::STEPS, "");
    let act = hosts::play(|what| {
        bar.inc(1);
        bar.set_message(what.to_owned());
    });
    bar.finish_and_clear();
    let hosts::Act { lines, rows } = act?;
    print_pairs(&lines)?;
    let table = attempts(&rows);
    output::line(table)?;
    let refused = rows.iter().filter(|row| row.outcome == attack::Outcome::Refused).count();
    findings.push(Finding {
        is_good: refused == rows.len(),
        text: format!(
            "Between two hosts, {refused} of {} attempts of an attacker on the wire were refused.",
            rows.len()
        ),
    });
    sections.push(Section {
        title: hosts::TITLE.into(),
        text: lines.iter().map(|(name, value)| format!("{name}: {value}")).collect(),
        header: ATTEMPTS_HEADER.map(String::from).into(),
        rows: rows.iter().map(|row| cells(row).into()).collect(),
        ..Section::default()
    });
    Ok(attack::all_refused(&rows))
}

#[cfg(not(feature = "tls"))]
fn two_hosts(_: &mut Vec<Section>, _: &mut Vec<Finding>) -> Result<Result<()>> {
    heading("Two hosts")?;
    output::line("  skipped: this command was built without links to other hosts (feature tls)")?;
    Ok(Ok(()))
}

const ATTEMPTS_HEADER: [&str; 4] = ["attempt", "how it was refused", "counted by", "result"];

fn cells(row: &attack::Row) -> [String; 4] {
    let outcome = attack::outcome(row.outcome).to_owned();
    [row.what.clone(), row.how.clone(), row.counter.clone(), outcome]
}

fn attempts(rows: &[attack::Row]) -> Table {
    let mut table = wrapped(row::table(ATTEMPTS_HEADER));
    for row in rows {
        table.add_row(cells(row));
    }
    table
}

/// What became of the stranger's attempts: those that were refused, then each that was not.
fn of_attempts(rows: &[attack::Row]) -> Vec<Finding> {
    let of = |outcome| rows.iter().filter(move |row| row.outcome == outcome);
    let refused = of(attack::Outcome::Refused).count();
    // What is possible by design is told apart.
    let all = refused + of(attack::Outcome::NotRefused).count();
    let mut findings = vec![Finding {
        is_good: true,
        text: format!("{refused} of {all} attempts to do harm were refused."),
    }];
    findings.extend(of(attack::Outcome::Open).map(|row| Finding {
        is_good: false,
        text: format!(
            "Possible, and not meant to be refused: {}. {}.",
            row.what,
            row.how.trim_start_matches("possible. ")
        ),
    }));
    findings.extend(of(attack::Outcome::NotRefused).map(|row| Finding {
        is_good: false,
        text: format!("NOT REFUSED: {}. {}.", row.what, row.how),
    }));
    findings
}

fn show_protocols(stage: &Stage, sections: &mut Vec<Section>) -> Result<()> {
    heading(protocols::TITLE)?;
    let bar = progress::steps(Protocol::ALL.len() as u64, "");
    let rows = protocols::show(stage, |protocol| {
        bar.inc(1);
        bar.set_message(protocol.to_string());
    });
    bar.finish_and_clear();
    let rows = rows?;
    let mut table = wrapped(row::table(protocols::HEADER));
    for row in &rows {
        table.add_row(row);
    }
    output::line(table)?;
    sections.push(protocols::section(&rows));
    Ok(())
}

fn file_lines(stage: &Stage, path: &str, sent: &Sent) -> Vec<(String, String)> {
    let users = if stage.has_users {
        let uid = |role| stage.uid(role);
        let (receiver, sender, stranger) =
            (uid(Role::Receiver), uid(Role::Sender), uid(Role::Stranger));
        format!("receiver {receiver}, sender {sender}, stranger {stranger}")
    } else {
        "all the same: making others needs root".to_owned()
    };
    [
        ("file", path.to_owned()),
        ("users", users),
        ("bytes", format!("{} ({})", sent.bytes, ByteSize(sent.bytes))),
        ("messages, packets", format!("{}, {}", sent.messages, sent.packets)),
        ("bandwidth", row::per_second(sent.bytes as f64 / sent.seconds, "B")),
        ("digest (BLAKE3)", format!("{}, the same at both ends", sent.digest)),
        ("path", sent.path.clone()),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into()
}

fn print_pairs(pairs: &[(String, String)]) -> Result<()> {
    let width = pairs.iter().map(|pair| pair.0.chars().count()).max().unwrap_or(0);
    for (name, value) in pairs {
        output::line(format_args!("  {name:width$}  {value}"))?;
    }
    Ok(())
}

/// To the terminal's width, with a line between rows, because cells are wrapped.
fn wrapped(mut table: Table) -> Table {
    table.set_style(TableComponent::HorizontalLines, '─');
    table.set_style(TableComponent::MiddleIntersections, '─');
    table.set_content_arrangement(ContentArrangement::Dynamic);
    if table.width().is_none() {
        table.set_width(120);
    }
    table
}

// ---- against the clock

/// Adds the tables; returns what the raw line tells of the cores.
fn measure(
    arguments: &TourArguments,
    sections: &mut Vec<Section>,
    findings: &mut Vec<Finding>,
) -> Result<String> {
    heading("Against what programs use today")?;
    let cores = match pin::two_cores() {
        Ok(cores) => cores,
        Err(error) => {
            output::line(format_args!("  skipped: {error:#}"))?;
            return Ok("none: there is one processor".into());
        }
    };
    let effort = if arguments.quick { Effort::QUICK } else { Effort::FULL };
    if arguments.quick {
        findings.push(Finding {
            is_good: false,
            text: "The times and rates are of a quick run (--quick), of a moment each: they show that \
                   all works, and are no figures."
                .into(),
        });
    }
    let tests = [
        (Test::Latency, Mode::Polled),
        (Test::Latency, Mode::Adaptive),
        (Test::Latency, Mode::Blocking),
        (Test::Rate, Mode::Polled),
        (Test::Bandwidth, Mode::Polled),
    ];
    let bar = progress::steps(tests.len() as u64 + compare::CHANNEL_STEPS, "");
    let mut step = |what: String| {
        bar.inc(1);
        bar.set_message(what);
    };
    let mut rows: Vec<Row> = Vec::new();
    for (test, mode) in tests {
        step(format!("Hamlyn, {test}, {mode}"));
        let perf = PerfArguments {
            size: None,
            count: arguments.quick.then_some(500),
            mode,
            links: 0,
            cores: None,
            runs: if arguments.quick { 1 } else { 3 },
            json: false,
            to: None,
            over: Over::Ring,
        };
        rows.push(perf::measure(
            test,
            &perf,
            |_| (),
            |text| bar.suspend(|| eprintln!("  {text}")),
        )?);
    }
    let channels = compare::channels(cores, 16, effort, &mut step);
    bar.finish_and_clear();
    let [polled, adaptive, blocking, rate, bandwidth] = &rows[..] else {
        unreachable!("one row for each test")
    };
    let mut lines = vec![Compared {
        name: "raw cache line (the physical limit)".into(),
        waits: "polled",
        one_way_ns: polled.baselines.raw_line_one_way_ns,
        messages_per_s: None,
        raw_line_one_way_ns: polled.baselines.raw_line_one_way_ns,
    }];
    for (row, waits, rate) in
        [(polled, "polled", Some(rate)), (adaptive, "adaptive", None), (blocking, "blocking", None)]
    {
        lines.push(Compared {
            name: "Hamlyn".into(),
            waits,
            one_way_ns: row.figure.value(),
            messages_per_s: rate.map(|row| row.figure.value()),
            raw_line_one_way_ns: row.baselines.raw_line_one_way_ns,
        });
    }
    lines.extend(channels?);
    output::line(format_args!(
        "Messages of 16 bytes, between two cores with a raw line of {} ({}):\n",
        row::ns(polled.baselines.raw_line_one_way_ns),
        polled.baselines.placement
    ))?;
    output::line(compare::table(&lines))?;
    output::line(bandwidth.to_table())?;
    add_sections(sections, &lines, bandwidth);
    findings.extend(of_latencies(&lines));
    let baselines = polled.baselines;
    Ok(format!("{:.0} ns one way ({})", baselines.raw_line_one_way_ns, baselines.placement))
}

/// Against the fastest of what programs use today, waiting alike.
fn of_latencies(lines: &[Compared]) -> Option<Finding> {
    let polled = |line: &&Compared| line.waits == "polled";
    let own = lines.iter().filter(polled).find(|line| line.name == "Hamlyn")?;
    let socket = lines.iter().filter(polled).find(|line| line.name.contains("Unix"))?;
    let times = socket.one_way_ns / own.one_way_ns;
    let (ours, theirs) = (row::ns(own.one_way_ns), row::ns(socket.one_way_ns));
    Some(Finding {
        is_good: times > 1.0,
        text: format!(
            "A checked message of 16 bytes takes {ours} one way, a Unix stream socket {theirs}, \
             {times:.1} times as long; both ends poll."
        ),
    })
}

fn add_sections(sections: &mut Vec<Section>, lines: &[Compared], bandwidth: &Row) {
    let name = |line: &Compared| format!("{}, {}", line.name, line.waits);
    let text = "Messages of 16 bytes between two processes on two cores, each end pinned alike. \
                Hamlyn's have their key and bounds checked, are deposited and announced. One way \
                is half of a round trip; the median.";
    sections.push(Section {
        title: "Latency".into(),
        text: vec![text.into()],
        chart: Some(Chart {
            axis: "one way".into(),
            bars: lines.iter().map(|line| (name(line), line.one_way_ns)).collect(),
            text: row::ns,
        }),
        header: ["what", "waits", "one way", "raw line then"].map(String::from).into(),
        rows: lines
            .iter()
            .map(|line| {
                let (one_way, raw) = (row::ns(line.one_way_ns), row::ns(line.raw_line_one_way_ns));
                vec![line.name.clone(), line.waits.into(), one_way, raw]
            })
            .collect(),
    });
    let rates: Vec<(&Compared, f64)> =
        lines.iter().filter_map(|line| Some((line, line.messages_per_s?))).collect();
    sections.push(Section {
        title: "Rate".into(),
        text: vec!["The same messages one after another, one call each.".into()],
        chart: Some(Chart {
            axis: "messages a second".into(),
            bars: rates.iter().map(|(line, rate)| (name(line), *rate)).collect(),
            text: |rate| row::per_second(rate, ""),
        }),
        header: ["what", "waits", "messages"].map(String::from).into(),
        rows: rates
            .iter()
            .map(|(line, rate)| {
                vec![line.name.clone(), line.waits.into(), row::per_second(*rate, "")]
            })
            .collect(),
    });
    let Figure::Bandwidth { bytes_per_s } = bandwidth.figure else { return };
    let bars = [
        ("memcpy on one core", bandwidth.baselines.memcpy_bytes_per_s),
        ("bare two-copy ring", bandwidth.baselines.copy_ring_bytes_per_s),
        ("Hamlyn", bytes_per_s),
    ];
    sections.push(Section {
        title: "Bandwidth".into(),
        text: vec![format!(
            "Messages of {}, copied into the ring on one core and out of it on the other. The bare \
             ring does the same without names, keys or checks.",
            ByteSize(bandwidth.size)
        )],
        chart: Some(Chart {
            axis: "bytes a second".into(),
            bars: bars.map(|(name, value)| (name.to_owned(), value)).into(),
            text: |rate| row::per_second(rate, "B"),
        }),
        header: ["what", "bandwidth"].map(String::from).into(),
        rows: bars.map(|(name, value)| vec![name.to_owned(), row::per_second(value, "B")]).into(),
    });
}

// ---- the smaller roles

/// What an honest process saw that connected where it should not have.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Visit {
    pub error: Option<String>,
    /// Of its own counters those that went up.
    pub counters: Vec<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct VisitorOrder {
    pub service: String,
    pub greeting: Vec<u8>,
}

/// Connects to each service that it is told.
fn visitor(mut orders: Orders) -> Result<()> {
    while let Some(VisitorOrder { service, greeting }) = orders.next()? {
        let visit = || {
            let mut node = Node::new()?;
            let before = node.counters();
            let result = node.connect(&service, &greeting, Some(Duration::from_secs(5)));
            let counters = node
                .counters()
                .into_iter()
                .zip(before)
                .filter(|(now, before)| now.1 > before.1)
                .map(|(now, before)| format!("{} +{}", now.0, now.1 - before.1))
                .collect();
            Ok(Visit { error: result.err().map(|error| error.to_string()), counters })
        };
        orders.answer(visit())?;
    }
    Ok(())
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum SleeperOrder {
    /// Of a word of its memory.
    Address,
    /// Whether somebody has changed it; then it is changed back.
    IsChanged,
    /// Denies ptrace, as HAMLYN_UNDUMPABLE does.
    Protect,
}

/// Its memory is what a process of the same user writes to. An atomic, because that is what it is.
static WORD: AtomicU64 = AtomicU64::new(0);

fn sleeper(mut orders: Orders) -> Result<()> {
    while let Some(order) = orders.next()? {
        match order {
            SleeperOrder::Address => orders.answer(Ok(&raw const WORD as u64))?,
            SleeperOrder::IsChanged => orders.answer(Ok(WORD.swap(0, Ordering::SeqCst) != 0))?,
            SleeperOrder::Protect => {
                use rustix::process::{DumpableBehavior, set_dumpable_behavior};
                let result = set_dumpable_behavior(DumpableBehavior::NotDumpable);
                orders.answer(result.map(|()| true).map_err(Into::into))?;
            }
        }
    }
    Ok(())
}
