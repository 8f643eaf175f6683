//! The messages of both ends once the connection is encrypted, before it is a link.
//!
//! ```text
//!   server                                     client
//!   ServerHello: node, proofs, packets  --->
//!                <---  ClientHello: node, proofs, packets, service, greeting
//!   Answer: yes and a greeting, or no and why  --->
//! ```
//! Each is four bytes of length and as many of postcard's format. The server proves itself first,
//! so a client sends its request to no other server. Either of the last two may be followed by
//! extensions that not every host knows: an [`FabricOffer`](crate::transport::offer::FabricOffer) of another path for the packets, and the
//! answer to it.

use super::keys::PROOF_BYTES;
use crate::control::{GREETING_BYTES_MAX, Reason};
use alloc::string::String;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// The version of this library. A different major version cannot be talked to.
pub const VERSION: (u16, u16) = (1, 0);
/// Most bytes of a text with a reason.
pub const TEXT_BYTES_MAX: usize = 1024;
/// Most bytes of one of these messages.
pub const HELLO_BYTES_MAX: usize = GREETING_BYTES_MAX + TEXT_BYTES_MAX;

/// The identity of an end. Both ends send theirs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HelloIdentity {
    /// Its version of the protocol.
    pub version: (u16, u16),
    /// Its node: the hash of the public key.
    pub node: u64,
    /// The node's public key.
    pub public_key: [u8; 32],
    /// The node's signature of this connection's own key.
    pub signature: Vec<u8>,
    /// The proof that it has the secret.
    pub proof: [u8; PROOF_BYTES],
    /// Most bytes of data in a packet that it accepts.
    pub packet_bytes: u32,
}

/// A client's request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wants {
    /// The client's identity.
    pub who: HelloIdentity,
    /// The service.
    pub service: String,
    /// The greeting from its application.
    pub greeting: Vec<u8>,
}

/// The server's answer to the request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// Accepted, with the server's greeting.
    Yes(Vec<u8>),
    /// The name is not served there.
    NoService,
    /// Refused.
    No {
        /// The reason: the number of a [`Reason`].
        reason: u16,
        /// The server's text.
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

/// The message with its length in front.
pub fn to_bytes<T: Serialize>(hello: &T) -> Vec<u8> {
    to_bytes_with(hello, &[])
}

/// The message with its length in front and an extension, included in the length.
pub fn to_bytes_with<T: Serialize>(hello: &T, behind: &[u8]) -> Vec<u8> {
    let body = postcard::to_allocvec(hello).expect("numbers, text and bytes are always written");
    let mut bytes = ((body.len() + behind.len()) as u32).to_le_bytes().to_vec();
    bytes.extend_from_slice(&body);
    bytes.extend_from_slice(behind);
    bytes
}

/// These bytes are not a valid message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nonsense;

/// Reads a message, once all of it has come; returns its length in bytes, too.
pub fn from_bytes<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<Option<(T, usize)>, Nonsense> {
    Ok(from_bytes_with(bytes)?.map(|(hello, _, taken)| (hello, taken)))
}

/// The same, with the extension.
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
    // Additions of a newer version come behind.
    let (hello, behind) = postcard::take_from_bytes(body).map_err(|_| Nonsense)?;
    Ok(Some((hello, behind, 4 + length)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::offer::{
        ADDRESS_BYTES_MAX, FabricOffer, OfferReply, behind, read_behind,
    };
    use proptest::prelude::*;

    fn who() -> HelloIdentity {
        HelloIdentity {
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
        let offer = FabricOffer {
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
        assert_eq!(read_behind::<FabricOffer>(rest), None);
    }

    #[test]
    fn what_says_that_it_is_too_long_is_not_waited_for() {
        let bytes = (HELLO_BYTES_MAX as u32 + 1).to_le_bytes();
        assert_eq!(from_bytes::<HelloIdentity>(&bytes), Err(Nonsense));
    }

    proptest! {
        #[test]
        fn whatever_comes_is_one_or_an_error(bytes: Vec<u8>) {
            let _ = from_bytes::<HelloIdentity>(&bytes);
            let _ = from_bytes::<Wants>(&bytes);
            let _ = from_bytes::<Answer>(&bytes);
            let _ = read_behind::<FabricOffer>(&bytes);
            let _ = read_behind::<OfferReply>(&bytes);
        }
    }
}
