//! The apertures of a link, as its table knows them: `aperture.rs` has their states and bounds.

use crate::control::frame::{LinkSide, owner_of};
use crate::wire::ApertureAccess;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

/// Most apertures of one owner on a link, for any settings.
pub(in crate::control::machine) const ROWS_MAX: usize = 256;
/// Most of them that the holder has not yet mapped.
pub(in crate::control::machine) const WAITING_MAX: usize = 16;

/// One aperture of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::control::machine) enum ApertureRow {
    /// Ours; offered to the holder.
    Offered { bytes: u64 },
    /// Ours; it was passed, and is not yet mapped.
    Passed,
    /// Ours; held.
    Live,
    /// Ours; revoked, and the holder has yet to confirm its release.
    Revoked,
    /// Theirs; waits for a receiver.
    Wanted { bytes: u64, access: ApertureAccess, until_ns: u64 },
    /// Theirs; a receiver waits for it.
    Taking { bytes: u64 },
    /// Theirs; mapped here.
    Held { bytes: u64 },
    /// Theirs; revoked, and the application has yet to release it.
    Recalled { bytes: u64 },
    /// Theirs; refused or released here.
    Released,
}

impl ApertureRow {
    /// Bytes of the other end's that this process has, or is about to.
    pub fn bytes_held(&self) -> Option<u64> {
        match self {
            Self::Wanted { bytes, .. }
            | Self::Taking { bytes }
            | Self::Held { bytes }
            | Self::Recalled { bytes } => Some(*bytes),
            _ => None,
        }
    }
}

/// All of one link.
#[derive(Debug, Default)]
pub(in crate::control::machine) struct LinkApertures {
    pub made: u32,
    pub last_theirs: u32,
    pub rows: BTreeMap<u32, ApertureRow>,
}

impl LinkApertures {
    pub fn of(&self, owner: LinkSide) -> impl Iterator<Item = &ApertureRow> {
        self.rows.iter().filter(move |row| owner_of(*row.0) == owner).map(|row| row.1)
    }

    /// The number of the other end's apertures that this process holds.
    pub fn held(&self) -> u32 {
        self.rows.values().filter(|row| row.bytes_held().is_some()).count() as u32
    }

    pub fn bytes_held(&self) -> u64 {
        self.rows.values().filter_map(ApertureRow::bytes_held).sum()
    }

    /// The deadline of the first that waits for a receiver.
    pub fn until_ns(&self) -> Option<u64> {
        let until = |row: &ApertureRow| match row {
            ApertureRow::Wanted { until_ns, .. } => Some(*until_ns),
            _ => None,
        };
        self.rows.values().filter_map(until).min()
    }

    /// Those whose deadline has passed.
    pub fn late(&self, now_ns: u64) -> Vec<u32> {
        let is_late = |row: &ApertureRow| matches!(row, ApertureRow::Wanted { until_ns, .. } if *until_ns <= now_ns);
        self.rows.iter().filter(|row| is_late(row.1)).map(|row| *row.0).collect()
    }

    /// A receiver waits for it from now on.
    pub fn take(&mut self, number: u32) -> Option<(u64, ApertureAccess)> {
        let row = self.rows.get_mut(&number)?;
        let ApertureRow::Wanted { bytes, access, .. } = *row else { return None };
        *row = ApertureRow::Taking { bytes };
        Some((bytes, access))
    }
}
