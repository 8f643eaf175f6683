//! What lies on the wire: identifiers, the packet header (Table 1), tickets, counting shares.
//!
//! Everything here is a value: nothing borrows memory that another process can write, and
//! decoding never fails. Whether a decoded value is *allowed* is for [`crate::interface`] to say.

mod header;
mod ids;
mod share;
mod ticket;

pub use header::{
    BodyLayout, Flags, HEADER_WORDS, Header, INLINE_BYTES, LINE_BYTES, LINE_WORDS, METADATA_MAX,
};
pub use ids::{Key, MetadataIndex, NodeId, SlotIndex};
pub use share::{Share, ShareError};
pub use ticket::{TICKET_BYTES, Ticket, TicketError};
