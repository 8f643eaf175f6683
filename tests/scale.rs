//! Ten thousand hosts in one simulation: the interfaces of as many nodes, links that are made on
//! first use, a neighbour exchange and a barrier over a tree. The cost of a host is counted.
//!
//! `docs/scale.md` has the additional cost of links over TLS, and of the turns of a node with so
//! many, with the tests that count it.
#![cfg(not(miri))]

mod support;

use hamlyn::interface::terminus::Segmenter;
use hamlyn::interface::{Interface, LinkId, QueueId, SlotConfig, SlotId};
use hamlyn::link::sim::{SimFabric, SimLink, Trouble};
use hamlyn::wire::{MetadataIndex, NodeId, Ticket};
use std::collections::HashMap;
use support::{Costs, alone};

/// Senders that a host knows, each with an entry of its own: in a tree and in a ring.
const PARENT: u32 = 0;
const LEFT: u32 = 1;
const RIGHT: u32 = 2;
const BEFORE: u32 = 3;
const AFTER: u32 = 4;
const BYTES: usize = 16;
const PACKET_BYTES: u32 = 1024;

struct Host {
    interface: Interface<Vec<u8>>,
    queue: QueueId,
    slot: SlotId,
    /// Rounds in which it has exchanged with its neighbours, and in which its children have.
    exchanged: [u32; 2],
    below: [u32; 2],
    reported: u32,
    released: u32,
}

struct World {
    fabric: SimFabric,
    hosts: Vec<Host>,
    /// Made when first used.
    links: HashMap<(usize, usize), SimLink>,
    messages: u64,
}

impl World {
    fn new(count: usize) -> Self {
        let trouble = Trouble { delay_max_ns: 50, ..Trouble::REORDER };
        let host = |id: usize| {
            let mut interface = Interface::new(NodeId(1 + id as u64), [id as u8; 16]);
            interface.enable();
            let area = interface.create_area(vec![0; BYTES]);
            let queue = interface.create_queue(16).unwrap();
            let config = SlotConfig::new(area, queue).metadata(5).credit(16);
            let slot = interface.create_slot(&config).unwrap();
            let (exchanged, below) = ([0; 2], [0; 2]);
            Host { interface, queue, slot, exchanged, below, reported: 0, released: 0 }
        };
        let fabric = SimFabric::new(11, count, trouble);
        Self { fabric, hosts: (0..count).map(host).collect(), links: HashMap::new(), messages: 0 }
    }

    fn send(&mut self, from: usize, to: usize, entry: u32) {
        let host = &self.hosts[to];
        let ticket = host.interface.ticket(host.slot, MetadataIndex(entry)).unwrap();
        let fabric = &mut self.fabric;
        let link = self.links.entry((from, to));
        let link = *link.or_insert_with(|| fabric.connect(to, 4, PACKET_BYTES));
        let data = [from as u8; BYTES];
        let mut message = Segmenter::new(&ticket, BYTES as u64, 0, 0, PACKET_BYTES).unwrap();
        message.advance(&mut fabric.outgoing(link), &data[..], &[]).unwrap();
        self.messages += 1;
    }

    fn begin(&mut self, host: usize) {
        let count = self.hosts.len();
        self.send(host, (host + 1) % count, BEFORE);
        self.send(host, (host + count - 1) % count, AFTER);
    }

    /// Goes on with what a host has been told.
    fn go_on(&mut self, host: usize) {
        let count = self.hosts.len();
        let children = [2 * host + 1, 2 * host + 2];
        let this = &mut self.hosts[host];
        let next = this.reported + 1;
        let is_below = |i: usize| children[i] >= count || this.below[i] >= next;
        if this.reported == this.released
            && this.exchanged.iter().all(|rounds| *rounds >= next)
            && is_below(0)
            && is_below(1)
        {
            this.reported = next;
            match host {
                0 => self.release(0),
                _ => self.send(host, (host - 1) / 2, if host % 2 == 1 { LEFT } else { RIGHT }),
            }
        }
    }

    fn release(&mut self, host: usize) {
        self.hosts[host].released += 1;
        for child in [2 * host + 1, 2 * host + 2] {
            if child < self.hosts.len() {
                self.send(host, child, PARENT);
            }
        }
    }

    /// Handles all arrivals up to now.
    fn turn(&mut self, at: usize) -> bool {
        let mut any = false;
        while let Some(packet) = self.fabric.arrive(at) {
            any = true;
            let link = LinkId { index: packet.link.index() as u32, generation: 0 };
            let host = &mut self.hosts[at];
            host.interface.handle_packet(link, &packet.header, packet.reserved, &packet).unwrap();
            loop {
                let host = &mut self.hosts[at];
                let Some(note) = host.interface.pop(host.queue).unwrap() else { break };
                assert!(note.is_for(host.slot));
                match note.index.0 {
                    PARENT => self.release(at),
                    LEFT => self.hosts[at].below[0] += 1,
                    RIGHT => self.hosts[at].below[1] += 1,
                    BEFORE => self.hosts[at].exchanged[0] += 1,
                    _ => self.hosts[at].exchanged[1] += 1,
                }
                if note.index.0 != PARENT {
                    self.go_on(at);
                }
            }
        }
        any
    }

    /// One round: no host is released before all have exchanged.
    fn round(&mut self) -> u64 {
        let before = self.messages;
        let round = self.hosts[0].released + 1;
        (0..self.hosts.len()).for_each(|host| self.begin(host));
        loop {
            for host in 0..self.hosts.len() {
                self.turn(host);
            }
            if self.hosts[0].released == round && self.hosts.iter().any(|h| h.reported < round) {
                panic!("released before all had come");
            }
            if !self.fabric.advance() {
                break;
            }
        }
        assert!(self.hosts.iter().all(|h| h.released == round && h.exchanged == [round; 2]));
        self.messages - before
    }
}

#[test]
fn ten_thousand_hosts_meet_and_each_costs_what_it_speaks_with() {
    alone("ten_thousand_hosts_meet_and_each_costs_what_it_speaks_with", || {
        let rounds = std::env::var("HAMLYN_TEST_ROUNDS").map_or(2, |_| 20);
        let cost = |count: usize| {
            let before = Costs::now().heap_bytes;
            let mut world = World::new(count);
            let made = (Costs::now().heap_bytes - before) / count;
            let messages: Vec<u64> = (0..rounds).map(|_| world.round()).collect();
            // Two to the neighbours, one up, one down.
            assert!(messages.iter().all(|sent| *sent == 4 * count as u64 - 2), "{messages:?}");
            // Not one for each pair; the first child of the first host is its neighbour, too.
            assert_eq!(world.links.len(), 4 * count - 4);
            let refused: u64 = world
                .hosts
                .iter()
                .flat_map(|host| host.interface.counters().snapshot())
                .filter(|row| row.0.starts_with("refused_"))
                .map(|row| row.1)
                .sum();
            assert_eq!(refused, 0);
            made
        };
        let (few, many) = (cost(100), cost(10_000));
        support::loud(&format!("bytes of a host: {few} of a hundred, {many} of ten thousand"));
        assert!(many <= few + few / 4, "{few} bytes of a host, then {many}");
    });
}

/// One host that all others speak to at once, and that answers each. What each costs it: bytes of its
/// interface, with an entry for each; links that there are then, of all hosts.
fn star(count: usize) -> (usize, usize) {
    let before = Costs::now().heap_bytes;
    let mut interface = Interface::new(NodeId(1), [1; 16]);
    interface.enable();
    let area = interface.create_area(vec![0; BYTES]);
    let queue = interface.create_queue(count as u32).unwrap();
    let config = SlotConfig::new(area, queue).metadata(count as u32).credit(count as u32);
    let slot = interface.create_slot(&config).unwrap();
    let bytes = (Costs::now().heap_bytes - before) / count;
    // The others are from 0 on, and the one in the middle is behind them.
    let mut world = World::new(count);
    let middle = world.hosts.len();
    world.fabric = SimFabric::new(12, count + 1, Trouble { delay_max_ns: 50, ..Trouble::REORDER });
    let send = |fabric: &mut SimFabric, ticket: &Ticket, to: usize| {
        let link = fabric.connect(to, 4, PACKET_BYTES);
        let data = [7; BYTES];
        let mut message = Segmenter::new(ticket, BYTES as u64, 0, 0, PACKET_BYTES).unwrap();
        message.advance(&mut fabric.outgoing(link), &data[..], &[]).unwrap();
    };
    let link_of = |link: SimLink| LinkId { index: link.index() as u32, generation: 0 };
    for entry in 0..count as u32 {
        let ticket = interface.ticket(slot, MetadataIndex(entry)).unwrap();
        send(&mut world.fabric, &ticket, middle);
    }
    let (mut links, mut answers, mut heard) = (count, 0, vec![0; count]);
    loop {
        while let Some(packet) = world.fabric.arrive(middle) {
            let link = link_of(packet.link);
            interface.handle_packet(link, &packet.header, packet.reserved, &packet).unwrap();
        }
        while let Some(note) = interface.pop(queue).unwrap() {
            let from = note.index.0 as usize;
            heard[from] += 1;
            let host = &world.hosts[from];
            let ticket = host.interface.ticket(host.slot, MetadataIndex(PARENT)).unwrap();
            send(&mut world.fabric, &ticket, from);
            links += 1;
        }
        for at in 0..count {
            while let Some(packet) = world.fabric.arrive(at) {
                let (link, host) = (link_of(packet.link), &mut world.hosts[at]);
                host.interface
                    .handle_packet(link, &packet.header, packet.reserved, &packet)
                    .unwrap();
                while host.interface.pop(host.queue).unwrap().is_some() {
                    answers += 1;
                }
            }
        }
        if !world.fabric.advance() {
            break;
        }
    }
    assert!(heard.iter().all(|times| *times == 1), "each is heard once");
    assert_eq!(answers, count);
    let refused = |row: &(&str, u64)| row.0.starts_with("refused_") && row.1 > 0;
    assert!(!interface.counters().snapshot().iter().any(refused));
    (bytes, links)
}

#[test]
fn a_host_that_ten_thousand_speak_to_keeps_an_entry_of_each_and_no_more() {
    alone("a_host_that_ten_thousand_speak_to_keeps_an_entry_of_each_and_no_more", || {
        let (few, many) = (star(1000), star(10_000));
        support::loud(&format!(
            "bytes of a peer: {} of a thousand, {} of ten thousand",
            few.0, many.0
        ));
        assert_eq!((few.1, many.1), (2000, 20_000));
        assert!(many.0 <= few.0, "{} bytes of a peer, then {}", few.0, many.0);
    });
}
