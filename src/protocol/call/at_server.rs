//! A server's state under its manager's lock: its clients, their calls, and the messages owed to
//! them.

use super::handling::{LIMIT_BYTES, Which, deadline_from, limit_from};
use super::server::{Arrived, ServerConfig, Spares};
use super::{
    ASK, Blocks, Broken, CALL_BITS, CANCEL, DECLINED, DRAINING, FAILED, LENGTH_MAX, LIMITED,
    LentBlocks, LongPlace, OUTSTANDING_MAX, TOO_LONG, number_from,
};
use crate::control::{Peer, RequestId};
use crate::interface::{LinkId, Notification, QueueId};
use crate::node::{CloseReason, Node, NodeSendError, UnansweredRequests};
use crate::protocol::Connection;
use crate::protocol::ends::check_place;
use crate::protocol::manager::Protocol;
use crate::protocol::tickets::message_ticket_from;
use crate::wire::{MetadataIndex, SlotIndex, TICKET_BYTES, Ticket};
use core::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
use core::task::Waker;
use std::boxed::Box;
use std::collections::{HashMap, HashSet, VecDeque};
use std::format;
use std::string::String;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use std::vec::Vec;

/// The result of a server's look.
pub(super) enum Pumped {
    Nothing,
    Request(Arrived),
    Broken(LinkId, String),
}

/// The state of a call with a long message, at the server.
pub(super) enum AtServer {
    /// A long request was announced, and waits for its turn or for its bytes.
    Receiving {
        deadline: Option<Instant>,
        is_cancelled: bool,
    },
    /// A long reply was announced; `length` bytes.
    Asked(u64),
    Granted(Ticket),
    Refused,
    /// The caller gave up after its long reply was announced, or on its way: the replying thread is
    /// to abandon it. `has_answered`: the client has answered whether it makes room.
    Cancelled {
        has_answered: bool,
    },
}

pub(super) struct ClientOf {
    pub(super) connection: Option<Arc<Connection>>,
    pub(super) blocks: Blocks,
    pub(super) lent: LentBlocks,
    pub(super) at_once: usize,
    /// By number: one of the states below; `others` has the details of a call that is `OTHER`.
    pub(super) calls: CallStates,
    /// The state of a finished call: `IDLE`, or `SHUT` once the server drains.
    pub(super) idle: u8,
    pub(super) others: HashMap<u32, AtServer>,
    pub(super) longs: HashMap<u32, LongPlace>,
    pub(super) long_waiting: VecDeque<(u32, u64)>,
    /// Bytes of each long request that has memory here and has no reply yet, and their sum.
    pub(super) alive: HashMap<u32, u64>,
    pub(super) alive_bytes: u64,
    /// Some of these have gone; a long request of the user may be waiting for them.
    pub(super) freed: bool,
    /// Messages that could not be sent at once.
    pub(super) outbox: VecDeque<(u32, u32, Vec<u8>)>,
    pub(super) waits: bool,
    /// The client has broken the rules, and is about to be disconnected.
    pub(super) has_misbehaved: bool,
    pub(super) peer: Peer,
    /// Distinguishes clients that have had the same slot, also of other servers.
    pub(super) number: u64,
}

pub(super) static NEXT_CLIENT: AtomicU64 = AtomicU64::new(0);

impl ClientOf {
    /// At most two words are owed for a call at a time to a client that takes its messages: a
    /// grant, and that the message was given up after all. A client that takes none and goes on
    /// asking must not fill this process's memory.
    pub(super) fn check_owed(&self) -> Result<(), String> {
        let (owed, calls) = (self.outbox.len(), self.calls.len());
        if owed <= 2 * calls {
            return Ok(());
        }
        Err(format!("it does not take what it is sent: {owed} words are owed for {calls} calls"))
    }
}

/// The states of a client's calls. Readers of statistics read them, too, at any time: so they are
/// words that are loaded and stored without order, which costs as little as a byte.
pub(super) struct CallStates(Arc<[AtomicU8]>);

impl CallStates {
    fn new(calls: u32) -> Self {
        Self((0..calls).map(|_| AtomicU8::new(IDLE)).collect())
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// `None`: there is no such call.
    #[inline]
    fn place(&self, call: u32) -> Option<&AtomicU8> {
        self.0.get(call as usize)
    }

    /// Likewise.
    #[inline]
    pub fn get(&self, call: u32) -> Option<u8> {
        self.place(call).map(|state| state.load(Ordering::Relaxed))
    }

    #[inline]
    pub fn set(&self, call: u32, state: u8) {
        self.0[call as usize].store(state, Ordering::Relaxed);
    }

    /// Each, by number.
    pub fn iter(&self) -> impl Iterator<Item = (u32, u8)> {
        (0..).zip(self.0.iter().map(|state| state.load(Ordering::Relaxed)))
    }

    /// A counter, for statistics, of the calls that were received and have no reply yet.
    fn held(&self) -> UnansweredRequests {
        UnansweredRequests { states: self.0.clone(), is_held }
    }
}

pub(super) const IDLE: u8 = 0;

pub(super) const BUSY: u8 = 1;

pub(super) const OTHER: u8 = 2;

/// Busy, and its caller has given up.
pub(super) const CANCELLED: u8 = 3;

/// Idle, and the server drains.
pub(super) const SHUT: u8 = 4;

/// Its long reply was given up; the client is told when it has answered that it makes room.
pub(super) const GIVEN_UP: u8 = 5;

/// Whether a call was received, or is being received, and its program has yet to reply to it.
pub(super) fn is_held(state: u8) -> bool {
    !matches!(state, IDLE | SHUT | GIVEN_UP)
}

/// The server's state, under the manager's lock.
pub(in crate::protocol) struct ServerState {
    pub(super) queue: QueueId,
    pub(super) config: ServerConfig,
    pub(super) clients: Vec<Option<Box<ClientOf>>>,
    pub(super) client_count: u32,
    /// Slots of long messages, with the client's slot and the call.
    pub(super) long_slots: HashMap<SlotIndex, (SlotIndex, u32)>,
    pub(super) requests: HashMap<RequestId, SlotIndex>,
    pub(super) ready: Arc<ReadyRequests>,
    pub(super) misbehaved: u64,
    /// Calls that are `GIVEN_UP`.
    pub(super) given_up: usize,
    /// Clients with messages that could not be sent.
    pub(super) outboxes: usize,
    /// Links to be closed, each once, with the reasons.
    pub(super) guilty: Vec<(LinkId, String)>,
    /// Clients that left received requests without a reply; as many of the last of these as there
    /// may be clients.
    pub(super) departed: VecDeque<(u64, Peer, CloseReason)>,
    /// Tasks that wait for a caller to give up: by client and call.
    pub(super) watchers: HashMap<(u64, u32), (u64, Waker)>,
    /// No more requests are taken.
    pub(super) drains: bool,
    pub(super) spares: Spares,
}

/// Requests that arrived beside the one that a thread was waiting for: any thread takes them,
/// without the manager's lock.
#[derive(Default)]
pub(super) struct ReadyRequests {
    pub(super) count: AtomicUsize,
    pub(super) requests: Mutex<VecDeque<Arrived>>,
}

impl ReadyRequests {
    pub(super) fn push(&self, arrived: Arrived) {
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        requests.push_back(arrived);
        self.count.store(requests.len(), Ordering::Release);
    }

    #[inline]
    pub(super) fn pop(&self) -> Option<Arrived> {
        if self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        let arrived = requests.pop_front();
        self.count.store(requests.len(), Ordering::Release);
        arrived
    }

    /// The count of clients that have requests here, without those that `but` knows.
    pub(super) fn clients_but(&self, but: impl Fn(u64) -> bool) -> usize {
        let requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        let mut clients: Vec<u64> = requests.iter().map(|arrived| arrived.parts.client).collect();
        clients.sort_unstable();
        clients.dedup();
        clients.retain(|number| !but(*number));
        clients.len()
    }
}

impl Protocol for ServerState {
    fn check_place(&self, peer: &Peer, _: &[u8]) -> Result<(), String> {
        let max = self.config.clients_max;
        // A client that connects again and again must not fill this process with the requests it
        // leaves.
        let gone = self.ready.clients_but(|number| {
            self.clients.iter().flatten().any(|client| client.number == number)
        });
        if gone > 0 && self.client_count as usize + gone >= max as usize {
            return Err(format!(
                "it has {max} clients, as many as it may (clients_max), {gone} of them gone with \
                 requests that nobody has received yet"
            ));
        }
        let users = self.clients.iter().flatten().map(|client| client.peer.user());
        check_place(users, peer, max as usize, "clients", "clients_max")
    }

    fn admit(
        &mut self,
        node: &mut Node,
        request: RequestId,
        peer: &Peer,
        body: &[u8],
    ) -> Result<Vec<u8>, String> {
        let (lent, wanted) = LentBlocks::from_bytes(body, peer)?;
        let state = self;
        let calls = wanted.min(state.config.outstanding);
        let sizes = (state.config.request_bytes, state.config.request_bytes_max);
        let (blocks, mut answer) =
            // For each call a request and its cancellation may wait here.
            Blocks::lend(node, state.queue, calls, sizes, 2 * calls)?;
        answer.extend_from_slice(&state.config.request_bytes_max.to_le_bytes());
        let slot = blocks.slot.index();
        state.requests.insert(request, slot);
        let client = ClientOf {
            connection: None,
            blocks,
            lent,
            at_once: 0,
            calls: CallStates::new(calls),
            idle: IDLE,
            has_misbehaved: false,
            others: HashMap::new(),
            longs: HashMap::new(),
            long_waiting: VecDeque::new(),
            alive: HashMap::new(),
            alive_bytes: 0,
            freed: false,
            outbox: VecDeque::new(),
            waits: false,
            peer: peer.clone(),
            number: NEXT_CLIENT.fetch_add(1, Ordering::Relaxed),
        };
        let place = slot.0 as usize;
        if state.clients.len() <= place {
            state.clients.resize_with(place + 1, || None);
        }
        state.clients[place] = Some(Box::new(client));
        state.client_count += 1;
        Ok(answer)
    }

    fn withdrawn(&mut self, node: &mut Node, request: RequestId) {
        let state = self;
        if let Some(slot) = state.requests.remove(&request) {
            state.remove_client(node, slot);
        }
    }

    fn joined(&mut self, node: &mut Node, request: RequestId, connection: &Arc<Connection>) {
        let state = self;
        let Some(slot) = state.requests.remove(&request) else { return };
        if let Some(Some(client)) = state.clients.get_mut(slot.0 as usize) {
            let packet_bytes = node.fast_bytes_max(connection.link()).unwrap_or(0);
            client.at_once = client.lent.at_once(packet_bytes);
            if !state.drains {
                client.lent.go_over(connection.link());
            }
            node.show_held(connection.link(), client.calls.held());
            client.connection = Some(connection.clone());
            // Its messages may have been read before the manager heard of its connection.
            state.advance(node, slot);
        } else {
            // The server has drained meanwhile.
            let _ = node.disconnect(connection.link());
        }
    }

    fn left(&mut self, node: &mut Node, connection: &Connection) {
        let state = self;
        // Complete requests that it had sent are still delivered: send-then-exit loses nothing.
        // Another client's violation does not hide them.
        loop {
            match state.pump_queue(node) {
                Pumped::Request(arrived) => state.ready.push(arrived),
                Pumped::Broken(link, _) if link == connection.link() => {}
                Pumped::Broken(link, why) => state.accuse(node, link, why),
                Pumped::Nothing => break,
            }
        }
        state.guilty.retain(|(link, _)| *link != connection.link());
        let leaves = |client: &ClientOf| {
            client.connection.as_ref().is_some_and(|c| c.link() == connection.link())
        };
        let slots: Vec<SlotIndex> = state
            .clients
            .iter()
            .flatten()
            .filter(|client| leaves(client))
            .map(|client| client.blocks.slot.index())
            .collect();
        for slot in slots {
            state.remove_client(node, slot);
        }
    }
}

impl ClientOf {
    /// A call is over; its number is free.
    #[inline]
    pub(super) fn end(&mut self, call: u32) {
        self.end_short(call);
        if !self.alive.is_empty() {
            self.end_long(call);
        }
    }

    /// The same if no long request of its client is here.
    #[inline]
    pub(super) fn end_short(&mut self, call: u32) {
        self.calls.set(call, self.idle);
    }
}

impl ServerState {
    pub(super) fn remove_client(&mut self, node: &mut Node, slot: SlotIndex) {
        let Some(client) = self.clients.get_mut(slot.0 as usize).and_then(Option::take) else {
            return;
        };
        self.client_count -= 1;
        self.given_up -= client.calls.iter().filter(|(_, state)| *state == GIVEN_UP).count();
        self.outboxes -= client.waits as usize;
        if client.calls.iter().any(|(_, state)| is_held(state)) {
            let ended = client.connection.as_ref().and_then(|connection| connection.ended());
            let reason = ended.cloned().unwrap_or(CloseReason::Closed);
            self.departed.push_back((client.number, client.peer.clone(), reason));
            if self.departed.len() > self.config.clients_max as usize {
                self.departed.pop_front();
            }
        }
        self.wake_watchers_of(client.number);
        client.blocks.remove(node);
        for long in client.longs.values() {
            self.long_slots.remove(&long.slot.index());
            long.remove(node);
        }
        if client.alive_bytes > 0 {
            self.advance_waiting(node);
        }
    }

    /// A client has broken the rules: it is counted once, though more of its violations may be here
    /// before it is disconnected.
    #[cold]
    pub(super) fn count_broken(&mut self, slot: SlotIndex) {
        let client = self.clients.get_mut(slot.0 as usize).and_then(Option::as_mut);
        let is_known =
            client.is_some_and(|client| core::mem::replace(&mut client.has_misbehaved, true));
        self.misbehaved += u64::from(!is_known);
    }

    /// Remembers, until the next look, a client to disconnect.
    #[cold]
    pub(super) fn accuse(&mut self, node: &Node, link: LinkId, why: String) {
        let here: HashSet<LinkId> = node.links().collect();
        self.guilty.retain(|(known, _)| *known != link && here.contains(known));
        self.guilty.push((link, why));
    }

    /// The sender of a request.
    pub(super) fn peer_of(&mut self, which: Which) -> Option<Peer> {
        if let Some(client) = self.client_at(which.slot, which.client) {
            return Some(client.peer.clone());
        }
        self.departed(which.client).map(|(_, peer, _)| peer.clone())
    }

    fn departed(&self, client: u64) -> Option<&(u64, Peer, CloseReason)> {
        self.departed.iter().find(|(number, ..)| *number == client)
    }

    /// The reason why the client of a request has gone.
    pub(super) fn why_gone(&self, arrived: &Arrived) -> Option<CloseReason> {
        self.departed(arrived.parts.client).map(|(.., reason)| reason.clone())
    }

    /// Whether a client has yet to answer for a long reply that will not come.
    pub(in crate::protocol) fn waits_for_given_up(&self) -> bool {
        self.given_up > 0
    }

    /// The request that comes straight from a ring when the queue is empty; other threads have
    /// nothing to take then. `None`: there was no request.
    #[inline]
    pub(super) fn take_at_once(&mut self, node: &mut Node) -> Option<Arrived> {
        let handed = node.take_direct(self.queue, None)?;
        let notification = handed.notification;
        if notification.index != MetadataIndex::FAST {
            return self.handle_long(node, &notification);
        }
        match self.handle(node, &notification, handed.words()) {
            Ok(arrived) => arrived,
            Err(Broken(why)) => {
                self.count_broken(notification.slot.index());
                self.accuse(node, notification.link, why);
                None
            }
        }
    }

    /// Handles arrivals, up to the first request or the first client that broke the rules.
    #[inline]
    pub(super) fn pump(&mut self, node: &mut Node) -> Pumped {
        match self.pump_queue(node) {
            Pumped::Nothing => match self.guilty.pop() {
                Some((link, why)) => Pumped::Broken(link, why),
                None => Pumped::Nothing,
            },
            found => found,
        }
    }

    #[inline]
    pub(super) fn pump_queue(&mut self, node: &mut Node) -> Pumped {
        while let Some(notification) = node.take_next(self.queue) {
            let handled = if notification.index == MetadataIndex::FAST {
                self.handle(node, &notification, None)
            } else {
                Ok(self.handle_long(node, &notification))
            };
            match handled {
                Ok(Some(arrived)) => return Pumped::Request(arrived),
                Ok(None) => {}
                Err(Broken(why)) => {
                    self.count_broken(notification.slot.index());
                    return Pumped::Broken(notification.link, why);
                }
            }
        }
        if self.outboxes > 0 {
            self.advance_all(node);
        }
        Pumped::Nothing
    }

    #[inline]
    pub(super) fn handle(
        &mut self,
        node: &mut Node,
        notification: &Notification,
        words: Option<[u64; 2]>,
    ) -> Result<Option<Arrived>, Broken> {
        let (slot, link) = (notification.slot.index(), notification.link);
        let (call, code) = (notification.word % OUTSTANDING_MAX, notification.word >> CALL_BITS);
        let Some(Some(client)) = self.clients.get_mut(slot.0 as usize) else { return Ok(None) };
        let Some(state) = client.calls.place(call) else {
            return Err(Broken(format!("call {call} of {}", client.calls.len())));
        };
        if state.load(Ordering::Relaxed) == IDLE && code <= client.blocks.at_once() {
            state.store(BUSY, Ordering::Relaxed);
            let mut arrived = self.spares.take();
            let into = &mut *arrived.parts;
            client.blocks.copy(node, call, code, words, &mut into.bytes);
            (into.call, into.slot, into.link) = (call, slot, link);
            into.client = client.number;
            return Ok(Some(arrived));
        }
        self.handle_other(node, notification, call, code)
    }

    /// Handles a request with a time limit, or a message that belongs to a long one, or to nothing.
    /// Returns whether it is a request.
    #[cold]
    pub(super) fn handle_other(
        &mut self,
        node: &mut Node,
        notification: &Notification,
        call: u32,
        code: u32,
    ) -> Result<Option<Arrived>, Broken> {
        let slot = notification.slot.index();
        let Some(Some(client)) = self.clients.get_mut(slot.0 as usize) else { return Ok(None) };
        client.check_owed().map_err(Broken)?;
        let state = client.calls.get(call).unwrap_or(SHUT);
        let other = client.others.get_mut(&call);
        match (code, state, other) {
            (LIMITED, IDLE, _) => {
                let at_once = client.blocks.at_once() as usize;
                let bytes = client.blocks.bytes(node, call, at_once);
                let (length, deadline) = limit_from(number_from(bytes));
                let Some(request) = bytes.get(LIMIT_BYTES..LIMIT_BYTES + length as usize) else {
                    return Err(Broken(format!(
                        "a request of {length} bytes in a block of {at_once}"
                    )));
                };
                let mut arrived = self.spares.take();
                let into = &mut *arrived.parts;
                into.bytes.copy(request);
                client.calls.set(call, BUSY);
                (into.call, into.slot, into.link) = (call, slot, notification.link);
                (into.client, into.deadline) = (client.number, deadline);
                return Ok(Some(arrived));
            }
            (code, SHUT, _)
                if code == ASK || code == LIMITED || code <= client.blocks.at_once() =>
            {
                client.outbox.push_back((call, DRAINING, Vec::new()));
            }
            (ASK, IDLE, _) => {
                let (length, limit_us) = {
                    let asked = client.blocks.bytes(node, call, 16);
                    (number_from(asked), number_from(asked.get(8..).unwrap_or_default()))
                };
                if length > self.config.request_bytes_max {
                    let max = self.config.request_bytes_max.to_le_bytes();
                    client.outbox.push_back((call, TOO_LONG, max.to_vec()));
                } else {
                    client.calls.set(call, OTHER);
                    let deadline = deadline_from(limit_us);
                    let receiving = AtServer::Receiving { deadline, is_cancelled: false };
                    client.others.insert(call, receiving);
                    client.long_waiting.push_back((call, length));
                }
            }
            // The client gives up a long request.
            (DECLINED, OTHER, Some(AtServer::Receiving { .. })) => {
                client.end(call);
                client.others.remove(&call);
                client.long_waiting.retain(|(waiting, _)| *waiting != call);
                if let Some(long) = client.longs.remove(&call) {
                    self.long_slots.remove(&long.slot.index());
                    long.remove(node);
                }
                // This tells the client that the call's number is free again.
                client.outbox.push_back((call, DECLINED, Vec::new()));
            }
            (ASK, OTHER, Some(other @ AtServer::Asked(_))) => {
                let AtServer::Asked(length) = *other else { return Ok(None) };
                let bytes = client.blocks.bytes(node, call, TICKET_BYTES);
                *other = AtServer::Granted(
                    message_ticket_from(bytes, &client.peer, length).map_err(Broken)?,
                );
            }
            (TOO_LONG, OTHER, Some(other @ AtServer::Asked(_))) => *other = AtServer::Refused,
            (ASK | TOO_LONG, OTHER, Some(AtServer::Cancelled { has_answered }))
                if !*has_answered =>
            {
                *has_answered = true;
            }
            (ASK | TOO_LONG, GIVEN_UP, _) => {
                self.given_up -= 1;
                client.end(call);
                client.others.remove(&call);
                client.outbox.push_back((call, DECLINED, Vec::new()));
            }
            // A long request was given up while its refusal was on its way.
            (DECLINED, IDLE | BUSY | CANCELLED | SHUT, _) => {}
            // A caller gives up; each once, and the reply may have been sent already.
            (CANCEL, BUSY, _) => {
                client.calls.set(call, CANCELLED);
                let number = client.number;
                self.wake_watcher(number, call);
                return Ok(None);
            }
            (CANCEL, OTHER, Some(AtServer::Receiving { is_cancelled, .. })) if !*is_cancelled => {
                *is_cancelled = true;
            }
            (CANCEL, OTHER, Some(other @ (AtServer::Asked(_) | AtServer::Granted(_)))) => {
                let has_answered = matches!(other, AtServer::Granted(_));
                *other = AtServer::Cancelled { has_answered };
                // The replying thread waits for it.
                node.wake();
                return Ok(None);
            }
            (CANCEL, OTHER, Some(AtServer::Refused)) | (CANCEL, IDLE | SHUT | GIVEN_UP, _) => {
                return Ok(None);
            }
            (0..=LENGTH_MAX, IDLE, _) => {
                let most = client.blocks.at_once();
                let why = format!("a request of {code} bytes in a block of {most}");
                return Err(Broken(why));
            }
            _ => return Err(Broken(format!("code {code} for call {call}, which is not so far"))),
        }
        self.advance(node, slot);
        Ok(None)
    }

    /// Opens places for long requests, and sends waiting messages.
    pub(super) fn advance(&mut self, node: &mut Node, slot: SlotIndex) {
        self.open_longs(node, slot);
        self.send_owed(node, slot);
        let Some(Some(client)) = self.clients.get_mut(slot.0 as usize) else { return };
        if core::mem::take(&mut client.freed) {
            self.advance_waiting(node);
        }
    }

    /// Sends waiting messages.
    pub(super) fn send_owed(&mut self, node: &mut Node, slot: SlotIndex) {
        let Some(Some(client)) = self.clients.get_mut(slot.0 as usize) else { return };
        let Some(connection) = &client.connection else { return };
        let link = connection.link();
        let waited = core::mem::take(&mut client.waits);
        while let Some((call, code, data)) = client.outbox.front() {
            match client.lent.send(node, link, *call, *code, data) {
                Err(NodeSendError::Full) => {
                    client.waits = true;
                    // Also if no thread waits for anything of this server.
                    node.await_room(link);
                    break;
                }
                _ => {
                    let (call, code) = (*call, *code);
                    client.outbox.pop_front();
                    // A kept reply: the call's number is free from now on.
                    if code <= LENGTH_MAX || code == FAILED {
                        client.end(call);
                        // A draining thread waits for that.
                        node.wake();
                    }
                }
            };
        }
        self.outboxes = self.outboxes + client.waits as usize - waited as usize;
    }

    /// Sends messages that could not be sent before.
    #[cold]
    pub(super) fn advance_all(&mut self, node: &mut Node) {
        let slots: Vec<SlotIndex> = self
            .clients
            .iter()
            .flatten()
            .filter(|client| client.waits)
            .map(|client| client.blocks.slot.index())
            .collect();
        for slot in slots {
            self.advance(node, slot);
        }
    }

    /// All other arrivals are for other threads.
    pub(in crate::protocol) fn share_rest(&mut self, node: &mut Node) -> Option<(LinkId, String)> {
        loop {
            match self.pump(node) {
                Pumped::Request(arrived) => self.ready.push(arrived),
                Pumped::Broken(link, why) => return Some((link, why)),
                Pumped::Nothing => return None,
            }
        }
    }

    #[inline]
    pub(super) fn client_of(&mut self, arrived: &Arrived) -> Option<&mut ClientOf> {
        self.client_at(arrived.parts.slot, arrived.parts.client)
    }

    /// The client of that number, if it is the one of this slot.
    pub(super) fn client_at(&mut self, slot: SlotIndex, number: u64) -> Option<&mut ClientOf> {
        let client = self.clients.get_mut(slot.0 as usize)?.as_mut()?;
        (client.number == number).then_some(client)
    }
}
