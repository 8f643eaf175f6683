//! What all end points have in common: one thread at a time, none in a forked child, and how they
//! end.
//!
//! A C program may call with one end point from any number of threads; the library's own end
//! points that receive or send in an order belong to one thread at a time. A call that finds
//! another thread in a call waits for it, within its own time limit.

use crate::boundary::{Done, Failure, get, h_status, h_status::*, limit};
use crate::links::{h_admission_t, h_peer_t};
use crate::node::h_node_t;
use core::ffi::c_void;
use core::sync::atomic::AtomicPtr;
use hamlyn::os::memory::ForkGuard;
use hamlyn::protocol::{EndPoint, Manager, ReceiveError, SendFailure};
use hamlyn::{Node, Peer};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

/// An end point, or what is made of one.
pub struct Exclusive<T> {
    inner: Mutex<T>,
    manager: Manager,
    pub(crate) fork: Arc<ForkGuard>,
}

impl<T> Exclusive<T> {
    pub fn new(node: &h_node_t, inner: T) -> Done<Self> {
        let (manager, fork) = (node.manager()?.clone(), node.fork().clone());
        Ok(Self { inner: Mutex::new(inner), manager, fork })
    }

    pub fn manager(&self) -> Done<&Manager> {
        if self.fork.is_parent() { Ok(&self.manager) } else { Err(hamlyn::node::Forked.into()) }
    }

    /// The end point, for a call that does not wait. Another thread may be waiting in one for room
    /// or for a group; so there is a limit here, too.
    pub fn lock(&self) -> Done<MutexGuard<'_, T>> {
        match self.enter(BUSY_MAX_NS, H_STATE) {
            Ok((guard, _)) => Ok(guard),
            Err(Failure { status: H_TIMED_OUT, .. }) => Err(Failure::new(
                H_STATE,
                "another thread has been in a call with this end point for ten seconds",
            )),
            Err(e) => Err(e),
        }
    }

    /// The end point, for a call that waits at most `timeout_ns`, and what is left of that. When
    /// another thread stays in a call all the time, the status is `H_TIMED_OUT`, or `not_now` if
    /// the call does not wait at all.
    pub fn enter(
        &self,
        timeout_ns: i64,
        not_now: h_status,
    ) -> Done<(MutexGuard<'_, T>, Option<Duration>)> {
        self.manager()?;
        let limit = limit(timeout_ns);
        if let Some(guard) = self.try_lock() {
            return Ok((guard, limit));
        }
        let began = Instant::now();
        for round in 0u32.. {
            if let Some(guard) = self.try_lock() {
                return Ok((guard, limit.map(|limit| limit.saturating_sub(began.elapsed()))));
            }
            if limit.is_some_and(|limit| began.elapsed() >= limit) {
                break;
            }
            match round {
                0..100 => std::hint::spin_loop(),
                100..200 => std::thread::yield_now(),
                _ => std::thread::sleep(Duration::from_micros(50)),
            }
        }
        let status = if timeout_ns == 0 { not_now } else { H_TIMED_OUT };
        Err(Failure::new(status, "another thread is in a call with this end point"))
    }

    fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.inner.try_lock() {
            Ok(guard) => Some(guard),
            // A call that panicked left the end point between two steps.
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

/// How long a call that does not wait itself waits for one that does.
const BUSY_MAX_NS: i64 = 10_000_000_000;

/// How long a receive keeps the end point from other threads while nothing is there: as long as
/// the library spins at most, unless configured.
const KEEP: Duration = Duration::from_micros(50);

impl<T: EndPoint> Exclusive<T> {
    /// A receive that waits at most `timeout_ns`. While it waits for long, other threads can use
    /// the end point: one that releases what was received before may be what the sender waits for.
    pub fn receive<R>(
        &self,
        timeout_ns: i64,
        mut turn: impl FnMut(&mut T, Option<Duration>) -> Result<R, ReceiveError>,
    ) -> Done<R> {
        let (mut guard, left) = self.enter(timeout_ns, H_NOTHING)?;
        let deadline = left.and_then(|left| Instant::now().checked_add(left));
        let mut keep = left.map_or(KEEP, |left| left.min(KEEP));
        loop {
            match turn(&mut guard, Some(keep)) {
                Err(ReceiveError::TimedOut) => drop(guard),
                other => return received(other, timeout_ns),
            }
            let left = match deadline {
                None => None,
                Some(deadline) => match deadline.checked_duration_since(Instant::now()) {
                    Some(left) => Some(left),
                    None => return received(Err(ReceiveError::TimedOut), timeout_ns),
                },
            };
            match self.manager()?.wait_any(&[&Probe(self)], left) {
                Ok(_) => {}
                Err(e) => return received(Err(e), timeout_ns),
            }
            let left = match deadline {
                None => -1,
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    i64::try_from(left.as_nanos()).unwrap_or(i64::MAX)
                }
            };
            let (entered, left) = self.enter(left, H_TIMED_OUT)?;
            keep = left.map_or(KEEP, |left| left.min(KEEP));
            guard = entered;
        }
    }
}

/// An end point that is being waited for, and that other threads may be using.
pub struct Probe<'a, T>(pub &'a Exclusive<T>);

impl<T: EndPoint> EndPoint for Probe<'_, T> {
    fn is_ready_in(&self, node: &Node) -> bool {
        // Another thread is in a call: what it leaves has to be looked at. Not to wait for it is
        // a must, since it may be waiting for the node, which is locked here.
        self.0.try_lock().is_none_or(|end_point| end_point.is_ready_in(node))
    }

    fn manager(&self) -> &Manager {
        &self.0.manager
    }
}

/// An end point that any number of threads may use at once.
pub struct Shared<T> {
    inner: T,
    manager: Manager,
    pub(crate) fork: Arc<ForkGuard>,
}

impl<T> Shared<T> {
    pub fn new(node: &h_node_t, inner: T) -> Done<Self> {
        let (manager, fork) = (node.manager()?.clone(), node.fork().clone());
        Ok(Self { inner, manager, fork })
    }

    pub fn manager(&self) -> Done<&Manager> {
        if self.fork.is_parent() { Ok(&self.manager) } else { Err(hamlyn::node::Forked.into()) }
    }

    pub fn lock(&self) -> Done<&T> {
        self.manager()?;
        Ok(&self.inner)
    }

    pub fn fork(&self) -> &Arc<ForkGuard> {
        &self.fork
    }
}

/// What a C program holds: an opaque type around an [`Exclusive`].
pub trait Handle {
    fn fork(&self) -> &ForkGuard;
    fn manager(&self) -> Done<&Manager>;
}

macro_rules! handles {
    ($($handle:ty),+) => {$(
        impl $crate::endpoint::Handle for $handle {
            fn fork(&self) -> &hamlyn::os::memory::ForkGuard {
                &self.0.fork
            }
            fn manager(&self) -> $crate::boundary::Done<&hamlyn::protocol::Manager> {
                self.0.manager()
            }
        }
    )+};
}
pub(crate) use handles;

/// On the heap, for the C program to hold.
pub fn give<H: Handle>(handle: H) -> *mut H {
    Box::into_raw(Box::new(handle))
}

/// # Safety
/// `handle` is null, or from [`give`] and used by nobody any more.
pub unsafe fn free<H: Handle>(handle: *mut H, name: &str) -> Done {
    if handle.is_null() {
        return Ok(());
    }
    get(handle, name)?;
    let handle = Box::from_raw(handle);
    if handle.fork().is_parent() {
        drop(handle);
    } else {
        // It is the parent's; nothing here may wait for its locks, or tell its peers goodbye.
        core::mem::forget(handle);
    }
    Ok(())
}

/// Lets what waits in the node leave, at most `timeout_ns`, then frees.
///
/// # Safety
/// As [`free`].
pub unsafe fn close<H: Handle>(handle: *mut H, name: &str, timeout_ns: i64) -> Done {
    let flushed = match get(handle, name)?.manager() {
        Ok(manager) => flush(manager, timeout_ns),
        Err(forked) => Err(forked),
    };
    free(handle, name)?;
    match flushed? {
        true => Ok(()),
        false => Err(Failure::new(
            H_TIMED_OUT,
            format!("messages stayed queued for the whole time limit; the {name} is freed"),
        )),
    }
}

/// A C program's decision about who may grow a sender.
pub fn admission(
    admit: h_admission_t,
    context: *mut c_void,
) -> impl FnMut(&Peer) -> Result<(), String> + Send + 'static {
    // Handed back to the C program's own function, in whichever thread polls, and not looked at
    // here; an atomic pointer is one that may go to another thread.
    let mut context = AtomicPtr::new(context);
    move |peer| {
        let Some(admit) = admit else { return Ok(()) };
        let peer = h_peer_t::from(peer);
        // SAFETY: the C program promised that the function and its context are there until the
        // receiver is freed.
        match unsafe { admit(*context.get_mut(), &peer) } {
            true => Ok(()),
            false => Err("the receiver's owner does not let this process in".into()),
        }
    }
}

/// Calls `turn` with the node's lock until it says something other than "not now", or until the
/// time is over; other threads work between the turns.
pub fn repeat<T>(
    manager: &Manager,
    timeout_ns: i64,
    mut turn: impl FnMut(&mut hamlyn::Node) -> Done<Option<T>>,
) -> Done<Option<T>> {
    let began = Instant::now();
    let limit = limit(timeout_ns);
    for round in 0u32.. {
        if let Some(value) = turn(&mut manager.lock())? {
            return Ok(Some(value));
        }
        if limit.is_some_and(|limit| began.elapsed() >= limit) {
            break;
        }
        match round {
            0..1000 => std::hint::spin_loop(),
            1000..1100 => std::thread::yield_now(),
            _ => std::thread::sleep(Duration::from_micros(100)),
        }
    }
    Ok(None)
}

/// Whether every queued message of the node has left within the time limit.
pub fn flush(manager: &Manager, timeout_ns: i64) -> Done<bool> {
    let done =
        repeat(manager, timeout_ns, |node| Ok(node.flush(Some(Duration::ZERO))?.then_some(())))?;
    Ok(done.is_some())
}

/// The call that was made could be done only by waiting, and was told not to.
pub fn nothing() -> Failure {
    Failure::new(H_NOTHING, "nothing has arrived")
}

pub fn full() -> Failure {
    Failure::new(H_FULL, "there is no room now; nothing was sent")
}

/// What a send came to: a time limit of 0 that is over means that there was no room.
pub fn sent<T>(result: Result<T, SendFailure>, timeout_ns: i64) -> Done<T> {
    match result {
        Err(SendFailure::TimedOut) if timeout_ns == 0 => Err(full()),
        other => Ok(other?),
    }
}

/// What a receive came to: a time limit of 0 that is over means that nothing was there.
pub fn received<T>(result: Result<T, ReceiveError>, timeout_ns: i64) -> Done<T> {
    match result {
        Err(ReceiveError::TimedOut) if timeout_ns == 0 => Err(nothing()),
        other => Ok(other?),
    }
}
