//! Pages that stay the pages of their file: neither replaced nor swapped out, as long as a pipe refers
//! to them.
//!
//! Whoever maps a file, if only for reading, can have the kernel put one huge page in the place of all
//! pages of 2 MiB of it (`MADV_COLLAPSE`, Linux 6.1). A file of 36 KiB is 2 MiB large then, its seals
//! notwithstanding, and its new page is not locked in memory, although the old ones were. No seal and no
//! flag of another mapping forbids it. But the kernel looks first whether somebody refers to one of the
//! pages beside the file and its mappings, and lets all of the 2 MiB alone if so. A pipe does, to which
//! a byte of the page was spliced (`vmsplice`): one page of each 2 MiB is enough, and what waits in the
//! pipe is never read.
//!
//! Never: a page is pinned that nobody has paid for; one stays pinned after its mapping has gone.

use super::{HUGE_PAGE, Mapping};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::vec::Vec;

/// Most pages for which one pipe has room, without a privilege (`fs.pipe-max-size`).
const PAGES_PER_PIPE: usize = 256;

impl Mapping {
    /// Keeps its file's pages, all of which are there, from being replaced; what they were when
    /// this is called is for [`check_size`](super::check_size) to say. Where the system refuses
    /// that, it is counted ([`memory_unlocked`](super::memory_unlocked)). An error: there are no
    /// descriptors, or no memory, for it.
    pub(super) fn pin(&self) -> io::Result<()> {
        let starts: Vec<usize> = (0..self.bytes).step_by(HUGE_PAGE).collect();
        let pipes = starts.chunks(PAGES_PER_PIPE).map(|starts| self.pin_at(starts));
        match pipes.collect::<Result<Vec<_>, Errno>>() {
            Ok(pipes) => *super::lock(&self.pins) = pipes,
            Err(e @ (Errno::MFILE | Errno::NFILE | Errno::NOMEM)) => return Err(e.into()),
            Err(_) => super::count_unlocked(),
        }
        Ok(())
    }

    fn pin_at(&self, starts: &[usize]) -> Result<OwnedFd, Errno> {
        let (refers, end) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        // As small as can be, since a user's pipes have a limit together; if it stays as it was, the
        // number below says whether it is large enough.
        let _ = fcntl_setpipe_size(&end, starts.len() * rustix::param::page_size());
        let byte_at = |at: &usize| libc::iovec {
            // SAFETY: the offset is below the mapping's bytes.
            iov_base: unsafe { self.start.as_ptr().add(*at) }.cast(),
            iov_len: 1,
        };
        let bytes: Vec<libc::iovec> = starts.iter().map(byte_at).collect();
        // SAFETY: the kernel takes references to pages of this mapping, and neither reads nor writes
        // them for this; the list is alive.
        let pinned = unsafe {
            libc::vmsplice(end.as_raw_fd(), bytes.as_ptr(), bytes.len(), libc::SPLICE_F_NONBLOCK)
        };
        match usize::try_from(pinned) {
            Ok(pinned) if pinned == starts.len() => Ok(refers),
            Ok(_) => Err(Errno::AGAIN),
            Err(_) => Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)),
        }
    }

    /// No page of it is kept by this any more.
    pub(super) fn unpin(&self) {
        super::lock(&self.pins).clear();
    }
}
