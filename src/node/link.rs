//! One link of a node: a ring each way, a bulk ring each way when large copies have begun, the
//! words by which either side announces its sleep, and the bell and the socket that wake it.
//!
//! ```text
//!   sender                                         receiver
//!   transmit(); signal_if_asleep()                 arm(): SLEEP += 1; barrier; look again; sleep
//!               <------------ SLEEP -------------
//!               ----- BELL, or one byte -------->
//!   room.arm(): ROOM += 1; barrier; look; sleep    after FREED was written: tell_of_room()
//! ```
//! SLEEP and ROOM are the generations of [`crate::link::sleep`]. A fence is needed between a packet
//! and the look at SLEEP. The sleeper makes it (membarrier), so that sending has none; if the
//! kernel refuses that, the sender fences, and `explain` says so. A sleeper in a call is woken by
//! the bell, a word of the waker's page; one in an event loop, by a byte on the socket.

use super::conduct::Conduct;
use super::figures::{LinkFigures, Moment};
use crate::control::{LinkToken, Peer};
use crate::engine::routes::Route;
use crate::engine::sleep::{self, AnnounceStep, Arming};
use crate::interface::terminus::Segmenter;
use crate::interface::{Counters, Flow, LinkId};
use crate::link::cells::Word;
use crate::link::ring::{FLOWS, RingReader, RingViolation, RingWriter, packet_lines_max};
use crate::link::sleep::{Barrier, Ear, Signaller, Sleeper, WakeBy, ring};
use crate::link::{Full, Source, Transmit};
use crate::os::memory::{RegionLines, RegionWord, close_elsewhere};
use crate::os::socket::{self, SocketConnection};
use crate::os::sys;
use crate::transport::{self, HostLink, Moved};
use crate::wire::{Flags, Header, NodeId};
use core::sync::atomic::Ordering;
use std::boxed::Box;
use std::sync::Arc;
use std::vec::Vec;

type LinkWriter = RingWriter<RegionLines, RegionWord>;
type LinkReader = RingReader<RegionLines, RegionWord>;

/// From this many data bytes on, a packet goes into the bulk ring if there is one, unless it has to
/// stay in order.
pub(super) const BULK_PACKET_MIN: u32 = 2048;

/// Whether a message can be taken at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SendRoom {
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

/// The packets that have left over a link in one go.
#[derive(Debug)]
pub(crate) struct SentPackets {
    pub packets: u64,
    /// Their data bytes.
    pub bytes: u64,
    /// Messages whose last packet has left.
    pub messages: u64,
    /// Their flags.
    pub flags: Flags,
    /// Some are of messages for which a bulk ring is made.
    pub is_long: bool,
}

/// The sending half of a link.
#[derive(Debug)]
pub(crate) struct SendHalf {
    pub ring: LinkWriter,
    pub bulk: Option<LinkWriter>,
    /// The receiver's word for a bulk ring.
    pub bulk_freed: RegionWord,
    /// The ring that was full when a packet was last refused.
    full_is_bulk: bool,
    /// The receiver's sleep generation.
    sleep: Signaller<RegionWord>,
    /// This process's room generation, which the receiver reads.
    pub room: Sleeper<RegionWord>,
    pub waker: Waker,
    /// Messages that were cut into packets, and whose last packet was written.
    pub cut_messages: u64,
    /// Their packets in the ring. Each other packet is a message by itself.
    cut_packets: u64,
    /// Signals that woke the receiver.
    pub wakes: u64,
    /// Bytes sent in long messages, until a bulk ring is asked for.
    pub long_bytes: u64,
    pub bulk_asked: bool,
    pub barrier: Barrier,
    counters: Arc<Counters>,
}

impl SendHalf {
    pub fn new(
        ring: LinkWriter,
        bulk_freed: RegionWord,
        peer_sleep: RegionWord,
        own_room: RegionWord,
        waker: Waker,
        barrier: Barrier,
        counters: Arc<Counters>,
    ) -> Self {
        let understood = waker.is_understood();
        Self {
            ring,
            bulk: None,
            bulk_freed,
            full_is_bulk: false,
            sleep: Signaller::new(peer_sleep, barrier, understood),
            room: Sleeper::new(own_room, barrier, understood),
            waker,
            cut_messages: 0,
            cut_packets: 0,
            wakes: 0,
            long_bytes: 0,
            bulk_asked: false,
            barrier,
            counters,
        }
    }

    /// Messages whose last packet was written. Not counted one by one: a store for each would wait
    /// in the processor's queue behind the message's own.
    pub fn messages(&self) -> u64 {
        self.cut_messages + (self.ring.packets() - self.cut_packets)
    }

    /// The smallest that a packet of a longer message is cut to.
    #[inline(always)]
    pub fn packet_bytes_min(&self) -> u32 {
        self.ring.packet_bytes()
    }

    /// Call after a packet with `flags` was committed: wakes the receiver if the packet asks for
    /// that and the receiver sleeps, or if it sleeps on a ring that is half full; signals it if it
    /// no longer looks.
    #[inline(always)]
    pub fn signal_if_asleep(&mut self, flags: impl FnOnce() -> Flags) {
        if let Some(announced) = self.sleep.pending() {
            self.signal(announced, flags());
        }
    }

    #[cold]
    #[inline(never)]
    fn signal(&mut self, announced: u64, flags: Flags) {
        let (ring, bulk) = (&mut self.ring, &mut self.bulk);
        let mut is_half_full =
            || ring.is_half_full() || bulk.as_mut().is_some_and(|bulk| bulk.is_half_full());
        let asks = flags.contains(Flags::WAKE);
        if let Some(by) = sleep::signal(&mut self.sleep, announced, asks, &mut is_half_full) {
            self.wakes += 1;
            self.counters.wakes_sent.add(1);
            self.counters.rings_sent.add((by == WakeBy::Bell).into());
            if let Some(host) = &self.waker.host {
                return transport::lock(&**host).flush(is_half_full());
            }
            self.waker.wake(by);
        }
    }

    /// Packets of cut messages were committed: counts them, and wakes the receiver if their flags
    /// say so. Returns whether to consider asking for a bulk ring.
    #[inline(always)]
    pub fn have_left(&mut self, left: &SentPackets) -> bool {
        self.cut_messages += left.messages;
        self.signal_if_asleep(|| left.flags);
        self.counters.packets_sent.add(left.packets);
        self.counters.messages_sent.add(left.messages);
        self.counters.bytes_sent.add(left.bytes);
        if !left.is_long {
            return false;
        }
        self.long_bytes = self.long_bytes.saturating_add(left.bytes);
        !self.bulk_asked && self.bulk.is_none()
    }

    /// Whether the ring that was full when a packet was last refused now has room for any packet,
    /// or will never have. If not, the receiver has lines to read, and will report room.
    pub fn has_room(&mut self) -> bool {
        let ring = match &mut self.bulk {
            Some(bulk) if self.full_is_bulk => bulk,
            _ => &mut self.ring,
        };
        ring.free_lines() > packet_lines_max(ring.packet_bytes()) || ring.violation().is_some()
    }

    /// Whether all packets of a message would be taken now, each by the ring that
    /// [`transmit`](Transmit::transmit) would choose for it.
    pub fn room_for(&mut self, segmenter: &Segmenter) -> SendRoom {
        let mut rest = segmenter.clone();
        let packet_bytes = self.packet_bytes_with(segmenter.flags());
        let (mut in_base, mut in_bulk) = (0, 0);
        while !rest.is_done() {
            let (header, range) = rest.next(packet_bytes);
            let is_bulk = self.bulk.is_some() && self.is_bulk_packet(&header);
            let lines = if is_bulk { &mut in_bulk } else { &mut in_base };
            *lines += header.layout().lines;
            let capacity = |ring: &LinkWriter| ring.capacity() - 1;
            let ring = match &self.bulk {
                Some(bulk) if !segmenter.flags().contains(Flags::IN_ORDER) => bulk,
                _ => &self.ring,
            };
            if in_base > capacity(&self.ring) || in_bulk > capacity(ring) {
                let packets = capacity(ring) / packet_lines_max(packet_bytes);
                return SendRoom::Never { at_once: packets * packet_bytes as u64 };
            }
            rest.taken(&range);
        }
        let bulk_free = self.bulk.as_mut().map_or(0, |bulk| bulk.free_lines());
        if in_base <= self.ring.free_lines() && in_bulk <= bulk_free {
            SendRoom::Now
        } else {
            SendRoom::NotNow
        }
    }

    #[inline(always)]
    fn is_bulk_packet(&self, header: &Header) -> bool {
        let is_long = header.length >= BULK_PACKET_MIN || header.length > self.ring.packet_bytes();
        is_long && !header.flags.contains(Flags::IN_ORDER)
    }

    /// The receiver's violation: an act that no honest one commits.
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
    fn packet_bytes_with(&self, flags: Flags) -> u32 {
        match &self.bulk {
            Some(bulk) if !flags.contains(Flags::IN_ORDER) => bulk.packet_bytes(),
            _ => self.ring.packet_bytes(),
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
            _ => {
                let result = self.ring.transmit(header, metadata, data);
                self.cut_packets += u64::from(result.is_ok());
                result
            }
        };
        if result.is_err() {
            self.full_is_bulk = bulk_packet;
            // Only this process reads that ring: its packets may leave now.
            self.waker.turn_of_sender();
        }
        result
    }
}

/// The means by which this process wakes the other end of a link.
#[derive(Clone, Debug, Default)]
pub(crate) struct Waker {
    /// `None`: a link of a node to itself, on which no thread sleeps.
    pub socket: Option<Arc<SocketConnection>>,
    /// This process's own word; `None`: the other end knows bytes only.
    pub bell: Option<RegionWord>,
    /// The transport to the other end, if that is on another host.
    pub host: Option<HostLink>,
}

impl Waker {
    /// Whether the other end understands all values of a sleep word.
    fn is_understood(&self) -> bool {
        if self.host.is_some() {
            return true;
        }
        self.bell.is_some()
    }

    #[cold]
    #[inline(never)]
    fn turn_of_sender(&self) {
        if let Some(host) = &self.host {
            transport::lock(&**host).flush_now();
        }
    }

    /// Moves as much as possible now, if the other end is on another host.
    fn turn(&self) -> Option<Moved> {
        self.host.as_ref().map(|host| transport::lock(&**host).turn())
    }

    fn wake(&self, by: WakeBy) {
        if let Some(host) = &self.host {
            transport::lock(&**host).flush(false);
            return;
        }
        match (by, &self.bell, &self.socket) {
            (WakeBy::Bell, Some(bell), _) => {
                ring(bell);
                sys::wake_word(bell.word());
            }
            (_, _, Some(socket)) => {
                // Never blocking; a full socket means that the other end has a signal already.
                let _ = socket::send(socket, &[1], &[]);
            }
            (_, _, None) => {}
        }
    }
}

/// The receiving half of a link. The ring comes first: an idle link costs one look at it.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct ReceiveHalf {
    pub ring: LinkReader,
    pub bulk: Option<LinkReader>,
    /// This process's word for a bulk ring.
    pub bulk_freed: RegionWord,
    /// This process's sleep generation, which the sender reads.
    pub sleep: Sleeper<RegionWord>,
    /// The sender's room generation.
    room: Signaller<RegionWord>,
    /// Packets taken, refused ones included.
    pub packets: u64,
    /// The sender's knowledge of that.
    arming: Arming,
    /// An upper bound of the signals that an honest sender may have left in its socket: one for
    /// each time that this end was armed since the socket was empty.
    signals_due: u32,
    waker: Waker,
    /// The sender's bell; `None`: it does not ring.
    pub ear: Option<Ear<RegionWord>>,
    barrier: Barrier,
    /// The words with the processor on which either end last waited: this one's, and the other's.
    pub processors: Option<(RegionWord, RegionWord)>,
    processor_told: u32,
}

impl ReceiveHalf {
    pub fn new(
        ring: LinkReader,
        bulk_freed: RegionWord,
        own_sleep: RegionWord,
        peer_room: RegionWord,
        waker: Waker,
        ear: Option<Ear<RegionWord>>,
        barrier: Barrier,
    ) -> Self {
        let understood = waker.is_understood();
        Self {
            ring,
            bulk: None,
            bulk_freed,
            sleep: Sleeper::new(own_sleep, barrier, understood),
            room: Signaller::new(peer_room, barrier, understood),
            packets: 0,
            arming: Arming::new(),
            signals_due: 0,
            waker,
            ear,
            barrier,
            processors: None,
            processor_told: u32::MAX,
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

    /// A packet has arrived: the sender may have used its one signal.
    #[inline(always)]
    pub fn has_taken(&mut self) {
        self.arming.has_taken();
    }

    /// A long turn has passed: for a receiver that has not slept for a while, though packets came,
    /// a sender no longer needs to fence.
    pub fn count_awake_turn(&mut self) {
        self.arming.count_awake_turn(&mut self.sleep);
    }

    /// Stores the processor on which this process waits for the other end; returns the one on which
    /// the other end last did, if it is known.
    pub fn peer_processor(&mut self, here: u32) -> Option<u32> {
        let (own, peer) = self.processors.as_ref()?;
        if self.processor_told != here {
            self.processor_told = here;
            own.word().store(u64::from(here) + 1, Ordering::Relaxed);
        }
        let there = peer.word().load(Ordering::Relaxed).checked_sub(1)?;
        u32::try_from(there).ok()
    }

    /// Whether the sender has rung since this was asked last.
    pub fn has_rung(&mut self) -> bool {
        let has_rung = self.ear.as_mut().is_some_and(|ear| ear.has_rung());
        if has_rung {
            self.arming.has_taken();
        }
        has_rung
    }

    /// This process is about to sleep: announces it to the sender, unless it knows.
    pub fn arm(&mut self, by: WakeBy) -> AnnounceStep {
        let announced = self.arming.arm(&mut self.sleep, by);
        if announced != AnnounceStep::Already {
            self.signals_due = self.signals_due.saturating_add(1);
        }
        announced
    }

    /// This process looks no more until the sender signals any packet. `None`: the sender does not
    /// know how.
    pub fn arm_for_any(&mut self) -> Option<AnnounceStep> {
        let announced = self.arming.arm_for_any(&mut self.sleep);
        if announced.is_some() {
            self.signals_due = self.signals_due.saturating_add(1);
        }
        announced
    }

    /// After FREED was written: wakes a sender that sleeps because the ring was full.
    #[inline(always)]
    pub fn tell_of_room(&mut self) {
        if let Some(by) = self.room.must_signal() {
            self.waker.wake(by);
        }
    }

    /// The last word of the peer's room generation for which it was woken.
    fn room_told(&self) -> u64 {
        self.room.last_signalled()
    }

    /// The socket over which either side wakes the other.
    pub fn wake(&self) -> Option<&Arc<SocketConnection>> {
        self.waker.socket.as_ref()
    }

    /// Moves as much as possible now, if the other end is on another host.
    pub fn turn_of_host(&self) -> Option<Moved> {
        self.waker.turn()
    }

    /// The way to the other host, if the other end is on one.
    pub fn host(&self) -> Option<&HostLink> {
        self.waker.host.as_ref()
    }

    /// The sender may signal room once more.
    pub fn room_signal_is_due(&mut self) {
        self.signals_due = self.signals_due.saturating_add(1);
    }

    /// Takes the bytes that signals left, at most `most`. If one is due, it takes one: a second
    /// look would find nothing, and further bytes of a sender keep the descriptor readable.
    pub fn take_signals(&mut self, most: usize) -> Signals {
        self.arming.has_taken();
        if let Some(moved) = self.waker.turn() {
            return if moved.has_ended { Signals::Gone } else { Signals::Taken };
        }
        let Some(wake) = &self.waker.socket else { return Signals::Taken };
        for _ in 0..most {
            match socket::receive(wake, &mut [0; 8]) {
                Ok(received) if !received.descriptors.is_empty() => {
                    // Closing a stranger's descriptor may block; this does not wait for it.
                    close_elsewhere(received.descriptors);
                    return Signals::Misbehaved;
                }
                Ok(received) if received.bytes > 0 => {
                    if self.signals_due == 1 {
                        self.signals_due = 0;
                        return Signals::Taken;
                    }
                }
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {
                    self.signals_due = 0;
                    return Signals::Taken;
                }
                Ok(_) | Err(_) => return Signals::Gone,
            }
        }
        Signals::Taken
    }
}

/// The find on a wake socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Signals {
    /// Signals, or nothing.
    Taken,
    /// The other end is gone; the control plane will report the reason.
    Gone,
    /// A descriptor, which no honest peer sends there.
    Misbehaved,
}

/// Signals of one link that are taken before a sleep: a peer may send any.
pub(super) const SIGNALS_PER_TURN: usize = 16;

/// A link and this node's knowledge of its other end. A message finds it by its index, which is
/// multiplied by the size: 17 and 19 lines take one instruction, 18 take two.
#[derive(Debug)]
pub(crate) struct Link {
    pub rx: ReceiveHalf,
    /// `None`: the peer has left.
    pub tx: Option<SendHalf>,
    pub id: LinkId,
    pub token: Option<LinkToken>,
    pub peer: Peer,
    /// The peer is gone: its committed packets are being taken, and no more is sent.
    pub has_left: bool,
    pub conduct: Conduct,
    /// Of short headers, by number.
    pub flows: Option<Box<[Flow; FLOWS]>>,
    /// The next terminus in turn.
    pub next_terminus: usize,
    /// A caller gave up waiting for room, and may wait for it in a task, outside the node's view.
    pub awaits_room: bool,
    /// Its public figures; `None`: a link of the node to itself.
    pub figures: Option<Arc<LinkFigures>>,
    pub origin: Box<Origin>,
}

/// Facts of a link's beginning, which no message needs.
#[derive(Debug, Default)]
pub(crate) struct Origin {
    /// The peer's first words.
    pub greeting: Vec<u8>,
    /// A remark on how it was found.
    pub how: Option<Box<str>>,
    /// While tickets for the peer's node may be routed over it.
    pub route: Option<Route<NodeId>>,
}

impl Link {
    /// A link of this node to itself. The caller sets the further fields of a link to another node,
    /// and the name when the link gets its place.
    pub fn new(rx: ReceiveHalf, tx: SendHalf, peer: Peer) -> Self {
        Self {
            rx,
            tx: Some(tx),
            id: LinkId::SELF,
            token: None,
            peer,
            has_left: false,
            conduct: Conduct::default(),
            flows: None,
            next_terminus: 0,
            awaits_room: false,
            figures: None,
            origin: Box::default(),
        }
    }

    /// Whether this is link `id`, and messages for `destination` go over it.
    #[inline(always)]
    pub fn leads_to(&self, id: LinkId, destination: NodeId) -> bool {
        self.id == id && self.peer.node == destination && !self.has_left
    }

    /// Publishes the link's figures; `queued` messages wait for it.
    #[inline]
    pub fn publish(&self, queued: usize) {
        let (Some(figures), Some(tx)) = (&self.figures, &self.tx) else { return };
        let written = tx.ring.written() + tx.bulk.as_ref().map_or(0, RingWriter::written);
        figures.publish(Moment {
            written,
            messages: tx.messages(),
            packets: self.rx.packets,
            queued,
            refused: self.conduct.packets(),
            wakes: tx.wakes,
            peer_told: self.rx.room_told(),
        });
    }

    /// Whether a sender here finds that the peer has released no buffer for it.
    #[cold]
    pub fn waits_for_buffer(&self, waits: bool) {
        let (Some(figures), Some(tx)) = (&self.figures, &self.tx) else { return };
        match waits {
            true => figures.waits_for_buffer(
                tx.ring.written() + tx.bulk.as_ref().map_or(0, RingWriter::written),
            ),
            false => figures.waits_no_more(),
        }
    }

    /// Whether the other end never fences, because this process can do it for both.
    pub fn relies_on_barrier(&self) -> bool {
        self.token.is_some() && self.rx.barrier == Barrier::Asymmetric
    }
}
