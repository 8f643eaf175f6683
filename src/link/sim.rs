//! A simulated fabric between interfaces, for tests: it delays, reorders, corrupts and loses whole
//! links, all decided by one number, so that a run can be repeated.
//!
//! ```text
//!   interface A --> SimOutgoing --> [ in flight, at most `capacity` ] --> arrive(B) --> interface B
//!                                                     advance(): time moves to the next arrival
//! ```
//! A link is one direction. It is bounded: a packet counts until it has been taken by
//! [`SimFabric::arrive`], and until then the sender sees [`Full`], so that back-pressure is exercised
//! like that of a ring. Order within a link is as the delays have it; the interface must not care.
//!
//! Never: a packet that is delivered twice (a hostile peer apart, see [`Trouble::duplicate`]), or
//! lost while its link stands.

use super::{Body, Full, Source, Transmit};
use crate::wire::{Header, INLINE_BYTES, LINE_BYTES};
use alloc::{collections::BTreeMap, vec, vec::Vec};

/// Numbers that look random and depend on a seed alone (SplitMix64).
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// Each seed gives another sequence.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From 0 to `bound` - 1; 0 for a bound of 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        if bound == 0 { 0 } else { self.number() % bound }
    }

    /// True `per_million` times of a million.
    pub fn chance(&mut self, per_million: u32) -> bool {
        self.below(1_000_000) < per_million as u64
    }
}

/// How a fabric treats packets. The chances are in packets of a million.
#[derive(Clone, Copy, Debug)]
pub struct Trouble {
    /// Longest time on the way, in nanoseconds; each packet takes from 1 to this. 1 keeps the
    /// order of sending.
    pub delay_max_ns: u64,
    /// Packets of which a few bits are flipped: in the header, in reserved bits, or in the body.
    pub corrupt: u32,
    /// Packets that are delivered twice, as no honest link ever does.
    pub duplicate: u32,
}

impl Trouble {
    /// Delays and reorders, and does no harm.
    pub const REORDER: Self = Self { delay_max_ns: 1_000, corrupt: 0, duplicate: 0 };
    /// Delivers at once, in order.
    pub const NONE: Self = Self { delay_max_ns: 1, corrupt: 0, duplicate: 0 };
}

/// One direction between two interfaces of a fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SimLink(usize);

impl SimLink {
    /// Position among the fabric's links, in the order in which they were made.
    pub fn index(self) -> usize {
        self.0
    }
}

/// A packet that the fabric delivers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimPacket {
    /// The link that it came over.
    pub link: SimLink,
    /// As it arrived.
    pub header: Header,
    /// The reserved bits; zero unless the packet was corrupted.
    pub reserved: u32,
    /// Whether bits were flipped on the way.
    pub was_corrupted: bool,
    metadata: Vec<u8>,
    data: Vec<u8>,
}

/// Copies the bytes that were sent. A corrupted header may claim more; in a ring the reader would
/// then find arbitrary bytes, and here it finds ones.
fn copy(to: &mut [u8], from: &[u8]) {
    to.fill(0xff);
    let n = to.len().min(from.len());
    to[..n].copy_from_slice(&from[..n]);
}

impl Body for SimPacket {
    fn words(&self) -> [u64; 2] {
        let mut bytes = [0; INLINE_BYTES];
        for (to, from) in bytes.iter_mut().zip(self.metadata.iter().chain(&self.data)) {
            *to = *from;
        }
        let word = |i: usize| core::array::from_fn(|j| bytes[i + j]);
        [u64::from_le_bytes(word(0)), u64::from_le_bytes(word(8))]
    }

    fn copy_metadata(&self, to: &mut [u8]) {
        copy(to, &self.metadata);
    }

    fn copy_data(&self, to: &mut [u8]) {
        copy(to, &self.data);
    }
}

#[derive(Debug)]
struct SimRing {
    to: usize,
    capacity: usize,
    packet_bytes: u32,
    /// Packets that were sent and have not been taken.
    used: usize,
    is_cut: bool,
}

/// Several interfaces, named 0, 1, .., and the links between them.
#[derive(Debug)]
pub struct SimFabric {
    rng: Rng,
    trouble: Trouble,
    now_ns: u64,
    sent: u64,
    links: Vec<SimRing>,
    /// By destination: packets in order of arrival; those that arrive together, of sending.
    flights: Vec<BTreeMap<(u64, u64), SimPacket>>,
}

impl SimFabric {
    /// A fabric between `interfaces` interfaces, without links, all of whose choices follow from
    /// `seed`.
    pub fn new(seed: u64, interfaces: usize, trouble: Trouble) -> Self {
        let flights = vec![BTreeMap::new(); interfaces];
        Self { rng: Rng::new(seed), trouble, now_ns: 0, sent: 0, links: Vec::new(), flights }
    }

    /// A link to interface `to` that holds at most `capacity` packets (at least 1) of at most
    /// `packet_bytes` bytes (at least a line, as the metadata must fit into the first).
    pub fn connect(&mut self, to: usize, capacity: usize, packet_bytes: u32) -> SimLink {
        assert!(to < self.flights.len() && capacity > 0 && packet_bytes as usize >= LINE_BYTES);
        self.links.push(SimRing { to, capacity, packet_bytes, used: 0, is_cut: false });
        SimLink(self.links.len() - 1)
    }

    /// The sending half of a link.
    pub fn outgoing(&mut self, link: SimLink) -> SimOutgoing<'_> {
        SimOutgoing { fabric: self, link }
    }

    /// Loses a link, and all that is on its way there. Its sender sees [`Full`] from now on.
    pub fn cut(&mut self, link: SimLink) {
        let state = &mut self.links[link.0];
        (state.is_cut, state.used) = (true, 0);
        self.flights[state.to].retain(|_, packet| packet.link != link);
    }

    /// Whether a link was lost.
    pub fn is_cut(&self, link: SimLink) -> bool {
        self.links[link.0].is_cut
    }

    /// The time.
    pub fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// Packets that are on their way or wait to be taken.
    pub fn in_flight(&self) -> usize {
        self.flights.iter().map(BTreeMap::len).sum()
    }

    /// Takes the next packet that has arrived at `interface` by now. Its place in the link is free
    /// from now on.
    pub fn arrive(&mut self, interface: usize) -> Option<SimPacket> {
        let first = self.flights[interface].first_entry()?;
        if first.key().0 > self.now_ns {
            return None;
        }
        let packet = first.remove();
        self.links[packet.link.0].used -= 1;
        Some(packet)
    }

    /// Moves time on to the next arrival at any interface. False: nothing is on its way.
    pub fn advance(&mut self) -> bool {
        let first = |flight: &BTreeMap<(u64, u64), SimPacket>| flight.keys().next().copied();
        match self.flights.iter().filter_map(first).min() {
            Some((at, _)) => {
                self.now_ns = self.now_ns.max(at);
                true
            }
            None => false,
        }
    }

    fn launch(&mut self, to: usize, packet: SimPacket) {
        let delay = 1 + self.rng.below(self.trouble.delay_max_ns);
        self.sent += 1;
        self.flights[to].insert((self.now_ns + delay, self.sent), packet);
    }

    fn corrupt(&mut self, packet: &mut SimPacket) {
        packet.was_corrupted = true;
        for _ in 0..=self.rng.below(3) {
            let body = packet.metadata.len() + packet.data.len();
            // Half of the flips hit the header, but not the stamp, in which they could not be seen.
            if body == 0 || self.rng.below(2) == 0 {
                let bit = 32 + self.rng.below(6 * 64 - 32);
                let mut words = packet.header.to_words();
                words[5] |= (packet.reserved as u64 & 0xffff) << 16;
                words[bit as usize / 64] ^= 1 << (bit % 64);
                (packet.header, packet.reserved) = Header::from_words(&words);
            } else {
                let at = self.rng.below(body as u64) as usize;
                let flip = 1 << self.rng.below(8);
                match at.checked_sub(packet.metadata.len()) {
                    None => packet.metadata[at] ^= flip,
                    Some(at) => packet.data[at] ^= flip,
                }
            }
        }
    }
}

/// The sending half of a simulated link.
#[derive(Debug)]
pub struct SimOutgoing<'a> {
    fabric: &'a mut SimFabric,
    link: SimLink,
}

impl Transmit for SimOutgoing<'_> {
    fn packet_bytes(&self) -> u32 {
        self.fabric.links[self.link.0].packet_bytes
    }

    fn transmit<S: Source>(
        &mut self,
        header: &Header,
        metadata: &[u8],
        data: S,
    ) -> Result<(), Full> {
        let link = &mut self.fabric.links[self.link.0];
        if link.is_cut || link.used >= link.capacity {
            return Err(Full);
        }
        // A ring's writer asserts this, and a message's other packets rely on it.
        assert_eq!(header.metadata_len as usize, metadata.len());
        assert!(header.length <= link.packet_bytes, "a packet larger than the link's");
        link.used += 1;
        let to = link.to;
        let mut bytes = vec![0; header.length as usize];
        let mut filled = 0;
        data.for_each(|position, piece| {
            assert_eq!(position, filled, "the pieces of a packet leave a gap");
            bytes[position..position + piece.len()].copy_from_slice(piece);
            filled += piece.len();
        });
        assert_eq!(filled, bytes.len(), "the pieces of a packet do not add to its length");
        let mut packet = SimPacket {
            link: self.link,
            header: *header,
            reserved: 0,
            was_corrupted: false,
            metadata: metadata.to_vec(),
            data: bytes,
        };
        let fabric = &mut *self.fabric;
        if fabric.rng.chance(fabric.trouble.corrupt) {
            fabric.corrupt(&mut packet);
        }
        if fabric.rng.chance(fabric.trouble.duplicate) {
            fabric.links[self.link.0].used += 1;
            fabric.launch(to, packet.clone());
        }
        fabric.launch(to, packet);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Destination, Flags, Key, MetadataIndex, SlotIndex};

    fn header(word: u32, length: u32) -> Header {
        Header {
            destination: Destination(1),
            slot: SlotIndex(2),
            metadata_index: MetadataIndex(3),
            key: Key(4),
            offset: 5,
            length,
            delta: 6,
            metadata_len: 0,
            flags: Flags::NOTIFY,
            word,
        }
    }

    fn run(seed: u64, trouble: Trouble) -> Vec<SimPacket> {
        let mut fabric = SimFabric::new(seed, 2, trouble);
        let link = fabric.connect(1, 40, 64);
        for i in 0..20 {
            let data = [i as u8; 3];
            fabric.outgoing(link).transmit(&header(i, 3), &[], &data[..]).unwrap();
        }
        let mut arrived = Vec::new();
        while fabric.advance() {
            arrived.extend(fabric.arrive(1));
        }
        assert_eq!(fabric.in_flight(), 0);
        arrived
    }

    #[test]
    fn the_same_seed_gives_the_same_run_and_another_seed_another() {
        let trouble = Trouble { delay_max_ns: 100, corrupt: 300_000, duplicate: 100_000 };
        assert_eq!(run(1, trouble), run(1, trouble));
        assert_ne!(run(1, trouble), run(2, trouble));
    }

    #[test]
    fn every_packet_arrives_once_in_another_order() {
        let mut words: Vec<u32> = run(3, Trouble::REORDER).iter().map(|p| p.header.word).collect();
        assert!(!words.is_sorted());
        words.sort_unstable();
        assert!(words.into_iter().eq(0..20));
        assert!(run(3, Trouble::NONE).iter().map(|p| p.header.word).eq(0..20));
    }

    #[test]
    fn a_link_is_full_until_a_packet_is_taken_and_forever_when_it_is_cut() {
        let mut fabric = SimFabric::new(0, 2, Trouble::NONE);
        let (link, other) = (fabric.connect(1, 1, 64), fabric.connect(1, 1, 64));
        let send = |fabric: &mut SimFabric, link| {
            fabric.outgoing(link).transmit(&header(0, 1), &[], &[1u8][..])
        };
        assert_eq!(send(&mut fabric, link), Ok(()));
        assert_eq!(send(&mut fabric, link), Err(Full));
        assert_eq!(fabric.arrive(1), None, "it has not arrived yet");
        assert!(fabric.advance() && fabric.arrive(1).is_some());
        assert_eq!(send(&mut fabric, link), Ok(()));
        assert_eq!(send(&mut fabric, other), Ok(()));
        fabric.cut(link);
        assert!(fabric.is_cut(link) && fabric.in_flight() == 1);
        assert_eq!(send(&mut fabric, link), Err(Full));
        assert!(fabric.advance() && fabric.arrive(1).unwrap().link == other);
    }

    #[test]
    fn a_corrupted_packet_never_makes_its_reader_panic() {
        let trouble = Trouble { delay_max_ns: 9, corrupt: 1_000_000, duplicate: 0 };
        for seed in 0..if cfg!(miri) { 3 } else { 200 } {
            for packet in run(seed, trouble) {
                assert!(packet.was_corrupted);
                packet.copy_data(&mut vec![0; (packet.header.length % 999) as usize]);
                packet.copy_metadata(&mut vec![0; packet.header.metadata_len as usize]);
                packet.words();
            }
        }
    }
}
