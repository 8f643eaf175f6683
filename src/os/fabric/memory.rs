//! Memory that is open to one end point of another host, and the other end's.
//!
//! ```text
//!   owner: Lent                                   holder: Reached
//!   pages of a file --- address, base, key --->   write: into its own copy, then
//!   (end point, domain: of their own)  <--------  operations of at most OP_BYTES
//!   progress                           -------->  delivered: up to a mark
//!   close: ends whatever is on its way            close: the same
//! ```
//! A domain and an end point for each such memory: a key is of a domain, whoever has it can write, and
//! closing a registration does not end a write that has begun. Closing the end point does: it is the
//! end of what its holder may do (tried; `docs/decisions/closed-registrations.md`).
//!
//! A holder writes into memory of its own, at once, and operations carry it from there in the order in which
//! it was written; where a part is on its way, what is written there again waits until it has arrived.
//!
//! Never: memory that is lent is unmapped, or given back, while the library has its end point; two
//! operations write the same bytes at a time; a lock is held while waiting.

use super::endpoint::{FAR_OPS, FarMemory, Kept};
use super::{Choice, EndPoint, Event, FabricError, Peer};
use crate::link::cells;
use crate::os::aperture::{AccessError, Far};
use crate::os::memory::{ForkGuard, RegionLines};
use crate::os::sys::{monotonic_ns, random, wait_for};
use crate::wire::ApertureAccess;
use core::mem::ManuallyDrop;
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::string::{String, ToString};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::vec::Vec;

/// Bytes of one operation: what is copied is in a core's cache when the system takes it.
pub(super) const OP_BYTES: u64 = 256 << 10;
/// Parts that wait for their operations, and bytes of one of them.
const PARTS_MAX: usize = 512;
const PART_BYTES_MAX: u64 = 4 << 20;
/// Bytes that are read at a time; the operation that does it is the last of [`FAR_OPS`].
const READ_BYTES: usize = 256 << 10;
const READ_OP: usize = FAR_OPS - 1;
/// Times that completions are read in one call.
const READS_PER_CALL: usize = 4;
/// Nanoseconds between two looks where nothing wakes.
const LOOK_NS: u64 = 1_000_000;

/// Pages of this process that one other end point may read, and write where it may. Dropped, nobody
/// can any more.
#[derive(Debug)]
pub struct Lent {
    end: ManuallyDrop<EndPoint>,
    /// As long as this is open, the pages count as somebody's.
    file: ManuallyDrop<OwnedFd>,
    at: FarMemory,
    events: Vec<Event>,
}

impl Lent {
    /// Opens pages of a file, of which this is a descriptor that another process would have.
    pub fn open(
        choice: &Choice,
        file: OwnedFd,
        bytes: usize,
        access: ApertureAccess,
    ) -> Result<Self, FabricError> {
        let os = |doing| move |why: String| FabricError::Refused { doing, code: 0, why };
        let key = random::<8>().map_err(|e| os("asking for random bytes")(e.to_string()))?;
        let may_write = access == ApertureAccess::ReadWrite;
        let lines = RegionLines::map_aperture(&file, bytes, may_write).map_err(|e| e.to_string());
        let lines = lines.map_err(os("mapping memory"))?;
        let mut end = EndPoint::open_for_memory(choice.duplicate()?)?;
        if end.descriptor().is_none() {
            return Err(os("waiting for it")("the provider has no descriptor for that".into()));
        }
        let at = end.lend(&lines, access, u64::from_ne_bytes(key))?;
        let (end, file) = (ManuallyDrop::new(end), ManuallyDrop::new(file));
        Ok(Self { end, file, at, events: Vec::new() })
    }

    /// Where its end point is.
    pub fn address(&self) -> &[u8] {
        self.end.address()
    }

    /// What the other end needs to write there.
    pub fn memory(&self) -> FarMemory {
        self.at
    }

    /// Readable when something may have come.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.end.descriptor()
    }

    /// Moves what has come. An error: nothing comes any more.
    pub fn progress(&mut self) -> Result<(), FabricError> {
        for _ in 0..READS_PER_CALL {
            let more = self.end.poll(&mut self.events)?;
            self.events.clear();
            if !more {
                break;
            }
        }
        Ok(())
    }

    /// Whether the descriptor tells of whatever comes from now on.
    pub fn may_sleep(&mut self) -> bool {
        self.end.may_sleep()
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        // SAFETY: taken once, here.
        let end = unsafe { ManuallyDrop::take(&mut self.end) };
        // Pages that the library does not let go of count as somebody's for good.
        if end.close() {
            // SAFETY: as above.
            drop(unsafe { ManuallyDrop::take(&mut self.file) });
        }
    }
}

/// Where memory of another host is, as its owner says.
#[derive(Debug)]
pub struct Place<'a> {
    /// Its end point's address.
    pub address: &'a [u8],
    /// The memory.
    pub memory: FarMemory,
    /// Bytes of it.
    pub bytes: u64,
    /// What this end may do.
    pub access: ApertureAccess,
}

#[derive(Clone, Copy, Debug)]
struct Part {
    /// The first write that is in it.
    number: u64,
    offset: u64,
    bytes: u64,
}

impl Part {
    fn overlaps(&self, other: &Self) -> bool {
        self.offset < other.offset + other.bytes && other.offset < self.offset + self.bytes
    }
}

#[derive(Debug)]
struct Inner {
    /// `None`: closed.
    end: Option<EndPoint>,
    to: (Peer, FarMemory),
    /// What is written from; `None`: it may only be read. And what is read into.
    copy: Option<Kept>,
    landing: Kept,
    /// What waits, and what is on its way.
    parts: VecDeque<Part>,
    ops: [Option<Part>; READ_OP],
    written: u64,
    /// Operations that have arrived.
    arrived: u64,
    is_reading: bool,
    /// Why something that was written, or read, did not arrive, and since when that is known.
    failed: Option<(String, u64)>,
    events: Vec<Event>,
}

/// Memory of another host.
#[derive(Debug)]
pub struct Reached {
    /// What this end has written.
    copy: Option<RegionLines>,
    landing: RegionLines,
    bytes: u64,
    timeout_ns: u64,
    inner: Mutex<Inner>,
    /// Whoever reads, one at a time.
    reads: Mutex<()>,
    guard: ForkGuard,
}

impl Reached {
    /// Memory at this place. Nothing is sent yet. Nobody waits longer than `timeout_ns` for its owner.
    pub fn open(choice: &Choice, place: &Place<'_>, timeout_ns: u64) -> Result<Self, FabricError> {
        let os = |e: std::io::Error| FabricError::Refused {
            doing: "mapping memory",
            code: e.raw_os_error().unwrap_or(0),
            why: e.to_string(),
        };
        let may_write = place.access == ApertureAccess::ReadWrite;
        let copy = may_write.then(|| RegionLines::private(place.bytes as usize)).transpose();
        let copy = copy.map_err(os)?;
        let landing = RegionLines::private(READ_BYTES).map_err(os)?;
        let guard = ForkGuard::new().map_err(os)?;
        let mut end = EndPoint::open_for_memory(choice.duplicate()?)?;
        let peer = end.insert(place.address)?;
        let kept = copy.as_ref().map(|lines| end.keep(lines)).transpose()?;
        let inner = Inner {
            copy: kept,
            landing: end.keep(&landing)?,
            end: Some(end),
            to: (peer, place.memory),
            parts: VecDeque::with_capacity(PARTS_MAX),
            ops: [None; READ_OP],
            written: 0,
            arrived: 0,
            is_reading: false,
            failed: None,
            events: Vec::with_capacity(FAR_OPS),
        };
        let (inner, reads) = (Mutex::new(inner), Mutex::new(()));
        Ok(Self { copy, landing, bytes: place.bytes, timeout_ns, inner, reads, guard })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// A descriptor that is readable when something may have arrived.
    pub fn descriptor(&self) -> Option<OwnedFd> {
        self.lock().end.as_ref()?.descriptor()?.try_clone_to_owned().ok()
    }

    /// Goes on with what is on its way.
    pub fn progress(&self) {
        self.lock().progress();
    }

    /// How much has been written so far.
    pub fn mark(&self) -> u64 {
        self.lock().written
    }

    /// Whether everything up to a mark is there, or never will be, because this has been closed.
    pub fn has_delivered(&self, mark: u64) -> bool {
        self.lock().has_delivered(mark)
    }

    /// Whether nothing is on its way.
    pub fn is_quiet(&self) -> bool {
        let inner = self.lock();
        !inner.is_reading && inner.has_delivered(inner.written)
    }

    /// While something that was written is on its way, and it is not known that it fails: how many
    /// operations have arrived.
    pub fn arrived(&self) -> Option<u64> {
        let inner = self.lock();
        let is_over = inner.failed.is_some() || inner.has_delivered(inner.written);
        (!is_over).then_some(inner.arrived)
    }

    /// Why something did not arrive, and since when that is known.
    pub fn failed(&self) -> Option<(String, u64)> {
        self.lock().failed.clone()
    }

    /// Whether the descriptor tells of whatever arrives from now on.
    pub fn may_sleep(&self) -> bool {
        let mut inner = self.lock();
        inner.progress();
        inner.end.as_mut().is_none_or(EndPoint::may_sleep)
    }

    /// Ends what is on its way. What was written and has not arrived never will.
    pub fn close(&self) {
        if !self.guard.is_parent() {
            return;
        }
        let end = {
            let mut inner = self.lock();
            inner.parts.clear();
            inner.ops = [None; READ_OP];
            inner.is_reading = false;
            inner.failed = None;
            inner.end.take()
        };
        // What the library does not let go of stays mapped: the end point has it, too.
        drop(end);
    }
}

impl Inner {
    fn has_delivered(&self, mark: u64) -> bool {
        let under_way = self.ops.iter().flatten().chain(self.parts.front());
        under_way.map(|part| part.number).min().is_none_or(|first| first > mark)
    }

    fn progress(&mut self) {
        let Some(end) = &mut self.end else { return };
        let mut events = core::mem::take(&mut self.events);
        for _ in 0..READS_PER_CALL {
            let polled = end.poll(&mut events);
            for event in events.drain(..) {
                let Event::Far { op, ended } = event else { continue };
                match self.ops.get_mut(op) {
                    Some(place) if ended.is_ok() => {
                        *place = None;
                        self.arrived += 1;
                    }
                    // It stays: what was written there is not.
                    Some(_) => {}
                    None => self.is_reading = false,
                }
                if let Err(why) = ended {
                    self.failed.get_or_insert_with(|| (why, monotonic_ns()));
                }
            }
            match polled {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => {
                    self.failed.get_or_insert_with(|| (error.to_string(), monotonic_ns()));
                    break;
                }
            }
        }
        self.events = events;
        self.begin();
    }

    /// Begins with what waits, as far as there is room for it.
    fn begin(&mut self) {
        let (Some(end), Some(copy)) = (&mut self.end, &self.copy) else { return };
        while self.failed.is_none()
            && let Some(part) = self.parts.front_mut()
            && let Some(op) = self.ops.iter().position(Option::is_none)
        {
            let first = Part { bytes: part.bytes.min(OP_BYTES), ..*part };
            if self.ops.iter().flatten().any(|other| other.overlaps(&first)) {
                return;
            }
            let from = first.offset as usize..(first.offset + first.bytes) as usize;
            match end.begin_far(op, self.to, first.offset, (copy, from), false) {
                Ok(true) => {
                    self.ops[op] = Some(first);
                    part.offset += first.bytes;
                    part.bytes -= first.bytes;
                    if part.bytes == 0 {
                        self.parts.pop_front();
                    }
                }
                Ok(false) => return,
                Err(error) => self.failed = Some((error.to_string(), monotonic_ns())),
            }
        }
    }

    /// Keeps in mind that something was written.
    fn wrote(&mut self, offset: u64, bytes: u64) -> Result<(), AccessError> {
        let count = self.parts.len();
        if let Some(last) = self.parts.back_mut()
            && last.offset + last.bytes == offset
            && last.bytes + bytes <= PART_BYTES_MAX
        {
            last.bytes += bytes;
        } else if count < PARTS_MAX {
            self.parts.push_back(Part { number: self.written + 1, offset, bytes });
        } else {
            return Err(AccessError::Busy(PARTS_MAX));
        }
        self.written += 1;
        Ok(())
    }
}

impl Far for Reached {
    fn write(&self, offset: u64, from: &[u8]) -> Result<(), AccessError> {
        let Some(copy) = &self.copy else { return Err(AccessError::ReadOnly) };
        let mut at = offset;
        for piece in from.chunks(OP_BYTES as usize) {
            {
                // Room first: what finds none has changed nothing.
                let mut inner = self.lock();
                if inner.parts.len() >= PARTS_MAX {
                    inner.progress();
                }
                if inner.parts.len() >= PARTS_MAX {
                    return Err(AccessError::Busy(PARTS_MAX));
                }
            }
            cells::write_at(cells::Lines::lines(copy), at as usize, piece);
            let mut inner = self.lock();
            if inner.end.is_none() {
                return Err(AccessError::Revoked);
            }
            inner.wrote(at, piece.len() as u64)?;
            inner.progress();
            at += piece.len() as u64;
        }
        Ok(())
    }

    fn read(&self, offset: u64, to: &mut [u8]) -> Result<(), AccessError> {
        // Of whoever reads before this, too.
        let until_ns = monotonic_ns().saturating_add(self.timeout_ns);
        let _turn = self.reads.lock().unwrap_or_else(PoisonError::into_inner);
        // What this end has written is there first.
        let mark = self.mark();
        self.wait(until_ns, |inner| inner.has_delivered(mark) && !inner.is_reading)?;
        let mut at = offset;
        for piece in to.chunks_mut(READ_BYTES) {
            self.wait(until_ns, |inner| {
                let Inner { end: Some(end), landing, to, .. } = inner else { return true };
                match end.begin_far(READ_OP, *to, at, (landing, 0..piece.len()), true) {
                    Ok(begun) => {
                        inner.is_reading = begun;
                        begun
                    }
                    Err(error) => {
                        inner.failed = Some((error.to_string(), monotonic_ns()));
                        false
                    }
                }
            })?;
            self.wait(until_ns, |inner| !inner.is_reading)?;
            cells::read_at(cells::Lines::lines(&self.landing), 0, piece);
            at += piece.len() as u64;
        }
        Ok(())
    }
}

impl Reached {
    /// Until `look` says so. Nobody has the lock while it waits.
    fn wait(
        &self,
        until_ns: u64,
        mut look: impl FnMut(&mut Inner) -> bool,
    ) -> Result<(), AccessError> {
        loop {
            let descriptor = {
                let mut inner = self.lock();
                inner.progress();
                if inner.end.is_none() || inner.failed.is_some() {
                    return Err(AccessError::Revoked);
                }
                if look(&mut inner) {
                    return Ok(());
                }
                inner.end.as_ref().and_then(EndPoint::descriptor).map(|fd| fd.try_clone_to_owned())
            };
            let now_ns = monotonic_ns();
            if now_ns >= until_ns {
                return Err(AccessError::Silent);
            }
            let next_ns = until_ns.min(now_ns + LOOK_NS);
            match descriptor {
                Some(Ok(fd)) => drop(wait_for(&[(fd.as_fd(), false)], next_ns)),
                _ => crate::os::thread::sleep(core::time::Duration::from_nanos(next_ns - now_ns)),
            }
        }
    }
}

impl Drop for Reached {
    fn drop(&mut self) {
        self.close();
    }
}
