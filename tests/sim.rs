//! Several interfaces on a simulated fabric that delays, reorders, corrupts and loses links:
//! counting, segmentation, delegation, bounds, and that nothing is lost or deadlocks with
//! everything at its smallest.
//!
//! A failing run prints one line that repeats it:
//! ```text
//! SIM_SEED=17 cargo test --test sim every_message_arrives_once_and_whole
//! ```
//! `SIM_RUNS` is the number of seeds for each test.

use hamlyn::interface::terminus::{
    self, BufferTag, PIECES_MAX, Piece, PostError, SEND_BUFFERS, Segmenter, SendHandle, Terminus,
};
use hamlyn::interface::{
    AreaId, Interface, LinkId, Mode, Notification, QueueId, Refusal, SlotConfig, SlotId,
};
use hamlyn::link::sim::{Rng, SimFabric, SimLink, Trouble};
use hamlyn::wire::{Flags, Header, METADATA_MAX, MetadataIndex, NodeId, Share, Ticket};
use std::collections::HashMap;

fn each_seed(name: &str, run: fn(u64)) {
    let number = |name| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    let seeds = match number("SIM_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("SIM_RUNS").unwrap_or(300),
    };
    for seed in seeds {
        if std::panic::catch_unwind(|| run(seed)).is_err() {
            panic!("SIM_SEED={seed} cargo test --test sim {name}");
        }
    }
}

/// Around every slot, in its area: bytes that nothing may ever change.
const MARGIN: usize = 40;
const UNTOUCHED: u8 = 0xa5;
/// Bytes of each send buffer area.
const BUFFER: usize = 1500;
const ENTRY: MetadataIndex = MetadataIndex(0);

/// Every bound of a world.
struct Shape {
    nodes: usize,
    termini: usize,
    link_packets: usize,
    packet_bytes: u32,
    work_queue_entries: usize,
    trouble: Trouble,
}

impl Shape {
    fn any(rng: &mut Rng, trouble: Trouble) -> Self {
        Self {
            nodes: 1 + rng.below(4) as usize,
            termini: 1 + rng.below(3) as usize,
            link_packets: 1 + rng.below(12) as usize,
            packet_bytes: [64, 65, 128, 1000, 4096][rng.below(5) as usize],
            work_queue_entries: 1 + rng.below(8) as usize,
            trouble,
        }
    }

    /// Room for one packet of one line, and one queued message, everywhere.
    fn smallest(nodes: usize) -> Self {
        Self {
            nodes,
            termini: 1,
            link_packets: 1,
            packet_bytes: 64,
            work_queue_entries: 1,
            trouble: Trouble::REORDER,
        }
    }
}

struct SimNode {
    interface: Interface<Vec<u8>>,
    termini: Vec<Terminus<Vec<u8>>>,
    /// Whose turn it is among the termini, for each link.
    turns: Vec<usize>,
}

/// A slot alone in its area, with margins around it and a queue of one entry for itself.
#[derive(Clone, Debug)]
struct Place {
    node: usize,
    area: AreaId,
    queue: QueueId,
    slot: SlotId,
    size: usize,
}

/// A sent message, and its destination.
#[derive(Clone, Debug)]
struct Message {
    from: usize,
    place: usize,
    offset: usize,
    data: Vec<u8>,
    metadata: Vec<u8>,
    handle: Option<SendHandle>,
}

struct World {
    rng: Rng,
    fabric: SimFabric,
    nodes: Vec<SimNode>,
    /// `links[from][to]`, from a node to itself included.
    links: Vec<Vec<SimLink>>,
    packet_bytes: u32,
    places: Vec<Place>,
    /// The notifications of each place.
    notified: Vec<Vec<Notification>>,
    /// The bytes that a place must have at the moment of its notification.
    expected: HashMap<usize, Vec<u8>>,
    delivered: u64,
    honest: bool,
}

/// The link to node `to`, as its sender calls it.
fn to_node(to: usize) -> LinkId {
    LinkId { index: to as u32, generation: 0 }
}

impl World {
    fn new(seed: u64, shape: &Shape) -> Self {
        let mut rng = Rng::new(seed);
        let mut fabric = SimFabric::new(rng.number(), shape.nodes, shape.trouble);
        let secret: [u8; 16] = std::array::from_fn(|_| rng.number() as u8);
        let mut node = |id: usize| {
            let mut interface =
                Interface::new(NodeId(id as u64), secret.map(|byte| byte ^ id as u8));
            interface.enable();
            let terminus = |i: usize| {
                let mut terminus = Terminus::new(i as u32, shape.work_queue_entries, SEND_BUFFERS);
                for _ in 0..SEND_BUFFERS {
                    let bytes = (0..BUFFER).map(|_| rng.number() as u8).collect();
                    terminus.add_buffer(bytes).unwrap();
                }
                terminus
            };
            let termini = (0..shape.termini).map(terminus).collect();
            SimNode { interface, termini, turns: vec![0; shape.nodes] }
        };
        let nodes = (0..shape.nodes).map(&mut node).collect();
        let mut link = |to| fabric.connect(to, shape.link_packets, shape.packet_bytes);
        let links = (0..shape.nodes).map(|_| (0..shape.nodes).map(&mut link).collect()).collect();
        Self {
            rng,
            fabric,
            nodes,
            links,
            packet_bytes: shape.packet_bytes,
            places: Vec::new(),
            notified: Vec::new(),
            expected: HashMap::new(),
            delivered: 0,
            honest: shape.trouble.corrupt == 0 && shape.trouble.duplicate == 0,
        }
    }

    fn below(&mut self, bound: usize) -> usize {
        self.rng.below(bound as u64) as usize
    }

    fn any_mode(&mut self) -> Mode {
        [Mode::Normal, Mode::Paranoid, Mode::ParanoidOneShot][self.below(3)]
    }

    /// A slot of `size` bytes at `node`.
    fn place(&mut self, node: usize, size: usize, mode: Mode) -> usize {
        let interface = &mut self.nodes[node].interface;
        let area = interface.create_area(vec![UNTOUCHED; size + 2 * MARGIN]);
        let queue = interface.create_queue(1).unwrap();
        let range = MARGIN as u64..(MARGIN + size) as u64;
        let config = SlotConfig::new(area, queue).range(range).mode(mode);
        let slot = interface.create_slot(&config).unwrap();
        if mode != Mode::Normal {
            interface.arm_entry(slot, ENTRY, Some(0..size as u64)).unwrap();
        }
        self.places.push(Place { node, area, queue, slot, size });
        self.notified.push(Vec::new());
        self.places.len() - 1
    }

    fn ticket(&self, place: usize) -> Ticket {
        let place = &self.places[place];
        self.nodes[place.node].interface.ticket(place.slot, ENTRY).unwrap()
    }

    /// The slot's bytes, its margins having been checked.
    fn bytes(&self, place: usize) -> &[u8] {
        let place = &self.places[place];
        let area = self.nodes[place.node].interface.area(place.area).unwrap();
        let (head, rest) = area.split_at(MARGIN);
        let (body, tail) = rest.split_at(place.size);
        let untouched = head.iter().chain(tail).all(|&byte| byte == UNTOUCHED);
        assert!(untouched, "a byte outside the slot was written");
        body
    }

    fn user(&self, place: usize) -> &[u8] {
        let place = &self.places[place];
        self.nodes[place.node].interface.entry(place.slot, ENTRY).unwrap().user()
    }

    // ---- sending

    /// Cuts a message of `length` bytes from the send buffers of a terminus.
    fn pieces(&mut self, node: usize, terminus: usize, length: usize) -> (Vec<Piece>, Vec<u8>) {
        let mut pieces = Vec::new();
        let mut data = Vec::new();
        while data.len() < length {
            let left = length - data.len();
            // The last one permitted must take what is left; empty pieces are allowed.
            let most = left.min(BUFFER);
            let n = if pieces.len() + 1 + left.div_ceil(BUFFER) >= PIECES_MAX {
                most
            } else {
                self.below(most + 1)
            };
            let (tag, offset) =
                (BufferTag(self.below(SEND_BUFFERS) as u8), self.below(BUFFER - n + 1));
            let buffer = self.nodes[node].termini[terminus].buffer(tag).unwrap();
            data.extend_from_slice(&buffer[offset..offset + n]);
            pieces.push(Piece { tag, offset: offset as u64, length: n as u64 });
        }
        (pieces, data)
    }

    fn any_length(&mut self) -> usize {
        let p = self.packet_bytes as usize;
        let lengths = [0, 1, 8, 16, 17, 60, 64, p - 1, p, p + 1, 2 * p, 5000];
        let length = lengths[self.below(lengths.len())];
        if length == 5000 { self.below(5000) } else { length }
    }

    fn any_metadata(&mut self) -> Vec<u8> {
        let length = [0, 0, 1, 8, 16, 44, METADATA_MAX][self.below(7)];
        (0..length).map(|_| self.rng.number() as u8).collect()
    }

    /// Sends `length` bytes with `ticket`, in one of the three ways, taking part in the world's
    /// turns until it has been accepted.
    fn send(&mut self, from: usize, place: usize, ticket: &Ticket, length: usize) -> Message {
        let terminus = self.below(self.nodes[from].termini.len());
        let to = self.places[place].node;
        let metadata = self.any_metadata();
        let offset = ticket.base as usize;
        let (pieces, data) = self.pieces(from, terminus, length);
        let way = self.below(3);
        let mut direct = None;
        for _ in 0..1_000_000 {
            let bytes = self.packet_bytes;
            let t = &mut self.nodes[from].termini[terminus];
            let new = || Segmenter::new(ticket, length as u64, metadata.len(), 0, bytes).unwrap();
            let posted = match way {
                0 if length <= terminus::IMMEDIATE_MAX => {
                    t.post_immediate(to_node(to), new(), &data[..], &metadata)
                }
                1 if direct.is_some() || t.is_idle(to_node(to)) => {
                    let segmenter = direct.get_or_insert_with(new);
                    let mut link = self.fabric.outgoing(self.links[from][to]);
                    match segmenter.advance(&mut link, &data[..], &metadata) {
                        Ok(()) => {
                            let handle = None;
                            return Message { from, place, offset, data, metadata, handle };
                        }
                        Err(_) => Err(PostError::QueueFull(0)),
                    }
                }
                _ => t.post_gather(to_node(to), ticket, &pieces, &metadata, bytes),
            };
            match posted {
                Ok(handle) => {
                    let handle = Some(handle);
                    return Message { from, place, offset, data, metadata, handle };
                }
                Err(PostError::QueueFull(_)) => {
                    if !self.turn() {
                        self.fabric.advance();
                    }
                }
                Err(error) => panic!("{error}"),
            }
        }
        panic!("a sender waits forever: a deadlock");
    }

    // ---- turns

    /// Some nodes send and accept a little, in an order that chance decides.
    fn turn(&mut self) -> bool {
        let mut moved = false;
        for _ in 0..self.nodes.len() {
            let node = self.below(self.nodes.len());
            let to = self.below(self.nodes.len());
            let budget = 1 + self.below(4);
            moved |= self.transmit(node, to, budget) | self.accept(node, budget);
        }
        moved
    }

    fn transmit(&mut self, node: usize, to: usize, budget: usize) -> bool {
        let n = &mut self.nodes[node];
        let mut link = self.fabric.outgoing(self.links[node][to]);
        let mut moved = false;
        let (termini, next) = (&mut n.termini[..], &mut n.turns[to]);
        terminus::transmit_turn(termini, to_node(to), &mut link, next, budget, |_| moved = true);
        moved
    }

    fn accept(&mut self, node: usize, budget: usize) -> bool {
        for i in 0..budget {
            let Some(packet) = self.fabric.arrive(node) else { return i > 0 };
            self.delivered += 1;
            let link = LinkId { index: packet.link.index() as u32, generation: 0 };
            let interface = &mut self.nodes[node].interface;
            let outcome = interface.handle_packet(link, &packet.header, packet.reserved, &packet);
            if self.honest {
                assert!(outcome.is_ok(), "an honest packet: {outcome:?}, {:?}", packet.header);
            }
            self.take_notifications(node);
        }
        true
    }

    /// At the moment of its notification a message is there, whole.
    fn take_notifications(&mut self, node: usize) {
        for i in 0..self.places.len() {
            let Place { node: at, queue, slot, .. } = self.places[i];
            if at != node {
                continue;
            }
            while let Some(note) = self.nodes[node].interface.pop(queue).unwrap() {
                assert!(note.is_for(slot));
                if let Some(expected) = self.expected.get(&i) {
                    assert!(self.bytes(i) == expected, "announced before it was there");
                }
                self.notified[i].push(note);
            }
        }
    }

    fn waiting(&mut self) -> usize {
        let count = self.nodes.len();
        let termini = self.nodes.iter_mut().flat_map(|node| &mut node.termini);
        termini.map(|t| (0..count).map(|to| t.waiting(to_node(to))).sum::<usize>()).sum()
    }

    /// Goes on until nothing waits and nothing is on its way.
    fn settle(&mut self) {
        for _ in 0..1_000_000 {
            if self.turn() {
                continue;
            }
            // Chance found nothing to do; now every node and link is asked.
            let mut moved = false;
            for node in 0..self.nodes.len() {
                for to in 0..self.nodes.len() {
                    moved |= self.transmit(node, to, 1);
                }
                moved |= self.accept(node, 1);
            }
            if moved || self.fabric.advance() && self.fabric.in_flight() > 0 {
                continue;
            }
            assert_eq!(self.waiting(), 0, "messages wait and nothing moves: a deadlock");
            return;
        }
        panic!("the world does not come to rest");
    }

    fn counter(&self, name: &str) -> u64 {
        let all = self.nodes.iter().flat_map(|node| node.interface.counters().snapshot());
        all.filter(|(n, _)| *n == name).map(|(_, value)| value).sum()
    }
}

/// Messages to places of their own, from anywhere to anywhere.
fn send_many(world: &mut World, count: usize) -> Vec<Message> {
    (0..count)
        .map(|_| {
            let nodes = world.nodes.len();
            let (from, to) = (world.below(nodes), world.below(nodes));
            let length = world.any_length();
            // Sometimes the message is shorter than the slot, and does not begin at its base.
            let slack = world.below(2) * world.below(100);
            let mode = world.any_mode();
            let place = world.place(to, length + slack, mode);
            let mut ticket = world.ticket(place);
            ticket.base += world.below(slack + 1) as u64;
            if world.below(8) == 0 {
                ticket = ticket.silent();
            }
            let is_silent = ticket.flags.is_empty();
            let message = world.send(from, place, &ticket, length);
            if is_silent {
                world.notified[place].push(SILENT);
            }
            message
        })
        .collect()
}

/// Stands for the notification that was not asked for.
const SILENT: Notification = Notification {
    slot: SlotId::from_bits(u64::MAX),
    index: MetadataIndex(0),
    word: 0,
    link: LinkId::SELF,
};

fn check_arrived(world: &World, message: &Message) {
    let (start, end) = (message.offset, message.offset + message.data.len());
    let bytes = world.bytes(message.place);
    assert!(bytes[start..end] == message.data, "the data differs");
    assert!(bytes[..start].iter().chain(&bytes[end..]).all(|&byte| byte == UNTOUCHED));
    assert_eq!(world.user(message.place), message.metadata);
    assert_eq!(world.notified[message.place].len(), 1, "one notification, or none if silent");
    if let Some(handle) = &message.handle {
        let terminus = world.nodes[message.from].termini.iter().any(|t| t.is_reusable(handle));
        assert!(terminus, "a buffer that is never given back");
    }
}

fn every_message_arrives(world: &mut World, count: usize) {
    let messages = send_many(world, count);
    world.settle();
    for message in &messages {
        check_arrived(world, message);
    }
    let sent: usize = messages.iter().map(|message| message.data.len()).sum();
    assert_eq!(world.counter("bytes_received"), sent as u64);
    assert_eq!(world.counter("messages_received"), count as u64);
    assert_eq!(world.counter("packets_received"), world.delivered);
    for place in 0..world.places.len() {
        let Place { node, slot, .. } = world.places[place];
        let entry = world.nodes[node].interface.entry(slot, ENTRY).unwrap();
        assert_eq!(entry.accumulator(), 0);
    }
}

#[test]
fn every_message_arrives_once_and_whole() {
    each_seed("every_message_arrives_once_and_whole", |seed| {
        let shape = Shape::any(&mut Rng::new(!seed), Trouble::REORDER);
        every_message_arrives(&mut World::new(seed, &shape), 25);
    });
}

// Rule 3, with everything as small as it can be: one packet of one line on its way on each link,
// one message in each work queue, one entry in each notification queue.
#[test]
fn nothing_is_lost_and_nothing_deadlocks_at_the_smallest() {
    each_seed("nothing_is_lost_and_nothing_deadlocks_at_the_smallest", |seed| {
        let nodes = 1 + seed as usize % 5;
        every_message_arrives(&mut World::new(seed, &Shape::smallest(nodes)), 20);
    });
}

// Hamlyn 2.5: a receive is delegated to helpers by splitting its ticket; it is announced once, when
// the last byte of all of them is there, in any order.
#[test]
fn a_group_receive_is_announced_once_when_all_of_it_is_there() {
    each_seed("a_group_receive_is_announced_once_when_all_of_it_is_there", |seed| {
        let shape = Shape::any(&mut Rng::new(!seed), Trouble::REORDER);
        let mut world = World::new(seed, &shape);
        for _ in 0..3 {
            let parts = 1 + world.below(9);
            let size = world.below(6000);
            let (to, mode) = (world.below(shape.nodes), world.any_mode());
            let place = world.place(to, size, mode);
            let ticket = world.ticket(place);
            // Cuts of the space; and of the counter, from just enough for each part upwards.
            let mut cuts: Vec<u64> = (1..parts).map(|_| world.rng.below(size as u64 + 1)).collect();
            cuts.extend([0, size as u64]);
            cuts.sort_unstable();
            let mut left = 1u64 << 32;
            let mut split = Vec::new();
            for i in 0..parts {
                let (base, bound) = (cuts[i], cuts[i + 1]);
                let bytes = bound - base + METADATA_MAX as u64;
                let needed = bytes.div_ceil(world.packet_bytes as u64).max(1);
                let is_last = i + 1 == parts;
                let more = if world.below(2) == 0 { 0 } else { world.rng.below(1 << 28) };
                let share = if is_last { left } else { needed + more };
                left -= share;
                split.push((base, bound, Share::new(share).unwrap()));
            }
            let mut tickets = ticket.split(&split).unwrap();
            for i in (1..parts).rev() {
                let j = world.below(i + 1);
                tickets.swap(i, j);
            }
            // All buffers hold the same bytes for everyone, so the sum of the parts is known only
            // when all are sent; until then no notification may come.
            let mut expected = vec![UNTOUCHED; size];
            for (i, part) in tickets.iter().enumerate() {
                let from = world.below(shape.nodes);
                let length = (part.bound - part.base) as usize;
                assert!(world.notified[place].is_empty(), "announced before all was sent");
                let message = world.send(from, place, part, length);
                expected[message.offset..][..length].copy_from_slice(&message.data);
                if i + 1 < parts {
                    for _ in 0..world.below(10) {
                        world.turn();
                        assert!(world.notified[place].is_empty(), "announced before all was sent");
                    }
                }
            }
            if world.notified[place].is_empty() {
                world.expected.insert(place, expected.clone());
            }
            world.settle();
            assert!(world.bytes(place) == expected);
            assert_eq!(world.notified[place].len(), 1);
        }
    });
}

// Rule 1: for any faults of packets on the way, a byte outside the granted slots never changes, and
// every packet is either deposited or counted as refused.
#[test]
fn corrupted_and_repeated_packets_stay_within_their_grant_and_are_counted() {
    each_seed("corrupted_and_repeated_packets_stay_within_their_grant_and_are_counted", |seed| {
        let trouble = Trouble { delay_max_ns: 1000, corrupt: 200_000, duplicate: 50_000 };
        let shape = Shape::any(&mut Rng::new(!seed), trouble);
        let mut world = World::new(seed, &shape);
        send_many(&mut world, 25);
        world.settle();
        for place in 0..world.places.len() {
            world.bytes(place);
        }
        let refused: u64 = Refusal::ALL.iter().map(|r| world.counter(r.counter_name())).sum();
        assert_eq!(world.counter("packets_received") + refused, world.delivered);
    });
}

#[test]
fn a_lost_link_loses_its_own_messages_and_no_others() {
    each_seed("a_lost_link_loses_its_own_messages_and_no_others", |seed| {
        let mut shape = Shape::any(&mut Rng::new(!seed), Trouble::REORDER);
        (shape.nodes, shape.link_packets) = (3, 4);
        // Enough that `send` never waits for the link that is lost.
        shape.work_queue_entries = 63;
        let mut world = World::new(seed, &shape);
        let mut messages = Vec::new();
        for i in 0..20 {
            let (from, to) = (world.below(3), world.below(3));
            let mode = world.any_mode();
            let length = world.any_length().min(16 * 64);
            let place = world.place(to, length, mode);
            let ticket = world.ticket(place);
            if !world.fabric.is_cut(world.links[from][to]) {
                messages.push(world.send(from, place, &ticket, length));
            }
            for _ in 0..world.below(6) {
                world.turn();
            }
            if i == 10 {
                world.fabric.cut(world.links[0][1]);
                // Its node's reaction to the event.
                for terminus in &mut world.nodes[0].termini {
                    terminus.drop_link(to_node(1));
                }
            }
        }
        world.settle();
        for message in &messages {
            let lost = (message.from, world.places[message.place].node) == (0, 1);
            if lost && world.notified[message.place].is_empty() {
                // Never announced; and its sender has its buffer back all the same.
                world.bytes(message.place);
                if let Some(handle) = &message.handle {
                    let mut termini = world.nodes[0].termini.iter();
                    assert!(termini.any(|terminus| terminus.is_reusable(handle)));
                }
            } else {
                check_arrived(&world, message);
            }
        }
    });
}

// ---- one thing at a time

/// A world of two nodes, in order and at once, with `termini` termini at node 0.
fn two_nodes(termini: usize, link_packets: usize) -> World {
    let shape = Shape {
        nodes: 2,
        termini,
        link_packets,
        packet_bytes: 64,
        work_queue_entries: 63,
        trouble: Trouble::NONE,
    };
    World::new(1, &shape)
}

fn post(world: &mut World, terminus: usize, to: usize, length: u64) -> SendHandle {
    let place = world.place(to, length as usize, Mode::Normal);
    let ticket = world.ticket(place);
    let piece = [Piece { tag: BufferTag(0), offset: 0, length }];
    world.nodes[0].termini[terminus].post_gather(to_node(to), &ticket, &piece, &[], 64).unwrap()
}

/// The slots that the packets on their way to `node` are for, in the order of sending.
fn slots_of_packets(world: &mut World, node: usize) -> Vec<u32> {
    let mut slots = Vec::new();
    loop {
        while let Some(packet) = world.fabric.arrive(node) {
            slots.push(packet.header.slot.0);
        }
        if !world.fabric.advance() {
            return slots;
        }
    }
}

// Hamlyn 2.3: the interface interleaves packets from all termini.
#[test]
fn packets_of_several_termini_alternate() {
    let mut world = two_nodes(3, 99);
    for terminus in 0..3 {
        let _ = post(&mut world, terminus, 1, 192);
    }
    while world.transmit(0, 1, 2) {}
    assert_eq!(slots_of_packets(&mut world, 1), [0, 1, 2, 0, 1, 2, 0, 1, 2]);
}

#[test]
fn packets_of_a_higher_priority_leave_first() {
    let mut world = two_nodes(3, 99);
    for terminus in 0..3 {
        let _ = post(&mut world, terminus, 1, 128);
    }
    world.transmit(0, 1, 1);
    world.nodes[0].termini[2].set_priority(1);
    while world.transmit(0, 1, 1) {}
    assert_eq!(slots_of_packets(&mut world, 1), [0, 2, 2, 0, 1, 1]);
}

#[test]
fn a_full_link_delays_only_its_own_messages() {
    let mut world = two_nodes(1, 1);
    let (first, second) = (post(&mut world, 0, 1, 128), post(&mut world, 0, 0, 64));
    while world.transmit(0, 1, 9) {}
    while world.transmit(0, 0, 9) {}
    let terminus = &world.nodes[0].termini[0];
    assert!(!terminus.is_reusable(&first) && terminus.is_reusable(&second));
    world.settle();
    assert!(world.nodes[0].termini[0].is_reusable(&first));
}

// 2 over three packets would give the deltas 1, 1, 0, and the 0 would announce a message that has
// not arrived.
#[test]
fn a_message_with_more_packets_than_its_share_is_refused_before_it_is_sent() {
    let mut world = two_nodes(1, 9);
    let place = world.place(1, 192, Mode::Normal);
    let ticket = Ticket { share: Share::new(2).unwrap(), ..world.ticket(place) };
    let piece = |length| [Piece { tag: BufferTag(0), offset: 0, length }];
    let terminus = &mut world.nodes[0].termini[0];
    let posted = terminus.post_gather(to_node(1), &ticket, &piece(129), &[], 64);
    assert!(matches!(posted, Err(PostError::Share(_))), "{posted:?}");
    assert_eq!(terminus.waiting(to_node(1)), 0);
    assert!(terminus.post_gather(to_node(1), &ticket, &piece(128), &[], 64).is_ok());
    // Metadata counts towards the packet size.
    let posted = terminus.post_gather(to_node(1), &ticket, &piece(128), &[0; 1], 64);
    assert!(matches!(posted, Err(PostError::Share(_))), "{posted:?}");
}

#[test]
fn a_fast_message_is_one_packet_with_one_word() {
    let mut world = two_nodes(1, 9);
    let place = world.place(1, 100, Mode::Normal);
    let slot = world.places[place].slot;
    let ticket = world.nodes[1].interface.fast_ticket(slot).unwrap();
    assert!(Segmenter::new(&ticket, 65, 0, 0, 64).is_err());
    assert!(Segmenter::new(&ticket, 8, 1, 0, 64).is_err());
    for word in [0, 7, u32::MAX] {
        let segmenter = Segmenter::new(&ticket, 64, 0, word, 64).unwrap();
        let terminus = &mut world.nodes[0].termini[0];
        let _ = terminus.post_immediate(to_node(1), segmenter, &[word as u8; 64][..], &[]).unwrap();
        world.settle();
        let note = world.notified[place].pop().unwrap();
        assert_eq!((note.index, note.word), (MetadataIndex::FAST, word));
        assert!(world.bytes(place)[..64] == [word as u8; 64]);
    }
    assert_eq!(world.user(place), []);
}

#[test]
fn data_moves_without_a_notification_when_none_was_asked_for() {
    let mut world = two_nodes(1, 9);
    let place = world.place(1, 100, Mode::Normal);
    let ticket = world.ticket(place).with_flags(Flags::empty());
    world.send(0, place, &ticket, 100);
    world.settle();
    assert!(world.notified[place].is_empty());
    assert!(world.bytes(place) != [UNTOUCHED; 100]);
}

#[test]
fn what_arrives_while_the_interface_is_disabled_is_gone() {
    let mut world = two_nodes(1, 9);
    world.honest = false;
    world.nodes[1].interface.disable();
    let place = world.place(1, 100, Mode::Normal);
    let ticket = world.ticket(place);
    world.send(0, place, &ticket, 100);
    world.settle();
    world.nodes[1].interface.enable();
    world.settle();
    assert!(world.notified[place].is_empty() && world.bytes(place) == [UNTOUCHED; 100]);
    assert_eq!(world.counter("packets_discarded"), 2);
}

/// The packets of a message, without a link: headers and the bytes that they carry.
fn cut(ticket: &Ticket, length: u64, metadata: usize, packet_bytes: u32) -> Vec<Header> {
    let mut segmenter = Segmenter::new(ticket, length, metadata, 0, packet_bytes).unwrap();
    let mut headers = Vec::new();
    while !segmenter.is_done() {
        let (header, range) = segmenter.next(packet_bytes);
        assert_eq!(range.end - range.start, header.length as u64);
        assert_eq!(range.start, header.offset - ticket.base);
        segmenter.taken(&range);
        headers.push(header);
    }
    headers
}

// Table 1: in every packet of a message, offset, length and delta vary and the rest is the same;
// the metadata is in the first alone and counts towards the packet size.
#[test]
fn a_message_is_cut_into_self_describing_packets() {
    let mut world = two_nodes(1, 9);
    let place = world.place(1, 1000, Mode::Normal);
    let ticket = Ticket { base: 100, share: Share::new(9).unwrap(), ..world.ticket(place) };
    let headers = cut(&ticket, 130, 20, 64);
    let pick = |f: fn(&Header) -> u64| headers.iter().map(f).collect::<Vec<_>>();
    assert_eq!(pick(|h| h.offset), [100, 144, 208]);
    assert_eq!(pick(|h| h.length as u64), [44, 64, 22]);
    assert_eq!(pick(|h| h.metadata_len as u64), [20, 0, 0]);
    assert_eq!(pick(|h| h.delta as u64), [1, 1, 7]);
    let rest = |h: &Header| (h.destination, h.slot, h.metadata_index, h.key, h.flags);
    assert!(headers.iter().all(|h| rest(h) == rest(&headers[0])));
    // A message of no bytes at all is one packet, and says so with a delta of zero.
    let headers = cut(&world.ticket(place), 0, 60, 64);
    assert_eq!((headers.len(), headers[0].delta, headers[0].metadata_len), (1, 0, 60));
}

#[test]
fn a_message_may_be_longer_than_four_gibibytes() {
    let mut world = two_nodes(1, 9);
    let place = world.place(1, 0, Mode::Normal);
    let length = (5 << 30) + 3;
    let ticket = Ticket { bound: length, ..world.ticket(place) };
    let headers = cut(&ticket, length, 60, 1 << 20);
    assert_eq!(headers.iter().map(|h| h.length as u64).sum::<u64>(), length);
    assert_eq!(headers.last().unwrap().offset + headers.last().unwrap().length as u64, length);
    assert_eq!(headers.iter().fold(0u32, |sum, h| sum.wrapping_add(h.delta)), 0);
}
