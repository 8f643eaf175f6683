//! Calls that never wait, for bindings, which have their own words for errors and reasons.

use super::Manager;
use crate::interface::{Notification, QueueId};
use crate::wire::{Ticket, TicketBytes};

impl Manager {
    /// Limits how long the drop of the last clone of this manager waits for the library's own threads
    /// to end. Bindings need this to close a manager that may have clones.
    pub fn end_within(&self, limit: Option<core::time::Duration>) {
        self.shared.lock().control_apart().end_within(limit);
    }

    /// [`send`](Self::send) of one packet that can leave now; `false`: nothing was done. Bindings
    /// need not convert their arguments for a wait before they try this. Call it from one place in
    /// a library: it is not inlined into several.
    #[inline(always)]
    pub fn send_at_once(&self, ticket: &Ticket, data: &[u8], metadata: &[u8]) -> bool {
        self.shared.send_at_once(ticket, data, metadata)
    }

    /// The same without metadata and with a ticket in its wire form, if lately this thread alone uses
    /// the manager. `false`, too, if the bytes are no ticket. [`send`](Self::send) goes on.
    #[inline(always)]
    pub fn send_alone(&self, ticket: TicketBytes<'_>, data: &[u8]) -> bool {
        self.shared.send_alone(ticket, data)
    }

    /// [`recv`](Self::recv) of a waiting notification, which is passed to `to` under the lock, if
    /// lately this thread alone uses the manager. `false`: nothing was done, and
    /// [`recv`](Self::recv) goes on.
    #[inline(always)]
    pub fn recv_alone(&self, queue: QueueId, to: impl Fn(Notification)) -> bool {
        self.shared.recv_alone(queue, to)
    }

    /// [`recv`](Self::recv) of a waiting notification; `None`: nothing was done. For bindings, too.
    #[inline(always)]
    pub fn recv_at_once(&self, queue: QueueId) -> Option<Notification> {
        self.shared.recv_at_once(queue)
    }
}
