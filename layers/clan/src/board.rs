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

use crate::Config;
use crate::ends::{Door, End, Inbox, Notes, unpoisoned};
use crate::events::Target;
use crate::memory::{Imported, RegionCore, Signal};
use crate::requests::Engine;
use crate::trips::Trip;
use crate::wire::{
    DATA_BYTES_MAX, Head, MESSAGE_BYTES_MAX, OOB_BYTES, Rights, TICKET_BYTES, VERSION, kind, status,
};
use hamlyn::node::{ApertureEvent, Event, Look, Node, NodeSendError};
use hamlyn::protocol::{Connection, Protocol};
use hamlyn::{
    AreaId, Envelope, Flags, LinkId, Peer, QueueId, RequestId, SlotConfig, SlotId, Ticket,
};
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use zerocopy::{FromBytes, IntoBytes};

/// Answers that wait for room, of one peer.
const ANSWERS_MAX: usize = 4096;
/// Regions given to one peer.
const EXPORTS_OF_PEER_MAX: u32 = 4096;
/// Signals of all exports together that wait.
const SIGNALS_MAX: u32 = 1 << 14;
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

/// A get that this program answers.
struct Get {
    region: Arc<RegionCore>,
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
    pub exports: HashMap<u32, Exported>,
    next_export: u32,
    signals: Option<QueueId>,
    /// The exports of slots for signals.
    signalled: HashMap<SlotId, u32>,
    /// By link and number there.
    pub imports: HashMap<(LinkId, u32), Weak<Imported>>,
    pub engine: Engine,
    pub figures: Figures,
    /// The link whose room the last turn waited for.
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
            exports: HashMap::new(),
            next_export: 0,
            signals: None,
            signalled: HashMap::new(),
            imports: HashMap::new(),
            engine: Engine::default(),
            figures: Figures::default(),
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
        let made = node.install(door.slot, Inbox(self.notes.clone()));
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

    pub fn meet(&mut self, node: &Node, connection: &Arc<Connection>, inbox: Door, to: Ticket) {
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
        self.unexport_all(node, |export| export.end == name);
        if let Some(partner) = self.partners.get_mut(&link) {
            partner.endpoints -= 1;
        }
        if let (Some(peer), true) = (peer, is_open) {
            self.answer(link, Head { to: peer.into(), ..Head::of(kind::CLOSE) });
        }
    }

    /// A window is used no more: its owner takes the region back.
    pub fn release(&mut self, node: &mut Node, link: LinkId, number: u32) {
        if self.imports.remove(&(link, number)).is_some() {
            self.answer(link, Head { number: number.into(), ..Head::of(kind::RELEASED) });
            self.turn(node);
        }
    }

    /// The message leaves in this turn, or in the next ones.
    fn answer(&mut self, link: LinkId, head: Head) {
        if let Some(partner) = self.partners.get_mut(&link) {
            partner.answers.push_back(head);
            self.is_busy = true;
        }
    }

    /// Gives a region to an end point: the number, under which the peer names it.
    pub fn export(
        &mut self,
        node: &mut Node,
        end: u64,
        region: &Arc<RegionCore>,
        rights: Rights,
        credit: u32,
    ) -> Result<(u32, [Option<SlotId>; 2]), String> {
        let link = self.place(end).ok_or("the end point is closed")?.link;
        let partner = self.partners.get(&link).ok_or("the peer is gone")?;
        if partner.exports >= EXPORTS_OF_PEER_MAX {
            return Err(format!("the peer has {EXPORTS_OF_PEER_MAX} regions, the most allowed"));
        }
        let door = match region.area() {
            Some(area) if rights.writes() => {
                let door = Door::new(node, area)?;
                if region.wires.has_room_for_any()
                    && let Err(e) =
                        node.install_filtered(door.slot, region.tripped(), region.filter())
                {
                    door.remove(node);
                    return Err(e.to_string());
                }
                Some(door)
            }
            _ => None,
        };
        let slot = match (region.area(), credit) {
            (Some(area), 1..) if rights.writes() => Some(self.signal_slot(node, area, credit)),
            _ => None,
        };
        let slot = slot.transpose().inspect_err(|_| {
            door.inspect(|door| door.remove(node));
        })?;
        let signals = Signals { slot, credit, ..Default::default() };
        self.next_export = self.next_export.wrapping_add(1);
        let number = self.next_export;
        if let Some(slot) = slot {
            self.signalled.insert(slot, number);
        }
        let region = region.clone();
        if let Some(partner) = self.partners.get_mut(&link) {
            partner.exports += 1;
        }
        self.exports.insert(number, Exported { link, end, region, rights, door, signals });
        Ok((number, [door.map(|door| door.slot), slot]))
    }

    /// A slot over a region that announces each packet.
    fn signal_slot(
        &mut self,
        node: &mut Node,
        area: AreaId,
        credit: u32,
    ) -> Result<SlotId, String> {
        let queue = match self.signals {
            Some(queue) => queue,
            None => node.notification_queue(SIGNALS_MAX).map_err(|e| e.to_string())?,
        };
        self.signals = Some(queue);
        node.slot(SlotConfig::new(area, queue).credit(credit)).map_err(|e| e.to_string())
    }

    /// Signals that have come go to their regions.
    fn sort_signals(&mut self, node: &mut Node) {
        let Some(queue) = self.signals else { return };
        while let Ok(Some(came)) = node.pop(queue) {
            let number = self.signalled.get(&came.slot);
            let Some((number, export)) =
                number.and_then(|number| Some((number, self.exports.get_mut(number)?)))
            else {
                continue;
            };
            if export.signals.waiting >= export.signals.credit {
                self.figures.refused += 1;
                continue;
            }
            export.signals.waiting += 1;
            let signal = Signal { word: came.word, export: *number };
            unpoisoned(&export.region.signals).push_back(signal);
            if let Some(target) = &*unpoisoned(&export.region.signal_target) {
                target.raise_in_turn();
            }
        }
    }

    pub fn take_signal(&mut self, node: &mut Node, region: &RegionCore) -> Option<Signal> {
        let signal = unpoisoned(&region.signals).pop_front()?;
        if let Some(export) = self.exports.get_mut(&signal.export) {
            let signals = &mut export.signals;
            signals.waiting -= 1;
            signals.taken += 1;
            if signals.taken * 2 >= signals.credit {
                let taken = core::mem::take(&mut signals.taken);
                let head = Head {
                    number: signal.export.into(),
                    length: u64::from(taken).into(),
                    ..Head::of(kind::CREDIT)
                };
                let link = export.link;
                self.answer(link, head);
                self.turn(node);
            }
        }
        Some(signal)
    }

    /// Takes regions back, and tells their holders.
    pub fn unexport_all(&mut self, node: &mut Node, which: impl Fn(&Exported) -> bool) {
        let found = self.exports.iter().filter(|(_, export)| which(export));
        for number in found.map(|(number, _)| *number).collect::<Vec<_>>() {
            self.unexport(node, number);
        }
    }

    pub fn unexport(&mut self, node: &mut Node, number: u32) {
        let Some(export) = self.exports.remove(&number) else { return };
        if let Some(door) = export.door {
            door.remove(node);
        }
        if let Some(slot) = export.signals.slot {
            let _ = node.remove_slot(slot);
            self.signalled.remove(&slot);
        }
        if let Some(aperture) = export.region.aperture() {
            let _ = node.revoke_aperture(aperture);
        }
        if let Some(partner) = self.partners.get_mut(&export.link) {
            partner.exports -= 1;
        }
        self.answer(export.link, Head { number: number.into(), ..Head::of(kind::REVOKED) });
    }

    /// An export of another region is left alone.
    pub fn unexport_of(&mut self, node: &mut Node, region: &Arc<RegionCore>, number: u32) {
        let export = self.exports.get(&number);
        if export.is_some_and(|export| Arc::ptr_eq(&export.region, region)) {
            self.unexport(node, number);
        }
    }

    pub fn unexport_region(&mut self, node: &mut Node, region: &Arc<RegionCore>) {
        self.unexport_all(node, |export| Arc::ptr_eq(&export.region, region));
    }

    /// What a waiting caller does next.
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
        if self.notes.has_any.swap(false, Ordering::Acquire) {
            let said = core::mem::take(&mut *unpoisoned(&self.notes.said));
            for (link, bytes) in said {
                self.hear(node, link, &bytes);
            }
            for area in core::mem::take(&mut *unpoisoned(&self.notes.areas)) {
                let _ = node.remove_area(area);
            }
        } else if !self.is_busy && self.blocked.is_none() {
            return;
        }
        self.is_busy = false;
        self.blocked = None;
        for (link, partner) in &mut self.partners {
            let mut step = Step { node, link: *link, to: partner.to, has_room: true };
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
                let sent = get.serve(&mut step, &mut self.scratch[..partner.data_bytes]);
                served += sent;
                self.figures.bytes_read_by_peers += sent;
                if get.sent == get.length {
                    partner.gets.pop_front();
                }
            }
            self.is_busy |= step.has_room && !partner.gets.is_empty();
            if !step.has_room {
                self.blocked = Some(*link);
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
        // Another thread may sleep until then, and no packet has to have come.
        if self.figures.requests_completed != completed {
            node.wake();
        }
    }

    /// There is something to do again.
    pub fn start_engine(&mut self, node: &mut Node) {
        self.is_busy = true;
        self.turn(node);
        if self.is_busy || self.blocked.is_some() {
            node.wake();
        }
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
                Some(place) => {
                    place.end.close("the peer closed it");
                    self.engine.look_at_ends();
                    self.is_busy = true;
                    self.unexport_all(node, |export| export.end == to);
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
                let (start, length) = (head.offset.get(), head.length.get());
                let range = export.region.range(start, length)?;
                export.region.wires.touch(range, Trip::Write);
            }
            kind::GET => {
                let (offset, length) = (head.offset.get(), head.length.get());
                let export = self.exports.get(&number).filter(|export| export.link == link);
                let region = export.filter(|export| export.rights.reads());
                let no = match region {
                    None => Some(status::REVOKED),
                    Some(_) if partner.gets.len() >= GETS_MAX => Some(status::BUSY),
                    Some(_) => None,
                };
                if let Some(no) = no {
                    if partner.answers.len() >= ANSWERS_MAX {
                        return None;
                    }
                    let head = Head { to: to.into(), number: no.into(), ..Head::of(kind::DATA) };
                    self.answer(link, head);
                    return Some(());
                }
                let region = region?.region.clone();
                region.range(offset, length).filter(|range| !range.is_empty())?;
                partner.gets.push_back(Get { region, answer: to, offset, length, sent: 0 });
                self.is_busy = true;
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
    fn part(&mut self, node: &mut Node, link: LinkId, why: &str) {
        let Some(partner) = self.partners.remove(&link) else { return };
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

/// One packet over one link, now.
pub(crate) fn send_over(
    node: &mut Node,
    link: LinkId,
    ticket: &Ticket,
    slices: &[&[u8]],
) -> Result<(), NodeSendError> {
    node.try_send_gathered(&Envelope::new(ticket).over(link), slices)
}

impl Get {
    /// Sends the next bytes; returns how many.
    fn serve(&mut self, step: &mut Step<'_>, scratch: &mut [u8]) -> u64 {
        let length = (self.length - self.sent).min(scratch.len() as u64);
        let (at, bytes) = (self.offset + self.sent, &mut scratch[..length as usize]);
        self.region.wires.touch(at..at + length, Trip::Read);
        let mut head =
            Head { to: self.answer.into(), offset: self.sent.into(), ..Head::of(kind::DATA) };
        if self.region.read(at, bytes).is_err() {
            head.number = status::REVOKED.into();
        }
        if !step.send(&[head.as_bytes(), bytes]) {
            return 0;
        }
        self.sent = if head.number == status::FINE { self.sent + length } else { self.length };
        length
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
            self.meet(node, connection, inbox, to);
        }
    }

    fn left(&mut self, node: &mut Node, connection: &Connection) {
        // What came before its end is handled before its end.
        self.turn(node);
        let why = connection.ended().map(ToString::to_string).unwrap_or_default();
        self.part(node, connection.link(), &why);
    }

    fn told(&mut self, _: &mut Node, connection: &Connection, event: Event) -> Option<Event> {
        match event {
            // An import waits for it.
            Event::Aperture { what: ApertureEvent::Held, .. } => None,
            Event::Aperture { aperture, what: ApertureEvent::Revoked } => {
                let of_aperture = |imported: &Arc<Imported>| imported.is_of(aperture);
                let imports = self.imports.values().filter_map(Weak::upgrade);
                imports.filter(of_aperture).for_each(|imported| imported.revoke());
                None
            }
            // The peer's own word says which region.
            Event::TicketRevoked { .. } => None,
            _ => {
                let _ = connection;
                None
            }
        }
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
