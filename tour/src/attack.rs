//! The attempts, and the decision whether each was refused.

use super::actor::{Actor, Role, Stage};
use super::receiver::{self, Report};
use super::stranger::{self, Attempt, WrongDescriptor};
use super::{SleeperOrder, Visit, VisitorOrder};
use anyhow::{Context, Result, bail};
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

/// The outcome of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Refused,
    /// There was nothing to refuse, and no harm was done.
    NoHarm,
    /// It should have been refused, or harm was done.
    NotRefused,
    /// It cannot be refused, and the row says how to deny it.
    Open,
}

/// One row of the table.
#[derive(Clone, Debug)]
pub struct Row {
    pub what: String,
    pub how: String,
    pub counter: String,
    pub outcome: Outcome,
}

/// Attempts through packets and the control socket: a name, the way of refusal, and the counters of
/// which one must rise.
const ATTEMPTS: &[(Attempt, &str, &str, &[&str])] = &[
    (
        Attempt::WrongKey,
        "a packet with a wrong key",
        "dropped; the sender is told nothing",
        &["refused_wrong_key"],
    ),
    (
        Attempt::OutOfBounds,
        "the right key, and 8 bytes beyond the slot's bound",
        "dropped whole: not even the bytes that fit",
        &["refused_out_of_bounds"],
    ),
    (
        Attempt::Overflow,
        "offset + length beyond 2^64",
        "dropped; the sum is checked before it is used",
        &["refused_out_of_bounds"],
    ),
    (Attempt::NoSuchSlot, "a slot index out of range", "dropped", &["refused_no_such_slot"]),
    (Attempt::NoSuchEntry, "a metadata index out of range", "dropped", &["refused_no_such_entry"]),
    (
        Attempt::WrongDestination,
        "a packet that names another process's interface",
        "dropped",
        &["refused_wrong_destination"],
    ),
    (
        Attempt::BadFormat,
        "200 bytes of metadata, where 60 is most",
        "dropped",
        &["refused_bad_format"],
    ),
    (
        Attempt::RevokedKey,
        "a ticket that was revoked",
        "dropped: the key is another since",
        &["refused_stale_key"],
    ),
    (
        Attempt::SecondMessage,
        "a second message into a one-shot entry",
        "dropped: what has arrived cannot change",
        &["refused_entry_closed"],
    ),
    (
        Attempt::TooManyNotifications,
        "more notifications than its credit",
        "dropped before the deposit; the queue cannot overflow",
        &["refused_no_credit"],
    ),
    (
        Attempt::OutsideLimits,
        "beyond the limits of its metadata entry",
        "dropped",
        &["refused_outside_limits"],
    ),
    (
        Attempt::FastIntoParanoid,
        "a fast packet into a paranoid slot",
        "dropped: no entry would protect the slot",
        &["refused_fast_into_paranoid"],
    ),
    (
        Attempt::GuessKeys,
        "100,000 guessed keys",
        "its link was closed after 4,096",
        &["links_closed_guessing"],
    ),
    (
        Attempt::RandomBytes,
        "random bytes over every page that it can write, on 32 links",
        "each packet in them refused, or the link closed",
        &[
            "links_closed_violation",
            "refused_bad_format",
            "refused_no_such_slot",
            "refused_no_such_entry",
            "refused_wrong_key",
        ],
    ),
    (
        Attempt::UnpaidMemory,
        "a link whose memory it has not paid for",
        "the link was not made",
        &["control.refused_memory"],
    ),
    (
        Attempt::GuessCookie,
        "joining another's half-made link",
        "the connection was closed",
        &["control.refused_cookie"],
    ),
    (
        Attempt::PassDescriptors,
        "descriptors passed to the listener, a lingering socket among them",
        "",
        &["control.refused_descriptor"],
    ),
    (
        Attempt::Nonsense,
        "200 connections that speak nonsense",
        "each was closed; what looked like a frame of another version is counted as that",
        &["control.refused_frame", "control.refused_version"],
    ),
    (
        Attempt::Statistics,
        "asking for the counters of another user's process",
        "the question was refused",
        &["control.refused_statistics"],
    ),
    (
        Attempt::StatisticsThenLink,
        "asking for statistics and for a link on one socket",
        "no link was made of it",
        &["control.refused_statistics", "control.statistics"],
    ),
    (
        Attempt::OtherVersion,
        "an introduction of another major version, over a link that is up",
        "the link was closed, its memory given back",
        &["control.closed_violation"],
    ),
    (
        Attempt::CopiedCredential,
        "the credential of another's node, which everybody is shown",
        "it is of no use to a process that it does not name",
        &["control.refused_identity"],
    ),
    (
        Attempt::NeverSpeak,
        "a connection that never speaks",
        "closed when its time was up",
        &["control.refused_silent"],
    ),
    (
        Attempt::ManyConnections,
        "5,000 connections held open",
        "",
        &["control.refused_connections", "control.refused_half_open"],
    ),
];

/// Attacks that continue while an honest process of another user connects, which must succeed.
const HELD: &[(Attempt, &str, &[&str])] = &[
    (
        Attempt::BusyRing,
        "in the place of its ring a file whose inode's lock its threads hold",
        &["control.refused_memory"],
    ),
    (
        Attempt::LingeringRing,
        "in the place of its ring a socket that stops whoever closes it",
        &["control.refused_memory"],
    ),
    (
        Attempt::NeverPay,
        "links that are asked for, more than there are places, and never paid for",
        &["control.refused_slow", "control.refused_unpaid", "control.refused_connections"],
    ),
];

pub struct Attack<'a> {
    pub stage: &'a Stage,
    pub receiver: &'a mut Actor,
    /// The digest of the file when it had arrived.
    pub digest: String,
}

const PATIENCE: Duration = Duration::from_secs(10);
const DEATHS: u32 = 8;

impl Attack<'_> {
    /// The number of steps of [`run`](Self::run).
    pub fn steps() -> u64 {
        (ATTEMPTS.len() + HELD.len()) as u64 + 4 + 3
    }

    /// Makes every attempt in turn, and calls `step` with each.
    pub fn run(&mut self, mut step: impl FnMut(&str)) -> Result<Vec<Row>> {
        let mut rows = Vec::new();
        let mut stranger = self.stranger()?;
        for (attempt, what, how, counters) in ATTEMPTS {
            step(what);
            if *attempt == Attempt::Statistics && !self.stage.has_users {
                // The same user may ask.
                continue;
            }
            rows.push(self.attempt(&mut stranger, *attempt, what, how, counters)?);
        }
        for (attempt, what, counters) in HELD {
            step(what);
            if *attempt == Attempt::NeverPay && !self.stage.has_users {
                // Places are counted for each user.
                continue;
            }
            rows.push(self.held(*attempt, what, counters)?);
        }
        step("pages that are not its own");
        rows.push(self.foreign_pages(&mut stranger)?);
        drop(stranger);
        step("death in the middle of a packet");
        rows.push(self.deaths()?);
        step("death with half a packet in each line");
        rows.push(self.half_packets()?);
        for (wrong, what) in [
            (WrongDescriptor::Kind, "a server that passes a descriptor of the wrong kind"),
            (WrongDescriptor::Size, "a server that passes memory of the wrong size"),
            (WrongDescriptor::Seals, "a server that passes memory that it can shrink"),
        ] {
            step(what);
            rows.push(self.wrong_descriptor(wrong, what)?);
        }
        step("a process of the same user");
        rows.push(self.same_user()?);
        Ok(rows)
    }

    fn stranger(&self) -> Result<Actor> {
        Actor::start(self.stage, Role::Stranger, Stdio::null(), &[])
    }

    fn order(&self, attempt: Attempt) -> stranger::Order {
        stranger::Order {
            attempt,
            service: self.stage.service(Role::Receiver, receiver::NAME),
            socket: self.stage.socket(Role::Receiver, receiver::NAME),
        }
    }

    fn report(&mut self) -> Result<Report> {
        self.receiver.ask(&receiver::Order::Report)
    }

    /// Waits until one of `counters` has risen since `before`, and returns it; and whether the
    /// file's bytes are unchanged.
    fn what_counted(&mut self, before: &Report, counters: &[&str]) -> Result<(String, bool)> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let now = self.report()?;
            let rises: Vec<String> = counters
                .iter()
                .filter_map(|name| {
                    let of = |report: &Report| report.counters.get(*name).copied().unwrap_or(0);
                    let rise = of(&now).saturating_sub(of(before));
                    (rise > 0).then(|| format!("{name} +{rise}"))
                })
                .collect();
            if !rises.is_empty() || Instant::now() > deadline {
                let is_unchanged = now.digest.as_deref() == Some(&*self.digest);
                return Ok((rises.join(", "), is_unchanged));
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    fn attempt(
        &mut self,
        stranger: &mut Actor,
        attempt: Attempt,
        what: &str,
        how: &str,
        counters: &[&str],
    ) -> Result<Row> {
        let before = self.report()?;
        let saw: String = match stranger.ask(&self.order(attempt)) {
            Ok(saw) => saw,
            Err(error) => return Ok(not_done(what, &error)),
        };
        let by_kernel = saw.strip_prefix("the kernel: ");
        if let (Some(error), Attempt::PassDescriptors) = (by_kernel, attempt) {
            let is_unchanged = self.report()?.digest.as_deref() == Some(&*self.digest);
            return Ok(Row {
                what: what.into(),
                how: format!("the kernel did not let them through: {error}"),
                counter: "(the kernel)".into(),
                outcome: if is_unchanged { Outcome::Refused } else { Outcome::NotRefused },
            });
        }
        let (counter, is_unchanged) = self.what_counted(&before, counters)?;
        let is_refused = !counter.is_empty() && is_unchanged;
        Ok(Row {
            what: what.into(),
            how: if how.is_empty() { saw } else { how.into() },
            counter,
            outcome: if is_refused { Outcome::Refused } else { Outcome::NotRefused },
        })
    }

    /// Keeps an attempt going while an honest process connects.
    fn held(&mut self, attempt: Attempt, what: &str, counters: &[&str]) -> Result<Row> {
        let before = self.report()?;
        let mut stranger = self.stranger()?;
        let saw: String = match stranger.ask(&self.order(attempt)) {
            Ok(saw) => saw,
            Err(error) => return Ok(not_done(what, &error)),
        };
        let mut visitor = Actor::start(self.stage, Role::Visitor, Stdio::null(), &[])?;
        let service = self.stage.service(Role::Receiver, receiver::NAME);
        let greeting = serde_json::to_vec(&receiver::Hello::Guest)?;
        let visit: Visit = visitor.ask(&VisitorOrder { service, greeting })?;
        let (counter, is_unchanged) = self.what_counted(&before, counters)?;
        stranger.kill()?;
        let is_refused = visit.error.is_none() && !counter.is_empty() && is_unchanged;
        let how = match visit.error {
            None => format!("{saw}; an honest process got its link meanwhile"),
            Some(error) => format!("{saw}; BUT an honest process was kept out: {error}"),
        };
        let outcome = if is_refused { Outcome::Refused } else { Outcome::NotRefused };
        Ok(Row { what: what.into(), how, counter, outcome })
    }

    fn foreign_pages(&mut self, stranger: &mut Actor) -> Result<Row> {
        let what = "writing to the pages of the link that the receiver writes";
        let saw: String = match stranger.ask(&self.order(Attempt::ForeignPages)) {
            Ok(saw) => saw,
            Err(error) => return Ok(not_done(what, &error)),
        };
        let is_unchanged = self.report()?.digest.as_deref() == Some(&*self.digest);
        Ok(Row {
            what: what.into(),
            how: format!("the kernel: {saw}"),
            counter: "(the kernel)".into(),
            outcome: if is_unchanged { Outcome::Refused } else { Outcome::NotRefused },
        })
    }

    fn deaths(&mut self) -> Result<Row> {
        let before = self.report()?;
        for death in 0..DEATHS {
            let mut stranger = self.stranger()?;
            let _: String = stranger.ask(&self.order(Attempt::SendUntilKilled))?;
            thread::sleep(Duration::from_micros(500 + 777 * u64::from(death)));
            stranger.kill()?;
        }
        self.dead(&before, DEATHS, "killed while it sends long messages, 8 times")
    }

    fn half_packets(&mut self) -> Result<Row> {
        let before = self.report()?;
        let mut stranger = self.stranger()?;
        let _: String = stranger.ask(&self.order(Attempt::BeginPacketsUntilKilled))?;
        stranger.kill()?;
        self.dead(&before, 1, "killed with half a packet written in every line of its ring")
    }

    /// Waits until the receiver has noticed the death, and has released everything.
    fn dead(&mut self, before: &Report, deaths: u32, what: &str) -> Result<Row> {
        let deadline = Instant::now() + PATIENCE;
        let since = Instant::now();
        let name = "control.closed_died";
        loop {
            let now = self.report()?;
            let of = |report: &Report| report.counters.get(name).copied().unwrap_or(0);
            let rise = of(&now) - of(before);
            let is_over = rise >= u64::from(deaths) && now.links <= before.links;
            if is_over || Instant::now() > deadline {
                let is_unchanged = now.digest.as_deref() == Some(&*self.digest);
                let ms = since.elapsed().as_millis();
                return Ok(Row {
                    what: what.into(),
                    how: format!("noticed, drained and taken down {ms} ms after the last"),
                    counter: format!("{name} +{rise}"),
                    outcome: if is_over && is_unchanged {
                        Outcome::NoHarm
                    } else {
                        Outcome::NotRefused
                    },
                });
            }
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// The stranger serves, and an honest process connects.
    fn wrong_descriptor(&mut self, wrong: WrongDescriptor, what: &str) -> Result<Row> {
        let (service, socket) = stranger::trap(self.stage);
        let mut stranger = self.stranger()?;
        let attempt = Attempt::WrongDescriptors(wrong);
        let ready: Result<String> =
            stranger.ask(&stranger::Order { attempt, service: service.clone(), socket });
        if let Err(error) = ready {
            return Ok(not_done(what, &error));
        }
        let mut visitor = Actor::start(self.stage, Role::Visitor, Stdio::null(), &[])?;
        let visit: Visit = visitor.ask(&VisitorOrder { service, greeting: Vec::new() })?;
        let _: Result<String> = stranger.answer();
        let is_refused = visit.error.is_some();
        Ok(Row {
            what: what.into(),
            how: visit.error.unwrap_or_else(|| "a link was made".into()),
            counter: match visit.counters.as_slice() {
                [] => "(the client's error)".into(),
                counters => format!("by the client: {}", counters.join(", ")),
            },
            outcome: if is_refused { Outcome::Refused } else { Outcome::NotRefused },
        })
    }

    /// Shows the access that the kernel allows between any two processes of one user.
    fn same_user(&mut self) -> Result<Row> {
        let what = "a process of the same user writes into another's memory (ptrace rights)";
        let mut stranger = self.stranger()?;
        let mut sleeper = Actor::start(self.stage, Role::Sleeper, Stdio::null(), &[])?;
        let address: u64 = sleeper.ask(&SleeperOrder::Address)?;
        let attempt = Attempt::OtherMemory { pid: sleeper.pid(), address };
        let first: String = stranger.ask(&self.order(attempt))?;
        let was_changed: bool = sleeper.ask(&SleeperOrder::IsChanged)?;
        let _: bool = sleeper.ask(&SleeperOrder::Protect)?;
        let second: String = stranger.ask(&self.order(attempt))?;
        let is_changed_again: bool = sleeper.ask(&SleeperOrder::IsChanged)?;
        if is_changed_again {
            bail!("a process that may not be traced was written to");
        }
        let how = if was_changed {
            format!(
                "possible. Deny it with HAMLYN_UNDUMPABLE=yes (tried here, and then it was refused: \
                 {second}), or with a user for each program"
            )
        } else {
            format!(
                "denied on this system already ({first}); HAMLYN_UNDUMPABLE=yes denies it on any"
            )
        };
        let outcome = if was_changed { Outcome::Open } else { Outcome::Refused };
        Ok(Row { what: what.into(), how, counter: "(none)".into(), outcome })
    }
}

fn not_done(what: &str, error: &anyhow::Error) -> Row {
    Row {
        what: what.into(),
        how: format!("could not be tried: {error:#}"),
        counter: String::new(),
        outcome: Outcome::NotRefused,
    }
}

/// For the words of the table.
pub fn outcome(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Refused => "REFUSED",
        Outcome::NoHarm => "NO HARM",
        Outcome::NotRefused => "NOT REFUSED",
        Outcome::Open => "POSSIBLE",
    }
}

/// Checks that all rows of a table are as they should be.
pub fn all_refused(rows: &[Row]) -> Result<()> {
    let failed: Vec<&str> = rows
        .iter()
        .filter(|row| row.outcome == Outcome::NotRefused)
        .map(|row| &*row.what)
        .collect();
    if failed.is_empty() { Ok(()) } else { bail!("not refused: {}", failed.join("; ")) }
}

/// Starts the attacked receiver.
pub fn start_receiver(stage: &Stage) -> Result<Actor> {
    // Silence is cut off sooner than by default, so that the tour need not wait for it.
    let settings = [("HAMLYN_HANDSHAKE_TIMEOUT_MS", "1000")];
    Actor::start(stage, Role::Receiver, Stdio::null(), &settings)
        .context("the tour needs a receiver")
}
