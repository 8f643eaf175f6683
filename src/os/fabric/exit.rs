//! The end of the process. In `exit` libfabric unloads its providers, whatever threads are in them; so threads
//! are out of it before that.
//!
//! ```text
//!   out --Door::enter--> in a call --Inside dropped--> out
//!   `exit`: nobody enters any more, and who is in is waited for; then libfabric takes itself down
//! ```
//! The thread that ends the process may still enter, to free what it has; while it frees a node, whose other
//! threads then have something to do, all may ([`Opened`]).
//!
//! Each call costs two atomic operations on a cache line that an end point shares with few others, which is
//! little beside what a call of libfabric does.

use core::sync::atomic::{AtomicI32, AtomicU32, AtomicUsize, Ordering::SeqCst};
use core::time::Duration;
use std::sync::Once;

/// Cache lines that count who is in.
const LINES: usize = 16;
/// What ends the process waits for those that are in a call for so many looks, one each millisecond. The
/// longest call is the first question, which takes a quarter of a second.
const LOOKS: u32 = 2000;

#[repr(align(128))]
struct Line(AtomicUsize);

static INSIDE: [Line; LINES] = [const { Line(AtomicUsize::new(0)) }; LINES];
static NEXT: AtomicUsize = AtomicUsize::new(0);
/// The thread that ends the process; zero: none does.
static ENDS: AtomicI32 = AtomicI32::new(0);
/// The process that opened the library, of which a child has but a picture.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// Through which one end point's calls go.
#[derive(Clone, Copy, Debug)]
pub struct Door(usize);

/// A thread is in a call until this is dropped.
#[derive(Debug)]
pub struct Inside(usize);

impl Door {
    /// Through which calls go that belong to no end point.
    pub const COMMON: Self = Self(0);

    pub fn new() -> Self {
        Self(NEXT.fetch_add(1, SeqCst) % LINES)
    }

    /// `None`: the process ends, and the library must not be called.
    pub fn enter(self) -> Option<Inside> {
        INSIDE[self.0].0.fetch_add(1, SeqCst);
        let inside = Inside(self.0);
        let ends = ENDS.load(SeqCst);
        (ends == 0 || ends == this_thread()).then_some(inside)
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        INSIDE[self.0].0.fetch_sub(1, SeqCst);
    }
}

/// Before the library is opened: from now on the end of this process waits for those that are in it.
pub fn watch() {
    static ONCE: Once = Once::new();
    let process = std::process::id();
    let before = PROCESS.swap(process, SeqCst);
    if before != 0 && before != process {
        // Threads that were in a call when this process was forked are the parent's.
        INSIDE.iter().for_each(|line| line.0.store(0, SeqCst));
    }
    // What is registered is called before the destructors of any library. Where there is no room for it, the
    // process ends as it would without.
    ONCE.call_once(|| {
        // SAFETY: a function that unwinds nowhere and stays, since this library's code does.
        let _ = unsafe { libc::atexit(wait_for_all) };
    });
}

/// Whether this process is a child of the one that opened the library: whatever that made is the
/// parent's, and what its descriptors are called may be another thing's name by now.
pub fn is_in_a_child() -> bool {
    PROCESS.load(SeqCst) != std::process::id()
}

/// While the thread that ends the process waits for others to end what they do: they may enter, since it is
/// not libfabric's turn yet. Then they are waited for again.
#[derive(Debug)]
pub struct Opened(bool);

impl Opened {
    /// Nothing, where this thread does not end the process.
    pub fn by_this_thread() -> Self {
        let ends = ENDS.load(SeqCst);
        let is_so = ends != 0 && ends == this_thread();
        if is_so {
            ENDS.store(0, SeqCst);
        }
        Self(is_so)
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        if self.0 {
            wait_for_all();
        }
    }
}

extern "C" fn wait_for_all() {
    if PROCESS.load(SeqCst) != std::process::id() {
        return;
    }
    ENDS.store(this_thread(), SeqCst);
    for _ in 0..LOOKS {
        if INSIDE.iter().all(|line| line.0.load(SeqCst) == 0) {
            return;
        }
        crate::os::thread::sleep(Duration::from_millis(1));
    }
}

fn this_thread() -> i32 {
    rustix::thread::gettid().as_raw_nonzero().get()
}
