//! The lower level for many threads: the calls of [`Node`], by a manager. Those that wait hold the
//! lock neither while yielding nor while sleeping, so that other threads work meanwhile.

use super::Manager;
#[cfg(feature = "unstable-internals")]
use crate::control::{Accept, Access};
use crate::interface::notification::Consumer;
use crate::interface::terminus::{Piece, SendHandle};
use crate::interface::{LinkId, Notification, QueueId};
#[cfg(feature = "unstable-internals")]
use crate::node::OfferError;
use crate::node::{
    Attached, Event, Look, Node, NodeReceiveError, NodeSendError, PreparedTicket, TerminusId,
    Unfinished, WaitError,
};
use crate::wire::Ticket;
#[cfg(feature = "unstable-internals")]
use crate::wire::TicketBytes;
use core::time::Duration;

impl Manager {
    /// [`Node::send`] (`h_send_msg`), without holding the lock while waiting.
    #[inline]
    pub fn send(
        &self,
        ticket: &Ticket,
        data: &[u8],
        metadata: &[u8],
        timeout: Option<Duration>,
    ) -> Result<(), NodeSendError> {
        self.shared.send(ticket, data, metadata, 0, timeout)
    }

    /// [`Node::recv`] (`h_recv_block`), without holding the lock while waiting.
    #[inline]
    pub fn recv(
        &self,
        queue: QueueId,
        timeout: Option<Duration>,
    ) -> Result<Notification, NodeReceiveError> {
        self.shared.recv(queue, timeout)
    }

    /// [`Node::try_recv`] (`h_recv`): the next notification of `queue`, if it is there or comes in one
    /// turn.
    #[inline]
    pub fn try_recv(&self, queue: QueueId) -> Result<Option<Notification>, NodeReceiveError> {
        match self.recv(queue, Some(Duration::ZERO)) {
            Ok(notification) => Ok(Some(notification)),
            Err(NodeReceiveError::TimedOut) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// [`Node::send_fast`], without holding the lock while waiting.
    #[inline]
    pub fn send_fast(
        &self,
        ticket: &Ticket,
        data: &[u8],
        word: u32,
        timeout: Option<Duration>,
    ) -> Result<(), NodeSendError> {
        self.shared.send(ticket, data, &[], word, timeout)
    }

    /// [`Node::send_over`], without holding the lock while waiting: over this link alone.
    ///
    /// ```
    /// # let dir = std::env::temp_dir().join(format!("hamlyn-doc-lower-{}", std::process::id()));
    /// use hamlyn::protocol::Manager;
    /// use hamlyn::{LinkId, MetadataIndex, NodeSendError, Piece, PreparedTicket, SlotConfig};
    /// # use std::time::Duration;
    ///
    /// # let limit = Some(Duration::from_secs(10));
    /// # let config = hamlyn::Config::from_env()?.dir(&dir);
    /// let manager = Manager::with_config(config)?;
    /// let (queue, one, fast, prepared, terminus, tag) = {
    ///     let mut node = manager.lock();
    ///     let (area, queue) = (node.message_area(4096)?, node.notification_queue(16)?);
    ///     let slot = node.slot(SlotConfig::new(area, queue).credit(16))?;
    ///     let (one, terminus) = (node.ticket(slot, MetadataIndex(0))?, node.primary());
    ///     node.send(&one, b"", b"", limit)?; // It makes the link to itself.
    ///     let prepared = PreparedTicket::new(&one, LinkId::SELF); // Over this link alone.
    ///     (queue, one, node.fast_ticket(slot)?, prepared, terminus, node.send_buffer(terminus, 64)?)
    /// };
    /// // Any number of threads may call these.
    /// manager.send_over(LinkId::SELF, &one, b"over one link", b"", limit)?;
    /// manager.send_fast(&fast, b"one packet", 7, limit)?;
    /// manager.send_prepared(&prepared, b"again", b"", limit)?;
    /// assert!(manager.send_prepared_now(&prepared, 8, b"one line", 0)); // At another offset.
    /// let sent = manager.send(&one, &[7; 4096], b"", limit);
    /// if let Err(NodeSendError::TimedOut { unfinished: Some(rest) }) = sent {
    ///     manager.send_rest(*rest, &[7; 4096], limit)?; // It had left in part.
    /// }
    /// manager.try_send(&one, b"now or not", b"")?;
    /// manager.try_send_fast(&fast, b"", 8)?;
    /// manager.try_send_fast_over(LinkId::SELF, &fast, b"", 9)?;
    /// let piece = Piece { tag, offset: 0, length: 5 };
    /// let handle = manager.post_send(terminus, &one, &[piece], b"")?;
    /// assert!(manager.wait_reusable(&handle, limit)? && manager.flush(limit)?);
    /// for _ in 0..10 {
    ///     assert_eq!(manager.recv_any(&[queue], limit)?.0, queue);
    /// }
    /// # std::fs::remove_dir_all(&dir).ok();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn send_over(
        &self,
        link: LinkId,
        ticket: &Ticket,
        data: &[u8],
        metadata: &[u8],
        timeout: Option<Duration>,
    ) -> Result<(), NodeSendError> {
        let line = |node: &mut Node| node.try_send_packet_over(link, ticket, data, metadata, 0);
        if self.shared.at_once(|node, _| line(node).then_some(())).is_some() {
            return Ok(());
        }
        let mut begun = None;
        let sent = self.shared.wait_until(timeout, |node, _| {
            node.look_to_send_over(link, ticket, &mut begun, data, metadata)
        });
        sent.unwrap_or_else(|waited| Err(waited.into_send_error(begun)))
    }

    /// [`Node::send_rest`], without holding the lock while waiting.
    pub fn send_rest(
        &self,
        unfinished: Unfinished,
        data: &[u8],
        timeout: Option<Duration>,
    ) -> Result<(), NodeSendError> {
        let mut unfinished = unfinished;
        let look = |node: &mut Node, _: &mut _| node.look_to_send(&mut unfinished, data, &[]);
        let sent = self.shared.wait_until(timeout, look);
        sent.unwrap_or_else(|waited| Err(waited.into_send_error(Some(unfinished))))
    }

    /// [`Node::send_prepared`], without holding the lock while waiting.
    #[inline]
    pub fn send_prepared(
        &self,
        prepared: &PreparedTicket,
        data: &[u8],
        metadata: &[u8],
        timeout: Option<Duration>,
    ) -> Result<(), NodeSendError> {
        if metadata.is_empty() && self.send_prepared_now(prepared, 0, data, 0) {
            return Ok(());
        }
        self.shared.send(prepared.ticket(), data, metadata, 0, timeout)
    }

    /// One line with a prepared ticket, `offset` bytes behind its base, if it can leave now, over
    /// the ticket's own link; `word` is that of a fast packet. `false`: nothing was done, because it
    /// is longer than 16 bytes, or must wait, or cannot be sent. Then a call that waits says why.
    #[inline]
    pub fn send_prepared_now(
        &self,
        prepared: &PreparedTicket,
        offset: u64,
        data: &[u8],
        word: u32,
    ) -> bool {
        let push = |node: &mut Node| node.push_prepared(prepared, offset, data, word);
        self.shared.at_once(|node, _| push(node).then_some(())).is_some()
    }

    /// [`Node::try_send`].
    pub fn try_send(
        &self,
        ticket: &Ticket,
        data: &[u8],
        metadata: &[u8],
    ) -> Result<(), NodeSendError> {
        self.shared.lock().try_send(ticket, data, metadata)
    }

    /// [`Node::try_send_fast`].
    pub fn try_send_fast(
        &self,
        ticket: &Ticket,
        data: &[u8],
        word: u32,
    ) -> Result<(), NodeSendError> {
        self.shared.lock().try_send_fast(ticket, data, word)
    }

    /// [`Node::try_send_fast_over`].
    pub fn try_send_fast_over(
        &self,
        link: LinkId,
        ticket: &Ticket,
        data: &[u8],
        word: u32,
    ) -> Result<(), NodeSendError> {
        self.shared.lock().try_send_fast_over(link, ticket, data, word)
    }

    /// [`Node::post_send`].
    pub fn post_send(
        &self,
        terminus: TerminusId,
        ticket: &Ticket,
        pieces: &[Piece],
        metadata: &[u8],
    ) -> Result<SendHandle, NodeSendError> {
        self.shared.lock().post_send(terminus, ticket, pieces, metadata)
    }

    /// [`Node::wait_reusable`], without holding the lock while waiting.
    pub fn wait_reusable(
        &self,
        handle: &SendHandle,
        timeout: Option<Duration>,
    ) -> Result<bool, NodeSendError> {
        self.wait_sent(timeout, |node| node.is_reusable(handle))
    }

    /// [`Node::flush`], without holding the lock while waiting.
    pub fn flush(&self, timeout: Option<Duration>) -> Result<bool, NodeSendError> {
        self.wait_sent(timeout, |node| node.queued() == 0)
    }

    fn wait_sent(
        &self,
        timeout: Option<Duration>,
        is_done: impl Fn(&Node) -> bool,
    ) -> Result<bool, NodeSendError> {
        let mut queued = usize::MAX;
        let waited = self.shared.wait_until(timeout, |node, _| {
            let before = core::mem::replace(&mut queued, node.queued());
            match is_done(node) {
                true => Look::Found(()),
                false if queued != before => Look::Again,
                false => Look::Nothing,
            }
        });
        match waited {
            Ok(()) => Ok(true),
            Err(WaitError::TimedOut) => Ok(false),
            Err(e) => Err(e.into_send_error(None)),
        }
    }

    /// [`Node::recv_any`], without holding the lock while waiting.
    pub fn recv_any(
        &self,
        queues: &[QueueId],
        timeout: Option<Duration>,
    ) -> Result<(QueueId, Notification), NodeReceiveError> {
        let found = self.shared.wait_until(timeout, |node, _| {
            for queue in queues {
                match node.pop(*queue) {
                    Ok(Some(notification)) => return Look::Found(Ok((*queue, notification))),
                    Ok(None) => {}
                    Err(e) => return Look::Found(Err(e)),
                }
            }
            Look::Nothing
        });
        Ok(found??)
    }

    /// [`Node::take`]: the next notification of a queue whose consuming end the caller has, if one is
    /// there or can be taken straight from a ring; waits for nothing, not even for the lock.
    ///
    /// ```
    /// # let dir = std::env::temp_dir().join(format!("hamlyn-doc-take-{}", std::process::id()));
    /// use hamlyn::protocol::Manager;
    ///
    /// # let config = hamlyn::Config::from_env()?.dir(&dir);
    /// let manager = Manager::with_config(config)?;
    /// let queue = manager.lock().notification_queue(1)?;
    /// let mut consumer = manager.lock().take_consumer(queue)?;
    /// assert_eq!(manager.take(queue, &mut consumer), None);
    /// # std::fs::remove_dir_all(&dir).ok();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn take(&self, queue: QueueId, consumer: &mut Consumer) -> Option<Notification> {
        if let Some(notification) = consumer.pop() {
            self.shared.is_called();
            return Some(notification);
        }
        self.shared.at_once(|node, _| Some(node.take_direct(queue, Some(consumer))?.notification))
    }

    /// Waits until `look` has found something of the node, at most for `limit`, without holding the
    /// lock while yielding or sleeping: [`Seat::wait_for`](super::Seat::wait_for) without a state.
    ///
    /// ```
    /// # let dir = std::env::temp_dir().join(format!("hamlyn-doc-wait-for-{}", std::process::id()));
    /// use hamlyn::node::Look;
    /// use hamlyn::protocol::Manager;
    /// use std::sync::atomic::{AtomicBool, Ordering};
    /// use std::time::Duration;
    ///
    /// # let config = hamlyn::Config::from_env()?.dir(&dir);
    /// let (manager, is_raised) = (Manager::with_config(config)?, AtomicBool::new(false));
    /// std::thread::scope(|scope| {
    ///     // A thread of the program's own, with something that is not in the node.
    ///     scope.spawn(|| {
    ///         is_raised.store(true, Ordering::Release);
    ///         manager.wake();
    ///     });
    ///     manager.wait_for(Some(Duration::from_secs(10)), |_| {
    ///         if is_raised.load(Ordering::Acquire) { Look::Found(()) } else { Look::Nothing }
    ///     })
    /// })?;
    /// # std::fs::remove_dir_all(&dir).ok();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn wait_for<R>(
        &self,
        limit: Option<Duration>,
        mut look: impl FnMut(&mut Node) -> Look<R>,
    ) -> Result<R, WaitError> {
        self.shared.wait_until(limit, |node, _| look(node))
    }

    /// Threads and tasks that wait look again: for a thread that has raised something outside of
    /// the node for which they wait.
    pub fn wake(&self) {
        let mut guard = self.shared.lock();
        let (node, protocols) = guard.parts();
        node.wake();
        protocols.after_look(node);
    }

    /// An event that concerns no end point: it is of a service that was offered on the node itself,
    /// or of a link of it.
    pub fn next_event(&self) -> Option<Event> {
        self.take_event(|_| true)
    }

    /// The next event for which `is_mine` is true; the others stay, in their order: two layers of one
    /// program take only those of their own links and services. See [`Node::take_event`].
    pub fn take_event(&self, mut is_mine: impl FnMut(&Event) -> bool) -> Option<Event> {
        let mut guard = self.shared.lock();
        let (node, protocols) = guard.parts();
        protocols.take_events(node);
        let at = protocols.events.iter().position(&mut is_mine)?;
        protocols.events.remove(at)
    }

    /// The node itself, if no other clone and no end point is left; stops the progress thread.
    ///
    /// ```
    /// # let dir = std::env::temp_dir().join(format!("hamlyn-doc-into-{}", std::process::id()));
    /// use hamlyn::Event;
    /// use hamlyn::protocol::Manager;
    ///
    /// # let config = hamlyn::Config::from_env()?.dir(&dir);
    /// let manager = Manager::with_config(config)?;
    /// manager.start_progress()?;
    /// assert!(manager.take_event(|event| matches!(event, Event::Connected { .. })).is_none());
    /// let Ok(node) = manager.into_node() else { panic!("somebody else has it, too") };
    /// # drop(node);
    /// # std::fs::remove_dir_all(&dir).ok();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn into_node(self) -> Result<Node, Self> {
        self.shared.into_inner().map_err(|shared| Self { shared })
    }
}

/// Calls that never wait, for bindings, which have their own words for errors and reasons.
#[cfg(feature = "unstable-internals")]
impl Manager {
    /// Limits how long the drop of the last clone of this manager waits for the library's own threads
    /// to end. Bindings need this to close a manager that may have clones.
    pub fn end_within(&self, limit: Option<Duration>) {
        self.shared.lock().control_apart().end_within(limit);
    }

    /// [`send`](Self::send) of one packet that can leave now; `false`: nothing was done. Bindings
    /// need not convert their arguments for a wait before they try this. Call it from one place in
    /// a library: it is not inlined into several.
    #[inline]
    pub fn send_at_once(&self, ticket: &Ticket, data: &[u8], metadata: &[u8]) -> bool {
        let line = |node: &mut Node| node.push_again(ticket, data, metadata, 0);
        self.shared.at_once(|node, _| line(node).then_some(())).is_some()
    }

    /// The same without metadata and with a ticket in its wire form. `false`, too, if the bytes are no
    /// ticket. [`send`](Self::send) goes on.
    #[inline]
    pub fn send_bytes_at_once(&self, ticket: TicketBytes<'_>, data: &[u8]) -> bool {
        self.shared.at_once(|node, _| node.push_bytes_again(&ticket, data).then_some(())).is_some()
    }

    /// [`recv`](Self::recv) of a waiting notification; `None`: nothing was done. For bindings, too.
    #[inline]
    pub fn recv_at_once(&self, queue: QueueId) -> Option<Notification> {
        self.shared.at_once(|node, _| node.take_next(queue))
    }

    /// [`Node::serve`], without holding the lock: a process that may read a name's directory can make
    /// this take seconds.
    pub fn serve_name(&self, name: &str, access: Access, accept: Accept) -> Result<(), OfferError> {
        let control = self.lock().control_apart();
        Ok(control.serve(&name.parse()?, access, accept)?)
    }

    /// [`Node::stop_serving`], in the same way.
    pub fn stop_serving_name(&self, name: &str) -> bool {
        if self.is_forked() {
            return false;
        }
        let control = self.lock().control_apart();
        name.parse().is_ok_and(|name| control.stop_serving(&name))
    }
}
