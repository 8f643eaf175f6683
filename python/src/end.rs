//! What all end points have in common: they are closed once, by their owner or with their manager,
//! and not before the last buffer of their memory has come back.
//!
//! An end point of one thread at a time stands behind a lock of its own. Who waits for that lock
//! does not hold the interpreter's, and who holds it never asks for the interpreter's.

use crate::errors::{Kind, OrRaise, ToPy, error};
use crate::manager::{Close, Inner, access_of, locked};
use crate::parts::Peer;
use crate::seed::Seed;
use crate::wait::{LOOKS, Limit, sliced};
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use core::time::Duration;
use hamlyn::Access;
use hamlyn::node::OfferError;
use hamlyn::protocol::{self, Connection};
use pyo3::prelude::*;
use std::sync::{Arc, Mutex, TryLockError, Weak};

/// An end point of a manager.
pub struct End<T: Send + 'static> {
    pub inner: Arc<Inner>,
    /// `None` once it is closed and no buffer is out.
    state: Mutex<Option<T>>,
    is_closed: AtomicBool,
    /// Buffers of its memory that Python has.
    buffers: AtomicUsize,
}

impl<T: Send + 'static> End<T> {
    pub fn new(inner: &Arc<Inner>, end: T) -> Arc<Self> {
        let end = Arc::new(Self {
            inner: inner.clone(),
            state: Mutex::new(Some(end)),
            is_closed: AtomicBool::new(false),
            buffers: AtomicUsize::new(0),
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
    pub fn close_now(&self, py: Python<'_>) {
        if self.inner.check_fork().is_err() {
            return;
        }
        py.detach(|| self.close());
    }

    fn drop_if_done(&self) {
        if self.is_closed() && self.buffers.load(Ordering::Acquire) == 0 {
            let end = locked(&self.state).take();
            drop(end);
        }
    }

    /// A buffer goes out.
    #[allow(dead_code)]
    pub fn lend(&self) {
        self.buffers.fetch_add(1, Ordering::Relaxed);
        self.inner.lend();
    }

    /// A buffer has come back.
    #[allow(dead_code)]
    pub fn take_back(&self) {
        if self.inner.check_fork().is_ok() && self.buffers.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.drop_if_done();
        }
        self.inner.take_back();
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
        if self.inner.check_fork().is_err() {
            // The parent's: it would ask for locks that nobody in this process may hold.
            let state = self.state.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
            core::mem::forget(state.take());
        }
    }
}

#[cold]
pub fn closed() -> PyErr {
    error(Kind::Closed, "the end point is closed")
}

/// An end point that receives: it can be found.
pub trait Offered {
    fn make_seed(&self) -> Result<protocol::Seed, OfferError>;
    fn offer(&self, name: &str, access: Access) -> Result<(), OfferError>;
}

/// An end point with one peer.
pub trait Connected {
    fn its_connection(&self) -> &Connection;
    fn its_path(&self) -> String;
}

macro_rules! offered {
    ($($type:ty),+) => {
        $(impl Offered for $type {
            fn make_seed(&self) -> Result<protocol::Seed, OfferError> {
                self.seed()
            }
            fn offer(&self, name: &str, access: Access) -> Result<(), OfferError> {
                self.serve(name, access)
            }
        })+
    };
}
offered!(protocol::TaggedReceiver);

macro_rules! connected {
    ($($type:ty),+) => {
        $(impl Connected for $type {
            fn its_connection(&self) -> &Connection {
                self.connection()
            }
            fn its_path(&self) -> String {
                self.explain()
            }
        })+
    };
}
connected!(protocol::TaggedSender);

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
