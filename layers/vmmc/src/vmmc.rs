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
//! Two programs share one link, over which both ask. A program that asks for the first time connects, and
//! then looks for a link that the other has made. Where both have connected at the same time, the link of
//! the lower node stays, unless the higher one has had an answer over its own:
//! ```text
//!   lower   has connected, and is asked over the other's link: answers ELSEWHERE, while it uses its own
//!   higher  waits for the lower one's link, asks over it, and ends its own
//! ```
//! Never: a peer gets more than its user may; a question makes anything grow without bound; a program that
//! has not proved that it is a node is taken for it.

use crate::{Config, Error, PAGE, Rights};
use hamlyn::protocol::Manager;
use hamlyn::{Access, NodeId};
use hamlyn_clan::{
    Aperture, Clan, Endpoint, EventId, EventQueue, HANDLE_BYTES, OOB_BYTES, Region, Target,
};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Bytes of a buffer's name.
const NAME_MAX: usize = OOB_BYTES - 2;
/// The first byte of an answer, behind which the question's number comes; anything else: it is refused,
/// with the reason in words.
const GRANTED: u8 = 1;
/// The answer to a question over a link that the two programs do not share.
const ELSEWHERE: u8 = 2;
/// The user's word of the event of newcomers; those of peers and of buffers are even and odd, from 2 on.
const NEWCOMERS: u64 = 0;
const END: u64 = 1;
/// Peers and buffers that can be told apart in the queue of events.
const SOURCES_MAX: u32 = 1 << 17;
/// End points of one peer: an importer needs one.
const ENDPOINTS_OF_PEER_MAX: u32 = 64;
/// Questions, newcomers and signals that are handled before others have their turn.
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
pub struct Vmmc(Arc<Inner>);

struct Inner {
    clan: Clan,
    events: EventQueue,
    state: Mutex<State>,
    /// Imports ask one at a time.
    asking: Mutex<Asking>,
    /// Peers that have come.
    met: AtomicU64,
    is_blocked: AtomicBool,
    thread: Mutex<Option<(JoinHandle<()>, Arc<AtomicBool>)>>,
    newcomers: EventId,
    /// For the thread, to look again.
    end: EventId,
}

#[derive(Default)]
struct State {
    /// By source.
    buffers: BTreeMap<u64, Exported>,
    names: HashMap<Arc<str>, u64>,
    peers: HashMap<u64, Asker>,
    /// The end points over which this program asks.
    asked: HashMap<NodeId, Arc<Endpoint>>,
    next_source: u64,
    /// Buffers with signals that have not been taken: no peer makes more wait than its credit.
    ready: VecDeque<u64>,
}

/// An end point over which another program asks.
struct Asker {
    endpoint: Arc<Endpoint>,
    target: Target,
    /// `None`: it has not proved which it is.
    node: Option<NodeId>,
    /// It has had an answer, and stays on this link.
    is_answered: bool,
}

/// For questions.
#[derive(Default)]
struct Asking {
    nodes: HashMap<String, NodeId>,
    number: u8,
}

struct Exported {
    name: Arc<str>,
    region: Arc<Region>,
    exporting: Exporting,
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

fn unpoisoned<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
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

    /// [`import`](Self::import) of a program whose node is known.
    pub(crate) fn import_of(
        &self,
        node: Option<NodeId>,
        program: &str,
        buffer: &str,
        limit: Option<Duration>,
    ) -> Result<Proxy, Error> {
        if buffer.is_empty() || buffer.len() > NAME_MAX {
            return Err(Error::Misuse(format!("a buffer's name of {} bytes", buffer.len())));
        }
        let began = Instant::now();
        let left = || limit.map(|limit| limit.saturating_sub(began.elapsed()));
        let mut asking = unpoisoned(&self.0.asking);
        if let Some(node) = node {
            asking.nodes.insert(program.into(), node);
        }
        let mut endpoint = self.end_for(&mut asking.nodes, program, left())?;
        let mut answer = self.ask(&mut asking, &endpoint, buffer, left())?;
        if answer[0] == ELSEWHERE {
            endpoint = self.move_to_shared(endpoint, left())?;
            answer = self.ask(&mut asking, &endpoint, buffer, left())?;
        }
        if answer[0] != GRANTED {
            let text = String::from_utf8_lossy(&answer[2..]);
            let text = text.trim_end_matches('\0');
            let text: String = text.chars().filter(|char| !char.is_control()).collect();
            return Err(Error::Refused(format!("importing \"{buffer}\": {text}")));
        }
        let aperture = endpoint.import(&answer[8..], left())?;
        Ok(Proxy { vmmc: self.clone(), aperture: Arc::new(aperture) })
    }

    /// One question, and its answer.
    fn ask(
        &self,
        asking: &mut Asking,
        endpoint: &Endpoint,
        buffer: &str,
        limit: Option<Duration>,
    ) -> Result<[u8; OOB_BYTES], Error> {
        let began = Instant::now();
        asking.number = asking.number.wrapping_add(1);
        let number = asking.number;
        // Answers to questions that were given up.
        while endpoint.take_oob()?.is_some() {}
        let question = [&[buffer.len() as u8, number], buffer.as_bytes()].concat();
        endpoint.send_oob(&question, limit)?;
        let mut answer = Ok(None);
        let left = limit.map(|limit| limit.saturating_sub(began.elapsed()));
        self.wait_until(left, || {
            loop {
                answer = endpoint.take_oob();
                match &answer {
                    Ok(Some(late)) if late[1] != number => {}
                    Ok(None) => return false,
                    _ => return true,
                }
            }
        })?;
        answer?.ok_or(Error::TimedOut)
    }

    /// The end point over which this program asks another, which is connected if no link is there.
    fn end_for(
        &self,
        nodes: &mut HashMap<String, NodeId>,
        program: &str,
        limit: Option<Duration>,
    ) -> Result<Arc<Endpoint>, Error> {
        let own = self.0.clan.manager().id();
        if let Some(node) = nodes.get(program).copied() {
            let (asked, asker) = {
                let state = unpoisoned(&self.0.state);
                (state.asked(node), state.asker(node, |_| true))
            };
            if let Some(endpoint) = asked {
                return Ok(endpoint);
            }
            // It may end meanwhile.
            if let Some(Ok(endpoint)) = asker.map(|asker| asker.open(limit)) {
                return Ok(self.asks_over(node, endpoint));
            }
        }
        let endpoint = self.0.clan.connect(program, limit)?;
        let peer = endpoint.peer()?;
        if !peer.is_proved {
            return Err(Error::Refused(format!("\"{program}\" has not proved which node it is")));
        }
        nodes.insert(program.into(), peer.node);
        let asker = {
            let mut state = unpoisoned(&self.0.state);
            if let Some(endpoint) = state.asked(peer.node) {
                return Ok(endpoint);
            }
            match state.asker(peer.node, |asker| own > peer.node || asker.is_answered) {
                Some(asker) => asker,
                None => {
                    let endpoint = Arc::new(endpoint);
                    state.asked.insert(peer.node, endpoint.clone());
                    return Ok(endpoint);
                }
            }
        };
        Ok(self.asks_over(peer.node, asker.open(limit)?))
    }

    fn asks_over(&self, node: NodeId, endpoint: Endpoint) -> Arc<Endpoint> {
        let endpoint = Arc::new(endpoint);
        unpoisoned(&self.0.state).asked.insert(node, endpoint.clone());
        endpoint
    }

    /// The other program asks over a link of its own, which is on its way here: it is the one that stays.
    fn move_to_shared(
        &self,
        endpoint: Arc<Endpoint>,
        limit: Option<Duration>,
    ) -> Result<Arc<Endpoint>, Error> {
        let began = Instant::now();
        let left = || limit.map(|limit| limit.saturating_sub(began.elapsed()));
        let (node, link) = (endpoint.peer()?.node, endpoint.link());
        let asker = loop {
            let met = self.0.met.load(Ordering::Acquire);
            let asker =
                unpoisoned(&self.0.state).asker(node, |asker| asker.endpoint.link() != link);
            if let Some(asker) = asker {
                break asker;
            }
            let look = || met != self.0.met.load(Ordering::Acquire) || endpoint.check().is_err();
            self.wait_until(left(), look)?;
            endpoint.check()?;
        };
        Ok(self.asks_over(node, asker.open(left())?))
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
        let regions: Vec<_> = {
            let state = unpoisoned(&self.0.state);
            state.buffers.values().map(|exported| exported.region.clone()).collect()
        };
        for region in regions {
            let Some(base) = region.address().map(|address| address as usize) else { continue };
            let end = base + region.bytes() as usize;
            if start >= end || start + bytes <= base {
                continue;
            }
            // The last page may go on behind the buffer's last byte.
            if start < base || start + bytes > end.next_multiple_of(PAGE) {
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
                for _ in 0..if exported.takes_notifications { 0 } else { AT_ONCE } {
                    exported.region.take_signal();
                }
            }
        }
    }

    /// The questions of a peer, or its end.
    fn answer(&self, state: &mut State, source: u64) {
        let own = self.0.clan.manager().id();
        for _ in 0..AT_ONCE {
            let State { peers, asked, names, buffers, .. } = &mut *state;
            let Some(Asker { endpoint, target, node, is_answered }) = peers.get_mut(&source) else {
                return;
            };
            let question = match endpoint.take_oob() {
                Ok(None) => return,
                Ok(Some(question)) => question,
                Err(_) => {
                    target.queue.unregister(target.event);
                    state.peers.remove(&source);
                    return;
                }
            };
            let mut answer = [0; OOB_BYTES];
            answer[1] = question[1];
            let shared = node.filter(|node| own < *node).and_then(|node| asked.get(&node));
            let is_elsewhere = shared
                .is_some_and(|shared| shared.link() != endpoint.link() && shared.check().is_ok());
            if is_elsewhere && !*is_answered {
                answer[0] = ELSEWHERE;
            } else {
                *is_answered = true;
                let exported = |name: &str| buffers.get(names.get(name)?);
                match grant(exported, endpoint, &question) {
                    Ok(handle) => {
                        answer[0] = GRANTED;
                        answer[8..8 + HANDLE_BYTES].copy_from_slice(&handle);
                    }
                    Err(why) => {
                        let length = why.len().min(OOB_BYTES - 2);
                        answer[2..2 + length].copy_from_slice(&why.as_bytes()[..length]);
                    }
                }
            }
            // A peer that has no room for an answer gets none, and stops nobody.
            let _ = endpoint.send_oob(&answer, Some(Duration::ZERO));
        }
        // It asks without end: the others come first.
        if let Some(Asker { target, .. }) = state.peers.get(&source) {
            target.queue.raise(target.event);
        }
    }
}

impl State {
    /// The end point over which this program asks a node, if it is open.
    fn asked(&self, node: NodeId) -> Option<Arc<Endpoint>> {
        self.asked.get(&node).filter(|endpoint| endpoint.check().is_ok()).cloned()
    }

    /// One over which the node asks here.
    fn asker(&self, node: NodeId, which: impl Fn(&Asker) -> bool) -> Option<Arc<Endpoint>> {
        let is_it = |asker: &&Asker| {
            asker.node == Some(node) && which(asker) && asker.endpoint.check().is_ok()
        };
        self.peers.values().find(is_it).map(|asker| asker.endpoint.clone())
    }
}

/// The handle for a peer that asks for a buffer.
fn grant<'a>(
    exported: impl Fn(&str) -> Option<&'a Exported>,
    endpoint: &Endpoint,
    question: &[u8],
) -> Result<[u8; HANDLE_BYTES], String> {
    let name = question.get(2..).and_then(|rest| rest.get(..question[0] as usize));
    let name = name.and_then(|name| core::str::from_utf8(name).ok()).ok_or("no name")?;
    let peer = endpoint.peer().map_err(|e| e.to_string())?;
    let is_one_of = |exported: &&Exported| match &exported.exporting.users {
        Users::All => true,
        Users::Same => peer.is_proved && peer.uid == Some(own_user()),
        Users::These(users) => peer.is_proved && peer.uid.is_some_and(|uid| users.contains(&uid)),
    };
    // The same words for both: a stranger does not learn which buffers there are.
    let exported = exported(name).filter(is_one_of);
    let exported = exported.ok_or("there is no such buffer for this user")?;
    let Exporting { rights, notifications, .. } = exported.exporting;
    let export = exported.region.export_signalled(endpoint, rights, notifications);
    export.map(|export| export.handle).map_err(|e| e.to_string())
}

fn own_user() -> u32 {
    rustix::process::geteuid().as_raw()
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
    vmmc: Vmmc,
    aperture: Arc<Aperture>,
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

    /// The aperture below, for [requests](Clan::request_queue) that go on by themselves: the asynchronous
    /// deliberate update.
    pub fn aperture(&self) -> &Aperture {
        &self.aperture
    }

    /// The program's place.
    pub fn vmmc(&self) -> &Vmmc {
        &self.vmmc
    }
}
