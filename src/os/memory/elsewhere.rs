//! What a stranger can keep from ending, on threads that nothing waits for: closing his descriptors,
//! unmapping his files, copying out of them.
//!
//! Never: more than so many threads run; whoever hands something over waits; what could not be
//! ended is forgotten without being counted.

use crate::os::thread;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Threads that close what strangers sent; most at a time.
const CLOSERS_MAX: usize = 16;
static CLOSERS: AtomicUsize = AtomicUsize::new(0);
static LEAKED: AtomicU64 = AtomicU64::new(0);

/// Runs `work` on a thread that nothing waits for. Returns the argument if the maximum of these
/// threads runs already, or none can be started.
pub(super) fn elsewhere<W: Send + 'static>(
    running: &'static AtomicUsize,
    name: &str,
    what: W,
    work: impl FnOnce(W) + Send + 'static,
) -> Result<(), W> {
    if running.fetch_add(1, Ordering::Relaxed) >= CLOSERS_MAX {
        running.fetch_sub(1, Ordering::Relaxed);
        return Err(what);
    }
    // A closure that is not run is dropped here: that must not drop its argument.
    let kept = Arc::new(std::sync::Mutex::new(Some(what)));
    let taken = Arc::clone(&kept);
    let take = |kept: &std::sync::Mutex<Option<W>>| {
        kept.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take()
    };
    let begun = thread::spawn(name, 64 << 10, move || {
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
/// socket blocks the closing thread for as long as the attacker chose. If the maximum of threads is
/// blocked, or none can be started, the descriptors stay open for good, and are counted
/// ([`descriptors_leaked`]): no caller waits.
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
static STILL_MAPPED: AtomicU64 = AtomicU64::new(0);

/// Unmaps an aperture on a thread that nothing waits for: a process that may write the file can
/// keep the lock that is needed for it, by punching pages out of it that it has mapped very often.
/// If the maximum of threads is blocked, or none can be started, it stays mapped for good, and is
/// counted ([`apertures_still_mapped`]).
pub(super) fn unmap(start: NonNull<u8>, bytes: usize) {
    let end = |(start, bytes): (usize, usize)| {
        // SAFETY: the range was mapped by a `Mapping`, which has gone and left it to this; every
        // pointer into it borrowed from that.
        let _ = unsafe { rustix::mm::munmap(start as *mut core::ffi::c_void, bytes) };
    };
    if elsewhere(&UNMAPPERS, "hamlyn-unmap", (start.as_ptr() as usize, bytes), end).is_err() {
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::{RegionLines, create};
    use super::*;

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
        // The maximum of threads is blocked; no caller waits for them.
        static BLOCKED: AtomicUsize = AtomicUsize::new(CLOSERS_MAX);
        assert_eq!(elsewhere(&BLOCKED, "hamlyn-none", 7, drop), Err(7));
        assert_eq!(BLOCKED.load(Ordering::Relaxed), CLOSERS_MAX);
    }
}
