//! Regions of this program, and apertures onto regions of others.
//!
//! ```text
//!   checked   a slot over an area: puts are packets, gets are questions to the owner's program
//!   mapped    pages that one peer maps: its stores and loads need nobody
//! ```

use crate::board::send_over;
use crate::clan::{Clan, Endpoint, refused};
use crate::ends::{End, Notes, unpoisoned};
use crate::events::Target;
use crate::trips::{Observers, Trip, Tripped, Wire, Wires};
use crate::wire::{HANDLE_BYTES, Handle, Head, Rights, TOUCH_BYTES_MAX, kind};
use crate::{Completion, Error, Request};
use hamlyn::node::Node;
use hamlyn::{
    AccessError, ApertureId, ApertureView, AreaId, AreaView, LinkId, NodeSendError, PreparedTicket,
    SlotId, Ticket,
};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use zerocopy::IntoBytes;

/// Bytes of one packet at least, on any link.
pub(crate) const LINE_BYTES: usize = 16;

pub(crate) enum Memory {
    Checked(AreaId, AreaView),
    Mapped(ApertureId, ApertureView),
}

/// A region's memory and wires.
pub(crate) struct RegionCore {
    pub bytes: u64,
    pub memory: Memory,
    pub wires: Arc<Wires>,
    pub observers: Arc<Observers>,
    pub notes: Arc<Notes>,
    pub signals: Mutex<Signals>,
    /// How many are in it.
    pub signal_count: AtomicU32,
}

/// Those that came and were not taken; the board bounds them by the credit of each export.
#[derive(Default)]
pub(crate) struct Signals {
    pub queue: VecDeque<Signal>,
    pub target: Option<Target>,
}

/// A peer's [put with a signal](Aperture::put_signal) has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Signal {
    /// The peer's word.
    pub word: u32,
    /// The [number](Export::number) of the export through which it came.
    pub export: u32,
}

impl RegionCore {
    /// `None`: not inside of the region.
    pub fn range(&self, offset: u64, length: u64) -> Option<Range<u64>> {
        let end = offset.checked_add(length)?;
        (end <= self.bytes).then_some(offset..end)
    }

    pub fn area(&self) -> Option<AreaId> {
        match self.memory {
            Memory::Checked(area, _) => Some(area),
            Memory::Mapped(..) => None,
        }
    }

    pub fn aperture(&self) -> Option<ApertureId> {
        match self.memory {
            Memory::Mapped(aperture, _) => Some(aperture),
            Memory::Checked(..) => None,
        }
    }

    /// Packets of a slot trip the wires, and are observed.
    pub fn watch(&self, node: &mut Node, slot: SlotId) -> Result<(), String> {
        let tripped = Tripped(self.wires.clone(), self.observers.clone());
        let installed = if !unpoisoned(&self.observers).is_empty() {
            node.install(slot, tripped)
        } else if self.wires.has_room_for_any() {
            node.install_filtered(slot, tripped, self.wires.filter.clone())
        } else {
            return Ok(());
        };
        installed.map(drop).map_err(|e| e.to_string())
    }

    pub fn read(&self, offset: u64, to: &mut [u8]) -> Result<(), AccessError> {
        match &self.memory {
            Memory::Checked(_, view) => view.read(offset, to),
            Memory::Mapped(_, view) => view.read(offset, to),
        }
    }

    /// By a thread that has the node.
    pub fn write(&self, node: &mut Node, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        match &self.memory {
            Memory::Checked(area, _) => {
                let area = node.area_mut(*area).map_err(|e| Error::Misuse(e.to_string()))?;
                let end = (offset as usize).saturating_add(bytes.len());
                let place = area.get_mut(offset as usize..end);
                place
                    .ok_or_else(|| outside(offset, bytes.len() as u64, self.bytes))?
                    .copy_from_slice(bytes);
                Ok(())
            }
            Memory::Mapped(_, view) => Ok(view.write(offset, bytes)?),
        }
    }
}

impl Drop for RegionCore {
    fn drop(&mut self) {
        if let Memory::Checked(area, _) = self.memory {
            self.notes.leave(area);
        }
    }
}

fn outside(offset: u64, length: u64, bytes: u64) -> Error {
    Error::Misuse(format!("{length} bytes at {offset} of exported memory of {bytes} bytes"))
}

/// Memory of this program that peers may use. Dropping it takes it back from them.
pub struct Region {
    pub(crate) clan: Clan,
    pub(crate) core: Arc<RegionCore>,
}

impl core::fmt::Debug for Region {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Region").field("bytes", &self.core.bytes).finish_non_exhaustive()
    }
}

/// A region given to an end point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[repr(C)]
pub struct Export {
    /// The words for the peer, by [`Endpoint::send_oob`] or any other way.
    pub handle: [u8; HANDLE_BYTES],
    /// Its number in this program, never used again.
    pub number: u32,
}

impl Region {
    /// Its length in bytes.
    pub fn bytes(&self) -> u64 {
        self.core.bytes
    }

    /// The address of its first byte, of whole pages, which stays as long as this lives. Peers may be writing
    /// them: read them as memory that another thread writes. `None`: it is mapped.
    pub fn address(&self) -> Option<*mut u8> {
        let area = self.core.area()?;
        self.clan.with(|node, _| Some(node.area_address(area).ok()?.0))
    }

    /// Lets the peer of an end point use the region. A mapped one can be given only to the peer that it was
    /// made for.
    pub fn export(&self, to: &Endpoint, rights: Rights) -> Result<Export, Error> {
        self.export_signalled(to, rights, 0)
    }

    /// [`export`](Self::export) to a peer that may also put with a signal: up to `signals` that have not been
    /// [taken](Self::take_signal); then it waits. Together at most 16,384. 0 for a mapped region.
    pub fn export_signalled(
        &self,
        to: &Endpoint,
        rights: Rights,
        signals: u32,
    ) -> Result<Export, Error> {
        to.check()?;
        let core = &self.core;
        if core.aperture().is_some_and(|aperture| aperture.link != to.link) {
            return Err(Error::Misuse("the region was mapped for another peer".into()));
        }
        let handle = self.clan.with(|node, board| {
            let (number, slots) = board.export(node, to.name, core, rights, signals)?;
            let mut handle = Handle::new(rights, number, core.bytes);
            if let Some(aperture) = core.aperture() {
                handle = handle.mapped(aperture.number);
            }
            if let Some(slot) = slots[0] {
                handle = handle.with_ticket(node.fast_ticket(slot).map_err(|e| e.to_string())?);
            }
            if let Some(slot) = slots[1] {
                let ticket = node.fast_ticket(slot).map_err(|e| e.to_string())?;
                handle = handle.with_signals(signals, ticket);
            }
            Ok((number, handle))
        });
        let (number, handle) = handle.map_err(|e: String| refused("exporting", e))?;
        let mut bytes = [0; HANDLE_BYTES];
        bytes.copy_from_slice(handle.as_bytes());
        Ok(Export { handle: bytes, number })
    }

    /// The next signal of a peer, each once, in the order in which each peer sent them. Takes no turn.
    pub fn take_signal(&self) -> Option<Signal> {
        if self.core.signal_count.load(Ordering::Acquire) == 0 {
            return None;
        }
        self.clan.with(|node, board| board.take_signal(node, &self.core))
    }

    /// This event is raised whenever a signal comes.
    pub fn set_signal_event(&self, target: Option<Target>) {
        let mut came = unpoisoned(&self.core.signals);
        came.target.clone_from(&target);
        let has_any = !came.queue.is_empty();
        drop(came);
        if let (Some(target), true) = (target, has_any) {
            target.raise();
        }
    }

    /// Takes the region back from a peer: later puts and gets are refused by this program, and the peer is
    /// told. A mapped region is copied to pages of its own first, about 0.6 ms a MiB.
    /// An export of another region is left alone.
    pub fn revoke(&self, export: &Export) {
        self.clan.with(|node, board| {
            board.unexport_of(node, &self.core, export.number);
            board.turn(node);
        });
    }

    /// From now on `observer` is called with the place and the bytes of each packet that a peer's put has
    /// left here, until it answers `false`. It runs in turns, with the node locked, and makes no calls. Not
    /// for stores into a mapped region, which no packet announces.
    pub fn observe(
        &self,
        observer: impl FnMut(u64, &[u8]) -> bool + Send + 'static,
    ) -> Result<(), Error> {
        let observed = self.clan.with(|node, board| {
            unpoisoned(&self.core.observers).push(Box::new(observer));
            board.watch_region(node, &self.core)
        });
        observed.map_err(|e| refused("observing a region", e))
    }

    /// A tripwire on some of its bytes, enabled and armed; `target` is raised when it fires. Costs some
    /// 30 bytes for each line of 64 bytes that it covers. [`Error::Full`]: there are `wires_max`.
    pub fn wire(
        &self,
        range: Range<u64>,
        trip: Trip,
        target: Option<Target>,
    ) -> Result<Wire, Error> {
        let length = range.end.saturating_sub(range.start);
        if length == 0 || range.end > self.core.bytes {
            return Err(outside(range.start, length, self.core.bytes));
        }
        Wire::new(&self.clan, &self.core.wires, range, trip, target)
    }

    /// 64 fired bits of the region's wires at once ([`Wire::place`]): one load.
    #[inline]
    pub fn fired(&self, word: usize) -> u64 {
        self.core.wires.fired(word).unwrap_or(0)
    }

    /// Copies bytes out, without the node's lock. Peers may be writing them.
    pub fn read(&self, offset: u64, to: &mut [u8]) -> Result<(), Error> {
        Ok(self.core.read(offset, to)?)
    }

    /// One aligned word: an atomic load, with what was written before it.
    #[inline]
    pub fn load(&self, offset: u64) -> Result<u64, Error> {
        Ok(match &self.core.memory {
            Memory::Checked(_, view) => view.load_u64(offset)?,
            Memory::Mapped(_, view) => view.read_u64(offset)?,
        })
    }

    /// Changes bytes. Trips nothing.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        self.clan.with(|node, _| self.core.write(node, offset, bytes))
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        self.clan.with(|node, board| {
            board.unexport_region(node, &self.core);
            board.turn(node);
        });
    }
}

pub(crate) enum To {
    /// The ticket, prepared, and the bytes of one packet.
    Slot(Ticket, PreparedTicket, usize),
    Mapped(hamlyn::Aperture),
    /// May only be read.
    Nothing,
}

/// An aperture, as the board and the engine see it.
pub(crate) struct Imported {
    pub link: LinkId,
    pub end: Arc<End>,
    pub rights: Rights,
    pub bytes: u64,
    pub number: u32,
    pub to: To,
    /// For puts with a signal; and how many more may leave.
    pub signal: Option<(Ticket, PreparedTicket)>,
    pub signals: AtomicU32,
    pub is_revoked: AtomicBool,
    /// Apertures that are this one: the same handle was imported so often.
    pub windows: AtomicU32,
}

impl Imported {
    pub fn revoke(&self) {
        self.is_revoked.store(true, Ordering::Release);
    }

    /// The owner has taken signals.
    pub fn credit(&self, signals: u32) {
        let add = |now: u32| Some(now.saturating_add(signals));
        let _ = self.signals.fetch_update(Ordering::AcqRel, Ordering::Acquire, add);
    }

    /// One more signal may leave, and will.
    fn take_credit(&self) -> bool {
        let less = |now: u32| now.checked_sub(1);
        self.signals.fetch_update(Ordering::AcqRel, Ordering::Acquire, less).is_ok()
    }

    pub fn is_of(&self, id: ApertureId) -> bool {
        matches!(&self.to, To::Mapped(aperture) if aperture.id() == id)
    }

    pub fn mapped(&self) -> Option<&hamlyn::Aperture> {
        match &self.to {
            To::Mapped(aperture) => Some(aperture),
            _ => None,
        }
    }

    /// "Looked at before each send" (3.1): closed, or revoked.
    #[inline]
    pub fn check(&self) -> Result<(), Error> {
        if let Some(why) = self.end.closed() {
            return Err(Error::Closed(why.clone()));
        }
        match self.is_revoked.load(Ordering::Acquire) {
            true => Err(Error::Revoked),
            false => Ok(()),
        }
    }

    /// For a put, or a get.
    pub fn check_access(&self, is_get: bool, offset: u64, length: u64) -> Result<(), Error> {
        self.check()?;
        if offset.checked_add(length).is_none_or(|end| end > self.bytes) {
            return Err(outside(offset, length, self.bytes));
        }
        match if is_get { self.rights.reads() } else { self.rights.writes() } {
            true => Ok(()),
            false => Err(Error::Misuse(format!("the memory was exported for {:?}", self.rights))),
        }
    }

    /// One packet of a put, now: how many of the bytes it took.
    pub fn put_some(
        &self,
        node: &mut Node,
        board_to: Option<Ticket>,
        offset: u64,
        bytes: &[u8],
    ) -> Result<usize, NodeSendError> {
        match &self.to {
            To::Slot(ticket, _, at_once) => {
                let length = bytes.len().min(*at_once);
                let unreachable = |_| NodeSendError::Unreachable(node.id());
                let ticket = ticket.at(offset).map_err(unreachable)?;
                send_over(node, self.link, &ticket, &[&bytes[..length]])?;
                Ok(length)
            }
            // The bytes are there; the owner's wires hear of it.
            To::Mapped(_) => {
                let to = board_to.ok_or_else(|| NodeSendError::Unreachable(node.id()))?;
                let length = (bytes.len() as u64).min(TOUCH_BYTES_MAX);
                let head = Head {
                    number: self.number.into(),
                    offset: offset.into(),
                    length: length.into(),
                    ..Head::of(kind::TOUCH)
                };
                send_over(node, self.link, &to, &[head.as_bytes()])?;
                Ok(length as usize)
            }
            To::Nothing => Err(NodeSendError::Unreachable(node.id())),
        }
    }
}

/// A window onto a region of a peer, from [`Endpoint::import`]. It ends with its end point, or when it is
/// dropped, by which the owner takes the region back.
pub struct Aperture {
    pub(crate) clan: Clan,
    pub(crate) core: Arc<Imported>,
}

impl core::fmt::Debug for Aperture {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let Imported { link, bytes, rights, .. } = &*self.core;
        let mut aperture = f.debug_struct("Aperture");
        aperture.field("link", link).field("bytes", bytes).field("rights", rights).finish()
    }
}

impl Drop for Aperture {
    fn drop(&mut self) {
        self.clan.with(|node, board| board.release(node, &self.core));
    }
}

impl Aperture {
    /// The region's length in bytes.
    pub fn bytes(&self) -> u64 {
        self.core.bytes
    }

    /// The rights that the peer gave.
    pub fn rights(&self) -> Rights {
        self.core.rights
    }

    /// [`Error::Closed`] or [`Error::Revoked`], if it has ended. Loads.
    pub fn check(&self) -> Result<(), Error> {
        self.core.check()
    }

    /// The path that its link takes, and the reason.
    pub fn explain(&self) -> Result<String, Error> {
        let explained = self.clan.manager().explain(self.core.link);
        explained.map_err(|e| Error::Closed(e.to_string()))
    }

    /// Whether its pages are mapped, so that [`store`](Self::store) and [`load`](Self::load) need nobody.
    pub fn is_mapped(&self) -> bool {
        self.core.mapped().is_some()
    }

    /// Writes bytes there, and trips the owner's wires on them (`clan_put`). Puts through apertures of one
    /// link arrive in their order. The owner's memory changes when its program takes turns, or has a thread
    /// of progress; that of a mapped region at once. Waits for room at most `limit`; the errors
    /// [`TimedOut`](Error::TimedOut) and [`Closed`](Error::Closed) leave the first part of a long put.
    #[inline]
    pub fn put(&self, offset: u64, bytes: &[u8], limit: Option<Duration>) -> Result<(), Error> {
        if let To::Slot(_, prepared, at_once) = &self.core.to
            && bytes.len() <= *at_once
            && self.core.check().is_ok()
            && self.clan.manager().send_prepared_now(prepared, offset, bytes, 0)
        {
            return Ok(());
        }
        self.put_long(offset, bytes, limit)
    }

    #[inline(never)]
    fn put_long(&self, offset: u64, bytes: &[u8], limit: Option<Duration>) -> Result<(), Error> {
        let core = &*self.core;
        core.check_access(false, offset, bytes.len() as u64)?;
        if let To::Mapped(aperture) = &core.to {
            aperture.write(offset, bytes)?;
        }
        let began = Instant::now();
        let mut done = 0;
        while done < bytes.len() {
            core.check()?;
            let left = limit.map(|limit| limit.saturating_sub(began.elapsed()));
            self.clan.send(left, core.link, |node, board| {
                let to = board.partners.get(&core.link).map(|partner| partner.to);
                done += core.put_some(node, to, offset + done as u64, &bytes[done..])?;
                Ok(())
            })?;
        }
        Ok(())
    }

    /// [`put`](Self::put), whose last packet also signals: the owner [takes](Region::take_signal) the word
    /// once, after the bytes have arrived. They may have been overwritten by then. Waits while the owner has
    /// as many signals as it allowed. Never lost: [`Error::TimedOut`] says that it was not sent.
    pub fn put_signal(
        &self,
        offset: u64,
        bytes: &[u8],
        word: u32,
        limit: Option<Duration>,
    ) -> Result<(), Error> {
        let core = &*self.core;
        core.check_access(false, offset, bytes.len() as u64)?;
        let (Some((signal, prepared)), To::Slot(_, _, at_once)) = (&core.signal, &core.to) else {
            return Err(Error::Misuse(
                "the memory was exported without signals or notifications".into(),
            ));
        };
        if bytes.len() <= *at_once && core.take_credit() {
            if self.clan.manager().send_prepared_now(prepared, offset, bytes, word) {
                return Ok(());
            }
            core.credit(1);
        }
        let began = Instant::now();
        let first = bytes.len().saturating_sub(1) / at_once * at_once;
        if first > 0 {
            self.put(offset, &bytes[..first], limit)?;
        }
        let left = limit.map(|limit| limit.saturating_sub(began.elapsed()));
        let no_place = |_| outside(offset, bytes.len() as u64, core.bytes);
        let ticket = signal.at(offset + first as u64).map_err(no_place)?;
        self.clan.wait_for_room(left, core.link, |node| {
            if core.check().is_err() {
                return Some(Err(NodeSendError::Unreachable(node.id())));
            }
            if !core.take_credit() {
                return None;
            }
            let sent = node.try_send_fast_over(core.link, &ticket, &bytes[first..], word);
            if sent.is_err() {
                core.credit(1);
            }
            Some(sent)
        })
    }

    /// Copies bytes from there. Of a mapped region with loads, which trip nothing; of another the owner's
    /// program answers, and its wires for reads trip. Waits at most `limit`.
    pub fn get(&self, offset: u64, to: &mut [u8], limit: Option<Duration>) -> Result<(), Error> {
        self.core.check_access(true, offset, to.len() as u64)?;
        if let Some(aperture) = self.core.mapped() {
            return Ok(aperture.read(offset, to)?);
        }
        if to.is_empty() {
            return Ok(());
        }
        let region = self.clan.region(to.len() as u64, 0)?;
        let queue = self.clan.request_queue(1, u8::MAX, 1 << 20)?;
        let length = to.len() as u64;
        let get = Request::Get { from: self, offset, to: &region, at: 0, length };
        queue.submit(&[get], Completion::None)?;
        queue.wait(limit)?.result?;
        region.read(0, to)
    }

    /// Programmed stores through a mapped aperture: at once, without the owner's program, and **without
    /// tripping its wires**; another thread or process may see the bytes in any order. Then ring a doorbell:
    /// [`put`](Self::put) into a wired word. Eight bytes at a multiple of 8 are stored as a whole, after
    /// everything that this thread has stored before: the owner's [`load`](Region::load) of them comes
    /// before its look at the rest.
    #[inline]
    pub fn store(&self, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        let mapped = self.checked_mapping()?;
        if let (true, Ok(word)) = (offset.is_multiple_of(8), bytes.try_into())
            && mapped.write_u64(offset, u64::from_ne_bytes(word)).is_ok()
        {
            return Ok(());
        }
        Ok(mapped.write(offset, bytes)?)
    }

    /// Programmed loads through a mapped aperture.
    #[inline]
    pub fn load(&self, offset: u64, to: &mut [u8]) -> Result<(), Error> {
        Ok(self.checked_mapping()?.read(offset, to)?)
    }

    fn checked_mapping(&self) -> Result<&hamlyn::Aperture, Error> {
        self.core.check()?;
        let none = || Error::Misuse("the region is not mapped: put and get reach it".into());
        self.core.mapped().ok_or_else(none)
    }
}
