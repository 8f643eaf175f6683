//! Slots (Hamlyn 2.2): base, bound, key, metadata area, notification queue and share, mode.

use super::receiver::Installed;
use super::{AreaId, MetadataEntry, QueueId};
use crate::wire::{Key, MetadataIndex};
use alloc::boxed::Box;
use core::ops::Range;

/// Slot mode (Hamlyn 2.7). Fast mode is not among them: the packet chooses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The slot's key and bounds decide.
    Normal,
    /// Key and limits of the metadata entry decide as well: many senders that do not trust one
    /// another share the slot.
    Paranoid,
    /// As paranoid, and an entry accepts one message until the application arms it again: a message
    /// that has arrived can no longer change.
    ParanoidOneShot,
}

impl core::fmt::Display for Mode {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Normal => "normal",
            Self::Paranoid => "paranoid",
            Self::ParanoidOneShot => "paranoid one-shot",
        })
    }
}

/// A slot of one interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SlotId {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

impl core::fmt::Display for SlotId {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "slot {}", self.index)
    }
}

impl SlotId {
    /// The index that packets name.
    pub fn index(self) -> crate::wire::SlotIndex {
        crate::wire::SlotIndex(self.index)
    }

    /// As a number, for languages that cannot hold this type.
    pub fn to_bits(self) -> u64 {
        (self.index as u64) << 32 | self.generation as u64
    }

    /// From [`to_bits`](Self::to_bits). A number that names no slot here is refused on use, like
    /// the id of a removed slot.
    pub const fn from_bits(bits: u64) -> Self {
        Self { index: (bits >> 32) as u32, generation: bits as u32 }
    }
}

/// The configuration of a slot.
///
/// ```
/// # let dir = std::env::temp_dir().join(format!("hamlyn-doc-slot-{}", std::process::id()));
/// # let config = hamlyn::Config::from_env()?.dir(&dir);
///
/// use hamlyn::{MetadataIndex, Mode, Node, SlotConfig};
///
/// let mut node = Node::with_config(config)?;
/// let (area, queue) = (node.message_area(8192)?, node.notification_queue(6)?);
/// // Four messages at a time may be on their way into the lower half.
/// let low = node.slot(SlotConfig::new(area, queue).range(0..4096).metadata(4))?;
/// // An entry of the upper half, once armed, takes one message, with its own key and bounds.
/// let config = SlotConfig::new(area, queue).range(4096..8192).metadata(2);
/// let high = node.slot(config.mode(Mode::ParanoidOneShot))?;
/// assert!(node.ticket(high, MetadataIndex(0)).is_err(), "it is not armed");
/// node.arm(high, MetadataIndex(0), Some(0..64))?;
/// assert_eq!(node.ticket(high, MetadataIndex(0))?.capacity(), 64);
/// assert_eq!(node.ticket(low, MetadataIndex(3))?.capacity(), 4096);
/// # drop(node);
/// # std::fs::remove_dir_all(&dir).ok();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct SlotConfig {
    pub(crate) area: AreaId,
    pub(crate) queue: QueueId,
    pub(crate) range: Option<Range<u64>>,
    pub(crate) entries: u32,
    pub(crate) mode: Mode,
    pub(crate) credit: Option<u32>,
}

impl SlotConfig {
    /// A slot over the whole of `area` that notifies through `queue`: normal mode, one metadata
    /// entry, a credit of one notification for each entry.
    pub fn new(area: AreaId, queue: QueueId) -> Self {
        Self { area, queue, range: None, entries: 1, mode: Mode::Normal, credit: None }
    }

    /// Base and bound, in bytes from the start of the area. Several slots may overlap.
    pub fn range(mut self, range: Range<u64>) -> Self {
        self.range = Some(range);
        self
    }

    /// Entries of the metadata area: the most messages that may be on their way at once.
    pub fn metadata(mut self, entries: u32) -> Self {
        self.entries = entries;
        self
    }

    /// The mode; normal unless set.
    pub fn mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// Entries of the notification queue that this slot reserves. One for each metadata entry
    /// unless set; a one-shot slot always has exactly that.
    pub fn credit(mut self, credit: u32) -> Self {
        self.credit = Some(credit);
        self
    }
}

/// A slot cannot be made or used as asked. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[cfg_attr(not(feature = "unstable-internals"), non_exhaustive)]
pub enum SlotError {
    /// No such slot, or one that was removed.
    #[error("{0} does not exist: it was removed, or belongs to another interface")]
    NoSuchSlot(SlotId),
    /// No such area.
    #[error(transparent)]
    Area(#[from] super::AreaError),
    /// No such queue, or too few entries left in it.
    #[error(transparent)]
    Queue(#[from] super::QueueError),
    /// Base and bound are not inside the area.
    #[error("the range {start}..{end} is not inside the area's 0..{size}")]
    RangeOutsideArea {
        /// Base.
        start: u64,
        /// Bound.
        end: u64,
        /// Bytes of the area.
        size: u64,
    },
    /// Limits of an entry outside the slot.
    #[error("the limits {start}..{end} are not inside the slot's 0..{size}")]
    LimitsOutsideSlot {
        /// Low limit.
        start: u64,
        /// High limit.
        end: u64,
        /// Bytes of the slot.
        size: u64,
    },
    /// The slot has no such entry.
    #[error("{index} does not exist: the slot has {entries} metadata entries")]
    NoSuchEntry {
        /// The index asked for.
        index: MetadataIndex,
        /// Entries of the slot.
        entries: u32,
    },
    /// Number of metadata entries not allowed.
    #[error("a slot has from 1 to {max} metadata entries, and {0} were asked for", max = ENTRIES_MAX)]
    EntryCount(u32),
    /// Limits and entry keys exist in paranoid modes only, slot tickets in the others.
    #[error("the slot is in mode {mode}: {why}")]
    WrongMode {
        /// The slot's mode.
        mode: Mode,
        /// The consequence here.
        why: &'static str,
    },
    /// The entry accepts nothing until it is armed, so there is no ticket for it.
    #[error("{0} of the slot is closed: arm it before making a ticket")]
    NotArmed(MetadataIndex),
    /// The configuration allows no more slots.
    #[error("there are {0} slots already, and no more are allowed")]
    TooMany(usize),
}

/// Most metadata entries of a slot: 128 MiB of them.
pub const ENTRIES_MAX: u32 = 1 << 20;

/// The interface's record of a slot. Only calls of the application change it.
#[derive(Debug)]
pub(crate) struct Slot {
    pub key: Key,
    /// Bytes from the start of the area.
    pub base: u64,
    /// Bound less base, in bytes.
    pub size: u64,
    pub area: u32,
    pub queue: QueueId,
    pub share: u32,
    pub mode: Mode,
    pub generation: u32,
    pub entries: Box<[MetadataEntry]>,
    /// The application's receiver.
    pub(super) receiver: Option<Installed>,
}
