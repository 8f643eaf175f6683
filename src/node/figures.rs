//! Figures of each link for operators while the node goes on: the other end, the traffic each way,
//! the waiting messages.
//!
//! The housekeeping thread reads them when [`stat_of`](crate::control::stat_of) asks. The count of
//! bytes taken out of a ring is in a word that its reader writes for its writer anyway; the node's
//! other figures are stored here in its long turns and before it sleeps. So they cost a message
//! nothing. For a program that makes no calls they are those of its last call, and one of them
//! shows the lack of calls.
//!
//! Never: the node waits for a reader of figures; a peer's word is used other than for printing.

use super::Node;
use super::kept::{BoundedResource, Shown};
use super::link::Link;
use super::room_waits::RoomWaits;
use crate::control::{Peer, printable};
use crate::interface::{Counters, LinkId};
use crate::link::cells::Word;
use crate::link::sleep::is_another_sleep;
use crate::os::memory::RegionWord;
use crate::os::sys;
use crate::wire::{LINE_BYTES, NodeId};
use core::fmt::Write;
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::collections::BTreeMap;
use std::string::String;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::vec::Vec;

/// More links than these are not listed; their number is.
const LINKS_LISTED_MAX: usize = 1000;

/// Counts the requests of a link that were received and have no reply yet.
#[derive(Debug)]
pub(crate) struct UnansweredRequests {
    /// One for each call; its server alone stores it.
    pub states: Arc<[AtomicU8]>,
    /// Whether a request in this state was received and has no reply yet.
    pub is_held: fn(u8) -> bool,
}

impl UnansweredRequests {
    fn count(&self) -> u64 {
        let states = self.states.iter().map(|state| state.load(Ordering::Relaxed));
        states.filter(|state| (self.is_held)(*state)).count() as u64
    }
}

/// Of one node.
#[derive(Debug)]
pub(super) struct Figures {
    counters: Arc<Counters>,
    /// The count of packets received when a look first found the current number of unanswered
    /// requests, and the time of that look; 0: no request waits.
    held_since: Mutex<(u64, u64)>,
    node: NodeId,
    /// The time when it was made, by the monotonic clock.
    made_ns: u64,
    links: Mutex<BTreeMap<u32, Arc<LinkFigures>>>,
    /// Long turns of the node.
    turns: AtomicU64,
    /// The time since when it sleeps in a call, or in its event loop, as last reported; 0: it does
    /// not.
    waits_since_ns: AtomicU64,
    /// The same for a wait that ended without an arrival, the time of its end, and the packets
    /// received by then: a program may wait in pieces.
    waited: [AtomicU64; 3],
    /// The end of the last sleep in a call; 0: it waits again since then, or sleeps in its event
    /// loop.
    slept_ns: AtomicU64,
    /// Samples that subscribers whose links have ended did not get.
    samples_dropped: AtomicU64,
    room_waits: Arc<RoomWaits>,
}

/// Of one link.
#[derive(Debug)]
pub(super) struct LinkFigures {
    id: LinkId,
    peer: Peer,
    is_ours: bool,
    path: Mutex<String>,
    /// Lines of the ring and the bulk ring that this process has taken.
    taken: [RegionWord; 2],
    /// Lines that the peer claims to have taken.
    given: [RegionWord; 2],
    written: AtomicU64,
    messages: AtomicU64,
    packets: AtomicU64,
    queued: AtomicU64,
    refused: AtomicU64,
    wakes: AtomicU64,
    ring_bytes: u64,
    made_ns: u64,
    /// The word by which the peer reports that it sleeps until there is room in its ring, and the
    /// last value for which it was woken.
    peer_room: RegionWord,
    peer_told: AtomicU64,
    /// The time when a sender here began to wait for room, and the peer's taken count at that time.
    /// Once the peer has taken more, that wait is over.
    no_room_since_ns: AtomicU64,
    no_room_given: AtomicU64,
    room_waits: Arc<RoomWaits>,
    /// The time since when a sender here finds no free buffer of the peer, and the written count at
    /// that time. Once the peer has taken more, that is over.
    no_buffer_since_ns: AtomicU64,
    no_buffer_written: AtomicU64,
    /// The same for a sender that has just given up, and the time of that: a program may wait in
    /// pieces.
    gave_up_since_ns: AtomicU64,
    gave_up_ns: AtomicU64,
    /// Of a server's link.
    held: OnceLock<UnansweredRequests>,
    /// Records that came over it, and that the program here keeps.
    kept: OnceLock<Vec<Shown>>,
    /// For a publisher's link: samples that its subscriber did not get.
    samples_dropped: OnceLock<Arc<AtomicU64>>,
}

/// The words of a link's pages that are read here.
pub(super) struct Words {
    /// Lines of the ring and the bulk ring that this process has taken.
    pub taken: [RegionWord; 2],
    /// Lines that the peer claims to have taken.
    pub given: [RegionWord; 2],
    /// The peer's room generation.
    pub peer_room: RegionWord,
}

/// The node's figures of a link at one moment.
pub(super) struct Moment {
    pub written: u64,
    pub messages: u64,
    pub packets: u64,
    pub queued: usize,
    pub refused: u64,
    pub wakes: u64,
    /// The last value of the peer's room generation for which it was woken.
    pub peer_told: u64,
}

pub(super) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn total(words: &[RegionWord; 2]) -> u64 {
    words.iter().fold(0, |sum, word| sum.wrapping_add(word.word().load(Ordering::Relaxed)))
}

/// A wait that begins so soon after another, without a message in between, continues it.
const WAITS_ON_NS: u64 = 100_000_000;

/// Milliseconds from `since_ns` until now; 0 without a beginning.
pub(super) fn ms_since(since_ns: u64) -> u64 {
    match since_ns {
        0 => 0,
        // A wait that has just begun counts, too.
        since_ns => (sys::monotonic_ns().saturating_sub(since_ns) / 1_000_000).max(1),
    }
}

impl Figures {
    pub fn new(node: NodeId, counters: Arc<Counters>) -> Self {
        Self {
            counters,
            held_since: Mutex::default(),
            node,
            made_ns: sys::monotonic_ns(),
            links: Mutex::default(),
            turns: AtomicU64::new(0),
            waits_since_ns: AtomicU64::new(0),
            waited: Default::default(),
            slept_ns: AtomicU64::new(0),
            samples_dropped: AtomicU64::new(0),
            room_waits: Arc::default(),
        }
    }

    /// A link was made.
    pub fn add(&self, link: &Link, is_ours: bool, words: Words) -> Arc<LinkFigures> {
        let Words { taken, given, peer_room } = words;
        let capacity = link.tx.as_ref().map_or(0, |tx| tx.ring.capacity());
        let of_link = Arc::new(LinkFigures {
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
            refused: AtomicU64::new(0),
            wakes: AtomicU64::new(0),
            ring_bytes: capacity * LINE_BYTES as u64,
            made_ns: sys::monotonic_ns(),
            peer_room,
            peer_told: AtomicU64::new(0),
            no_room_since_ns: AtomicU64::new(0),
            no_room_given: AtomicU64::new(0),
            room_waits: self.room_waits.clone(),
            no_buffer_since_ns: AtomicU64::new(0),
            gave_up_since_ns: AtomicU64::new(0),
            gave_up_ns: AtomicU64::new(0),
            no_buffer_written: AtomicU64::new(0),
            held: OnceLock::new(),
            kept: OnceLock::new(),
            samples_dropped: OnceLock::new(),
        });
        locked(&self.links).insert(link.id.index, of_link.clone());
        of_link
    }

    /// Requests come over a link; `held` counts those without a reply.
    pub fn show_held(&self, index: u32, held: UnansweredRequests) {
        if let Some(link) = locked(&self.links).get(&index) {
            let _ = link.held.set(held);
        }
    }

    /// The program may keep records that come over a link.
    pub fn show_kept(&self, index: u32, kept: Vec<(&'static str, Arc<dyn BoundedResource>)>) {
        if let Some(link) = locked(&self.links).get(&index) {
            let shown = kept.into_iter().map(|(what, kept)| Shown::new(what, kept));
            let _ = link.kept.set(shown.collect());
        }
    }

    /// A subscriber is at the other end of a link; `dropped` counts the samples that it did not
    /// get.
    pub fn show_dropped(&self, index: u32, dropped: Arc<AtomicU64>) {
        if let Some(link) = locked(&self.links).get(&index) {
            let _ = link.samples_dropped.set(dropped);
        }
    }

    /// A lower bound of the age of the oldest of `held` requests, in milliseconds: no request has
    /// been received since an earlier look. 0: unknown.
    fn held_ms(&self, held: u64) -> u64 {
        // Read after the requests were counted, so that theirs are among these packets.
        let received = self.counters.packets();
        let mut since = locked(&self.held_since);
        match *since {
            (then, since_ns) if held > 0 && then == received && since_ns != 0 => ms_since(since_ns),
            _ => {
                *since = (received, if held > 0 { sys::monotonic_ns() } else { 0 });
                0
            }
        }
    }

    /// A link has ended: its memory is no longer kept.
    pub fn remove(&self, index: u32) {
        if let Some(link) = locked(&self.links).remove(&index) {
            self.samples_dropped.fetch_add(link.samples_dropped(), Ordering::Relaxed);
        }
    }

    /// A long turn of the node; its next steps are no waiting.
    pub fn turned(&self) {
        self.turns.store(self.turns.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        let since_ns = self.waits_since_ns.load(Ordering::Relaxed);
        if since_ns != 0 {
            let over_ns = match self.slept_ns.load(Ordering::Relaxed) {
                0 => sys::monotonic_ns(),
                slept_ns => slept_ns,
            };
            let waited = [since_ns, over_ns, self.counters.packets()];
            for (word, value) in self.waited.iter().zip(waited) {
                word.store(value, Ordering::Relaxed);
            }
            self.waits_since_ns.store(0, Ordering::Relaxed);
        }
    }

    /// A sleep in a call is over.
    pub fn slept(&self) {
        self.slept_ns.store(sys::monotonic_ns(), Ordering::Relaxed);
    }

    /// The node is about to wait: again, or still.
    pub fn waits(&self) {
        let slept_ns = self.slept_ns.load(Ordering::Relaxed);
        if slept_ns == 0 && self.waits_since_ns.load(Ordering::Relaxed) != 0 {
            return;
        }
        let now_ns = sys::monotonic_ns();
        self.slept_ns.store(0, Ordering::Relaxed);
        // Its program has done other work meanwhile, with or without a long turn in between.
        if slept_ns != 0 && now_ns.saturating_sub(slept_ns) >= WAITS_ON_NS {
            self.awake();
        }
        if self.waits_since_ns.load(Ordering::Relaxed) == 0 {
            let [since_ns, over_ns, packets] = &self.waited;
            let goes_on = now_ns.saturating_sub(over_ns.load(Ordering::Relaxed)) < WAITS_ON_NS
                && packets.load(Ordering::Relaxed) == self.counters.packets();
            let since_ns = if goes_on { since_ns.load(Ordering::Relaxed) } else { now_ns };
            self.waits_since_ns.store(since_ns, Ordering::Relaxed);
        }
    }

    /// A packet has come: the wait is over. Messages that are taken right after that take no long
    /// turn.
    pub fn awake(&self) {
        self.waited[1].store(0, Ordering::Relaxed);
        self.waits_since_ns.store(0, Ordering::Relaxed);
    }

    /// Lines of a name, a space and a value each.
    pub fn text(&self, text: &mut String) {
        let turns = self.turns.load(Ordering::Relaxed);
        let since_ns = self.waits_since_ns.load(Ordering::Relaxed);
        let waits = u64::from(since_ns != 0);
        let user = rustix::process::geteuid().as_raw();
        let _ = write!(
            text,
            "node {}\nversion {}\nuser {user}\nprocess {}\nuptime_ms {}\nwaiting_ms {}\n",
            self.node,
            env!("CARGO_PKG_VERSION"),
            std::process::id(),
            ms_since(self.made_ns),
            ms_since(since_ns),
        );
        // Links come and go while this is written: they do not wait for it.
        let (links, gone): (Vec<Arc<LinkFigures>>, u64) = {
            let links = locked(&self.links);
            // The counts of a link that goes meanwhile are in one of the two.
            (links.values().cloned().collect(), self.samples_dropped.load(Ordering::Relaxed))
        };
        let count = links.len();
        let _ = write!(text, "turns {turns}\nwaits {waits}\nlinks {count}\n");
        let held = links.iter().filter_map(|link| link.held.get());
        let held = held.fold(0, |sum: u64, held| sum.saturating_add(held.count()));
        let _ = write!(text, "requests_held {held}\nrequests_held_ms {}\n", self.held_ms(held));
        let dropped =
            links.iter().fold(gone, |sum, link| sum.saturating_add(link.samples_dropped()));
        let _ = writeln!(text, "samples_dropped {dropped}");
        self.room_waits.text(text);
        for link in links.iter().take(LINKS_LISTED_MAX) {
            link.text(text);
        }
    }
}

impl Node {
    /// For a link over which requests come: the counter of requests without a reply.
    pub(crate) fn show_held(&self, id: LinkId, held: UnansweredRequests) {
        self.figures.show_held(id.index, held);
    }

    /// For a link to a receiver: counters of the records it keeps, by name.
    pub(crate) fn show_kept(
        &self,
        id: LinkId,
        kept: Vec<(&'static str, Arc<dyn BoundedResource>)>,
    ) {
        self.figures.show_kept(id.index, kept);
    }

    /// For a link to a subscriber: the counter of samples that it did not get.
    pub(crate) fn show_dropped(&self, id: LinkId, dropped: Arc<AtomicU64>) {
        self.figures.show_dropped(id.index, dropped);
    }

    /// Whether a sender over this link waits until its receiver's program releases something.
    #[cold]
    pub(crate) fn waits_for_buffer(&self, id: LinkId, waits: bool) {
        if let Ok(link) = self.link(id) {
            link.waits_for_buffer(waits);
        }
    }
}

impl LinkFigures {
    /// Stores the current figures. Seven stores.
    pub fn publish(&self, now: Moment) {
        self.written.store(now.written, Ordering::Relaxed);
        self.messages.store(now.messages, Ordering::Relaxed);
        self.packets.store(now.packets, Ordering::Relaxed);
        self.queued.store(now.queued as u64, Ordering::Relaxed);
        self.refused.store(now.refused, Ordering::Relaxed);
        self.wakes.store(now.wakes, Ordering::Relaxed);
        self.peer_told.store(now.peer_told, Ordering::Relaxed);
        if self.no_room_since_ns.load(Ordering::Relaxed) != 0 {
            self.see_room();
        }
    }

    /// If a sender waited for room and the peer has taken lines since, that wait is over.
    #[cold]
    fn see_room(&self) {
        if self.no_room_given.load(Ordering::Relaxed) != total(&self.given) {
            let since_ns = self.no_room_since_ns.swap(0, Ordering::Relaxed);
            self.room_waits.record(sys::monotonic_ns().saturating_sub(since_ns));
        }
    }

    /// A sender here is about to wait until the peer has taken something.
    pub fn waits_for_room(&self) {
        let given = total(&self.given);
        if self.no_room_since_ns.load(Ordering::Relaxed) != 0 {
            self.see_room();
        }
        let before = self.no_room_since_ns.load(Ordering::Relaxed);
        if before == 0 {
            self.no_room_given.store(given, Ordering::Relaxed);
            self.no_room_since_ns.store(sys::monotonic_ns(), Ordering::Relaxed);
        }
    }

    /// A sender here waits until the peer has released something, `written` lines after the link
    /// was made.
    pub fn waits_for_buffer(&self, written: u64) {
        let since_ns = self.no_buffer_since_ns.load(Ordering::Relaxed);
        let is_new = self.no_buffer_written.swap(written, Ordering::Relaxed) != written;
        if since_ns != 0 && !is_new {
            return;
        }
        let now_ns = sys::monotonic_ns();
        let gave_up_ns = self.gave_up_ns.load(Ordering::Relaxed);
        let goes_on = !is_new && now_ns.saturating_sub(gave_up_ns) < WAITS_ON_NS;
        let since_ns = match self.gave_up_since_ns.swap(0, Ordering::Relaxed) {
            since_ns if goes_on && since_ns != 0 => since_ns,
            _ => now_ns,
        };
        self.no_buffer_since_ns.store(since_ns, Ordering::Relaxed);
    }

    /// The peer has released something, or the sender has given up.
    pub fn waits_no_more(&self) {
        let since_ns = self.no_buffer_since_ns.swap(0, Ordering::Relaxed);
        if since_ns != 0 {
            self.gave_up_since_ns.store(since_ns, Ordering::Relaxed);
            self.gave_up_ns.store(sys::monotonic_ns(), Ordering::Relaxed);
        }
    }

    fn samples_dropped(&self) -> u64 {
        self.samples_dropped.get().map_or(0, |dropped| dropped.load(Ordering::Relaxed))
    }

    /// The path of its messages, and the reason for it.
    pub fn explain(&self, path: String) {
        *locked(&self.path) = path;
    }

    fn text(&self, text: &mut String) {
        let bytes = |lines: u64| lines.saturating_mul(LINE_BYTES as u64);
        let (taken, given) = (total(&self.taken), total(&self.given));
        // The peer's word may be any value; the node's own is of its last turn, and may lag behind:
        // a program that sends and makes no other call has no turns.
        let written = self.written.load(Ordering::Relaxed);
        let waiting = written.saturating_sub(given);
        let number =
            |number: Option<u32>| number.map_or(String::from("unknown"), |n| std::format!("{n}"));
        let no_room_since_ns = match self.no_room_given.load(Ordering::Relaxed) == given {
            true => self.no_room_since_ns.load(Ordering::Relaxed),
            false => 0,
        };
        let no_buffer_since_ns = match given <= self.no_buffer_written.load(Ordering::Relaxed) {
            true => self.no_buffer_since_ns.load(Ordering::Relaxed),
            false => 0,
        };
        // A peer that sleeps until there is room has changed its word, and has not been woken for
        // that.
        let peer_room = self.peer_room.word().load(Ordering::Relaxed);
        let peer_waits = is_another_sleep(peer_room, self.peer_told.load(Ordering::Relaxed));
        let host = self.peer.host.as_ref();
        let host =
            host.map(|host| std::format!("{} ({})", host.address, printable(&host.identity)));
        let rows: [(&str, String); 20] = [
            ("peer_host", host.unwrap_or_default()),
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
            ("ring_bytes", std::format!("{}", self.ring_bytes)),
            ("packets_refused", std::format!("{}", self.refused.load(Ordering::Relaxed))),
            ("wakes_sent", std::format!("{}", self.wakes.load(Ordering::Relaxed))),
            ("waits_for_room_ms", std::format!("{}", ms_since(no_room_since_ns))),
            ("waits_for_buffer_ms", std::format!("{}", ms_since(no_buffer_since_ns))),
            ("peer_waits_for_room", std::format!("{}", u64::from(peer_waits))),
            ("age_ms", std::format!("{}", ms_since(self.made_ns))),
            ("path", locked(&self.path).clone()),
        ];
        for (name, value) in rows {
            let _ = writeln!(text, "link.{}.{name} {value}", self.id.index);
        }
        if let Some(held) = self.held.get() {
            let _ = writeln!(text, "link.{}.requests_held {}", self.id.index, held.count());
        }
        if let Some(dropped) = self.samples_dropped.get() {
            let dropped = dropped.load(Ordering::Relaxed);
            let _ = writeln!(text, "link.{}.samples_dropped {dropped}", self.id.index);
        }
        for shown in self.kept.get().into_iter().flatten() {
            shown.text(self.id.index, text);
        }
    }
}
