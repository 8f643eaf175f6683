//! Request and reply: servers, requests, clients and calls.

use crate::admission::outside;
use crate::array;
use crate::bytes::with_bytes;
use crate::end::{End, connect, grow, receiver, sender};
use crate::errors::{Kind, OrRaise, error};
use crate::inner::locked;
use crate::job::Job;
use crate::manager::Manager;
use crate::request::Request;
use crate::tagged::{nothing, timed_out};
use crate::wait::{duration, on_thread};
use core::time::Duration;
use hamlyn::LinkId;
use hamlyn::protocol::{self, Arrived, CallError, CallId, ClientConfig, ServerConfig};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::sync::{Arc, Mutex, Weak};
use std::time::Instant;

/// Receives calls. Any number of threads may receive and reply.
#[pyclass(module = "hamlyn", frozen, weakref)]
pub struct Server {
    pub end: Arc<End<Arc<protocol::Server>>>,
}

#[pymethods]
impl Server {
    /// A server; clients find it by name or grow from its seed. `outstanding`: calls that each
    /// client may have outstanding. `request_nbytes`: longest request that is sent at once, at most
    /// 4,088 bytes; longer ones, up to `request_nbytes_max` (an array of 16 MiB, unless given),
    /// cost another round trip. `long_nbytes_max`: bytes of long requests that one user's clients
    /// may have here at a time, until each is replied to; further requests wait at the client, but
    /// one is always accepted. `clients_max`: clients at one time.
    #[new]
    #[pyo3(signature = (
        manager, *, outstanding=64, request_nbytes=4088, request_nbytes_max=16_781_312,
        long_nbytes_max=67_108_864, clients_max=64
    ))]
    fn new(
        py: Python<'_>,
        manager: &Manager,
        outstanding: u32,
        request_nbytes: u32,
        request_nbytes_max: u64,
        long_nbytes_max: u64,
        clients_max: u32,
    ) -> PyResult<Self> {
        let node = manager.inner.node()?;
        let mut config = ServerConfig::default();
        (config.outstanding, config.clients_max) = (outstanding, clients_max);
        (config.request_bytes, config.request_bytes_max) = (request_nbytes, request_nbytes_max);
        config.long_bytes_max = long_nbytes_max;
        let end = py.detach(|| protocol::Server::new(&node, config)).or_raise()?;
        Ok(Self { end: End::new(&manager.inner, Arc::new(end)) })
    }

    /// The next request if one is there or comes in one turn, else `None`.
    fn try_receive(&self, py: Python<'_>) -> PyResult<Option<Request>> {
        let found = self.end.with(py, |end| try_receive(end))?.or_raise()?;
        Ok(found.map(|found| self.hand_out(py, found)))
    }

    /// The next request; waits at most `timeout` seconds. Raises `TimedOut`.
    #[pyo3(signature = (timeout=None))]
    fn receive(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Request> {
        let found = self.end.wait_shared(py, timeout, try_receive, |end, slice| {
            timed_out(end.receive(Some(slice)).map(|request| of_request(end, request)))
        })?;
        found.map(|found| self.hand_out(py, found)).ok_or_else(nothing)
    }

    /// Takes no new requests, waits at most `timeout` seconds until other threads have received the
    /// accepted ones and replied to them, and ends all connections. Returns the number of requests
    /// without a reply: 0 if all were answered. Its names are free for another server from the
    /// beginning, and new calls fail with the error that the server is about to close. `receive`
    /// goes on, and raises `Draining` when no request is left. After Ctrl-C it goes on until
    /// `timeout`.
    #[pyo3(signature = (timeout=10.0))]
    fn drain(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<usize> {
        let timeout = duration(timeout)?;
        let server = self.end.with(py, |server| server.clone())?;
        on_thread(py, &self.end.inner, || false, move || server.drain(timeout))?.or_raise()
    }

    /// The number of connected clients.
    #[getter]
    fn clients(&self, py: Python<'_>) -> PyResult<usize> {
        self.end.with(py, |end| end.clients())
    }
}

receiver!(Server);

type Found = (Weak<protocol::Server>, LinkId, Arrived);

fn of_request(server: &Arc<protocol::Server>, request: protocol::Request<'_>) -> Found {
    (Arc::downgrade(server), request.link(), request.detach())
}

fn try_receive(server: &Arc<protocol::Server>) -> Result<Option<Found>, protocol::ReceiveError> {
    Ok(server.try_receive()?.map(|request| of_request(server, request)))
}

impl Server {
    fn hand_out(&self, py: Python<'_>, (server, link, arrived): Found) -> Request {
        let data = PyBytes::new(py, &arrived).unbind();
        let (which, arrived) = (arrived.which(), Mutex::new(Some(arrived)));
        Request { end: self.end.clone(), data, link, which, server, arrived }
    }
}

/// Bytes of a call's limit, for the server.
const DEADLINE_BYTES: usize = 8;

/// Calls a server. Any number of threads may call.
#[pyclass(module = "hamlyn", frozen, weakref)]
pub struct Client {
    pub end: Arc<End<Arc<protocol::Client>>>,
}

/// A call that was started. Dropping this object forgets the call, as `forget()` does. It is not
/// dropped while a name refers to it, or an exception's traceback.
#[pyclass(module = "hamlyn", frozen, weakref)]
pub struct Call {
    end: Arc<End<Arc<protocol::Client>>>,
    client: Weak<protocol::Client>,
    /// `None` once it is finished.
    id: Mutex<Option<CallId>>,
    /// The time at which the caller gives up, if the server knows it.
    told: Option<Instant>,
}

impl Call {
    fn id(&self) -> PyResult<CallId> {
        let gone = || error(Kind::Misuse, "the call was finished or forgotten already");
        (*locked(&self.id)).ok_or_else(gone)
    }

    fn is_over(&self) {
        *locked(&self.id) = None;
    }

    /// If the server's handler drops the request at the caller's limit, its answer may come before
    /// the caller's own clock has run out: this is a time limit, too.
    fn in_time<T>(&self, result: Result<T, CallError>) -> Result<T, CallError> {
        match result {
            Err(CallError::Declined) if self.told.is_some_and(|told| told <= Instant::now()) => {
                Err(CallError::TimedOut)
            }
            result => result,
        }
    }

    /// Waits for the reply. The call ends, unless the time limit has passed.
    fn take_reply<'py>(
        &self,
        py: Python<'py>,
        timeout: Option<f64>,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let id = self.id()?;
        let found = self.end.wait_shared(
            py,
            timeout,
            |client| self.in_time(client.try_finish(id)),
            |client, slice| self.in_time(call_timed_out(client.finish(id, Some(slice)))),
        );
        match found {
            Ok(Some(reply)) => {
                self.is_over();
                Ok(Some(PyBytes::new(py, &reply)))
            }
            Ok(None) => Ok(None),
            // After Ctrl-C the call still exists, and is forgotten with this object; after other
            // errors there is nothing to forget, which does no harm.
            Err(e) => Err(e),
        }
    }
}

fn call_timed_out<T>(result: Result<T, CallError>) -> Result<Option<T>, CallError> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(CallError::TimedOut | CallError::NoneFree(_)) => Ok(None),
        Err(e) => Err(e),
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.let_go();
    }
}

impl Call {
    /// Forgets it, unless it was finished.
    fn let_go(&self) {
        let Some(id) = locked(&self.id).take() else { return };
        if self.end.inner.check_fork().is_err() {
            return;
        }
        let Some(client) = self.client.upgrade() else { return };
        outside(&self.end.inner, move || {
            client.forget(id);
        });
    }
}

#[pymethods]
impl Call {
    /// Waits for the reply, at most `timeout` seconds. After `TimedOut` it may be finished later.
    #[pyo3(signature = (timeout=None))]
    fn finish<'py>(&self, py: Python<'py>, timeout: Option<f64>) -> PyResult<Bound<'py, PyBytes>> {
        self.take_reply(py, timeout)?.ok_or_else(|| error(Kind::TimedOut, CallError::TimedOut))
    }

    /// The reply if it is there or comes in one turn, else `None`.
    fn try_finish<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyBytes>>> {
        self.take_reply(py, Some(0.0))
    }

    /// Forgets the call: its reply will be dropped, and only then another call has its place. The
    /// server's handler can see that (`request.is_cancelled()`). Does nothing if the call was
    /// finished or forgotten.
    fn forget(&self) {
        self.let_go();
    }

    #[getter]
    fn _manager(&self) -> Manager {
        Manager { inner: self.end.inner.clone() }
    }

    fn __repr__(&self) -> &'static str {
        match *locked(&self.id) {
            Some(_) => "<hamlyn.Call>",
            None => "<hamlyn.Call finished or forgotten>",
        }
    }
}

#[pymethods]
impl Client {
    /// Connects to the server of `[user@]name`. `outstanding`: calls that may be outstanding, if
    /// the server allows that many. `reply_nbytes`: longest reply that is sent at once, at most
    /// 4,088 bytes; longer ones, up to `reply_nbytes_max`, cost another round trip.
    #[staticmethod]
    #[pyo3(signature = (
        manager, name, timeout=10.0, *,
        outstanding=64, reply_nbytes=4088, reply_nbytes_max=16_781_312
    ))]
    fn connect(
        py: Python<'_>,
        manager: &Manager,
        name: String,
        timeout: Option<f64>,
        outstanding: u32,
        reply_nbytes: u32,
        reply_nbytes_max: u64,
    ) -> PyResult<Self> {
        let config = client_config(outstanding, reply_nbytes, reply_nbytes_max);
        let end = connect(py, manager, name, config, timeout, Arc::<protocol::Client>::new)?;
        Ok(Self { end })
    }

    /// Grows a client from a server's seed (a `Seed`, or the bytes or text of one). See `connect`.
    #[staticmethod]
    #[pyo3(signature = (
        manager, seed: "Seed | Buffer | str", timeout=10.0, *,
        outstanding=64, reply_nbytes=4088, reply_nbytes_max=16_781_312
    ))]
    fn grow(
        py: Python<'_>,
        manager: &Manager,
        seed: &Bound<'_, PyAny>,
        timeout: Option<f64>,
        outstanding: u32,
        reply_nbytes: u32,
        reply_nbytes_max: u64,
    ) -> PyResult<Self> {
        let config = client_config(outstanding, reply_nbytes, reply_nbytes_max);
        let end = grow(py, manager, seed, config, timeout, Arc::<protocol::Client>::new)?;
        Ok(Self { end })
    }

    /// Grows a client of the server that a job's rank offers under `name`, waiting for it at most
    /// `timeout` seconds. See `connect`.
    #[staticmethod]
    #[pyo3(signature = (
        job, rank, name, timeout=10.0, *,
        outstanding=64, reply_nbytes=4088, reply_nbytes_max=16_781_312
    ))]
    #[allow(clippy::too_many_arguments)]
    fn grow_from(
        py: Python<'_>,
        job: &Job,
        rank: u32,
        name: String,
        timeout: Option<f64>,
        outstanding: u32,
        reply_nbytes: u32,
        reply_nbytes_max: u64,
    ) -> PyResult<Self> {
        let config = client_config(outstanding, reply_nbytes, reply_nbytes_max);
        Ok(Self { end: job.grow(py, (rank, name), config, timeout, Arc::<protocol::Client>::new)? })
    }

    /// Sends a request and waits for the reply, at most `timeout` seconds in all.
    #[pyo3(signature = (request: "Buffer", timeout=None))]
    fn call<'py>(
        &self,
        py: Python<'py>,
        request: &Bound<'py, PyAny>,
        timeout: Option<f64>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let began = Instant::now();
        let call = self.start(py, request, timeout)?;
        let left = timeout.map(|all| (all - began.elapsed().as_secs_f64()).max(0.0));
        call.finish(py, left)
    }

    /// `call` within `limit` seconds, which the server knows: its handler sees when the caller
    /// gives up (`request.time_left`, `request.is_cancelled()`). Costs 8 bytes of the request.
    #[pyo3(signature = (request: "Buffer", limit))]
    fn call_within<'py>(
        &self,
        py: Python<'py>,
        request: &Bound<'py, PyAny>,
        limit: f64,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let began = Instant::now();
        let call = self.start_within(py, request, limit, None)?;
        call.finish(py, Some((limit - began.elapsed().as_secs_f64()).max(0.0)))
    }

    /// `start`, waiting at most `timeout` seconds, or as long as `limit`; sends the server the
    /// caller's limit, `limit` seconds from now: see `call_within`. A caller that gives up drops
    /// the `Call`.
    #[pyo3(signature = (request: "Buffer", limit, timeout=None))]
    fn start_within(
        &self,
        py: Python<'_>,
        request: &Bound<'_, PyAny>,
        limit: f64,
        timeout: Option<f64>,
    ) -> PyResult<Call> {
        // A time beyond the clock's range is no limit.
        let told = duration(Some(limit))?.and_then(|limit| Instant::now().checked_add(limit));
        self.begin(py, request, Some(timeout.map_or(limit, |timeout| timeout.min(limit))), told)
    }

    /// `call` with an array, its type and shape; the reply is an array, too, from `reply_array`.
    /// Raises `BufferError` as `pack_array`, and `ArrayError` if the reply is not an array.
    #[pyo3(signature = (array: "Buffer", timeout=None) -> "AnyArray")]
    fn call_array<'py>(
        &self,
        py: Python<'py>,
        array: &Bound<'py, PyAny>,
        timeout: Option<f64>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let message = array::pack_array(py, array)?;
        array::unpack_array(self.call(py, message.as_any(), timeout)?.as_any())
    }

    /// Sends a request, waiting at most `timeout` seconds for a free call and, if it is long, for
    /// the server to make room for it. The returned `Call` gets the reply.
    #[pyo3(signature = (request: "Buffer", timeout=None))]
    fn start(
        &self,
        py: Python<'_>,
        request: &Bound<'_, PyAny>,
        timeout: Option<f64>,
    ) -> PyResult<Call> {
        self.begin(py, request, timeout, None)
    }

    // Longest request that is sent at once.
    #[getter]
    fn _at_once_max(&self, py: Python<'_>) -> PyResult<usize> {
        self.end.with(py, |end| end.at_once_max())
    }

    /// Calls that may be outstanding.
    #[getter]
    fn outstanding_max(&self, py: Python<'_>) -> PyResult<usize> {
        self.end.with(py, |end| end.outstanding_max())
    }
}

sender!(Client);

impl Client {
    /// `told`: the time at which the caller gives up, if the server is to know it.
    fn begin(
        &self,
        py: Python<'_>,
        request: &Bound<'_, PyAny>,
        timeout: Option<f64>,
        told: Option<Instant>,
    ) -> PyResult<Call> {
        let look =
            |client: &mut Arc<protocol::Client>| (Arc::downgrade(client), client.at_once_max());
        let (weak, at_once_max) = self.end.with(py, look)?;
        let begun = with_bytes(request, |request| {
            // The limit is sent before the request.
            if request.len() + told.map_or(0, |_| DEADLINE_BYTES) > at_once_max {
                // It first asks for room, in an attempt that cannot be cut into slices.
                let (timeout, request) = (duration(timeout)?, request.to_vec());
                let client = self.end.with(py, |client| client.clone())?;
                let work = move || {
                    let id = start(&client, &request, timeout, told)?;
                    Ok::<_, CallError>(Started(Some((client, id))))
                };
                match on_thread(py, &self.end.inner, || self.end.is_closed(), work)? {
                    Err(CallError::TimedOut | CallError::NoneFree(_)) => Ok(None),
                    Err(e) => Err(e).or_raise(),
                    Ok(started) => Ok(Some(py.detach(|| started.keep()))),
                }
            } else {
                self.end.wait_shared(
                    py,
                    timeout,
                    |client| call_timed_out(start(client, request, Some(Duration::ZERO), told)),
                    |client, slice| call_timed_out(start(client, request, Some(slice), told)),
                )
            }
        })?;
        match begun {
            Some(id) => {
                let (end, id) = (self.end.clone(), Mutex::new(Some(id)));
                Ok(Call { end, client: weak, id, told })
            }
            None => {
                let text = "no call was free within the time limit, or the server made no room for \
                            a long request; the call was forgotten";
                Err(error(Kind::TimedOut, text))
            }
        }
    }
}

#[inline]
fn start(
    client: &protocol::Client,
    request: &[u8],
    timeout: Option<Duration>,
    told: Option<Instant>,
) -> Result<CallId, CallError> {
    match told {
        None => client.start(request, timeout),
        Some(deadline) => client.start_until(request, timeout, deadline),
    }
}

/// A call that is forgotten when its waiter is gone.
struct Started(Option<(Arc<protocol::Client>, CallId)>);

impl Started {
    fn keep(mut self) -> CallId {
        let (_, id) = self.0.take().expect("present until it is kept");
        id
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        if let Some((client, id)) = self.0.take() {
            client.forget(id);
        }
    }
}

pub fn client_config(outstanding: u32, reply_bytes: u32, reply_bytes_max: u64) -> ClientConfig {
    ClientConfig { outstanding, reply_bytes, reply_bytes_max }
}
