//! Who has how many connections: strangers by their address, hosts that have proved themselves by that.

use super::{LinkRow, Refused, Row, Shared, State, lock};
use core::cmp::Reverse;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::vec::Vec;

/// Connections of one address that have not proved themselves.
const UNPROVED_PER_ADDRESS_MAX: usize = 16;

impl Shared {
    /// Of those who have proved nothing, the oldest of the address that has most gives way.
    pub(super) fn make_room(&self, state: &mut State, newcomer: IpAddr) {
        let newcomer = network_of(newcomer);
        let mut unproved: HashMap<IpAddr, Vec<u64>> = HashMap::new();
        for (id, row) in &state.rows {
            if let Row::Meeting(met) = row
                && met.dial.is_none()
                && met.meeting.is_unproved()
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
    /// Connections of one identity, whatever state they are in; and how many of them wait for the
    /// application's answer.
    pub(super) fn of_identity(&self, identity: &str) -> (usize, usize) {
        let links = self.links.values().filter(|row| row.identity == identity);
        let links: usize = links.map(LinkRow::connections).sum();
        let asked = self.rows.values().filter(|row| {
            matches!(row, Row::Meeting(met)
                if met.wants.as_ref().is_some_and(|wants| wants.1.identity == identity))
        });
        let leaving = self.rows.values().filter(|row| {
            matches!(row, Row::Leaving(leaving) if leaving.identity.as_deref() == Some(identity))
        });
        let asked = asked.count();
        (links + asked + leaving.count(), asked)
    }
}

impl LinkRow {
    /// One, or as many as it has rails.
    pub(super) fn connections(&self) -> usize {
        if self.rails.is_none() { 1 } else { lock(&self.link).rail_count() }
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
