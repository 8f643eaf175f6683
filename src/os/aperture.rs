//! The memory of an aperture: pages that their owner and a holder in another process map. Read-only
//! pages may have several holders.
//!
//! ```text
//!   owner                                        holder
//!   Owned: maps, fills (pays), seals
//!          ------------- descriptor ---------->  check(..), then Pages: maps
//!   reads and writes  <---- the pages ---->      reads, writes if it may
//!   revoke: copies out, unmaps                   its pages are an orphan: harmless, of no use
//! ```
//! SHRIMP's import and export, CLAN's aperture. Data moves by the holder's own stores and loads; a
//! packet over the link announces it, and is checked like any other.
//!
//! Every access goes through copies that the compiler cannot reason about ([`cells`]); no reference
//! to a shared byte is ever given out, because the other process may change it at any time. The
//! lock guards the *mapping*, not the bytes: a revocation waits for copies of this process that are
//! under way, each of at most [`COPY_BYTES_MAX`].
//!
//! Never: pages whose size another process can lower are mapped (no access can fault); the former
//! owner of an orphan reads a page of it again.

mod stores;

pub use stores::{AreaView, Stores};

use super::descriptor::Descriptor;
use super::memory::{
    self, AperturePages, DescriptorError, ForkGuard, RegionLines, SEALS_READ_ONLY, SEALS_SIZE,
    WantedDescriptor,
};
use crate::link::cells::{self, Lines};
use core::sync::atomic::{AtomicBool, Ordering};
use rustix::fs::{Mode, OFlags, SealFlags};
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::vec::Vec;

pub use crate::wire::{APERTURE_PAGE_BYTES as PAGE_BYTES, ApertureAccess};

/// Bytes that are copied before a waiting revocation gets its turn.
pub const COPY_BYTES_MAX: usize = 1 << 20;

/// Most revoked apertures of one user's holders that some process still has; beyond, nothing more
/// is exported to that user.
pub const ORPHANS_PER_USER_MAX: usize = 256;

/// The seals of the memory file when it reaches the holder.
pub(super) fn seals(access: ApertureAccess) -> SealFlags {
    match access {
        ApertureAccess::ReadWrite => SEALS_SIZE.union(SealFlags::SEAL),
        ApertureAccess::ReadOnly => SEALS_READ_ONLY,
    }
}

/// Bytes of an aperture that cannot be read or written in this way. A refused range was not
/// touched; a range during whose copy the aperture was revoked may have been copied in part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[cfg_attr(not(feature = "unstable-internals"), non_exhaustive)]
pub enum AccessError {
    /// The range reaches outside.
    #[error("{length} bytes at offset {offset} reach outside the aperture of {bytes} bytes")]
    OutOfBounds {
        /// Offset asked for.
        offset: u64,
        /// Bytes asked for.
        length: u64,
        /// Bytes of the aperture.
        bytes: u64,
    },
    /// Words are aligned.
    #[error("a word lies at a multiple of 8 bytes, and not at offset {0}")]
    Unaligned(u64),
    /// The holder may not write.
    #[error("the aperture is read-only for its holder")]
    ReadOnly,
    /// It was revoked, or its link has ended.
    #[error("the aperture was revoked, or the link to its owner has ended")]
    Revoked,
    /// This process was forked from the one that mapped it, and does not have the pages.
    #[error("this process was forked from the one that has the aperture")]
    Forked,
    /// Of an aperture of another host: not now; this part was not written.
    #[error("not now: {0} parts that were written wait until the other host takes them")]
    Busy(usize),
    /// Of an aperture of another host: nothing was read.
    #[error("the owner's program on the other host made no calls within host_timeout_ms")]
    Silent,
    /// Of an aperture of another host.
    #[error(
        "no word of an aperture of another host is read or written whole: read or write bytes, and \
         announce them by a message"
    )]
    Word,
}

/// The pages of an owner on another host. Ranges have been checked.
pub trait FarPages: core::fmt::Debug + Send + Sync {
    /// Copies `from`, which is then on its way to `offset`.
    fn write(&self, offset: u64, from: &[u8]) -> Result<(), AccessError>;

    /// Waits for the bytes from `offset` on.
    fn read(&self, offset: u64, to: &mut [u8]) -> Result<(), AccessError>;
}

/// Mapped pages of an aperture, until they are released.
#[derive(Debug)]
pub struct Pages {
    bytes: u64,
    may_write: bool,
    is_far: bool,
    /// `None`: released.
    memory: RwLock<Option<PageMemory>>,
    guard: ForkGuard,
}

/// The place of the pages.
#[derive(Clone, Debug)]
enum PageMemory {
    Here(RegionLines),
    OtherHost(Arc<dyn FarPages>),
}

impl Pages {
    fn new(lines: RegionLines, bytes: u64, may_write: bool) -> io::Result<Self> {
        let memory = RwLock::new(Some(PageMemory::Here(lines)));
        Ok(Self { bytes, may_write, is_far: false, memory, guard: ForkGuard::new()? })
    }

    /// The holder's side, of an owner on another host.
    pub fn of_other_host(
        far: Arc<dyn FarPages>,
        bytes: u64,
        access: ApertureAccess,
    ) -> io::Result<Self> {
        let may_write = access == ApertureAccess::ReadWrite;
        let memory = RwLock::new(Some(PageMemory::OtherHost(far)));
        Ok(Self { bytes, may_write, is_far: true, memory, guard: ForkGuard::new()? })
    }

    /// The holder's side: checks the file that came from the owner, or the copy that the owner has
    /// filled, and maps it. The bytes must have been paid for.
    pub fn hold(
        file: impl AsFd,
        bytes: u64,
        access: ApertureAccess,
    ) -> Result<Self, DescriptorError> {
        let may_write = access == ApertureAccess::ReadWrite;
        memory::check(&file, &wanted(bytes, seals(access), may_write, true))?;
        memory::check_pages(&file, bytes as usize)?;
        let lines = RegionLines::map_aperture(file, bytes as usize, may_write)
            .map_err(DescriptorError::Map)?;
        Self::new(lines, bytes, may_write).map_err(DescriptorError::Map)
    }

    /// Bytes, also after the release.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether this process may write them.
    pub fn may_write(&self) -> bool {
        self.may_write
    }

    /// Whether they have been released, or belong to another process.
    pub fn is_gone(&self) -> bool {
        // In a child, another thread of its parent may hold the lock for ever.
        !self.guard.is_parent()
            || self.memory.read().unwrap_or_else(PoisonError::into_inner).is_none()
    }

    /// Releases them: every later access is [`AccessError::Revoked`]. Waits for copies under way.
    /// `false`: they had been released before.
    pub fn let_go(&self) -> bool {
        self.guard.is_parent()
            && self.memory.write().unwrap_or_else(PoisonError::into_inner).take().is_some()
    }

    #[inline]
    fn with<R>(&self, body: impl FnOnce(&RegionLines) -> R) -> Result<R, AccessError> {
        if !self.guard.is_parent() {
            return Err(AccessError::Forked);
        }
        let memory = self.memory.read().unwrap_or_else(PoisonError::into_inner);
        match memory.as_ref() {
            Some(PageMemory::Here(lines)) => Ok(body(lines)),
            Some(PageMemory::OtherHost(_)) => Err(AccessError::Word),
            None => Err(AccessError::Revoked),
        }
    }

    /// The other host's pages, if the owner is on one. A release does not wait for operations on
    /// them.
    #[inline]
    fn far(&self) -> Result<Option<Arc<dyn FarPages>>, AccessError> {
        if self.is_far { self.find_far().map(Some) } else { Ok(None) }
    }

    #[cold]
    fn find_far(&self) -> Result<Arc<dyn FarPages>, AccessError> {
        if !self.guard.is_parent() {
            return Err(AccessError::Forked);
        }
        let memory = self.memory.read().unwrap_or_else(PoisonError::into_inner);
        match memory.as_ref() {
            Some(PageMemory::OtherHost(far)) => Ok(far.clone()),
            _ => Err(AccessError::Revoked),
        }
    }

    fn check(&self, offset: u64, length: u64) -> Result<(), AccessError> {
        if offset > self.bytes || length > self.bytes - offset {
            return Err(AccessError::OutOfBounds { offset, length, bytes: self.bytes });
        }
        Ok(())
    }

    /// Copies `from` to `offset`.
    #[inline]
    pub fn write(&self, offset: u64, from: &[u8]) -> Result<(), AccessError> {
        self.check(offset, from.len() as u64)?;
        if !self.may_write {
            return Err(AccessError::ReadOnly);
        }
        if let Some(far) = self.far()? {
            return far.write(offset, from);
        }
        let mut at = offset as usize;
        for piece in pieces(from.len()) {
            let piece = &from[piece];
            self.with(|lines| cells::write_at(lines.lines(), at, piece))?;
            at += piece.len();
        }
        Ok(())
    }

    /// Copies from `offset` into `to`.
    #[inline]
    pub fn read(&self, offset: u64, to: &mut [u8]) -> Result<(), AccessError> {
        self.check(offset, to.len() as u64)?;
        if let Some(far) = self.far()? {
            return far.read(offset, to);
        }
        let mut at = offset as usize;
        for piece in pieces(to.len()) {
            let piece = &mut to[piece];
            self.with(|lines| cells::read_at(lines.lines(), at, piece))?;
            at += piece.len();
        }
        Ok(())
    }

    /// Enters every page into this process's page table now, if the system can, so that no access
    /// has to wait for that later. A revocation meanwhile waits until it is done.
    pub fn populate(&self) -> Result<(), AccessError> {
        // If it cannot, pages are entered on first touch, as without this call.
        if self.far()?.is_some() {
            return Ok(());
        }
        self.with(|lines| {
            let _ = if self.may_write { lines.fill_by_writing() } else { lines.fill_by_reading() };
        })
    }

    /// The word at `offset`, whole, with Acquire: everything that its writer stored before it is
    /// visible after it.
    #[inline]
    pub fn read_u64(&self, offset: u64) -> Result<u64, AccessError> {
        self.check_word(offset)?;
        self.with(|lines| cells::load_at(lines.lines(), offset as usize))
    }

    /// Stores a word, whole, after everything that this thread has written before.
    #[inline]
    pub fn write_u64(&self, offset: u64, value: u64) -> Result<(), AccessError> {
        self.check_word(offset)?;
        if !self.may_write {
            return Err(AccessError::ReadOnly);
        }
        self.with(|lines| cells::store_at(lines.lines(), offset as usize, value))
    }

    fn check_word(&self, offset: u64) -> Result<(), AccessError> {
        self.check(offset, 8)?;
        if offset.is_multiple_of(8) { Ok(()) } else { Err(AccessError::Unaligned(offset)) }
    }
}

/// Ranges of at most [`COPY_BYTES_MAX`]; for no bytes one empty range, so that it is checked, too.
fn pieces(length: usize) -> impl Iterator<Item = core::ops::Range<usize>> {
    let count = length.div_ceil(COPY_BYTES_MAX).max(1);
    (0..count).map(move |i| i * COPY_BYTES_MAX..((i + 1) * COPY_BYTES_MAX).min(length))
}

fn wanted(bytes: u64, seals: SealFlags, may_write: bool, filled: bool) -> WantedDescriptor {
    let refused =
        if may_write { SealFlags::WRITE | SealFlags::FUTURE_WRITE } else { SealFlags::WRITE };
    WantedDescriptor { seals, seals_refused: refused, bytes: bytes as usize, filled, huge: false }
}

/// The same file through a description of its own, so that the kernel can tell whether another
/// process still has one ([`Ledger::settle`]). `None` without /proc.
pub(super) fn reopen(file: impl AsFd, flags: OFlags) -> Option<OwnedFd> {
    let path = std::format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
    rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty()).ok()
}

/// The holder's use of its descriptor.
fn flags_of(access: ApertureAccess) -> OFlags {
    match access {
        ApertureAccess::ReadWrite => OFlags::RDWR,
        ApertureAccess::ReadOnly => OFlags::RDONLY,
    }
}

/// The owner's side of an aperture. Dropping the last of it revokes.
#[derive(Debug)]
pub struct Owned {
    pages: Pages,
    access: ApertureAccess,
    /// Though it is read-write, it may have several holders.
    is_shared: AtomicBool,
    rest: Mutex<Option<OwnedPages>>,
}

/// The parts that the owner needs to take its memory back.
#[derive(Debug)]
struct OwnedPages {
    file: OwnedFd,
    reservation: Reservation,
}

impl Owned {
    /// Makes the memory, and the descriptor for the holder. Every page is charged to this process.
    pub fn make(access: ApertureAccess, reservation: Reservation) -> io::Result<(Self, OwnedFd)> {
        memory::check_room(reservation.bytes as usize)?;
        let file = memory::create(reservation.bytes as usize)?;
        Self::over(file, access, reservation)
    }

    /// The same over the application's pages, as many as are reserved.
    pub fn of_pages(
        pages: AperturePages,
        access: ApertureAccess,
        reservation: Reservation,
    ) -> io::Result<(Self, OwnedFd)> {
        memory::check_room(reservation.bytes as usize)?;
        Self::over(pages.into_file(), access, reservation)
    }

    fn over(
        file: OwnedFd,
        access: ApertureAccess,
        reservation: Reservation,
    ) -> io::Result<(Self, OwnedFd)> {
        let flags = flags_of(access);
        let own = reopen(&file, OFlags::RDWR);
        let theirs = own.as_ref().and_then(|own| reopen(own, flags));
        let (file, theirs, counted) = match (own, theirs) {
            // The first description, which the kernel does not count, is closed here.
            (Some(own), Some(theirs)) => (own, theirs, true),
            _ => {
                let theirs = file.try_clone()?;
                (file, theirs, false)
            }
        };
        let lines = RegionLines::map_aperture(&file, reservation.bytes as usize, true)?;
        lines.fill_by_writing()?;
        memory::seal(&file, seals(access))?;
        let rest = OwnedPages { file, reservation: reservation.counted(counted) };
        Ok((Self::new(lines, access, rest)?, theirs))
    }

    fn new(lines: RegionLines, access: ApertureAccess, rest: OwnedPages) -> io::Result<Self> {
        let pages = Pages::new(lines, rest.reservation.bytes, true)?;
        let is_shared = AtomicBool::new(access == ApertureAccess::ReadOnly);
        Ok(Self { pages, access, is_shared, rest: Mutex::new(Some(rest)) })
    }

    /// Whether it may have several holders.
    pub fn is_shared(&self) -> bool {
        self.is_shared.load(Ordering::Relaxed)
    }

    /// Several holders may write it.
    pub fn let_others_write(&self) {
        self.is_shared.store(true, Ordering::Relaxed);
    }

    /// A descriptor for one more holder, of `user`, in whose row the bytes are counted from now on,
    /// if its `limit` allows it. Of a read-only aperture the descriptor allows no writing. Also
    /// returns whether this user had none before: if the holder does not get it after all, [take
    /// the bytes out](Self::unshare) of that row again.
    pub fn descriptor_for(
        &self,
        user: Option<u32>,
        limit: u64,
    ) -> Result<io::Result<(OwnedFd, bool)>, Exceeded> {
        debug_assert!(self.is_shared());
        let mut rest = self.rest.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(OwnedPages { file, reservation }) = &mut *rest else {
            return Ok(Err(io::ErrorKind::NotFound.into()));
        };
        reservation.descriptor_for(file, flags_of(self.access), user, limit)
    }

    /// A user who got no descriptor after all does not pay for it.
    pub fn unshare(&self, user: Option<u32>) {
        let mut rest = self.rest.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(OwnedPages { reservation, .. }) = &mut *rest {
            reservation.unshare(user);
        }
    }

    /// The pages, for reading and writing.
    pub fn pages(&self) -> &Pages {
        &self.pages
    }

    /// The holders' rights.
    pub fn access(&self) -> ApertureAccess {
        self.access
    }

    /// Takes the memory back, at once: no process sees the holder's later writes. The bytes go to
    /// `keep`, which is as long as the aperture, if they are needed; other accesses of this process
    /// wait meanwhile. `false`: it was revoked before, and nothing happened.
    pub fn revoke(&self, keep: Option<&mut [u8]>) -> bool {
        if !self.pages.guard.is_parent() {
            return false;
        }
        let mut memory = self.pages.memory.write().unwrap_or_else(PoisonError::into_inner);
        let Some(mapped) = memory.take() else { return false };
        if let (Some(keep), PageMemory::Here(lines)) = (keep, &mapped) {
            cells::read_at(lines.lines(), 0, keep);
        }
        drop((mapped, memory));
        let rest = self.rest.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(OwnedPages { file, reservation }) = rest {
            // The pages are given back when no process has the file any more. Punching them out of
            // it would take the inode's lock, which the holder of a writable descriptor can keep.
            reservation.orphan(file);
        }
        true
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        // In a forked child the file is the parent's, and so are its pages.
        if self.pages.guard.is_parent() {
            self.revoke(None);
        } else {
            // Its account may be locked for ever, by a thread that the child does not have.
            core::mem::forget(self.rest.get_mut().unwrap_or_else(PoisonError::into_inner).take());
        }
    }
}

/// The apertures that a process has exported, and the revoked ones that it still pays for.
#[derive(Debug, Default)]
pub struct Ledger(Mutex<Rows>);

#[derive(Debug, Default)]
struct Rows {
    /// Bytes of apertures and of orphans.
    bytes: u64,
    /// The same, by the user of the holder; no row is 0.
    users: HashMap<Option<u32>, u64>,
    orphans: Vec<Orphan>,
}

impl Rows {
    fn of(&self, user: Option<u32>) -> u64 {
        self.users.get(&user).copied().unwrap_or(0)
    }

    fn give_back(&mut self, users: &[Option<u32>], bytes: u64) {
        self.bytes -= bytes;
        users.iter().for_each(|user| self.give_back_of(*user, bytes));
    }

    fn give_back_of(&mut self, user: Option<u32>, bytes: u64) {
        if let Some(row) = self.users.get_mut(&user) {
            *row -= bytes;
            if *row == 0 {
                self.users.remove(&user);
            }
        }
    }
}

/// Bytes that may be exported.
#[derive(Clone, Copy, Debug)]
pub struct ExportLimits {
    /// To all holders together.
    pub all: u64,
    /// To holders of one user.
    pub user: u64,
}

/// A limit would be exceeded: the number of bytes in use already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exceeded {
    /// By all holders together.
    All(u64),
    /// By holders of this user.
    User(u64),
    /// So many revoked apertures of this user's holders are still held by some process; each keeps
    /// a descriptor here.
    Orphans(usize),
}

/// Memory that was revoked and that its holder may still have.
#[derive(Debug)]
struct Orphan {
    file: Descriptor,
    bytes: u64,
    users: Vec<Option<u32>>,
    counted: bool,
}

impl Ledger {
    fn lock(&self) -> MutexGuard<'_, Rows> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets `bytes` aside for a holder of `user`, if the limits allow it.
    pub fn reserve(
        self: &Arc<Self>,
        bytes: u64,
        user: Option<u32>,
        limits: ExportLimits,
    ) -> Result<Reservation, Exceeded> {
        let mut reservation = self.reserve_for_many(bytes, limits.all)?;
        reservation.share(user, limits.user)?;
        Ok(reservation)
    }

    /// Sets `bytes` aside for holders of several users, to be [shared](Reservation::share) with
    /// each.
    pub fn reserve_for_many(
        self: &Arc<Self>,
        bytes: u64,
        all: u64,
    ) -> Result<Reservation, Exceeded> {
        self.settle();
        let mut rows = self.lock();
        if bytes > all.saturating_sub(rows.bytes) {
            return Err(Exceeded::All(rows.bytes));
        }
        rows.bytes += bytes;
        drop(rows);
        let (ledger, users) = (Arc::clone(self), Vec::new());
        Ok(Reservation { ledger, bytes, users, counted: false })
    }

    /// Bytes exported, orphans included.
    pub fn bytes(&self) -> u64 {
        self.lock().bytes
    }

    /// Bytes of orphans.
    pub fn orphan_bytes(&self) -> u64 {
        self.lock().orphans.iter().map(|orphan| orphan.bytes).sum()
    }

    /// Closes the orphans that no other process has any more, which frees their memory.
    pub fn settle(&self) {
        let mut rows = self.lock();
        let orphans = core::mem::take(&mut rows.orphans);
        for orphan in orphans {
            if orphan.counted && !is_held_elsewhere(&orphan.file) {
                rows.give_back(&orphan.users, orphan.bytes);
            } else {
                rows.orphans.push(orphan);
            }
        }
    }
}

/// Whether any process has the file open or mapped through another description than `file`. The
/// kernel grants a write lease only if there is none.
fn is_held_elsewhere(file: &impl AsRawFd) -> bool {
    let lease = |kind: libc::c_int| {
        // SAFETY: a call with integers on a descriptor that is open.
        unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, kind) == 0 }
    };
    // Not granted for other reasons (the file is another user's): then it cannot be known.
    let is_alone = lease(libc::F_WRLCK);
    if is_alone {
        lease(libc::F_UNLCK);
    }
    !is_alone
}

/// Whether the kernel can tell that no other process has a file any more.
pub(super) fn can_tell() -> bool {
    let Some(own) = memory::create(1).ok().and_then(|file| reopen(file, OFlags::RDWR)) else {
        return false;
    };
    let other = reopen(&own, OFlags::RDONLY);
    let is_seen = other.is_some() && is_held_elsewhere(&own);
    drop(other);
    is_seen && !is_held_elsewhere(&own)
}

/// Bytes set aside in a [`Ledger`], given back when dropped.
#[derive(Debug)]
pub struct Reservation {
    ledger: Arc<Ledger>,
    bytes: u64,
    /// The holders' users, each once.
    users: Vec<Option<u32>>,
    /// The kernel counts the owner's description of the file.
    counted: bool,
}

impl Reservation {
    /// The number of bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Counts the bytes in a user's row, too, if that user's `limit` allows it: once, for any
    /// number of the user's processes that hold them, and as long as the memory lives. If refused,
    /// nothing has changed. Returns whether it was not counted there before.
    pub fn share(&mut self, user: Option<u32>, limit: u64) -> Result<bool, Exceeded> {
        if self.users.contains(&user) {
            return Ok(false);
        }
        self.ledger.settle();
        let mut rows = self.ledger.lock();
        let used = rows.of(user);
        if self.bytes > limit.saturating_sub(used) {
            return Err(Exceeded::User(used));
        }
        let orphans = rows.orphans.iter().filter(|orphan| orphan.users.contains(&user)).count();
        if orphans >= ORPHANS_PER_USER_MAX {
            return Err(Exceeded::Orphans(orphans));
        }
        *rows.users.entry(user).or_default() += self.bytes;
        self.users.push(user);
        Ok(true)
    }

    /// The reverse of [`share`](Self::share).
    pub fn unshare(&mut self, user: Option<u32>) {
        let Some(at) = self.users.iter().position(|known| *known == user) else { return };
        self.users.swap_remove(at);
        self.ledger.lock().give_back_of(user, self.bytes);
    }

    /// A descriptor of `file` for one more holder, as of [`Owned::descriptor_for`].
    pub(super) fn descriptor_for(
        &mut self,
        file: &OwnedFd,
        flags: OFlags,
        user: Option<u32>,
        limit: u64,
    ) -> Result<io::Result<(OwnedFd, bool)>, Exceeded> {
        let is_new = self.share(user, limit)?;
        let theirs = match reopen(file, flags) {
            Some(theirs) => Ok(theirs),
            None => {
                // The seals hold for this one, too; but the kernel no longer distinguishes it from
                // the owner's.
                self.counted = false;
                file.try_clone()
            }
        };
        if theirs.is_err() && is_new {
            self.unshare(user);
        }
        Ok(theirs.map(|theirs| (theirs, is_new)))
    }

    pub(super) fn counted(mut self, counted: bool) -> Self {
        self.counted = counted;
        self
    }

    /// Stays in the account until no other process has the file.
    pub(super) fn orphan(mut self, file: OwnedFd) {
        let (bytes, counted) = (core::mem::take(&mut self.bytes), self.counted);
        let users = core::mem::take(&mut self.users);
        self.ledger.lock().orphans.push(Orphan { file: file.into(), bytes, users, counted });
        self.ledger.settle();
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.ledger.lock().give_back(&self.users, self.bytes);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::vec;

    const BYTES: u64 = 3 * PAGE_BYTES;
    const LIMITS: ExportLimits = ExportLimits { all: BYTES, user: BYTES };

    fn made(access: ApertureAccess) -> (Arc<Ledger>, Owned, OwnedFd) {
        let ledger = Arc::new(Ledger::default());
        let (owned, file) =
            Owned::make(access, ledger.reserve(BYTES, None, LIMITS).unwrap()).unwrap();
        (ledger, owned, file)
    }

    #[test]
    fn what_one_end_writes_the_other_reads() {
        let (_, owned, file) = made(ApertureAccess::ReadWrite);
        let held = Pages::hold(&file, BYTES, ApertureAccess::ReadWrite).unwrap();
        held.write(4000, &[7; 200]).unwrap();
        held.write_u64(BYTES - 8, 9).unwrap();
        let mut out = [0; 202];
        owned.pages().read(3999, &mut out).unwrap();
        assert!(out[0] == 0 && out[1..201] == [7; 200] && out[201] == 0);
        assert_eq!(owned.pages().read_u64(BYTES - 8), Ok(9));
        owned.pages().write(0, b"back").unwrap();
        let mut out = [0; 4];
        held.read(0, &mut out).unwrap();
        assert_eq!(&out, b"back");
    }

    #[test]
    fn nothing_outside_is_touched() {
        let (_, owned, _file) = made(ApertureAccess::ReadWrite);
        let pages = owned.pages();
        for (offset, length) in [(BYTES, 1), (BYTES - 1, 2), (u64::MAX, 1), (BYTES + 1, 0)] {
            let error = AccessError::OutOfBounds { offset, length, bytes: BYTES };
            assert_eq!(pages.write(offset, &vec![1; length as usize]), Err(error));
            assert_eq!(pages.read(offset, &mut vec![1; length as usize]), Err(error));
        }
        assert_eq!(pages.write(BYTES, &[]), Ok(()));
        assert_eq!(pages.read_u64(4), Err(AccessError::Unaligned(4)));
        assert!(matches!(pages.read_u64(BYTES - 4), Err(AccessError::OutOfBounds { .. })));
    }

    /// Threads that nothing waits for unmap the released memory.
    fn until_settled(ledger: &Ledger) {
        let end = std::time::Instant::now() + core::time::Duration::from_secs(20);
        while (ledger.bytes(), ledger.orphan_bytes()) != (0, 0) {
            assert!(std::time::Instant::now() < end, "{} bytes are left", ledger.bytes());
            std::thread::yield_now();
            ledger.settle();
        }
    }

    #[test]
    fn whoever_is_given_nothing_after_all_does_not_pay_and_others_go_on_paying() {
        let (ledger, owned, file) = made(ApertureAccess::ReadOnly);
        let row = |user| ledger.lock().of(Some(user));
        for _ in 0..2 {
            let (_, is_new) = owned.descriptor_for(Some(7), BYTES).unwrap().unwrap();
            assert!(is_new);
            let (_, is_new) = owned.descriptor_for(Some(8), BYTES).unwrap().unwrap();
            assert!(is_new && !owned.descriptor_for(Some(8), BYTES).unwrap().unwrap().1);
            assert_eq!((row(7), row(8)), (BYTES, BYTES));
            owned.unshare(Some(7));
            assert_eq!((row(7), row(8)), (0, BYTES));
            owned.unshare(Some(7));
            owned.unshare(Some(8));
        }
        assert_eq!((row(7), row(8), ledger.bytes()), (0, 0, BYTES));
        drop(file);
        owned.revoke(None);
        until_settled(&ledger);
    }

    #[test]
    fn a_revoked_one_is_gone_for_both_and_its_pages_are_given_back() {
        let (ledger, owned, file) = made(ApertureAccess::ReadWrite);
        let held = Pages::hold(&file, BYTES, ApertureAccess::ReadWrite).unwrap();
        held.write(0, b"kept").unwrap();
        let mut keep = vec![0; BYTES as usize];
        assert!(owned.revoke(Some(&mut keep)));
        assert!(!owned.revoke(None), "twice");
        assert_eq!(&keep[..4], b"kept");
        assert_eq!(owned.pages().read(0, &mut [0]), Err(AccessError::Revoked));
        // Its pages count until the holder has released them.
        assert_eq!((ledger.bytes(), ledger.orphan_bytes()), (BYTES, BYTES));
        held.write(0, b"late").unwrap();
        assert!(held.let_go() && !held.let_go());
        assert_eq!(held.write(0, b"late"), Err(AccessError::Revoked));
        drop(file);
        until_settled(&ledger);
    }

    #[test]
    fn a_read_only_orphan_counts_until_its_holder_lets_go() {
        let (ledger, owned, file) = made(ApertureAccess::ReadOnly);
        let held = Pages::hold(&file, BYTES, ApertureAccess::ReadOnly).unwrap();
        owned.pages().write(0, b"seen").unwrap();
        let mut out = [0; 4];
        held.read(0, &mut out).unwrap();
        assert_eq!(&out, b"seen");
        assert_eq!(held.write(0, b"no"), Err(AccessError::ReadOnly));
        assert_eq!(held.write_u64(0, 1), Err(AccessError::ReadOnly));
        assert!(RegionLines::map_writable(&file, BYTES as usize).is_err());
        assert!(RegionLines::map_writable(reopen(&file, OFlags::RDWR).unwrap(), 4096).is_err());
        drop(owned);
        assert_eq!((ledger.bytes(), ledger.orphan_bytes()), (BYTES, BYTES));
        assert!(ledger.reserve(PAGE_BYTES, None, LIMITS).is_err());
        // Neither the descriptor alone nor the mapping alone may be forgotten.
        drop(file);
        ledger.settle();
        assert_eq!(ledger.orphan_bytes(), BYTES);
        held.let_go();
        until_settled(&ledger);
    }

    #[test]
    fn a_user_who_keeps_what_was_revoked_takes_nothing_from_another() {
        let ledger = Arc::new(Ledger::default());
        let limits = ExportLimits { all: 4 * PAGE_BYTES, user: 2 * PAGE_BYTES };
        let reserve = |pages, user| ledger.reserve(pages * PAGE_BYTES, user, limits);
        let own = reserve(2, Some(7)).unwrap();
        let (owned, kept) = Owned::make(ApertureAccess::ReadOnly, own).unwrap();
        drop(owned);
        assert_eq!(reserve(1, Some(7)).unwrap_err(), Exceeded::User(2 * PAGE_BYTES));
        let other = reserve(2, Some(8)).unwrap();
        assert_eq!(reserve(1, None).unwrap_err(), Exceeded::All(4 * PAGE_BYTES));
        drop(other);
        let unknown = reserve(2, None).unwrap();
        drop((kept, unknown));
        until_settled(&ledger);
        reserve(2, Some(7)).unwrap();
        // Nor do many small ones take all descriptors.
        let limits = ExportLimits { all: u64::MAX, user: u64::MAX };
        let mut kept = Vec::new();
        for _ in 0..ORPHANS_PER_USER_MAX {
            let one = ledger.reserve(PAGE_BYTES, Some(7), limits).unwrap();
            kept.push(Owned::make(ApertureAccess::ReadOnly, one).unwrap().1);
        }
        let error = ledger.reserve(PAGE_BYTES, Some(7), limits).unwrap_err();
        assert_eq!(error, Exceeded::Orphans(ORPHANS_PER_USER_MAX));
        drop(ledger.reserve(PAGE_BYTES, Some(8), limits).unwrap());
        kept.clear();
        drop(ledger.reserve(PAGE_BYTES, Some(7), limits).unwrap());
        assert_eq!((ledger.bytes(), ledger.lock().users.len()), (0, 0));
    }

    #[test]
    fn pages_can_be_entered_before_they_are_used() {
        for access in [ApertureAccess::ReadWrite, ApertureAccess::ReadOnly] {
            let (_, _owned, file) = made(access);
            let held = Pages::hold(&file, BYTES, access).unwrap();
            held.populate().unwrap();
            assert_eq!(held.read_u64(0), Ok(0));
            held.let_go();
            assert_eq!(held.populate(), Err(AccessError::Revoked));
        }
    }

    #[test]
    fn a_long_copy_is_made_of_pieces() {
        let of = |n| pieces(n).collect::<Vec<_>>();
        assert_eq!((of(0).len(), of(COPY_BYTES_MAX).len()), (1, 1));
        let long = COPY_BYTES_MAX + 1;
        assert_eq!(of(long), [0..COPY_BYTES_MAX, COPY_BYTES_MAX..long]);
    }
}
