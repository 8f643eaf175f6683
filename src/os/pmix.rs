//! PMIx, whose library is opened at run time, with a safe interface: through it a process finds the
//! others that its launcher has started.
//!
//! ```text
//!   Pmix::open (PMIx_Init) --> put .. commit --> fence --> get .. --> finish (PMIx_Finalize)
//!                                                  |         |
//!                        a thread of the library's answers   +-- a copy of the value
//! ```
//! Every question that the launcher answers is asked without blocking (`.._nb`), and this module
//! waits for the answer, within a time limit. Calls that can only block (initializing, committing,
//! finalizing) run on a thread of their own. The arguments of a call live until the library has
//! answered, at any later time.
//!
//! Never: a value from the library is used after its callback has returned; a wait has no time
//! limit.
//!
//! The declarations are those of PMIx 4.2; newer versions change nothing in them. A test compares
//! them with the installed header.

use super::library;
use core::ffi::{CStr, c_char, c_int, c_void};
use core::time::Duration;
use libloading::os::unix as dl;
use std::ffi::CString;
use std::format;
use std::path::Path;
use std::string::{String, ToString};
use std::sync::{Arc, Condvar, Mutex, PoisonError, mpsc};
use std::vec::Vec;

/// The name by which the system finds it.
const NAME: &str = "libpmix.so.2";

const NAMESPACE_BYTES: usize = 256;
const KEY_BYTES: usize = 512;
const RANK_WILDCARD: u32 = u32::MAX - 1;
const SUCCESS: c_int = 0;
const TIMED_OUT: c_int = -24;
const UNREACHABLE: c_int = -25;
const NOT_FOUND: c_int = -46;
const PARTIAL_SUCCESS: c_int = -52;
const LOST_CONNECTION: c_int = -61;
const LOST_CONNECTION_OLD: c_int = -101;
const DONE_ALREADY: c_int = -157;
const BOOL: u16 = 1;
const INT: u16 = 6;
const UINT32: u16 = 14;
const BYTE_OBJECT: u16 = 27;
const SCOPE_GLOBAL: u8 = 3;
const JOB_SIZE: &CStr = c"pmix.job.size";
const COLLECT_DATA: &CStr = c"pmix.collect";
const IMMEDIATE: &CStr = c"pmix.immediate";
const TIMEOUT: &CStr = c"pmix.timeout";

/// `pmix_proc_t`.
#[repr(C)]
#[derive(Clone)]
struct Proc {
    namespace: [c_char; NAMESPACE_BYTES],
    rank: u32,
}

/// `pmix_byte_object_t`.
#[repr(C)]
#[derive(Clone, Copy)]
struct PmixBytes {
    at: *mut c_char,
    length: usize,
}

/// The union of `pmix_value_t`; its longest member has three words.
#[repr(C)]
union Data {
    flag: bool,
    integer: c_int,
    number: u32,
    bytes: PmixBytes,
    words: [u64; 3],
}

/// `pmix_value_t`.
#[repr(C)]
struct PmixValue {
    kind: u16,
    data: Data,
}

/// `pmix_info_t`.
#[repr(C)]
struct Info {
    key: [c_char; KEY_BYTES],
    flags: u32,
    value: PmixValue,
}

type OnDone = unsafe extern "C" fn(c_int, *mut c_void);
type OnValue = unsafe extern "C" fn(c_int, *mut PmixValue, *mut c_void);

/// The functions that are used. The library stays in the process: it has a thread of its own.
#[derive(Clone, Copy)]
struct PmixCalls {
    init: unsafe extern "C" fn(*mut Proc, *mut Info, usize) -> c_int,
    finalize: unsafe extern "C" fn(*const Info, usize) -> c_int,
    put: unsafe extern "C" fn(u8, *const c_char, *mut PmixValue) -> c_int,
    commit: unsafe extern "C" fn() -> c_int,
    fence: unsafe extern "C" fn(
        *const Proc,
        usize,
        *const Info,
        usize,
        Option<OnDone>,
        *mut c_void,
    ) -> c_int,
    get: unsafe extern "C" fn(
        *const Proc,
        *const c_char,
        *const Info,
        usize,
        Option<OnValue>,
        *mut c_void,
    ) -> c_int,
    text: unsafe extern "C" fn(c_int) -> *const c_char,
}

/// An error of PMIx. It changed nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PmixError {
    /// There is no such library, or the file is not one.
    #[error("{name}: {why}")]
    NoLibrary {
        /// The file.
        name: String,
        /// The system's error.
        why: String,
    },
    /// The launcher has ended the connection.
    #[error("the launcher went away")]
    Gone,
    /// No answer in time. One that comes later is thrown away.
    #[error("no answer within the time limit")]
    Silent,
    /// Processes have ended that were waited for; PMIx does not say which.
    #[error("processes have ended")]
    Ended,
    /// A call failed, or its answer is invalid.
    #[error("{0}")]
    Said(String),
}

/// The answer to one question, and the arguments that the library reads until then.
struct Pending<T> {
    answer: Mutex<Option<T>>,
    came: Condvar,
    of: Proc,
    key: CString,
    info: [Info; 2],
}

// SAFETY: the only pointers in it are those of `info`'s values, which are numbers here.
unsafe impl<T: Send> Send for Pending<T> {}
// SAFETY: the parts outside the lock are never changed.
unsafe impl<T: Send> Sync for Pending<T> {}

impl<T> Pending<T> {
    fn new(of: Proc, key: &CStr, info: [Info; 2]) -> Arc<Self> {
        let (answer, came) = (Mutex::new(None), Condvar::new());
        Arc::new(Self { answer, came, of, key: key.into(), info })
    }

    fn answer(&self, answer: T) {
        *self.answer.lock().unwrap_or_else(PoisonError::into_inner) = Some(answer);
        self.came.notify_all();
    }

    /// The answer, once; `None`: not within `limit`.
    fn wait(&self, limit: Duration) -> Option<T> {
        let guard = self.answer.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.came.wait_timeout_while(guard, limit, |answer| answer.is_none());
        waited.unwrap_or_else(PoisonError::into_inner).0.take()
    }
}

/// A copy of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Got {
    Bytes(Vec<u8>),
    Number(u32),
    /// Of another type, with that type's number.
    Other(u16),
    /// The value has so many bytes, more than the limit.
    TooLong(usize),
    Failed(c_int),
}

/// The launcher's server, through the library.
pub struct Pmix {
    calls: PmixCalls,
    own: Proc,
    /// A fence that was begun.
    fence: Option<Arc<Pending<c_int>>>,
    value_bytes_max: usize,
}

impl core::fmt::Debug for Pmix {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Pmix").field("rank", &self.own.rank).finish_non_exhaustive()
    }
}

unsafe extern "C" fn on_done(status: c_int, pending: *mut c_void) {
    // SAFETY: the pointer was made from such an `Arc` for this one call.
    let pending = unsafe { Arc::from_raw(pending.cast::<Pending<c_int>>()) };
    pending.answer(status);
}

/// The copy of a value of at most `bytes_max` bytes.
///
/// # Safety
/// `value` is null or the library's, whole, until this returns.
unsafe fn copy(status: c_int, value: *const PmixValue, bytes_max: usize) -> Got {
    if status != SUCCESS {
        return Got::Failed(status);
    }
    if value.is_null() {
        return Got::Failed(NOT_FOUND);
    }
    // SAFETY: it is the library's, by the contract of this function; the union is read by its type.
    unsafe {
        match (*value).kind {
            UINT32 => Got::Number((*value).data.number),
            BYTE_OBJECT => {
                let PmixBytes { at, length } = (*value).data.bytes;
                match length {
                    0 => Got::Bytes(Vec::new()),
                    length if length > bytes_max => Got::TooLong(length),
                    _ if at.is_null() => Got::Other(BYTE_OBJECT),
                    length => Got::Bytes(core::slice::from_raw_parts(at.cast(), length).into()),
                }
            }
            other => Got::Other(other),
        }
    }
}

/// Most bytes that are copied of any value: no name's bound is above it.
const COPIED_BYTES_MAX: usize = 64 << 10;

unsafe extern "C" fn on_value(status: c_int, value: *mut PmixValue, pending: *mut c_void) {
    // SAFETY: the pointer was made from such an `Arc` for this one call; the value is the library's
    // until it returns.
    let (pending, got) = unsafe {
        let pending = Arc::from_raw(pending.cast::<Pending<Got>>());
        (pending, copy(status, value, COPIED_BYTES_MAX))
    };
    pending.answer(got);
}

fn info(key: &CStr, value: PmixValue) -> Info {
    let mut info = Info { key: [0; KEY_BYTES], flags: 0, value };
    for (to, from) in info.key.iter_mut().zip(key.to_bytes()) {
        *to = *from as c_char;
    }
    info
}

fn yes() -> PmixValue {
    let mut data = Data { words: [0; 3] };
    data.flag = true;
    PmixValue { kind: BOOL, data }
}

fn seconds(limit: Duration) -> PmixValue {
    let mut data = Data { words: [0; 3] };
    data.integer = limit.as_secs().clamp(1, 86_400) as c_int;
    PmixValue { kind: INT, data }
}

/// Runs a call that may block for ever on a thread of its own, which is left behind if it does.
fn within<T: Send + 'static>(
    limit: Duration,
    what: impl FnOnce() -> T + Send + 'static,
) -> Result<T, PmixError> {
    let (tell, told) = mpsc::sync_channel(1);
    on_thread(move || drop(tell.send(what())))?;
    told.recv_timeout(limit).map_err(|_| PmixError::Silent)
}

fn on_thread(what: impl FnOnce() + Send + 'static) -> Result<(), PmixError> {
    let started = std::thread::Builder::new().name("hamlyn-pmix".into()).spawn(what);
    started.map(drop).map_err(|e| PmixError::Said(format!("no thread: {e}")))
}

impl PmixCalls {
    fn load(path: Option<&Path>) -> Result<Self, PmixError> {
        let file = path.unwrap_or(Path::new(NAME));
        let none = |why| PmixError::NoLibrary { name: file.display().to_string(), why };
        let failed = |e: libloading::Error| none(library::why(&e));
        // Its parts look for its names among those of the process: as global ones.
        let opened = library::open(path, NAME, dl::RTLD_NOW | dl::RTLD_GLOBAL).map_err(none)?;
        // SAFETY: these are the types of the functions in PMIx's header; the pointers stay valid,
        // since the library is never closed.
        let calls = unsafe {
            Self {
                init: *opened.get(b"PMIx_Init\0").map_err(failed)?,
                finalize: *opened.get(b"PMIx_Finalize\0").map_err(failed)?,
                put: *opened.get(b"PMIx_Put\0").map_err(failed)?,
                commit: *opened.get(b"PMIx_Commit\0").map_err(failed)?,
                fence: *opened.get(b"PMIx_Fence_nb\0").map_err(failed)?,
                get: *opened.get(b"PMIx_Get_nb\0").map_err(failed)?,
                text: *opened.get(b"PMIx_Error_string\0").map_err(failed)?,
            }
        };
        core::mem::forget(opened);
        Ok(calls)
    }

    fn error(&self, status: c_int) -> PmixError {
        if [UNREACHABLE, LOST_CONNECTION, LOST_CONNECTION_OLD].contains(&status) {
            return PmixError::Gone;
        }
        if status == TIMED_OUT {
            return PmixError::Silent;
        }
        if status == PARTIAL_SUCCESS {
            return PmixError::Ended;
        }
        // SAFETY: it returns a constant text, or null.
        let text = unsafe { (self.text)(status) };
        PmixError::Said(match text.is_null() {
            true => format!("error {status}"),
            // SAFETY: a text with a terminator.
            false => format!("{} ({status})", unsafe { CStr::from_ptr(text) }.to_string_lossy()),
        })
    }

    /// Hands over the values that were put and comes to a fence; its end is the answer of
    /// `pending`.
    fn commit_and_fence(self, pending: Arc<Pending<c_int>>) {
        // SAFETY: a function without arguments.
        let status = unsafe { (self.commit)() };
        if ![SUCCESS, DONE_ALREADY].contains(&status) {
            return pending.answer(status);
        }
        let raw = Arc::into_raw(pending.clone());
        // SAFETY: the one process (all of the namespace) and the one setting live in `pending`, and
        // the callback has a reference to it.
        let status = unsafe {
            let to = raw.cast_mut().cast();
            (self.fence)(&pending.of, 1, &pending.info[0], 1, Some(on_done), to)
        };
        if status != SUCCESS {
            // SAFETY: no callback comes after any other result; this is its reference.
            drop(unsafe { Arc::from_raw(raw) });
            pending.answer(status);
        }
    }

    fn check(&self, status: c_int) -> Result<(), PmixError> {
        if status == SUCCESS || status == DONE_ALREADY { Ok(()) } else { Err(self.error(status)) }
    }
}

impl Pmix {
    /// Opens `path`, or the library that the system finds, and connects to the server that the
    /// environment names. Values of more than `value_bytes_max` are refused.
    pub fn open(
        path: Option<&Path>,
        value_bytes_max: usize,
        limit: Duration,
    ) -> Result<Self, PmixError> {
        Self::with_calls(PmixCalls::load(path)?, value_bytes_max, limit)
    }

    fn with_calls(
        calls: PmixCalls,
        value_bytes_max: usize,
        limit: Duration,
    ) -> Result<Self, PmixError> {
        let (status, own) = within(limit, move || {
            let mut own = Proc { namespace: [0; NAMESPACE_BYTES], rank: u32::MAX };
            // SAFETY: a place for the answer, and no settings.
            let status = unsafe { (calls.init)(&mut own, core::ptr::null_mut(), 0) };
            (status, own)
        })?;
        calls.check(status)?;
        Ok(Self { calls, own, fence: None, value_bytes_max })
    }

    /// This process's number, from the launcher.
    pub fn rank(&self) -> u32 {
        self.own.rank
    }

    /// The job's name, from the launcher.
    pub fn namespace(&self) -> String {
        let bytes = self.own.namespace.iter().map(|byte| *byte as u8);
        String::from_utf8_lossy(&bytes.take_while(|byte| *byte != 0).collect::<Vec<_>>()).into()
    }

    /// The number of processes of the job, from the launcher.
    pub fn size(&self, limit: Duration) -> Result<u32, PmixError> {
        match self.ask(RANK_WILDCARD, JOB_SIZE, limit)? {
            Got::Number(size) => Ok(size),
            Got::Failed(status) => Err(self.calls.error(status)),
            got => Err(self.nonsense(&got)),
        }
    }

    fn nonsense(&self, got: &Got) -> PmixError {
        let max = self.value_bytes_max;
        PmixError::Said(match got {
            Got::Bytes(bytes) if bytes.len() <= max => format!("{} bytes", bytes.len()),
            Got::Bytes(bytes) => format!("{} bytes, and {max} are taken at most", bytes.len()),
            Got::TooLong(bytes) => format!("{bytes} bytes, and {max} are taken at most"),
            Got::Number(number) => format!("the number {number}"),
            Got::Other(kind) => format!("a value of type {kind}"),
            Got::Failed(status) => return self.calls.error(*status),
        })
    }

    /// Puts bytes, which the others get after the next fence.
    pub fn put(&mut self, key: &CStr, bytes: &[u8]) -> Result<(), PmixError> {
        let mut data = Data { words: [0; 3] };
        data.bytes = PmixBytes { at: bytes.as_ptr().cast_mut().cast(), length: bytes.len() };
        let mut value = PmixValue { kind: BYTE_OBJECT, data };
        // SAFETY: a text with a terminator and a value; the call copies both, and does not write to
        // the bytes.
        self.calls.check(unsafe { (self.calls.put)(SCOPE_GLOBAL, key.as_ptr(), &mut value) })
    }

    /// Comes to a fence, with the values that were put before, or continues the one that was begun.
    pub fn begin_fence(&mut self) -> Result<(), PmixError> {
        if self.fence.is_some() {
            return Ok(());
        }
        let pending =
            Pending::new(self.all(), c"", [info(COLLECT_DATA, yes()), info(COLLECT_DATA, yes())]);
        let (calls, begun) = (self.calls, pending.clone());
        // PMIx_Commit returns when the server has answered.
        on_thread(move || calls.commit_and_fence(begun))?;
        self.fence = Some(pending);
        Ok(())
    }

    /// Whether the fence has ended, after waiting for at most `limit`. An error ends it, too. A
    /// fence that was not begun does not end.
    pub fn end_fence(&mut self, limit: Duration) -> Result<bool, PmixError> {
        let Some(pending) = &self.fence else { return Ok(false) };
        let Some(status) = pending.wait(limit) else { return Ok(false) };
        self.fence = None;
        self.calls.check(status).map(|()| true)
    }

    /// A value that a process has put; `None`: it had put none before the last fence.
    pub fn get(
        &self,
        rank: u32,
        key: &CStr,
        limit: Duration,
    ) -> Result<Option<Vec<u8>>, PmixError> {
        match self.ask(rank, key, limit)? {
            Got::Bytes(bytes) if bytes.len() <= self.value_bytes_max => Ok(Some(bytes)),
            Got::Failed(NOT_FOUND) => Ok(None),
            got => Err(self.nonsense(&got)),
        }
    }

    fn ask(&self, rank: u32, key: &CStr, limit: Duration) -> Result<Got, PmixError> {
        let of = Proc { rank, ..self.own.clone() };
        // At once, whether it is there or not; and within a limit in any case.
        let pending =
            Pending::new(of, key, [info(IMMEDIATE, yes()), info(TIMEOUT, seconds(limit))]);
        let raw = Arc::into_raw(pending.clone());
        // SAFETY: the process, the key and the two settings live in `pending`, and the callback has
        // a reference to it.
        let status = unsafe {
            let (at, to) = (pending.info.as_ptr(), raw.cast_mut().cast());
            (self.calls.get)(&pending.of, pending.key.as_ptr(), at, 2, Some(on_value), to)
        };
        if status != SUCCESS {
            // SAFETY: no callback comes after any other result; this is its reference.
            drop(unsafe { Arc::from_raw(raw) });
            return Ok(Got::Failed(status));
        }
        pending.wait(limit).ok_or(PmixError::Silent)
    }

    fn all(&self) -> Proc {
        Proc { rank: RANK_WILDCARD, ..self.own.clone() }
    }

    /// Ends the connection. If the server has gone, nothing is sent.
    pub fn finish(&mut self, limit: Duration) {
        let finalize = self.calls.finalize;
        // SAFETY: no settings; `open` has initialized the library once.
        let _ = within(limit, move || unsafe { finalize(core::ptr::null(), 0) });
    }
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use super::*;
    use core::mem::{align_of, offset_of, size_of};
    use core::sync::atomic::{AtomicBool, Ordering};
    use static_assertions::{assert_impl_all, assert_not_impl_any};
    use std::process::{Command, Stdio};

    assert_impl_all!(Pending<u8>: Send, Sync);
    assert_impl_all!(Pmix: Send, Sync);
    // An answer that belongs to one thread stays there.
    assert_not_impl_any!(Pending<std::rc::Rc<u8>>: Send, Sync);

    const MAX: usize = 100;
    const SHORT: Duration = Duration::from_millis(5);
    const LONG: Duration = Duration::from_secs(60);

    fn value(kind: u16, words: [u64; 3]) -> PmixValue {
        PmixValue { kind, data: Data { words } }
    }

    unsafe extern "C" fn init(own: *mut Proc, _: *mut Info, _: usize) -> c_int {
        // SAFETY: the caller's place.
        let own = unsafe { &mut *own };
        // Without a terminator: every byte is a letter.
        own.namespace = [b'j' as c_char; NAMESPACE_BYTES];
        own.rank = 2;
        SUCCESS
    }

    unsafe extern "C" fn init_never(_: *mut Proc, _: *mut Info, _: usize) -> c_int {
        std::thread::sleep(LONG);
        SUCCESS
    }

    unsafe extern "C" fn init_refused(_: *mut Proc, _: *mut Info, _: usize) -> c_int {
        UNREACHABLE
    }

    unsafe extern "C" fn finalize_never(_: *const Info, _: usize) -> c_int {
        std::thread::sleep(LONG);
        SUCCESS
    }

    unsafe extern "C" fn put(scope: u8, key: *const c_char, value: *mut PmixValue) -> c_int {
        // SAFETY: the caller's text and value.
        let (key, value) = unsafe { (CStr::from_ptr(key), &*value) };
        // SAFETY: it is bytes, by its type.
        let bytes = unsafe { value.data.bytes };
        let is = scope == SCOPE_GLOBAL && value.kind == BYTE_OBJECT && bytes.length == 3;
        if is && key == c"a" { SUCCESS } else { -1 }
    }

    unsafe extern "C" fn commit() -> c_int {
        SUCCESS
    }

    /// Whether a slow commit has returned.
    static HAS_COMMITTED: AtomicBool = AtomicBool::new(false);

    unsafe extern "C" fn commit_never() -> c_int {
        std::thread::sleep(LONG);
        HAS_COMMITTED.store(true, Ordering::Relaxed);
        SUCCESS
    }

    unsafe extern "C" fn commit_refused() -> c_int {
        LOST_CONNECTION
    }

    unsafe extern "C" fn text(status: c_int) -> *const c_char {
        if status == -1 { c"PMIX_ERROR".as_ptr() } else { core::ptr::null() }
    }

    type Fence = unsafe extern "C" fn(
        *const Proc,
        usize,
        *const Info,
        usize,
        Option<OnDone>,
        *mut c_void,
    ) -> c_int;

    /// A fence that returns this, and whose callback gets that.
    macro_rules! fence {
        ($returns:expr, $told:expr) => {{
            unsafe extern "C" fn fence(
                of: *const Proc,
                count: usize,
                info: *const Info,
                infos: usize,
                done: Option<OnDone>,
                to: *mut c_void,
            ) -> c_int {
                let told: Option<c_int> = $told;
                // SAFETY: the caller's arguments.
                unsafe {
                    assert!((*of).rank == RANK_WILDCARD && count == 1 && infos == 1);
                    assert_eq!(CStr::from_ptr((*info).key.as_ptr()), COLLECT_DATA);
                    assert!((*info).value.kind == BOOL && (*info).value.data.flag);
                    if let Some(told) = told {
                        done.unwrap()(told, to);
                    }
                }
                $returns
            }
            fence
        }};
    }

    /// The answer depends on the key.
    unsafe extern "C" fn get(
        of: *const Proc,
        key: *const c_char,
        info: *const Info,
        infos: usize,
        on_value: Option<OnValue>,
        to: *mut c_void,
    ) -> c_int {
        // SAFETY: the caller's arguments, which stay until the callback.
        let (key, of, info) = unsafe {
            assert_eq!(infos, 2);
            (CStr::from_ptr(key), &*of, core::slice::from_raw_parts(info, 2))
        };
        let on_value = on_value.unwrap();
        let three = [1_u8, 2, 3];
        let at = three.as_ptr() as u64;
        let (status, mut answer) = match key.to_bytes() {
            b"bytes" => (SUCCESS, value(BYTE_OBJECT, [at, 3, 0])),
            b"empty" => (SUCCESS, value(BYTE_OBJECT, [0, 0, 0])),
            b"nowhere" => (SUCCESS, value(BYTE_OBJECT, [0, 4, 0])),
            // A reader of the bytes would crash.
            b"long" => (SUCCESS, value(BYTE_OBJECT, [8, u64::MAX >> 1, 0])),
            b"longer" => (SUCCESS, value(BYTE_OBJECT, [at, COPIED_BYTES_MAX as u64 + 1, 0])),
            b"text" => (SUCCESS, value(3, [at, 0, 0])),
            b"pmix.job.size" if of.rank == RANK_WILDCARD => (SUCCESS, value(UINT32, [4, 0, 0])),
            b"none" => (NOT_FOUND, value(0, [0; 3])),
            b"lost" => (LOST_CONNECTION, value(0, [0; 3])),
            b"refused" => return -1,
            b"silent" => return SUCCESS,
            b"late" => {
                let to = to as usize;
                // The arguments of the question still exist when it is answered at last.
                let info = info.as_ptr() as usize;
                std::thread::spawn(move || {
                    std::thread::sleep(10 * SHORT);
                    // SAFETY: as above.
                    unsafe {
                        let info = info as *const Info;
                        assert_eq!(CStr::from_ptr((*info).key.as_ptr()), IMMEDIATE);
                        let mut value = value(UINT32, [1, 0, 0]);
                        on_value(SUCCESS, &mut value, to as *mut c_void);
                    }
                });
                return SUCCESS;
            }
            _ => {
                // SAFETY: as above.
                unsafe { on_value(SUCCESS, core::ptr::null_mut(), to) };
                return SUCCESS;
            }
        };
        // SAFETY: as above.
        unsafe { on_value(status, &mut answer, to) };
        SUCCESS
    }

    fn calls(fence: Fence) -> PmixCalls {
        PmixCalls { init, finalize: finalize_never, put, commit, fence, get, text }
    }

    fn pmix(fence: Fence) -> Pmix {
        Pmix::with_calls(calls(fence), MAX, LONG).unwrap()
    }

    #[test]
    fn what_is_got_is_copied_or_refused() {
        let pmix = pmix(fence!(SUCCESS, Some(SUCCESS)));
        let get = |key: &CStr| pmix.get(1, key, LONG);
        assert_eq!((pmix.rank(), pmix.namespace().len()), (2, NAMESPACE_BYTES));
        assert_eq!(pmix.size(LONG), Ok(4));
        assert_eq!(get(c"bytes"), Ok(Some([1, 2, 3].into())));
        assert_eq!(get(c"empty"), Ok(Some([].into())));
        assert_eq!(get(c"none"), Ok(None));
        // Success without a value.
        assert_eq!(get(c"nothing at all"), Ok(None));
        assert_eq!(get(c"lost"), Err(PmixError::Gone));
        for (key, says) in [
            (c"nowhere", "type 27"),
            (c"long", "taken at most"),
            (c"longer", "65537 bytes, and 100"),
            (c"text", "type 3"),
            (c"pmix.job.size", ""),
            (c"refused", "PMIX_ERROR (-1)"),
        ] {
            match get(key) {
                Err(PmixError::Said(text)) => assert!(text.contains(says), "{key:?}: {text}"),
                // For a single process that value does not exist.
                Ok(None) if key == c"pmix.job.size" => {}
                other => panic!("{key:?}: {other:?}"),
            }
        }
        let longest = Pmix { value_bytes_max: 2, ..pmix };
        let error = longest.get(1, c"bytes", LONG).unwrap_err().to_string();
        assert!(error.contains("3 bytes, and 2 are taken"), "{error}");
    }

    #[test]
    fn nothing_is_waited_for_without_an_end() {
        let mut pmix = pmix(fence!(SUCCESS, None));
        assert_eq!(pmix.get(1, c"silent", SHORT), Err(PmixError::Silent));
        assert_eq!(pmix.get(1, c"late", SHORT), Err(PmixError::Silent));
        pmix.begin_fence().unwrap();
        assert_eq!(pmix.end_fence(SHORT), Ok(false));
        pmix.finish(SHORT);
        let of = |init| PmixCalls { init, ..pmix.calls };
        let error = Pmix::with_calls(of(init_never), MAX, SHORT).unwrap_err();
        assert_eq!(error, PmixError::Silent);
        let error = Pmix::with_calls(of(init_refused), MAX, LONG).unwrap_err();
        assert_eq!(error, PmixError::Gone);
        // Until the late answer has come, and found its destination.
        std::thread::sleep(20 * SHORT);
    }

    #[test]
    fn a_launcher_that_does_not_take_what_was_put_ends_no_fence() {
        let of = |commit| {
            let calls = PmixCalls { commit, ..calls(fence!(SUCCESS, Some(SUCCESS))) };
            Pmix::with_calls(calls, MAX, LONG).unwrap()
        };
        let mut silent = of(commit_never);
        assert_eq!(silent.end_fence(SHORT), Ok(false), "none is begun");
        for _ in 0..3 {
            // The same one.
            silent.begin_fence().unwrap();
            assert_eq!(silent.end_fence(SHORT), Ok(false));
        }
        assert!(!HAS_COMMITTED.load(Ordering::Relaxed), "it was waited for");
        let mut gone = of(commit_refused);
        gone.begin_fence().unwrap();
        assert_eq!(gone.end_fence(LONG), Err(PmixError::Gone));
    }

    #[test]
    fn a_fence_ends_as_the_launcher_says() {
        let ends = |fence: Fence| {
            let mut pmix = pmix(fence);
            pmix.put(c"a", &[1, 2, 3]).unwrap();
            assert!(pmix.put(c"b", &[1, 2, 3]).is_err());
            pmix.begin_fence()?;
            // The same one.
            pmix.begin_fence()?;
            pmix.end_fence(LONG)
        };
        assert_eq!(ends(fence!(SUCCESS, Some(SUCCESS))), Ok(true));
        assert_eq!(ends(fence!(DONE_ALREADY, None)), Ok(true));
        assert_eq!(ends(fence!(SUCCESS, Some(LOST_CONNECTION))), Err(PmixError::Gone));
        assert_eq!(ends(fence!(SUCCESS, Some(TIMED_OUT))), Err(PmixError::Silent));
        assert_eq!(ends(fence!(SUCCESS, Some(PARTIAL_SUCCESS))), Err(PmixError::Ended));
        let said = |text: &str| Err(PmixError::Said(text.into()));
        assert_eq!(ends(fence!(SUCCESS, Some(-1))), said("PMIX_ERROR (-1)"));
        assert_eq!(ends(fence!(-3, None)), said("error -3"));
    }

    #[test]
    fn the_declarations_are_those_of_the_installed_header() {
        let flags = Command::new("pkg-config").args(["--cflags", "pmix"]).output();
        let Some(flags) = flags.ok().filter(|flags| flags.status.success()) else {
            std::eprintln!("SKIPPED: there is no header of PMIx (libpmix-dev)");
            return;
        };
        let rows = [
            ("sizeof(pmix_proc_t)", size_of::<Proc>()),
            ("offsetof(pmix_proc_t, rank)", offset_of!(Proc, rank)),
            ("sizeof(pmix_byte_object_t)", size_of::<PmixBytes>()),
            ("offsetof(pmix_byte_object_t, size)", offset_of!(PmixBytes, length)),
            ("sizeof(pmix_value_t)", size_of::<PmixValue>()),
            ("_Alignof(pmix_value_t)", align_of::<PmixValue>()),
            ("offsetof(pmix_value_t, data)", offset_of!(PmixValue, data)),
            ("sizeof(pmix_info_t)", size_of::<Info>()),
            ("offsetof(pmix_info_t, flags)", offset_of!(Info, flags)),
            ("offsetof(pmix_info_t, value)", offset_of!(Info, value)),
            ("sizeof(pmix_data_type_t)", size_of::<u16>()),
            ("sizeof(pmix_scope_t)", size_of::<u8>()),
            ("sizeof(pmix_status_t)", size_of::<c_int>()),
            ("PMIX_RANK_WILDCARD", RANK_WILDCARD as usize),
            ("PMIX_GLOBAL", SCOPE_GLOBAL.into()),
            ("PMIX_BOOL", BOOL.into()),
            ("PMIX_INT", INT.into()),
            ("PMIX_UINT32", UINT32.into()),
            ("PMIX_BYTE_OBJECT", BYTE_OBJECT.into()),
            ("-(PMIX_SUCCESS)", SUCCESS as usize),
            ("-(PMIX_ERR_TIMEOUT)", -TIMED_OUT as usize),
            ("-(PMIX_ERR_UNREACH)", -UNREACHABLE as usize),
            ("-(PMIX_ERR_NOT_FOUND)", -NOT_FOUND as usize),
            ("-(PMIX_ERR_PARTIAL_SUCCESS)", -PARTIAL_SUCCESS as usize),
            ("-(PMIX_ERR_LOST_CONNECTION)", -LOST_CONNECTION as usize),
            ("-(PMIX_OPERATION_SUCCEEDED)", -DONE_ALREADY as usize),
        ];
        let mut source =
            String::from("#include <stddef.h>\n#include <string.h>\n#include <pmix.h>\n");
        for (what, is) in rows {
            source += &format!("_Static_assert(({what}) == {is}, \"{what}\");\n");
        }
        // And the functions, each assigned to a pointer of its type.
        source += "pmix_status_t (*i)(pmix_proc_t *, pmix_info_t *, size_t) = PMIx_Init;\n\
            pmix_status_t (*z)(const pmix_info_t *, size_t) = PMIx_Finalize;\n\
            pmix_status_t (*p)(pmix_scope_t, const char *, pmix_value_t *) = PMIx_Put;\n\
            pmix_status_t (*c)(void) = PMIx_Commit;\n\
            pmix_status_t (*f)(const pmix_proc_t *, size_t, const pmix_info_t *, size_t,\n\
              void (*)(pmix_status_t, void *), void *) = PMIx_Fence_nb;\n\
            pmix_status_t (*g)(const pmix_proc_t *, const char *, const pmix_info_t *, size_t,\n\
              void (*)(pmix_status_t, pmix_value_t *, void *), void *) = PMIx_Get_nb;\n\
            const char *(*t)(pmix_status_t) = PMIx_Error_string;\n";
        let keys = [(JOB_SIZE, "JOB_SIZE"), (COLLECT_DATA, "COLLECT_DATA")];
        for (text, name) in keys.into_iter().chain([(IMMEDIATE, "IMMEDIATE"), (TIMEOUT, "TIMEOUT")])
        {
            // As an array's length, since a text is no constant otherwise.
            let text = text.to_str().unwrap();
            source += &format!(
                "_Static_assert(sizeof(PMIX_{name}) == {} && \
                 __builtin_strcmp(PMIX_{name}, \"{text}\") == 0, \"{name}\");\n",
                text.len() + 1
            );
        }
        let mut compiler = Command::new("cc");
        compiler.args(["-std=gnu11", "-Werror", "-fsyntax-only", "-xc", "-"]);
        compiler.args(String::from_utf8(flags.stdout).unwrap().split_whitespace());
        let mut child =
            compiler.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("a compiler");
        std::io::Write::write_all(&mut child.stdin.take().unwrap(), source.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}
