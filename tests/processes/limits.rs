//! Each limit is an error that says which limit it is, and leaves everything as it was.

use crate::support::*;
use hamlyn::SlotConfig;

/// Not a test: connects as often as its argument says, and prints each result.
#[test]
fn role() {
    let Some(role) = Role::of_this_process() else { return };
    if role.name == "few_descriptors" {
        return few_descriptors(&role);
    }
    let mut station = Station::new(role.config(), 64, 1);
    say("here");
    while let Some(line) = role.hear() {
        if line == "leave" {
            let links: Vec<_> = station.node.links().collect();
            station.node.disconnect(links[0]).unwrap();
            say("left");
            continue;
        }
        match station.node.connect("service", b"", Some(LONG)) {
            Ok(_) => say("linked"),
            Err(e) => say(&e.to_string()),
        }
    }
}

/// The soft limit is raised as far as it may be, and a note says so.
fn few_descriptors(role: &Role) {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    let hard = limit.maximum;
    limit.current = Some(300);
    setrlimit(Resource::Nofile, limit).unwrap();
    let station = Station::new(role.config(), 64, 1);
    assert_eq!(getrlimit(Resource::Nofile).current, hard);
    let raised = "the soft limit on descriptors was raised from 300 to ";
    let notes = station.node.notes();
    assert!(notes.iter().any(|note| note.starts_with(raised)), "{notes:?}");
    // A second node finds it raised, and says nothing of it.
    let again = Station::new(role.config(), 64, 1);
    assert!(!again.node.notes().iter().any(|note| note.starts_with(raised)));
}

#[test]
fn a_low_soft_limit_on_descriptors_is_raised_and_said_to_be() {
    let hard = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum;
    if hard.is_some_and(|hard| hard < 1024) {
        return skipped("the hard limit on descriptors is too low");
    }
    let dir = Dir::new("descriptors", &[("LINKS_MAX", "64")]);
    Peer::start("few_descriptors", &dir, "").end();
}

/// The state that a refusal must not change.
fn everything(station: &Station) -> (usize, Costs) {
    let costs = Costs { mappings: 0, heap_bytes: 0, ..Costs::now() };
    (station.node.links().count(), costs)
}

#[test]
fn links_max_of_the_client() {
    alone("links_max_of_the_client", || {
        let dir = Dir::new("client-links", &[]);
        let server = Station::new(dir.config(), 64, 1).serve("service");
        let mut client = Station::new(dir.config_with(&[("LINKS_MAX", "2")]), 64, 1);
        let (first, _) = client.connect("service");
        client.connect("service");
        let before = everything(&client);
        for _ in 0..3 {
            let error = client.node.connect("service", b"", Some(LONG)).unwrap_err().to_string();
            assert!(error.contains("2 links") && error.contains("HAMLYN_LINKS_MAX"), "{error}");
        }
        assert_eq!(everything(&client), before);
        client.node.disconnect(first).unwrap();
        client.connect("service");
        client.node.send(&server.ticket, b"works", b"", LIMIT).unwrap();
        let mut server = server;
        server.recv();
    });
}

#[test]
fn links_max_of_the_server() {
    let dir = Dir::new("server-links", &[]);
    let config = dir.config_with(&[("LINKS_MAX", "2")]);
    let mut server = Station::new(config, 64, 1).serve("service");
    let mut peer = Peer::start("role", &dir, "");
    peer.expect("here");
    for _ in 0..2 {
        peer.tell("connect");
        peer.expect("linked");
    }
    for _ in 0..2 {
        peer.tell("connect");
        let said = peer.says();
        assert!(said.contains("refused") && said.contains("links_max"), "{said}");
    }
    until_node(&mut server.node, "it has its links", |node| node.links().count() == 2);
    assert_eq!(counter(&server.node, "control.refused_links"), 2);
    peer.tell("leave");
    peer.expect("left");
    until_node(&mut server.node, "a link has gone", |node| node.links().count() == 1);
    peer.tell("connect");
    peer.expect("linked");
    peer.end();
}

#[test]
fn connections_per_user_max() {
    alone("connections_per_user_max", || {
        let dir = Dir::new("connections", &[]);
        // A link takes two connections while it is being made, and one afterwards.
        let config = dir.config_with(&[("CONNECTIONS_PER_USER_MAX", "3")]);
        let mut server = Station::new(config, 64, 1).serve("service");
        let mut peer = Peer::start("role", &dir, "");
        peer.expect("here");
        for _ in 0..2 {
            peer.tell("connect");
            peer.expect("linked");
        }
        until_node(&mut server.node, "it has its links", |node| node.links().count() == 2);
        // A receiver of the last link may be ending still, so that less may be left afterwards.
        let before = everything(&server).1;
        for _ in 0..3 {
            peer.tell("connect");
            let said = peer.says();
            assert!(
                said.contains("refused") && said.contains("connections_per_user_max"),
                "{said}"
            );
        }
        until("nothing is left of the attempts", || {
            let now = everything(&server).1;
            now.descriptors <= before.descriptors
                && now.shared_mappings <= before.shared_mappings
                && now.shared_bytes <= before.shared_bytes
        });
        assert_eq!(server.node.links().count(), 2);
        assert!(counter(&server.node, "control.refused_connections") > 0);
        peer.tell("leave");
        peer.expect("left");
        until_node(&mut server.node, "a link has gone", |node| node.links().count() == 1);
        peer.tell("connect");
        peer.expect("linked");
        peer.end();
    });
}

#[test]
fn bytes_per_user_max() {
    let dir = Dir::new("bytes", &[]);
    let config = dir.config_with(&[("BYTES_PER_USER_MAX", "100K")]);
    let mut server = Station::new(config, 64, 1).serve("service");
    let mut peer = Peer::start("role", &dir, "");
    peer.expect("here");
    peer.tell("connect");
    peer.expect("linked");
    peer.tell("connect");
    let said = peer.says();
    assert!(said.contains("refused") && said.contains("bytes_per_user_max"), "{said}");
    peer.tell("leave");
    peer.expect("left");
    until_node(&mut server.node, "the link has gone", |n| counter(n, "links_closed") == 1);
    peer.tell("connect");
    peer.expect("linked");
    peer.end();
}

#[test]
fn areas_slots_and_bytes() {
    alone("areas_slots_and_bytes", || {
        let dir = Dir::new("areas", &[]);
        let settings = [("AREAS_MAX", "3"), ("SLOTS_MAX", "3"), ("AREA_BYTES_MAX", "100000")];
        let mut s = Station::new(dir.config_with(&settings), 64, 1);
        let node = &mut s.node;
        let queue = node.notification_queue(100).unwrap();
        // One area and one slot are there.
        let error = node.message_area(100_000).unwrap_err().to_string();
        let variable = "HAMLYN_AREA_BYTES_MAX";
        assert!(error.contains("100000") && error.contains(variable), "{error}");
        let large = node.message_area(90_000).unwrap();
        let terminus = node.primary();
        let error = node.send_buffer(terminus, 10_000).unwrap_err().to_string();
        assert!(error.contains(variable), "{error}");
        // Twenty more refusals leave nothing; a thread that has just begun may map its own first.
        let before = Costs::now();
        for _ in 0..20 {
            node.message_area(10_000).unwrap_err();
            node.send_buffer(terminus, 10_000).unwrap_err();
        }
        let grown = Costs::now().mappings.saturating_sub(before.mappings);
        assert!(grown < 20, "{grown} more mappings after 40 refusals");
        let small = node.message_area(100).unwrap();
        let error = node.message_area(1).unwrap_err().to_string();
        assert!(error.contains("3 message areas"), "{error}");
        node.remove_area(large).unwrap();
        node.send_buffer(terminus, 10_000).unwrap();
        let large = node.message_area(80_000).unwrap();

        let other = node.slot(SlotConfig::new(small, queue)).unwrap();
        node.slot(SlotConfig::new(large, queue)).unwrap();
        for _ in 0..200 {
            // Were a refused slot to keep its share of the queue, it would soon have none left.
            let error = node.slot(SlotConfig::new(small, queue)).unwrap_err().to_string();
            assert!(error.contains("3 slots"), "{error}");
        }
        assert!(node.remove_area(small).is_err());
        node.remove_slot(other).unwrap();
        node.slot(SlotConfig::new(small, queue).metadata(99)).unwrap();
        // And what it had all the while works.
        s.node.send(&s.ticket, b"works", b"", LIMIT).unwrap();
        s.recv();
    });
}

#[test]
fn send_buffers_and_work_queue_entries() {
    let dir = Dir::new("termini", &[("RING_BYTES", "512"), ("BULK_RING_BYTES", "0")]);
    let mut server = Station::new(dir.config(), 4096, 64).serve("service");
    let settings = [("SEND_BUFFERS_MAX", "2"), ("WORK_QUEUE_ENTRIES", "3")];
    let mut client = Station::new(dir.config_with(&settings), 64, 1);
    let (_, ticket) = client.connect("service");
    let node = &mut client.node;
    let terminus = node.primary();
    let first = node.send_buffer(terminus, 64).unwrap();
    node.send_buffer(terminus, 64).unwrap();
    let error = node.send_buffer(terminus, 64).unwrap_err().to_string();
    assert!(error.contains("2 send buffer areas"), "{error}");
    node.remove_send_buffer(terminus, first).unwrap();
    node.send_buffer(terminus, 64).unwrap();
    let mut sent = 0;
    while node.try_send(&ticket, &[sent; 16], b"").is_ok() {
        sent += 1;
    }
    // A ring of 8 lines, of which one stays free, and the work queue.
    assert_eq!(sent, 7 + 3);
    assert!(matches!(node.try_send(&ticket, b"x", b""), Err(hamlyn::NodeSendError::Full)));
    for _ in 0..sent {
        until_node(&mut client.node, "what was queued leaves", |_| {
            server.node.try_recv(server.queue).unwrap().is_some()
        });
    }
    assert_eq!(server.bytes()[..16], [sent - 1; 16]);
    assert_eq!(server.node.try_recv(server.queue).unwrap(), None);
}
