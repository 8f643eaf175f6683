//! The kernel's part of tracking: userfaultfd, and the scan of the page tables (Linux 6.7).
//!
//! ```text
//!   new         registers a range of this process's memory: its faults become signals, its stores are noticed
//!               (asynchronous write protection: the kernel lifts it at the first store)
//!   written     the pages whose protection was lifted, which are protected again
//!   resolve     a page of a memory file, which is there in the file, is entered into the page table
//! ```
//! Nothing here allocates but words of errors, so a signal's handler may call `written` and `resolve`.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Ranges of pages of one call of [`Userfault::written`].
pub const RANGES: usize = 256;

/// `struct pm_scan_arg` of Linux.
#[repr(C)]
#[derive(Default)]
struct ScanArguments {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vector: u64,
    vector_length: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

/// `struct page_region` of Linux: a range of addresses.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct PageRegion {
    start: u64,
    end: u64,
    categories: u64,
}

const PAGEMAP_SCAN: libc::c_ulong = 0xC060_6610;
const PM_SCAN_WP_MATCHING: u64 = 1;
const PM_SCAN_CHECK_WPASYNC: u64 = 2;
const PAGE_IS_WRITTEN: u64 = 2;

const UFFD_USER_MODE_ONLY: libc::c_int = 1;
const UFFDIO_API: libc::c_ulong = 0xC018_AA3F;
const UFFDIO_REGISTER: libc::c_ulong = 0xC020_AA00;
const UFFDIO_WRITEPROTECT: libc::c_ulong = 0xC018_AA06;
const UFFDIO_CONTINUE: libc::c_ulong = 0xC020_AA07;
const UFFD_API: u64 = 0xAA;
const UFFD_FEATURE_MISSING_SHMEM: u64 = 1 << 5;
const UFFD_FEATURE_SIGBUS: u64 = 1 << 7;
const UFFD_FEATURE_MINOR_SHMEM: u64 = 1 << 10;
const UFFD_FEATURE_WP_HUGETLBFS_SHMEM: u64 = 1 << 12;
const UFFD_FEATURE_WP_UNPOPULATED: u64 = 1 << 13;
const UFFD_FEATURE_WP_ASYNC: u64 = 1 << 15;
const UFFDIO_REGISTER_MODE_MISSING: u64 = 1;
const UFFDIO_REGISTER_MODE_WP: u64 = 2;
const UFFDIO_REGISTER_MODE_MINOR: u64 = 4;
const UFFDIO_CONTINUE_MODE_WP: u64 = 2;

/// What a registration is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watch {
    /// Stores to private memory.
    Stores,
    /// A mapping of a memory file: an access to a page that is not in the page table is a SIGBUS.
    Faults,
    /// Both, of a mapping of a memory file.
    StoresAndFaults,
}

/// A registered range. It ends with this value.
pub struct Userfault {
    descriptor: OwnedFd,
    pagemap: File,
    protects: bool,
}

fn checked(result: libc::c_int, doing: &str) -> io::Result<libc::c_int> {
    if result >= 0 {
        return Ok(result);
    }
    let error = io::Error::last_os_error();
    Err(io::Error::new(error.kind(), format!("{doing}: {error}")))
}

impl Userfault {
    /// Registers whole pages, and protects them if stores are watched.
    ///
    /// # Safety
    /// The range is mapped as `watch` says as long as this lives, and its faults and protection are the
    /// caller's to choose.
    pub unsafe fn new(start: usize, bytes: usize, watch: Watch) -> io::Result<Self> {
        let flags = libc::O_CLOEXEC | libc::O_NONBLOCK | UFFD_USER_MODE_ONLY;
        // SAFETY: a new descriptor, or an error.
        let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) } as libc::c_int;
        let fd = checked(fd, "userfaultfd")?;
        // SAFETY: it was just made, and belongs to nobody else.
        let descriptor = unsafe { OwnedFd::from_raw_fd(fd) };
        let pagemap = File::open("/proc/self/pagemap")?;
        let made = Self { descriptor, pagemap, protects: watch != Watch::Faults };
        let (mut features, mut modes) = (0, 0);
        if watch != Watch::Stores {
            features |= UFFD_FEATURE_MISSING_SHMEM | UFFD_FEATURE_MINOR_SHMEM | UFFD_FEATURE_SIGBUS;
            modes |= UFFDIO_REGISTER_MODE_MISSING | UFFDIO_REGISTER_MODE_MINOR;
        }
        if watch != Watch::Faults {
            features |= UFFD_FEATURE_WP_HUGETLBFS_SHMEM
                | UFFD_FEATURE_WP_UNPOPULATED
                | UFFD_FEATURE_WP_ASYNC;
            modes |= UFFDIO_REGISTER_MODE_WP;
        }
        let asynchronous = "userfaultfd's asynchronous write protection (Linux 6.7)";
        made.control(UFFDIO_API, &mut [UFFD_API, features, 0, 0], asynchronous)?;
        let mut register = [start as u64, bytes as u64, modes, 0];
        made.control(UFFDIO_REGISTER, &mut register, "registering memory to be tracked")?;
        if watch != Watch::Faults {
            let mut protect = [start as u64, bytes as u64, 1, 0];
            made.control(UFFDIO_WRITEPROTECT, &mut protect, "write protection")?;
            // So that a kernel without the scan is known now.
            made.written(start..start + 4096, |_| ())?;
        }
        Ok(made)
    }

    fn control(&self, request: libc::c_ulong, words: &mut [u64; 4], doing: &str) -> io::Result<()> {
        // SAFETY: each request reads and writes at most four words; its range is that of `new`.
        let done = unsafe { libc::ioctl(self.descriptor.as_raw_fd(), request, words.as_mut_ptr()) };
        checked(done, doing).map(drop)
    }

    /// Finds the pages of a range of addresses that were written, and protects them again: at most
    /// [`RANGES`] ranges of pages. Returns the end of the part that was looked at.
    pub fn written(
        &self,
        part: Range<usize>,
        mut take: impl FnMut(Range<usize>),
    ) -> io::Result<usize> {
        let mut regions = [PageRegion::default(); RANGES];
        let mut arguments = ScanArguments {
            size: size_of::<ScanArguments>() as u64,
            flags: PM_SCAN_WP_MATCHING | PM_SCAN_CHECK_WPASYNC,
            start: part.start as u64,
            end: part.end as u64,
            vector: regions.as_mut_ptr() as u64,
            vector_length: RANGES as u64,
            category_mask: PAGE_IS_WRITTEN,
            return_mask: PAGE_IS_WRITTEN,
            ..Default::default()
        };
        // SAFETY: the arguments name an array that is here until the call has returned.
        let count =
            unsafe { libc::ioctl(self.pagemap.as_raw_fd(), PAGEMAP_SCAN, &raw mut arguments) };
        let count = checked(count, "the scan of written pages (Linux 6.7)")? as usize;
        for region in regions.iter().take(count) {
            take(region.start as usize..region.end as usize);
        }
        Ok(arguments.walk_end as usize)
    }

    /// Enters pages of the memory file into the page table, protected if stores are watched; they are in the file. Pages that are
    /// entered already stay as they are.
    pub fn resolve(&self, pages: Range<usize>) -> io::Result<()> {
        let (start, bytes) = (pages.start as u64, pages.len() as u64);
        let mode = if self.protects { UFFDIO_CONTINUE_MODE_WP } else { 0 };
        let mut words = [start, bytes, mode, 0];
        let entered = self.control(UFFDIO_CONTINUE, &mut words, "entering pages");
        match entered {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            entered => entered,
        }
    }
}
