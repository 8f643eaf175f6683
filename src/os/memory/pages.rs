//! Memory of a message area at an address of the application's own, of which the library has a
//! second view.
//!
//! ```text
//!   application's view, at its own address          the library's view
//!   protected by mprotect as the application  <-->  always readable and writable: deposits, sends
//!   likes; its faults are its own
//!                     one memory file, whose size no process can lower
//! ```
//! A layer for shared virtual memory (SHRIMP, 3), a garbage collector or a library with a heap of
//! its own protects pages in order to hear of its *own* accesses. The deposit of a message must
//! neither trap there nor require that the page is opened first, while other threads run.
//!
//! Never: a file is mapped here whose size another process can still lower (an access behind its
//! end would kill the process); the application's view is unmapped or protected by the library.

use super::received::TMPFS_MAGIC;
use super::{Mapping, PAGE, RegionLines, create, seal};
use crate::os::call::{OfCall, told};
use rustix::fs::{OFlags, SealFlags};
use rustix::mm::{Advice, MremapFlags, ProtFlags};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Pages for a message area which the application sees at an address of its own, and which it may
/// protect, with `mprotect`, at any time. The library has a view of its own, which is always
/// readable and writable, and through which every deposit and every send goes. So a deposit causes
/// no fault, and a handler of faults sees only the application's own accesses.
///
/// Pass it to [`Node::message_area_of`](crate::Node::message_area_of) or
/// [`send_buffer_of`](crate::Node::send_buffer_of). When the area has been removed, or the node has
/// gone, only the library's view is unmapped: the application's view stays, with its bytes and its
/// protection, until the application unmaps it.
///
/// In a forked child the area does not exist, like everything else of a node.
///
/// ```
/// use hamlyn::{AreaPages, MetadataIndex, Node, SlotConfig};
/// use rustix::fs::{MemfdFlags, SealFlags};
/// use std::os::unix::fs::FileExt;
///
/// // Usually the application also maps and protects it.
/// let file = rustix::fs::memfd_create("pages", MemfdFlags::ALLOW_SEALING)?;
/// rustix::fs::ftruncate(&file, 8192)?;
/// rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK)?;
///
/// # let dir = std::env::temp_dir().join(format!("hamlyn-doc-pages-{}", std::process::id()));
/// # let mut node = Node::with_config(hamlyn::Config::from_env()?.dir(&dir))?;
/// // SAFETY: no other process has the file, or looks at it while a message is on its way.
/// let pages = unsafe { AreaPages::of_file(&file, 4096, 4096)? };
/// assert_eq!(pages.bytes(), 4096);
/// let area = node.message_area_of(pages)?;
/// let queue = node.notification_queue(1)?;
/// let slot = node.slot(SlotConfig::new(area, queue))?;
/// node.send(&node.ticket(slot, MetadataIndex(0))?, b"into the file", b"", None)?;
/// node.recv(queue, None)?;
/// let mut found = [0; 13];
/// let file = std::fs::File::from(file);
/// file.read_exact_at(&mut found, 4096)?;
/// assert_eq!(&found, b"into the file");
/// // And to be sent from.
/// // SAFETY: as above.
/// let pages = unsafe { AreaPages::of_file(&file, 0, 4096)? };
/// node.send_buffer_of(node.primary(), pages)?;
/// # drop(node);
/// # std::fs::remove_dir_all(&dir).ok();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct AreaPages {
    pub(super) mapping: Mapping,
    pub(super) bytes: usize,
}

/// Pages from which no message area can be made.
#[derive(Debug, thiserror::Error)]
#[cfg_attr(not(feature = "unstable-internals"), non_exhaustive)]
pub enum PagesError {
    /// No bytes.
    #[error("a message area has at least 1 byte, and 0 were given")]
    Empty,
    /// Not the beginning of a page.
    #[error("the address {address:#x} is no multiple of the page size, {page} bytes")]
    Address {
        /// The address.
        address: usize,
        /// Bytes of a page.
        page: usize,
    },
    /// Not the beginning of a page of the file.
    #[error("the offset {offset} is no multiple of the page size, {page} bytes")]
    Offset {
        /// The offset.
        offset: u64,
        /// Bytes of a page.
        page: usize,
    },
    /// Not whole pages, and pages are replaced whole.
    #[error("{bytes} bytes are no multiple of the page size, {page} bytes")]
    Length {
        /// Bytes given.
        bytes: usize,
        /// Bytes of a page.
        page: usize,
    },
    /// More than an address space.
    #[error("{bytes} bytes from {start:#x} on go beyond the address space, or the largest file")]
    TooLarge {
        /// The address or the offset.
        start: u64,
        /// Bytes given.
        bytes: usize,
    },
    /// Nothing is mapped there: a later mapping at that address would be replaced without
    /// permission.
    #[error(
        "not every page of the {bytes} bytes at {address:#x} is mapped; map them first (PROT_NONE will do), so that they are yours"
    )]
    NotMapped {
        /// The address.
        address: usize,
        /// Bytes given.
        bytes: usize,
    },
    /// No seal can keep its size from being lowered.
    #[error(
        "the descriptor is not a memory file ({0}); memfd_create makes one, with MFD_ALLOW_SEALING"
    )]
    NotMemory(io::Error),
    /// A memory file whose pages can be missing when they are needed.
    #[error(
        "the file system of the memory file is {found:#x}; only tmpfs ({TMPFS_MAGIC:#x}) will do"
    )]
    FileSystem {
        /// The magic number found.
        found: u64,
    },
    /// Every holder of a descriptor can lower its size, and the next deposit would kill the
    /// process.
    #[error(
        "the size of the memory file can still be lowered, and a deposit behind its end would kill the process: add F_SEAL_SHRINK first (its seals are {seals:#x})"
    )]
    CanShrink {
        /// Seals found.
        seals: u32,
    },
    /// It cannot be mapped for deposits any more.
    #[error("the memory file is sealed against writing (its seals are {seals:#x})")]
    SealedAgainstWriting {
        /// Seals found.
        seals: u32,
    },
    /// It cannot be mapped for deposits through this descriptor.
    #[error("the descriptor was not opened for reading and writing")]
    NotWritable,
    /// It ends earlier.
    #[error("{bytes} bytes from offset {offset} on go beyond the file, which has {file_bytes}")]
    Outside {
        /// The offset.
        offset: u64,
        /// Bytes given.
        bytes: usize,
        /// Bytes of the file.
        file_bytes: u64,
    },
    /// The system refused. The application's mapping is unchanged.
    #[error("{bytes} bytes of memory could not be had: {error}")]
    Os {
        /// Bytes asked for.
        bytes: usize,
        /// The system's error.
        error: io::Error,
    },
    /// The last step failed: it is not known whether anything is mapped at the address now.
    #[error("the pages at {address:#x} could not be replaced: {error}")]
    NotReplaced {
        /// The address.
        address: usize,
        /// The system's error.
        error: io::Error,
    },
}

/// Whether the kernel promises only memory that it has set aside. A page of a memory file is not
/// set aside before it is touched, and if none is left then, the touch kills the process.
fn is_set_aside() -> bool {
    let mode = std::fs::read_to_string("/proc/sys/vm/overcommit_memory").unwrap_or_default();
    mode.trim() == "2"
}

/// Whether something is mapped at each of these pages, with any protection.
fn is_mapped(start: usize, bytes: usize, page: usize) -> io::Result<bool> {
    // Its answer for each page does not matter here.
    let mut found = [0u8; 4096];
    let step = found.len() * page;
    for from in (0..bytes).step_by(step) {
        let (at, most) = (start + from, step.min(bytes - from));
        // SAFETY: the kernel looks at no memory but `found`, which has a byte for each page.
        if unsafe { libc::mincore(at as *mut libc::c_void, most, found.as_mut_ptr()) } != 0 {
            return match io::Error::last_os_error() {
                e if e.raw_os_error() == Some(libc::ENOMEM) => Ok(false),
                e => Err(told("mincore", e)),
            };
        }
    }
    Ok(true)
}

/// Whether a file is a memory file whose pages can be mapped for writing; returns its seals. Its
/// size passes `check_size`.
fn check_file(
    fd: BorrowedFd<'_>,
    check_size: impl FnOnce(u64) -> Result<(), PagesError>,
) -> Result<SealFlags, PagesError> {
    let not_memory = |e: rustix::io::Errno| PagesError::NotMemory(e.into());
    let seals = rustix::fs::fcntl_get_seals(fd).map_err(not_memory)?;
    let found = rustix::fs::fstatfs(fd).map_err(not_memory)?.f_type as u64;
    if found != TMPFS_MAGIC {
        return Err(PagesError::FileSystem { found });
    }
    if seals.intersects(SealFlags::WRITE | SealFlags::FUTURE_WRITE) {
        return Err(PagesError::SealedAgainstWriting { seals: seals.bits() });
    }
    check_size(rustix::fs::fstat(fd).map_err(not_memory)?.st_size as u64)?;
    // Asked for, not concluded from the result of mapping: that may be refused for other reasons.
    let flags = rustix::fs::fcntl_getfl(fd).map_err(not_memory)?;
    if flags & OFlags::RWMODE != OFlags::RDWR {
        return Err(PagesError::NotWritable);
    }
    Ok(seals)
}

/// Pages of the application's own for an [aperture](crate::Aperture): a whole memory file, which
/// the application has mapped, or will, at any addresses.
///
/// ```
/// use hamlyn::AperturePages;
/// use rustix::fs::MemfdFlags;
///
/// let file = rustix::fs::memfd_create("own", MemfdFlags::ALLOW_SEALING)?;
/// rustix::fs::ftruncate(&file, 4096)?;
/// // SAFETY: no other process has the file, and no reference to its bytes is made.
/// let pages = unsafe { AperturePages::of_file(&file)? };
/// assert_eq!(pages.bytes(), 4096);
/// // `node.export_pages(link, pages, ApertureAccess::ReadWrite)` is next; then, if peers trust
/// // one another, `node.let_others_write(id)`.
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct AperturePages {
    file: OwnedFd,
    bytes: u64,
}

impl AperturePages {
    /// The pages of a memory file, made by `memfd_create` with `MFD_ALLOW_SEALING`, in ordinary
    /// pages, open for reading and writing, of whole pages of 4,096 bytes. Its seals still allow
    /// writing and further seals. Any other file is refused. The descriptor is needed only for this
    /// call.
    ///
    /// # Safety
    /// No other process has the file, or gets it in another way than as the aperture. As long as a
    /// holder may write the pages, no reference (`&[u8]`, `&mut [u8]`) to their bytes exists in this
    /// process: the bytes change at any time.
    pub unsafe fn of_file(fd: impl AsFd) -> Result<Self, PagesError> {
        let fd = fd.as_fd();
        let mut bytes = 0;
        check_file(fd, |file_bytes| {
            bytes = file_bytes;
            match file_bytes {
                0 => Err(PagesError::Empty),
                _ if file_bytes.is_multiple_of(PAGE as u64) => Ok(()),
                _ => Err(PagesError::Length { bytes: file_bytes as usize, page: PAGE }),
            }
        })?;
        let file = fd.try_clone_to_owned();
        let os = |error| PagesError::Os { bytes: bytes as usize, error };
        Ok(Self { file: file.of_call("fcntl with F_DUPFD_CLOEXEC").map_err(os)?, bytes })
    }

    /// Bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(in crate::os) fn into_file(self) -> OwnedFd {
        self.file
    }
}

impl AreaPages {
    /// Replaces the pages at `address` by shared ones, zero, readable and writable, of which the
    /// library has a second view. Both numbers are multiples of the page size, and every page is
    /// mapped already, with any protection. Their contents are lost; on any error except
    /// [`NotReplaced`](PagesError::NotReplaced), they are unchanged.
    ///
    /// The application owns the new pages as it owned those before: it may protect them, make holes
    /// in them (`MADV_REMOVE`: the bytes are zero again, in both views), and unmap them. A forked
    /// child has nothing at `address` (`MADV_DONTFORK`): the pages are shared, and a child that
    /// wrote there would write into its parent's message area.
    ///
    /// A page gets its memory when it is first touched; or at once, if the kernel promises only
    /// memory that it has set aside (`vm.overcommit_memory` is 2), or the setting `mlock` asks for
    /// it.
    ///
    /// # Safety
    /// The caller may replace the range, as for `mmap` with `MAP_FIXED`: nothing refers to bytes in
    /// it, and nothing else lies there. As long as the area exists, no thread writes bytes through
    /// `address` while the library reads or writes them, and no thread reads them while it writes:
    /// that is, in calls of the node or of its progress thread, the bytes for which a message may
    /// be on its way; and no bytes at all while a slice of [`Node::area`](crate::Node::area) or
    /// [`area_mut`](crate::Node::area_mut) is borrowed.
    pub unsafe fn at(address: *mut u8, bytes: usize) -> Result<Self, PagesError> {
        let page = rustix::param::page_size();
        let start = address.addr();
        if bytes == 0 {
            return Err(PagesError::Empty);
        }
        if !start.is_multiple_of(page) || start == 0 {
            return Err(PagesError::Address { address: start, page });
        }
        if !bytes.is_multiple_of(page) {
            return Err(PagesError::Length { bytes, page });
        }
        if bytes > isize::MAX as usize || start.checked_add(bytes).is_none() {
            return Err(PagesError::TooLarge { start: start as u64, bytes });
        }
        match is_mapped(start, bytes, page) {
            Ok(true) => {}
            Ok(false) => return Err(PagesError::NotMapped { address: start, bytes }),
            Err(error) => return Err(PagesError::Os { bytes, error }),
        }
        let os = |error: io::Error| PagesError::Os { bytes, error };
        let file = create(bytes).map_err(os)?;
        seal(&file, super::SEALS_SIZE | SealFlags::SEAL).map_err(os)?;
        let pages = Self::map(&file, 0, bytes).map_err(os)?;
        let theirs = Mapping::shared(&file, bytes, ProtFlags::READ | ProtFlags::WRITE);
        let theirs = theirs.map_err(os)?;
        // One step, the last, removes the old pages and puts the new ones in their place. SAFETY:
        // the first range is the mapping just made, which nothing refers to; the second is the
        // caller's, by the contract of this function.
        let moved = unsafe {
            let from = theirs.start.as_ptr().cast();
            rustix::mm::mremap_fixed(from, bytes, bytes, MremapFlags::MAYMOVE, address.cast())
        };
        match moved {
            Ok(_) => core::mem::forget(theirs),
            Err(e) => {
                let error = told("mremap", e.into());
                return Err(PagesError::NotReplaced { address: start, error });
            }
        }
        Ok(pages)
    }

    /// A second view, the library's, of `bytes` bytes from `offset` on, a multiple of the page
    /// size, of a memory file that the caller has mapped, or will, at any addresses. The descriptor
    /// is needed only for this call.
    ///
    /// The file is one of `memfd_create` with `MFD_ALLOW_SEALING`, in ordinary pages (a hole in a
    /// file of huge pages cannot always be filled again), open for reading and writing, with
    /// `F_SEAL_SHRINK` and without `F_SEAL_WRITE` and `F_SEAL_FUTURE_WRITE`. Any other file is
    /// refused, and nothing is mapped. Holes may be made in it at any time; their bytes are zero.
    /// It may grow.
    ///
    /// The caller's mappings are shared with forked children unless the caller sets
    /// `MADV_DONTFORK`. Memory of the pages: as for [`at`](Self::at).
    ///
    /// # Safety
    /// No other process writes these bytes of the file while the area exists: another's descriptor
    /// or mapping would change the contents of slices of [`Node::area`](crate::Node::area). (Memory
    /// that another process may write is an [aperture](crate::Aperture), not a message area.) In
    /// this process, the rules of [`at`](Self::at) for its address apply to every mapping of these
    /// bytes.
    pub unsafe fn of_file(fd: impl AsFd, offset: u64, bytes: usize) -> Result<Self, PagesError> {
        let fd = fd.as_fd();
        let page = rustix::param::page_size();
        if bytes == 0 {
            return Err(PagesError::Empty);
        }
        if !offset.is_multiple_of(page as u64) {
            return Err(PagesError::Offset { offset, page });
        }
        let end = offset.checked_add(bytes as u64);
        let end = end.filter(|end| *end <= i64::MAX as u64 && bytes <= isize::MAX as usize);
        let end = end.ok_or(PagesError::TooLarge { start: offset, bytes })?;
        let seals = check_file(fd, |file_bytes| match end <= file_bytes {
            true => Ok(()),
            false => Err(PagesError::Outside { offset, bytes, file_bytes }),
        })?;
        // Its holders could lower the size at any time.
        if !seals.contains(SealFlags::SHRINK) {
            return Err(PagesError::CanShrink { seals: seals.bits() });
        }
        Self::map(fd, offset, bytes).map_err(|error| PagesError::Os { bytes, error })
    }

    /// Pages that are zero, and of this process alone; and a view of them for reading while the
    /// library writes.
    pub(in crate::os) fn with_view(bytes: usize) -> io::Result<(Self, RegionLines)> {
        let whole = bytes.next_multiple_of(rustix::param::page_size());
        let file = create(whole)?;
        seal(&file, super::SEALS_SIZE | SealFlags::SEAL)?;
        let view = RegionLines::map_view(&file, whole)?;
        Ok((Self::map(&file, 0, bytes)?, view))
    }

    fn map(fd: impl AsFd, offset: u64, bytes: usize) -> io::Result<Self> {
        let whole = bytes.next_multiple_of(rustix::param::page_size());
        let write = ProtFlags::READ | ProtFlags::WRITE;
        let mapping = Mapping::shared_from(fd, offset, whole, write)?;
        if is_set_aside() {
            mapping.fill_by_writing()?;
        }
        Ok(Self { mapping, bytes })
    }

    /// Bytes that an area of these pages has.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Large pages, if requested: those that the kernel finds.
    pub(super) fn advise_huge_pages(&self) -> io::Result<()> {
        self.mapping.advise(Advice::LinuxHugepage)
    }
}
