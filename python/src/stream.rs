//! Streams.
//!
//! A record lies where it arrived until it is released. Python hands it out as an object with the
//! buffer protocol; when that has gone, or was released, and all before it, the library releases
//! it. So nothing that Python can see is ever used again for something else.

use crate::bytes::{export, with_bytes};
use crate::end::{Connected, End, grown, named, paired, receiver};
use crate::errors::{Kind, OrRaise, error};
use crate::manager::Manager;
use crate::tagged::{nothing, timed_out};
use crate::wait::Limit;
use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use core::time::Duration;
use hamlyn::protocol::{self, Connection, EndPoint, ReceiveError, SendFailure, StreamConfig};
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use std::collections::VecDeque;
use std::sync::Arc;

/// A receiver and the records that are out, in their order.
pub struct Intake {
    receiver: protocol::StreamReceiver,
    out: VecDeque<(protocol::Record, Arc<Lent>)>,
}

/// What Python has of a record.
#[derive(Default)]
struct Lent {
    is_released: AtomicBool,
    buffers: AtomicUsize,
}

impl Intake {
    /// Releases the records at the beginning that nobody has any more.
    fn release(&mut self) {
        let mut last = None;
        while self.out.front().is_some_and(|(_, lent)| lent.is_released.load(Ordering::Acquire)) {
            last = self.out.pop_front();
        }
        if let Some((record, _)) = last {
            // Refused only for another stream's record.
            let _ = self.receiver.release(&record);
        }
    }

    /// The next record that is there, as what Python gets.
    fn take(&mut self, timeout: Option<Duration>) -> Result<Option<Taken>, ReceiveError> {
        self.release();
        let Some(record) = timed_out(self.receiver.receive(timeout))? else { return Ok(None) };
        let bytes = self.receiver.bytes(&record)?;
        let (start, length) = (bytes.as_ptr().addr(), bytes.len());
        let lent = Arc::new(Lent::default());
        self.out.push_back((record, lent.clone()));
        Ok(Some(Taken { number: record.number(), start, length, lent }))
    }
}

struct Taken {
    number: u64,
    start: usize,
    length: usize,
    lent: Arc<Lent>,
}

/// Receives a stream of records, in order, from the one sender that is grown.
#[pyclass(module = "hamlyn", frozen, weakref)]
pub struct StreamReceiver {
    end: Arc<End<Intake>>,
}

/// A record of a stream. It has the buffer protocol, read-only, without a copy: it stays where it
/// arrived until it is released: by `release()`, at the end of a `with` block, or when it goes away.
/// Its memory is used again when all records before it have been released, too.
#[pyclass(module = "hamlyn", frozen, weakref)]
pub struct Record {
    end: Arc<End<Intake>>,
    taken: Taken,
}

#[pymethods]
impl Record {
    /// How many records came before it.
    #[getter]
    fn number(&self) -> u64 {
        self.taken.number
    }

    /// Lets its memory be used again. Raises `BufferError` while an array or a view shows it.
    fn release(&self) -> PyResult<()> {
        let buffers = self.taken.lent.buffers.load(Ordering::Relaxed);
        if buffers > 0 {
            let text = format!("{buffers} views or arrays still show the record");
            return Err(PyBufferError::new_err(text));
        }
        self.let_go();
        Ok(())
    }

    fn __len__(&self) -> usize {
        self.taken.length
    }

    fn __enter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, _exception: &Bound<'_, PyAny>) -> PyResult<()> {
        self.release()
    }

    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let this = slf.get();
        let Taken { start, length, lent, .. } = &this.taken;
        if lent.is_released.load(Ordering::Relaxed) {
            return Err(error(Kind::Closed, "the record was released"));
        }
        this.end.lend()?;
        // SAFETY: a record's bytes stay where they are until the receiver releases it or is
        // dropped. It is not dropped while `End` has lent a buffer, and not released before
        // `is_released` is set, which `release` refuses while this record has lent one: that is
        // looked at and changed under the interpreter's lock.
        let shown = unsafe { export(slf.as_any(), view, flags, *start as *mut u8, *length, true) };
        match shown {
            Ok(()) => drop(lent.buffers.fetch_add(1, Ordering::Relaxed)),
            Err(_) => this.end.take_back(),
        }
        shown
    }

    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {
        self.taken.lent.buffers.fetch_sub(1, Ordering::Relaxed);
        self.end.take_back();
    }

    fn __repr__(&self) -> String {
        format!("<hamlyn.Record {} of {} bytes>", self.taken.number, self.taken.length)
    }
}

impl Record {
    fn let_go(&self) {
        if !self.taken.lent.is_released.swap(true, Ordering::AcqRel) {
            // Whoever waits for the next record has the receiver, and releases this one.
            let _ = self.end.try_with(Intake::release);
        }
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        // Every buffer holds a reference to this object, so there is none.
        self.let_go();
    }
}

#[pymethods]
impl StreamReceiver {
    /// A receiver with its first buffers, of `buffer_nbytes` each. `buffers`: how many wait for
    /// messages; `buffers_max`: how many there may be, with those that hold records which were not
    /// released; `record_nbytes_max`: the longest record.
    #[new]
    #[pyo3(signature = (
        manager, *, buffer_nbytes=65_536, buffers=8, buffers_max=64, record_nbytes_max=67_108_864
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
        let mut config = StreamConfig::default();
        (config.buffer_bytes, config.buffers) = (buffer_nbytes, buffers);
        (config.buffers_max, config.record_bytes_max) = (buffers_max, record_nbytes_max);
        let receiver = py.detach(|| protocol::StreamReceiver::new(&node, config)).or_raise()?;
        Ok(Self { end: End::new(&manager.inner, Intake { receiver, out: VecDeque::new() }) })
    }

    /// The next record if one is there or comes in one turn, else `None`.
    fn try_receive(&self, py: Python<'_>) -> PyResult<Option<Record>> {
        let found = self.end.with(py, |end| end.take(Some(Duration::ZERO)))?.or_raise()?;
        Ok(found.map(|taken| self.hand_out(taken)))
    }

    /// The next record, in the order of sending; waits at most `timeout` seconds. After the
    /// sender's end everything that it had committed comes first; then `Closed` is raised. Raises
    /// `TimedOut`.
    #[pyo3(signature = (timeout=None))]
    fn receive(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Record> {
        let found = self.end.wait(
            py,
            timeout,
            |end| end.take(Some(Duration::ZERO)),
            |end, slice| end.take(Some(slice)),
        )?;
        found.map(|taken| self.hand_out(taken)).ok_or_else(nothing)
    }

    /// The records, until the sender has closed the stream. Raises `Closed` where it ended in any
    /// other way.
    fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Record>> {
        // The end that the sender has told is no error here.
        let next = |taken: Result<Option<Taken>, ReceiveError>| match taken {
            Ok(taken) => Ok(taken.map(Some)),
            Err(ReceiveError::Ended(hamlyn::node::CloseReason::Closed)) => Ok(Some(None)),
            Err(e) => Err(e),
        };
        let found = self.end.wait(
            py,
            None,
            |end| next(end.take(Some(Duration::ZERO))),
            |end, slice| next(end.take(Some(slice))),
        )?;
        Ok(found.flatten().map(|taken| self.hand_out(taken)))
    }

    /// Buffers of the usual size that exist now.
    #[getter]
    fn buffers(&self, py: Python<'_>) -> PyResult<u32> {
        self.end.with(py, |end| end.receiver.buffers())
    }

    /// Who sends, as the kernel says; `None` before there is a sender.
    #[getter]
    fn peer(&self, py: Python<'_>) -> PyResult<Option<crate::parts::Peer>> {
        self.end.with(py, |end| {
            let peer = end.receiver.connection().map(|connection| connection.peer().clone());
            peer.map(|peer| crate::parts::Peer { peer })
        })
    }

    /// Which path the records take, and why.
    fn explain(&self, py: Python<'_>) -> PyResult<String> {
        self.end.with(py, |end| end.receiver.explain())
    }
}

receiver!(StreamReceiver);

impl crate::end::Offered for Intake {
    fn has_arrived(&self) -> bool {
        self.receiver.is_ready()
    }
    fn make_seed(&self) -> Result<protocol::Seed, hamlyn::node::OfferError> {
        self.receiver.seed()
    }
    fn offer(&self, name: &str, access: hamlyn::Access) -> Result<(), hamlyn::node::OfferError> {
        self.receiver.serve(name, access)
    }
}

impl StreamReceiver {
    fn hand_out(&self, taken: Taken) -> Record {
        Record { end: self.end.clone(), taken }
    }
}

/// Sends a stream of records. A context manager: leaving it sends what is left and closes; after an
/// exception, and where it just goes away, only what can be sent without waiting.
#[pyclass(module = "hamlyn", frozen, weakref)]
pub struct StreamSender {
    end: Arc<End<protocol::StreamSender>>,
}

#[pymethods]
impl StreamSender {
    /// Sends one record, waiting at most `timeout` seconds for room. A small one leaves with
    /// others, at the latest with the next `flush()`.
    #[pyo3(signature = (record, timeout=None))]
    fn send(
        &self,
        py: Python<'_>,
        record: &Bound<'_, PyAny>,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        with_bytes(record, |record| {
            let send = |end: &mut protocol::StreamSender, slice| {
                sent_or_late(end.send(record, Some(slice)))
            };
            if record.len() <= HELD_BYTES_MAX {
                let sent = self.end.with(py, |end| send(end, Duration::ZERO))?.or_raise()?;
                if sent.is_some() {
                    return Ok(());
                }
            }
            self.end.wait_more(py, Limit::new(timeout)?, send)?.ok_or_else(late)
        })
    }

    /// Sends what was coalesced, waiting at most `timeout` seconds for room: when it returns, every
    /// record is on its way, and arrives also if this process ends. Raises `TimedOut`.
    #[pyo3(signature = (timeout=None))]
    fn flush(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        let limit = Limit::new(timeout)?;
        let flush = |end: &mut protocol::StreamSender, slice| sent_or_late(end.flush(Some(slice)));
        if self.end.with(py, |end| flush(end, Duration::ZERO))?.or_raise()?.is_some() {
            return Ok(());
        }
        self.end.wait_more(py, limit, flush)?.ok_or_else(late)
    }

    /// Sends what is left and tells the receiver that this was all, waiting at most `timeout`
    /// seconds; then it is closed. After `TimedOut` it is not, and may be closed again.
    #[pyo3(signature = (timeout=10.0))]
    fn close(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        let limit = Limit::new(timeout)?;
        if self.end.is_closed() || self.end.inner.check_open().is_err() {
            self.end.close_now(py);
            return Ok(());
        }
        let close = |end: &mut protocol::StreamSender, slice| sent_or_late(end.close(Some(slice)));
        match self.end.wait_more(py, limit, close) {
            Ok(Some(())) => self.end.close_now(py),
            Ok(None) => return Err(late()),
            Err(e) => {
                self.end.close_now(py);
                return Err(e);
            }
        }
        Ok(())
    }

    #[pyo3(signature = (kind, _error, _trace))]
    fn __exit__(
        &self,
        py: Python<'_>,
        kind: Option<&Bound<'_, PyAny>>,
        _error: Option<&Bound<'_, PyAny>>,
        _trace: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        if kind.is_some() {
            self.end.close_now(py);
            return Ok(());
        }
        self.close(py, Some(10.0))
    }

    /// Longest record.
    #[getter]
    fn nbytes_max(&self, py: Python<'_>) -> PyResult<usize> {
        self.end.with(py, |end| end.bytes_max())
    }
}

named!(StreamSender);
paired!(StreamSender);
grown!(StreamSender);

impl Connected for protocol::StreamSender {
    fn its_connection(&self) -> &Connection {
        self.connection()
    }
    fn its_path(&self) -> String {
        self.explain()
    }
}

/// Records up to this size are sent with the interpreter's lock held.
const HELD_BYTES_MAX: usize = 16 << 10;

fn sent_or_late(sent: Result<(), SendFailure>) -> Result<Option<()>, SendFailure> {
    match sent {
        Ok(()) => Ok(Some(())),
        Err(SendFailure::TimedOut | SendFailure::CutOff) => Ok(None),
        Err(e) => Err(e),
    }
}

#[cold]
fn late() -> PyErr {
    error(Kind::TimedOut, SendFailure::TimedOut)
}
