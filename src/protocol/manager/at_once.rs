//! What can be done at once, for bindings: they say in their own words what goes wrong, and why.

use super::Manager;
use crate::interface::{Notification, QueueId};
use crate::wire::{INLINE_BYTES, Ticket, TicketBytes};

impl Manager {
    /// From now on, whoever drops the last of this manager waits at most so long for the library's own
    /// threads to end. For bindings, which close what may have been cloned.
    pub fn end_within(&self, limit: Option<core::time::Duration>) {
        self.shared.lock().control_apart().end_within(limit);
    }

    /// [`send`](Self::send) of one line that can leave now; `false`: nothing was done. For bindings,
    /// which have to make of their own arguments what waiting needs, and can leave that. To be called
    /// from one place in a library: from several it is not inlined.
    #[inline(always)]
    pub fn send_at_once(&self, ticket: &Ticket, data: &[u8], metadata: &[u8]) -> bool {
        self.shared.send_at_once(ticket, data, metadata)
    }

    /// The same of 16 bytes, with a ticket as it travels, where this thread alone uses the manager of
    /// late. `false`, too: it is no ticket. [`send`](Self::send) goes on.
    #[inline(always)]
    pub fn send_line_alone(&self, ticket: TicketBytes<'_>, data: &[u8; INLINE_BYTES]) -> bool {
        self.shared.send_line_alone(ticket, data)
    }

    /// The same of fewer bytes.
    #[inline(always)]
    pub fn send_short_alone(&self, ticket: TicketBytes<'_>, data: &[u8]) -> bool {
        self.shared.send_short_alone(ticket, data)
    }

    /// [`recv`](Self::recv) of what is there, which `to` has under the lock, where this thread alone uses
    /// the manager of late. `false`: nothing was done, and [`recv`](Self::recv) goes on.
    #[inline(always)]
    pub fn recv_alone(&self, queue: QueueId, to: impl Fn(Notification)) -> bool {
        self.shared.recv_alone(queue, to)
    }

    /// [`recv`](Self::recv) of what is there; `None`: nothing was done. For bindings, likewise.
    #[inline(always)]
    pub fn recv_at_once(&self, queue: QueueId) -> Option<Notification> {
        self.shared.recv_at_once(queue)
    }
}
