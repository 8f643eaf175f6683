//! Listens for byte streams: a listener's offer, and the connections that wait to be accepted.
//!
//! Never: there are more connections than the settings allow; an accepted one ends with its
//! listener.

use super::ByteConfig;
#[cfg(feature = "tokio")]
use super::ends::Turned;
use super::ends::{ByteStream, StreamCore};
use super::flow::ByteFlow;
use crate::control::{Peer, PeerUser, RequestId};
#[cfg(feature = "tokio")]
use crate::node::Attached;
use crate::node::{Look, Node};
use crate::protocol::ends::{check_place, offered};
#[cfg(feature = "tokio")]
use crate::protocol::manager::Awaiting;
use crate::protocol::manager::{OfferId, Offering, Protocol, StillWaits, Wakeable, Wakers};
use crate::protocol::{Connection, EndPoint, GrowError, Kind, Manager, ReceiveError};
use core::sync::atomic::{AtomicU64, Ordering};
#[cfg(feature = "tokio")]
use core::task::Waker;
use core::time::Duration;
use std::boxed::Box;
use std::collections::{HashMap, VecDeque};
use std::string::String;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::vec::Vec;

/// The state that a listener's offer and its end point share.
pub(super) struct ListenerPlaces {
    connections: Mutex<Connections>,
    pub(super) misbehaved: AtomicU64,
}

#[derive(Default)]
struct Connections {
    /// Connections that wait to be accepted.
    ready: VecDeque<Arc<StreamCore>>,
    /// The users of all connections, by number: those on their way here, those that wait, and
    /// accepted ones that are not dropped.
    alive: HashMap<u64, PeerUser>,
    next: u64,
    wakers: Wakers,
    is_listed: bool,
}

impl ListenerPlaces {
    fn lock(&self) -> MutexGuard<'_, Connections> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connection with this number is gone.
    pub(super) fn give_back(&self, number: u64) {
        self.lock().alive.remove(&number);
    }
}

impl Wakeable for ListenerPlaces {
    fn look(&self, _: &mut Node) -> StillWaits {
        let mut connections = self.lock();
        if !connections.ready.is_empty() {
            connections.wakers.wake();
        }
        connections.is_listed = !connections.wakers.is_empty();
        if connections.is_listed { StillWaits::ForNews } else { StillWaits::Not }
    }

    fn give_up(&self) {
        self.lock().wakers.wake();
    }
}

pub(in crate::protocol) struct Listening {
    config: ByteConfig,
    places: Arc<ListenerPlaces>,
    /// Admitted connections that have not joined yet.
    joining: HashMap<RequestId, Arc<StreamCore>>,
}

impl Protocol for Listening {
    fn check_place(&self, peer: &Peer, _: &[u8]) -> Result<(), String> {
        let connections = self.places.lock();
        let users = connections.alive.values().cloned();
        let max = self.config.connections_max as usize;
        check_place(users, peer, max, "connections", "connections_max")
    }

    fn admit(
        &mut self,
        node: &mut Node,
        request: RequestId,
        peer: &Peer,
        body: &[u8],
    ) -> Result<Vec<u8>, String> {
        let (mut flow, hello) = ByteFlow::new(node, &self.config)?;
        if let Err(why) = flow.lent(body, peer) {
            flow.remove(node);
            return Err(why);
        }
        let mut connections = self.places.lock();
        let number = connections.next;
        connections.next += 1;
        connections.alive.insert(number, peer.user());
        drop(connections);
        let core = StreamCore::new(flow, Some((number, self.places.clone())));
        self.joining.insert(request, Arc::new(core));
        Ok(hello)
    }

    fn withdrawn(&mut self, node: &mut Node, request: RequestId) {
        if let Some(core) = self.joining.remove(&request) {
            core.forget(node);
        }
    }

    fn joined(&mut self, node: &mut Node, request: RequestId, connection: &Arc<Connection>) {
        if let Some(core) = self.joining.remove(&request) {
            core.join(node, connection);
            self.places.lock().ready.push_back(core);
            node.wake();
        }
    }

    // The connection is still accepted, so that its written bytes can be read.
    fn left(&mut self, _: &mut Node, _: &Connection) {}
}

/// Accepts byte streams. `Send` and `Sync`: several threads may accept.
///
/// Dropping it closes the connections that were not accepted; accepted ones go on. See
/// [`ByteStream`] for an example.
pub struct ByteListener {
    manager: Manager,
    offer: OfferId,
    places: Arc<ListenerPlaces>,
}

impl ByteListener {
    /// A listener; streams find it by name ([`serve`](Self::serve)) or grow from its seed. Fails if
    /// a setting is out of range.
    pub fn new(manager: &Manager, config: ByteConfig) -> Result<Self, GrowError> {
        config.check()?;
        let (connections, misbehaved) = (Mutex::default(), AtomicU64::new(0));
        let places = Arc::new(ListenerPlaces { connections, misbehaved });
        let listening = Listening { config, places: places.clone(), joining: HashMap::new() };
        let offer = manager.offer(Kind::BYTES, Offering::Bytes(Box::new(listening)));
        Ok(Self { manager: manager.clone(), offer, places })
    }

    offered!("a [`ByteStream`]");

    /// The next connection; waits at most `timeout`. Its bytes may be here already. An error loses
    /// no connection.
    pub fn accept(&self, timeout: Option<Duration>) -> Result<ByteStream, ReceiveError> {
        let core = self.manager.shared.wait_until(timeout, |_, _| match self.next() {
            Some(core) => Look::Found(core),
            None => Look::Nothing,
        })?;
        Ok(self.accepted(core))
    }

    /// [`accept`](Self::accept) without waiting.
    ///
    /// ```
    /// # let dir = std::env::temp_dir().join(format!("hamlyn-doc-try-accept-{}", std::process::id()));
    /// use hamlyn::Access;
    /// use hamlyn::protocol::{ByteConfig, ByteListener, ByteStream, Manager};
    /// # use std::time::Duration;
    ///
    /// # let limit = Some(Duration::from_secs(10));
    /// # let config = hamlyn::Config::from_env()?.dir(&dir);
    /// # let manager = Manager::with_config(config.clone())?;
    /// # manager.start_progress()?;
    /// let listener = ByteListener::new(&manager, ByteConfig::default())?;
    /// listener.set_admission(|peer| match peer.is_proved {
    ///     true => Ok(()),
    ///     false => Err("who are you?".to_string()),
    /// });
    /// listener.serve("bytes", Access::SameUser)?;
    /// let (other, small) = (Manager::with_config(config)?, ByteConfig::default());
    /// let stream = ByteStream::connect_with(&other, "bytes", small, limit)?;
    /// manager.wait_any(&[&listener], limit)?;
    /// let accepted = listener.try_accept()?.expect("it waits");
    /// listener.stop_serving(); // Existing connections go on.
    /// assert_eq!((listener.connections(), listener.misbehaved()), (1, 0));
    /// println!("{}", accepted.explain());
    /// assert!(stream.connection().ended().is_none());
    /// # std::fs::remove_dir_all(&dir).ok();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn try_accept(&self) -> Result<Option<ByteStream>, ReceiveError> {
        ReceiveError::unless_timed_out(self.accept(Some(Duration::ZERO)))
    }

    fn next(&self) -> Option<Arc<StreamCore>> {
        self.places.lock().ready.pop_front()
    }

    fn accepted(&self, core: Arc<StreamCore>) -> ByteStream {
        let connection = core.connection.get().expect("it has joined").clone();
        // It outlives the listener.
        self.manager.keep_apart(&connection);
        ByteStream::new(&self.manager, connection, core)
    }

    /// [`accept`](Self::accept) of a task, in its own wait.
    #[cfg(feature = "tokio")]
    pub(crate) fn accept_or_wait(
        &self,
        waker: &Waker,
        wait: Option<&Awaiting>,
    ) -> Result<Turned<ByteStream>, ReceiveError> {
        if self.manager.is_forked() {
            return Err(crate::node::Forked.into());
        }
        let mut guard = self.manager.shared.lock();
        let (node, protocols) = guard.parts();
        let mut found = self.next();
        let arm = found.is_none();
        if arm {
            node.poll()?;
            protocols.after_poll(node);
            found = self.next();
        }
        if let Some(core) = found {
            drop(guard);
            return Ok(Turned { ready: Some(self.accepted(core)), arm });
        }
        let mut connections = self.places.lock();
        connections.wakers.leave(waker, wait);
        if !core::mem::replace(&mut connections.is_listed, true) {
            protocols.list(self.places.clone());
        }
        Ok(Turned { ready: None, arm })
    }

    /// All connections: accepted and not dropped, waiting to be accepted, or on their way.
    pub fn connections(&self) -> usize {
        self.places.lock().alive.len()
    }

    /// Peers whose link was ended because they broke the rules.
    pub fn misbehaved(&self) -> u64 {
        self.places.misbehaved.load(Ordering::Relaxed)
    }
}

impl EndPoint for ByteListener {
    /// Whether a connection waits to be accepted.
    fn is_ready_in(&self, _: &Node) -> bool {
        !self.places.lock().ready.is_empty()
    }

    fn manager(&self) -> &Manager {
        &self.manager
    }
}

impl core::fmt::Debug for ByteListener {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("ByteListener")
            .field("connections", &self.connections())
            .finish_non_exhaustive()
    }
}

impl Drop for ByteListener {
    fn drop(&mut self) {
        let Some(offer) = self.manager.withdraw(self.offer) else { return };
        let mut node = self.manager.lock();
        if let Offering::Bytes(listening) = offer {
            for core in listening.joining.values() {
                core.forget(&mut node);
            }
            let ready = core::mem::take(&mut self.places.lock().ready);
            for core in ready {
                core.forget(&mut node);
            }
        }
    }
}
