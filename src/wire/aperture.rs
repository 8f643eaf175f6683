//! The rights that an aperture gives its holder.

use core::fmt;

/// An aperture is whole pages of this many bytes.
pub const APERTURE_PAGE_BYTES: u64 = 4096;

/// The rights of the holder of an aperture. They are fixed when it is exported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ApertureAccess {
    /// Write and read, at any time until it is revoked; also give pages back, which makes their
    /// bytes zero.
    ReadWrite,
    /// Read. The kernel refuses everything else, through any descriptor.
    ReadOnly,
}

impl fmt::Display for ApertureAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ReadWrite => "read-write",
            Self::ReadOnly => "read-only",
        })
    }
}
