//! One link of a node: a ring each way, a bulk ring each way when large copies have begun, the
//! words by which either side says that it sleeps, and the socket that wakes it.
//!
//! ```text
//!   sender                                         receiver
//!   transmit(); signal_if_asleep()                 arm(): SLEEP += 1; barrier; look again; sleep
//!               <------------ SLEEP -------------
//!               ----------- one byte ----------->
//!   arm_room(): ROOM += 1; barrier; look; sleep    after FREED was written: tell_of_room()
//! ```
//! SLEEP and ROOM are the generations of [`crate::link::sleep`]. The fence that this needs between a
//! packet and the look at SLEEP is made by the sleeper (membarrier), so that sending has none;
//! where the kernel refuses that, the sender fences, and `explain` says so.

use crate::control::{LinkToken, Peer};
use crate::interface::terminus::Segmenter;
use crate::interface::{Counters, LinkId};
use crate::link::ring::{RingReader, RingViolation, RingWriter, packet_lines_max};
use crate::link::sleep::{Barrier, Signaller, Sleeper};
use crate::link::{Full, Source, Transmit};
use crate::os::memory::{RegionLines, RegionWord, close_elsewhere};
use crate::os::socket;
use crate::wire::{Flags, Header};
use core::sync::atomic::AtomicBool;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::vec::Vec;

type Writer = RingWriter<RegionLines, RegionWord>;
type Reader = RingReader<RegionLines, RegionWord>;

/// From this many data bytes on, a packet goes into the bulk ring where there is one.
pub(super) const BULK_PACKET_MIN: u32 = 2048;

/// Whether a message can be taken at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    /// Now.
    Now,
    /// When the receiver has read more.
    NotNow,
    /// Not by rings of this size.
    Never {
        /// Bytes that are always taken at once when the rings are empty.
        at_once: u64,
    },
}

/// The sending half of a link.
#[derive(Debug)]
pub(crate) struct SendHalf {
    pub ring: Writer,
    pub bulk: Option<Writer>,
    /// The receiver's word for a bulk ring.
    pub bulk_freed: RegionWord,
    /// The ring that was full when a packet was last refused.
    full_is_bulk: bool,
    /// The receiver's sleep generation.
    sleep: Signaller<RegionWord>,
    /// This process's room generation, which the receiver reads.
    room: Sleeper<RegionWord>,
    pub wake: Option<Arc<OwnedFd>>,
    /// Bytes sent in long messages, until a bulk ring is asked for.
    pub long_bytes: u64,
    pub bulk_asked: bool,
    pub barrier: Barrier,
    counters: Arc<Counters>,
}

impl SendHalf {
    pub fn new(
        ring: Writer,
        bulk_freed: RegionWord,
        peer_sleep: RegionWord,
        own_room: RegionWord,
        wake: Option<Arc<OwnedFd>>,
        barrier: Barrier,
        counters: Arc<Counters>,
    ) -> Self {
        Self {
            ring,
            bulk: None,
            bulk_freed,
            full_is_bulk: false,
            sleep: Signaller::new(peer_sleep, barrier),
            room: Sleeper::new(own_room),
            wake,
            long_bytes: 0,
            bulk_asked: false,
            barrier,
            counters,
        }
    }

    /// Counts elsewhere from now on: a counter has one writer.
    pub fn count_in(&mut self, counters: Arc<Counters>) {
        self.counters = counters;
    }

    /// The smallest that a packet of a longer message is cut to.
    #[inline(always)]
    pub fn packet_bytes_min(&self) -> u32 {
        self.ring.packet_bytes()
    }

    /// After a packet with `flags` was committed: wakes the receiver if it asked for that and
    /// sleeps, or if it sleeps on a ring that is half full.
    #[inline(always)]
    pub fn signal_if_asleep(&mut self, flags: Flags) {
        if let Some(generation) = self.sleep.pending() {
            self.signal(generation, flags);
        }
    }

    #[cold]
    #[inline(never)]
    fn signal(&mut self, generation: u64, flags: Flags) {
        if flags.contains(Flags::WAKE)
            || self.ring.is_half_full()
            || self.bulk.as_mut().is_some_and(|bulk| bulk.is_half_full())
        {
            self.sleep.signalled(generation);
            self.counters.wakes_sent.add(1);
            send_byte(&self.wake);
        }
    }

    /// This process is about to sleep until there is room. A barrier, and one more look, must
    /// follow.
    pub fn arm_room(&mut self) {
        self.room.arm();
    }

    /// Whether the ring that was full when a packet was last refused now has room for any packet,
    /// or will never have. If it says no, the receiver has lines to read, and will tell of room.
    pub fn has_room(&mut self) -> bool {
        let ring = match &mut self.bulk {
            Some(bulk) if self.full_is_bulk => bulk,
            _ => &mut self.ring,
        };
        ring.free_lines() > packet_lines_max(ring.packet_bytes()) || ring.violation().is_some()
    }

    /// Whether all packets of a message would be taken now, each by the ring that
    /// [`transmit`](Transmit::transmit) would choose for it.
    pub fn room_for(&mut self, segmenter: &Segmenter) -> Room {
        let mut rest = segmenter.clone();
        let packet_bytes = self.packet_bytes();
        let (mut in_base, mut in_bulk) = (0, 0);
        while !rest.is_done() {
            let (header, range) = rest.next(packet_bytes);
            let is_bulk = self.bulk.is_some() && self.is_bulk_packet(&header);
            let lines = if is_bulk { &mut in_bulk } else { &mut in_base };
            *lines += header.layout().lines;
            let capacity = |ring: &Writer| ring.capacity() - 1;
            let ring = self.bulk.as_ref().unwrap_or(&self.ring);
            if in_base > capacity(&self.ring) || in_bulk > capacity(ring) {
                let packets = capacity(ring) / packet_lines_max(packet_bytes);
                return Room::Never { at_once: packets * packet_bytes as u64 };
            }
            rest.taken(&range);
        }
        let bulk_free = self.bulk.as_mut().map_or(0, |bulk| bulk.free_lines());
        if in_base <= self.ring.free_lines() && in_bulk <= bulk_free {
            Room::Now
        } else {
            Room::NotNow
        }
    }

    #[inline(always)]
    fn is_bulk_packet(&self, header: &Header) -> bool {
        header.length >= BULK_PACKET_MIN || header.length > self.ring.packet_bytes()
    }

    /// What the receiver did that no honest one does.
    pub fn violation(&self) -> Option<RingViolation> {
        self.ring.violation().or_else(|| self.bulk.as_ref().and_then(|bulk| bulk.violation()))
    }
}

impl Transmit for SendHalf {
    #[inline(always)]
    fn packet_bytes(&self) -> u32 {
        match &self.bulk {
            Some(bulk) => bulk.packet_bytes(),
            None => self.ring.packet_bytes(),
        }
    }

    #[inline(always)]
    fn transmit<S: Source>(
        &mut self,
        header: &Header,
        metadata: &[u8],
        data: S,
    ) -> Result<(), Full> {
        let bulk_packet = self.is_bulk_packet(header);
        let result = match &mut self.bulk {
            Some(bulk) if bulk_packet => bulk.transmit(header, metadata, data),
            _ => self.ring.transmit(header, metadata, data),
        };
        if result.is_err() {
            self.full_is_bulk = bulk_packet;
        }
        result
    }
}

/// One byte, never blocking; a full socket means that the other side has been signalled already.
fn send_byte(wake: &Option<Arc<OwnedFd>>) {
    if let Some(wake) = wake {
        let _ = socket::send(wake, &[1], &[]);
    }
}

/// The receiving half of a link. The ring comes first: an idle link costs one look at it.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct ReceiveHalf {
    pub ring: Reader,
    pub bulk: Option<Reader>,
    /// This process's word for a bulk ring.
    pub bulk_freed: RegionWord,
    /// This process's sleep generation, which the sender reads.
    sleep: Sleeper<RegionWord>,
    /// The sender's room generation.
    room: Signaller<RegionWord>,
    /// Something has arrived, or a signal was taken, since the link was armed last: the sender
    /// may have used its one signal.
    pub needs_arming: bool,
    wake: Option<Arc<OwnedFd>>,
}

impl ReceiveHalf {
    pub fn new(
        ring: Reader,
        bulk_freed: RegionWord,
        own_sleep: RegionWord,
        peer_room: RegionWord,
        wake: Option<Arc<OwnedFd>>,
        barrier: Barrier,
    ) -> Self {
        Self {
            ring,
            bulk: None,
            bulk_freed,
            sleep: Sleeper::new(own_sleep),
            room: Signaller::new(peer_room, barrier),
            needs_arming: true,
            wake,
        }
    }

    /// Whether a packet waits.
    #[inline(always)]
    pub fn is_ready(&self) -> bool {
        self.ring.is_ready() || self.bulk.as_ref().is_some_and(|bulk| bulk.is_ready())
    }

    /// Lines taken from both rings since they were made.
    pub fn lines_taken(&self) -> u64 {
        self.ring.position() + self.bulk.as_ref().map_or(0, |bulk| bulk.position())
    }

    /// This process is about to sleep. A barrier, and one more look, must follow.
    pub fn arm(&mut self) {
        self.sleep.arm();
        self.needs_arming = false;
    }

    /// After FREED was written: wakes a sender that sleeps because the ring was full.
    #[inline(always)]
    pub fn tell_of_room(&mut self) {
        if self.room.must_signal() {
            send_byte(&self.wake);
        }
    }

    /// The socket over which either side wakes the other.
    pub fn wake(&self) -> Option<&Arc<OwnedFd>> {
        self.wake.as_ref()
    }

    /// Takes the bytes that signals left; a bounded number, since a peer may send any.
    pub fn take_signals(&mut self) -> Signals {
        self.needs_arming = true;
        let Some(wake) = &self.wake else { return Signals::Taken };
        for _ in 0..SIGNALS_PER_TURN {
            match socket::receive(wake, &mut [0; 8]) {
                Ok(received) if !received.descriptors.is_empty() => {
                    // Closing a stranger's descriptor may block; no one waits for it.
                    close_elsewhere(received.descriptors);
                    return Signals::Misbehaved;
                }
                Ok(received) if received.bytes > 0 => {}
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => return Signals::Taken,
                Ok(_) | Err(_) => return Signals::Gone,
            }
        }
        Signals::Taken
    }
}

/// What was found on a wake socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Signals {
    /// Signals, or nothing.
    Taken,
    /// The other end is gone; the control plane will say why.
    Gone,
    /// A descriptor, which no honest peer sends there.
    Misbehaved,
}

const SIGNALS_PER_TURN: usize = 16;

/// A link and what this node knows of its other end.
#[derive(Debug)]
pub(crate) struct Link {
    pub rx: ReceiveHalf,
    /// `None`: a terminus of its own has it.
    pub tx: Option<SendHalf>,
    pub id: LinkId,
    pub token: Option<LinkToken>,
    pub peer: Peer,
    pub greeting: Vec<u8>,
    pub initiated_by_us: bool,
    /// Turns in which nothing was found, one behind the other.
    pub empty_turns: u32,
    pub is_active: bool,
    pub wrong_keys: u32,
    pub refusals: u32,
    pub refusals_since_ns: u64,
    /// Whose turn it is among the termini.
    pub next_terminus: usize,
    /// Messages in work queues for this link.
    pub queued: usize,
    /// Somebody gave up waiting for room, and may wait for it where the node cannot see that: in a
    /// task.
    pub awaits_room: bool,
    /// Tells a terminus that has the sending half that the link has ended.
    pub ended: Arc<AtomicBool>,
}

impl Link {
    /// A link of this node to itself; what another node's has besides is set by whoever makes it,
    /// and its name when it gets its place.
    pub fn new(rx: ReceiveHalf, tx: SendHalf, peer: Peer) -> Self {
        Self {
            rx,
            tx: Some(tx),
            id: LinkId::SELF,
            token: None,
            peer,
            greeting: Vec::new(),
            initiated_by_us: true,
            empty_turns: 0,
            is_active: true,
            wrong_keys: 0,
            refusals: 0,
            refusals_since_ns: 0,
            next_terminus: 0,
            queued: 0,
            awaits_room: false,
            ended: Arc::default(),
        }
    }

    /// Whether room is waited for by somebody else than whoever is about to sleep.
    pub fn waits_for_room(&self) -> bool {
        self.queued > 0 || self.awaits_room
    }
}
