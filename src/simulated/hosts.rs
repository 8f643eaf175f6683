//! Whole nodes on several hosts: names `hamlyn://`, TLS by rustls, rails. The network
//! (`os::sim::net`) delays, splits, is cut and mended, while hosts stop, are killed and lose their
//! power.

use super::{
    CALLS, NameAndLimit, Ran, call_client, call_server, run_all, stream_receiver, stream_sender,
};
use crate::config::{Config, WaitMode};
use crate::control::{Accept, Access, ConnectError};
use crate::interface::{SlotConfig, SlotId};
use crate::link::sim::Rng;
use crate::node::{Event, Node, NodeSendError};
use crate::os::sim::{self, net};
use crate::os::sys::monotonic_ns;
use crate::os::thread;
use crate::protocol::Manager;
use crate::wire::Ticket;
use core::cell::{Cell, RefCell};
use core::time::Duration;
use std::boxed::Box;
use std::format;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::rc::Rc;
use std::string::String;
use std::vec::Vec;

/// Milliseconds without an answer after which a host is gone: the minimum.
const TIMEOUT_MS: u32 = 2000;
/// Time limit for finding a service, and for waiting for a message that a killed host might have
/// sent.
const PATIENCE: Option<Duration> = Some(Duration::from_secs(8));
const CLIENTS: u64 = 2;
const PORT: u16 = 7000;
/// The hosts: the receiver of the streams, the server, and then the clients.
const RECEIVER: usize = 0;
const SENDER: usize = 1;
const SERVER: usize = 2;

#[derive(Clone, Copy, PartialEq, Eq)]
enum HostTrouble {
    /// Hosts stop, and cables are cut, for less than the time after which a host is gone; with two
    /// rails one of them for longer.
    Passing,
    /// One is killed.
    Death,
    /// One loses its power, without any announcement.
    Loss,
}

fn write(path: &Path, text: &str) {
    let mut options = std::fs::OpenOptions::new();
    let file = options.write(true).create_new(true).mode(0o600).open(path);
    file.unwrap().write_all(text.as_bytes()).unwrap();
}

/// The configuration of one host: it shares only the network with the others.
fn config(dir: &Path, me: usize, rails: u32, rng: &mut Rng) -> Config {
    let modes = [WaitMode::Adaptive, WaitMode::Blocking];
    let own = dir.join(format!("{me}"));
    std::fs::create_dir(&own).unwrap();
    let mut config = Config::default()
        .dir(&own)
        .shared_dir(own.join("shared"))
        .secret(dir.join("secret"))
        .directory(dir.join("services"))
        .rails(rails)
        .rail_bytes(1u32 << 16)
        .host_timeout_ms(TIMEOUT_MS)
        .ring_bytes(4096u32)
        .spin_ns(1000u64)
        .wait_mode(modes[rng.below(2) as usize]);
    if me == RECEIVER || me == SERVER {
        config = config.listen(net::address_of(me, 0, PORT));
    }
    config
}

/// The shared secret, and the addresses of services.
fn shared(dir: &Path, services: &[(&str, usize)]) {
    write(&dir.join("secret"), &"5a".repeat(32));
    let line = |(service, host): &(&str, usize)| {
        let places = [0, 1].map(|net| format!(" {}", net::address_of(*host, net, PORT)));
        format!("{service}{}\n", places.concat())
    };
    write(&dir.join("services"), &services.iter().map(line).collect::<String>());
}

/// Stops hosts and cuts cables, for less than the time after which a host is gone; with two rails
/// one of them for longer: once the hosts that connect have connected both, since until then there
/// is no other rail.
fn disturb(rng: &mut Rng, hosts: u64, connect: &[usize], rails: u32, longest: Duration) {
    let have_rails = || connect.iter().all(|host| net::made_by(*host) >= rails as usize);
    for _ in 0..3 {
        thread::sleep(Duration::from_nanos(rng.below(5_000_000)));
        let host = rng.below(hosts) as usize;
        let short = Duration::from_nanos(rng.below(400_000_000));
        match rng.below(3) {
            0 => sim::stop(host, short),
            1 if rails == 2 && sim::wait(have_rails, monotonic_ns() + 5_000_000) => {
                let long = [short * 10, longest][rng.below(2) as usize];
                net::cut(host, Some(1), long);
            }
            _ => net::cut(host, None, short),
        }
    }
}

/// The results of a run that came to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
struct RunResults {
    ran: Ran,
    connections: u32,
    /// Pieces of data that had to wait until a cable was mended.
    held: u32,
    /// Ends that were reported as a death.
    told: usize,
}

/// A stream, and a server with its clients.
fn hosts(seed: u64, dir: &Path, trouble: HostTrouble) -> RunResults {
    let mut rng = Rng::new(seed);
    let count = 3 + CLIENTS as usize;
    let victim = (trouble != HostTrouble::Passing).then(|| rng.below(count as u64) as usize);
    let rails = 1 + rng.below(2) as u32;
    shared(dir, &[("stream", RECEIVER), ("calls", SERVER)]);
    let ended = Rc::new(Cell::new(0));
    let lost_ns = Rc::new(Cell::new(None));
    let told = Rc::new(Cell::new(0));
    let network = Rc::new(Cell::new((0, 0)));
    let host = |me| {
        let (mut rng, dir) = (Rng::new(rng.number()), dir.to_path_buf());
        let (ended, lost_ns, told) = (ended.clone(), lost_ns.clone(), told.clone());
        let network = network.clone();
        let run = move || {
            let manager = Manager::with_config(config(&dir, me, rails, &mut rng)).unwrap();
            let patience = victim.and(PATIENCE);
            let place = |name| -> NameAndLimit<'_> { (name, PATIENCE) };
            let result = match me {
                RECEIVER => stream_receiver(&manager, patience),
                SENDER => stream_sender(&manager, place("hamlyn://stream"), &mut rng),
                SERVER => call_server(&manager, CALLS * CLIENTS, patience),
                _ => call_client(&manager, place("hamlyn://calls"), rng.number() >> 8),
            };
            ended.set(ended.get() + 1);
            drop(manager);
            // The peers of the dead host hear of its death, and no other host.
            let peers: &[usize] = match me {
                RECEIVER => &[SENDER],
                SENDER => &[RECEIVER],
                SERVER => &[],
                _ => &[SERVER],
            };
            let may_fail = victim.is_some_and(|victim| peers.contains(&victim));
            assert!(result.is_ok() || may_fail, "host {me}: {result:?}");
            network.set(net::counts());
            if let (Err(error), Some(lost_ns)) = (result, lost_ns.get())
                && error.contains("died")
            {
                told.set(told.get() + 1);
                // Two looks, of eight within that time, and a moment.
                let most_ns = u64::from(TIMEOUT_MS) * 1_000_000 * 10 / 8;
                let took_ns = monotonic_ns() - lost_ns;
                assert!(took_ns < most_ns, "host {me} is told after {took_ns} ns: {error}");
            }
        };
        Box::new(run) as Box<dyn FnOnce()>
    };
    let mut all: Vec<Box<dyn FnOnce()>> = (0..count).map(host).collect();
    let mut rng = Rng::new(!seed);
    all.push(Box::new(move || {
        let connect: Vec<usize> =
            (0..count).filter(|me| ![RECEIVER, SERVER].contains(me)).collect();
        disturb(&mut rng, count as u64, &connect, rails, Duration::from_secs(4));
        let Some(victim) = victim else { return };
        thread::sleep(Duration::from_nanos(rng.below(6_000_000)));
        if ended.get() < count {
            lost_ns.set(Some(monotonic_ns()));
            match trouble {
                HostTrouble::Loss => net::lose(victim),
                _ => sim::kill(victim),
            }
        }
    }));
    match sim::run(seed, all) {
        Ok(ran) => {
            let (connections, held) = network.get();
            RunResults { ran, connections, held, told: told.get() }
        }
        Err(stuck) => panic!("{stuck:?}"),
    }
}

// ---- programs that send and then make no call

/// Senders, each over a link of its own, to [`RECEIVER`].
const SENDERS: usize = 2;
const BURSTS: u32 = 30;
/// Messages of a burst, at most; and the number that the receiver keeps of one sender.
const BURST: u64 = 24;
/// In a message's word: it is the last of all, and an answer is wanted.
const LAST: u32 = 1 << 31;
const ASKS: u32 = 1 << 30;

/// Takes messages in order, and counts them in `came`. Now and then it pauses.
fn take_bursts(mut node: Node, rng: &mut Rng, came: &[Cell<u32>]) {
    let queue = node.notification_queue((SENDERS as u64 * BURST * 2) as u32).unwrap();
    let slots: Vec<SlotId> = (1..=SENDERS)
        .map(|sender| {
            let area = node.message_area(1024).unwrap();
            let slot = SlotConfig::new(area, queue).credit(BURST as u32);
            let slot = node.slot(slot).unwrap();
            let ticket = node.fast_ticket(slot).unwrap().to_bytes().to_vec();
            node.serve(&format!("x{sender}"), Access::SameUser, Accept::Automatic(ticket)).unwrap();
            slot
        })
        .collect();
    let mut last = 0;
    while last < SENDERS {
        let found = node.recv(queue, None).unwrap();
        let sender = slots.iter().position(|slot| found.is_for(*slot)).unwrap();
        assert_eq!(found.word & !(LAST | ASKS), came[sender].get(), "of sender {sender}");
        came[sender].set(came[sender].get() + 1);
        last += usize::from(found.word & LAST != 0);
        if found.word & ASKS != 0 {
            let answer = Ticket::from_bytes(node.greeting(found.link).unwrap()).unwrap();
            while let Err(error) = node.try_send_fast_over(found.link, &answer, &[], 0) {
                assert!(matches!(error, NodeSendError::Full), "{error}");
                node.poll().unwrap();
            }
        }
        if rng.below(6) == 0 {
            thread::sleep(Duration::from_nanos(rng.below(200_000)));
        }
    }
    node.close(None).unwrap();
}

/// Sends bursts, and waits for each to arrive: without any call to the library, so that no call of
/// its node can be the one that sends it; or within a call, for an answer.
fn send_bursts(mut node: Node, me: usize, rng: &mut Rng, came: &Cell<u32>) {
    let area = node.message_area(64).unwrap();
    let queue = node.notification_queue(4).unwrap();
    let slot = node.slot(SlotConfig::new(area, queue).credit(1)).unwrap();
    let own = node.fast_ticket(slot).unwrap().to_bytes();
    let link = loop {
        match node.connect(&format!("hamlyn://x{me}"), &own, PATIENCE) {
            Ok(link) => break link,
            // The cable was cut for good in the middle of it. The other is as likely the next time.
            Err(ConnectError::TimedOut(_)) => {}
            Err(error) => panic!("{error}"),
        }
    };
    let ticket = Ticket::from_bytes(node.greeting(link).unwrap()).unwrap();
    let mut sent = 0;
    for burst in 1..=BURSTS {
        let asks = rng.below(3) == 0;
        let messages = 1 + rng.below(BURST);
        for message in 1..=messages {
            let is_last = message == messages;
            let mut word = sent;
            word |= if is_last && burst == BURSTS { LAST } else { 0 };
            word |= if is_last && asks { ASKS } else { 0 };
            let data = std::vec![sent as u8; [0, 16, 300, 800][rng.below(4) as usize]];
            loop {
                match node.try_send_fast_over(link, &ticket, &data, word) {
                    Ok(()) => break,
                    Err(NodeSendError::Full) => {
                        // Messages that the library has accepted arrive.
                        sim::wait(|| came.get() >= sent, u64::MAX);
                        node.poll().unwrap();
                    }
                    Err(error) => panic!("{error}"),
                }
            }
            sent += 1;
            if rng.below(8) == 0 {
                thread::sleep(Duration::from_nanos(rng.below(100_000)));
            }
        }
        match asks {
            true => _ = node.recv(queue, None).unwrap(),
            false => _ = sim::wait(|| came.get() >= sent, u64::MAX),
        }
    }
    node.close(None).unwrap();
}

fn bursts(seed: u64, dir: &Path) -> Ran {
    let mut rng = Rng::new(seed);
    let rails = 1 + rng.below(2) as u32;
    shared(dir, &[("x1", RECEIVER), ("x2", RECEIVER)]);
    let came: Rc<[Cell<u32>; SENDERS]> = Rc::default();
    let host = |me: usize| {
        let (mut rng, dir, came) = (Rng::new(rng.number()), dir.to_path_buf(), came.clone());
        let run = move || {
            let mut config = config(&dir, me, rails, &mut rng);
            if me == SERVER {
                config.listen = None;
            }
            let node = Node::with_config(config).unwrap();
            match me {
                RECEIVER => take_bursts(node, &mut rng, &*came),
                _ => send_bursts(node, me, &mut rng, &came[me - 1]),
            }
        };
        Box::new(run) as Box<dyn FnOnce()>
    };
    let mut all: Vec<Box<dyn FnOnce()>> = (0..=SENDERS).map(host).collect();
    let mut rng = Rng::new(!seed);
    let connect: Vec<usize> = (1..=SENDERS).collect();
    all.push(Box::new(move || {
        disturb(&mut rng, 1 + SENDERS as u64, &connect, rails, Duration::MAX);
    }));
    match sim::run(seed, all) {
        Ok(ran) => ran,
        Err(stuck) => panic!("{stuck:?}"),
    }
}

#[test]
fn what_a_program_sends_over_tls_leaves_though_it_makes_no_other_call() {
    run_all(bursts);
}

// Of its two addresses one refuses at first, and the other, whose cable is cut, uses up the time
// limit.
#[test]
fn a_service_that_is_not_there_yet_is_waited_for_though_another_of_its_places_says_nothing() {
    run_all(|seed, dir| {
        let mut rng = Rng::new(seed);
        shared(dir, &[("x", RECEIVER)]);
        let of = |me, rng: &mut Rng| {
            let config = config(dir, me, 1, rng);
            move || Node::with_config(config).unwrap()
        };
        let (there, here) = (of(RECEIVER, &mut rng), of(SENDER, &mut rng));
        let listens = move || {
            net::cut(RECEIVER, Some(1), Duration::MAX);
            thread::sleep(Duration::from_nanos(rng.below(200_000_000)));
            let mut node = there();
            node.serve("x", Access::SameUser, Accept::Automatic(Vec::new())).unwrap();
            while !matches!(node.next_event(), Some(Event::Closed { .. })) {
                node.wait(None).unwrap();
            }
        };
        let connects = move || {
            let mut node = here();
            let link = node.connect("hamlyn://x", &[], PATIENCE).unwrap();
            assert!(node.peer(link).unwrap().host.is_some());
            node.close(None).unwrap();
        };
        match sim::run(seed, std::vec![Box::new(listens), Box::new(connects)]) {
            Ok(ran) => ran,
            Err(stuck) => panic!("{stuck:?}"),
        }
    });
}

/// Runs all seeds; returns their results.
fn each(trouble: HostTrouble) -> Vec<RunResults> {
    let all = RefCell::new(Vec::new());
    run_all(|seed, dir| {
        let came = hosts(seed, dir, trouble);
        let ran = came.ran;
        all.borrow_mut().push(came);
        ran
    });
    all.into_inner()
}

/// Asserts that most runs of all seeds have seen `what`; one seed alone may not.
fn is_seen(all: &[RunResults], what: &str, count: impl Fn(&RunResults) -> usize) {
    let seen = all.iter().filter(|came| count(came) > 0).count();
    assert!(all.len() < 20 || seen >= all.len() / 8, "{what} in {seen} of {} runs", all.len());
}

#[test]
fn hosts_that_stop_and_are_cut_off_for_a_while_lose_nothing_and_none_waits_for_ever() {
    let all = each(HostTrouble::Passing);
    is_seen(&all, "what was sent had to wait for a cable", |came| came.held as usize);
}

#[test]
fn whoever_streams_to_or_calls_a_host_whose_process_is_killed_is_told() {
    is_seen(&each(HostTrouble::Death), "a death was told", |came| came.told);
}

#[test]
fn whoever_streams_to_or_calls_a_host_that_loses_its_power_is_told_within_the_bound() {
    is_seen(&each(HostTrouble::Loss), "a death was told", |came| came.told);
}

#[test]
fn the_same_seed_is_the_same_run_between_hosts() {
    let base = tempfile::tempdir().unwrap();
    for (number, trouble) in
        [HostTrouble::Passing, HostTrouble::Death, HostTrouble::Loss].into_iter().enumerate()
    {
        for seed in 1..4 {
            let ran = [0, 1].map(|i| {
                let dir = base.path().join(format!("{number}-{seed}-{i}"));
                std::fs::create_dir(&dir).unwrap();
                hosts(seed, &dir, trouble)
            });
            assert_eq!(ran[0], ran[1], "seed {seed}");
        }
    }
}
