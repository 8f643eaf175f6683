//! Links whose packets a thread sends later: see [`carrier`](super::carrier).

use crate::os::sys::Bell;
use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::vec::Vec;

/// Links with packets that wait for more to leave together.
#[derive(Debug)]
pub struct Late {
    /// Wakes the thread.
    pub bell: Bell,
    links: Mutex<Vec<u64>>,
    /// A rail is gone that may be connected again.
    misses_rail: AtomicBool,
}

/// The next step for a late link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lateness {
    /// Packets left, and more may follow: try again soon.
    Again,
    /// The network takes no more: try again when it does.
    Waits,
    /// Nothing is left: the next sender will announce itself.
    Done,
}

impl Late {
    /// Without links.
    pub fn new(bell: Bell) -> Self {
        Self { bell, links: Mutex::default(), misses_rail: AtomicBool::new(false) }
    }

    /// Adds a link, by its number.
    pub fn push(&self, link: u64) {
        self.links.lock().unwrap_or_else(PoisonError::into_inner).push(link);
        self.bell.ring();
    }

    /// Notes that a rail of a link is gone.
    pub fn rail_left(&self) {
        self.misses_rail.store(true, Ordering::Release);
        self.bell.ring();
    }

    /// Whether a rail has gone since the last call.
    pub fn misses_rail(&self) -> bool {
        self.misses_rail.swap(false, Ordering::Acquire)
    }

    /// The links that were added since the last call.
    pub fn take(&self) -> Vec<u64> {
        core::mem::take(&mut *self.links.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
