//! A shared node in an event loop, on behalf of tasks: a turn at a time, and what to do next.
//!
//! Never: a thread is blocked here; that is what the event loop does, on the node's descriptor.

use super::super::Forked;
use super::super::wait::backoff;
use super::{Attached, SharedNode};
use crate::engine::wait::{Backoff, Step};
use crate::os::sys;

/// How long whoever polls for tasks has found nothing.
#[derive(Default)]
pub(crate) struct Patience(Option<Backoff>);

/// What [`SharedNode::turn_in_event_loop`] says is next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NextTurn {
    /// Another turn, at once.
    Soon,
    /// Tasks may have been woken, and run first.
    LetRun,
    /// Other threads run first.
    LetOthers,
    /// Nothing until the descriptor is readable.
    Sleep {
        /// By the monotonic clock.
        since_ns: u64,
    },
}

impl<T: Attached> SharedNode<T> {
    /// One step of whoever polls in an event loop on behalf of tasks: a turn, and what to do next.
    /// `sleeps` is asked, where nothing is left but to sleep, whether to; the node is armed then, and
    /// its descriptor becomes readable when anything comes.
    pub(crate) fn turn_in_event_loop(
        &self,
        patience: &mut Patience,
        is_idle: impl FnOnce(&T) -> bool,
        falls_asleep: impl FnOnce(),
    ) -> Result<NextTurn, Forked> {
        let mut guard = self.inner.lock_unless_forked()?;
        let backoff = patience.0.get_or_insert_with(|| backoff(guard.config(), None));
        let (node, attached) = guard.parts();
        let before = node.moved();
        node.poll()?;
        attached.after_poll(node);
        if node.moved() != before {
            backoff.restart();
            return Ok(NextTurn::LetRun);
        }
        let step = if is_idle(attached) { Step::TimedOut } else { node.step(backoff) };
        match step {
            Step::Spin => Ok(NextTurn::Soon),
            Step::Yield => Ok(NextTurn::LetOthers),
            Step::Sleep { .. } | Step::TimedOut => {
                if !node.prepare_to_wait()? {
                    // What was found is taken, and told, in the next turn.
                    return Ok(NextTurn::LetRun);
                }
                falls_asleep();
                Ok(NextTurn::Sleep { since_ns: sys::monotonic_ns() })
            }
        }
    }

    /// After a sleep that began at `since_ns` of the monotonic clock. `by_peer`: it was ended by what
    /// came, so that the next wait may learn from it.
    pub(crate) fn woken_in_event_loop(
        &self,
        patience: &mut Patience,
        by_peer: bool,
        since_ns: u64,
    ) {
        if let Some(backoff) = &mut patience.0 {
            backoff.restart();
        }
        if !by_peer {
            return;
        }
        let mut guard = self.inner.lock();
        let spin_ns = guard.config().spin_ns;
        guard.parts().0.learnt.slept(sys::monotonic_ns() - since_ns, spin_ns);
    }
}
