//! Descriptors that another process sent: whether each is the memory that was agreed.
//!
//! Never: anything here waits for a stranger, takes a lock of the file's, or gives it a page.

use super::{HUGE_PAGE, Mapping, PAGE};
use crate::os::thread;
use rustix::fs::SealFlags;
use rustix::mm::{Advice, ProtFlags};
use std::io;
use std::os::fd::AsFd;

/// File system type of memory files.
pub(super) const TMPFS_MAGIC: u64 = 0x0102_1994;
/// File system type of memory files of huge pages.
const HUGETLBFS_MAGIC: u64 = 0x9584_58f6;

/// What a descriptor from another process must be.
#[derive(Clone, Copy, Debug)]
pub struct WantedDescriptor {
    /// Seals that must be there; others may be.
    pub seals: SealFlags,
    /// Seals that must not be there: with them the file could not be mapped as agreed.
    pub seals_refused: SealFlags,
    /// Exact size in bytes.
    pub bytes: usize,
    /// Whether every byte must have been paid for already. Of a file that a stranger made,
    /// [`check_pages`] says so.
    pub filled: bool,
    /// Whether huge pages were agreed.
    pub huge: bool,
}

/// A descriptor that is not what was agreed. It was not mapped.
#[derive(Debug, thiserror::Error)]
pub enum DescriptorError {
    /// Not a memory file at all.
    #[error("the descriptor is not a memory file ({0})")]
    NotMemory(io::Error),
    /// A memory file of another file system than agreed.
    #[error("the descriptor's file system is {found:#x}, and tmpfs ({TMPFS_MAGIC:#x}) was agreed")]
    FileSystem {
        /// The magic number found.
        found: u64,
    },
    /// Seals are missing, or too many.
    #[error(
        "the descriptor's seals are {found:#x}; {wanted:#x} must be there and {refused:#x} must not"
    )]
    Seals {
        /// Seals found.
        found: u32,
        /// Seals that must be there.
        wanted: u32,
        /// Seals that must not be there.
        refused: u32,
    },
    /// Another size than agreed.
    #[error("the descriptor has {found} bytes, and {wanted} were agreed")]
    Size {
        /// Bytes found.
        found: u64,
        /// Bytes agreed.
        wanted: u64,
    },
    /// Pages that nobody has paid for yet.
    #[error("only {found} of {wanted} bytes have been filled")]
    NotFilled {
        /// Bytes that have pages.
        found: u64,
        /// Bytes agreed.
        wanted: u64,
    },
    /// Pages behind its end, too many for a file of its size.
    #[error("the descriptor's file has {found} bytes of pages for {wanted} bytes")]
    Behind {
        /// Bytes that have pages.
        found: u64,
        /// Bytes agreed.
        wanted: u64,
    },
    /// It passed, and the system would not map it.
    #[error("the memory could not be mapped: {0}")]
    Map(io::Error),
}

/// Checks a descriptor that another process made.
///
/// The seals come first: reading them asks the kernel's own memory files only and cannot block,
/// while asking for the file system type of a stranger's FUSE file waits for the stranger. What
/// has seals is tmpfs or hugetlbfs, and everything after that answers at once.
pub fn check(fd: impl AsFd, wanted: &WantedDescriptor) -> Result<(), DescriptorError> {
    let fd = fd.as_fd();
    let not_memory = |e: rustix::io::Errno| DescriptorError::NotMemory(e.into());
    let found = rustix::fs::fcntl_get_seals(fd).map_err(not_memory)?;
    let system = rustix::fs::fstatfs(fd).map_err(not_memory)?.f_type as u64;
    if system != TMPFS_MAGIC && !(wanted.huge && system == HUGETLBFS_MAGIC) {
        return Err(DescriptorError::FileSystem { found: system });
    }
    if !found.contains(wanted.seals) || found.intersects(wanted.seals_refused) {
        return Err(DescriptorError::Seals {
            found: found.bits(),
            wanted: wanted.seals.bits(),
            refused: wanted.seals_refused.bits(),
        });
    }
    let stat = rustix::fs::fstat(fd).map_err(not_memory)?;
    let bytes = wanted.bytes as u64;
    if stat.st_size as u64 != bytes {
        return Err(DescriptorError::Size { found: stat.st_size as u64, wanted: bytes });
    }
    let filled = (stat.st_blocks as u64).saturating_mul(512);
    if wanted.filled && filled < bytes {
        return Err(DescriptorError::NotFilled { found: filled, wanted: bytes });
    }
    // Whoever unmaps a file last takes the time that it takes to free all of it.
    if filled > bytes.saturating_mul(2).saturating_add(BEHIND_MAX) {
        return Err(DescriptorError::Behind { found: filled, wanted: bytes });
    }
    Ok(())
}

/// Whether a file, whose pages are [pinned](super::Mapping::pin), has no more of them than its size
/// needs. What this says stays true.
pub fn check_size(fd: impl AsFd, bytes: usize) -> Result<(), DescriptorError> {
    let stat = rustix::fs::fstat(fd).map_err(|e| DescriptorError::NotMemory(e.into()))?;
    let found = (stat.st_blocks as u64).saturating_mul(512);
    match found > bytes.next_multiple_of(PAGE) as u64 {
        true => Err(DescriptorError::Behind { found, wanted: bytes as u64 }),
        false => Ok(()),
    }
}

/// Most bytes that a file may have behind its end, beside as many as it has before it: a huge
/// page is given whole.
const BEHIND_MAX: u64 = 64 << 20;
/// Pages that one look of the kernel's at a mapping covers.
const LOOK_PAGES: usize = 4096;
/// How often is looked again for pages that the kernel swaps in, and how long after.
const LOOKS: u32 = 25;
const LOOK_AGAIN: core::time::Duration = core::time::Duration::from_millis(2);
/// Older than this, the time at which a file's mode was changed last is told from that of a change
/// made now.
const CHANGED_NS: i128 = 20_000_000;

/// Whether every page of a stranger's file, which has passed [`check`], has been paid for.
///
/// Its blocks do not say: a file may have pages behind its end, which count as much and which its
/// maker can give back at any time, size sealed or not (`ftruncate` to the same size). So the
/// kernel is asked for the pages themselves. To whoever may not write the file it answers that all
/// are there; so it is asked, in the same look, for a page behind the end, too, which no honest
/// maker has made. A look covers 16 MiB; that the answer holds for the looks before it, too,
/// follows from the mode not having been changed meanwhile.
///
/// Neither a lock of the file's is taken nor a page given to it.
pub fn check_pages(fd: impl AsFd, bytes: usize) -> Result<(), DescriptorError> {
    let fd = fd.as_fd();
    let map = |e: io::Error| DescriptorError::Map(e);
    let end = bytes.checked_next_multiple_of(HUGE_PAGE).and_then(|end| end.checked_add(PAGE));
    let end = end.ok_or_else(|| map(io::ErrorKind::InvalidInput.into()))?;
    let mapping = Mapping::shared(fd, end, ProtFlags::READ).map_err(map)?;
    let changed = || -> io::Result<i128> {
        let stat = rustix::fs::fstat(fd)?;
        Ok(i128::from(stat.st_ctime) * 1_000_000_000 + stat.st_ctime_nsec as i128)
    };
    let (whole, behind) = (bytes.div_ceil(PAGE), end / PAGE - 1);
    let mut found = 0;
    for _ in 0..LOOKS {
        let before = changed().map_err(map)?;
        let pages = mapping.pages().map_err(map)?;
        found = pages[..whole].iter().filter(|is_there| **is_there).count();
        let is_certain = match end / PAGE <= LOOK_PAGES {
            true => true,
            false => {
                let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
                let now = i128::from(now.tv_sec) * 1_000_000_000 + i128::from(now.tv_nsec);
                // The clock may have been set back since then: a change made now shows as well.
                before == changed().map_err(map)? && (now - before).abs() > CHANGED_NS
            }
        };
        if found == whole && !pages[behind] && is_certain {
            return Ok(());
        }
        // What the kernel has swapped out is paid for, too, and is seen when it is back. What was
        // never there is not made by this.
        let _ = mapping.advise(Advice::WillNeed);
        thread::sleep(LOOK_AGAIN);
    }
    let found = (found * PAGE).min(bytes) as u64;
    Err(DescriptorError::NotFilled { found, wanted: bytes as u64 })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::{RegionLines, SEALS_READ_ONLY, create, seal};
    use super::*;
    use std::os::fd::OwnedFd;

    /// A file of a stranger's with pages, before its end or behind it.
    fn strangers_file(bytes: usize, pages: core::ops::Range<usize>) -> OwnedFd {
        let file = create(bytes).unwrap();
        let (from, length) = (pages.start as u64, pages.len() as u64);
        let keep = rustix::fs::FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&file, keep, from, length).unwrap();
        seal(&file, SEALS_READ_ONLY).unwrap();
        file
    }

    #[test]
    fn pages_behind_its_end_pay_for_nothing_of_a_file() {
        const BYTES: usize = 16 * PAGE;
        let wanted = WantedDescriptor {
            seals: SEALS_READ_ONLY,
            seals_refused: SealFlags::WRITE,
            bytes: BYTES,
            filled: true,
            huge: false,
        };
        let file = strangers_file(BYTES, BYTES..2 * BYTES);
        check(&file, &wanted).expect("its blocks alone say that it is filled");
        let error = check_pages(&file, BYTES).unwrap_err();
        assert!(matches!(error, DescriptorError::NotFilled { found: 0, .. }), "{error}");
        // And they can be given back: then nobody has paid for anything.
        rustix::fs::ftruncate(&file, BYTES as u64).unwrap();
        assert!(check(&file, &wanted).is_err());
        // So many that whoever unmaps it last would be kept by freeing them.
        let file = strangers_file(PAGE, PAGE..PAGE + (80 << 20));
        let small = WantedDescriptor { bytes: PAGE, filled: false, ..wanted };
        assert!(matches!(check(&file, &small), Err(DescriptorError::Behind { .. })));
    }

    #[test]
    fn where_the_kernel_will_not_say_which_pages_are_there_none_are() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let file = strangers_file(4 * PAGE, 4 * PAGE..8 * PAGE);
        rustix::fs::fchmod(&file, rustix::fs::Mode::empty()).unwrap();
        let as_another = std::thread::spawn(move || {
            // SAFETY: a call with a number, which changes this thread alone.
            unsafe { libc::setfsuid(12345) };
            let mapping = Mapping::shared(&file, 4 * PAGE, ProtFlags::READ).unwrap();
            assert_eq!(mapping.pages().unwrap(), [true; 4], "it says that all are there");
            assert!(check_pages(&file, 4 * PAGE).is_err());
        });
        as_another.join().unwrap();
    }

    #[test]
    fn a_filled_file_is_filled_however_large_it_is() {
        for bytes in [PAGE, 16 * PAGE, HUGE_PAGE + PAGE, 24 << 20] {
            let file = create(bytes).unwrap();
            let lines = RegionLines::map_writable(&file, bytes).unwrap();
            seal(&file, SEALS_READ_ONLY).unwrap();
            lines.mapping.advise(Advice::LinuxPopulateWrite).unwrap();
            check_pages(&file, bytes).unwrap();
            let other = create(bytes).unwrap();
            let lines = RegionLines::map_writable(&other, bytes).unwrap();
            let all_but_one = Mapping::of(lines.mapping.start.as_ptr(), bytes - PAGE).unwrap();
            if bytes > PAGE {
                all_but_one.advise(Advice::LinuxPopulateWrite).unwrap();
            }
            core::mem::forget(all_but_one);
            assert!(check_pages(&other, bytes).is_err());
        }
    }
}
