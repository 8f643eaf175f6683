//! The progress thread and its watchdog (Hamlyn 2.8): what drives the interface for an application
//! that no longer lives discards what arrives, counts it, and accepts again when it does.

use crate::support::*;
use hamlyn::{Flags, SharedNode};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Not a test: sends as many messages as it is told, one line to a message.
#[test]
fn role() {
    let Some(role) = Role::of_this_process() else { return };
    let mut station = Station::new(role.config(), 64, 1);
    let (_, ticket) = station.connect("service");
    // The progress thread is to be woken, and nobody is to be told.
    let ticket = ticket.with_flags(Flags::WAKE);
    let mut number = 0u64;
    say("connected");
    while role.hear().is_some() {
        number += 1;
        station.node.send(&ticket, &number.to_le_bytes(), b"", LIMIT).unwrap();
        say(&number.to_string());
    }
    station.node.close(LIMIT).unwrap();
}

fn value(shared: &SharedNode, name: &str) -> u64 {
    counter(&shared.lock(), name)
}

#[test]
fn an_application_that_stops_calling_has_its_packets_discarded_until_it_calls_again() {
    let dir = Dir::new("watchdog", &[("WATCHDOG_MS", "1000"), ("WAIT_MODE", "blocking")]);
    let station = Station::new(dir.config(), 64, 1).serve("service");
    let area = station.area;
    let shared = station.node.share().unwrap();
    let lives = AtomicBool::new(true);
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // The application. It takes the lock only to say that it lives.
        scope.spawn(|| {
            while !ended.load(Ordering::Acquire) {
                if lives.load(Ordering::Acquire) {
                    shared.lock().reset_watchdog();
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        let end = Ending(&ended);
        shared.start_progress().unwrap();
        let mut peer = Peer::start("role", &dir, "");
        peer.expect("connected");
        let mut sent = 0;
        let mut send = |peer: &mut Peer| -> u64 {
            peer.tell("send");
            sent = peer.says().parse().unwrap();
            until("the message was taken", || {
                value(&shared, "packets_received") + value(&shared, "packets_discarded") == sent
            });
            sent
        };
        let first =
            || u64::from_le_bytes(shared.lock().area(area).unwrap()[..8].try_into().unwrap());
        for _ in 0..10 {
            let number = send(&mut peer);
            assert_eq!((first(), value(&shared, "packets_discarded")), (number, 0));
        }
        lives.store(false, Ordering::Release);
        until("the watchdog runs out", || {
            send(&mut peer);
            value(&shared, "packets_discarded") > 0
        });
        let last = first();
        for _ in 0..10 {
            let number = send(&mut peer);
            assert!(number > last);
        }
        assert_eq!(first(), last, "a discarded packet was deposited");
        let discarded = value(&shared, "packets_discarded");
        shared.lock().reset_watchdog();
        lives.store(true, Ordering::Release);
        for _ in 0..10 {
            let number = send(&mut peer);
            assert_eq!((first(), value(&shared, "packets_discarded")), (number, discarded));
        }
        peer.end();
        drop(end);
    });
    shared.stop_progress();
    assert!(shared.into_inner().is_ok());
}

/// Ends the application also when the test fails.
struct Ending<'a>(&'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}
