//! Shared by the C faces of the layers; not for programs in Rust.
//!
//! ```text
//!   x_y(..)   `calls!` puts each body into `guard`; `get` finds null pointers
//!   result    what the body returns, or what stands for an error, whose number and text the thread keeps
//! ```
//! Never: a panic goes to the caller's frames.
#![allow(missing_docs)]

use crate::Error;
use core::cell::Cell;
use core::mem::MaybeUninit;
use core::ptr::NonNull;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicU64;
use std::time::Duration;

thread_local! {
    static NUMBER: Cell<c_int> = const { Cell::new(0) };
    static TEXT: RefCell<CString> = RefCell::new(CString::default());
}

#[cold]
fn tell(number: c_int, text: &str) -> c_int {
    NUMBER.set(number);
    let text = CString::new(text.replace('\0', "?")).unwrap_or_default();
    // A thread that is ending has no text any more.
    let _ = TEXT.try_with(|at| at.replace(text));
    number
}

/// The thread's last error, or 0.
pub fn number() -> c_int {
    NUMBER.get()
}

/// Its words, until the next one.
pub fn text() -> *const c_char {
    TEXT.try_with(|text| text.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

#[cold]
pub fn number_of(error: &Error) -> c_int {
    let number = match error {
        Error::Full(_) => -1,
        Error::Revoked => -2,
        Error::Closed(_) => -3,
        Error::Misuse(_) => -4,
        Error::Refused(_) => -5,
        Error::TimedOut => -6,
    };
    tell(number, &error.to_string())
}

/// What C gets for a body's result, or for an error's number.
pub trait Answer<V> {
    fn of(result: Result<V, c_int>) -> Self;
}

macro_rules! answers {
    ($($value:ty => $type:ty: $done:expr, $failed:expr;)*) => {$(
        impl Answer<$value> for $type {
            #[inline]
            fn of(result: Result<$value, c_int>) -> Self {
                result.map_or_else($failed, $done)
            }
        }
    )*};
}

answers! {
    () => c_int: |()| 0, |number| number;
    bool => c_int: c_int::from, |number| number;
    c_int => c_int: |count| count, |number| number;
    () => (): |()| (), |_| ();
    u64 => u64: |value| value, |_| 0;
    u64 => i64: u64::cast_signed, i64::from;
    *mut u8 => *mut c_void: |address| address.cast(), |_| core::ptr::null_mut();
}

impl<T> Answer<T> for Option<Box<T>> {
    fn of(result: Result<T, c_int>) -> Self {
        result.ok().map(Box::new)
    }
}

#[inline]
pub fn guard<V, R: Answer<V>>(body: impl FnOnce() -> Result<V, Error>) -> R {
    // Unwind safety: the locks behind the body's objects take a panic for a state between two steps.
    R::of(match catch_unwind(AssertUnwindSafe(body)) {
        Ok(result) => result.map_err(|error| number_of(&error)),
        Err(payload) => {
            // Its destructor might panic again.
            core::mem::forget(payload);
            Err(tell(-7, "a mistake of the library: it panicked"))
        }
    })
}

/// Functions of a header, by their result.
#[doc(hidden)]
#[macro_export]
macro_rules! calls {
    ($result:ty: $(fn $name:ident($($at:ident: $type:ty),*) $body:block)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($at: $type),*) -> $result {
            $crate::face::guard(|| $body)
        }
    )*};
}

/// An object or a structure. By the header a pointer that is not null points to what its type says, which
/// nothing closes or writes meanwhile; only callers in C make one.
pub type In<'a, T> = Option<&'a T>;
/// The place of a result, ..
pub type Out<'a, T> = Option<&'a mut MaybeUninit<T>>;
/// .. and of an object, whose pointer is its box.
pub type New<'a, T> = Out<'a, Box<T>>;

pub trait Given<T> {
    fn get(self) -> Result<T, Error>;
}

impl<T> Given<T> for Option<T> {
    #[inline]
    fn get(self) -> Result<T, Error> {
        self.map_or_else(|| misuse("a null pointer"), Ok)
    }
}

pub fn put<T>(to: &mut MaybeUninit<T>, value: T) -> Result<(), Error> {
    to.write(value);
    Ok(())
}

pub fn put_some<T>(to: &mut MaybeUninit<T>, value: Option<T>) -> Result<bool, Error> {
    Ok(value.map(|value| to.write(value)).is_some())
}

pub fn misuse<T>(text: impl Into<String>) -> Result<T, Error> {
    Err(Error::Misuse(text.into()))
}

/// So many of the caller's things, which are read, or room for them.
#[repr(transparent)]
pub struct Many<T>(pub *mut T);

impl<T> Many<T> {
    fn start(&self, count: usize) -> Result<*mut T, Error> {
        if count == 0 {
            return Ok(NonNull::dangling().as_ptr());
        }
        if self.0.is_null() || count > isize::MAX as usize / size_of::<T>() {
            return misuse(format!("{count} of {} bytes at {:p}", size_of::<T>(), self.0));
        }
        Ok(self.0)
    }

    #[inline]
    pub fn of<'a>(&self, count: usize) -> Result<&'a [T], Error> {
        // SAFETY: so many of them, by the header.
        Ok(unsafe { core::slice::from_raw_parts(self.start(count)?, count) })
    }
}

impl Many<u8> {
    #[inline]
    pub fn room<'a>(&self, length: usize) -> Result<&'a mut [u8], Error> {
        // SAFETY: so many bytes, by the header.
        Ok(unsafe { core::slice::from_raw_parts_mut(self.start(length)?, length) })
    }
}

impl Many<c_char> {
    pub fn text<'a>(&self) -> Result<&'a str, Error> {
        // SAFETY: it ends with a zero, by the header.
        let text = unsafe { CStr::from_ptr(self.start(1)?) };
        text.to_str().map_err(|e| Error::Misuse(format!("a text that is not UTF-8: {e}")))
    }
}

/// A pointer of the program's that the library keeps: the word of a group, or what a call-back gets.
#[derive(Clone, Debug)]
pub struct Kept<T>(pub *mut T);

// SAFETY: by the header it may be used by any thread, for as long as it is kept.
unsafe impl<T> Send for Kept<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Kept<T> {}

impl Kept<u64> {
    pub fn word(&self) -> &AtomicU64 {
        // SAFETY: not null and aligned, as who keeps it has checked; atomic at both ends.
        unsafe { AtomicU64::from_ptr(self.0) }
    }
}

pub fn limit(ms: c_int) -> Option<Duration> {
    u64::try_from(ms).ok().map(Duration::from_millis)
}

impl Many<c_char> {
    /// Writes a text of at most `size` bytes with its 0: cut, if need be.
    pub fn put_text(&self, text: &str, size: usize) -> Result<(), Error> {
        let most = text.len().min(size.saturating_sub(1));
        let length = (0..=most).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        if size > 0 {
            let to = Many::<u8>(self.0.cast()).room(size)?;
            to[..length].copy_from_slice(&text.as_bytes()[..length]);
            to[length] = 0;
        }
        Ok(())
    }
}
