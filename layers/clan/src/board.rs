//! The layer at the node, under its lock: end points, regions that peers may use, and what peers say.
//!
//! ```text
//!   in a turn     a hook per peer only notes a control message; puts are deposited and trip wires
//!   after it      `turn`: handle the notes, answer, serve gets, let the engine go on
//! ```
//! Each peer has one slot for control messages, whose ticket it gets when it connects, and a slot for each
//! region that it may write. A peer can name only what was given to its own link.
//!
//! Never: a peer makes anything grow beyond the settings; a message of one peer concerns another's end.

mod exports;

use crate::Config;
use crate::ends::{Door, End, Inbox, Notes, unpoisoned};
use crate::events::Target;
use crate::memory::{Imported, RegionCore};
use crate::requests::Engine;
use crate::trips::{OwnHasher, Trip};
use crate::wire::{
    DATA_BYTES_MAX, Head, MESSAGE_BYTES_MAX, OOB_BYTES, Rights, TICKET_BYTES, TOUCH_BYTES_MAX,
    VERSION, kind, status,
};
use hamlyn::node::{ApertureEvent, Event, Look, Node, NodeSendError};
use hamlyn::protocol::{Connection, Protocol};
use hamlyn::{Flags, LinkId, Peer, QueueId, RequestId, SlotId, Ticket};
use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use zerocopy::{FromBytes, IntoBytes};

/// Answers that wait for room, of one peer.
const ANSWERS_MAX: usize = 4096;
/// Gets of one peer that are being served.
const GETS_MAX: usize = 64;
/// Bytes of gets that one turn serves, of one peer.
const SERVED_IN_A_TURN: u64 = 64 << 10;

/// An end point of this program.
pub(crate) struct Place {
    pub end: Arc<End>,
    pub link: LinkId,
    generation: u32,
    /// Its name at the peer, when it is connected.
    pub peer: Option<u64>,
    is_refused: bool,
}

/// A region that a peer may use.
pub(crate) struct Exported {
    pub link: LinkId,
    /// The end point that it was given to.
    end: u64,
    region: Arc<RegionCore>,
    rights: Rights,
    door: Option<Door>,
    signals: Signals,
}

/// Those of one export.
#[derive(Clone, Copy, Debug, Default)]
struct Signals {
    slot: Option<SlotId>,
    credit: u32,
    /// Came, and not taken.
    waiting: u32,
    /// Taken, and not yet given back as credit.
    taken: u32,
}

/// A get that this program answers, as long as the region is exported.
struct Get {
    number: u32,
    answer: u64,
    offset: u64,
    length: u64,
    sent: u64,
}

/// A program at the other end of a link.
pub(crate) struct Partner {
    pub connection: Arc<Connection>,
    inbox: Door,
    pub to: Ticket,
    answers: VecDeque<Head>,
    gets: VecDeque<Get>,
    endpoints: u32,
    exports: u32,
    data_bytes: usize,
    /// This program has connected: it ends the link with its last end point.
    is_ours: bool,
}

/// Counts since the beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
#[repr(C)]
pub struct Figures {
    /// Out-of-band messages that came.
    pub oob_received: u64,
    /// Control messages that broke the rules, and were thrown away.
    pub refused: u64,
    /// Control messages for an end point or a request that was gone.
    pub late: u64,
    /// Control messages that were thrown away because too many came in one turn.
    pub thrown_away: u64,
    /// Bytes read by peers.
    pub bytes_read_by_peers: u64,
    /// Bytes that the engine has moved.
    pub bytes_moved: u64,
    /// Requests that the engine has completed, without an error or with one.
    pub requests_completed: u64,
}

/// The state at the node.
pub(crate) struct Board {
    config: Config,
    notes: Arc<Notes>,
    asking: HashMap<RequestId, (Door, Ticket)>,
    pub partners: HashMap<LinkId, Partner>,
    pub places: slab::Slab<Place>,
    generation: u32,
    pub accepted: VecDeque<u64>,
    pub accept_target: Option<Target>,
    exports: HashMap<u32, Exported, OwnHasher>,
    next_export: u32,
    /// Each end point and the numbers of its exports: peers close end points one by one.
    given: BTreeSet<(u64, u32)>,
    signals: Option<QueueId>,
    /// The exports of slots for signals.
    signalled: HashMap<SlotId, u32, OwnHasher>,
    /// By link and number there.
    pub imports: HashMap<(LinkId, u32), Weak<Imported>>,
    pub engine: Engine,
    pub figures: Figures,
    /// Peers for which there are answers, or gets to be served.
    due: HashSet<LinkId>,
    /// Links of this program's own over which it has no end point any more.
    unused: HashSet<LinkId>,
    /// The link whose room the engine waits for.
    blocked: Option<LinkId>,
    /// The last turn has left work that could be done now.
    is_busy: bool,
    scratch: Box<[u8; DATA_BYTES_MAX]>,
}

/// The words of a request to connect, and of its answer.
pub(crate) fn hello(ticket: &Ticket) -> Vec<u8> {
    [&VERSION.to_le_bytes()[..], &ticket.to_bytes()].concat()
}

/// The ticket of a hello.
pub(crate) fn of_hello(bytes: &[u8], peer: &Peer) -> Result<Ticket, String> {
    let length = || format!("a hello of {} bytes, not {}", bytes.len(), 4 + TICKET_BYTES);
    let (version, ticket) = bytes.split_first_chunk::<4>().ok_or_else(length)?;
    match u32::from_le_bytes(*version) {
        VERSION if ticket.len() == TICKET_BYTES => {}
        VERSION => return Err(length()),
        other => return Err(format!("version {other} of CLAN on Hamlyn, not {VERSION}")),
    }
    let ticket = Ticket::from_bytes(ticket).map_err(|e| e.to_string())?;
    if ticket.destination != peer.node || ticket.capacity() < MESSAGE_BYTES_MAX as u64 {
        return Err("a ticket of another node, or for less than a message".into());
    }
    Ok(ticket.with_flags(Flags::WAKE | Flags::IN_ORDER))
}

impl Board {
    pub fn new(config: Config, notes: Arc<Notes>) -> Self {
        Self {
            config,
            notes,
            asking: HashMap::new(),
            partners: HashMap::new(),
            places: slab::Slab::new(),
            generation: 0,
            accepted: VecDeque::new(),
            accept_target: None,
            exports: HashMap::default(),
            next_export: 0,
            given: BTreeSet::new(),
            signals: None,
            signalled: HashMap::default(),
            imports: HashMap::new(),
            engine: Engine::default(),
            figures: Figures::default(),
            due: HashSet::new(),
            unused: HashSet::new(),
            blocked: None,
            is_busy: false,
            scratch: Box::new([0; DATA_BYTES_MAX]),
        }
    }

    /// A slot for a peer's control messages, and its ticket.
    pub fn inbox(&mut self, node: &mut Node) -> Result<(Door, Ticket), String> {
        let area = node.message_area(MESSAGE_BYTES_MAX).map_err(|e| e.to_string())?;
        let door = Door::new(node, area).inspect_err(|_| {
            let _ = node.remove_area(area);
        })?;
        let made = node.install(door.slot, Inbox { notes: self.notes.clone(), came: (0, 0) });
        match made.and_then(|_| node.fast_ticket(door.slot)) {
            Ok(ticket) => Ok((door, ticket)),
            Err(e) => {
                self.remove_inbox(node, door);
                Err(e.to_string())
            }
        }
    }

    /// Gives back what [`inbox`](Self::inbox) made.
    pub fn remove_inbox(&mut self, node: &mut Node, door: Door) {
        let range = node.slot_range(door.slot);
        door.remove(node);
        if let Ok((area, _)) = range {
            let _ = node.remove_area(area);
        }
    }

    pub fn meet(
        &mut self,
        node: &Node,
        connection: &Arc<Connection>,
        inbox: Door,
        to: Ticket,
        is_ours: bool,
    ) {
        let link = connection.link();
        let at_once = node.fast_bytes_max(link).unwrap_or(0).saturating_sub(size_of::<Head>());
        let partner = Partner {
            connection: connection.clone(),
            inbox,
            to,
            answers: VecDeque::new(),
            gets: VecDeque::new(),
            endpoints: 0,
            exports: 0,
            data_bytes: at_once.clamp(16, DATA_BYTES_MAX),
            is_ours,
        };
        self.partners.insert(link, partner);
    }

    /// A new end point over a link: its name. `None`: there is no such link, or it has as many as it may.
    pub fn open(&mut self, link: LinkId, peer: Option<u64>) -> Option<u64> {
        let partner = self.partners.get_mut(&link)?;
        if partner.endpoints >= self.config.endpoints_of_peer_max {
            return None;
        }
        partner.endpoints += 1;
        self.unused.remove(&link);
        self.generation = self.generation.wrapping_add(1);
        let (end, generation) = (Arc::new(End::default()), self.generation);
        let key = self.places.insert(Place { end, link, generation, peer, is_refused: false });
        let name = key as u64 | (generation as u64) << 32;
        if peer.is_none() {
            self.answer(link, Head { from: name.into(), ..Head::of(kind::OPEN) });
        }
        Some(name)
    }

    pub fn place(&self, name: u64) -> Option<&Place> {
        let place = self.places.get(name as u32 as usize);
        place.filter(|place| place.generation == (name >> 32) as u32)
    }

    fn place_mut(&mut self, name: u64, link: LinkId) -> Option<&mut Place> {
        let place = self.places.get_mut(name as u32 as usize);
        place.filter(|place| place.generation == (name >> 32) as u32 && place.link == link)
    }

    /// Whether the other end has said no, or yes.
    pub fn is_opened(&self, name: u64) -> Option<bool> {
        let place = self.place(name)?;
        match (place.is_refused || place.end.closed().is_some(), place.peer) {
            (true, _) => Some(false),
            (false, Some(_)) => Some(true),
            (false, None) => None,
        }
    }

    /// Closes an end point, tells the other, and takes back what was given to it.
    pub fn close_end(&mut self, node: &mut Node, name: u64) {
        let Some(place) = self.place(name) else { return };
        let (link, peer) = (place.link, place.peer);
        let is_open = place.end.closed().is_none();
        place.end.close("closed here");
        node.wake();
        self.engine.look_at_ends();
        self.places.remove(name as u32 as usize);
        self.unexport_given(node, name);
        if let Some(partner) = self.partners.get_mut(&link) {
            partner.endpoints -= 1;
            if partner.is_ours && partner.endpoints == 0 {
                self.unused.insert(link);
            }
        }
        if let (Some(peer), true) = (peer, is_open) {
            self.answer(link, Head { to: peer.into(), ..Head::of(kind::CLOSE) });
        }
    }

    /// Forgets the peers of unused links that have got everything; the caller disconnects them.
    pub fn part_unused(&mut self, node: &mut Node) -> Vec<Arc<Connection>> {
        let done = |link: &&LinkId| {
            self.partners.get(link).is_none_or(|partner| partner.answers.is_empty())
        };
        let done: Vec<_> = self.unused.iter().filter(done).copied().collect();
        done.into_iter().filter_map(|link| self.part(node, link, "closed here")).collect()
    }

    /// Another window onto a region; one that was imported before is the same.
    pub fn import(&mut self, imported: Imported) -> Arc<Imported> {
        let name = (imported.link, imported.number);
        let known = self.imports.get(&name).and_then(Weak::upgrade);
        let core = known.unwrap_or_else(|| Arc::new(imported));
        core.windows.fetch_add(1, Ordering::Relaxed);
        self.imports.insert(name, Arc::downgrade(&core));
        core
    }

    /// A window is used no more: with the last one the owner takes the region back.
    pub fn release(&mut self, node: &mut Node, core: &Imported) {
        let (link, number) = (core.link, core.number);
        if core.windows.fetch_sub(1, Ordering::Relaxed) > 1 {
            return;
        }
        if self.imports.remove(&(link, number)).is_some() {
            self.answer(link, Head { number: number.into(), ..Head::of(kind::RELEASED) });
            self.turn(node);
        }
    }

    /// The message leaves in this turn, or in the next ones.
    fn answer(&mut self, link: LinkId, head: Head) {
        if let Some(partner) = self.partners.get_mut(&link) {
            partner.answers.push_back(head);
            self.due.insert(link);
            self.is_busy = true;
        }
    }

    /// The next step of a caller that waits.
    pub fn wants<R>(&self) -> Look<R> {
        match (self.is_busy, self.blocked) {
            (true, _) => Look::Again,
            (false, Some(link)) => Look::Room(link),
            (false, None) => Look::Nothing,
        }
    }

    /// After each turn of the node.
    pub fn turn(&mut self, node: &mut Node) {
        self.sort_signals(node);
        if self.notes.take_has_any() {
            self.notes.turns.fetch_add(1, Ordering::Relaxed);
            let said = core::mem::take(&mut *unpoisoned(&self.notes.said));
            for (link, bytes) in said {
                self.hear(node, link, &bytes);
            }
            for area in core::mem::take(&mut *unpoisoned(&self.notes.areas)) {
                let _ = node.remove_area(area);
            }
        } else if !self.is_busy && self.blocked.is_none() && self.due.is_empty() {
            return;
        }
        self.is_busy = false;
        self.blocked = None;
        for link in core::mem::take(&mut self.due) {
            let Some(partner) = self.partners.get_mut(&link) else { continue };
            let mut step = Step { node, link, to: partner.to, has_room: true };
            while let Some(head) = partner.answers.front()
                && step.send(&[head.as_bytes()])
            {
                partner.answers.pop_front();
            }
            let mut served = 0;
            while step.has_room
                && served < SERVED_IN_A_TURN
                && let Some(get) = partner.gets.front_mut()
            {
                let region = self.exports.get(&get.number).map(|export| &*export.region);
                let scratch = &mut self.scratch[..partner.data_bytes];
                let sent = get.serve(&mut step, region, scratch);
                served += sent;
                self.figures.bytes_read_by_peers += sent;
                if get.sent == get.length {
                    partner.gets.pop_front();
                }
            }
            if !step.has_room {
                // No caller waits for a peer that does not take what it asked for.
                node.wake_at_room(link);
                self.due.insert(link);
            } else if !partner.gets.is_empty() {
                self.is_busy = true;
                self.due.insert(link);
            }
        }
        let mut engine = core::mem::take(&mut self.engine);
        let completed = self.figures.requests_completed;
        match engine.turn(node, &self.partners, &mut self.figures) {
            Some(Look::Room(link)) => self.blocked = Some(link),
            Some(_) => self.is_busy = true,
            None => {}
        }
        self.engine = engine;
        // Another thread may sleep until then, and no packet has to have come. And some thread goes on.
        if self.is_busy || self.figures.requests_completed != completed {
            node.wake();
        }
    }

    /// There is something to do again.
    pub fn start_engine(&mut self, node: &mut Node) {
        self.is_busy = true;
        self.turn(node);
    }

    /// A control message of a peer.
    fn hear(&mut self, node: &mut Node, link: LinkId, bytes: &[u8]) {
        if self.heed(node, link, bytes).is_none() {
            self.figures.refused += 1;
        }
    }

    /// `None`: it breaks the rules.
    fn heed(&mut self, node: &mut Node, link: LinkId, bytes: &[u8]) -> Option<()> {
        let (head, body) = Head::read_from_prefix(bytes).ok()?;
        let (to, from, number) = (head.to.get(), head.from.get(), head.number.get());
        let partner = self.partners.get_mut(&link)?;
        match head.kind.get() {
            kind::OPEN => {
                if partner.answers.len() >= ANSWERS_MAX {
                    return None;
                }
                let has_room = self.accepted.len() < self.config.backlog as usize;
                let opened = has_room.then(|| self.open(link, Some(from))).flatten();
                let Some(name) = opened else {
                    self.answer(link, Head { to: from.into(), ..Head::of(kind::REFUSED) });
                    return Some(());
                };
                self.accepted.push_back(name);
                if let Some(target) = &self.accept_target {
                    target.raise_in_turn();
                }
                let head = Head { to: from.into(), from: name.into(), ..Head::of(kind::OPENED) };
                self.answer(link, head);
            }
            kind::OPENED => match self.place_mut(to, link) {
                Some(place) if place.peer.is_none() => place.peer = Some(from),
                Some(_) => return None,
                // Given up meanwhile.
                None => {
                    let has_room = self.partners.get(&link)?.answers.len() < ANSWERS_MAX;
                    has_room.then(|| {
                        self.answer(link, Head { to: from.into(), ..Head::of(kind::CLOSE) });
                    })?;
                }
            },
            kind::REFUSED => match self.place_mut(to, link) {
                Some(place) if place.peer.is_none() => place.is_refused = true,
                _ => return None,
            },
            kind::CLOSE => match self.place_mut(to, link) {
                Some(place) if place.end.closed().is_some() => return None,
                Some(place) => {
                    place.end.close("the peer closed it");
                    self.engine.look_at_ends();
                    self.is_busy = true;
                    self.unexport_given(node, to);
                }
                None => self.figures.late += 1,
            },
            kind::OOB => {
                let message = body.first_chunk::<OOB_BYTES>()?;
                let most = self.config.oob_max;
                match self.place_mut(to, link) {
                    Some(place) => {
                        place.end.push_oob(*message, most);
                        self.figures.oob_received += 1;
                    }
                    None => self.figures.late += 1,
                }
            }
            kind::TOUCH => {
                let export = self.exports.get(&number).filter(|export| export.link == link)?;
                let may_store = export.rights.writes() && export.region.aperture().is_some();
                let (start, length) = (head.offset.get(), head.length.get());
                let range = export.region.range(start, length)?;
                if !may_store || length > TOUCH_BYTES_MAX {
                    return None;
                }
                export.region.wires.touch(range, Trip::Write);
            }
            kind::GET => {
                let (offset, length) = (head.offset.get(), head.length.get());
                let export = self.exports.get(&number).filter(|export| export.link == link);
                let no = match export.filter(|export| export.rights.reads()) {
                    None => status::REVOKED,
                    Some(_) if partner.gets.len() >= GETS_MAX => status::BUSY,
                    Some(export) => {
                        export.region.range(offset, length).filter(|range| !range.is_empty())?;
                        partner.gets.push_back(Get { number, answer: to, offset, length, sent: 0 });
                        self.due.insert(link);
                        return Some(());
                    }
                };
                if partner.answers.len() >= ANSWERS_MAX {
                    return None;
                }
                let head = Head { to: to.into(), number: no.into(), ..Head::of(kind::DATA) };
                self.answer(link, head);
            }
            kind::DATA => {
                let offset = head.offset.get();
                let answer = (to, number, offset);
                match self.engine.hear(node, link, answer, body, &mut self.figures) {
                    Some(true) => self.is_busy = true,
                    Some(false) => self.figures.late += 1,
                    None => return None,
                }
            }
            kind::REVOKED => {
                if let Some(imported) = self.imports.remove(&(link, number)) {
                    imported.upgrade().inspect(|imported| imported.revoke());
                    self.engine.look_at_ends();
                    self.is_busy = true;
                }
            }
            kind::RELEASED => {
                if self.exports.get(&number).is_some_and(|export| export.link == link) {
                    self.unexport(node, number);
                }
            }
            kind::CREDIT => {
                let imported = self.imports.get(&(link, number)).and_then(Weak::upgrade);
                let signals = u32::try_from(head.length.get()).ok()?;
                imported.inspect(|imported| imported.credit(signals));
            }
            _ => return None,
        }
        Some(())
    }

    /// The counts, with those that hooks keep.
    pub fn figures(&self) -> Figures {
        Figures { thrown_away: self.notes.thrown_away.load(Ordering::Relaxed), ..self.figures }
    }

    /// A peer is gone: its end points are closed, and what it was given is taken back.
    fn part(&mut self, node: &mut Node, link: LinkId, why: &str) -> Option<Arc<Connection>> {
        self.unused.remove(&link);
        let partner = self.partners.remove(&link)?;
        self.unexport_all(node, |export| export.link == link);
        for (_, place) in &self.places {
            if place.link == link {
                place.end.close(why);
            }
        }
        self.imports.retain(|(of, _), _| *of != link);
        self.engine.look_at_ends();
        self.is_busy = true;
        self.remove_inbox(node, partner.inbox);
        Some(partner.connection)
    }
}

/// Sending to one peer in a turn, until there is no room.
struct Step<'a> {
    node: &'a mut Node,
    link: LinkId,
    to: Ticket,
    has_room: bool,
}

impl Step<'_> {
    /// `false`: there is no room, or the peer is gone, which ends in its own way.
    fn send(&mut self, slices: &[&[u8]]) -> bool {
        let sent = send_over(self.node, self.link, &self.to, slices);
        self.has_room = !matches!(sent, Err(NodeSendError::Full));
        sent.is_ok() || self.has_room
    }
}

/// One packet over one link, now or not at all: it does not wait in this program.
pub(crate) fn send_over(
    node: &mut Node,
    link: LinkId,
    ticket: &Ticket,
    slices: &[&[u8]],
) -> Result<(), NodeSendError> {
    match slices {
        [all] => node.try_send_fast_over(link, ticket, all, 0),
        _ => node.try_send_fast_over(link, ticket, &slices.concat(), 0),
    }
}

impl Get {
    /// Sends the next bytes of the region; returns how many.
    fn serve(
        &mut self,
        step: &mut Step<'_>,
        region: Option<&RegionCore>,
        scratch: &mut [u8],
    ) -> u64 {
        let length = (self.length - self.sent).min(scratch.len() as u64);
        let (at, mut bytes) = (self.offset + self.sent, &mut scratch[..length as usize]);
        let mut head =
            Head { to: self.answer.into(), offset: self.sent.into(), ..Head::of(kind::DATA) };
        let read = region.is_some_and(|region| {
            region.wires.touch(at..at + length, Trip::Read);
            region.read(at, bytes).is_ok()
        });
        if !read {
            // The bytes there are another answer's.
            (head.number, bytes) = (status::REVOKED.into(), &mut []);
        }
        if !step.send(&[head.as_bytes(), bytes]) {
            return 0;
        }
        self.sent = if read { self.sent + length } else { self.length };
        bytes.len() as u64
    }
}

impl Protocol for Board {
    fn check_place(&self, _: &Peer, _: &[u8]) -> Result<(), String> {
        let peers = self.asking.len() + self.partners.len();
        let has_place = peers < self.config.peers_max as usize;
        has_place.then_some(()).ok_or_else(|| format!("there are {peers} peers, the most allowed"))
    }

    fn admit(
        &mut self,
        node: &mut Node,
        request: RequestId,
        peer: &Peer,
        body: &[u8],
    ) -> Result<Vec<u8>, String> {
        let to = of_hello(body, peer)?;
        let (inbox, ticket) = self.inbox(node)?;
        self.asking.insert(request, (inbox, to));
        Ok(hello(&ticket))
    }

    fn withdrawn(&mut self, node: &mut Node, request: RequestId) {
        if let Some((inbox, _)) = self.asking.remove(&request) {
            self.remove_inbox(node, inbox);
        }
    }

    fn joined(&mut self, node: &mut Node, request: RequestId, connection: &Arc<Connection>) {
        if let Some((inbox, to)) = self.asking.remove(&request) {
            self.meet(node, connection, inbox, to, false);
        }
    }

    fn left(&mut self, node: &mut Node, connection: &Connection) {
        // Its words are handled before its end; other peers may have yet to join.
        self.sort_signals(node);
        let said = core::mem::take(&mut *unpoisoned(&self.notes.said));
        let of_it = |(link, _): &(LinkId, _)| *link == connection.link();
        let (its, others): (Vec<_>, _) = said.into_iter().partition(of_it);
        *unpoisoned(&self.notes.said) = others;
        for (link, bytes) in its {
            self.hear(node, link, &bytes);
        }
        let why = connection.ended().map(ToString::to_string).unwrap_or_default();
        self.part(node, connection.link(), &why);
    }

    fn told(&mut self, _: &mut Node, _: &Connection, event: Event) -> Option<Event> {
        // An import waits for an aperture that has come; of a ticket the peer's own word says more.
        if let Event::Aperture { aperture, what: ApertureEvent::Revoked } = event {
            let imports = self.imports.values().filter_map(Weak::upgrade);
            let of_aperture = imports.filter(|imported| imported.is_of(aperture));
            of_aperture.for_each(|imported| imported.revoke());
        }
        None
    }

    fn takes_turns(&self) -> bool {
        true
    }

    fn after_poll(&mut self, node: &mut Node) {
        self.turn(node);
    }

    fn close(&mut self, node: &mut Node) {
        let links: Vec<_> = self.partners.keys().copied().collect();
        for link in links {
            self.part(node, link, "closed here");
        }
        for (inbox, _) in core::mem::take(&mut self.asking).into_values() {
            self.remove_inbox(node, inbox);
        }
    }
}
