//! What both ends say once the connection between them is secret, before it is a link.
//!
//! ```text
//!   server                                     client
//!   ServerHello: node, proofs, packets  --->
//!                <---  ClientHello: node, proofs, packets, service, greeting
//!   Answer: yes and a greeting, or no and why  --->
//! ```
//! Each is four bytes of length and so many of postcard's format. The server proves itself first, so
//! that a client says what it wants to nobody else. Behind either of the last two may be what not every
//! host knows of: an [`Offer`] of another way for the packets, and what becomes of it.

use super::keys::PROOF_BYTES;
use crate::control::{GREETING_BYTES_MAX, Reason};
use alloc::string::String;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// The version that this library speaks: another major one cannot be talked to.
pub const VERSION: (u16, u16) = (1, 0);
/// Bytes of a text that tells why.
pub const TEXT_BYTES_MAX: usize = 1024;
/// Bytes of one of these, at most.
pub const HELLO_BYTES_MAX: usize = GREETING_BYTES_MAX + TEXT_BYTES_MAX;

/// Who an end is. Both say it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Who {
    /// What it speaks.
    pub version: (u16, u16),
    /// Its node, the hash of the key.
    pub node: u64,
    /// The node's public key.
    pub public_key: [u8; 32],
    /// With it, of this connection's own key.
    pub signature: Vec<u8>,
    /// That it has the secret.
    pub proof: [u8; PROOF_BYTES],
    /// Most bytes of data in a packet that it takes.
    pub packet_bytes: u32,
}

/// What a client wants.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wants {
    /// Who it is.
    pub who: Who,
    /// The service.
    pub service: String,
    /// Its application's first words.
    pub greeting: Vec<u8>,
}

/// What the server says to that.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// It is a link, with the server's first words.
    Yes(Vec<u8>),
    /// Nobody serves this name there.
    NoService,
    /// It is none.
    No {
        /// Why: the number of a [`Reason`].
        reason: u16,
        /// In the server's own words.
        text: String,
    },
}

impl Answer {
    /// A refusal.
    pub fn no(reason: Reason, text: &str) -> Self {
        let end =
            (0..=text.len().min(TEXT_BYTES_MAX)).rev().find(|end| text.is_char_boundary(*end));
        Self::No { reason: reason.to_wire(), text: text[..end.unwrap_or(0)].into() }
    }
}

/// Bytes of an end point's address on a fabric.
pub const ADDRESS_BYTES_MAX: usize = 128;

/// An end point of a fabric, and how it is sent to for one link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offer {
    /// What libfabric calls the protocol, and its version.
    pub protocol: (u32, u32),
    /// What libfabric calls the form of the address.
    pub format: u32,
    /// The address.
    pub address: Vec<u8>,
    /// What each message to it begins with: a random number, which only the two ends know.
    pub token: u64,
    /// Messages that may be on their way to it.
    pub window: u32,
    /// Bytes of the longest.
    pub message_bytes: u32,
}

/// What a server says to an offer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// Packets go there, and come here.
    Yes(Offer),
    /// They go over this connection.
    No(String),
}

/// The bytes, with their length.
pub fn to_bytes<T: Serialize>(hello: &T) -> Vec<u8> {
    to_bytes_with(hello, &[])
}

/// The bytes, with their length, and something behind them that counts.
pub fn to_bytes_with<T: Serialize>(hello: &T, behind: &[u8]) -> Vec<u8> {
    let body = postcard::to_allocvec(hello).expect("numbers, text and bytes are always written");
    let mut bytes = ((body.len() + behind.len()) as u32).to_le_bytes().to_vec();
    bytes.extend_from_slice(&body);
    bytes.extend_from_slice(behind);
    bytes
}

/// What is wrong with bytes that should be one of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nonsense;

/// Reads one, if it is there whole, and says how many bytes it took.
pub fn from_bytes<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<Option<(T, usize)>, Nonsense> {
    Ok(from_bytes_with(bytes)?.map(|(hello, _, taken)| (hello, taken)))
}

/// The same, with what is behind it.
#[allow(clippy::type_complexity)]
pub fn from_bytes_with<'a, T: Deserialize<'a>>(
    bytes: &'a [u8],
) -> Result<Option<(T, &'a [u8], usize)>, Nonsense> {
    let Some((length, rest)) = bytes.split_first_chunk::<4>() else { return Ok(None) };
    let length = u32::from_le_bytes(*length) as usize;
    if length > HELLO_BYTES_MAX {
        return Err(Nonsense);
    }
    let Some(body) = rest.get(..length) else { return Ok(None) };
    // What a newer version has to say besides comes behind.
    let (hello, behind) = postcard::take_from_bytes(body).map_err(|_| Nonsense)?;
    Ok(Some((hello, behind, 4 + length)))
}

/// What is written behind a hello.
pub fn behind<T: Serialize>(what: &T) -> Vec<u8> {
    postcard::to_allocvec(what).expect("numbers, text and bytes are always written")
}

/// What is behind a hello, if it is this.
pub fn read_behind<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Option<T> {
    Some(postcard::take_from_bytes(bytes).ok()?.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn who() -> Who {
        Who {
            version: VERSION,
            node: 7,
            public_key: [1; 32],
            signature: [2; 64].to_vec(),
            proof: [3; 32],
            packet_bytes: 4096,
        }
    }

    #[test]
    fn what_is_said_is_read_and_no_part_of_it_is() {
        let wants = Wants { who: who(), service: "x".into(), greeting: [4; 4096].to_vec() };
        let bytes = to_bytes(&wants);
        for cut in 0..bytes.len() {
            assert_eq!(from_bytes::<Wants>(&bytes[..cut]), Ok(None));
        }
        assert_eq!(from_bytes(&bytes), Ok(Some((wants, bytes.len()))));
        let answer = Answer::no(Reason::Application, &"ä".repeat(1000));
        let bytes = to_bytes(&answer);
        assert!(bytes.len() < HELLO_BYTES_MAX);
        assert_eq!(from_bytes(&bytes), Ok(Some((answer, bytes.len()))));
    }

    #[test]
    fn what_is_behind_a_hello_is_read_by_those_who_know_of_it() {
        let wants = Wants { who: who(), service: "x".into(), greeting: [4; 4096].to_vec() };
        let offer = Offer {
            protocol: (1, 2),
            format: 3,
            address: [5; ADDRESS_BYTES_MAX].to_vec(),
            token: u64::MAX,
            window: u32::MAX,
            message_bytes: u32::MAX,
        };
        let bytes = to_bytes_with(&wants, &behind(&offer));
        assert!(bytes.len() < HELLO_BYTES_MAX);
        assert_eq!(from_bytes(&bytes), Ok(Some((wants.clone(), bytes.len()))));
        let (read, rest, _) = from_bytes_with::<Wants>(&bytes).unwrap().unwrap();
        assert_eq!((read, read_behind(rest)), (wants.clone(), Some(offer)));
        let bytes = to_bytes(&wants);
        let (_, rest, _) = from_bytes_with::<Wants>(&bytes).unwrap().unwrap();
        assert_eq!(read_behind::<Offer>(rest), None);
    }

    #[test]
    fn what_says_that_it_is_too_long_is_not_waited_for() {
        let bytes = (HELLO_BYTES_MAX as u32 + 1).to_le_bytes();
        assert_eq!(from_bytes::<Who>(&bytes), Err(Nonsense));
    }

    proptest! {
        #[test]
        fn whatever_comes_is_one_or_an_error(bytes: Vec<u8>) {
            let _ = from_bytes::<Who>(&bytes);
            let _ = from_bytes::<Wants>(&bytes);
            let _ = from_bytes::<Answer>(&bytes);
            let _ = read_behind::<Offer>(&bytes);
            let _ = read_behind::<Reply>(&bytes);
        }
    }
}
