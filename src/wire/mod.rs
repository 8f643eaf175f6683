//! The values on the wire: identifiers, the packet header (Table 1), tickets, counting shares.
//!
//! Everything here is a value: nothing borrows memory that another process can write, and
//! decoding never fails. [`crate::interface`] decides whether a decoded value is *allowed*.

mod aperture;
mod header;
mod ids;
mod reason;
mod share;
mod ticket;

pub use aperture::{APERTURE_PAGE_BYTES, ApertureAccess};
pub use header::{
    BodyLayout, Flags, FlowWords, HEADER_WORDS, Header, INLINE_BYTES, LINE_BYTES, LINE_WORDS,
    METADATA_MAX, SHORT_HEADER_WORDS, Varying,
};
pub use ids::{Destination, Key, MetadataIndex, NodeId, SlotIndex};
pub use reason::Reason;
pub use share::{Share, ShareError};
/// Longest token in bytes, by which a process of an unknown user is admitted.
pub const TOKEN_BYTES_MAX: usize = 32;

#[cfg(feature = "unstable-internals")]
pub use ticket::TicketBytes;
pub use ticket::{TICKET_BYTES, Ticket, TicketError};
