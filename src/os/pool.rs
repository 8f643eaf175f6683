//! The memory of a publisher's pool: an aperture with many holders, who may only read it.
//!
//! ```text
//!   owner                                         holders, each over a link of its own
//!   Pool: maps, fills (pays), seals
//!            -------- a descriptor for each -----> `aperture::Pages`, read-only
//!   Place: taken, written, published, given back   read, by copies
//! ```
//! The pool is cut into places of one size. A [`PoolPlace`] is the right to write one, and there is at
//! most one of it at a time; so its holder may borrow its bytes as a slice. No other process can
//! write them: the file is sealed against every writable mapping but the one that is here
//! (`FUTURE_WRITE`), and no forked child has that one.
//!
//! Never: two places overlap; the memory is unmapped while a place of it is out; a byte that a
//! holder could have written is read here (holders can write none).

use super::aperture::{ApertureAccess, Exceeded, PAGE_BYTES, Reservation, reopen, seals};
use super::memory::{self, ForkGuard, RegionLines};
use rustix::fs::OFlags;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::vec::Vec;

/// The division of a pool into places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Places.
    pub places: u32,
    /// Bytes of each, a multiple of 64.
    pub place_bytes: u64,
}

impl Layout {
    /// Bytes of all places, as whole pages; `None`: zero, or more than an address space has.
    pub fn bytes(&self) -> Option<u64> {
        let bytes = self.place_bytes.checked_mul(self.places as u64)?;
        let pages = bytes.checked_next_multiple_of(PAGE_BYTES)?;
        (bytes > 0 && pages <= isize::MAX as u64).then_some(pages)
    }

    /// The offset of a place.
    pub fn offset(&self, place: u32) -> u64 {
        place as u64 * self.place_bytes
    }
}

/// The pool.
#[derive(Debug)]
pub struct Pool {
    layout: Layout,
    lines: RegionLines,
    guard: ForkGuard,
    /// Places that are not out.
    free: Mutex<Vec<u32>>,
    /// `None` only while this is dropped.
    rest: Mutex<Option<PoolRest>>,
}

#[derive(Debug)]
struct PoolRest {
    file: OwnedFd,
    reservation: Reservation,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pool {
    /// Makes the memory, with the bytes of `layout`, which `reservation` has set aside. Every page
    /// is charged to this process now.
    pub fn make(layout: Layout, reservation: Reservation) -> io::Result<Arc<Self>> {
        let bytes = reservation.bytes() as usize;
        debug_assert_eq!(layout.bytes(), Some(bytes as u64));
        memory::check_room(bytes)?;
        let made = memory::create(bytes)?;
        // The first description, which the kernel does not count, is closed here if possible.
        let (file, counted) = match reopen(&made, OFlags::RDWR) {
            Some(own) => (own, true),
            None => (made, false),
        };
        let lines = RegionLines::map_aperture(&file, bytes, true)?;
        lines.fill_by_writing()?;
        memory::seal(&file, seals(ApertureAccess::ReadOnly))?;
        // The lowest is taken first.
        let free = (0..layout.places).rev().collect();
        let rest = PoolRest { file, reservation: reservation.counted(counted) };
        Ok(Arc::new(Self {
            layout,
            lines,
            guard: ForkGuard::new()?,
            free: Mutex::new(free),
            rest: Mutex::new(Some(rest)),
        }))
    }

    /// The division into places.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// Bytes of its pages.
    pub fn bytes(&self) -> u64 {
        self.lines.bytes() as u64
    }

    /// A descriptor for a holder of `user`, in whose row the bytes are counted from now on, if its
    /// `limit` allows it.
    pub fn descriptor_for(
        &self,
        user: Option<u32>,
        limit: u64,
    ) -> Result<io::Result<(OwnedFd, bool)>, Exceeded> {
        let mut rest = lock(&self.rest);
        let Some(PoolRest { file, reservation }) = &mut *rest else {
            return Ok(Err(io::ErrorKind::NotFound.into()));
        };
        reservation.descriptor_for(file, OFlags::RDONLY, user, limit)
    }

    /// As [`Owned::unshare`](super::aperture::Owned::unshare).
    pub fn unshare(&self, user: Option<u32>) {
        if let Some(PoolRest { reservation, .. }) = &mut *lock(&self.rest) {
            reservation.unshare(user);
        }
    }

    /// The right to write a free place; `None`: all are out.
    pub fn take(self: &Arc<Self>) -> Option<PoolPlace> {
        if !self.guard.is_parent() {
            return None;
        }
        let index = lock(&self.free).pop()?;
        Some(PoolPlace { pool: Arc::clone(self), index })
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // Not locked: in a forked child it may be so for ever.
        let rest = self.rest.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if !self.guard.is_parent() {
            // The account may be locked for ever, by a thread that the child does not have.
            return core::mem::forget(rest);
        }
        if let Some(PoolRest { file, reservation }) = rest {
            reservation.orphan(file);
        }
    }
}

/// The right to write one place of a pool, given back when dropped.
#[derive(Debug)]
pub struct PoolPlace {
    pool: Arc<Pool>,
    index: u32,
}

impl PoolPlace {
    /// The index of the place.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Whether it is a place of this pool.
    pub fn is_of(&self, pool: &Arc<Pool>) -> bool {
        Arc::ptr_eq(&self.pool, pool)
    }

    fn start(&self) -> *mut u8 {
        assert!(self.pool.guard.is_parent(), "a forked child has not got the pool of its parent");
        // SAFETY: places lie inside the mapping, whose bytes are at least those of the layout.
        unsafe {
            self.pool.lines.start().as_ptr().add(self.pool.layout.offset(self.index) as usize)
        }
    }

    /// All its bytes. Panics in a forked child, which does not have the memory.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: a place of `place_bytes` bytes, mapped as long as the pool that `self` keeps. No
        // other process can write it (see the head of this file), and in this one only through
        // `self`, which is borrowed.
        unsafe { core::slice::from_raw_parts(self.start(), self.pool.layout.place_bytes as usize) }
    }

    /// All its bytes, for writing. Panics in a forked child, which does not have the memory.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and borrowed exclusively; no two places overlap. Other processes that
        // read meanwhile do so by copies that no compiler reasons about.
        unsafe {
            core::slice::from_raw_parts_mut(self.start(), self.pool.layout.place_bytes as usize)
        }
    }
}

impl Drop for PoolPlace {
    fn drop(&mut self) {
        // In a forked child the lock may be held for ever.
        if self.pool.guard.is_parent() {
            lock(&self.pool.free).push(self.index);
        }
    }
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use super::*;
    use crate::os::aperture::{Ledger, Pages};
    use std::vec;

    const LAYOUT: Layout = Layout { places: 3, place_bytes: 4096 + 64 };

    fn made() -> (Arc<Ledger>, Arc<Pool>) {
        let ledger = Arc::new(Ledger::default());
        let bytes = LAYOUT.bytes().unwrap();
        assert_eq!(bytes, 4 * PAGE_BYTES);
        let pool = Pool::make(LAYOUT, ledger.reserve_for_many(bytes, bytes).unwrap()).unwrap();
        (ledger, pool)
    }

    fn hold(pool: &Pool, user: u32) -> Pages {
        let file = pool.descriptor_for(Some(user), u64::MAX).unwrap().unwrap().0;
        Pages::hold(file, pool.bytes(), ApertureAccess::ReadOnly).unwrap()
    }

    #[test]
    fn what_is_written_in_a_place_every_holder_reads_there_and_none_can_write() {
        let (_, pool) = made();
        let holders = [hold(&pool, 1), hold(&pool, 2)];
        let mut places: Vec<PoolPlace> = (0..3).map(|_| pool.take().unwrap()).collect();
        assert!(pool.take().is_none(), "there are three");
        for (i, place) in places.iter_mut().enumerate() {
            place.bytes_mut().fill(i as u8 + 1);
        }
        for place in &places {
            assert!(place.bytes().iter().all(|byte| *byte == place.index() as u8 + 1));
            for held in &holders {
                let mut copy = vec![0; LAYOUT.place_bytes as usize];
                held.read(LAYOUT.offset(place.index()), &mut copy).unwrap();
                assert!(copy == place.bytes());
                assert!(held.write(0, b"no").is_err());
            }
        }
        let file = pool.descriptor_for(Some(1), u64::MAX).unwrap().unwrap().0;
        assert!(RegionLines::map_writable(&file, 4096).is_err());
        let again = reopen(&file, OFlags::RDWR).unwrap();
        assert!(RegionLines::map_writable(again, 4096).is_err());
        drop(places.remove(1));
        assert_eq!(pool.take().unwrap().index(), 1);
    }

    #[test]
    fn a_pool_counts_once_and_once_for_each_user_as_long_as_anybody_has_it() {
        let (ledger, pool) = made();
        let bytes = pool.bytes();
        let (first, second) = (hold(&pool, 1), hold(&pool, 1));
        let other = hold(&pool, 2);
        assert_eq!((ledger.bytes(), ledger.orphan_bytes()), (bytes, 0));
        let refused = pool.descriptor_for(Some(3), bytes - 1).unwrap_err();
        assert_eq!(refused, Exceeded::User(0));
        // Another pool of the same size is beyond the share of a user who has this one.
        let another = Pool::make(LAYOUT, ledger.reserve_for_many(bytes, 2 * bytes).unwrap());
        let another = another.unwrap();
        let refused = another.descriptor_for(Some(1), 2 * bytes - 1).unwrap_err();
        assert_eq!(refused, Exceeded::User(bytes));
        drop(another);
        drop((first, other));
        drop(pool);
        assert_eq!((ledger.bytes(), ledger.orphan_bytes()), (bytes, bytes));
        assert!(
            ledger
                .reserve(
                    1,
                    Some(2),
                    crate::os::aperture::ExportLimits { all: u64::MAX, user: bytes }
                )
                .is_err()
        );
        second.let_go();
        let end = std::time::Instant::now() + core::time::Duration::from_secs(20);
        while ledger.bytes() > 0 {
            assert!(std::time::Instant::now() < end, "{} bytes are left", ledger.bytes());
            std::thread::yield_now();
            ledger.settle();
        }
        assert!(
            ledger
                .reserve(
                    bytes,
                    Some(2),
                    crate::os::aperture::ExportLimits { all: bytes, user: bytes }
                )
                .is_ok()
        );
    }

    #[test]
    fn a_place_that_is_out_keeps_the_memory() {
        let (ledger, pool) = made();
        let mut place = pool.take().unwrap();
        drop(pool);
        place.bytes_mut()[7] = 7;
        assert_eq!((place.bytes()[7], ledger.orphan_bytes()), (7, 0));
    }

    #[test]
    fn sizes_that_are_none_are_not_laid_out() {
        for (places, place_bytes) in [(0, 64), (1, 0), (u32::MAX, u64::MAX), (2, u64::MAX / 2)] {
            assert_eq!(Layout { places, place_bytes }.bytes(), None);
        }
    }
}
