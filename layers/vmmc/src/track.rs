//! Which bytes of plain memory have changed: for automatic update of a program that only stores.
//!
//! ```text
//!   the kernel says which pages were written (userfaultfd, asynchronous write protection), and protects
//!   them again; a page is copied, and compared with its twin, the copy that was sent last
//!   no such kernel: all pages are compared
//! ```
//! Bytes that were overwritten between two scans are lost, and so is the order of stores between them. A store
//! while a scan runs is found by this scan or the next one.
//!
//! `unsafe` is here and in `userfault` alone in this crate, beside the C face: system calls on memory that
//! the caller owns, and its copies.

use crate::userfault::{Userfault, Watch};
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};

/// Bytes of a page.
pub const PAGE: usize = 4096;

/// How changes are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tracking {
    /// The kernel says which pages were written: Linux 6.7. A fork's child is not tracked.
    Kernel,
    /// Each scan compares all pages with their twins: some 0.1 ms a MiB.
    Compare,
}

/// Memory whose changes are found.
pub struct Tracked {
    start: *mut u8,
    bytes: usize,
    twin: Twin,
    kernel: Option<Userfault>,
    /// A page's bytes, and its twin's before them.
    copy: Box<[u8; PAGE]>,
    old: Box<[u8; PAGE]>,
}

/// The bytes as they were last found, or came from elsewhere. Clones are the same.
#[derive(Clone)]
pub struct Twin(pub(crate) Arc<Mutex<Box<[u8]>>>);

impl Twin {
    fn bytes(&self) -> MutexGuard<'_, Box<[u8]>> {
        self.0.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Bytes that came from elsewhere have been written at `offset`: they are no change. Those outside of
    /// the tracked memory are left out.
    pub fn tell(&self, offset: i64, bytes: &[u8]) {
        let mut twin = self.bytes();
        let (skipped, at) = (offset.min(0).unsigned_abs() as usize, offset.max(0) as usize);
        let (Some(place), Some(bytes)) = (twin.get_mut(at..), bytes.get(skipped..)) else { return };
        let length = place.len().min(bytes.len());
        place[..length].copy_from_slice(&bytes[..length]);
    }
}

// SAFETY: the memory belongs to the caller of `new`, whichever thread uses this.
unsafe impl Send for Tracked {}

impl core::fmt::Debug for Tracked {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let mut tracked = f.debug_struct("Tracked");
        tracked.field("bytes", &self.bytes).field("tracking", &self.tracking()).finish()
    }
}

impl Tracked {
    /// Tracks memory from now on; its bytes now are the first twin.
    ///
    /// # Safety
    /// From `start` on there are `bytes` that can be read, of whole pages that stay mapped as long as this
    /// lives; private memory, with `Tracking::Kernel`.
    pub unsafe fn new(start: *mut u8, bytes: usize, wanted: Tracking) -> io::Result<Self> {
        if !(start as usize).is_multiple_of(PAGE) || !bytes.is_multiple_of(PAGE) || bytes == 0 {
            let said =
                format!("{bytes} bytes at {start:p}: whole pages of {PAGE} bytes are tracked");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, said));
        }
        let watch = || {
            // SAFETY: by this function's contract.
            unsafe { Userfault::new(start as usize, bytes, Watch::Stores) }
        };
        let kernel = match wanted {
            Tracking::Kernel => Some(watch()?),
            Tracking::Compare => None,
        };
        let twin = Twin(Arc::new(Mutex::new(vec![0; bytes].into_boxed_slice())));
        let [copy, old] = [(); 2].map(|()| Box::new([0; PAGE]));
        let mut tracked = Self { start, bytes, twin, kernel, copy, old };
        tracked.renew();
        Ok(tracked)
    }

    /// All bytes as they are now are the twin.
    pub fn renew(&mut self) {
        let mut twin = self.twin.bytes();
        for page in (0..self.bytes).step_by(PAGE) {
            // SAFETY: inside of the tracked memory, by `new`'s contract.
            unsafe { take_copy(self.start.add(page), &mut self.copy) };
            twin[page..page + PAGE].copy_from_slice(&self.copy[..]);
        }
    }

    /// How changes are found.
    pub fn tracking(&self) -> Tracking {
        match self.kernel {
            Some(_) => Tracking::Kernel,
            None => Tracking::Compare,
        }
    }

    /// The bytes as they were last found.
    pub fn twin(&self) -> &Twin {
        &self.twin
    }

    /// Hands over the twin, page by page.
    pub fn all<E>(&mut self, mut take: impl FnMut(usize, &[u8]) -> Result<(), E>) -> Result<(), E> {
        for page in (0..self.bytes).step_by(PAGE) {
            self.copy.copy_from_slice(&self.twin.bytes()[page..page + PAGE]);
            take(page, &self.copy[..])?;
        }
        Ok(())
    }

    /// Finds what has changed since the last scan, and hands over each run of bytes with its place. An
    /// error of `take` ends the scan; the rest is found again. While `lock`'s result lives, nothing comes
    /// from elsewhere whose place is not [told](Twin::tell) yet: it is taken for the time of one page, and
    /// not while `take` runs.
    pub fn scan<E: From<io::Error>, G>(
        &mut self,
        lock: impl Fn() -> G,
        mut take: impl FnMut(usize, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut from = 0;
        while from < self.bytes {
            let mut ranges = Vec::new();
            let end = match &self.kernel {
                Some(kernel) => {
                    let base = self.start as usize;
                    let take = |range: Range<usize>| {
                        ranges.push(range.start - base..range.end - base);
                    };
                    kernel.written(base + from..base + self.bytes, take)? - base
                }
                None => {
                    ranges.push(from..self.bytes);
                    self.bytes
                }
            };
            let mut ranges = ranges.into_iter();
            while let Some(range) = ranges.next() {
                for page in range.clone().step_by(PAGE) {
                    if let Err(e) = self.compare(page, &lock, &mut take) {
                        // Their protection was renewed: written, for the next scan.
                        self.touch(page..range.end);
                        ranges.for_each(|range| self.touch(range));
                        return Err(e);
                    }
                }
            }
            from = end;
        }
        Ok(())
    }

    fn compare<E, G>(
        &mut self,
        page: usize,
        lock: &impl Fn() -> G,
        take: &mut impl FnMut(usize, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let Self { start, twin, copy, old, .. } = self;
        let changed = {
            let _apart = lock();
            // SAFETY: inside of the tracked memory, by `new`'s contract.
            unsafe { take_copy(start.add(page), copy) };
            let mut twin = twin.bytes();
            let twin = &mut twin[page..page + PAGE];
            let changed = runs(&copy[..], twin);
            if !changed.is_empty() {
                old.copy_from_slice(twin);
                twin.copy_from_slice(&copy[..]);
            }
            changed
        };
        for run in changed {
            if let Err(e) = take(page + run.start, &copy[run.clone()]) {
                // It is found again; not where something has come meanwhile.
                let twin = &mut twin.bytes()[page..page + PAGE];
                for at in (run.start..PAGE).filter(|at| twin[*at] == copy[*at]).collect::<Vec<_>>()
                {
                    twin[at] = old[at];
                }
                return Err(e);
            }
        }
        Ok(())
    }

    /// Makes pages written again, without a change.
    fn touch(&self, pages: Range<usize>) {
        if self.kernel.is_none() {
            return;
        }
        for page in pages.step_by(PAGE) {
            let at = self.start.wrapping_add(page).cast::<u8>();
            // SAFETY: the page is the caller's, and stays; an atomic or with nothing changes no byte.
            unsafe { core::sync::atomic::AtomicU8::from_ptr(at) }
                .fetch_or(0, core::sync::atomic::Ordering::Relaxed);
        }
    }
}

/// A page's bytes, as they are while they are copied: word by word, since the program may be storing.
///
/// # Safety
/// A whole page, aligned, that can be read.
unsafe fn take_copy(page: *const u8, copy: &mut [u8; PAGE]) {
    for (at, to) in copy.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        // SAFETY: inside of the page; aligned, as pages are.
        *to = unsafe { page.cast::<u64>().add(at).read_volatile() }.to_ne_bytes();
    }
}

/// The runs of bytes in which two pages of whole words differ, to the byte.
pub fn runs(new: &[u8], old: &[u8]) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    each_run(new, old, |run| found.push(run));
    found
}

/// Bytes that are compared at once, by the system's `memcmp`, which takes the widest vectors of the machine.
const LINE: usize = 128;

/// [`runs`], handed over one by one, without an allocation.
#[doc(hidden)]
pub fn each_run(new: &[u8], old: &[u8], mut take: impl FnMut(Range<usize>)) {
    let mut open = 0..0;
    let mut close = |run: Range<usize>| {
        if !run.is_empty() {
            take(run);
        }
    };
    for (line, (new, old)) in new.chunks(LINE).zip(old.chunks(LINE)).enumerate() {
        if new == old {
            continue;
        }
        let words = new.as_chunks::<8>().0.iter().zip(old.as_chunks::<8>().0);
        for (at, (new, old)) in words.enumerate().filter(|(_, (new, old))| new != old) {
            for byte in (0..8).filter(|byte| new[*byte] != old[*byte]) {
                let byte_at = LINE * line + 8 * at + byte;
                if open.end != byte_at {
                    close(core::mem::replace(&mut open, byte_at..byte_at));
                }
                open.end += 1;
            }
        }
    }
    close(open);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::alloc::{Layout, alloc_zeroed, dealloc};

    struct Pages(*mut u8, Layout);

    impl Pages {
        fn new(pages: usize) -> Self {
            let layout = Layout::from_size_align(pages * PAGE, PAGE).unwrap();
            // SAFETY: the layout is not empty.
            Self(unsafe { alloc_zeroed(layout) }, layout)
        }

        fn store(&self, at: usize, byte: u8) {
            assert!(at < self.1.size());
            // SAFETY: inside of the allocation.
            unsafe { self.0.add(at).write_volatile(byte) };
        }
    }

    impl Drop for Pages {
        fn drop(&mut self) {
            // SAFETY: allocated with this layout.
            unsafe { dealloc(self.0, self.1) }
        }
    }

    fn changes(tracked: &mut Tracked) -> Vec<(usize, Vec<u8>)> {
        let mut found = Vec::new();
        tracked
            .scan(
                || (),
                |at, bytes| {
                    found.push((at, bytes.to_vec()));
                    Ok::<_, io::Error>(())
                },
            )
            .unwrap();
        found
    }

    #[test]
    fn stores_are_found_to_the_byte_once_by_either_way() {
        for tracking in [Tracking::Kernel, Tracking::Compare] {
            let pages = Pages::new(64);
            // SAFETY: it lives longer, and is not used otherwise than by stores.
            let tracked = unsafe { Tracked::new(pages.0, 64 * PAGE, tracking) };
            let mut tracked = match tracked {
                Err(e) if tracking == Tracking::Kernel => {
                    eprintln!("\x1b[1;33m!! SKIPPED tracking by the kernel: {e}\x1b[0m");
                    continue;
                }
                tracked => tracked.unwrap(),
            };
            assert_eq!(changes(&mut tracked), []);
            for (at, byte) in [(5, 1), (6, 2), (9, 3), (PAGE - 1, 4), (PAGE, 5), (63 * PAGE, 6)] {
                pages.store(at, byte);
            }
            pages.store(7 * PAGE, 0); // No change.
            let found = changes(&mut tracked);
            let wanted = [
                (5, vec![1, 2]),
                (9, vec![3]),
                (PAGE - 1, vec![4]),
                (PAGE, vec![5]),
                (63 * PAGE, vec![6]),
            ];
            assert_eq!(found, wanted, "{tracking:?}");
            assert_eq!(changes(&mut tracked), []);
            // Bytes from elsewhere are no change.
            pages.store(100, 9);
            tracked.twin().tell(100, &[9]);
            assert_eq!(changes(&mut tracked), []);
            pages.store(100, 0);
            assert_eq!(changes(&mut tracked), [(100, vec![0])]);
        }
    }

    #[test]
    fn an_error_of_the_taker_loses_no_change() {
        for tracking in [Tracking::Kernel, Tracking::Compare] {
            let pages = Pages::new(8);
            // SAFETY: as above.
            let Ok(mut tracked) = (unsafe { Tracked::new(pages.0, 8 * PAGE, tracking) }) else {
                eprintln!("\x1b[1;33m!! SKIPPED tracking by the kernel\x1b[0m");
                continue;
            };
            for page in 0..8 {
                pages.store(page * PAGE + 3, 7);
            }
            let mut taken = 0;
            let failed = tracked.scan(
                || (),
                |_, _| {
                    taken += 1;
                    if taken > 3 { Err(io::Error::other("no room")) } else { Ok(()) }
                },
            );
            assert!(failed.is_err());
            assert_eq!(changes(&mut tracked).len(), 5, "{tracking:?}");
        }
    }
}
