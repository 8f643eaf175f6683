//! The name of an aperture, and its changes.

use crate::control::Reason;
use crate::interface::LinkId;

/// An aperture of one link. Both ends use the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ApertureId {
    /// The link between owner and holder. Each end has its own name for it.
    pub link: LinkId,
    /// Its number on that link, the same at both ends, and never used again there: messages name
    /// the aperture by it.
    pub number: u32,
}

impl core::fmt::Display for ApertureId {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "aperture {} of {}", self.number, self.link)
    }
}

/// A change of an aperture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "unstable-internals"), non_exhaustive)]
pub enum ApertureEvent {
    /// Owner: the holder has it.
    Ready,
    /// Owner: no process will hold it. Its memory was given back, unless others hold it.
    Refused(Reason),
    /// Owner: the holder has released it. Its memory stays until it is revoked or reclaimed.
    Released,
    /// Holder: it can be used.
    Held,
    /// Holder: its owner revoked it; its [`Aperture`](super::Aperture)s return
    /// [`AccessError::Revoked`](crate::os::aperture::AccessError::Revoked).
    Revoked,
}

/// No aperture of this node has this name, or it is not there yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[cfg_attr(not(feature = "unstable-internals"), non_exhaustive)]
pub enum NoSuchAperture {
    /// Never exported or held here, or revoked, or its link has ended.
    #[error("{0} is not an aperture of this node: it was revoked, or its link has ended")]
    Gone(ApertureId),
    /// Its memory is a publisher's, and shared by many holders.
    #[error("{0} is a publisher's pool, which that alone writes and takes back")]
    Pool(ApertureId),
}
