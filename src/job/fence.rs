//! The launcher's space, shared by all threads of a rank, and the fence at which they wait.
//!
//! ```text
//!   a thread                              another
//!   fence: has the fence's turn           fence: waits for that turn
//!     begin_fence                         put, get: take the space between two looks
//!     end_fence, again and again
//!     (seldom: which ranks are missing?)
//!   the fence has ended: gives it back    begins the next fence
//!   the time has passed: gives it back    goes on with the fence that is begun
//! ```
//! Each call that succeeds has had a fence to which all ranks came.
//!
//! Never: two calls take the end of one fence for theirs; the launcher or another thread makes a
//! call wait beyond its time limit.

use super::error::JobError;
use super::launcher::Launcher;
use super::space::JobSpace;
use super::turn::{ANSWER, Turn, Within};
use crate::os::{sys, thread};
use crate::protocol::{GrowError, Manager};
use core::time::Duration;
use std::vec::Vec;

/// The longest time between two turns of the manager during a wait for a fence.
const TURN: Duration = Duration::from_millis(1);
/// The pause in which other threads can take the space.
const OTHERS: Duration = Duration::from_micros(100);
/// A call asks for the missing ranks this long before its time limit, or at half of it if that is
/// less.
const LEAD: Duration = Duration::from_secs(1);
/// At one fence the next such question waits until the fence's age has doubled, or for `SELDOM_MAX`
/// if that is less: every rank may ask, and each answer names up to all of them.
const SELDOM_MIN: Duration = Duration::from_millis(10);
const SELDOM_MAX: Duration = Duration::from_secs(2);

/// The launcher's space, used by one thread at a time.
pub struct SharedSpace {
    launcher: Launcher,
    space: Turn<JobSpace>,
    fence: Turn<Fence>,
}

/// The current fence.
#[derive(Debug, Default)]
struct Fence {
    begun_ns: Option<u64>,
    /// The earliest time of the next question for missing ranks.
    asks_at_ns: u64,
}

impl Fence {
    /// Whether it is time to ask for the missing ranks; counts the question.
    fn asks(&mut self) -> bool {
        let now_ns = sys::monotonic_ns();
        if now_ns < self.asks_at_ns {
            return false;
        }
        let age = Duration::from_nanos(now_ns - self.begun_ns.unwrap_or(now_ns));
        self.asks_at_ns = now_ns + age.clamp(SELDOM_MIN, SELDOM_MAX).as_nanos() as u64;
        true
    }
}

impl SharedSpace {
    /// The space, without a fence begun.
    pub fn new(space: JobSpace) -> Self {
        Self { launcher: space.launcher(), space: Turn::new(space), fence: Turn::default() }
    }

    /// Puts bytes, which other ranks get after the next fence.
    pub fn put(&self, name: &str, value: &[u8]) -> Result<(), JobError> {
        self.space.lock().put(name, value)
    }

    /// The bytes that a rank has put.
    pub fn get(&self, rank: u32, name: &str, within: Within) -> Result<Vec<u8>, JobError> {
        match self.space.take(within) {
            Some(mut space) => space.get(rank, name, within.at_most(ANSWER)),
            // Another thread waits for its answer.
            None => Err(JobError::LauncherSilent {
                launcher: self.launcher,
                doing: "getting a value",
                limit_ms: within.limit_ms(),
            }),
        }
    }

    /// Waits for a fence of its own, or until `limit`; then, if the launcher has been asked for the
    /// missing ranks, up to `for_names` more for its answer.
    pub fn fence(
        &self,
        manager: Option<&Manager>,
        limit: Option<Duration>,
        for_names: Duration,
    ) -> Result<(), JobError> {
        let within = Within::new(limit);
        let missing = |ranks| JobError::Missing { ranks, limit_ms: within.limit_ms() };
        let Some(mut fence) = self.fence.take(within) else { return Err(missing(Vec::new())) };
        let ended = loop {
            match self.look(&mut fence, within, for_names) {
                Ok(FenceLook::Ended) => break Ok(()),
                Ok(FenceLook::Begun) => {}
                Ok(FenceLook::Missing(ranks)) => return Err(missing(ranks)),
                Err(e) => break Err(e),
            }
            if let Some(manager) = manager {
                manager.poll().map_err(GrowError::from)?;
            }
            // Without a pause, other threads would seldom get the space.
            thread::sleep(OTHERS);
        };
        *fence = Fence::default();
        ended
    }

    fn look(
        &self,
        fence: &mut Fence,
        within: Within,
        for_names: Duration,
    ) -> Result<FenceLook, JobError> {
        let is_last = within.is_over();
        let unknown = FenceLook::Missing(Vec::new());
        let Some(mut space) = self.space.take(within) else { return Ok(unknown) };
        match space.begin_fence(within.at_most(ANSWER)) {
            // Not even the question was sent.
            Err(JobError::LauncherSilent { .. }) if within.is_over() => return Ok(unknown),
            begun => begun?,
        }
        fence.begun_ns.get_or_insert_with(sys::monotonic_ns);
        if space.end_fence(within.left().min(TURN))? {
            return Ok(FenceLook::Ended);
        }
        let lead = within.limit().map_or(Duration::ZERO, |limit| LEAD.min(limit / 2));
        if within.limit().is_some() && within.left() <= lead && fence.asks() {
            space.ask_missing()?;
        }
        if !is_last {
            return Ok(FenceLook::Begun);
        }
        let named = Within::new(Some(for_names));
        while space.asks_missing() && !named.is_over() {
            if space.end_fence(named.left().min(TURN))? {
                return Ok(FenceLook::Ended);
            }
        }
        Ok(FenceLook::Missing(space.missing()?))
    }

    /// This rank no longer needs the launcher.
    pub fn finish(&self) {
        self.space.lock().finish();
    }
}

enum FenceLook {
    Ended,
    Begun,
    /// The time limit has passed; these ranks are missing, by the launcher's last answer.
    Missing(Vec<u32>),
}
