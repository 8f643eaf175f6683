//! [`Control`]: accepts, agrees, watches, and tells.
//!
//! ```text
//! SILENT ----HELLO link----> ASKING --accept--> OFFERED --FILLED, wake--> LINKED
//!   |  \---HELLO wake---> (joins the OFFERED one with its cookie)            |
//!   |  \---HELLO stat---> CLOSING                                            |
//!   |                                                        end of socket   v
//!   +---refused, too slow, nonsense---> CLOSING               without BYE: PARTING
//! ```
//! One thread asleep in epoll, or the application's own loop ([`Control::as_fd`],
//! [`Control::run_once`]), goes through `Shared::turn`. Each connection is a state in a table;
//! everything done for one is a few system calls that cannot block, so no peer holds up another.
//! Calls of the application take the same lock for as long.
//!
//! A hang-up is not death: a forked child keeps the socket open when its parent has died, and a
//! living process may close its socket. So the process itself is watched, too (pidfd), and what
//! its socket still holds is read before its death is reported. PARTING is the short time between
//! the end of a socket and the moment when the kernel says that its process is dead.
//!
//! Never: a lock is held while the application's code runs, or while waiting; a connection is in
//! no account (`State::users`); a descriptor of a stranger's is closed where somebody waits.

mod aperture;

pub use aperture::ApertureError;

use super::handshake::{self, Attempt, ConnectError, Guarded, Ours, ServerFiles};
use super::hello::{self, COOKIE_BYTES, Frame, FrameError, Hello, LinkFeatures, Purpose, Reason};
use super::hello::{Offer, Writer};
use super::names::{self, Access, Listener, ServeError, ServiceName};
use super::{FORKED, GREETING_BYTES_MAX};
use crate::config::{AdmitUnknown, Config, ConfigError, Housekeeping};
use crate::link::ring::packet_bytes_max;
use crate::os::aperture::{Owned, Pages};
use crate::os::memory::{self, ForkGuard, Region, RegionLines, SEALS_READ_ONLY, SEALS_SIZE};
use crate::os::socket::{self, Identity};
use crate::os::sys::{self, Bell, Poller, Ready, monotonic_ns};
use crate::wire::{LINE_BYTES, NodeId};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use core::time::Duration;
use std::boxed::Box;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::string::{String, ToString};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::vec::Vec;

/// Names a link of this process. Never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LinkToken(pub u64);

/// Names a request to be linked that waits for the application's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// How a service answers who may connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Accept {
    /// Yes, with this greeting.
    Automatic(Vec<u8>),
    /// The application is asked ([`ControlEvent::Request`]).
    Ask,
}

/// Who is at the other end of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its interface, as it says itself.
    pub node: NodeId,
    /// Its user, as the kernel says; `None`: of another user namespace.
    pub uid: Option<u32>,
    /// Its group, likewise.
    pub gid: Option<u32>,
    /// Its process; `None` if it cannot be seen from here.
    pub pid: Option<u32>,
    /// A number that only its process has, also where it cannot be seen; `None` before Linux 6.9.
    pub process: Option<u64>,
    /// The service through which the link was made.
    pub service: String,
}

/// A link that has been agreed.
#[derive(Debug)]
pub struct NewLink {
    /// Its name for [`Control`].
    pub token: LinkToken,
    /// Who is at the other end.
    pub peer: Peer,
    /// The other end's first words.
    pub greeting: Vec<u8>,
    /// What this process writes.
    pub outgoing: Region,
    /// What the other process writes.
    pub incoming: Region,
    /// Carries single bytes, which say "wake up"; not blocking. Full: it has been said already.
    pub wake: OwnedFd,
    /// Most data bytes of a packet, as agreed; a ring may lower it.
    pub packet_bytes: u32,
    /// What both can.
    pub features: LinkFeatures,
    /// Whether this process connected.
    pub initiated_by_us: bool,
    /// The request that this process accepted, if it was asked.
    pub request: Option<RequestId>,
}

/// Why a link ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CloseReason {
    /// The other end said that it was done; what it wrote is complete.
    Graceful,
    /// Its process died.
    Died,
    /// Its process lives and closed the connection without a word.
    HungUp,
    /// It sent what no honest process sends.
    Violation,
    /// It says that this process did.
    Expelled,
}

/// What happened. Each is told once.
#[derive(Debug)]
pub enum ControlEvent {
    /// Somebody wants a link to a service that asks.
    Request {
        /// For the answer.
        id: RequestId,
        /// Who.
        peer: Peer,
        /// Its first words.
        greeting: Vec<u8>,
    },
    /// A request was withdrawn before it was answered, or did not become a link afterwards.
    RequestGone {
        /// Which.
        id: RequestId,
    },
    /// A link that another process asked for is there.
    Connected(NewLink),
    /// A bulk ring that this process writes is there.
    BulkOutgoing {
        /// Whose.
        token: LinkToken,
        /// The ring.
        lines: RegionLines,
    },
    /// A bulk ring that the other process writes is there.
    BulkIncoming {
        /// Whose.
        token: LinkToken,
        /// The ring.
        lines: RegionLines,
    },
    /// There will be no bulk ring that this process writes.
    BulkRefused {
        /// Whose.
        token: LinkToken,
        /// Why.
        why: Reason,
    },
    /// The memory of an aperture that this process owns is there; nobody holds it yet. Only for
    /// the end that connected; the other makes its memory itself.
    ApertureMapped {
        /// Whose.
        token: LinkToken,
        /// Which.
        number: u32,
        /// The memory.
        owned: Owned,
    },
    /// The holder of an aperture has mapped it.
    ApertureReady {
        /// Whose.
        token: LinkToken,
        /// Which.
        number: u32,
    },
    /// Nobody will hold the aperture.
    ApertureRefused {
        /// Whose.
        token: LinkToken,
        /// Which.
        number: u32,
        /// Why.
        why: Reason,
    },
    /// The holder has let go of an aperture.
    ApertureReleased {
        /// Whose.
        token: LinkToken,
        /// Which.
        number: u32,
    },
    /// This process holds an aperture of the other end.
    ApertureHeld {
        /// Whose.
        token: LinkToken,
        /// Which.
        number: u32,
        /// The memory.
        pages: Pages,
    },
    /// The other end has taken an aperture back; let go with
    /// [`release_aperture`](Control::release_aperture).
    ApertureRevoked {
        /// Whose.
        token: LinkToken,
        /// Which.
        number: u32,
    },
    /// A link ended. What the other end had written can still be read: the regions stay mapped
    /// as long as somebody holds them.
    Closed {
        /// Which.
        token: LinkToken,
        /// Why.
        reason: CloseReason,
    },
}

impl ControlEvent {
    /// The link that it is about, if it is about one.
    pub fn token(&self) -> Option<LinkToken> {
        match self {
            Self::Request { .. } | Self::RequestGone { .. } => None,
            Self::Connected(link) => Some(link.token),
            Self::BulkOutgoing { token, .. }
            | Self::BulkIncoming { token, .. }
            | Self::BulkRefused { token, .. }
            | Self::ApertureMapped { token, .. }
            | Self::ApertureReady { token, .. }
            | Self::ApertureRefused { token, .. }
            | Self::ApertureReleased { token, .. }
            | Self::ApertureHeld { token, .. }
            | Self::ApertureRevoked { token, .. }
            | Self::Closed { token, .. } => Some(*token),
        }
    }
}

/// Where events wait for the application.
#[derive(Debug)]
pub struct Inbox {
    pending: AtomicBool,
    events: Mutex<VecDeque<ControlEvent>>,
    bell: Bell,
}

impl Inbox {
    fn new() -> io::Result<Self> {
        let events = Mutex::default();
        Ok(Self { pending: AtomicBool::new(false), events, bell: Bell::new()? })
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<ControlEvent>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, event: ControlEvent) {
        let mut events = self.lock();
        // A request that nobody has seen yet is withdrawn in silence.
        if let ControlEvent::RequestGone { id: gone } = event {
            let is_it =
                |e: &ControlEvent| matches!(e, ControlEvent::Request { id, .. } if *id == gone);
            if let Some(at) = events.iter().position(is_it) {
                events.remove(at);
                return;
            }
        }
        let is_first = events.is_empty();
        events.push_back(event);
        self.pending.store(true, Ordering::Release);
        // Last: whoever is woken looks at `pending` without the lock, and, where its wake-ups are
        // edges, sleeps for good if it sees nothing.
        if is_first {
            self.bell.ring();
        }
    }

    /// Whether events wait. One load.
    #[inline(always)]
    pub fn is_pending(&self) -> bool {
        self.pending.load(Ordering::Relaxed)
    }

    /// Takes all events, in the order in which they happened.
    pub fn take(&self) -> Vec<ControlEvent> {
        let mut events = self.lock();
        self.pending.store(false, Ordering::Relaxed);
        if !events.is_empty() {
            self.bell.silence();
        }
        events.drain(..).collect()
    }
}

impl AsFd for Inbox {
    /// Readable while events wait.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        /// What the control plane has counted.
        #[derive(Debug, Default)]
        struct Counters { $($(#[doc = $doc])+ $name: AtomicU64,)+ }

        impl Counters {
            fn list(&self) -> Vec<(&'static str, u64)> {
                std::vec![$((concat!("control.", stringify!($name)), self.$name.load(Ordering::Relaxed)),)+]
            }
        }
    };
}

counters! {
    /// Connections accepted by the socket.
    connections,
    /// Links agreed, of either side.
    links,
    /// Second connections that found their link.
    wake_connections,
    /// Questions for statistics answered.
    statistics,
    /// Apertures that were mapped by their holder, of either side.
    apertures,
    /// Links that ended with a goodbye.
    closed_graceful,
    /// Links whose process died.
    closed_died,
    /// Links closed by a process that lives, without a word.
    closed_hung_up,
    /// Links closed because of what the other end sent on its control socket.
    closed_violation,
    /// Links that this process closed because of what the other end wrote in its ring.
    closed_by_us_violation,
    /// Links that the other end closed for that reason.
    closed_expelled,
    /// Connections that ended before they said anything.
    left_silent,
    /// Connections that ended on the way to a link.
    left_half_way,
    /// Another major version.
    refused_version,
    /// A required feature that this process lacks.
    refused_feature,
    /// A user who may not connect.
    refused_user,
    /// A user with too many connections.
    refused_connections,
    /// A user with too many bytes.
    refused_bytes,
    /// More links than this process may have.
    refused_links,
    /// The application said no.
    refused_application,
    /// Nothing was said in time.
    refused_silent,
    /// The next step was not made in time.
    refused_slow,
    /// Dropped to make room for others that have not yet spoken.
    refused_half_open,
    /// Frames that made no sense, or came out of turn.
    refused_frame,
    /// Descriptors that came where none may.
    refused_descriptor,
    /// Memory that was not filled, sealed or sized as agreed.
    refused_memory,
    /// Second connections of another process, or with a cookie that nobody has.
    refused_cookie,
    /// Statistics asked for by another user.
    refused_statistics,
    /// Bulk rings refused.
    refused_bulk,
    /// Apertures that this process would not hold.
    refused_aperture,
    /// No descriptors or no memory for a new connection.
    refused_exhausted,
    /// Times that a listener rested, there being no room for a new connection or its events.
    rests,
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// The control plane could not be started. Nothing is left of it.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A setting is not allowed.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The system refused.
    #[error("while {doing}: {source}")]
    Os {
        /// What was being done.
        doing: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

/// An answer that could not be given. The request is as it was, unless it says otherwise.
#[derive(Debug, thiserror::Error)]
pub enum AcceptError {
    /// It is not there: never was, was answered, or its process went away.
    #[error("request {} is not waiting for an answer", .0.0)]
    NoSuchRequest(RequestId),
    /// The greeting is longer than a frame takes.
    #[error("a greeting of {0} bytes; at most {GREETING_BYTES_MAX} are allowed")]
    GreetingTooLong(usize),
    /// There is no room; the request was refused for that reason.
    #[error("the request was refused: {0}")]
    Refused(Reason),
    /// This process is a child of the one that started the control plane.
    #[error("{FORKED}")]
    Forked,
}

struct Service {
    listener: Listener,
    name: String,
    accept: Accept,
    is_paused: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Usage {
    connections: u32,
    silent: u32,
    bytes: u64,
    /// Apertures that this process holds for its links, whoever asked for these.
    apertures: u32,
}

enum Bulk {
    None,
    /// Client, its own: waits for an OFFER of at most so many bytes.
    Requested(u32),
    /// Server, its own: waits for FILLED.
    Offered {
        file: OwnedFd,
        lines: RegionLines,
        bytes: u32,
    },
    /// Server, the client's: waits for FILLED.
    Awaited {
        file: OwnedFd,
        bytes: u32,
    },
    /// Client, its own: waits for READY.
    Filled(RegionLines),
    /// In use.
    Present,
}

struct Offered {
    hello: Hello,
    files: ServerFiles,
    features: LinkFeatures,
    packet_bytes: u32,
    cookie: [u8; COOKIE_BYTES],
    wake: Option<OwnedFd>,
    is_filled: bool,
    request: Option<RequestId>,
}

enum Stage {
    Silent,
    Asking(Box<Hello>),
    Offered(Box<Offered>),
    /// The bulk rings that the client and the server write.
    Linked(Box<[Bulk; 2]>),
    /// Its socket ended; the kernel has not yet said whether its process did.
    Parting,
    /// What is in the outbox goes out, then it ends.
    Closing,
}

struct Connection {
    socket: OwnedFd,
    pidfd: Option<OwnedFd>,
    identity: Identity,
    service: String,
    /// Which listener; 0 for a link that this process asked for.
    listener: u64,
    /// Who this process is here.
    role: Writer,
    features: LinkFeatures,
    stage: Stage,
    outbox: VecDeque<Vec<u8>>,
    is_writing: bool,
    apertures: aperture::Apertures,
    /// When a bulk ring that was offered must have been filled.
    bulk_until: Option<u64>,
    /// Key in `State::deadlines`.
    deadline: Option<u64>,
    bytes: u64,
}

const OUTBOX_MAX: usize = 300;
const SOCKET: u64 = 0;
const PIDFD: u64 = 1;
const LISTENER: u64 = 2;
const BELL: u64 = u64::MAX;
/// How long the kernel may take from closing a dying process's socket to saying that it died.
const PARTING_NS: u64 = 100_000_000;
/// How long a listener rests when there are no descriptors left.
const EXHAUSTED_NS: u64 = 50_000_000;
/// Frames taken from one connection before the next one's turn.
const FRAMES_PER_TURN: usize = 8;
/// Frames that are still read of a process that has died. An honest one has a handful there.
const FRAMES_OF_THE_DEAD: usize = 32;
/// Events that may wait for the application. Beyond, nobody new is accepted: a peer that comes
/// and goes must not fill the memory of a program that makes no calls.
const EVENTS_MAX: usize = 1024;
/// Connections taken from one listener before anything else.
const ACCEPTS_PER_TURN: usize = 16;

fn tag(id: u64, what: u64) -> u64 {
    id << 2 | what
}

#[derive(Default)]
struct State {
    last: u64,
    services: HashMap<u64, Service>,
    connections: HashMap<u64, Connection>,
    cookies: HashMap<[u8; COOKIE_BYTES], u64>,
    users: HashMap<Option<u32>, Usage>,
    /// Monotonic nanoseconds, and the connection or listener.
    deadlines: BTreeSet<(u64, u64)>,
    /// Silent ones, oldest first.
    silent: BTreeSet<u64>,
    links: u32,
    /// Statistics that have been asked for.
    asked: Vec<u64>,
    /// To be closed elsewhere.
    discarded: Vec<OwnedFd>,
}

struct Shared {
    config: Config,
    node: NodeId,
    features: LinkFeatures,
    stat: Arc<dyn Fn() -> String + Send + Sync>,
    poller: Poller,
    bell: Bell,
    inbox: Arc<Inbox>,
    counters: Counters,
    state: Mutex<State>,
    is_ending: AtomicBool,
    guard: ForkGuard,
    /// Whether accepted sockets cannot hold a stranger's descriptors.
    has_pass_rights: bool,
}

/// The control plane of a process. Ends with a goodbye to every link when dropped.
pub struct Control {
    shared: Arc<Shared>,
    thread: Option<std::thread::JoinHandle<()>>,
    notes: Vec<String>,
}

impl core::fmt::Debug for Control {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Control").field("node", &self.shared.node).finish_non_exhaustive()
    }
}

impl Control {
    /// Starts it. `stat` makes the text that [`stat_of`] gets; it is called from the housekeeping
    /// thread, or from [`run_once`](Self::run_once).
    pub fn start(
        config: &Config,
        node: NodeId,
        stat: Arc<dyn Fn() -> String + Send + Sync>,
    ) -> Result<Self, StartError> {
        config.validate()?;
        let doing = |doing| move |source| StartError::Os { doing, source };
        let mut notes = Vec::new();
        // Three for each link, and some for the application.
        let needed = (u64::from(config.links_max) * 3 + 64).max(1024);
        if let Some(raised) = sys::raise_descriptor_limit(needed) {
            notes.push(std::format!(
                "the soft limit on descriptors was raised from {} to {}",
                raised.from,
                raised.to
            ));
        }
        if config.undumpable {
            sys::make_undumpable().map_err(doing("making the process undumpable"))?;
        }
        let mut features = LinkFeatures::APERTURE;
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
        let shared = Arc::new(Shared {
            config: config.clone(),
            node,
            features,
            stat,
            poller: Poller::new().map_err(doing("making an epoll descriptor"))?,
            bell: Bell::new().map_err(doing("making an event descriptor"))?,
            inbox: Arc::new(Inbox::new().map_err(doing("making an event descriptor"))?),
            counters: Counters::default(),
            state: Mutex::default(),
            is_ending: AtomicBool::new(false),
            guard: ForkGuard::new().map_err(doing("mapping a page"))?,
            has_pass_rights,
        });
        shared.poller.add(&shared.bell, BELL).map_err(doing("watching an event descriptor"))?;
        let thread = match config.housekeeping {
            Housekeeping::Application => None,
            Housekeeping::Thread => {
                let shared = Arc::clone(&shared);
                let builder =
                    std::thread::Builder::new().name("hamlyn-control".into()).stack_size(256 << 10);
                let run = move || {
                    while !shared.is_ending.load(Ordering::Acquire) {
                        if shared.turn(None).is_err() {
                            // Only a descriptor closed behind our back ends here.
                            break;
                        }
                    }
                };
                Some(builder.spawn(run).map_err(doing("starting the housekeeping thread"))?)
            }
        };
        Ok(Self { shared, thread, notes })
    }

    /// What was done or is missing, in words: nothing is silently different.
    pub fn notes(&self) -> &[String] {
        &self.notes
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
        let mut state = shared.lock();
        let id = state.next();
        shared
            .poller
            .add(&listener.fd, tag(id, LISTENER))
            .map_err(|source| ServeError::Os { path: service.name().into(), source })?;
        let name = service.to_string();
        state.services.insert(id, Service { listener, name, accept, is_paused: false });
        Ok(())
    }

    /// No longer serves a name; its links stay. `false`: it was not served.
    pub fn stop_serving(&self, service: &ServiceName) -> bool {
        let shared = &*self.shared;
        let mut state = shared.lock();
        let name = service.to_string();
        let found: Vec<u64> =
            state.services.iter().filter(|row| row.1.name == name).map(|row| *row.0).collect();
        let removed: Vec<_> = found.iter().filter_map(|id| state.services.remove(id)).collect();
        for service in &removed {
            shared.poller.remove(&service.listener.fd);
        }
        drop(state);
        !removed.is_empty()
    }

    /// Connects to a service, in the caller, within a time limit.
    pub fn connect(
        &self,
        service: &ServiceName,
        greeting: &[u8],
        timeout: Duration,
    ) -> Result<NewLink, ConnectError> {
        let shared = &*self.shared;
        if !shared.guard.is_parent() {
            return Err(ConnectError::Forked);
        }
        {
            let mut state = shared.lock();
            if state.links >= shared.config.links_max {
                return Err(ConnectError::Links(state.links));
            }
            // Reserved, so that several connecting at once keep to the limit.
            state.links += 1;
        }
        let go_on = || {
            let _ = shared.turn(Some(0));
        };
        let attempt = Attempt {
            deadline_ns: deadline_of(timeout),
            meanwhile: match shared.config.housekeeping {
                Housekeeping::Thread => None,
                Housekeeping::Application => Some((shared.poller.as_fd(), &go_on)),
            },
        };
        let ours = Ours { node: shared.node.0, features: shared.features };
        let connected = match attempt.connect(&shared.config, &ours, service, greeting) {
            Ok(connected) => connected,
            Err(e) => {
                shared.lock().links -= 1;
                return Err(e);
            }
        };
        let Offer { node, features, packet_bytes, greeting, .. } = connected.offer;
        let features = LinkFeatures::from_bits_truncate(features);
        let mut state = shared.lock();
        let id = state.next();
        let connection = Connection {
            socket: connected.control,
            pidfd: connected.pidfd,
            identity: connected.identity,
            service: service.to_string(),
            listener: 0,
            role: Writer::Client,
            features,
            stage: Stage::Linked(Box::new([Bulk::None, Bulk::None])),
            outbox: VecDeque::new(),
            is_writing: false,
            apertures: aperture::Apertures::default(),
            bulk_until: None,
            deadline: None,
            bytes: 0,
        };
        if let Err(source) = shared.watch(id, &connection) {
            state.links -= 1;
            drop(Guarded(Some(connection.socket)));
            return Err(ConnectError::Os { doing: "watching the connection", source });
        }
        let peer = connection.peer(node);
        state.connections.insert(id, connection);
        count(&shared.counters.links);
        Ok(NewLink {
            token: LinkToken(id),
            peer,
            greeting,
            outgoing: connected.outgoing,
            incoming: connected.incoming,
            wake: connected.wake,
            packet_bytes,
            features,
            initiated_by_us: true,
            request: None,
        })
    }

    /// Where events wait.
    pub fn inbox(&self) -> &Arc<Inbox> {
        &self.shared.inbox
    }

    /// Says yes to a request; [`ControlEvent::Connected`] follows when the peer has done its part.
    pub fn accept(&self, request: RequestId, greeting: &[u8]) -> Result<(), AcceptError> {
        let shared = &*self.shared;
        if !shared.guard.is_parent() {
            return Err(AcceptError::Forked);
        }
        if greeting.len() > GREETING_BYTES_MAX {
            return Err(AcceptError::GreetingTooLong(greeting.len()));
        }
        let mut state = shared.lock();
        let hello = match state.connections.get_mut(&request.0) {
            Some(c) => match core::mem::replace(&mut c.stage, Stage::Closing) {
                Stage::Asking(hello) => hello,
                other => {
                    c.stage = other;
                    return Err(AcceptError::NoSuchRequest(request));
                }
            },
            None => return Err(AcceptError::NoSuchRequest(request)),
        };
        let answer = shared.offer(&mut state, request.0, *hello, greeting, Some(request));
        shared.finish(state);
        // The new deadline may be the earliest.
        shared.bell.ring();
        answer.map_err(AcceptError::Refused)
    }

    /// Says no to a request, with a reason in words, of which at most 1 KiB is sent.
    pub fn refuse(&self, request: RequestId, text: &str) -> Result<(), AcceptError> {
        let shared = &*self.shared;
        if !shared.guard.is_parent() {
            return Err(AcceptError::Forked);
        }
        let mut state = shared.lock();
        match state.connections.get(&request.0) {
            Some(Connection { stage: Stage::Asking(_), .. }) => {}
            _ => return Err(AcceptError::NoSuchRequest(request)),
        }
        count(&shared.counters.refused_application);
        shared.refuse(&mut state, request.0, Reason::Application, text);
        shared.finish(state);
        Ok(())
    }

    /// Ends a link with a goodbye; what was written can still be read at the other end.
    pub fn close(&self, token: LinkToken) {
        self.end(token, &Frame::Bye);
    }

    /// Ends a link without a goodbye, because not everything has been written; what was can still
    /// be read at the other end.
    pub fn hang_up(&self, token: LinkToken) {
        let shared = &*self.shared;
        if !shared.guard.is_parent() {
            return;
        }
        let mut state = shared.lock();
        if let Some(Connection { stage: Stage::Linked(_) | Stage::Parting, .. }) =
            state.connections.get(&token.0)
        {
            shared.remove(&mut state, token.0);
        }
        shared.finish(state);
    }

    /// Ends a link whose other end wrote what no honest process writes.
    pub fn violated(&self, token: LinkToken) {
        count(&self.shared.counters.closed_by_us_violation);
        let frame = refused(Reason::Malformed, "the ring held what no honest process writes");
        self.end(token, &frame);
    }

    fn end(&self, token: LinkToken, last: &Frame) {
        let shared = &*self.shared;
        if !shared.guard.is_parent() {
            return;
        }
        let mut state = shared.lock();
        if let Some(Connection { stage: Stage::Linked(_) | Stage::Parting, .. }) =
            state.connections.get(&token.0)
        {
            shared.say_and_end(&mut state, token.0, last);
        }
        shared.finish(state);
    }

    /// Asks for a bulk ring that this process writes. The answer is an event.
    pub fn request_bulk(&self, token: LinkToken) {
        let shared = &*self.shared;
        if !shared.guard.is_parent() {
            return;
        }
        let mut state = shared.lock();
        if let Err(why) = shared.request_bulk(&mut state, token.0) {
            shared.inbox.put(ControlEvent::BulkRefused { token, why });
        }
        shared.finish(state);
    }

    /// What has been counted, by name.
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        self.shared.counters.list()
    }

    /// Where the application runs it: handles what has happened, after waiting for at most
    /// `timeout`. Harmless beside the thread.
    pub fn run_once(&self, timeout: Duration) -> io::Result<()> {
        if !self.shared.guard.is_parent() {
            return Err(io::Error::other(FORKED));
        }
        self.shared.turn(Some(timeout.as_nanos().min(u64::MAX.into()) as u64))
    }

    /// When [`run_once`](Self::run_once) must be called though the descriptor is not readable, in
    /// nanoseconds of [`monotonic_ns`].
    pub fn deadline_ns(&self) -> Option<u64> {
        self.shared.lock().deadlines.first().map(|first| first.0)
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
            core::mem::forget(Arc::clone(&self.shared));
            core::mem::forget(self.thread.take());
            return;
        }
        self.shared.is_ending.store(true, Ordering::Release);
        self.shared.bell.ring();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        let mut state = self.shared.lock();
        let ids: Vec<(u64, bool)> = state
            .connections
            .iter()
            .map(|(id, c)| (*id, matches!(c.stage, Stage::Linked(_))))
            .collect();
        let no = refused(Reason::Unavailable, "the process is ending");
        for (id, is_linked) in ids {
            self.shared.say_and_end(&mut state, id, if is_linked { &Frame::Bye } else { &no });
        }
        let services = core::mem::take(&mut state.services);
        self.shared.finish(state);
        drop(services);
    }
}

fn deadline_of(timeout: Duration) -> u64 {
    monotonic_ns().saturating_add(timeout.as_nanos().min(u64::MAX.into()) as u64)
}

fn refused(reason: Reason, text: &str) -> Frame {
    let mut end = text.len().min(1024);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let version = (hello::VERSION_MAJOR, hello::VERSION_MINOR);
    Frame::Refused { reason, version, text: text[..end].into() }
}

impl State {
    fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    fn set_deadline(&mut self, id: u64, at: Option<u64>) {
        if let Some(c) = self.connections.get_mut(&id) {
            if let Some(old) = c.deadline.take() {
                self.deadlines.remove(&(old, id));
            }
            if let Some(at) = at {
                c.deadline = Some(at);
                self.deadlines.insert((at, id));
            }
        }
    }

    fn user(&mut self, uid: Option<u32>) -> &mut Usage {
        self.users.entry(uid).or_default()
    }

    fn no_longer_silent(&mut self, id: u64) {
        if self.silent.remove(&id) {
            let uid = self.connections.get(&id).and_then(|c| c.identity.uid);
            let usage = self.user(uid);
            usage.silent = usage.silent.saturating_sub(1);
        }
    }

    /// Gives the bytes back to their user.
    fn give_back(&mut self, id: u64, bytes: u64) {
        if let Some(c) = self.connections.get_mut(&id) {
            c.bytes = c.bytes.saturating_sub(bytes);
            let uid = c.identity.uid;
            let usage = self.user(uid);
            usage.bytes = usage.bytes.saturating_sub(bytes);
        }
    }
}

impl Connection {
    fn peer(&self, node: u32) -> Peer {
        Peer {
            node: NodeId(node),
            uid: self.identity.uid,
            gid: self.identity.gid,
            pid: self.identity.pid,
            process: self.pidfd.as_ref().and_then(socket::process_number),
            service: self.service.clone(),
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets the lock go, and then closes what is to be closed elsewhere.
    fn finish(&self, mut state: MutexGuard<'_, State>) {
        let discarded = core::mem::take(&mut state.discarded);
        drop(state);
        memory::close_elsewhere(discarded);
    }

    fn watch(&self, id: u64, c: &Connection) -> io::Result<()> {
        self.poller.add(&c.socket, tag(id, SOCKET))?;
        if let Some(pidfd) = &c.pidfd
            && let Err(e) = self.poller.add(pidfd, tag(id, PIDFD))
        {
            self.poller.remove(&c.socket);
            return Err(e);
        }
        Ok(())
    }

    fn timeout_ns(&self) -> u64 {
        u64::from(self.config.handshake_timeout_ms) * 1_000_000
    }

    /// Waits for something to happen, until the next deadline, for at most `limit_ns`; handles it.
    fn turn(&self, limit_ns: Option<u64>) -> io::Result<()> {
        let next = self.lock().deadlines.first().map(|first| first.0);
        let until = next.map(|at| at.saturating_sub(monotonic_ns()));
        let timeout = match (until, limit_ns) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        let mut ready = Vec::with_capacity(64);
        self.poller.wait(timeout, &mut ready)?;
        let mut state = self.lock();
        for ready in ready {
            self.handle(&mut state, ready);
        }
        self.expire(&mut state);
        let asked = core::mem::take(&mut state.asked);
        self.finish(state);
        if !asked.is_empty() {
            // The application's code runs without the lock.
            let text = (self.stat)();
            let mut state = self.lock();
            for id in asked {
                self.answer_stat(&mut state, id, &text);
            }
            self.finish(state);
        }
        Ok(())
    }

    fn handle(&self, state: &mut State, ready: Ready) {
        if ready.tag == BELL {
            self.bell.silence();
            return;
        }
        let id = ready.tag >> 2;
        match ready.tag & 3 {
            LISTENER => self.accept_some(state, id),
            PIDFD => {
                // What it said before it died comes first: it may be a goodbye. Bounded, because a
                // child of it may hold the socket and go on talking.
                for _ in 0..FRAMES_OF_THE_DEAD {
                    if !state.connections.contains_key(&id) || !self.read_one(state, id) {
                        break;
                    }
                }
                if state.connections.contains_key(&id) {
                    self.ended(state, id, CloseReason::Died);
                }
            }
            _ => {
                if ready.writable {
                    self.flush(state, id);
                }
                if ready.readable {
                    for _ in 0..FRAMES_PER_TURN {
                        if !state.connections.contains_key(&id) || !self.read_one(state, id) {
                            break;
                        }
                    }
                }
            }
        }
    }

    fn expire(&self, state: &mut State) {
        let now = monotonic_ns();
        while let Some(&(at, id)) = state.deadlines.first() {
            if at > now {
                break;
            }
            state.deadlines.remove(&(at, id));
            if let Some(service) = state.services.get_mut(&id) {
                service.is_paused = false;
                let _ = self.poller.want_write(&service.listener.fd, tag(id, LISTENER), false);
                continue;
            }
            let Some(c) = state.connections.get_mut(&id) else { continue };
            c.deadline = None;
            match c.stage {
                Stage::Silent => {
                    count(&self.counters.refused_silent);
                    self.refuse(state, id, Reason::TooSlow, "nothing was said in time");
                }
                Stage::Offered(_) => {
                    count(&self.counters.refused_slow);
                    self.refuse(state, id, Reason::TooSlow, "the memory was not filled in time");
                }
                Stage::Parting => self.ended(state, id, CloseReason::HungUp),
                Stage::Linked(_) => {
                    self.expire_bulk(state, id, now);
                    self.expire_apertures(state, id);
                    self.link_deadline(state, id);
                }
                Stage::Asking(_) => {
                    self.inbox.put(ControlEvent::RequestGone { id: RequestId(id) });
                    let why = "the application did not answer in time";
                    self.refuse(state, id, Reason::TooSlow, why);
                }
                Stage::Closing => self.remove(state, id),
            }
        }
    }

    fn accept_some(&self, state: &mut State, id: u64) {
        for _ in 0..ACCEPTS_PER_TURN {
            let Some(service) = state.services.get(&id) else { return };
            if service.is_paused {
                return;
            }
            let accepted = if self.inbox.lock().len() < EVENTS_MAX {
                socket::accept(&service.listener.fd)
            } else {
                Err(io::ErrorKind::ResourceBusy.into())
            };
            match accepted {
                Ok(Some(socket)) => self.accepted(state, id, socket),
                Ok(None) => return,
                Err(_) => {
                    // No descriptors, no memory, or an application that takes no events: the
                    // listener rests, or it would be ready all the time. Who waits in its queue
                    // is served when there is room again.
                    count(&self.counters.rests);
                    let service = state.services.get_mut(&id).expect("looked up above");
                    service.is_paused = true;
                    let _ = self.poller.pause(&service.listener.fd, tag(id, LISTENER));
                    state.deadlines.insert((monotonic_ns() + EXHAUSTED_NS, id));
                    return;
                }
            }
        }
    }

    fn accepted(&self, state: &mut State, listener: u64, socket: OwnedFd) {
        count(&self.counters.connections);
        let Ok(identity) = socket::identity(&socket) else {
            count(&self.counters.refused_exhausted);
            state.discarded.push(socket);
            return;
        };
        let max = self.config.connections_per_user_max;
        let usage = *state.user(identity.uid);
        if usage.connections >= max {
            count(&self.counters.refused_connections);
            let text = std::format!("{max} connections, which is connections_per_user_max");
            let frame = refused(Reason::Connections, &text).to_bytes();
            let _ = socket::send(&socket, &frame, &[]);
            self.discard(state, socket);
            return;
        }
        if state.silent.len() >= self.config.half_open_max as usize {
            self.make_room(state);
        }
        let service = state.services.get(&listener).expect("looked up by the caller").name.clone();
        let id = state.next();
        let connection = Connection {
            pidfd: None,
            socket,
            identity,
            service,
            listener,
            role: Writer::Server,
            features: LinkFeatures::empty(),
            stage: Stage::Silent,
            outbox: VecDeque::new(),
            is_writing: false,
            apertures: aperture::Apertures::default(),
            bulk_until: None,
            deadline: None,
            bytes: 0,
        };
        if self.watch(id, &connection).is_err() {
            count(&self.counters.refused_exhausted);
            self.discard(state, connection.socket);
            return;
        }
        state.connections.insert(id, connection);
        state.silent.insert(id);
        let usage = state.user(identity.uid);
        usage.connections += 1;
        usage.silent += 1;
        state.set_deadline(id, Some(monotonic_ns() + self.timeout_ns()));
    }

    /// Drops the oldest silent connection of the user who has most of them: whoever floods, drops
    /// only his own.
    fn make_room(&self, state: &mut State) {
        let most = state.users.iter().max_by_key(|row| row.1.silent).map(|row| *row.0);
        let oldest = state
            .silent
            .iter()
            .copied()
            .find(|id| state.connections.get(id).map(|c| c.identity.uid) == most);
        if let Some(id) = oldest {
            count(&self.counters.refused_half_open);
            self.refuse(state, id, Reason::Connections, "too many connections said nothing yet");
        }
    }

    /// A socket that this process accepted holds no descriptors where the kernel can see to it;
    /// one that it connected, or any on an older kernel, may.
    fn discard(&self, state: &mut State, socket: OwnedFd) {
        if !self.has_pass_rights {
            state.discarded.push(socket);
        }
    }

    /// Takes it out of every account.
    fn take(&self, state: &mut State, id: u64) -> Option<Connection> {
        state.set_deadline(id, None);
        state.no_longer_silent(id);
        let c = state.connections.remove(&id)?;
        self.poller.remove(&c.socket);
        if let Some(pidfd) = &c.pidfd {
            self.poller.remove(pidfd);
        }
        if let Stage::Offered(offered) = &c.stage {
            state.cookies.remove(&offered.cookie);
        }
        if matches!(c.stage, Stage::Linked(_) | Stage::Parting | Stage::Offered(_)) {
            state.links = state.links.saturating_sub(1);
        }
        let usage = state.user(c.identity.uid);
        usage.apertures = usage.apertures.saturating_sub(c.apertures.held());
        if c.role == Writer::Server {
            usage.connections = usage.connections.saturating_sub(1);
            usage.bytes = usage.bytes.saturating_sub(c.bytes);
        }
        if usage.connections == 0 && usage.apertures == 0 {
            state.users.remove(&c.identity.uid);
        }
        Some(c)
    }

    fn remove(&self, state: &mut State, id: u64) {
        if let Some(c) = self.take(state, id) {
            match c.role {
                Writer::Client => state.discarded.push(c.socket),
                Writer::Server => self.discard(state, c.socket),
            }
        }
    }

    /// Says one last thing, if there is room for it, and ends.
    fn say_and_end(&self, state: &mut State, id: u64, frame: &Frame) {
        if let Some(c) = state.connections.get(&id)
            && c.outbox.is_empty()
        {
            let _ = socket::send(&c.socket, &frame.to_bytes(), &[]);
        }
        self.remove(state, id);
    }

    /// Says no, and ends. A request of the application's is withdrawn.
    fn refuse(&self, state: &mut State, id: u64, reason: Reason, text: &str) {
        let gone = state.connections.get(&id).and_then(|c| match &c.stage {
            Stage::Offered(offered) => offered.request,
            _ => None,
        });
        if let Some(id) = gone {
            self.inbox.put(ControlEvent::RequestGone { id });
        }
        self.say_and_end(state, id, &refused(reason, text));
    }

    /// The other end is gone, or is to be taken for gone.
    fn ended(&self, state: &mut State, id: u64, reason: CloseReason) {
        let Some(c) = state.connections.get(&id) else { return };
        match &c.stage {
            Stage::Silent => count(&self.counters.left_silent),
            Stage::Asking(_) => {
                count(&self.counters.left_half_way);
                self.inbox.put(ControlEvent::RequestGone { id: RequestId(id) });
            }
            Stage::Offered(offered) => {
                count(&self.counters.left_half_way);
                if let Some(id) = offered.request {
                    self.inbox.put(ControlEvent::RequestGone { id });
                }
            }
            Stage::Closing => {}
            Stage::Linked(_) | Stage::Parting => {
                count(match reason {
                    CloseReason::Graceful => &self.counters.closed_graceful,
                    CloseReason::Died => &self.counters.closed_died,
                    CloseReason::HungUp => &self.counters.closed_hung_up,
                    CloseReason::Violation => &self.counters.closed_violation,
                    CloseReason::Expelled => &self.counters.closed_expelled,
                });
                self.inbox.put(ControlEvent::Closed { token: LinkToken(id), reason });
            }
        }
        self.remove(state, id);
    }

    /// The socket has ended without a goodbye. Is the process dead?
    fn hung_up(&self, state: &mut State, id: u64) {
        let Some(c) = state.connections.get_mut(&id) else { return };
        match (&c.stage, &c.pidfd) {
            (Stage::Linked(_), Some(pidfd)) if !socket::is_dead(pidfd) => {
                self.poller.remove(&c.socket);
                c.stage = Stage::Parting;
                state.set_deadline(id, Some(monotonic_ns() + PARTING_NS));
            }
            (Stage::Linked(_), Some(_)) => self.ended(state, id, CloseReason::Died),
            (Stage::Parting, _) => {}
            _ => self.ended(state, id, CloseReason::HungUp),
        }
    }

    /// Sends a frame, or keeps it until there is room.
    fn send(&self, state: &mut State, id: u64, frame: &Frame) {
        let Some(c) = state.connections.get_mut(&id) else { return };
        let bytes = frame.to_bytes();
        if c.outbox.is_empty() {
            match socket::send(&c.socket, &bytes, &[]) {
                Ok(()) => return,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                // The end of the socket will be read, with what came before it.
                Err(_) => return,
            }
        }
        if c.outbox.len() >= OUTBOX_MAX {
            // It asks, and does not read the answers.
            count(&self.counters.refused_slow);
            self.ended(state, id, CloseReason::Violation);
            return;
        }
        c.outbox.push_back(bytes);
        if !c.is_writing {
            c.is_writing = self.poller.want_write(&c.socket, tag(id, SOCKET), true).is_ok();
        }
    }

    fn flush(&self, state: &mut State, id: u64) {
        let Some(c) = state.connections.get_mut(&id) else { return };
        while let Some(bytes) = c.outbox.front() {
            match socket::send(&c.socket, bytes, &[]) {
                Ok(()) => drop(c.outbox.pop_front()),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => c.outbox.clear(),
            }
        }
        if c.is_writing {
            c.is_writing = false;
            let _ = self.poller.want_write(&c.socket, tag(id, SOCKET), false);
        }
        if matches!(c.stage, Stage::Closing) {
            self.remove(state, id);
        }
    }

    /// Reads one frame. `false`: there is none.
    fn read_one(&self, state: &mut State, id: u64) -> bool {
        let mut buffer = [0; hello::FRAME_BYTES_MAX];
        let Some(c) = state.connections.get_mut(&id) else { return false };
        if matches!(c.stage, Stage::Parting) {
            return false;
        }
        let received = match socket::receive(&c.socket, &mut buffer) {
            Ok(received) => received,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return false,
            Err(_) => socket::Received::default(),
        };
        let mut descriptors = received.descriptors;
        if received.bytes == 0 {
            state.discarded.append(&mut descriptors);
            self.hung_up(state, id);
            return false;
        }
        let is_closing = matches!(c.stage, Stage::Closing);
        if c.role == Writer::Server && !descriptors.is_empty() {
            count(&self.counters.refused_descriptor);
            state.discarded.append(&mut descriptors);
            self.misbehaved(state, id, "descriptors are not accepted here");
            return false;
        }
        let frame = match Frame::from_bytes(&buffer[..received.bytes]) {
            _ if is_closing => {
                state.discarded.append(&mut descriptors);
                return true;
            }
            Ok(frame) if !received.is_truncated => frame,
            Err(FrameError::Version { major, minor }) => {
                count(&self.counters.refused_version);
                state.discarded.append(&mut descriptors);
                let text = std::format!(
                    "this process speaks version {}.{}, and not {major}.{minor}",
                    hello::VERSION_MAJOR,
                    hello::VERSION_MINOR
                );
                self.refuse(state, id, Reason::Version, &text);
                return false;
            }
            Ok(_) | Err(_) => {
                count(&self.counters.refused_frame);
                state.discarded.append(&mut descriptors);
                self.misbehaved(state, id, "a frame made no sense");
                return false;
            }
        };
        self.handle_frame(state, id, frame, &descriptors);
        state.discarded.append(&mut descriptors);
        true
    }

    fn out_of_turn(&self, state: &mut State, id: u64) {
        count(&self.counters.refused_frame);
        self.misbehaved(state, id, "a frame came out of turn");
    }

    fn misbehaved(&self, state: &mut State, id: u64, text: &str) {
        let Some(c) = state.connections.get(&id) else { return };
        if matches!(c.stage, Stage::Linked(_)) {
            if c.outbox.is_empty() {
                let frame = refused(Reason::Malformed, text).to_bytes();
                let _ = socket::send(&c.socket, &frame, &[]);
            }
            self.ended(state, id, CloseReason::Violation);
        } else {
            self.refuse(state, id, Reason::Malformed, text);
        }
    }

    fn handle_frame(&self, state: &mut State, id: u64, frame: Frame, fds: &[OwnedFd]) {
        let Some(c) = state.connections.get_mut(&id) else { return };
        match (&mut c.stage, frame) {
            (Stage::Silent, Frame::Hello(hello)) => {
                state.no_longer_silent(id);
                self.greeted(state, id, hello);
            }
            (Stage::Offered(offered), Frame::Filled) if !offered.is_filled => {
                offered.is_filled = true;
                self.complete(state, id);
            }
            (Stage::Linked(_), Frame::Bye) => self.ended(state, id, CloseReason::Graceful),
            (Stage::Linked(_), Frame::Refused { .. }) => {
                self.ended(state, id, CloseReason::Expelled);
            }
            (Stage::Linked(_), Frame::Aperture { number, word }) => {
                self.handle_aperture(state, id, number, word, fds);
            }
            (Stage::Linked(_), frame) => self.handle_bulk(state, id, frame, fds),
            // A client that changes its mind on the way.
            (Stage::Asking(_) | Stage::Offered(_), Frame::Bye) => {
                self.ended(state, id, CloseReason::Graceful);
            }
            _ => self.out_of_turn(state, id),
        }
    }

    fn admits(&self, c: &Connection, access: Access, hello: &Hello) -> bool {
        match c.identity.uid {
            Some(uid) if uid == rustix::process::geteuid().as_raw() => true,
            Some(_) => match access {
                Access::SameUser => false,
                Access::Group(gid) => socket::is_in_group(&c.socket, gid),
                Access::Anyone => true,
            },
            None => match &self.config.admit_unknown {
                AdmitUnknown::Never => false,
                // The kernel let it through the socket's permissions, which say who may.
                AdmitUnknown::Permissions => true,
                AdmitUnknown::Token(token) => is_token(token.as_bytes(), &hello.token),
            },
        }
    }

    fn greeted(&self, state: &mut State, id: u64, hello: Hello) {
        let c = state.connections.get(&id).expect("looked up by the caller");
        if hello.purpose == Purpose::Wake {
            return self.join_wake(state, id, &hello);
        }
        if hello.purpose == Purpose::Stat {
            let own = Some(rustix::process::geteuid().as_raw());
            if c.identity.uid == own || c.identity.uid == Some(0) {
                state.asked.push(id);
                state.set_deadline(id, Some(monotonic_ns() + self.timeout_ns()));
                return;
            }
            count(&self.counters.refused_statistics);
            return self.refuse(state, id, Reason::User, "statistics are for the owner");
        }
        let Some(service) = state.services.get(&c.listener) else {
            return self.refuse(state, id, Reason::Unavailable, "the name is no longer served");
        };
        if !self.admits(c, service.listener.access, &hello) {
            count(&self.counters.refused_user);
            let user =
                c.identity.uid.map_or("an unknown user".into(), |u| std::format!("user {u}"));
            return self.refuse(state, id, Reason::User, &std::format!("for {user}"));
        }
        if hello.features_required & !self.features.bits() != 0 {
            count(&self.counters.refused_feature);
            let text = std::format!(
                "feature bits {:#x} are required, and this process has {:#x}",
                hello.features_required,
                self.features.bits()
            );
            return self.refuse(state, id, Reason::Feature, &text);
        }
        if !handshake::is_ring_size(hello.ring_bytes)
            || hello.incoming_ring_bytes_max < 512
            || hello.packet_bytes == 0
        {
            count(&self.counters.refused_frame);
            return self.refuse(
                state,
                id,
                Reason::Malformed,
                "a ring or packet size is impossible",
            );
        }
        // From here on the process matters, not only its socket.
        let pidfd = socket::peer_pidfd(&c.socket);
        if let Some(pidfd) = &pidfd {
            let _ = self.poller.add(pidfd, tag(id, PIDFD));
        }
        let accept = service.accept.clone();
        let c = state.connections.get_mut(&id).expect("looked up above");
        c.pidfd = pidfd;
        match accept {
            Accept::Automatic(greeting) => {
                let _ = self.offer(state, id, hello, &greeting, None);
            }
            Accept::Ask => {
                let peer = c.peer(hello.node);
                let greeting = hello.greeting.clone();
                c.stage = Stage::Asking(Box::new(hello));
                state.set_deadline(id, Some(monotonic_ns() + self.timeout_ns()));
                let id = RequestId(id);
                self.inbox.put(ControlEvent::Request { id, peer, greeting });
            }
        }
    }

    /// Makes the memory of a link and offers it. An error has been told to the peer.
    fn offer(
        &self,
        state: &mut State,
        id: u64,
        hello: Hello,
        greeting: &[u8],
        request: Option<RequestId>,
    ) -> Result<(), Reason> {
        let no = |state: &mut State, counter: &AtomicU64, reason: Reason, text: &str| {
            count(counter);
            self.refuse(state, id, reason, text);
            Err(reason)
        };
        let counters = &self.counters;
        if state.links >= self.config.links_max {
            let text = std::format!("{} links, which is links_max", state.links);
            return no(state, &counters.refused_links, Reason::Links, &text);
        }
        let client_ring = hello.ring_bytes;
        // The largest power of two that both want.
        let server_ring = self.config.ring_bytes.min(1 << hello.incoming_ring_bytes_max.ilog2());
        let bytes = memory::region_bytes(client_ring as usize) as u64
            + memory::region_bytes(server_ring as usize) as u64;
        if !self.charge(state, id, bytes) {
            let max = self.config.bytes_per_user_max;
            let text = std::format!("{bytes} more bytes, and bytes_per_user_max is {max}");
            return no(state, &counters.refused_bytes, Reason::Bytes, &text);
        }
        let made = ServerFiles::make(client_ring, server_ring)
            .and_then(|files| Ok((files, sys::random::<COOKIE_BYTES>()?)));
        let Ok((files, cookie)) = made else {
            let text = "no descriptors or no memory";
            return no(state, &counters.refused_exhausted, Reason::Unavailable, text);
        };
        let features = LinkFeatures::from_bits_truncate(hello.features) & self.features;
        let fits = |ring: u32| packet_bytes_max(ring as usize / LINE_BYTES);
        let packet_bytes = hello
            .packet_bytes
            .min(self.config.packet_bytes)
            .min(fits(client_ring).max(fits(server_ring)).max(self.config.bulk_ring_bytes / 4));
        let offer = Frame::Offer(Offer {
            minor: hello::VERSION_MINOR,
            node: self.node.0,
            features: features.bits(),
            client_ring_bytes: client_ring,
            server_ring_bytes: server_ring,
            packet_bytes,
            cookie,
            greeting: greeting.to_vec(),
        });
        let c = state.connections.get_mut(&id).expect("present: its stage was looked at");
        if socket::send(&c.socket, &offer.to_bytes(), &files.descriptors()).is_err() {
            // Nothing was sent before, so there is room, unless it is gone.
            return no(state, &counters.left_half_way, Reason::Unavailable, "");
        }
        c.features = features;
        c.stage = Stage::Offered(Box::new(Offered {
            hello,
            files,
            features,
            packet_bytes,
            cookie,
            wake: None,
            is_filled: false,
            request,
        }));
        state.links += 1;
        state.cookies.insert(cookie, id);
        state.set_deadline(id, Some(monotonic_ns() + self.timeout_ns()));
        Ok(())
    }

    /// Adds to a user's bytes, if there is room.
    fn charge(&self, state: &mut State, id: u64, bytes: u64) -> bool {
        let Some(c) = state.connections.get_mut(&id) else { return false };
        if c.role == Writer::Client {
            return true;
        }
        let uid = c.identity.uid;
        let usage = state.users.entry(uid).or_default();
        if usage.bytes.saturating_add(bytes) > self.config.bytes_per_user_max {
            return false;
        }
        usage.bytes += bytes;
        c.bytes += bytes;
        true
    }

    /// The second connection of a link: same process, right cookie.
    fn join_wake(&self, state: &mut State, id: u64, hello: &Hello) {
        let first = state.cookies.get(&hello.cookie).copied();
        let who = state.connections.get(&id).map(|c| c.identity);
        let fits = first.is_some_and(|first| {
            state.connections.get(&first).is_some_and(|c| {
                Some(c.identity) == who
                    && matches!(&c.stage, Stage::Offered(offered) if offered.wake.is_none())
            })
        });
        let Some(first) = first.filter(|_| fits) else {
            count(&self.counters.refused_cookie);
            return self.refuse(state, id, Reason::Malformed, "no link waits for this connection");
        };
        let Some(second) = self.take(state, id) else { return };
        if let Some(Connection { stage: Stage::Offered(offered), .. }) =
            state.connections.get_mut(&first)
        {
            count(&self.counters.wake_connections);
            offered.wake = Some(second.socket);
        }
        self.complete(state, first);
    }

    /// Makes it a link when both the memory and the second connection are there.
    fn complete(&self, state: &mut State, id: u64) {
        let Some(c) = state.connections.get_mut(&id) else { return };
        let offered = match core::mem::replace(&mut c.stage, Stage::Closing) {
            Stage::Offered(offered) if offered.is_filled && offered.wake.is_some() => offered,
            other => {
                c.stage = other;
                return;
            }
        };
        let Offered { hello, files, features, packet_bytes, cookie, wake, request, .. } = *offered;
        let Some(wake) = wake else { return };
        let peer = c.peer(hello.node);
        state.cookies.remove(&cookie);
        match files.finish() {
            Ok((outgoing, incoming)) => {
                c.stage = Stage::Linked(Box::new([Bulk::None, Bulk::None]));
                state.set_deadline(id, None);
                count(&self.counters.links);
                self.send(state, id, &Frame::Ready);
                self.inbox.put(ControlEvent::Connected(NewLink {
                    token: LinkToken(id),
                    peer,
                    greeting: hello.greeting,
                    outgoing,
                    incoming,
                    wake,
                    packet_bytes,
                    features,
                    initiated_by_us: false,
                    request,
                }));
            }
            Err(e) => {
                count(&self.counters.refused_memory);
                state.links = state.links.saturating_sub(1);
                if let Some(id) = request {
                    self.inbox.put(ControlEvent::RequestGone { id });
                }
                self.refuse(state, id, Reason::Memory, &e.to_string());
            }
        }
    }

    fn answer_stat(&self, state: &mut State, id: u64, text: &str) {
        let Some(c) = state.connections.get_mut(&id) else { return };
        c.stage = Stage::Closing;
        count(&self.counters.statistics);
        let bytes = text.as_bytes();
        let size = hello::FRAME_BYTES_MAX / 2;
        // What does not fit into the outbox at its limit is cut; a megabyte of counters is not.
        let bytes = &bytes[..bytes.len().min(size * (OUTBOX_MAX - 1))];
        let mut chunks = bytes.chunks(size).peekable();
        loop {
            let chunk = chunks.next().unwrap_or_default();
            let is_last = chunks.peek().is_none();
            self.send(state, id, &Frame::StatText { text: chunk.to_vec(), is_last });
            if is_last {
                break;
            }
        }
        if state.connections.get(&id).is_some_and(|c| c.outbox.is_empty()) {
            self.remove(state, id);
        }
    }

    fn request_bulk(&self, state: &mut State, id: u64) -> Result<(), Reason> {
        let wanted = self.config.bulk_ring_bytes;
        let c = state.connections.get_mut(&id).ok_or(Reason::Unavailable)?;
        let (role, features) = (c.role, c.features);
        let Stage::Linked(bulk) = &mut c.stage else { return Err(Reason::Unavailable) };
        let own = &mut bulk[role as usize];
        if !features.contains(LinkFeatures::BULK) || wanted == 0 {
            return Err(Reason::Feature);
        }
        if !matches!(own, Bulk::None) {
            return Err(Reason::Unavailable);
        }
        if role == Writer::Client {
            *own = Bulk::Requested(wanted);
            self.send(state, id, &Frame::BulkRequest { bytes: wanted });
            return Ok(());
        }
        if !self.charge(state, id, wanted.into()) {
            return Err(Reason::Bytes);
        }
        let make = || {
            let file = memory::create(wanted as usize)?;
            let lines = RegionLines::map_writable(&file, wanted as usize)?;
            memory::seal(&file, SEALS_READ_ONLY)?;
            io::Result::Ok((file, lines))
        };
        let result = make().and_then(|(file, lines)| {
            self.send_bulk(state, id, Writer::Server, wanted, &file)?;
            Ok(Bulk::Offered { file, lines, bytes: wanted })
        });
        match result {
            Ok(offered) => {
                self.set_bulk(state, id, Writer::Server, offered);
                self.bulk_deadline(state, id);
                self.bell.ring();
                Ok(())
            }
            Err(_) => {
                state.give_back(id, wanted.into());
                Err(Reason::Unavailable)
            }
        }
    }

    fn send_bulk(
        &self,
        state: &State,
        id: u64,
        writer: Writer,
        bytes: u32,
        file: &OwnedFd,
    ) -> io::Result<()> {
        let c = state.connections.get(&id).ok_or(io::ErrorKind::NotConnected)?;
        if !c.outbox.is_empty() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        socket::send(&c.socket, &Frame::BulkOffer { writer, bytes }.to_bytes(), &[file.as_fd()])
    }

    fn set_bulk(&self, state: &mut State, id: u64, writer: Writer, to: Bulk) {
        if let Some(Connection { stage: Stage::Linked(bulk), .. }) = state.connections.get_mut(&id)
        {
            bulk[writer as usize] = to;
        }
    }

    /// A bulk ring that is offered must be filled in time; a link without one waits for nothing.
    fn bulk_deadline(&self, state: &mut State, id: u64) {
        let Some(c) = state.connections.get_mut(&id) else { return };
        let Stage::Linked(bulk) = &c.stage else { return };
        let waits = bulk.iter().any(|b| matches!(b, Bulk::Offered { .. } | Bulk::Awaited { .. }));
        c.bulk_until = waits.then(|| monotonic_ns() + self.timeout_ns());
        self.link_deadline(state, id);
    }

    /// Sets the deadline of a link to the first of those of its parts.
    fn link_deadline(&self, state: &mut State, id: u64) {
        if let Some(c) = state.connections.get(&id)
            && matches!(c.stage, Stage::Linked(_))
        {
            let at = c.link_deadline();
            state.set_deadline(id, at);
        }
    }

    fn expire_bulk(&self, state: &mut State, id: u64, now: u64) {
        match state.connections.get_mut(&id) {
            Some(c) if c.bulk_until.is_some_and(|until| until <= now) => c.bulk_until = None,
            _ => return,
        }
        for writer in [Writer::Client, Writer::Server] {
            let Some(Connection { stage: Stage::Linked(bulk), .. }) =
                state.connections.get_mut(&id)
            else {
                return;
            };
            let slot = &mut bulk[writer as usize];
            if matches!(slot, Bulk::Offered { .. } | Bulk::Awaited { .. }) {
                let (Bulk::Offered { bytes, .. } | Bulk::Awaited { bytes, .. }) =
                    core::mem::replace(slot, Bulk::None)
                else {
                    continue;
                };
                count(&self.counters.refused_slow);
                state.give_back(id, bytes.into());
                self.no_bulk(state, id, writer, Reason::TooSlow);
            }
        }
    }

    /// Tells whoever would have written that there will be no ring.
    fn no_bulk(&self, state: &mut State, id: u64, writer: Writer, why: Reason) {
        count(&self.counters.refused_bulk);
        let Some(c) = state.connections.get(&id) else { return };
        if c.role == writer {
            self.inbox.put(ControlEvent::BulkRefused { token: LinkToken(id), why });
        } else {
            self.send(state, id, &Frame::BulkRefused { writer, reason: why });
        }
    }

    fn handle_bulk(&self, state: &mut State, id: u64, frame: Frame, fds: &[OwnedFd]) {
        let token = LinkToken(id);
        let Some(c) = state.connections.get_mut(&id) else { return };
        let (role, features) = (c.role, c.features);
        let Stage::Linked(bulk) = &mut c.stage else { return };
        if !features.contains(LinkFeatures::BULK) {
            return self.out_of_turn(state, id);
        }
        match (role, frame) {
            (Writer::Server, Frame::BulkRequest { bytes }) => {
                if !matches!(bulk[0], Bulk::None) || !bytes.is_power_of_two() || bytes < 4096 {
                    return self.out_of_turn(state, id);
                }
                let bytes = bytes.min(self.config.bulk_ring_bytes);
                if !self.charge(state, id, bytes.into()) {
                    return self.no_bulk(state, id, Writer::Client, Reason::Bytes);
                }
                let made = memory::create(bytes as usize).and_then(|file| {
                    memory::seal(&file, SEALS_SIZE)?;
                    self.send_bulk(state, id, Writer::Client, bytes, &file)?;
                    Ok(file)
                });
                match made {
                    Ok(file) => {
                        self.set_bulk(state, id, Writer::Client, Bulk::Awaited { file, bytes });
                        self.bulk_deadline(state, id);
                    }
                    Err(_) => {
                        state.give_back(id, bytes.into());
                        self.no_bulk(state, id, Writer::Client, Reason::Unavailable);
                    }
                }
            }
            (Writer::Server, Frame::BulkFilled { writer }) => {
                let slot = core::mem::replace(&mut bulk[writer as usize], Bulk::Present);
                let result = match (writer, slot) {
                    (Writer::Server, Bulk::Offered { file, lines, bytes }) => {
                        let wanted = handshake::wanted_read_only(bytes as usize, true);
                        memory::check(&file, &wanted).map(|()| lines)
                    }
                    (Writer::Client, Bulk::Awaited { file, bytes }) => {
                        handshake::seal_and_check(&file, bytes as usize).and_then(|()| {
                            RegionLines::map_read_only(&file, bytes as usize)
                                .map_err(memory::DescriptorError::Map)
                        })
                    }
                    (_, other) => {
                        bulk[writer as usize] = other;
                        return self.out_of_turn(state, id);
                    }
                };
                match result {
                    Ok(lines) if writer == Writer::Server => {
                        self.inbox.put(ControlEvent::BulkOutgoing { token, lines });
                    }
                    Ok(lines) => {
                        // The application hears of it before the first packet can be in it.
                        self.inbox.put(ControlEvent::BulkIncoming { token, lines });
                        self.send(state, id, &Frame::BulkReady { writer });
                    }
                    Err(_) => {
                        count(&self.counters.refused_memory);
                        return self.misbehaved(state, id, "the memory was not as agreed");
                    }
                }
                self.bulk_deadline(state, id);
            }
            (Writer::Server, Frame::BulkRefused { writer: Writer::Server, reason }) => {
                let slot = core::mem::replace(&mut bulk[1], Bulk::None);
                let Bulk::Offered { bytes, .. } = slot else {
                    bulk[1] = slot;
                    return self.out_of_turn(state, id);
                };
                state.give_back(id, bytes.into());
                self.bulk_deadline(state, id);
                self.inbox.put(ControlEvent::BulkRefused { token, why: reason });
            }
            (Writer::Client, Frame::BulkOffer { writer: Writer::Client, bytes }) => {
                let Bulk::Requested(asked) = bulk[0] else { return self.out_of_turn(state, id) };
                let ([file], true) =
                    (fds, bytes <= asked && bytes >= 4096 && bytes.is_power_of_two())
                else {
                    return self.out_of_turn(state, id);
                };
                match handshake::map_bulk_writable(file, bytes) {
                    Ok(lines) => {
                        bulk[0] = Bulk::Filled(lines);
                        self.send(state, id, &Frame::BulkFilled { writer: Writer::Client });
                    }
                    Err(_) => {
                        count(&self.counters.refused_memory);
                        self.misbehaved(state, id, "the memory was not as agreed");
                    }
                }
            }
            (Writer::Client, Frame::BulkOffer { writer: Writer::Server, bytes }) => {
                let [file] = fds else { return self.out_of_turn(state, id) };
                if !matches!(bulk[1], Bulk::None) || !bytes.is_power_of_two() || bytes < 4096 {
                    return self.out_of_turn(state, id);
                }
                if bytes > self.config.bulk_ring_bytes.max(4 << 20) {
                    return self.no_bulk(state, id, Writer::Server, Reason::Bytes);
                }
                match handshake::map_bulk_read_only(file, bytes) {
                    Ok(lines) => {
                        bulk[1] = Bulk::Present;
                        self.inbox.put(ControlEvent::BulkIncoming { token, lines });
                        self.send(state, id, &Frame::BulkFilled { writer: Writer::Server });
                    }
                    Err(_) => {
                        count(&self.counters.refused_memory);
                        self.misbehaved(state, id, "the memory was not as agreed");
                    }
                }
            }
            (Writer::Client, Frame::BulkReady { writer: Writer::Client }) => {
                match core::mem::replace(&mut bulk[0], Bulk::Present) {
                    Bulk::Filled(lines) => {
                        self.inbox.put(ControlEvent::BulkOutgoing { token, lines });
                    }
                    other => {
                        bulk[0] = other;
                        self.out_of_turn(state, id);
                    }
                }
            }
            (Writer::Client, Frame::BulkRefused { writer: Writer::Client, reason }) => {
                if !matches!(bulk[0], Bulk::Requested(_) | Bulk::Filled(_)) {
                    return self.out_of_turn(state, id);
                }
                bulk[0] = Bulk::None;
                self.inbox.put(ControlEvent::BulkRefused { token, why: reason });
            }
            _ => self.out_of_turn(state, id),
        }
    }
}

/// Compares all bytes, so that the time taken says nothing.
fn is_token(ours: &[u8], theirs: &[u8; crate::config::TOKEN_BYTES_MAX]) -> bool {
    let mut padded = [0; crate::config::TOKEN_BYTES_MAX];
    let n = ours.len().min(padded.len());
    padded[..n].copy_from_slice(&ours[..n]);
    padded.iter().zip(theirs).fold(0, |all, (a, b)| all | (a ^ b)) == 0
}

/// The statistics of a running service, for its owner and root. Nothing needs to be started.
pub fn stat_of(
    config: &Config,
    service: &ServiceName,
    timeout: Duration,
) -> Result<String, ConnectError> {
    Attempt { deadline_ns: deadline_of(timeout), meanwhile: None }.stat(config, service)
}
