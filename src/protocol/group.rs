//! Groups (Hamlyn 2.5, 3.3): many processes send a part each to one, the *root*, which is told once
//! when all of them are there; and the root sends to all. Gather, scatter, reduce, barrier.
//!
//! ```text
//!   member 0 .. n-1                                   root
//!   send(part)        ---- entry of the member ---->  gather: all, or k of n, or who is missing
//!   (its next ticket) <--- ticket cell, silent -----  next_round
//!   receive           <--- one message, counted ----  scatter, broadcast; barrier
//!   (how many)        ---- word, silent ----------->
//! ```
//! # An entry for each member
//!
//! One entry would do to count "all packets of all members" (Hamlyn 2.5), and one notification
//! would come out. But then nobody could say who is missing, and members that do not trust one
//! another would share a counter and a key. So each member has an entry of its own in one paranoid
//! one-shot slot: a key, limits, and a count of its own. What one member does cannot spoil
//! another's part, a part that has arrived stands still, and a member that dies is named. The user
//! still waits once, for all of them. *Within* a member's part the paper's mechanism is at work:
//! [`GroupMember::delegate`](super::GroupMember::delegate) divides it among helpers, space and count
//! alike, and the root need not know. The helpers of one part trust one another.
//!
//! # Rounds
//!
//! A ticket is for one part of one round. When a round is over, the members whose part has arrived
//! get a new key, and its ticket lands silently in their memory; one that sends before it has
//! come waits. At most one ticket of a member is out at a time, so links may reorder. A member that
//! was not waited for (a threshold was met without it) still holds the ticket of its round: when
//! that part comes it is dropped as late, never counted to another round, and the member gets a
//! ticket of the round that is.
//!
//! # Who has gone
//!
//! A member that ends before its part has arrived ends the root's wait with
//! [`GroupError::MemberLost`], unless enough others are left for what is waited for. What it sent
//! before counts. Its place is free for another. A member that sends nonsense is sent away, which
//! is the same to the root. Members learn of the root's end at once: [`GroupError::RootLost`].

use super::ends::{Deadline, offered};
use super::manager::{Offer, OfferId, Protocols, set_up};
use super::outgoing::{Message, Outgoing};
use super::tickets::{fast_ticket_from, message_ticket_from};
use super::{Connection, EndPoint, GrowError, Kind, Manager, Seed, SendFailure};
use crate::control::{Peer, RequestId};
use crate::interface::notification::Consumer;
use crate::interface::{AreaId, LinkId, Mode, Notification, QueueId, SlotConfig, SlotId};
use crate::node::{CloseReason, Forked, Look, Node, NodeGuard, SendError, Waited};
use crate::wire::{Flags, MetadataIndex, Share, TICKET_BYTES, Ticket};
use core::time::Duration;
use std::boxed::Box;
use std::collections::HashMap;
use std::format;
use std::io;
use std::string::{String, ToString};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::vec::Vec;

/// Role, ticket of the ticket cell, ticket for what the root sends.
pub(super) const MEMBER_BODY: usize = 1 + 2 * TICKET_BYTES;
pub(super) const MEMBER: u8 = 0;
pub(super) const HELPER: u8 = 1;
/// Number, members, bytes of a part, round, ticket for the first part, ticket of the word.
pub(super) const ANSWER_BYTES: usize = 4 + 4 + 8 + 8 + 2 * TICKET_BYTES;
/// Round and ticket.
pub(super) const CELL_BYTES: usize = 8 + TICKET_BYTES;
/// What the root sends: kind and length.
const DOWN_BYTES: usize = 16;
pub(super) const DATA: u64 = 1;
pub(super) const RELEASE: u64 = 2;
/// Parts begin at multiples of this, so that they can be read as numbers of any kind.
const PART_ALIGN: usize = 64;
/// A place with no ticket out yet.
pub(super) const NO_ROUND: u64 = 0;

/// What a [`Group`] is made of.
#[derive(Clone, Debug)]
pub struct GroupConfig {
    /// How many members it has.
    pub members: u32,
    /// Most bytes of a member's part.
    pub part_bytes: usize,
    /// Most bytes that a scatter or broadcast sends to a member. As many as `part_bytes` unless
    /// set.
    pub scatter_bytes: usize,
}

impl GroupConfig {
    /// `members` members, parts of up to `part_bytes` bytes in both directions.
    pub fn new(members: u32, part_bytes: usize) -> Self {
        Self { members, part_bytes, scatter_bytes: part_bytes }
    }
}

fn numbers(numbers: &[u32]) -> String {
    let numbers: Vec<String> = numbers.iter().map(u32::to_string).collect();
    numbers.join(", ")
}

fn whose(peer: &Peer) -> String {
    let number = |number: Option<u32>| number.map_or("unknown".into(), |number| number.to_string());
    format!("process {} of user {}", number(peer.pid), number(peer.uid))
}

/// What was waited for has not come. What has arrived stays, and the call may be repeated.
#[derive(Clone, Debug, thiserror::Error)]
pub enum GroupError {
    /// The time is over.
    #[error(
        "{done} of {wanted} members were done within the time limit; missing: {}",
        numbers(missing)
    )]
    TimedOut {
        /// Members that were done with.
        done: u32,
        /// As many were wanted.
        wanted: u32,
        /// Those that were not; also those that have yet to join.
        missing: Vec<u32>,
    },
    /// The time is over; nothing was sent or received. Of a member's or a helper's call.
    #[error("the root did not get to it within the time limit; nothing was sent or received")]
    NotInTime,
    /// A member ended before its part had arrived, or before it was sent something.
    #[error("member {member} ({}) is lost, and {arrived} parts have arrived: {reason}", whose(.peer))]
    MemberLost {
        /// Its number.
        member: u32,
        /// Who it was, as the kernel says.
        peer: Box<Peer>,
        /// Why its connection ended.
        reason: CloseReason,
        /// Parts that have arrived in this round.
        arrived: u32,
    },
    /// The root is gone, and everything that it sent has been received.
    #[error("the root of the group is gone: {0}")]
    RootLost(CloseReason),
    /// The other side does something else: a barrier here, a scatter there, or the like.
    #[error("out of step: {0}")]
    OutOfStep(&'static str),
    /// Within the time limit only part of a message left. The rest was copied, and leaves first in
    /// the next call; the part must not be sent again.
    #[error("the time limit cut the message off; the rest of it leaves in the next call")]
    CutOff,
    /// A part of another length than allowed.
    #[error("{length} bytes where {allowed} are allowed; nothing was sent")]
    Length {
        /// Bytes that were to be sent.
        length: usize,
        /// How many may be.
        allowed: usize,
    },
    /// What was asked for cannot be.
    #[error("{0}")]
    Misuse(String),
    /// The calling process is a forked child.
    #[error(transparent)]
    Forked(#[from] Forked),
    /// Waiting failed.
    #[error("waiting failed: {0}")]
    Wait(Arc<io::Error>),
}

pub(super) fn misuse(e: impl ToString) -> GroupError {
    GroupError::Misuse(e.to_string())
}

impl GroupError {
    pub(super) fn from_waited(waited: Waited) -> Self {
        match waited {
            Waited::TimedOut => Self::NotInTime,
            Waited::Forked(e) => Self::Forked(e),
            Waited::Os(e) => Self::Wait(Arc::new(e)),
        }
    }

    pub(super) fn from_send(e: SendFailure) -> Self {
        match e {
            SendFailure::Ended(reason) => Self::RootLost(reason),
            SendFailure::CutOff => Self::CutOff,
            SendFailure::TimedOut => Self::NotInTime,
            e => misuse(e),
        }
    }
}

/// One member, as the root knows it.
#[derive(Debug, Default)]
struct Place {
    /// A peer has it, or is about to.
    taken: bool,
    connection: Option<Arc<Connection>>,
    /// Who had it before, if nobody has it now.
    lost: Option<(Peer, CloseReason)>,
    /// The round that the ticket is for which the member has not used, as far as is known.
    ticket_round: u64,
    /// The part of this round has arrived, and has so many bytes.
    arrived: Option<usize>,
    /// The link of the member whose part that was, while it has the place.
    arrived_from: Option<LinkId>,
    /// Where its tickets go, and how it is sent something.
    cell: Option<Ticket>,
    down: Option<Ticket>,
    /// The slot of the word in which it counts what it has received.
    word: Option<SlotId>,
    down_sent: u64,
    outgoing: Outgoing,
    owes_ticket: bool,
    /// The round that the member missed ended with a release, so it waits for one.
    missed_release: bool,
    owes_release: bool,
}

/// What the manager's side of the root and the end point share.
#[derive(Debug)]
struct Shared {
    config: GroupConfig,
    stride: usize,
    area: AreaId,
    queue: QueueId,
    slot: SlotId,
    words: AreaId,
    word_queue: QueueId,
    consumer: Consumer,
    /// Notifications that were taken from the queue where the node could not be looked at.
    heard: Vec<Notification>,
    /// Links that are to be closed, and why.
    bad: Vec<(LinkId, String)>,
    round: u64,
    arrived: u32,
    /// How many `is_ready` asks for.
    wanted: u32,
    late: u64,
    places: Vec<Place>,
    owing: Vec<u32>,
    /// The place of a member; `None`: a helper.
    requests: HashMap<RequestId, Option<u32>>,
    helpers: usize,
}

type Root = Arc<Mutex<Shared>>;

// Always inside the node's lock, where both are held.
fn lock(root: &Root) -> MutexGuard<'_, Shared> {
    root.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    fn limits(&self, member: u32) -> core::ops::Range<u64> {
        let start = (member as usize * self.stride) as u64;
        start..start + self.config.part_bytes as u64
    }

    #[inline]
    fn hear(&mut self) {
        while let Some(notification) = self.consumer.pop() {
            self.heard.push(notification);
        }
    }

    /// Of what was heard, how much will count as a part of this round.
    fn heard_parts(&self) -> u32 {
        let counts = |n: &&Notification| {
            self.places.get(n.index.0 as usize).is_some_and(|p| p.ticket_round == self.round)
        };
        self.heard.iter().filter(counts).count() as u32
    }

    /// Looks at each message that was heard; returns a link that is to be closed, and why.
    #[inline]
    fn settle(&mut self, node: &mut Node) -> Option<(LinkId, String)> {
        self.settle_all(node);
        self.bad.pop()
    }

    #[inline]
    fn settle_all(&mut self, node: &mut Node) {
        self.hear();
        while let Some(notification) = self.heard.pop() {
            if let Err(bad) = self.settle_one(node, notification) {
                self.bad.push(bad);
            }
        }
    }

    fn settle_one(
        &mut self,
        node: &mut Node,
        notification: Notification,
    ) -> Result<(), (LinkId, String)> {
        let member = notification.index.0;
        let (round, most) = (self.round, self.config.part_bytes as u64);
        let Some(place) = self.places.get_mut(member as usize) else { return Ok(()) };
        let ticket_round = core::mem::replace(&mut place.ticket_round, NO_ROUND);
        if ticket_round == NO_ROUND || !place.taken {
            return Ok(());
        }
        if ticket_round != round {
            self.late += 1;
            let waits = core::mem::take(&mut place.missed_release);
            place.owes_release |= waits;
            self.arm(node, member);
            return Ok(());
        }
        let link = place.connection.as_ref().map_or(notification.link, |c| c.link());
        let user = node.metadata(self.slot, notification.index).map(|entry| entry.user());
        let length = user.ok().and_then(|user| Some(u64::from_le_bytes(user.try_into().ok()?)));
        match length {
            Some(length) if length <= most => {
                place.arrived = Some(length as usize);
                place.arrived_from = place.connection.as_ref().map(|c| c.link());
                self.arrived += 1;
                Ok(())
            }
            Some(length) => Err((link, format!("a part of {length} bytes, where {most} fit"))),
            None => Err((link, "a part without its length".into())),
        }
    }

    /// Opens the entry of a member for its part of this round, and owes it the ticket.
    fn arm(&mut self, node: &mut Node, member: u32) {
        let limits = self.limits(member);
        let Some(place) = self.places.get_mut(member as usize) else { return };
        if place.taken && node.arm(self.slot, MetadataIndex(member), Some(limits)).is_ok() {
            place.ticket_round = self.round;
            place.owes_ticket = true;
            self.owing.push(member);
        }
    }

    /// Sends what is owed, as far as the links have room; names one that has none.
    #[inline]
    fn drive(&mut self, node: &mut Node) -> Option<LinkId> {
        let mut room = None;
        if !self.owing.is_empty() {
            let mut owing = core::mem::take(&mut self.owing);
            owing.retain(|member| self.still_owes(node, *member, &mut room));
            self.owing = owing;
        }
        room
    }

    fn still_owes(&mut self, node: &mut Node, member: u32, room: &mut Option<LinkId>) -> bool {
        let received = self.received(node, member);
        let slot = self.slot;
        let Some(place) = self.places.get_mut(member as usize) else { return false };
        let Some(connection) = place.connection.clone() else {
            // Its peer is about to join, or has gone.
            return place.taken && (place.owes_ticket || place.owes_release);
        };
        // Whoever waits for room waits for one link; the others must not be forgotten.
        let mut blocked = |node: &mut Node| {
            node.await_room(connection.link());
            *room = Some(connection.link());
        };
        if place.outgoing.go_on(node, &connection).is_some() {
            blocked(node);
            return true;
        }
        if place.owes_ticket
            && let Some(cell) = place.cell
            && let Ok(ticket) = node.ticket(slot, MetadataIndex(member))
        {
            let mut bytes = [0; CELL_BYTES];
            bytes[..8].copy_from_slice(&place.ticket_round.to_le_bytes());
            bytes[8..].copy_from_slice(&ticket.to_bytes());
            let sent = node.try_send_fast_over(connection.link(), &cell, &bytes, 0);
            // Any other error: it is gone, or its ticket is of no use; there is nobody to tell.
            place.owes_ticket = matches!(sent, Err(SendError::Full));
        }
        if place.owes_release
            && received == place.down_sent
            && let Some(down) = place.down
        {
            let metadata = down_metadata(RELEASE, 0);
            let mut message = Message::new(down, &[], &metadata);
            match place.outgoing.look(node, &connection, &mut message) {
                Look::Found(sent) => {
                    place.down_sent += sent.is_ok() as u64;
                    place.owes_release = false;
                }
                _ => {
                    blocked(node);
                    return true;
                }
            }
        }
        if place.owes_ticket {
            blocked(node);
        }
        place.owes_ticket || place.owes_release
    }

    /// How many messages a member has received, as it says.
    fn received(&self, node: &Node, member: u32) -> u64 {
        let at = member as usize * 8;
        let bytes = node.area(self.words).ok().and_then(|area| area.get(at..at + 8));
        bytes.and_then(|b| Some(u64::from_le_bytes(b.try_into().ok()?))).unwrap_or(0)
    }

    /// The first member without whom `wanted` parts cannot be had, if there is one.
    fn lost(&self, wanted: u32) -> Option<GroupError> {
        let is_lost = |p: &&Place| p.arrived.is_none() && p.lost.is_some() && !p.taken;
        let lost = self.places.iter().filter(is_lost).count() as u32;
        if self.config.members - lost >= wanted {
            return None;
        }
        let member = self.places.iter().position(|p| is_lost(&p))? as u32;
        self.lost_error(member)
    }

    fn lost_error(&self, member: u32) -> Option<GroupError> {
        let (peer, reason) = self.places.get(member as usize)?.lost.clone()?;
        Some(GroupError::MemberLost { member, peer: Box::new(peer), reason, arrived: self.arrived })
    }

    fn missing(&self) -> Vec<u32> {
        let places = self.places.iter().zip(0..);
        places.filter(|(p, _)| p.arrived.is_none()).map(|(_, member)| member).collect()
    }

    fn next_round(&mut self, node: &mut Node, releases: bool) {
        let over = self.round;
        self.round += 1;
        self.arrived = 0;
        for member in 0..self.config.members {
            let place = &mut self.places[member as usize];
            if place.arrived.take().is_some() || (place.taken && place.ticket_round == NO_ROUND) {
                self.arm(node, member);
            } else if place.ticket_round == over {
                place.missed_release = releases;
            }
        }
        self.drive(node);
    }

    /// Gives a place back; its entry takes nothing more.
    fn vacate(&mut self, node: &mut Node, member: u32) {
        let place = &mut self.places[member as usize];
        let (arrived, word) = (place.arrived, place.word.take());
        let lost = place.connection.take().map(|connection| {
            let reason = connection.ended().cloned().unwrap_or(CloseReason::Closed);
            (connection.peer().clone(), reason)
        });
        *place = Place { arrived, lost, ..Place::default() };
        if let Some(word) = word {
            let _ = node.remove_slot(word);
        }
        let _ = node.close_entry(self.slot, MetadataIndex(member));
    }
}

fn down_metadata(kind: u64, length: usize) -> [u8; DOWN_BYTES] {
    let mut metadata = [0; DOWN_BYTES];
    metadata[..8].copy_from_slice(&kind.to_le_bytes());
    metadata[8..].copy_from_slice(&(length as u64).to_le_bytes());
    metadata
}

struct GroupOffer {
    root: Root,
    /// The place that is offered; `None`: any.
    number: Option<u32>,
}

impl GroupOffer {
    /// A free place: one that nobody had yet, if there is one.
    fn place(&self, shared: &Shared) -> Result<u32, String> {
        let members = shared.config.members;
        let mut candidates = match self.number {
            Some(number) => number..number + 1,
            None => 0..members,
        };
        let is_free = |member: &u32| !shared.places[*member as usize].taken;
        let is_new = |member: &u32| shared.places[*member as usize].lost.is_none();
        let new = candidates.clone().find(|member| is_free(member) && is_new(member));
        new.or_else(|| candidates.find(is_free)).ok_or_else(|| match self.number {
            Some(number) => format!("place {number} of the group is taken"),
            None => format!("the group has {members} members, as many as it may"),
        })
    }
}

impl Offer for GroupOffer {
    fn check_place(&self, _: &Peer, body: &[u8]) -> Result<(), String> {
        match body.first() {
            Some(&MEMBER) => self.place(&lock(&self.root)).map(drop),
            _ => Ok(()),
        }
    }

    fn admit(
        &mut self,
        node: &mut Node,
        request: RequestId,
        peer: &Peer,
        body: &[u8],
    ) -> Result<Vec<u8>, String> {
        let mut shared = lock(&self.root);
        if *body == [HELPER] {
            shared.requests.insert(request, None);
            return Ok(Vec::new());
        }
        if body.len() != MEMBER_BODY || body[0] != MEMBER {
            return Err("this is neither a member nor a helper of a group".into());
        }
        let cell = fast_ticket_from(&body[1..], peer)?.with_flags(Flags::WAKE);
        let down = message_ticket_from(&body[1 + TICKET_BYTES..], peer, 0)?;
        // Its count is its own: the whole of one entry.
        let down = Ticket { share: Share::WHOLE, ..down };
        let (takes, wanted) = (down.capacity(), shared.config.scatter_bytes as u64);
        if takes < wanted {
            return Err(format!(
                "the group sends up to {wanted} bytes to a member, and this one takes {takes}"
            ));
        }
        let member = self.place(&shared)?;
        let at = member as usize * 8;
        let config =
            SlotConfig::new(shared.words, shared.word_queue).range(at as u64..at as u64 + 8);
        let word = node.slot(config.credit(0)).map_err(|e| e.to_string())?;
        if let Ok(words) = node.area_mut(shared.words) {
            words[at..at + 8].fill(0);
        }
        let word_ticket = node.fast_ticket(word).map_err(|e| e.to_string())?;
        let word_ticket = word_ticket.with_flags(Flags::WAKE);
        let (slot, round) = (shared.slot, shared.round);
        let place = &mut shared.places[member as usize];
        *place = Place {
            taken: true,
            arrived: place.arrived,
            // If it does not come to join, whoever had the place before is still the one lost.
            lost: place.lost.take(),
            cell: Some(cell),
            down: Some(down),
            word: Some(word),
            ..Place::default()
        };
        // Where another member's part has arrived in this place, its bytes stand still until the
        // round is over.
        let ticket = match place.arrived {
            Some(_) => None,
            None => {
                let limits = shared.limits(member);
                node.arm(slot, MetadataIndex(member), Some(limits)).map_err(|e| e.to_string())?;
                shared.places[member as usize].ticket_round = round;
                Some(node.ticket(slot, MetadataIndex(member)).map_err(|e| e.to_string())?)
            }
        };
        let mut answer = member.to_le_bytes().to_vec();
        answer.extend_from_slice(&shared.config.members.to_le_bytes());
        answer.extend_from_slice(&(shared.config.part_bytes as u64).to_le_bytes());
        answer.extend_from_slice(&ticket.map_or(NO_ROUND, |_| round).to_le_bytes());
        answer.extend_from_slice(&ticket.map_or([0; TICKET_BYTES], |ticket| ticket.to_bytes()));
        answer.extend_from_slice(&word_ticket.to_bytes());
        shared.requests.insert(request, Some(member));
        Ok(answer)
    }

    fn withdrawn(&mut self, node: &mut Node, request: RequestId) {
        let mut shared = lock(&self.root);
        if let Some(Some(member)) = shared.requests.remove(&request) {
            // It knew its ticket, and may have used it over another link. Nobody's part came so.
            shared.hear();
            shared.heard.retain(|notification| notification.index.0 != member);
            let lost = shared.places[member as usize].lost.take();
            shared.vacate(node, member);
            shared.places[member as usize].lost = lost;
        }
    }

    fn joined(&mut self, _: &mut Node, request: RequestId, connection: &Arc<Connection>) {
        let mut shared = lock(&self.root);
        match shared.requests.remove(&request) {
            Some(Some(member)) => {
                let place = &mut shared.places[member as usize];
                place.connection = Some(connection.clone());
                place.lost = None;
            }
            Some(None) => shared.helpers += 1,
            None => {}
        }
    }

    fn left(&mut self, node: &mut Node, connection: &Connection) {
        let mut shared = lock(&self.root);
        // What it sent before counts.
        shared.settle_all(node);
        let of_it = |place: &Place| {
            place.connection.as_ref().is_some_and(|of| of.link() == connection.link())
        };
        match shared.places.iter().position(of_it) {
            Some(member) => shared.vacate(node, member as u32),
            None => shared.helpers = shared.helpers.saturating_sub(1),
        }
    }
}

/// The root of a group. `Send`.
pub struct Group {
    manager: Manager,
    offer: OfferId,
    /// Offers of one place each.
    offers: HashMap<u32, OfferId>,
    root: Root,
    /// Members that have arrived at a barrier and have not been let go.
    releasing: Option<Vec<Addressee>>,
}

/// A member that is sent something: whoever has the place, or only who had it when it came to a
/// barrier.
type Addressee = (u32, Option<LinkId>);

/// The parts of a round that have arrived. The manager's node is locked while this lives, and
/// nothing arrives; the bytes would stand still without that, until [`Group::next_round`].
pub struct Parts<'a> {
    node: NodeGuard<'a, Protocols>,
    area: AreaId,
    stride: usize,
    lengths: Vec<Option<usize>>,
}

impl Parts<'_> {
    /// The part of one member, if it has arrived. Begins at a multiple of 64 bytes.
    pub fn part(&self, member: u32) -> Option<&[u8]> {
        let length = (*self.lengths.get(member as usize)?)?;
        let start = member as usize * self.stride;
        self.node.area(self.area).ok()?.get(start..start + length)
    }

    /// Number and part of each member whose part has arrived.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &[u8])> {
        (0..self.lengths.len() as u32).filter_map(|member| Some((member, self.part(member)?)))
    }

    /// How many have arrived.
    pub fn count(&self) -> usize {
        self.lengths.iter().flatten().count()
    }
}

/// What ends a look of the root.
enum Stop {
    Done,
    Lost(GroupError),
    Expel(LinkId, String),
}

impl Group {
    /// A group without members yet.
    pub fn new(manager: &Manager, config: GroupConfig) -> Result<Self, GrowError> {
        let members = config.members;
        let stride = config
            .part_bytes
            .checked_next_multiple_of(PART_ALIGN)
            .map(|stride| stride.max(PART_ALIGN));
        let bytes = stride.and_then(|stride| stride.checked_mul(members as usize));
        let (Some(stride), Some(bytes), 1..) = (stride, bytes, members) else {
            let part = config.part_bytes;
            return Err(set_up(format!("no group has {members} members with {part} bytes each")));
        };
        let shared = {
            let mut node = manager.lock();
            let mut areas = Vec::new();
            let mut queues = Vec::new();
            let made = (|| {
                areas.push(node.message_area(bytes).map_err(set_up)?);
                areas.push(node.message_area(members as usize * 8).map_err(set_up)?);
                for _ in 0..2 {
                    queues.push(node.notification_queue(members).map_err(set_up)?);
                }
                let consumer = node.take_consumer(queues[0]).map_err(set_up)?;
                let slot = SlotConfig::new(areas[0], queues[0]).metadata(members);
                let slot = node.slot(slot.mode(Mode::ParanoidOneShot)).map_err(set_up)?;
                Ok((slot, consumer))
            })();
            match made {
                Ok((slot, consumer)) => Shared {
                    stride,
                    area: areas[0],
                    queue: queues[0],
                    slot,
                    words: areas[1],
                    word_queue: queues[1],
                    consumer,
                    heard: Vec::new(),
                    bad: Vec::new(),
                    round: NO_ROUND + 1,
                    arrived: 0,
                    wanted: members,
                    late: 0,
                    places: (0..members).map(|_| Place::default()).collect(),
                    owing: Vec::new(),
                    requests: HashMap::new(),
                    helpers: 0,
                    config,
                },
                Err(e) => {
                    for queue in queues {
                        let _ = node.remove_queue(queue);
                    }
                    for area in areas {
                        let _ = node.remove_area(area);
                    }
                    return Err(e);
                }
            }
        };
        let root = Arc::new(Mutex::new(shared));
        let offer = GroupOffer { root: root.clone(), number: None };
        let offer = manager.offer(Kind::Group, Box::new(offer));
        let manager = manager.clone();
        Ok(Self { manager, offer, offers: HashMap::new(), root, releasing: None })
    }

    offered!(
        "a [`GroupMember`](super::GroupMember) in any free place, or a \
        [`GroupHelper`](super::GroupHelper),"
    );

    /// The connections of members and helpers: who is at the other end of each, and which path the
    /// messages take ([`Connection::explain`]).
    pub fn connections(&self) -> Vec<Arc<Connection>> {
        let is_place = |of| self.offers.values().any(|place| *place == of);
        self.manager.connections_of(|of| of == self.offer || is_place(of))
    }

    /// Bytes from which the member in one place can be grown; and another there, when that one is
    /// lost.
    pub fn seed_of(&mut self, member: u32) -> Result<Seed, GroupError> {
        let members = self.members();
        if member >= members {
            return Err(misuse(format!("the group has members 0 to {}, no {member}", members - 1)));
        }
        let (manager, root) = (&self.manager, &self.root);
        let offer = *self.offers.entry(member).or_insert_with(|| {
            let offer = GroupOffer { root: root.clone(), number: Some(member) };
            manager.offer(Kind::Group, Box::new(offer))
        });
        manager.seed(offer).map_err(misuse)
    }

    /// Places of the group.
    pub fn members(&self) -> u32 {
        lock(&self.root).config.members
    }

    /// Members that have a connection now.
    pub fn joined(&self) -> u32 {
        lock(&self.root).places.iter().filter(|place| place.connection.is_some()).count() as u32
    }

    /// Helpers that have a connection now.
    pub fn helpers(&self) -> usize {
        lock(&self.root).helpers
    }

    /// The connection of a member, while it has one.
    pub fn connection(&self, member: u32) -> Option<Arc<Connection>> {
        lock(&self.root).places.get(member as usize)?.connection.clone()
    }

    /// The number of the round, from 1 on.
    pub fn round(&self) -> u64 {
        lock(&self.root).round
    }

    /// Parts that came after their round was over, and were dropped.
    pub fn late_parts(&self) -> u64 {
        lock(&self.root).late
    }

    /// Members whose part of this round has arrived, as far as waiting has seen.
    pub fn arrived(&self) -> impl Iterator<Item = u32> {
        let shared = lock(&self.root);
        let places = shared.places.iter().zip(0..);
        let arrived: Vec<u32> =
            places.filter(|(place, _)| place.arrived.is_some()).map(|(_, member)| member).collect();
        arrived.into_iter()
    }

    /// Waits at most `timeout` until the part of every member has arrived. They stand still until
    /// [`next_round`](Self::next_round).
    pub fn gather(&mut self, timeout: Option<Duration>) -> Result<Parts<'_>, GroupError> {
        let members = self.members();
        self.wait_for(members, timeout)
    }

    /// Waits at most `timeout` until the parts of `k` members have arrived, whichever. A member
    /// that is lost is no error while `k` can still be reached.
    pub fn wait_for(&mut self, k: u32, timeout: Option<Duration>) -> Result<Parts<'_>, GroupError> {
        self.wait(k, timeout)?;
        Ok(self.parts())
    }

    /// Whether as many parts as are [wanted](Self::set_wanted) have arrived, by now or in one turn.
    pub fn try_gather(&mut self) -> Result<bool, GroupError> {
        let wanted = lock(&self.root).wanted;
        match self.wait(wanted, Some(Duration::ZERO)) {
            Err(GroupError::TimedOut { .. }) => Ok(false),
            waited => waited.map(|()| true),
        }
    }

    /// The parts that have arrived, without waiting.
    pub fn parts(&self) -> Parts<'_> {
        let node = self.manager.shared.lock();
        let shared = lock(&self.root);
        Parts {
            node,
            area: shared.area,
            stride: shared.stride,
            lengths: shared.places.iter().map(|place| place.arrived).collect(),
        }
    }

    /// [`gather`](Self::gather), and one value from all parts, in the order of the members.
    pub fn reduce<A>(
        &mut self,
        timeout: Option<Duration>,
        init: A,
        mut add: impl FnMut(A, u32, &[u8]) -> A,
    ) -> Result<A, GroupError> {
        let parts = self.gather(timeout)?;
        Ok(parts.iter().fold(init, |sum, (member, part)| add(sum, member, part)))
    }

    fn wait(&mut self, k: u32, timeout: Option<Duration>) -> Result<(), GroupError> {
        let members = self.members();
        if k > members {
            return Err(misuse(format!("{k} parts of a group of {members} were to be waited for")));
        }
        let deadline = Deadline::new(timeout);
        loop {
            let stop = self.manager.shared.wait_until(deadline.left(), |node, _| {
                let mut shared = lock(&self.root);
                if let Some((link, why)) = shared.settle(node) {
                    return Look::Found(Stop::Expel(link, why));
                }
                let room = shared.drive(node);
                if shared.arrived >= k {
                    return Look::Found(Stop::Done);
                }
                match shared.lost(k) {
                    Some(error) => Look::Found(Stop::Lost(error)),
                    None => room.map_or(Look::Nothing, Look::Room),
                }
            });
            match stop {
                Ok(Stop::Done) => return Ok(()),
                Ok(Stop::Lost(error)) => return Err(error),
                Ok(Stop::Expel(link, why)) => self.manager.expel(link, &why),
                Err(waited) => return Err(self.waited(waited, k)),
            }
        }
    }

    fn waited(&self, waited: Waited, wanted: u32) -> GroupError {
        match waited {
            Waited::TimedOut => {
                let shared = lock(&self.root);
                GroupError::TimedOut { done: shared.arrived, wanted, missing: shared.missing() }
            }
            other => GroupError::from_waited(other),
        }
    }

    /// The round is over: the bytes of its parts may change from now on, and its members get the
    /// tickets for the next. A part that comes later is dropped.
    pub fn next_round(&mut self) {
        let mut node = self.manager.shared.lock();
        let mut shared = lock(&self.root);
        // What has come by now came in time, whether it was waited for or not.
        shared.settle_all(&mut node);
        shared.next_round(&mut node, false);
    }

    /// How many parts this group has to have to be ready, for [`Manager::wait_any`]; all of them
    /// unless set.
    pub fn set_wanted(&mut self, k: u32) {
        lock(&self.root).wanted = k;
    }

    /// Sends each member the bytes that `part` gives for it; waits at most `timeout` for each to
    /// have received what it was sent before, and for members that have yet to join. A member
    /// that is lost is named when all others have been served.
    pub fn scatter<'a>(
        &mut self,
        timeout: Option<Duration>,
        part: impl Fn(u32) -> &'a [u8],
    ) -> Result<(), GroupError> {
        let all: Vec<Addressee> = (0..self.members()).map(|member| (member, None)).collect();
        let allowed = lock(&self.root).config.scatter_bytes;
        let lengths = all.iter().map(|(member, _)| part(*member).len());
        if let Some(length) = lengths.max().filter(|length| *length > allowed) {
            return Err(GroupError::Length { length, allowed });
        }
        match self.send_down(DATA, all, part, timeout) {
            Ok(()) => Ok(()),
            Err((error, _)) => Err(error),
        }
    }

    /// Sends the same bytes to each member, as [`scatter`](Self::scatter) does.
    pub fn broadcast(&mut self, data: &[u8], timeout: Option<Duration>) -> Result<(), GroupError> {
        self.scatter(timeout, |_| data)
    }

    /// Waits at most `timeout` until every member has come to its barrier, and lets all of them go
    /// on; the round is over. On an error the call may be repeated, or
    /// [`release`](Self::release) lets those go that are there.
    pub fn barrier(&mut self, timeout: Option<Duration>) -> Result<(), GroupError> {
        let deadline = Deadline::new(timeout);
        if self.releasing.is_none() {
            let members = self.members();
            self.wait(members, timeout)?;
        }
        self.release(deadline.left())
    }

    /// Lets the members go on that have come to their barrier; the round is over. Those that come
    /// later go on at once.
    pub fn release(&mut self, timeout: Option<Duration>) -> Result<(), GroupError> {
        let waiting = match self.releasing.take() {
            Some(waiting) => waiting,
            None => {
                let mut node = self.manager.shared.lock();
                let mut shared = lock(&self.root);
                shared.settle_all(&mut node);
                let places = shared.places.iter().zip(0..);
                let waiting = places
                    .filter(|(place, _)| place.arrived.is_some() && place.arrived_from.is_some())
                    .map(|(place, member)| (member, place.arrived_from))
                    .collect();
                shared.next_round(&mut node, true);
                waiting
            }
        };
        match self.send_down(RELEASE, waiting, |_| &[], timeout) {
            // Whoever has gone after it came to the barrier is missed in the next round.
            Ok(()) | Err((GroupError::MemberLost { .. }, _)) => Ok(()),
            Err((error, waiting)) => {
                self.releasing = Some(waiting);
                Err(error)
            }
        }
    }

    /// Sends one message to each of `members`. An error comes with those that were not served.
    fn send_down<'a>(
        &mut self,
        kind: u64,
        mut members: Vec<Addressee>,
        part: impl Fn(u32) -> &'a [u8],
        timeout: Option<Duration>,
    ) -> Result<(), (GroupError, Vec<Addressee>)> {
        let count = self.members() as usize;
        let wanted = members.len() as u32;
        let metadata: Vec<[u8; DOWN_BYTES]> =
            members.iter().map(|(member, _)| down_metadata(kind, part(*member).len())).collect();
        // Each with the link that it is for: another peer may take the place meanwhile.
        let mut messages: Vec<Option<(LinkId, Message<'_>)>> = (0..count).map(|_| None).collect();
        let place_of: HashMap<u32, usize> =
            members.iter().enumerate().map(|(i, (member, _))| (*member, i)).collect();
        let mut lost = None;
        let deadline = Deadline::new(timeout);
        let served = loop {
            let stop = self.manager.shared.wait_until(deadline.left(), |node, _| {
                let mut shared = lock(&self.root);
                if let Some((link, why)) = shared.settle(node) {
                    return Look::Found(Stop::Expel(link, why));
                }
                let mut room = shared.drive(node);
                let (mut again, mut bad) = (false, None);
                members.retain(|(member, only)| {
                    let received = shared.received(node, *member);
                    let gone = shared.lost_error(*member);
                    let place = &mut shared.places[*member as usize];
                    let (Some(connection), Some(down)) = (place.connection.clone(), place.down)
                    else {
                        // A place that was never taken is waited for.
                        if gone.is_some() && !place.taken && lost.is_none() {
                            lost = gone.clone();
                        }
                        return gone.is_none() || place.taken;
                    };
                    if only.is_some_and(|only| only != connection.link()) {
                        return false;
                    }
                    if place.owes_release || received != place.down_sent {
                        return true;
                    }
                    let message = &mut messages[*member as usize];
                    if message.as_ref().is_some_and(|(link, _)| *link != connection.link()) {
                        *message = None;
                    }
                    let (_, message) = message.get_or_insert_with(|| {
                        let metadata = &metadata[place_of[member]];
                        (connection.link(), Message::new(down, part(*member), metadata))
                    });
                    match place.outgoing.look(node, &connection, message) {
                        Look::Found(Ok(())) => {
                            place.down_sent += 1;
                            return false;
                        }
                        // It ends, and is lost in one of the next turns.
                        Look::Found(Err(SendFailure::Ended(_))) | Look::Nothing => {}
                        Look::Found(Err(e)) => bad = Some((connection.link(), e.to_string())),
                        Look::Again => again = true,
                        Look::Room(link) => room = Some(link),
                    }
                    true
                });
                if let Some((link, why)) = bad {
                    return Look::Found(Stop::Expel(link, why));
                }
                match (members.is_empty(), again, room) {
                    (true, ..) => Look::Found(Stop::Done),
                    (_, true, _) => Look::Again,
                    (_, _, Some(link)) => Look::Room(link),
                    _ => Look::Nothing,
                }
            });
            match stop {
                Ok(Stop::Done) => break Ok(()),
                Ok(Stop::Lost(error)) => break Err(error),
                Ok(Stop::Expel(link, why)) => self.manager.expel(link, &why),
                Err(Waited::TimedOut) => {
                    // What has left in part leaves in the next call, and counts as sent.
                    let mut shared = lock(&self.root);
                    members.retain(|(member, _)| {
                        let Some((link, message)) = messages[*member as usize].take() else {
                            return true;
                        };
                        let place = &mut shared.places[*member as usize];
                        let is_its = place.connection.as_ref().is_some_and(|c| c.link() == link);
                        let kept = is_its && place.outgoing.keep(message);
                        place.down_sent += kept as u64;
                        if kept {
                            shared.owing.push(*member);
                        }
                        !kept
                    });
                    if members.is_empty() {
                        break Ok(());
                    }
                    let missing: Vec<u32> = members.iter().map(|(member, _)| *member).collect();
                    let done = wanted - missing.len() as u32;
                    break Err(GroupError::TimedOut { done, wanted, missing });
                }
                Err(waited) => break Err(GroupError::from_waited(waited)),
            }
        };
        match (served, lost) {
            (Err(error), _) => Err((error, members)),
            (Ok(()), Some(lost)) => Err((lost, members)),
            (Ok(()), None) => Ok(()),
        }
    }
}

impl EndPoint for Group {
    /// As many parts have arrived as were [wanted](Group::set_wanted), or never will.
    fn is_ready_in(&self, _: &Node) -> bool {
        let mut shared = lock(&self.root);
        shared.hear();
        let wanted = shared.wanted;
        shared.arrived + shared.heard_parts() >= wanted || shared.lost(wanted).is_some()
    }

    fn manager(&self) -> &Manager {
        &self.manager
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let Some(_) = self.manager.withdraw(self.offer) else { return };
        for offer in self.offers.values() {
            self.manager.withdraw(*offer);
        }
        let mut node = self.manager.lock();
        let shared = lock(&self.root);
        for place in &shared.places {
            if let Some(word) = place.word {
                let _ = node.remove_slot(word);
            }
        }
        let _ = node.remove_slot(shared.slot);
        for queue in [shared.queue, shared.word_queue] {
            let _ = node.remove_queue(queue);
        }
        for area in [shared.area, shared.words] {
            let _ = node.remove_area(area);
        }
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use crate::protocol::{GroupHelper, GroupMember};

    #[test]
    fn connections_are_those_of_members_in_any_place_in_a_given_place_and_of_helpers() {
        let dir = std::env::temp_dir().join(format!("hamlyn-places-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let config = crate::config::Config::from_env().unwrap().dir(&dir);
        let [there, here] = [(); 2].map(|()| Manager::with_config(config.clone()).unwrap());
        there.start_progress().unwrap();
        let limit = Some(Duration::from_secs(20));
        let mut group = Group::new(&there, GroupConfig::new(2, 8)).unwrap();
        let (any, of_one) = (group.seed().unwrap(), group.seed_of(1).unwrap());
        let one = GroupMember::grow(&here, &of_one, 8, limit).unwrap();
        let zero = GroupMember::grow(&here, &any, 8, limit).unwrap();
        let helper = GroupHelper::grow(&here, &any, limit).unwrap();
        let start = std::time::Instant::now();
        while group.joined() < 2 || group.helpers() < 1 {
            assert!(start.elapsed() < Duration::from_secs(20), "they never joined");
            std::thread::yield_now();
        }
        assert_eq!(group.connections().len(), 3);
        drop((one, zero, helper, group, there, here));
        std::fs::remove_dir_all(&dir).ok();
    }
}
