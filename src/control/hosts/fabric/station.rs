//! One end point and the links over it: whose each message is, and who is told of it.
//!
//! ```text
//!   any link's call, or the thread --progress--> end point --token--> the link's queue, and its bell
//! ```
//! A message is a link's if it begins with the link's token, which nobody else was told; what begins
//! with no link's is dropped and counted.
//!
//! Never: more of a link's messages lie here than it granted; a message of one link holds up another's.

use super::super::channel::Ended;
use super::super::hello::Offer;
use super::credit::{Credit, GRANTS_MAX, HEAD_BYTES, Head};
use crate::os::fabric::library::MESSAGE_BYTES;
use crate::os::fabric::{Choice, EndPoint, Event, FabricError, Peer, Received, Sent};
use crate::os::memory::ForkGuard;
use crate::os::sys::Bell;
use core::net::IpAddr;
use core::sync::atomic::{AtomicU64, Ordering};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::format;
use std::io;
use std::os::fd::OwnedFd;
use std::string::{String, ToString};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::vec::Vec;

/// Messages that one peer may have on their way to this end point.
pub const WINDOW: u32 = 8;
/// Buffers to send from, for each link; the last is for grants.
const SENDS: u32 = 4;
/// Times that completions are read in one call.
const READS_PER_CALL: usize = 16;
/// Bytes of the shortest message that another host may ask for.
const MESSAGE_BYTES_MIN: u32 = 1024;
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
    rows: HashMap<u64, Row>,
    /// Links that were left while something was on its way from here.
    leaving: HashMap<u64, (Peer, u32)>,
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
    /// `None`: the other end has yet to say where it is.
    other: Option<Other>,
    queue: VecDeque<Received>,
    /// Messages before which one is still on its way.
    early: BTreeMap<u64, Received>,
    sending: u32,
    ended: Option<Ended>,
}

#[derive(Debug)]
struct Other {
    peer: Peer,
    token: u64,
    credit: Credit,
    data_bytes: usize,
}

impl Row {
    /// A message of the other end, which has said who it is: taken, or to be given back.
    fn take(&mut self, end: &mut EndPoint, head: &Head, has_data: bool, received: Received) {
        let Some(other) = &mut self.other else { return end.give_back(received) };
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
            rows: HashMap::new(),
            leaving: HashMap::new(),
            events: Vec::new(),
            broken: None,
            dropped: Dropped::default(),
        };
        Ok(Self { inner: Mutex::new(inner), naps: AtomicU64::new(0), guard })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for one more link.
    pub fn reserve(self: &Arc<Self>) -> Result<Place, String> {
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
        inner.make_room()?;
        let descriptor = inner.end.descriptor().map(|fd| fd.try_clone_to_owned()).transpose();
        let descriptor = descriptor.map_err(|e| format!("copying a descriptor: {e}"))?;
        let row = Row {
            bell: own,
            is_told: false,
            waits: false,
            other: None,
            queue: VecDeque::new(),
            early: BTreeMap::new(),
            sending: 0,
            ended: None,
        };
        inner.rows.insert(token, row);
        let (station, guard) = (self.clone(), self.guard.clone());
        Ok(Place { station, guard, token, bell, descriptor, held: None })
    }

    /// Moves what the library has, where nobody is woken for it. Whether something came; `None`: there
    /// is nobody to do it for, or whoever it is for is woken.
    pub fn nap(&self) -> Option<bool> {
        let mut inner = self.lock();
        if inner.end.descriptor().is_some() || (inner.rows.is_empty() && inner.leaving.is_empty()) {
            return None;
        }
        self.naps.fetch_add(1, Ordering::Relaxed);
        Some(inner.progress(None))
    }
}

impl Inner {
    /// Buffers for one more link, of those that the provider takes.
    fn make_room(&mut self) -> Result<(), String> {
        let links = self.rows.len() + self.leaving.len() + 1;
        let receives = links * (WINDOW as usize + GRANTS_MAX);
        let sends = links * SENDS as usize;
        let (receives_max, sends_max) = self.end.most();
        if receives > receives_max || sends > sends_max {
            return Err(format!(
                "{links} links need {receives} receives and {sends} sends at a time, and the provider \
                 takes {receives_max} and {sends_max}"
            ));
        }
        while self.end.receives() < receives {
            let grown = self.end.grow(WINDOW as usize + GRANTS_MAX, SENDS as usize);
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
            row.ended.get_or_insert(Ended::Broken(why.clone()));
            row.tell();
        }
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
                row.ended.get_or_insert(Ended::Broken(why));
                row.tell();
            } else if row.waits && own != Some(token) {
                row.tell();
            }
        } else if let Some((peer, sending)) = self.leaving.get_mut(&token) {
            *sending -= 1;
            if *sending == 0 {
                let peer = *peer;
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
        if row.sending >= SENDS - 1 || !other.credit.may_send() || row.ended.is_some() {
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
                row.ended.get_or_insert(Ended::Broken(error.to_string()));
                None
            }
        }
    }

    /// Tells a link's other end that it may send more, where that is due and there is room for it.
    fn grant(&mut self, token: u64) {
        let Some(row) = self.rows.get_mut(&token) else { return };
        let Some(other) = row.other.as_mut().filter(|other| other.credit.grant_is_due()) else {
            return;
        };
        if row.sending >= SENDS {
            return;
        }
        let head = other.credit.head(other.token);
        match self.end.send(other.peer, token, &[&head.to_bytes()]) {
            Ok(Sent::Leaves(_)) => {
                other.credit.has_sent(&head, false);
                row.sending += 1;
            }
            Ok(Sent::Nothing | Sent::NotNow) => {}
            Err(error) => {
                row.ended.get_or_insert(Ended::Broken(error.to_string()));
            }
        }
    }
}

/// A link's place at an end point, given back when it is dropped.
#[derive(Debug)]
pub struct Place {
    station: Arc<Station>,
    token: u64,
    bell: Bell,
    descriptor: Option<OwnedFd>,
    /// A message that is being read, and how many of its bytes have been.
    held: Option<(Received, usize)>,
    guard: Arc<ForkGuard>,
}

impl Place {
    /// What is rung when something came for the link in another's call, and what is readable when
    /// something may have come at all, if the provider has that.
    pub fn tellers(&self) -> (&Bell, Option<&OwnedFd>) {
        (&self.bell, self.descriptor.as_ref())
    }

    /// There is something for the node, of which no message tells it.
    pub fn tell(&self) {
        if let Some(row) = self.station.lock().rows.get_mut(&self.token) {
            row.tell();
        }
    }

    /// The provider's descriptor cannot be watched: the thread looks instead.
    pub fn forget_descriptor(&mut self) {
        self.descriptor = None;
    }

    /// What end points for memory are made of, with the same provider at this address; or why there are none.
    pub fn choose_for_memory(&self, own: IpAddr) -> Result<Choice, String> {
        let (library, provider, has_sockets) = {
            let inner = self.station.lock();
            let choice = inner.end.choice();
            (choice.library().clone(), choice.provider(), choice.has_socket_addresses())
        };
        let own = has_sockets.then_some(own);
        library.choose_for_memory(&provider, own).map_err(|e| e.to_string())
    }

    /// What the other end is to know.
    pub fn offer(&self) -> Offer {
        let inner = self.station.lock();
        let choice = inner.end.choice();
        Offer {
            protocol: choice.protocol(),
            format: choice.format(),
            address: inner.end.address().to_vec(),
            token: self.token,
            window: WINDOW,
            message_bytes: MESSAGE_BYTES as u32,
        }
    }

    /// Whether where it is is the address of a socket.
    pub fn has_socket_addresses(&self) -> bool {
        self.station.lock().end.choice().has_socket_addresses()
    }

    /// The other end has said where it is. The address is used as it is.
    pub fn bind(&mut self, offer: &Offer) -> Result<(), String> {
        let mut inner = self.station.lock();
        let inner = &mut *inner;
        let choice = inner.end.choice();
        if offer.protocol != choice.protocol() || offer.format != choice.format() {
            return Err(format!(
                "the other host speaks protocol {}.{} with addresses of form {}, and this one {}.{} \
                 with form {} (provider {})",
                offer.protocol.0,
                offer.protocol.1,
                offer.format,
                choice.protocol().0,
                choice.protocol().1,
                choice.format(),
                choice.provider()
            ));
        }
        if offer.address == inner.end.address() {
            return Err("the other end is this one".to_string());
        }
        if !(1..=WINDOW_MAX).contains(&offer.window) || offer.message_bytes < MESSAGE_BYTES_MIN {
            return Err(format!(
                "the other host offers {} messages of {} bytes; allowed are 1 to {WINDOW_MAX} of \
                 {MESSAGE_BYTES_MIN} or more",
                offer.window, offer.message_bytes
            ));
        }
        let Some(row) = inner.rows.get_mut(&self.token) else { return Err("it is gone".into()) };
        let peer = inner.end.insert(&offer.address).map_err(|e| e.to_string())?;
        let data_bytes = MESSAGE_BYTES.min(offer.message_bytes as usize) - HEAD_BYTES;
        let credit = Credit::new(WINDOW, offer.window);
        row.other = Some(Other { peer, token: offer.token, credit, data_bytes });
        // What came before this end knew of it.
        let before: Vec<Received> = row.queue.drain(..).collect();
        for received in before {
            let read = Head::read(received.bytes());
            match read.map(|(head, data)| (head, !data.is_empty())) {
                Some((head, has_data)) => row.take(&mut inner.end, &head, has_data, received),
                None => inner.end.give_back(received),
            }
        }
        Ok(())
    }

    /// What is left of the message that is being read.
    pub fn bytes(&self) -> &[u8] {
        self.held.as_ref().map_or(&[], |(message, used)| &message.bytes()[*used..])
    }

    /// So many bytes of it have been read.
    pub fn take(&mut self, bytes: usize) {
        if let Some((message, used)) = &mut self.held {
            *used += bytes;
            debug_assert!(*used <= message.bytes().len());
        }
    }

    /// Goes on to the next message, if there is one: its bytes are [`bytes`](Self::bytes), and those of the
    /// last are gone. Lets the other end send more. How many bytes, and whether it is the last that lay here.
    pub fn next_message(&mut self) -> (usize, bool) {
        let mut inner = self.station.lock();
        let inner = &mut *inner;
        let Some(row) = inner.rows.get_mut(&self.token) else { return (0, true) };
        if let Some((message, _)) = self.held.take() {
            inner.end.give_back(message);
            if let Some(other) = &mut row.other {
                other.credit.has_used();
            }
        }
        if row.queue.is_empty() {
            inner.progress(Some(self.token));
        }
        let Some(row) = inner.rows.get_mut(&self.token) else { return (0, true) };
        if core::mem::take(&mut row.is_told) {
            row.bell.silence();
        }
        self.held = row.queue.pop_front().map(|message| (message, HEAD_BYTES));
        let is_last = row.queue.is_empty();
        inner.grant(self.token);
        (self.bytes().len(), is_last)
    }

    /// Sends a message of what `fill` writes, given room for as many bytes as a message of the link's
    /// has; it says how many it has written. How many were sent; `None`: it cannot be now.
    pub fn send_with(&self, fill: &mut dyn FnMut(&mut [u8]) -> usize) -> Option<usize> {
        let mut inner = self.station.lock();
        let mut sent = inner.send(self.token, &mut *fill);
        if sent.is_none() {
            // What has been completed may make room.
            inner.progress(Some(self.token));
            sent = inner.send(self.token, fill);
            if let Some(row) = inner.rows.get_mut(&self.token) {
                row.waits = sent.is_none();
                // What came in this call, the node does not know of.
                if !row.queue.is_empty() {
                    row.tell();
                }
            }
        }
        sent
    }

    /// Sends what can be sent now; how many bytes that was.
    pub fn send(&self, bytes: &[u8]) -> usize {
        let mut sent = 0;
        while sent < bytes.len() {
            let left = &bytes[sent..];
            let more = self.send_with(&mut |to| {
                let part = left.len().min(to.len());
                to[..part].copy_from_slice(&left[..part]);
                part
            });
            match more {
                Some(more @ 1..) => sent += more,
                _ => break,
            }
        }
        sent
    }

    /// Whether the provider is done with all that was sent; one that moves long messages only when it is
    /// called is not.
    pub fn is_quiet(&self) -> bool {
        let mut inner = self.station.lock();
        let inner = &mut *inner;
        let sends = |inner: &Inner| inner.rows.get(&self.token).is_some_and(|row| row.sending > 0);
        if sends(inner) {
            inner.progress(Some(self.token));
            if let Some(row) = inner.rows.get_mut(&self.token)
                && !row.queue.is_empty()
            {
                row.tell();
            }
        }
        !sends(inner)
    }

    /// Messages of data that were sent, and that came.
    pub fn counts(&self) -> (u64, u64) {
        let inner = self.station.lock();
        let other = inner.rows.get(&self.token).and_then(|row| row.other.as_ref());
        other.map_or((0, 0), |other| (other.credit.sent(), other.credit.came()))
    }

    /// How it has ended on the fabric.
    pub fn ended(&self) -> Option<Ended> {
        self.station.lock().rows.get(&self.token)?.ended.clone()
    }

    /// Whether its descriptors tell of whatever comes from now on.
    pub fn may_sleep(&self) -> bool {
        let mut inner = self.station.lock();
        let is_busy = inner.rows.get(&self.token).is_some_and(|row| {
            let is_due = |other: &Other| other.credit.grant_is_due();
            row.is_told || row.other.as_ref().is_some_and(is_due)
        });
        !is_busy && !inner.send_unsent() && inner.end.may_sleep()
    }

    /// What carries it, in words.
    pub fn explain(&self) -> String {
        let inner = self.station.lock();
        let choice = inner.end.choice();
        let (major, minor) = choice.library().version();
        let woken = match &self.descriptor {
            Some(_) => "wakes by a descriptor".to_string(),
            None => {
                format!("looked at in naps, {} so far", self.station.naps.load(Ordering::Relaxed))
            }
        };
        let rejected = match choice.rejected() {
            [] => String::new(),
            rejected => format!(" (rejected: {})", rejected.join(" / ")),
        };
        let Dropped { foreign, too_long } = inner.dropped;
        format!(
            "libfabric {major}.{minor}, provider {}{rejected}, trusted, {woken}, {} messages dropped; met",
            choice.provider(),
            foreign + too_long
        )
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // A child has a picture of the lock, which nobody may ever open.
        if !self.guard.is_parent() {
            return;
        }
        let mut inner = self.station.lock();
        let Some(row) = inner.rows.remove(&self.token) else { return };
        let held = self.held.take().map(|(message, _)| message);
        for received in held.into_iter().chain(row.queue).chain(row.early.into_values()) {
            inner.end.give_back(received);
        }
        let Some(Other { peer, .. }) = row.other else { return };
        match row.sending - inner.end.forget_unsent(self.token) {
            0 => inner.end.remove(peer),
            sending => {
                inner.leaving.insert(self.token, (peer, sending));
            }
        }
    }
}
