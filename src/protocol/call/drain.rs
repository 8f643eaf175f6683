//! A server that is about to close: it takes nothing new, finishes what it has, and ends.
//!
//! ```text
//!   drain: no name, no seed; each idle call is Shut -> whoever uses it is told DRAINING
//!          Busy, and long requests for which there is room -> received, replied to -> Shut
//!          all are Shut, or the time is over -> the connections are closed
//! ```
//! A client that is told `DRAINING` knows that its request was not taken, so that it can be sent to
//! another server. At the end the server says of each call that it took and leaves that it is
//! `LEFT`, and then `CLOSING`: whatever else comes was not taken. Never: a client is told that a
//! request was not taken which anybody had a chance to receive.

use super::at_server::{AtServer, ClientOf, GIVEN_UP, IDLE, SHUT, ServerState, is_held};
use super::{CLOSING, DRAINING, FAILED, LEFT, LENGTH_MAX, Server};
use crate::interface::LinkId;
use crate::node::{Attached, Look, Node, Waited};
use crate::protocol::ReceiveError;
use crate::protocol::ends::Deadline;
use crate::wire::SlotIndex;
use core::sync::atomic::Ordering;
use core::time::Duration;
use std::vec::Vec;

impl ClientOf {
    fn held(&self) -> usize {
        self.calls.iter().filter(|(_, state)| is_held(*state)).count()
    }

    /// The last words to it, as far as there is room: what it took and leaves, and that it takes
    /// nothing else.
    fn say_goodbye(&mut self, node: &mut Node) {
        let Some(link) = self.connection.as_ref().map(|connection| connection.link()) else {
            return;
        };
        while let Some((call, code, data)) = self.outbox.pop_front() {
            if self.lent.send(node, link, call, code, &data).is_err() {
                return;
            }
            // A reply that was kept.
            if code <= LENGTH_MAX || code == FAILED {
                self.end(call);
            }
        }
        let held = self.calls.iter().filter(|(_, state)| is_held(*state) || *state == GIVEN_UP);
        let left = held.map(|(call, _)| (call, LEFT));
        for (call, code) in left.chain([(0, CLOSING)]) {
            if self.lent.send(node, link, call, code, &[]).is_err() {
                return;
            }
        }
    }

    /// Whether the server drains.
    pub(super) fn is_shut(&self) -> bool {
        self.idle == SHUT
    }

    /// Takes no request from now on; true: something is owed to it.
    fn shut(&mut self) -> bool {
        self.idle = SHUT;
        // Each reply goes where whoever drains is told of it.
        self.lent.go_slowly();
        for (call, _) in self.calls.iter().filter(|(_, state)| *state == IDLE) {
            self.calls.set(call, SHUT);
        }
        // Of these nothing has come but their length.
        for (call, _) in core::mem::take(&mut self.long_waiting) {
            if let Some(AtServer::Receiving { .. }) = self.others.get(&call) {
                self.others.remove(&call);
                self.end(call);
                self.outbox.push_back((call, DRAINING, Vec::new()));
            }
        }
        !self.outbox.is_empty()
    }
}

impl ServerState {
    /// Takes no request from now on, but those that are here.
    fn drain(&mut self, node: &mut Node) {
        self.drains = true;
        let mut owed = Vec::new();
        for client in self.clients.iter_mut().flatten() {
            if client.shut() {
                owed.push(client.blocks.slot.index());
            }
        }
        for slot in owed {
            self.send_owed(node, slot);
        }
        // Whoever receives may be at the end.
        node.wake_waiters();
    }

    /// Whether it takes no request any more.
    pub(in crate::protocol) fn is_draining(&self) -> bool {
        self.drains
    }

    /// Whether nothing is here, or on its way here, that nobody has received.
    pub(super) fn has_drained(&self) -> bool {
        self.drains
            && self.ready.count.load(Ordering::Acquire) == 0
            && self.clients.iter().flatten().all(|client| client.longs.is_empty())
    }

    /// Requests that were received, or are here to be, and are not replied to.
    fn held(&self) -> usize {
        self.clients.iter().flatten().map(|client| client.held()).sum()
    }
}

impl Server {
    /// Takes no new requests, waits at most `timeout` until those that are here have been received and
    /// replied to, and closes all connections. Returns how many had no reply by then: 0, if all is
    /// well.
    ///
    /// From the beginning its names are free for another server, its seeds are worthless, and whoever
    /// calls is told [`CallError::Draining`](super::CallError::Draining), by a thread that receives or
    /// drains, while there is one (a progress thread alone tells nobody); a client that
    /// reconnects goes to the next server. Receiving goes on, in other threads, and fails with
    /// [`ReceiveError::Draining`] when nothing is left to be received. Giving up a name can take
    /// seconds beyond that, where somebody holds its directory. Afterwards nobody is connected,
    /// and what is left of the server is to be dropped. On an error it takes nothing new, and its
    /// connections are as they were.
    pub fn drain(&self, timeout: Option<Duration>) -> Result<usize, ReceiveError> {
        let deadline = Deadline::new(timeout);
        self.begin_drain()?;
        let waited = self.manager.shared.wait_until(deadline.left(), |node, protocols| {
            let Some(state) = protocols.server(self.offer) else { return Look::Found(()) };
            if let Some((link, why)) = state.share_rest(node) {
                protocols.expel(node, link, &why);
                return Look::Again;
            }
            if state.held() == 0 { Look::Found(()) } else { Look::Nothing }
        });
        match waited {
            Ok(()) | Err(Waited::TimedOut) => Ok(self.end_drain()),
            Err(waited) => Err(waited.into()),
        }
    }

    /// Begins to [drain](Self::drain), and does not wait: for a program of one thread, which goes on
    /// receiving until that fails with [`ReceiveError::Draining`], replies to what it still holds, and
    /// then calls `drain`, which has nothing left to wait for. A client that has announced a long request
    /// can keep it from that: whoever must end goes on for a time of its own, and then calls `drain` with
    /// no limit left.
    ///
    /// ```
    /// # let dir = std::env::temp_dir().join(format!("hamlyn-doc-drain-{}", std::process::id()));
    /// use hamlyn::protocol::{CallError, Client, Manager, ReceiveError, Server, ServerConfig};
    /// # use std::time::Duration;
    ///
    /// # let limit = Some(Duration::from_secs(10));
    /// # let config = hamlyn::Config::from_env()?.dir(&dir);
    /// # let manager = Manager::with_config(config.clone())?;
    /// # manager.start_progress()?;
    /// let server = Server::new(&manager, ServerConfig::default())?;
    /// let client = Client::grow(&Manager::with_config(config)?, &server.seed()?, limit)?;
    /// let last = client.start(b"one more", limit)?;
    /// manager.wait_any(&[&server], limit)?;
    /// server.begin_drain()?;
    /// let late = client.start(b"too late", limit)?;
    /// loop {
    ///     match server.receive(limit) {
    ///         Ok(request) => request.reply(b"the last", limit)?,
    ///         Err(ReceiveError::Draining) => break,
    ///         Err(e) => return Err(e.into()),
    ///     }
    /// }
    /// assert_eq!(server.drain(limit)?, 0);
    /// assert_eq!(&*client.finish(last, limit)?, b"the last");
    /// // It was not taken: it can go to another server.
    /// assert!(matches!(client.finish(late, limit), Err(CallError::Draining)));
    /// # std::fs::remove_dir_all(&dir).ok();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn begin_drain(&self) -> Result<(), ReceiveError> {
        if self.manager.is_forked() {
            return Err(crate::node::Forked.into());
        }
        self.manager.hide(self.offer);
        let mut guard = self.manager.shared.lock();
        let (node, protocols) = guard.parts();
        // What came by now was taken.
        while let Some(state) = protocols.server(self.offer) {
            match state.share_rest(node) {
                Some((link, why)) => protocols.expel(node, link, &why),
                None => {
                    state.drain(node);
                    break;
                }
            }
        }
        protocols.after_look(node);
        drop(guard);
        // A name that was taken meanwhile; from now on none can be.
        self.manager.hide(self.offer);
        Ok(())
    }

    /// One turn of whoever drains in a task: whether nothing is held any more.
    #[cfg(feature = "tokio")]
    pub(crate) fn look_at_drain(&self) -> Result<Option<()>, ReceiveError> {
        match self.look_around(|state| state.held()) {
            None => Err(crate::node::Forked.into()),
            Some(held) => Ok((held == 0).then_some(())),
        }
    }

    /// Closes all connections; how many requests have no reply.
    pub(crate) fn end_drain(&self) -> usize {
        let mut guard = self.manager.shared.lock();
        let (node, protocols) = guard.parts();
        let Some(state) = protocols.server(self.offer) else { return 0 };
        for client in state.clients.iter_mut().flatten() {
            client.say_goodbye(node);
        }
        let left = state.held();
        let clients: Vec<(SlotIndex, Option<LinkId>)> = state
            .clients
            .iter()
            .flatten()
            .map(|client| {
                (client.blocks.slot.index(), client.connection.as_ref().map(|c| c.link()))
            })
            .collect();
        // As with a server that is dropped: the link ends first, so that nothing comes for what is
        // taken away then.
        for (_, link) in &clients {
            if let Some(link) = link {
                protocols.close(node, *link);
            }
        }
        if let Some(state) = protocols.server(self.offer) {
            for (slot, _) in clients {
                state.remove_client(node, slot);
            }
        }
        node.wake_waiters();
        protocols.after_look(node);
        left
    }
}
