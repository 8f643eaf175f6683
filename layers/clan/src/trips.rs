//! Tripwires (CLAN 3.3): tell me when the network writes or reads *there*.
//!
//! ```text
//!   a packet for a region     the filter's byte of its line of 64 bytes: 0: deposited, nothing is asked
//!   a wire on that line       64 bits for a page's lines, a chain of wires for each line
//!   on the packet's bytes     the fired bit, then its event
//! ```
//! Never: a wire fires for a byte that the packet did not touch; a firing between `arm` and the look at
//! the bytes is lost; a peer's packet makes the table grow.

use crate::ends::unpoisoned;
use crate::events::Target;
use crate::{Clan, Error};
use hamlyn::{Deposit, Filter, Receiver};
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// Bytes of a line: a filter's page.
const LINE: u64 = 64;

/// The accesses over the network that a wire is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trip {
    /// A put of a peer.
    Write,
    /// A get of a peer, which this program answers.
    Read,
}

/// The wires of one region.
pub(crate) struct Wires {
    pub filter: Filter,
    table: Mutex<Table>,
    /// A bit for each wire.
    fired: Box<[AtomicU64]>,
}

#[derive(Default)]
struct Table {
    wires: slab::Slab<Placed>,
    /// A bit for each line with wires that are enabled.
    pages: Box<[u64]>,
    /// Of such a line the first link of its chain.
    first: HashMap<u64, u32, OwnHasher>,
    links: slab::Slab<ChainLink>,
}

/// A wire on a line.
#[derive(Clone, Copy)]
struct ChainLink {
    wire: u32,
    /// [`END`], or the next.
    next: u32,
}

const END: u32 = u32::MAX;

/// For keys that this program chooses, not peers.
pub(crate) type OwnHasher = BuildHasherDefault<Multiply>;

#[derive(Default)]
pub(crate) struct Multiply(u64);

impl Hasher for Multiply {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64((*byte).into()));
    }

    #[inline]
    fn write_u32(&mut self, word: u32) {
        self.write_u64(word.into());
    }

    #[inline]
    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0 ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(32);
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}

impl Table {
    /// The wires of a line.
    #[inline]
    fn on(&self, line: u64) -> impl Iterator<Item = (u32, &Placed)> {
        let mut at = self.first.get(&line).copied().unwrap_or(END);
        std::iter::from_fn(move || {
            let link = *self.links.get(at as usize)?;
            at = link.next;
            Some((link.wire, &self.wires[link.wire as usize]))
        })
    }

    fn insert(&mut self, line: u64, wire: u32) {
        let next = self.first.get(&line).copied().unwrap_or(END);
        let at = self.links.insert(ChainLink { wire, next });
        self.first.insert(line, at as u32);
        self.pages[line as usize / 64] |= 1 << (line % 64);
    }

    fn remove(&mut self, line: u64, wire: u32) {
        let (mut before, mut at) = (None, self.first.get(&line).copied().unwrap_or(END));
        while let Some(link) = self.links.get(at as usize).copied() {
            if link.wire != wire {
                (before, at) = (Some(at), link.next);
                continue;
            }
            self.links.remove(at as usize);
            match (before, link.next) {
                (Some(before), next) => self.links[before as usize].next = next,
                (None, END) => {
                    self.first.remove(&line);
                    self.pages[line as usize / 64] &= !(1 << (line % 64));
                }
                (None, next) => drop(self.first.insert(line, next)),
            }
            return;
        }
    }
}

struct Placed {
    range: Range<u64>,
    trip: Trip,
    target: Option<Target>,
    is_enabled: bool,
}

fn lines(range: &Range<u64>) -> Range<u64> {
    range.start / LINE..range.end.div_ceil(LINE)
}

impl Wires {
    pub fn new(bytes: u64, wires_max: u32) -> Self {
        Self {
            filter: Filter::by_page(bytes as usize, LINE as usize),
            table: Mutex::new(Table {
                pages: vec![0; bytes.div_ceil(LINE * 64) as usize].into(),
                ..Table::default()
            }),
            fired: (0..wires_max.div_ceil(64)).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// Whether the region may have wires.
    pub fn has_room_for_any(&self) -> bool {
        !self.fired.is_empty()
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        unpoisoned(&self.table)
    }

    /// A peer has written or read bytes.
    pub fn touch(&self, touched: Range<u64>, trip: Trip) {
        if touched.is_empty() {
            return;
        }
        let table = self.table();
        let of = lines(&touched);
        // A wire on several lines is next to itself.
        let mut last = None;
        for page in of.start / 64..of.end.div_ceil(64) {
            let (from, to) = (of.start.max(page * 64), of.end.min(page * 64 + 64));
            let mask = u64::MAX >> (64 - (to - from)) << (from % 64);
            let mut bits = table.pages.get(page as usize).map_or(0, |bits| bits & mask);
            while bits != 0 {
                let line = page * 64 + u64::from(bits.trailing_zeros());
                bits &= bits - 1;
                for (number, wire) in table.on(line) {
                    if wire.trip == trip
                        && wire.range.start < touched.end
                        && touched.start < wire.range.end
                        && last.replace(number) != Some(number)
                    {
                        self.fire(number, wire);
                    }
                }
            }
        }
    }

    fn fire(&self, number: u32, wire: &Placed) {
        let (word, bit) = (number as usize / 64, 1 << (number % 64));
        if self.fired[word].fetch_or(bit, Ordering::SeqCst) & bit == 0
            && let Some(target) = &wire.target
        {
            target.raise_in_turn();
        }
    }

    /// Enables or disables a wire. By a thread that has the node: no packet is half handled meanwhile.
    fn enable(&self, number: u32, is_enabled: bool) {
        let mut table = self.table();
        let wire = &mut table.wires[number as usize];
        if core::mem::replace(&mut wire.is_enabled, is_enabled) == is_enabled {
            return;
        }
        // Reads are noticed where they are answered.
        let filters = wire.trip == Trip::Write;
        for line in lines(&wire.range.clone()) {
            if is_enabled {
                table.insert(line, number);
            } else {
                table.remove(line, number);
            }
            if filters {
                let asks = table.on(line).any(|(_, wire)| wire.trip == Trip::Write);
                self.filter.set(line as usize, asks);
            }
        }
    }
}

/// Called for each deposit with its place and bytes; `false`: no more.
pub(crate) type Observer = Box<dyn FnMut(u64, &[u8]) -> bool + Send>;
pub(crate) type Observers = Mutex<Vec<Observer>>;

/// The receiver of a region's slot.
pub(crate) struct Tripped(pub Arc<Wires>, pub Arc<Observers>);

impl Receiver for Tripped {
    fn observe(&mut self, deposit: &Deposit<'_>, bytes: &[u8]) {
        let end = deposit.offset.saturating_add(deposit.length.into());
        self.0.touch(deposit.offset..end, Trip::Write);
        unpoisoned(&self.1).retain_mut(|observer| observer(deposit.offset, bytes));
    }
}

/// A tripwire, from [`Region::wire`](crate::Region::wire). Dropping it takes it away.
///
/// **Not tripped by** stores and loads through a mapped aperture, which no packet announces: a peer's
/// processor writes the page itself. [`Aperture::put`](crate::Aperture::put) trips, in either kind of
/// region.
pub struct Wire {
    clan: Clan,
    wires: Arc<Wires>,
    number: u32,
}

impl core::fmt::Debug for Wire {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Wire").field("number", &self.number).finish_non_exhaustive()
    }
}

impl Wire {
    pub(crate) fn new(
        clan: &Clan,
        wires: &Arc<Wires>,
        range: Range<u64>,
        trip: Trip,
        target: Option<Target>,
    ) -> Result<Self, Error> {
        let number = {
            let mut table = wires.table();
            let number = table.wires.vacant_key();
            if number / 64 >= wires.fired.len() {
                let max = wires.fired.len() * 64;
                return Err(Error::Full(format!("the region has its {max} wires")));
            }
            table.wires.insert(Placed { range, trip, target, is_enabled: false });
            number as u32
        };
        let wire = Self { clan: clan.clone(), wires: wires.clone(), number };
        wire.take_fired();
        wire.enable();
        Ok(wire)
    }

    /// From now on accesses fire it, as from the beginning. Takes the node's lock.
    pub fn enable(&self) {
        self.clan.apart(|| self.wires.enable(self.number, true));
    }

    /// From now on nothing fires it. Its fired bit stays. Takes the node's lock.
    pub fn disable(&self) {
        self.clan.apart(|| self.wires.enable(self.number, false));
    }

    /// Whether it has fired since it was armed. One load.
    #[inline]
    pub fn has_fired(&self) -> bool {
        let (word, bit) = (self.number as usize / 64, 1 << (self.number % 64));
        self.wires.fired[word].load(Ordering::Acquire) & bit != 0
    }

    /// Arms it again, and returns whether it fired meanwhile: the next access sets its bit and raises its
    /// event. Arm, then look at the bytes, then wait: nothing is lost in between.
    #[inline]
    pub fn arm(&self) -> bool {
        self.take_fired()
    }

    /// Its place in the words of [`Region::fired`](crate::Region::fired): word and bit.
    pub fn place(&self) -> (usize, u32) {
        (self.number as usize / 64, self.number % 64)
    }

    fn take_fired(&self) -> bool {
        let (word, bit) = (self.number as usize / 64, 1 << (self.number % 64));
        self.wires.fired[word].fetch_and(!bit, Ordering::SeqCst) & bit != 0
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.disable();
        // Dropped when the table is free again: the target's queue has a call-back of the user's.
        let _wire = self.wires.table().wires.remove(self.number as usize);
    }
}

impl Wires {
    /// 64 fired bits.
    pub fn fired(&self, word: usize) -> Option<u64> {
        Some(self.fired.get(word)?.load(Ordering::Acquire))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_touch_fires_the_enabled_wires_of_its_kind_on_its_bytes_and_no_others() {
        let (bytes, mut state) = (20_000u64, 1u64);
        let mut random = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % below
        };
        let wires = Wires::new(bytes, 256);
        let mut placed = Vec::new();
        for number in 0..256 {
            // Short ones, of which several share a line, and some over pages.
            let start = random(bytes);
            let most = if number % 8 == 0 { 9000 } else { 40 };
            let range = start..(start + 1 + random(most)).min(bytes);
            let trip = if random(3) == 0 { Trip::Read } else { Trip::Write };
            let wire = Placed { range: range.clone(), trip, target: None, is_enabled: false };
            wires.table().wires.insert(wire);
            placed.push((range, trip, false));
        }
        for _ in 0..5000 {
            let number = random(256);
            let is_enabled = random(2) == 0;
            wires.enable(number as u32, is_enabled);
            placed[number as usize].2 = is_enabled;
            let start = random(bytes);
            let touched = start..(start + random(300)).min(bytes);
            let trip = if random(2) == 0 { Trip::Read } else { Trip::Write };
            wires.touch(touched.clone(), trip);
            for (number, (range, of, is_enabled)) in placed.iter().enumerate() {
                let overlaps = range.start < touched.end && touched.start < range.end;
                let wanted = *is_enabled && *of == trip && overlaps && !touched.is_empty();
                let bit = 1 << (number % 64);
                let fired = wires.fired[number / 64].fetch_and(!bit, Ordering::Relaxed) & bit != 0;
                assert_eq!(fired, wanted, "{touched:?} and {range:?}");
            }
        }
        (0..256).for_each(|number| wires.enable(number, false));
        let table = wires.table();
        assert!(table.first.is_empty() && table.links.is_empty());
        assert!(table.pages.iter().all(|bits| *bits == 0));
    }
}
