//! Tripwires (CLAN 3.3): tell me when the network writes or reads *there*.
//!
//! ```text
//!   a packet for a region     the filter's byte of its line of 64 bytes: 0: deposited, nothing is asked
//!   a wire on that line       its bytes and the packet's overlap: the fired bit, then its event
//! ```
//! Never: a wire fires for a byte that the packet did not touch; a firing between `arm` and the look at
//! the bytes is lost; a peer's packet makes the table grow.

use crate::events::Target;
use crate::{Clan, Error};
use hamlyn::{Deposit, Filter, Receiver};
use std::collections::BTreeSet;
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
    /// Line and number of each wire that is enabled.
    by_line: BTreeSet<(u64, u32)>,
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
            table: Mutex::default(),
            fired: (0..wires_max.div_ceil(64)).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// Whether the region may have wires.
    pub fn has_room_for_any(&self) -> bool {
        !self.fired.is_empty()
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// A peer has written or read bytes.
    pub fn touch(&self, touched: Range<u64>, trip: Trip) {
        if touched.is_empty() {
            return;
        }
        let table = self.table();
        let of = lines(&touched);
        for (_, number) in table.by_line.range((of.start, 0)..(of.end, 0)) {
            let wire = &table.wires[*number as usize];
            if wire.trip != trip
                || wire.range.start >= touched.end
                || touched.start >= wire.range.end
            {
                continue;
            }
            let (word, bit) = (*number as usize / 64, 1 << (number % 64));
            if self.fired[word].fetch_or(bit, Ordering::SeqCst) & bit == 0
                && let Some(target) = &wire.target
            {
                target.raise_in_turn();
            }
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
                table.by_line.insert((line, number));
            } else {
                table.by_line.remove(&(line, number));
            }
            if filters {
                let asks = table
                    .by_line
                    .range((line, 0)..(line + 1, 0))
                    .any(|(_, number)| table.wires[*number as usize].trip == Trip::Write);
                self.filter.set(line as usize, asks);
            }
        }
    }
}

/// The receiver of a region's slot.
pub(crate) struct Tripped(pub Arc<Wires>);

impl Receiver for Tripped {
    fn observe(&mut self, deposit: &Deposit<'_>, _: &[u8]) {
        let end = deposit.offset.saturating_add(deposit.length.into());
        self.0.touch(deposit.offset..end, Trip::Write);
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
        self.wires.table().wires.remove(self.number as usize);
    }
}

impl Wires {
    /// 64 fired bits.
    pub fn fired(&self, word: usize) -> Option<u64> {
        Some(self.fired.get(word)?.load(Ordering::Acquire))
    }
}
