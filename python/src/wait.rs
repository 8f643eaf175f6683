//! Waiting without the interpreter's lock, in slices, so that Ctrl-C is seen.
//!
//! What is there already is taken at once, with the lock held: giving it up and getting it back
//! costs as much as a message, and with other threads at work a wait for their switch interval.
//! So each call first looks, then looks again for about a microsecond, and only then lets go.

use crate::manager::Inner;
use core::time::Duration;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::time::Instant;

/// How long a signal handler, or the end of the manager, may have to wait for a waiting thread.
const SLICE: Duration = Duration::from_millis(50);
/// The same while an event loop waits beside the thread, which may take the loop's messages from
/// their link and tells it after each slice.
const SHARED_SLICE: Duration = Duration::from_millis(1);

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
    let _slow = inner.slow();
    loop {
        let left = limit.left();
        let longest = if inner.has_waiters() { SHARED_SLICE } else { SLICE };
        let slice = left.map_or(longest, |left| left.min(longest));
        let attempted = py.detach(|| attempt(slice));
        inner.wake_waiters();
        match attempted {
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
