//! `hamlyn recv` and `hamlyn send`: standard input to standard output.
//!
//! ```text
//!   send                                          recv
//!   greeting: a ticket for tickets  ---------->
//!                                   <----------   greeting: a ticket for each buffer
//!   chunk, with number and length   ---------->   one-shot entry: it can no longer change
//!                                   <----------   the buffer's next ticket, once it is written out
//!   end, with total and digest      ---------->
//!                                   <----------   verdict
//! ```
//! The receiver gives each right to send separately: one chunk, into one buffer, once. So its
//! memory is bounded, a slow reader of its output slows the sender, and the bytes that it hashes
//! and writes are still the same when it compares the digest.
//!
//! Chunks are numbered, because a link need not keep order. Until something is written, `recv` may
//! turn to another sender: if this one ends, breaks the protocol, or stays silent for too long.
//! Never: `recv` exits with success without having written every byte that the sender's digest
//! covers, or leaves a partial file; `send` exits with success before the receiver's confirmation;
//! a peer of another user or host holds either of them without making progress.

mod recv;
mod send;

pub use recv::recv;
pub use send::send;

use hamlyn::control::Peer;
use hamlyn_tools::serving::is_own;
use std::time::Duration;

const PROTOCOL: &[u8] = b"hamlyn-pipe-1\n";
/// Bytes of a chunk, and the most chunks on their way.
const CHUNK_BYTES: usize = 256 << 10;
const CHUNKS: u32 = 4;
/// The time limits of a link that stays full, because its process has stopped, and of a peer of
/// another user or host without progress (`--idle`).
const PATIENCE: Duration = Duration::from_secs(60);

/// The content of a chunk's metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Chunk {
    Data {
        number: u64,
        length: u32,
    },
    /// Sent after all data, with the numbers of chunks and bytes.
    End {
        number: u64,
        bytes: u64,
        digest: [u8; 32],
    },
}

impl Chunk {
    fn to_bytes(self) -> Vec<u8> {
        match self {
            Self::Data { number, length } => {
                [&[0][..], &number.to_le_bytes(), &length.to_le_bytes()].concat()
            }
            Self::End { number, bytes, digest } => {
                [&[1][..], &number.to_le_bytes(), &bytes.to_le_bytes(), &digest].concat()
            }
        }
    }

    /// Parses bytes of any origin.
    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (kind, rest) = bytes.split_first()?;
        let (number, rest) = rest.split_first_chunk()?;
        let number = u64::from_le_bytes(*number);
        match kind {
            0 => {
                let length = u32::from_le_bytes(rest.try_into().ok()?);
                // An empty chunk would be no progress.
                let is_one = (1..=CHUNK_BYTES).contains(&(length as usize));
                is_one.then_some(Self::Data { number, length })
            }
            1 => {
                let (total, digest) = rest.split_first_chunk()?;
                let bytes = u64::from_le_bytes(*total);
                Some(Self::End { number, bytes, digest: digest.try_into().ok()? })
            }
            _ => None,
        }
    }
}

/// The time that a peer may go without progress; `None`: without limit.
fn idle_max(asked: Option<Duration>, peer: &Peer) -> Option<Duration> {
    asked.or((!is_own(peer)).then_some(PATIENCE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_chunk_says_survives_its_bytes_and_fits_into_metadata() {
        for chunk in [
            Chunk::Data { number: 3, length: CHUNK_BYTES as u32 },
            Chunk::End { number: u64::MAX, bytes: 5, digest: [9; 32] },
        ] {
            let bytes = chunk.to_bytes();
            assert!(bytes.len() <= hamlyn::wire::METADATA_MAX);
            assert_eq!(Chunk::from_bytes(&bytes), Some(chunk));
        }
    }

    #[test]
    fn a_chunk_that_claims_more_than_its_buffer_is_none() {
        let chunk = Chunk::Data { number: 0, length: CHUNK_BYTES as u32 + 1 };
        assert_eq!(Chunk::from_bytes(&chunk.to_bytes()), None);
        let nothing = Chunk::Data { number: 0, length: 0 };
        assert_eq!(Chunk::from_bytes(&nothing.to_bytes()), None);
        assert_eq!(Chunk::from_bytes(&[]), None);
        assert_eq!(Chunk::from_bytes(&[2; 41]), None);
        assert_eq!(Chunk::from_bytes(&[1; 20]), None);
    }
}
