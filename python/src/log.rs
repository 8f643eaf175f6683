//! Log entries of links, for an operator, on their way to Python's `logging`.
//!
//! ```text
//!   housekeeping thread --> QUEUE (bounded) --> a thread of Python's, in `_next_entry`
//! ```
//! The housekeeping thread never asks for the interpreter's lock, since a thread that holds the
//! lock may wait for the housekeeping.

use crate::inner::locked;
use hamlyn::log::{Entry, Level, set_sink};
use pyo3::prelude::*;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// Most entries that wait for Python; further ones are only counted.
const WAITING_MAX: usize = 4096;

#[derive(Default)]
struct Queue {
    is_open: bool,
    entries: VecDeque<Entry>,
    dropped: u64,
}

static QUEUE: Mutex<Queue> =
    Mutex::new(Queue { is_open: false, entries: VecDeque::new(), dropped: 0 });
static NEWS: Condvar = Condvar::new();

/// Kind, level of `logging`, user, process, service, reason, and the whole entry as a line.
type Row = (&'static str, u8, Option<u32>, Option<u32>, String, String, String);

/// Keeps entries for `_next_entry` from now on.
#[pyfunction]
pub fn _open_log() {
    locked(&QUEUE).is_open = true;
    set_sink(Some(Arc::new(|entry| {
        let mut queue = locked(&QUEUE);
        if queue.entries.len() < WAITING_MAX {
            queue.entries.push_back(entry.clone());
        } else {
            queue.dropped += 1;
        }
        NEWS.notify_all();
    })));
}

/// Keeps no entries from now on; running calls of `_next_entry` return `None`.
#[pyfunction]
pub fn _close_log() {
    set_sink(None);
    *locked(&QUEUE) = Queue::default();
    NEWS.notify_all();
}

/// Waits for the next entry, without the interpreter's lock. `None`: no more will come.
#[pyfunction]
pub fn _next_entry(py: Python<'_>) -> Option<Row> {
    let (entry, dropped) = py.detach(|| {
        let mut queue = locked(&QUEUE);
        while queue.is_open && queue.entries.is_empty() {
            queue = NEWS.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        let entry = queue.entries.pop_front()?;
        Some((entry, core::mem::take(&mut queue.dropped)))
    })?;
    let level = match entry.kind.level() {
        Level::Info => 20,
        Level::Warning => 30,
        Level::Error => 40,
    };
    let mut text = entry.to_string();
    if dropped > 0 {
        text += &format!(" ({dropped} more were dropped before this)");
    }
    let kind = entry.kind.name();
    Some((kind, level, entry.user, entry.process, entry.service, entry.reason, text))
}
