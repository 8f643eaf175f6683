//! Several processes that do random things to one another, with every ring, queue and turn at its
//! smallest: every message arrives once and whole, nobody waits for ever, and a process that is
//! killed midway takes nothing with it but its own messages.
//!
//! The other processes are this test binary, run again with `STORM_ME` in its environment. A
//! failing run prints its seed: `STORM_SEED=3 cargo test --test storm`; `STORM_RUNS` is how many.
#![cfg(feature = "os")]

use hamlyn::config::WaitMode;
use hamlyn::link::sim::Rng;
use hamlyn::node::{CloseReason, Event};
use hamlyn::wire::TICKET_BYTES;
use hamlyn::{
    Accept, Access, AreaId, Config, LinkId, MetadataIndex, Mode, Node, Piece, QueueId, SendError,
    SendHandle, SlotConfig, SlotId, Tag, Ticket,
};
use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::DirBuilderExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const LONG: Option<Duration> = Some(Duration::from_secs(30));
/// Entries, and messages on their way at once, from one process to another.
const ENTRIES: usize = 3;
/// Most bytes of a message.
const REGION: usize = 700;
const MESSAGES: usize = 200;

// ---- one process

struct Peer {
    /// Where its messages land here: an entry and a region each.
    area: AreaId,
    slot: SlotId,
    /// Where its acknowledgements land: fast packets that hold the entry's index.
    acknowledgements: SlotId,
    tickets: Vec<Ticket>,
    acknowledge: Option<Ticket>,
    free: Vec<usize>,
    link: Option<LinkId>,
    sent: usize,
    received: usize,
    acknowledged: usize,
    is_dead: bool,
    has_left: bool,
}

struct Process {
    me: usize,
    node: Node,
    queue: QueueId,
    rng: Rng,
    peers: HashMap<usize, Peer>,
    buffer: Tag,
    posted: Option<SendHandle>,
    victim: Option<usize>,
}

fn message(seed: u64, length: usize) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    (0..length).map(|_| rng.number() as u8).collect()
}

impl Process {
    /// Makes what a peer needs here, and the tickets for it.
    fn offer(&mut self, peer: usize) -> Vec<u8> {
        let node = &mut self.node;
        let area = node.message_area(ENTRIES * REGION).unwrap();
        let mode = if peer.is_multiple_of(2) { Mode::Normal } else { Mode::Paranoid };
        let entries = ENTRIES as u32;
        let config = SlotConfig::new(area, self.queue).metadata(entries).mode(mode);
        let slot = node.slot(config).unwrap();
        let config = SlotConfig::new(area, self.queue).range(0..0).credit(entries);
        let acknowledgements = node.slot(config).unwrap();
        let mut greeting = vec![self.me as u8];
        for i in 0..ENTRIES {
            let region = (i * REGION) as u64..((i + 1) * REGION) as u64;
            let entry = MetadataIndex(i as u32);
            if mode == Mode::Paranoid {
                node.arm(slot, entry, Some(region.clone())).unwrap();
            }
            let ticket = node.ticket(slot, entry).unwrap();
            let ticket = Ticket { base: region.start, bound: region.end, ..ticket };
            greeting.extend(ticket.to_bytes());
        }
        greeting.extend(node.fast_ticket(acknowledgements).unwrap().to_bytes());
        let made = Peer {
            area,
            slot,
            acknowledgements,
            tickets: Vec::new(),
            acknowledge: None,
            free: (0..ENTRIES).collect(),
            link: None,
            sent: 0,
            received: 0,
            acknowledged: 0,
            is_dead: false,
            has_left: false,
        };
        assert!(self.peers.insert(peer, made).is_none());
        greeting
    }

    fn take_tickets(&mut self, peer: usize, greeting: &[u8]) {
        let read = |bytes: &[u8]| Ticket::from_bytes(bytes).unwrap();
        let mut tickets: Vec<Ticket> = greeting[1..].chunks(TICKET_BYTES).map(read).collect();
        let peer = self.peers.get_mut(&peer).unwrap();
        peer.acknowledge = tickets.pop();
        peer.tickets = tickets;
    }

    fn connect(&mut self, peer: usize) {
        let greeting = self.offer(peer);
        let until = Instant::now() + Duration::from_secs(20);
        let link = loop {
            match self.node.connect(&format!("storm-{peer}"), &greeting, Duration::from_secs(20)) {
                Ok(link) => break link,
                // It has not come so far yet.
                Err(e) => assert!(Instant::now() < until, "{e}"),
            }
            std::thread::sleep(Duration::from_millis(2));
        };
        let answer = self.node.greeting(link).unwrap().to_vec();
        assert_eq!(answer[0] as usize, peer);
        self.take_tickets(peer, &answer);
        self.peers.get_mut(&peer).unwrap().link = Some(link);
    }

    fn take_events(&mut self, requests: &mut HashMap<u64, usize>) {
        while let Some(event) = self.node.next_event() {
            match event {
                Event::Request { id, greeting, .. } => {
                    let peer = greeting[0] as usize;
                    let answer = self.offer(peer);
                    self.take_tickets(peer, &greeting);
                    requests.insert(id.0, peer);
                    self.node.accept(id, &answer).unwrap();
                }
                Event::Connected { link, request } => {
                    let peer = requests[&request.unwrap().0];
                    self.peers.get_mut(&peer).unwrap().link = Some(link);
                }
                Event::Closed { link, reason, .. } => {
                    let found = self.peers.iter_mut().find(|(_, p)| p.link == Some(link));
                    let (&name, peer) = found.expect("a link that is known");
                    if Some(name) == self.victim {
                        assert_eq!(reason, CloseReason::Died);
                        peer.is_dead = true;
                    } else {
                        // What it sent before may still wait in the notification queue.
                        assert_eq!(reason, CloseReason::Closed, "process {name}");
                        peer.has_left = true;
                    }
                }
                Event::RequestGone { .. } => panic!("a request is gone"),
                Event::Aperture { .. } => panic!("nobody exports"),
                Event::TicketRevoked { .. } => panic!("nobody revokes"),
            }
        }
    }

    fn below(&mut self, bound: usize) -> usize {
        self.rng.below(bound as u64) as usize
    }

    /// Sends something to somebody, in one of the ways; false if nothing can be sent to anyone.
    fn send_something(&mut self) -> bool {
        let ready =
            |p: &Peer| p.link.is_some() && !p.is_dead && !p.free.is_empty() && p.sent < MESSAGES;
        let names: Vec<usize> =
            self.peers.iter().filter(|(_, p)| ready(p)).map(|(&name, _)| name).collect();
        if names.is_empty() {
            return false;
        }
        let name = names[self.below(names.len())];
        let peer = self.peers.get_mut(&name).unwrap();
        let entry = peer.free.pop().unwrap();
        let ticket = peer.tickets[entry];
        peer.sent += 1;
        let outcome = self.send(&ticket);
        match outcome {
            Ok(()) => {}
            Err(SendError::LinkEnded(_) | SendError::Unreachable(_)) => {
                assert_eq!(Some(name), self.victim, "the link to process {name} is gone");
                self.peers.get_mut(&name).unwrap().is_dead = true;
            }
            Err(e) => panic!("{e}"),
        }
        true
    }

    fn send(&mut self, ticket: &Ticket) -> Result<(), SendError> {
        let way = self.below(4);
        let length = if way == 3 { REGION } else { [0, 8, 16, 64, REGION][self.below(5)] };
        let seed = self.rng.number();
        let data = message(seed, length);
        let metadata = [&seed.to_le_bytes()[..], &(length as u32).to_le_bytes()].concat();
        match way {
            0 => loop {
                match self.node.try_send(ticket, &data, &metadata) {
                    Ok(_) => return Ok(()),
                    Err(SendError::Full) => self.node.poll().unwrap(),
                    Err(SendError::TooLongToTry { .. }) => break,
                    Err(e) => return Err(e),
                };
            },
            1 if self.posted.is_none_or(|handle| self.node.is_reusable(&handle)) => {
                let terminus = self.node.primary();
                let buffer = self.node.send_buffer_mut(terminus, self.buffer).unwrap();
                buffer[..length].copy_from_slice(&data);
                // In two pieces, the second first in the buffer's order of use.
                let cut = length as u64 / 3;
                let pieces = [
                    Piece { tag: self.buffer, offset: 0, length: cut },
                    Piece { tag: self.buffer, offset: cut, length: length as u64 - cut },
                ];
                match self.node.post_send(terminus, ticket, &pieces, &metadata) {
                    Ok(handle) => {
                        self.posted = Some(handle);
                        return Ok(());
                    }
                    Err(SendError::Full) => {}
                    Err(e) => return Err(e),
                }
            }
            3 => {
                let parts = 2 + self.below(3) as u64;
                let mut from = 0;
                for (i, part) in ticket.split_evenly(parts).unwrap().iter().enumerate() {
                    let to = from + part.capacity() as usize;
                    let about = if i == 0 { &metadata[..] } else { &[] };
                    self.node.send(part, &data[from..to], about, LONG)?;
                    from = to;
                }
                return Ok(());
            }
            _ => {}
        }
        self.node.send(ticket, &data, &metadata, LONG).map(|_| ())
    }

    fn receive_something(&mut self) -> bool {
        let Some(note) = self.node.try_recv(self.queue).unwrap() else {
            for (name, peer) in &self.peers {
                assert!(!peer.has_left || peer.is_done(), "process {name} left with work to do");
            }
            return false;
        };
        let is_for = |p: &Peer| note.is_for(p.slot) || note.is_for(p.acknowledgements);
        let (&name, peer) = self.peers.iter_mut().find(|(_, p)| is_for(p)).unwrap();
        if note.is_for(peer.acknowledgements) {
            let entry = note.word as usize;
            assert!(!peer.free.contains(&entry), "acknowledged twice");
            peer.free.push(entry);
            peer.acknowledged += 1;
            return true;
        }
        let about = self.node.metadata(peer.slot, note.index).unwrap().user();
        let seed = u64::from_le_bytes(about[..8].try_into().unwrap());
        let length = u32::from_le_bytes(about[8..12].try_into().unwrap()) as usize;
        let at = note.index.0 as usize * REGION;
        let bytes = &self.node.area(peer.area).unwrap()[at..at + length];
        assert!(bytes == message(seed, length), "a message from process {name} is damaged");
        peer.received += 1;
        assert!(peer.received <= MESSAGES);
        let ticket = peer.acknowledge.unwrap();
        if let Err(e) = self.node.send_fast(&ticket, b"", note.index.0, LONG) {
            assert_eq!(Some(name), self.victim, "{e}");
        }
        true
    }

    fn state(&self) -> String {
        let of = |(name, p): (&usize, &Peer)| {
            let (sent, received, acknowledged) = (p.sent, p.received, p.acknowledged);
            format!("{name}: {sent} sent, {acknowledged} acknowledged, {received} received")
        };
        self.peers.iter().map(of).collect::<Vec<_>>().join("; ")
    }
}

impl Peer {
    fn is_done(&self) -> bool {
        self.acknowledged == MESSAGES && self.received == MESSAGES
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|value| value.parse().ok())
}

/// Not a test: what each process does.
#[test]
fn process() {
    let Some(me) = number("STORM_ME") else { return };
    let (me, count) = (me as usize, number("STORM_COUNT").unwrap() as usize);
    let seed = number("STORM_SEED").unwrap();
    let victim = number("STORM_VICTIM").map(|victim| victim as usize);
    let mut rng = Rng::new(seed << 8 | me as u64);
    let modes = [WaitMode::Polled, WaitMode::Adaptive, WaitMode::Blocking];
    let config = Config::default()
        .dir(std::path::PathBuf::from(std::env::var("STORM_DIR").unwrap()))
        .ring_bytes(512u32)
        .bulk_ring_bytes(0u32)
        .packet_bytes(64u32)
        .work_queue_entries(1u32)
        .packets_per_turn(1u32)
        .spin_ns(1000u64)
        .wait_mode(modes[1 + rng.below(2) as usize]);
    let mut node = Node::with_config(config).unwrap();
    let queue = node.notification_queue((2 * ENTRIES * (count - 1)) as u32).unwrap();
    let buffer = node.send_buffer(node.primary(), REGION).unwrap();
    let peers = HashMap::new();
    let mut process = Process { me, node, queue, rng, peers, buffer, posted: None, victim };
    process.node.serve(&format!("storm-{me}"), Access::SameUser, Accept::Ask).unwrap();
    let mut requests = HashMap::new();
    // Everybody connects to those behind, who never wait for those before.
    for peer in me + 1..count {
        process.connect(peer);
    }
    let until = Instant::now() + Duration::from_secs(60);
    let mut announced = false;
    loop {
        process.take_events(&mut requests);
        let sends_first = process.rng.below(2) == 0;
        let moved = sends_first && process.send_something()
            || process.receive_something()
            || !sends_first && process.send_something();
        if victim == Some(me) && !announced {
            // Everybody has met it, and there is something to lose.
            let met = process.peers.values().filter(|p| p.link.is_some()).count() == count - 1;
            let received: usize = process.peers.values().map(|p| p.received).sum();
            let some = met && received > MESSAGES / 2;
            if some {
                announced = true;
                println!("\nSTORM half way");
            }
        }
        let is_over = |p: &Peer| p.is_done() || p.is_dead;
        if process.peers.len() == count - 1 && process.peers.values().all(is_over) {
            if victim == Some(me) {
                std::thread::sleep(Duration::from_secs(60));
            }
            break;
        }
        if !moved && process.rng.below(2) == 0 {
            process.node.wait(Some(Duration::from_secs(1))).unwrap();
        }
        assert!(Instant::now() < until, "process {me} waits for ever: {}", process.state());
    }
    // Everything has been acknowledged, so nothing is left to leave but acknowledgements.
    let counters = process.node.counters();
    let refused = counters.iter().filter(|(name, _)| name.starts_with("refused_"));
    assert_eq!(refused.map(|(_, count)| count).sum::<u64>(), 0, "an honest packet was refused");
    let unsent = process.node.close(LONG).unwrap();
    assert!(unsent == 0 || victim.is_some());
}

// ---- the tests

struct Children(Vec<Child>);

impl Drop for Children {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn storm(seed: u64, count: usize, victim: Option<usize>) {
    let dir = std::env::temp_dir().join(format!("hamlyn-storm-{}-{seed}", std::process::id()));
    std::fs::DirBuilder::new().mode(0o700).create(&dir).unwrap();
    let start = |me: usize| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "process", "--nocapture"]).stdout(Stdio::piped());
        command.env("STORM_ME", me.to_string()).env("STORM_COUNT", count.to_string());
        command.env("STORM_SEED", seed.to_string()).env("STORM_DIR", &dir);
        if let Some(victim) = victim {
            command.env("STORM_VICTIM", victim.to_string());
        }
        command.spawn().unwrap()
    };
    let mut children = Children((0..count).map(start).collect());
    if let Some(victim) = victim {
        let child = &mut children.0[victim];
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().contains("STORM half way")), "it never came so far");
        child.kill().unwrap();
    }
    let mut failed = Vec::new();
    for (me, child) in children.0.iter_mut().enumerate() {
        let output = child.stdout.take();
        let status = child.wait().unwrap();
        if !status.success() && Some(me) != victim {
            failed.push(me);
            output.map(|output| std::io::copy(&mut BufReader::new(output), &mut std::io::stderr()));
        }
    }
    let _ = std::fs::remove_dir_all(&dir);
    assert!(failed.is_empty(), "processes {failed:?}: STORM_SEED={seed} cargo test --test storm");
}

fn seeds() -> std::ops::Range<u64> {
    match number("STORM_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("STORM_RUNS").unwrap_or(4),
    }
}

#[test]
fn processes_that_do_random_things_lose_nothing_and_never_wait_for_ever() {
    if number("STORM_ME").is_none() {
        seeds().for_each(|seed| storm(seed, 2 + seed as usize % 3, None));
    }
}

#[test]
fn a_process_that_is_killed_midway_takes_only_its_own_messages_with_it() {
    if number("STORM_ME").is_none() {
        seeds().for_each(|seed| storm(1000 + seed, 3, Some(seed as usize % 3)));
    }
}
