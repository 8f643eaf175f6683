//! Links come and go: connecting, accepting, death, closing, bulk rings, who is who.

use super::aperture::{ApertureEvent, ApertureId};
use super::link::{Link, ReceiveHalf, SendHalf};
use super::receive::Misbehaviour;
use super::{Forked, Node};
use crate::control::{
    self, AcceptError, ControlEvent, LinkFeatures, LinkToken, NewLink, Peer, RequestId, ServiceName,
};
use crate::interface::{Counters, LinkId};
use crate::link::Transmit;
use crate::link::ring::{RingReader, RingViolation, RingWriter};
use crate::link::sleep::Barrier;
use crate::os::memory::{Region, RegionLines, RegionWord};
use crate::os::socket;
use crate::wire::NodeId;
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::format;
use std::string::String;
use std::sync::Arc;
use std::vec::Vec;

/// Something that the application may want to know or decide.
#[derive(Clone, Debug)]
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
    /// Something became of an aperture, exported or held.
    Aperture {
        /// Which.
        aperture: ApertureId,
        /// What.
        what: ApertureEvent,
    },
}

/// Why a link ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CloseReason {
    /// The peer closed it, and everything that it had queued has left.
    Closed,
    /// The peer's process died.
    Died,
    /// The peer's process lives, and closed the connection without a goodbye: it had messages
    /// that did not leave.
    HungUp,
    /// The peer broke the rules, and this node closed the link.
    Misbehaved(String),
    /// The peer says that this node broke the rules, and closed the link.
    Expelled,
}

/// A link that could not be made. Nothing is left of the attempt.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// This is no name of a service.
    #[error(transparent)]
    Name(#[from] control::NameError),
    /// The control plane says why.
    #[error(transparent)]
    Control(#[from] control::ConnectError),
    /// As many links as the configuration allows.
    #[error("there are {0} links already, and no more are allowed (HAMLYN_LINKS_MAX)")]
    TooManyLinks(usize),
    /// The other end uses the id of a node that this one already knows as another process.
    #[error("the service claims to be node {0}, which this node knows as another process")]
    Identity(NodeId),
    /// The link ended before it could be used.
    #[error("the link ended as soon as it was made")]
    Vanished,
    /// Watching the link's socket failed.
    #[error("watching the link: {0}")]
    Watch(std::io::Error),
    /// The calling process is a forked child.
    #[error(transparent)]
    Forked(#[from] Forked),
}

/// Most events that wait for links which are being connected.
const EARLY_EVENTS_MAX: usize = 1024;

/// Most events that wait for the application; beyond, the oldest are dropped and counted.
const EVENTS_MAX: usize = 4096;

/// What is remembered of a link that has ended.
#[derive(Debug)]
pub(super) struct Departed {
    link: LinkId,
    peer: Peer,
    greeting: Vec<u8>,
}

/// How many links that have ended are remembered.
const DEPARTED_MAX: usize = 64;

/// A link that cannot be named.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is gone, or belongs to another node")]
pub struct LinkError(pub LinkId);

impl Node {
    /// Connects to the service `[user@]name`, waiting at most `timeout`; nothing is received
    /// meanwhile. `greeting`, up to 4 KiB,
    /// reaches the server before it decides; what the server answered is in
    /// [`greeting`](Self::greeting). Both ends know the other's user from the kernel.
    pub fn connect(
        &mut self,
        name: &str,
        greeting: &[u8],
        timeout: Duration,
    ) -> Result<LinkId, ConnectError> {
        self.check_fork()?;
        self.check_link_count()?;
        let name: ServiceName = name.parse()?;
        let link = self.control().connect(&name, greeting, timeout)?;
        self.install(link, true)
    }

    fn check_link_count(&self) -> Result<(), ConnectError> {
        let to_self = self.links[0].is_some() as usize;
        let count = self.active.len() + self.idle.len() - to_self;
        if count < self.config.links_max as usize {
            Ok(())
        } else {
            Err(ConnectError::TooManyLinks(count))
        }
    }

    /// What the other end sent along when the link was made: often tickets. Also of the links that
    /// ended last.
    pub fn greeting(&self, link: LinkId) -> Result<&[u8], LinkError> {
        match self.link(link) {
            Ok(link) => Ok(&link.greeting),
            Err(e) => self.departed(link).map(|departed| departed.greeting.as_slice()).ok_or(e),
        }
    }

    fn departed(&self, link: LinkId) -> Option<&Departed> {
        self.departed.iter().rev().find(|departed| departed.link == link)
    }

    /// Who is at the other end of a link, as the kernel says. Also of the links that ended last,
    /// since a message may be read after its sender has left.
    pub fn peer(&self, link: LinkId) -> Result<&Peer, LinkError> {
        match self.link(link) {
            Ok(link) => Ok(&link.peer),
            Err(e) => self.departed(link).map(|departed| &departed.peer).ok_or(e),
        }
    }

    /// The links that there are.
    pub fn links(&self) -> impl Iterator<Item = LinkId> + '_ {
        self.links.iter().flatten().map(|link| link.id)
    }

    pub(super) fn link(&self, id: LinkId) -> Result<&Link, LinkError> {
        match self.links.get(id.index as usize) {
            Some(Some(link)) if link.id == id => Ok(link),
            _ => Err(LinkError(id)),
        }
    }

    /// Which path a link takes, and why.
    pub fn explain(&self, id: LinkId) -> Result<String, LinkError> {
        let link = self.link(id)?;
        let mut text = match link.token {
            Some(_) => match link.peer.pid {
                Some(pid) => format!("shared-memory ring to process {pid}"),
                None => String::from("shared-memory ring to a process of another namespace"),
            },
            None => String::from("ring in this process's own memory (a link to itself)"),
        };
        match &link.tx {
            None => text.push_str("; its sending half belongs to a detached terminus"),
            Some(tx) => {
                text.push_str(&format!(
                    "; packets of {} bytes in a ring of {} lines",
                    tx.ring.packet_bytes(),
                    tx.ring.capacity()
                ));
                match &tx.bulk {
                    Some(bulk) => text.push_str(&format!(
                        "; long messages in a bulk ring of {} lines, packets of {} bytes",
                        bulk.capacity(),
                        bulk.packet_bytes()
                    )),
                    None if tx.bulk_asked => {
                        text.push_str("; a bulk ring was asked for and is not there")
                    }
                    None => text.push_str(&format!(
                        "; no bulk ring: {} bytes of long messages so far, asked for after {}",
                        tx.long_bytes, self.config.bulk_after_bytes
                    )),
                }
            }
        }
        if link.tx.as_ref().is_some_and(|tx| tx.barrier == Barrier::Fence) {
            text.push_str("; a fence on each send, because one end's kernel refuses membarrier");
        }
        text.push_str(&self.apertures.explain(id));
        Ok(text)
    }

    /// The next event, if any. Events appear in `poll`, `recv`, `send` and `wait`.
    pub fn next_event(&mut self) -> Option<Event> {
        if self.fork_guard.is_parent() && self.inbox.is_pending() {
            self.take_control_events();
        }
        self.events.pop_front()
    }

    /// Whether [`next_event`](Self::next_event) may have one.
    #[inline]
    pub(crate) fn has_events(&self) -> bool {
        !self.events.is_empty() || self.inbox.is_pending()
    }

    /// Accepts a request; `greeting` (up to 4 KiB) reaches the other end. The link appears as
    /// [`Event::Connected`].
    pub fn accept(&mut self, request: RequestId, greeting: &[u8]) -> Result<(), AcceptError> {
        self.control().accept(request, greeting)
    }

    /// Refuses a request; the other end is told `reason`.
    pub fn refuse(&mut self, request: RequestId, reason: &str) -> Result<(), AcceptError> {
        self.control().refuse(request, reason)
    }

    /// Ends one link. Queued messages that have not left are lost, and their number returned; the
    /// other end then sees [`CloseReason::HungUp`] instead of [`CloseReason::Closed`]. What is in
    /// the ring reaches the other end; what has come from there and was not polled for is
    /// dropped. See [`flush`](Self::flush).
    pub fn disconnect(&mut self, id: LinkId) -> Result<usize, LinkError> {
        // In a forked child the link is the parent's.
        self.check_fork().map_err(|Forked| LinkError(id))?;
        self.link(id)?;
        let token = self.link(id)?.token;
        let unsent = self.remove_link(id.index);
        match token {
            Some(token) if unsent == 0 => self.control().close(token),
            Some(token) => self.control().hang_up(token),
            None => {}
        }
        Ok(unsent)
    }

    /// Closes the node: queued messages leave first, for at most `timeout`; then every peer is
    /// told goodbye, except those for which messages still wait, which see
    /// [`CloseReason::HungUp`]. Returns how many queued messages did not leave. Dropping a node
    /// does the same without waiting.
    pub fn close(mut self, timeout: Option<Duration>) -> Result<usize, super::SendError> {
        self.check_fork()?;
        self.flush(timeout)?;
        Ok(self.part())
    }

    // ---- what the control plane says

    #[cold]
    #[inline(never)]
    pub(super) fn take_control_events(&mut self) {
        for event in self.inbox.take() {
            self.take_control_event(event);
        }
    }

    /// Whether an event is about a link that another thread has connected and not yet installed.
    fn is_early(&self, event: &ControlEvent) -> bool {
        self.connecting > 0
            && event.token().is_some_and(|token| self.index_of(token).is_none())
            && !matches!(event, ControlEvent::Connected(_))
    }

    fn take_control_event(&mut self, event: ControlEvent) {
        if self.is_early(&event) {
            // An honest peer's are a few; what else a link does before it is installed is lost, as
            // it would be had it done it before it was connected.
            if self.early_events.len() < EARLY_EVENTS_MAX {
                self.early_events.push(event);
            }
            return;
        }
        match event {
            ControlEvent::Request { id, peer, greeting } => {
                self.push_event(Event::Request { id, peer, greeting });
            }
            ControlEvent::RequestGone { id } => {
                self.push_event(Event::RequestGone { id });
            }
            ControlEvent::Connected(link) => {
                let (token, request) = (link.token, link.request);
                let installed = match self.check_link_count() {
                    Ok(()) => self.install(link, false),
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
            ControlEvent::ApertureMapped { token, number, owned } => {
                if let Some(id) = self.aperture_id(token, number) {
                    self.aperture_mapped(id, owned);
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
                    control::CloseReason::Graceful => CloseReason::Closed,
                    control::CloseReason::Died => CloseReason::Died,
                    control::CloseReason::HungUp => CloseReason::HungUp,
                    control::CloseReason::Violation => {
                        CloseReason::Misbehaved("it sent nonsense on its control socket".into())
                    }
                    control::CloseReason::Expelled => CloseReason::Expelled,
                };
                if let Some(index) = self.index_of(token) {
                    self.drain_and_remove(index, reason);
                }
            }
        }
    }

    fn aperture_id(&self, token: LinkToken, number: u32) -> Option<ApertureId> {
        let index = self.index_of(token)?;
        let link = self.links.get(index as usize)?.as_ref()?.id;
        Some(ApertureId { link, number })
    }

    fn tell_aperture(&mut self, aperture: ApertureId, what: ApertureEvent) {
        self.push_event(Event::Aperture { aperture, what });
    }

    /// Another thread connects, without the node; [`end_connect`](Self::end_connect) follows. What
    /// the control plane says of the new link in between is kept.
    pub(crate) fn begin_connect(&mut self) -> Result<Arc<control::Control>, ConnectError> {
        self.check_fork()?;
        self.check_link_count()?;
        self.connecting += 1;
        Ok(self.control.as_ref().expect("present until the node is dropped").clone())
    }

    /// What became of the attempt.
    pub(crate) fn end_connect(
        &mut self,
        made: Result<NewLink, control::ConnectError>,
    ) -> Result<LinkId, ConnectError> {
        let installed = made.map_err(ConnectError::from).and_then(|link| self.install(link, true));
        self.connecting -= 1;
        // Those of links that are still to come are kept again.
        for event in core::mem::take(&mut self.early_events) {
            self.take_control_event(event);
        }
        installed
    }

    /// Keeps an event for the application. One that takes none must not be made to pay for them.
    fn push_event(&mut self, event: Event) {
        if self.events.len() >= EVENTS_MAX {
            self.events.pop_front();
            self.counters.events_dropped.add(1);
        }
        self.events.push_back(event);
    }

    fn index_of(&self, token: LinkToken) -> Option<u32> {
        let has = |link: &Option<Link>| link.as_ref().is_some_and(|l| l.token == Some(token));
        self.links.iter().position(has).map(|i| i as u32)
    }

    /// Death is not the end of data: what was committed, at most the rings, is taken first.
    fn drain_and_remove(&mut self, index: u32, reason: CloseReason) {
        let Some(Some(link)) = self.links.get(index as usize) else { return };
        let id = link.id;
        let bound = link.rx.ring.capacity() + link.rx.bulk.as_ref().map_or(0, |b| b.capacity());
        let start = link.rx.lines_taken();
        while self.take_from(index) > 0 {
            // A peer that goes on writing is not waited for.
            match self.link(id) {
                Ok(link) if link.rx.lines_taken() - start < bound => {}
                _ => break,
            }
        }
        // Taking may have ended it already, for misbehaviour; then that has been said.
        if self.link(id).is_ok() {
            let unsent = self.remove_link(index);
            self.push_event(Event::Closed { link: id, reason, unsent });
        }
    }

    pub(super) fn end_violating(&mut self, index: usize, violation: RingViolation) {
        self.end_misbehaving(index as u32, Misbehaviour::Violation(violation));
    }

    /// Sends a peer away that broke the rules.
    #[cold]
    #[inline(never)]
    pub(super) fn end_misbehaving(&mut self, index: u32, misbehaviour: Misbehaviour) {
        let why = match misbehaviour {
            Misbehaviour::Guessing { wrong_keys } => {
                self.counters.links_closed_guessing.add(1);
                format!("{wrong_keys} packets with wrong keys")
            }
            Misbehaviour::Noise { refusals } => {
                self.counters.links_closed_noise.add(1);
                format!("{refusals} refused packets within a second")
            }
            Misbehaviour::Violation(violation) => {
                self.counters.links_closed_violation.add(1);
                format!("{violation}")
            }
            Misbehaviour::Descriptor => {
                self.counters.links_closed_descriptor.add(1);
                String::from("it sent a descriptor over its wake-up connection")
            }
            Misbehaviour::Identity => {
                self.counters.links_closed_identity.add(1);
                String::from("it used the id of another process's node")
            }
        };
        let Some(Some(link)) = self.links.get(index as usize) else { return };
        let (id, token) = (link.id, link.token);
        let unsent = self.remove_link(index);
        if let Some(token) = token {
            self.control().violated(token);
        }
        self.push_event(Event::Closed { link: id, reason: CloseReason::Misbehaved(why), unsent });
    }

    /// Forgets a link; returns how many queued messages are lost with it.
    fn remove_link(&mut self, index: u32) -> usize {
        let Some(link) = self.links.get_mut(index as usize).and_then(Option::take) else {
            return 0;
        };
        self.active.retain(|i| *i != index);
        self.idle.retain(|i| *i != index);
        self.repair_routes(index, link.peer.node);
        self.generations[index as usize] = self.generations[index as usize].wrapping_add(1);
        self.queued -= link.queued;
        let id = link.id;
        link.ended.store(true, Ordering::Release);
        self.apertures.link_ended(id);
        self.counters.links_closed.add(1);
        if let Some(wake) = link.rx.wake() {
            self.poller.remove(wake);
        }
        if self.departed.len() == DEPARTED_MAX {
            self.departed.pop_front();
        }
        let Link { peer, greeting, .. } = link;
        self.departed.push_back(Departed { link: id, peer, greeting });
        self.termini.iter_mut().map(|terminus| terminus.drop_link(id)).sum()
    }

    /// Link `index` no longer leads to `node`; another may.
    fn repair_routes(&mut self, index: u32, node: NodeId) {
        self.routes.retain(|_, i| *i != index);
        self.last_route = None;
        let leads = |link: &&Link| link.peer.node == node && link.tx.is_some();
        if let Some(other) = self.links.iter().flatten().find(leads) {
            self.routes.entry(node).or_insert(other.id.index);
        }
    }

    /// Hands the sending half of a link out.
    pub(super) fn take_send_half(
        &mut self,
        id: LinkId,
    ) -> Option<(SendHalf, NodeId, Arc<AtomicBool>)> {
        let link = self.links.get_mut(id.index as usize)?.as_mut().filter(|link| link.id == id)?;
        let (tx, node, ended) = (link.tx.take()?, link.peer.node, link.ended.clone());
        self.repair_routes(id.index, node);
        Some((tx, node, ended))
    }

    // ---- making links

    fn free_place(&mut self) -> usize {
        // Place 0 is the link of the node to itself.
        match self.links.iter().skip(1).position(Option::is_none) {
            Some(i) => i + 1,
            None => {
                self.links.push(None);
                self.generations.push(0);
                self.links.len() - 1
            }
        }
    }

    fn add_link(&mut self, mut link: Link, index: usize) -> LinkId {
        let id = LinkId { index: index as u32, generation: self.generations[index] };
        link.id = id;
        link.is_active = true;
        self.links[index] = Some(link);
        self.active.push(index as u32);
        self.counters.links_opened.add(1);
        id
    }

    /// Makes a link of what the control plane has agreed with a peer.
    pub(crate) fn install(&mut self, new: NewLink, by_us: bool) -> Result<LinkId, ConnectError> {
        let node = new.peer.node;
        let token = new.token;
        let replaced = match self.check_identity(&new.peer, by_us) {
            Ok(replaced) => replaced,
            Err(e) => {
                self.counters.links_closed_identity.add(1);
                self.control().violated(token);
                return Err(e);
            }
        };
        let index = self.free_place();
        let (link, wake) = split(new, by_us, &self.counters);
        if let Err(e) = self.poller.add(wake.as_ref(), index as u64) {
            self.control().close(token);
            return Err(ConnectError::Watch(e));
        }
        if let Some(replaced) = replaced {
            // Somebody claimed this node's id before; the name that was asked for is the proof.
            self.end_misbehaving(replaced, Misbehaviour::Identity);
        }
        let id = self.add_link(link, index);
        self.routes.entry(node).or_insert(id.index);
        Ok(id)
    }

    /// A peer says which node it is. The same process may have several links. Another process
    /// may not take a known node's id, nor this node's; but a service that was connected to by
    /// name is believed over one that connected here.
    fn check_identity(&self, peer: &Peer, by_us: bool) -> Result<Option<u32>, ConnectError> {
        if peer.node == self.id() {
            return if peer.pid == Some(std::process::id()) {
                Ok(None)
            } else {
                Err(ConnectError::Identity(peer.node))
            };
        }
        let same = |known: &Peer| match (known.process, peer.process) {
            (Some(known), Some(new)) => known == new,
            // Before Linux 6.9 a process that cannot be seen from here cannot be told from another
            // of its user.
            _ => {
                let can_tell = known.pid.is_some() || known.uid.is_some();
                can_tell && known.pid == peer.pid && known.uid == peer.uid
            }
        };
        let mut links = self.links.iter().flatten();
        if let Some(known) = links.find(|link| link.peer.node == peer.node) {
            return match same(&known.peer) {
                true => Ok(None),
                false if by_us && !known.initiated_by_us => Ok(Some(known.id.index)),
                false => Err(ConnectError::Identity(peer.node)),
            };
        }
        // Tickets of a node that has left must not lead to a stranger who takes its id.
        let departed = self.departed.iter().rev().find(|departed| departed.peer.node == peer.node);
        match departed {
            Some(known) if !by_us && !same(&known.peer) => Err(ConnectError::Identity(peer.node)),
            _ => Ok(None),
        }
    }

    /// The link from this node to itself, made when it is first needed.
    pub(super) fn open_self_link(&mut self) -> Result<(), super::SendError> {
        let region = Region::private(self.config.ring_bytes as usize)
            .map_err(|e| super::SendError::Wait(Arc::new(e)))?;
        let ring = RingWriter::new(region.lines(), region.freed(), self.config.packet_bytes);
        let reader = RingReader::new(region.lines(), region.freed());
        let peer = Peer {
            node: self.id(),
            uid: Some(rustix::process::geteuid().as_raw()),
            gid: Some(rustix::process::getegid().as_raw()),
            pid: Some(std::process::id()),
            process: None,
            service: String::new(),
        };
        let rx = ReceiveHalf::new(
            reader,
            region.bulk_freed(),
            region.sleep(),
            region.room(),
            None,
            Barrier::Asymmetric,
        );
        let tx = SendHalf::new(
            ring,
            region.bulk_freed(),
            region.sleep(),
            region.room(),
            None,
            Barrier::Asymmetric,
            self.counters.clone(),
        );
        let link = Link::new(rx, tx, peer);
        self.add_link(link, 0);
        self.routes.insert(self.id(), 0);
        Ok(())
    }

    // ---- bulk rings

    /// Asks the control plane for a bulk ring if enough has been sent.
    #[cold]
    pub(super) fn ask_for_bulk(&mut self, index: u32) {
        let after = self.config.bulk_after_bytes;
        let Some(Some(link)) = self.links.get_mut(index as usize) else { return };
        let (Some(tx), Some(token)) = (&mut link.tx, link.token) else { return };
        if tx.long_bytes >= after && !tx.bulk_asked && self.config.bulk_ring_bytes > 0 {
            tx.bulk_asked = true;
            self.control().request_bulk(token);
        }
    }

    fn add_bulk_outgoing(&mut self, token: LinkToken, lines: RegionLines) {
        let Some(index) = self.index_of(token) else { return };
        let packet_bytes = self.config.packet_bytes;
        if let Some(Some(link)) = self.links.get_mut(index as usize)
            && let Some(tx) = &mut link.tx
            && tx.bulk.is_none()
        {
            let bulk = RingWriter::new(lines, tx.bulk_freed.clone(), packet_bytes);
            // A smaller ring than the base ring would make packets smaller than was counted on
            // when a message in fast mode, or one of a small share, was allowed.
            if bulk.packet_bytes() >= tx.packet_bytes_min() {
                tx.bulk = Some(bulk);
            }
        }
    }

    fn add_bulk_incoming(&mut self, token: LinkToken, lines: RegionLines) {
        let Some(index) = self.index_of(token) else { return };
        if let Some(Some(link)) = self.links.get_mut(index as usize)
            && link.rx.bulk.is_none()
        {
            link.rx.bulk = Some(RingReader::new(lines, link.rx.bulk_freed.clone()));
        }
    }
}

/// The two halves of a link, and the socket that wakes its other end.
fn split(new: NewLink, by_us: bool, counters: &Arc<Counters>) -> (Link, Arc<std::os::fd::OwnedFd>) {
    let NewLink { token, peer, greeting, outgoing, incoming, wake, packet_bytes, features, .. } =
        new;
    socket::refuse_descriptors(&wake);
    let wake = Arc::new(wake);
    let barrier =
        if features.contains(LinkFeatures::BARRIER) { Barrier::Asymmetric } else { Barrier::Fence };
    let writer = RingWriter::new(outgoing.lines(), incoming.freed(), packet_bytes);
    let reader = RingReader::new(incoming.lines(), outgoing.freed());
    let words = |region: &Region| -> (RegionWord, RegionWord) { (region.sleep(), region.room()) };
    let ((own_sleep, own_room), (peer_sleep, peer_room)) = (words(&outgoing), words(&incoming));
    let rx = ReceiveHalf::new(
        reader,
        outgoing.bulk_freed(),
        own_sleep,
        peer_room,
        Some(wake.clone()),
        barrier,
    );
    let tx = SendHalf::new(
        writer,
        incoming.bulk_freed(),
        peer_sleep,
        own_room,
        Some(wake.clone()),
        barrier,
        counters.clone(),
    );
    let token = Some(token);
    let link = Link { token, greeting, initiated_by_us: by_us, ..Link::new(rx, tx, peer) };
    (link, wake)
}
