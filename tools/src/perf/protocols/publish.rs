//! The two ends of the cells of publish and subscribe.
//!
//! ```text
//!   latency:  near's publisher --- sample --->  far's subscriber
//!             near's subscriber <--- sample ---  far's publisher
//!   publish:  taking, writing and publishing a loan: the figure, with one subscriber, then eight
//!                              --- announced --->  received and released by each, untimed
//! ```

use super::cells::{Cell, LIMIT, Measure, config, of_round_trips};
use crate::perf::clock;
use crate::perf::row::Figure;
use anyhow::{Result, ensure};
use hamlyn::control::Access;
use hamlyn::protocol::{
    Manager, PublishConfig, Publisher, SubscribeConfig, Subscriber, SubscriberState, WhenSlow,
};
use std::time::Instant;

const MANY: usize = 8;

fn publisher(cell: Cell, manager: &Manager, name: &str) -> Result<Publisher> {
    let sample_bytes_max = if cell.measure == Measure::Publish { cell.size } else { 0 };
    let when_slow = WhenSlow::Wait;
    let config = PublishConfig { sample_bytes_max, when_slow, ..PublishConfig::default() };
    let publisher = Publisher::new(manager, config)?;
    publisher.serve(name, Access::SameUser)?;
    Ok(publisher)
}

fn subscribe(manager: &Manager, name: &str) -> Result<Subscriber> {
    Ok(Subscriber::connect(manager, name, SubscribeConfig::default(), LIMIT)?)
}

/// Waits until so many subscribers can be sent samples, and hold none.
fn until_idle(manager: &Manager, publisher: &Publisher, count: usize) -> Result<()> {
    until(manager, publisher, |all| {
        all.len() == count && all.iter().all(|of| of.is_served && of.outstanding == 0)
    })
}

/// Waits until the condition on the subscribers holds.
fn until(
    manager: &Manager,
    publisher: &Publisher,
    holds: impl Fn(&[SubscriberState]) -> bool,
) -> Result<()> {
    let began = Instant::now();
    loop {
        let subscribers = publisher.subscribers();
        if holds(&subscribers) {
            return Ok(());
        }
        let late = LIMIT.is_some_and(|limit| began.elapsed() > limit);
        let of =
            |holds: fn(&SubscriberState) -> bool| subscribers.iter().filter(|s| holds(s)).count();
        ensure!(
            !late,
            "of {} subscribers {} are served, {} have to release samples and {} to be sent some, after \
             {} s",
            subscribers.len(),
            of(|s| s.is_served),
            of(|s| s.outstanding > 0),
            of(|s| s.behind > 0),
            began.elapsed().as_secs()
        );
        manager.poll()?;
    }
}

/// The end that measures.
pub fn near(cell: Cell, name: &str, count: u64) -> Result<Figure> {
    let manager = Manager::with_config(config(cell)?)?;
    let publisher = publisher(cell, &manager, name)?;
    if cell.measure == Measure::Publish {
        let one_ns = loans(cell, &manager, &publisher, 1, count)?;
        let eight_ns = loans(cell, &manager, &publisher, MANY, count)?;
        // A subscriber that has received the last sample may have left.
        until(&manager, &publisher, |all| all.iter().all(|of| of.outstanding == 0))?;
        return Ok(Figure::Publish { eight_ns, one_ns });
    }
    let mut subscriber = subscribe(&manager, &back(name))?;
    until_idle(&manager, &publisher, 1)?;
    let sample = vec![7; cell.size];
    of_round_trips(count, || {
        publisher.publish(&sample, LIMIT)?;
        Ok(subscriber.receive(LIMIT)?)
    })
}

/// The median cost of publishing a loan to so many, after all have released the one before.
fn loans(
    cell: Cell,
    manager: &Manager,
    publisher: &Publisher,
    subscribers: usize,
    count: u64,
) -> Result<f64> {
    let warm_up = Cell::warm_up(count);
    let mut costs = Vec::new();
    for number in 0..warm_up + count {
        until_idle(manager, publisher, subscribers)?;
        let began = clock::ticks();
        let mut loan = publisher.loan(cell.size)?;
        loan.fill(number as u8);
        publisher.publish_loan(loan, LIMIT)?;
        if number >= warm_up {
            costs.push(clock::elapsed_ns(began, clock::ticks()));
        }
    }
    costs.sort_unstable();
    Ok(costs[costs.len() / 2] as f64)
}

fn back(name: &str) -> String {
    format!("{name}-back")
}

/// The other end.
pub fn far(cell: Cell, name: &str, count: u64, ready: impl FnOnce()) -> Result<()> {
    let manager = Manager::with_config(config(cell)?)?;
    let all = Cell::warm_up(count) + count;
    ready();
    if cell.measure == Measure::Publish {
        let mut subscribers = vec![subscribe(&manager, name)?];
        for many in [1, MANY] {
            while subscribers.len() < many {
                subscribers.push(subscribe(&manager, name)?);
            }
            for number in 0..all {
                for subscriber in &mut subscribers {
                    let sample = subscriber.receive(LIMIT)?;
                    let mut last = [0];
                    sample.copy_to(&mut last)?;
                    ensure!(last[0] == number as u8, "a sample that is not the one that came");
                }
            }
        }
        return Ok(());
    }
    let publisher = publisher(cell, &manager, &back(name))?;
    let mut subscriber = subscribe(&manager, name)?;
    until_idle(&manager, &publisher, 1)?;
    let sample = vec![7; cell.size];
    for _ in 0..all {
        subscriber.receive(LIMIT)?;
        publisher.publish(&sample, LIMIT)?;
    }
    Ok(())
}
