//! Whole nodes, and the protocols above them, in a simulation: processes that meet by name, shake
//! hands, send, sleep, wake, stop, die and leave, in an order and at times that follow from a seed.
//! A run can be repeated, and takes milliseconds, so many are tried.
//!
//! Invariants: every message arrives once, whole and in order, unless a process was killed. Waits
//! have no time limit, and end: a lost wake-up, or a run that goes on for ever, ends the run with
//! an error. All peers of a process that died get notice of its death.
//!
//! `HAMLYN_SIM_SEEDS=10000 cargo test --features tls --lib simulated` runs more seeds (of each
//! test; on two processors that are otherwise idle some ten minutes, most of them between hosts); a
//! failure names its seed, and `HAMLYN_SIM_SEED=n` runs that one.

//!
//! - `hosts`: the same between hosts, over TLS

#[cfg(feature = "tls")]
mod hosts;
#[path = "../tests/storm/process.rs"]
mod process;

use crate::config::{Config, WaitMode};
use crate::control::Access;
use crate::link::sim::Rng;
use crate::node::CloseReason;
use crate::os::sim::{self, Ran};
use crate::os::thread;
use crate::protocol::{
    Client, Manager, ReceiveError, Server, ServerConfig, StreamConfig, StreamReceiver, StreamSender,
};
use core::panic::AssertUnwindSafe;
use core::time::Duration;
use process::{Process, Storm};
use std::boxed::Box;
use std::format;
use std::path::{Path, PathBuf};
use std::string::{String, ToString};
use std::vec::Vec;

fn seeds() -> Vec<u64> {
    if let Ok(seed) = std::env::var("HAMLYN_SIM_SEED") {
        return std::vec![seed.parse().unwrap()];
    }
    let count = std::env::var("HAMLYN_SIM_SEEDS").map_or(40, |n| n.parse().unwrap());
    (1..=count).collect()
}

/// The participants of a run, each a process of its own.
type Participants = Vec<Box<dyn FnOnce()>>;

/// Runs them, and one more that stops others for a while, and kills `victim`.
fn run(seed: u64, mut hosts: Participants, victim: Option<usize>) -> Ran {
    let (count, mut rng) = (hosts.len() as u64, Rng::new(!seed));
    hosts.push(Box::new(move || {
        let mut wait = |most: u64| thread::sleep(Duration::from_nanos(rng.below(most)));
        for _ in 0..3 {
            wait(3_000_000);
            sim::stop(
                (seed ^ count).wrapping_mul(31) as usize % count as usize,
                Duration::from_millis(2),
            );
        }
        if let Some(victim) = victim {
            wait(6_000_000);
            sim::kill(victim);
        }
    }));
    match sim::run(seed, hosts) {
        Ok(ran) => ran,
        Err(stuck) => panic!("{stuck:?}"),
    }
}

/// Processes of the storm, of which one kills itself.
fn storm(seed: u64, dir: &Path, kills: bool) -> Ran {
    let mut rng = Rng::new(seed);
    let count = 2 + rng.below(3) as usize;
    let victim = kills.then(|| (rng.below(count as u64) as usize, CloseReason::HungUp));
    let messages = 4 + rng.below(20) as usize;
    let host = |me| {
        let give_way = || _ = sim::yield_now();
        let (victim, patience) = (victim.clone(), None);
        let storm = Storm { me, count, messages, victim, patience, give_way };
        let (rng, dir) = (Rng::new(rng.number()), PathBuf::from(dir));
        let run = move || Process::new(&storm, &dir, rng).run(|| sim::kill(me));
        Box::new(run) as Box<dyn FnOnce()>
    };
    run(seed, (0..count).map(host).collect(), None)
}

/// A manager with small rings, which sleeps soon and asks for a bulk ring early.
fn manager(dir: &Path, rng: &mut Rng) -> Manager {
    let modes = [WaitMode::Polled, WaitMode::Adaptive, WaitMode::Blocking];
    let config = Config::default()
        .dir(dir)
        .shared_dir(dir.join("shared"))
        .ring_bytes(4096u32)
        .bulk_ring_bytes([0u32, 1 << 16][rng.below(2) as usize])
        .bulk_after_bytes(2000u64)
        .spin_ns(1000u64)
        .wait_mode(modes[rng.below(3) as usize]);
    Manager::with_config(config).unwrap()
}

fn bytes(seed: u64, most: u64) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    let most = [17, 300, most][rng.below(3) as usize];
    (0..rng.below(most)).map(|i| (seed + i * 7) as u8).collect()
}

const RECORDS: u64 = 60;
const CALLS: u64 = 20;
const CLIENTS: u64 = 3;
/// Time limit for finding a name: its process may have been killed before.
const MEETING: Option<Duration> = Some(Duration::from_millis(100));

/// The name of a service, and the time limit for finding it.
type NameAndLimit<'a> = (&'a str, Option<Duration>);

fn stream_receiver(manager: &Manager, patience: Option<Duration>) -> Result<(), String> {
    let config =
        StreamConfig { buffer_bytes: 2048, buffers: 2, buffers_max: 3, record_bytes_max: 1 << 16 };
    let mut receiver = StreamReceiver::new(manager, config).unwrap();
    receiver.serve("stream", Access::SameUser).unwrap();
    for number in 0..RECORDS {
        // A sender that was killed before it connected is not missed; one that connected is.
        let patience = patience.filter(|_| receiver.connection().is_none());
        let record = receiver.receive(patience).map_err(|e| e.to_string())?;
        assert!(record[..] == bytes(number, 9000)[..], "record {number}");
    }
    let end = receiver.receive(None).unwrap_err();
    match end {
        ReceiveError::Ended(CloseReason::Closed) => Ok(()),
        e => Err(e.to_string()),
    }
}

fn stream_sender(
    manager: &Manager,
    (name, meeting): NameAndLimit<'_>,
    rng: &mut Rng,
) -> Result<(), String> {
    let mut sender = StreamSender::connect(manager, name, meeting).map_err(|e| e.to_string())?;
    for number in 0..RECORDS {
        sender.send(&bytes(number, 9000), None).map_err(|e| e.to_string())?;
        if rng.below(3) == 0 {
            sender.flush(None).map_err(|e| e.to_string())?;
        }
    }
    sender.close(None).map_err(|e| e.to_string())
}

fn call_server(manager: &Manager, calls: u64, patience: Option<Duration>) -> Result<(), String> {
    let config = ServerConfig { outstanding: 2, request_bytes: 512, ..ServerConfig::default() };
    let server = Server::new(manager, config).unwrap();
    server.serve("calls", Access::SameUser).unwrap();
    for _ in 0..calls {
        let request = match server.receive(patience) {
            Ok(request) => request,
            Err(ReceiveError::TimedOut) => break,
            Err(e) => return Err(e.to_string()),
        };
        let reply: Vec<u8> = request.iter().rev().map(|byte| byte ^ 0x55).collect();
        // A client that has died gets none.
        let _ = request.reply(&reply, None);
    }
    Ok(())
}

fn call_client(
    manager: &Manager,
    (name, meeting): NameAndLimit<'_>,
    seed: u64,
) -> Result<(), String> {
    let client = Client::connect(manager, name, meeting).map_err(|e| e.to_string())?;
    for number in 0..CALLS {
        let request = bytes(seed + number, 3000);
        let reply = client.call(&request, None).map_err(|e| e.to_string())?;
        assert!(reply.iter().rev().map(|byte| byte ^ 0x55).eq(request), "call {number}");
    }
    Ok(())
}

/// A stream, and a server with its clients, of whom one may be killed at any time.
fn protocols(seed: u64, dir: &Path, kills: bool) -> Ran {
    let mut rng = Rng::new(seed);
    let count = 3 + CLIENTS;
    let victim = kills.then(|| rng.below(count) as usize);
    let host = |me| {
        let (mut rng, dir) = (Rng::new(rng.number()), PathBuf::from(dir));
        let run = move || {
            let manager = manager(&dir, &mut rng);
            let ended = match me {
                0 => stream_receiver(&manager, victim.and(MEETING)),
                1 => stream_sender(&manager, ("stream", MEETING), &mut rng),
                // The calls of a killed client do not come.
                2 => {
                    let patience = victim.map(|_| Duration::from_millis(20));
                    call_server(&manager, CALLS * CLIENTS, patience)
                }
                _ => call_client(&manager, ("calls", MEETING), rng.number() >> 8),
            };
            // The peers of the dead process hear of its death, and no other process.
            let peers: &[usize] = match me {
                0 => &[1],
                1 => &[0],
                2 => &[],
                _ => &[2],
            };
            let may_fail = victim.is_some_and(|victim| peers.contains(&victim));
            assert!(ended.is_ok() || may_fail, "process {me}: {ended:?}");
        };
        Box::new(run) as Box<dyn FnOnce()>
    };
    run(seed, (0..count).map(host).collect(), victim)
}

fn run_all(one: impl Fn(u64, &Path) -> Ran) {
    let base = tempfile::tempdir().unwrap();
    for seed in seeds() {
        let dir = base.path().join(format!("{seed}"));
        std::fs::create_dir(&dir).unwrap();
        let ran = std::panic::catch_unwind(AssertUnwindSafe(|| one(seed, &dir)));
        std::fs::remove_dir_all(&dir).unwrap();
        assert!(ran.is_ok(), "failed with HAMLYN_SIM_SEED={seed}");
    }
}

#[test]
fn nodes_that_do_random_things_lose_nothing_and_none_waits_for_ever() {
    run_all(|seed, dir| storm(seed, dir, false));
}

#[test]
fn a_node_that_is_killed_midway_takes_only_its_own_messages_with_it() {
    run_all(|seed, dir| storm(seed, dir, true));
}

#[test]
fn streams_and_calls_come_to_their_end() {
    run_all(|seed, dir| protocols(seed, dir, false));
}

#[test]
fn whoever_streams_to_or_calls_one_that_is_killed_is_told() {
    run_all(|seed, dir| protocols(seed, dir, true));
}

#[test]
fn the_same_seed_is_the_same_run() {
    let base = tempfile::tempdir().unwrap();
    let ran: Vec<[Ran; 2]> = (0..2)
        .map(|i| {
            let dir = base.path().join(format!("{i}"));
            std::fs::create_dir(&dir).unwrap();
            let first = storm(7, &dir, true);
            [first, protocols(8, &dir, false)]
        })
        .collect();
    assert_eq!(ran[0], ran[1]);
}
