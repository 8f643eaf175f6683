//! Calls to a server that comes and goes: a client that connects again.

use crate::admission::outside;
use crate::array;
use crate::bytes::with_bytes;
use crate::call::client_config;
use crate::end::End;
use crate::errors::{Kind, OrRaise, error};
use crate::inner::locked;
use crate::manager::Manager;
use crate::wait::{duration, on_thread};
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use hamlyn::protocol::{self, Bytes, CallError, ConnectionState, ReconnectingCall};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::sync::{Arc, Mutex};
use std::time::Instant;

type SharedEnd = Arc<End<Arc<protocol::ReconnectingClient>>>;

/// A client of a named service that connects again when the server is gone or drains. Any number of
/// threads may call.
///
/// A request is sent to one server once. If the connection ends before the reply has come, this
/// side cannot know whether the request was carried out: the call raises `Closed`, unless it is
/// idempotent, that is, does no harm twice; then it is sent again over the next connection. A
/// request that certainly reached no server is sent over the next connection in any case. Calls
/// wait for a connection within their own time limits, unless the policy says otherwise.
///
/// An outage without a call is not noticed, and costs nothing. The first call in an outage starts a
/// thread of the library, which connects, for all calls, and ends; it goes on as the policy says
/// when the calls have given up.
#[pyclass(module = "hamlyn", frozen, weakref)]
pub struct ReconnectingClient {
    end: SharedEnd,
    name: String,
    /// The number of connections when it was closed.
    connections: AtomicU64,
}

/// A `ReconnectPolicy`, by its attributes.
#[derive(FromPyObject)]
struct Policy {
    first_delay: f64,
    factor: f64,
    delay_max: f64,
    attempt_limit: f64,
    attempts_max: Option<usize>,
    outage_max: Option<f64>,
    calls_wait: bool,
}

fn policy_of(policy: Option<&Bound<'_, PyAny>>) -> PyResult<protocol::ReconnectPolicy> {
    let Some(policy) = policy else { return Ok(protocol::ReconnectPolicy::default()) };
    let policy: Policy = policy.extract()?;
    let time = |seconds| Ok::<_, PyErr>(duration(Some(seconds))?.unwrap_or(Duration::MAX));
    Ok(protocol::ReconnectPolicy {
        first_delay: time(policy.first_delay)?,
        // A larger one would be infinite.
        factor: (policy.factor as f32).min(f32::MAX),
        delay_max: time(policy.delay_max)?,
        attempt_limit: time(policy.attempt_limit)?,
        attempts_max: policy.attempts_max,
        outage_max: duration(policy.outage_max)?,
        calls_wait: policy.calls_wait,
    })
}

impl ReconnectingClient {
    fn of(manager: &Manager, name: String, client: protocol::ReconnectingClient) -> Self {
        let end = End::new(&manager.inner, Arc::new(client));
        Self { end, name, connections: AtomicU64::new(0) }
    }
}

#[pymethods]
impl ReconnectingClient {
    /// A client of `[user@]name`, with the settings of `Client.connect`. Its first call connects
    /// it.
    #[new]
    #[pyo3(signature = (
        manager, name, policy: "ReconnectPolicy | None" = None, *,
        outstanding=64, reply_nbytes=4088, reply_nbytes_max=16_781_312
    ))]
    fn new(
        manager: &Manager,
        name: String,
        policy: Option<&Bound<'_, PyAny>>,
        outstanding: u32,
        reply_nbytes: u32,
        reply_nbytes_max: u64,
    ) -> PyResult<Self> {
        let config = client_config(outstanding, reply_nbytes, reply_nbytes_max);
        let (node, policy) = (manager.inner.node()?, policy_of(policy)?);
        let client = protocol::ReconnectingClient::new(&node, &name, config, policy).or_raise()?;
        Ok(Self::of(manager, name, client))
    }

    /// Makes a client that is connected; waits at most `timeout` seconds. Raises the errors of
    /// `Client.connect`.
    #[staticmethod]
    #[pyo3(signature = (
        manager, name, timeout=10.0, *, policy: "ReconnectPolicy | None" = None,
        outstanding=64, reply_nbytes=4088, reply_nbytes_max=16_781_312
    ))]
    #[allow(clippy::too_many_arguments)]
    fn connect(
        py: Python<'_>,
        manager: &Manager,
        name: String,
        timeout: Option<f64>,
        policy: Option<&Bound<'_, PyAny>>,
        outstanding: u32,
        reply_nbytes: u32,
        reply_nbytes_max: u64,
    ) -> PyResult<Self> {
        let config = client_config(outstanding, reply_nbytes, reply_nbytes_max);
        let (node, policy) = (manager.inner.node()?, policy_of(policy)?);
        let (service, limit) = (name.clone(), duration(timeout)?);
        let connect = move || {
            protocol::ReconnectingClient::connect_with(&node, &service, config, policy, limit)
        };
        let client = on_thread(py, &manager.inner, || false, connect)?.or_raise()?;
        Ok(Self::of(manager, name, client))
    }

    /// Sends a request and waits for the reply, through outages, at most `timeout` seconds in all.
    /// Raises `TimedOut`; `Closed` if the connection ended when the server may have had the
    /// request; `Unreachable` if the policy allows no more attempts, or says that calls do not
    /// wait; and the errors of `Client.call`.
    #[pyo3(signature = (request: "Buffer", timeout=None, *, is_idempotent=false))]
    fn call<'py>(
        &self,
        py: Python<'py>,
        request: &Bound<'py, PyAny>,
        timeout: Option<f64>,
        is_idempotent: bool,
    ) -> PyResult<Bound<'py, PyBytes>> {
        self._begin(py, request, None, is_idempotent)?.finish(py, timeout)
    }

    /// `call` with an array, for an array: see `Client.call_array`.
    #[pyo3(signature = (array: "Buffer", timeout=None, *, is_idempotent=false) -> "AnyArray")]
    fn call_array<'py>(
        &self,
        py: Python<'py>,
        array: &Bound<'py, PyAny>,
        timeout: Option<f64>,
        is_idempotent: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let message = array::pack_array(py, array)?;
        array::unpack_array(self.call(py, message.as_any(), timeout, is_idempotent)?.as_any())
    }

    /// `call` within `limit` seconds; the server gets the rest of that limit.
    #[pyo3(signature = (request: "Buffer", limit, *, is_idempotent=false))]
    fn call_within<'py>(
        &self,
        py: Python<'py>,
        request: &Bound<'py, PyAny>,
        limit: f64,
        is_idempotent: bool,
    ) -> PyResult<Bound<'py, PyBytes>> {
        self._begin(py, request, Some(limit), is_idempotent)?.finish(py, Some(limit))
    }

    // A call for an event loop. `told`: the limit that the server gets.
    #[pyo3(signature = (request: "Buffer", told, is_idempotent))]
    fn _begin(
        &self,
        py: Python<'_>,
        request: &Bound<'_, PyAny>,
        told: Option<f64>,
        is_idempotent: bool,
    ) -> PyResult<_ReconnectingCall> {
        // A time beyond the clock's range is no limit.
        let told = duration(told)?.and_then(|limit| Instant::now().checked_add(limit));
        let request = with_bytes(request, |request| Ok(Box::from(request)))?;
        let begin =
            |client: &mut Arc<_>| ReconnectingCall::new(client, request, told, is_idempotent);
        let call = Mutex::new(Some(self.end.with(py, begin)?));
        Ok(_ReconnectingCall { end: self.end.clone(), call })
    }

    /// Connections so far: a change means that there was an outage.
    #[getter]
    fn connections(&self, py: Python<'_>) -> PyResult<u64> {
        match self.end.with(py, |client| client.connections()) {
            Err(_) if self.end.is_closed() => Ok(self.connections.load(Ordering::Relaxed)),
            found => found,
        }
    }

    /// Ends the connection, or the attempt to make one; waiting calls raise `Closed`. Closing twice
    /// is allowed.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        if let Ok(connections) = self.end.with(py, |client| client.connections()) {
            self.connections.store(connections, Ordering::Relaxed);
        }
        self.end.close_now(py)
    }

    #[pyo3(signature = (*_exception: "object"))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyAny>) -> PyResult<()> {
        self.close(py)
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        let state = match self.end.with(py, |client| client.state()) {
            Ok(ConnectionState::Connected { number }) => format!("connection {number}"),
            Ok(ConnectionState::Reconnecting { why, .. }) => format!("not connected: {why}"),
            Ok(ConnectionState::GivenUp { why }) => format!("given up: {why}"),
            Err(_) if self.end.is_closed() => "closed".into(),
            Err(e) => e.value(py).to_string(),
        };
        format!("<hamlyn.ReconnectingClient of {:?}: {state}>", self.name)
    }
}

crate::end::closable!(ReconnectingClient);

/// A call of a `ReconnectingClient` that was begun. Dropping this object forgets it.
#[pyclass(module = "hamlyn._hamlyn", frozen)]
pub struct _ReconnectingCall {
    end: SharedEnd,
    /// `None` once it is over or forgotten.
    call: Mutex<Option<ReconnectingCall<Box<[u8]>>>>,
}

impl _ReconnectingCall {
    fn wait(&self, time: Duration) -> Result<Option<Bytes>, CallError> {
        match &mut *locked(&self.call) {
            Some(call) => call.wait(Some(time)),
            None => Err(CallError::NotConnected("the call was forgotten".into())),
        }
    }

    fn take_reply<'py>(
        &self,
        py: Python<'py>,
        timeout: Option<f64>,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let wait = |slice| self.wait(slice);
        let look = |_: &_| wait(Duration::ZERO);
        let found = self.end.wait_shared(py, timeout, look, |_, slice| wait(slice))?;
        Ok(found.map(|reply| PyBytes::new(py, &reply)))
    }
}

#[pymethods]
impl _ReconnectingCall {
    fn try_finish<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyBytes>>> {
        self.take_reply(py, Some(0.0))
    }

    #[pyo3(signature = (timeout=None))]
    fn finish<'py>(&self, py: Python<'py>, timeout: Option<f64>) -> PyResult<Bound<'py, PyBytes>> {
        if let Some(reply) = self.take_reply(py, timeout)? {
            return Ok(reply);
        }
        let late = locked(&self.call).as_ref().map(ReconnectingCall::timed_out);
        Err(error(Kind::TimedOut, late.unwrap_or(CallError::TimedOut)))
    }

    fn forget(&self) {
        let inner = &self.end.inner;
        if inner.check_fork().is_ok()
            && let Some(call) = locked(&self.call).take()
        {
            outside(inner, move || drop(call));
        }
    }
}

impl Drop for _ReconnectingCall {
    fn drop(&mut self) {
        self.forget();
        // The rest is the parent's.
        core::mem::forget(core::mem::take(&mut self.call));
    }
}
