//! The state that a manager keeps under its node's lock: receivers from which senders may be grown,
//! requests, and connections.

use super::guarded::Guarded;
use super::{Connection, GREETING, GREETING_HEAD, Protocol, Wakers, answer_head};
use crate::control::{AcceptError, Access, Peer, RefusedBy, RequestId};
use crate::interface::{LinkId, guarded};
use crate::node::{ApertureEvent, Attached, CloseReason, Event, Node, keep_event};
use crate::os::sys;
use crate::protocol::byte_stream::Listening;
use crate::protocol::call::{ClientState, ServerState};
use crate::protocol::joining::{Asking, Joining};
use crate::protocol::publish::{Behind, PublisherState};
use crate::protocol::seed::{KIND_BYTES, Kind, Token};
use core::ops::{Deref, DerefMut};
use core::sync::atomic::Ordering;
#[cfg(feature = "tokio")]
use core::task::Waker;
use std::boxed::Box;
use std::collections::{HashMap, VecDeque};
use std::format;
use std::string::String;
use std::sync::Arc;
use std::vec::Vec;

/// A waiter without a thread, which can tell whether its condition holds.
pub(crate) trait Wakeable: Send + Sync {
    /// Wakes its tasks if their condition holds. Called under the lock; must not wait.
    fn look(&self, node: &mut Node) -> StillWaits;
    /// Wakes its tasks: no thread polls for them any more.
    #[cfg_attr(not(feature = "tokio"), allow(dead_code))]
    fn give_up(&self);
}

/// The events that a waiter still needs after a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StillWaits {
    /// No event: the waiter has to be listed again.
    Not,
    /// An arrival, or a link that comes or goes.
    ForNews,
    /// Room in a link: the waiter looks in each turn.
    ForRoom,
}

/// The state of an end point at its manager; it finds it anew for each message. Those whose messages
/// are counted in instructions are found without a call through a table.
pub(in crate::protocol) enum Offering {
    Client(Box<ClientState>),
    Server(Box<ServerState>),
    Bytes(Box<Listening>),
    Publisher(Box<PublisherState>),
    Other(Box<Guarded>),
}

impl Deref for Offering {
    type Target = dyn Protocol;
    fn deref(&self) -> &Self::Target {
        match self {
            Self::Client(offer) => &**offer,
            Self::Server(offer) => &**offer,
            Self::Bytes(offer) => &**offer,
            Self::Publisher(offer) => &**offer,
            Self::Other(offer) => &**offer,
        }
    }
}

impl DerefMut for Offering {
    fn deref_mut(&mut self) -> &mut Self::Target {
        match self {
            Self::Client(offer) => &mut **offer,
            Self::Server(offer) => &mut **offer,
            Self::Bytes(offer) => &mut **offer,
            Self::Publisher(offer) => &mut **offer,
            Self::Other(offer) => &mut **offer,
        }
    }
}

/// Decides whether a peer may grow a sender; a refusal's reason is sent to the peer.
pub(crate) type AdmissionCheck = Box<dyn FnMut(&Peer) -> Result<(), String> + Send>;

/// Names an offer of one manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct OfferId {
    pub(super) index: usize,
    pub(super) number: u64,
}

#[cfg(test)]
impl OfferId {
    /// An identifier that differs from those of all other indexes.
    pub(crate) fn of(index: usize) -> Self {
        Self { index, number: 1 }
    }
}

/// The offers, by place.
#[derive(Default)]
pub(super) struct Offers {
    pub(super) places: Vec<Option<OfferedService>>,
    pub(super) next: u64,
}

impl Offers {
    pub(super) fn insert(&mut self, kind: Kind, offer: Offering) -> OfferId {
        self.next += 1;
        let number = self.next;
        let offered = Some(OfferedService { number, kind, offer, admission: None });
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
    pub(super) fn get_mut(&mut self, id: &OfferId) -> Option<&mut OfferedService> {
        self.places.get_mut(id.index)?.as_mut().filter(|offered| offered.number == id.number)
    }

    pub(super) fn remove(&mut self, id: &OfferId) -> Option<OfferedService> {
        self.get_mut(id)?;
        self.places[id.index].take()
    }
}

pub(super) struct OfferedService {
    pub(super) number: u64,
    pub(super) kind: Kind,
    pub(super) offer: Offering,
    pub(super) admission: Option<AdmissionCheck>,
}

/// The manager's state under the node's lock.
#[derive(Default)]
pub(crate) struct Protocols {
    pub(super) offers: Offers,
    pub(super) by_token: HashMap<Token, OfferId>,
    pub(super) by_service: HashMap<String, OfferId>,
    pub(super) joining: Joining,
    pub(super) connections: HashMap<LinkId, (Arc<Connection>, Option<OfferId>)>,
    /// Offers that are called after each turn.
    pub(super) polled: Vec<OfferId>,
    /// Events for the application.
    pub(super) events: VecDeque<Event>,
    events_room: usize,
    /// The service through which seeds are grown, with the user who serves it; and its access.
    pub(super) seed_service: Option<(String, u32)>,
    pub(super) seed_access: Option<Access>,
    pub(super) wakers: Wakers,
    pub(super) moved: u64,
    /// Waiters whose condition they alone can check, each once.
    waiting: Vec<Arc<dyn Wakeable>>,
    waiting_moved: u64,
    waits_for_room: bool,
    /// Publishers with subscribers that are behind.
    pub(in crate::protocol) behind: Behind,
    /// Tasks that sleep on the node's descriptor, and must arm again when another has slept.
    #[cfg(feature = "tokio")]
    pub(in crate::protocol) sleepers: Vec<Waker>,
    /// The value of [`Node::moved`] when they last heard of another thread's poll.
    #[cfg(feature = "tokio")]
    sleepers_moved: u64,
}

/// The answer to a sender whose seed belongs to no receiver here.
pub(crate) const NOT_OFFERED: &str =
    "the seed is not, or no longer, one of a receiver of this process";

impl Attached for Protocols {
    #[inline]
    fn after_poll(&mut self, node: &mut Node) {
        if node.has_events() {
            self.take_events(node);
        }
        if !self.polled.is_empty() {
            self.call_polled(node);
        }
        #[cfg(feature = "tokio")]
        self.tell_sleepers(node);
        self.after_look(node);
    }

    #[inline]
    fn after_look(&mut self, node: &mut Node) {
        if !self.behind.is_empty() {
            self.look_at_behind(node);
        }
        if !self.wakers.is_empty() {
            self.wake(node);
        }
        if !self.waiting.is_empty() && (self.waits_for_room || node.moved() != self.waiting_moved) {
            self.look_at_waiting(node);
        }
    }

    #[inline]
    fn after_sleep(&mut self) {
        #[cfg(feature = "tokio")]
        self.sleepers.iter().for_each(Waker::wake_by_ref);
    }

    #[inline]
    fn waiting(&self) -> usize {
        self.wakers.len() + self.waiting.len()
    }
}

macro_rules! states {
    ($($get:ident: $kind:ident($state:ty);)*) => {
        /// The state of an end point, which is its offer.
        impl Protocols {
            $(#[inline]
            pub(in crate::protocol) fn $get(&mut self, id: OfferId) -> Option<&mut $state> {
                match &mut self.offers.get_mut(&id)?.offer {
                    Offering::$kind(state) => Some(state),
                    _ => None,
                }
            })*
        }
    };
}

states! {
    client: Client(ClientState);
    server: Server(ServerState);
    publisher: Publisher(PublisherState);
}

impl Protocols {
    /// A polling thread may take the signal that would have woken the tasks that sleep on the
    /// descriptor, together with its news; and the signal's sender sends no other before they have
    /// armed again.
    #[cfg(feature = "tokio")]
    #[inline]
    fn tell_sleepers(&mut self, node: &Node) {
        if !self.sleepers.is_empty() && node.moved() != self.sleepers_moved {
            self.sleepers_moved = node.moved();
            self.sleepers.iter().for_each(Waker::wake_by_ref);
        }
    }

    /// Registers an end point's state.
    pub(super) fn add(&mut self, kind: Kind, offer: Offering) -> OfferId {
        let takes_turns = offer.takes_turns();
        let id = self.offers.insert(kind, offer);
        if takes_turns {
            self.polled.push(id);
        }
        id
    }

    /// Removes it.
    pub(super) fn remove(&mut self, id: OfferId) -> Option<OfferedService> {
        self.polled.retain(|polled| *polled != id);
        self.offers.remove(&id)
    }

    #[inline(never)]
    fn call_polled(&mut self, node: &mut Node) {
        let mut has_panicked = false;
        for id in &self.polled {
            if let Some(offered) = self.offers.get_mut(id) {
                offered.offer.after_poll(node);
                has_panicked |= offered.has_panicked();
            }
        }
        if has_panicked {
            self.end_panicked(node);
        }
    }

    /// The state of a seat.
    #[inline]
    pub(super) fn state<P: Protocol>(&mut self, id: OfferId) -> &mut P {
        let state = match self.offers.get_mut(&id) {
            Some(OfferedService { offer: Offering::Other(guarded), .. }) => guarded.state(),
            _ => None,
        };
        state.expect("as long as its seat, and of its type")
    }

    /// Hides a receiver; returns its names, which the caller has to give up.
    pub(super) fn hide(&mut self, node: &mut Node, offer: OfferId) -> Vec<String> {
        self.by_token.retain(|_, of| *of != offer);
        let served = self.by_service.extract_if(|_, of| *of == offer);
        let served = served.map(|(service, _)| service).collect();
        for id in self.joining.withdraw(offer) {
            refuse(node, id, RefusedBy::Ending, "the receiver is gone");
        }
        served
    }

    /// Whether it belongs to a server that drains.
    pub(super) fn drains(&mut self, offer: OfferId) -> bool {
        self.server(offer).is_some_and(|server| server.is_draining())
    }

    /// Ends a connection that its end point no longer uses.
    pub(in crate::protocol) fn close(&mut self, node: &mut Node, link: LinkId) {
        if let Some((connection, _)) = self.connections.remove(&link) {
            let _ = connection.ended.set(CloseReason::Closed);
        }
        let _ = node.disconnect(link);
    }

    /// Disconnects a peer that broke a protocol's rules.
    #[cold]
    pub(crate) fn expel(&mut self, node: &mut Node, link: LinkId, why: &str) {
        node.send_away(link, why);
        self.sent_away(node, link, CloseReason::Misbehaved(why.into()));
    }

    /// The same for a peer that does not keep up.
    pub(crate) fn send_away_slow(&mut self, node: &mut Node, link: LinkId, why: &str) {
        node.send_away_slow(link, why);
        self.sent_away(node, link, CloseReason::Misbehaved(why.into()));
    }

    /// Ends all connections of a receiver; the peers see that it has not closed.
    pub(in crate::protocol) fn hang_up(&mut self, node: &mut Node, offer: OfferId) {
        let its = self.connections.iter().filter(|(_, (_, of))| *of == Some(offer));
        let links: Vec<LinkId> = its.map(|(link, _)| *link).collect();
        for link in links {
            node.hang_up(link);
            self.sent_away(node, link, CloseReason::HungUp);
        }
    }

    fn sent_away(&mut self, node: &mut Node, link: LinkId, reason: CloseReason) {
        if let Some((connection, offer)) = self.connections.remove(&link) {
            let _ = connection.ended.set(reason);
            if let Some(offered) = offer.and_then(|offer| self.offers.get_mut(&offer)) {
                offered.offer.left(node, &connection);
                if offered.has_panicked() {
                    self.end_panicked(node);
                }
            }
        }
        self.after_look(node);
    }

    #[cold]
    pub(in crate::protocol) fn take_events(&mut self, node: &mut Node) {
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
                        // Another request has its place.
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
                event @ (Event::TicketRevoked { .. } | Event::Aperture { .. }) => {
                    self.take_event_of_link(node, event);
                }
            }
        }
        if self.joining.is_anybody_waiting() {
            self.ask_waiting(node);
        }
        self.end_panicked(node);
    }

    /// Passes an event of a link to the end point that owns the link, and otherwise to the
    /// application.
    fn take_event_of_link(&mut self, node: &mut Node, event: Event) {
        let link = match &event {
            Event::Aperture { aperture, .. } => aperture.link,
            Event::TicketRevoked { link, .. } => *link,
            _ => return self.keep(node, event),
        };
        let Some((connection, owner)) = self.connections.get(&link).cloned() else {
            return self.keep(node, event);
        };
        let owner = owner.and_then(|owner| self.offers.get_mut(&owner));
        let event = match owner {
            Some(offered) => offered.offer.told(node, &connection, event),
            None => Some(event),
        };
        match event {
            None => {}
            Some(Event::Aperture { aperture, what }) => {
                // Of an end point that looks for itself; the peer may export anything there.
                if what == ApertureEvent::Held && !self.wants_aperture(node, link) {
                    let _ = node.release_aperture(aperture);
                }
                // A subscriber has mapped a publisher's pool, or has not.
                if let Some((_, Some(offer))) = self.connections.get(&link) {
                    self.tell_publisher(node, *offer, link, what);
                }
            }
            Some(other) => self.keep(node, other),
        }
    }

    /// Whether the end point of a link uses the aperture that the link holds.
    pub(super) fn wants_aperture(&self, node: &Node, link: LinkId) -> bool {
        let held = node.apertures_held().filter(|aperture| aperture.link == link).count();
        let takes = |of: &(Arc<Connection>, _)| of.0.takes_aperture.load(Ordering::Relaxed);
        held <= 1 && self.connections.get(&link).is_some_and(takes)
    }

    pub(super) fn keep(&mut self, node: &mut Node, event: Event) {
        // Another thread than the one that took it from the node may be waiting for events.
        node.wake();
        let dropped = keep_event(&mut self.events, &mut self.events_room, event);
        node.count_dropped_events(dropped);
    }

    /// Answers a request for an end point; returns a request that is the application's.
    pub(super) fn answer(
        &mut self,
        node: &mut Node,
        id: RequestId,
        peer: Peer,
        greeting: Vec<u8>,
    ) -> Option<Event> {
        let named = self.by_service.get(&peer.service).copied();
        let for_seeds = self.seed_service.as_ref().is_some_and(|(name, _)| *name == peer.service);
        if named.is_none() && !for_seeds {
            return Some(Event::Request { id, peer, greeting });
        }
        let user = peer.user();
        let decided = self.wanted(&peer, &greeting, named).and_then(|offer| {
            let asking = Asking { id, peer, greeting };
            let waits = match self.joining.has_room(offer, &user)
                && !self.joining.is_waiting(offer, &user)
            {
                true => self.admit(node, offer, asking),
                false => Some(asking),
            };
            match waits.map(|asking| self.joining.wait(asking, offer)) {
                Some(Err(_)) => Err((
                    RefusedBy::Places,
                    "too many of this user want a place at the same time".into(),
                )),
                _ => Ok(()),
            }
        });
        if let Err((by, why)) = decided {
            refuse(node, id, by, &why);
        }
        None
    }

    /// Decides about the waiting requests whose turn has come.
    #[cold]
    pub(super) fn ask_waiting(&mut self, node: &mut Node) {
        let mut before = 0;
        while let Some((offer, asking)) = self.joining.next(&mut before) {
            if let Some(asking) = self.admit(node, offer, asking) {
                self.joining.put_back(&mut before, offer, asking);
            }
        }
    }

    /// Decides about a request. Returns it if there is no place now, and may be one soon.
    pub(super) fn admit(
        &mut self,
        node: &mut Node,
        offer: OfferId,
        asking: Asking,
    ) -> Option<Asking> {
        let Asking { id, peer, greeting } = &asking;
        let (id, body) = (*id, &greeting[GREETING_HEAD..]);
        if self.drains(offer) {
            refuse(node, id, RefusedBy::Ending, "the server is about to close");
            return None;
        }
        let Some(offered) = self.offers.get_mut(&offer) else {
            refuse(node, id, RefusedBy::Ending, "the receiver is gone");
            return None;
        };
        let now_ns = sys::monotonic_ns();
        let mut place = offered.offer.check_place(peer, body);
        if place.is_err()
            && let Some(slow) = self.joining.give_way(offer, &peer.user(), now_ns)
        {
            offered.offer.withdrawn(node, slow);
            place = offered.offer.check_place(peer, body);
        }
        if place.is_err() && self.joining.is_anybody_half(offer) {
            return Some(asking);
        }
        let admitted = place.map_err(|why| (RefusedBy::Places, why)).and_then(|()| {
            let admitted = offered.offer.admit(node, id, peer, body);
            admitted.map_err(|why| (RefusedBy::EndPoint, why))
        });
        match admitted {
            Ok(body) => {
                let answer = [&answer_head(offered.kind)[..], &body].concat();
                self.joining.enter(id, offer, peer.user(), now_ns);
                // A peer that is gone already needs no answer.
                if let Err(e) = node.accept(id, &answer) {
                    self.joining.exit(id);
                    offered.offer.withdrawn(node, id);
                    if matches!(e, AcceptError::GreetingTooLong(_)) {
                        refuse(node, id, RefusedBy::EndPoint, "the receiver's answer is too long");
                    }
                }
            }
            Err((by, why)) => refuse(node, id, by, &why),
        }
        None
    }

    /// The end point that a peer wants, if the peer's user may have it.
    pub(super) fn wanted(
        &mut self,
        peer: &Peer,
        greeting: &[u8],
        named: Option<OfferId>,
    ) -> Result<OfferId, (RefusedBy, String)> {
        let is_not_for_it = |why: String| (RefusedBy::EndPoint, why);
        if greeting.len() < GREETING_HEAD || greeting[..4] != GREETING {
            let why = "this is an end point, and the greeting is not that of a sender";
            return Err(is_not_for_it(why.into()));
        }
        let (head, _) = greeting.split_at(GREETING_HEAD);
        let (kind, secret) = head[GREETING.len()..].split_at(KIND_BYTES);
        let (mut number, mut token) = ([0; KIND_BYTES], Token::NONE);
        number.copy_from_slice(kind);
        token.0.copy_from_slice(secret);
        let kind = Kind::from_bytes(number);
        let found = match named {
            Some(offer) => Some(offer),
            None => self.by_token.get(&token).copied(),
        };
        let found = found.and_then(|offer| Some((offer, self.offers.get_mut(&offer)?)));
        let (offer, offered) = found.ok_or_else(|| is_not_for_it(NOT_OFFERED.into()))?;
        if offered.kind != kind {
            let why = format!("the receiver is of kind {}, the sender of {kind}", offered.kind);
            return Err(is_not_for_it(why));
        }
        if let Some(admission) = &mut offered.admission {
            let admitted = guarded(|| admission(peer));
            let admitted = admitted.unwrap_or_else(|_| Err("the admission has failed".into()));
            admitted.map_err(|why| (RefusedBy::Application, why))?;
        }
        Ok(offer)
    }

    pub(super) fn join(&mut self, node: &mut Node, link: LinkId, id: RequestId, offer: OfferId) {
        let connection = match node.peer(link) {
            Ok(peer) => Connection::new(node, link, peer.clone()),
            // It has come and gone, together with so many others that it is forgotten.
            Err(_) => {
                if let Some(offered) = self.offers.get_mut(&offer) {
                    offered.offer.withdrawn(node, id);
                }
                return;
            }
        };
        self.connections.insert(link, (connection.clone(), Some(offer)));
        match self.offers.get_mut(&offer) {
            Some(offered) => {
                offered.offer.joined(node, id, &connection);
                self.settle(node, offer);
            }
            // The end point was dropped meanwhile.
            None => {
                let _ = node.disconnect(link);
                self.connections.remove(&link);
            }
        }
    }

    /// Lists a waiter that has just found nothing; it is looked at until it no longer waits.
    pub(crate) fn list(&mut self, waiting: Arc<dyn Wakeable>) {
        self.waiting.push(waiting);
    }

    /// The listed waiters wait for room, too.
    pub(crate) fn look_soon(&mut self) {
        self.waits_for_room = true;
    }

    /// Wakes all listed waiters: no thread polls for them any more.
    #[cfg(feature = "tokio")]
    pub(crate) fn give_up(&mut self) {
        self.waiting.iter().for_each(|waiting| waiting.give_up());
        self.wakers.wake();
    }

    #[inline(never)]
    pub(crate) fn look_at_waiting(&mut self, node: &mut Node) {
        // Packets that a look takes are seen by the next look.
        self.waiting_moved = node.moved();
        self.waits_for_room = false;
        let mut i = 0;
        while let Some(waiting) = self.waiting.get(i) {
            match waiting.look(node) {
                StillWaits::Not => {
                    self.waiting.swap_remove(i);
                    continue;
                }
                StillWaits::ForNews => {}
                StillWaits::ForRoom => self.waits_for_room = true,
            }
            i += 1;
        }
    }

    /// Wakes the tasks that wait, if anything has arrived since.
    pub(super) fn wake(&mut self, node: &Node) {
        let moved = node.moved();
        if moved != self.moved {
            self.moved = moved;
            self.wakers.wake();
        }
    }
}

/// A request that is gone already needs no answer.
pub(super) fn refuse(node: &mut Node, id: RequestId, by: RefusedBy, why: &str) {
    let _ = node.refuse_as(id, by, why);
}
