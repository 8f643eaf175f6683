//! Message areas: the contiguous memory that messages land in (Hamlyn 2.2).

/// A message area of one interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AreaId {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

impl core::fmt::Display for AreaId {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "message area {}", self.index)
    }
}

impl AreaId {
    /// As a number, for languages that cannot hold this type.
    pub fn to_bits(self) -> u64 {
        (self.index as u64) << 32 | self.generation as u64
    }

    /// From [`to_bits`](Self::to_bits). A number that names no area here is refused on use, like
    /// the id of a removed area.
    pub fn from_bits(bits: u64) -> Self {
        Self { index: (bits >> 32) as u32, generation: bits as u32 }
    }
}

/// An area cannot be used or removed as asked. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[cfg_attr(not(feature = "unstable-internals"), non_exhaustive)]
pub enum AreaError {
    /// No such area, or one that was removed.
    #[error("{0} does not exist: it was removed, or belongs to another interface")]
    NoSuchArea(AreaId),
    /// Slots still name it.
    #[error("{area} is named by {slots} slots; remove them first")]
    InUse {
        /// The area.
        area: AreaId,
        /// Slots that name it.
        slots: usize,
    },
    /// The configuration allows no more areas.
    #[error("there are {0} message areas already, and no more are allowed")]
    TooMany(usize),
}
