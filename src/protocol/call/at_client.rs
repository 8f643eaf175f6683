//! A client's state under its manager's lock: its calls, and the progress of each.

use super::handling::{LIMIT_BYTES, application_error, limit_us, limited};
use super::{
    ASK, Blocks, Broken, Bytes, CALL_BITS, CANCEL, CLOSING, CallError, DECLINED, DRAINING, FAILED,
    LEFT, LENGTH_MAX, LIMITED, LentBlocks, LongPlace, OUTSTANDING_MAX, REPLY_LIMIT, REQUEST_LIMIT,
    TOO_LONG, ended, failed, number_from,
};
use crate::control::{Peer, RequestId};
use crate::interface::{Notification, QueueId};
use crate::node::{Look, Node, NodeSendError, Unfinished};
use crate::protocol::Connection;
use crate::protocol::manager::Protocol;
use crate::protocol::tickets::message_ticket_from;
use crate::wire::{MetadataIndex, SlotIndex, TICKET_BYTES, Ticket};
use std::collections::{HashMap, VecDeque};
use std::format;
use std::string::String;
use std::sync::Arc;
use std::time::Instant;
use std::vec::Vec;

/// Names a call of one client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CallId {
    pub(super) call: u32,
    pub(super) generation: u32,
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

    /// From [`to_bits`](Self::to_bits). Using a number that names no call is an error.
    pub fn from_bits(bits: u64) -> Self {
        Self { call: (bits >> 32) as u32, generation: bits as u32 }
    }
}

/// The state of one call, at the client.
#[derive(Clone, Copy)]
pub(super) enum AtClient {
    Free,
    Waiting,
    /// A reply lies in the block.
    Done,
    Declined,
    /// An application error lies in the block.
    Failed,
    /// The server drains, and has not taken the request.
    Draining,
    /// The server took it, and closes without a reply.
    Left,
    /// The reply is too long for this side, and the server does not know that yet.
    TooLong,
    /// The reply is too long for this side, and the server knows.
    Refused,
    /// A long request was announced.
    Asked,
    /// A long message comes or goes; more of it in `longs`.
    Long,
}

pub(super) enum LongAtClient {
    Granted(Ticket),
    Refused(u64),
    Receiving(LongPlace),
    Done(Bytes),
}

pub(super) struct Call {
    pub(super) state: AtClient,
    /// Bytes of the reply in the block.
    pub(super) length: u32,
    /// Its caller no longer waits: its number is free when the server has answered.
    pub(super) abandoned: bool,
    pub(super) generation: u32,
}

/// The client's state, under the manager's lock.
pub(in crate::protocol) struct ClientState {
    pub(super) connection: Arc<Connection>,
    pub(super) queue: QueueId,
    pub(super) blocks: Blocks,
    pub(super) lent: LentBlocks,
    pub(super) at_once: usize,
    pub(super) request_bytes_max: u64,
    pub(super) reply_bytes_max: u64,
    pub(super) calls: Vec<Call>,
    pub(super) free: Vec<u32>,
    pub(super) longs: HashMap<u32, LongAtClient>,
    pub(super) long_slots: HashMap<SlotIndex, u32>,
    pub(super) outbox: VecDeque<(u32, u32, Vec<u8>)>,
    /// The buffer in which a request with a time limit is put together.
    pub(super) scratch: Vec<u8>,
    /// The server takes no more requests.
    pub(super) server_closes: bool,
}

impl Protocol for ClientState {
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
    #[inline]
    pub(super) fn pump(&mut self, node: &mut Node) -> Result<(), Broken> {
        while let Some(notification) = node.take_next(self.queue) {
            if notification.index == MetadataIndex::FAST {
                self.handle(node, notification.word)?;
            } else {
                self.handle_long(node, notification.slot.index());
            }
        }
        if !self.outbox.is_empty() {
            self.advance(node);
        }
        Ok(())
    }

    #[cold]
    pub(super) fn advance(&mut self, node: &mut Node) {
        while let Some((call, code, data)) = self.outbox.front() {
            match self.lent.send(node, self.connection.link(), *call, *code, data) {
                Err(NodeSendError::Full) => return,
                _ => self.outbox.pop_front(),
            };
        }
    }

    #[inline]
    pub(super) fn handle(&mut self, node: &mut Node, word: u32) -> Result<(), Broken> {
        let (number, code) = (word % OUTSTANDING_MAX, word >> CALL_BITS);
        let count = self.calls.len();
        let Some(call) = self.calls.get_mut(number as usize) else {
            return Err(Broken(format!("a reply to call {number} of {count}")));
        };
        if let CLOSING | LEFT = code {
            return self.handle_closing(node, number, code);
        }
        match (call.state, code) {
            (AtClient::Waiting, 0..=LENGTH_MAX) if code <= self.blocks.block => {
                // Apart from the state: reading a word right after its halves were written stalls.
                call.length = code;
                // The server does not know the length limit of a reply.
                let is_too_long = code > self.blocks.at_once();
                call.state = if is_too_long { AtClient::Refused } else { AtClient::Done };
            }
            (AtClient::Waiting | AtClient::Asked, DECLINED) => call.state = AtClient::Declined,
            // The error is read when it is taken: the server can write there until then.
            (AtClient::Waiting, FAILED) => call.state = AtClient::Failed,
            (AtClient::Waiting | AtClient::Asked, DRAINING) => call.state = AtClient::Draining,
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
                    LongPlace::open(node, self.queue, length)
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
            (AtClient::Waiting, 0..=LENGTH_MAX) => {
                let most = self.blocks.block;
                let why = format!("a reply of {code} bytes to call {number}, where {most} fit");
                return Err(Broken(why));
            }
            (_, 0..=LENGTH_MAX) => {
                let why = format!("a reply to call {number}, which waits for none");
                return Err(Broken(why));
            }
            _ => return Err(Broken(format!("code {code} for call {number}, which is not so far"))),
        }
        let call = &self.calls[number as usize];
        let is_over = matches!(
            call.state,
            AtClient::Done
                | AtClient::Declined
                | AtClient::Refused
                | AtClient::Failed
                | AtClient::Draining
        );
        if call.abandoned && is_over {
            self.free_abandoned(node, number);
        }
        Ok(())
    }

    /// The server closes: it took one call, or it took none of the others.
    #[cold]
    fn handle_closing(&mut self, node: &mut Node, number: u32, code: u32) -> Result<(), Broken> {
        let over = if code == CLOSING { AtClient::Draining } else { AtClient::Left };
        let of = if code == CLOSING { 0..self.calls.len() as u32 } else { number..number + 1 };
        for number in of {
            let call = &mut self.calls[number as usize];
            match (call.state, code) {
                (AtClient::Waiting | AtClient::Asked, _) => call.state = over,
                (AtClient::Long | AtClient::TooLong, LEFT) => {
                    if let Some(LongAtClient::Receiving(long)) = self.longs.remove(&number) {
                        self.long_slots.remove(&long.slot.index());
                        long.remove(node);
                    }
                    call.state = over;
                }
                (_, CLOSING) => continue,
                _ => return Err(Broken(format!("left call {number}, which is not so far"))),
            }
            if self.calls[number as usize].abandoned {
                self.free_abandoned(node, number);
            }
        }
        if code == CLOSING {
            self.server_closes = true;
            // Each request is checked from now on.
            self.lent.go_slowly();
        }
        Ok(())
    }

    #[cold]
    pub(super) fn handle_long(&mut self, node: &mut Node, slot: SlotIndex) {
        let Some(number) = self.long_slots.remove(&slot) else { return };
        if let Some(LongAtClient::Receiving(long)) = self.longs.remove(&number)
            && let Some(bytes) = long.take(node)
        {
            self.longs.insert(number, LongAtClient::Done(bytes));
        }
        if self.calls[number as usize].abandoned {
            self.longs.remove(&number);
            self.free_abandoned(node, number);
        }
    }

    /// A message that has not left must not be taken for the next call of this number.
    #[cold]
    fn free_abandoned(&mut self, node: &mut Node, number: u32) {
        self.outbox.retain(|(of, code, _)| (*of, *code) != (number, CANCEL));
        self.free(node, number);
    }

    #[inline]
    pub(super) fn free(&mut self, node: &mut Node, number: u32) {
        // A caller may be waiting for a number, and no arrival would announce a free one.
        if self.free.is_empty() {
            node.wake();
        }
        let call = &mut self.calls[number as usize];
        call.state = AtClient::Free;
        call.abandoned = false;
        call.generation = call.generation.wrapping_add(1);
        self.free.push(number);
    }

    /// Takes a reply, if there is one.
    #[inline]
    pub(super) fn take(
        &mut self,
        node: &mut Node,
        id: CallId,
        reply: &mut Bytes,
    ) -> Result<bool, CallError> {
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
            AtClient::Draining => Err(CallError::Draining),
            AtClient::Left => Err(ended(&self.connection)),
            AtClient::Failed => {
                let bytes = self.blocks.block.min(LENGTH_MAX) as usize;
                let block = self.blocks.bytes(node, id.call, bytes);
                Err(application_error(block))
            }
            AtClient::TooLong => {
                // The number is free when the server has been told.
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
    #[inline]
    pub(super) fn begin(
        &mut self,
        node: &mut Node,
        request: &[u8],
        deadline: Option<Instant>,
        begun: &mut BegunCall,
    ) -> Look<Result<CallId, CallError>> {
        let link = self.connection.link();
        let id = match begun {
            BegunCall::Nothing => match self.free.last() {
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
            BegunCall::Long(id, _) => *id,
            BegunCall::Sent(id) => return Look::Found(Ok(*id)),
        };
        if let BegunCall::Nothing = begun {
            if self.server_closes {
                return Look::Found(Err(CallError::Draining));
            }
            let before = if deadline.is_some() { LIMIT_BYTES } else { 0 };
            let at_once = request.len() + before <= self.at_once;
            let sent = if at_once {
                match deadline {
                    None => self.lent.send(node, link, id.call, request.len() as u32, request),
                    Some(deadline) => {
                        limited(&mut self.scratch, request, deadline);
                        self.lent.send(node, link, id.call, LIMITED, &self.scratch)
                    }
                }
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
                // Without a limit: 0.
                let asked = [length, deadline.map_or(0, limit_us)].map(u64::to_le_bytes);
                self.lent.send(node, link, id.call, ASK, asked.as_flattened())
            };
            match sent {
                Ok(()) => {}
                Err(NodeSendError::Full) => return Look::Room(link),
                Err(e) => return Look::Found(Err(failed(e, &self.connection))),
            }
            self.free.pop();
            let call = &mut self.calls[id.call as usize];
            if at_once {
                call.state = AtClient::Waiting;
                *begun = BegunCall::Sent(id);
                return Look::Found(Ok(id));
            }
            call.state = AtClient::Asked;
            *begun = BegunCall::Long(id, None);
        }
        self.begin_long(node, request, begun, id)
    }

    #[cold]
    pub(super) fn begin_long(
        &mut self,
        node: &mut Node,
        request: &[u8],
        begun: &mut BegunCall,
        id: CallId,
    ) -> Look<Result<CallId, CallError>> {
        let BegunCall::Long(_, unfinished) = begun else { return Look::Nothing };
        if let Err(Broken(why)) = self.pump(node) {
            return Look::Found(Err(CallError::Misbehaved(why)));
        }
        match self.longs.get(&id.call) {
            Some(LongAtClient::Granted(ticket)) => {
                let length = request.len() as u64;
                if ticket.capacity() < length {
                    let why = format!(
                        "a ticket for {} bytes, where {length} were asked for",
                        ticket.capacity()
                    );
                    return Look::Found(Err(CallError::Misbehaved(why)));
                }
                let link = self.connection.link();
                let look = node.look_to_send_over(link, ticket, unfinished, request, &[]);
                if let Look::Found(Ok(())) = look {
                    self.longs.remove(&id.call);
                    self.calls[id.call as usize].state = AtClient::Waiting;
                    *begun = BegunCall::Sent(id);
                }
                look.map(|sent| sent.map(|()| id).map_err(|e| failed(e, &self.connection)))
            }
            Some(LongAtClient::Refused(max)) => {
                let (length, max) = (request.len() as u64, *max);
                self.longs.remove(&id.call);
                self.free(node, id.call);
                *begun = BegunCall::Nothing;
                Look::Found(Err(CallError::TooLong { length, max, limit: REQUEST_LIMIT }))
            }
            _ if matches!(
                self.calls[id.call as usize].state,
                AtClient::Declined | AtClient::Draining | AtClient::Left
            ) =>
            {
                let e = match self.calls[id.call as usize].state {
                    AtClient::Draining => CallError::Draining,
                    AtClient::Left => ended(&self.connection),
                    _ => CallError::Declined,
                };
                self.free(node, id.call);
                *begun = BegunCall::Nothing;
                Look::Found(Err(e))
            }
            _ if self.connection.ended().is_some() => Look::Found(Err(ended(&self.connection))),
            _ => Look::Nothing,
        }
    }

    /// Whether a call that is to begin waits for another to end.
    pub(super) fn waits_for_a_call(&self, begun: &BegunCall) -> bool {
        matches!(begun, BegunCall::Nothing) && self.free.is_empty()
    }

    /// A call's beginning if it needs no wait; `None`: nothing was done.
    #[inline]
    pub(super) fn begin_at_once(&mut self, node: &mut Node, request: &[u8]) -> Option<CallId> {
        let number = *self.free.last()?;
        let call = self.calls.get_mut(number as usize)?;
        if !self.lent.send_packet(node, number, request.len() as u32, request) {
            return None;
        }
        self.free.pop();
        call.state = AtClient::Waiting;
        Some(CallId { call: number, generation: call.generation })
    }

    /// Takes one reply, if it is the reply to this call; anything else goes the general way, and
    /// `None` means that the call has no result yet.
    #[inline]
    pub(super) fn take_at_once(
        &mut self,
        node: &mut Node,
        id: CallId,
    ) -> Option<Result<Bytes, CallError>> {
        let call = self.calls.get(id.call as usize)?;
        let waits = matches!(call.state, AtClient::Waiting) && !call.abandoned;
        if !waits || call.generation != id.generation {
            return None;
        }
        let notification = match node.take_direct(self.queue, None) {
            Some(handed) => {
                let notification = handed.notification;
                let (number, length) =
                    (notification.word % OUTSTANDING_MAX, notification.word >> CALL_BITS);
                if notification.index == MetadataIndex::FAST
                    && number == id.call
                    && length <= self.blocks.at_once().min(16)
                    && let Some(words) = handed.words()
                {
                    self.free(node, number);
                    return Some(Ok(Bytes::of_words(words, length)));
                }
                notification
            }
            None => node.pop(self.queue).ok()??,
        };
        self.take_this(node, id, &notification)
    }

    #[inline(never)]
    fn take_this(
        &mut self,
        node: &mut Node,
        id: CallId,
        notification: &Notification,
    ) -> Option<Result<Bytes, CallError>> {
        let (number, code) = (notification.word % OUTSTANDING_MAX, notification.word >> CALL_BITS);
        if notification.index != MetadataIndex::FAST {
            self.handle_long(node, notification.slot.index());
        } else if number == id.call && code <= self.blocks.at_once() {
            let mut reply = Bytes::default();
            self.blocks.copy(node, number, code, None, &mut reply);
            self.free(node, number);
            return Some(Ok(reply));
        } else if let Err(Broken(why)) = self.handle(node, notification.word) {
            return Some(Err(CallError::Misbehaved(why)));
        }
        None
    }

    #[inline]
    pub(super) fn look_for(
        &mut self,
        node: &mut Node,
        id: CallId,
        reply: &mut Bytes,
    ) -> Look<Result<(), CallError>> {
        if let Some(taken) = self.take_at_once(node, id) {
            return Look::Found(taken.map(|bytes| *reply = bytes));
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

    /// One look of a whole call: does as much as it can without waiting, within reason.
    pub(super) fn look_at_all(
        &mut self,
        node: &mut Node,
        request: &[u8],
        deadline: Option<Instant>,
        begun: &mut BegunCall,
        reply: &mut Bytes,
    ) -> Look<Result<(), CallError>> {
        for _ in 0..16 {
            if let BegunCall::Sent(id) = begun {
                return self.look_for(node, *id, reply);
            }
            match self.begin(node, request, deadline, begun) {
                Look::Found(Ok(_)) | Look::Again => {}
                other => return other.map(|begun| begun.map(|_| ())),
            }
        }
        Look::Again
    }

    /// The caller no longer waits for a call.
    pub(super) fn abandon(&mut self, node: &mut Node, id: CallId) {
        let Some(call) = self.calls.get_mut(id.call as usize) else { return };
        if call.generation != id.generation || call.abandoned {
            return;
        }
        call.abandoned = true;
        // The call no longer exists, not even for a thread that waits for it.
        call.generation = call.generation.wrapping_add(1);
        node.wake();
        let gives_up = matches!(call.state, AtClient::Asked)
            || matches!(self.longs.get(&id.call), Some(LongAtClient::Granted(_)));
        if gives_up {
            call.state = AtClient::Asked;
            self.longs.remove(&id.call);
            self.outbox.push_back((id.call, DECLINED, Vec::new()));
            self.advance(node);
        } else if matches!(call.state, AtClient::Waiting) {
            // Its handler need not go on.
            self.outbox.push_back((id.call, CANCEL, Vec::new()));
            self.advance(node);
        }
    }
}

/// The progress of a call's beginning.
#[derive(Default)]
pub(super) enum BegunCall {
    #[default]
    Nothing,
    /// Asked for; once the server has made room, begun.
    Long(CallId, Option<Unfinished>),
    Sent(CallId),
}

impl BegunCall {
    /// Whether the server may have the whole request.
    #[cfg(feature = "tokio")]
    pub(super) fn may_be_there(&self) -> bool {
        matches!(self, Self::Sent(_) | Self::Long(_, Some(_)))
    }

    pub(super) fn id(&self) -> Option<CallId> {
        match self {
            Self::Nothing => None,
            Self::Long(id, _) | Self::Sent(id) => Some(*id),
        }
    }
}
