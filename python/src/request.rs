//! A request at its server: what came, and the answer.

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

/// A call to be replied to. Where it goes away without a reply, the client is told that none will
/// come. It does not go away while a name refers to it, such as that of a loop which waits for the
/// next: `with server.receive() as request:` declines what was not replied to at the end of its block,
/// also where an exception leaves it.
#[pyclass(module = "hamlyn", frozen, weakref)]
pub struct Request {
    pub end: Arc<End<Arc<protocol::Server>>>,
    pub data: Py<PyBytes>,
    pub link: LinkId,
    pub which: Which,
    /// Not what keeps it: it goes when it is closed.
    pub server: Weak<protocol::Server>,
    /// `None` once it has been replied to.
    pub arrived: Mutex<Option<Arrived>>,
}

#[pymethods]
impl Request {
    /// What the client sent.
    #[getter]
    fn data(&self, py: Python<'_>) -> Py<PyBytes> {
        self.data.clone_ref(py)
    }

    /// Who calls, as the kernel says. Raises `Closed` of a client that has gone, if the request was
    /// replied to, or as many others as the server may have clients have gone after it.
    #[getter]
    fn peer(&self, py: Python<'_>) -> PyResult<Peer> {
        let peer = self.end.with(py, |server| server.peer_of_which(self.which))?;
        let gone = || error(Kind::Closed, "the client is long gone");
        Ok(Peer { peer: peer.ok_or_else(gone)? })
    }

    /// The client's link. When that has gone another may have this name one day; `peer` never names
    /// another.
    #[getter]
    fn link(&self) -> Link {
        Link { inner: self.end.inner.clone(), id: self.link }
    }

    /// Replies, waiting at most `timeout` seconds for room, and, where the reply is long, for the
    /// client to take it; it is copied for that, and goes on after Ctrl-C. On an error the client is told
    /// that no reply will come. A second reply raises `Misuse`.
    #[pyo3(signature = (data: "Buffer", timeout=10.0))]
    fn reply(&self, py: Python<'_>, data: &Bound<'_, PyAny>, timeout: Option<f64>) -> PyResult<()> {
        with_bytes(data, |data| self.reply_bytes(py, data, timeout))
    }

    /// `reply` with an array, its type and shape. Raises `BufferError` as `pack_array`; then it is not
    /// replied to yet.
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
    /// `ArrayError` where the request is none, or does not fit. Needs numpy.
    #[pyo3(signature = () -> "AnyArray")]
    fn array<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        array::unpack_array(self.data.bind(py))
    }

    /// Answers that the request has failed, waiting at most `timeout` seconds for room: the client's
    /// call raises `ApplicationError` with this text and `code`. A text of more than 1,024 bytes, or than
    /// the client's `reply_nbytes` less 8, is cut off behind a whole character, and ends in "…". After
    /// Ctrl-C it goes on until `timeout`.
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

    /// Seconds until its caller gives up, if it said so; else `None`.
    #[getter]
    fn time_left(&self) -> Option<f64> {
        let deadline = locked(&self.arrived).as_ref()?.deadline()?;
        Some(deadline.saturating_duration_since(Instant::now()).as_secs_f64())
    }

    /// Whether nobody waits for the reply any more: the caller has given up, is gone, or its time is
    /// over. Takes a turn, so that it sees what has been sent by now. A reply is allowed as ever, and
    /// is dropped at the client. Raises `Misuse` where it was replied to already.
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

    // The same of `fail`.
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

/// A request that a thread is to answer: where there is none, its client is told that no reply will come.
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
        // It may go on after Ctrl-C, when nobody keeps the bytes.
        let data = data.to_vec();
        let owed = Owed { server, arrived: Some(arrived) };
        let reply = move || owed.answer(|request| request.reply(&data, timeout));
        on_thread(py, &self.end.inner, || false, reply)?.or_raise()
    }

    /// Answers if that waits for nobody; else what is left to be answered.
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

    /// Whether nothing is left.
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

/// A text of at most `max` bytes, which says that it was longer.
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

/// Why a reply did not leave.
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
        // Where the server is closed, its clients have been told by that.
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
