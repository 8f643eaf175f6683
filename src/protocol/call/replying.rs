//! Replies that do not leave at once: one look of a replying thread, and replies that are longer
//! than the client's block, for which room is asked first.

use super::at_server::{AtServer, CANCELLED, GIVEN_UP, OTHER};
use super::handling::CallFailure;
use super::server::Arrived;
#[cfg(feature = "tokio")]
use super::server::{Request, Server};
use super::{ASK, CallError, CallSending, DECLINED, FAILED, REPLY_LIMIT, go_on};
use crate::node::{CloseReason, Look, Node, NodeSendError};
use crate::protocol::manager::{OfferId, Protocols};
use std::vec::Vec;

/// The client of a request has gone; returns the reason.
#[cold]
fn gone<R>(
    node: &mut Node,
    protocols: &mut Protocols,
    offer: OfferId,
    arrived: &Arrived,
) -> Look<Result<R, CallError>> {
    protocols.take_events(node);
    let reason = protocols.server(offer).and_then(|state| state.why_gone(arrived));
    Look::Found(Err(CallError::Ended(reason.unwrap_or(CloseReason::Closed))))
}

/// The answer to a request.
#[derive(Clone, Copy)]
pub(super) enum CallAnswer<'a> {
    Reply(&'a [u8]),
    Failure(&'a [u8]),
}

/// One look of a replying thread; `false`: the reply is longer than the client's block. `keeps`: a
/// reply that finds no room is kept, and leaves later.
pub(super) fn look_to_reply(
    node: &mut Node,
    protocols: &mut Protocols,
    offer: OfferId,
    arrived: &Arrived,
    answer: CallAnswer<'_>,
    keeps: bool,
) -> Look<Result<bool, CallError>> {
    let (link, call) = (arrived.parts.link, arrived.parts.call);
    let state = protocols.server(offer);
    let Some(client) = state.and_then(|state| state.client_of(arrived)) else {
        return gone(node, protocols, offer, arrived);
    };
    // A reply's code is its length; no reply that is sent at once has the length `FAILED`.
    let (code, data) = match answer {
        CallAnswer::Reply(data) if data.len() > client.at_once => return Look::Found(Ok(false)),
        CallAnswer::Reply(data) => (data.len() as u32, data),
        CallAnswer::Failure(data) if data.len() > client.at_once => {
            return Look::Found(Err(CallFailure::beyond(data, client.at_once)));
        }
        CallAnswer::Failure(data) => (FAILED, data),
    };
    match client.lent.send(node, link, call, code, data) {
        Ok(()) => {
            client.end(call);
            if client.is_shut() {
                node.wake();
            }
            if client.freed
                && let Some(state) = protocols.server(offer)
            {
                state.advance(node, arrived.parts.slot);
            }
            Look::Found(Ok(true))
        }
        Err(NodeSendError::Full) if !keeps => Look::Room(link),
        Err(NodeSendError::Full) => {
            client.outbox.push_back((call, code, data.to_vec()));
            if let Some(state) = protocols.server(offer) {
                state.advance(node, arrived.parts.slot);
            }
            Look::Found(Ok(true))
        }
        Err(NodeSendError::LinkEnded(_)) => gone(node, protocols, offer, arrived),
        Err(e) => Look::Found(Err(e.into())),
    }
}

/// A reply that is longer than the client's block: room is asked for first, and the reply is sent
/// when the client has made room.
pub(super) struct LongReply {
    asked: bool,
    sending: CallSending,
}

impl Default for LongReply {
    fn default() -> Self {
        Self { asked: false, sending: CallSending::Asked }
    }
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
                let ticket = *ticket;
                let look = go_on(node, link, &mut self.sending, &ticket, data);
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

/// A task's reply, which is advanced one turn at a time. Dropped before it has left, it tells the
/// client that no reply will come.
#[cfg(feature = "tokio")]
pub(crate) struct Replying<'a> {
    request: Request<'a>,
    long: Option<LongReply>,
}

#[cfg(feature = "tokio")]
impl<'a> Replying<'a> {
    pub fn new(request: Request<'a>) -> Self {
        Self { request, long: None }
    }

    /// The request, to which no part of a reply was sent.
    pub fn into_request(self) -> Request<'a> {
        self.request
    }

    /// Answers that the request has failed; an answer that finds no room is kept.
    pub fn fail(&mut self, code: u32, text: &str) -> Result<(), CallError> {
        let failure = CallFailure::new(code, text)?;
        self.leave(CallAnswer::Failure(failure.bytes())).map(|_| ())
    }

    /// Whether the reply has left without waiting, or was kept to leave when there is room;
    /// `false`: it is long.
    pub fn at_once(&mut self, data: &[u8]) -> Result<bool, CallError> {
        self.leave(CallAnswer::Reply(data))
    }

    fn leave(&mut self, answer: CallAnswer<'_>) -> Result<bool, CallError> {
        let Some(arrived) = &self.request.arrived else { return Ok(true) };
        let Server { manager, offer, .. } = self.request.server;
        let mut guard = manager.shared.lock();
        let (node, protocols) = guard.parts();
        let look = look_to_reply(node, protocols, *offer, arrived, answer, true);
        drop(guard);
        match look {
            Look::Found(Ok(true)) => {
                self.request.arrived = None;
                Ok(true)
            }
            Look::Found(Err(e)) => Err(e),
            _ => Ok(false),
        }
    }

    /// One turn of a long reply: whether it has left.
    pub fn advance(&mut self, data: &[u8]) -> Result<Option<()>, CallError> {
        use crate::node::Attached;
        let Some(arrived) = &self.request.arrived else { return Ok(Some(())) };
        let Server { manager, offer, .. } = self.request.server;
        let long = self.long.get_or_insert_with(LongReply::default);
        let look = {
            let mut guard = manager.shared.lock();
            let (node, protocols) = guard.parts();
            node.poll()?;
            protocols.after_poll(node);
            let look = long.look(node, protocols, *offer, arrived, data);
            match look {
                Look::Room(link) => node.await_room(link),
                // This wakes the task.
                Look::Again => node.wake(),
                _ => {}
            }
            protocols.after_look(node);
            look
        };
        match look {
            Look::Found(Ok(())) => {
                self.request.arrived = None;
                Ok(Some(()))
            }
            Look::Found(Err(e)) => Err(e),
            _ => Ok(None),
        }
    }
}
