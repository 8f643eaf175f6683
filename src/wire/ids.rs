//! The names of things on the wire. An index, a count and a size are different types.

use core::fmt;

/// One interface, that is, one [`Node`](crate::node::Node): the first 64 bits of the hash of a
/// public key. The node proves that it has the key when it connects, so no other can pass for it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub u64);

impl NodeId {
    /// The destination that packets for this node carry.
    ///
    /// ```
    /// use hamlyn::{Destination, NodeId};
    ///
    /// // Packets carry half of the id: enough to find a link, but no proof of identity.
    /// assert_eq!(NodeId(0x0123_4567_89ab_cdef).destination(), Destination(0x89ab_cdef));
    /// ```
    #[inline]
    pub const fn destination(self) -> Destination {
        Destination(self.0 as u32)
    }
}

/// Destination host ID of Table 1, in each packet: the low half of the [`NodeId`]. It exposes
/// misdirected packets; the whole id decides which link leads to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Destination(pub u32);

/// Small integer that names a slot of the destination (Hamlyn 2.2).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SlotIndex(pub u32);

/// Index of a metadata entry in the slot's metadata area (Hamlyn 2.4): the message's name.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MetadataIndex(pub u32);

impl core::fmt::Display for MetadataIndex {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "metadata entry {}", self.0)
    }
}

impl MetadataIndex {
    /// All ones: the packet is in fast mode and has no metadata entry (Hamlyn 2.7).
    pub const FAST: Self = Self(u32::MAX);
}

/// A 64-bit protection key (Hamlyn 2.2). Its holder may write; it is never printed.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key(pub u64);

impl fmt::Debug for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {:016x}", self.0)
    }
}
impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}
impl fmt::Debug for SlotIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "slot {}", self.0)
    }
}
impl fmt::Debug for MetadataIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::FAST { f.write_str("fast") } else { write!(f, "entry {}", self.0) }
    }
}
impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}
