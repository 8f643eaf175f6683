//! The manager (Hamlyn 3.3): one node and its lock, admission of senders, the owner of each link.
//!
//! ```text
//!   sender's manager                               receiver's manager
//!   grow: connect, greeting = kind, token, body ->  Event::Request: find the offer, ask it
//!                        <- answer, or a refusal    Offer::admit makes slots and tickets
//!   Connection                                      Event::Connected: Offer::joined, Connection
//!          the end that closes or dies: Event::Closed at the other: Connection::ended, Offer::left
//! ```
//! The thread that polls answers requests, in turns; a program that makes no calls starts a
//! progress thread for this. Never: an end point's code runs without the manager's lock in an
//! offer, or waits there.

mod connection;
mod error;
mod giving_up;
mod guarded;
mod lower;
mod offers;
mod seat;
mod seeds;
mod wakers;

pub use connection::{Connection, EndPoint};
pub(in crate::protocol) use error::of_wait;
pub(crate) use error::set_up;
pub use error::{GrowError, ReceiveError, SendError};
pub use giving_up::UntilGivenUp;
use giving_up::given_up;
pub(in crate::protocol) use guarded::Guarded;
pub(in crate::protocol) use offers::Offering;
pub(crate) use offers::{AdmissionCheck, NOT_OFFERED, OfferId, Protocols, StillWaits, Wakeable};
pub use seat::{Offer, Protocol, Seat};
#[cfg_attr(not(feature = "tokio"), allow(unused_imports))]
pub(crate) use wakers::{Awaiting, Wakers};

use super::deadline::Deadline;
use super::seed::{KIND_BYTES, Kind, Seed, Token};
use crate::config::Config;
use crate::control::{Accept, Access, ConnectError, Control, ServiceName, Wait};
use crate::interface::LinkId;
use crate::node::{
    self, Attached, BuildError, CloseReason, Forked, LinkError, Look, Node, OfferError, SharedNode,
    WaitError,
};
use crate::wire::NodeId;
use core::ops::DerefMut;
use core::task::Waker;
use core::time::Duration;
use std::string::{String, ToString};
use std::sync::Arc;
use std::time::Instant;
use std::vec::Vec;
use std::{format, io};

const GREETING: [u8; 4] = *b"HGr2";
const ANSWER: [u8; 4] = *b"HAn2";
/// Behind the first four bytes: kind and token.
const GREETING_HEAD: usize = GREETING.len() + KIND_BYTES + 16;
const ANSWER_HEAD: usize = ANSWER.len() + KIND_BYTES;
/// The shortest time before an end point that is due is checked again.
const DUE_PAUSE_MIN: Duration = Duration::from_millis(1);
/// The pauses before the next request for the name of a process that is ending, each twice as long.
const ENDING_PAUSE_MIN: Duration = Duration::from_millis(1);
const ENDING_PAUSE_MAX: Duration = Duration::from_millis(20);

/// The beginning of an answer to a sender of this kind.
fn answer_head(kind: Kind) -> [u8; ANSWER_HEAD] {
    let mut head = [0; ANSWER_HEAD];
    head[..ANSWER.len()].copy_from_slice(&ANSWER);
    head[ANSWER.len()..].copy_from_slice(&kind.to_bytes());
    head
}

/// Without the manager's lock: a process that may read a name's directory can make this take
/// seconds.
fn stop_serving(control: &Control, services: impl IntoIterator<Item = String>) {
    for service in services.into_iter().filter_map(|service| service.parse().ok()) {
        control.stop_serving(&service);
    }
}

/// A node with end points, for any number of threads. Cloning shares it. The node is dropped with
/// the last clone and the last end point, and then says goodbye to every peer.
///
/// ```
/// # let dir = std::env::temp_dir().join(format!("hamlyn-doc-manager-{}", std::process::id()));
/// # let config = hamlyn::Config::from_env()?.dir(&dir);
/// use hamlyn::Access;
/// use hamlyn::protocol::{Manager, StreamConfig, StreamReceiver, TaggedConfig, TaggedReceiver};
/// use hamlyn::protocol::TaggedSender;
/// use std::time::Duration;
///
/// let limit = Some(Duration::from_secs(10));
/// // Several end points of one manager, and one thread that waits for any of them.
/// let manager = Manager::with_config(config.clone())?;
/// let stream = StreamReceiver::new(&manager, StreamConfig::default())?;
/// let mut places = TaggedReceiver::new(&manager, TaggedConfig::new(4096))?;
/// places.serve("places", Access::SameUser)?;
/// // A thread of the manager answers peers that connect meanwhile.
/// manager.start_progress()?;
///
/// // Usually another process.
/// let other = Manager::with_config(config)?;
/// TaggedSender::connect(&other, "places", limit)?.send(0, b"hello", 7, limit)?;
///
/// let found = manager.wait_any(&[&stream, &places], limit)?;
/// assert_eq!(found, 1);
/// assert_eq!(places.get_tag(limit)?.tag, 7);
/// # std::fs::remove_dir_all(&dir).ok();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Manager {
    pub(crate) shared: SharedNode<Protocols>,
}

impl Manager {
    /// A manager whose node has the settings of the environment (`HAMLYN_*`).
    pub fn new() -> Result<Self, BuildError> {
        Self::from_node(Node::new()?)
    }

    /// A manager whose node has these settings.
    pub fn with_config(config: Config) -> Result<Self, BuildError> {
        Self::from_node(Node::with_config(config)?)
    }

    /// A manager for an existing node. The node's queues, areas and links stay; events that concern
    /// no end point come from [`next_event`](Self::next_event).
    pub fn from_node(node: Node) -> Result<Self, BuildError> {
        let doing = "making a descriptor that wakes sleeping threads";
        let shared = node.share_with(Protocols::default()).map_err(BuildError::os(doing))?;
        Ok(Self { shared })
    }

    /// The node, for this thread alone until the guard is dropped: the lower level. Panics in a
    /// forked child if another thread of the parent had it.
    pub fn lock(&self) -> impl DerefMut<Target = Node> + '_ {
        self.shared.lock()
    }

    /// The node's name.
    pub fn id(&self) -> NodeId {
        self.lock().id()
    }

    /// Takes a turn, unless another thread is taking one: deposits arrivals, and answers requests
    /// for end points. Returns how many packets were taken.
    pub fn poll(&self) -> Result<usize, Forked> {
        self.shared.try_poll()
    }

    /// The path that a link takes, and the reason.
    pub fn explain(&self, link: LinkId) -> Result<String, LinkError> {
        self.lock().explain(link)
    }

    /// The address for other hosts to connect to; see [`Node::listens_at`].
    #[cfg(feature = "tls")]
    pub fn listens_at(&self) -> Option<core::net::SocketAddr> {
        self.lock().listens_at()
    }

    /// Polls in a thread of its own, unless there is one, so that requests are answered, bytes are
    /// deposited and queued messages leave while the application makes no calls. It spins, yields
    /// and sleeps like any receiver; messages sent without the flag `WAKE`, which wake no thread,
    /// are deposited within a second. With a watchdog (`watchdog_ms`), packets are discarded when
    /// the application makes no call that receives, nor [`Node::reset_watchdog`], and does not wait
    /// (Hamlyn 2.8).
    pub fn start_progress(&self) -> io::Result<()> {
        self.shared.start_progress()
    }

    /// Stops the progress thread.
    pub fn stop_progress(&self) {
        self.shared.stop_progress();
    }

    /// Waits until one of several end points has something to receive, at most `timeout`; returns
    /// the index of the first that has. All must belong to this manager.
    pub fn wait_any(
        &self,
        end_points: &[&dyn EndPoint],
        timeout: Option<Duration>,
    ) -> Result<usize, ReceiveError> {
        if let Some(i) = end_points.iter().position(|e| !e.manager().is_same(self)) {
            let what = format!("end point {i} belongs to another manager");
            return Err(ReceiveError::Misuse(what));
        }
        let deadline = Deadline::new(timeout);
        loop {
            let due = end_points.iter().filter_map(|end_point| end_point.due()).min();
            let pause =
                due.map(|at| at.saturating_duration_since(Instant::now()).max(DUE_PAUSE_MIN));
            let limit = deadline.left().into_iter().chain(pause).min();
            let waited = self.shared.wait_until(limit, |node, _| {
                let found = end_points.iter().position(|end_point| end_point.is_ready_in(node));
                found.map_or(Look::Nothing, Look::Found)
            });
            let is_over = deadline.left().is_some_and(|left| left.is_zero());
            if is_over || due.is_none() || !matches!(waited, Err(WaitError::TimedOut)) {
                return Ok(waited?);
            }
        }
    }

    /// Whether this is a child of the process that made the manager: dropping an end point does
    /// nothing there.
    pub(crate) fn is_forked(&self) -> bool {
        self.shared.is_forked()
    }

    fn is_same(&self, other: &Self) -> bool {
        self.shared.is_same(&other.shared)
    }

    /// A descriptor for epoll, tokio, asyncio and the like; see
    /// [`prepare_to_wait`](Self::prepare_to_wait).
    pub fn try_clone_fd(&self) -> io::Result<std::os::fd::OwnedFd> {
        self.lock().as_fd().try_clone_to_owned()
    }

    /// Call it before you wait on the descriptor, after you found every end point empty. `true`:
    /// nothing waits, and an arrival will make the descriptor readable, or wake `waker` if another
    /// thread takes the arrival; after you leave the waker, check each end point once more.
    /// `false`: something has come; check again. After a `try_send` without room, room counts as an
    /// arrival.
    ///
    /// ```
    /// # let dir = std::env::temp_dir().join(format!("hamlyn-doc-manager-wait-{}", std::process::id()));
    /// use hamlyn::Node;
    /// use hamlyn::protocol::{Manager, TaggedConfig, TaggedReceiver};
    /// use rustix::event::{PollFd, PollFlags, Timespec, poll};
    ///
    /// # let config = hamlyn::Config::from_env()?.dir(&dir);
    /// let manager = Manager::from_node(Node::with_config(config)?)?;
    /// let mut receiver = TaggedReceiver::new(&manager, TaggedConfig::new(64))?;
    /// manager.stop_progress(); // A progress thread would take the arrivals.
    /// let descriptor = manager.try_clone_fd()?;
    /// let queue = manager.lock().notification_queue(1)?; // Of the program's own.
    /// assert_eq!(manager.try_recv(queue)?, None);
    /// // One turn of an event loop, which would wait longer, and for more than this.
    /// while receiver.try_get_tag()?.is_none() && manager.prepare_to_wait(None)? {
    ///     let no_time = Timespec { tv_sec: 0, tv_nsec: 0 };
    ///     if poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], Some(&no_time))? == 0 {
    ///         break;
    ///     }
    ///     manager.poll()?;
    /// }
    /// # std::fs::remove_dir_all(&dir).ok();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn prepare_to_wait(&self, waker: Option<&Waker>) -> Result<bool, Forked> {
        if let Some(waker) = waker {
            self.leave_waker(waker, None);
        }
        let mut guard = self.shared.lock();
        let (node, protocols) = guard.parts();
        let before = node.moved();
        let taken = node.poll()?;
        protocols.after_poll(node);
        protocols.after_sleep();
        // The caller may be waiting for one of the packets that this turn took.
        Ok(taken == 0 && node.moved() == before && node.prepare_to_wait()?)
    }

    /// Ends the wait that left this waker ([`prepare_to_wait`](Self::prepare_to_wait)).
    #[cfg(feature = "unstable-internals")]
    pub fn wait_no_more(&self, waker: &Waker) {
        if !self.is_forked() {
            self.shared.lock().parts().1.wakers.forget(waker);
        }
    }

    /// Wakes `waker` at the next arrival, whichever thread takes it. If it was left for a `wait`,
    /// it is forgotten soon after that has been dropped.
    pub(crate) fn leave_waker(&self, waker: &Waker, wait: Option<&Awaiting>) {
        let mut guard = self.shared.lock();
        let (node, protocols) = guard.parts();
        if protocols.wakers.is_empty() {
            protocols.moved = node.moved();
        }
        protocols.wakers.leave(waker, wait);
    }

    // ---- for the end points

    /// Registers a receiver.
    pub(in crate::protocol) fn offer(&self, kind: Kind, offer: Offering) -> OfferId {
        let mut guard = self.shared.lock();
        let (_, protocols) = guard.parts();
        protocols.add(kind, offer)
    }

    /// Decides for each peer whether it may grow a sender of this receiver.
    pub(crate) fn set_admission(&self, offer: OfferId, admission: AdmissionCheck) {
        let mut guard = self.shared.lock();
        let before = match guard.parts().1.offers.get_mut(&offer) {
            Some(offered) => offered.admission.replace(admission),
            None => Some(admission),
        };
        // Its captured values may need the lock when they are dropped.
        drop(guard);
        drop(before);
    }

    /// Drops a receiver: its seeds and names are worthless from now on, its connections are closed.
    /// Returns the offer, which may hold the receiver's state; `None` in a forked child, which
    /// leaves everything as it is.
    pub(in crate::protocol) fn withdraw(&self, offer: OfferId) -> Option<Offering> {
        if self.is_forked() {
            return None;
        }
        let mut guard = self.shared.lock();
        let (node, protocols) = guard.parts();
        let served = protocols.hide(node, offer);
        let withdrawn = protocols.remove(offer);
        let links: Vec<LinkId> = protocols
            .connections
            .iter()
            .filter(|(_, (_, of))| *of == Some(offer))
            .map(|(link, _)| *link)
            .collect();
        for link in links {
            if let Some((connection, _)) = protocols.connections.remove(&link) {
                let _ = connection.ended.set(CloseReason::Closed);
            }
            let _ = node.disconnect(link);
        }
        protocols.after_look(node);
        let control = node.control_apart();
        // The admission's captured values may need the lock when they are dropped.
        drop(guard);
        stop_serving(&control, served);
        withdrawn.map(|offered| offered.offer)
    }

    /// Hides a receiver: its seeds and names are worthless from now on. Its connections stay. A
    /// process that may read a name's directory can make this take seconds.
    pub(in crate::protocol) fn hide(&self, offer: OfferId) {
        if self.is_forked() {
            return;
        }
        let mut guard = self.shared.lock();
        let (node, protocols) = guard.parts();
        let served = protocols.hide(node, offer);
        let control = node.control_apart();
        drop(guard);
        stop_serving(&control, served);
    }

    /// Lets a receiver be found by name. A process that may read the name's directory can make this
    /// take seconds, so it is done without the manager's lock.
    pub(crate) fn serve(
        &self,
        offer: OfferId,
        name: &str,
        access: Access,
    ) -> Result<(), OfferError> {
        let name = name.parse::<ServiceName>()?;
        // The name in peers' requests; known before the first of them comes.
        let service = name.to_string();
        let mut guard = self.shared.lock();
        let (node, protocols) = guard.parts();
        if protocols.drains(offer) {
            return Err(OfferError::Drained);
        }
        let control = node.control_apart();
        let is_new = !protocols.by_service.contains_key(&service);
        if is_new {
            protocols.by_service.insert(service.clone(), offer);
        }
        drop(guard);
        // A name that this manager serves already is in use.
        control.serve(&name, access, Accept::Ask).inspect_err(|_| {
            if is_new {
                self.shared.lock().parts().1.by_service.remove(&service);
            }
        })?;
        // The server may have begun to drain meanwhile.
        let mut guard = self.shared.lock();
        let protocols = guard.parts().1;
        if protocols.drains(offer) {
            // Unless another receiver has the name by now.
            if protocols.by_service.get(&service).is_none_or(|of| *of == offer) {
                protocols.by_service.remove(&service);
                drop(guard);
                control.stop_serving(&name);
            }
            return Err(OfferError::Drained);
        }
        Ok(())
    }

    /// Grows a sender: connects to its receiver, and reads the answer. An answer that makes no
    /// sense ends the connection, and the error says what was `expected`.
    pub(crate) fn grow<R>(
        &self,
        target: Target<'_>,
        kind: Kind,
        body: &[u8],
        timeout: Option<Duration>,
        expected: &'static str,
        read: impl FnOnce(&Arc<Connection>, &[u8]) -> Option<R>,
    ) -> Result<(Arc<Connection>, R), GrowError> {
        self.grow_for(None, target, kind, body, timeout, expected, read)
    }

    /// [`grow`](Self::grow) for the offer that hears of the connection's events and its end.
    #[allow(clippy::too_many_arguments)]
    fn grow_for<R>(
        &self,
        owner: Option<OfferId>,
        target: Target<'_>,
        kind: Kind,
        body: &[u8],
        timeout: Option<Duration>,
        expected: &'static str,
        read: impl FnOnce(&Arc<Connection>, &[u8]) -> Option<R>,
    ) -> Result<(Arc<Connection>, R), GrowError> {
        // The maker of a seed served its name first, so a process that serves it later is another
        // node.
        let (service, token, of, wait) = match target {
            Target::Seed(seed) if seed.kind != kind => {
                return Err(GrowError::Kind { wanted: kind, found: seed.kind });
            }
            Target::Seed(seed) => (seed.service.as_str(), seed.token, Some(seed.node), Wait::No),
            Target::Service(name) => (name, Token::NONE, None, self.shared.lock().wait_for_names()),
        };
        let mut greeting = GREETING.to_vec();
        greeting.extend_from_slice(&kind.to_bytes());
        greeting.extend_from_slice(&token.0);
        greeting.extend_from_slice(body);
        let grown =
            self.connect_then(service, &greeting, timeout, wait, |node, protocols, link| {
                let vanished = || GrowError::Connect(ConnectError::Vanished);
                let answer = node.greeting(link).map_err(|_| vanished())?.to_vec();
                let peer = node.peer(link).map_err(|_| vanished())?.clone();
                if let Some(wanted) = of.filter(|node| *node != peer.node) {
                    let _ = node.disconnect(link);
                    return Err(GrowError::OtherNode { wanted, found: peer.node });
                }
                let head = answer.split_at_checked(ANSWER_HEAD);
                match head {
                    Some((head, body)) if *head == answer_head(kind) => {
                        let connection = Connection::new(node, link, peer);
                        // The pool may be on its way already, and a polling thread would refuse it.
                        if kind == Kind::PUBLISH {
                            connection.take_aperture();
                        }
                        protocols.connections.insert(link, (connection.clone(), owner));
                        Ok((connection, body.to_vec()))
                    }
                    _ => {
                        let _ = node.disconnect(link);
                        Err(GrowError::NotAnEndPoint)
                    }
                }
            })?;
        let (connection, answer) = grown?;
        match read(&connection, &answer) {
            Some(made) => Ok((connection, made)),
            None => {
                self.end(&connection);
                Err(GrowError::Answer(expected))
            }
        }
    }

    /// Connects to a service, and polls meanwhile: the service may belong to this very process, or
    /// its process may be growing a sender here. The application owns the link. `timeout` covers
    /// everything, including the wait for the name to be served, unless the setting
    /// `wait_for_names` is off.
    pub fn connect(
        &self,
        service: &str,
        greeting: &[u8],
        timeout: Option<Duration>,
    ) -> Result<LinkId, GrowError> {
        let wait = self.shared.lock().wait_for_names();
        self.connect_then(service, greeting, timeout, wait, |_, _, link| link)
    }

    /// [`connect`](Self::connect), then `then` at once: before any other thread takes a packet of
    /// the link, or the news of its end.
    fn connect_then<R>(
        &self,
        service: &str,
        greeting: &[u8],
        timeout: Option<Duration>,
        wait: Wait,
        then: impl FnOnce(&mut Node, &mut Protocols, LinkId) -> R,
    ) -> Result<R, GrowError> {
        let given_up = given_up();
        let (deadline, mut pause) = (Deadline::new(timeout), ENDING_PAUSE_MIN);
        let mut then = Some(then);
        loop {
            if given_up() {
                return Err(GrowError::GivenUp);
            }
            let left = deadline.left();
            let token = self.shared.lock().begin_connect(service, greeting, left, wait)?;
            // The control plane ends it within the time limit, if it can.
            let waited = self.shared.wait_until(left.map(node::with_answer), |node, protocols| {
                if given_up() {
                    node.give_up_connecting(token);
                    return Look::Found(None);
                }
                match (node.end_connect(token), &mut then) {
                    (None, _) => Look::Nothing,
                    (Some(Err(e)), _) => Look::Found(Some(Err(e))),
                    (Some(Ok(link)), then) => {
                        let then = then.take().expect("a link is found once");
                        Look::Found(Some(Ok(then(node, protocols, link))))
                    }
                }
            });
            return match waited {
                Ok(None) => Err(GrowError::GivenUp),
                // As if the name were not served yet: the attempt waits for the next process that
                // serves it.
                Ok(Some(Err(e)))
                    if e.is_of_one_that_ends()
                        && wait == Wait::ForName
                        && deadline.left() != Some(Duration::ZERO) =>
                {
                    let look = |_: &mut Node, _: &mut Protocols| match given_up() {
                        true => Look::Found(()),
                        false => Look::Nothing,
                    };
                    let _ = self.shared.wait_until(Some(pause), look);
                    pause = (pause * 2).min(ENDING_PAUSE_MAX);
                    continue;
                }
                Ok(Some(connected)) => Ok(connected.map_err(GrowError::of)?),
                Err(waited) => {
                    self.shared.lock().give_up_connecting(token);
                    Err(match waited {
                        WaitError::Forked(_) => ConnectError::Forked,
                        WaitError::Os(error) => {
                            ConnectError::Os { doing: "waiting for the link", error }
                        }
                        WaitError::TimedOut => ConnectError::TimedOut(node::NO_WORD),
                    }
                    .into())
                }
            };
        }
    }

    /// The end points' connection over a link: of the sender of a message, by its notification.
    ///
    /// ```
    /// # let dir = std::env::temp_dir().join(format!("hamlyn-doc-connection-{}", std::process::id()));
    /// use hamlyn::LinkId;
    /// use hamlyn::protocol::Manager;
    ///
    /// # let config = hamlyn::Config::from_env()?.dir(&dir);
    /// let manager = Manager::with_config(config)?;
    /// assert!(manager.connection(LinkId::SELF).is_none()); // A link of the node's own.
    /// # drop(manager);
    /// # std::fs::remove_dir_all(&dir).ok();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn connection(&self, link: LinkId) -> Option<Arc<Connection>> {
        let mut guard = self.shared.lock();
        guard.parts().1.connections.get(&link).map(|(connection, _)| connection.clone())
    }

    /// The connections that a receiver has now; `is_its` tells which offers belong to it.
    pub(crate) fn connections_of(&self, is_its: impl Fn(OfferId) -> bool) -> Vec<Arc<Connection>> {
        let mut guard = self.shared.lock();
        let all = guard.parts().1.connections.values();
        let its = all.filter(|(_, of)| of.is_some_and(&is_its));
        let mut its: Vec<_> = its.map(|(connection, _)| connection.clone()).collect();
        its.sort_unstable_by_key(|connection| connection.link.index);
        its
    }

    /// Disconnects a peer that broke a protocol's rules.
    pub(crate) fn expel(&self, link: LinkId, why: &str) {
        let mut guard = self.shared.lock();
        let (node, protocols) = guard.parts();
        protocols.expel(node, link, why);
    }

    /// This offer hears of the connection's end from now on.
    pub(crate) fn tell_end(&self, connection: &Connection, offer: OfferId) {
        let mut guard = self.shared.lock();
        let (node, protocols) = guard.parts();
        match protocols.connections.get_mut(&connection.link) {
            Some((_, told)) => *told = Some(offer),
            // It has ended already.
            None => {
                if let Some(offered) = protocols.offers.get_mut(&offer) {
                    offered.offer.left(node, connection);
                }
            }
        }
    }

    /// Separates a connection from its receiver: it goes on when the receiver is dropped.
    pub(crate) fn keep_apart(&self, connection: &Connection) {
        let mut guard = self.shared.lock();
        if let Some((_, offer)) = guard.parts().1.connections.get_mut(&connection.link) {
            *offer = None;
        }
    }

    /// Ends a connection; returns how many queued messages did not leave.
    pub(crate) fn end(&self, connection: &Connection) -> usize {
        let mut guard = self.shared.lock();
        let (node, protocols) = guard.parts();
        protocols.connections.remove(&connection.link);
        let _ = connection.ended.set(CloseReason::Closed);
        let unsent = node.disconnect(connection.link).unwrap_or(0);
        protocols.after_look(node);
        unsent
    }

    /// Drops a sender: ends its connection first, so that no packet comes for the objects that
    /// `remove` then takes away. A forked child leaves everything as it is.
    pub(crate) fn leave(&self, connection: &Connection, remove: impl FnOnce(&mut Node)) {
        if !self.is_forked() {
            self.end(connection);
            remove(&mut self.lock());
        }
    }
}

impl UntilGivenUp {
    /// Gives up the attempt of the thread that connects with this manager.
    pub fn give_up(given_up: &core::sync::atomic::AtomicBool, manager: &Manager) {
        given_up.store(true, core::sync::atomic::Ordering::Release);
        // It checks, wherever it sleeps.
        manager.lock().wake();
    }
}

/// The address from which a sender is grown.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Target<'a> {
    Seed(&'a Seed),
    Service(&'a str),
}
