//! Memory that is open to one end point of another host, and the other end's.
//!
//! ```text
//!   owner: Lent                                   holder: Reached
//!   pages of a file --- address, base, key --->   write: into its own copy, then
//!   (end point, domain: of their own)  <--------  operations of at most OP_BYTES
//!   progress                           -------->  delivered: up to a mark
//!   close: ends all operations                    close: the same
//! ```
//! Each such memory has a domain and an end point of its own: a key is valid in a whole domain,
//! every end point with the key can write, and closing a registration does not end a write that has
//! begun. Closing the end point does: it ends the holder's access (tried;
//! `docs/decisions/closed-registrations.md`).
//!
//! A holder writes into memory of its own, at once, and operations send it from there in the order
//! of the writes; a part that is written again while it is on its way waits until it has arrived.
//!
//! Never: lent memory is unmapped, or given back, while the library uses its end point; two
//! operations write the same bytes at a time; a lock is held while waiting.

use super::endpoint::{FAR_OPS, FarMemory, OperationMemory};
use super::library::OP_BYTES;
use super::{Choice, FabricEndPoint, FabricError, FabricEvent, FabricPeer};
use crate::link::cells;
use crate::os::aperture::{AccessError, FarPages};
use crate::os::memory::{ForkGuard, RegionLines};
use crate::os::sys::{monotonic_ns, random, wait_for};
use crate::wire::ApertureAccess;
use core::mem::ManuallyDrop;
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::string::{String, ToString};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::vec::Vec;

/// Most parts that wait for their operations, and most bytes of one.
const PARTS_MAX: usize = 512;
const PART_BYTES_MAX: u64 = 4 << 20;
/// Bytes that are read at a time, by the last operation of [`FAR_OPS`].
const READ_BYTES: usize = 256 << 10;
const READ_OP: usize = FAR_OPS - 1;
/// Times that completions are read in one call.
const READS_PER_CALL: usize = 4;
/// Nanoseconds between two polls if nothing wakes the thread.
const LOOK_NS: u64 = 1_000_000;

/// Pages of this process that one other end point may read, and write if that is allowed. Dropping
/// this ends its access.
#[derive(Debug)]
pub struct LentPages {
    end: ManuallyDrop<FabricEndPoint>,
    /// While this is open, the pages count as in use.
    file: ManuallyDrop<OwnedFd>,
    at: FarMemory,
    events: Vec<FabricEvent>,
}

impl LentPages {
    /// Opens pages of a file; `file` is a descriptor like one for another process.
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
        let mut end = FabricEndPoint::open_for_memory(choice.duplicate()?)?;
        if end.descriptor().is_none() {
            return Err(os("waiting for it")("the provider has no descriptor for that".into()));
        }
        let at = end.lend(&lines, access, u64::from_ne_bytes(key))?;
        let (end, file) = (ManuallyDrop::new(end), ManuallyDrop::new(file));
        Ok(Self { end, file, at, events: Vec::new() })
    }

    /// Its end point's address.
    pub fn address(&self) -> &[u8] {
        self.end.address()
    }

    /// The memory's address and key, for the other end.
    pub fn memory(&self) -> FarMemory {
        self.at
    }

    /// Readable when something may have come.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.end.descriptor()
    }

    /// Makes progress with incoming writes. After an error nothing comes any more.
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

    /// Whether the descriptor signals everything that comes from now on.
    pub fn may_sleep(&mut self) -> bool {
        self.end.may_sleep()
    }
}

impl Drop for LentPages {
    fn drop(&mut self) {
        // SAFETY: taken once, here.
        let end = unsafe { ManuallyDrop::take(&mut self.end) };
        // Pages that the library still uses count as in use for good.
        if end.close() {
            // SAFETY: as above.
            drop(unsafe { ManuallyDrop::take(&mut self.file) });
        }
    }
}

/// Another host's memory, as described by its owner.
#[derive(Debug)]
pub struct DescribedMemory<'a> {
    /// Its end point's address.
    pub address: &'a [u8],
    /// The memory.
    pub memory: FarMemory,
    /// Its size.
    pub bytes: u64,
    /// This end's access.
    pub access: ApertureAccess,
}

#[derive(Clone, Copy, Debug)]
struct MemoryPart {
    /// The number of its first write.
    number: u64,
    offset: u64,
    bytes: u64,
}

impl MemoryPart {
    fn overlaps(&self, other: &Self) -> bool {
        self.offset < other.offset + other.bytes && other.offset < self.offset + self.bytes
    }
}

#[derive(Debug)]
struct MemoryInner {
    /// `None`: closed.
    end: Option<FabricEndPoint>,
    to: (FabricPeer, FarMemory),
    /// The memory for writes; `None`: read-only. Then the memory for reads.
    copy: Option<OperationMemory>,
    landing: OperationMemory,
    /// Parts that wait, and those on their way.
    parts: VecDeque<MemoryPart>,
    ops: [Option<MemoryPart>; READ_OP],
    written: u64,
    /// The number of operations that have arrived.
    arrived: u64,
    is_reading: bool,
    /// The reason why a write or read failed, and the time at which that was noticed.
    failed: Option<(String, u64)>,
    events: Vec<FabricEvent>,
}

/// Memory of another host.
#[derive(Debug)]
pub struct ReachedMemory {
    /// The bytes that this end has written.
    copy: Option<RegionLines>,
    landing: RegionLines,
    bytes: u64,
    timeout_ns: u64,
    inner: Mutex<MemoryInner>,
    /// Lets one thread read at a time.
    reads: Mutex<()>,
    guard: ForkGuard,
}

impl ReachedMemory {
    /// Opens another host's memory, without sending anything yet. A call waits at most `timeout_ns`
    /// for its owner.
    pub fn open(
        choice: &Choice,
        place: &DescribedMemory<'_>,
        timeout_ns: u64,
    ) -> Result<Self, FabricError> {
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
        let mut end = FabricEndPoint::open_for_memory(choice.duplicate()?)?;
        let peer = end.insert(place.address)?;
        let kept = copy.as_ref().map(|lines| end.keep(lines)).transpose()?;
        let inner = MemoryInner {
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

    fn lock(&self) -> MutexGuard<'_, MemoryInner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its size in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// A descriptor that is readable when something may have arrived.
    pub fn descriptor(&self) -> Option<OwnedFd> {
        self.lock().end.as_ref()?.descriptor()?.try_clone_to_owned().ok()
    }

    /// Makes progress with operations on their way.
    pub fn progress(&self) {
        self.lock().progress();
    }

    /// A mark for the writes so far.
    pub fn mark(&self) -> u64 {
        self.lock().written
    }

    /// Whether all writes up to a mark have arrived, or never will, because this has been closed.
    pub fn has_delivered(&self, mark: u64) -> bool {
        self.lock().has_delivered(mark)
    }

    /// Whether nothing is on its way.
    pub fn is_quiet(&self) -> bool {
        let inner = self.lock();
        !inner.is_reading && inner.has_delivered(inner.written)
    }

    /// While writes are on their way and none is known to have failed: the number of operations
    /// that have arrived.
    pub fn arrived(&self) -> Option<u64> {
        let inner = self.lock();
        let is_over = inner.failed.is_some() || inner.has_delivered(inner.written);
        (!is_over).then_some(inner.arrived)
    }

    /// The reason why an operation failed, and the time at which that was noticed.
    pub fn failed(&self) -> Option<(String, u64)> {
        self.lock().failed.clone()
    }

    /// Whether the descriptor signals everything that arrives from now on.
    pub fn may_sleep(&self) -> bool {
        let mut inner = self.lock();
        inner.progress();
        inner.end.as_mut().is_none_or(FabricEndPoint::may_sleep)
    }

    /// Ends all operations. Writes that have not arrived never will.
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
        // Memory that the library still uses stays mapped: the end point has a reference, too.
        drop(end);
    }
}

impl MemoryInner {
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
                let FabricEvent::Far { op, ended } = event else { continue };
                match self.ops.get_mut(op) {
                    Some(place) if ended.is_ok() => {
                        *place = None;
                        self.arrived += 1;
                    }
                    // The operation stays: its bytes have not been written.
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

    /// Begins operations for the waiting parts, as far as there is room.
    fn begin(&mut self) {
        let (Some(end), Some(copy)) = (&mut self.end, &self.copy) else { return };
        while self.failed.is_none()
            && let Some(part) = self.parts.front_mut()
            && let Some(op) = self.ops.iter().position(Option::is_none)
        {
            let first = MemoryPart { bytes: part.bytes.min(OP_BYTES), ..*part };
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

    /// Records a write as a part to be sent.
    fn wrote(&mut self, offset: u64, bytes: u64) -> Result<(), AccessError> {
        let count = self.parts.len();
        if let Some(last) = self.parts.back_mut()
            && last.offset + last.bytes == offset
            && last.bytes + bytes <= PART_BYTES_MAX
        {
            last.bytes += bytes;
        } else if count < PARTS_MAX {
            self.parts.push_back(MemoryPart { number: self.written + 1, offset, bytes });
        } else {
            return Err(AccessError::Busy(PARTS_MAX));
        }
        self.written += 1;
        Ok(())
    }
}

impl FarPages for ReachedMemory {
    fn write(&self, offset: u64, from: &[u8]) -> Result<(), AccessError> {
        let Some(copy) = &self.copy else { return Err(AccessError::ReadOnly) };
        let mut at = offset;
        for piece in from.chunks(OP_BYTES as usize) {
            {
                // Checks for room first: a write without room changes nothing.
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
        // This includes waiting for other readers.
        let until_ns = monotonic_ns().saturating_add(self.timeout_ns);
        let _turn = self.reads.lock().unwrap_or_else(PoisonError::into_inner);
        // This end's earlier writes must have arrived before.
        let mark = self.mark();
        self.wait(until_ns, |inner| inner.has_delivered(mark) && !inner.is_reading)?;
        let mut at = offset;
        for piece in to.chunks_mut(READ_BYTES) {
            self.wait(until_ns, |inner| {
                let MemoryInner { end: Some(end), landing, to, .. } = inner else { return true };
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

impl ReachedMemory {
    /// Waits until `look` returns true. The lock is free while it waits.
    fn wait(
        &self,
        until_ns: u64,
        mut look: impl FnMut(&mut MemoryInner) -> bool,
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
                inner
                    .end
                    .as_ref()
                    .and_then(FabricEndPoint::descriptor)
                    .map(|fd| fd.try_clone_to_owned())
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

impl Drop for ReachedMemory {
    fn drop(&mut self) {
        self.close();
    }
}
