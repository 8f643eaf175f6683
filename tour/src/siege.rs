//! The attacks on the protocols, and the decision whether they were refused: from the counters and
//! reports of the honest side, and from honest processes that go on working, every value checked.

use super::actor::{Actor, Role, Stage};
use super::attack::{Outcome, Row};
use super::guarded::{HostOrder, PeerOrder, Places, Report, WRONG};
use super::rogue::{Rogue, Trap};
use super::stranger::{self, Attempt};
use anyhow::{Context, Result, ensure};
use std::path::PathBuf;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

/// The attacked end point.
#[derive(Clone, Copy)]
enum Target {
    Call,
    Tagged,
    Datagram,
    Stream,
    Group,
}

/// Attempts with a seed: a name, the way of refusal (empty: the end point's report), and the
/// counters of which one must rise (empty: it must report something).
const ATTEMPTS: &[(Rogue, Target, &str, &str, &[&str])] = &[
    (
        Rogue::ForgedSeed,
        Target::Tagged,
        "a forged seed: well-formed, its token guessed",
        "the receiver's process refused: it gave no such seed out",
        &["control.refused_end_point"],
    ),
    (
        Rogue::OtherKind,
        Target::Tagged,
        "a good seed, and the greeting of another protocol",
        "refused, and told of which protocol the receiver is",
        &["control.refused_end_point"],
    ),
    (
        Rogue::BadGreetings,
        Target::Call,
        "a raw node that speaks the greeting wrongly: cut off, too long, of unknown kinds, with \
         blocks of impossible sizes and tickets of others",
        "each was refused; nothing was set up",
        &["control.refused_end_point"],
    ),
    (
        Rogue::CallOutOfState,
        Target::Call,
        "a client that sends a code which fits no state of its call",
        "sent away; other clients noticed nothing",
        &["Server::misbehaved"],
    ),
    (
        Rogue::CallOutOfRange,
        Target::Call,
        "a client with the number of a call that it does not have",
        "sent away",
        &["Server::misbehaved"],
    ),
    (
        Rogue::CallBeyondBlock,
        Target::Call,
        "a client whose request is longer than its block",
        "sent away; no byte beside its block was read",
        &["Server::misbehaved"],
    ),
    (
        Rogue::CallGreedy,
        Target::Call,
        "a client that asks on and on, and takes no answer",
        "sent away before what it is owed fills the server's memory",
        &["Server::misbehaved"],
    ),
    (
        Rogue::NoCredit,
        Target::Tagged,
        "a tagged sender that ignores its credit",
        "dropped beyond it; the share of the queue that others have is theirs",
        &["refused_no_credit"],
    ),
    (
        Rogue::Datagram,
        Target::Datagram,
        "datagrams whose metadata lies: places outside, none at all, another's reply ticket",
        "",
        &[],
    ),
    (
        Rogue::StreamFraming,
        Target::Stream,
        "a stream with a record that reaches beyond its message",
        "",
        &[],
    ),
    (
        Rogue::StreamMark,
        Target::Stream,
        "a stream with a message that is longer than its buffer, as it says",
        "",
        &[],
    ),
    (
        Rogue::GroupTwice,
        Target::Group,
        "a member of a group that sends its part twice",
        "the second was dropped; the first stood still, and the next round went on",
        &["refused_entry_closed", "refused_stale_key"],
    ),
    (
        Rogue::GroupLength,
        Target::Group,
        "a member of a group that lies about the length of its part",
        "",
        &[],
    ),
];

const TRAPS: &[(Trap, &str)] = &[
    (Trap::Answer, "a server whose answer to the greeting is noise"),
    (Trap::NoSuchCall, "a server that replies to a call which does not exist"),
    (Trap::NotCalled, "a server that replies to a call which was not made"),
    (Trap::BeyondBlock, "a server whose reply is longer than the client's block"),
];

const APERTURES: &[(Rogue, &str)] = &[
    (Rogue::Aperture, "a holder that keeps an aperture's pages and scribbles when it was revoked"),
    (
        Rogue::BusyAperture,
        "a holder that keeps the lock of an aperture's inode busy while it is taken back",
    ),
];

/// The service of the stranger as a false server.
const TRAP: &str = "protocol-trap";
const PATIENCE: Duration = Duration::from_secs(10);

pub struct Siege<'a> {
    stage: &'a Stage,
    host: Actor,
    peer: Actor,
    places: Places,
}

impl<'a> Siege<'a> {
    /// The number of steps of [`run`](Self::run).
    pub fn steps() -> u64 {
        (ATTEMPTS.len() + TRAPS.len() + APERTURES.len()) as u64 + 3
    }

    pub fn new(stage: &'a Stage) -> Result<Self> {
        let mut host = Actor::start(stage, Role::GuardedHost, Stdio::null(), &[])?;
        let mut peer = Actor::start(stage, Role::GuardedPeer, Stdio::null(), &[])?;
        let places: Places = host.answer()?;
        let _: () = peer.ask(&PeerOrder::Begin(places.clone()))?;
        let mut siege = Self { stage, host, peer, places };
        ensure!(siege.is_honest_unharmed()?.is_none(), "the protocols do not work unattacked");
        Ok(siege)
    }

    /// Makes every attempt in turn, and calls `step` with each.
    pub fn run(&mut self, mut step: impl FnMut(&str)) -> Result<Vec<Row>> {
        let mut rows = Vec::new();
        step("a seed that was cut off");
        rows.push(self.cut_seed()?);
        step("a seed that leads nowhere");
        rows.push(self.gone_seed()?);
        step("a seed of another protocol");
        rows.push(self.other_seed()?);
        for (rogue, target, what, how, counters) in ATTEMPTS {
            step(what);
            rows.push(self.attempt(*rogue, *target, what, how, counters)?);
        }
        for (trap, what) in TRAPS {
            step(what);
            rows.push(self.trap(*trap, what)?);
        }
        for (rogue, what) in APERTURES {
            step(what);
            rows.push(self.aperture(*rogue, what)?);
        }
        Ok(rows)
    }

    fn report(&mut self) -> Result<Report> {
        self.host.ask(&HostOrder::Report)
    }

    /// Uses every protocol; `None`: each value arrived, and was right.
    fn is_honest_unharmed(&mut self) -> Result<Option<String>> {
        let wanted: Result<u64> = self.peer.ask(&PeerOrder::Check);
        let wanted = match wanted {
            Ok(wanted) => wanted,
            Err(error) => return Ok(Some(format!("{error:#}"))),
        };
        let deadline = Instant::now() + PATIENCE;
        loop {
            let report = self.report()?;
            if let Some(wrong) = report.said.iter().find(|said| said.starts_with(WRONG)) {
                return Ok(Some(wrong.clone()));
            }
            if report.honest >= wanted {
                return Ok(None);
            }
            if Instant::now() > deadline {
                let text = format!("{} of {wanted} honest values came", report.honest);
                return Ok(Some(text));
            }
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// A row of a refused attempt, if all honest processes are unharmed.
    fn row(&mut self, what: &str, how: String, counter: String) -> Result<Row> {
        let harm = self.is_honest_unharmed()?;
        let is_refused = harm.is_none() && !counter.is_empty();
        Ok(Row {
            what: what.into(),
            how: match harm {
                None => how,
                Some(harm) => format!("{how}; BUT the honest were disturbed: {harm}"),
            },
            counter,
            outcome: if is_refused { Outcome::Refused } else { Outcome::NotRefused },
        })
    }

    fn not_refused(what: &str, error: &anyhow::Error) -> Row {
        Row {
            what: what.into(),
            how: format!("{error:#}"),
            counter: String::new(),
            outcome: Outcome::NotRefused,
        }
    }

    fn cut_seed(&mut self) -> Result<Row> {
        let what = "a seed that was cut off, anywhere";
        match self.peer.ask::<String>(&PeerOrder::CutSeed(self.places.tagged.clone())) {
            Ok(error) => self.row(what, error, "(the reader's error)".into()),
            Err(error) => Ok(Self::not_refused(what, &error)),
        }
    }

    /// The seed of a dropped receiver, and that of a receiver whose process was killed.
    fn gone_seed(&mut self) -> Result<Row> {
        let what = "the seed of a receiver that is gone, and of a process that is";
        let mut dead = Actor::start(self.stage, Role::GuardedHost, Stdio::null(), &[])?;
        let of_dead: Places = dead.answer()?;
        dead.kill()?;
        let seeds = vec![self.places.gone.clone(), of_dead.tagged];
        match self.peer.ask::<Vec<String>>(&PeerOrder::BadSeeds(seeds)) {
            Ok(errors) => self.row(what, errors.join("; "), "(the sender's errors)".into()),
            Err(error) => Ok(Self::not_refused(what, &error)),
        }
    }

    fn other_seed(&mut self) -> Result<Row> {
        let what = "the seed of a receiver of another protocol";
        let seeds = vec![self.places.call.clone()];
        match self.peer.ask::<Vec<String>>(&PeerOrder::BadSeeds(seeds)) {
            Ok(errors) => self.row(what, errors.join("; "), "(the sender's error)".into()),
            Err(error) => Ok(Self::not_refused(what, &error)),
        }
    }

    fn stranger(&self) -> Result<Actor> {
        Actor::start(self.stage, Role::Stranger, Stdio::null(), &[])
    }

    fn attempt(
        &mut self,
        rogue: Rogue,
        target: Target,
        what: &str,
        how: &str,
        counters: &[&str],
    ) -> Result<Row> {
        let before = self.report()?;
        let mut stranger = self.stranger()?;
        let seed = match target {
            Target::Call => self.places.call.clone(),
            Target::Tagged => self.places.tagged.clone(),
            Target::Datagram => self.places.datagram_of_strangers.clone(),
            Target::Stream => self.host.ask(&HostOrder::Stream)?,
            Target::Group => self.host.ask(&HostOrder::Group)?,
        };
        if let Target::Group = target {
            self.peer.tell(&PeerOrder::Join(seed.clone()))?;
        }
        let (attempt, socket) = (Attempt::Rogue(rogue), PathBuf::new());
        let saw: Result<String> = stranger.ask(&stranger::Order { attempt, service: seed, socket });
        if let Target::Group = target {
            let joined: Result<()> = self.peer.answer();
            if let Err(error) = joined.context("an honest member of the group was disturbed") {
                return Ok(Self::not_refused(what, &error));
            }
        }
        if let Err(error) = saw {
            return Ok(Self::not_refused(what, &error.context("could not be tried")));
        }
        let deadline = Instant::now() + PATIENCE;
        let (counter, said) = loop {
            let now = self.report()?;
            let rises: Vec<String> = counters
                .iter()
                .filter_map(|name| {
                    let of = |report: &Report| report.counters.get(*name).copied().unwrap_or(0);
                    let rise = of(&now).saturating_sub(of(&before));
                    (rise > 0).then(|| format!("{name} +{rise}"))
                })
                .collect();
            let said = now.said.get(before.said.len()..).unwrap_or(&[]).to_vec();
            let is_seen = if counters.is_empty() { !said.is_empty() } else { !rises.is_empty() };
            if is_seen || Instant::now() > deadline {
                break (rises.join(", "), said);
            }
            thread::sleep(Duration::from_millis(5));
        };
        let how = if how.is_empty() { said.join("; ") } else { how.into() };
        let counter = match (counters.is_empty(), said.len()) {
            (false, _) => counter,
            (true, 0) => String::new(),
            (true, _) => "(the receiver's error)".into(),
        };
        self.row(what, how, counter)
    }

    /// The stranger serves, and the honest peer calls.
    fn trap(&mut self, trap: Trap, what: &str) -> Result<Row> {
        let mut stranger = self.stranger()?;
        let attempt = Attempt::Rogue(Rogue::Serve(trap));
        let (service, socket) = (TRAP.to_owned(), PathBuf::new());
        let _: String = stranger.ask(&stranger::Order { attempt, service, socket })?;
        let service = self.stage.service(Role::Stranger, TRAP);
        match self.peer.ask::<String>(&PeerOrder::Call(service)) {
            Ok(error) => self.row(what, error, "(the client's error)".into()),
            Err(error) => Ok(Self::not_refused(what, &error)),
        }
    }

    fn aperture(&mut self, rogue: Rogue, what: &str) -> Result<Row> {
        let name: String = self.host.ask(&HostOrder::Aperture)?;
        let mut stranger = self.stranger()?;
        let socket = self.stage.socket(Role::GuardedHost, &name);
        let attempt = Attempt::Rogue(rogue);
        let saw: Result<String> = stranger.ask(&stranger::Order { attempt, service: name, socket });
        let taken: Result<()> = self.host.answer();
        match taken.and(saw) {
            Ok(saw) => {
                let is_still: bool = self.host.ask(&HostOrder::IsStill)?;
                let how = format!("{saw}; what was taken back stands still");
                let counter = if is_still { "(the owner's bytes)" } else { "" };
                self.row(what, how, counter.into())
            }
            Err(error) => Ok(Self::not_refused(what, &error)),
        }
    }
}
