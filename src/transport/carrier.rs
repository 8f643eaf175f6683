//! Carries the packets of one link between this process's rings and another host.
//!
//! ```text
//!   node --ring--> out  --frames--> path --> network
//!   node <--ring-- into <--frames-- path <-- network
//! ```
//! To the node it is the other end of a link like any other: packets from the other host arrive in
//! a ring, and the interface checks them like packets from another process. It moves packets when
//! the node has its turn, when the node sends, and when the node is woken for its socket.
//!
//! A packet from the node leaves at once if it is the first since the node's last turn, or if the
//! ring is half full. Packets that follow without a turn in between leave together: in the next
//! turn, when the ring is half full, or when the thread of other hosts handles the link, which the
//! first of these packets wakes. So a sender that asks and waits for the answer is never delayed,
//! many short messages without a pause cost one system call, and long messages wake no thread.
//!
//! It sends and reads [`frames`]; the path is a connection with TLS, or another [`Path`].
//!
//! Back-pressure: packets that the receiving node has not taken stay in its ring, then in one
//! buffer, then in TCP's window, then in the sending node's ring, which is then full for the
//! sender. Never: more of a peer's bytes are kept than one packet beyond the ring; packets of one
//! link overtake one another, except long ones on a path that spreads them ([`Flags::IN_ORDER`]
//! keeps these in place).

use super::frames::{self, Goodbye, HostFrame, ReadFrame};
use super::late::Lateness;
use super::path::{Path, PathEnd, Put};
use super::{Moved, News, Owner, Transport};
use crate::link::LinkEnd;
use crate::link::ring::{RingReader, RingWriter};
use crate::link::sleep::{Barrier, Sleeper};
use crate::link::{Body, Transmit};
use crate::os::memory::{Region, RegionLines, RegionWord};
use crate::os::thread;
use crate::wire::{ApertureAccess, Flags, METADATA_MAX};
use core::sync::atomic::{Ordering, fence};
use core::time::Duration;
use std::boxed::Box;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::string::String;
use std::vec::Vec;

/// Bytes of frames that are made into records of TLS at a time: the size of one record.
const BATCH_BYTES: usize = 16 << 10;
/// Bytes to give to the system at a time, if there are so many.
const WRITE_BYTES: usize = 64 << 10;
/// Bytes that one turn takes from the network, whatever their content, so that other links have a
/// turn.
const TURN_BYTES: u64 = 256 << 10;
/// Notices for the other end that are kept until the network takes them.
const NOTICES_MAX: usize = 64;
/// Data bytes from which on a packet may overtake shorter ones, if a link has several rails, unless
/// it has to stay in order. Within one host, packets of this size go into the bulk ring.
const LONG_PACKET_BYTES: u32 = 2048;

/// Carries the packets of one link: see the module.
#[derive(Debug)]
pub struct Carrier {
    path: Box<dyn Path>,
    /// The reason why the path is not the one that was asked for.
    why_not: Option<String>,
    owner: Box<dyn Owner>,
    /// A packet was sent since the node's last turn.
    has_sent: bool,
    /// The thread handles unsent packets: those that follow another one without a turn in between,
    /// and those that the network did not take from the sender, since the node may sleep in another
    /// thread's call.
    is_late: bool,
    /// The ring that the node writes.
    out: RingReader<RegionLines, RegionWord>,
    /// The ring that the node reads.
    into: RingWriter<RegionLines, RegionWord>,
    /// Asks the node to announce each packet that it writes.
    sleep: Sleeper<RegionWord>,
    /// Most bytes of data in an incoming packet.
    packet_bytes: usize,
    batch: Vec<u8>,
    notices: Vec<HostFrame<'static>>,
    waits: bool,
    /// The ring has more room than the node has been told.
    has_freed: bool,
    /// At the node's last turn the network took no more: it may sleep until there is room.
    node_waits: bool,
    /// The frame to send after everything else.
    last: Option<HostFrame<'static>>,
    /// The last frame has been sent.
    is_finished: bool,
    /// The other end has said goodbye, or has disconnected this one for breaking the rules.
    said: Option<LinkEnd>,
    /// The node has been told of the end.
    has_ended: bool,
    /// Bytes received, lines written and lines read at the last call of `rest`.
    at_last_rest: (u64, u64, u64),
    /// It has given back the memory that it needs to carry packets.
    is_resting: bool,
    /// The memory of the ring that the node writes is to be given back in the node's next turn.
    gives_ring_back: bool,
}

impl Carrier {
    /// Between a node's regions, those of [`NewLink`](crate::control::NewLink), and the path to a
    /// host with which everything has been agreed.
    pub fn new(
        path: Box<dyn Path>,
        owner: Box<dyn Owner>,
        outgoing: &Region,
        incoming: &Region,
        packet_bytes: u32,
    ) -> Self {
        let into = RingWriter::new(incoming.lines(), outgoing.freed(), packet_bytes);
        // The node fences for itself, since links to other hosts are made without
        // `LinkFeatures::BARRIER`.
        let mut sleep = Sleeper::new(incoming.sleep(), Barrier::Fence, true);
        sleep.arm_for_any();
        Self {
            path,
            why_not: None,
            owner,
            has_sent: false,
            is_late: false,
            out: RingReader::new(outgoing.lines(), incoming.freed()),
            packet_bytes: into.packet_bytes() as usize,
            into,
            sleep,
            batch: Vec::new(),
            notices: Vec::new(),
            waits: false,
            has_freed: false,
            node_waits: false,
            last: None,
            is_finished: false,
            said: None,
            has_ended: false,
            at_last_rest: (0, 0, 0),
            is_resting: false,
            gives_ring_back: false,
        }
    }

    /// Reports changes of memory that one end opens to the other.
    fn take_news(&mut self) {
        while self.owner.takes_news()
            && let Some(news) = self.path.next_news()
        {
            self.owner.tell(news);
        }
    }

    /// Sends in a call of the sender, outside the node's turns.
    pub fn send_now(&mut self) {
        self.send();
        if self.waits || !self.path.is_quiet() {
            self.hand_over();
        }
    }

    /// Hands the link to the thread, once, however often this is called.
    pub fn hand_over(&mut self) {
        if !self.is_late && !self.has_ended {
            self.is_late = true;
            self.owner.hand_over();
        }
    }

    /// Sends the node's packets, as far as the network takes them. The caller holds the node's
    /// lock.
    fn send(&mut self) {
        loop {
            self.send_some();
            // The next send announces itself. It happens under the node's lock, like this; so no
            // send comes between the announcement and the check.
            self.sleep.arm_for_any();
            if self.waits || self.path.is_broken() || !self.out.is_ready() {
                return;
            }
        }
    }

    /// The same for the thread of late links; the node may write at the same time.
    pub fn send_late(&mut self) -> Lateness {
        let left = !self.has_ended && self.send_some();
        if left && core::mem::take(&mut self.node_waits) {
            self.path.tell_of_room();
        }
        if !self.has_ended && self.waits {
            return Lateness::Waits;
        }
        if left {
            return Lateness::Again;
        }
        if !self.has_ended && !self.path.is_quiet() {
            return Lateness::Waits;
        }
        thread::may_be_overtaken();
        self.sleep.arm_for_any();
        fence(Ordering::SeqCst);
        let is_over = self.has_ended || self.path.is_broken();
        if self.out.is_ready() && !is_over {
            return Lateness::Again;
        }
        self.is_late = false;
        Lateness::Done
    }

    /// Sends until the network takes no more, or the ring is empty. Returns whether any bytes left.
    fn send_some(&mut self) -> bool {
        let mut left = false;
        loop {
            self.waits = !self.path.flush();
            // A broken connection takes nothing more: the ring soon fills, and a sender that waits
            // for room takes a turn, which reports the end.
            if self.waits || self.path.is_broken() {
                return left;
            }
            let mut put = 0;
            while put < WRITE_BYTES && self.path.takes() {
                match self.put_straight() {
                    Put::Sent(0) => {}
                    Put::Sent(bytes) => {
                        put += bytes;
                        continue;
                    }
                    Put::Later => {
                        self.waits = !self.path.is_broken();
                        return left || put > 0;
                    }
                }
                self.batch.clear();
                for notice in self.notices.drain(..) {
                    frames::put(&mut self.batch, &notice);
                }
                let is_long = self.take_packets();
                if self.batch.is_empty() {
                    break;
                }
                put += self.batch.len();
                match is_long {
                    false => self.path.put(&self.batch),
                    true => self.path.put_long(&self.batch),
                }
            }
            if put == 0 {
                return left;
            }
            left = true;
        }
    }

    /// Sends packets from the node's ring by a path that lets them be written directly into its
    /// send buffer.
    fn put_straight(&mut self) -> Put {
        if !self.notices.is_empty() || !self.out.is_ready() {
            return Put::Sent(0);
        }
        let out = &mut self.out;
        let put = self.path.put_with(&mut |to| {
            let mut used = 0;
            // This process's own node writes only packets.
            while let Ok(Some(packet)) = out.peek() {
                let header = packet.header;
                let (metadata, data) = (header.metadata_len as usize, header.length as usize);
                let whole = frames::HEADER_BYTES + metadata + data;
                let Some(frame) = to.get_mut(used..used + whole) else { break };
                let (head, body) = frame.split_at_mut(frames::HEADER_BYTES);
                frames::write_header(head, &header);
                let (to_metadata, to_data) = body.split_at_mut(metadata);
                packet.copy_metadata(to_metadata);
                packet.copy_data(to_data);
                used += whole;
                let lines = packet.lines();
                out.release(lines);
            }
            out.publish();
            used
        });
        self.has_freed |= matches!(put, Put::Sent(1..));
        put
    }

    /// Takes packets for one batch out of the node's ring. Returns whether they may overtake
    /// others.
    fn take_packets(&mut self) -> bool {
        let (spreads, mut is_long) = (self.path.spreads(), false);
        // This process's own node writes only packets.
        while self.batch.len() < BATCH_BYTES
            && let Ok(Some(packet)) = self.out.peek()
        {
            let header = packet.header;
            if spreads {
                let own =
                    header.length >= LONG_PACKET_BYTES && !header.flags.contains(Flags::IN_ORDER);
                if !self.batch.is_empty() && own != is_long {
                    break;
                }
                is_long = own;
            }
            frames::put_header(&mut self.batch, &header);
            let (metadata, data) = (header.metadata_len as usize, header.length as usize);
            let start = self.batch.len();
            self.batch.resize(start + metadata + data, 0);
            let (to_metadata, to_data) = self.batch[start..].split_at_mut(metadata);
            packet.copy_metadata(to_metadata);
            packet.copy_data(to_data);
            let lines = packet.lines();
            self.out.release(lines);
        }
        self.out.publish();
        self.has_freed |= !self.batch.is_empty();
        is_long
    }

    /// Most bytes of a batch: only one packet may exceed its first part.
    pub fn batch_bytes_max(packet_bytes: u32) -> usize {
        let most = BATCH_BYTES + frames::HEADER_BYTES + METADATA_MAX + packet_bytes as usize;
        most + NOTICES_MAX * frames::HEADER_BYTES
    }

    /// Gives the node the incoming packets, as far as its ring takes them. Returns whether anything
    /// came.
    fn receive(&mut self) -> bool {
        let (mut moved, before) = (false, self.path.received());
        let mut is_drained = false;
        while self.said.is_none() && self.path.received() - before < TURN_BYTES {
            match self.take_frame() {
                CarrierStep::Taken => moved = true,
                // The node has to read first.
                CarrierStep::NoRoom => break,
                CarrierStep::Violation => {
                    self.said = Some(LinkEnd::Violation);
                    self.notices.clear();
                    self.notices.push(HostFrame::SentAway { is_slow: false });
                }
                CarrierStep::Cut(wanted) => {
                    if is_drained || !self.path.receive(wanted.max(BATCH_BYTES)) {
                        break;
                    }
                    is_drained = self.path.is_drained();
                }
            }
        }
        // The last bytes may still be in a buffer, although the network has no more.
        moved || self.path.received() - before >= TURN_BYTES
    }

    fn take_frame(&mut self) -> CarrierStep {
        let (frame, bytes) = match frames::read(self.path.plain(), self.packet_bytes) {
            ReadFrame::Whole(frame, bytes) => (frame, bytes),
            ReadFrame::Cut(wanted) => return CarrierStep::Cut(wanted),
            ReadFrame::Violation => return CarrierStep::Violation,
        };
        match frame {
            HostFrame::Packet { header, metadata, data } => {
                if self.into.transmit(&header, metadata, data).is_err() {
                    return CarrierStep::NoRoom;
                }
            }
            HostFrame::Stale { slot, index } => {
                // A host that repeats this does not keep others from connecting.
                if self.owner.takes_news() {
                    self.owner.tell(News::Stale { slot, index });
                }
            }
            HostFrame::Goodbye => self.said = Some(LinkEnd::Graceful),
            HostFrame::SentAway { is_slow: false } => self.said = Some(LinkEnd::Expelled),
            HostFrame::SentAway { is_slow: true } => self.said = Some(LinkEnd::TooSlow),
        }
        self.path.take(bytes);
        CarrierStep::Taken
    }

    /// Reports the end to the node, once the node has been given everything that came before.
    fn tell_end(&mut self) {
        if self.has_ended {
            return;
        }
        let reason = match self.path.ended() {
            None => None,
            Some(PathEnd::Said) => Some(LinkEnd::HungUp),
            Some(PathEnd::Cut | PathEnd::Broken(_) | PathEnd::Failed(_)) => Some(LinkEnd::Died),
            Some(PathEnd::Nonsense(_)) => Some(LinkEnd::Violation),
        };
        // A whole packet may still wait for room in the ring.
        if self.said.is_none()
            && reason.is_some()
            && matches!(self.take_frame_again(), CarrierStep::NoRoom)
        {
            return;
        }
        let Some(reason) = self.said.or(reason) else { return };
        self.ended(reason);
    }

    /// Reports the end.
    fn ended(&mut self, reason: LinkEnd) {
        self.has_ended = true;
        self.path.close_own();
        let more = self.path.ended().and_then(|ended| ended.more_than(reason));
        self.owner.has_ended(reason, more);
    }

    /// Reads the rest after the end: nothing, a part of a frame, or packets for which there is no
    /// room.
    fn take_frame_again(&mut self) -> CarrierStep {
        loop {
            match self.take_frame() {
                CarrierStep::Taken if self.said.is_none() => {}
                last => return last,
            }
        }
    }

    /// Tells the other end that some of its packets were refused because a ticket was revoked.
    pub fn tell_stale(&mut self, slot: u32, index: u32) {
        if self.notices.len() < NOTICES_MAX {
            self.notices.push(HostFrame::Stale { slot, index });
        }
        self.send_now();
    }

    /// Ends the link: the node's packets leave, then the frame for `how`. `true`: everything has
    /// arrived. Otherwise call [`finish`](Self::finish) until it has.
    pub fn close(&mut self, how: Goodbye) -> bool {
        self.has_ended = true;
        self.path.close_own();
        self.last = how.frame();
        self.finish()
    }

    /// Continues with the end. `true`: everything has arrived at the other end's system, or nothing
    /// will.
    pub fn finish(&mut self) -> bool {
        if !self.is_finished {
            self.send();
            if self.waits {
                return false;
            }
            self.is_finished = true;
            if let Some(last) = self.last.take() {
                self.batch.clear();
                frames::put(&mut self.batch, &last);
                self.path.put_last(&self.batch);
            }
            self.path.put_end();
        }
        self.waits = !self.path.flush();
        !self.waits && self.path.is_delivered()
    }

    /// Whether the node has been told of the end, or has left the link.
    pub fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Whether the network takes no more at the moment.
    pub fn waits(&self) -> bool {
        self.waits
    }

    /// Ends the connection, because the other host is gone; the next turn reports the end.
    pub fn break_off(&self) {
        self.path.break_off();
    }

    /// Whether the other host has owed an answer for `limit`.
    pub fn look_for_silence(&mut self, limit: Duration) -> bool {
        self.path.look_for_silence(limit)
    }

    /// Leaves each of several connections that has taken nothing for `limit`.
    pub fn look_for_stalls(&mut self, limit: Duration) {
        self.path.look_for_stalls(limit);
    }

    /// Adds a connection to a link with several, or returns the reason why it cannot.
    pub fn add_rail(&mut self, place: u8, path: Box<dyn Path>, ends: String) -> Result<(), String> {
        self.path.add_rail(place, path, ends)
    }

    /// Whether there is a rail at a place; `None`: the link can have none there.
    pub fn rail(&self, place: u8) -> Option<bool> {
        self.path.rail(place)
    }

    /// Records the reason for a missing rail.
    pub fn has_no_rail(&mut self, place: u8, why: &str) {
        self.path.has_no_rail(place, why);
    }

    /// Ends the link because it is no longer watched; tells the node.
    pub fn unwatch(&mut self) {
        self.path.break_off();
        if !self.has_ended {
            self.ended(LinkEnd::Unwatched);
        }
    }

    /// Records the reason why the path is not the one that was asked for.
    pub fn set_why_not(&mut self, why: String) {
        self.why_not = Some(why);
    }

    /// The thread calls this a few times within `host_timeout_ms`: a link that carried nothing
    /// between two calls gives back the memory that it needs to carry packets.
    pub fn rest(&mut self) {
        let now = (self.path.received(), self.into.written(), self.out.position());
        let is_busy = core::mem::replace(&mut self.at_last_rest, now) != now;
        if is_busy || self.has_ended || self.waits {
            self.is_resting = false;
            return;
        }
        if core::mem::replace(&mut self.is_resting, true) {
            return;
        }
        self.batch = Vec::new();
        self.path.give_back();
        self.into.forget_flows();
        // The node does not write this ring, and has read all of it.
        if self.into.is_drained() {
            self.into.lines().give_back();
        }
        self.gives_ring_back = true;
    }

    /// Only in a turn of the node, which writes this ring, and so does not write it at the same
    /// time.
    #[cold]
    fn give_ring_back(&mut self) {
        self.gives_ring_back = false;
        if !self.out.is_ready() {
            self.out.lines().give_back();
        }
    }

    /// Stops waiting for the end, because its time limit has passed.
    pub fn give_up(&mut self) {
        self.path.give_up();
    }

    /// See [`Path::hear`].
    pub fn hear(&mut self) {
        self.path.hear();
        if !self.path.is_quiet() {
            self.hand_over();
        }
    }

    /// The descriptor that is writable when the network takes more; `None`: try again later.
    pub fn takes_more(&self) -> Option<BorrowedFd<'_>> {
        self.path.takes_more()
    }
}

impl Transport for Carrier {
    fn turn(&mut self) -> Moved {
        self.has_sent = false;
        let came = self.receive();
        self.send();
        if self.gives_ring_back {
            self.give_ring_back();
        }
        self.take_news();
        // Including other threads' sends: the node may wait for the room.
        let left = core::mem::take(&mut self.has_freed);
        self.node_waits = self.waits;
        self.tell_end();
        Moved { any: came || left, waits: self.waits, has_ended: self.has_ended }
    }

    fn flush(&mut self, much: bool) {
        // The ring was full, and its packets have left already.
        if !self.out.is_ready() {
            self.sleep.arm_for_any();
            return;
        }
        if !self.has_sent || much {
            self.has_sent = true;
            self.send_now();
        } else {
            self.hand_over();
        }
    }

    fn flush_now(&mut self) {
        self.send_now();
    }

    fn may_sleep(&mut self) -> bool {
        let may_sleep = self.path.may_sleep();
        if may_sleep && self.path.has_unsent() {
            self.hand_over();
        }
        may_sleep
    }

    fn violation(&self) -> Option<String> {
        match self.path.ended() {
            Some(PathEnd::Nonsense(why)) => Some(why.clone()),
            _ => None,
        }
    }

    fn explain(&self) -> String {
        match &self.why_not {
            None => self.path.explain(),
            Some(why) => std::format!("{}, and not libfabric ({why}),", self.path.explain()),
        }
    }

    fn can_lend(&mut self) -> Result<(), String> {
        self.path.can_lend()
    }

    fn lend(&mut self, file: OwnedFd, bytes: u64, access: ApertureAccess) -> Result<u32, String> {
        self.path.lend(file, bytes, access)
    }

    fn revoke(&mut self, number: u32) {
        self.path.revoke(number);
    }

    fn release(&mut self, number: u32) {
        self.path.release(number);
    }
}

impl AsFd for Carrier {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.path.as_fd()
    }
}

/// The result of reading the first frame.
enum CarrierStep {
    /// The frame has been taken.
    Taken,
    /// The frame is incomplete; it needs this many bytes.
    Cut(usize),
    /// The node has no room for the packet.
    NoRoom,
    /// No honest host sends this.
    Violation,
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use super::super::late::Late;
    use super::*;
    use crate::link::ring::RingWriter;
    use crate::os::memory::{create, region_bytes};
    use crate::os::sys::Bell;
    use crate::wire::{Destination, Header, Key, MetadataIndex, SlotIndex};
    use std::sync::{Arc, Mutex};

    const RING_BYTES: usize = 4096;

    /// Counts the calls of a path that gives one frame, and then nothing.
    #[derive(Debug, Default)]
    struct Asked {
        receives: usize,
        flushes: usize,
        put: usize,
        /// The network takes nothing; and the number of times that the node was told of room.
        is_full: bool,
        told: usize,
    }

    #[derive(Debug)]
    struct OneFrame {
        tcp: Bell,
        plain: Vec<u8>,
        asked: Arc<Mutex<Asked>>,
    }

    impl AsFd for OneFrame {
        fn as_fd(&self) -> BorrowedFd<'_> {
            self.tcp.as_fd()
        }
    }

    impl Path for OneFrame {
        fn plain(&self) -> &[u8] {
            &self.plain
        }
        fn take(&mut self, bytes: usize) {
            self.plain.drain(..bytes);
        }
        fn receive(&mut self, _: usize) -> bool {
            let mut asked = self.asked.lock().unwrap();
            asked.receives += 1;
            if asked.receives == 1 {
                frames::put_header(&mut self.plain, &header(16));
                self.plain.extend_from_slice(&[3; 16]);
            }
            asked.receives == 1
        }
        fn is_drained(&self) -> bool {
            true
        }
        fn received(&self) -> u64 {
            0
        }
        fn ended(&self) -> Option<&PathEnd> {
            None
        }
        fn put(&mut self, bytes: &[u8]) {
            self.asked.lock().unwrap().put += bytes.len();
        }
        fn flush(&mut self) -> bool {
            let mut asked = self.asked.lock().unwrap();
            asked.flushes += 1;
            !asked.is_full
        }
        fn is_broken(&self) -> bool {
            false
        }
        fn put_end(&mut self) {}
        fn is_delivered(&mut self) -> bool {
            true
        }
        fn break_off(&self) {}
        fn tell_of_room(&self) {
            self.asked.lock().unwrap().told += 1;
        }
        fn tcp(&self) -> BorrowedFd<'_> {
            self.tcp.as_fd()
        }
        fn takes_more(&self) -> Option<BorrowedFd<'_>> {
            None
        }
        fn may_sleep(&mut self) -> bool {
            true
        }
        fn explain(&self) -> String {
            String::new()
        }
    }

    fn header(length: usize) -> Header {
        Header {
            destination: Destination(1),
            slot: SlotIndex(2),
            metadata_index: MetadataIndex(3),
            key: Key(4),
            offset: 0,
            length: length as u32,
            delta: 0,
            metadata_len: 0,
            flags: Flags::NOTIFY,
            word: 0,
        }
    }

    /// An owner that keeps the links that are handed over.
    #[derive(Debug)]
    struct Listens(Arc<Late>);

    impl Owner for Listens {
        fn takes_news(&self) -> bool {
            true
        }
        fn tell(&self, _: News) {}
        fn has_ended(&self, _: LinkEnd, _: Option<String>) {}
        fn hand_over(&self) {
            self.0.push(1);
        }
    }

    struct World {
        carrier: Carrier,
        /// The node's end.
        writes: RingWriter<RegionLines, RegionWord>,
        reads: RingReader<RegionLines, RegionWord>,
        asked: Arc<Mutex<Asked>>,
        late: Arc<Late>,
    }

    fn world() -> World {
        let pages = || {
            let bytes = region_bytes(RING_BYTES);
            Region::map_writable(create(bytes).unwrap(), bytes).unwrap()
        };
        let (outgoing, incoming) = (pages(), pages());
        let asked = Arc::<Mutex<Asked>>::default();
        let tcp = Bell::new().unwrap();
        let path = OneFrame { tcp, plain: Vec::new(), asked: asked.clone() };
        let late = Arc::new(Late::new(Bell::new().unwrap()));
        let owner = Box::new(Listens(late.clone()));
        let carrier = Carrier::new(Box::new(path), owner, &outgoing, &incoming, 1024);
        let writes = RingWriter::new(outgoing.lines(), incoming.freed(), 1024);
        let reads = RingReader::new(incoming.lines(), outgoing.freed());
        World { carrier, writes, reads, asked, late }
    }

    // A system call in vain after each incoming message takes an eighth of the message's time.
    #[test]
    fn a_message_that_came_whole_is_not_asked_for_twice() {
        let mut world = world();
        assert!(world.carrier.turn().any);
        assert_eq!(world.asked.lock().unwrap().receives, 1);
        assert_eq!(world.reads.peek().unwrap().unwrap().header.length, 16);
        assert!(!world.carrier.turn().any);
        assert_eq!(world.asked.lock().unwrap().receives, 2);
    }

    #[test]
    fn a_node_that_waits_for_room_is_told_when_the_thread_has_made_some() {
        let World { mut carrier, mut writes, asked, .. } = world();
        let mut send = || writes.transmit(&header(16), &[], &[1; 16][..]).unwrap();
        let told = || asked.lock().unwrap().told;
        asked.lock().unwrap().is_full = true;
        send();
        assert!(carrier.turn().waits);
        assert_eq!((carrier.send_late(), told()), (Lateness::Waits, 0));
        asked.lock().unwrap().is_full = false;
        assert_eq!((carrier.send_late(), told()), (Lateness::Again, 1));
        // It wakes the node until the node has had a turn with room.
        send();
        assert_eq!((carrier.send_late(), told()), (Lateness::Again, 1));
        assert!(!carrier.turn().waits);
        send();
        assert_eq!((carrier.send_late(), told()), (Lateness::Again, 1));
    }

    #[test]
    fn what_is_sent_right_behind_something_wakes_the_thread_unless_it_is_much_or_has_left() {
        let World { mut carrier, mut writes, asked, late, .. } = world();
        let put = || core::mem::take(&mut asked.lock().unwrap().put);
        let mut send = |length| {
            writes.transmit(&header(length), &[], &std::vec![1; length][..]).unwrap();
        };
        // The first packet since a turn leaves at once.
        send(16);
        carrier.flush(false);
        assert_eq!((put(), late.take().len()), (frames::HEADER_BYTES + 16, 0));
        // A large amount is worth a system call of its own.
        send(512);
        carrier.flush(true);
        assert_eq!((put(), late.take().len()), (frames::HEADER_BYTES + 512, 0));
        // The node's send found the ring full, and made it leave.
        send(512);
        carrier.send_now();
        put();
        carrier.flush(false);
        assert_eq!((put(), late.take().len()), (0, 0));
        // A small amount is left to the thread, which is woken once.
        for _ in 0..3 {
            send(16);
            carrier.flush(false);
        }
        // Nor do the thread's other reasons put it there twice, such as a rail that rejoins again
        // and again.
        carrier.hand_over();
        assert_eq!((put(), late.take().len()), (0, 1));
        assert_eq!(carrier.send_late(), Lateness::Again);
        assert_eq!(put(), 3 * (frames::HEADER_BYTES + 16));
        assert_eq!(carrier.send_late(), Lateness::Done);
    }
}
