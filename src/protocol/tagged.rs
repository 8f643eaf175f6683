//! Tagged remote write (Hamlyn 3.3): data to an offset, and an integer tag to a queue.
//!
//! ```text
//!   send(offset, data, tag)   ---- one fast packet: the tag is its word ---->   area, tag queue
//!   credit word               <--- how many tags have been taken ------------   get_tag
//! ```
//! One packet a message, so that up to 16 bytes are one cache line from end to end. Each sender has
//! a slot of its own over the receiver's area, with its own key and its own share of the tag queue:
//! one sender uses up no other's share. Messages may arrive in another order than they were sent,
//! though a shared-memory link keeps it.
//!
//! The area's bytes change whenever a sender writes, so they are copied out, never lent.

use super::credit::{CreditReturn, CreditWord};
use super::seated::{grown_by_seat, seated};
use super::tickets::fast_ticket_from;
use super::{Connection, EndPoint, GrowError, Kind, Manager, ReceiveError, SendError};
use super::{Protocol, Seat};
use crate::control::{Peer, RequestId};
use crate::interface::notification::Consumer;
use crate::interface::{AreaId, LinkId, Notification, QueueId, SlotConfig, SlotId};
use crate::node::{CloseReason, Look, Node, NodeSendError, PreparedTicket};
use crate::wire::{SlotIndex, TICKET_BYTES, Ticket};
use core::time::Duration;
use std::collections::{HashMap, HashSet, VecDeque};
use std::format;
use std::string::{String, ToString};
use std::sync::Arc;
use std::vec::Vec;

/// Configuration of a [`TaggedReceiver`].
#[derive(Clone, Debug)]
pub struct TaggedConfig {
    /// Bytes of the area that senders write into.
    pub bytes: usize,
    /// Tags that each sender may have in the queue. 256 unless set.
    pub tags: u32,
    /// Senders at one time. 16 unless set.
    pub senders_max: u32,
}

impl TaggedConfig {
    /// An area of `bytes` bytes, 256 tags for each of up to 16 senders.
    pub fn new(bytes: usize) -> Self {
        Self { bytes, tags: 256, senders_max: 16 }
    }
}

/// A message has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag {
    /// The sender's number.
    pub tag: u32,
    /// The sender's link; see [`Manager::lock`] and [`Node::peer`] for the sender's identity.
    pub link: LinkId,
}

/// One sender, as its receiver knows it.
#[derive(Debug)]
struct Sender {
    peer: Peer,
    slot: SlotId,
    credit: Ticket,
    link: Option<LinkId>,
}

/// The receiver's state at its manager.
#[derive(Debug)]
struct TaggedSenders {
    area: AreaId,
    queue: QueueId,
    tags: u32,
    senders_max: u32,
    here: HashMap<SlotIndex, Sender>,
    requests: HashMap<RequestId, SlotIndex>,
}

impl Protocol for TaggedSenders {
    fn check_place(&self, peer: &Peer, _: &[u8]) -> Result<(), String> {
        let holders = self.here.values().map(|sender| &sender.peer);
        peer.check_place(holders, self.senders_max as usize, "senders", "senders_max")
    }

    fn admit(
        &mut self,
        node: &mut Node,
        request: RequestId,
        peer: &Peer,
        body: &[u8],
    ) -> Result<Vec<u8>, String> {
        let credit = fast_ticket_from(body, peer)?;
        let config = SlotConfig::new(self.area, self.queue).credit(self.tags);
        let slot = node.slot(config).map_err(|e| e.to_string())?;
        let ticket = node.fast_ticket(slot).map_err(|e| e.to_string())?;
        let mut answer = ticket.to_bytes().to_vec();
        answer.extend_from_slice(&self.tags.to_le_bytes());
        self.requests.insert(request, slot.index());
        let sender = Sender { peer: peer.clone(), slot, credit, link: None };
        self.here.insert(slot.index(), sender);
        Ok(answer)
    }

    fn withdrawn(&mut self, node: &mut Node, request: RequestId) {
        if let Some(index) = self.requests.remove(&request)
            && let Some(sender) = self.here.remove(&index)
        {
            let _ = node.remove_slot(sender.slot);
        }
    }

    fn joined(&mut self, _: &mut Node, request: RequestId, connection: &Arc<Connection>) {
        if let Some(index) = self.requests.remove(&request)
            && let Some(sender) = self.here.get_mut(&index)
        {
            sender.link = Some(connection.link());
        }
    }

    fn left(&mut self, node: &mut Node, connection: &Connection) {
        // Its tags that wait stay in the queue; no more will come.
        self.here.retain(|_, sender| {
            let leaves = sender.link == Some(connection.link());
            if leaves {
                let _ = node.remove_slot(sender.slot);
            }
            !leaves
        });
    }

    fn close(&mut self, node: &mut Node) {
        for sender in self.here.values() {
            let _ = node.remove_slot(sender.slot);
        }
        let _ = node.remove_queue(self.queue);
        let _ = node.remove_area(self.area);
    }
}

/// Tags that `get_specific_tag` has passed over: at most as many as all senders at one time may
/// have in the queue. A sender that connects again and again must neither fill the receiver with
/// tags that are never taken, nor keep others from connecting.
#[derive(Default)]
struct PassedTags {
    tags: VecDeque<Notification>,
    /// The count of tags of each link; a link belongs to one sender alone.
    of_link: HashMap<LinkId, u32>,
    dropped: u64,
}

impl PassedTags {
    /// Keeps a tag for later; an error is the sender's violation.
    fn keep(&mut self, at: &TaggedSenders, notification: Notification) -> Result<(), String> {
        let (slot, link) = (notification.slot.index(), notification.link);
        // The link of a sender that has gone is no longer known.
        if at.here.get(&slot).is_some_and(|sender| sender.link != Some(link)) {
            return Err("it sent a tag with a ticket of another sender".into());
        }
        let tags = at.tags;
        // An honest sender never has more tags than its credit.
        if self.of_link.get(&link).is_some_and(|count| *count >= tags) {
            return Err(format!("it sent more than {tags} tags, which is its credit"));
        }
        let most = tags as usize * at.senders_max as usize;
        if self.tags.len() >= most && !self.drop_gone(at) {
            // The kept tags belong to connected senders, so this tag's sender has gone.
            self.dropped += 1;
            return Ok(());
        }
        *self.of_link.entry(link).or_default() += 1;
        self.tags.push_back(notification);
        Ok(())
    }

    /// Drops all tags of the gone sender whose tag is the oldest.
    fn drop_gone(&mut self, at: &TaggedSenders) -> bool {
        let here: HashSet<LinkId> = at.here.values().filter_map(|s| s.link).collect();
        let Some(gone) = self.tags.iter().map(|kept| kept.link).find(|link| !here.contains(link))
        else {
            return false;
        };
        self.tags.retain(|kept| kept.link != gone);
        self.dropped += self.of_link.remove(&gone).unwrap_or(0) as u64;
        true
    }

    #[cold]
    fn take(&mut self, i: usize) -> Option<Notification> {
        let taken = self.tags.remove(i)?;
        if let Some(count) = self.of_link.get_mut(&taken.link) {
            *count -= 1;
            if *count == 0 {
                self.of_link.remove(&taken.link);
            }
        }
        Some(taken)
    }
}

/// Receives tagged writes. `Send`: one thread at a time takes tags, without a lock when one waits.
///
/// ```
/// # let dir = std::env::temp_dir().join(format!("hamlyn-doc-tagged-{}", std::process::id()));
/// # let config = hamlyn::Config::from_env()?.dir(&dir);
/// use hamlyn::protocol::{Manager, Seed, TaggedConfig, TaggedReceiver, TaggedSender};
/// use std::time::Duration;
///
/// let limit = Some(Duration::from_secs(10));
/// let manager = Manager::with_config(config.clone())?;
/// let mut receiver = TaggedReceiver::new(&manager, TaggedConfig::new(4096))?;
/// // For the sender, in a message, a file or on a command line.
/// let seed = receiver.seed()?.to_bytes();
/// manager.start_progress()?;
///
/// // Usually another process.
/// let other = Manager::with_config(config)?;
/// let mut sender = TaggedSender::grow(&other, &Seed::from_bytes(&seed)?, limit)?;
/// sender.send(0, b"left", 1, limit)?;
/// sender.send(64, b"right", 2, limit)?;
///
/// // Tags are taken in any order; the data is at the sender's offset.
/// receiver.get_specific_tag(2, limit)?;
/// let mut text = [0; 5];
/// receiver.read(64, &mut text)?;
/// assert_eq!(&text, b"right");
/// assert_eq!(receiver.get_tag(limit)?.tag, 1);
/// # std::fs::remove_dir_all(&dir).ok();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct TaggedReceiver {
    seat: Seat<TaggedSenders>,
    area: AreaId,
    queue: QueueId,
    consumer: Consumer,
    /// Tags of each sender.
    tags: u32,
    kept: PassedTags,
    returns: HashMap<SlotIndex, CreditReturn>,
    /// The sender whose tag came last.
    last: Option<(SlotIndex, CreditReturn)>,
    /// Credit could not be returned to a sender, because its link was full.
    untold: bool,
}

/// Returns credit to each sender for which it is due; returns whether all have it.
#[cold]
fn tell_all(
    last: &mut Option<(SlotIndex, CreditReturn)>,
    returns: &mut HashMap<SlotIndex, CreditReturn>,
    node: &mut Node,
    whom: fn(&CreditReturn) -> bool,
) -> bool {
    let last = last.iter_mut().map(|(_, credit)| credit);
    let due = last.chain(returns.values_mut()).filter(|credit| whom(credit));
    // Tries each, even if the one before failed.
    due.map(|credit| credit.tell(node)).filter(|told| !told).count() == 0
}

impl TaggedReceiver {
    /// A receiver with an area of zero bytes.
    pub fn new(manager: &Manager, config: TaggedConfig) -> Result<Self, GrowError> {
        let entries = config.tags.saturating_mul(config.senders_max);
        let set_up = |e: &dyn ToString| GrowError::SetUp(e.to_string());
        let made = {
            let mut node = manager.lock();
            let area = node.message_area(config.bytes).map_err(|e| set_up(&e))?;
            let queue = node.notification_queue(entries).map_err(|e| set_up(&e));
            let consumer = queue.and_then(|queue| {
                let consumer = node.take_consumer(queue).map_err(|e| set_up(&e))?;
                Ok((area, queue, consumer))
            });
            if consumer.is_err() {
                let _ = node.remove_area(area);
            }
            consumer?
        };
        let (area, queue, consumer) = made;
        let state = TaggedSenders {
            area,
            queue,
            tags: config.tags,
            senders_max: config.senders_max,
            here: HashMap::new(),
            requests: HashMap::new(),
        };
        Ok(Self {
            seat: manager.seat(Kind::TAGGED, state),
            area,
            queue,
            consumer,
            tags: config.tags,
            kept: PassedTags::default(),
            returns: HashMap::new(),
            last: None,
            untold: false,
        })
    }

    /// The next tag, if one is there or comes in one turn.
    ///
    /// ```
    /// # let dir = std::env::temp_dir().join(format!("hamlyn-doc-try-tagged-{}", std::process::id()));
    /// use hamlyn::protocol::{Manager, TaggedConfig, TaggedReceiver, TaggedSender};
    /// # use std::time::Duration;
    ///
    /// # let limit = Some(Duration::from_secs(10));
    /// # let config = hamlyn::Config::from_env()?.dir(&dir);
    /// # let manager = Manager::with_config(config.clone())?;
    /// # manager.start_progress()?;
    /// let mut receiver = TaggedReceiver::new(&manager, TaggedConfig::new(4096))?;
    /// let other = Manager::with_config(config)?;
    /// let mut sender = TaggedSender::grow(&other, &receiver.seed()?, limit)?;
    /// receiver.stop_serving(); // No more senders.
    /// assert!(sender.capacity() == 4096 && sender.bytes_max() > 0);
    /// assert!(sender.try_send(8, b"now", 3)?);
    /// manager.wait_any(&[&receiver], limit)?;
    /// assert_eq!(receiver.try_get_tag()?.map(|tag| tag.tag), Some(3));
    /// assert!(receiver.with_bytes(|area| &area[8..11] == b"now")?);
    /// assert_eq!((receiver.senders(), receiver.dropped()), (1, 0));
    /// assert_eq!(receiver.connections()[0].peer().node, other.id());
    /// assert!(sender.connection().ended().is_none());
    /// # std::fs::remove_dir_all(&dir).ok();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn try_get_tag(&mut self) -> Result<Option<Tag>, ReceiveError> {
        if let Some(notification) = self.take_at_once() {
            return Ok(Some(self.hand_out(notification)));
        }
        self.seat.manager().poll()?;
        if self.untold {
            let Self { last, returns, .. } = self;
            let node = &mut self.seat.manager().lock();
            self.untold = !tell_all(last, returns, node, CreditReturn::is_due);
        }
        Ok(self.next().map(|notification| self.hand_out(notification)))
    }

    /// The next tag, in the order of arrival; waits at most `timeout`. The data that belongs to it
    /// lies in the area by then.
    #[inline]
    pub fn get_tag(&mut self, timeout: Option<Duration>) -> Result<Tag, ReceiveError> {
        match self.take_at_once() {
            Some(notification) => Ok(self.hand_out(notification)),
            None => self.wait_for_tag(timeout),
        }
    }

    /// A tag that is there already, or comes straight from a ring.
    #[inline]
    fn take_at_once(&mut self) -> Option<Notification> {
        if !self.kept.tags.is_empty() {
            return self.kept.take(0);
        }
        let Self { seat, queue, consumer, .. } = self;
        seat.manager().take(*queue, consumer)
    }

    #[inline(never)]
    fn wait_for_tag(&mut self, timeout: Option<Duration>) -> Result<Tag, ReceiveError> {
        let Self { seat, queue, consumer, last, returns, untold, .. } = self;
        let found = seat.manager().wait_for(timeout, |node| match node.take(*queue, consumer) {
            Some(notification) => Look::Found(notification),
            None => {
                if *untold {
                    *untold = !tell_all(last, returns, node, CreditReturn::is_due);
                }
                Look::Nothing
            }
        })?;
        Ok(self.hand_out(found))
    }

    /// The next message with this tag; others that come meanwhile are kept for later calls, in
    /// their order. At most `tags` times `senders_max` are kept: beyond that, those of senders that
    /// have gone are dropped, and [counted](Self::dropped).
    pub fn get_specific_tag(
        &mut self,
        tag: u32,
        timeout: Option<Duration>,
    ) -> Result<Tag, ReceiveError> {
        if let Some(i) = self.kept.tags.iter().position(|kept| kept.word == tag)
            && let Some(notification) = self.kept.take(i)
        {
            return Ok(self.hand_out(notification));
        }
        let Self { seat, consumer, kept, last, returns, untold, .. } = self;
        // With kept tags, a sender may have no credit left except the part that it has not yet got
        // back.
        let mut owes = true;
        let found = seat.wait_for(timeout, |node, at| {
            if *untold {
                *untold = !tell_all(last, returns, node, CreditReturn::is_due);
            }
            while let Some(notification) = consumer.pop() {
                if notification.word == tag {
                    return Look::Found(Ok(notification));
                }
                if let Err(why) = kept.keep(at, notification) {
                    return Look::Found(Err((notification.link, why)));
                }
            }
            if !owes || kept.tags.is_empty() {
                return Look::Nothing;
            }
            owes = !tell_all(last, returns, node, CreditReturn::is_untold);
            let mut credits = last.iter().map(|(_, credit)| credit).chain(returns.values());
            match credits.find(|credit| credit.is_untold()) {
                // Its sender may wait for that, and then it sends nothing.
                Some(credit) => Look::Room(credit.link),
                None => Look::Nothing,
            }
        })?;
        match found {
            Ok(notification) => Ok(self.hand_out(notification)),
            Err((link, why)) => {
                if let Some(sender) = self.seat.manager().connection(link) {
                    self.seat.expel(&sender, &why);
                }
                Err(ReceiveError::Misbehaved(why))
            }
        }
    }

    /// Tags that [`get_specific_tag`](Self::get_specific_tag) had passed over and that were
    /// dropped: their senders had gone, and there was no room for tags of others.
    pub fn dropped(&self) -> u64 {
        self.kept.dropped
    }

    #[inline]
    fn next(&mut self) -> Option<Notification> {
        if !self.kept.tags.is_empty() {
            return self.kept.take(0);
        }
        self.consumer.pop()
    }

    /// Counts a tag as taken, and returns credit to its sender when it is due.
    #[inline]
    fn hand_out(&mut self, notification: Notification) -> Tag {
        match &mut self.last {
            // A slot's index is used again for another sender, over another link.
            Some((slot, credit))
                if *slot == notification.slot.index() && credit.link == notification.link =>
            {
                credit.consumed += 1;
                if credit.is_due() {
                    self.untold |= !credit.tell(&mut self.seat.manager().lock());
                }
            }
            _ => self.hand_out_of_another(notification),
        }
        Tag { tag: notification.word, link: notification.link }
    }

    #[cold]
    fn hand_out_of_another(&mut self, notification: Notification) {
        let (slot, link) = (notification.slot.index(), notification.link);
        let known = self.returns.get(&slot).is_some_and(|known| known.link == link);
        let credit = if known { self.returns.remove(&slot) } else { self.credit_of(slot, link) };
        // A sender that has gone gets no credit; its slot's index may belong to another by now,
        // whose count must stay.
        let Some(mut credit) = credit else { return };
        if let Some((slot, credit)) = self.last.take() {
            self.returns.insert(slot, credit);
        }
        credit.consumed += 1;
        if credit.is_due() {
            self.untold |= !credit.tell(&mut self.seat.manager().lock());
        }
        self.last = Some((slot, credit));
    }

    /// The count of a sender whose first tag this is, unless `link` is another's.
    fn credit_of(&self, slot: SlotIndex, link: LinkId) -> Option<CreditReturn> {
        self.seat.with(|_, at| {
            let sender = at.here.get(&slot)?;
            // Its tag may be here before the manager has heard of its link.
            let is_its_own = sender.link.is_none_or(|of_sender| of_sender == link);
            is_its_own.then(|| CreditReturn::new(sender.credit, link, self.tags as u64 / 2))
        })
    }

    /// Copies bytes out of the area, from `offset` on.
    pub fn read(&self, offset: usize, to: &mut [u8]) -> Result<(), ReceiveError> {
        self.with_bytes(|bytes| {
            let from = offset.checked_add(to.len()).and_then(|end| bytes.get(offset..end));
            match from {
                Some(from) => {
                    to.copy_from_slice(from);
                    Ok(())
                }
                None => {
                    let (length, size) = (to.len(), bytes.len());
                    let text = format!(
                        "{length} bytes from {offset} on are not inside the area's 0..{size}"
                    );
                    Err(ReceiveError::Misuse(text))
                }
            }
        })?
    }

    /// Shows the area to `look`. No packet arrives meanwhile, in any thread; so it should be quick.
    pub fn with_bytes<R>(&self, look: impl FnOnce(&[u8]) -> R) -> Result<R, ReceiveError> {
        let node = self.seat.manager().lock();
        let bytes = node.area(self.area).map_err(|e| ReceiveError::Misuse(e.to_string()))?;
        Ok(look(bytes))
    }

    /// Senders that have a connection now.
    pub fn senders(&self) -> usize {
        self.seat.with(|_, at| at.here.values().filter(|sender| sender.link.is_some()).count())
    }
}

seated!(TaggedReceiver, "a [`TaggedSender`]");

impl EndPoint for TaggedReceiver {
    fn is_ready_in(&self, _: &Node) -> bool {
        !self.kept.tags.is_empty() || self.consumer.is_ready()
    }

    fn manager(&self) -> &Manager {
        self.seat.manager()
    }
}

/// A sender's state at its manager: the count of tags that have been taken.
impl Protocol for CreditWord {
    fn close(&mut self, node: &mut Node) {
        self.remove(node);
    }
}

/// Sends tagged writes. `Send`.
/// [`TaggedReceiver`] shows both ends.
pub struct TaggedSender {
    seat: Seat<CreditWord>,
    connection: Arc<Connection>,
    ticket: PreparedTicket,
    tags: u64,
    sent: u64,
    acknowledged: u64,
    bytes_max: usize,
}

impl TaggedSender {
    fn to(
        manager: &Manager,
        connect: impl FnOnce(&Seat<CreditWord>, &[u8]) -> Result<(Arc<Connection>, Vec<u8>), GrowError>,
    ) -> Result<Self, GrowError> {
        let (credit, ticket) = CreditWord::new(&mut manager.lock()).map_err(GrowError::SetUp)?;
        let seat = manager.seat(Kind::TAGGED, credit);
        let (connection, answer) = connect(&seat, &ticket.to_bytes())?;
        let read = || {
            let (ticket, tags) = answer.split_at_checked(TICKET_BYTES)?;
            let ticket = fast_ticket_from(ticket, connection.peer()).ok()?;
            let tags = u32::from_le_bytes(tags.try_into().ok()?);
            (tags > 0).then_some((ticket, tags))
        };
        let (ticket, tags) = read().ok_or(GrowError::Answer("no ticket and number of tags"))?;
        Ok(Self {
            bytes_max: manager.lock().fast_bytes_max(connection.link()).unwrap_or(0),
            ticket: PreparedTicket::new(&ticket, connection.link()),
            seat,
            connection,
            tags: tags as u64,
            sent: 0,
            acknowledged: 0,
        })
    }

    /// Most bytes of one write: those of a packet.
    pub fn bytes_max(&self) -> usize {
        self.bytes_max
    }

    /// Bytes of the receiver's area.
    pub fn capacity(&self) -> u64 {
        self.ticket.ticket().capacity()
    }

    /// Writes `data` to the receiver's area at `offset` and `tag` to its queue, waiting at most
    /// `timeout` for room and for the receiver to take earlier tags. On an error nothing was sent.
    #[inline]
    pub fn send(
        &mut self,
        offset: u64,
        data: &[u8],
        tag: u32,
        timeout: Option<Duration>,
    ) -> Result<(), SendError> {
        if self.sent - self.acknowledged < self.tags {
            let Self { seat, ticket, .. } = &*self;
            if seat.manager().send_prepared_now(ticket, offset, data, tag) {
                self.sent += 1;
                return Ok(());
            }
        }
        self.send_slowly(offset, data, tag, timeout)
    }

    #[inline(never)]
    fn send_slowly(
        &mut self,
        offset: u64,
        data: &[u8],
        tag: u32,
        timeout: Option<Duration>,
    ) -> Result<(), SendError> {
        let ticket = self.check(offset, data)?;
        let Self { seat, connection, tags, sent, acknowledged, .. } = self;
        seat.wait_for(timeout, |node, credit| {
            if *sent - *acknowledged >= *tags {
                *acknowledged = credit.read(node, *sent);
                if *sent - *acknowledged >= *tags {
                    return match connection.ended() {
                        Some(reason) => Look::Found(Err(SendError::Ended(reason.clone()))),
                        None => Look::Nothing,
                    };
                }
            }
            match node.try_send_fast_over(connection.link(), &ticket, data, tag) {
                Ok(_) => {
                    *sent += 1;
                    Look::Found(Ok(()))
                }
                Err(NodeSendError::Full) => Look::Room(connection.link()),
                Err(NodeSendError::LinkEnded(_)) => {
                    let reason = connection.ended().cloned().unwrap_or(CloseReason::Closed);
                    Look::Found(Err(SendError::Ended(reason)))
                }
                Err(e) => Look::Found(Err(e.into())),
            }
        })?
    }

    /// [`send`](Self::send) without waiting: `false` if it would have to wait, and then nothing was
    /// sent.
    pub fn try_send(&mut self, offset: u64, data: &[u8], tag: u32) -> Result<bool, SendError> {
        match self.send(offset, data, tag, Some(Duration::ZERO)) {
            Err(SendError::TimedOut) => Ok(false),
            sent => sent.map(|()| true),
        }
    }

    #[inline]
    fn check(&self, offset: u64, data: &[u8]) -> Result<Ticket, SendError> {
        let (length, max, size) = (data.len(), self.bytes_max, self.capacity());
        if length > max {
            let limit = "what one packet of this link holds (HAMLYN_PACKET_BYTES of both sides)";
            return Err(SendError::TooLong { length, max, limit });
        }
        if offset > size || length as u64 > size - offset {
            return Err(SendError::Outside { offset, length, size });
        }
        let whole = self.ticket.ticket();
        Ok(Ticket { base: whole.base + offset, ..*whole })
    }
}

grown_by_seat!(TaggedSender, "writes", "tagged remote write: one fast packet each");
