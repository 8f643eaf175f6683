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

use super::ends::{connected, grown, offered};
use super::manager::{OfferId, Offering, Protocol, Target, set_up};
use super::outgoing::{Message, Outgoing};
use super::tickets::message_ticket_from;
use super::{Connection, EndPoint, GrowError, Kind, Manager, ReceiveError, SendError};
use crate::control::{Peer, RequestId};
use crate::interface::notification::Consumer;
use crate::interface::{AreaId, EntryState, LinkId, Mode, QueueId, SlotConfig, SlotId};
use crate::node::{Look, Node};
use crate::wire::{METADATA_MAX, MetadataIndex, TICKET_BYTES, Ticket};
use core::time::Duration;
use std::boxed::Box;
use std::collections::HashMap;
use std::format;
use std::string::{String, ToString};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
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

/// The state that the receiver's end point and its offer share.
#[derive(Debug)]
struct Shared {
    ticket: Ticket,
    senders: HashMap<LinkId, Arc<Connection>>,
}

type Senders = Arc<Mutex<Shared>>;

// Always inside the node's lock, if both are held.
fn lock(shared: &Senders) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

struct DatagramOffer(Senders);

impl Protocol for DatagramOffer {
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
        Ok(lock(&self.0).ticket.to_bytes().to_vec())
    }

    fn withdrawn(&mut self, _: &mut Node, _: RequestId) {}

    fn joined(&mut self, _: &mut Node, _: RequestId, connection: &Arc<Connection>) {
        lock(&self.0).senders.insert(connection.link(), connection.clone());
    }

    fn left(&mut self, _: &mut Node, connection: &Connection) {
        lock(&self.0).senders.remove(&connection.link());
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
    manager: Manager,
    offer: OfferId,
    consumer: Consumer,
    area: AreaId,
    queue: QueueId,
    slot: SlotId,
    shared: Senders,
    /// Whether the entry was left open.
    is_open: bool,
    serial: u64,
    /// Replies that a time limit cut off.
    replies: HashMap<LinkId, (Arc<Connection>, Outgoing)>,
}

impl DatagramReceiver {
    /// A receiver with an area of `bytes` zero bytes, which is ready.
    pub fn new(manager: &Manager, bytes: usize) -> Result<Self, GrowError> {
        let (area, queue, slot, consumer, ticket) = {
            let mut node = manager.lock();
            let area = node.message_area(bytes).map_err(set_up)?;
            let queue = node.notification_queue(1).map_err(|e| {
                let _ = node.remove_area(area);
                set_up(e)
            })?;
            let made = (|| {
                let consumer = node.take_consumer(queue).map_err(set_up)?;
                let config = SlotConfig::new(area, queue).mode(Mode::ParanoidOneShot);
                let slot = node.slot(config).map_err(set_up)?;
                let armed = node
                    .arm(slot, ENTRY, Some(0..bytes as u64))
                    .and_then(|()| node.share_entry(slot, ENTRY));
                let ticket = armed.and_then(|()| node.ticket(slot, ENTRY)).map_err(|e| {
                    let _ = node.remove_slot(slot);
                    set_up(e)
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
        let shared = Arc::new(Mutex::new(Shared { ticket, senders: HashMap::new() }));
        let offer =
            manager.offer(Kind::DATAGRAM, Offering::Other(Box::new(DatagramOffer(shared.clone()))));
        Ok(Self {
            manager: manager.clone(),
            offer,
            consumer,
            area,
            queue,
            slot,
            shared,
            is_open: true,
            serial: 0,
            replies: HashMap::new(),
        })
    }

    offered!(many "a [`DatagramSender`]");

    /// The right to send one datagram to this receiver whenever it is ready; pass it as the reply
    /// ticket of a datagram.
    pub fn reply_ticket(&self) -> Ticket {
        lock(&self.shared).ticket
    }

    /// Whether the entry takes a datagram now: no datagram has arrived since
    /// [`ready`](Self::ready).
    pub fn is_ready_for_one(&self) -> bool {
        let node = self.manager.lock();
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
        let mut node = self.manager.lock();
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
        let mut node = self.manager.lock();
        let bytes = node.area(self.area).map_err(misuse)?.len() as u64;
        node.arm(self.slot, ENTRY, Some(0..bytes)).map_err(misuse)?;
        lock(&self.shared).ticket = node.ticket(self.slot, ENTRY).map_err(misuse)?;
        while self.consumer.pop().is_some() {}
        self.is_open = true;
        self.serial += 1;
        Ok(())
    }

    /// The datagram, if one is there or comes in one turn.
    pub fn try_receive(&mut self) -> Result<Option<Datagram>, ReceiveError> {
        ReceiveError::unless_timed_out(self.receive(Some(Duration::ZERO)))
    }

    /// The datagram; waits at most `timeout`. Afterwards the receiver is not ready. On
    /// [`ReceiveError::Misbehaved`] no datagram was received, and the receiver is ready: a peer
    /// sent a datagram that makes no sense, and was disconnected.
    pub fn receive(&mut self, timeout: Option<Duration>) -> Result<Datagram, ReceiveError> {
        let Self { manager, queue, consumer, slot, area, serial, is_open, .. } = self;
        let (slot, area) = (*slot, *area);
        let found = manager.shared.wait_until(timeout, |node, _| {
            if let Some(notification) = node.take_past(*queue, consumer) {
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
            self.manager.expel(link, &why);
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
        let node = self.manager.lock();
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
        let Some(connection) = self.manager.connection(link) else {
            return Err(SendError::Ended(crate::node::CloseReason::Closed));
        };
        let Some(ticket) = datagram.reply else {
            return Err(SendError::NoReplyWanted);
        };
        self.forget_replies();
        let (_, outgoing) =
            self.replies.entry(link).or_insert((connection.clone(), <_>::default()));
        let sent = send(&self.manager, &connection, outgoing, ticket, data, 0, None, timeout);
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
        let Some(connection) = self.manager.connection(datagram.link) else {
            return Err(SendError::Ended(crate::node::CloseReason::Closed));
        };
        let Some((_, outgoing)) = self.replies.get_mut(&datagram.link) else { return Ok(()) };
        let flushed = outgoing.flush(&self.manager, &connection, timeout);
        self.forget_replies();
        flushed
    }

    /// Drops the rests of replies that can no longer be sent.
    fn forget_replies(&mut self) {
        self.replies.retain(|_, (connection, outgoing)| {
            !outgoing.is_idle() && connection.ended().is_none()
        });
    }

    /// Senders that have a connection now.
    pub fn senders(&self) -> usize {
        lock(&self.shared).senders.len()
    }
}

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

#[allow(clippy::too_many_arguments)]
fn send(
    manager: &Manager,
    connection: &Connection,
    outgoing: &mut Outgoing,
    ticket: Ticket,
    data: &[u8],
    offset: u64,
    reply: Option<&Ticket>,
    timeout: Option<Duration>,
) -> Result<(), SendError> {
    let (size, length) = (ticket.capacity(), data.len());
    if offset > size || length as u64 > size - offset {
        return Err(SendError::Outside { offset, length, size });
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
    outgoing.send(manager, connection, Message::new(at, data, metadata), timeout)
}

impl EndPoint for DatagramReceiver {
    fn is_ready_in(&self, _: &crate::node::Node) -> bool {
        self.consumer.is_ready()
    }

    fn manager(&self) -> &Manager {
        &self.manager
    }
}

impl Drop for DatagramReceiver {
    fn drop(&mut self) {
        let Some(_) = self.manager.withdraw(self.offer) else { return };
        let mut node = self.manager.lock();
        let _ = node.remove_slot(self.slot);
        let _ = node.remove_queue(self.queue);
        let _ = node.remove_area(self.area);
    }
}

/// Sends datagrams. `Send`.
/// [`DatagramReceiver`] shows both ends.
pub struct DatagramSender {
    manager: Manager,
    connection: Arc<Connection>,
    ticket: Ticket,
    outgoing: Outgoing,
}

impl DatagramSender {
    grown!("a sender", "a receiver");

    fn to(
        manager: &Manager,
        target: Target<'_>,
        timeout: Option<Duration>,
    ) -> Result<Self, GrowError> {
        let (connection, ticket) = manager.grow(
            target,
            Kind::DATAGRAM,
            &[],
            timeout,
            "no ticket for a message",
            |connection, answer| message_ticket_from(answer, connection.peer(), 0).ok(),
        )?;
        Ok(Self { manager: manager.clone(), connection, ticket, outgoing: Outgoing::default() })
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
        let Self { manager, connection, ticket, outgoing } = self;
        if reply.is_some_and(|reply| reply.destination != manager.id()) {
            return Err(SendError::ForeignTicket);
        }
        send(manager, connection, outgoing, *ticket, data, offset, reply, timeout)
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
            sent => SendError::unless_timed_out(sent),
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
        self.outgoing.flush(&self.manager, &self.connection, timeout)
    }

    connected!("datagrams", |_| "datagrams: one message each");
}

impl Drop for DatagramSender {
    fn drop(&mut self) {
        self.manager.leave(&self.connection, |_| {});
    }
}

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
