//! Polls a manager while tasks wait at its byte streams: one task for all of them.
//!
//! ```text
//!   a task:     look, turn, look; nothing -> leave a waker, all under one lock     kick
//!   this task:  turn; something came -> the waiting tasks are woken, and run first
//!               nothing came  -> spin and yield as the settings say, letting tasks run in between
//!               nothing still -> arm, sleep on the descriptor, or until it is kicked
//! ```
//! Never: it sleeps without being armed, or armed for fewer events than a task waits for: a task
//! that begins to wait for room kicks it.

use super::manager::Manager;
use crate::node::{Attached, NextTurn, Patience};
use crate::os::thread;
use core::future::{Future, poll_fn};
use core::pin::pin;
use core::sync::atomic::{AtomicBool, Ordering};
use core::task::{Poll, Waker};
use std::io;
use std::os::fd::OwnedFd;
use std::string::{String, ToString};
use std::sync::{Arc, OnceLock};
use std::task::Wake;
use tokio::io::unix::AsyncFd;
use tokio::task::AbortHandle;

/// Turns without an arrival between two runs of other tasks: a microsecond or two.
const TURNS: u32 = 32;

/// A descriptor that is registered with the runtime. A forked child, which has the runtime's table of
/// them in common with its parent, takes nothing out of it and closes nothing.
pub(crate) struct Registered {
    /// `None` only while this is dropped.
    fd: Option<AsyncFd<OwnedFd>>,
    process: u32,
}

impl Registered {
    pub fn new(fd: AsyncFd<OwnedFd>) -> Self {
        Self { fd: Some(fd), process: std::process::id() }
    }

    pub fn get(&self) -> &AsyncFd<OwnedFd> {
        match &self.fd {
            Some(fd) => fd,
            None => unreachable!("it is taken out when it is dropped, and only then"),
        }
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            core::mem::forget(self.fd.take());
        }
    }
}

/// Ends its task when it is dropped.
pub(crate) struct Driver {
    shared: Arc<DriverState>,
    task: AbortHandle,
    process: u32,
}

struct DriverState {
    is_asleep: AtomicBool,
    /// The task's.
    waker: OnceLock<Waker>,
    /// The reason why no thread polls any more.
    ended: OnceLock<String>,
}

impl Driver {
    pub fn start(
        manager: &Manager,
        fd: &Arc<Registered>,
        runtime: &tokio::runtime::Handle,
    ) -> Self {
        let (is_asleep, waker, ended) = (AtomicBool::new(false), OnceLock::new(), OnceLock::new());
        let shared = Arc::new(DriverState { is_asleep, waker, ended });
        let driving = drive(manager.clone(), fd.clone(), shared.clone());
        Self { task: runtime.spawn(driving).abort_handle(), shared, process: std::process::id() }
    }

    /// An error once no thread polls any more.
    #[inline]
    pub fn check(&self) -> io::Result<()> {
        match self.shared.ended.get() {
            None => Ok(()),
            Some(why) => Err(io::Error::other(why.clone())),
        }
    }

    /// A task has begun to wait, and its event may have come before the task was listed: the driver
    /// looks, and arms, once more.
    #[inline]
    pub fn kick(&self) {
        self.shared.kick();
    }
}

impl DriverState {
    #[inline]
    fn kick(&self) {
        if self.is_asleep.load(Ordering::Acquire)
            && self.is_asleep.swap(false, Ordering::AcqRel)
            && let Some(waker) = self.waker.get()
        {
            waker.wake_by_ref();
        }
    }
}

impl Wake for DriverState {
    fn wake(self: Arc<Self>) {
        self.kick();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.kick();
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        // A forked child has not got the threads of the runtime, and may have its locks for ever.
        if self.process == std::process::id() {
            self.task.abort();
        }
    }
}

/// Notifies the waiting tasks of the driver's end, however it ends.
struct EndNotice {
    manager: Manager,
    shared: Arc<DriverState>,
    kick: Waker,
    why: String,
}

impl Drop for EndNotice {
    fn drop(&mut self) {
        let _ = self.shared.ended.set(core::mem::take(&mut self.why));
        if !self.manager.is_forked() {
            let mut guard = self.manager.shared.lock();
            let (_, protocols) = guard.parts();
            protocols.sleepers.retain(|known| !known.will_wake(&self.kick));
            protocols.give_up();
        }
    }
}

async fn drive(manager: Manager, fd: Arc<Registered>, shared: Arc<DriverState>) {
    let why = "the runtime in which the manager was registered has shut down".into();
    poll_fn(|context| {
        let _ = shared.waker.set(context.waker().clone());
        Poll::Ready(())
    })
    .await;
    let kick = Waker::from(shared.clone());
    manager.shared.lock().parts().1.sleepers.push(kick.clone());
    let mut told = EndNotice { manager: manager.clone(), shared: shared.clone(), kick, why };
    let mut patience = Patience::default();
    loop {
        let mut next = NextTurn::Soon;
        for _ in 0..TURNS {
            let turned = manager.shared.turn_in_event_loop(
                &mut patience,
                |protocols| protocols.waiting() == 0,
                || shared.is_asleep.store(true, Ordering::Release),
            );
            next = match turned {
                Ok(next) => next,
                Err(forked) => {
                    told.why = forked.to_string();
                    return;
                }
            };
            if next != NextTurn::Soon {
                break;
            }
        }
        match next {
            // Not by waking itself: a runtime of one thread would run this again before the future
            // that it was started with, each time that nothing was found.
            NextTurn::Soon | NextTurn::LetRun => tokio::task::yield_now().await,
            NextTurn::LetOthers => {
                thread::yield_now();
                tokio::task::yield_now().await;
            }
            NextTurn::Sleep { since_ns } => {
                let slept = {
                    let mut readable = pin!(fd.get().readable());
                    poll_fn(|context| {
                        if !shared.is_asleep.load(Ordering::Acquire) {
                            return Poll::Ready(Ok(false));
                        }
                        let readable = readable.as_mut().poll(context);
                        readable.map_ok(|mut guard| {
                            guard.clear_ready();
                            true
                        })
                    })
                    .await
                };
                shared.is_asleep.store(false, Ordering::Release);
                match slept {
                    // A kick says nothing about how soon messages come.
                    Ok(was_woken) => {
                        manager.shared.woken_in_event_loop(&mut patience, was_woken, since_ns);
                    }
                    Err(e) => {
                        told.why = e.to_string();
                        return;
                    }
                }
            }
        }
    }
}
