//! A shared node in an event loop, on behalf of tasks: a turn at a time, and the next step.
//!
//! Never: a thread is blocked here; the event loop blocks on the node's descriptor instead.

use super::super::wait::{Look, backoff};
use super::super::{Forked, Node};
use super::{Attached, SharedNode};
use crate::engine::wait::{Backoff, WaitStep};
use crate::os::sys;

/// How long a task that polls for others has found nothing.
#[derive(Default)]
pub(crate) struct Patience(Option<Backoff>);

/// The next step, from [`SharedNode::turn_in_event_loop`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NextTurn {
    /// Another turn, at once.
    Soon,
    /// Tasks may have been woken, and run first.
    LetRun,
    /// Other threads run first.
    LetOthers,
    /// No step until the descriptor is readable.
    Sleep {
        /// By the monotonic clock.
        since_ns: u64,
    },
}

impl<T: Attached> SharedNode<T> {
    /// A turn, and a look, of a task that waits elsewhere; if the look names a link that has no
    /// room, or has found a part, the task is woken for the rest.
    pub(crate) fn look_after_turn<R>(
        &self,
        look: impl FnOnce(&mut Node, &mut T) -> Look<R>,
    ) -> Result<Option<R>, Forked> {
        let mut guard = self.inner.lock_unless_forked()?;
        let (node, attached) = guard.parts();
        node.poll()?;
        attached.after_poll(node);
        let found = look(node, attached);
        match found {
            Look::Room(link) => node.await_room(link),
            Look::Again => node.wake(),
            Look::Found(_) | Look::Nothing => {}
        }
        attached.after_look(node);
        Ok(found.found())
    }

    /// One step of the task that polls in an event loop for the other tasks: a turn, and its next
    /// step. `sleeps` decides whether to sleep, if no other step is left; the node is armed then,
    /// and its descriptor becomes readable at the next arrival.
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
        let step = if is_idle(attached) { WaitStep::TimedOut } else { node.step(backoff) };
        match step {
            WaitStep::Spin => Ok(NextTurn::Soon),
            WaitStep::Yield => Ok(NextTurn::LetOthers),
            WaitStep::Sleep { .. } | WaitStep::TimedOut => {
                if !node.prepare_to_wait()? {
                    // The arrivals found are taken, and their waiters woken, in the next turn.
                    return Ok(NextTurn::LetRun);
                }
                falls_asleep();
                Ok(NextTurn::Sleep { since_ns: sys::monotonic_ns() })
            }
        }
    }

    /// Call after a sleep that began at `since_ns` of the monotonic clock. `by_peer`: an arrival
    /// ended it, so that the next wait may learn from it.
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
        guard.parts().0.sleeping.learnt.slept(sys::monotonic_ns() - since_ns, spin_ns);
    }
}
