//! The client's side of request and reply.

use super::{
    ASK, Blocks, Broken, Bytes, CALL_BITS, CallError, DECLINED, LENGTH_MAX, Lent, Long,
    OUTSTANDING_MAX, REPLY_LIMIT, REQUEST_LIMIT, Sending, TOO_LONG, ended, failed, go_on,
    number_from,
};
use crate::control::{Peer, RequestId};
use crate::interface::QueueId;
use crate::node::{Look, Node, SendError, Waited};
use crate::protocol::ends::{connected, grown};
use crate::protocol::manager::{Offer, OfferId, Target, set_up};
use crate::protocol::tickets::message_ticket_from;
use crate::protocol::{Connection, GrowError, Kind, Manager};
use crate::wire::{MetadataIndex, SlotIndex, TICKET_BYTES, Ticket};
use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;
use std::boxed::Box;
use std::collections::{HashMap, VecDeque};
use std::format;
use std::string::String;
use std::sync::Arc;
use std::vec::Vec;

/// What a [`Client`] is made of.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// Calls that may be outstanding, if the server allows as many. 64 unless set.
    pub outstanding: u32,
    /// Bytes of a reply that are sent at once; 4,092 unless set, which is the most.
    pub reply_bytes: u32,
    /// Longest reply, in bytes. 16 MiB unless set.
    pub reply_bytes_max: u64,
}

impl Default for ClientConfig {
    fn default() -> Self {
        Self { outstanding: 64, reply_bytes: LENGTH_MAX, reply_bytes_max: 16 << 20 }
    }
}

/// Names a call of one client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CallId {
    call: u32,
    generation: u32,
}

impl core::fmt::Display for CallId {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "call {}", self.call)
    }
}

impl CallId {
    /// As a number, for languages that cannot hold this type.
    pub fn to_bits(self) -> u64 {
        (self.call as u64) << 32 | self.generation as u64
    }

    /// From [`to_bits`](Self::to_bits). A number that names no call is refused where it is used.
    pub fn from_bits(bits: u64) -> Self {
        Self { call: (bits >> 32) as u32, generation: bits as u32 }
    }
}

/// Where one call stands, at the client.
#[derive(Clone, Copy)]
enum AtClient {
    Free,
    Waiting,
    /// A reply lies in the block.
    Done,
    Declined,
    /// The reply is too long for this side, and the server does not know that yet.
    TooLong,
    /// It does.
    Refused,
    /// A long request was announced.
    Asked,
    /// A long message comes or goes; more of it in `longs`.
    Long,
}

enum LongAtClient {
    Granted(Ticket),
    Refused(u64),
    Receiving(Long),
    Done(Bytes),
}

struct Call {
    state: AtClient,
    /// Bytes of the reply in the block.
    length: u32,
    /// Nobody waits for it any more: its number is free when the server has answered.
    abandoned: bool,
    generation: u32,
}

/// The client's state, under the manager's lock.
struct ClientState {
    connection: Arc<Connection>,
    queue: QueueId,
    blocks: Blocks,
    lent: Lent,
    at_once: usize,
    request_bytes_max: u64,
    reply_bytes_max: u64,
    calls: Vec<Call>,
    free: Vec<u32>,
    longs: HashMap<u32, LongAtClient>,
    long_slots: HashMap<SlotIndex, u32>,
    outbox: VecDeque<(u32, u32, Vec<u8>)>,
}

static NEXT_CLIENT: AtomicU32 = AtomicU32::new(0);

/// Calls a server. `Send` and `Sync`: several threads may call.
pub struct Client {
    manager: Manager,
    connection: Arc<Connection>,
    /// Where the manager keeps the state; nobody can grow anything from it.
    state: OfferId,
    outstanding: usize,
    at_once: usize,
}

impl Offer for ClientState {
    fn admit(&mut self, _: &mut Node, _: RequestId, _: &Peer, _: &[u8]) -> Result<Vec<u8>, String> {
        Err("a client has no senders".into())
    }

    fn withdrawn(&mut self, _: &mut Node, _: RequestId) {}

    fn joined(&mut self, _: &mut Node, _: RequestId, _: &Arc<Connection>) {}

    fn left(&mut self, node: &mut Node, _: &Connection) {
        // Replies that came before the end count.
        let _ = self.pump(node);
    }
}

impl ClientState {
    #[inline(always)]
    fn pump(&mut self, node: &mut Node) -> Result<(), Broken> {
        while let Ok(Some(notification)) = node.take_next(self.queue) {
            if notification.index == MetadataIndex::FAST {
                self.handle(node, notification.word)?;
            } else {
                self.handle_long(node, notification.slot);
            }
        }
        if !self.outbox.is_empty() {
            self.advance(node);
        }
        Ok(())
    }

    #[cold]
    fn advance(&mut self, node: &mut Node) {
        while let Some((call, code, data)) = self.outbox.front() {
            match self.lent.send(node, self.connection.link(), *call, *code, data) {
                Err(SendError::Full) => return,
                _ => self.outbox.pop_front(),
            };
        }
    }

    #[inline(always)]
    fn handle(&mut self, node: &mut Node, word: u32) -> Result<(), Broken> {
        let (number, code) = (word % OUTSTANDING_MAX, word >> CALL_BITS);
        let count = self.calls.len();
        let Some(call) = self.calls.get_mut(number as usize) else {
            return Err(Broken(format!("a reply to call {number} of {count}")));
        };
        match (call.state, code) {
            (AtClient::Waiting, 0..=LENGTH_MAX) if code <= self.blocks.block => {
                // Apart from the state: a word that is read after its halves were written stalls.
                call.length = code;
                call.state = AtClient::Done;
            }
            (AtClient::Waiting | AtClient::Asked, DECLINED) => call.state = AtClient::Declined,
            (AtClient::Asked, ASK) => {
                let bytes = self.blocks.bytes(node, number, TICKET_BYTES);
                let ticket =
                    message_ticket_from(bytes, self.connection.peer(), 0).map_err(Broken)?;
                call.state = AtClient::Long;
                self.longs.insert(number, LongAtClient::Granted(ticket));
            }
            (AtClient::Asked, TOO_LONG) if call.abandoned => call.state = AtClient::Declined,
            (AtClient::Asked, TOO_LONG) => {
                let max = number_from(self.blocks.bytes(node, number, 8));
                call.state = AtClient::Long;
                self.longs.insert(number, LongAtClient::Refused(max));
            }
            (AtClient::Waiting, ASK) => {
                let length = number_from(self.blocks.bytes(node, number, 8));
                let opened = if length > self.reply_bytes_max || call.abandoned {
                    Err(String::new())
                } else {
                    Long::open(node, self.queue, length)
                };
                match opened {
                    Ok((long, ticket)) => {
                        call.state = AtClient::Long;
                        self.longs.insert(number, LongAtClient::Receiving(long));
                        self.long_slots.insert(long.slot.index(), number);
                        self.outbox.push_back((number, ASK, ticket.to_bytes().to_vec()));
                    }
                    Err(_) => {
                        call.state = AtClient::TooLong;
                        self.outbox.push_back((number, TOO_LONG, Vec::new()));
                    }
                }
            }
            // The server gives up a long message.
            (AtClient::Long, DECLINED) => match self.longs.remove(&number) {
                Some(LongAtClient::Receiving(long)) => {
                    self.long_slots.remove(&long.slot.index());
                    long.remove(node);
                    call.state = AtClient::Declined;
                }
                Some(LongAtClient::Granted(_)) => call.state = AtClient::Declined,
                _ => return Err(Broken(format!("declined call {number}, which is complete"))),
            },
            // The server has heard that its reply was too long.
            (AtClient::TooLong, DECLINED) => call.state = AtClient::Refused,
            _ => return Err(Broken(format!("code {code} for call {number}, which is not so far"))),
        }
        let call = &self.calls[number as usize];
        let is_over = matches!(call.state, AtClient::Done | AtClient::Declined | AtClient::Refused);
        if call.abandoned && is_over {
            self.free(node, number);
        }
        Ok(())
    }

    #[cold]
    fn handle_long(&mut self, node: &mut Node, slot: SlotIndex) {
        let Some(number) = self.long_slots.remove(&slot) else { return };
        if let Some(LongAtClient::Receiving(long)) = self.longs.remove(&number)
            && let Some(bytes) = long.take(node)
        {
            self.longs.insert(number, LongAtClient::Done(bytes));
        }
        if self.calls[number as usize].abandoned {
            self.longs.remove(&number);
            self.free(node, number);
        }
    }

    fn free(&mut self, node: &mut Node, number: u32) {
        // Somebody may wait for a number, and nothing that arrives would say that there is one.
        if self.free.is_empty() {
            node.stir();
        }
        let call = &mut self.calls[number as usize];
        call.state = AtClient::Free;
        call.abandoned = false;
        call.generation = call.generation.wrapping_add(1);
        self.free.push(number);
    }

    /// Takes a reply, if it is there.
    #[inline(always)]
    fn take(&mut self, node: &mut Node, id: CallId, reply: &mut Bytes) -> Result<bool, CallError> {
        let (state, length) = match self.calls.get(id.call as usize) {
            Some(call) if call.generation == id.generation => (call.state, call.length),
            _ => return Err(CallError::NoSuchCall(id)),
        };
        let result = match state {
            AtClient::Done => {
                reply.copy(self.blocks.bytes(node, id.call, length as usize));
                Ok(true)
            }
            AtClient::Waiting | AtClient::Asked => return Ok(false),
            AtClient::Free => return Err(CallError::NoSuchCall(id)),
            AtClient::Declined => Err(CallError::Declined),
            AtClient::TooLong => {
                // The number is free when the server has heard of it.
                let call = &mut self.calls[id.call as usize];
                call.abandoned = true;
                call.generation = call.generation.wrapping_add(1);
                return Err(CallError::TooLong {
                    length: 0,
                    max: self.reply_bytes_max,
                    limit: REPLY_LIMIT,
                });
            }
            AtClient::Refused => {
                Err(CallError::TooLong { length: 0, max: self.reply_bytes_max, limit: REPLY_LIMIT })
            }
            AtClient::Long => match self.longs.remove(&id.call) {
                Some(LongAtClient::Done(bytes)) => {
                    *reply = bytes;
                    Ok(true)
                }
                Some(other) => {
                    self.longs.insert(id.call, other);
                    return Ok(false);
                }
                None => return Ok(false),
            },
        };
        self.free(node, id.call);
        result
    }

    /// One look of a call's beginning.
    #[inline(always)]
    fn begin(
        &mut self,
        node: &mut Node,
        request: &[u8],
        begun: &mut Begun,
    ) -> Look<Result<CallId, CallError>> {
        let link = self.connection.link();
        let id = match begun {
            Begun::Nothing => match self.free.last() {
                Some(call) => {
                    let generation = self.calls[*call as usize].generation;
                    CallId { call: *call, generation }
                }
                None => {
                    if let Err(Broken(why)) = self.pump(node) {
                        return Look::Found(Err(CallError::Misbehaved(why)));
                    }
                    if self.connection.ended().is_some() {
                        return Look::Found(Err(ended(&self.connection)));
                    }
                    return if self.free.is_empty() { Look::Nothing } else { Look::Again };
                }
            },
            Begun::Long(id, _) => *id,
            Begun::Sent(id) => return Look::Found(Ok(*id)),
        };
        if let Begun::Nothing = begun {
            let at_once = request.len() <= self.at_once;
            let sent = if at_once {
                self.lent.send(node, link, id.call, request.len() as u32, request)
            } else {
                let length = request.len() as u64;
                if length > self.request_bytes_max {
                    let max = self.request_bytes_max;
                    return Look::Found(Err(CallError::TooLong {
                        length,
                        max,
                        limit: REQUEST_LIMIT,
                    }));
                }
                self.lent.send(node, link, id.call, ASK, &length.to_le_bytes())
            };
            match sent {
                Ok(()) => {}
                Err(SendError::Full) => return Look::Room(link),
                Err(e) => return Look::Found(Err(failed(e, &self.connection))),
            }
            self.free.pop();
            let call = &mut self.calls[id.call as usize];
            if at_once {
                call.state = AtClient::Waiting;
                *begun = Begun::Sent(id);
                return Look::Found(Ok(id));
            }
            call.state = AtClient::Asked;
            *begun = Begun::Long(id, Sending::Asked);
        }
        self.begin_long(node, request, begun, id)
    }

    #[cold]
    fn begin_long(
        &mut self,
        node: &mut Node,
        request: &[u8],
        begun: &mut Begun,
        id: CallId,
    ) -> Look<Result<CallId, CallError>> {
        let Begun::Long(_, sending) = begun else { return Look::Nothing };
        if let Err(Broken(why)) = self.pump(node) {
            return Look::Found(Err(CallError::Misbehaved(why)));
        }
        match self.longs.get(&id.call) {
            Some(LongAtClient::Granted(ticket)) => {
                let (ticket, length) = (*ticket, request.len() as u64);
                if ticket.capacity() < length {
                    let why = format!(
                        "a ticket for {} bytes, where {length} were asked for",
                        ticket.capacity()
                    );
                    return Look::Found(Err(CallError::Misbehaved(why)));
                }
                let look = go_on(node, self.connection.link(), sending, &ticket, request);
                if let Look::Found(Ok(())) = look {
                    self.longs.remove(&id.call);
                    self.calls[id.call as usize].state = AtClient::Waiting;
                    *begun = Begun::Sent(id);
                }
                look.map(|sent| sent.map(|()| id).map_err(|e| failed(e, &self.connection)))
            }
            Some(LongAtClient::Refused(max)) => {
                let (length, max) = (request.len() as u64, *max);
                self.longs.remove(&id.call);
                self.free(node, id.call);
                *begun = Begun::Nothing;
                Look::Found(Err(CallError::TooLong { length, max, limit: REQUEST_LIMIT }))
            }
            _ if matches!(self.calls[id.call as usize].state, AtClient::Declined) => {
                self.free(node, id.call);
                *begun = Begun::Nothing;
                Look::Found(Err(CallError::Declined))
            }
            _ if self.connection.ended().is_some() => Look::Found(Err(ended(&self.connection))),
            _ => Look::Nothing,
        }
    }

    /// A call's beginning where nothing need be waited for; `None`: nothing was done.
    #[inline(always)]
    fn begin_at_once(&mut self, node: &mut Node, request: &[u8]) -> Option<CallId> {
        let number = *self.free.last()?;
        let call = self.calls.get_mut(number as usize)?;
        if !self.lent.send_line(node, number, request.len() as u32, request) {
            return None;
        }
        self.free.pop();
        call.state = AtClient::Waiting;
        Some(CallId { call: number, generation: call.generation })
    }

    /// Takes one reply, if it is the one that is waited for; anything else goes the general way.
    #[inline(always)]
    fn take_at_once(
        &mut self,
        node: &mut Node,
        id: CallId,
        reply: &mut Bytes,
    ) -> Option<Result<(), CallError>> {
        let call = self.calls.get(id.call as usize)?;
        let waits = matches!(call.state, AtClient::Waiting) && !call.abandoned;
        if !waits || call.generation != id.generation {
            return None;
        }
        let notification = node.take_next(self.queue).ok()??;
        let (number, code) = (notification.word % OUTSTANDING_MAX, notification.word >> CALL_BITS);
        if notification.index != MetadataIndex::FAST {
            self.handle_long(node, notification.slot);
        } else if number == id.call && code <= LENGTH_MAX.min(self.blocks.block) {
            reply.copy(self.blocks.bytes(node, number, code as usize));
            self.free(node, number);
            return Some(Ok(()));
        } else if let Err(Broken(why)) = self.handle(node, notification.word) {
            return Some(Err(CallError::Misbehaved(why)));
        }
        None
    }

    #[inline(always)]
    fn look_for(
        &mut self,
        node: &mut Node,
        id: CallId,
        reply: &mut Bytes,
    ) -> Look<Result<(), CallError>> {
        if let Some(taken) = self.take_at_once(node, id, reply) {
            return Look::Found(taken);
        }
        let pumped = self.pump(node);
        match self.take(node, id, reply) {
            Ok(true) => return Look::Found(Ok(())),
            Ok(false) => {}
            Err(e) => return Look::Found(Err(e)),
        }
        if let Err(Broken(why)) = pumped {
            return Look::Found(Err(CallError::Misbehaved(why)));
        }
        match self.connection.ended() {
            Some(_) => {
                self.free(node, id.call);
                Look::Found(Err(ended(&self.connection)))
            }
            None => Look::Nothing,
        }
    }

    /// One look of a whole call, of which as much is done as can be without waiting, within reason.
    #[cfg(feature = "tokio")]
    fn look_at_all(
        &mut self,
        node: &mut Node,
        request: &[u8],
        begun: &mut Begun,
        reply: &mut Bytes,
    ) -> Look<Result<(), CallError>> {
        for _ in 0..16 {
            if let Begun::Sent(id) = begun {
                return self.look_for(node, *id, reply);
            }
            match self.begin(node, request, begun) {
                Look::Found(Ok(_)) | Look::Again => {}
                other => return other.map(|begun| begun.map(|_| ())),
            }
        }
        Look::Again
    }

    /// Nobody waits for a call any more.
    fn abandon(&mut self, node: &mut Node, id: CallId) {
        let Some(call) = self.calls.get_mut(id.call as usize) else { return };
        if call.generation != id.generation {
            return;
        }
        call.abandoned = true;
        let gives_up = matches!(call.state, AtClient::Asked)
            || matches!(self.longs.get(&id.call), Some(LongAtClient::Granted(_)));
        if gives_up {
            call.state = AtClient::Asked;
            self.longs.remove(&id.call);
            self.outbox.push_back((id.call, DECLINED, Vec::new()));
            self.advance(node);
        }
    }
}

impl Client {
    grown!("a client", "a server");
    grown!(
        grow_with, connect_with => with_config,
        "a client",
        "a server",
        config: ClientConfig,
        "With these settings; an error, if they cannot be."
    );

    fn to(
        manager: &Manager,
        target: Target<'_>,
        timeout: Option<Duration>,
    ) -> Result<Self, GrowError> {
        Self::with_config(manager, target, ClientConfig::default(), timeout)
    }

    fn with_config(
        manager: &Manager,
        target: Target<'_>,
        config: ClientConfig,
        timeout: Option<Duration>,
    ) -> Result<Self, GrowError> {
        let calls = config.outstanding;
        if !(1..=OUTSTANDING_MAX).contains(&calls) {
            let text =
                format!("{calls} outstanding calls; from 1 to {OUTSTANDING_MAX} are allowed");
            return Err(GrowError::SetUp(text));
        }
        super::check_block(config.reply_bytes)?;
        let (queue, blocks, body) = {
            let mut node = manager.lock();
            // Long replies notify here, too: at most one for each call.
            let queue = node.notification_queue(calls.saturating_mul(2)).map_err(set_up)?;
            match Blocks::lend(&mut node, queue, calls, config.reply_bytes) {
                Ok((blocks, body)) => (queue, blocks, body),
                Err(e) => {
                    let _ = node.remove_queue(queue);
                    return Err(GrowError::SetUp(e));
                }
            }
        };
        let undo = || {
            let mut node = manager.lock();
            blocks.remove(&mut node);
            let _ = node.remove_queue(queue);
        };
        let read = |connection: &Arc<Connection>, answer: &[u8]| {
            let (mut lent, granted) = Lent::from_bytes(answer, connection.peer()).ok()?;
            let max = answer.get(Lent::BYTES..)?;
            let packet_bytes = manager.lock().fast_bytes_max(connection.link()).unwrap_or(0);
            let at_once = lent.at_once(packet_bytes);
            lent.go_over(connection.link());
            Some((lent, granted.min(calls), number_from(max), at_once))
        };
        let expected = "no blocks for requests";
        let (connection, (lent, granted, request_bytes_max, at_once)) = manager
            .grow(target, Kind::Call, &body, timeout, expected, read)
            .inspect_err(|_| undo())?;
        // Far apart for each client, so that one's calls are not taken for another's.
        let generation = NEXT_CLIENT.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9e37_79b9);
        let call = || Call { state: AtClient::Free, length: 0, abandoned: false, generation };
        let state = ClientState {
            connection: connection.clone(),
            queue,
            blocks,
            at_once,
            lent,
            request_bytes_max,
            reply_bytes_max: config.reply_bytes_max,
            calls: (0..granted).map(|_| call()).collect(),
            // The last number is taken first again: its block is in cache.
            free: (0..granted).rev().collect(),
            longs: HashMap::new(),
            long_slots: HashMap::new(),
            outbox: VecDeque::new(),
        };
        let outstanding = granted as usize;
        let state = manager.offer(Kind::Call, Box::new(state));
        manager.tell_end(&connection, state);
        Ok(Self { manager: manager.clone(), connection, state, outstanding, at_once })
    }

    /// Sends a request and waits for the reply, at most `timeout` in all.
    #[inline]
    pub fn call(&self, request: &[u8], timeout: Option<Duration>) -> Result<Bytes, CallError> {
        let mut reply = Bytes::default();
        let mut begun = self.start_at_once(request).map_or(Begun::Nothing, Begun::Sent);
        let result = self.manager.shared.wait_until(timeout, |node, protocols| {
            let Some(state) = protocols.state::<ClientState>(self.state) else {
                return Look::Nothing;
            };
            if let Begun::Sent(id) = begun {
                return state.look_for(node, id, &mut reply);
            }
            match state.begin(node, request, &mut begun) {
                Look::Found(Ok(_)) => Look::Nothing,
                Look::Found(Err(e)) => Look::Found(Err(e)),
                Look::Again => Look::Again,
                Look::Nothing => Look::Nothing,
                Look::Room(link) => Look::Room(link),
            }
        });
        self.settle(result, begun.id())?;
        Ok(reply)
    }

    /// A call to be advanced one turn at a time.
    #[cfg(feature = "tokio")]
    pub(crate) fn prepare<'a>(&'a self, request: &'a [u8]) -> Prepared<'a> {
        Prepared { client: self, request, begun: Begun::Nothing }
    }

    /// Sends a request, waiting at most `timeout` for a free call and, if it is long, for the server
    /// to make room for it. The reply is had with [`finish`](Self::finish).
    #[inline]
    pub fn start(&self, request: &[u8], timeout: Option<Duration>) -> Result<CallId, CallError> {
        match self.start_at_once(request) {
            Some(id) => Ok(id),
            None => self.start_slowly(request, timeout),
        }
    }

    #[inline(always)]
    fn start_at_once(&self, request: &[u8]) -> Option<CallId> {
        self.manager.shared.at_once(|node, protocols| {
            protocols.state::<ClientState>(self.state)?.begin_at_once(node, request)
        })
    }

    #[inline(never)]
    fn start_slowly(&self, request: &[u8], timeout: Option<Duration>) -> Result<CallId, CallError> {
        let mut begun = Begun::Nothing;
        let result = self.manager.shared.wait_until(timeout, |node, protocols| {
            match protocols.state::<ClientState>(self.state) {
                Some(state) => state.begin(node, request, &mut begun),
                None => Look::Nothing,
            }
        });
        self.settle(result, begun.id())
    }

    /// Waits for the reply of a call, at most `timeout`. Unless the time is over the call does not
    /// exist afterwards; then it may be finished later, or [forgotten](Self::forget).
    #[inline]
    pub fn finish(&self, call: CallId, timeout: Option<Duration>) -> Result<Bytes, CallError> {
        let mut reply = Bytes::default();
        let taken = self.manager.shared.at_once(|node, protocols| {
            protocols.state::<ClientState>(self.state)?.take_at_once(node, call, &mut reply)
        });
        match taken {
            Some(Ok(())) => Ok(reply),
            Some(Err(e)) => self.settle(Ok(Err(e)), None),
            None => self.finish_slowly(call, timeout),
        }
    }

    #[inline(never)]
    fn finish_slowly(&self, call: CallId, timeout: Option<Duration>) -> Result<Bytes, CallError> {
        let mut reply = Bytes::default();
        let result = self.manager.shared.wait_until(timeout, |node, protocols| {
            match protocols.state::<ClientState>(self.state) {
                Some(state) => state.look_for(node, call, &mut reply),
                None => Look::Nothing,
            }
        });
        match result {
            Ok(result) => self.settle(Ok(result), None).map(|()| reply),
            Err(waited) => Err(waited.into()),
        }
    }

    /// The reply of a call, if it is there or comes in one turn.
    pub fn try_finish(&self, call: CallId) -> Result<Option<Bytes>, CallError> {
        match self.finish(call, Some(Duration::ZERO)) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(CallError::TimedOut) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// The reply is not wanted any more; it will be dropped when it comes.
    pub fn forget(&self, call: CallId) {
        let mut guard = self.manager.shared.lock();
        let (node, protocols) = guard.parts();
        if let Some(state) = protocols.state::<ClientState>(self.state)
            && let Ok(false) = state.take(node, call, &mut Bytes::default())
        {
            state.abandon(node, call);
        }
    }

    /// Calls that may be outstanding.
    pub fn outstanding_max(&self) -> usize {
        self.outstanding
    }

    connected!("calls", |this| format!(
        "request and reply: one fast packet each way up to {} bytes, longer ones are asked for \
         first",
        this.at_once
    ));

    /// After waiting: a call whose time is over is abandoned, a peer that broke the rules leaves.
    #[inline(always)]
    fn settle<R>(
        &self,
        result: Result<Result<R, CallError>, Waited>,
        id: Option<CallId>,
    ) -> Result<R, CallError> {
        let e = match result {
            Ok(Ok(result)) => return Ok(result),
            Ok(Err(e)) => e,
            Err(waited) => waited.into(),
        };
        // If it still exists.
        if let Some(id) = id {
            self.forget(id);
        }
        if let CallError::Misbehaved(why) = &e {
            self.manager.expel(self.connection.link(), why);
        }
        Err(e)
    }
}

/// A call that somebody advances, and forgets by dropping this.
#[cfg(feature = "tokio")]
pub(crate) struct Prepared<'a> {
    client: &'a Client,
    request: &'a [u8],
    begun: Begun,
}

#[cfg(feature = "tokio")]
impl Prepared<'_> {
    /// One turn: the reply, if it is there.
    pub fn advance(&mut self) -> Result<Option<Bytes>, CallError> {
        let Self { client, request, begun } = self;
        let mut reply = Bytes::default();
        let look = {
            use crate::node::Attached;
            let mut guard = client.manager.shared.lock();
            let (node, protocols) = guard.parts();
            node.poll()?;
            protocols.after_poll(node);
            let look = match protocols.state::<ClientState>(client.state) {
                Some(state) => state.look_at_all(node, request, begun, &mut reply),
                None => Look::Nothing,
            };
            match look {
                Look::Room(link) => node.await_room(link),
                // The task is woken by this.
                Look::Again => node.stir(),
                _ => {}
            }
            protocols.after_look(node);
            look
        };
        let Look::Found(result) = look else { return Ok(None) };
        let id = core::mem::replace(begun, Begun::Nothing).id();
        client.settle(Ok(result), id).map(|()| Some(reply))
    }
}

#[cfg(feature = "tokio")]
impl Drop for Prepared<'_> {
    fn drop(&mut self) {
        if self.client.manager.is_forked() {
            return;
        }
        if let Some(id) = self.begun.id() {
            self.client.forget(id);
        }
    }
}

/// How far a call's beginning has come.
enum Begun {
    Nothing,
    Long(CallId, Sending),
    Sent(CallId),
}

impl Begun {
    fn id(&self) -> Option<CallId> {
        match self {
            Self::Nothing => None,
            Self::Long(id, _) | Self::Sent(id) => Some(*id),
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.manager.leave(&self.connection, |_| {});
        let Some(offer) = self.manager.withdraw(self.state) else { return };
        let mut node = self.manager.lock();
        let Ok(state) = offer.downcast::<ClientState>() else { return };
        state.blocks.remove(&mut node);
        for long in state.longs.values() {
            if let LongAtClient::Receiving(long) = long {
                long.remove(&mut node);
            }
        }
        let _ = node.remove_queue(state.queue);
    }
}
