//! Links over libfabric between two hosts: faults of the network, and faults of the fabric's
//! packets alone, while TLS goes on.

use crate::net::Net;
use crate::support::{Dir, LIMIT, Peer, skipped};
use crate::{ADDRESS, BOUND, LONGER, LOSS, doubles, fill, record};
use hamlyn::log::set_sink;
use hamlyn::node::{CloseReason, Event};
use hamlyn::os::fabric::Library;
use hamlyn::protocol::{CallError, Client, StreamSender};
use hamlyn::{Config, Node};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The provider's packets, and no others of TCP's: the services are at these ports.
const FABRIC_ALONE: &str = "iifname cable tcp dport != { 7000, 7001 } tcp sport != { 7000, 7001 }";

/// With a link over the fabric, by the first provider that does TCP. `None`, which is said: there is none.
fn settings() -> Option<[(&'static str, &'static str); 2]> {
    let library = Library::open(Config::from_env().unwrap().fabric_library.as_deref()).ok();
    let here = Some(std::net::Ipv4Addr::LOCALHOST.into());
    let provider = library.and_then(|library| {
        let is_there = |name: &&str| {
            let choice = library.choose(Some(name), here);
            choice.is_ok_and(|choice| choice.provider() == *name)
        };
        ["tcp", "net", "tcp;ofi_rxm"].into_iter().find(is_there)
    });
    if provider.is_none() {
        skipped("libfabric 1.17 or newer, with RDM over TCP (Debian: libfabric1)");
    }
    Some([("FABRIC", "trusted"), ("FABRIC_PROVIDER", provider?)])
}

/// Two hosts whose links go over the fabric, and the settings for that.
fn hosts() -> Option<(Net, [(&'static str, &'static str); 2])> {
    Some((Net::new()?, settings()?))
}

fn peer(net: &Net, role: &str, address: &str) -> Option<(Peer, Dir, String)> {
    Some(net.peer_with(role, &[&settings()?[..], &[("LISTEN", address)]].concat()))
}

fn client(manager: &hamlyn::protocol::Manager, at: &str) -> Client {
    let client = Client::connect(manager, &format!("{at}/double"), LIMIT).unwrap();
    doubles(&client, &[1, 100, 5000, 100_000]);
    let path = client.explain();
    assert!(path.contains("libfabric ") && !path.contains("not libfabric"), "{path}");
    client
}

#[test]
fn a_cable_that_is_cut_is_told_at_both_ends() {
    let Some((net, fabric)) = hosts() else { return };
    let Some((mut told, _dir, at)) = peer(&net, "told", ADDRESS) else { return };
    let Some((_server, _dir, server)) = peer(&net, "server", "10.77.0.2:7001") else { return };
    net.here(&fabric, |manager| {
        let mut idle = Node::with_config(net.dir("idle", &fabric).config()).unwrap();
        idle.connect(&format!("{at}/x"), &[], LIMIT).unwrap();
        told.expect("connected");
        let client = client(manager, &server);
        net.cut();
        let error = client.call(b"?", BOUND).unwrap_err();
        assert!(matches!(error, CallError::Ended(CloseReason::Died)), "{error}");
        assert_eq!(ended(&mut idle), CloseReason::Died);
        told.expect("Died");
    });
}

#[test]
fn one_of_two_cables_may_be_cut_and_mended_in_turn_and_nothing_is_lost() {
    let Some(fabric) = settings() else { return };
    crate::faults::cut_and_mended_in_turn(&fabric);
}

fn ended(node: &mut Node) -> CloseReason {
    loop {
        match node.next_event() {
            Some(Event::Closed { reason, .. }) => return reason,
            Some(_) => {}
            None => assert!(node.wait(BOUND).unwrap(), "nothing is told"),
        }
    }
}

#[test]
fn packets_of_the_fabric_alone_that_are_dropped_are_told_to_whoever_waits_and_an_idle_link_lives() {
    let Some((net, fabric)) = hosts() else { return };
    let Some((mut told, _dir, at)) = peer(&net, "told", ADDRESS) else { return };
    let Some((_server, _dir, server)) = peer(&net, "server", "10.77.0.2:7001") else { return };
    let log = Arc::<Mutex<Vec<String>>>::default();
    let to = log.clone();
    set_sink(Some(Arc::new(move |entry| to.lock().unwrap().push(entry.to_string()))));
    net.here(&fabric, |manager| {
        let mut idle = Node::with_config(net.dir("idle", &fabric).config()).unwrap();
        idle.connect(&format!("{at}/x"), &[], LIMIT).unwrap();
        told.expect("connected");
        let client = client(manager, &server);
        if let Err(why) = Net::drop_at(&net.there, FABRIC_ALONE) {
            return skipped(&format!("no packets can be dropped by nft: {why}"));
        }
        let error = client.call(b"?", BOUND).unwrap_err();
        assert!(matches!(error, CallError::Ended(CloseReason::Died)), "{error}");
        // Nothing was sent over this one, so neither end notices.
        idle.poll().unwrap();
        assert!(idle.next_event().is_none() && told.has_said().is_none());
        crate::support::until("it is told why", || {
            log.lock().unwrap().iter().any(|entry| entry.contains("over the fabric has arrived"))
        });
    });
    set_sink(None);
}

#[test]
fn packets_that_are_lost_are_sent_again_and_the_link_lives() {
    let Some((net, fabric)) = hosts() else { return };
    if let Err(why) = Net::drop_at(&net.there, LOSS) {
        return skipped(&format!("no random loss by nft: {why}"));
    }
    // A connection of the provider's, too, is made only once two packets have come.
    let patient = [&fabric[..], &[("HOST_TIMEOUT_MS", "30000")]].concat();
    let there = [&patient[..], &[("LISTEN", ADDRESS)]].concat();
    let (mut records, _dir, at) = net.peer_with("records", &there);
    net.here(&patient, |manager| {
        let mut sender = StreamSender::connect(manager, &format!("{at}/records"), LIMIT).unwrap();
        for i in 0..100 {
            sender.send(&record(i), LIMIT).unwrap();
        }
        sender.flush(LIMIT).unwrap();
        drop(sender);
        records.expect("100 whole");
    });
}

#[test]
fn a_process_that_is_stopped_for_long_is_not_dead_and_has_lost_nothing() {
    let Some((net, fabric)) = hosts() else { return };
    let Some((mut records, _dir, at)) = peer(&net, "records", ADDRESS) else { return };
    net.here(&fabric, |manager| {
        let (mut sender, sent) = fill(manager, &at, &records);
        std::thread::sleep(LONGER);
        records.signal(libc::SIGCONT);
        sender.send(&record(sent), LIMIT).unwrap();
        sender.flush(LIMIT).unwrap();
        drop(sender);
        records.expect(&format!("{} whole", sent + 1));
    });
}

#[test]
fn a_program_that_makes_no_calls_for_long_is_not_dead_and_has_lost_nothing() {
    let Some((net, fabric)) = hosts() else { return };
    let Some((mut records, _dir, at)) = peer(&net, "late", ADDRESS) else { return };
    net.here(&fabric, |manager| {
        let mut sender = StreamSender::connect(manager, &format!("{at}/records"), LIMIT).unwrap();
        sender.send(&record(0), LIMIT).unwrap();
        sender.flush(LIMIT).unwrap();
        records.expect("one");
        let mut sent = 1;
        while sender.send(&record(sent), Some(Duration::from_millis(500))).is_ok() {
            sent += 1;
        }
        // Its system has taken some of that, but not its program.
        std::thread::sleep(LONGER);
        records.tell("go");
        sender.send(&record(sent), LIMIT).unwrap();
        sender.flush(LIMIT).unwrap();
        drop(sender);
        records.expect(&format!("{} whole", sent + 1));
    });
}

#[test]
fn role() {
    crate::role();
}
