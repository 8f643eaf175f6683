//! The launcher's space as all threads of a rank share it, and the fence at which they wait.
//!
//! ```text
//!   a thread                              another
//!   fence: has the fence's turn           fence: waits for that turn
//!     begin_fence                         put, get: take the space between two looks
//!     end_fence, again and again
//!     (seldom: who is missing?)
//!   the fence is over: gives it back      begins the next fence
//!   the time is over: gives it back       goes on with the one that is begun
//! ```
//! Each call that succeeds has had a fence to which all ranks came.
//!
//! Never: two calls take the end of one fence for theirs; a call waits beyond its time limit,
//! whatever the launcher or another thread does.

use super::space::{ANSWER, Space};
use super::turn::{Turn, Within};
use super::{JobError, Launcher};
use crate::os::{sys, thread};
use crate::protocol::{GrowError, Manager};
use core::time::Duration;
use std::vec::Vec;

/// While a fence is waited for the manager has a turn at least so often.
const TURN: Duration = Duration::from_millis(1);
/// For so long other threads can take the space then.
const OTHERS: Duration = Duration::from_micros(100);
/// So long before its time is over a call asks who is missing, or half of its time if that is less.
const LEAD: Duration = Duration::from_secs(1);
/// At one fence that is not asked again before its age has doubled, or `SELDOM_MAX` have passed if
/// that is less: every rank may ask, and each answer names up to all of them.
const SELDOM_MIN: Duration = Duration::from_millis(10);
const SELDOM_MAX: Duration = Duration::from_secs(2);

/// The launcher's space, of one thread at a time.
pub struct SharedSpace {
    launcher: Launcher,
    space: Turn<Space>,
    fence: Turn<Fence>,
}

/// The fence that is begun.
#[derive(Debug, Default)]
struct Fence {
    begun_ns: Option<u64>,
    /// Before that nobody asks who is missing.
    asks_at_ns: u64,
}

impl Fence {
    /// Whether it is time to ask who is missing; if so, it is asked.
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
    /// Of which no fence is begun.
    pub fn new(space: Space) -> Self {
        Self { launcher: space.launcher(), space: Turn::new(space), fence: Turn::default() }
    }

    /// Puts bytes, which others get after the next fence.
    pub fn put(&self, name: &str, value: &[u8]) -> Result<(), JobError> {
        self.space.lock().put(name, value)
    }

    /// What a rank has put.
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

    /// Waits for a fence of its own, or until `limit`; then, where the launcher has been asked who is
    /// missing, for its answer as long as `for_names` besides.
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
                Ok(Look::Ended) => break Ok(()),
                Ok(Look::Begun) => {}
                Ok(Look::Missing(ranks)) => return Err(missing(ranks)),
                Err(e) => break Err(e),
            }
            if let Some(manager) = manager {
                manager.poll().map_err(GrowError::from)?;
            }
            // Taken again at once, the space would seldom be somebody else's.
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
    ) -> Result<Look, JobError> {
        let is_last = within.is_over();
        let unknown = Look::Missing(Vec::new());
        let Some(mut space) = self.space.take(within) else { return Ok(unknown) };
        match space.begin_fence(within.at_most(ANSWER)) {
            // It could not even be told.
            Err(JobError::LauncherSilent { .. }) if within.is_over() => return Ok(unknown),
            begun => begun?,
        }
        fence.begun_ns.get_or_insert_with(sys::monotonic_ns);
        if space.end_fence(within.left().min(TURN))? {
            return Ok(Look::Ended);
        }
        let lead = within.limit().map_or(Duration::ZERO, |limit| LEAD.min(limit / 2));
        if within.limit().is_some() && within.left() <= lead && fence.asks() {
            space.ask_missing()?;
        }
        if !is_last {
            return Ok(Look::Begun);
        }
        let named = Within::new(Some(for_names));
        while space.asks_missing() && !named.is_over() {
            if space.end_fence(named.left().min(TURN))? {
                return Ok(Look::Ended);
            }
        }
        Ok(Look::Missing(space.missing()?))
    }

    /// This rank needs the launcher no more.
    pub fn finish(&self) {
        self.space.lock().finish();
    }
}

enum Look {
    Ended,
    Begun,
    /// The time is over; these are missing, as far as the launcher has said.
    Missing(Vec<u32>),
}
