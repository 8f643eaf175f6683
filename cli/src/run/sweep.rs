//! Ends what ranks have left behind: all that has been started by a process, by what that has
//! started, and so on. What has lost its parent is there, too, if the process is a *subreaper*, which
//! the kernel then makes the parent.
//!
//! What watches over one another, and starts again what has ended, is stopped before any of it is
//! ended: [`sweep`] stops all it sees until it sees nothing that is new.
//!
//! Never: a signal goes to a process that is none of these. The number of a child is its own until
//! this process has asked how it ended; that of a child's child may become another's at any time, so
//! it is opened, and then looked at again.

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

/// How long all together may take. A process that was killed has much to give back, where it had
/// much memory.
const SWEEP: Duration = Duration::from_secs(3);
/// Behind each look that has seen nothing new.
const PAUSE: Duration = Duration::from_millis(5);
/// Numbers of processes in a sentence.
const NAMED_MAX: usize = 16;

/// A process, and its parent; none for a child of this process.
type Found = (Pid, Option<Pid>);

/// Ends all but `spared`, and what those have started. What is left cannot be ended, as one that has
/// become another user's.
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
    // Nothing stays stopped.
    let found = descendants(spared);
    kill(&found);
    found.into_iter().map(|(pid, _)| pid).filter(|pid| !is_ending(*pid)).collect()
}

/// What cannot be ended, in words.
pub fn words(left: &[Pid]) -> String {
    let named = left.iter().take(NAMED_MAX).map(|pid| pid.as_raw_nonzero().to_string());
    let named = named.collect::<Vec<_>>().join(", ");
    let more = match left.len().saturating_sub(NAMED_MAX) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("processes that ranks have started could not be ended: pids {named}{more}")
}

/// Children that have ended are no longer kept for this process to ask how, those that `is_to_go`.
pub fn reap(is_to_go: impl Fn(Pid) -> bool) {
    for pid in children().into_iter().filter(|pid| is_to_go(*pid)) {
        let _ = waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
    }
}

/// What this process is the parent of.
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

/// Children before their parents: those that have lost one may be told to go on. `false`: this
/// process may end none of them, as those that have become another user's.
fn kill(found: &[Found]) -> bool {
    let takes = |found: &&Found| signal(found, Signal::KILL) != Err(Errno::PERM);
    found.iter().rev().filter(takes).count() > 0
}

fn signal((pid, parent): &Found, signal: Signal) -> Result<()> {
    let Some(parent) = parent else { return kill_process(*pid, signal) };
    let process = pidfd_open(*pid, PidfdFlags::empty())?;
    match parent_of(*pid) == Some(*parent) {
        true => pidfd_send_signal(process, signal),
        // Its parent has ended, or it has itself: the next look tells.
        false => Ok(()),
    }
}

fn parent_of(pid: Pid) -> Option<Pid> {
    Pid::from_raw(word_of(pid, 1)?)
}

/// Whether it has ended but for what it gives back (`PF_EXITING`), or is gone.
fn is_ending(pid: Pid) -> bool {
    word_of(pid, 6).is_none_or(|flags: u32| flags & 4 != 0)
}

/// One of the words in its `stat` behind its name, which may hold anything: 0 is its state.
fn word_of<T: FromStr>(pid: Pid, number: usize) -> Option<T> {
    let stat = read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    stat.rsplit_once(") ")?.1.split(' ').nth(number)?.parse().ok()
}
