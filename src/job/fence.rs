//! The launcher's space as all threads of a rank share it, and the fence at which they wait.
//!
//! ```text
//!   a thread                              another
//!   fence: has the fence's turn           fence: waits for that turn
//!     begin_fence                         put, get: take the space between two looks
//!     end_fence, again and again
//!   the fence is over: gives it back      begins the next fence
//!   the time is over: gives it back       goes on with the one that is begun
//! ```
//! Each call that succeeds has had a fence to which all ranks came.
//!
//! Never: two calls take the end of one fence for theirs; a call waits beyond its time limit because
//! of another thread.

use super::space::{ANSWER, Space};
use super::turn::{Turn, Within};
use super::{JobError, Launcher};
use crate::os::thread;
use crate::protocol::{GrowError, Manager};
use core::time::Duration;
use std::vec::Vec;

/// While a fence is waited for the manager has a turn at least so often.
const TURN: Duration = Duration::from_millis(1);
/// For so long other threads can take the space then.
const OTHERS: Duration = Duration::from_micros(100);

/// The launcher's space, of one thread at a time.
pub struct SharedSpace {
    launcher: Launcher,
    space: Turn<Space>,
    /// Whose holder waits for a fence.
    fence: Turn<()>,
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

    /// Waits for a fence of its own, or until `limit`.
    pub fn fence(
        &self,
        manager: Option<&Manager>,
        limit: Option<Duration>,
    ) -> Result<(), JobError> {
        let within = Within::new(limit);
        let missing = |ranks| JobError::Missing { ranks, limit_ms: within.limit_ms() };
        let Some(_turn) = self.fence.take(within) else { return Err(missing(Vec::new())) };
        loop {
            match self.look(within)? {
                Look::Ended => return Ok(()),
                Look::Begun => {}
                Look::Missing(ranks) => return Err(missing(ranks)),
            }
            if let Some(manager) = manager {
                manager.poll().map_err(GrowError::from)?;
            }
            // Taken again at once, the space would seldom be somebody else's.
            thread::sleep(OTHERS);
        }
    }

    fn look(&self, within: Within) -> Result<Look, JobError> {
        let is_last = within.is_over();
        let unknown = Look::Missing(Vec::new());
        let Some(mut space) = self.space.take(within) else { return Ok(unknown) };
        match space.begin_fence(within.at_most(ANSWER)) {
            // It could not even be told.
            Err(JobError::LauncherSilent { .. }) if within.is_over() => return Ok(unknown),
            begun => begun?,
        }
        if space.end_fence(within.left().min(TURN))? {
            return Ok(Look::Ended);
        }
        if !is_last {
            return Ok(Look::Begun);
        }
        let ranks = space.missing()?;
        // The last one may have come just now.
        if space.end_fence(Duration::ZERO)? {
            return Ok(Look::Ended);
        }
        Ok(Look::Missing(ranks))
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
