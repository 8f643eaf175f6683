//! The manager (Hamlyn 3.3): one node and its lock, who may grow a sender, whose link is whose.
//!
//! ```text
//!   sender's manager                               receiver's manager
//!   grow: connect, greeting = kind, token, body ->  Event::Request: find the offer, ask it
//!                        <- answer, or a refusal    Offer::admit makes slots and tickets
//!   Connection                                      Event::Connected: Offer::joined, Connection
//!          whoever closes or dies: Event::Closed at the other: Connection::ended, Offer::left
//! ```
//! Requests are answered in turns, by whichever thread polls; a program that makes no calls has a
//! progress thread do it. Never: an end point's code runs without the manager's lock in an offer,
//! or waits there.

use super::joining::{Asking, Joining};
use super::seed::{Kind, Seed, SeedError, Token};
use crate::config::Config;
use crate::control::{self, Accept, Access, Peer, RequestId, ServiceName};
use crate::interface::{LinkId, Notification, QueueId};
use crate::node::{
    self, ApertureEvent, Attached, BuildError, CloseReason, Event, Forked, LinkError, Look, Node,
    OfferError, RecvError, SendError, SharedNode, Waited,
};
use crate::os::sys;
use crate::wire::{NodeId, Ticket};
use core::any::Any;
use core::ops::DerefMut;
use core::sync::atomic::{AtomicBool, Ordering};
use core::task::Waker;
use core::time::Duration;
use std::boxed::Box;
use std::collections::{HashMap, VecDeque};
use std::format;
use std::io;
use std::string::{String, ToString};
use std::sync::{Arc, OnceLock};
use std::vec::Vec;

const GREETING: [u8; 4] = *b"HGr1";
const ANSWER: [u8; 4] = *b"HAn1";
const GREETING_HEAD: usize = 21;
const ANSWER_HEAD: usize = 5;

/// A node with end points, for any number of threads. Cloning shares it. With the last clone and
/// the last end point the node is dropped, and every peer is told goodbye.
#[derive(Clone)]
pub struct Manager {
    pub(crate) shared: SharedNode<Protocols>,
}

/// The connection of one sender end point and one receiver end point: a link of their own.
#[derive(Debug)]
pub struct Connection {
    node: NodeId,
    link: LinkId,
    peer: Peer,
    ended: OnceLock<CloseReason>,
    /// The end point here uses an aperture that the peer exports.
    takes_aperture: AtomicBool,
}

impl Connection {
    fn new(node: &Node, link: LinkId, peer: Peer) -> Arc<Self> {
        let (ended, takes_aperture) = (OnceLock::new(), AtomicBool::new(false));
        Arc::new(Self { node: node.id(), link, peer, ended, takes_aperture })
    }

    /// Which path its messages take, and why; or why it has ended. `manager` is its end point's.
    pub fn explain(&self, manager: &Manager) -> String {
        if let Some(reason) = self.ended() {
            return format!("the connection to the peer has ended: {reason}");
        }
        let node = manager.lock();
        if node.id() != self.node {
            return format!(
                "the connection is one of node {}, not of node {}",
                self.node,
                node.id()
            );
        }
        node.explain(self.link).unwrap_or_else(|e| e.to_string())
    }

    /// The link.
    pub fn link(&self) -> LinkId {
        self.link
    }

    /// Who is at the other end, as the kernel says.
    pub fn peer(&self) -> &Peer {
        &self.peer
    }

    /// The end point here uses one aperture that the peer exports.
    pub(super) fn take_aperture(&self) {
        self.takes_aperture.store(true, Ordering::Relaxed);
    }

    /// Why it ended, once it has. What the peer sent before has arrived by then.
    pub fn ended(&self) -> Option<&CloseReason> {
        self.ended.get()
    }
}

/// An end point that may have something to receive, for [`Manager::wait_any`].
pub trait EndPoint {
    /// Whether a receive would return at once. `node` is its manager's.
    fn is_ready_in(&self, node: &Node) -> bool;
    /// Its manager.
    fn manager(&self) -> &Manager;
    /// Whether a receive would return at once.
    fn is_ready(&self) -> bool {
        self.is_ready_in(&self.manager().lock())
    }
}

/// A sender that could not be grown. Nothing is left of the attempt.
#[derive(Debug, thiserror::Error)]
pub enum GrowError {
    /// The bytes are no seed.
    #[error(transparent)]
    Seed(#[from] SeedError),
    /// The seed is of another protocol.
    #[error("the seed is of a receiver of kind {found}, and this sender is of kind {wanted}")]
    Kind {
        /// The sender's.
        wanted: Kind,
        /// The seed's.
        found: Kind,
    },
    /// The receiver's process could not be reached: it is gone, or never was.
    #[error("the receiver cannot be reached: {error}{advice}", error = .0, advice = advice(.0))]
    Connect(#[from] node::ConnectError),
    /// Another node than the seed's has its name now.
    #[error("the seed is of node {wanted}, and its name is served by node {found}")]
    OtherNode {
        /// The seed's.
        wanted: NodeId,
        /// Who serves the name.
        found: NodeId,
    },
    /// The receiver said no: the seed is old or forged, it has its sender already, or its owner
    /// does not want this peer.
    #[error("the receiver refused: {0}")]
    Refused(String),
    /// What is served under this name is no end point.
    #[error("what is served there is no end point, or one of another version")]
    NotAnEndPoint,
    /// The receiver's answer cannot be: it misbehaves.
    #[error("the receiver's answer makes no sense: {0}")]
    Answer(&'static str),
    /// This side has no memory, slots or entries left for the end point.
    #[error("the end point cannot be set up here: {0}")]
    SetUp(String),
    /// The calling process is a forked child.
    #[error(transparent)]
    Forked(#[from] Forked),
}

/// Why nobody answers, where that can be.
fn advice(error: &node::ConnectError) -> &'static str {
    match error {
        node::ConnectError::Control(control::ConnectError::TimedOut(_)) => {
            "; its program makes no calls, or is behind: a progress thread (start_progress) answers \
             without them"
        }
        _ => "",
    }
}

/// Nothing was received. Nothing was taken.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ReceiveError {
    /// The time is over.
    #[error("nothing arrived within the time limit")]
    TimedOut,
    /// The peer is gone, and everything that it sent has been received.
    #[error("the sender is gone, and everything that it sent has been received: {0}")]
    Ended(CloseReason),
    /// The sender broke the protocol's rules; its link has been closed.
    #[error("the sender broke the rules and was sent away: {0}")]
    Misbehaved(String),
    /// What was named does not exist.
    #[error("{0}")]
    Misuse(String),
    /// The calling process is a forked child.
    #[error(transparent)]
    Forked(#[from] Forked),
    /// Sleeping failed.
    #[error("waiting failed: {0}")]
    Wait(Arc<io::Error>),
}

impl ReceiveError {
    /// What was received within no time at all, if anything was.
    #[inline]
    pub(crate) fn unless_timed_out<R>(received: Result<R, Self>) -> Result<Option<R>, Self> {
        match received {
            Ok(received) => Ok(Some(received)),
            Err(Self::TimedOut) => Ok(None),
            Err(e) => Err(e),
        }
    }
}

impl From<Waited> for ReceiveError {
    fn from(waited: Waited) -> Self {
        match waited {
            Waited::TimedOut => Self::TimedOut,
            Waited::Forked(e) => Self::Forked(e),
            Waited::Os(e) => Self::Wait(Arc::new(e)),
        }
    }
}

/// Nothing was sent.
#[derive(Debug, thiserror::Error)]
pub enum SendFailure {
    /// The time is over: the receiver did not go on.
    #[error(
        "the receiver did not take what was sent before within the time limit; nothing was sent. \
         It is behind, or its program makes no calls and has no progress thread (start_progress)"
    )]
    TimedOut,
    /// More than one message holds.
    #[error("{length} bytes are too long: at most {max} are allowed, {limit}; nothing was sent")]
    TooLong {
        /// Bytes that were to be sent.
        length: usize,
        /// Most bytes.
        max: usize,
        /// The setting that says so, and whose it is.
        limit: &'static str,
    },
    /// Outside of the memory that the receiver lends.
    #[error("bytes {offset}..{} are not inside the receiver's 0..{size}; nothing was sent", .offset.saturating_add(*.length as u64))]
    Outside {
        /// First byte.
        offset: u64,
        /// Bytes.
        length: usize,
        /// Bytes that may be written.
        size: u64,
    },
    /// The time was over when part of the message had left. The rest was copied, and leaves first
    /// in the next call; the message must not be sent again.
    #[error("the time limit cut the message off; the rest of it leaves in the next call")]
    CutOff,
    /// A reply ticket of another node than the sender's own.
    #[error("a reply ticket must be one of this manager's own; nothing was sent")]
    ForeignTicket,
    /// The datagram came without a ticket for an answer.
    #[error("the datagram came without a ticket for an answer; nothing was sent")]
    NoReplyWanted,
    /// The receiver is gone.
    #[error("the receiver is gone, and nothing more can be sent: {0}")]
    Ended(CloseReason),
    /// The receiver broke the protocol's rules; the link has been closed.
    #[error("the receiver broke the rules and was sent away: {0}")]
    Misbehaved(String),
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

impl SendFailure {
    /// Whether something was sent within no time at all.
    #[inline]
    pub(crate) fn unless_timed_out(sent: Result<(), Self>) -> Result<bool, Self> {
        match sent {
            Ok(()) => Ok(true),
            Err(Self::TimedOut) => Ok(false),
            Err(e) => Err(e),
        }
    }
}

impl From<Waited> for SendFailure {
    fn from(waited: Waited) -> Self {
        match waited {
            Waited::TimedOut => Self::TimedOut,
            Waited::Forked(e) => Self::Forked(e),
            Waited::Os(e) => Self::Wait(Arc::new(e)),
        }
    }
}

/// What the manager asks a receiver end point. Called under the lock; must not wait. An end point
/// may keep its state in its offer, and so under the manager's lock
/// ([`Protocols::state`]), instead of having a lock of its own.
pub(crate) trait Offer: Any + Send {
    /// Whether there is a place for a peer that sent `body`; else why not.
    fn check_place(&self, _peer: &Peer, _body: &[u8]) -> Result<(), String> {
        Ok(())
    }
    /// A peer wants to grow a sender and sent `body`, and there is a place for it: the answer for it,
    /// or why not. Whatever was made for the request is undone in [`withdrawn`](Self::withdrawn).
    fn admit(
        &mut self,
        node: &mut Node,
        request: RequestId,
        peer: &Peer,
        body: &[u8],
    ) -> Result<Vec<u8>, String>;
    /// The request did not become a connection.
    fn withdrawn(&mut self, node: &mut Node, request: RequestId);
    /// The request became a connection.
    fn joined(&mut self, node: &mut Node, request: RequestId, connection: &Arc<Connection>);
    /// The connection ended, and what was sent over it has arrived.
    fn left(&mut self, node: &mut Node, connection: &Connection);
}

/// Says whether a peer may grow a sender; else why not, which the peer is told.
pub(crate) type Admission = Box<dyn FnMut(&Peer) -> Result<(), String> + Send>;

/// Names an offer of one manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct OfferId {
    index: usize,
    number: u64,
}

#[cfg(test)]
impl OfferId {
    /// One that is like no other of another index.
    pub(crate) fn of(index: usize) -> Self {
        Self { index, number: 1 }
    }
}

/// The offers, by place.
#[derive(Default)]
struct Offers {
    places: Vec<Option<Offered>>,
    next: u64,
}

impl Offers {
    fn insert(&mut self, kind: Kind, offer: Box<dyn Offer>) -> OfferId {
        self.next += 1;
        let number = self.next;
        let offered = Some(Offered { number, kind, offer, admission: None });
        let index = match self.places.iter().position(Option::is_none) {
            Some(index) => {
                self.places[index] = offered;
                index
            }
            None => {
                self.places.push(offered);
                self.places.len() - 1
            }
        };
        OfferId { index, number }
    }

    #[inline]
    fn get_mut(&mut self, id: &OfferId) -> Option<&mut Offered> {
        self.places.get_mut(id.index)?.as_mut().filter(|offered| offered.number == id.number)
    }

    fn remove(&mut self, id: &OfferId) -> Option<Offered> {
        self.get_mut(id)?;
        self.places[id.index].take()
    }
}

struct Offered {
    number: u64,
    kind: Kind,
    offer: Box<dyn Offer>,
    admission: Option<Admission>,
}

/// What the manager keeps under the node's lock.
#[derive(Default)]
pub(crate) struct Protocols {
    offers: Offers,
    by_token: HashMap<Token, OfferId>,
    by_service: HashMap<String, OfferId>,
    joining: Joining,
    connections: HashMap<LinkId, (Arc<Connection>, Option<OfferId>)>,
    /// What is not the manager's business.
    events: VecDeque<Event>,
    /// The service through which seeds are grown, and who may use it.
    seed_service: Option<String>,
    seed_access: Option<Access>,
    wakers: Vec<Waker>,
    moved: u64,
}

/// Most events that wait for the application; beyond, the oldest are dropped.
const EVENTS_MAX: usize = 4096;

impl Attached for Protocols {
    #[inline]
    fn after_poll(&mut self, node: &mut Node) {
        if node.has_events() {
            self.take_events(node);
        }
        self.after_look(node);
    }

    #[inline]
    fn after_look(&mut self, node: &mut Node) {
        if !self.wakers.is_empty() {
            self.wake(node);
        }
    }

    #[inline(always)]
    fn waiting(&self) -> usize {
        self.wakers.len()
    }
}

impl Protocols {
    /// The state of an end point, which is its offer.
    #[inline]
    pub(crate) fn state<T: Offer>(&mut self, id: OfferId) -> Option<&mut T> {
        let offer: &mut dyn Any = &mut *self.offers.get_mut(&id)?.offer;
        offer.downcast_mut()
    }

    /// Sends a peer away that broke a protocol's rules.
    #[cold]
    pub(crate) fn expel(&mut self, node: &mut Node, link: LinkId, why: &str) {
        let _ = node.disconnect(link);
        if let Some((connection, offer)) = self.connections.remove(&link) {
            let _ = connection.ended.set(CloseReason::Misbehaved(why.into()));
            if let Some(offered) = offer.and_then(|offer| self.offers.get_mut(&offer)) {
                offered.offer.left(node, &connection);
            }
        }
        self.after_look(node);
    }

    #[cold]
    pub(super) fn take_events(&mut self, node: &mut Node) {
        while let Some(event) = node.next_event() {
            match event {
                Event::Request { id, peer, greeting } => {
                    if let Some(event) = self.answer(node, id, peer, greeting) {
                        self.keep(node, event);
                    }
                }
                Event::RequestGone { id } => match self.joining.exit(id) {
                    Some(offer) => {
                        if let Some(offered) = self.offers.get_mut(&offer) {
                            offered.offer.withdrawn(node, id);
                        }
                    }
                    None if self.joining.went_away(id) || self.joining.has_given_way(id) => {}
                    None => self.keep(node, Event::RequestGone { id }),
                },
                Event::Connected { link, request } => {
                    match request.and_then(|id| Some((id, self.joining.exit(id)?))) {
                        Some((id, offer)) => self.join(node, link, id, offer),
                        // Another has its place.
                        None if request.is_some_and(|id| self.joining.has_given_way(id)) => {
                            let _ = node.disconnect(link);
                        }
                        None => self.keep(node, Event::Connected { link, request }),
                    }
                }
                Event::Closed { link, reason, unsent } => match self.connections.remove(&link) {
                    Some((connection, offer)) => {
                        let _ = connection.ended.set(reason);
                        let offered = offer.and_then(|offer| self.offers.get_mut(&offer));
                        if let Some(offered) = offered {
                            offered.offer.left(node, &connection);
                        }
                    }
                    None => self.keep(node, Event::Closed { link, reason, unsent }),
                },
                Event::Aperture { aperture, what }
                    if self.connections.contains_key(&aperture.link) =>
                {
                    // An end point's, which looks for itself; there the peer may export anything.
                    if what == ApertureEvent::Held && !self.wants_aperture(node, aperture.link) {
                        let _ = node.release_aperture(aperture);
                    }
                }
                other => self.keep(node, other),
            }
        }
        if self.joining.is_anybody_waiting() {
            self.ask_waiting(node);
        }
    }

    /// Whether the end point of a link has a use for what it holds.
    fn wants_aperture(&self, node: &Node, link: LinkId) -> bool {
        let held = node.apertures_held().filter(|aperture| aperture.link == link).count();
        let takes = |of: &(Arc<Connection>, _)| of.0.takes_aperture.load(Ordering::Relaxed);
        held <= 1 && self.connections.get(&link).is_some_and(takes)
    }

    fn keep(&mut self, node: &mut Node, event: Event) {
        // Whoever waits for events may not be who took it from the node.
        node.stir();
        if self.events.len() >= EVENTS_MAX {
            self.events.pop_front();
        }
        self.events.push_back(event);
    }

    /// Answers a request for an end point; gives back what is the application's.
    fn answer(
        &mut self,
        node: &mut Node,
        id: RequestId,
        peer: Peer,
        greeting: Vec<u8>,
    ) -> Option<Event> {
        let named = self.by_service.get(&peer.service).copied();
        let for_seeds = self.seed_service.as_ref() == Some(&peer.service);
        if named.is_none() && !for_seeds {
            return Some(Event::Request { id, peer, greeting });
        }
        let user = peer.uid;
        let decided = self.wanted(&peer, &greeting, named).and_then(|offer| {
            let asking = Asking { id, peer, greeting };
            let waits =
                match self.joining.has_room(offer, user) && !self.joining.is_waiting(offer, user) {
                    true => self.admit(node, offer, asking),
                    false => Some(asking),
                };
            match waits.map(|asking| self.joining.wait(asking, offer)) {
                Some(Err(_)) => Err("too many of this user want a place at the same time".into()),
                _ => Ok(()),
            }
        });
        if let Err(why) = decided {
            refuse(node, id, &why);
        }
        None
    }

    /// Those whose turn has come.
    #[cold]
    fn ask_waiting(&mut self, node: &mut Node) {
        let mut before = 0;
        while let Some((offer, asking)) = self.joining.next(&mut before) {
            if let Some(asking) = self.admit(node, offer, asking) {
                self.joining.put_back(&mut before, offer, asking);
            }
        }
    }

    /// Decides about a request. Given back: there is no place, and there may be one soon.
    fn admit(&mut self, node: &mut Node, offer: OfferId, asking: Asking) -> Option<Asking> {
        let Asking { id, peer, greeting } = &asking;
        let (id, body) = (*id, &greeting[GREETING_HEAD..]);
        let Some(offered) = self.offers.get_mut(&offer) else {
            refuse(node, id, "the receiver is gone");
            return None;
        };
        let now_ns = sys::monotonic_ns();
        let mut place = offered.offer.check_place(peer, body);
        if place.is_err()
            && let Some(slow) = self.joining.give_way(offer, peer.uid, now_ns)
        {
            offered.offer.withdrawn(node, slow);
            place = offered.offer.check_place(peer, body);
        }
        if place.is_err() && self.joining.is_anybody_half(offer) {
            return Some(asking);
        }
        let admitted = place.and_then(|()| offered.offer.admit(node, id, peer, body));
        match admitted {
            Ok(body) => {
                let answer = [&ANSWER[..], &[offered.kind as u8], &body].concat();
                self.joining.enter(id, offer, peer.uid, now_ns);
                // One that is gone already needs no answer.
                if node.accept(id, &answer).is_err() {
                    self.joining.exit(id);
                    offered.offer.withdrawn(node, id);
                }
            }
            Err(why) => refuse(node, id, &why),
        }
        None
    }

    /// Which end point a peer wants, if it may have it as far as its owner is concerned.
    fn wanted(
        &mut self,
        peer: &Peer,
        greeting: &[u8],
        named: Option<OfferId>,
    ) -> Result<OfferId, String> {
        if greeting.len() < GREETING_HEAD || greeting[..4] != GREETING {
            return Err("this is an end point, and the greeting is not that of a sender".into());
        }
        let kind = Kind::from_wire(greeting[4]).ok_or("the sender's kind is unknown here")?;
        let mut token = Token::NONE;
        token.0.copy_from_slice(&greeting[5..GREETING_HEAD]);
        let found = match named {
            Some(offer) => Some(offer),
            None => self.by_token.get(&token).copied(),
        };
        let found = found.and_then(|offer| Some((offer, self.offers.get_mut(&offer)?)));
        let (offer, offered) =
            found.ok_or("the seed is not, or no longer, one of a receiver of this process")?;
        if offered.kind != kind {
            return Err(format!("the receiver is of kind {}, the sender of {kind}", offered.kind));
        }
        if let Some(admission) = &mut offered.admission {
            admission(peer)?;
        }
        Ok(offer)
    }

    fn join(&mut self, node: &mut Node, link: LinkId, id: RequestId, offer: OfferId) {
        let connection = match node.peer(link) {
            Ok(peer) => Connection::new(node, link, peer.clone()),
            // It has come and gone, with so many others that it is forgotten.
            Err(_) => {
                if let Some(offered) = self.offers.get_mut(&offer) {
                    offered.offer.withdrawn(node, id);
                }
                return;
            }
        };
        self.connections.insert(link, (connection.clone(), Some(offer)));
        match self.offers.get_mut(&offer) {
            Some(offered) => offered.offer.joined(node, id, &connection),
            // The end point was dropped meanwhile.
            None => {
                let _ = node.disconnect(link);
                self.connections.remove(&link);
            }
        }
    }

    /// Wakes the tasks that wait, if anything has arrived since.
    fn wake(&mut self, node: &Node) {
        let moved = node.moved();
        if moved != self.moved {
            self.moved = moved;
            self.wakers.drain(..).for_each(Waker::wake);
        }
    }
}

/// A request that is gone already needs no answer.
fn refuse(node: &mut Node, id: RequestId, why: &str) {
    let _ = node.refuse(id, why);
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

    /// A manager for a node that exists. What was made with it stays; its events that are no
    /// end point's come from [`next_event`](Self::next_event).
    pub fn from_node(node: Node) -> Result<Self, BuildError> {
        let what = "a descriptor that wakes sleeping threads";
        let shared = node
            .share_with(Protocols::default())
            .map_err(|source| BuildError::Os { what, source })?;
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

    /// Takes a turn, unless another thread is taking one: arrivals are deposited, requests for end
    /// points answered. Returns how many packets were taken.
    pub fn poll(&self) -> Result<usize, Forked> {
        self.shared.try_poll()
    }

    /// [`Node::send`] (`h_send_msg`), without holding the lock while waiting.
    pub fn send(
        &self,
        ticket: &Ticket,
        data: &[u8],
        metadata: &[u8],
        timeout: Option<Duration>,
    ) -> Result<(), SendError> {
        self.shared.send(ticket, data, metadata, timeout)
    }

    /// [`Node::recv`] (`h_recv_block`), without holding the lock while waiting.
    pub fn recv(
        &self,
        queue: QueueId,
        timeout: Option<Duration>,
    ) -> Result<Notification, RecvError> {
        self.shared.recv(queue, timeout)
    }

    /// An event that is none of an end point's: of services that were offered on the node itself.
    pub fn next_event(&self) -> Option<Event> {
        let mut guard = self.shared.lock();
        let (node, protocols) = guard.parts();
        protocols.take_events(node);
        protocols.events.pop_front()
    }

    /// Which path a link takes, and why.
    pub fn explain(&self, link: LinkId) -> Result<String, LinkError> {
        self.lock().explain(link)
    }

    /// Polls, and so answers and deposits, while the application makes no calls. See
    /// [`SharedNode::start_progress`].
    pub fn start_progress(&self) -> io::Result<()> {
        self.shared.start_progress()
    }

    /// Stops the progress thread.
    pub fn stop_progress(&self) {
        self.shared.stop_progress();
    }

    /// Who may grow senders from this manager's seeds; the same user unless set. To be set before
    /// the first seed is made: the place of the socket follows from it.
    pub fn set_seed_access(&self, access: Access) -> Result<(), OfferError> {
        let mut guard = self.shared.lock();
        let (node, protocols) = guard.parts();
        if let Some(service) = protocols.seed_service.take() {
            node.stop_serving(&service);
        }
        protocols.seed_access = Some(access);
        Ok(())
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
        Ok(self.shared.wait_until(timeout, |node, _| {
            match end_points.iter().position(|end_point| end_point.is_ready_in(node)) {
                Some(i) => Look::Found(i),
                None => Look::Nothing,
            }
        })?)
    }

    /// Whether this is a child of the process that made the manager: end points do nothing there as
    /// they are dropped.
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

    /// To be called before waiting on the descriptor, after every end point was found empty.
    /// `true`: nothing waits, and whatever comes makes the descriptor readable, or wakes `waker`
    /// where another thread takes it; the waker left, each end point must be looked at once more.
    /// `false`: something has come; look again. Where a `try_send` found no room, room is
    /// something that comes.
    pub fn prepare_to_wait(&self, waker: Option<&Waker>) -> Result<bool, Forked> {
        if let Some(waker) = waker {
            self.leave_waker(waker);
        }
        let mut guard = self.shared.lock();
        let (node, protocols) = guard.parts();
        let before = node.moved();
        let taken = node.poll()?;
        protocols.after_poll(node);
        // What this turn took may be what the caller waits for.
        Ok(taken == 0 && node.moved() == before && node.prepare_to_wait()?)
    }

    /// Wakes `waker` when anything has come since, whichever thread takes it.
    pub(crate) fn leave_waker(&self, waker: &Waker) {
        let mut guard = self.shared.lock();
        let (node, protocols) = guard.parts();
        if protocols.wakers.is_empty() {
            protocols.moved = node.moved();
        }
        if !protocols.wakers.iter().any(|known| known.will_wake(waker)) {
            protocols.wakers.push(waker.clone());
        }
    }

    // ---- for the end points

    /// Registers a receiver.
    pub(crate) fn offer(&self, kind: Kind, offer: Box<dyn Offer>) -> OfferId {
        let mut guard = self.shared.lock();
        let (_, protocols) = guard.parts();
        protocols.offers.insert(kind, offer)
    }

    /// Decides for each peer whether it may grow a sender of this receiver.
    pub(crate) fn set_admission(&self, offer: OfferId, admission: Admission) {
        let mut guard = self.shared.lock();
        let before = match guard.parts().1.offers.get_mut(&offer) {
            Some(offered) => offered.admission.replace(admission),
            None => Some(admission),
        };
        // What it has captured may need the lock to go.
        drop(guard);
        drop(before);
    }

    /// A receiver is dropped: its seeds and names are worthless from now on, its connections are
    /// closed. Gives back the offer, for whoever keeps its state there; `None` in a forked child,
    /// which leaves all as it is.
    pub(crate) fn withdraw(&self, offer: OfferId) -> Option<Box<dyn Any>> {
        if self.is_forked() {
            return None;
        }
        let mut guard = self.shared.lock();
        let (node, protocols) = guard.parts();
        protocols.by_token.retain(|_, of| *of != offer);
        protocols.by_service.retain(|service, of| {
            if *of == offer {
                node.stop_serving(service);
            }
            *of != offer
        });
        let withdrawn = protocols.offers.remove(&offer);
        for id in protocols.joining.withdraw(offer) {
            refuse(node, id, "the receiver is gone");
        }
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
        // What the admission has captured may need the lock to go.
        drop(guard);
        withdrawn.map(|offered| offered.offer as Box<dyn Any>)
    }

    /// A seed of a receiver; each call makes another.
    pub(crate) fn seed(&self, offer: OfferId) -> Result<Seed, OfferError> {
        let mut guard = self.shared.lock();
        let (node, protocols) = guard.parts();
        let kind = protocols.offers.get_mut(&offer).expect("as long as its end point").kind;
        let service = match &protocols.seed_service {
            Some(service) => service.clone(),
            None => {
                let service = format!("seeds-{:016x}", node.id().0);
                let access = protocols.seed_access.unwrap_or(Access::SameUser);
                node.serve(&service, access, Accept::Ask)?;
                protocols.seed_service = Some(service.clone());
                service
            }
        };
        let service = match protocols.seed_access {
            None | Some(Access::SameUser) => service,
            // Found in the shared directory, below the owner's number.
            Some(_) => format!("{}@{service}", rustix::process::geteuid().as_raw()),
        };
        let token = Token(sys::random().expect("the system's random number generator"));
        protocols.by_token.insert(token, offer);
        Ok(Seed { kind, node: node.id(), token, service })
    }

    /// Lets a receiver be found by name.
    pub(crate) fn serve(
        &self,
        offer: OfferId,
        name: &str,
        access: Access,
    ) -> Result<(), OfferError> {
        let mut guard = self.shared.lock();
        let (node, protocols) = guard.parts();
        // As the peers' requests name it.
        let service = name.parse::<ServiceName>()?.to_string();
        node.serve(&service, access, Accept::Ask)?;
        protocols.by_service.insert(service, offer);
        Ok(())
    }

    /// Grows a sender: connects to its receiver, and reads the answer. Where that makes no sense
    /// the connection ends, and the error says what was `expected`.
    pub(crate) fn grow<R>(
        &self,
        target: Target<'_>,
        kind: Kind,
        body: &[u8],
        timeout: Option<Duration>,
        expected: &'static str,
        read: impl FnOnce(&Arc<Connection>, &[u8]) -> Option<R>,
    ) -> Result<(Arc<Connection>, R), GrowError> {
        let (service, token, of) = match target {
            Target::Seed(seed) if seed.kind != kind => {
                return Err(GrowError::Kind { wanted: kind, found: seed.kind });
            }
            Target::Seed(seed) => (seed.service.as_str(), seed.token, Some(seed.node)),
            Target::Service(name) => (name, Token::NONE, None),
        };
        let mut greeting = GREETING.to_vec();
        greeting.push(kind as u8);
        greeting.extend_from_slice(&token.0);
        greeting.extend_from_slice(body);
        let grown = self.connect_then(service, &greeting, timeout, |node, protocols, link| {
            let vanished = || GrowError::Connect(node::ConnectError::Vanished);
            let answer = node.greeting(link).map_err(|_| vanished())?.to_vec();
            let peer = node.peer(link).map_err(|_| vanished())?.clone();
            if let Some(wanted) = of.filter(|node| *node != peer.node) {
                let _ = node.disconnect(link);
                return Err(GrowError::OtherNode { wanted, found: peer.node });
            }
            let head = answer.split_at_checked(ANSWER_HEAD);
            match head {
                Some((head, body)) if head[..4] == ANSWER && head[4] == kind as u8 => {
                    let connection = Connection::new(node, link, peer);
                    protocols.connections.insert(link, (connection.clone(), None));
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

    /// Connects to a service, and polls meanwhile: it may be one of this very process, or its
    /// process may be growing a sender here. The link is the application's.
    pub fn connect(
        &self,
        service: &str,
        greeting: &[u8],
        timeout: Option<Duration>,
    ) -> Result<LinkId, GrowError> {
        self.connect_then(service, greeting, timeout, |_, _, link| link)
    }

    /// [`connect`](Self::connect), and something at once: before any other thread takes what comes
    /// over the link, or the news of its end.
    fn connect_then<R>(
        &self,
        service: &str,
        greeting: &[u8],
        timeout: Option<Duration>,
        then: impl FnOnce(&mut Node, &mut Protocols, LinkId) -> R,
    ) -> Result<R, GrowError> {
        let limit = timeout.unwrap_or(Duration::MAX);
        let token = self.shared.lock().begin_connect(service, greeting, limit)?;
        let mut then = Some(then);
        // The control plane ends it within the time limit, if it can.
        let limit = timeout.map(node::with_answer);
        let waited = self.shared.wait_until(limit, |node, protocols| {
            match (node.end_connect(token), &mut then) {
                (None, _) => Look::Nothing,
                (Some(Err(e)), _) => Look::Found(Err(e)),
                (Some(Ok(link)), then) => {
                    let then = then.take().expect("a link is found once");
                    Look::Found(Ok(then(node, protocols, link)))
                }
            }
        });
        match waited {
            Ok(Err(node::ConnectError::Control(control::ConnectError::Refused {
                text, ..
            }))) if !text.is_empty() => Err(GrowError::Refused(text)),
            Ok(connected) => Ok(connected?),
            Err(waited) => {
                self.shared.lock().give_up_connecting(token);
                Err(match waited {
                    Waited::Forked(e) => node::ConnectError::Forked(e),
                    Waited::Os(e) => node::ConnectError::Watch(e),
                    Waited::TimedOut => control::ConnectError::TimedOut(node::NO_WORD).into(),
                }
                .into())
            }
        }
    }

    /// The end points' connection over a link.
    pub(crate) fn connection(&self, link: LinkId) -> Option<Arc<Connection>> {
        let mut guard = self.shared.lock();
        guard.parts().1.connections.get(&link).map(|(connection, _)| connection.clone())
    }

    /// The connections that a receiver has now, by their links; `is_its` says which offers are its.
    pub(crate) fn connections_of(&self, is_its: impl Fn(OfferId) -> bool) -> Vec<Arc<Connection>> {
        let mut guard = self.shared.lock();
        let all = guard.parts().1.connections.values();
        let its = all.filter(|(_, of)| of.is_some_and(&is_its));
        let mut its: Vec<_> = its.map(|(connection, _)| connection.clone()).collect();
        its.sort_unstable_by_key(|connection| connection.link.index);
        its
    }

    /// Sends a peer away that broke a protocol's rules.
    pub(crate) fn expel(&self, link: LinkId, why: &str) {
        let mut guard = self.shared.lock();
        let (node, protocols) = guard.parts();
        protocols.expel(node, link, why);
    }

    /// The end of a connection is told to this offer from now on.
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

    /// A sender is dropped: its connection ends first, so that nothing comes for what `remove`
    /// takes away then. A forked child leaves all as it is.
    pub(crate) fn leave(&self, connection: &Connection, remove: impl FnOnce(&mut Node)) {
        if !self.is_forked() {
            self.end(connection);
            remove(&mut self.lock());
        }
    }
}

/// What a sender is grown from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Target<'a> {
    Seed(&'a Seed),
    Service(&'a str),
}

pub(crate) fn set_up(e: impl ToString) -> GrowError {
    GrowError::SetUp(e.to_string())
}
