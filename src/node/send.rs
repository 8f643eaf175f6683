//! Messages out: `h_send_msg` of Hamlyn 3.2, in its blocking, trying and timed forms.
//!
//! A message of one packet goes from the caller's slice into the ring: direct I/O (one of a single
//! line: `line.rs`). A longer one is cut into packets during the call, and the node receives
//! arrivals whenever the ring is full; or it is gathered from send buffer areas and leaves in later
//! calls.

use super::link::{BULK_PACKET_MIN, SendRoom, SentPackets};
use super::{Forked, Node, TerminusId};
use crate::engine::queued::{SendWay, SendsQueued};
use crate::interface::LinkId;
use crate::interface::terminus::{IMMEDIATE_MAX, PostError, Segmenter};
use crate::link::{MessageParts, Transmit};
use crate::wire::{Flags, NodeId, Ticket};
use core::time::Duration;

/// A [`Node`]'s send failed. Unless the variant says otherwise, no packet has left. (For an end
/// point: [`SendError`](crate::protocol::SendError).)
#[derive(Debug, thiserror::Error)]
#[cfg_attr(not(feature = "unstable-internals"), non_exhaustive)]
pub enum NodeSendError {
    /// Not now: the link is full and so is the work queue. Try again after a `poll`.
    #[error("the link is full; try again")]
    Full,
    /// No link leads to the ticket's destination.
    #[error("no link leads to node {0}: connect to it first, or it is gone")]
    Unreachable(NodeId),
    /// Too long to be taken at once, even by an empty link.
    #[error(
        "a message of {length} bytes cannot be taken at once by a link that holds {at_once}: use `send`, or `post_send` from a send buffer area"
    )]
    TooLongToTry {
        /// Bytes of the message.
        length: usize,
        /// Bytes that the link takes at once.
        at_once: u64,
    },
    /// The peer died or closed. Part of the message may have left; it will never be complete.
    #[error("the link to node {0} ended before the message had left")]
    LinkEnded(NodeId),
    /// The time limit has passed. If packets have left, `unfinished` finishes the message with
    /// [`Node::send_rest`]; dropped, it leaves the receiver with an incomplete message, until the
    /// receiver's owner arms the entry again.
    #[error("the link stayed full for the whole time limit; {} packets have left: the receiver is behind, or its program makes no calls and has no progress thread (start_progress)", .unfinished.as_ref().map_or(0, |u| u.segmenter.packets()))]
    TimedOut {
        /// The rest, if packets have left.
        unfinished: Option<std::boxed::Box<Unfinished>>,
    },
    /// The message is not allowed.
    #[error(transparent)]
    Post(#[from] PostError),
    /// The calling process is a forked child.
    #[error(transparent)]
    Forked(#[from] Forked),
    /// Waiting failed.
    #[error("waiting for room failed: {0}")]
    Wait(std::sync::Arc<std::io::Error>),
}

/// A message that has left in part. It can be finished once.
#[derive(Debug)]
pub struct Unfinished {
    pub(super) terminus: TerminusId,
    pub(super) link: LinkId,
    pub(super) segmenter: Segmenter,
}

impl Unfinished {
    /// Data bytes that have left.
    pub fn bytes_sent(&self) -> u64 {
        self.segmenter.bytes()
    }

    /// Whether a packet has left.
    pub(crate) fn has_begun(&self) -> bool {
        self.segmenter.packets() > 0
    }
}

/// The result of beginning a message.
pub(crate) enum BegunSend {
    /// It has left.
    Sent,
    /// No packet has left.
    Waits(Unfinished),
}

/// The result of going on with a message.
pub(crate) enum Advanced {
    /// All packets have left.
    Sent,
    /// Some more packets have left.
    Part,
    /// No more packets have left.
    Blocked,
}

impl Node {
    /// The link that leads to `destination`.
    #[inline]
    pub(super) fn route(&mut self, destination: NodeId) -> Result<usize, NodeSendError> {
        match self.routes.again(&destination) {
            Some(index) => Ok(index as usize),
            None => self.find_route(destination),
        }
    }

    #[cold]
    #[inline(never)]
    fn find_route(&mut self, destination: NodeId) -> Result<usize, NodeSendError> {
        let mut route = self.routes.find(destination);
        if route.is_none() && destination == self.id() {
            self.open_self_link()?;
            route = self.routes.find(destination);
        }
        route.map(|index| index as usize).ok_or(NodeSendError::Unreachable(destination))
    }

    /// Sends one message if it can be taken now: `h_send_msg` (Hamlyn 3.2) of the primary terminus.
    /// The data lands at the ticket's base. `Full` means try again, best after a `poll`: messages
    /// that wait in work queues leave in this call, too, but it receives none.
    ///
    /// A message of one packet and at most 256 bytes is never refused while the work queue (63
    /// entries) has room; a longer one must fit into the ring's free space.
    #[inline]
    pub fn try_send(
        &mut self,
        ticket: &Ticket,
        data: &[u8],
        metadata: &[u8],
    ) -> Result<(), NodeSendError> {
        if self.push_again(ticket, data, metadata, 0) {
            return Ok(());
        }
        self.check_fork()?;
        let index = self.route(ticket.destination)?;
        self.try_send_general(TerminusId(0), index, ticket, data, metadata, 0, true)
    }

    /// [`try_send`](Self::try_send) of another terminus.
    pub fn try_send_on(
        &mut self,
        terminus: TerminusId,
        ticket: &Ticket,
        data: &[u8],
        metadata: &[u8],
    ) -> Result<(), NodeSendError> {
        self.check_fork()?;
        self.terminus_mut(terminus)?;
        let index = self.route(ticket.destination)?;
        self.try_send_general(terminus, index, ticket, data, metadata, 0, true)
    }

    /// Sends one packet in fast mode (Hamlyn 2.7): `word` arrives in the notification itself.
    /// `ticket` is from [`fast_ticket`](Self::fast_ticket) of the receiver.
    #[inline]
    pub fn try_send_fast(
        &mut self,
        ticket: &Ticket,
        data: &[u8],
        word: u32,
    ) -> Result<(), NodeSendError> {
        if self.push_again(ticket, data, &[], word) {
            return Ok(());
        }
        self.check_fork()?;
        let index = self.route(ticket.destination)?;
        self.try_send_general(TerminusId(0), index, ticket, data, &[], word, true)
    }

    /// [`try_send_fast`](Self::try_send_fast) over one link, and only if that link leads to the
    /// ticket's destination. Never queued: once it is sent, the peer gets it even if this process
    /// ends. Up to 16 bytes are one line, written here.
    #[inline]
    pub fn try_send_fast_over(
        &mut self,
        link: LinkId,
        ticket: &Ticket,
        data: &[u8],
        word: u32,
    ) -> Result<(), NodeSendError> {
        self.check_fork()?;
        let index = link.index as usize;
        if !self.leads_to(link, ticket.destination) {
            return Err(NodeSendError::LinkEnded(ticket.destination));
        }
        if self.push(index, ticket, data, &[], word) {
            return Ok(());
        }
        self.try_send_general(TerminusId(0), index, ticket, data, &[], word, false)
    }

    #[inline]
    pub(super) fn leads_to(&self, link: LinkId, destination: NodeId) -> bool {
        matches!(self.links.get(link.index as usize),
            Some(Some(found)) if found.leads_to(link, destination))
    }

    /// Most bytes of one packet in fast mode over a link.
    ///
    /// ```
    /// # let dir = std::env::temp_dir().join(format!("hamlyn-doc-fast-{}", std::process::id()));
    /// use hamlyn::{LinkId, Node, SlotConfig};
    /// # use std::time::Duration;
    ///
    /// # let limit = Some(Duration::from_secs(10));
    /// # let config = hamlyn::Config::from_env()?.dir(&dir);
    /// let mut node = Node::with_config(config)?;
    /// let (area, queue) = (node.message_area(4096)?, node.notification_queue(2)?);
    /// let slot = node.slot(SlotConfig::new(area, queue).credit(2))?;
    /// let ticket = node.fast_ticket(slot)?;
    /// node.send_fast(&ticket, b"sixteen at once!", 7, limit)?;
    /// assert_eq!(node.recv(queue, limit)?.word, 7);
    /// // A longer one is still one packet.
    /// let longest = vec![0; node.fast_bytes_max(LinkId::SELF).expect("a link to itself")];
    /// node.try_send_fast(&ticket, &longest[..4096.min(longest.len())], 8)?;
    /// assert_eq!(node.recv(queue, limit)?.word, 8);
    /// # drop(node);
    /// # std::fs::remove_dir_all(&dir).ok();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn fast_bytes_max(&self, link: LinkId) -> Option<usize> {
        self.link(link).ok()?.tx.as_ref().map(|tx| tx.packet_bytes_min() as usize)
    }

    #[allow(clippy::too_many_arguments)]
    pub(super) fn try_send_general(
        &mut self,
        terminus: TerminusId,
        index: usize,
        ticket: &Ticket,
        data: impl MessageParts,
        metadata: &[u8],
        word: u32,
        may_queue: bool,
    ) -> Result<(), NodeSendError> {
        let destination = ticket.destination;
        if self.queued.total() > 0 {
            self.advance_queued(terminus, index);
        }
        let Some(Some(link)) = self.links.get(index) else {
            return Err(NodeSendError::Unreachable(destination));
        };
        let way = self.way(terminus, link.id);
        let Some(Some(link)) = self.links.get_mut(index) else {
            return Err(NodeSendError::Unreachable(destination));
        };
        let Some(tx) = &mut link.tx else { return Err(NodeSendError::Unreachable(destination)) };
        let t = &mut self.termini[terminus.0 as usize];
        let mut segmenter =
            Segmenter::new(ticket, data.bytes(), metadata.len(), word, tx.packet_bytes_min())?;
        if way != SendWay::Behind {
            // All or nothing: a slice cannot be kept for later.
            let packet_bytes = tx.packet_bytes_with(ticket.flags) as u64;
            let is_one = data.bytes() + metadata.len() as u64 <= packet_bytes;
            let room = if is_one { SendRoom::Now } else { tx.room_for(&segmenter) };
            if let SendRoom::Never { at_once } = room {
                return Err(NodeSendError::TooLongToTry { length: data.bytes() as usize, at_once });
            }
            if room == SendRoom::Now && segmenter.advance(tx, data, metadata).is_ok() {
                let left = SentPackets {
                    packets: segmenter.packets(),
                    bytes: data.bytes(),
                    messages: 1,
                    flags: ticket.flags,
                    is_long: is_long(&segmenter),
                };
                if tx.have_left(&left) {
                    self.ask_for_bulk(index as u32);
                }
                return Ok(());
            }
            if let Some(violation) = tx.violation() {
                self.end_violating(index, violation);
                return Err(NodeSendError::LinkEnded(destination));
            }
            debug_assert!(segmenter.packets() == 0, "room was there and then was not");
        }
        if !may_queue || data.bytes() > IMMEDIATE_MAX as u64 {
            return Err(NodeSendError::Full);
        }
        match t.post_immediate(link.id, segmenter, data, metadata) {
            Ok(_) => {
                self.has_queued(index);
                Ok(())
            }
            Err(PostError::QueueFull(_)) => Err(NodeSendError::Full),
            Err(e) => Err(e.into()),
        }
    }

    /// Sends one message, waiting for room at most `timeout` (`None`: without limit). It receives
    /// arrivals meanwhile, so that two nodes that send to each other never deadlock. Of any length.
    ///
    /// Messages leave in order, but may arrive in another: packets are counted, not sequenced, and
    /// those of a long message take another ring, unless the ticket keeps them [in
    /// order](Flags::IN_ORDER). So send a metadata entry one message at a time, unless each is a
    /// single packet.
    #[inline]
    pub fn send(
        &mut self,
        ticket: &Ticket,
        data: &[u8],
        metadata: &[u8],
        timeout: Option<Duration>,
    ) -> Result<(), NodeSendError> {
        if self.push_again(ticket, data, metadata, 0) {
            return Ok(());
        }
        self.send_on(self.primary(), ticket, data, metadata, timeout)
    }

    /// [`send`](Self::send) over one link, even if other links lead to the ticket's destination,
    /// and only if that link leads there: so a ticket that came from a peer is used only towards
    /// that peer.
    #[inline]
    pub fn send_over(
        &mut self,
        link: LinkId,
        ticket: &Ticket,
        data: &[u8],
        metadata: &[u8],
        timeout: Option<Duration>,
    ) -> Result<(), NodeSendError> {
        if self.try_send_packet_over(link, ticket, data, metadata, 0) {
            return Ok(());
        }
        let index = self.check_over(link, ticket)?;
        self.send_waiting(self.primary(), index, ticket, data, metadata, 0, timeout)
    }

    /// The place of a link that leads to the ticket's destination.
    pub(super) fn check_over(
        &mut self,
        link: LinkId,
        ticket: &Ticket,
    ) -> Result<usize, NodeSendError> {
        self.check_fork()?;
        // The link of the node to itself is made when it is first needed.
        if link == LinkId::SELF && ticket.destination == self.id() {
            return self.route(ticket.destination);
        }
        match self.link(link) {
            Ok(found) if found.peer.node == ticket.destination => Ok(link.index as usize),
            _ => Err(NodeSendError::Unreachable(ticket.destination)),
        }
    }

    /// [`send`](Self::send) of another terminus.
    #[inline(never)]
    pub fn send_on(
        &mut self,
        terminus: TerminusId,
        ticket: &Ticket,
        data: &[u8],
        metadata: &[u8],
        timeout: Option<Duration>,
    ) -> Result<(), NodeSendError> {
        self.check_fork()?;
        self.terminus_mut(terminus)?;
        let index = self.route(ticket.destination)?;
        self.send_waiting(terminus, index, ticket, data, metadata, 0, timeout)
    }

    /// [`try_send_fast`](Self::try_send_fast), waiting for room.
    #[inline]
    pub fn send_fast(
        &mut self,
        ticket: &Ticket,
        data: &[u8],
        word: u32,
        timeout: Option<Duration>,
    ) -> Result<(), NodeSendError> {
        if self.push_again(ticket, data, &[], word) {
            return Ok(());
        }
        self.send_fast_waiting(ticket, data, word, timeout)
    }

    /// The rest of [`send_fast`](Self::send_fast), for anything but a line that could leave at
    /// once.
    #[inline(never)]
    fn send_fast_waiting(
        &mut self,
        ticket: &Ticket,
        data: &[u8],
        word: u32,
        timeout: Option<Duration>,
    ) -> Result<(), NodeSendError> {
        self.check_fork()?;
        let index = self.route(ticket.destination)?;
        self.send_waiting(self.primary(), index, ticket, data, &[], word, timeout)
    }

    /// Sends over the link at `index`, waiting for room at most `timeout`.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn send_waiting(
        &mut self,
        terminus: TerminusId,
        index: usize,
        ticket: &Ticket,
        data: impl MessageParts,
        metadata: &[u8],
        word: u32,
        timeout: Option<Duration>,
    ) -> Result<(), NodeSendError> {
        match self.begin_over(terminus, index, ticket, data, metadata, word)? {
            BegunSend::Sent => Ok(()),
            BegunSend::Waits(unfinished) => self.go_on(unfinished, data, metadata, timeout),
        }
    }

    /// Sends a message over the link at `index` if it can be taken now.
    #[inline]
    fn begin_over(
        &mut self,
        terminus: TerminusId,
        index: usize,
        ticket: &Ticket,
        data: impl MessageParts,
        metadata: &[u8],
        word: u32,
    ) -> Result<BegunSend, NodeSendError> {
        match self.try_send_general(terminus, index, ticket, data, metadata, word, true) {
            Err(NodeSendError::Full | NodeSendError::TooLongToTry { .. }) => {}
            sent => return sent.map(|()| BegunSend::Sent),
        }
        let Some(Some(link)) = self.links.get(index) else {
            return Err(NodeSendError::Unreachable(ticket.destination));
        };
        let link = link.id;
        let unfinished =
            self.prepare_on(terminus, link, ticket, data.bytes(), metadata.len(), word)?;
        Ok(BegunSend::Waits(unfinished))
    }

    /// Goes on with a message that timed out, with the same data. Its metadata has left with the
    /// first packet.
    ///
    /// ```
    /// # let dir = std::env::temp_dir().join(format!("hamlyn-doc-rest-{}", std::process::id()));
    /// use hamlyn::{Accept, Access, MetadataIndex, Node, NodeSendError, SlotConfig, Ticket};
    /// use std::time::Duration;
    ///
    /// # let limit = Some(Duration::from_secs(10));
    /// # let config = hamlyn::Config::from_env()?.dir(&dir);
    /// let mut receiver = Node::with_config(config.clone())?;
    /// # let (area, queue) = (receiver.message_area(1 << 20)?, receiver.notification_queue(1)?);
    /// # let slot = receiver.slot(SlotConfig::new(area, queue))?;
    /// # let ticket = receiver.ticket(slot, MetadataIndex(0))?;
    /// # receiver.serve("slow", Access::SameUser, Accept::Automatic(ticket.to_bytes().to_vec()))?;
    /// let mut node = Node::with_config(config)?;
    /// let link = node.connect("slow", b"", limit)?;
    /// let (ticket, data) = (Ticket::from_bytes(node.greeting(link)?)?, vec![7; 1 << 20]);
    /// // The receiver takes nothing yet, and the link has no room for all of it.
    /// let sent = node.send_over(link, &ticket, &data, b"", Some(Duration::ZERO));
    /// let Err(NodeSendError::TimedOut { unfinished: Some(unfinished) }) = sent else { panic!() };
    /// assert!(unfinished.bytes_sent() < 1 << 20);
    /// std::thread::scope(|scope| {
    ///     scope.spawn(|| receiver.recv(queue, limit).unwrap());
    ///     node.send_rest(*unfinished, &data, limit)
    /// })?;
    /// # drop((node, receiver));
    /// # std::fs::remove_dir_all(&dir).ok();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn send_rest(
        &mut self,
        unfinished: Unfinished,
        data: &[u8],
        timeout: Option<Duration>,
    ) -> Result<(), NodeSendError> {
        self.go_on(unfinished, data, &[], timeout)
    }

    fn go_on(
        &mut self,
        mut unfinished: Unfinished,
        data: impl MessageParts,
        metadata: &[u8],
        timeout: Option<Duration>,
    ) -> Result<(), NodeSendError> {
        // A blocked sender always goes on receiving arrivals.
        let look = |node: &mut Self, _| node.look_to_send(&mut unfinished, data, metadata);
        match self.wait_until(timeout, |_| None, look) {
            Ok(sent) => sent,
            Err(waited) => Err(waited.into_send_error(Some(unfinished))),
        }
    }

    /// Sends a message over the link that leads to the ticket's destination, if it can be taken
    /// now; otherwise returns a message for [`advance_send`](Self::advance_send).
    pub(crate) fn begin_send(
        &mut self,
        ticket: &Ticket,
        data: &[u8],
        metadata: &[u8],
        word: u32,
    ) -> Result<BegunSend, NodeSendError> {
        self.check_fork()?;
        let index = self.route(ticket.destination)?;
        self.begin_over(self.primary(), index, ticket, data, metadata, word)
    }

    /// A message that has yet to begin, for [`advance_send`](Self::advance_send). The link must
    /// lead to the ticket's destination.
    pub(crate) fn prepare_send(
        &self,
        link: LinkId,
        ticket: &Ticket,
        length: usize,
        metadata: usize,
        word: u32,
    ) -> Result<Unfinished, NodeSendError> {
        self.prepare_on(self.primary(), link, ticket, length as u64, metadata, word)
    }

    #[inline]
    fn prepare_on(
        &self,
        terminus: TerminusId,
        link: LinkId,
        ticket: &Ticket,
        length: u64,
        metadata: usize,
        word: u32,
    ) -> Result<Unfinished, NodeSendError> {
        let destination = ticket.destination;
        let packet_bytes = match self.link(link) {
            Ok(found) if found.leads_to(link, destination) => match &found.tx {
                Some(tx) => tx.packet_bytes_min(),
                None => return Err(NodeSendError::Unreachable(destination)),
            },
            _ => return Err(NodeSendError::LinkEnded(destination)),
        };
        let segmenter = Segmenter::new(ticket, length, metadata, word, packet_bytes)?;
        Ok(Unfinished { terminus, link, segmenter })
    }

    /// Gives the link as many packets of a message as it has room for, without waiting.
    pub(crate) fn advance_send(
        &mut self,
        unfinished: &mut Unfinished,
        data: impl MessageParts,
        metadata: &[u8],
    ) -> Result<Advanced, NodeSendError> {
        self.check_fork()?;
        let Unfinished { terminus, link: link_id, segmenter } = unfinished;
        let (terminus, link_id) = (*terminus, *link_id);
        self.terminus_mut(terminus)?;
        if segmenter.length() != data.bytes() {
            let (length, capacity) = (data.bytes(), segmenter.length());
            return Err(PostError::TooLong { length, capacity }.into());
        }
        let destination = segmenter.destination();
        let index = link_id.index as usize;
        let way = self.way(terminus, link_id);
        let link = match self.links.get_mut(index) {
            Some(Some(link)) if link.id == link_id && !link.has_left => link,
            _ => return Err(NodeSendError::LinkEnded(destination)),
        };
        let Some(tx) = &mut link.tx else { return Err(NodeSendError::Unreachable(destination)) };
        if way == SendWay::Behind {
            return Ok(Advanced::Blocked);
        }
        let shares = way == SendWay::Between;
        let (packets, bytes) = (segmenter.packets(), segmenter.bytes());
        let _ = if shares {
            segmenter.advance_one(tx, data, metadata)
        } else {
            segmenter.advance(tx, data, metadata)
        };
        let (done, moved) = (segmenter.is_done(), segmenter.packets() > packets);
        let mut asks = false;
        if moved {
            asks = tx.have_left(&SentPackets {
                packets: segmenter.packets() - packets,
                bytes: segmenter.bytes() - bytes,
                messages: u64::from(done),
                flags: if done { segmenter.flags() } else { Flags::empty() },
                is_long: is_long(segmenter),
            });
        }
        let advanced = if done {
            Advanced::Sent
        } else if let Some(violation) = tx.violation() {
            self.end_violating(index, violation);
            return Err(NodeSendError::LinkEnded(destination));
        } else if moved {
            if shares {
                self.transmit_queued(index as u32, 1);
            }
            Advanced::Part
        } else {
            Advanced::Blocked
        };
        if asks {
            self.ask_for_bulk(index as u32);
        }
        Ok(advanced)
    }
}

/// Whether packets of a message go into the bulk ring if there is one.
#[inline]
fn is_long(segmenter: &Segmenter) -> bool {
    !segmenter.flags().contains(Flags::IN_ORDER)
        && (segmenter.packets() > 1 || segmenter.length() >= BULK_PACKET_MIN as u64)
}
