//! Long requests at a server: they wait for a place and for bytes of their user's, arrive in a slot
//! of their own, and hold their bytes until they are replied to.

use super::at_server::{AtServer, BUSY, CANCELLED, ClientOf, ServerState};
use super::server::{Arrived, ServerParts};
use super::{ASK, Broken, DECLINED, LongPlace};
use crate::control::PeerUser;
use crate::interface::Notification;
use crate::node::Node;
use crate::wire::SlotIndex;
use std::boxed::Box;
use std::vec::Vec;

/// Long messages of one client that may be on their way to the server at a time.
pub(super) const LONG_MAX: usize = 4;

impl ClientOf {
    #[cold]
    pub(super) fn end_long(&mut self, call: u32) {
        if let Some(bytes) = self.alive.remove(&call) {
            self.alive_bytes -= bytes;
            self.freed = true;
        }
    }

    /// Whether a long request waits for others to be replied to.
    #[inline]
    pub(super) fn has_waiting(&self) -> bool {
        !self.long_waiting.is_empty()
    }
}

impl ServerState {
    /// Bytes of long requests have gone; other requests may have waited for them.
    #[cold]
    pub(super) fn advance_waiting(&mut self, node: &mut Node) {
        loop {
            let waiting = self.clients.iter().flatten().filter(|client| client.has_waiting());
            let waiting: Vec<SlotIndex> = waiting.map(|c| c.blocks.slot.index()).collect();
            for slot in waiting {
                self.open_longs(node, slot);
                self.send_owed(node, slot);
            }
            // A reply that has left may have freed more.
            let mut freed = false;
            for client in self.clients.iter_mut().flatten() {
                freed |= core::mem::take(&mut client.freed);
            }
            if !freed {
                return;
            }
        }
    }

    /// The long requests of one user's clients have at most `long_bytes_max` bytes together, for
    /// any number of clients; one request may always be there.
    pub(super) fn open_longs(&mut self, node: &mut Node, slot: SlotIndex) {
        let of_user = |clients: &[Option<Box<ClientOf>>], user: &PeerUser| -> u64 {
            let its = clients.iter().flatten().filter(|client| client.peer.is_of(user));
            its.map(|client| client.alive_bytes).sum()
        };
        loop {
            let Some(Some(client)) = self.clients.get(slot.0 as usize) else { return };
            let Some(&(call, length)) = client.long_waiting.front() else { return };
            let (has_place, user) = (client.longs.len() < LONG_MAX, client.peer.user());
            let alive = of_user(&self.clients, &user);
            let fits = alive == 0 || alive.saturating_add(length) <= self.config.long_bytes_max;
            let Some(Some(client)) = self.clients.get_mut(slot.0 as usize) else { return };
            if !has_place || !fits {
                return;
            }
            client.long_waiting.pop_front();
            match LongPlace::open(node, self.queue, length) {
                Ok((long, ticket)) => {
                    client.alive.insert(call, length);
                    client.alive_bytes += length;
                    client.longs.insert(call, long);
                    self.long_slots.insert(long.slot.index(), (slot, call));
                    client.outbox.push_back((call, ASK, ticket.to_bytes().to_vec()));
                }
                Err(_) => {
                    client.end(call);
                    client.others.remove(&call);
                    client.outbox.push_back((call, DECLINED, Vec::new()));
                }
            }
        }
    }

    #[cold]
    pub(super) fn handle_long(
        &mut self,
        node: &mut Node,
        notification: &Notification,
    ) -> Result<Option<Arrived>, Broken> {
        let long = self.long_slots.remove(&notification.slot.index());
        let Some((slot, call)) = long else { return Ok(None) };
        let Some(Some(client)) = self.clients.get_mut(slot.0 as usize) else { return Ok(None) };
        let bytes = client.longs.remove(&call).and_then(|long| long.take(node));
        let (deadline, state) = match client.others.remove(&call) {
            Some(AtServer::Receiving { deadline, is_cancelled: true }) => (deadline, CANCELLED),
            Some(AtServer::Receiving { deadline, .. }) => (deadline, BUSY),
            _ => (None, BUSY),
        };
        client.calls.set(call, state);
        let (number, link) = (client.number, notification.link);
        self.advance(node, slot);
        let Some(bytes) = bytes else { return Ok(None) };
        let parts = ServerParts { bytes, call, slot, client: number, link, deadline, next: None };
        Ok(Some(Arrived { parts: parts.into() }))
    }
}
