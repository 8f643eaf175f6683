//! Automatic update by stores of this library's (SHRIMP 2.2, 4.5.1): they write here and there.
//!
//! ```text
//!   store    the local byte; and into the gathered run, if it is behind its last byte
//!   a run leaves   at a store elsewhere, at a (sub-)page's end, when it is full, when its time has passed,
//!                  at a flush
//! ```
//! Never: a deliberate update of the same program overtakes a store that was flushed.

use crate::{Error, PAGE, Proxy};
use core::ops::Range;
use std::time::{Duration, Instant};

/// Bytes of one gathered run.
const RUN: usize = 256;
/// Bytes of the longest store of a processor: a copy is a row of such stores.
const WORD: usize = 8;

/// How stores are gathered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Combining {
    /// A run ends at multiples of so many bytes, a power of two of 8 to 4,096. 0: each store leaves at once,
    /// and of longer bytes each 8.
    pub sub_page: u32,
    /// A run leaves so long after its first store. It is looked at in calls of this binding alone.
    pub timer: Option<Duration>,
}

impl Default for Combining {
    /// Up to a page's end, without a timer.
    fn default() -> Self {
        Self { sub_page: PAGE as u32, timer: None }
    }
}

/// The run of consecutive stores that has not left yet, by its place.
#[doc(hidden)]
#[derive(Debug)]
pub struct Gather {
    combining: Combining,
    run: Range<usize>,
    began: Option<Instant>,
}

impl Gather {
    /// Without a run; [`Error::Misuse`] for a sub-page that is not allowed.
    pub fn new(combining: Combining) -> Result<Self, Error> {
        let sub_page = combining.sub_page;
        if sub_page != 0 && !(sub_page.is_power_of_two() && (8..=PAGE as u32).contains(&sub_page)) {
            return Err(Error::Misuse(format!(
                "a sub-page of {sub_page} bytes: 0 and the powers of two from 8 to {PAGE} are allowed"
            )));
        }
        Ok(Self { combining, run: 0..0, began: None })
    }

    /// Before a store: a run that it does not continue, or that is full, leaves before its bytes can change.
    /// On an error of `leave` the run stays.
    #[inline]
    pub fn begin<E>(
        &mut self,
        offset: usize,
        leave: impl FnMut(Range<usize>) -> Result<(), E>,
    ) -> Result<(), E> {
        if offset != self.run.end || self.run.is_empty() || self.run.len() >= RUN {
            self.flush(leave)?;
            self.run = offset..offset;
        }
        Ok(())
    }

    /// After a store that ends at `end`: what is to leave by now leaves; on an error of `leave` later.
    #[inline]
    pub fn end<E>(
        &mut self,
        end: usize,
        mut leave: impl FnMut(Range<usize>) -> Result<(), E>,
    ) -> Result<(), E> {
        self.run.end = end;
        let sub_page = self.combining.sub_page as usize;
        if sub_page == 0 {
            while self.run.len() > WORD {
                self.leave_until(self.run.start + WORD, &mut leave)?;
            }
            return self.flush(leave);
        }
        let boundary = end & !(sub_page - 1);
        if self.run.len() >= RUN || boundary > self.run.start {
            return self.leave_until(if self.run.len() >= RUN { end } else { boundary }, leave);
        }
        if let Some(timer) = self.combining.timer {
            let began = *self.began.get_or_insert_with(Instant::now);
            if began.elapsed() >= timer {
                return self.flush(leave);
            }
        }
        Ok(())
    }

    /// The run leaves now.
    pub fn flush<E>(&mut self, leave: impl FnMut(Range<usize>) -> Result<(), E>) -> Result<(), E> {
        self.leave_until(self.run.end, leave)
    }

    #[inline(never)]
    fn leave_until<E>(
        &mut self,
        end: usize,
        mut leave: impl FnMut(Range<usize>) -> Result<(), E>,
    ) -> Result<(), E> {
        self.began = None;
        if !self.run.is_empty() {
            leave(self.run.start..end)?;
            self.run.start = end;
        }
        Ok(())
    }
}

/// Local memory that is bound to a part of an imported buffer: its stores happen here and there.
pub struct Bound {
    proxy: Proxy,
    at: u64,
    local: Box<[u8]>,
    notifies: Option<u32>,
    limit: Option<Duration>,
    /// The bytes of its run are those of `local`.
    gather: Gather,
    figures: [u64; 2],
}

impl core::fmt::Debug for Bound {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let mut bound = f.debug_struct("Bound");
        bound.field("bytes", &self.local.len()).field("combining", &self.gather.combining);
        bound.finish_non_exhaustive()
    }
}

impl Proxy {
    /// Binds `bytes` of new local memory, zeros, to the buffer from `at` on, both of whole lines of 8 bytes.
    /// `notifies`: the sender's bit of this binding, with the word. Stores wait for room at most `limit`.
    pub fn bind(
        &self,
        at: u64,
        bytes: usize,
        combining: Combining,
        notifies: Option<u32>,
        limit: Option<Duration>,
    ) -> Result<Bound, Error> {
        let inside = at.checked_add(bytes as u64).is_some_and(|end| end <= self.bytes());
        if !inside || !at.is_multiple_of(8) {
            let all = self.bytes();
            return Err(Error::Misuse(format!("{bytes} bytes at {at} of a buffer of {all} bytes")));
        }
        let gather = Gather::new(combining)?;
        let (local, figures) = (vec![0; bytes].into_boxed_slice(), [0; 2]);
        Ok(Bound { proxy: self.clone(), at, local, notifies, limit, gather, figures })
    }
}

impl Bound {
    /// The local bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.local
    }

    /// How long stores and flushes wait for room from now on.
    pub fn set_limit(&mut self, limit: Option<Duration>) {
        self.limit = limit;
    }

    /// Stores a word of four bytes, in the processor's order.
    #[inline]
    pub fn store_u32(&mut self, offset: usize, value: u32) -> Result<(), Error> {
        self.store(offset, &value.to_ne_bytes())
    }

    /// Stores a word of eight bytes.
    #[inline]
    pub fn store_u64(&mut self, offset: usize, value: u64) -> Result<(), Error> {
        self.store(offset, &value.to_ne_bytes())
    }

    /// Stores bytes, one behind the other. [`Error::TimedOut`]: earlier stores wait for room, and nothing of
    /// this one has happened. A store that finds no room itself leaves with the next store or flush.
    #[inline]
    pub fn store(&mut self, offset: usize, bytes: &[u8]) -> Result<(), Error> {
        let end = offset.saturating_add(bytes.len());
        self.gather(|gather, leave| gather.begin(offset, leave))?;
        let Some(place) = self.local.get_mut(offset..end) else {
            let (length, all) = (bytes.len(), self.local.len());
            self.gather.run = 0..0;
            return Err(Error::Misuse(format!("{length} bytes at {offset} of {all} bound bytes")));
        };
        place.copy_from_slice(bytes);
        self.figures[0] += 1;
        match self.gather(|gather, leave| gather.end(end, leave)) {
            Err(Error::TimedOut) => Ok(()),
            left => left,
        }
    }

    /// [`store`](Self::store) that does not wait: [`Error::Full`], if earlier stores wait for room.
    #[inline]
    pub fn try_store(&mut self, offset: usize, bytes: &[u8]) -> Result<(), Error> {
        let limit = self.limit.replace(Duration::ZERO);
        let stored = self.store(offset, bytes);
        self.limit = limit;
        stored.map_err(|error| match error {
            Error::TimedOut => Error::Full("the link to the buffer's program is full".into()),
            other => other,
        })
    }

    /// The gathered run leaves now: later sends arrive behind it.
    pub fn flush(&mut self) -> Result<(), Error> {
        self.gather(|gather, leave| gather.flush(leave))
    }

    #[inline(always)]
    fn gather(
        &mut self,
        act: impl FnOnce(
            &mut Gather,
            &mut dyn FnMut(Range<usize>) -> Result<(), Error>,
        ) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let Self { proxy, at, local, notifies, limit, gather, figures } = self;
        act(gather, &mut |run| {
            let (to, bytes) = (*at + run.start as u64, &local[run]);
            match *notifies {
                None => proxy.send(to, bytes, *limit)?,
                Some(word) => proxy.send_notify(to, bytes, word, *limit)?,
            }
            figures[1] += 1;
            Ok(())
        })
    }

    /// The engine and its path, in words.
    pub fn explain(&self) -> Result<String, Error> {
        let Combining { sub_page, timer } = self.gather.combining;
        let engine = match (sub_page, timer) {
            (0, _) => "not combined: each leaves at once".into(),
            (_, None) => format!("combined: up to {RUN} bytes, and to multiples of {sub_page}"),
            (_, Some(timer)) => {
                format!("combined: up to {RUN} bytes, to multiples of {sub_page}, for {timer:?}")
            }
        };
        Ok(format!("store, {engine}; {}", self.proxy.explain()?))
    }

    /// Stores, and runs that have left.
    pub fn counts(&self) -> (u64, u64) {
        (self.figures[0], self.figures[1])
    }
}

impl Drop for Bound {
    /// Unbinds: the gathered run leaves, if it can.
    fn drop(&mut self) {
        let _ = self.flush();
    }
}
