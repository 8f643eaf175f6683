//! The state of an interface, and the calls that prepare it for messages: areas, notification
//! queues, slots and their metadata entries. `receive.rs` handles arrivals.

use super::keys::{InterfaceKeys, SECRET_BYTES};
use super::metadata::EntrySenders;
use super::notification::{self, Consumer, Producer};
use super::slot::{ENTRIES_MAX, Slot};
use super::{
    AreaError, AreaId, Counters, Discard, EntryState, MetadataEntry, Mode, Notification,
    QueueError, QueueId, SlotConfig, SlotError, SlotId,
};
use crate::wire::{Flags, Header, Key, MetadataIndex, NodeId, Share, SlotIndex, Ticket};
use alloc::{boxed::Box, sync::Arc, vec::Vec};
use core::ops::Range;

pub(super) struct Area<M> {
    pub memory: M,
    slots: usize,
    pub(super) generation: u32,
}

pub(super) struct TableQueue {
    pub producer: Producer,
    pub consumer: Option<Consumer>,
    generation: u32,
}

/// See `Interface::waiting`.
const ELSEWHERE: u64 = u32::MAX as u64;

/// A slot that was removed while notifications of it wait. Its index is not used again until they
/// have been taken: they must not be mistaken for another slot's.
struct Retired {
    index: u32,
    queue: QueueId,
    share: u32,
}

/// Links that a shared entry has room for from the start.
const LINKS_MIN: usize = 8;

/// One interface. `M` is the memory of message areas.
pub struct Interface<M> {
    pub(super) id: NodeId,
    pub(super) discard: Option<Discard>,
    watchdog_ns: u64,
    watchdog_reset_ns: u64,
    pub(super) slots: Vec<Option<Slot>>,
    pub(super) areas: Vec<Option<Area<M>>>,
    pub(super) queues: Vec<Option<TableQueue>>,
    /// For each queue: its generation and, in the lower half, the number of notifications that
    /// wait. All ones there: another thread takes them, and only it knows the number.
    pub(super) waiting: Vec<u64>,
    retired: Vec<Retired>,
    pub(super) keys: InterfaceKeys,
    generation: u32,
    /// Links have indices below this.
    links: usize,
    /// Changes whenever a packet like one that was accepted might not be: see `Flow`.
    pub(super) epoch: u64,
    pub(super) counters: Arc<Counters>,
}

impl<M: AsRef<[u8]> + AsMut<[u8]>> Interface<M> {
    /// An interface that discards whatever arrives until it is [enabled](Self::enable). Whoever knows the
    /// secret knows its keys.
    pub fn new(id: NodeId, secret: [u8; SECRET_BYTES]) -> Self {
        Self {
            id,
            discard: Some(Discard::NotEnabled),
            watchdog_ns: 0,
            watchdog_reset_ns: 0,
            slots: Vec::new(),
            areas: Vec::new(),
            queues: Vec::new(),
            waiting: Vec::new(),
            retired: Vec::new(),
            keys: InterfaceKeys::new(secret),
            generation: 0,
            links: LINKS_MIN,
            epoch: 1,
            counters: Arc::default(),
        }
    }

    /// The name that packets for this interface carry.
    pub fn id(&self) -> NodeId {
        self.id
    }

    /// The counters; they may be read from anywhere at any time.
    pub fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    // ---- start-up and watchdog (2.8)

    /// Packets are accepted from now on.
    pub fn enable(&mut self) {
        self.discard = None;
    }

    /// Packets are accepted and discarded from now on.
    pub fn disable(&mut self) {
        self.epoch += 1;
        self.discard = Some(Discard::NotEnabled);
    }

    /// From now on packets are discarded whenever the application has not called
    /// [`reset_watchdog`](Self::reset_watchdog) for `watchdog_ns`; 0 turns the watchdog off. For
    /// interfaces that something other than the application drives.
    pub fn set_watchdog(&mut self, now_ns: u64, watchdog_ns: u64) {
        self.watchdog_ns = watchdog_ns;
        self.reset_watchdog(now_ns);
    }

    /// The application lives.
    pub fn reset_watchdog(&mut self, now_ns: u64) {
        self.watchdog_reset_ns = now_ns;
        if self.discard == Some(Discard::Watchdog) {
            self.discard = None;
        }
    }

    /// Sets the time; call this before packets are handled if a watchdog is set.
    pub fn check_watchdog(&mut self, now_ns: u64) {
        let late = now_ns.saturating_sub(self.watchdog_reset_ns) > self.watchdog_ns;
        if self.watchdog_ns != 0 && self.discard.is_none() && late {
            self.epoch += 1;
            self.discard = Some(Discard::Watchdog);
        }
    }

    /// Why packets are being discarded, if they are.
    pub fn discarding(&self) -> Option<Discard> {
        self.discard
    }

    // ---- areas

    /// Makes `memory` a message area.
    pub fn create_area(&mut self, memory: M) -> AreaId {
        let generation = self.next_generation();
        let index = insert(&mut self.areas, Area { memory, slots: 0, generation });
        AreaId { index, generation }
    }

    fn next_generation(&mut self) -> u32 {
        self.generation = self.generation.wrapping_add(1);
        self.generation
    }

    /// Takes the memory back. Refused while slots name it.
    pub fn remove_area(&mut self, id: AreaId) -> Result<M, AreaError> {
        let slots = self.area_state(id)?.slots;
        if slots > 0 {
            return Err(AreaError::InUse { area: id, slots });
        }
        self.areas[id.index as usize]
            .take()
            .map(|area| area.memory)
            .ok_or(AreaError::NoSuchArea(id))
    }

    /// The bytes of an area. While they are borrowed nothing can be deposited.
    #[inline]
    pub fn area(&self, id: AreaId) -> Result<&[u8], AreaError> {
        self.area_state(id).map(|area| area.memory.as_ref())
    }

    /// The bytes of an area, for the application to write.
    #[inline]
    pub fn area_mut(&mut self, id: AreaId) -> Result<&mut [u8], AreaError> {
        match self.areas.get_mut(id.index as usize) {
            Some(Some(area)) if area.generation == id.generation => Ok(area.memory.as_mut()),
            _ => Err(AreaError::NoSuchArea(id)),
        }
    }

    /// The memory of an area, as it was given.
    pub fn area_memory(&self, id: AreaId) -> Result<&M, AreaError> {
        self.area_state(id).map(|area| &area.memory)
    }

    /// Replaces the memory of a slot that alone uses the whole of its area, and makes the slot as
    /// long as the new memory. The caller then owns the old memory, whose bytes are stable. Moves
    /// no byte. Packets of an unfinished message would go on into the new memory: close an entry
    /// before, and arm it after.
    pub fn replace_memory(&mut self, id: SlotId, memory: M) -> Result<M, SlotError> {
        self.epoch += 1;
        let slot = match self.slots.get_mut(id.index as usize) {
            Some(Some(slot)) if slot.generation == id.generation => slot,
            _ => return Err(SlotError::NoSuchSlot(id)),
        };
        let Some(Some(area)) = self.areas.get_mut(slot.area as usize) else {
            return Err(SlotError::NoSuchSlot(id));
        };
        let size = area.memory.as_ref().len() as u64;
        if area.slots != 1 || slot.base != 0 || slot.size != size {
            let (start, end) = (slot.base, slot.base + slot.size);
            return Err(SlotError::RangeOutsideArea { start, end, size });
        }
        slot.size = memory.as_ref().len() as u64;
        Ok(core::mem::replace(&mut area.memory, memory))
    }

    /// The number of areas.
    pub fn area_count(&self) -> usize {
        self.areas.iter().flatten().count()
    }

    #[inline]
    fn area_state(&self, id: AreaId) -> Result<&Area<M>, AreaError> {
        match self.areas.get(id.index as usize) {
            Some(Some(area)) if area.generation == id.generation => Ok(area),
            _ => Err(AreaError::NoSuchArea(id)),
        }
    }

    // ---- notification queues

    /// A queue of `entries` entries.
    pub fn create_queue(&mut self, entries: u32) -> Result<QueueId, QueueError> {
        let (producer, consumer) = notification::queue(entries)?;
        let generation = self.next_generation();
        let queue = TableQueue { producer, consumer: Some(consumer), generation };
        let index = insert(&mut self.queues, queue);
        self.waiting.resize(self.queues.len(), ELSEWHERE);
        self.waiting[index as usize] = (generation as u64) << 32;
        Ok(QueueId::new(index, generation))
    }

    /// Removes a queue that no slot uses; entries not yet taken are lost.
    pub fn remove_queue(&mut self, id: QueueId) -> Result<(), QueueError> {
        if self.queue_mut(id)?.producer.is_used() {
            return Err(QueueError::InUse(id));
        }
        self.queues[id.index() as usize] = None;
        self.waiting[id.index() as usize] = ELSEWHERE;
        Ok(())
    }

    /// Takes the next notification of a queue, if there is one.
    #[inline(always)]
    pub fn pop(&mut self, id: QueueId) -> Result<Option<Notification>, QueueError> {
        match self.queues.get_mut(id.index() as usize) {
            Some(Some(queue)) if queue.generation == id.generation() => match &mut queue.consumer {
                Some(consumer) => {
                    let notification = consumer.pop();
                    self.waiting[id.index() as usize] -= notification.is_some() as u64;
                    Ok(notification)
                }
                None => Err(QueueError::ConsumerTaken(id)),
            },
            _ => Err(QueueError::NoSuchQueue(id)),
        }
    }

    /// Whether a notification waits.
    #[inline]
    pub fn is_ready(&self, id: QueueId) -> Result<bool, QueueError> {
        let known = self.waiting.get(id.index() as usize).copied().unwrap_or(ELSEWHERE);
        if known >> 32 == id.generation() as u64 && known & ELSEWHERE != ELSEWHERE {
            return Ok(known & ELSEWHERE > 0);
        }
        match self.queues.get(id.index() as usize) {
            Some(Some(queue)) if queue.generation == id.generation() => {
                Err(QueueError::ConsumerTaken(id))
            }
            _ => Err(QueueError::NoSuchQueue(id)),
        }
    }

    /// Hands the consuming end of a queue out, for a thread that takes notifications while
    /// another drives the interface.
    pub fn take_consumer(&mut self, id: QueueId) -> Result<Consumer, QueueError> {
        let consumer = self.queue_mut(id)?.consumer.take().ok_or(QueueError::ConsumerTaken(id))?;
        self.waiting[id.index() as usize] |= ELSEWHERE;
        Ok(consumer)
    }

    /// A view of a queue, for a reader that takes nothing from it.
    pub(crate) fn watch_queue(
        &mut self,
        id: QueueId,
    ) -> Result<notification::QueueView, QueueError> {
        Ok(self.queue_mut(id)?.producer.watch())
    }

    /// Whether the queue at `index` is empty: a queue that this interface consumes, or the one
    /// whose consuming end the caller has.
    #[inline(always)]
    pub(super) fn is_empty(&self, index: u32, consumer: Option<&Consumer>) -> bool {
        let known = self.waiting.get(index as usize).map(|known| *known & ELSEWHERE);
        match consumer {
            None => known == Some(0),
            Some(consumer) => known == Some(ELSEWHERE) && !consumer.is_ready(),
        }
    }

    fn queue_mut(&mut self, id: QueueId) -> Result<&mut TableQueue, QueueError> {
        match self.queues.get_mut(id.index() as usize) {
            Some(Some(queue)) if queue.generation == id.generation() => Ok(queue),
            _ => Err(QueueError::NoSuchQueue(id)),
        }
    }

    // ---- slots

    /// Makes a slot, and reserves its credit in the notification queue. The entries of a paranoid slot
    /// are closed until [armed](Self::arm_entry).
    pub fn create_slot(&mut self, config: &SlotConfig) -> Result<SlotId, SlotError> {
        let size = self.area(config.area)?.len() as u64;
        let Range { start, end } = config.range.clone().unwrap_or(0..size);
        if start > end || end > size {
            return Err(SlotError::RangeOutsideArea { start, end, size });
        }
        if !(1..=ENTRIES_MAX).contains(&config.entries) {
            return Err(SlotError::EntryCount(config.entries));
        }
        let credit = match (config.mode, config.credit) {
            (Mode::ParanoidOneShot, Some(credit)) if credit != config.entries => {
                return Err(SlotError::WrongMode {
                    mode: config.mode,
                    why: "a one-shot slot's credit is one for each metadata entry",
                });
            }
            (_, Some(credit)) => credit,
            (_, None) => config.entries,
        };
        let share = self.queue_mut(config.queue)?.producer.attach(credit)?;
        let generation = self.next_generation();
        self.forget_retired();
        let retired = &self.retired;
        let index =
            free_place(&self.slots, |index| retired.iter().all(|retired| retired.index != index));
        // An entry of a normal slot has no key, a paranoid slot none beside those of its entries.
        let closed = self.keys.nobodys();
        let (key, state) = match config.mode {
            Mode::Normal => (self.keys.make(index, None), EntryState::Open),
            Mode::Paranoid | Mode::ParanoidOneShot => (closed, EntryState::Closed),
        };
        let entries = (0..config.entries).map(|_| MetadataEntry::new(state, closed)).collect();
        put(
            &mut self.slots,
            index,
            Slot {
                key,
                base: start,
                size: end - start,
                area: config.area.index,
                queue: config.queue,
                share,
                mode: config.mode,
                generation,
                entries,
                receiver: None,
            },
        );
        self.area_slots(config.area.index, |slots| slots + 1);
        let id = SlotId { index, generation };
        self.queue_mut(config.queue)?.producer.name(share, id);
        Ok(id)
    }

    fn area_slots(&mut self, area: u32, change: impl Fn(usize) -> usize) {
        if let Some(Some(area)) = self.areas.get_mut(area as usize) {
            area.slots = change(area.slots);
        }
    }

    /// Removes a slot: packets for it are refused from now on. Notifications that wait stay; a
    /// receiver that was installed is dropped.
    pub fn remove_slot(&mut self, id: SlotId) -> Result<(), SlotError> {
        let slot = self.slot_mut(id)?;
        let (area, queue, share) = (slot.area, slot.queue, slot.share);
        self.slots[id.index as usize] = None;
        self.area_slots(area, |slots| slots - 1);
        if let Ok(queue) = self.queue_mut(queue) {
            queue.producer.detach(share);
        }
        self.retired.push(Retired { index: id.index, queue, share });
        self.forget_retired();
        Ok(())
    }

    fn forget_retired(&mut self) {
        let queues = &self.queues;
        self.retired.retain(|retired| match queues.get(retired.queue.index() as usize) {
            Some(Some(queue)) if queue.generation == retired.queue.generation() => {
                queue.producer.outstanding(retired.share as usize) > 0
            }
            _ => false,
        });
    }

    /// The number of slots.
    pub fn slot_count(&self) -> usize {
        self.slots.iter().flatten().count()
    }

    /// Changes the key of a slot. Tickets with the old key are worthless at once, also for
    /// packets that have left their sender.
    pub fn change_key(&mut self, id: SlotId) -> Result<(), SlotError> {
        if self.slot_mut(id)?.mode == Mode::Normal {
            let key = self.keys.make(id.index, None);
            self.slot_mut(id)?.key = key;
        }
        Ok(())
    }

    /// Whether the packet bears a key that a ticket for its slot and entry has had, be it one that
    /// counts now or one that did earlier, also of a slot that has been removed. Its sender does not
    /// guess.
    #[cold]
    pub fn had_ticket(&self, header: &Header) -> bool {
        self.keys.has_made(header.slot, header.metadata_index, header.key)
    }

    /// A metadata entry of a slot.
    pub fn entry(&self, id: SlotId, index: MetadataIndex) -> Result<&MetadataEntry, SlotError> {
        let slot = self.slot(id)?;
        slot.entries
            .get(index.0 as usize)
            .ok_or(SlotError::NoSuchEntry { index, entries: slot.entries.len() as u32 })
    }

    /// Prepares an entry for the next message: zeroes its accumulator, and in paranoid slots sets
    /// its limits (bytes from the slot's base), changes its key and opens it. Packets of an unfinished
    /// message are refused from now on, because the key is another. In normal mode `limits` must be
    /// `None`: there the slot's key protects, and only [`change_key`](Self::change_key) keeps
    /// stragglers out.
    pub fn arm_entry(
        &mut self,
        id: SlotId,
        index: MetadataIndex,
        limits: Option<Range<u64>>,
    ) -> Result<(), SlotError> {
        self.slot_mut(id)?;
        let Some(Some(slot)) = self.slots.get_mut(id.index as usize) else {
            return Err(SlotError::NoSuchSlot(id));
        };
        let (mode, size, entries) = (slot.mode, slot.size, slot.entries.len() as u32);
        let entry = slot
            .entries
            .get_mut(index.0 as usize)
            .ok_or(SlotError::NoSuchEntry { index, entries })?;
        match (mode, limits) {
            (Mode::Normal, None) => {}
            (Mode::Normal, Some(_)) => {
                return Err(SlotError::WrongMode {
                    mode,
                    why: "its entries have no key or limits",
                });
            }
            (_, None) => {
                return Err(SlotError::WrongMode { mode, why: "its entries need limits" });
            }
            (_, Some(Range { start, end })) => {
                if start > end || end > size {
                    return Err(SlotError::LimitsOutsideSlot { start, end, size });
                }
                entry.set_key(self.keys.make(id.index, Some(index.0)));
                (entry.low, entry.high) = (start, end);
            }
        }
        entry.open();
        Ok(())
    }

    /// Opens a one-shot entry whose message is complete for the next one, with the same key and
    /// limits, so that tickets that were handed out are valid again. A message of several packets
    /// that was sent meanwhile may be half refused and half on its way, and would spoil the count
    /// of the next: senders that do not wait for the receiver's word need a
    /// [shared](Self::share_entry) entry. An open entry stays unchanged.
    pub fn reopen_entry(&mut self, id: SlotId, index: MetadataIndex) -> Result<(), SlotError> {
        let slot = self.slot_mut(id)?;
        let (mode, entries) = (slot.mode, slot.entries.len() as u32);
        if mode != Mode::ParanoidOneShot {
            return Err(SlotError::WrongMode {
                mode,
                why: "its entries do not close by themselves",
            });
        }
        let entry = slot
            .entries
            .get_mut(index.0 as usize)
            .ok_or(SlotError::NoSuchEntry { index, entries })?;
        if entry.state == EntryState::Closed {
            entry.open();
        }
        Ok(())
    }

    /// Lets several senders, each on its own link, use the ticket of a one-shot entry at any time:
    /// a complete message in the entry comes from one link. Of messages of several packets the one
    /// that began last counts; the packets of a message that another overtook, or that began while
    /// the entry was closed, are refused until the sum of its deltas is zero (2.5). A message that
    /// has half arrived is dropped. The entry stays shared.
    pub fn share_entry(&mut self, id: SlotId, index: MetadataIndex) -> Result<(), SlotError> {
        let links = self.links;
        let slot = self.slot_mut(id)?;
        let (mode, entries) = (slot.mode, slot.entries.len() as u32);
        if mode != Mode::ParanoidOneShot {
            return Err(SlotError::WrongMode { mode, why: "its entries take any message" });
        }
        let entry = slot
            .entries
            .get_mut(index.0 as usize)
            .ok_or(SlotError::NoSuchEntry { index, entries })?;
        entry.senders = Some(Box::new(EntrySenders::new(links)));
        if entry.state != EntryState::Closed {
            entry.open();
        }
        Ok(())
    }

    /// Prepares for links with indices below `links`. From other links a shared entry takes only
    /// messages of one packet, because accepting allocates nothing.
    pub fn reserve_links(&mut self, links: usize) {
        if links <= self.links {
            return;
        }
        // Doubled, because every shared entry becomes longer.
        self.links = links.next_power_of_two();
        let entries = self.slots.iter_mut().flatten().flat_map(|slot| slot.entries.iter_mut());
        for senders in entries.filter_map(|entry| entry.senders.as_mut()) {
            senders.reserve(self.links);
        }
    }

    /// Refuses further packets for a paranoid entry: nobody holds its key any more.
    pub fn close_entry(&mut self, id: SlotId, index: MetadataIndex) -> Result<(), SlotError> {
        let closed = self.keys.nobodys();
        let slot = self.slot_mut(id)?;
        let (mode, entries) = (slot.mode, slot.entries.len() as u32);
        if mode == Mode::Normal {
            return Err(SlotError::WrongMode { mode, why: "its entries have no key of their own" });
        }
        let entry = slot
            .entries
            .get_mut(index.0 as usize)
            .ok_or(SlotError::NoSuchEntry { index, entries })?;
        entry.set_key(closed);
        entry.state = EntryState::Closed;
        Ok(())
    }

    /// Stores the application's word beside an entry (Table 2: the receive class pointer).
    pub fn set_receiver(
        &mut self,
        id: SlotId,
        index: MetadataIndex,
        receiver: u64,
    ) -> Result<(), SlotError> {
        let slot = self.slot_mut(id)?;
        let entries = slot.entries.len() as u32;
        let entry = slot
            .entries
            .get_mut(index.0 as usize)
            .ok_or(SlotError::NoSuchEntry { index, entries })?;
        entry.receiver = receiver;
        Ok(())
    }

    /// The ticket that sends one message to an entry: the whole counter, notify and wake.
    pub fn ticket(&self, id: SlotId, index: MetadataIndex) -> Result<Ticket, SlotError> {
        let slot = self.slot(id)?;
        let entry = self.entry(id, index)?;
        if entry.state == EntryState::Closed {
            return Err(SlotError::NotArmed(index));
        }
        let (key, base, bound) = match slot.mode {
            Mode::Normal => (slot.key, 0, slot.size),
            Mode::Paranoid | Mode::ParanoidOneShot => (entry.key, entry.low, entry.high),
        };
        Ok(self.make_ticket(id, index, key, base..bound))
    }

    /// The ticket that sends single packets in fast mode (2.7), any number of them.
    pub fn fast_ticket(&self, id: SlotId) -> Result<Ticket, SlotError> {
        let slot = self.slot(id)?;
        if slot.mode != Mode::Normal {
            let why = "paranoid slots take no fast packets";
            return Err(SlotError::WrongMode { mode: slot.mode, why });
        }
        Ok(self.make_ticket(id, MetadataIndex::FAST, slot.key, 0..slot.size))
    }

    fn make_ticket(&self, id: SlotId, index: MetadataIndex, key: Key, range: Range<u64>) -> Ticket {
        Ticket {
            destination: self.id,
            slot: SlotIndex(id.index),
            metadata_index: index,
            key,
            base: range.start,
            bound: range.end,
            flags: Flags::NOTIFY | Flags::WAKE,
            share: Share::WHOLE,
        }
    }

    /// Area and range of a slot, in bytes from the start of the area.
    pub fn slot_range(&self, id: SlotId) -> Result<(AreaId, Range<u64>), SlotError> {
        let slot = self.slot(id)?;
        let generation = match self.areas.get(slot.area as usize) {
            Some(Some(area)) => area.generation,
            _ => return Err(SlotError::NoSuchSlot(id)),
        };
        Ok((AreaId { index: slot.area, generation }, slot.base..slot.base + slot.size))
    }

    /// The mode of a slot.
    pub fn slot_mode(&self, id: SlotId) -> Result<Mode, SlotError> {
        self.slot(id).map(|slot| slot.mode)
    }

    #[inline]
    pub(super) fn slot(&self, id: SlotId) -> Result<&Slot, SlotError> {
        match self.slots.get(id.index as usize) {
            Some(Some(slot)) if slot.generation == id.generation => Ok(slot),
            _ => Err(SlotError::NoSuchSlot(id)),
        }
    }

    #[inline]
    pub(super) fn slot_mut(&mut self, id: SlotId) -> Result<&mut Slot, SlotError> {
        // Any change there may matter, so packets are checked whole again.
        self.epoch += 1;
        match self.slots.get_mut(id.index as usize) {
            Some(Some(slot)) if slot.generation == id.generation => Ok(slot),
            _ => Err(SlotError::NoSuchSlot(id)),
        }
    }
}

/// The first free place that may be used.
fn free_place<T>(places: &[Option<T>], may_use: impl Fn(u32) -> bool) -> u32 {
    let free = (0..places.len()).find(|i| places[*i].is_none() && may_use(*i as u32));
    free.unwrap_or(places.len()) as u32
}

/// Puts `value` into a [free place](free_place).
fn put<T>(places: &mut Vec<Option<T>>, index: u32, value: T) {
    match places.get_mut(index as usize) {
        Some(place) => *place = Some(value),
        None => places.push(Some(value)),
    }
}

/// Puts `value` into the first free place.
fn insert<T>(places: &mut Vec<Option<T>>, value: T) -> u32 {
    let index = free_place(places, |_| true);
    put(places, index, value);
    index
}
