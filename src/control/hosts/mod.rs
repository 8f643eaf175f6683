//! Links to other hosts: TCP and TLS 1.3, for networks and hosts that are not trusted.
//!
//! ```text
//!   application --calls--> Hosts --rows--> one thread, asleep --events--> Inbox
//!                            |                 |  listener, meetings, what is still to leave
//!                            +-- links --------+--> Carrier: from then on the node's own turns
//! ```
//! - [`name`]: what `hamlyn://host:port/service` is made of
//! - [`directory`]: where services are whose names do not say
//! - [`keys`]: certificates and secrets; `material`: the files that they are in
//! - [`hello`]: what both ends say first; [`meeting`]: in which order
//! - `strangers`: who has connected and proved nothing; `admission`: which of them is answered next, and
//!   which gives way; `accounts`: who has how many connections
//! - `refused`: why one was refused
//! - `dial`: the thread that connects; `course`: the places of a name, one after the other
//! - `asked`: what a client asks for; `links`: what becomes a link
//! - `near`: the ring that takes its place where the service is on this host
//! - [`channel`]: TLS over TCP, without waiting; [`fabric`]: messages over libfabric, beside it
//! - [`carrier`]: packets between a link's rings and either, a [`path`], as [`frames`]
//! - [`rails`]: several connections for one link
//! - [`reach`]: how far a connection comes, without a link; [`figures`]: what is counted there
//! - [`told`]: what is counted and told of links that come and go
//! - `turns`: the thread
//!
//! The thread is for what happens when hosts meet and part. A link's packets are moved by whoever
//! calls the node, and by nobody else. Nothing listens unless `listen` is set, and nothing is connected
//! to without keys.
//!
//! Never: the lock is held while waiting, but for a server's first end point of a fabric at an address,
//! which libfabric opens within some tens of milliseconds; a peer that is slow keeps another waiting; a
//! connection that has proved nothing is kept longer than `handshake_timeout_ms`.

mod accounts;
mod admission;
mod asked;
pub mod carrier;
pub mod channel;
mod course;
mod dial;
pub mod directory;
#[cfg_attr(not(feature = "libfabric"), path = "no_fabric.rs")]
pub mod fabric;
pub mod figures;
pub mod frames;
pub mod hello;
pub mod key_files;
pub mod keys;
mod links;
mod material;
pub mod meeting;
pub mod name;
mod near;
pub mod path;
pub mod rails;
pub mod reach;
mod refused;
mod strangers;
pub mod told;
mod turns;

pub use carrier::{Carrier, Moved};
pub use dial::HostError;
pub use directory::{HostDirectory, HostDirectoryError};
pub use frames::Goodbye;
pub use keys::KeysError;
pub use meeting::MeetingError;
pub use name::{HostName, HostNameError, Place};
pub use near::{Ended, OnThisHost, Sought};
pub use refused::Refused;
pub use told::{Happened, Note};

use super::identity::Identity;
use super::machine::{HostPeer, RequestId};
use super::names::Access;
use super::shell::{ConnectError, ControlEvent, Inbox, LinkToken};
use super::{Accept, Reason, Wait};
use crate::config::{Config, Housekeeping};
use crate::link::ring::packet_bytes_max;
use crate::os::poller::Poller;
use crate::os::sys::{Bell, monotonic_ns};
use crate::os::tcp;
use crate::os::thread::{self, Thread};
use crate::wire::LINE_BYTES;
use admission::Account;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use core::time::Duration;
use dial::Dial;
use directory::Given;
use fabric::Fabric;
use figures::{Made, Texts};
use hello::{Answer, Wants};
use keys::Keys;
use meeting::{Meeting, Own, Proved, Step};
use near::Outcomes;
use path::Path;
use std::boxed::Box;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::string::{String, ToString};
use std::sync::{Arc, Mutex, MutexGuard};
use strangers::Came;
use turns::Late;

/// Links, connections and requests of other hosts have this bit in their names.
const OF_HOSTS: u64 = 1 << 63;
/// Requests of one identity that wait for the application's answer.
const ASKED_PER_IDENTITY_MAX: usize = 16;
/// What the others of that identity are told: it passes, and whoever waits for names tries again.
pub(crate) const ASKED_REFUSED: &str = "of those that wait for an answer";
/// Events that wait for the application, beyond which nobody new is accepted.
const EVENTS_MAX: usize = 1024;
/// Bytes that are let go of at a time, of a host that was refused and says more.
const REFUSED_BYTES: usize = 32 << 10;

const LISTENER: u64 = u64::MAX;
const BELL: u64 = u64::MAX - 1;
const WORDS: u64 = u64::MAX - 2;

/// A link's way to the other host. The node that has the link moves its packets.
pub type HostLink = Arc<Mutex<Carrier>>;

/// A connection that is no link yet, or no more.
enum Row {
    /// A thread connects.
    Dialing(Dial),
    /// It was connected to, and has answered nothing yet.
    Came(Came),
    /// It has connected, or was connected to.
    Meeting(Box<Met>),
    /// It is on this host, says the server: the other part of the control plane connects.
    Near(Dial, LinkToken),
    /// A link that the node has left, or a refusal: what is left of it still leaves.
    Leaving(Leaving),
}

struct Met {
    meeting: Meeting,
    address: SocketAddr,
    /// By what one that has connected here is counted until it has proved itself.
    account: Option<Account>,
    began_ns: u64,
    deadline_ns: u64,
    dial: Option<Dial>,
    /// Of a stranger: something has come, and waits for its turn.
    is_due: bool,
    /// At a server: what the client wants, until that is answered.
    wants: Option<(Wants, Proved)>,
}

struct Leaving {
    what: Rest,
    /// Of whom, as far as that was proved.
    identity: Option<String>,
    /// Of a link with several connections, which of them live.
    live: Option<Arc<accounts::Live>>,
    /// When rails that have stalled are looked for next.
    look_ns: u64,
    deadline_ns: u64,
    /// It asks for figures.
    tells: bool,
}

enum Rest {
    Link(HostLink),
    Refusal(Box<Meeting>),
}

struct State {
    next: u64,
    rows: BTreeMap<u64, Row>,
    links: HashMap<LinkToken, LinkRow>,
    services: HashMap<String, (Access, Accept)>,
    /// Threads that connect, and what waits for one of them to be free.
    dials: usize,
    dials_wait: VecDeque<(u64, Duration)>,
    /// Rails are due for which there was no such thread.
    rails_wait: bool,
    /// When the next is due, of those whose pause is not over.
    rails_due_ns: u64,
    /// Connections of links with several, beyond one each.
    more: Arc<AtomicUsize>,
    strangers_turns: admission::Turns,
    /// The listener is not looked at until then.
    listens_again_ns: Option<u64>,
    /// What is told to other hosts of what is counted.
    texts: Texts,
    /// Why the thread has ended: nothing comes or goes any more.
    ended: Option<String>,
}

struct LinkRow {
    /// Here as well as at the node, which lets go of it before it says how it is left.
    link: HostLink,
    identity: String,
    /// At the last look its host had owed an answer for long.
    was_silent: bool,
    /// Where it has several connections.
    rails: Option<rails::OfLink>,
}

struct Shared {
    own: Own,
    config: Config,
    listener: Option<TcpListener>,
    poller: Poller,
    /// Links that have something to send; its bell is that of the thread.
    late: Arc<Late>,
    inbox: Arc<Inbox>,
    fabric: Fabric,
    /// The application's own directory, if there is one.
    given: Arc<Given>,
    /// What connects to processes of this host, and what came of that.
    here: Arc<dyn OnThisHost>,
    outcomes: Outcomes,
    made: Made,
    state: Mutex<State>,
    is_ending: AtomicBool,
    /// By what one that connects from an address is counted.
    account_of: fn(SocketAddr) -> Account,
    /// Tells the operator.
    note: Note,
}

/// The part of the control plane that speaks with other hosts.
pub struct Hosts {
    shared: Arc<Shared>,
    thread: Option<Thread>,
    /// Whoever drops this waits for its thread until then.
    end_by_ns: AtomicU64,
}

impl core::fmt::Debug for Hosts {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Hosts").field("address", &self.address()).finish_non_exhaustive()
    }
}

/// Other hosts cannot be spoken with. Nothing listens.
#[derive(Debug, thiserror::Error)]
#[cfg_attr(not(feature = "unstable-internals"), non_exhaustive)]
pub enum HostsError {
    /// Their keys.
    #[error(transparent)]
    Keys(#[from] KeysError),
    /// The system refused.
    #[error("while {doing}: {error}")]
    Os {
        /// What was being done.
        doing: String,
        /// What the system said.
        error: io::Error,
    },
    /// The control plane is the application's, and other hosts are a thread's.
    #[error(
        "links to other hosts need a thread of the library's, and housekeeping (HAMLYN_HOUSEKEEPING) is \
         application, which says that there is to be none"
    )]
    Housekeeping,
    /// The thread for them could not go on. Every link to another host has ended; those of this host
    /// have not.
    #[error("the system refuses the thread for other hosts what it needs: {0}")]
    Ended(String),
}

/// Whether a link, connection or request is of another host.
pub fn is_of_host(id: u64) -> bool {
    id & OF_HOSTS != 0
}

impl Hosts {
    /// Listens, if `listen` is set, and is ready to connect.
    pub fn start(
        config: &Config,
        identity: &Identity,
        inbox: &Arc<Inbox>,
        given: &Arc<Given>,
        (here, note): (Arc<dyn OnThisHost>, Note),
    ) -> Result<Self, HostsError> {
        let shared = Arc::new(Shared::new(config, identity, inbox, given, (here, note))?);
        let of_thread = shared.clone();
        let thread = thread::spawn("hamlyn-hosts", 512 << 10, move || of_thread.run());
        let thread = thread.map_err(|error| {
            let doing = "starting the thread for other hosts".into();
            HostsError::Os { doing, error }
        })?;
        Ok(Self { shared, thread: Some(thread), end_by_ns: AtomicU64::new(u64::MAX) })
    }

    /// The program waits until then, and no longer, for this to end.
    pub fn end_by(&self, deadline_ns: u64) {
        self.end_by_ns.store(deadline_ns, Ordering::Relaxed);
    }

    /// Where it listens.
    pub fn address(&self) -> Option<SocketAddr> {
        if self.shared.lock().ended.is_some() {
            return None;
        }
        tcp::listens_at(self.shared.listener.as_ref()?).ok()
    }

    /// A service may be connected to by other hosts, too.
    pub fn serve(&self, service: &str, access: Access, accept: Accept) {
        self.shared.lock().services.insert(service.into(), (access, accept));
    }

    /// Not any more.
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
            let error = HostError::Hosts(HostsError::Ended(why.clone()));
            return Err(ConnectError::Host { name: name.to_string(), error });
        }
        let id = state.new_id();
        let dial = Dial::new(name.clone(), greeting.to_vec(), until_ns, wait);
        dial::start(&self.shared, &mut state, id, dial, Duration::ZERO)?;
        drop(state);
        self.shared.late.bell.ring();
        Ok(super::ConnectionId(id))
    }

    /// Gives up connecting; no event follows, unless it is there already.
    pub fn give_up(&self, token: LinkToken) {
        let mut state = self.shared.lock();
        if matches!(
            state.rows.get(&token.0),
            Some(Row::Dialing(_) | Row::Meeting(_) | Row::Near(..))
        ) {
            self.shared.forget(&mut state, token.0);
        }
    }

    /// Says yes to a request. `false`: it is gone.
    pub fn accept(&self, request: RequestId, greeting: &[u8]) -> bool {
        let mut state = self.shared.lock();
        let Some((met, wants, proved)) = self.shared.take_asked(&mut state, request) else {
            return false;
        };
        self.shared.accept(&mut state, met, wants, proved, greeting.to_vec(), Some(request));
        true
    }

    /// Says no to a request. `false`: it is gone.
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

    /// Ends a link; what has not left yet leaves as far as the other end takes it within
    /// `handshake_timeout_ms`.
    pub fn close(&self, token: LinkToken, how: Goodbye) {
        let shared = &*self.shared;
        let mut state = shared.lock();
        let Some(row) = state.links.remove(&token) else { return };
        let LinkRow { link, identity, rails, .. } = row;
        if matches!(how, Goodbye::SentAway) {
            (shared.note)(Happened::SentAway, None);
        }
        let is_done = lock(&link).close(how);
        if !is_done {
            let id = state.new_id();
            let (deadline_ns, look_ns) = (shared.deadline(), 0);
            let live = rails.map(|rails| rails.live().clone());
            let _ = shared.poller.watch_write(lock(&link).as_fd(), id);
            let what = Rest::Link(link);
            let identity = Some(identity);
            let leaving = Leaving { what, identity, live, look_ns, deadline_ns, tells: false };
            state.rows.insert(id, Row::Leaving(leaving));
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

/// Whoever panicked with it left it as it was.
pub fn lock(link: &Mutex<Carrier>) -> MutexGuard<'_, Carrier> {
    thread::lock(link)
}

impl State {
    fn new_id(&mut self) -> u64 {
        self.next += 1;
        OF_HOSTS | self.next
    }
}

impl Shared {
    /// Listens, if `listen` is set. Its thread is yet to be started.
    fn new(
        config: &Config,
        identity: &Identity,
        inbox: &Arc<Inbox>,
        given: &Arc<Given>,
        (here, note): (Arc<dyn OnThisHost>, Note),
    ) -> Result<Self, HostsError> {
        if config.housekeeping == Housekeeping::Application {
            return Err(HostsError::Housekeeping);
        }
        let keys = Keys::load(config)?;
        let os = |doing: &str| {
            let doing = String::from(doing);
            move |error| HostsError::Os { doing, error }
        };
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
                    os(&doing(advice))(e)
                })?;
                poller.add(&listener, LISTENER).map_err(os(&doing("")))?;
                Some(listener)
            }
        };
        let lines = config.ring_bytes as usize / LINE_BYTES;
        let packet_bytes = config.packet_bytes.min(packet_bytes_max(lines));
        let state = State {
            next: 0,
            rows: BTreeMap::new(),
            links: HashMap::new(),
            services: HashMap::new(),
            dials: 0,
            dials_wait: VecDeque::new(),
            rails_wait: false,
            rails_due_ns: u64::MAX,
            more: Arc::default(),
            strangers_turns: admission::Turns::default(),
            listens_again_ns: None,
            texts: Texts::default(),
            ended: None,
        };
        let fabric = Fabric::start(config);
        if let Some(words) = fabric.words() {
            poller.add(words, WORDS).map_err(os("watching an epoll descriptor"))?;
        }
        Ok(Self {
            own: Own { keys, identity: identity.clone(), packet_bytes },
            config: config.clone(),
            listener,
            poller,
            late: Arc::new(Late::new(bell)),
            inbox: inbox.clone(),
            fabric,
            given: given.clone(),
            here,
            outcomes: Outcomes::default(),
            made: Made::default(),
            state: Mutex::new(state),
            is_ending: AtomicBool::new(false),
            account_of: Self::account_of,
            note,
        })
    }

    fn account_of(address: SocketAddr) -> Account {
        Account::of(address.ip(), tcp::is_here(address))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        thread::lock(&self.state)
    }

    fn deadline(&self) -> u64 {
        let timeout = u64::from(self.config.handshake_timeout_ms) * 1_000_000;
        monotonic_ns().saturating_add(timeout)
    }

    /// A connection that this process has made is there; both ends have yet to agree.
    fn meet(
        self: &Arc<Self>,
        state: &mut State,
        id: u64,
        meeting: Meeting,
        address: SocketAddr,
        dial: Dial,
    ) {
        if let Err(error) = self.poller.add(meeting.channel.as_fd(), id) {
            let doing = "watching the connection to another host";
            return self.dial_failed(state, id, &dial, ConnectError::Os { doing, error });
        }
        let (deadline_ns, dial) = (dial.share_until_ns(), Some(dial));
        let (account, began_ns, is_due, wants) = (None, monotonic_ns(), false, None);
        let met = Met { meeting, address, account, began_ns, deadline_ns, dial, is_due, wants };
        state.rows.insert(id, Row::Meeting(Box::new(met)));
        self.look(state, id);
    }

    /// Goes on with a connection.
    fn look(self: &Arc<Self>, state: &mut State, id: u64) {
        match state.rows.get_mut(&id) {
            None | Some(Row::Dialing(_) | Row::Near(..) | Row::Came(_)) => {}
            Some(Row::Leaving(leaving)) => {
                let stall = leaving.looks_for_stalls(self.config.handshake_timeout_ms);
                let is_done = match &mut leaving.what {
                    Rest::Link(link) => {
                        let mut link = lock(link);
                        if let Some(limit) = stall {
                            link.look_for_stalls(limit);
                        }
                        let is_done = link.finish();
                        // What comes is let go of only once everything has left.
                        let _ = match link.waits() {
                            true => self.poller.watch_write(link.as_fd(), id),
                            false => self.poller.want_write(link.as_fd(), id, false),
                        };
                        is_done
                    }
                    Rest::Refusal(meeting) => {
                        // Until the other end has it, and ends the connection.
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
            Some(Row::Meeting(met)) => {
                let step = met.meeting.turn(&self.own);
                let waits = met.meeting.channel.wants_write();
                let _ = self.poller.want_write(met.meeting.channel.as_fd(), id, waits);
                let says_more = met.wants.is_some() && !met.meeting.channel.plain().is_empty();
                match step {
                    // No honest host says anything before it has its answer.
                    Step::Waits if says_more => {
                        self.count_refused(Refused::Frame);
                        self.too_late(state, id);
                    }
                    Step::Waits => {}
                    Step::Failed(error) => self.failed(state, id, error),
                    Step::Link(greeting, proved) => self.connected(state, id, greeting, proved),
                    Step::Wants(wants, proved) => self.wanted(state, id, wants, proved),
                }
            }
        }
    }

    fn failed(self: &Arc<Self>, state: &mut State, id: u64, error: MeetingError) {
        let Some(Row::Meeting(met)) = state.rows.remove(&id) else { return };
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

    fn too_late(self: &Arc<Self>, state: &mut State, id: u64) {
        if self.goes_on(state, id) {
            return;
        }
        let doing = match state.rows.get(&id) {
            Some(Row::Dialing(dial)) => Some((dial.clone(), "connecting to the other host")),
            Some(Row::Meeting(met)) if met.dial.is_some() => {
                met.dial.clone().map(|dial| (dial, met.meeting.doing()))
            }
            Some(Row::Meeting(met)) if met.wants.is_some() => {
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
        if let Some(Row::Leaving(leaving)) = state.rows.get(&id)
            && let Rest::Link(link) = &leaving.what
        {
            lock(link).give_up();
        }
        self.forget(state, id);
        if let Some((dial, doing)) = doing {
            self.dial_failed(state, id, &dial, dial.too_late(doing));
        }
    }

    fn forget(&self, state: &mut State, id: u64) {
        match state.rows.remove(&id) {
            Some(Row::Came(came)) => self.poller.remove(&came.tcp),
            Some(Row::Meeting(met)) => self.poller.remove(met.meeting.channel.as_fd()),
            Some(Row::Leaving(leaving)) => match &leaving.what {
                Rest::Link(link) => self.poller.remove(lock(link).as_fd()),
                Rest::Refusal(meeting) => self.poller.remove(meeting.channel.as_fd()),
            },
            Some(Row::Near(_, local)) => self.here.give_up(local),
            Some(Row::Dialing(_)) | None => {}
        }
    }
}
