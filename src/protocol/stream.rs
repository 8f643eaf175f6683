//! A stream (Hamlyn 3.3): records one way, in order, from one sender to one receiver.
//!
//! ```text
//!   send: copied into a buffer                              receive: a record's place, no copying
//!   flush ---- one message, into the ticket's lane ------>  the lane's memory is taken out of the
//!                                                           interface; the record lies in it
//!   tickets  <---- a grant: one line, nobody is told ------ release: the memory goes back to the
//!                                                           pool, and into a lane with a new key
//!   flush ---- few bytes: one fast packet to a place ----->  copied out of it: the record
//!   places   <---- a count, now and then ----------------- release: the place is free
//! ```
//! A *lane* is a one-shot slot over a buffer of its own. When its message is complete the receiver
//! puts other memory into the lane, and the buffer belongs to the end point: nothing can write it
//! any more, whichever thread polls, so its bytes are lent as a slice, without a lock, until they
//! are released. Lanes without memory have no ticket; so a sender whose receiver does not release
//! waits.
//!
//! What is flushed and is at most 128 bytes, most often one record that somebody waits for, needs
//! none of that: a line or two go to one of 64 *places*, and their bytes are copied out of it, since
//! the sender may write there at any time. No memory changes hands and no key changes. When every
//! place is in use, such messages take tickets.
//!
//! Small records are coalesced: they leave together when the buffer is full, when a long record
//! comes, and on [`flush`](StreamSender::flush). **Nothing else sends them**: who waits for an
//! answer to a record flushes first. Records of more than a quarter of a buffer leave at once, as
//! they are. For one that is longer than a buffer the sender asks for a larger one, which the
//! receiver grants for the same ticket; larger buffers are used again, so that only the first few
//! long records pay for asking.
//!
//! Where long records are to go straight into the receiver's memory, see `aperture_stream.rs`.
//!
//! Links may reorder (a link's bulk ring overtakes its base ring): a message's number is that of
//! its ticket or place, and messages are taken in one order; see `records.rs`.

use super::aperture_stream::FarOffer;
use super::credit::Cell;
use super::ends::{Deadline, connected, ended, explain, grown, offered};
use super::manager::{Offer, OfferId, Target};
use super::records::{
    self, FREED_BYTES, Far, GRANT_BYTES, Grant, Mark, PLACE_BYTES, PLACES, Places, Small, Window,
};
use super::tickets::fast_ticket_from;
use super::{Connection, EndPoint, GrowError, Kind, Manager, ReceiveError, SendFailure};
use crate::control::{Peer, RequestId};
use crate::interface::{AreaId, LinkId, Mode, Notification, QueueId, SlotConfig, SlotId};
use crate::node::{CloseReason, Look, Node, PreparedTicket, SendError, Unfinished, Waited};
use crate::os::memory::AreaMemory;
use crate::wire::{Flags, Key, MetadataIndex, NodeId, Share, SlotIndex, TICKET_BYTES, Ticket};
use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;
use std::boxed::Box;
use std::collections::VecDeque;
use std::format;
use std::string::{String, ToString};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::vec;
use std::vec::Vec;

/// What a [`StreamReceiver`] is made of.
#[derive(Clone, Debug)]
pub struct StreamConfig {
    /// Bytes of a buffer: the longest message of coalesced records. 64 KiB unless set.
    pub buffer_bytes: usize,
    /// Buffers that wait for messages, and so the most messages on their way: from 1 to 256. 8
    /// unless set. Small messages have places of their own besides.
    pub buffers: u32,
    /// Buffers altogether, with those that hold records which are not yet released. 64 unless set.
    pub buffers_max: u32,
    /// Longest record. 64 MiB unless set, 1 GiB less a page at most. Buffers that are larger than
    /// `buffer_bytes` have up to three times as many bytes together, in whole pages, whatever the
    /// sender asks for: those for messages that have not come, those of records that are not yet
    /// released, and free ones. With an honest sender at most two thirds are of the first kind.
    pub record_bytes_max: usize,
}

impl Default for StreamConfig {
    fn default() -> Self {
        Self { buffer_bytes: 64 << 10, buffers: 8, buffers_max: 64, record_bytes_max: 64 << 20 }
    }
}

impl StreamConfig {
    fn check(&self) -> Result<(), GrowError> {
        let limit = records::MESSAGE_BYTES_MAX;
        let tickets = records::TICKETS_MAX;
        let wrong = if !(64..=limit).contains(&self.buffer_bytes) {
            format!("buffer_bytes is {}, and 64 to {limit} are allowed", self.buffer_bytes)
        } else if !(1..=tickets).contains(&self.buffers) {
            format!("buffers is {}, and 1 to {tickets} are allowed", self.buffers)
        } else if self.buffers_max < self.buffers {
            format!("buffers_max is {}, less than buffers, {}", self.buffers_max, self.buffers)
        } else if !(1..=limit).contains(&self.record_bytes_max) {
            format!("record_bytes_max is {}, and 1 to {limit} are allowed", self.record_bytes_max)
        } else {
            return Ok(());
        };
        Err(GrowError::SetUp(wrong))
    }
}

/// A record that has arrived: where its bytes are, until it is released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    number: u64,
    message: u64,
    start: u32,
    length: u32,
    stream: u32,
    /// What arrived says where in an aperture the record lies.
    pub(super) is_far: bool,
}

impl Record {
    /// How many records came before it.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// First byte, from the start of the buffer that it lies in.
    pub fn start(&self) -> usize {
        self.start as usize
    }

    /// Bytes.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.length as usize
    }
}

/// What the manager's side of the receiver and the end point share.
#[derive(Debug)]
pub(super) struct Shared {
    lanes: Box<[SlotId]>,
    /// Where a sender asks, and where its small messages go.
    ask: SlotId,
    places: SlotId,
    /// What every sender is told: numbers.
    answer: Vec<u8>,
    /// The one request that was admitted, and where its sender takes grants.
    admitted: Mutex<Option<(RequestId, Ticket)>>,
    joined: OnceLock<(Arc<Connection>, Ticket)>,
    queue: QueueId,
    /// Memory for long records, where the receiver lends some.
    pub(super) far: Option<FarOffer>,
}

impl Shared {
    fn admitted(&self) -> MutexGuard<'_, Option<(RequestId, Ticket)>> {
        self.admitted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct StreamOffer(Arc<Shared>);

/// How a sender's messages travel: all of them through the link, or long ones through an aperture.
const THROUGH_THE_LINK: u8 = 0;
pub(super) const THROUGH_AN_APERTURE: u8 = 1;

impl Offer for StreamOffer {
    fn check_place(&self, _: &Peer, _: &[u8]) -> Result<(), String> {
        match self.0.admitted().is_some() {
            true => Err("the stream has its sender already".into()),
            false => Ok(()),
        }
    }

    fn admit(
        &mut self,
        node: &mut Node,
        request: RequestId,
        peer: &Peer,
        body: &[u8],
    ) -> Result<Vec<u8>, String> {
        let shared = &*self.0;
        let grants = fast_ticket_from(body, peer)?;
        let path = match (body.get(TICKET_BYTES..), &shared.far) {
            (Some([THROUGH_THE_LINK]), _) => None,
            (Some([THROUGH_AN_APERTURE, credit @ ..]), Some(far)) => Some((far, credit)),
            _ => return Err("the sender wants a path that this receiver does not have".into()),
        };
        if grants.capacity() < (GRANT_BYTES * shared.lanes.len() + FREED_BYTES) as u64 {
            return Err("the sender's memory is too small for its tickets".into());
        }
        let mut admitted = shared.admitted();
        let mut answer = shared.answer.clone();
        for slot in [shared.ask, shared.places] {
            let ticket = node.fast_ticket(slot).map_err(|e| e.to_string())?;
            answer.extend_from_slice(&ticket.to_bytes());
        }
        for lane in &shared.lanes {
            let ticket = node.ticket(*lane, MetadataIndex(0)).map_err(|e| e.to_string())?;
            answer.extend_from_slice(&ticket.slot.0.to_le_bytes());
            answer.extend_from_slice(&ticket.key.0.to_le_bytes());
        }
        match (path, &shared.far) {
            (Some((far, credit)), _) => far.admit(credit, peer)?,
            (None, Some(far)) => far.admit_plain(),
            (None, None) => {}
        }
        *admitted = Some((request, grants));
        Ok(answer)
    }

    fn withdrawn(&mut self, node: &mut Node, request: RequestId) {
        let mut admitted = self.0.admitted();
        if admitted.is_some_and(|(id, _)| id == request) {
            *admitted = None;
            // It knows the keys, and the next sender gets others; and the room in the queue that it
            // has taken, over another link of its own.
            let _ = node.revoke(self.0.ask);
            let _ = node.revoke(self.0.places);
            for lane in &self.0.lanes {
                if let Ok(entry) = node.metadata(*lane, MetadataIndex(0)) {
                    let limits = entry.limits();
                    let _ = node.arm(*lane, MetadataIndex(0), Some(limits));
                }
            }
            while let Ok(Some(_)) = node.pop(self.0.queue) {}
        }
    }

    fn joined(&mut self, node: &mut Node, request: RequestId, connection: &Arc<Connection>) {
        if let Some((id, grants)) = *self.0.admitted()
            && id == request
        {
            let _ = self.0.joined.set((connection.clone(), grants));
            // What it has sent may be there already, and counts from now on.
            node.stir();
        }
    }

    // Its messages that have arrived wait in their lanes; nothing more comes.
    fn left(&mut self, _: &mut Node, _: &Connection) {}
}

/// One message that was taken.
#[derive(Debug)]
struct Held {
    lies: Lies,
    length: u32,
    framed: bool,
    last: bool,
    /// The next record.
    at: u32,
    /// Number of the first record behind it, once all of its own were handed out.
    end: u64,
}

/// [`Held::end`] while records are left.
const NOT_YET: u64 = u64::MAX;

/// Where the bytes of a message lie.
#[derive(Clone, Copy, Debug)]
enum Lies {
    /// In the still copy of a place.
    Place(u32),
    /// In the buffer with this number, counted from the first message on.
    Buffer(u64),
}

/// The memory of the messages that were taken.
#[derive(Debug)]
struct Taken {
    /// The buffers of those that are not released, the first of which has number `first`.
    buffers: VecDeque<AreaMemory>,
    first: u64,
    /// A copy of each place, made when its message was taken.
    places: Box<[u8]>,
}

impl Taken {
    #[inline]
    fn bytes(&self, lies: Lies) -> &[u8] {
        match lies {
            Lies::Place(place) => &self.places[place as usize * PLACE_BYTES..][..PLACE_BYTES],
            Lies::Buffer(number) => {
                let buffer = self.buffers.get(number.wrapping_sub(self.first) as usize);
                buffer.map_or(&[], |memory| memory.as_ref())
            }
        }
    }
}

/// A slot, its area, and what lies in the area while the lane has no buffer.
#[derive(Debug)]
struct Lane {
    slot: SlotId,
    area: AreaId,
    empty: Option<AreaMemory>,
    size: usize,
    /// Its ticket, of which the sender was not told.
    owed: Option<Grant>,
}

/// What takes messages out of the node.
#[derive(Debug)]
struct Intake {
    shared: Arc<Shared>,
    config: StreamConfig,
    stream: u32,
    lanes: Box<[Lane]>,
    ask_slot: SlotId,
    ask_area: AreaId,
    places_slot: SlotId,
    places_area: AreaId,
    queue: QueueId,
    window: Window,
    places: Places,
    /// A larger buffer is wanted for a ticket.
    asked: Option<(u64, usize)>,
    /// The lanes that owe their sender a grant.
    ungranted: VecDeque<usize>,
    /// Buffers of the usual size: free ones, and how many there are in all.
    free: Vec<AreaMemory>,
    buffers: u32,
    /// Larger ones: free ones, bytes of all, bytes of those in lanes.
    free_large: Vec<AreaMemory>,
    large_bytes: usize,
    large_in_lanes: usize,
    /// Messages whose records are not all released, from number `first` on; those before `reading`
    /// were handed out.
    held: VecDeque<Held>,
    taken: Taken,
    first: u64,
    reading: usize,
    /// Records handed out, released.
    given: u64,
    released: u64,
    /// The sender's last message was taken.
    has_last: bool,
    ended: Option<CloseReason>,
    /// What the sender did wrong, and over which link; whether it was sent away.
    fault: Option<String>,
    link: Option<LinkId>,
    is_expelled: bool,
}

impl Intake {
    fn connection(&self) -> Option<&Connection> {
        self.shared.joined.get().map(|(connection, _)| &**connection)
    }

    /// The next record of the messages that were taken.
    #[inline]
    fn next_record(&mut self) -> Option<Record> {
        let message = self.first + self.reading as u64;
        let held = self.held.get_mut(self.reading)?;
        let length = held.length as usize;
        let mut is_far = false;
        let range = if !held.framed {
            (held.at, held.end) = (held.length, self.given + 1);
            self.reading += 1;
            0..length
        } else {
            let bytes = self.taken.bytes(held.lies).get(..length).unwrap_or(&[]);
            let at = held.at as usize;
            let mut found = records::next(bytes, at);
            if found.is_err()
                && self.shared.far.is_some()
                && let Some(far) = records::next_far(bytes, at)
            {
                (found, is_far) = (Ok(Some(far)), true);
            }
            match found {
                Ok(Some((range, after))) => {
                    held.at = after as u32;
                    if after == length {
                        held.end = self.given + 1;
                        self.reading += 1;
                    }
                    range
                }
                Ok(None) => return self.skip_empty(),
                Err(e) => return self.misbehaves(e.to_string()),
            }
        };
        let longest = self.config.record_bytes_max;
        if range.len() > longest && !is_far {
            let length = range.len();
            return self.misbehaves(format!("a record of {length} bytes, where {longest} fit"));
        }
        let number = self.given;
        self.given += 1;
        Some(Record {
            number,
            message,
            start: range.start as u32,
            length: range.len() as u32,
            stream: self.stream,
            is_far,
        })
    }

    /// A message without records is allowed where it says that it is the last.
    #[cold]
    fn skip_empty(&mut self) -> Option<Record> {
        match self.held.get_mut(self.reading) {
            Some(held) if held.last => {
                held.end = self.given;
                self.reading += 1;
                self.drop_released();
                None
            }
            _ => self.misbehaves("a message without records".into()),
        }
    }

    /// What comes after a fault is worth nothing.
    #[cold]
    fn misbehaves(&mut self, why: String) -> Option<Record> {
        self.fault.get_or_insert(why);
        while self.held.len() > self.reading {
            if let Some(Held { lies: Lies::Buffer(_), .. }) = self.held.pop_back()
                && let Some(memory) = self.taken.buffers.pop_back()
            {
                self.put_back(memory);
            }
        }
        None
    }

    fn put_back(&mut self, memory: AreaMemory) {
        if memory.as_ref().len() > self.config.buffer_bytes {
            self.free_large.push(memory);
        } else {
            self.free.push(memory);
        }
    }

    /// Buffers and places of which every record is released are free.
    #[inline]
    fn drop_released(&mut self) {
        while let Some(held) = self.held.front()
            && held.end <= self.released
        {
            match held.lies {
                Lies::Place(_) => self.places.free(),
                Lies::Buffer(_) => self.drop_buffer(),
            }
            self.held.pop_front();
            self.first += 1;
            self.reading -= 1;
        }
    }

    fn drop_buffer(&mut self) {
        self.taken.first += 1;
        if let Some(memory) = self.taken.buffers.pop_front() {
            self.put_back(memory);
        }
    }

    /// One look under the lock: takes what has come, gives out what is free.
    #[inline]
    fn look(&mut self, node: &mut Node) -> Look<()> {
        // Whatever is there before the sender is known may be another's.
        if self.connection().is_none() {
            return Look::Nothing;
        }
        while self.fault.is_none()
            && let Ok(Some(notification)) = node.take_next(self.queue)
        {
            self.note(&notification);
        }
        // What came before a fault is taken.
        let mut took = false;
        while !self.has_last && (self.take_small(node) || self.window.is_ready() && self.take(node))
        {
            took = true;
        }
        if self.fault.is_some() {
            return Look::Found(());
        }
        // A message that waits is handed out first, unless the sender is running short.
        if !took || self.is_due() {
            self.replenish(node);
        }
        if took {
            return Look::Found(());
        }
        let Some((connection, _)) = self.shared.joined.get() else { return Look::Nothing };
        if let Some(reason) = connection.ended() {
            // The sender says when it has sent everything; else it had more.
            let cut_off = *reason == CloseReason::Closed && !self.has_last;
            self.ended = Some(if cut_off { CloseReason::HungUp } else { reason.clone() });
            return Look::Found(());
        }
        let is_told = self.ungranted.is_empty() && !self.places.is_due();
        if is_told { Look::Nothing } else { Look::Room(connection.link()) }
    }

    /// Takes the next small message, where it is the one that comes and nothing else is to be done.
    #[inline(always)]
    fn take_one(&mut self, node: &mut Node) -> Option<()> {
        if self.fault.is_some() || self.has_last || self.is_due() || self.connection().is_none() {
            return None;
        }
        let notification = node.take_next(self.queue).ok()??;
        self.note(&notification);
        (self.fault.is_none() && self.take_small(node)).then_some(())
    }

    #[inline]
    fn note(&mut self, notification: &Notification) {
        let of_connection = self.connection().map(Connection::link);
        if of_connection.is_some_and(|link| link != notification.link) {
            self.fault.get_or_insert("its tickets were used over another link".into());
            return;
        }
        self.link = Some(notification.link);
        if notification.is_for(self.places_slot) {
            let (tickets, out) = (self.window.expected(), self.window.out());
            // The slot has a metadata entry, too, which an honest sender does not use.
            let is_fast = notification.index == MetadataIndex::FAST;
            if !is_fast || !self.places.arrive(notification.word, tickets, out) {
                self.fault.get_or_insert("a small message with no place".into());
            }
            return;
        }
        if notification.index == MetadataIndex::FAST {
            return self.note_ask(notification.word);
        }
        let expected = self.window.lane(self.window.expected());
        let lane = if notification.is_for(self.lanes[expected].slot) {
            Some(expected)
        } else {
            self.lanes.iter().position(|lane| notification.is_for(lane.slot))
        };
        if !lane.is_some_and(|lane| self.window.arrive(lane)) {
            self.fault.get_or_insert("a message with no ticket".into());
        }
    }

    #[cold]
    fn note_ask(&mut self, word: u32) {
        match self.window.asked(word) {
            Some(asked) if self.asked.is_none() => self.asked = Some(asked),
            _ => {
                self.fault.get_or_insert("it asked for a buffer out of turn".into());
            }
        }
    }

    /// Takes the next message, if it is a small one: copies it, since the sender may write to its
    /// place at any time.
    #[inline]
    fn take_small(&mut self, node: &mut Node) -> bool {
        let Some(small) = self.places.take(self.window.expected()) else { return false };
        let at = small.place as usize * PLACE_BYTES;
        let to = &mut self.taken.places[at..at + PLACE_BYTES];
        let Ok(Some(from)) = node.area(self.places_area).map(|area| area.get(at..at + PLACE_BYTES))
        else {
            return false;
        };
        // Words, as they were deposited: what was just written is read again at once.
        for i in 0..2 {
            to[8 * i..8 * i + 8].copy_from_slice(&from[8 * i..8 * i + 8]);
        }
        let length = small.length as usize;
        if length > 16 {
            to[16..length].copy_from_slice(&from[16..length]);
        }
        self.hold(node, Lies::Place(small.place), small.length, small.framed, false);
        true
    }

    #[inline]
    fn hold(&mut self, node: &mut Node, lies: Lies, length: u32, framed: bool, last: bool) {
        if self.first == 0 && self.held.is_empty() {
            self.lend(node);
        }
        self.has_last |= last;
        self.held.push_back(Held { lies, length, framed, last, at: 0, end: NOT_YET });
    }

    /// Takes the next message that came with a ticket, memory and all; says whether it could be
    /// taken.
    fn take(&mut self, node: &mut Node) -> bool {
        let index = self.window.lane(self.window.expected());
        let lane = &mut self.lanes[index];
        let longest = self.config.record_bytes_max;
        let fits = |mark: &Mark| {
            let length = mark.length as usize;
            length <= lane.size && (mark.framed || length <= longest)
        };
        let mark = match node.metadata(lane.slot, MetadataIndex(0)) {
            Ok(entry) => Mark::from_bytes(entry.user()).filter(fits),
            Err(_) => None,
        };
        if let Some(mark) = mark {
            let before = mark.small_before.wrapping_sub(self.places.taken() as u32);
            if before as u64 > PLACES || before > 0 && self.places.has_next() {
                self.fault.get_or_insert("numbers of messages that contradict one another".into());
                return false;
            }
            if before > 0 {
                // A small message that was sent before is still on its way.
                return false;
            }
        }
        if self.window.take().is_none() {
            return false;
        }
        let taken = match (mark, lane.empty.take()) {
            (Some(mark), Some(empty)) => {
                node.replace_memory(lane.slot, empty).map(|memory| (mark, memory)).ok()
            }
            (_, empty) => {
                lane.empty = empty;
                None
            }
        };
        let Some((mark, memory)) = taken else {
            let why = "a message that is longer than its buffer, or has no mark";
            self.fault.get_or_insert(why.into());
            return false;
        };
        if lane.size > self.config.buffer_bytes {
            self.large_in_lanes -= lane.size;
        }
        let number = self.taken.first + self.taken.buffers.len() as u64;
        self.taken.buffers.push_back(memory);
        self.hold(node, Lies::Buffer(number), mark.length, mark.framed, mark.last);
        true
    }

    /// With its first message a sender has its end of the link, and can be given an aperture.
    #[cold]
    fn lend(&self, node: &mut Node) {
        if let (Some(far), Some(connection)) = (&self.shared.far, self.connection()) {
            far.joined(node, connection.link());
        }
    }

    /// Whether the sender is to be given tickets at once.
    #[inline]
    fn is_due(&self) -> bool {
        self.window.unarmed() * 2 >= self.lanes.len() as u64 || self.places.is_due()
    }

    /// Puts buffers into lanes that have none, and tells the sender.
    #[inline]
    fn replenish(&mut self, node: &mut Node) {
        if self.asked.is_some() {
            self.answer_ask(node);
        }
        if self.window.unarmed() > 0 {
            self.arm(node);
        }
        if !self.ungranted.is_empty() {
            self.grant(node);
        }
        if self.places.is_due() {
            self.tell_freed(node);
        }
    }

    /// Tells the sender how many places were freed, if the link has room now.
    fn tell_freed(&mut self, node: &mut Node) {
        let Some((connection, grants)) = self.shared.joined.get() else { return };
        let base = grants.base + (GRANT_BYTES * self.lanes.len()) as u64;
        let freed = self.places.freed().to_le_bytes();
        match node.try_send_fast_over(connection.link(), &Ticket { base, ..*grants }, &freed, 0) {
            Err(SendError::Full) => {}
            // Or it is gone, or gave a ticket that cannot be used: nobody to tell.
            _ => self.places.tell(),
        }
    }

    fn arm(&mut self, node: &mut Node) {
        while self.window.unarmed() > 0 {
            let Some(memory) = self.buffer(node) else { return };
            let Some(number) = self.window.arm() else { return };
            self.put_into_lane(node, number, memory);
        }
    }

    /// A buffer for the next ticket, made if need be and allowed.
    fn buffer(&mut self, node: &mut Node) -> Option<AreaMemory> {
        // Where records are long the next will be, too. What lies in lanes leaves room for one of
        // the longest: else a sender that asks for that would wait for itself.
        let fits = |memory: &AreaMemory| {
            self.large_in_lanes + memory.as_ref().len() <= self.config.record_bytes_max
        };
        if let Some(i) = self.free_large.iter().position(fits) {
            return Some(self.free_large.swap_remove(i));
        }
        if let Some(memory) = self.free.pop() {
            return Some(memory);
        }
        if self.buffers >= self.config.buffers_max {
            return None;
        }
        match node.new_memory(self.config.buffer_bytes) {
            Ok(memory) => {
                self.buffers += 1;
                Some(memory)
            }
            Err(_) => {
                // There is no more to be had; asking each time would cost a system call.
                self.config.buffers_max = self.buffers;
                None
            }
        }
    }

    /// The lane of a ticket gets a buffer and a key, and the sender a grant. What lay there comes
    /// back.
    fn put_into_lane(&mut self, node: &mut Node, number: u64, memory: AreaMemory) {
        let size = memory.as_ref().len();
        let index = self.window.lane(number);
        let lane = &mut self.lanes[index];
        let armed = node
            .replace_memory(lane.slot, memory)
            .and_then(|before| {
                lane.size = size;
                if size > self.config.buffer_bytes {
                    self.large_in_lanes += size;
                }
                node.arm(lane.slot, MetadataIndex(0), Some(0..size as u64)).map(|()| before)
            })
            .and_then(|before| {
                node.ticket(lane.slot, MetadataIndex(0)).map(|ticket| (before, ticket))
            });
        match armed {
            Ok((before, ticket)) => {
                let grant = Grant {
                    key: ticket.key.0,
                    number: number as u32,
                    size: size as u32,
                    refused: false,
                };
                if lane.empty.is_none() {
                    lane.empty = Some(before);
                } else {
                    self.put_back(before);
                }
                self.owe(index, grant);
            }
            // Its own slots do not go while the end point lives.
            Err(e) => self.fault = Some(e.to_string()),
        }
    }

    /// The sender needs a larger buffer for a ticket that it has.
    #[cold]
    fn answer_ask(&mut self, node: &mut Node) {
        let Some((number, bytes)) = self.asked else { return };
        if !self.window.is_unused(number) {
            // Its message has come meanwhile: no honest sender asks and does not wait.
            self.asked = None;
            return;
        }
        let page = records::PAGE;
        let longest = self.config.record_bytes_max.next_multiple_of(page);
        let index = self.window.lane(number);
        let (slot, size) = (self.lanes[index].slot, self.lanes[index].size);
        let mut refused = bytes > longest;
        if size < bytes && !refused {
            let fits = |memory: &AreaMemory| memory.as_ref().len() >= bytes;
            let found = self.free_large.iter().position(fits);
            let memory = match found {
                Some(i) => Some(self.free_large.swap_remove(i)),
                None => {
                    // Powers of two, so that records of about a length share buffers.
                    let wanted = bytes.next_power_of_two().min(longest);
                    // What lies in lanes counts. Arming keeps it to one of the longest, so that an
                    // honest sender, which asks for its next ticket, does not wait for itself.
                    let limit = 3 * longest;
                    while self.large_bytes + wanted > limit {
                        let Some(memory) = self.free_large.pop() else { break };
                        self.large_bytes -= memory.as_ref().len();
                        node.drop_memory(memory);
                    }
                    if self.large_bytes + wanted > limit {
                        // Later, when records have been released.
                        return;
                    }
                    let made = node.new_memory(wanted).ok();
                    self.large_bytes += made.as_ref().map_or(0, |_| wanted);
                    refused = made.is_none();
                    made
                }
            };
            if let Some(memory) = memory {
                self.asked = None;
                if size > self.config.buffer_bytes {
                    self.large_in_lanes -= size;
                }
                return self.put_into_lane(node, number, memory);
            }
        }
        self.asked = None;
        if let Ok(ticket) = node.ticket(slot, MetadataIndex(0)) {
            let (key, number, size) = (ticket.key.0, number as u32, size as u32);
            self.owe(index, Grant { key, number, size, refused });
        }
    }

    /// The sender is to be told of a lane's ticket; of the last one, if it took none before.
    fn owe(&mut self, lane: usize, grant: Grant) {
        if self.lanes[lane].owed.replace(grant).is_none() {
            self.ungranted.push_back(lane);
        }
    }

    /// Tells the sender of tickets, as far as the link has room now; the others later.
    fn grant(&mut self, node: &mut Node) {
        let Some((connection, grants)) = self.shared.joined.get() else { return };
        while let Some(&lane) = self.ungranted.front() {
            if let Some(grant) = self.lanes[lane].owed {
                let ticket = Ticket { base: grants.base + (GRANT_BYTES * lane) as u64, ..*grants };
                match node.try_send_fast_over(connection.link(), &ticket, &grant.to_bytes(), 0) {
                    Err(SendError::Full) => return,
                    // Or it is gone, or gave a ticket that cannot be used: nobody to tell.
                    _ => self.lanes[lane].owed = None,
                }
            }
            self.ungranted.pop_front();
        }
    }

    /// Why nothing more is received, once that is so.
    fn over(&self) -> Option<ReceiveError> {
        if let Some(why) = &self.fault {
            return Some(ReceiveError::Misbehaved(why.clone()));
        }
        if self.has_last {
            return Some(ReceiveError::Ended(CloseReason::Closed));
        }
        self.ended.clone().map(ReceiveError::Ended)
    }

    /// Slots, areas and memory go back to the node.
    fn remove(&mut self, node: &mut Node) {
        let _ = node.remove_slot(self.ask_slot);
        let _ = node.remove_area(self.ask_area);
        let _ = node.remove_slot(self.places_slot);
        let _ = node.remove_area(self.places_area);
        self.lanes.iter_mut().for_each(|lane| lane.remove(node));
        let _ = node.remove_queue(self.queue);
        let held = self.taken.buffers.drain(..);
        held.chain(self.free.drain(..))
            .chain(self.free_large.drain(..))
            .for_each(|memory| node.drop_memory(memory));
    }
}

impl Lane {
    /// A lane with a buffer and a ticket.
    fn new(node: &mut Node, queue: QueueId, bytes: usize) -> Result<Self, String> {
        let empty = node.new_memory(1).map_err(|e| e.to_string())?;
        let area = match node.message_area(bytes) {
            Ok(area) => area,
            Err(e) => {
                node.drop_memory(empty);
                return Err(e.to_string());
            }
        };
        let config = SlotConfig::new(area, queue).mode(Mode::ParanoidOneShot);
        let slot = match node.slot(config) {
            Ok(slot) => slot,
            Err(e) => {
                let _ = node.remove_area(area);
                node.drop_memory(empty);
                return Err(e.to_string());
            }
        };
        let mut lane = Self { slot, area, empty: Some(empty), size: bytes, owed: None };
        match node.arm(slot, MetadataIndex(0), Some(0..bytes as u64)) {
            Ok(()) => Ok(lane),
            Err(e) => {
                lane.remove(node);
                Err(e.to_string())
            }
        }
    }

    fn remove(&mut self, node: &mut Node) {
        let _ = node.remove_slot(self.slot);
        let _ = node.remove_area(self.area);
        self.empty.take().into_iter().for_each(|memory| node.drop_memory(memory));
    }
}

/// Receives a stream of records from the one sender that is grown. `Send`.
pub struct StreamReceiver {
    pub(super) manager: Manager,
    pub(super) offer: OfferId,
    intake: Intake,
}

static NEXT_STREAM: AtomicU32 = AtomicU32::new(0);

impl StreamReceiver {
    /// A receiver with its first buffers.
    pub fn new(manager: &Manager, config: StreamConfig) -> Result<Self, GrowError> {
        Self::with_far(manager, config, None)
    }

    pub(super) fn with_far(
        manager: &Manager,
        config: StreamConfig,
        far: Option<FarOffer>,
    ) -> Result<Self, GrowError> {
        config.check()?;
        // Coalesced records are padded to four bytes, and so is their buffer.
        let config = StreamConfig { buffer_bytes: config.buffer_bytes & !3, ..config };
        let intake = Intake::new(&mut manager.lock(), config, far).map_err(GrowError::SetUp)?;
        let offer = manager.offer(Kind::Stream, Box::new(StreamOffer(intake.shared.clone())));
        Ok(Self { manager: manager.clone(), offer, intake })
    }

    offered!("the [`StreamSender`]");

    /// The next record, if it is there or comes in one turn.
    #[inline]
    pub fn try_receive(&mut self) -> Result<Option<Record>, ReceiveError> {
        ReceiveError::unless_timed_out(self.receive(Some(Duration::ZERO)))
    }

    /// The next record, in the order of sending; waits at most `timeout`. Its bytes stand still
    /// until it is [released](Self::release). After the sender's end, everything that it had
    /// committed comes first; then [`ReceiveError::Ended`], with [`CloseReason::Closed`] only if
    /// the sender had sent everything.
    #[inline]
    pub fn receive(&mut self, timeout: Option<Duration>) -> Result<Record, ReceiveError> {
        match self.intake.next_record() {
            Some(record) => Ok(record),
            None => self.receive_more(timeout),
        }
    }

    #[inline(never)]
    fn receive_more(&mut self, timeout: Option<Duration>) -> Result<Record, ReceiveError> {
        let Self { manager, intake, .. } = self;
        let taken = manager.shared.at_once(|node, _| intake.take_one(node));
        match taken.and_then(|()| self.intake.next_record()) {
            Some(record) => Ok(record),
            None => self.receive_message(timeout),
        }
    }

    #[inline(never)]
    fn receive_message(&mut self, timeout: Option<Duration>) -> Result<Record, ReceiveError> {
        loop {
            if let Some(record) = self.intake.next_record() {
                return Ok(record);
            }
            if let Some(error) = self.intake.over() {
                self.expel();
                return Err(error);
            }
            let intake = &mut self.intake;
            self.manager.shared.wait_until(timeout, |node, _| intake.look(node))?;
            if self.intake.fault.is_some() {
                self.expel();
            }
        }
    }

    #[cold]
    fn expel(&mut self) {
        let intake = &mut self.intake;
        let link = intake.connection().map(Connection::link).or(intake.link);
        if let (Some(why), Some(link), false) = (&intake.fault, link, intake.is_expelled) {
            self.manager.expel(link, why);
            intake.is_expelled = true;
        }
    }

    /// The bytes of a record, where they arrived. No lock, no copy.
    #[inline]
    pub fn bytes(&self, record: &Record) -> Result<&[u8], ReceiveError> {
        let intake = &self.intake;
        let start = record.start as usize;
        let held = record.message.checked_sub(intake.first).and_then(|i| {
            let is_own = record.stream == intake.stream && record.number >= intake.released;
            intake.held.get(i as usize).filter(|_| is_own)
        });
        let bytes = held.map_or(&[][..], |held| intake.taken.bytes(held.lies));
        match bytes.get(start..start + record.length as usize).filter(|_| held.is_some()) {
            Some(bytes) => Ok(bytes),
            None => Err(ReceiveError::Misuse(format!(
                "record {} was released, or is another stream's",
                record.number
            ))),
        }
    }

    /// Frees all records up to and including this one; their buffers are used again, and a sender
    /// that waits for one goes on.
    #[inline]
    pub fn release(&mut self, record: &Record) -> Result<(), ReceiveError> {
        let intake = &mut self.intake;
        if record.stream != intake.stream {
            let what = format!("record {} is another stream's", record.number);
            return Err(ReceiveError::Misuse(what));
        }
        if record.number >= intake.released {
            intake.released = record.number + 1;
            let is_free = |held: &Held| held.end <= intake.released;
            if intake.held.front().is_some_and(is_free) {
                self.give_back();
            }
        }
        Ok(())
    }

    #[inline]
    fn give_back(&mut self) {
        self.intake.drop_released();
        if (self.intake.is_due() || self.intake.asked.is_some()) && self.intake.over().is_none() {
            self.intake.replenish(&mut self.manager.shared.lock());
        }
    }

    /// The sender said something about the aperture that cannot be.
    #[cold]
    pub(super) fn misbehaves(&mut self, why: &str) -> ReceiveError {
        let _ = self.intake.misbehaves(why.into());
        self.expel();
        ReceiveError::Misbehaved(why.into())
    }

    pub(super) fn record_bytes_max(&self) -> usize {
        self.intake.config.record_bytes_max
    }

    pub(super) fn far(&self) -> Option<&FarOffer> {
        self.intake.shared.far.as_ref()
    }

    /// The sender, once it has one: who that is, and whether it has ended.
    pub fn connection(&self) -> Option<&Connection> {
        self.intake.connection()
    }

    /// Buffers of the usual size that exist now.
    pub fn buffers(&self) -> u32 {
        self.intake.buffers
    }

    /// Which path the records take, and why.
    pub fn explain(&self) -> String {
        match self.connection() {
            Some(connection) => explain(&self.manager, connection, PROTOCOL),
            None => format!("{PROTOCOL}; no sender yet"),
        }
    }
}

const PROTOCOL: &str = "stream: each message into a buffer of its own, through the link's ring";

impl Intake {
    fn new(node: &mut Node, config: StreamConfig, far: Option<FarOffer>) -> Result<Self, String> {
        let text = |e: &dyn ToString| e.to_string();
        let entries = config.buffers + 1 + PLACES as u32;
        let queue = node.notification_queue(entries).map_err(|e| text(&e))?;
        let (mut lanes, mut made_slots) = (Vec::new(), Vec::new());
        let made = (0..config.buffers)
            .try_for_each(|_| {
                lanes.push(Lane::new(node, queue, config.buffer_bytes)?);
                Ok(())
            })
            .and_then(|()| {
                // Asking writes nothing: the word is all of it.
                let ask = fast_slot(node, 1, |area| SlotConfig::new(area, queue).range(0..0))?;
                made_slots.push(ask);
                let bytes = PLACE_BYTES * PLACES as usize;
                let config = |area| SlotConfig::new(area, queue).credit(PLACES as u32);
                let places = fast_slot(node, bytes, config)?;
                made_slots.push(places);
                Ok((ask, places))
            });
        let ((ask_area, ask_slot), (places_area, places_slot)) = match made {
            Ok(made) => made,
            Err(e) => {
                lanes.iter_mut().for_each(|lane: &mut Lane| lane.remove(node));
                for (area, slot) in made_slots {
                    let _ = node.remove_slot(slot);
                    let _ = node.remove_area(area);
                }
                let _ = node.remove_queue(queue);
                return Err(e);
            }
        };
        let mut answer = Vec::new();
        for number in [config.buffers, config.buffer_bytes as u32, config.record_bytes_max as u32] {
            answer.extend_from_slice(&number.to_le_bytes());
        }
        Ok(Self {
            shared: Arc::new(Shared {
                lanes: lanes.iter().map(|lane| lane.slot).collect(),
                ask: ask_slot,
                places: places_slot,
                answer,
                admitted: Mutex::new(None),
                joined: OnceLock::new(),
                queue,
                far,
            }),
            window: Window::new(config.buffers),
            buffers: config.buffers,
            config,
            stream: NEXT_STREAM.fetch_add(1, Ordering::Relaxed),
            lanes: lanes.into(),
            ask_slot,
            ask_area,
            places_slot,
            places_area,
            places: Places::new(),
            queue,
            asked: None,
            ungranted: VecDeque::new(),
            free: Vec::new(),
            free_large: Vec::new(),
            large_bytes: 0,
            large_in_lanes: 0,
            held: VecDeque::new(),
            taken: Taken {
                buffers: VecDeque::new(),
                first: 0,
                places: vec![0; PLACE_BYTES * PLACES as usize].into(),
            },
            first: 0,
            reading: 0,
            given: 0,
            released: 0,
            has_last: false,
            ended: None,
            fault: None,
            link: None,
            is_expelled: false,
        })
    }
}

/// A slot over an area of its own. Nothing is left behind if that fails.
fn fast_slot(
    node: &mut Node,
    bytes: usize,
    config: impl FnOnce(AreaId) -> SlotConfig,
) -> Result<(AreaId, SlotId), String> {
    let area = node.message_area(bytes).map_err(|e| e.to_string())?;
    node.slot(config(area)).map(|slot| (area, slot)).map_err(|e| {
        let _ = node.remove_area(area);
        e.to_string()
    })
}

impl EndPoint for StreamReceiver {
    fn is_ready_in(&self, node: &Node) -> bool {
        let intake = &self.intake;
        intake.held.len() > intake.reading
            || intake.over().is_some()
            || intake.connection().is_some_and(|connection| {
                node.is_ready(intake.queue) == Ok(true) || connection.ended().is_some()
            })
    }

    fn manager(&self) -> &Manager {
        &self.manager
    }
}

impl Drop for StreamReceiver {
    fn drop(&mut self) {
        let Some(_) = self.manager.withdraw(self.offer) else { return };
        self.intake.remove(&mut self.manager.lock());
    }
}

/// Where a sender takes its tickets, and how it puts messages into them.
#[derive(Debug)]
struct Post {
    link: LinkId,
    destination: NodeId,
    /// A ring of grants, one for each of as many lanes as a receiver may have; and a count.
    grants: Cell,
    lanes: Box<[SlotIndex]>,
    ask: Ticket,
    record_bytes_max: usize,
    /// The places for small messages, and the longest of these.
    places: PreparedTicket,
    small_max: usize,
    /// How many of these have left, and of how many the place is free again.
    small: u64,
    freed: u64,
    /// Number of the next message with a ticket.
    next: u64,
    /// The last ticket for which a larger buffer was asked, and of how many bytes.
    asked: Option<(u64, usize)>,
}

/// A message of which a part has left.
#[derive(Debug)]
struct Outgoing {
    unfinished: Unfinished,
    mark: Mark,
    /// A long record; else the coalesced ones, which stay where they are meanwhile.
    own: Option<Vec<u8>>,
}

/// Most bytes that a sender coalesces, however large the receiver's buffers are.
const COALESCED_BYTES_MAX: usize = 1 << 20;

/// What is to leave.
#[derive(Clone, Copy)]
enum What<'a> {
    Coalesced,
    Record(&'a [u8]),
    End,
}

impl Post {
    /// The ticket for the next message.
    #[inline]
    fn grant(&self, node: &Node) -> Option<Grant> {
        let at = self.next % self.lanes.len() as u64 * GRANT_BYTES as u64;
        let bytes = node.area(self.grants.area).ok()?.get(at as usize..)?;
        let grant = Grant::from_bytes(*bytes.first_chunk()?);
        (grant.number == self.next as u32).then_some(grant)
    }

    /// A ticket for a message of `length` bytes, once there is one.
    #[inline]
    fn ticket(
        &mut self,
        node: &mut Node,
        connection: &Connection,
        length: usize,
    ) -> Result<Ticket, Look<Result<(), SendFailure>>> {
        let Some(grant) = self.grant(node) else { return Err(self.none(connection)) };
        let size = grant.size as usize;
        // While a larger buffer is on its way into the ticket's lane, the old key may be worthless.
        let asked = self.asked.filter(|(number, _)| *number == self.next).map(|(_, bytes)| bytes);
        let is_answered = asked.is_none_or(|bytes| size >= bytes || grant.refused);
        if !is_answered {
            return Err(self.none(connection));
        }
        if size < length {
            return Err(self.ask(node, connection, length, grant));
        }
        Ok(Ticket {
            destination: self.destination,
            slot: self.lanes[(self.next % self.lanes.len() as u64) as usize],
            metadata_index: MetadataIndex(0),
            key: Key(grant.key),
            base: 0,
            bound: size as u64,
            flags: Flags::NOTIFY | Flags::WAKE,
            share: Share::WHOLE,
        })
    }

    fn none(&self, connection: &Connection) -> Look<Result<(), SendFailure>> {
        match connection.ended() {
            Some(_) => Look::Found(Err(ended(connection))),
            None => Look::Nothing,
        }
    }

    #[cold]
    fn ask(
        &mut self,
        node: &mut Node,
        connection: &Connection,
        length: usize,
        grant: Grant,
    ) -> Look<Result<(), SendFailure>> {
        if grant.refused {
            let max = grant.size as usize;
            let limit =
                "by the memory that the receiver has left (its buffers_max, area_bytes_max)";
            return Look::Found(Err(SendFailure::TooLong { length, max, limit }));
        }
        let word = records::ask(self.next, length);
        match node.try_send_fast_over(self.link, &self.ask, &[], word) {
            Ok(_) => {
                self.asked = Some((self.next, length));
                Look::Nothing
            }
            Err(SendError::Full) => Look::Room(self.link),
            Err(SendError::LinkEnded(_)) => Look::Found(Err(ended(connection))),
            Err(e) => Look::Found(Err(e.into())),
        }
    }

    /// Whether a place is free.
    #[inline]
    fn has_place(&mut self, node: &Node) -> bool {
        self.small - self.freed < PLACES || self.finds_place(node)
    }

    #[cold]
    fn finds_place(&mut self, node: &Node) -> bool {
        let at = GRANT_BYTES * self.lanes.len();
        let told =
            node.area(self.grants.area).ok().and_then(|bytes| bytes.get(at..)?.first_chunk());
        if let Some(told) = told {
            let told = u64::from_le_bytes(*told);
            // Links may reorder, and more than were sent is a lie.
            if told > self.freed && told <= self.small {
                self.freed = told;
            }
        }
        self.small - self.freed < PLACES
    }

    /// The place of the next small message, and the word that it carries.
    #[inline]
    fn place(&self, mark: Mark) -> (Ticket, u32) {
        let (offset, word) = self.place_of(mark.length, mark.framed);
        let places = self.places.ticket();
        (Ticket { base: places.base + offset, ..*places }, word)
    }

    #[inline(always)]
    fn place_of(&self, length: u32, framed: bool) -> (u64, u32) {
        let place = (self.small % PLACES) as u32;
        let small = Small { length, framed, place, tickets_before: self.next as u32 };
        (place as u64 * PLACE_BYTES as u64, small.to_word())
    }

    /// Sends a message of one line, if a place is known to be free. False: nothing was done.
    #[inline(always)]
    fn send_line(&mut self, node: &mut Node, data: &[u8], framed: bool) -> bool {
        if self.small - self.freed >= PLACES {
            return false;
        }
        let (offset, word) = self.place_of(data.len() as u32, framed);
        let sent = node.push_prepared(&self.places, offset, data, word);
        self.small += sent as u64;
        sent
    }

    /// One look under the lock: puts as much of a message into the link as it takes.
    #[inline]
    fn look(
        &mut self,
        node: &mut Node,
        connection: &Connection,
        data: &[u8],
        mark: Mark,
        outgoing: &mut Begun,
    ) -> Look<Result<(), SendFailure>> {
        let bytes = mark.to_bytes();
        let mut metadata = &bytes[..mark.len()];
        if outgoing.unfinished.is_none() {
            let is_small = data.len() <= self.small_max && !mark.last;
            let has_place = is_small && self.has_place(node);
            if is_small && !has_place && !outgoing.looked {
                // That places were freed may be known after the next turn.
                outgoing.looked = true;
                return Look::Again;
            }
            outgoing.is_small = has_place;
            let (ticket, word) = if has_place {
                metadata = &[];
                self.place(mark)
            } else {
                match self.ticket(node, connection, data.len()) {
                    Ok(ticket) => (ticket, 0),
                    Err(look) => return look,
                }
            };
            if node.try_send_line_over(self.link, &ticket, data, metadata, word) {
                self.has_left(has_place);
                return Look::Found(Ok(()));
            }
            let begun = node.prepare_send(self.link, &ticket, data.len(), metadata.len(), word);
            match begun {
                Ok(unfinished) => outgoing.unfinished = Some(unfinished),
                Err(SendError::LinkEnded(_)) => return Look::Found(Err(ended(connection))),
                Err(e) => return Look::Found(Err(e.into())),
            }
        }
        if outgoing.is_small {
            metadata = &[];
        }
        let Some(unfinished) = &mut outgoing.unfinished else { return Look::Nothing };
        match node.look_to_send(unfinished, data, metadata) {
            Look::Found(Ok(_)) => {
                self.has_left(outgoing.is_small);
                Look::Found(Ok(()))
            }
            Look::Found(Err(SendError::LinkEnded(_))) => Look::Found(Err(ended(connection))),
            Look::Found(Err(e)) => Look::Found(Err(e.into())),
            Look::Again => Look::Again,
            Look::Nothing => Look::Nothing,
            Look::Room(link) => Look::Room(link),
        }
    }

    #[inline]
    fn has_left(&mut self, is_small: bool) {
        if is_small {
            self.small += 1;
        } else {
            self.next += 1;
        }
    }
}

/// A message that is to leave in one call.
#[derive(Default)]
struct Begun {
    unfinished: Option<Unfinished>,
    /// It goes to a place.
    is_small: bool,
    /// A turn was taken to find a place.
    looked: bool,
}

/// Sends a stream of records. `Send`. Dropping it sends what it can without waiting, and closes;
/// the receiver then sees [`CloseReason::HungUp`] if something was left. Who must know
/// [closes](Self::close).
pub struct StreamSender {
    manager: Manager,
    connection: Arc<Connection>,
    post: Post,
    /// Coalesced records.
    buffer: Box<[u8]>,
    fill: usize,
    records: u64,
    /// Bytes of `buffer` that may be used: all; none while its message is leaving, and at the end.
    limit: usize,
    /// Longest record that is coalesced.
    coalesced_max: usize,
    outgoing: Option<Outgoing>,
    is_closed: bool,
}

impl StreamSender {
    grown!("the sender", "a receiver");

    fn to(
        manager: &Manager,
        target: Target<'_>,
        timeout: Option<Duration>,
    ) -> Result<Self, GrowError> {
        Self::over(manager, target, &[THROUGH_THE_LINK], timeout)
    }

    /// `path` is what the greeting says of it.
    pub(super) fn over(
        manager: &Manager,
        target: Target<'_>,
        path: &[u8],
        timeout: Option<Duration>,
    ) -> Result<Self, GrowError> {
        let bytes = GRANT_BYTES * records::TICKETS_MAX as usize + FREED_BYTES;
        let (grants, ticket) = Cell::new(&mut manager.lock(), bytes).map_err(GrowError::SetUp)?;
        let mut body = ticket.to_bytes().to_vec();
        body.extend_from_slice(path);
        let read = |connection: &_, answer: &_| Self::read(manager, connection, answer, grants);
        let expected = "no tickets and sizes that fit together";
        let grown = manager.grow(target, Kind::Stream, &body, timeout, expected, read);
        if grown.is_err() {
            grants.remove(&mut manager.lock());
        }
        grown.map(|(_, sender)| sender)
    }

    /// Reads the receiver's answer; `None`: it makes no sense.
    fn read(
        manager: &Manager,
        connection: &Arc<Connection>,
        answer: &[u8],
        grants: Cell,
    ) -> Option<Self> {
        let word = |i: usize| {
            let bytes = answer.get(4 * i..)?.first_chunk()?;
            Some(u32::from_le_bytes(*bytes) as usize)
        };
        let (count, buffer_bytes, record_bytes_max) = (word(0)?, word(1)?, word(2)?);
        let sizes = 64 - 3..=records::MESSAGE_BYTES_MAX;
        let fits = (1..=records::TICKETS_MAX as usize).contains(&count)
            && sizes.contains(&buffer_bytes)
            && (1..=records::MESSAGE_BYTES_MAX).contains(&record_bytes_max);
        let (ask, rest) = answer.get(12..)?.split_at_checked(TICKET_BYTES)?;
        let (places, tickets) = rest.split_at_checked(TICKET_BYTES)?;
        let ask = fast_ticket_from(ask, connection.peer()).ok()?;
        let places = fast_ticket_from(places, connection.peer()).ok()?;
        if places.capacity() < PLACES * PLACE_BYTES as u64 {
            return None;
        }
        if !fits || tickets.len() != 12 * count {
            return None;
        }
        let mut lanes = Vec::with_capacity(count);
        let mut node = manager.lock();
        for (number, ticket) in tickets.chunks_exact(12).enumerate() {
            let (slot, key) = ticket.split_first_chunk::<4>()?;
            lanes.push(SlotIndex(u32::from_le_bytes(*slot)));
            let key = u64::from_le_bytes(key.try_into().ok()?);
            let (number, size) = (number as u32, buffer_bytes as u32);
            let grant = Grant { key, number, size, refused: false };
            let at = GRANT_BYTES * number as usize;
            let to = node.area_mut(grants.area).ok()?.get_mut(at..at + GRANT_BYTES)?;
            to.copy_from_slice(&grant.to_bytes());
        }
        let packet_bytes = node.fast_bytes_max(connection.link()).unwrap_or(0);
        drop(node);
        // How much is coalesced is for this side to say: the other must not choose what it costs.
        let buffer_bytes = buffer_bytes.min(COALESCED_BYTES_MAX);
        let post = Post {
            link: connection.link(),
            destination: connection.peer().node,
            grants,
            lanes: lanes.into(),
            ask,
            record_bytes_max,
            places: PreparedTicket::new(&places, connection.link()),
            small_max: PLACE_BYTES.min(packet_bytes),
            small: 0,
            freed: 0,
            next: 0,
            asked: None,
        };
        Some(Self {
            manager: manager.clone(),
            connection: connection.clone(),
            post,
            buffer: vec![0; buffer_bytes].into(),
            fill: 0,
            records: 0,
            limit: buffer_bytes,
            coalesced_max: (buffer_bytes / 4).min(record_bytes_max),
            outgoing: None,
            is_closed: false,
        })
    }

    /// Longest record.
    pub fn bytes_max(&self) -> usize {
        self.post.record_bytes_max
    }

    /// Sends one record, waiting at most `timeout` for room. A small one leaves with others, at the
    /// latest with the next [`flush`](Self::flush). On an error nothing of *this* record was
    /// taken; that the receiver is gone is found when a message leaves.
    #[inline]
    pub fn send(&mut self, record: &[u8], timeout: Option<Duration>) -> Result<(), SendFailure> {
        if record.len() <= self.coalesced_max
            && let Some(fill) = records::put(&mut self.buffer[..self.limit], self.fill, record)
        {
            self.fill = fill;
            self.records += 1;
            return Ok(());
        }
        self.send_slowly(record, Deadline::new(timeout))
    }

    /// [`send`](Self::send) without waiting: `false`, and nothing of this record was taken, if that
    /// would be needed.
    pub fn try_send(&mut self, record: &[u8]) -> Result<bool, SendFailure> {
        SendFailure::unless_timed_out(self.send(record, Some(Duration::ZERO)))
    }

    /// [`flush`](Self::flush) without waiting: whether everything is on its way.
    pub fn try_flush(&mut self) -> Result<bool, SendFailure> {
        SendFailure::unless_timed_out(self.flush(Some(Duration::ZERO)))
    }

    #[inline(never)]
    fn send_slowly(&mut self, record: &[u8], deadline: Deadline) -> Result<(), SendFailure> {
        let (length, max) = (record.len(), self.post.record_bytes_max);
        if length > max {
            let limit = "by the receiver's record_bytes_max";
            return Err(SendFailure::TooLong { length, max, limit });
        }
        self.empty(deadline)?;
        if length > self.coalesced_max {
            return self.ship(What::Record(record), false, deadline.left());
        }
        match records::put(&mut self.buffer[..self.limit], self.fill, record) {
            Some(fill) => {
                (self.fill, self.records) = (fill, self.records + 1);
                Ok(())
            }
            // An empty buffer holds any record that is coalesced, unless the receiver is gone.
            None => Err(ended(&self.connection)),
        }
    }

    /// Tells the receiver of a record that lies in its aperture, after everything that was sent
    /// before. On an error it was not told.
    pub(super) fn announce(&mut self, far: Far, deadline: Deadline) -> Result<(), SendFailure> {
        let mut fill = records::put_far(&mut self.buffer[..self.limit], self.fill, far);
        if fill.is_none() {
            self.empty(deadline)?;
            fill = records::put_far(&mut self.buffer[..self.limit], self.fill, far);
        }
        let Some(fill) = fill else { return Err(ended(&self.connection)) };
        (self.fill, self.records) = (fill, self.records + 1);
        match self.flush(deadline.left()) {
            // It is taken, as coalesced records are.
            Err(SendFailure::TimedOut) => Ok(()),
            sent => sent,
        }
    }

    /// Sends what was coalesced, waiting at most `timeout` for room: when it returns `Ok`, every
    /// record is on its way, and arrives also if this process ends. On an error what is left
    /// stays, for a later call.
    #[inline]
    pub fn flush(&mut self, timeout: Option<Duration>) -> Result<(), SendFailure> {
        // While a message is leaving, and at the end, nothing is coalesced.
        if self.limit > 0 {
            if self.fill == 0 {
                return Ok(());
            }
            let Self { manager, post, buffer, fill, records, .. } = self;
            let (data, framed) = Self::coalesced(buffer, *fill, *records);
            let sent =
                manager.shared.at_once(|node, _| post.send_line(node, data, framed).then_some(()));
            if sent.is_some() {
                (self.fill, self.records) = (0, 0);
                return Ok(());
            }
        }
        self.flush_slowly(timeout)
    }

    #[inline(never)]
    fn flush_slowly(&mut self, timeout: Option<Duration>) -> Result<(), SendFailure> {
        let deadline = Deadline::new(timeout);
        self.finish(deadline)?;
        if self.is_closed { Ok(()) } else { self.empty(deadline) }
    }

    /// Everything leaves, the rest of an unfinished message first.
    fn empty(&mut self, deadline: Deadline) -> Result<(), SendFailure> {
        self.finish(deadline)?;
        if self.is_closed {
            return Err(ended(&self.connection));
        }
        if self.fill > 0 {
            self.ship(What::Coalesced, false, deadline.left())?;
        }
        Ok(())
    }

    /// Sends what is left and tells the receiver that this was all, waiting at most `timeout`; then
    /// the connection is closed. On [`SendFailure::TimedOut`] it is not, and may be closed again.
    pub fn close(&mut self, timeout: Option<Duration>) -> Result<(), SendFailure> {
        let deadline = Deadline::new(timeout);
        self.finish(deadline)?;
        if !self.is_closed {
            let what = if self.fill > 0 { What::Coalesced } else { What::End };
            self.ship(what, true, deadline.left())?;
        }
        self.manager.end(&self.connection);
        Ok(())
    }

    /// Sends what it can without waiting, and closes.
    pub(super) fn end(&mut self) {
        if self.close(Some(Duration::ZERO)).is_err() {
            self.manager.end(&self.connection);
        }
    }

    /// The coalesced records as a message.
    fn coalesced(buffer: &[u8], fill: usize, records: u64) -> (&[u8], bool) {
        // A record that is alone goes as it is: one of up to 12 bytes is a line.
        match records::next(&buffer[..fill], 0) {
            Ok(Some((range, _))) if records == 1 => (&buffer[range], false),
            _ => (&buffer[..fill], true),
        }
    }

    /// Sends one message.
    #[inline]
    fn ship(
        &mut self,
        what: What<'_>,
        last: bool,
        timeout: Option<Duration>,
    ) -> Result<(), SendFailure> {
        let Self { manager, connection, post, buffer, fill, records, .. } = self;
        let (data, framed) = match what {
            What::Coalesced => Self::coalesced(buffer, *fill, *records),
            What::Record(record) => (record, false),
            What::End => (&[][..], true),
        };
        let (length, small_before) = (data.len() as u32, post.small as u32);
        let mark = Mark { framed, last, length, small_before };
        let mut begun = Begun::default();
        let sent = manager
            .shared
            .wait_until(timeout, |node, _| post.look(node, connection, data, mark, &mut begun));
        let is_record = matches!(what, What::Record(_));
        match sent {
            Ok(Ok(())) => {
                self.has_left(last, !is_record);
                Ok(())
            }
            Err(waited) => {
                match begun.unfinished.filter(|unfinished| unfinished.bytes_sent() > 0) {
                    Some(unfinished) => {
                        // The record is taken, as coalesced ones are: the rest leaves in later calls.
                        let own = is_record.then(|| data.to_vec());
                        self.outgoing = Some(Outgoing { unfinished, mark, own });
                        self.limit = 0;
                        match waited {
                            Waited::TimedOut if is_record => Ok(()),
                            waited => Err(waited.into()),
                        }
                    }
                    None => Err(waited.into()),
                }
            }
            Ok(Err(e)) => Err(self.failed(e)),
        }
    }

    /// Sends the rest of a message of which a part has left.
    fn finish(&mut self, deadline: Deadline) -> Result<(), SendFailure> {
        let Some(Outgoing { unfinished, mark, own }) = &mut self.outgoing else { return Ok(()) };
        let Self { manager, buffer, fill, records, .. } = self;
        let data = match own {
            Some(own) => own,
            None => Self::coalesced(buffer, *fill, *records).0,
        };
        let metadata = &mark.to_bytes()[..mark.len()];
        let sent = manager
            .shared
            .wait_until(deadline.left(), |node, _| node.look_to_send(unfinished, data, metadata));
        let (last, of_buffer) = (mark.last, own.is_none());
        match sent? {
            Ok(_) => {
                self.outgoing = None;
                self.limit = self.buffer.len();
                self.post.has_left(false);
                self.has_left(last, of_buffer);
                Ok(())
            }
            Err(SendError::LinkEnded(_)) => {
                let e = ended(&self.connection);
                Err(self.failed(e))
            }
            Err(e) => Err(self.failed(e.into())),
        }
    }

    #[inline]
    fn has_left(&mut self, last: bool, of_buffer: bool) {
        if of_buffer {
            (self.fill, self.records) = (0, 0);
        }
        if last {
            (self.is_closed, self.limit) = (true, 0);
        }
    }

    /// Nothing more is taken once the receiver is gone, so that the next send says so.
    #[cold]
    fn failed(&mut self, e: SendFailure) -> SendFailure {
        if matches!(e, SendFailure::Ended(_)) {
            self.limit = 0;
        }
        e
    }

    connected!("records", |this| {
        let (coalesced, buffer) = (this.coalesced_max, this.buffer.len());
        format!(
            "{PROTOCOL}; records of up to {coalesced} bytes are coalesced, others leave at once, \
             those of more than {buffer} into a buffer that is asked for"
        )
    });
}

impl Drop for StreamSender {
    fn drop(&mut self) {
        if self.manager.is_forked() {
            return;
        }
        self.end();
        self.post.grants.remove(&mut self.manager.lock());
    }
}
