//! Shared virtual memory for C: `include/svm.h`, whose comments are the contract.
//!
//! One space a process, which belongs to the thread that joined; each call goes through `call`, which keeps
//! its error. `unsafe`: the program's pointers are what the header demands.
//!
//! Never: a panic goes to the caller's frames.
#![allow(missing_docs)]

use crate::{Combining, Error, Figures, Homes, Options, Protocol, Svm};
use core::ffi::{CStr, c_char, c_int, c_void};
use core::mem::ManuallyDrop;
use core::panic::AssertUnwindSafe;
use std::cell::RefCell;
use std::ffi::CString;
use std::time::Duration;

#[repr(C)]
pub struct COptions {
    cache_bytes: u64,
    base: *mut c_void,
    name: *const c_char,
    rank: c_int,
    size: c_int,
    combines: c_int,
    limit: c_int,
}

type OnDeath = unsafe extern "C" fn(c_int, *mut c_void);

thread_local! {
    /// The space, in the thread that joined. Not dropped at the thread's end: a process that exits without
    /// leaving ends at once.
    static SPACE: RefCell<ManuallyDrop<Option<Svm>>> =
        const { RefCell::new(ManuallyDrop::new(None)) };
    static ERROR: RefCell<ManuallyDrop<CString>> = RefCell::default();
}

fn keep(code: c_int, text: String) -> c_int {
    let text = CString::new(text.replace('\0', "")).unwrap_or_default();
    ERROR.with(|error| **error.borrow_mut() = text);
    code
}

/// The one place where errors and panics end.
fn call(act: impl FnOnce() -> Result<c_int, Error>) -> c_int {
    let error = match std::panic::catch_unwind(AssertUnwindSafe(act)) {
        Ok(Ok(result)) => return result,
        Ok(Err(error)) => error,
        Err(_) => return keep(-5, "a fault of the library: see standard error".into()),
    };
    let code = match error {
        Error::Died(_) => -1,
        Error::Misuse(_) => -2,
        Error::Refused(_) => -3,
        Error::Full(_) => -4,
    };
    keep(code, error.to_string())
}

/// With the space of this thread.
fn with<R>(act: impl FnOnce(&Svm) -> Result<R, Error>) -> Result<R, Error> {
    SPACE.with(|space| match &**space.borrow() {
        Some(space) => act(space),
        None => Err(Error::Misuse("this thread has not joined, or has left".into())),
    })
}

fn done((): ()) -> c_int {
    0
}

fn owner(dead: Option<usize>) -> c_int {
    match dead {
        None => 0,
        Some(process) => keep(1, format!("process {process} died while it held the lock")),
    }
}

/// A number that the program gave as an int.
fn number(of: c_int) -> Result<u32, Error> {
    u32::try_from(of).map_err(|_| Error::Misuse(format!("number {of}: 0 is the least")))
}

fn homes(home: c_int) -> Result<Homes, Error> {
    match home {
        -1 => Ok(Homes::FirstTouch),
        -2 => Ok(Homes::Blocks),
        -3 => Ok(Homes::Cyclic),
        rank => Ok(Homes::Rank(number(rank)? as usize)),
    }
}

unsafe fn options(
    bytes: u64,
    protocol: c_int,
    said: *const COptions,
    said_bytes: usize,
) -> Result<Options, Error> {
    let mut options = Options::new(bytes);
    options.protocol = match protocol {
        0 => Protocol::Hlrc,
        1 => Protocol::HlrcAu,
        2 => Protocol::Aurc,
        _ => return Err(Error::Misuse("protocol: SVM_HLRC, SVM_HLRC_AU or SVM_AURC".into())),
    };
    if said_bytes != size_of::<COptions>() {
        return Err(Error::Misuse("the program was compiled with another svm.h".into()));
    }
    // SAFETY: null, or what the header demands.
    let Some(said) = (unsafe { said.as_ref() }) else { return Ok(options) };
    options.cache_bytes = said.cache_bytes;
    if !said.base.is_null() {
        options.base = said.base as usize;
    }
    if !said.name.is_null() {
        // SAFETY: a string, by the header.
        let name = unsafe { CStr::from_ptr(said.name) }.to_str();
        let name = name.map_err(|_| Error::Misuse("a name that is not UTF-8".into()))?;
        let (rank, size) = (number(said.rank)?, number(said.size)?);
        options.meeting = Some((name.into(), rank as usize, size as usize));
    }
    if said.combines < 0 {
        options.combining = Combining { sub_page: 0, timer: None };
    }
    if said.limit > 0 {
        options.limit = Some(Duration::from_millis(said.limit as u64));
    }
    Ok(options)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn svm_join_as(
    rank: *mut c_int,
    size: *mut c_int,
    bytes: u64,
    protocol: c_int,
    said: *const COptions,
    said_bytes: usize,
) -> c_int {
    call(|| {
        if rank.is_null() || size.is_null() {
            return Err(Error::Misuse("a null pointer".into()));
        }
        // SAFETY: the header's contract.
        let options = unsafe { options(bytes, protocol, said, said_bytes) }?;
        let space = Svm::join(&options)?;
        // SAFETY: not null, and the caller's.
        unsafe {
            rank.write(space.rank() as c_int);
            size.write(space.size() as c_int);
        }
        SPACE.with(|place| **place.borrow_mut() = Some(space));
        Ok(0)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn svm_leave() -> c_int {
    call(|| {
        // Below a call-back of a death the space stays.
        with(|space| space.enter(|_| Ok(())))?;
        let space = SPACE.with(|space| space.borrow_mut().take());
        space.map_or(Ok(()), Svm::leave).map(done)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn svm_error_text() -> *const c_char {
    ERROR.with(|error| error.borrow().as_ptr())
}

fn block(allocate: impl FnOnce(&Svm) -> Result<*mut u8, Error>) -> *mut c_void {
    let mut block = core::ptr::null_mut();
    call(|| {
        block = with(allocate)?;
        Ok(0)
    });
    block.cast()
}

#[unsafe(no_mangle)]
pub extern "C" fn svm_malloc(bytes: usize, align: usize, home: c_int) -> *mut c_void {
    block(|space| space.malloc(bytes, align, homes(home)?))
}

#[unsafe(no_mangle)]
pub extern "C" fn svm_malloc_all(bytes: usize, align: usize, home: c_int) -> *mut c_void {
    block(|space| space.malloc_all(bytes, align, homes(home)?))
}

/// Functions whose result is an int, with the space of this thread.
macro_rules! calls {
    (|$space:ident| $($name:ident($($at:ident: $type:ty),*) $result:expr;)*) => {$(
        #[unsafe(no_mangle)]
        pub extern "C" fn $name($($at: $type),*) -> c_int {
            call(|| with(|$space| Ok($result)))
        }
    )*};
}

calls! { |space|
    svm_lock(lock: c_int) owner(space.lock(number(lock)?)?);
    svm_unlock(lock: c_int) done(space.unlock(number(lock)?)?);
    svm_barrier(barrier: c_int) done(space.barrier(number(barrier)?, space.size())?);
    svm_barrier_of(barrier: c_int, count: c_int) done(space.barrier(number(barrier)?, number(count)? as usize)?);
    svm_flag_set(flag: c_int, value: u64) done(space.set_flag(number(flag)?, value)?);
    svm_flag_wait(flag: c_int, value: u64) done(space.wait_flag(number(flag)?, value)?);
    svm_wait(condition: c_int, lock: c_int) owner(space.wait(number(condition)?, number(lock)?)?);
    svm_signal(condition: c_int, lock: c_int) done(space.signal(number(condition)?, number(lock)?, false)?);
    svm_broadcast(condition: c_int, lock: c_int) done(space.signal(number(condition)?, number(lock)?, true)?);
    svm_touch(start: *const c_void, bytes: usize) done(space.touch(start.cast(), bytes)?);
}

#[unsafe(no_mangle)]
pub extern "C" fn svm_wrote(start: *const c_void, bytes: usize) {
    // A program without a space, or a wrong address: the words say so.
    if let Err(error) = with(|space| space.wrote(start.cast(), bytes)) {
        keep(-2, error.to_string());
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn svm_on_death(told: Option<OnDeath>, data: *mut c_void) -> c_int {
    let told = told.map(|told| {
        // SAFETY: the header's contract: the function can be called, with its data.
        Box::new(move |process: usize| unsafe { told(process as c_int, data) })
            as Box<dyn FnMut(usize)>
    });
    call(|| with(|space| space.on_death(told)).map(done))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn svm_stat(figures: *mut Figures) -> c_int {
    call(|| {
        let now = with(|space| Ok(space.figures()))?;
        // SAFETY: the header's contract.
        match unsafe { figures.as_mut() } {
            Some(figures) => *figures = now,
            None => return Err(Error::Misuse("a null pointer".into())),
        }
        Ok(0)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn svm_explain(to: *mut c_char, size: usize) -> c_int {
    call(|| {
        let text = with(|space| Ok(space.explain()))?;
        let length = text.len().min(size.saturating_sub(1));
        if !to.is_null() && size > 0 {
            // SAFETY: the header's contract: so many bytes.
            unsafe {
                core::ptr::copy_nonoverlapping(text.as_ptr(), to.cast(), length);
                to.add(length).write(0);
            }
        }
        Ok(0)
    })
}
