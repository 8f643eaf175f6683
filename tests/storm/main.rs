//! Several processes that do random things to one another, with every ring, queue and turn at its
//! smallest: every message arrives once and whole, no process waits for ever, and a process that is
//! killed midway takes only its own messages with it.
//!
//! The other processes are this test binary, run again with `STORM_ME` in its environment. A
//! failing run prints its seed: `STORM_SEED=3 cargo test --test storm`; `STORM_RUNS` is the number
//! of runs.
#![cfg(feature = "os")]

mod process;

use hamlyn::link::sim::Rng;
use hamlyn::node::CloseReason;
use process::{Process, Storm};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::DirBuilderExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|value| value.parse().ok())
}

/// Not a test: what each process does.
#[test]
fn process() {
    let Some(me) = number("STORM_ME") else { return };
    let storm = Storm {
        me: me as usize,
        count: number("STORM_COUNT").unwrap() as usize,
        messages: 200,
        victim: number("STORM_VICTIM").map(|victim| (victim as usize, CloseReason::Died)),
        patience: Some(Duration::from_secs(30)),
        give_way: std::thread::yield_now,
    };
    let rng = Rng::new(number("STORM_SEED").unwrap() << 8 | me);
    let dir = std::env::var("STORM_DIR").unwrap();
    Process::new(&storm, dir.as_ref(), rng).run(|| println!("\nSTORM half way"));
}

// ---- the tests

struct Children(Vec<Child>);

impl Drop for Children {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn storm(seed: u64, count: usize, victim: Option<usize>) {
    let dir = std::env::temp_dir().join(format!("hamlyn-storm-{}-{seed}", std::process::id()));
    std::fs::DirBuilder::new().mode(0o700).create(&dir).unwrap();
    let start = |me: usize| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "process", "--nocapture"]).stdout(Stdio::piped());
        command.env("STORM_ME", me.to_string()).env("STORM_COUNT", count.to_string());
        command.env("STORM_SEED", seed.to_string()).env("STORM_DIR", &dir);
        if let Some(victim) = victim {
            command.env("STORM_VICTIM", victim.to_string());
        }
        command.spawn().unwrap()
    };
    let mut children = Children((0..count).map(start).collect());
    if let Some(victim) = victim {
        let child = &mut children.0[victim];
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().contains("STORM half way")), "it never came so far");
        child.kill().unwrap();
    }
    let mut failed = Vec::new();
    for (me, child) in children.0.iter_mut().enumerate() {
        let output = child.stdout.take();
        let status = child.wait().unwrap();
        if !status.success() && Some(me) != victim {
            failed.push(me);
            output.map(|output| std::io::copy(&mut BufReader::new(output), &mut std::io::stderr()));
        }
    }
    let _ = std::fs::remove_dir_all(&dir);
    assert!(failed.is_empty(), "processes {failed:?}: STORM_SEED={seed} cargo test --test storm");
}

fn seeds() -> std::ops::Range<u64> {
    match number("STORM_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("STORM_RUNS").unwrap_or(4),
    }
}

#[test]
fn processes_that_do_random_things_lose_nothing_and_never_wait_for_ever() {
    if number("STORM_ME").is_none() {
        seeds().for_each(|seed| storm(seed, 2 + seed as usize % 3, None));
    }
}

#[test]
fn a_process_that_is_killed_midway_takes_only_its_own_messages_with_it() {
    if number("STORM_ME").is_none() {
        seeds().for_each(|seed| storm(1000 + seed, 3, Some(seed as usize % 3)));
    }
}
