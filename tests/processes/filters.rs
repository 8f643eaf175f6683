//! A process that may no longer make some system call, because of a filter that it installed after
//! its links were made. Without `membarrier` it must not rely on being woken, for its peers make no
//! fence; without `futex_waitv` it waits for bytes. If it needs the call, errors and events report
//! that, and no call waits for an event that cannot come.

use crate::support::*;
use hamlyn::node::CloseReason;
use hamlyn::protocol::Manager;
use hamlyn::wire::Flags;
use hamlyn::{Accept, Access, MetadataIndex, Node, Ticket};
use std::time::{Duration, Instant};

/// Asleep at once whenever it waits.
const SLEEPY: &[(&str, &str)] = &[("WAIT_MODE", "blocking")];

fn round_trips() -> u64 {
    std::env::var("HAMLYN_TEST_ROUNDS").map_or(30_000, |n| n.parse().unwrap())
}

/// Not a test: connects, and then installs the filter.
#[test]
fn role() {
    let Some(role) = Role::of_this_process() else { return };
    match role.name.as_str() {
        "without_limits" => {
            refuse(libc::SYS_prlimit64);
            let error = Node::with_config(role.config()).err().expect("no node").to_string();
            assert!(error.contains("the limit on descriptors"), "{error}");
            return;
        }
        "without_epoll" => return without_epoll(&role),
        "never_barrier" => return never_barrier(&role),
        _ => {}
    }
    let mut station = Station::new(role.config(), 64, 1);
    let (link, ticket) = station.connect("service");
    if role.name == "without_waitv" {
        refuse(libc::SYS_futex_waitv);
    } else {
        refuse(libc::SYS_membarrier);
        assert!(!hamlyn::os::sys::barrier());
    }
    let reply = station.ticket.to_bytes();
    match role.name.as_str() {
        "round_trips" | "without_waitv" => {
            for round in 0..role.number(0) {
                station.node.send(&ticket, &round.to_le_bytes(), &reply, LIMIT).unwrap();
                station.recv();
                assert_eq!(station.bytes()[..8], round.to_le_bytes());
            }
        }
        "sleeper" | "watcher" => {
            for round in 0..role.number(0) {
                station.node.send(&ticket, &round.to_le_bytes(), &reply, LIMIT).unwrap();
                if role.name == "sleeper" {
                    station.recv();
                } else {
                    watch(&mut station);
                }
                assert_eq!(station.bytes()[..8], round.to_le_bytes());
            }
        }
        other => panic!("{other}"),
    }
    if role.name == "without_waitv" {
        return;
    }
    let why = station.node.explain(link).unwrap();
    assert!(why.contains("membarrier"), "{why}");
    assert!(counter(&station.node, "naps") > 0, "{}", state(&station.node));
    station.node.close(LIMIT).unwrap();
}

/// The housekeeping threads of a node and of a manager end. Those who connect hear of it within their
/// time limits, then and later, and links end.
fn without_epoll(role: &Role) {
    let mut station = Station::new(role.config(), 64, 1);
    let (link, _) = station.connect("service");
    let manager = Manager::with_config(role.config()).unwrap();
    manager.connect("service", b"", LIMIT).unwrap();
    #[cfg(target_arch = "x86_64")]
    refuse(libc::SYS_epoll_wait);
    refuse(libc::SYS_epoll_pwait);
    let within = |limit: Duration, what: &str, call: &mut dyn FnMut() -> String| {
        let begun = Instant::now();
        let error = call();
        assert!(begun.elapsed() < limit + Duration::from_secs(5), "{what}: {error}");
        error
    };
    let limit = Duration::from_secs(1);
    for _ in 0..3 {
        within(limit, "a node", &mut || {
            station.node.connect("service", b"", Some(limit)).unwrap_err().to_string()
        });
        within(limit, "a manager", &mut || {
            manager.connect("service", b"", Some(limit)).unwrap_err().to_string()
        });
    }
    let error = station.node.connect("service", b"", Some(limit)).unwrap_err().to_string();
    assert!(error.contains("its housekeeping has ended"), "{error}");
    let error = station.node.serve("another", Access::SameUser, Accept::Ask).unwrap_err();
    assert!(error.to_string().contains("its housekeeping has ended"), "{error}");
    assert_eq!(closed(&mut station.node, link), CloseReason::Unwatched);
    assert_eq!(counter(&station.node, "control.closed_unwatched"), 1);
}

/// The kernel refuses membarrier from the beginning: both ends agree on fences when connecting, and
/// no process needs naps.
fn never_barrier(role: &Role) {
    refuse(libc::SYS_membarrier);
    let mut station = Station::new(role.config(), 64, 1);
    assert!(station.node.notes().iter().any(|note| note.contains("membarrier is not available")));
    let (link, ticket) = station.connect("service");
    let reply = station.ticket.to_bytes();
    for round in 0..role.number(0) {
        station.node.send(&ticket, &round.to_le_bytes(), &reply, LIMIT).unwrap();
        station.recv();
        assert_eq!(station.bytes()[..8], round.to_le_bytes());
    }
    let why = station.node.explain(link).unwrap();
    assert!(why.contains("fence"), "{why}");
    assert_eq!(counter(&station.node, "naps"), 0, "{}", state(&station.node));
    assert!(counter(&station.node, "sleeps") > 0, "{}", state(&station.node));
    station.node.close(LIMIT).unwrap();
}

/// Waits in an event loop until a message has come.
fn watch(station: &mut Station) {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    while station.node.try_recv(station.queue).unwrap().is_none() {
        if station.node.prepare_to_wait().unwrap() {
            let fd = station.node.as_fd();
            let limit = Timespec { tv_sec: LONG.as_secs() as i64, tv_nsec: 0 };
            let ready = poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&limit)).unwrap();
            assert!(ready > 0, "slept too long\n{}", state(&station.node));
        }
    }
}

/// Answers `rounds` messages of a peer that runs `role`.
fn answer(name: &str, role: &str, rounds: u64, wakes: bool) {
    alone(name, || {
        let dir = Dir::new(name, SLEEPY);
        let mut station = Station::new(dir.config(), 64, 1).serve("service");
        let peer = Peer::start(role, &dir, &rounds.to_string());
        for round in 0..rounds {
            station.recv();
            assert_eq!(station.bytes()[..8], round.to_le_bytes());
            let entry = station.node.metadata(station.slot, MetadataIndex(0)).unwrap();
            let mut reply = Ticket::from_bytes(entry.user()).unwrap();
            if !wakes {
                reply.flags.remove(Flags::WAKE);
                peer.fall_asleep();
            }
            station.node.send(&reply, &round.to_le_bytes(), b"", LIMIT).unwrap();
        }
        peer.end();
    });
}

/// A process that runs `role` beside a service, and ends in peace.
fn beside_a_service(name: &str, role: &str) {
    alone(name, || {
        let dir = Dir::new(name, &[]);
        let mut node = Node::with_config(dir.config()).unwrap();
        node.serve("service", Access::SameUser, Accept::Automatic(vec![0; 44])).unwrap();
        Peer::start(role, &dir, "").end();
    });
}

#[test]
fn a_process_that_is_not_told_its_limits_has_no_node_and_is_told_why() {
    let name = "a_process_that_is_not_told_its_limits_has_no_node_and_is_told_why";
    beside_a_service(name, "without_limits");
}

#[test]
fn where_the_housekeeping_ends_nobody_waits_for_it() {
    beside_a_service("where_the_housekeeping_ends_nobody_waits_for_it", "without_epoll");
}

#[test]
fn no_message_is_lost_to_a_process_whose_barrier_is_refused() {
    let name = "no_message_is_lost_to_a_process_whose_barrier_is_refused";
    answer(name, "round_trips", round_trips(), true);
}

#[test]
fn where_the_barrier_never_was_both_ends_fence_and_no_message_is_lost() {
    let name = "where_the_barrier_never_was_both_ends_fence_and_no_message_is_lost";
    answer(name, "never_barrier", 3000, true);
}

#[test]
fn a_process_that_may_no_longer_wait_for_words_waits_for_bytes() {
    let name = "a_process_that_may_no_longer_wait_for_words_waits_for_bytes";
    answer(name, "without_waitv", 100, true);
}

// A message without `WAKE` stands for one whose sender looked at the sleep word too early.
#[test]
fn a_message_that_woke_nobody_is_found_at_the_end_of_a_nap() {
    answer("a_message_that_woke_nobody_is_found_at_the_end_of_a_nap", "sleeper", 10, false);
}

#[test]
fn also_in_somebody_elses_event_loop() {
    answer("also_in_somebody_elses_event_loop", "watcher", 10, false);
}
