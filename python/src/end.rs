//! What all end points have in common: they are closed once, by their owner or with their manager,
//! and not before the last buffer of their memory has come back.
//!
//! An end point of one thread at a time stands behind a lock of its own. Who waits for that lock
//! does not hold the interpreter's, and who holds it never asks for the interpreter's.

use crate::admission::{self, Admission};
use crate::errors::{Kind, OrRaise, ToPy, error};
use crate::manager::{Close, Inner, access_of, locked};
use crate::parts::Peer;
use crate::seed::Seed;
use crate::wait::{LOOKS, Limit, sliced};
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use hamlyn::Access;
use hamlyn::node::OfferError;
use hamlyn::protocol::{self, Connection, EndPoint};
use pyo3::prelude::*;
use std::sync::{Arc, Mutex, TryLockError, Weak};

/// An end point of a manager.
pub struct End<T: Send + 'static> {
    pub inner: Arc<Inner>,
    /// `None` once it is closed and no buffer is out.
    state: Mutex<Option<T>>,
    is_closed: AtomicBool,
    life: Mutex<Life>,
}

/// How long the end point's memory stays; behind a lock that nobody keeps.
#[derive(Default)]
struct Life {
    /// Buffers of its memory that Python has.
    buffers: usize,
    /// It is closed, and nothing is lent any more.
    is_over: bool,
}

impl<T: Send + 'static> End<T> {
    pub fn new(inner: &Arc<Inner>, end: T) -> Arc<Self> {
        let end = Arc::new(Self {
            inner: inner.clone(),
            state: Mutex::new(Some(end)),
            is_closed: AtomicBool::new(false),
            life: Mutex::default(),
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
        if !self.inner.is_slow() {
            let state = match self.state.try_lock() {
                Ok(state) => Some(state),
                Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) => None,
            };
            if let Some(mut state) = state {
                return Ok(use_it(state.as_mut().ok_or_else(closed)?));
            }
        }
        py.detach(|| locked(&self.state).as_mut().map(use_it)).ok_or_else(closed)
    }

    /// [`with`](Self::with), always without the interpreter's lock.
    pub fn with_detached<R: Send>(
        &self,
        py: Python<'_>,
        use_it: impl FnOnce(&mut T) -> R + Send,
    ) -> PyResult<R> {
        self.check_open()?;
        py.detach(|| locked(&self.state).as_mut().map(use_it)).ok_or_else(closed)
    }

    /// Looks with `try_it`; where there is nothing, waits with `wait` in slices until `timeout`
    /// seconds are over (`None`).
    #[inline]
    pub fn wait<R: Send, E: ToPy + Send>(
        &self,
        py: Python<'_>,
        timeout: Option<f64>,
        mut try_it: impl FnMut(&mut T) -> Result<Option<R>, E> + Send,
        mut wait: impl FnMut(&mut T, Duration) -> Result<Option<R>, E> + Send,
    ) -> PyResult<Option<R>> {
        let limit = Limit::new(timeout)?;
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
        match found.or_raise()? {
            None if timeout == Some(0.0) => Ok(None),
            None => self.wait_more(py, limit, |end, slice| wait(end, slice)),
            found => Ok(found),
        }
    }

    /// Waits with `wait` in slices until the limit.
    #[cold]
    pub fn wait_more<R: Send, E: ToPy + Send>(
        &self,
        py: Python<'_>,
        limit: Limit,
        mut wait: impl FnMut(&mut T, Duration) -> Result<Option<R>, E> + Send,
    ) -> PyResult<Option<R>> {
        enum Found<R> {
            It(R),
            Closed,
        }
        let attempt = |slice| match locked(&self.state).as_mut() {
            // While a buffer is out its memory stays.
            _ if self.is_closed() => Ok(Some(Found::Closed)),
            Some(end) => Ok::<_, E>(wait(end, slice)?.map(Found::It)),
            None => Ok(Some(Found::Closed)),
        };
        match sliced(py, &self.inner, limit, attempt)?.or_raise()? {
            Some(Found::It(found)) => Ok(Some(found)),
            Some(Found::Closed) => Err(closed()),
            None => Ok(None),
        }
    }

    /// Closes it: nothing more can be asked of it. Its memory goes with the last buffer.
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
        // In a callback it stays for a later call, or until this object goes away.
        if admission::is_inside() {
            return;
        }
        let mut life = locked(&self.life);
        if self.is_closed() && life.buffers == 0 && !life.is_over {
            life.is_over = true;
            drop(life);
            let take = || {
                let end = locked(&self.state).take();
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

    /// A buffer goes out: the memory stays until it has come back. Raises if it is gone already.
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

    /// Calls `use_it` if that can be done without waiting.
    pub fn try_with<R>(&self, use_it: impl FnOnce(&mut T) -> R) -> Option<R> {
        self.check_open().ok()?;
        self.state.try_lock().ok()?.as_mut().map(use_it)
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
        enum Found<R> {
            It(R),
            Closed,
        }
        let limit = Limit::new(timeout)?;
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
        match found.or_raise()? {
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
        match sliced(py, &self.inner, limit, attempt)?.or_raise()? {
            Some(Found::It(found)) => Ok(Some(found)),
            Some(Found::Closed) => Err(closed()),
            None => Ok(None),
        }
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
        let state = self.state.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner).take();
        match self.inner.check_fork() {
            Ok(()) if state.is_some() => admission::outside(&self.inner, move || drop(state)),
            Ok(()) => {}
            // The parent's: it would ask for locks that nobody in this process may hold.
            Err(_) => core::mem::forget(state),
        }
    }
}

#[cold]
pub fn closed() -> PyErr {
    error(Kind::Closed, "the end point is closed")
}

/// An end point that receives: it can be found.
pub trait Offered {
    fn has_arrived(&self) -> bool;
    fn make_seed(&self) -> Result<protocol::Seed, OfferError>;
    fn offer(&self, name: &str, access: Access) -> Result<(), OfferError>;
    fn admit_by(&self, admission: Admission);
}

/// An end point with one peer.
pub trait Connected {
    fn its_connection(&self) -> &Connection;
    fn its_path(&mut self) -> String;
}

macro_rules! offered {
    ($($type:ty),+) => {
        $(impl Offered for $type {
            fn has_arrived(&self) -> bool {
                self.is_ready()
            }
            fn make_seed(&self) -> Result<protocol::Seed, OfferError> {
                self.seed()
            }
            fn offer(&self, name: &str, access: Access) -> Result<(), OfferError> {
                self.serve(name, access)
            }
            fn admit_by(&self, admission: Admission) {
                self.set_admission(admission);
            }
        })+
    };
}
offered!(protocol::TaggedReceiver, protocol::DatagramReceiver, Arc<protocol::Server>);

macro_rules! connected {
    ($($type:ty),+) => {
        $(impl Connected for $type {
            fn its_connection(&self) -> &Connection {
                self.connection()
            }
            fn its_path(&mut self) -> String {
                self.explain()
            }
        })+
    };
}
connected!(protocol::TaggedSender, protocol::DatagramSender, Arc<protocol::Client>);

impl<T: Offered + Send> End<T> {
    pub fn seed(&self, py: Python<'_>) -> PyResult<Seed> {
        let _slow = self.inner.slow();
        Ok(Seed { seed: self.with(py, |end| end.make_seed())?.or_raise()? })
    }

    pub fn serve(
        &self,
        py: Python<'_>,
        name: &str,
        access: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let access = access.map_or(Ok(Access::SameUser), access_of)?;
        let _slow = self.inner.slow();
        self.with(py, |end| end.offer(name, access))?.or_raise()
    }

    pub fn set_admission(&self, py: Python<'_>, callback: &Bound<'_, PyAny>) -> PyResult<()> {
        self.check_open()?;
        // From here on, or from before, the manager counts as slow.
        let admission = admission::admission(&self.inner, callback)?;
        self.with(py, |end| end.admit_by(admission))
    }
}

impl<T: Connected + Send> End<T> {
    pub fn peer(&self, py: Python<'_>) -> PyResult<Peer> {
        self.with(py, |end| Peer { peer: end.its_connection().peer().clone() })
    }

    pub fn ended(&self, py: Python<'_>) -> PyResult<Option<String>> {
        self.with(py, |end| end.its_connection().ended().map(crate::parts::reason_text))
    }

    pub fn explain(&self, py: Python<'_>) -> PyResult<String> {
        self.with(py, |end| end.its_path())
    }
}

/// What every end point has.
macro_rules! common {
    ($class:ident) => {
        $crate::end::named!($class);

        #[pymethods]
        impl $class {
            /// Ends it, and with it its connections. Closing twice is closing once.
            fn close(&self, py: Python<'_>) -> PyResult<()> {
                self.end.close_now(py)
            }

            #[pyo3(signature = (*_exception))]
            fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyAny>) -> PyResult<()> {
                self.end.close_now(py)
            }
        }
    };
}

/// What every end point has, however it is closed.
macro_rules! named {
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

            fn __repr__(&self) -> &'static str {
                match self.end.is_closed() {
                    true => concat!("<hamlyn.", stringify!($class), " closed>"),
                    false => concat!("<hamlyn.", stringify!($class), ">"),
                }
            }
        }
    };
}

/// What every receiver has.
macro_rules! receiver {
    ($class:ident) => {
        $crate::end::common!($class);

        #[pymethods]
        impl $class {
            /// A seed from which a sender can be grown, by anybody who may connect.
            fn seed(&self, py: Python<'_>) -> PyResult<crate::seed::Seed> {
                self.end.seed(py)
            }

            /// Lets senders find this receiver by name. `access`: `"same_user"` (unless given),
            /// `"anyone"` or the number of a group.
            #[pyo3(signature = (name, *, access=None))]
            fn serve(
                &self,
                py: Python<'_>,
                name: &str,
                access: Option<&Bound<'_, PyAny>>,
            ) -> PyResult<()> {
                self.end.serve(py, name, access)
            }

            /// Asks `callback` about each peer that wants to grow a sender, once `access` has let it
            /// near: `True` lets it in; `False`, or a text that the peer is told, does not, and
            /// neither does an exception. `None`: whoever may connect is let in. It is called in
            /// whichever thread receives, waits or polls, with the manager's lock held: it must not
            /// wait, least of all for a thread that uses the manager, and calling the manager
            /// raises `Misuse`. It is kept until another is set or the receiver is closed.
            #[pyo3(signature = (callback, /))]
            fn set_admission(&self, py: Python<'_>, callback: &Bound<'_, PyAny>) -> PyResult<()> {
                self.end.set_admission(py, callback)
            }

            /// Whether a receive would return at once.
            #[getter]
            fn ready(&self, py: Python<'_>) -> PyResult<bool> {
                self.end.with(py, |end| crate::end::Offered::has_arrived(end))
            }
        }
    };
}

/// What every sender has.
macro_rules! sender {
    ($class:ident) => {
        $crate::end::common!($class);
        $crate::end::paired!($class);
    };
}

/// What every end point with one peer has.
macro_rules! paired {
    ($class:ident) => {
        #[pymethods]
        impl $class {
            /// Who is at the other end, as the kernel says.
            #[getter]
            fn peer(&self, py: Python<'_>) -> PyResult<crate::parts::Peer> {
                self.end.peer(py)
            }

            /// Why the connection ended; `None` while it has not.
            #[getter]
            fn ended(&self, py: Python<'_>) -> PyResult<Option<String>> {
                self.end.ended(py)
            }

            /// Which path the data takes, and why.
            fn explain(&self, py: Python<'_>) -> PyResult<String> {
                self.end.explain(py)
            }
        }
    };
}

/// How senders without settings come to be.
macro_rules! grown {
    ($class:ident) => {
        #[pymethods]
        impl $class {
            /// Grows it from a receiver's seed (a `Seed`, or the bytes or text of one), waiting at
            /// most `timeout` seconds for the receiver's answer.
            #[staticmethod]
            #[pyo3(signature = (manager, seed, timeout=10.0))]
            fn grow(
                py: Python<'_>,
                manager: &crate::manager::Manager,
                seed: &Bound<'_, PyAny>,
                timeout: Option<f64>,
            ) -> PyResult<Self> {
                let (node, seed) = (manager.inner.node()?, crate::seed::seed_of(seed)?);
                let timeout = crate::wait::duration(timeout)?;
                let grow = move || hamlyn::protocol::$class::grow(&node, &seed, timeout);
                let end = crate::wait::on_thread(py, &manager.inner, grow)?.or_raise()?;
                Ok(Self { end: End::new(&manager.inner, end) })
            }

            /// Grows it for the receiver that is served as `[user@]name`.
            #[staticmethod]
            #[pyo3(signature = (manager, name, timeout=10.0))]
            fn connect(
                py: Python<'_>,
                manager: &crate::manager::Manager,
                name: String,
                timeout: Option<f64>,
            ) -> PyResult<Self> {
                let (node, timeout) = (manager.inner.node()?, crate::wait::duration(timeout)?);
                let connect = move || hamlyn::protocol::$class::connect(&node, &name, timeout);
                let end = crate::wait::on_thread(py, &manager.inner, connect)?.or_raise()?;
                Ok(Self { end: End::new(&manager.inner, end) })
            }
        }
    };
}

pub(crate) use {common, grown, named, paired, receiver, sender};
