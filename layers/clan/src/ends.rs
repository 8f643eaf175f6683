//! Shared by hooks, the user's threads and the board: notes for the next turn, and of each end point
//! its out-of-band messages and its end.
//!
//! Never: a hook does more than note; a queue grows beyond its bound; a peer's messages take another's place.

use crate::events::Target;
use crate::wire::OOB_BYTES;
use hamlyn::node::Node;
use hamlyn::{AreaId, Deposit, LinkId, QueueId, Receiver, SlotConfig, SlotId};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

/// Control messages of one peer between two turns; a turn takes fewer.
const NOTES_MAX: u32 = 4096;

pub(crate) fn unpoisoned<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

/// Notes of hooks and drops for the next turn.
#[derive(Default)]
pub(crate) struct Notes {
    pub said: Mutex<Vec<(LinkId, Box<[u8]>)>>,
    /// Turns that have taken them.
    pub turns: AtomicU64,
    pub areas: Mutex<Vec<AreaId>>,
    pub has_any: AtomicBool,
    pub thrown_away: AtomicU64,
}

impl Notes {
    /// Whether there are any since the last call. One load, if not, as in most turns.
    pub fn take_has_any(&self) -> bool {
        self.has_any.load(Ordering::Relaxed) && self.has_any.swap(false, Ordering::Acquire)
    }

    /// An area that nothing uses any more.
    pub fn leave(&self, area: AreaId) {
        unpoisoned(&self.areas).push(area);
        self.has_any.store(true, Ordering::Release);
    }
}

/// The receiver of a peer's control messages.
pub(crate) struct Inbox {
    pub notes: Arc<Notes>,
    /// How many came in this turn.
    pub came: (u64, u32),
}

impl Receiver for Inbox {
    fn observe(&mut self, deposit: &Deposit<'_>, bytes: &[u8]) {
        let Self { notes, came } = self;
        let turn = notes.turns.load(Ordering::Relaxed);
        *came = (turn, if came.0 == turn { came.1 + 1 } else { 1 });
        if came.1 > NOTES_MAX {
            notes.thrown_away.fetch_add(1, Ordering::Relaxed);
            return;
        }
        unpoisoned(&notes.said).push((deposit.link, bytes.into()));
        notes.has_any.store(true, Ordering::Release);
    }
}

/// The part of an end point that the user's threads see without the node's lock.
#[derive(Default)]
pub(crate) struct End {
    /// Why, in words.
    closed: OnceLock<String>,
    oob: Mutex<VecDeque<[u8; OOB_BYTES]>>,
    /// How many are in it.
    oob_count: AtomicU32,
    pub oob_lost: AtomicU64,
    target: Mutex<Option<Target>>,
}

impl End {
    #[inline]
    pub fn closed(&self) -> Option<&String> {
        self.closed.get()
    }

    pub fn set_target(&self, target: Option<Target>) {
        unpoisoned(&self.target).clone_from(&target);
        if (self.oob_count.load(Ordering::Acquire) > 0 || self.closed().is_some())
            && let Some(target) = target
        {
            target.raise();
        }
    }

    fn raise(&self) {
        if let Some(target) = &*unpoisoned(&self.target) {
            target.raise_in_turn();
        }
    }

    pub fn close(&self, why: &str) {
        let _ = self.closed.set(why.into());
        self.raise();
    }

    pub fn push_oob(&self, message: [u8; OOB_BYTES], most: u32) {
        let mut queue = unpoisoned(&self.oob);
        if queue.len() >= most as usize {
            self.oob_lost.fetch_add(1, Ordering::Relaxed);
            return;
        }
        queue.push_back(message);
        self.oob_count.store(queue.len() as u32, Ordering::Release);
        drop(queue);
        self.raise();
    }

    #[inline]
    pub fn take_oob(&self) -> Option<[u8; OOB_BYTES]> {
        if self.oob_count.load(Ordering::Acquire) == 0 {
            return None;
        }
        let mut queue = unpoisoned(&self.oob);
        let message = queue.pop_front();
        self.oob_count.store(queue.len() as u32, Ordering::Release);
        message
    }
}

/// A slot, and the queue that each has, in which nothing is ever queued that is taken.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Door {
    pub slot: SlotId,
    queue: QueueId,
}

impl Door {
    pub fn new(node: &mut Node, area: AreaId) -> Result<Self, String> {
        let queue = node.notification_queue(1).map_err(|e| e.to_string())?;
        let slot = node.slot(SlotConfig::new(area, queue)).map_err(|e| {
            let _ = node.remove_queue(queue);
            e.to_string()
        })?;
        Ok(Self { slot, queue })
    }

    pub fn remove(self, node: &mut Node) {
        let _ = node.remove_slot(self.slot);
        let _ = node.remove_queue(self.queue);
    }
}
