//! Arrays in messages: a header describes the bytes behind it.
//!
//! ```text
//!   0    "hamA"   version: u8   dimensions: u8   bytes of the type: u8   0: u8
//!   8    bytes of data: u64
//!   16   shape: u64 for each dimension
//!   ..   type, as NumPy's array interface writes it ("<f8"), then zeros up to a multiple of 64
//!   ..   data, in C order
//! ```
//! All little-endian. The receiver copies the header, checks all of the copy, and then uses only
//! that. Never: a type that holds addresses, in either direction; a shape that reaches beyond the
//! message.

use crate::bytes::{export, with_bytes};
use crate::errors::{Kind, error};
use core::ffi::c_int;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple};
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};

const MAGIC: [u8; 4] = *b"hamA";
const VERSION: u8 = 1;
const FIXED_BYTES: usize = 16;
/// The alignment of the data.
const ALIGN: usize = 64;
/// As many as NumPy 1 has.
const DIMENSIONS_MAX: usize = 32;
const TYPE_BYTES_MAX: usize = 32;
/// Bytes that an array without elements would have if each length of 0 were 1. Its shape is free of
/// charge for whoever sends it, and a program that receives it may make arrays of the other lengths
/// (`sum(axis=1)`), or count through them.
const EMPTY_BYTES_MAX: u64 = 1 << 20;
/// The longest header.
pub const HEAD_BYTES_MAX: usize =
    (FIXED_BYTES + 8 * DIMENSIONS_MAX + TYPE_BYTES_MAX).next_multiple_of(ALIGN);

/// A checked description of an array's bytes.
pub struct Header {
    text: String,
    shape: Vec<u64>,
    /// Number of bytes of the data.
    pub bytes: u64,
}

/// Bytes of one element of a type, or the reason why the type is refused.
fn item_bytes(text: &str) -> Result<u64, String> {
    let refuse = |why: &str| Err(format!("the type {text:?} {why}"));
    let mut letters = text.chars();
    let (Some(order), Some(kind)) = (letters.next(), letters.next()) else {
        return refuse("is none of the array interface");
    };
    let rest = letters.as_str();
    if kind == 'O' {
        return refuse(
            "is Python objects, which are addresses of the process that sends: pickle them",
        );
    }
    let (digits, unit) = rest.split_at(rest.find('[').unwrap_or(rest.len()));
    let is_number = (digits == "0" || !digits.starts_with('0'))
        && digits.bytes().all(|digit| digit.is_ascii_digit());
    let Some(size) = digits.parse::<u32>().ok().filter(|_| is_number) else {
        return refuse("has no size");
    };
    let is_known = match kind {
        'b' => size == 1,
        'i' | 'u' => matches!(size, 1 | 2 | 4 | 8),
        'f' => matches!(size, 2 | 4 | 8 | 16),
        'c' => matches!(size, 8 | 16 | 32),
        'm' | 'M' => size == 8,
        'S' | 'U' | 'V' => true,
        _ => {
            return refuse(
                "is of a kind that is not sent: those that are, are b i u f c m M S U V",
            );
        }
    };
    let orders = if matches!(kind, 'S' | 'V') || (size == 1 && kind != 'U') { "|" } else { "<>" };
    if !is_known || !orders.contains(order) || text.len() > TYPE_BYTES_MAX {
        return refuse("has a size or an order of bytes that it cannot have");
    }
    if size == 0 {
        // NumPy would make it one of some bytes, and so an array of any size of a short message.
        return refuse("has elements without bytes: send their number");
    }
    if !is_unit(unit, matches!(kind, 'm' | 'M')) {
        return refuse("has a unit that is none");
    }
    Ok(u64::from(size) * if kind == 'U' { 4 } else { 1 })
}

/// Whether this is a unit of time, such as `[ns]` or `[25s]`, or nothing.
fn is_unit(text: &str, may_be: bool) -> bool {
    if text.is_empty() {
        return true;
    }
    let inner = text.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
    let Some(inner) = inner.filter(|_| may_be) else { return false };
    let name = inner.trim_start_matches(|c: char| c.is_ascii_digit());
    let digits = &inner[..inner.len() - name.len()];
    let names = ["Y", "M", "W", "D", "h", "m", "s", "ms", "us", "ns", "ps", "fs", "as"];
    names.contains(&name) && digits.len() <= 9 && !digits.starts_with('0')
}

impl Header {
    fn new(text: String, shape: Vec<u64>) -> Result<Self, String> {
        let item = item_bytes(&text)?;
        if shape.len() > DIMENSIONS_MAX {
            let n = shape.len();
            return Err(format!("{n} dimensions are too many: reshape it to {DIMENSIONS_MAX}"));
        }
        if let Some(length) = shape.iter().find(|&&length| length > i64::MAX as u64) {
            let length = *length as i64;
            return Err(format!("a dimension has a negative length, {length}"));
        }
        let is_empty = shape.contains(&0);
        let lengths = shape.iter().filter(|&&length| length != 0);
        let bytes = lengths.clone().try_fold(item, |all, &length| all.checked_mul(length));
        let bytes = bytes.filter(|&bytes| bytes <= i64::MAX as u64);
        match bytes {
            Some(bytes) if !is_empty => Ok(Self { text, shape, bytes }),
            Some(bytes) if bytes <= EMPTY_BYTES_MAX => Ok(Self { text, shape, bytes: 0 }),
            _ if is_empty => Err(format!(
                "the shape {shape:?} has no elements, and lengths beside the 0 that make \
                 more than {EMPTY_BYTES_MAX} bytes: send the shape as numbers"
            )),
            _ => Err(format!("the shape {shape:?} is of more bytes than exist")),
        }
    }

    /// Bytes of the header: where the data begins.
    pub fn start(&self) -> usize {
        (FIXED_BYTES + 8 * self.shape.len() + self.text.len()).next_multiple_of(ALIGN)
    }

    /// Number of bytes of header and data.
    pub fn total(&self) -> u64 {
        self.start() as u64 + self.bytes
    }

    pub fn put(&self, to: &mut [u8]) {
        to.fill(0);
        to[..4].copy_from_slice(&MAGIC);
        to[4..8].copy_from_slice(&[VERSION, self.shape.len() as u8, self.text.len() as u8, 0]);
        to[8..16].copy_from_slice(&self.bytes.to_le_bytes());
        let (lengths, rest) = to[FIXED_BYTES..].split_at_mut(8 * self.shape.len());
        for (to, length) in lengths.chunks_exact_mut(8).zip(&self.shape) {
            to.copy_from_slice(&length.to_le_bytes());
        }
        rest[..self.text.len()].copy_from_slice(self.text.as_bytes());
    }

    /// Reads the header at the beginning of `head`; the bytes behind it are ignored.
    fn read(head: &[u8]) -> Result<Self, String> {
        let fixed = head.get(..FIXED_BYTES).ok_or_else(|| {
            format!("{} bytes are no array: its header alone has 64 or more", head.len())
        })?;
        if fixed[..4] != MAGIC {
            return Err("the bytes are no array: they do not begin with its mark".into());
        }
        if fixed[4] != VERSION || fixed[7] != 0 {
            let version = fixed[4];
            return Err(format!("an array of version {version}; known is {VERSION}"));
        }
        let (dimensions, letters) = (usize::from(fixed[5]), usize::from(fixed[6]));
        if dimensions > DIMENSIONS_MAX {
            let text = "dimensions are too many";
            return Err(format!("{dimensions} {text}: {DIMENSIONS_MAX} are the most"));
        }
        let cut = || "the header of the array is cut off".to_string();
        let rest = &head[FIXED_BYTES..];
        let lengths = rest.get(..8 * dimensions).ok_or_else(cut)?;
        let text = rest.get(8 * dimensions..8 * dimensions + letters).ok_or_else(cut)?;
        let text = core::str::from_utf8(text).map_err(|_| "the type of the array is no text")?;
        let lengths = lengths.chunks_exact(8);
        let shape = lengths.map(|at| u64::from_le_bytes(at.try_into().expect("8 bytes"))).collect();
        let header = Self::new(text.into(), shape)?;
        let said = u64::from_le_bytes(fixed[8..].try_into().expect("8 bytes"));
        if said != header.bytes {
            let Self { shape, text, bytes } = header;
            let of = format!("the shape {shape:?} of {text:?} has {bytes}");
            return Err(format!("the header says {said} bytes of data, and {of}"));
        }
        Ok(header)
    }

    /// Reads the header of a message of `length` bytes that consists of one array. Raises
    /// `ArrayError`.
    pub fn of_message(head: &[u8], length: u64) -> PyResult<Self> {
        let header = Self::of_part(head)?;
        if header.total() != length {
            let (start, bytes) = (header.start(), header.bytes);
            let text = format!(
                "the array has {start} bytes of header and {bytes} of data, and came in {length}"
            );
            return Err(error(Kind::Array, text));
        }
        Ok(header)
    }

    /// The same for an array that other bytes may follow.
    pub fn of_part(head: &[u8]) -> PyResult<Self> {
        Self::read(head).map_err(|text| error(Kind::Array, text))
    }

    /// The header of an array that is to be sent. Raises `BufferError` if the array cannot be sent.
    fn of_array(array: &Bound<'_, PyAny>) -> PyResult<Self> {
        let told = array.py().import("hamlyn._arrays")?.call_method1("told", (array,))?;
        let (text, shape): (String, Vec<u64>) = told.extract()?;
        Self::new(text, shape)
            .map_err(|text| PyBufferError::new_err(format!("this array is not sent: {text}")))
    }

    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.shape)
    }

    /// A numpy array of bytes of `owner` from `start` on, without a copy; it keeps a buffer of it.
    pub fn show<'py>(
        &self,
        owner: &Bound<'py, PyAny>,
        start: usize,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = owner.py();
        let arguments = (owner, &self.text, self.shape(py)?, self.bytes, start);
        py.import("hamlyn._arrays")?.call_method1("shown", arguments)
    }

    /// A numpy array with memory of its own, filled by `fill`.
    pub fn filled<'py>(
        &self,
        py: Python<'py>,
        fill: impl FnOnce(&mut [u8]) -> PyResult<()>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let arrays = py.import("hamlyn._arrays")?;
        let (array, memory): (Bound<'py, PyAny>, Bound<'py, PyAny>) =
            arrays.call_method1("empty", (&self.text, self.shape(py)?, self.bytes))?.extract()?;
        crate::bytes::with_bytes_mut(&memory, fill)?;
        arrays.call_method1("checked", (array,))
    }
}

/// Calls `use_it` with an array's message. Raises `BufferError` if the array holds addresses, or is
/// not contiguous.
pub fn with_message<R>(
    array: &Bound<'_, PyAny>,
    use_it: impl FnOnce(&[u8]) -> PyResult<R>,
) -> PyResult<R> {
    with_parts(array, |head, data| {
        if head.is_empty() {
            return use_it(data);
        }
        let mut message = vec![0; head.len() + data.len()];
        message[..head.len()].copy_from_slice(head);
        message[head.len()..].copy_from_slice(data);
        use_it(&message)
    })
}

/// [`with_message`] with the message in two pieces, of which the first may be empty.
pub fn with_parts<R>(
    array: &Bound<'_, PyAny>,
    use_them: impl FnOnce(&[u8], &[u8]) -> PyResult<R>,
) -> PyResult<R> {
    if let Ok(loan) = array.cast::<Loan>() {
        let memory = &loan.get().memory;
        // SAFETY: `memory` stays with the object, which `array` refers to. Another thread of Python
        // may write to it meanwhile, as to any other buffer that is sent: see `with_bytes`.
        let message = unsafe { core::slice::from_raw_parts(memory.at(0), memory.used) };
        return use_them(&[], message);
    }
    // First: it knows what to do instead with an array whose bytes cannot be had.
    let header = Header::of_array(array)?;
    with_bytes(array, |data| {
        if header.bytes != data.len() as u64 {
            let (said, found) = (header.bytes, data.len());
            let text = format!("this array says that it has {said} bytes, and has {found}");
            return Err(PyBufferError::new_err(text));
        }
        let mut head = [0; HEAD_BYTES_MAX];
        let head = &mut head[..header.start()];
        header.put(head);
        use_them(head, data)
    })
}

/// The header of an array of this type and shape, which is to be computed in place.
fn header_of(dtype: &Bound<'_, PyAny>, shape: &Bound<'_, PyAny>) -> PyResult<Header> {
    let arrays = dtype.py().import("hamlyn._arrays")?;
    let (text, shape): (String, Vec<u64>) =
        arrays.call_method1("wanted", (dtype, shape))?.extract()?;
    Header::new(text, shape).map_err(PyBufferError::new_err)
}

/// The same, and the number of bytes of header and array.
pub fn sized_header_of(
    dtype: &Bound<'_, PyAny>,
    shape: &Bound<'_, PyAny>,
) -> PyResult<(Header, usize)> {
    let header = header_of(dtype, shape)?;
    match usize::try_from(header.total()) {
        Ok(total) => Ok((header, total)),
        Err(_) => Err(too_much(header.bytes)),
    }
}

#[cold]
fn too_much(bytes: u64) -> PyErr {
    error(Kind::Misuse, format!("{bytes} bytes are more than memory can have"))
}

/// Memory that begins at a multiple of `ALIGN`.
pub struct Memory {
    start: usize,
    used: usize,
}

impl Memory {
    fn layout(used: usize) -> Option<Layout> {
        Layout::from_size_align(used, ALIGN).ok()
    }

    /// Zeros, of at least one byte.
    pub fn new(used: usize) -> Option<Self> {
        let layout = Self::layout(used)?;
        // SAFETY: of more than 0 bytes: there is a header, or the caller ensures it.
        let start = unsafe { alloc_zeroed(layout) };
        if start.is_null() {
            handle_alloc_error(layout);
        }
        Some(Self { start: start.expose_provenance(), used })
    }

    pub fn at(&self, offset: usize) -> *mut u8 {
        core::ptr::with_exposed_provenance_mut(self.start + offset)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let layout = Self::layout(self.used).expect("as it was made");
        // SAFETY: made with this layout by `new`, and every buffer of it keeps the object.
        unsafe { dealloc(self.at(0), layout) }
    }
}

/// Memory for an array that is computed in place: it has room for the header in front, so that
/// `send_array(loan)` copies the array once, into the ring or the aperture, and not twice. It has
/// the buffer protocol, writable: the bytes of the array. It may be sent any number of times;
/// changes after a send are for the next one.
#[pyclass(module = "hamlyn", frozen, weakref)]
pub struct Loan {
    memory: Memory,
    header: Header,
}

#[pymethods]
impl Loan {
    /// Memory, all zeros, for an array of this type ("<f8", or any argument of `numpy.dtype`) and
    /// shape. Raises `BufferError` for types that cannot be sent, `ValueError` for impossible
    /// shapes.
    #[new]
    #[pyo3(signature = (dtype: "DType", shape: "Shape"))]
    fn new(dtype: &Bound<'_, PyAny>, shape: &Bound<'_, PyAny>) -> PyResult<Self> {
        let (header, total) = sized_header_of(dtype, shape)?;
        let memory = Memory::new(total).ok_or_else(|| too_much(header.bytes))?;
        // SAFETY: the header's bytes are the first of memory that has no other user yet.
        header.put(unsafe { core::slice::from_raw_parts_mut(memory.at(0), header.start()) });
        Ok(Self { memory, header })
    }

    /// The array, in this memory.
    #[pyo3(signature = () -> "AnyArray")]
    fn array<'py>(slf: Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.get().header.show(slf.as_any(), 0)
    }

    /// Number of bytes of the array.
    #[getter]
    fn nbytes(&self) -> u64 {
        self.header.bytes
    }

    fn __len__(&self) -> usize {
        self.header.bytes as usize
    }

    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let (memory, start) = (&slf.get().memory, slf.get().header.start());
        // SAFETY: the memory stays as long as the object, to which the view refers.
        unsafe { export(slf.as_any(), view, flags, memory.at(start), memory.used - start, false) }
    }

    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {}

    fn __repr__(&self) -> String {
        format!("<hamlyn.Loan of {:?}, shape {:?}>", self.header.text, self.header.shape)
    }
}

/// The message that an array is sent as by `send_array`: a header with its type and shape, and its
/// bytes in C order. For whatever sends bytes: a call, a file, an event. Raises `BufferError`, which
/// says what to do instead, for every array that cannot be sent: of Python objects, of strings of any
/// length, of a type that is not numpy's own (`bfloat16`), with fields or a mask, with elements that
/// have no bytes, with more than 32 dimensions, not in one piece, or without elements while its other
/// lengths make more than 1 MiB. So does each method that sends an array.
#[pyfunction]
#[pyo3(signature = (array: "Buffer"))]
pub fn pack_array<'py>(
    py: Python<'py>,
    array: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyBytes>> {
    with_message(array, |message| Ok(PyBytes::new(py, message)))
}

/// The array in a message of `pack_array`, from any source: checked, then shown without a copy, and
/// read-only if the message is. Raises `ArrayError` if it is not an array, or does not fit.
#[pyfunction]
#[pyo3(signature = (message: "Buffer") -> "AnyArray")]
pub fn unpack_array<'py>(message: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let header = with_bytes(message, |bytes| {
        // Copied first: the memory may belong to anyone.
        let head = bytes[..bytes.len().min(HEAD_BYTES_MAX)].to_owned();
        Header::of_message(&head, bytes.len() as u64)
    })?;
    header.show(message, header.start())
}

/// The `array()` of a message in memory: reads `length` bytes by `copy`, shows the rest.
pub fn shown<'py>(
    owner: &Bound<'py, PyAny>,
    length: usize,
    copy: impl FnOnce(&mut [u8]) -> PyResult<()>,
) -> PyResult<Bound<'py, PyAny>> {
    let mut head = vec![0; length.min(HEAD_BYTES_MAX)];
    copy(&mut head)?;
    let header = Header::of_message(&head, length as u64)?;
    header.show(owner, header.start())
}

/// DLPack of an array, from numpy.
pub fn dlpack<'py>(
    array: Bound<'py, PyAny>,
    arguments: Option<&Bound<'py, PyDict>>,
) -> PyResult<Bound<'py, PyAny>> {
    array.call_method("__dlpack__", (), arguments)
}

/// The bytes of an object with the buffer protocol, for `__array__`.
pub fn bytes_of<'py>(
    buffer: &Bound<'py, PyAny>,
    dtype: Option<&Bound<'py, PyAny>>,
    copy: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let arguments = PyDict::new(buffer.py());
    arguments.set_item("dtype", dtype)?;
    if copy.is_some() {
        arguments.set_item("copy", copy)?;
    }
    buffer.py().import("numpy")?.call_method("asarray", (buffer,), Some(&arguments))
}

/// Objects that numpy makes no array of: without this, it would make an array of one Python object.
macro_rules! only_copied {
    ($class:ident, $what:literal) => {
        #[pymethods]
        impl $class {
            /// For `numpy.asarray`: raises an error that names the method to use instead.
            #[pyo3(signature = (*_arguments: "object", **_named: "object"))]
            fn __array__(
                &self,
                _arguments: &Bound<'_, PyAny>,
                _named: Option<&Bound<'_, PyAny>>,
            ) -> PyResult<()> {
                let text = concat!(
                    "the bytes of this ",
                    $what,
                    " can change while numpy looks at them, so they are copied: ",
                    $what,
                    ".array() is what was sent as an array, numpy.frombuffer(bytes(",
                    $what,
                    "), ..) the bytes"
                );
                Err(pyo3::exceptions::PyTypeError::new_err(text))
            }
        }
    };
}
pub(crate) use only_copied;
