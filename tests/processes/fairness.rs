//! A flooded link, even with refused packets, starves neither another link nor outgoing messages;
//! and a first message on one of many idle links is found.

use crate::support::*;
use hamlyn::{Accept, Access, LinkId, MetadataIndex, Piece, Ticket};
use std::time::Instant;

const SETTINGS: &[(&str, &str)] = &[("REFUSALS_PER_SECOND_MAX", "0"), ("LINKS_MAX", "2000")];
const IDLE_LINKS: usize = 500;
const AREA_BYTES: usize = 1 << 20;

/// Not a test: what the other processes do.
#[test]
fn role() {
    let Some(role) = Role::of_this_process() else { return };
    match role.name.as_str() {
        // Sends as fast as it can, good packets or such as are refused, until it is ended.
        "flood" => {
            let mut station = Station::new(role.config(), 64, 1);
            let (_, ticket) = station.connect("service");
            let ticket = Ticket { metadata_index: MetadataIndex(7), ..ticket }.at(4096).unwrap();
            let ticket = ticket.silent();
            let refused = Ticket { base: 1 << 40, bound: 1 << 41, ..ticket };
            let ticket = if role.args[0] == "refused" { refused } else { ticket };
            let data = [3; 16];
            say("floods");
            while station.node.send(&ticket, &data, b"", LIMIT).is_ok() {}
        }
        "echo" => echo(Station::new(role.config(), 4096, 1), "service"),
        "sink" => {
            let mut station = Station::new(role.config(), AREA_BYTES, 1);
            station.connect("service");
            station.recv();
            say("has it all");
            role.wait_for("end");
        }
        // Many links; a number, as a message, on one of them at a time.
        "idle" => {
            let mut station = Station::new(role.config(), 64, 1);
            let links: Vec<LinkId> = (0..IDLE_LINKS)
                .map(|_| station.node.connect("service", &[], Some(LONG)).unwrap())
                .collect();
            let greeting = station.node.greeting(links[0]).unwrap();
            let ticket = Ticket::from_bytes(greeting).unwrap();
            say("linked");
            while let Some(line) = role.hear() {
                let (which, number) = line.split_once(' ').unwrap();
                let link = links[which.parse::<usize>().unwrap()];
                let number: u64 = number.parse().unwrap();
                station.node.send_over(link, &ticket, &number.to_le_bytes(), b"", LIMIT).unwrap();
                say("sent");
            }
        }
        other => panic!("no role {other}"),
    }
}

fn receiver(dir: &Dir) -> Station {
    let mut station = Station::new(dir.config(), AREA_BYTES, 8);
    let greeting = station.ticket.to_bytes().to_vec();
    station.node.serve("service", Access::SameUser, Accept::Automatic(greeting)).unwrap();
    station
}

fn median(mut times: Vec<u64>) -> (u64, u64) {
    times.sort_unstable();
    (times[times.len() / 2], times[times.len() - 1])
}

fn flooded(how: &str) {
    let dir = Dir::new(&format!("flood-{how}"), SETTINGS);
    let mut station = receiver(&dir);
    let friend = Peer::start("echo", &dir, "");
    let link = connected(&mut station.node);
    let to_friend = ticket_of(&station.node, link);
    let mut sink = Peer::start("sink", &dir, "");
    let link = connected(&mut station.node);
    let to_sink = ticket_of(&station.node, link);
    let mut flood = Peer::start("flood", &dir, how);
    flood.expect("floods");
    let count = |station: &Station| match how {
        "refused" => counter(&station.node, "refused_out_of_bounds"),
        _ => counter(&station.node, "packets_received"),
    };
    until_node(&mut station.node, "the flood is here", |node| {
        counter(node, "refused_out_of_bounds") + counter(node, "packets_received") > 10_000
    });
    let began = count(&station);
    // Another link, both ways.
    let reply = station.ticket.to_bytes();
    let mut times = Vec::new();
    for round in 0..200u64 {
        let from = Instant::now();
        station.node.send(&to_friend, &round.to_le_bytes(), &reply, LIMIT).unwrap();
        station.recv();
        times.push(from.elapsed().as_nanos() as u64);
        assert_eq!(station.bytes()[..8], round.to_le_bytes());
    }
    // The queue drains while only arrivals are looked at, a bounded number in a turn.
    let terminus = station.node.primary();
    let tag = station.node.send_buffer(terminus, AREA_BYTES).unwrap();
    let pieces = [Piece { tag, offset: 0, length: AREA_BYTES as u64 }];
    let handle = station.node.post_send(terminus, &to_sink, &pieces, b"").unwrap();
    let mut most = 0;
    let end = Instant::now() + LONG;
    while !station.node.is_reusable(&handle) {
        most = most.max(station.node.poll().unwrap());
        assert!(Instant::now() < end, "what was queued does not leave\n{}", state(&station.node));
    }
    let budget = station.node.config().packets_per_turn as usize;
    assert!(most <= 3 * 2 * budget, "{most} packets in a turn");
    sink.expect("has it all");
    let during = count(&station) - began;
    assert!(during > 0, "the flood has ended");
    let (median, max) = median(times);
    loud(&format!(
        "beside a flood ({how}, {during} packets): round trip median {} us, at most {} us",
        median / 1000,
        max / 1000
    ));
    flood.kill();
    sink.end();
    drop(friend);
}

#[test]
fn a_flood_starves_neither_another_link_nor_what_leaves() {
    flooded("accepted");
}

#[test]
fn nor_does_a_flood_of_packets_that_are_refused() {
    flooded("refused");
}

#[test]
fn a_first_message_on_an_idle_link_is_found_while_another_is_busy() {
    let dir = Dir::new("many-idle", SETTINGS);
    let mut station = receiver(&dir);
    let mut idle = Peer::start("idle", &dir, "");
    until_node(&mut station.node, "the links are there", |n| n.links().count() == IDLE_LINKS);
    idle.expect("linked");
    let mut flood = Peer::start("flood", &dir, "accepted");
    flood.expect("floods");
    until_node(&mut station.node, "the flood is here", |node| {
        counter(node, "packets_received") > 100_000
    });
    let mut random = Random::new(9);
    let mut turns = Vec::new();
    for round in 0..100u64 {
        let which = random.below(IDLE_LINKS as u64);
        idle.tell(&format!("{which} {round}"));
        idle.expect("sent");
        // The promise is a time, 20 us, and the engine's tests check it on a clock of their own.
        // The number of turns depends on the length of one: while the busy one stands still, some
        // nanoseconds at most.
        const TURNS: usize = 20_000;
        let mut count = 0;
        while station.node.try_recv(station.queue).unwrap().is_none() {
            count += 1;
            assert!(count <= TURNS, "not found in {count} turns\n{}", state(&station.node));
        }
        assert_eq!(station.bytes()[..8], round.to_le_bytes());
        turns.push(count);
        // Until the link is idle again.
        for _ in 0..10_000 {
            station.node.poll().unwrap();
        }
    }
    turns.sort_unstable();
    loud(&format!(
        "a first message on one of {IDLE_LINKS} idle links, another busy: found in turn {} \
         (median), {} (at most)",
        turns[turns.len() / 2],
        turns[turns.len() - 1]
    ));
    flood.kill();
    idle.end();
}
