//! Tickets (Hamlyn 3.2): everything needed to send one message, and safe to hand on.

#[cfg(feature = "unstable-internals")]
use super::FlowWords;
use super::{Flags, Key, METADATA_MAX, MetadataIndex, NodeId, Share, ShareError, SlotIndex};
use alloc::vec::Vec;

/// Bytes of an encoded ticket: with an offset and a length, 60, which is all the user metadata
/// that a message carries.
pub const TICKET_BYTES: usize = 44;
const _: () = assert!(TICKET_BYTES + 8 + 8 == METADATA_MAX);
/// Largest base and bound that a ticket's bytes can say.
const BOUND_MAX: u64 = (1 << 56) - 1;

/// The right to send one message: the destination, the key, the bytes that it may write, and its
/// share of the entry's counter. Location-independent: it may travel in a message, be split among
/// helpers, and be used from another node.
///
/// `base` and `bound` are offsets in the slot, in bytes, half open. The receiver's own bounds
/// decide; these tell an honest sender which bytes it may use.
///
/// ```
/// # let dir = std::env::temp_dir().join(format!("hamlyn-doc-ticket-{}", std::process::id()));
/// # let config = hamlyn::Config::from_env()?.dir(&dir);
///
/// use hamlyn::{MetadataIndex, Node, SlotConfig, Ticket};
///
/// let mut node = Node::with_config(config)?;
/// let (area, queue) = (node.message_area(4096)?, node.notification_queue(1)?);
/// let slot = node.slot(SlotConfig::new(area, queue))?;
/// let ticket = node.ticket(slot, MetadataIndex(0))?;
/// // As it travels in a message.
/// assert_eq!(Ticket::from_bytes(&ticket.to_bytes())?, ticket);
/// // The right to the upper half, then the whole as two rights, to be passed on separately.
/// assert_eq!(ticket.at(2048)?.capacity(), 2048);
/// let [low, high] = ticket.split_evenly(2)?[..] else { unreachable!() };
/// assert_eq!((low.bound, high.base), (2048, 2048));
/// // Of messages sent with this one, none overtakes another, however long they are.
/// let in_order = ticket.in_order();
/// # assert!(in_order.silent().flags == hamlyn::Flags::IN_ORDER);
/// # drop(node);
/// # std::fs::remove_dir_all(&dir).ok();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
// In the order of the header's words, so that they are copied and not put together.
#[repr(C)]
pub struct Ticket {
    /// The interface that receives.
    pub destination: NodeId,
    /// The slot there.
    pub slot: SlotIndex,
    /// The metadata entry, or [`MetadataIndex::FAST`].
    pub metadata_index: MetadataIndex,
    /// This message's share of the entry's packet counter.
    pub share: Share,
    /// The slot's key, or the entry's where the slot is paranoid.
    pub key: Key,
    /// First byte that may be written.
    pub base: u64,
    /// One past the last byte that may be written.
    pub bound: u64,
    /// Notify, wake, keep in order.
    pub flags: Flags,
}

/// A ticket that cannot be read or split as asked. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[cfg_attr(not(feature = "unstable-internals"), non_exhaustive)]
pub enum TicketError {
    /// Not the length of a ticket.
    #[error("a ticket has {TICKET_BYTES} bytes, and these are {0}")]
    WrongLength(usize),
    /// Flags that no version of this library sets.
    #[error("the ticket's flags are {0:#x}, and only {allowed:#x} have a meaning", allowed = Flags::all().bits())]
    UnknownFlags(u32),
    /// Base after bound.
    #[error("the ticket's base {base} is after its bound {bound}")]
    BaseAfterBound {
        /// First byte.
        base: u64,
        /// One past the last byte.
        bound: u64,
    },
    /// A part reaches outside the ticket that is split.
    #[error("the part {base}..{bound} is not inside the ticket's {whole_base}..{whole_bound}")]
    OutsideTicket {
        /// The part's first byte.
        base: u64,
        /// One past the part's last byte.
        bound: u64,
        /// The ticket's first byte.
        whole_base: u64,
        /// One past the ticket's last byte.
        whole_bound: u64,
    },
    /// Two parts share bytes.
    #[error("two parts of the ticket share byte {0}")]
    Overlap(u64),
    /// A ticket in fast mode has no counter to share.
    #[error("a ticket in fast mode cannot be split: it has no packet counter")]
    Fast,
    /// The shares do not fit.
    #[error(transparent)]
    Share(#[from] ShareError),
}

impl Ticket {
    /// Bytes that may be written, from `base` to `bound`.
    #[inline]
    pub fn capacity(&self) -> u64 {
        self.bound.saturating_sub(self.base)
    }

    /// The same ticket for the bytes from `offset` on, counted from the ticket's base.
    pub fn at(mut self, offset: u64) -> Result<Self, TicketError> {
        if offset > self.capacity() {
            let (whole_base, whole_bound) = (self.base, self.bound);
            let base = whole_base.saturating_add(offset);
            return Err(TicketError::OutsideTicket { base, bound: base, whole_base, whole_bound });
        }
        self.base += offset;
        Ok(self)
    }

    /// The same ticket without a notification: the data moves, and the receiver gets no notice. Nor
    /// does a packet wake a receiver that sleeps; to wake it, add [`Flags::WAKE`].
    pub fn silent(mut self) -> Self {
        self.flags -= Flags::NOTIFY | Flags::WAKE;
        self
    }

    /// The same ticket, whose packets stay [in order](Flags::IN_ORDER).
    pub fn in_order(mut self) -> Self {
        self.flags |= Flags::IN_ORDER;
        self
    }

    /// The same ticket with other flags.
    pub fn with_flags(mut self, flags: Flags) -> Self {
        self.flags = flags;
        self
    }

    /// Little-endian: destination (8 bytes), slot, metadata index (4 each), key (8), share (4),
    /// base, bound (7 each: no address space has 2^56 bytes), flags, and one byte that is zero.
    pub fn to_bytes(&self) -> [u8; TICKET_BYTES] {
        let mut bytes = [0; TICKET_BYTES];
        let seven = |value: u64| value.min(BOUND_MAX).to_le_bytes();
        bytes[0..8].copy_from_slice(&self.destination.0.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.slot.0.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.metadata_index.0.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.key.0.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.share.to_wire().to_le_bytes());
        bytes[28..35].copy_from_slice(&seven(self.base)[..7]);
        bytes[35..42].copy_from_slice(&seven(self.bound)[..7]);
        bytes[42] = self.flags.bits();
        bytes
    }

    /// Reads a ticket that any sender may have written. A well-formed ticket is not yet a valid
    /// one: only the receiver's interface knows that, when a packet arrives.
    #[inline]
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, TicketError> {
        let bytes: &[u8; TICKET_BYTES] =
            bytes.try_into().map_err(|_| TicketError::WrongLength(bytes.len()))?;
        Self::check(bytes)?;
        Ok(Self::from_checked(bytes))
    }

    /// Whether these bytes are a ticket.
    #[inline]
    pub fn check(bytes: &[u8; TICKET_BYTES]) -> Result<(), TicketError> {
        let flags = u32_at(bytes, 40) >> 16;
        let (base, bound) = bounds(bytes);
        if flags <= u32::from(Flags::all().bits()) && base <= bound {
            return Ok(());
        }
        Err(why_none(flags, base, bound))
    }

    /// Decodes bytes that have passed [`check`](Self::check). The two are separate because a ticket
    /// that comes out of a `Result` is stored piece by piece and read whole, which stalls.
    #[inline]
    pub fn from_checked(bytes: &[u8; TICKET_BYTES]) -> Self {
        let (base, bound) = bounds(bytes);
        Self {
            destination: NodeId(u64_at(bytes, 0)),
            slot: SlotIndex(u32_at(bytes, 8)),
            metadata_index: MetadataIndex(u32_at(bytes, 12)),
            share: Share::from_wire(u32_at(bytes, 24)),
            key: Key(u64_at(bytes, 16)),
            base,
            bound,
            flags: Flags::from_bits_truncate(bytes[42]),
        }
    }

    /// Delegation (Hamlyn 2.5): divides buffer space and counter among helpers. Each part is
    /// `(base, bound, share)` in the slot's offsets; the parts lie inside this ticket, share no
    /// byte, and their shares add to this ticket's. Using this ticket afterwards, beside its
    /// parts, is the holder's mistake; the receiver's count then never reaches zero.
    ///
    /// ```
    /// # let dir = std::env::temp_dir().join(format!("hamlyn-doc-split-{}", std::process::id()));
    /// use hamlyn::{Flags, MetadataIndex, Node, Share, SlotConfig, Ticket};
    ///
    /// # let config = hamlyn::Config::from_env()?.dir(&dir);
    /// let mut node = Node::with_config(config)?;
    /// # let (area, queue) = (node.message_area(4096)?, node.notification_queue(1)?);
    /// # let slot = node.slot(SlotConfig::new(area, queue))?;
    /// let ticket = node.ticket(slot, MetadataIndex(0))?;
    /// let shares = Share::WHOLE.split_evenly(2)?;
    /// let parts = ticket.split(&[(0, 100, shares[0]), (100, 4096, shares[1])])?;
    /// assert_eq!(parts[1].capacity(), 3996);
    /// // A notification, but no wake-up.
    /// let quiet = parts[0].with_flags(Flags::NOTIFY).to_bytes();
    /// // In two steps, for a caller that keeps the bytes.
    /// Ticket::check(&quiet)?;
    /// assert_eq!(Ticket::from_checked(&quiet).flags, Flags::NOTIFY);
    /// # drop(node);
    /// # std::fs::remove_dir_all(&dir).ok();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn split(&self, parts: &[(u64, u64, Share)]) -> Result<Vec<Ticket>, TicketError> {
        if self.metadata_index == MetadataIndex::FAST {
            return Err(TicketError::Fast);
        }
        let mut ranges: Vec<(u64, u64)> = Vec::with_capacity(parts.len());
        for &(base, bound, _) in parts {
            if base > bound {
                return Err(TicketError::BaseAfterBound { base, bound });
            }
            if base < self.base || bound > self.bound {
                return Err(TicketError::OutsideTicket {
                    base,
                    bound,
                    whole_base: self.base,
                    whole_bound: self.bound,
                });
            }
            if base < bound {
                ranges.push((base, bound));
            }
        }
        ranges.sort_unstable();
        if let Some(pair) = ranges.windows(2).find(|pair| pair[1].0 < pair[0].1) {
            return Err(TicketError::Overlap(pair[1].0));
        }
        let shares: Vec<Share> = parts.iter().map(|part| part.2).collect();
        self.share.check_split(&shares)?;
        Ok(parts
            .iter()
            .map(|&(base, bound, share)| Ticket { base, bound, share, ..*self })
            .collect())
    }

    /// [`split`](Self::split) into `n` parts of nearly equal space and share.
    pub fn split_evenly(&self, n: u64) -> Result<Vec<Ticket>, TicketError> {
        let shares = self.share.split_evenly(n)?;
        let (each, rest) = (self.capacity() / n, self.capacity() % n);
        let mut base = self.base;
        let parts: Vec<_> = (0..n)
            .zip(shares)
            .map(|(i, share)| {
                let bound = base + each + (i < rest) as u64;
                let part = (base, bound, share);
                base = bound;
                part
            })
            .collect();
        self.split(&parts)
    }
}

/// A ticket in its encoded form, of which each part is read on demand: for a caller that sends with
/// bytes that are not a [`Ticket`] yet, and would otherwise have to keep all parts until then.
#[cfg(feature = "unstable-internals")]
#[derive(Clone, Copy, Debug)]
pub struct TicketBytes<'a>(&'a [u8; TICKET_BYTES]);

#[cfg(feature = "unstable-internals")]
impl<'a> TicketBytes<'a> {
    /// From bytes that any sender may have written.
    #[inline]
    pub fn new(bytes: &'a [u8; TICKET_BYTES]) -> Self {
        Self(bytes)
    }

    /// The interface that receives.
    #[inline]
    pub fn destination(&self) -> NodeId {
        NodeId(u64_at(self.0, 0))
    }

    /// Whether the bytes are a ticket, as in [`Ticket::check`], that allows `bytes` data bytes.
    #[inline]
    pub fn allows(&self, bytes: u32) -> bool {
        let (base, bound) = bounds(self.0);
        let flags = u32_at(self.0, 40) >> 16;
        // Neither has more than 56 bits.
        flags <= u32::from(Flags::all().bits()) && base + u64::from(bytes) <= bound
    }

    /// Actions on completion of the message.
    #[inline]
    pub fn flags(&self) -> Flags {
        Flags::from_bits_truncate(self.0[42])
    }

    /// The words of the header of a message of one packet without metadata, as in
    /// [`Header::flow`](super::Header::flow).
    #[inline]
    pub fn flow(&self) -> FlowWords {
        let pair = |low, high| u32_at(self.0, low) as u64 | (u32_at(self.0, high) as u64) << 32;
        [pair(0, 8), pair(12, 24), u64_at(self.0, 16), (self.0[42] as u64) << 8]
    }

    /// The first byte that may be written, from the slot's base.
    #[inline]
    pub fn base(&self) -> u64 {
        bounds(self.0).0
    }
}

#[inline]
fn u32_at(bytes: &[u8; TICKET_BYTES], at: usize) -> u32 {
    bytes[at..].first_chunk().map_or(0, |word| u32::from_le_bytes(*word))
}

#[inline]
fn u64_at(bytes: &[u8; TICKET_BYTES], at: usize) -> u64 {
    bytes[at..].first_chunk().map_or(0, |word| u64::from_le_bytes(*word))
}

/// Base and bound.
#[inline]
fn bounds(bytes: &[u8; TICKET_BYTES]) -> (u64, u64) {
    (u64_at(bytes, 28) & BOUND_MAX, u64_at(bytes, 34) >> 8)
}

#[cold]
#[inline(never)]
fn why_none(flags: u32, base: u64, bound: u64) -> TicketError {
    if flags > u32::from(Flags::all().bits()) {
        return TicketError::UnknownFlags(flags);
    }
    TicketError::BaseAfterBound { base, bound }
}

// So that every number up to `Flags::all()` is a valid set of flags.
const _: () = assert!((Flags::all().bits() + 1).is_power_of_two());

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Header;
    use proptest::prelude::*;

    fn ticket() -> Ticket {
        Ticket {
            destination: NodeId(1),
            slot: SlotIndex(2),
            metadata_index: MetadataIndex(3),
            key: Key(4),
            base: 100,
            bound: 200,
            flags: Flags::NOTIFY | Flags::WAKE,
            share: Share::WHOLE,
        }
    }

    #[test]
    fn a_split_that_overlaps_leaves_or_miscounts_is_refused() {
        let half = Share::new(1 << 31).unwrap();
        assert!(ticket().split(&[(100, 150, half), (150, 200, half)]).is_ok());
        assert_eq!(
            ticket().split(&[(100, 151, half), (150, 200, half)]),
            Err(TicketError::Overlap(150))
        );
        assert!(matches!(
            ticket().split(&[(99, 150, half), (150, 200, half)]),
            Err(TicketError::OutsideTicket { base: 99, .. })
        ));
        assert!(matches!(
            ticket().split(&[(100, 150, half)]),
            Err(TicketError::Share(ShareError::WrongSum { .. }))
        ));
    }

    #[test]
    fn bytes_with_other_flags_or_a_base_after_the_bound_are_no_ticket() {
        let good = ticket().to_bytes();
        let with = |place: usize, byte: u8| {
            let mut bytes = good;
            bytes[place] = byte;
            assert_eq!(Ticket::check(&bytes).err(), Ticket::from_bytes(&bytes).err());
            Ticket::from_bytes(&bytes)
        };
        assert_eq!(with(0, 1), Ok(ticket()));
        assert_eq!(with(42, 8), Err(TicketError::UnknownFlags(8)));
        assert_eq!(with(43, 1), Err(TicketError::UnknownFlags(0x103)));
        assert_eq!(with(28, 200).map(|ticket| ticket.capacity()), Ok(0));
        assert_eq!(with(28, 201), Err(TicketError::BaseAfterBound { base: 201, bound: 200 }));
        // The highest byte of each.
        let base = 100 | 1 << 48;
        assert_eq!(with(34, 1), Err(TicketError::BaseAfterBound { base, bound: 200 }));
        assert_eq!(with(41, 1).map(|ticket| ticket.bound), Ok(200 | 1 << 48));
    }

    proptest! {
        #[test]
        fn the_bytes_of_a_ticket_say_what_the_ticket_says(
            bytes in any::<[u8; 28]>(), base in 0..1u64 << 56, span in 0u64..40, flags in 0u8..10,
        ) {
            let mut all = [0; TICKET_BYTES];
            all[..28].copy_from_slice(&bytes);
            all[28..35].copy_from_slice(&base.to_le_bytes()[..7]);
            // Also after the bound, and at its highest value.
            let bound = (base + span).saturating_sub(8).min(BOUND_MAX);
            all[35..42].copy_from_slice(&bound.to_le_bytes()[..7]);
            all[42] = flags;
            let (ticket, view) = (Ticket::from_bytes(&all), TicketBytes::new(&all));
            for length in [0, 1, 16, 31, 32, u32::MAX] {
                let allowed = ticket.is_ok_and(|ticket| ticket.capacity() >= length as u64);
                prop_assert_eq!(view.allows(length), allowed);
            }
            let Ok(ticket) = ticket else { return Ok(()) };
            prop_assert_eq!((view.destination(), view.flags()), (ticket.destination, ticket.flags));
            let header = Header {
                destination: ticket.destination.destination(),
                slot: ticket.slot,
                metadata_index: ticket.metadata_index,
                key: ticket.key,
                offset: ticket.base,
                length: 0,
                delta: ticket.share.to_wire(),
                metadata_len: 0,
                flags: ticket.flags,
                word: 0,
            };
            prop_assert_eq!((view.flow(), view.base()), (header.flow(), ticket.base));
        }

        #[test]
        fn any_bytes_are_a_ticket_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..50)) {
            if let Ok(ticket) = Ticket::from_bytes(&bytes) {
                prop_assert_eq!(&ticket.to_bytes()[..], &bytes[..]);
            }
        }

        #[test]
        fn even_splits_cover_the_ticket(n in 1u64..40) {
            let parts = ticket().split_evenly(n).unwrap();
            prop_assert_eq!(parts.iter().map(Ticket::capacity).sum::<u64>(), 100);
            prop_assert_eq!(parts.iter().map(|t| t.share.get()).sum::<u64>(), 1 << 32);
        }
    }
}
