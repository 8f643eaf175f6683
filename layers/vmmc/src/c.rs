//! VMMC for C: `include/vmmc.h`, whose comments are the contract.
//!
//! Objects are boxes that the program frees. Each call goes through `call`, which keeps its error for the
//! thread. `unsafe`: the program's pointers are what the header demands.
//!
//! Never: a panic goes to the caller's frames.
#![expect(clippy::unit_arg, reason = "calls that have no result")]
#![allow(missing_docs, clippy::too_many_arguments)]

use crate::{Bound, Buffer, Combining, Config, Error, Exporting, Mirror, Notification, Proxy};
use crate::{Rights, Tracking, Users, Vmmc};
use core::ffi::{CStr, c_char, c_int, c_void};
use core::mem::ManuallyDrop;
use core::panic::AssertUnwindSafe;
use hamlyn::job::{Job, JobError};
use hamlyn::{Access, NodeId};
use hamlyn_clan::{Completion, Request, RequestQueue};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::ffi::CString;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The name under which a rank's name is put.
const RANK: &str = "vmmc";
/// Asynchronous sends of one proxy.
const SENDS: u32 = 64;

pub struct CVmmc(Vmmc, Option<Job>);
pub struct CBuffer(Buffer, usize);
pub struct CProxy(Proxy, Mutex<Sends>);
pub struct CBound(Engine);

enum Engine {
    Store(Bound),
    Tracked(Mirror),
}

/// Sends that go on by themselves; they complete in their order.
#[derive(Default)]
struct Sends {
    queue: Option<RequestQueue>,
    done: u64,
    failed: VecDeque<(u64, Error)>,
}

#[repr(C)]
pub struct CNotification {
    buffer: [c_char; 128],
    word: u32,
}

#[repr(C)]
pub struct CPermissions {
    users: c_int,
    rights: c_int,
    list: *const u32,
    count: usize,
    notifications: u32,
}

#[repr(C)]
pub struct CBinding {
    engine: c_int,
    memory: *mut c_void,
    combines: c_int,
    sub_page: u32,
    timer_us: u32,
    notifies: c_int,
    word: u32,
    ms: c_int,
}

type Look = unsafe extern "C" fn(*mut c_void) -> c_int;
type Handler = unsafe extern "C" fn(*const CNotification, *mut c_void);

thread_local! {
    /// Not dropped at the thread's end: functions of `atexit` call, too.
    static ERROR: RefCell<ManuallyDrop<(c_int, CString)>> = RefCell::default();
}

/// A call's result where it failed.
trait Failed {
    fn failed(code: c_int) -> Self;
}

impl Failed for c_int {
    fn failed(code: c_int) -> Self {
        code
    }
}

impl Failed for i64 {
    fn failed(code: c_int) -> Self {
        code.into()
    }
}

impl Failed for u64 {
    fn failed(_: c_int) -> Self {
        0
    }
}

impl<T> Failed for *mut T {
    fn failed(_: c_int) -> Self {
        core::ptr::null_mut()
    }
}

#[cold]
fn keep(code: c_int, text: String) -> c_int {
    let text = CString::new(text.replace('\0', "")).unwrap_or_default();
    ERROR.with(|error| **error.borrow_mut() = (code, text));
    code
}

/// The one place where errors and panics end.
#[inline]
fn call<R: Failed>(act: impl FnOnce() -> Result<R, Error>) -> R {
    let error = match std::panic::catch_unwind(AssertUnwindSafe(act)) {
        Ok(Ok(result)) => return result,
        Ok(Err(error)) => error,
        Err(_) => return R::failed(keep(-7, "a fault of the library: see standard error".into())),
    };
    let code = match error {
        Error::Full(_) => -1,
        Error::Revoked => -2,
        Error::Closed(_) => -3,
        Error::Misuse(_) => -4,
        Error::Refused(_) => -5,
        Error::TimedOut => -6,
        _ => -7,
    };
    R::failed(keep(code, error.to_string()))
}

/// Functions of the header; in their bodies `unsafe` stands for its contract.
macro_rules! calls {
    ($(fn $name:ident($($argument:ident: $type:ty),*) -> $result:ty $body:block)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> $result {
            #[allow(unused_unsafe)]
            // SAFETY: the header's contract; null is found by `of`, `text` and `values`.
            call(|| unsafe { $body })
        }
    )*};
}

fn made<T>(object: T) -> Result<*mut T, Error> {
    Ok(Box::into_raw(Box::new(object)))
}

fn done((): ()) -> Result<c_int, Error> {
    Ok(0)
}

fn misuse<T>(text: &str) -> Result<T, Error> {
    Err(Error::Misuse(text.into()))
}

fn refused(e: impl core::fmt::Display) -> Error {
    Error::Refused(e.to_string())
}

#[inline]
fn limit(ms: c_int) -> Option<Duration> {
    u64::try_from(ms).ok().map(Duration::from_millis)
}

/// An object of the program's: not freed, or null.
#[inline]
unsafe fn of<'a, T>(object: *const T) -> Result<&'a T, Error> {
    // SAFETY: by this function's contract.
    unsafe { object.as_ref() }.ok_or_else(|| Error::Misuse("a null pointer".into()))
}

/// One that nobody else uses now.
#[inline]
unsafe fn of_mut<'a, T>(object: *mut T) -> Result<&'a mut T, Error> {
    // SAFETY: by this function's contract.
    unsafe { object.as_mut() }.ok_or_else(|| Error::Misuse("a null pointer".into()))
}

/// Frees what `made` has made, once; null is allowed.
unsafe fn free<T>(object: *mut T) -> Result<c_int, Error> {
    if !object.is_null() {
        // SAFETY: by this function's contract.
        drop(unsafe { Box::from_raw(object) });
    }
    Ok(0)
}

/// A string that ends with 0, or null.
unsafe fn text<'a>(text: *const c_char) -> Result<&'a str, Error> {
    if text.is_null() {
        return misuse("a null string");
    }
    // SAFETY: by this function's contract.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map_err(|_| Error::Misuse("a name that is not UTF-8".into()))
}

/// `count` values at `start`, or none.
#[inline]
unsafe fn values<'a, T>(start: *const T, count: usize) -> Result<&'a [T], Error> {
    match (start.is_null(), count) {
        (_, 0) => Ok(&[]),
        (true, _) => misuse("a null pointer"),
        // SAFETY: by this function's contract.
        (false, _) => Ok(unsafe { core::slice::from_raw_parts(start, count) }),
    }
}

/// Copies a text to `size` bytes, cut, with its 0.
unsafe fn put_text(text: &str, to: *mut c_char, size: usize) -> Result<c_int, Error> {
    let length = text.len().min(size.saturating_sub(1));
    if !to.is_null() && size > 0 {
        // SAFETY: by this function's contract.
        unsafe {
            core::ptr::copy_nonoverlapping(text.as_ptr(), to.cast(), length);
            to.add(length).write(0);
        }
    }
    Ok(0)
}

fn notification(from: &Notification) -> CNotification {
    let mut to = CNotification { buffer: [0; 128], word: from.word };
    let bytes = from.buffer.bytes().take(127);
    to.buffer.iter_mut().zip(bytes).for_each(|(to, byte)| *to = byte as c_char);
    to
}

fn exporting(said: &CPermissions) -> Result<Exporting, Error> {
    let users = match said.users {
        0 => Users::Same,
        1 => Users::All,
        // SAFETY: so many are there, by the header.
        2 => Users::These(unsafe { values(said.list, said.count) }?.to_vec()),
        _ => return misuse("users: VMMC_SAME, VMMC_ALL or VMMC_LIST"),
    };
    let rights = match said.rights {
        0 => Rights::ReadWrite,
        1 => Rights::Read,
        2 => Rights::Write,
        _ => return misuse("rights: VMMC_READ_WRITE, VMMC_READ or VMMC_WRITE"),
    };
    Ok(Exporting { users, rights, notifications: said.notifications })
}

fn proxy(proxy: Proxy) -> Result<*mut CProxy, Error> {
    made(CProxy(proxy, Mutex::default()))
}

fn job(vmmc: &CVmmc) -> Result<&Job, Error> {
    vmmc.1.as_ref().ok_or_else(|| Error::Misuse("a call for vmmc_join's".into()))
}

impl Sends {
    /// `None`: the send is not complete.
    fn result(&mut self, number: i64) -> Option<Result<(), Error>> {
        while let Some(done) = self.queue.as_ref().and_then(RequestQueue::take_done) {
            self.done = done.group;
            self.failed.extend(done.result.err().map(|e| (done.group, e)));
            if self.failed.len() > SENDS as usize {
                self.failed.pop_front();
            }
        }
        let failed = self.failed.iter().find(|(failed, _)| *failed as i64 == number);
        let result = failed.map_or(Ok(()), |(_, error)| Err(error.clone()));
        (number <= self.done as i64).then_some(result)
    }
}

fn sends(proxy: &CProxy) -> std::sync::MutexGuard<'_, Sends> {
    proxy.1.lock().unwrap_or_else(PoisonError::into_inner)
}

fn store(bound: &mut CBound) -> Result<&mut Bound, Error> {
    match &mut bound.0 {
        Engine::Store(bound) => Ok(bound),
        Engine::Tracked(_) => misuse("tracked memory is stored to by the program itself"),
    }
}

fn flush(bound: &mut CBound) -> Result<c_int, Error> {
    done(match &mut bound.0 {
        Engine::Store(bound) => bound.flush()?,
        Engine::Tracked(mirror) => mirror.flush()?,
    })
}

fn explain(bound: &CBound) -> String {
    match &bound.0 {
        Engine::Store(bound) => format!("store: {bound:?}"),
        Engine::Tracked(mirror) => match mirror.tracking() {
            Tracking::Kernel => "tracked: the kernel says which pages were written".into(),
            Tracking::Compare => "tracked: all pages are compared (no Linux 6.7)".into(),
        },
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn vmmc_error() -> c_int {
    ERROR.with(|error| error.borrow().0)
}

#[unsafe(no_mangle)]
pub extern "C" fn vmmc_error_text() -> *const c_char {
    ERROR.with(|error| error.borrow().1.as_ptr())
}

calls! {
    fn vmmc_open() -> *mut CVmmc {
        made(CVmmc(Vmmc::new(Config::from_env()?)?, None))
    }

    fn vmmc_join(rank: *mut c_int, size: *mut c_int, ms: c_int) -> *mut CVmmc {
        let (rank, size) = (of_mut(rank)?, of_mut(size)?);
        let job = Job::from_env().map_err(refused)?;
        let vmmc = Vmmc::at(job.manager(), Config::from_env()?)?;
        // With the node's id, which nobody can guess and take first.
        let name = format!("vmmc.{:016x}", job.manager().id().0);
        vmmc.serve(&name, Access::SameUser)?;
        job.put(RANK, name.as_bytes()).map_err(refused)?;
        job.fence(limit(ms)).map_err(refused)?;
        (*rank, *size) = (job.rank() as c_int, job.size() as c_int);
        made(CVmmc(vmmc, Some(job)))
    }

    fn vmmc_fence(vmmc: *const CVmmc, ms: c_int) -> c_int {
        let (vmmc, began) = (of(vmmc)?, Instant::now());
        let job = job(vmmc)?;
        loop {
            // Others may import meanwhile, and are answered here.
            vmmc.0.poll()?;
            match job.fence(Some(Duration::from_millis(2))) {
                Ok(()) => return Ok(0),
                Err(JobError::Missing { .. })
                    if limit(ms).is_none_or(|limit| began.elapsed() < limit) => {}
                Err(e) => return Err(refused(e)),
            }
        }
    }

    fn vmmc_close(vmmc: *mut CVmmc) -> c_int { free(vmmc) }

    fn vmmc_serve(vmmc: *const CVmmc, name: *const c_char, users: c_int) -> c_int {
        let access = match users {
            0 => Access::SameUser,
            1 => Access::Anyone,
            _ => return misuse("users: VMMC_SAME or VMMC_ALL"),
        };
        done(of(vmmc)?.0.serve(text(name)?, access)?)
    }

    fn vmmc_export(vmmc: *const CVmmc, name: *const c_char, bytes: u64, permissions: *const CPermissions)
    -> *mut CBuffer {
        let exporting = permissions.as_ref().map_or(Ok(Exporting::default()), exporting)?;
        let buffer = of(vmmc)?.0.export(text(name)?, bytes, exporting)?;
        let address = buffer.region().address().map_or(0, |address| address as usize);
        made(CBuffer(buffer, address))
    }

    fn vmmc_address(buffer: *const CBuffer) -> *mut c_void { Ok(of(buffer)?.1 as *mut c_void) }

    fn vmmc_take_notifications(buffer: *const CBuffer, takes: c_int) -> c_int {
        done(of(buffer)?.0.take_notifications(takes != 0))
    }

    fn vmmc_unexport(buffer: *mut CBuffer) -> c_int { free(buffer) }

    fn vmmc_import(vmmc: *const CVmmc, program: *const c_char, buffer: *const c_char, ms: c_int)
    -> *mut CProxy {
        proxy(of(vmmc)?.0.import(text(program)?, text(buffer)?, limit(ms))?)
    }

    fn vmmc_import_rank(vmmc: *const CVmmc, rank: c_int, buffer: *const c_char, ms: c_int)
    -> *mut CProxy {
        let name = job(of(vmmc)?)?.get(rank as u32, RANK).map_err(refused)?;
        let name = String::from_utf8(name).map_err(refused)?;
        let node = name.rsplit('.').next().and_then(|id| u64::from_str_radix(id, 16).ok()).map(NodeId);
        proxy(of(vmmc)?.0.import_of(node, &name, text(buffer)?, limit(ms))?)
    }

    fn vmmc_unimport(proxy: *mut CProxy) -> c_int { free(proxy) }

    fn vmmc_bytes(proxy: *const CProxy) -> u64 { Ok(of(proxy)?.0.bytes()) }

    fn vmmc_check(proxy: *const CProxy) -> c_int { done(of(proxy)?.0.check()?) }

    fn vmmc_send(proxy: *const CProxy, offset: u64, data: *const c_void, bytes: usize, ms: c_int) -> c_int {
        done(of(proxy)?.0.send(offset, values(data.cast(), bytes)?, limit(ms))?)
    }

    fn vmmc_send_notify(proxy: *const CProxy, offset: u64, data: *const c_void, bytes: usize,
                        word: u32, ms: c_int) -> c_int {
        done(of(proxy)?.0.send_notify(offset, values(data.cast(), bytes)?, word, limit(ms))?)
    }

    fn vmmc_get(proxy: *const CProxy, offset: u64, to: *mut c_void, bytes: usize, ms: c_int) -> c_int {
        // Checked as if they were read; they are the call's alone.
        let to = match values(to.cast::<u8>(), bytes)?.len() {
            0 => &mut [],
            bytes => core::slice::from_raw_parts_mut(to.cast::<u8>(), bytes),
        };
        done(of(proxy)?.0.get(offset, to, limit(ms))?)
    }

    fn vmmc_send_async(proxy: *const CProxy, offset: u64, buffer: *const CBuffer, at: u64, bytes: u64)
    -> i64 {
        let (proxy, from) = (of(proxy)?, of(buffer)?.0.region());
        let mut sends = sends(proxy);
        // Results that nobody asks for take no room.
        let _ = sends.result(0);
        let queue = match sends.queue.take() {
            Some(queue) => queue,
            None => proxy.0.vmmc().clan().request_queue(SENDS, 0, 64 << 10)?,
        };
        let put = Request::Put { from, offset: at, to: proxy.0.aperture(), at: offset, length: bytes };
        Ok(sends.queue.insert(queue).submit(&[put], Completion::None)? as i64)
    }

    fn vmmc_test(proxy: *const CProxy, number: i64) -> c_int {
        of(proxy)?.0.vmmc().poll()?;
        sends(of(proxy)?).result(number).map_or(Ok(0), |result| result.map(|()| 1))
    }

    fn vmmc_wait_sent(proxy: *const CProxy, number: i64, ms: c_int) -> c_int {
        let (proxy, mut result) = (of(proxy)?, None);
        let look = || {
            result = sends(proxy).result(number);
            result.is_some()
        };
        proxy.0.vmmc().wait_until(limit(ms), look)?;
        done(result.unwrap_or(Ok(()))?)
    }

    fn vmmc_poll(vmmc: *const CVmmc) -> c_int { done(of(vmmc)?.0.poll()?) }

    fn vmmc_wait(vmmc: *const CVmmc, ms: c_int) -> c_int { done(of(vmmc)?.0.wait(limit(ms))?) }

    fn vmmc_wait_until(vmmc: *const CVmmc, look: Option<Look>, data: *mut c_void, ms: c_int) -> c_int {
        let Some(look) = look else { return misuse("no function") };
        done(of(vmmc)?.0.wait_until(limit(ms), || look(data) != 0)?)
    }

    fn vmmc_take_notification(vmmc: *const CVmmc, to: *mut CNotification) -> c_int {
        let (vmmc, to) = (of(vmmc)?, of_mut(to)?);
        let taken = vmmc.0.take_notification();
        Ok(taken.map_or(0, |taken| { *to = notification(&taken); 1 }))
    }

    fn vmmc_start_thread(vmmc: *const CVmmc, handler: Option<Handler>, data: *mut c_void) -> c_int {
        let data = data as usize;
        let handler = handler.map(|handler| -> crate::vmmc::Handler {
            Box::new(move |taken| handler(&notification(&taken), data as *mut c_void))
        });
        done(of(vmmc)?.0.start(handler)?)
    }

    fn vmmc_block(vmmc: *const CVmmc) -> c_int { done(of(vmmc)?.0.block()) }

    fn vmmc_unblock(vmmc: *const CVmmc) -> c_int { done(of(vmmc)?.0.unblock()) }

    fn vmmc_bind(proxy: *const CProxy, at: u64, bytes: usize, binding: *const CBinding) -> *mut CBound {
        let (proxy, said) = (&of(proxy)?.0, of(binding)?);
        let timer = (said.timer_us > 0).then(|| Duration::from_micros(said.timer_us.into()));
        let sub_page = match (said.combines, said.sub_page) {
            (0, _) => 0,
            (_, 0) => Combining::default().sub_page,
            (_, sub_page) => sub_page,
        };
        let notifies = (said.notifies != 0).then_some(said.word);
        let combining = Combining { sub_page, timer };
        made(CBound(match said.engine {
            0 => Engine::Store(proxy.bind(at, bytes, combining, notifies, limit(said.ms))?),
            1 if said.memory.is_null() => return misuse("no memory to be tracked"),
            1 => Engine::Tracked(proxy.mirror(at, said.memory.cast(), bytes, limit(said.ms))?),
            _ => return misuse("engine: VMMC_STORE or VMMC_TRACKED"),
        }))
    }

    fn vmmc_set_limit(bound: *mut CBound, ms: c_int) -> c_int { done(store(of_mut(bound)?)?.set_limit(limit(ms))) }

    fn vmmc_bound_memory(bound: *mut CBound) -> *mut c_void {
        Ok(store(of_mut(bound)?)?.bytes().as_ptr().cast_mut().cast())
    }

    fn vmmc_st32(bound: *mut CBound, offset: usize, value: u32) -> c_int {
        done(store(of_mut(bound)?)?.store_u32(offset, value)?)
    }

    fn vmmc_st64(bound: *mut CBound, offset: usize, value: u64) -> c_int {
        done(store(of_mut(bound)?)?.store_u64(offset, value)?)
    }

    fn vmmc_au_memcpy(bound: *mut CBound, offset: usize, data: *const c_void, bytes: usize) -> c_int {
        done(store(of_mut(bound)?)?.store(offset, values(data.cast(), bytes)?)?)
    }

    fn vmmc_flush(bound: *mut CBound) -> c_int { flush(of_mut(bound)?) }

    fn vmmc_runs(bound: *const CBound) -> u64 {
        Ok(match &of(bound)?.0 {
            Engine::Store(bound) => bound.counts().1,
            Engine::Tracked(mirror) => mirror.counts().1,
        })
    }

    fn vmmc_told(bound: *mut CBound, offset: usize, data: *const c_void, bytes: usize) -> c_int {
        match &mut of_mut(bound)?.0 {
            Engine::Store(_) => misuse("vmmc_told is for tracked memory"),
            Engine::Tracked(mirror) => done(mirror.told(offset, values(data.cast(), bytes)?)),
        }
    }

    fn vmmc_unbind(bound: *mut CBound) -> c_int {
        let flushed = bound.as_mut().map_or(Ok(0), flush);
        free(bound)?;
        flushed
    }

    fn vmmc_explain(proxy: *const CProxy, to: *mut c_char, size: usize) -> c_int {
        put_text(&format!("packets, over {}", of(proxy)?.0.aperture().explain()?), to, size)
    }

    fn vmmc_explain_bound(bound: *const CBound, to: *mut c_char, size: usize) -> c_int {
        put_text(&explain(of(bound)?), to, size)
    }
}
