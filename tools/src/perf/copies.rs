//! The physical limits of bandwidth: memcpy on one core, and the bare two-copy ring.
//!
//! The bare ring does the minimum for any transport that copies into shared memory on one core and
//! out of it on the other: one word counts the bytes written, one the bytes read, and nothing is
//! checked. The difference to Hamlyn is the price of its checks.
#![allow(unsafe_code)]

use super::clock;
use super::pin::Cores;
use super::stats::median;
use anyhow::Result;
use std::cell::UnsafeCell;
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

/// Bytes moved in one run: enough that the start does not count, some 30 ms in the worst placement.
const BYTES_PER_RUN: usize = 64 << 20;
/// More than this many copies a run tell nothing new.
const COPIES_PER_RUN: usize = 1 << 20;
const RUNS: usize = 5;

/// The shape of the bare ring: the link's own packet and ring size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingShape {
    pub packet_bytes: usize,
    pub ring_bytes: usize,
}

fn messages_per_run(message_bytes: usize, packet_bytes: usize) -> usize {
    let copies = (BYTES_PER_RUN / packet_bytes).min(COPIES_PER_RUN);
    (copies * packet_bytes).div_ceil(message_bytes).max(4)
}

/// Bytes a second that one core copies from a buffer of `bytes` bytes to another; median of five.
pub fn memcpy_bytes_per_s(cores: Cores, bytes: usize) -> Result<f64> {
    super::on_core(cores.near, || {
        let (mut source, mut target) = (Area::new(bytes), Area::new(bytes));
        let (source, target) = (source.as_mut(), target.as_mut());
        let count = messages_per_run(bytes, bytes);
        let run = |_| {
            let copy_all = || {
                for _ in 0..count {
                    black_box(&mut *target).copy_from_slice(black_box(&*source));
                }
            };
            (count * bytes) as f64 / clock::seconds(copy_all)
        };
        // The first run warms the caches.
        median((0..=RUNS).map(run).skip(1)).unwrap_or(f64::NAN)
    })
}

/// Bytes a second from one core's message to the other's through the bare ring; median of five.
pub fn copy_ring_bytes_per_s(cores: Cores, message_bytes: usize, shape: RingShape) -> Result<f64> {
    let packet = shape.packet_bytes.min(message_bytes).clamp(1, shape.ring_bytes / 2);
    let count = messages_per_run(message_bytes, packet);
    let mut runs = Vec::new();
    for _ in 0..=RUNS {
        let ring = &Ring::new(packet, shape.ring_bytes);
        let (_, seconds) = super::two_threads(
            cores,
            || ring.write(Area::new(message_bytes).as_mut(), count),
            || ring.read(Area::new(message_bytes).as_mut(), count),
        )?;
        runs.push((count * message_bytes) as f64 / seconds);
    }
    Ok(median(runs.into_iter().skip(1)).unwrap_or(f64::NAN))
}

/// Private memory, aligned like a message area, and touched, so that no page fault is measured.
struct Area {
    memory: Vec<u8>,
    start: usize,
    bytes: usize,
}

impl Area {
    fn new(bytes: usize) -> Self {
        let memory = black_box(vec![1; bytes + 4096]);
        let start = memory.as_ptr().align_offset(4096);
        Self { memory, start, bytes }
    }

    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..][..self.bytes]
    }
}

/// Two lines to itself.
#[repr(align(128))]
struct Alone(AtomicU64);

/// The bytes that both threads touch.
#[repr(C, align(4096))]
#[derive(Clone)]
struct Page([u8; 4096]);

struct Ring {
    pages: Box<[UnsafeCell<Page>]>,
    packet_bytes: usize,
    packets: u64,
    written: Alone,
    read: Alone,
}

// SAFETY: a packet's bytes are written only while it lies between `read + packets` and `written`,
// by the one writer, and read only below `written`, by the one reader; each word is stored with
// Release after the bytes and loaded with Acquire before them.
unsafe impl Sync for Ring {}

impl Ring {
    fn new(packet_bytes: usize, ring_bytes: usize) -> Self {
        // Touched here as well: nonzero, so that the kernel does not map its zero page.
        let page = || UnsafeCell::new(Page([1; 4096]));
        Self {
            pages: (0..ring_bytes.div_ceil(4096)).map(|_| page()).collect(),
            packet_bytes,
            packets: (ring_bytes / packet_bytes) as u64,
            written: Alone(AtomicU64::new(0)),
            read: Alone(AtomicU64::new(0)),
        }
    }

    fn packet(&self, number: u64) -> *mut u8 {
        let at = (number % self.packets) as usize * self.packet_bytes;
        debug_assert!(at + self.packet_bytes <= self.pages.len() * 4096);
        // SAFETY: `at` lies inside the pages, which stand one behind the other without a gap.
        unsafe { UnsafeCell::raw_get(self.pages.as_ptr()).cast::<u8>().add(at) }
    }

    fn write(&self, message: &[u8], count: usize) {
        let (mut written, mut read) = (0, 0);
        for _ in 0..count {
            for piece in message.chunks(self.packet_bytes) {
                while written - read == self.packets {
                    read = self.read.0.load(Acquire);
                }
                // SAFETY: the packet is free (above) and has room for `packet_bytes`.
                unsafe { copy(self.packet(written), piece.as_ptr(), piece.len()) }
                written += 1;
                self.written.0.store(written, Release);
            }
        }
    }

    /// The time from the first packet to the last, in seconds.
    fn read(&self, message: &mut [u8], count: usize) -> f64 {
        let (mut written, mut read, lot) = (0, 0, (self.packets / 8).max(1));
        while self.written.0.load(Relaxed) == 0 {}
        clock::seconds(|| {
            for _ in 0..count {
                for piece in message.chunks_mut(self.packet_bytes) {
                    if written == read {
                        self.read.0.store(read, Release);
                        while written == read {
                            written = self.written.0.load(Acquire);
                        }
                    }
                    // SAFETY: the packet is written (above) and not given back before the copy.
                    unsafe { copy(piece.as_mut_ptr(), self.packet(read), piece.len()) }
                    read += 1;
                    if read % lot == 0 {
                        self.read.0.store(read, Release);
                    }
                }
            }
        })
    }
}

/// The fastest copy between cores. From about a kilobyte on that is `rep movsb`, which writes
/// whole lines without fetching them first: near by a fifth, and far by four times, faster than
/// a loop of vector moves.
///
/// # Safety
/// `to` is valid for writes of `bytes` bytes, `from` for reads, and they do not overlap.
#[inline(always)]
pub(super) unsafe fn copy(to: *mut u8, from: *const u8, bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    if bytes >= 1024 {
        // SAFETY: the caller's.
        unsafe {
            std::arch::asm!(
                "rep movsb",
                inout("rcx") bytes => _, inout("rdi") to => _, inout("rsi") from => _,
                options(nostack, preserves_flags),
            );
        }
        return;
    }
    // SAFETY: the caller's.
    unsafe { std::ptr::copy_nonoverlapping(from, to, bytes) }
}

/// The same of at most 64 bytes, without a call: a first and a last move, which may overlap.
///
/// # Safety
/// Like [`copy`].
#[inline(always)]
pub(super) unsafe fn copy_short(to: *mut u8, from: *const u8, bytes: usize) {
    debug_assert!(bytes <= 64);
    let ends = |each: usize| {
        let last = bytes - each;
        // SAFETY: the caller's: there are at least `each` bytes.
        unsafe {
            std::ptr::copy_nonoverlapping(from, to, each);
            std::ptr::copy_nonoverlapping(from.add(last), to.add(last), each);
        }
    };
    match bytes {
        32.. => ends(32),
        16.. => ends(16),
        8.. => ends(8),
        4.. => ends(4),
        2.. => ends(2),
        1 => ends(1),
        0 => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bare_ring_delivers_what_was_written() {
        let ring = Ring::new(1000, 4096);
        let message: Vec<u8> = (0..10_007u32).map(|i| (i * 7) as u8).collect();
        let mut out = vec![0; message.len()];
        std::thread::scope(|scope| {
            scope.spawn(|| ring.write(&message, 3));
            ring.read(&mut out, 3);
        });
        assert_eq!(out, message);
    }
}
