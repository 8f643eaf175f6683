//! A client that connects again when its server goes, in tasks.
//!
//! ```text
//!                  a reply has come, or it has lasted
//!   Connected(n) <------------------------------- Connected(n + 1)
//!       |  the connection ends, or the server drains            ^
//!       v                                                       |
//!   Reconnecting(attempt) -- delay, try; delay times factor ----+
//!       |  as many attempts, or as long, as the policy allows
//!       v
//!   GivenUp: for good
//! ```
//! One task connects, for all calls; each call waits for it, within its own time limit, or fails.
//! Never: a request that a server may have is sent to another, unless its caller says that this does
//! no harm.

use super::asynchronous::AsyncManager;
use super::call::{Bytes, CallError, ClientConfig};
use super::manager::GrowError;
use super::tasks::AsyncClient;
use crate::node::CloseReason;
use backon::{BackoffBuilder, ExponentialBuilder};
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

/// When a [`ReconnectingClient`] connects again, and what calls do meanwhile.
///
/// ```
/// use hamlyn::protocol::ReconnectPolicy;
/// use std::time::Duration;
///
/// // For a minute, and calls fail meanwhile instead of waiting.
/// let policy = ReconnectPolicy {
///     outage_max: Some(Duration::from_secs(60)),
///     calls_wait: false,
///     ..ReconnectPolicy::default()
/// };
/// # assert!(policy.attempts_max.is_none());
/// ```
#[derive(Clone, Debug)]
pub struct ReconnectPolicy {
    /// Before the first attempt. 10 ms unless set. To each delay a random part of up to its own
    /// length is added, so that not all clients of a server come back at once.
    pub first_delay: Duration,
    /// What each delay is multiplied with to be the next, at least 1. 2 unless set.
    pub factor: f32,
    /// The longest delay, before the random part. 5 s unless set.
    pub delay_max: Duration,
    /// How long one attempt may take; a name that nobody serves is waited for as long. 1 s unless
    /// set.
    pub attempt_limit: Duration,
    /// Attempts in one outage; `None`, as it is unless set: as many as it takes.
    pub attempts_max: Option<usize>,
    /// Most time of one outage, at the end of which no further attempt begins; `None`, as it is
    /// unless set: as long as it takes.
    pub outage_max: Option<Duration>,
    /// What calls do while there is no connection: wait for the next, within their own time limit,
    /// as it is unless set, or fail at once with [`CallError::NotConnected`].
    pub calls_wait: bool,
}

impl Default for ReconnectPolicy {
    fn default() -> Self {
        Self {
            first_delay: Duration::from_millis(10),
            factor: 2.0,
            delay_max: Duration::from_secs(5),
            attempt_limit: Duration::from_secs(1),
            attempts_max: None,
            outage_max: None,
            calls_wait: true,
        }
    }
}

impl ReconnectPolicy {
    /// The delays of one outage.
    fn delays(&self) -> impl Iterator<Item = Duration> + use<> {
        let factor = if self.factor.is_finite() { self.factor.max(1.0) } else { 1.0 };
        let builder = ExponentialBuilder::default()
            .with_min_delay(self.first_delay)
            .with_max_delay(self.delay_max)
            .with_factor(factor)
            .with_jitter();
        match self.attempts_max {
            Some(attempts) => builder.with_max_times(attempts).build(),
            None => builder.without_max_times().build(),
        }
    }
}

/// Where a [`ReconnectingClient`] stands.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConnectionState {
    /// It has a connection.
    Connected {
        /// Which: 1 for the first, one more for each after it, so that whoever looks late sees that
        /// there was an outage.
        number: u64,
    },
    /// It tries to connect.
    Reconnecting {
        /// Attempts that have failed in this outage.
        failed: usize,
        /// Why the last failed, or, before the first, why the connection has ended.
        why: String,
    },
    /// The policy allows no more attempts. It stays so.
    GivenUp {
        /// Why the last failed.
        why: String,
    },
}

/// How a call is made: [`ReconnectingClient::call_with`].
#[derive(Clone, Copy, Debug, Default)]
pub struct CallOptions {
    /// For the whole call, outages included; the server is told what is left of it
    /// ([`AsyncRequest::deadline`](super::AsyncRequest::deadline)). `None`: as long as it takes, and
    /// the server is told nothing.
    pub limit: Option<Duration>,
    /// Twice does what once does: where the connection ends before the reply has come, the request is
    /// sent again over the next one.
    pub is_idempotent: bool,
}

/// One connection.
struct Current {
    client: AsyncClient,
    number: u64,
    /// Somebody was told that the server drains.
    drains: Notify,
    has_replied: AtomicBool,
}

/// What calls see.
#[derive(Clone)]
struct Now {
    state: ConnectionState,
    current: Option<Arc<Current>>,
}

/// A client of a named service that connects again, by itself, when the server has gone or drains.
/// Cloning shares it. With the last clone its connection ends.
///
/// A request is sent to one server once. Where the connection ends before the reply has come, nobody
/// here knows whether it was carried out: the call fails with [`CallError::Ended`], unless it was said
/// to be [idempotent](CallOptions::is_idempotent). A request that no server can have, because it had
/// not left whole or the server that drained did not take it, is sent over the next connection, or
/// fails as calls during the outage do.
///
/// The runtime must have its timers enabled.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// # let dir = std::env::temp_dir().join(format!("hamlyn-doc-reconnect-{}", std::process::id()));
/// # let config = hamlyn::Config::from_env()?.dir(&dir);
/// use hamlyn::Access;
/// use hamlyn::protocol::{
///     AsyncManager, AsyncServer, CallOptions, Manager, ReconnectPolicy, ReconnectingClient,
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
///     let client = ReconnectingClient::connect(&manager, "who", policy, limit).await?;
///     // To ask twice does no harm, so a request that a server may have had is sent to the next.
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
pub struct ReconnectingClient {
    kept: Arc<Kept>,
}

struct Kept {
    now: watch::Receiver<Now>,
    states: watch::Receiver<ConnectionState>,
    calls_wait: bool,
    task: AbortHandle,
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl ReconnectingClient {
    /// Connects to the server that is served as `[user@]name`, within `limit` (`None`: as long as it
    /// takes); from then on the policy holds. On an error nothing is left of the attempt; nor if it is
    /// dropped before it is ready.
    pub async fn connect(
        manager: &AsyncManager,
        name: &str,
        policy: ReconnectPolicy,
        limit: Option<Duration>,
    ) -> Result<Self, GrowError> {
        Self::connect_with(manager, name, ClientConfig::default(), policy, limit).await
    }

    /// [`connect`](Self::connect) with these settings of each connection.
    pub async fn connect_with(
        manager: &AsyncManager,
        name: &str,
        config: ClientConfig,
        policy: ReconnectPolicy,
        limit: Option<Duration>,
    ) -> Result<Self, GrowError> {
        let client = AsyncClient::connect_with(manager, name, config.clone(), limit).await?;
        let first = Arc::new(Current::new(client, 1));
        let connected = ConnectionState::Connected { number: 1 };
        let (states_to, states) = watch::channel(connected.clone());
        let (now_to, now) = watch::channel(Now { state: connected, current: Some(first.clone()) });
        let calls_wait = policy.calls_wait;
        let connecting = Connecting {
            manager: manager.clone(),
            name: name.into(),
            config,
            policy,
            now: now_to,
            states: states_to,
        };
        let task = manager.runtime().spawn(connecting.keep(first)).abort_handle();
        Ok(Self { kept: Arc::new(Kept { now, states, calls_wait, task }) })
    }

    /// Where it stands now.
    pub fn state(&self) -> ConnectionState {
        self.kept.states.borrow().clone()
    }

    /// Where it stands, for whoever waits for changes. States that follow one another faster than
    /// they are looked at are skipped; the last is always seen.
    pub fn states(&self) -> watch::Receiver<ConnectionState> {
        self.kept.states.clone()
    }

    /// Sends a request and waits for the reply, through outages, as long as it takes. A request that
    /// was sent and whose reply was lost is not sent again: [`CallError::Ended`]. Dropped before it is
    /// ready, it forgets the call.
    pub async fn call(&self, request: &[u8]) -> Result<Bytes, CallError> {
        self.call_with(request, CallOptions::default()).await
    }

    /// [`call`](Self::call) within a time limit, which the server is told.
    pub async fn call_within(&self, request: &[u8], limit: Duration) -> Result<Bytes, CallError> {
        let limit = Some(limit);
        self.call_with(request, CallOptions { limit, ..CallOptions::default() }).await
    }

    /// A call in the way that `options` say. [`CallError::TimedOut`]: within the limit no reply has
    /// come. [`CallError::NotConnected`]: there was no connection, and the request was not sent.
    /// [`CallError::Ended`], [`CallError::Misbehaved`]: it may have been carried out.
    pub async fn call_with(
        &self,
        request: &[u8],
        options: CallOptions,
    ) -> Result<Bytes, CallError> {
        let deadline = options.limit.and_then(|limit| Instant::now().checked_add(limit));
        // Of those that have failed this call.
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
                    // Of whatever kind, it is the server's.
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

    /// The first connection whose number is beyond one that has failed.
    async fn connection_beyond(
        &self,
        beyond: u64,
        deadline: Option<Instant>,
    ) -> Result<Arc<Current>, CallError> {
        let mut now = self.kept.now.clone();
        let usable = |now: &Now| {
            let is_usable = |current: &&Arc<Current>| {
                current.number > beyond && current.client.get_ref().connection().ended().is_none()
            };
            now.current.as_ref().filter(is_usable).cloned()
        };
        let why = {
            let seen = now.borrow_and_update();
            if let Some(current) = usable(&seen) {
                return Ok(current);
            }
            match &seen.state {
                ConnectionState::GivenUp { why } => Some(why.clone()),
                _ if self.kept.calls_wait => None,
                ConnectionState::Reconnecting { why, .. } => Some(why.clone()),
                // It has not been heard of yet.
                ConnectionState::Connected { .. } => Some("it has just ended".into()),
            }
        };
        if let Some(why) = why {
            return Err(CallError::NotConnected(why));
        }
        let is_over = |now: &Now| {
            matches!(now.state, ConnectionState::GivenUp { .. }) || usable(now).is_some()
        };
        let waiting = now.wait_for(is_over);
        let seen = match deadline {
            None => waiting.await,
            Some(deadline) => match timeout_at(deadline.into(), waiting).await {
                Ok(seen) => seen,
                Err(_) => {
                    let why = match &self.kept.now.borrow().state {
                        ConnectionState::Reconnecting { why, .. }
                        | ConnectionState::GivenUp { why } => why.clone(),
                        ConnectionState::Connected { .. } => "it has just ended".into(),
                    };
                    return Err(CallError::NotConnected(std::format!(
                        "none came within the time limit, and the last ended, or failed, because: {why}"
                    )));
                }
            },
        };
        let gone = || CallError::NotConnected("the runtime is shutting down".into());
        let seen = seen.map_err(|_| gone())?;
        match (usable(&seen), &seen.state) {
            (Some(current), _) => Ok(current),
            (None, ConnectionState::GivenUp { why }) => Err(CallError::NotConnected(why.clone())),
            (None, _) => Err(gone()),
        }
    }
}

impl Current {
    fn new(client: AsyncClient, number: u64) -> Self {
        Self { client, number, drains: Notify::new(), has_replied: AtomicBool::new(false) }
    }
}

/// The task that connects.
struct Connecting {
    manager: AsyncManager,
    name: String,
    config: ClientConfig,
    policy: ReconnectPolicy,
    now: watch::Sender<Now>,
    states: watch::Sender<ConnectionState>,
}

impl Connecting {
    fn tell(&self, state: ConnectionState, current: Option<Arc<Current>>) {
        self.now.send_replace(Now { state: state.clone(), current });
        self.states.send_replace(state);
    }

    async fn keep(self, first: Arc<Current>) {
        let mut delays = self.policy.delays();
        let mut current = Some(first);
        let (mut number, mut failed) = (1, 0);
        let mut outage: Option<Instant> = None;
        let mut why = String::new();
        loop {
            if let Some(connected) = current.take() {
                let began = Instant::now();
                why = self.until_over(&connected).await;
                // One that ends before anything has come of it is part of the same outage: a server
                // that lets clients in and sends them away is not asked without end or rest.
                if connected.has_replied.load(Ordering::Relaxed)
                    || began.elapsed() >= self.policy.delay_max
                {
                    (delays, failed, outage) = (self.policy.delays(), 0, None);
                }
            }
            let since = *outage.get_or_insert_with(Instant::now);
            self.tell(ConnectionState::Reconnecting { failed, why: why.clone() }, None);
            let is_over = self.policy.outage_max.is_some_and(|max| since.elapsed() >= max);
            let Some(delay) = delays.next().filter(|_| !is_over) else {
                return self.tell(ConnectionState::GivenUp { why }, None);
            };
            tokio::time::sleep(delay).await;
            let limit = Some(self.policy.attempt_limit);
            let config = self.config.clone();
            match AsyncClient::connect_with(&self.manager, &self.name, config, limit).await {
                Ok(client) => {
                    number += 1;
                    let connected = Arc::new(Current::new(client, number));
                    self.tell(ConnectionState::Connected { number }, Some(connected.clone()));
                    current = Some(connected);
                }
                Err(GrowError::Forked(e)) => {
                    return self.tell(ConnectionState::GivenUp { why: e.to_string() }, None);
                }
                Err(e) => {
                    failed += 1;
                    why = e.to_string();
                }
            }
        }
    }

    /// Waits until a connection ends, or its server drains; why.
    async fn until_over(&self, connected: &Current) -> String {
        let connection = connected.client.get_ref().connection();
        let mut ended = pin!(self.manager.ended(connection));
        let mut drains = pin!(connected.drains.notified());
        poll_fn(|context| {
            if drains.as_mut().poll(context).is_ready() {
                return Poll::Ready("the server is about to close".into());
            }
            ended.as_mut().poll(context).map(|ended| match ended {
                Ok(()) => connection.ended().unwrap_or(&CloseReason::Closed).to_string(),
                Err(e) => e.to_string(),
            })
        })
        .await
    }
}
