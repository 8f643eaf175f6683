//! The state of a node: its peers, and the packets that go and come. Sending a message's pieces is in
//! `sending`, the calls and handlers in `node`.
//!
//! Never: a handler runs here; a peer that takes nothing delays what is for others.

use crate::flow::{self, Bits, LENGTH_BYTES, Receiving, Sending, Word};
use crate::joining::Joined;
use crate::node::Figures;
use crate::sending::{Out, Queued};
use crate::sink::Sink;
use crate::streams::{Incoming, Stacks};
use crate::{Config, Error};
use hamlyn::node::{CloseReason, Event, Node, PreparedTicket};
use hamlyn::{AreaId, Filter, LinkId, NodeSendError, QueueId, SlotId, Ticket};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// The longest sleep while credit is owed that has no room in a ring.
const NAP: Duration = Duration::from_millis(1);

/// So many calls that found nothing ask once for what the node has to tell.
const QUIET: u32 = 16;

/// Packets after one of a long message that are taken in short turns.
const FEW: u32 = 16;

/// Another node, or this one to itself.
pub(crate) struct Peer {
    pub(crate) link: LinkId,
    /// To the slot of first packets, and to that of the rest, which has the sink.
    pub(crate) to: Option<[PreparedTicket; 2]>,
    pub(crate) credit: Ticket,
    pub(crate) sending: Sending,
    pub(crate) packet_bytes: usize,
    pub(crate) packet_bytes_in: usize,
    pub(crate) streams_max: usize,
    pub(crate) receiving: Receiving,
    pub(crate) window: usize,
    pub(crate) slots: [SlotId; 2],
    pub(crate) filter: Filter,
    /// The messages to it that are open: bits by their numbers.
    pub(crate) streams: u64,
    /// The message that was begun and of which nothing has left.
    pub(crate) unstarted: Option<usize>,
    pub(crate) queue: VecDeque<Queued>,
    pub(crate) queued: usize,
    pub(crate) incoming: Vec<Option<Incoming>>,
    /// Packets that wait because replies to it do.
    pub(crate) backlog: VecDeque<Bits>,
    /// Why nothing can be sent to it any more.
    pub(crate) dead: Option<String>,
    /// Nothing more comes from it.
    pub(crate) is_closed: bool,
    pub(crate) owes: bool,
}

impl Peer {
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn new(
        link: LinkId,
        to: Option<[PreparedTicket; 2]>,
        credit: Ticket,
        window_there: u64,
        packet_bytes: usize,
        streams_max: usize,
        window: (usize, u64),
        slots: [SlotId; 2],
        filter: Filter,
    ) -> Self {
        Self {
            link,
            credit,
            sending: Sending::new(window_there),
            packet_bytes,
            packet_bytes_in: flow::packet_bytes_max(window.1),
            streams_max,
            receiving: Receiving::new(window.1),
            window: window.0,
            slots,
            filter,
            streams: 0,
            unstarted: None,
            queue: VecDeque::new(),
            queued: 0,
            incoming: (0..flow::STREAMS).map(|_| None).collect(),
            backlog: VecDeque::new(),
            // It has left already, and only its messages are to be taken.
            dead: to.is_none().then(|| "its link has ended".into()),
            is_closed: false,
            owes: false,
            to,
        }
    }
}

pub(crate) struct State {
    pub(crate) joined: Joined,
    pub(crate) node: Node,
    pub(crate) config: Config,
    /// The windows of all peers, and the counts of credit that they write.
    pub(crate) windows: AreaId,
    pub(crate) credits: AreaId,
    pub(crate) queue: QueueId,
    pub(crate) peers: Vec<Peer>,
    pub(crate) by_slot: FxHashMap<SlotId, u32>,
    /// The slot of the packet before, and its peer.
    pub(crate) latest: Option<(SlotId, u32)>,
    /// Packets in all backlogs.
    pub(crate) waiting: usize,
    /// Calls that found nothing since the node was asked for its events.
    pub(crate) quiet: u32,
    pub(crate) outs: Vec<Out>,
    pub(crate) free_outs: Vec<usize>,
    /// Suspended handlers, by peer and number.
    pub(crate) suspended: Vec<(u32, usize)>,
    /// So many packets are taken in short turns, so that a long message's handler has chosen its buffer
    /// before the packets behind the first are taken.
    pub(crate) few_a_turn: u32,
    pub(crate) stacks: Stacks,
    /// Bytes in all queues, and bytes that are kept for open messages of handlers.
    pub(crate) queued: usize,
    pub(crate) kept: usize,
    pub(crate) figures: Figures,
}

/// What became of a packet.
pub(crate) enum Pushed {
    Sent,
    NoCredit,
    NoRoom,
}

impl State {
    pub(crate) fn new(
        (joined, node, config): (Joined, Node, Config),
        (windows, credits): (AreaId, AreaId),
        queue: QueueId,
        peers: Vec<Peer>,
    ) -> Self {
        let slots = |(rank, peer): (usize, &Peer)| peer.slots.map(|slot| (slot, rank as u32));
        Self {
            by_slot: peers.iter().enumerate().flat_map(slots).collect(),
            stacks: Stacks::new(config.stack_bytes),
            joined,
            node,
            config,
            windows,
            credits,
            queue,
            peers,
            outs: Vec::new(),
            free_outs: Vec::new(),
            latest: None,
            waiting: 0,
            quiet: 0,
            suspended: Vec::new(),
            few_a_turn: 0,
            queued: 0,
            kept: 0,
            figures: Figures::default(),
        }
    }

    /// A peer broke the rules: its link ends, and what has come of it is thrown away.
    #[cold]
    pub(crate) fn expel(&mut self, rank: u32, why: String) {
        self.figures.refused += 1;
        let peer = &mut self.peers[rank as usize];
        self.waiting -= peer.backlog.drain(..).count();
        let _ = self.node.disconnect(peer.link);
        self.by_slot.retain(|_, of| *of != rank);
        self.latest = None;
        self.has_closed(rank, why);
    }

    /// Nothing more comes from a peer: its last packets have been taken, or are thrown away.
    pub(crate) fn has_closed(&mut self, rank: u32, why: String) {
        self.peers[rank as usize].is_closed = true;
        self.has_left(rank, why);
    }

    /// Nothing can be sent to a peer any more.
    pub(crate) fn has_left(&mut self, rank: u32, why: String) {
        let peer = &mut self.peers[rank as usize];
        if peer.dead.is_none() {
            peer.dead = Some(why);
            self.queued -= core::mem::take(&mut peer.queued);
            peer.queue.clear();
        }
    }

    pub(crate) fn take_events(&mut self) {
        while let Some(event) = self.joined.next_event(&mut self.node) {
            if let Event::Closed { link, reason, .. } = event
                && let Some(rank) = self.peers.iter().position(|peer| peer.link == link)
            {
                let why = match reason {
                    CloseReason::Closed => "its program has finished".into(),
                    reason => reason.to_string(),
                };
                self.has_closed(rank as u32, why);
            }
        }
    }

    #[inline]
    pub(crate) fn dead(&self, rank: u32) -> Result<(), Error> {
        match &self.peers[rank as usize].dead {
            None => Ok(()),
            Some(why) => Err(Error::Dead(rank, why.clone())),
        }
    }

    #[cold]
    pub(crate) fn read_credit(&mut self, rank: u32) -> Result<(), Error> {
        let of = rank as usize * 8;
        let told = self.node.area(self.credits).ok().and_then(|area| area.get(of..of + 8));
        let told = told.and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_le_bytes);
        if let Err(violation) = self.peers[rank as usize].sending.credit(told) {
            self.expel(rank, violation.to_string());
        }
        self.dead(rank)
    }

    /// Sends a packet, if it can be sent within `limit`.
    #[cold]
    pub(crate) fn push(
        &mut self,
        rank: u32,
        word: Word,
        data: &[u8],
        limit: Duration,
    ) -> Result<Pushed, Error> {
        self.dead(rank)?;
        let mut placed = self.peers[rank as usize].sending.place(data.len());
        if placed.is_none() {
            self.read_credit(rank)?;
            placed = self.peers[rank as usize].sending.place(data.len());
        }
        let Some((at, next)) = placed else { return Ok(Pushed::NoCredit) };
        let peer = &mut self.peers[rank as usize];
        let Some([first, rest]) = &peer.to else { return Ok(Pushed::NoRoom) };
        let to = if word.first { first } else { rest };
        match self.node.send_prepared_at(to, at, data, word.to_bits(), Some(limit)) {
            Ok(()) => {
                peer.sending.has_left(next);
                Ok(Pushed::Sent)
            }
            Err(NodeSendError::TimedOut { .. } | NodeSendError::Full) => Ok(Pushed::NoRoom),
            Err(NodeSendError::Unreachable(_) | NodeSendError::LinkEnded(_)) => {
                self.take_events();
                self.has_left(rank, "its link has ended".into());
                self.dead(rank).map(|()| Pushed::NoRoom)
            }
            Err(e) => Err(Error::Os(e.to_string())),
        }
    }

    /// Sends a packet if nothing is in its way. False: nothing was done.
    #[inline(always)]
    pub(crate) fn push_now(&mut self, rank: u32, word: Word, data: &[u8]) -> bool {
        let Some(peer) = self.peers.get_mut(rank as usize) else { return false };
        if let Some(to) = &peer.to
            && peer.dead.is_none()
            && peer.queue.is_empty()
            && let Some((at, next)) = peer.sending.place(data.len())
        {
            let to = &to[usize::from(!word.first)];
            let limit = Some(Duration::ZERO);
            if self.node.send_prepared_at(to, at, data, word.to_bits(), limit).is_ok() {
                peer.sending.has_left(next);
                return true;
            }
        }
        false
    }

    /// Sends a packet of the program: waits for credit and room, accepts what comes, and runs no handler.
    #[inline(always)]
    pub(crate) fn push_waiting(&mut self, rank: u32, word: Word, data: &[u8]) -> Result<(), Error> {
        match self.push_now(rank, word, data) {
            true => Ok(()),
            false => self.push_late(rank, word, data),
        }
    }

    #[cold]
    pub(crate) fn push_late(&mut self, rank: u32, word: Word, data: &[u8]) -> Result<(), Error> {
        let limit = self.config.time_limit;
        let began = Instant::now();
        loop {
            let left = limit.map(|limit| limit.saturating_sub(began.elapsed()));
            let long = left.unwrap_or(Duration::from_secs(1 << 30));
            self.give_out();
            let is_next = self.peers[rank as usize].queue.is_empty();
            let pushed = match is_next {
                true => self.push(rank, word, data, long)?,
                false => Pushed::NoCredit,
            };
            match pushed {
                Pushed::Sent => return Ok(()),
                _ if left.is_some_and(|left| left.is_zero()) => {
                    return Err(Error::Full(format!(
                        "no room at node {rank} within {} ms: its program extracts nothing{}",
                        limit.unwrap_or_default().as_millis(),
                        if is_next { "" } else { ", and what handlers here sent is before this" }
                    )));
                }
                Pushed::NoRoom => {}
                Pushed::NoCredit => _ = self.wait(left, !is_next)?,
            }
        }
    }

    /// Waits for an arrival or an event. `naps`: also for what tells nothing.
    pub(crate) fn wait(&mut self, limit: Option<Duration>, naps: bool) -> Result<bool, Error> {
        let naps = naps || self.peers.iter().any(|peer| peer.owes) || self.queued > 0;
        let limit = if naps { Some(limit.map_or(NAP, |limit| limit.min(NAP))) } else { limit };
        let has_come = match self.node.is_ready(self.queue) {
            Ok(false) => self.with_posts(|node, _| node.wait(limit)),
            _ => self.node.wait(limit),
        };
        let has_come = has_come.map_err(|e| Error::Os(e.to_string()))?;
        self.take_events();
        Ok(has_come)
    }

    /// Sends what handlers have sent, and credit that is owed, as far as there is room.
    pub(crate) fn give_out(&mut self) {
        for rank in 0..self.peers.len() {
            if self.peers[rank].owes {
                self.give_credit(rank as u32);
            }
            while let Some(queued) = self.peers[rank].queue.pop_front() {
                let sent = self.push(rank as u32, queued.word, &queued.data, Duration::ZERO);
                let peer = &mut self.peers[rank];
                // Where the peer has left, nothing is queued for it any more.
                let is_counted = peer.dead.is_none();
                if is_counted && !matches!(sent, Ok(Pushed::Sent)) {
                    peer.queue.push_front(queued);
                    break;
                }
                if is_counted {
                    peer.queued -= queued.bytes();
                    self.queued -= queued.bytes();
                }
            }
        }
    }

    #[cold]
    pub(crate) fn give_credit(&mut self, rank: u32) {
        let peer = &mut self.peers[rank as usize];
        let Some(count) = peer.receiving.owed().filter(|_| peer.dead.is_none()) else {
            peer.owes = false;
            return;
        };
        match self.node.try_send_fast_over(peer.link, &peer.credit, &count.to_le_bytes(), 0) {
            Ok(()) => {
                peer.owes = false;
                peer.receiving.has_told(count);
                self.figures.credits_sent += 1;
            }
            Err(NodeSendError::Full) => {}
            // It has left, which an event tells.
            Err(_) => peer.owes = false,
        }
    }

    /// The next packet whose handler may run: its peer, its word, and its place in the area.
    #[inline(always)]
    pub(crate) fn next_packet(&mut self) -> Option<(u32, Bits, usize)> {
        loop {
            let (rank, bits) = self.next()?;
            if let Some(at) = self.take_packet(rank, bits) {
                return Some((rank, bits, at));
            }
        }
    }

    #[inline(always)]
    pub(crate) fn next(&mut self) -> Option<(u32, Bits)> {
        if self.waiting > 0
            && let Some(next) = self.next_of_backlog()
        {
            return Some(next);
        }
        loop {
            let next = match self.few_a_turn {
                0 => self.node.try_recv(self.queue).ok().flatten(),
                _ => self.next_with_posts(),
            };
            let Some(next) = next else {
                self.is_quiet();
                // Before the news that a peer has left come its last packets.
                if self.quiet == 0 && self.node.is_ready(self.queue).is_ok_and(|is| is) {
                    continue;
                }
                return None;
            };
            let Some(rank) = self.rank_of(next.slot) else { continue };
            let bits = Bits(next.word);
            let peer = &mut self.peers[rank as usize];
            // Room for replies comes first: what a peer does not take delays its own messages alone.
            if peer.queued <= self.config.queue_bytes && peer.backlog.is_empty() {
                return Some((rank, bits));
            }
            self.set_back(rank, bits);
        }
    }

    #[inline(always)]
    pub(crate) fn rank_of(&mut self, slot: SlotId) -> Option<u32> {
        match self.latest {
            Some((latest, rank)) if latest == slot => Some(rank),
            _ => {
                let rank = *self.by_slot.get(&slot)?;
                self.latest = Some((slot, rank));
                Some(rank)
            }
        }
    }

    #[inline]
    pub(crate) fn is_quiet(&mut self) {
        self.quiet += 1;
        if self.quiet >= QUIET {
            self.quiet = 0;
            self.take_events();
        }
    }

    #[cold]
    pub(crate) fn set_back(&mut self, rank: u32, bits: Bits) {
        let peer = &mut self.peers[rank as usize];
        peer.backlog.push_back(bits);
        self.waiting += 1;
        if peer.backlog.len() as u64 > u64::from(self.config.credit_bytes) / flow::UNIT {
            self.expel(rank, "packets beyond the credit".into());
        }
    }

    /// Whether there is something to extract.
    pub(crate) fn has_next(&self) -> bool {
        let most = self.config.queue_bytes;
        let may = |peer: &Peer| peer.queued <= most && !peer.backlog.is_empty();
        self.node.is_ready(self.queue).is_ok_and(|is_ready| is_ready)
            || self.waiting > 0 && self.peers.iter().any(may)
    }

    #[cold]
    pub(crate) fn next_of_backlog(&mut self) -> Option<(u32, Bits)> {
        let most = self.config.queue_bytes;
        let mut peers = self.peers.iter_mut().enumerate().filter(|(_, peer)| peer.queued <= most);
        let next = peers.find_map(|(rank, peer)| Some((rank as u32, peer.backlog.pop_front()?)));
        self.waiting -= usize::from(next.is_some());
        next
    }

    /// In a short turn, which long messages need.
    pub(crate) fn next_with_posts(&mut self) -> Option<hamlyn::Notification> {
        if let Ok(Some(next)) = self.node.pop(self.queue) {
            return Some(next);
        }
        self.with_posts(|node, packets| node.poll_at_most(packets).is_ok());
        self.node.pop(self.queue).ok().flatten()
    }

    /// Takes turns with the buffers of suspended handlers as the place of what arrives. Nothing is queued,
    /// so what arrives next is what they wait for. The turns are given a number of packets that fill a
    /// buffer.
    pub(crate) fn with_posts<R>(&mut self, turns: impl FnOnce(&mut Node, usize) -> R) -> R {
        let mut packets = if self.suspended.is_empty() { 1 } else { usize::MAX };
        for &(rank, stream) in &self.suspended {
            let peer = &self.peers[rank as usize];
            let Some(incoming) = &peer.incoming[stream] else { continue };
            // A peer can send packets that nothing announces: their bytes are in the buffer already.
            let (to, bytes) = (incoming.reading.to.get(), incoming.reading.missing.get());
            let (to, bytes) = (to.wrapping_add(incoming.in_buffer), bytes - incoming.in_buffer);
            if !peer.backlog.is_empty() {
                continue;
            }
            packets = packets.min(bytes.div_ceil(peer.packet_bytes).max(1));
            if let Ok(Some(sink)) = self.node.installed_mut::<Sink>(peer.slots[1]) {
                // SAFETY: the rest of a buffer whose handler is suspended in `receive`, beyond the time at
                // which the post is retracted, below. `in_buffer` is at most `missing`: it grows by what
                // was posted, and `take_part` lowers both.
                unsafe { sink.post(stream, to, bytes) };
                peer.filter.set(0, true);
            }
        }
        let result = turns(&mut self.node, packets);
        for &(rank, stream) in &self.suspended {
            let peer = &mut self.peers[rank as usize];
            peer.filter.set(0, false);
            if let Ok(Some(sink)) = self.node.installed_mut::<Sink>(peer.slots[1])
                && let Some(incoming) = &mut peer.incoming[stream]
            {
                incoming.in_buffer += sink.retract(stream);
            }
        }
        result
    }

    /// The most packets that one call gives to handlers: what all peers have credit for.
    #[inline]
    pub(crate) fn packets_of_extract(&self) -> u64 {
        u64::from(self.config.credit_bytes) / flow::UNIT * self.peers.len() as u64
    }

    #[inline]
    pub(crate) fn give_credit_if_owed(&mut self, rank: u32) {
        if self.peers[rank as usize].owes {
            self.give_credit(rank);
        }
    }

    #[inline]
    pub(crate) fn give_out_if_any(&mut self) {
        if self.queued > 0 {
            self.give_out();
        }
    }

    /// Takes a packet out of its peer's window. Returns its place in the area.
    #[inline(always)]
    pub(crate) fn take_packet(&mut self, rank: u32, bits: Bits) -> Option<usize> {
        if !bits.is_whole() || !self.suspended.is_empty() {
            self.few_a_turn = FEW;
        } else if self.few_a_turn > 0 {
            self.few_a_turn -= 1;
        }
        let peer = &mut self.peers[rank as usize];
        if bits.length() > peer.packet_bytes_in + LENGTH_BYTES {
            self.expel_for_length(rank, bits);
            return None;
        }
        let at = peer.window + peer.receiving.take(bits.length()) as usize;
        peer.owes = peer.receiving.owed().is_some();
        Some(at)
    }

    #[cold]
    pub(crate) fn expel_for_length(&mut self, rank: u32, bits: Bits) {
        let most = self.peers[rank as usize].packet_bytes_in + LENGTH_BYTES;
        self.expel(rank, format!("a packet of {} bytes, of {most}", bits.length()));
    }

    /// A further packet of a message. Whether its handler is to be resumed.
    pub(crate) fn take_part(&mut self, rank: u32, word: Word, at: usize) -> bool {
        let peer = &mut self.peers[rank as usize];
        let Some(incoming) = &mut peer.incoming[word.stream] else {
            self.expel(rank, format!("a packet of no message: {word:?}"));
            return false;
        };
        let reading = &*incoming.reading;
        let direct = incoming.in_buffer.min(word.length);
        incoming.in_buffer -= direct;
        reading.has_come(direct);
        let (at, bytes) = (at + direct, word.length - direct);
        let copied = bytes.min(reading.missing.get());
        if copied > 0
            && let Some(from) =
                self.node.area(self.windows).ok().and_then(|area| area.get(at..at + copied))
        {
            // SAFETY: the buffer of a handler that is suspended in `receive`, of which `missing` bytes
            // have not come; it is no part of an area, which only the node can lend.
            unsafe { core::ptr::copy_nonoverlapping(from.as_ptr(), reading.to.get(), copied) };
            reading.has_come(copied);
        }
        self.figures.bytes_direct += direct as u64;
        self.figures.bytes_received += (direct + copied) as u64;
        reading.at.set(at + copied);
        reading.bytes.set(bytes - copied);
        reading.ended.set(word.last);
        incoming.thread.is_some() && (word.last || reading.missing.get() == 0)
    }
}
