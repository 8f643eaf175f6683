//! The cost of idling: the resources of links without traffic, and of a receiver that waits.
//! Counted here; `hamlyn perf idle` measures it.

use crate::support::*;
use hamlyn::Access;
use hamlyn::protocol::{CallId, Client, ClientConfig, Manager, Server, ServerConfig};
use std::time::{Duration, Instant};

const LINKS: usize = 200;
/// After so many times nothing more is needed than the time before, or something leaks.
const ROUNDS_MAX: usize = 12;
/// Of each link, on both sides together, with default settings.
const DESCRIPTORS_MAX: usize = 8;
const SHARED_KIB_MAX: usize = 160;
/// Some eight, by how full the tables are in which links stand: trees and vectors that are half full
/// cost twice as much for each.
const HEAP_KIB_MAX: usize = 10;
/// Times that the threads of a process go to sleep while it waits for a message that does not come.
const SLEEPS_MAX: u64 = 10;
const CALLS: u32 = 4000;
const WAIT: Duration = Duration::from_millis(300);

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
        say(&numbers(Costs::now()).map(|n| n.to_string()).join(" "));
    }
}

/// The values to compare: descriptors, shared mappings, shared bytes, bytes on the heap.
fn numbers(costs: Costs) -> [usize; 4] {
    [costs.descriptors, costs.shared_mappings, costs.shared_bytes, costs.heap_bytes]
}

#[test]
fn an_idle_link_is_cheap_on_both_sides_together() {
    alone("an_idle_link_is_cheap_on_both_sides_together", || {
        let dir = Dir::new("idle-links", &[]);
        let mut server = Peer::start("role", &dir, "");
        server.expect("serving");
        let mut client = Station::new(dir.config(), 4096, 1);
        let mut measure = |client: &mut Station, links: usize| -> [usize; 4] {
            while client.node.links().count() < links {
                client.connect("service");
            }
            client.node.poll().unwrap();
            server.tell(&links.to_string());
            let mut both = numbers(Costs::now());
            for (sum, theirs) in both.iter_mut().zip(server.says().split(' ')) {
                *sum += theirs.parse::<usize>().unwrap();
            }
            both
        };
        let before = measure(&mut client, 10);
        let after = measure(&mut client, 10 + LINKS);
        let each = [0, 1, 2, 3].map(|i| (after[i] - before[i]).div_ceil(LINKS));
        let [descriptors, mappings, shared, heap] = each;
        loud(&format!(
            "an idle link, both sides together: {descriptors} descriptors, {mappings} shared \
             mappings of {shared} bytes, {heap} bytes on the heap"
        ));
        assert!(descriptors <= DESCRIPTORS_MAX, "{descriptors} descriptors");
        assert!(shared <= SHARED_KIB_MAX << 10, "{shared} bytes of shared memory");
        assert!(heap <= HEAP_KIB_MAX << 10, "{heap} bytes on the heap");
        // All of them are given back: what leaks is more each time. A table grows once where more happened
        // at a time than before, so two times that need no more than the one before are looked for.
        let (mut needed, mut as_much) = (before, 0);
        for round in 0.. {
            let links: Vec<_> = client.node.links().skip(10).collect();
            for link in links {
                client.node.disconnect(link).unwrap();
            }
            // Threads that close what another process passed may not have ended yet.
            let began = Instant::now();
            let (now, is_more) = loop {
                let now = measure(&mut client, 10);
                let is_more = now.iter().zip(needed).any(|(now, before)| *now > before + 1024)
                    || now[..3].iter().zip(needed).any(|(now, before)| *now > before);
                if !is_more || began.elapsed() > Duration::from_secs(2) {
                    break (now, is_more);
                }
                std::thread::sleep(Duration::from_millis(1));
            };
            as_much = if is_more { 0 } else { as_much + 1 };
            if as_much == 2 {
                break;
            }
            assert!(
                round < ROUNDS_MAX,
                "descriptors, mappings, shared bytes, bytes on the heap are {now:?} after {round} \
                 times, and were {needed:?} the time before"
            );
            needed = now;
            measure(&mut client, 10 + LINKS);
        }
        // And nothing is done for those that wait.
        sleeps_once(&mut client);
        drop(client);
        server.end();
    });
}

/// A receiver waits for what does not come: it sleeps, and nothing wakes it or another thread. Threads
/// of links that were closed just before may still be at work, so one quiet time of three is enough.
fn sleeps_once(station: &mut Station) {
    let quiet = (0..3).any(|_| {
        let (sleeps, asleep) = (counter(&station.node, "sleeps"), times_asleep());
        station.node.recv(station.queue, Some(WAIT)).unwrap_err();
        let sleeps = counter(&station.node, "sleeps") - sleeps;
        // A thread of the connecting may end meanwhile: it has no part in the waiting.
        let times = times_asleep();
        let since = times.iter().map(|(thread, times)| times - asleep.get(thread).unwrap_or(&0));
        let asleep: u64 = since.sum();
        loud(&format!(
            "a receiver that waits slept {sleeps} times; all its threads {asleep} times"
        ));
        assert!((1..=SLEEPS_MAX).contains(&sleeps), "it slept {sleeps} times");
        asleep <= SLEEPS_MAX
    });
    assert!(quiet, "the threads of the process slept more than {SLEEPS_MAX} times, three times");
}

#[test]
fn a_receiver_that_waits_sleeps_until_something_comes() {
    alone("a_receiver_that_waits_sleeps_until_something_comes", || {
        for mode in ["adaptive", "blocking"] {
            let dir = Dir::new(&format!("waits-{mode}"), &[("WAIT_MODE", mode)]);
            let mut server = Peer::start("role", &dir, "");
            server.expect("serving");
            let mut client = Station::new(dir.config(), 4096, 1);
            for _ in 0..50 {
                client.connect("service");
            }
            sleeps_once(&mut client);
            drop(client);
            server.end();
        }
    });
}

#[test]
fn a_node_that_is_dropped_leaves_no_housekeeping_thread() {
    alone("a_node_that_is_dropped_leaves_no_housekeeping_thread", || {
        let dir = Dir::new("dropped", &[]);
        let is_there = || {
            let mut tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
            // One that ends while they are read has no name any more.
            tasks.any(|task| {
                let name = std::fs::read_to_string(task.path().join("comm"));
                name.is_ok_and(|name| name.trim_end() == "hamlyn-control")
            })
        };
        let station = Station::new(dir.config(), 4096, 1);
        until("it runs", is_there);
        drop(station);
        // It has been waited for; the system may show it for a moment longer.
        until("it has ended", || !is_there());
    });
}

#[test]
fn calls_that_are_over_leave_nothing_on_the_heap() {
    alone("calls_that_are_over_leave_nothing_on_the_heap", || {
        const BYTES: usize = 16;
        let dir = Dir::new("calls", &[]);
        let [there, here] = [0, 1].map(|_| Manager::with_config(dir.config()).unwrap());
        there.start_progress().unwrap();
        here.start_progress().unwrap();
        let config =
            ServerConfig { outstanding: CALLS, request_bytes: BYTES as u32, ..Default::default() };
        let server = Server::new(&there, config).unwrap();
        server.serve("calls", Access::SameUser).unwrap();
        let config =
            ClientConfig { outstanding: CALLS, reply_bytes: BYTES as u32, ..Default::default() };
        let client = Client::connect_with(&here, "calls", config, LIMIT).unwrap();
        let round = || {
            let calls: Vec<CallId> =
                (0..CALLS).map(|_| client.start(&[7; BYTES], LIMIT).unwrap()).collect();
            let requests: Vec<_> =
                (0..CALLS).map(|_| server.receive(LIMIT).unwrap().detach()).collect();
            for request in requests {
                server.attach(request).reply(&[8; BYTES], LIMIT).unwrap();
            }
            for call in calls {
                assert_eq!(*client.finish(call, LIMIT).unwrap(), [8; BYTES]);
            }
        };
        round();
        // A leak of calls appears in each of these; a queue that has to be longer than ever before,
        // because threads ran in another order, grows once.
        let left = (0..4).map(|_| {
            let before = Costs::now().heap_bytes;
            (0..3).for_each(|_| round());
            Costs::now().heap_bytes.saturating_sub(before)
        });
        let least = left.min().unwrap();
        assert!(least < CALLS as usize, "{least} bytes are left of each {} calls", 3 * CALLS);
    });
}
