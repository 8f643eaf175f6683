//! What the application is told: events that wait for it, with what belongs to them.

use super::super::machine::{ConnectionId, LinkEnd, Peer, RequestId};
use super::super::{LinkFeatures, Reason};
use super::error::ConnectError;
#[cfg(feature = "tls")]
use crate::control::hosts::HostLink;
use crate::os::aperture::Pages;
use crate::os::memory::{ForkGuard, Region, RegionLines};
use crate::os::socket::Connection;
use crate::os::sys::{Bell, WakeWord};
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use std::boxed::Box;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::vec::Vec;

/// Names a link of this process, from the first step of making it. Never used twice.
pub type LinkToken = ConnectionId;

/// A link that has been agreed.
#[derive(Debug)]
pub struct NewLink {
    /// Its name for [`Control`](super::Control).
    pub token: LinkToken,
    /// Who is at the other end.
    pub peer: Peer,
    /// The other end's first words.
    pub greeting: Vec<u8>,
    /// What this process writes.
    pub outgoing: Region,
    /// What the other process writes.
    pub incoming: Region,
    /// What is between the ends besides.
    pub way: Way,
    /// Most data bytes of a packet, as agreed; a ring may lower it.
    pub packet_bytes: u32,
    /// What both can.
    pub features: LinkFeatures,
    /// Whether this process connected.
    pub initiated_by_us: bool,
    /// The request that this process accepted, if it was asked.
    pub request: Option<RequestId>,
    /// What it was called while it was to be one to another host, if it turned out to be of this one.
    pub asked: Option<LinkToken>,
    /// What there is to say of how it was found, in words.
    pub how: Option<Box<str>>,
}

/// What leads to the other end of a link, beside its rings.
#[derive(Debug)]
pub enum Way {
    /// The other process has the same memory. The socket carries single bytes, which say "wake up";
    /// not blocking. Full: it has been said already.
    Memory(Connection),
    /// The other end is on another host, and this process's memory its own alone: what is in the one
    /// ring is to be carried there, and what comes from there into the other.
    #[cfg(feature = "tls")]
    Host(HostLink),
}

impl Way {
    /// The socket for wake-ups, where there is one.
    pub fn wake(&self) -> Option<&Connection> {
        match self {
            Self::Memory(wake) => Some(wake),
            #[cfg(feature = "tls")]
            Self::Host(_) => None,
        }
    }
}

/// What happened: an [`Event`](super::super::machine::Event) with the memory and sockets that
/// belong to it. Each is told once.
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
    /// A link is there, which this process or another asked for.
    Connected(NewLink),
    /// A link that this process asked for did not come to be. Nothing is left of it.
    ConnectFailed {
        /// Which.
        token: LinkToken,
        /// Why.
        error: ConnectError,
    },
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
    /// [`release_aperture`](super::Control::release_aperture).
    ApertureRevoked {
        /// Whose.
        token: LinkToken,
        /// Which.
        number: u32,
    },
    /// The other end refused packets because a ticket of its was revoked.
    TicketRevoked {
        /// Whose.
        token: LinkToken,
        /// The slot there.
        slot: u32,
        /// The metadata index there.
        index: u32,
    },
    /// A link ended. What the other end had written can still be read: the regions stay mapped
    /// as long as somebody holds them.
    Closed {
        /// Which.
        token: LinkToken,
        /// Why.
        reason: LinkEnd,
    },
}

impl ControlEvent {
    /// The link that it is about, if it is about one.
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

/// Where events wait for the application. What waits here, with its memory and descriptors, is
/// counted to whose it is until it has been taken.
#[derive(Debug)]
pub struct Inbox {
    /// Wants attention while events wait.
    guard: ForkGuard,
    queue: Mutex<Queue>,
    /// Events that the machine told, up to the one before the first in the queue.
    taken: AtomicU64,
    bell: Bell,
    word: WakeWord,
}

#[derive(Debug, Default)]
struct Queue {
    /// With their numbers.
    events: VecDeque<(u64, ControlEvent)>,
    /// Events that the machine told, those included that were for somebody else.
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

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(in crate::control) fn len(&self) -> usize {
        self.lock().events.len()
    }

    /// How many of the events that the machine told the application has taken: for
    /// [`Machine::events_taken`](super::super::machine::Machine::events_taken).
    pub(super) fn taken(&self) -> u64 {
        self.taken.load(Ordering::Acquire)
    }

    /// Called once for each event that the machine tells; `None`: it is not for the application.
    pub(super) fn put(&self, event: Option<ControlEvent>) {
        let mut queue = self.lock();
        queue.told += 1;
        self.put_in(queue, event);
    }

    fn put_in(&self, mut queue: MutexGuard<'_, Queue>, event: Option<ControlEvent>) {
        // A request that nobody has seen yet is withdrawn in silence.
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
        // Last: whoever is woken looks at the guard without the lock, and, where its wake-ups are
        // edges, sleeps for good if it sees nothing.
        if is_first {
            self.bell.ring();
            // Without the lock: it may take a moment until a thread that sleeps elsewhere has left.
            drop(queue);
            self.word.wake();
        }
    }

    /// What happened on the way to another host, of which the machine knows nothing.
    #[cfg(feature = "tls")]
    pub(in crate::control) fn put_of_host(&self, event: ControlEvent) {
        self.put_in(self.lock(), Some(event));
    }

    /// The first in the queue is another, or none.
    fn settle(&self, queue: &Queue) {
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
    #[inline(always)]
    pub fn is_pending(&self) -> bool {
        self.guard.wants_attention()
    }

    /// Tells this process from its children, and in the same load whether events wait.
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

/// Who is told what becomes of connecting, in the place of the application.
pub(super) enum Waits {
    /// Somebody in the call.
    Call(Arc<Waiter>),
    /// The part that speaks with other hosts; the application is told of a link, and of no failure.
    #[cfg(feature = "tls")]
    Hosts(Box<super::other_hosts::Found>),
}

/// Somebody waits for the end of connecting, in the call.
#[derive(Debug, Default)]
pub(super) struct Waiter {
    result: Mutex<Option<Result<NewLink, ConnectError>>>,
    is_there: Condvar,
}

impl Waiter {
    pub fn tell(&self, result: Result<NewLink, ConnectError>) {
        *self.result.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
        self.is_there.notify_all();
    }

    pub fn take(&self) -> Option<Result<NewLink, ConnectError>> {
        self.result.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Waits until the result is there.
    pub fn wait(&self) -> Result<NewLink, ConnectError> {
        let mut result = self.result.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(result) = result.take() {
                return result;
            }
            // The machine has a deadline for it; the second is for a clock that was changed.
            let second = Duration::from_secs(1);
            let waited = self.is_there.wait_timeout(result, second);
            result = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}
