//! Calls that layers are made of, beside those of `send.rs` and `receive.rs`: messages gathered from
//! slices, with every choice of sending in an [`Envelope`]; prepared tickets at an offset and over
//! one link; a message together with the line that brought it.
//!
//! Never: a message goes over another link than the one that was asked for; slices are copied
//! before the ring.

use super::wait::{Look, WaitError};
use super::{Node, NodeReceiveError, NodeSendError, PreparedTicket, TerminusId};
use crate::interface::terminus::{PIECES_MAX, PostError};
use crate::interface::{Handed, LinkId, Notification, QueueId};
use crate::link::{MessageParts, Slices};
use crate::wire::Ticket;
use core::time::Duration;

/// Everything about a message but its bytes, for [`Node::send_gathered`]. Without further choices
/// it has no metadata, goes over the link that leads to the ticket's destination, and is of the
/// [primary](Node::primary) terminus.
///
/// ```
/// # let dir = std::env::temp_dir().join(format!("hamlyn-doc-envelope-{}", std::process::id()));
/// use hamlyn::{Envelope, LinkId, Node, SlotConfig};
/// # use std::time::Duration;
///
/// # let limit = Some(Duration::from_secs(10));
/// # let config = hamlyn::Config::from_env()?.dir(&dir);
/// let mut node = Node::with_config(config)?;
/// let (area, queue) = (node.message_area(4096)?, node.notification_queue(2)?);
/// let slot = node.slot(SlotConfig::new(area, queue).credit(2))?;
/// let fast = node.fast_ticket(slot)?;
/// // A header of the layer's own, and bytes of its caller, without a copy of both in one place.
/// node.send_gathered(&Envelope::new(&fast).word(7), &[b"head", &[5; 3000]], limit)?;
/// assert_eq!(node.recv(queue, limit)?.word, 7);
/// assert_eq!(&node.area(area)?[..6], b"head\x05\x05");
/// // With every choice made.
/// let entry = node.ticket(slot, hamlyn::MetadataIndex(0))?;
/// let envelope = Envelope::new(&entry).metadata(b"meta").over(LinkId::SELF).from(node.primary());
/// node.try_send_gathered(&envelope, &[b"short ", b"pieces"])?;
/// let message = node.recv(queue, limit)?;
/// assert_eq!(node.metadata(slot, message.index)?.user(), b"meta");
/// # drop(node);
/// # std::fs::remove_dir_all(&dir).ok();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Envelope<'a> {
    ticket: &'a Ticket,
    metadata: &'a [u8],
    word: u32,
    link: Option<LinkId>,
    terminus: Option<TerminusId>,
}

impl<'a> Envelope<'a> {
    /// For a message with this ticket.
    #[inline]
    pub fn new(ticket: &'a Ticket) -> Self {
        Self { ticket, metadata: &[], word: 0, link: None, terminus: None }
    }

    /// User metadata, up to 60 bytes. A message in fast mode has none.
    #[inline]
    pub fn metadata(self, metadata: &'a [u8]) -> Self {
        Self { metadata, ..self }
    }

    /// The word of a message in fast mode, which arrives in the notification.
    #[inline]
    pub fn word(self, word: u32) -> Self {
        Self { word, ..self }
    }

    /// Over this link, and only if it leads to the ticket's destination.
    #[inline]
    pub fn over(self, link: LinkId) -> Self {
        Self { link: Some(link), ..self }
    }

    /// As a message of this terminus, behind those of its own that wait.
    #[inline]
    pub fn from(self, terminus: TerminusId) -> Self {
        Self { terminus: Some(terminus), ..self }
    }
}

/// A message, and its bytes as far as they came with it: [`Node::recv_line`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "unstable-internals"), non_exhaustive)]
pub struct ReceivedLine {
    /// The notification.
    pub notification: Notification,
    /// Of a message of at most 16 bytes that was taken straight from its ring: the bytes, and
    /// behind them arbitrary ones of the sender. `None`: the bytes are in the message area alone.
    pub line: Option<[u8; 16]>,
}

impl From<Notification> for ReceivedLine {
    fn from(notification: Notification) -> Self {
        Self { notification, line: None }
    }
}

impl ReceivedLine {
    #[inline]
    fn of(handed: Handed) -> Self {
        let line = handed.words().map(|words| {
            let mut line = [0; 16];
            line[..8].copy_from_slice(&words[0].to_le_bytes());
            line[8..].copy_from_slice(&words[1].to_le_bytes());
            line
        });
        Self { notification: handed.notification, line }
    }
}

impl Node {
    /// The link of this node to itself, made when it is first needed.
    pub(crate) fn own_link(&mut self) -> Result<LinkId, NodeSendError> {
        self.route(self.id())?;
        Ok(LinkId::SELF)
    }

    /// Whether messages can be sent over a link.
    pub(crate) fn is_linked(&self, link: LinkId) -> bool {
        self.link(link).is_ok_and(|found| !found.has_left)
    }

    /// Takes turns until `look` has a result, at most for `timeout`.
    pub(crate) fn wait_until_found<R>(
        &mut self,
        timeout: Option<Duration>,
        mut look: impl FnMut(&mut Self) -> Option<R>,
    ) -> Result<R, WaitError> {
        self.wait_until(
            timeout,
            |_| None,
            |node, _| match look(node) {
                Some(found) => Look::Found(found),
                None => Look::Nothing,
            },
        )
    }

    /// Sends one message gathered from up to 16 slices, in order; waits for room at most `timeout`
    /// (`None`: without limit), and receives arrivals meanwhile. The slices are copied into the
    /// ring, and nowhere else first.
    ///
    /// The errors are those of [`send`](Self::send), and leave the same state; with a link that does
    /// not lead to the ticket's destination, [`NodeSendError::Unreachable`]. A message that timed
    /// out in part is finished by [`send_rest`](Self::send_rest) with all of its bytes in one slice.
    #[inline]
    pub fn send_gathered(
        &mut self,
        envelope: &Envelope<'_>,
        slices: &[&[u8]],
        timeout: Option<Duration>,
    ) -> Result<(), NodeSendError> {
        let Some((index, terminus, data)) = self.begin_gathered(envelope, slices)? else {
            return Ok(());
        };
        let Envelope { ticket, metadata, word, .. } = *envelope;
        self.send_waiting(terminus, index, ticket, data, metadata, word, timeout)
    }

    /// The same if the message can be taken now, as in [`try_send`](Self::try_send), whose errors it
    /// returns.
    #[inline]
    pub fn try_send_gathered(
        &mut self,
        envelope: &Envelope<'_>,
        slices: &[&[u8]],
    ) -> Result<(), NodeSendError> {
        let Some((index, terminus, data)) = self.begin_gathered(envelope, slices)? else {
            return Ok(());
        };
        let Envelope { ticket, metadata, word, .. } = *envelope;
        self.try_send_general(terminus, index, ticket, data, metadata, word, true)
    }

    /// Sends a message of one packet that can leave at once. Of any other: its link's place, its
    /// terminus and its data.
    #[inline]
    fn begin_gathered<'a>(
        &mut self,
        envelope: &Envelope<'_>,
        slices: &'a [&'a [u8]],
    ) -> Result<Option<(usize, TerminusId, Slices<'a>)>, NodeSendError> {
        if slices.len() > PIECES_MAX {
            return Err(PostError::TooManyPieces(slices.len()).into());
        }
        let (index, data) = (self.place_of(envelope)?, Slices(slices));
        let Envelope { ticket, metadata, word, .. } = *envelope;
        if self.push(index, ticket, data, metadata, word) {
            return Ok(None);
        }
        let terminus = envelope.terminus.unwrap_or(self.primary());
        self.terminus_mut(terminus)?;
        Ok(Some((index, terminus, data)))
    }

    /// The place of the link that a message goes over.
    #[inline]
    fn place_of(&mut self, envelope: &Envelope<'_>) -> Result<usize, NodeSendError> {
        match envelope.link {
            Some(link) => self.check_over(link, envelope.ticket),
            None => {
                self.check_fork()?;
                self.route(envelope.ticket.destination)
            }
        }
    }

    /// [`prepare`](Self::prepare) over one link, and only if that link leads to the ticket's
    /// destination: so a ticket that came from a peer is used only towards that peer.
    ///
    /// ```
    /// # let dir = std::env::temp_dir().join(format!("hamlyn-doc-over-{}", std::process::id()));
    /// use hamlyn::{LinkId, Node, ReceivedLine, SlotConfig};
    /// # use std::time::Duration;
    ///
    /// # let limit = Some(Duration::from_secs(10));
    /// # let config = hamlyn::Config::from_env()?.dir(&dir);
    /// let mut node = Node::with_config(config)?;
    /// let (area, queue) = (node.message_area(4096)?, node.notification_queue(4)?);
    /// let slot = node.slot(SlotConfig::new(area, queue).credit(4))?;
    /// let fast = node.fast_ticket(slot)?;
    /// let places = node.prepare_over(LinkId::SELF, &fast)?;
    /// for place in 0..4 {
    ///     node.send_prepared_at(&places, 16 * place, b"into its place", place as u32, limit)?;
    ///     let ReceivedLine { notification, line, .. } = node.recv_line(queue, limit)?;
    ///     assert_eq!(notification.word, place as u32);
    ///     // With the message, or in the area.
    ///     let area = &node.area(area)?[16 * place as usize..][..14];
    ///     assert_eq!(line.map_or(area, |_| b"into its place"), area);
    /// }
    /// # drop(node);
    /// # std::fs::remove_dir_all(&dir).ok();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn prepare_over(
        &mut self,
        link: LinkId,
        ticket: &Ticket,
    ) -> Result<PreparedTicket, NodeSendError> {
        self.check_over(link, ticket)?;
        Ok(PreparedTicket::new(ticket, link))
    }

    /// Sends `data` to the bytes from `offset` on, counted from the base of a prepared ticket, over
    /// its link and no other; waits for room at most `timeout`. `word` is that of a message in fast
    /// mode, otherwise 0.
    ///
    /// [`NodeSendError::Unreachable`]: the link has ended. [`PostError::TooLong`]: the bytes do not
    /// lie inside the ticket. The other errors are those of [`send`](Self::send), and leave the same
    /// state.
    // Always: where the caller's length is a constant, the copy into the line is two moves.
    #[inline]
    pub fn send_prepared_at(
        &mut self,
        prepared: &PreparedTicket,
        offset: u64,
        data: &[u8],
        word: u32,
        timeout: Option<Duration>,
    ) -> Result<(), NodeSendError> {
        if self.push_prepared(prepared, offset, data, word) {
            return Ok(());
        }
        self.send_prepared_waiting(prepared, offset, data, word, timeout)
    }

    #[inline(never)]
    fn send_prepared_waiting(
        &mut self,
        prepared: &PreparedTicket,
        offset: u64,
        data: &[u8],
        word: u32,
        timeout: Option<Duration>,
    ) -> Result<(), NodeSendError> {
        let ticket = prepared.ticket().at(offset).map_err(|_| PostError::TooLong {
            length: offset.saturating_add(data.bytes()),
            capacity: prepared.ticket().capacity(),
        })?;
        let envelope = Envelope::new(&ticket).word(word).over(prepared.link());
        self.send_gathered(&envelope, &[data], timeout)
    }

    /// [`recv`](Self::recv), with the bytes of a message that was taken straight from its ring, so
    /// that they need not be read from the message area, which has them, too. A layer whose messages
    /// have up to 16 bytes takes them here.
    #[inline]
    pub fn recv_line(
        &mut self,
        queue: QueueId,
        timeout: Option<Duration>,
    ) -> Result<ReceivedLine, NodeReceiveError> {
        match self.take_direct(queue, None) {
            Some(handed) => Ok(ReceivedLine::of(handed)),
            None => self.wait_for_line(queue, timeout),
        }
    }

    #[inline(never)]
    fn wait_for_line(
        &mut self,
        queue: QueueId,
        timeout: Option<Duration>,
    ) -> Result<ReceivedLine, NodeReceiveError> {
        self.check_fork()?;
        if let Some(notification) = self.pop(queue)? {
            return Ok(notification.into());
        }
        let found = self.wait_until(
            timeout,
            |node| node.take_direct(queue, None).map(|handed| Ok(ReceivedLine::of(handed))),
            |node, _| match node.pop(queue) {
                Ok(Some(notification)) => Look::Found(Ok(notification.into())),
                Ok(None) => Look::Nothing,
                Err(e) => Look::Found(Err(e)),
            },
        );
        Ok(found??)
    }
}
