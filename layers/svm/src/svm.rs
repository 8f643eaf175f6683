//! Joining, and the calls of a program.

use crate::fault::Handler;
use crate::inbox::Messages;
use crate::machine::wire::Call;
use crate::machine::{Client, PAGES_MAX, PROCESSES_MAX, Shape};
use crate::memory::{Memory, PAGE};
use crate::node::Meeting;
use crate::space::{CURRENT, Figures, Inner, OnDeath, Protocol, io_error, on_fault};
use crate::{Combining, Error};
use hamlyn_vmmc::Gather;
use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Objects of each kind, for programs.
pub const OBJECTS: u32 = 4096;
/// Of the library: the lock of memory, and barriers.
pub(crate) const MALLOC: u32 = OBJECTS;
pub(crate) const MALLOC_ALL: u32 = OBJECTS + 1;
const LEAVING: u32 = OBJECTS + 2;
/// Notices that a log holds.
const LOG_MAX: usize = 64 << 10;
/// Where the shared space lies, unless it is said: far from the heap, libraries and stacks.
const BASE: usize = 0x6000_0000_0000;
/// Least memory for copies.
const CACHE_BYTES_MIN: u64 = 256 << 10;

/// Homes of a block's pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Homes {
    /// The process that touches the page first.
    #[default]
    FirstTouch,
    /// Equal parts, in the order of the ranks.
    Blocks,
    /// Page by page.
    Cyclic,
    /// This process.
    Rank(usize),
}

/// How to join.
#[derive(Clone, Debug)]
pub struct Options {
    /// Bytes of the shared space, which has whole pages; the same in all processes.
    pub bytes: u64,
    /// The same in all processes.
    pub protocol: Protocol,
    /// Bytes for copies of other homes' pages and their twins; 0: as many as the space has.
    pub cache_bytes: u64,
    /// Where the space lies: a multiple of 4,096, the same in all processes.
    pub base: usize,
    /// Without a launcher: the name at which the processes of one user and host meet, the rank, the size.
    pub meeting: Option<(String, usize, usize)>,
    /// Of the store engine.
    pub combining: Combining,
    /// How long joining waits.
    pub limit: Option<Duration>,
}

impl Options {
    /// Of a launcher's job, with HLRC.
    pub fn new(bytes: u64) -> Self {
        Self {
            bytes,
            protocol: Protocol::Hlrc,
            cache_bytes: 0,
            base: BASE,
            meeting: None,
            combining: Combining::default(),
            limit: Some(Duration::from_secs(60)),
        }
    }
}

/// A process joins once.
static JOINED: AtomicBool = AtomicBool::new(false);

/// The shared space of this process, used by the thread that joined. Dropped without
/// [`leave`](Self::leave), it is as dead for the others.
pub struct Svm {
    handler: Option<Handler>,
    inner: *mut Inner,
    _one_thread: PhantomData<UnsafeCell<()>>,
}

impl core::fmt::Debug for Svm {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Svm").field("rank", &self.rank()).field("size", &self.size()).finish()
    }
}

/// Whether an environment variable has this value.
fn said(variable: &str, value: &str) -> bool {
    std::env::var_os(variable).is_some_and(|said| said == value)
}

impl Svm {
    /// Joins the other processes. Waits for all, at most the limit. [`Error::Misuse`]: sizes that are not
    /// allowed, or this process has joined before.
    ///
    /// Two environment variables are for tests: `SVM_FAULTS=protection` and `SVM_FETCH=ask`
    /// choose the ways that are taken where the system allows no better.
    pub fn join(options: &Options) -> Result<Self, Error> {
        let pages = options.bytes.div_ceil(PAGE as u64);
        if !(2..=u64::from(PAGES_MAX)).contains(&pages) || !options.base.is_multiple_of(PAGE) {
            return Err(Error::Misuse(format!(
                "{} bytes at {:#x}: the shared space has 2 to {PAGES_MAX} pages of {PAGE} bytes, at a \
                 multiple of them",
                options.bytes, options.base
            )));
        }
        if options.cache_bytes != 0 && options.cache_bytes < CACHE_BYTES_MIN {
            let said =
                format!("{} bytes for copies, less than {CACHE_BYTES_MIN}", options.cache_bytes);
            return Err(Error::Misuse(said));
        }
        let engine = Gather::new(options.combining).map_err(|e| Error::Misuse(e.to_string()))?;
        if JOINED.swap(true, Ordering::AcqRel) {
            return Err(Error::Misuse("this process has joined a shared space already".into()));
        }
        let joined = Self::join_others(options, pages, engine);
        if joined.is_err() {
            JOINED.store(false, Ordering::Release);
        }
        joined
    }

    fn join_others(options: &Options, pages: u64, engine: Gather) -> Result<Self, Error> {
        let twins = options.protocol != Protocol::Aurc;
        let frames = match options.cache_bytes {
            0 => pages,
            bytes => bytes / (PAGE as u64 * if twins { 2 } else { 1 }),
        };
        let meeting = match &options.meeting {
            None => Meeting::job(options.limit)?,
            Some((name, rank, size)) => Meeting::name(name, *rank, *size)?,
        };
        let (rank, size) = (meeting.rank, meeting.size);
        if size > PROCESSES_MAX {
            return Err(Error::Misuse(format!("{size} processes, more than {PROCESSES_MAX}")));
        }
        let shape = Shape {
            processes: size,
            pages: pages as u32,
            page_bytes: PAGE,
            objects: OBJECTS + 3,
            log_max: LOG_MAX,
        };
        shape.check()?;
        let mut token = [0; 8];
        // SAFETY: so many bytes.
        unsafe { libc::getrandom(token.as_mut_ptr().cast(), token.len(), 0) };
        let token = u64::from_ne_bytes(token);
        let by_kernel = !said("SVM_FAULTS", "protection");
        let memory =
            Memory::new(options.base, pages as usize, frames as usize, twins, by_kernel, token);
        let memory = memory.map_err(io_error)?;
        let in_place = !said("SVM_FETCH", "ask");
        let protocol = options.protocol as u32;
        let links = meeting.link(shape, protocol, &memory, token, in_place, options.limit)?;
        let signal = memory.signal();
        let inner = Box::new(Inner {
            rank,
            shape,
            protocol: options.protocol,
            client: Client::new(shape, rank),
            links,
            messages: Messages::new(),
            memory,
            engine,
            copy: Box::new([0; PAGE]),
            dirty: Vec::with_capacity(pages as usize),
            figures: Figures::default(),
            on_death: None,
            // SAFETY: a call without arguments.
            thread: unsafe { libc::gettid() },
            is_busy: false,
            ahead: 0..0,
            last: (0, 0),
        });
        let inner = Box::into_raw(inner);
        CURRENT.store(inner, Ordering::Release);
        let mut svm = Self { handler: None, inner, _one_thread: PhantomData };
        let handler = Handler::new(signal, options.base, pages as usize * PAGE, on_fault);
        svm.handler = Some(handler.map_err(io_error)?);
        Ok(svm)
    }

    /// The library's part, for a call.
    pub(crate) fn enter<R>(
        &self,
        act: impl FnOnce(&mut Inner) -> Result<R, Error>,
    ) -> Result<R, Error> {
        // SAFETY: made by `join`, freed when `self` is; used by one thread, and a fault's handler that came
        // now ends the process.
        let inner = unsafe { &mut *self.inner };
        if core::mem::replace(&mut inner.is_busy, true) {
            return Err(Error::Misuse("a call in a handler of a signal, or of a death".into()));
        }
        let result = act(inner);
        inner.is_busy = false;
        result
    }

    fn look<R>(&self, look: impl FnOnce(&Inner) -> R) -> R {
        // SAFETY: as above; nothing changes meanwhile.
        look(unsafe { &*self.inner })
    }

    /// This process's number.
    pub fn rank(&self) -> usize {
        self.look(|inner| inner.rank)
    }

    /// The number of processes.
    pub fn size(&self) -> usize {
        self.look(|inner| inner.shape.processes)
    }

    /// The first byte of the shared space, which belongs to blocks of [`malloc`](Self::malloc).
    pub fn base(&self) -> *mut u8 {
        self.look(|inner| inner.memory.base() as *mut u8)
    }

    fn call(&self, call: Call) -> Result<Option<usize>, Error> {
        self.enter(|inner| inner.call(call))
    }

    /// Acquires a lock. `Some`: that process died while it held it.
    pub fn lock(&self, lock: u32) -> Result<Option<usize>, Error> {
        self.call(Call::Acquire { lock: object(lock)? })
    }

    /// Releases a lock.
    pub fn unlock(&self, lock: u32) -> Result<(), Error> {
        self.call(Call::Release { lock: object(lock)? }).map(drop)
    }

    /// Waits until `count` processes have arrived at the barrier.
    pub fn barrier(&self, barrier: u32, count: usize) -> Result<(), Error> {
        self.call(Call::Arrive { barrier: object(barrier)?, count }).map(drop)
    }

    /// Gives a flag a value.
    pub fn set_flag(&self, flag: u32, value: u64) -> Result<(), Error> {
        self.call(Call::Set { flag: object(flag)?, value }).map(drop)
    }

    /// Waits until a flag is at least `value`.
    pub fn wait_flag(&self, flag: u32, value: u64) -> Result<(), Error> {
        self.call(Call::Wait { flag: object(flag)?, value }).map(drop)
    }

    /// Releases the lock, waits for a signal, and acquires it again. `Some`: that process died meanwhile.
    pub fn wait(&self, condition: u32, lock: u32) -> Result<Option<usize>, Error> {
        self.call(Call::WaitCondition { condition: object(condition)?, lock: object(lock)? })
    }

    /// Wakes one process that waits for the condition, or all. The caller holds the lock.
    pub fn signal(&self, condition: u32, lock: u32, all: bool) -> Result<(), Error> {
        self.call(Call::Signal { condition: object(condition)?, lock: object(lock)?, all })
            .map(drop)
    }

    /// A block of zeros at a multiple of `align`, for the caller alone until it tells others. It stays until
    /// all have left.
    pub fn malloc(&self, bytes: usize, align: usize, homes: Homes) -> Result<*mut u8, Error> {
        self.enter(|inner| inner.malloc(bytes, align, homes))
    }

    /// The same block for all processes, which all call it.
    pub fn malloc_all(&self, bytes: usize, align: usize, homes: Homes) -> Result<*mut u8, Error> {
        self.enter(|inner| inner.malloc_all(bytes, align, homes))
    }

    /// Fetches the pages of these bytes, so that a system call can use them.
    pub fn touch(&self, start: *const u8, bytes: usize) -> Result<(), Error> {
        self.enter(|inner| inner.touch(start as usize, bytes))
    }

    /// Under AURC: these bytes were stored just now. Otherwise nothing happens.
    pub fn wrote(&self, start: *const u8, bytes: usize) -> Result<(), Error> {
        self.enter(|inner| inner.wrote(start as usize, bytes))
    }

    /// Called when a load needs a page that died with its home; then the process ends.
    pub fn on_death(&self, call: Option<OnDeath>) -> Result<(), Error> {
        self.enter(|inner| {
            inner.on_death = call;
            Ok(())
        })
    }

    /// Counts.
    pub fn figures(&self) -> Figures {
        self.look(|inner| {
            let (pages_home, pages_cached) = inner.memory.counts;
            Figures {
                deposits: inner.links.deposits,
                messages_sent: inner.links.messages,
                bytes_sent: inner.links.bytes,
                refused: inner.figures.refused
                    + inner.links.refused
                    + inner.links.refusals.load(Ordering::Relaxed),
                pages_home,
                pages_cached,
                ..inner.figures
            }
        })
    }

    /// How faults are taken, how pages are fetched and stores leave, and why not otherwise: lines.
    pub fn explain(&self) -> String {
        self.look(|inner| {
            let protocol = match inner.protocol {
                Protocol::Hlrc => "HLRC: differences, gathered into messages",
                Protocol::HlrcAu => "HLRC-AU: differences, by the store engine",
                Protocol::Aurc => "AURC: stores, by the store engine",
            };
            let mut text = format!("{protocol}\nfaults: {}\n", inner.memory.explain());
            for process in 0..inner.shape.processes {
                text += &format!("process {process}: {}\n", inner.links.explain(process));
            }
            text
        })
    }

    /// Releases the locks that this process holds, and waits until all processes have called it, or one died;
    /// then the shared space is gone.
    pub fn leave(mut self) -> Result<(), Error> {
        let left = self.enter(|inner| {
            while let Some(lock) = inner.client.held() {
                inner.call(Call::Release { lock })?;
            }
            inner.call(Call::Arrive { barrier: LEAVING, count: inner.shape.processes }).map(drop)
        });
        self.end();
        left
    }

    fn end(&mut self) {
        // While the library runs, as below a call-back of a death, its state stays.
        if self.inner.is_null() || self.look(|inner| inner.is_busy) {
            return;
        }
        self.handler = None;
        CURRENT.store(null_mut(), Ordering::Release);
        // SAFETY: made by `join`; no fault comes any more.
        let inner = unsafe { Box::from_raw(self.inner) };
        self.inner = null_mut();
        let Inner { links, memory, .. } = *inner;
        links.leave();
        drop(memory);
    }
}

impl Drop for Svm {
    fn drop(&mut self) {
        self.end();
    }
}

fn object(number: u32) -> Result<u32, Error> {
    match number < OBJECTS {
        true => Ok(number),
        false => Err(Error::Misuse(format!("object {number}: there are {OBJECTS} of each kind"))),
    }
}
