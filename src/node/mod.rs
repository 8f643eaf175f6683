//! [`Node`]: an interface, its links, its control plane, and waiting, in one process.
//!
//! ```text
//!  application thread                                   housekeeping thread
//!   send ----> terminus ----> SendHalf (ring) ---> peer
//!   recv <-- notification queue <-- interface <-- ReceiveHalf (ring) <--- peer
//!   poll ----> inbox of events <----------------------  accepts, watches, answers `stat`
//! ```
//! - `mod.rs`: making a node; `parts.rs`: the parts of its interface
//! - `send.rs`: messages out; `line.rs`: those of one line; `queued.rs`: those that wait
//! - `receive.rs`: messages in, the turn over the links; `hosts.rs`: its looks at other hosts
//! - `layers.rs`: further choices in both, for layers
//! - `figures.rs`: the node's figures for statistics; `kept.rs`: records that receivers keep;
//!   `room_waits.rs`: how long senders waited
//! - `links.rs`: links come and go; `places.rs`: their places; `link.rs`: one link
//! - `events.rs`: the application's events
//! - `aperture.rs`: memory mapped into a holder, or read-only into several: exported, held, revoked
//! - `wait.rs`: waiting; `sleep.rs`: sleeping and waking. The decisions about both, about turns and
//!   about routes are in `crate::engine`
//! - `shared/`: a node used by several threads
//!
//! A node is owned by one thread at a time: no other thread can call it meanwhile, so the fast path
//! has no lock, and a slice of a message area is stable while it is borrowed. After a fork, the
//! child's calls return [`Forked`] and touch nothing.

mod aperture;
mod conduct;
mod events;
mod figures;
mod hosts;
mod kept;
mod layers;
mod line;
mod link;
mod links;
mod parts;
mod places;
mod queued;
mod receive;
mod room_waits;
mod send;
mod shared;
mod sleep;
mod taking;
mod wait;

// The errors of its parts and its control plane.
#[cfg(feature = "tls")]
pub use crate::control::hosts::{
    HostDirectory, HostDirectoryError, HostError, KeysError, MeetingError, Place,
};
pub use crate::control::{
    AcceptError, ApertureError, BuildError, ConnectError, DirectoryError, FindError, NameError,
    ServeError,
};
pub use crate::interface::terminus::{PostError, TerminusId};
pub use crate::interface::{AreaError, QueueError, SlotError};

pub use aperture::{
    Aperture, ApertureEvent, ApertureId, ApertureView, ExportError, NoSuchAperture,
};
pub use events::{CloseReason, Event};
pub(crate) use events::{check_service_name, keep_event};
pub(crate) use figures::UnansweredRequests;
pub(crate) use kept::{
    BoundedResource, BuffersHeld, MessagesHeld, PlacesHeld, SamplesHeld, WindowHeld,
};
pub use layers::{Envelope, ReceivedLine};
pub use line::PreparedTicket;
pub use links::LinkError;
pub(crate) use links::{NO_WORD, with_answer};
pub use parts::MemoryError;
pub use receive::NodeReceiveError;
pub use send::{NodeSendError, Unfinished};
pub(crate) use shared::{Attached, NodeGuard, SharedNode};
#[cfg(feature = "tokio")]
pub(crate) use shared::{NextTurn, Patience};

pub use wait::{Look, WaitError};

use crate::config::{Config, Housekeeping};
use crate::control::{Accept, Access, Control, Identity, Inbox, ServiceName};
use crate::engine::queued::Queued;
use crate::engine::routes::Routes;
use crate::engine::turns::Turns;
pub(crate) use crate::interface::LinkId;
use crate::interface::terminus::Terminus;
use crate::interface::{Counters, Interface};
use crate::os::memory::{AreaMemory, ForkGuard};
use crate::os::poller::Poller;
use crate::os::sys;
use crate::wire::{MetadataIndex, NodeId, SlotIndex};
use core::time::Duration;
use link::Link;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::vec::Vec;

/// This process was forked from the one that made the node. The node is the parent's; the child can
/// make one of its own. Nothing was touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this process was forked from the one that made the node; make a node here")]
pub struct Forked;

/// A service that could not be offered. No name was taken.
#[derive(Debug, thiserror::Error)]
#[cfg_attr(not(feature = "unstable-internals"), non_exhaustive)]
pub enum OfferError {
    /// This is not a valid name of a service.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The control plane's error.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// The name is for a server that drains or has drained: it would admit no client.
    #[error("this server drains, or has drained, and takes nobody: another is to be made")]
    Drained,
}

/// A process's part in Hamlyn: its interface, links, names and waiting. See the [module](self) for
/// how the parts fit.
///
/// ```
/// use hamlyn::{Accept, Access, MetadataIndex, Node, SlotConfig, Ticket};
/// use std::time::Duration;
/// # std::thread::scope(|scope| -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = std::env::temp_dir().join(format!("hamlyn-doc-node-{}", std::process::id()));
/// # let config = hamlyn::Config::from_env()?.dir(&dir);
/// # let config2 = config.clone();
/// // The receiver makes memory, a slot over it, and a ticket for the peers that connect.
/// let mut receiver = Node::with_config(config)?;
/// let area = receiver.message_area(4096)?;
/// let queue = receiver.notification_queue(16)?;
/// let slot = receiver.slot(SlotConfig::new(area, queue))?;
/// let ticket = receiver.ticket(slot, MetadataIndex(0))?;
/// receiver.serve("greeter", Access::SameUser, Accept::Automatic(ticket.to_bytes().to_vec()))?;
///
/// // The sender, usually another process, connects and writes with the ticket.
/// # let sender = scope.spawn(move || -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// # let config = config2;
/// let mut sender = Node::with_config(config)?;
/// let link = sender.connect("greeter", b"", Some(Duration::from_secs(5)))?;
/// let ticket = Ticket::from_bytes(sender.greeting(link)?)?;
/// sender.send(&ticket, b"hello", b"", None)?;
/// sender.close(None)?;
/// # Ok(()) });
///
/// let message = receiver.recv(queue, Some(Duration::from_secs(5)))?;
/// assert_eq!(message.slot, slot);
/// assert_eq!(&receiver.area(area)?[..5], b"hello");
/// # sender.join().unwrap().unwrap();
/// # std::fs::remove_dir_all(&dir).ok();
/// # Ok(()) }).unwrap();
/// ```
pub struct Node {
    interface: Interface<AreaMemory>,
    termini: Vec<Terminus<AreaMemory>>,
    links: Vec<Option<Link>>,
    places: places::LinkPlaces,
    /// The links in their turns.
    turns: Turns,
    /// There is, or was, a bulk ring to take packets from.
    has_bulk_incoming: bool,
    /// Links to other hosts, whose packets this node carries.
    hosts: hosts::HostLinks,
    /// The link that leads to each node.
    routes: Routes<NodeId>,
    /// Links whose peers are gone, with committed packets still to be taken.
    leaving: links::LeavingLinks,
    /// Packets with changed keys of which their senders are to be told.
    stale: Vec<(LinkId, SlotIndex, MetadataIndex)>,
    /// Messages that wait in work queues.
    queued: Queued,
    /// The figures for statistics.
    figures: Arc<figures::Figures>,
    /// See `wake`.
    wakes_of_waiters: u64,
    apertures: aperture::NodeApertures,
    events: VecDeque<Event>,
    /// At this number of waiting events, those without a result are dropped.
    events_room: usize,
    /// Links that a caller here is connecting.
    connecting: events::ConnectingLinks,
    /// The other ends of the links that ended last.
    departed: VecDeque<links::Departed>,
    poller: Poller,
    /// The inbox's; it also shows whether events wait there.
    fork_guard: ForkGuard,
    area_bytes: usize,
    /// A watchdog is set, and another caller than the application makes the calls.
    watched: bool,
    /// The application runs the control plane, so each blocking call does.
    runs_control: bool,
    sleeping: sleep::SleepState,
    config: Config,
    /// Most packets of a ring in a turn.
    packets_per_turn: u32,
    counters: Arc<Counters>,
    inbox: Arc<Inbox>,
    /// Last, so that it outlives the objects that it reported. `None` only while dropping.
    control: Option<Arc<Control>>,
}

impl Node {
    /// A node with the settings of the environment (`HAMLYN_*`).
    pub fn new() -> Result<Self, BuildError> {
        Self::with_config(Config::from_env()?)
    }

    /// A node with these settings. Its interface accepts packets at once; see
    /// [`disable`](Self::disable). If the process has threads already, the first node takes some 20
    /// ms, in which the kernel registers the process for barriers; to avoid that, call
    /// [`register_barrier`](crate::register_barrier) before you start threads.
    pub fn with_config(config: Config) -> Result<Self, BuildError> {
        let os = BuildError::os;
        config.validate()?;
        if config.undumpable {
            sys::make_undumpable().map_err(os("making the process undumpable"))?;
        }
        sys::register_barrier();
        let identity =
            Identity::new().map_err(os("asking the system's random number generator"))?;
        // Without a secret there is no protection, so nothing goes on.
        let secret = sys::random().map_err(os("asking the system's random number generator"))?;
        let mut interface = Interface::new(identity.node(), secret);
        interface.enable();
        let counters = interface.counters().clone();
        let told = counters.clone();
        let figures = Arc::new(figures::Figures::new(identity.node(), counters.clone()));
        let told_of_links = figures.clone();
        let stat = move || {
            let mut text = std::string::String::new();
            for (name, value) in told.snapshot() {
                text.push_str(&std::format!("{name} {value}\n"));
            }
            told_of_links.text(&mut text);
            text
        };
        let control = Control::start(&config, &identity, Arc::new(stat))?;
        let poller = Poller::new().map_err(os("making an epoll descriptor"))?;
        let runs_control = config.housekeeping == Housekeeping::Application;
        poller.add(control.inbox(), sleep::INBOX_TAG).map_err(os("watching the control plane"))?;
        if runs_control {
            poller.add(&control, sleep::CONTROL_TAG).map_err(os("watching the control plane"))?;
        }
        // A thread that runs the control plane also needs wake-ups for it, by its descriptor.
        let by_words = !runs_control && sys::can_wait_for_words();
        let mut node = Self {
            interface,
            termini: Vec::new(),
            links: std::vec![None],
            places: places::LinkPlaces::new(),
            turns: Turns::new(),
            has_bulk_incoming: false,
            hosts: hosts::HostLinks::default(),
            routes: Routes::new(),
            leaving: links::LeavingLinks::new(),
            stale: Vec::new(),
            queued: Queued::default(),
            figures,
            wakes_of_waiters: 0,
            apertures: aperture::NodeApertures::default(),
            events: VecDeque::new(),
            events_room: 0,
            connecting: events::ConnectingLinks::default(),
            departed: VecDeque::new(),
            poller,
            fork_guard: control.inbox().guard().clone(),
            area_bytes: 0,
            watched: false,
            runs_control,
            sleeping: sleep::SleepState::new(if by_words { sys::WORDS_MAX } else { 0 }),
            packets_per_turn: config.packets_per_turn,
            config,
            counters,
            inbox: control.inbox().clone(),
            control: Some(Arc::new(control)),
        };
        node.terminus();
        Ok(node)
    }

    #[inline]
    pub(crate) fn check_fork(&self) -> Result<(), Forked> {
        if self.fork_guard.is_parent() { Ok(()) } else { Err(Forked) }
    }

    /// A number that changes whenever a packet is deposited or a link comes or goes.
    #[inline]
    pub(crate) fn moved(&self) -> u64 {
        let links = self.counters.links_opened.get() + self.counters.links_closed.get();
        self.counters.packets() + links + self.wakes_of_waiters
    }

    /// The state of a layer above has changed, and other threads or tasks may wait for that: they
    /// look again. A thread that does not have the node calls
    /// [`Manager::wake`](crate::protocol::Manager::wake).
    pub fn wake(&mut self) {
        self.wakes_of_waiters += 1;
    }

    fn control(&self) -> &Control {
        self.control.as_ref().expect("present until the node is dropped")
    }

    /// The control plane, for slow work that is done without the node.
    pub(crate) fn control_apart(&self) -> Arc<Control> {
        self.control.clone().expect("present until the node is dropped")
    }

    /// The name that tickets for this node carry.
    pub fn id(&self) -> NodeId {
        self.interface.id()
    }

    /// The settings that this node was made with.
    pub fn config(&self) -> &Config {
        &self.config
    }

    // ---- names

    /// Offers a service. Connections are accepted by the housekeeping thread, with `Accept`'s
    /// greeting, or become [`Event::Request`]s. A node may offer several. The name is that of the user
    /// whom the process has now: one that gives up its rights does so before.
    pub fn serve(&mut self, name: &str, access: Access, accept: Accept) -> Result<(), OfferError> {
        let name: ServiceName = name.parse()?;
        Ok(self.control().serve(&name, access, accept)?)
    }

    /// Stops offering a service; links made through it stay. `false`: it was not offered.
    ///
    /// ```
    /// # let dir = std::env::temp_dir().join(format!("hamlyn-doc-serving-{}", std::process::id()));
    /// use hamlyn::{Accept, Access, Event, Node};
    /// use std::time::Duration;
    ///
    /// # let limit = Some(Duration::from_secs(10));
    /// # let config = hamlyn::Config::from_env()?.dir(&dir);
    /// let mut node = Node::with_config(config.clone())?;
    /// node.serve("club", Access::SameUser, Accept::Ask)?;
    /// // Usually another process.
    /// let knocking = std::thread::spawn(move || {
    ///     let mut guest = Node::with_config(config).unwrap();
    ///     let refused = guest.connect("club", b"a guest", limit).unwrap_err();
    ///     assert!(refused.to_string().contains("members only"));
    ///     guest.connect("club", b"a member", limit).unwrap();
    ///     guest
    /// });
    /// let link = loop {
    ///     match node.next_event() {
    ///         Some(Event::Request { id, greeting, .. }) if greeting == b"a member" => {
    ///             node.accept(id, b"welcome")?;
    ///         }
    ///         Some(Event::Request { id, .. }) => node.refuse(id, "members only")?,
    ///         Some(Event::Connected { link, .. }) => break link,
    ///         _ => assert!(node.wait(limit)?, "nobody came"),
    ///     }
    /// };
    /// let guest = knocking.join().expect("a thread");
    /// assert_eq!(node.peer(link)?.node, guest.id());
    /// // No more of them; the link stays.
    /// assert!(node.stop_serving("club") && node.links().eq([link]));
    /// # drop((node, guest));
    /// # std::fs::remove_dir_all(&dir).ok();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn stop_serving(&mut self, name: &str) -> bool {
        // In a forked child the name is the parent's.
        self.check_fork().is_ok()
            && name.parse().is_ok_and(|name| self.control().stop_serving(&name))
    }

    /// The address at which other hosts connect to this node's services: the setting `listen`, with
    /// the port that the system chose for port 0. `None`: the node does not listen.
    #[cfg(feature = "tls")]
    pub fn listens_at(&self) -> Option<core::net::SocketAddr> {
        self.control().listens_at()
    }

    /// Sets the directory for services of other hosts whose names give no address,
    /// `hamlyn://service`; `None`: the one in the setting `directory`. Connection attempts that
    /// have been looked up keep the address found.
    ///
    /// A directory that owns this node, or a manager of it, keeps it alive.
    ///
    /// ```
    /// # let dir = std::env::temp_dir().join(format!("hamlyn-doc-directory-{}", std::process::id()));
    /// use hamlyn::Node;
    /// use hamlyn::node::{HostDirectory, Place};
    /// use std::error::Error;
    /// use std::sync::Arc;
    /// use std::time::Duration;
    ///
    /// struct Table;
    ///
    /// impl HostDirectory for Table {
    ///     fn look_up(
    ///         &self,
    ///         service: &str,
    ///         _: Option<Duration>,
    ///     ) -> Result<Vec<Place>, Box<dyn Error + Send + Sync>> {
    ///         Ok(if service == "clock" { vec!["[::1]:4000".parse()?] } else { vec![] })
    ///     }
    /// }
    ///
    /// assert_eq!(Table.look_up("clock", None).map_err(|e| e.to_string())?[0].port, 4000);
    /// # let config = hamlyn::Config::from_env()?.dir(&dir);
    /// let mut node = Node::with_config(config)?;
    /// node.set_directory(Some(Arc::new(Table)))?; // From now on it is asked for `hamlyn://clock`.
    /// assert_eq!(node.listens_at(), None); // Connecting needs no port of its own.
    /// node.set_directory(None)?;
    /// # drop(node);
    /// # std::fs::remove_dir_all(&dir).ok();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[cfg(feature = "tls")]
    pub fn set_directory(
        &mut self,
        directory: Option<Arc<dyn HostDirectory>>,
    ) -> Result<(), Forked> {
        self.check_fork()?;
        self.control().set_directory(directory);
        Ok(())
    }

    /// Sentences about steps that were taken or left out because of this system or its limits.
    ///
    /// ```
    /// # let dir = std::env::temp_dir().join(format!("hamlyn-doc-notes-{}", std::process::id()));
    /// use hamlyn::Node;
    ///
    /// # let config = hamlyn::Config::from_env()?.dir(&dir);
    /// let mut node = Node::with_config(config)?;
    /// for note in node.notes() {
    ///     eprintln!("{note}");
    /// }
    /// # drop(node);
    /// # std::fs::remove_dir_all(&dir).ok();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn notes(&self) -> &[std::string::String] {
        self.control().notes()
    }

    /// For [`Housekeeping::Application`](crate::config::Housekeeping): does the work of the
    /// housekeeping thread, waiting at most `timeout` (`None`: without limit) for something to do.
    /// [`housekeeping_fd`](Self::housekeeping_fd) tells you when to call it.
    ///
    /// ```
    /// # let dir = std::env::temp_dir().join(format!("hamlyn-doc-housekeeping-{}", std::process::id()));
    /// use hamlyn::Node;
    /// use hamlyn::config::Housekeeping;
    /// use std::time::Duration;
    ///
    /// # let config = hamlyn::Config::from_env()?.dir(&dir);
    /// let mut node = Node::with_config(config.housekeeping(Housekeeping::Application))?;
    /// // In an event loop: this is readable, or the time has come.
    /// let (_readable, _by) = (node.housekeeping_fd(), node.housekeeping_deadline_ns());
    /// node.run_housekeeping(Some(Duration::ZERO))?;
    /// # drop(node);
    /// # std::fs::remove_dir_all(&dir).ok();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn run_housekeeping(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        self.control().run_once(timeout.unwrap_or(Duration::MAX))
    }

    /// The time at which [`run_housekeeping`](Self::run_housekeeping) must be called even if its
    /// descriptor is not readable, in nanoseconds of the monotonic clock: for time limits of peers
    /// that connect.
    pub fn housekeeping_deadline_ns(&self) -> Option<u64> {
        self.control().deadline_ns()
    }

    /// Readable when [`run_housekeeping`](Self::run_housekeeping) has something to do.
    pub fn housekeeping_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        std::os::fd::AsFd::as_fd(self.control())
    }

    // ---- start-up and watchdog (Hamlyn 2.8)

    /// Accept packets (the state after [`new`](Self::new)).
    pub fn enable(&mut self) {
        self.interface.enable();
    }

    /// Accept packets and discard them, counted, until [`enable`](Self::enable).
    ///
    /// ```
    /// # let dir = std::env::temp_dir().join(format!("hamlyn-doc-disable-{}", std::process::id()));
    /// use hamlyn::{MetadataIndex, Node, SlotConfig};
    /// # use std::time::Duration;
    ///
    /// # let limit = Some(Duration::from_secs(10));
    /// # let config = hamlyn::Config::from_env()?.dir(&dir);
    /// let mut node = Node::with_config(config)?;
    /// # let (area, queue) = (node.message_area(4096)?, node.notification_queue(1)?);
    /// # let slot = node.slot(SlotConfig::new(area, queue))?;
    /// # let ticket = node.ticket(slot, MetadataIndex(0))?;
    /// node.disable();
    /// node.send(&ticket, b"too early", b"", limit)?;
    /// node.poll()?;
    /// assert!(node.counters().iter().any(|(name, n)| *name == "packets_discarded" && *n == 1));
    /// node.enable();
    /// node.send(&ticket, b"now", b"", limit)?;
    /// node.recv(queue, limit)?;
    /// node.reset_watchdog(); // Only if the setting `watchdog_ms` is not 0.
    /// assert_eq!(node.config().watchdog_ms, 0);
    /// # drop(node);
    /// # std::fs::remove_dir_all(&dir).ok();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn disable(&mut self) {
        self.interface.disable();
    }

    /// Resets the watchdog: packets are not discarded for another `watchdog_ms`. Only for a node
    /// that a progress thread drives, and only if the setting is not 0. Receiving calls reset it,
    /// too, and a wait, in a call or in an event loop, does not count as silence: so call this in a
    /// program that is busy with other work.
    pub fn reset_watchdog(&mut self) {
        self.interface.reset_watchdog(sys::monotonic_ns());
    }

    #[cold]
    #[inline(never)]
    fn reset_watchdog_now(&mut self) {
        self.reset_watchdog();
    }

    /// Whether another caller than the application makes the calls from now on.
    fn set_watched(&mut self, by_another: bool) {
        let watchdog_ms = if by_another { self.config.watchdog_ms } else { 0 };
        self.watched = watchdog_ms != 0;
        self.turns.call_attention();
        self.interface.set_watchdog(sys::monotonic_ns(), watchdog_ms as u64 * 1_000_000);
    }

    // ---- counters

    /// Name and value of each counter of the interface and the control plane.
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        let mut counters = self.counters.snapshot();
        counters.extend(self.control().counters());
        counters
    }
}

impl Node {
    /// Says goodbye on each link, except those for which messages still wait: their peers must not
    /// take their data for complete. Returns how many messages did not leave.
    fn part(&mut self) -> usize {
        for link in self.links.iter_mut().flatten() {
            if let (Some(token), Some(control)) = (link.token, &self.control) {
                if self.queued.of(link.id.index) == 0 {
                    control.close(token);
                } else {
                    control.hang_up(token);
                }
            }
        }
        self.queued.total()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if !self.fork_guard.is_parent() {
            // The parent's node: its links are not mapped here, its thread does not run here, and
            // its sockets must not say goodbye.
            core::mem::forget(self.control.take());
            core::mem::forget(core::mem::take(&mut self.links));
            return;
        }
        self.part();
    }
}
