//! The stranger's attacks on protocols: it has a seed, as every process may, and then breaks the
//! rules that the library would follow.

use super::actor::Orders;
use super::by_hand::Guest;
use super::host::{access, next_event};
use super::tasks::{LIMIT, PATIENCE};
use anyhow::{Context, Result, bail};
use hamlyn::control::frame::{Frame, MemoryWord};
use hamlyn::control::{Accept, RequestId};
use hamlyn::node::{Event, Node};
use hamlyn::protocol::{Kind, Seed};
use hamlyn::wire::{Flags, Key, MetadataIndex, NodeId, Share, SlotIndex, TICKET_BYTES, Ticket};
use hamlyn::{LinkId, QueueId, SlotConfig};
use rustix::fs::FallocateFlags;
use serde::{Deserialize, Serialize};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

/// The attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Rogue {
    /// A seed of its own making.
    ForgedSeed,
    /// The greeting of a sender of another protocol.
    OtherKind,
    /// Every kind of malformed greeting.
    BadGreetings,
    /// A code that fits no state of a call.
    CallOutOfState,
    /// A call's number beyond those agreed.
    CallOutOfRange,
    /// A length beyond the block of its call.
    CallBeyondBlock,
    /// Sends requests on and on, and takes no answer out of its ring.
    CallGreedy,
    /// More tags than its credit.
    NoCredit,
    /// Metadata that contradicts the datagram.
    Datagram,
    /// A record that reaches beyond its message.
    StreamFraming,
    /// A message that claims to be longer than its buffer.
    StreamMark,
    /// Two parts for one round.
    GroupTwice,
    /// A part that claims to be longer than its place.
    GroupLength,
    /// Keeps the pages of an aperture, and goes on writing after it was revoked.
    Aperture,
    /// Keeps the lock of an aperture's inode busy while it is taken back.
    BusyAperture,
    /// Serves as a false server.
    Serve(Trap),
}

/// The lie of a server to its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Trap {
    /// Random bytes in answer to the greeting.
    Answer,
    /// A reply to a call whose number does not exist.
    NoSuchCall,
    /// A reply to a call that was not made.
    NotCalled,
    /// A reply longer than the client's block.
    BeyondBlock,
}

const KIND: std::ops::Range<usize> = 32..36;
const TOKEN: std::ops::Range<usize> = 16..32;
const ANSWER_HEAD: usize = 8;
const CALL_BITS: u32 = 20;
const ASK: u32 = 4095;
const TOO_LONG: u32 = 4093;
const LENGTH_MAX: u32 = 4088;
/// The first tag of the stranger's.
pub const FIRST_TAG: u32 = 1 << 31;

/// The public parts of a seed.
struct Parts {
    kind: Kind,
    token: [u8; 16],
    service: String,
}

impl Parts {
    fn of(text: &str) -> Result<Self> {
        let bytes = text.parse::<Seed>()?.to_bytes();
        let service = &bytes[KIND.end..bytes.len() - 4];
        Ok(Self {
            kind: Kind::from_number(u32::from_le_bytes(bytes[KIND].try_into()?)),
            token: bytes[TOKEN].try_into()?,
            service: String::from_utf8(service.to_vec())?,
        })
    }

    fn greeting(&self, body: &[u8]) -> Vec<u8> {
        [b"HGr2", &self.kind.number().to_le_bytes()[..], &self.token, body].concat()
    }

    /// The receiver's answer to a greeting that it must refuse.
    fn refusal(&self, greeting: &[u8]) -> Result<String> {
        let mut node = Node::new()?;
        match node.connect(&self.service, greeting, Some(PATIENCE)) {
            Err(error) => Ok(error.to_string()),
            Ok(_) => bail!("a sender was let in with the greeting {greeting:02x?}"),
        }
    }
}

/// A raw node that was admitted.
struct Intruder {
    node: Node,
    link: LinkId,
    answer: Vec<u8>,
}

impl Intruder {
    fn enter(seed: &str, body: impl FnOnce(&mut Node, QueueId) -> Result<Vec<u8>>) -> Result<Self> {
        let parts = Parts::of(seed)?;
        let mut node = Node::new()?;
        let queue = node.notification_queue(64)?;
        let body = body(&mut node, queue)?;
        let link = node.connect(&parts.service, &parts.greeting(&body), Some(PATIENCE))?;
        let answer = node.greeting(link)?.get(ANSWER_HEAD..).context("no answer")?.to_vec();
        Ok(Self { node, link, answer })
    }

    fn ticket(&self, at: usize) -> Result<Ticket> {
        let bytes = self.answer.get(at..at + TICKET_BYTES).context("no ticket")?;
        Ok(Ticket::from_bytes(bytes)?)
    }

    fn number(&self, at: usize) -> Result<u32> {
        number(&self.answer, at)
    }

    /// Waits until the other end has closed the link.
    fn is_sent_away(&mut self) -> Result<String> {
        loop {
            if let Event::Closed { link, reason, .. } = next_event(&mut self.node)?
                && link == self.link
            {
                return Ok(format!("sent away ({reason})"));
            }
        }
    }
}

fn number(bytes: &[u8], at: usize) -> Result<u32> {
    let bytes = bytes.get(at..).and_then(<[u8]>::first_chunk).context("no number")?;
    Ok(u32::from_le_bytes(*bytes))
}

/// A ticket for fast packets into fresh memory of this node.
fn lend_fast(node: &mut Node, queue: QueueId, bytes: usize) -> Result<Ticket> {
    let area = node.message_area(bytes)?;
    let slot = node.slot(SlotConfig::new(area, queue).credit(16))?;
    Ok(node.fast_ticket(slot)?)
}

/// A ticket for messages.
fn lend(node: &mut Node, queue: QueueId, bytes: usize) -> Result<Ticket> {
    let area = node.message_area(bytes)?;
    let slot = node.slot(SlotConfig::new(area, queue).credit(16))?;
    Ok(node.ticket(slot, MetadataIndex(0))?)
}

/// `calls` blocks of `block` bytes, in the format that both sides of request and reply use.
fn lend_blocks(node: &mut Node, queue: QueueId, block: u32, calls: u32) -> Result<Vec<u8>> {
    let ticket = lend_fast(node, queue, (block * calls) as usize)?;
    Ok([&ticket.to_bytes()[..], &block.to_le_bytes(), &calls.to_le_bytes()].concat())
}

pub fn attempt(rogue: Rogue, seed: &str, socket: &Path) -> Result<String> {
    match rogue {
        Rogue::ForgedSeed => {
            let mut parts = Parts::of(seed)?;
            parts.token.iter_mut().for_each(|byte| *byte ^= 0x5a);
            parts.refusal(&parts.greeting(&[]))
        }
        Rogue::OtherKind => {
            let mut parts = Parts::of(seed)?;
            parts.kind = if parts.kind == Kind::STREAM { Kind::DATAGRAM } else { Kind::STREAM };
            parts.refusal(&parts.greeting(&[]))
        }
        Rogue::BadGreetings => bad_greetings(seed),
        Rogue::CallOutOfState => call(seed, 0, TOO_LONG),
        Rogue::CallOutOfRange => call(seed, 100_000, 8),
        Rogue::CallBeyondBlock => call(seed, 0, LENGTH_MAX),
        Rogue::CallGreedy => greedy(seed),
        Rogue::NoCredit => no_credit(seed),
        Rogue::Datagram => datagram(seed),
        Rogue::StreamFraming => {
            // One record of 1000 bytes in a message of 12.
            let message = [&1000u32.to_le_bytes()[..], &[7; 8]].concat();
            stream(seed, &message, &(1 << 31 | 12u32).to_le_bytes())
        }
        Rogue::StreamMark => stream(seed, &[7; 12], &((1u32 << 30) - 1).to_le_bytes()),
        Rogue::GroupTwice => group(seed, &[(7, 64), (8, 64)]).map(|_| "sent twice".into()),
        Rogue::GroupLength => {
            let mut member = group(seed, &[(7, u64::MAX)])?;
            member.is_sent_away()
        }
        Rogue::Aperture => aperture(socket, 0),
        Rogue::BusyAperture => aperture(socket, 8),
        Rogue::Serve(_) => bail!("this attempt is made elsewhere"),
    }
}

fn bad_greetings(seed: &str) -> Result<String> {
    let parts = Parts::of(seed)?;
    let good = parts.greeting(&[]);
    let mut greetings: Vec<Vec<u8>> = Vec::new();
    // Cut off at many places, also within the ticket at its end.
    greetings.extend((0..good.len() + TICKET_BYTES).step_by(3).map(|length| {
        let mut greeting = good.clone();
        greeting.resize(length, 0);
        greeting
    }));
    // Of unknown kinds, or another's; with a body of noise, and one that is too long.
    for kind in [0, 1, 2, 3, 5, 6, 255, u32::MAX] {
        let kind = Kind::from_number(kind);
        greetings.push(Parts { kind, ..Parts::of(seed)? }.greeting(&[0xa5; 60]));
    }
    greetings.push([&good[..], &[0xff; 400]].concat());
    // A ticket that leads to another process, with blocks; and blocks of impossible sizes.
    let foreign = Ticket {
        destination: NodeId(1),
        slot: SlotIndex(0),
        metadata_index: MetadataIndex::FAST,
        key: Key(1),
        base: 0,
        bound: 1 << 20,
        flags: Flags::NOTIFY,
        share: Share::WHOLE,
    };
    for (block, calls) in [(64u32, 16u32), (0, 16), (u32::MAX, u32::MAX), (64, 0)] {
        let sizes = [block.to_le_bytes(), calls.to_le_bytes()].concat();
        greetings.push([&good[..], &foreign.to_bytes(), &sizes].concat());
    }
    for greeting in &greetings {
        parts.refusal(greeting)?;
    }
    Ok(format!("{} greetings, each refused", greetings.len()))
}

fn call(seed: &str, call: u32, code: u32) -> Result<String> {
    let mut intruder = Intruder::enter(seed, |node, queue| lend_blocks(node, queue, 64, 16))?;
    let ticket = intruder.ticket(0)?;
    intruder.node.send_fast(&ticket, &[7; 8], call | code << CALL_BITS, LIMIT)?;
    intruder.is_sent_away()
}

fn greedy(seed: &str) -> Result<String> {
    let mut intruder = Intruder::enter(seed, |node, queue| lend_blocks(node, queue, 64, 4))?;
    let ticket = intruder.ticket(0)?;
    // Requests that are too long, so that each gets an answer; more than the answer ring holds, and
    // slowly enough for the server to take each. This end takes no turn, in which it would read.
    for _ in 0..2000 {
        let (link, length) = (intruder.link, u64::MAX.to_le_bytes());
        let _ = intruder.node.try_send_fast_over(link, &ticket, &length, ASK << CALL_BITS);
        std::thread::sleep(Duration::from_micros(50));
    }
    intruder.is_sent_away()
}

fn no_credit(seed: &str) -> Result<String> {
    let body = |node: &mut Node, queue| Ok(lend_fast(node, queue, 8)?.to_bytes().to_vec());
    let mut intruder = Intruder::enter(seed, body)?;
    let (ticket, tags) = (intruder.ticket(0)?, intruder.number(TICKET_BYTES)?);
    // Its own place in the area: the last.
    let at = Ticket { base: ticket.bound - 16, ..ticket };
    for i in 0..8 * tags {
        intruder.node.send_fast(&at, &[7; 16], FIRST_TAG | i, LIMIT)?;
    }
    intruder.node.close(LIMIT)?;
    Ok(format!("{} tags at once, with a credit of {tags}", 8 * tags))
}

fn datagram(seed: &str) -> Result<String> {
    let place = |offset: u64, length: u64| [offset.to_le_bytes(), length.to_le_bytes()].concat();
    let foreign = |node: &mut Node, queue| -> Result<Vec<u8>> {
        let ticket = lend(node, queue, 64)?;
        let elsewhere = Ticket { destination: NodeId(!ticket.destination.0), ..ticket };
        Ok([&place(0, 16)[..], &elsewhere.to_bytes()].concat())
    };
    let lies = [Some(place(0, u64::MAX)), Some(place(u64::MAX, 2)), Some(Vec::new()), None];
    let count = lies.len();
    // A sender that alone has had the ticket is disconnected. After that several have had it, and
    // malformed datagrams are dropped.
    for (number, lie) in lies.into_iter().enumerate() {
        let mut intruder = Intruder::enter(seed, |_, _| Ok(Vec::new()))?;
        let ticket = intruder.ticket(0)?;
        let queue = intruder.node.notification_queue(64)?;
        let metadata = lie.map_or_else(|| foreign(&mut intruder.node, queue), Ok)?;
        intruder.node.send(&ticket, &[7; 16], &metadata, LIMIT)?;
        if number == 0 {
            intruder.is_sent_away()?;
        } else {
            intruder.node.close(LIMIT)?;
        }
    }
    Ok(format!("{count} lies; sent away for the first"))
}

fn stream(seed: &str, message: &[u8], mark: &[u8]) -> Result<String> {
    let body = |node: &mut Node, queue| {
        let ticket = lend_fast(node, queue, 16 * 256)?;
        Ok([&ticket.to_bytes()[..], &[0]].concat())
    };
    let mut intruder = Intruder::enter(seed, body)?;
    // The numbers, the tickets for requests and for small messages, then slot and key of each lane.
    let lane = 12 + 2 * TICKET_BYTES;
    let key = intruder.answer.get(lane + 4..).and_then(<[u8]>::first_chunk).context("no lane")?;
    let ticket = Ticket {
        slot: SlotIndex(intruder.number(lane)?),
        metadata_index: MetadataIndex(0),
        key: Key(u64::from_le_bytes(*key)),
        base: 0,
        bound: u64::from(intruder.number(4)?),
        flags: Flags::NOTIFY | Flags::WAKE,
        share: Share::WHOLE,
        ..intruder.ticket(12)?
    };
    intruder.node.send(&ticket, message, mark, LIMIT)?;
    intruder.is_sent_away()
}

/// A member that sends a part of 64 such bytes for each, and claims so many bytes.
fn group(seed: &str, parts: &[(u8, u64)]) -> Result<Intruder> {
    let body = |node: &mut Node, queue| {
        let (cell, down) = (lend_fast(node, queue, 64)?, lend(node, queue, 1 << 16)?);
        Ok([&[0][..], &cell.to_bytes(), &down.to_bytes()].concat())
    };
    let mut intruder = Intruder::enter(seed, body)?;
    let ticket = intruder.ticket(24)?;
    for (byte, length) in parts {
        intruder.node.send(&ticket, &[*byte; 64], &length.to_le_bytes(), LIMIT)?;
    }
    Ok(intruder)
}

/// A link made frame by frame, so that this process has the descriptor of the pages. `lockers`:
/// threads that all the time make calls for which the kernel locks the pages' inode, without
/// changing the pages.
fn aperture(path: &Path, lockers: usize) -> Result<String> {
    let link = Guest::connect(path, Vec::new())?.link()?.talk;
    let (Frame::Memory { memory, word: MemoryWord::Offer { bytes, .. } }, _) = link.hear()? else {
        bail!("no aperture")
    };
    link.say_of(memory, MemoryWord::Take { bytes })?;
    let files = link.expect(memory, MemoryWord::Pass)?;
    let pages = std::fs::File::from(files.into_iter().next().context("no pages")?);
    for _ in 0..lockers {
        let pages = pages.try_clone()?;
        std::thread::spawn(move || {
            while rustix::fs::fallocate(&pages, FallocateFlags::KEEP_SIZE, 0, bytes).is_ok() {}
        });
    }
    link.say_of(memory, MemoryWord::Held)?;
    while !matches!(link.hear()?, (Frame::ApertureRevoked { .. }, _)) {}
    pages.write_all_at(&vec![7; bytes as usize], 0)?;
    let locked = match lockers {
        0 => String::new(),
        _ => format!(" while {lockers} threads keep the lock of its inode busy"),
    };
    Ok(format!("taken back{locked}; {bytes} bytes written to pages that are its owner's no more"))
}

// ---- a server

/// Serves one client, with `trap` as its lie; first reports that it is ready.
pub fn serve(trap: Trap, name: &str, orders: &mut Orders) -> Result<String> {
    let mut node = Node::new()?;
    let queue = node.notification_queue(64)?;
    node.serve(name, access(), Accept::Ask)?;
    orders.answer(Ok("serving"))?;
    let (request, greeting) = request(&mut node)?;
    let client = greeting.get(TOKEN_END..).context("no greeting")?;
    let ticket = Ticket::from_bytes(client.get(..TICKET_BYTES).context("no ticket")?)?;
    let mut answer = [b"HAn2", &Kind::CALL.number().to_le_bytes()[..]].concat();
    match trap {
        Trap::Answer => answer.extend([0xa5; 60]),
        _ => {
            answer.extend(lend_blocks(&mut node, queue, 64, 16)?);
            answer.extend(4096u64.to_le_bytes());
        }
    }
    node.accept(request, &answer)?;
    let word = match trap {
        Trap::Answer | Trap::NoSuchCall => 100_000 | 8 << CALL_BITS,
        Trap::NotCalled => 5 | 8 << CALL_BITS,
        Trap::BeyondBlock => LENGTH_MAX << CALL_BITS,
    };
    loop {
        match next_event(&mut node)? {
            Event::Connected { .. } if trap == Trap::Answer => {}
            Event::Connected { .. } => {
                if trap == Trap::BeyondBlock {
                    node.recv(queue, LIMIT)?;
                }
                node.send_fast(&ticket, &[7; 8], word, LIMIT)?;
            }
            Event::Closed { .. } | Event::RequestGone { .. } => return Ok("it went away".into()),
            _ => {}
        }
    }
}

const TOKEN_END: usize = 4 + 4 + 16;

fn request(node: &mut Node) -> Result<(RequestId, Vec<u8>)> {
    loop {
        if let Event::Request { id, greeting, .. } = next_event(node)? {
            return Ok((id, greeting));
        }
    }
}
