//! What an operator may know of each link while the node goes on: who is at the other end, how much
//! has gone each way, what waits.
//!
//! The housekeeping thread reads it, and is asked by [`stat_of`](crate::control::stat_of). How much
//! was taken out of a ring stands in a word that its reader writes for its writer anyway; what only
//! the node knows it leaves here in its long turns and before it sleeps. So no message pays for it,
//! and of a program that makes no calls there are the figures of its last one; that it makes none is
//! one of them.
//!
//! Never: the node waits for whoever reads; what a peer wrote is used for anything but printing.

use super::link::Link;
use crate::control::Peer;
use crate::interface::LinkId;
use crate::link::cells::Word;
use crate::os::memory::RegionWord;
use crate::wire::LINE_BYTES;
use core::fmt::Write;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::collections::BTreeMap;
use std::string::String;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::vec::Vec;

/// More links than these are not listed; how many there are is.
const LINKS_LISTED_MAX: usize = 1000;

/// Of one node.
#[derive(Debug, Default)]
pub(super) struct Figures {
    links: Mutex<BTreeMap<u32, Arc<OfLink>>>,
    /// Long turns of the node.
    turns: AtomicU64,
    /// It sleeps in a call, or in its event loop, as far as it has said.
    waits: AtomicBool,
}

/// Of one link.
#[derive(Debug)]
pub(super) struct OfLink {
    id: LinkId,
    peer: Peer,
    is_ours: bool,
    path: Mutex<String>,
    /// Lines of the ring and the bulk ring that this process has taken.
    taken: [RegionWord; 2],
    /// Those that the peer says that it has taken.
    given: [RegionWord; 2],
    written: AtomicU64,
    messages: AtomicU64,
    packets: AtomicU64,
    queued: AtomicU64,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Figures {
    /// A link was made; `taken` and `given` are the words that this process and the peer write.
    pub fn add(
        &self,
        link: &Link,
        is_ours: bool,
        taken: [RegionWord; 2],
        given: [RegionWord; 2],
    ) -> Arc<OfLink> {
        let of_link = Arc::new(OfLink {
            id: link.id,
            peer: link.peer.clone(),
            is_ours,
            path: Mutex::default(),
            taken,
            given,
            written: AtomicU64::new(0),
            messages: AtomicU64::new(0),
            packets: AtomicU64::new(0),
            queued: AtomicU64::new(0),
        });
        locked(&self.links).insert(link.id.index, of_link.clone());
        of_link
    }

    /// A link has ended: its memory is no longer kept.
    pub fn remove(&self, index: u32) {
        locked(&self.links).remove(&index);
    }

    /// A long turn of the node; what it does next is no waiting.
    pub fn turned(&self) {
        self.turns.store(self.turns.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        self.waits.store(false, Ordering::Relaxed);
    }

    /// The node is about to wait.
    pub fn waits(&self) {
        self.waits.store(true, Ordering::Relaxed);
    }

    /// Lines of a name, a space and a value each.
    pub fn text(&self, text: &mut String) {
        let turns = self.turns.load(Ordering::Relaxed);
        let waits = u64::from(self.waits.load(Ordering::Relaxed));
        // Links come and go while this is written: nobody waits for it.
        let links: Vec<Arc<OfLink>> = locked(&self.links).values().cloned().collect();
        let count = links.len();
        let _ = write!(text, "turns {turns}\nwaits {waits}\nlinks {count}\n");
        for link in links.iter().take(LINKS_LISTED_MAX) {
            link.text(text);
        }
    }
}

impl OfLink {
    /// How things stand. Four stores.
    pub fn publish(&self, written: u64, messages: u64, packets: u64, queued: usize) {
        self.written.store(written, Ordering::Relaxed);
        self.messages.store(messages, Ordering::Relaxed);
        self.packets.store(packets, Ordering::Relaxed);
        self.queued.store(queued as u64, Ordering::Relaxed);
    }

    /// Which path its messages take, and why.
    pub fn explain(&self, path: String) {
        *locked(&self.path) = path;
    }

    fn text(&self, text: &mut String) {
        let lines = |words: &[RegionWord; 2]| {
            let each = words.iter().map(|word| word.word().load(Ordering::Relaxed));
            each.fold(0, u64::wrapping_add)
        };
        let bytes = |lines: u64| lines.saturating_mul(LINE_BYTES as u64);
        let (taken, given) = (lines(&self.taken), lines(&self.given));
        // The peer's word may say anything; the node's own is of its last turn, and may be behind:
        // a program that sends and makes no other call has no turns.
        let written = self.written.load(Ordering::Relaxed);
        let waiting = written.saturating_sub(given);
        let number =
            |number: Option<u32>| number.map_or(String::from("unknown"), |n| std::format!("{n}"));
        let rows: [(&str, String); 12] = [
            ("peer_node", std::format!("{}", self.peer.node)),
            ("peer_user", number(self.peer.uid)),
            ("peer_process", number(self.peer.pid)),
            ("service", self.peer.service.clone()),
            ("made_by", if self.is_ours { "this process" } else { "the peer" }.into()),
            ("messages_sent", std::format!("{}", self.messages.load(Ordering::Relaxed))),
            ("packets_taken", std::format!("{}", self.packets.load(Ordering::Relaxed))),
            ("ring_bytes_sent", std::format!("{}", bytes(written.max(given)))),
            ("ring_bytes_taken", std::format!("{}", bytes(taken))),
            ("ring_bytes_waiting", std::format!("{}", bytes(waiting))),
            ("messages_queued", std::format!("{}", self.queued.load(Ordering::Relaxed))),
            ("path", locked(&self.path).clone()),
        ];
        for (name, value) in rows {
            let _ = writeln!(text, "link.{}.{name} {value}", self.id.index);
        }
    }
}
