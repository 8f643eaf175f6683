//! The calls of a program, and of its end points.
//!
//! Any thread may call. Each call takes the node's lock for a moment, except those that say that they are
//! loads.

use crate::board::{Board, hello, of_hello, send_over};
use crate::ends::{End, Notes};
use crate::events::{Event, EventQueue, Target};
use crate::memory::{Aperture, Imported, LINE_BYTES, Memory, Region, RegionCore, To};
use crate::trips::Wires;
use crate::wire::{Handle, Head, OOB_BYTES, Rights, kind};
use crate::{Config, Error, Figures, RequestQueue};
use hamlyn::node::{ConnectError, Look, Node, WaitError};
use hamlyn::protocol::{GrowError, Kind, Manager, Seat};
use hamlyn::{Access, AccessError, ApertureAccess, ApertureId, Flags, LinkId, NodeSendError};
use rustix::event::{EventfdFlags, epoll, eventfd};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::task::{Wake, Waker};
use std::time::{Duration, Instant};
use zerocopy::IntoBytes;

const KIND: Kind = Kind::new(*b"clan");

/// This program's place in the network: its end points, regions and queues. Clones are the same. When
/// the last clone, end point, region, aperture and queue is dropped, everything is closed.
#[derive(Clone)]
pub struct Clan(Arc<Inner>);

struct Inner {
    seat: Seat<Board>,
    notes: Arc<Notes>,
    event_loop: OnceLock<EventLoop>,
}

/// The descriptor for an event loop, and its waker.
struct EventLoop {
    /// Readable when one of the others is.
    epoll: OwnedFd,
    bell: Arc<Bell>,
    waker: Waker,
}

/// An eventfd, rung by the threads that take or raise what an event loop sleeps for.
struct Bell(OwnedFd);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        // It fails only if it is rung already.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }
}

impl EventLoop {
    fn new(manager: &Manager) -> std::io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let bell = Arc::new(Bell(eventfd(0, flags)?));
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let node = manager.try_clone_fd()?;
        for fd in [node.as_fd(), bell.0.as_fd()] {
            epoll::add(&epoll, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
        }
        // The registration goes with its open file, of which the node has another descriptor.
        Ok(Self { epoll, waker: bell.clone().into(), bell })
    }
}

impl core::fmt::Debug for Clan {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Clan").field("node", &self.0.seat.manager().id()).finish()
    }
}

pub(crate) fn refused(doing: &str, error: impl core::fmt::Display) -> Error {
    Error::Refused(format!("{doing}: {error}"))
}

impl From<WaitError> for Error {
    fn from(error: WaitError) -> Self {
        match error {
            WaitError::TimedOut => Self::TimedOut,
            other => refused("waiting", other),
        }
    }
}

impl From<AccessError> for Error {
    fn from(error: AccessError) -> Self {
        match error {
            AccessError::Revoked => Self::Revoked,
            other => Self::Misuse(other.to_string()),
        }
    }
}

impl Clan {
    /// With a node of its own.
    pub fn new(config: Config) -> Result<Self, Error> {
        let manager =
            Manager::with_config(config.node.clone()).map_err(|e| refused("a node", e))?;
        Self::at(&manager, config)
    }

    /// At a manager that other protocols use, too; `config.node` is not looked at.
    pub fn at(manager: &Manager, config: Config) -> Result<Self, Error> {
        config.check()?;
        let notes = Arc::new(Notes::default());
        let seat = manager.seat(KIND, Board::new(config, notes.clone()));
        Ok(Self(Arc::new(Inner { seat, notes, event_loop: OnceLock::new() })))
    }

    /// Lets others connect under a name: then [`accept`](Self::accept).
    pub fn listen(&self, name: &str, access: Access) -> Result<(), Error> {
        self.0.seat.serve(name, access).map_err(|e| refused(&format!("serving \"{name}\""), e))
    }

    /// The next end point that a peer has opened, within the time limit (`None`: without limit).
    pub fn accept(&self, limit: Option<Duration>) -> Result<Endpoint, Error> {
        let (name, end, link) = self.wait_for(limit, |_, board| {
            while let Some(name) = board.accepted.pop_front() {
                if let Some(place) = board.place(name) {
                    return Some((name, place.end.clone(), place.link));
                }
            }
            None
        })?;
        Ok(Endpoint { clan: self.clone(), name, end, link })
    }

    /// This event is raised whenever an end point can be [accepted](Self::accept).
    pub fn set_accept_event(&self, target: Option<Target>) {
        let (_old, has_any) = self.0.seat.with(|_, board| {
            let old = core::mem::replace(&mut board.accept_target, target.clone());
            (old, !board.accepted.is_empty())
        });
        if let (Some(target), true) = (target, has_any) {
            target.raise();
        }
    }

    /// Connects to the program that listens as `[user@]name`, or on another host, over a link of its own;
    /// waits for the name and for the peer at most `limit`.
    pub fn connect(&self, name: &str, limit: Option<Duration>) -> Result<Endpoint, Error> {
        let doing = format!("connecting to \"{name}\"");
        let began = Instant::now();
        self.disconnect_unused();
        let seat = &self.0.seat;
        let (inbox, ticket) =
            seat.with(|node, board| board.inbox(node)).map_err(|e| refused(&doing, e))?;
        let connected = seat.connect(name, &hello(&ticket), limit);
        let met = connected.map_err(|e| match e {
            GrowError::Connect(ConnectError::TimedOut { .. }) => Error::TimedOut,
            other => refused(&doing, other),
        });
        let met = met.and_then(|(connection, answer)| match of_hello(&answer, connection.peer()) {
            Ok(to) => Ok((connection, to)),
            Err(why) => {
                seat.expel(&connection, &why);
                Err(refused(&doing, why))
            }
        });
        let link = seat.with(|node, board| match met {
            Ok((connection, to)) => match connection.ended() {
                None => {
                    board.meet(node, &connection, inbox, to, true);
                    Ok(connection.link())
                }
                Some(why) => {
                    board.remove_inbox(node, inbox);
                    Err(Error::Closed(why.to_string()))
                }
            },
            Err(e) => {
                board.remove_inbox(node, inbox);
                Err(e)
            }
        })?;
        self.open(link, limit.map(|limit| limit.saturating_sub(began.elapsed())))
    }

    /// Ends the links that this program made and uses no more.
    fn disconnect_unused(&self) {
        let seat = &self.0.seat;
        for connection in seat.with(|node, board| board.part_unused(node)) {
            seat.disconnect(&connection);
        }
    }

    fn open(&self, link: LinkId, limit: Option<Duration>) -> Result<Endpoint, Error> {
        let opened = self.0.seat.with(|node, board| {
            let name = board.open(link, None)?;
            board.turn(node);
            Some((name, board.place(name)?.end.clone()))
        });
        let Some((name, end)) = opened else {
            return Err(Error::Full(
                "the peer is gone, or has as many end points as allowed".into(),
            ));
        };
        // Dropped, it is closed.
        let endpoint = Endpoint { clan: self.clone(), name, end, link };
        match self.wait_for(limit, |_, board| board.is_opened(name))? {
            true => Ok(endpoint),
            false => Err(match endpoint.end.closed() {
                Some(why) => Error::Closed(why.clone()),
                None => Error::Full("the peer's backlog is full".into()),
            }),
        }
    }

    /// A queue whose events end [`wait`](Self::wait).
    pub fn event_queue(&self, events_max: u32) -> Result<EventQueue, Error> {
        self.event_queue_with(events_max, || {})
    }

    /// A queue that wakes those who [wait](Self::wait), and calls back besides.
    pub(crate) fn event_queue_with(
        &self,
        events_max: u32,
        call_back: impl Fn() + Send + Sync + 'static,
    ) -> Result<EventQueue, Error> {
        let manager = self.0.seat.manager().clone();
        EventQueue::with(events_max, move |is_in_turn| {
            call_back();
            if !is_in_turn {
                manager.wake();
            }
        })
    }

    /// The next event; takes turns of the node, spins and then sleeps as the node's settings say, at most
    /// until the limit.
    pub fn wait(&self, queue: &EventQueue, limit: Option<Duration>) -> Result<Event, Error> {
        if let Some(event) = queue.take() {
            return Ok(event);
        }
        let sleeping = queue.sleep();
        let event = self.wait_for(limit, |_, _| queue.take());
        drop(sleeping);
        event
    }

    /// [`wait`](Self::wait) that also ends, with `None`, when `look` says so: for programs that wait for a
    /// word of a region. It is called after each turn, while the node is locked, and makes no calls.
    pub fn wait_until(
        &self,
        queue: &EventQueue,
        limit: Option<Duration>,
        mut look: impl FnMut() -> bool,
    ) -> Result<Option<Event>, Error> {
        let sleeping = queue.sleep();
        let found = self.wait_for(limit, |_, _| match queue.take() {
            None if look() => Some(None),
            None => None,
            event => Some(event),
        });
        drop(sleeping);
        found
    }

    /// [`wait`](Self::wait) of one turn at most.
    pub fn poll(&self, queue: &EventQueue) -> Result<Option<Event>, Error> {
        if let Some(event) = queue.take() {
            return Ok(Some(event));
        }
        if let Some(event_loop) = self.0.event_loop.get() {
            // Here, where queues are looked at afterwards: not between two that are prepared.
            let _ = rustix::io::read(&event_loop.bell.0, &mut [0; 8]);
        }
        self.manager().poll().map_err(|e| refused("a turn", e))?;
        Ok(queue.take())
    }

    /// A descriptor for epoll and other event loops. Each time before they sleep: call this once for each
    /// queue; `false`: something has come, so take it and call again. When the descriptor is readable,
    /// [`poll`](Self::poll).
    pub fn prepare_to_wait(&self, queue: &EventQueue) -> Result<bool, Error> {
        queue.sleep_often();
        let event_loop = self.event_loop()?;
        let may_sleep = self.manager().prepare_to_wait(Some(&event_loop.waker));
        Ok(may_sleep.map_err(|e| refused("sleeping", e))? && !queue.has_any())
    }

    /// The descriptor of [`prepare_to_wait`](Self::prepare_to_wait).
    pub fn descriptor(&self) -> Result<BorrowedFd<'_>, Error> {
        Ok(self.event_loop()?.epoll.as_fd())
    }

    fn event_loop(&self) -> Result<&EventLoop, Error> {
        if let Some(event_loop) = self.0.event_loop.get() {
            return Ok(event_loop);
        }
        let made = EventLoop::new(self.manager()).map_err(|e| refused("a descriptor", e))?;
        Ok(self.0.event_loop.get_or_init(|| made))
    }

    /// The manager, for other protocols, tasks and threads of progress.
    pub fn manager(&self) -> &Manager {
        self.0.seat.manager()
    }

    /// Memory of `bytes` that peers may be [allowed](Region::export) to use, and up to `wires_max` wires on
    /// it. A peer's puts are packets, checked one by one.
    pub fn region(&self, bytes: u64, wires_max: u32) -> Result<Region, Error> {
        let made = usize::try_from(bytes).ok().filter(|bytes| *bytes > 0);
        let Some(size) = made else {
            return Err(Error::Misuse(format!("exported memory of {bytes} bytes")));
        };
        let (area, view) =
            self.manager().lock().watched_area(size).map_err(|e| refused("a region", e))?;
        Ok(self.region_of(bytes, wires_max, Memory::Checked(area, view)))
    }

    fn region_of(&self, bytes: u64, wires_max: u32, memory: Memory) -> Region {
        let wires = Arc::new(Wires::new(bytes, wires_max));
        let core = RegionCore {
            bytes,
            memory,
            wires,
            observers: Arc::default(),
            notes: self.0.notes.clone(),
            signals: Mutex::default(),
            signal_count: AtomicU32::new(0),
        };
        Region { clan: self.clone(), core: Arc::new(core) }
    }

    /// A queue for requests to the engine, which serves those of the highest priority first; it holds up to
    /// `length` groups, 1 to 4,096, and moves at most `bytes_at_once` of one group before it looks at others
    /// of that priority, 64 to 1 MiB.
    pub fn request_queue(
        &self,
        length: u32,
        priority: u8,
        bytes_at_once: u32,
    ) -> Result<RequestQueue, Error> {
        RequestQueue::new(self, length, priority, bytes_at_once)
    }

    /// Runs the engine, and everything else that the node does, in a thread of the library's, whoever else
    /// calls. Ends with the last clone.
    pub fn start_progress(&self) -> Result<(), Error> {
        self.manager().start_progress().map_err(|e| refused("a thread", e))
    }

    /// Counts since the beginning.
    pub fn figures(&self) -> Figures {
        self.0.seat.with(|_, board| board.figures())
    }

    pub(crate) fn with<R>(&self, act: impl FnOnce(&mut Node, &mut Board) -> R) -> R {
        self.0.seat.with(act)
    }

    /// While no thread has the node.
    pub(crate) fn apart(&self, act: impl FnOnce()) {
        self.0.seat.with(|_, _| act());
    }

    pub(crate) fn wait_for<R>(
        &self,
        limit: Option<Duration>,
        mut look: impl FnMut(&mut Node, &mut Board) -> Option<R>,
    ) -> Result<R, Error> {
        let look = |node: &mut Node, board: &mut Board| match look(node, board) {
            Some(found) => Look::Found(found),
            None => board.wants(),
        };
        Ok(self.0.seat.wait_for(limit, look)?)
    }
}

/// One end of a connection. Several may share a link. Dropping it closes it: the other end is told, and
/// its regions are taken back.
pub struct Endpoint {
    clan: Clan,
    pub(crate) name: u64,
    end: Arc<End>,
    pub(crate) link: LinkId,
}

impl core::fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Endpoint").field("link", &self.link).field("name", &self.name).finish()
    }
}

impl Endpoint {
    /// Another end point over the same link; the peer accepts it as any other.
    pub fn open(&self, limit: Option<Duration>) -> Result<Self, Error> {
        self.clan.open(self.link, limit)
    }

    /// The link that it is on, which it may share with others.
    pub fn link(&self) -> LinkId {
        self.link
    }

    /// [`Error::Closed`] if the other end is closed, or its program has ended. One load. Sends look at it
    /// first; so do receivers of which nothing comes.
    #[inline]
    pub fn check(&self) -> Result<(), Error> {
        match self.end.closed() {
            None => Ok(()),
            Some(why) => Err(Error::Closed(why.clone())),
        }
    }

    /// Sends an out-of-band message of up to [`OOB_BYTES`] bytes, which arrive filled up with zeros; waits
    /// for room in the link, not in the receiver's queue: there it is thrown away, and counted, if the
    /// receiver has not taken as many as its setting `oob_max` says.
    pub fn send_oob(&self, bytes: &[u8], limit: Option<Duration>) -> Result<(), Error> {
        self.check()?;
        if bytes.len() > OOB_BYTES {
            return Err(Error::Misuse(format!(
                "an out-of-band message of {} bytes: at most {OOB_BYTES} are allowed",
                bytes.len()
            )));
        }
        let mut body = [0; OOB_BYTES];
        body[..bytes.len()].copy_from_slice(bytes);
        let link = self.link;
        let name = self.name;
        self.clan.send(limit, link, |node, board| {
            let to = board.partners.get(&link).map(|partner| partner.to);
            let peer = board.place(name).and_then(|place| place.peer);
            let (Some(to), Some(peer)) = (to, peer) else {
                return Err(NodeSendError::Unreachable(node.id()));
            };
            let head = Head { to: peer.into(), ..Head::of(kind::OOB) };
            send_over(node, link, &to, &[head.as_bytes(), &body])
        })
    }

    /// The next out-of-band message. `None`: there is none now. [`Error::Closed`]: and none will come. One
    /// load if there is none; takes no turn.
    #[inline]
    pub fn take_oob(&self) -> Result<Option<[u8; OOB_BYTES]>, Error> {
        match self.end.take_oob() {
            Some(message) => Ok(Some(message)),
            None => self.check().map(|()| None),
        }
    }

    /// [`take_oob`](Self::take_oob), which waits for one.
    pub fn receive_oob(&self, limit: Option<Duration>) -> Result<[u8; OOB_BYTES], Error> {
        self.clan.wait_for(limit, |_, _| self.take_oob().transpose())?
    }

    /// Out-of-band messages that were thrown away here, since too many waited.
    pub fn oob_lost(&self) -> u64 {
        self.end.oob_lost.load(Ordering::Relaxed)
    }

    /// This event is raised whenever an out-of-band message comes, and when the other end closes.
    pub fn set_event(&self, target: Option<Target>) {
        self.end.set_target(target);
    }

    /// The user and program at the other end, and whether the kernel, or the other
    /// host's certificate, has proved them.
    pub fn peer(&self) -> Result<hamlyn::Peer, Error> {
        let connection = |board: &mut Board| {
            board.partners.get(&self.link).map(|partner| partner.connection.peer().clone())
        };
        self.clan.with(|_, board| connection(board)).ok_or(Error::Closed("it is gone".into()))
    }

    /// Memory of whole pages whose pages this peer maps: it stores into them, or only loads, with its own
    /// processor. On one host, and for peers of the same user, unless the setting `apertures_of_others`
    /// says otherwise.
    pub fn mapped_region(
        &self,
        bytes: u64,
        rights: Rights,
        wires_max: u32,
    ) -> Result<Region, Error> {
        self.check()?;
        let access = match rights.writes() {
            true => ApertureAccess::ReadWrite,
            false => ApertureAccess::ReadOnly,
        };
        let made = self.clan.with(|node, _| {
            let aperture = node.export(self.link, bytes, access).map_err(|e| e.to_string())?;
            let view = node.aperture_view(aperture).map_err(|e| e.to_string())?;
            Ok((aperture, view))
        });
        let (aperture, view) = made.map_err(|e: String| refused("a mapped region", e))?;
        let bytes = view.bytes();
        Ok(self.clan.region_of(bytes, wires_max, Memory::Mapped(aperture, view)))
    }

    /// Uses a region of the peer, whose handle came from it; waits for a mapping at most `limit`. The handle
    /// is checked; one that is not the peer's reaches nothing.
    pub fn import(&self, handle: &[u8], limit: Option<Duration>) -> Result<Aperture, Error> {
        self.check()?;
        let wrong = |e: String| refused("a handle", e);
        let (handle, rights) = Handle::check(handle).map_err(wrong)?;
        let (link, number, bytes) = (self.link, handle.number.get(), handle.bytes.get());
        let mut signal = None;
        let to = if handle.is_mapped() {
            let id = ApertureId { link, number: handle.aperture.get() };
            let held = self.clan.wait_for(limit, |node, _| match node.aperture(id) {
                Ok(aperture) => Some(Ok(aperture)),
                Err(_) => self.check().err().map(Err),
            });
            let aperture = held??;
            if aperture.bytes() != bytes {
                return Err(wrong("its length is not the aperture's".into()));
            }
            To::Mapped(aperture)
        } else if rights.writes() {
            let (ticket, with_signal) = handle.tickets().map_err(wrong)?;
            let ticket = ticket.with_flags(Flags::WAKE | Flags::IN_ORDER);
            let prepared = self.clan.with(|node, _| {
                if let Some(ticket) = with_signal {
                    let ticket = ticket.with_flags(Flags::all());
                    signal = Some((ticket, node.prepare_over(link, &ticket)?));
                }
                let prepared = node.prepare_over(link, &ticket)?;
                let at_once = node.fast_bytes_max(link).unwrap_or(0).max(LINE_BYTES);
                Ok::<_, NodeSendError>((prepared, at_once))
            });
            let (prepared, at_once) = prepared.map_err(|e| wrong(e.to_string()))?;
            To::Slot(ticket, prepared, at_once)
        } else {
            To::Nothing
        };
        let end = self.end.clone();
        let signals = AtomicU32::new(handle.signals.get());
        let is_revoked = AtomicBool::new(false);
        let windows = AtomicU32::new(0);
        let imported =
            Imported { link, end, rights, bytes, number, to, signal, signals, is_revoked, windows };
        let core = self.clan.with(|_, board| board.import(imported));
        Ok(Aperture { clan: self.clan.clone(), core })
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.clan.with(|node, board| {
            board.close_end(node, self.name);
            board.turn(node);
        });
        self.clan.disconnect_unused();
    }
}

impl Clan {
    /// Sends one packet over a link; waits for room.
    pub(crate) fn send(
        &self,
        limit: Option<Duration>,
        link: LinkId,
        mut send: impl FnMut(&mut Node, &mut Board) -> Result<(), NodeSendError>,
    ) -> Result<(), Error> {
        let mut is_queued = false;
        sent(self.0.seat.wait_for(limit, |node, board| match send(node, board) {
            Err(NodeSendError::Full) => Look::Room(link),
            sent => {
                is_queued = node.queued() > 0;
                Look::Found(sent)
            }
        }))?;
        self.flush_if(is_queued, limit)
    }

    /// The same of a packet that may have to wait for something else: `None`.
    pub(crate) fn wait_for_room(
        &self,
        limit: Option<Duration>,
        link: LinkId,
        mut send: impl FnMut(&mut Node) -> Option<Result<(), NodeSendError>>,
    ) -> Result<(), Error> {
        let mut is_queued = false;
        sent(self.0.seat.wait_for(limit, |node, board| match send(node) {
            None => board.wants(),
            Some(Err(NodeSendError::Full)) => Look::Room(link),
            Some(sent) => {
                is_queued = node.queued() > 0;
                Look::Found(sent)
            }
        }))?;
        self.flush_if(is_queued, limit)
    }

    /// A short packet waits in the node while the ring is full, and leaves in calls, of which this may be the
    /// last one. After the limit it leaves in a later one.
    fn flush_if(&self, is_queued: bool, limit: Option<Duration>) -> Result<(), Error> {
        if is_queued {
            self.manager().flush(limit).map_err(|e| refused("sending", e))?;
        }
        Ok(())
    }
}

fn sent(result: Result<Result<(), NodeSendError>, WaitError>) -> Result<(), Error> {
    match result {
        Ok(Ok(())) => Ok(()),
        Ok(Err(e @ (NodeSendError::LinkEnded(_) | NodeSendError::Unreachable(_)))) => {
            Err(Error::Closed(e.to_string()))
        }
        Ok(Err(e)) => Err(refused("sending", e)),
        Err(e) => Err(e.into()),
    }
}
