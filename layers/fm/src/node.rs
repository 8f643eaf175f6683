//! A node of Fast Messages: sending, extracting and waiting.
//!
//! ```text
//!   begin, piece, end  -> packets of one window, over one link, in order      (emit)
//!   extract            -> the next packet of any peer                         (State::next)
//!                      -> its message's handler, begun or resumed             (hand)
//!                      -> credit for the peer; what handlers have sent        (give_out)
//! ```
//! Handlers run in `extract` alone, never in a turn of Hamlyn's node.
//!
//! Never: a send outside of a handler runs one; a send in a handler waits; a peer that takes nothing
//! delays what is for others.

use crate::flow::{self, Bits, LENGTH_BYTES, Receiving, Sending, Word};
use crate::joining::Joined;
use crate::sink::Sink;
use crate::streams::{self, Handler, Incoming, Reading, Stacks, Stream, Verdict};
use crate::{Config, Error, REPLY_BYTES};
use hamlyn::node::{CloseReason, Event, Node, PreparedTicket};
use hamlyn::{AreaId, Filter, LinkId, NodeSendError, QueueId, SlotId, Ticket};
use rustc_hash::FxHashMap;
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::VecDeque;
use std::ops::Deref;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// The longest sleep while credit is owed that has no room in a ring.
const NAP: Duration = Duration::from_millis(1);

/// So many calls that found nothing ask once for what the node has to tell.
const QUIET: u32 = 16;

/// Packets after one of a long message that are taken in short turns.
const FEW: u32 = 16;

/// What a node has done since it joined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Figures {
    /// Messages that were begun here.
    pub messages_sent: u64,
    /// Messages whose handler has returned.
    pub messages_handled: u64,
    /// Bytes that handlers have received.
    pub bytes_received: u64,
    /// Of these, bytes that went from the link straight to the handler's buffer: one copy, not two.
    pub bytes_direct: u64,
    /// Bytes that their handler has not received.
    pub bytes_discarded: u64,
    /// Packets against the rules, each of which ended its link; and messages without a handler.
    pub refused: u64,
    /// Handlers that needed a stack of their own.
    pub stacks: u64,
    /// Packets that gave credit back.
    pub credits_sent: u64,
}

/// A message that is being sent.
#[derive(Default)]
struct Out {
    to: u32,
    handler: usize,
    /// Bytes that may still follow, of those that were said.
    left: u64,
    /// Behind the length that was said: bytes that have not left.
    stage: Vec<u8>,
    /// Its number among those that are open, once its first packet has left and others follow.
    stream: Option<usize>,
    has_started: bool,
    has_ended: bool,
    /// Bytes of the queue that are kept for it, if a handler sends it.
    kept: usize,
    of_handler: bool,
}

/// A packet that a handler has sent and that waits for room.
struct Queued {
    word: Word,
    data: Box<[u8]>,
}

pub(crate) struct Peer {
    pub link: LinkId,
    /// To the slot of first packets, and to that of the rest, which has the sink.
    pub to: Option<[PreparedTicket; 2]>,
    pub credit: Ticket,
    pub sending: Sending,
    pub packet_bytes: usize,
    pub packet_bytes_in: usize,
    pub streams_max: usize,
    pub receiving: Receiving,
    pub window: usize,
    pub slots: [SlotId; 2],
    pub filter: Filter,
    /// The messages to it that are open: bits by their numbers.
    streams: u64,
    /// The message that was begun and of which nothing has left.
    unstarted: Option<usize>,
    queue: VecDeque<Queued>,
    queued: usize,
    incoming: Vec<Option<Incoming>>,
    /// Packets that wait because replies to it do.
    backlog: VecDeque<Bits>,
    /// Why nothing can be sent to it any more.
    dead: Option<String>,
    /// Nothing more comes from it.
    is_closed: bool,
    owes: bool,
}

impl Peer {
    #[allow(clippy::too_many_arguments)]
    pub fn new(
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
            dead: None,
            is_closed: false,
            owes: false,
            to,
        }
    }
}

pub(crate) struct State {
    pub joined: Joined,
    pub node: Node,
    pub config: Config,
    /// The windows of all peers, and the counts of credit that they write.
    pub windows: AreaId,
    pub credits: AreaId,
    pub queue: QueueId,
    pub peers: Vec<Peer>,
    pub by_slot: FxHashMap<SlotId, u32>,
    /// The slot of the packet before, and its peer.
    latest: Option<(SlotId, u32)>,
    /// Packets in all backlogs.
    waiting: usize,
    /// Calls that found nothing since the node was asked for its events.
    quiet: u32,
    outs: Vec<Out>,
    free_outs: Vec<usize>,
    /// Suspended handlers, by peer and number.
    suspended: Vec<(u32, usize)>,
    /// So many packets are taken in short turns, so that a long message's handler has chosen its buffer
    /// before the packets behind the first are taken.
    few_a_turn: u32,
    stacks: Stacks,
    /// Bytes in all queues, and bytes that are kept for open messages of handlers.
    queued: usize,
    kept: usize,
    figures: Figures,
}

/// What became of a packet.
enum Pushed {
    Sent,
    NoCredit,
    NoRoom,
}

impl State {
    pub fn new(
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

    /// A peer broke the rules: its link ends.
    #[cold]
    fn expel(&mut self, rank: u32, why: String) {
        self.figures.refused += 1;
        let _ = self.node.disconnect(self.peers[rank as usize].link);
        self.has_closed(rank, why);
    }

    /// Nothing more comes from a peer: its last packets have been taken, or are thrown away.
    pub fn has_closed(&mut self, rank: u32, why: String) {
        self.peers[rank as usize].is_closed = true;
        self.has_left(rank, why);
    }

    /// Nothing can be sent to a peer any more.
    fn has_left(&mut self, rank: u32, why: String) {
        let peer = &mut self.peers[rank as usize];
        if peer.dead.is_none() {
            peer.dead = Some(why);
            self.queued -= peer.queue.drain(..).map(|queued| queued.data.len()).sum::<usize>();
            peer.queued = 0;
        }
    }

    fn take_events(&mut self) {
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
    fn dead(&self, rank: u32) -> Result<(), Error> {
        match &self.peers[rank as usize].dead {
            None => Ok(()),
            Some(why) => Err(Error::Dead(rank, why.clone())),
        }
    }

    #[cold]
    fn read_credit(&mut self, rank: u32) -> Result<(), Error> {
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
    fn push(
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
    fn push_now(&mut self, rank: u32, word: Word, data: &[u8]) -> bool {
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
    fn push_waiting(&mut self, rank: u32, word: Word, data: &[u8]) -> Result<(), Error> {
        match self.push_now(rank, word, data) {
            true => Ok(()),
            false => self.push_late(rank, word, data),
        }
    }

    #[cold]
    fn push_late(&mut self, rank: u32, word: Word, data: &[u8]) -> Result<(), Error> {
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
    fn wait(&mut self, limit: Option<Duration>, naps: bool) -> Result<bool, Error> {
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
    fn give_out(&mut self) {
        for rank in 0..self.peers.len() {
            if self.peers[rank].owes {
                self.give_credit(rank as u32);
            }
            while let Some(Queued { word, data }) = self.peers[rank].queue.pop_front() {
                match self.push(rank as u32, word, &data, Duration::ZERO) {
                    Ok(Pushed::Sent) => {
                        self.queued -= data.len();
                        self.peers[rank].queued -= data.len();
                    }
                    Ok(_) => {
                        self.peers[rank].queue.push_front(Queued { word, data });
                        break;
                    }
                    // The peer has left, and its queue with it; this one was not in it any more.
                    Err(_) => {
                        self.queued -= data.len();
                        let peer = &mut self.peers[rank];
                        peer.queued = peer.queued.saturating_sub(data.len());
                    }
                }
            }
        }
    }

    #[cold]
    fn give_credit(&mut self, rank: u32) {
        let peer = &mut self.peers[rank as usize];
        let Some(count) = peer.receiving.owed().filter(|_| peer.dead.is_none()) else {
            peer.owes = false;
            return;
        };
        let sent = self.node.try_send_fast_over(peer.link, &peer.credit, &count.to_le_bytes(), 0);
        peer.owes = sent.is_err();
        if !peer.owes {
            peer.receiving.has_told(count);
            self.figures.credits_sent += 1;
        }
    }

    /// The next packet whose handler may run: its peer, its word, and its place in the area.
    #[inline(always)]
    fn next_packet(&mut self) -> Option<(u32, Bits, usize)> {
        loop {
            let (rank, bits) = self.next()?;
            if let Some(at) = self.take_packet(rank, bits) {
                return Some((rank, bits, at));
            }
        }
    }

    #[inline(always)]
    fn next(&mut self) -> Option<(u32, Bits)> {
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
    fn rank_of(&mut self, slot: SlotId) -> Option<u32> {
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
    fn is_quiet(&mut self) {
        self.quiet += 1;
        if self.quiet >= QUIET {
            self.quiet = 0;
            self.take_events();
        }
    }

    #[cold]
    fn set_back(&mut self, rank: u32, bits: Bits) {
        let peer = &mut self.peers[rank as usize];
        peer.backlog.push_back(bits);
        self.waiting += 1;
        if peer.backlog.len() as u64 > u64::from(self.config.credit_bytes) / flow::UNIT {
            self.waiting -= peer.backlog.len();
            peer.backlog.clear();
            self.expel(rank, "packets beyond the credit".into());
        }
    }

    #[cold]
    fn next_of_backlog(&mut self) -> Option<(u32, Bits)> {
        let most = self.config.queue_bytes;
        let mut peers = self.peers.iter_mut().enumerate().filter(|(_, peer)| peer.queued <= most);
        let next = peers.find_map(|(rank, peer)| Some((rank as u32, peer.backlog.pop_front()?)));
        self.waiting -= usize::from(next.is_some());
        next
    }

    /// In a short turn, which long messages need.
    fn next_with_posts(&mut self) -> Option<hamlyn::Notification> {
        if let Ok(Some(next)) = self.node.pop(self.queue) {
            return Some(next);
        }
        self.with_posts(|node, packets| node.poll_at_most(packets).is_ok());
        self.node.pop(self.queue).ok().flatten()
    }

    /// Takes turns with the buffers of suspended handlers as the place of what arrives. Nothing is queued,
    /// so what arrives next is what they wait for. The turns are given a number of packets that fill a
    /// buffer.
    fn with_posts<R>(&mut self, turns: impl FnOnce(&mut Node, usize) -> R) -> R {
        let mut packets = if self.suspended.is_empty() { 1 } else { usize::MAX };
        for &(rank, stream) in &self.suspended {
            let peer = &self.peers[rank as usize];
            let Some(incoming) = &peer.incoming[stream] else { continue };
            let bytes = incoming.reading.missing.get();
            if !peer.backlog.is_empty() {
                continue;
            }
            packets = packets.min(bytes.div_ceil(peer.packet_bytes).max(1));
            if let Ok(Some(sink)) = self.node.installed_mut::<Sink>(peer.slots[1]) {
                // SAFETY: the handler that has this buffer is suspended in `receive` until the post is
                // retracted, below; a panic in a turn ends the program's use of the node.
                unsafe { sink.post(stream, incoming.reading.to.get(), bytes) };
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

    fn new_out(&mut self) -> usize {
        self.free_outs.pop().unwrap_or_else(|| {
            self.outs.push(Out::default());
            self.outs.len() - 1
        })
    }

    /// Whether it came to the rules of the hello.
    fn stream_for(&mut self, rank: u32) -> Result<usize, Error> {
        let peer = &mut self.peers[rank as usize];
        let stream = peer.streams.trailing_ones() as usize;
        if stream >= peer.streams_max {
            return Err(Error::Limit(format!(
                "{stream} messages to node {rank} are open, and it takes no more: end one"
            )));
        }
        peer.streams |= 1 << stream;
        Ok(stream)
    }

    /// A packet of the message leaves, or is queued in a handler.
    fn emit(&mut self, rank: u32, word: Word, data: &[u8], of_handler: bool) -> Result<(), Error> {
        if !of_handler {
            return self.push_waiting(rank, word, data);
        }
        if self.peers[rank as usize].queue.is_empty()
            && let Pushed::Sent = self.push(rank, word, data, Duration::ZERO)?
        {
            return Ok(());
        }
        let peer = &mut self.peers[rank as usize];
        peer.queue.push_back(Queued { word, data: data.into() });
        peer.queued += data.len();
        self.queued += data.len();
        Ok(())
    }

    /// Sends a packet of what is staged: the first, or a further one.
    fn emit_stage(&mut self, key: usize, last: bool) -> Result<(), Error> {
        let out = &mut self.outs[key];
        let (rank, handler, first) = (out.to, out.handler, !out.has_started);
        let is_whole = first && last;
        let stream = match out.stream {
            Some(stream) => stream,
            None if is_whole => 0,
            None => {
                let stream = self.stream_for(rank)?;
                self.outs[key].stream = Some(stream);
                stream
            }
        };
        let out = &mut self.outs[key];
        (out.has_started, out.has_ended) = (true, last);
        let stage = core::mem::take(&mut out.stage);
        let of_handler = out.of_handler;
        let peer = &mut self.peers[rank as usize];
        if peer.unstarted == Some(key) {
            peer.unstarted = None;
        }
        if last && !is_whole {
            peer.streams &= !(1 << stream);
        }
        // The length that was said goes only with a message of several packets.
        let data = if is_whole { &stage[LENGTH_BYTES..] } else { &stage[..] };
        let word = Word { first, last, length: data.len(), stream, handler };
        let done = self.emit(rank, word, data, of_handler);
        let out = &mut self.outs[key];
        out.stage = stage;
        out.stage.clear();
        done
    }

    #[inline]
    fn piece(&mut self, key: usize, data: &[u8]) -> Result<(), Error> {
        let out = &mut self.outs[key];
        let most = self.peers[out.to as usize].packet_bytes + LENGTH_BYTES;
        let has_room = out.left.saturating_add(out.stage.len() as u64) <= most as u64;
        // All that can still come fits into the first packet.
        if has_room && !out.has_started && data.len() as u64 <= out.left {
            out.left -= data.len() as u64;
            out.stage.extend_from_slice(data);
            return Ok(());
        }
        self.piece_of_long(key, data)
    }

    #[inline(never)]
    fn piece_of_long(&mut self, key: usize, mut data: &[u8]) -> Result<(), Error> {
        let out = &mut self.outs[key];
        let (rank, most) = (out.to, self.peers[out.to as usize].packet_bytes);
        if data.len() as u64 > out.left {
            return Err(Error::Limit(format!(
                "a piece of {} bytes, where {} of what FM_begin_message said are left",
                data.len(),
                out.left
            )));
        }
        out.left -= data.len() as u64;
        if data.is_empty() {
            return Ok(());
        }
        loop {
            let out = &mut self.outs[key];
            let is_end = out.left == 0;
            // What is long leaves from where it is.
            if out.has_started && out.stage.is_empty() && data.len() >= most {
                let (front, rest) = data.split_at(most);
                let stream = out.stream.unwrap_or(0);
                let last = is_end && rest.is_empty();
                let word = Word { first: false, last, length: most, stream, handler: 0 };
                out.has_ended = last;
                let of_handler = out.of_handler;
                if last {
                    self.peers[rank as usize].streams &= !(1 << stream);
                }
                self.emit(rank, word, front, of_handler)?;
                data = rest;
                if data.is_empty() {
                    return Ok(());
                }
                continue;
            }
            // The first packet has the length that was said beside its bytes, so that those of all
            // packets begin at whole multiples.
            let most = most + if out.has_started { 0 } else { LENGTH_BYTES };
            let takes = (most - out.stage.len()).min(data.len());
            out.stage.extend_from_slice(&data[..takes]);
            data = &data[takes..];
            let is_last = is_end && data.is_empty();
            // A message's first piece leaves at once, so that its handler chooses a place for the rest.
            // A whole one waits for the end, which may say that it is shorter than was said.
            if is_last && !out.has_started {
                return Ok(());
            }
            if out.stage.len() == most || !out.has_started || is_last {
                self.emit_stage(key, is_last)?;
            }
            if data.is_empty() {
                return Ok(());
            }
        }
    }

    #[inline]
    fn end(&mut self, key: usize) -> Result<(), Error> {
        let out = &mut self.outs[key];
        if out.has_started || out.of_handler {
            return self.end_late(key);
        }
        let stage = core::mem::take(&mut out.stage);
        let (rank, data) = (out.to, stage.get(LENGTH_BYTES..).unwrap_or_default());
        let (length, handler) = (data.len(), out.handler);
        let word = Word { first: true, last: true, length, stream: 0, handler };
        self.peers[rank as usize].unstarted = None;
        let done = self.push_waiting(rank, word, data);
        self.outs[key].stage = stage;
        self.free_outs.push(key);
        done
    }

    #[inline(never)]
    fn end_late(&mut self, key: usize) -> Result<(), Error> {
        let out = &self.outs[key];
        let done = match out.has_ended || self.peers[out.to as usize].dead.is_some() {
            true if out.has_ended => Ok(()),
            true => self.dead(out.to),
            false => self.emit_stage(key, true),
        };
        let out = &mut self.outs[key];
        self.kept -= core::mem::take(&mut out.kept);
        let (rank, stream) = (out.to, out.stream);
        let peer = &mut self.peers[rank as usize];
        if peer.unstarted == Some(key) {
            peer.unstarted = None;
        }
        if let Some(stream) = stream.filter(|_| !out.has_ended) {
            peer.streams &= !(1 << stream);
        }
        self.free_outs.push(key);
        done
    }
}

struct Inner {
    state: RefCell<State>,
    handlers: Box<[OnceCell<Rc<Handler>>]>,
    /// The sender of the message whose handler runs, and whether it has its reply.
    current: Cell<Option<(u32, bool)>>,
}

/// A node, as handlers see it.
#[derive(Clone)]
pub struct Endpoint(Rc<Inner>);

impl core::fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Endpoint").finish_non_exhaustive()
    }
}

/// A node of Fast Messages, used by one thread. When it is dropped, suspended handlers see the end of
/// their messages, and the links end.
#[derive(Debug)]
pub struct Fm(Endpoint);

impl Deref for Fm {
    type Target = Endpoint;

    fn deref(&self) -> &Endpoint {
        &self.0
    }
}

/// A message that is being sent. Dropped, it ends.
#[derive(Debug)]
pub struct Outgoing<'a> {
    endpoint: &'a Endpoint,
    key: Option<usize>,
}

impl Outgoing<'_> {
    /// `FM_send_piece`: the next bytes, which may be used again when the call returns.
    pub fn piece(&mut self, data: &[u8]) -> Result<(), Error> {
        self.key.map_or(Ok(()), |key| self.endpoint.send_piece(key, data))
    }

    /// [`piece`](Self::piece), of a value.
    pub fn value<T: zerocopy::IntoBytes + zerocopy::Immutable>(
        &mut self,
        value: &T,
    ) -> Result<(), Error> {
        self.piece(value.as_bytes())
    }

    /// `FM_end_message`.
    pub fn end(mut self) -> Result<(), Error> {
        self.key.take().map_or(Ok(()), |key| self.endpoint.end_message(key))
    }

    /// For C: the message is ended by its number.
    pub(crate) fn into_key(mut self) -> usize {
        self.key.take().unwrap_or_default()
    }
}

impl Drop for Outgoing<'_> {
    fn drop(&mut self) {
        if let Some(key) = self.key.take() {
            let _ = self.endpoint.end_message(key);
        }
    }
}

impl Endpoint {
    pub(crate) fn new(state: State) -> Self {
        let handlers = (0..flow::HANDLERS).map(|_| OnceCell::new()).collect();
        Self(Rc::new(Inner { state: RefCell::new(state), handlers, current: Cell::new(None) }))
    }

    /// This node's number (`FM_nodeid`).
    pub fn node(&self) -> u32 {
        self.0.state.borrow().joined.rank
    }

    /// The number of nodes (`FM_numnodes`).
    pub fn nodes(&self) -> u32 {
        self.0.state.borrow().peers.len() as u32
    }

    /// What the node has done.
    pub fn figures(&self) -> Figures {
        self.0.state.borrow().figures
    }

    /// Whether a node's program has ended, or was expelled because it broke the rules. What it had sent
    /// can still be extracted.
    pub fn has_left(&self, node: u32) -> bool {
        let mut state = self.0.state.borrow_mut();
        state.take_events();
        state.peers.get(node as usize).is_none_or(|peer| peer.is_closed)
    }

    /// Whether this is called by a handler.
    pub fn is_in_handler(&self) -> bool {
        self.0.current.get().is_some()
    }

    /// The longest time that a send waits from now on.
    pub fn set_time_limit(&self, limit: Option<Duration>) {
        self.0.state.borrow_mut().config.time_limit = limit;
    }

    /// `FM_register_handler`: gives a handler an identifier, the same on all nodes; `None`: the next one
    /// that is free. [`Error::Limit`]: it is used, or not below 1,024.
    pub fn register(
        &self,
        id: Option<u32>,
        handler: impl Fn(&mut Stream<'_>, u32) -> Verdict + 'static,
    ) -> Result<u32, Error> {
        let handlers = &self.0.handlers;
        let free = || handlers.iter().position(|of| of.get().is_none()).unwrap_or(handlers.len());
        let id = id.unwrap_or_else(|| free() as u32);
        let Some(of) = handlers.get(id as usize) else {
            return Err(Error::Limit(format!(
                "handler {id}: identifiers are below {}",
                flow::HANDLERS
            )));
        };
        match of.set(Rc::new(handler)) {
            Ok(()) => Ok(id),
            Err(_) => Err(Error::Limit(format!("handler {id} is registered already"))),
        }
    }

    #[inline]
    fn check(&self, state: &State, dest: u32, handler: u32) -> Result<(), Error> {
        let nodes = state.peers.len();
        if dest as usize >= nodes {
            return Err(Error::Limit(format!("node {dest}, where there are {nodes}")));
        }
        if handler as usize >= flow::HANDLERS {
            let most = flow::HANDLERS;
            return Err(Error::Limit(format!("handler {handler}: identifiers are below {most}")));
        }
        state.dead(dest)
    }

    /// How many bytes a piece, or a message of one piece, to `node` may have so that sending it surely does
    /// not wait: a packet at most. Also if the node has left, so that the send tells it. 0: there is no
    /// room now, or no such node.
    pub fn room(&self, node: u32) -> usize {
        let state = &mut *self.0.state.borrow_mut();
        let Some(peer) = state.peers.get(node as usize) else { return 0 };
        let most = peer.packet_bytes;
        if peer.dead.is_some() {
            return most;
        }
        if !peer.queue.is_empty() {
            return 0;
        }
        // A first packet has a length beside these.
        let has_room = |peer: &Peer, bytes| peer.sending.place(bytes + LENGTH_BYTES).is_some();
        if !has_room(peer, most) && state.read_credit(node).is_err() {
            return most;
        }
        let peer = &state.peers[node as usize];
        let mut bytes = most;
        while bytes > 0 && !has_room(peer, bytes) {
            bytes /= 2;
        }
        bytes
    }

    /// `FM_begin_message`: a message of at most `bytes`. In a handler, [`Error::Full`]: the queue has no
    /// room for it, now; a first reply to the message's sender, of up to [`REPLY_BYTES`], always has.
    pub fn begin(&self, dest: u32, bytes: u64, handler: u32) -> Result<Outgoing<'_>, Error> {
        let state = &mut *self.0.state.borrow_mut();
        self.check(state, dest, handler)?;
        let mut kept = 0;
        let of_handler = self.0.current.get();
        if let Some((sender, has_replied)) = of_handler {
            let is_reply = sender == dest && !has_replied && bytes <= REPLY_BYTES as u64;
            let used = (state.queued + state.kept) as u64;
            if !is_reply && used.saturating_add(bytes) > state.config.queue_bytes as u64 {
                return Err(Error::Full(format!(
                    "a message of {bytes} bytes, where handlers have sent {used} that wait for room, \
                     of {} that may: reply in a shorter one, or send it outside of the handler",
                    state.config.queue_bytes
                )));
            }
            self.0.current.set(Some((sender, has_replied || is_reply)));
            kept = if is_reply { 0 } else { bytes as usize };
        }
        // Messages arrive in the order in which they were begun.
        if let Some(before) = state.peers[dest as usize].unstarted {
            state.emit_first(before)?;
        }
        let key = state.new_out();
        state.figures.messages_sent += 1;
        state.kept += kept;
        let out = &mut state.outs[key];
        (out.to, out.handler, out.left, out.kept) = (dest, handler as usize, bytes, kept);
        (out.has_started, out.has_ended, out.stream) = (false, false, None);
        out.of_handler = of_handler.is_some();
        out.stage.clear();
        out.stage.extend_from_slice(&bytes.to_le_bytes());
        state.peers[dest as usize].unstarted = Some(key);
        Ok(Outgoing { endpoint: self, key: Some(key) })
    }

    pub(crate) fn send_piece(&self, key: usize, data: &[u8]) -> Result<(), Error> {
        self.0.state.borrow_mut().piece(key, data)
    }

    pub(crate) fn end_message(&self, key: usize) -> Result<(), Error> {
        self.0.state.borrow_mut().end(key)
    }

    /// `FM_send_4`: four words as one message of 16 bytes.
    #[inline]
    pub fn send_4(&self, dest: u32, handler: u32, words: [u32; 4]) -> Result<(), Error> {
        self.send_whole(dest, handler, zerocopy::IntoBytes::as_bytes(&words))
    }

    /// A message of one piece (`FM_send` of 1.x).
    pub fn send(&self, dest: u32, handler: u32, data: &[u8]) -> Result<(), Error> {
        self.send_whole(dest, handler, data)
    }

    #[inline(always)]
    fn send_whole(&self, dest: u32, handler: u32, data: &[u8]) -> Result<(), Error> {
        if self.0.current.get().is_none() {
            let state = &mut *self.0.state.borrow_mut();
            let (length, handler) = (data.len(), handler as usize);
            let is_one_packet = |peer: &Peer| {
                peer.unstarted.is_none() && length <= peer.packet_bytes && handler < flow::HANDLERS
            };
            if state.peers.get(dest as usize).is_some_and(is_one_packet) {
                let word = Word { first: true, last: true, length, stream: 0, handler };
                state.push_waiting(dest, word, data)?;
                state.figures.messages_sent += 1;
                return Ok(());
            }
        }
        self.send_in_pieces(dest, handler, data)
    }

    #[inline(never)]
    fn send_in_pieces(&self, dest: u32, handler: u32, data: &[u8]) -> Result<(), Error> {
        let mut message = self.begin(dest, data.len() as u64, handler)?;
        message.piece(data)?;
        message.end()
    }

    /// Bytes of the packet that is being read.
    #[inline]
    pub(crate) fn take_read(&self, reading: &Reading, to: &mut [u8]) -> usize {
        let (at, bytes) = (reading.at.get(), reading.bytes.get());
        let state = &mut *self.0.state.borrow_mut();
        let Some(from) =
            state.node.area(state.windows).ok().and_then(|area| area.get(at..at + bytes))
        else {
            return 0;
        };
        let takes = match from.get(..to.len()) {
            // As many as `to` has: often a number that the compiler knows.
            Some(from) => {
                to.copy_from_slice(from);
                to.len()
            }
            None => {
                to[..bytes].copy_from_slice(from);
                bytes
            }
        };
        reading.at.set(at + takes);
        reading.bytes.set(bytes - takes);
        state.figures.bytes_received += takes as u64;
        takes
    }

    /// `FM_extract`: gives packets to handlers until `bytes_max` bytes have been given, rounded up to a
    /// packet, or none is left; then sends what handlers have sent, as far as there is room. 0: only the
    /// latter. Returns the number of bytes. Never waits. One call gives at most what all peers have
    /// credit for. In a handler it does nothing.
    pub fn extract(&self, bytes_max: usize) -> usize {
        if self.0.current.get().is_some() {
            return 0;
        }
        let mut given = 0;
        let mut packets = self.0.state.borrow().packets_of_extract();
        while given < bytes_max {
            let Some((rank, bits, at)) = self.0.state.borrow_mut().next_packet() else {
                self.end_of_the_dead();
                break;
            };
            given += bits.length();
            packets -= 1;
            let verdict = match bits.is_whole() {
                true => self.hand_whole(rank, bits, at),
                false => self.hand_part(rank, Word::from_bits(bits.0), at),
            };
            if verdict == Verdict::Abort || packets == 0 {
                break;
            }
        }
        self.0.state.borrow_mut().give_out_if_any();
        given
    }

    /// Whether the next [`extract`](Self::extract) has something to do, or a node has left since; waits
    /// for that at most `limit` (`None`: without limit), and sleeps meanwhile if it takes long.
    pub fn wait(&self, limit: Option<Duration>) -> Result<bool, Error> {
        if self.0.current.get().is_some() {
            return Err(Error::Misuse("a handler cannot wait"));
        }
        let state = &mut *self.0.state.borrow_mut();
        state.give_out();
        let queue = state.queue;
        if state.node.is_ready(queue).is_ok_and(|is_ready| is_ready) {
            return Ok(true);
        }
        state.wait(limit, false)
    }

    #[inline]
    fn handler(&self, id: usize) -> Option<&Rc<Handler>> {
        self.0.handlers.get(id).and_then(OnceCell::get)
    }

    /// A message that is here: its handler needs no stack of its own.
    #[inline(always)]
    fn hand_whole(&self, rank: u32, bits: Bits, at: usize) -> Verdict {
        let Some(handler) = self.handler(bits.handler()) else {
            let state = &mut *self.0.state.borrow_mut();
            state.figures.refused += 1;
            state.give_credit_if_owed(rank);
            return Verdict::Continue;
        };
        let reading = Reading::new(at, bits.length(), bits.length() as u64, true);
        let verdict = {
            let _runs = Runs::new(self, rank);
            handler(&mut Stream { endpoint: self, reading: &reading, yielder: None }, rank)
        };
        let state = &mut *self.0.state.borrow_mut();
        state.figures.messages_handled += 1;
        state.figures.bytes_discarded += reading.bytes.get() as u64;
        state.give_credit_if_owed(rank);
        verdict
    }

    /// A packet of a longer message.
    #[inline(never)]
    fn hand_part(&self, rank: u32, word: Word, at: usize) -> Verdict {
        let begins = match word.first {
            true => self.begin_incoming(rank, word, at),
            false => self.0.state.borrow_mut().take_part(rank, word, at),
        };
        let verdict = match begins {
            true => self.run(rank, word.stream),
            false => Verdict::Continue,
        };
        let state = &mut *self.0.state.borrow_mut();
        let incoming = &mut state.peers[rank as usize].incoming[word.stream];
        if let Some(of) = incoming {
            // The rest of what a handler left when it returned.
            state.figures.bytes_discarded += of.reading.bytes.take() as u64;
            if word.last {
                *incoming = None;
            }
        }
        state.give_credit_if_owed(rank);
        verdict
    }

    /// The first packet of a message with several. Whether there is a handler to run.
    fn begin_incoming(&self, rank: u32, word: Word, at: usize) -> bool {
        let state = &mut *self.0.state.borrow_mut();
        let area = state.node.area(state.windows).unwrap_or_default();
        let said = area.get(at..at + LENGTH_BYTES).and_then(|bytes| bytes.try_into().ok());
        let peer = &mut state.peers[rank as usize];
        let is_open =
            word.stream >= state.config.open_messages || peer.incoming[word.stream].is_some();
        let (Some(said), false) = (said, is_open || word.length < LENGTH_BYTES) else {
            state.expel(rank, format!("a first packet that cannot be one: {word:?}"));
            return false;
        };
        let (at, bytes) = (at + LENGTH_BYTES, word.length - LENGTH_BYTES);
        let reading = Rc::new(Reading::new(at, bytes, u64::from_le_bytes(said), word.last));
        let thread = match (self.handler(word.handler), state.stacks.take()) {
            (Some(handler), Ok(stack)) => {
                state.figures.stacks += 1;
                Some(streams::thread(stack, self.clone(), reading.clone(), handler.clone(), rank))
            }
            _ => {
                state.figures.refused += 1;
                None
            }
        };
        let runs = thread.is_some();
        state.peers[rank as usize].incoming[word.stream] =
            Some(Incoming { reading, thread, in_buffer: 0 });
        runs
    }

    /// Runs or resumes a handler on its stack.
    fn run(&self, rank: u32, stream: usize) -> Verdict {
        let thread = {
            let state = &mut *self.0.state.borrow_mut();
            state.suspended.retain(|of| *of != (rank, stream));
            state.peers[rank as usize].incoming[stream].as_mut().and_then(|of| of.thread.take())
        };
        let Some(thread) = thread else { return Verdict::Continue };
        let ran = {
            let _runs = Runs::new(self, rank);
            streams::resume(thread)
        };
        let state = &mut *self.0.state.borrow_mut();
        match ran {
            Ok(thread) => {
                if let Some(incoming) = &mut state.peers[rank as usize].incoming[stream] {
                    incoming.thread = Some(thread);
                    state.suspended.push((rank, stream));
                }
                Verdict::Continue
            }
            Err((verdict, stack)) => {
                state.stacks.give_back(stack);
                state.figures.messages_handled += 1;
                verdict
            }
        }
    }

    /// Handlers of peers that have left see the end of their messages.
    fn end_of_the_dead(&self) {
        // What has come since is read before.
        let may = |state: &State| {
            !state.suspended.is_empty() && state.node.is_ready(state.queue) == Ok(false)
        };
        while may(&self.0.state.borrow()) {
            let of = {
                let state = self.0.state.borrow();
                let dead = |(rank, _): &&(u32, usize)| {
                    let peer = &state.peers[*rank as usize];
                    peer.is_closed && peer.backlog.is_empty()
                };
                state.suspended.iter().find(dead).copied()
            };
            let Some((rank, stream)) = of else { return };
            self.end_incoming(rank, stream);
        }
    }

    fn end_incoming(&self, rank: u32, stream: usize) {
        if let Some(of) = &self.0.state.borrow().peers[rank as usize].incoming[stream] {
            of.reading.ended.set(true);
        }
        self.run(rank, stream);
        self.0.state.borrow_mut().peers[rank as usize].incoming[stream] = None;
    }

    /// All suspended handlers see the end of their messages.
    fn end_all(&self) {
        loop {
            let of = self.0.state.borrow().suspended.first().copied();
            let Some((rank, stream)) = of else { return };
            self.end_incoming(rank, stream);
        }
    }

    /// What handlers have sent leaves, at most for the time limit.
    fn flush(&self) -> Result<(), Error> {
        let state = &mut *self.0.state.borrow_mut();
        let (began, limit) = (Instant::now(), state.config.time_limit);
        loop {
            state.give_out();
            let left = limit.map(|limit| limit.saturating_sub(began.elapsed()));
            if state.queued == 0 {
                return Ok(());
            }
            if left.is_some_and(|left| left.is_zero()) {
                return Err(Error::Full(format!(
                    "{} bytes that handlers have sent had no room at their nodes within the time limit",
                    state.queued
                )));
            }
            state.wait(left, true)?;
        }
    }
}

/// A handler runs.
struct Runs<'a>(&'a Endpoint);

impl<'a> Runs<'a> {
    #[inline]
    fn new(endpoint: &'a Endpoint, sender: u32) -> Self {
        endpoint.0.current.set(Some((sender, false)));
        Self(endpoint)
    }
}

impl Drop for Runs<'_> {
    fn drop(&mut self) {
        self.0.0.current.set(None);
    }
}

impl State {
    /// The most packets that one call gives to handlers: what all peers have credit for.
    #[inline]
    fn packets_of_extract(&self) -> u64 {
        u64::from(self.config.credit_bytes) / flow::UNIT * self.peers.len() as u64
    }

    #[inline]
    fn give_credit_if_owed(&mut self, rank: u32) {
        if self.peers[rank as usize].owes {
            self.give_credit(rank);
        }
    }

    #[inline]
    fn give_out_if_any(&mut self) {
        if self.queued > 0 {
            self.give_out();
        }
    }

    /// Takes a packet out of its peer's window. Returns its place in the area.
    #[inline(always)]
    fn take_packet(&mut self, rank: u32, bits: Bits) -> Option<usize> {
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
    fn expel_for_length(&mut self, rank: u32, bits: Bits) {
        let most = self.peers[rank as usize].packet_bytes_in + LENGTH_BYTES;
        self.expel(rank, format!("a packet of {} bytes, of {most}", bits.length()));
    }

    /// A further packet of a message. Whether its handler is to be resumed.
    fn take_part(&mut self, rank: u32, word: Word, at: usize) -> bool {
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

    /// The first packet of a message leaves before the next message begins.
    #[cold]
    fn emit_first(&mut self, key: usize) -> Result<(), Error> {
        self.emit_stage(key, false)
    }
}

impl Drop for Fm {
    fn drop(&mut self) {
        self.end_all();
        let _ = self.flush();
    }
}

impl Fm {
    /// `FM_finalize`: suspended handlers see the end of their messages; what handlers have sent leaves,
    /// at most for the time limit; then the links end. What has left reaches the other nodes.
    pub fn finish(self) -> Result<(), Error> {
        self.end_all();
        let done = self.flush();
        let limit = self.0.0.state.borrow().config.time_limit;
        let endpoint = Endpoint(self.0.0.clone());
        drop(self);
        let Ok(inner) = Rc::try_unwrap(endpoint.0) else { return done };
        let closed = inner.state.into_inner().node.close(limit);
        done.and(closed.map(drop).map_err(|e| Error::Os(e.to_string())))
    }
}

impl Fm {
    pub(crate) fn of(endpoint: Endpoint) -> Self {
        Self(endpoint)
    }
}
