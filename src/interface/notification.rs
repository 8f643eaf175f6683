//! Notification queues (Hamlyn 2.6, Table 3).
//!
//! ```text
//!   interface                                   application
//!   push()     ---- wrap flag of the entry --->  pop()
//!   has_credit <--- CONSUMED of the share -----  pop()
//! ```
//! The queue is written by the interface alone and read by the application alone, which may be
//! another thread. Wrap flag: Release/Acquire: the entry is complete. It is toggled each time the
//! cursor passes the queue's end, so that an old entry is never taken for a new one.
//! CONSUMED: Release/Acquire: these entries may be written again.
//!
//! Attaching a slot reserves entries, its *credit*. A packet that would notify beyond the credit
//! is refused before its deposit; so the queue is never overrun, which the paper leaves to
//! discipline. Never: two slots' reservations add to more than the queue has.

use super::{LinkId, SlotId};
use crate::link::cells::{AtomicU64, Ordering};
use crate::wire::MetadataIndex;
use alloc::{boxed::Box, sync::Arc, vec::Vec};

/// A notification queue of one interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
// One word, as it is compared on the path of a message.
pub struct QueueId(u64);

impl core::fmt::Display for QueueId {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "queue {}", self.index())
    }
}

impl QueueId {
    /// As a number, for languages that cannot hold this type.
    #[inline]
    pub fn to_bits(self) -> u64 {
        self.0
    }

    /// From [`to_bits`](Self::to_bits). A number that names no queue here is refused on use, like
    /// the id of a removed queue.
    #[inline]
    pub fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// `generation` distinguishes it from earlier queues at this index.
    pub(crate) fn new(index: u32, generation: u32) -> Self {
        Self((index as u64) << 32 | generation as u64)
    }

    #[inline]
    pub(crate) fn index(self) -> u32 {
        (self.0 >> 32) as u32
    }

    #[inline]
    pub(crate) fn generation(self) -> u32 {
        self.0 as u32
    }
}

/// Most entries of a queue.
pub const QUEUE_ENTRIES_MAX: u32 = 1 << 22;

/// A queue cannot be made or used as asked. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[cfg_attr(not(feature = "unstable-internals"), non_exhaustive)]
pub enum QueueError {
    /// No such queue, or one that was removed.
    #[error("{0} does not exist: it was removed, or belongs to another interface")]
    NoSuchQueue(QueueId),
    /// Size not allowed.
    #[error("a notification queue has from 1 to {max} entries, and {0} were asked for", max = QUEUE_ENTRIES_MAX)]
    Size(u32),
    /// The slot's credit does not fit.
    #[error(
        "the slot needs {needed} entries of the notification queue, which has {free} of {entries} left"
    )]
    NotEnoughEntries {
        /// The credit asked for.
        needed: u32,
        /// Entries not reserved.
        free: u32,
        /// Entries of the queue.
        entries: u32,
    },
    /// Slots still use it.
    #[error("{0} is used by slots; remove them first")]
    InUse(QueueId),
    /// Its consuming end is with another thread.
    #[error("{0} has been handed to another thread, which alone may take from it")]
    ConsumerTaken(QueueId),
}

/// A message has arrived (Table 3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "unstable-internals"), non_exhaustive)]
pub struct Notification {
    /// The slot that it arrived in, for [`metadata`](crate::Node::metadata),
    /// [`arm`](crate::Node::arm) and the like. If the slot has been removed meanwhile, they return
    /// an error, even if another slot has taken its index.
    pub slot: SlotId,
    /// Its metadata entry, or [`MetadataIndex::FAST`].
    pub index: MetadataIndex,
    /// In fast mode the word that the packet carried (2.7); else 0.
    pub word: u32,
    /// The link over which the packet that completed the message came.
    pub link: LinkId,
}

impl Notification {
    /// Whether this is for `slot`.
    pub fn is_for(&self, slot: SlotId) -> bool {
        self.slot == slot
    }
}

const WRAP: u64 = 1;
const FAST: u64 = 2;
const SHARE_SHIFT: u32 = 2;
const SHARE_BITS: u32 = 30;
const _: () = assert!((QUEUE_ENTRIES_MAX as u64) < 1 << SHARE_BITS);

/// Word 0: wrap flag, fast flag, share. Word 1: metadata index or fast word, link.
#[derive(Debug)]
struct Cells {
    entries: Box<[[AtomicU64; 2]]>,
    shares: Box<[ShareCells]>,
}

/// `slot` is written before the first entry of the share, and changes only when all entries of the
/// share have been taken. So a consumer that takes an entry reads there the slot that it belongs
/// to.
#[derive(Debug, Default)]
struct ShareCells {
    consumed: AtomicU64,
    slot: AtomicU64,
}

#[derive(Debug, Clone, Copy, Default)]
struct ShareState {
    credit: u32,
    notified: u64,
    attached: bool,
}

/// The interface's end of a queue: the NQCB of the paper.
#[derive(Debug)]
pub struct Producer {
    cells: Arc<Cells>,
    cursor: usize,
    wrap: u64,
    shares: Vec<ShareState>,
}

/// The application's end of a queue.
#[derive(Debug)]
pub struct Consumer {
    cells: Arc<Cells>,
    cursor: usize,
    wrap: u64,
}

/// A read-only view of a queue, for any thread. Its counts are a moment old: notifications that are
/// taken during a look may count as waiting or not.
#[derive(Clone, Debug)]
pub struct QueueView {
    cells: Arc<Cells>,
}

impl QueueView {
    /// The number of notifications that wait, and of those that were taken.
    pub fn count(&self) -> (u64, u64) {
        let (waiting, _, taken) = self.sum(|_, _| 0);
        (waiting, taken)
    }

    /// The number of notifications that wait, the sum of `of` over them (its arguments: whether the
    /// notification is in fast mode, and its index or fast word), and the number that were taken.
    pub fn sum(&self, of: impl Fn(bool, u32) -> u64) -> (u64, u64, u64) {
        let entries = self.cells.entries.len() as u64;
        // All shares that there can be: a look may take its time.
        let shares = self.cells.shares.iter();
        let taken = shares.map(|share| share.consumed.load(Ordering::Acquire)).sum::<u64>();
        let (mut waiting, mut sum) = (0, 0u64);
        // Never twice around, however fast the other threads are.
        while waiting < entries {
            let at = taken + waiting;
            let wrap = if (at / entries).is_multiple_of(2) { WRAP } else { 0 };
            let [first, second] = &self.cells.entries[(at % entries) as usize];
            let first = first.load(Ordering::Acquire);
            if first & WRAP != wrap {
                break;
            }
            sum = sum.saturating_add(of(first & FAST != 0, second.load(Ordering::Relaxed) as u32));
            waiting += 1;
        }
        (waiting, sum, taken)
    }
}

/// A queue of `entries` entries, from 1 to [`QUEUE_ENTRIES_MAX`].
pub fn queue(entries: u32) -> Result<(Producer, Consumer), QueueError> {
    if !(1..=QUEUE_ENTRIES_MAX).contains(&entries) {
        return Err(QueueError::Size(entries));
    }
    let cells = Arc::new(Cells {
        entries: (0..entries).map(|_| [AtomicU64::new(0), AtomicU64::new(0)]).collect(),
        shares: (0..entries).map(|_| ShareCells::default()).collect(),
    });
    let producer = Producer { cells: cells.clone(), cursor: 0, wrap: WRAP, shares: Vec::new() };
    Ok((producer, Consumer { cells, cursor: 0, wrap: WRAP }))
}

impl Producer {
    /// A view for a reader that takes no notification.
    pub(crate) fn watch(&self) -> QueueView {
        QueueView { cells: self.cells.clone() }
    }

    /// Entries of a share that have been written and not been taken.
    pub(crate) fn outstanding(&self, share: usize) -> u64 {
        self.shares[share].notified - self.cells.shares[share].consumed.load(Ordering::Acquire)
    }

    /// Entries that no slot has reserved. A slot that has left keeps its entries until they are
    /// consumed.
    pub fn free(&self) -> u32 {
        let reserved: u64 = (0..self.shares.len())
            .map(|i| match self.shares[i] {
                ShareState { attached: true, credit, .. } => credit as u64,
                _ => self.outstanding(i),
            })
            .sum();
        (self.cells.entries.len() as u64 - reserved) as u32
    }

    /// Entries of the queue.
    pub fn entries(&self) -> u32 {
        self.cells.entries.len() as u32
    }

    /// Whether slots are attached.
    pub fn is_used(&self) -> bool {
        self.shares.iter().any(|share| share.attached)
    }

    /// Reserves `credit` entries for a slot, which [`name`](Self::name) sets before the first
    /// entry.
    pub fn attach(&mut self, credit: u32) -> Result<u32, QueueError> {
        let free = self.free();
        if credit > free {
            let entries = self.entries();
            return Err(QueueError::NotEnoughEntries { needed: credit, free, entries });
        }
        let unused = |i: &usize| !self.shares[*i].attached && self.outstanding(*i) == 0;
        let share = match (0..self.shares.len()).find(unused) {
            Some(i) => i,
            None if self.shares.len() < self.cells.shares.len() => {
                self.shares.push(ShareState::default());
                self.shares.len() - 1
            }
            // As many slots as entries, each of credit 0.
            None => {
                let entries = self.entries();
                return Err(QueueError::NotEnoughEntries { needed: 1, free: 0, entries });
            }
        };
        self.shares[share].credit = credit;
        self.shares[share].attached = true;
        Ok(share as u32)
    }

    /// Sets the slot of `share`. No entry of it waits: it was just attached.
    pub fn name(&mut self, share: u32, slot: SlotId) {
        // Release by the first entry's wrap flag. The consumer of the previous slot's last entry
        // has read the name by then, since `attach` has acquired its CONSUMED.
        let words = slot.index as u64 | (slot.generation as u64) << 32;
        self.cells.shares[share as usize].slot.store(words, Ordering::Relaxed);
    }

    /// Gives the reservation back, except for entries that are not yet consumed.
    pub fn detach(&mut self, share: u32) {
        self.shares[share as usize].attached = false;
    }

    /// Whether a notification for `share` fits into its reservation.
    #[inline]
    pub fn has_credit(&self, share: u32) -> bool {
        let state = &self.shares[share as usize];
        state.notified - self.cells.shares[share as usize].consumed.load(Ordering::Acquire)
            < state.credit as u64
    }

    /// Appends an entry, of the slot whose `share` is. The caller has seen
    /// [`has_credit`](Self::has_credit).
    #[inline]
    pub fn push(&mut self, share: u32, notification: &Notification) {
        self.shares[share as usize].notified += 1;
        let fast = notification.index == MetadataIndex::FAST;
        let low = if fast { notification.word } else { notification.index.0 };
        let link =
            notification.link.index as u64 & 0xffff | (notification.link.generation as u64) << 16;
        let entry = &self.cells.entries[self.cursor];
        entry[1].store(low as u64 | link << 32, Ordering::Relaxed);
        entry[0].store(
            self.wrap | if fast { FAST } else { 0 } | (share as u64) << SHARE_SHIFT,
            Ordering::Release,
        );
        self.cursor += 1;
        if self.cursor == self.cells.entries.len() {
            self.cursor = 0;
            self.wrap ^= WRAP;
        }
    }
}

impl Consumer {
    /// Whether an entry waits. One load.
    #[inline]
    pub fn is_ready(&self) -> bool {
        self.cells.entries[self.cursor][0].load(Ordering::Acquire) & WRAP == self.wrap
    }

    /// Takes the next entry, and gives its credit back.
    #[inline]
    pub fn pop(&mut self) -> Option<Notification> {
        let entry = &self.cells.entries[self.cursor];
        let first = entry[0].load(Ordering::Acquire);
        if first & WRAP != self.wrap {
            return None;
        }
        let second = entry[1].load(Ordering::Relaxed);
        self.cursor += 1;
        if self.cursor == self.cells.entries.len() {
            self.cursor = 0;
            self.wrap ^= WRAP;
        }
        let share = (first as u32 >> SHARE_SHIFT) as usize;
        let ShareCells { consumed, slot } = &self.cells.shares[share];
        let slot = slot.load(Ordering::Relaxed);
        // In the order of memory, so that it is copied as a word.
        let slot = SlotId { index: slot as u32, generation: (slot >> 32) as u32 };
        consumed.store(consumed.load(Ordering::Relaxed) + 1, Ordering::Release);
        let fast = first & FAST != 0;
        Some(Notification {
            slot,
            index: if fast { MetadataIndex::FAST } else { MetadataIndex(second as u32) },
            word: if fast { second as u32 } else { 0 },
            link: LinkId {
                index: (second >> 32) as u32 & 0xffff,
                generation: (second >> 48) as u16,
            },
        })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const SLOT: SlotId = SlotId { index: 9, generation: 1 };

    /// As the interface does it.
    fn attach(producer: &mut Producer, credit: u32, slot: SlotId) -> Result<u32, QueueError> {
        let share = producer.attach(credit)?;
        producer.name(share, slot);
        Ok(share)
    }

    fn note(index: u32) -> Notification {
        Notification {
            slot: SLOT,
            index: MetadataIndex(index),
            word: 0,
            link: LinkId { index: 65535, generation: 3 },
        }
    }

    #[test]
    fn entries_come_out_in_order_across_many_wraps() {
        let (mut producer, mut consumer) = queue(3).unwrap();
        let share = attach(&mut producer, 3, SLOT).unwrap();
        for i in 0..100 {
            assert!(producer.has_credit(share));
            producer.push(share, &note(i));
            assert_eq!(consumer.pop(), Some(note(i)));
            assert_eq!(consumer.pop(), None);
        }
    }

    #[test]
    fn what_waits_is_seen_by_whoever_takes_nothing_across_many_wraps() {
        let (mut producer, mut consumer) = queue(3).unwrap();
        let watch = producer.watch();
        // Of two slots.
        let shares = [1, 2].map(|credit| attach(&mut producer, credit, SLOT).unwrap());
        assert_eq!(watch.sum(|_, word| word.into()), (0, 0, 0));
        for taken in 0..20 {
            for waiting in 1..=3 {
                let share = shares[usize::from(waiting > 1)];
                assert!(producer.has_credit(share));
                producer.push(share, &note(10));
                assert_eq!(watch.sum(|_, word| word.into()), (waiting, 10 * waiting, 3 * taken));
            }
            (0..3).for_each(|_| assert!(consumer.pop().is_some()));
        }
        assert_eq!(watch.count(), (0, 60));
    }

    #[test]
    fn credit_is_used_up_and_comes_back() {
        let (mut producer, mut consumer) = queue(4).unwrap();
        let a = attach(&mut producer, 1, SLOT).unwrap();
        let b = attach(&mut producer, 3, SLOT).unwrap();
        assert!(matches!(producer.attach(1), Err(QueueError::NotEnoughEntries { free: 0, .. })));
        producer.push(a, &note(0));
        assert!(!producer.has_credit(a) && producer.has_credit(b));
        consumer.pop().unwrap();
        assert!(producer.has_credit(a));
    }

    #[test]
    fn a_slot_that_left_keeps_what_is_not_consumed() {
        let (mut producer, mut consumer) = queue(2).unwrap();
        let a = attach(&mut producer, 2, SLOT).unwrap();
        producer.push(a, &note(0));
        producer.detach(a);
        assert_eq!(producer.free(), 1);
        assert!(producer.attach(2).is_err());
        assert_eq!(consumer.pop(), Some(note(0)));
        // The slot that has its share now has another name.
        let next = SlotId { generation: 2, ..SLOT };
        assert_eq!(attach(&mut producer, 2, next), Ok(a));
        producer.push(a, &Notification { slot: next, ..note(1) });
        assert_eq!(consumer.pop(), Some(Notification { slot: next, ..note(1) }));
    }

    #[test]
    fn the_fast_word_takes_the_place_of_the_index() {
        let (mut producer, mut consumer) = queue(1).unwrap();
        let share = attach(&mut producer, 1, SLOT).unwrap();
        let fast = Notification { index: MetadataIndex::FAST, word: u32::MAX, ..note(0) };
        producer.push(share, &fast);
        assert_eq!(consumer.pop(), Some(fast));
    }
}
