//! Directories: Python says where services of other hosts are whose names say no place.
//!
//! ```text
//!   a thread that connects --start_new_thread--> a thread of Python's --> the callable
//!            waits, without the interpreter's lock <--- _Answer ---'
//! ```
//! The callable runs in a thread of Python's, with nothing of the library's below it: so it may wait,
//! use managers, and be left alone when the interpreter ends, as any other thread of Python's. Whoever
//! connects is told when its time is over.

use crate::admission::is_leaving;
use core::time::Duration;
use hamlyn::node::{HostDirectory, Place};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use std::error::Error;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};

type Looked = Result<Vec<String>, String>;

/// Where a look-up says what it has found: once.
#[pyclass(module = "hamlyn._hamlyn", frozen)]
pub struct _Answer(SyncSender<Looked>);

#[pymethods]
impl _Answer {
    /// The places, host:port.
    fn give(&self, places: Vec<String>) {
        // Nobody waits for it any more: it is too late.
        let _ = self.0.try_send(Ok(places));
    }

    /// Why there are none.
    fn fail(&self, why: String) {
        let _ = self.0.try_send(Err(why));
    }
}

struct Given {
    look_up: Py<PyAny>,
    /// `hamlyn._directory.look_up`.
    run: Py<PyAny>,
    /// `_thread.start_new_thread`.
    start: Py<PyAny>,
}

/// What the library asks for this callable; `None` for `None`.
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
    Ok(Some(Arc::new(Given { look_up: look_up.clone().unbind(), run, start })))
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
        let (tell, told) = sync_channel(1);
        let seconds = timeout.map(|left| left.as_secs_f64());
        let started = Python::try_attach(|py| {
            let given = (self.look_up.bind(py), service, seconds, _Answer(tell));
            // It is given no time to run here: that it starts is all that is waited for.
            self.start
                .bind(py)
                .call1((self.run.bind(py), given))
                .map(drop)
                .map_err(|e| e.to_string())
        });
        started.ok_or(ENDS)??;
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
