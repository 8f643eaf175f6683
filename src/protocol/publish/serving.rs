//! One subscriber, as its publisher knows it: the samples that it has yet to get, the room that it
//! has, and the words of its cell.
//!
//! ```text
//!      told        next            end
//!   ----|-----------|===============|-----> numbers      next..end: to be sent, out of the log
//!       the next sample tells of a gap
//! ```
//! A long sample in parts is before `next` once its first part has left; the others leave before
//! anything else, whether or not the log still keeps the sample.
//!
//! Never: more messages are out than it has places, or more samples than it has leases; the
//! publisher believes a word of the cell that differs from the samples sent.

use super::log::{PublishedBody, SampleLog};
use super::{
    AnnouncedSample, NUMBER_BYTES, NUMBERED, PART, PLACE_BYTES, PLACE_STRIDE, POOL, WhenSlow,
};
use crate::control::{PeerUser, RequestId};
use crate::interface::{AreaId, LinkId};
use crate::node::{Node, NodeSendError, PreparedTicket};
use crate::os::pool::PoolPlace;
use crate::protocol::Connection;
use crate::protocol::credit::Cell;
use crate::wire::Ticket;
use core::sync::atomic::{AtomicU64, Ordering};
use std::format;
use std::string::String;
use std::sync::Arc;
use std::vec;
use std::vec::Vec;

/// A publisher's knowledge of one subscriber.
#[derive(Clone, Debug)]
#[cfg_attr(not(feature = "unstable-internals"), non_exhaustive)]
pub struct SubscriberState {
    /// The subscriber's identity.
    pub connection: Arc<Connection>,
    /// The treatment of samples for which it has no room.
    pub when_slow: WhenSlow,
    /// Whether it can be sent samples: it has mapped the pool, if there is one. Until then the log
    /// keeps samples for it as far as it can, and `publish` does not wait for it.
    pub is_served: bool,
    /// Samples that were sent to it, whole.
    pub sent: u64,
    /// Messages in its own memory that it had not taken at its last report.
    pub untaken: u64,
    /// Samples of the pool that were announced to it and that it has not released.
    pub outstanding: u32,
    /// Samples that it has yet to be sent, including one that has been sent in part.
    pub behind: u64,
    /// Samples that it will not get, because it was slow.
    pub dropped: u64,
}

/// The resource that a subscriber lacks for the next sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoRoom {
    /// Its own memory: it has to take or release something.
    InMemory,
    /// The link's room.
    InLink(LinkId),
}

/// The reason to disconnect a subscriber.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    Slow(String),
    /// It cannot get the samples.
    Unfit(String),
    Lie(String),
}

/// The right to one sample of the pool.
#[derive(Clone, Debug, Default)]
struct Lease {
    /// The number and the place of its current or last sample.
    number: u64,
    place: u32,
    /// The cell's word at its last release.
    last: u64,
}

/// The samples of the pool that were announced to subscribers, by place: the count of subscribers
/// that have yet to release each. Plain numbers, because a locked instruction for each subscriber
/// would wait until the line that was sent to the one before has arrived.
#[derive(Debug, Default)]
pub(super) struct Holders(Vec<(u32, Option<Arc<PoolPlace>>)>);

impl Holders {
    /// Adds one holder.
    pub fn hold(&mut self, place: &Arc<PoolPlace>) {
        let at = place.index() as usize;
        if self.0.len() <= at {
            self.0.resize_with(at + 1, Default::default);
        }
        let (count, held) = &mut self.0[at];
        *count += 1;
        held.get_or_insert_with(|| place.clone());
    }

    /// Takes one holder away.
    pub fn release(&mut self, place: u32) {
        if let Some((count, held)) = self.0.get_mut(place as usize) {
            *count -= 1;
            if *count == 0 {
                *held = None;
            }
        }
    }
}

/// The grants and the terms of a subscriber.
pub(super) struct Granted {
    pub places: Ticket,
    pub depth: u32,
    pub when_slow: WhenSlow,
    pub history: u32,
    pub leases: u32,
    /// It gets long samples in parts.
    pub in_parts: bool,
}

/// A long sample, some parts of which have left.
#[derive(Debug)]
struct Partial {
    place: Arc<PoolPlace>,
    length: u64,
    sent: u64,
}

#[derive(Debug)]
pub(super) struct Serving {
    pub user: PeerUser,
    /// Until it has a link.
    pub request: Option<RequestId>,
    pub connection: Option<Arc<Connection>>,
    /// Its places are known, and it has mapped the pool, if there is one.
    pub is_ready: bool,
    pub when_slow: WhenSlow,
    pub fault: Option<Fault>,
    ticket: Ticket,
    places: Option<PreparedTicket>,
    depth: u64,
    cell: Cell,
    leases: Vec<Lease>,
    /// A bit for each lease that a sample has.
    leased: u64,
    /// Most bytes of a part of a long sample; 0: it reads those in the pool.
    part_bytes: usize,
    in_parts: bool,
    /// The number of the sample is below `next`; the remaining parts leave before the sample at
    /// `next`.
    partial: Option<Partial>,
    next: u64,
    end: u64,
    /// The number that the subscriber expects next.
    told: u64,
    /// The place of the next message, and the end of the places.
    offset: u64,
    places_end: u64,
    /// Messages sent, and how many of them were not the first of a sample.
    sent: u64,
    parts: u64,
    taken: u64,
    /// The same, for the statistics.
    dropped: Arc<AtomicU64>,
    /// The link had no room at the last attempt.
    is_full: bool,
    /// A sample waits to be published; whether it is one of the pool.
    wanted: Option<bool>,
    /// The link shows that a sample waits for this subscriber to take or release something.
    waits: bool,
}

impl Serving {
    pub fn new(
        request: RequestId,
        user: PeerUser,
        granted: &Granted,
        cell: Cell,
        log: &SampleLog,
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

    /// It has a link, the packets of which hold this many bytes.
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

    /// Whether, of this many published samples, it has yet to get one, served or not, or misses one
    /// at the end, so that no later sample has told it.
    pub fn is_owed(&self, published: u64) -> bool {
        (self.next < published || self.partial.is_some()) && !self.has_ended()
    }

    /// Whether something has to leave before a sample that is published now.
    #[inline]
    fn has_more(&self) -> bool {
        self.next < self.end || self.partial.is_some()
    }

    /// Whether it has yet to get something that can be sent to it.
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

    /// The reason why `publish` cannot send the next sample, if it waits for this subscriber.
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

    /// The reason why it cannot get its outstanding samples.
    pub fn no_room(&self) -> NoRoom {
        match self.link() {
            Some(link) if self.is_full => NoRoom::InLink(link),
            _ => NoRoom::InMemory,
        }
    }

    /// Shows at its link whether a sample waits for its program to take or release something: a
    /// sample to be published now, one of the pool or not (`wanted`), or one that it has yet to
    /// get.
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

    /// The same after it may have taken or released something: a waiting publisher still waits,
    /// unless it can go on.
    #[cold]
    pub fn show_still_waits(&mut self, node: &mut Node) {
        let wanted = self.wanted;
        self.show_waits(node, wanted);
    }

    fn drop_samples(&self, count: u64) {
        // This alone stores it.
        self.dropped.store(self.dropped.load(Ordering::Relaxed) + count, Ordering::Relaxed);
    }

    /// A sample leaves the log, or (`is_gap`) a number without a sample does.
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
        // The sample that waited has been published, or was given up.
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

    /// Sends the sample of this number, which was offered, if nothing has to be sent before it and
    /// the subscriber has room.
    #[inline]
    pub fn send_newest(
        &mut self,
        node: &mut Node,
        number: u64,
        body: PublishedBody<'_>,
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

    /// Sends its outstanding samples, as far as it has room.
    #[inline]
    pub fn advance(&mut self, node: &mut Node, log: &SampleLog, holders: &mut Holders) {
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
            // It lies in the log, or `leaves` would have moved `next`; or there is no sample of
            // this number.
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

    #[inline]
    fn sent_one(&mut self) {
        self.next += 1;
        self.told = self.next;
        self.sent += 1;
        self.pass_place();
    }

    #[inline]
    fn pass_place(&mut self) {
        self.offset += PLACE_STRIDE;
        if self.offset == self.places_end {
            self.offset = 0;
        }
    }

    /// The number of short samples, beginning with `number`, that can be sent to it without checks
    /// of anything but its link.
    pub fn places_for(&mut self, node: &Node, number: u64) -> u64 {
        if !self.is_served() || self.has_more() || self.told != number || self.wanted.is_some() {
            return 0;
        }
        if self.sent - self.taken > self.depth / 2 {
            self.look_at_taken(node);
        }
        if self.fault.is_some() { 0 } else { self.depth - (self.sent - self.taken) }
    }

    /// Sends the short sample of this number, for which it has a [place](Self::places_for); `false`:
    /// nothing was done.
    #[inline]
    pub fn send_at_once(&mut self, node: &mut Node, number: u64, sample: &[u8]) -> bool {
        let word = sample.len() as u32;
        let has_left = match &self.places {
            Some(places) => node.push_prepared(places, self.offset, sample, word),
            None => false,
        };
        if !has_left && (node.is_told() || !self.push_general(node, sample, word)) {
            return false;
        }
        (self.next, self.end) = (number, number + 1);
        self.sent_one();
        true
    }

    /// Whether it has a free place, and for a sample of the pool a free lease, according to the
    /// last [look at the leases](Self::look_at_leases). Reads its count only if needed.
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
    fn send(&mut self, node: &mut Node, body: PublishedBody<'_>, holders: &mut Holders) -> bool {
        self.is_full = false;
        let numbered = self.next != self.told;
        match body {
            PublishedBody::Short(bytes) => {
                if !self.has_room(node, false) {
                    return false;
                }
                match numbered {
                    false => self.push(node, bytes, bytes.len() as u32),
                    true => self.push_numbered(node, bytes, 0),
                }
            }
            PublishedBody::Pool { place, length } if self.in_parts => {
                self.send_first_part(node, place, length, numbered)
            }
            PublishedBody::Pool { place, length } => {
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
        place: &Arc<PoolPlace>,
        length: u64,
        numbered: bool,
    ) -> bool {
        if !self.has_room(node, true) {
            return false;
        }
        let Some(lease) = self.free_lease() else { return false };
        let announced =
            AnnouncedSample { place: place.index(), lease: lease as u32, length }.to_bytes();
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
        place: &Arc<PoolPlace>,
        length: u64,
        numbered: bool,
    ) -> bool {
        if !self.has_room(node, true) {
            return false;
        }
        // In a numbered part, the number comes first.
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

    /// Sends the next part. `false`: it has no room, and the part is kept.
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

    /// The rest of a push, for anything but a line that could leave at once.
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
            // An older count, which comes late, is ignored.
            self.taken = taken;
        }
    }

    /// Takes back the leases that it has released.
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

    /// A lease that no sample has, according to the last look.
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

/// A word of a cell. The subscriber alone deposits into it.
fn cell_word(node: &Node, area: AreaId, i: usize) -> u64 {
    let bytes = node.area(area).ok().and_then(|area| area.get(8 * i..8 * i + 8)?.try_into().ok());
    bytes.map_or(0, u64::from_le_bytes)
}
