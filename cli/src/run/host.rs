//! One host of a job, as `hamlyn run` sees it: what was said to its agent and by it, and the
//! process by which that was started, here itself, elsewhere what is in the place of ssh.

use super::frames::ToAgent;
use rustix::process::{Pid, Signal, kill_process_group};
use std::collections::BTreeSet;
use std::os::unix::process::ExitStatusExt;
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::Sender;
use std::time::Duration;

/// What an agent of this host that is heard no more has to end its ranks in, until it is killed.
const LEAVE: Duration = Duration::from_secs(1);
pub const PAUSE: Duration = Duration::from_millis(2);
/// Pauses for the end of what was to start an agent, which has closed its output.
const STATUS_PAUSES: u32 = 100;

/// One host.
pub struct Host {
    pub name: String,
    pub is_here: bool,
    /// Frames for its agent, which a thread writes: if this one waited for an agent, and that for this
    /// one, neither would go on. What waits are answers, one for each question of a rank.
    pub input: Option<Sender<ToAgent>>,
    /// What starts its agent.
    pub program: String,
    pub child: Child,
    pub first: u32,
    pub count: u32,
    /// Its ranks that have ended.
    pub exited: BTreeSet<u32>,
    /// Pieces of output, of standard output and of standard error, for which it has no credit back.
    pub unprinted: [u32; 2],
    /// Frames that its agent was told, and those of them that are written.
    pub told: u64,
    pub written: Arc<AtomicU64>,
    /// What it says is read.
    pub is_heard: Arc<AtomicBool>,
    pub has_answered: bool,
    /// How long nothing has come from it.
    pub silent: Duration,
    /// It is heard no more, for so long; of this host alone, where what it leaves can be ended.
    pub leaving: Option<Duration>,
    pub is_done: bool,
}

impl Host {
    /// Whether all its ranks have.
    pub fn has_ended(&self) -> bool {
        self.exited.len() >= self.count as usize
    }

    /// Why nothing has come from it, whose output is closed.
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
            // As shells have it, and ssh hands it on.
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

    /// It is told nothing more, and heard no more.
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

    /// To be called in each `period` in which it is leaving.
    pub fn look(&mut self, period: Duration) {
        let leaving = self.leaving.insert(self.leaving.unwrap_or_default() + period);
        self.is_done = !matches!(self.child.try_wait(), Ok(None)) || *leaving >= 2 * LEAVE;
        if !self.is_done && *leaving >= LEAVE {
            end_child(&self.child);
        }
    }

    /// It is done, or will be without another word.
    pub fn is_left(&self) -> bool {
        self.is_done || self.leaving.is_some()
    }
}

/// Also whatever a script has started in the place of ssh.
pub fn end_child(child: &Child) {
    let _ = kill_process_group(Pid::from_child(child), Signal::KILL);
}
