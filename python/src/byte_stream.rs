//! Byte streams: bytes in both directions, as over a socket. `hamlyn/_transports.py` makes
//! asyncio's transports of them.

use crate::bytes::{with_bytes, with_bytes_mut};
use crate::end::{End, connect, grow, ready, receiver, sender};
use crate::errors::{Kind, OrRaise, error};
use crate::inner::locked;
use crate::job::Job;
use crate::manager::Manager;
use crate::tagged::{nothing, timed_out};
use crate::wait::duration;
use core::cell::Cell;
use core::time::Duration;
use hamlyn::protocol::{self, ByteConfig, ByteStreamError, EndPoint};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::io::IoSlice;
use std::sync::{Arc, Mutex};
use std::time::Instant;

type Stream = Arc<protocol::ByteStream>;

/// Accepts byte streams. Any number of threads may accept.
#[pyclass(module = "hamlyn", frozen, weakref)]
pub struct ByteListener {
    end: Arc<End<Arc<protocol::ByteListener>>>,
}

/// One side of a connection: bytes in both directions, in order. One thread may receive while
/// another sends. Bytes that a send took arrive even if this process ends. After a close, too, the
/// peer receives the sent bytes, and then the end.
#[pyclass(module = "hamlyn", frozen, weakref)]
pub struct ByteStream {
    end: Arc<End<Stream>>,
}

fn config(window_nbytes: u32, packets: u32) -> ByteConfig {
    ByteConfig { window_bytes: window_nbytes, packets, ..ByteConfig::default() }
}

/// Most bytes of one `recv`, however large its argument.
const RECV_BYTES_MAX: usize = 1 << 20;

thread_local! {
    /// A buffer for bytes whose number is not known yet: zeroing a new one would cost more than a
    /// message.
    static SCRATCH: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

fn not_yet<T>(result: Result<T, ByteStreamError>) -> Result<Option<T>, ByteStreamError> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(ByteStreamError::TimedOut) => Ok(None),
        Err(e) => Err(e),
    }
}

#[pymethods]
impl ByteListener {
    /// A listener; streams find it by name or grow from its seed. `window_nbytes`: bytes that each
    /// peer may send before they are received, a power of two from 4 KiB to 16 MiB; `packets`:
    /// packets, from 8 to 1,024. `connections_max`: connections at one time, accepted or not.
    #[new]
    #[pyo3(signature = (manager, *, window_nbytes=262_144, packets=256, connections_max=256))]
    fn new(
        py: Python<'_>,
        manager: &Manager,
        window_nbytes: u32,
        packets: u32,
        connections_max: u32,
    ) -> PyResult<Self> {
        let node = manager.inner.node()?;
        let config = ByteConfig { connections_max, ..config(window_nbytes, packets) };
        let made = py.detach(|| protocol::ByteListener::new(&node, config)).or_raise()?;
        Ok(Self { end: End::new(&manager.inner, Arc::new(made)) })
    }

    /// Accepts the next connection if one is there or comes in one turn, else `None`.
    fn try_accept(&self, py: Python<'_>) -> PyResult<Option<ByteStream>> {
        let found = self.end.with(py, |end| end.try_accept())?.or_raise()?;
        Ok(found.map(|stream| self.hand_out(stream)))
    }

    /// Accepts the next connection; waits at most `timeout` seconds. It outlives the listener, and
    /// its bytes may be there already. Raises `TimedOut`.
    #[pyo3(signature = (timeout=None))]
    fn accept(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<ByteStream> {
        let found = self.end.wait_shared(
            py,
            timeout,
            |end| end.try_accept(),
            |end, slice| timed_out(end.accept(Some(slice))),
        )?;
        found.map(|stream| self.hand_out(stream)).ok_or_else(nothing)
    }

    /// The number of connections: accepted and not closed, waiting to be accepted, or on their way.
    #[getter]
    fn connections(&self, py: Python<'_>) -> PyResult<usize> {
        self.end.with(py, |end| end.connections())
    }

    /// Peers that were disconnected because they broke the rules.
    #[getter]
    fn misbehaved(&self, py: Python<'_>) -> PyResult<u64> {
        self.end.with(py, |end| end.misbehaved())
    }
}

impl ByteListener {
    /// Whether `try_accept` would return a connection.
    pub fn is_ready(&self, py: Python<'_>) -> PyResult<bool> {
        self.end.with(py, |end| EndPoint::is_ready(end))
    }

    fn hand_out(&self, stream: protocol::ByteStream) -> ByteStream {
        ByteStream { end: End::new(&self.end.inner, Arc::new(stream)) }
    }
}

receiver!(ByteListener);

#[pymethods]
impl ByteStream {
    /// Connects to the listener served as `[user@]name`, waiting at most `timeout` seconds for a
    /// server of that name and for its answer. `window_nbytes` and `packets`: limits for the
    /// listener's bytes, as those of a `ByteListener` for its peers.
    #[staticmethod]
    #[pyo3(signature = (manager, name, timeout=10.0, *, window_nbytes=262_144, packets=256))]
    fn connect(
        py: Python<'_>,
        manager: &Manager,
        name: String,
        timeout: Option<f64>,
        window_nbytes: u32,
        packets: u32,
    ) -> PyResult<Self> {
        let config = config(window_nbytes, packets);
        Ok(Self { end: connect(py, manager, name, config, timeout, Stream::new)? })
    }

    /// Connects by a listener's seed (a `Seed`, or the bytes or text of one); otherwise as
    /// `connect`.
    #[staticmethod]
    #[pyo3(signature = (
        manager, seed: "Seed | Buffer | str", timeout=10.0, *, window_nbytes=262_144, packets=256
    ))]
    fn grow(
        py: Python<'_>,
        manager: &Manager,
        seed: &Bound<'_, PyAny>,
        timeout: Option<f64>,
        window_nbytes: u32,
        packets: u32,
    ) -> PyResult<Self> {
        let config = config(window_nbytes, packets);
        Ok(Self { end: grow(py, manager, seed, config, timeout, Stream::new)? })
    }

    /// Connects to the listener that a job's rank offers under `name`, waiting for it at most
    /// `timeout` seconds; otherwise as `connect`.
    #[staticmethod]
    #[pyo3(signature = (job, rank, name, timeout=10.0, *, window_nbytes=262_144, packets=256))]
    fn grow_from(
        py: Python<'_>,
        job: &Job,
        rank: u32,
        name: String,
        timeout: Option<f64>,
        window_nbytes: u32,
        packets: u32,
    ) -> PyResult<Self> {
        let config = config(window_nbytes, packets);
        Ok(Self { end: job.grow(py, (rank, name), config, timeout, Stream::new)? })
    }

    /// Receives up to `nbytes` bytes, waiting at most `timeout` seconds for the first of them.
    /// Empty: the peer has shut down its direction, and all of its bytes were received. Raises
    /// `TimedOut`, and `Closed` if the peer is gone without a shutdown.
    #[pyo3(signature = (nbytes, timeout=None))]
    fn recv<'py>(
        &self,
        py: Python<'py>,
        nbytes: usize,
        timeout: Option<f64>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        self.receive_new(py, nbytes, timeout)?.ok_or_else(late)
    }

    /// Receives into `target`, a bytearray or another writable buffer, at most as much as it holds;
    /// returns the number of bytes. Otherwise as `recv`.
    #[pyo3(signature = (target: "Buffer", timeout=None))]
    fn recv_into(
        &self,
        py: Python<'_>,
        target: &Bound<'_, PyAny>,
        timeout: Option<f64>,
    ) -> PyResult<usize> {
        with_bytes_mut(target, |to| {
            checked(to.len())?;
            self.receive(py, to, timeout)?.ok_or_else(late)
        })
    }

    /// `recv` without waiting: `None` if nothing has come.
    fn try_recv<'py>(
        &self,
        py: Python<'py>,
        nbytes: usize,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        self.receive_new(py, nbytes, Some(0.0))
    }

    /// `recv_into` without waiting: `None` if nothing has come.
    #[pyo3(signature = (target: "Buffer"))]
    fn try_recv_into(&self, py: Python<'_>, target: &Bound<'_, PyAny>) -> PyResult<Option<usize>> {
        with_bytes_mut(target, |to| {
            checked(to.len())?;
            self.receive(py, to, Some(0.0))
        })
    }

    /// Sends as much of `data` as there is room for, waiting at most `timeout` seconds for room for
    /// the first byte; returns the number of bytes taken. Raises `TimedOut`, and `Closed` if the
    /// peer is gone; then no bytes were taken.
    #[pyo3(signature = (data: "Buffer", timeout=None))]
    fn send(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        timeout: Option<f64>,
    ) -> PyResult<usize> {
        with_bytes(data, |data| self.transmit(py, data, timeout)?.ok_or_else(late))
    }

    /// `send` without waiting: 0 if there is no room now.
    #[pyo3(signature = (data: "Buffer"))]
    fn try_send(&self, py: Python<'_>, data: &Bound<'_, PyAny>) -> PyResult<usize> {
        with_bytes(data, |data| Ok(self.transmit(py, data, Some(0.0))?.unwrap_or(0)))
    }

    /// Sends all of `data`, waiting at most `timeout` seconds altogether. `TimedOut` gives the
    /// number of bytes that were sent; do not send these again.
    #[pyo3(signature = (data: "Buffer", timeout=None))]
    fn sendall(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        let end = duration(timeout)?.and_then(|limit| Instant::now().checked_add(limit));
        with_bytes(data, |data| {
            let mut sent = 0;
            while sent < data.len() {
                let left = end.map(|end| end.saturating_duration_since(Instant::now()));
                let left = left.map(|left| left.as_secs_f64());
                sent += self.transmit(py, &data[sent..], left)?.ok_or_else(|| {
                    let all = data.len();
                    let text =
                        format!("{}; {sent} of {all} bytes were sent", ByteStreamError::TimedOut);
                    error(Kind::TimedOut, text)
                })?;
            }
            Ok(())
        })
    }

    /// Ends this side's direction, waiting at most `timeout` seconds for room: the peer receives
    /// the sent bytes, and then the end. Receiving goes on. Raises `TimedOut`; then the direction
    /// is still open.
    #[pyo3(signature = (timeout=None))]
    fn shutdown(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        self.shut(py, timeout)?.ok_or_else(late)
    }

    /// `shutdown` without waiting: `False` if there is no room now.
    fn try_shutdown(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.shut(py, Some(0.0))?.is_some())
    }
}

impl ByteStream {
    /// Whether `try_recv` would return bytes or the end.
    pub fn is_ready(&self, py: Python<'_>) -> PyResult<bool> {
        self.end.with(py, |end| EndPoint::is_ready(end))
    }

    fn receive_new<'py>(
        &self,
        py: Python<'py>,
        nbytes: usize,
        timeout: Option<f64>,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let nbytes = checked(nbytes)?.min(RECV_BYTES_MAX);
        // Taken out of its place: a signal handler may receive in this thread meanwhile.
        let mut scratch = SCRATCH.take();
        if scratch.len() < nbytes {
            scratch.resize(nbytes, 0);
        }
        let received = self.receive(py, &mut scratch[..nbytes], timeout);
        let bytes = received.map(|length| length.map(|n| PyBytes::new(py, &scratch[..n])));
        SCRATCH.set(scratch);
        bytes
    }

    fn receive(
        &self,
        py: Python<'_>,
        to: &mut [u8],
        timeout: Option<f64>,
    ) -> PyResult<Option<usize>> {
        let to = Mutex::new(to);
        let receive = |end: &Stream, limit| not_yet(end.read_within(&mut locked(&to), Some(limit)));
        self.end.wait_shared(
            py,
            timeout,
            |end| receive(end, Duration::ZERO),
            |end, slice| receive(end, slice),
        )
    }

    fn transmit(
        &self,
        py: Python<'_>,
        data: &[u8],
        timeout: Option<f64>,
    ) -> PyResult<Option<usize>> {
        if data.is_empty() {
            self.end.check_open()?;
            return Ok(Some(0));
        }
        let send =
            |end: &Stream, limit| not_yet(end.write_within(&[IoSlice::new(data)], Some(limit)));
        self.end.wait_shared(
            py,
            timeout,
            |end| send(end, Duration::ZERO),
            |end, slice| send(end, slice),
        )
    }

    fn shut(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<()>> {
        let shut = |end: &Stream, limit| not_yet(end.shut(Some(limit)));
        self.end.wait_shared(
            py,
            timeout,
            |end| shut(end, Duration::ZERO),
            |end, slice| shut(end, slice),
        )
    }
}

sender!(ByteStream);
ready!(ByteStream);

/// Refuses 0: a receive of 0 bytes would look like the end.
fn checked(bytes: usize) -> PyResult<usize> {
    match bytes {
        0 => Err(error(Kind::Misuse, "there is room for 0 bytes, and at least 1 is needed")),
        bytes => Ok(bytes),
    }
}

#[cold]
fn late() -> PyErr {
    error(Kind::TimedOut, ByteStreamError::TimedOut)
}
