//! One end point and its links: finds the link of each message, and wakes its node.
//!
//! ```text
//!   any link's call, or the thread --progress--> end point --token--> the link's queue, and its bell
//! ```
//! A message belongs to a link if it begins with the link's token, which only its other end was
//! told; messages without a valid token are dropped and counted.
//!
//! Never: more of a link's messages are kept than it granted; a message of one link delays
//! another's; a host that does not take its messages makes this one keep more than a little for
//! links that were left.

mod place;

pub use place::{NextMessage, StationPlace, place_at};

use super::super::path::PathEnd;
use super::credit::{Credit, CreditHead, GRANTS_MAX, HEAD_BYTES};
use crate::os::fabric::{
    FabricEndPoint, FabricError, FabricEvent, FabricPeer, ReceivedChunk, SendOutcome,
};
use crate::os::memory::ForkGuard;
use crate::os::sys::Bell;
use core::net::IpAddr;
use core::sync::atomic::{AtomicU64, Ordering};
use rustc_hash::FxHashMap;
use std::boxed::Box;
use std::collections::{BTreeMap, VecDeque};
use std::format;
use std::io;
use std::string::{String, ToString};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::vec::Vec;

/// Messages that one peer may have on their way to this end point.
pub const WINDOW: u32 = 8;
/// Receive buffers for each link.
const RECEIVES: usize = WINDOW as usize + GRANTS_MAX;
/// Send buffers for each link; the last is for grants.
const SENDS: u32 = 4;
/// Times that completions are read in one call.
const READS_PER_CALL: usize = 16;
/// Bytes of the shortest message that another host may ask for.
const MESSAGE_BYTES_MIN: u32 = 1024;
/// Most links to one address that were left with sends unfinished; beyond, it gets no new one,
/// since each has buffers. For one host with many addresses the limit is half of all links that the
/// provider has room for.
const LEAVING_MAX: usize = 8;
/// Largest window that another host may name.
const WINDOW_MAX: u32 = 1 << 16;

/// An end point and its links: see the module.
#[derive(Debug)]
pub struct Station {
    inner: Mutex<StationInner>,
    /// Polls by the thread, for a provider without a descriptor.
    naps: AtomicU64,
    guard: Arc<ForkGuard>,
}

#[derive(Debug)]
struct StationInner {
    end: FabricEndPoint,
    /// By token: random numbers of this process's own, so a fast hash is safe.
    rows: FxHashMap<u64, StationRow>,
    /// Links that were left with sends unfinished.
    leaving: FxHashMap<u64, LeftLink>,
    events: Vec<FabricEvent>,
    /// The library has failed: nothing comes or leaves any more.
    broken: Option<String>,
    dropped: Dropped,
}

/// Messages that belonged to no link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dropped {
    /// They began with no link's token, or were too short for one.
    pub foreign: u64,
    /// They were longer than a buffer, or did not come whole.
    pub too_long: u64,
}

#[derive(Debug)]
struct StationRow {
    bell: Bell,
    /// The bell has been rung, and not yet silenced.
    is_told: bool,
    /// The node waits until it can send more.
    waits: bool,
    /// The provider has a descriptor, but this link's node cannot watch it.
    is_unwatched: bool,
    /// `None`: the other end's address is not known yet.
    other: Option<Other>,
    queue: VecDeque<ReceivedChunk>,
    /// Messages that came before an earlier one.
    early: BTreeMap<u64, ReceivedChunk>,
    sending: u32,
    ended: Option<PathEnd>,
}

/// The rest of a link that was left: its peer, and its unfinished sends.
#[derive(Debug)]
struct LeftLink {
    peer: FabricPeer,
    host: IpAddr,
    identity: Box<str>,
    sending: u32,
}

#[derive(Debug)]
struct Other {
    peer: FabricPeer,
    token: u64,
    credit: Credit,
    data_bytes: usize,
    /// The other end sends first. Providers connect with the first message, and if two connect to
    /// one another at once, both connections may fail.
    is_first: bool,
}

impl StationRow {
    /// Takes a message of the bound other end, or gives it back.
    fn take(
        &mut self,
        end: &mut FabricEndPoint,
        head: &CreditHead,
        has_data: bool,
        received: ReceivedChunk,
    ) {
        let Some(other) = &mut self.other else { return end.give_back(received) };
        other.is_first = false;
        let is_there = !self.early.is_empty() && self.early.contains_key(&head.before);
        match other.credit.take(head, has_data, is_there) {
            // Most messages come in order.
            Ok(()) if has_data && head.before == other.credit.came() => {
                other.credit.has_come();
                self.queue.push_back(received);
            }
            Ok(()) if has_data => drop(self.early.insert(head.before, received)),
            Ok(()) => end.give_back(received),
            Err(violation) => {
                self.ended.get_or_insert(PathEnd::Nonsense(violation.0.into()));
                end.give_back(received);
            }
        }
        while !self.early.is_empty()
            && let Some(next) = self.early.remove(&other.credit.came())
        {
            other.credit.has_come();
            self.queue.push_back(next);
        }
    }

    /// Whether the other end is due a grant.
    fn owes_grant(&self) -> bool {
        self.other.as_ref().is_some_and(|other| other.credit.grant_is_due())
    }

    fn tell(&mut self) {
        if !self.is_told {
            self.is_told = true;
            self.bell.ring();
        }
    }
}

impl Station {
    /// For an end point.
    pub fn new(end: FabricEndPoint) -> io::Result<Self> {
        let guard = Arc::new(ForkGuard::new()?);
        let inner = StationInner {
            end,
            rows: FxHashMap::default(),
            leaving: FxHashMap::default(),
            events: Vec::new(),
            broken: None,
            dropped: Dropped::default(),
        };
        Ok(Self { inner: Mutex::new(inner), naps: AtomicU64::new(0), guard })
    }

    fn lock(&self) -> MutexGuard<'_, StationInner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the library has failed; then there are no new links here.
    pub fn is_broken(&self) -> bool {
        self.lock().broken.is_some()
    }

    /// A place for one more link to the host of this address, with this identity, proven or still
    /// to be proved.
    pub fn reserve(self: &Arc<Self>, host: IpAddr, identity: &str) -> Result<StationPlace, String> {
        let bell = Bell::new().and_then(|bell| Ok((bell.try_clone()?, bell)));
        let (own, bell) = bell.map_err(|e| format!("making an event descriptor: {e}"))?;
        let mut bytes = [0; 8];
        getrandom::fill(&mut bytes).map_err(|e| format!("asking for random bytes: {e}"))?;
        let token = u64::from_ne_bytes(bytes);
        let mut inner = self.lock();
        if let Some(why) = &inner.broken {
            return Err(why.clone());
        }
        if inner.rows.contains_key(&token) || inner.leaving.contains_key(&token) {
            return Err("two random numbers are the same".to_string());
        }
        inner.look_after_left(host, identity)?;
        inner.make_room()?;
        let descriptor = inner.end.descriptor().map(|fd| fd.try_clone_to_owned()).transpose();
        let descriptor = descriptor.map_err(|e| format!("copying a descriptor: {e}"))?;
        let row = StationRow {
            bell: own,
            is_told: false,
            waits: false,
            is_unwatched: false,
            other: None,
            queue: VecDeque::new(),
            early: BTreeMap::new(),
            sending: 0,
            ended: None,
        };
        inner.rows.insert(token, row);
        let (station, guard) = (self.clone(), self.guard.clone());
        let identity = identity.into();
        Ok(StationPlace { station, guard, token, host, identity, bell, descriptor, held: None })
    }

    /// Polls the library for nodes without a wake-up. Returns whether anything came; `None`: no
    /// node needs it.
    pub fn nap(&self) -> Option<bool> {
        let mut inner = self.lock();
        let is_watched = match inner.end.descriptor() {
            Some(_) => !inner.rows.values().any(|row| row.is_unwatched),
            None => inner.rows.is_empty(),
        };
        if is_watched {
            return None;
        }
        self.naps.fetch_add(1, Ordering::Relaxed);
        Some(inner.progress(None))
    }
}

impl StationInner {
    /// Checks the limits on links to a host that were left with sends unfinished, after taking
    /// completions, since no other code waits for these. An error: the reason why the host gets no
    /// new link.
    fn look_after_left(&mut self, host: IpAddr, identity: &str) -> Result<(), String> {
        if self.leaving.is_empty() {
            return Ok(());
        }
        self.progress(None);
        let (receives_max, sends_max) = self.end.most();
        let links_max = (receives_max / RECEIVES).min(sends_max / SENDS as usize);
        let of = |is_its: &dyn Fn(&LeftLink) -> bool| {
            self.leaving.values().filter(|left| is_its(left)).count()
        };
        let of_host = of(&|left| left.host == host);
        let of_identity = of(&|left| *left.identity == *identity);
        let (whose, many, most) = if of_host >= LEAVING_MAX {
            (host.to_string(), of_host, LEAVING_MAX)
        } else if of_identity >= links_max.div_ceil(2) {
            (format!("hosts called {identity}"), of_identity, links_max.div_ceil(2))
        } else {
            return Ok(());
        };
        Err(format!(
            "of {many} links to {whose} that have ended the provider still has something to send, and it \
             may be {most} at a time"
        ))
    }

    /// Makes buffers for one more link, within the provider's limits.
    fn make_room(&mut self) -> Result<(), String> {
        let links = self.rows.len() + self.leaving.len() + 1;
        let receives = links * RECEIVES;
        let sends = links * SENDS as usize;
        let (receives_max, sends_max) = self.end.most();
        if receives > receives_max || sends > sends_max {
            return Err(format!(
                "{links} links need {receives} receives and {sends} sends at a time, and the provider \
                 takes {receives_max} and {sends_max}"
            ));
        }
        while self.end.receives() < receives {
            let grown = self.end.grow(RECEIVES, SENDS as usize);
            grown.map_err(|e| e.to_string())?;
        }
        if !self.end.has_posted_all() {
            return Err("the provider takes no more receives".to_string());
        }
        Ok(())
    }

    /// Takes completions, in a call of link `own`; wakes the other links' nodes. Returns whether
    /// there were any.
    fn progress(&mut self, own: Option<u64>) -> bool {
        let mut any = false;
        for _ in 0..READS_PER_CALL {
            let mut events = core::mem::take(&mut self.events);
            let polled = self.end.poll(&mut events);
            any |= !events.is_empty();
            for event in events.drain(..) {
                self.take_event(own, event);
            }
            self.events = events;
            match polled {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => {
                    self.broke(error);
                    break;
                }
            }
        }
        any
    }

    /// Sends messages that wait for room with the provider; returns whether some failed.
    fn send_unsent(&mut self) -> bool {
        let mut events = core::mem::take(&mut self.events);
        self.end.send_all_unsent(&mut events);
        let any = !events.is_empty();
        for event in events.drain(..) {
            self.take_event(None, event);
        }
        self.events = events;
        any
    }

    fn broke(&mut self, error: FabricError) {
        let why = error.to_string();
        for row in self.rows.values_mut() {
            row.ended.get_or_insert(PathEnd::Failed(why.clone()));
            row.tell();
        }
        self.leaving.clear();
        self.broken = Some(why);
    }

    fn take_event(&mut self, own: Option<u64>, event: FabricEvent) {
        match event {
            FabricEvent::Came(received) => self.take_message(own, received),
            // Or a connection of the provider's ended: TLS shows whose it was.
            FabricEvent::TooLong | FabricEvent::NotReceived => self.dropped.too_long += 1,
            FabricEvent::Sent { tag } => self.has_sent(own, tag, None),
            FabricEvent::NotSent { tag, why } => self.has_sent(own, tag, Some(why)),
            // Memory has end points of its own.
            FabricEvent::Far { .. } => {}
        }
    }

    fn has_sent(&mut self, own: Option<u64>, token: u64, failed: Option<String>) {
        if let Some(row) = self.rows.get_mut(&token) {
            row.sending -= 1;
            if let Some(why) = failed {
                row.ended.get_or_insert(PathEnd::Failed(why));
                row.tell();
            } else if row.waits && own != Some(token) {
                row.tell();
            }
            // A due grant without room is sent now.
            if row.owes_grant() {
                self.grant(token);
            }
        } else if let Some(left) = self.leaving.get_mut(&token) {
            left.sending -= 1;
            if left.sending == 0 {
                let peer = left.peer;
                self.leaving.remove(&token);
                self.end.remove(peer);
            }
        }
    }

    fn take_message(&mut self, own: Option<u64>, received: ReceivedChunk) {
        let read = CreditHead::read(received.bytes());
        let read = read.map(|(head, data)| (head, !data.is_empty()));
        let row = read.and_then(|(head, _)| self.rows.get_mut(&head.token));
        let (Some((head, has_data)), Some(row)) = (read, row) else {
            self.dropped.foreign += 1;
            return self.end.give_back(received);
        };
        if row.other.is_some() {
            row.take(&mut self.end, &head, has_data, received);
            if row.ended.is_some() {
                row.tell();
            }
        } else if row.queue.len() < WINDOW as usize {
            // It is read when the other end is bound, before all others.
            row.queue.push_back(received);
        } else {
            self.dropped.foreign += 1;
            return self.end.give_back(received);
        }
        if own != Some(head.token) && (has_data || row.waits) {
            row.tell();
        }
    }

    /// Sends one message of a link, with data that `fill` writes; `fill` returns its length, 0 for
    /// no message. Returns the length; `None`: it cannot be sent now.
    fn send(&mut self, token: u64, fill: impl FnOnce(&mut [u8]) -> usize) -> Option<usize> {
        let row = self.rows.get_mut(&token)?;
        let other = row.other.as_mut()?;
        let may_send = other.credit.may_send() && !other.is_first;
        if row.sending >= SENDS - 1 || !may_send || row.ended.is_some() {
            return None;
        }
        let head = other.credit.head(other.token);
        let most = HEAD_BYTES + other.data_bytes;
        let sent = self.end.send_with(other.peer, token, |to| {
            let (first, data) = to[..most].split_at_mut(HEAD_BYTES);
            match fill(data).min(data.len()) {
                0 => None,
                bytes => {
                    first.copy_from_slice(&head.to_bytes());
                    Some(HEAD_BYTES + bytes)
                }
            }
        });
        match sent {
            Ok(SendOutcome::Nothing) => Some(0),
            Ok(SendOutcome::Leaves(bytes)) => {
                other.credit.has_sent(&head, true);
                row.sending += 1;
                Some(bytes - HEAD_BYTES)
            }
            Ok(SendOutcome::NotNow) => None,
            Err(error) => {
                row.ended.get_or_insert(PathEnd::Failed(error.to_string()));
                row.tell();
                None
            }
        }
    }

    /// Grants a link's other end more messages, if that is due and there is room for the grant.
    fn grant(&mut self, token: u64) {
        if self.rows.get(&token).is_some_and(|row| row.sending < SENDS && row.owes_grant()) {
            self.send_head(token);
        }
    }

    /// Sends a message without data: a grant.
    fn send_head(&mut self, token: u64) {
        let Some(row) = self.rows.get_mut(&token) else { return };
        let Some(other) = &mut row.other else { return };
        let head = other.credit.head(other.token);
        match self.end.send(other.peer, token, &[&head.to_bytes()]) {
            Ok(SendOutcome::Leaves(_)) => {
                other.credit.has_sent(&head, false);
                row.sending += 1;
            }
            Ok(SendOutcome::Nothing | SendOutcome::NotNow) => {}
            Err(error) => {
                row.ended.get_or_insert(PathEnd::Failed(error.to_string()));
                row.tell();
            }
        }
    }
}
