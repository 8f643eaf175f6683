//! The second act: two hosts, and an attacker on the wire between them.
//!
//! ```text
//!   near --cable--> wire --cable--> far        each a process in a network namespace of its own,
//!                                              if those are permitted; else over loopback
//! ```
//! The wire forwards the traffic, or attacks it. The attacker has everything that a host of the
//! network may have, except the secret. The counters of near and far, and the data that their
//! programs received, decide whether an attempt was refused.
//!
//! - `wire.rs`: the attacker, which starts the other two; `relay.rs`: one connection through it
//! - `ends.rs`: near and far
//!
//! The namespaces have no names, and end with their processes, however those end.

mod ends;
mod relay;
mod wire;

pub use ends::{far, near};
pub use wire::run as wire;

use super::actor::{Actor, Role};
use super::attack::{Outcome, Row};
use anyhow::{Context, Result, bail};
use hamlyn_tools::{ending, secret};
use serde::{Deserialize, Serialize};
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use wire::{Begun, Order};

/// The title of the table.
pub const TITLE: &str = "Two hosts, and an attacker on the wire";

/// The attacker's action, its name, and the way of refusal.
const ATTEMPTS: &[(Attempt, &str, &str)] = &[
    (
        Attempt::Read,
        "reads all that passes between the hosts",
        "not a byte of the message is there to be read",
    ),
    (
        Attempt::ChangeGreeting,
        "changes a bit of the first words of a connection",
        "there is no link",
    ),
    (
        Attempt::ChangeRequest,
        "changes a bit of a request on its way",
        "the link ended; the server was given no request",
    ),
    (
        Attempt::ChangeReply,
        "changes a bit of the reply",
        "the link ended; the client was given no reply",
    ),
    (
        Attempt::SayTwice,
        "says a request twice",
        "the link ended; the server was given it once at most",
    ),
    (
        Attempt::LeaveOut,
        "leaves a part of a request out",
        "the link ended; the server was given no request",
    ),
    (
        Attempt::Replay,
        "plays a whole conversation again that was recorded",
        "refused; the server was given no request",
    ),
    (
        Attempt::WrongSecret,
        "connects with another secret",
        "refused, before it has said what it wants",
    ),
    (
        Attempt::Impostor,
        "takes the place of the host, with another secret",
        "the client went, and has not said what it wants",
    ),
    (
        Attempt::Cut,
        "cuts the connection",
        "both ends were told; the next connection is as good as the first",
    ),
];

/// The number of steps.
pub const STEPS: u64 = ATTEMPTS.len() as u64 + 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Attempt {
    Read,
    ChangeGreeting,
    ChangeRequest,
    ChangeReply,
    SayTwice,
    LeaveOut,
    Replay,
    WrongSecret,
    Impostor,
    Cut,
}

/// The result of an attempt.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Told {
    pub is_refused: bool,
    /// Added to the table's way of refusal.
    pub detail: String,
    pub counter: String,
}

/// The results to show.
pub struct Act {
    /// Facts about the message that crossed the network.
    pub lines: Vec<(String, String)>,
    pub rows: Vec<Row>,
}

/// Plays the act. Calls `step` with each attempt.
pub fn play(step: impl Fn(&str)) -> Result<Act> {
    ending::on_signals()?;
    let directory = tempfile::tempdir().context("a directory for the hosts' keys")?;
    // A signal that ends this process removes it, too.
    ending::remove(directory.path().to_path_buf());
    let path = |name: &str| directory.path().join(name);
    for name in ["near", "far", "wire"] {
        DirBuilder::new().mode(0o700).create(path(name))?;
    }
    for name in ["secret", "other"] {
        secret::make_secret(&path(name), false)?;
        // Even if the hosts put files into the directory while it is removed.
        ending::remove(path(name));
    }
    step("two hosts");
    let begin = |before: &[&str], has_cables| -> Result<(Actor, Begun)> {
        let mut wire =
            Actor::start_command(&mut actor_command(before)?, Role::Wire, Stdio::null())?;
        let order = Order::Begin { directory: directory.path().into(), has_cables };
        let begun = wire.ask(&order)?;
        Ok((wire, begun))
    };
    // Loopback only if namespaces or cables are impossible: a failure between hosts that have them
    // is our fault.
    let inside = match namespace_words() {
        Ok(words) => match begin(&words, true)? {
            (wire, Begun::Hosts(lines)) => Ok((wire, lines)),
            (_, Begun::NoCables(why)) => Err(why),
        },
        Err(why) => Err(format!("{why:#}")),
    };
    let (hosts, (mut wire, lines)) = match inside {
        Ok(begun) => (
            "two network namespaces, joined by cables (veth), with the attacker between them"
                .into(),
            begun,
        ),
        Err(why) => {
            let why = format!("OVER LOOPBACK: there can be no network namespaces here: {why}");
            match begin(&[], false)? {
                (wire, Begun::Hosts(lines)) => (why, (wire, lines)),
                (_, Begun::NoCables(why)) => bail!("hosts over loopback asked for cables: {why}"),
            }
        }
    };
    let mut all = vec![("hosts".to_owned(), hosts)];
    all.extend(lines);
    let mut rows = Vec::new();
    for (attempt, what, how) in ATTEMPTS {
        step(what);
        rows.push(match wire.ask::<Told>(&Order::Try(*attempt)) {
            Ok(told) => Row {
                what: format!("on the wire: {what}"),
                how: match (told.is_refused, told.detail.as_str()) {
                    (true, "") => (*how).to_owned(),
                    (true, detail) => format!("{how}: {detail}"),
                    (false, detail) => detail.to_owned(),
                },
                counter: told.counter,
                outcome: match (told.is_refused, attempt) {
                    // Every host on the network may listen, and cut.
                    (true, Attempt::Read | Attempt::Cut) => Outcome::NoHarm,
                    (true, _) => Outcome::Refused,
                    (false, _) => Outcome::NotRefused,
                },
            },
            Err(error) => Row {
                what: format!("on the wire: {what}"),
                how: format!("could not be tried: {error:#}"),
                counter: String::new(),
                outcome: Outcome::NotRefused,
            },
        });
    }
    Ok(Act { lines: all, rows })
}

/// The command words that start a process in a network namespace of its own in which it may make
/// cables; or the reason why that is impossible.
fn namespace_words() -> Result<Vec<&'static str>> {
    let as_root: &[&str] = &["unshare", "--net"];
    let as_user: &[&str] = &["unshare", "--user", "--map-root-user", "--net"];
    let mut why = anyhow::anyhow!("nothing was tried");
    for words in [as_root, as_user] {
        // Tries the later steps; the cable ends with the process.
        let cable = "ip link add probe type veth peer name other".split(' ');
        match run(words.iter().copied().chain(["--"]).chain(cable)) {
            Ok(()) => return Ok(words.to_vec()),
            Err(error) => why = error,
        }
    }
    Err(why)
}

/// Runs a command; if it fails, its last line is the error.
fn run<'a>(words: impl IntoIterator<Item = &'a str>) -> Result<()> {
    let words: Vec<&str> = words.into_iter().collect();
    let (program, rest) = words.split_first().context("no words")?;
    let output = Command::new(program).args(rest).stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("cannot start {program}"))?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    let last = text.lines().rfind(|line| !line.trim().is_empty());
    bail!("{}", last.unwrap_or("it says nothing").trim())
}

/// This command as an actor, started by these words. Not through /proc/self/exe, which would be the
/// program of the first word.
fn actor_command(before: &[&str]) -> Result<Command> {
    let exe = std::env::current_exe().context("the path of this program")?;
    let Some((first, rest)) = before.split_first() else { return Ok(Command::new(exe)) };
    let mut command = Command::new(first);
    command.args(rest).arg("--").arg(exe);
    Ok(command)
}

/// An actor's own directory: `directory` is that of the act.
fn own_directory(directory: &std::path::Path, name: &str) -> PathBuf {
    directory.join(name)
}
