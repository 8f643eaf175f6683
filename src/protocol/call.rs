//! Request and reply: calls of a named service, many outstanding, for any number of threads.
//!
//! ```text
//!   Client                                                          Server
//!   call  ---- one fast packet: word = call and length ---->  request block of the call   receive
//!         <--- one fast packet: word = call and length -----  reply block of the call     reply
//!
//!   longer than a block:
//!         ---- ASK, 8 bytes: the length -------------------->
//!         <--- ASK, 44 bytes: a ticket for one message ------
//!         ==== a message of many packets ===================>      (and a long reply, mirrored)
//! ```
//! When a client is grown each side lends the other one block for each outstanding call, so that
//! a call of up to 16 bytes is one cache line each way, and an outstanding one costs a block and
//! two entries of a queue. The reply's ticket of Hamlyn 3.3 is lent once, for all calls.
//!
//! A word is the number of the call (20 bits) and a code (12 bits): a length of up to
//! [`LENGTH_MAX`], or `ASK`, `DECLINED`, `TOO_LONG`. A call is in one state at a time on each
//! side, so a code and the state say what a message is:
//! ```text
//!   client: Free -> Waiting -> Done -> Free          long request: Asked -> Granted -> Waiting
//!                      \-> Receiving -> Done         (a long reply arrives)
//!   server: Idle -> Busy -> Idle                     Idle -> Receiving -> Busy (a long request)
//!                     \-> Asked -> Granted -> Idle   (a long reply)
//! ```
//! A message that fits no state is a violation: its sender is sent away. Bytes are copied out of
//! the blocks under the manager's lock, before anybody else's turn, so they stand still for whoever
//! reads them.

use super::credit::fast_ticket_from;
use super::manager::{Admission, Offer, OfferId, Target, set_up};
use super::tagged::explain;
use super::{Connection, EndPoint, GrowError, Kind, Manager, ReceiveError, Seed};
use crate::control::{Access, Peer, RequestId};
use crate::interface::{AreaId, LinkId, Mode, Notification, QueueId, SlotConfig, SlotId};
use crate::node::{CloseReason, Forked, Look, Node, OfferError, SendError, Unfinished, Waited};
use crate::os::memory::AreaMemory;
use crate::wire::{MetadataIndex, SlotIndex, TICKET_BYTES, Ticket};
use core::ops::Deref;
use core::sync::atomic::{AtomicUsize, Ordering};
use core::time::Duration;
use std::boxed::Box;
use std::collections::{HashMap, VecDeque};
use std::format;
use std::io;
use std::string::{String, ToString};
use std::sync::{Arc, Mutex, PoisonError};
use std::vec::Vec;

const CALL_BITS: u32 = 20;
/// Most calls of one client that may be outstanding.
pub const OUTSTANDING_MAX: u32 = 1 << CALL_BITS;
const ASK: u32 = 4095;
const DECLINED: u32 = 4094;
const TOO_LONG: u32 = 4093;
/// Most bytes that are sent at once; longer ones are asked for first.
pub const LENGTH_MAX: u32 = 4092;
/// Long messages of one client that may be on their way to the server at a time.
const LONG_MAX: usize = 4;

fn word_of(call: u32, code: u32) -> u32 {
    call | code << CALL_BITS
}

/// What a [`Server`] is made of.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Calls that each client may have outstanding. 64 unless set.
    pub outstanding: u32,
    /// Bytes of a request that are sent at once; longer ones cost a round trip more. Memory is used
    /// when it is written. 4,092 unless set, which is the most.
    pub request_bytes: u32,
    /// Longest request, in bytes. 16 MiB unless set.
    pub request_bytes_max: u64,
    /// Clients at one time. 64 unless set.
    pub clients_max: u32,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            outstanding: 64,
            request_bytes: LENGTH_MAX,
            request_bytes_max: 16 << 20,
            clients_max: 64,
        }
    }
}

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

/// A call that failed.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The time is over. The server may still be at work; its reply will be dropped.
    #[error("no reply came within the time limit")]
    TimedOut,
    /// The server took the request and will not reply: its handler dropped it.
    #[error("the server will not reply to this request")]
    Declined,
    /// More than the other side takes.
    #[error("a message of {length} bytes is longer than the {max} that the other side takes")]
    TooLong {
        /// Bytes of the message; of a reply, 0: only the server knows.
        length: u64,
        /// Most bytes.
        max: u64,
    },
    /// The peer is gone; all its calls fail at once.
    #[error("the peer is gone ({0:?})")]
    Ended(CloseReason),
    /// The peer broke the protocol's rules; its link has been closed.
    #[error("the peer broke the rules and was sent away: {0}")]
    Misbehaved(String),
    /// No such call: it was finished, or is another client's.
    #[error("{0:?} does not exist: it was finished, or is another client's")]
    NoSuchCall(CallId),
    /// This process has no memory or slots left for a long message.
    #[error("a long message cannot be received here: {0}")]
    Memory(String),
    /// The lower level says why.
    #[error(transparent)]
    Send(#[from] SendError),
    /// The calling process is a forked child.
    #[error(transparent)]
    Forked(#[from] Forked),
    /// Waiting failed.
    #[error("waiting failed: {0}")]
    Wait(Arc<io::Error>),
}

impl From<Waited> for CallError {
    fn from(waited: Waited) -> Self {
        match waited {
            Waited::TimedOut => Self::TimedOut,
            Waited::Forked(e) => Self::Forked(e),
            Waited::Os(e) => Self::Wait(Arc::new(e)),
        }
    }
}

/// Bytes of a request or reply; they stand still.
pub struct Bytes(Held);

enum Held {
    Inline([u8; INLINE], u8),
    Heap(Box<[u8]>),
    Area(AreaMemory),
}

/// Bytes that are kept in place: a longer `Bytes` would be moved about longer.
const INLINE: usize = 24;

impl Bytes {
    #[inline(always)]
    fn copied(bytes: &[u8]) -> Self {
        let mut inline = [0; INLINE];
        // A copy of a length that the compiler knows is no call.
        match bytes.len() {
            8 => inline[..8].copy_from_slice(bytes),
            16 => inline[..16].copy_from_slice(bytes),
            length if length <= INLINE => inline[..length].copy_from_slice(bytes),
            _ => return Self(Held::Heap(bytes.into())),
        }
        Self(Held::Inline(inline, bytes.len() as u8))
    }
}

impl Deref for Bytes {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &[u8] {
        match &self.0 {
            Held::Inline(bytes, length) => &bytes[..*length as usize],
            Held::Heap(bytes) => bytes,
            Held::Area(memory) => memory.as_ref(),
        }
    }
}

impl core::fmt::Debug for Bytes {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Bytes({} bytes)", self.len())
    }
}

// ---- what both sides do

/// The blocks that one side lends the other: an area, a slot, one block for each call.
struct Blocks {
    area: AreaId,
    slot: SlotId,
    block: u32,
}

impl Blocks {
    fn new(node: &mut Node, queue: QueueId, calls: u32, block: u32) -> Result<Self, String> {
        // A ticket for a long message must fit, too.
        let block = block.clamp(TICKET_BYTES as u32, LENGTH_MAX).next_multiple_of(8);
        let bytes = (calls as usize).saturating_mul(block as usize);
        let area = node.message_area(bytes).map_err(|e| e.to_string())?;
        match node.slot(SlotConfig::new(area, queue).credit(calls)) {
            Ok(slot) => Ok(Self { area, slot, block }),
            Err(e) => {
                let _ = node.remove_area(area);
                Err(e.to_string())
            }
        }
    }

    fn bytes<'a>(&self, node: &'a Node, call: u32, length: usize) -> &'a [u8] {
        let from = call as usize * self.block as usize;
        node.area(self.area).ok().and_then(|a| a.get(from..from + length)).unwrap_or(&[])
    }

    fn remove(&self, node: &mut Node) {
        let _ = node.remove_slot(self.slot);
        let _ = node.remove_area(self.area);
    }
}

/// The blocks that the other side lends.
#[derive(Clone, Copy, Debug)]
struct Lent {
    ticket: Ticket,
    block: u32,
}

impl Lent {
    const BYTES: usize = TICKET_BYTES + 8;

    fn to_bytes(node: &Node, blocks: &Blocks, calls: u32) -> Result<Vec<u8>, String> {
        let mut bytes =
            node.fast_ticket(blocks.slot).map_err(|e| e.to_string())?.to_bytes().to_vec();
        bytes.extend_from_slice(&blocks.block.to_le_bytes());
        bytes.extend_from_slice(&calls.to_le_bytes());
        Ok(bytes)
    }

    /// The blocks, and for how many calls.
    fn from_bytes(bytes: &[u8], peer: &Peer) -> Result<(Self, u32), String> {
        let number = |i: usize| -> Option<u32> {
            Some(u32::from_le_bytes(bytes.get(i..i + 4)?.try_into().ok()?))
        };
        let ticket = fast_ticket_from(bytes, peer)?;
        let block = number(TICKET_BYTES).ok_or("the size of its blocks is missing")?;
        let calls = number(TICKET_BYTES + 4).ok_or("the number of its calls is missing")?;
        let fits = calls as u64 * block as u64 <= ticket.capacity();
        if !(TICKET_BYTES as u32..=LENGTH_MAX + 8).contains(&block)
            || !(1..=OUTSTANDING_MAX).contains(&calls)
            || !fits
        {
            return Err(format!("{calls} blocks of {block} bytes cannot be"));
        }
        Ok((Self { ticket, block }, calls))
    }

    /// Bytes that are sent at once over a link with these packets.
    fn at_once(&self, packet_bytes: usize) -> usize {
        (self.block.min(LENGTH_MAX) as usize).min(packet_bytes)
    }

    #[inline(always)]
    fn send(
        &self,
        node: &mut Node,
        link: LinkId,
        call: u32,
        code: u32,
        data: &[u8],
    ) -> Result<(), SendError> {
        let base = self.ticket.base + call as u64 * self.block as u64;
        let ticket = Ticket { base, ..self.ticket };
        node.try_send_fast_over(link, &ticket, data, word_of(call, code)).map(|_| ())
    }
}

/// A place for one long message: an area and a one-shot slot of its own.
#[derive(Clone, Copy)]
struct Long {
    area: AreaId,
    slot: SlotId,
}

impl Long {
    fn open(node: &mut Node, queue: QueueId, length: u64) -> Result<(Self, Ticket), String> {
        let bytes = usize::try_from(length).map_err(|e| e.to_string())?;
        let area = node.message_area(bytes.max(1)).map_err(|e| e.to_string())?;
        let config = SlotConfig::new(area, queue).mode(Mode::ParanoidOneShot).range(0..length);
        let made = node.slot(config).and_then(|slot| {
            let index = MetadataIndex(0);
            let ticket =
                node.arm(slot, index, Some(0..length)).and_then(|()| node.ticket(slot, index));
            if ticket.is_err() {
                let _ = node.remove_slot(slot);
            }
            ticket.map(|ticket| (Self { area, slot }, ticket))
        });
        if made.is_err() {
            let _ = node.remove_area(area);
        }
        made.map_err(|e| e.to_string())
    }

    /// The message has arrived: its memory, without copying.
    fn take(self, node: &mut Node) -> Option<Bytes> {
        let _ = node.remove_slot(self.slot);
        node.take_area(self.area).ok().map(|memory| Bytes(Held::Area(memory)))
    }

    fn remove(self, node: &mut Node) {
        let _ = node.remove_slot(self.slot);
        let _ = node.remove_area(self.area);
    }
}

/// Whether a message for a call has left.
enum Sending {
    Asked,
    Going(Box<Unfinished>),
}

/// One look of whoever sends a long message for which a ticket was given.
fn go_on(
    node: &mut Node,
    link: LinkId,
    sending: &mut Sending,
    ticket: &Ticket,
    data: &[u8],
) -> Look<Result<(), SendError>> {
    if let Sending::Asked = sending {
        match node.prepare_send(link, ticket, data.len(), 0, 0) {
            Ok(unfinished) => *sending = Sending::Going(Box::new(unfinished)),
            Err(e) => return Look::Found(Err(e)),
        }
    }
    let Sending::Going(unfinished) = sending else { return Look::Nothing };
    match node.look_to_send(unfinished, data, &[]) {
        Look::Found(result) => Look::Found(result.map(|_| ())),
        Look::Again => Look::Again,
        Look::Room(link) => Look::Room(link),
        Look::Nothing => Look::Nothing,
    }
}

/// A ticket that a peer gave for one long message of `length` bytes.
fn long_ticket_from(bytes: &[u8], peer: &Peer, length: u64) -> Result<Ticket, String> {
    let ticket = Ticket::from_bytes(bytes).map_err(|e| e.to_string())?;
    if ticket.destination != peer.node || ticket.capacity() < length {
        return Err("its ticket for a long message leads elsewhere, or is too small".into());
    }
    Ok(ticket)
}

fn number_from(bytes: &[u8]) -> u64 {
    bytes.first_chunk::<8>().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

/// The peer broke the rules, in these words.
struct Broken(String);

/// What a server found.
enum Pumped {
    Nothing,
    Request(Arrived),
    Broken(LinkId, String),
}

// ---- server

/// Where a call with a long message stands, at the server.
enum AtServer {
    /// A long request was announced, and waits for its turn or for its bytes.
    Receiving,
    /// A long reply was announced; `length` bytes.
    Asked(u64),
    Granted(Ticket),
    Refused,
    /// The reply was given up before the client answered.
    GivenUp,
}

struct ClientOf {
    connection: Option<Arc<Connection>>,
    blocks: Blocks,
    lent: Lent,
    at_once: usize,
    /// Calls that were begun, by number; those that are not here are idle. A vector of 100,000
    /// bytes would be needed for idle ones.
    calls: Vec<u8>,
    others: HashMap<u32, AtServer>,
    longs: HashMap<u32, Long>,
    long_waiting: VecDeque<(u32, u64)>,
    /// What could not be sent at once.
    outbox: VecDeque<(u32, u32, Vec<u8>)>,
    waits: bool,
    peer: Peer,
    /// Distinguishes clients that have had the same slot.
    number: u64,
}

const IDLE: u8 = 0;
const BUSY: u8 = 1;
const OTHER: u8 = 2;

/// The server's state, under the manager's lock.
struct ServerState {
    queue: QueueId,
    config: ServerConfig,
    clients: Vec<Option<Box<ClientOf>>>,
    client_count: u32,
    /// Slots of long messages: the client's slot and the call.
    long_slots: HashMap<SlotIndex, (SlotIndex, u32)>,
    requests: HashMap<RequestId, SlotIndex>,
    ready: Arc<Ready>,
    next_client: u64,
    misbehaved: u64,
    /// Clients to which something could not be sent.
    outboxes: usize,
}

/// What arrived beside the request that a thread was waiting for: any thread takes it, without the
/// manager's lock.
#[derive(Default)]
struct Ready {
    count: AtomicUsize,
    requests: Mutex<VecDeque<Arrived>>,
}

impl Ready {
    fn push(&self, arrived: Arrived) {
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        requests.push_back(arrived);
        self.count.store(requests.len(), Ordering::Release);
    }

    #[inline]
    fn pop(&self) -> Option<Arrived> {
        if self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        let arrived = requests.pop_front();
        self.count.store(requests.len(), Ordering::Release);
        arrived
    }
}

/// A request apart from its server, for threads and tasks that outlive a borrow: see
/// [`Server::attach`]. If it is dropped, the client waits until its time is over.
#[derive(Debug)]
pub struct Arrived {
    bytes: Bytes,
    call: u32,
    slot: SlotIndex,
    client: u64,
    link: LinkId,
}

/// Receives calls. `Send` and `Sync`: several threads may receive and reply.
pub struct Server {
    manager: Manager,
    offer: OfferId,
    queue: QueueId,
    ready: Arc<Ready>,
}

/// A call to be replied to. Dropped without a reply, it tells the client that none will come.
pub struct Request<'a> {
    server: &'a Server,
    arrived: Option<Arrived>,
}

impl Offer for ServerState {
    fn admit(
        &mut self,
        node: &mut Node,
        request: RequestId,
        peer: &Peer,
        body: &[u8],
    ) -> Result<Vec<u8>, String> {
        let (lent, wanted) = Lent::from_bytes(body, peer)?;
        let state = self;
        let max = state.config.clients_max;
        if state.client_count >= max {
            return Err(format!("it has {max} clients, as many as it may"));
        }
        let calls = wanted.min(state.config.outstanding);
        let blocks = Blocks::new(node, state.queue, calls, state.config.request_bytes)?;
        let mut answer = Lent::to_bytes(node, &blocks, calls)?;
        answer.extend_from_slice(&state.config.request_bytes_max.to_le_bytes());
        let slot = blocks.slot.index();
        state.requests.insert(request, slot);
        state.next_client += 1;
        let client = ClientOf {
            connection: None,
            blocks,
            lent,
            at_once: 0,
            calls: std::vec![IDLE; calls as usize],
            others: HashMap::new(),
            longs: HashMap::new(),
            long_waiting: VecDeque::new(),
            outbox: VecDeque::new(),
            waits: false,
            peer: peer.clone(),
            number: state.next_client,
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
            client.connection = Some(connection.clone());
        }
    }

    fn left(&mut self, node: &mut Node, connection: &Connection) {
        let state = self;
        // What it had sent, and is whole, is still handed out: send-then-exit loses nothing.
        while let Pumped::Request(arrived) = state.pump(node) {
            state.ready.push(arrived);
        }
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

impl ServerState {
    fn remove_client(&mut self, node: &mut Node, slot: SlotIndex) {
        let Some(client) = self.clients.get_mut(slot.0 as usize).and_then(Option::take) else {
            return;
        };
        self.client_count -= 1;
        self.outboxes -= client.waits as usize;
        client.blocks.remove(node);
        for long in client.longs.values() {
            self.long_slots.remove(&long.slot.index());
            long.remove(node);
        }
    }

    /// Handles what has arrived, up to the first request or the first client that broke the rules.
    #[inline(always)]
    fn pump(&mut self, node: &mut Node) -> Pumped {
        while let Ok(Some(notification)) = node.pop(self.queue) {
            let handled = if notification.index == MetadataIndex::FAST {
                self.handle(node, &notification)
            } else {
                self.handle_long(node, &notification)
            };
            match handled {
                Ok(Some(arrived)) => return Pumped::Request(arrived),
                Ok(None) => {}
                Err(Broken(why)) => {
                    self.misbehaved += 1;
                    return Pumped::Broken(notification.link, why);
                }
            }
        }
        if self.outboxes > 0 {
            self.advance_all(node);
        }
        Pumped::Nothing
    }

    #[inline(always)]
    fn handle(
        &mut self,
        node: &mut Node,
        notification: &Notification,
    ) -> Result<Option<Arrived>, Broken> {
        let (slot, link) = (notification.slot, notification.link);
        let (call, code) = (notification.word % OUTSTANDING_MAX, notification.word >> CALL_BITS);
        let Some(Some(client)) = self.clients.get_mut(slot.0 as usize) else { return Ok(None) };
        let Some(state) = client.calls.get_mut(call as usize) else {
            return Err(Broken(format!("call {call} of {}", client.calls.len())));
        };
        if *state == IDLE && code <= LENGTH_MAX.min(client.blocks.block) {
            *state = BUSY;
            let bytes = Bytes::copied(client.blocks.bytes(node, call, code as usize));
            return Ok(Some(Arrived { bytes, call, slot, client: client.number, link }));
        }
        self.handle_other(node, slot, call, code).map(|()| None)
    }

    /// A message that belongs to a long one, or to nothing.
    #[cold]
    fn handle_other(
        &mut self,
        node: &mut Node,
        slot: SlotIndex,
        call: u32,
        code: u32,
    ) -> Result<(), Broken> {
        let Some(Some(client)) = self.clients.get_mut(slot.0 as usize) else { return Ok(()) };
        let state = client.calls[call as usize];
        let other = client.others.get_mut(&call);
        match (code, state, other) {
            (ASK, IDLE, _) => {
                let length = number_from(client.blocks.bytes(node, call, 8));
                if length > self.config.request_bytes_max {
                    let max = self.config.request_bytes_max.to_le_bytes();
                    client.outbox.push_back((call, TOO_LONG, max.to_vec()));
                } else {
                    client.calls[call as usize] = OTHER;
                    client.others.insert(call, AtServer::Receiving);
                    client.long_waiting.push_back((call, length));
                }
            }
            // The client gives up a long request.
            (DECLINED, OTHER, Some(AtServer::Receiving)) => {
                client.calls[call as usize] = IDLE;
                client.others.remove(&call);
                client.long_waiting.retain(|(waiting, _)| *waiting != call);
                if let Some(long) = client.longs.remove(&call) {
                    self.long_slots.remove(&long.slot.index());
                    long.remove(node);
                }
                // So that the client knows that the call's number is free again.
                client.outbox.push_back((call, DECLINED, Vec::new()));
            }
            (ASK, OTHER, Some(other @ AtServer::Asked(_))) => {
                let AtServer::Asked(length) = *other else { return Ok(()) };
                let bytes = client.blocks.bytes(node, call, TICKET_BYTES);
                *other = AtServer::Granted(
                    long_ticket_from(bytes, &client.peer, length).map_err(Broken)?,
                );
            }
            (TOO_LONG, OTHER, Some(other @ AtServer::Asked(_))) => *other = AtServer::Refused,
            (ASK | TOO_LONG, OTHER, Some(AtServer::GivenUp)) => {
                client.calls[call as usize] = IDLE;
                client.others.remove(&call);
                client.outbox.push_back((call, DECLINED, Vec::new()));
            }
            // A long request was given up while its refusal was on its way.
            (DECLINED, IDLE | BUSY, _) => {}
            _ => return Err(Broken(format!("code {code} for call {call}, which is not so far"))),
        }
        self.advance(node, slot);
        Ok(())
    }

    /// Opens places for long requests, and sends what waits.
    fn advance(&mut self, node: &mut Node, slot: SlotIndex) {
        let Some(Some(client)) = self.clients.get_mut(slot.0 as usize) else { return };
        while client.longs.len() < LONG_MAX
            && let Some((call, length)) = client.long_waiting.pop_front()
        {
            match Long::open(node, self.queue, length) {
                Ok((long, ticket)) => {
                    client.longs.insert(call, long);
                    self.long_slots.insert(long.slot.index(), (slot, call));
                    client.outbox.push_back((call, ASK, ticket.to_bytes().to_vec()));
                }
                Err(_) => {
                    client.calls[call as usize] = IDLE;
                    client.others.remove(&call);
                    client.outbox.push_back((call, DECLINED, Vec::new()));
                }
            }
        }
        let Some(connection) = &client.connection else { return };
        let waited = core::mem::take(&mut client.waits);
        while let Some((call, code, data)) = client.outbox.front() {
            match client.lent.send(node, connection.link(), *call, *code, data) {
                Err(SendError::Full) => {
                    client.waits = true;
                    break;
                }
                _ => client.outbox.pop_front(),
            };
        }
        self.outboxes = self.outboxes + client.waits as usize - waited as usize;
    }

    #[cold]
    fn handle_long(
        &mut self,
        node: &mut Node,
        notification: &Notification,
    ) -> Result<Option<Arrived>, Broken> {
        let long = self.long_slots.remove(&notification.slot);
        let Some((slot, call)) = long else { return Ok(None) };
        let Some(Some(client)) = self.clients.get_mut(slot.0 as usize) else { return Ok(None) };
        let bytes = client.longs.remove(&call).and_then(|long| long.take(node));
        client.others.remove(&call);
        client.calls[call as usize] = BUSY;
        let (number, link) = (client.number, notification.link);
        self.advance(node, slot);
        Ok(bytes.map(|bytes| Arrived { bytes, call, slot, client: number, link }))
    }

    /// Sends what could not be sent before.
    #[cold]
    fn advance_all(&mut self, node: &mut Node) {
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

    /// What else has arrived is for other threads.
    fn share_rest(&mut self, node: &mut Node) -> Option<(LinkId, String)> {
        loop {
            match self.pump(node) {
                Pumped::Request(arrived) => self.ready.push(arrived),
                Pumped::Broken(link, why) => return Some((link, why)),
                Pumped::Nothing => return None,
            }
        }
    }

    #[inline(always)]
    fn client_of(&mut self, arrived: &Arrived) -> Option<&mut ClientOf> {
        let client = self.clients.get_mut(arrived.slot.0 as usize)?.as_mut()?;
        (client.number == arrived.client).then_some(client)
    }
}

impl Server {
    /// A server end point; clients find it by name ([`serve`](Self::serve)) or grow from its seed.
    pub fn new(manager: &Manager, config: ServerConfig) -> Result<Self, GrowError> {
        let calls = config.outstanding;
        if !(1..=OUTSTANDING_MAX).contains(&calls) {
            let text =
                format!("{calls} outstanding calls; from 1 to {OUTSTANDING_MAX} are allowed");
            return Err(GrowError::SetUp(text));
        }
        let each = calls.saturating_add(LONG_MAX as u32);
        let entries = each.saturating_mul(config.clients_max);
        let queue = manager.lock().notification_queue(entries).map_err(set_up)?;
        let ready = Arc::<Ready>::default();
        let state = ServerState {
            queue,
            config,
            clients: Vec::new(),
            client_count: 0,
            long_slots: HashMap::new(),
            requests: HashMap::new(),
            ready: ready.clone(),
            next_client: 0,
            misbehaved: 0,
            outboxes: 0,
        };
        let offer = manager.offer(Kind::Call, Box::new(state));
        Ok(Self { manager: manager.clone(), offer, queue, ready })
    }

    /// A seed from which clients can be grown.
    pub fn seed(&self) -> Result<Seed, OfferError> {
        self.manager.seed(self.offer, Kind::Call)
    }

    /// Lets clients find this server by name.
    pub fn serve(&self, name: &str, access: Access) -> Result<(), OfferError> {
        self.manager.serve(self.offer, name, access)
    }

    /// Asks `admission` about each peer that wants to connect; its error is what the peer is told.
    pub fn set_admission(
        &self,
        admission: impl FnMut(&Peer) -> Result<(), String> + Send + 'static,
    ) {
        let admission: Admission = Box::new(admission);
        self.manager.set_admission(self.offer, admission);
    }

    /// The next request that is there already, or comes in one turn.
    pub fn try_receive(&self) -> Result<Option<Request<'_>>, ReceiveError> {
        match self.receive(Some(Duration::ZERO)) {
            Ok(request) => Ok(Some(request)),
            Err(ReceiveError::TimedOut) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// The next request; waits at most `timeout`. Any number of threads may receive. A thread that
    /// polls takes all that has arrived; the others then take theirs without the manager's lock.
    #[inline]
    pub fn receive(&self, timeout: Option<Duration>) -> Result<Request<'_>, ReceiveError> {
        if let Some(arrived) = self.ready.pop() {
            return Ok(self.attach(arrived));
        }
        let found = self.manager.shared.wait_until(timeout, |node, protocols| {
            let Some(state) = protocols.state::<ServerState>(self.offer) else {
                return Look::Nothing;
            };
            match state.pump(node) {
                Pumped::Request(arrived) => {
                    if node.is_ready(self.queue) == Ok(true)
                        && let Some((link, why)) = state.share_rest(node)
                    {
                        protocols.expel(node, link, &why);
                    }
                    Look::Found(arrived)
                }
                // One bad client is no failure of the server.
                Pumped::Broken(link, why) => {
                    protocols.expel(node, link, &why);
                    Look::Again
                }
                // Another thread may have taken it.
                Pumped::Nothing => match self.ready.pop() {
                    Some(arrived) => Look::Found(arrived),
                    None => Look::Nothing,
                },
            }
        })?;
        Ok(self.attach(found))
    }

    /// A request that was [detached](Request::detach) from this server, to be replied to.
    #[inline(always)]
    pub fn attach(&self, arrived: Arrived) -> Request<'_> {
        Request { server: self, arrived: Some(arrived) }
    }

    /// Clients that are connected.
    pub fn clients(&self) -> usize {
        self.with_state(|state| state.client_count as usize)
    }

    /// Clients that were sent away because they broke the rules.
    pub fn misbehaved(&self) -> u64 {
        self.with_state(|state| state.misbehaved)
    }

    fn with_state<R: Default>(&self, look: impl FnOnce(&mut ServerState) -> R) -> R {
        let mut guard = self.manager.shared.lock();
        guard.parts().1.state(self.offer).map(look).unwrap_or_default()
    }
}

impl EndPoint for Server {
    fn is_ready_in(&self, node: &Node) -> bool {
        self.ready.count.load(Ordering::Acquire) > 0 || node.is_ready(self.queue) == Ok(true)
    }

    fn manager(&self) -> &Manager {
        &self.manager
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let Some(offer) = self.manager.withdraw(self.offer) else { return };
        let mut node = self.manager.lock();
        let offer: Box<dyn core::any::Any> = offer;
        if let Ok(mut state) = offer.downcast::<ServerState>() {
            let slots: Vec<SlotIndex> =
                state.clients.iter().flatten().map(|client| client.blocks.slot.index()).collect();
            for slot in slots {
                state.remove_client(&mut node, slot);
            }
        }
        let _ = node.remove_queue(self.queue);
    }
}

impl Request<'_> {
    fn arrived(&self) -> &Arrived {
        self.arrived.as_ref().expect("present until replied to")
    }

    /// Who calls, as the kernel says; `None` if it is long gone.
    pub fn peer(&self) -> Option<Peer> {
        self.server.manager.lock().peer(self.arrived().link).ok().cloned()
    }

    /// The client's link.
    pub fn link(&self) -> LinkId {
        self.arrived().link
    }

    /// The request apart from its server, to be [attached](Server::attach) again in another thread
    /// or task.
    pub fn detach(mut self) -> Arrived {
        self.arrived.take().expect("present until replied to")
    }

    /// Replies, waiting at most `timeout` for room, and, where the reply is longer than the client's
    /// block, for the client to make room for it and for the bytes to leave. On an error the client
    /// is told that no reply will come.
    #[inline]
    pub fn reply(mut self, data: &[u8], timeout: Option<Duration>) -> Result<(), CallError> {
        let Some(arrived) = &self.arrived else { return Ok(()) };
        let Server { manager, offer, .. } = self.server;
        let (link, call) = (arrived.link, arrived.call);
        let sent = manager.shared.wait_until(timeout, |node, protocols| {
            let state = protocols.state::<ServerState>(*offer);
            let Some(client) = state.and_then(|state| state.client_of(arrived)) else {
                return Look::Found(Err(CallError::Ended(CloseReason::Closed)));
            };
            if data.len() > client.at_once {
                return Look::Found(Ok(false));
            }
            match client.lent.send(node, link, call, data.len() as u32, data) {
                Ok(()) => {
                    client.calls[call as usize] = IDLE;
                    Look::Found(Ok(true))
                }
                Err(SendError::Full) => Look::Room(link),
                Err(SendError::LinkEnded(_)) => {
                    Look::Found(Err(CallError::Ended(CloseReason::Closed)))
                }
                Err(e) => Look::Found(Err(e.into())),
            }
        });
        match sent {
            Ok(Ok(true)) => {
                self.arrived = None;
                Ok(())
            }
            Ok(Ok(false)) => self.reply_long(data, timeout),
            Ok(Err(e)) => Err(e),
            Err(waited) => Err(waited.into()),
        }
    }

    #[cold]
    fn reply_long(mut self, data: &[u8], timeout: Option<Duration>) -> Result<(), CallError> {
        let Some(arrived) = &self.arrived else { return Ok(()) };
        let Server { manager, offer, ready, .. } = self.server;
        let (link, call, length) = (arrived.link, arrived.call, data.len() as u64);
        let mut sending = Sending::Asked;
        let mut asked = false;
        let sent = manager.shared.wait_until(timeout, |node, protocols| {
            let gone = || Look::Found(Err(CallError::Ended(CloseReason::Closed)));
            let Some(state) = protocols.state::<ServerState>(*offer) else { return gone() };
            let Some(client) = state.client_of(arrived) else { return gone() };
            if !asked {
                match client.lent.send(node, link, call, ASK, &length.to_le_bytes()) {
                    Ok(()) => {}
                    Err(SendError::Full) => return Look::Room(link),
                    Err(e) => return Look::Found(Err(e.into())),
                }
                asked = true;
                client.calls[call as usize] = OTHER;
                client.others.insert(call, AtServer::Asked(length));
            }
            // Whatever else arrives meanwhile is for other threads, or for later.
            match state.pump(node) {
                Pumped::Request(arrived) => {
                    ready.push(arrived);
                    return Look::Again;
                }
                Pumped::Broken(guilty, why) => {
                    protocols.expel(node, guilty, &why);
                    return Look::Again;
                }
                Pumped::Nothing => {}
            }
            let Some(client) = state.client_of(arrived) else { return gone() };
            match client.others.get(&call) {
                Some(AtServer::Granted(ticket)) => {
                    let ticket = *ticket;
                    let look = go_on(node, link, &mut sending, &ticket, data);
                    if let Look::Found(Ok(())) = look {
                        client.others.remove(&call);
                        client.calls[call as usize] = IDLE;
                    }
                    look.map(|result| result.map_err(CallError::from))
                }
                // As the request is dropped, the client is told that this has been heard.
                Some(AtServer::Refused) => Look::Found(Err(CallError::TooLong { length, max: 0 })),
                _ => Look::Nothing,
            }
        });
        match sent {
            Ok(Ok(())) => {
                self.arrived = None;
                Ok(())
            }
            Ok(Err(e)) => Err(e),
            Err(waited) => Err(waited.into()),
        }
    }
}

impl Deref for Arrived {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Deref for Request<'_> {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &[u8] {
        &self.arrived().bytes
    }
}

impl Drop for Request<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(arrived) = self.arrived.take() {
            self.server.decline(&arrived);
        }
    }
}

impl Server {
    #[cold]
    fn decline(&self, arrived: &Arrived) {
        let mut guard = self.manager.shared.lock();
        let (node, protocols) = guard.parts();
        let Some(state) = protocols.state::<ServerState>(self.offer) else { return };
        let Some(client) = state.client_of(arrived) else { return };
        if let Some(other @ AtServer::Asked(_)) = client.others.get_mut(&arrived.call) {
            *other = AtServer::GivenUp;
            return;
        }
        client.calls[arrived.call as usize] = IDLE;
        client.others.remove(&arrived.call);
        client.outbox.push_back((arrived.call, DECLINED, Vec::new()));
        state.advance(node, arrived.slot);
    }
}

fn ended(connection: &Connection) -> CallError {
    CallError::Ended(connection.ended().cloned().unwrap_or(CloseReason::Closed))
}

// ---- client

/// Names a call of one client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CallId {
    call: u32,
    generation: u32,
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
    /// A reply of so many bytes lies in the block.
    Done(u16),
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
        while let Ok(Some(notification)) = node.pop(self.queue) {
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
                call.state = AtClient::Done(code as u16);
            }
            (AtClient::Waiting | AtClient::Asked, DECLINED) => call.state = AtClient::Declined,
            (AtClient::Asked, ASK) => {
                let bytes = self.blocks.bytes(node, number, TICKET_BYTES);
                let ticket = long_ticket_from(bytes, self.connection.peer(), 0).map_err(Broken)?;
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
        let is_over =
            matches!(call.state, AtClient::Done(_) | AtClient::Declined | AtClient::TooLong);
        if call.abandoned && is_over {
            self.free(number);
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
            self.free(number);
        }
    }

    fn free(&mut self, number: u32) {
        let call = &mut self.calls[number as usize];
        call.state = AtClient::Free;
        call.abandoned = false;
        call.generation = call.generation.wrapping_add(1);
        self.free.push(number);
    }

    /// Takes a reply, if it is there.
    #[inline(always)]
    fn take(&mut self, node: &Node, id: CallId) -> Result<Option<Bytes>, CallError> {
        let state = match self.calls.get(id.call as usize) {
            Some(call) if call.generation == id.generation => call.state,
            _ => return Err(CallError::NoSuchCall(id)),
        };
        let result = match state {
            AtClient::Done(length) => {
                Ok(Some(Bytes::copied(self.blocks.bytes(node, id.call, length as usize))))
            }
            AtClient::Waiting | AtClient::Asked => return Ok(None),
            AtClient::Free => return Err(CallError::NoSuchCall(id)),
            AtClient::Declined => Err(CallError::Declined),
            AtClient::TooLong => {
                // The number is free when the server has heard of it.
                let call = &mut self.calls[id.call as usize];
                call.abandoned = true;
                call.generation = call.generation.wrapping_add(1);
                return Err(CallError::TooLong { length: 0, max: self.reply_bytes_max });
            }
            AtClient::Refused => Err(CallError::TooLong { length: 0, max: self.reply_bytes_max }),
            AtClient::Long => match self.longs.remove(&id.call) {
                Some(LongAtClient::Done(bytes)) => Ok(Some(bytes)),
                Some(other) => {
                    self.longs.insert(id.call, other);
                    return Ok(None);
                }
                None => return Ok(None),
            },
        };
        self.free(id.call);
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
                    return Look::Found(Err(CallError::TooLong { length, max }));
                }
                self.lent.send(node, link, id.call, ASK, &length.to_le_bytes())
            };
            match sent {
                Ok(()) => {}
                Err(SendError::Full) => return Look::Room(link),
                Err(SendError::LinkEnded(_)) => return Look::Found(Err(ended(&self.connection))),
                Err(e) => return Look::Found(Err(e.into())),
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
                let ticket = *ticket;
                match go_on(node, self.connection.link(), sending, &ticket, request) {
                    Look::Found(Ok(())) => {
                        self.longs.remove(&id.call);
                        self.calls[id.call as usize].state = AtClient::Waiting;
                        *begun = Begun::Sent(id);
                        Look::Found(Ok(id))
                    }
                    Look::Found(Err(SendError::LinkEnded(_))) => {
                        Look::Found(Err(ended(&self.connection)))
                    }
                    Look::Found(Err(e)) => Look::Found(Err(e.into())),
                    Look::Again => Look::Again,
                    Look::Room(link) => Look::Room(link),
                    Look::Nothing => Look::Nothing,
                }
            }
            Some(LongAtClient::Refused(max)) => {
                let (length, max) = (request.len() as u64, *max);
                self.longs.remove(&id.call);
                self.free(id.call);
                *begun = Begun::Nothing;
                Look::Found(Err(CallError::TooLong { length, max }))
            }
            _ if matches!(self.calls[id.call as usize].state, AtClient::Declined) => {
                self.free(id.call);
                *begun = Begun::Nothing;
                Look::Found(Err(CallError::Declined))
            }
            _ if self.connection.ended().is_some() => Look::Found(Err(ended(&self.connection))),
            _ => Look::Nothing,
        }
    }

    #[inline(always)]
    fn look_for(&mut self, node: &mut Node, id: CallId) -> Look<Result<Bytes, CallError>> {
        let pumped = self.pump(node);
        match self.take(node, id) {
            Ok(Some(bytes)) => return Look::Found(Ok(bytes)),
            Ok(None) => {}
            Err(e) => return Look::Found(Err(e)),
        }
        if let Err(Broken(why)) = pumped {
            return Look::Found(Err(CallError::Misbehaved(why)));
        }
        match self.connection.ended() {
            Some(_) => {
                self.free(id.call);
                Look::Found(Err(ended(&self.connection)))
            }
            None => Look::Nothing,
        }
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
    /// Connects to the server that is served as `[user@]name`.
    pub fn connect(
        manager: &Manager,
        name: &str,
        timeout: Option<Duration>,
    ) -> Result<Self, GrowError> {
        Self::with_config(manager, Target::Service(name), ClientConfig::default(), timeout)
    }

    /// [`connect`](Self::connect) with settings.
    pub fn connect_with(
        manager: &Manager,
        name: &str,
        config: ClientConfig,
        timeout: Option<Duration>,
    ) -> Result<Self, GrowError> {
        Self::with_config(manager, Target::Service(name), config, timeout)
    }

    /// Grows a client from a server's seed.
    pub fn grow(
        manager: &Manager,
        seed: &Seed,
        timeout: Option<Duration>,
    ) -> Result<Self, GrowError> {
        Self::with_config(manager, Target::Seed(seed), ClientConfig::default(), timeout)
    }

    /// [`grow`](Self::grow) with settings.
    pub fn grow_with(
        manager: &Manager,
        seed: &Seed,
        config: ClientConfig,
        timeout: Option<Duration>,
    ) -> Result<Self, GrowError> {
        Self::with_config(manager, Target::Seed(seed), config, timeout)
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
        let (queue, blocks, body) = {
            let mut node = manager.lock();
            // Long replies notify here, too: at most one for each call.
            let queue = node.notification_queue(calls.saturating_mul(2)).map_err(set_up)?;
            let made = Blocks::new(&mut node, queue, calls, config.reply_bytes);
            let made = made.and_then(|blocks| {
                let body = Lent::to_bytes(&node, &blocks, calls)?;
                Ok((blocks, body))
            });
            match made {
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
        let (connection, answer) =
            manager.grow(target, Kind::Call, &body, timeout).inspect_err(|_| undo())?;
        let made = Lent::from_bytes(&answer, connection.peer()).and_then(|(lent, granted)| {
            let max = answer.get(Lent::BYTES..).ok_or("its limit is missing")?;
            let packet_bytes = manager.lock().fast_bytes_max(connection.link()).unwrap_or(0);
            Ok((lent, granted.min(calls), number_from(max), lent.at_once(packet_bytes)))
        });
        let Ok((lent, granted, request_bytes_max, at_once)) = made else {
            manager.end(&connection);
            undo();
            return Err(GrowError::Answer("no blocks for requests"));
        };
        let call = || Call { state: AtClient::Free, abandoned: false, generation: 0 };
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
        let mut begun = Begun::Nothing;
        let result = self.manager.shared.wait_until(timeout, |node, protocols| {
            let Some(state) = protocols.state::<ClientState>(self.state) else {
                return Look::Nothing;
            };
            if let Begun::Sent(id) = begun {
                return state.look_for(node, id);
            }
            match state.begin(node, request, &mut begun) {
                Look::Found(Ok(_)) => Look::Nothing,
                Look::Found(Err(e)) => Look::Found(Err(e)),
                Look::Again => Look::Again,
                Look::Nothing => Look::Nothing,
                Look::Room(link) => Look::Room(link),
            }
        });
        self.settle(result, begun.id())
    }

    /// Sends a request, waiting at most `timeout` for a free call and, if it is long, for the server
    /// to make room for it. The reply is had with [`finish`](Self::finish).
    pub fn start(&self, request: &[u8], timeout: Option<Duration>) -> Result<CallId, CallError> {
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
    pub fn finish(&self, call: CallId, timeout: Option<Duration>) -> Result<Bytes, CallError> {
        let result = self.manager.shared.wait_until(timeout, |node, protocols| {
            match protocols.state::<ClientState>(self.state) {
                Some(state) => state.look_for(node, call),
                None => Look::Nothing,
            }
        });
        match result {
            Ok(result) => self.settle(Ok(result), None),
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
            && let Ok(None) = state.take(node, call)
        {
            state.abandon(node, call);
        }
    }

    /// Calls that may be outstanding.
    pub fn outstanding_max(&self) -> usize {
        self.outstanding
    }

    /// The connection: who is at the other end, and whether it has ended.
    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Which path the calls take, and why.
    pub fn explain(&self) -> String {
        let at_once = self.at_once;
        let protocol = format!(
            "request and reply: one fast packet each way up to {at_once} bytes, longer ones are asked for first"
        );
        explain(&self.manager, &self.connection, &protocol)
    }

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
            Err(waited) => {
                if let Some(id) = id {
                    self.forget(id);
                }
                waited.into()
            }
        };
        if let CallError::Misbehaved(why) = &e {
            self.manager.expel(self.connection.link(), why);
        }
        Err(e)
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
        self.manager.end(&self.connection);
        let Some(offer) = self.manager.withdraw(self.state) else { return };
        let mut node = self.manager.lock();
        let offer: Box<dyn core::any::Any> = offer;
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
