//! The end of the process. In `exit` libfabric unloads its providers even while threads are in
//! them; so this keeps threads out of it before that.
//!
//! ```text
//!   out --Door::enter--> in a call --Inside dropped--> out
//!   `exit`: no thread enters any more; waits for those that are in; then libfabric unloads itself
//! ```
//! The thread that ends the process may still enter, to free its objects; while it frees a node,
//! whose other threads then have work to do, all threads may ([`OpenedExit`]).
//!
//! Each call costs two atomic operations on a cache line that few end points share: little beside
//! the cost of a call of libfabric.

use core::sync::atomic::{AtomicI32, AtomicU32, AtomicUsize, Ordering::SeqCst};
use core::time::Duration;
use std::sync::Once;

/// Cache lines with counts of threads in calls.
const LINES: usize = 16;
/// Most polls of these counts at the end of the process, one each millisecond. The longest call is
/// libfabric's first query, which takes a quarter of a second.
const LOOKS: u32 = 2000;

#[repr(align(128))]
struct PaddedCount(AtomicUsize);

static INSIDE: [PaddedCount; LINES] = [const { PaddedCount(AtomicUsize::new(0)) }; LINES];
static NEXT: AtomicUsize = AtomicUsize::new(0);
/// The thread that ends the process; zero: the process is not ending.
static ENDS: AtomicI32 = AtomicI32::new(0);
/// The process that opened the library; a forked child has only a copy.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// The entrance for the calls of one end point.
#[derive(Clone, Copy, Debug)]
pub struct Door(usize);

/// A thread is in a call until this is dropped.
#[derive(Debug)]
pub struct Inside(usize);

impl Door {
    /// The entrance for calls that belong to no end point.
    pub const COMMON: Self = Self(0);

    pub fn new() -> Self {
        Self(NEXT.fetch_add(1, SeqCst) % LINES)
    }

    /// `None`: the process is ending, and the library must not be called.
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

/// Call it before the library is opened: from now on the end of this process waits for the threads
/// in calls.
pub fn watch() {
    static ONCE: Once = Once::new();
    let process = std::process::id();
    let before = PROCESS.swap(process, SeqCst);
    if before != 0 && before != process {
        // Threads that were in a call at the fork are the parent's.
        INSIDE.iter().for_each(|line| line.0.store(0, SeqCst));
    }
    // Registered functions run before the destructors of any library. If there is no room to
    // register it, the process ends without waiting.
    ONCE.call_once(|| {
        // SAFETY: a function that does not unwind and stays mapped, like all of this library's
        // code.
        let _ = unsafe { libc::atexit(wait_for_all) };
    });
}

/// Whether this process is a child of the one that opened the library: the library's objects are
/// the parent's, and the numbers of its descriptors may belong to other files by now.
pub fn is_in_a_child() -> bool {
    PROCESS.load(SeqCst) != std::process::id()
}

/// While the thread that ends the process waits for other threads to finish, they may enter, since
/// libfabric does not unload its providers yet. Dropping this waits for their calls again.
#[derive(Debug)]
pub struct OpenedExit(bool);

impl OpenedExit {
    /// Has no effect unless this thread ends the process.
    pub fn by_this_thread() -> Self {
        let ends = ENDS.load(SeqCst);
        let is_so = ends != 0 && ends == this_thread();
        if is_so {
            ENDS.store(0, SeqCst);
        }
        Self(is_so)
    }
}

impl Drop for OpenedExit {
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
