//! [`Control`] performs the [`Machine`]'s decisions, with sockets, epoll and one thread.
//!
//! ```text
//!   application --calls-->  lock, machine, perform  --events-->  Inbox
//!   sockets  ---epoll--->   lock, machine, perform  --frames-->  sockets
//!   receivers --post---->   lock, machine, perform
//! ```
//! One thread asleep in epoll, or the application's own loop ([`Control::as_fd`],
//! [`Control::run_once`]), goes through `ShellShared::turn`. Nothing is decided here: each event goes to
//! the machine, and each of its actions is a few system calls that wait for no peer, so no peer
//! holds up another. Calls of the application take the same lock for as long.
//!
//! - `mod.rs`: the calls, the turn
//! - `perform.rs`: the actions
//! - `other_hosts.rs`: the same calls for other hosts, performed by `hosts`
//! - `dial.rs`: connecting
//! - `inbox.rs`: events for the application
//! - `limits.rs`: the number of links that the system allows
//! - `refusals.rs`: the last refusals
//! - `ending.rs`: the ends of links, and of threads
//! - `error.rs`: the errors
//!
//! Never: the lock is held while the application's code runs, or while waiting; a thread that
//! others wait for closes a stranger's descriptor, or seals or punches a stranger's file.

mod dial;
mod ending;
mod error;
mod inbox;
mod limits;
mod other_hosts;
mod perform;
mod refusals;
mod statistics;
mod turn;

pub(crate) use dial::wait_of;
pub(in crate::control) use ending::end;
pub use error::{BuildError, ConnectError};
pub use inbox::{ControlEvent, Inbox, LinkToken, LinkWay, NewLink};
pub use statistics::{Answered, Statistics, read_statistics, stat_of, statistics_of};

use super::frame::{LinkFeatures, Memory};
#[cfg(feature = "tls")]
use super::hosts::Hosts;
use super::identity::Identity;
use super::lookups::Lookups;
use super::machine::{
    Accept, AcceptError, Admission, ApertureError, ConnectionId, Counters, Expected, Machine,
    MachineLimits, Peer, RefusedBy, RequestId, ServiceId, UnknownUsers, Who,
};
use super::memory::{MadeMemory, Mapped};
use super::names::{self, Access, NameListener, ServeError, ServiceName};
use super::receiver::ReceiverMessage;
use super::{FORKED, GREETING_BYTES_MAX, TOKEN_BYTES_MAX};
use crate::config::{AdmitUnknown, Config, Housekeeping};
use crate::log::{Entry, Kind, LogAccount, NoteLog};
use crate::os::memory::{ForkGuard, Remains};
use crate::os::poller::Poller;
use crate::os::socket;
use crate::os::strangers::StrangerThreads;
use crate::os::sys::{self, Bell, monotonic_ns};
use crate::os::thread::{self, Thread};
use crate::wire::{ApertureAccess, NodeId};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use core::time::Duration;
use dial::SocketDial;
use other_hosts::FoundLink;
#[cfg(feature = "tls")]
pub(in crate::control) use perform::ended;
use refusals::Refusals;
#[cfg(feature = "tls")]
pub(in crate::control) use refusals::of_host;
use std::boxed::Box;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::string::{String, ToString};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::vec::Vec;

/// Frames that wait for a peer to read earlier ones.
const OUTBOX_MAX: usize = 300;
/// Frames taken from one connection before the next one's turn.
const FRAMES_PER_TURN: usize = 8;
/// Frames that are still read of a process that has died. An honest one has a handful there.
const FRAMES_OF_THE_DEAD: usize = 32;
/// Events that may wait for the application. Beyond, no new connection is accepted: a peer that
/// comes and goes must not fill the memory of a program that makes no calls.
const EVENTS_MAX: usize = 1024;
/// Connections taken from one listener before anything else.
const ACCEPTS_PER_TURN: usize = 16;
/// Messages of receivers, taken in one turn.
const MESSAGES_PER_TURN: usize = 256;
/// Threads that receive descriptors, in all and of one user.
const RECEIVERS_MAX: u32 = 64;
const RECEIVERS_PER_USER_MAX: u32 = 4;
/// Connections of one user that have been welcomed and have yet to pay.
const UNPAID_PER_USER_MAX: u32 = 16;

const SOCKET: u64 = 0;
const PIDFD: u64 = 1;
const LISTENER: u64 = 2;
const WAKE: u64 = 3;
const BELL: u64 = u64::MAX;

fn tag(id: u64, what: u64) -> u64 {
    id << 2 | what
}

/// The shell's part of a connection, besides its state.
struct ShellRow {
    /// A receiver has it, too, while it runs.
    socket: Option<Arc<OwnedFd>>,
    pidfd: Option<OwnedFd>,
    wake: Option<socket::SocketConnection>,
    /// A receiver reads the socket, or will once the frames that wait have been sent.
    is_lent: bool,
    is_writing: bool,
    outbox: VecDeque<(Vec<u8>, Option<Arc<OwnedFd>>)>,
    /// Starts when everything before it has been sent.
    take: Option<Box<(Expected, u64)>>,
    made: BTreeMap<Memory, MadeMemory>,
    mapped: BTreeMap<Memory, Mapped>,
    dial: Option<Box<SocketDial>>,
    /// The part for other hosts gets the result of connecting; the application hears of a link, and of
    /// no failure.
    found: Option<Box<FoundLink>>,
    /// The user whose receivers it uses.
    uid: Option<u32>,
    pid: Option<u32>,
    /// The listener over which it came.
    service: Option<ServiceId>,
    /// The identity of the other end, once it is a link.
    peer: Option<Peer>,
    /// Its memory, once it is a link, which the application has.
    remains: Vec<Remains>,
}

impl ShellRow {
    fn new(socket: Option<OwnedFd>, who: Who) -> Self {
        Self {
            socket: socket.map(Arc::new),
            pidfd: None,
            wake: None,
            is_lent: false,
            is_writing: false,
            outbox: VecDeque::new(),
            take: None,
            made: BTreeMap::new(),
            mapped: BTreeMap::new(),
            dial: None,
            found: None,
            uid: who.uid,
            pid: who.pid,
            service: None,
            peer: None,
            remains: Vec::new(),
        }
    }

    /// Its entry in an operator's log.
    fn entry(&self, kind: Kind, reason: String) -> Entry {
        let (mut user, mut process, mut service) = (self.uid, self.pid, String::new());
        if let Some(peer) = &self.peer {
            (user, process, service) = (peer.uid, peer.pid, peer.service.clone());
        }
        let of = if kind == Kind::Failed { LogAccount::Own } else { LogAccount::User(user) };
        Entry { kind, user, process, service, reason, of }
    }
}

struct ShellState {
    machine: Machine,
    rows: HashMap<ConnectionId, ShellRow>,
    listeners: HashMap<ServiceId, NameListener>,
    /// Connections that this process tries to make, by the time of the next try.
    dialing: BTreeMap<ConnectionId, u64>,
    /// Statistics that have been asked for.
    asked: Vec<ConnectionId>,
    /// To be closed elsewhere.
    discarded: Vec<OwnedFd>,
    /// Memory of links that have ended, and when it is copied if it is still there.
    remains: VecDeque<(u64, Vec<Remains>)>,
    /// Started receivers, by connection: whose they are.
    receivers: HashMap<ConnectionId, Vec<Option<u32>>>,
    /// The reason for which the thread has ended, and nothing goes on any more.
    failed: Option<String>,
}

/// A message of a thread that nothing waits for.
enum Posted {
    Received(Box<ReceiverMessage>),
    Found(dial::FoundService),
}

struct ShellShared {
    /// Itself, for receivers, which do not keep it alive.
    this: OnceLock<Weak<ShellShared>>,
    config: Config,
    stat: Arc<dyn Fn() -> String + Send + Sync>,
    poller: Poller,
    bell: Bell,
    inbox: Arc<Inbox>,
    state: Mutex<ShellState>,
    /// Messages of receivers.
    posted: Mutex<VecDeque<(ConnectionId, Posted)>>,
    /// Entries for an operator.
    log: Mutex<NoteLog>,
    /// The last refusals.
    refusals: Mutex<Refusals>,
    /// The counters of other hosts, beside the machine's.
    of_hosts: Mutex<Counters>,
    /// The application's own directory of services on other hosts.
    #[cfg(feature = "tls")]
    directory: Arc<super::hosts::directory::Given>,
    /// Threads that look for names.
    lookups: Lookups,
    is_ending: AtomicBool,
    guard: ForkGuard,
    /// Threads that receive strangers' descriptors.
    strangers: Arc<StrangerThreads>,
    /// Whether sockets can refuse descriptors.
    has_pass_rights: bool,
}

/// The control plane of a process. Ends with a goodbye to every link when dropped.
pub struct Control {
    /// Other hosts, once there is something to send to them.
    #[cfg(feature = "tls")]
    hosts: Mutex<Option<Arc<Hosts>>>,
    #[cfg(feature = "tls")]
    identity: Identity,
    shared: Arc<ShellShared>,
    thread: Option<Thread>,
    notes: Vec<String>,
    node: NodeId,
    /// The time until which dropping this waits for its threads.
    end_by_ns: AtomicU64,
}

impl core::fmt::Debug for Control {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Control").field("node", &self.node).finish_non_exhaustive()
    }
}

/// The machine's limits, from the settings.
fn limits_of(config: &Config, identity: &Identity, features: LinkFeatures) -> MachineLimits {
    let mut token = [0; TOKEN_BYTES_MAX];
    if let AdmitUnknown::Token(text) = &config.admit_unknown {
        let n = text.len().min(TOKEN_BYTES_MAX);
        token[..n].copy_from_slice(&text.as_bytes()[..n]);
    }
    MachineLimits {
        uid: rustix::process::geteuid().as_raw(),
        features,
        unknown: match &config.admit_unknown {
            AdmitUnknown::Never => UnknownUsers::Refused,
            AdmitUnknown::Permissions => UnknownUsers::Admitted,
            AdmitUnknown::Token(_) => UnknownUsers::Token(token),
        },
        token,
        credential: identity.credential(),
        ring_bytes: config.ring_bytes,
        peer_ring_bytes_max: config
            .peer_ring_bytes_max
            .max(config.ring_bytes)
            .max(config.bulk_ring_bytes),
        bulk_ring_bytes: config.bulk_ring_bytes,
        packet_bytes: config.packet_bytes,
        links_max: config.links_max,
        links_bound: "links_max",
        connections_per_user_max: config.connections_per_user_max,
        bytes_per_user_max: config.bytes_per_user_max,
        half_open_max: config.half_open_max,
        unpaid_per_user_max: UNPAID_PER_USER_MAX,
        receivers_max: RECEIVERS_MAX,
        receivers_per_user_max: RECEIVERS_PER_USER_MAX,
        waiting_max: u32::MAX,
        step_timeout_ns: u64::from(config.handshake_timeout_ms) * 1_000_000,
        aperture_map_max: config.aperture_map_max,
        apertures_of_others: config.apertures_of_others,
        apertures_per_link_max: config.apertures_per_link_max,
        apertures_per_user_max: config.apertures_per_user_max,
        apertures_max: u32::MAX,
    }
}

impl Control {
    /// Starts it. `stat` makes the text that [`stat_of`] gets, before the counters of the control
    /// plane; it is called from the housekeeping thread, or from [`run_once`](Self::run_once).
    pub fn start(
        config: &Config,
        identity: &Identity,
        stat: Arc<dyn Fn() -> String + Send + Sync>,
    ) -> Result<Self, BuildError> {
        config.validate()?;
        let doing = BuildError::os;
        let mut notes = Vec::new();
        if config.undumpable {
            sys::make_undumpable().map_err(doing("making the process undumpable"))?;
        }
        let mut features = LinkFeatures::APERTURE | LinkFeatures::BELL;
        if sys::register_barrier() {
            features |= LinkFeatures::BARRIER;
        } else {
            notes.push("membarrier is not available: senders fence once a batch".into());
        }
        if config.bulk_ring_bytes != 0 {
            features |= LinkFeatures::BULK;
        }
        let has_pass_rights = socket::has_pass_rights();
        if !has_pass_rights {
            notes.push("SO_PASSRIGHTS is not available: connections are closed on threads".into());
        }
        // Now, since a filter of the program's calls may come later; if there is no room for it,
        // again on demand.
        let strangers = Arc::<StrangerThreads>::default();
        if let Ok(false) = strangers.prepare() {
            notes.push(
                "there is no second table of descriptors (close_range): a program that starts another \
                 may wait for what a stranger passed just then"
                    .into(),
            );
        }
        let mut limits = limits_of(config, identity, features);
        limits::fit_descriptors(&mut limits, &mut notes)
            .map_err(doing("asking for the limit on descriptors"))?;
        limits::fit_mappings(&mut limits, &mut notes);
        let state = ShellState {
            machine: Machine::new(limits),
            rows: HashMap::new(),
            listeners: HashMap::new(),
            dialing: BTreeMap::new(),
            asked: Vec::new(),
            discarded: Vec::new(),
            remains: VecDeque::new(),
            receivers: HashMap::new(),
            failed: None,
        };
        let guard = ForkGuard::new().map_err(doing("mapping a page"))?;
        let shared = Arc::new(ShellShared {
            this: OnceLock::new(),
            config: config.clone(),
            stat,
            poller: Poller::new().map_err(doing("making an epoll descriptor"))?,
            bell: Bell::new().map_err(doing("making an event descriptor"))?,
            state: Mutex::new(state),
            posted: Mutex::default(),
            log: Mutex::default(),
            refusals: Mutex::default(),
            of_hosts: Mutex::default(),
            #[cfg(feature = "tls")]
            directory: Arc::default(),
            lookups: Lookups::default(),
            is_ending: AtomicBool::new(false),
            inbox: Arc::new(
                Inbox::new(guard.clone()).map_err(doing("making an event descriptor"))?,
            ),
            guard,
            strangers,
            has_pass_rights,
        });
        let _ = shared.this.set(Arc::downgrade(&shared));
        shared.poller.add(&shared.bell, BELL).map_err(doing("watching an event descriptor"))?;
        #[cfg(not(feature = "tls"))]
        if config.listen.is_some() {
            return Err(BuildError::NoHosts);
        }
        // Before the control thread, which nothing would end if this failed.
        #[cfg(feature = "tls")]
        let hosts = match config.listen {
            Some(_) => {
                let told = (shared.on_this_host(), shared.note_of_hosts());
                let (inbox, given) = (&shared.inbox, &shared.directory);
                Some(Arc::new(Hosts::start(config, identity, inbox, given, told)?))
            }
            None => None,
        };
        let thread = match config.housekeeping {
            Housekeeping::Application => None,
            Housekeeping::Thread => {
                let shared = Arc::clone(&shared);
                let run = move || {
                    while !shared.is_ending.load(Ordering::Acquire) {
                        // A sandbox that came later, or a descriptor closed behind our back.
                        if let Err(error) = shared.turn(None) {
                            shared.fail(&error);
                            break;
                        }
                    }
                };
                let started = thread::spawn("hamlyn-control", 256 << 10, run);
                Some(started.map_err(doing("starting the housekeeping thread"))?)
            }
        };
        Ok(Self {
            #[cfg(feature = "tls")]
            hosts: Mutex::new(hosts),
            #[cfg(feature = "tls")]
            identity: identity.clone(),
            shared,
            thread,
            notes,
            node: identity.node(),
            end_by_ns: AtomicU64::new(u64::MAX),
        })
    }

    /// The node that it speaks for.
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// Adjustments and missing features, in words: nothing is silently different.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Calls the machine, and performs its actions.
    fn call<R>(&self, call: impl FnOnce(&mut Machine, u64) -> R) -> R {
        let shared = &*self.shared;
        let mut state = shared.lock();
        let result = call(&mut state.machine, monotonic_ns());
        shared.finish(state);
        result
    }

    /// The same for calls in which a forked child has no part.
    fn call_if_parent(&self, call: impl FnOnce(&mut Machine, u64)) {
        if self.shared.guard.is_parent() {
            self.call(call);
        }
    }

    /// Serves a name. Several may be served.
    pub fn serve(
        &self,
        service: &ServiceName,
        access: Access,
        accept: Accept,
    ) -> Result<(), ServeError> {
        let shared = &*self.shared;
        if !shared.guard.is_parent() {
            return Err(ServeError::Forked);
        }
        if let Accept::Automatic(greeting) = &accept
            && greeting.len() > GREETING_BYTES_MAX
        {
            return Err(ServeError::GreetingTooLong(greeting.len()));
        }
        let listener = names::listen(&shared.config, service, access)?;
        let admission = match access {
            Access::SameUser => Admission::SameUser,
            Access::Group(_) => Admission::Group,
            Access::Anyone => Admission::Anyone,
        };
        let mut state = shared.lock();
        if let Some(why) = &state.failed {
            let error = io::Error::other(why.clone());
            return Err(ServeError::Os { path: service.name().into(), error });
        }
        let accept_of_hosts = accept.clone();
        let id = state.machine.serve(service.to_string(), admission, accept);
        if let Err(error) = shared.poller.add(&listener.fd, tag(id.0, LISTENER)) {
            state.machine.stop_serving(&service.to_string());
            return Err(ServeError::Os { path: service.name().into(), error });
        }
        state.listeners.insert(id, listener);
        drop(state);
        self.serve_hosts(service, access, accept_of_hosts);
        Ok(())
    }

    /// No longer serves a name; its links stay. `false`: it was not served.
    pub fn stop_serving(&self, service: &ServiceName) -> bool {
        let shared = &*self.shared;
        if !shared.guard.is_parent() {
            return false;
        }
        self.stop_serving_hosts(service);
        let mut state = shared.lock();
        let found = state.machine.stop_serving(&service.to_string());
        let removed: Vec<NameListener> =
            found.iter().filter_map(|id| state.listeners.remove(id)).collect();
        for listener in &removed {
            shared.poller.remove(&listener.fd);
        }
        shared.finish(state);
        !removed.is_empty()
    }

    /// The application has taken events: the memory and descriptors in them no longer count. Every
    /// other event does the same; so this does not wait for the lock.
    pub fn events_taken(&self) {
        if self.shared.guard.is_parent()
            && let Ok(mut state) = self.shared.state.try_lock()
        {
            state.machine.events_taken(self.shared.inbox.taken());
        }
    }

    /// The queue of events.
    pub fn inbox(&self) -> &Arc<Inbox> {
        &self.shared.inbox
    }

    /// Accepts a request; [`ControlEvent::Connected`] follows when the peer has done its part.
    pub fn accept(&self, request: RequestId, greeting: &[u8]) -> Result<(), AcceptError> {
        if !self.shared.guard.is_parent() {
            return Err(AcceptError::Forked);
        }
        if greeting.len() > GREETING_BYTES_MAX {
            return Err(AcceptError::GreetingTooLong(greeting.len()));
        }
        if let Some(answer) = self.accept_host(request, greeting) {
            return answer;
        }
        let answer = self.call(|machine, now| machine.accept(now, request, greeting.to_vec()));
        // The new deadline may be the earliest.
        self.shared.bell.ring();
        answer
    }

    /// Refuses a request, with a reason in words, of which at most 1 KiB is sent.
    pub fn refuse(&self, request: RequestId, text: &str) -> Result<(), AcceptError> {
        self.refuse_as(request, RefusedBy::Application, text)
    }

    /// The same, counted as refused by another part than the application.
    pub(crate) fn refuse_as(
        &self,
        request: RequestId,
        by: RefusedBy,
        text: &str,
    ) -> Result<(), AcceptError> {
        if !self.shared.guard.is_parent() {
            return Err(AcceptError::Forked);
        }
        if let Some(answer) = self.refuse_host(request, by.reason(), text) {
            return answer;
        }
        self.call(|machine, _| machine.refuse_request(request, by, text))
    }

    /// Tells an operator that the other end of a link is disconnected, and why; the link is
    /// unchanged.
    pub fn note_sent_away(&self, token: LinkToken, peer: &Peer, why: &str) {
        if !self.shared.guard.is_parent() {
            return;
        }
        self.shared.note_sent_away(token, peer, why);
    }

    /// Asks for a bulk ring that this process writes. The answer is an event.
    pub fn request_bulk(&self, token: LinkToken) {
        self.call_if_parent(|machine, _| machine.request_bulk(token));
    }

    /// Tells the other end that its packets were refused because a ticket has been revoked.
    pub fn tell_stale(&self, token: LinkToken, slot: u32, index: u32) {
        if self.tell_host_stale(token, slot, index) {
            return;
        }
        self.call_if_parent(|machine, _| machine.tell_stale(token, slot, index));
    }

    /// Offers an aperture of this process, whose memory is `file`, to the other end; returns its
    /// number. The answer is an event.
    pub fn export_aperture(
        &self,
        token: LinkToken,
        access: ApertureAccess,
        bytes: u64,
        file: OwnedFd,
    ) -> Result<u32, ApertureError> {
        let shared = &*self.shared;
        if !shared.guard.is_parent() {
            return Err(ApertureError::NoLink);
        }
        let mut state = shared.lock();
        let number = state.machine.export_aperture(token, access, bytes);
        if let Ok(number) = number
            && let Some(row) = state.rows.get_mut(&token)
        {
            row.made.insert(Memory::Aperture(number), MadeMemory::Aperture(Arc::new(file)));
        }
        shared.finish(state);
        number
    }

    /// Tells the holder that the owner, this process, has taken its memory back.
    pub fn revoke_aperture(&self, token: LinkToken, number: u32) {
        self.call_if_parent(|machine, _| machine.revoke_aperture(token, number));
    }

    /// Tells the owner that the holder, this process, has released it.
    pub fn release_aperture(&self, token: LinkToken, number: u32) {
        self.call_if_parent(|machine, _| machine.release_aperture(token, number));
    }

    /// The counters, by name. In a forked child, empty: the lock may be held for ever.
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        match self.shared.guard.is_parent() {
            true => self.shared.counters(&self.shared.lock()),
            false => Vec::new(),
        }
    }

    /// For an application that runs the control plane itself: handles events, after waiting for at
    /// most `timeout`. Harmless beside the thread. After an error nothing goes on, and every link
    /// ends.
    pub fn run_once(&self, timeout: Duration) -> io::Result<()> {
        if !self.shared.guard.is_parent() {
            return Err(io::Error::other(FORKED));
        }
        let turn = self.shared.turn(Some(timeout.as_nanos().min(u64::MAX.into()) as u64));
        if let Err(error) = &turn
            && self.thread.is_none()
        {
            self.shared.fail(error);
        }
        turn
    }

    /// The time at which [`run_once`](Self::run_once) must be called even if the descriptor is not
    /// readable, in nanoseconds of [`monotonic_ns`].
    pub fn deadline_ns(&self) -> Option<u64> {
        if self.shared.guard.is_parent() { self.shared.lock().deadline_ns() } else { None }
    }
}

impl AsFd for Control {
    /// Readable when [`run_once`](Self::run_once) has something to do.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.poller.as_fd()
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        if !self.shared.guard.is_parent() {
            // The sockets are the parent's, and so is the thread. The lock may be held for ever.
            self.forget_hosts();
            core::mem::forget(Arc::clone(&self.shared));
            core::mem::forget(self.thread.take());
            return;
        }
        self.shared.is_ending.store(true, Ordering::Release);
        let by_ns = self.end_by_ns.load(Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            end(thread, &self.shared.bell, by_ns);
        }
        let mut state = self.shared.lock();
        state.machine.end_all();
        let listeners = core::mem::take(&mut state.listeners);
        self.shared.finish(state);
        drop(listeners);
        self.end_hosts(by_ns);
        self.shared.tell_log();
        // Links that the application has not taken: one to another host has a reference to this
        // inbox, and would keep itself alive.
        drop(self.shared.inbox.take());
    }
}

impl ShellState {
    fn deadline_ns(&self) -> Option<u64> {
        let dial = self.dialing.values().min().copied();
        let remains = self.remains.front().map(|row| row.0);
        [self.machine.deadline_ns(), dial, remains].into_iter().flatten().min()
    }
}

fn deadline_of(timeout: Duration) -> u64 {
    monotonic_ns().saturating_add(timeout.as_nanos().min(u64::MAX.into()) as u64)
}
