//! Waiting without the interpreter's lock, in slices, so that Ctrl-C is seen.
//!
//! What is there already is taken at once, with the lock held: giving it up and getting it back
//! costs as much as a message, and with other threads at work a wait for their switch interval.
//! So each call first looks, then looks again for about a microsecond, and only then lets go.

use crate::errors::{Kind, OrRaise, ToPy, error};
use crate::inner::{Inner, locked};
use core::time::Duration;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, mpsc};
use std::time::Instant;

/// How long a signal handler, or the end of the manager, may have to wait for a waiting thread.
static SLICE_MS: AtomicU64 = AtomicU64::new(50);

/// For tests: so long that whatever only goes on at the end of a slice does not go on at all.
#[pyfunction]
pub fn _set_slice(milliseconds: u64) {
    SLICE_MS.store(milliseconds, Ordering::Relaxed);
}

/// Looks with the interpreter's lock held before it is given up: about a microsecond.
pub const LOOKS: usize = 40;

/// A time limit.
#[derive(Clone, Copy, Debug)]
pub struct Limit(Option<Instant>);

impl Limit {
    /// `None` or infinity: none.
    pub fn new(timeout: Option<f64>) -> PyResult<Self> {
        Ok(Self(duration(timeout)?.and_then(|left| Instant::now().checked_add(left))))
    }

    fn left(self) -> Option<Duration> {
        self.0.map(|end| end.saturating_duration_since(Instant::now()))
    }
}

/// Seconds as Python gives them.
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
/// result or the time is over (`None`). Between slices signal handlers run, and whatever they
/// raise ends the wait; so does the manager's end.
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
            done => return Ok(done),
        }
        py.check_signals()?;
        inner.check_open()?;
        if left.is_some_and(|left| left <= slice) {
            return Ok(Ok(None));
        }
    }
}

/// Calls `work` on a thread of its own, because it can neither be cut into slices nor see Ctrl-C.
/// Where that ends the wait, or `is_closed` does, the work goes on until its own time limit or the
/// end of its connection, and its result is dropped.
pub fn on_thread<T: Send + 'static, E: ToPy + Send + 'static>(
    py: Python<'_>,
    inner: &Inner,
    is_closed: impl Fn() -> bool + Send + Sync,
    work: impl FnOnce() -> Result<T, E> + Send + 'static,
) -> PyResult<Result<T, E>> {
    let (tell, answer) = mpsc::sync_channel(1);
    let builder = std::thread::Builder::new().name("hamlyn-connect".into());
    builder.spawn(move || tell.send(work())).or_raise()?;
    let gone = || error(Kind::Closed, "the thread that did this work is gone");
    let answer = Mutex::new(answer);
    let attempt = |slice| match locked(&answer).recv_timeout(slice) {
        Ok(result) => Ok(Some(result)),
        Err(mpsc::RecvTimeoutError::Timeout) if is_closed() => Err(Lost::Closed),
        Err(mpsc::RecvTimeoutError::Timeout) => Ok(None),
        Err(mpsc::RecvTimeoutError::Disconnected) => Err(Lost::Gone),
    };
    let result = sliced(py, inner, Limit(None), attempt);
    // A result that came too late is dropped here, and may ask for the node's lock.
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
    let builder = std::thread::Builder::new().name("hamlyn-connect".into());
    builder.spawn(move || drop(tell.send(work()))).or_raise()?;
    let answer = Mutex::new(answer);
    loop {
        let slice = Duration::from_millis(SLICE_MS.load(Ordering::Relaxed));
        match py.detach(|| locked(&answer).recv_timeout(slice)) {
            Ok(result) => return Ok(result),
            Err(mpsc::RecvTimeoutError::Timeout) => py.check_signals()?,
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                return Err(error(Kind::Closed, "the thread that did this work is gone"));
            }
        }
    }
}

/// Why the result of a thread's work does not come.
enum Lost {
    Closed,
    Gone,
}
