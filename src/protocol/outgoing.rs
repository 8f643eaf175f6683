//! Messages of any length over one link: one at a time, in order, each sent to its end.
//!
//! A time limit may cut a long message off when part of it has left. The receiver counts packets,
//! so the rest must follow, or its entry never comes out at zero (Hamlyn 2.5); the caller's slice
//! is gone by then. So the message is copied at that moment, and goes on first in the next call.

use super::ends::ended;
use super::{Connection, Manager, SendError};
use crate::interface::LinkId;
use crate::node::{Look, Node, NodeSendError, Unfinished, WaitError};
use crate::wire::Ticket;
use core::time::Duration;
use std::vec::Vec;

/// The message that a time limit has cut off.
#[derive(Debug, Default)]
pub(crate) struct Outgoing {
    rest: Option<(Unfinished, Vec<u8>)>,
}

/// A message that is on its way out; lives as long as one call.
pub(crate) struct OutgoingMessage<'a> {
    pub ticket: Ticket,
    pub data: &'a [u8],
    pub metadata: &'a [u8],
    begun: Option<Unfinished>,
}

impl<'a> OutgoingMessage<'a> {
    pub fn new(ticket: Ticket, data: &'a [u8], metadata: &'a [u8]) -> Self {
        Self { ticket, data, metadata, begun: None }
    }
}

impl Outgoing {
    /// A look of [`Manager::wait_for`]: the rest of a message that was cut
    /// off, then the message.
    pub fn look(
        &mut self,
        node: &mut Node,
        connection: &Connection,
        message: &mut OutgoingMessage<'_>,
    ) -> Look<Result<(), SendError>> {
        match self.look_at_rest(node, connection) {
            Look::Found(Ok(())) => {}
            other => return other,
        }
        let OutgoingMessage { ticket, data, metadata, begun } = message;
        let sent = node.look_to_send_over(connection.link(), ticket, begun, data, metadata);
        sent.map(|sent| sent.map_err(|e| failed(e, connection)))
    }

    /// A look that sends the rest of a message that was cut off.
    fn look_at_rest(
        &mut self,
        node: &mut Node,
        connection: &Connection,
    ) -> Look<Result<(), SendError>> {
        if let Some(ended_by) = connection.ended() {
            return Look::Found(Err(SendError::Ended(ended_by.clone())));
        }
        let Some((unfinished, data)) = &mut self.rest else { return Look::Found(Ok(())) };
        let sent = node.look_to_send(unfinished, &data[..], &[]);
        if let Look::Found(Ok(_)) = sent {
            self.rest = None;
        }
        sent.map(|sent| sent.map_err(|e| failed(e, connection)))
    }

    /// Waits at most `timeout` until the rest of a message that was cut off has left.
    pub fn flush(
        &mut self,
        manager: &Manager,
        connection: &Connection,
        timeout: Option<Duration>,
    ) -> Result<(), SendError> {
        if self.is_idle() {
            return Ok(());
        }
        let look = |node: &mut Node, _: &mut _| self.look_at_rest(node, connection);
        match manager.shared.wait_until(timeout, look) {
            Err(WaitError::TimedOut) => Err(SendError::CutOff),
            Err(waited) => Err(waited.into()),
            Ok(result) => result,
        }
    }

    /// Sends a message, waiting at most `timeout` for room.
    pub fn send(
        &mut self,
        manager: &Manager,
        connection: &Connection,
        mut message: OutgoingMessage<'_>,
        timeout: Option<Duration>,
    ) -> Result<(), SendError> {
        let sent =
            manager.shared.wait_until(timeout, |node, _| self.look(node, connection, &mut message));
        match sent {
            Err(WaitError::TimedOut) if self.keep(message) => Err(SendError::CutOff),
            Err(waited) => Err(waited.into()),
            Ok(result) => result,
        }
    }

    /// Goes on with the rest, as far as the link has room; names the link if it has none.
    pub fn go_on(&mut self, node: &mut Node, connection: &Connection) -> Option<LinkId> {
        let (unfinished, data) = self.rest.as_mut()?;
        loop {
            match node.look_to_send(unfinished, &data[..], &[]) {
                Look::Again => {}
                Look::Room(_) | Look::Nothing => return Some(connection.link()),
                Look::Found(_) => break,
            }
        }
        self.rest = None;
        None
    }

    /// Whether no message was cut off.
    pub fn is_idle(&self) -> bool {
        self.rest.is_none()
    }

    /// Call it after the time limit has passed: keeps a message that has left in part. `true`: do
    /// not send the message again.
    pub fn keep(&mut self, message: OutgoingMessage<'_>) -> bool {
        match message.begun {
            Some(unfinished) if unfinished.has_begun() => {
                self.rest = Some((unfinished, message.data.to_vec()));
                true
            }
            _ => false,
        }
    }
}

fn failed(e: NodeSendError, connection: &Connection) -> SendError {
    match e {
        NodeSendError::LinkEnded(_) | NodeSendError::Unreachable(_) => ended(connection),
        e => e.into(),
    }
}
