//! Messages in: the turn over the links, and `h_recv`, `h_recv_block` of Hamlyn 3.2.
//!
//! A turn takes a bounded number of packets from each active link, including refused ones, and, if
//! there are many links, from all together; looks at a few idle links, then gives queued packets to
//! links that have room. A link becomes idle after a while without arrivals; the number of idle
//! links looked at in a turn is chosen so that all of them are seen within a bounded time, however
//! long the application's turns are.

use super::taking::Taking;
use super::wait::{Look, WaitError};
use super::{Forked, Node};
use crate::engine::queued::SendsQueued;
use crate::engine::sleep::FallsAsleep;
use crate::engine::turns::{LINES_PER_RING, Portion, TakesTurns, Turns};
use crate::interface::notification::Consumer;
use crate::interface::{Handed, LinkId, Notification, QueueError, QueueId};
use crate::os::sys;
use crate::wire::{MetadataIndex, SlotIndex};
use core::time::Duration;
use std::sync::Arc;

/// A [`Node`]'s receive failed. Nothing was taken. (For an end point:
/// [`ReceiveError`](crate::protocol::ReceiveError).)
#[derive(Clone, Debug, thiserror::Error)]
#[cfg_attr(not(feature = "unstable-internals"), non_exhaustive)]
pub enum NodeReceiveError {
    /// The time limit has passed.
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

/// Lines of the longest packet that is handed over past a turn: of the longest that is sent at once.
const DIRECT_LINES: u64 = 33;

impl Node {
    /// `h_recv`: the next notification of `queue`, if a message has arrived. Takes a
    /// [turn](Self::poll) if none waits.
    #[inline]
    pub fn try_recv(&mut self, queue: QueueId) -> Result<Option<Notification>, NodeReceiveError> {
        match self.take_direct(queue, None) {
            None => self.try_recv_fully(queue),
            Some(message) => Ok(Some(message.notification)),
        }
    }

    #[inline(never)]
    fn try_recv_fully(&mut self, queue: QueueId) -> Result<Option<Notification>, NodeReceiveError> {
        self.is_called();
        if let Some(notification) = self.interface.pop(queue)? {
            return Ok(Some(notification));
        }
        self.poll()?;
        Ok(self.interface.pop(queue)?)
    }

    /// The next notification of `queue` that is there already; takes no turn.
    #[inline]
    pub fn pop(&mut self, queue: QueueId) -> Result<Option<Notification>, QueueError> {
        self.is_called();
        self.interface.pop(queue)
    }

    /// Whether a notification waits in `queue`.
    #[inline]
    pub fn is_ready(&self, queue: QueueId) -> Result<bool, QueueError> {
        self.interface.is_ready(queue)
    }

    /// `h_recv_block`: waits for the next notification of `queue`, at most `timeout` (`None`:
    /// without limit); spins, yields and sleeps as the settings say.
    #[inline]
    pub fn recv(
        &mut self,
        queue: QueueId,
        timeout: Option<Duration>,
    ) -> Result<Notification, NodeReceiveError> {
        match self.take_direct(queue, None) {
            Some(message) => Ok(message.notification),
            None => self.wait_for_message(queue, timeout),
        }
    }

    #[inline(never)]
    fn wait_for_message(
        &mut self,
        queue: QueueId,
        timeout: Option<Duration>,
    ) -> Result<Notification, NodeReceiveError> {
        if let Some(notification) = self.try_recv_fully(queue)? {
            return Ok(notification);
        }
        let found = self.wait_until(
            timeout,
            |node| node.take_direct(queue, None).map(|message| Ok(message.notification)),
            |node, _| match node.interface.pop(queue) {
                Ok(Some(notification)) => Look::Found(Ok(notification)),
                Ok(None) => Look::Nothing,
                Err(e) => Look::Found(Err(e)),
            },
        );
        Ok(found??)
    }

    /// The next notification of any of several queues, in the given order of the queues; waits at
    /// most `timeout`.
    ///
    /// ```
    /// # let dir = std::env::temp_dir().join(format!("hamlyn-doc-any-{}", std::process::id()));
    /// use hamlyn::{MetadataIndex, Node, SlotConfig};
    /// # use std::time::Duration;
    ///
    /// # let limit = Some(Duration::from_secs(10));
    /// # let config = hamlyn::Config::from_env()?.dir(&dir);
    /// let mut node = Node::with_config(config)?;
    /// let area = node.message_area(4096)?;
    /// let (first, second) = (node.notification_queue(1)?, node.notification_queue(1)?);
    /// let slot = node.slot(SlotConfig::new(area, second))?;
    /// node.try_send(&node.ticket(slot, MetadataIndex(0))?, b"for the second", b"")?;
    /// let (queue, message) = node.recv_any(&[first, second], limit)?;
    /// assert!(queue == second && message.is_for(slot));
    /// // A notification that waits in a queue already, without a look at the links.
    /// assert!(!node.is_ready(first)?);
    /// assert_eq!(node.pop(first)?, None);
    /// # drop(node);
    /// # std::fs::remove_dir_all(&dir).ok();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn recv_any(
        &mut self,
        queues: &[QueueId],
        timeout: Option<Duration>,
    ) -> Result<(QueueId, Notification), NodeReceiveError> {
        let pop_any = |node: &mut Self, _| {
            for queue in queues {
                match node.interface.pop(*queue) {
                    Ok(Some(notification)) => return Look::Found(Ok((*queue, notification))),
                    Ok(None) => {}
                    Err(e) => return Look::Found(Err(e)),
                }
            }
            Look::Nothing
        };
        Ok(self.wait_until(timeout, |_| None, pop_any)??)
    }

    /// Waits until a packet or an event has arrived, at most `timeout`; returns whether one has.
    pub fn wait(&mut self, timeout: Option<Duration>) -> Result<bool, NodeReceiveError> {
        let look = |node: &mut Self, taken| match taken > 0 || !node.events.is_empty() {
            true => Look::Found(()),
            false => Look::Nothing,
        };
        match self.wait_until(timeout, |_| None, look) {
            Ok(()) => Ok(true),
            Err(WaitError::TimedOut) => Ok(false),
            Err(e) => Err(e.into()),
        }
    }

    /// One turn: takes arrivals from the links, a bounded number of packets from each, and from all
    /// together (the rest comes in the next turn: each link in its turn); and gives queued packets
    /// to links that have room. Returns how many packets were taken, including refused ones.
    #[inline]
    pub fn poll(&mut self) -> Result<usize, Forked> {
        self.check_fork()?;
        if self.turns.begin() || self.inbox.is_pending() {
            self.is_called();
            return Ok(self.long_turn());
        }
        Ok(self.look_at_active())
    }

    /// [`poll`](Self::poll) that takes at most `packets` from each ring of each link, and no more than the
    /// setting `packets_per_turn`. So a receiver that gives each message's bytes their place before the
    /// next message comes sees every packet.
    ///
    /// ```
    /// # let dir = std::env::temp_dir().join(format!("hamlyn-doc-at-most-{}", std::process::id()));
    /// use hamlyn::{MetadataIndex, Node, SlotConfig};
    ///
    /// # let config = hamlyn::Config::from_env()?.dir(&dir);
    /// let mut node = Node::with_config(config)?;
    /// # let (area, queue) = (node.message_area(4096)?, node.notification_queue(3)?);
    /// # let slot = node.slot(SlotConfig::new(area, queue).credit(3))?;
    /// let ticket = node.ticket(slot, MetadataIndex(0))?;
    /// for _ in 0..3 {
    ///     node.try_send(&ticket, b"one of three", b"")?;
    /// }
    /// assert_eq!(node.poll_at_most(1)?, 1);
    /// assert!(node.pop(queue)?.is_some() && node.pop(queue)?.is_none());
    /// # drop(node);
    /// # std::fs::remove_dir_all(&dir).ok();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn poll_at_most(&mut self, packets: usize) -> Result<usize, Forked> {
        let usual = self.packets_per_turn;
        self.packets_per_turn = usual.min(u32::try_from(packets).unwrap_or(u32::MAX));
        let taken = self.poll();
        self.packets_per_turn = usual;
        taken
    }

    /// [`poll`](Self::poll) of another caller than the application, for the application.
    /// `is_alive`: the application is in a call, or has made one since the last of these.
    pub(crate) fn poll_for_application(&mut self, is_alive: bool) -> Result<usize, Forked> {
        self.check_fork()?;
        // An application that waits in its event loop cannot act before it is woken.
        if is_alive || self.sleeping.waits_outside {
            self.is_called();
        }
        let taken = match self.turns.begin() || self.inbox.is_pending() {
            true => self.long_turn(),
            false => self.look_at_active(),
        };
        if taken > 0 {
            self.sleeping.waits_outside = false;
        }
        Ok(taken)
    }

    /// Whether a report of the control plane has not been handled yet.
    #[inline]
    pub(crate) fn is_told(&self) -> bool {
        self.inbox.is_pending() || !self.events.is_empty()
    }

    /// Whether a turn may show a new or a departed peer. For other hosts, only a turn does.
    pub(crate) fn may_be_told(&self) -> bool {
        if !self.hosts.is_empty() {
            return true;
        }
        self.is_told()
    }

    /// The application is alive, because it has made a receiving call.
    #[inline(always)]
    pub(super) fn is_called(&mut self) {
        if self.watched {
            self.reset_watchdog_now();
        }
    }

    /// The next message for `queue`, from the queue or [straight from a ring](Self::take_direct).
    /// `None`, too, in a forked child, whose copy of the queue is the parent's.
    #[inline]
    pub(crate) fn take_next(&mut self, queue: QueueId) -> Option<Notification> {
        match self.take_direct(queue, None) {
            Some(message) => Some(message.notification),
            None if self.fork_guard.is_parent() => self.interface.pop(queue).ok()?,
            None => None,
        }
    }

    /// The next message for `queue` when the caller has the consuming end: from the queue, or
    /// [straight from a ring](Self::take_direct).
    #[inline(always)]
    pub(crate) fn take_past(
        &mut self,
        queue: QueueId,
        consumer: &mut Consumer,
    ) -> Option<Notification> {
        match consumer.pop() {
            None => Some(self.take_direct(queue, Some(consumer))?.notification),
            notification => notification,
        }
    }

    /// Whether [`take_direct`](Self::take_direct) may find something.
    #[inline(always)]
    pub(crate) fn has_direct(&self) -> bool {
        let latest = self.links.get(self.turns.latest() as usize);
        matches!(latest, Some(Some(link)) if link.rx.is_ready()) && self.turns.may_hand_over()
    }

    /// Takes the next message for `queue` out of the ring from which the last one came, past the
    /// queue, if the queue is empty and no other work is due. `None`: nothing was done. `consumer`:
    /// the queue's consuming end, if that was handed out.
    #[inline(always)]
    pub(crate) fn take_direct(
        &mut self,
        queue: QueueId,
        consumer: Option<&Consumer>,
    ) -> Option<Handed> {
        if !self.fork_guard.is_parent_at_rest() || !self.turns.may_hand_over() {
            return None;
        }
        let link = self.links.get_mut(self.turns.latest() as usize)?.as_mut()?;
        let line = link.rx.ring.peek_line()?;
        // The same twice: the compiler makes shorter code of one line.
        let (flow, lines, taken) = match line.short::<true>() {
            Some(packet) => {
                let flow = link.flows.as_ref()?.get(packet.number)?;
                let varying = packet.varying();
                let taken = self.interface.take_again(flow, &varying, &packet, queue, consumer)?;
                (flow, 1, taken)
            }
            None => {
                let packet = line.short::<false>()?;
                // Longer ones only in a turn, which bounds the lines of a link.
                if packet.lines() > DIRECT_LINES {
                    return None;
                }
                let flow = link.flows.as_ref()?.get(packet.number)?;
                let varying = packet.varying();
                let taken = self.interface.take_again(flow, &varying, &packet, queue, consumer)?;
                (flow, packet.lines(), taken)
            }
        };
        self.turns.handed_over();
        link.rx.packets += 1;
        link.rx.has_taken();
        if link.rx.ring.release(lines) {
            link.rx.tell_of_room();
        }
        Some(taken.handed(flow, link.id))
    }

    /// A turn with all the work that not every turn does.
    #[cold]
    #[inline(never)]
    fn long_turn(&mut self) -> usize {
        let mut taken = self.drain_leaving();
        self.figures.turned();
        if self.inbox.is_pending() {
            self.take_control_events();
        }
        if self.watched {
            self.interface.check_watchdog(sys::monotonic_ns());
        }
        let now_ns = if self.has_idle() { sys::monotonic_ns() } else { 0 };
        if self.turns.signals_are_due(now_ns) {
            self.look_for_signals();
        }
        let hosts_are_busy = !self.hosts.is_empty() && self.look_at_hosts();
        taken += self.look_at_active();
        let mut i = 0;
        while let Some(index) = self.turns.active(i) {
            if let Some(Some(link)) = self.links.get_mut(index as usize) {
                link.rx.count_awake_turn();
                link.publish(self.queued.of(index));
            }
            i += 1;
        }
        if self.has_idle() {
            taken += self.sweep(now_ns);
            self.arm_idle(now_ns);
            self.publish_quiet();
        }
        if self.runs_control {
            self.run_control_sometimes();
        }
        if self.queued.total() > 0 {
            self.transmit_all_queued();
        }
        let is_busy = hosts_are_busy
            || self.watched
            || self.queued.total() > 0
            || !self.leaving.links.is_empty();
        // Only long turns look at other hosts.
        let has_hosts = !self.hosts.is_empty();
        let is_alone = !self.has_bulk_incoming && !self.runs_control && !has_hosts;
        self.turns.end_long_turn(is_busy, is_alone);
        taken
    }

    /// Takes packets from a link: at most `budget`, and `lines_max` lines, from each of its rings.
    /// Returns the amount.
    #[inline(always)]
    fn take_packets(&mut self, index: u32, budget: usize, lines_max: u64) -> Portion {
        let mut taken = 0;
        let Some(Some(link)) = self.links.get_mut(index as usize) else {
            return Portion::default();
        };
        let mut freed = false;
        let mut ended = None;
        let mut lines_taken = 0;
        while taken < budget && lines_taken < lines_max {
            let Some(line) = link.rx.ring.peek_line() else {
                freed |= link.rx.ring.publish();
                break;
            };
            if let Some(packet) = line.short::<false>()
                && let Some(flow) = link.flows.as_ref().and_then(|flows| flows.get(packet.number))
                && self.interface.handle_again(flow, link.id, &packet.varying(), &packet)
            {
                let lines = packet.lines();
                taken += 1;
                lines_taken += lines;
                freed |= link.rx.ring.release(lines);
                continue;
            }
            let taking = Taking {
                interface: &mut self.interface,
                config: &self.config,
                stale: &mut self.stale,
            };
            let step = taking.packet(link, false);
            taken += usize::from(step.lines > 0);
            lines_taken += step.lines;
            freed |= step.freed;
            // Without a line, the writer has taken the packet back.
            if step.ended.is_some() || step.lines == 0 {
                ended = step.ended;
                break;
            }
        }
        if link.rx.bulk.is_some() && ended.is_none() {
            let taking = Taking {
                interface: &mut self.interface,
                config: &self.config,
                stale: &mut self.stale,
            };
            let (in_bulk, step) = taking.bulk(link, budget, lines_max);
            taken += in_bulk;
            lines_taken += step.lines;
            freed |= step.freed;
            ended = step.ended;
        }
        if taken > 0 {
            link.rx.packets += taken as u64;
            link.rx.has_taken();
        }
        if freed {
            link.rx.tell_of_room();
        }
        if ended.is_some() || !self.stale.is_empty() {
            self.judge(index, ended);
        }
        Portion { packets: taken, lines: lines_taken }
    }

    /// Tells of changed keys, and sends a peer away that broke the rules.
    #[cold]
    #[inline(never)]
    fn judge(&mut self, index: u32, ended: Option<Misbehaviour>) {
        for (link, slot, index) in core::mem::take(&mut self.stale) {
            self.tell_stale(link, slot, index);
        }
        if let Some(misbehaviour) = ended {
            self.end_misbehaving(index, misbehaviour);
        }
    }

    /// A peer sent with a key that has been changed; called once for each such key and link: the
    /// peer is told that its ticket is worthless.
    fn tell_stale(&mut self, link: LinkId, slot: SlotIndex, index: MetadataIndex) {
        if let Ok(link) = self.link(link)
            && let Some(token) = link.token
        {
            self.control().tell_stale(token, slot.0, index.0);
        }
    }
}

impl TakesTurns for Node {
    #[inline(always)]
    fn turns(&self) -> &Turns {
        &self.turns
    }

    #[inline(always)]
    fn turns_mut(&mut self) -> &mut Turns {
        &mut self.turns
    }

    #[inline(always)]
    fn take_from(&mut self, link: u32) -> usize {
        let budget = self.packets_per_turn as usize;
        self.take_packets(link, budget, LINES_PER_RING).packets
    }

    #[inline(never)]
    fn take_portion(&mut self, link: u32, most: Portion) -> Portion {
        let packets = most.packets.min(self.packets_per_turn as usize);
        self.take_packets(link, packets, most.lines.min(LINES_PER_RING))
    }

    fn is_ready(&self, link: u32) -> bool {
        matches!(self.links.get(link as usize), Some(Some(link)) if link.rx.is_ready())
    }

    fn lines_taken(&self, link: u32) -> u64 {
        match self.links.get(link as usize) {
            Some(Some(link)) => link.rx.lines_taken(),
            _ => 0,
        }
    }
}

/// The reason to end a link.
#[derive(Clone, Copy, Debug)]
pub(super) enum Misbehaviour {
    Guessing {
        wrong_keys: u32,
    },
    Noise {
        refusals: u32,
    },
    Violation(crate::link::ring::RingViolation),
    /// It sent a descriptor, which this socket does not allow.
    Descriptor,
}
