//! Looks: a thread checks its condition, and takes turns until a look has found it true.
//!
//! Never: the lock is held while yielding or sleeping; a look is left out after a turn in which
//! something may have changed.

use super::super::send::Advanced;
use super::super::wait::{Look, WaitError, backoff};
use super::super::{Node, NodeSendError, Unfinished};
use super::{Attached, NodeGuard, SharedNode, SharedState};
use crate::engine::wait::{Looks, WaitStep};
use crate::interface::LinkId;
use crate::link::MessageParts;
use crate::os::lock::LockGuard;
use crate::os::sys;
use crate::os::thread;
use crate::wire::Ticket;
use core::time::Duration;

/// How long a sender that waits for room sleeps beside a leader, which may take its signal.
const ROOM_SLEEP_MAX_NS: u64 = 1_000_000;

impl Node {
    /// [`look_to_send`](Self::look_to_send) of a message over `link`, which begins unless it has.
    pub(crate) fn look_to_send_over(
        &mut self,
        link: LinkId,
        ticket: &Ticket,
        begun: &mut Option<Unfinished>,
        data: &[u8],
        metadata: &[u8],
    ) -> Look<Result<(), NodeSendError>> {
        let unfinished = match begun {
            Some(unfinished) => unfinished,
            None => match self.prepare_send(link, ticket, data.len(), metadata.len(), 0) {
                Ok(unfinished) => begun.insert(unfinished),
                Err(e) => return Look::Found(Err(e)),
            },
        };
        self.look_to_send(unfinished, data, metadata)
    }

    /// One try to go on with a message, as a look of [`SharedNode::wait_until`].
    pub(crate) fn look_to_send(
        &mut self,
        unfinished: &mut Unfinished,
        data: impl MessageParts,
        metadata: &[u8],
    ) -> Look<Result<(), NodeSendError>> {
        match self.advance_send(unfinished, data, metadata) {
            Ok(Advanced::Sent) => Look::Found(Ok(())),
            Ok(Advanced::Part) => Look::Again,
            Ok(Advanced::Blocked) => Look::Room(unfinished.link),
            Err(e) => Look::Found(Err(e)),
        }
    }
}

impl<T: Attached> SharedNode<T> {
    /// Polls until `look` has a result, spinning, yielding and sleeping as the settings say, at
    /// most for `timeout`. `look` runs under the lock, before the first turn and after each turn in
    /// which something may have changed; it names the link on which it waits for room, if it does.
    /// The lock is held while spinning, which costs nothing in a turn, and given up between two
    /// turns when another thread wants it; never while yielding or sleeping.
    #[inline]
    pub(crate) fn wait_until<R>(
        &self,
        timeout: Option<Duration>,
        mut look: impl FnMut(&mut Node, &mut T) -> Look<R>,
    ) -> Result<R, WaitError> {
        self.inner.is_called();
        let mut guard = self.inner.lock_unless_forked().map_err(WaitError::Forked)?;
        let (node, attached) = guard.parts();
        // A program that only sends, and always has room, must learn of new and ended links, too.
        if node.is_told() {
            node.poll().map_err(WaitError::Forked)?;
            attached.after_poll(node);
        }
        let room = match look(node, attached) {
            Look::Found(result) => {
                attached.after_look(node);
                return Ok(result);
            }
            Look::Room(link) => Some(link),
            Look::Again | Look::Nothing => None,
        };
        self.wait_on(guard, timeout, room, look)
    }

    /// The first look found nothing.
    #[inline(never)]
    fn wait_on<'a, R>(
        &'a self,
        mut guard: NodeGuard<'a, T>,
        timeout: Option<Duration>,
        mut room: Option<LinkId>,
        mut look: impl FnMut(&mut Node, &mut T) -> Look<R>,
    ) -> Result<R, WaitError> {
        let mut backoff = backoff(guard.config(), timeout);
        let mut looks = Looks::default();
        loop {
            let (node, attached) = guard.parts();
            // After a look without a result, if there may be one now.
            if !looks.must() && room.is_none() && node.has_direct() {
                if let Look::Found(result) = look(node, attached) {
                    attached.after_look(node);
                    return Ok(result);
                }
                // It may have taken a packet that makes the next look succeed.
                looks.look_next();
            }
            let taken = match node.poll() {
                Ok(taken) => taken,
                Err(forked) => return Err(WaitError::Forked(forked)),
            };
            if taken > 0 {
                backoff.restart();
            }
            let came = taken > 0 || node.has_events() || room.is_some();
            let (look_now, decided) = looks.after_turn(came, || node.step(&mut backoff));
            if look_now {
                attached.after_poll(node);
                room = match look(node, attached) {
                    Look::Found(result) => {
                        attached.after_look(node);
                        return Ok(result);
                    }
                    Look::Again => {
                        backoff.restart();
                        looks.look_next();
                        if backoff.is_over(sys::monotonic_ns) {
                            let (node, attached) = guard.parts();
                            // A caller that goes on in a task need not wait.
                            node.wake();
                            attached.after_look(node);
                            return Err(WaitError::TimedOut);
                        }
                        guard = self.inner.give_way(guard);
                        continue;
                    }
                    Look::Nothing => None,
                    Look::Room(link) => Some(link),
                };
            }
            match decided.unwrap_or_else(|| guard.step(&mut backoff)) {
                WaitStep::Spin if !self.inner.is_wanted() => continue,
                WaitStep::Spin => guard = self.inner.give_way(guard),
                WaitStep::Yield => {
                    drop(guard);
                    thread::yield_now();
                    guard = self.lock();
                }
                WaitStep::Sleep { deadline_ns } => {
                    // A task may wait for an event that the look took from the control plane.
                    let (node, attached) = guard.parts();
                    attached.after_look(node);
                    let deadline_ns = match room {
                        None => deadline_ns,
                        Some(_) => deadline_ns.min(sys::monotonic_ns() + ROOM_SLEEP_MAX_NS),
                    };
                    guard = self
                        .inner
                        .sleep_in_call(guard, room, deadline_ns)
                        .map_err(WaitError::Os)?;
                }
                WaitStep::TimedOut => {
                    if let Some(link) = room {
                        guard.await_room(link);
                    }
                    let (node, attached) = guard.parts();
                    attached.after_look(node);
                    return Err(WaitError::TimedOut);
                }
            }
            // Another thread may have changed anything.
            looks.look_next();
        }
    }

    /// Acts at once, without the preparations for a wait: with the lock, if that is free, and if no
    /// other thread waits for the effect. `None`: `act` was not called, or returned that, and
    /// [`wait_until`](Self::wait_until) goes on.
    #[inline]
    pub(crate) fn at_once<R>(&self, act: impl FnOnce(&mut Node, &mut T) -> Option<R>) -> Option<R> {
        let mut state = self.inner.state.try_lock()?;
        let SharedState { node, attached, threads } = &mut *state;
        node.is_called();
        let others = threads.others() | attached.waiting();
        if others == 0 {
            return act(node, attached);
        }
        give_back(state);
        None
    }
}

/// A call of its own, because it is rare: the usual path needs no call to give the lock back.
#[cold]
#[inline(never)]
fn give_back<T>(state: LockGuard<'_, SharedState<T>>) {
    drop(state);
}
