//! Sixteen nodes, each with a processor of its own, from what sixteen processes did on this machine's few: each
//! process's trace (`svm_meddle.c`) is gone through with costs that were measured here.
//!
//! A process computes, misses pages one after another, and synchronises. A lock is granted in the order in which
//! requests reach its manager; a barrier opens when all have arrived. Homes and managers are never busy, and the
//! network has no limit to its bandwidth: what is modelled is waiting and the processes' own work.

use crate::Outcome;
use std::collections::{HashMap, VecDeque};
use std::path::Path;

/// Nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct Costs {
    /// A miss whose page is asked for; one that is copied in place is in the trace's time.
    pub miss: f64,
    /// A synchronisation's question and answer.
    pub question: f64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum What {
    Lock(u32),
    Unlock(u32),
    Barrier,
}

#[derive(Clone, Copy, Debug)]
struct Step {
    /// With its own work for a release.
    compute: f64,
    misses: f64,
    what: What,
}

fn steps(path: &Path) -> Outcome<Vec<Step>> {
    let text = std::fs::read_to_string(path)?;
    let step = |line: &str| {
        let mut words = line.split(' ');
        let what = words.next()?;
        let mut number = || words.next()?.parse::<f64>().ok();
        let (object, compute, misses, own) = (number()? as u32, number()?, number()?, number()?);
        let what = match what {
            "svm_lock" => What::Lock(object),
            "svm_unlock" => What::Unlock(object),
            _ => What::Barrier,
        };
        let compute = compute + own;
        Some(Step { compute, misses, what })
    };
    Ok(text.lines().filter_map(step).collect())
}

#[derive(Default)]
struct Lock {
    is_held: bool,
    waiting: VecDeque<usize>,
}

/// The nanoseconds until the last process is at its end. `traces`: one of each process.
pub fn run(traces: &[std::path::PathBuf], costs: Costs) -> Outcome<f64> {
    let traces: Vec<_> = traces.iter().map(|path| steps(path)).collect::<Outcome<_>>()?;
    Ok(replay(&traces, costs))
}

fn replay(traces: &[Vec<Step>], costs: Costs) -> f64 {
    let of = |process: usize, at: usize| traces[process].get(at).copied();
    let work = |step: Step| step.compute + step.misses * costs.miss;
    let (mut at, mut locks) = (vec![0; traces.len()], HashMap::<u32, Lock>::new());
    // When each process's next synchronisation reaches its manager; infinite while it waits for an answer.
    let ready =
        |process, at, now: f64| of(process, at).map_or(f64::INFINITY, |step| now + work(step));
    let mut when: Vec<f64> = (0..traces.len()).map(|process| ready(process, 0, 0.0)).collect();
    let (mut arrived, mut end) = (Vec::new(), 0.0_f64);
    while let Some(process) = (0..when.len()).min_by(|a, b| when[*a].total_cmp(&when[*b]))
        && when[process].is_finite()
    {
        let now = when[process];
        end = end.max(now);
        let Some(step) = of(process, at[process]) else { break };
        when[process] = f64::INFINITY;
        let mut goes_on = Vec::new();
        match step.what {
            What::Lock(lock) => {
                let lock = locks.entry(lock).or_default();
                if lock.is_held {
                    lock.waiting.push_back(process);
                } else {
                    lock.is_held = true;
                    goes_on.push((process, now + costs.question));
                }
            }
            What::Unlock(lock) => {
                // Nobody waits for an answer to it.
                goes_on.push((process, now));
                let lock = locks.entry(lock).or_default();
                lock.is_held = false;
                if let Some(next) = lock.waiting.pop_front() {
                    lock.is_held = true;
                    goes_on.push((next, now + costs.question));
                }
            }
            What::Barrier => {
                arrived.push(process);
                if arrived.len() == traces.len() {
                    let opened = now + costs.question;
                    goes_on.extend(arrived.drain(..).map(|process| (process, opened)));
                }
            }
        }
        for (process, from) in goes_on {
            at[process] += 1;
            when[process] = ready(process, at[process], from);
            end = end.max(from);
        }
    }
    end
}

#[cfg(test)]
mod tests {
    use super::*;

    const COSTS: Costs = Costs { miss: 10.0, question: 1.0 };

    fn step(compute: f64, misses: f64, what: What) -> Step {
        Step { compute, misses, what }
    }

    #[test]
    fn a_barrier_opens_behind_the_last_and_misses_take_their_time() {
        let fast = vec![step(5.0, 0.0, What::Barrier)];
        let slow = vec![step(5.0, 2.0, What::Barrier)];
        assert_eq!(replay(&[fast, slow], COSTS), 26.0);
    }

    #[test]
    fn a_lock_is_held_by_one_and_goes_to_those_that_wait_in_their_order() {
        let of = |start| {
            vec![
                step(start, 0.0, What::Lock(7)),
                step(100.0, 0.0, What::Unlock(7)),
                step(0.0, 0.0, What::Barrier),
            ]
        };
        // Each holds it for 100, and each grant takes 1.
        assert_eq!(replay(&[of(0.0), of(1.0), of(2.0)], COSTS), 304.0);
    }
}
