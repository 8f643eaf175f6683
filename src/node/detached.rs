//! A send terminus for a thread of its own: it has its own link, and takes no lock.

use super::link::SendHalf;
use super::wait::{Backoff, Learnt, Step};
use super::{ConnectError, Forked, Node, SendError, TerminusId, Unfinished};
use crate::config::Config;
use crate::interface::terminus::{PostError, Segmenter};
use crate::interface::{Counters, LinkId};
use crate::link::sleep::Ear;
use crate::os::memory::{ForkGuard, RegionWord};
use crate::os::sys;
use crate::wire::{NodeId, Ticket};
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::sync::Arc;

/// A terminus that one thread has to itself, with a link of its own to one node. What that node
/// sends back over this link arrives at the [`Node`] that made it. `Send`, and without a lock.
#[derive(Debug)]
pub struct DetachedTerminus {
    tx: SendHalf,
    link: LinkId,
    destination: NodeId,
    config: Config,
    counters: Arc<Counters>,
    fork_guard: ForkGuard,
    /// Set by the node when the link has ended.
    ended: Arc<AtomicBool>,
    turns: u32,
    /// The peer's bell.
    ear: Option<Ear<RegionWord>>,
    nap: Duration,
    learnt: Learnt,
}

impl Node {
    /// Connects to the service `[user@]name` once more, and hands the sending half out.
    pub fn detach_terminus(
        &mut self,
        name: &str,
        greeting: &[u8],
        timeout: Duration,
    ) -> Result<DetachedTerminus, ConnectError> {
        let fork_guard = ForkGuard::new().map_err(ConnectError::Watch)?;
        let link_id = self.connect(name, greeting, timeout)?;
        let (mut tx, ear, destination, ended) =
            self.take_send_half(link_id).ok_or(ConnectError::Vanished)?;
        let counters = Arc::<Counters>::default();
        tx.count_in(counters.clone());
        Ok(DetachedTerminus {
            tx,
            link: link_id,
            destination,
            config: self.config.clone(),
            counters,
            fork_guard,
            ended,
            turns: 0,
            ear,
            nap: NAP,
            learnt: Learnt::default(),
        })
    }
}

impl DetachedTerminus {
    /// The link at the node that made this terminus.
    pub fn link(&self) -> LinkId {
        self.link
    }

    /// The node at the other end.
    pub fn destination(&self) -> NodeId {
        self.destination
    }

    /// What this terminus has sent.
    pub fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    fn segmenter(
        &mut self,
        ticket: &Ticket,
        length: u64,
        metadata: usize,
    ) -> Result<Segmenter, SendError> {
        if !self.fork_guard.is_parent() {
            return Err(Forked.into());
        }
        if self.is_ended() {
            return Err(SendError::LinkEnded(self.destination));
        }
        if ticket.destination != self.destination {
            return Err(SendError::Unreachable(ticket.destination));
        }
        Ok(Segmenter::new(ticket, length, metadata, 0, self.tx.packet_bytes_min())?)
    }

    fn advance(
        &mut self,
        segmenter: &mut Segmenter,
        data: &[u8],
        metadata: &[u8],
    ) -> Result<bool, SendError> {
        let (packets, bytes) = (segmenter.packets(), segmenter.bytes());
        let done = segmenter.advance(&mut self.tx, data, metadata).is_ok();
        if segmenter.packets() > packets {
            self.counters.packets_sent.add(segmenter.packets() - packets);
            self.counters.bytes_sent.add(segmenter.bytes() - bytes);
            self.tx.signal_if_asleep(&if done {
                segmenter.flags()
            } else {
                crate::wire::Flags::empty()
            });
        }
        if done {
            self.counters.messages_sent.add(1);
        } else if self.tx.violation().is_some() {
            return Err(SendError::LinkEnded(self.destination));
        }
        Ok(done)
    }

    /// Sends a message of one packet if there is room now.
    #[inline]
    pub fn try_send(
        &mut self,
        ticket: &Ticket,
        data: &[u8],
        metadata: &[u8],
    ) -> Result<(), SendError> {
        let mut segmenter = self.segmenter(ticket, data.len() as u64, metadata.len())?;
        if data.len() + metadata.len() > self.tx.packet_bytes_min() as usize {
            let (length, at_once) = (data.len(), self.tx.packet_bytes_min() as u64);
            return Err(SendError::TooLongToTry { length, at_once });
        }
        if self.advance(&mut segmenter, data, metadata)? { Ok(()) } else { Err(SendError::Full) }
    }

    /// Sends a message of any length, waiting for room at most `timeout`. This thread accepts
    /// nothing meanwhile: another thread must poll the node if the peer may be sending to it.
    /// Where room does not come while spinning, this thread sleeps until the peer rings, or naps for
    /// up to a millisecond where it does not: the descriptor of the link is the node's. Long messages go through the base ring; only a node's own links
    /// have bulk rings.
    pub fn send(
        &mut self,
        ticket: &Ticket,
        data: &[u8],
        metadata: &[u8],
        timeout: Option<Duration>,
    ) -> Result<(), SendError> {
        let segmenter = self.segmenter(ticket, data.len() as u64, metadata.len())?;
        self.go_on(segmenter, data, metadata, timeout)
    }

    /// Goes on with a message that timed out, with the same data.
    pub fn send_rest(
        &mut self,
        unfinished: Unfinished,
        data: &[u8],
        timeout: Option<Duration>,
    ) -> Result<(), SendError> {
        if unfinished.link != self.link || unfinished.segmenter.length() != data.len() as u64 {
            let (length, capacity) = (data.len() as u64, unfinished.segmenter.length());
            return Err(PostError::TooLong { length, capacity }.into());
        }
        self.go_on(unfinished.segmenter, data, &[], timeout)
    }

    fn go_on(
        &mut self,
        mut segmenter: Segmenter,
        data: &[u8],
        metadata: &[u8],
        timeout: Option<Duration>,
    ) -> Result<(), SendError> {
        let mut backoff = Backoff::new(&self.config, timeout);
        self.nap = NAP;
        loop {
            let before = segmenter.packets();
            if self.advance(&mut segmenter, data, metadata)? {
                return Ok(());
            }
            if segmenter.packets() > before {
                backoff.restart();
                self.nap = NAP;
            }
            if self.is_ended() {
                return Err(SendError::LinkEnded(self.destination));
            }
            match self.step(&mut backoff) {
                Step::Spin => core::hint::spin_loop(),
                Step::Yield => std::thread::yield_now(),
                Step::Sleep { deadline_ns } => {
                    if self.peer_is_gone() {
                        return Err(SendError::LinkEnded(self.destination));
                    }
                    let began_ns = sys::monotonic_ns();
                    self.sleep(deadline_ns);
                    self.learnt.slept(sys::monotonic_ns() - began_ns, self.config.spin_ns);
                }
                Step::TimedOut => {
                    let (terminus, link) = (TerminusId(u32::MAX), self.link);
                    let any = segmenter.packets() > 0;
                    let unfinished =
                        any.then(|| std::boxed::Box::new(Unfinished { terminus, link, segmenter }));
                    return Err(SendError::TimedOut { unfinished });
                }
            }
        }
    }

    fn step(&mut self, backoff: &mut Backoff) -> Step {
        if backoff.spins_on(&self.learnt) {
            return Step::Spin;
        }
        backoff.decide(sys::monotonic_ns(), true, &mut self.learnt)
    }

    /// Sleeps until there may be room, or for a while: nobody wakes this thread when the link ends.
    fn sleep(&mut self, deadline_ns: u64) {
        if let Some(ear) = &mut self.ear {
            ear.has_rung();
            let can_be_woken = self.tx.arm_room();
            if self.tx.has_room() {
                return;
            }
            let most_ns = if can_be_woken { SLEEP_NS_MAX } else { NAP_NS_MAX };
            let until_ns = deadline_ns.min(sys::monotonic_ns() + most_ns);
            let words = [self.ear.as_ref().map(|ear| ear.expected())].into_iter().flatten();
            if sys::wait_for_words(words, &[], until_ns).is_ok() {
                return;
            }
        }
        std::thread::sleep(self.nap);
        self.nap = (self.nap * 2).min(Duration::from_nanos(NAP_NS_MAX));
    }

    /// Whether the link has ended, as far as the node has learned; now and then the socket is
    /// asked, too, since nobody may be polling the node.
    #[inline]
    fn is_ended(&mut self) -> bool {
        self.turns = self.turns.wrapping_add(1);
        self.ended.load(Ordering::Relaxed)
            || (self.turns.is_multiple_of(TURNS_PER_LOOK) && self.peer_is_gone())
    }

    /// Whether the other end of the link is gone.
    pub fn peer_is_gone(&self) -> bool {
        self.tx.waker.socket.as_ref().is_none_or(crate::os::socket::is_gone)
    }
}

/// The first nap where nobody rings.
const NAP: Duration = Duration::from_micros(20);
const NAP_NS_MAX: u64 = 1_000_000;
/// The longest sleep, after which the end of the link is looked for.
const SLEEP_NS_MAX: u64 = 10_000_000;

/// Sends, or turns of waiting, between two looks at the socket.
const TURNS_PER_LOOK: u32 = 1 << 14;
