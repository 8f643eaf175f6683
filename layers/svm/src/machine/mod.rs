//! The protocol, home-based lazy release consistency, without memory, clock and network: messages in,
//! messages out. (Y. Zhou, L. Iftode, K. Li, *Performance Evaluation of Two Home-Based Lazy Release
//! Consistency Protocols for Shared Virtual Memory Systems*, OSDI 1996.)
//!
//! ```text
//!   process w: Client, the program's one thread       Server, home of pages, manager of locks
//!     a miss      --- Home, Fetch ------------------>  first touch; held back until the needs are in
//!     release     --- Diffs -----------------------> homes: applied[w]
//!                 --- Notices, Sync ---------------> manager: log
//!     acquire     --- Sync ------------------------> manager
//!                 <-- Notices, Done ----------------
//! ```
//! Clients talk to servers alone, also to their own. A client asks one question at a time; its other
//! messages have no answer. **Messages of one client to one server arrive in order, and so do those back;
//! between others there is no order.** HLRC, HLRC-AU and AURC differ in how bytes reach the home: in
//! `Diffs`, or before an empty one.
//!
//! An *interval* of a process ends with a release before which it wrote. A *notice* says which pages it
//! wrote; a *vector* says, for each process, up to which interval all notices are known. *Needs* say, for
//! a home and each writer, the interval whose differences must be there before a page is read: kept for
//! a home, not for each page, since a release sends them before its notices.

pub mod client;
mod log;
pub mod server;
pub mod wire;

pub use client::{Client, Event, Links};
pub use server::{Host, Server};

/// Processes at most.
pub const PROCESSES_MAX: usize = 64;
/// Pages at most: 64 GiB.
pub const PAGES_MAX: u32 = 1 << 24;

/// Sizes that all processes agree upon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// 1 to [`PROCESSES_MAX`].
    pub processes: usize,
    /// 1 to [`PAGES_MAX`].
    pub pages: u32,
    /// 1 to 16,384.
    pub page_bytes: usize,
    /// Locks are numbered below it, and so are barriers, flags and condition variables.
    pub objects: u32,
    /// Notices that a log holds at most, 16 bytes each: 1 to 1,048,576. A process that lags further behind is told that any
    /// page may have been written.
    pub log_max: usize,
}

impl Shape {
    /// `Misuse` unless all sizes are in range.
    pub fn check(&self) -> Result<(), Error> {
        let right = (1..=PROCESSES_MAX).contains(&self.processes)
            && (1..=PAGES_MAX).contains(&self.pages)
            && (1..=16 << 10).contains(&self.page_bytes)
            && self.objects > 0
            && (1..=1 << 20).contains(&self.log_max);
        if right { Ok(()) } else { Err(Error::Misuse("sizes out of range")) }
    }

    /// The process whose server manages a lock, a barrier or a flag. A condition variable is with its lock.
    pub fn manager(&self, object: u32) -> usize {
        object as usize % self.processes
    }

    /// The process whose server assigns the page's home.
    pub fn page_manager(&self, page: u32) -> usize {
        (page / wire::STRIPE) as usize % self.processes
    }

    fn page(&self, page: u32) -> Result<u32, Error> {
        if page < self.pages { Ok(page) } else { Err(Error::Malformed("page")) }
    }

    fn process(&self, process: u8) -> Result<usize, Error> {
        let process = usize::from(process);
        if process < self.processes { Ok(process) } else { Err(Error::Malformed("process")) }
    }

    fn object(&self, object: u64) -> Result<u32, Error> {
        match u32::try_from(object) {
            Ok(object) if object < self.objects => Ok(object),
            _ => Err(Error::Malformed("number of an object")),
        }
    }
}

/// A call or a message was refused, and changed nothing unless it says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A peer's message is no message of this protocol.
    #[error("a malformed message: {0}")]
    Malformed(&'static str),
    /// A peer's message does not fit the state: an answer without its question, a question before the
    /// answer to the last one.
    #[error("an unexpected message: {0}")]
    Unexpected(&'static str),
    /// The program's call is not allowed.
    #[error("{0}")]
    Misuse(&'static str),
    /// That process died, and with it the answer, or the bytes.
    #[error("process {0} died")]
    Died(usize),
}
