//! Simple datagrams (Hamlyn 3.3): one message at a time into memory that the receiver lends.
//!
//! ```text
//!   send(data, offset, reply)   ---- data, and metadata: offset, length, reply ticket ---->  receive
//!                                                   ready: the entry takes one message
//!                                                   not ready: datagrams are dropped, counted
//! ```
//! Raw semantics, and no more. A receiver has one metadata entry, in one-shot mode: it is *ready*
//! or it is not. A datagram that arrives closes it, and its bytes are stable until
//! [`ready`](DatagramReceiver::ready) opens it again. Datagrams sent meanwhile are refused, packet
//! by packet, and counted (`refused_entry_closed`); their senders get no error. So before it sends
//! again, a sender must know that the receiver is ready, usually by a reply. If two datagrams are
//! on their way at once, a short one may overtake a long one, and is then the one that is taken.
//!
//! All senders of a receiver have the same ticket, which stays valid, so a ticket may be given away
//! as a *reply ticket*. They share the entry, which takes one datagram at a time, from one link: if
//! two long ones (of several packets) come at once, the one that began last is taken, and the rest
//! of the other is refused. So an unfinished datagram does not keep others from sending. But a
//! sender that begins datagrams all the time, or finishes them, leaves others no room: give senders
//! that do not trust one another a receiver each, or use another protocol.

use super::seated::{grown_by_seat, seated};
use super::tickets::message_ticket_from;
use super::{Connection, EndPoint, GrowError, Kind, Manager, ReceiveError, SendError};
use super::{Protocol, Seat};
use crate::control::{Peer, RequestId};
use crate::interface::notification::Consumer;
use crate::interface::{AreaId, EntryState, LinkId, Mode, QueueId, SlotConfig, SlotId};
use crate::node::{CloseReason, Look, Node, NodeSendError, Unfinished};
use crate::wire::{METADATA_MAX, MetadataIndex, TICKET_BYTES, Ticket};
use core::time::Duration;
use std::collections::{HashMap, HashSet};
use std::format;
use std::string::{String, ToString};
use std::sync::Arc;
use std::time::Instant;
use std::vec::Vec;

const ENTRY: MetadataIndex = MetadataIndex(0);
/// Offset and length.
const PLACE_BYTES: usize = 16;
const _: () = assert!(PLACE_BYTES + TICKET_BYTES == METADATA_MAX);

/// A message has arrived. Offset and length are its sender's claims, checked to lie inside the
/// area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// Offset of its bytes in the receiver's area.
    pub offset: usize,
    /// Number of its bytes.
    pub length: usize,
    /// The ticket for an answer, if the sender expects one: see [`DatagramReceiver::reply`].
    pub reply: Option<Ticket>,
    /// The link over which it came.
    pub link: LinkId,
    serial: u64,
}

/// The receiver's state at its manager.
#[derive(Debug)]
struct DatagramSenders {
    ticket: Ticket,
    here: HashSet<LinkId>,
    area: AreaId,
    queue: QueueId,
    slot: SlotId,
}

impl Protocol for DatagramSenders {
    fn admit(
        &mut self,
        _: &mut Node,
        _: RequestId,
        _: &Peer,
        body: &[u8],
    ) -> Result<Vec<u8>, String> {
        if !body.is_empty() {
            return Err(format!(
                "a sender of datagrams says nothing, and this says {} bytes",
                body.len()
            ));
        }
        Ok(self.ticket.to_bytes().to_vec())
    }

    fn joined(&mut self, _: &mut Node, _: RequestId, connection: &Arc<Connection>) {
        self.here.insert(connection.link());
    }

    fn left(&mut self, _: &mut Node, connection: &Connection) {
        self.here.remove(&connection.link());
    }

    fn close(&mut self, node: &mut Node) {
        let _ = node.remove_slot(self.slot);
        let _ = node.remove_queue(self.queue);
        let _ = node.remove_area(self.area);
    }
}

/// Receives datagrams, one at a time. `Send`.
///
/// ```
/// # let dir = std::env::temp_dir().join(format!("hamlyn-doc-datagram-{}", std::process::id()));
/// # let config = hamlyn::Config::from_env()?.dir(&dir);
/// use hamlyn::Access;
/// use hamlyn::protocol::{DatagramReceiver, DatagramSender, Manager};
/// use std::time::Duration;
///
/// let limit = Some(Duration::from_secs(10));
/// let manager = Manager::with_config(config.clone())?;
/// let mut receiver = DatagramReceiver::new(&manager, 4096)?;
/// receiver.serve("datagrams", Access::SameUser)?;
/// manager.start_progress()?;
///
/// // Usually another process.
/// let other = Manager::with_config(config)?;
/// let mut sender = DatagramSender::connect(&other, "datagrams", limit)?;
/// sender.send(b"one at a time", 0, None, limit)?;
///
/// let datagram = receiver.receive(limit)?;
/// // The bytes are stable until the receiver is ready for the next.
/// assert_eq!(receiver.with_bytes(&datagram, <[u8]>::to_vec)?, b"one at a time");
/// receiver.ready()?;
/// # std::fs::remove_dir_all(&dir).ok();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct DatagramReceiver {
    seat: Seat<DatagramSenders>,
    consumer: Consumer,
    area: AreaId,
    queue: QueueId,
    slot: SlotId,
    /// Whether the entry was left open.
    is_open: bool,
    serial: u64,
    /// Replies that a time limit cut off.
    replies: HashMap<LinkId, (Arc<Connection>, DatagramRest)>,
}

impl DatagramReceiver {
    /// A receiver with an area of `bytes` zero bytes, which is ready.
    pub fn new(manager: &Manager, bytes: usize) -> Result<Self, GrowError> {
        let set_up = |e: &dyn ToString| GrowError::SetUp(e.to_string());
        let (area, queue, slot, consumer, ticket) = {
            let mut node = manager.lock();
            let area = node.message_area(bytes).map_err(|e| set_up(&e))?;
            let queue = node.notification_queue(1).map_err(|e| {
                let _ = node.remove_area(area);
                set_up(&e)
            })?;
            let made = (|| {
                let consumer = node.take_consumer(queue).map_err(|e| set_up(&e))?;
                let config = SlotConfig::new(area, queue).mode(Mode::ParanoidOneShot);
                let slot = node.slot(config).map_err(|e| set_up(&e))?;
                let armed = node
                    .arm(slot, ENTRY, Some(0..bytes as u64))
                    .and_then(|()| node.share_entry(slot, ENTRY));
                let ticket = armed.and_then(|()| node.ticket(slot, ENTRY)).map_err(|e| {
                    let _ = node.remove_slot(slot);
                    set_up(&e)
                });
                Ok((slot, consumer, ticket?))
            })();
            match made {
                Ok((slot, consumer, ticket)) => (area, queue, slot, consumer, ticket),
                Err(e) => {
                    let _ = node.remove_queue(queue);
                    let _ = node.remove_area(area);
                    return Err(e);
                }
            }
        };
        let senders = DatagramSenders { ticket, here: HashSet::new(), area, queue, slot };
        Ok(Self {
            seat: manager.seat(Kind::DATAGRAM, senders),
            consumer,
            area,
            queue,
            slot,
            is_open: true,
            serial: 0,
            replies: HashMap::new(),
        })
    }

    /// The right to send one datagram to this receiver whenever it is ready; pass it as the reply
    /// ticket of a datagram.
    pub fn reply_ticket(&self) -> Ticket {
        self.seat.with(|_, senders| senders.ticket)
    }

    /// Whether the entry takes a datagram now: no datagram has arrived since
    /// [`ready`](Self::ready).
    pub fn is_ready_for_one(&self) -> bool {
        let node = self.seat.manager().lock();
        node.metadata(self.slot, ENTRY).is_ok_and(|entry| entry.state() != EntryState::Closed)
    }

    /// Takes datagrams again: the bytes of the previous one may change from now on. Tickets given
    /// out earlier are valid again. A datagram that has arrived and has not been received stays,
    /// and so does a receiver that is ready already.
    ///
    /// A long datagram that was sent too early may be half refused by now. The rest of it is
    /// refused as well.
    pub fn ready(&mut self) -> Result<(), ReceiveError> {
        self.forget_replies();
        let mut node = self.seat.manager().lock();
        if self.consumer.is_ready() {
            return Ok(());
        }
        node.reopen_entry(self.slot, ENTRY).map_err(misuse)?;
        self.is_open = true;
        self.serial += 1;
        Ok(())
    }

    /// [`ready`](Self::ready) with a new key. Every ticket given out is worthless from now on; a
    /// datagram that has half arrived is dropped, and the rest of it is refused. Later senders need
    /// the new [`reply_ticket`](Self::reply_ticket), or have to be grown anew. A datagram that was
    /// not received is lost.
    pub fn ready_anew(&mut self) -> Result<(), ReceiveError> {
        self.seat.with(|node, senders| {
            let bytes = node.area(self.area).map_err(misuse)?.len() as u64;
            node.arm(self.slot, ENTRY, Some(0..bytes)).map_err(misuse)?;
            senders.ticket = node.ticket(self.slot, ENTRY).map_err(misuse)?;
            Ok::<(), ReceiveError>(())
        })?;
        while self.consumer.pop().is_some() {}
        self.is_open = true;
        self.serial += 1;
        Ok(())
    }

    /// The datagram, if one is there or comes in one turn.
    pub fn try_receive(&mut self) -> Result<Option<Datagram>, ReceiveError> {
        match self.receive(Some(Duration::ZERO)) {
            Err(ReceiveError::TimedOut) => Ok(None),
            received => received.map(Some),
        }
    }

    /// The datagram; waits at most `timeout`. Afterwards the receiver is not ready. On
    /// [`ReceiveError::Misbehaved`] no datagram was received, and the receiver is ready: a peer
    /// sent a datagram that makes no sense, and was disconnected.
    pub fn receive(&mut self, timeout: Option<Duration>) -> Result<Datagram, ReceiveError> {
        let Self { seat, queue, consumer, slot, area, serial, is_open, .. } = self;
        let (slot, area) = (*slot, *area);
        let found = seat.manager().wait_for(timeout, |node| {
            if let Some(notification) = node.take(*queue, consumer) {
                *is_open = false;
                return Look::Found(read(node, slot, area, notification.link, *serial));
            }
            // A message without the flag that notifies is ignored: an honest sender sets it.
            if *is_open && node.metadata(slot, ENTRY).is_ok_and(|e| e.state() == EntryState::Closed)
            {
                let _ = node.reopen_entry(slot, ENTRY);
            }
            Look::Nothing
        })?;
        found.map_err(|(link, why)| {
            if let Some(sender) = self.seat.manager().connection(link) {
                self.seat.expel(&sender, &why);
            }
            match self.ready() {
                Ok(()) => ReceiveError::Misbehaved(why),
                Err(e) => e,
            }
        })
    }

    /// Copies the bytes of the datagram that was received last, as many as fit into `to`; returns
    /// how many there were.
    pub fn read(&self, datagram: &Datagram, to: &mut [u8]) -> Result<usize, ReceiveError> {
        self.with_bytes(datagram, |bytes| {
            let n = bytes.len().min(to.len());
            to[..n].copy_from_slice(&bytes[..n]);
            n
        })
    }

    /// Shows the bytes of the datagram that was received last to `look`. No packet arrives
    /// meanwhile, in any thread; so it should be quick.
    pub fn with_bytes<R>(
        &self,
        datagram: &Datagram,
        look: impl FnOnce(&[u8]) -> R,
    ) -> Result<R, ReceiveError> {
        if datagram.serial != self.serial || self.is_open {
            let text = "the receiver was made ready since, and the datagram's bytes may be others";
            return Err(ReceiveError::Misuse(text.into()));
        }
        let node = self.seat.manager().lock();
        let area = node.area(self.area).map_err(misuse)?;
        let bytes = area.get(datagram.offset..datagram.offset.saturating_add(datagram.length));
        Ok(look(bytes.ok_or_else(|| misuse("the datagram is another receiver's"))?))
    }

    /// Answers a datagram with the ticket that came with it, only over the link over which it came;
    /// waits at most `timeout` for room. Does not tell whether the other end was ready.
    pub fn reply(
        &mut self,
        datagram: &Datagram,
        data: &[u8],
        timeout: Option<Duration>,
    ) -> Result<(), SendError> {
        let link = datagram.link;
        let connection =
            self.seat.manager().connection(link).ok_or(SendError::Ended(CloseReason::Closed))?;
        let Some(ticket) = datagram.reply else {
            return Err(SendError::NoReplyWanted);
        };
        self.forget_replies();
        let (_, rest) =
            self.replies.entry(link).or_insert((connection.clone(), DatagramRest(None)));
        let to = (self.seat.manager(), &*connection, ticket);
        let sent = send(to, rest, data, 0, None, timeout);
        self.forget_replies();
        sent
    }

    /// After [`SendError::CutOff`] of a reply: waits at most `timeout` until the rest of the reply
    /// on this datagram's link has left, and returns [`SendError::CutOff`] again if it has not.
    /// Otherwise returns at once. Without a flush, the rest leaves first in the next reply over the
    /// link, or never if the link ends.
    pub fn flush_reply(
        &mut self,
        datagram: &Datagram,
        timeout: Option<Duration>,
    ) -> Result<(), SendError> {
        let ended = SendError::Ended(CloseReason::Closed);
        let connection = self.seat.manager().connection(datagram.link).ok_or(ended)?;
        let Some((_, rest)) = self.replies.get_mut(&datagram.link) else { return Ok(()) };
        let flushed = rest.flush(self.seat.manager(), &connection, timeout);
        self.forget_replies();
        flushed
    }

    /// Drops the rests of replies that can no longer be sent.
    fn forget_replies(&mut self) {
        self.replies
            .retain(|_, (connection, rest)| rest.0.is_some() && connection.ended().is_none());
    }

    /// Senders that have a connection now.
    pub fn senders(&self) -> usize {
        self.seat.with(|_, senders| senders.here.len())
    }
}

seated!(DatagramReceiver, "a [`DatagramSender`]");

/// Reads the entry; on an error, returns the sender and the fault.
fn read(
    node: &Node,
    slot: SlotId,
    area: AreaId,
    link: LinkId,
    serial: u64,
) -> Result<Datagram, (LinkId, String)> {
    let says = |why: String| (link, why);
    let entry = node.metadata(slot, ENTRY).map_err(|e| says(e.to_string()))?;
    let size = node.area(area).map_err(|e| says(e.to_string()))?.len() as u64;
    let user = entry.user();
    let (place, ticket) = user
        .split_first_chunk::<PLACE_BYTES>()
        .ok_or_else(|| says(format!("a datagram with {} bytes of metadata", user.len())))?;
    let word = |i: usize| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&place[i..i + 8]);
        u64::from_le_bytes(bytes)
    };
    let (offset, length) = (word(0), word(8));
    if offset > size || length > size - offset {
        let text = format!("a datagram of {length} bytes at {offset} in an area of {size}");
        return Err(says(text));
    }
    let reply = match ticket {
        [] => None,
        bytes => {
            let ticket = Ticket::from_bytes(bytes).map_err(|e| says(e.to_string()))?;
            if node.peer(link).is_ok_and(|peer| peer.node != ticket.destination) {
                let text = "a reply ticket that leads to somebody else than its sender";
                return Err(says(text.into()));
            }
            Some(ticket)
        }
    };
    // Both are at most the size of an area in memory.
    let (offset, length) = (offset as usize, length as usize);
    Ok(Datagram { offset, length, reply, link, serial })
}

/// The rest of a datagram that a time limit cut off. The receiver counts packets, so it must follow,
/// or the entry never comes out at zero (Hamlyn 2.5); it goes on first in the next call.
struct DatagramRest(Option<(Unfinished, Vec<u8>)>);

impl DatagramRest {
    /// Waits at most `timeout` until it has left.
    fn flush(
        &mut self,
        manager: &Manager,
        connection: &Connection,
        timeout: Option<Duration>,
    ) -> Result<(), SendError> {
        let Some((unfinished, data)) = self.0.take() else { return Ok(()) };
        if let Some(reason) = connection.ended() {
            return Err(SendError::Ended(reason.clone()));
        }
        let sent = manager.send_rest(unfinished, &data, timeout);
        self.keep(sent, connection, || data)
    }

    /// Keeps a message that has left in part.
    fn keep(
        &mut self,
        sent: Result<(), NodeSendError>,
        connection: &Connection,
        data: impl FnOnce() -> Vec<u8>,
    ) -> Result<(), SendError> {
        match sent {
            Ok(()) => Ok(()),
            Err(NodeSendError::TimedOut { unfinished: Some(unfinished) }) => {
                self.0 = Some((*unfinished, data()));
                Err(SendError::CutOff)
            }
            Err(NodeSendError::TimedOut { unfinished: None }) => Err(SendError::TimedOut),
            Err(NodeSendError::LinkEnded(_) | NodeSendError::Unreachable(_)) => {
                let reason = connection.ended().cloned().unwrap_or(CloseReason::Closed);
                Err(SendError::Ended(reason))
            }
            Err(NodeSendError::Forked(e)) => Err(SendError::Forked(e)),
            Err(NodeSendError::Wait(e)) => Err(SendError::Wait(e)),
            Err(e) => Err(e.into()),
        }
    }
}

fn send(
    (manager, connection, ticket): (&Manager, &Connection, Ticket),
    rest: &mut DatagramRest,
    data: &[u8],
    offset: u64,
    reply: Option<&Ticket>,
    timeout: Option<Duration>,
) -> Result<(), SendError> {
    let (size, length) = (ticket.capacity(), data.len());
    if offset > size || length as u64 > size - offset {
        return Err(SendError::Outside { offset, length, size });
    }
    let began = Instant::now();
    match rest.flush(manager, connection, timeout) {
        // Of this datagram, nothing has left.
        Err(SendError::CutOff) => return Err(SendError::TimedOut),
        flushed => flushed?,
    }
    if let Some(reason) = connection.ended() {
        return Err(SendError::Ended(reason.clone()));
    }
    let at = Ticket { base: ticket.base + offset, ..ticket };
    let mut metadata = [0; METADATA_MAX];
    metadata[..8].copy_from_slice(&at.base.to_le_bytes());
    metadata[8..16].copy_from_slice(&(length as u64).to_le_bytes());
    let metadata = match reply {
        None => &metadata[..PLACE_BYTES],
        Some(reply) => {
            metadata[PLACE_BYTES..].copy_from_slice(&reply.to_bytes());
            &metadata[..]
        }
    };
    let left = timeout.map(|timeout| timeout.saturating_sub(began.elapsed()));
    let sent = manager.send_over(connection.link(), &at, data, metadata, left);
    rest.keep(sent, connection, || data.to_vec())
}

impl EndPoint for DatagramReceiver {
    fn is_ready_in(&self, _: &crate::node::Node) -> bool {
        self.consumer.is_ready()
    }

    fn manager(&self) -> &Manager {
        self.seat.manager()
    }
}

/// Sends datagrams. `Send`.
/// [`DatagramReceiver`] shows both ends.
pub struct DatagramSender {
    seat: Seat<()>,
    connection: Arc<Connection>,
    ticket: Ticket,
    rest: DatagramRest,
}

impl DatagramSender {
    fn to(
        manager: &Manager,
        connect: impl FnOnce(&Seat<()>, &[u8]) -> Result<(Arc<Connection>, Vec<u8>), GrowError>,
    ) -> Result<Self, GrowError> {
        let seat = manager.seat(Kind::DATAGRAM, ());
        let (connection, answer) = connect(&seat, &[])?;
        let ticket = message_ticket_from(&answer, connection.peer(), 0);
        let ticket = ticket.map_err(|_| GrowError::Answer("no ticket for a message"))?;
        Ok(Self { seat, connection, ticket, rest: DatagramRest(None) })
    }

    /// Bytes of the receiver's area.
    pub fn capacity(&self) -> u64 {
        self.ticket.capacity()
    }

    /// Sends `data` to the receiver's area at `offset`, and with it a ticket for the answer: from
    /// [`DatagramReceiver::reply_ticket`] of a receiver of the same manager. Of any length; waits
    /// at most `timeout` for room. Does not tell whether the receiver was ready.
    ///
    /// On an error nothing was sent, except for [`SendError::CutOff`].
    pub fn send(
        &mut self,
        data: &[u8],
        offset: u64,
        reply: Option<&Ticket>,
        timeout: Option<Duration>,
    ) -> Result<(), SendError> {
        let Self { seat, connection, ticket, rest } = self;
        if reply.is_some_and(|reply| reply.destination != seat.manager().id()) {
            return Err(SendError::ForeignTicket);
        }
        send((seat.manager(), &**connection, *ticket), rest, data, offset, reply, timeout)
    }

    /// [`send`](Self::send) without waiting: `false` if it would have to wait to begin, and then
    /// nothing was sent. The part of a long datagram for which the link had no room was copied, and
    /// leaves in later calls: call [`try_flush`](Self::try_flush) until that returns `true`.
    ///
    /// ```
    /// # let dir = std::env::temp_dir().join(format!("hamlyn-doc-try-datagram-{}", std::process::id()));
    /// use hamlyn::protocol::{DatagramReceiver, DatagramSender, Manager};
    /// # use std::time::Duration;
    ///
    /// # let limit = Some(Duration::from_secs(10));
    /// # let config = hamlyn::Config::from_env()?.dir(&dir);
    /// # let manager = Manager::with_config(config.clone())?;
    /// # manager.start_progress()?;
    /// let mut receiver = DatagramReceiver::new(&manager, 4096)?;
    /// receiver.set_admission(|peer| peer.is_proved.then_some(()).ok_or("who are you?".into()));
    /// let other = Manager::with_config(config)?;
    /// let mut sender = DatagramSender::grow(&other, &receiver.seed()?, limit)?;
    /// receiver.stop_serving(); // No more senders.
    /// let answers = DatagramReceiver::new(&other, 64)?;
    /// assert!(sender.try_send(b"question", 0, Some(&answers.reply_ticket()))?);
    /// manager.wait_any(&[&receiver], limit)?;
    /// assert_eq!((sender.capacity(), receiver.senders()), (4096, 1));
    /// assert!(sender.try_flush()?); // Only a long one leaves in parts.
    /// let datagram = receiver.try_receive()?.expect("it has come");
    /// let mut question = [0; 8];
    /// assert_eq!(receiver.read(&datagram, &mut question)?, 8);
    /// receiver.reply(&datagram, b"answer", limit)?;
    /// receiver.flush_reply(&datagram, limit)?; // Only after `SendError::CutOff`.
    /// // Holders of an old ticket need a new one from now on.
    /// receiver.ready_anew()?;
    /// assert!(receiver.is_ready_for_one());
    /// println!("{} {}", sender.explain(), receiver.connections()[0].explain(&manager));
    /// sender.flush(limit)?;
    /// assert!(sender.connection().ended().is_none());
    /// # std::fs::remove_dir_all(&dir).ok();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn try_send(
        &mut self,
        data: &[u8],
        offset: u64,
        reply: Option<&Ticket>,
    ) -> Result<bool, SendError> {
        match self.send(data, offset, reply, Some(Duration::ZERO)) {
            Err(SendError::CutOff) => Ok(true),
            Err(SendError::TimedOut) => Ok(false),
            sent => sent.map(|()| true),
        }
    }

    /// [`flush`](Self::flush) without waiting; returns whether everything has left.
    pub fn try_flush(&mut self) -> Result<bool, SendError> {
        match self.flush(Some(Duration::ZERO)) {
            Err(SendError::CutOff) => Ok(false),
            flushed => flushed.map(|()| true),
        }
    }

    /// After [`SendError::CutOff`]: waits at most `timeout` until the rest of that datagram has
    /// left, and returns [`SendError::CutOff`] again if it has not. Otherwise returns at once.
    pub fn flush(&mut self, timeout: Option<Duration>) -> Result<(), SendError> {
        self.rest.flush(self.seat.manager(), &self.connection, timeout)
    }
}

grown_by_seat!(DatagramSender, "datagrams", "datagrams: one message each");

fn misuse(e: impl ToString) -> ReceiveError {
    ReceiveError::Misuse(e.to_string())
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn a_reply_that_was_cut_off_is_forgotten_when_its_receiver_has_gone() {
        let dir = std::env::temp_dir().join(format!("hamlyn-cutoff-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let manager = || {
            let mut config = crate::config::Config::from_env().unwrap().dir(&dir);
            config.bulk_ring_bytes = 0;
            Manager::with_config(config).unwrap()
        };
        let (there, here) = (manager(), manager());
        there.start_progress().unwrap();
        let limit = Some(Duration::from_secs(20));
        let mut receiver = DatagramReceiver::new(&there, 64).unwrap();
        let seed = receiver.seed().unwrap();
        let answers = DatagramReceiver::new(&here, 1 << 20).unwrap();
        for _ in 0..3 {
            let mut sender = DatagramSender::grow(&here, &seed, limit).unwrap();
            sender.send(b"question", 0, Some(&answers.reply_ticket()), limit).unwrap();
            let datagram = receiver.receive(limit).unwrap();
            // No thread polls here.
            let short = Some(Duration::from_millis(20));
            let cut_off = receiver.reply(&datagram, &[1; 1 << 20], short);
            assert!(matches!(cut_off, Err(SendError::CutOff)), "{cut_off:?}");
            assert_eq!(receiver.replies.len(), 1);
            drop(sender);
            let start = Instant::now();
            while receiver.senders() > 0 {
                assert!(start.elapsed() < Duration::from_secs(20), "it never left");
                std::thread::yield_now();
            }
            receiver.ready().unwrap();
            assert!(receiver.replies.is_empty());
        }
        drop((receiver, answers, there, here));
        std::fs::remove_dir_all(&dir).ok();
    }
}
