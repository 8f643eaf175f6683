//! In threads: a call that finds no connection starts a thread, which connects, for all calls; each
//! waits for it, within its own time limit, or fails. The thread ends when there is a connection.

use super::{CallOptions, ConnectionState, DRAINS, Outages, ReconnectPolicy};
use crate::node::{Forked, NodeSendError, check_service_name};
use crate::os::thread;
use crate::protocol::Manager;
use crate::protocol::call::{Bytes, CallError, CallProgress, Client, ClientConfig};
use crate::protocol::manager::{GrowError, UntilGivenUp};
use core::fmt;
use core::ops::Deref;
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::format;
use std::string::{String, ToString};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// One connection.
struct ThreadConnection {
    client: Client,
    has_replied: AtomicBool,
}

struct ReconnectInner {
    outages: Outages,
    current: Option<Arc<ThreadConnection>>,
    /// A thread connects now.
    is_connecting: bool,
}

struct ReconnectState {
    manager: Manager,
    name: String,
    config: ClientConfig,
    inner: Mutex<ReconnectInner>,
    /// The client was dropped.
    is_dropped: Arc<AtomicBool>,
    /// The state has changed, or the client was dropped.
    changed: Condvar,
}

/// Connecting goes through the control plane, whose own threads do the work.
const STACK_BYTES: usize = 512 << 10;

/// A client of a named service that connects again when the server has gone or drains. Any number
/// of threads may call at once.
///
/// A request is sent to one server once. If the connection ends before the reply has come, the
/// request may or may not have been executed: the call fails with [`CallError::Ended`], unless its
/// options declare it [idempotent](CallOptions::is_idempotent). A request that no server can have,
/// because it had not left whole or the server that drained did not take it, is sent over the next
/// connection, or fails like other calls during the outage.
///
/// An outage without a call is not noticed, and costs nothing. The first call in an outage starts a
/// thread, which connects as the policy says, and ends.
///
/// Dropping the client ends its connection, or the current attempt.
///
/// ```
/// # let dir = std::env::temp_dir().join(format!("hamlyn-doc-again-{}", std::process::id()));
/// # let config = hamlyn::Config::from_env()?.dir(&dir);
/// use hamlyn::Access;
/// use hamlyn::protocol::{
///     CallOptions, Client, ConnectionState, Manager, ReconnectPolicy, ReconnectingClient, Server,
///     ServerConfig,
/// };
/// use std::time::Duration;
///
/// let limit = Some(Duration::from_secs(10));
/// let manager = Manager::with_config(config.clone())?;
/// std::thread::scope(|scope| {
///     // Each answers one request and goes; the next takes its name.
///     scope.spawn(|| {
///         for name in [b"first ", b"second"] {
///             let server = Server::new(&manager, ServerConfig::default()).unwrap();
///             server.serve("who", Access::SameUser).unwrap();
///             server.receive(limit).unwrap().reply(name, limit).unwrap();
///         }
///     });
///
///     // Usually another process.
///     let manager = Manager::with_config(config)?;
///     let client = ReconnectingClient::connect(&manager, "who", ReconnectPolicy::default(), limit)?;
///     // Asking twice does no harm, so a request that a server may have had is sent to the next.
///     let options = CallOptions { limit, is_idempotent: true };
///     assert_eq!(&*client.call_with(b"", options)?, b"first ");
///     assert_eq!(&*client.call_with(b"", options)?, b"second");
///     assert_eq!(client.state(), ConnectionState::Connected { number: 2 });
///     Ok::<(), Box<dyn std::error::Error>>(())
/// })?;
/// # std::fs::remove_dir_all(&dir).ok();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct ReconnectingClient {
    shared: Arc<ReconnectState>,
}

impl ReconnectingClient {
    /// Connects to the server that is served as `[user@]name`, within `limit` (`None`: without
    /// limit); from then on the policy holds. On an error nothing is left of the attempt.
    pub fn connect(
        manager: &Manager,
        name: &str,
        policy: ReconnectPolicy,
        limit: Option<Duration>,
    ) -> Result<Self, GrowError> {
        Self::connect_with(manager, name, ClientConfig::default(), policy, limit)
    }

    /// [`connect`](Self::connect) with these settings of each connection.
    ///
    /// ```
    /// # let dir = std::env::temp_dir().join(format!("hamlyn-doc-reconnect-with-{}", std::process::id()));
    /// use hamlyn::Access;
    /// use hamlyn::protocol::{ClientConfig, Manager, ReconnectPolicy, ReconnectingClient, Server};
    /// use hamlyn::protocol::ServerConfig;
    /// use std::time::Duration;
    ///
    /// # let limit = Some(Duration::from_secs(10));
    /// # let config = hamlyn::Config::from_env()?.dir(&dir);
    /// # let manager = Manager::with_config(config.clone())?;
    /// # manager.start_progress()?;
    /// # let server = Server::new(&manager, ServerConfig::default())?;
    /// # server.serve("within", Access::SameUser)?;
    /// # std::thread::scope(|scope| {
    /// # scope.spawn(|| {
    /// #     (0..2).for_each(|_| server.receive(limit).unwrap().reply(b"yes", limit).unwrap())
    /// # });
    /// # let manager = Manager::with_config(config)?;
    /// let few = ClientConfig { outstanding: 4, ..ClientConfig::default() };
    /// let policy = ReconnectPolicy::default();
    /// let client = ReconnectingClient::connect_with(&manager, "within", few, policy, limit)?;
    /// assert_eq!(&*client.call(b"there?", limit)?, b"yes");
    /// // The server hears how long the caller waits.
    /// assert_eq!(&*client.call_within(b"still?", Duration::from_secs(10))?, b"yes");
    /// assert_eq!(client.connections(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
    /// # std::fs::remove_dir_all(&dir).ok();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn connect_with(
        manager: &Manager,
        name: &str,
        config: ClientConfig,
        policy: ReconnectPolicy,
        limit: Option<Duration>,
    ) -> Result<Self, GrowError> {
        let client = Client::connect_with(manager, name, config.clone(), limit)?;
        let outages = Outages::new(policy, Instant::now());
        Ok(Self::over(manager, name, config, outages, Some(client)))
    }

    /// A client of `[user@]name` without a connection: its first call connects, at once, and
    /// further attempts are made as in any outage. So it can be made before the name is served. An
    /// error, if no server can have that name, or no client these settings.
    ///
    /// ```
    /// # let dir = std::env::temp_dir().join(format!("hamlyn-doc-later-{}", std::process::id()));
    /// # let config = hamlyn::Config::from_env()?.dir(&dir);
    /// use hamlyn::Access;
    /// use hamlyn::protocol::{ClientConfig, Manager, ReconnectPolicy, ReconnectingClient, Server};
    /// use hamlyn::protocol::ServerConfig;
    /// use std::time::Duration;
    ///
    /// let (settings, policy) = (ClientConfig::default(), ReconnectPolicy::default());
    /// # let (limit, other) = (Some(Duration::from_secs(10)), Manager::with_config(config.clone())?);
    /// let client = ReconnectingClient::new(&other, "later", settings, policy)?;
    /// assert_eq!(client.connections(), 0);
    ///
    /// // Usually another process.
    /// let manager = Manager::with_config(config)?;
    /// let server = Server::new(&manager, ServerConfig::default())?;
    /// server.serve("later", Access::SameUser)?;
    /// std::thread::scope(|scope| {
    ///     scope.spawn(|| server.receive(limit).unwrap().reply(b"yes", limit).unwrap());
    ///     assert_eq!(&*client.call(b"there?", limit)?, b"yes");
    ///     Ok::<(), Box<dyn std::error::Error>>(())
    /// })?;
    /// # std::fs::remove_dir_all(&dir).ok();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn new(
        manager: &Manager,
        name: &str,
        config: ClientConfig,
        policy: ReconnectPolicy,
    ) -> Result<Self, GrowError> {
        check_service_name(name)?;
        config.check()?;
        let outages = Outages::unconnected(policy, Instant::now());
        Ok(Self::over(manager, name, config, outages, None))
    }

    fn over(
        manager: &Manager,
        name: &str,
        config: ClientConfig,
        outages: Outages,
        client: Option<Client>,
    ) -> Self {
        let current = client.map(|client| Arc::new(ThreadConnection::new(client)));
        let inner = ReconnectInner { outages, current, is_connecting: false };
        let shared = ReconnectState {
            manager: manager.clone(),
            name: name.into(),
            config,
            inner: Mutex::new(inner),
            is_dropped: Arc::default(),
            changed: Condvar::new(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// The state, as of the last call.
    pub fn state(&self) -> ConnectionState {
        self.shared.lock().outages.state.clone()
    }

    /// The number of its current or last connection: 1 is the first.
    pub fn connections(&self) -> u64 {
        self.shared.lock().outages.number
    }

    /// Sends a request and waits for the reply, through outages, at most `timeout` in all. A
    /// request whose reply was lost is not sent again: [`CallError::Ended`].
    pub fn call(&self, request: &[u8], timeout: Option<Duration>) -> Result<Bytes, CallError> {
        self.call_until(request, timeout, None, false)
    }

    /// [`call`](Self::call) with a time limit that is sent to the server.
    pub fn call_within(&self, request: &[u8], limit: Duration) -> Result<Bytes, CallError> {
        self.call_with(request, CallOptions { limit: Some(limit), ..CallOptions::default() })
    }

    /// A call with these `options`. [`CallError::TimedOut`]: no reply has come within the limit.
    /// [`CallError::NotConnected`]: there was no connection, and the request was not sent.
    /// [`CallError::Ended`], [`CallError::Misbehaved`]: the request may have been executed.
    pub fn call_with(&self, request: &[u8], options: CallOptions) -> Result<Bytes, CallError> {
        let deadline = options.limit.and_then(|limit| Instant::now().checked_add(limit));
        self.call_until(request, options.limit, deadline, options.is_idempotent)
    }

    /// `told`: the deadline that the server is told.
    fn call_until(
        &self,
        request: &[u8],
        limit: Option<Duration>,
        told: Option<Instant>,
        is_idempotent: bool,
    ) -> Result<Bytes, CallError> {
        let mut call = ReconnectingCall::new(self, request, told, is_idempotent);
        call.wait(limit)?.ok_or_else(|| call.timed_out())
    }
}

/// A call of a [`ReconnectingClient`] whose caller waits in parts. Dropping it forgets the call.
pub struct ReconnectingCall<R> {
    shared: Arc<ReconnectState>,
    request: R,
    told: Option<Instant>,
    is_idempotent: bool,
    /// The connection over which it is made.
    over: Option<(Arc<ThreadConnection>, CallProgress)>,
}

impl<R: Deref<Target = [u8]>> ReconnectingCall<R> {
    /// `told`: the deadline that the server is told.
    pub fn new(
        client: &ReconnectingClient,
        request: R,
        told: Option<Instant>,
        is_idempotent: bool,
    ) -> Self {
        Self { shared: client.shared.clone(), request, told, is_idempotent, over: None }
    }

    /// Goes on with the call, for at most `time`: the reply, or `None` if it is not over. Errors
    /// are those of [`ReconnectingClient::call_with`].
    pub fn wait(&mut self, time: Option<Duration>) -> Result<Option<Bytes>, CallError> {
        let until = time.and_then(|time| Instant::now().checked_add(time));
        loop {
            let (current, progress) = match &mut self.over {
                Some(over) => over,
                None => match self.shared.connection(until)? {
                    Some(current) => self.over.insert((current, CallProgress::default())),
                    None => return Ok(None),
                },
            };
            let left = until.map(|at| at.saturating_duration_since(Instant::now()));
            let result = current.client.go_on(&self.request, self.told, progress, left);
            let (why, may_be_there) = match &result {
                Err(CallError::Draining) => (DRAINS.into(), false),
                Err(CallError::Ended(why)) => (why.to_string(), progress.may_be_there),
                Err(e @ CallError::Misbehaved(_)) => (e.to_string(), progress.may_be_there),
                // An answer of any kind is the server's.
                Ok(Some(_)) | Err(CallError::Application { .. } | CallError::Declined) => {
                    current.has_replied.store(true, Ordering::Relaxed);
                    return result.map_err(|e| e.at(self.told));
                }
                Ok(None) | Err(_) => return result,
            };
            self.shared.lock().is_lost(current, why);
            if may_be_there && !self.is_idempotent {
                return result;
            }
            self.over = None;
        }
    }

    /// The error if it is not over within its time limit.
    pub fn timed_out(&self) -> CallError {
        match &self.over {
            Some((current, progress)) => current.client.timed_out(progress),
            None => self.shared.lock().outages.state.not_in_time(),
        }
    }
}

impl<R> Drop for ReconnectingCall<R> {
    fn drop(&mut self) {
        if let Some((current, progress)) = &self.over {
            current.client.let_go(progress);
        }
    }
}

impl Drop for ReconnectingClient {
    fn drop(&mut self) {
        if self.shared.manager.shared.is_forked() {
            return;
        }
        let mut inner = self.shared.lock();
        // This ends a current attempt, too.
        self.shared.is_dropped.store(true, Ordering::Release);
        // Dropped without the lock.
        let (current, is_connecting) = (inner.current.take(), inner.is_connecting);
        drop(inner);
        drop(current);
        self.shared.changed.notify_all();
        if is_connecting {
            UntilGivenUp::give_up(&self.shared.is_dropped, &self.shared.manager);
        }
    }
}

impl ReconnectState {
    /// The connection, or the next; `None`: there is none until then.
    fn connection(
        self: &Arc<Self>,
        until: Option<Instant>,
    ) -> Result<Option<Arc<ThreadConnection>>, CallError> {
        // Before a lock that another thread of the parent may have held.
        if self.manager.shared.is_forked() {
            return Err(NodeSendError::from(Forked).into());
        }
        self.look();
        let mut inner = self.lock();
        loop {
            if let Some(current) = inner.current.clone() {
                match current.client.connection().ended() {
                    None => return Ok(Some(current)),
                    Some(why) => inner.is_lost(&current, why.to_string()),
                }
            }
            if self.is_dropped.load(Ordering::Acquire) {
                return Err(CallError::NotConnected("its client was dropped".into()));
            }
            if let ConnectionState::GivenUp { .. } = inner.outages.state {
                return Err(inner.outages.state.not_connected());
            }
            if !inner.is_connecting {
                let shared = self.clone();
                let connect = move || shared.connect();
                if let Err(e) = thread::spawn("hamlyn-connect", STACK_BYTES, connect) {
                    let text = format!("no thread can be started that would connect: {e}");
                    return Err(CallError::NotConnected(text));
                }
                inner.is_connecting = true;
            }
            if !inner.outages.policy.calls_wait {
                return Err(inner.outages.state.not_connected());
            }
            let left = until.map(|at| at.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Ok(None);
            }
            inner = self.wait(inner, left);
        }
    }

    /// News from another host need a turn.
    fn look(&self) {
        use crate::node::Attached;
        let mut guard = self.manager.shared.lock();
        let (node, protocols) = guard.parts();
        if node.may_be_told() && node.poll().is_ok() {
            protocols.after_poll(node);
        }
    }

    /// The connecting thread: until there is a connection, or no more attempts are allowed.
    fn connect(&self) {
        // However it ends, waiting calls hear of it.
        let _ends = Ends(self);
        let is_dropped = || self.is_dropped.load(Ordering::Acquire);
        let _until = UntilGivenUp::new(self.is_dropped.clone());
        let mut inner = self.lock();
        while !is_dropped()
            && inner.current.is_none()
            && let Some(at) = inner.outages.next_attempt(Instant::now())
        {
            let left = at.saturating_duration_since(Instant::now());
            if !left.is_zero() {
                inner = self.wait(inner, Some(left));
                continue;
            }
            inner.outages.begins();
            let limit = Some(inner.outages.policy.attempt_limit);
            drop(inner);
            let config = self.config.clone();
            let connected = Client::connect_with(&self.manager, &self.name, config, limit);
            inner = self.lock();
            match connected {
                // Its connection ends with it.
                Ok(_) if is_dropped() => break,
                Ok(client) => {
                    inner.outages.has_connected(Instant::now());
                    inner.current = Some(Arc::new(ThreadConnection::new(client)));
                }
                Err(GrowError::Forked(e)) => inner.outages.give_up(e.to_string()),
                Err(e) => inner.outages.has_failed(e.to_string()),
            }
        }
    }

    /// Waits until something has changed, or for that long.
    fn wait<'a>(
        &self,
        inner: MutexGuard<'a, ReconnectInner>,
        time: Option<Duration>,
    ) -> MutexGuard<'a, ReconnectInner> {
        match time {
            None => self.changed.wait(inner).unwrap_or_else(PoisonError::into_inner),
            Some(time) => {
                let waited = self.changed.wait_timeout(inner, time);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, ReconnectInner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Exists while the connecting thread does.
struct Ends<'a>(&'a ReconnectState);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.lock().is_connecting = false;
        self.0.changed.notify_all();
        // Calls of an event loop wait for the manager alone.
        self.0.manager.wake();
    }
}

impl ThreadConnection {
    fn new(client: Client) -> Self {
        Self { client, has_replied: AtomicBool::new(false) }
    }
}

impl ReconnectInner {
    /// A connection is lost; a second report of it has no effect.
    fn is_lost(&mut self, lost: &Arc<ThreadConnection>, why: String) {
        if self.current.take_if(|current| Arc::ptr_eq(current, lost)).is_some() {
            let has_replied = lost.has_replied.load(Ordering::Relaxed);
            self.outages.is_lost(why, has_replied, Instant::now());
        }
    }
}

impl fmt::Debug for ReconnectingClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, state) = (&self.shared.name, self.state());
        f.debug_struct("ReconnectingClient").field("name", name).field("state", &state).finish()
    }
}
