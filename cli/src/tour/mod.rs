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
mod terminal;

use crate::arguments::{Mode, Over, PerfArguments, TourArguments};
use crate::perf;
use crate::perf::baseline::{Channel, Patience};
use crate::perf::compare::{self, Compared, Effort, Measured};
use crate::perf::ends::Test;
use crate::perf::pin::{self, Cores};
use crate::perf::placement::{Placement, agree, commonest_line_ns};
use crate::perf::row::{self, Row};
use crate::progress;
use crate::report::{self, Chart, Finding, Section};
use actor::{Actor, Orders, Role, Stage};
use anyhow::{Context, Result, ensure};
use attack::Attack;
use bytesize::ByteSize;
use hamlyn::node::Node;
use indicatif::ProgressBar;
use protocols::Protocol;
use sender::{Beats, Sent};
use serde::{Deserialize, Serialize};
use siege::Siege;
use std::fs::File;
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use terminal::{heading, say};

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
    report::check_place(&arguments.report)?;
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
    terminal::findings(&findings)?;
    say(format_args!("\nThe report, with charts: {}", arguments.report.display()))?;
    verdict
}

/// Tells what stands below a heading, and puts it into the report.
fn show(section: Section, sections: &mut Vec<Section>) -> Result<()> {
    terminal::section(&section)?;
    sections.push(section);
    Ok(())
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

    let title = "A file, from one process to another";
    heading(title)?;
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
    let text = "The receiver gave the right to send each message once, to its own place, and its own \
                library checked and deposited every packet.";
    let section = Section {
        title: title.into(),
        text: vec![text.into()],
        facts: file_facts(&stage, &path.display().to_string(), &sent),
        ..Section::default()
    };
    show(section, sections)?;
    show_protocols(&stage, sections)?;

    let title = "A stranger tries to do harm";
    heading(title)?;
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

    ensure!(beats.sent == beats.answered, "the honest sender lost messages");
    let file = match after.digest {
        Some(after) if after == digest => "the file at the receiver is still what was sent",
        _ => "THE FILE AT THE RECEIVER IS NOT WHAT WAS SENT",
    };
    let meanwhile = format!(
        "All the while an honest process sent the receiver small messages, {} in all. Each was \
         answered, the slowest after {}; and {file}.",
        beats.sent,
        row::ns(beats.worst_ns as f64)
    );
    findings.extend(of_attempts(&rows));
    show(attempts(title, vec![meanwhile], Vec::new(), &rows), sections)?;
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
    let refused = rows.iter().filter(|row| row.outcome == attack::Outcome::Refused).count();
    findings.push(Finding {
        is_good: refused == rows.len(),
        text: format!(
            "Between two hosts, {refused} of {} attempts of an attacker on the wire were refused.",
            rows.len()
        ),
    });
    show(attempts(hosts::TITLE, Vec::new(), lines, &rows), sections)?;
    Ok(attack::all_refused(&rows))
}

#[cfg(not(feature = "tls"))]
fn two_hosts(_: &mut Vec<Section>, _: &mut Vec<Finding>) -> Result<Result<()>> {
    heading("Two hosts")?;
    say("  skipped: this command was built without links to other hosts (feature tls)")?;
    Ok(Ok(()))
}

const ATTEMPTS_HEADER: [&str; 4] = ["attempt", "how it was refused", "counted by", "result"];

fn attempts(
    title: &str,
    text: Vec<String>,
    facts: Vec<(String, String)>,
    rows: &[attack::Row],
) -> Section {
    let cells = |row: &attack::Row| {
        let outcome = attack::outcome(row.outcome).to_owned();
        vec![row.what.clone(), row.how.clone(), row.counter.clone(), outcome]
    };
    Section {
        title: title.into(),
        text,
        facts,
        header: ATTEMPTS_HEADER.map(String::from).into(),
        rows: rows.iter().map(cells).collect(),
        chart: None,
    }
}

/// What became of the stranger's attempts: those that were refused, then each that was not.
fn of_attempts(rows: &[attack::Row]) -> Vec<Finding> {
    let of = |outcome| rows.iter().filter(move |row| row.outcome == outcome);
    let refused = of(attack::Outcome::Refused).count();
    // What is possible by design is told apart.
    let all = refused + of(attack::Outcome::NotRefused).count();
    let mut findings = vec![Finding {
        is_good: refused == all,
        text: format!("{refused} of {all} attempts to do harm were refused."),
    }];
    findings.extend(of(attack::Outcome::Open).map(|row| Finding {
        is_good: false,
        text: format!(
            "One more is possible, and not meant to be refused: {}. {}.",
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
    show(protocols::section(&rows), sections)
}

fn file_facts(stage: &Stage, path: &str, sent: &Sent) -> Vec<(String, String)> {
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

// ---- against the clock

/// So often are two figures measured again that do not compare.
const AGAIN_MAX: u32 = 2;
/// The pairs that a finding compares: how Hamlyn waits, and how a Unix socket does.
const PAIRS: [(Mode, Patience, &str); 2] =
    [(Mode::Polled, Patience::Polled, "polled"), (Mode::Blocking, Patience::Blocking, "blocking")];
const OWN: &str = "Hamlyn";

/// Adds the tables; returns what the raw line tells of the cores.
fn measure(
    arguments: &TourArguments,
    sections: &mut Vec<Section>,
    findings: &mut Vec<Finding>,
) -> Result<String> {
    heading("Against the clock")?;
    let cores = match pin::two_cores() {
        Ok(cores) => cores,
        Err(error) => {
            say(format_args!("  skipped: {error:#}"))?;
            return Ok("none: there is one processor".into());
        }
    };
    let bar = progress::steps(5 + compare::CHANNEL_STEPS, "");
    let figures = figures(arguments.quick, cores, &bar);
    bar.finish_and_clear();
    let (lines, bandwidth) = figures?;
    for section in [latencies(&lines), rates(&lines), bandwidths(&bandwidth)] {
        heading(&section.title)?;
        show(section, sections)?;
    }
    if arguments.quick {
        findings.push(Finding {
            is_good: false,
            text: "The times and rates are of a quick run (--quick), of a moment each: they show that \
                   all works, and are no figures."
                .into(),
        });
    }
    findings.extend(PAIRS.iter().filter_map(|pair| of_pair(&lines, pair.2)));
    let measured: Vec<Measured> = lines.iter().map(|line| line.one_way).collect();
    let word = match commonest(&measured) {
        Some(ns) if measured.iter().all(|one| agree(one.raw_line_ns, ns)) => {
            format!(" ({})", Placement::of_raw_line_ns(ns))
        }
        _ => String::new(),
    };
    Ok(format!("{} one way{word}", range(&measured)))
}

fn figures(quick: bool, cores: Cores, bar: &ProgressBar) -> Result<(Vec<Compared>, Row)> {
    let effort = if quick { Effort::QUICK } else { Effort::FULL };
    let own = |test: Test, mode: Mode| {
        bar.inc(1);
        bar.set_message(format!("{OWN}, {test}, {mode}"));
        let perf = PerfArguments {
            size: None,
            count: quick.then_some(500),
            mode,
            links: 0,
            cores: None,
            runs: if quick { 1 } else { 3 },
            json: false,
            to: None,
            over: Over::Ring,
        };
        perf::measure(test, &perf, |_| (), |text| bar.suspend(|| eprintln!("  {text}")))
    };
    let mut lines = Vec::new();
    for (mode, waits) in
        [(Mode::Polled, "polled"), (Mode::Adaptive, "adaptive"), (Mode::Blocking, "blocking")]
    {
        let one_way = Measured::of(&own(Test::Latency, mode)?);
        lines.push(Compared { name: OWN.into(), waits, one_way, rate: None });
    }
    lines[0].rate = Some(Measured::of(&own(Test::Rate, Mode::Polled)?));
    let bandwidth = own(Test::Bandwidth, Mode::Polled)?;
    lines.extend(compare::channels(cores, 16, effort, |what| {
        bar.inc(1);
        bar.set_message(what);
    })?);
    for (mode, patience, waits) in PAIRS {
        for _ in 0..AGAIN_MAX {
            let Some((ours, theirs)) = pair(&mut lines, waits) else { break };
            if ours.one_way.compares_with(&theirs.one_way) {
                break;
            }
            bar.inc_length(2);
            ours.one_way = Measured::of(&own(Test::Latency, mode)?);
            bar.inc(1);
            bar.set_message(format!("{}, {waits}", theirs.name));
            *theirs = compare::channel(Channel::UnixSocket, patience, cores, 16, effort)?;
        }
    }
    let raw_line_ns = lines[0].one_way.raw_line_ns;
    let raw = Measured { value: raw_line_ns, ..lines[0].one_way };
    let name = "raw cache line (the physical limit)".into();
    lines.insert(0, Compared { name, waits: "polled", one_way: raw, rate: None });
    Ok((lines, bandwidth))
}

/// Hamlyn and a Unix socket that wait alike.
fn pair<'a>(
    lines: &'a mut [Compared],
    waits: &str,
) -> Option<(&'a mut Compared, &'a mut Compared)> {
    let mut alike = lines.iter_mut().filter(|line| line.waits == waits);
    let ours = alike.find(|line| line.name == OWN)?;
    let socket = Channel::UnixSocket.to_string();
    Some((ours, alike.find(|line| line.name == socket)?))
}

/// Against a Unix socket, both waiting alike; no comparison where their raw lines disagree.
fn of_pair(lines: &[Compared], waits: &str) -> Option<Finding> {
    let mut lines = lines.to_vec();
    let (ours, theirs) = pair(&mut lines, waits)?;
    let (ours, theirs) = (ours.one_way, theirs.one_way);
    let (own, socket) = (row::ns(ours.value), row::ns(theirs.value));
    let when = match waits {
        "polled" => "while both ends look for messages without a pause",
        _ => "where the receiver sleeps and has to be woken",
    };
    if !ours.compares_with(&theirs) {
        return Some(Finding {
            is_good: false,
            text: format!(
                "There is no comparison with a Unix stream socket {when}: {OWN} took {own} one way, \
                 and a bare cache line {} from core to core then; the socket took {socket}, and the \
                 line {}. The host moved the cores between or during the two measurements: run it \
                 again.",
                row::ns(ours.raw_line_ns),
                row::ns(theirs.raw_line_ns)
            ),
        });
    }
    let times = theirs.value / ours.value;
    let so = match times {
        1.1.. => format!("{times:.1} times as long"),
        0.9.. => "about as long".into(),
        _ => "which is less".into(),
    };
    Some(Finding {
        is_good: times >= 0.9,
        text: format!(
            "A checked message of 16 bytes takes {own} one way {when}, and through a Unix stream \
             socket {socket}, {so}."
        ),
    })
}

fn commonest(measured: &[Measured]) -> Option<f64> {
    commonest_line_ns(&measured.iter().map(|one| one.raw_line_ns).collect::<Vec<_>>())
}

/// The raw lines of these: one, or from the shortest to the longest.
fn range(measured: &[Measured]) -> String {
    let lines = || measured.iter().map(|one| one.raw_line_ns);
    let (least, most) = (lines().fold(f64::INFINITY, f64::min), lines().fold(0.0, f64::max));
    match (row::ns(least), row::ns(most)) {
        (least, most) if least == most => least,
        (least, most) => format!("from {least} to {most}"),
    }
}

/// Which of these do not compare with most of them: a mark, or nothing.
fn marks(measured: &[Measured]) -> Vec<&'static str> {
    let line = commonest(measured).unwrap_or(f64::NAN);
    let compares = |one: &Measured| one.is_steady && agree(one.raw_line_ns, line);
    measured.iter().map(|one| if compares(one) { "" } else { " *" }).collect()
}

/// Beside which raw lines these were measured.
fn of_cores(measured: &[Measured]) -> String {
    let text =
        format!("A bare cache line took {} from one core to the other meanwhile.", range(measured));
    match marks(measured).concat().is_empty() {
        true => text,
        false => format!(
            "{text} Rows with a * do not compare with the others: the host had moved the cores, or \
             moved them then."
        ),
    }
}

fn latencies(lines: &[Compared]) -> Section {
    let text = "Messages of 16 bytes between two processes on two cores, each end pinned alike. \
                Hamlyn's have their key and bounds checked, are deposited and announced. One way \
                is half of a round trip; the median.";
    let measured: Vec<(&Compared, Measured)> =
        lines.iter().map(|line| (line, line.one_way)).collect();
    compared("Latency", text, "one way", "time one way: less is better", row::ns, &measured)
}

fn rates(lines: &[Compared]) -> Section {
    let measured: Vec<(&Compared, Measured)> =
        lines.iter().filter_map(|line| Some((line, line.rate?))).collect();
    let text = "The same messages one after another, one call each.";
    let axis = "messages a second: more is better";
    compared("Rate", text, "messages", axis, |rate| row::per_second(rate, ""), &measured)
}

fn compared(
    title: &str,
    text: &str,
    figure: &str,
    axis: &str,
    in_words: fn(f64) -> String,
    rows: &[(&Compared, Measured)],
) -> Section {
    let measured: Vec<Measured> = rows.iter().map(|row| row.1).collect();
    let marks = marks(&measured);
    let marked = || rows.iter().zip(&marks);
    let name = |line: &Compared, mark| format!("{}, {}{mark}", line.name, line.waits);
    Section {
        title: title.into(),
        text: vec![text.into(), of_cores(&measured)],
        chart: Some(Chart {
            axis: axis.into(),
            values: marked().map(|((line, one), mark)| (name(line, mark), one.value)).collect(),
            text: in_words,
        }),
        header: ["what", "waits", figure, "raw line then"].map(String::from).into(),
        rows: marked()
            .map(|((line, one), mark)| {
                let raw = format!("{}{mark}", row::ns(one.raw_line_ns));
                vec![line.name.clone(), line.waits.into(), in_words(one.value), raw]
            })
            .collect(),
        ..Section::default()
    }
}

fn bandwidths(bandwidth: &Row) -> Section {
    let measured = Measured::of(bandwidth);
    let values = [
        ("memcpy on one core", bandwidth.baselines.memcpy_bytes_per_s),
        ("bare two-copy ring", bandwidth.baselines.copy_ring_bytes_per_s),
        (OWN, measured.value),
    ]
    .map(|(name, value)| (name.to_owned(), value));
    let in_words: fn(f64) -> String = |rate| row::per_second(rate, "B");
    let raw = row::ns(measured.raw_line_ns);
    Section {
        title: "Bandwidth, beside what the machine can copy".into(),
        text: vec![
            format!(
                "Messages of {}, copied into the ring on one core and out of it on the other. The \
                 bare ring does the same without names, keys or checks.",
                ByteSize(bandwidth.size)
            ),
            of_cores(&[measured]),
        ],
        rows: values
            .iter()
            .map(|(name, value)| vec![name.clone(), in_words(*value), raw.clone()])
            .collect(),
        header: ["what", "bandwidth", "raw line then"].map(String::from).into(),
        chart: Some(Chart {
            axis: "bytes a second: more is better".into(),
            values: values.into(),
            text: in_words,
        }),
        ..Section::default()
    }
}

// ---- the smaller roles

/// What an honest process saw that connected where it should not have.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Visit {
    pub error: Option<String>,
    /// Of its own counters of refusals those that went up.
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
                .filter(|(now, before)| now.1 > before.1 && now.0.contains("refused"))
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Hamlyn and a Unix socket beside these raw lines.
    fn lines(ours_ns: f64, theirs_ns: f64, is_steady: bool) -> [Compared; 2] {
        let line = |name: &str, value, raw_line_ns| Compared {
            name: name.into(),
            waits: "polled",
            one_way: Measured { value, raw_line_ns, is_steady },
            rate: None,
        };
        let socket = Channel::UnixSocket.to_string();
        [line(OWN, 85.0, ours_ns), line(&socket, 2_600.0, theirs_ns)]
    }

    #[test]
    fn latencies_are_compared_only_where_their_raw_lines_agree() {
        let of = |lines: [Compared; 2]| of_pair(&lines, "polled").unwrap();
        let finding = of(lines(53.0, 60.0, true));
        assert!(finding.is_good && finding.text.contains("30.6 times as long"), "{finding:?}");
        for moved in [lines(53.0, 168.0, true), lines(53.0, 53.0, false)] {
            let finding = of(moved);
            assert!(!finding.is_good && !finding.text.contains("times"), "{finding:?}");
            for part in ["no comparison", "85 ns", "53 ns", "2.6 us", "run it again"] {
                assert!(finding.text.contains(part), "{part}: {finding:?}");
            }
        }
        assert!(of(lines(53.0, 168.0, true)).text.contains("168 ns"));
        assert!(of_pair(&lines(53.0, 53.0, true), "blocking").is_none(), "none was measured");
    }

    #[test]
    fn rows_that_do_not_compare_with_most_are_marked_and_the_range_is_told() {
        let measured = |lines: [f64; 3]| {
            lines.map(|raw_line_ns| Measured { value: 1.0, raw_line_ns, is_steady: true })
        };
        let moved = measured([53.0, 168.0, 55.0]);
        assert_eq!(marks(&moved), ["", " *", ""]);
        let text = of_cores(&moved);
        assert!(text.contains("from 53 ns to 168 ns") && text.contains("with a *"), "{text}");
        let alike = measured([53.0, 53.2, 53.0]);
        assert_eq!(marks(&alike), ["", "", ""]);
        let text = of_cores(&alike);
        assert!(text.contains("took 53 ns from") && !text.contains('*'), "{text}");
    }

    #[test]
    fn what_was_not_refused_is_no_good_news() {
        let row = |outcome| attack::Row {
            what: "an attempt".into(),
            how: "possible. Deny it".into(),
            counter: String::new(),
            outcome,
        };
        use attack::Outcome::{NotRefused, Open, Refused};
        let findings = of_attempts(&[row(Refused), row(Open)]);
        assert!(findings[0].is_good && findings[0].text.starts_with("1 of 1 "), "{findings:?}");
        assert!(findings[1].text.starts_with("One more is possible"), "{findings:?}");
        let findings = of_attempts(&[row(Refused), row(NotRefused)]);
        assert!(!findings[0].is_good && findings[0].text.starts_with("1 of 2 "), "{findings:?}");
    }
}
