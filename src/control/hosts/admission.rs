//! Chooses the next stranger to answer, and the one that gives way, without sockets and without a
//! clock.
//!
//! ```text
//!   Came --its turn--> Begun --it answers the server's flight--> Answered --proves itself--> no stranger
//! ```
//! Each stranger counts against a scarce resource: this host's own connections count together,
//! whatever their address; another host's count by IPv4 address, or in IPv6 by its network of 2⁶⁴
//! addresses within its site of 2⁸⁰. Sites take turns, and within a site its networks.
//!
//! A stranger that has answered the server's flight is at the address that it claims, and has
//! computed as much as this end. Recorded first messages can be replayed by anyone; so a stranger
//! that has answered never gives way to one that has not, as long as the answered ones are at most
//! half of all.
//!
//! Never: an account gives way to another that has more strangers at the same stage.

use core::cmp::Reverse;
use core::ops::Bound;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::vec::Vec;

/// Most strangers of one network with which TLS has begun.
const BEGUN_PER_NETWORK_MAX: usize = 16;
/// Most strangers of one site with which TLS has begun.
const BEGUN_PER_SITE_MAX: usize = 64;
/// Nanoseconds for which a stranger keeps its place while its account is at its limit. Proving
/// itself takes a few round trips.
pub(super) const MAY_TAKE_NS: u64 = 1_000_000_000;

/// The unit by which strangers are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct StrangerAccount {
    site: IpAddr,
    network: IpAddr,
}

impl StrangerAccount {
    /// The account of an address, which may be one of this host's own.
    pub fn of(address: IpAddr, is_here: bool) -> Self {
        let address = address.to_canonical();
        match address {
            // Every user of this host can connect from each of the 2²⁴ addresses of loopback.
            address if is_here || address.is_loopback() => {
                let own = Ipv4Addr::LOCALHOST.into();
                Self { site: own, network: own }
            }
            IpAddr::V4(_) => Self { site: address, network: address },
            IpAddr::V6(v6) => {
                let prefix =
                    |bits: u32| Ipv6Addr::from_bits(v6.to_bits() & !(u128::MAX >> bits)).into();
                Self { site: prefix(48), network: prefix(64) }
            }
        }
    }
}

/// A stranger's progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StrangerStage {
    /// It has connected.
    Came,
    /// Its first message is answered, which is the expensive step.
    Begun { since_ns: u64 },
    /// It has answered the server's flight.
    Answered { since_ns: u64 },
}

/// A connection that has proved nothing.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stranger {
    pub id: u64,
    pub account: StrangerAccount,
    pub stage: StrangerStage,
    /// It has sent something, and waits for its turn.
    pub is_due: bool,
}

/// Strangers by account, the oldest of each first.
#[derive(Default)]
struct StrangerQueue {
    of: HashMap<StrangerAccount, VecDeque<u64>>,
    of_site: HashMap<IpAddr, usize>,
    count: usize,
}

impl StrangerQueue {
    fn add(&mut self, account: StrangerAccount, id: u64) {
        self.of.entry(account).or_default().push_back(id);
        *self.of_site.entry(account.site).or_default() += 1;
        self.count += 1;
    }

    /// Takes the oldest stranger of the largest network at the largest site.
    fn take_one(&mut self) -> Option<u64> {
        let weight = |account: &StrangerAccount, ids: &VecDeque<u64>| {
            (self.of_site.get(&account.site).copied(), ids.len(), Reverse(ids.front().copied()))
        };
        let heaviest = self.of.iter().max_by_key(|(account, ids)| weight(account, ids));
        let account = *heaviest?.0;
        let ids = self.of.get_mut(&account)?;
        let oldest = ids.pop_front();
        if ids.is_empty() {
            self.of.remove(&account);
        }
        *self.of_site.get_mut(&account.site)? -= 1;
        self.count -= 1;
        oldest
    }
}

/// All strangers, of which there may be one too many.
#[derive(Default)]
pub(super) struct Strangers {
    unanswered: StrangerQueue,
    answered: StrangerQueue,
}

impl FromIterator<Stranger> for Strangers {
    fn from_iter<T: IntoIterator<Item = Stranger>>(all: T) -> Self {
        let mut strangers = Self::default();
        all.into_iter().for_each(|stranger| strangers.add(stranger));
        strangers
    }
}

impl Strangers {
    /// Adds a stranger.
    pub fn add(&mut self, Stranger { id, account, stage, .. }: Stranger) {
        match stage {
            StrangerStage::Came | StrangerStage::Begun { .. } => self.unanswered.add(account, id),
            StrangerStage::Answered { .. } => self.answered.add(account, id),
        }
    }

    /// If there are more than `most`, takes out the one that gives way.
    pub fn take_excess(&mut self, most: usize) -> Option<u64> {
        if self.unanswered.count + self.answered.count <= most {
            return None;
        }
        match self.answered.count > most.div_ceil(2) {
            true => self.answered.take_one(),
            false => self.unanswered.take_one(),
        }
    }
}

/// A stranger with which TLS has begun. The first in this order gives way first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct BegunStranger {
    has_answered: bool,
    since_ns: u64,
    id: u64,
}

/// The strangers with which TLS has begun, by site and network.
pub(super) struct BegunStrangers(HashMap<IpAddr, HashMap<IpAddr, Vec<BegunStranger>>>);

impl FromIterator<Stranger> for BegunStrangers {
    fn from_iter<T: IntoIterator<Item = Stranger>>(all: T) -> Self {
        let mut begun: HashMap<IpAddr, HashMap<IpAddr, Vec<BegunStranger>>> = HashMap::new();
        for Stranger { id, account, stage, .. } in all {
            let (has_answered, since_ns) = match stage {
                StrangerStage::Came => continue,
                StrangerStage::Begun { since_ns } => (false, since_ns),
                StrangerStage::Answered { since_ns } => (true, since_ns),
            };
            let of_site = begun.entry(account.site).or_default();
            of_site.entry(account.network).or_default().push(BegunStranger {
                has_answered,
                since_ns,
                id,
            });
        }
        Self(begun)
    }
}

impl BegunStrangers {
    fn first_to_go(&self, account: StrangerAccount) -> Option<BegunStranger> {
        let of_site = self.0.get(&account.site)?;
        let of_network = of_site.get(&account.network);
        if let Some(ones) = of_network.filter(|ones| ones.len() >= BEGUN_PER_NETWORK_MAX) {
            return ones.iter().min().copied();
        }
        if of_site.values().map(Vec::len).sum::<usize>() < BEGUN_PER_SITE_MAX {
            return None;
        }
        let firsts =
            of_site.values().filter_map(|ones| Some((Reverse(ones.len()), ones.iter().min()?)));
        firsts.min().map(|first| *first.1)
    }

    /// The stranger that gives way if one more of an account is answered; `None`: the account is
    /// below its limits.
    pub fn gives_way(&self, account: StrangerAccount) -> Option<u64> {
        self.first_to_go(account).map(|one| one.id)
    }

    /// The earliest time of a stranger's turn. One that has not been answered waits while its
    /// account is at its limit and the stranger that would give way began less than `MAY_TAKE_NS`
    /// ago.
    pub fn turn_ns(&self, stranger: &Stranger) -> u64 {
        match stranger.stage {
            StrangerStage::Came => self
                .first_to_go(stranger.account)
                .map_or(0, |one| one.since_ns.saturating_add(MAY_TAKE_NS)),
            StrangerStage::Begun { .. } | StrangerStage::Answered { .. } => 0,
        }
    }
}

/// The last turn: the site among all sites, and the network within each site that waits.
#[derive(Debug, Default)]
pub(super) struct StrangerTurns {
    site: Option<IpAddr>,
    networks: HashMap<IpAddr, IpAddr>,
}

impl StrangerTurns {
    /// The strangers whose turn it is now: one of each site, and at most `most` in all.
    pub fn next(&mut self, all: &[Stranger], now_ns: u64, most: usize) -> Vec<u64> {
        let begun: BegunStrangers = all.iter().copied().collect();
        let mut sites: BTreeMap<IpAddr, BTreeMap<IpAddr, (bool, u64)>> = BTreeMap::new();
        let due = all.iter().filter(|one| one.is_due && begun.turn_ns(one) <= now_ns);
        for Stranger { id, account, stage, .. } in due {
            // Connections that have begun go first; then the oldest.
            let place = (*stage == StrangerStage::Came, *id);
            let networks = sites.entry(account.site).or_default();
            let first = networks.entry(account.network).or_insert(place);
            *first = place.min(*first);
        }
        self.networks.retain(|site, _| sites.contains_key(site));
        let mut chosen = Vec::new();
        for (site, networks) in behind(&sites, self.site).take(most) {
            let last = self.networks.get(site).copied();
            for (network, (_, id)) in behind(networks, last).take(1) {
                self.networks.insert(*site, *network);
                chosen.push(*id);
            }
            self.site = Some(*site);
        }
        chosen
    }
}

/// All entries, once around, beginning behind `last`.
fn behind<V>(
    all: &BTreeMap<IpAddr, V>,
    last: Option<IpAddr>,
) -> impl Iterator<Item = (&IpAddr, &V)> {
    let from = (last.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
    all.range(from).chain(all).take(all.len())
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::format;

    const MOST: usize = 256;
    const HONEST: &str = "192.0.2.7";

    fn account(address: &str) -> StrangerAccount {
        StrangerAccount::of(address.parse().unwrap(), false)
    }

    /// All strangers at the port of a host, as its thread keeps them.
    #[derive(Default)]
    struct Port {
        all: Vec<Stranger>,
        gone: Vec<u64>,
        turns: StrangerTurns,
        next: u64,
        now_ns: u64,
    }

    impl Port {
        /// A stranger connects and sends its first message.
        fn comes(&mut self, address: &str) -> u64 {
            self.next += 1;
            let (id, account) = (self.next, account(address));
            self.all.push(Stranger { id, account, stage: StrangerStage::Came, is_due: true });
            if let Some(excess) = self.all.iter().copied().collect::<Strangers>().take_excess(MOST)
            {
                self.leaves(excess);
            }
            id
        }

        fn leaves(&mut self, id: u64) {
            self.gone.push(id);
            self.all.retain(|one| one.id != id);
        }

        fn has(&self, id: u64) -> bool {
            self.all.iter().any(|one| one.id == id)
        }

        fn at(&mut self, id: u64) -> &mut Stranger {
            self.all.iter_mut().find(|one| one.id == id).expect("it has not given way")
        }

        fn is_begun(&mut self, id: u64) -> bool {
            self.at(id).stage != StrangerStage::Came
        }

        fn answers(&mut self, id: u64) {
            let since_ns = self.now_ns;
            self.at(id).stage = StrangerStage::Answered { since_ns };
        }

        /// A turn of the thread; returns the number of strangers it handled.
        fn turn(&mut self) -> usize {
            let chosen = self.turns.next(&self.all, self.now_ns, 16);
            for id in &chosen {
                let Some(one) = self.all.iter().find(|one| one.id == *id).copied() else {
                    continue;
                };
                if one.stage == StrangerStage::Came {
                    let begun: BegunStrangers = self.all.iter().copied().collect();
                    if let Some(oldest) = begun.gives_way(one.account) {
                        self.leaves(oldest);
                    }
                    self.at(*id).stage = StrangerStage::Begun { since_ns: self.now_ns };
                }
                self.at(*id).is_due = false;
            }
            chosen.len()
        }
    }

    /// The `i`-th of addresses that cost their owner nothing.
    type Addresses = fn(usize) -> std::string::String;
    const FREE: [(&str, Addresses); 4] = [
        ("loopback", |i| format!("127.{}.{}.{}", i >> 16 & 255, i >> 8 & 255, i & 255)),
        ("a mapped loopback", |i| format!("::ffff:127.0.{}.{}", i >> 8 & 255, i & 255)),
        ("an IPv6 network of 2^64", |i| format!("2001:db8:1:1::{i:x}")),
        ("an IPv6 site of 2^80", |i| format!("2001:db8:1:{:x}::1", i & 0xffff)),
    ];

    #[test]
    fn addresses_that_cost_nothing_are_one_account_that_sends_nobody_else_away() {
        for (what, address) in FREE {
            let mut port = Port::default();
            let honest = port.comes(HONEST);
            let attackers: Vec<u64> = (0..3000).map(|i| port.comes(&address(i))).collect();
            assert!(port.has(honest), "{what}");
            assert_eq!(port.all.len(), MOST, "{what}");
            assert_eq!(port.gone.len(), attackers.len() + 1 - MOST, "{what}");
            // It is answered in the first turn, and one of all the others.
            assert_eq!(port.turn(), 2, "{what}");
            assert!(port.is_begun(honest), "{what}");
        }
    }

    #[test]
    fn the_hosts_own_addresses_and_loopback_are_one_account_and_other_hosts_are_not() {
        let own = StrangerAccount::of("127.0.0.1".parse().unwrap(), true);
        for here in ["10.1.2.3", "192.0.2.200", "2001:db8::1", "fe80::1"] {
            assert_eq!(StrangerAccount::of(here.parse().unwrap(), true), own, "{here}");
        }
        for loopback in ["127.0.0.1", "127.255.255.254", "::1", "::ffff:127.3.2.1"] {
            assert_eq!(account(loopback), own, "{loopback}");
        }
        let apart = ["10.1.2.3", "10.1.2.4", "2001:db8:1::1", "2001:db8:1:1::1", "2001:db8:2::1"];
        for (i, one) in apart.iter().enumerate() {
            assert!(
                account(one) != own
                    && apart[..i].iter().all(|other| account(other) != account(one))
            );
        }
    }

    #[test]
    fn one_who_has_answered_the_servers_flight_outlives_all_who_have_not() {
        let mut port = Port::default();
        let honest = port.comes(HONEST);
        port.turn();
        assert!(port.is_begun(honest));
        port.answers(honest);
        // From as many addresses as there are, each used once.
        for i in 0..20_000usize {
            port.comes(&format!("{}.{}.{}.1", 11 + (i >> 16), i >> 8 & 255, i & 255));
            assert!(port.has(honest), "{i}");
        }
        // Nor does its own account, which replays first messages, make it give way.
        for _ in 0..100 {
            port.comes(HONEST);
            port.now_ns += MAY_TAKE_NS;
            port.turn();
            assert!(port.has(honest));
        }
    }

    #[test]
    fn those_who_have_answered_take_no_more_than_half_of_the_places() {
        let mut port = Port::default();
        for i in 0..MOST {
            let one = port.comes(&format!("10.0.{}.1", i % 100));
            port.answers(one);
        }
        // Each newcomer makes one of them give way, of the largest account.
        let honest = port.comes(HONEST);
        for i in 0..MOST / 2 - 1 {
            port.comes(&format!("10.1.{}.1", i));
            assert!(port.has(honest), "{i}");
        }
        let answered = |one: &&Stranger| matches!(one.stage, StrangerStage::Answered { .. });
        assert_eq!(port.all.iter().filter(answered).count(), MOST / 2);
    }

    #[test]
    fn a_network_has_sixteen_that_were_answered_and_a_site_sixty_four() {
        for (address, most) in [(FREE[0].1, 16), (FREE[2].1, 16), (FREE[3].1, 64)] {
            let mut port = Port::default();
            let all: Vec<u64> = (0..200).map(|i| port.comes(&address(i))).collect();
            while port.turn() > 0 {}
            let begun = |port: &Port| {
                port.all.iter().filter(|one| one.stage != StrangerStage::Came).count()
            };
            assert_eq!((begun(&port), port.gone.len()), (most, 0));
            let began = BegunStrangers::from_iter(port.all.iter().copied());
            let waits = port.all.iter().find(|one| one.stage == StrangerStage::Came).unwrap();
            assert_eq!(began.turn_ns(waits), MAY_TAKE_NS);
            // Then each gives way to one, the oldest first.
            port.now_ns = MAY_TAKE_NS;
            while port.turn() > 0 {}
            assert_eq!(begun(&port), most);
            assert_eq!(port.gone, all[..most]);
        }
    }

    #[test]
    fn a_site_has_one_answer_a_turn_and_its_networks_take_turns() {
        let mut port = Port::default();
        for i in 0..40 {
            port.comes(&format!("2001:db8:1:{i:x}::1"));
            port.comes(&format!("2001:db8:1:{i:x}::2"));
        }
        let mut seen = Vec::new();
        for turn in 1..=40 {
            assert_eq!(port.turn(), 1, "turn {turn}");
            let begun = port.all.iter().filter(|one| one.stage != StrangerStage::Came);
            let mut networks: Vec<_> = begun.map(|one| one.account.network).collect();
            networks.sort();
            networks.dedup();
            assert_eq!(networks.len(), turn);
            seen = networks;
        }
        assert_eq!(seen.len(), 40);
        // Sites beyond those of one turn are in the next.
        let mut port = Port::default();
        let all: Vec<u64> = (0..40).map(|i| port.comes(&format!("2001:db8:{i:x}::1"))).collect();
        assert_eq!([port.turn(), port.turn(), port.turn(), port.turn()], [16, 16, 8, 0]);
        assert!(all.iter().all(|id| port.is_begun(*id)));
    }
}
