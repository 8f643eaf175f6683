//! Tagged remote write: receivers and senders.

use crate::bytes::with_bytes;
use crate::end::{End, grown, receiver, sender};
use crate::errors::{Kind, OrRaise, error};
use crate::manager::Manager;
use crate::parts::Link;
use core::time::Duration;
use hamlyn::protocol::{self, ReceiveError, SendError, TaggedConfig};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::sync::Arc;

/// Receives tagged writes: data at an offset of its area, and a tag in its queue.
#[pyclass(module = "hamlyn", frozen, weakref)]
pub struct TaggedReceiver {
    end: Arc<End<protocol::TaggedReceiver>>,
}

/// A tagged write has arrived.
#[pyclass(module = "hamlyn", name = "Tag", frozen)]
pub struct Tagged {
    manager: Arc<crate::inner::Inner>,
    tag: protocol::Tag,
}

#[pymethods]
impl Tagged {
    /// The sender's tag.
    #[getter]
    fn tag(&self) -> u32 {
        self.tag.tag
    }

    /// The link of the sender.
    #[getter]
    fn link(&self) -> Link {
        Link { inner: self.manager.clone(), id: self.tag.link }
    }

    fn __int__(&self) -> u32 {
        self.tag.tag
    }

    fn __repr__(&self) -> String {
        format!("<hamlyn.Tag {}>", self.tag.tag)
    }
}

pub fn timed_out<T>(result: Result<T, ReceiveError>) -> Result<Option<T>, ReceiveError> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(ReceiveError::TimedOut) => Ok(None),
        Err(e) => Err(e),
    }
}

#[pymethods]
impl TaggedReceiver {
    /// A receiver with an area of `nbytes` zero bytes. `tags`: tags that each sender may have in
    /// the queue; `senders_max`: senders at one time.
    #[new]
    #[pyo3(signature = (manager, nbytes, *, tags=256, senders_max=16))]
    fn new(
        py: Python<'_>,
        manager: &Manager,
        nbytes: usize,
        tags: u32,
        senders_max: u32,
    ) -> PyResult<Self> {
        let node = manager.inner.node()?;
        let mut config = TaggedConfig::new(nbytes);
        (config.tags, config.senders_max) = (tags, senders_max);
        let end = py.detach(|| protocol::TaggedReceiver::new(&node, config)).or_raise()?;
        Ok(Self { end: End::new(&manager.inner, end) })
    }

    /// Takes the next tag if one is there or comes in one turn, else `None`.
    fn try_get_tag(&self, py: Python<'_>) -> PyResult<Option<Tagged>> {
        let found = self.end.with(py, |end| end.try_get_tag())?.or_raise()?;
        Ok(found.map(|tag| self.tagged(tag)))
    }

    /// Takes the next tag, in the order of arrival; waits at most `timeout` seconds. Its data is in
    /// the area by then. Raises `TimedOut`.
    #[pyo3(signature = (timeout=None))]
    fn get_tag(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Tagged> {
        let found = self.end.receive(py, timeout, |end, s| timed_out(end.get_tag(Some(s))))?;
        found.map(|tag| self.tagged(tag)).ok_or_else(nothing)
    }

    /// Takes the next message with this tag; other tags that come meanwhile are kept for later, in
    /// their order. Raises `TimedOut`.
    #[pyo3(signature = (tag, timeout=None))]
    fn get_specific_tag(&self, py: Python<'_>, tag: u32, timeout: Option<f64>) -> PyResult<Tagged> {
        let found = self.end.wait(
            py,
            timeout,
            |end| timed_out(end.get_specific_tag(tag, Some(Duration::ZERO))),
            |end, slice| timed_out(end.get_specific_tag(tag, Some(slice))),
        )?;
        found.map(|tag| self.tagged(tag)).ok_or_else(nothing)
    }

    /// Copies `length` bytes out of the area, from `offset` on.
    fn read<'py>(
        &self,
        py: Python<'py>,
        offset: usize,
        length: usize,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let outside = offset.checked_add(length).is_none();
        // An area is no longer than memory; this limits the request before its memory is allocated.
        let size = self.end.with(py, |end| end.with_bytes(<[u8]>::len))?.or_raise()?;
        if outside || offset + length > size {
            let text =
                format!("{length} bytes from {offset} on are not inside the area's 0..{size}");
            return Err(error(Kind::Misuse, text));
        }
        let mut result = Ok(());
        let bytes = PyBytes::new_with(py, length, |to| {
            let node_is_free = self.end.with(py, |end| end.read(offset, to));
            result = node_is_free.and_then(OrRaise::or_raise);
            Ok(())
        })?;
        result.map(|()| bytes)
    }

    /// The number of senders that have a connection now.
    #[getter]
    fn senders(&self, py: Python<'_>) -> PyResult<usize> {
        self.end.with(py, |end| end.senders())
    }
}

receiver!(TaggedReceiver);

impl TaggedReceiver {
    fn tagged(&self, tag: protocol::Tag) -> Tagged {
        Tagged { manager: self.end.inner.clone(), tag }
    }
}

pub const NOTHING: &str = "nothing arrived within the time limit";

#[cold]
pub fn nothing() -> PyErr {
    error(Kind::TimedOut, NOTHING)
}

/// Sends tagged writes.
#[pyclass(module = "hamlyn", frozen, weakref)]
pub struct TaggedSender {
    end: Arc<End<protocol::TaggedSender>>,
}

#[pymethods]
impl TaggedSender {
    /// Writes `data` to the receiver's area at `offset` and `tag` to its queue, waiting at most
    /// `timeout` seconds for room and for the receiver to take earlier tags.
    #[pyo3(signature = (offset, data: "Buffer", tag, timeout=None))]
    fn send(
        &self,
        py: Python<'_>,
        offset: u64,
        data: &Bound<'_, PyAny>,
        tag: u32,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        let sent = with_bytes(data, |data| {
            self.end.wait(
                py,
                timeout,
                |end| end.try_send(offset, data, tag).map(|sent| sent.then_some(())),
                |end, slice| match end.send(offset, data, tag, Some(slice)) {
                    Ok(()) => Ok(Some(())),
                    Err(SendError::TimedOut) => Ok(None),
                    Err(e) => Err(e),
                },
            )
        })?;
        sent.ok_or_else(|| error(Kind::TimedOut, SendError::TimedOut))
    }

    /// `send` without waiting: `False`, and nothing was sent, if it would have to wait.
    #[pyo3(signature = (offset, data: "Buffer", tag))]
    fn try_send(
        &self,
        py: Python<'_>,
        offset: u64,
        data: &Bound<'_, PyAny>,
        tag: u32,
    ) -> PyResult<bool> {
        with_bytes(data, |data| {
            self.end.with(py, |end| end.try_send(offset, data, tag))?.or_raise()
        })
    }

    /// Most bytes of one write: those of a packet.
    #[getter]
    fn nbytes_max(&self, py: Python<'_>) -> PyResult<usize> {
        self.end.with(py, |end| end.bytes_max())
    }

    /// The size of the receiver's area, in bytes.
    #[getter]
    fn capacity(&self, py: Python<'_>) -> PyResult<u64> {
        self.end.with(py, |end| end.capacity())
    }
}

sender!(TaggedSender);
grown!(TaggedSender);
