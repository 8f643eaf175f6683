//! The interface: the network interface card of the paper as a state machine, with no I/O, no
//! threads and no clock of its own (Hamlyn, section 2).
//!
//! Calls:
//! ```text
//! application --> create_area, create_slot, ticket, arm_entry, ..      (the device driver of 3.1)
//!      a link --> handle_packet(link, header, body)                    checks, deposits, counts, notifies
//! application <-- Receiver::process_arrival, observe, place               its own receivers (3.3)
//! application <-- pop(queue)                                           the notification queue (2.6)
//!
//! application --> Terminus::post_immediate, post_gather                the work queue (2.3)
//!      a link <-- terminus::transmit_turn(link)                        segments, one packet a turn
//! ```
//! All state that decides whether a packet may write lies in this module's private memory. A packet
//! is checked whole before its first byte is deposited, so a refusal changes nothing but a counter.
//! At an entry that several links share it also changes the sum of the deltas that the packet's own
//! link has sent, which decides about packets of that link alone.
//!
//! Never: a panic, an allocation or an unbounded walk because of a packet's contents.

mod area;
mod counters;
mod filter;
mod keys;
mod metadata;
pub mod notification;
mod receive;
mod receiver;
mod slot;
mod tables;
pub mod terminus;

pub use area::{AreaError, AreaId};
pub use counters::{Counters, Refusal};
pub use filter::Filter;
pub use keys::SECRET_BYTES;
pub use metadata::{EntryState, MetadataEntry};
#[cfg(feature = "os")]
pub(crate) use notification::QUEUE_ENTRIES_MAX;
pub use notification::{Notification, QueueError, QueueId};
pub use receive::{Arrival, Discard, Flow, Handed, NotDeposited, TakenMessage};
#[cfg(feature = "os")]
pub(crate) use receiver::guarded;
pub use receiver::{Deposit, Message, Receiver, Then};
pub use slot::{Mode, SlotConfig, SlotError, SlotId};
pub use tables::Interface;

/// A link of one interface, in the order in which links were made. Indices are used again after a
/// link has closed; `generation` tells the two apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LinkId {
    /// Position among the interface's links.
    pub index: u32,
    /// Low half of how many links have had this position.
    pub generation: u16,
}

impl core::fmt::Display for LinkId {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "link {}", self.index)
    }
}

impl LinkId {
    /// The link from an interface to itself.
    pub const SELF: Self = Self { index: 0, generation: 0 };
}
