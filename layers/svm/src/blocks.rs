//! Blocks of the shared space, which the library gives out by means of the shared space itself: a word of
//! its first page, behind a lock.
//!
//! Never: two processes get one byte.

use crate::Error;
use crate::machine::wire::{Call, STRIPE};
use crate::memory::PAGE;
use crate::space::Inner;
use crate::svm::{Homes, MALLOC, MALLOC_ALL};
use std::ops::Range;

/// The first word of the shared space: where free memory begins; 0: behind the first page.
const FREE: usize = 0;
/// The second: the last block of `malloc_all`.
const BLOCK: usize = 8;

/// The block that a word of the shared space names, which any process may have written.
fn block_at(space: Range<usize>, at: u64, bytes: usize, align: usize) -> Result<*mut u8, Error> {
    let first = space.start + PAGE;
    let is_inside = usize::try_from(at).is_ok_and(|at| {
        let end = at.checked_add(bytes);
        at >= first && end.is_some_and(|end| end <= space.end) && at.is_multiple_of(align)
    });
    match is_inside {
        true => Ok(at as *mut u8),
        false => Err(Error::Refused(format!("a block at {at:#x}, which another process named"))),
    }
}

impl Inner {
    /// A word of the first page, for the library's own use of the shared space.
    fn word(&mut self, at: usize) -> Result<u64, Error> {
        self.touch(self.memory.base(), 1)?;
        let mut bytes = [0; 8];
        self.memory.shared.view.read(at, &mut bytes);
        Ok(u64::from_ne_bytes(bytes))
    }

    fn set_word(&mut self, at: usize, value: u64) -> Result<(), Error> {
        self.touch(self.memory.base(), 1)?;
        let place = (self.memory.base() + at) as *mut u64;
        // SAFETY: a word of the shared space, whose page was just entered; a store of the program's view is
        // found as the program's are.
        unsafe { place.write_volatile(value) };
        self.wrote(place as usize, 8)
    }

    pub fn malloc(&mut self, bytes: usize, align: usize, homes: Homes) -> Result<*mut u8, Error> {
        let align = if align == 0 { 64 } else { align };
        if !align.is_power_of_two() || bytes == 0 {
            return Err(Error::Misuse(format!(
                "{bytes} bytes at a multiple of {align}: 1 byte at least, at a power of two"
            )));
        }
        if let Homes::Rank(rank) = homes
            && rank >= self.shape.processes
        {
            return Err(Error::Misuse(format!("home {rank}: no such process")));
        }
        let whole = homes != Homes::FirstTouch;
        let align = if whole { align.max(PAGE) } else { align };
        self.call(Call::Acquire { lock: MALLOC })?;
        let block = self.take_block(bytes, align, whole);
        self.call(Call::Release { lock: MALLOC })?;
        let at = block?;
        if whole {
            let first = (at / PAGE) as u32;
            self.place(first..first + bytes.div_ceil(PAGE) as u32, homes)?;
        }
        Ok((self.memory.base() + at) as *mut u8)
    }

    fn take_block(&mut self, bytes: usize, align: usize, whole: bool) -> Result<usize, Error> {
        let free = (self.word(FREE)? as usize).max(PAGE);
        let at = free.checked_next_multiple_of(align);
        let end = at.and_then(|at| at.checked_add(bytes));
        let end = end.and_then(|end| end.checked_next_multiple_of(if whole { PAGE } else { 1 }));
        match (at, end) {
            (Some(at), Some(end)) if end <= self.memory.pages() * PAGE => {
                self.set_word(FREE, end as u64)?;
                Ok(at)
            }
            _ => Err(Error::Full(bytes)),
        }
    }

    /// Tells the homes of a block's pages.
    fn place(&mut self, pages: Range<u32>, homes: Homes) -> Result<(), Error> {
        let (n, count) = (self.shape.processes, pages.len());
        let home_of = |page: u32| match homes {
            Homes::Rank(rank) => rank,
            Homes::Cyclic => (page - pages.start) as usize % n,
            _ => (page - pages.start) as usize * n / count,
        };
        let mut first = pages.start;
        while first < pages.end {
            let (home, stripe) = (home_of(first), first / STRIPE);
            let same = |page: &u32| home_of(*page) == home && page / STRIPE == stripe;
            let end = first + (first..pages.end).take_while(same).count() as u32;
            self.ask(|client, links| client.ask_home(first..end, home, links))?;
            first = end;
        }
        Ok(())
    }

    pub fn malloc_all(
        &mut self,
        bytes: usize,
        align: usize,
        homes: Homes,
    ) -> Result<*mut u8, Error> {
        let meet = Call::Arrive { barrier: MALLOC_ALL, count: self.shape.processes };
        self.call(meet)?;
        let mut failed = None;
        if self.rank == 0 {
            let block = self.malloc(bytes, align, homes);
            let at = block.as_ref().map_or(0, |block| *block as u64);
            failed = block.err();
            self.set_word(BLOCK, at)?;
        }
        self.call(meet)?;
        match (failed, self.word(BLOCK)?) {
            (Some(e), _) => Err(e),
            (None, 0) => Err(Error::Full(bytes)),
            (None, at) => {
                let base = self.memory.base();
                let space = base..base + self.memory.pages() * PAGE;
                let align = if align == 0 { 64 } else { align };
                block_at(space, at, bytes, align.checked_next_power_of_two().unwrap_or(1))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_that_another_process_names_lies_in_the_shared_space() {
        let (base, end) = (0x6000_0000_0000, 0x6000_0001_0000);
        let block = |at: usize| block_at(base..end, at as u64, 0x1000, 64);
        assert_eq!(block(base + PAGE), Ok((base + PAGE) as *mut u8));
        assert_eq!(block(end - 0x1000), Ok((end - 0x1000) as *mut u8));
        // Elsewhere, the library's words, partly behind the end, and not where it was asked for.
        for at in [1, 0x7fff_0000_0000, base, end - 0xfc0, usize::MAX & !63, base + PAGE + 8] {
            assert!(matches!(block(at), Err(Error::Refused(_))), "{at:#x}");
        }
    }
}
