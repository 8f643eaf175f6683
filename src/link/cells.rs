//! Memory that another process may be writing at any moment.
//!
//! Shared bytes are never borrowed as `&[u8]`. Words are read through atomics; longer bodies pass
//! through [`copy_in`] and [`copy_out`], which the compiler cannot reason about (an assembly
//! block), so that it can neither read a byte twice nor assume anything of its value.
//!
//! Layout of the memory that one process writes for one direction of a link:
//! ```text
//! 0      ReaderWords: how far this process has read the other's ring, how it sleeps, its bell
//! 4096   the lines of the ring that this process writes
//! ```

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU64, Ordering, fence};

#[cfg(not(loom))]
pub(crate) use core::sync::atomic::{AtomicU64, Ordering, fence};

use crate::wire::{LINE_BYTES, LINE_WORDS};

/// One cache line of a ring.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Line(pub(crate) [AtomicU64; LINE_WORDS]);

/// A word that has two lines to itself: neighbouring lines are prefetched in pairs.
#[derive(Debug)]
#[repr(C, align(128))]
pub struct Alone(pub(crate) AtomicU64);

/// The words that the reader of a ring writes. They lie at the head of the reader's own memory.
#[derive(Debug)]
#[repr(C)]
pub struct ReaderWords {
    /// Lines of the base ring that have been read and may be written again; only grows.
    pub(crate) freed: Alone,
    /// The same for the bulk ring.
    pub(crate) bulk_freed: Alone,
    /// Sleep generation: incremented by this process each time before it sleeps.
    pub(crate) sleep: Alone,
    /// Room generation: incremented by this process each time before it sleeps because the ring
    /// that it writes is full.
    pub(crate) room: Alone,
    /// Changed by this process each time it wakes the other, which sleeps on it.
    pub(crate) bell: Alone,
    /// One more than the processor on which this process last waited; 0: not known.
    pub(crate) processor: Alone,
}

/// Bytes of [`ReaderWords`] and of the free space behind them: one page, so that a ring's lines
/// begin on a page of their own.
pub const READER_WORDS_BYTES: usize = 4096;

#[cfg(not(loom))]
const _: () = {
    assert!(size_of::<Line>() == LINE_BYTES && align_of::<Line>() == LINE_BYTES);
    assert!(size_of::<Alone>() == 128);
    assert!(size_of::<ReaderWords>() == 6 * 128 && size_of::<ReaderWords>() <= READER_WORDS_BYTES);
};

impl Default for Line {
    fn default() -> Self {
        Self(core::array::from_fn(|_| AtomicU64::new(0)))
    }
}

impl Default for ReaderWords {
    fn default() -> Self {
        let alone = || Alone(AtomicU64::new(0));
        Self {
            freed: alone(),
            bulk_freed: alone(),
            sleep: alone(),
            room: alone(),
            bell: alone(),
            processor: alone(),
        }
    }
}

/// The lines of a ring. Implemented by memory that stays mapped as long as the value lives.
pub trait Lines {
    /// The same slice at each call; its length is a power of two.
    fn lines(&self) -> &[Line];
}

impl Lines for alloc::sync::Arc<[Line]> {
    fn lines(&self) -> &[Line] {
        self
    }
}

/// A word that the other side of a link writes, or that it reads.
pub trait Word {
    /// The same word at each call.
    fn word(&self) -> &AtomicU64;
}

impl Word for alloc::sync::Arc<AtomicU64> {
    fn word(&self) -> &AtomicU64 {
        self
    }
}

/// Asks for a line to be brought here for writing, while other work goes on.
#[inline(always)]
pub fn prefetch_for_writing(lines: &[Line], index: usize) {
    let line = lines.as_ptr().wrapping_add(index);
    #[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
    // SAFETY: a hint: it reads and writes nothing, at any address.
    unsafe {
        core::arch::asm!(
            "prefetchw [{line}]",
            line = in(reg) line,
            options(nostack, preserves_flags, readonly),
        );
    }
    #[cfg(not(all(target_arch = "x86_64", not(loom), not(miri))))]
    let _ = line;
}

/// Asks for a line to be brought here for reading, while other work goes on.
#[inline(always)]
pub fn prefetch_for_reading(lines: &[Line], index: usize) {
    let line = lines.as_ptr().wrapping_add(index);
    #[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
    // SAFETY: a hint: it reads and writes nothing, at any address.
    unsafe {
        core::arch::asm!(
            "prefetcht0 [{line}]",
            line = in(reg) line,
            options(nostack, preserves_flags, readonly),
        );
    }
    #[cfg(not(all(target_arch = "x86_64", not(loom), not(miri))))]
    let _ = line;
}

/// Copies `from` into the ring's body, `byte` bytes after the start of line `line`, going on at
/// the ring's first line at its end. At most the whole ring.
#[inline(always)]
pub fn copy_in(lines: &[Line], line: usize, byte: usize, from: &[u8]) {
    let start = line * LINE_BYTES + byte;
    match (lines.len() * LINE_BYTES).checked_sub(start) {
        Some(room) if from.len() <= room => put(lines, start, from),
        _ => copy_in_around(lines, start, from),
    }
}

#[cold]
#[inline(never)]
fn copy_in_around(lines: &[Line], start: usize, from: &[u8]) {
    let size = lines.len() * LINE_BYTES;
    assert!(from.len() <= size, "a body of {} bytes in a ring of {size}", from.len());
    let start = start & (size - 1);
    let (first, rest) = from.split_at(from.len().min(size - start));
    put(lines, start, first);
    put(lines, 0, rest);
}

/// Copies the ring's body out, `to.len()` bytes from `byte` bytes after the start of line `line`.
#[inline(always)]
pub fn copy_out(lines: &[Line], line: usize, byte: usize, to: &mut [u8]) {
    let start = line * LINE_BYTES + byte;
    match (lines.len() * LINE_BYTES).checked_sub(start) {
        Some(room) if to.len() <= room => get(lines, start, to),
        _ => copy_out_around(lines, start, to),
    }
}

#[cold]
#[inline(never)]
fn copy_out_around(lines: &[Line], start: usize, to: &mut [u8]) {
    let size = lines.len() * LINE_BYTES;
    assert!(to.len() <= size, "a body of {} bytes in a ring of {size}", to.len());
    let start = start & (size - 1);
    let (first, rest) = to.split_at_mut(to.len().min(size - start));
    get(lines, start, first);
    get(lines, 0, rest);
}

/// Copies `from` into one line, `byte` bytes after its start. It ends there.
#[inline(always)]
pub fn copy_into_line(line: &Line, byte: usize, from: &[u8]) {
    assert!(byte <= LINE_BYTES && from.len() <= LINE_BYTES - byte);
    let line = core::slice::from_ref(line);
    let (sixteens, rest) = from.as_chunks::<16>();
    for (i, sixteen) in sixteens.iter().enumerate() {
        put(line, byte + 16 * i, sixteen);
    }
    // The last sixteen once more, which overlap those before: fewer steps than any other way.
    match from.last_chunk::<16>() {
        _ if rest.is_empty() => {}
        Some(last) => put(line, byte + from.len() - 16, last),
        None => put(line, byte, rest),
    }
}

/// Copies `to.len()` bytes out of one line, from `byte` bytes after its start. They end there.
#[inline(always)]
pub fn copy_out_of_line(line: &Line, byte: usize, to: &mut [u8]) {
    assert!(byte <= LINE_BYTES && to.len() <= LINE_BYTES - byte);
    get(core::slice::from_ref(line), byte, to);
}

/// Copies `from` into memory that does not wrap, such as an aperture, `at` bytes after its start.
/// The caller has checked that it fits.
#[inline]
pub fn write_at(lines: &[Line], at: usize, from: &[u8]) {
    let size = lines.len() * LINE_BYTES;
    assert!(at <= size && from.len() <= size - at, "{} bytes at {at} of {size}", from.len());
    if !from.is_empty() {
        put(lines, at, from);
    }
}

/// Copies `to.len()` bytes out, from `at` bytes after the start. The caller has checked that they
/// are there.
#[inline]
pub fn read_at(lines: &[Line], at: usize, to: &mut [u8]) {
    let size = lines.len() * LINE_BYTES;
    assert!(at <= size && to.len() <= size - at, "{} bytes at {at} of {size}", to.len());
    if !to.is_empty() {
        get(lines, at, to);
    }
}

/// The word at `at` bytes after the start, a multiple of 8, with Acquire: everything that its
/// writer stored before it is visible after it.
#[inline]
pub fn load_at(lines: &[Line], at: usize) -> u64 {
    lines[at / LINE_BYTES].0[at % LINE_BYTES / 8].load(Ordering::Acquire)
}

/// Stores a word, whole, after everything that this thread has written before.
#[inline]
pub fn store_at(lines: &[Line], at: usize, value: u64) {
    lines[at / LINE_BYTES].0[at % LINE_BYTES / 8].store(value, Ordering::Release);
}

/// The half of a word at `at` bytes after the start, a multiple of 4, as [`load_at`] loads a whole
/// one.
#[inline]
pub fn load_half_at(lines: &[Line], at: usize) -> u32 {
    half(lines, at).load(core::sync::atomic::Ordering::Acquire)
}

/// Stores the half of a word, as [`store_at`] stores a whole one.
#[inline]
pub fn store_half_at(lines: &[Line], at: usize, value: u32) {
    half(lines, at).store(value, core::sync::atomic::Ordering::Release);
}

#[inline(always)]
fn half(lines: &[Line], at: usize) -> &core::sync::atomic::AtomicU32 {
    let line: *const Line = &lines[at / LINE_BYTES];
    // SAFETY: four bytes inside the line, aligned to four, whose atomics allow writes through a
    // shared reference. Others may access the whole word meanwhile: the processor keeps accesses of
    // different sizes to one line coherent, and each of them is one instruction. (A model checker's
    // words are not memory; it never comes here.)
    unsafe { &*line.cast::<core::sync::atomic::AtomicU32>().add(at % LINE_BYTES / 4) }
}

/// Whether bodies are copied by the assembly path: on x86-64, outside loom and Miri.
#[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
mod opaque {
    use super::Line;
    use crate::wire::LINE_BYTES;

    #[inline(always)]
    pub(super) fn put(lines: &[Line], start: usize, from: &[u8]) {
        debug_assert!(start + from.len() <= lines.len() * LINE_BYTES);
        // SAFETY: `start + from.len()` is inside `lines` (the caller took the minimum), whose
        // atomics allow writes through a shared reference. Another process may read or write the
        // same bytes meanwhile; the assembly tells the compiler nothing about them.
        unsafe {
            copy(lines.as_ptr().cast::<u8>().cast_mut().add(start), from.as_ptr(), from.len())
        }
    }

    #[inline(always)]
    pub(super) fn get(lines: &[Line], start: usize, to: &mut [u8]) {
        debug_assert!(start + to.len() <= lines.len() * LINE_BYTES);
        // SAFETY: as in `put`, with the directions exchanged; `to` is private memory.
        unsafe { copy(to.as_mut_ptr(), lines.as_ptr().cast::<u8>().add(start), to.len()) }
    }

    /// Bodies from this size on are copied by `rep movsb`, which writes whole lines without
    /// reading them first: across cores it is two to four times as fast as vector stores. Below,
    /// its start-up costs more than it saves. Measured: bench/README.md.
    const STRING_COPY_MIN: usize = 768;

    /// # Safety
    /// `to` is valid for writes of `len` bytes, `from` for reads; they do not overlap.
    #[inline(always)]
    unsafe fn copy(to: *mut u8, from: *const u8, len: usize) {
        if len < STRING_COPY_MIN {
            // SAFETY: the caller's.
            return unsafe { copy_short(to, from, len) };
        }
        // SAFETY: the caller's; `rep movsb` reads each byte once and writes each byte once.
        unsafe {
            core::arch::asm!(
                "rep movsb",
                inout("rcx") len => _, inout("rdi") to => _, inout("rsi") from => _,
                options(nostack, preserves_flags),
            );
        }
    }

    /// One load and one store of `$bytes` bytes, and the pointers advanced.
    macro_rules! step {
        ($to:ident, $from:ident, $bytes:literal, $class:ident, $load:literal, $store:literal) => {
            core::arch::asm!(
                $load, $store,
                from = in(reg) $from, to = in(reg) $to, t = out($class) _,
                options(nostack, preserves_flags),
            );
            $to = $to.add($bytes);
            $from = $from.add($bytes);
        };
    }

    /// Sixteen bytes.
    #[cfg(target_feature = "sse2")]
    macro_rules! sixteen {
        ($to:ident, $from:ident) => {
            step!($to, $from, 16, xmm_reg, "movups {t}, [{from}]", "movups [{to}], {t}");
        };
    }
    /// The same by code that may not use vector registers, as in a kernel.
    #[cfg(not(target_feature = "sse2"))]
    macro_rules! sixteen {
        ($to:ident, $from:ident) => {
            step!($to, $from, 8, reg, "mov {t}, [{from}]", "mov [{to}], {t}");
            step!($to, $from, 8, reg, "mov {t}, [{from}]", "mov [{to}], {t}");
        };
    }

    /// # Safety
    /// As [`copy`].
    #[inline(always)]
    unsafe fn copy_short(mut to: *mut u8, mut from: *const u8, len: usize) {
        // SAFETY: the steps add up to `len` bytes; each byte is read once and written once.
        #[allow(unused_assignments)]
        unsafe {
            for _ in 0..len / 64 {
                sixteen!(to, from);
                sixteen!(to, from);
                sixteen!(to, from);
                sixteen!(to, from);
            }
            if len & 32 != 0 {
                sixteen!(to, from);
                sixteen!(to, from);
            }
            if len & 16 != 0 {
                sixteen!(to, from);
            }
            if len & 15 != 0 {
                if len & 8 != 0 {
                    step!(to, from, 8, reg, "mov {t}, [{from}]", "mov [{to}], {t}");
                }
                if len & 4 != 0 {
                    step!(to, from, 4, reg, "mov {t:e}, [{from}]", "mov [{to}], {t:e}");
                }
                if len & 2 != 0 {
                    step!(to, from, 2, reg, "movzx {t:e}, word ptr [{from}]", "mov [{to}], {t:x}");
                }
                if len & 1 != 0 {
                    step!(to, from, 1, reg_byte, "mov {t}, [{from}]", "mov [{to}], {t}");
                }
            }
        }
    }
}

/// The portable path: byte-sized pieces of relaxed word accesses. Slow, and always right.
#[cfg(not(all(target_arch = "x86_64", not(loom), not(miri))))]
mod opaque {
    use super::{Line, Ordering};
    use crate::wire::LINE_WORDS;

    fn word(lines: &[Line], index: usize) -> &super::AtomicU64 {
        &lines[index / LINE_WORDS].0[index % LINE_WORDS]
    }

    pub(super) fn put(lines: &[Line], start: usize, from: &[u8]) {
        let mut done = 0;
        while done < from.len() {
            let (index, byte) = ((start + done) / 8, (start + done) % 8);
            let n = (8 - byte).min(from.len() - done);
            let mut bytes = if n == 8 {
                [0; 8]
            } else {
                word(lines, index).load(Ordering::Relaxed).to_ne_bytes()
            };
            bytes[byte..byte + n].copy_from_slice(&from[done..done + n]);
            word(lines, index).store(u64::from_ne_bytes(bytes), Ordering::Relaxed);
            done += n;
        }
    }

    pub(super) fn get(lines: &[Line], start: usize, to: &mut [u8]) {
        let mut done = 0;
        while done < to.len() {
            let (index, byte) = ((start + done) / 8, (start + done) % 8);
            let n = (8 - byte).min(to.len() - done);
            let bytes = word(lines, index).load(Ordering::Relaxed).to_ne_bytes();
            to[done..done + n].copy_from_slice(&bytes[byte..byte + n]);
            done += n;
        }
    }
}

use opaque::{get, put};

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use alloc::{sync::Arc, vec, vec::Vec};

    #[test]
    fn a_body_that_crosses_the_ring_end_comes_out_whole() {
        let lines: Arc<[Line]> = (0..4).map(|_| Line::default()).collect();
        let body: Vec<u8> = (0..150).collect();
        for line in 0..4 {
            copy_in(&lines, line, 0, &body);
            let mut out = vec![0; body.len()];
            copy_out(&lines, line, 0, &mut out);
            assert_eq!(out, body);
        }
    }

    #[test]
    fn pieces_lie_one_behind_the_other() {
        let lines: Arc<[Line]> = (0..4).map(|_| Line::default()).collect();
        copy_in(&lines, 3, 0, &[1; 61]);
        copy_in(&lines, 3, 61, &[2; 10]);
        let mut out = [0; 71];
        copy_out(&lines, 3, 0, &mut out);
        assert!(out[..61] == [1; 61] && out[61..] == [2; 10]);
    }

    #[test]
    fn ranges_that_do_not_wrap_are_read_as_they_were_written() {
        let lines: Arc<[Line]> = (0..32).map(|_| Line::default()).collect();
        let body: Vec<u8> = (0..1500).map(|i| i as u8).collect();
        for at in [0, 1, 7, 63, 548] {
            write_at(&lines, at, &body);
            let mut out = vec![0; body.len()];
            read_at(&lines, at, &mut out);
            assert_eq!(out, body);
        }
        store_at(&lines, 2040, 0x0102_0304_0506_0708);
        let mut word = [0; 8];
        read_at(&lines, 2040, &mut word);
        assert_eq!(u64::from_ne_bytes(word), load_at(&lines, 2040));
        write_at(&lines, 2048, &[]);
        for at in [0, 4, 60, 64, 2044] {
            let before = load_at(&lines, at / 8 * 8).to_ne_bytes();
            store_half_at(&lines, at, 0x0a0b_0c0d);
            assert_eq!(load_half_at(&lines, at), 0x0a0b_0c0d);
            let mut expected = before;
            expected[at % 8..][..4].copy_from_slice(&0x0a0b_0c0d_u32.to_ne_bytes());
            assert_eq!(load_at(&lines, at / 8 * 8).to_ne_bytes(), expected);
        }
    }

    #[test]
    #[should_panic(expected = "bytes at")]
    fn a_range_behind_the_end_is_never_written() {
        let lines: Arc<[Line]> = (0..4).map(|_| Line::default()).collect();
        write_at(&lines, 250, &[1; 7]);
    }
}
