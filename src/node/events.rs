//! What the application is told: what the control plane has said, in order, and as much of it as there
//! is room for.

use super::Node;
use super::aperture::{ApertureEvent, ApertureId};
use crate::control::{
    self, ConnectError, ControlEvent, LinkToken, NewLink, Peer, RequestId, ServiceName, Wait,
};
use crate::interface::LinkId;
use crate::wire::{MetadataIndex, SlotIndex};
use core::fmt;
use core::time::Duration;
use std::collections::{HashSet, VecDeque};
use std::string::String;
use std::vec::Vec;

/// Why a link ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "unstable-internals"), non_exhaustive)]
pub enum CloseReason {
    /// The peer closed it, and everything that it had queued has left.
    Closed,
    /// The peer's process died.
    Died,
    /// The peer's process lives, and closed the connection without a goodbye: it had messages
    /// that did not leave; or a stream's sender, or a relay, went without saying that this was all.
    HungUp,
    /// The peer broke the rules, or what came from another host was changed on the way, and this node
    /// closed the link.
    Misbehaved(String),
    /// The peer says that this node broke the rules, and closed the link.
    Expelled,
    /// The peer sent this node away, which did not take what it was sent as fast as the peer wanted
    /// ([`WhenSlow::SendAway`](crate::protocol::WhenSlow::SendAway)); or it was a publisher that went
    /// before it had sent everything, or had left out the last.
    TooSlow,
    /// This process can no longer watch over its links, because the system refuses its housekeeping
    /// what it needs; the peer may live, and sees [`HungUp`](Self::HungUp).
    Unwatched,
}

/// As the end of a sentence, behind a colon.
impl fmt::Display for CloseReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("it closed the connection"),
            Self::Died => f.write_str("its process died"),
            Self::HungUp => f.write_str("it hung up without saying that this was all"),
            // Of another host, somebody between may be to blame.
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

/// Something that the application may want to know or decide.
#[derive(Clone, Debug)]
#[cfg_attr(not(feature = "unstable-internals"), non_exhaustive)]
pub enum Event {
    /// Somebody wants to connect to a service that was offered with `Accept::Ask`. Answer with
    /// [`Node::accept`] or [`Node::refuse`]; without an answer the connection times out.
    Request {
        /// What to name in the answer.
        id: RequestId,
        /// Who, as the kernel says.
        peer: Peer,
        /// What it sent along.
        greeting: Vec<u8>,
    },
    /// A request was withdrawn before it was answered, or did not become a link afterwards.
    RequestGone {
        /// Which.
        id: RequestId,
    },
    /// A link from another node is there.
    Connected {
        /// Its name.
        link: LinkId,
        /// The request that it comes from, if it was asked for.
        request: Option<RequestId>,
    },
    /// A link is gone. What its peer had committed before has been taken.
    Closed {
        /// Its name, not used again for long.
        link: LinkId,
        /// Why.
        reason: CloseReason,
        /// Queued messages that did not leave.
        unsent: usize,
    },
    /// The peer refused packets of this node because a ticket of its has been revoked: it is of no
    /// use any more.
    TicketRevoked {
        /// The link over which they were sent.
        link: LinkId,
        /// The ticket's slot.
        slot: SlotIndex,
        /// The ticket's metadata index.
        index: MetadataIndex,
    },
    /// Something became of an aperture, exported or held.
    Aperture {
        /// Which.
        aperture: ApertureId,
        /// What.
        what: ApertureEvent,
    },
}

/// Drops the events of links, requests and apertures of others' that began and ended while the
/// application took none; says how many. Those that are left are of what there is, or of the end of
/// what the application knows: as many as there may be links, requests and apertures, whatever peers
/// do.
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
    // Whoever answered a request hears that nothing came of it.
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

/// A link that somebody here is connecting.
#[derive(Debug, Default)]
pub(super) struct Connecting {
    /// What became of it, until that is asked for.
    ended: Option<Result<LinkId, ConnectError>>,
    /// What was told of the link since then: whoever connects hears of the link first.
    told: Vec<ControlEvent>,
}

/// Events that wait for the application before those are dropped, and counted, that came to
/// nothing: see [`drop_what_came_to_nothing`].
pub(super) const EVENTS_MAX: usize = 4096;

impl Node {
    #[cold]
    #[inline(never)]
    pub(super) fn take_control_events(&mut self) {
        // What happened after a link's end is told after it: a peer may connect anew while what it
        // had left in its rings is still being taken. Until then it waits where it is counted to
        // whose it is. So does what there is no room for in this turn: whoever takes what it is told
        // after each turn loses nothing, however much there is.
        let was_full = self.events.len() >= EVENTS_MAX;
        while self.leaving.is_empty()
            && (was_full || self.events.len() < EVENTS_MAX)
            && let Some(event) = self.inbox.take_next()
        {
            self.take_control_event(event);
        }
        self.control().events_taken();
    }

    pub(super) fn take_control_event(&mut self, event: ControlEvent) {
        if let ControlEvent::Connected(NewLink { token, asked: Some(asked), .. }) = &event
            && self.connecting.contains_key(asked)
        {
            self.asked.insert(*token, *asked);
        }
        if let Some(token) = event.token() {
            let token = self.asked.get(&token).copied().unwrap_or(token);
            if self.connecting.contains_key(&token) {
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
            // Nobody waits for it any more, and it was there already when that was said.
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
            // Nobody waits for it any more.
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

    /// What broke the rules was not the interface's to judge.
    #[cold]
    fn of_violation(&mut self, token: LinkToken) -> CloseReason {
        #[cfg(feature = "tls")]
        if let Some(index) = self.index_of(token)
            && let Some(Some(link)) = self.links.get(index as usize)
            && let Some(host) = link.rx.host()
        {
            self.counters.links_closed_violation.add(1);
            let why = control::hosts::lock(host).violation();
            let why = why.unwrap_or_else(|| "it sent what no host sends".into());
            return CloseReason::Misbehaved(why);
        }
        let _ = token;
        CloseReason::Misbehaved("it sent nonsense on its control socket".into())
    }

    /// The link is used from the moment at which it is told of, in the order of all links: the first
    /// that leads to a node is its route.
    fn take_event_of_connecting(&mut self, token: LinkToken, event: ControlEvent) {
        let ended = match event {
            ControlEvent::Connected(link) => self.install_link(link),
            ControlEvent::ConnectFailed { error, .. } => Err(error),
            event => {
                // Of most events a link has a few; of revoked tickets it is told as often as its
                // peer likes.
                let is_hint = matches!(event, ControlEvent::TicketRevoked { .. });
                if let Some(connecting) = self.connecting.get_mut(&token)
                    && (!is_hint || connecting.told.len() < EARLY_EVENTS_MAX)
                {
                    connecting.told.push(event);
                }
                return;
            }
        };
        if let Some(connecting) = self.connecting.get_mut(&token) {
            connecting.ended = Some(ended);
        }
        self.wake_waiters();
    }

    pub(super) fn aperture_id(&self, token: LinkToken, number: u32) -> Option<ApertureId> {
        let index = self.index_of(token)?;
        let link = self.links.get(index as usize)?.as_ref()?.id;
        Some(ApertureId { link, number })
    }

    pub(super) fn tell_aperture(&mut self, aperture: ApertureId, what: ApertureEvent) {
        self.push_event(Event::Aperture { aperture, what });
    }

    /// What connecting by name does here where nobody is yet.
    pub(crate) fn wait_for_names(&self) -> Wait {
        control::wait_of(&self.config)
    }

    /// Begins to connect; [`end_connect`](Self::end_connect) says what became of it.
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
            self.connecting.insert(token, Connecting::default());
        }
        begun
    }

    /// To a service of another host.
    #[cfg(feature = "tls")]
    fn begin_connect_host(
        &mut self,
        name: &str,
        greeting: &[u8],
        timeout: Duration,
        wait: Wait,
    ) -> Result<LinkToken, ConnectError> {
        use control::hosts::HostName;
        let host: HostName = name.parse().map_err(|e: control::hosts::HostNameError| {
            ConnectError::Host { name: control::printable(name), error: e.into() }
        })?;
        let token = self.control().begin_connect_host(&host, greeting, timeout, wait)?;
        self.connecting.insert(token, Connecting::default());
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

    /// What became of it, when that is known: within its time limit.
    pub(crate) fn end_connect(&mut self, token: LinkToken) -> Option<Result<LinkId, ConnectError>> {
        if self.inbox.is_pending() {
            self.take_control_events();
        }
        let ended = self.connecting.get_mut(&token)?.ended.take()?;
        let told = self.forget_connecting(token).map(|connecting| connecting.told);
        for event in told.into_iter().flatten() {
            self.take_control_event(event);
        }
        Some(ended)
    }

    fn forget_connecting(&mut self, token: LinkToken) -> Option<Connecting> {
        self.asked.retain(|_, asked| *asked != token);
        self.connecting.remove(&token)
    }

    /// Nobody waits for a link any more that was begun.
    pub(crate) fn give_up_connecting(&mut self, token: LinkToken) {
        let ended = self.forget_connecting(token).and_then(|connecting| connecting.ended);
        self.control().give_up(token);
        // If it was there already, it is not wanted.
        match ended {
            Some(Ok(link)) => drop(self.disconnect(link)),
            _ => self.control().close(token),
        }
    }

    /// Keeps an event for the application. One that takes none must not be made to pay for them;
    /// but no event of one peer's pushes out another's.
    pub(super) fn push_event(&mut self, event: Event) {
        if self.events.len() >= EVENTS_MAX {
            // A peer can send as many of these as it likes: they push out nothing but each other.
            let is_hint = |event: &Event| matches!(event, Event::TicketRevoked { .. });
            if let Some(at) = self.events.iter().position(is_hint) {
                self.counters.events_dropped.add(1);
                self.events.remove(at);
            } else if is_hint(&event) {
                return self.counters.events_dropped.add(1);
            }
        }
        if self.events.len() >= self.events_room {
            let dropped = drop_what_came_to_nothing(&mut self.events);
            self.counters.events_dropped.add(dropped as u64);
            self.events_room = (2 * self.events.len()).max(EVENTS_MAX);
        }
        self.events.push_back(event);
    }
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
        // Whoever answered a request hears that nothing came of it.
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
