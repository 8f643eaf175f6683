//! Takes a stream's messages out of the node, in their order. `grants.rs` gives the sender tickets
//! for more.
//!
//! Never: a message is handed out before earlier ones; memory that the sender may write is read
//! more than once, other than from a copy.

use super::FarOffer;
use super::held::{HeldMessage, Lies, Messages, NOT_YET};
use super::message_slot::{MessageSlot, fast_slot};
use super::{ReceiverState, Record, StreamConfig};
use crate::interface::{AreaId, LinkId, Notification, QueueId, SlotConfig, SlotId};
use crate::node::{BuffersHeld, CloseReason, Look, Node};
use crate::os::memory::AreaMemory;
use crate::protocol::records::{
    self, Mark, MessagePlaces, PLACE_BYTES, PLACES, RecordsError, Small, Window,
};
use crate::protocol::{Connection, ReceiveError};
use crate::wire::{INLINE_BYTES, MetadataIndex};
use core::ops::Range;
use core::sync::atomic::{AtomicU32, Ordering};
use std::boxed::Box;
use std::collections::VecDeque;
use std::format;
use std::string::{String, ToString};
use std::sync::{Arc, Mutex, OnceLock};
use std::vec::Vec;

/// The checks that the next receiving call needs.
#[derive(Clone, Copy, Debug)]
pub(super) enum NextChecks {
    /// All checks.
    All,
    /// Only a check for a message: no record is held, no grant owed to the sender, no violation
    /// seen.
    Direct,
    /// A record was handed out that is the whole of a small message with this word, in its place.
    /// It is not among the held messages, and is the only one that is not released.
    InHand(u32),
    /// Another coalesced record of the current message.
    Run(Run),
}

/// Coalesced records of one message, one of which was handed out. [`HeldMessage::at`] lags behind
/// meanwhile.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    pub(super) buffer: u32,
    pub(super) at: u32,
    pub(super) length: u32,
}

/// The memory of the messages that were taken.
#[derive(Debug)]
pub(super) struct IntakeMemory {
    /// The buffers of messages that are not yet released; the first has number `first`.
    pub(super) buffers: VecDeque<AreaMemory>,
    pub(super) first: u32,
    /// A copy of each place, made when its message was taken.
    pub(super) places: Box<[[u8; PLACE_BYTES]; PLACES as usize]>,
}

impl IntakeMemory {
    #[inline]
    pub(super) fn bytes(&self, lies: Lies) -> &[u8] {
        match lies {
            Lies::Place(place) => &self.places[place as usize % PLACES as usize],
            Lies::Buffer(number) => self.buffer(number),
        }
    }

    #[inline]
    pub(super) fn buffer(&self, number: u32) -> &[u8] {
        let buffer = self.buffers.get(number.wrapping_sub(self.first) as usize);
        buffer.map_or(&[], |memory| memory.as_ref())
    }
}

/// Takes messages out of the node.
#[derive(Debug)]
pub(super) struct Intake {
    pub(super) shared: Arc<ReceiverState>,
    pub(super) config: StreamConfig,
    pub(super) stream: u32,
    pub(super) slots: Box<[MessageSlot]>,
    pub(super) ask_slot: SlotId,
    pub(super) ask_area: AreaId,
    pub(super) places_slot: SlotId,
    pub(super) places_area: AreaId,
    pub(super) queue: QueueId,
    pub(super) window: Window,
    pub(super) places: MessagePlaces,
    /// Bytes of the longest record that a place may hold.
    pub(super) longest: u32,
    /// A larger buffer is wanted for a ticket.
    pub(super) asked: Option<(u64, usize)>,
    /// The slots that owe their sender a grant.
    pub(super) ungranted: VecDeque<usize>,
    /// Buffers of the usual size: free ones, and the count of all.
    pub(super) free: Vec<AreaMemory>,
    pub(super) buffers: u32,
    /// Larger ones: free ones, bytes of all, bytes of those in slots.
    pub(super) free_large: Vec<AreaMemory>,
    pub(super) large_bytes: usize,
    pub(super) large_in_slots: usize,
    /// The checks that the next receiving call needs.
    pub(super) next: NextChecks,
    /// Messages whose records are not all released.
    pub(super) held: Messages,
    pub(super) taken: IntakeMemory,
    /// Records handed out, released.
    pub(super) given: u64,
    pub(super) released: u64,
    /// The record in use: the latest record that was handed out, or a kept one.
    pub(super) latest: Record,
    /// Number of the first record behind the kept ones.
    pub(super) kept: u64,
    /// The sender's last message was taken.
    pub(super) has_last: bool,
    pub(super) ended: Option<CloseReason>,
    /// The sender's link, once a message of it was taken.
    pub(super) from: Option<LinkId>,
    /// The sender's violation; whether it was disconnected.
    pub(super) fault: Option<String>,
    pub(super) is_expelled: bool,
}

pub(super) static NEXT_STREAM: AtomicU32 = AtomicU32::new(0);

impl Intake {
    pub(super) fn connection(&self) -> Option<&Connection> {
        self.shared.joined.get().map(|(connection, _)| &**connection)
    }

    /// The next record of the messages that were taken, whichever checks were due.
    #[inline(never)]
    pub(super) fn next_held(&mut self) -> bool {
        self.look_at_all();
        self.next_record().is_some()
    }

    /// The next record of the messages that were taken.
    #[inline]
    pub(super) fn next_record(&mut self) -> Option<()> {
        if self.held.is_unread() { self.read_record() } else { None }
    }

    #[inline(never)]
    fn read_record(&mut self) -> Option<()> {
        let (_, held) = self.held.reading()?;
        let length = held.length as usize;
        if !held.framed {
            return self.hand_out(0..length, length, false);
        }
        let bytes = self.taken.bytes(held.lies).get(..length).unwrap_or(&[]);
        match records::next(bytes, held.at as usize) {
            Ok(Some((range, after))) => self.hand_out(range, after, false),
            found => self.read_otherwise(found.err()),
        }
    }

    /// There is no record, or it lies in an aperture.
    #[cold]
    fn read_otherwise(&mut self, error: Option<RecordsError>) -> Option<()> {
        let Some(error) = error else { return self.skip_empty() };
        let (_, held) = self.held.reading()?;
        let bytes = self.taken.bytes(held.lies).get(..held.length as usize).unwrap_or(&[]);
        let far = self.shared.far.as_ref().and(records::next_far(bytes, held.at as usize));
        match far {
            Some((range, after)) => self.hand_out(range, after, true),
            None => self.misbehaves(error.to_string()),
        }
    }

    /// Hands out a record of the current message, the bytes of which go on at `after`.
    #[inline]
    fn hand_out(&mut self, range: Range<usize>, after: usize, is_far: bool) -> Option<()> {
        let number = self.given;
        let (message, held) = self.held.reading()?;
        held.at = after as u32;
        if held.at == held.length {
            held.end = number + 1;
            self.held.has_read();
        }
        let length = range.end - range.start;
        if length > self.config.record_bytes_max && !is_far {
            return self.too_long(length);
        }
        self.given += 1;
        let (start, length, stream) = (range.start as u32, length as u32, self.stream);
        self.latest = Record { number, message, start, length, stream, is_far };
        if !is_far {
            self.begin_run();
        }
        Some(())
    }

    #[cold]
    fn too_long(&mut self, length: usize) -> Option<()> {
        let longest = self.config.record_bytes_max;
        self.misbehaves(format!("a record of {length} bytes, where {longest} fit"))
    }

    /// A message without records is allowed if it is marked as the last.
    #[cold]
    pub(super) fn skip_empty(&mut self) -> Option<()> {
        match self.held.reading() {
            Some((_, held)) if held.last => {
                held.end = self.given;
                self.held.has_read();
                while self.has_released() {
                    self.drop_first();
                }
                None
            }
            _ => self.misbehaves("a message without records".into()),
        }
    }

    /// Messages after a violation are ignored. Records that were handed out before it stay,
    /// including those of the same message.
    #[cold]
    pub(super) fn misbehaves(&mut self, why: String) -> Option<()> {
        self.look_at_all();
        self.fault.get_or_insert(why);
        let given = self.given;
        if let Some((_, held)) = self.held.reading()
            && held.at > 0
        {
            held.end = given;
            self.held.has_read();
        }
        while let Some(held) = self.held.take_back() {
            if let Lies::Buffer(_) = held.lies
                && let Some(memory) = self.taken.buffers.pop_back()
            {
                self.put_back(memory);
            }
        }
        None
    }

    pub(super) fn put_back(&mut self, memory: AreaMemory) {
        if memory.as_ref().len() > self.config.buffer_bytes {
            self.free_large.push(memory);
        } else {
            self.free.push(memory);
        }
    }

    /// Whether every record of the first message is released.
    #[inline]
    pub(super) fn has_released(&self) -> bool {
        self.held.first().is_some_and(|held| held.end <= self.released)
    }

    /// The buffer or place of the first message is free.
    #[inline]
    pub(super) fn drop_first(&mut self) {
        let Some(lies) = self.held.first().map(|held| held.lies) else { return };
        self.held.drop_first();
        match lies {
            Lies::Place(_) => self.places.free(),
            Lies::Buffer(_) => self.drop_buffer(),
        }
    }

    #[inline(never)]
    pub(super) fn drop_buffer(&mut self) {
        self.taken.first = self.taken.first.wrapping_add(1);
        if let Some(memory) = self.taken.buffers.pop_front() {
            self.put_back(memory);
        }
        self.shared.buffers.released(self.taken.buffers.len(), self.taken.first);
    }

    /// One look under the lock: takes arrivals, grants free buffers.
    #[inline]
    pub(super) fn look(&mut self, node: &mut Node) -> Look<()> {
        // Before the sender is known, an arrival may be another's.
        if self.connection().is_none() {
            return Look::Nothing;
        }
        self.look_at_all();
        while self.fault.is_none()
            && let Some(notification) = node.take_next(self.queue)
        {
            self.note(&notification);
        }
        // Messages before a violation are taken.
        let mut took = false;
        while !self.has_last && (self.take_small(node) || self.window.is_ready() && self.take(node))
        {
            took = true;
        }
        if self.fault.is_some() {
            return Look::Found(());
        }
        // A waiting message is handed out first, unless the sender is running short.
        if !took || self.is_due() {
            self.replenish(node);
        }
        if took {
            return Look::Found(());
        }
        let Some((connection, _)) = self.shared.joined.get() else { return Look::Nothing };
        if let Some(reason) = connection.ended() {
            // A sender that has sent everything says so; otherwise it had more.
            let cut_off = *reason == CloseReason::Closed && !self.has_last;
            self.ended = Some(if cut_off { CloseReason::HungUp } else { reason.clone() });
            return Look::Found(());
        }
        let is_told = self.ungranted.is_empty() && !self.places.is_due();
        if !is_told {
            return Look::Room(connection.link());
        }
        self.settle();
        Look::Nothing
    }

    /// Takes the next message, if no other check is due ([`Next::Direct`]). Returns whether its
    /// record was handed out, and [is in hand](Next::InHand).
    #[inline]
    pub(super) fn take_one(&mut self, node: &mut Node) -> bool {
        let Some(handed) = node.take_direct(self.queue, None) else {
            self.take_queued(node);
            return false;
        };
        let notification = handed.notification;
        let Notification { word, link, .. } = notification;
        let is_small =
            notification.index == MetadataIndex::FAST && notification.is_for(self.places_slot);
        if !is_small
            || self.from != Some(link)
            || !self.places.pass(word, self.window.expected(), self.longest)
        {
            self.take_otherwise(node, notification);
            return false;
        }
        let Small { length, place, .. } = Small::from_word(word);
        if let Some(body) = handed.words().filter(|_| length <= INLINE_BYTES as u32) {
            let to = &mut self.taken.places[place as usize % PLACES as usize];
            to[..8].copy_from_slice(&body[0].to_le_bytes());
            to[8..INLINE_BYTES].copy_from_slice(&body[1].to_le_bytes());
        } else if self.still(node, place, length).is_none() {
            // More than came with this packet; it has a slot of its own, which exists.
            return false;
        }
        self.given += 1;
        self.next = NextChecks::InHand(word);
        true
    }

    #[inline(never)]
    fn take_queued(&mut self, node: &mut Node) {
        if let Ok(Some(notification)) = node.pop(self.queue) {
            self.take_otherwise(node, notification);
        }
    }

    #[inline(never)]
    fn take_otherwise(&mut self, node: &mut Node, notification: Notification) {
        self.look_at_all();
        self.note(&notification);
        if self.fault.is_none() {
            self.take_small(node);
        }
    }

    #[inline]
    pub(super) fn note(&mut self, notification: &Notification) {
        let of_connection = self.connection().map(Connection::link);
        if of_connection.is_some_and(|link| link != notification.link) {
            self.fault.get_or_insert("its tickets were used over another link".into());
            return;
        }
        if notification.is_for(self.places_slot) {
            let (tickets, out) = (self.window.expected(), self.window.out());
            // The slot has a metadata entry, too, but an honest sender does not use it.
            let is_fast = notification.index == MetadataIndex::FAST;
            if !is_fast || !self.places.arrive(notification.word, tickets, out) {
                self.fault.get_or_insert("a small message with no place".into());
            }
            return;
        }
        if notification.index == MetadataIndex::FAST {
            return self.note_ask(notification.word);
        }
        let expected = self.window.slot(self.window.expected());
        let slot = if notification.is_for(self.slots[expected].id) {
            Some(expected)
        } else {
            self.slots.iter().position(|slot| notification.is_for(slot.id))
        };
        if !slot.is_some_and(|slot| self.window.arrive(slot)) {
            self.fault.get_or_insert("a message with no ticket".into());
        }
    }

    #[cold]
    pub(super) fn note_ask(&mut self, word: u32) {
        match self.window.asked(word) {
            Some(asked) if self.asked.is_none() => self.asked = Some(asked),
            _ => {
                self.fault.get_or_insert("it asked for a buffer out of turn".into());
            }
        }
    }

    /// Takes the next message, if it is a small one.
    #[inline]
    pub(super) fn take_small(&mut self, node: &mut Node) -> bool {
        let Some(small) = self.places.take(self.window.expected()) else { return false };
        if self.still(node, small.place, small.length).is_none() {
            return false;
        }
        self.hold(node, Lies::Place(small.place), small.length, small.framed, false);
        true
    }

    /// Copies an arrival into a stable place, since the sender may write its bytes at any time.
    #[inline(never)]
    fn still(&mut self, node: &Node, place: u32, length: u32) -> Option<()> {
        let (at, length) = (place as usize * PLACE_BYTES, length as usize);
        let to = self.taken.places.get_mut(place as usize)?;
        let from = node.area(self.places_area).ok()?.get(at..)?.first_chunk::<PLACE_BYTES>()?;
        // In words, as they were deposited: freshly written memory is read again at once.
        for i in 0..2 {
            to[8 * i..8 * i + 8].copy_from_slice(&from[8 * i..8 * i + 8]);
        }
        if length > INLINE_BYTES {
            to[INLINE_BYTES..length].copy_from_slice(&from[INLINE_BYTES..length]);
        }
        Some(())
    }

    #[inline]
    pub(super) fn hold(
        &mut self,
        node: &mut Node,
        lies: Lies,
        length: u32,
        framed: bool,
        last: bool,
    ) {
        if self.from.is_none() {
            self.begin(node);
        }
        self.has_last |= last;
        self.look_at_all();
        self.held.push(HeldMessage { lies, length, framed, last, at: 0, end: NOT_YET });
    }

    /// Takes the next message that came with a ticket, together with its memory; returns whether it
    /// could.
    pub(super) fn take(&mut self, node: &mut Node) -> bool {
        let index = self.window.slot(self.window.expected());
        let slot = &mut self.slots[index];
        let longest = self.config.record_bytes_max;
        let fits = |mark: &Mark| {
            let length = mark.length as usize;
            length <= slot.size && (mark.framed || length <= longest)
        };
        let mark = match node.metadata(slot.id, MetadataIndex(0)) {
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
        let taken = match (mark, slot.empty.take()) {
            (Some(mark), Some(empty)) => {
                node.replace_memory(slot.id, empty).map(|memory| (mark, memory)).ok()
            }
            (_, empty) => {
                slot.empty = empty;
                None
            }
        };
        let Some((mark, memory)) = taken else {
            let why = "a message that is longer than its buffer, or has no mark";
            self.fault.get_or_insert(why.into());
            return false;
        };
        if slot.size > self.config.buffer_bytes {
            self.large_in_slots -= slot.size;
        }
        let number = self.taken.first.wrapping_add(self.taken.buffers.len() as u32);
        self.taken.buffers.push_back(memory);
        self.shared.buffers.took(self.taken.buffers.len());
        self.hold(node, Lies::Buffer(number), mark.length, mark.framed, mark.last);
        true
    }

    /// With its first message a sender has its end of the link, and can be given an aperture.
    #[cold]
    pub(super) fn begin(&mut self, node: &mut Node) {
        self.from = self.connection().map(Connection::link);
        if let (Some(far), Some(link)) = (&self.shared.far, self.from) {
            far.joined(node, link);
        }
    }

    /// The reason why no more is received, once that is so.
    pub(super) fn over(&self) -> Option<ReceiveError> {
        if let Some(why) = &self.fault {
            return Some(ReceiveError::Misbehaved(why.clone()));
        }
        if self.has_last {
            return Some(ReceiveError::Ended(CloseReason::Closed));
        }
        self.ended.clone().map(ReceiveError::Ended)
    }

    /// Slots, areas and memory go back to the node.
    pub(super) fn remove(&mut self, node: &mut Node) {
        let _ = node.remove_slot(self.ask_slot);
        let _ = node.remove_area(self.ask_area);
        let _ = node.remove_slot(self.places_slot);
        let _ = node.remove_area(self.places_area);
        self.slots.iter_mut().for_each(|slot| slot.remove(node));
        let _ = node.remove_queue(self.queue);
        let held = self.taken.buffers.drain(..);
        held.chain(self.free.drain(..))
            .chain(self.free_large.drain(..))
            .for_each(|memory| node.drop_memory(memory));
    }
}

impl Intake {
    pub(super) fn new(
        node: &mut Node,
        config: StreamConfig,
        far: Option<FarOffer>,
    ) -> Result<Self, String> {
        let text = |e: &dyn ToString| e.to_string();
        let entries = config.buffers + 1 + PLACES as u32;
        let queue = node.notification_queue(entries).map_err(|e| text(&e))?;
        let (mut slots, mut made_slots) = (Vec::new(), Vec::new());
        let made = (0..config.buffers)
            .try_for_each(|_| {
                slots.push(MessageSlot::new(node, queue, config.buffer_bytes)?);
                Ok(())
            })
            .and_then(|()| {
                // An ask writes no bytes: the word is all of it.
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
                slots.iter_mut().for_each(|slot: &mut MessageSlot| slot.remove(node));
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
            shared: Arc::new(ReceiverState {
                slots: slots.iter().map(|slot| slot.id).collect(),
                ask: ask_slot,
                places: places_slot,
                answer,
                admitted: Mutex::new(None),
                joined: OnceLock::new(),
                queue,
                buffers: Arc::new(BuffersHeld::new(config.buffers_max)),
                far,
            }),
            window: Window::new(config.buffers),
            buffers: config.buffers,
            stream: NEXT_STREAM.fetch_add(1, Ordering::Relaxed),
            slots: slots.into(),
            ask_slot,
            ask_area,
            places_slot,
            places_area,
            places: MessagePlaces::new(),
            longest: config.record_bytes_max.min(PLACE_BYTES) as u32,
            queue,
            asked: None,
            ungranted: VecDeque::new(),
            free: Vec::new(),
            free_large: Vec::new(),
            large_bytes: 0,
            large_in_slots: 0,
            next: NextChecks::All,
            held: Messages::new(),
            taken: IntakeMemory {
                buffers: VecDeque::new(),
                first: 0,
                places: Box::new([[0; PLACE_BYTES]; PLACES as usize]),
            },
            given: 0,
            released: 0,
            latest: Record { number: 0, message: 0, start: 0, length: 0, stream: 0, is_far: false },
            kept: 0,
            has_last: false,
            ended: None,
            from: None,
            fault: None,
            is_expelled: false,
            config,
        })
    }
}
