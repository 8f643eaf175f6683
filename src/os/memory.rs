//! Memory: files that two processes share, their seals and mappings, and areas of one process.
//!
//! ```text
//!   who made the file             who got its descriptor
//!   create() map_writable()
//!   seal(..)        ---- fd --->  check(..)   seals, file system, size: in this order
//!                                 map_read_only()
//! ```
//! Exactly one process can write any page, and the kernel sees to it: after `FUTURE_WRITE` a
//! writable map, `mprotect`, `write`, `ftruncate` and hole punching are refused through any
//! descriptor, also one reopened through /proc, and the mapping made before goes on working.
//!
//! Never: a received descriptor is mapped before [`check`] has passed; a file whose size its
//! maker can still lower is mapped (the first access behind its end would kill the process).

use crate::link::cells::{AtomicU64, Line, Lines, Ordering, READER_WORDS_BYTES, ReaderWords, Word};
use crate::wire::LINE_BYTES;
use core::ptr::NonNull;
use core::sync::atomic::AtomicUsize;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::string::{String, ToString};
use std::sync::Arc;

const PAGE: usize = 4096;
/// File system type of memory files.
const TMPFS_MAGIC: u64 = 0x0102_1994;
/// File system type of memory files of huge pages.
const HUGETLBFS_MAGIC: u64 = 0x9584_58f6;

/// What holds for every file that is shared: nobody changes its size, so that no access to a
/// mapping of it can fault.
pub const SEALS_SIZE: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);
/// What a reader requires: besides, only the mappings that exist write, and that stays so.
pub const SEALS_READ_ONLY: SealFlags =
    SEALS_SIZE.union(SealFlags::FUTURE_WRITE).union(SealFlags::SEAL);

/// Bytes of the region that holds a ring of `ring_bytes`: the reader's words come first.
pub const fn region_bytes(ring_bytes: usize) -> usize {
    READER_WORDS_BYTES + ring_bytes
}

/// Makes a memory file of `bytes` zero bytes, which nothing pays for until somebody touches it.
pub fn create(bytes: usize) -> io::Result<OwnedFd> {
    let base = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // Linux 6.3; without it, systems that forbid executable memory files would complain.
    let fd = match rustix::fs::memfd_create("hamlyn", base | MemfdFlags::NOEXEC_SEAL) {
        Err(rustix::io::Errno::INVAL) => rustix::fs::memfd_create("hamlyn", base)?,
        other => other?,
    };
    rustix::fs::ftruncate(&fd, bytes as u64)?;
    Ok(fd)
}

/// Adds seals.
pub fn seal(fd: impl AsFd, seals: SealFlags) -> io::Result<()> {
    Ok(rustix::fs::fcntl_add_seals(fd, seals)?)
}

/// What a descriptor from another process must be.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
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
pub fn check(fd: impl AsFd, wanted: &Wanted) -> Result<(), DescriptorError> {
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
        std::thread::sleep(LOOK_AGAIN);
    }
    let found = (found * PAGE).min(bytes) as u64;
    Err(DescriptorError::NotFilled { found, wanted: bytes as u64 })
}

/// Whether memory can be given to a whole range in one call.
pub(super) fn has_populate() -> bool {
    Mapping::anonymous(PAGE, MapFlags::PRIVATE)
        .and_then(|mapping| mapping.advise(Advice::LinuxPopulateRead))
        .is_ok()
}

/// Threads that close what strangers sent; most at a time.
const CLOSERS_MAX: usize = 16;
static CLOSERS: AtomicUsize = AtomicUsize::new(0);
static LEAKED: core::sync::atomic::AtomicU64 = core::sync::atomic::AtomicU64::new(0);

/// Runs `work` on a thread that nothing waits for. Where as many of these threads as are allowed run
/// already, or none can be had, it comes back.
fn elsewhere<W: Send + 'static>(
    running: &'static AtomicUsize,
    name: &str,
    what: W,
    work: impl FnOnce(W) + Send + 'static,
) -> Result<(), W> {
    if running.fetch_add(1, Ordering::Relaxed) >= CLOSERS_MAX {
        running.fetch_sub(1, Ordering::Relaxed);
        return Err(what);
    }
    let builder = std::thread::Builder::new().name(name.into()).stack_size(64 << 10);
    // A closure that is not run is dropped here: what it works on must not be dropped by that.
    let kept = Arc::new(std::sync::Mutex::new(Some(what)));
    let taken = Arc::clone(&kept);
    let take = |kept: &std::sync::Mutex<Option<W>>| {
        kept.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take()
    };
    let begun = builder.spawn(move || {
        if let Some(what) = take(&taken) {
            work(what);
        }
        running.fetch_sub(1, Ordering::Relaxed);
    });
    match begun {
        Ok(_) => Ok(()),
        Err(_) => {
            running.fetch_sub(1, Ordering::Relaxed);
            take(&kept).map_or(Ok(()), Err)
        }
    }
}

/// Closes descriptors of a stranger on a thread that nothing waits for: an attacker's lingering
/// socket blocks whoever closes it for as long as the attacker chose. When as many threads as are
/// allowed are blocked, or none can be had, the descriptors stay open for good, and are counted
/// ([`descriptors_leaked`]): nobody waits.
pub fn close_elsewhere(descriptors: std::vec::Vec<OwnedFd>) {
    if descriptors.is_empty() {
        return;
    }
    if let Err(descriptors) = elsewhere(&CLOSERS, "hamlyn-close", descriptors, drop) {
        LEAKED.fetch_add(descriptors.len() as u64, Ordering::Relaxed);
        core::mem::forget(descriptors);
    }
}

static UNMAPPERS: AtomicUsize = AtomicUsize::new(0);
static STILL_MAPPED: core::sync::atomic::AtomicU64 = core::sync::atomic::AtomicU64::new(0);

/// Unmaps an aperture on a thread that nothing waits for: whoever may write the file can keep the
/// lock that is needed for it, by punching pages out of it that it has mapped very often. When as
/// many threads as are allowed are blocked, or none can be had, it stays mapped for good, and is
/// counted ([`apertures_still_mapped`]).
fn unmap_elsewhere(start: NonNull<u8>, bytes: usize) {
    let unmap = |(start, bytes): (usize, usize)| {
        // SAFETY: the range was mapped by a `Mapping`, which has gone and left it to this; whoever
        // holds a pointer into it would hold that.
        let _ = unsafe { rustix::mm::munmap(start as *mut core::ffi::c_void, bytes) };
    };
    if elsewhere(&UNMAPPERS, "hamlyn-unmap", (start.as_ptr() as usize, bytes), unmap).is_err() {
        STILL_MAPPED.fetch_add(1, Ordering::Relaxed);
    }
}

/// Apertures that stay mapped in this process because unmapping them might never end.
pub fn apertures_still_mapped() -> u64 {
    STILL_MAPPED.load(Ordering::Relaxed)
}

/// Descriptors of strangers that this process keeps open because closing them might never end.
pub fn descriptors_leaked() -> u64 {
    LEAKED.load(Ordering::Relaxed)
}

/// A range of mapped memory, unmapped when the last holder lets go.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
    /// The only process that has it, if its forked children do not.
    only_in: Option<u32>,
    /// Somebody else may write the file, and so can stop whoever unmaps it.
    is_aperture: bool,
}

// SAFETY: a mapping is an address range of the process, not of a thread. It gives out no borrows
// of its bytes; who does so (below) goes through atomics, or owns the mapping exclusively.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // In a forked child something else may lie there by now.
        if self.only_in.is_some_and(|pid| pid != std::process::id()) {
            return;
        }
        if self.is_aperture {
            return unmap_elsewhere(self.start, self.bytes);
        }
        // SAFETY: the range was mapped by this type and nothing else unmaps it; whoever holds a
        // pointer into it holds an `Arc` of this value or borrows its owner.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

impl Mapping {
    fn shared(fd: impl AsFd, bytes: usize, protection: ProtFlags) -> io::Result<Self> {
        // SAFETY: a new mapping at an address of the kernel's choice replaces nothing.
        let start = unsafe {
            let null = core::ptr::null_mut();
            rustix::mm::mmap(null, bytes, protection, MapFlags::SHARED, fd, 0)?
        };
        let mut mapping = Self::of(start.cast(), bytes)?;
        mapping.keep_from_children()?;
        Ok(mapping)
    }

    /// [`shared`](Self::shared), of pages that a peer may pay for.
    fn of_ring(fd: impl AsFd, bytes: usize, protection: ProtFlags) -> io::Result<Self> {
        let mapping = Self::shared(fd, bytes, protection)?;
        mapping.keep();
        Ok(mapping)
    }

    fn anonymous(bytes: usize, flags: MapFlags) -> io::Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: as in `shared`.
        let start =
            unsafe { rustix::mm::mmap_anonymous(core::ptr::null_mut(), bytes, protection, flags)? };
        Self::of(start.cast(), bytes)
    }

    fn of(start: *mut u8, bytes: usize) -> io::Result<Self> {
        let start = NonNull::new(start).ok_or(io::ErrorKind::AddrNotAvailable)?;
        Ok(Self { start, bytes, only_in: None, is_aperture: false })
    }

    /// After fork a child that wrote here would be a second writer.
    fn keep_from_children(&mut self) -> io::Result<()> {
        self.advise(Advice::LinuxDontFork)?;
        self.only_in = Some(std::process::id());
        Ok(())
    }

    fn advise(&self, advice: Advice) -> io::Result<()> {
        // SAFETY: the range is this mapping. The advices used here (populate, do not fork, wipe on
        // fork, huge pages) change no byte that this process sees.
        unsafe { rustix::mm::madvise(self.start.as_ptr().cast(), self.bytes, advice)? };
        Ok(())
    }

    /// Which of its pages are in memory, whoever touched them; all, if this process may not write
    /// the file.
    fn pages(&self) -> io::Result<std::vec::Vec<bool>> {
        let mut pages = std::vec![0u8; self.bytes.div_ceil(PAGE)];
        // SAFETY: the range is this mapping, and there is a byte for each of its pages.
        let rc =
            unsafe { libc::mincore(self.start.as_ptr().cast(), self.bytes, pages.as_mut_ptr()) };
        if rc != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(pages.iter().map(|page| page & 1 != 0).collect())
    }

    /// Keeps each page in memory, whoever it is charged to, from its first touch by this process on:
    /// else a peer that pays for pages could have them swapped out, and then decide, by the limits of
    /// its own control group, how long whoever looks at one waits for it. Where the system allows no
    /// more of that (`RLIMIT_MEMLOCK`) it is counted ([`memory_unlocked`]), and nothing else is lost.
    fn keep(&self) {
        const MLOCK_ONFAULT: libc::c_uint = 1;
        // SAFETY: the range is this mapping, of which no byte changes.
        let rc = unsafe { libc::mlock2(self.start.as_ptr().cast(), self.bytes, MLOCK_ONFAULT) };
        if rc != 0 {
            UNLOCKED.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Gives every page its memory now, by writing. Who touches first, pays.
    fn fill_by_writing(&self) -> io::Result<()> {
        match self.advise(Advice::LinuxPopulateWrite) {
            // Before Linux 5.14.
            Err(e) if e.kind() == io::ErrorKind::InvalidInput => {
                for at in (0..self.bytes).step_by(PAGE) {
                    // SAFETY: inside the mapping, which is writable here, and aligned; an atomic
                    // that changes nothing does not disturb anybody who uses the page.
                    let word = unsafe { atomic(self.start.as_ptr().add(at)) };
                    word.fetch_or(0, Ordering::Relaxed);
                }
                Ok(())
            }
            other => other,
        }
    }

    /// Gives every page its memory now, by reading: a shared page of a file comes into being, and
    /// is charged, when it is read, too.
    fn fill_by_reading(&self) -> io::Result<()> {
        match self.advise(Advice::LinuxPopulateRead) {
            Err(e) if e.kind() == io::ErrorKind::InvalidInput => {
                for at in (0..self.bytes).step_by(PAGE) {
                    // SAFETY: inside the mapping and aligned.
                    let word = unsafe { atomic(self.start.as_ptr().add(at)) };
                    word.load(Ordering::Relaxed);
                }
                Ok(())
            }
            other => other,
        }
    }
}

/// An atomic in mapped memory.
///
/// # Safety
/// `at` is aligned to 8 bytes and stays mapped as long as the reference is used.
unsafe fn atomic<'a>(at: *mut u8) -> &'a core::sync::atomic::AtomicU64 {
    // SAFETY: the caller's.
    unsafe { &*at.cast() }
}

fn lines_of(bytes: usize) -> usize {
    bytes / LINE_BYTES
}

static UNLOCKED: core::sync::atomic::AtomicU64 = core::sync::atomic::AtomicU64::new(0);

/// Pieces of memory shared with peers that could not be kept from being swapped out, in this process
/// so far.
pub fn memory_unlocked() -> u64 {
    UNLOCKED.load(Ordering::Relaxed)
}

/// What one process writes for one direction of a link: [`ReaderWords`], then the ring's lines.
/// Cheap to clone; unmapped when the last clone, and the last of its parts, is dropped.
#[derive(Clone, Debug)]
pub struct Region {
    mapping: Arc<Mapping>,
}

impl Region {
    /// Maps what this process writes. `bytes` is [`region_bytes`] of the ring's size.
    pub fn map_writable(fd: impl AsFd, bytes: usize) -> io::Result<Self> {
        assert!(bytes > READER_WORDS_BYTES && bytes.is_multiple_of(LINE_BYTES));
        let mapping = Mapping::of_ring(fd, bytes, ProtFlags::READ | ProtFlags::WRITE)?;
        Ok(Self { mapping: Arc::new(mapping) })
    }

    /// Maps what the other process writes.
    pub fn map_read_only(fd: impl AsFd, bytes: usize) -> io::Result<Self> {
        assert!(bytes > READER_WORDS_BYTES && bytes.is_multiple_of(LINE_BYTES));
        let mapping = Mapping::of_ring(fd, bytes, ProtFlags::READ)?;
        Ok(Self { mapping: Arc::new(mapping) })
    }

    /// Memory of this process alone, for its link to itself.
    pub fn private(ring_bytes: usize) -> io::Result<Self> {
        let mut mapping = Mapping::anonymous(region_bytes(ring_bytes), MapFlags::PRIVATE)?;
        mapping.keep_from_children()?;
        Ok(Self { mapping: Arc::new(mapping) })
    }

    /// Touches every page by writing. Only for what this process writes.
    pub fn fill_by_writing(&self) -> io::Result<()> {
        self.mapping.fill_by_writing()
    }

    /// Touches every page by reading.
    pub fn fill_by_reading(&self) -> io::Result<()> {
        self.mapping.fill_by_reading()
    }

    /// Bytes mapped.
    pub fn bytes(&self) -> usize {
        self.mapping.bytes
    }

    /// The ring.
    pub fn lines(&self) -> RegionLines {
        RegionLines::new(&self.mapping, READER_WORDS_BYTES)
    }

    /// How far the process that writes this region has read the other's base ring.
    pub fn freed(&self) -> RegionWord {
        self.word(core::mem::offset_of!(ReaderWords, freed))
    }

    /// How far it has read the other's bulk ring.
    pub fn bulk_freed(&self) -> RegionWord {
        self.word(core::mem::offset_of!(ReaderWords, bulk_freed))
    }

    /// Its sleep generation.
    pub fn sleep(&self) -> RegionWord {
        self.word(core::mem::offset_of!(ReaderWords, sleep))
    }

    /// Its room generation.
    pub fn room(&self) -> RegionWord {
        self.word(core::mem::offset_of!(ReaderWords, room))
    }

    /// One more than the processor on which it last waited.
    pub fn processor(&self) -> RegionWord {
        self.word(core::mem::offset_of!(ReaderWords, processor))
    }

    /// What it changes to wake the other.
    pub fn bell(&self) -> RegionWord {
        self.word(core::mem::offset_of!(ReaderWords, bell))
    }

    fn word(&self, offset: usize) -> RegionWord {
        assert!(offset + 8 <= READER_WORDS_BYTES);
        // SAFETY: inside the mapping, whose size was asserted when it was made.
        let word = unsafe { self.mapping.start.add(offset).cast() };
        RegionWord { word, _mapping: Arc::clone(&self.mapping) }
    }
}

/// The lines of a ring in mapped memory.
#[derive(Clone, Debug)]
pub struct RegionLines {
    first: NonNull<Line>,
    count: usize,
    mapping: Arc<Mapping>,
}

// SAFETY: lines are atomics, in memory that the `Arc` keeps mapped.
unsafe impl Send for RegionLines {}
// SAFETY: as above.
unsafe impl Sync for RegionLines {}

impl RegionLines {
    fn new(mapping: &Arc<Mapping>, from: usize) -> Self {
        assert!(from <= mapping.bytes && from.is_multiple_of(LINE_BYTES));
        // SAFETY: `from` is inside the mapping, and the mapping begins on a page.
        let first = unsafe { mapping.start.add(from).cast() };
        Self { first, count: lines_of(mapping.bytes - from), mapping: Arc::clone(mapping) }
    }

    /// Maps a bulk ring, lines only, that this process writes.
    pub fn map_writable(fd: impl AsFd, bytes: usize) -> io::Result<Self> {
        let mapping = Mapping::of_ring(fd, bytes, ProtFlags::READ | ProtFlags::WRITE)?;
        Ok(Self::new(&Arc::new(mapping), 0))
    }

    /// Maps a bulk ring that the other process writes.
    pub fn map_read_only(fd: impl AsFd, bytes: usize) -> io::Result<Self> {
        Ok(Self::new(&Arc::new(Mapping::of_ring(fd, bytes, ProtFlags::READ)?), 0))
    }

    /// Maps an aperture. It is unmapped where nobody waits for it.
    pub fn map_aperture(fd: impl AsFd, bytes: usize, may_write: bool) -> io::Result<Self> {
        let write = if may_write { ProtFlags::WRITE } else { ProtFlags::empty() };
        let mut mapping = Mapping::shared(fd, bytes, ProtFlags::READ | write)?;
        mapping.is_aperture = true;
        Ok(Self::new(&Arc::new(mapping), 0))
    }

    /// A bulk ring of this process alone.
    pub fn private(bytes: usize) -> io::Result<Self> {
        let mut mapping = Mapping::anonymous(bytes, MapFlags::PRIVATE)?;
        mapping.keep_from_children()?;
        Ok(Self::new(&Arc::new(mapping), 0))
    }

    /// Touches every page by writing. Only for what this process writes.
    pub fn fill_by_writing(&self) -> io::Result<()> {
        self.mapping.fill_by_writing()
    }

    /// Touches every page by reading.
    pub fn fill_by_reading(&self) -> io::Result<()> {
        self.mapping.fill_by_reading()
    }
}

impl RegionLines {
    /// Bytes of all lines.
    pub fn bytes(&self) -> usize {
        self.count * LINE_BYTES
    }
}

impl Lines for RegionLines {
    #[inline(always)]
    fn lines(&self) -> &[Line] {
        // SAFETY: `count` lines lie behind `first` in a mapping that `self` keeps. The other
        // process may change them at any time, which is why a line is made of atomics; where the
        // mapping is read-only, only loads are made (the ring's reader has no other operation).
        unsafe { core::slice::from_raw_parts(self.first.as_ptr(), self.count) }
    }
}

/// One word of [`ReaderWords`] in mapped memory.
#[derive(Clone, Debug)]
pub struct RegionWord {
    word: NonNull<AtomicU64>,
    _mapping: Arc<Mapping>,
}

// SAFETY: an atomic, in memory that the `Arc` keeps mapped.
unsafe impl Send for RegionWord {}
// SAFETY: as above.
unsafe impl Sync for RegionWord {}

impl Word for RegionWord {
    #[inline(always)]
    fn word(&self) -> &AtomicU64 {
        // SAFETY: the word lies, aligned, in a mapping that `self` keeps.
        unsafe { self.word.as_ref() }
    }
}

/// Tells the process that made it from the children that it forks: one load.
#[derive(Debug)]
pub struct ForkGuard {
    mapping: Mapping,
}

impl ForkGuard {
    /// A page that the kernel hands to a child as zeros.
    pub fn new() -> io::Result<Self> {
        let mapping = Mapping::anonymous(PAGE, MapFlags::PRIVATE)?;
        mapping.advise(Advice::LinuxWipeOnFork)?;
        let guard = Self { mapping };
        guard.word().store(1, Ordering::Relaxed);
        Ok(guard)
    }

    #[inline(always)]
    fn word(&self) -> &core::sync::atomic::AtomicU64 {
        // SAFETY: the first word of a page that is mapped as long as `self` lives.
        unsafe { atomic(self.mapping.start.as_ptr()) }
    }

    /// Whether this is the process that made the guard, not a child of it.
    #[inline(always)]
    pub fn is_parent(&self) -> bool {
        self.word().load(Ordering::Relaxed) != 0
    }
}

/// Whether something that was asked for was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Grant {
    /// Not asked for.
    NotAsked,
    /// Asked for and given.
    Granted,
    /// Asked for; what was given in its place, or why nothing was.
    Refused(String),
}

/// What became of the wishes for a message area. Nothing is silently slow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AreaReport {
    /// Huge pages.
    pub huge_pages: Grant,
    /// Wired down, never swapped out.
    pub locked: Grant,
}

/// Memory of a message area: private, zero, beginning on a page, never moved.
#[derive(Debug)]
pub struct AreaMemory {
    mapping: Mapping,
    bytes: usize,
    report: AreaReport,
}

/// A message area that could not be made.
#[derive(Debug, thiserror::Error)]
pub enum AreaError {
    /// Nothing to hold.
    #[error("a message area has at least 1 byte, and 0 were asked for")]
    Empty,
    /// More than an address space.
    #[error("a message area of {0} bytes does not fit into the address space")]
    TooLarge(usize),
    /// The system refused.
    #[error("a message area of {bytes} bytes could not be had: {source}")]
    Os {
        /// Bytes asked for.
        bytes: usize,
        /// What the system said.
        source: io::Error,
    },
}

const HUGE_PAGE: usize = 2 << 20;

impl AreaMemory {
    /// `bytes` of memory; huge pages and locking are wishes, and [`report`](Self::report) says
    /// what became of them.
    pub fn new(bytes: usize, huge_pages: bool, lock: bool) -> Result<Self, AreaError> {
        if bytes == 0 {
            return Err(AreaError::Empty);
        }
        let round = |unit: usize| {
            bytes.checked_next_multiple_of(unit).filter(|n| *n <= isize::MAX as usize)
        };
        let whole = round(PAGE).ok_or(AreaError::TooLarge(bytes))?;
        let os = |source| AreaError::Os { bytes, source };
        let mut report = AreaReport { huge_pages: Grant::NotAsked, locked: Grant::NotAsked };
        let mut mapping = None;
        if huge_pages {
            let whole = round(HUGE_PAGE).ok_or(AreaError::TooLarge(bytes))?;
            // Reserved at once (no MAP_NORESERVE): a huge page that is missing later would kill.
            match Mapping::anonymous(whole, MapFlags::PRIVATE | MapFlags::HUGETLB) {
                Ok(m) => {
                    report.huge_pages = Grant::Granted;
                    mapping = Some(m);
                }
                Err(e) => {
                    let m = Mapping::anonymous(whole, MapFlags::PRIVATE).map_err(os)?;
                    let instead = match m.advise(Advice::LinuxHugepage) {
                        Ok(()) => "transparent huge pages, where the kernel finds them, instead",
                        Err(_) => "ordinary pages instead",
                    };
                    let why = std::format!("no reserved huge pages ({e}); {instead}");
                    report.huge_pages = Grant::Refused(why);
                    mapping = Some(m);
                }
            }
        }
        let mapping = match mapping {
            Some(mapping) => mapping,
            None => Mapping::anonymous(whole, MapFlags::PRIVATE).map_err(os)?,
        };
        if lock {
            // SAFETY: the range is the mapping just made.
            report.locked =
                match unsafe { rustix::mm::mlock(mapping.start.as_ptr().cast(), mapping.bytes) } {
                    Ok(()) => Grant::Granted,
                    Err(e) => Grant::Refused(e.to_string()),
                };
        }
        Ok(Self { mapping, bytes, report })
    }

    /// Where the memory begins. It stays there until this is dropped; who reads or writes through
    /// the address answers for doing so while nobody else does.
    pub fn address(&self) -> *mut u8 {
        self.mapping.start.as_ptr()
    }

    /// What became of the wishes.
    pub fn report(&self) -> &AreaReport {
        &self.report
    }
}

impl AsRef<[u8]> for AreaMemory {
    #[inline(always)]
    fn as_ref(&self) -> &[u8] {
        // SAFETY: `bytes` bytes are mapped, initialized (to zero, by the kernel), and of this
        // process alone: no other can map private memory.
        unsafe { core::slice::from_raw_parts(self.mapping.start.as_ptr(), self.bytes) }
    }
}

impl AsMut<[u8]> for AreaMemory {
    #[inline(always)]
    fn as_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and borrowed exclusively.
        unsafe { core::slice::from_raw_parts_mut(self.mapping.start.as_ptr(), self.bytes) }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    #[cfg(not(miri))]
    fn what_was_touched_of_a_ring_stays_in_memory() {
        let bytes = region_bytes(1 << 16);
        let file = create(bytes).unwrap();
        let region = Region::map_read_only(&file, bytes).unwrap();
        region.fill_by_reading().unwrap();
        let start = std::format!("{:x}-", region.mapping.start.as_ptr() as usize);
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut its = maps.lines().skip_while(|line| !line.starts_with(&start));
        let locked = its.find(|line| line.starts_with("Locked:")).unwrap();
        let is_locked = !locked.contains(" 0 kB");
        assert!(is_locked || memory_unlocked() > 0, "{locked}");
    }

    #[test]
    #[cfg(not(miri))]
    fn an_aperture_is_unmapped_by_a_thread_of_its_own() {
        let file = create(4096).unwrap();
        let lines = RegionLines::map_aperture(&file, 4096, true).unwrap();
        let start = std::format!("{:x}-", lines.mapping.start.as_ptr() as usize);
        let is_mapped = || {
            let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
            maps.lines().any(|line| line.starts_with(&start) && line.contains("memfd"))
        };
        assert!(is_mapped());
        drop(lines);
        let end = std::time::Instant::now() + core::time::Duration::from_secs(20);
        while is_mapped() {
            assert!(std::time::Instant::now() < end, "it is still mapped");
            std::thread::yield_now();
        }
        // As many threads as are blocked are blocked; nobody waits for them.
        static BLOCKED: AtomicUsize = AtomicUsize::new(CLOSERS_MAX);
        assert_eq!(elsewhere(&BLOCKED, "hamlyn-none", 7, drop), Err(7));
        assert_eq!(BLOCKED.load(Ordering::Relaxed), CLOSERS_MAX);
    }

    #[test]
    fn a_region_has_its_words_before_its_lines() {
        let region = Region::private(512).unwrap();
        assert_eq!(region.lines().lines().len(), 8);
        let lines = region.lines();
        let first = lines.lines().as_ptr() as usize;
        let freed = core::ptr::from_ref(region.freed().word()) as usize;
        assert_eq!(first - freed, READER_WORDS_BYTES);
        region.sleep().word().store(7, Ordering::Relaxed);
        assert_eq!(region.clone().sleep().word().load(Ordering::Relaxed), 7);
    }

    #[test]
    fn a_region_is_read_through_the_other_mapping() {
        let bytes = region_bytes(4096);
        let fd = create(bytes).unwrap();
        let ours = Region::map_writable(&fd, bytes).unwrap();
        seal(&fd, SEALS_READ_ONLY).unwrap();
        let wanted = Wanted {
            seals: SEALS_READ_ONLY,
            seals_refused: SealFlags::WRITE,
            bytes,
            filled: false,
            huge: false,
        };
        check(&fd, &wanted).unwrap();
        let theirs = Region::map_read_only(&fd, bytes).unwrap();
        let filled = Wanted { filled: true, ..wanted };
        assert!(matches!(check(&fd, &filled), Err(DescriptorError::NotFilled { found: 0, .. })));
        theirs.fill_by_reading().unwrap();
        check(&fd, &filled).unwrap();
        ours.freed().word().store(9, Ordering::Release);
        assert_eq!(theirs.freed().word().load(Ordering::Acquire), 9);
        assert!(Region::map_writable(&fd, bytes).is_err());
    }

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
        let wanted = Wanted {
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
        let small = Wanted { bytes: PAGE, filled: false, ..wanted };
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
            let all_but_one = Mapping { bytes: bytes - PAGE, only_in: None, ..*lines.mapping };
            if bytes > PAGE {
                all_but_one.advise(Advice::LinuxPopulateWrite).unwrap();
            }
            core::mem::forget(all_but_one);
            assert!(check_pages(&other, bytes).is_err());
        }
    }

    #[test]
    fn an_area_is_zero_page_aligned_and_says_what_it_got() {
        assert!(matches!(AreaMemory::new(0, false, false), Err(AreaError::Empty)));
        assert!(matches!(AreaMemory::new(usize::MAX, false, false), Err(AreaError::TooLarge(_))));
        let mut area = AreaMemory::new(5000, true, true).unwrap();
        assert_ne!(area.report().huge_pages, Grant::NotAsked);
        assert_ne!(area.report().locked, Grant::NotAsked);
        assert_eq!(area.as_ref().as_ptr() as usize % PAGE, 0);
        assert!(area.as_ref().iter().all(|b| *b == 0) && area.as_ref().len() == 5000);
        area.as_mut()[4999] = 1;
        assert_eq!(area.as_ref()[4999], 1);
    }

    #[test]
    fn the_process_that_made_a_fork_guard_is_the_parent() {
        assert!(ForkGuard::new().unwrap().is_parent());
    }
}
