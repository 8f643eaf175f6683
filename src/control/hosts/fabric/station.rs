//! One end point and the links over it: whose each message is, and who is told of it.
//!
//! ```text
//!   any link's call, or the thread --progress--> end point --token--> the link's queue, and its bell
//! ```
//! A message is a link's if it begins with the link's token, which nobody else was told; what begins
//! with no link's is dropped and counted.
//!
//! Never: more of a link's messages lie here than it granted; a message of one link holds up another's; a
//! host that does not take what is sent to it has this keep more than a little for links that were left.

mod place;

pub use place::{Next, Place};

use super::super::channel::Ended;
use super::credit::{Credit, GRANTS_MAX, HEAD_BYTES, Head};
use crate::os::fabric::{EndPoint, Event, FabricError, Peer, Received, Sent};
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
/// Buffers to receive in, for each link.
const RECEIVES: usize = WINDOW as usize + GRANTS_MAX;
/// Buffers to send from, for each link; the last is for grants.
const SENDS: u32 = 4;
/// Times that completions are read in one call.
const READS_PER_CALL: usize = 16;
/// Bytes of the shortest message that another host may ask for.
const MESSAGE_BYTES_MIN: u32 = 1024;
/// Links to one address of which something is on its way though they were left, beyond which it gets no
/// other: each has buffers. Whoever has many addresses has half of all the links that the provider has room
/// for.
const LEAVING_MAX: usize = 8;
/// Largest window that another host may name.
const WINDOW_MAX: u32 = 1 << 16;

/// See the module.
#[derive(Debug)]
pub struct Station {
    inner: Mutex<Inner>,
    /// Naps of the thread, where the provider has no descriptor to wait for.
    naps: AtomicU64,
    guard: Arc<ForkGuard>,
}

#[derive(Debug)]
struct Inner {
    end: EndPoint,
    /// By token: random numbers of this process's own, so that they need no strong hash.
    rows: FxHashMap<u64, Row>,
    /// Links that were left while something was on its way from here.
    leaving: FxHashMap<u64, Left>,
    events: Vec<Event>,
    /// Nothing comes or leaves any more.
    broken: Option<String>,
    dropped: Dropped,
}

/// Messages that were no link's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dropped {
    /// They began with no link's token, or were too short for one.
    pub foreign: u64,
    /// They were longer than a buffer, or did not come whole.
    pub too_long: u64,
}

#[derive(Debug)]
struct Row {
    bell: Bell,
    /// The bell has been rung, and not been heard.
    is_told: bool,
    /// Somebody waits until more can be sent.
    waits: bool,
    /// The provider has a descriptor, and this link's node cannot watch it.
    is_unwatched: bool,
    /// `None`: the other end has yet to say where it is.
    other: Option<Other>,
    queue: VecDeque<Received>,
    /// Messages before which one is still on its way.
    early: BTreeMap<u64, Received>,
    sending: u32,
    ended: Option<Ended>,
}

/// What is left of one: whom it led to, and how much is still on its way.
#[derive(Debug)]
struct Left {
    peer: Peer,
    host: IpAddr,
    identity: Box<str>,
    sending: u32,
}

#[derive(Debug)]
struct Other {
    peer: Peer,
    token: u64,
    credit: Credit,
    data_bytes: usize,
    /// It sends first. Providers connect with the first message, and two that do so to one another at once
    /// may break both.
    is_first: bool,
}

impl Row {
    /// A message of the other end, which has said who it is: taken, or to be given back.
    fn take(&mut self, end: &mut EndPoint, head: &Head, has_data: bool, received: Received) {
        let Some(other) = &mut self.other else { return end.give_back(received) };
        other.is_first = false;
        let is_there = !self.early.is_empty() && self.early.contains_key(&head.before);
        match other.credit.take(head, has_data, is_there) {
            // Most come in order.
            Ok(()) if has_data && head.before == other.credit.came() => {
                other.credit.has_come();
                self.queue.push_back(received);
            }
            Ok(()) if has_data => drop(self.early.insert(head.before, received)),
            Ok(()) => end.give_back(received),
            Err(violation) => {
                self.ended.get_or_insert(Ended::Nonsense(violation.0.into()));
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

    /// The other end is to be told that it may send more.
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
    /// Around an end point.
    pub fn new(end: EndPoint) -> io::Result<Self> {
        let guard = Arc::new(ForkGuard::new()?);
        let inner = Inner {
            end,
            rows: FxHashMap::default(),
            leaving: FxHashMap::default(),
            events: Vec::new(),
            broken: None,
            dropped: Dropped::default(),
        };
        Ok(Self { inner: Mutex::new(inner), naps: AtomicU64::new(0), guard })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The library has failed: there are no more links here.
    pub fn is_broken(&self) -> bool {
        self.lock().broken.is_some()
    }

    /// A place for one more link to the host of this address, by what it has proved to be, or is to prove.
    pub fn reserve(self: &Arc<Self>, host: IpAddr, identity: &str) -> Result<Place, String> {
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
        let row = Row {
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
        Ok(Place { station, guard, token, host, identity, bell, descriptor, held: None })
    }

    /// Moves what the library has, where somebody is not woken for it. Whether something came; `None`: there
    /// is nobody to do it for, or whoever it is for is woken.
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

impl Inner {
    /// Whether there is no more than a little on its way to a host over links that were left, of which nobody
    /// else looks whether it has left. An error: why it gets no other.
    fn look_after_left(&mut self, host: IpAddr, identity: &str) -> Result<(), String> {
        if self.leaving.is_empty() {
            return Ok(());
        }
        self.progress(None);
        let (receives_max, sends_max) = self.end.most();
        let links_max = (receives_max / RECEIVES).min(sends_max / SENDS as usize);
        let of = |is_its: &dyn Fn(&Left) -> bool| {
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

    /// Buffers for one more link, of those that the provider takes.
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

    /// Takes what has been completed, on behalf of link `own`: the others are told. Whether there was
    /// something.
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

    /// Sends what waits for room with the provider; whether that failed for some.
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
            row.ended.get_or_insert(Ended::Failed(why.clone()));
            row.tell();
        }
        self.leaving.clear();
        self.broken = Some(why);
    }

    fn take_event(&mut self, own: Option<u64>, event: Event) {
        match event {
            Event::Came(received) => self.take_message(own, received),
            // Or a connection of the provider's ended: whose it was is told by TLS.
            Event::TooLong | Event::NotReceived(_) => self.dropped.too_long += 1,
            Event::Sent { tag } => self.has_sent(own, tag, None),
            Event::NotSent { tag, why } => self.has_sent(own, tag, Some(why)),
            // Memory has end points of its own.
            Event::Far { .. } => {}
        }
    }

    fn has_sent(&mut self, own: Option<u64>, token: u64, failed: Option<String>) {
        if let Some(row) = self.rows.get_mut(&token) {
            row.sending -= 1;
            if let Some(why) = failed {
                row.ended.get_or_insert(Ended::Failed(why));
                row.tell();
            } else if row.waits && own != Some(token) {
                row.tell();
            }
            // There was no room for it when it became due.
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

    fn take_message(&mut self, own: Option<u64>, received: Received) {
        let read = Head::read(received.bytes());
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
            // Looked at when the other end has said who it is, which it does first of all.
            row.queue.push_back(received);
        } else {
            self.dropped.foreign += 1;
            return self.end.give_back(received);
        }
        if own != Some(head.token) && (has_data || row.waits) {
            row.tell();
        }
    }

    /// Sends one message of a link, with what `fill` writes into it: a number of bytes, of which none mean
    /// that there is none. How many; `None`: it cannot be now.
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
            Ok(Sent::Nothing) => Some(0),
            Ok(Sent::Leaves(bytes)) => {
                other.credit.has_sent(&head, true);
                row.sending += 1;
                Some(bytes - HEAD_BYTES)
            }
            Ok(Sent::NotNow) => None,
            Err(error) => {
                row.ended.get_or_insert(Ended::Failed(error.to_string()));
                row.tell();
                None
            }
        }
    }

    /// Tells a link's other end that it may send more, where that is due and there is room for it.
    fn grant(&mut self, token: u64) {
        if self.rows.get(&token).is_some_and(|row| row.sending < SENDS && row.owes_grant()) {
            self.send_head(token);
        }
    }

    /// Sends a message of no data: what may be sent here.
    fn send_head(&mut self, token: u64) {
        let Some(row) = self.rows.get_mut(&token) else { return };
        let Some(other) = &mut row.other else { return };
        let head = other.credit.head(other.token);
        match self.end.send(other.peer, token, &[&head.to_bytes()]) {
            Ok(Sent::Leaves(_)) => {
                other.credit.has_sent(&head, false);
                row.sending += 1;
            }
            Ok(Sent::Nothing | Sent::NotNow) => {}
            Err(error) => {
                row.ended.get_or_insert(Ended::Failed(error.to_string()));
                row.tell();
            }
        }
    }
}
