//! Records of streams that are written before they are sent, in memory that a sender lends.
//!
//! The memory is the loan's own, and is copied once, into the link, like that of a long loan in
//! Rust, since the ring has headers between the bytes. So a view of it never shows sent bytes, or
//! another record: while Python has a view the loan is neither sent nor given back, and afterwards
//! it gives out no more.

use crate::array::{Header, Memory};
use crate::errors::{Kind, error};
use crate::inner::locked;
use crate::lent::Lent;
use crate::stream_sender::{ApertureStreamSender, Sent, StreamSender};
use core::ffi::c_int;
use pyo3::ffi;
use pyo3::prelude::*;
use std::sync::Mutex;

/// The loan's sender.
pub enum Sender {
    Plain(Py<StreamSender>),
    Aperture(Py<ApertureStreamSender>),
}

/// A record that has yet to be sent. It has the buffer protocol, writable; `send()` and `release()`
/// raise `BufferError` while a buffer of it exists, such as an array. Dropping the object, or
/// leaving its `with` block, releases it without sending it. Its memory is the loan's own; `send()`
/// copies it once, into the link or the aperture.
#[pyclass(module = "hamlyn", frozen, weakref)]
pub struct RecordLoan {
    sender: Sender,
    memory: Mutex<Option<Memory>>,
    /// The record, with the header.
    lent: Lent,
    header: Option<Header>,
}

impl RecordLoan {
    /// A record of `length` bytes, all zero but for the header, of at most `max`.
    pub fn new(
        sender: Sender,
        length: usize,
        max: usize,
        header: Option<Header>,
    ) -> PyResult<Self> {
        if length > max {
            let text = format!(
                "a record of {length} bytes, its header included, is longer than the receiver's {max} \
                 (record_nbytes_max)"
            );
            return Err(error(Kind::Misuse, text));
        }
        // Memory has at least one byte.
        let memory = Memory::new(length.max(1)).ok_or_else(|| {
            error(Kind::Misuse, format!("{length} bytes are more than memory can have"))
        })?;
        if let Some(header) = &header {
            // SAFETY: the header's bytes are the first of memory that has no other user yet.
            header.put(unsafe { core::slice::from_raw_parts_mut(memory.at(0), header.start()) });
        }
        let start = memory.at(0).expose_provenance();
        let lent = Lent::new(["record", "sent or released"], start, length);
        Ok(Self { sender, memory: Mutex::new(Some(memory)), lent, header })
    }

    fn head_bytes(&self) -> usize {
        self.header.as_ref().map_or(0, Header::start)
    }
}

#[pymethods]
impl RecordLoan {
    /// Sends it, as the sender's `send` does. After an error that took nothing, such as `TimedOut`,
    /// it may be sent again. Once the record is taken the loan is over, even if the time limit cuts
    /// the record off (`CutOff`) or a signal handler raises while the rest leaves: the rest leaves
    /// with the sender's next call.
    #[pyo3(signature = (timeout=None))]
    fn send(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        self.lent.end()?;
        // Taken out: no other call gives it back meanwhile, or finds the lock held.
        let memory = locked(&self.memory).take();
        let Some(kept) = &memory else { return self.lent.check() };
        // SAFETY: `kept` lives that long, at least; no buffer of it exists, and none will.
        let bytes = unsafe { core::slice::from_raw_parts(kept.at(0), self.lent.length()) };
        let sent = match &self.sender {
            Sender::Plain(sender) => sender.get().send_or_say(py, bytes, timeout),
            Sender::Aperture(sender) => sender.get().send_or_say(py, bytes, timeout),
        };
        // Do not send again a record that was taken, whatever was raised afterwards.
        if matches!(sent, Err(_) | Ok(Sent::Late)) {
            *locked(&self.memory) = memory;
            self.lent.goes_on();
        }
        sent?.result()
    }

    /// Gives it back unsent. Does nothing if it was released or sent.
    fn release(&self) -> PyResult<()> {
        if !self.lent.is_over() {
            self.lent.end()?;
            drop(locked(&self.memory).take());
        }
        Ok(())
    }

    /// Shortens the record to at most `nbytes` bytes. Earlier views show the cut-off bytes, too.
    /// Raises `Misuse` for an array.
    fn truncate(&self, nbytes: usize) -> PyResult<()> {
        if self.header.is_some() {
            return Err(error(Kind::Misuse, "an array's record has the length of its array"));
        }
        self.lent.check()?;
        self.lent.shorten(nbytes);
        Ok(())
    }

    /// The array, in this memory: only for a record of `loan_array`. Needs numpy.
    #[pyo3(signature = () -> "AnyArray")]
    fn array<'py>(slf: Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        match &slf.get().header {
            Some(header) => header.show(slf.as_any(), 0),
            None => Err(error(Kind::Misuse, "loan_array makes records for arrays")),
        }
    }

    // Whether this sender has lent it.
    #[pyo3(signature = (sender: "object"))]
    fn _is_of(&self, sender: &Bound<'_, PyAny>) -> bool {
        let own = match &self.sender {
            Sender::Plain(own) => own.as_ptr(),
            Sender::Aperture(own) => own.as_ptr(),
        };
        own == sender.as_ptr()
    }

    fn __len__(&self) -> usize {
        self.lent.length() - self.head_bytes()
    }

    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let this = slf.get();
        // SAFETY: the memory is this object's until `lent` has ended. The part that `truncate` cuts
        // off stays.
        unsafe { this.lent.view(slf.as_any(), view, flags, this.head_bytes()) }
    }

    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {
        self.lent.returned();
    }

    fn __enter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exception: "object"))]
    fn __exit__(&self, _exception: &Bound<'_, PyAny>) -> PyResult<()> {
        self.release()
    }

    fn __repr__(&self) -> String {
        let state = if self.lent.is_over() { ", gone" } else { "" };
        format!("<hamlyn.RecordLoan of {} bytes{state}>", self.__len__())
    }
}
