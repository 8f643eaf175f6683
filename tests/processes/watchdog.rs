//! The progress thread and its watchdog (Hamlyn 2.8): while the application does not respond, the
//! thread discards and counts arrivals, and it accepts them again afterwards.

use crate::support::*;
use hamlyn::Flags;
use hamlyn::protocol::Manager;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

const WATCHDOG: Duration = Duration::from_secs(1);

/// Not a test: sends as many messages as each line of its input says.
#[test]
fn role() {
    let Some(role) = Role::of_this_process() else { return };
    let mut station = Station::new(role.config(), 64, 1);
    let (_, ticket) = station.connect("service");
    // The progress thread is to be woken, without a notification for the application.
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

fn value(shared: &Manager, name: &str) -> u64 {
    counter(&shared.lock(), name)
}

#[test]
fn an_application_that_stops_calling_has_its_packets_discarded_until_it_calls_again() {
    let ms = WATCHDOG.as_millis().to_string();
    let dir = Dir::new("watchdog", &[("WATCHDOG_MS", &ms), ("WAIT_MODE", "blocking")]);
    let station = Station::new(dir.config(), 64, 1).serve("service");
    let area = station.area;
    let shared = Manager::from_node(station.node).unwrap();
    let application = Application::new();
    let (lives, ended) = (AtomicBool::new(true), AtomicBool::new(false));
    std::thread::scope(|scope| {
        // The application. It takes the lock only to say that it lives.
        scope.spawn(|| {
            while !ended.load(Ordering::Acquire) {
                if lives.load(Ordering::Acquire) {
                    application.calls(&shared);
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
        application.while_it_calls(&shared, || {
            let number = send(&mut peer);
            first() == number
        });
        let before = value(&shared, "packets_discarded");
        lives.store(false, Ordering::Release);
        until("the watchdog runs out", || {
            send(&mut peer);
            value(&shared, "packets_discarded") > before
        });
        let last = first();
        for _ in 0..10 {
            let number = send(&mut peer);
            assert!(number > last);
        }
        assert_eq!(first(), last, "a discarded packet was deposited");
        application.calls(&shared);
        lives.store(true, Ordering::Release);
        application.while_it_calls(&shared, || {
            let number = send(&mut peer);
            first() == number
        });
        peer.end();
        drop(end);
    });
    shared.stop_progress();
    assert!(shared.into_node().is_ok());
}

/// When it has called last, and after how long at most. It is for the machine to let it run: where
/// that took longer than the watchdog waits, what was discarded says nothing.
struct Application(Mutex<(Instant, Duration)>);

impl Application {
    fn new() -> Self {
        Self(Mutex::new((Instant::now(), Duration::ZERO)))
    }

    fn called(&self) -> MutexGuard<'_, (Instant, Duration)> {
        self.0.lock().unwrap()
    }

    fn calls(&self, shared: &Manager) {
        let mut called = self.called();
        let begins = Instant::now();
        shared.lock().reset_watchdog();
        *called = (begins, called.1.max(called.0.elapsed()));
    }

    /// Each of ten packets is deposited, and none discarded, while it calls often enough.
    fn while_it_calls(&self, shared: &Manager, mut deposited: impl FnMut() -> bool) {
        for _ in 0..100 {
            self.calls(shared);
            self.called().1 = Duration::ZERO;
            let discarded = value(shared, "packets_discarded");
            let mut each = (0..10).map(|_| deposited());
            if each.all(|deposited| deposited) && value(shared, "packets_discarded") == discarded {
                return;
            }
            let called = *self.called();
            let longest = called.1.max(called.0.elapsed());
            assert!(longest >= WATCHDOG, "discarded, though it called {longest:?} before");
        }
        panic!("the machine does not let the application run");
    }
}

/// Ends the application also when the test fails.
struct Ending<'a>(&'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}
