//! A connection's state under its manager's lock: the window that it lends, and the window that it
//! was lent.
//!
//! A word is the number of the packet (12 bits) and its length (20 bits); length 0 marks the end of
//! the bytes. At most 1,024 packets are on their way, so a number is never taken for an older one.
//!
//! Never: a length is used before its bytes are known to lie within the part of the window that the
//! writer was lent and that has not been read.

use super::{ByteConfig, ByteStreamError, PACKETS, WINDOW_BYTES};
use crate::control::Peer;
use crate::interface::{AreaId, LinkId, Notification, QueueId, SlotConfig, SlotId};
use crate::node::{CloseReason, Look, Node, NodeSendError, PreparedTicket, WindowHeld};
use crate::protocol::credit::Cell;
use crate::protocol::tickets::fast_ticket_from;
use crate::wire::{MetadataIndex, TICKET_BYTES, Ticket};
use core::sync::atomic::{AtomicU64, Ordering};
use std::boxed::Box;
use std::format;
use std::io::IoSlice;
use std::string::{String, ToString};
use std::sync::Arc;
use std::vec;
use std::vec::Vec;

const LENGTH_BITS: u32 = 20;
const LENGTH_MASK: u32 = (1 << LENGTH_BITS) - 1;
const NUMBER_MASK: u32 = (1 << (32 - LENGTH_BITS)) - 1;
const _: () = assert!(*PACKETS.end() <= NUMBER_MASK.div_ceil(2));
/// Bytes taken, packets taken.
const CREDIT_BYTES: usize = 16;

fn word_of(number: u64, length: u32) -> u32 {
    (number as u32 & NUMBER_MASK) << LENGTH_BITS | length
}

/// Each side's hello to the other: a window, the packets that it takes, and a ticket to return
/// credit to.
const HELLO_BYTES: usize = 2 * TICKET_BYTES + 8;

/// The window lent to the other side, and its bytes that have come.
#[derive(Debug)]
pub(super) struct Incoming {
    area: AreaId,
    pub(super) queue: QueueId,
    slot: SlotId,
    window: u64,
    /// Lengths of packets that came, by number; one more than the length, so that 0 means no
    /// packet.
    lengths: Box<[u32]>,
    /// Packets that can be read, together with all earlier ones.
    packets: u64,
    /// All bytes that have come, and all that were read.
    arrived: u64,
    taken: u64,
    /// The credit last sent to the other side: bytes, packets.
    told: (u64, u64),
    has_ended: bool,
    /// Its unread bytes, for statistics.
    held: Arc<WindowHeld>,
}

/// The window of the other side, and the bytes sent into it.
#[derive(Debug)]
struct OutgoingWindow {
    prepared: PreparedTicket,
    window: u64,
    packets_max: u64,
    packet_bytes: usize,
    /// The ticket for returning credit to the other side.
    credit: Ticket,
    sent: u64,
    packets: u64,
    /// The bytes and packets that the other side has taken; only possible claims are accepted.
    taken: (u64, u64),
}

/// The state of one connection.
#[derive(Debug)]
pub(super) struct ByteFlow {
    pub(super) incoming: Incoming,
    /// The cell into which the other side deposits its credit.
    cell: Cell,
    lent: Option<HelloContents>,
    outgoing: Option<OutgoingWindow>,
    /// This side has ended its bytes.
    pub(super) is_shut: bool,
    /// The peer's violation.
    pub(super) fault: Option<String>,
    /// Credit could not be returned to the other side: the link was full.
    pub(super) untold: bool,
    /// A write found no room in the link.
    pub(super) wants_room: bool,
    /// The end of the bytes waits to be sent; a packet is kept for it.
    wants_shut: bool,
    /// The link shows that a write waits for the peer's program to read.
    waits: bool,
    /// Small pieces that leave together.
    scratch: Vec<u8>,
}

/// The contents of the other side's hello.
#[derive(Clone, Copy, Debug)]
struct HelloContents {
    window: Ticket,
    window_bytes: u32,
    packets: u32,
    credit: Ticket,
}

impl HelloContents {
    fn from_bytes(bytes: &[u8], peer: &Peer) -> Result<Self, String> {
        if bytes.len() != HELLO_BYTES {
            return Err(format!("a hello of {} bytes, where {HELLO_BYTES} are due", bytes.len()));
        }
        let number = |at: usize| {
            let bytes = bytes.get(at..).and_then(|bytes| bytes.first_chunk());
            bytes.map_or(0, |bytes| u32::from_le_bytes(*bytes))
        };
        let window = fast_ticket_from(&bytes[..TICKET_BYTES], peer)?;
        let credit = fast_ticket_from(&bytes[TICKET_BYTES + 8..], peer)?;
        let (window_bytes, packets) = (number(TICKET_BYTES), number(TICKET_BYTES + 4));
        let fits = WINDOW_BYTES.contains(&window_bytes)
            && PACKETS.contains(&packets)
            && window.capacity() >= window_bytes.into()
            && credit.capacity() >= CREDIT_BYTES as u64;
        match fits {
            true => Ok(Self { window, window_bytes, packets, credit }),
            false => {
                Err(format!("a window of {window_bytes} bytes for {packets} packets cannot be"))
            }
        }
    }
}

impl ByteFlow {
    /// A window, and its hello for the other side. Nothing is left behind if that fails.
    pub fn new(node: &mut Node, config: &ByteConfig) -> Result<(Self, Vec<u8>), String> {
        let (cell, credit) = Cell::new(node, CREDIT_BYTES)?;
        let made = Self::lend(node, config);
        let (incoming, window) = made.inspect_err(|_| cell.remove(node))?;
        let mut hello = window.to_bytes().to_vec();
        hello.extend_from_slice(&config.window_bytes.to_le_bytes());
        hello.extend_from_slice(&config.packets.to_le_bytes());
        hello.extend_from_slice(&credit.to_bytes());
        let flow = Self {
            incoming,
            cell,
            lent: None,
            outgoing: None,
            is_shut: false,
            fault: None,
            untold: false,
            wants_room: false,
            wants_shut: false,
            waits: false,
            scratch: Vec::new(),
        };
        Ok((flow, hello))
    }

    fn lend(node: &mut Node, config: &ByteConfig) -> Result<(Incoming, Ticket), String> {
        let area = node.message_area(config.window_bytes as usize).map_err(|e| e.to_string())?;
        let made = node.notification_queue(config.packets).map_err(|e| e.to_string());
        let made = made.and_then(|queue| {
            let slot = node
                .slot(SlotConfig::new(area, queue).credit(config.packets))
                .map_err(|e| e.to_string());
            let made = slot.and_then(|slot| match node.fast_ticket(slot) {
                Ok(ticket) => Ok((slot, ticket)),
                Err(e) => {
                    let _ = node.remove_slot(slot);
                    Err(e.to_string())
                }
            });
            let waiting = node.watch_queue(queue).map_err(|e| e.to_string());
            match made.and_then(|(slot, ticket)| Ok((slot, ticket, waiting?))) {
                Ok((slot, ticket, waiting)) => Ok((queue, slot, ticket, waiting)),
                Err(e) => {
                    let _ = node.remove_queue(queue);
                    Err(e)
                }
            }
        });
        let (queue, slot, ticket, waiting) = made.inspect_err(|_| {
            let _ = node.remove_area(area);
        })?;
        let held = Arc::new(WindowHeld {
            waiting,
            bytes_of: |word| u64::from(word & LENGTH_MASK),
            packets: config.packets,
            window: config.window_bytes.into(),
            unread: AtomicU64::new(0),
            read: AtomicU64::new(0),
        });
        let incoming = Incoming {
            held,
            area,
            queue,
            slot,
            window: config.window_bytes.into(),
            lengths: vec![0; config.packets as usize].into(),
            packets: 0,
            arrived: 0,
            taken: 0,
            told: (0, 0),
            has_ended: false,
        };
        Ok((incoming, ticket))
    }

    /// Gives memory, slots and queues back.
    pub fn remove(&self, node: &mut Node) {
        let Incoming { area, queue, slot, .. } = self.incoming;
        let _ = node.remove_slot(slot);
        let _ = node.remove_queue(queue);
        let _ = node.remove_area(area);
        self.cell.remove(node);
    }

    /// Takes the other side's window; it is used once the link is known.
    pub fn lent(&mut self, hello: &[u8], peer: &Peer) -> Result<(), String> {
        self.lent = Some(HelloContents::from_bytes(hello, peer)?);
        Ok(())
    }

    /// The link is there.
    pub fn go_over(&mut self, node: &Node, link: LinkId) {
        let Some(lent) = self.lent.take() else { return };
        node.show_kept(link, vec![("window", self.incoming.held.clone())]);
        let packet_bytes = node.fast_bytes_max(link).unwrap_or(0).min(LENGTH_MASK as usize);
        self.outgoing = Some(OutgoingWindow {
            prepared: PreparedTicket::new(&lent.window, link),
            window: lent.window_bytes.into(),
            packets_max: lent.packets.into(),
            packet_bytes,
            credit: lent.credit,
            sent: 0,
            packets: 0,
            taken: (0, 0),
        });
    }

    /// Longest packet.
    pub fn packet_bytes(&self) -> usize {
        self.outgoing.as_ref().map_or(0, |outgoing| outgoing.packet_bytes)
    }

    /// The link, once it is there.
    pub fn link(&self) -> Option<LinkId> {
        self.outgoing.as_ref().map(|outgoing| outgoing.prepared.link())
    }

    // ---- reading

    /// Takes arrivals out of the queue; `fault` receives a violation of the peer.
    #[inline]
    pub fn take_packets(&mut self, node: &mut Node) {
        if self.fault.is_some() {
            return;
        }
        while let Some(notification) = node.take_next(self.incoming.queue) {
            if let Err(why) = self.note(&notification) {
                self.fault = Some(why);
                return;
            }
        }
    }

    #[inline]
    fn note(&mut self, notification: &Notification) -> Result<(), String> {
        let link = self.link();
        let incoming = &mut self.incoming;
        if link.is_some_and(|link| link != notification.link) {
            return Err("its window was written over another link".into());
        }
        if notification.index != MetadataIndex::FAST {
            return Err("a message in a window that takes packets".into());
        }
        let (number, length) = (notification.word >> LENGTH_BITS, notification.word & LENGTH_MASK);
        let places = incoming.lengths.len() as u64;
        let ahead = number.wrapping_sub(incoming.packets as u32) & NUMBER_MASK;
        if u64::from(ahead) >= places {
            return Err(format!(
                "packet {number} when {} was due",
                incoming.packets as u32 & NUMBER_MASK
            ));
        }
        let place = ((incoming.packets + u64::from(ahead)) % places) as usize;
        if core::mem::replace(&mut incoming.lengths[place], length + 1) != 0 {
            return Err(format!("packet {number} twice"));
        }
        incoming.advance()
    }

    /// Hands out bytes that have come, at most `max` of them, piece by piece; returns their count.
    #[inline]
    pub fn copy_out(&mut self, node: &mut Node, max: usize, sink: &mut impl FnMut(&[u8])) -> usize {
        let incoming = &mut self.incoming;
        let length = (incoming.arrived - incoming.taken).min(max as u64) as usize;
        if length > 0 {
            let Ok(bytes) = node.area(incoming.area) else { return 0 };
            let from = (incoming.taken % incoming.window) as usize;
            let first = length.min(incoming.window as usize - from);
            sink(&bytes[from..from + first]);
            if first < length {
                sink(&bytes[..length - first]);
            }
            incoming.taken += length as u64;
        }
        incoming.show();
        self.tell(node);
        length
    }

    /// Returns credit to the other side, when it is due.
    #[inline]
    fn tell(&mut self, node: &mut Node) {
        let incoming = &self.incoming;
        let (bytes, packets) =
            (incoming.taken - incoming.told.0, incoming.packets - incoming.told.1);
        if bytes >= incoming.window / 4 || packets >= incoming.lengths.len() as u64 / 4 {
            self.tell_now(node);
        }
    }

    fn tell_now(&mut self, node: &mut Node) {
        let Some(outgoing) = &self.outgoing else { return };
        let now = (self.incoming.taken, self.incoming.packets);
        let mut bytes = [0; CREDIT_BYTES];
        bytes[..8].copy_from_slice(&now.0.to_le_bytes());
        bytes[8..].copy_from_slice(&now.1.to_le_bytes());
        let link = outgoing.prepared.link();
        self.untold = match node.try_send_fast_over(link, &outgoing.credit, &bytes, 0) {
            Err(NodeSendError::Full) => {
                node.await_room(link);
                true
            }
            // Otherwise the peer is gone, or gave a useless ticket, and needs no credit.
            _ => {
                self.incoming.told = now;
                false
            }
        };
    }

    /// Returns the credit that could not be sent before.
    pub fn tell_rest(&mut self, node: &mut Node) {
        if self.untold {
            self.tell_now(node);
        }
    }

    /// Whether a read would find bytes, the end of them, or an error.
    pub fn is_readable(&mut self, node: &mut Node) -> bool {
        self.take_packets(node);
        let incoming = &self.incoming;
        incoming.show();
        incoming.arrived > incoming.taken || incoming.has_ended || self.fault.is_some()
    }

    /// The same for arrivals, without a look into them.
    pub fn is_ready(&self, node: &Node) -> bool {
        let incoming = &self.incoming;
        incoming.arrived > incoming.taken
            || incoming.has_ended
            || self.fault.is_some()
            || node.is_ready(incoming.queue) == Ok(true)
    }

    /// Whether the end of the peer's bytes was read.
    pub fn is_at_end(&self) -> bool {
        self.incoming.has_ended && self.incoming.arrived == self.incoming.taken
    }

    // ---- writing

    /// Sends as much as there is credit and room for.
    #[inline]
    pub fn write(
        &mut self,
        node: &mut Node,
        slices: &[IoSlice<'_>],
    ) -> Look<Result<usize, ByteStreamError>> {
        if self.is_shut {
            return Look::Found(Err(ByteStreamError::Shut));
        }
        self.wants_shut = false;
        if self.waits && self.is_writable(node) {
            self.waits_no_more(node);
        }
        let Self { outgoing: Some(outgoing), cell, scratch, .. } = self else {
            return Look::Nothing;
        };
        let mut wrote = 0;
        let mut left = slices;
        let mut at = 0;
        loop {
            while let Some(slice) = left.first()
                && at == slice.len()
            {
                (left, at) = (&left[1..], 0);
            }
            let Some(slice) = left.first() else { return Look::Found(Ok(wrote)) };
            // The last packet is kept for the end of the bytes.
            let most = outgoing.most(node, cell, 1);
            if most == 0 {
                break;
            }
            let rest = &slice[at..];
            // Pieces that are small enough leave together.
            let data = if rest.len() < most && left.len() > 1 {
                scratch.clear();
                scratch.extend_from_slice(rest);
                for slice in &left[1..] {
                    let fits = slice.len().min(most - scratch.len());
                    scratch.extend_from_slice(&slice[..fits]);
                }
                &scratch[..]
            } else {
                &rest[..rest.len().min(most)]
            };
            match outgoing.send(node, data) {
                Ok(true) => {}
                Ok(false) if wrote > 0 => return Look::Found(Ok(wrote)),
                Ok(false) => {
                    self.wants_room = true;
                    return Look::Room(outgoing.prepared.link());
                }
                // The bytes that have left are reported first; the next call returns this error.
                Err(_) if wrote > 0 => return Look::Found(Ok(wrote)),
                Err(e) => return Look::Found(Err(e)),
            }
            let mut length = data.len();
            wrote += length;
            while length > 0
                && let Some(slice) = left.first()
            {
                let here = length.min(slice.len() - at);
                (length, at) = (length - here, at + here);
                if at == slice.len() {
                    (left, at) = (&left[1..], 0);
                }
            }
        }
        if wrote > 0 {
            return Look::Found(Ok(wrote));
        }
        let link = outgoing.prepared.link();
        self.waits = true;
        node.waits_for_buffer(link, true);
        Look::Nothing
    }

    /// A caller that waited for the peer's program to read has given up, or the peer has read.
    #[cold]
    pub fn waits_no_more(&mut self, node: &mut Node) {
        if let Some(link) = self.link().filter(|_| core::mem::take(&mut self.waits)) {
            node.waits_for_buffer(link, false);
        }
    }

    /// Sends the end of the bytes.
    pub fn shut(&mut self, node: &mut Node) -> Look<Result<(), ByteStreamError>> {
        if self.is_shut {
            return Look::Found(Ok(()));
        }
        self.wants_shut = true;
        let Self { outgoing: Some(outgoing), cell, .. } = self else { return Look::Nothing };
        if outgoing.packets_left(node, cell) == 0 {
            return Look::Nothing;
        }
        match outgoing.send(node, &[]) {
            Ok(true) => {
                self.is_shut = true;
                Look::Found(Ok(()))
            }
            Ok(false) => {
                self.wants_room = true;
                Look::Room(outgoing.prepared.link())
            }
            Err(e) => Look::Found(Err(e)),
        }
    }

    /// Whether a write would send something, by its credit and the link's room.
    pub fn is_writable(&mut self, node: &mut Node) -> bool {
        let Self { outgoing: Some(outgoing), cell, .. } = self else { return false };
        if self.wants_room {
            if !node.has_room(outgoing.prepared.link()) {
                return false;
            }
            self.wants_room = false;
        }
        match self.wants_shut {
            true => outgoing.packets_left(node, cell) > 0,
            false => outgoing.most(node, cell, 1) > 0,
        }
    }
}

impl Incoming {
    /// Publishes the unread count.
    #[inline]
    fn show(&self) {
        self.held.unread.store(self.arrived - self.taken, Ordering::Relaxed);
        self.held.read.store(self.taken, Ordering::Relaxed);
    }

    /// Counts the packets that are complete up to the first that has not come.
    #[inline]
    fn advance(&mut self) -> Result<(), String> {
        let places = self.lengths.len() as u64;
        loop {
            let place = (self.packets % places) as usize;
            let Some(length) = self.lengths[place].checked_sub(1) else { return Ok(()) };
            self.lengths[place] = 0;
            self.packets += 1;
            if self.has_ended {
                return Err("bytes after the end of its bytes".into());
            }
            if length == 0 {
                self.has_ended = true;
                continue;
            }
            let length = u64::from(length);
            let (free, at) =
                (self.window - (self.arrived - self.taken), self.arrived % self.window);
            if length > free || at + length > self.window {
                return Err(format!("a packet of {length} bytes where {free} were free"));
            }
            self.arrived += length;
        }
    }
}

impl OutgoingWindow {
    /// Packets that may be sent now.
    #[inline]
    fn packets_left(&mut self, node: &Node, cell: &Cell) -> u64 {
        let left = |this: &Self| this.packets_max - (this.packets - this.taken.1);
        if left(self) < self.packets_max / 2 {
            self.read_credit(node, cell);
        }
        left(self)
    }

    /// Most bytes of the next packet, with `kept` packets left over; 0: there is no credit.
    #[inline]
    fn most(&mut self, node: &Node, cell: &Cell, kept: u64) -> usize {
        if self.packets_left(node, cell) <= kept {
            return 0;
        }
        let free = |this: &Self| this.window - (this.sent - this.taken.0);
        if free(self) < self.window / 2 {
            self.read_credit(node, cell);
        }
        let to_end = self.window - self.sent % self.window;
        free(self).min(to_end).min(self.packet_bytes as u64) as usize
    }

    /// Credit only grows, and credit beyond the bytes sent is a lie: both are ignored.
    #[cold]
    fn read_credit(&mut self, node: &Node, cell: &Cell) {
        let Ok(bytes) = node.area(cell.area) else { return };
        let number = |at: usize| {
            let bytes = bytes.get(at..).and_then(|bytes| bytes.first_chunk());
            bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes))
        };
        let told = (number(0), number(8));
        if (self.taken.0..=self.sent).contains(&told.0) {
            self.taken.0 = told.0;
        }
        if (self.taken.1..=self.packets).contains(&told.1) {
            self.taken.1 = told.1;
        }
    }

    /// Sends one packet; `false`: the link has no room.
    #[inline]
    fn send(&mut self, node: &mut Node, data: &[u8]) -> Result<bool, ByteStreamError> {
        let offset = self.sent % self.window;
        let word = word_of(self.packets, data.len() as u32);
        if !node.push_prepared(&self.prepared, offset, data, word) {
            let ticket = self.prepared.ticket();
            let ticket = Ticket { base: ticket.base + offset, ..*ticket };
            match node.try_send_fast_over(self.prepared.link(), &ticket, data, word) {
                Ok(()) => {}
                Err(NodeSendError::Full) => return Ok(false),
                Err(NodeSendError::Forked(e)) => return Err(e.into()),
                Err(NodeSendError::LinkEnded(_) | NodeSendError::Unreachable(_)) => {
                    return Err(ByteStreamError::Ended(CloseReason::Closed));
                }
                Err(e) => return Err(ByteStreamError::Misbehaved(e.to_string())),
            }
        }
        self.sent += data.len() as u64;
        self.packets += 1;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A window of 64 bytes for 8 packets, without a node behind it.
    fn incoming() -> Incoming {
        let (producer, _) = crate::interface::notification::queue(8).unwrap();
        let held = WindowHeld {
            waiting: producer.watch(),
            bytes_of: u64::from,
            packets: 8,
            window: 64,
            unread: AtomicU64::new(0),
            read: AtomicU64::new(0),
        };
        Incoming {
            held: Arc::new(held),
            area: AreaId { index: 0, generation: 0 },
            queue: QueueId::new(0, 0),
            slot: SlotId { index: 0, generation: 0 },
            window: 64,
            lengths: vec![0; 8].into(),
            packets: 0,
            arrived: 0,
            taken: 0,
            told: (0, 0),
            has_ended: false,
        }
    }

    #[test]
    fn bytes_are_handed_out_in_the_order_of_their_numbers() {
        let mut incoming = incoming();
        incoming.lengths[1] = 11;
        assert_eq!((incoming.advance(), incoming.arrived), (Ok(()), 0));
        incoming.lengths[0] = 6;
        assert_eq!((incoming.advance(), incoming.arrived, incoming.packets), (Ok(()), 15, 2));
    }

    #[test]
    fn more_than_the_window_holds_is_refused_also_across_its_end() {
        let mut incoming = incoming();
        incoming.lengths[0] = 66;
        assert!(incoming.advance().is_err());
        let mut incoming = self::incoming();
        (incoming.arrived, incoming.taken, incoming.lengths[0]) = (60, 60, 6);
        assert!(incoming.advance().is_err(), "it lies across the end");
    }

    #[test]
    fn nothing_comes_after_the_end() {
        let mut incoming = incoming();
        incoming.lengths[0] = 1;
        assert!(incoming.advance().is_ok() && incoming.has_ended);
        incoming.lengths[1] = 2;
        assert!(incoming.advance().is_err());
    }
}
