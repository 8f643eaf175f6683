//! Pinned pages: as long as a pipe refers to them, the kernel neither replaces nor swaps out the pages
//! of a file.
//!
//! A process that maps a file, if only for reading, can make the kernel replace all pages of 2 MiB of it
//! by one huge page (`MADV_COLLAPSE`, Linux 6.1). A file of 36 KiB then takes 2 MiB, its seals
//! notwithstanding, and its new page is not locked in memory, although the old ones were. No seal and no
//! flag of another mapping forbids it. But the kernel leaves all 2 MiB alone if anything beside the file
//! and its mappings refers to one of the pages. A pipe does, after a byte of the page was spliced into it
//! (`vmsplice`): one page of each 2 MiB is enough, and nobody reads the pipe.
//!
//! A pipe holds two such bytes, of two mappings that were pinned one after the other, mostly the two
//! rings of a link: so pinning costs a link one descriptor. If one of the two mappings goes, its one page
//! stays until the other goes.
//!
//! Never: an unpaid page is pinned; the pipe of another process is written to.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::vec::Vec;

/// One page of so many bytes is enough.
pub(super) const HUGE_PAGE: usize = 2 << 20;

static UNLOCKED: AtomicU64 = AtomicU64::new(0);

pub(super) fn count_unlocked() {
    UNLOCKED.fetch_add(1, Ordering::Relaxed);
}

/// Pieces of memory shared with peers that could not be kept from being swapped out, or replaced, in
/// this process so far.
pub fn memory_unlocked() -> u64 {
    UNLOCKED.load(Ordering::Relaxed)
}

/// Keeps pages where they are.
#[derive(Debug)]
pub(super) struct Pin(Option<Arc<OwnedFd>>);

/// A pipe that has room for another byte.
struct Half {
    pages: Arc<OwnedFd>,
    end: OwnedFd,
    process: u32,
}

/// No thread waits for its lock: in a forked child a thread of the parent may hold it for ever.
static HALF: Mutex<Option<Half>> = Mutex::new(None);

/// The half-full pipe of this process; that of the process from which it was forked is not touched.
fn half(half: &mut Option<Half>) -> Option<Half> {
    let found = half.take()?;
    if found.process == std::process::id() {
        return Some(found);
    }
    // Its numbers may be those of anything here.
    core::mem::forget(found);
    None
}

impl Drop for Pin {
    fn drop(&mut self) {
        drop(self.0.take());
        // A pipe whose first page is not needed any more waits for no second.
        if let Ok(mut open) = HALF.try_lock() {
            *open = half(&mut open).filter(|half| Arc::strong_count(&half.pages) > 1);
        }
    }
}

/// A pipe for so many pages: where they stay, and where they are put in.
fn pipe(pages: usize) -> Result<(OwnedFd, OwnedFd), Errno> {
    let (stay, end) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    // As small as can be, since a user's pipes have a limit together; if it stays as it was, whether it
    // is large enough shows when they are put in.
    let _ = fcntl_setpipe_size(&end, pages * rustix::param::page_size());
    Ok((stay, end))
}

impl Pin {
    /// Keeps the pages of a mapping, all of which are there, from being replaced; what they were when
    /// this is called is for [`check_size`](super::check_size) to say. Where the system refuses
    /// that, for some of them (without a privilege a pipe has room for 256: `fs.pipe-max-size`) or for
    /// all (`None`), it is counted ([`memory_unlocked`]). An error: there are no descriptors, or no
    /// memory, for it.
    pub fn of(start: NonNull<u8>, bytes: usize) -> io::Result<Option<Self>> {
        let starts = (0..bytes).step_by(HUGE_PAGE).map(|at| start.as_ptr().wrapping_add(at));
        let starts: Vec<*mut u8> = starts.collect();
        let pinned = match &starts[..] {
            [start] => Self::of_one(*start),
            _ => Self::of_many(&starts),
        };
        match pinned {
            Ok(pin) => Ok(Some(pin)),
            Err(e @ (Errno::MFILE | Errno::NFILE | Errno::NOMEM)) => Err(e.into()),
            Err(_) => {
                count_unlocked();
                Ok(None)
            }
        }
    }

    fn of_one(start: *mut u8) -> Result<Self, Errno> {
        let Ok(mut open) = HALF.try_lock() else { return Self::of_many(&[start]) };
        if let Some(half) = half(&mut open) {
            put_into(&half.end, &[start])?;
            return Ok(Self(Some(half.pages)));
        }
        let (stay, end) = pipe(2)?;
        put_into(&end, &[start])?;
        let pages = Arc::new(stay);
        *open = Some(Half { pages: Arc::clone(&pages), end, process: std::process::id() });
        Ok(Self(Some(pages)))
    }

    fn of_many(starts: &[*mut u8]) -> Result<Self, Errno> {
        let (stay, end) = pipe(starts.len())?;
        put_into(&end, starts)?;
        Ok(Self(Some(Arc::new(stay))))
    }
}

/// Puts the bytes at these addresses into a pipe.
fn put_into(end: &OwnedFd, starts: &[*mut u8]) -> Result<(), Errno> {
    let byte_at = |start: &*mut u8| libc::iovec { iov_base: start.cast(), iov_len: 1 };
    let bytes: Vec<libc::iovec> = starts.iter().map(byte_at).collect();
    // SAFETY: the kernel takes references to the pages at these addresses, or says that there are
    // none, and neither reads nor writes them for this; the list is alive.
    let put = unsafe {
        libc::vmsplice(end.as_raw_fd(), bytes.as_ptr(), bytes.len(), libc::SPLICE_F_NONBLOCK)
    };
    match usize::try_from(put) {
        Ok(put) => {
            if put < starts.len() {
                count_unlocked();
            }
            Ok(())
        }
        Err(_) => Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)),
    }
}
