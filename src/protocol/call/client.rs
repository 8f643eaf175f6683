//! The client's side of request and reply.

use super::at_client::{AtClient, BegunCall, Call, CallId, ClientState, LongAtClient};
use super::{Blocks, Bytes, CallError, LENGTH_MAX, LentBlocks, number_from};
use crate::node::{Look, WaitError};
use crate::protocol::ends::{connected, grown};
use crate::protocol::manager::{OfferId, Offering, Target, set_up};
use crate::protocol::{Connection, GrowError, Kind, Manager};
use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;
use std::boxed::Box;
use std::collections::{HashMap, VecDeque};
use std::format;
use std::sync::Arc;
use std::time::Instant;
use std::vec::Vec;

/// Configuration of a [`Client`].
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// Calls that may be outstanding, if the server allows as many. Further calls wait for one of
    /// these to end; those of one `AsyncClient` in the order of calling. 64 unless set.
    pub outstanding: u32,
    /// Bytes of a reply that are sent at once; at most 4,088, the default.
    pub reply_bytes: u32,
    /// Longest reply, in bytes. 16 MiB unless set.
    pub reply_bytes_max: u64,
}

impl Default for ClientConfig {
    fn default() -> Self {
        Self { outstanding: 64, reply_bytes: LENGTH_MAX, reply_bytes_max: 16 << 20 }
    }
}

impl ClientConfig {
    /// An error, if no client can have these settings.
    pub(in crate::protocol) fn check(&self) -> Result<(), GrowError> {
        super::check_outstanding(self.outstanding)?;
        super::check_block("reply_bytes", self.reply_bytes)
    }
}

static NEXT_CLIENT: AtomicU32 = AtomicU32::new(0);

/// Calls a server. `Send` and `Sync`: several threads may call.
///
/// ```
/// # let dir = std::env::temp_dir().join(format!("hamlyn-doc-client-{}", std::process::id()));
/// # let config = hamlyn::Config::from_env()?.dir(&dir);
/// use hamlyn::Access;
/// use hamlyn::protocol::{Client, Manager, Server, ServerConfig};
/// use std::time::Duration;
///
/// let limit = Some(Duration::from_secs(10));
/// let manager = Manager::with_config(config.clone())?;
/// let server = Server::new(&manager, ServerConfig::default())?;
/// server.serve("lengths", Access::SameUser)?;
/// manager.start_progress()?;
///
/// // Usually another process. Calls may be finished in any order.
/// let client = Client::connect(&Manager::with_config(config)?, "lengths", limit)?;
/// let first = client.start(b"one", limit)?;
/// let second = client.start(b"three", limit)?;
/// for _ in 0..2 {
///     let request = server.receive(limit)?;
///     let length = [request.len() as u8];
///     request.reply(&length, limit)?;
/// }
/// assert_eq!(*client.finish(second, limit)?, [5]);
/// assert_eq!(*client.finish(first, limit)?, [3]);
/// # std::fs::remove_dir_all(&dir).ok();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Client {
    manager: Manager,
    connection: Arc<Connection>,
    /// Registers the state with the manager; no sender can be grown from it.
    state: OfferId,
    outstanding: usize,
    at_once: usize,
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
        config.check()?;
        let calls = config.outstanding;
        let (queue, blocks, body) = {
            let mut node = manager.lock();
            // An answer and `LEFT` for each call may wait here, and one `CLOSING`.
            let words = calls.saturating_mul(2).saturating_add(1);
            // Long replies notify here, too: at most one for each call.
            let queue = node.notification_queue(words.saturating_add(calls)).map_err(set_up)?;
            let sizes = (config.reply_bytes, config.reply_bytes_max);
            match Blocks::lend(&mut node, queue, calls, sizes, words) {
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
            let (mut lent, granted) = LentBlocks::from_bytes(answer, connection.peer()).ok()?;
            let max = answer.get(LentBlocks::BYTES..)?;
            let packet_bytes = manager.lock().fast_bytes_max(connection.link()).unwrap_or(0);
            let max = number_from(max);
            let at_once = u64::try_from(lent.at_once(packet_bytes)).unwrap_or(u64::MAX).min(max);
            lent.go_over(connection.link());
            lent.takes(max);
            Some((lent, granted.min(calls), max, at_once as usize))
        };
        let expected = "no blocks for requests";
        let (connection, (lent, granted, request_bytes_max, at_once)) = manager
            .grow(target, Kind::CALL, &body, timeout, expected, read)
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
            scratch: Vec::new(),
            server_closes: false,
        };
        let outstanding = granted as usize;
        let state = manager.offer(Kind::CALL, Offering::Client(Box::new(state)));
        manager.tell_end(&connection, state);
        Ok(Self { manager: manager.clone(), connection, state, outstanding, at_once })
    }

    /// Sends a request and waits for the reply, at most `timeout` in all.
    #[inline]
    pub fn call(&self, request: &[u8], timeout: Option<Duration>) -> Result<Bytes, CallError> {
        match self.start_at_once(request) {
            Some(call) => self.finish_or_forget(call, timeout),
            None => {
                let deadline = timeout.and_then(|limit| Instant::now().checked_add(limit));
                self.call_until(request, deadline, None, &mut false)
            }
        }
    }

    /// [`call`](Self::call) with a time limit that is sent to the server: its handler sees when the
    /// caller gives up ([`Request::deadline`](super::Request::deadline)). Takes 8 bytes of the
    /// request, so a request of more than 8 bytes no longer fits one cache line.
    pub fn call_within(&self, request: &[u8], limit: Duration) -> Result<Bytes, CallError> {
        let deadline = Instant::now().checked_add(limit);
        self.call_until(request, deadline, deadline, &mut false)
    }

    #[inline]
    fn finish_or_forget(
        &self,
        call: CallId,
        timeout: Option<Duration>,
    ) -> Result<Bytes, CallError> {
        let finished = self.finish(call, timeout);
        if let Err(CallError::TimedOut | CallError::Wait(_)) = finished {
            self.forget(call);
        }
        finished
    }

    /// A call until one deadline, where the server gets another deadline, or no deadline;
    /// `may_be_there`: whether the server may have the whole request, even if this fails.
    pub(crate) fn call_until(
        &self,
        request: &[u8],
        deadline: Option<Instant>,
        told: Option<Instant>,
        may_be_there: &mut bool,
    ) -> Result<Bytes, CallError> {
        let left = || deadline.map(|at| at.saturating_duration_since(Instant::now()));
        let call = match told {
            None => self.start(request, left())?,
            Some(_) => self.start_slowly(request, left(), told).map_err(|e| e.at(deadline))?,
        };
        *may_be_there = true;
        self.finish_or_forget(call, left()).map_err(|e| e.at(told))
    }

    /// A call that is advanced one turn at a time.
    #[cfg(feature = "tokio")]
    pub(crate) fn prepare<'a>(
        &'a self,
        request: &'a [u8],
        deadline: Option<Instant>,
    ) -> Prepared<'a> {
        Prepared { client: self, request, deadline, progress: CallProgress::default() }
    }

    /// Goes on with a call whose caller waits in parts, from its beginning on: at most `timeout`
    /// now. `None`: it is not over. Otherwise the call no longer exists afterwards. `deadline`: the
    /// one that the server is told.
    pub(in crate::protocol) fn go_on(
        &self,
        request: &[u8],
        deadline: Option<Instant>,
        progress: &mut CallProgress,
        timeout: Option<Duration>,
    ) -> Result<Option<Bytes>, CallError> {
        let CallProgress { begun, may_be_there, none_free } = progress;
        if let (BegunCall::Nothing, None) = (&begun, deadline)
            && let Some(id) = self.start_at_once(request)
        {
            *begun = BegunCall::Sent(id);
        }
        let mut reply = Bytes::default();
        let result = self.manager.shared.wait_until(timeout, |node, protocols| {
            let Some(state) = protocols.client(self.state) else { return Look::Nothing };
            let look = state.look_at_all(node, request, deadline, begun, &mut reply);
            *none_free = state.waits_for_a_call(begun);
            look
        });
        *may_be_there = matches!(begun, BegunCall::Sent(_));
        let result = match result {
            Err(WaitError::TimedOut) => return Ok(None),
            Err(waited) => Err(waited.into()),
            Ok(result) => result,
        };
        let id = core::mem::take(begun).id();
        self.settle(result, id).map(|()| Some(reply))
    }

    /// Forgets a call that [`go_on`](Self::go_on) has begun, unless it is over.
    pub(in crate::protocol) fn let_go(&self, progress: &CallProgress) {
        if let Some(id) = progress.begun.id()
            && !self.manager.is_forked()
        {
            self.forget(id);
        }
    }

    /// The error of a call that is not over within its time limit.
    pub(in crate::protocol) fn timed_out(&self, progress: &CallProgress) -> CallError {
        match progress.none_free {
            true => CallError::NoneFree(self.outstanding),
            false => CallError::TimedOut,
        }
    }

    /// Sends a request, waiting at most `timeout` for a free call ([`CallError::NoneFree`]) and, if
    /// it is long, for the server to make room for it. Get the reply with [`finish`](Self::finish).
    #[inline]
    pub fn start(&self, request: &[u8], timeout: Option<Duration>) -> Result<CallId, CallError> {
        match self.start_at_once(request) {
            Some(id) => Ok(id),
            None => self.start_slowly(request, timeout, None),
        }
    }

    /// [`start`](Self::start), and tells the server that the reply is wanted until `limit` from
    /// now: see [`call_within`](Self::call_within). If you give up then, [forget](Self::forget) the
    /// call.
    ///
    /// ```
    /// # let dir = std::env::temp_dir().join(format!("hamlyn-doc-start-{}", std::process::id()));
    /// use hamlyn::protocol::{CallId, Client, ClientConfig, Manager, Server, ServerConfig};
    /// use std::time::Duration;
    ///
    /// # let limit = Some(Duration::from_secs(10));
    /// # let config = hamlyn::Config::from_env()?.dir(&dir);
    /// # let manager = Manager::with_config(config.clone())?;
    /// # manager.start_progress()?;
    /// let server = Server::new(&manager, ServerConfig::default())?;
    /// # server.serve("twice", hamlyn::Access::SameUser)?;
    /// let few = ClientConfig { outstanding: 4, ..ClientConfig::default() };
    /// let other = Manager::with_config(config)?;
    /// let client = Client::connect_with(&other, "twice", few, limit)?;
    /// let call = client.start_within(b"ha", Duration::from_secs(10))?;
    /// assert!(client.try_finish(call)?.is_none());
    /// let request = server.receive(limit)?;
    /// // The handler knows the deadline, and whether the caller still waits.
    /// assert!(request.deadline().is_some() && !request.is_cancelled());
    /// let reply = request.repeat(2);
    /// request.reply(&reply, limit)?;
    /// // As a number, for use in another language.
    /// assert_eq!(&*client.finish(CallId::from_bits(call.to_bits()), limit)?, b"haha");
    /// let unwanted = client.start(b"no", limit)?;
    /// client.forget(unwanted);
    /// assert!(server.receive(limit)?.is_cancelled());
    /// assert!(client.connection().ended().is_none());
    /// # std::fs::remove_dir_all(&dir).ok();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn start_within(&self, request: &[u8], limit: Duration) -> Result<CallId, CallError> {
        self.start_slowly(request, Some(limit), Instant::now().checked_add(limit))
    }

    /// [`start_within`](Self::start_within) for a caller who waits in parts: at most `timeout` now,
    /// until `deadline` in all.
    #[cfg(feature = "unstable-internals")]
    pub fn start_until(
        &self,
        request: &[u8],
        timeout: Option<Duration>,
        deadline: Instant,
    ) -> Result<CallId, CallError> {
        self.start_slowly(request, timeout, Some(deadline))
    }

    #[inline]
    fn start_at_once(&self, request: &[u8]) -> Option<CallId> {
        self.manager
            .shared
            .at_once(|node, protocols| protocols.client(self.state)?.begin_at_once(node, request))
    }

    #[inline(never)]
    fn start_slowly(
        &self,
        request: &[u8],
        timeout: Option<Duration>,
        deadline: Option<Instant>,
    ) -> Result<CallId, CallError> {
        let (mut begun, mut none_free) = (BegunCall::Nothing, false);
        let result = self.manager.shared.wait_until(timeout, |node, protocols| {
            let Some(state) = protocols.client(self.state) else { return Look::Nothing };
            let look = state.begin(node, request, deadline, &mut begun);
            none_free = state.waits_for_a_call(&begun);
            look
        });
        let result = match result {
            Ok(result) => result,
            Err(WaitError::TimedOut) if none_free => Err(CallError::NoneFree(self.outstanding)),
            Err(waited) => Err(waited.into()),
        };
        self.settle(result, begun.id())
    }

    /// Waits for the reply of a call, at most `timeout`. If that time passes, the call goes on, and
    /// can be finished later or [forgotten](Self::forget). Otherwise the call no longer exists
    /// afterwards.
    #[inline]
    pub fn finish(&self, call: CallId, timeout: Option<Duration>) -> Result<Bytes, CallError> {
        let taken = self
            .manager
            .shared
            .at_once(|node, protocols| protocols.client(self.state)?.take_at_once(node, call));
        match taken {
            Some(Ok(reply)) => Ok(reply),
            Some(Err(e)) => Err(self.failed(e, None)),
            None => self.finish_slowly(call, timeout),
        }
    }

    #[inline(never)]
    fn finish_slowly(&self, call: CallId, timeout: Option<Duration>) -> Result<Bytes, CallError> {
        let mut reply = Bytes::default();
        let found = self.manager.shared.wait_until(timeout, |node, protocols| {
            let Some(state) = protocols.client(self.state) else { return Look::Nothing };
            state.look_for(node, call, &mut reply)
        });
        self.settle(found?, None).map(|()| reply)
    }

    /// The reply of a call, if it is there or comes in one turn.
    pub fn try_finish(&self, call: CallId) -> Result<Option<Bytes>, CallError> {
        CallError::unless_timed_out(self.finish(call, Some(Duration::ZERO)))
    }

    /// Abandons a call: its reply will be dropped when it comes, and the server's handler can see
    /// the cancellation ([`Request::is_cancelled`](super::Request::is_cancelled)). The call does
    /// not exist from now on, not even for a thread that waits for it; its place among the
    /// outstanding calls is free when the server has answered.
    pub fn forget(&self, call: CallId) {
        let mut guard = self.manager.shared.lock();
        let (node, protocols) = guard.parts();
        if let Some(state) = protocols.client(self.state)
            && let Ok(false) = state.take(node, call, &mut Bytes::default())
        {
            state.abandon(node, call);
        }
    }

    /// Bytes of a request that are sent at once.
    #[cfg(feature = "unstable-internals")]
    pub fn at_once_max(&self) -> usize {
        self.at_once
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

    /// After a failure: forgets the call, if it still exists; disconnects a peer that broke the rules.
    #[inline]
    fn settle<R>(&self, result: Result<R, CallError>, id: Option<CallId>) -> Result<R, CallError> {
        result.map_err(|e| self.failed(e, id))
    }

    #[cold]
    fn failed(&self, e: CallError, id: Option<CallId>) -> CallError {
        if let Some(id) = id {
            self.forget(id);
        }
        if let CallError::Misbehaved(why) = &e {
            self.manager.expel(self.connection.link(), why);
        }
        e
    }
}

/// The progress of a call that its caller makes in parts.
#[derive(Default)]
pub(in crate::protocol) struct CallProgress {
    begun: BegunCall,
    /// Whether the server may have the whole request, even if the call fails.
    pub may_be_there: bool,
    /// No call was free at the last look.
    none_free: bool,
}

/// A call that its owner advances, and forgets by dropping this.
#[cfg(feature = "tokio")]
pub(crate) struct Prepared<'a> {
    client: &'a Client,
    request: &'a [u8],
    deadline: Option<Instant>,
    progress: CallProgress,
}

#[cfg(feature = "tokio")]
impl Prepared<'_> {
    /// The error if its time limit has passed.
    pub fn timed_out(&self) -> CallError {
        self.client.timed_out(&self.progress)
    }

    /// Whether the server may have the whole request.
    pub fn may_be_there(&self) -> bool {
        self.progress.may_be_there
    }

    /// One turn: the reply, if it has come.
    pub fn advance(&mut self) -> Result<Option<Bytes>, CallError> {
        let Self { client, request, deadline, progress } = self;
        let CallProgress { begun, may_be_there, none_free } = progress;
        let mut reply = Bytes::default();
        let found = client.manager.shared.look_after_turn(|node, protocols| {
            let Some(state) = protocols.client(client.state) else { return Look::Nothing };
            let look = state.look_at_all(node, request, *deadline, begun, &mut reply);
            *none_free = state.waits_for_a_call(begun);
            look
        })?;
        *may_be_there |= begun.may_be_there();
        let Some(result) = found else { return Ok(None) };
        let id = core::mem::take(begun).id();
        client.settle(result, id).map(|()| Some(reply))
    }
}

#[cfg(feature = "tokio")]
impl Drop for Prepared<'_> {
    fn drop(&mut self) {
        self.client.let_go(&self.progress);
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.manager.leave(&self.connection, |_| {});
        let Some(offer) = self.manager.withdraw(self.state) else { return };
        let mut node = self.manager.lock();
        let Offering::Client(state) = offer else { return };
        state.blocks.remove(&mut node);
        for long in state.longs.values() {
            if let LongAtClient::Receiving(long) = long {
                long.remove(&mut node);
            }
        }
        let _ = node.remove_queue(state.queue);
    }
}
