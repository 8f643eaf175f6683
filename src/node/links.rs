//! Links come and go: connecting, accepting, death, closing, bulk rings, identities.

use super::events::{CloseReason, Event};
use super::figures::Words;
use super::link::{Link, Origin, ReceiveHalf, SendHalf, Waker};
use super::receive::Misbehaviour;
use super::wait::{Look, WaitError};
use super::{Forked, Node};
use crate::control::{
    AcceptError, ConnectError, LinkFeatures, LinkToken, LinkWay, NewLink, Peer, RefusedBy,
    RequestId,
};
use crate::engine::turns::{Budget, TakesTurns};
use crate::interface::{Counters, LinkId};
use crate::link::Transmit;
use crate::link::ring::{RingReader, RingViolation, RingWriter};
use crate::link::sleep::{Barrier, Ear};
use crate::os::memory::{Region, RegionLines};
use crate::os::socket;
use core::time::Duration;
use std::boxed::Box;
use std::format;
use std::string::String;
use std::sync::Arc;
use std::vec::Vec;

impl From<Forked> for ConnectError {
    fn from(_: Forked) -> Self {
        Self::Forked
    }
}

/// The record of a link that has ended.
#[derive(Debug)]
pub(super) struct Departed {
    link: LinkId,
    peer: Peer,
    greeting: Vec<u8>,
}

/// A link whose peer is gone.
#[derive(Debug)]
pub(super) struct LeavingLink {
    link: LinkId,
    /// Nothing more is taken once this many lines of its rings have been taken in all.
    until: u64,
    reason: CloseReason,
    unsent: usize,
}

/// Links whose peers are gone, with committed packets still to be taken.
#[derive(Debug)]
pub(super) struct LeavingLinks {
    pub links: Vec<LeavingLink>,
    /// The remaining budget for them in this turn.
    budget: Budget,
}

impl LeavingLinks {
    pub fn new() -> Self {
        Self { links: Vec::new(), budget: Budget::of_a_turn() }
    }
}

/// The number of ended links that are remembered.
const DEPARTED_MAX: usize = 64;

/// A link that cannot be named.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} is gone, or belongs to another node")]
pub struct LinkError(pub LinkId);

/// Extra time that a connecting caller waits for the control plane, which keeps the time limit
/// itself: it reports the step that was under way, and must get the processor for that.
const ANSWER: Duration = Duration::from_millis(500);

/// The step under way, if the control plane does not report it.
pub(crate) const NO_WORD: &str = "waiting for this process's own thread for connections";

/// The time limit for the result of a connection attempt.
pub(crate) fn with_answer(timeout: Duration) -> Duration {
    timeout.saturating_add(ANSWER)
}

impl Node {
    /// Connects to the service `[user@]name`, waiting at most `timeout` for everything, including
    /// the wait for the name to be served (unless the setting `wait_for_names` is off). Arrivals
    /// meanwhile are received. `greeting`, up to 4 KiB, reaches the server before it decides; the
    /// server's answer is in [`greeting`](Self::greeting). Both ends know the other's user from the
    /// kernel.
    pub fn connect(
        &mut self,
        name: &str,
        greeting: &[u8],
        timeout: Option<Duration>,
    ) -> Result<LinkId, ConnectError> {
        let token = self.begin_connect(name, greeting, timeout, self.wait_for_names())?;
        let look = |node: &mut Self, _| match node.end_connect(token) {
            Some(connected) => Look::Found(connected),
            None => Look::Nothing,
        };
        let error = match self.wait_until(timeout.map(with_answer), |_| None, look) {
            Ok(connected) => return connected,
            Err(WaitError::Forked(forked)) => return Err(forked.into()),
            Err(WaitError::TimedOut) => ConnectError::TimedOut(NO_WORD),
            Err(WaitError::Os(error)) => ConnectError::Os { doing: "waiting for the link", error },
        };
        self.give_up_connecting(token);
        Err(error)
    }

    pub(super) fn check_link_count(&self) -> Result<(), ConnectError> {
        let to_self = self.links[0].is_some() as usize;
        let count = self.turns.len() + self.leaving.links.len() - to_self;
        if count < self.config.links_max as usize {
            Ok(())
        } else {
            Err(ConnectError::TooManyLinks(count as u32))
        }
    }

    /// The other end's greeting when the link was made: often tickets. Also for the links that
    /// ended last.
    pub fn greeting(&self, link: LinkId) -> Result<&[u8], LinkError> {
        match self.link(link) {
            Ok(link) => Ok(&link.origin.greeting),
            Err(e) => self.departed(link).map(|departed| departed.greeting.as_slice()).ok_or(e),
        }
    }

    fn departed(&self, link: LinkId) -> Option<&Departed> {
        self.departed.iter().rev().find(|departed| departed.link == link)
    }

    /// The identity of the other end of a link, from the kernel. Also for the links that ended
    /// last, since a message may be read after its sender has left.
    pub fn peer(&self, link: LinkId) -> Result<&Peer, LinkError> {
        match self.link(link) {
            Ok(link) => Ok(&link.peer),
            Err(e) => self.departed(link).map(|departed| &departed.peer).ok_or(e),
        }
    }

    /// All current links.
    pub fn links(&self) -> impl Iterator<Item = LinkId> + '_ {
        self.links.iter().flatten().map(|link| link.id)
    }

    pub(super) fn link(&self, id: LinkId) -> Result<&Link, LinkError> {
        match self.links.get(id.index as usize) {
            Some(Some(link)) if link.id == id => Ok(link),
            _ => Err(LinkError(id)),
        }
    }

    /// The path that a link takes, and the reason.
    pub fn explain(&self, id: LinkId) -> Result<String, LinkError> {
        let link = self.link(id)?;
        let mut text = match link.token {
            Some(_) if link.peer.host.is_some() => explain_host(link),
            Some(_) => match link.peer.pid {
                Some(pid) => format!("shared-memory ring to process {pid}"),
                None => String::from("shared-memory ring to a process of another namespace"),
            },
            None => String::from("ring in this process's own memory (a link to itself)"),
        };
        match &link.tx {
            None => text.push_str("; its peer has left, and nothing more is sent"),
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
                    None if self.config.bulk_ring_bytes == 0 => text.push_str(
                        "; no bulk ring, and none will be asked for (bulk_ring_bytes is 0)",
                    ),
                    None => text.push_str(&format!(
                        "; no bulk ring: {} bytes of long messages so far, asked for after {}",
                        tx.long_bytes, self.config.bulk_after_bytes
                    )),
                }
            }
        }
        link.origin.how.iter().for_each(|how| text.push_str(&format!("; {how}")));
        let is_here = link.peer.host.is_none();
        if is_here && link.tx.as_ref().is_some_and(|tx| tx.barrier == Barrier::Fence) {
            text.push_str("; a fence on each send, because one end's kernel refuses membarrier");
        }
        if link.relies_on_barrier() && self.sleeping.naps.are_needed() {
            text.push_str(
                "; sleeps are cut into naps, because the kernel refuses this process membarrier, \
                 which it allowed when the link was made",
            );
        }
        if !link.peer.is_proved {
            text.push_str(
                "; tickets are not routed over it: the kernel cannot say which process is at the \
                 other end, so its node is not proved",
            );
        }
        text.push_str(&self.apertures.explain(id));
        Ok(text)
    }

    /// Publishes the path of a link, which has changed.
    fn tell_path(&self, id: LinkId) {
        if let (Ok(path), Ok(link)) = (self.explain(id), self.link(id))
            && let Some(figures) = &link.figures
        {
            figures.explain(path);
        }
    }

    /// The next event, if there is one. Events appear in `poll`, `recv`, `send` and `wait`.
    pub fn next_event(&mut self) -> Option<Event> {
        self.take_event(|_| true)
    }

    /// The next event for which `is_mine` is true; the others stay, in their order. Two layers of
    /// one node each take the events of their own links, requests and apertures.
    ///
    /// ```
    /// # let dir = std::env::temp_dir().join(format!("hamlyn-doc-take-event-{}", std::process::id()));
    /// use hamlyn::{Accept, Access, Event, Node};
    /// # use std::time::Duration;
    ///
    /// # let limit = Some(Duration::from_secs(10));
    /// # let config = hamlyn::Config::from_env()?.dir(&dir);
    /// let mut node = Node::with_config(config)?;
    /// node.serve("mine", Access::SameUser, Accept::Automatic(b"welcome".to_vec()))?;
    /// let link = node.connect("mine", b"", limit)?;
    /// let is_mine = |event: &Event| matches!(event, Event::Closed { link: of, .. } if *of == link);
    /// assert!(node.take_event(is_mine).is_none()); // It lives.
    /// # drop(node);
    /// # std::fs::remove_dir_all(&dir).ok();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn take_event(&mut self, mut is_mine: impl FnMut(&Event) -> bool) -> Option<Event> {
        let mut at = self.events.iter().position(&mut is_mine);
        if at.is_none() && self.fork_guard.is_parent() {
            // A program that only asks for events must learn of an end as well.
            self.drain_leaving();
            if self.inbox.is_pending() {
                self.take_control_events();
            }
            at = self.events.iter().position(&mut is_mine);
        }
        self.events.remove(at?)
    }

    /// Whether [`next_event`](Self::next_event) may have one.
    #[inline]
    pub(crate) fn has_events(&self) -> bool {
        !self.events.is_empty() || self.inbox.is_pending() || !self.leaving.links.is_empty()
    }

    /// Accepts a request; `greeting` (up to 4 KiB) reaches the other end. The link appears as
    /// [`Event::Connected`].
    pub fn accept(&mut self, request: RequestId, greeting: &[u8]) -> Result<(), AcceptError> {
        self.control().accept(request, greeting)
    }

    /// Refuses a request; the other end gets `reason`.
    pub fn refuse(&mut self, request: RequestId, reason: &str) -> Result<(), AcceptError> {
        self.control().refuse(request, reason)
    }

    /// The same for a refusal that is not the application's.
    pub(crate) fn refuse_as(
        &mut self,
        request: RequestId,
        by: RefusedBy,
        reason: &str,
    ) -> Result<(), AcceptError> {
        self.control().refuse_as(request, by, reason)
    }

    /// Ends one link. Queued messages that have not left are lost; their number is returned, and
    /// the other end then sees [`CloseReason::HungUp`] instead of [`CloseReason::Closed`]. Packets
    /// in the ring reach the other end; packets that have come from there and were not polled for
    /// are dropped. See [`flush`](Self::flush).
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

    /// [`disconnect`](Self::disconnect), because the peer broke the rules of a protocol: the log
    /// has the reason for operators.
    pub(crate) fn send_away(&mut self, id: LinkId, why: &str) {
        if let Ok((Some(token), peer)) = self.link(id).map(|link| (link.token, &link.peer)) {
            self.control().note_sent_away(token, peer, why);
        }
        // An ended link is gone already.
        let _ = self.disconnect(id);
    }

    /// [`disconnect`](Self::disconnect) without a goodbye: the peer sees [`CloseReason::HungUp`].
    pub(crate) fn hang_up(&mut self, id: LinkId) {
        if let Ok(Some(token)) = self.link(id).map(|link| link.token)
            && self.fork_guard.is_parent()
        {
            self.remove_link(id.index);
            self.control().hang_up(token);
        }
    }

    /// The same for a peer that does not keep up; the peer is told so.
    pub(crate) fn send_away_slow(&mut self, id: LinkId, why: &str) {
        let link = self.link(id).map(|link| (link.token, &link.peer));
        if let Ok((Some(token), peer)) = link
            && self.fork_guard.is_parent()
        {
            self.control().note_sent_away(token, peer, why);
            self.remove_link(id.index);
            self.control().too_slow(token);
        }
    }

    /// Closes the node: queued messages leave first, for at most `timeout`; then every peer gets a
    /// goodbye, except those for which messages still wait, which see [`CloseReason::HungUp`].
    /// Returns how many queued messages did not leave. Dropping a node does the same without
    /// waiting.
    pub fn close(mut self, timeout: Option<Duration>) -> Result<usize, super::NodeSendError> {
        self.check_fork()?;
        self.control().end_within(timeout);
        self.flush(timeout)?;
        Ok(self.part())
    }

    pub(super) fn index_of(&self, token: LinkToken) -> Option<u32> {
        self.places.of(token)
    }

    /// Death is not the end of data: committed packets, at most the rings, are taken first, by
    /// turns as bounded as all others. No more is sent there.
    pub(super) fn begin_leaving(&mut self, index: u32, reason: CloseReason) {
        let Some(Some(link)) = self.links.get_mut(index as usize) else { return };
        if link.has_left {
            return;
        }
        let id = link.id;
        let bound = link.rx.ring.capacity() + link.rx.bulk.as_ref().map_or(0, |b| b.capacity());
        let until = link.rx.lines_taken() + bound;
        (link.has_left, link.tx) = (true, None);
        let route = link.origin.route.take();
        route.into_iter().for_each(|route| self.routes.remove(route));
        self.turns.remove(index);
        self.queued.drop_link(index);
        let unsent = self.termini.iter_mut().map(|terminus| terminus.drop_link(id)).sum();
        // Links that are drained within one turn are reported in the order of their ends.
        self.drain(LeavingLink { link: id, until, reason, unsent });
    }

    /// One turn of a link whose peer is gone; reports the link once all its packets have been
    /// taken. Returns how many packets were taken.
    fn drain(&mut self, leaving: LeavingLink) -> usize {
        // If many links end at once, the others' turn comes first.
        let taken = match self.leaving.budget.is_spent() {
            true => 0,
            false => {
                let taken = self.take_portion(leaving.link.index, self.leaving.budget.left());
                self.leaving.budget.spend(taken);
                taken.packets
            }
        };
        // A link that ended for misbehaviour has been reported already.
        let Ok(link) = self.link(leaving.link) else { return taken };
        // A peer that goes on writing is not waited for.
        if link.rx.is_ready() && link.rx.lines_taken() < leaving.until {
            self.leaving.links.push(leaving);
            self.turns.call_attention();
            return taken;
        }
        let LeavingLink { link, reason, unsent, .. } = leaving;
        self.remove_link(link.index);
        self.push_event(Event::Closed { link, reason, unsent });
        taken
    }

    /// [`drain`](Self::drain) of the links whose peers are gone, as far as a turn's budget goes.
    pub(super) fn drain_leaving(&mut self) -> usize {
        self.leaving.budget = Budget::of_a_turn();
        let mut leaving = core::mem::take(&mut self.leaving.links).into_iter();
        let mut taken = 0;
        while !self.leaving.budget.is_spent()
            && let Some(leaving) = leaving.next()
        {
            taken += self.drain(leaving);
        }
        // Links that had no turn are the first in the next.
        let had_one = core::mem::replace(&mut self.leaving.links, leaving.collect());
        self.leaving.links.extend(had_one);
        if self.inbox.is_pending() {
            self.take_control_events();
        }
        taken
    }

    pub(super) fn end_violating(&mut self, index: usize, violation: RingViolation) {
        self.end_misbehaving(index as u32, Misbehaviour::Violation(violation));
    }

    /// Disconnects a peer that broke the rules.
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
        };
        let Some(Some(link)) = self.links.get(index as usize) else { return };
        let (id, token, peer) = (link.id, link.token, link.peer.clone());
        let unsent = self.remove_link(index);
        if let Some(token) = token {
            self.control().note_sent_away(token, &peer, &why);
            self.control().violated(token);
        }
        self.push_event(Event::Closed { link: id, reason: CloseReason::Misbehaved(why), unsent });
    }

    /// Forgets a link; returns how many queued messages are lost with it.
    fn remove_link(&mut self, index: u32) -> usize {
        let Some(mut link) = self.links.get_mut(index as usize).and_then(Option::take) else {
            return 0;
        };
        self.places.leave(index, link.token.as_ref());
        self.turns.remove(index);
        self.figures.remove(index);
        self.queued.drop_link(index);
        link.origin.route.take().into_iter().for_each(|route| self.routes.remove(route));
        let id = link.id;
        self.leaving.links.retain(|leaving| leaving.link != id);
        self.apertures.link_ended(id);
        self.counters.links_closed.add(1);
        self.unwatch(&link);
        self.hosts.remove(index);
        if self.departed.len() == DEPARTED_MAX {
            self.departed.pop_front();
        }
        let (peer, greeting) = (link.peer, link.origin.greeting);
        self.departed.push_back(Departed { link: id, peer, greeting });
        self.termini.iter_mut().map(|terminus| terminus.drop_link(id)).sum()
    }

    // ---- making links

    /// A free place for [`add_link`](Self::add_link). Place 0 is that of the node's link to itself.
    fn free_place(&mut self) -> usize {
        if let Some(place) = self.places.free() {
            return place as usize;
        }
        let place = self.links.len();
        self.places.add();
        self.links.push(None);
        self.interface.reserve_links(self.links.len());
        place
    }

    fn add_link(&mut self, mut link: Link, index: usize) -> LinkId {
        let id = self.places.take(index as u32, link.token);
        link.id = id;
        self.links[index] = Some(link);
        self.turns.add(index as u32);
        self.counters.links_opened.add(1);
        id
    }

    /// Makes a link as the control plane has agreed with a peer. Tickets are routed over it only if
    /// the peer has proved its node's identity.
    pub(crate) fn install_link(&mut self, new: NewLink) -> Result<LinkId, ConnectError> {
        let (node, is_proved) = (new.peer.node, new.peer.is_proved);
        let token = new.token;
        let index = self.free_place();
        let is_ours = new.initiated_by_us;
        let taken = [new.outgoing.freed(), new.outgoing.bulk_freed()];
        let given = [new.incoming.freed(), new.incoming.bulk_freed()];
        let words = Words { taken, given, peer_room: new.incoming.room() };
        let link = split(new, &self.counters);
        if let Err(error) = self.watch(&link, index as u64) {
            self.control().close(token);
            return Err(ConnectError::Os { doing: "watching the link", error });
        }
        if link.rx.host().is_some() {
            self.hosts.add(index as u32);
            self.turns.call_attention();
        }
        let id = self.add_link(link, index);
        if let Some(Some(link)) = self.links.get_mut(index) {
            link.origin.route = is_proved.then(|| self.routes.add(node, id.index));
            link.figures = Some(self.figures.add(link, is_ours, words));
        }
        self.tell_path(id);
        Ok(id)
    }

    /// Lets a link's descriptors wake this node.
    fn watch(&self, link: &Link, tag: u64) -> std::io::Result<()> {
        if let Some(host) = link.rx.host() {
            return self.poller.add(crate::transport::lock(&**host).as_fd(), tag);
        }
        link.rx.wake().map_or(Ok(()), |wake| self.poller.add(wake, tag))
    }

    /// The link's descriptors no longer wake the node.
    pub(super) fn unwatch(&self, link: &Link) {
        if let Some(host) = link.rx.host() {
            return self.poller.remove(crate::transport::lock(&**host).as_fd());
        }
        if let Some(wake) = link.rx.wake() {
            self.poller.remove(wake);
        }
    }

    /// The link from this node to itself, made when it is first needed.
    pub(super) fn open_self_link(&mut self) -> Result<(), super::NodeSendError> {
        let region = Region::private(self.config.ring_bytes as usize)
            .map_err(|e| super::NodeSendError::Wait(Arc::new(e)))?;
        let ring = RingWriter::new(region.lines(), region.freed(), self.config.packet_bytes);
        let reader = RingReader::new(region.lines(), region.freed());
        let peer = Peer {
            node: self.id(),
            is_proved: true,
            uid: Some(rustix::process::geteuid().as_raw()),
            gid: Some(rustix::process::getegid().as_raw()),
            pid: Some(std::process::id()),
            process: None,
            service: String::new(),
            host: None,
        };
        let rx = ReceiveHalf::new(
            reader,
            region.bulk_freed(),
            region.sleep(),
            region.room(),
            Waker::default(),
            None,
            Barrier::Asymmetric,
        );
        let tx = SendHalf::new(
            ring,
            region.bulk_freed(),
            region.sleep(),
            region.room(),
            Waker::default(),
            Barrier::Asymmetric,
            self.counters.clone(),
        );
        let mut link = Link::new(rx, tx, peer);
        link.origin.route = Some(self.routes.add(self.id(), 0));
        self.add_link(link, 0);
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
            let id = link.id;
            self.control().request_bulk(token);
            self.tell_path(id);
        }
    }

    pub(super) fn add_bulk_outgoing(&mut self, token: LinkToken, lines: RegionLines) {
        let Some(index) = self.index_of(token) else { return };
        let packet_bytes = self.config.packet_bytes;
        if let Some(Some(link)) = self.links.get_mut(index as usize)
            && let Some(tx) = &mut link.tx
            && tx.bulk.is_none()
        {
            let bulk = RingWriter::new(lines, tx.bulk_freed.clone(), packet_bytes);
            // A ring smaller than the base ring would make packets smaller than assumed when a
            // message in fast mode, or one of a small share, was allowed.
            if bulk.packet_bytes() >= tx.packet_bytes_min() {
                tx.bulk = Some(bulk);
            }
            let id = link.id;
            self.tell_path(id);
        }
    }

    pub(super) fn add_bulk_incoming(&mut self, token: LinkToken, lines: RegionLines) {
        let Some(index) = self.index_of(token) else { return };
        if let Some(Some(link)) = self.links.get_mut(index as usize)
            && link.rx.bulk.is_none()
        {
            self.has_bulk_incoming = true;
            self.turns.call_attention();
            link.rx.bulk = Some(RingReader::new(lines, link.rx.bulk_freed.clone()));
        }
    }
}

/// The path that a link to another host takes.
fn explain_host(link: &Link) -> String {
    let (Some(host), Some(carrier)) = (&link.peer.host, link.rx.host()) else {
        return String::new();
    };
    let how = crate::transport::lock(&**carrier).explain();
    format!("{how} to {} ({})", host.address, host.identity)
}

/// The link with its two halves.
fn split(new: NewLink, counters: &Arc<Counters>) -> Link {
    let NewLink { token, peer, greeting, outgoing, incoming, way, packet_bytes, .. } = new;
    let (features, how) = (new.features, new.how);
    let barrier =
        if features.contains(LinkFeatures::BARRIER) { Barrier::Asymmetric } else { Barrier::Fence };
    assert!(
        barrier == Barrier::Fence || matches!(way, LinkWay::Memory(_)),
        "what carries a link to another host makes no barrier on behalf of the node"
    );
    let writer = RingWriter::new(outgoing.lines(), incoming.freed(), packet_bytes);
    let reader = RingReader::new(incoming.lines(), outgoing.freed());
    let rings = features.contains(LinkFeatures::BELL);
    let bell = |region: &Region| rings.then(|| region.bell());
    let waker = match way {
        LinkWay::Memory(wake) => {
            socket::refuse_descriptors(&wake);
            let (socket, bell) = (Some(Arc::new(wake)), bell(&outgoing));
            Waker { socket, bell, host: None }
        }
        LinkWay::Host(host) => Waker { host: Some(host), ..Waker::default() },
    };
    let mut rx = ReceiveHalf::new(
        reader,
        outgoing.bulk_freed(),
        outgoing.sleep(),
        incoming.room(),
        waker.clone(),
        bell(&incoming).map(Ear::new),
        barrier,
    );
    rx.processors = Some((outgoing.processor(), incoming.processor()));
    let tx = SendHalf::new(
        writer,
        incoming.bulk_freed(),
        incoming.sleep(),
        outgoing.room(),
        waker,
        barrier,
        counters.clone(),
    );
    let origin = Box::new(Origin { greeting, how, route: None });
    Link { token: Some(token), origin, ..Link::new(rx, tx, peer) }
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::control::{Accept, Access, Control, ControlEvent, Identity, ServiceName, Wait};
    use std::time::Instant;

    #[test]
    fn a_link_that_was_given_up_when_it_was_there_is_nobodys() {
        let dir = tempfile::tempdir().unwrap();
        let config = Config::default().dir(dir.path()).shared_dir(dir.path().join("shared"));
        let (mut server, mut client) =
            (Node::with_config(config.clone()).unwrap(), Node::with_config(config).unwrap());
        server.serve("x", Access::SameUser, Accept::Automatic(Vec::new())).unwrap();
        let token =
            client.begin_connect("x", b"", Some(Duration::from_secs(20)), Wait::No).unwrap();
        while !client.inbox.is_pending() {
            std::thread::yield_now();
        }
        client.give_up_connecting(token);
        client.poll().unwrap();
        assert!(client.next_event().is_none());
        assert_eq!(client.links().filter(|link| link.index != 0).count(), 0);
        let closed = loop {
            server.poll().unwrap();
            if let Some(Event::Closed { reason, .. }) = server.next_event() {
                break reason;
            }
            std::thread::yield_now();
        };
        assert_eq!(closed, CloseReason::Closed);
    }

    #[cfg(feature = "tls")]
    #[test]
    fn whoever_gives_up_while_one_place_says_nothing_connects_to_no_other() {
        use std::io::Write;
        use std::net::TcpListener;
        use std::os::unix::fs::OpenOptionsExt;

        let dir = tempfile::tempdir().unwrap();
        let secret = dir.path().join("secret");
        let mut options = std::fs::OpenOptions::new();
        let file = options.write(true).create_new(true).mode(0o600).open(&secret);
        file.unwrap().write_all("7f".repeat(32).as_bytes()).unwrap();
        let listener = || TcpListener::bind("127.0.0.1:0").unwrap();
        let (stopped, other) = (listener(), listener());
        other.set_nonblocking(true).unwrap();
        let at = |listener: &TcpListener| listener.local_addr().unwrap();
        let file = dir.path().join("directory");
        std::fs::write(&file, std::format!("x {} {}\n", at(&stopped), at(&other))).unwrap();
        let config = Config::default().dir(dir.path()).secret(secret).directory(file);
        let mut node = Node::with_config(config).unwrap();
        let limit = Duration::from_millis(600);
        let token = node.begin_connect("hamlyn://x", b"", Some(limit), Wait::ForName).unwrap();
        let (mut begun, _) = stopped.accept().unwrap();
        node.give_up_connecting(token);
        // The connection is closed: it ends after its last words.
        std::io::copy(&mut begun, &mut std::io::sink()).unwrap();
        std::thread::sleep(2 * limit);
        assert_eq!(other.accept().unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    }

    #[test]
    fn the_first_link_to_a_node_is_its_route_also_if_the_node_connects_meanwhile() {
        let dir = tempfile::tempdir().unwrap();
        let config = Config::default().dir(dir.path()).shared_dir(dir.path().join("shared"));
        let (mut one, mut other) =
            (Node::with_config(config.clone()).unwrap(), Node::with_config(config).unwrap());
        let accept = || Accept::Automatic(Vec::new());
        one.serve("one", Access::SameUser, accept()).unwrap();
        other.serve("other", Access::SameUser, accept()).unwrap();
        let limit = Some(Duration::from_secs(20));
        let token = one.begin_connect("other", b"", limit, Wait::No).unwrap();
        while !matches!(other.next_event(), Some(Event::Connected { .. })) {
            std::thread::yield_now();
        }
        // Its link exists already, and `one` has yet to ask for its own.
        other.connect("one", b"", limit).unwrap();
        let first = loop {
            one.poll().unwrap();
            if one.links().count() == 2 {
                break one.end_connect(token).unwrap().unwrap();
            }
            std::thread::yield_now();
        };
        assert_eq!(one.routes.find(other.id()), Some(first.index));
    }

    /// A server that sends more events than are remembered before its client has taken the link.
    #[test]
    fn a_link_that_ended_before_it_was_taken_is_reported_however_much_its_server_said() {
        let dir = std::env::temp_dir().join(format!("hamlyn-early-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir(&dir).unwrap();
        let config = Config::default().dir(dir.clone());
        let until = |what: &str, mut is_so: std::boxed::Box<dyn FnMut() -> bool + '_>| {
            let end = Instant::now() + Duration::from_secs(20);
            while !is_so() {
                assert!(Instant::now() < end, "it never came to be that {what}");
                std::thread::sleep(Duration::from_micros(200));
            }
        };
        let stat = Arc::new(String::new);
        let server = Control::start(&config, &Identity::new().unwrap(), stat).unwrap();
        let name: ServiceName = "x".parse().unwrap();
        server.serve(&name, Access::SameUser, Accept::Automatic(Vec::new())).unwrap();
        let mut node = Node::with_config(config.clone()).unwrap();
        let token = node.begin_connect("x", b"", Some(Duration::from_secs(20)), Wait::No).unwrap();
        let mut link = None;
        until(
            "the link is there",
            std::boxed::Box::new(|| {
                for event in server.inbox().take() {
                    if let ControlEvent::Connected(new) = event {
                        link = Some(new);
                    }
                }
                link.is_some()
            }),
        );
        let link = link.unwrap();
        for slot in 0..2000 {
            server.tell_stale(link.token, slot, 0);
            if slot % 50 == 0 {
                std::thread::sleep(Duration::from_millis(2));
            }
        }
        server.close(link.token);
        let control = node.control();
        let closed = || {
            let counters = control.counters();
            counters.iter().any(|row| row.0 == "control.closed_graceful" && row.1 == 1)
        };
        until("it has ended", std::boxed::Box::new(closed));
        let id = node.end_connect(token).unwrap().unwrap();
        let mut is_told = false;
        while let Some(event) = node.next_event() {
            is_told |= matches!(event, Event::Closed { link, .. } if link == id);
        }
        assert!(is_told, "the link ended, and nobody said so");
        drop((link, server, node));
        let _ = std::fs::remove_dir_all(&dir);
    }
}
