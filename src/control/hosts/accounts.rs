//! Who has how many connections: strangers by their address, hosts that have proved themselves by that.

use super::turns::Late;
use super::{Came, LinkRow, Met, Refused, Row, Shared, State};
use core::cmp::Reverse;
use core::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

/// Connections of one address that have had an answer and not proved themselves.
const BEGUN_PER_ADDRESS_MAX: usize = 16;
/// Nanoseconds that one of as many as there may be has before it gives way: to prove itself takes a few times
/// the way there and back.
pub(super) const MAY_TAKE_NS: u64 = 1_000_000_000;

/// Those who have proved nothing, by address; of each the oldest is the first.
pub(super) struct Strangers {
    of: HashMap<IpAddr, VecDeque<u64>>,
    all: usize,
}

impl Strangers {
    /// Those that there are.
    pub(super) fn of(state: &State) -> Self {
        let mut found = Self { of: HashMap::new(), all: 0 };
        state.rows.iter().for_each(|(id, row)| found.add(*id, row));
        found
    }

    fn add(&mut self, id: u64, row: &Row) {
        if let Some(network) = row.stranger() {
            self.of.entry(network).or_default().push_back(id);
            self.all += 1;
        }
    }

    /// The oldest of the address that has most.
    fn take_one(&mut self) -> Option<u64> {
        let order = |ids: &VecDeque<u64>| (ids.len(), Reverse(ids.front().copied()));
        self.all -= 1;
        self.of.values_mut().max_by_key(|ids| order(ids))?.pop_front()
    }
}

/// Of each address how many were answered, and when the first of them was.
pub(super) struct Begun(HashMap<IpAddr, (usize, u64)>);

impl Begun {
    /// Those that there are.
    pub(super) fn of(state: &State) -> Self {
        let mut begun = HashMap::new();
        for row in state.rows.values() {
            let (Row::Meeting(met), Some(network)) = (row, row.stranger()) else { continue };
            let (many, first_ns) = begun.entry(network).or_insert((0, u64::MAX));
            *many += 1;
            *first_ns = met.began_ns.min(*first_ns);
        }
        Self(begun)
    }

    /// When a stranger of this address may be gone on with: one that was not answered waits while as many as
    /// may be were answered, and none of them long ago.
    pub(super) fn turn_ns(&self, row: &Row, network: IpAddr) -> u64 {
        match self.0.get(&network) {
            Some((many, first_ns)) if *many >= BEGUN_PER_ADDRESS_MAX && !row.has_begun() => {
                first_ns.saturating_add(MAY_TAKE_NS)
            }
            _ => 0,
        }
    }
}

impl Shared {
    /// One more who has proved nothing: where there are more than may be, the oldest of the address that has
    /// most gives way.
    pub(super) fn let_in(&self, state: &mut State, strangers: &mut Strangers, came: Came) -> u64 {
        let (id, row) = (state.new_id(), Row::Came(came));
        strangers.add(id, &row);
        state.rows.insert(id, row);
        if strangers.all > self.config.half_open_max as usize
            && let Some(oldest) = strangers.take_one()
        {
            self.give_way(state, oldest);
        }
        id
    }

    /// One more of an address is answered: the oldest of as many as may be gives way.
    pub(super) fn make_room_for_one(&self, state: &mut State, network: IpAddr) {
        let begun = state.rows.iter().filter_map(|(id, row)| match row {
            Row::Meeting(met) if row.stranger() == Some(network) => Some((met.began_ns, *id)),
            _ => None,
        });
        if begun.clone().count() >= BEGUN_PER_ADDRESS_MAX
            && let Some((_, oldest)) = begun.min()
        {
            self.give_way(state, oldest);
        }
    }

    fn give_way(&self, state: &mut State, id: u64) {
        self.count_refused(Refused::HalfOpen);
        self.forget(state, id);
    }
}

impl State {
    /// Connections that there are, in whatever state, but for those of strangers: they are bounded by
    /// themselves, and take no place of anybody else's.
    pub(super) fn connections(&self) -> usize {
        let strangers = self.rows.values().filter(|row| row.stranger().is_some()).count();
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
                Row::Leaving(_) | Row::Dialing(_) | Row::Near(..) | Row::Came(_) => {}
            }
        }
        (links + asked + leaving, asked)
    }
}

impl Row {
    /// From where one has connected that has proved nothing.
    pub(super) fn strangers_address(&self) -> Option<SocketAddr> {
        match self {
            Self::Came(came) => Some(came.address),
            Self::Meeting(met) if met.is_stranger() => Some(met.address),
            _ => None,
        }
    }

    /// Of one that has proved nothing: what it is counted by.
    pub(super) fn stranger(&self) -> Option<IpAddr> {
        self.strangers_address().map(|address| network_of(address.ip()))
    }

    /// Whether TLS has begun with it, which is what costs.
    pub(super) fn has_begun(&self) -> bool {
        matches!(self, Self::Meeting(_))
    }
}

impl Met {
    /// It has connected here, and proved nothing.
    pub(super) fn is_stranger(&self) -> bool {
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
