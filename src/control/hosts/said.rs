//! Agrees on rails, and proves which link a rail belongs to: an extension at the very end of a
//! client's request and of a server's yes, which older hosts do not read. Other kinds of it mark a
//! connection as a mere question, and answer it.
//!
//! ```text
//!   the first:  client ..Offer(rails, credit)  --->   <---  Yes, Offer(rails, credit): at most as many
//!   another:    client ..Join(link, place, proof) ->  <---  Yes, Joined(proof)
//! ```
//! Both ends derive a link's name and its secret from the keys of its first connection, as TLS
//! exports them: no other host has them. The name is sent, the secret never. A proof is a code of
//! the secret and of the keys of the joining connection, so it is of no use on another connection.
//!
//! Never: a rail joins a link whose other end is another node, or has another identity.

use super::keys::TlsEnd;
use crate::transport::channel::Channel;
use crate::transport::rails::RAILS_MAX;
use hmac::{Hmac, KeyInit, Mac};
use serde::{Deserialize, Serialize};
use sha2::Sha256;
use std::sync::Arc;
use std::vec::Vec;
use zeroize::Zeroizing;

/// The mark behind all extensions of this kind.
const MARK: [u8; 8] = *b"hamlyn-r";
/// The version of this extension. With a different one there is only one rail.
const VERSION: u8 = 1;
/// The least number of bytes that an end may grant.
pub const CREDIT_MIN: u32 = 64 << 10;
/// Bytes of a proof.
pub const PROOF_BYTES: usize = 32;

/// An extension about rails, or about the connection itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Said {
    /// The number of rails, and the number of bytes that may be on their way to the sender of this
    /// offer.
    Offer {
        /// Rails.
        count: u8,
        /// Bytes.
        credit: u32,
    },
    /// This connection is a rail of an existing link.
    Join {
        /// The link's name.
        link: [u8; 16],
        /// The rail's place.
        place: u8,
        /// The proof that the sender is one of the link's ends.
        proof: [u8; PROOF_BYTES],
    },
    /// The rail is accepted.
    Joined {
        /// The proof that the sender is the link's other end.
        proof: [u8; PROOF_BYTES],
    },
    /// The client wants no link, but asks whether it could have one.
    Asks,
    /// The answer to a client on the same host: it could, and this is the local service.
    Here(ServiceHere),
    /// The client wants no link, but the process's counters.
    Figures,
}

/// A service as seen on its own host: its local name, and the process that serves it. With the
/// node's id this is the credential that the node shows, signed, on a Unix socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceHere {
    /// The user whose part of the shared directory has the name; `None`: the private directory of
    /// the server's user.
    pub shared: Option<u32>,
    /// The process's unique number, the namespace of the process id, and the process id.
    pub process: (u64, u64, u32),
    /// The id of the machine's current boot.
    pub boot: [u8; 16],
    /// The node's key.
    pub public_key: [u8; 32],
    /// The signature in two halves.
    pub signature: [[u8; 32]; 2],
}

impl Said {
    /// Appends it to other bytes.
    pub fn put(&self, to: &mut Vec<u8>) {
        let before = to.len();
        let body = postcard::to_allocvec(self).expect("numbers are always written");
        to.extend_from_slice(&body);
        to.push(VERSION);
        let length = (to.len() - before) as u8;
        to.push(length);
        to.extend_from_slice(&MARK);
    }

    /// Splits bytes into those before the extension, and the extension, if there is a valid one.
    pub fn split(bytes: &[u8]) -> (&[u8], Option<Self>) {
        let Some((rest, length)) = bytes.strip_suffix(&MARK).and_then(|rest| {
            let (length, rest) = rest.split_last()?;
            Some((rest, usize::from(*length)))
        }) else {
            return (bytes, None);
        };
        let Some((before, own)) = rest.len().checked_sub(length).map(|at| rest.split_at(at)) else {
            return (bytes, None);
        };
        let said = match own.split_last() {
            Some((&VERSION, body)) => postcard::from_bytes(body).ok(),
            _ => None,
        };
        (before, said)
    }

    /// The other end's number of rails and its credit, if this is a valid offer.
    pub fn offer(self) -> Option<(u8, u32)> {
        match self {
            Self::Offer { count: count @ 2..=RAILS_MAX, credit: credit @ CREDIT_MIN.. } => {
                Some((count, credit))
            }
            _ => None,
        }
    }
}

/// The secret of a link with several rails, known to its two ends only.
#[derive(Clone)]
pub struct RailsSecret {
    /// The link's name between them.
    pub link: [u8; 16],
    key: Arc<Zeroizing<[u8; 32]>>,
}

impl core::fmt::Debug for RailsSecret {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Secret").finish_non_exhaustive()
    }
}

impl RailsSecret {
    /// For the link that is agreed on over this connection.
    pub fn of(first: &Channel) -> Result<Self, rustls::Error> {
        let name = first.exported(b"EXPORTER-hamlyn-rails-link")?;
        let mut link = [0; 16];
        link.copy_from_slice(&name[..16]);
        let key = first.exported(b"EXPORTER-hamlyn-rails-secret")?;
        Ok(Self { link, key: Arc::new(key) })
    }

    fn mac(
        &self,
        end: TlsEnd,
        place: u8,
        joining: &Channel,
    ) -> Result<Hmac<Sha256>, rustls::Error> {
        let key = joining.key()?;
        let mac = Hmac::<Sha256>::new_from_slice(self.key.as_slice()).expect("any length does");
        let end = u8::from(end == TlsEnd::Client);
        Ok(mac.chain_update(b"hamlyn rail 1 ").chain_update([end, place]).chain_update(*key))
    }

    /// The proof of `end` of a connection that joins the link at a place.
    pub fn proof(
        &self,
        end: TlsEnd,
        place: u8,
        joining: &Channel,
    ) -> Result<[u8; PROOF_BYTES], rustls::Error> {
        Ok(self.mac(end, place, joining)?.finalize().into_bytes().into())
    }

    /// Whether `proof` is the right one.
    pub fn is_proof(&self, end: TlsEnd, place: u8, joining: &Channel, proof: &[u8]) -> bool {
        self.mac(end, place, joining).is_ok_and(|mac| mac.verify_slice(proof).is_ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_said_is_found_behind_what_else_is() {
        for said in [
            Said::Offer { count: 8, credit: u32::MAX },
            Said::Join { link: [1; 16], place: 7, proof: [2; 32] },
            Said::Joined { proof: [3; 32] },
            Said::Asks,
            Said::Figures,
            Said::Here(ServiceHere {
                shared: Some(u32::MAX),
                process: (u64::MAX, u64::MAX, u32::MAX),
                boot: [4; 16],
                public_key: [5; 32],
                signature: [[6; 32]; 2],
            }),
        ] {
            for before in [&b""[..], b"something"] {
                let mut bytes = before.to_vec();
                said.put(&mut bytes);
                assert_eq!(Said::split(&bytes), (before, Some(said)));
                let cut = &bytes[..bytes.len() - 1];
                assert_eq!(Said::split(cut), (cut, None));
            }
        }
        assert_eq!(Said::split(b"an offer of something else").1, None);
    }

    #[test]
    fn offers_that_cannot_be_are_none() {
        let offer = |count, credit| Said::Offer { count, credit }.offer();
        assert_eq!(offer(2, CREDIT_MIN), Some((2, CREDIT_MIN)));
        for (count, credit) in [(0, CREDIT_MIN), (1, CREDIT_MIN), (9, CREDIT_MIN), (2, 0)] {
            assert_eq!(offer(count, credit), None);
        }
    }

    proptest! {
        #[test]
        fn whatever_comes_is_one_or_none(mut bytes: Vec<u8>, marks: bool) {
            if marks {
                bytes.extend_from_slice(&MARK);
            }
            let (before, said) = Said::split(&bytes);
            prop_assert!(bytes.starts_with(before));
            prop_assert!(said.is_none() || before.len() < bytes.len());
        }
    }
}
