//! Common parts of all end points: they are closed once, by their owner or with their manager, and
//! not before the last buffer of their memory has come back.
//!
//! An end point of one thread at a time is behind a lock of its own (`Exclusive`). A thread that
//! waits for that lock does not hold the interpreter's, and a thread that holds it never asks for
//! the interpreter's. A destructor must not wait for the lock: it leaves its work to the thread
//! that has the lock, or the next one (`owe`).

use crate::admission;
use crate::errors::{Kind, OrRaise, ToPy, error, in_python};
use crate::inner::{Close, Inner, locked};
use crate::manager::{Manager, access_of};
use crate::parts::Peer;
use crate::seed::{Seed, seed_of};
use crate::wait::{LOOKS, Limit, duration, on_thread, sliced};
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use hamlyn::Access;
use hamlyn::protocol::{
    Connected, Connection, EndPoint, Exclusive, ExclusiveGuard, Grown, Offered, ReceiveError,
};
use pyo3::prelude::*;
use std::sync::{Arc, Mutex, OnceLock, Weak};

/// An end point of a manager.
pub struct End<T: Send + 'static> {
    pub inner: Arc<Inner>,
    /// `None` once it is closed and no buffer is out.
    state: Exclusive<Option<T>>,
    is_closed: AtomicBool,
    life: Mutex<Life>,
    /// Names under which it can be found.
    names: Mutex<Vec<String>>,
    /// The longest record, once a call has asked for it, since another thread may hold the end
    /// point for long.
    pub bytes_max: OnceLock<usize>,
}

/// How long the end point's memory stays; behind a lock that is only held briefly.
#[derive(Default)]
struct Life {
    /// Buffers of its memory that Python has.
    buffers: usize,
    /// It is closed, and lends nothing any more.
    is_over: bool,
}

impl<T: Send + 'static> End<T> {
    pub fn new(inner: &Arc<Inner>, end: T) -> Arc<Self> {
        Self::settled_by(inner, end, None)
    }

    /// An end point with deferred work, which `settle` does.
    pub fn settled_by(inner: &Arc<Inner>, end: T, settle: Option<fn(&mut Option<T>)>) -> Arc<Self> {
        let end = Arc::new(Self {
            inner: inner.clone(),
            state: Exclusive::settled_by(Some(end), settle),
            is_closed: AtomicBool::new(false),
            life: Mutex::default(),
            names: Mutex::default(),
            bytes_max: OnceLock::new(),
        });
        let weak: Weak<Self> = Arc::downgrade(&end);
        inner.register(weak);
        end
    }

    pub fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    #[inline]
    pub fn check_open(&self) -> PyResult<()> {
        self.inner.check_open()?;
        if self.is_closed() { Err(closed()) } else { Ok(()) }
    }

    /// Calls `use_it`, which does not wait, with the end point.
    #[inline]
    pub fn with<R: Send>(
        &self,
        py: Python<'_>,
        use_it: impl FnOnce(&mut T) -> R + Send,
    ) -> PyResult<R> {
        self.check_open()?;
        if !self.inner.is_slow()
            && let Some(mut state) = self.state.try_lock()
        {
            return Ok(use_it(state.as_mut().ok_or_else(closed)?));
        }
        py.detach(|| self.lock().as_mut().map(use_it)).ok_or_else(closed)
    }

    fn lock(&self) -> ExclusiveGuard<'_, Option<T>> {
        self.state.lock()
    }

    /// Defers work until the end point is free: does it now, or leaves it to the thread that has
    /// the end point.
    pub fn owe(&self) {
        self.state.owe();
        if self.check_open().is_ok() {
            self.state.settle();
        }
    }

    /// [`with`](Self::with), always without the interpreter's lock.
    pub fn with_detached<R: Send>(
        &self,
        py: Python<'_>,
        use_it: impl FnOnce(&mut T) -> R + Send,
    ) -> PyResult<R> {
        self.check_open()?;
        py.detach(|| self.lock().as_mut().map(use_it)).ok_or_else(closed)
    }

    /// Tries `try_it`; if nothing is there, waits with `wait` in slices until `timeout` seconds
    /// have passed (`None`).
    #[inline]
    pub fn wait<R: Send, E: ToPy + Send>(
        &self,
        py: Python<'_>,
        timeout: Option<f64>,
        try_it: impl FnMut(&mut T) -> Result<Option<R>, E> + Send,
        wait: impl FnMut(&mut T, Duration) -> Result<Option<R>, E> + Send,
    ) -> PyResult<Option<R>> {
        let limit = Limit::new(timeout)?;
        match self.look(py, timeout, try_it)? {
            None if timeout == Some(0.0) => Ok(None),
            None => self.wait_more(py, limit, wait),
            found => Ok(found),
        }
    }

    /// Tries `try_it`: once if the time limit is zero, else for about a microsecond.
    #[inline]
    fn look<R: Send, E: ToPy + Send>(
        &self,
        py: Python<'_>,
        timeout: Option<f64>,
        mut try_it: impl FnMut(&mut T) -> Result<Option<R>, E> + Send,
    ) -> PyResult<Option<R>> {
        let looks = if timeout == Some(0.0) { 1 } else { LOOKS };
        let found = self.with(py, |end| {
            for _ in 0..looks {
                match try_it(end) {
                    Ok(None) => {}
                    found => return found,
                }
            }
            Ok(None)
        })?;
        found.or_raise()
    }

    /// Waits with `wait` in slices until the limit.
    #[cold]
    pub fn wait_more<R: Send, E: ToPy + Send>(
        &self,
        py: Python<'_>,
        limit: Limit,
        mut wait: impl FnMut(&mut T, Duration) -> Result<Option<R>, E> + Send,
    ) -> PyResult<Option<R>> {
        self.check_open()?;
        let attempt = |slice| self.found(&mut self.lock(), slice, &mut wait);
        Found::result(sliced(py, &self.inner, limit, attempt)?.or_raise()?)
    }

    /// The result of a wait that takes with `take`, with the end point locked.
    fn found<R, E>(
        &self,
        state: &mut Option<T>,
        slice: Duration,
        take: &mut impl FnMut(&mut T, Duration) -> Result<Option<R>, E>,
    ) -> Result<Option<Found<R>>, E> {
        match state {
            // While a buffer is out the end point's memory stays.
            _ if self.is_closed() => Ok(Some(Found::Closed)),
            Some(end) => Ok(take(end, slice)?.map(Found::It)),
            None => Ok(Some(Found::Closed)),
        }
    }

    /// Closes it: every later call fails. Its memory is freed with the last buffer.
    pub fn close_now(&self, py: Python<'_>) -> PyResult<()> {
        admission::check()?;
        if self.inner.check_fork().is_ok() {
            py.detach(|| self.close());
            // Tasks that wait for it look again, and find it closed.
            self.inner.ring();
        }
        Ok(())
    }

    fn drop_if_done(&self) {
        // In a callback the end point stays for a later call, or until this object is dropped.
        if admission::is_inside() {
            return;
        }
        let mut life = locked(&self.life);
        if self.is_closed() && life.buffers == 0 && !life.is_over {
            life.is_over = true;
            drop(life);
            let take = || {
                let end = self.lock().take();
                drop(end);
            };
            match self.inner.is_slow() {
                true => Python::try_attach(|py| py.detach(take)).unwrap_or_else(take),
                false => take(),
            }
        }
    }

    /// Buffers of its memory that Python has.
    pub fn buffers(&self) -> usize {
        locked(&self.life).buffers
    }

    /// Counts a buffer: the memory stays until it has come back. Raises if it is gone already.
    pub fn lend(&self) -> PyResult<()> {
        self.inner.check_fork()?;
        self.inner.lend()?;
        let mut life = locked(&self.life);
        if life.is_over {
            drop(life);
            self.inner.take_back();
            return Err(closed());
        }
        life.buffers += 1;
        Ok(())
    }

    /// A buffer has come back.
    pub fn take_back(&self) {
        if self.inner.check_fork().is_err() {
            return;
        }
        let mut life = locked(&self.life);
        life.buffers -= 1;
        drop(life);
        self.drop_if_done();
        self.inner.take_back();
    }
}

/// The result of a wait.
enum Found<R> {
    It(R),
    Closed,
}

impl<R> Found<R> {
    fn result(found: Option<Self>) -> PyResult<Option<R>> {
        match found {
            Some(Found::It(found)) => Ok(Some(found)),
            Some(Found::Closed) => Err(closed()),
            None => Ok(None),
        }
    }
}

impl<T: EndPoint + Send + 'static> End<T> {
    /// [`wait`](Self::wait) for an arrival, which `take` takes. During long waits other threads can
    /// use the end point.
    #[inline]
    pub fn receive<R: Send>(
        &self,
        py: Python<'_>,
        timeout: Option<f64>,
        mut take: impl FnMut(&mut T, Duration) -> Result<Option<R>, ReceiveError> + Send,
    ) -> PyResult<Option<R>> {
        let limit = Limit::new(timeout)?;
        match self.look(py, timeout, |end| take(end, Duration::ZERO))? {
            None if timeout == Some(0.0) => Ok(None),
            None => self.receive_more(py, limit, take),
            found => Ok(found),
        }
    }

    #[cold]
    fn receive_more<R: Send>(
        &self,
        py: Python<'_>,
        limit: Limit,
        mut take: impl FnMut(&mut T, Duration) -> Result<Option<R>, ReceiveError> + Send,
    ) -> PyResult<Option<R>> {
        let node = self.inner.node()?;
        // A closed end point counts as ready, too.
        let is_ready = |state: &Option<T>, node: &hamlyn::Node| {
            self.is_closed() || state.as_ref().is_none_or(|end| end.is_ready_in(node))
        };
        let attempt = |slice| {
            let mut look = |state: &mut _, slice| self.found(state, slice, &mut take);
            self.state.receive(&node, Some(slice), is_ready, &mut look)
        };
        Found::result(sliced(py, &self.inner, limit, attempt)?.or_raise()?)
    }
}

impl<T: Clone + Send + Sync + 'static> End<T> {
    /// [`wait`](Self::wait) for an end point that several threads use at once.
    pub fn wait_shared<R: Send, E: ToPy + Send>(
        &self,
        py: Python<'_>,
        timeout: Option<f64>,
        mut try_it: impl FnMut(&T) -> Result<Option<R>, E> + Send,
        mut wait: impl FnMut(&T, Duration) -> Result<Option<R>, E> + Send,
    ) -> PyResult<Option<R>> {
        let limit = Limit::new(timeout)?;
        match self.look(py, timeout, |end| try_it(end))? {
            None if timeout == Some(0.0) => return Ok(None),
            None => {}
            found => return Ok(found),
        }
        let end = self.with(py, |end| end.clone())?;
        let attempt = |slice| {
            if self.is_closed() {
                return Ok(Some(Found::Closed));
            }
            Ok::<_, E>(wait(&end, slice)?.map(Found::It))
        };
        let found = sliced(py, &self.inner, limit, attempt);
        // If the end was closed meanwhile this is the last reference; its destructor takes the
        // node's lock, which an admission callback may hold that waits for the interpreter's.
        py.detach(move || drop(end));
        Found::result(found?.or_raise()?)
    }
}

impl<T: Send + 'static> Close for End<T> {
    fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
        self.drop_if_done();
    }
}

impl<T: Send + 'static> Drop for End<T> {
    fn drop(&mut self) {
        let state = self.state.get_mut().take();
        match self.inner.check_fork() {
            Ok(()) if state.is_some() => admission::outside(&self.inner, move || drop(state)),
            Ok(()) => {}
            // The parent's: its destructor would take locks whose holders do not exist in this
            // process.
            Err(_) => core::mem::forget(state),
        }
    }
}

#[cold]
pub fn closed() -> PyErr {
    error(Kind::Closed, "the end point is closed")
}

impl<T: Offered + Send> End<T> {
    pub fn seed(&self, py: Python<'_>) -> PyResult<Seed> {
        let _slow = self.inner.slow();
        Ok(Seed { seed: self.with(py, |end| end.seed())?.or_raise()? })
    }

    pub fn serve(
        &self,
        py: Python<'_>,
        name: &str,
        access: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let access = access.map_or(Ok(Access::SameUser), access_of)?;
        let _slow = self.inner.slow();
        self.with(py, |end| end.serve(name, access))?.or_raise()?;
        locked(&self.names).push(name.into());
        Ok(())
    }

    pub fn stop_serving(&self, py: Python<'_>) -> PyResult<()> {
        let _slow = self.inner.slow();
        self.with(py, |end| end.stop_serving())?;
        locked(&self.names).clear();
        Ok(())
    }

    pub fn offer(&self, py: Python<'_>, job: &crate::job::Job, name: &str) -> PyResult<()> {
        let ranks = job.ranks()?;
        let _slow = self.inner.slow();
        self.with(py, |end| ranks.offer(&*end, name))?.or_raise()
    }

    pub fn set_admission(&self, py: Python<'_>, callback: &Bound<'_, PyAny>) -> PyResult<()> {
        self.check_open()?;
        // From here on, or from before, the manager counts as slow.
        let admission = admission::admission(&self.inner, callback)?;
        self.with(py, |end| end.set_admission(admission))
    }
}

impl<T: Connected + Send> End<T> {
    pub fn peer(&self, py: Python<'_>) -> PyResult<Peer> {
        self.with(py, |end| peer_of(end.connection()))
    }

    pub fn ended(&self, py: Python<'_>) -> PyResult<Option<String>> {
        self.with(py, |end| end.connection().ended().map(crate::events::reason_text))
    }

    pub fn explain(&self, py: Python<'_>) -> PyResult<String> {
        Ok(in_python(self.with(py, |end| end.explain())?))
    }
}

/// The `repr` of an end point: its class, its names, its peer, and whether it is closed or its
/// connection has ended. It does not wait: if another thread is using the end point, the peer is
/// left out.
impl<T: Send> End<T> {
    pub fn told(&self, class: &str, connection: impl FnOnce(&T) -> Option<&Connection>) -> String {
        let mut text = format!("<hamlyn.{class}");
        for name in &*locked(&self.names) {
            text += &format!(" {name:?}");
        }
        if self.inner.check_fork().is_err() {
            return text + " of the parent process>";
        }
        if self.is_closed() {
            return text + " closed>";
        }
        let state = self.state.try_lock();
        let connection = state.as_ref().and_then(|state| connection((**state).as_ref()?));
        if let Some(connection) = connection {
            text += &format!(", peer {}", peer_of(connection).told());
            if let Some(reason) = connection.ended() {
                text += &format!(", ended: {}", crate::events::reason_text(reason));
            }
        }
        text + ">"
    }
}

pub fn peer_of(connection: &Connection) -> Peer {
    Peer { peer: connection.peer().clone() }
}

/// Grows an end point from a seed, or the bytes or text of one, on a thread of its own.
pub fn grow<G: Grown<With: Send> + Send + 'static, T: Send>(
    py: Python<'_>,
    manager: &Manager,
    seed: &Bound<'_, PyAny>,
    with: G::With,
    timeout: Option<f64>,
    wrap: impl FnOnce(G) -> T,
) -> PyResult<Arc<End<T>>>
where
    G::With: 'static,
{
    let (node, seed, timeout) = (manager.inner.node()?, seed_of(seed)?, duration(timeout)?);
    let grow = move || G::grow(&node, &seed, with, timeout);
    let end = on_thread(py, &manager.inner, || false, grow)?.or_raise()?;
    Ok(End::new(&manager.inner, wrap(end)))
}

/// Grows an end point from the server of this name, on a thread of its own.
pub fn connect<G: Grown<With: Send> + Send + 'static, T: Send>(
    py: Python<'_>,
    manager: &Manager,
    name: String,
    with: G::With,
    timeout: Option<f64>,
    wrap: impl FnOnce(G) -> T,
) -> PyResult<Arc<End<T>>>
where
    G::With: 'static,
{
    let (node, timeout) = (manager.inner.node()?, duration(timeout)?);
    let connect = move || G::connect(&node, &name, with, timeout);
    let end = on_thread(py, &manager.inner, || false, connect)?.or_raise()?;
    Ok(End::new(&manager.inner, wrap(end)))
}

/// The methods of every end point; `connection` is that to its one peer, if it has one.
macro_rules! common {
    ($class:ident, $connection:expr) => {
        $crate::end::named!($class, $connection);

        #[pymethods]
        impl $class {
            /// Closes it and its connections. Closing twice is allowed.
            fn close(&self, py: Python<'_>) -> PyResult<()> {
                self.end.close_now(py)
            }

            #[pyo3(signature = (*_exception: "object"))]
            fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyAny>) -> PyResult<()> {
                self.end.close_now(py)
            }
        }
    };
}

/// The methods of every end point, however it is closed.
macro_rules! named {
    ($class:ident, $connection:expr) => {
        #[pymethods]
        impl $class {
            fn __repr__(&self) -> String {
                self.end.told(stringify!($class), $connection)
            }
        }

        $crate::end::closable!($class);
    };
}

/// The methods of every end point, whatever its text.
macro_rules! closable {
    ($class:ident) => {
        #[pymethods]
        impl $class {
            /// Whether it is closed.
            #[getter]
            fn closed(&self) -> bool {
                self.end.is_closed()
            }

            #[getter]
            fn _manager(&self) -> crate::manager::Manager {
                crate::manager::Manager { inner: self.end.inner.clone() }
            }

            fn __enter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
                slf
            }
        }
    };
}

/// The methods of every receiver.
macro_rules! receiver {
    ($class:ident) => {
        $crate::end::receiver!($class, |_| None);
    };
    ($class:ident, $connection:expr) => {
        $crate::end::common!($class, $connection);
        $crate::end::offered!($class);
        $crate::end::ready!($class);
    };
}

/// The methods of every object that is found by name or by a seed.
macro_rules! offered {
    ($class:ident) => {
        #[pymethods]
        impl $class {
            /// A seed from which any process that may connect can grow the other end.
            fn seed(&self, py: Python<'_>) -> PyResult<crate::seed::Seed> {
                self.end.seed(py)
            }

            /// Lets others find it by name. `access`: `"same_user"` (unless given), `"anyone"` or
            /// the number of a group.
            #[pyo3(signature = (name, *, access: "Access | None" = None))]
            fn serve(
                &self,
                py: Python<'_>,
                name: &str,
                access: Option<&Bound<'_, PyAny>>,
            ) -> PyResult<()> {
                self.end.serve(py, name, access)
            }

            /// Ends its offers: its names are free at once for another, its seeds are worthless,
            /// and connected peers stay so.
            fn stop_serving(&self, py: Python<'_>) -> PyResult<()> {
                self.end.stop_serving(py)
            }

            /// Offers it, which is of the job's manager, to the other ranks under this name: they
            /// grow the other end with `grow_from`, and wait until it is offered. End points of one
            /// kind have different names; closing an end point frees its names.
            fn offer(&self, py: Python<'_>, job: &crate::job::Job, name: &str) -> PyResult<()> {
                self.end.offer(py, job, name)
            }

            /// Calls `callback` for each peer that wants to grow the other end and that `access`
            /// permits: `True` lets it in; `False`, or a text, which the peer gets, refuses it, and
            /// so does an exception. `None`: every permitted peer is let in. The callback runs in
            /// any thread that receives, waits or polls, with the manager's lock held: it must not
            /// wait, least of all for a thread that uses the manager, and calling the manager
            /// raises `Misuse`. It is kept until another is set or this is closed.
            #[pyo3(signature = (callback: "Callable[[Peer], bool | str] | None", /))]
            fn set_admission(&self, py: Python<'_>, callback: &Bound<'_, PyAny>) -> PyResult<()> {
                self.end.set_admission(py, callback)
            }
        }
    };
}

/// The methods of every object that `wait_any` waits for.
macro_rules! ready {
    ($class:ident) => {
        #[pymethods]
        impl $class {
            /// Whether a receive would return at once.
            #[getter]
            fn ready(&self, py: Python<'_>) -> PyResult<bool> {
                self.end.with(py, |end| hamlyn::protocol::EndPoint::is_ready(end))
            }
        }
    };
}

/// The methods of every sender.
macro_rules! sender {
    ($class:ident) => {
        $crate::end::common!($class, |end| Some(hamlyn::protocol::Connected::connection(end)));
        $crate::end::paired!($class);
    };
}

/// The methods of every end point with one peer.
macro_rules! paired {
    ($class:ident) => {
        #[pymethods]
        impl $class {
            /// The identity of the other end, from the kernel.
            #[getter]
            fn peer(&self, py: Python<'_>) -> PyResult<crate::parts::Peer> {
                self.end.peer(py)
            }

            /// The reason why the connection ended; `None` while it has not.
            #[getter]
            fn ended(&self, py: Python<'_>) -> PyResult<Option<String>> {
                self.end.ended(py)
            }

            /// The path that the data takes, and the reason.
            fn explain(&self, py: Python<'_>) -> PyResult<String> {
                self.end.explain(py)
            }
        }
    };
}

/// The ways to grow senders without settings.
macro_rules! grown {
    ($class:ident) => {
        #[pymethods]
        impl $class {
            /// Grows it from a receiver's seed (a `Seed`, or the bytes or text of one), waiting at
            /// most `timeout` seconds for the receiver's answer.
            #[staticmethod]
            #[pyo3(signature = (manager, seed: "Seed | Buffer | str", timeout=10.0))]
            fn grow(
                py: Python<'_>,
                manager: &crate::manager::Manager,
                seed: &Bound<'_, PyAny>,
                timeout: Option<f64>,
            ) -> PyResult<Self> {
                let wrap = core::convert::identity::<hamlyn::protocol::$class>;
                Ok(Self { end: $crate::end::grow(py, manager, seed, (), timeout, wrap)? })
            }

            /// Grows it from the end point that a job's rank offers under `name`, waiting for it at
            /// most `timeout` seconds.
            #[staticmethod]
            #[pyo3(signature = (job, rank, name, timeout=10.0))]
            fn grow_from(
                py: Python<'_>,
                job: &crate::job::Job,
                rank: u32,
                name: String,
                timeout: Option<f64>,
            ) -> PyResult<Self> {
                let wrap = core::convert::identity::<hamlyn::protocol::$class>;
                Ok(Self { end: job.grow(py, (rank, name), (), timeout, wrap)? })
            }

            /// Grows it for the receiver served as `[user@]name`, waiting at most `timeout` seconds
            /// for a server of that name and for its answer.
            #[staticmethod]
            #[pyo3(signature = (manager, name, timeout=10.0))]
            fn connect(
                py: Python<'_>,
                manager: &crate::manager::Manager,
                name: String,
                timeout: Option<f64>,
            ) -> PyResult<Self> {
                let wrap = core::convert::identity::<hamlyn::protocol::$class>;
                Ok(Self { end: $crate::end::connect(py, manager, name, (), timeout, wrap)? })
            }
        }
    };
}

pub(crate) use {closable, common, grown, named, offered, paired, ready, receiver, sender};
