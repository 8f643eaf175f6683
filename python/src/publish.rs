//! Publishers, and samples of their pools that are written in place. `subscribe.rs` has the other side.
//!
//! A `SampleLoan` is memory of the pool. While Python has a buffer of it, it is neither published
//! nor given back; afterwards it gives out no more buffers. So Python never sees a published sample
//! through it, or another one.

use crate::array::{self, Header};
use crate::bytes::with_bytes;
use crate::end::{End, named, offered, peer_of};
use crate::errors::{Kind, OrRaise, error};
use crate::inner::locked;
use crate::lent::Lent;
use crate::manager::Manager;
use crate::parts::Peer;
use crate::stream::HELD_BYTES_MAX;
use core::ffi::c_int;
use core::time::Duration;
use hamlyn::protocol::{self, Loan, PublishConfig, PublishError, WhenSlow};
use pyo3::exceptions::PyValueError;
use pyo3::ffi;
use pyo3::prelude::*;
use std::sync::{Arc, Mutex};

type Ends = Arc<End<Arc<protocol::Publisher>>>;

/// The policy for slow subscribers, by its name.
pub fn when_slow_of(name: &str) -> PyResult<WhenSlow> {
    let all = [WhenSlow::Wait, WhenSlow::DropOldest, WhenSlow::DropNewest, WhenSlow::SendAway];
    all.into_iter().find(|when| name_of(*when) == name).ok_or_else(|| {
        let names = all.map(|when| format!("'{}'", name_of(when))).join(", ");
        PyValueError::new_err(format!("when_slow is {name:?}; it is one of {names}"))
    })
}

fn name_of(when: WhenSlow) -> &'static str {
    match when {
        WhenSlow::Wait => "wait",
        WhenSlow::DropOldest => "drop_oldest",
        WhenSlow::DropNewest => "drop_newest",
        WhenSlow::SendAway => "send_away",
    }
}

fn not_yet<T>(result: Result<T, PublishError>) -> Result<Option<T>, PublishError> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(PublishError::TimedOut) => Ok(None),
        Err(e) => Err(e),
    }
}

#[cold]
fn late() -> PyErr {
    error(Kind::TimedOut, PublishError::TimedOut)
}

/// Publishes the held sample, waiting at most `timeout` seconds. After an error it is still held.
fn publish_held(
    end: &Ends,
    py: Python<'_>,
    held: &Mutex<Option<Loan>>,
    timeout: Option<f64>,
) -> PyResult<Option<u64>> {
    let publish = |publisher: &protocol::Publisher, limit| {
        let mut held = locked(held);
        let Some(loan) = held.take() else { return Err(PublishError::TimedOut) };
        publisher.publish_loan(loan, Some(limit)).map_err(|unpublished| {
            *held = Some(unpublished.loan);
            unpublished.error
        })
    };
    end.wait_shared(
        py,
        timeout,
        |publisher| not_yet(publish(publisher, Duration::ZERO)),
        |publisher, slice| not_yet(publish(publisher, slice)),
    )
}

/// Publishes samples to all its subscribers. Any number of threads may publish.
#[pyclass(module = "hamlyn", frozen, weakref)]
pub struct Publisher {
    end: Ends,
    /// Longer samples go into the pool.
    short_bytes_max: usize,
    pool_bytes: u64,
}

#[pymethods]
impl Publisher {
    /// A publisher without subscribers. `short_nbytes_max`: longest sample that is copied to each
    /// subscriber, at most 2,032; longer ones, of at most `sample_nbytes_max`, lie in a pool, of which
    /// every subscriber can read everything at any time (0: there is none), and `loans_max` of which may be
    /// on loan at once. To subscribers on other hosts they go in parts. `backlog`: the newest samples that are kept for subscribers that have no room
    /// now; `history`: those that whoever subscribes may ask for. `outstanding_max`: samples of the pool
    /// that a subscriber may have at once, at most 64; `subscribers_max`: how many there may be at one
    /// time. `when_slow`: what becomes of samples for which a subscriber has no room, unless it asks for
    /// something that burdens the publisher less: `"wait"`, `"drop_oldest"`, `"drop_newest"` or
    /// `"send_away"`, in this order.
    ///
    /// The pool is taken at once, and is `pool_nbytes` long: `sample_nbytes_max` (up to a multiple of 64)
    /// times the sum of `subscribers_max` times `outstanding_max`, the larger of `backlog` and `history`,
    /// and `loans_max`, in whole pages. With samples of 8 MiB and the other settings as they are, that
    /// is 656 MiB. Raises `Misuse` where a control group of this process leaves less.
    #[new]
    #[pyo3(signature = (
        manager, *, short_nbytes_max=1024, sample_nbytes_max=0, loans_max=2, backlog=16, history=0,
        outstanding_max=4, subscribers_max=16, when_slow: "WhenSlow" = "drop_oldest"
    ))]
    #[allow(clippy::too_many_arguments)]
    fn new(
        py: Python<'_>,
        manager: &Manager,
        short_nbytes_max: usize,
        sample_nbytes_max: usize,
        loans_max: u32,
        backlog: u32,
        history: u32,
        outstanding_max: u32,
        subscribers_max: u32,
        when_slow: &str,
    ) -> PyResult<Self> {
        let node = manager.inner.node()?;
        let config = PublishConfig {
            short_bytes_max: short_nbytes_max,
            sample_bytes_max: sample_nbytes_max,
            loans_max,
            backlog,
            history,
            outstanding_max,
            subscribers_max,
            when_slow: when_slow_of(when_slow)?,
        };
        let pool_bytes = config.pool_bytes();
        let made = py.detach(|| protocol::Publisher::new(&node, config)).or_raise()?;
        let end = End::new(&manager.inner, Arc::new(made));
        Ok(Self { end, short_bytes_max: short_nbytes_max, pool_bytes })
    }

    /// Bytes of memory that the pool has taken, at once, when this was made; 0: there is none.
    #[getter]
    fn pool_nbytes(&self) -> u64 {
        self.pool_bytes
    }

    /// Publishes a sample; returns the number of samples published before it. Waits, at most
    /// `timeout` seconds, only for subscribers of `"wait"`. Raises `TimedOut`, and `Misuse` if the
    /// sample is too long or every loan of the pool is out; then nothing was published.
    #[pyo3(signature = (sample: "Buffer", timeout=None))]
    fn publish(
        &self,
        py: Python<'_>,
        sample: &Bound<'_, PyAny>,
        timeout: Option<f64>,
    ) -> PyResult<u64> {
        with_bytes(sample, |sample| self.publish_parts(py, &[], sample, timeout))?.ok_or_else(late)
    }

    /// `publish` without waiting: `None`, and nothing was published, if it would have to wait.
    #[pyo3(signature = (sample: "Buffer"))]
    fn try_publish(&self, py: Python<'_>, sample: &Bound<'_, PyAny>) -> PyResult<Option<u64>> {
        with_bytes(sample, |sample| self.publish_parts(py, &[], sample, Some(0.0)))
    }

    /// `publish` of an array with its type and shape, for `Sample.array()`. Raises `BufferError` if
    /// the array holds Python objects, has fields or a mask, or is not contiguous.
    #[pyo3(signature = (array: "Buffer", timeout=None))]
    fn publish_array(
        &self,
        py: Python<'_>,
        array: &Bound<'_, PyAny>,
        timeout: Option<f64>,
    ) -> PyResult<u64> {
        array::with_parts(array, |head, data| self.publish_parts(py, head, data, timeout))?
            .ok_or_else(late)
    }

    /// Lends a sample of `nbytes` bytes of the pool, to be written in place; never waits. Its bytes
    /// are those of any earlier sample. Raises `Misuse` if it is too long, or every loan is out.
    fn loan(&self, py: Python<'_>, nbytes: usize) -> PyResult<SampleLoan> {
        self.lend(py, nbytes, None)
    }

    /// Lends a sample of the pool for an array of this type ("<f8", or any argument of
    /// `numpy.dtype`) and shape, to be computed in place: `loan.array()`. Otherwise as `loan`.
    /// Raises `BufferError` for types that cannot be sent, `ValueError` for impossible shapes.
    #[pyo3(signature = (dtype: "DType", shape: "Shape"))]
    fn loan_array(
        &self,
        py: Python<'_>,
        dtype: &Bound<'_, PyAny>,
        shape: &Bound<'_, PyAny>,
    ) -> PyResult<SampleLoan> {
        let (header, total) = array::sized_header_of(dtype, shape)?;
        self.lend(py, total, Some(header))
    }

    /// `SampleLoan.publish` of a loan that must be this publisher's: another's raises `Misuse`, and
    /// stays as it is.
    #[pyo3(signature = (loan, timeout=None))]
    fn _publish_loan(
        &self,
        py: Python<'_>,
        loan: &SampleLoan,
        timeout: Option<f64>,
    ) -> PyResult<u64> {
        if !Arc::ptr_eq(&self.end, &loan.end) {
            return Err(PublishError::Foreign).or_raise();
        }
        loan.publish(py, timeout)
    }

    /// Waits, at most `timeout` seconds, until every subscriber has been sent all samples that are
    /// kept for it. Raises `TimedOut`.
    #[pyo3(signature = (timeout=None))]
    fn flush(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        let flush = |end: &protocol::Publisher, slice| not_yet(end.flush(Some(slice)));
        let done = self.end.wait_shared(
            py,
            timeout,
            |end| flush(end, Duration::ZERO),
            |end, slice| flush(end, slice),
        )?;
        done.ok_or_else(late)
    }

    /// `flush`, and waits until subscribers have released every sample of the pool: call it before
    /// closing the publisher, which frees the pool. Raises `TimedOut`.
    #[pyo3(signature = (timeout=None))]
    fn drain(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        self.drained(py, timeout)?.ok_or_else(late)
    }

    /// Closes it and its connections, at once: a subscriber that was not sent all samples yet, or
    /// missed the last, gets the error that it was too slow. Closing twice is allowed.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.end.close_now(py)
    }

    /// Drains it for at most 10 s, unless an exception leaves the `with`, and closes. Subscribers
    /// that have not had all samples by then get `Closed`; no subscriber makes this raise.
    #[pyo3(signature = (kind: "type[BaseException] | None", _error: "BaseException | None", _trace: "TracebackType | None"))]
    fn __exit__(
        &self,
        py: Python<'_>,
        kind: Option<&Bound<'_, PyAny>>,
        _error: Option<&Bound<'_, PyAny>>,
        _trace: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let is_open = !self.end.is_closed() && self.end.inner.check_open().is_ok();
        let drained = match kind {
            None if is_open => self.drained(py, Some(10.0)),
            _ => Ok(None),
        };
        self.end.close_now(py)?;
        drained.map(drop)
    }

    /// Its subscribers, and how each keeps up.
    #[getter]
    fn subscribers(&self, py: Python<'_>) -> PyResult<Vec<SubscriberState>> {
        let states = self.end.with(py, |end| end.subscribers())?;
        Ok(states.into_iter().map(|state| SubscriberState { state }).collect())
    }

    /// Samples that were published.
    #[getter]
    fn published(&self, py: Python<'_>) -> PyResult<u64> {
        self.end.with(py, |end| end.published())
    }

    /// Samples that subscribers did not get because they were slow, those that have gone included.
    #[getter]
    fn dropped(&self, py: Python<'_>) -> PyResult<u64> {
        self.end.with(py, |end| end.dropped())
    }

    /// Subscribers that were disconnected because they were too slow, or cannot receive the
    /// samples.
    #[getter]
    fn sent_away(&self, py: Python<'_>) -> PyResult<u64> {
        self.end.with(py, |end| end.sent_away())
    }

    /// Subscribers that were disconnected because they broke the rules.
    #[getter]
    fn misbehaved(&self, py: Python<'_>) -> PyResult<u64> {
        self.end.with(py, |end| end.misbehaved())
    }
}

impl Publisher {
    /// `None`: the time limit has passed.
    fn drained(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<()>> {
        let drain = |end: &protocol::Publisher, slice| not_yet(end.drain(Some(slice)));
        self.end.wait_shared(
            py,
            timeout,
            |end| drain(end, Duration::ZERO),
            |end, slice| drain(end, slice),
        )
    }

    /// `None`: the time is over.
    fn publish_parts(
        &self,
        py: Python<'_>,
        head: &[u8],
        data: &[u8],
        timeout: Option<f64>,
    ) -> PyResult<Option<u64>> {
        let length = head.len() + data.len();
        if length <= self.short_bytes_max || self.pool_bytes == 0 {
            let mut message = Vec::new();
            let sample = if head.is_empty() {
                data
            } else {
                message.extend_from_slice(head);
                message.extend_from_slice(data);
                &message
            };
            return self.end.wait_shared(
                py,
                timeout,
                |end| end.try_publish(sample),
                |end, slice| not_yet(end.publish(sample, Some(slice))),
            );
        }
        let mut loan = self.end.with(py, |end| end.loan(length))?.or_raise()?;
        let mut copy = || {
            let (to_head, to_data) = loan.split_at_mut(head.len());
            to_head.copy_from_slice(head);
            to_data.copy_from_slice(data);
        };
        match length > HELD_BYTES_MAX {
            true => py.detach(copy),
            false => copy(),
        }
        publish_held(&self.end, py, &Mutex::new(Some(loan)), timeout)
    }

    fn lend(&self, py: Python<'_>, length: usize, header: Option<Header>) -> PyResult<SampleLoan> {
        let mut loan = self.end.with(py, |end| end.loan(length))?.or_raise()?;
        if let Some(header) = &header {
            header.put(&mut loan[..header.start()]);
        }
        let start = loan.as_mut_ptr().expose_provenance();
        Ok(SampleLoan {
            end: self.end.clone(),
            loan: Mutex::new(Some(loan)),
            lent: Lent::new(["sample", "published or released"], start, length),
            header,
        })
    }
}

named!(Publisher, |_| None);
offered!(Publisher);

/// A publisher's view of one subscriber, at the time of the call.
#[pyclass(module = "hamlyn", frozen)]
pub struct SubscriberState {
    state: protocol::SubscriberState,
}

#[pymethods]
impl SubscriberState {
    /// Its identity, from the kernel.
    #[getter]
    fn peer(&self) -> Peer {
        peer_of(&self.state.connection)
    }

    /// The policy for samples for which it has no room.
    #[getter]
    fn when_slow(&self) -> &'static str {
        name_of(self.state.when_slow)
    }

    /// Whether it can be sent samples: it has mapped the pool, if there is one.
    #[getter]
    fn is_served(&self) -> bool {
        self.state.is_served
    }

    /// Samples that were sent to it.
    #[getter]
    fn sent(&self) -> u64 {
        self.state.sent
    }

    /// Messages in its own memory that it had not taken, by its last report.
    #[getter]
    fn untaken(&self) -> u64 {
        self.state.untaken
    }

    /// Samples of the pool that were announced to it and that it has not released.
    #[getter]
    fn outstanding(&self) -> u32 {
        self.state.outstanding
    }

    /// Kept samples that it has yet to be sent.
    #[getter]
    fn behind(&self) -> u64 {
        self.state.behind
    }

    /// Samples that it will not get, because it was slow.
    #[getter]
    fn dropped(&self) -> u64 {
        self.state.dropped
    }

    fn __repr__(&self) -> String {
        let protocol::SubscriberState { sent, untaken, outstanding, behind, dropped, .. } =
            self.state;
        let peer = self.peer().told();
        format!(
            "<hamlyn.SubscriberState {peer}: {sent} sent, {untaken} untaken, {outstanding} outstanding, \
             {behind} behind, {dropped} dropped>"
        )
    }
}

/// A sample of a publisher's pool that has yet to be published. It has the buffer protocol,
/// writable; `publish()` and `release()` raise `BufferError` while a buffer of it exists, such as
/// an array: that would show a published sample, or another one. Dropping the object releases it. A
/// forked child does not have its memory: do not use earlier views there.
#[pyclass(module = "hamlyn", frozen, weakref)]
pub struct SampleLoan {
    end: Ends,
    loan: Mutex<Option<Loan>>,
    /// The sample, with the header.
    lent: Lent,
    header: Option<Header>,
}

#[pymethods]
impl SampleLoan {
    /// Publishes it: its bytes stay in place, and each subscriber gets a message with their
    /// position. Otherwise as `Publisher.publish`; after `TimedOut` it may be published again.
    #[pyo3(signature = (timeout=None))]
    fn publish(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<u64> {
        self.end()?;
        let published = publish_held(&self.end, py, &self.loan, timeout);
        if !matches!(published, Ok(Some(_))) && locked(&self.loan).is_some() {
            self.lent.goes_on();
        }
        published?.ok_or_else(late)
    }

    /// Gives it back unpublished. Releasing twice is allowed.
    fn release(&self) -> PyResult<()> {
        if !self.lent.is_over() {
            self.end()?;
            drop(locked(&self.loan).take());
        }
        Ok(())
    }

    /// Shortens the sample to at most `nbytes` bytes. Raises `Misuse` for an array.
    fn truncate(&self, nbytes: usize) -> PyResult<()> {
        if self.header.is_some() {
            return Err(error(Kind::Misuse, "an array's sample has the length of its array"));
        }
        self.check()?;
        if let Some(loan) = &mut *locked(&self.loan) {
            loan.truncate(nbytes);
            self.lent.shorten(nbytes);
        }
        Ok(())
    }

    /// The array, in this memory: only for a sample of `loan_array`. Needs numpy.
    #[pyo3(signature = () -> "AnyArray")]
    fn array<'py>(slf: Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        match &slf.get().header {
            Some(header) => header.show(slf.as_any(), 0),
            None => Err(error(Kind::Misuse, "loan_array makes samples for arrays")),
        }
    }

    fn __len__(&self) -> usize {
        self.lent.length() - self.head_bytes()
    }

    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let this = slf.get();
        this.check()?;
        // SAFETY: the place stays this object's, and mapped, as long as `loan` holds it; it neither
        // publishes nor releases the place before `lent` has ended. The part that `truncate` cuts
        // off belongs to the place, too.
        unsafe { this.lent.view(slf.as_any(), view, flags, this.head_bytes()) }
    }

    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {
        self.lent.returned();
    }

    fn __enter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exception: "object"))]
    fn __exit__(&self, _exception: &Bound<'_, PyAny>) -> PyResult<()> {
        self.release()
    }

    fn __repr__(&self) -> String {
        let state = if self.lent.is_over() { ", gone" } else { "" };
        format!("<hamlyn.SampleLoan of {} bytes{state}>", self.__len__())
    }
}

impl SampleLoan {
    fn head_bytes(&self) -> usize {
        self.header.as_ref().map_or(0, Header::start)
    }

    fn check(&self) -> PyResult<()> {
        // In a forked child the memory is not there.
        self.end.inner.check_fork()?;
        self.lent.check()
    }

    /// Refuses every further buffer of it.
    fn end(&self) -> PyResult<()> {
        self.check()?;
        self.lent.end()
    }
}

impl Drop for SampleLoan {
    fn drop(&mut self) {
        if self.end.inner.check_fork().is_err() {
            // The parent's.
            core::mem::forget(locked(&self.loan).take());
        }
    }
}
