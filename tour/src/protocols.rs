//! The protocols at work: a small real task for each, between processes, every value checked.
//!
//! ```text
//!   this process   orders, and a line of the table for each protocol
//!   host           the end points that receive; hands out a seed as text, or a name
//!   peer           grows senders from that, and uses them
//! ```
//! A wrong value is an error of the actor that finds it, and so of the tour.

use super::actor::{Actor, Role, Stage};
use super::tasks::{Lost, MEMBERS, Place, Protocol, Told};
use super::{host, peer};
use crate::report::Section;
use anyhow::{Result, bail, ensure};
use hamlyn_tools::perf::row;
use std::process::Stdio;

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
    let lost = Lost { member: number, pid: last.pid() };
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
