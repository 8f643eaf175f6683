//! The server's side of request and reply.

use super::{
    ASK, Blocks, Broken, Bytes, CALL_BITS, CallError, DECLINED, LENGTH_MAX, Lent, Long,
    OUTSTANDING_MAX, REPLY_LIMIT, Sending, TOO_LONG, go_on, number_from,
};
use crate::control::{Peer, RequestId};
use crate::interface::{LinkId, Notification, QueueId};
use crate::node::{CloseReason, Look, Node, SendError};
use crate::protocol::ends::{check_place, offered};
use crate::protocol::manager::{Offer, OfferId, Protocols, set_up};
use crate::protocol::tickets::message_ticket_from;
use crate::protocol::{Connection, EndPoint, GrowError, Kind, Manager, ReceiveError};
use crate::wire::{MetadataIndex, SlotIndex, TICKET_BYTES, Ticket};
use core::ops::Deref;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use core::time::Duration;
use std::boxed::Box;
use std::collections::{HashMap, HashSet, VecDeque};
use std::format;
use std::string::String;
use std::sync::{Arc, Mutex, PoisonError};
use std::vec::Vec;

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
    /// Bytes of long requests that each user's clients may have here at a time, until they are
    /// replied to; further ones wait at the client, but one is always taken. 64 MiB unless set.
    pub long_bytes_max: u64,
    /// Clients at one time. 64 unless set.
    pub clients_max: u32,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            outstanding: 64,
            request_bytes: LENGTH_MAX,
            request_bytes_max: 16 << 20,
            long_bytes_max: 64 << 20,
            clients_max: 64,
        }
    }
}

/// Long messages of one client that may be on their way to the server at a time.
const LONG_MAX: usize = 4;

/// What a server found.
enum Pumped {
    Nothing,
    /// Put where the caller wanted it.
    Request,
    Broken(LinkId, String),
}

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
    /// By number: `IDLE`, `BUSY`, or `OTHER`, of which `others` says more.
    calls: Vec<u8>,
    others: HashMap<u32, AtServer>,
    longs: HashMap<u32, Long>,
    long_waiting: VecDeque<(u32, u64)>,
    /// Bytes of each long request that has memory here and is not replied to, and of all.
    alive: HashMap<u32, u64>,
    alive_bytes: u64,
    /// Some of these have gone, for which a long request of the user may wait.
    freed: bool,
    /// What could not be sent at once.
    outbox: VecDeque<(u32, u32, Vec<u8>)>,
    waits: bool,
    peer: Peer,
    /// Distinguishes clients that have had the same slot, also of other servers.
    number: u64,
}

static NEXT_CLIENT: AtomicU64 = AtomicU64::new(0);

impl ClientOf {
    /// At most two words are owed for a call at a time, a grant and that it was given up after all,
    /// to a client that takes what it is sent. One that does not, and goes on asking, must not fill
    /// this process's memory.
    fn check_owed(&self) -> Result<(), String> {
        let (owed, calls) = (self.outbox.len(), self.calls.len());
        if owed <= 2 * calls {
            return Ok(());
        }
        Err(format!("it does not take what it is sent: {owed} words are owed for {calls} calls"))
    }
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
    misbehaved: u64,
    /// Clients to which something could not be sent.
    outboxes: usize,
    /// Links that are to be closed, each once, and why.
    guilty: Vec<(LinkId, String)>,
    /// Who they were that left requests behind that were received and not replied to; as many of
    /// the last as there may be clients.
    departed: VecDeque<(u64, Peer)>,
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

    /// How many clients have requests here, other than those that `but` knows.
    fn clients_but(&self, but: impl Fn(u64) -> bool) -> usize {
        let requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        let mut clients: Vec<u64> = requests.iter().map(|arrived| arrived.client).collect();
        clients.sort_unstable();
        clients.dedup();
        clients.retain(|number| !but(*number));
        clients.len()
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
    fn check_place(&self, peer: &Peer, _: &[u8]) -> Result<(), String> {
        let max = self.config.clients_max;
        // Who connects again and again must not fill this process with what it leaves behind.
        let gone = self.ready.clients_but(|number| {
            self.clients.iter().flatten().any(|client| client.number == number)
        });
        if self.client_count as usize + gone >= max as usize {
            return Err(format!(
                "it has {max} clients, as many as it may, {gone} of them gone with requests that \
                 nobody has received yet"
            ));
        }
        let users = self.clients.iter().flatten().map(|client| client.peer.uid);
        check_place(users, peer, max as usize, "clients")
    }

    fn admit(
        &mut self,
        node: &mut Node,
        request: RequestId,
        peer: &Peer,
        body: &[u8],
    ) -> Result<Vec<u8>, String> {
        let (lent, wanted) = Lent::from_bytes(body, peer)?;
        let state = self;
        let calls = wanted.min(state.config.outstanding);
        let (blocks, mut answer) =
            Blocks::lend(node, state.queue, calls, state.config.request_bytes)?;
        answer.extend_from_slice(&state.config.request_bytes_max.to_le_bytes());
        let slot = blocks.slot.index();
        state.requests.insert(request, slot);
        let client = ClientOf {
            connection: None,
            blocks,
            lent,
            at_once: 0,
            calls: std::vec![IDLE; calls as usize],
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
            client.lent.go_over(connection.link());
            client.connection = Some(connection.clone());
            // What it sent may have been heard before the manager heard of its connection.
            state.advance(node, slot);
        }
    }

    fn left(&mut self, node: &mut Node, connection: &Connection) {
        let state = self;
        // What it had sent, and is whole, is still handed out: send-then-exit loses nothing.
        // Nobody else's nonsense hides it.
        let mut arrived = Arrived::default();
        loop {
            match state.pump_queue(node, &mut arrived) {
                Pumped::Request => state.ready.push(core::mem::take(&mut arrived)),
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
    fn end(&mut self, call: u32) {
        self.calls[call as usize] = IDLE;
        if !self.alive.is_empty()
            && let Some(bytes) = self.alive.remove(&call)
        {
            self.alive_bytes -= bytes;
            self.freed = true;
        }
    }

    /// Whether a long request waits for others to be replied to.
    #[inline]
    fn has_waiting(&self) -> bool {
        !self.long_waiting.is_empty()
    }
}

impl ServerState {
    fn remove_client(&mut self, node: &mut Node, slot: SlotIndex) {
        let Some(client) = self.clients.get_mut(slot.0 as usize).and_then(Option::take) else {
            return;
        };
        self.client_count -= 1;
        self.outboxes -= client.waits as usize;
        if client.calls.iter().any(|state| *state != IDLE) {
            self.departed.push_back((client.number, client.peer.clone()));
            if self.departed.len() > self.config.clients_max as usize {
                self.departed.pop_front();
            }
        }
        client.blocks.remove(node);
        for long in client.longs.values() {
            self.long_slots.remove(&long.slot.index());
            long.remove(node);
        }
        if client.alive_bytes > 0 {
            self.advance_waiting(node);
        }
    }

    /// Remembers, while nobody receives, whom to send away.
    fn accuse(&mut self, node: &Node, link: LinkId, why: String) {
        let here: HashSet<LinkId> = node.links().collect();
        self.guilty.retain(|(known, _)| *known != link && here.contains(known));
        self.guilty.push((link, why));
    }

    /// Who sent a request.
    fn peer_of(&mut self, arrived: &Arrived) -> Option<Peer> {
        if let Some(client) = self.client_of(arrived) {
            return Some(client.peer.clone());
        }
        let mut departed = self.departed.iter();
        departed.find(|(number, _)| *number == arrived.client).map(|(_, peer)| peer.clone())
    }

    /// Handles what has arrived, up to the first request or the first client that broke the rules.
    #[inline(always)]
    fn pump(&mut self, node: &mut Node, into: &mut Arrived) -> Pumped {
        match self.pump_queue(node, into) {
            Pumped::Nothing => match self.guilty.pop() {
                Some((link, why)) => Pumped::Broken(link, why),
                None => Pumped::Nothing,
            },
            found => found,
        }
    }

    #[inline(always)]
    fn pump_queue(&mut self, node: &mut Node, into: &mut Arrived) -> Pumped {
        while let Ok(Some(notification)) = node.take_next(self.queue) {
            let handled = if notification.index == MetadataIndex::FAST {
                self.handle(node, &notification, into)
            } else {
                self.handle_long(node, &notification, into)
            };
            match handled {
                Ok(true) => return Pumped::Request,
                Ok(false) => {}
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
        into: &mut Arrived,
    ) -> Result<bool, Broken> {
        let (slot, link) = (notification.slot, notification.link);
        let (call, code) = (notification.word % OUTSTANDING_MAX, notification.word >> CALL_BITS);
        let Some(Some(client)) = self.clients.get_mut(slot.0 as usize) else { return Ok(false) };
        let Some(state) = client.calls.get_mut(call as usize) else {
            return Err(Broken(format!("call {call} of {}", client.calls.len())));
        };
        if *state == IDLE && code <= LENGTH_MAX.min(client.blocks.block) {
            *state = BUSY;
            into.bytes.copy(client.blocks.bytes(node, call, code as usize));
            (into.call, into.slot, into.link) = (call, slot, link);
            into.client = client.number;
            return Ok(true);
        }
        self.handle_other(node, slot, call, code).map(|()| false)
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
        client.check_owed().map_err(Broken)?;
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
                client.end(call);
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
                    message_ticket_from(bytes, &client.peer, length).map_err(Broken)?,
                );
            }
            (TOO_LONG, OTHER, Some(other @ AtServer::Asked(_))) => *other = AtServer::Refused,
            (ASK | TOO_LONG, OTHER, Some(AtServer::GivenUp)) => {
                client.end(call);
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
        self.open_longs(node, slot);
        self.send_owed(node, slot);
        let Some(Some(client)) = self.clients.get_mut(slot.0 as usize) else { return };
        if core::mem::take(&mut client.freed) {
            self.advance_waiting(node);
        }
    }

    /// Bytes of long requests have gone, for which others may have waited.
    #[cold]
    fn advance_waiting(&mut self, node: &mut Node) {
        loop {
            let waiting = self.clients.iter().flatten().filter(|client| client.has_waiting());
            let waiting: Vec<SlotIndex> = waiting.map(|c| c.blocks.slot.index()).collect();
            for slot in waiting {
                self.open_longs(node, slot);
                self.send_owed(node, slot);
            }
            // A reply that has left may have freed more.
            let mut freed = false;
            for client in self.clients.iter_mut().flatten() {
                freed |= core::mem::take(&mut client.freed);
            }
            if !freed {
                return;
            }
        }
    }

    /// The long requests of one user's clients have at most `long_bytes_max` bytes together, however
    /// many clients those are; one request may always be there.
    fn open_longs(&mut self, node: &mut Node, slot: SlotIndex) {
        let of_user = |clients: &[Option<Box<ClientOf>>], user: Option<u32>| -> u64 {
            let its = clients.iter().flatten().filter(|client| client.peer.uid == user);
            its.map(|client| client.alive_bytes).sum()
        };
        loop {
            let Some(Some(client)) = self.clients.get(slot.0 as usize) else { return };
            let Some(&(call, length)) = client.long_waiting.front() else { return };
            let (has_place, user) = (client.longs.len() < LONG_MAX, client.peer.uid);
            let alive = of_user(&self.clients, user);
            let fits = alive == 0 || alive.saturating_add(length) <= self.config.long_bytes_max;
            let Some(Some(client)) = self.clients.get_mut(slot.0 as usize) else { return };
            if !has_place || !fits {
                return;
            }
            client.long_waiting.pop_front();
            match Long::open(node, self.queue, length) {
                Ok((long, ticket)) => {
                    client.alive.insert(call, length);
                    client.alive_bytes += length;
                    client.longs.insert(call, long);
                    self.long_slots.insert(long.slot.index(), (slot, call));
                    client.outbox.push_back((call, ASK, ticket.to_bytes().to_vec()));
                }
                Err(_) => {
                    client.end(call);
                    client.others.remove(&call);
                    client.outbox.push_back((call, DECLINED, Vec::new()));
                }
            }
        }
    }

    /// Sends what waits.
    fn send_owed(&mut self, node: &mut Node, slot: SlotIndex) {
        let Some(Some(client)) = self.clients.get_mut(slot.0 as usize) else { return };
        let Some(connection) = &client.connection else { return };
        let link = connection.link();
        let waited = core::mem::take(&mut client.waits);
        while let Some((call, code, data)) = client.outbox.front() {
            match client.lent.send(node, link, *call, *code, data) {
                Err(SendError::Full) => {
                    client.waits = true;
                    // Also where nobody waits for anything of this server.
                    node.await_room(link);
                    break;
                }
                _ => {
                    let (call, code) = (*call, *code);
                    client.outbox.pop_front();
                    // A reply that was kept: the call's number is free from now on.
                    if code <= LENGTH_MAX {
                        client.end(call);
                    }
                }
            };
        }
        self.outboxes = self.outboxes + client.waits as usize - waited as usize;
    }

    #[cold]
    fn handle_long(
        &mut self,
        node: &mut Node,
        notification: &Notification,
        into: &mut Arrived,
    ) -> Result<bool, Broken> {
        let long = self.long_slots.remove(&notification.slot);
        let Some((slot, call)) = long else { return Ok(false) };
        let Some(Some(client)) = self.clients.get_mut(slot.0 as usize) else { return Ok(false) };
        let bytes = client.longs.remove(&call).and_then(|long| long.take(node));
        client.others.remove(&call);
        client.calls[call as usize] = BUSY;
        let (number, link) = (client.number, notification.link);
        self.advance(node, slot);
        let Some(bytes) = bytes else { return Ok(false) };
        *into = Arrived { bytes, call, slot, client: number, link };
        Ok(true)
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
        let mut arrived = Arrived::default();
        loop {
            match self.pump(node, &mut arrived) {
                Pumped::Request => self.ready.push(core::mem::take(&mut arrived)),
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
        super::check_block(config.request_bytes)?;
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
            guilty: Vec::new(),
            departed: VecDeque::new(),
            misbehaved: 0,
            outboxes: 0,
        };
        let offer = manager.offer(Kind::Call, Box::new(state));
        Ok(Self { manager: manager.clone(), offer, queue, ready })
    }

    offered!(many "a [`Client`](super::Client)");

    /// The next request that is there already, or comes in one turn.
    pub fn try_receive(&self) -> Result<Option<Request<'_>>, ReceiveError> {
        ReceiveError::unless_timed_out(self.receive(Some(Duration::ZERO)))
    }

    /// The next request; waits at most `timeout`. Any number of threads may receive. A thread that
    /// polls takes all that has arrived; the others then take theirs without the manager's lock.
    #[inline]
    pub fn receive(&self, timeout: Option<Duration>) -> Result<Request<'_>, ReceiveError> {
        if let Some(arrived) = self.ready.pop() {
            return Ok(self.attach(arrived));
        }
        let mut request = self.attach(Arrived::default());
        let Some(arrived) = &mut request.arrived else { return Ok(request) };
        let found = self.manager.shared.at_once(|node, protocols| {
            match self.look(node, protocols, arrived) {
                Look::Found(()) => Some(()),
                _ => None,
            }
        });
        match found {
            Some(()) => Ok(request),
            None => self.wait_for_request(request, timeout),
        }
    }

    #[inline(never)]
    fn wait_for_request<'a>(
        &'a self,
        mut request: Request<'a>,
        timeout: Option<Duration>,
    ) -> Result<Request<'a>, ReceiveError> {
        let Some(arrived) = &mut request.arrived else { return Ok(request) };
        let waited = self
            .manager
            .shared
            .wait_until(timeout, |node, protocols| self.look(node, protocols, arrived));
        match waited {
            Ok(()) => Ok(request),
            Err(waited) => {
                request.arrived = None;
                Err(waited.into())
            }
        }
    }

    /// One look for a request.
    #[inline(always)]
    fn look(&self, node: &mut Node, protocols: &mut Protocols, arrived: &mut Arrived) -> Look<()> {
        let Some(state) = protocols.state::<ServerState>(self.offer) else {
            return Look::Nothing;
        };
        match state.pump(node, arrived) {
            Pumped::Request => {
                if node.is_ready(self.queue) == Ok(true)
                    && let Some((link, why)) = state.share_rest(node)
                {
                    protocols.expel(node, link, &why);
                }
                Look::Found(())
            }
            // One bad client is no failure of the server.
            Pumped::Broken(link, why) => {
                protocols.expel(node, link, &why);
                Look::Again
            }
            // Another thread may have taken it.
            Pumped::Nothing => match self.ready.pop() {
                Some(other) => {
                    *arrived = other;
                    Look::Found(())
                }
                None => Look::Nothing,
            },
        }
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

    /// Who calls, as the kernel says: whoever grew the client. `None` if it is long gone, and as
    /// many others as the server may have clients have gone after it.
    pub fn peer(&self) -> Option<Peer> {
        self.server.with_state(|state| state.peer_of(self.arrived()))
    }

    /// The client's link. When the client has gone, another link may have this name one day;
    /// [`peer`](Self::peer) never names another.
    pub fn link(&self) -> LinkId {
        self.arrived().link
    }

    /// The request apart from its server, to be [attached](Server::attach) again in another thread
    /// or task.
    pub fn detach(mut self) -> Arrived {
        self.arrived.take().expect("present until replied to")
    }

    /// Replies, waiting at most `timeout` for room; where it is `None`, a reply that the client could
    /// take at once waits for nobody: it is kept, and leaves in a later call of any end point of this
    /// manager, so that a client that takes nothing holds up no other. What is kept is lost if the
    /// server goes before; what was sent within a limit arrives. A longer reply than the client's
    /// block waits in either case, until the client has made room for it and its bytes have left:
    /// give a limit, or reply in a thread of its own. On an error the client is told that no reply
    /// will come.
    #[inline]
    pub fn reply(mut self, data: &[u8], timeout: Option<Duration>) -> Result<(), CallError> {
        let Some(arrived) = &self.arrived else { return Ok(()) };
        let Server { manager, offer, .. } = self.server;
        let sent = manager.shared.at_once(|node, protocols| {
            let client = protocols.state::<ServerState>(*offer)?.client_of(arrived)?;
            // A long request may wait for this one.
            if !client.alive.is_empty()
                || !client.lent.send_line(node, arrived.call, data.len() as u32, data)
            {
                return None;
            }
            client.end(arrived.call);
            Some(())
        });
        if sent.is_some() {
            self.arrived = None;
            return Ok(());
        }
        self.reply_slowly(data, timeout)
    }

    #[inline(never)]
    fn reply_slowly(mut self, data: &[u8], timeout: Option<Duration>) -> Result<(), CallError> {
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
                    client.end(call);
                    if client.freed
                        && let Some(state) = protocols.state::<ServerState>(*offer)
                    {
                        state.advance(node, arrived.slot);
                    }
                    Look::Found(Ok(true))
                }
                Err(SendError::Full) if timeout.is_some() => Look::Room(link),
                Err(SendError::Full) => {
                    client.outbox.push_back((call, data.len() as u32, data.to_vec()));
                    if let Some(state) = protocols.state::<ServerState>(*offer) {
                        state.advance(node, arrived.slot);
                    }
                    Look::Found(Ok(true))
                }
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
        let Server { manager, offer, .. } = self.server;
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
            // Whatever else arrives meanwhile is for other threads, or for later. All of it in one
            // look: requests that keep coming must not keep this reply from going on.
            if let Some((guilty, why)) = state.share_rest(node) {
                protocols.expel(node, guilty, &why);
                return Look::Again;
            }
            let Some(client) = state.client_of(arrived) else { return gone() };
            match client.others.get(&call) {
                Some(AtServer::Granted(ticket)) => {
                    let ticket = *ticket;
                    let look = go_on(node, link, &mut sending, &ticket, data);
                    if let Look::Found(Ok(())) = look {
                        client.others.remove(&call);
                        client.end(call);
                        state.advance(node, arrived.slot);
                    }
                    look.map(|result| result.map_err(CallError::from))
                }
                // As the request is dropped, the client is told that this has been heard.
                Some(AtServer::Refused) => {
                    Look::Found(Err(CallError::TooLong { length, max: 0, limit: REPLY_LIMIT }))
                }
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

impl Default for Arrived {
    fn default() -> Self {
        let (slot, link) = (SlotIndex(u32::MAX), LinkId::SELF);
        Self { bytes: Bytes::default(), call: 0, slot, client: 0, link }
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
        if self.manager.is_forked() {
            return;
        }
        let mut guard = self.manager.shared.lock();
        let (node, protocols) = guard.parts();
        let Some(state) = protocols.state::<ServerState>(self.offer) else { return };
        let Some(client) = state.client_of(arrived) else { return };
        if let Some(other @ AtServer::Asked(_)) = client.others.get_mut(&arrived.call) {
            *other = AtServer::GivenUp;
            return;
        }
        client.end(arrived.call);
        client.others.remove(&arrived.call);
        client.outbox.push_back((arrived.call, DECLINED, Vec::new()));
        let owed = client.check_owed();
        state.advance(node, arrived.slot);
        if let Err(why) = owed {
            state.misbehaved += 1;
            protocols.expel(node, arrived.link, &why);
        }
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use crate::control::Access;
    use crate::interface::SlotConfig;
    use crate::protocol::Client;
    use std::time::Instant;

    const LIMIT: Option<Duration> = Some(Duration::from_secs(20));

    /// Managers in a directory of their own, and a server called `calls` in the first, which
    /// answers.
    fn with_server(name: &str, clients_max: u32, test: impl FnOnce(&[Manager; 3], &Server)) {
        let dir = std::env::temp_dir().join(format!("hamlyn-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let config = crate::config::Config::from_env().unwrap().dir(&dir);
        let managers = [(); 3].map(|()| Manager::with_config(config.clone()).unwrap());
        managers[0].start_progress().unwrap();
        let config = ServerConfig { clients_max, ..ServerConfig::default() };
        let server = Server::new(&managers[0], config).unwrap();
        server.serve("calls", Access::SameUser).unwrap();
        test(&managers, &server);
        drop((server, managers));
        std::fs::remove_dir_all(&dir).ok();
    }

    #[track_caller]
    fn until(mut is_so: impl FnMut() -> bool) {
        let start = Instant::now();
        while !is_so() {
            assert!(start.elapsed() < Duration::from_secs(20), "what was waited for has not come");
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_request_of_one_that_has_gone_never_names_whoever_has_its_link_now() {
        with_server("departed", 2, |[_, here, other], server| {
            let _stranger = Client::connect(other, "calls", LIMIT).unwrap();
            let links = |state: &mut ServerState| -> Vec<LinkId> {
                let connections = state.clients.iter().flatten().map(|c| c.connection.as_ref());
                connections.flatten().map(|connection| connection.link()).collect()
            };
            // It is admitted before it has joined.
            until(|| server.with_state(links).len() == 1);
            let link = server.with_state(links)[0];
            let mut left_behind = Vec::new();
            for _ in 0..3 {
                let client = Client::connect(here, "calls", LIMIT).unwrap();
                client.start(b"last words", LIMIT).unwrap();
                left_behind.push(server.receive(LIMIT).unwrap().detach());
                drop(client);
                until(|| server.clients() == 1);
            }
            let mut peers = Vec::new();
            for mut arrived in left_behind {
                // As after 65,536 connections in the same place.
                arrived.link = link;
                peers.push(server.attach(arrived).peer().map(|peer| peer.node));
            }
            // Of the last two it is known, of the first no more.
            assert_eq!(peers, [None, Some(here.id()), Some(here.id())]);
        });
    }

    #[test]
    fn whoever_breaks_the_rules_while_nobody_receives_is_noted_once_and_forgotten_when_it_goes() {
        with_server("guilty", 8, |[_, here, other], server| {
            let body = {
                let mut node = other.lock();
                let area = node.message_area(128).unwrap();
                let queue = node.notification_queue(2).unwrap();
                let slot = node.slot(SlotConfig::new(area, queue).credit(2)).unwrap();
                let ticket = node.fast_ticket(slot).unwrap().to_bytes();
                [&ticket[..], &64u32.to_le_bytes(), &2u32.to_le_bytes()].concat()
            };
            let greeting = [b"HGr1\x04", &[0; 16][..], &body].concat();
            let mut links = Vec::new();
            for round in 0..6 {
                if round % 3 == 0 {
                    let link = other.connect("calls", &greeting, LIMIT).unwrap();
                    let answer = other.lock().greeting(link).unwrap().to_vec();
                    links.push((link, Ticket::from_bytes(&answer[5..5 + TICKET_BYTES]).unwrap()));
                }
                let (link, blocks) = links.last().unwrap();
                let client = Client::connect(here, "calls", LIMIT).unwrap();
                until(|| server.clients() == links.len() + 1);
                // There are two calls, and no ninth.
                let said = other.lock().try_send_fast_over(*link, blocks, &[], 9);
                assert!(said.is_ok());
                until(|| server.is_ready());
                // As one leaves, what has arrived is looked at.
                drop(client);
                until(|| server.clients() == links.len());
                assert_eq!(server.with_state(|state| state.guilty.len()), links.len());
            }
            for (left, (link, _)) in links.iter().enumerate() {
                other.lock().disconnect(*link).unwrap();
                until(|| server.clients() == links.len() - left - 1);
                assert_eq!(server.with_state(|state| state.guilty.len()), links.len() - left - 1);
            }
        });
    }
}
