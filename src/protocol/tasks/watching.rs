//! Requests whose callers are watched, so that who works for one that has given up is told.
//!
//! One task looks for callers that have given up, for all that wait to be told of theirs: each by itself
//! would look whenever anything comes, from whomever.

use super::super::manager::ReceiveError;
use super::AsyncServer;
use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use tokio::task::AbortHandle;

/// See the module.
#[derive(Default)]
pub(super) struct Watching {
    watch: Mutex<(usize, Option<AbortHandle>)>,
    /// A number for each.
    next: AtomicU64,
}

impl Watching {
    /// Whether any is.
    pub(super) fn is_watched(&self) -> bool {
        self.watch.lock().unwrap_or_else(PoisonError::into_inner).0 > 0
    }
}

/// A request whose caller is watched, until this is dropped.
pub(super) struct Watched<'a> {
    server: &'a AsyncServer,
    of: (u64, u32),
    /// That no other has, since the number of a call is used again.
    pub(super) number: u64,
}

impl<'a> Watched<'a> {
    /// From now on.
    pub(super) fn new(server: &'a AsyncServer, of: (u64, u32)) -> Self {
        let mut watch = server.watching.watch.lock().unwrap_or_else(PoisonError::into_inner);
        let (count, task) = &mut *watch;
        *count += 1;
        if *count == 1 {
            let (looked_at, manager) = (server.server.clone(), server.manager.clone());
            let looking = async move {
                let look = || looked_at.look_for_cancelled().map(|()| None::<()>);
                let _: Result<(), ReceiveError> =
                    manager.until(|| look().map_err(ReceiveError::from)).await;
            };
            *task = Some(server.manager.runtime().spawn(looking).abort_handle());
        }
        drop(watch);
        let number = server.watching.next.fetch_add(1, Ordering::Relaxed);
        Self { server, of, number }
    }
}

impl Drop for Watched<'_> {
    fn drop(&mut self) {
        self.server.server.watch_no_more(self.of, self.number);
        let mut watch = self.server.watching.watch.lock().unwrap_or_else(PoisonError::into_inner);
        let (count, task) = &mut *watch;
        *count -= 1;
        if *count == 0
            && let Some(task) = task.take()
        {
            task.abort();
        }
    }
}
