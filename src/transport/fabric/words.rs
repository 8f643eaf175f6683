//! The words that two ends of a link over a fabric exchange beside it, over their connection of
//! TLS: the number of messages, whether they arrive, and changes of memory that one opens to the
//! other.
//!
//! ```text
//!   kind (1 byte) | bytes of the rest (1 byte) | the rest, little-endian
//! ```
//! Keys and addresses of memory are sent in these words only.
//!
//! Never: more incoming bytes are kept than one word; a word that is longer or shorter than its
//! kind is accepted.

use super::super::offer::ADDRESS_BYTES_MAX;
use crate::wire::Reason;
use crate::wire::{APERTURE_PAGE_BYTES, ApertureAccess};
use alloc::vec::Vec;

/// Bytes of the longest word.
pub const WORD_BYTES_MAX: usize = 2 + OFFER_BYTES + ADDRESS_BYTES_MAX;
/// Bytes of an offer before the address.
const OFFER_BYTES: usize = 4 + 8 + 8 + 8 + 1;

/// A word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FabricWord {
    /// The last word: the number of messages with data of the link.
    Count(u64),
    /// Owner: this memory is open to the other end.
    Offer(OpenedMemory),
    /// Holder: it has the memory.
    Held(u32),
    /// Holder: it refuses the memory for good.
    Refused(u32, Reason),
    /// Owner: the memory is no longer open.
    Revoked(u32),
    /// Holder: it no longer writes the memory.
    Released(u32),
    /// Asks for the number of messages with data that have come. `true`: incoming writes to memory
    /// are to be taken, too. The next question may follow only after the answer.
    Asks(bool),
    /// The answer.
    Came(u64),
}

/// Open memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenedMemory {
    /// Its number on the link.
    pub number: u32,
    /// Its bytes, whole pages.
    pub bytes: u64,
    /// Its start, in the addresses of its owner's provider.
    pub base: u64,
    /// Its key.
    pub key: u64,
    /// The holder's access.
    pub access: ApertureAccess,
    /// Its end point's address.
    pub address: Vec<u8>,
}

mod kind {
    pub const COUNT: u8 = 1;
    pub const OFFER: u8 = 2;
    pub const HELD: u8 = 3;
    pub const REFUSED: u8 = 4;
    pub const REVOKED: u8 = 5;
    pub const RELEASED: u8 = 6;
    pub const ASKS: u8 = 7;
    pub const CAME: u8 = 8;
}

/// No host sends this word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownWord;

/// Reads a word, once all of it has come; returns its length in bytes, too.
pub fn read(bytes: &[u8]) -> Result<Option<(FabricWord, usize)>, UnknownWord> {
    let [kind, length, rest @ ..] = bytes else { return Ok(None) };
    let length = usize::from(*length);
    let is_sound = match *kind {
        kind::COUNT | kind::CAME => length == 8,
        kind::ASKS => length == 1,
        kind::OFFER => (OFFER_BYTES + 1..=OFFER_BYTES + ADDRESS_BYTES_MAX).contains(&length),
        kind::HELD | kind::REVOKED | kind::RELEASED => length == 4,
        kind::REFUSED => length == 6,
        _ => false,
    };
    if !is_sound {
        return Err(UnknownWord);
    }
    let Some(body) = rest.get(..length) else { return Ok(None) };
    let number = || u32::from_le_bytes(body[..4].try_into().expect("as many as were asked for"));
    let word = |at: usize| {
        u64::from_le_bytes(body[at..at + 8].try_into().expect("as many as were asked for"))
    };
    let word = match *kind {
        kind::COUNT => FabricWord::Count(word(0)),
        kind::OFFER => {
            let (bytes, base) = (word(4), word(12));
            let access = match body[28] {
                0 => ApertureAccess::ReadOnly,
                1 => ApertureAccess::ReadWrite,
                _ => return Err(UnknownWord),
            };
            let is_whole = bytes > 0 && bytes.is_multiple_of(APERTURE_PAGE_BYTES);
            if !is_whole || bytes > i64::MAX as u64 || base.checked_add(bytes).is_none() {
                return Err(UnknownWord);
            }
            let address = body[OFFER_BYTES..].to_vec();
            FabricWord::Offer(OpenedMemory {
                number: number(),
                bytes,
                base,
                key: word(20),
                access,
                address,
            })
        }
        kind::HELD => FabricWord::Held(number()),
        kind::REFUSED => {
            let reason = u16::from_le_bytes([body[4], body[5]]);
            FabricWord::Refused(number(), Reason::from_wire(reason))
        }
        kind::REVOKED => FabricWord::Revoked(number()),
        kind::ASKS => match body[0] {
            memory @ 0..=1 => FabricWord::Asks(memory == 1),
            _ => return Err(UnknownWord),
        },
        kind::CAME => FabricWord::Came(word(0)),
        _ => FabricWord::Released(number()),
    };
    Ok(Some((word, 2 + length)))
}

/// Appends a word.
pub fn put(to: &mut Vec<u8>, word: &FabricWord) {
    let kind = match word {
        FabricWord::Count(_) => kind::COUNT,
        FabricWord::Offer(_) => kind::OFFER,
        FabricWord::Held(_) => kind::HELD,
        FabricWord::Refused(..) => kind::REFUSED,
        FabricWord::Revoked(_) => kind::REVOKED,
        FabricWord::Released(_) => kind::RELEASED,
        FabricWord::Asks(_) => kind::ASKS,
        FabricWord::Came(_) => kind::CAME,
    };
    let start = to.len();
    to.extend_from_slice(&[kind, 0]);
    match word {
        FabricWord::Count(count) | FabricWord::Came(count) => to.extend(count.to_le_bytes()),
        FabricWord::Offer(OpenedMemory { number, bytes, base, key, access, address }) => {
            to.extend(number.to_le_bytes());
            to.extend([bytes, base, key].into_iter().flat_map(|word| word.to_le_bytes()));
            to.push((*access == ApertureAccess::ReadWrite).into());
            to.extend_from_slice(address);
        }
        FabricWord::Held(number) | FabricWord::Revoked(number) | FabricWord::Released(number) => {
            to.extend(number.to_le_bytes());
        }
        FabricWord::Refused(number, reason) => {
            to.extend(number.to_le_bytes());
            to.extend(reason.to_wire().to_le_bytes());
        }
        FabricWord::Asks(memory) => to.push((*memory).into()),
    }
    to[start + 1] = (to.len() - start - 2) as u8;
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn opened() -> OpenedMemory {
        OpenedMemory {
            number: 7,
            bytes: 1 << 20,
            base: u64::MAX - (1 << 20),
            key: 0x0123_4567_89ab_cdef,
            access: ApertureAccess::ReadWrite,
            address: [9; ADDRESS_BYTES_MAX].to_vec(),
        }
    }

    #[test]
    fn each_word_is_read_as_it_is_written_and_no_part_of_it_is() {
        let words = [
            FabricWord::Count(u64::MAX),
            FabricWord::Offer(opened()),
            FabricWord::Held(1),
            FabricWord::Refused(2, Reason::Apertures),
            FabricWord::Revoked(3),
            FabricWord::Released(u32::MAX),
            FabricWord::Asks(false),
            FabricWord::Asks(true),
            FabricWord::Came(u64::MAX),
        ];
        for word in words {
            let mut bytes = Vec::new();
            put(&mut bytes, &word);
            assert!(bytes.len() <= WORD_BYTES_MAX);
            for cut in 0..bytes.len() {
                assert_eq!(read(&bytes[..cut]), Ok(None));
            }
            let length = bytes.len();
            bytes.push(1);
            assert_eq!(read(&bytes), Ok(Some((word, length))));
        }
    }

    #[test]
    fn memory_that_is_no_whole_pages_or_ends_nowhere_is_nonsense() {
        let wrong = [
            OpenedMemory { bytes: 0, ..opened() },
            OpenedMemory { bytes: 4097, ..opened() },
            OpenedMemory { bytes: 1 << 63, base: 0, ..opened() },
            OpenedMemory { base: u64::MAX, ..opened() },
            OpenedMemory { address: Vec::new(), ..opened() },
            OpenedMemory { address: [9; ADDRESS_BYTES_MAX + 1].to_vec(), ..opened() },
        ];
        for opened in wrong {
            let mut bytes = Vec::new();
            put(&mut bytes, &FabricWord::Offer(opened.clone()));
            assert_eq!(read(&bytes), Err(UnknownWord), "{opened:?}");
        }
        let mut bytes = Vec::new();
        put(&mut bytes, &FabricWord::Offer(opened()));
        bytes[2 + OFFER_BYTES - 1] = 2;
        assert_eq!(read(&bytes), Err(UnknownWord));
        assert_eq!(read(&[kind::ASKS, 1, 2]), Err(UnknownWord));
    }

    proptest! {
        #[test]
        fn whatever_comes_is_one_or_nonsense_and_is_written_as_it_was_read(bytes: Vec<u8>) {
            if let Ok(Some((word, taken))) = read(&bytes) {
                let mut again = Vec::new();
                put(&mut again, &word);
                prop_assert_eq!(&again[..], &bytes[..taken]);
            }
        }
    }
}
