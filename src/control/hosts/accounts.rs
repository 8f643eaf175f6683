//! Who has how many connections: strangers by their address, hosts that have proved themselves by that.

use super::turns::Late;
use super::{LinkRow, Met, Refused, Row, Shared, State};
use core::cmp::Reverse;
use core::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::vec::Vec;

/// Connections of one address that have not proved themselves.
const UNPROVED_PER_ADDRESS_MAX: usize = 16;

impl Shared {
    /// Of those who have proved nothing, the oldest of the address that has most gives way, where there are as
    /// many as may be.
    pub(super) fn make_room(&self, state: &mut State, newcomer: IpAddr) {
        let newcomer = network_of(newcomer);
        let mut unproved: HashMap<IpAddr, Vec<u64>> = HashMap::new();
        for (id, row) in &state.rows {
            if let Row::Meeting(met) = row
                && met.is_stranger()
            {
                unproved.entry(network_of(met.address.ip())).or_default().push(*id);
            }
        }
        let all: usize = unproved.values().map(Vec::len).sum();
        let own = unproved.get(&newcomer);
        let oldest = if own.is_some_and(|own| own.len() >= UNPROVED_PER_ADDRESS_MAX) {
            own.and_then(|own| own.first().copied())
        } else if all >= self.config.half_open_max as usize {
            let most = unproved.values().max_by_key(|ids| (ids.len(), Reverse(ids.first())));
            most.and_then(|ids| ids.first().copied())
        } else {
            None
        };
        if let Some(id) = oldest {
            self.count_refused(Refused::HalfOpen);
            self.forget(state, id);
        }
    }
}

impl State {
    /// Connections that there are, in whatever state, but for those of strangers: they are bounded by
    /// themselves, and take no place of anybody else's.
    pub(super) fn connections(&self) -> usize {
        let is_strangers = |row: &&Row| matches!(row, Row::Meeting(met) if met.is_stranger());
        let strangers = self.rows.values().filter(is_strangers).count();
        self.rows.len() - strangers + self.links.len() + self.more.load(Ordering::Relaxed)
    }

    /// Connections of one identity, whatever state they are in; and how many of them wait for the
    /// application's answer. No link is locked for that.
    pub(super) fn of_identity(&self, identity: &str) -> (usize, usize) {
        let links = self.links.values().filter(|row| row.identity == identity);
        let links: usize = links.map(LinkRow::connections).sum();
        let (mut asked, mut leaving) = (0, 0);
        for row in self.rows.values() {
            match row {
                Row::Meeting(met) => {
                    let wants = met.wants.as_ref();
                    asked += usize::from(wants.is_some_and(|wants| wants.1.identity == identity));
                }
                Row::Leaving(row) if row.identity.as_deref() == Some(identity) => {
                    leaving += row.live.as_ref().map_or(1, |live| live.connections());
                }
                Row::Leaving(_) | Row::Dialing(_) | Row::Near(..) => {}
            }
        }
        (links + asked + leaving, asked)
    }
}

impl Met {
    /// It has connected here, and proved nothing.
    fn is_stranger(&self) -> bool {
        self.dial.is_none() && self.meeting.is_unproved()
    }
}

impl LinkRow {
    /// One, or as many as it has rails.
    pub(super) fn connections(&self) -> usize {
        self.rails.as_ref().map_or(1, |rails| rails.live().connections())
    }
}

/// Which rails of a link live: kept where they come and go, and read without the link's lock, which its
/// node's turns hold.
#[derive(Debug)]
pub struct Live {
    /// A bit for each.
    places: AtomicU8,
    /// Of all links: the connections beyond one each.
    more: Arc<AtomicUsize>,
    late: Arc<Late>,
}

impl Live {
    /// None of them, of a link among others. The thread is told of those that go.
    pub fn new(more: &Arc<AtomicUsize>, late: &Arc<Late>) -> Arc<Self> {
        Arc::new(Self { places: AtomicU8::new(0), more: more.clone(), late: late.clone() })
    }

    /// One lives.
    pub fn joined(&self, place: u8) {
        self.change(self.places.load(Ordering::Relaxed) | 1 << place);
    }

    /// It does not any more.
    pub fn left(&self, place: u8) {
        self.change(self.places.load(Ordering::Relaxed) & !(1 << place));
        self.late.rail_left();
    }

    /// By whoever has the link's lock, or the last who has this.
    fn change(&self, places: u8) {
        let more = |places: u8| (places.count_ones() as usize).saturating_sub(1);
        let before = more(self.places.swap(places, Ordering::Relaxed));
        // A sum that falls wraps around, as it is meant to.
        self.more.fetch_add(more(places).wrapping_sub(before), Ordering::Relaxed);
    }

    /// Whether one lives.
    pub fn has(&self, place: u8) -> bool {
        self.places.load(Ordering::Relaxed) >> place & 1 != 0
    }

    /// Connections of the link: one is counted for a link that has none any more, until it is gone.
    pub fn connections(&self) -> usize {
        (self.places.load(Ordering::Relaxed).count_ones() as usize).max(1)
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.change(0);
    }
}

/// What one stranger has at the least: an address, or in IPv6 a network of 2⁶⁴ of them.
fn network_of(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V6(v6) if v6.to_ipv4_mapped().is_none() => {
            Ipv6Addr::from_bits(v6.to_bits() & !u128::from(u64::MAX)).into()
        }
        address => address,
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn rails_are_counted_where_they_come_and_go_and_those_of_a_link_that_is_gone_are_not() {
        let more = Arc::new(AtomicUsize::new(0));
        let late = Arc::new(Late::new(crate::os::sys::Bell::new().unwrap()));
        let (one, other) = (Live::new(&more, &late), Live::new(&more, &late));
        let all = || more.load(Ordering::Relaxed);
        assert_eq!((one.connections(), all()), (1, 0));
        one.joined(0);
        assert_eq!((one.connections(), all()), (1, 0));
        (1..4).for_each(|place| one.joined(place));
        (0..8).for_each(|place| other.joined(place));
        assert_eq!((one.connections(), other.connections(), all()), (4, 8, 10));
        // Once for each place.
        one.joined(3);
        one.left(2);
        one.left(2);
        assert_eq!((one.connections(), one.has(2), one.has(3), all()), (3, false, true, 9));
        drop(other);
        assert_eq!(all(), 2);
        (0..4).for_each(|place| one.left(place));
        assert_eq!((one.connections(), all()), (1, 0));
    }
}
