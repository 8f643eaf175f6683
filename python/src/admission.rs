//! Admission: Python decides who may grow a sender.
//!
//! The library calls back while it holds the manager's lock, in any thread that polls; and the
//! callback takes the interpreter's lock. So, while a manager has such a callback:
//!
//! - No thread asks for the manager's lock while it holds the interpreter's: `Inner::is_slow` is
//!   true from before the callback is set until it is gone, and `outside` does the same for work in
//!   destructors.
//! - The callback cannot use a manager: `check` raises, and objects that go away meanwhile are
//!   dropped on a thread of their own.
//! - When the interpreter ends, no thread waits for it any more: `leave` runs before that, closes
//!   the door, and waits for the callback that is running.

use crate::errors::{Kind, error};
use crate::inner::Inner;
use crate::parts::Peer;
use core::cell::Cell;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use pyo3::exceptions::{PyKeyboardInterrupt, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyString};
use std::sync::{Arc, Mutex, PoisonError, Weak};

type Answer = Result<(), String>;

/// The library's form of an admission callback.
pub type Admission = Box<dyn FnMut(&hamlyn::Peer) -> Answer + Send>;

/// Callbacks that run now, in all threads: `check` looks at this first.
static RUNNING: AtomicUsize = AtomicUsize::new(0);
/// The interpreter is about to end.
static LEAVING: AtomicBool = AtomicBool::new(false);
/// Managers that have, or had, a callback.
static ASKING: Mutex<Vec<Weak<Inner>>> = Mutex::new(Vec::new());

thread_local! {
    static IS_INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread runs a callback.
#[inline]
pub fn is_inside() -> bool {
    RUNNING.load(Ordering::Relaxed) > 0 && is_inside_now()
}

/// A call of its own: in a shared library a call finds the address of a thread's variable, and the
/// compiler would make it before it is known to be needed.
#[cold]
#[inline(never)]
fn is_inside_now() -> bool {
    IS_INSIDE.get()
}

/// Raises in a callback.
#[inline]
pub fn check() -> PyResult<()> {
    if !is_inside() {
        return Ok(());
    }
    let text = "an admission callback cannot use a manager or what belongs to one: it runs while \
                the manager's lock is held";
    Err(error(Kind::Misuse, text))
}

/// Does work that may take the manager's lock, from a destructor: now, without the interpreter's
/// lock if another thread may hold the manager's for long, or on another thread.
pub fn outside(inner: &Inner, work: impl FnOnce() + Send + 'static) {
    if !inner.is_slow() {
        return work();
    }
    let mut work = Some(work);
    if !is_inside() {
        let without_lock = |py: Python<'_>| py.detach(|| work.take().into_iter().for_each(|w| w()));
        // Without an interpreter there is no lock to give up.
        let _ = Python::try_attach(without_lock);
        work.into_iter().for_each(|w| w());
        return;
    }
    // Kept apart from the thread, so that it is dropped here if there can be no thread.
    let work = Arc::new(Mutex::new(work));
    let its = work.clone();
    let take = move || its.lock().unwrap_or_else(PoisonError::into_inner).take();
    let thread = std::thread::Builder::new().name("hamlyn-outside".into());
    let spawned = thread.spawn(move || take().into_iter().for_each(|w| w()));
    if spawned.is_err() {
        core::mem::forget(work);
    }
}

/// A Python callback. The manager counts as slow as long as this is there.
struct Callback {
    function: Py<PyAny>,
    slow: Arc<AtomicUsize>,
}

impl Drop for Callback {
    fn drop(&mut self) {
        // The library cannot call it any more.
        self.slow.fetch_sub(1, Ordering::Relaxed);
    }
}

/// While a callback runs.
struct Inside;

impl Inside {
    fn new() -> Self {
        RUNNING.fetch_add(1, Ordering::Relaxed);
        IS_INSIDE.set(true);
        Self
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        IS_INSIDE.set(false);
        RUNNING.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The library's form of this callback; `None` lets every peer in. To be called with the
/// interpreter's lock.
pub fn admission(inner: &Arc<Inner>, callback: &Bound<'_, PyAny>) -> PyResult<Admission> {
    if callback.is_none() {
        return Ok(Box::new(|_| Ok(())));
    }
    if !callback.is_callable() {
        let text = format!("the admission is {}; it is a function or None", callback.repr()?);
        return Err(PyTypeError::new_err(text));
    }
    let mut asking = ASKING.lock().unwrap_or_else(PoisonError::into_inner);
    asking.retain(|known| known.strong_count() > 0 && !known.ptr_eq(&Arc::downgrade(inner)));
    asking.push(Arc::downgrade(inner));
    drop(asking);
    let slow = inner.slow.clone();
    slow.fetch_add(1, Ordering::Relaxed);
    let callback = Callback { function: callback.clone().unbind(), slow };
    Ok(Box::new(move |peer| ask(&callback, peer)))
}

fn ask(callback: &Callback, peer: &hamlyn::Peer) -> Answer {
    if LEAVING.load(Ordering::Acquire) {
        return Err("the receiver's process ends".into());
    }
    let answer = Python::try_attach(|py| {
        // In this order: objects that the callback leaves are dropped while it still counts as
        // running.
        let _inside = Inside::new();
        let function = callback.function.bind(py);
        let answer = function.call1((Peer { peer: peer.clone() },)).and_then(|answer| {
            if let Ok(flag) = answer.cast::<PyBool>() {
                return Ok(if flag.is_true() { Ok(()) } else { Err(refused()) });
            }
            if let Ok(reason) = answer.cast::<PyString>() {
                return Ok(Err(reason.to_string_lossy().into_owned()));
            }
            let found = answer.get_type().name()?;
            let text = format!("an admission callback returned {found}; it returns a bool or str");
            Err(PyTypeError::new_err(text))
        });
        answer.unwrap_or_else(|e| {
            if e.is_instance_of::<PyKeyboardInterrupt>(py) {
                // The interrupt was for the call that polls, not for the callback.
                // SAFETY: attached to the interpreter.
                unsafe { ffi::PyErr_SetInterrupt() };
            } else {
                e.write_unraisable(py, Some(function));
            }
            Err("the receiver's owner could not decide".into())
        })
    });
    answer.unwrap_or_else(|| Err("the receiver's process ends".into()))
}

/// Whether the interpreter is about to end.
#[cfg(feature = "tls")]
pub fn is_leaving() -> bool {
    LEAVING.load(Ordering::Acquire)
}

fn refused() -> String {
    "the receiver's owner does not let this process in".into()
}

/// Before the interpreter ends: no callback is called any more, and none runs.
#[pyfunction]
fn leave(py: Python<'_>) {
    LEAVING.store(true, Ordering::Release);
    let asking = core::mem::take(&mut *ASKING.lock().unwrap_or_else(PoisonError::into_inner));
    py.detach(|| asking.iter().filter_map(Weak::upgrade).for_each(|inner| inner.wait_for_lock()));
}

/// Registers `leave` to be called in time.
pub fn register(py: Python<'_>) -> PyResult<()> {
    let leave = wrap_pyfunction!(leave, py)?;
    py.import("atexit")?.call_method1("register", (leave,))?;
    Ok(())
}
