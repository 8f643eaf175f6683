//! A request at its server: the client's bytes, and the answer.

use crate::admission::outside;
use crate::array;
use crate::bytes::with_bytes;
use crate::end::End;
use crate::errors::{Kind, OrRaise, ToPy, error};
use crate::inner::locked;
use crate::manager::Manager;
use crate::parts::{Link, Peer};
use crate::wait::{duration, on_thread};
use hamlyn::LinkId;
use hamlyn::protocol::{self, Arrived, CallError, Which};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::sync::{Arc, Mutex, Weak};
use std::time::Instant;

/// A call to be replied to. If the object is dropped without a reply, the client learns that no
/// reply will come. It is not dropped while a name refers to it, such as the variable of a loop
/// that waits for the next: `with server.receive() as request:` declines an unanswered request at
/// the end of its block, also if an exception leaves the block.
#[pyclass(module = "hamlyn", frozen, weakref)]
pub struct Request {
    pub end: Arc<End<Arc<protocol::Server>>>,
    pub data: Py<PyBytes>,
    pub link: LinkId,
    pub which: Which,
    /// A weak reference: the server goes when it is closed.
    pub server: Weak<protocol::Server>,
    /// `None` once it has been replied to.
    pub arrived: Mutex<Option<Arrived>>,
}

#[pymethods]
impl Request {
    /// The client's bytes.
    #[getter]
    fn data(&self, py: Python<'_>) -> Py<PyBytes> {
        self.data.clone_ref(py)
    }

    /// The identity of the caller, from the kernel. Raises `Closed` for a client that has left, if
    /// the request was replied to, or as many others as the server may have clients have left after
    /// it.
    #[getter]
    fn peer(&self, py: Python<'_>) -> PyResult<Peer> {
        let peer = self.end.with(py, |server| server.peer_of_which(self.which))?;
        let gone = || error(Kind::Closed, "the client is long gone");
        Ok(Peer { peer: peer.ok_or_else(gone)? })
    }

    /// The client's link. After the link ends its name may be reused one day; `peer` never names
    /// another client.
    #[getter]
    fn link(&self) -> Link {
        Link { inner: self.end.inner.clone(), id: self.link }
    }

    /// Replies, waiting at most `timeout` seconds for room, and, if the reply is long, for the
    /// client to take it; a long reply is copied, and goes on after Ctrl-C. After an error the
    /// client learns that no reply will come. A second reply raises `Misuse`.
    #[pyo3(signature = (data: "Buffer", timeout=10.0))]
    fn reply(&self, py: Python<'_>, data: &Bound<'_, PyAny>, timeout: Option<f64>) -> PyResult<()> {
        with_bytes(data, |data| self.reply_bytes(py, data, timeout))
    }

    /// `reply` with an array, its type and shape. Raises `BufferError` as `pack_array`; then there
    /// is no reply yet.
    #[pyo3(signature = (array: "Buffer", timeout=10.0))]
    fn reply_array(
        &self,
        py: Python<'_>,
        array: &Bound<'_, PyAny>,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        array::with_message(array, |message| self.reply_bytes(py, message, timeout))
    }

    /// The array that the client sent with `call_array`: checked, then shown, read-only. Raises
    /// `ArrayError` if the request is not an array, or does not fit. Needs numpy.
    #[pyo3(signature = () -> "AnyArray")]
    fn array<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        array::unpack_array(self.data.bind(py))
    }

    /// Answers that the request has failed, waiting at most `timeout` seconds for room: the
    /// client's call raises `ApplicationError` with this text and `code`. A text of more than 1,024
    /// bytes, or than the client's `reply_nbytes` less 8, is cut off after a whole character, and
    /// ends in "…". After Ctrl-C it goes on until `timeout`.
    #[pyo3(signature = (code, text, timeout=10.0))]
    fn fail(&self, py: Python<'_>, code: u32, text: &str, timeout: Option<f64>) -> PyResult<()> {
        let timeout = duration(timeout)?;
        let server = self.end.with(py, |server| server.clone())?;
        let mut cut = String::new();
        let Some(arrived) = self.try_answer(py, |request| {
            cut = cut_off(text, request.error_text_max());
            request.try_fail(code, &cut)
        })?
        else {
            return Ok(());
        };
        let owed = Owed { server, arrived: Some(arrived) };
        let fail = move || owed.answer(|request| request.fail(code, &cut, timeout));
        on_thread(py, &self.end.inner, || false, fail)?.or_raise()
    }

    /// Seconds until the caller gives up, if the server knows its limit; else `None`.
    #[getter]
    fn time_left(&self) -> Option<f64> {
        let deadline = locked(&self.arrived).as_ref()?.deadline()?;
        Some(deadline.saturating_duration_since(Instant::now()).as_secs_f64())
    }

    /// Whether no caller waits for the reply any more: it has given up, is gone, or its time limit
    /// has passed. Takes a turn, so that the answer is up to date. A reply is still allowed, and is
    /// dropped at the client. Raises `Misuse` if there was a reply already.
    fn is_cancelled(&self, py: Python<'_>) -> PyResult<bool> {
        // Not while it is locked: the turn may wait for a thread that waits for the interpreter.
        let (which, deadline) = {
            let arrived = locked(&self.arrived);
            let arrived = arrived.as_ref().ok_or_else(replied)?;
            (arrived.which(), arrived.deadline())
        };
        if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
            return Ok(true);
        }
        self.end.with(py, |server| server.is_given_up(which))
    }

    // Whether the reply has left without waiting; otherwise nothing was done.
    #[pyo3(signature = (data: "Buffer"))]
    fn _try_reply(&self, py: Python<'_>, data: &Bound<'_, PyAny>) -> PyResult<bool> {
        with_bytes(data, |data| {
            let left = self.try_answer(py, |request| request.try_reply(data))?;
            Ok(self.keep(left))
        })
    }

    // The same for `fail`.
    fn _try_fail(&self, py: Python<'_>, code: u32, text: &str) -> PyResult<bool> {
        let left = self.try_answer(py, |request| {
            let text = cut_off(text, request.error_text_max());
            request.try_fail(code, &text)
        })?;
        Ok(self.keep(left))
    }

    #[getter]
    fn _manager(&self) -> Manager {
        Manager { inner: self.end.inner.clone() }
    }

    fn __enter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exception: "object"))]
    fn __exit__(&self, _exception: &Bound<'_, PyAny>) {
        self.let_go();
    }

    /// Tells the client that no reply will come.
    fn decline(&self, py: Python<'_>) -> PyResult<()> {
        let server = self.end.with(py, |server| server.clone())?;
        let arrived = self.take()?;
        py.detach(move || drop(server.attach(arrived)));
        Ok(())
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        format!("<hamlyn.Request of {} bytes>", self.data.bind(py).as_bytes().len())
    }
}

/// A request for a thread to answer: if there is no thread, its client learns that no reply will
/// come.
struct Owed {
    server: Arc<protocol::Server>,
    arrived: Option<Arrived>,
}

impl Owed {
    fn answer(
        mut self,
        answer: impl FnOnce(protocol::Request<'_>) -> Result<(), CallError>,
    ) -> Result<(), Unreplied> {
        let Some(arrived) = self.arrived.take() else { return Ok(()) };
        answer(self.server.attach(arrived)).map_err(Unreplied)
    }
}

impl Drop for Owed {
    fn drop(&mut self) {
        if let Some(arrived) = self.arrived.take() {
            drop(self.server.attach(arrived));
        }
    }
}

impl Request {
    fn reply_bytes(&self, py: Python<'_>, data: &[u8], timeout: Option<f64>) -> PyResult<()> {
        let timeout = duration(timeout)?;
        let server = self.end.with(py, |server| server.clone())?;
        let left = self.try_answer(py, |request| request.try_reply(data))?;
        let Some(arrived) = left else { return Ok(()) };
        // It may go on after Ctrl-C, when the caller no longer keeps the bytes.
        let data = data.to_vec();
        let owed = Owed { server, arrived: Some(arrived) };
        let reply = move || owed.answer(|request| request.reply(&data, timeout));
        on_thread(py, &self.end.inner, || false, reply)?.or_raise()
    }

    /// Answers if that needs no wait; else returns the unanswered request.
    fn try_answer(
        &self,
        py: Python<'_>,
        answer: impl FnOnce(protocol::Request<'_>) -> Result<Option<protocol::Request<'_>>, CallError>
        + Send,
    ) -> PyResult<Option<Arrived>> {
        let server = self.end.with(py, |server| server.clone())?;
        let arrived = self.take()?;
        let tried = py.detach(move || {
            answer(server.attach(arrived)).map(|left| left.map(protocol::Request::detach))
        });
        tried.map_err(unreplied)
    }

    /// Keeps an unanswered request; returns whether there is none.
    fn keep(&self, left: Option<Arrived>) -> bool {
        let is_sent = left.is_none();
        *locked(&self.arrived) = left;
        is_sent
    }

    fn take(&self) -> PyResult<Arrived> {
        let arrived = locked(&self.arrived).take();
        arrived.ok_or_else(replied)
    }
}

/// A text of at most `max` bytes, with a mark if it was longer.
fn cut_off(text: &str, max: usize) -> String {
    const MARK: &str = "…";
    if text.len() <= max {
        return text.into();
    }
    let mut kept = max.saturating_sub(MARK.len());
    while !text.is_char_boundary(kept) {
        kept -= 1;
    }
    [&text[..kept], MARK].concat()
}

/// The reason why a reply did not leave.
struct Unreplied(CallError);

impl ToPy for Unreplied {
    fn to_py(self) -> PyErr {
        unreplied(self.0)
    }
}

#[cold]
fn unreplied(e: CallError) -> PyErr {
    let text = "the reply did not leave within the time limit: the client takes nothing, or makes no \
                room for a long one; it is told that none will come";
    match e {
        CallError::TimedOut | CallError::NoRoom => error(Kind::TimedOut, text),
        e => e.to_py(),
    }
}

#[cold]
fn replied() -> PyErr {
    error(Kind::Misuse, "the request was replied to already")
}

impl Request {
    /// Declines, unless it was replied to.
    fn let_go(&self) {
        let Some(arrived) = locked(&self.arrived).take() else { return };
        // If the server is closed, its clients have learned that already.
        // In a forked child it is the parent's.
        if self.end.inner.check_fork().is_err() {
            return;
        }
        let Some(server) = self.server.upgrade() else { return };
        outside(&self.end.inner, move || drop(server.attach(arrived)));
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        self.let_go();
    }
}
