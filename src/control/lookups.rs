//! Threads that look into strangers' directories. Whoever owns a directory, or may read it, can hold
//! it as long as he likes (by reading it into a page that never comes, with a writer behind him):
//! then whoever looks into it waits in the kernel, and cannot be killed. So nothing here waits for
//! one that looks; how many there may be is bounded, for each user whose names are looked for.

use super::names::ServiceName;
use core::time::Duration;
use std::collections::HashMap;
use std::io;
use std::string::String;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::Builder;

/// Lookups that may run at a time in all, and of the names of one other user.
const LOOKUPS_MAX: usize = 256;
const LOOKUPS_OF_USER_MAX: usize = 8;

/// How many have not come back, by whose names are looked for; `None`: this user's.
#[derive(Clone, Default)]
pub(super) struct Lookups(Arc<Mutex<HashMap<Option<String>, usize>>>);

/// One of them, until it is dropped.
pub(super) struct Lookup {
    of: Lookups,
    user: Option<String>,
}

impl Lookups {
    /// One more; or why there may be none.
    pub(super) fn begin(&self, service: &ServiceName) -> Result<Lookup, String> {
        let mut running = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let user = service.user().map(String::from);
        let all: usize = running.values().sum();
        let own = running.get(&user).copied().unwrap_or(0);
        if all >= LOOKUPS_MAX {
            return Err(std::format!("{all} lookups of names have not come back"));
        }
        if let Some(user) = user.as_ref().filter(|_| own >= LOOKUPS_OF_USER_MAX) {
            let what = "lookups of names of user";
            return Err(std::format!("{own} {what} {user} have not come back: ask them why"));
        }
        running.insert(user.clone(), own + 1);
        Ok(Lookup { of: self.clone(), user })
    }
}

impl Drop for Lookup {
    fn drop(&mut self) {
        let mut running = self.of.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = running.get_mut(&self.user) {
            *count -= 1;
            if *count == 0 {
                running.remove(&self.user);
            }
        }
    }
}

/// Does it in a thread that nothing waits for.
pub(super) fn spawn(look: impl FnOnce() + Send + 'static) -> io::Result<()> {
    Builder::new().name("hamlyn-look".into()).stack_size(256 << 10).spawn(look).map(drop)
}

/// What a look finds, if it takes no longer than that. One that takes longer goes on, for nobody.
pub(super) fn within<T: Send + 'static>(
    limit: Duration,
    look: impl FnOnce() -> T + Send + 'static,
) -> io::Result<Option<T>> {
    let (tell, told) = mpsc::sync_channel(1);
    spawn(move || {
        let _ = tell.send(look());
    })?;
    Ok(told.recv_timeout(limit).ok())
}
