//! A server that is about to close: it takes no new requests, finishes those it has, and ends.
//!
//! ```text
//!   drain: no name, no seed; each idle call is Shut -> a caller that uses it gets DRAINING
//!          Busy, and long requests for which there is room -> received, replied to -> Shut
//!          all are Shut, or the time limit passes -> the connections are closed
//! ```
//! `DRAINING` tells a client that its request was not taken, so the client can send it to another
//! server. At the end the server sends `LEFT` for each call that it took and does not answer, and
//! then `CLOSING`: it took no other request. Never: a client hears that a request was not taken
//! which the program had a chance to receive.

use super::at_server::{AtServer, ClientOf, GIVEN_UP, IDLE, SHUT, ServerState, is_held};
use super::{CLOSING, DRAINING, FAILED, LEFT, LENGTH_MAX, Server};
use crate::interface::LinkId;
use crate::node::{Attached, Look, Node, WaitError};
use crate::protocol::ReceiveError;
use crate::protocol::deadline::Deadline;
use crate::wire::SlotIndex;
use core::sync::atomic::Ordering;
use core::time::Duration;
use std::vec::Vec;

impl ClientOf {
    fn held(&self) -> usize {
        self.calls.iter().filter(|(_, state)| is_held(*state)).count()
    }

    /// The last messages to the client, as far as there is room: the calls that the server took and
    /// leaves, and that it takes no others.
    fn say_goodbye(&mut self, node: &mut Node) {
        let Some(link) = self.connection.as_ref().map(|connection| connection.link()) else {
            return;
        };
        while let Some((call, code, data)) = self.outbox.pop_front() {
            if self.lent.send(node, link, call, code, &data).is_err() {
                return;
            }
            // A kept reply.
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

    /// Takes no request from now on; true: messages are owed to the client.
    fn shut(&mut self) -> bool {
        self.idle = SHUT;
        // Each reply goes through the path that wakes a draining thread.
        self.lent.go_slowly();
        for (call, _) in self.calls.iter().filter(|(_, state)| *state == IDLE) {
            self.calls.set(call, SHUT);
        }
        // Only the length of these has come.
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
        // A receiving thread may be at the end.
        node.wake();
    }

    /// Whether it takes no more requests.
    pub(in crate::protocol) fn is_draining(&self) -> bool {
        self.drains
    }

    /// Whether all requests that are here, or on their way here, have been received.
    pub(super) fn has_drained(&self) -> bool {
        self.drains
            && self.ready.count.load(Ordering::Acquire) == 0
            && self.clients.iter().flatten().all(|client| client.longs.is_empty())
    }

    /// Requests that were received, or wait to be, and have no reply yet.
    fn held(&self) -> usize {
        self.clients.iter().flatten().map(|client| client.held()).sum()
    }
}

impl Server {
    /// Takes no new requests, waits at most `timeout` until the requests that are here have been
    /// received and replied to, and closes all connections. Returns how many had no reply by then:
    /// 0 after a complete drain.
    ///
    /// From the beginning its names are free for another server, and its seeds are worthless.
    /// Callers get [`CallError::Draining`](super::CallError::Draining) as long as a thread receives
    /// or drains (a progress thread alone does not answer them); a client that reconnects goes to
    /// the next server. Receiving goes on in other threads, and fails with
    /// [`ReceiveError::Draining`] when all requests have been received. Giving up a name can take
    /// seconds beyond `timeout` if another process holds its directory. Afterwards there are no
    /// connections, and all you can do with the server is drop it. On an error it takes no new
    /// requests, and its connections are unchanged.
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
            Ok(()) | Err(WaitError::TimedOut) => Ok(self.end_drain()),
            Err(waited) => Err(waited.into()),
        }
    }

    /// Begins to [drain](Self::drain) without waiting, for a program of one thread. Such a program
    /// goes on receiving until that fails with [`ReceiveError::Draining`], replies to the requests
    /// that it still holds, and then calls `drain`, which no longer has to wait. A client that has
    /// announced a long request can delay that error: a program that must end sets a limit of its
    /// own for receiving, and then calls `drain` with a `timeout` of zero.
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
    /// // The request was not taken: it can go to another server.
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
        // All earlier arrivals were taken.
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
        // A name that was taken meanwhile; from now on no name can be taken.
        self.manager.hide(self.offer);
        Ok(())
    }

    /// One turn of a task that drains: whether all requests have a reply.
    #[cfg(feature = "tokio")]
    pub(crate) fn look_at_drain(&self) -> Result<Option<()>, ReceiveError> {
        match self.look_around(|state| state.held()) {
            None => Err(crate::node::Forked.into()),
            Some(held) => Ok((held == 0).then_some(())),
        }
    }

    /// Closes all connections; returns how many requests have no reply.
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
        // As with a server that is dropped: the link ends first, so that no packet comes for the
        // objects that are taken away then.
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
        node.wake();
        protocols.after_look(node);
        left
    }
}
