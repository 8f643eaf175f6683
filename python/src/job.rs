//! `Job`: the ranks of a parallel program, which find one another.
//!
//! Long waits, for ranks to join, for growing, for the launcher, are on a thread of their own, so
//! that Ctrl-C is seen.

use crate::admission;
use crate::bytes::with_bytes;
use crate::call::{Client, Server};
use crate::end::{End, closed};
use crate::errors::{OrRaise, ToPy};
use crate::inner::{Inner, locked};
use crate::manager::{Manager, config_of};
use crate::seed::Seed;
use crate::stream::StreamReceiver;
use crate::stream_sender::StreamSender;
use crate::wait::{Limit, duration, on_thread, signalled, sliced};
use core::time::Duration;
use hamlyn::job::{Job as Ranks, JobError, Launcher};
use hamlyn::protocol::{self, Grown};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use std::sync::{Arc, Mutex, Weak};

/// The job of this process, shared by all its objects.
struct Shared {
    inner: Arc<Inner>,
    /// `None` once it is closed.
    ranks: Mutex<Option<Ranks>>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        let Some(ranks) = locked(&self.ranks).take() else { return };
        if self.inner.check_fork().is_err() {
            // A forked child is not a rank.
            return core::mem::forget(ranks);
        }
        // Dropping the last reference sends the launcher a message and waits for its answer: not
        // with the interpreter's lock.
        let _slow = self.inner.slow();
        admission::outside(&self.inner, move || drop(ranks));
    }
}

/// Opening the job again returns this one.
static CURRENT: Mutex<Weak<Shared>> = Mutex::new(Weak::new());

/// The job of which this process is a rank: `hamlyn run -n 4 -- python program.py`, or under a
/// launcher that speaks PMIx (Open MPI's `mpirun`, Slurm's `srun --mpi=pmix`) or PMI-1 (MPICH's).
/// Without a launcher it has one rank. See docs/jobs.md.
///
/// Opening it waits until all ranks have joined, at most the setting `job_timeout_ms`, and raises
/// `TimedOut` if they do not. Settings are those of a `Manager`. While it is open, opening it again
/// in this process returns the same job. A context manager: leaving it closes it and its `manager`.
#[pyclass(module = "hamlyn", frozen, weakref)]
pub struct Job {
    shared: Arc<Shared>,
}

#[pymethods]
impl Job {
    #[new]
    #[pyo3(signature = (**settings: "Unpack[Settings]"))]
    fn new(py: Python<'_>, settings: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        let config = config_of(settings)?;
        if let Some(shared) = Self::current() {
            return Ok(Self { shared });
        }
        let ranks = signalled(py, move || Ranks::with_config(config))?.or_raise()?;
        // Another thread may have opened it meanwhile.
        if let Some(shared) = Self::current() {
            py.detach(|| drop(ranks));
            return Ok(Self { shared });
        }
        let inner = match Inner::new(ranks.manager().clone()) {
            Ok(inner) => Arc::new(inner),
            Err(e) => {
                py.detach(|| drop(ranks));
                return Err(e);
            }
        };
        let shared = Arc::new(Shared { inner, ranks: Mutex::new(Some(ranks)) });
        *locked(&CURRENT) = Arc::downgrade(&shared);
        Ok(Self { shared })
    }

    /// The number of this process, from 0 to one less than `size`.
    #[getter]
    fn rank(&self) -> PyResult<u32> {
        Ok(self.ranks()?.rank())
    }

    /// How many ranks the job has.
    #[getter]
    fn size(&self) -> PyResult<u32> {
        Ok(self.ranks()?.size())
    }

    /// The launcher: `"hamlyn run"`, `"PMIx"`, `"PMI-1"`, or `None`.
    #[getter]
    fn launcher(&self) -> PyResult<Option<&'static str>> {
        Ok(match self.ranks()?.launcher() {
            Launcher::Run => Some("hamlyn run"),
            Launcher::Pmix => Some("PMIx"),
            Launcher::Pmi1 => Some("PMI-1"),
            Launcher::None => None,
        })
    }

    /// The manager of the job's end points. It is closed with the job.
    #[getter]
    fn manager(&self) -> PyResult<Manager> {
        self.ranks()?;
        Ok(Manager { inner: self.shared.inner.clone() })
    }

    /// Whether the job is closed.
    #[getter]
    fn closed(&self) -> bool {
        locked(&self.shared.ranks).is_none()
    }

    /// Whether a rank is on this host, so that messages to it go through a ring.
    fn is_local(&self, rank: u32) -> PyResult<bool> {
        self.ranks()?.is_local(rank).or_raise()
    }

    /// Puts bytes that all other ranks can `get` after the next `fence`. A name is 1 to 32 of `a-z
    /// A-Z 0-9 . _ -`, and is put once. The launcher carries the bytes, and limits them: Hydra to
    /// 511, `hamlyn run` and PMIx to 32,256.
    #[pyo3(signature = (name, data: "Buffer"))]
    fn put(&self, py: Python<'_>, name: String, data: &Bound<'_, PyAny>) -> PyResult<()> {
        let (ranks, data) = (self.ranks()?, with_bytes(data, |data| Ok(data.to_vec()))?);
        on_thread(py, &self.shared.inner, || false, move || ranks.put(&name, &data))?.or_raise()
    }

    /// The bytes that a rank has put under this name before the last fence, or `None`.
    #[pyo3(signature = (rank, name) -> "bytes | None")]
    fn get<'py>(
        &self,
        py: Python<'py>,
        rank: u32,
        name: String,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let ranks = self.ranks()?;
        let get = move || match ranks.get(rank, &name) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(JobError::NothingPut { .. }) => Ok(None),
            Err(e) => Err(e),
        };
        let got = on_thread(py, &self.shared.inner, || false, get)?.or_raise()?;
        Ok(got.map(|bytes| PyBytes::new(py, &bytes)))
    }

    /// Waits until all ranks have called this as often as this one, at most `timeout` seconds.
    /// Afterwards all ranks can get the bytes put before it. After `TimedOut` it stays begun: the
    /// next call goes on waiting for it. Concurrent calls of several threads are one fence each, in
    /// turn: two calls here match two calls of every other rank. A fence goes through the launcher,
    /// and is for setting up: use a `Group`'s barrier while messages are sent.
    #[pyo3(signature = (timeout=None))]
    fn fence(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        let (limit, all) = (Limit::new(timeout)?, duration(timeout)?);
        let ranks = self.ranks()?;
        let mut missing = Vec::new();
        let _slow = self.shared.inner.slow();
        let attempt = |slice: Duration| match ranks.fence(Some(slice)) {
            Ok(()) => Ok(Some(())),
            Err(JobError::Missing { ranks, .. }) => {
                // This slice or an earlier one has asked.
                if !ranks.is_empty() {
                    missing = ranks;
                }
                Ok(None)
            }
            Err(e) => Err(e),
        };
        let done = sliced(py, &self.shared.inner, limit, attempt)?.or_raise()?;
        let limit_ms = all.map_or(0, |all| all.as_millis() as u64);
        done.ok_or_else(|| JobError::Missing { ranks: missing, limit_ms }.to_py())
    }

    /// The stream to a rank, which receives it with `stream_from`: waits for that, at most
    /// `timeout` seconds.
    #[pyo3(signature = (rank, timeout=10.0))]
    fn stream_to(&self, py: Python<'_>, rank: u32, timeout: Option<f64>) -> PyResult<StreamSender> {
        let (ranks, timeout) = (self.ranks()?, duration(timeout)?);
        let make = move || ranks.stream_to(rank, timeout);
        let made = on_thread(py, &self.shared.inner, || false, make)?.or_raise()?;
        Ok(StreamSender { end: End::new(&self.shared.inner, made) })
    }

    /// The stream from a rank, which grows it with `stream_to` at any time. There is one.
    fn stream_from(&self, py: Python<'_>, rank: u32) -> PyResult<StreamReceiver> {
        let ranks = self.ranks()?;
        let made = py.detach(|| ranks.stream_from(rank)).or_raise()?;
        Ok(StreamReceiver::of(&self.shared.inner, made))
    }

    /// This rank's server of calls; every rank may be its `client`. There is one.
    fn server(&self, py: Python<'_>) -> PyResult<Server> {
        let ranks = self.ranks()?;
        let made = py.detach(|| ranks.server()).or_raise()?;
        Ok(Server { end: End::new(&self.shared.inner, Arc::new(made)) })
    }

    /// A client of a rank's `server`: waits until the rank has one, at most `timeout` seconds.
    #[pyo3(signature = (rank, timeout=10.0))]
    fn client(&self, py: Python<'_>, rank: u32, timeout: Option<f64>) -> PyResult<Client> {
        let (ranks, timeout) = (self.ranks()?, duration(timeout)?);
        let make = move || ranks.client(rank, timeout);
        let made = on_thread(py, &self.shared.inner, || false, make)?.or_raise()?;
        Ok(Client { end: End::new(&self.shared.inner, Arc::new(made)) })
    }

    /// A seed from which a sender grows the end point that a rank offers, now or later, under this
    /// name and as this kind: `"datagram"`, `"tagged"`, `"stream"`, `"call"`, `"group"`, `"bytes"`
    /// or `"publish"`: for uses that `grow_from` does not cover. A secret of the job.
    fn seed_of(&self, py: Python<'_>, rank: u32, kind: &str, name: String) -> PyResult<Seed> {
        let kinds = [
            ("datagram", protocol::Kind::DATAGRAM),
            ("tagged", protocol::Kind::TAGGED),
            ("stream", protocol::Kind::STREAM),
            ("call", protocol::Kind::CALL),
            ("group", protocol::Kind::GROUP),
            ("bytes", protocol::Kind::BYTES),
            ("publish", protocol::Kind::PUBLISH),
        ];
        let Some((_, found)) = kinds.into_iter().find(|(name, _)| *name == kind) else {
            let names = kinds.map(|(name, _)| name).join(", ");
            return Err(PyValueError::new_err(format!(
                "the kind is {kind:?}; it is one of {names}"
            )));
        };
        let ranks = self.ranks()?;
        let make = move || ranks.seed_of(rank, found, &name);
        Ok(Seed { seed: on_thread(py, &self.shared.inner, || false, make)?.or_raise()? })
    }

    /// The launcher that was found, why not another, the number of ranks on this host, and those of
    /// them to which this rank has made links.
    fn explain(&self, py: Python<'_>) -> PyResult<String> {
        let ranks = self.ranks()?;
        Ok(py.detach(|| ranks.explain()))
    }

    /// Closes the job and its manager; queued messages leave first, for at most `timeout` seconds.
    /// Tells the launcher that this rank has finished with the job. Closing twice is allowed.
    #[pyo3(signature = (timeout=10.0))]
    fn close(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        if self.shared.inner.check_fork().is_err() {
            return Ok(());
        }
        self.shared.inner.close(py, timeout)?;
        py.detach(|| {
            let ranks = locked(&self.shared.ranks).take();
            drop(ranks);
        });
        Ok(())
    }

    fn __enter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exception: "object"))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyAny>) -> PyResult<()> {
        self.close(py, Some(10.0))
    }

    fn __repr__(&self) -> String {
        match self.ranks() {
            Ok(ranks) => format!("<hamlyn.Job rank {} of {}>", ranks.rank(), ranks.size()),
            Err(_) if self.shared.inner.check_fork().is_err() => {
                "<hamlyn.Job of the parent process>".into()
            }
            Err(_) => "<hamlyn.Job closed>".into(),
        }
    }
}

impl Job {
    fn current() -> Option<Arc<Shared>> {
        let shared = locked(&CURRENT).upgrade()?;
        let is_open = shared.inner.check_fork().is_ok() && locked(&shared.ranks).is_some();
        is_open.then_some(shared)
    }

    /// The job; raises if it is closed, or of a parent process.
    pub fn ranks(&self) -> PyResult<Ranks> {
        self.shared.inner.check_open()?;
        locked(&self.shared.ranks).clone().ok_or_else(closed)
    }

    /// The manager's state, for objects that the job makes.
    pub fn inner(&self) -> &Arc<Inner> {
        &self.shared.inner
    }

    /// Grows an end point that a rank offers, on a thread of its own.
    pub fn grow<G: Grown<With: Send> + Send + 'static, T: Send>(
        &self,
        py: Python<'_>,
        (rank, name): (u32, String),
        with: G::With,
        timeout: Option<f64>,
        wrap: impl FnOnce(G) -> T,
    ) -> PyResult<Arc<End<T>>>
    where
        G::With: 'static,
    {
        let (ranks, timeout) = (self.ranks()?, duration(timeout)?);
        let grow = move || ranks.grow(rank, &name, with, timeout);
        let end = on_thread(py, self.inner(), || false, grow)?.or_raise()?;
        Ok(End::new(self.inner(), wrap(end)))
    }
}
