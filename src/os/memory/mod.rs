//! Memory: files that two processes share, their seals and mappings.
//!
//! ```text
//!   maker of the file             receiver of its descriptor
//!   create() map_writable()
//!   seal(..)        ---- fd --->  check(..)   seals, file system, size: in this order
//!                                 map_read_only()
//! ```
//! Exactly one process can write any page, and the kernel sees to it: after `FUTURE_WRITE` a
//! writable map, `mprotect`, `write`, `ftruncate` and hole punching are refused through any
//! descriptor, also one reopened through /proc, and the mapping made before goes on working.
//!
//! - `received.rs`: whether a descriptor from another process is what was agreed
//! - `elsewhere.rs`: closing and unmapping what a stranger can keep from ending
//! - `pin.rs`: pages that nobody can put others in the place of
//! - `remains.rs`: what is left of a link that has ended, in private memory
//! - `area.rs`: memory of a message area, of this process alone
//! - `pages.rs`: memory of a message area at an address of the application's own
//! - `room.rs`: whether the control groups of this process leave room for it
//!
//! Never: a received descriptor is mapped before [`check`] has passed; a file whose size its
//! maker can still lower is mapped (the first access behind its end would kill the process).

mod area;
mod elsewhere;
mod pages;
mod pin;
mod received;
mod remains;
mod room;

pub use area::{AreaMemory, AreaReport, Grant};
pub use elsewhere::{apertures_still_mapped, close_elsewhere, descriptors_leaked};
pub use pages::{AperturePages, AreaPages, PagesError};
pub use pin::memory_unlocked;
pub use received::{DescriptorError, WantedDescriptor, check, check_pages, check_size};
pub use remains::{Remains, copy_elsewhere};
pub(crate) use room::check_now as check_room;

use super::call::{OfCall, may_grow_to};
use crate::link::cells::{AtomicU64, Line, Lines, Ordering, READER_WORDS_BYTES, ReaderWords, Word};
use crate::wire::LINE_BYTES;
use core::num::NonZeroUsize;
use core::ops::Deref;
use core::ptr::NonNull;
use pin::{HUGE_PAGE, Pin, count_unlocked};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const PAGE: usize = 4096;

/// The rule for every shared file: no process changes its size, so that no access to a mapping of
/// it can fault.
pub const SEALS_SIZE: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);
/// What a reader requires: besides, only the mappings that exist write, and that stays so.
pub const SEALS_READ_ONLY: SealFlags =
    SEALS_SIZE.union(SealFlags::FUTURE_WRITE).union(SealFlags::SEAL);

/// Bytes of the region that holds a ring of `ring_bytes`: the reader's words come first.
pub const fn region_bytes(ring_bytes: usize) -> usize {
    READER_WORDS_BYTES + ring_bytes
}

/// Makes a memory file of `bytes` zero bytes, for which no process pays until one touches it.
pub fn create(bytes: usize) -> io::Result<OwnedFd> {
    let base = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // Linux 6.3; without this flag, systems that forbid executable memory files would complain.
    let fd = match rustix::fs::memfd_create("hamlyn", base | MemfdFlags::NOEXEC_SEAL) {
        Err(rustix::io::Errno::INVAL) => rustix::fs::memfd_create("hamlyn", base),
        other => other,
    };
    let fd = fd.of_call("memfd_create")?;
    may_grow_to(bytes as u64).of_call("ftruncate")?;
    rustix::fs::ftruncate(&fd, bytes as u64).of_call("ftruncate")?;
    Ok(fd)
}

/// Adds seals.
pub fn seal(fd: impl AsFd, seals: SealFlags) -> io::Result<()> {
    rustix::fs::fcntl_add_seals(fd, seals).of_call("fcntl with F_ADD_SEALS")
}

/// Whether memory can be given to a whole range in one call.
pub(super) fn has_populate() -> bool {
    Mapping::anonymous(PAGE, MapFlags::PRIVATE)
        .and_then(|mapping| mapping.advise(Advice::LinuxPopulateRead))
        .is_ok()
}

/// A range of mapped memory, unmapped when the last reference goes.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
    /// The only process that has it, if its forked children do not.
    only_in: Option<u32>,
    /// Another process may write the file, and so can stop the thread that unmaps it.
    is_aperture: bool,
    /// What keeps its pages from being replaced.
    pin: Mutex<Option<Pin>>,
}

// SAFETY: a mapping is an address range of the process, not of a thread. It gives out no borrows of
// its bytes; its users (below) go through atomics, or own the mapping exclusively.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // In a forked child other memory may lie there by now.
        if self.only_in.is_some_and(|pid| pid != std::process::id()) {
            // And something else may have the number of this.
            let pin = self.pin.get_mut().unwrap_or_else(PoisonError::into_inner);
            return core::mem::forget(pin.take());
        }
        if self.is_aperture {
            return elsewhere::unmap(self.start, self.bytes);
        }
        // SAFETY: the range was mapped by this type and nothing else unmaps it; every holder of a
        // pointer into it holds an `Arc` of this value or borrows its owner.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

impl Mapping {
    fn shared(fd: impl AsFd, bytes: usize, protection: ProtFlags) -> io::Result<Self> {
        Self::shared_from(fd, 0, bytes, protection)
    }

    fn shared_from(
        fd: impl AsFd,
        offset: u64,
        bytes: usize,
        protection: ProtFlags,
    ) -> io::Result<Self> {
        // SAFETY: a new mapping at an address of the kernel's choice replaces nothing.
        let start = unsafe {
            let null = core::ptr::null_mut();
            rustix::mm::mmap(null, bytes, protection, MapFlags::SHARED, fd, offset)
                .of_call("mmap")?
        };
        let mut mapping = Self::of(start.cast(), bytes)?;
        mapping.keep_from_children()?;
        Ok(mapping)
    }

    /// [`shared`](Self::shared), of pages that a peer may pay for.
    fn of_ring(fd: impl AsFd, bytes: usize, protection: ProtFlags) -> io::Result<Self> {
        let mapping = Self::shared(fd, bytes, protection)?;
        // Also where the system gives huge pages to all: what is counted is what is there. An error
        // says that there are none.
        let _ = mapping.advise(Advice::LinuxNoHugepage);
        mapping.keep();
        Ok(mapping)
    }

    fn anonymous(bytes: usize, flags: MapFlags) -> io::Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: as in `shared`.
        let start = unsafe {
            rustix::mm::mmap_anonymous(core::ptr::null_mut(), bytes, protection, flags)
                .of_call("mmap")?
        };
        Self::of(start.cast(), bytes)
    }

    fn of(start: *mut u8, bytes: usize) -> io::Result<Self> {
        let start = NonNull::new(start).ok_or(io::ErrorKind::AddrNotAvailable)?;
        Ok(Self { start, bytes, only_in: None, is_aperture: false, pin: Mutex::default() })
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
        unsafe { rustix::mm::madvise(self.start.as_ptr().cast(), self.bytes, advice) }
            .of_call("madvise")
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

    /// Keeps each page in memory, whoever it is charged to, from its first touch by this process
    /// on: else a peer that pays for pages could have them swapped out, and then decide, by the
    /// limits of its own control group, how long whoever looks at one waits for it. Where the
    /// system allows no more of that (`RLIMIT_MEMLOCK`) it is counted ([`memory_unlocked`]), and
    /// nothing else is lost.
    fn keep(&self) {
        const MLOCK_ONFAULT: libc::c_uint = 1;
        // SAFETY: the range is this mapping, of which no byte changes.
        let rc = unsafe { libc::mlock2(self.start.as_ptr().cast(), self.bytes, MLOCK_ONFAULT) };
        if rc != 0 {
            count_unlocked();
        }
    }

    /// Touches every page by writing, so that it has its memory now: who touches first, pays. Only for
    /// memory that this process writes.
    pub fn fill_by_writing(&self) -> io::Result<()> {
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

    /// The same by reading: a shared page of a file comes into being, and is charged, when it is
    /// read, too.
    pub fn fill_by_reading(&self) -> io::Result<()> {
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

    /// Bytes mapped.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Keeps its pages, all of which have been touched, from being replaced by anybody who has the file.
    /// An error: there are no descriptors or no memory for it.
    pub fn pin(&self) -> io::Result<()> {
        if let Some(pin) = Pin::of(self.start, self.bytes)? {
            *lock(&self.pin) = Some(pin);
        }
        Ok(())
    }

    /// No page of it is kept by this any more.
    fn unpin(&self) {
        let pin = lock(&self.pin).take();
        drop(pin);
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

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The memory that one process writes for one direction of a link: [`ReaderWords`], then the ring's
/// lines. Cheap to clone; unmapped when the last clone, and the last of its parts, is dropped.
#[derive(Clone, Debug)]
pub struct Region {
    mapping: Arc<Mapping>,
}

impl Deref for Region {
    type Target = Mapping;

    fn deref(&self) -> &Mapping {
        &self.mapping
    }
}

impl Region {
    /// Maps memory that this process writes. `bytes` is [`region_bytes`] of the ring's size.
    pub fn map_writable(fd: impl AsFd, bytes: usize) -> io::Result<Self> {
        assert!(bytes > READER_WORDS_BYTES && bytes.is_multiple_of(LINE_BYTES));
        let mapping = Mapping::of_ring(fd, bytes, ProtFlags::READ | ProtFlags::WRITE)?;
        Ok(Self { mapping: Arc::new(mapping) })
    }

    /// Maps memory that the other process writes.
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

    /// The ring.
    pub fn lines(&self) -> RegionLines {
        RegionLines::new(&self.mapping, READER_WORDS_BYTES)
    }

    /// The number of lines of the other's base ring that the writer of this region has read.
    pub fn freed(&self) -> RegionWord {
        self.word(core::mem::offset_of!(ReaderWords, freed))
    }

    /// The same for the other's bulk ring.
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

    /// The word that it changes to wake the other.
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
    /// Not zero: the compiler must know this where a position becomes an index.
    count: NonZeroUsize,
    mapping: Arc<Mapping>,
}

// SAFETY: lines are atomics, in memory that the `Arc` keeps mapped.
unsafe impl Send for RegionLines {}
// SAFETY: as above.
unsafe impl Sync for RegionLines {}

impl Deref for RegionLines {
    type Target = Mapping;

    fn deref(&self) -> &Mapping {
        &self.mapping
    }
}

impl RegionLines {
    fn new(mapping: &Arc<Mapping>, from: usize) -> Self {
        assert!(from <= mapping.bytes && from.is_multiple_of(LINE_BYTES));
        let count = lines_of(mapping.bytes - from);
        // SAFETY: `from` is inside the mapping, and the mapping begins on a page.
        let first = unsafe { mapping.start.add(from).cast() };
        let count = NonZeroUsize::new(count).expect("a mapping of lines has one at least");
        Self { first, count, mapping: Arc::clone(mapping) }
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

    /// Maps an aperture. A thread that nothing waits for unmaps it.
    pub fn map_aperture(fd: impl AsFd, bytes: usize, may_write: bool) -> io::Result<Self> {
        let write = if may_write { ProtFlags::WRITE } else { ProtFlags::empty() };
        let mut mapping = Mapping::shared(fd, bytes, ProtFlags::READ | write)?;
        mapping.is_aperture = true;
        Ok(Self::new(&Arc::new(mapping), 0))
    }

    /// Maps pages, for reading, that this process writes through another mapping.
    pub(super) fn map_view(fd: impl AsFd, bytes: usize) -> io::Result<Self> {
        Ok(Self::new(&Arc::new(Mapping::shared(fd, bytes, ProtFlags::READ)?), 0))
    }

    /// A bulk ring of this process alone.
    pub fn private(bytes: usize) -> io::Result<Self> {
        let mut mapping = Mapping::anonymous(bytes, MapFlags::PRIVATE)?;
        mapping.keep_from_children()?;
        Ok(Self::new(&Arc::new(mapping), 0))
    }

    /// Bytes of all lines.
    pub fn bytes(&self) -> usize {
        self.count.get() * LINE_BYTES
    }

    /// Gives the memory of whole pages back; they read as zero, as at first, and come again when
    /// they are written. Only for a ring of this process alone from which everything has been read,
    /// and which no thread writes meanwhile.
    pub fn give_back(&self) {
        let page = rustix::param::page_size();
        let first = self.first.as_ptr() as usize;
        let (start, end) = (first.next_multiple_of(page), (first + self.bytes()) / page * page);
        if start >= end {
            return;
        }
        // SAFETY: these pages are in a mapping that `self` keeps. Their bytes are atomics, and any
        // value of theirs is sound; a ring of which everything has been read may hold zeros
        // (`link::ring`). Pages that cannot be given back (they are locked) stay as they are.
        let _ = unsafe {
            let start = self
                .mapping
                .start
                .as_ptr()
                .cast::<u8>()
                .add(start - self.mapping.start.as_ptr() as usize);
            rustix::mm::madvise(start.cast(), end - (start as usize), Advice::LinuxDontNeed)
        };
    }

    /// The address of the lines. They stay mapped as long as `self` lives.
    pub(in crate::os) fn start(&self) -> NonNull<u8> {
        self.first.cast()
    }
}

impl Lines for RegionLines {
    #[inline]
    fn lines(&self) -> &[Line] {
        // SAFETY: `count` lines lie behind `first` in a mapping that `self` keeps. The other
        // process may change them at any time, which is why a line is made of atomics; where the
        // mapping is read-only, only loads are made (the ring's reader has no other operation).
        unsafe { core::slice::from_raw_parts(self.first.as_ptr(), self.count.get()) }
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
    #[inline]
    fn word(&self) -> &AtomicU64 {
        // SAFETY: the word lies, aligned, in a mapping that `self` keeps.
        unsafe { self.word.as_ref() }
    }
}

/// Distinguishes the process that made it from the children that it forks, and tells in the same
/// load whether something there asks for attention. Clones share both.
#[derive(Clone, Debug)]
pub struct ForkGuard {
    word: RegionWord,
}

/// In the word of a [`ForkGuard`]: this is the process that made it.
const PARENT: u64 = 1;
/// Something asks for attention.
const ATTENTION: u64 = 2;

impl ForkGuard {
    /// A page that the kernel hands to a child as zeros.
    pub fn new() -> io::Result<Self> {
        let mapping = Mapping::anonymous(PAGE, MapFlags::PRIVATE)?;
        mapping.advise(Advice::LinuxWipeOnFork)?;
        let word = RegionWord { word: mapping.start.cast(), _mapping: Arc::new(mapping) };
        word.word().store(PARENT, Ordering::Relaxed);
        Ok(Self { word })
    }

    /// Whether this is the process that made the guard, not a child of it.
    #[inline]
    pub fn is_parent(&self) -> bool {
        self.word.word().load(Ordering::Relaxed) & PARENT != 0
    }

    /// Whether it is, and nothing asks for attention.
    #[inline]
    pub fn is_parent_at_rest(&self) -> bool {
        self.word.word().load(Ordering::Relaxed) == PARENT
    }

    /// Whether something asks for attention.
    #[inline]
    pub fn wants_attention(&self) -> bool {
        self.word.word().load(Ordering::Relaxed) & ATTENTION != 0
    }

    /// Sets or clears the request for attention. A thread that takes a lock because of it sees
    /// everything that this thread wrote before.
    pub fn set_attention(&self, wants: bool) {
        match wants {
            true => self.word.word().fetch_or(ATTENTION, Ordering::Release),
            false => self.word.word().fetch_and(!ATTENTION, Ordering::Relaxed),
        };
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
        let wanted = WantedDescriptor {
            seals: SEALS_READ_ONLY,
            seals_refused: SealFlags::WRITE,
            bytes,
            filled: false,
            huge: false,
        };
        check(&fd, &wanted).unwrap();
        let theirs = Region::map_read_only(&fd, bytes).unwrap();
        let filled = WantedDescriptor { filled: true, ..wanted };
        assert!(matches!(check(&fd, &filled), Err(DescriptorError::NotFilled { found: 0, .. })));
        theirs.fill_by_reading().unwrap();
        check(&fd, &filled).unwrap();
        ours.freed().word().store(9, Ordering::Release);
        assert_eq!(theirs.freed().word().load(Ordering::Acquire), 9);
        assert!(Region::map_writable(&fd, bytes).is_err());
    }

    #[test]
    fn the_process_that_made_a_fork_guard_is_the_parent() {
        assert!(ForkGuard::new().unwrap().is_parent());
    }

    #[test]
    fn what_asks_for_attention_in_a_child_makes_no_parent_of_it() {
        let guard = ForkGuard::new().unwrap();
        assert!(guard.is_parent_at_rest() && !guard.wants_attention());
        let other = guard.clone();
        other.set_attention(true);
        assert!(guard.is_parent() && guard.wants_attention() && !guard.is_parent_at_rest());
        other.set_attention(false);
        assert!(guard.is_parent_at_rest() && !guard.wants_attention());
        // As the kernel hands the page to a child.
        guard.word.word().store(0, Ordering::Relaxed);
        for wants in [false, true] {
            guard.set_attention(wants);
            assert!(!guard.is_parent() && !guard.is_parent_at_rest());
        }
    }
}
