//! The reasons for which a peer refuses, as numbers on the wire.

/// The reason for which a peer refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(not(feature = "unstable-internals"), non_exhaustive)]
pub enum Reason {
    /// The versions cannot talk.
    Version,
    /// One end requires a feature that the other lacks.
    Feature,
    /// The user may not connect.
    User,
    /// The user has too many connections.
    Connections,
    /// The user has too many bytes mapped.
    Bytes,
    /// The process has too many links.
    Links,
    /// The application refused.
    Application,
    /// The frame made no sense.
    Malformed,
    /// It took too long.
    TooSlow,
    /// The memory was not as agreed.
    Memory,
    /// The process lacks a resource.
    Unavailable,
    /// More apertures, or more bytes of them, than it holds for this link.
    Apertures,
    /// It claimed to be a node, and could not prove it.
    Identity,
    /// The end point has as many peers as it may, or may have of this user.
    Places,
    /// The process, or the end point, is ending, and does not serve this name any more.
    Ending,
    /// A reason that only a newer version knows.
    Other(u16),
}

impl Reason {
    const ALL: [(Self, u16, &'static str); 15] = [
        (Self::Version, 1, "the versions cannot talk"),
        (Self::Feature, 2, "a required feature is missing"),
        (Self::User, 3, "this user may not connect"),
        (Self::Connections, 4, "this user has too many connections"),
        (Self::Bytes, 5, "this user has too many bytes of rings"),
        (Self::Links, 6, "the process has too many links"),
        (Self::Application, 7, "the application refused"),
        (Self::Malformed, 8, "the request made no sense"),
        (Self::TooSlow, 9, "it took too long"),
        (Self::Memory, 10, "the memory was not as agreed"),
        (Self::Unavailable, 11, "the process cannot take links now"),
        (
            Self::Apertures,
            12,
            "the process holds no more apertures over this link, or of this user, or none so large",
        ),
        (Self::Identity, 13, "it is not the node that it says it is"),
        (Self::Places, 14, "it has as many as it may"),
        (Self::Ending, 15, "it is ending"),
    ];

    pub(crate) fn to_wire(self) -> u16 {
        match self {
            Self::Other(code) => code,
            _ => Self::ALL.iter().find(|row| row.0 == self).map_or(0, |row| row.1),
        }
    }

    pub(crate) fn from_wire(code: u16) -> Self {
        Self::ALL.iter().find(|row| row.1 == code).map_or(Self::Other(code), |row| row.0)
    }
}

impl core::fmt::Display for Reason {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Other(code) => write!(f, "for a reason with the number {code}"),
            _ => f.write_str(Self::ALL.iter().find(|row| row.0 == *self).map_or("", |row| row.2)),
        }
    }
}
