//! The state of a group's root, for its offer and its end point: places, rounds, messages owed.

use super::{
    CELL_BYTES, DOWN_BYTES, GroupConfig, GroupError, HELPER, MEMBER, MEMBER_BODY, NO_ROUND, RELEASE,
};
use crate::control::{Peer, RequestId};
use crate::interface::notification::Consumer;
use crate::interface::{AreaId, LinkId, Notification, QueueId, SlotConfig, SlotId};
use crate::node::{CloseReason, Look, Node, NodeSendError};
use crate::protocol::Connection;
use crate::protocol::manager::Protocol;
use crate::protocol::outgoing::{Outgoing, OutgoingMessage};
use crate::protocol::tickets::{fast_ticket_from, message_ticket_from};
use crate::wire::{Flags, MetadataIndex, Share, TICKET_BYTES, Ticket};
use std::boxed::Box;
use std::collections::HashMap;
use std::format;
use std::string::{String, ToString};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::vec::Vec;

/// One member, as the root knows it.
#[derive(Debug, Default)]
pub(super) struct MemberEntry {
    /// A peer has the place, or is about to.
    pub(super) taken: bool,
    pub(super) connection: Option<Arc<Connection>>,
    /// The previous peer, if no peer has the place now.
    pub(super) lost: Option<(Peer, CloseReason)>,
    /// The round of the member's unused ticket, as far as is known.
    pub(super) ticket_round: u64,
    /// The part of this round has arrived; its bytes.
    pub(super) arrived: Option<usize>,
    /// The link of the member that sent the part, while it has the place.
    pub(super) arrived_from: Option<LinkId>,
    /// The tickets for the member's ticket cell and for messages to it.
    pub(super) cell: Option<Ticket>,
    pub(super) down: Option<Ticket>,
    /// The slot of the word in which it counts the messages that it has received.
    pub(super) word: Option<SlotId>,
    pub(super) down_sent: u64,
    pub(super) outgoing: Outgoing,
    pub(super) owes_ticket: bool,
    /// The round that the member missed ended with a release, so it waits for one.
    pub(super) missed_release: bool,
    pub(super) owes_release: bool,
}

/// The state that the root's offer and its end point share.
#[derive(Debug)]
pub(super) struct RootState {
    pub(super) config: GroupConfig,
    pub(super) stride: usize,
    pub(super) area: AreaId,
    pub(super) queue: QueueId,
    pub(super) slot: SlotId,
    pub(super) words: AreaId,
    pub(super) word_queue: QueueId,
    pub(super) consumer: Consumer,
    /// Notifications that were taken from the queue while the node was not at hand.
    pub(super) waiting: Vec<Notification>,
    /// Links to be closed, with the reasons.
    pub(super) bad: Vec<(LinkId, String)>,
    pub(super) round: u64,
    pub(super) arrived: u32,
    /// How many parts `is_ready` asks for.
    pub(super) wanted: u32,
    pub(super) late: u64,
    pub(super) places: Vec<MemberEntry>,
    pub(super) owing: Vec<u32>,
    /// The place of a member; `None`: a helper.
    pub(super) requests: HashMap<RequestId, Option<u32>>,
    pub(super) helpers: usize,
}

pub(super) type Root = Arc<Mutex<RootState>>;

// Always inside the node's lock, if both are held.

pub(super) fn lock(root: &Root) -> MutexGuard<'_, RootState> {
    root.lock().unwrap_or_else(PoisonError::into_inner)
}

impl RootState {
    pub(super) fn limits(&self, member: u32) -> core::ops::Range<u64> {
        let start = (member as usize * self.stride) as u64;
        start..start + self.config.part_bytes as u64
    }

    #[inline]
    pub(super) fn take_notifications(&mut self) {
        while let Some(notification) = self.consumer.pop() {
            self.waiting.push(notification);
        }
    }

    /// How many of the waiting messages will count as parts of this round.
    pub(super) fn waiting_parts(&self) -> u32 {
        let counts = |n: &&Notification| {
            self.places.get(n.index.0 as usize).is_some_and(|p| p.ticket_round == self.round)
        };
        self.waiting.iter().filter(counts).count() as u32
    }

    /// Handles each waiting message; returns a link to be closed, with the reason.
    #[inline]
    pub(super) fn settle(&mut self, node: &mut Node) -> Option<(LinkId, String)> {
        self.settle_all(node);
        self.bad.pop()
    }

    #[inline]
    pub(super) fn settle_all(&mut self, node: &mut Node) {
        self.take_notifications();
        while let Some(notification) = self.waiting.pop() {
            if let Err(bad) = self.settle_one(node, notification) {
                self.bad.push(bad);
            }
        }
    }

    pub(super) fn settle_one(
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
    pub(super) fn arm(&mut self, node: &mut Node, member: u32) {
        let limits = self.limits(member);
        let Some(place) = self.places.get_mut(member as usize) else { return };
        if place.taken && node.arm(self.slot, MetadataIndex(member), Some(limits)).is_ok() {
            place.ticket_round = self.round;
            place.owes_ticket = true;
            self.owing.push(member);
        }
    }

    /// Sends owed messages, as far as the links have room; names a link that has none.
    #[inline]
    pub(super) fn drive(&mut self, node: &mut Node) -> Option<LinkId> {
        let mut room = None;
        if !self.owing.is_empty() {
            let mut owing = core::mem::take(&mut self.owing);
            owing.retain(|member| self.still_owes(node, *member, &mut room));
            self.owing = owing;
        }
        room
    }

    pub(super) fn still_owes(
        &mut self,
        node: &mut Node,
        member: u32,
        room: &mut Option<LinkId>,
    ) -> bool {
        let received = self.received(node, member);
        let slot = self.slot;
        let Some(place) = self.places.get_mut(member as usize) else { return false };
        let Some(connection) = place.connection.clone() else {
            // Its peer is about to join, or has gone.
            return place.taken && (place.owes_ticket || place.owes_release);
        };
        // A wait for room covers one link only; the others must not be forgotten.
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
            // Any other error: it is gone, or gave a useless ticket, and needs no message.
            place.owes_ticket = matches!(sent, Err(NodeSendError::Full));
        }
        if place.owes_release
            && received == place.down_sent
            && let Some(down) = place.down
        {
            let metadata = down_metadata(RELEASE, 0);
            let mut message = OutgoingMessage::new(down, &[], &metadata);
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

    /// How many messages a member claims to have received.
    pub(super) fn received(&self, node: &Node, member: u32) -> u64 {
        let at = member as usize * 8;
        let bytes = node.area(self.words).ok().and_then(|area| area.get(at..at + 8));
        bytes.and_then(|b| Some(u64::from_le_bytes(b.try_into().ok()?))).unwrap_or(0)
    }

    /// The first lost member without which `wanted` parts cannot be had, if there is one.
    pub(super) fn lost(&self, wanted: u32) -> Option<GroupError> {
        let is_lost = |p: &&MemberEntry| p.arrived.is_none() && p.lost.is_some() && !p.taken;
        let lost = self.places.iter().filter(is_lost).count() as u32;
        if self.config.members - lost >= wanted {
            return None;
        }
        let member = self.places.iter().position(|p| is_lost(&p))? as u32;
        self.lost_error(member)
    }

    pub(super) fn lost_error(&self, member: u32) -> Option<GroupError> {
        let (peer, reason) = self.places.get(member as usize)?.lost.clone()?;
        Some(GroupError::MemberLost { member, peer: Box::new(peer), reason, arrived: self.arrived })
    }

    pub(super) fn missing(&self) -> Vec<u32> {
        let places = self.places.iter().zip(0..);
        places.filter(|(p, _)| p.arrived.is_none()).map(|(_, member)| member).collect()
    }

    pub(super) fn next_round(&mut self, node: &mut Node, releases: bool) {
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
    pub(super) fn vacate(&mut self, node: &mut Node, member: u32) {
        let place = &mut self.places[member as usize];
        let (arrived, word) = (place.arrived, place.word.take());
        let lost = place.connection.take().map(|connection| {
            let reason = connection.ended().cloned().unwrap_or(CloseReason::Closed);
            (connection.peer().clone(), reason)
        });
        *place = MemberEntry { arrived, lost, ..MemberEntry::default() };
        if let Some(word) = word {
            let _ = node.remove_slot(word);
        }
        let _ = node.close_entry(self.slot, MetadataIndex(member));
    }
}

pub(super) fn down_metadata(kind: u64, length: usize) -> [u8; DOWN_BYTES] {
    let mut metadata = [0; DOWN_BYTES];
    metadata[..8].copy_from_slice(&kind.to_le_bytes());
    metadata[8..].copy_from_slice(&(length as u64).to_le_bytes());
    metadata
}

pub(super) struct GroupOffer {
    pub(super) root: Root,
    /// The offered place; `None`: any.
    pub(super) number: Option<u32>,
}

impl GroupOffer {
    /// A free place: preferably one that was never taken.
    pub(super) fn place(&self, shared: &RootState) -> Result<u32, String> {
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
            None => format!("the group has {members} members, as many as it may (members)"),
        })
    }
}

impl Protocol for GroupOffer {
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
        // It counts its own messages: the whole of one entry.
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
        *place = MemberEntry {
            taken: true,
            arrived: place.arrived,
            // If it does not come to join, the previous member of the place is still the lost one.
            lost: place.lost.take(),
            cell: Some(cell),
            down: Some(down),
            word: Some(word),
            ..MemberEntry::default()
        };
        // If another member's part has arrived in this place, its bytes are stable until the round
        // is over.
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
            // It knew its ticket, and may have used it over another link. That did not deliver a
            // part.
            shared.take_notifications();
            shared.waiting.retain(|notification| notification.index.0 != member);
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
        // Its earlier messages count.
        shared.settle_all(node);
        let of_it = |place: &MemberEntry| {
            place.connection.as_ref().is_some_and(|of| of.link() == connection.link())
        };
        match shared.places.iter().position(of_it) {
            Some(member) => shared.vacate(node, member as u32),
            None => shared.helpers = shared.helpers.saturating_sub(1),
        }
    }
}
