//! The application's events: the reports of the control plane, in order, in bounded memory.

use super::Node;
use super::aperture::{ApertureEvent, ApertureId};
use crate::control::{
    self, ConnectError, ControlEvent, LinkToken, NewLink, Peer, RequestId, ServiceName, Wait,
};
use crate::interface::LinkId;
use crate::wire::{MetadataIndex, SlotIndex};
use core::fmt;
use core::time::Duration;
use std::collections::{HashMap, HashSet, VecDeque};
use std::string::String;
use std::vec::Vec;

/// The reason why a link ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "unstable-internals"), non_exhaustive)]
pub enum CloseReason {
    /// The peer closed it, and all its queued messages have left.
    Closed,
    /// The peer's process died.
    Died,
    /// The peer's process lives, and closed the connection without a goodbye: some of its messages
    /// did not leave; or a stream's sender, or a relay, went without marking its end.
    HungUp,
    /// The peer broke the rules, or data from another host was changed on the way, and this node
    /// closed the link.
    Misbehaved(String),
    /// The peer reports that this node broke the rules, and closed the link.
    Expelled,
    /// The peer disconnected this node because it did not take messages fast enough
    /// ([`WhenSlow::SendAway`](crate::protocol::WhenSlow::SendAway)); or a publisher went before it
    /// had sent everything, or left out the last samples.
    TooSlow,
    /// This process can no longer watch over its links, because the system refuses a resource to
    /// its housekeeping; the peer may live, and sees [`HungUp`](Self::HungUp).
    Unwatched,
}

/// The reason as the end of a sentence, behind a colon.
impl fmt::Display for CloseReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("it closed the connection"),
            Self::Died => f.write_str("its process died"),
            Self::HungUp => f.write_str("it hung up without saying that this was all"),
            // On the way from another host, a third party may be to blame.
            Self::Misbehaved(why) => write!(f, "this side sent it away: {why}"),
            Self::Expelled => f.write_str("it says that this side broke the rules"),
            Self::TooSlow => f.write_str(
                "it went, or sent this side away, before this side had taken everything: too slow \
                 for it",
            ),
            Self::Unwatched => f.write_str(
                "this process can no longer watch over its connections: the system refuses its \
                 housekeeping what it needs",
            ),
        }
    }
}

/// An event that the application may want to know or decide about.
#[derive(Clone, Debug)]
#[cfg_attr(not(feature = "unstable-internals"), non_exhaustive)]
pub enum Event {
    /// A peer wants to connect to a service that was offered with `Accept::Ask`. Answer with
    /// [`Node::accept`] or [`Node::refuse`]; without an answer the connection times out.
    Request {
        /// The name for the answer.
        id: RequestId,
        /// Its identity, from the kernel.
        peer: Peer,
        /// Its greeting.
        greeting: Vec<u8>,
    },
    /// A request was withdrawn before it was answered, or did not become a link afterwards.
    RequestGone {
        /// The request's name.
        id: RequestId,
    },
    /// A link from another node is there.
    Connected {
        /// Its name.
        link: LinkId,
        /// Its request, if it came by one.
        request: Option<RequestId>,
    },
    /// A link is gone. All messages that its peer had committed before have been taken.
    Closed {
        /// Its name, not used again for long.
        link: LinkId,
        /// The reason.
        reason: CloseReason,
        /// Queued messages that did not leave.
        unsent: usize,
    },
    /// The peer refused packets of this node because their ticket has been revoked: its key was
    /// changed, its entry armed again, or its slot [removed](Node::remove_slot). The ticket is of no
    /// more use, and a node that goes on sending with it, millions of times, is disconnected. It
    /// comes once for each key, after a packet was refused: not when the ticket is revoked.
    TicketRevoked {
        /// The link over which they were sent.
        link: LinkId,
        /// The ticket's slot.
        slot: SlotIndex,
        /// The ticket's metadata index.
        index: MetadataIndex,
    },
    /// An exported or held aperture has changed.
    Aperture {
        /// Its name.
        aperture: ApertureId,
        /// The change.
        what: ApertureEvent,
    },
}

/// Drops the events of other processes' links, requests and apertures that began and ended without
/// the application taking an event; returns their number. The events that stay are about current
/// objects, or about the end of objects that the application knows: so they are bounded by the
/// limits of links, requests and apertures, for any behaviour of peers.
pub(super) fn drop_what_came_to_nothing(events: &mut VecDeque<Event>) -> usize {
    let mut begun = (HashSet::new(), HashSet::new(), HashSet::new());
    let mut ended = (HashSet::new(), HashSet::new(), HashSet::new());
    for event in events.iter() {
        match event {
            Event::Connected { link, .. } => drop(begun.0.insert(*link)),
            Event::Closed { link, .. } if begun.0.contains(link) => drop(ended.0.insert(*link)),
            Event::Request { id, .. } => drop(begun.1.insert(*id)),
            Event::RequestGone { id } if begun.1.contains(id) => drop(ended.1.insert(*id)),
            Event::Aperture { aperture, what: ApertureEvent::Held } => {
                begun.2.insert(*aperture);
            }
            Event::Aperture { aperture, what: ApertureEvent::Revoked }
                if begun.2.contains(aperture) =>
            {
                ended.2.insert(*aperture);
            }
            _ => {}
        }
    }
    let before = events.len();
    // The application that answered a request hears that it became no link.
    let mut answered = Vec::new();
    for event in events.iter() {
        if let Event::Connected { link, request: Some(id) } = event
            && ended.0.contains(link)
        {
            answered.push(Event::RequestGone { id: *id });
        }
    }
    events.retain(|event| match event {
        Event::Connected { link, .. }
        | Event::Closed { link, .. }
        | Event::TicketRevoked { link, .. } => !ended.0.contains(link),
        Event::Request { id, .. } | Event::RequestGone { id } => !ended.1.contains(id),
        Event::Aperture { aperture, .. } => {
            !ended.0.contains(&aperture.link) && !ended.2.contains(aperture)
        }
    });
    let dropped = before - events.len();
    events.extend(answered);
    dropped
}

/// Most events that wait for a link which is being connected.
const EARLY_EVENTS_MAX: usize = 1024;

/// A link that a caller here is connecting.
#[derive(Debug, Default)]
pub(super) struct ConnectingLink {
    /// The result, until the caller takes it.
    ended: Option<Result<LinkId, ConnectError>>,
    /// Later events of the link: the caller hears of the link first.
    told: Vec<ControlEvent>,
}

/// The links that callers here are connecting.
#[derive(Debug, Default)]
pub(super) struct ConnectingLinks {
    pub links: HashMap<LinkToken, ConnectingLink>,
    /// Former names of links of this host among those, for links that were to lead to another host.
    asked: HashMap<LinkToken, LinkToken>,
}

/// The number of waiting events at which events without a result are dropped and counted: see
/// [`drop_what_came_to_nothing`].
pub(super) const EVENTS_MAX: usize = 4096;

impl Node {
    #[cold]
    #[inline(never)]
    pub(super) fn take_control_events(&mut self) {
        // Events after a link's end are delivered after it: a peer may connect anew while the rest
        // of its old rings is still being taken. Until then an event waits where it is counted to
        // its peer. So does an event without room in this turn: an application that takes its
        // events after each turn loses none, however many there are.
        let was_full = self.events.len() >= EVENTS_MAX;
        while self.leaving.links.is_empty()
            && (was_full || self.events.len() < EVENTS_MAX)
            && let Some(event) = self.inbox.take_next()
        {
            self.take_control_event(event);
        }
        self.control().events_taken();
    }

    pub(super) fn take_control_event(&mut self, event: ControlEvent) {
        if let ControlEvent::Connected(NewLink { token, asked: Some(asked), .. }) = &event
            && self.connecting.links.contains_key(asked)
        {
            self.connecting.asked.insert(*token, *asked);
        }
        if let Some(token) = event.token() {
            let token = self.connecting.asked.get(&token).copied().unwrap_or(token);
            if self.connecting.links.contains_key(&token) {
                return self.take_event_of_connecting(token, event);
            }
        }
        match event {
            ControlEvent::Request { id, peer, greeting } => {
                self.push_event(Event::Request { id, peer, greeting });
            }
            ControlEvent::RequestGone { id } => {
                self.push_event(Event::RequestGone { id });
            }
            // The caller no longer waits, and the link was there already when it gave up.
            ControlEvent::Connected(link) if link.initiated_by_us => {
                self.control().close(link.token);
            }
            ControlEvent::Connected(link) => {
                let (token, request) = (link.token, link.request);
                let installed = match self.check_link_count() {
                    Ok(()) => self.install_link(link),
                    Err(e) => {
                        self.control().close(token);
                        Err(e)
                    }
                };
                match (installed, request) {
                    (Ok(link), request) => self.push_event(Event::Connected { link, request }),
                    (Err(_), Some(id)) => self.push_event(Event::RequestGone { id }),
                    (Err(_), None) => {}
                }
            }
            ControlEvent::BulkOutgoing { token, lines } => self.add_bulk_outgoing(token, lines),
            ControlEvent::BulkIncoming { token, lines } => self.add_bulk_incoming(token, lines),
            ControlEvent::BulkRefused { .. } => {}
            // The caller no longer waits for it.
            ControlEvent::ConnectFailed { .. } => {}
            ControlEvent::TicketRevoked { token, slot, index } => {
                if let Some(index_of_link) = self.index_of(token)
                    && let Some(Some(link)) = self.links.get(index_of_link as usize)
                {
                    let (link, slot) = (link.id, SlotIndex(slot));
                    let index = MetadataIndex(index);
                    self.push_event(Event::TicketRevoked { link, slot, index });
                }
            }
            ControlEvent::ApertureHeld { token, number, pages } => {
                if let Some(id) = self.aperture_id(token, number) {
                    self.aperture_held(id, pages);
                    self.tell_aperture(id, ApertureEvent::Held);
                }
            }
            ControlEvent::ApertureReady { token, number } => {
                if let Some(id) = self.aperture_id(token, number)
                    && self.aperture_is_exported(id)
                {
                    self.tell_aperture(id, ApertureEvent::Ready);
                }
            }
            ControlEvent::ApertureRefused { token, number, why } => {
                if let Some(id) = self.aperture_id(token, number)
                    && self.aperture_refused(id, why)
                {
                    self.tell_aperture(id, ApertureEvent::Refused(why));
                }
            }
            ControlEvent::ApertureReleased { token, number } => {
                if let Some(id) = self.aperture_id(token, number)
                    && self.aperture_released(id)
                {
                    self.tell_aperture(id, ApertureEvent::Released);
                }
            }
            ControlEvent::ApertureRevoked { token, number } => {
                if let Some(id) = self.aperture_id(token, number)
                    && self.aperture_revoked(id)
                {
                    self.tell_aperture(id, ApertureEvent::Revoked);
                }
            }
            ControlEvent::Closed { token, reason } => {
                let reason = match reason {
                    control::LinkEnd::Graceful => CloseReason::Closed,
                    control::LinkEnd::Died => CloseReason::Died,
                    control::LinkEnd::HungUp => CloseReason::HungUp,
                    control::LinkEnd::Violation => self.of_violation(token),
                    control::LinkEnd::Expelled => CloseReason::Expelled,
                    control::LinkEnd::TooSlow => CloseReason::TooSlow,
                    control::LinkEnd::Unwatched => CloseReason::Unwatched,
                };
                if let Some(index) = self.index_of(token) {
                    self.begin_leaving(index, reason);
                }
            }
        }
    }

    /// A violation that the interface cannot judge.
    #[cold]
    fn of_violation(&mut self, token: LinkToken) -> CloseReason {
        if let Some(index) = self.index_of(token)
            && let Some(Some(link)) = self.links.get(index as usize)
            && let Some(host) = link.rx.host()
        {
            self.counters.links_closed_violation.add(1);
            let why = crate::transport::lock(&**host).violation();
            let why = why.unwrap_or_else(|| "it sent what no host sends".into());
            return CloseReason::Misbehaved(why);
        }
        CloseReason::Misbehaved("it sent nonsense on its control socket".into())
    }

    /// The link is used from the moment when its event is taken, in the order of all links: the
    /// first that leads to a node is its route.
    fn take_event_of_connecting(&mut self, token: LinkToken, event: ControlEvent) {
        let ended = match event {
            ControlEvent::Connected(link) => self.install_link(link),
            ControlEvent::ConnectFailed { error, .. } => Err(error),
            event => {
                // A link has a few of most events; but a peer can cause any number of events about
                // revoked tickets.
                let is_hint = matches!(event, ControlEvent::TicketRevoked { .. });
                if let Some(connecting) = self.connecting.links.get_mut(&token)
                    && (!is_hint || connecting.told.len() < EARLY_EVENTS_MAX)
                {
                    connecting.told.push(event);
                }
                return;
            }
        };
        if let Some(connecting) = self.connecting.links.get_mut(&token) {
            connecting.ended = Some(ended);
        }
        self.wake();
    }

    pub(super) fn aperture_id(&self, token: LinkToken, number: u32) -> Option<ApertureId> {
        let index = self.index_of(token)?;
        let link = self.links.get(index as usize)?.as_ref()?.id;
        Some(ApertureId { link, number })
    }

    pub(super) fn tell_aperture(&mut self, aperture: ApertureId, what: ApertureEvent) {
        self.push_event(Event::Aperture { aperture, what });
    }

    /// Whether connecting waits for a name that is not served yet.
    pub(crate) fn wait_for_names(&self) -> Wait {
        control::wait_of(&self.config)
    }

    /// Begins to connect; [`end_connect`](Self::end_connect) returns the result.
    pub(crate) fn begin_connect(
        &mut self,
        name: &str,
        greeting: &[u8],
        timeout: Option<Duration>,
        wait: Wait,
    ) -> Result<LinkToken, ConnectError> {
        self.check_fork()?;
        self.check_link_count()?;
        let timeout = timeout.unwrap_or(Duration::MAX);
        if control::is_of_other_host(name) {
            return self.begin_connect_host(name, greeting, timeout, wait);
        }
        let name: ServiceName = name.parse()?;
        let begun = self.control().begin_connect(&name, greeting, timeout, wait);
        if let Ok(token) = begun {
            self.connecting.links.insert(token, ConnectingLink::default());
        }
        begun
    }

    /// Begins to connect to a service of another host.
    #[cfg(feature = "tls")]
    fn begin_connect_host(
        &mut self,
        name: &str,
        greeting: &[u8],
        timeout: Duration,
        wait: Wait,
    ) -> Result<LinkToken, ConnectError> {
        let host = host_name(name)?;
        let token = self.control().begin_connect_host(&host, greeting, timeout, wait)?;
        self.connecting.links.insert(token, ConnectingLink::default());
        Ok(token)
    }

    #[cfg(not(feature = "tls"))]
    fn begin_connect_host(
        &mut self,
        name: &str,
        _: &[u8],
        _: Duration,
        _: Wait,
    ) -> Result<LinkToken, ConnectError> {
        Err(ConnectError::NoHosts(control::printable(name)))
    }

    /// The result, when it is known: within the time limit.
    pub(crate) fn end_connect(&mut self, token: LinkToken) -> Option<Result<LinkId, ConnectError>> {
        if self.inbox.is_pending() {
            self.take_control_events();
        }
        let ended = self.connecting.links.get_mut(&token)?.ended.take()?;
        let told = self.forget_connecting(token).map(|connecting| connecting.told);
        for event in told.into_iter().flatten() {
            self.take_control_event(event);
        }
        Some(ended)
    }

    fn forget_connecting(&mut self, token: LinkToken) -> Option<ConnectingLink> {
        self.connecting.asked.retain(|_, asked| *asked != token);
        self.connecting.links.remove(&token)
    }

    /// The caller no longer waits for the link.
    pub(crate) fn give_up_connecting(&mut self, token: LinkToken) {
        let ended = self.forget_connecting(token).and_then(|connecting| connecting.ended);
        self.control().give_up(token);
        // If it was there already, it is closed.
        match ended {
            Some(Ok(link)) => drop(self.disconnect(link)),
            _ => self.control().close(token),
        }
    }

    /// Keeps an event for the application.
    pub(super) fn push_event(&mut self, event: Event) {
        let dropped = keep_event(&mut self.events, &mut self.events_room, event);
        self.count_dropped_events(dropped);
    }

    pub(crate) fn count_panicked_protocol(&self) {
        self.counters.protocols_panicked.add(1);
    }

    pub(crate) fn count_dropped_events(&self, dropped: usize) {
        self.counters.events_dropped.add(dropped as u64);
    }
}

/// The error that connecting to `name` has if it cannot be the name of a service.
pub(crate) fn check_service_name(name: &str) -> Result<(), ConnectError> {
    if !control::is_of_other_host(name) {
        return Ok(name.parse::<ServiceName>().map(|_| ())?);
    }
    #[cfg(feature = "tls")]
    return host_name(name).map(|_| ());
    #[cfg(not(feature = "tls"))]
    Err(ConnectError::NoHosts(control::printable(name)))
}

#[cfg(feature = "tls")]
fn host_name(name: &str) -> Result<control::hosts::HostName, ConnectError> {
    name.parse().map_err(|e: control::NameError| ConnectError::Host {
        name: control::printable(name),
        error: e.into(),
    })
}

/// Keeps an event for the application; returns how many were dropped. The memory for events that are
/// never taken is bounded; but no peer's events push out another's. `room`: at this many, those that
/// came to nothing are looked for; at first 0.
pub(crate) fn keep_event(events: &mut VecDeque<Event>, room: &mut usize, event: Event) -> usize {
    let mut dropped = 0;
    if events.len() >= EVENTS_MAX {
        // A peer can cause any number of these: they push out only each other.
        let is_hint = |event: &Event| matches!(event, Event::TicketRevoked { .. });
        if let Some(at) = events.iter().position(is_hint) {
            dropped = 1;
            events.remove(at);
        } else if is_hint(&event) {
            return 1;
        }
    }
    if events.len() >= (*room).max(EVENTS_MAX) {
        dropped += drop_what_came_to_nothing(events);
        *room = (2 * events.len()).max(EVENTS_MAX);
    }
    events.push_back(event);
    dropped
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use super::*;
    use crate::config::Config;
    use std::format;

    #[test]
    fn what_strangers_begin_and_end_pushes_no_other_event_out_and_is_not_kept() {
        let dir = std::env::temp_dir().join(format!("hamlyn-pushed-{}", std::process::id()));
        let mut node = Node::with_config(Config::default().dir(dir)).unwrap();
        let named = |index| LinkId { index, generation: 0 };
        node.push_event(Event::Closed { link: named(1), reason: CloseReason::Died, unsent: 0 });
        node.push_event(Event::Connected { link: named(2), request: None });
        for i in 0..EVENTS_MAX as u32 {
            let aperture = ApertureId { link: named(2), number: 2 * i + 1 };
            for what in [ApertureEvent::Held, ApertureEvent::Revoked] {
                node.push_event(Event::Aperture { aperture, what });
            }
            let link = named(3 + i);
            node.push_event(Event::Connected { link, request: None });
            node.push_event(Event::Closed { link, reason: CloseReason::Closed, unsent: 0 });
            assert!(node.events.len() <= EVENTS_MAX);
        }
        let first = node.events.pop_front();
        assert!(matches!(first, Some(Event::Closed { link, .. }) if link == named(1)));
        let second = node.events.pop_front();
        assert!(matches!(second, Some(Event::Connected { link, .. }) if link == named(2)));
        let counters = node.counters();
        let dropped = counters.iter().find(|row| row.0 == "events_dropped").unwrap().1;
        assert_eq!(dropped + node.events.len() as u64, 4 * EVENTS_MAX as u64);
        // The application that answered a request hears that it became no link.
        node.events.clear();
        let (link, id) = (named(7), RequestId(9));
        node.push_event(Event::Connected { link, request: Some(id) });
        node.push_event(Event::Closed { link, reason: CloseReason::Closed, unsent: 0 });
        drop_what_came_to_nothing(&mut node.events);
        let left: Vec<Event> = node.events.drain(..).collect();
        assert!(matches!(left[..], [Event::RequestGone { id: gone }] if gone == id), "{left:?}");
    }

    #[test]
    fn revoked_tickets_push_no_other_event_out() {
        let dir = std::env::temp_dir().join(format!("hamlyn-hints-{}", std::process::id()));
        let mut node = Node::with_config(Config::default().dir(dir)).unwrap();
        let link = LinkId { index: 1, generation: 0 };
        node.push_event(Event::Closed { link, reason: CloseReason::Died, unsent: 0 });
        for slot in 0..2 * EVENTS_MAX as u32 {
            let (slot, index) = (SlotIndex(slot), MetadataIndex(0));
            node.push_event(Event::TicketRevoked { link, slot, index });
        }
        node.push_event(Event::Connected { link, request: None });
        assert_eq!(node.events.len(), EVENTS_MAX);
        assert!(matches!(node.events.pop_front(), Some(Event::Closed { .. })));
        assert!(matches!(node.events.pop_back(), Some(Event::Connected { .. })));
    }
}
