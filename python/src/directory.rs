//! Directories: a Python callable finds the hosts of services whose names give no place.
//!
//! ```text
//!   a thread that connects --start_new_thread--> a thread of Python's --> the callable
//!            waits, without the interpreter's lock <--- _Answer ---'
//! ```
//! The callable runs in a thread of Python's, without frames of the library below it: so it may
//! wait, use managers, and be abandoned when the interpreter ends, as any other Python thread. A
//! connecting call returns when its time limit has passed, even if no Python thread could be
//! started by then, because other code holds the interpreter's lock. A callable that hangs goes on,
//! and its result is dropped; at most [`LOOK_UPS_MAX`] run at a time.

use crate::admission::is_leaving;
use core::time::Duration;
use hamlyn::node::{HostDirectory, Place};
use hamlyn::os::call::OfCall;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};

/// Look-ups of this process that may run at a time, abandoned ones included.
const LOOK_UPS_MAX: usize = 64;

static RUNNING: AtomicUsize = AtomicUsize::new(0);

/// A running look-up, until it is dropped.
struct Running;

impl Running {
    /// Counts one more, or gives the reason why there may be no more.
    fn begin() -> Result<Self, String> {
        let running = Self;
        if RUNNING.fetch_add(1, Ordering::Relaxed) < LOOK_UPS_MAX {
            return Ok(running);
        }
        Err(format!("{LOOK_UPS_MAX} look-ups have not come back, and no more are begun"))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        RUNNING.fetch_sub(1, Ordering::Relaxed);
    }
}

type Looked = Result<Vec<String>, String>;

/// The place for a look-up's result: once. The look-up counts as running as long as it has this.
#[pyclass(module = "hamlyn._hamlyn", frozen)]
pub struct _Answer(SyncSender<Looked>, #[allow(dead_code)] Running);

#[pymethods]
impl _Answer {
    /// The places, host:port.
    fn give(&self, places: Vec<String>) {
        // The attempt may have ended: the result is then too late.
        let _ = self.0.try_send(Ok(places));
    }

    /// The reason why there are no places.
    fn fail(&self, why: String) {
        let _ = self.0.try_send(Err(why));
    }
}

struct Given(Arc<Functions>);

struct Functions {
    look_up: Py<PyAny>,
    /// `hamlyn._directory.look_up`.
    run: Py<PyAny>,
    /// `_thread.start_new_thread`.
    start: Py<PyAny>,
}

/// The library's form of this callable; `None` for `None`.
pub fn directory(
    py: Python<'_>,
    look_up: &Bound<'_, PyAny>,
) -> PyResult<Option<Arc<dyn HostDirectory>>> {
    if look_up.is_none() {
        return Ok(None);
    }
    if !look_up.is_callable() {
        let text = format!("the directory is {}; it is a function or None", look_up.repr()?);
        return Err(PyTypeError::new_err(text));
    }
    let run = py.import("hamlyn._directory")?.getattr("look_up")?.unbind();
    let start = py.import("_thread")?.getattr("start_new_thread")?.unbind();
    let functions = Functions { look_up: look_up.clone().unbind(), run, start };
    Ok(Some(Arc::new(Given(Arc::new(functions)))))
}

impl HostDirectory for Given {
    fn look_up(
        &self,
        service: &str,
        timeout: Option<Duration>,
    ) -> Result<Vec<Place>, Box<dyn Error + Send + Sync>> {
        const ENDS: &str = "the interpreter ends";
        if is_leaving() {
            return Err(ENDS.into());
        }
        let running = Running::begin()?;
        let (tell, told) = sync_channel(1);
        let (functions, service) = (self.0.clone(), service.to_owned());
        let start = move || {
            let failed = tell.clone();
            let started = Python::try_attach(|py| {
                let seconds = timeout.map(|left| left.as_secs_f64());
                let given = (functions.look_up.bind(py), service, seconds, _Answer(tell, running));
                let run = (functions.run.bind(py), given);
                let started = functions.start.bind(py).call1(run).map(drop);
                // Dropped while the interpreter's lock is held.
                drop(functions);
                started.map_err(|e| e.to_string())
            });
            if let Err(why) = started.unwrap_or_else(|| Err(ENDS.into())) {
                let _ = failed.try_send(Err(why));
            }
        };
        // The wait for the interpreter's lock has no time limit of its own: so it is on another
        // thread.
        std::thread::Builder::new()
            .name("hamlyn-directory".into())
            .spawn(start)
            .of_call("clone")?;
        let looked = match timeout {
            Some(timeout) => told.recv_timeout(timeout),
            None => told.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match looked {
            Ok(found) => Ok(found?.iter().map(|p| p.parse()).collect::<Result<_, _>>()?),
            Err(RecvTimeoutError::Timeout) => Err("it has not answered in time".into()),
            Err(RecvTimeoutError::Disconnected) => Err("it has not answered".into()),
        }
    }
}
