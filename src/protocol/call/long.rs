//! Long messages at a server. Long requests wait for a place and for bytes of their user's, arrive in
//! a slot of their own, and hold their bytes until they are replied to. A long reply leaves when the
//! client has made room for it.

use super::at_server::{AtServer, BUSY, CANCELLED, ClientOf, GIVEN_UP, OTHER, ServerState};
use super::server::{Arrived, ServerParts, gone};
use super::{ASK, CallError, DECLINED, LongPlace, REPLY_LIMIT};
use crate::control::PeerUser;
use crate::interface::Notification;
use crate::node::{Look, Node, NodeSendError, Unfinished};
use crate::protocol::manager::{OfferId, Protocols};
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
    ) -> Option<Arrived> {
        let long = self.long_slots.remove(&notification.slot.index());
        let (slot, call) = long?;
        let client = self.clients.get_mut(slot.0 as usize)?.as_mut()?;
        let bytes = client.longs.remove(&call).and_then(|long| long.take(node));
        let (deadline, state) = match client.others.remove(&call) {
            Some(AtServer::Receiving { deadline, is_cancelled: true }) => (deadline, CANCELLED),
            Some(AtServer::Receiving { deadline, .. }) => (deadline, BUSY),
            _ => (None, BUSY),
        };
        client.calls.set(call, state);
        let (number, link) = (client.number, notification.link);
        self.advance(node, slot);
        let bytes = bytes?;
        let parts = ServerParts { bytes, call, slot, client: number, link, deadline, next: None };
        Some(Arrived { parts: parts.into() })
    }
}

/// A reply that is longer than the client's block: room is asked for first, and the reply is sent
/// when the client has made room.
#[derive(Default)]
pub(crate) struct LongReply {
    asked: bool,
    begun: Option<Unfinished>,
}

impl LongReply {
    /// One look.
    pub(super) fn look(
        &mut self,
        node: &mut Node,
        protocols: &mut Protocols,
        offer: OfferId,
        arrived: &Arrived,
        data: &[u8],
    ) -> Look<Result<(), CallError>> {
        let (link, call, length) = (arrived.parts.link, arrived.parts.call, data.len() as u64);
        let state = protocols.server(offer);
        let Some(client) = state.and_then(|state| state.client_of(arrived)) else {
            return gone(node, protocols, offer, arrived);
        };
        if !self.asked {
            if client.calls.get(call) == Some(CANCELLED) {
                return leave_cancelled(node, protocols, offer, arrived);
            }
            match client.lent.send(node, link, call, ASK, &length.to_le_bytes()) {
                Ok(()) => {}
                Err(NodeSendError::Full) => return Look::Room(link),
                Err(NodeSendError::LinkEnded(_)) => return gone(node, protocols, offer, arrived),
                Err(e) => return Look::Found(Err(e.into())),
            }
            self.asked = true;
            client.calls.set(call, OTHER);
            client.others.insert(call, AtServer::Asked(length));
        }
        // Other arrivals meanwhile are for other threads, or for later. All of them in one look:
        // requests that keep coming must not hold up this reply.
        let broken = protocols.server(offer).and_then(|state| state.share_rest(node));
        if let Some((guilty, why)) = broken {
            protocols.expel(node, guilty, &why);
            return Look::Again;
        }
        let Some(state) = protocols.server(offer) else {
            return gone(node, protocols, offer, arrived);
        };
        let Some(client) = state.client_of(arrived) else {
            return gone(node, protocols, offer, arrived);
        };
        match client.others.get(&call) {
            Some(AtServer::Granted(ticket)) => {
                let look = node.look_to_send_over(link, ticket, &mut self.begun, data, &[]);
                if let Look::Found(Ok(())) = look {
                    client.others.remove(&call);
                    client.end(call);
                    // A draining thread waits for that.
                    node.wake();
                    state.advance(node, arrived.parts.slot);
                }
                look.map(|result| result.map_err(CallError::from))
            }
            Some(AtServer::Cancelled { .. }) => leave_cancelled(node, protocols, offer, arrived),
            // Dropping the request tells the client that its refusal has been heard.
            Some(AtServer::Refused) => {
                Look::Found(Err(CallError::TooLong { length, max: 0, limit: REPLY_LIMIT }))
            }
            _ => Look::Nothing,
        }
    }
}

/// The caller of a request has given up: a long reply to it is not sent, as a short one is dropped.
#[cold]
fn leave_cancelled(
    node: &mut Node,
    protocols: &mut Protocols,
    offer: OfferId,
    arrived: &Arrived,
) -> Look<Result<(), CallError>> {
    protocols.decline(node, offer, arrived);
    Look::Found(Ok(()))
}

impl Protocols {
    /// A request gets no reply: its client is told so at once or, if it has been asked for room,
    /// when it has answered.
    #[cold]
    pub(super) fn decline(&mut self, node: &mut Node, offer: OfferId, arrived: &Arrived) {
        let Some(state) = self.server(offer) else { return };
        let Some(client) = state.client_of(arrived) else { return };
        let call = arrived.parts.call;
        let waits = matches!(
            client.others.remove(&call),
            Some(AtServer::Asked(_) | AtServer::Cancelled { has_answered: false })
        );
        if waits {
            client.calls.set(call, GIVEN_UP);
        } else {
            client.end(call);
            client.outbox.push_back((call, DECLINED, Vec::new()));
        }
        // A draining thread waits for that.
        if client.is_shut() {
            node.wake();
        }
        if waits {
            state.given_up += 1;
            self.look_at_given_up(node, offer);
            return;
        }
        let owed = client.check_owed();
        state.advance(node, arrived.parts.slot);
        if let Err(why) = owed {
            state.count_broken(arrived.parts.slot);
            self.expel(node, arrived.parts.link, &why);
        }
    }
}
