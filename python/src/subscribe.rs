//! Subscribers and samples.
//!
//! The publisher can change a sample of its pool in its place at any time. So its bytes are only
//! ever copied out, and those of a short one, too: a receiver need not distinguish the two.

use crate::admission::outside;
use crate::array::{self, HEAD_BYTES_MAX, Header};
use crate::bytes::with_bytes_mut;
use crate::end::{End, connect, grow, ready, sender};
use crate::errors::{Kind, OrRaise, error};
use crate::inner::locked;
use crate::job::Job;
use crate::manager::Manager;
use crate::publish::when_slow_of;
use crate::stream::HELD_BYTES_MAX;
use crate::tagged::{nothing, timed_out};
use hamlyn::AccessError;
use hamlyn::protocol::{self, ReceiveError, RecordBytes, SubscribeConfig};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::sync::{Arc, Mutex};

type Ends = Arc<End<protocol::Subscriber>>;

/// Receives the samples of one publisher, in the order of publication.
#[pyclass(module = "hamlyn", frozen, weakref)]
pub struct Subscriber {
    end: Ends,
}

fn subscribe_config(
    depth: u32,
    when_slow: Option<&str>,
    history: Option<u32>,
    outstanding: Option<u32>,
) -> PyResult<SubscribeConfig> {
    let mut config = SubscribeConfig { depth, ..SubscribeConfig::default() };
    config.when_slow = when_slow.map(when_slow_of).transpose()?;
    config.history = history.unwrap_or(config.history);
    config.outstanding = outstanding.unwrap_or(config.outstanding);
    Ok(config)
}

#[pymethods]
impl Subscriber {
    /// Subscribes to the publisher of `[user@]name`, waiting at most `timeout` seconds for a server
    /// of that name and for its answer. `depth`: samples in this process's memory that wait to be
    /// received, some 2 KiB each. `when_slow`: the policy if this subscriber is slow: the
    /// publisher's (`None`), or one that is cheaper for the publisher, which refuses any other.
    /// `history`: the number of newest samples published before that come first; `outstanding`:
    /// samples of the pool that it has at once; each at most, and if it is `None` exactly, as many
    /// as the publisher allows.
    #[staticmethod]
    #[pyo3(signature = (
        manager, name, timeout=10.0, *,
        depth=64, when_slow: "WhenSlow | None" = None, history=None, outstanding=None
    ))]
    #[allow(clippy::too_many_arguments)]
    fn connect(
        py: Python<'_>,
        manager: &Manager,
        name: String,
        timeout: Option<f64>,
        depth: u32,
        when_slow: Option<&str>,
        history: Option<u32>,
        outstanding: Option<u32>,
    ) -> PyResult<Self> {
        let config = subscribe_config(depth, when_slow, history, outstanding)?;
        let wrap = core::convert::identity::<protocol::Subscriber>;
        Ok(Self { end: connect(py, manager, name, config, timeout, wrap)? })
    }

    /// Subscribes by a publisher's seed (a `Seed`, or the bytes or text of one); otherwise as
    /// `connect`.
    #[staticmethod]
    #[pyo3(signature = (
        manager, seed: "Seed | Buffer | str", timeout=10.0, *,
        depth=64, when_slow: "WhenSlow | None" = None, history=None, outstanding=None
    ))]
    #[allow(clippy::too_many_arguments)]
    fn grow(
        py: Python<'_>,
        manager: &Manager,
        seed: &Bound<'_, PyAny>,
        timeout: Option<f64>,
        depth: u32,
        when_slow: Option<&str>,
        history: Option<u32>,
        outstanding: Option<u32>,
    ) -> PyResult<Self> {
        let config = subscribe_config(depth, when_slow, history, outstanding)?;
        let wrap = core::convert::identity::<protocol::Subscriber>;
        Ok(Self { end: grow(py, manager, seed, config, timeout, wrap)? })
    }

    /// Subscribes to the publisher that a job's rank offers under `name`, waiting for it at most
    /// `timeout` seconds. See `connect`.
    #[staticmethod]
    #[pyo3(signature = (
        job, rank, name, timeout=10.0, *,
        depth=64, when_slow: "WhenSlow | None" = None, history=None, outstanding=None
    ))]
    #[allow(clippy::too_many_arguments)]
    fn grow_from(
        py: Python<'_>,
        job: &Job,
        rank: u32,
        name: String,
        timeout: Option<f64>,
        depth: u32,
        when_slow: Option<&str>,
        history: Option<u32>,
        outstanding: Option<u32>,
    ) -> PyResult<Self> {
        let config = subscribe_config(depth, when_slow, history, outstanding)?;
        let wrap = core::convert::identity::<protocol::Subscriber>;
        Ok(Self { end: job.grow(py, (rank, name), config, timeout, wrap)? })
    }

    /// Receives the next sample if one is there or comes in one turn, else `None`.
    fn try_receive(&self, py: Python<'_>) -> PyResult<Option<Sample>> {
        let found = self.end.with(py, |end| end.try_receive())?.or_raise()?;
        Ok(found.map(|sample| self.hand_out(sample)))
    }

    /// Receives the next sample; waits at most `timeout` seconds. After the publisher has ended, or
    /// has disconnected this subscriber, all arrived samples are received first; then raises
    /// `Closed`. Raises `TimedOut`.
    #[pyo3(signature = (timeout=None))]
    fn receive(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Sample> {
        let found =
            self.end.receive(py, timeout, |end, slice| timed_out(end.receive(Some(slice))))?;
        found.map(|sample| self.hand_out(sample)).ok_or_else(nothing)
    }

    /// The samples, until the publisher has closed. Raises `Closed` if it ended in any other way.
    /// Asking for the next sample releases the one before: copy bytes that you want to keep
    /// (`bytes(sample)`, `sample.array()`), or take samples by `receive`.
    fn __iter__(slf: Py<Self>) -> Samples {
        Samples { of: slf, last: Mutex::new(None) }
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Sample>> {
        let found = self.end.receive(py, None, |end, slice| match end.receive(Some(slice)) {
            Err(ReceiveError::Ended(hamlyn::node::CloseReason::Closed)) => Ok(Some(None)),
            taken => Ok(timed_out(taken)?.map(Some)),
        })?;
        Ok(found.flatten().map(|sample| self.hand_out(sample)))
    }

    /// The number of samples left out so far, before the received ones.
    #[getter]
    fn missed(&self, py: Python<'_>) -> PyResult<u64> {
        self.end.with(py, |end| end.missed())
    }
}

impl Subscriber {
    fn hand_out(&self, sample: protocol::Sample) -> Sample {
        let (number, missed, length) = (sample.number(), sample.missed(), sample.len());
        let sample = Mutex::new(Some(Arc::new(sample)));
        Sample { end: self.end.clone(), number, missed, length, sample }
    }
}

sender!(Subscriber);
ready!(Subscriber);

/// The samples of one loop. While the loop waits for the next sample, its variable has the one
/// before: this would keep a sample of the pool from its publisher, and would delay a drain.
#[pyclass(module = "hamlyn", frozen)]
pub struct Samples {
    of: Py<Subscriber>,
    last: Mutex<Option<Py<Sample>>>,
}

#[pymethods]
impl Samples {
    fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Py<Sample>>> {
        let last = locked(&self.last).take();
        if let Some(last) = last {
            last.get().release();
        }
        let Some(next) = self.of.get().__next__(py)? else { return Ok(None) };
        let next = Py::new(py, next)?;
        // A sample that another thread may have put there is dropped without the lock.
        let other = locked(&self.last).replace(next.clone_ref(py));
        drop(other);
        Ok(Some(next))
    }
}

/// A sample. A long one stays in its publisher's pool until it is released: by `release()`, at the
/// end of a `with` block, or when it is dropped; and the publisher can change it at any time. So
/// bytes are only copied out, by `copy_into`, `bytes(sample)` or `array()`; copy first, then check
/// the copy.
#[pyclass(module = "hamlyn", frozen, weakref)]
pub struct Sample {
    end: Ends,
    number: u64,
    missed: u64,
    length: usize,
    /// `None` once it is released.
    sample: Mutex<Option<Arc<protocol::Sample>>>,
}

#[pymethods]
impl Sample {
    /// The number of samples published before it, to any subscriber.
    #[getter]
    fn number(&self) -> u64 {
        self.number
    }

    /// The number of samples left out between this subscriber's previous one and this one.
    #[getter]
    fn missed(&self) -> u64 {
        self.missed
    }

    /// Copies bytes, from `start` on, into all of `target`, a numpy array or another writable
    /// buffer. Raises `Misuse` if the sample has fewer, `Closed` if it was released or its
    /// publisher, in whose pool it is, is gone.
    #[pyo3(signature = (target: "Buffer", start=0))]
    fn copy_into(&self, py: Python<'_>, target: &Bound<'_, PyAny>, start: usize) -> PyResult<()> {
        with_bytes_mut(target, |to| self.copy(py, start, to))
    }

    fn __bytes__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        PyBytes::new_with(py, self.length, |to| self.copy(py, 0, to))
    }

    /// The array published by `publish_array` or in a `loan_array`, copied: the header first, which
    /// is checked, then the rest. Raises `ArrayError` if the sample is not an array, or does not
    /// fit. Needs numpy.
    #[pyo3(signature = () -> "AnyArray")]
    fn array<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let mut head = vec![0; self.length.min(HEAD_BYTES_MAX)];
        self.copy(py, 0, &mut head)?;
        let header = Header::of_message(&head, self.length as u64)?;
        header.filled(py, |to| self.copy(py, header.start(), to))
    }

    /// Gives its memory back to the publisher. Releasing twice is allowed.
    fn release(&self) {
        let sample = locked(&self.sample).take();
        self.let_go(sample);
    }

    fn __len__(&self) -> usize {
        self.length
    }

    fn __enter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exception: "object"))]
    fn __exit__(&self, _exception: &Bound<'_, PyAny>) {
        self.release();
    }

    fn __repr__(&self) -> String {
        format!("<hamlyn.Sample {} of {} bytes>", self.number, self.length)
    }
}

array::only_copied!(Sample, "sample");

impl Sample {
    /// Copies from byte `at` on, all of `to`.
    fn copy(&self, py: Python<'_>, at: usize, to: &mut [u8]) -> PyResult<()> {
        self.end.inner.check_fork()?;
        let sample = locked(&self.sample).clone();
        let Some(sample) = sample else {
            let text = "the sample was released: by release(), or by a loop that has asked for the next one";
            return Err(error(Kind::Closed, text));
        };
        let read = |to: &mut [u8]| match sample.bytes() {
            RecordBytes::Still(bytes) => {
                let from = bytes.get(at..).and_then(|rest| rest.get(..to.len()));
                let (offset, length) = (at as u64, to.len() as u64);
                let bytes = bytes.len() as u64;
                let from = from.ok_or(AccessError::OutOfBounds { offset, length, bytes })?;
                to.copy_from_slice(from);
                Ok(())
            }
            RecordBytes::Volatile(bytes) => bytes.read(at, to),
        };
        let copied = match to.len() > HELD_BYTES_MAX {
            true => py.detach(|| read(to)),
            false => read(to),
        };
        // The last reference, if it was released meanwhile.
        self.let_go(Some(sample));
        copied.or_raise()
    }

    /// Drops it; the last reference notifies the publisher, with the manager's lock.
    fn let_go(&self, sample: Option<Arc<protocol::Sample>>) {
        let Some(sample) = sample else { return };
        if self.end.inner.check_fork().is_err() {
            // The parent's.
            core::mem::forget(sample);
        } else if Arc::strong_count(&sample) > 1 && locked(&self.sample).is_some() {
            // Another reference is the last.
            drop(sample);
        } else {
            outside(&self.end.inner, move || drop(sample));
        }
    }
}

impl Drop for Sample {
    fn drop(&mut self) {
        self.release();
    }
}
