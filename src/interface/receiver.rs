//! Receivers of the application's own (Hamlyn 3.3, `process_arrival`), installed on slots, so that
//! other interfaces can be layers on this one.
//!
//! ```text
//!   handle_packet: every check has passed
//!     place()            a sink: the destination of the bytes, or of the first ones; or the area
//!     the bytes are copied, the entry counts the packet
//!     observe()          an observer, which is shown the bytes in the area
//!     process_arrival()  a hook, if the message is complete and announces itself: queue it, or not
//! ```
//! A slot without a receiver pays one comparison where a packet is checked whole, and nothing where
//! it is of a flow; a slot with one has flows only of packets that its filter does not ask about.
//!
//! Never: a receiver is asked about a packet that may not write; a receiver sees memory that
//! another process can write; its panic leaves a packet half counted.

use super::filter::Filter;
use super::receive::Arrival;
use super::tables::Interface;
use super::{AreaId, LinkId, Mode, Notification, Refusal, SlotError, SlotId};
use crate::link::Body;
use crate::wire::{Header, METADATA_MAX, MetadataIndex};
use alloc::boxed::Box;
use core::any::Any;
use core::ops::Range;

/// The application's own handling of arrivals in a slot. Each method does nothing by default, so
/// one type is a hook, an observer, a sink, or several of them.
///
/// The methods run inside the call that takes packets from links (`poll`, `recv`, `wait`, `send`, a
/// progress thread), for each packet that has passed every check of key, bounds, mode and credit.
/// They get no node: they cannot send, wait or make slots. They must not block or take long: the
/// node does nothing else meanwhile, and the holders of tickets decide how often they run. Never
/// lock a [`Manager`](crate::protocol::Manager) or call an end point of the same node from one: it
/// would wait for itself. To send in response, keep the message and send it after that call; see
/// [`installed_mut`](crate::Node::installed_mut).
///
/// **A panic** is caught and counted (`receivers_panicked`), and the receiver is dropped: from this
/// packet on the slot works as one without a receiver, and deposits and announces the packet like
/// any other. In a build without the feature `os` a panic unwinds through `handle_packet`: out of
/// `place` nothing was changed; out of the other two the packet is deposited and counted, and its
/// message is not announced.
///
/// ```
/// # let dir = std::env::temp_dir().join(format!("hamlyn-doc-sink-{}", std::process::id()));
/// use hamlyn::{Deposit, MetadataIndex, Node, Receiver, SlotConfig};
///
/// /// A sink that is also an observer: bytes go straight into a picture, and are counted.
/// struct Picture(Vec<u8>, u64);
///
/// impl Receiver for Picture {
///     fn place(&mut self, deposit: &Deposit<'_>) -> Option<&mut [u8]> {
///         let start = deposit.offset as usize;
///         self.0.get_mut(start..start + deposit.length as usize)
///     }
///
///     fn observe(&mut self, deposit: &Deposit<'_>, in_area: &[u8]) {
///         assert!(deposit.is_first && deposit.completes && in_area.is_empty());
///         self.1 += deposit.taken as u64;
///     }
/// }
/// # let limit = Some(std::time::Duration::from_secs(10));
/// # let config = hamlyn::Config::from_env()?.dir(&dir);
/// let mut node = Node::with_config(config)?;
/// # let (area, queue) = (node.message_area(4096)?, node.notification_queue(1)?);
/// # let slot = node.slot(SlotConfig::new(area, queue))?;
/// node.install(slot, Picture(vec![0; 4096], 0))?;
/// node.send(&node.ticket(slot, MetadataIndex(0))?, b"pixels", b"", limit)?;
/// node.recv(queue, limit)?;
/// let Some(Picture(picture, bytes)) = node.installed(slot)? else { unreachable!() };
/// assert!(picture.starts_with(b"pixels") && *bytes == 6);
/// assert_eq!(node.area(area)?[0], 0, "the area is not written");
/// node.uninstall(slot)?; // From now on it is.
/// # drop(node);
/// # std::fs::remove_dir_all(&dir).ok();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Receiver: Any + Send + Sync {
    /// The sink: the destination of the packet's bytes instead of the message area; `None`: the
    /// area, as usual. A slice that is shorter than the packet takes its front, and the rest goes
    /// where it would have gone in the area; of a longer one the first `length` bytes are written.
    /// Each byte is written to one of the two, once. A layer whose messages begin with a header can
    /// choose by `user`, `word` and `is_first`, which are known before the bytes land.
    fn place(&mut self, deposit: &Deposit<'_>) -> Option<&mut [u8]> {
        let _ = deposit;
        None
    }

    /// The observer: a packet has been deposited and counted. `bytes` are those of the packet that
    /// are in the area: all but the first `deposit.taken`. They belong to the receiver and are
    /// stable during the call.
    fn observe(&mut self, deposit: &Deposit<'_>, bytes: &[u8]) {
        let _ = (deposit, bytes);
    }

    /// The hook: a message is complete, and its sender asked that it be announced. There is room
    /// for its notification: a packet that would exceed the slot's credit was refused.
    fn process_arrival(&mut self, message: Message<'_>) -> Then {
        let _ = message;
        Then::Queue
    }
}

/// The fate of a message after the hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// Its notification is queued, as usual.
    Queue,
    /// The hook has dealt with it: nothing is queued, and no credit is used.
    Consume,
}

/// One packet that may be deposited, or has been.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Deposit<'a> {
    /// The slot.
    pub slot: SlotId,
    /// The metadata entry, or [`MetadataIndex::FAST`].
    pub index: MetadataIndex,
    /// The link that it came over.
    pub link: LinkId,
    /// Destination of its first byte, in bytes from the slot's base.
    pub offset: u64,
    /// Bytes.
    pub length: u32,
    /// In fast mode the word that the packet carries (2.7); else 0.
    pub word: u32,
    /// The message's user metadata, up to 60 bytes, if the packet that brings it has arrived, or is
    /// this one; else empty.
    pub user: &'a [u8],
    /// No packet of the message has arrived before this one. (Another than the sender's first may
    /// be the first to arrive.)
    pub is_first: bool,
    /// With this packet the message is complete.
    pub completes: bool,
    /// Bytes at the packet's front that the receiver's [`place`](Receiver::place) took; there the
    /// area is unchanged. In `place` itself 0.
    pub taken: u32,
}

/// A message that is complete. Its bytes belong to the receiver and are stable during the call.
#[derive(Debug)]
#[non_exhaustive]
pub struct Message<'a> {
    /// The slot.
    pub slot: SlotId,
    /// The metadata entry, or [`MetadataIndex::FAST`].
    pub index: MetadataIndex,
    /// In fast mode the word that the packet carried (2.7); else 0.
    pub word: u32,
    /// The link over which the packet that completed it came.
    pub link: LinkId,
    /// The user metadata, up to 60 bytes.
    pub user: &'a [u8],
    /// The area that the slot lies in.
    pub area: AreaId,
    /// The slot's base and bound, in bytes from the start of the area.
    pub range: Range<u64>,
    /// The packet that completed it: the whole message, if that is [of one
    /// packet](Self::is_single). Sender and receiver must agree on the length of longer messages:
    /// packets are counted, not bytes.
    pub last: Deposit<'a>,
    /// The message has one packet.
    pub is_single: bool,
    /// The slot's bytes, from base to bound.
    pub bytes: &'a mut [u8],
}

impl Message<'_> {
    /// The bytes of the packet that completed the message, in the area; of a message of one packet,
    /// all of it. Without those at its front that the receiver's [`place`](Receiver::place) took.
    pub fn last_bytes(&self) -> &[u8] {
        let Deposit { offset, length, taken, .. } = self.last;
        let start = offset as usize;
        self.bytes.get(start + taken as usize..start + length as usize).unwrap_or(&[])
    }
}

/// A slot's receiver, and the packets that it is asked about: all, unless there is a filter.
pub(super) struct Installed(Box<dyn Receiver>, Option<Filter>);

impl Installed {
    /// Whether it is asked about a packet.
    #[inline]
    pub(super) fn is_asked(&self, index: MetadataIndex, offset: u64, length: u32) -> bool {
        self.1.as_ref().is_none_or(|filter| filter.asks(index, offset, length))
    }

    pub(super) fn is_filtered(&self) -> bool {
        self.1.is_some()
    }
}

impl core::fmt::Debug for Installed {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Installed")
    }
}

/// Copies a packet's data, as far as it has room, to `place`, and the rest to its own place in
/// `area`, the packet's range there. Returns the number of bytes at the front.
fn copy_apart<B: Body>(body: &B, place: &mut [u8], area: &mut [u8]) -> usize {
    let taken = place.len().min(area.len());
    let place = &mut place[..taken];
    if taken == area.len() {
        body.copy_data(place);
    } else if taken == 0 {
        body.copy_data(area);
    } else {
        // A body is copied whole, so the area's front is kept aside meanwhile. Only this process
        // sees the area, and not before it has its bytes back.
        place.copy_from_slice(&area[..taken]);
        body.copy_data(area);
        place.swap_with_slice(&mut area[..taken]);
    }
    taken
}

/// The results of a packet's checks.
pub(super) struct Checked {
    /// The entry's accumulator, before and after.
    pub before: u32,
    pub accumulator: u32,
    pub completes: bool,
    pub notifies: bool,
}

/// The application's code panicked, and must not be called again.
pub(crate) struct Panicked;

/// Calls code of the application's.
#[cfg(feature = "os")]
pub(crate) fn guarded<T>(call: impl FnOnce() -> T) -> Result<T, Panicked> {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    catch_unwind(AssertUnwindSafe(call)).map_err(|payload| {
        // The payload of the panic may panic when it is dropped.
        if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
            core::mem::forget(again);
        }
        Panicked
    })
}

#[cfg(not(feature = "os"))]
fn guarded<T>(call: impl FnOnce() -> T) -> Result<T, Panicked> {
    Ok(call())
}

impl<M: AsRef<[u8]> + AsMut<[u8]>> Interface<M> {
    /// From now on `receiver` handles arrivals in the slot that `filter` asks about. Returns the
    /// previous receiver.
    pub fn install(
        &mut self,
        id: SlotId,
        receiver: Box<dyn Receiver>,
        filter: Option<Filter>,
    ) -> Result<Option<Box<dyn Receiver>>, SlotError> {
        let before = self.slot_mut(id)?.receiver.replace(Installed(receiver, filter));
        Ok(before.map(|installed| installed.0))
    }

    /// Takes the receiver of a slot back, if it has one: arrivals are deposited and announced
    /// again.
    pub fn uninstall(&mut self, id: SlotId) -> Result<Option<Box<dyn Receiver>>, SlotError> {
        Ok(self.slot_mut(id)?.receiver.take().map(|installed| installed.0))
    }

    /// The receiver of a slot. `None`: it has none of this type, or it panicked.
    pub fn installed<R: Receiver>(&self, id: SlotId) -> Result<Option<&R>, SlotError> {
        let receiver = self.slot(id)?.receiver.as_ref();
        Ok(receiver.and_then(|installed| (&*installed.0 as &dyn Any).downcast_ref()))
    }

    /// The receiver of a slot, to change it between two calls, or to take messages that it kept.
    pub fn installed_mut<R: Receiver>(&mut self, id: SlotId) -> Result<Option<&mut R>, SlotError> {
        let receiver = self.slot_mut(id)?.receiver.as_mut();
        Ok(receiver.and_then(|installed| (&mut *installed.0 as &mut dyn Any).downcast_mut()))
    }

    /// A packet for a slot with a receiver, of which every check has passed.
    #[cold]
    #[inline(never)]
    pub(super) fn accept_installed<B: Body>(
        &mut self,
        link: LinkId,
        header: &Header,
        body: &B,
        checked: &Checked,
    ) -> Result<Arrival, Refusal> {
        let Some(Some(slot)) = self.slots.get_mut(header.slot.0 as usize) else {
            return Err(Refusal::NoSuchSlot);
        };
        let Some(Some(area)) = self.areas.get_mut(slot.area as usize) else {
            return Err(Refusal::OutOfBounds);
        };
        let area_id = AreaId { index: slot.area, generation: area.generation };
        let range = slot.base..slot.base + slot.size;
        let memory = area.memory.as_mut().get_mut(range.start as usize..range.end as usize);
        let (at, length) = (header.offset as usize, header.length as usize);
        // The destination of the bytes unless the receiver gives another; found before the receiver
        // is called.
        let Some(memory) =
            memory.filter(|memory| at.checked_add(length).is_some_and(|end| end <= memory.len()))
        else {
            return Err(Refusal::OutOfBounds);
        };
        let index = header.metadata_index;
        let id = SlotId { index: header.slot.0, generation: slot.generation };
        let mut entry = slot.entries.get_mut(index.0 as usize);
        let is_first = entry.is_none() || header.delta == 0 || checked.before == 0;
        // Copied once, since the sender may change it between two copies.
        let mut metadata = [0; METADATA_MAX];
        let metadata = &mut metadata[..header.metadata_len as usize];
        if !metadata.is_empty() {
            body.copy_metadata(metadata);
        }
        let deposit = Deposit {
            slot: id,
            index,
            link,
            offset: header.offset,
            length: header.length,
            word: if entry.is_none() { header.word } else { 0 },
            user: &[],
            is_first,
            completes: checked.completes,
            taken: 0,
        };
        let user = match &entry {
            Some(entry) if metadata.is_empty() && !is_first => entry.user(),
            _ => &*metadata,
        };
        let before = Deposit { user, ..deposit };
        let mut has_panicked = false;

        let placed = match &mut slot.receiver {
            Some(Installed(receiver, _)) => guarded(|| receiver.place(&before)),
            None => Ok(None),
        };
        has_panicked |= placed.is_err();
        let in_area = &mut memory[at..at + length];
        let taken = match placed {
            Ok(Some(place)) => copy_apart(body, place, in_area),
            _ => {
                body.copy_data(in_area);
                0
            }
        };
        if let Some(entry) = &mut entry {
            self.epoch += !metadata.is_empty() as u64;
            entry.count_copied(link, header, metadata, checked);
            if checked.completes && slot.mode == Mode::ParanoidOneShot {
                entry.close();
            }
        }
        let user = entry.as_ref().map_or(&[][..], |entry| entry.user());
        let deposit = Deposit { user, taken: taken as u32, ..deposit };
        if let Some(Installed(receiver, _)) = &mut slot.receiver
            && !has_panicked
        {
            let in_area = &memory[at + taken..at + length];
            has_panicked |= guarded(|| receiver.observe(&deposit, in_area)).is_err();
        }
        let mut then = Then::Queue;
        if let Some(Installed(receiver, _)) = &mut slot.receiver
            && checked.notifies
            && !has_panicked
        {
            let message = Message {
                slot: id,
                index,
                word: deposit.word,
                link,
                user,
                area: area_id,
                range,
                last: deposit,
                is_single: header.delta == 0 || entry.is_none(),
                bytes: memory,
            };
            match guarded(|| receiver.process_arrival(message)) {
                Ok(said) => then = said,
                Err(Panicked) => has_panicked = true,
            }
        }
        let (queue, share) = (slot.queue.index(), slot.share);
        let to = SlotId { index: header.slot.0, generation: slot.generation };
        let gone = if has_panicked { slot.receiver.take() } else { None };
        if let Some(gone) = gone {
            let _ = guarded(|| drop(gone));
            self.counters.receivers_panicked.add(1);
        }
        self.counters.packets_received.add(1);
        self.counters.bytes_received.add(header.length as u64);
        if !checked.completes {
            return Ok(Arrival::Part);
        }
        self.counters.messages_received.add(1);
        if !checked.notifies {
            return Ok(Arrival::Complete);
        }
        if then == Then::Consume {
            self.counters.messages_consumed.add(1);
            return Ok(Arrival::Consumed);
        }
        self.counters.notifications.add(1);
        let word = header.word;
        self.announce(queue, share, &Notification { slot: to, index, word, link });
        Ok(Arrival::Notified)
    }
}
