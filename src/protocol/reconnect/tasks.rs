//! In tasks: one task connects, for all calls; each call waits for it, within its own time limit,
//! or fails.

use super::{CallOptions, ConnectionState, DRAINS, Outages, ReconnectPolicy};
use crate::node::CloseReason;
use crate::protocol::asynchronous::AsyncManager;
use crate::protocol::call::{Bytes, CallError, ClientConfig};
use crate::protocol::manager::GrowError;
use crate::protocol::tasks::AsyncClient;
use core::future::{Future, poll_fn};
use core::pin::pin;
use core::sync::atomic::{AtomicBool, Ordering};
use core::task::Poll;
use core::time::Duration;
use std::string::{String, ToString};
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;
use tokio::time::timeout_at;

/// One connection.
struct TaskConnection {
    client: AsyncClient,
    number: u64,
    /// A call has learnt that the server drains.
    drains: Notify,
    has_replied: AtomicBool,
}

/// The state that calls see.
#[derive(Clone)]
struct Now {
    state: ConnectionState,
    current: Option<Arc<TaskConnection>>,
}

/// A client of a named service that connects again, by itself, when the server has gone or drains.
/// Cloning shares it. Its connection ends with the last clone.
///
/// A request is sent to one server once. If the connection ends before the reply has come, the
/// request may or may not have been executed: the call fails with [`CallError::Ended`], unless its
/// options declare it [idempotent](CallOptions::is_idempotent). A request that no server can have,
/// because it had not left whole or the server that drained did not take it, is sent over the next
/// connection, or fails like other calls during the outage.
///
/// The runtime must have its timers enabled.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// # let dir = std::env::temp_dir().join(format!("hamlyn-doc-reconnect-{}", std::process::id()));
/// # let config = hamlyn::Config::from_env()?.dir(&dir);
/// use hamlyn::Access;
/// use hamlyn::protocol::{
///     AsyncManager, AsyncServer, CallOptions, Manager, ReconnectPolicy, AsyncReconnectingClient,
///     ServerConfig,
/// };
/// use std::time::Duration;
///
/// let manager = AsyncManager::new(&Manager::with_config(config.clone())?)?;
/// // Each answers one request and goes; the next takes its name.
/// let serving = async {
///     for name in [b"first ", b"second"] {
///         let server = AsyncServer::new(&manager, ServerConfig::default())?;
///         server.serve("who", Access::SameUser)?;
///         server.receive().await?.reply(name).await?;
///     }
///     Ok::<(), Box<dyn std::error::Error>>(())
/// };
///
/// // Usually another process.
/// let asking = async {
///     let manager = AsyncManager::new(&Manager::with_config(config)?)?;
///     let (policy, limit) = (ReconnectPolicy::default(), Some(Duration::from_secs(10)));
///     let client = AsyncReconnectingClient::connect(&manager, "who", policy, limit).await?;
///     // Asking twice does no harm, so a request that a server may have had is sent to the next.
///     let options = CallOptions { limit, is_idempotent: true };
///     assert_eq!(&*client.call_with(b"", options).await?, b"first ");
///     assert_eq!(&*client.call_with(b"", options).await?, b"second");
///     Ok::<(), Box<dyn std::error::Error>>(())
/// };
/// tokio::try_join!(serving, asking)?;
/// # std::fs::remove_dir_all(&dir).ok();
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct AsyncReconnectingClient {
    kept: Arc<TaskState>,
}

struct TaskState {
    now: watch::Receiver<Now>,
    states: watch::Receiver<ConnectionState>,
    calls_wait: bool,
    task: AbortHandle,
}

impl Drop for TaskState {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl AsyncReconnectingClient {
    /// Connects to the server that is served as `[user@]name`, within `limit` (`None`: without
    /// limit); from then on the policy holds. On an error, or if the future is dropped before it is
    /// ready, nothing is left of the attempt.
    pub async fn connect(
        manager: &AsyncManager,
        name: &str,
        policy: ReconnectPolicy,
        limit: Option<Duration>,
    ) -> Result<Self, GrowError> {
        Self::connect_with(manager, name, ClientConfig::default(), policy, limit).await
    }

    /// [`connect`](Self::connect) with these settings of each connection.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// # let dir = std::env::temp_dir().join(format!("hamlyn-doc-states-{}", std::process::id()));
    /// use hamlyn::Access;
    /// use hamlyn::protocol::{AsyncManager, AsyncReconnectingClient, AsyncServer, ClientConfig};
    /// use hamlyn::protocol::{ConnectionState, Manager, ReconnectPolicy, ServerConfig};
    /// use std::time::Duration;
    ///
    /// # let limit = Some(Duration::from_secs(10));
    /// # let config = hamlyn::Config::from_env()?.dir(&dir);
    /// # let manager = AsyncManager::new(&Manager::with_config(config.clone())?)?;
    /// # let server = AsyncServer::new(&manager, ServerConfig::default())?;
    /// # server.serve("states", Access::SameUser)?;
    /// # tokio::spawn(async move {
    /// #     let _ = server.receive().await.unwrap().reply(b"yes").await;
    /// #     std::future::pending::<()>().await
    /// # });
    /// # let manager = AsyncManager::new(&Manager::with_config(config)?)?;
    /// let few = ClientConfig { outstanding: 4, ..ClientConfig::default() };
    /// let policy = ReconnectPolicy::default();
    /// let client = AsyncReconnectingClient::connect_with(&manager, "states", few, policy, limit);
    /// let client = client.await?;
    /// // A task can wait for a change.
    /// let states = client.states();
    /// assert_eq!(*states.borrow(), ConnectionState::Connected { number: 1 });
    /// let reply = tokio::time::timeout(Duration::from_secs(10), client.call(b"there?")).await??;
    /// assert_eq!(&*reply, b"yes");
    /// # std::fs::remove_dir_all(&dir).ok();
    /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn connect_with(
        manager: &AsyncManager,
        name: &str,
        config: ClientConfig,
        policy: ReconnectPolicy,
        limit: Option<Duration>,
    ) -> Result<Self, GrowError> {
        let client = AsyncClient::connect_with(manager, name, config.clone(), limit).await?;
        let first = Arc::new(TaskConnection::new(client, 1));
        let connected = ConnectionState::Connected { number: 1 };
        let (states_to, states) = watch::channel(connected.clone());
        let (now_to, now) = watch::channel(Now { state: connected, current: Some(first.clone()) });
        let calls_wait = policy.calls_wait;
        let connecting = ConnectingTask {
            manager: manager.clone(),
            name: name.into(),
            config,
            policy,
            now: now_to,
            states: states_to,
        };
        let task = manager.runtime().spawn(connecting.keep(first)).abort_handle();
        Ok(Self { kept: Arc::new(TaskState { now, states, calls_wait, task }) })
    }

    /// The current state.
    pub fn state(&self) -> ConnectionState {
        self.kept.states.borrow().clone()
    }

    /// The state, with its changes. States that follow one another faster than you look at them are
    /// skipped; you always see the last.
    pub fn states(&self) -> watch::Receiver<ConnectionState> {
        self.kept.states.clone()
    }

    /// Sends a request and waits for the reply, through outages, without a limit. A request whose
    /// reply was lost is not sent again: [`CallError::Ended`]. Dropped before it is ready, it
    /// forgets the call.
    pub async fn call(&self, request: &[u8]) -> Result<Bytes, CallError> {
        self.call_with(request, CallOptions::default()).await
    }

    /// [`call`](Self::call) with a time limit that is sent to the server.
    pub async fn call_within(&self, request: &[u8], limit: Duration) -> Result<Bytes, CallError> {
        let limit = Some(limit);
        self.call_with(request, CallOptions { limit, ..CallOptions::default() }).await
    }

    /// A call with these `options`. [`CallError::TimedOut`]: no reply has come within the limit.
    /// [`CallError::NotConnected`]: there was no connection, and the request was not sent.
    /// [`CallError::Ended`], [`CallError::Misbehaved`]: the request may have been executed.
    pub async fn call_with(
        &self,
        request: &[u8],
        options: CallOptions,
    ) -> Result<Bytes, CallError> {
        let deadline = options.limit.and_then(|limit| Instant::now().checked_add(limit));
        // The last of the connections that have failed this call.
        let mut beyond = 0;
        loop {
            let current = self.connection_beyond(beyond, deadline).await?;
            let mut may_be_there = false;
            let result = current.client.call_until(request, deadline, &mut may_be_there).await;
            let lost = match result {
                Err(CallError::Draining) => {
                    current.drains.notify_one();
                    false
                }
                Err(CallError::Ended(_) | CallError::Misbehaved(_)) => may_be_there,
                result => {
                    // An answer of any kind is the server's.
                    if matches!(
                        result,
                        Ok(_) | Err(CallError::Application { .. } | CallError::Declined)
                    ) {
                        current.has_replied.store(true, Ordering::Relaxed);
                    }
                    return result;
                }
            };
            if lost && !options.is_idempotent {
                return result;
            }
            beyond = current.number;
        }
    }

    /// The first connection whose number is beyond that of a failed one.
    async fn connection_beyond(
        &self,
        beyond: u64,
        deadline: Option<Instant>,
    ) -> Result<Arc<TaskConnection>, CallError> {
        let mut now = self.kept.now.clone();
        let usable = |now: &Now| {
            let is_usable = |current: &&Arc<TaskConnection>| {
                current.number > beyond && current.client.get_ref().connection().ended().is_none()
            };
            now.current.as_ref().filter(is_usable).cloned()
        };
        {
            let seen = now.borrow_and_update();
            if let Some(current) = usable(&seen) {
                return Ok(current);
            }
            if !self.kept.calls_wait || matches!(seen.state, ConnectionState::GivenUp { .. }) {
                return Err(seen.state.not_connected());
            }
        }
        let is_over = |now: &Now| {
            matches!(now.state, ConnectionState::GivenUp { .. }) || usable(now).is_some()
        };
        let waiting = now.wait_for(is_over);
        let seen = match deadline {
            None => waiting.await,
            Some(deadline) => match timeout_at(deadline.into(), waiting).await {
                Ok(seen) => seen,
                Err(_) => return Err(self.kept.now.borrow().state.not_in_time()),
            },
        };
        let gone = || CallError::NotConnected("the runtime is shutting down".into());
        let seen = seen.map_err(|_| gone())?;
        match (usable(&seen), &seen.state) {
            (Some(current), _) => Ok(current),
            (None, ConnectionState::GivenUp { .. }) => Err(seen.state.not_connected()),
            (None, _) => Err(gone()),
        }
    }
}

impl TaskConnection {
    fn new(client: AsyncClient, number: u64) -> Self {
        Self { client, number, drains: Notify::new(), has_replied: AtomicBool::new(false) }
    }
}

/// The task that connects.
struct ConnectingTask {
    manager: AsyncManager,
    name: String,
    config: ClientConfig,
    policy: ReconnectPolicy,
    now: watch::Sender<Now>,
    states: watch::Sender<ConnectionState>,
}

impl ConnectingTask {
    fn tell(&self, state: ConnectionState, current: Option<Arc<TaskConnection>>) {
        // A task that sees the connection sees its state.
        self.states.send_replace(state.clone());
        self.now.send_replace(Now { state, current });
    }

    async fn keep(self, first: Arc<TaskConnection>) {
        let mut outages = Outages::new(self.policy.clone(), Instant::now());
        let mut current = Some(first);
        loop {
            if let Some(connected) = current.take() {
                let why = self.until_over(&connected).await;
                let has_replied = connected.has_replied.load(Ordering::Relaxed);
                outages.is_lost(why, has_replied, Instant::now());
            }
            let next = outages.next_attempt(Instant::now());
            self.tell(outages.state.clone(), None);
            let Some(at) = next else { return };
            tokio::time::sleep_until(at.into()).await;
            if outages.next_attempt(Instant::now()).is_none() {
                return self.tell(outages.state.clone(), None);
            }
            outages.begins();
            let limit = Some(self.policy.attempt_limit);
            let config = self.config.clone();
            match AsyncClient::connect_with(&self.manager, &self.name, config, limit).await {
                Ok(client) => {
                    outages.has_connected(Instant::now());
                    let connected = Arc::new(TaskConnection::new(client, outages.number));
                    self.tell(outages.state.clone(), Some(connected.clone()));
                    current = Some(connected);
                }
                Err(GrowError::Forked(e)) => outages.give_up(e.to_string()),
                Err(e) => outages.has_failed(e.to_string()),
            }
        }
    }

    /// Waits until a connection ends, or its server drains; returns the reason.
    async fn until_over(&self, connected: &TaskConnection) -> String {
        let connection = connected.client.get_ref().connection();
        let mut ended = pin!(self.manager.ended(connection));
        let mut drains = pin!(connected.drains.notified());
        poll_fn(|context| {
            if drains.as_mut().poll(context).is_ready() {
                return Poll::Ready(DRAINS.into());
            }
            ended.as_mut().poll(context).map(|ended| match ended {
                Ok(()) => connection.ended().unwrap_or(&CloseReason::Closed).to_string(),
                Err(e) => e.to_string(),
            })
        })
        .await
    }
}
