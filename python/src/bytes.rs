//! Bytes between Python and the library, without copies: the buffer protocol, in both directions.
//!
//! - [`with_bytes`]: borrows the bytes of any object that has them contiguously.
//! - [`export`]: hands out memory of this library as a buffer.
//!
//! Objects whose elements are not plain bytes are refused, though they have a buffer: an array of
//! Python objects, or of pointers, contains addresses of this process.
//!
//! Python's rule for buffers holds, as for sockets and files: a thread that changes bytes while
//! another reads them causes a mixture of old and new, and nothing worse. The memory itself stays
//! in place as long as any object has a buffer of it.

use core::ffi::{CStr, c_int};
use core::mem::MaybeUninit;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// A view of another object's bytes; given back when dropped.
struct View {
    raw: MaybeUninit<ffi::Py_buffer>,
    is_filled: bool,
}

impl View {
    const NONE: Self = Self { raw: MaybeUninit::zeroed(), is_filled: false };
}

impl Drop for View {
    fn drop(&mut self) {
        if self.is_filled {
            // SAFETY: filled by `PyObject_GetBuffer` in this place, and never moved: `with_bytes` and
            // the like have it, which drop it attached to the interpreter.
            unsafe { ffi::PyBuffer_Release(self.raw.as_mut_ptr()) }
        }
    }
}

/// The element of a buffer, by its name in the format, that has no meaning in another process.
/// Formats are those of `struct`, with the additions of numpy and ctypes: `T{<i:name:O:other:}`.
fn address_in(format: &str) -> Option<&'static str> {
    // Every second part stands between colons, and is a name.
    for part in format.split(':').step_by(2) {
        let mut letters = part.chars().peekable();
        while let Some(letter) = letters.next() {
            match letter {
                'O' => return Some("Python objects"),
                'P' | '&' | 'z' => return Some("pointers"),
                'X' => return Some("functions"),
                // Before one of these it is a complex number.
                'Z' if !letters.peek().is_some_and(|next| "fdg".contains(*next)) => {
                    return Some("pointers");
                }
                _ => {}
            }
        }
    }
    None
}

fn refuse(object: &Bound<'_, PyAny>, why: &str) -> PyErr {
    let name = object.get_type().name().map_or("object".into(), |name| name.to_string());
    PyBufferError::new_err(format!("this {name} {why}"))
}

/// Gets a view of the bytes of `object`, with these flags, into `view`.
fn get(object: &Bound<'_, PyAny>, view: &mut View, flags: c_int) -> PyResult<(*mut u8, usize)> {
    let mut ask = |flags| {
        // SAFETY: attached to the interpreter; there is room for a `Py_buffer`. The call either fills
        // it or raises.
        let result =
            unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), view.raw.as_mut_ptr(), flags) };
        if result == 0 { Ok(()) } else { Err(PyErr::fetch(object.py())) }
    };
    ask(flags | ffi::PyBUF_FORMAT).or_else(|error| {
        // numpy has elements that no format can say, such as points in time; it knows of objects.
        match object.getattr("dtype").and_then(|dtype| dtype.getattr("hasobject")) {
            Ok(has) if !has.is_truthy()? => ask(flags),
            Ok(_) => Err(refuse(
                object,
                "holds objects, or strings of any length, whose bytes are elsewhere; pickle, or \
                 array.astype('U'), has bytes that mean something elsewhere",
            )),
            Err(_) => Err(error),
        }
    })?;
    view.is_filled = true;
    // SAFETY: filled by the call above.
    let buffer = unsafe { view.raw.assume_init_ref() };
    // SAFETY: filled by the call above; 'C' is one of the orders that it knows.
    if unsafe { ffi::PyBuffer_IsContiguous(buffer, b'C' as _) } == 0 {
        return Err(refuse(
            object,
            "is not in one piece, in C order; numpy.ascontiguousarray and bytes copy it into one",
        ));
    }
    // No format means bytes.
    if !buffer.format.is_null() {
        // SAFETY: a string of the exporter's, ended by a zero, that stays until the view is released.
        let format = unsafe { CStr::from_ptr(buffer.format) }.to_string_lossy();
        if let Some(what) = address_in(&format) {
            let why = format!(
                "holds {what} (format {format:?}), which are addresses of this process; pickle, or \
                 an array of numbers, has bytes that mean something elsewhere"
            );
            return Err(refuse(object, &why));
        }
    }
    Ok((buffer.buf.cast(), buffer.len as usize))
}

/// Calls `use_them` with the bytes of `object`, which stay in place meanwhile, even while
/// `use_them` lets other threads run. Raises `TypeError` if the object has no bytes, `BufferError`
/// if they are not contiguous, or are addresses.
#[inline]
pub fn with_bytes<R>(
    object: &Bound<'_, PyAny>,
    use_them: impl FnOnce(&[u8]) -> PyResult<R>,
) -> PyResult<R> {
    if let Ok(bytes) = object.cast_exact::<PyBytes>() {
        return use_them(bytes.as_bytes());
    }
    let mut view = View::NONE;
    let (start, length) = get(object, &mut view, ffi::PyBUF_STRIDES)?;
    if length == 0 {
        return use_them(&[]);
    }
    // SAFETY: the exporter keeps `length` bytes at `start` until the buffer is released, which is
    // after `use_them`. Another thread of Python may write them meanwhile; they are only copied
    // from, into a ring, and the receiver checks the bytes anyway.
    use_them(unsafe { core::slice::from_raw_parts(start, length) })
}

/// [`with_bytes`] of all of these.
pub fn with_all_bytes<R>(
    objects: &[Bound<'_, PyAny>],
    use_them: impl FnOnce(&[&[u8]]) -> PyResult<R>,
) -> PyResult<R> {
    // Each stays in its place from now on.
    let mut views: Box<[View]> = objects.iter().map(|_| View::NONE).collect();
    let mut all: Vec<&[u8]> = Vec::with_capacity(objects.len());
    for (object, view) in objects.iter().zip(&mut views) {
        if let Ok(bytes) = object.cast_exact::<PyBytes>() {
            all.push(bytes.as_bytes());
            continue;
        }
        let (start, length) = get(object, view, ffi::PyBUF_STRIDES)?;
        all.push(match length {
            0 => &[],
            // SAFETY: as above; the buffers are released after `use_them`.
            _ => unsafe { core::slice::from_raw_parts(start, length) },
        });
    }
    use_them(&all)
}

/// [`with_bytes`], for writing. Raises `BufferError` if the object is read-only.
pub fn with_bytes_mut<R>(
    object: &Bound<'_, PyAny>,
    use_them: impl FnOnce(&mut [u8]) -> PyResult<R>,
) -> PyResult<R> {
    let mut view = View::NONE;
    let (start, length) = get(object, &mut view, ffi::PyBUF_STRIDED)?;
    if length == 0 {
        return use_them(&mut []);
    }
    // SAFETY: as above; the exporter has said that they may be written. They are only copied to.
    use_them(unsafe { core::slice::from_raw_parts_mut(start, length) })
}

/// Fills `view` with `length` bytes at `start`, which `owner` keeps.
///
/// # Safety
/// `view` is the argument of `__getbuffer__`. The bytes stay mapped, and readable (writable,
/// unless `readonly`), until Python has given the view back.
pub unsafe fn export(
    owner: &Bound<'_, PyAny>,
    view: *mut ffi::Py_buffer,
    flags: c_int,
    start: *mut u8,
    length: usize,
    readonly: bool,
) -> PyResult<()> {
    // SAFETY: the caller's; the call fills `view` and takes a reference to `owner`, or raises.
    let result = unsafe {
        ffi::PyBuffer_FillInfo(
            view,
            owner.as_ptr(),
            start.cast(),
            length as ffi::Py_ssize_t,
            readonly as c_int,
            flags,
        )
    };
    if result == 0 { Ok(()) } else { Err(PyErr::fetch(owner.py())) }
}
