//! Automatic update of plain memory: the stores of an unchanged program are found, and sent.

use crate::track::{Tracked, Tracking, Twin};
use crate::{Error, Proxy};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Memory whose changes go to a part of an imported buffer, byte by byte. The program stores as it likes;
/// [`flush`](Self::flush) finds and sends. Between two flushes what is overwritten again is never sent, and
/// stores arrive in the order of their addresses: **no word of it is polled by the other side** to learn
/// that others have arrived; send such a word after a flush.
pub struct Mirror {
    proxy: Proxy,
    at: u64,
    tracked: Tracked,
    /// The kernel does not track.
    why: String,
    /// Others write it, too.
    is_exported: bool,
    limit: Option<Duration>,
    flushed: Instant,
    figures: [u64; 3],
}

impl core::fmt::Debug for Mirror {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Mirror").field("tracked", &self.tracked).finish_non_exhaustive()
    }
}

fn failed(e: io::Error) -> Error {
    Error::Refused(format!("tracking memory: {e}"))
}

enum Stop {
    Io(io::Error),
    Vmmc(Error),
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl Proxy {
    /// Binds whole pages of plain memory to the buffer from `at` on; sends all of it once. Sends wait at
    /// most `limit`. Where the kernel cannot track pages (before Linux 6.7), they are compared:
    /// [`Mirror::tracking`] says which.
    ///
    /// The memory may be that of a [`Buffer`](crate::Buffer) of this program, so that two programs write
    /// one memory: updates of importers are not sent on, nor back. A byte that both change between two
    /// flushes may differ afterwards, and so may one that the other stores before the first copy of all has
    /// arrived: [`get`](Self::get) a byte to know that it has.
    ///
    /// # Safety
    /// As [`Tracked::new`]: the memory can be read as long as the mirror lives, and is private.
    pub unsafe fn mirror(
        &self,
        at: u64,
        start: *mut u8,
        bytes: usize,
        limit: Option<Duration>,
    ) -> Result<Mirror, Error> {
        if at.checked_add(bytes as u64).is_none_or(|end| end > self.bytes()) {
            let all = self.bytes();
            return Err(Error::Misuse(format!("{bytes} bytes at {at} of a buffer of {all} bytes")));
        }
        let exported = self.vmmc().exported_at(start as usize, bytes)?;
        // SAFETY: the caller's promise.
        let tracked = unsafe { Tracked::new(start, bytes, Tracking::Kernel) };
        let mut why = String::new();
        let tracked = tracked.or_else(|e| {
            why = e.to_string();
            // SAFETY: the caller's promise.
            unsafe { Tracked::new(start, bytes, Tracking::Compare) }
        });
        let mut tracked = tracked.map_err(failed)?;
        let is_exported = exported.is_some();
        if let Some((region, offset)) = exported {
            let twin = tracked.twin().clone();
            let weak = Arc::downgrade(&twin.0);
            region.observe(move |at, bytes| {
                let twin = weak.upgrade().map(Twin);
                twin.inspect(|twin| twin.tell(at as i64 - offset as i64, bytes)).is_some()
            })?;
            // With updates that came before they were observed.
            let _apart = self.vmmc().clan().manager().lock();
            tracked.renew();
        }
        tracked.all(|offset, bytes| self.send(at + offset as u64, bytes, limit))?;
        let (flushed, figures) = (Instant::now(), [0; 3]);
        Ok(Mirror { proxy: self.clone(), at, tracked, why, is_exported, limit, flushed, figures })
    }
}

impl Mirror {
    /// How changes are found.
    pub fn tracking(&self) -> Tracking {
        self.tracked.tracking()
    }

    /// The engine and its path, in words.
    pub fn explain(&self) -> Result<String, Error> {
        let path = self.proxy.explain()?;
        Ok(match self.tracking() {
            Tracking::Kernel => format!("tracked by the kernel (PAGEMAP_SCAN); {path}"),
            Tracking::Compare => format!("tracked by comparing all pages ({}); {path}", self.why),
        })
    }

    /// Finds and sends what has changed. Afterwards, whatever this program sends arrives behind it. On an
    /// error the rest is found by the next flush.
    pub fn flush(&mut self) -> Result<(), Error> {
        let Self { proxy, at, tracked, is_exported, limit, figures, .. } = self;
        let manager = proxy.vmmc().clan().manager();
        // So that no deposit is there whose place is not told.
        let lock = || is_exported.then(|| manager.lock());
        let sent = tracked.scan(lock, |offset, bytes| {
            figures[1] += 1;
            figures[2] += bytes.len() as u64;
            proxy.send(*at + offset as u64, bytes, *limit).map_err(Stop::Vmmc)
        });
        figures[0] += 1;
        match sent {
            Ok(()) => {
                self.flushed = Instant::now();
                Ok(())
            }
            Err(Stop::Io(e)) => Err(failed(e)),
            Err(Stop::Vmmc(e)) => Err(e),
        }
    }

    /// Flushes if the last flush was so long ago; whether it did.
    pub fn flush_after(&mut self, timer: Duration) -> Result<bool, Error> {
        let is_due = self.flushed.elapsed() >= timer;
        if is_due {
            self.flush()?;
        }
        Ok(is_due)
    }

    /// Bytes that came from elsewhere were written here: they are not sent back. Updates of importers into
    /// an exported buffer are told by themselves.
    pub fn told(&mut self, offset: usize, bytes: &[u8]) {
        self.tracked.twin().tell(offset as i64, bytes);
    }

    /// The time since the last whole flush: the other side's lag at most, beside the way.
    pub fn lag(&self) -> Duration {
        self.flushed.elapsed()
    }

    /// Flushes, runs, and bytes that were sent.
    pub fn counts(&self) -> (u64, u64, u64) {
        let [flushes, runs, bytes] = self.figures;
        (flushes, runs, bytes)
    }
}
