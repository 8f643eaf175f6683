//! The host: the end points that receive, one protocol at a time, and their results.

use super::actor::Orders;
use super::tasks::{
    APERTURE_BYTES, BARRIERS, CALLS, DATAGRAMS, LIMIT, LONG_BYTES, LONG_RECORDS, Lost, MEMBERS,
    PART_BYTES, PATIENCE, PLACES, Place, Protocol, RECORDS, THREADS, Told, WORDS, WORDS_AT,
    WRITE_BYTES, WRITES, inverted, member_value, pattern, record_bytes, word,
};
use anyhow::{Context, Result, bail, ensure};
use hamlyn::control::{Accept, Access};
use hamlyn::node::{CloseReason, Event, Node};
use hamlyn::os::environment;
use hamlyn::protocol::{
    ApertureStreamReceiver, DatagramReceiver, Group, GroupConfig, GroupError, Manager,
    ReceiveError, RecordBytes, Server, ServerConfig, StreamConfig, StreamReceiver, TaggedConfig,
    TaggedReceiver,
};
use hamlyn::{ApertureAccess, MetadataIndex, SlotConfig};
use hamlyn_tools::perf::{clock, row};
use serde::{Deserialize, Serialize};
use std::thread;
use std::time::Instant;

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum Order {
    /// Answers first with a seed or name, then with its result.
    Show(Protocol),
}

/// Other users connect through the shared directory if there is one.
pub fn access() -> Access {
    match environment::variable("HAMLYN_SHARED_DIR") {
        Some(_) => Access::Anyone,
        None => Access::SameUser,
    }
}

/// A manager whose seeds the actors can grow.
pub fn manager() -> Result<Manager> {
    let manager = Manager::new()?;
    manager.set_seed_access(access())?;
    Ok(manager)
}

pub fn run(mut orders: Orders) -> Result<()> {
    let manager = manager()?;
    while let Some(Order::Show(protocol)) = orders.next()? {
        let told = match protocol {
            Protocol::Seed => one_write(&manager, &mut orders),
            Protocol::Datagram => datagrams(&manager, &mut orders),
            Protocol::Tagged => writes(&manager, &mut orders),
            Protocol::Call => calls(&manager, &mut orders),
            Protocol::Stream => records(&manager, &mut orders),
            Protocol::ApertureStream => long_records(&manager, &mut orders),
            Protocol::Group => group(&manager, &mut orders),
            Protocol::Delegation => delegation(&manager, &mut orders),
            Protocol::Aperture => aperture(&mut orders),
            Protocol::ReadOnly => read_only(&mut orders),
        };
        orders.answer(told)?;
    }
    Ok(())
}

fn say_where(orders: &mut Orders, place: impl ToString) -> Result<()> {
    orders.answer(Ok(Place(place.to_string())))
}

/// Uses a seed for one write.
fn one_write(manager: &Manager, orders: &mut Orders) -> Result<Told> {
    let mut receiver = TaggedReceiver::new(manager, TaggedConfig::new(WRITE_BYTES))?;
    say_where(orders, receiver.seed()?)?;
    let tag = receiver.get_tag(LIMIT)?;
    let mut bytes = [0; WRITE_BYTES];
    receiver.read(0, &mut bytes)?;
    ensure!(tag.tag == 1 && bytes[..] == pattern(1, WRITE_BYTES), "what was written is not there");
    Ok(Told { what: "its first write arrived".into(), ..Told::default() })
}

fn datagrams(manager: &Manager, orders: &mut Orders) -> Result<Told> {
    let mut receiver = DatagramReceiver::new(manager, 4096)?;
    say_where(orders, receiver.seed()?)?;
    for number in 0..DATAGRAMS {
        let datagram = receiver.receive(LIMIT)?;
        let bytes = receiver.with_bytes(&datagram, <[u8]>::to_vec)?;
        ensure!(bytes == pattern(number, bytes.len()), "datagram {number} is not what was sent");
        receiver.ready()?;
        receiver.reply(&datagram, &inverted(&bytes), LIMIT)?;
    }
    Ok(Told::default())
}

fn writes(manager: &Manager, orders: &mut Orders) -> Result<Told> {
    let bytes = WRITE_BYTES * PLACES as usize;
    let mut receiver = TaggedReceiver::new(manager, TaggedConfig::new(bytes))?;
    say_where(orders, receiver.seed()?)?;
    let mut bytes = [0; WRITE_BYTES];
    let mut began = None;
    for number in 0..WRITES {
        let tag = receiver.get_tag(LIMIT)?;
        let began = began.get_or_insert_with(Instant::now);
        ensure!(tag.tag == number, "tag {} came where {number} was sent", tag.tag);
        receiver.read(WRITE_BYTES * (number % PLACES) as usize, &mut bytes)?;
        let is_right = bytes[..] == pattern(number.into(), WRITE_BYTES);
        ensure!(is_right, "the bytes of tag {number} are not what was sent");
        if number == WRITES - 1 {
            let seconds = began.elapsed().as_secs_f64();
            return Ok(Told { seconds, ..Told::default() });
        }
    }
    bail!("nothing was to be written")
}

fn calls(manager: &Manager, orders: &mut Orders) -> Result<Told> {
    let server = Server::new(manager, ServerConfig::default())?;
    say_where(orders, server.seed()?)?;
    let serve = || -> Result<u64> {
        let mut served = 0;
        loop {
            let request = server.receive(LIMIT)?;
            if *request == *b"stop" {
                // The request is dropped, and so declined.
                return Ok(served);
            }
            let reply = inverted(&request);
            request.reply(&reply, LIMIT)?;
            served += 1;
        }
    };
    let served: Vec<u64> = thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(serve)).collect();
        let join = |thread: thread::ScopedJoinHandle<'_, Result<u64>>| {
            thread.join().map_err(|_| anyhow::anyhow!("a thread of the server ended"))?
        };
        threads.into_iter().map(join).collect::<Result<_>>()
    })?;
    let total: u64 = served.iter().sum();
    ensure!(total == CALLS + 1, "{total} calls were replied to, of {}", CALLS + 1);
    Ok(Told { what: format!("served by {THREADS} threads"), ..Told::default() })
}

fn records(manager: &Manager, orders: &mut Orders) -> Result<Told> {
    let mut receiver = StreamReceiver::new(manager, StreamConfig::default())?;
    say_where(orders, receiver.seed()?)?;
    let (mut began, mut number, mut bytes) = (None, 0, 0);
    let reason = loop {
        let record = match receiver.receive(LIMIT) {
            Ok(record) => record,
            Err(ReceiveError::Ended(reason)) => break reason,
            Err(error) => return Err(error.into()),
        };
        began.get_or_insert_with(Instant::now);
        let length = record_bytes(number);
        let is_right = record[..] == pattern(number, length)[..];
        ensure!(is_right, "record {number} is not what was sent");
        number += 1;
        bytes += length;
    };
    ensure!(reason == CloseReason::Closed && number == RECORDS, "{number} came, then: {reason}");
    let seconds = began.context("no record came")?.elapsed().as_secs_f64();
    let what = format!("{bytes} bytes, read where they arrived");
    Ok(Told { what, seconds, ..Told::default() })
}

fn long_records(manager: &Manager, orders: &mut Orders) -> Result<Told> {
    let config = StreamConfig::default();
    let mut receiver = ApertureStreamReceiver::new(manager, config, APERTURE_BYTES)?;
    say_where(orders, receiver.seed()?)?;
    let (mut number, mut in_place) = (0, 0);
    let mut bytes = vec![0; LONG_BYTES];
    let reason = loop {
        let record = match receiver.receive(LIMIT) {
            Ok(record) => record,
            Err(ReceiveError::Ended(reason)) => break reason,
            Err(error) => return Err(error.into()),
        };
        match record.bytes()? {
            RecordBytes::Still(still) => {
                ensure!(still.len() == LONG_BYTES, "record {number} has {} bytes", still.len());
                bytes.copy_from_slice(still);
            }
            // Its sender can still change them, so the check uses a copy.
            RecordBytes::Volatile(volatile) => {
                ensure!(volatile.len() == LONG_BYTES, "record {number} is not as long");
                volatile.read(0, &mut bytes)?;
                in_place += 1;
            }
        }
        ensure!(bytes == pattern(number, LONG_BYTES), "record {number} is not what was sent");
        number += 1;
    };
    ensure!(
        reason == CloseReason::Closed && number == LONG_RECORDS,
        "{number} came, then: {reason}"
    );
    ensure!(in_place > 0, "no record went through the aperture");
    Ok(Told { what: format!("{in_place} of them read in the aperture"), ..Told::default() })
}

fn delegation(manager: &Manager, orders: &mut Orders) -> Result<Told> {
    let mut group = Group::new(manager, GroupConfig::new(1, LONG_BYTES))?;
    say_where(orders, group.seed()?)?;
    let is_right = group.gather(LIMIT)?.part(0) == Some(&pattern(0, LONG_BYTES)[..]);
    ensure!(is_right, "the pieces of the helpers do not make the part");
    group.broadcast(b"whole", LIMIT)?;
    Ok(Told { what: "which the root was told once, as one part".into(), ..Told::default() })
}

fn group(manager: &Manager, orders: &mut Orders) -> Result<Told> {
    let mut group = Group::new(manager, GroupConfig::new(MEMBERS, PART_BYTES))?;
    say_where(orders, group.seed()?)?;
    // From the second barrier on all members have joined.
    group.barrier(LIMIT)?;
    let began = Instant::now();
    for _ in 1..BARRIERS {
        group.barrier(LIMIT)?;
    }
    let barrier = row::ns(began.elapsed().as_nanos() as f64 / f64::from(BARRIERS - 1));
    let is_right = {
        let parts = group.gather(LIMIT)?;
        let is_right = |(member, part): (u32, &[u8])| part == pattern(member.into(), PART_BYTES);
        parts.count() == MEMBERS as usize && parts.iter().all(is_right)
    };
    ensure!(is_right, "the parts of the members are not what they sent");
    group.next_round();
    let value = |part: &[u8]| part.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
    let sum = group.reduce(LIMIT, 0, |sum: u64, _, part| sum + value(part))?;
    let right: u64 = (0..MEMBERS).map(member_value).sum();
    ensure!(sum == right, "the members' values add to {right}, and {sum} came out");
    group.next_round();
    let parts: Vec<Vec<u8>> =
        (0..MEMBERS).map(|member| inverted(&pattern(member.into(), PART_BYTES))).collect();
    group.scatter(LIMIT, |member| &parts[member as usize])?;
    let seconds = began.elapsed().as_secs_f64();
    let lost = match group.gather(LIMIT) {
        Err(GroupError::MemberLost { member, peer, .. }) => {
            Lost { member, pid: peer.pid.unwrap_or(0) }
        }
        Err(error) => return Err(error.into()),
        Ok(_) => bail!("the part of a member came that is dead"),
    };
    // The other members are enough, and learn of the loss.
    drop(group.wait_for(MEMBERS - 1, LIMIT)?);
    match group.broadcast(&serde_json::to_vec(&lost)?, LIMIT) {
        Err(GroupError::MemberLost { .. }) => {}
        Err(error) => return Err(error).context("the dead member is not named"),
        Ok(()) => bail!("the dead member was served"),
    }
    let deadline = Instant::now() + PATIENCE;
    while group.joined() > 0 {
        ensure!(Instant::now() < deadline, "the members do not leave");
        manager.poll()?;
        thread::yield_now();
    }
    let what = format!(
        "{BARRIERS} barriers of {MEMBERS} processes, {barrier} each; 64 KiB of each gathered, \
         reduced and scattered, each checked; member {} was killed, and was named to the others",
        lost.member
    );
    Ok(Told { what, seconds, lost: Some(lost), ..Told::default() })
}

/// The next event, within the time limit.
pub fn next_event(node: &mut Node) -> Result<Event> {
    loop {
        if let Some(event) = node.next_event() {
            return Ok(event);
        }
        ensure!(node.wait(LIMIT)?, "no event came");
    }
}

/// Remote reads: the owner writes once, and then only waits.
fn read_only(orders: &mut Orders) -> Result<Told> {
    let mut node = Node::new()?;
    node.serve(APERTURE, access(), Accept::Automatic(Vec::new()))?;
    say_where(orders, APERTURE)?;
    let Event::Connected { link, .. } = next_event(&mut node)? else { bail!("no link was made") };
    let aperture = node.export(link, APERTURE_BYTES, ApertureAccess::ReadOnly)?;
    let view = node.aperture_view(aperture)?;
    for number in 0..WORDS {
        view.write_u64(WORDS_AT + 8 * number, word(number))?;
    }
    view.write_u64(0, 1)?;
    let path = node.explain(link)?;
    while !matches!(next_event(&mut node)?, Event::Closed { .. }) {}
    for number in 0..WORDS {
        ensure!(view.read_u64(WORDS_AT + 8 * number)? == word(number), "a word was changed");
    }
    Ok(Told { what: "its owner only waited meanwhile".into(), path, ..Told::default() })
}

/// The service of the aperture's owner.
const APERTURE: &str = "aperture";

fn aperture(orders: &mut Orders) -> Result<Told> {
    let mut node = Node::new()?;
    let area = node.message_area(64)?;
    let queue = node.notification_queue(16)?;
    let slot = node.slot(SlotConfig::new(area, queue))?;
    let ticket = node.ticket(slot, MetadataIndex(0))?.to_bytes().to_vec();
    node.serve(APERTURE, access(), Accept::Automatic(ticket))?;
    say_where(orders, APERTURE)?;
    let Event::Connected { link, .. } = next_event(&mut node)? else { bail!("no link was made") };
    let aperture = node.export(link, APERTURE_BYTES, ApertureAccess::ReadWrite)?;
    let message = node.recv(queue, LIMIT)?;
    let announced = node.metadata(slot, message.index)?.user().to_vec();
    let path = node.explain(link)?;
    let mut area = None;
    let seconds = clock::seconds(|| area = Some(node.reclaim_aperture(aperture)));
    let area = area.context("not taken back")??;
    let digest = blake3::hash(node.area(area)?);
    ensure!(announced == *digest.as_bytes(), "the aperture's bytes are not what was written");
    // The other end reports its last attempt, and closes the link.
    while !matches!(next_event(&mut node)?, Event::Closed { .. }) {}
    ensure!(blake3::hash(node.area(area)?) == digest, "the bytes changed after they were taken");
    let ms = 1e3 * seconds;
    let what = format!("its owner took it back in {ms:.1} ms, and the bytes stand still since");
    Ok(Told { what, path, ..Told::default() })
}
