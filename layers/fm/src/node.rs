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

use crate::flow::{self, Bits, LENGTH_BYTES, Word};
use crate::sending::room_for;
use crate::state::{Peer, State};
use crate::streams::{self, Handler, Incoming, Reading, Stream, Verdict};
use crate::{Error, REPLY_BYTES};
use std::cell::{Cell, OnceCell, RefCell};
use std::ops::Deref;
use std::rc::Rc;
use std::time::{Duration, Instant};

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

    /// Whether a node's program has ended, or was expelled because it broke the rules. The messages
    /// that it had sent can still be extracted.
    pub fn has_left(&self, node: u32) -> bool {
        let mut state = self.0.state.borrow_mut();
        state.take_events();
        state.peers.get(node as usize).is_none_or(|peer| peer.is_closed)
    }

    /// Whether this is called by a handler.
    pub fn is_in_handler(&self) -> bool {
        self.0.current.get().is_some()
    }

    /// A message was thrown away for its sender's fault.
    pub(crate) fn count_refused(&self) {
        self.0.state.borrow_mut().figures.refused += 1;
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
        let mut kept = None;
        let current = self.0.current.get();
        if let Some((sender, has_replied)) = current {
            let is_reply = sender == dest && !has_replied && bytes <= REPLY_BYTES as u64;
            let (used, room) = ((state.queued + state.kept) as u64, room_for(bytes));
            if !is_reply && used.saturating_add(room) > state.config.queue_bytes as u64 {
                return Err(Error::Full(format!(
                    "a message of {bytes} bytes, where handlers have sent {used} that wait for room, \
                     of {} that may: reply in a shorter one, or send it outside of the handler",
                    state.config.queue_bytes
                )));
            }
            self.0.current.set(Some((sender, has_replied || is_reply)));
            kept = Some(if is_reply { 0 } else { room as usize });
        }
        let key = state.begin((dest, handler as usize), bytes, kept)?;
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
        match state.has_next() {
            true => Ok(true),
            false => state.wait(limit, false),
        }
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
    pub(crate) fn end_all(&self) {
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

    pub(crate) fn of(endpoint: Endpoint) -> Self {
        Self(endpoint)
    }
}
