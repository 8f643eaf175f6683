//! The protocols at work: a small real task for each, between processes, every value checked.
//!
//! ```text
//!   this process   orders, and a line of the table for each protocol
//!   host           the end points that receive; hands out a seed as text, or a name
//!   peer           grows senders from that, and uses them
//! ```
//! A wrong value is an error of the actor that finds it, and so of the tour.

use super::actor::{Actor, Role, Stage};
use super::{host, peer};
use crate::report::Section;
use anyhow::{Result, bail, ensure};
use hamlyn_tools::perf::row;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::process::Stdio;
use std::time::Duration;

/// The protocols shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Protocol {
    Seed,
    Datagram,
    Tagged,
    Call,
    Stream,
    ApertureStream,
    Group,
    Delegation,
    Aperture,
    ReadOnly,
}

impl Protocol {
    pub const ALL: [Self; 10] = [
        Self::Seed,
        Self::Datagram,
        Self::Tagged,
        Self::Call,
        Self::Stream,
        Self::ApertureStream,
        Self::Group,
        Self::Delegation,
        Self::Aperture,
        Self::ReadOnly,
    ];
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Seed => "seed",
            Self::Datagram => "datagram",
            Self::Tagged => "tagged remote write",
            Self::Call => "request and reply",
            Self::Stream => "stream",
            Self::ApertureStream => "stream through an aperture",
            Self::Group => "group",
            Self::Delegation => "helpers of a group",
            Self::Aperture => "aperture",
            Self::ReadOnly => "read-only aperture",
        })
    }
}

/// For senders: the receiver's seed as text, or its name.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Place(pub String);

/// One side's result.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Told {
    pub what: String,
    /// Its duration; 0 from the side that did not measure it.
    pub seconds: f64,
    /// From `explain`; empty on the other side.
    pub path: String,
    /// For a group: the member whose death was reported.
    pub lost: Option<peer::Lost>,
}

/// The time limit of each side's wait for the other.
pub const PATIENCE: Duration = Duration::from_secs(10);
pub const LIMIT: Option<Duration> = Some(PATIENCE);

// The amount of work for each.
pub const DATAGRAMS: u64 = 1000;
pub const WRITES: u32 = 100_000;
/// Bytes of a write, and places for them: more places than tags, so that each is checked before it
/// is used again.
pub const WRITE_BYTES: usize = 16;
pub const PLACES: u32 = 512;
pub const CALLS: u64 = 10_000;
pub const THREADS: u64 = 2;
pub const RECORDS: u64 = 100_000;
/// One record in so many is long, with so many bytes.
pub const LONG_EVERY: u64 = 10_000;
pub const LONG_BYTES: usize = 1 << 20;
pub const MEMBERS: u32 = 3;
pub const BARRIERS: u32 = 100;
pub const PART_BYTES: usize = 64 << 10;
pub const APERTURE_BYTES: u64 = 16 << 20;
/// Long records of the stream through an aperture, and helpers of one part.
pub const LONG_RECORDS: u64 = 100;
pub const HELPERS: u32 = 3;
/// The offset of the words in the read-only aperture, after the word that announces them.
pub const WORDS_AT: u64 = 64;
pub const WORDS: u64 = 10_000;

/// Word `number` of the read-only aperture.
pub fn word(number: u64) -> u64 {
    (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// The bytes of number `number`, known to both sides.
pub fn pattern(number: u64, length: usize) -> Vec<u8> {
    let words = (0..length.div_ceil(8) as u64).flat_map(|i| {
        let word = (number << 20 | i).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (word ^ word >> 29).to_le_bytes()
    });
    words.take(length).collect()
}

/// The answer to `bytes`.
pub fn inverted(bytes: &[u8]) -> Vec<u8> {
    bytes.iter().map(|byte| !byte).collect()
}

/// Bytes of record `number` of the stream.
pub fn record_bytes(number: u64) -> usize {
    if number % LONG_EVERY == LONG_EVERY - 1 { LONG_BYTES } else { number as usize % 61 }
}

/// Shows every protocol in turn, and calls `step` with each.
pub fn show(stage: &Stage, mut step: impl FnMut(Protocol)) -> Result<Vec<[String; 4]>> {
    let mut host = Actor::start(stage, Role::Host, Stdio::null(), &[])?;
    let mut peer = Actor::start(stage, Role::Peer, Stdio::null(), &[])?;
    let mut rows = Vec::new();
    for protocol in Protocol::ALL {
        step(protocol);
        let Place(place) = host.ask(&host::Order::Show(protocol))?;
        let place = match protocol {
            Protocol::Aperture | Protocol::ReadOnly => Place(stage.service(Role::Host, &place)),
            _ => Place(place),
        };
        let sent = match protocol {
            Protocol::Group => group(stage, &mut peer, &place),
            _ => peer.ask(&peer::Order::Show(protocol, place)),
        };
        let received: Result<Told> = host.answer();
        // If both failed, the first error is the cause, and the other's silence follows from it.
        let (sent, received) = match (sent, received) {
            (Ok(sent), Ok(received)) => (sent, received),
            (Err(error), Ok(_)) | (Ok(_), Err(error)) => return Err(error),
            (Err(error), Err(other)) => return Err(error.context(format!("{protocol}: {other:#}"))),
        };
        rows.push(line(protocol, &sent, &received));
    }
    Ok(rows)
}

/// A group has several members, and the last one dies.
fn group(stage: &Stage, peer: &mut Actor, place: &Place) -> Result<Told> {
    let mut others = Vec::new();
    for _ in 1..MEMBERS {
        others.push(Actor::start(stage, Role::Peer, Stdio::null(), &[])?);
    }
    peer.tell(&peer::Order::Show(Protocol::Group, place.clone()))?;
    for (i, other) in others.iter_mut().enumerate() {
        let is_last = i as u32 == MEMBERS - 2;
        other.tell(&match is_last {
            true => peer::Order::JoinAndStay(place.clone()),
            false => peer::Order::Show(Protocol::Group, place.clone()),
        })?;
    }
    let Some(mut last) = others.pop() else { bail!("a group of one") };
    let number: u32 = last.answer()?;
    last.kill()?;
    // The members learn which one was lost.
    let lost = peer::Lost { member: number, pid: last.pid() };
    let told: Told = peer.answer()?;
    for said in [Ok(told.clone())].into_iter().chain(others.iter_mut().map(Actor::answer::<Told>)) {
        ensure!(said?.lost == Some(lost), "member {number} died, and somebody was told otherwise");
    }
    Ok(told)
}

fn line(protocol: Protocol, sent: &Told, received: &Told) -> [String; 4] {
    let joined = |a: &str, b: &str| {
        [a, b].into_iter().filter(|text| !text.is_empty()).collect::<Vec<_>>().join("; ")
    };
    let seconds = sent.seconds.max(received.seconds);
    [
        protocol.to_string(),
        joined(&sent.what, &received.what),
        row::ns(seconds * 1e9),
        joined(&sent.path, &received.path),
    ]
}

pub const HEADER: [&str; 4] = ["protocol", "what happened", "took", "path"];
pub const TITLE: &str = "Protocols, each at work between processes";

/// The boundary in a path between its words on the protocol and those on the link.
const LINK: &str = "shared-memory ring to";

/// For the report: the common part of all paths is printed once.
pub fn section(rows: &[[String; 4]]) -> Section {
    let own = |path: &str| match path.split_once(LINK) {
        Some((own, _)) => own.trim_end_matches("; ").to_owned(),
        None => path.to_owned(),
    };
    let link = rows.iter().find_map(|row| row[3].split_once("; packets of")).map(|(_, link)| {
        format!(
            "Each went through a ring in shared memory to another process, packets of{}.",
            link.split(';').next().unwrap_or(link)
        )
    });
    let compared = "Every value that arrived was compared with what was sent; one that differed \
                    would have ended the tour. Seeds travelled as text.";
    Section {
        title: TITLE.into(),
        text: std::iter::once(compared.to_owned()).chain(link).collect(),
        header: HEADER.map(String::from).into(),
        rows: rows
            .iter()
            .map(|[protocol, what, took, path]| {
                vec![protocol.clone(), what.clone(), took.clone(), own(path)]
            })
            .collect(),
        ..Section::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_differ_and_have_their_length() {
        assert_eq!(pattern(7, 13).len(), 13);
        assert_eq!(pattern(7, 13), pattern(7, 13));
        assert_ne!(pattern(7, 13), pattern(8, 13));
        assert!(pattern(0, 0).is_empty());
    }
}
