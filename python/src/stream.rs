//! Streams, and streams through an aperture: receivers and records. `stream_sender.rs` has the
//! senders.
//!
//! A record stays where it arrived until it is released. Python gets it as an object with the
//! buffer protocol; the library releases the record when this object and those of all earlier
//! records are gone or were released. So memory that Python can see is never reused.
//!
//! The sender of a stream through an aperture can change a long record in its place. Such a record
//! is an object of another type, without the buffer protocol: its bytes are only ever copied out.

use crate::admission::outside;
use crate::array::{self, HEAD_BYTES_MAX, Header};
use crate::bytes::{export, with_bytes_mut};
use crate::end::{End, peer_of, receiver};
use crate::errors::{Kind, OrRaise, ToPy, error, in_python};
use crate::inner::Inner;
use crate::manager::Manager;
use crate::tagged::{NOTHING, nothing, timed_out};
use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use core::time::Duration;
use hamlyn::AccessError;
use hamlyn::protocol::{self, EndPoint, Offered, ReceiveError, RecordBytes, StreamConfig};
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyMemoryView};
use std::collections::VecDeque;
use std::sync::Arc;

/// Either receiver.
enum Inlet {
    Plain(protocol::StreamReceiver),
    Aperture(protocol::ApertureStreamReceiver),
}

/// A record of either receiver.
enum Piece {
    Plain(protocol::Record),
    Aperture(protocol::ApertureRecord),
}

macro_rules! of_either {
    ($either:expr, $inner:ident => $call:expr) => {
        match $either {
            Inlet::Plain($inner) => $call,
            Inlet::Aperture($inner) => $call,
        }
    };
}

/// A receiver and the records that are out, in their order.
pub struct Intake {
    receiver: Inlet,
    out: VecDeque<(Piece, Arc<Lent>)>,
}

/// A record's references in Python.
#[derive(Default)]
struct Lent {
    is_released: AtomicBool,
    /// Buffers, and copies that are being made.
    buffers: AtomicUsize,
    /// Whether it is to be released with the last of them.
    ends_with_buffers: AtomicBool,
}

/// The reason why volatile bytes could not be copied.
enum CopyError {
    Stream(ReceiveError),
    Access(AccessError),
}

impl ToPy for CopyError {
    fn to_py(self) -> PyErr {
        match self {
            Self::Stream(e) => e.to_py(),
            Self::Access(e) => e.to_py(),
        }
    }
}

impl Piece {
    fn number(&self) -> u64 {
        match self {
            Self::Plain(record) => record.number(),
            Self::Aperture(record) => record.number(),
        }
    }
}

impl Intake {
    fn end(inner: &Arc<Inner>, receiver: Inlet) -> Arc<End<Self>> {
        let intake = Self { receiver, out: VecDeque::new() };
        End::settled_by(inner, intake, Some(Self::settle))
    }

    fn settle(intake: &mut Option<Self>) {
        intake.iter_mut().for_each(Self::release);
    }

    /// Releases the first records, as far as Python has dropped them.
    fn release(&mut self) {
        let mut last = None;
        while self.out.front().is_some_and(|(_, lent)| lent.is_released.load(Ordering::Acquire)) {
            last = self.out.pop_front();
        }
        // Refused only for another stream's record.
        let _ = match (&mut self.receiver, last) {
            (Inlet::Plain(receiver), Some((Piece::Plain(record), _))) => receiver.release(&record),
            (Inlet::Aperture(receiver), Some((Piece::Aperture(record), _))) => {
                receiver.release(&record)
            }
            _ => Ok(()),
        };
    }

    /// Takes the next record that is there, for Python.
    fn take(&mut self, timeout: Option<Duration>) -> Result<Option<Taken>, ReceiveError> {
        self.release();
        let (piece, start, length) = match &mut self.receiver {
            Inlet::Plain(receiver) => {
                let Some(record) = timed_out(receiver.receive(timeout))? else { return Ok(None) };
                let record = record.keep();
                let bytes = receiver.bytes(&record)?;
                (Piece::Plain(record), Some(bytes.as_ptr().expose_provenance()), bytes.len())
            }
            Inlet::Aperture(receiver) => {
                let Some(record) = timed_out(receiver.receive(timeout))? else { return Ok(None) };
                let record = record.keep();
                let start = match receiver.bytes(&record)? {
                    RecordBytes::Still(bytes) => Some(bytes.as_ptr().expose_provenance()),
                    RecordBytes::Volatile(_) => None,
                };
                (Piece::Aperture(record), start, record.len())
            }
        };
        let (number, lent) = (piece.number(), Arc::new(Lent::default()));
        self.out.push_back((piece, lent.clone()));
        Ok(Some(Taken { number, start, length, lent }))
    }

    /// Copies from byte `at` of a volatile record that is out.
    fn copy(&self, number: u64, at: usize, to: &mut [u8]) -> Result<(), CopyError> {
        let gone = || CopyError::Stream(ReceiveError::Misuse(format!("record {number} is gone")));
        // They are out in their order, without a gap.
        let first = self.out.front().map_or(0, |(piece, _)| piece.number());
        let place = number.checked_sub(first).ok_or_else(gone)? as usize;
        match (&self.receiver, self.out.get(place)) {
            (Inlet::Aperture(receiver), Some((Piece::Aperture(record), _))) => {
                match receiver.bytes(record).map_err(CopyError::Stream)? {
                    RecordBytes::Volatile(bytes) => bytes.read(at, to).map_err(CopyError::Access),
                    RecordBytes::Still(_) => Err(gone()),
                }
            }
            _ => Err(gone()),
        }
    }
}

/// A record for Python.
struct Taken {
    number: u64,
    /// The address of its stable bytes; `None`: they are volatile.
    start: Option<usize>,
    length: usize,
    lent: Arc<Lent>,
}

/// A record that is to be released.
struct Held {
    end: Arc<End<Intake>>,
    taken: Taken,
}

/// A record cannot be released meanwhile, nor its receiver dropped.
struct Loan<'a>(&'a Held);

impl<'a> Loan<'a> {
    fn new(held: &'a Held) -> PyResult<Self> {
        // Looked at and changed under the interpreter's lock, as in `Held::release`.
        if held.taken.lent.is_released.load(Ordering::Relaxed) {
            return Err(error(Kind::Closed, "the record was released"));
        }
        held.end.lend()?;
        held.taken.lent.buffers.fetch_add(1, Ordering::Relaxed);
        Ok(Self(held))
    }
}

impl Drop for Loan<'_> {
    fn drop(&mut self) {
        let lent = &self.0.taken.lent;
        let is_last = lent.buffers.fetch_sub(1, Ordering::Relaxed) == 1;
        self.0.end.take_back();
        if is_last && lent.ends_with_buffers.load(Ordering::Relaxed) {
            self.0.let_go();
        }
    }
}

impl Held {
    fn release(&self) -> PyResult<()> {
        let buffers = self.taken.lent.buffers.load(Ordering::Relaxed);
        if buffers > 0 {
            let text = format!(
                "{buffers} views, arrays or copies still use the record: copy what is to outlive it \
                 (`array.copy()`, `bytes(record)`), or `del` them first"
            );
            return Err(PyBufferError::new_err(text));
        }
        self.let_go();
        Ok(())
    }

    /// Releases it, now, or with its last use.
    fn release_with_buffers(&self) {
        self.taken.lent.ends_with_buffers.store(true, Ordering::Relaxed);
        if self.taken.lent.buffers.load(Ordering::Relaxed) == 0 {
            self.let_go();
        }
    }

    fn let_go(&self) {
        if !self.taken.lent.is_released.swap(true, Ordering::AcqRel) {
            if !self.end.inner.is_slow() {
                return self.end.owe();
            }
            let end = self.end.clone();
            outside(&self.end.inner, move || end.owe());
        }
    }

    /// Copies from byte `at` on, all of `to`.
    fn copy(&self, py: Python<'_>, at: usize, to: &mut [u8]) -> PyResult<()> {
        let _loan = Loan::new(self)?;
        let Taken { number, start, length, .. } = self.taken;
        if at > length || to.len() > length - at {
            let text = format!(
                "{} bytes from {at} on are not inside the record's 0..{length}; nothing was copied",
                to.len()
            );
            return Err(error(Kind::Misuse, text));
        }
        let is_long = to.len() > HELD_BYTES_MAX;
        match start {
            Some(start) => {
                // SAFETY: a record's bytes stay in place, without a writer, until the receiver
                // releases it or is dropped, which the loan prevents.
                let from =
                    unsafe { core::slice::from_raw_parts((start as *const u8).add(at), to.len()) };
                if is_long {
                    py.detach(|| to.copy_from_slice(from));
                } else {
                    to.copy_from_slice(from);
                }
                Ok(())
            }
            None if is_long => {
                self.end.with_detached(py, |intake| intake.copy(number, at, to))?.or_raise()
            }
            None => self.end.with(py, |intake| intake.copy(number, at, to))?.or_raise(),
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // Every buffer holds a reference to its record's object, so there are no buffers.
        self.let_go();
    }
}

/// A record of a stream whose bytes are stable. It has the buffer protocol, read-only, without a
/// copy: it stays where it arrived until it is released, by `release()`, at the end of a `with`
/// block, or when it is dropped. Its memory is reused when all earlier records have been released,
/// too: so a record that is kept stops the stream when those behind it fill the receiver's buffers.
/// Copy bytes that you want to keep. The buffer of a record from `send_array` includes the header,
/// and so does `numpy.asarray(record)`: `record.array()` is the array.
#[pyclass(module = "hamlyn", frozen, weakref)]
pub struct Record {
    held: Held,
}

/// A record in an aperture: its sender can change its bytes at any time, even while they are read.
/// So they are only copied out, by `copy_into` or `bytes(record)`; copy first, then check the copy.
/// It is released as a `Record` is.
#[pyclass(module = "hamlyn", frozen, weakref)]
pub struct VolatileRecord {
    held: Held,
}

macro_rules! record {
    ($class:ident) => {
        #[pymethods]
        impl $class {
            /// The number of records before it.
            #[getter]
            fn number(&self) -> u64 {
                self.held.taken.number
            }

            /// Copies bytes, from `start` on, into all of `target`, a numpy array or another
            /// writable buffer. Raises `Misuse` if the record has fewer.
            #[pyo3(signature = (target: "Buffer", start=0))]
            fn copy_into(
                &self,
                py: Python<'_>,
                target: &Bound<'_, PyAny>,
                start: usize,
            ) -> PyResult<()> {
                with_bytes_mut(target, |to| self.held.copy(py, start, to))
            }

            /// Lets its memory be reused. Raises `BufferError` while a view or an array uses it.
            fn release(&self) -> PyResult<()> {
                self.held.release()
            }

            fn __len__(&self) -> usize {
                self.held.taken.length
            }

            fn __enter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
                slf
            }

            #[pyo3(signature = (kind: "type[BaseException] | None", _error: "BaseException | None", _trace: "TracebackType | None"))]
            fn __exit__(
                &self,
                kind: Option<&Bound<'_, PyAny>>,
                _error: Option<&Bound<'_, PyAny>>,
                _trace: Option<&Bound<'_, PyAny>>,
            ) -> PyResult<()> {
                if kind.is_none() {
                    return self.held.release();
                }
                // The exception's traceback may hold the views, and the program needs that
                // exception.
                self.held.release_with_buffers();
                Ok(())
            }

            fn __repr__(&self) -> String {
                let Taken { number, length, .. } = self.held.taken;
                format!(concat!("<hamlyn.", stringify!($class), " {} of {} bytes>"), number, length)
            }
        }
    };
}
record!(Record);
record!(VolatileRecord);
array::only_copied!(VolatileRecord, "record");

#[pymethods]
impl Record {
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let held = &slf.get().held;
        let loan = Loan::new(held)?;
        let start = held.taken.start.unwrap_or_default() as *mut u8;
        // SAFETY: a record's bytes stay in place until the receiver releases it or is dropped,
        // which the loan prevents until the view is given back. Only records with stable bytes are
        // of this type.
        unsafe { export(slf.as_any(), view, flags, start, held.taken.length, true) }?;
        core::mem::forget(loan);
        Ok(())
    }

    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {
        drop(Loan(&self.held));
    }

    /// For `numpy.asarray(record)`, which shows its bytes. Raises `Closed` after its release, since
    /// numpy would otherwise make an array of one Python object.
    #[pyo3(signature = (dtype: "object"=None, copy: "object"=None) -> "AnyArray")]
    fn __array__<'py>(
        slf: Bound<'py, Self>,
        dtype: Option<&Bound<'py, PyAny>>,
        copy: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let view = PyMemoryView::from(slf.as_any())?;
        array::bytes_of(view.as_any(), dtype, copy)
    }
}

#[pymethods]
impl Record {
    /// The array sent by `send_array`: checked, then shown in place, read-only. While the array
    /// exists, the record cannot be released. Raises `ArrayError` if the record is not an array, or
    /// does not fit. Needs numpy.
    #[pyo3(signature = () -> "AnyArray")]
    fn array<'py>(slf: Bound<'py, Self>, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let held = &slf.get().held;
        array::shown(slf.as_any(), held.taken.length, |head| held.copy(py, 0, head))
    }

    /// DLPack, of `array()`: its reader must support read-only arrays (`max_version` 1.0), and
    /// keeps the record.
    #[pyo3(signature = (**arguments: "object") -> "object")]
    fn __dlpack__<'py>(
        slf: Bound<'py, Self>,
        py: Python<'py>,
        arguments: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        array::dlpack(Self::array(slf, py)?, arguments)
    }

    /// DLPack: memory of the processor.
    fn __dlpack_device__(&self) -> (i32, i32) {
        (1, 0)
    }

    /// Arrow's C data interface, of `array()`, which is one-dimensional and of numbers; its reader
    /// keeps the record. Raises `BufferError` for other arrays. Needs pyarrow.
    #[pyo3(signature = (requested_schema: "object | None" = None) -> "tuple[object, object]")]
    fn __arrow_c_array__<'py>(
        slf: Bound<'py, Self>,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let array = Self::array(slf, py)?;
        py.import("hamlyn._arrays")?.call_method1("arrow", (array, requested_schema))
    }
}

#[pymethods]
impl VolatileRecord {
    /// The array sent by `send_array`, copied: the header first, which is checked, then the rest.
    /// Raises `ArrayError` if the record is not an array, or does not fit. Needs numpy.
    #[pyo3(signature = () -> "AnyArray")]
    fn array<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let length = self.held.taken.length;
        let mut head = vec![0; length.min(HEAD_BYTES_MAX)];
        self.held.copy(py, 0, &mut head)?;
        let header = Header::of_message(&head, length as u64)?;
        header.filled(py, |to| self.held.copy(py, header.start(), to))
    }

    fn __bytes__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        PyBytes::new_with(py, self.held.taken.length, |to| self.held.copy(py, 0, to))
    }
}

/// Receives a stream of records, in order, from one sender, which is grown once. Another sender,
/// and one that comes again, needs another receiver.
#[pyclass(module = "hamlyn", frozen, weakref)]
pub struct StreamReceiver {
    pub end: Arc<End<Intake>>,
}

/// Receives a stream whose long records, of 64 KiB and more, go straight into memory of this
/// process that its sender has mapped too: `VolatileRecord`. Short records, the first long ones,
/// which are sent before the sender has mapped that memory, and all records of a sender without it,
/// are `Record`s, as for a `StreamReceiver`.
#[pyclass(module = "hamlyn", frozen, weakref)]
pub struct ApertureStreamReceiver {
    end: Arc<End<Intake>>,
}

/// A record of the receiver of a stream through an aperture.
#[derive(IntoPyObject)]
enum AnyRecord {
    Still(Record),
    Volatile(VolatileRecord),
}

fn config(
    buffer_nbytes: usize,
    buffers: u32,
    buffers_max: u32,
    record_nbytes_max: usize,
) -> StreamConfig {
    let mut config = StreamConfig::default();
    (config.buffer_bytes, config.buffers) = (buffer_nbytes, buffers);
    (config.buffers_max, config.record_bytes_max) = (buffers_max, record_nbytes_max);
    config
}

#[pymethods]
impl StreamReceiver {
    /// A receiver with its first buffers, of `buffer_nbytes` each. `buffers`: buffers that wait for
    /// messages; `buffers_max`: all buffers, those of unreleased records included;
    /// `record_nbytes_max`: the longest record; for an array, with its header of 64 bytes or more:
    /// unless given, 64 MiB and a page.
    #[new]
    #[pyo3(signature = (
        manager, *, buffer_nbytes=65_536, buffers=8, buffers_max=64, record_nbytes_max=67_112_960
    ))]
    fn new(
        py: Python<'_>,
        manager: &Manager,
        buffer_nbytes: usize,
        buffers: u32,
        buffers_max: u32,
        record_nbytes_max: usize,
    ) -> PyResult<Self> {
        let node = manager.inner.node()?;
        let config = config(buffer_nbytes, buffers, buffers_max, record_nbytes_max);
        let receiver = py.detach(|| protocol::StreamReceiver::new(&node, config)).or_raise()?;
        Ok(Self { end: Intake::end(&manager.inner, Inlet::Plain(receiver)) })
    }

    /// Buffers of the usual size that exist now.
    #[getter]
    fn buffers(&self, py: Python<'_>) -> PyResult<u32> {
        self.end.with(py, |end| match &end.receiver {
            Inlet::Plain(receiver) => receiver.buffers(),
            Inlet::Aperture(_) => 0,
        })
    }
}

impl StreamReceiver {
    /// A receiver that the library has made.
    pub fn of(inner: &Arc<Inner>, receiver: protocol::StreamReceiver) -> Self {
        Self { end: Intake::end(inner, Inlet::Plain(receiver)) }
    }

    fn hand_out(&self, taken: Taken) -> Record {
        Record { held: Held { end: self.end.clone(), taken } }
    }
}

#[pymethods]
impl ApertureStreamReceiver {
    /// A receiver that will export an aperture of `aperture_nbytes`, rounded up to whole pages, to
    /// its sender: a few times the longest record, so that one is written while another is read. A
    /// record that is longer than the aperture goes through the link. For the other arguments see
    /// `StreamReceiver`.
    #[new]
    #[pyo3(signature = (
        manager, aperture_nbytes, *, buffer_nbytes=65_536, buffers=8, buffers_max=64,
        record_nbytes_max=67_112_960
    ))]
    #[allow(clippy::too_many_arguments)]
    fn new(
        py: Python<'_>,
        manager: &Manager,
        aperture_nbytes: u64,
        buffer_nbytes: usize,
        buffers: u32,
        buffers_max: u32,
        record_nbytes_max: usize,
    ) -> PyResult<Self> {
        let node = manager.inner.node()?;
        let config = config(buffer_nbytes, buffers, buffers_max, record_nbytes_max);
        let make = || protocol::ApertureStreamReceiver::new(&node, config, aperture_nbytes);
        let receiver = py.detach(make).or_raise()?;
        Ok(Self { end: Intake::end(&manager.inner, Inlet::Aperture(receiver)) })
    }
}

impl ApertureStreamReceiver {
    fn hand_out(&self, taken: Taken) -> AnyRecord {
        let held = Held { end: self.end.clone(), taken };
        match held.taken.start {
            Some(_) => AnyRecord::Still(Record { held }),
            None => AnyRecord::Volatile(VolatileRecord { held }),
        }
    }
}

macro_rules! stream_receiver {
    ($class:ident, $record:ty) => {
        #[pymethods]
        impl $class {
            /// Receives the next record if one is there or comes in one turn, else `None`.
            fn try_receive(&self, py: Python<'_>) -> PyResult<Option<$record>> {
                let found = self.end.with(py, |end| end.take(Some(Duration::ZERO)))?.or_raise()?;
                Ok(found.map(|taken| self.hand_out(taken)))
            }

            /// Receives the next record, in the order of sending; waits at most `timeout` seconds.
            /// After the sender has ended, all records that it had committed come first; then
            /// raises `Closed`. Raises `TimedOut`, whose text says so if this program holds all
            /// buffers, so that nothing can come.
            #[pyo3(signature = (timeout=None))]
            fn receive(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<$record> {
                let found = self.end.receive(py, timeout, |end, slice| end.take(Some(slice)))?;
                found.map(|taken| self.hand_out(taken)).ok_or_else(|| self.end.nothing(py))
            }

            /// The records, until the sender has closed the stream. Raises `Closed` if it ended in
            /// any other way.
            fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
                slf
            }

            fn __next__(&self, py: Python<'_>) -> PyResult<Option<$record>> {
                // The end that the sender has reported is no error here.
                let next = |taken: Result<Option<Taken>, ReceiveError>| match taken {
                    Ok(taken) => Ok(taken.map(Some)),
                    Err(ReceiveError::Ended(hamlyn::node::CloseReason::Closed)) => Ok(Some(None)),
                    Err(e) => Err(e),
                };
                let found = self.end.receive(py, None, |end, slice| next(end.take(Some(slice))))?;
                Ok(found.flatten().map(|taken| self.hand_out(taken)))
            }

            /// The identity of the sender, from the kernel; `None` before there is a sender.
            #[getter]
            fn peer(&self, py: Python<'_>) -> PyResult<Option<crate::parts::Peer>> {
                self.end.with(py, |end| {
                    let connection = of_either!(&end.receiver, receiver => receiver.connection());
                    connection.map(peer_of)
                })
            }

            /// The path that the records take, and the reason.
            fn explain(&self, py: Python<'_>) -> PyResult<String> {
                let told = self
                    .end
                    .with(py, |end| of_either!(&end.receiver, receiver => receiver.explain()))?;
                Ok(in_python(told))
            }
        }

        receiver!($class, |end| {
            of_either!(&end.receiver, receiver => receiver.connection())
        });
    };
}
stream_receiver!(StreamReceiver, Record);
stream_receiver!(ApertureStreamReceiver, AnyRecord);

impl End<Intake> {
    /// Nothing has come within the time limit.
    #[cold]
    fn nothing(&self, py: Python<'_>) -> PyErr {
        let look = |end: &mut Intake| of_either!(&end.receiver, receiver => receiver.held_up());
        match self.with(py, look) {
            Ok(Some(why)) => error(Kind::TimedOut, format!("{NOTHING}: {why}")),
            _ => nothing(),
        }
    }
}

impl EndPoint for Intake {
    fn is_ready_in(&self, node: &hamlyn::Node) -> bool {
        of_either!(&self.receiver, receiver => receiver.is_ready_in(node))
    }
    fn is_ready(&self) -> bool {
        of_either!(&self.receiver, receiver => receiver.is_ready())
    }
    fn manager(&self) -> &protocol::Manager {
        of_either!(&self.receiver, receiver => receiver.manager())
    }
}

impl Offered for Intake {
    fn offer(&self) -> protocol::Offer<'_> {
        of_either!(&self.receiver, receiver => Offered::offer(receiver))
    }
}

/// Records up to this size are sent, and copied out, with the interpreter's lock held.
pub const HELD_BYTES_MAX: usize = 16 << 10;
