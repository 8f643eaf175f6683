//! The shared space of a process: the path of a fault, of a release and of an acquire.
//!
//! ```text
//!   a fault     in a signal's handler: home, frame, fetch, enter                    miss
//!   a release   what was written is found, leaves for its home, then the call       flush
//!   an acquire  the call, then copies that are old go: first what was written there invalidate
//! ```
//! All runs in the one thread that joined; `busy` says that the library runs, so that a fault then is an
//! error of the library, or of a signal's handler that touched the shared space.
//!
//! Never: a fault whose page is read in place allocates; one that waits for an answer allocates nothing but
//! what Hamlyn's sleep does; either takes a lock that the program can hold.

use crate::Error;
use crate::inbox::Messages;
use crate::machine::wire::{Call, ToClient};
use crate::machine::{Client, Event, Shape};
use crate::memory::{APPLIED, Memory, PAGE};
use crate::node::{Came, Transport};
use hamlyn_vmmc::Gather;
use std::io::{self, Write};
use std::ops::Range;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

/// Pages that are read ahead at most.
const AHEAD: u32 = 15;
/// The status of a process that cannot go on.
const STATUS: i32 = 70;

/// How stores reach a page's home (SHRIMP 4.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// A release finds the bytes that have changed, and sends them in one message a home.
    #[default]
    Hlrc,
    /// A release finds them, and each run leaves by the store engine as it is found.
    HlrcAu,
    /// Each store that is [told](crate::Svm::wrote) leaves by the store engine.
    Aurc,
}

/// Counts of this process since it joined; the header names them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
#[allow(missing_docs)]
pub struct Figures {
    pub misses: u64,
    pub fetches: u64,
    pub fetched_in_place: u64,
    pub read_ahead: u64,
    pub intervals: u64,
    pub differences: u64,
    pub difference_bytes: u64,
    pub deposits: u64,
    pub notices_sent: u64,
    pub notices_received: u64,
    pub invalidations: u64,
    pub evictions: u64,
    pub messages_sent: u64,
    pub bytes_sent: u64,
    pub pages_home: u64,
    pub pages_cached: u64,
    pub refused: u64,
}

pub type OnDeath = Box<dyn FnMut(usize)>;

/// The process's part, but for its handler of faults.
pub struct Inner {
    pub rank: usize,
    pub shape: Shape,
    pub protocol: Protocol,
    pub client: Client,
    pub links: Transport,
    pub messages: Messages,
    pub memory: Memory,
    pub engine: Gather,
    /// A page, while it is compared.
    pub copy: Box<[u8; PAGE]>,
    /// Pages that a scan found.
    pub dirty: Vec<u32>,
    pub figures: Figures,
    pub on_death: Option<OnDeath>,
    pub thread: libc::pid_t,
    pub is_busy: bool,
    /// The pages of the last miss: the next one follows it in a program that goes through memory.
    pub ahead: Range<u32>,
    /// The page of the last fault, and how often it came.
    pub last: (u32, u32),
}

/// The process's one; null: none.
pub static CURRENT: AtomicPtr<Inner> = AtomicPtr::new(null_mut());
/// An error of the system.
pub fn io_error(error: io::Error) -> Error {
    Error::Refused(error.to_string())
}

impl Inner {
    /// A call that orders memory; what was written leaves for its home before a release.
    pub fn call(&mut self, call: Call) -> Result<Option<usize>, Error> {
        if call.releases() {
            self.flush()?;
        }
        if call.is_answered() {
            return self.ask(|client, links| client.call(call, links));
        }
        self.client.call(call, &mut self.links)?;
        Ok(None)
    }

    /// A question, and its answer.
    pub fn ask(
        &mut self,
        question: impl FnOnce(&mut Client, &mut Transport) -> Result<(), crate::machine::Error>,
    ) -> Result<Option<usize>, Error> {
        question(&mut self.client, &mut self.links)?;
        let answer = loop {
            if let Some(answer) = self.hear()? {
                break answer;
            }
        };
        self.invalidate()?;
        answer
    }

    /// Takes what has come. `Some`: the answer.
    fn hear(&mut self) -> Result<Option<Result<Option<usize>, Error>>, Error> {
        let Self { client, links, messages, memory, figures, shape, .. } = self;
        let mut answer = None;
        match links.wait(messages)? {
            Came::Messages => {
                for (link, bytes) in messages.iter() {
                    let Some(from) = links.process(link) else { continue };
                    let message = ToClient::decode(bytes, shape);
                    // A wrong notice is another's, which the server has passed on.
                    let are_notices = matches!(message, Ok(ToClient::Notices(_)));
                    if let Ok(ToClient::Notices(notices)) = &message {
                        figures.notices_received += notices.len() as u64;
                    }
                    match message.and_then(|message| client.take(from, message, links)) {
                        Ok(None) => {}
                        Ok(Some(Event::Fetched { page, bytes })) => {
                            memory.shared.view.write(page as usize * PAGE, bytes);
                            answer = Some(Ok(None));
                        }
                        Ok(Some(Event::Homed)) => answer = Some(Ok(None)),
                        Ok(Some(Event::Ordered { dead })) => answer = Some(Ok(dead)),
                        Ok(Some(Event::Failed(e))) => answer = Some(Err(e.into())),
                        Err(e) => {
                            figures.refused += 1;
                            let failed = if are_notices { None } else { client.refuse(from, e) };
                            if let Some(Event::Failed(e)) = failed {
                                answer = Some(Err(e.into()));
                            }
                        }
                    }
                }
                messages.clear();
            }
            Came::End(process) => {
                if let Some(Event::Failed(e)) = client.died(process) {
                    answer = Some(Err(e.into()));
                }
            }
        }
        Ok(answer)
    }

    /// All that was written leaves for its home.
    fn flush(&mut self) -> Result<(), Error> {
        if self.protocol == Protocol::Aurc {
            self.flush_engine();
            return Ok(());
        }
        self.flush_pages(0..self.shape.pages)
    }

    /// What was written in these pages leaves for its home.
    fn flush_pages(&mut self, pages: Range<u32>) -> Result<(), Error> {
        if self.protocol == Protocol::Aurc {
            self.flush_engine();
            return Ok(());
        }
        self.dirty.clear();
        self.memory.written(pages, |page| self.dirty.push(page)).map_err(io_error)?;
        for at in 0..self.dirty.len() {
            self.flush_page(self.dirty[at])?;
        }
        Ok(())
    }

    fn flush_page(&mut self, page: u32) -> Result<(), Error> {
        let Self { client, links, memory, copy, figures, protocol, rank, .. } = self;
        let Some(home) = client.home(page) else { return Ok(()) };
        if home == *rank {
            client.wrote(page)?;
            return Ok(());
        }
        let mut result = Ok(());
        let (runs, bytes) = (&mut figures.differences, &mut figures.difference_bytes);
        memory.compare(page, copy, |run, new| {
            *runs += 1;
            *bytes += new.len() as u64;
            let told = match protocol {
                Protocol::HlrcAu => {
                    links.deposit(home, page as usize * PAGE + run.start, new);
                    client.wrote(page)
                }
                _ => client.diff(page, run.start, new, links),
            };
            if result.is_ok() {
                result = told;
            }
        });
        Ok(result?)
    }

    fn flush_engine(&mut self) {
        let Self { client, links, memory, copy, engine, figures, .. } = self;
        let leave = |run: Range<usize>| deposit(client, links, memory, copy, figures, run);
        let _ = engine.flush(leave);
    }

    /// Under AURC, bytes that were stored.
    pub fn wrote(&mut self, start: usize, bytes: usize) -> Result<(), Error> {
        if self.protocol != Protocol::Aurc || bytes == 0 {
            return Ok(());
        }
        let outside = || Error::Misuse(format!("{bytes} bytes at {start:#x} are not shared"));
        let last = start.checked_add(bytes - 1).and_then(|last| self.memory.page_of(last));
        self.memory.page_of(start).and(last).ok_or_else(outside)?;
        let offset = start - self.memory.base();
        let (mut at, end) = (offset, offset + bytes);
        while at < end {
            let until = end.min((at / PAGE + 1) * PAGE);
            let page = (at / PAGE) as u32;
            let Self { client, links, memory, copy, engine, figures, rank, .. } = self;
            // A store has fetched it; only a store of a null length has not.
            let home = client.home(page).ok_or_else(outside)?;
            client.wrote(page)?;
            if home != *rank {
                let mut leave =
                    |run: Range<usize>| deposit(client, links, memory, copy, figures, run);
                let _ = engine.begin(at, &mut leave);
                let _ = engine.end(until, &mut leave);
            }
            at = until;
        }
        Ok(())
    }

    /// Copies that are old go, but first what was written in them.
    fn invalidate(&mut self) -> Result<(), Error> {
        while let Some(pages) = self.client.next_invalid() {
            self.flush_pages(pages.clone())?;
            self.figures.invalidations += self.memory.leave(pages).map_err(io_error)?;
        }
        Ok(())
    }

    /// The page becomes valid, and can be loaded.
    pub fn miss(&mut self, page: u32) -> Result<(), Error> {
        if self.client.home(page).is_none() {
            let rank = self.rank;
            self.ask(|client, links| client.ask_home(page..page + 1, rank, links))?;
        }
        let home = self.client.home(page).unwrap_or(self.rank);
        self.memory.shared.set_role(page, home == self.rank);
        if home != self.rank {
            if let Some(victim) = self.memory.victim(page) {
                self.flush_pages(victim..victim + 1)?;
                self.memory.evict(victim).map_err(io_error)?;
                self.figures.evictions += 1;
            }
            self.memory.take_frame(page);
            self.figures.fetches += 1;
            match self.read_in_place(home, page) {
                true => self.figures.fetched_in_place += 1,
                false => _ = self.ask(|client, links| client.fetch(page, links))?,
            }
        }
        let window = if page == self.ahead.end { 2 * self.ahead.len() as u32 } else { 0 };
        let most = page.saturating_add(1 + window.min(AHEAD)).min(self.shape.pages);
        let mut end = page + 1;
        while end < most && self.read_ahead(home, end) {
            end += 1;
        }
        self.ahead = page..end;
        self.memory.enter(page..end).map_err(io_error)
    }

    /// A page behind one that was missed, of the same home, if that needs no question and no other's frame.
    fn read_ahead(&mut self, home: usize, page: u32) -> bool {
        if self.memory.is_entered(page) || self.client.home(page) != Some(home) {
            return false;
        }
        if home == self.rank {
            self.memory.shared.set_role(page, true);
            return true;
        }
        if self.memory.victim(page).is_some() {
            return false;
        }
        self.memory.shared.set_role(page, false);
        if !self.read_in_place(home, page) {
            return false;
        }
        self.memory.take_frame(page);
        self.figures.read_ahead += 1;
        true
    }

    fn read_in_place(&mut self, home: usize, page: u32) -> bool {
        let Self { client, links, memory, .. } = self;
        let Some(there) = links.in_place(home) else { return false };
        let applied = |writer: usize| there.word(APPLIED + writer).load(Ordering::Acquire);
        if !client.may_read(page, applied) {
            return false;
        }
        let at = page as usize * PAGE;
        memory.shared.view.copy_page(at, there);
        true
    }

    pub fn touch(&mut self, start: usize, bytes: usize) -> Result<(), Error> {
        if bytes == 0 {
            return Ok(());
        }
        let last = start.checked_add(bytes - 1).and_then(|last| self.memory.page_of(last));
        let (Some(first), Some(last)) = (self.memory.page_of(start), last) else {
            return Err(Error::Misuse(format!("{bytes} bytes at {start:#x} are not shared")));
        };
        for page in first..=last {
            if !self.memory.is_entered(page) {
                self.figures.misses += 1;
                self.miss(page)?;
            }
            self.memory.let_write(page).map_err(io_error)?;
        }
        Ok(())
    }
}

/// A run leaves by the store engine.
fn deposit(
    client: &Client,
    links: &mut Transport,
    memory: &Memory,
    copy: &mut [u8; PAGE],
    figures: &mut Figures,
    run: Range<usize>,
) -> Result<(), std::convert::Infallible> {
    // It lies on one page, since runs end at a page's end.
    if let Some(home) = client.home((run.start / PAGE) as u32) {
        let bytes = &mut copy[..run.len()];
        memory.shared.view.read(run.start, bytes);
        links.deposit(home, run.start, bytes);
        figures.differences += 1;
        figures.difference_bytes += run.len() as u64;
    }
    Ok(())
}

/// The handler's part. It runs between two instructions of the program.
pub fn on_fault(address: usize) {
    let inner = CURRENT.load(Ordering::Acquire);
    // SAFETY: while the handler of faults is there, so is what `join` made; it is this thread's, or the
    // process ends here.
    let Some(inner) = (unsafe { inner.as_mut() }) else { end(0, "a fault before joining") };
    // SAFETY: a call without arguments.
    if unsafe { libc::gettid() } != inner.thread {
        end(inner.rank, "another thread than that which joined touched the shared space");
    }
    if core::mem::replace(&mut inner.is_busy, true) {
        end(inner.rank, "a handler of a signal touched the shared space");
    }
    let Some(page) = inner.memory.page_of(address) else { end(inner.rank, "a fault elsewhere") };
    if inner.memory.is_entered(page) {
        match inner.memory.let_write(page) {
            Ok(true) => {}
            // The kernel has no memory for the page, or somebody changed the mapping.
            Ok(false) if inner.last == (page, 3) => end(inner.rank, "a page cannot be entered"),
            Ok(false) => {
                inner.last = (page, if inner.last.0 == page { inner.last.1 + 1 } else { 1 })
            }
            Err(_) => end(inner.rank, "the system refused to let a page be written"),
        }
    } else {
        inner.figures.misses += 1;
        inner.last = (page, 0);
        match inner.miss(page) {
            Ok(()) => {}
            Err(Error::Died(process)) => {
                if let Some(call) = &mut inner.on_death {
                    call(process);
                }
                end(
                    inner.rank,
                    format_args!("process {process} died, which kept a page that was loaded"),
                )
            }
            Err(e) => end(inner.rank, &e),
        }
    }
    inner.is_busy = false;
}

/// The process ends with a sentence, without an allocation: the fault may have interrupted one.
fn end(rank: usize, why: impl core::fmt::Display) -> ! {
    let mut text = [0; 512];
    let mut left = &mut text[..];
    let _ = writeln!(left, "svm: process {rank}: {why}");
    let length = 512 - left.len();
    // SAFETY: so many bytes; a call that does not return.
    unsafe {
        libc::write(2, text.as_ptr().cast(), length);
        libc::_exit(STATUS)
    }
}
