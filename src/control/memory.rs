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
//! Who asks pays: memory is charged to whoever touches it first, and a file whose descriptor a
//! peer keeps stays charged after everybody else has closed it. So the client fills its own ring,
//! and touches every page of the server's.

use super::frame::Memory;
use super::machine::{Expected, Taken, Touched};
use crate::os::aperture::Pages;
use crate::os::memory::{
    self, DescriptorError, Region, RegionLines, SEALS_READ_ONLY, Wanted, region_bytes,
};
use rustix::fs::SealFlags;
use std::io;
use std::os::fd::OwnedFd;
use std::string::ToString;
use std::sync::Arc;

/// Memory that this process has made for the other end to map.
#[derive(Clone, Debug)]
pub(super) enum Made {
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
fn wanted(bytes: usize, filled: bool) -> Wanted {
    Wanted { seals: SEALS_READ_ONLY, seals_refused: SealFlags::WRITE, bytes, filled, huge: false }
}

/// Checks a stranger's file.
fn check(file: &OwnedFd, bytes: usize, filled: bool) -> Result<(), DescriptorError> {
    memory::check(file, &wanted(bytes, filled))?;
    if filled { memory::check_pages(file, bytes) } else { Ok(()) }
}

impl Made {
    /// A ring that this process writes. `fill`: it pays for it.
    pub(super) fn make(memory: Memory, bytes: u32, fill: bool) -> io::Result<Self> {
        let is_bulk = matches!(memory, Memory::Bulk(_));
        let size = if is_bulk { bytes as usize } else { region_bytes(bytes as usize) };
        let file = memory::create(size)?;
        let made = match is_bulk {
            true => {
                let lines = RegionLines::map_writable(&file, size)?;
                if fill {
                    lines.fill_by_writing()?;
                }
                Self::Bulk(lines, Arc::new(file))
            }
            false => {
                let region = Region::map_writable(&file, size)?;
                if fill {
                    region.fill_by_writing()?;
                }
                Self::Ring(region, Arc::new(file))
            }
        };
        memory::seal(made.file(), SEALS_READ_ONLY)?;
        Ok(made)
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
        let bytes = match self {
            Self::Ring(region, _) => region.bytes(),
            Self::Bulk(lines, _) => lines.bytes(),
            // Its owner touches it.
            Self::Aperture(_) => return Touched::Yes,
        };
        if memory::check(self.file(), &wanted(bytes, true)).is_err() {
            return Touched::NotPaid;
        }
        let there = match self {
            Self::Ring(region, _) => region.fill_by_writing(),
            Self::Bulk(lines, _) => lines.fill_by_writing(),
            Self::Aperture(_) => Ok(()),
        };
        match there {
            Ok(()) => Touched::Yes,
            Err(e) => Touched::Unavailable(e.to_string()),
        }
    }
}

impl Mapped {
    /// Checks a stranger's file, which is tmpfs if its seals are there, and maps it.
    pub(super) fn map(file: &OwnedFd, expected: &Expected) -> Result<Self, Taken> {
        let result = match expected.memory {
            Memory::Ring(_) => {
                let size = region_bytes(expected.bytes as usize);
                check(file, size, !expected.is_paid_here)
                    .and_then(|()| Region::map_read_only(file, size).map_err(DescriptorError::Map))
                    .and_then(|region| {
                        // Where it is paid for it stays from now on: nothing waits for this thread.
                        region.fill_by_reading().map_err(DescriptorError::Map)?;
                        Ok(Self::Ring(region))
                    })
            }
            Memory::Bulk(_) => {
                let size = expected.bytes as usize;
                check(file, size, !expected.is_paid_here)
                    .and_then(|()| {
                        RegionLines::map_read_only(file, size).map_err(DescriptorError::Map)
                    })
                    .and_then(|lines| {
                        lines.fill_by_reading().map_err(DescriptorError::Map)?;
                        Ok(Self::Bulk(lines))
                    })
            }
            Memory::Aperture(_) => {
                Pages::hold(file, expected.bytes, expected.access).map(Self::Aperture)
            }
        };
        result.map_err(|e| match e {
            DescriptorError::Map(why) => Taken::Unavailable(why.to_string()),
            _ => Taken::Wrong,
        })
    }
}
