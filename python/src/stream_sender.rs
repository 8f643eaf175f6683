//! The senders of streams, and of streams through an aperture.

use crate::array;
use crate::bytes::with_bytes;
use crate::end::{End, grown, named, paired};
use crate::errors::{Kind, OrRaise, error};
use crate::record_loan::{RecordLoan, Sender};
use crate::stream::HELD_BYTES_MAX;
use crate::wait::Limit;
use core::time::Duration;
use hamlyn::protocol::{self, SendError};
use pyo3::prelude::*;
use std::sync::Arc;

/// Sends a stream of records. A context manager: leaving it sends the rest and closes. After an
/// exception, and if the object is just dropped, it sends only as much as it can without waiting,
/// and the receiver's loop raises `Closed`, since records may be missing.
#[pyclass(module = "hamlyn", frozen, weakref)]
pub struct StreamSender {
    pub end: Arc<End<protocol::StreamSender>>,
}

/// Sends a stream whose records of 64 KiB and more go straight into the receiver's memory, if the
/// receiver exports an aperture, which it does with the first message; they leave at once. Earlier
/// records, and all others, go as for a `StreamSender`.
#[pyclass(module = "hamlyn", frozen, weakref)]
pub struct ApertureStreamSender {
    end: Arc<End<protocol::ApertureStreamSender>>,
}

/// The result of sending a record.
pub enum Sent {
    Whole,
    /// No part of it was taken.
    Late,
    /// It was taken, and a part of it has yet to leave.
    CutOff,
    /// It was taken; then, while the rest left, this was raised: by a signal handler, as for
    /// Ctrl-C, or because the receiver or the manager is gone.
    Failed(PyErr),
}

impl Sent {
    pub fn result(self) -> PyResult<()> {
        match self {
            Self::Whole => Ok(()),
            Self::Late => Err(late()),
            Self::CutOff => Err(cut_off()),
            Self::Failed(e) => Err(e),
        }
    }
}

macro_rules! stream_sender {
    ($class:ident, $lent:ident) => {
        #[pymethods]
        impl $class {
            /// Sends one record, waiting at most `timeout` seconds for room. A small one leaves
            /// with others, at the latest with the next `flush()`; a record above 16 KiB has left
            /// when the call returns. Raises `TimedOut` if nothing was taken; or `CutOff` if the
            /// record was taken.
            #[pyo3(signature = (record: "Buffer", timeout=None))]
            fn send(
                &self,
                py: Python<'_>,
                record: &Bound<'_, PyAny>,
                timeout: Option<f64>,
            ) -> PyResult<()> {
                with_bytes(record, |record| self.send_bytes(py, record, timeout))
            }

            /// Sends an array with its type and shape, for the receiver's `record.array()`.
            /// Otherwise as `send`. To put the header before it costs one copy more than `send`; a
            /// `Loan`, or `loan_array`, saves it. Raises `BufferError` if the array holds Python
            /// objects, has fields or a mask, or is not contiguous.
            #[pyo3(signature = (array: "Buffer", timeout=None))]
            fn send_array(
                &self,
                py: Python<'_>,
                array: &Bound<'_, PyAny>,
                timeout: Option<f64>,
            ) -> PyResult<()> {
                array::with_message(array, |message| self.send_bytes(py, message, timeout))
            }

            /// Lends a record of `nbytes` bytes, all zero, to be written before it is sent: with
            /// `memoryview(loan)`, `numpy.frombuffer(loan, ..)` and the like, and then
            /// `loan.send()`, which copies it once, into the link or the aperture, as `send` does
            /// with other bytes. Never waits; there may be several. Raises `Misuse` if it is longer
            /// than the receiver's longest record.
            fn loan(slf: Bound<'_, Self>, nbytes: usize) -> PyResult<RecordLoan> {
                let max = slf.get().nbytes_max(slf.py())?;
                RecordLoan::new(Sender::$lent(slf.unbind()), nbytes, max, None)
            }

            /// Lends a record for an array of this type ("<f8", or any argument of `numpy.dtype`)
            /// and shape, all zero, to be computed in place, `loan.array()[:] = ..`, and then sent
            /// by `loan.send()`, for the receiver's `record.array()`. Otherwise as `loan`. Raises
            /// `BufferError` for types that cannot be sent, `ValueError` for impossible shapes.
            #[pyo3(signature = (dtype: "DType", shape: "Shape"))]
            fn loan_array(
                slf: Bound<'_, Self>,
                dtype: &Bound<'_, PyAny>,
                shape: &Bound<'_, PyAny>,
            ) -> PyResult<RecordLoan> {
                let max = slf.get().nbytes_max(slf.py())?;
                let (header, total) = array::sized_header_of(dtype, shape)?;
                RecordLoan::new(Sender::$lent(slf.unbind()), total, max, Some(header))
            }

            /// Sends coalesced records, waiting at most `timeout` seconds for room: when it
            /// returns, every record is on its way, and arrives even if this process ends. Raises
            /// `TimedOut`.
            #[pyo3(signature = (timeout=None))]
            fn flush(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
                let limit = Limit::new(timeout)?;
                let flush =
                    |end: &mut protocol::$class, slice| sent_or_late(end.flush(Some(slice)));
                if self.end.with(py, |end| flush(end, Duration::ZERO))?.or_raise()?.is_some() {
                    return Ok(());
                }
                self.end.wait_more(py, limit, flush)?.ok_or_else(late)
            }

            /// Sends the rest and tells the receiver that this was all, waiting at most `timeout`
            /// seconds; then closes. After `TimedOut` the sender is not closed, and `close` may be
            /// called again.
            #[pyo3(signature = (timeout=10.0))]
            fn close(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
                let limit = Limit::new(timeout)?;
                if self.end.is_closed() || self.end.inner.check_open().is_err() {
                    return self.end.close_now(py);
                }
                let close =
                    |end: &mut protocol::$class, slice| sent_or_late(end.close(Some(slice)));
                match self.end.wait_more(py, limit, close) {
                    Ok(Some(())) => self.end.close_now(py),
                    Ok(None) => Err(late()),
                    Err(e) => self.end.close_now(py).and(Err(e)),
                }
            }

            /// Ends the stream before its end, and closes: records that have left arrive, and then
            /// the receiver raises `Closed`, as it does when this process dies; its loop over the
            /// records does not just end. Coalesced records do not leave. An exception that leaves
            /// a `with` does the same.
            fn abandon(&self, py: Python<'_>) -> PyResult<()> {
                if !self.end.is_closed() && self.end.inner.check_open().is_ok() {
                    self.end.with(py, |end| end.abandon())?;
                }
                self.end.close_now(py)
            }

            #[pyo3(signature = (kind: "type[BaseException] | None", _error: "BaseException | None", _trace: "TracebackType | None"))]
            fn __exit__(
                &self,
                py: Python<'_>,
                kind: Option<&Bound<'_, PyAny>>,
                _error: Option<&Bound<'_, PyAny>>,
                _trace: Option<&Bound<'_, PyAny>>,
            ) -> PyResult<()> {
                if kind.is_some() {
                    // The receiver must not take this for the complete stream.
                    return self.abandon(py);
                }
                self.close(py, Some(10.0))
            }

            /// Longest record.
            #[getter]
            fn nbytes_max(&self, py: Python<'_>) -> PyResult<usize> {
                if let Some(max) = self.end.bytes_max.get() {
                    self.end.check_open()?;
                    return Ok(*max);
                }
                let max = self.end.with(py, |end| end.bytes_max())?;
                Ok(*self.end.bytes_max.get_or_init(|| max))
            }
        }

        impl $class {
            fn send_bytes(
                &self,
                py: Python<'_>,
                record: &[u8],
                timeout: Option<f64>,
            ) -> PyResult<()> {
                self.send_or_say(py, record, timeout)?.result()
            }

            /// After an error, no part of the record was taken.
            pub fn send_or_say(
                &self,
                py: Python<'_>,
                record: &[u8],
                timeout: Option<f64>,
            ) -> PyResult<Sent> {
                let send = |end: &mut protocol::$class, slice| {
                    sent_or_late(end.send(record, Some(slice)))
                };
                if record.len() <= HELD_BYTES_MAX {
                    let sent = self.end.with(py, |end| send(end, Duration::ZERO))?.or_raise()?;
                    if sent.is_some() {
                        return Ok(Sent::Whole);
                    }
                }
                let limit = Limit::new(timeout)?;
                if self.end.wait_more(py, limit, send)?.is_none() {
                    return Ok(Sent::Late);
                }
                if record.len() <= HELD_BYTES_MAX {
                    return Ok(Sent::Whole);
                }
                // Taken, but possibly not sent completely at the end of a slice.
                let flush =
                    |end: &mut protocol::$class, slice| sent_or_late(end.flush(Some(slice)));
                Ok(match self.end.wait_more(py, limit, flush) {
                    Ok(Some(())) => Sent::Whole,
                    Ok(None) => Sent::CutOff,
                    Err(e) => Sent::Failed(e),
                })
            }
        }

        named!($class, |end| Some(end.connection()));
        paired!($class);
        grown!($class);
    };
}
stream_sender!(StreamSender, Plain);
stream_sender!(ApertureStreamSender, Aperture);

fn sent_or_late(sent: Result<(), SendError>) -> Result<Option<()>, SendError> {
    match sent {
        Ok(()) => Ok(Some(())),
        Err(SendError::TimedOut | SendError::CutOff) => Ok(None),
        Err(e) => Err(e),
    }
}

#[cold]
fn cut_off() -> PyErr {
    let text = "the time limit cut the record off: it is taken, and not to be sent again; the rest \
                leaves with the next call";
    error(Kind::CutOff, text)
}

#[cold]
fn late() -> PyErr {
    error(Kind::TimedOut, SendError::TimedOut)
}
