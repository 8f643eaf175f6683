//! Meets other hosts, over TCP and TLS 1.3, for networks and hosts that are not trusted. The links are
//! carried by [`transport`](crate::transport).
//!
//! ```text
//!   application --calls--> Hosts --rows--> one thread, asleep --events--> Inbox
//!                            |                 |  listener, meetings, bytes still to send
//!                            +-- links --------+--> Carrier: from then on the node's own turns
//! ```
//! - [`name`]: the syntax of `hamlyn://host:port/service`
//! - [`directory`]: finds services whose names contain no address
//! - [`keys`]: certificates and secrets; `material`: reads their files
//! - [`hello`]: the first messages of both ends; [`meeting`]: their order
//! - `strangers`: connections that have proved nothing; `admission`: chooses the next one to
//!   answer, and the one that gives way; `accounts`: counts connections for each account
//! - `refused`: the reasons for refusals
//! - `dial`: the thread that connects; `course`: the places of a name, tried one after the other
//! - `asked`: a client's request; `links`: makes the link
//! - `near`: replaces the connection by shared memory if the service is on this host
//! - `rail_links`: the further connections of a link with several; `said`: what hosts say of them
//! - [`reach`]: tests how far a connection gets, without making a link; [`figures`]: asks for a
//!   host's counters
//! - [`told`]: counts and reports links that come and go
//! - `turns`: the thread
//!
//! The thread acts when hosts meet and part. The node's callers alone move a link's packets. The
//! process listens only if `listen` is set, and connects to no host without keys.
//!
//! Never: the lock is held while waiting, except for a server's first end point of a fabric at an
//! address, which libfabric opens within some tens of milliseconds; a slow peer delays another; a
//! connection that has proved nothing is kept longer than `handshake_timeout_ms`.

mod accounts;
mod admission;
mod asked;
mod course;
mod dial;
pub mod directory;
pub mod figures;
pub mod hello;
pub mod key_files;
pub mod keys;
mod links;
mod material;
pub mod meeting;
pub mod name;
mod near;
mod rail_links;
pub mod reach;
mod refused;
pub mod said;
mod strangers;
pub mod told;
mod turns;

pub use dial::HostError;
pub use directory::{HostDirectory, HostDirectoryError};
pub use keys::KeysError;
pub use meeting::MeetingError;
pub use name::{HostName, Place};
pub use near::{OnThisHost, Sought, WhenEnded};
pub use told::{Happened, Note, Refused};

use super::identity::Identity;
use super::machine::{HostPeer, RequestId};
use super::names::Access;
use super::shell::{BuildError, ConnectError, ControlEvent, Inbox, LinkToken};
use super::{Accept, Reason, Wait};
use crate::config::{Config, Housekeeping};
use crate::link::ring::packet_bytes_max;
use crate::os::poller::Poller;
use crate::os::sys::{Bell, monotonic_ns};
use crate::os::tcp;
use crate::os::thread::{self, Thread};
use crate::transport::carrier::Carrier;
use crate::transport::fabric::HostFabric;
use crate::transport::late::Late;
use crate::transport::lock;
use crate::transport::path::Path;
use crate::transport::rails::live::Live;
use crate::wire::LINE_BYTES;
use admission::StrangerAccount;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use core::time::Duration;
use dial::HostDial;
use directory::Given;
use figures::{MadeText, Texts};
use hello::{Answer, Wants};
use keys::Keys;
use meeting::{Meeting, MeetingStep, OwnData, Proved};
use near::Outcomes;
use std::boxed::Box;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::string::{String, ToString};
use std::sync::{Arc, Mutex, MutexGuard};
use strangers::Came;

/// The bit that marks identifiers of links, connections and requests of other hosts.
const OF_HOSTS: u64 = 1 << 63;
/// Most requests of one identity that wait for the application's answer.
const ASKED_PER_IDENTITY_MAX: usize = 16;
/// The text of the refusal of further requests of that identity. It is temporary: a client that
/// waits for the name tries again.
pub(crate) const ASKED_REFUSED: &str = "of those that wait for an answer";
/// Events that wait for the application; beyond this number no new connection is accepted.
const EVENTS_MAX: usize = 1024;
/// Bytes to discard at a time from a refused host that goes on sending.
const REFUSED_BYTES: usize = 32 << 10;

const LISTENER: u64 = u64::MAX;
const BELL: u64 = u64::MAX - 1;
const WORDS: u64 = u64::MAX - 2;

/// A link, which its node has as a [`HostLink`](crate::transport::HostLink).
type CarriedLink = Arc<Mutex<Carrier>>;

/// A connection that is not yet, or no longer, a link.
enum HostRow {
    /// A thread connects.
    Dialing(HostDial),
    /// It was accepted, and this end has answered nothing yet.
    Came(Came),
    /// A connection, made or accepted, on which both ends exchange their first messages.
    Meeting(Box<Met>),
    /// The server states that it is on this host: the other part of the control plane connects.
    Near(HostDial, LinkToken),
    /// A link that the node has left, or a refusal, with bytes still to send.
    Leaving(LeavingConnection),
}

struct Met {
    meeting: Meeting,
    address: SocketAddr,
    /// The account of an accepted connection, until it has proved itself.
    account: Option<StrangerAccount>,
    began_ns: u64,
    deadline_ns: u64,
    dial: Option<HostDial>,
    /// Of a stranger: it has sent something, and waits for its turn.
    is_due: bool,
    /// At a server: the client's request, until it is answered.
    wants: Option<(Wants, Proved)>,
}

struct LeavingConnection {
    what: LeavingRest,
    /// The other end's identity, if it was proved.
    identity: Option<String>,
    /// Of a link with several connections: its live rails.
    live: Option<Arc<Live>>,
    /// The next time to look for stalled rails.
    look_ns: u64,
    deadline_ns: u64,
    /// It is a connection for figures.
    tells: bool,
}

enum LeavingRest {
    Link(CarriedLink),
    Refusal(Box<Meeting>),
}

struct HostsState {
    next: u64,
    rows: BTreeMap<u64, HostRow>,
    links: HashMap<LinkToken, LinkRow>,
    services: HashMap<String, (Access, Accept)>,
    /// Threads that connect, and the dials that wait for a thread.
    dials: usize,
    dials_wait: VecDeque<(u64, Duration)>,
    /// Rails are due for which no thread was free.
    rails_wait: bool,
    /// The time at which the first pause of a rail ends.
    rails_due_ns: u64,
    /// The connections of links with several, beyond one each.
    more: Arc<AtomicUsize>,
    strangers_turns: admission::StrangerTurns,
    /// The time until which the listener is not polled.
    listens_again_ns: Option<u64>,
    /// The counters' texts for other hosts.
    texts: Texts,
    /// The reason why the thread has ended; then nothing arrives or leaves any more.
    ended: Option<String>,
}

struct LinkRow {
    /// The node has it, too, and drops it before it states how it left the link.
    link: CarriedLink,
    identity: String,
    /// At the last check its host had owed an answer for long.
    was_silent: bool,
    /// Of a link with several connections.
    rails: Option<rail_links::RailsOfLink>,
}

struct HostsShared {
    own: OwnData,
    config: Config,
    listener: Option<TcpListener>,
    poller: Poller,
    /// Links with bytes to send; its bell wakes the thread.
    late: Arc<Late>,
    inbox: Arc<Inbox>,
    fabric: HostFabric,
    /// The application's own directory, if there is one.
    given: Arc<Given>,
    /// Connects to processes of this host, and keeps the results.
    here: Arc<dyn OnThisHost>,
    outcomes: Outcomes,
    made: MadeText,
    state: Mutex<HostsState>,
    is_ending: AtomicBool,
    /// Returns the account of a connection from an address.
    account_of: fn(SocketAddr) -> StrangerAccount,
    /// Counts events and reports them to the operator.
    note: Note,
}

/// The part of the control plane for links to other hosts.
pub struct Hosts {
    shared: Arc<HostsShared>,
    thread: Option<Thread>,
    /// Dropping this waits for its thread until then.
    end_by_ns: AtomicU64,
}

impl core::fmt::Debug for Hosts {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Hosts").field("address", &self.address()).finish_non_exhaustive()
    }
}

/// Whether an identifier is that of a link, connection or request of another host.
pub fn is_of_host(id: u64) -> bool {
    id & OF_HOSTS != 0
}

impl Hosts {
    /// Listens, if `listen` is set, and becomes ready to connect.
    pub fn start(
        config: &Config,
        identity: &Identity,
        inbox: &Arc<Inbox>,
        given: &Arc<Given>,
        (here, note): (Arc<dyn OnThisHost>, Note),
    ) -> Result<Self, BuildError> {
        let shared = Arc::new(HostsShared::new(config, identity, inbox, given, (here, note))?);
        let of_thread = shared.clone();
        let thread = thread::spawn("hamlyn-hosts", 512 << 10, move || of_thread.run());
        let thread = thread.map_err(BuildError::os("starting the thread for other hosts"))?;
        Ok(Self { shared, thread: Some(thread), end_by_ns: AtomicU64::new(u64::MAX) })
    }

    /// Sets the time until which dropping this waits for its thread.
    pub fn end_by(&self, deadline_ns: u64) {
        self.end_by_ns.store(deadline_ns, Ordering::Relaxed);
    }

    /// The address at which this process listens.
    pub fn address(&self) -> Option<SocketAddr> {
        if self.shared.lock().ended.is_some() {
            return None;
        }
        tcp::listens_at(self.shared.listener.as_ref()?).ok()
    }

    /// Lets other hosts connect to a service, too.
    pub fn serve(&self, service: &str, access: Access, accept: Accept) {
        self.shared.lock().services.insert(service.into(), (access, accept));
    }

    /// No longer lets other hosts connect to a service.
    pub fn stop_serving(&self, service: &str) {
        self.shared.lock().services.remove(service);
    }

    /// Begins to connect: [`ControlEvent::Connected`] or [`ControlEvent::ConnectFailed`] follows.
    pub fn begin_connect(
        &self,
        name: &HostName,
        greeting: &[u8],
        until_ns: u64,
        wait: Wait,
    ) -> Result<LinkToken, ConnectError> {
        let mut state = self.shared.lock();
        if let Some(why) = &state.ended {
            let error = HostError::Ended(why.clone());
            return Err(ConnectError::Host { name: name.to_string(), error });
        }
        let id = state.new_id();
        let dial = HostDial::new(name.clone(), greeting.to_vec(), until_ns, wait);
        dial::start(&self.shared, &mut state, id, dial, Duration::ZERO)?;
        drop(state);
        self.shared.late.bell.ring();
        Ok(super::ConnectionId(id))
    }

    /// Gives up connecting; no event follows, except one that is already queued.
    pub fn give_up(&self, token: LinkToken) {
        let mut state = self.shared.lock();
        if matches!(
            state.rows.get(&token.0),
            Some(HostRow::Dialing(_) | HostRow::Meeting(_) | HostRow::Near(..))
        ) {
            self.shared.forget(&mut state, token.0);
        }
    }

    /// Accepts a request. `false`: it is gone.
    pub fn accept(&self, request: RequestId, greeting: &[u8]) -> bool {
        let mut state = self.shared.lock();
        let Some((met, wants, proved)) = self.shared.take_asked(&mut state, request) else {
            return false;
        };
        self.shared.accept(&mut state, met, wants, proved, greeting.to_vec(), Some(request));
        true
    }

    /// Refuses a request. `false`: it is gone.
    pub fn refuse(&self, request: RequestId, reason: Reason, text: &str) -> bool {
        let mut state = self.shared.lock();
        let Some((met, wants, proved)) = self.shared.take_asked(&mut state, request) else {
            return false;
        };
        let answer = Answer::no(reason, text);
        self.shared.note_refused(met.address, &proved, wants.service, &answer);
        self.shared.refuse(&mut state, request.0, met.meeting, proved.identity, &answer);
        true
    }

    /// Ends a link; bytes not yet sent still leave, as far as the other end takes them within
    /// `handshake_timeout_ms`.
    pub fn close(&self, token: LinkToken, how: crate::transport::frames::Goodbye) {
        let shared = &*self.shared;
        let mut state = shared.lock();
        let Some(row) = state.links.remove(&token) else { return };
        let LinkRow { link, identity, rails, .. } = row;
        if matches!(how, crate::transport::frames::Goodbye::SentAway) {
            (shared.note)(Happened::SentAway, None);
        }
        let is_done = lock(&link).close(how);
        if !is_done {
            let id = state.new_id();
            let (deadline_ns, look_ns) = (shared.deadline(), 0);
            let live = rails.map(|rails| rails.live().clone());
            let _ = shared.poller.watch_write(lock(&link).as_fd(), id);
            let what = LeavingRest::Link(link);
            let identity = Some(identity);
            let leaving =
                LeavingConnection { what, identity, live, look_ns, deadline_ns, tells: false };
            state.rows.insert(id, HostRow::Leaving(leaving));
            shared.late.bell.ring();
        }
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        let _opened = self.shared.fabric.opened();
        self.shared.is_ending.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            crate::control::shell::end(
                thread,
                &self.shared.late.bell,
                self.end_by_ns.load(Ordering::Relaxed),
            );
        }
    }
}

impl HostsState {
    fn new_id(&mut self) -> u64 {
        self.next += 1;
        OF_HOSTS | self.next
    }
}

impl HostsShared {
    /// Listens, if `listen` is set. The caller still has to start the thread.
    fn new(
        config: &Config,
        identity: &Identity,
        inbox: &Arc<Inbox>,
        given: &Arc<Given>,
        (here, note): (Arc<dyn OnThisHost>, Note),
    ) -> Result<Self, BuildError> {
        if config.housekeeping == Housekeeping::Application {
            return Err(BuildError::Housekeeping);
        }
        let keys = Keys::load(config)?;
        let os = BuildError::os;
        let poller = Poller::new().map_err(os("making an epoll descriptor"))?;
        let bell = Bell::new().map_err(os("making an event descriptor"))?;
        poller.add(&bell, BELL).map_err(os("watching an event descriptor"))?;
        let listener = match config.listen {
            None => None,
            Some(address) => {
                let doing = |advice| std::format!("listening at {address} (HAMLYN_LISTEN{advice})");
                let listener = tcp::listen(address).map_err(|e| {
                    let advice = match e.kind() {
                        io::ErrorKind::AddrInUse => "; each process needs a port of its own",
                        io::ErrorKind::AddrNotAvailable => "; no interface here has this address",
                        io::ErrorKind::InvalidInput if matches!(address.ip(), IpAddr::V6(_)) => {
                            "; a link-local address needs the number of its interface: [fe80::1%2]:7000"
                        }
                        _ => "",
                    };
                    BuildError::os(doing(advice))(e)
                })?;
                poller.add(&listener, LISTENER).map_err(BuildError::os(doing("")))?;
                Some(listener)
            }
        };
        let lines = config.ring_bytes as usize / LINE_BYTES;
        let packet_bytes = config.packet_bytes.min(packet_bytes_max(lines));
        let state = HostsState {
            next: 0,
            rows: BTreeMap::new(),
            links: HashMap::new(),
            services: HashMap::new(),
            dials: 0,
            dials_wait: VecDeque::new(),
            rails_wait: false,
            rails_due_ns: u64::MAX,
            more: Arc::default(),
            strangers_turns: admission::StrangerTurns::default(),
            listens_again_ns: None,
            texts: Texts::default(),
            ended: None,
        };
        let fabric = HostFabric::start(config);
        if let Some(words) = fabric.words() {
            poller.add(words, WORDS).map_err(os("watching an epoll descriptor"))?;
        }
        Ok(Self {
            own: OwnData { keys, identity: identity.clone(), packet_bytes },
            config: config.clone(),
            listener,
            poller,
            late: Arc::new(Late::new(bell)),
            inbox: inbox.clone(),
            fabric,
            given: given.clone(),
            here,
            outcomes: Outcomes::default(),
            made: MadeText::default(),
            state: Mutex::new(state),
            is_ending: AtomicBool::new(false),
            account_of: Self::account_of,
            note,
        })
    }

    fn account_of(address: SocketAddr) -> StrangerAccount {
        StrangerAccount::of(address.ip(), tcp::is_here(address))
    }

    fn lock(&self) -> MutexGuard<'_, HostsState> {
        thread::lock(&self.state)
    }

    fn deadline(&self) -> u64 {
        let timeout = u64::from(self.config.handshake_timeout_ms) * 1_000_000;
        monotonic_ns().saturating_add(timeout)
    }

    /// Begins the exchange of first messages on a connection that this process has made.
    fn meet(
        self: &Arc<Self>,
        state: &mut HostsState,
        id: u64,
        meeting: Meeting,
        address: SocketAddr,
        dial: HostDial,
    ) {
        if let Err(error) = self.poller.add(meeting.channel.as_fd(), id) {
            let doing = "watching the connection to another host";
            return self.dial_failed(state, id, &dial, ConnectError::Os { doing, error });
        }
        let (deadline_ns, dial) = (dial.share_until_ns(), Some(dial));
        let (account, began_ns, is_due, wants) = (None, monotonic_ns(), false, None);
        let met = Met { meeting, address, account, began_ns, deadline_ns, dial, is_due, wants };
        state.rows.insert(id, HostRow::Meeting(Box::new(met)));
        self.look(state, id);
    }

    /// Makes progress on a connection.
    fn look(self: &Arc<Self>, state: &mut HostsState, id: u64) {
        match state.rows.get_mut(&id) {
            None | Some(HostRow::Dialing(_) | HostRow::Near(..) | HostRow::Came(_)) => {}
            Some(HostRow::Leaving(leaving)) => {
                let stall = leaving.looks_for_stalls(self.config.handshake_timeout_ms);
                let is_done = match &mut leaving.what {
                    LeavingRest::Link(link) => {
                        let mut link = lock(link);
                        if let Some(limit) = stall {
                            link.look_for_stalls(limit);
                        }
                        let is_done = link.finish();
                        // Incoming bytes are discarded only after everything has left.
                        let _ = match link.waits() {
                            true => self.poller.watch_write(link.as_fd(), id),
                            false => self.poller.want_write(link.as_fd(), id, false),
                        };
                        is_done
                    }
                    LeavingRest::Refusal(meeting) => {
                        // Until the other end has read the refusal, and closes the connection.
                        meeting.channel.receive(REFUSED_BYTES);
                        let taken = meeting.channel.plain().len();
                        meeting.channel.take(taken);
                        meeting.channel.flush();
                        meeting.channel.ended().is_some()
                    }
                };
                if is_done {
                    self.forget(state, id);
                }
            }
            Some(HostRow::Meeting(met)) => {
                let step = met.meeting.turn(&self.own);
                let waits = met.meeting.channel.wants_write();
                let _ = self.poller.want_write(met.meeting.channel.as_fd(), id, waits);
                let says_more = met.wants.is_some() && !met.meeting.channel.plain().is_empty();
                match step {
                    // An honest host sends nothing before it has its answer.
                    MeetingStep::Waits if says_more => {
                        self.count_refused(Refused::Frame);
                        self.too_late(state, id);
                    }
                    MeetingStep::Waits => {}
                    MeetingStep::Failed(error) => self.failed(state, id, error),
                    MeetingStep::Link(greeting, proved) => {
                        self.connected(state, id, greeting, proved)
                    }
                    MeetingStep::Wants(wants, proved) => self.wanted(state, id, wants, proved),
                }
            }
        }
    }

    fn failed(self: &Arc<Self>, state: &mut HostsState, id: u64, error: MeetingError) {
        let Some(HostRow::Meeting(met)) = state.rows.remove(&id) else { return };
        self.poller.remove(met.meeting.channel.as_fd());
        match met.dial {
            Some(dial) => self.missed(state, id, dial, error.into()),
            None if met.wants.is_some() => {
                self.inbox.put_of_host(ControlEvent::RequestGone { id: RequestId(id) });
            }
            None => self.note_failed(met.address, &error),
        }
    }

    fn tell_failed(&self, id: u64, service: &str, error: ConnectError) {
        self.note_failed_dial(service, &error);
        let token = super::ConnectionId(id);
        self.inbox.put_of_host(ControlEvent::ConnectFailed { token, error });
    }

    fn too_late(self: &Arc<Self>, state: &mut HostsState, id: u64) {
        if self.goes_on(state, id) {
            return;
        }
        let doing = match state.rows.get(&id) {
            Some(HostRow::Dialing(dial)) => Some((dial.clone(), "connecting to the other host")),
            Some(HostRow::Meeting(met)) if met.dial.is_some() => {
                met.dial.clone().map(|dial| (dial, met.meeting.doing()))
            }
            Some(HostRow::Meeting(met)) if met.wants.is_some() => {
                self.inbox.put_of_host(ControlEvent::RequestGone { id: RequestId(id) });
                None
            }
            Some(row) => {
                if let Some(address) = row.strangers_address() {
                    let why = "it did not go on in time (handshake_timeout_ms)";
                    self.note_stranger(Refused::Slow, address, why);
                }
                None
            }
            None => None,
        };
        if let Some(HostRow::Leaving(leaving)) = state.rows.get(&id)
            && let LeavingRest::Link(link) = &leaving.what
        {
            lock(link).give_up();
        }
        self.forget(state, id);
        if let Some((dial, doing)) = doing {
            self.dial_failed(state, id, &dial, dial.too_late(doing));
        }
    }

    fn forget(&self, state: &mut HostsState, id: u64) {
        match state.rows.remove(&id) {
            Some(HostRow::Came(came)) => self.poller.remove(&came.tcp),
            Some(HostRow::Meeting(met)) => self.poller.remove(met.meeting.channel.as_fd()),
            Some(HostRow::Leaving(leaving)) => match &leaving.what {
                LeavingRest::Link(link) => self.poller.remove(lock(link).as_fd()),
                LeavingRest::Refusal(meeting) => self.poller.remove(meeting.channel.as_fd()),
            },
            Some(HostRow::Near(_, local)) => self.here.give_up(local),
            Some(HostRow::Dialing(_)) | None => {}
        }
    }
}
