//! Two hosts with a cable between them: two network namespaces joined by veth. The cable is cut and
//! mended, packets are lost, and the other host is stopped and killed. Without the right to make
//! namespaces (root's), or without iproute2, all tests are skipped, loudly.
#![cfg(not(miri))]

#[path = "../support/mod.rs"]
mod support;

#[cfg(feature = "libfabric")]
mod fabric;
mod faults;
mod many;
mod net;
mod strangers;

use hamlyn::node::{CloseReason, Event};
use hamlyn::protocol::{
    CallError, Client, Manager, Server, ServerConfig, StreamConfig, StreamReceiver, StreamSender,
};
use hamlyn::{Accept, Access, Node};
use net::Net;
use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;
use support::{Dir, LIMIT, Peer, Role, loud, say, skipped};

/// Longer than that.
const LONGER: Duration = Duration::from_millis(5000);
/// The time within which a lost host is reported. The kernel would take a quarter of an hour.
const BOUND: Option<Duration> = Some(Duration::from_secs(15));

const ADDRESS: &str = "10.77.0.2:7000";
/// One packet in ten, for `nft`.
const LOSS: &str = "numgen random mod 10 == 0";

fn doubles(client: &Client, lengths: &[usize]) {
    for length in lengths {
        let request: Vec<u8> = (0..*length).map(|i| (i % 251) as u8).collect();
        assert_eq!(*client.call(&request, LIMIT).unwrap(), *request.repeat(2));
    }
}

#[test]
fn calls_are_answered_by_either_version_of_the_protocol() {
    let Some(net) = Net::new() else { return };
    for address in [ADDRESS, "[fd77::2]:7000"] {
        let (_peer, _dir, at) = net.peer("server", address);
        assert_eq!(at, format!("hamlyn://{address}"));
        net.here(&[], |manager| {
            let client = Client::connect(manager, &format!("{at}/double"), LIMIT).unwrap();
            doubles(&client, &[0, 1, 5000, 1_000_000]);
        });
    }
}

#[test]
fn a_service_of_another_network_namespace_is_spoken_with_over_tls_though_its_local_name_is_there() {
    let Some(net) = Net::new() else { return };
    let common = net.dir("common", &[("LOCAL", "ring")]);
    let start = |dir: &Dir, host: &str, at: &str| {
        let mut command = Peer::command("server", dir, "", &["ip", "netns", "exec", host]);
        command.env("HAMLYN_LISTEN", at);
        let mut peer = Peer::run("server", command);
        peer.expect(at);
        peer
    };
    let _there = start(&common, &net.there, ADDRESS);
    // A host speaks with its own addresses over its loopback.
    let up = ["-n", &net.here, "link", "set", "lo", "up"];
    assert!(Command::new("ip").args(up).status().unwrap().success());
    // Another, here, at whose address the local name is asked for: it is the first one's.
    let (own, at) = (net.dir("own", &[]), "10.77.0.1:7000");
    let _here = start(&own, &net.here, at);
    net.here(&[], |_| {
        let manager = Manager::with_config(common.config()).unwrap();
        for (at, why) in [(ADDRESS, None), (at, Some("somebody else"))] {
            let client =
                Client::connect(&manager, &format!("hamlyn://{at}/double"), LIMIT).unwrap();
            let path = client.explain();
            assert!(path.contains("TCP with TLS 1.3"), "{path}");
            assert!(why.is_none_or(|why| path.contains(why)), "{path}");
            assert_eq!(why.is_some(), path.contains("not a ring"), "{path}");
            doubles(&client, &[100]);
        }
    });
}

// As on a load balancer.
#[test]
fn hosts_that_may_bind_to_any_address_take_no_other_for_themselves() {
    let Some(net) = Net::new() else { return };
    for host in [&net.here, &net.there] {
        let set = "echo 1 > /proc/sys/net/ipv4/ip_nonlocal_bind";
        let set = ["netns", "exec", host, "sh", "-c", set];
        if !Command::new("ip").args(set).status().unwrap().success() {
            return skipped("the settings of a network namespace cannot be written here");
        }
    }
    let ring = ("LOCAL", "ring");
    let (_peer, _dir, at) = net.peer_with("server", &[("LISTEN", ADDRESS), ring]);
    net.here(&[ring], |manager| {
        let client = Client::connect(manager, &format!("{at}/double"), LIMIT).unwrap();
        let path = client.explain();
        assert!(path.contains("TCP with TLS 1.3") && !path.contains("not a ring"), "{path}");
    });
}

#[test]
fn a_cable_that_is_cut_for_long_is_told_to_whoever_waits_at_either_end() {
    let Some(net) = Net::new() else { return };
    let (mut peer, _dir, at) = net.peer("told", ADDRESS);
    let (_server, _dir, _) = net.peer("server", "10.77.0.2:7001");
    net.here(&[], |manager| {
        let node = Node::with_config(net.dir("idle", &[]).config());
        let mut idle = node.unwrap();
        idle.connect(&format!("{at}/x"), &[], LIMIT).unwrap();
        peer.expect("connected");
        let client = Client::connect(manager, "hamlyn://10.77.0.2:7001/double", LIMIT).unwrap();
        doubles(&client, &[100]);
        net.cut();
        // One has something on its way, and one nothing.
        let error = client.call(b"?", BOUND).unwrap_err();
        assert!(matches!(error, CallError::Ended(CloseReason::Died)), "{error}");
        let reason = loop {
            match idle.next_event() {
                Some(Event::Closed { reason, .. }) => break reason,
                Some(_) => {}
                None => assert!(idle.wait(BOUND).unwrap(), "nothing is told"),
            }
        };
        assert!(matches!(reason, CloseReason::Died), "{reason:?}");
        peer.expect("Died");
    });
}

#[test]
fn a_cable_that_is_mended_in_time_has_lost_nothing() {
    let Some(net) = Net::new() else { return };
    let (mut peer, _dir, at) = net.peer("records", ADDRESS);
    net.here(&[("HOST_TIMEOUT_MS", "30000")], |manager| {
        let mut sender = StreamSender::connect(manager, &format!("{at}/records"), LIMIT).unwrap();
        let records = 400u32;
        for i in 0..records {
            if i % 100 == 50 {
                net.cut();
                let net = &net;
                std::thread::scope(|scope| {
                    scope.spawn(move || {
                        std::thread::sleep(Duration::from_millis(300));
                        net.mend();
                    });
                    sender.send(&record(i), LIMIT).unwrap();
                });
            }
            sender.send(&record(i), LIMIT).unwrap();
        }
        sender.flush(LIMIT).unwrap();
        drop(sender);
        peer.expect(&format!("{} whole", records + 4));
    });
}

#[test]
fn packets_that_are_lost_are_sent_again() {
    let Some(net) = Net::new() else { return };
    if let Err(why) = Net::drop_at(&net.there, LOSS) {
        return skipped(&format!("no random loss by nft: {why}"));
    }
    let (mut peer, _dir, at) = net.peer("records", ADDRESS);
    net.here(&[("HOST_TIMEOUT_MS", "30000")], |manager| {
        let mut sender = StreamSender::connect(manager, &format!("{at}/records"), LIMIT).unwrap();
        for i in 0..100 {
            sender.send(&record(i), LIMIT).unwrap();
        }
        sender.flush(LIMIT).unwrap();
        drop(sender);
        peer.expect("100 whole");
    });
}

#[test]
fn a_process_that_is_killed_is_told_of_at_once() {
    let Some(net) = Net::new() else { return };
    let (peer, _dir, at) = net.peer("server", ADDRESS);
    // So long that nothing but the kernel's word there can be what tells.
    net.here(&[("HOST_TIMEOUT_MS", "3600000")], |manager| {
        let client = Client::connect(manager, &format!("{at}/double"), LIMIT).unwrap();
        doubles(&client, &[100]);
        peer.stop();
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| client.call(b"ab", LIMIT).unwrap_err());
            std::thread::sleep(Duration::from_millis(50));
            peer.kill();
            let error = waits.join().unwrap();
            assert!(matches!(error, CallError::Ended(CloseReason::Died)), "{error}");
        });
    });
}

/// The content of number `i`.
fn record(i: u32) -> Vec<u8> {
    vec![i as u8; 20_000]
}

/// Sends until a process that has stopped takes no more, and then goes on.
fn fill(manager: &Manager, at: &str, peer: &Peer) -> (StreamSender, u32) {
    let mut sender = StreamSender::connect(manager, &format!("{at}/records"), LIMIT).unwrap();
    sender.send(&record(0), LIMIT).unwrap();
    sender.flush(LIMIT).unwrap();
    peer.stop();
    let mut sent = 1;
    while sender.send(&record(sent), Some(Duration::from_millis(500))).is_ok() {
        sent += 1;
    }
    (sender, sent)
}

#[test]
fn a_process_that_is_stopped_for_long_is_not_dead_and_has_lost_nothing() {
    let Some(net) = Net::new() else { return };
    let (mut peer, _dir, at) = net.peer("records", ADDRESS);
    net.here(&[], |manager| {
        let (mut sender, sent) = fill(manager, &at, &peer);
        // Its system answers that there is no room.
        std::thread::sleep(LONGER);
        peer.signal(libc::SIGCONT);
        sender.send(&record(sent), LIMIT).unwrap();
        sender.flush(LIMIT).unwrap();
        drop(sender);
        peer.expect(&format!("{} whole", sent + 1));
    });
}

#[test]
fn a_cable_that_is_cut_while_there_is_no_room_is_told_of() {
    let Some(net) = Net::new() else { return };
    let (peer, _dir, at) = net.peer("records", ADDRESS);
    net.here(&[], |manager| {
        let (mut sender, sent) = fill(manager, &at, &peer);
        std::thread::sleep(LONGER);
        net.cut();
        let error = sender.send(&record(sent), BOUND).unwrap_err().to_string();
        assert!(error.contains("died"), "{error}");
    });
}

/// Whether all of a stream came whole. With `late` it takes nothing before an order to.
fn receive_records(role: &Role, late: bool) {
    let manager = Manager::with_config(role.config()).unwrap();
    let mut receiver = StreamReceiver::new(&manager, StreamConfig::default()).unwrap();
    receiver.serve("records", Access::SameUser).unwrap();
    say(&manager.listens_at().unwrap().to_string());
    let (mut count, mut last) = (0u32, None);
    if late {
        // The link is there once a record is.
        drop(receiver.receive(LIMIT).unwrap());
        count += 1;
        say("one");
        role.wait_for("go");
    }
    let end = loop {
        match receiver.receive(LIMIT) {
            Ok(found) => {
                let bytes = found.to_vec();
                let number = bytes[0];
                assert!(bytes.len() == 20_000 && bytes.iter().all(|byte| *byte == number));
                // One behind the other; one is sent twice where the cable was cut.
                assert!(
                    last.is_none_or(|last: u8| number == last || number == last.wrapping_add(1))
                );
                last = Some(number);
                count += 1;
                drop(found);
            }
            Err(error) => break error,
        }
    };
    loud(&format!("{count} records, then: {end}"));
    say(&format!("{count} whole"));
}

/// Waits until its client has gone.
fn be_told(role: &Role) {
    let mut node = Node::with_config(role.config()).unwrap();
    node.serve("x", Access::SameUser, Accept::Automatic(Vec::new())).unwrap();
    say(&node.listens_at().unwrap().to_string());
    loop {
        match node.next_event() {
            Some(Event::Connected { .. }) => say("connected"),
            Some(Event::Closed { reason, .. }) => return say(&format!("{reason:?}")),
            Some(_) => {}
            None => assert!(node.wait(LIMIT).unwrap(), "nothing is told"),
        }
    }
}

fn double(role: &Role) {
    let manager = Manager::with_config(role.config()).unwrap();
    let server = Server::new(&manager, ServerConfig::default()).unwrap();
    server.serve("double", Access::SameUser).unwrap();
    let at: SocketAddr = manager.listens_at().unwrap();
    say(&at.to_string());
    while let Ok(request) = server.receive(LIMIT) {
        let twice = request.repeat(2);
        let _ = request.reply(&twice, LIMIT);
    }
}

#[test]
fn role() {
    let Some(role) = Role::of_this_process() else { return };
    match role.name.as_str() {
        "server" => double(&role),
        "records" => receive_records(&role, false),
        "late" => receive_records(&role, true),
        "told" => be_told(&role),
        name => loud(&format!("no role is called {name}")),
    }
}
