//! Waiting without the interpreter's lock, in slices, so that Ctrl-C is seen.
//!
//! A call takes a message that is there at once, with the lock held: to release the lock and get it
//! back costs as much as a message, and with other threads at work a wait for their switch
//! interval. So each call first looks, then looks again for about a microsecond, and only then
//! releases the lock.

use crate::errors::{Kind, OrRaise, ToPy, error};
use crate::inner::{Inner, locked};
use core::time::Duration;
use hamlyn::os::call::OfCall;
use hamlyn::protocol::UntilGivenUp;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Instant;

/// How long a signal handler, or the end of the manager, may have to wait for a waiting thread.
static SLICE_MS: AtomicU64 = AtomicU64::new(50);

/// For tests: a slice so long that work which needs its end does not go on at all.
#[pyfunction]
pub fn _set_slice(milliseconds: u64) {
    SLICE_MS.store(milliseconds, Ordering::Relaxed);
}

thread_local! {
    /// Whether the task that this thread works for has given up.
    static GIVEN_UP: RefCell<Option<Arc<AtomicBool>>> = const { RefCell::new(None) };
}

/// A thread's work for a task, which may give it up: then any wait of the thread ends with the
/// slice, and raises `Closed`.
#[pyclass(module = "hamlyn._hamlyn", frozen)]
pub struct _Work(Arc<AtomicBool>);

#[pymethods]
impl _Work {
    #[new]
    fn new() -> Self {
        Self(Arc::default())
    }

    /// Calls `call` in this thread, and returns its result.
    #[pyo3(signature = (call: "Callable[[], object]", /) -> "object")]
    fn run<'py>(&self, call: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let before = GIVEN_UP.replace(Some(self.0.clone()));
        let result = call.call0();
        GIVEN_UP.set(before);
        result
    }

    /// From any thread: gives the work up.
    fn give_up(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn check_given_up() -> PyResult<()> {
    let is_given_up = |work: &Option<Arc<AtomicBool>>| {
        work.as_ref().is_some_and(|work| work.load(Ordering::Relaxed))
    };
    match GIVEN_UP.with_borrow(is_given_up) {
        false => Ok(()),
        true => Err(error(Kind::Closed, "nobody waits for this any more: its task was cancelled")),
    }
}

/// Looks with the interpreter's lock held before it is given up: about a microsecond.
pub const LOOKS: usize = 40;

/// A time limit.
#[derive(Clone, Copy, Debug)]
pub struct Limit(Option<Instant>);

impl Limit {
    /// `None` or infinity: without limit.
    pub fn new(timeout: Option<f64>) -> PyResult<Self> {
        Ok(Self(duration(timeout)?.and_then(|left| Instant::now().checked_add(left))))
    }

    fn left(self) -> Option<Duration> {
        self.0.map(|end| end.saturating_duration_since(Instant::now()))
    }
}

/// A time limit in seconds, from Python.
pub fn duration(timeout: Option<f64>) -> PyResult<Option<Duration>> {
    match timeout {
        None => Ok(None),
        Some(f64::INFINITY) => Ok(None),
        Some(seconds) => Duration::try_from_secs_f64(seconds).map(Some).or_else(|_| {
            if seconds > 0.0 {
                return Ok(None);
            }
            let text = format!("the timeout is {seconds}; it is None or at least 0 seconds");
            Err(PyValueError::new_err(text))
        }),
    }
}

/// Calls `attempt` with slices of the time limit, without the interpreter's lock, until it has a
/// result or the time limit has passed (`None`). Between slices signal handlers run, and an
/// exception of theirs ends the wait; so does closing the manager, or giving the work up.
pub fn sliced<T: Send, E: Send>(
    py: Python<'_>,
    inner: &Inner,
    limit: Limit,
    mut attempt: impl FnMut(Duration) -> Result<Option<T>, E> + Send,
) -> PyResult<Result<Option<T>, E>> {
    loop {
        let left = limit.left();
        let longest = Duration::from_millis(SLICE_MS.load(Ordering::Relaxed));
        let slice = left.map_or(longest, |left| left.min(longest));
        match py.detach(|| attempt(slice)) {
            Ok(None) => {}
            Ok(done) => return Ok(Ok(done)),
            // Ctrl-C ends the other end, too: raise for that, and not that the peer is gone.
            Err(error) => {
                py.check_signals()?;
                return Ok(Err(error));
            }
        }
        py.check_signals()?;
        check_given_up()?;
        inner.check_open()?;
        if left.is_some_and(|left| left <= slice) {
            return Ok(Ok(None));
        }
    }
}

/// Calls `work` on a thread of its own, because it can neither be cut into slices nor see Ctrl-C.
/// If Ctrl-C, or `is_closed`, ends the wait, an attempt to connect is given up; other work goes on
/// until its own time limit or the end of its connection. The result is dropped.
pub fn on_thread<T: Send + 'static, E: ToPy + Send + 'static>(
    py: Python<'_>,
    inner: &Inner,
    is_closed: impl Fn() -> bool + Send + Sync,
    work: impl FnOnce() -> Result<T, E> + Send + 'static,
) -> PyResult<Result<T, E>> {
    let (tell, answer) = mpsc::sync_channel(1);
    let builder = std::thread::Builder::new().name("hamlyn-work".into());
    let given_up = Arc::<AtomicBool>::default();
    let flag = given_up.clone();
    let begin = move || {
        let _until = UntilGivenUp::new(flag);
        tell.send(work())
    };
    // If there can be no thread, `work` is dropped, and may ask for the node's lock.
    py.detach(|| builder.spawn(begin)).of_call("clone").or_raise()?;
    let gone = || error(Kind::Closed, "the thread that did this work is gone");
    let answer = Mutex::new(answer);
    let attempt = |slice| match locked(&answer).recv_timeout(slice) {
        Ok(result) => Ok(Some(result)),
        Err(mpsc::RecvTimeoutError::Timeout) if is_closed() => Err(Lost::Closed),
        Err(mpsc::RecvTimeoutError::Timeout) => Ok(None),
        Err(mpsc::RecvTimeoutError::Disconnected) => Err(Lost::Gone),
    };
    let result = sliced(py, inner, Limit(None), attempt);
    if !matches!(result, Ok(Ok(_))) {
        // Closing the manager ends it anyway.
        if let Ok(node) = inner.node() {
            py.detach(|| UntilGivenUp::give_up(&given_up, &node));
        }
    }
    // A late result is dropped here, and may ask for the node's lock.
    py.detach(move || drop(answer));
    match result? {
        Ok(result) => result.ok_or_else(gone),
        Err(Lost::Gone) => Err(gone()),
        Err(Lost::Closed) => Err(error(Kind::Closed, "the end point was closed meanwhile")),
    }
}

/// The same before there is a manager.
pub fn signalled<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce() -> T + Send + 'static,
) -> PyResult<T> {
    let (tell, answer) = mpsc::sync_channel(1);
    let builder = std::thread::Builder::new().name("hamlyn-work".into());
    builder.spawn(move || drop(tell.send(work()))).of_call("clone").or_raise()?;
    let answer = Mutex::new(answer);
    let result = loop {
        let slice = Duration::from_millis(SLICE_MS.load(Ordering::Relaxed));
        match py.detach(|| locked(&answer).recv_timeout(slice)) {
            Ok(result) => break Ok(result),
            Err(mpsc::RecvTimeoutError::Timeout) => {
                if let Err(e) = py.check_signals() {
                    break Err(e);
                }
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                break Err(error(Kind::Closed, "the thread that did this work is gone"));
            }
        }
    };
    // A late result is dropped here, and may wait for other threads.
    py.detach(move || drop(answer));
    result
}

/// The reason why a thread's work has no result.
enum Lost {
    Closed,
    Gone,
}
