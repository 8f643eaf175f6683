//! The boundary between C and Rust: checks arguments, and turns results into statuses and texts.
//!
//! ```text
//!   C calls h_x(..) --> guard(|| ..) --> get / bytes / text / out: null, alignment, length, UTF-8
//!                                    --> the library
//!   h_status  <------------------------  Ok, Failure, or a panic caught
//!   h_error_message()  <---------------  the failure's text, one for each thread
//! ```
//! Never: a panic that unwinds into C; an output that is written although the call failed, except
//! where the function's documentation says so.

use core::ffi::{CStr, c_char, c_void};
use core::mem::MaybeUninit;
use core::time::Duration;
use std::any::Any;
use std::borrow::Cow;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The result of a call. `H_OK` is 0. `h_error_message` explains every other value.
///
/// `H_NOTHING`, `H_FULL` and `H_TIMED_OUT` mean "not now"; the others mean that this call, with
/// these arguments, cannot succeed.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum h_status {
    /// Done.
    H_OK = 0,
    /// Not now: nothing has arrived, or no event waits. Nothing was taken.
    H_NOTHING = 1,
    /// Not now: both the link and the work queue are full, or the other side has no room. Nothing
    /// was sent.
    H_FULL = 2,
    /// The time limit has passed. Nothing was taken, nothing was sent.
    H_TIMED_OUT = 3,
    /// The time limit passed after part of a long message had left. It will never be complete.
    H_INCOMPLETE = 4,
    /// An argument is not allowed: null, misaligned, out of range, not UTF-8. Nothing was done.
    H_INVALID = 5,
    /// The object that the argument names does not exist: it was removed, or belongs to another
    /// node.
    H_NO_SUCH = 6,
    /// More bytes than there is room for, or than a ticket, a packet or a greeting allows.
    H_TOO_LONG = 7,
    /// A maximum of the settings, a quota or the system is reached.
    H_LIMIT = 8,
    /// In use: a service's name by another process, an area or a queue by slots.
    H_IN_USE = 9,
    /// No service has this name, or its process is gone.
    H_NOT_FOUND = 10,
    /// Not permitted, or the other side refused.
    H_REFUSED = 11,
    /// No link leads there, or another host cannot be reached.
    H_UNREACHABLE = 12,
    /// The other side closed, or is gone. For a stream (h_stream_receive) it means that the sender
    /// has sent everything; a byte stream reports that as a length of 0.
    H_CLOSED = 13,
    /// The process at the other end died.
    H_DIED = 14,
    /// The other side broke the rules, and was disconnected.
    H_MISBEHAVED = 15,
    /// These bytes are not a seed, or not one for this use.
    H_SEED = 16,
    /// The object's present state does not allow the call.
    H_STATE = 17,
    /// The process is a child, by fork, of the one that made the node.
    H_FORKED = 18,
    /// The system refused.
    H_SYSTEM = 19,
    /// The time limit passed when part of the message had left. The rest was copied, and leaves
    /// first in the next call; do not send the message again.
    H_CUT_OFF = 20,
    /// The server's program answered with an error of its own: h_error_message is its text, and
    /// h_error_code its code.
    H_APPLICATION = 21,
    /// The other side ended the link before all of its queued messages had left, or reports that
    /// this side broke the rules: messages may be missing. Possible wherever `H_DIED` is.
    H_HUNG_UP = 22,
    /// For a call: the server is about to close, and has not taken the request. It will not be
    /// carried out, and may be sent to the next server of the name.
    H_DRAINING = 23,
    /// The other side speaks another version of the protocol.
    H_VERSION = 24,
    /// For another host: one end does not trust the other's certificate, or it is for another name,
    /// or has expired; or one end could not prove which node it is; or the other side does not
    /// speak TLS.
    H_UNTRUSTED = 25,
    /// For another host: the two do not have the same secret.
    H_SECRET = 26,
    /// The name of another host has no address.
    H_NO_HOST = 27,
    /// A bug of the library: it panicked, and the panic was caught. Report it, with the text. The
    /// object of the call is in a state between two steps of the call, and is best freed.
    H_PANIC = 99,
}

use h_status::*;

/// A call that did not succeed.
#[derive(Debug)]
pub struct Failure {
    pub status: h_status,
    text: Cow<'static, str>,
}

/// The result of an exported function's body.
pub type Done<T = ()> = Result<T, Failure>;

impl Failure {
    pub fn new(status: h_status, text: impl Into<Cow<'static, str>>) -> Self {
        Self { status, text: text.into() }
    }

    #[cfg(test)]
    pub fn text(&self) -> &str {
        &self.text
    }

    pub fn invalid(text: impl Into<Cow<'static, str>>) -> Self {
        Self::new(H_INVALID, text)
    }
}

thread_local! {
    /// The text of this thread's last failure, ending in a zero byte. Used again, so that a
    /// failure in a loop allocates nothing.
    static MESSAGE: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

fn tell(text: &str) {
    // A thread that is ending has no message any more.
    let _ = MESSAGE.try_with(|message| {
        let mut message = message.borrow_mut();
        message.clear();
        message.extend(text.bytes().map(|b| if b == 0 { b'?' } else { b }));
        message.push(0);
    });
}

/// The reason why this thread's last call that did not return `H_OK` failed: an English sentence in
/// UTF-8 that names the value and the allowed ones. Never null; empty if no call has failed. A
/// successful call does not change it.
///
/// The library owns the text, which is valid until this thread's next call that fails.
#[unsafe(no_mangle)]
pub extern "C" fn h_error_message() -> *const c_char {
    let text = MESSAGE.try_with(|message| {
        let message = message.borrow();
        if message.is_empty() { c"".as_ptr() } else { message.as_ptr().cast() }
    });
    text.unwrap_or(c"".as_ptr())
}

/// The name of a status in C, such as "H_TIMED_OUT"; for an unknown number, "(no h_status)". The
/// text is static.
#[unsafe(no_mangle)]
pub extern "C" fn h_status_name(status: i32) -> *const c_char {
    let name = match status {
        0 => c"H_OK",
        1 => c"H_NOTHING",
        2 => c"H_FULL",
        3 => c"H_TIMED_OUT",
        4 => c"H_INCOMPLETE",
        5 => c"H_INVALID",
        6 => c"H_NO_SUCH",
        7 => c"H_TOO_LONG",
        8 => c"H_LIMIT",
        9 => c"H_IN_USE",
        10 => c"H_NOT_FOUND",
        11 => c"H_REFUSED",
        12 => c"H_UNREACHABLE",
        13 => c"H_CLOSED",
        14 => c"H_DIED",
        15 => c"H_MISBEHAVED",
        16 => c"H_SEED",
        17 => c"H_STATE",
        18 => c"H_FORKED",
        19 => c"H_SYSTEM",
        20 => c"H_CUT_OFF",
        21 => c"H_APPLICATION",
        22 => c"H_HUNG_UP",
        23 => c"H_DRAINING",
        24 => c"H_VERSION",
        25 => c"H_UNTRUSTED",
        26 => c"H_SECRET",
        27 => c"H_NO_HOST",
        99 => c"H_PANIC",
        _ => c"(no h_status)",
    };
    name.as_ptr()
}

/// Runs the body of an exported function. A panic becomes `H_PANIC`.
pub fn guard(body: impl FnOnce() -> Done) -> h_status {
    // Unwind safety: the body borrows a node or an end point, whose locks treat a panic as a valid
    // state between two steps.
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => H_OK,
        Ok(Err(failure)) => {
            tell(&failure.text);
            failure.status
        }
        Err(payload) => panicked(payload),
    }
}

/// Runs the usual case of an exported function. `None`: the body returned false, having done
/// nothing; the function then begins again under a [`guard`], which waits, or reports the error.
#[inline(always)]
pub fn guard_usual(body: impl FnOnce() -> bool) -> Option<h_status> {
    // Unwind safety: as in `guard`.
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(true) => Some(H_OK),
        Ok(false) => None,
        Err(payload) => Some(panicked(payload)),
    }
}

#[cold]
#[inline(never)]
fn panicked(payload: Box<dyn Any + Send>) -> h_status {
    let text = match (payload.downcast_ref::<&str>(), payload.downcast_ref::<String>()) {
        (Some(text), _) => text,
        (_, Some(text)) => text.as_str(),
        _ => "(no text)",
    };
    tell(&format!("a mistake of the library: {text}"));
    // Its destructor might panic again.
    core::mem::forget(payload);
    H_PANIC
}

#[inline(always)]
fn check<T>(pointer: *const T, name: &str) -> Done {
    if !pointer.is_null() && pointer.is_aligned() {
        return Ok(());
    }
    Err(bad_pointer(pointer.cast(), align_of::<T>(), name))
}

/// Apart, so that a call that succeeds prepares nothing for it.
#[cold]
#[inline(never)]
fn bad_pointer(pointer: *const c_void, align: usize, name: &str) -> Failure {
    if pointer.is_null() {
        return Failure::invalid(format!("{name} is null"));
    }
    Failure::invalid(format!("{name} is {pointer:p}, and must be a multiple of {align}"))
}

/// An argument that points to something to be read.
///
/// # Safety
/// If it is neither null nor misaligned, it points to a valid `T` that does not change during `'a`.
pub unsafe fn get<'a, T>(pointer: *const T, name: &str) -> Done<&'a T> {
    check(pointer, name)?;
    // SAFETY: not null and aligned, as just checked; the rest is the caller's.
    Ok(unsafe { &*pointer })
}

/// An argument that points to something that becomes the call's output.
///
/// # Safety
/// If it is neither null nor misaligned, it points to memory for a `T` with no other user during
/// `'a`.
pub unsafe fn out<'a, T>(pointer: *mut T, name: &str) -> Done<&'a mut MaybeUninit<T>> {
    check(pointer, name)?;
    // SAFETY: not null and aligned, as just checked; the rest is the caller's.
    Ok(unsafe { &mut *pointer.cast() })
}

/// An output; null if the caller does not want it.
///
/// # Safety
/// As [`out`].
pub unsafe fn out_or_null<'a, T>(
    pointer: *mut T,
    name: &str,
) -> Done<Option<&'a mut MaybeUninit<T>>> {
    if pointer.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller's.
    unsafe { out(pointer, name) }.map(Some)
}

/// Writes an output, if the caller wants it.
pub fn put<T>(place: Option<&mut MaybeUninit<T>>, value: T) {
    if let Some(place) = place {
        place.write(value);
    }
}

#[inline(always)]
fn check_length<T>(pointer: *const T, length: usize, name: &str) -> Done {
    check(pointer, name)?;
    // No object has more bytes than this; without the check the slice would be invalid.
    let fits = length.checked_mul(size_of::<T>()).is_some_and(|bytes| bytes <= isize::MAX as usize);
    if fits { Ok(()) } else { Err(too_many(length, name)) }
}

#[cold]
#[inline(never)]
fn too_many(length: usize, name: &str) -> Failure {
    Failure::invalid(format!("{name} cannot have {length} elements: too many for memory"))
}

/// `length` elements to be read; null is allowed if `length` is 0.
///
/// # Safety
/// If it is neither null nor misaligned, `length` valid elements are there, and they do not
/// change during `'a`.
pub unsafe fn elements<'a, T>(pointer: *const T, length: usize, name: &str) -> Done<&'a [T]> {
    if length == 0 {
        return Ok(&[]);
    }
    check_length(pointer, length, name)?;
    // SAFETY: not null, aligned, no longer than an object can be; the rest is the caller's.
    Ok(unsafe { core::slice::from_raw_parts(pointer, length) })
}

/// `length` elements to be written; null is allowed if `length` is 0.
///
/// # Safety
/// If it is neither null nor misaligned, there is memory for `length` elements that has no
/// other user during `'a`.
pub unsafe fn elements_out<'a, T>(
    pointer: *mut T,
    length: usize,
    name: &str,
) -> Done<&'a mut [MaybeUninit<T>]> {
    if length == 0 {
        return Ok(&mut []);
    }
    check_length(pointer.cast_const(), length, name)?;
    // SAFETY: not null, aligned, no longer than an object can be; the rest is the caller's.
    Ok(unsafe { core::slice::from_raw_parts_mut(pointer.cast(), length) })
}

/// Bytes to be written by a callee that wants them as such.
///
/// # Safety
/// As [`elements_out`], and the callee writes before it reads.
pub unsafe fn bytes_out<'a>(pointer: *mut c_void, length: usize, name: &str) -> Done<&'a mut [u8]> {
    if length == 0 {
        return Ok(&mut []);
    }
    check_length(pointer.cast_const().cast::<u8>(), length, name)?;
    // SAFETY: not null and no longer than an object can be; the memory is the C program's, and
    // this compiler knows nothing of its bytes, so it takes no byte for uninitialized.
    Ok(unsafe { core::slice::from_raw_parts_mut(pointer.cast(), length) })
}

/// Copies `to.len()` bytes from `offset` of `all`.
pub fn copy_from(all: &[u8], offset: usize, to: &mut [MaybeUninit<u8>]) -> Done {
    let length = to.len();
    let Some(from) = offset.checked_add(length).and_then(|end| all.get(offset..end)) else {
        let size = all.len();
        return Err(Failure::invalid(format!(
            "{length} bytes from offset {offset} on are not inside the {size} that there are"
        )));
    };
    // SAFETY: `MaybeUninit<u8>` has the layout of `u8`, and every value of `u8` is a valid
    // `MaybeUninit<u8>`.
    let from = unsafe { &*(core::ptr::from_ref(from) as *const [MaybeUninit<u8>]) };
    to.copy_from_slice(from);
    Ok(())
}

/// Bytes to be read.
///
/// # Safety
/// As [`elements`].
pub unsafe fn bytes<'a>(pointer: *const c_void, length: usize, name: &str) -> Done<&'a [u8]> {
    // SAFETY: the caller's.
    unsafe { elements(pointer.cast(), length, name) }
}

/// Text that ends in a zero byte.
///
/// # Safety
/// If it is not null, it points to bytes that end in a zero byte, and do not change during `'a`.
pub unsafe fn text<'a>(pointer: *const c_char, name: &str) -> Done<&'a str> {
    check(pointer, name)?;
    // SAFETY: not null, as just checked; the rest is the caller's.
    let text = unsafe { CStr::from_ptr(pointer) };
    text.to_str().map_err(|e| Failure::invalid(format!("{name} is not UTF-8: {e}")))
}

/// A copy of bytes for the caller: all of them, or an error with their number.
pub struct Copied<'a> {
    buffer: &'a mut [MaybeUninit<u8>],
    length: Option<&'a mut MaybeUninit<usize>>,
}

impl<'a> Copied<'a> {
    /// # Safety
    /// As [`elements_out`] for `buffer` and [`out`] for `length`.
    pub unsafe fn new(buffer: *mut c_void, capacity: usize, length: *mut usize) -> Done<Self> {
        // SAFETY: the caller's.
        unsafe {
            Ok(Self {
                buffer: elements_out(buffer.cast(), capacity, "buffer")?,
                length: out_or_null(length, "length")?,
            })
        }
    }

    /// The length is written also when the buffer is too small, so that the caller can make a
    /// larger one.
    pub fn put(self, bytes: &[u8]) -> Done {
        put(self.length, bytes.len());
        let Some(place) = self.buffer.get_mut(..bytes.len()) else {
            let (have, needed) = (self.buffer.len(), bytes.len());
            return Err(Failure::new(
                H_TOO_LONG,
                format!("the buffer has {have} bytes, and {needed} are needed"),
            ));
        };
        for (to, from) in place.iter_mut().zip(bytes) {
            to.write(*from);
        }
        Ok(())
    }

    /// Text, and the zero byte that ends it, which the length does not count.
    pub fn put_text(self, text: &str) -> Done {
        put(self.length, text.len());
        let (have, needed) = (self.buffer.len(), text.len() + 1);
        if have < needed {
            return Err(Failure::new(
                H_TOO_LONG,
                format!("the buffer has {have} bytes, and {needed} are needed"),
            ));
        }
        let bytes = text.bytes().map(|b| if b == 0 { b'?' } else { b });
        for (to, from) in self.buffer.iter_mut().zip(bytes.chain([0])) {
            to.write(from);
        }
        Ok(())
    }
}

/// Without a time limit.
pub const H_FOREVER: i64 = -1;

/// A time limit in nanoseconds; negative: without limit.
pub fn limit(timeout_ns: i64) -> Option<Duration> {
    u64::try_from(timeout_ns).ok().map(Duration::from_nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_a_status_with_its_text() {
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| {}));
        let status = guard(|| panic!("number {}", 7));
        std::panic::set_hook(hook);
        assert_eq!(status, H_PANIC);
        // SAFETY: the text is this thread's, which makes no call meanwhile.
        let text = unsafe { CStr::from_ptr(h_error_message()) };
        assert_eq!(text.to_str().unwrap(), "a mistake of the library: number 7");
    }

    #[test]
    fn null_misaligned_and_impossible_arguments_are_named() {
        let word = [0u64; 2];
        let odd = word.as_ptr().cast::<u8>().wrapping_add(1).cast::<u64>();
        // SAFETY: neither is followed: one is null, the other misaligned, the third too long.
        let refused = unsafe {
            [
                get::<u64>(core::ptr::null(), "first").unwrap_err(),
                get(odd, "second").unwrap_err(),
                elements(word.as_ptr(), usize::MAX, "third").unwrap_err(),
            ]
        };
        for (failure, name) in refused.iter().zip(["first is null", "second is 0x", "third cannot"])
        {
            assert_eq!(failure.status, H_INVALID);
            assert!(failure.text.starts_with(name), "{}", failure.text);
        }
    }

    #[test]
    fn every_status_has_its_name() {
        // SAFETY: the texts are static.
        let name = |n| unsafe { CStr::from_ptr(h_status_name(n)) }.to_str().unwrap();
        for status in [
            H_OK,
            H_NOTHING,
            H_FULL,
            H_TIMED_OUT,
            H_INCOMPLETE,
            H_INVALID,
            H_NO_SUCH,
            H_TOO_LONG,
            H_LIMIT,
            H_IN_USE,
            H_NOT_FOUND,
            H_REFUSED,
            H_UNREACHABLE,
            H_CLOSED,
            H_DIED,
            H_MISBEHAVED,
            H_SEED,
            H_STATE,
            H_FORKED,
            H_SYSTEM,
            H_CUT_OFF,
            H_APPLICATION,
            H_HUNG_UP,
            H_DRAINING,
            H_VERSION,
            H_UNTRUSTED,
            H_SECRET,
            H_NO_HOST,
            H_PANIC,
        ] {
            assert_eq!(name(status as i32), format!("{status:?}"));
        }
        assert_eq!(name(77), "(no h_status)");
    }
}
