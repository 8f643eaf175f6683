//! Deliberate updates that go on by themselves (SHRIMP 4.5.3), from exported memory.

use crate::{Buffer, Error, Proxy};
use hamlyn_clan::{Completion, Request, RequestQueue};
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

/// Sends of one queue that have not completed, or of which the error was not asked for.
const SENDS: u32 = 64;
/// Bytes of one send that leave before others have their turn.
const AT_ONCE: u32 = 64 << 10;

/// A queue of sends to one buffer, which complete in their order.
#[derive(Debug)]
pub struct Sends {
    proxy: Proxy,
    queue: RequestQueue,
    results: Mutex<Results>,
}

#[derive(Debug, Default)]
struct Results {
    started: u64,
    done: u64,
    failed: VecDeque<(u64, Error)>,
}

impl Proxy {
    /// A queue of sends that go on in calls of this program, or in its thread.
    pub fn sends(&self) -> Result<Sends, Error> {
        let queue = self.vmmc().clan().request_queue(SENDS, 0, AT_ONCE)?;
        Ok(Sends { proxy: self.clone(), queue, results: Mutex::default() })
    }
}

impl Sends {
    /// Sends `bytes` of a buffer of this program, from `at` on, to `offset`: the send's number, from 1 on.
    /// [`Error::Full`]: there are 64. Not ordered with [`Proxy::send`].
    pub fn start(&self, offset: u64, buffer: &Buffer, at: u64, bytes: u64) -> Result<u64, Error> {
        // Results that nobody asks for take no room.
        let mut results = self.results();
        let (from, to) = (buffer.region(), self.proxy.aperture());
        let put = Request::Put { from, offset: at, to, at: offset, length: bytes };
        results.started = self.queue.submit(&[put], Completion::None)?;
        Ok(results.started)
    }

    fn results(&self) -> MutexGuard<'_, Results> {
        let mut results = self.results.lock().unwrap_or_else(|e| e.into_inner());
        while let Some(done) = self.queue.take_done() {
            results.done = done.group;
            results.failed.extend(done.result.err().map(|e| (done.group, e)));
            if results.failed.len() > SENDS as usize {
                results.failed.pop_front();
            }
        }
        results
    }

    /// A send's result, after which its memory can be used; of the failed ones the last 64 are known.
    /// `None`: it is not complete. Takes no turn.
    pub fn result(&self, number: u64) -> Option<Result<(), Error>> {
        let results = self.results();
        if number == 0 || number > results.started {
            return Some(Err(Error::Misuse(format!("no send has the number {number}"))));
        }
        let failed = results.failed.iter().find(|(failed, _)| *failed == number);
        let result = failed.map_or(Ok(()), |(_, error)| Err(error.clone()));
        (number <= results.done).then_some(result)
    }

    /// [`result`](Self::result), waited for.
    pub fn wait(&self, number: u64, limit: Option<Duration>) -> Result<(), Error> {
        let mut result = None;
        self.proxy.vmmc().wait_until(limit, || {
            result = self.result(number);
            result.is_some()
        })?;
        result.unwrap_or(Ok(()))
    }
}
