//! Events that wait for the application, with the memory and sockets that belong to them.

use super::super::machine::{ConnectionId, LinkEnd, Peer, RequestId};
use super::super::{LinkFeatures, Reason};
use super::error::ConnectError;
use crate::os::aperture::Pages;
use crate::os::memory::{ForkGuard, Region, RegionLines};
use crate::os::socket::SocketConnection;
use crate::os::sys::{Bell, WakeWord};
use crate::transport::HostLink;
use core::sync::atomic::{AtomicU64, Ordering};
use std::boxed::Box;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::vec::Vec;

/// Names a link of this process, from the first step of making it. Never used twice.
pub type LinkToken = ConnectionId;

/// A link that has been agreed.
#[derive(Debug)]
pub struct NewLink {
    /// Its name for [`Control`](super::Control).
    pub token: LinkToken,
    /// The identity of the other end.
    pub peer: Peer,
    /// The other end's first words.
    pub greeting: Vec<u8>,
    /// The ring that this process writes.
    pub outgoing: Region,
    /// The ring that the other process writes.
    pub incoming: Region,
    /// The connection between the ends besides the rings.
    pub way: LinkWay,
    /// Most data bytes of a packet, as agreed; a ring may lower it.
    pub packet_bytes: u32,
    /// The features that both ends have.
    pub features: LinkFeatures,
    /// Whether this process connected.
    pub initiated_by_us: bool,
    /// The request that this process accepted, if it was asked.
    pub request: Option<RequestId>,
    /// The token of the request for a link to another host, if that host turned out to be this one.
    pub asked: Option<LinkToken>,
    /// Remarks about the way in which it was found, in words.
    pub how: Option<Box<str>>,
}

/// The way to the other end of a link, beside its rings.
#[derive(Debug)]
pub enum LinkWay {
    /// The other process has the same memory. The socket carries single bytes, which mean "wake
    /// up"; it does not block. If it is full, a wake-up is pending already.
    Memory(SocketConnection),
    /// The other end is on another host, and only this process has this memory: the bytes of one
    /// ring must be carried there, and the bytes from there into the other.
    Host(HostLink),
}

impl LinkWay {
    /// The socket for wake-ups, if there is one.
    pub fn wake(&self) -> Option<&SocketConnection> {
        match self {
            Self::Memory(wake) => Some(wake),
            Self::Host(_) => None,
        }
    }
}

/// An [`MachineEvent`](super::super::machine::MachineEvent) with the memory and sockets that belong to it. Each
/// is reported once.
#[derive(Debug)]
pub enum ControlEvent {
    /// A peer wants a link to a service that asks.
    Request {
        /// For the answer.
        id: RequestId,
        /// The peer.
        peer: Peer,
        /// Its first words.
        greeting: Vec<u8>,
    },
    /// A request was withdrawn before it was answered, or did not become a link afterwards.
    RequestGone {
        /// The request.
        id: RequestId,
    },
    /// A link exists, which this process or another asked for.
    Connected(NewLink),
    /// A link that this process asked for was not made. Nothing is left of it.
    ConnectFailed {
        /// The link.
        token: LinkToken,
        /// The reason.
        error: ConnectError,
    },
    /// The bulk ring that this process writes exists.
    BulkOutgoing {
        /// The link.
        token: LinkToken,
        /// The ring.
        lines: RegionLines,
    },
    /// The bulk ring that the other process writes exists.
    BulkIncoming {
        /// The link.
        token: LinkToken,
        /// The ring.
        lines: RegionLines,
    },
    /// There will be no bulk ring that this process writes.
    BulkRefused {
        /// The link.
        token: LinkToken,
        /// The reason.
        why: Reason,
    },
    /// The holder of an aperture has mapped it.
    ApertureReady {
        /// The link.
        token: LinkToken,
        /// The aperture.
        number: u32,
    },
    /// The other end will not hold the aperture.
    ApertureRefused {
        /// The link.
        token: LinkToken,
        /// The aperture.
        number: u32,
        /// The reason.
        why: Reason,
    },
    /// The holder has released an aperture.
    ApertureReleased {
        /// The link.
        token: LinkToken,
        /// The aperture.
        number: u32,
    },
    /// This process holds an aperture of the other end.
    ApertureHeld {
        /// The link.
        token: LinkToken,
        /// The aperture.
        number: u32,
        /// The memory.
        pages: Pages,
    },
    /// The other end has taken an aperture back; release it with
    /// [`release_aperture`](super::Control::release_aperture).
    ApertureRevoked {
        /// The link.
        token: LinkToken,
        /// The aperture.
        number: u32,
    },
    /// The other end refused packets because it has revoked a ticket.
    TicketRevoked {
        /// The link.
        token: LinkToken,
        /// The slot there.
        slot: u32,
        /// The metadata index there.
        index: u32,
    },
    /// A link ended. Everything that the other end had written can still be read: the regions stay
    /// mapped while there are references to them.
    Closed {
        /// The link.
        token: LinkToken,
        /// The reason.
        reason: LinkEnd,
    },
}

impl ControlEvent {
    /// The link of the event, if it has one.
    pub fn token(&self) -> Option<LinkToken> {
        match self {
            Self::Request { .. } | Self::RequestGone { .. } => None,
            Self::Connected(link) => Some(link.token),
            Self::ConnectFailed { token, .. }
            | Self::BulkOutgoing { token, .. }
            | Self::BulkIncoming { token, .. }
            | Self::BulkRefused { token, .. }
            | Self::ApertureReady { token, .. }
            | Self::ApertureRefused { token, .. }
            | Self::ApertureReleased { token, .. }
            | Self::ApertureHeld { token, .. }
            | Self::ApertureRevoked { token, .. }
            | Self::TicketRevoked { token, .. }
            | Self::Closed { token, .. } => Some(*token),
        }
    }
}

/// The queue of events for the application. Their memory and descriptors count to their users until
/// the application has taken them.
#[derive(Debug)]
pub struct Inbox {
    /// Wants attention while events wait.
    guard: ForkGuard,
    queue: Mutex<InboxQueue>,
    /// Events of the machine, up to the one before the first in the queue.
    taken: AtomicU64,
    bell: Bell,
    word: WakeWord,
}

#[derive(Debug, Default)]
struct InboxQueue {
    /// With their numbers.
    events: VecDeque<(u64, ControlEvent)>,
    /// Events of the machine, including those for other receivers.
    told: u64,
}

impl Inbox {
    pub(in crate::control) fn new(guard: ForkGuard) -> io::Result<Self> {
        Ok(Self {
            guard,
            queue: Mutex::default(),
            taken: AtomicU64::new(0),
            bell: Bell::new()?,
            word: WakeWord::default(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, InboxQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(in crate::control) fn len(&self) -> usize {
        self.lock().events.len()
    }

    /// The number of the machine's events that the application has taken: for
    /// [`Machine::events_taken`](super::super::machine::Machine::events_taken).
    pub(super) fn taken(&self) -> u64 {
        self.taken.load(Ordering::Acquire)
    }

    /// Called once for each event of the machine; `None`: it is not for the application.
    pub(super) fn put(&self, event: Option<ControlEvent>) {
        let mut queue = self.lock();
        queue.told += 1;
        self.put_in(queue, event);
    }

    fn put_in(&self, mut queue: MutexGuard<'_, InboxQueue>, event: Option<ControlEvent>) {
        // A request that the application has not seen yet is withdrawn in silence.
        if let Some(ControlEvent::RequestGone { id: gone }) = event {
            let is_it = |e: &(u64, ControlEvent)| matches!(e.1, ControlEvent::Request { id, .. } if id == gone);
            if let Some(at) = queue.events.iter().position(is_it) {
                queue.events.remove(at);
                return self.settle(&queue);
            }
        }
        let Some(event) = event else { return self.settle(&queue) };
        let (is_first, number) = (queue.events.is_empty(), queue.told);
        queue.events.push_back((number, event));
        self.guard.set_attention(true);
        // Last: a woken thread looks at the guard without the lock and, if its wake-ups are edges,
        // sleeps for good if it sees nothing.
        if is_first {
            self.bell.ring();
            // Without the lock: it may take a moment until a thread that sleeps elsewhere has left.
            drop(queue);
            self.word.wake();
        }
    }

    /// An event of connecting to another host, of which the machine knows nothing.
    #[cfg(feature = "tls")]
    pub(in crate::control) fn put_of_host(&self, event: ControlEvent) {
        self.put_in(self.lock(), Some(event));
    }

    /// The first event in the queue has changed, or the queue is empty.
    fn settle(&self, queue: &InboxQueue) {
        let taken = queue.events.front().map_or(queue.told, |first| first.0.saturating_sub(1));
        self.taken.store(taken, Ordering::Release);
        if queue.events.is_empty() && self.guard.wants_attention() {
            self.guard.set_attention(false);
            self.bell.silence();
        }
    }

    /// Changes when an event is put, for a thread that sleeps on words.
    pub fn word(&self) -> &WakeWord {
        &self.word
    }

    /// Whether events wait. One load.
    #[inline]
    pub fn is_pending(&self) -> bool {
        self.guard.wants_attention()
    }

    /// Distinguishes this process from its children, and tells in the same load whether events
    /// wait.
    pub fn guard(&self) -> &ForkGuard {
        &self.guard
    }

    /// Takes the event that happened first.
    pub fn take_next(&self) -> Option<ControlEvent> {
        let mut queue = self.lock();
        let (_, event) = queue.events.pop_front()?;
        self.settle(&queue);
        Some(event)
    }

    /// Takes all events, in the order in which they happened.
    pub fn take(&self) -> Vec<ControlEvent> {
        let mut queue = self.lock();
        let events = queue.events.drain(..).map(|row| row.1).collect();
        self.settle(&queue);
        events
    }
}

impl AsFd for Inbox {
    /// Readable while events wait.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}
