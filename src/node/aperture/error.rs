//! The reasons why an aperture was not exported.

use super::{ApertureId, Forked, LinkError, NoSuchAperture, PAGE_BYTES, control};
use std::io;
use std::string::String;

/// An aperture that could not be exported. Nothing was changed.
#[derive(Debug, thiserror::Error)]
#[cfg_attr(not(feature = "unstable-internals"), non_exhaustive)]
pub enum ExportError {
    /// The size is not allowed.
    #[error("an aperture is at least one whole page of {PAGE_BYTES} bytes, and {0} bytes are none")]
    Unaligned(u64),
    /// More than one holder may have.
    #[error(
        "{bytes} bytes beside the {used} exported over this link exceed the limit of {limit} \
             (HAMLYN_APERTURE_LINK_BYTES_MAX)"
    )]
    LinkBytes {
        /// Bytes asked for.
        bytes: u64,
        /// Bytes exported over the link.
        used: u64,
        /// The limit.
        limit: u64,
    },
    /// More than this process may export, to all holders or to those of one user.
    #[error(
        "{bytes} bytes beside the {used} exported exceed the limit of {limit} ({variable}); \
         {orphans} bytes are of revoked apertures that their holders still have"
    )]
    Bytes {
        /// Bytes asked for.
        bytes: u64,
        /// Bytes exported under this limit.
        used: u64,
        /// Bytes in revoked apertures, of all users, that their holders still have.
        orphans: u64,
        /// The limit.
        limit: u64,
        /// The limit's setting.
        variable: &'static str,
    },
    /// Processes of this user got too many apertures that were revoked and are not yet released: by
    /// these processes or, for an aperture with [several holders](crate::Node::export_also), by
    /// another user's.
    #[error(
        "somebody still has {0} revoked apertures that processes of this user were given; no more \
         are exported to this user until those are let go of"
    )]
    Orphans(usize),
    /// Its holder may write it, and so it cannot have another.
    #[error("{0} is read-write, and such an aperture has one holder, unless others may write it")]
    OneHolder(ApertureId),
    /// There is no such aperture to export once more.
    #[error(transparent)]
    NoSuchAperture(#[from] NoSuchAperture),
    /// A node needs no aperture to itself.
    #[error(
        "the link of a node to itself has no apertures: there is nobody to map its memory into"
    )]
    ToSelf,
    /// The holder would be on another host, to which no memory can be opened, for this reason.
    #[error(
        "the other end of the link is on another host, to which no memory is open ({0}); send messages, \
         which are copied"
    )]
    OtherHost(String),
    /// Not over this link, or not now.
    #[error(transparent)]
    Control(#[from] control::ApertureError),
    /// The link is gone.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// The system refused.
    #[error("an aperture of {bytes} bytes could not be made: {error}")]
    Os {
        /// Bytes asked for.
        bytes: u64,
        /// The system's error.
        error: io::Error,
    },
    /// The calling process is a forked child.
    #[error(transparent)]
    Forked(#[from] Forked),
}
