//! Packet counting (Hamlyn 2.5): counter shares and the deltas of a message's packets.

use core::num::NonZeroU32;
use core::{cmp, fmt};

/// A message's share of its entry's counter: an integer from 1 to 2^32.
///
/// The shares of all messages of a group add, as integers, to exactly 2^32. Each is at least the
/// number of packets that its message can have; so no delta and no partial sum is zero early.
/// On the wire 2^32 is written 0.
///
/// ```
/// use hamlyn::Share;
///
/// // A message in three parts, by three helpers: each announces nothing before all have arrived.
/// let parts = Share::WHOLE.split_evenly(3)?;
/// assert_eq!(parts.iter().map(|part| part.get()).sum::<u64>(), 1 << 32);
/// // A message may not have more packets than its share.
/// assert!(Share::new(2)?.check_packets(3).is_err());
/// assert!(Share::new(0).is_err());
/// # Ok::<(), hamlyn::ShareError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct Share {
    wire: u32,
}

impl fmt::Debug for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Share({})", self.get())
    }
}

impl PartialOrd for Share {
    fn partial_cmp(&self, other: &Self) -> Option<cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Share {
    fn cmp(&self, other: &Self) -> cmp::Ordering {
        self.get().cmp(&other.get())
    }
}

/// A share that cannot be used as asked. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[cfg_attr(not(feature = "unstable-internals"), non_exhaustive)]
pub enum ShareError {
    /// Not an integer from 1 to 2^32.
    #[error("a counter share is from 1 to 4294967296, and this is {0}")]
    OutOfRange(u64),
    /// The parts do not add to the whole.
    #[error("the parts of a counter share add to {sum}, and must add to {whole}")]
    WrongSum {
        /// The sum of the parts.
        sum: u128,
        /// The sum that they must have.
        whole: u64,
    },
    /// A message has more packets than its share.
    #[error(
        "a message of {packets} packets needs a counter share of at least that, and has {share}"
    )]
    TooSmall {
        /// Packets of the message.
        packets: u64,
        /// The share.
        share: u64,
    },
}

impl Share {
    /// 2^32: the share of a message that is alone in its entry.
    pub const WHOLE: Self = Self { wire: 0 };

    /// `value` from 1 to 2^32.
    pub fn new(value: u64) -> Result<Self, ShareError> {
        match value {
            1..=0x1_0000_0000 => Ok(Self { wire: value as u32 }),
            _ => Err(ShareError::OutOfRange(value)),
        }
    }

    /// From the 32 bits that a ticket carries; 0 means 2^32, so every value is valid.
    #[inline]
    pub fn from_wire(wire: u32) -> Self {
        Self { wire }
    }

    /// The 32 bits that a ticket carries.
    #[inline]
    pub fn to_wire(self) -> u32 {
        self.wire
    }

    /// As an integer, from 1 to 2^32.
    #[inline]
    pub fn get(self) -> u64 {
        NonZeroU32::new(self.wire).map_or(1 << 32, |n| n.get() as u64)
    }

    /// Refuses parts that do not add, as integers, to this share.
    ///
    /// ```
    /// use hamlyn::Share;
    ///
    /// // By hand: two helpers that send about as many packets each, and one that sends a few.
    /// let few = Share::new(1000)?;
    /// let rest = Share::from_wire(few.to_wire().wrapping_neg()).split_evenly(2)?;
    /// Share::WHOLE.check_split(&[few, rest[0], rest[1]])?;
    /// assert!(Share::WHOLE.check_split(&rest).is_err());
    /// // Each packet counts 1, and the last counts the rest.
    /// assert_eq!((few.delta(false, 0), few.delta(true, 2)), (1, 998));
    /// # Ok::<(), hamlyn::ShareError>(())
    /// ```
    pub fn check_split(self, parts: &[Share]) -> Result<(), ShareError> {
        let sum: u128 = parts.iter().map(|p| p.get() as u128).sum();
        if sum == self.get() as u128 {
            Ok(())
        } else {
            Err(ShareError::WrongSum { sum, whole: self.get() })
        }
    }

    /// `n` parts as equal as they can be. `n` from 1 to this share.
    pub fn split_evenly(self, n: u64) -> Result<alloc::vec::Vec<Share>, ShareError> {
        if n == 0 || n > self.get() {
            return Err(ShareError::TooSmall { packets: n, share: self.get() });
        }
        let (each, rest) = (self.get() / n, self.get() % n);
        Ok((0..n).map(|i| Share { wire: (each + (i < rest) as u64) as u32 }).collect())
    }

    /// Refuses a message of `packets` packets that this share cannot count.
    ///
    /// Two small shares are the trap: 2 over three packets would give the deltas 1, 1, 0, and the
    /// 0 would announce a message that has not arrived.
    #[inline]
    pub fn check_packets(self, packets: u64) -> Result<(), ShareError> {
        if packets <= self.get() {
            Ok(())
        } else {
            Err(ShareError::TooSmall { packets, share: self.get() })
        }
    }

    /// The delta of packet `index` of `packets`: 1 for each but the last, and the rest of the share
    /// for the last; modulo 2^32. Zero only for a single packet that holds the whole 2^32.
    #[inline]
    pub fn delta(self, is_last: bool, packets_before: u64) -> u32 {
        if is_last { self.wire.wrapping_sub(packets_before as u32) } else { 1 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    fn deltas(share: Share, packets: u64) -> Vec<u32> {
        (0..packets).map(|i| share.delta(i + 1 == packets, i)).collect()
    }

    #[test]
    fn only_a_single_packet_of_the_whole_has_delta_zero() {
        assert_eq!(deltas(Share::WHOLE, 1), [0]);
        assert_eq!(deltas(Share::WHOLE, 3), [1, 1, u32::MAX - 1]);
        assert_eq!(deltas(Share::new(1).unwrap(), 1), [1]);
        assert!(Share::new(2).unwrap().check_packets(3).is_err());
    }

    proptest! {
        // The oracle is plain integer arithmetic: the deltas add to the share, none of several is
        // zero, and no sum of fewer than all of a group's deltas is a multiple of 2^32.
        #[test]
        fn a_group_reaches_zero_exactly_once(
            cuts in proptest::collection::vec(1u64..(1 << 32), 0..6),
            packets in proptest::collection::vec(1u64..9, 7),
            seed in any::<u64>(),
        ) {
            let mut cuts = cuts;
            cuts.sort_unstable();
            cuts.dedup();
            cuts.push(1 << 32);
            let mut shares = Vec::new();
            let mut from = 0;
            for cut in cuts {
                shares.push(Share::new(cut - from).unwrap());
                from = cut;
            }
            prop_assert!(Share::WHOLE.check_split(&shares).is_ok());
            let mut all = Vec::new();
            for (share, &packets) in shares.iter().zip(&packets) {
                let packets = packets.min(share.get());
                prop_assert!(share.check_packets(packets).is_ok());
                let deltas = deltas(*share, packets);
                prop_assert_eq!(deltas.iter().map(|&d| d as u64).sum::<u64>() % (1 << 32), share.get() % (1 << 32));
                all.extend(deltas);
            }
            if all.len() > 1 {
                prop_assert!(all.iter().all(|&d| d != 0));
            }
            // A shuffle that the seed decides, then the accumulator of 2.5.
            let mut state = seed | 1;
            for i in (1..all.len()).rev() {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                all.swap(i, (state >> 33) as usize % (i + 1));
            }
            let mut accumulator = 0u32;
            for (i, delta) in all.iter().enumerate() {
                accumulator = accumulator.wrapping_add(*delta);
                prop_assert_eq!(accumulator == 0, i + 1 == all.len());
            }
        }

        #[test]
        fn even_splits_add_up(whole in 1u64..=(1 << 32), n in 1u64..50) {
            let whole = Share::new(whole).unwrap();
            match whole.split_evenly(n) {
                Ok(parts) => { prop_assert_eq!(parts.len() as u64, n); prop_assert!(whole.check_split(&parts).is_ok()); }
                Err(_) => prop_assert!(n > whole.get()),
            }
        }
    }
}
