//! What idle costs: memory of links that carry nothing, processor time of a receiver that waits.
#![cfg(feature = "os")]

mod support;

use std::time::{Duration, Instant};
use support::*;

const LINKS: usize = 200;
/// Both sides together, with default settings.
const LINK_KIB_MAX: u64 = 160;
const WAIT_NS_MAX: u64 = 5_000_000;

/// Not a test: the other side.
#[test]
fn role() {
    let Some(role) = Role::of_this_process() else { return };
    let mut station = Station::new(role.config(), 4096, 1).serve("service");
    say("serving");
    // Told a number of links, it has them, and says what it has of the machine.
    while let Some(links) = role.hear() {
        let links: usize = links.parse().unwrap();
        until_node(&mut station.node, "the links are there", |n| n.links().count() == links);
        while station.node.next_event().is_some() {}
        say(&resident_kib("self").to_string());
    }
}

#[test]
fn an_idle_link_is_cheap_on_both_sides_together() {
    alone("an_idle_link_is_cheap_on_both_sides_together", || {
        let dir = Dir::new("idle-links", &[]);
        let mut server = Peer::start("role", &dir, "");
        server.expect("serving");
        let mut client = Station::new(dir.config(), 4096, 1);
        let mut measure = |client: &mut Station, links: usize| -> u64 {
            while client.node.links().count() < links {
                client.connect("service");
            }
            client.node.poll().unwrap();
            server.tell(&links.to_string());
            let theirs: u64 = server.says().parse().unwrap();
            theirs + resident_kib("self")
        };
        let before = measure(&mut client, 10);
        let after = measure(&mut client, 10 + LINKS);
        let each = (after - before) as f64 / LINKS as f64;
        loud(&format!("an idle link: {each:.1} KiB resident on both sides together"));
        assert!(each <= LINK_KIB_MAX as f64, "{each} KiB, and at most {LINK_KIB_MAX} are allowed");
        // All of them are given back: later times need no more than the first ones.
        let mut after_two = 0;
        for round in 0..5 {
            let links: Vec<_> = client.node.links().skip(10).collect();
            for link in links {
                client.node.disconnect(link).unwrap();
            }
            if round == 2 {
                after_two = measure(&mut client, 10);
            } else if round > 2 {
                // Threads that close what another process passed may not have ended yet.
                let mut now = 0;
                let end = Instant::now() + LONG;
                while Instant::now() < end && (now == 0 || now > after_two + 300) {
                    now = measure(&mut client, 10);
                }
                assert!(now <= after_two + 300, "{after_two} KiB after two rounds, then {now}");
            }
            measure(&mut client, 10 + LINKS);
        }
        // And nothing is done for those that wait.
        let from = processor_ns();
        client.node.recv(client.queue, Some(Duration::from_secs(1))).unwrap_err();
        let used = processor_ns() - from;
        assert!(used < WAIT_NS_MAX, "{used} ns of processor time with {LINKS} links");
        drop(client);
        server.end();
    });
}

#[test]
fn a_receiver_that_waits_uses_no_processor_time() {
    alone("a_receiver_that_waits_uses_no_processor_time", || {
        for mode in ["adaptive", "blocking"] {
            let dir = Dir::new(&format!("waits-{mode}"), &[("WAIT_MODE", mode)]);
            let mut server = Peer::start("role", &dir, "");
            server.expect("serving");
            let mut client = Station::new(dir.config(), 4096, 1);
            for _ in 0..50 {
                client.connect("service");
            }
            let from = processor_ns();
            client.node.recv(client.queue, Some(Duration::from_secs(1))).unwrap_err();
            // All threads of this process, the housekeeping thread among them.
            let used = processor_ns() - from;
            loud(&format!("a receiver that waits, {mode}: {used} ns of processor time a second"));
            assert!(used < WAIT_NS_MAX, "{used} ns, and less than {WAIT_NS_MAX} are allowed");
            drop(client);
            server.end();
        }
    });
}
