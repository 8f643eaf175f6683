//! One subscriber, as its publisher knows it: what it has yet to get, what it has room for, and what
//! it says in its cell.
//!
//! ```text
//!      told        next            end
//!   ----|-----------|===============|-----> numbers      next..end: to be sent, out of the log
//!       a gap is told with the next sample
//! ```
//! A long sample in parts is before `next` once its first part has left; the others leave before
//! anything else, whatever the log keeps by then.
//!
//! Never: more messages are out than it has places, or more samples than it has leases; a word of the
//! cell is believed that does not say what was sent.

use super::log::{Body, Log};
use super::{Announced, NUMBER_BYTES, NUMBERED, PART, PLACE_BYTES, PLACE_STRIDE, POOL, WhenSlow};
use crate::control::{PeerUser, RequestId};
use crate::interface::{AreaId, LinkId};
use crate::node::{Node, NodeSendError, PreparedTicket};
use crate::os::pool::Place;
use crate::protocol::Connection;
use crate::protocol::credit::Cell;
use crate::wire::Ticket;
use core::sync::atomic::{AtomicU64, Ordering};
use std::format;
use std::string::String;
use std::sync::Arc;
use std::vec;
use std::vec::Vec;

/// What a publisher knows of one subscriber.
#[derive(Clone, Debug)]
#[cfg_attr(not(feature = "unstable-internals"), non_exhaustive)]
pub struct SubscriberState {
    /// Who it is.
    pub connection: Arc<Connection>,
    /// What becomes of samples for which it has no room.
    pub when_slow: WhenSlow,
    /// Whether it can be sent samples: it holds the pool, where there is one. Until then those that are
    /// published wait for it as far as they are kept, and nobody waits for it.
    pub is_served: bool,
    /// Samples that were sent to it, whole.
    pub sent: u64,
    /// Messages in its own memory that it had not taken when it last said how many it had.
    pub untaken: u64,
    /// Samples of the pool that it has been told of and has not released.
    pub outstanding: u32,
    /// Samples that it has yet to be sent, one of which parts have left included.
    pub behind: u64,
    /// Samples that it will not get, because it was slow.
    pub dropped: u64,
}

/// What keeps a subscriber from getting a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoRoom {
    /// It has to take or release something.
    InMemory,
    /// The link has none.
    InLink(LinkId),
}

/// Why a subscriber is to be sent away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    Slow(String),
    /// It cannot have what is published.
    Unfit(String),
    Lie(String),
}

/// The right to one sample of the pool.
#[derive(Clone, Debug, Default)]
struct Lease {
    /// The number and the place of the sample that it is for, or was last.
    number: u64,
    place: u32,
    /// What the cell's word was when it was last released.
    last: u64,
}

/// The samples of the pool that subscribers have been told of, by place: how many have yet to release
/// each. In numbers, because a locked instruction for each subscriber would wait until the line that was
/// sent to the one before has arrived.
#[derive(Debug, Default)]
pub(super) struct Holders(Vec<(u32, Option<Arc<Place>>)>);

impl Holders {
    /// One more holds it.
    pub fn hold(&mut self, place: &Arc<Place>) {
        let at = place.index() as usize;
        if self.0.len() <= at {
            self.0.resize_with(at + 1, Default::default);
        }
        let (count, held) = &mut self.0[at];
        *count += 1;
        held.get_or_insert_with(|| place.clone());
    }

    /// One of those who hold it does not any more.
    pub fn release(&mut self, place: u32) {
        if let Some((count, held)) = self.0.get_mut(place as usize) {
            *count -= 1;
            if *count == 0 {
                *held = None;
            }
        }
    }
}

/// What a subscriber has and gets.
pub(super) struct Granted {
    pub places: Ticket,
    pub depth: u32,
    pub when_slow: WhenSlow,
    pub history: u32,
    pub leases: u32,
    /// It gets long samples in parts.
    pub in_parts: bool,
}

/// A long sample of which a part has left.
#[derive(Debug)]
struct Partial {
    place: Arc<Place>,
    length: u64,
    sent: u64,
}

#[derive(Debug)]
pub(super) struct Serving {
    pub user: PeerUser,
    /// Until it has a link.
    pub request: Option<RequestId>,
    pub connection: Option<Arc<Connection>>,
    /// Its places are known, and the pool is mapped where there is one.
    pub is_ready: bool,
    pub when_slow: WhenSlow,
    pub fault: Option<Fault>,
    ticket: Ticket,
    places: Option<PreparedTicket>,
    depth: u64,
    cell: Cell,
    leases: Vec<Lease>,
    /// A bit for each of them that a sample has.
    leased: u64,
    /// Most bytes of a part of a long sample; 0: it reads those in the pool.
    part_bytes: usize,
    in_parts: bool,
    /// It is among the samples before `next`, and goes on before that.
    partial: Option<Partial>,
    next: u64,
    end: u64,
    /// The number that it expects.
    told: u64,
    /// Where the next message goes, and where the places end.
    offset: u64,
    places_end: u64,
    /// Messages, of which so many were not the first of a sample.
    sent: u64,
    parts: u64,
    taken: u64,
    /// As the statistics show it.
    dropped: Arc<AtomicU64>,
    /// The link had no room when it was last tried.
    is_full: bool,
    /// A sample waits that is to be published, and whether that is one of the pool.
    wanted: Option<bool>,
    /// It is shown that something waits for it to take or release something.
    waits: bool,
}

impl Serving {
    pub fn new(
        request: RequestId,
        user: PeerUser,
        granted: &Granted,
        cell: Cell,
        log: &Log,
    ) -> Self {
        let Granted { places, depth, when_slow, history, leases, in_parts } = *granted;
        let mut next = log.first().max(log.next().saturating_sub(history as u64));
        while log.is_gap(next) {
            next += 1;
        }
        Self {
            user,
            request: Some(request),
            connection: None,
            is_ready: false,
            when_slow,
            fault: None,
            ticket: places,
            places: None,
            depth: depth as u64,
            cell,
            leases: vec![Lease::default(); leases as usize],
            leased: 0,
            part_bytes: 0,
            in_parts,
            partial: None,
            next,
            end: log.next(),
            told: next,
            offset: 0,
            places_end: depth as u64 * PLACE_STRIDE,
            sent: 0,
            parts: 0,
            taken: 0,
            dropped: Arc::default(),
            is_full: false,
            wanted: None,
            waits: false,
        }
    }

    /// The number of the first sample that it can get.
    pub fn first(&self) -> u64 {
        self.told
    }

    /// It has a link, whose packets hold so many bytes.
    pub fn joined(&mut self, node: &Node, connection: &Arc<Connection>, packet_bytes: usize) {
        self.part_bytes = packet_bytes.min(PLACE_BYTES);
        node.show_dropped(connection.link(), self.dropped.clone());
        self.request = None;
        self.places = Some(PreparedTicket::new(&self.ticket, connection.link()));
        self.connection = Some(connection.clone());
    }

    pub fn link(&self) -> Option<LinkId> {
        Some(self.connection.as_ref()?.link())
    }

    fn has_ended(&self) -> bool {
        self.connection.as_ref().is_some_and(|connection| connection.ended().is_some())
    }

    /// Whether it gets long samples in parts, not in the pool.
    pub fn is_in_parts(&self) -> bool {
        self.in_parts
    }

    /// Whether it is to be served now.
    fn is_served(&self) -> bool {
        self.is_ready && self.fault.is_none() && !self.has_ended()
    }

    /// Whether of so many samples that were published there is one that it has yet to get, be it served
    /// already or not, or does not get and was not told so by one behind it.
    pub fn is_owed(&self, published: u64) -> bool {
        (self.next < published || self.partial.is_some()) && !self.has_ended()
    }

    /// Whether something is to leave before a sample that is published now.
    #[inline]
    fn has_more(&self) -> bool {
        self.next < self.end || self.partial.is_some()
    }

    /// Whether it has yet to get something that it can be sent.
    pub fn is_behind(&self) -> bool {
        self.has_more() && self.is_served()
    }

    pub fn remove(&self, node: &mut Node, holders: &mut Holders) {
        for lease in self.held() {
            holders.release(lease.place);
        }
        self.cell.remove(node);
    }

    /// The leases that samples have.
    fn held(&self) -> impl Iterator<Item = &Lease> {
        let is_held = |(i, _): &(usize, _)| self.leased >> i & 1 == 1;
        self.leases.iter().enumerate().filter(is_held).map(|(_, lease)| lease)
    }

    pub fn state(&self, node: &Node) -> Option<SubscriberState> {
        let told = cell_word(node, self.cell.area, 0);
        let taken = if told <= self.sent { told.max(self.taken) } else { self.taken };
        let has = |(i, lease): &(usize, &Lease)| {
            let word = cell_word(node, self.cell.area, i + 1);
            self.leased >> i & 1 == 1 && word != lease.number.wrapping_add(1)
        };
        let outstanding = self.leases.iter().enumerate().filter(has).count();
        let partial = self.partial.is_some() as u64;
        Some(SubscriberState {
            connection: self.connection.clone()?,
            when_slow: self.when_slow,
            is_served: self.is_served(),
            sent: self.sent - self.parts - partial,
            untaken: self.sent - taken,
            outstanding: outstanding as u32,
            behind: self.end - self.next + partial,
            dropped: self.dropped.load(Ordering::Relaxed),
        })
    }

    /// What keeps `publish` from the next sample, where that waits for this subscriber.
    pub fn blocks(&mut self, node: &mut Node, is_pool: bool) -> Option<NoRoom> {
        if self.when_slow != WhenSlow::Wait || !self.is_served() {
            return None;
        }
        if self.has_more() {
            return Some(self.no_room());
        }
        (!self.has_room(node, is_pool) && self.fault.is_none()).then_some(NoRoom::InMemory)
    }

    /// Whether the next sample cannot be sent to it at once.
    pub fn lacks_room(&mut self, node: &Node, is_pool: bool) -> bool {
        self.is_served() && (self.has_more() || !self.has_room(node, is_pool))
    }

    /// What keeps it from what it has yet to get.
    pub fn no_room(&self) -> NoRoom {
        match self.link() {
            Some(link) if self.is_full => NoRoom::InLink(link),
            _ => NoRoom::InMemory,
        }
    }

    /// Shows at its link whether something waits for what its program keeps: a sample that is to be
    /// published now, one of the pool or not (`wanted`), or one that it has yet to get.
    #[cold]
    pub fn show_waits(&mut self, node: &mut Node, wanted: Option<bool>) {
        self.wanted = wanted;
        let is_behind = self.is_behind() && self.no_room() == NoRoom::InMemory;
        let waits = is_behind
            || wanted.is_some_and(|is_pool| self.blocks(node, is_pool) == Some(NoRoom::InMemory));
        let before = core::mem::replace(&mut self.waits, waits);
        if let Some(link) = self.link().filter(|_| waits || before) {
            node.waits_for_buffer(link, waits);
        }
    }

    /// The same after it may have taken or released something: whoever waited still does, unless he can
    /// go on.
    #[cold]
    pub fn show_still_waits(&mut self, node: &mut Node) {
        let wanted = self.wanted;
        self.show_waits(node, wanted);
    }

    fn drop_samples(&self, count: u64) {
        // This alone stores it.
        self.dropped.store(self.dropped.load(Ordering::Relaxed) + count, Ordering::Relaxed);
    }

    /// A sample leaves the log, or (`is_gap`) a number that has none.
    pub fn leaves(&mut self, number: u64, is_gap: bool) {
        if self.next > number || self.next >= self.end {
            return;
        }
        if is_gap {
            self.next = number + 1;
            return;
        }
        if self.when_slow == WhenSlow::SendAway && self.is_served() {
            let (behind, untaken) = (self.end - self.next, self.sent - self.taken);
            self.fault = Some(Fault::Slow(format!(
                "it is too slow: {behind} samples wait for it, and {untaken} that it was sent are not \
                     taken"
            )));
            return;
        }
        self.drop_samples(self.end.min(number + 1) - self.next);
        self.next = number + 1;
    }

    /// A sample was published, and is in the log.
    #[inline]
    pub fn offer(&mut self, node: &mut Node, number: u64, is_pool: bool) {
        // The one that was to be published is, or is no more.
        if self.wanted.is_some() {
            self.show_waits(node, None);
        }
        if self.when_slow == WhenSlow::DropNewest
            && self.is_served()
            && (self.has_more() || !self.has_room(node, is_pool))
        {
            self.drop_samples(1);
            return;
        }
        if self.next >= self.end {
            self.next = number;
        }
        self.end = number + 1;
    }

    /// Sends the sample of this number, which was offered, if nothing else is to be sent before it and
    /// it has room.
    #[inline]
    pub fn send_newest(
        &mut self,
        node: &mut Node,
        number: u64,
        body: Body<'_>,
        holders: &mut Holders,
    ) {
        if self.next == number
            && self.next < self.end
            && self.partial.is_none()
            && self.is_served()
            && self.send(node, body, holders)
        {
            self.sent_one();
        }
    }

    /// Sends what it has yet to get, as far as it has room.
    #[inline]
    pub fn advance(&mut self, node: &mut Node, log: &Log, holders: &mut Holders) {
        if self.next < self.end {
            self.look_at_leases(node, holders);
        }
        while self.has_more() && self.is_served() {
            if let Some(partial) = self.partial.take() {
                if !self.send_part(node, partial) {
                    return;
                }
                continue;
            }
            // It lies in the log, or `leaves` would have said so; or there is none of this number.
            let Some(body) = log.get(self.next) else {
                self.next += 1;
                continue;
            };
            if !self.send(node, body, holders) {
                return;
            }
            self.sent_one();
        }
    }

    #[inline(always)]
    fn sent_one(&mut self) {
        self.next += 1;
        self.told = self.next;
        self.sent += 1;
        self.pass_place();
    }

    #[inline(always)]
    fn pass_place(&mut self) {
        self.offset += PLACE_STRIDE;
        if self.offset == self.places_end {
            self.offset = 0;
        }
    }

    /// How many short samples, of which `number` is the first, can be sent to it without a look at
    /// anything but its link.
    pub fn quick(&mut self, node: &Node, number: u64) -> u64 {
        if !self.is_served() || self.has_more() || self.told != number {
            return 0;
        }
        if self.sent - self.taken > self.depth / 2 {
            self.look_at_taken(node);
        }
        if self.fault.is_some() { 0 } else { self.depth - (self.sent - self.taken) }
    }

    /// Sends a sample that is one of the [quick](Self::quick) ones, of which nothing is noted here but
    /// the place. `false`: it has not left.
    #[inline(always)]
    pub fn push_quick(&mut self, node: &mut Node, sample: &[u8]) -> bool {
        let word = sample.len() as u32;
        let sent = match &self.places {
            Some(places) => node.push_prepared(places, self.offset, sample, word),
            None => false,
        };
        // A call where it is rare: what that needs is not kept for it where it is none.
        if sent || (!node.is_told() && self.push_general(node, sample, word)) {
            self.pass_place();
            return true;
        }
        false
    }

    /// All samples before `number` were sent, `count` of them [quickly](Self::push_quick).
    pub fn has_sent(&mut self, number: u64, count: u64) {
        (self.next, self.end, self.told) = (number, number, number);
        self.sent += count;
    }

    /// Whether it has a free place, and for a sample of the pool a free lease, as far as
    /// [that was looked at](Self::look_at_leases). Looks at its count only where that is needed.
    #[inline]
    fn has_room(&mut self, node: &Node, is_pool: bool) -> bool {
        if self.sent - self.taken >= self.depth {
            self.look_at_taken(node);
        }
        let has_place = self.sent - self.taken < self.depth;
        has_place && (!is_pool || self.in_parts || self.free_lease().is_some())
    }

    /// Whether the sample was sent.
    #[inline]
    fn send(&mut self, node: &mut Node, body: Body<'_>, holders: &mut Holders) -> bool {
        self.is_full = false;
        let numbered = self.next != self.told;
        match body {
            Body::Short(bytes) => {
                if !self.has_room(node, false) {
                    return false;
                }
                match numbered {
                    false => self.push(node, bytes, bytes.len() as u32),
                    true => self.push_numbered(node, bytes, 0),
                }
            }
            Body::Pool { place, length } if self.in_parts => {
                self.send_first_part(node, place, length, numbered)
            }
            Body::Pool { place, length } => {
                let sent = self.send_announced(node, place, length, numbered);
                if sent {
                    holders.hold(place);
                }
                sent
            }
        }
    }

    fn send_announced(
        &mut self,
        node: &mut Node,
        place: &Arc<Place>,
        length: u64,
        numbered: bool,
    ) -> bool {
        if !self.has_room(node, true) {
            return false;
        }
        let Some(lease) = self.free_lease() else { return false };
        let announced = Announced { place: place.index(), lease: lease as u32, length }.to_bytes();
        let sent = match numbered {
            false => self.push(node, &announced, announced.len() as u32 | POOL),
            true => self.push_numbered(node, &announced, POOL),
        };
        if sent {
            (self.leases[lease].number, self.leases[lease].place) = (self.next, place.index());
            self.leased |= 1 << lease;
        }
        sent
    }

    /// Sends the first part of a long sample; the others leave in [`advance`](Self::advance).
    fn send_first_part(
        &mut self,
        node: &mut Node,
        place: &Arc<Place>,
        length: u64,
        numbered: bool,
    ) -> bool {
        if !self.has_room(node, true) {
            return false;
        }
        // A part that is numbered has its number before all else.
        let head = if numbered { NUMBER_BYTES } else { 0 } + NUMBER_BYTES;
        let count = length.min((self.part_bytes - head) as u64) as usize;
        let mut part = [0; PLACE_BYTES];
        if numbered {
            part[..NUMBER_BYTES].copy_from_slice(&self.next.to_le_bytes());
        }
        part[head - NUMBER_BYTES..head].copy_from_slice(&length.to_le_bytes());
        part[head..head + count].copy_from_slice(&place.bytes()[..count]);
        let bits = PART | if numbered { NUMBERED } else { 0 };
        let sent = self.push(node, &part[..head + count], (head + count) as u32 | bits);
        if sent && (count as u64) < length {
            self.partial = Some(Partial { place: place.clone(), length, sent: count as u64 });
        }
        sent
    }

    /// Sends the next part. `false`: it has no room, and it is kept.
    fn send_part(&mut self, node: &mut Node, mut partial: Partial) -> bool {
        self.is_full = false;
        let count = (partial.length - partial.sent).min(self.part_bytes as u64) as usize;
        let from = partial.sent as usize;
        let sent = self.has_room(node, false)
            && self.push(node, &partial.place.bytes()[from..from + count], count as u32 | PART);
        if sent {
            partial.sent += count as u64;
            self.sent += 1;
            self.parts += 1;
            self.pass_place();
        }
        if partial.sent < partial.length {
            self.partial = Some(partial);
        }
        sent
    }

    fn push_numbered(&mut self, node: &mut Node, data: &[u8], bits: u32) -> bool {
        let mut numbered = [0; PLACE_BYTES];
        let length = NUMBER_BYTES + data.len();
        numbered[..NUMBER_BYTES].copy_from_slice(&self.next.to_le_bytes());
        numbered[NUMBER_BYTES..length].copy_from_slice(data);
        self.push(node, &numbered[..length], length as u32 | bits | NUMBERED)
    }

    /// Writes to the next place, if the link has room.
    #[inline]
    fn push(&mut self, node: &mut Node, data: &[u8], word: u32) -> bool {
        let Some(places) = &self.places else { return false };
        node.push_prepared(places, self.offset, data, word) || self.push_general(node, data, word)
    }

    /// What is left of it where it was not a line that could leave at once.
    #[cold]
    #[inline(never)]
    fn push_general(&mut self, node: &mut Node, data: &[u8], word: u32) -> bool {
        let Some(places) = &self.places else { return false };
        let (link, ticket) = (places.link(), places.ticket());
        let at = Ticket { base: ticket.base + self.offset, ..*ticket };
        match node.try_send_fast_over(link, &at, data, word) {
            Ok(()) => true,
            Err(NodeSendError::Full) => {
                self.is_full = true;
                node.await_room(link);
                false
            }
            // It is gone, as the manager will hear.
            Err(_) => false,
        }
    }

    /// Reads how much it has taken.
    fn look_at_taken(&mut self, node: &Node) {
        let taken = cell_word(node, self.cell.area, 0);
        if taken > self.sent {
            let sent = self.sent;
            self.lies(format!("it says that it has taken {taken} messages, and {sent} were sent"));
        } else if taken > self.taken {
            // An older count, which comes late, is none.
            self.taken = taken;
        }
    }

    /// Gives back what it has released.
    pub fn look_at_leases(&mut self, node: &Node, holders: &mut Holders) {
        if !self.is_served() {
            return;
        }
        for (i, lease) in self.leases.iter_mut().enumerate() {
            let word = cell_word(node, self.cell.area, i + 1);
            if word == lease.last {
                continue;
            }
            let is_held = self.leased >> i & 1 == 1;
            if is_held && word == lease.number.wrapping_add(1) {
                lease.last = word;
                self.leased &= !(1 << i);
                holders.release(lease.place);
                continue;
            }
            let (released, number) = (word.wrapping_sub(1), lease.number);
            return self.lies(match is_held {
                true => format!(
                    "it releases sample {released} by lease {i}, which is for sample {number}"
                ),
                false => {
                    format!("it releases sample {released} by lease {i}, which it does not have")
                }
            });
        }
    }

    /// One that no sample has, as far as is known.
    fn free_lease(&self) -> Option<usize> {
        let lease = self.leased.trailing_ones() as usize;
        (lease < self.leases.len()).then_some(lease)
    }

    #[cold]
    fn lies(&mut self, why: String) {
        if self.fault.is_none() {
            self.fault = Some(Fault::Lie(why));
        }
    }
}

/// A word of a cell, which the subscriber alone deposits into.
fn cell_word(node: &Node, area: AreaId, i: usize) -> u64 {
    let bytes = node.area(area).ok().and_then(|area| area.get(8 * i..8 * i + 8)?.try_into().ok());
    bytes.map_or(0, u64::from_le_bytes)
}
