//! Common parts of all end points: one thread at a time, an error in a forked child, and closing.
//!
//! A C program may call with one end point from any number of threads; the library's own end
//! points that receive or send in an order belong to one thread at a time. A call that finds
//! another thread in a call waits for it, within its own time limit.

use crate::boundary::{Done, Failure, h_status, h_status::*, limit};
use crate::node::h_node_t;
use hamlyn::os::memory::ForkGuard;
use hamlyn::protocol::{EndPoint, Exclusive, ExclusiveGuard, Manager, ReceiveError, SendError};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// An end point, or an object made from one, of a process and its manager.
pub struct End<T> {
    inner: T,
    manager: Manager,
    fork: Arc<ForkGuard>,
}

/// One that one thread at a time may use.
pub type One<T> = End<Exclusive<T>>;

impl<T> End<T> {
    pub fn new(node: &h_node_t, inner: T) -> Done<Self> {
        let (manager, fork) = (node.manager()?.clone(), node.fork().clone());
        Ok(Self { inner, manager, fork })
    }

    pub fn manager(&self) -> Done<&Manager> {
        if self.fork.is_parent() { Ok(&self.manager) } else { Err(hamlyn::node::Forked.into()) }
    }

    /// The end point; an error in a forked child.
    pub fn shared(&self) -> Done<&T> {
        self.manager()?;
        Ok(&self.inner)
    }

    pub fn fork(&self) -> &Arc<ForkGuard> {
        &self.fork
    }
}

/// How long a call that does not wait itself waits for another thread's call.
const BUSY_MAX: Duration = Duration::from_secs(10);

#[cold]
fn busy() -> Failure {
    let text = "another thread has been in a call with this end point for ten seconds";
    Failure::new(H_STATE, text)
}

impl<T> One<T> {
    /// The end point, for a call that does not wait. Another thread may be waiting in a call for
    /// room or for a group; so there is a limit here, too.
    pub fn lock(&self) -> Done<ExclusiveGuard<'_, T>> {
        self.manager()?;
        self.inner.lock_within(Some(BUSY_MAX)).ok_or_else(busy)
    }

    /// The end point, for a call that waits at most `timeout_ns`, and the rest of that time. If
    /// another thread stays in a call all the time, the status is `H_TIMED_OUT`, or `not_now` if
    /// this call does not wait at all.
    pub fn enter(
        &self,
        timeout_ns: i64,
        not_now: h_status,
    ) -> Done<(ExclusiveGuard<'_, T>, Option<Duration>)> {
        self.manager()?;
        let limit = limit(timeout_ns);
        if let Some(held) = self.inner.try_lock() {
            return Ok((held, limit));
        }
        let began = Instant::now();
        let Some(held) = self.inner.lock_within(limit) else {
            let status = if timeout_ns == 0 { not_now } else { H_TIMED_OUT };
            return Err(Failure::new(status, "another thread is in a call with this end point"));
        };
        Ok((held, limit.map(|limit| limit.saturating_sub(began.elapsed()))))
    }
}

impl<T: EndPoint> One<T> {
    /// A receive that waits at most `timeout_ns`. During long waits other threads can use the end
    /// point: the sender may be waiting for one of them to release earlier records.
    pub fn receive<R>(
        &self,
        timeout_ns: i64,
        mut turn: impl FnMut(&mut T, Option<Duration>) -> Result<R, ReceiveError>,
    ) -> Done<R> {
        let found = self.inner.receive(
            self.manager()?,
            limit(timeout_ns),
            T::is_ready_in,
            |end_point, keep| match turn(end_point, Some(keep)) {
                Ok(found) => Ok(Some(found)),
                Err(ReceiveError::TimedOut) => Ok(None),
                Err(e) => Err(e),
            },
        );
        received(found.and_then(|found| found.ok_or(ReceiveError::TimedOut)), timeout_ns)
    }

    /// For h_wait_any.
    pub fn probe(&self) -> impl EndPoint + '_ {
        self.inner.probe(&self.manager, T::is_ready_in)
    }
}

/// The end point in a handle, for calls of any thread that do not wait.
pub trait Several {
    /// The end point.
    type Point;
    /// Calls `use_it` with the end point. `None`: another thread has been in a call with it for
    /// ten seconds.
    fn with<R>(&self, use_it: impl FnOnce(&mut Self::Point) -> R) -> Option<R>;
}

impl<T> Several for Exclusive<T> {
    type Point = T;
    fn with<R>(&self, use_it: impl FnOnce(&mut T) -> R) -> Option<R> {
        Some(use_it(&mut *self.lock_within(Some(BUSY_MAX))?))
    }
}

impl<T> Several for Arc<T> {
    type Point = Self;
    fn with<R>(&self, use_it: impl FnOnce(&mut Self) -> R) -> Option<R> {
        Some(use_it(&mut self.clone()))
    }
}

impl<T: Several> End<T> {
    /// Calls `use_it`, which does not wait, with the end point. An error in a forked child, and if
    /// another thread stays in a call.
    pub fn with<R>(&self, use_it: impl FnOnce(&mut T::Point) -> R) -> Done<R> {
        self.manager()?;
        self.inner.with(use_it).ok_or_else(busy)
    }
}

/// A handle of a C program: an opaque type around an [`End`].
pub(crate) trait Handle: Sized {
    type Inner;
    fn of(end: End<Self::Inner>) -> Self;
    fn end(&self) -> &End<Self::Inner>;
}

macro_rules! handles {
    ($($handle:ty: $inner:ty),+) => {$(
        impl $crate::endpoint::Handle for $handle {
            type Inner = $inner;
            fn of(end: $crate::endpoint::End<$inner>) -> Self {
                Self(end)
            }
            fn end(&self) -> &$crate::endpoint::End<$inner> {
                &self.0
            }
        }
    )+};
}
pub(crate) use handles;

/// On the heap, for the C program to hold.
pub(crate) fn give<H: Handle>(node: &h_node_t, inner: H::Inner) -> Done<*mut H> {
    Ok(Box::into_raw(Box::new(H::of(End::new(node, inner)?))))
}

/// The same for an object that an end point has made, of the same manager.
pub(crate) fn give_beside<H: Handle, T>(end: &End<T>, inner: H::Inner) -> *mut H {
    let (manager, fork) = (end.manager.clone(), end.fork.clone());
    Box::into_raw(Box::new(H::of(End { inner, manager, fork })))
}

/// The methods of a receiver with a field `inner`.
macro_rules! wrapped {
    ($type:ty) => {
        impl hamlyn::protocol::EndPoint for $type {
            fn is_ready_in(&self, node: &hamlyn::Node) -> bool {
                self.inner.is_ready_in(node)
            }
            fn manager(&self) -> &hamlyn::protocol::Manager {
                hamlyn::protocol::EndPoint::manager(&self.inner)
            }
        }

        impl hamlyn::protocol::Offered for $type {
            fn offer(&self) -> hamlyn::protocol::Offer<'_> {
                hamlyn::protocol::Offered::offer(&self.inner)
            }
        }
    };
}
pub(crate) use wrapped;

/// The error of a call that would have to wait, with a time limit of 0.
pub fn nothing() -> Failure {
    Failure::new(H_NOTHING, "nothing has arrived")
}

pub fn full() -> Failure {
    Failure::new(H_FULL, "there is no room now; nothing was sent")
}

/// The result of a send: with a time limit of 0, a timeout means that there was no room.
pub fn sent<T>(result: Result<T, SendError>, timeout_ns: i64) -> Done<T> {
    match result {
        Err(SendError::TimedOut) if timeout_ns == 0 => Err(full()),
        other => Ok(other?),
    }
}

/// The result of a receive: with a time limit of 0, a timeout means that nothing was there.
pub fn received<T>(result: Result<T, ReceiveError>, timeout_ns: i64) -> Done<T> {
    match result {
        Err(ReceiveError::TimedOut) if timeout_ns == 0 => Err(nothing()),
        other => Ok(other?),
    }
}
