//! Export, import, deliberate update and notifications (SHRIMP 2.2).
//!
//! ```text
//!   importer                                    exporter
//!   import("name", "buffer")  --- a question -->  the buffer's users and rights; an export of its own
//!   Proxy                    <--- a handle -----  for each importer, each taken back alone
//!   send, get                --- packets ------>  the buffer's memory
//! ```
//! Questions are answered in calls of [`Vmmc::poll`] and [`Vmmc::wait`], or by the
//! [thread](Vmmc::start_thread).
//!
//! Never: a notification is lost within its sender's credit; a peer makes more wait than that.

use crate::{Config, Error, PAGE, Rights};
use hamlyn::protocol::Manager;
use hamlyn::{Access, NodeId};
use hamlyn_clan::{Aperture, Clan, Endpoint, EventId, EventQueue, OOB_BYTES, Region, Target};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Bytes of a buffer's name.
pub(crate) const NAME_MAX: usize = OOB_BYTES - 2;
/// The user's word of the event of newcomers; those of peers and of buffers are even and odd, from 2 on.
const NEWCOMERS: u64 = 0;
const END: u64 = 1;
/// Peers and buffers that can be told apart in the queue of events.
const SOURCES_MAX: u32 = 1 << 17;
/// End points of one peer: an importer needs one.
const ENDPOINTS_OF_PEER_MAX: u32 = 64;
/// Newcomers and signals that are handled before others have their turn.
const AT_ONCE: usize = 64;

/// The users who may import a buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Users {
    /// This process's user, on this host, as the kernel proves it.
    Same,
    /// Everybody whom [`Vmmc::serve`] lets in, also from other hosts.
    All,
    /// These user ids, on this host, as the kernel proves them.
    These(Vec<u32>),
}

/// How a buffer is exported.
#[derive(Clone, Debug)]
pub struct Exporting {
    /// The users who may import it.
    pub users: Users,
    /// For what.
    pub rights: Rights,
    /// Notifications of one importer that may wait; 0: none come.
    pub notifications: u32,
}

impl Default for Exporting {
    /// For the same user, to read and write, with up to 64 notifications.
    fn default() -> Self {
        Self { users: Users::Same, rights: Rights::ReadWrite, notifications: 64 }
    }
}

/// A message has come to a buffer whose exporter and whose sender asked for it. Its data may have been
/// overwritten by now.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Notification {
    /// The buffer's name.
    pub buffer: Arc<str>,
    /// The sender's word.
    pub word: u32,
}

pub(crate) type Handler = Box<dyn FnMut(Notification) + Send>;

/// This program's place: the buffers that it exports, and those that it imports. Clones are the same.
#[derive(Clone)]
pub struct Vmmc(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    pub clan: Clan,
    events: EventQueue,
    pub state: Mutex<State>,
    /// Imports ask one at a time: by [`Turn`].
    pub asking: Mutex<Asking>,
    pub is_asking: Mutex<bool>,
    pub has_asked: Condvar,
    /// Peers that have come.
    pub met: AtomicU64,
    is_blocked: AtomicBool,
    thread: Mutex<Option<(JoinHandle<()>, Arc<AtomicBool>)>>,
    newcomers: EventId,
    /// For the thread, to look again.
    end: EventId,
}

/// An end point over which another program asks.
pub(crate) struct Asker {
    pub endpoint: Arc<Endpoint>,
    pub target: Target,
    /// `None`: it has not proved which it is.
    pub node: Option<NodeId>,
    /// It has had an answer, and stays on this link.
    pub is_answered: bool,
}

/// For questions.
#[derive(Default)]
pub(crate) struct Asking {
    pub nodes: HashMap<String, NodeId>,
    pub number: u8,
}

#[derive(Default)]
pub(crate) struct State {
    /// By source.
    pub buffers: BTreeMap<u64, Exported>,
    pub names: HashMap<Arc<str>, u64>,
    pub peers: HashMap<u64, Asker>,
    /// The end points over which this program asks.
    pub asked: HashMap<NodeId, Arc<Endpoint>>,
    next_source: u64,
    /// Buffers with signals that have not been taken: no peer makes more wait than its credit.
    ready: VecDeque<u64>,
}

pub(crate) struct Exported {
    name: Arc<str>,
    pub region: Arc<Region>,
    pub exporting: Exporting,
    target: Target,
    /// The receiver's bit.
    takes_notifications: bool,
    /// It is in `State::ready`.
    is_ready: bool,
}

/// No peer takes the events of all.
fn bounded(config: Config) -> Config {
    let endpoints_of_peer_max = config.endpoints_of_peer_max.min(ENDPOINTS_OF_PEER_MAX);
    Config { endpoints_of_peer_max, ..config }
}

pub(crate) fn unpoisoned<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

impl core::fmt::Debug for Vmmc {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Vmmc").field("clan", &self.0.clan).finish_non_exhaustive()
    }
}

impl Vmmc {
    /// With a node of its own.
    pub fn new(config: Config) -> Result<Self, Error> {
        Self::with(Clan::new(bounded(config))?)
    }

    /// At a manager that other protocols use, too; `config.node` is not looked at.
    pub fn at(manager: &Manager, config: Config) -> Result<Self, Error> {
        Self::with(Clan::at(manager, bounded(config))?)
    }

    fn with(clan: Clan) -> Result<Self, Error> {
        let events = clan.event_queue(SOURCES_MAX)?;
        let newcomers = events.register(NEWCOMERS)?;
        clan.set_accept_event(Some(Target { queue: events.clone(), event: newcomers }));
        let end = events.register(END)?;
        let inner = Inner {
            clan,
            events,
            state: Mutex::default(),
            asking: Mutex::default(),
            is_asking: Mutex::default(),
            has_asked: Condvar::new(),
            met: AtomicU64::new(0),
            is_blocked: AtomicBool::new(false),
            thread: Mutex::default(),
            newcomers,
            end,
        };
        Ok(Self(Arc::new(inner)))
    }

    /// Lets others import under a name of this program.
    pub fn serve(&self, name: &str, access: Access) -> Result<(), Error> {
        self.0.clan.listen(name, access)
    }

    /// Exports a new buffer of `bytes` under a name of up to 126 bytes.
    pub fn export(&self, name: &str, bytes: u64, exporting: Exporting) -> Result<Buffer, Error> {
        if name.is_empty() || name.len() > NAME_MAX {
            return Err(Error::Misuse(format!(
                "a buffer's name of {} bytes: 1 to {NAME_MAX} are allowed",
                name.len()
            )));
        }
        let region = Arc::new(self.0.clan.region(bytes, 0)?);
        let mut state = unpoisoned(&self.0.state);
        if state.names.contains_key(name) {
            return Err(Error::Misuse(format!("the buffer \"{name}\" is exported already")));
        }
        state.next_source += 2;
        let source = state.next_source + 1;
        let event = self.0.events.register(source)?;
        let target = Target { queue: self.0.events.clone(), event };
        region.set_signal_event(Some(target.clone()));
        let exported = Exported {
            name: name.into(),
            region: region.clone(),
            takes_notifications: exporting.notifications > 0,
            exporting,
            target,
            is_ready: false,
        };
        state.names.insert(exported.name.clone(), source);
        state.buffers.insert(source, exported);
        drop(state);
        Ok(Buffer { vmmc: self.clone(), source, name: name.into(), region })
    }

    /// Imports a buffer of the program that serves `program` (`[user@]name`, or on another host); waits at
    /// most `limit` for both.
    pub fn import(
        &self,
        program: &str,
        buffer: &str,
        limit: Option<Duration>,
    ) -> Result<Proxy, Error> {
        self.import_of(None, program, buffer, limit)
    }

    /// Takes a turn: arrivals go to their buffers, and questions are answered.
    pub fn poll(&self) -> Result<(), Error> {
        let turn = self.0.clan.manager().poll();
        turn.map_err(|e| Error::Refused(format!("a turn: {e}")))?;
        while let Some(event) = self.0.events.take() {
            self.handle(event.user);
        }
        Ok(())
    }

    /// Waits until something has come that is more than data, at most `limit`: a notification, a question, a
    /// peer's end. [`Error::TimedOut`]: nothing has.
    pub fn wait(&self, limit: Option<Duration>) -> Result<(), Error> {
        let event = self.0.clan.wait(&self.0.events, limit)?;
        self.handle(event.user);
        self.poll()
    }

    /// Waits until `look` says so, at most `limit`: for a word of a buffer that others change. Questions are
    /// answered meanwhile. It is called after each turn, while the node is locked, and makes no calls but
    /// [`Proxy::check`].
    pub fn wait_until(
        &self,
        limit: Option<Duration>,
        mut look: impl FnMut() -> bool,
    ) -> Result<(), Error> {
        let began = Instant::now();
        while !look() {
            let left = limit.map(|limit| limit.saturating_sub(began.elapsed()));
            match self.0.clan.wait_until(&self.0.events, left, &mut look)? {
                Some(event) => self.handle(event.user),
                None => return Ok(()),
            }
        }
        Ok(())
    }

    /// The next notification, of any buffer; those of one importer in the order in which it sent. `None`:
    /// there is none now, or they are [blocked](Self::block). Takes no turn.
    pub fn take_notification(&self) -> Option<Notification> {
        if self.0.is_blocked.load(Ordering::Acquire) {
            return None;
        }
        let mut state = unpoisoned(&self.0.state);
        let State { ready, buffers, .. } = &mut *state;
        while let Some(source) = ready.front() {
            if let Some(exported) = buffers.get_mut(source) {
                let signal = exported.region.take_signal();
                if let (Some(signal), true) = (&signal, exported.takes_notifications) {
                    let taken = Notification { buffer: exported.name.clone(), word: signal.word };
                    // The next one is another buffer's, if there is one.
                    ready.rotate_left(1);
                    return Some(taken);
                }
                if signal.is_some() {
                    continue;
                }
                exported.is_ready = false;
            }
            ready.pop_front();
        }
        None
    }

    /// From now on notifications wait, of all buffers; senders are stopped when their credit is used.
    pub fn block(&self) {
        self.0.is_blocked.store(true, Ordering::Release);
    }

    /// Notifications come again, those that waited first.
    pub fn unblock(&self) {
        self.0.is_blocked.store(false, Ordering::Release);
        self.0.events.raise(self.0.end);
    }

    /// Starts the library's thread: memory changes when something comes, without a call; questions are
    /// answered; and `handler` gets each notification there. It ends with the last clone, buffer and proxy.
    pub fn start_thread(
        &self,
        handler: impl FnMut(Notification) + Send + 'static,
    ) -> Result<(), Error> {
        self.start(Some(Box::new(handler)))
    }

    /// Without a handler notifications wait to be [taken](Self::take_notification).
    pub(crate) fn start(&self, mut handler: Option<Handler>) -> Result<(), Error> {
        let mut thread = unpoisoned(&self.0.thread);
        if thread.is_some() {
            return Err(Error::Misuse("the thread has been started already".into()));
        }
        let ends = Arc::new(AtomicBool::new(false));
        let (weak, seen) = (Arc::downgrade(&self.0), ends.clone());
        let run = move || {
            while !seen.load(Ordering::Acquire) {
                // Not kept while it waits, so that dropping the last clone ends the thread.
                let Some(inner) = weak.upgrade() else { return };
                let (clan, events) = (inner.clan.clone(), inner.events.clone());
                drop(inner);
                let event = clan.wait(&events, Some(Duration::from_secs(1)));
                drop(clan);
                let Some(inner) = weak.upgrade() else { return };
                let vmmc = Self(inner);
                match event {
                    Ok(event) => vmmc.handle(event.user),
                    Err(Error::TimedOut) => {}
                    Err(_) => return,
                }
                while let Some(handler) = &mut handler
                    && let Some(notification) = vmmc.take_notification()
                {
                    handler(notification);
                }
            }
        };
        let started = std::thread::Builder::new().name("vmmc".into()).spawn(run);
        let handle = started.map_err(|e| Error::Refused(format!("a thread: {e}")))?;
        *thread = Some((handle, ends));
        Ok(())
    }

    /// Whether this is the library's thread, which calls the handler.
    pub(crate) fn is_own_thread(&self) -> bool {
        let thread = unpoisoned(&self.0.thread);
        thread.as_ref().is_some_and(|(it, _)| it.thread().id() == std::thread::current().id())
    }

    /// The CLAN of regions and apertures below.
    pub fn clan(&self) -> &Clan {
        &self.0.clan
    }

    /// The exported buffer that has this memory, and its place in it.
    pub(crate) fn exported_at(
        &self,
        start: usize,
        bytes: usize,
    ) -> Result<Option<(Arc<Region>, usize)>, Error> {
        let last = start.checked_add(bytes.max(1) - 1);
        let last = last.ok_or_else(|| Error::Misuse(format!("{bytes} bytes at {start:#x}")))?;
        let regions: Vec<_> = {
            let state = unpoisoned(&self.0.state);
            state.buffers.values().map(|exported| exported.region.clone()).collect()
        };
        for region in regions {
            let Some(base) = region.address().map(|address| address as usize) else { continue };
            let end = base + region.bytes() as usize;
            if start >= end || last < base {
                continue;
            }
            // The last page may go on behind the buffer's last byte.
            if start < base || last >= end.next_multiple_of(PAGE) {
                return Err(Error::Misuse("memory of which a part is an exported buffer".into()));
            }
            return Ok(Some((region, start - base)));
        }
        Ok(None)
    }

    fn handle(&self, source: u64) {
        let mut state = unpoisoned(&self.0.state);
        match source {
            NEWCOMERS => {
                for _ in 0..AT_ONCE {
                    let Ok(endpoint) = self.0.clan.accept(Some(Duration::ZERO)) else { return };
                    state.next_source += 2;
                    let source = state.next_source;
                    // As many as there can be: the others are refused.
                    let Ok(event) = self.0.events.register(source) else { continue };
                    let target = Target { queue: self.0.events.clone(), event };
                    endpoint.set_event(Some(target.clone()));
                    let peer = endpoint.peer().ok().filter(|peer| peer.is_proved);
                    let node = peer.map(|peer| peer.node);
                    let endpoint = Arc::new(endpoint);
                    let asker = Asker { endpoint, target, node, is_answered: false };
                    state.peers.insert(source, asker);
                    self.0.met.fetch_add(1, Ordering::Release);
                }
                // There may be more, behind what others want.
                self.0.events.raise(self.0.newcomers);
            }
            END => {}
            source if source.is_multiple_of(2) => self.answer(&mut state, source),
            source => {
                let State { ready, buffers, .. } = &mut *state;
                let Some(exported) = buffers.get_mut(&source) else { return };
                if !core::mem::replace(&mut exported.is_ready, true) {
                    ready.push_back(source);
                }
                // Those that nobody wants hold no sender up.
                if !exported.takes_notifications {
                    let taken =
                        (0..AT_ONCE).take_while(|_| exported.region.take_signal().is_some());
                    if taken.count() == AT_ONCE {
                        // There may be more, behind what others want.
                        exported.target.queue.raise(exported.target.event);
                    }
                }
            }
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let thread = unpoisoned(&self.thread).take();
        if let Some((handle, ends)) = thread {
            ends.store(true, Ordering::Release);
            self.events.raise(self.end);
            // It may be this thread that drops the last clone.
            if handle.thread().id() != std::thread::current().id() {
                let _ = handle.join();
            }
        }
    }
}

/// A receive buffer of this program. Dropping it takes it back from all importers (unexport).
pub struct Buffer {
    vmmc: Vmmc,
    source: u64,
    name: String,
    region: Arc<Region>,
}

impl core::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Buffer").field("name", &self.name).field("region", &self.region).finish()
    }
}

impl Buffer {
    /// Its memory, which importers write: read it, wait for a word, or take its address.
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// The receiver's bit: whether notifications of this buffer come. Those that came before are kept.
    pub fn take_notifications(&self, takes: bool) {
        if let Some(exported) = unpoisoned(&self.vmmc.0.state).buffers.get_mut(&self.source) {
            exported.takes_notifications = takes;
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let mut state = unpoisoned(&self.vmmc.0.state);
        if let Some(exported) = state.buffers.remove(&self.source) {
            state.names.remove(&exported.name);
            exported.target.queue.unregister(exported.target.event);
        }
    }
}

/// A proxy receive buffer: the local name of a buffer of another program. Clones are the same; dropping the
/// last, and all that is bound to it, unimports it.
#[derive(Clone, Debug)]
pub struct Proxy {
    pub(crate) vmmc: Vmmc,
    pub(crate) aperture: Arc<Aperture>,
}

impl Proxy {
    /// The buffer's length in bytes.
    pub fn bytes(&self) -> u64 {
        self.aperture.bytes()
    }

    /// Deliberate update: these bytes to `offset` of the buffer, of any length and from any address. Returns
    /// when the source can be used again; waits for room at most `limit`. Updates of one program arrive in
    /// their order. No system call, unless the receiver sleeps.
    #[inline]
    pub fn send(&self, offset: u64, bytes: &[u8], limit: Option<Duration>) -> Result<(), Error> {
        self.aperture.put(offset, bytes, limit)
    }

    /// [`send`](Self::send) with the sender's bit set: the exporter gets a notification with `word`, if it
    /// takes those of this buffer. Waits also for the exporter to take notifications that it has, and never
    /// loses one.
    pub fn send_notify(
        &self,
        offset: u64,
        bytes: &[u8],
        word: u32,
        limit: Option<Duration>,
    ) -> Result<(), Error> {
        self.aperture.put_signal(offset, bytes, word, limit)
    }

    /// Copies bytes of the buffer here; the exporter's program, or its thread, answers.
    pub fn get(&self, offset: u64, to: &mut [u8], limit: Option<Duration>) -> Result<(), Error> {
        self.aperture.get(offset, to, limit)
    }

    /// [`Error::Revoked`] or [`Error::Closed`], if the buffer or its program is gone. Loads.
    pub fn check(&self) -> Result<(), Error> {
        self.aperture.check()
    }

    /// The path that updates take, and the reason, in words.
    pub fn explain(&self) -> Result<String, Error> {
        Ok(format!("packets, over {}", self.aperture.explain()?))
    }

    /// The aperture below.
    pub fn aperture(&self) -> &Aperture {
        &self.aperture
    }

    /// The program's place.
    pub fn vmmc(&self) -> &Vmmc {
        &self.vmmc
    }
}
