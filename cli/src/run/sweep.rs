//! Ends the processes that ranks have left behind: all descendants of this process. If this process
//! is a *subreaper*, orphans among them become its children.
//!
//! Processes that watch over one another, and restart one that has ended, are all stopped before
//! any is killed: [`sweep`] stops the processes it sees until it sees no new one.
//!
//! Never: a signal goes to another process. A child's number is not used again until this process
//! has waited for it; a grandchild's may be at any time, so it is opened, and then checked again.

use rustix::io::{Errno, Result};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, kill_process, pidfd_open, pidfd_send_signal,
    waitid,
};
use std::collections::HashSet;
use std::fs::{read_dir, read_to_string};
use std::path::Path;
use std::str::FromStr;
use std::time::{Duration, Instant};

/// The time limit of a whole sweep. A killed process with much memory takes long to release it.
const SWEEP: Duration = Duration::from_secs(3);
/// The pause after each look without a new process.
const PAUSE: Duration = Duration::from_millis(5);
/// Most process numbers in a sentence.
const NAMED_MAX: usize = 16;

/// A process, and its parent; `None` for a child of this process.
type Found = (Pid, Option<Pid>);

/// Ends all descendants except `spared` and theirs. Returns the processes that cannot be ended,
/// such as those that have become another user's.
pub fn sweep(spared: &[Pid]) -> Vec<Pid> {
    let (mut stopped, by) = (HashSet::new(), Instant::now() + SWEEP);
    while Instant::now() < by {
        reap(|pid| !spared.contains(&pid));
        let found = descendants(spared);
        if found.is_empty() {
            return Vec::new();
        }
        let mut is_new = false;
        for found in found.iter().filter(|(pid, _)| stopped.insert(*pid)) {
            let _ = signal(found, Signal::STOP);
            is_new = true;
        }
        if is_new {
            continue;
        }
        let is_taken = kill(&found);
        std::thread::sleep(PAUSE);
        if !is_taken {
            break;
        }
    }
    // No process stays stopped.
    let found = descendants(spared);
    kill(&found);
    found.into_iter().map(|(pid, _)| pid).filter(|pid| !is_ending(*pid)).collect()
}

/// A sentence about processes that cannot be ended.
pub fn words(left: &[Pid]) -> String {
    let named = left.iter().take(NAMED_MAX).map(|pid| pid.as_raw_nonzero().to_string());
    let named = named.collect::<Vec<_>>().join(", ");
    let more = match left.len().saturating_sub(NAMED_MAX) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("processes that ranks have started could not be ended: pids {named}{more}")
}

/// Reaps the ended children that `is_to_go` selects.
pub fn reap(is_to_go: impl Fn(Pid) -> bool) {
    for pid in children().into_iter().filter(|pid| is_to_go(*pid)) {
        let _ = waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
    }
}

/// The children of this process.
pub fn children() -> Vec<Pid> {
    children_of("self")
}

fn children_of(process: &str) -> Vec<Pid> {
    let mut found = Vec::new();
    for task in read_dir(Path::new("/proc").join(process).join("task")).into_iter().flatten() {
        let Ok(task) = task else { continue };
        let text = read_to_string(task.path().join("children")).unwrap_or_default();
        found.extend(text.split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)));
    }
    found
}

/// Parents before their children.
fn descendants(spared: &[Pid]) -> Vec<Found> {
    let own = children().into_iter().filter(|pid| !spared.contains(pid));
    let mut found: Vec<Found> = own.map(|pid| (pid, None)).collect();
    let mut seen: HashSet<Pid> = found.iter().map(|(pid, _)| *pid).collect();
    let mut at = 0;
    while let Some((parent, _)) = found.get(at).copied() {
        let its = children_of(&parent.as_raw_nonzero().to_string());
        found
            .extend(its.into_iter().filter(|pid| seen.insert(*pid)).map(|pid| (pid, Some(parent))));
        at += 1;
    }
    found
}

/// Kills children before their parents, since an orphan may be notified and go on. `false`: this
/// process may kill none of them, for example because they have become another user's.
fn kill(found: &[Found]) -> bool {
    let takes = |found: &&Found| signal(found, Signal::KILL) != Err(Errno::PERM);
    found.iter().rev().filter(takes).count() > 0
}

fn signal((pid, parent): &Found, signal: Signal) -> Result<()> {
    let Some(parent) = parent else { return kill_process(*pid, signal) };
    let process = pidfd_open(*pid, PidfdFlags::empty())?;
    match parent_of(*pid) == Some(*parent) {
        true => pidfd_send_signal(process, signal),
        // It or its parent has ended: the next look shows.
        false => Ok(()),
    }
}

fn parent_of(pid: Pid) -> Option<Pid> {
    Pid::from_raw(word_of(pid, 1)?)
}

/// Whether it is exiting and only releases its memory (`PF_EXITING`), or is gone.
fn is_ending(pid: Pid) -> bool {
    word_of(pid, 6).is_none_or(|flags: u32| flags & 4 != 0)
}

/// A field of its `stat` after its name, which may contain any byte: 0 is its state.
fn word_of<T: FromStr>(pid: Pid, number: usize) -> Option<T> {
    let stat = read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    stat.rsplit_once(") ")?.1.split(' ').nth(number)?.parse().ok()
}
