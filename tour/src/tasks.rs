//! The tasks that show the protocols: the amount of work for each, and the values that both sides know.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

/// The protocols shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Protocol {
    Seed,
    Datagram,
    Tagged,
    Call,
    Stream,
    ApertureStream,
    Group,
    Delegation,
    Aperture,
    ReadOnly,
}

impl Protocol {
    pub const ALL: [Self; 10] = [
        Self::Seed,
        Self::Datagram,
        Self::Tagged,
        Self::Call,
        Self::Stream,
        Self::ApertureStream,
        Self::Group,
        Self::Delegation,
        Self::Aperture,
        Self::ReadOnly,
    ];
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Seed => "seed",
            Self::Datagram => "datagram",
            Self::Tagged => "tagged remote write",
            Self::Call => "request and reply",
            Self::Stream => "stream",
            Self::ApertureStream => "stream through an aperture",
            Self::Group => "group",
            Self::Delegation => "helpers of a group",
            Self::Aperture => "aperture",
            Self::ReadOnly => "read-only aperture",
        })
    }
}

/// For senders: the receiver's seed as text, or its name.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Place(pub String);

/// One side's result.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Told {
    pub what: String,
    /// Its duration; 0 from the side that did not measure it.
    pub seconds: f64,
    /// From `explain`; empty on the other side.
    pub path: String,
    /// For a group: the member whose death was reported.
    pub lost: Option<Lost>,
}

/// A member of a group that died.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lost {
    pub member: u32,
    pub pid: u32,
}

/// A member's summand.
pub fn member_value(member: u32) -> u64 {
    1000 + u64::from(member)
}

/// The time limit of each side's wait for the other.
pub const PATIENCE: Duration = Duration::from_secs(10);
pub const LIMIT: Option<Duration> = Some(PATIENCE);

// The amount of work for each.
pub const DATAGRAMS: u64 = 1000;
pub const WRITES: u32 = 100_000;
/// Bytes of a write, and places for them: more places than tags, so that each is checked before it
/// is used again.
pub const WRITE_BYTES: usize = 16;
pub const PLACES: u32 = 512;
pub const CALLS: u64 = 10_000;
pub const THREADS: u64 = 2;
pub const RECORDS: u64 = 100_000;
/// One record in so many is long, with so many bytes.
pub const LONG_EVERY: u64 = 10_000;
pub const LONG_BYTES: usize = 1 << 20;
pub const MEMBERS: u32 = 3;
pub const BARRIERS: u32 = 100;
pub const PART_BYTES: usize = 64 << 10;
pub const APERTURE_BYTES: u64 = 16 << 20;
/// Long records of the stream through an aperture, and helpers of one part.
pub const LONG_RECORDS: u64 = 100;
pub const HELPERS: u32 = 3;
/// The offset of the words in the read-only aperture, after the word that announces them.
pub const WORDS_AT: u64 = 64;
pub const WORDS: u64 = 10_000;

/// Word `number` of the read-only aperture.
pub fn word(number: u64) -> u64 {
    (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// The bytes of number `number`, known to both sides.
pub fn pattern(number: u64, length: usize) -> Vec<u8> {
    let words = (0..length.div_ceil(8) as u64).flat_map(|i| {
        let word = (number << 20 | i).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (word ^ word >> 29).to_le_bytes()
    });
    words.take(length).collect()
}

/// The answer to `bytes`.
pub fn inverted(bytes: &[u8]) -> Vec<u8> {
    bytes.iter().map(|byte| !byte).collect()
}

/// Bytes of record `number` of the stream.
pub fn record_bytes(number: u64) -> usize {
    if number % LONG_EVERY == LONG_EVERY - 1 { LONG_BYTES } else { number as usize % 61 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_differ_and_have_their_length() {
        assert_eq!(pattern(7, 13).len(), 13);
        assert_eq!(pattern(7, 13), pattern(7, 13));
        assert_ne!(pattern(7, 13), pattern(8, 13));
        assert!(pattern(0, 0).is_empty());
    }
}
