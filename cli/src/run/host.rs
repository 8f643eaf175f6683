//! One host of a job in `hamlyn run`: its agent's frames and state, and the process that started
//! the agent: the agent itself on this host, ssh or its replacement for another.

use super::frames::ToAgent;
use rustix::process::{Pid, Signal, kill_process_group};
use std::collections::BTreeSet;
use std::os::unix::process::ExitStatusExt;
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::Sender;
use std::time::Duration;

/// The time in which an agent of this host that is no longer heard has to end its ranks, before it
/// is killed.
const LEAVE: Duration = Duration::from_secs(1);
pub const PAUSE: Duration = Duration::from_millis(2);
/// Pauses to wait for the exit status of a starter program that has closed its output.
const STATUS_PAUSES: u32 = 100;

/// One host.
pub struct Host {
    pub name: String,
    pub is_here: bool,
    /// Frames for its agent. A thread writes them, because this thread and the agent would
    /// otherwise block if each waited for the other. Answers, one for each question of a rank,
    /// bound their number.
    pub input: Option<Sender<ToAgent>>,
    /// The program that starts its agent.
    pub program: String,
    pub child: Child,
    pub first: u32,
    pub count: u32,
    /// Its ranks that have ended.
    pub exited: BTreeSet<u32>,
    /// Pieces of standard output and of standard error that it has sent, with its credit not yet
    /// returned.
    pub unprinted: [u32; 2],
    /// Frames sent to its agent, and the number of them written.
    pub told: u64,
    pub written: Arc<AtomicU64>,
    /// Whether its frames are read.
    pub is_heard: Arc<AtomicBool>,
    pub has_answered: bool,
    /// The length of its silence.
    pub silent: Duration,
    /// The time since it is no longer heard; only for this host, where its remains can be ended.
    pub leaving: Option<Duration>,
    pub is_done: bool,
}

impl Host {
    /// Whether all its ranks have ended.
    pub fn has_ended(&self) -> bool {
        self.exited.len() >= self.count as usize
    }

    /// The reason for its silence, once its output is closed.
    pub fn not_started(&mut self) -> String {
        let program = &self.program;
        let mut status = None;
        for _ in 0..STATUS_PAUSES {
            status = self.child.try_wait().ok().flatten();
            if status.is_some() {
                break;
            }
            std::thread::sleep(PAUSE);
        }
        let how = match status.map(|status| (status.code(), status.signal())) {
            // The status that shells use; ssh passes it on.
            Some((Some(127), _)) => {
                "ended with status 127: hamlyn is not there, at the path that it has here; \
                 --hamlyn says where it is"
                    .into()
            }
            Some((Some(code), _)) => format!("ended with status {code}"),
            Some((_, Some(number))) => format!("was ended by signal {number}"),
            _ => "has closed its output".into(),
        };
        format!("its agent did not start: {program} {how}")
    }

    /// Sends it no more frames, and reads no more of its own.
    pub fn leave(&mut self) {
        drop(self.input.take());
        self.is_heard.store(false, Relaxed);
        if self.is_here {
            self.leaving.get_or_insert(Duration::ZERO);
        } else {
            end_child(&self.child);
            self.is_done = true;
        }
    }

    /// Call it in each `period` while the host is leaving.
    pub fn look(&mut self, period: Duration) {
        let leaving = self.leaving.insert(self.leaving.unwrap_or_default() + period);
        self.is_done = !matches!(self.child.try_wait(), Ok(None)) || *leaving >= 2 * LEAVE;
        if !self.is_done && *leaving >= LEAVE {
            end_child(&self.child);
        }
    }

    /// Whether it is done, or will be without another frame.
    pub fn is_left(&self) -> bool {
        self.is_done || self.leaving.is_some()
    }
}

/// Kills the child and all processes of its group, such as those of a script in place of ssh.
pub fn end_child(child: &Child) {
    let _ = kill_process_group(Pid::from_child(child), Signal::KILL);
}
