//! The targets of the attacks on protocols: a host with an end point of each kind, all at work at
//! once, and the honest peer that goes on using them.
//!
//! Each of the host's end points has a thread; each fault of a stranger becomes a line of the
//! report. So does a wrong value from the honest peer, which would be our own fault.

use super::actor::Orders;
use super::host::{access, manager, next_event};
use super::rogue::FIRST_TAG;
use super::tasks::{LIMIT, PATIENCE, PLACES, WRITE_BYTES, inverted, pattern};
use anyhow::{Context, Result, bail, ensure};
use hamlyn::control::Accept;
use hamlyn::node::{ApertureEvent, Event, Node};
use hamlyn::protocol::{
    CallError, Client, ClientConfig, DatagramReceiver, DatagramSender, Group, GroupConfig,
    GroupMember, Manager, ReceiveError, Seed, Server, ServerConfig, StreamConfig, StreamReceiver,
    StreamSender, TaggedConfig, TaggedReceiver, TaggedSender,
};
use hamlyn::{ApertureAccess, AreaId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// Seeds of the host's end points, as text.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Places {
    pub call: String,
    pub tagged: String,
    /// One receiver each: senders of one datagram receiver share its entry.
    pub datagram: String,
    pub datagram_of_strangers: String,
    pub stream: String,
    /// The seed of a receiver that has been dropped.
    pub gone: String,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum HostOrder {
    Report,
    /// Makes another stream, for a stranger; answers with its seed.
    Stream,
    /// Makes a group of two, which gathers two rounds; answers with its seed.
    Group,
    /// Lends an aperture to any client; answers with the service, and again when it is revoked.
    Aperture,
    /// Whether the bytes of the revoked aperture are unchanged.
    IsStill,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Report {
    pub counters: BTreeMap<String, u64>,
    /// The reports of the end points about their peers, in order.
    pub said: Vec<String>,
    /// Honest values that came, each checked.
    pub honest: u64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum PeerOrder {
    /// Grow a sender of each kind.
    Begin(Places),
    /// Use all of them; answers with the number of values that the host must have taken.
    Check,
    /// Grow a sender from each seed, which must fail; answers with the errors.
    BadSeeds(Vec<String>),
    /// Read a seed cut off at every place; answers with the last error.
    CutSeed(String),
    /// Call the server there, which must fail; answers with the error.
    Call(String),
    /// Be a member of the group for two rounds.
    Join(String),
}

/// Bytes of a part of a group. Strangers' and honest parts differ in their content.
pub const PART: usize = 64;
const APERTURE: &str = "lent";
const APERTURE_BYTES: u64 = 64 << 10;

// ---- the host

#[derive(Default)]
struct Notes {
    said: Mutex<Vec<String>>,
    honest: AtomicU64,
}

impl Notes {
    fn say(&self, text: impl ToString) {
        self.said.lock().unwrap_or_else(PoisonError::into_inner).push(text.to_string());
    }

    fn check(&self, is_right: bool, what: &str) {
        if is_right {
            self.honest.fetch_add(1, Ordering::Relaxed);
        } else {
            self.say(format!("{WRONG}: {what}"));
        }
    }
}

/// The beginning of a line that must not be in the report.
pub const WRONG: &str = "WRONG";

pub fn host(mut orders: Orders) -> Result<()> {
    let manager = manager()?;
    let notes = Arc::new(Notes::default());
    let server = Arc::new(Server::new(
        &manager,
        ServerConfig { request_bytes: 256, ..ServerConfig::default() },
    )?);
    let tagged_bytes = WRITE_BYTES * (PLACES as usize + 1);
    let tagged = TaggedReceiver::new(
        &manager,
        TaggedConfig { tags: 32, ..TaggedConfig::new(tagged_bytes) },
    )?;
    let datagrams =
        [DatagramReceiver::new(&manager, 4096)?, DatagramReceiver::new(&manager, 4096)?];
    let stream = StreamReceiver::new(&manager, StreamConfig::default())?;
    let gone = TaggedReceiver::new(&manager, TaggedConfig::new(64))?.seed()?;
    let places = Places {
        call: server.seed()?.to_string(),
        tagged: tagged.seed()?.to_string(),
        datagram: datagrams[0].seed()?.to_string(),
        datagram_of_strangers: datagrams[1].seed()?.to_string(),
        stream: stream.seed()?.to_string(),
        gone: gone.to_string(),
    };
    for _ in 0..2 {
        let server = server.clone();
        thread::spawn(move || serve(&server));
    }
    let to = notes.clone();
    thread::spawn(move || take_tags(tagged, &to));
    for receiver in datagrams {
        let to = notes.clone();
        thread::spawn(move || take_datagrams(receiver, &to));
    }
    let to = notes.clone();
    thread::spawn(move || take_records(stream, &to));
    orders.answer(Ok(places))?;
    let mut lent: Option<(Node, AreaId)> = None;
    while let Some(order) = orders.next()? {
        match order {
            HostOrder::Report => orders.answer(Ok(report(&manager, &server, &notes)))?,
            HostOrder::Stream => {
                let made = StreamReceiver::new(&manager, StreamConfig::default());
                let seed = made.map_err(Into::into).and_then(|stream| {
                    let seed = stream.seed()?.to_string();
                    let to = notes.clone();
                    thread::spawn(move || take_records(stream, &to));
                    Ok(seed)
                });
                orders.answer(seed)?;
            }
            HostOrder::Group => {
                let made = Group::new(&manager, GroupConfig::new(2, PART));
                let seed = made.map_err(Into::into).and_then(|group| {
                    let seed = group.seed()?.to_string();
                    let to = notes.clone();
                    thread::spawn(move || gather(group, &to));
                    Ok(seed)
                });
                orders.answer(seed)?;
            }
            HostOrder::Aperture => {
                // The service of the last aperture ends with it.
                drop(lent.take());
                let result = lend(&mut orders).map(|taken| lent = Some(taken));
                orders.answer(result)?;
            }
            HostOrder::IsStill => {
                let is_still =
                    lent.as_ref().context("nothing was lent").and_then(|(node, area)| {
                        Ok(node.area(*area)? == pattern(1, APERTURE_BYTES as usize))
                    });
                orders.answer(is_still)?;
            }
        }
    }
    Ok(())
}

fn report(manager: &Manager, server: &Server, notes: &Notes) -> Report {
    let mut counters: BTreeMap<String, u64> = manager
        .lock()
        .counters()
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect();
    counters.insert("Server::misbehaved".into(), server.misbehaved());
    let said = notes.said.lock().unwrap_or_else(PoisonError::into_inner).clone();
    Report { counters, said, honest: notes.honest.load(Ordering::Relaxed) }
}

fn serve(server: &Server) {
    loop {
        // A client that leaves before its reply is no failure of the server.
        if let Ok(request) = server.receive(None) {
            let reply = inverted(&request);
            let _ = request.reply(&reply, LIMIT);
        }
    }
}

fn take_tags(mut receiver: TaggedReceiver, notes: &Notes) {
    loop {
        match receiver.get_tag(None) {
            // Slowly, so that a sender that ignores its credit exceeds it.
            Ok(tag) if tag.tag >= FIRST_TAG => thread::sleep(Duration::from_millis(1)),
            Ok(tag) => {
                let mut bytes = [0; WRITE_BYTES];
                let place = WRITE_BYTES * (tag.tag % PLACES) as usize;
                let is_read = receiver.read(place, &mut bytes).is_ok();
                let is_right = is_read && bytes[..] == pattern(tag.tag.into(), WRITE_BYTES);
                notes.check(is_right, "a tagged write");
            }
            Err(error) => return notes.say(format!("tagged remote write: {error}")),
        }
    }
}

fn take_datagrams(mut receiver: DatagramReceiver, notes: &Notes) {
    loop {
        match receiver.receive(None) {
            Ok(datagram) => {
                let bytes = receiver.with_bytes(&datagram, <[u8]>::to_vec).unwrap_or_default();
                let _ = receiver.ready();
                let _ = receiver.reply(&datagram, &inverted(&bytes), LIMIT);
            }
            // It is ready for the next.
            Err(ReceiveError::Misbehaved(why)) => notes.say(format!("Misbehaved: {why}")),
            Err(error) => return notes.say(format!("datagram: {error}")),
        }
    }
}

fn take_records(mut receiver: StreamReceiver, notes: &Notes) {
    let mut number = 0;
    loop {
        match receiver.receive(None) {
            Ok(record) => {
                notes.check(record[..] == pattern(number, 32)[..], "a record");
                number += 1;
            }
            Err(ReceiveError::Misbehaved(why)) => return notes.say(format!("Misbehaved: {why}")),
            Err(error) => return notes.say(format!("stream: {error}")),
        }
    }
}

/// Two rounds of two members, one of them honest.
fn gather(mut group: Group, notes: &Notes) {
    let honest = |part: &[u8]| part == pattern(1, PART);
    let first = group.gather(LIMIT).map(|parts| {
        // The stranger's part is the first one it sent.
        parts.iter().all(|(_, part)| honest(part) || part == [7; PART])
    });
    match first {
        Ok(is_right) => notes.check(is_right, "the parts of a group"),
        Err(error) => notes.say(&error),
    }
    group.next_round();
    match group.wait_for(1, LIMIT).map(|parts| parts.iter().any(|(_, part)| honest(part))) {
        Ok(is_right) => notes.check(is_right, "the part of an honest member"),
        Err(error) => notes.say(format!("{WRONG}: {error}")),
    }
    // The honest member leaves after its part.
    let _ = group.wait_for(2, Some(Duration::from_secs(1)));
}

/// Lends an aperture to any client, and takes it back.
fn lend(orders: &mut Orders) -> Result<(Node, AreaId)> {
    let mut node = Node::new()?;
    node.serve(APERTURE, access(), Accept::Automatic(Vec::new()))?;
    orders.answer(Ok(APERTURE))?;
    let Event::Connected { link, .. } = next_event(&mut node)? else { bail!("no link was made") };
    let aperture = node.export(link, APERTURE_BYTES, ApertureAccess::ReadWrite)?;
    loop {
        match next_event(&mut node)? {
            Event::Aperture { what: ApertureEvent::Ready, .. } => break,
            Event::Aperture { what: ApertureEvent::Refused(reason), .. } => {
                bail!("the stranger does not hold it: {reason}")
            }
            Event::Aperture { .. } => bail!("the stranger does not hold it any more"),
            _ => {}
        }
    }
    node.aperture_view(aperture)?.write(0, &pattern(1, APERTURE_BYTES as usize))?;
    let area = node.reclaim_aperture(aperture)?;
    Ok((node, area))
}

// ---- the honest peer

struct Honest {
    client: Client,
    tagged: TaggedSender,
    datagrams: DatagramSender,
    answers: DatagramReceiver,
    stream: StreamSender,
    /// Writes and records so far.
    writes: u32,
    records: u64,
}

/// Values of each kind in one check.
const EACH: u32 = 50;

pub fn peer(mut orders: Orders) -> Result<()> {
    let manager = manager()?;
    let mut honest = None;
    while let Some(order) = orders.next()? {
        match order {
            PeerOrder::Begin(places) => {
                let begun = Honest::new(&manager, &places).map(|it| honest = Some(it));
                orders.answer(begun)?;
            }
            PeerOrder::Check => {
                let checked = honest.as_mut().context("not begun").and_then(Honest::check);
                orders.answer(checked)?;
            }
            PeerOrder::BadSeeds(seeds) => orders.answer(bad_seeds(&manager, &seeds))?,
            PeerOrder::CutSeed(seed) => orders.answer(cut_seed(&seed))?,
            PeerOrder::Call(service) => orders.answer(call(&manager, &service))?,
            PeerOrder::Join(seed) => orders.answer(join(&manager, &seed))?,
        }
    }
    Ok(())
}

impl Honest {
    fn new(manager: &Manager, places: &Places) -> Result<Self> {
        Ok(Self {
            client: Client::grow(manager, &places.call.parse()?, LIMIT)?,
            tagged: TaggedSender::grow(manager, &places.tagged.parse()?, LIMIT)?,
            datagrams: DatagramSender::grow(manager, &places.datagram.parse()?, LIMIT)?,
            answers: DatagramReceiver::new(manager, 4096)?,
            stream: StreamSender::grow(manager, &places.stream.parse()?, LIMIT)?,
            writes: 0,
            records: 0,
        })
    }

    fn check(&mut self) -> Result<u64> {
        for number in 0..EACH {
            let sent = pattern(number.into(), 64);
            let reply = self.client.call(&sent, LIMIT).context("a call")?;
            ensure!(*reply == inverted(&sent), "a reply is wrong");
            let place = u64::from(self.writes % PLACES) * WRITE_BYTES as u64;
            let write = pattern(self.writes.into(), WRITE_BYTES);
            self.tagged.send(place, &write, self.writes, LIMIT).context("a tagged write")?;
            self.writes += 1;
            let ticket = self.answers.reply_ticket();
            self.datagrams.send(&sent, 0, Some(&ticket), LIMIT).context("a datagram")?;
            let answer = self.answers.receive(LIMIT).context("an answer")?;
            let answer = self.answers.with_bytes(&answer, <[u8]>::to_vec)?;
            ensure!(answer == inverted(&sent), "the answer to a datagram is wrong");
            self.answers.ready()?;
            self.stream.send(&pattern(self.records, 32), LIMIT).context("a record")?;
            self.records += 1;
        }
        self.stream.flush(LIMIT).context("records")?;
        Ok(u64::from(self.writes) + self.records)
    }
}

fn bad_seeds(manager: &Manager, seeds: &[String]) -> Result<Vec<String>> {
    let grow = |text: &String| match text.parse::<Seed>() {
        Err(error) => Ok(error.to_string()),
        Ok(seed) => match TaggedSender::grow(manager, &seed, LIMIT) {
            Err(error) => Ok(error.to_string()),
            Ok(_) => bail!("a sender grew from it"),
        },
    };
    seeds.iter().map(grow).collect()
}

fn cut_seed(text: &str) -> Result<String> {
    let mut last = String::new();
    for length in 0..text.len() {
        match text[..length].parse::<Seed>() {
            Err(error) => last = error.to_string(),
            Ok(_) => bail!("{length} digits of {} were read as a seed", text.len()),
        }
    }
    Ok(last)
}

fn call(manager: &Manager, service: &str) -> Result<String> {
    let config = ClientConfig { reply_bytes: 64, outstanding: 16, ..ClientConfig::default() };
    let client = match Client::connect_with(manager, service, config, LIMIT) {
        Err(error) => return Ok(error.to_string()),
        Ok(client) => client,
    };
    match client.call(b"question", Some(PATIENCE)) {
        Err(error @ CallError::Misbehaved(_)) => Ok(error.to_string()),
        Err(error) => Err(error).context("the client was not warned"),
        Ok(_) => bail!("the client was not warned: it has a reply"),
    }
}

fn join(manager: &Manager, seed: &str) -> Result<()> {
    let mut member = GroupMember::grow(manager, &seed.parse()?, PART, LIMIT)?;
    for _ in 0..2 {
        member.send(&pattern(1, PART), LIMIT)?;
    }
    Ok(())
}
