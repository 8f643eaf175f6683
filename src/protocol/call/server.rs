//! The server's side of request and reply.

use super::at_server::{Pumped, ReadyRequests, ServerState};
use super::handling::CallFailure;
use super::long::{LONG_MAX, LongReply};
use super::{Bytes, CallError, FAILED, LENGTH_MAX};
use crate::control::Peer;
use crate::interface::{LinkId, QUEUE_ENTRIES_MAX, QueueId};
use crate::node::{CloseReason, Look, Node, NodeSendError};
use crate::protocol::ends::offered;
use crate::protocol::manager::{OfferId, Offering, Protocols, set_up};
use crate::protocol::{EndPoint, GrowError, Kind, Manager, ReceiveError};
use crate::wire::SlotIndex;
use core::mem::{forget, swap};
use core::ops::Deref;
use core::sync::atomic::Ordering;
use core::time::Duration;
use std::boxed::Box;
use std::collections::{HashMap, VecDeque};
use std::format;
use std::sync::Arc;
use std::time::Instant;
use std::vec::Vec;

/// Configuration of a [`Server`].
///
/// ```
/// use hamlyn::protocol::ServerConfig;
///
/// // Small requests only, and few of each client at a time.
/// let config = ServerConfig {
///     outstanding: 4,
///     request_bytes_max: 4096,
///     ..ServerConfig::default()
/// };
/// # assert_eq!(config.clients_max, 64);
/// ```
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Calls that each client may have outstanding. 64 unless set.
    pub outstanding: u32,
    /// Bytes of a request that are sent at once; a longer request costs one more round trip. Pages
    /// are used when they are first written. At most 4,088, the default.
    pub request_bytes: u32,
    /// Longest request, in bytes. 16 MiB unless set; it also bounds `request_bytes`.
    pub request_bytes_max: u64,
    /// Bytes of long requests that each user's clients may have here at a time, until they are
    /// replied to; further ones wait at the client, but one is always taken. Each user's clients
    /// may have as many bytes again of long replies of tasks (`AsyncRequest::reply`) that they have
    /// not taken; further ones wait in the tasks that make them. 64 MiB unless set.
    pub long_bytes_max: u64,
    /// Bytes of long replies to each user's clients that may wait in tasks in this way. One may
    /// always wait; a reply beyond the limit fails with [`CallError::Untaken`]. 1 GiB unless set,
    /// as much as one client may have asked for under the other defaults.
    pub waiting_bytes_max: u64,
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
            waiting_bytes_max: 1 << 30,
            clients_max: 64,
        }
    }
}

/// A request apart from its server, for threads and tasks that outlive a borrow: see
/// [`Server::attach`]. If you drop it, the client waits until its time limit.
#[derive(Debug)]
pub struct Arrived {
    // In a box that is used again, because moving it is then cheap. The parts are written piece by
    // piece, and moving them as a whole stalls the processor at each move.
    pub(in crate::protocol) parts: Box<ServerParts>,
}

#[derive(Debug)]
pub(in crate::protocol) struct ServerParts {
    pub(in crate::protocol) bytes: Bytes,
    pub(super) call: u32,
    pub(super) slot: SlotIndex,
    pub(in crate::protocol) client: u64,
    pub(super) link: LinkId,
    /// The time at which its caller gives up, if the caller told it.
    pub(in crate::protocol) deadline: Option<Instant>,
    /// The next of those that are kept.
    pub(super) next: Option<Box<ServerParts>>,
}

/// Receives calls. `Send` and `Sync`: several threads may receive and reply.
///
/// ```
/// # let dir = std::env::temp_dir().join(format!("hamlyn-doc-server-{}", std::process::id()));
/// # let config = hamlyn::Config::from_env()?.dir(&dir);
/// use hamlyn::Access;
/// use hamlyn::protocol::{CallError, Client, Manager, Server, ServerConfig};
/// use std::time::Duration;
///
/// let limit = Some(Duration::from_secs(10));
/// let manager = Manager::with_config(config.clone())?;
/// let server = Server::new(&manager, ServerConfig::default())?;
/// server.serve("shout", Access::SameUser)?;
/// std::thread::scope(|scope| -> Result<(), Box<dyn std::error::Error>> {
///     scope.spawn(|| -> Result<(), CallError> {
///         for _ in 0..2 {
///             let Ok(request) = server.receive(limit) else { break };
///             match request.is_empty() {
///                 true => request.fail(400, "nothing to shout", limit)?,
///                 false => {
///                     let reply = request.to_ascii_uppercase();
///                     request.reply(&reply, limit)?;
///                 }
///             }
///         }
///         Ok(())
///     });
///     // Usually another process.
///     let client = Client::connect(&Manager::with_config(config)?, "shout", limit)?;
///     assert_eq!(&*client.call(b"hello", limit)?, b"HELLO");
///     assert!(matches!(client.call(b"", limit), Err(CallError::Application { code: 400, .. })));
///     Ok(())
/// })?;
/// # std::fs::remove_dir_all(&dir).ok();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Server {
    pub(super) manager: Manager,
    pub(super) offer: OfferId,
    queue: QueueId,
    pub(super) ready: Arc<ReadyRequests>,
}

/// A call to be replied to. Dropped without a reply, it tells the client that no reply will come.
pub struct Request<'a> {
    pub(super) server: &'a Server,
    pub(super) arrived: Option<Arrived>,
}

impl Server {
    /// A server end point; clients find it by name ([`serve`](Self::serve)) or grow from its seed.
    pub fn new(manager: &Manager, config: ServerConfig) -> Result<Self, GrowError> {
        let calls = config.outstanding;
        super::check_outstanding(calls)?;
        super::check_block("request_bytes", config.request_bytes)?;
        // A request and its cancellation, for each call.
        let each = calls.saturating_mul(2).saturating_add(LONG_MAX as u32);
        let most = QUEUE_ENTRIES_MAX / each;
        if !(1..=most).contains(&config.clients_max) {
            return Err(GrowError::SetUp(format!(
                "clients_max is {}: with {calls} outstanding calls each, from 1 to {most} are allowed",
                config.clients_max
            )));
        }
        let entries = each * config.clients_max;
        let queue = manager.lock().notification_queue(entries).map_err(set_up)?;
        let ready = Arc::<ReadyRequests>::default();
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
            given_up: 0,
            misbehaved: 0,
            outboxes: 0,
            watchers: HashMap::new(),
            drains: false,
            spares: Spares::default(),
        };
        let offer = manager.offer(Kind::CALL, Offering::Server(Box::new(state)));
        Ok(Self { manager: manager.clone(), offer, queue, ready })
    }

    offered!(many "a [`Client`](super::Client)");

    /// The next request that is there already, or comes in one turn.
    pub fn try_receive(&self) -> Result<Option<Request<'_>>, ReceiveError> {
        ReceiveError::unless_timed_out(self.receive(Some(Duration::ZERO)))
    }

    /// The next request; waits at most `timeout`. Any number of threads may receive. A thread that
    /// polls takes all arrivals; the others then take theirs without the manager's lock.
    /// [`ReceiveError::Draining`]: the server [drains](Self::drain), and no more will come.
    #[inline]
    pub fn receive(&self, timeout: Option<Duration>) -> Result<Request<'_>, ReceiveError> {
        if let Some(arrived) = self.ready.pop() {
            return Ok(self.attach(arrived));
        }
        let found = self.manager.shared.at_once(|node, protocols| {
            match protocols.server(self.offer)?.take_at_once(node) {
                None => self.look(node, protocols).found(),
                Some(arrived) => Some(Ok(arrived)),
            }
        });
        match found {
            Some(Ok(arrived)) => Ok(self.attach(arrived)),
            Some(Err(e)) => Err(e),
            None => self.wait_for_request(timeout),
        }
    }

    #[inline(never)]
    fn wait_for_request(&self, timeout: Option<Duration>) -> Result<Request<'_>, ReceiveError> {
        let look = |node: &mut Node, protocols: &mut Protocols| self.look(node, protocols);
        match self.manager.shared.wait_until(timeout, look) {
            Ok(found) => found.map(|arrived| self.attach(arrived)),
            Err(waited) => Err(waited.into()),
        }
    }

    /// One look for a request.
    #[inline(never)]
    fn look(
        &self,
        node: &mut Node,
        protocols: &mut Protocols,
    ) -> Look<Result<Arrived, ReceiveError>> {
        let Some(state) = protocols.server(self.offer) else {
            return Look::Nothing;
        };
        match state.pump(node) {
            Pumped::Request(arrived) => {
                if node.is_ready(self.queue) == Ok(true)
                    && let Some((link, why)) = state.share_rest(node)
                {
                    protocols.expel(node, link, &why);
                }
                Look::Found(Ok(arrived))
            }
            // One bad client is no failure of the server.
            Pumped::Broken(link, why) => {
                protocols.expel(node, link, &why);
                Look::Again
            }
            // Another thread may have taken it.
            Pumped::Nothing => match self.ready.pop() {
                Some(other) => Look::Found(Ok(other)),
                None if state.has_drained() => Look::Found(Err(ReceiveError::Draining)),
                None => Look::Nothing,
            },
        }
    }

    /// A request that was [detached](Request::detach) from this server, to be replied to.
    #[inline]
    pub fn attach(&self, arrived: Arrived) -> Request<'_> {
        Request { server: self, arrived: Some(arrived) }
    }

    /// Connected clients.
    pub fn clients(&self) -> usize {
        // A thread that only looks sees new and departed clients.
        if !self.manager.is_forked() {
            use crate::node::Attached;
            let mut guard = self.manager.shared.lock();
            let (node, protocols) = guard.parts();
            if node.may_be_told() && node.poll().is_ok() {
                protocols.after_poll(node);
            }
        }
        self.with_state(|state| state.client_count as usize)
    }

    /// Clients whose link was ended because they broke the rules.
    pub fn misbehaved(&self) -> u64 {
        self.with_state(|state| state.misbehaved)
    }

    /// The sender of a request.
    #[cfg(feature = "tokio")]
    pub(crate) fn peer_of(&self, arrived: &Arrived) -> Option<Peer> {
        self.with_state(|state| state.peer_of(arrived.its_which()))
    }

    pub(super) fn with_state<R: Default>(&self, look: impl FnOnce(&mut ServerState) -> R) -> R {
        let mut guard = self.manager.shared.lock();
        guard.parts().1.server(self.offer).map(look).unwrap_or_default()
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
        if let Offering::Server(mut state) = offer {
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
    pub(super) fn arrived(&self) -> &Arrived {
        self.arrived.as_ref().expect("present until replied to")
    }

    /// The caller's identity, from the kernel: that of the process that grew the client. `None`
    /// after the client and as many others as the server may have clients have gone.
    pub fn peer(&self) -> Option<Peer> {
        self.server.with_state(|state| state.peer_of(self.arrived().its_which()))
    }

    /// The client's link. When the client has gone, another link may get this name one day;
    /// [`peer`](Self::peer) never names another.
    pub fn link(&self) -> LinkId {
        self.arrived().parts.link
    }

    /// The request apart from its server, to be [attached](Server::attach) again in another thread
    /// or task.
    ///
    /// ```
    /// # let dir = std::env::temp_dir().join(format!("hamlyn-doc-detach-{}", std::process::id()));
    /// use hamlyn::protocol::{Arrived, Client, ClientConfig, Manager, Server, ServerConfig};
    /// use std::time::Duration;
    ///
    /// # let limit = Some(Duration::from_secs(10));
    /// # let config = hamlyn::Config::from_env()?.dir(&dir);
    /// # let manager = Manager::with_config(config.clone())?;
    /// # manager.start_progress()?;
    /// let server = Server::new(&manager, ServerConfig::default())?;
    /// let other = Manager::with_config(config)?;
    /// let client = Client::grow_with(&other, &server.seed()?, ClientConfig::default(), limit)?;
    /// std::thread::scope(|scope| -> Result<(), Box<dyn std::error::Error>> {
    ///     let call = scope.spawn(|| client.call_within(b"later", Duration::from_secs(10)));
    ///     manager.wait_any(&[&server], limit)?;
    ///     let request = server.try_receive()?.expect("it has come");
    ///     assert_eq!(server.connections()[0].link(), request.link());
    ///     // For example into a queue of the program.
    ///     let arrived: Arrived = request.detach();
    ///     assert!(arrived.deadline().is_some() && !server.is_cancelled(&arrived));
    ///     server.attach(arrived).reply(b"done", limit)?;
    ///     assert_eq!(&*call.join().expect("a thread")?, b"done");
    ///     Ok(())
    /// })?;
    /// server.stop_serving(); // Connected clients stay.
    /// assert_eq!(server.misbehaved(), 0);
    /// # std::fs::remove_dir_all(&dir).ok();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn detach(mut self) -> Arrived {
        self.arrived.take().expect("present until replied to")
    }

    /// Replies, waiting at most `timeout` for room. With `None`, a reply of up to the client's
    /// block never waits: without room it is kept, and leaves in a later call of any end point of
    /// this manager, so a client that takes nothing holds up no other. A kept reply is lost if the
    /// server is dropped before it leaves; a reply that was sent within a limit arrives. A reply
    /// longer than the client's block always waits, until the client has made room for it and its
    /// bytes have left: give a limit, or reply in a thread of its own. On an error the client is
    /// told that no reply will come.
    #[inline]
    pub fn reply(mut self, data: &[u8], timeout: Option<Duration>) -> Result<(), CallError> {
        let Server { manager, offer, .. } = self.server;
        let sent = manager.shared.at_once(|node, protocols| {
            let state = protocols.server(*offer)?;
            let arrived = self.arrived.as_ref()?;
            let (call, client) = (arrived.parts.call, state.client_of(arrived)?);
            // A long request may wait for this one.
            if !client.alive.is_empty()
                || !client.lent.send_packet(node, call, data.len() as u32, data)
            {
                return None;
            }
            client.end_short(call);
            state.spares.keep(self.arrived.take()?);
            Some(())
        });
        if sent.is_some() {
            // Everything has been taken out of it.
            forget(self);
            return Ok(());
        }
        self.reply_slowly(data, timeout)
    }

    #[inline(never)]
    fn reply_slowly(mut self, data: &[u8], timeout: Option<Duration>) -> Result<(), CallError> {
        if !self.answer(CallAnswer::Reply(data), timeout.is_none(), timeout)? {
            self.answer_long(data, timeout)?;
        }
        Ok(())
    }
}

impl Request<'_> {
    /// Waits at most `timeout` until an answer of up to the client's block has left; `false`: it is
    /// a longer reply. An answer that finds no room is kept if `keeps` says so, and then this never
    /// waits.
    pub(super) fn answer(
        &mut self,
        answer: CallAnswer<'_>,
        keeps: bool,
        timeout: Option<Duration>,
    ) -> Result<bool, CallError> {
        let Some(arrived) = &self.arrived else { return Ok(true) };
        let Server { manager, offer, .. } = self.server;
        let sent = manager.shared.wait_until(timeout, |node, protocols| {
            look_to_reply(node, protocols, *offer, arrived, answer, keeps)
        });
        let has_left = sent.map_err(|waited| CallError::from(waited).of_reply())??;
        if has_left {
            self.arrived = None;
        }
        Ok(has_left)
    }

    /// Waits at most `timeout` until a reply that is longer than the client's block has left.
    pub(super) fn answer_long(
        &mut self,
        data: &[u8],
        timeout: Option<Duration>,
    ) -> Result<(), CallError> {
        let Some(arrived) = &self.arrived else { return Ok(()) };
        let Server { manager, offer, .. } = self.server;
        let mut long = LongReply::default();
        let sent = manager.shared.wait_until(timeout, |node, protocols| {
            long.look(node, protocols, *offer, arrived, data)
        });
        sent.map_err(|waited| CallError::from(waited).of_reply())??;
        self.arrived = None;
        Ok(())
    }

    /// Replies if the reply is no longer than the client's block; otherwise `false`. Without room it
    /// is kept.
    #[cfg(feature = "tokio")]
    pub(crate) fn reply_short(&mut self, data: &[u8]) -> Result<bool, CallError> {
        self.answer(CallAnswer::Reply(data), true, None)
    }

    /// One turn of a task's long reply: whether it has left.
    #[cfg(feature = "tokio")]
    pub(crate) fn advance_long(
        &mut self,
        long: &mut LongReply,
        data: &[u8],
    ) -> Result<Option<()>, CallError> {
        let Some(arrived) = &self.arrived else { return Ok(Some(())) };
        let Server { manager, offer, .. } = self.server;
        let left = manager
            .shared
            .look_after_turn(|node, protocols| long.look(node, protocols, *offer, arrived, data))?;
        let left = left.transpose()?;
        if left.is_some() {
            self.arrived = None;
        }
        Ok(left)
    }
}

/// The answer to a request.
#[derive(Clone, Copy)]
pub(super) enum CallAnswer<'a> {
    Reply(&'a [u8]),
    Failure(&'a [u8]),
}

/// One look of a replying thread; `false`: the reply is longer than the client's block. `keeps`: a
/// reply that finds no room is kept, and leaves later.
fn look_to_reply(
    node: &mut Node,
    protocols: &mut Protocols,
    offer: OfferId,
    arrived: &Arrived,
    answer: CallAnswer<'_>,
    keeps: bool,
) -> Look<Result<bool, CallError>> {
    let (link, call) = (arrived.parts.link, arrived.parts.call);
    let state = protocols.server(offer);
    let Some(client) = state.and_then(|state| state.client_of(arrived)) else {
        return gone(node, protocols, offer, arrived);
    };
    // A reply's code is its length; no reply that is sent at once has the length `FAILED`.
    let (code, data) = match answer {
        CallAnswer::Reply(data) if data.len() > client.at_once => return Look::Found(Ok(false)),
        CallAnswer::Reply(data) => (data.len() as u32, data),
        CallAnswer::Failure(data) if data.len() > client.at_once => {
            return Look::Found(Err(CallFailure::beyond(data, client.at_once)));
        }
        CallAnswer::Failure(data) => (FAILED, data),
    };
    match client.lent.send(node, link, call, code, data) {
        Ok(()) => {
            client.end(call);
            if client.is_shut() {
                node.wake();
            }
            if client.freed
                && let Some(state) = protocols.server(offer)
            {
                state.advance(node, arrived.parts.slot);
            }
            Look::Found(Ok(true))
        }
        Err(NodeSendError::Full) if !keeps => Look::Room(link),
        Err(NodeSendError::Full) => {
            client.outbox.push_back((call, code, data.to_vec()));
            if let Some(state) = protocols.server(offer) {
                state.advance(node, arrived.parts.slot);
            }
            Look::Found(Ok(true))
        }
        Err(NodeSendError::LinkEnded(_)) => gone(node, protocols, offer, arrived),
        Err(e) => Look::Found(Err(e.into())),
    }
}

/// The client of a request has gone; returns the reason.
#[cold]
pub(super) fn gone<R>(
    node: &mut Node,
    protocols: &mut Protocols,
    offer: OfferId,
    arrived: &Arrived,
) -> Look<Result<R, CallError>> {
    protocols.take_events(node);
    let reason = protocols.server(offer).and_then(|state| state.why_gone(arrived));
    Look::Found(Err(CallError::Ended(reason.unwrap_or(CloseReason::Closed))))
}

/// Places of answered requests, for new ones; each holds the next.
#[derive(Default)]
pub(super) struct Spares {
    first: Option<Box<ServerParts>>,
    count: usize,
}

/// Places that are kept.
const SPARES_MAX: usize = 64;

impl Spares {
    /// A place for a request, without a deadline.
    #[inline]
    pub(super) fn take(&mut self) -> Arrived {
        let Some(mut parts) = self.first.take() else { return Arrived::default() };
        // Swapped, here and below, because an assignment would have to drop the old value.
        swap(&mut self.first, &mut parts.next);
        self.count -= 1;
        Arrived { parts }
    }

    /// Keeps the place of an answered request, unless that was a long one, or there are many.
    #[inline]
    pub(super) fn keep(&mut self, arrived: Arrived) {
        let Arrived { mut parts } = arrived;
        if !parts.bytes.is_inline() || self.count >= SPARES_MAX {
            return;
        }
        parts.deadline = None;
        swap(&mut self.first, &mut parts.next);
        if self.first.is_none() {
            self.first = Some(parts);
            self.count += 1;
        }
    }
}

impl Default for Arrived {
    fn default() -> Self {
        let (slot, link) = (SlotIndex(u32::MAX), LinkId::SELF);
        let bytes = Bytes::default();
        let parts =
            ServerParts { bytes, call: 0, slot, client: 0, link, deadline: None, next: None };
        Self { parts: Box::new(parts) }
    }
}

impl Deref for Arrived {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.parts.bytes
    }
}

impl Deref for Request<'_> {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &[u8] {
        &self.arrived().parts.bytes
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
        protocols.decline(node, self.offer, arrived);
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

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use crate::control::Access;
    use crate::interface::SlotConfig;
    use crate::protocol::Client;
    use crate::wire::{TICKET_BYTES, Ticket};
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
    fn places_are_used_again_without_what_was_long_or_ran_out() {
        let mut spares = Spares::default();
        let mut first = spares.take();
        let place = &raw const *first.parts;
        first.parts.deadline = Some(Instant::now());
        first.parts.bytes.copy(&[1; 20]);
        spares.keep(first);
        let mut again = spares.take();
        assert_eq!(&raw const *again.parts, place);
        assert_eq!(again.deadline(), None);
        again.parts.bytes.set([2, 3], 9);
        assert_eq!(*again, [2, 0, 0, 0, 0, 0, 0, 0, 3]);
        // Memory of a long one is given back, not kept.
        again.parts.bytes.copy(&[4; 1000]);
        spares.keep(again);
        assert_eq!(spares.count, 0);
        // At most that many, each once.
        let taken: Vec<Arrived> = (0..2 * SPARES_MAX).map(|_| spares.take()).collect();
        taken.into_iter().for_each(|arrived| spares.keep(arrived));
        assert_eq!(spares.count, SPARES_MAX);
        let taken: Vec<Arrived> = (0..SPARES_MAX).map(|_| spares.take()).collect();
        let mut places: Vec<_> = taken.iter().map(|arrived| &raw const *arrived.parts).collect();
        places.sort_unstable();
        places.dedup();
        assert_eq!((places.len(), spares.count, spares.first.is_none()), (SPARES_MAX, 0, true));
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
                arrived.parts.link = link;
                peers.push(server.attach(arrived).peer().map(|peer| peer.node));
            }
            // The last two are known, the first no longer.
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
            let greeting = [b"HGr2\x04\0\0\0", &[0; 16][..], &body].concat();
            let mut links = Vec::new();
            for round in 0..6 {
                if round % 3 == 0 {
                    let link = other.connect("calls", &greeting, LIMIT).unwrap();
                    let answer = other.lock().greeting(link).unwrap().to_vec();
                    links.push((link, Ticket::from_bytes(&answer[8..8 + TICKET_BYTES]).unwrap()));
                }
                let (link, blocks) = links.last().unwrap();
                let client = Client::connect(here, "calls", LIMIT).unwrap();
                until(|| server.clients() == links.len() + 1);
                // There are two calls, and no ninth.
                let said = other.lock().try_send_fast_over(*link, blocks, &[], 9);
                assert!(said.is_ok());
                until(|| server.is_ready());
                // When a client leaves, its arrivals are handled.
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
