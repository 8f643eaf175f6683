//! One process of the storm: it does random things to its peers, and checks all results. `main.rs`
//! runs it as a process of its own, and `src/simulated.rs` in a simulation.

use core::time::Duration;
use hamlyn::config::WaitMode;
use hamlyn::link::sim::Rng;
use hamlyn::node::{CloseReason, Event};
use hamlyn::wire::TICKET_BYTES;
use hamlyn::{
    Accept, Access, AreaId, BufferTag, Config, LinkId, MetadataIndex, Mode, Node, NodeSendError,
    Piece, QueueId, SendHandle, SlotConfig, SlotId, Ticket,
};
use std::collections::BTreeMap;
use std::path::Path;
use std::string::String;
use std::vec::Vec;
use std::{assert, assert_eq, format, panic, vec};

/// Entries, and messages on their way at once, from one process to another.
const ENTRIES: usize = 3;
/// Most bytes of a message.
const REGION: usize = 700;

/// The participants and their settings.
pub struct Storm {
    /// Of the processes, which this is.
    pub me: usize,
    pub count: usize,
    /// From each process to each other.
    pub messages: usize,
    /// The process that is killed when half of this is done; and how the others see that.
    pub victim: Option<(usize, CloseReason)>,
    /// The time limit of every step; `None`: an endless wait is found in another way.
    pub patience: Option<Duration>,
    /// Lets others have the processor.
    pub give_way: fn(),
}

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

pub struct Process<'a> {
    storm: &'a Storm,
    node: Node,
    queue: QueueId,
    rng: Rng,
    peers: BTreeMap<usize, Peer>,
    buffer: BufferTag,
    posted: Option<SendHandle>,
}

fn message(seed: u64, length: usize) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    (0..length).map(|_| rng.number() as u8).collect()
}

impl Process<'_> {
    /// Its node has the smallest of everything, and names in `dir`.
    pub fn new<'a>(storm: &'a Storm, dir: &Path, mut rng: Rng) -> Process<'a> {
        let modes = [WaitMode::Polled, WaitMode::Adaptive, WaitMode::Blocking];
        let config = Config::default()
            .dir(dir)
            .shared_dir(dir.join("shared"))
            .ring_bytes(512u32)
            .bulk_ring_bytes(0u32)
            .packet_bytes(64u32)
            .work_queue_entries(1u32)
            .packets_per_turn(1u32)
            .spin_ns(1000u64)
            .wait_mode(modes[1 + rng.below(2) as usize]);
        let mut node = Node::with_config(config).unwrap();
        let entries = (2 * ENTRIES * (storm.count - 1)) as u32;
        let queue = node.notification_queue(entries).unwrap();
        let buffer = node.send_buffer(node.primary(), REGION).unwrap();
        Process { storm, node, queue, rng, peers: BTreeMap::new(), buffer, posted: None }
    }

    /// Meets the others, and does random things until everything has arrived. The victim calls
    /// `half_way` when there is something to lose, and has to be killed then.
    pub fn run(mut self, mut half_way: impl FnMut()) {
        let (me, count) = (self.storm.me, self.storm.count);
        self.node.serve(&format!("storm-{me}"), Access::SameUser, Accept::Ask).unwrap();
        let mut requests = BTreeMap::new();
        // Everybody connects to those behind, who never wait for those before.
        for peer in me + 1..count {
            self.connect(peer);
        }
        let mut announced = false;
        loop {
            self.take_events(&mut requests);
            let sends_first = self.rng.below(2) == 0;
            let moved = sends_first && self.send_something()
                || self.receive_something()
                || !sends_first && self.send_something();
            if self.victim() == Some(me) && !announced {
                // Everybody has met it, and knows of that: it has heard from each.
                let met = self.peers.values().filter(|p| p.received > 0).count() == count - 1;
                let received: usize = self.peers.values().map(|p| p.received).sum();
                if met && received > self.storm.messages / 2 {
                    announced = true;
                    half_way();
                }
            }
            let is_over = |p: &Peer| p.is_done(self.storm.messages) || p.is_dead;
            if self.peers.len() == count - 1 && self.peers.values().all(is_over) {
                // The victim is killed, however quick it was.
                if self.victim() != Some(me) {
                    break;
                }
            }
            if !moved && self.rng.below(2) == 0 {
                let woken = self.node.wait(self.storm.patience).unwrap();
                assert!(woken, "process {me} waits for ever: {}", self.state());
            }
        }
        // Everything has been acknowledged, so nothing is left to leave but acknowledgements.
        let counters = self.node.counters();
        let refused = counters.iter().filter(|(name, _)| name.starts_with("refused_"));
        assert_eq!(refused.map(|(_, count)| count).sum::<u64>(), 0, "an honest packet was refused");
        let unsent = self.node.close(self.storm.patience).unwrap();
        assert!(unsent == 0 || self.storm.victim.is_some());
    }

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
        let mut greeting = vec![self.storm.me as u8];
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
        // It may not have come so far yet.
        let limit = Duration::from_secs(20);
        let link = self.node.connect(&format!("storm-{peer}"), &greeting, Some(limit)).unwrap();
        let answer = self.node.greeting(link).unwrap().to_vec();
        assert_eq!(answer[0] as usize, peer);
        self.take_tickets(peer, &answer);
        self.peers.get_mut(&peer).unwrap().link = Some(link);
    }

    fn victim(&self) -> Option<usize> {
        self.storm.victim.as_ref().map(|victim| victim.0)
    }

    fn take_events(&mut self, requests: &mut BTreeMap<u64, usize>) {
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
                    if let Some((victim, death)) = &self.storm.victim
                        && *victim == name
                    {
                        assert_eq!(reason, *death);
                        peer.is_dead = true;
                    } else {
                        // Its earlier messages may still wait in the notification queue.
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

    /// Sends a message to some peer, in one of the ways; false if nothing can be sent to any.
    fn send_something(&mut self) -> bool {
        let messages = self.storm.messages;
        let ready =
            |p: &Peer| p.link.is_some() && !p.is_dead && !p.free.is_empty() && p.sent < messages;
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
            Err(NodeSendError::LinkEnded(_) | NodeSendError::Unreachable(_)) => {
                assert_eq!(Some(name), self.victim(), "the link to process {name} is gone");
                self.peers.get_mut(&name).unwrap().is_dead = true;
            }
            Err(e) => panic!("{e}"),
        }
        true
    }

    fn send(&mut self, ticket: &Ticket) -> Result<(), NodeSendError> {
        let way = self.below(4);
        let length = if way == 3 { REGION } else { [0, 8, 16, 64, REGION][self.below(5)] };
        let seed = self.rng.number();
        let data = message(seed, length);
        let metadata = [&seed.to_le_bytes()[..], &(length as u32).to_le_bytes()].concat();
        match way {
            0 => loop {
                match self.node.try_send(ticket, &data, &metadata) {
                    Ok(_) => return Ok(()),
                    Err(NodeSendError::Full) => {
                        (self.storm.give_way)();
                        self.node.poll().unwrap()
                    }
                    Err(NodeSendError::TooLongToTry { .. }) => break,
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
                    Err(NodeSendError::Full) => {}
                    Err(e) => return Err(e),
                }
            }
            3 => {
                let parts = 2 + self.below(3) as u64;
                let mut from = 0;
                for (i, part) in ticket.split_evenly(parts).unwrap().iter().enumerate() {
                    let to = from + part.capacity() as usize;
                    let about = if i == 0 { &metadata[..] } else { &[] };
                    self.node.send(part, &data[from..to], about, self.storm.patience)?;
                    from = to;
                }
                return Ok(());
            }
            _ => {}
        }
        self.node.send(ticket, &data, &metadata, self.storm.patience).map(|_| ())
    }

    fn receive_something(&mut self) -> bool {
        let Some(note) = self.node.try_recv(self.queue).unwrap() else {
            for (name, peer) in &self.peers {
                let is_done = peer.is_done(self.storm.messages);
                assert!(!peer.has_left || is_done, "process {name} left with work to do");
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
        assert!(peer.received <= self.storm.messages);
        let ticket = peer.acknowledge.unwrap();
        if let Err(e) = self.node.send_fast(&ticket, b"", note.index.0, self.storm.patience) {
            assert_eq!(Some(name), self.victim(), "{e}");
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
    fn is_done(&self, messages: usize) -> bool {
        self.acknowledged == messages && self.received == messages
    }
}
