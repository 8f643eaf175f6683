//! The two ends of the cell with two receiving threads: two threads of one process, each on an end
//! point of its own of one manager, against one thread that takes from both.
//!
//! ```text
//!   near: a tag "fill" --->                        far: a lot of tags to each of two end points,
//!         asleep                                        over a link of its own each
//!         takes them all        <--- a tag "filled"
//! ```
//! Rounds take turns: the thread on one processor alone, the thread on the other alone, both at
//! once. All messages have arrived before the clock starts, and their sender then sleeps, so that
//! two otherwise idle processors are enough: each has one receiving thread. The lines come from the
//! sender's processor; with the single thread on either processor in turn, both sides of the
//! comparison have as many of them in their own cache.

use super::cells::{Cell, LIMIT, config};
use crate::arguments::Mode;
use crate::perf::pin::Cores;
use crate::perf::row::Figure;
use crate::perf::{clock, ends, on_core};
use anyhow::Result;
use hamlyn::control::Access;
use hamlyn::protocol::{Manager, Seed, TaggedConfig, TaggedReceiver, TaggedSender};
use std::sync::atomic::{AtomicU32, Ordering::Acquire, Ordering::Release};

/// Tags that are ready for one end point in a round.
const LOT: u64 = 2048;
/// Bytes of the rings of the senders: room for a lot, each tag a line.
const RING_BYTES: u32 = 256 << 10;
/// Bytes of an area; three seeds fit, one behind the other.
const AREA_BYTES: usize = 4096;
const SEED_BYTES: usize = 1024;

/// Rounds of each kind with `count` messages; one more of each goes before the clock starts.
fn rounds(count: u64) -> u64 {
    (count / (2 * LOT)).max(1)
}

/// A manager whose rings hold a lot, and whose waits sleep.
fn sleeper() -> Result<Manager> {
    let mut config = ends::config(Mode::Blocking, 0)?;
    config.ring_bytes = RING_BYTES;
    Ok(Manager::with_config(config)?)
}

fn receiver(manager: &Manager, tags: u32) -> Result<TaggedReceiver> {
    let config = TaggedConfig { tags, senders_max: 1, ..TaggedConfig::new(AREA_BYTES) };
    Ok(TaggedReceiver::new(manager, config)?)
}

fn take(receiver: &mut TaggedReceiver) -> Result<()> {
    for _ in 0..LOT {
        receiver.get_tag(LIMIT)?;
    }
    Ok(())
}

/// Nanoseconds until one thread has taken everything that is ready for both.
fn one_thread(core: usize, receivers: &mut [TaggedReceiver; 2]) -> Result<u64> {
    on_core(core, || {
        let from = clock::ticks();
        receivers.iter_mut().try_for_each(take)?;
        Ok(clock::elapsed_ns(from, clock::ticks()))
    })?
}

/// Nanoseconds from the first look of either thread until both have taken everything that is ready
/// for them.
fn two_threads(cores: Cores, receivers: &mut [TaggedReceiver; 2]) -> Result<u64> {
    let ready = AtomicU32::new(0);
    let run = |receiver| -> Result<(u64, u64)> {
        // Neither wakes the other: a thread that sleeps starts late.
        ready.fetch_add(1, Release);
        while ready.load(Acquire) < 2 {}
        let from = clock::ticks();
        take(receiver)?;
        Ok((from, clock::ticks()))
    };
    let [first, second] = receivers;
    let (near, far) = crate::perf::two_threads(cores, || run(first), || run(second))?;
    let (near, far) = (near?, far?);
    Ok(clock::elapsed_ns(near.0.min(far.0), near.1.max(far.1)))
}

/// The end that measures. Its caller is not pinned: the threads on both processors are its own.
pub fn near(cell: Cell, name: &str, cores: Cores, count: u64) -> Result<Figure> {
    let orders = sleeper()?;
    let mut filled = receiver(&orders, 4)?;
    let manager = Manager::with_config(config(cell)?)?;
    let tags = 2 * LOT as u32;
    let mut receivers = [receiver(&manager, tags)?, receiver(&manager, tags)?];
    let mut fill = TaggedSender::connect(&orders, name, LIMIT)?;
    for (i, receiver) in [&filled, &receivers[0], &receivers[1]].into_iter().enumerate() {
        let seed = receiver.seed()?.to_bytes();
        fill.send((i * SEED_BYTES) as u64, &seed, seed.len() as u32, LIMIT)?;
    }
    // In the order of the seeds, each sender's first tag announces it.
    filled.get_tag(LIMIT)?;
    for receiver in &mut receivers {
        receiver.get_tag(LIMIT)?;
    }
    let mut refill = || -> Result<()> {
        fill.send(0, &[], 0, LIMIT)?;
        filled.get_tag(LIMIT)?;
        Ok(())
    };
    let (mut one_ns, mut two_ns) = (0, 0);
    for round in 0..=rounds(count) {
        // The first round finds cold caches.
        let counts = u64::from(round > 0);
        for core in [cores.near, cores.far] {
            refill()?;
            one_ns += counts * one_thread(core, &mut receivers)?;
        }
        refill()?;
        two_ns += counts * two_threads(cores, &mut receivers)?;
    }
    // The other end has waited until everything was taken.
    fill.send(0, &[], 0, LIMIT)?;
    let messages = (2 * LOT * rounds(count)) as f64;
    Ok(Figure::Receivers {
        messages_per_s: messages / (two_ns as f64 / 1e9),
        one_thread_messages_per_s: 2.0 * messages / (one_ns as f64 / 1e9),
    })
}

/// The other end.
pub fn far(cell: Cell, name: &str, count: u64, ready: impl FnOnce()) -> Result<()> {
    let orders = sleeper()?;
    let mut fill = receiver(&orders, 4)?;
    fill.serve(name, Access::SameUser)?;
    ready();
    let mut seeds = Vec::new();
    for i in 0..3 {
        let mut seed = vec![0; (fill.get_tag(LIMIT)?.tag as usize).min(SEED_BYTES)];
        fill.read(i * SEED_BYTES, &mut seed)?;
        seeds.push(Seed::from_bytes(&seed)?);
    }
    let mut filled = TaggedSender::grow(&orders, &seeds[0], LIMIT)?;
    filled.send(0, &[], 0, LIMIT)?;
    let mut senders = Vec::new();
    for seed in &seeds[1..] {
        let mut sender = TaggedSender::grow(&sleeper()?, seed, LIMIT)?;
        sender.send(0, &[], 0, LIMIT)?;
        senders.push(sender);
    }
    let message = vec![7; cell.size];
    // Of each kind: on either processor alone, and on both.
    for _ in 0..3 * (1 + rounds(count)) {
        fill.get_tag(LIMIT)?;
        for sender in &mut senders {
            for _ in 0..LOT {
                sender.send(0, &message, 7, LIMIT)?;
            }
        }
        filled.send(0, &[], 0, LIMIT)?;
    }
    fill.get_tag(LIMIT)?;
    Ok(())
}
