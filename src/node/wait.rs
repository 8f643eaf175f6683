//! Waiting, performed: turns and looks until something is found, spinning, yielding and sleeping in
//! between as [`crate::engine::wait`] decides.
//!
//! A caller that has a node for itself waits by [`Node::wait_until`], for any condition; callers
//! that share one, by that of [`SharedNode`](super::shared::SharedNode).

use super::{Forked, Node, NodeReceiveError, NodeSendError, Unfinished};
use crate::config::{Config, WaitMode};
use crate::engine::wait::{self, Backoff, Manner, WaitStep};
use crate::interface::LinkId;
use crate::os::sys;
use crate::os::thread;
use core::time::Duration;
use std::io;
use std::sync::Arc;

/// The result of a look: of the closure that a wait calls until it has found something. It runs
/// under the node's lock, so it must not wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look<R> {
    /// The awaited result.
    Found(R),
    /// Something moved, and there may be more at once.
    Again,
    /// Nothing; wait for an arrival.
    Nothing,
    /// Nothing; wait for room on this link, or an arrival.
    Room(LinkId),
}

impl<R> Look<R> {
    /// The awaited result, if it was found.
    pub(crate) fn found(self) -> Option<R> {
        match self {
            Self::Found(result) => Some(result),
            _ => None,
        }
    }

    pub(crate) fn map<S>(self, f: impl FnOnce(R) -> S) -> Look<S> {
        match self {
            Self::Found(result) => Look::Found(f(result)),
            Self::Again => Look::Again,
            Self::Nothing => Look::Nothing,
            Self::Room(link) => Look::Room(link),
        }
    }
}

/// The reason why waiting ended without a result. Nothing was changed by it.
#[derive(Debug, thiserror::Error)]
#[cfg_attr(not(feature = "unstable-internals"), non_exhaustive)]
pub enum WaitError {
    /// The time limit has passed.
    #[error("nothing came within the time limit")]
    TimedOut,
    /// This process was forked from the one that made the node.
    #[error(transparent)]
    Forked(#[from] Forked),
    /// The system, or the runtime of the task, refused to wait.
    #[error("waiting failed: {0}")]
    Os(io::Error),
}

impl WaitError {
    pub(crate) fn into_send_error(self, unfinished: Option<Unfinished>) -> NodeSendError {
        match self {
            Self::TimedOut => {
                let begun = unfinished.filter(Unfinished::has_begun);
                NodeSendError::TimedOut { unfinished: begun.map(std::boxed::Box::new) }
            }
            Self::Forked(e) => e.into(),
            Self::Os(e) => NodeSendError::Wait(Arc::new(e)),
        }
    }
}

impl From<WaitError> for NodeReceiveError {
    fn from(waited: WaitError) -> Self {
        match waited {
            WaitError::TimedOut => Self::TimedOut,
            WaitError::Forked(e) => e.into(),
            WaitError::Os(e) => Self::Wait(Arc::new(e)),
        }
    }
}

/// The way to wait under the settings, for at most `timeout` (`None`: without limit).
pub(super) fn backoff(config: &Config, timeout: Option<Duration>) -> Backoff {
    let (spin_ns, yields) = (config.spin_ns, config.yield_count);
    let manner = match config.wait_mode {
        WaitMode::Polled => Manner::Polled { spin_ns },
        WaitMode::Adaptive => Manner::Adaptive { spin_ns, yields },
        WaitMode::Blocking => Manner::Blocking,
    };
    let whole_ns = |timeout: Duration| u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
    Backoff::new(manner, timeout.map_or(u64::MAX, whole_ns))
}

impl Node {
    /// Takes turns until `look` has a result, spinning, yielding and sleeping as the settings say,
    /// at most for `timeout`. `look` gets the number of packets that the turn before it took; it
    /// names the link on which it waits for room, if it does. `at_once` returns a result that needs
    /// no turn.
    #[inline]
    pub(super) fn wait_until<R>(
        &mut self,
        timeout: Option<Duration>,
        mut at_once: impl FnMut(&mut Self) -> Option<R>,
        mut look: impl FnMut(&mut Self, usize) -> Look<R>,
    ) -> Result<R, WaitError> {
        let mut backoff = backoff(&self.config, timeout);
        loop {
            if let Some(found) = at_once(self) {
                return Ok(found);
            }
            let taken = self.poll().map_err(WaitError::Forked)?;
            if taken > 0 {
                backoff.restart();
            }
            let room = match look(self, taken) {
                Look::Found(found) => return Ok(found),
                Look::Again => {
                    backoff.restart();
                    if backoff.is_over(sys::monotonic_ns) {
                        return Err(WaitError::TimedOut);
                    }
                    continue;
                }
                Look::Nothing => None,
                Look::Room(link) => Some(link),
            };
            match self.step(&mut backoff) {
                WaitStep::Spin => {}
                WaitStep::Yield => {
                    // A caller that never sleeps shows here that it waits.
                    if let Some(Ok(link)) = room.map(|id| self.link(id))
                        && let Some(figures) = &link.figures
                    {
                        figures.waits_for_room();
                    }
                    thread::yield_now();
                }
                WaitStep::Sleep { deadline_ns } => {
                    self.sleep(deadline_ns, room).map_err(WaitError::Os)?;
                }
                WaitStep::TimedOut => return Err(WaitError::TimedOut),
            }
        }
    }

    /// The next step of a waiting caller.
    #[inline]
    pub(super) fn step(&mut self, backoff: &mut Backoff) -> WaitStep {
        if backoff.spins_on(&self.sleeping.learnt) { WaitStep::Spin } else { self.decide(backoff) }
    }

    #[cold]
    fn decide(&mut self, backoff: &mut Backoff) -> WaitStep {
        let here = sys::processor();
        let links = &mut self.links;
        // This tells each peer, too, on which processor this thread runs.
        let peers = self.turns.all_active().iter().filter_map(|index| {
            match links.get_mut(*index as usize) {
                Some(Some(link)) if link.token.is_some() => Some(link.rx.peer_processor(here)),
                _ => None,
            }
        });
        let peer_may_run = wait::peer_may_run(here, peers);
        backoff.decide(sys::monotonic_ns(), peer_may_run, &mut self.sleeping.learnt)
    }
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use super::*;

    // Arrivals or repeated looks must not prolong a wait for ever: the engine's tests check after
    // how many turns the clock is read.
    #[test]
    fn a_time_limit_ends_a_wait_though_something_else_comes_in_each_turn_or_asks_for_another_look()
    {
        let dir = tempfile::tempdir().unwrap();
        for mode in [WaitMode::Polled, WaitMode::Adaptive, WaitMode::Blocking] {
            let config = Config::default().dir(dir.path()).wait_mode(mode);
            let config = config.shared_dir(dir.path().join("shared"));
            let mut node = Node::with_config(config).unwrap();
            let area = node.message_area(64).unwrap();
            let queue = node.notification_queue(64).unwrap();
            let slot = node.slot(crate::interface::SlotConfig::new(area, queue)).unwrap();
            let ticket = node.fast_ticket(slot).unwrap();
            for again in [false, true] {
                let (mut looks, mut taken) = (0, 0);
                let look = |node: &mut Node, in_turn: usize| {
                    (looks, taken) = (looks + 1, taken + in_turn);
                    assert!(looks < 1000, "{mode:?}: the time is not looked at");
                    while node.pop(queue).unwrap().is_some() {}
                    node.send_fast(&ticket, &[1], 0, None).unwrap();
                    if again { Look::<()>::Again } else { Look::Nothing }
                };
                let waited = node.wait_until(Some(Duration::ZERO), |_| None, look);
                assert!(matches!(waited, Err(WaitError::TimedOut)), "{waited:?}");
                assert!(mode == WaitMode::Blocking && !again || taken > 0, "nothing came");
            }
        }
    }
}
