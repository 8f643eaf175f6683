//! A protocol's state whose panics are caught.
//!
//! ```text
//!   Protocols: admit, joined, left, told, after_poll --> Guarded --> the state, until it panics
//!   Protocols::end_panicked <-- has it panicked? --> its connections end, newcomers are refused
//! ```
//! Never: the state is called again after its panic, except to close.

use super::offers::OfferedService;
use super::{OfferId, Offering, Protocol, Protocols};
use crate::control::{Peer, RequestId};
use crate::interface::guarded;
use crate::node::{Event, Node};
use crate::protocol::Connection;
use core::any::Any;
use core::cell::Cell;
use std::boxed::Box;
use std::string::String;
use std::sync::Arc;
use std::vec::Vec;

/// For newcomers, and for who waits at the seat.
pub(super) const PANICKED: &str = "the protocol of this end point has panicked";

/// A protocol's state, and whether it has panicked.
pub(in crate::protocol) struct Guarded {
    state: Box<dyn Protocol>,
    has_panicked: Cell<bool>,
    has_ended: bool,
}

impl Guarded {
    pub(in crate::protocol) fn new(state: impl Protocol) -> Box<Self> {
        let state = Box::new(state);
        Box::new(Self { state, has_panicked: Cell::new(false), has_ended: false })
    }

    /// The state, whose type the caller knows.
    pub(super) fn state<P: Protocol>(&mut self) -> Option<&mut P> {
        let state: &mut dyn Any = &mut *self.state;
        state.downcast_mut()
    }

    pub(super) fn has_panicked(&self) -> bool {
        self.has_panicked.get()
    }

    /// Whether it has panicked and is yet to be ended; asked once.
    pub(super) fn is_to_end(&mut self) -> bool {
        let is_to_end = self.has_panicked.get() && !self.has_ended;
        self.has_ended |= is_to_end;
        is_to_end
    }

    fn call<R>(&mut self, otherwise: R, call: impl FnOnce(&mut dyn Protocol) -> R) -> R {
        if self.has_panicked.get() {
            return otherwise;
        }
        let Self { state, .. } = self;
        let done = guarded(|| call(&mut **state));
        done.unwrap_or_else(|_| {
            self.has_panicked.set(true);
            otherwise
        })
    }
}

impl OfferedService {
    pub(super) fn has_panicked(&self) -> bool {
        matches!(&self.offer, Offering::Other(state) if state.has_panicked())
    }
}

impl Protocols {
    /// Whether the state of a seat has panicked.
    #[inline]
    pub(super) fn has_panicked(&mut self, id: OfferId) -> bool {
        self.offers.get_mut(&id).is_some_and(|offered| offered.has_panicked())
    }

    /// Ends the connections of protocols that have panicked.
    #[cold]
    pub(super) fn end_panicked(&mut self, node: &mut Node) {
        for index in 0..self.offers.places.len() {
            let Some(Some(offered)) = self.offers.places.get_mut(index) else { continue };
            let id = OfferId { index, number: offered.number };
            if let Offering::Other(state) = &mut offered.offer
                && state.is_to_end()
            {
                self.polled.retain(|polled| *polled != id);
                node.count_panicked_protocol();
                self.hang_up(node, id);
                // Who waits at the seat gets an error.
                node.wake();
            }
        }
    }
}

impl Protocol for Guarded {
    fn check_place(&self, peer: &Peer, body: &[u8]) -> Result<(), String> {
        let failed = || Err(PANICKED.into());
        if self.has_panicked.get() {
            return failed();
        }
        guarded(|| self.state.check_place(peer, body)).unwrap_or_else(|_| {
            self.has_panicked.set(true);
            failed()
        })
    }

    fn admit(
        &mut self,
        node: &mut Node,
        request: RequestId,
        peer: &Peer,
        body: &[u8],
    ) -> Result<Vec<u8>, String> {
        self.call(Err(PANICKED.into()), |state| state.admit(node, request, peer, body))
    }

    fn withdrawn(&mut self, node: &mut Node, request: RequestId) {
        self.call((), |state| state.withdrawn(node, request));
    }

    fn joined(&mut self, node: &mut Node, request: RequestId, connection: &Arc<Connection>) {
        self.call((), |state| state.joined(node, request, connection));
    }

    fn left(&mut self, node: &mut Node, connection: &Connection) {
        self.call((), |state| state.left(node, connection));
    }

    fn told(&mut self, node: &mut Node, connection: &Connection, event: Event) -> Option<Event> {
        self.call(None, |state| state.told(node, connection, event))
    }

    fn takes_turns(&self) -> bool {
        self.state.takes_turns()
    }

    fn after_poll(&mut self, node: &mut Node) {
        self.call((), |state| state.after_poll(node));
    }

    fn close(&mut self, node: &mut Node) {
        let Self { state, .. } = self;
        let _ = guarded(|| state.close(node));
    }
}
