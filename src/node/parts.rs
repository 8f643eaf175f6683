//! The parts of a node's interface: message areas, notification queues, slots and their tickets,
//! termini and send buffer areas.
//!
//! The interface decides whether a change is allowed, with its own errors. Never: there are more
//! areas, slots or bytes than the settings allow; a key is used twice.

use super::{Forked, NoSuchAperture, Node, TerminusId};
use crate::interface::notification::{Consumer, QueueView};
use crate::interface::terminus::{BufferTag, PostError, Terminus};
use crate::interface::{
    AreaError, AreaId, Filter, MetadataEntry, QueueError, QueueId, Receiver, SlotConfig, SlotError,
    SlotId,
};
use crate::os::aperture::AreaView;
use crate::os::memory::{AreaMemory, AreaPages, AreaReport};
use crate::wire::{MetadataIndex, Ticket};
use core::ops::Range;
use std::boxed::Box;
use std::io;

/// A message area that could not be made. Nothing was changed.
#[derive(Debug, thiserror::Error)]
#[cfg_attr(not(feature = "unstable-internals"), non_exhaustive)]
pub enum MemoryError {
    /// Nothing to hold.
    #[error("a message area has at least 1 byte, and 0 were asked for")]
    Empty,
    /// The system refused.
    #[error("a message area of {bytes} bytes could not be had: {error}")]
    Os {
        /// Bytes asked for.
        bytes: usize,
        /// The system's error.
        error: io::Error,
    },
    /// As many areas as the configuration allows.
    #[error(transparent)]
    Area(#[from] AreaError),
    /// More bytes than the configuration allows.
    #[error(
        "an area of {bytes} bytes beside the {used} in use exceeds the limit of {limit} (HAMLYN_AREA_BYTES_MAX)"
    )]
    TooManyBytes {
        /// Bytes asked for.
        bytes: usize,
        /// Bytes of the areas that exist.
        used: usize,
        /// The limit.
        limit: usize,
    },
    /// The terminus has no tag left, or does not exist.
    #[error(transparent)]
    Post(#[from] PostError),
    /// There is no such aperture to [reclaim](Node::reclaim_aperture).
    #[error(transparent)]
    Aperture(#[from] NoSuchAperture),
    /// The calling process is a forked child, and the memory is an aperture's.
    #[error(transparent)]
    Forked(#[from] Forked),
}

impl Node {
    // ---- message areas

    /// Whether the settings allow `bytes` more.
    fn check_bytes(&self, bytes: usize) -> Result<(), MemoryError> {
        let limit = usize::try_from(self.config.area_bytes_max).unwrap_or(usize::MAX);
        let used = self.area_bytes;
        if bytes == 0 {
            return Err(MemoryError::Empty);
        }
        if bytes > limit.saturating_sub(used) {
            return Err(MemoryError::TooManyBytes { bytes, used, limit });
        }
        Ok(())
    }

    pub(crate) fn new_memory(&mut self, bytes: usize) -> Result<AreaMemory, MemoryError> {
        self.check_bytes(bytes)?;
        let memory = AreaMemory::new(bytes, self.config.huge_pages, self.config.mlock)
            .map_err(|error| MemoryError::Os { bytes, error })?;
        self.area_bytes += bytes;
        Ok(memory)
    }

    /// The library's view of the application's pages, counted as memory of areas.
    fn memory_of(&mut self, pages: AreaPages) -> Result<AreaMemory, MemoryError> {
        self.check_bytes(pages.bytes())?;
        let memory = AreaMemory::of_pages(pages, self.config.huge_pages, self.config.mlock);
        self.area_bytes += memory.as_ref().len();
        Ok(memory)
    }

    /// A message area of `bytes` zero bytes, beginning on a page. Locked and with huge pages if the
    /// settings ask for it; [`area_report`](Self::area_report) returns the grants.
    pub fn message_area(&mut self, bytes: usize) -> Result<AreaId, MemoryError> {
        self.check_areas()?;
        let memory = self.new_memory(bytes)?;
        Ok(self.interface.create_area(memory))
    }

    /// A message area over pages of the application, with their current contents. They keep their
    /// own address, where the application may protect them at any time: messages are deposited, and
    /// sent, through a view of the library's, so no deposit causes a fault. Locked like a
    /// [`message_area`](Self::message_area). On an error the library's view is unmapped; the
    /// application's stays.
    ///
    /// `examples/shared_memory.rs` fetches pages by messages when they are touched.
    pub fn message_area_of(&mut self, pages: AreaPages) -> Result<AreaId, MemoryError> {
        self.check_areas()?;
        let memory = self.memory_of(pages)?;
        Ok(self.interface.create_area(memory))
    }

    /// A message area of `bytes` zero bytes that any thread reads through the view, without the
    /// node, while packets land: for a program that polls words of its own memory. Otherwise like
    /// [`message_area`](Self::message_area), except that its memory is in pages of a file, which is
    /// never in reserved huge pages. Each page is charged when it is first written or read.
    ///
    /// ```
    /// # let dir = std::env::temp_dir().join(format!("hamlyn-doc-watched-{}", std::process::id()));
    /// use hamlyn::{AreaView, Node, SlotConfig};
    /// # use std::time::Duration;
    ///
    /// # let config = hamlyn::Config::from_env()?.dir(&dir);
    /// let mut node = Node::with_config(config)?;
    /// let (area, view): (_, AreaView) = node.watched_area(4096)?;
    /// let queue = node.notification_queue(1)?;
    /// let slot = node.slot(SlotConfig::new(area, queue))?;
    /// let ticket = node.fast_ticket(slot)?.silent();
    /// std::thread::scope(|scope| {
    ///     let seen = scope.spawn(|| {
    ///         while view.load_u64(8).unwrap() == 0 {}
    ///         let mut bytes = [0; 4];
    ///         view.read(8, &mut bytes).unwrap();
    ///         (bytes, view.load_u32(8).unwrap(), view.bytes())
    ///     });
    ///     node.try_send_fast(&ticket.at(8).unwrap(), &7u64.to_le_bytes(), 0).unwrap();
    ///     while !seen.is_finished() {
    ///         node.poll().unwrap();
    ///     }
    ///     assert_eq!(seen.join().unwrap(), ([7, 0, 0, 0], 7, 4096));
    /// });
    /// assert_eq!(node.area(area)?[8], 7);
    /// # drop(node);
    /// # std::fs::remove_dir_all(&dir).ok();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn watched_area(&mut self, bytes: usize) -> Result<(AreaId, AreaView), MemoryError> {
        self.check_areas()?;
        self.check_bytes(bytes)?;
        let (pages, view) =
            AreaView::make(bytes).map_err(|error| MemoryError::Os { bytes, error })?;
        let memory = self.memory_of(pages)?;
        Ok((self.interface.create_area(memory), view))
    }

    fn check_areas(&self) -> Result<(), AreaError> {
        let count = self.interface.area_count();
        if count >= self.config.areas_max as usize {
            return Err(AreaError::TooMany(count));
        }
        Ok(())
    }

    /// Gives an area's memory back. Refused while slots name it. For [pages of the
    /// application](Self::message_area_of), only the library's view ends.
    ///
    /// ```
    /// # let dir = std::env::temp_dir().join(format!("hamlyn-doc-remove-{}", std::process::id()));
    /// use hamlyn::{AreaId, Node, QueueId, SlotConfig, SlotId};
    ///
    /// # let config = hamlyn::Config::from_env()?.dir(&dir);
    /// let mut node = Node::with_config(config)?;
    /// let (area, queue) = (node.message_area(8192)?, node.notification_queue(1)?);
    /// let slot = node.slot(SlotConfig::new(area, queue).range(4096..8192))?;
    /// node.area_mut(area)?[0] = 7;
    /// assert_eq!(node.area_address(area)?.1, 8192);
    /// assert_eq!(node.slot_range(slot)?, (area, 4096..8192));
    /// println!("slot {}: {:?}", slot.index().0, node.area_report(area)?);
    /// // Each is a number, too, for use in another language.
    /// node.remove_slot(SlotId::from_bits(slot.to_bits()))?;
    /// node.remove_queue(QueueId::from_bits(queue.to_bits()))?;
    /// node.remove_area(AreaId::from_bits(area.to_bits()))?;
    /// assert!(node.area(area).is_err());
    /// # drop(node);
    /// # std::fs::remove_dir_all(&dir).ok();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn remove_area(&mut self, area: AreaId) -> Result<(), AreaError> {
        self.take_area(area).map(drop)
    }

    /// Takes an area's memory out of the interface. Refused while slots name it.
    pub(crate) fn take_area(&mut self, area: AreaId) -> Result<AreaMemory, AreaError> {
        let memory = self.interface.remove_area(area)?;
        self.area_bytes -= memory.as_ref().len();
        Ok(memory)
    }

    /// Memory of [`new_memory`](Self::new_memory) that belongs to no area is no longer needed.
    pub(crate) fn drop_memory(&mut self, memory: AreaMemory) {
        self.area_bytes -= memory.as_ref().len();
    }

    /// Replaces the memory of a slot that alone uses the whole of its area, and returns the old
    /// memory; see [`Interface::replace_memory`].
    pub(crate) fn replace_memory(
        &mut self,
        slot: SlotId,
        memory: AreaMemory,
    ) -> Result<AreaMemory, SlotError> {
        self.interface.replace_memory(slot, memory)
    }

    /// The bytes of an area. They are stable while they are borrowed: deposits happen in calls of
    /// `poll`, `recv` and `send`, which need the node for themselves.
    #[inline]
    pub fn area(&self, area: AreaId) -> Result<&[u8], AreaError> {
        self.interface.area(area)
    }

    /// The bytes of an area, for writing.
    #[inline]
    pub fn area_mut(&mut self, area: AreaId) -> Result<&mut [u8], AreaError> {
        self.interface.area_mut(area)
    }

    /// The address of an area, and its length, for other languages. The address holds until the
    /// area is removed or the node goes. (For pages of the application, this is the library's view,
    /// which is never protected.) The bytes change in calls of `poll`, `recv` and `send` of any
    /// thread: do not access bytes for which a message may be on its way.
    pub fn area_address(&self, area: AreaId) -> Result<(*mut u8, usize), AreaError> {
        let memory = self.interface.area_memory(area)?;
        Ok((memory.address(), memory.as_ref().len()))
    }

    /// Whether huge pages and wiring were granted for an area.
    pub fn area_report(&self, area: AreaId) -> Result<&AreaReport, AreaError> {
        self.interface.area_memory(area).map(AreaMemory::report)
    }

    // ---- notification queues

    /// A notification queue of `entries` entries (Hamlyn 2.6).
    pub fn notification_queue(&mut self, entries: u32) -> Result<QueueId, QueueError> {
        self.interface.create_queue(entries)
    }

    /// Hands the taking end of a queue to another thread: it takes notifications without a lock
    /// and without this node, while this thread, or the progress thread, polls.
    ///
    /// ```
    /// # let dir = std::env::temp_dir().join(format!("hamlyn-doc-consumer-{}", std::process::id()));
    /// use hamlyn::{Consumer, MetadataIndex, Node, Notification, SlotConfig};
    /// # use std::time::Duration;
    ///
    /// # let limit = Some(Duration::from_secs(10));
    /// # let config = hamlyn::Config::from_env()?.dir(&dir);
    /// let mut node = Node::with_config(config)?;
    /// # let (area, queue) = (node.message_area(4096)?, node.notification_queue(1)?);
    /// # let slot = node.slot(SlotConfig::new(area, queue))?;
    /// let mut consumer: Consumer = node.take_consumer(queue)?;
    /// node.send(&node.ticket(slot, MetadataIndex(0))?, b"", b"", limit)?;
    /// node.poll()?;
    /// std::thread::scope(|scope| {
    ///     scope.spawn(|| {
    ///         assert!(consumer.is_ready());
    ///         let message: Notification = consumer.pop().expect("it waits");
    ///         assert!(message.is_for(slot));
    ///     });
    /// });
    /// # drop(node);
    /// # std::fs::remove_dir_all(&dir).ok();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn take_consumer(&mut self, queue: QueueId) -> Result<Consumer, QueueError> {
        self.interface.take_consumer(queue)
    }

    /// The next notification of a queue whose consuming end the caller has, if one is there or can
    /// be taken straight from a ring; takes no turn.
    #[inline]
    pub fn take(
        &mut self,
        queue: QueueId,
        consumer: &mut Consumer,
    ) -> Option<crate::interface::Notification> {
        self.take_past(queue, consumer)
    }

    /// The waiting notifications of a queue, for a reader that takes none of them.
    pub(crate) fn watch_queue(&mut self, queue: QueueId) -> Result<QueueView, QueueError> {
        self.interface.watch_queue(queue)
    }

    /// Removes a queue that no slot uses. Its waiting notifications are lost.
    pub fn remove_queue(&mut self, queue: QueueId) -> Result<(), QueueError> {
        self.interface.remove_queue(queue)
    }

    // ---- slots and metadata entries

    /// A slot with a fresh random key (Hamlyn 2.2). The entries of a paranoid slot are closed
    /// until they are [armed](Self::arm).
    pub fn slot(&mut self, config: SlotConfig) -> Result<SlotId, SlotError> {
        let count = self.interface.slot_count();
        if count >= self.config.slots_max as usize {
            return Err(SlotError::TooMany(count));
        }
        self.interface.create_slot(&config)
    }

    /// Removes a slot, and its receiver. Packets for it are refused from now on, also those that
    /// have left their sender: no byte of its area changes through it any more. Notifications that
    /// wait stay in the queue, name the removed slot, and hold its credit until they are taken.
    ///
    /// Nothing is said to the holders of its tickets, of whom the library knows none. A node that
    /// goes on sending with one gets [`Event::TicketRevoked`](crate::Event::TicketRevoked), once for
    /// each key (and for at most 1,024 keys in a second). Its packets count as refused ones do in
    /// `refusals_per_second_max`, but 64 as one, since many may be on their way: at the default of a
    /// million a second only a sender that ignores the event for long is disconnected.
    pub fn remove_slot(&mut self, slot: SlotId) -> Result<(), SlotError> {
        self.interface.remove_slot(slot)
    }

    /// Gives the slot a new random key: every ticket made before is worthless at once, even for
    /// packets that have left their sender but have not been handled here. In paranoid slots the
    /// entries' keys decide; [`arm`](Self::arm) or [`close_entry`](Self::close_entry) changes
    /// those.
    pub fn revoke(&mut self, slot: SlotId) -> Result<(), SlotError> {
        self.interface.change_key(slot)
    }

    /// Arms a metadata entry for the next message: its accumulator becomes zero. In a paranoid slot
    /// it also gets a new random key and the limits `limits` (bytes from the slot's base), so that
    /// late packets of an unfinished message are refused; no control plane is involved (Hamlyn
    /// 2.7). In a normal slot `limits` is `None`, and an entry has no key of its own: if the sender
    /// of an unfinished message may still be sending, [`revoke`](Self::revoke) the slot's key
    /// first, or its last packets will be counted to the next message.
    pub fn arm(
        &mut self,
        slot: SlotId,
        index: MetadataIndex,
        limits: Option<Range<u64>>,
    ) -> Result<(), SlotError> {
        self.interface.arm_entry(slot, index, limits)
    }

    /// Revokes one sender's right: the paranoid entry accepts no packet until it is armed again.
    pub fn close_entry(&mut self, slot: SlotId, index: MetadataIndex) -> Result<(), SlotError> {
        self.interface.close_entry(slot, index)
    }

    /// Opens a one-shot entry again for the holders of its tickets, when its message is complete:
    /// same key, same limits.
    ///
    /// ```
    /// # let dir = std::env::temp_dir().join(format!("hamlyn-doc-reopen-{}", std::process::id()));
    /// use hamlyn::{EntryState, MetadataIndex, Mode, Node, SlotConfig};
    /// # use std::time::Duration;
    ///
    /// # let limit = Some(Duration::from_secs(10));
    /// # let config = hamlyn::Config::from_env()?.dir(&dir);
    /// let mut node = Node::with_config(config)?;
    /// # let (area, queue) = (node.message_area(4096)?, node.notification_queue(1)?);
    /// let slot = node.slot(SlotConfig::new(area, queue).mode(Mode::ParanoidOneShot))?;
    /// let entry = MetadataIndex(0);
    /// node.arm(slot, entry, Some(0..64))?;
    /// node.share_entry(slot, entry)?; // For any number of senders, one message at a time.
    /// let mut consumer = node.take_consumer(queue)?;
    /// let ticket = node.ticket(slot, entry)?;
    /// for _ in 0..3 {
    ///     node.send(&ticket, b"one at a time", b"", limit)?;
    ///     while node.take(queue, &mut consumer).is_none() {
    ///         node.poll()?;
    ///     }
    ///     assert_eq!(node.metadata(slot, entry)?.state(), EntryState::Closed);
    ///     node.reopen_entry(slot, entry)?;
    /// }
    /// # drop(node);
    /// # std::fs::remove_dir_all(&dir).ok();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn reopen_entry(&mut self, slot: SlotId, index: MetadataIndex) -> Result<(), SlotError> {
        self.interface.reopen_entry(slot, index)
    }

    /// Lets several senders, each over its own link, use the ticket of a one-shot entry at any time:
    /// of several long messages at once the one that began last counts, and the others are refused.
    /// [`arm`](Self::arm) makes it one sender's again.
    pub fn share_entry(&mut self, slot: SlotId, index: MetadataIndex) -> Result<(), SlotError> {
        self.interface.share_entry(slot, index)
    }

    /// A metadata entry: its user metadata, accumulator, state and limits.
    ///
    /// ```
    /// # let dir = std::env::temp_dir().join(format!("hamlyn-doc-metadata-{}", std::process::id()));
    /// use hamlyn::{EntryState, MetadataEntry, MetadataIndex, Mode, Node, SlotConfig};
    /// # use std::time::Duration;
    ///
    /// # let limit = Some(Duration::from_secs(10));
    /// # let config = hamlyn::Config::from_env()?.dir(&dir);
    /// let mut node = Node::with_config(config)?;
    /// # let (area, queue) = (node.message_area(4096)?, node.notification_queue(1)?);
    /// let slot = node.slot(SlotConfig::new(area, queue).mode(Mode::Paranoid))?;
    /// let entry = MetadataIndex(0);
    /// node.arm(slot, entry, Some(0..64))?;
    /// node.set_receiver(slot, entry, 42)?; // Any word: the part of the program.
    /// node.send(&node.ticket(slot, entry)?, b"data", b"about it", limit)?;
    /// node.recv(queue, limit)?;
    /// let found: &MetadataEntry = node.metadata(slot, entry)?;
    /// assert_eq!((found.user(), found.receiver()), (&b"about it"[..], 42));
    /// assert_eq!((found.limits(), found.accumulator()), (0..64, 0)); // 0: it is complete.
    /// // Of one sender, and of all of them.
    /// node.close_entry(slot, entry)?;
    /// assert_eq!(node.metadata(slot, entry)?.state(), EntryState::Closed);
    /// node.revoke(slot)?;
    /// # drop(node);
    /// # std::fs::remove_dir_all(&dir).ok();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn metadata(
        &self,
        slot: SlotId,
        index: MetadataIndex,
    ) -> Result<&MetadataEntry, SlotError> {
        self.interface.entry(slot, index)
    }

    /// Stores a word beside a metadata entry (Table 2: the receive class pointer).
    pub fn set_receiver(
        &mut self,
        slot: SlotId,
        index: MetadataIndex,
        receiver: u64,
    ) -> Result<(), SlotError> {
        self.interface.set_receiver(slot, index, receiver)
    }

    /// Passes arrivals in the slot to `receiver` from now on: a hook, an observer, a sink (Hamlyn
    /// 3.3). Returns the previous receiver. To wait for messages that a hook consumes,
    /// [wait](Self::wait) for any arrival: they are in no queue.
    ///
    /// ```
    /// use hamlyn::{Message, MetadataIndex, Node, Receiver, SlotConfig, Then};
    ///
    /// /// Adds up arrivals, and queues none.
    /// struct Sum(u64);
    ///
    /// impl Receiver for Sum {
    ///     fn process_arrival(&mut self, message: Message<'_>) -> Then {
    ///         self.0 += message.last_bytes().iter().map(|byte| *byte as u64).sum::<u64>();
    ///         Then::Consume
    ///     }
    /// }
    ///
    /// # let dir = std::env::temp_dir().join(format!("hamlyn-install-{}", std::process::id()));
    /// # let mut node = Node::with_config(hamlyn::Config::from_env()?.dir(&dir))?;
    /// let area = node.message_area(64)?;
    /// let queue = node.notification_queue(1)?;
    /// let slot = node.slot(SlotConfig::new(area, queue))?;
    /// node.install(slot, Sum(0))?;
    ///
    /// let ticket = node.ticket(slot, MetadataIndex(0))?;
    /// for _ in 0..100 {
    ///     node.send(&ticket, &[1, 2, 3], b"", None)?;
    ///     node.poll()?;
    /// }
    /// assert_eq!(node.try_recv(queue)?, None);
    /// assert_eq!(node.installed::<Sum>(slot)?.map(|sum| sum.0), Some(600));
    /// # drop(node);
    /// # std::fs::remove_dir_all(&dir).ok();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn install(
        &mut self,
        slot: SlotId,
        receiver: impl Receiver,
    ) -> Result<Option<Box<dyn Receiver>>, SlotError> {
        self.interface.install(slot, Box::new(receiver), None)
    }

    /// [`install`](Self::install) of a receiver that is asked only about the packets that `filter` says.
    /// All others are handled as in a slot without a receiver.
    ///
    /// ```
    /// # let dir = std::env::temp_dir().join(format!("hamlyn-doc-filter-{}", std::process::id()));
    /// use hamlyn::{Filter, Message, MetadataIndex, Node, Receiver, SlotConfig, Then};
    ///
    /// struct Swallow;
    ///
    /// impl Receiver for Swallow {
    ///     fn process_arrival(&mut self, _: Message<'_>) -> Then {
    ///         Then::Consume
    ///     }
    /// }
    /// # let limit = Some(std::time::Duration::from_secs(10));
    /// # let config = hamlyn::Config::from_env()?.dir(&dir);
    /// let mut node = Node::with_config(config)?;
    /// # let (area, queue) = (node.message_area(8192)?, node.notification_queue(2)?);
    /// # let slot = node.slot(SlotConfig::new(area, queue).credit(2))?;
    /// let ticket = node.ticket(slot, MetadataIndex(0))?;
    /// let filter = Filter::by_page(8192, 4096);
    /// node.install_filtered(slot, Swallow, filter.clone())?;
    /// node.send(&ticket, b"queued", b"", limit)?;
    /// node.recv(queue, limit)?;
    /// filter.set(0, true); // From now on the receiver is asked about the first page.
    /// node.send(&ticket, b"swallowed", b"", limit)?;
    /// node.poll()?;
    /// assert_eq!(node.try_recv(queue)?, None);
    /// # drop(node);
    /// # std::fs::remove_dir_all(&dir).ok();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn install_filtered(
        &mut self,
        slot: SlotId,
        receiver: impl Receiver,
        filter: Filter,
    ) -> Result<Option<Box<dyn Receiver>>, SlotError> {
        self.interface.install(slot, Box::new(receiver), Some(filter))
    }

    /// Removes the receiver of a slot, if it has one: arrivals are queued again.
    pub fn uninstall(&mut self, slot: SlotId) -> Result<Option<Box<dyn Receiver>>, SlotError> {
        self.interface.uninstall(slot)
    }

    /// The receiver of a slot. `None`: it has no receiver of this type, or that one panicked.
    pub fn installed<R: Receiver>(&self, slot: SlotId) -> Result<Option<&R>, SlotError> {
        self.interface.installed(slot)
    }

    /// The receiver of a slot, to change it between two calls, or to take its contents.
    pub fn installed_mut<R: Receiver>(
        &mut self,
        slot: SlotId,
    ) -> Result<Option<&mut R>, SlotError> {
        self.interface.installed_mut(slot)
    }

    /// The ticket that sends one message to an entry of a slot; in paranoid slots with the entry's
    /// current key and limits.
    pub fn ticket(&self, slot: SlotId, index: MetadataIndex) -> Result<Ticket, SlotError> {
        self.interface.ticket(slot, index)
    }

    /// The ticket that sends single packets in fast mode (Hamlyn 2.7).
    pub fn fast_ticket(&self, slot: SlotId) -> Result<Ticket, SlotError> {
        self.interface.fast_ticket(slot)
    }

    /// The area and range of a slot.
    pub fn slot_range(&self, slot: SlotId) -> Result<(AreaId, Range<u64>), SlotError> {
        self.interface.slot_range(slot)
    }

    // ---- termini and send buffer areas

    /// Another send terminus (Hamlyn 2.3): work queues and completion words of its own. The first
    /// one, [`primary`](Self::primary), exists from the start.
    pub fn terminus(&mut self) -> TerminusId {
        let index = self.termini.len() as u32;
        let entries = self.config.work_queue_entries as usize;
        let buffers = self.config.send_buffers_max as usize;
        self.termini.push(Terminus::new(index, entries, buffers));
        TerminusId(index)
    }

    /// The terminus that `send` uses.
    pub fn primary(&self) -> TerminusId {
        TerminusId(0)
    }

    pub(super) fn terminus_mut(
        &mut self,
        id: TerminusId,
    ) -> Result<&mut Terminus<AreaMemory>, PostError> {
        self.termini.get_mut(id.0 as usize).ok_or(PostError::NoSuchTerminus(id))
    }

    /// Queued packets of a terminus of higher priority leave first, always. All begin with 0.
    ///
    /// ```
    /// # let dir = std::env::temp_dir().join(format!("hamlyn-doc-priority-{}", std::process::id()));
    /// use hamlyn::{MetadataIndex, Node, SlotConfig};
    /// # use std::time::Duration;
    ///
    /// # let limit = Some(Duration::from_secs(10));
    /// # let config = hamlyn::Config::from_env()?.dir(&dir);
    /// let mut node = Node::with_config(config)?;
    /// let (area, queue) = (node.message_area(4096)?, node.notification_queue(2)?);
    /// let slot = node.slot(SlotConfig::new(area, queue).metadata(2).credit(2))?;
    /// let urgent = node.terminus();
    /// node.set_priority(urgent, 1)?;
    /// // Before messages that wait in other work queues.
    /// node.send_on(urgent, &node.ticket(slot, MetadataIndex(0))?, b"stop", b"", limit)?;
    /// node.try_send_on(urgent, &node.ticket(slot, MetadataIndex(1))?, b"now or not", b"")?;
    /// # drop(node);
    /// # std::fs::remove_dir_all(&dir).ok();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_priority(&mut self, id: TerminusId, priority: u8) -> Result<(), PostError> {
        self.terminus_mut(id)?.set_priority(priority);
        Ok(())
    }

    /// A send buffer area of `bytes` zero bytes for a terminus, up to 8 of them.
    pub fn send_buffer(&mut self, id: TerminusId, bytes: usize) -> Result<BufferTag, MemoryError> {
        self.terminus_mut(id)?;
        let memory = self.new_memory(bytes)?;
        self.add_send_buffer(id, memory)
    }

    /// A send buffer area over pages of the application at an address of its own, under any
    /// protection; see [`message_area_of`](Self::message_area_of).
    pub fn send_buffer_of(
        &mut self,
        id: TerminusId,
        pages: AreaPages,
    ) -> Result<BufferTag, MemoryError> {
        self.terminus_mut(id)?;
        let memory = self.memory_of(pages)?;
        self.add_send_buffer(id, memory)
    }

    fn add_send_buffer(
        &mut self,
        id: TerminusId,
        memory: AreaMemory,
    ) -> Result<BufferTag, MemoryError> {
        let bytes = memory.as_ref().len();
        let added = self.terminus_mut(id)?.add_buffer(memory);
        if added.is_err() {
            self.area_bytes -= bytes;
        }
        Ok(added?)
    }

    /// Gives a send buffer area back. Refused while a queued message needs it.
    pub fn remove_send_buffer(
        &mut self,
        id: TerminusId,
        tag: BufferTag,
    ) -> Result<(), MemoryError> {
        let memory = self.terminus_mut(id)?.remove_buffer(tag)?;
        self.area_bytes -= memory.as_ref().len();
        Ok(())
    }

    /// The bytes of a send buffer area.
    pub fn send_buffer_ref(&self, id: TerminusId, tag: BufferTag) -> Result<&[u8], MemoryError> {
        let terminus = self.termini.get(id.0 as usize).ok_or(PostError::NoSuchTerminus(id))?;
        Ok(terminus.buffer(tag)?)
    }

    /// The bytes of a send buffer area, for writing. Bytes that a queued message still needs are
    /// sent as they are when its packet leaves; see [`is_reusable`](Self::is_reusable).
    pub fn send_buffer_mut(
        &mut self,
        id: TerminusId,
        tag: BufferTag,
    ) -> Result<&mut [u8], MemoryError> {
        Ok(self.terminus_mut(id)?.buffer_mut(tag)?)
    }
}
