//! Faults of hosts and of the network between them, beyond a cut cable: packets that are late and
//! overtake one another, a network that carries in one direction only, hosts that are lost with all
//! their processes and come back.

use crate::net::{Net, run};
use crate::support::{LIMIT, LONG, Peer, skipped, until_node};
use crate::{ADDRESS, BOUND, doubles, record};
use hamlyn::node::{CloseReason, ConnectError, Event, HostError};
use hamlyn::protocol::{CallError, Client, StreamSender};
use hamlyn::{LinkId, Node};
use std::io::ErrorKind;
use std::time::{Duration, Instant};

#[test]
fn packets_that_are_late_and_overtake_one_another_change_nothing() {
    let Some((net, relay)) = Net::relayed() else { return };
    let (mut peer, _dir, at) = net.peer("records", ADDRESS);
    let (_server, _dir, server) = net.peer("server", "10.77.0.2:7001");
    net.here(&[("HOST_TIMEOUT_MS", "30000")], |manager| {
        let mut sender = StreamSender::connect(manager, &format!("{at}/records"), LIMIT).unwrap();
        for i in 0..100 {
            sender.send(&record(i), LIMIT).unwrap();
        }
        sender.flush(LIMIT).unwrap();
        drop(sender);
        peer.expect("100 whole");
        let client = Client::connect(manager, &format!("{server}/double"), LIMIT).unwrap();
        doubles(&client, &[1, 5000, 100_000]);
    });
    assert!(relay.overtaken() > 0, "nothing was overtaken");
}

#[test]
fn one_of_two_cables_may_be_cut_and_mended_in_turn_and_nothing_is_lost() {
    cut_and_mended_in_turn(&[]);
}

/// With these settings at both ends, which have their links over two cables.
pub fn cut_and_mended_in_turn(settings: &[(&str, &str)]) {
    let Some(net) = Net::of_two_cables() else { return };
    let both = [settings, &[("RAILS", "2")]].concat();
    let listening = [&both[..], &[("LISTEN", "0.0.0.0:7000")]].concat();
    let (mut peer, _dir, _) = net.peer_with("records", &listening);
    let services = net.dir("services", &[]);
    let file = services.path.join("services").display().to_string();
    std::fs::write(&file, "records 10.77.0.2:7000 10.77.1.2:7000\n").unwrap();
    net.here(&[&both[..], &[("DIRECTORY", &file)]].concat(), |manager| {
        let mut sender = StreamSender::connect(manager, "hamlyn://records", LIMIT).unwrap();
        let mut sent = 0;
        let mut until = |what: &str| {
            let end = Instant::now() + LONG;
            loop {
                let path = sender.connection().explain(manager);
                if path.contains(what) {
                    break;
                }
                assert!(Instant::now() < end, "it never has {what}: {path}");
                sender.send(&record(sent), LIMIT).unwrap();
                sent += 1;
                // Not so much that the receiver is behind by more than the time that is tested.
                sender.flush(LIMIT).unwrap();
                std::thread::sleep(Duration::from_millis(5));
            }
        };
        until(" 2 of 2 rails");
        until(if settings.is_empty() { "TCP with TLS 1.3 (" } else { ", trusted, " });
        net.cut_second();
        until(" 1 of 2 rails");
        net.mend_second();
        until(" 2 of 2 rails");
        // That on which they met.
        net.cut();
        until(" 1 of 2 rails");
        until("rail 0 was left");
        sender.flush(LIMIT).unwrap();
        drop(sender);
        peer.expect(&format!("{sent} whole"));
    });
}

/// The ended links that a node reports, until there are `count`; and further ones by then.
fn ends(node: &mut Node, count: usize) -> Vec<(LinkId, CloseReason)> {
    let mut found = Vec::new();
    until_node(node, "the ends are told", |node| {
        while let Some(event) = node.next_event() {
            match event {
                Event::Closed { link, reason, .. } => found.push((link, reason)),
                other => panic!("{other:?}"),
            }
        }
        found.len() >= count
    });
    found
}

#[test]
fn a_network_that_carries_in_one_direction_only_is_a_cut_to_both_ends() {
    for is_there in [true, false] {
        let Some(net) = Net::new() else { return };
        let (mut peer, _dir, at) = net.peer("told", ADDRESS);
        let mut go = || {
            let mut node = Node::with_config(net.dir("idle", &[]).config()).unwrap();
            let link = node.connect(&format!("{at}/x"), &[], LIMIT).unwrap();
            peer.expect("connected");
            let deaf = if is_there { &net.there } else { &net.here };
            if let Err(why) = Net::deafen(deaf) {
                return skipped(&format!("no packets can be dropped by nft: {why}"));
            }
            // The deaf end sends, and gets no acknowledgement; the other asks in vain.
            assert_eq!(ends(&mut node, 1), [(link, CloseReason::Died)]);
            peer.expect("Died");
        };
        net.here(&[], |_| go());
    }
}

#[test]
fn a_host_that_is_lost_with_all_its_processes_is_told_of_once_to_each_that_waits() {
    let Some(net) = Net::new() else { return };
    let started = |address: &str| net.peer("server", address);
    let (one, _dir, at) = started(ADDRESS);
    let (other, _dir, other_at) = started("10.77.0.2:7001");
    net.here(&[], |manager| {
        let connect = |at: &str| Client::connect(manager, &format!("{at}/double"), LIMIT).unwrap();
        let clients = [connect(&at), connect(&at), connect(&other_at)];
        clients.iter().for_each(|client| doubles(client, &[100]));
        // Nothing of it says a last word.
        one.stop();
        other.stop();
        std::thread::scope(|scope| {
            let waits = clients
                .each_ref()
                .map(|client| scope.spawn(move || client.call(b"ab", BOUND).unwrap_err()));
            net.cut();
            one.kill();
            other.kill();
            for waits in waits {
                let error = waits.join().unwrap();
                assert!(matches!(error, CallError::Ended(CloseReason::Died)), "{error}");
            }
        });
        // It is as dead to a later client, at once.
        for client in &clients {
            let error = client.call(b"ab", LIMIT).unwrap_err();
            assert!(matches!(error, CallError::Ended(CloseReason::Died)), "{error}");
        }
    });
}

#[test]
fn a_host_that_comes_back_is_another_one_and_the_links_to_the_old_one_have_ended() {
    let Some(net) = Net::new() else { return };
    let told = || net.peer("told", ADDRESS);
    let connected = |node: &mut Node, peer: &mut Peer, at: &str| {
        let link = node.connect(&format!("{at}/x"), &[], LIMIT).unwrap();
        peer.expect("connected");
        (link, node.peer(link).unwrap().node)
    };
    let (mut peer, _dir, at) = told();
    net.here(&[], |_| {
        let mut node = Node::with_config(net.dir("stays", &[]).config()).unwrap();
        let old = [(); 2].map(|()| connected(&mut node, &mut peer, &at));
        assert_eq!(old[0].1, old[1].1);
        // As if its power had failed: no word of it arrives.
        net.cut();
        peer.kill();
        let (mut peer, _dir, again) = told();
        assert_eq!(again, at, "under the same name");
        net.mend();
        let new = connected(&mut node, &mut peer, &at);
        assert_ne!(new.1, old[0].1, "the same host to look at");
        let found = ends(&mut node, 2);
        assert_eq!(found.len(), 2);
        for old in old {
            assert!(found.contains(&(old.0, CloseReason::Died)), "{found:?}");
        }
        // The new one is there, and goes when it is let go.
        assert_eq!(node.links().filter(|link| *link == new.0).count(), 1);
        node.disconnect(new.0).unwrap();
        until_node(&mut node, "it has been told", |_| peer.has_said().is_some());
        assert!(node.next_event().is_none_or(|event| matches!(event, Event::Closed { .. })));
    });
}

/// Why a node is not connected to a host at this address within this time.
#[track_caller]
fn refused(node: &mut Node, at: &str, limit: Option<Duration>) -> ConnectError {
    node.connect(&format!("{at}/double"), &[], limit).unwrap_err()
}

/// The system's error for an address that it did not reach.
#[track_caller]
fn unreachable(error: ConnectError) -> ErrorKind {
    match error {
        ConnectError::Host { error: HostError::Unreachable { error, .. }, .. } => error.kind(),
        error => panic!("{error}"),
    }
}

#[test]
fn whoever_connects_where_nothing_arrives_is_told_so_within_the_time_that_there_is() {
    let Some(net) = Net::new() else { return };
    let (_peer, _dir, at) = net.peer("server", ADDRESS);
    net.here(&[], |manager| {
        let mut node = Node::with_config(net.dir("nobody", &[]).config()).unwrap();
        // Nothing leads there.
        let error = refused(&mut node, "hamlyn://10.99.0.1:7000", LIMIT);
        assert_eq!(unreachable(error), ErrorKind::NetworkUnreachable);
        // No host of this network has the address, which the kernel says over the loopback device.
        run(&format!("ip -n {} link set lo up", net.here)).unwrap();
        let error = refused(&mut node, "hamlyn://10.77.0.9:7000", LIMIT);
        assert_eq!(unreachable(error), ErrorKind::HostUnreachable);
        // Nothing comes back: neither from a listener, nor an error.
        net.swallow();
        let begun = Instant::now();
        match refused(&mut node, &at, Some(Duration::from_millis(1500))) {
            ConnectError::TimedOut(doing) => assert_eq!(doing, "connecting to the other host"),
            // The system has looked at its clock before.
            error => assert_eq!(unreachable(error), ErrorKind::TimedOut),
        }
        // The system itself would try for two minutes.
        assert!(begun.elapsed() < LONG);
        net.let_pass();
        let client = Client::connect(manager, &format!("{at}/double"), LIMIT).unwrap();
        doubles(&client, &[100]);
    });
}

#[test]
fn role() {
    crate::role();
}
