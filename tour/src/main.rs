//! `hamlyn-tour`: shows Hamlyn on a real file, under attack, and against the clock.
//!
//! ```text
//!   this process   orders, counts before and after, tables, report
//!   receiver       takes the file; its counters and the file's bytes decide each attempt
//!   sender         sends the file, then small messages all through the attack
//!   stranger       makes each attempt, for real
//!   host, peer     speak each protocol of the upper layer: see `protocols.rs`; and again while
//!                  the stranger attacks those: see `siege.rs`, `guarded.rs` and `rogue.rs`
//!   near, far      two hosts, and `wire`, the attacker between them: see `hosts`
//! ```
//! Each is a process of its own, and a user of its own if this process has the right to. An attempt
//! counts as refused only if the receiver's counter for it rose and the file's bytes are unchanged.

mod actor;
mod attack;
mod by_hand;
mod compare;
mod guarded;
mod host;
mod hostile;
#[cfg(feature = "tls")]
mod hosts;
mod measured;
mod peer;
mod protocols;
mod receiver;
mod report;
mod rogue;
mod sender;
mod siege;
mod stranger;
mod tasks;
mod terminal;

use actor::{Actor, Orders, Role, Stage};
use anyhow::{Context, Result, ensure};
use attack::Attack;
use bytesize::ByteSize;
use clap::{Args, Parser, Subcommand};
use hamlyn::node::Node;
use hamlyn_tools::arguments::ForAll;
use hamlyn_tools::perf::FarEndCommand;
use hamlyn_tools::perf::row;
use hamlyn_tools::progress;
use report::{Finding, Section};
use sender::{Beats, Sent};
use serde::{Deserialize, Serialize};
use siege::Siege;
use std::fs::File;
use std::path::PathBuf;
use std::process::{ExitCode, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tasks::Protocol;
use terminal::{heading, say};

/// Show what Hamlyn does, in about a minute: send a file, attack the receiver, measure
///
/// First, it starts a receiver and a sender as separate processes (as different users if it has
/// the right to), sends FILE as messages and uses each protocol once. A stranger then attacks
/// through everything that a process can reach, and the tour shows how each attempt was
/// refused.
///
/// Second, it makes two hosts (network namespaces, or loopback if namespaces are not permitted)
/// and sends a message between them over TLS. An attacker on the wire reads, changes, repeats,
/// drops and replays the traffic.
///
/// Third, it measures latency, rate and bandwidth against a Unix socket, TCP and a pipe. The
/// report contains all results.
#[derive(Debug, Parser)]
#[command(
    name = "hamlyn-tour",
    version,
    max_term_width = 100,
    args_conflicts_with_subcommands = true
)]
struct Cli {
    #[command(flatten)]
    all: ForAll,
    #[command(flatten)]
    tour: TourArguments,
    #[command(subcommand)]
    part: Option<Part>,
}

/// The processes that the tour starts: this program again.
#[derive(Debug, Subcommand)]
enum Part {
    /// One of the processes of a tour
    #[command(hide = true)]
    Actor { role: Role },
    #[command(flatten)]
    FarEnd(FarEndCommand),
}

#[derive(Args, Debug)]
struct TourArguments {
    /// The file to send [default: this program itself]
    file: Option<PathBuf>,
    /// The second part alone: two hosts, and an attacker on the wire between them
    #[arg(long)]
    hosts: bool,
    /// The path of the report
    #[arg(long, value_name = "PATH", default_value = "hamlyn-tour.html")]
    report: PathBuf,
    /// Measure for moments only, to check that everything runs; the figures mean little
    #[arg(long)]
    quick: bool,
}

fn main() -> ExitCode {
    hamlyn_tools::main(|cli: Cli| match cli.part {
        None => {
            hamlyn_tools::begin(&cli.all);
            run(&cli.tour)
        }
        Some(Part::Actor { role }) => play(role),
        Some(Part::FarEnd(end)) => end.run(),
    })
}

/// Plays one role.
fn play(role: Role) -> Result<()> {
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

/// The tour.
fn run(arguments: &TourArguments) -> Result<()> {
    report::check_place(&arguments.report)?;
    let began = Instant::now();
    let (mut sections, mut findings) = (Vec::new(), Vec::new());
    let mut facts = report::machine();
    let mut is_disturbed = false;
    let verdict = if arguments.hosts {
        two_hosts(&mut sections, &mut findings)?
    } else {
        let first = transfer_and_attack(arguments, &mut sections, &mut findings)?;
        let second = two_hosts(&mut sections, &mut findings)?;
        let clock = measured::measure(arguments, &mut sections, &mut findings)?;
        facts.push(("raw cache line".into(), clock.raw_line));
        is_disturbed = clock.is_disturbed;
        first.and(second)
    };
    facts.push(("took".into(), format!("{:.0} s", began.elapsed().as_secs_f32())));
    sections.push(words());
    let possible = findings.iter().filter(|finding| finding.text.starts_with(POSSIBLE)).count();
    let headline = headline(verdict.is_ok(), possible, is_disturbed);
    let title = "Hamlyn: a tour";
    report::write(&arguments.report, title, &headline, &findings, &facts, &sections)?;
    say(format_args!("\n{headline}"))?;
    terminal::findings(&findings)?;
    say(format_args!("\nThe report, with charts: {}", arguments.report.display()))?;
    verdict
}

/// The beginning of the finding of an attempt that is possible by design.
const POSSIBLE: &str = "Possible by design: ";

/// The verdict, in a sentence. `possible`: attempts that are possible by design.
fn headline(all_refused: bool, possible: usize, is_disturbed: bool) -> String {
    if !all_refused {
        return "Hamlyn did not hold: at least one attempt to do harm succeeded.".into();
    }
    let but = match possible {
        0 => String::new(),
        1 => ", but for one that is possible by design".into(),
        more => format!(", but for {more} that are possible by design"),
    };
    let times = match is_disturbed {
        true => "; its times were taken on a busy machine, and are not to be quoted",
        false => "",
    };
    format!("Hamlyn held: no attempt to do harm succeeded{but}{times}.")
}

/// The meaning of the tables' words, for readers of the report alone.
fn words() -> Section {
    let words = [
        (
            "aperture",
            "memory of one process that another has mapped, and loses when it is taken back",
        ),
        (
            "checked message",
            "one whose right to be where it goes was checked by the receiver: key, place, length",
        ),
        ("credit", "messages that a sender may send before the receiver has taken any"),
        (
            "link, ring",
            "what two processes send through: memory that one writes and the other only reads",
        ),
        ("packet", "a piece of a message, or all of a short one; each is checked by itself"),
        (
            "polled, adaptive, blocking",
            "a receiver looks without a pause; looks, then sleeps; sleeps at once",
        ),
        (
            "raw cache line",
            "the time in which one processor core sees what another has written: the least that a \
             message can take",
        ),
        (
            "seed, ticket",
            "what gives the right to connect, or to send to one place, to whoever has it",
        ),
        (
            "slot, metadata entry",
            "a place that messages may land in; what the receiver knows of each message there",
        ),
        (
            "REFUSED, NO HARM, POSSIBLE",
            "stopped by a check, of no effect, or told and undone; nothing was there to refuse; \
             possible by design, and how to deny it",
        ),
    ];
    Section {
        title: "Words".into(),
        facts: words.map(|(word, means)| (word.into(), means.into())).into(),
        ..Section::default()
    }
}

/// Prints a section below its heading, and adds it to the report.
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
    let (counts, is_good) = counted(&rows, "of an attacker on the wire");
    findings.push(Finding {
        is_good,
        text: format!(
            "Between two hosts (two processes of this machine, each with a network of its own where that \
             is permitted), {counts}. Whoever has the wire can always cut it, and then both ends are told."
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

const ATTEMPTS_HEADER: [&str; 4] = ["attempt", "what came of it", "counted by", "result"];

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
    // Rows that need action come first.
    let mut rows: Vec<&attack::Row> = rows.iter().collect();
    rows.sort_by_key(|row| match row.outcome {
        attack::Outcome::NotRefused => 0,
        attack::Outcome::Open => 1,
        attack::Outcome::NoHarm => 2,
        attack::Outcome::Refused => 3,
    });
    Section {
        title: title.into(),
        text,
        facts,
        header: ATTEMPTS_HEADER.map(String::from).into(),
        rows: rows.into_iter().map(cells).collect(),
        ..Section::default()
    }
}

/// The numbers of attempts and of each outcome; and whether none failed.
fn counted(rows: &[attack::Row], whose: &str) -> (String, bool) {
    let of = |outcome| rows.iter().filter(|row| row.outcome == outcome).count();
    let mut parts = vec![format!("{} were refused", of(attack::Outcome::Refused))];
    let others = [
        (attack::Outcome::NoHarm, "did no harm"),
        (attack::Outcome::Open, "is possible by design"),
        (attack::Outcome::NotRefused, "SUCCEEDED"),
    ];
    for (outcome, words) in others {
        let count = of(outcome);
        if count > 0 {
            parts.push(format!("{count} {words}"));
        }
    }
    let last = parts.pop().expect("there is one");
    let counts = match parts.is_empty() {
        true => last,
        false => format!("{} and {last}", parts.join(", ")),
    };
    let text = format!("of {} attempts {whose} {counts}", rows.len());
    (text, of(attack::Outcome::NotRefused) == 0)
}

/// The findings of the stranger's attempts: their number, then each that was not refused.
fn of_attempts(rows: &[attack::Row]) -> Vec<Finding> {
    let of = |outcome| rows.iter().filter(move |row| row.outcome == outcome);
    let (counts, is_good) = counted(rows, "to do harm");
    let mut findings = vec![Finding { is_good, text: format!("On one host, {counts}.") }];
    findings.extend(of(attack::Outcome::Open).map(|row| Finding {
        is_good: false,
        text: format!("{POSSIBLE}{}. {}.", row.what, row.how.trim_start_matches("possible. ")),
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
        (
            "speed",
            format!(
                "{}, read from the file and hashed on the way",
                row::per_second(sent.bytes as f64 / sent.seconds, "B")
            ),
        ),
        ("digest (BLAKE3)", format!("{}, the same at both ends", sent.digest)),
        ("path", sent.path.clone()),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into()
}

// ---- the smaller roles

/// The result of an honest process that connected to a hostile service.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Visit {
    pub error: Option<String>,
    /// Its own counters of refusals that rose.
    pub counters: Vec<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct VisitorOrder {
    pub service: String,
    pub greeting: Vec<u8>,
}

/// Connects to each service in its orders.
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
    /// Answers with the address of a word of its memory.
    Address,
    /// Answers whether the word was changed, and restores it.
    IsChanged,
    /// Denies ptrace, as HAMLYN_UNDUMPABLE does.
    Protect,
}

/// The word that a process of the same user overwrites. An atomic, as another process may change
/// it.
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

    #[test]
    fn what_was_not_refused_is_no_good_news() {
        let row = |outcome| attack::Row {
            what: "an attempt".into(),
            how: "possible. Deny it".into(),
            counter: String::new(),
            outcome,
        };
        use attack::Outcome::{NoHarm, NotRefused, Open, Refused};
        let first = |rows: &[attack::Row]| {
            let findings = of_attempts(rows);
            (findings[0].is_good, findings[0].text.clone(), findings.len())
        };
        let (is_good, text, count) = first(&[row(Refused), row(Open), row(NoHarm)]);
        let expected = "On one host, of 3 attempts to do harm 1 were refused, 1 did no harm and 1 \
                        is possible by design.";
        assert_eq!((is_good, text.as_str(), count), (true, expected, 2));
        let open = &of_attempts(&[row(Open)])[1];
        assert!(
            !open.is_good && open.text.starts_with("Possible by design: an attempt."),
            "{open:?}"
        );
        let (is_good, text, count) = first(&[row(Refused), row(NotRefused)]);
        assert!(!is_good && text.contains("and 1 SUCCEEDED") && count == 2, "{text}");
    }

    #[test]
    fn the_headline_says_whether_it_held_and_what_spoils_that() {
        assert_eq!(headline(true, 0, false), "Hamlyn held: no attempt to do harm succeeded.");
        let text = headline(true, 1, true);
        assert!(text.contains("but for one that is possible by design; its times"), "{text}");
        assert!(headline(true, 2, false).ends_with(", but for 2 that are possible by design."));
        assert!(headline(false, 1, true).contains("did not hold"));
    }
}
