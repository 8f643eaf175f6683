//! No wake-up is lost: receivers that sleep with several senders, senders that sleep on full rings,
//! in every way to sleep. A process that waits too long reports its state and fails.

use crate::support::*;
use hamlyn::node::NodeReceiveError;
use hamlyn::protocol::Manager;
use hamlyn::{MetadataIndex, Node, Ticket};
use std::time::Duration;

const SENDERS: usize = 3;
/// Smallest rings: the sender sleeps after a few packets.
const SLEEPY: &[(&str, &str)] =
    &[("RING_BYTES", "512"), ("BULK_RING_BYTES", "0"), ("WAIT_MODE", "blocking")];
const SLEEPY_BULK: &[(&str, &str)] = &[
    ("RING_BYTES", "512"),
    ("BULK_RING_BYTES", "4096"),
    ("BULK_AFTER_BYTES", "1000"),
    ("WAIT_MODE", "blocking"),
];
const ADAPTIVE: &[(&str, &str)] =
    &[("RING_BYTES", "1024"), ("SPIN_NS", "3000"), ("YIELD_COUNT", "1")];

fn rounds() -> u64 {
    std::env::var("HAMLYN_TEST_ROUNDS").map_or(1000, |n| n.parse().unwrap())
}

/// Not a test: a sender. Bursts without notification, one message that wakes the receiver, and then
/// sleep until the answer.
#[test]
fn role() {
    let Some(role) = Role::of_this_process() else { return };
    let (me, rounds) = (role.number(0), role.number(1));
    let mut random = Random::new(me);
    let mut station = Station::new(role.config(), 64, 1);
    let (_, ticket) = station.connect("service");
    let ticket = Ticket { metadata_index: MetadataIndex(me as u32), ..ticket };
    let ticket = ticket.at(me * 4096).unwrap();
    // An entry of their own: a message may overtake another.
    let quiet = Ticket { metadata_index: MetadataIndex((SENDERS as u64 + me) as u32), ..ticket };
    let quiet = quiet.at(1024).unwrap().silent();
    let fail = |node: &Node, what: String| -> ! {
        eprintln!("sender {me}: {what}\n{}", state(node));
        std::process::exit(1);
    };
    for round in 0..rounds {
        for _ in 0..random.below(12) {
            let length = random.below(500) as usize;
            if let Err(e) = station.node.send(&quiet, &vec![1; length], b"", LIMIT) {
                fail(&station.node, format!("burst of round {round}: {e}"));
            }
        }
        let mut data = round.to_le_bytes().to_vec();
        data.resize(8 + random.below(3) as usize * 300, 2);
        let reply = station.ticket.to_bytes();
        if let Err(e) = station.node.send(&ticket, &data, &reply, LIMIT) {
            fail(&station.node, format!("round {round}: {e}"));
        }
        if let Err(e) = station.node.recv(station.queue, LIMIT) {
            fail(&station.node, format!("no answer in round {round}: {e}"));
        }
        assert_eq!(station.bytes()[..8], round.to_le_bytes());
        // Sometimes it is the receiver that has to wait.
        for _ in 0..random.below(200) {
            std::hint::spin_loop();
        }
    }
    station.node.close(LIMIT).unwrap();
}

/// Takes and answers all messages; `next` is how it waits for one.
fn answer_all(
    name: &str,
    settings: &[(&str, &str)],
    mut next: impl FnMut(&mut Station) -> Result<hamlyn::Notification, NodeReceiveError>,
) {
    alone(name, || {
        let dir = Dir::new(name, settings);
        let mut station =
            Station::new(dir.config(), SENDERS * 4096, 2 * SENDERS as u32).serve("service");
        let rounds = rounds();
        let peers: Vec<Peer> =
            (0..SENDERS).map(|i| Peer::start("role", &dir, &format!("{i} {rounds}"))).collect();
        let mut expected = [0u64; SENDERS];
        while expected.iter().any(|n| *n < rounds) {
            let notification = match next(&mut station) {
                Ok(notification) => notification,
                Err(e) => {
                    // The senders are asked how they stand by what they wait for.
                    panic!("{e}, answered {expected:?}\n{}", state(&station.node))
                }
            };
            let from = notification.index.0 as usize;
            let number = &station.bytes()[from * 4096..][..8];
            assert_eq!(number, expected[from].to_le_bytes(), "from {from}");
            let number = number.to_vec();
            expected[from] += 1;
            let entry = station.node.metadata(station.slot, notification.index).unwrap();
            let reply = Ticket::from_bytes(entry.user()).unwrap();
            station.node.send(&reply, &number, b"", LIMIT).unwrap();
        }
        loud(&format!("{name}: slept {} times", counter(&station.node, "sleeps")));
        peers.into_iter().for_each(Peer::end);
    });
}

#[test]
fn a_receiver_asleep_at_once_is_woken_by_each_of_several_senders() {
    let name = "a_receiver_asleep_at_once_is_woken_by_each_of_several_senders";
    answer_all(name, SLEEPY, |station| station.node.recv(station.queue, LIMIT));
}

#[test]
fn also_with_bulk_rings() {
    answer_all("also_with_bulk_rings", SLEEPY_BULK, |s| s.node.recv(s.queue, LIMIT));
}

#[test]
fn an_adaptive_receiver_is_woken_by_each_of_several_senders() {
    let name = "an_adaptive_receiver_is_woken_by_each_of_several_senders";
    answer_all(name, ADAPTIVE, |station| station.node.recv(station.queue, LIMIT));
}

#[test]
fn a_receiver_that_waits_for_anything_is_woken() {
    answer_all("a_receiver_that_waits_for_anything_is_woken", SLEEPY, |station| {
        loop {
            if let Some(notification) = station.node.try_recv(station.queue)? {
                return Ok(notification);
            }
            // One that waits is a reason not to sleep.
            while station.node.next_event().is_some() {}
            if !station.node.wait(LIMIT)? {
                return Err(NodeReceiveError::TimedOut);
            }
        }
    });
}

#[test]
fn a_receiver_in_somebody_elses_event_loop_is_woken() {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    answer_all("a_receiver_in_somebody_elses_event_loop_is_woken", SLEEPY, |station| {
        loop {
            if let Some(notification) = station.node.try_recv(station.queue)? {
                return Ok(notification);
            }
            while station.node.next_event().is_some() {}
            if station.node.prepare_to_wait()? {
                let fd = station.node.as_fd();
                let limit = Timespec { tv_sec: LONG.as_secs() as i64, tv_nsec: 0 };
                if poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&limit)).unwrap() == 0 {
                    return Err(NodeReceiveError::TimedOut);
                }
            }
        }
    });
}

/// Two threads take messages of one node while a third drives it.
#[test]
fn threads_that_share_a_node_are_woken() {
    alone("threads_that_share_a_node_are_woken", || {
        let dir = Dir::new("threads", SLEEPY);
        let station =
            Station::new(dir.config(), SENDERS * 4096, 2 * SENDERS as u32).serve("service");
        let rounds = rounds();
        let (queue, slot, area) = (station.queue, station.slot, station.area);
        let peers: Vec<Peer> =
            (0..SENDERS).map(|i| Peer::start("role", &dir, &format!("{i} {rounds}"))).collect();
        let shared: Manager = Manager::from_node(station.node).unwrap();
        shared.start_progress().unwrap();
        let answered = std::sync::atomic::AtomicU64::new(0);
        let total = rounds * SENDERS as u64;
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    use std::sync::atomic::Ordering::SeqCst;
                    while answered.load(SeqCst) < total {
                        let short = Some(Duration::from_millis(200));
                        let notification = match shared.recv(queue, short) {
                            Ok(notification) => notification,
                            Err(NodeReceiveError::TimedOut) => continue,
                            Err(e) => panic!("{e}"),
                        };
                        let from = notification.index.0 as usize;
                        let (number, reply) = {
                            let node = shared.lock();
                            let number = node.area(area).unwrap()[from * 4096..][..8].to_vec();
                            let entry = node.metadata(slot, notification.index).unwrap();
                            (number, Ticket::from_bytes(entry.user()).unwrap())
                        };
                        shared.send(&reply, &number, b"", LIMIT).unwrap();
                        answered.fetch_add(1, SeqCst);
                    }
                });
            }
        });
        peers.into_iter().for_each(Peer::end);
        shared.stop_progress();
    });
}

/// Only the sleeping thread can accept.
#[test]
fn a_node_that_does_its_own_housekeeping_does_it_while_it_sleeps() {
    alone("a_node_that_does_its_own_housekeeping_does_it_while_it_sleeps", || {
        let settings = [("WAIT_MODE", "blocking"), ("HOUSEKEEPING", "application")];
        let dir = Dir::new("housekeeping", &settings);
        let mut server = Station::new(dir.config(), 64, 1).serve("service");
        std::thread::scope(|scope| {
            scope.spawn(|| server.recv());
            let config = dir.config_with(&[("HOUSEKEEPING", "thread")]);
            let mut client = Station::new(config, 64, 1);
            let (_, ticket) = client.connect("service");
            client.node.send(&ticket, &[1], b"", LIMIT).unwrap();
        });
        assert_eq!(server.bytes()[0], 1);
    });
}
