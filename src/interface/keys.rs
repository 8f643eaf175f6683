//! Keys: the interface can tell every key that a ticket ever had from a guess, and remembers none of
//! them.
//!
//! A key is the interface's number for it (how many it had made before), with a mark of the slot and
//! entry that it is for, enciphered by a secret of the interface. To everybody else keys are 64 bits as
//! good as random, and none follows from others. The interface deciphers one that does not match: of
//! 2^64 values only those that it has given out for this slot and entry come to such a number.
//!
//! The cipher is Speck64/128 (Beaulieu and others, The SIMON and SPECK Families of Lightweight Block
//! Ciphers, 2013): blocks of 64 bits, a key of 128.
//!
//! Never: two keys of one interface are the same; a guess is taken for a former key.

use crate::wire::{Key, MetadataIndex, SlotIndex};

/// Bytes of the secret from which an interface's keys are made.
pub const SECRET_BYTES: usize = 16;

const ROUNDS: usize = 27;
/// Bits of a key's number. At a million keys a second they last for nine years; then there is another
/// secret.
const NUMBER_BITS: u32 = 48;

/// The cipher.
struct Cipher([u32; ROUNDS]);

#[inline(always)]
fn round([x, y]: [u32; 2], key: u32) -> [u32; 2] {
    let x = x.rotate_right(8).wrapping_add(y) ^ key;
    [x, y.rotate_left(3) ^ x]
}

impl Cipher {
    /// The secret's words, the one that is used first last.
    fn new([mut c, mut b, mut a, mut key]: [u32; 4]) -> Self {
        let mut rounds = [0; ROUNDS];
        for (i, place) in rounds.iter_mut().enumerate() {
            *place = key;
            let next;
            [next, key] = round([a, key], i as u32);
            (a, b, c) = (b, c, next);
        }
        Self(rounds)
    }

    fn encipher(&self, block: u64) -> u64 {
        let block = [(block >> 32) as u32, block as u32];
        let [x, y] = self.0.iter().fold(block, |block, key| round(block, *key));
        (x as u64) << 32 | y as u64
    }

    fn decipher(&self, block: u64) -> u64 {
        let (mut x, mut y) = ((block >> 32) as u32, block as u32);
        for key in self.0.iter().rev() {
            y = (y ^ x).rotate_right(3);
            x = (x ^ key).wrapping_sub(y).rotate_left(8);
        }
        (x as u64) << 32 | y as u64
    }
}

/// The keys of an interface.
pub(super) struct InterfaceKeys {
    cipher: Cipher,
    /// Keys made with this secret.
    made: u64,
}

/// The block of the key with this number.
fn block(slot: u32, entry: Option<u32>, number: u64) -> u64 {
    // Different for neighbours. Where it is not, a key for one is taken for a former one of the other.
    let mark =
        slot.wrapping_mul(0x9e35).wrapping_add(entry.map_or(0, |entry| entry.wrapping_add(1)));
    (mark as u64) << NUMBER_BITS | number
}

impl InterfaceKeys {
    pub fn new(secret: [u8; SECRET_BYTES]) -> Self {
        let (words, _) = secret.as_chunks::<4>();
        Self {
            cipher: Cipher::new(core::array::from_fn(|i| u32::from_le_bytes(words[i]))),
            made: 0,
        }
    }

    /// A key for a slot, or for an entry of it.
    pub fn make(&mut self, slot: u32, entry: Option<u32>) -> Key {
        // The last number is that of `nobodys`.
        if self.made == (1 << NUMBER_BITS) - 1 {
            let next = [1, 2].map(|i| self.cipher.encipher(u64::MAX - i));
            let words = next.map(|word| [(word >> 32) as u32, word as u32]);
            self.made = 0;
            self.cipher = Cipher::new([words[0][0], words[0][1], words[1][0], words[1][1]]);
        }
        let key = self.cipher.encipher(block(slot, entry, self.made));
        self.made += 1;
        Key(key)
    }

    /// The key of closed entries, which is in no ticket.
    pub fn nobodys(&self) -> Key {
        Key(self.cipher.encipher(u64::MAX))
    }

    /// Whether a key has been made for the slot, or for this entry of it; of this slot, or of one that
    /// had its index before.
    #[cold]
    pub fn has_made(&self, slot: SlotIndex, entry: MetadataIndex, key: Key) -> bool {
        let found = self.cipher.decipher(key.0);
        let number = found & ((1 << NUMBER_BITS) - 1);
        number < self.made
            && [None, Some(entry.0)].iter().any(|entry| block(slot.0, *entry, number) == found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;

    #[test]
    fn the_cipher_is_the_published_one() {
        let cipher = Cipher::new([0x1b1a_1918, 0x1312_1110, 0x0b0a_0908, 0x0302_0100]);
        assert_eq!(cipher.encipher(0x3b72_6574_7475_432d), 0x8c6f_a548_454e_028b);
        assert_eq!(cipher.decipher(0x8c6f_a548_454e_028b), 0x3b72_6574_7475_432d);
    }

    #[test]
    fn each_key_is_another_and_is_known_for_its_place_alone() {
        let mut keys = InterfaceKeys::new([7; SECRET_BYTES]);
        let mut all = BTreeSet::from([keys.nobodys().0]);
        for number in 0..1000_u32 {
            let (slot, entry) = (number % 5, (number % 3).checked_sub(1));
            let key = keys.make(slot, entry);
            assert!(all.insert(key.0));
            let knows = |slot, entry| keys.has_made(SlotIndex(slot), MetadataIndex(entry), key);
            assert!(knows(slot, entry.unwrap_or(9)));
            assert!(!knows(slot + 1, entry.unwrap_or(9)));
            assert_eq!(knows(slot, entry.map_or(9, |entry| entry + 1)), entry.is_none());
            assert!(!keys.has_made(SlotIndex(slot), MetadataIndex(0), Key(key.0 ^ 1)));
        }
        let nobodys = keys.nobodys();
        assert!((0..5).all(|slot| !keys.has_made(SlotIndex(slot), MetadataIndex(0), nobodys)));
    }

    #[test]
    fn when_the_numbers_are_used_up_keys_go_on_under_another_secret() {
        let mut keys = InterfaceKeys::new([7; SECRET_BYTES]);
        let first = keys.make(3, None);
        keys.made = (1 << NUMBER_BITS) - 1;
        let next = keys.make(3, None);
        assert_ne!(first, next);
        assert!(keys.has_made(SlotIndex(3), MetadataIndex(0), next));
        assert!(!keys.has_made(SlotIndex(3), MetadataIndex(0), first));
    }
}
