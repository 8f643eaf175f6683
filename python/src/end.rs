//! What all end points have in common: they are closed once, by their owner or with their manager,
//! and not before the last buffer of their memory has come back.
//!
//! An end point of one thread at a time stands behind a lock of its own. Who waits for that lock
//! does not hold the interpreter's, and who holds it never asks for the interpreter's. Who waits
//! for an arrival has it for short turns only (`receive`), since what another thread releases
//! meanwhile may be what the sender waits for. Nothing may wait for the lock where an object goes
//! away: what is to be done then is owed, and done by whoever has the lock, or had it (`owe`).

use crate::admission::{self, Admission};
use crate::errors::{Kind, OrRaise, ToPy, error};
use crate::inner::{Close, Inner, locked};
use crate::manager::access_of;
use crate::parts::Peer;
use crate::seed::Seed;
use crate::wait::{LOOKS, Limit, sliced};
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicBool, Ordering, fence};
use core::time::Duration;
use hamlyn::node::OfferError;
use hamlyn::protocol::{self, Connection, EndPoint, ReceiveError};
use hamlyn::{Access, Node};
use pyo3::prelude::*;
use std::sync::{Arc, Mutex, MutexGuard, TryLockError, Weak};
use std::time::Instant;

/// How long a receive keeps the end point from other threads while nothing is there: as long as
/// the library spins at most, unless configured.
const KEEP: Duration = Duration::from_micros(50);

/// An end point of a manager.
pub struct End<T: Send + 'static> {
    pub inner: Arc<Inner>,
    /// `None` once it is closed and no buffer is out.
    state: Mutex<Option<T>>,
    is_closed: AtomicBool,
    life: Mutex<Life>,
    /// Of the threads that wait for an arrival, one does at a time: each would wake the others.
    turn: Mutex<()>,
    /// Does what is owed.
    settle: Option<fn(&mut T)>,
    is_owed: AtomicBool,
}

/// The end point, for this thread alone.
struct Hold<'a, T: Send + 'static> {
    end: &'a End<T>,
    state: Option<MutexGuard<'a, Option<T>>>,
}

impl<T: Send + 'static> Deref for Hold<'_, T> {
    type Target = Option<T>;
    fn deref(&self) -> &Option<T> {
        self.state.as_ref().expect("taken only while dropping")
    }
}

impl<T: Send + 'static> DerefMut for Hold<'_, T> {
    fn deref_mut(&mut self) -> &mut Option<T> {
        self.state.as_mut().expect("taken only while dropping")
    }
}

impl<T: Send + 'static> Drop for Hold<'_, T> {
    fn drop(&mut self) {
        drop(self.state.take());
        self.end.settle();
    }
}

/// An end point that is being waited for, and that other threads may be using.
struct Probe<'a, T: Send + 'static> {
    end: &'a End<T>,
    manager: &'a protocol::Manager,
}

impl<T: EndPoint + Send + 'static> EndPoint for Probe<'_, T> {
    fn is_ready_in(&self, node: &Node) -> bool {
        // Who has it may be waiting for the node, which is locked here. What it leaves has to be
        // looked at, and so has an end point that is closed.
        match self.end.try_state() {
            Some(state) if !self.end.is_closed() => {
                state.as_ref().is_none_or(|end_point| end_point.is_ready_in(node))
            }
            _ => true,
        }
    }

    fn manager(&self) -> &protocol::Manager {
        self.manager
    }
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
        Self::settled_by(inner, end, None)
    }

    /// One to which something may be owed, which `settle` does.
    pub fn settled_by(inner: &Arc<Inner>, end: T, settle: Option<fn(&mut T)>) -> Arc<Self> {
        let end = Arc::new(Self {
            inner: inner.clone(),
            state: Mutex::new(Some(end)),
            is_closed: AtomicBool::new(false),
            life: Mutex::default(),
            turn: Mutex::default(),
            settle,
            is_owed: AtomicBool::new(false),
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
            let state = self.try_state().map(|state| self.hold(state));
            if let Some(mut state) = state {
                return Ok(use_it(state.as_mut().ok_or_else(closed)?));
            }
        }
        py.detach(|| self.lock().as_mut().map(use_it)).ok_or_else(closed)
    }

    fn hold<'a>(&'a self, state: MutexGuard<'a, Option<T>>) -> Hold<'a, T> {
        Hold { end: self, state: Some(state) }
    }

    fn lock(&self) -> Hold<'_, T> {
        self.hold(locked(&self.state))
    }

    fn try_state(&self) -> Option<MutexGuard<'_, Option<T>>> {
        match self.state.try_lock() {
            Ok(state) => Some(state),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Something is to be done as soon as nobody has the end point: now, or by whoever has it.
    pub fn owe(&self) {
        self.is_owed.store(true, Ordering::Release);
        if self.check_open().is_ok() {
            self.settle();
        }
    }

    /// Does what is owed, unless somebody has the end point, who comes here afterwards.
    #[inline]
    fn settle(&self) {
        let Some(settle) = self.settle else { return };
        // Either who owes finds the lock free, or who gives it back finds what is owed: `is_owed`
        // is written before the lock is tried, and read after it is given back.
        fence(Ordering::SeqCst);
        while self.is_owed.load(Ordering::Acquire) {
            let Some(mut state) = self.try_state() else { return };
            self.is_owed.swap(false, Ordering::AcqRel);
            state.as_mut().map(settle);
            drop(state);
            fence(Ordering::SeqCst);
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

    /// Looks with `try_it`; where there is nothing, waits with `wait` in slices until `timeout`
    /// seconds are over (`None`).
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

    /// Looks with `try_it`: once where the time limit is zero, else for about a microsecond.
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
        let attempt = |slice| self.attempt(slice, &mut wait);
        Found::result(sliced(py, &self.inner, limit, attempt)?.or_raise()?)
    }

    fn attempt<R, E>(
        &self,
        slice: Duration,
        wait: &mut impl FnMut(&mut T, Duration) -> Result<Option<R>, E>,
    ) -> Result<Option<Found<R>>, E> {
        match self.lock().as_mut() {
            // While a buffer is out its memory stays.
            _ if self.is_closed() => Ok(Some(Found::Closed)),
            Some(end) => Ok(wait(end, slice)?.map(Found::It)),
            None => Ok(Some(Found::Closed)),
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
}

/// What a wait has found.
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
    /// [`wait`](Self::wait) for an arrival, which `take` takes. While it waits for long, other
    /// threads can use the end point.
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
        let attempt = |slice| {
            let deadline = Instant::now() + slice;
            let left = || deadline.saturating_duration_since(Instant::now());
            let _turn = locked(&self.turn);
            loop {
                let found = self.attempt(left().min(KEEP), &mut take)?;
                if found.is_some() || left().is_zero() {
                    return Ok(found);
                }
                match node.wait_any(&[&Probe { end: self, manager: &node }], Some(left())) {
                    Ok(_) => {}
                    Err(ReceiveError::TimedOut) => return Ok(None),
                    Err(e) => return Err(e),
                }
            }
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
        // Where the end was closed meanwhile this is the last of it; going, it asks for the node's
        // lock, which an admission function may have that waits for the interpreter's.
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
        self.with(py, |end| end.its_connection().ended().map(crate::events::reason_text))
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
                let end = crate::wait::on_thread(py, &manager.inner, || false, grow)?.or_raise()?;
                Ok(Self { end: End::new(&manager.inner, end) })
            }

            /// Grows it for the receiver that is served as `[user@]name`, waiting at most `timeout`
            /// seconds for somebody to serve that name and for its answer.
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
                let end =
                    crate::wait::on_thread(py, &manager.inner, || false, connect)?.or_raise()?;
                Ok(Self { end: End::new(&manager.inner, end) })
            }
        }
    };
}

pub(crate) use {common, grown, named, paired, receiver, sender};
