//! The members of a group, and their helpers; `group/mod.rs` describes the protocol of the two
//! sides.
//!
//! ```text
//!   cell   round and ticket    deposited by the root, silently; read when a part is to be sent
//!   area   a message of the root, taken and counted before the next is sent
//! ```
//! The root's messages are checked like all others: a ticket must lead to the root, hold a part,
//! and be of a later round than the one before.

use super::credit::CreditReturn;
use super::deadline::Deadline;
use super::ends::{connected, grown};
use super::group::{
    ANSWER_BYTES, CELL_BYTES, DATA, GroupError, HELPER, MEMBER, NO_ROUND, RELEASE, misuse,
};
use super::manager::Target;
use super::outgoing::{Outgoing, OutgoingMessage};
use super::tickets::{fast_ticket_from, message_ticket_from};
use super::{Connection, GrowError, Kind, Manager, SendError};
use crate::control::Peer;
use crate::interface::notification::Consumer;
use crate::interface::{AreaId, Mode, QueueId, SlotConfig, SlotId};
use crate::node::{CloseReason, Look, Node};
use crate::wire::{MetadataIndex, TICKET_BYTES, Ticket, TicketError};
use core::time::Duration;
use std::string::{String, ToString};
use std::sync::Arc;
use std::vec::Vec;

const ENTRY: MetadataIndex = MetadataIndex(0);
const NO_GROUP: &str = "it is not that of a group";

/// A share of a member's part, for a helper to send: bytes, in a message or a file. Valid once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    ticket: Ticket,
    /// Bytes of the member's whole part.
    whole: u64,
}

/// Bytes of an encoded [`Part`].
pub const PART_BYTES: usize = TICKET_BYTES + 8;

impl Part {
    /// Bytes that the helper has to send: neither more nor less.
    pub fn length(&self) -> usize {
        usize::try_from(self.ticket.capacity()).unwrap_or(usize::MAX)
    }

    /// For a message to the helper.
    pub fn to_bytes(&self) -> [u8; PART_BYTES] {
        let mut bytes = [0; PART_BYTES];
        bytes[..TICKET_BYTES].copy_from_slice(&self.ticket.to_bytes());
        bytes[TICKET_BYTES..].copy_from_slice(&self.whole.to_le_bytes());
        bytes
    }

    /// Parses untrusted bytes. The root decides whether the part is valid.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, TicketError> {
        let (ticket, whole) =
            bytes.split_last_chunk::<8>().ok_or(TicketError::WrongLength(bytes.len()))?;
        Ok(Self { ticket: Ticket::from_bytes(ticket)?, whole: u64::from_le_bytes(*whole) })
    }

    /// Sends it over a connection to the root that its ticket leads to.
    fn send(
        &self,
        manager: &Manager,
        connection: &Connection,
        outgoing: &mut Outgoing,
        data: &[u8],
        timeout: Option<Duration>,
    ) -> Result<(), GroupError> {
        if connection.peer().node != self.ticket.destination {
            return Err(misuse("the part is for the root of another group than this connection's"));
        }
        if data.len() != self.length() {
            return Err(GroupError::Length { length: data.len(), allowed: self.length() });
        }
        let whole = self.whole.to_le_bytes();
        let message = OutgoingMessage::new(self.ticket, data, &whole);
        outgoing.send(manager, connection, message, timeout).map_err(GroupError::from_send)
    }
}

/// A member's memory: the cell for its tickets, and the area for the root's messages.
#[derive(Debug, Default)]
struct MemberMemory {
    areas: Vec<AreaId>,
    queues: Vec<QueueId>,
    slots: Vec<SlotId>,
}

impl MemberMemory {
    fn remove(&self, node: &mut Node) {
        for slot in &self.slots {
            let _ = node.remove_slot(*slot);
        }
        for queue in &self.queues {
            let _ = node.remove_queue(*queue);
        }
        for area in &self.areas {
            let _ = node.remove_area(*area);
        }
    }

    /// Cell and area; the consumer of the root's messages; the greeting.
    fn make(
        &mut self,
        node: &mut Node,
        receive_bytes: usize,
    ) -> Result<(Consumer, Vec<u8>), String> {
        let text = |e: &dyn core::fmt::Display| e.to_string();
        for (bytes, config) in [
            (CELL_BYTES, (|config| config.credit(0)) as fn(SlotConfig) -> SlotConfig),
            (receive_bytes.max(1), |config| config.mode(Mode::ParanoidOneShot)),
        ] {
            self.areas.push(node.message_area(bytes).map_err(|e| text(&e))?);
            self.queues.push(node.notification_queue(1).map_err(|e| text(&e))?);
            let last = self.areas.len() - 1;
            let config = config(SlotConfig::new(self.areas[last], self.queues[last]));
            self.slots.push(node.slot(config).map_err(|e| text(&e))?);
        }
        node.arm(self.slots[1], ENTRY, Some(0..receive_bytes as u64)).map_err(|e| text(&e))?;
        let consumer = node.take_consumer(self.queues[1]).map_err(|e| text(&e))?;
        let mut body = std::vec![MEMBER];
        let cell = node.fast_ticket(self.slots[0]).map_err(|e| text(&e))?;
        body.extend_from_slice(&cell.to_bytes());
        let down = node.ticket(self.slots[1], ENTRY).map_err(|e| text(&e))?;
        body.extend_from_slice(&down.to_bytes());
        Ok((consumer, body))
    }
}

/// A member of a group. `Send`.
/// [`Group`](crate::protocol::Group) shows both ends.
pub struct GroupMember {
    manager: Manager,
    connection: Arc<Connection>,
    memory: MemberMemory,
    consumer: Consumer,
    number: u32,
    members: u32,
    part_bytes: usize,
    /// The ticket for the next part, with its round.
    ticket: Option<(u64, Ticket)>,
    /// The round of the ticket that was used last.
    round: u64,
    received: CreditReturn,
    /// The root's message that is not yet taken: kind, length.
    arrived: Option<(u64, usize)>,
    outgoing: Outgoing,
    at_barrier: bool,
}

impl GroupMember {
    grown!(
        "a member",
        "a group",
        receive_bytes: usize,
        "The root may send it up to `receive_bytes` bytes at once."
    );

    fn to(
        manager: &Manager,
        target: Target<'_>,
        receive_bytes: usize,
        timeout: Option<Duration>,
    ) -> Result<Self, GrowError> {
        let mut memory = MemberMemory::default();
        let made = memory.make(&mut manager.lock(), receive_bytes).map_err(GrowError::SetUp);
        let grown = made.and_then(|(consumer, body)| {
            let read = |connection: &Arc<Connection>, answer: &_| {
                RootAnswer::read(answer, connection.peer())
            };
            let grown = manager.grow(target, Kind::GROUP, &body, timeout, NO_GROUP, read)?;
            Ok((consumer, grown))
        });
        let (consumer, (connection, answer)) = match grown {
            Ok(grown) => grown,
            Err(e) => {
                memory.remove(&mut manager.lock());
                return Err(e);
            }
        };
        let received = CreditReturn::new(answer.word, connection.link(), 1);
        Ok(Self {
            manager: manager.clone(),
            connection,
            memory,
            consumer,
            number: answer.number,
            members: answer.members,
            part_bytes: answer.part_bytes,
            round: answer.ticket.map_or(0, |(round, _)| round - 1),
            ticket: answer.ticket,
            received,
            arrived: None,
            outgoing: Outgoing::default(),
            at_barrier: false,
        })
    }

    /// Its place in the group, from 0 on.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Places of the group.
    pub fn members(&self) -> u32 {
        self.members
    }

    /// Most bytes of a part.
    pub fn part_bytes(&self) -> usize {
        self.part_bytes
    }

    /// The round of the part that was sent last; before the first part, the round before the
    /// ticket's. If it grows by more than one, parts came too late.
    pub fn round(&self) -> u64 {
        self.round
    }

    /// Sends this member's part of the round, waiting at most `timeout` for the round to begin and
    /// for room. On an error nothing was sent, except for [`GroupError::CutOff`].
    pub fn send(&mut self, part: &[u8], timeout: Option<Duration>) -> Result<(), GroupError> {
        let (length, allowed) = (part.len(), self.part_bytes);
        if length > allowed {
            return Err(GroupError::Length { length, allowed });
        }
        let deadline = Deadline::new(timeout);
        let ticket = self.wait_for_ticket(timeout)?;
        let whole = (length as u64).to_le_bytes();
        let message = OutgoingMessage::new(ticket, part, &whole);
        let Self { manager, connection, outgoing, .. } = self;
        let sent = outgoing.send(manager, connection, message, deadline.left());
        // After another error the ticket is still valid.
        if let Ok(()) | Err(SendError::CutOff) = sent {
            self.use_ticket();
        }
        sent.map_err(GroupError::from_send)
    }

    /// [`send`](Self::send) without waiting: `false` if it would have to wait to begin, and then
    /// nothing was sent. The part of a long message for which the link had no room was copied, and
    /// leaves in later calls.
    pub fn try_send(&mut self, part: &[u8]) -> Result<bool, GroupError> {
        match self.send(part, Some(Duration::ZERO)) {
            Ok(()) | Err(GroupError::CutOff) => Ok(true),
            Err(GroupError::NotInTime) => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// Delegates this member's part of the round, `length` bytes, to `n` helpers, in nearly equal
    /// pieces; each sends its own with [`GroupHelper::send`] or [`send_part`](Self::send_part). The
    /// part has arrived when all pieces have. Waits at most `timeout` for the round to begin.
    ///
    /// The helpers trust one another, and this member answers for them: if a helper does not send,
    /// the root waits for this member until it ends.
    pub fn delegate(
        &mut self,
        length: usize,
        n: u32,
        timeout: Option<Duration>,
    ) -> Result<Vec<Part>, GroupError> {
        let allowed = self.part_bytes;
        if length > allowed {
            return Err(GroupError::Length { length, allowed });
        }
        let ticket = self.wait_for_ticket(timeout)?;
        let whole = length as u64;
        let ticket = Ticket { bound: ticket.base.saturating_add(whole), ..ticket };
        let parts = ticket.split_evenly(n as u64).map_err(misuse)?;
        self.use_ticket();
        Ok(parts.into_iter().map(|ticket| Part { ticket, whole }).collect())
    }

    /// Sends a part that another member of the group, or this one, has delegated.
    pub fn send_part(
        &mut self,
        part: &Part,
        data: &[u8],
        timeout: Option<Duration>,
    ) -> Result<(), GroupError> {
        part.send(&self.manager, &self.connection, &mut self.outgoing, data, timeout)
    }

    fn use_ticket(&mut self) {
        if let Some((round, _)) = self.ticket.take() {
            self.round = round;
        }
    }

    /// The ticket for the next part, which comes when its round begins.
    fn wait_for_ticket(&mut self, timeout: Option<Duration>) -> Result<Ticket, GroupError> {
        if let Some((_, ticket)) = self.ticket {
            return Ok(ticket);
        }
        let Self { manager, connection, memory, received, round, part_bytes, outgoing, .. } = self;
        let found = manager.shared.wait_until(timeout, |node, _| {
            tell(received, node);
            let cell = node.area(memory.areas[0]).ok();
            match cell.and_then(|cell| read_cell(cell, connection.peer())) {
                Some(found) if found.0 > *round => {
                    return Look::Found(
                        Some(found).filter(|f| f.1.capacity() >= *part_bytes as u64),
                    );
                }
                _ => {}
            }
            nothing_yet(outgoing, node, connection)
        });
        match found.map_err(GroupError::from)? {
            Some(found) => {
                self.ticket = Some(found);
                Ok(found.1)
            }
            None => {
                if self.connection.ended().is_none() {
                    self.manager.expel(self.connection.link(), "its ticket is too small");
                }
                Err(self.root_lost())
            }
        }
    }

    fn root_lost(&self) -> GroupError {
        GroupError::RootLost(self.connection.ended().cloned().unwrap_or(CloseReason::Closed))
    }

    /// The next scattered or broadcast message of the root; waits at most `timeout`.
    pub fn receive(&mut self, timeout: Option<Duration>) -> Result<Vec<u8>, GroupError> {
        self.receive_with(timeout, <[u8]>::to_vec)
    }

    /// The next scattered or broadcast message of the root, if it is there or comes in one turn.
    pub fn try_receive(&mut self) -> Result<Option<Vec<u8>>, GroupError> {
        match self.receive(Some(Duration::ZERO)) {
            Err(GroupError::NotInTime) => Ok(None),
            received => received.map(Some),
        }
    }

    /// [`receive`](Self::receive) without a copy: shows the bytes to `look`. No packet arrives
    /// meanwhile, in any thread; so it should be quick.
    pub fn receive_with<R>(
        &mut self,
        timeout: Option<Duration>,
        look: impl FnOnce(&[u8]) -> R,
    ) -> Result<R, GroupError> {
        let length = self.wait_down(DATA, timeout)?;
        let shown = {
            let node = self.manager.lock();
            let area = node.area(self.memory.areas[1]).map_err(misuse)?;
            look(area.get(..length).unwrap_or_default())
        };
        self.take_down();
        Ok(shown)
    }

    /// Comes to the barrier: waits at most `timeout` until every member has, and the root releases
    /// all. After a time-out, repeat the call.
    pub fn barrier(&mut self, timeout: Option<Duration>) -> Result<(), GroupError> {
        let deadline = Deadline::new(timeout);
        if !self.at_barrier {
            self.send(&[], timeout)?;
            self.at_barrier = true;
        }
        self.wait_down(RELEASE, deadline.left())?;
        self.at_barrier = false;
        self.take_down();
        Ok(())
    }

    /// Waits for a message of the root, and returns its length; the message stays.
    fn wait_down(&mut self, wanted: u64, timeout: Option<Duration>) -> Result<usize, GroupError> {
        if self.arrived.is_none() {
            let Self { manager, connection, memory, consumer, received, outgoing, .. } = self;
            let found = manager.shared.wait_until(timeout, |node, _| {
                tell(received, node);
                if node.take_past(memory.queues[1], consumer).is_some() {
                    return Look::Found(Some(read_down(node, memory)));
                }
                nothing_yet(outgoing, node, connection)
            });
            match found.map_err(GroupError::from)? {
                Some(Some(found)) => self.arrived = Some(found),
                Some(None) => {
                    let why = "it sent a message whose kind or length cannot be";
                    self.manager.expel(self.connection.link(), why);
                    return Err(self.root_lost());
                }
                None => return Err(self.root_lost()),
            }
        }
        match self.arrived {
            Some((kind, length)) if kind == wanted => Ok(length),
            Some((DATA, _)) => Err(GroupError::OutOfStep(
                "the root has sent data, and this member waits at a barrier",
            )),
            _ => Err(GroupError::OutOfStep(
                "the root lets the members go on from a barrier, and this one waits for data",
            )),
        }
    }

    /// The message was taken: the root may send the next.
    fn take_down(&mut self) {
        self.arrived = None;
        self.received.consumed += 1;
        let mut node = self.manager.lock();
        let _ = node.reopen_entry(self.memory.slots[1], ENTRY);
        tell(&mut self.received, &mut node);
    }

    /// Waits at most `timeout` until the rest of a message that was cut off
    /// ([`GroupError::CutOff`]) has left.
    pub fn flush(&mut self, timeout: Option<Duration>) -> Result<(), GroupError> {
        let sent = self.outgoing.flush(&self.manager, &self.connection, timeout);
        sent.map_err(GroupError::from_send)
    }

    connected!("parts", |_| "group: one message a round");
}

/// A member's look without an arrival: the root may be gone, or wait for the rest of a message.
fn nothing_yet<R>(
    outgoing: &mut Outgoing,
    node: &mut Node,
    connection: &Connection,
) -> Look<Option<R>> {
    if connection.ended().is_some() {
        return Look::Found(None);
    }
    outgoing.go_on(node, connection).map_or(Look::Nothing, Look::Room)
}

/// Reports how many messages were received, if the root does not know. If the link is full, the
/// next call does it.
fn tell(received: &mut CreditReturn, node: &mut Node) {
    if received.is_due() {
        received.tell(node);
    }
}

/// Round and ticket, as the root deposited them.
fn read_cell(cell: &[u8], peer: &Peer) -> Option<(u64, Ticket)> {
    let (round, ticket) = cell.get(..CELL_BYTES)?.split_first_chunk::<8>()?;
    Some((u64::from_le_bytes(*round), message_ticket_from(ticket, peer, 0).ok()?))
}

fn read_down(node: &Node, memory: &MemberMemory) -> Option<(u64, usize)> {
    let user = node.metadata(memory.slots[1], ENTRY).ok()?.user();
    let (kind, length) = user.split_first_chunk::<8>()?;
    let kind = u64::from_le_bytes(*kind);
    let length = usize::try_from(u64::from_le_bytes(length.try_into().ok()?)).ok()?;
    let size = node.area(memory.areas[1]).ok()?.len();
    (length <= size && (kind == DATA || kind == RELEASE)).then_some((kind, length))
}

/// The root's answer to a member.
struct RootAnswer {
    number: u32,
    members: u32,
    part_bytes: usize,
    ticket: Option<(u64, Ticket)>,
    word: Ticket,
}

impl RootAnswer {
    fn read(bytes: &[u8], peer: &Peer) -> Option<Self> {
        let bytes: &[u8; ANSWER_BYTES] = bytes.try_into().ok()?;
        let u32_at =
            |i: usize| u32::from_le_bytes([bytes[i], bytes[i + 1], bytes[i + 2], bytes[i + 3]]);
        let u64_at = |i: usize| u32_at(i) as u64 | (u32_at(i + 4) as u64) << 32;
        let (number, members, part_bytes, round) = (u32_at(0), u32_at(4), u64_at(8), u64_at(16));
        let (ticket, word) = bytes[24..].split_at(TICKET_BYTES);
        let ticket = match round {
            NO_ROUND => None,
            round => Some((round, message_ticket_from(ticket, peer, part_bytes).ok()?)),
        };
        (number < members).then_some(())?;
        let (part_bytes, word) =
            (usize::try_from(part_bytes).ok()?, fast_ticket_from(word, peer).ok()?);
        Some(Self { number, members, part_bytes, ticket, word })
    }
}

impl Drop for GroupMember {
    fn drop(&mut self) {
        self.manager.leave(&self.connection, |node| self.memory.remove(node));
    }
}

/// Sends parts that members of a group have delegated. `Send`.
///
/// ```
/// # let dir = std::env::temp_dir().join(format!("hamlyn-doc-helper-{}", std::process::id()));
/// # let config = hamlyn::Config::from_env()?.dir(&dir);
/// use hamlyn::Access;
/// use hamlyn::protocol::{Group, GroupConfig, GroupHelper, GroupMember, Manager, Part};
/// use std::time::Duration;
///
/// let limit = Some(Duration::from_secs(10));
/// // One member, whose part has 6 bytes.
/// let manager = Manager::with_config(config.clone())?;
/// let mut group = Group::new(&manager, GroupConfig::new(1, 6))?;
/// group.serve("whole", Access::SameUser)?;
/// let seed = group.seed()?;
/// std::thread::scope(|scope| -> Result<(), Box<dyn std::error::Error>> {
///     scope.spawn(|| {
///         // Usually processes: the member, which sends the first half of its part ..
///         let manager = Manager::with_config(config.clone()).unwrap();
///         let mut member = GroupMember::connect(&manager, "whole", 6, limit).unwrap();
///         let pieces = member.delegate(6, 2, limit).unwrap();
///         member.send_part(&pieces[0], b"hel", limit).unwrap();
///         // .. and its helper, which gets the other half as bytes.
///         let piece = Part::from_bytes(&pieces[1].to_bytes()).unwrap();
///         let manager = Manager::with_config(config.clone()).unwrap();
///         let mut helper = GroupHelper::grow(&manager, &seed, limit).unwrap();
///         helper.send(&piece, b"per", limit).unwrap();
///         helper.flush(limit).unwrap(); // Only after `GroupError::CutOff`.
///         assert!(helper.connection().ended().is_none());
///     });
///     // The root is notified once, when the whole part is there.
///     assert_eq!(group.gather(limit)?.part(0), Some(&b"helper"[..]));
///     Ok(())
/// })?;
/// # std::fs::remove_dir_all(&dir).ok();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct GroupHelper {
    manager: Manager,
    connection: Arc<Connection>,
    outgoing: Outgoing,
}

impl GroupHelper {
    grown!("a helper", "a group");

    fn to(
        manager: &Manager,
        target: Target<'_>,
        timeout: Option<Duration>,
    ) -> Result<Self, GrowError> {
        let (connection, _) =
            manager.grow(target, Kind::GROUP, &[HELPER], timeout, NO_GROUP, |_, _| Some(()))?;
        Ok(Self { manager: manager.clone(), connection, outgoing: Outgoing::default() })
    }

    /// Sends the bytes of a part, all of them, waiting at most `timeout` for room. On an error
    /// nothing was sent, except for [`GroupError::CutOff`].
    pub fn send(
        &mut self,
        part: &Part,
        data: &[u8],
        timeout: Option<Duration>,
    ) -> Result<(), GroupError> {
        part.send(&self.manager, &self.connection, &mut self.outgoing, data, timeout)
    }

    /// Waits at most `timeout` until the rest of a part that was cut off ([`GroupError::CutOff`])
    /// has left.
    pub fn flush(&mut self, timeout: Option<Duration>) -> Result<(), GroupError> {
        let sent = self.outgoing.flush(&self.manager, &self.connection, timeout);
        sent.map_err(GroupError::from_send)
    }

    connected!();
}

impl Drop for GroupHelper {
    fn drop(&mut self) {
        self.manager.leave(&self.connection, |_| {});
    }
}
