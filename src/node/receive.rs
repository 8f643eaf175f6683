//! Messages in: the turn over the links, and `h_recv`, `h_recv_block` of Hamlyn 3.2.
//!
//! A turn takes a bounded number of packets from each active link, refused ones included, looks at
//! a few idle links, then gives queued packets to links that have room. A link in which nothing
//! was found for a while becomes idle; the number of idle links looked at in a turn is chosen so
//! that all of them are seen within a bounded time, however long the application's turns are.

use super::wait::Backoff;
use super::{Forked, Node};
use crate::interface::{NotDeposited, Notification, QueueError, QueueId, Refusal};
use crate::os::sys;
use core::time::Duration;
use std::sync::Arc;

/// A notification that could not be had. Nothing was taken.
#[derive(Clone, Debug, thiserror::Error)]
pub enum RecvError {
    /// The time is over.
    #[error("no message arrived within the time limit")]
    TimedOut,
    /// No such queue, or its consuming end is elsewhere.
    #[error(transparent)]
    Queue(#[from] QueueError),
    /// The calling process is a forked child.
    #[error(transparent)]
    Forked(#[from] Forked),
    /// Sleeping failed.
    #[error("waiting for a message failed: {0}")]
    Wait(Arc<std::io::Error>),
}

/// Up to this many links, all are active: a look at each costs less than choosing.
const ALWAYS_ACTIVE: usize = 8;
/// Turns without a packet after which a link is idle.
const EMPTY_TURNS_MAX: u32 = 4096;
/// Every idle link is looked at within about this time.
const SWEEP_NS: u64 = 20_000;
/// Turns between two measurements of how long a turn takes.
const TURNS_PER_MEASUREMENT: u32 = 64;

/// Lines taken from one ring in a turn, about: 256 KiB. Counting packets alone would let one link
/// copy a whole bulk ring while the others wait.
const LINES_PER_TURN: u64 = 4096;
/// A turn with this many packets may be much longer than those before.
const BUSY_TURN: usize = 16;

/// How the idle links are swept.
#[derive(Debug, Default)]
pub(super) struct Sweep {
    next: usize,
    stride: usize,
    turns: u32,
    turns_measured: u32,
    measured_ns: u64,
}

impl Node {
    /// `h_recv`: the next notification of `queue`, if a message has arrived. Takes a
    /// [turn](Self::poll) if none waits.
    #[inline]
    pub fn try_recv(&mut self, queue: QueueId) -> Result<Option<Notification>, RecvError> {
        if let Some(notification) = self.interface.pop(queue)? {
            return Ok(Some(notification));
        }
        self.poll()?;
        Ok(self.interface.pop(queue)?)
    }

    /// The next notification of `queue` that is there already; takes no turn.
    #[inline]
    pub fn pop(&mut self, queue: QueueId) -> Result<Option<Notification>, QueueError> {
        self.interface.pop(queue)
    }

    /// Whether a notification waits in `queue`.
    #[inline]
    pub fn is_ready(&self, queue: QueueId) -> Result<bool, QueueError> {
        self.interface.is_ready(queue)
    }

    /// `h_recv_block`: waits for the next notification of `queue`, at most `timeout` (`None`: as
    /// long as it takes); spins, yields and sleeps as the settings say.
    #[inline]
    pub fn recv(
        &mut self,
        queue: QueueId,
        timeout: Option<Duration>,
    ) -> Result<Notification, RecvError> {
        if let Some(notification) = self.try_recv(queue)? {
            return Ok(notification);
        }
        let mut backoff = Backoff::new(&self.config, timeout);
        loop {
            if self.poll()? > 0 {
                backoff.restart();
            }
            if let Some(notification) = self.interface.pop(queue)? {
                return Ok(notification);
            }
            let waited = self.wait_for_arrival(&mut backoff);
            if !waited.map_err(|e| RecvError::Wait(Arc::new(e)))? {
                return Err(RecvError::TimedOut);
            }
        }
    }

    /// The next notification of any of several queues, in the order in which they are given;
    /// waits at most `timeout`.
    pub fn recv_any(
        &mut self,
        queues: &[QueueId],
        timeout: Option<Duration>,
    ) -> Result<(QueueId, Notification), RecvError> {
        let mut backoff = Backoff::new(&self.config, timeout);
        loop {
            if self.poll()? > 0 {
                backoff.restart();
            }
            for queue in queues {
                if let Some(notification) = self.interface.pop(*queue)? {
                    return Ok((*queue, notification));
                }
            }
            let waited = self.wait_for_arrival(&mut backoff);
            if !waited.map_err(|e| RecvError::Wait(Arc::new(e)))? {
                return Err(RecvError::TimedOut);
            }
        }
    }

    /// Waits until a packet or an event has arrived, at most `timeout`; says whether one has.
    pub fn wait(&mut self, timeout: Option<Duration>) -> Result<bool, RecvError> {
        let mut backoff = Backoff::new(&self.config, timeout);
        loop {
            if self.poll()? > 0 || !self.events.is_empty() {
                return Ok(true);
            }
            let waited = self.wait_for_arrival(&mut backoff);
            if !waited.map_err(|e| RecvError::Wait(Arc::new(e)))? {
                return Ok(false);
            }
        }
    }

    /// One turn: takes what has arrived from the links, a bounded number of packets from each,
    /// and gives queued packets to those that have room. Returns how many packets were taken,
    /// refused ones included.
    #[inline]
    pub fn poll(&mut self) -> Result<usize, Forked> {
        self.check_fork()?;
        if self.inbox.is_pending() {
            self.take_control_events();
        }
        if self.watched {
            self.interface.check_watchdog(sys::monotonic_ns());
        }
        let mut taken = 0;
        let mut i = 0;
        while let Some(&index) = self.active.get(i) {
            let found = self.take_from(index);
            taken += found;
            if found == 0 && self.active.len() + self.idle.len() > ALWAYS_ACTIVE {
                self.count_empty_turn(index, i);
            }
            i += 1;
        }
        if !self.idle.is_empty() {
            if taken >= BUSY_TURN {
                self.sweep.turns = 0;
            }
            taken += self.sweep_idle();
        }
        if self.runs_control {
            self.run_control_sometimes();
        }
        if self.queued > 0 {
            self.transmit_all_queued();
        }
        Ok(taken)
    }

    /// Takes up to a turn's packets from one link.
    #[inline(always)]
    pub(super) fn take_from(&mut self, index: u32) -> usize {
        let Some(Some(link)) = self.links.get_mut(index as usize) else { return 0 };
        let budget = self.config.packets_per_turn as usize;
        let mut taken = 0;
        let mut ended = None;
        let mut freed = false;
        let (id, rx) = (link.id, &mut link.rx);
        let mut lines_taken = 0;
        macro_rules! take {
            ($ring:expr) => {
                loop {
                    if taken >= budget || lines_taken >= LINES_PER_TURN {
                        break;
                    }
                    match $ring.peek() {
                        Ok(Some(packet)) => {
                            let result = self.interface.handle_packet(
                                id,
                                &packet.header,
                                packet.reserved,
                                &packet,
                            );
                            let lines = packet.lines();
                            taken += 1;
                            lines_taken += lines;
                            freed |= $ring.release(lines);
                            if let Err(NotDeposited::Refused(refusal)) = result {
                                ended = refused(
                                    &self.config,
                                    refusal,
                                    &mut link.wrong_keys,
                                    &mut link.refusals,
                                    &mut link.refusals_since_ns,
                                );
                                if ended.is_some() {
                                    break;
                                }
                            }
                        }
                        Ok(None) => {
                            freed |= $ring.publish();
                            break;
                        }
                        Err(violation) => {
                            ended = Some(Misbehaviour::Violation(violation));
                            break;
                        }
                    }
                }
            };
        }
        take!(rx.ring);
        if rx.bulk.is_some() && ended.is_none() {
            // A share of the budget of its own: a busy base ring does not starve the bulk ring.
            let in_base = taken;
            (taken, lines_taken) = (0, 0);
            if let Some(bulk) = &mut rx.bulk {
                take!(bulk);
            }
            taken += in_base;
        }
        if freed {
            rx.tell_of_room();
        }
        if taken > 0 {
            link.empty_turns = 0;
            link.rx.needs_arming = true;
        }
        if let Some(misbehaviour) = ended {
            self.end_misbehaving(index, misbehaviour);
        }
        taken
    }

    #[inline]
    fn count_empty_turn(&mut self, index: u32, position: usize) {
        let Some(Some(link)) = self.links.get_mut(index as usize) else { return };
        link.empty_turns += 1;
        if link.empty_turns >= EMPTY_TURNS_MAX {
            link.is_active = false;
            link.empty_turns = 0;
            self.active.swap_remove(position);
            self.idle.push(index);
        }
    }

    /// Makes an idle link active.
    pub(super) fn promote(&mut self, index: u32) {
        if let Some(Some(link)) = self.links.get_mut(index as usize)
            && !link.is_active
            && let Some(position) = self.idle.iter().position(|i| *i == index)
        {
            link.is_active = true;
            link.empty_turns = 0;
            self.idle.swap_remove(position);
            self.active.push(index);
        }
    }

    /// Looks at the next few idle links.
    #[inline]
    fn sweep_idle(&mut self) -> usize {
        let sweep = &mut self.sweep;
        if sweep.turns == 0 {
            let now = sys::monotonic_ns();
            let turns = sweep.turns_measured.max(1) as u64;
            let turn_ns = now.saturating_sub(sweep.measured_ns) / turns;
            sweep.measured_ns = now;
            (sweep.turns, sweep.turns_measured) = (TURNS_PER_MEASUREMENT, 0);
            let stride = (self.idle.len() as u64).saturating_mul(turn_ns).div_ceil(SWEEP_NS);
            sweep.stride = (stride as usize).clamp(1, self.idle.len());
        }
        sweep.turns -= 1;
        sweep.turns_measured += 1;
        let mut taken = 0;
        for _ in 0..self.sweep.stride {
            let sweep = &mut self.sweep;
            if sweep.next >= self.idle.len() {
                sweep.next = 0;
            }
            let Some(&index) = self.idle.get(sweep.next) else { break };
            sweep.next += 1;
            let Some(Some(link)) = self.links.get(index as usize) else { continue };
            if link.rx.is_ready() {
                self.promote(index);
                taken += self.take_from(index);
            }
        }
        taken
    }
}

/// Why a link is to end.
#[derive(Clone, Copy, Debug)]
pub(super) enum Misbehaviour {
    Guessing {
        wrong_keys: u32,
    },
    Noise {
        refusals: u32,
    },
    Violation(crate::link::ring::RingViolation),
    /// It used the id of a node that is another process.
    Identity,
    /// It sent a descriptor where none may come.
    Descriptor,
}

/// Counts a refusal against its link. A key has 2^64 values: after a few thousand wrong ones the
/// guesser is sent away, long before it can find one.
#[cold]
#[inline(never)]
fn refused(
    config: &crate::config::Config,
    refusal: Refusal,
    wrong_keys: &mut u32,
    refusals: &mut u32,
    since_ns: &mut u64,
) -> Option<Misbehaviour> {
    if refusal == Refusal::WrongKey {
        *wrong_keys = wrong_keys.saturating_add(1);
        if *wrong_keys >= config.wrong_keys_max {
            return Some(Misbehaviour::Guessing { wrong_keys: *wrong_keys });
        }
    }
    *refusals = refusals.saturating_add(1);
    if config.refusals_per_second_max != 0 && *refusals >= config.refusals_per_second_max {
        let now = sys::monotonic_ns();
        if now.saturating_sub(*since_ns) < 1_000_000_000 {
            return Some(Misbehaviour::Noise { refusals: *refusals });
        }
        *since_ns = now;
        *refusals = 0;
    }
    None
}
