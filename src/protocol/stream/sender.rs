//! The sender of a stream.

use super::{PROTOCOL, THROUGH_THE_LINK};
use crate::interface::LinkId;
use crate::node::{Attached, Look, Node, NodeSendError, PreparedTicket, Unfinished};
use crate::protocol::credit::Cell;
use crate::protocol::deadline::Deadline;
use crate::protocol::ends::{connected, ended, grown};
use crate::protocol::manager::{Protocols, Target};
use crate::protocol::records::{
    self, FREED_BYTES, FarRecord, GRANT_BYTES, Mark, PLACE_BYTES, PLACES, Small, TicketGrant,
};
use crate::protocol::tickets::fast_ticket_from;
use crate::protocol::{Connection, GrowError, Kind, Manager, SendError};
use crate::wire::{Flags, Key, MetadataIndex, NodeId, Share, SlotIndex, TICKET_BYTES, Ticket};
use core::time::Duration;
use std::boxed::Box;
use std::format;
use std::sync::Arc;
use std::vec;
use std::vec::Vec;

/// The sender's source of tickets, and its way of using them.
#[derive(Debug)]
struct TicketPost {
    link: LinkId,
    destination: NodeId,
    /// A ring of grants, one for each slot that a receiver may have; and a count.
    grants: Cell,
    slots: Box<[SlotIndex]>,
    ask: Ticket,
    record_bytes_max: usize,
    /// The places for small messages, and the longest of these.
    places: PreparedTicket,
    small_max: usize,
    /// Small messages that have left, and those whose place is free again.
    small: u64,
    freed: u64,
    /// Number of the next message with a ticket.
    next: u64,
    /// The last ticket for which a larger buffer was asked, and the bytes asked for.
    asked: Option<(u64, usize)>,
}

/// A message that has left in part.
#[derive(Debug)]
pub(super) struct PartlySent {
    unfinished: Unfinished,
    mark: Mark,
    /// A long record; otherwise the coalesced ones, which stay in the buffer meanwhile.
    own: Option<Vec<u8>>,
}

/// Most bytes that a sender coalesces, even for larger buffers of the receiver.
const COALESCED_BYTES_MAX: usize = 1 << 20;

/// The message to send.
#[derive(Clone, Copy)]
pub(super) enum ToSend<'a> {
    Coalesced,
    Record(&'a [u8]),
    End,
}

impl TicketPost {
    /// The ticket for the next message.
    #[inline]
    fn grant(&self, node: &Node) -> Option<TicketGrant> {
        let at = self.next % self.slots.len() as u64 * GRANT_BYTES as u64;
        let bytes = node.area(self.grants.area).ok()?.get(at as usize..)?;
        let grant = TicketGrant::from_bytes(*bytes.first_chunk()?);
        (grant.number == self.next as u32).then_some(grant)
    }

    /// A ticket for a message of `length` bytes, once there is one.
    #[inline]
    fn ticket(
        &mut self,
        node: &mut Node,
        connection: &Connection,
        length: usize,
    ) -> Result<Ticket, Look<Result<(), SendError>>> {
        let Some(grant) = self.grant(node) else { return Err(self.none(node, connection)) };
        let size = grant.size as usize;
        // While a larger buffer is on its way into the ticket's slot, the old key may be worthless.
        let asked = self.asked.filter(|(number, _)| *number == self.next).map(|(_, bytes)| bytes);
        let is_answered = asked.is_none_or(|bytes| size >= bytes || grant.refused);
        if !is_answered {
            return Err(self.none(node, connection));
        }
        if size < length {
            return Err(self.ask(node, connection, length, grant));
        }
        Ok(Ticket {
            destination: self.destination,
            slot: self.slots[(self.next % self.slots.len() as u64) as usize],
            metadata_index: MetadataIndex(0),
            key: Key(grant.key),
            base: 0,
            bound: size as u64,
            flags: Flags::NOTIFY | Flags::WAKE,
            share: Share::WHOLE,
        })
    }

    #[cold]
    fn none(&self, node: &Node, connection: &Connection) -> Look<Result<(), SendError>> {
        match connection.ended() {
            Some(_) => Look::Found(Err(ended(connection))),
            None => {
                node.waits_for_buffer(self.link, true);
                Look::Nothing
            }
        }
    }

    #[cold]
    fn ask(
        &mut self,
        node: &mut Node,
        connection: &Connection,
        length: usize,
        grant: TicketGrant,
    ) -> Look<Result<(), SendError>> {
        if grant.refused {
            let max = grant.size as usize;
            let limit =
                "by the memory that the receiver has left (its buffers_max, area_bytes_max)";
            return Look::Found(Err(SendError::TooLong { length, max, limit }));
        }
        let word = records::ask(self.next, length);
        match node.try_send_fast_over(self.link, &self.ask, &[], word) {
            Ok(_) => {
                self.asked = Some((self.next, length));
                Look::Nothing
            }
            Err(NodeSendError::Full) => Look::Room(self.link),
            Err(NodeSendError::LinkEnded(_)) => Look::Found(Err(ended(connection))),
            Err(e) => Look::Found(Err(e.into())),
        }
    }

    /// Whether a place is free.
    #[inline]
    fn has_place(&mut self, node: &Node) -> bool {
        self.small - self.freed < PLACES || self.finds_place(node)
    }

    #[cold]
    fn finds_place(&mut self, node: &Node) -> bool {
        let at = GRANT_BYTES * self.slots.len();
        let told =
            node.area(self.grants.area).ok().and_then(|bytes| bytes.get(at..)?.first_chunk());
        if let Some(told) = told {
            let told = u64::from_le_bytes(*told);
            // Links may reorder, and a count beyond the messages sent is a lie.
            if told > self.freed && told <= self.small {
                self.freed = told;
            }
        }
        self.small - self.freed < PLACES
    }

    /// The same, after a turn if necessary, in which the receiver's report may come.
    #[cold]
    #[inline(never)]
    fn finds_place_in_turn(&mut self, node: &mut Node, protocols: &mut Protocols) -> bool {
        if self.finds_place(node) {
            return true;
        }
        if node.poll().is_err() {
            return false;
        }
        protocols.after_poll(node);
        self.finds_place(node)
    }

    /// The place of the next small message, and the word that it carries.
    #[inline]
    fn place(&self, mark: Mark) -> (Ticket, u32) {
        let (offset, word) = self.place_of(mark.length, mark.framed);
        let places = self.places.ticket();
        (Ticket { base: places.base + offset, ..*places }, word)
    }

    #[inline]
    fn place_of(&self, length: u32, framed: bool) -> (u64, u32) {
        let place = (self.small % PLACES) as u32;
        let small = Small { length, framed, place, tickets_before: self.next as u32 };
        (place as u64 * PLACE_BYTES as u64, small.to_word())
    }

    /// Sends a message that fits into a place, if one is free. False: nothing was done.
    #[inline]
    fn send_small(
        &mut self,
        node: &mut Node,
        protocols: &mut Protocols,
        data: &[u8],
        framed: bool,
    ) -> bool {
        if data.len() > self.small_max
            || self.small - self.freed >= PLACES && !self.finds_place_in_turn(node, protocols)
        {
            return false;
        }
        let (offset, word) = self.place_of(data.len() as u32, framed);
        if !node.push_prepared(&self.places, offset, data, word) {
            return false;
        }
        self.small += 1;
        true
    }

    /// One look under the lock: puts as much of a message into the link as it takes.
    #[inline]
    fn look(
        &mut self,
        node: &mut Node,
        connection: &Connection,
        data: &[u8],
        mark: Mark,
        outgoing: &mut BegunMessage,
    ) -> Look<Result<(), SendError>> {
        let bytes = mark.to_bytes();
        let mut metadata = &bytes[..mark.len()];
        if outgoing.unfinished.is_none() {
            let is_small = data.len() <= self.small_max && !mark.last;
            let has_place = is_small && self.has_place(node);
            if is_small && !has_place && !outgoing.looked {
                // The next turn may bring news of freed places.
                outgoing.looked = true;
                return Look::Again;
            }
            outgoing.is_small = has_place;
            let (ticket, word) = if has_place {
                metadata = &[];
                self.place(mark)
            } else {
                match self.ticket(node, connection, data.len()) {
                    Ok(ticket) => (ticket, 0),
                    Err(look) => {
                        outgoing.waited = true;
                        return look;
                    }
                }
            };
            if node.try_send_packet_over(self.link, &ticket, data, metadata, word) {
                self.has_left(has_place);
                return Look::Found(Ok(()));
            }
            let begun = node.prepare_send(self.link, &ticket, data.len(), metadata.len(), word);
            match begun {
                Ok(unfinished) => outgoing.unfinished = Some(unfinished),
                Err(NodeSendError::LinkEnded(_)) => return Look::Found(Err(ended(connection))),
                Err(e) => return Look::Found(Err(e.into())),
            }
        }
        if outgoing.is_small {
            metadata = &[];
        }
        let Some(unfinished) = &mut outgoing.unfinished else { return Look::Nothing };
        match node.look_to_send(unfinished, data, metadata) {
            Look::Found(Ok(_)) => {
                self.has_left(outgoing.is_small);
                Look::Found(Ok(()))
            }
            Look::Found(Err(NodeSendError::LinkEnded(_))) => Look::Found(Err(ended(connection))),
            Look::Found(Err(e)) => Look::Found(Err(e.into())),
            Look::Again => Look::Again,
            Look::Nothing => Look::Nothing,
            Look::Room(link) => Look::Room(link),
        }
    }

    #[inline]
    fn has_left(&mut self, is_small: bool) {
        if is_small {
            self.small += 1;
        } else {
            self.next += 1;
        }
    }
}

/// A message that is to leave in one call.
#[derive(Default)]
struct BegunMessage {
    unfinished: Option<Unfinished>,
    /// It goes to a place.
    is_small: bool,
    /// A turn was taken to find a place.
    looked: bool,
    /// There was no ticket.
    waited: bool,
}

/// Sends a stream of records. `Send`. [Close](Self::close) it after the last record: only then does
/// the receiver see the stream as complete. Dropped without that, for example on the way of an
/// error, it sends as much as it can without waiting, and the receiver sees
/// [`CloseReason::HungUp`](crate::node::CloseReason::HungUp): there may have been more.
///
/// [`StreamReceiver`](crate::protocol::StreamReceiver) shows both ends.
pub struct StreamSender {
    manager: Manager,
    connection: Arc<Connection>,
    post: TicketPost,
    /// Coalesced records.
    pub(super) buffer: Box<[u8]>,
    pub(super) fill: usize,
    /// Bytes of `buffer` that may be used: all; 0 while its message is leaving, and at the end.
    pub(super) limit: usize,
    /// Longest record that is coalesced.
    pub(super) coalesced_max: usize,
    /// The memory for long records that the application writes in place.
    pub(super) long: Vec<u8>,
    pub(super) outgoing: Option<PartlySent>,
    is_closed: bool,
}

impl StreamSender {
    grown!("the sender", "a receiver");

    fn to(
        manager: &Manager,
        target: Target<'_>,
        timeout: Option<Duration>,
    ) -> Result<Self, GrowError> {
        Self::over(manager, target, &[THROUGH_THE_LINK], timeout)
    }

    /// `path` is the greeting's description of the path.
    pub(in crate::protocol) fn over(
        manager: &Manager,
        target: Target<'_>,
        path: &[u8],
        timeout: Option<Duration>,
    ) -> Result<Self, GrowError> {
        let bytes = GRANT_BYTES * records::TICKETS_MAX as usize + FREED_BYTES;
        let (grants, ticket) = Cell::new(&mut manager.lock(), bytes).map_err(GrowError::SetUp)?;
        let mut body = ticket.to_bytes().to_vec();
        body.extend_from_slice(path);
        let read = |connection: &_, answer: &_| Self::read(manager, connection, answer, grants);
        let expected = "no tickets and sizes that fit together";
        let grown = manager.grow(target, Kind::STREAM, &body, timeout, expected, read);
        if grown.is_err() {
            grants.remove(&mut manager.lock());
        }
        grown.map(|(_, sender)| sender)
    }

    /// Reads the receiver's answer; `None`: it makes no sense.
    fn read(
        manager: &Manager,
        connection: &Arc<Connection>,
        answer: &[u8],
        grants: Cell,
    ) -> Option<Self> {
        let word = |i: usize| {
            let bytes = answer.get(4 * i..)?.first_chunk()?;
            Some(u32::from_le_bytes(*bytes) as usize)
        };
        let (count, buffer_bytes, record_bytes_max) = (word(0)?, word(1)?, word(2)?);
        let sizes = 64 - 3..=records::MESSAGE_BYTES_MAX;
        let fits = (1..=records::TICKETS_MAX as usize).contains(&count)
            && sizes.contains(&buffer_bytes)
            && (1..=records::MESSAGE_BYTES_MAX).contains(&record_bytes_max);
        let (ask, rest) = answer.get(12..)?.split_at_checked(TICKET_BYTES)?;
        let (places, tickets) = rest.split_at_checked(TICKET_BYTES)?;
        let ask = fast_ticket_from(ask, connection.peer()).ok()?;
        let places = fast_ticket_from(places, connection.peer()).ok()?;
        if places.capacity() < PLACES * PLACE_BYTES as u64 {
            return None;
        }
        if !fits || tickets.len() != 12 * count {
            return None;
        }
        let mut slots = Vec::with_capacity(count);
        let mut node = manager.lock();
        for (number, ticket) in tickets.chunks_exact(12).enumerate() {
            let (slot, key) = ticket.split_first_chunk::<4>()?;
            slots.push(SlotIndex(u32::from_le_bytes(*slot)));
            let key = u64::from_le_bytes(key.try_into().ok()?);
            let (number, size) = (number as u32, buffer_bytes as u32);
            let grant = TicketGrant { key, number, size, refused: false };
            let at = GRANT_BYTES * number as usize;
            let to = node.area_mut(grants.area).ok()?.get_mut(at..at + GRANT_BYTES)?;
            to.copy_from_slice(&grant.to_bytes());
        }
        let packet_bytes = node.fast_bytes_max(connection.link()).unwrap_or(0);
        drop(node);
        // This side decides how much is coalesced: the other must not choose its cost.
        let buffer_bytes = buffer_bytes.min(COALESCED_BYTES_MAX);
        let post = TicketPost {
            link: connection.link(),
            destination: connection.peer().node,
            grants,
            slots: slots.into(),
            ask,
            record_bytes_max,
            places: PreparedTicket::new(&places, connection.link()),
            small_max: PLACE_BYTES.min(packet_bytes),
            small: 0,
            freed: 0,
            next: 0,
            asked: None,
        };
        Some(Self {
            manager: manager.clone(),
            connection: connection.clone(),
            post,
            buffer: vec![0; buffer_bytes].into(),
            fill: 0,
            limit: buffer_bytes,
            coalesced_max: (buffer_bytes / 4).min(record_bytes_max),
            long: Vec::new(),
            outgoing: None,
            is_closed: false,
        })
    }

    /// Longest record.
    pub fn bytes_max(&self) -> usize {
        self.post.record_bytes_max
    }

    /// Sends one record, waiting at most `timeout` for room. A small one leaves with others, at the
    /// latest with the next [`flush`](Self::flush). A long one leaves at once. If the time limit
    /// passes when a part of it has left, the result is `Ok`, too: the record is taken, its rest
    /// leaves with later calls, and a successful `flush` means that it has left. On an error no
    /// part of *this* record was taken; an end of the receiver is found only when a message leaves.
    #[inline]
    pub fn send(&mut self, record: &[u8], timeout: Option<Duration>) -> Result<(), SendError> {
        if record.len() <= self.coalesced_max
            && let Some(fill) = records::put(&mut self.buffer[..self.limit], self.fill, record)
        {
            self.fill = fill;
            return Ok(());
        }
        self.send_slowly(record, Deadline::new(timeout))
    }

    /// [`send`](Self::send) without waiting: `false` if it would have to wait, and then no part of
    /// this record was taken. It returns `true` also for a long record that has left in part: call
    /// [`try_flush`](Self::try_flush) until that returns `true`.
    pub fn try_send(&mut self, record: &[u8]) -> Result<bool, SendError> {
        Ok(SendError::unless_timed_out(self.send(record, Some(Duration::ZERO)))?.is_some())
    }

    /// [`flush`](Self::flush) without waiting; returns whether everything is on its way.
    pub fn try_flush(&mut self) -> Result<bool, SendError> {
        Ok(SendError::unless_timed_out(self.flush(Some(Duration::ZERO)))?.is_some())
    }

    #[inline(never)]
    fn send_slowly(&mut self, record: &[u8], deadline: Deadline) -> Result<(), SendError> {
        let length = record.len();
        self.check_length(length)?;
        self.empty(deadline)?;
        if length > self.coalesced_max {
            return self.ship(ToSend::Record(record), false, deadline.left());
        }
        match records::put(&mut self.buffer[..self.limit], self.fill, record) {
            Some(fill) => {
                self.fill = fill;
                Ok(())
            }
            // An empty buffer holds any coalesced record, unless the receiver is gone.
            None => Err(ended(&self.connection)),
        }
    }

    #[inline]
    pub(super) fn check_length(&self, length: usize) -> Result<(), SendError> {
        let (max, limit) = (self.post.record_bytes_max, "by the receiver's record_bytes_max");
        match length > max {
            true => Err(SendError::TooLong { length, max, limit }),
            false => Ok(()),
        }
    }

    /// Announces a record in the receiver's aperture, after everything that was sent before. On an
    /// error it was not announced.
    pub(in crate::protocol) fn announce(
        &mut self,
        far: FarRecord,
        deadline: Deadline,
    ) -> Result<(), SendError> {
        let mut fill = records::put_far(&mut self.buffer[..self.limit], self.fill, far);
        if fill.is_none() {
            self.empty(deadline)?;
            fill = records::put_far(&mut self.buffer[..self.limit], self.fill, far);
        }
        let Some(fill) = fill else { return Err(ended(&self.connection)) };
        self.fill = fill;
        match self.flush(deadline.left()) {
            Err(e @ SendError::Ended(_)) => Err(e),
            // It is taken, as coalesced records are: the next call returns the error.
            _ => Ok(()),
        }
    }

    /// Sends the coalesced records, waiting at most `timeout` for room. When it returns `Ok`, every
    /// record is on its way, and arrives even if this process ends; at another host, unless the
    /// process is killed before the network has taken it. On an error the rest stays, for a later
    /// call.
    #[inline]
    pub fn flush(&mut self, timeout: Option<Duration>) -> Result<(), SendError> {
        // While a message is leaving, and at the end, no records are coalesced.
        if self.limit > 0 {
            if self.fill == 0 {
                return Ok(());
            }
            let Self { manager, post, buffer, fill, .. } = self;
            let (data, framed) = Self::coalesced(buffer, *fill);
            let sent = manager.shared.at_once(|node, protocols| {
                post.send_small(node, protocols, data, framed).then_some(())
            });
            if sent.is_some() {
                self.fill = 0;
                return Ok(());
            }
        }
        self.flush_slowly(timeout)
    }

    #[inline(never)]
    fn flush_slowly(&mut self, timeout: Option<Duration>) -> Result<(), SendError> {
        let deadline = Deadline::new(timeout);
        self.finish(deadline)?;
        if self.is_closed { Ok(()) } else { self.empty(deadline) }
    }

    /// Sends everything, the rest of an unfinished message first.
    pub(super) fn empty(&mut self, deadline: Deadline) -> Result<(), SendError> {
        self.finish(deadline)?;
        if self.is_closed {
            return Err(ended(&self.connection));
        }
        if self.fill > 0 {
            self.ship(ToSend::Coalesced, false, deadline.left())?;
        }
        Ok(())
    }

    /// Sends the rest and marks the stream as complete, waiting at most `timeout`; then it closes
    /// the connection. On [`SendError::TimedOut`] the connection is still open: `close` again.
    pub fn close(&mut self, timeout: Option<Duration>) -> Result<(), SendError> {
        let deadline = Deadline::new(timeout);
        self.finish(deadline)?;
        if !self.is_closed {
            let what = if self.fill > 0 { ToSend::Coalesced } else { ToSend::End };
            self.ship(what, true, deadline.left())?;
        }
        self.manager.end(&self.connection);
        Ok(())
    }

    /// Ends the stream before its end: bytes that have left arrive, and then the receiver sees
    /// [`HungUp`](crate::node::CloseReason::HungUp), as when this process ends. Coalesced records
    /// do not leave. A sender that is dropped while its thread panics does the same.
    pub fn abandon(&mut self) {
        (self.is_closed, self.fill, self.limit) = (true, 0, 0);
        self.outgoing = None;
        self.manager.end(&self.connection);
    }

    /// Sends as much as it can without waiting. The stream was not closed: the receiver sees that
    /// more was to come.
    pub(in crate::protocol) fn end(&mut self) {
        if std::thread::panicking() {
            return self.abandon();
        }
        let _ = self.empty(Deadline::new(Some(Duration::ZERO)));
        self.manager.end(&self.connection);
    }

    /// The coalesced records as a message.
    #[inline]
    fn coalesced(buffer: &[u8], fill: usize) -> (&[u8], bool) {
        // A single record goes as it is: one of up to 16 bytes is a line.
        match records::alone(buffer, fill) {
            Some(record) => (record, false),
            None => (&buffer[..fill], true),
        }
    }

    /// Sends one message.
    #[inline]
    pub(super) fn ship(
        &mut self,
        what: ToSend<'_>,
        last: bool,
        timeout: Option<Duration>,
    ) -> Result<(), SendError> {
        let Self { manager, connection, post, buffer, fill, .. } = self;
        let (data, framed) = match what {
            ToSend::Coalesced => Self::coalesced(buffer, *fill),
            ToSend::Record(record) => (record, false),
            ToSend::End => (&[][..], true),
        };
        let (length, small_before) = (data.len() as u32, post.small as u32);
        let mark = Mark { framed, last, length, small_before };
        let mut begun = BegunMessage::default();
        let sent = manager
            .shared
            .wait_until(timeout, |node, _| post.look(node, connection, data, mark, &mut begun));
        // A caller that does not wait in a call tries again.
        if begun.waited && (sent.is_ok() || timeout != Some(Duration::ZERO)) {
            manager.lock().waits_for_buffer(post.link, false);
        }
        let is_record = matches!(what, ToSend::Record(_));
        match sent {
            Ok(Ok(())) => {
                self.has_left(last, !is_record);
                Ok(())
            }
            Err(waited) => {
                match begun.unfinished.filter(|unfinished| unfinished.bytes_sent() > 0) {
                    Some(unfinished) => {
                        // The record is taken, as coalesced ones are: the rest leaves in later
                        // calls, which return the errors, too.
                        let own = is_record.then(|| data.to_vec());
                        self.outgoing = Some(PartlySent { unfinished, mark, own });
                        self.limit = 0;
                        if is_record { Ok(()) } else { Err(waited.into()) }
                    }
                    None => Err(waited.into()),
                }
            }
            Ok(Err(e)) => Err(self.failed(e)),
        }
    }

    /// Sends the rest of a message that has left in part.
    fn finish(&mut self, deadline: Deadline) -> Result<(), SendError> {
        let Some(PartlySent { unfinished, mark, own }) = &mut self.outgoing else { return Ok(()) };
        let Self { manager, buffer, fill, .. } = self;
        let data = match own {
            Some(own) => own,
            None => Self::coalesced(buffer, *fill).0,
        };
        let metadata = &mark.to_bytes()[..mark.len()];
        let sent = manager
            .shared
            .wait_until(deadline.left(), |node, _| node.look_to_send(unfinished, data, metadata));
        let (last, of_buffer) = (mark.last, own.is_none());
        match sent? {
            Ok(_) => {
                self.outgoing = None;
                self.limit = self.buffer.len();
                self.post.has_left(false);
                self.has_left(last, of_buffer);
                Ok(())
            }
            Err(NodeSendError::LinkEnded(_)) => {
                let e = ended(&self.connection);
                Err(self.failed(e))
            }
            Err(e) => Err(self.failed(e.into())),
        }
    }

    #[inline]
    fn has_left(&mut self, last: bool, of_buffer: bool) {
        if of_buffer {
            self.fill = 0;
        }
        if last {
            (self.is_closed, self.limit) = (true, 0);
        }
    }

    /// Takes no more records once the receiver is gone, so that the next send returns the error.
    #[cold]
    fn failed(&mut self, e: SendError) -> SendError {
        if matches!(e, SendError::Ended(_)) {
            self.limit = 0;
        }
        e
    }

    connected!("records", |this| {
        let (coalesced, buffer) = (this.coalesced_max, this.buffer.len());
        format!(
            "{PROTOCOL}; records of up to {coalesced} bytes are coalesced, others leave at once, \
             those of more than {buffer} into a buffer that is asked for"
        )
    });
}

impl Drop for StreamSender {
    fn drop(&mut self) {
        if self.manager.is_forked() {
            return;
        }
        self.end();
        self.post.grants.remove(&mut self.manager.lock());
    }
}
