//! The peer: grows senders from the host's seeds, and uses them.

use super::actor::Orders;
use super::host::next_event;
use super::tasks::{
    APERTURE_BYTES, BARRIERS, CALLS, DATAGRAMS, HELPERS, LIMIT, LONG_BYTES, LONG_EVERY,
    LONG_RECORDS, PART_BYTES, PATIENCE, PLACES, Place, Protocol, RECORDS, THREADS, Told, WORDS,
    WORDS_AT, WRITE_BYTES, WRITES, inverted, member_value, pattern, record_bytes, word,
};
use anyhow::{Context, Result, anyhow, bail, ensure};
use hamlyn::Aperture;
use hamlyn::node::{ApertureEvent, Event, Node};
use hamlyn::protocol::{
    ApertureStreamSender, CallError, Client, DatagramReceiver, DatagramSender, GroupHelper,
    GroupMember, Manager, Part, Seed, SeedError, StreamSender, TaggedSender,
};
use hamlyn_tools::perf::{clock, row};
use hamlyn_tools::tickets::ticket_of;
use serde::{Deserialize, Serialize};
use std::thread;
use std::time::Instant;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Order {
    /// Uses the end point there, and answers with its result.
    Show(Protocol, Place),
    /// Joins a group like other members, answers with its number, and is then killed.
    JoinAndStay(Place),
}

pub fn run(mut orders: Orders) -> Result<()> {
    let manager = super::host::manager()?;
    while let Some(order) = orders.next()? {
        let (protocol, place) = match order {
            Order::Show(protocol, Place(place)) => (protocol, place),
            Order::JoinAndStay(Place(place)) => {
                let member = place.parse().map_err(Into::into);
                let member = member.and_then(|seed| join(&manager, &seed));
                orders
                    .answer(member.as_ref().map(GroupMember::number).map_err(|e| anyhow!("{e}")))?;
                loop {
                    thread::park();
                }
            }
        };
        let seed = || Ok(place.parse::<Seed>()?);
        let told = match protocol {
            Protocol::Seed => grown(&manager, &place),
            Protocol::Datagram => seed().and_then(|seed| datagrams(&manager, &seed)),
            Protocol::Tagged => seed().and_then(|seed| writes(&manager, &seed)),
            Protocol::Call => seed().and_then(|seed| calls(&manager, &seed)),
            Protocol::Stream => seed().and_then(|seed| records(&manager, &seed)),
            Protocol::Group => seed().and_then(|seed| group(&manager, &seed)),
            Protocol::ApertureStream => seed().and_then(|seed| long_records(&manager, &seed)),
            Protocol::Delegation => seed().and_then(|seed| delegation(&manager, &seed)),
            Protocol::Aperture => aperture(&place),
            Protocol::ReadOnly => read_only(&place),
        };
        orders.answer(told)?;
    }
    Ok(())
}

/// The printable part of a seed: without its token, and without its checksum, which depends on the
/// token.
fn shortened(text: &str) -> String {
    format!("{}.., {} digits, the rest is a secret", text.get(..16).unwrap_or(""), text.len())
}

fn grown(manager: &Manager, text: &str) -> Result<Told> {
    let seed: Seed = text.parse()?;
    ensure!(seed.to_string() == text, "a seed is not the text that it was read from");
    let mut changed = text.to_owned();
    let last = if changed.pop() == Some('0') { '1' } else { '0' };
    changed.push(last);
    ensure!(changed.parse::<Seed>() == Err(SeedError::Checksum), "a changed seed was not noticed");
    let began = Instant::now();
    let mut sender = TaggedSender::grow(manager, &seed, LIMIT)?;
    let seconds = began.elapsed().as_secs_f64();
    // Before the last message, after which the receiver may leave.
    let path = sender.explain();
    sender.send(0, &pattern(1, WRITE_BYTES), 1, LIMIT)?;
    let what = format!(
        "the seed of a receiver of {} ({}) grew into a sender here",
        seed.kind(),
        shortened(text)
    );
    Ok(Told { what, seconds, path, lost: None })
}

fn datagrams(manager: &Manager, seed: &Seed) -> Result<Told> {
    let mut sender = DatagramSender::grow(manager, seed, LIMIT)?;
    let mut answers = DatagramReceiver::new(manager, 4096)?;
    let ticket = answers.reply_ticket();
    let path = sender.explain();
    let began = Instant::now();
    for number in 0..DATAGRAMS {
        let sent = pattern(number, number as usize % 1024);
        sender.send(&sent, number % 64 * 8, Some(&ticket), LIMIT)?;
        let datagram = answers.receive(LIMIT)?;
        let answer = answers.with_bytes(&datagram, <[u8]>::to_vec)?;
        ensure!(answer == inverted(&sent), "the answer to datagram {number} is not that");
        answers.ready()?;
    }
    let seconds = began.elapsed().as_secs_f64();
    let what = format!(
        "{DATAGRAMS} datagrams of up to 1023 bytes, each answered with its reply ticket, {} a \
         round trip",
        row::ns(seconds * 1e9 / DATAGRAMS as f64)
    );
    Ok(Told { what, seconds, path, lost: None })
}

fn writes(manager: &Manager, seed: &Seed) -> Result<Told> {
    let mut sender = TaggedSender::grow(manager, seed, LIMIT)?;
    let path = sender.explain();
    for number in 0..WRITES {
        let place = u64::from(number % PLACES) * WRITE_BYTES as u64;
        sender.send(place, &pattern(number.into(), WRITE_BYTES), number, LIMIT)?;
    }
    let what = format!("{WRITES} writes of {WRITE_BYTES} bytes, bytes and tag of each checked");
    Ok(Told { what, path, ..Told::default() })
}

fn calls(manager: &Manager, seed: &Seed) -> Result<Told> {
    let client = Client::grow(manager, seed, LIMIT)?;
    let call = |number: u64, length: usize| -> Result<()> {
        let request = pattern(number, length);
        let reply = client.call(&request, LIMIT)?;
        ensure!(*reply == inverted(&request), "the reply to call {number} is not that");
        Ok(())
    };
    let each = CALLS / THREADS;
    let began = Instant::now();
    let done: Vec<Result<()>> = thread::scope(|scope| {
        let of = |thread: u64| thread * each..(thread + 1) * each;
        let run = |thread: u64| move || of(thread).try_for_each(|number| call(number, 16));
        let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(run(thread))).collect();
        let ended = |_| Err(anyhow!("a thread of the client ended"));
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(ended)).collect()
    });
    done.into_iter().collect::<Result<()>>()?;
    let seconds = began.elapsed().as_secs_f64();
    call(CALLS, LONG_BYTES)?;
    let path = client.explain();
    for _ in 0..THREADS {
        match client.call(b"stop", LIMIT) {
            Err(CallError::Declined | CallError::Ended(_)) => {}
            Err(error) => return Err(error).context("a call that is not replied to"),
            Ok(_) => bail!("a call that is not replied to has a reply"),
        }
    }
    let what = format!(
        "{CALLS} calls by {THREADS} threads, each reply checked, {} a call, and one of 1 MiB",
        row::ns(seconds * 1e9 / each as f64)
    );
    Ok(Told { what, seconds, path, lost: None })
}

fn records(manager: &Manager, seed: &Seed) -> Result<Told> {
    let mut sender = StreamSender::grow(manager, seed, LIMIT)?;
    for number in 0..RECORDS {
        sender.send(&pattern(number, record_bytes(number)), LIMIT)?;
    }
    sender.flush(LIMIT)?;
    let path = sender.explain();
    sender.close(LIMIT)?;
    let long = RECORDS / LONG_EVERY;
    let what = format!(
        "{RECORDS} records, most of up to 60 bytes, {long} of 1 MiB, each checked, in their order"
    );
    Ok(Told { what, path, ..Told::default() })
}

fn long_records(manager: &Manager, seed: &Seed) -> Result<Told> {
    let mut sender = ApertureStreamSender::grow(manager, seed, LIMIT)?;
    let began = Instant::now();
    for number in 0..LONG_RECORDS {
        sender.send(&pattern(number, LONG_BYTES), LIMIT)?;
    }
    sender.flush(LIMIT)?;
    let seconds = began.elapsed().as_secs_f64();
    let path = sender.explain();
    sender.close(LIMIT)?;
    let what = format!("{LONG_RECORDS} records of 1 MiB, each checked");
    Ok(Told { what, seconds, path, lost: None })
}

fn delegation(manager: &Manager, seed: &Seed) -> Result<Told> {
    let mut member = GroupMember::grow(manager, seed, LONG_BYTES, LIMIT)?;
    let whole = pattern(0, LONG_BYTES);
    let began = Instant::now();
    let pieces = member.delegate(LONG_BYTES, HELPERS, LIMIT)?;
    // Before its report to the root, which may then leave.
    let path = member.explain();
    let mut rest = &whole[..];
    let help = |piece: Part, bytes: &[u8]| -> Result<()> {
        let mut helper = GroupHelper::grow(&super::host::manager()?, seed, LIMIT)?;
        helper.send(&piece, bytes, LIMIT)?;
        Ok(())
    };
    thread::scope(|scope| {
        let mut helpers = Vec::new();
        for piece in pieces {
            let (bytes, after) = rest.split_at(piece.length());
            rest = after;
            helpers.push(scope.spawn(move || help(piece, bytes)));
        }
        let ended = |_| Err(anyhow!("a helper's thread ended"));
        helpers.into_iter().try_for_each(|helper| helper.join().unwrap_or_else(ended))
    })?;
    ensure!(member.receive(LIMIT)? == b"whole", "the root says something else");
    let seconds = began.elapsed().as_secs_f64();
    let what = format!(
        "a member's part of 1 MiB, divided among {HELPERS} helpers with a node of their own each"
    );
    Ok(Told { what, seconds, path, lost: None })
}

fn read_only(service: &str) -> Result<Told> {
    let mut node = Node::new()?;
    let _ = node.connect(service, b"", Some(PATIENCE))?;
    let aperture = held(&mut node)?;
    let deadline = Instant::now() + PATIENCE;
    while aperture.read_u64(0)? == 0 {
        ensure!(Instant::now() < deadline, "the owner does not write");
        thread::yield_now();
    }
    let began = Instant::now();
    for number in 0..WORDS {
        // At scattered places, like a lookup.
        let number = number * 7919 % WORDS;
        let value = aperture.read_u64(WORDS_AT + 8 * number)?;
        ensure!(value == word(number), "word {number} is not what its owner wrote");
    }
    let seconds = began.elapsed().as_secs_f64();
    let refused = aperture.write_u64(WORDS_AT, 0).err().context("it could be written")?;
    node.close(LIMIT)?;
    let each = row::ns(1e9 * seconds / WORDS as f64);
    let what = format!("{WORDS} remote reads of a word, {each} each; a write: {refused}");
    Ok(Told { what, seconds, ..Told::default() })
}

/// The steps that all members take.
fn join(manager: &Manager, seed: &Seed) -> Result<GroupMember> {
    let mut member = GroupMember::grow(manager, seed, PART_BYTES, LIMIT)?;
    let number = member.number();
    for _ in 0..BARRIERS {
        member.barrier(LIMIT)?;
    }
    let part = pattern(number.into(), PART_BYTES);
    member.send(&part, LIMIT)?;
    member.send(&member_value(number).to_le_bytes(), LIMIT)?;
    let scattered = member.receive(LIMIT)?;
    ensure!(scattered == inverted(&part), "what was scattered to member {number} is not that");
    Ok(member)
}

fn group(manager: &Manager, seed: &Seed) -> Result<Told> {
    let mut member = join(manager, seed)?;
    member.send(b"still here", LIMIT)?;
    let path = member.explain();
    let lost = serde_json::from_slice(&member.receive(LIMIT)?)?;
    Ok(Told { path, lost: Some(lost), ..Told::default() })
}

/// The aperture that the other end exports.
fn held(node: &mut Node) -> Result<Aperture> {
    loop {
        match next_event(node)? {
            Event::Aperture { aperture, what: ApertureEvent::Held } => {
                return Ok(node.aperture(aperture)?);
            }
            Event::Closed { reason, .. } => bail!("the owner is gone: {reason}"),
            _ => {}
        }
    }
}

fn aperture(service: &str) -> Result<Told> {
    let mut node = Node::new()?;
    let link = node.connect(service, b"", Some(PATIENCE))?;
    let ticket = ticket_of(node.peer(link)?, node.greeting(link)?)?;
    let aperture = held(&mut node)?;
    let data = pattern(1, APERTURE_BYTES as usize);
    let digest = blake3::hash(&data);
    let mut written = Ok(());
    let seconds = clock::seconds(|| written = aperture.write(0, &data));
    written?;
    node.send(&ticket, b"", digest.as_bytes(), LIMIT)?;
    while !aperture.is_revoked() {
        next_event(&mut node)?;
    }
    let too_late =
        aperture.write(0, b"too late").err().context("a revoked aperture was written")?;
    node.close(LIMIT)?;
    let what = format!(
        "16 MiB written straight into the owner's memory, {}, their digest checked; later \
         writes: {too_late}",
        row::per_second(data.len() as f64 / seconds, "B")
    );
    Ok(Told { what, seconds, ..Told::default() })
}
