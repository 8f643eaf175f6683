//! How rails are agreed on, and how one shows which link it belongs to: words at the very end of a
//! client's wishes and of a server's yes, which a host that does not know them does not read. More say that a
//! connection is a question alone, and what the answer is.
//!
//! ```text
//!   the first:  client ..Offer(rails, credit)  --->   <---  Yes, Offer(rails, credit): at most as many
//!   another:    client ..Join(link, place, proof) ->  <---  Yes, Joined(proof)
//! ```
//! Both ends make a link's name and its secret from the keys of its first connection, as TLS exports
//! them: nobody else has them. The name is sent, the secret never. A proof is a code of the secret and of the keys
//! of the connection that joins, so that what is shown on one is of no use on another.
//!
//! Never: a rail joins a link whose other end is another node, or is called otherwise.

use super::super::channel::Channel;
use super::super::keys::End;
use super::RAILS_MAX;
use hmac::{Hmac, KeyInit, Mac};
use serde::{Deserialize, Serialize};
use sha2::Sha256;
use std::sync::Arc;
use std::vec::Vec;
use zeroize::Zeroizing;

/// Behind all words of this kind.
const MARK: [u8; 8] = *b"hamlyn-r";
/// The version of all this: another cannot be talked to, and then there is one rail.
const VERSION: u8 = 1;
/// Least bytes that an end grants.
pub const CREDIT_MIN: u32 = 64 << 10;
/// Bytes of a proof.
pub const PROOF_BYTES: usize = 32;

/// What is said about rails, or of the connection itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Said {
    /// So many, and so many bytes that may be on their way to whoever says it.
    Offer {
        /// Rails.
        count: u8,
        /// Bytes.
        credit: u32,
    },
    /// This connection is a rail of a link that there is.
    Join {
        /// The link's name.
        link: [u8; 16],
        /// Which of its rails.
        place: u8,
        /// That this is one of its two ends.
        proof: [u8; PROOF_BYTES],
    },
    /// It is.
    Joined {
        /// That this is the other.
        proof: [u8; PROOF_BYTES],
    },
    /// No link is wanted, but whether there might be one.
    Asks,
    /// To whoever asks, from an address of the same host: there might, and there it is found so.
    Here(Here),
    /// No link is wanted, but what the process has counted.
    Figures,
}

/// A service as whoever is on the same host finds it: its local name, and which process serves it. With the
/// node's id these are what the node says of itself on a Unix socket, signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Here {
    /// In whose part of the shared directory; `None`: in the private one of its user.
    pub shared: Option<u32>,
    /// The process's number that nobody else has, the namespace of the other one, and that.
    pub process: (u64, u64, u32),
    /// Since when the machine runs.
    pub boot: [u8; 16],
    /// The node's key.
    pub public_key: [u8; 32],
    /// The two halves of the signature.
    pub signature: [[u8; 32]; 2],
}

impl Said {
    /// Its bytes behind others.
    pub fn put(&self, to: &mut Vec<u8>) {
        let before = to.len();
        let body = postcard::to_allocvec(self).expect("numbers are always written");
        to.extend_from_slice(&body);
        to.push(VERSION);
        let length = (to.len() - before) as u8;
        to.push(length);
        to.extend_from_slice(&MARK);
    }

    /// What stands before it, and it, if there is one that can be read.
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

    /// How many rails the other end takes, and its credit, if this is an offer that can be.
    pub fn offer(self) -> Option<(u8, u32)> {
        match self {
            Self::Offer { count: count @ 2..=RAILS_MAX, credit: credit @ CREDIT_MIN.. } => {
                Some((count, credit))
            }
            _ => None,
        }
    }
}

/// What both ends of a link with several rails know, and nobody else.
#[derive(Clone)]
pub struct Secret {
    /// What it is called between them.
    pub link: [u8; 16],
    key: Arc<Zeroizing<[u8; 32]>>,
}

impl core::fmt::Debug for Secret {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Secret").finish_non_exhaustive()
    }
}

impl Secret {
    /// Of the link that is agreed on over this connection.
    pub fn of(first: &Channel) -> Result<Self, rustls::Error> {
        let name = first.exported(b"EXPORTER-hamlyn-rails-link")?;
        let mut link = [0; 16];
        link.copy_from_slice(&name[..16]);
        let key = first.exported(b"EXPORTER-hamlyn-rails-secret")?;
        Ok(Self { link, key: Arc::new(key) })
    }

    fn mac(&self, end: End, place: u8, joining: &Channel) -> Result<Hmac<Sha256>, rustls::Error> {
        let key = joining.key()?;
        let mac = Hmac::<Sha256>::new_from_slice(self.key.as_slice()).expect("any length does");
        let end = u8::from(end == End::Client);
        Ok(mac.chain_update(b"hamlyn rail 1 ").chain_update([end, place]).chain_update(*key))
    }

    /// What `end` of a connection shows that joins the link at a place.
    pub fn proof(
        &self,
        end: End,
        place: u8,
        joining: &Channel,
    ) -> Result<[u8; PROOF_BYTES], rustls::Error> {
        Ok(self.mac(end, place, joining)?.finalize().into_bytes().into())
    }

    /// Whether that is what it shows.
    pub fn is_proof(&self, end: End, place: u8, joining: &Channel, proof: &[u8]) -> bool {
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
            Said::Here(Here {
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
