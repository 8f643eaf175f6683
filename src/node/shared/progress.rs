//! The progress thread: it polls a shared node, so that bytes are deposited and queued messages leave
//! while the application makes no calls.
//!
//! Never: it lives longer than the last user of the node; it holds the lock while it yields or
//! sleeps.

use super::super::wait::backoff;
use super::{Attached, SharedInner, SharedNode};
use crate::engine::wait::WaitStep;
use crate::os::sys;
use crate::os::thread::{self, Thread};
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::io;
use std::sync::{Arc, PoisonError};

/// How long the progress thread sleeps at most.
const PROGRESS_SLEEP_MAX_NS: u64 = 1_000_000_000;

pub(super) struct Progress {
    stop: Arc<AtomicBool>,
    thread: Thread,
}

impl<T: Attached> SharedInner<T> {
    pub(super) fn stop_progress(&self) {
        let progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(Progress { stop, thread }) = progress {
            stop.store(true, Ordering::Release);
            // It leads, follows, or is about to: it takes the lock before either, and looks.
            drop(self.lock());
            // The program may have put a file of its own in the bell's place; the thread looks within a
            // second by itself.
            if self.bell.is_there() {
                self.wake_leader();
            }
            self.look_again.notify_all();
            if !thread.is_current() {
                thread.join(Duration::MAX);
            }
            self.lock().set_watched(false);
        }
    }
}

impl<T: Attached> SharedNode<T> {
    /// Starts the progress thread, unless there is one: see
    /// [`Manager::start_progress`](crate::protocol::Manager::start_progress).
    pub fn start_progress(&self) -> io::Result<()> {
        let mut progress = self.inner.progress.lock().unwrap_or_else(PoisonError::into_inner);
        if progress.is_some() {
            return Ok(());
        }
        let stop = Arc::new(AtomicBool::new(false));
        let (inner, stopped) = (self.inner.clone(), stop.clone());
        let config = {
            let mut node = self.lock();
            node.set_watched(true);
            node.config().clone()
        };
        let make_progress = move || {
            let mut backoff = backoff(&config, None);
            loop {
                let mut node = inner.lock();
                if stopped.load(Ordering::Acquire) {
                    return;
                }
                let (turn, attached) = node.parts();
                let before = turn.moved();
                let taken = turn.poll_for_application(inner.was_called());
                attached.after_poll(turn);
                match taken {
                    // A layer has called `Node::wake`: it goes on in the next turn.
                    Ok(0) if turn.moved() == before => {}
                    Ok(_) => {
                        backoff.restart();
                        drop(node);
                        inner.let_others();
                        continue;
                    }
                    Err(_) => return,
                }
                match node.step(&mut backoff) {
                    WaitStep::Spin => {
                        drop(node);
                        inner.let_others();
                    }
                    WaitStep::Yield => {
                        drop(node);
                        thread::yield_now();
                    }
                    WaitStep::Sleep { .. } | WaitStep::TimedOut => {
                        let deadline = sys::monotonic_ns() + PROGRESS_SLEEP_MAX_NS;
                        if inner.sleep(node, None, deadline).is_err() {
                            thread::yield_now();
                        }
                    }
                }
            }
        };
        let thread = thread::spawn("hamlyn-progress", 2 << 20, make_progress)?;
        *progress = Some(Progress { stop, thread });
        Ok(())
    }

    /// Stops the progress thread and waits for it.
    pub fn stop_progress(&self) {
        self.inner.stop_progress();
    }
}
