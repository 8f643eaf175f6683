//! Watched requests: a task that works for a caller is told when the caller gives up.
//!
//! One task checks all callers for all the tasks that wait: a check by each task itself would be
//! repeated at every arrival, from any client.

use super::super::asynchronous::AsyncManager;
use super::super::call::Server;
use super::super::manager::ReceiveError;
use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::task::AbortHandle;

/// See the module.
#[derive(Default)]
pub(super) struct Watching {
    watch: Mutex<(usize, Option<AbortHandle>)>,
    /// A number for each.
    next: AtomicU64,
}

impl Watching {
    /// Whether any request is watched.
    pub(super) fn is_watched(&self) -> bool {
        self.watch.lock().unwrap_or_else(PoisonError::into_inner).0 > 0
    }
}

/// A request whose caller is watched, until this is dropped.
pub(super) struct Watched<'a> {
    server: &'a Server,
    watching: &'a Watching,
    of: (u64, u32),
    /// Differs from all other watches, since a call's number is used again.
    pub(super) number: u64,
}

impl<'a> Watched<'a> {
    /// Watches from now on.
    pub(super) fn new(
        server: &'a Arc<Server>,
        manager: &AsyncManager,
        watching: &'a Watching,
        of: (u64, u32),
    ) -> Self {
        let mut watch = watching.watch.lock().unwrap_or_else(PoisonError::into_inner);
        let (count, task) = &mut *watch;
        *count += 1;
        if *count == 1 {
            let (looked_at, runtime, manager) =
                (server.clone(), manager.runtime(), manager.clone());
            let looking = async move {
                let look = || looked_at.look_for_cancelled().map(|()| None::<()>);
                let _: Result<(), ReceiveError> =
                    manager.until(|| look().map_err(ReceiveError::from)).await;
            };
            *task = Some(runtime.spawn(looking).abort_handle());
        }
        drop(watch);
        let number = watching.next.fetch_add(1, Ordering::Relaxed);
        Self { server, watching, of, number }
    }
}

impl Drop for Watched<'_> {
    fn drop(&mut self) {
        self.server.watch_no_more(self.of, self.number);
        let mut watch = self.watching.watch.lock().unwrap_or_else(PoisonError::into_inner);
        let (count, task) = &mut *watch;
        *count -= 1;
        if *count == 0
            && let Some(task) = task.take()
        {
            task.abort();
        }
    }
}
