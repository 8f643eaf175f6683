//! Datagrams: receivers and senders.

use crate::array;
use crate::bytes::{export, with_bytes};
use crate::end::{End, grown, receiver, sender};
use crate::errors::{Kind, OrRaise, error};
use crate::manager::Manager;
use crate::parts::{Link, Ticket};
use crate::tagged::{nothing, timed_out};
use crate::wait::Limit;
use core::ffi::c_int;
use core::time::Duration;
use hamlyn::protocol::{self, SendError};
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use std::sync::Arc;

/// Receives datagrams, one at a time: a message lands in the area, and stays until `ready()`.
#[pyclass(module = "hamlyn", frozen, weakref)]
pub struct DatagramReceiver {
    end: Arc<End<protocol::DatagramReceiver>>,
}

/// A datagram. It has the buffer protocol, read-only, without a copy: its bytes are stable until
/// its receiver is made ready for the next one, which is refused while any view shows them.
#[pyclass(module = "hamlyn", frozen, weakref)]
pub struct Datagram {
    end: Arc<End<protocol::DatagramReceiver>>,
    datagram: protocol::Datagram,
}

#[pymethods]
impl Datagram {
    /// Where its bytes begin in the receiver's area.
    #[getter]
    fn offset(&self) -> usize {
        self.datagram.offset
    }

    /// Whether its sender wants an answer.
    #[getter]
    fn wants_reply(&self) -> bool {
        self.datagram.reply.is_some()
    }

    /// The link over which it came.
    #[getter]
    fn link(&self) -> Link {
        Link { inner: self.end.inner.clone(), id: self.datagram.link }
    }

    /// Answers it with the ticket that came with it; waits at most `timeout` seconds for room. Does
    /// not report whether the other end was ready. If the time limit passes (`TimedOut` says so) or
    /// Ctrl-C ends the call, part of a long answer may have left: the rest is then kept, and leaves
    /// first in the next answer over this link; if the receiver or the link is closed before, the
    /// answer is never complete. Otherwise nothing of it was sent.
    #[pyo3(signature = (data: "Buffer", timeout=None))]
    fn reply(&self, py: Python<'_>, data: &Bound<'_, PyAny>, timeout: Option<f64>) -> PyResult<()> {
        with_bytes(data, |data| self.reply_bytes(py, data, timeout))
    }

    /// `reply` with an array, its type and shape. Raises `BufferError` as `pack_array`.
    #[pyo3(signature = (array: "Buffer", timeout=None))]
    fn reply_array(
        &self,
        py: Python<'_>,
        array: &Bound<'_, PyAny>,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        array::with_message(array, |message| self.reply_bytes(py, message, timeout))
    }

    /// The array sent by `send_array`: checked, then shown in place, read-only. While the array
    /// exists, the receiver cannot be made ready. Raises `ArrayError` if the datagram is not an
    /// array, or does not fit. Needs numpy.
    #[pyo3(signature = () -> "AnyArray")]
    fn array<'py>(slf: Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        // A buffer keeps its bytes stable: the receiver cannot be made ready meanwhile.
        array::unpack_array(slf.as_any())
    }

    fn __len__(&self) -> usize {
        self.datagram.length
    }

    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let this = slf.get();
        let place = |end: &mut protocol::DatagramReceiver| {
            end.with_bytes(&this.datagram, |bytes| {
                (bytes.as_ptr().expose_provenance(), bytes.len())
            })
        };
        this.end.lend()?;
        let shown = this.end.with(slf.py(), place).and_then(OrRaise::or_raise);
        let shown = shown.and_then(|(start, length)| {
            // SAFETY: the bytes lie in the receiver's area, which stays while `End` has lent a
            // buffer of it.
            unsafe { export(slf.as_any(), view, flags, start as *mut u8, length, true) }
        });
        if shown.is_err() {
            this.end.take_back();
        }
        shown
    }

    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {
        self.end.take_back();
    }

    fn __repr__(&self) -> String {
        format!("<hamlyn.Datagram of {} bytes>", self.datagram.length)
    }
}

#[pymethods]
impl DatagramReceiver {
    /// A receiver with an area of `nbytes` zero bytes, which is ready for one datagram.
    #[new]
    fn new(py: Python<'_>, manager: &Manager, nbytes: usize) -> PyResult<Self> {
        let node = manager.inner.node()?;
        let end = py.detach(|| protocol::DatagramReceiver::new(&node, nbytes)).or_raise()?;
        Ok(Self { end: End::new(&manager.inner, end) })
    }

    /// Receives the datagram if one is there or comes in one turn, else `None`.
    fn try_receive(&self, py: Python<'_>) -> PyResult<Option<Datagram>> {
        let found = self.end.with(py, |end| end.try_receive())?.or_raise()?;
        Ok(found.map(|datagram| self.hand_out(datagram)))
    }

    /// Receives the datagram; waits at most `timeout` seconds. Afterwards the receiver is not ready
    /// for another: datagrams sent meanwhile are dropped. Raises `TimedOut`.
    #[pyo3(signature = (timeout=None))]
    fn receive(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Datagram> {
        let found = self.end.receive(py, timeout, |end, s| timed_out(end.receive(Some(s))))?;
        found.map(|datagram| self.hand_out(datagram)).ok_or_else(nothing)
    }

    /// Makes the receiver ready: the bytes of the previous datagram may change from now on. Raises
    /// `BufferError` while an array or a view shows them. `anew`: with a new key, so that every
    /// issued ticket is worthless.
    #[pyo3(signature = (*, anew=false))]
    fn make_ready(&self, py: Python<'_>, anew: bool) -> PyResult<()> {
        // Checked with the receiver locked: a thread that lends the datagram afterwards gets an
        // error.
        let made = self.end.with(py, |end| match self.end.buffers() {
            0 => Ok(if anew { end.ready_anew() } else { end.ready() }),
            n => Err(n),
        })?;
        match made {
            Ok(made) => made.or_raise(),
            Err(n) => {
                let text = format!("{n} views or arrays still show the datagram");
                Err(PyBufferError::new_err(text))
            }
        }
    }

    /// A ticket to send one datagram to this receiver whenever it is ready; pass it as the `reply`
    /// of a datagram.
    fn reply_ticket(&self, py: Python<'_>) -> PyResult<Ticket> {
        Ok(Ticket { ticket: self.end.with(py, |end| end.reply_ticket())? })
    }

    /// Whether it is ready for a datagram.
    #[getter]
    fn takes_one(&self, py: Python<'_>) -> PyResult<bool> {
        self.end.with(py, |end| end.is_ready_for_one())
    }

    /// Senders that have a connection now.
    #[getter]
    fn senders(&self, py: Python<'_>) -> PyResult<usize> {
        self.end.with(py, |end| end.senders())
    }
}

receiver!(DatagramReceiver);

impl DatagramReceiver {
    fn hand_out(&self, datagram: protocol::Datagram) -> Datagram {
        Datagram { end: self.end.clone(), datagram }
    }
}

/// Sends datagrams.
#[pyclass(module = "hamlyn", frozen, weakref)]
pub struct DatagramSender {
    end: Arc<End<protocol::DatagramSender>>,
}

#[pymethods]
impl DatagramSender {
    /// Sends `data`, of any length, to the receiver's area at `offset`, and with it, as `reply`, a
    /// ticket for the answer (`DatagramReceiver.reply_ticket` of this manager). Waits at most
    /// `timeout` seconds for room. Does not report whether the receiver was ready.
    #[pyo3(signature = (data: "Buffer", offset=0, *, reply=None, timeout=None))]
    fn send(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        offset: u64,
        reply: Option<&Ticket>,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        with_bytes(data, |data| self.send_bytes(py, data, offset, reply, timeout))
    }

    /// `send` of an array with its type and shape, for the datagram's `array()`. Raises
    /// `BufferError` as `pack_array`.
    #[pyo3(signature = (array: "Buffer", offset=0, *, reply=None, timeout=None))]
    fn send_array(
        &self,
        py: Python<'_>,
        array: &Bound<'_, PyAny>,
        offset: u64,
        reply: Option<&Ticket>,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        array::with_message(array, |message| self.send_bytes(py, message, offset, reply, timeout))
    }

    /// After a time limit has cut a datagram off: waits at most `timeout` seconds until the rest
    /// has left; returns whether it has.
    #[pyo3(signature = (timeout=None))]
    fn flush(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        let flushed = self.end.wait_more(py, Limit::new(timeout)?, |end, slice| {
            match end.flush(Some(slice)) {
                Ok(()) => Ok(Some(())),
                Err(SendError::CutOff) => Ok(None),
                Err(e) => Err(e),
            }
        })?;
        Ok(flushed.is_some())
    }

    /// The size of the receiver's area, in bytes.
    #[getter]
    fn capacity(&self, py: Python<'_>) -> PyResult<u64> {
        self.end.with(py, |end| end.capacity())
    }
}

impl Datagram {
    fn reply_bytes(&self, py: Python<'_>, data: &[u8], timeout: Option<f64>) -> PyResult<()> {
        let datagram = &self.datagram;
        send_all(
            py,
            &self.end,
            data,
            timeout,
            |end, data, slice| end.reply(datagram, data, Some(slice)),
            |end, slice| end.flush_reply(datagram, Some(slice)),
        )
    }
}

impl DatagramSender {
    fn send_bytes(
        &self,
        py: Python<'_>,
        data: &[u8],
        offset: u64,
        reply: Option<&Ticket>,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        let reply = reply.map(|reply| &reply.ticket);
        send_all(
            py,
            &self.end,
            data,
            timeout,
            |end, data, slice| end.send(data, offset, reply, Some(slice)),
            |end, slice| end.flush(Some(slice)),
        )
    }
}

sender!(DatagramSender);
grown!(DatagramSender);

/// Datagrams up to this size are sent with the interpreter's lock held.
const HELD_BYTES_MAX: usize = 16 << 10;

/// Sends `data` with `send`; `flush` sends the rest that a slice has cut off, until `timeout`.
fn send_all<T: Send>(
    py: Python<'_>,
    end: &End<T>,
    data: &[u8],
    timeout: Option<f64>,
    send: impl Fn(&mut T, &[u8], Duration) -> Result<(), SendError> + Sync,
    flush: impl Fn(&mut T, Duration) -> Result<(), SendError> + Sync,
) -> PyResult<()> {
    let limit = Limit::new(timeout)?;
    let mut is_cut_off = false;
    let mut attempt = |end: &mut T, slice: Duration| {
        let sent = if is_cut_off { flush(end, slice) } else { send(end, data, slice) };
        match sent {
            Ok(()) => Ok(Some(())),
            Err(SendError::TimedOut) => Ok(None),
            Err(SendError::CutOff) => {
                is_cut_off = true;
                Ok(None)
            }
            Err(e) => Err(e),
        }
    };
    // A short one is in the ring sooner than the interpreter's lock is given up.
    if data.len() <= HELD_BYTES_MAX
        && end.with(py, |end| attempt(end, Duration::ZERO))?.or_raise()?.is_some()
    {
        return Ok(());
    }
    let sent = end.wait_more(py, limit, &mut attempt);
    // An exception of a signal handler does not say how much of the datagram has left.
    let sent = sent.inspect_err(|raised| {
        // The library's own errors say so, or the connection has ended.
        let is_own = || -> PyResult<bool> {
            let class = py.import("hamlyn._errors")?.getattr("HamlynError")?;
            raised.value(py).is_instance(&class)
        };
        if is_cut_off && !is_own().unwrap_or(true) {
            let note = "a part of the datagram was sent; the rest leaves with the next";
            _ = raised.value(py).call_method1("add_note", (note,));
        }
    })?;
    sent.ok_or_else(|| {
        let cut_off = "the time limit cut the datagram off; the rest leaves with the next";
        match is_cut_off {
            true => error(Kind::CutOff, cut_off),
            false => {
                let text = "there was no room within the time limit; nothing was sent";
                error(Kind::TimedOut, text)
            }
        }
    })
}
