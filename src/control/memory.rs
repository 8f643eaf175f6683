//! The memory of a link: made and sealed by the end that writes it, checked and mapped by the end
//! that reads it.
//!
//! ```text
//!   writer                                       reader
//!   makes the file, maps it writable,
//!   fills it (if it pays), seals it
//!          ----------- descriptor ----------->   its seals, file system, size, blocks, pages: in
//!                                                this order; maps it, touches them (if it pays)
//! ```
//! Once another process has a descriptor of a file, nothing is done to the file for which the
//! kernel takes its inode's lock (sealing, punching, resizing): the other end can hold that lock,
//! by a `write` from a buffer whose pages never come, and a thread that waits for it cannot even be
//! killed. Asking for seals, size, blocks and pages, and mapping, take no such lock.
//!
//! From the moment at which a link is there nobody can put other pages in the place of a ring's: each
//! end pins them, those of its own ring before the other end has it or when that has paid for them, and
//! looks then, whether they are as many as were agreed.
//!
//! Who asks pays: memory is charged to whoever touches it first, and a file whose descriptor a
//! peer keeps stays charged after everybody else has closed it. So the client fills its own ring,
//! and touches every page of the server's.

use super::frame::Memory;
use super::machine::{Expected, MemoryOutcome, Touched};
use crate::os::aperture::Pages;
use crate::os::memory::{
    self, DescriptorError, Mapping, Region, RegionLines, SEALS_READ_ONLY, WantedDescriptor,
    region_bytes,
};
use rustix::fs::SealFlags;
use std::io;
use std::os::fd::OwnedFd;
use std::string::ToString;
use std::sync::Arc;

/// Memory that this process has made for the other end to map.
#[derive(Clone, Debug)]
pub(super) enum MadeMemory {
    /// A ring, and its file until it is paid for.
    Ring(Region, Arc<OwnedFd>),
    /// A bulk ring, likewise.
    Bulk(RegionLines, Arc<OwnedFd>),
    /// An aperture's memory, whose owner has it.
    Aperture(Arc<OwnedFd>),
}

/// Memory that this process has mapped.
#[derive(Debug)]
pub(super) enum Mapped {
    Ring(Region),
    Bulk(RegionLines),
    Aperture(Pages),
}

/// The requirements on a file that the other end writes.
fn wanted(bytes: usize, filled: bool) -> WantedDescriptor {
    WantedDescriptor {
        seals: SEALS_READ_ONLY,
        seals_refused: SealFlags::WRITE,
        bytes,
        filled,
        huge: false,
    }
}

/// Checks a stranger's file.
fn check(file: &OwnedFd, bytes: usize, filled: bool) -> Result<(), DescriptorError> {
    memory::check(file, &wanted(bytes, filled))?;
    if filled { memory::check_pages(file, bytes) } else { Ok(()) }
}

/// The size of a ring's file; `None`: memory of the application's.
fn size_of(memory: Memory, bytes: u64) -> Option<usize> {
    match memory {
        Memory::Ring(_) => Some(region_bytes(bytes as usize)),
        Memory::Bulk(_) => Some(bytes as usize),
        Memory::Aperture(_) => None,
    }
}

impl MadeMemory {
    /// A ring that this process writes. `fill`: it pays for it.
    pub(super) fn make(memory: Memory, bytes: u32, fill: bool) -> io::Result<Self> {
        let size = size_of(memory, bytes.into()).ok_or(io::ErrorKind::InvalidInput)?;
        if fill {
            memory::check_room(size)?;
        }
        let file = Arc::new(memory::create(size)?);
        let made = match memory {
            Memory::Bulk(_) => Self::Bulk(RegionLines::map_writable(&file, size)?, file),
            _ => Self::Ring(Region::map_writable(&file, size)?, file),
        };
        if fill && let Some(mapping) = made.mapping() {
            mapping.fill_by_writing()?;
            mapping.pin()?;
        }
        memory::seal(made.file(), SEALS_READ_ONLY)?;
        Ok(made)
    }

    fn mapping(&self) -> Option<&Mapping> {
        match self {
            Self::Ring(region, _) => Some(region),
            Self::Bulk(lines, _) => Some(lines),
            Self::Aperture(_) => None,
        }
    }

    pub(super) fn file(&self) -> &Arc<OwnedFd> {
        match self {
            Self::Ring(_, file) | Self::Bulk(_, file) | Self::Aperture(file) => file,
        }
    }

    /// Whether every page has been paid for: the size was sealed before any other process had the
    /// file, so that it has no pages but its own. Then touches all pages, which stay in memory from
    /// then on; for a page that was swapped out, that waits for the control group of the process
    /// that pays.
    pub(super) fn touch(&self) -> Touched {
        // An aperture's owner touches it.
        let Some(mapping) = self.mapping() else { return Touched::Yes };
        let bytes = mapping.bytes();
        if memory::check(self.file(), &wanted(bytes, true)).is_err() {
            return Touched::NotPaid;
        }
        let there = mapping.fill_by_writing().and_then(|()| mapping.pin());
        match there {
            Err(e) => Touched::Unavailable(e.to_string()),
            // The process that had it until now may have replaced its pages by larger ones.
            Ok(()) if memory::check_size(self.file(), bytes).is_err() => Touched::NotPaid,
            Ok(()) => Touched::Yes,
        }
    }
}

impl Mapped {
    /// Checks a stranger's file, which is tmpfs if its seals are there, and maps it. A ring is then to be
    /// [pinned](Self::pin), and [looked at](Self::check_size) again.
    pub(super) fn map(file: &OwnedFd, expected: &Expected) -> Result<Self, MemoryOutcome> {
        let map = || {
            let Some(size) = size_of(expected.memory, expected.bytes) else {
                let pages = Pages::hold(file, expected.bytes, expected.access)?;
                return Ok(Self::Aperture(pages));
            };
            check(file, size, !expected.is_paid_here)?;
            let mapped = match expected.memory {
                Memory::Bulk(_) => RegionLines::map_read_only(file, size).map(Self::Bulk),
                _ => Region::map_read_only(file, size).map(Self::Ring),
            };
            let mapped = mapped.map_err(DescriptorError::Map)?;
            if let Some(mapping) = mapped.mapping() {
                // Where it is paid for it stays from now on: nothing waits for this thread.
                mapping.fill_by_reading().map_err(DescriptorError::Map)?;
            }
            Ok(mapped)
        };
        map().map_err(taken)
    }

    fn mapping(&self) -> Option<&Mapping> {
        match self {
            Self::Ring(region) => Some(region),
            Self::Bulk(lines) => Some(lines),
            // Its holder's quota counts what is agreed, and its owner pays for what is there.
            Self::Aperture(_) => None,
        }
    }

    /// Keeps a ring's pages from being replaced. Not in the strangers' table of descriptors: what this
    /// opens is closed in the program's.
    pub(super) fn pin(&self) -> io::Result<()> {
        self.mapping().map_or(Ok(()), Mapping::pin)
    }

    /// Whether a ring has the pages that were agreed and no more, once they are pinned.
    pub(super) fn check_size(file: &OwnedFd, expected: &Expected) -> Result<(), MemoryOutcome> {
        let Some(bytes) = size_of(expected.memory, expected.bytes) else { return Ok(()) };
        memory::check_size(file, bytes).map_err(taken)
    }
}

/// The answer about memory that has this fault.
fn taken(error: DescriptorError) -> MemoryOutcome {
    match error {
        DescriptorError::Map(why) => MemoryOutcome::Unavailable(why.to_string()),
        _ => MemoryOutcome::Wrong,
    }
}
