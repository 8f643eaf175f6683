//! What two hosts say of a fabric when they meet: an end point, and the answer to it. They travel behind
//! the messages of the meeting, in postcard's format.

use alloc::string::String;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// Most bytes of a reason against a fabric.
pub const REASON_BYTES_MAX: usize = 512;
/// Bytes of an end point's address on a fabric.
pub const ADDRESS_BYTES_MAX: usize = 128;

/// An end point of a fabric, and the parameters for sending to it over one link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FabricOffer {
    /// libfabric's number of the protocol, and its version.
    pub protocol: (u32, u32),
    /// libfabric's number of the address format.
    pub format: u32,
    /// The address.
    pub address: Vec<u8>,
    /// A random number at the start of each message to it, known only to the two ends.
    pub token: u64,
    /// Most messages on their way to it.
    pub window: u32,
    /// Most bytes of a message.
    pub message_bytes: u32,
}

/// A server's answer to an offer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum OfferReply {
    /// Packets go to this end point, and those of the server come to the offered one.
    Yes(FabricOffer),
    /// Packets go over this connection; the reason.
    No(String),
}

/// An extension in bytes, to follow a message.
pub fn behind<T: Serialize>(what: &T) -> Vec<u8> {
    postcard::to_allocvec(what).expect("numbers, text and bytes are always written")
}

/// Reads an extension of this type.
pub fn read_behind<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Option<T> {
    Some(postcard::take_from_bytes(bytes).ok()?.0)
}
