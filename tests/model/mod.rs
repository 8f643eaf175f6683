//! An oracle of the receiving interface, in the simplest terms, and sequences of calls that are
//! made from bytes: by chance under `cargo test`, by search under a fuzzer (`fuzz/`).
//!
//! The oracle shares nothing with the interface but the types of its calls. After each call the two
//! are compared completely: every byte of every area, every entry, every counter.
#![allow(dead_code)] // Each test takes what it needs.

use hamlyn::interface::{
    Arrival, Deposit, EntryState, Flow, Interface, LinkId, Message, Mode, NotDeposited,
    Notification, QueueId, Receiver, Refusal, SlotConfig, SlotId, Then,
};
use hamlyn::link::cells::Line;
use hamlyn::link::ring::{RingReader, RingWriter};
use hamlyn::link::sim::Rng;
use hamlyn::link::{Body, Transmit};
use hamlyn::wire::{
    Destination, Flags, FlowWords, Header, Key, MetadataIndex, NodeId, SlotIndex, Ticket,
};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The links that packets come over. Two have the same place, one after the other; the last has
/// no place until [`Interface::reserve_links`].
pub const LINKS: [LinkId; 5] = [
    LINK,
    LinkId::SELF,
    LinkId { index: 5, generation: 1 },
    LinkId { index: 5, generation: 2 },
    LinkId { index: 20, generation: 0 },
];

pub const LINK: LinkId = LinkId { index: 3, generation: 9 };

/// A packet's body, as a link would deliver it.
#[derive(Clone, Debug, Default)]
pub struct Bytes {
    pub metadata: Vec<u8>,
    pub data: Vec<u8>,
}

impl Bytes {
    /// As many bytes as the header claims, filled with `fill`.
    pub fn of(header: &Header, fill: u8) -> Self {
        Self {
            metadata: vec![fill; header.metadata_len as usize],
            data: vec![fill; header.length.min(1 << 16) as usize],
        }
    }
}

impl Body for Bytes {
    fn words(&self) -> [u64; 2] {
        let mut all = self.metadata.clone();
        all.extend(&self.data);
        all.resize(16.max(all.len()), 0);
        [0, 8].map(|i| u64::from_le_bytes(all[i..i + 8].try_into().unwrap()))
    }

    fn copy_metadata(&self, to: &mut [u8]) {
        to.copy_from_slice(&self.metadata);
    }

    fn copy_data(&self, to: &mut [u8]) {
        to.copy_from_slice(&self.data);
    }
}

/// The header of a single packet that uses the whole ticket's counter.
pub fn header(ticket: &Ticket, offset: u64, length: u32, metadata_len: u8) -> Header {
    Header {
        destination: ticket.destination.destination(),
        slot: ticket.slot,
        metadata_index: ticket.metadata_index,
        key: ticket.key,
        offset,
        length,
        delta: 0,
        metadata_len,
        flags: ticket.flags,
        word: 0,
    }
}

#[derive(Clone, Debug)]
struct OracleEntry {
    user: Vec<u8>,
    /// Sum of deltas: an integer, taken modulo 2^32 only when asked whether it is zero.
    sum: u128,
    /// `None`: one that no ticket has.
    key: Option<u64>,
    low: u128,
    high: u128,
    is_open: bool,
    /// Several senders use the entry: the message, of several packets, of each place of a link.
    shared: Option<BTreeMap<u32, Begun>>,
}

/// A message of several packets that a link has begun to send to a shared entry.
#[derive(Clone, Copy, Debug, Default)]
struct Begun {
    generation: u16,
    /// Sum of deltas, refused ones included, as in [`OracleEntry`].
    sum: u128,
    /// It began while the entry was open, and the entry has neither closed nor been taken over.
    counts: bool,
}

#[derive(Clone, Debug)]
struct OracleSlot {
    id: SlotId,
    mode: Mode,
    area: usize,
    base: usize,
    size: u128,
    key: Option<u64>,
    credit: usize,
    entries: Vec<OracleEntry>,
}

/// An interface and its oracle, driven alike.
pub struct Pair {
    pub interface: Interface<Vec<u8>>,
    areas: Vec<(hamlyn::interface::AreaId, Vec<u8>)>,
    queue: QueueId,
    slots: Vec<Option<OracleSlot>>,
    /// Notifications that wait, with the slot whose credit they use.
    waiting: VecDeque<(SlotId, Notification)>,
    counters: BTreeMap<&'static str, u64>,
    /// Every key that a ticket may have held, by the slot's index and the entry's, or none: all of the
    /// slot's.
    given: BTreeMap<(u32, Option<u32>), Vec<u64>>,
    /// Links that shared entries have room for.
    links: u32,
    /// The cases met in shared entries, and how often.
    met: BTreeMap<&'static str, u64>,
    flow: (FlowWords, Flow),
    /// Packets that were taken for being like another, and handed over past the queue.
    pub alike: u64,
    /// Those of them and of `direct` that are longer than 16 bytes.
    pub longer: u64,
    pub direct: u64,
    /// Each slot has a receiver, which takes some packets, and of some the front.
    has_onlookers: bool,
}

/// Looks at what arrives, and asks itself whether it may be.
struct Onlooker {
    bytes: u64,
    observed: u64,
    front: [u8; FRONT],
}

/// Most bytes that an [`Onlooker`] takes of a packet.
const FRONT: usize = 24;

/// Bytes that it takes.
fn taken(offset: u64, length: u32) -> usize {
    if offset % 3 == 1 { FRONT.min(length as usize) } else { 0 }
}

impl Receiver for Onlooker {
    fn place(&mut self, deposit: &Deposit<'_>) -> Option<&mut [u8]> {
        assert!(deposit.offset + deposit.length as u64 <= self.bytes && deposit.taken == 0);
        assert!(deposit.user.len() <= 60);
        (taken(deposit.offset, deposit.length) > 0).then_some(&mut self.front)
    }

    fn observe(&mut self, deposit: &Deposit<'_>, bytes: &[u8]) {
        assert_eq!(deposit.taken as usize, taken(deposit.offset, deposit.length));
        assert_eq!(bytes.len(), deposit.length as usize - deposit.taken as usize);
        self.observed += 1;
    }

    fn process_arrival(&mut self, message: Message<'_>) -> Then {
        assert_eq!(message.bytes.len() as u64, self.bytes);
        let Deposit { length, taken, completes, user, .. } = message.last;
        assert_eq!(message.last_bytes().len(), length as usize - taken as usize);
        assert!(self.observed > 0 && message.user.len() <= 60 && completes && user == message.user);
        Then::Queue
    }
}

const ID: NodeId = NodeId(77);
const QUEUE_ENTRIES: u32 = 12;

impl Default for Pair {
    fn default() -> Self {
        Self::new(false)
    }
}

impl Pair {
    pub fn new(has_onlookers: bool) -> Self {
        let mut interface = Interface::new(ID, [9; 16]);
        interface.enable();
        let areas = [0usize, 100, 300]
            .map(|size| {
                let bytes: Vec<u8> = (0..size).map(|i| i as u8).collect();
                (interface.create_area(bytes.clone()), bytes)
            })
            .to_vec();
        let queue = interface.create_queue(QUEUE_ENTRIES).unwrap();
        let mut pair = Self {
            interface,
            areas,
            queue,
            slots: Vec::new(),
            waiting: VecDeque::new(),
            counters: BTreeMap::new(),
            given: BTreeMap::new(),
            links: 8,
            met: BTreeMap::new(),
            flow: (FlowWords::default(), Flow::NONE),
            alike: 0,
            longer: 0,
            direct: 0,
            has_onlookers,
        };
        pair.counters = pair.interface.counters().snapshot().into_iter().collect();
        pair.add_slot(Mode::Normal, 2, 10..200, 2, 2);
        pair.add_slot(Mode::Paranoid, 2, 100..300, 2, 2);
        pair.add_slot(Mode::ParanoidOneShot, 1, 0..100, 3, 3);
        pair.add_slot(Mode::Normal, 0, 0..0, 1, 0);
        pair
    }

    /// The key that a ticket has now, which no ticket ever had.
    fn note_key(&mut self, slot: SlotId, entry: Option<u32>) -> u64 {
        let ticket = match entry {
            None => self.interface.fast_ticket(slot),
            Some(entry) => self.interface.ticket(slot, MetadataIndex(entry)),
        };
        let key = ticket.unwrap().key.0;
        assert!(self.given.values().all(|given| !given.contains(&key)), "a key comes again");
        self.given.entry((slot.index().0, entry)).or_default().push(key);
        key
    }

    fn add_slot(
        &mut self,
        mode: Mode,
        area: usize,
        range: std::ops::Range<u64>,
        entries: u32,
        credit: u32,
    ) {
        let config = SlotConfig::new(self.areas[area].0, self.queue)
            .range(range.clone())
            .metadata(entries)
            .mode(mode)
            .credit(credit);
        let made = self.interface.create_slot(&config);
        let reserved: usize = self.slots.iter().flatten().map(|slot| slot.credit).sum();
        let left_behind = self
            .waiting
            .iter()
            .filter(|(id, _)| !self.slots.iter().flatten().any(|slot| slot.id == *id))
            .count();
        let fits = reserved + left_behind + credit as usize <= QUEUE_ENTRIES as usize;
        assert_eq!(made.is_ok(), fits, "{made:?}");
        let Ok(id) = made else { return };
        if self.has_onlookers {
            let onlooker =
                Onlooker { bytes: range.end - range.start, observed: 0, front: [0; FRONT] };
            self.interface.install(id, Box::new(onlooker), None).unwrap();
        }
        let key = (mode == Mode::Normal).then(|| self.note_key(id, None));
        let entry = |_| OracleEntry {
            user: Vec::new(),
            sum: 0,
            key: None,
            low: 0,
            high: 0,
            is_open: mode == Mode::Normal,
            shared: None,
        };
        let slot = OracleSlot {
            id,
            mode,
            area,
            base: range.start as usize,
            size: (range.end - range.start) as u128,
            key,
            credit: credit as usize,
            entries: (0..entries as usize).map(entry).collect(),
        };
        let index = id.index().0 as usize;
        if index == self.slots.len() {
            self.slots.push(None);
        }
        assert!(self.slots[index].replace(slot).is_none(), "two slots of one index");
    }

    /// The expected fate of a packet; if that is a deposit, the oracle makes it.
    fn expect(
        &mut self,
        link: LinkId,
        h: &Header,
        reserved: u32,
        body: &Bytes,
    ) -> Result<Arrival, Refusal> {
        if h.destination != ID.destination() {
            return Err(Refusal::WrongDestination);
        }
        if reserved != 0 || h.metadata_len > 60 {
            return Err(Refusal::BadFormat);
        }
        let slot = self.slots.get_mut(h.slot.0 as usize).and_then(Option::as_mut);
        let slot = slot.ok_or(Refusal::NoSuchSlot)?;
        let fast = h.metadata_index.0 == u32::MAX;
        if fast && slot.mode != Mode::Normal {
            return Err(Refusal::FastIntoParanoid);
        }
        if fast && h.metadata_len > 0 {
            return Err(Refusal::BadFormat);
        }
        let index = h.metadata_index.0 as usize;
        if !fast && index >= slot.entries.len() {
            return Err(Refusal::NoSuchEntry);
        }
        let paranoid = slot.mode != Mode::Normal;
        let key = if paranoid { slot.entries[index].key } else { slot.key };
        if Some(h.key.0) != key {
            // Those that a ticket has held, for the entry or for the slot, and that count no more.
            let places = [None, Some(h.metadata_index.0)].map(|entry| (h.slot.0, entry));
            let mut given = places.iter().filter_map(|place| self.given.get(place)).flatten();
            return Err(match given.any(|given| *given == h.key.0) {
                true => Refusal::StaleKey,
                false => Refusal::WrongKey,
            });
        }
        let (from, to) = (h.offset as u128, h.offset as u128 + h.length as u128);
        if to > slot.size {
            return Err(Refusal::OutOfBounds);
        }
        if paranoid && (from < slot.entries[index].low || to > slot.entries[index].high) {
            return Err(Refusal::OutsideLimits);
        }
        if paranoid && !is_let_through(&mut slot.entries[index], link, h.delta, self.links) {
            *self.met.entry("refused_in_shared").or_default() +=
                slot.entries[index].shared.is_some() as u64;
            return Err(Refusal::EntryClosed);
        }
        // In a shared entry a message that begins takes the place of one that was not finished.
        let takes_over = paranoid && h.delta != 0 && {
            let entry = &slot.entries[index];
            entry.shared.as_ref().is_some_and(|begun| begun[&link.index].sum % (1 << 32) == 0)
        };
        let before = if fast || takes_over { 0 } else { slot.entries[index].sum };
        let sum = if fast { 0 } else { before + h.delta as u128 };
        let completes = fast || h.delta == 0 || sum % (1 << 32) == 0;
        let notifies = completes && h.flags.contains(Flags::NOTIFY);
        let used = self.waiting.iter().filter(|(id, _)| *id == slot.id).count();
        if notifies && used >= slot.credit {
            return Err(Refusal::NoCredit);
        }
        let at = slot.base + from as usize;
        let taken = if self.has_onlookers { taken(h.offset, h.length) } else { 0 };
        self.areas[slot.area].1[at + taken..at + h.length as usize]
            .copy_from_slice(&body.data[taken..]);
        if !fast {
            let entry = &mut slot.entries[index];
            if h.delta == 0 || before % (1 << 32) == 0 || h.metadata_len > 0 {
                entry.user = body.metadata.clone();
            }
            if let (Some(begun), true) = (&mut entry.shared, h.delta != 0) {
                let overtaken = entry.sum % (1 << 32) != 0 && takes_over;
                *self.met.entry("overtaken").or_default() += overtaken as u64;
                *self.met.entry("complete_in_shared").or_default() += completes as u64;
                begun.values_mut().for_each(|begun| begun.counts = false);
                begun.insert(link.index, Begun { generation: link.generation, sum, counts: true });
            }
            if h.delta != 0 {
                entry.sum = sum;
            }
            if completes && slot.mode == Mode::ParanoidOneShot {
                entry.is_open = false;
                entry.shared.iter_mut().flatten().for_each(|(_, begun)| begun.counts = false);
            }
        }
        let mut count = |name, n| *self.counters.get_mut(name).unwrap() += n;
        count("packets_received", 1);
        count("bytes_received", h.length as u64);
        if !completes {
            return Ok(Arrival::Part);
        }
        count("messages_received", 1);
        if !notifies {
            return Ok(Arrival::Complete);
        }
        count("notifications", 1);
        let note = Notification {
            slot: slot.id,
            index: h.metadata_index,
            word: if fast { h.word } else { 0 },
            link,
        };
        self.waiting.push_back((slot.id, note));
        Ok(Arrival::Notified)
    }

    /// Gives a packet to both, and compares what they say and what they are. It goes the way that it
    /// goes in a node: past the checks that one of its flow has passed.
    pub fn packet(
        &mut self,
        link: LinkId,
        h: &Header,
        reserved: u32,
        body: &Bytes,
    ) -> Result<Arrival, Refusal> {
        let is_direct = h.word.is_multiple_of(2) && self.waiting.is_empty();
        let expected = self.expect(link, h, reserved, body);
        if let Err(refusal) = expected {
            *self.counters.get_mut(refusal.counter_name()).unwrap() += 1;
        }
        let is_of_flow = reserved == 0 && self.flow.0 == h.flow();
        if is_of_flow && self.again(link, h, body, is_direct) {
            assert!(expected.is_ok(), "{h:?}: {expected:?}");
        } else {
            let mut flow = Flow::NONE;
            let got = self.interface.handle_and_keep(link, h, reserved, body, &mut flow);
            assert_eq!(got, expected.map_err(NotDeposited::Refused), "{h:?}");
            if self.has_onlookers
                && got.is_ok()
                && let Some(Some(slot)) = self.slots.get(h.slot.0 as usize)
                && let Some(onlooker) = self.interface.installed::<Onlooker>(slot.id).unwrap()
            {
                let taken = taken(h.offset, h.length);
                assert_eq!(onlooker.front[..taken], body.data[..taken]);
                *self.met.entry("fronts_taken").or_default() +=
                    (0 < taken && taken < h.length as usize) as u64;
            }
            if reserved == 0 {
                self.flow = (h.flow(), flow);
            }
        }
        self.compare();
        expected
    }

    /// Whether a packet was taken as one of the flow.
    fn again(&mut self, link: LinkId, h: &Header, body: &Bytes, is_direct: bool) -> bool {
        let (flow, varying) = (&self.flow.1, h.varying());
        if is_direct {
            let taken = self.interface.take_again(flow, &varying, body, self.queue, None);
            if let Some(taken) = taken.map(|taken| taken.handed(flow, link)) {
                self.direct += 1;
                let expected = self.waiting.pop_back().map(|(_, note)| note);
                assert_eq!(expected, Some(taken.notification));
                assert_eq!(taken.words(), (h.length <= 16).then(|| body.words()));
                self.longer += (h.length > 16) as u64;
                return true;
            }
        }
        let again = self.interface.handle_again(flow, link, &varying, body);
        self.alike += again as u64;
        self.longer += (again && h.length > 16) as u64;
        again
    }

    /// Takes a notification from both.
    pub fn pop(&mut self) -> Option<Notification> {
        let expected = self.waiting.pop_front().map(|(_, note)| note);
        assert_eq!(self.interface.is_ready(self.queue), Ok(expected.is_some()));
        assert_eq!(self.interface.pop(self.queue), Ok(expected));
        expected
    }

    /// Compares every byte of state that can be seen from outside.
    pub fn compare(&self) {
        for (id, bytes) in &self.areas {
            assert!(self.interface.area(*id).unwrap() == bytes, "an area differs");
        }
        for slot in self.slots.iter().flatten() {
            for (i, expected) in slot.entries.iter().enumerate() {
                let index = MetadataIndex(i as u32);
                let entry = self.interface.entry(slot.id, index).unwrap();
                assert_eq!(entry.user(), expected.user);
                assert_eq!(entry.accumulator() as u128, expected.sum % (1 << 32));
                let state = match (expected.is_open, &expected.shared) {
                    (false, _) => EntryState::Closed,
                    (true, None) => EntryState::Open,
                    (true, Some(_)) => EntryState::Shared,
                };
                assert_eq!(entry.state(), state);
                if slot.mode != Mode::Normal {
                    assert_eq!(entry.limits(), expected.low as u64..expected.high as u64);
                }
            }
        }
        let counters: BTreeMap<_, _> = self.interface.counters().snapshot().into_iter().collect();
        assert_eq!(counters, self.counters);
    }

    /// One call, chosen by the next bytes; false when they are used up.
    fn step(&mut self, input: &mut Input) -> bool {
        let Some(choice) = input.byte() else { return false };
        let slot_count = self.slots.len() as u64;
        let place = input.below(slot_count.max(1)) as usize;
        match choice % 16 {
            0 => {
                self.pop();
            }
            1 => {
                if let Some(Some(slot)) = self.slots.get(place).cloned() {
                    self.interface.change_key(slot.id).unwrap();
                    if slot.mode == Mode::Normal {
                        let key = self.note_key(slot.id, None);
                        self.slots[place].as_mut().unwrap().key = Some(key);
                    }
                }
            }
            2..=3 => self.arm(place, input),
            4 => self.reopen(place, input),
            5 if input.below(4) == 0 => {
                self.interface.reserve_links(21);
                self.links = 21;
            }
            5 => self.share(place, input),
            6 => {
                if let Some(Some(slot)) = self.slots.get(place).cloned() {
                    let index = input.below(slot.entries.len() as u64) as usize;
                    let closed = self.interface.close_entry(slot.id, MetadataIndex(index as u32));
                    assert_eq!(closed.is_ok(), slot.mode != Mode::Normal);
                    if closed.is_ok() {
                        let entry = &mut self.slots[place].as_mut().unwrap().entries[index];
                        (entry.key, entry.is_open) = (None, false);
                        entry.shared.iter_mut().for_each(BTreeMap::clear);
                    }
                }
            }
            7 if input.below(3) == 0 => {
                if let Some(slot) = self.slots.get_mut(place).and_then(Option::take) {
                    self.interface.remove_slot(slot.id).unwrap();
                    assert!(self.interface.remove_slot(slot.id).is_err());
                } else {
                    let mode = [Mode::Normal, Mode::Paranoid, Mode::ParanoidOneShot];
                    let mode = mode[input.below(3) as usize];
                    let entries = 1 + input.below(3) as u32;
                    let credit = match mode {
                        Mode::ParanoidOneShot => entries,
                        _ => input.below(5) as u32,
                    };
                    let start = input.below(50);
                    let end = start + input.below(51);
                    self.add_slot(mode, 1, start..end, entries, credit);
                }
            }
            8..=10 => self.part(input, choice),
            11 | 12 => {
                // Again and again the same, but for where it goes: what a link mostly brings.
                let link = LINKS[input.below(2) as usize];
                let (mut h, reserved) = self.any_header(place, input);
                if input.below(8) > 0 {
                    (h.delta, h.metadata_len, h.length) = (0, 0, h.length % 17);
                }
                for _ in 0..3 + input.below(4) {
                    while input.below(4) > 0 && self.pop().is_some() {}
                    let offset = h.offset.wrapping_add(input.below(3)).wrapping_sub(1);
                    let h = Header { offset, word: input.below(4) as u32, ..h };
                    let body = Bytes::of(&h, choice);
                    let _ = self.packet(link, &h, reserved, &body);
                }
            }
            _ => {
                let link = LINKS[[0, 0, 0, 0, 1, 2, 3, 4][input.below(8) as usize]];
                let (h, reserved) = self.any_header(place, input);
                let body = Bytes::of(&h, choice);
                let _ = self.packet(link, &h, reserved, &body);
            }
        }
        self.compare();
        true
    }

    fn arm(&mut self, place: usize, input: &mut Input) {
        let Some(Some(slot)) = self.slots.get(place).cloned() else { return };
        let index = input.below(slot.entries.len() as u64 + 1) as usize;
        let (start, end) = match input.below(4) {
            0 => (input.below(150), input.below(150)),
            _ => (input.below(20), slot.size as u64),
        };
        let limits = (slot.mode != Mode::Normal).then_some(start..end);
        let armed = self.interface.arm_entry(slot.id, MetadataIndex(index as u32), limits);
        let allowed = index < slot.entries.len()
            && (slot.mode == Mode::Normal || start <= end && end as u128 <= slot.size);
        assert_eq!(armed.is_ok(), allowed, "{armed:?}");
        if allowed {
            let key =
                (slot.mode != Mode::Normal).then(|| self.note_key(slot.id, Some(index as u32)));
            let entry = &mut self.slots[place].as_mut().unwrap().entries[index];
            (entry.sum, entry.user) = (0, Vec::new());
            if slot.mode != Mode::Normal {
                entry.key = key;
                entry.shared.iter_mut().for_each(BTreeMap::clear);
                (entry.low, entry.high) = (start as u128, end as u128);
                entry.is_open = true;
            }
        }
    }

    fn reopen(&mut self, place: usize, input: &mut Input) {
        let Some(Some(slot)) = self.slots.get_mut(place) else { return };
        let index = input.below(slot.entries.len() as u64 + 1) as usize;
        let reopened = self.interface.reopen_entry(slot.id, MetadataIndex(index as u32));
        let entry = slot.entries.get_mut(index).filter(|_| slot.mode == Mode::ParanoidOneShot);
        assert_eq!(reopened.is_ok(), entry.is_some(), "{reopened:?}");
        if let Some(entry) = entry.filter(|entry| !entry.is_open) {
            (entry.sum, entry.user, entry.is_open) = (0, Vec::new(), true);
        }
    }

    fn share(&mut self, place: usize, input: &mut Input) {
        let Some(Some(slot)) = self.slots.get_mut(place) else { return };
        let index = input.below(slot.entries.len() as u64 + 1) as usize;
        let shared = self.interface.share_entry(slot.id, MetadataIndex(index as u32));
        let entry = slot.entries.get_mut(index).filter(|_| slot.mode == Mode::ParanoidOneShot);
        assert_eq!(shared.is_ok(), entry.is_some(), "{shared:?}");
        if let Some(entry) = entry {
            entry.shared = Some(BTreeMap::new());
            if entry.is_open {
                (entry.sum, entry.user) = (0, Vec::new());
            }
        }
    }

    /// A packet with which nothing is wrong but, perhaps, when it comes, for a shared entry if
    /// there is one.
    fn part(&mut self, input: &mut Input, fill: u8) {
        let entries = || {
            self.slots.iter().flatten().flat_map(|slot| {
                slot.entries.iter().enumerate().map(move |(index, entry)| (slot, index, entry))
            })
        };
        let shared: Vec<_> = entries().filter(|(_, _, entry)| entry.shared.is_some()).collect();
        let Some(&(slot, index, entry)) = shared.get(input.below(shared.len() as u64) as usize)
        else {
            return;
        };
        let link = LINKS[[0, 0, 0, 0, 1, 2, 3, 4][input.below(8) as usize]];
        let sent = entry.shared.as_ref().unwrap().get(&link.index).map_or(0, |begun| begun.sum);
        let finishing = (sent as u32).wrapping_neg();
        let h = Header {
            destination: ID.destination(),
            slot: slot.id.index(),
            metadata_index: MetadataIndex(index as u32),
            key: Key(entry.key.unwrap_or(0)),
            offset: entry.low as u64,
            length: 0,
            delta: [0, 1, 1, 0x8000_0000, finishing, finishing][input.below(6) as usize],
            metadata_len: [0, 16][input.below(2) as usize],
            flags: Flags::NOTIFY,
            word: 0,
        };
        let _ = self.packet(link, &h, 0, &Bytes::of(&h, fill));
    }

    /// A header that is mostly right, or hardly anything would get past the first check.
    fn any_header(&mut self, place: usize, input: &mut Input) -> (Header, u32) {
        let slot = self.slots.get(place).and_then(Option::as_ref);
        let entries = slot.map_or(1, |slot| slot.entries.len() as u64);
        let mut index = input.below(entries + 1) as u32;
        if index as u64 == entries && input.below(3) > 0 {
            index = u32::MAX;
        }
        let key = slot.and_then(|slot| match slot.mode {
            Mode::Normal => slot.key,
            _ => slot.entries.get(index as usize).and_then(|entry| entry.key),
        });
        let low = slot
            .filter(|slot| slot.mode != Mode::Normal)
            .and_then(|slot| slot.entries.get(index as usize))
            .map_or(0, |entry| entry.low as u64);
        let deltas = [0, 0, 1, 1, u32::MAX, 0x8000_0000, 2, u32::MAX - 1];
        let fast = index == u32::MAX;
        let mut h = Header {
            destination: ID.destination(),
            slot: SlotIndex(place as u32),
            metadata_index: MetadataIndex(index),
            key: Key(key.unwrap_or(0)),
            offset: low + input.below(60),
            length: [0, 8, 16, 17, 1][input.below(5) as usize],
            delta: deltas[input.below(8) as usize],
            metadata_len: if fast { 0 } else { [0, 0, 16, 60][input.below(4) as usize] },
            flags: Flags::from_bits_truncate(input.byte().unwrap_or(1)),
            word: input.below(1 << 32) as u32,
        };
        let mut reserved = 0;
        match input.below(20) {
            0 => h.destination = Destination(input.number() as u32),
            1 => h.slot = SlotIndex(input.number() as u32),
            2 => h.metadata_index = MetadataIndex(input.number() as u32),
            3 => h.key = Key(input.number()),
            // One that was given for this, or that was for another.
            9 => {
                let given = self.given.get(&(place as u32, Some(index)));
                let given = given.or_else(|| self.given.get(&(place as u32, None)));
                let given = given.map_or(&[][..], |given| given);
                let at = input.below(given.len() as u64) as usize;
                h.key = Key(given.get(at).copied().unwrap_or(0));
            }
            10 => {
                let at = input.below(self.given.len() as u64) as usize;
                h.key = Key(self.given.values().nth(at).map_or(0, |given| given[0]));
            }
            4 => h.offset = input.number(),
            5 => h.length = input.below(400) as u32,
            6 => h.offset = u64::MAX - input.below(20),
            7 => h.metadata_len = input.number() as u8,
            8 => (h, reserved) = Header::from_words(&std::array::from_fn(|_| input.number())),
            _ => {}
        }
        // A link never delivers a packet longer than itself; the oracle has no such link.
        if h.length > 1 << 16 {
            h.length = 1 << 16;
        }
        (h, reserved)
    }
}

/// Whether an entry of a paranoid slot takes a packet; notes what its link has sent if it does not.
fn is_let_through(entry: &mut OracleEntry, link: LinkId, delta: u32, links: u32) -> bool {
    let Some(begun) = entry.shared.as_mut().filter(|_| delta != 0) else { return entry.is_open };
    if link.index >= links {
        return false;
    }
    let begun = begun.entry(link.index).or_default();
    if begun.generation != link.generation {
        *begun = Begun { generation: link.generation, ..Begun::default() };
    }
    let begins = begun.sum % (1 << 32) == 0;
    let is_taken = entry.is_open && (begins || begun.counts);
    if !is_taken {
        begun.sum += delta as u128;
    }
    is_taken
}

/// Bytes that decide what is done next.
pub struct Input<'a> {
    bytes: &'a [u8],
}

impl<'a> Input<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    pub fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.bytes.split_first()?;
        self.bytes = rest;
        Some(*first)
    }

    /// From 0 to `bound` - 1; one byte for small bounds. Zero when the bytes are used up.
    pub fn below(&mut self, bound: u64) -> u64 {
        match bound {
            0 => 0,
            1..=256 => self.byte().unwrap_or(0) as u64 % bound,
            _ => self.number() % bound,
        }
    }

    pub fn number(&mut self) -> u64 {
        let n = self.bytes.len().min(8);
        let (first, rest) = self.bytes.split_at(n);
        self.bytes = rest;
        first.iter().fold(0, |number, &byte| number << 8 | byte as u64)
    }
}

/// Bytes for a sequence, from a seed.
pub fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    (0..length).map(|_| rng.number() as u8).collect()
}

/// Any sequence of calls to an interface does what the oracle does.
pub fn interface(data: &[u8]) {
    // With receivers that look on, too: they see each packet of which every check has passed.
    for has_onlookers in [false, true] {
        let mut input = Input::new(data);
        let mut pair = Pair::new(has_onlookers);
        while pair.step(&mut input) {}
        while pair.pop().is_some() {}
        assert!(!has_onlookers || pair.alike == 0);
    }
}

/// The counters of an interface after a sequence of calls, with receivers that look on or without,
/// and how many packets took the short ways.
pub fn counters_after(data: &[u8], has_onlookers: bool) -> Vec<(&'static str, u64)> {
    let mut input = Input::new(data);
    let mut pair = Pair::new(has_onlookers);
    while pair.step(&mut input) {}
    let mut counters = pair.interface.counters().snapshot();
    counters.extend(pair.met);
    counters.extend([("alike", pair.alike), ("direct", pair.direct), ("longer", pair.longer)]);
    counters
}

/// A ring whose other side writes anything anywhere, at any moment between two calls.
pub fn ring(data: &[u8]) {
    let mut input = Input::new(data);
    let count = 8usize << input.below(4);
    let lines: Arc<[Line]> = (0..count).map(|_| Line::default()).collect();
    let freed = Arc::new(AtomicU64::new(0));
    let mut writer = RingWriter::new(lines.clone(), freed.clone(), u32::MAX);
    let mut reader = RingReader::new(lines, Arc::new(AtomicU64::new(0)));
    let ticket = Ticket {
        destination: ID,
        slot: SlotIndex(0),
        metadata_index: MetadataIndex(0),
        key: Key(0),
        base: 0,
        bound: 0,
        flags: Flags::empty(),
        share: hamlyn::wire::Share::WHOLE,
    };
    while let Some(choice) = input.byte() {
        match choice % 4 {
            0 => freed.store(
                if choice & 4 == 0 { input.number() } else { input.below(64) },
                Ordering::Relaxed,
            ),
            1 => {
                let length = input.below(writer.packet_bytes() as u64 + 1) as usize;
                let metadata = vec![1; input.below(61) as usize];
                // The body is the attack: the next bytes of the input.
                let mut body: Vec<u8> = input.bytes.iter().copied().take(length).collect();
                body.resize(length, 0x80);
                let h = header(&ticket, 0, length as u32, metadata.len() as u8);
                let _ = writer.transmit(&h, &metadata, &body[..]);
            }
            2 => {
                writer.is_drained();
                writer.is_half_full();
            }
            _ => {
                // The reader does not belong to the writer here: it reads the same lines, which the
                // writer above fills with any content at any time.
                if let Ok(Some(packet)) = reader.peek() {
                    let mut metadata = vec![0; packet.header.metadata_len as usize];
                    let mut data = vec![0; packet.header.length as usize];
                    packet.copy_metadata(&mut metadata);
                    packet.copy_data(&mut data);
                    let lines = packet.lines();
                    assert!((1..count as u64).contains(&lines));
                    reader.release(lines);
                } else {
                    reader.publish();
                }
            }
        }
    }
}

/// Any bytes are a ticket or an error; any words are a header.
pub fn wire(data: &[u8]) {
    if let Ok(ticket) = Ticket::from_bytes(data) {
        assert_eq!(ticket.to_bytes(), *data);
        assert!(ticket.base <= ticket.bound);
        if let Ok(parts) = ticket.split_evenly(3) {
            assert_eq!(parts.iter().map(Ticket::capacity).sum::<u64>(), ticket.capacity());
        }
    }
    let mut input = Input::new(data);
    let mut words = std::array::from_fn(|_| input.number());
    let (h, reserved) = Header::from_words(&words);
    assert!((1..=6 + (1 << 26)).contains(&h.layout().lines));
    if reserved == 0 {
        words[0] &= !0xffff_ffff;
        assert_eq!(h.to_words(), words);
    }
}
