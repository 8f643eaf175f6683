//! Calls in tasks: a server and its clients that wait in the runtime.
//!
//! ```text
//!   AsyncServer    receive().await -> AsyncRequest     any number of tasks, each by a clone or a &
//!   AsyncRequest   reply(..).await                     by whichever task has it, for as long as it likes
//!   AsyncClient    call(..).await -> Bytes             any number of tasks, each by a clone or a &
//! ```
//! Each future may be dropped at any time, as `select!` does. A request that `receive` has not
//! returned waits for the next `receive`; dropping a call forgets it, and its place is free when
//! the reply has come; a reply goes on once it no longer waits for room.

mod watching;

use super::asynchronous::AsyncManager;
use super::call::{
    Arrived, Bytes, CallError, Client, ClientConfig, LongReply, Server, ServerConfig,
};
use super::manager::{GrowError, Manager, ReceiveError};
use super::seed::Seed;
use crate::control::{Access, Peer, PeerUser};
use crate::node::OfferError;
use core::future::poll_fn;
use core::ops::Deref;
use core::pin::pin;
use core::sync::atomic::{AtomicU64, Ordering};
use core::task::{Poll, Waker};
use core::time::Duration;
use std::collections::{HashMap, VecDeque};
use std::string::String;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use std::vec::Vec;
use tokio::sync::{Notify, Semaphore};
use tokio::time::timeout_at;
use watching::{Watched, Watching};

/// A [`Server`] in tasks. Cloning shares it.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// # let dir = std::env::temp_dir().join(format!("hamlyn-doc-tasks-{}", std::process::id()));
/// # let config = hamlyn::Config::from_env()?.dir(&dir);
/// use hamlyn::Access;
/// use hamlyn::protocol::{AsyncClient, AsyncManager, AsyncServer, Manager, ServerConfig};
/// use std::time::Duration;
///
/// let manager = AsyncManager::new(&Manager::with_config(config.clone())?)?;
/// let server = AsyncServer::new(&manager, ServerConfig::default())?;
/// server.serve("shout", Access::SameUser)?;
/// tokio::spawn(async move {
///     while let Ok(request) = server.receive().await {
///         // Each by a task of its own, which may wait for other work.
///         tokio::spawn(async move { request.reply(&request.to_ascii_uppercase()).await });
///     }
/// });
///
/// // Usually another process.
/// let manager = AsyncManager::new(&Manager::with_config(config)?)?;
/// let client = AsyncClient::connect(&manager, "shout", Some(Duration::from_secs(10))).await?;
/// assert_eq!(&*client.call(b"hello").await?, b"HELLO");
/// # std::fs::remove_dir_all(&dir).ok();
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct AsyncServer {
    server: Arc<Server>,
    manager: AsyncManager,
    untaken: Arc<Untaken>,
    watching: Arc<Watching>,
}

/// Long replies that their clients have not taken.
///
/// ```text
///   reply --waits--> its client's turn --waits--> room among its user's copies --copied--> on its way
/// ```
/// Replies that wait are the application's memory, and their requests may still be answered in
/// another way.
struct Untaken {
    /// Most bytes of the copies, and of the waiting replies, of each user's clients.
    copied_max: u64,
    waiting_max: u64,
    users: Mutex<HashMap<Option<PeerUser>, OfUser>>,
    refused: AtomicU64,
    /// By client.
    lines: Mutex<HashMap<u64, ClientReplies>>,
    /// A copy was dropped.
    freed: Notify,
}

/// Bytes of a user's long replies.
#[derive(Default)]
struct OfUser {
    copied: u64,
    waiting: u64,
}

/// Long replies of one client that are on their way at a time; its others wait for their turn. Each
/// of them looks at every arrival, from any client: a client that takes no replies must not
/// multiply that cost by its number of calls.
const AT_A_TIME: usize = 4;

/// The long replies of one client.
#[derive(Default)]
struct ClientReplies {
    on_their_way: usize,
    /// Bytes of its copies.
    copied: u64,
    waiting: VecDeque<Arc<Mutex<TurnWait>>>,
}

/// A reply that waits for its turn.
#[derive(Default)]
struct TurnWait {
    is_its_turn: bool,
    waker: Option<Waker>,
}

/// A place in a client's line, until it is its turn or this is dropped.
struct InLine {
    client: u64,
    of: Arc<Untaken>,
    waits: Arc<Mutex<TurnWait>>,
}

/// A long reply is on its way until this is dropped; then it is the next one's turn.
struct ReplyTurn {
    client: u64,
    of: Arc<Untaken>,
}

impl Untaken {
    fn lines(&self) -> MutexGuard<'_, HashMap<u64, ClientReplies>> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn users(&self) -> MutexGuard<'_, HashMap<Option<PeerUser>, OfUser>> {
        self.users.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until a long reply to this client may be on its way. Dropped before, it gives its turn
    /// up.
    async fn turn(self: &Arc<Self>, client: u64) -> ReplyTurn {
        let in_line = {
            let mut lines = self.lines();
            let line = lines.entry(client).or_default();
            if line.on_their_way < AT_A_TIME {
                line.on_their_way += 1;
                return ReplyTurn { client, of: self.clone() };
            }
            let waits = Arc::<Mutex<TurnWait>>::default();
            line.waiting.push_back(waits.clone());
            InLine { client, of: self.clone(), waits }
        };
        poll_fn(|context| {
            let mut waits = lock(&in_line.waits);
            if waits.is_its_turn {
                waits.is_its_turn = false;
                return Poll::Ready(());
            }
            waits.waker = Some(context.waker().clone());
            Poll::Pending
        })
        .await;
        ReplyTurn { client, of: self.clone() }
    }

    /// Counts a reply that is to wait; one reply may always wait.
    fn wait(
        self: &Arc<Self>,
        user: Option<PeerUser>,
        length: u64,
    ) -> Result<WaitingReply, CallError> {
        let mut all = self.users();
        let of = all.entry(user.clone()).or_default();
        let (held, max) = (of.waiting, self.waiting_max);
        if held > 0 && held.saturating_add(length) > max {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return Err(CallError::Untaken { length, held, max });
        }
        of.waiting += length;
        Ok(WaitingReply { length, user, of: self.clone() })
    }

    /// A copy of a reply, if there is room. A client may have as many of its user's bytes as remain
    /// free after it, so that a client that takes no replies leaves room for the others; it may
    /// always have one copy.
    fn copy(
        self: &Arc<Self>,
        turn: ReplyTurn,
        waiting: &WaitingReply,
        data: &[u8],
    ) -> Result<Copied, ReplyTurn> {
        let mut lines = self.lines();
        let mut all = self.users();
        let of = all.entry(waiting.user.clone()).or_default();
        let left = self.copied_max.saturating_sub(of.copied);
        // Exists as long as the turn.
        let line = lines.entry(turn.client).or_default();
        if line.copied > 0 && line.copied.saturating_add(waiting.length) > left {
            return Err(turn);
        }
        of.copied += waiting.length;
        line.copied += waiting.length;
        drop((all, lines));
        Ok(Copied { data: data.to_vec(), user: waiting.user.clone(), of: self.clone(), turn })
    }

    /// Subtracts freed bytes from a user's.
    fn less(&self, user: &Option<PeerUser>, less: impl FnOnce(&mut OfUser)) {
        let mut all = self.users();
        if let Some(of) = all.get_mut(user) {
            less(of);
            if of.copied == 0 && of.waiting == 0 {
                all.remove(user);
            }
        }
    }
}

fn lock(waits: &Mutex<TurnWait>) -> MutexGuard<'_, TurnWait> {
    waits.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for InLine {
    fn drop(&mut self) {
        let mut lines = self.of.lines();
        if let Some(line) = lines.get_mut(&self.client) {
            line.waiting.retain(|waits| !Arc::ptr_eq(waits, &self.waits));
        }
        // Its turn, which it does not use.
        let is_its_turn = lock(&self.waits).is_its_turn;
        drop(lines);
        if is_its_turn {
            drop(ReplyTurn { client: self.client, of: self.of.clone() });
        }
    }
}

impl Drop for ReplyTurn {
    fn drop(&mut self) {
        let mut lines = self.of.lines();
        let Some(line) = lines.get_mut(&self.client) else { return };
        let Some(next) = line.waiting.pop_front() else {
            line.on_their_way -= 1;
            if line.on_their_way == 0 {
                lines.remove(&self.client);
            }
            return;
        };
        let waker = {
            let mut waits = lock(&next);
            waits.is_its_turn = true;
            waits.waker.take()
        };
        drop(lines);
        waker.into_iter().for_each(Waker::wake);
    }
}

/// A waiting reply, until it is dropped.
struct WaitingReply {
    length: u64,
    user: Option<PeerUser>,
    of: Arc<Untaken>,
}

impl Drop for WaitingReply {
    fn drop(&mut self) {
        self.of.less(&self.user, |of| of.waiting -= self.length);
    }
}

/// A copy, until it is dropped; then its turn is over.
struct Copied {
    data: Vec<u8>,
    user: Option<PeerUser>,
    of: Arc<Untaken>,
    turn: ReplyTurn,
}

impl Drop for Copied {
    fn drop(&mut self) {
        let length = self.data.len() as u64;
        if let Some(line) = self.of.lines().get_mut(&self.turn.client) {
            line.copied -= length;
        }
        self.of.less(&self.user, |of| of.copied -= length);
        self.of.freed.notify_waiters();
    }
}

/// A call to be replied to, by any task. Dropped without a reply, it tells the client that no reply
/// will come.
pub struct AsyncRequest {
    server: AsyncServer,
    /// Until a reply has begun.
    arrived: Mutex<Option<Arrived>>,
    bytes: Bytes,
    deadline: Option<Instant>,
}

/// A [`Client`] in tasks. Cloning shares it.
///
/// [`AsyncServer`] shows both ends.
#[derive(Clone)]
pub struct AsyncClient {
    client: Arc<Client>,
    manager: AsyncManager,
    /// A permit for each call that may be outstanding: tasks get them in the order in which they
    /// ask.
    turns: Arc<Semaphore>,
}

impl AsyncServer {
    /// A server end point. Fails if a setting is out of range.
    pub fn new(manager: &AsyncManager, config: ServerConfig) -> Result<Self, GrowError> {
        let untaken = Arc::new(Untaken {
            copied_max: config.long_bytes_max,
            waiting_max: config.waiting_bytes_max,
            users: Mutex::default(),
            refused: AtomicU64::new(0),
            lines: Mutex::default(),
            freed: Notify::new(),
        });
        let server = Arc::new(Server::new(manager.manager(), config)?);
        let watching = Arc::default();
        Ok(Self { server, manager: manager.clone(), untaken, watching })
    }

    /// Lets clients find it by name: [`Server::serve`].
    pub fn serve(&self, name: &str, access: Access) -> Result<(), OfferError> {
        // New clients are answered though no task waits for a request.
        self.manager.driver();
        self.server.serve(name, access)
    }

    /// The server itself: for its seeds, admission and clients.
    pub fn get_ref(&self) -> &Server {
        &self.server
    }

    /// Replies that failed with [`CallError::Untaken`].
    pub fn replies_refused(&self) -> u64 {
        self.untaken.refused.load(Ordering::Relaxed)
    }

    /// The next request. Any number of tasks may receive; each request goes to one of them. Dropped
    /// before it is ready, the future has taken no request.
    pub async fn receive(&self) -> Result<AsyncRequest, ReceiveError> {
        let mut arrived = self.manager.receive(&mut &*self.server).await?.detach();
        let bytes = core::mem::take(&mut arrived.parts.bytes);
        let deadline = arrived.parts.deadline;
        let arrived = Mutex::new(Some(arrived));
        Ok(AsyncRequest { server: self.clone(), arrived, bytes, deadline })
    }

    /// Takes no new requests, waits at most `limit` (`None`: without limit) until the requests that
    /// are here have been received and replied to, and closes all connections; see
    /// [`Server::drain`] for the effect on others. Returns how many requests had no reply by then.
    /// [`receive`](Self::receive) goes on in other tasks, and fails with [`ReceiveError::Draining`]
    /// when no request is left. If the future is dropped before it is ready, the connections stay,
    /// and the server takes no new requests if draining had begun; you may call it again.
    pub async fn drain(&self, limit: Option<Duration>) -> Result<usize, ReceiveError> {
        let deadline = limit.and_then(|limit| Instant::now().checked_add(limit));
        let server = self.server.clone();
        // Giving up a name can take as long as other processes hold its directory.
        self.manager.set_up(move |_| server.begin_drain()).await?;
        let drained = self.manager.until(|| self.server.look_at_drain());
        match deadline {
            None => drained.await?,
            Some(deadline) => timeout_at(deadline.into(), drained).await.unwrap_or(Ok(()))?,
        }
        Ok(self.server.end_drain())
    }
}

impl AsyncRequest {
    fn arrived(&self) -> MutexGuard<'_, Option<Arrived>> {
        self.arrived.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For good: a task that waits for the caller to give up is notified.
    fn take(&self) -> Option<Arrived> {
        let arrived = self.arrived().take()?;
        self.tell_watcher(arrived.names());
        Some(arrived)
    }

    fn tell_watcher(&self, of: (u64, u32)) {
        if self.server.watching.is_watched() {
            self.server.server.is_replied_to(of);
        }
    }

    /// The caller's identity, from the kernel; see [`Request::peer`](super::Request::peer). `None`
    /// also once a reply has begun.
    pub fn peer(&self) -> Option<Peer> {
        self.server.server.peer_of(self.arrived().as_ref()?)
    }

    /// The time at which its caller gives up: [`Request::deadline`](super::Request::deadline).
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Whether the caller no longer waits for the reply:
    /// [`Request::is_cancelled`](super::Request::is_cancelled). Also once a reply has begun.
    pub fn is_cancelled(&self) -> bool {
        self.arrived().as_ref().is_none_or(|arrived| self.server.server.is_cancelled(arrived))
    }

    /// Waits until the caller no longer waits for the reply: it has dropped the call or given it
    /// up, its client has gone, or its [`deadline`](Self::deadline) has passed (for which the
    /// runtime must have its timers enabled). Ready at once if a reply has begun. For `select!`,
    /// beside the future that makes the reply; dropping it has no effect. At most one task of a
    /// request may await it at a time.
    pub async fn cancelled(&self) {
        let Some(of) = self.arrived().as_ref().map(Arrived::names) else { return };
        let watched = {
            let server = &self.server;
            Watched::new(&server.server, &server.manager, &server.watching, of)
        };
        let cancelled = poll_fn(|context| {
            let is_cancelled = match &*self.arrived() {
                Some(arrived) => self.server.server.watch(arrived, watched.number, context.waker()),
                None => true,
            };
            if is_cancelled { Poll::Ready(()) } else { Poll::Pending }
        });
        match self.deadline {
            Some(deadline) => timeout_at(deadline.into(), cancelled).await.unwrap_or(()),
            None => cancelled.await,
        }
    }

    /// Answers that the request has failed: the caller gets [`CallError::Application`] with this
    /// code, which the application defines, and this text. Ready when the answer has left, or is
    /// kept to leave when there is room. It does nothing before its first poll. Its errors are
    /// those of [`Request::fail`](super::Request::fail); a second answer is [`CallError::Replied`].
    pub async fn fail(&self, code: u32, text: &str) -> Result<(), CallError> {
        let arrived = self.take().ok_or(CallError::Replied)?;
        self.server.server.attach(arrived).fail(code, text, None)
    }

    /// Replies. Ready when the reply has left. If a client takes nothing, a reply no longer than
    /// its block is ready, too: it is kept to leave when there is room.
    ///
    /// It does nothing before its first poll. If you drop it before then, or while a long reply
    /// waits for room, you may still reply to the request, in this or another way. Four long
    /// replies to one client are on their way at a time, and
    /// [`long_bytes_max`](ServerConfig::long_bytes_max) bytes to one user, but at least one reply
    /// to each client. A reply on its way is copied, and leaves in a task of its own as long as the
    /// runtime lives, even if this future is dropped.
    ///
    /// A client that takes no long replies keeps this waiting as long as it lives. If you do not
    /// trust your clients, set a limit (`tokio::time::timeout`), and then answer by
    /// [`fail`](Self::fail) or drop the request. Waiting replies are the application's memory, at
    /// most [`waiting_bytes_max`](ServerConfig::waiting_bytes_max) bytes for each user; a reply
    /// beyond that is [`CallError::Untaken`], and its request may be answered in another way. On
    /// any other error the client is told that no reply will come. A second reply is
    /// [`CallError::Replied`].
    pub async fn reply(&self, data: &[u8]) -> Result<(), CallError> {
        // A long reply puts it back.
        let arrived = self.arrived().take().ok_or(CallError::Replied)?;
        let (server, of) = (&self.server, arrived.names());
        let mut request = server.server.attach(arrived);
        let left = request.reply_short(data);
        if !matches!(left, Ok(false)) {
            self.tell_watcher(of);
            return left.map(drop);
        }
        let user = request.peer().map(|peer| peer.user());
        let arrived = request.detach();
        let client = arrived.parts.client;
        *self.arrived() = Some(arrived);
        let untaken = &server.untaken;
        let waiting = untaken.wait(user, data.len() as u64)?;
        let mut turn = untaken.turn(client).await;
        let copied = loop {
            let mut freed = pin!(untaken.freed.notified());
            freed.as_mut().enable();
            match untaken.copy(turn, &waiting, data) {
                Ok(copied) => break copied,
                Err(again) => turn = again,
            }
            freed.await;
        };
        drop(waiting);
        // Another task may have answered meanwhile.
        let arrived = self.take().ok_or(CallError::Replied)?;
        let server = server.clone();
        let runtime = server.manager.runtime().clone();
        let left = runtime.spawn(async move {
            let (mut request, mut long) = (server.server.attach(arrived), LongReply::default());
            server.manager.until(|| request.advance_long(&mut long, &copied.data)).await
        });
        match left.await {
            Ok(left) => left,
            Err(e) => Err(CallError::Wait(Arc::new(std::io::Error::other(e)))),
        }
    }
}

impl Deref for AsyncRequest {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for AsyncRequest {
    fn drop(&mut self) {
        if let Some(arrived) = self.take() {
            drop(self.server.server.attach(arrived));
        }
    }
}

impl AsyncClient {
    /// Connects to the server that is served as `[user@]name`, in one of the runtime's threads for
    /// blocking work, within `limit` (`None`: without limit). On an error, or if the future is
    /// dropped before it is ready, nothing is left of the attempt, and the thread is free again.
    pub async fn connect(
        manager: &AsyncManager,
        name: &str,
        limit: Option<Duration>,
    ) -> Result<Self, GrowError> {
        Self::connect_with(manager, name, ClientConfig::default(), limit).await
    }

    /// [`connect`](Self::connect) with these settings.
    pub async fn connect_with(
        manager: &AsyncManager,
        name: &str,
        config: ClientConfig,
        limit: Option<Duration>,
    ) -> Result<Self, GrowError> {
        let name = String::from(name);
        let connect = move |m: &Manager| Client::connect_with(m, &name, config, limit);
        Ok(Self::new(manager, manager.set_up(connect).await?))
    }

    /// A client of the server of a seed, as [`connect`](Self::connect) by name.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// # let dir = std::env::temp_dir().join(format!("hamlyn-doc-grow-{}", std::process::id()));
    /// # let config = hamlyn::Config::from_env()?.dir(&dir);
    /// use hamlyn::protocol::{AsyncClient, AsyncManager, AsyncServer, Manager, Seed, ServerConfig};
    /// use std::time::Duration;
    ///
    /// let manager = AsyncManager::new(&Manager::with_config(config.clone())?)?;
    /// let server = AsyncServer::new(&manager, ServerConfig::default())?;
    /// // Bytes that travel as the program likes: in a message, a file, on a command line.
    /// let seed = server.get_ref().seed()?.to_bytes();
    /// tokio::spawn(async move {
    ///     while let Ok(request) = server.receive().await {
    ///         let _ = request.reply(&request.to_ascii_uppercase()).await;
    ///     }
    /// });
    ///
    /// // Usually another process.
    /// let manager = AsyncManager::new(&Manager::with_config(config)?)?;
    /// let seed = Seed::from_bytes(&seed)?;
    /// let client = AsyncClient::grow(&manager, &seed, Some(Duration::from_secs(10))).await?;
    /// assert_eq!(&*client.call(b"hello").await?, b"HELLO");
    /// # std::fs::remove_dir_all(&dir).ok();
    /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn grow(
        manager: &AsyncManager,
        seed: &Seed,
        limit: Option<Duration>,
    ) -> Result<Self, GrowError> {
        let seed = seed.clone();
        let grow = move |m: &Manager| Client::grow(m, &seed, limit);
        Ok(Self::new(manager, manager.set_up(grow).await?))
    }

    /// An existing client, in tasks. It must belong to the same manager.
    pub fn new(manager: &AsyncManager, client: Client) -> Self {
        let turns = Arc::new(Semaphore::new(client.outstanding_max().min(Semaphore::MAX_PERMITS)));
        Self { client: Arc::new(client), manager: manager.clone(), turns }
    }

    /// The client itself.
    pub fn get_ref(&self) -> &Client {
        &self.client
    }

    /// Sends a request and waits for the reply. Any number of tasks may call: those beyond
    /// [`ClientConfig::outstanding`] wait for their turn, in the order of calling. Dropped before
    /// it is ready, it forgets the call, whose place is free again when the reply has come; a
    /// request that had not left does not leave. Once you have polled this future, poll it again or
    /// drop it: the turn may be its own, and others wait behind it.
    pub async fn call(&self, request: &[u8]) -> Result<Bytes, CallError> {
        self.call_until(request, None, &mut false).await
    }

    /// [`call`](Self::call) with a time limit that is sent to the server: its handler sees when the
    /// caller gives up ([`AsyncRequest::deadline`]). Takes 8 bytes of the request.
    /// [`CallError::TimedOut`]: the call is forgotten. [`CallError::NoneFree`]: its turn did not
    /// come, and nothing was sent. The runtime must have its timers enabled.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// # let dir = std::env::temp_dir().join(format!("hamlyn-doc-within-tasks-{}", std::process::id()));
    /// use hamlyn::Access;
    /// use hamlyn::protocol::{AsyncClient, AsyncManager, AsyncRequest, AsyncServer, ClientConfig};
    /// use hamlyn::protocol::{Manager, ServerConfig};
    /// use std::time::Duration;
    ///
    /// # let limit = Some(Duration::from_secs(10));
    /// # let config = hamlyn::Config::from_env()?.dir(&dir);
    /// let manager = AsyncManager::new(&Manager::with_config(config.clone())?)?;
    /// let server = AsyncServer::new(&manager, ServerConfig::default())?;
    /// server.serve("slow", Access::SameUser)?;
    /// let serving = async {
    ///     let request: AsyncRequest = server.receive().await?;
    ///     // It knows the deadline; `cancelled` waits until the caller gives up.
    ///     assert!(request.deadline().is_some() && !request.is_cancelled());
    ///     assert!(request.peer().is_some_and(|peer| peer.is_proved));
    ///     request.reply(b"in time").await?;
    ///     Ok::<(), Box<dyn std::error::Error>>(())
    /// };
    /// // Usually another process.
    /// let asking = async {
    ///     let other = AsyncManager::new(&Manager::with_config(config)?)?;
    ///     let few = ClientConfig { outstanding: 4, ..ClientConfig::default() };
    ///     let client = AsyncClient::connect_with(&other, "slow", few, limit).await?;
    ///     let reply = client.call_within(b"soon", Duration::from_secs(10)).await?;
    ///     assert_eq!(&*reply, b"in time");
    ///     Ok::<(), Box<dyn std::error::Error>>(())
    /// };
    /// tokio::try_join!(serving, asking)?;
    /// assert_eq!(server.replies_refused(), 0);
    /// # std::fs::remove_dir_all(&dir).ok();
    /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn call_within(&self, request: &[u8], limit: Duration) -> Result<Bytes, CallError> {
        self.call_until(request, Instant::now().checked_add(limit), &mut false).await
    }

    /// A call within a deadline; `may_be_there`: whether the server may have the whole request,
    /// even if this fails or is dropped.
    pub(super) async fn call_until(
        &self,
        request: &[u8],
        deadline: Option<Instant>,
        may_be_there: &mut bool,
    ) -> Result<Bytes, CallError> {
        let turn = self.turns.acquire();
        let turn = match deadline {
            None => turn.await,
            Some(deadline) => match timeout_at(deadline.into(), turn).await {
                Ok(turn) => turn,
                Err(_) => return Err(CallError::NoneFree(self.client.outstanding_max())),
            },
        };
        let _turn = turn.expect("nobody closes it");
        let mut call = self.client.prepare(request, deadline);
        let calling = self.manager.until(|| {
            let advanced = call.advance();
            *may_be_there |= call.may_be_there();
            advanced
        });
        let called = match deadline {
            None => return calling.await,
            Some(deadline) => timeout_at(deadline.into(), calling).await,
        };
        called.unwrap_or_else(|_| Err(call.timed_out())).map_err(|e| e.at(deadline))
    }
}
