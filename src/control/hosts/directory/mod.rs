//! Directories: they find services whose names contain no place.
//!
//! ```text
//!   dial --service--> look_up --> Given: the application's own, if it has given one; else
//!     ^                           file: the file that `directory` names
//!     |                           resolver: SRV records; records: reads an answer
//!     +--- Targets, by their order
//! ```
//! All of it runs on the thread that connects, for each connection anew: a changed directory needs
//! no restart.
//!
//! A directory is trusted like a name server: it gives the place to look for a service, and the
//! keys decide whether the host there can be trusted. With certificates that is the host that the
//! directory names.
//!
//! Never: a lock is held while a directory is asked; a directory makes this end keep or try more
//! than [`PLACES_MAX`] places, and in all 64 addresses of them.

mod error;
mod file;
#[cfg(feature = "dns")]
pub mod records;
#[cfg(feature = "dns")]
mod resolver;

pub use super::name::PLACES_MAX;
pub use error::HostDirectoryError;

use super::super::within::Running;
use super::name::Place;
use crate::config::{Config, ServiceDirectory};
use crate::os::sys::monotonic_ns;
use crate::os::tcp;
use core::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};
use core::time::Duration;
#[cfg(feature = "dns")]
use resolver::Resolver;
use std::boxed::Box;
use std::error::Error;
use std::io;
use std::net::ToSocketAddrs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::string::{String, ToString};
use std::sync::{Arc, Mutex, PoisonError};
use std::vec::Vec;

/// Most addresses of one service, of all its places together.
pub(super) const ADDRESSES_MAX: usize = 64;
/// Longest text from an application's directory that is reported, in bytes.
const TEXT_BYTES_MAX: usize = 1000;
/// The longest pause between two look-ups in a directory that is not a file, while waiting for a
/// service.
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// The longest wait for the system, if no time limit is given.
const ASKED_WITHIN_MAX: Duration = Duration::from_secs(3600);
/// Stack of a thread that calls the application.
pub(super) const GIVEN_STACK_BYTES: usize = 8 << 20;

/// A directory of the application's own, for services of other hosts whose names contain no place,
/// `hamlyn://service`. It replaces the setting `directory`; see
/// [`Node::set_directory`](crate::Node::set_directory).
///
/// It is called on a thread that connects, by several of them at a time, and may wait: the caller
/// who connects gets an error when its time limit has passed, however long the directory takes. A
/// thread that is still in it then counts as one of the 64 that may be connecting.
pub trait HostDirectory: Send + Sync {
    /// Returns the places of `service`, in the order in which to try them. An empty list: the
    /// service is not registered yet; a caller that waits for names asks again, at first after 50
    /// ms, then less often, at least once a second.
    ///
    /// An error ends the attempt, and its text is part of the caller's error. So does a panic.
    /// `timeout` is the caller's remaining time (`None`: no limit); a later answer is not used.
    fn look_up(
        &self,
        service: &str,
        timeout: Option<Duration>,
    ) -> Result<Vec<Place>, Box<dyn Error + Send + Sync>>;
}

/// The application's own directory, which may change.
#[derive(Default)]
pub struct Given(Mutex<Option<Arc<dyn HostDirectory>>>);

impl core::fmt::Debug for Given {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_tuple("Given").field(&self.is_there()).finish()
    }
}

impl Given {
    /// Sets the directory for later look-ups; those that are running keep theirs.
    pub fn set(&self, directory: Option<Arc<dyn HostDirectory>>) {
        let mut now = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = core::mem::replace(&mut *now, directory);
        // The destructor is the application's code.
        drop(now);
        drop(before);
    }

    pub(super) fn get(&self) -> Option<Arc<dyn HostDirectory>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn is_there(&self) -> bool {
        self.get().is_some()
    }

    /// The pause before the next look-up, given the one before the last.
    pub(super) fn pause_after(&self, config: &Config, pause: Duration) -> Duration {
        match &config.directory {
            Some(ServiceDirectory::File(_)) if !self.is_there() => pause,
            _ => (pause * 2).min(PAUSE_MAX),
        }
    }
}

/// A place where a service may be.
#[derive(Clone, Debug)]
pub(super) struct ServiceTarget {
    pub place: Place,
    /// Lower values come first (RFC 2782).
    priority: u16,
    /// Among targets of one priority: its relative probability of being the first.
    weight: u16,
    /// The resolver for its addresses; `None`: the system's.
    #[cfg(feature = "dns")]
    resolver: Option<Arc<Resolver>>,
}

impl From<Place> for ServiceTarget {
    fn from(place: Place) -> Self {
        Self {
            place,
            priority: 0,
            weight: 0,
            #[cfg(feature = "dns")]
            resolver: None,
        }
    }
}

impl ServiceTarget {
    /// Its addresses, in the order in which to try them.
    pub fn addresses(&self, until_ns: u64) -> io::Result<Vec<SocketAddr>> {
        static ASKED: Running = Running::new(ASKED_MAX);
        let Place { host, port } = &self.place;
        #[cfg(feature = "dns")]
        if let Some(resolver) = &self.resolver {
            return resolver.addresses(host, *port, until_ns);
        }
        // This needs no query.
        if let Ok(address) = host.parse::<IpAddr>() {
            return Ok(std::vec![SocketAddr::new(address, *port)]);
        }
        if let Some((address, interface)) = host.split_once('%')
            && let Ok(address) = address.parse::<Ipv6Addr>()
        {
            let scope = tcp::interface(interface)?;
            return Ok(std::vec![SocketAddrV6::new(address, *port, 0, scope).into()]);
        }
        let (host, port) = (host.clone(), *port);
        of_system(&ASKED, until_ns, move || {
            (host.as_str(), port).to_socket_addrs().map(Iterator::collect)
        })
    }
}

/// Most queries to the system for a host's addresses that may run at a time.
const ASKED_MAX: usize = 256;

/// The system's addresses of a host, if they come within the time limit and no more than
/// `ASKED_MAX` queries run. The system's own look-up (`getaddrinfo`) takes no time limit, and may
/// hang in a name server that does not answer, or in a file system. So it runs on a thread of its
/// own, which goes on after the time limit, although its result is no longer used.
fn of_system(
    asked: &'static Running,
    until_ns: u64,
    ask: impl FnOnce() -> io::Result<Vec<SocketAddr>> + Send + 'static,
) -> io::Result<Vec<SocketAddr>> {
    let left = Duration::from_nanos(until_ns.saturating_sub(monotonic_ns())).min(ASKED_WITHIN_MAX);
    match asked.within(left, ask)? {
        Some(answer) => answer,
        None => Err(io::Error::new(
            io::ErrorKind::TimedOut,
            "the system has not said in time what its addresses are, or is asked for too many others",
        )),
    }
}

/// The places of a service; at least one. Their order is the same in each look-up: [`in_turn`]
/// gives the order in which to try them.
pub(super) fn look_up(
    given: Option<Arc<dyn HostDirectory>>,
    config: &Config,
    service: &str,
    until_ns: u64,
) -> Result<Vec<ServiceTarget>, HostDirectoryError> {
    if let Some(given) = given {
        return ask(&*given, service, until_ns);
    }
    match &config.directory {
        None => Err(HostDirectoryError::None),
        Some(ServiceDirectory::File(path)) => {
            let places = file::look_up(path, service)?;
            Ok(places.into_iter().map(ServiceTarget::from).collect())
        }
        #[cfg(not(feature = "dns"))]
        Some(directory) => Err(HostDirectoryError::NoDns(directory.to_string())),
        #[cfg(feature = "dns")]
        Some(ServiceDirectory::Dns { domain, server }) => {
            let (found, resolver) = resolver::look_up(domain, *server, service, until_ns)?;
            let target = |found: records::SrvRecord| {
                let records::SrvRecord { priority, weight, place } = found;
                ServiceTarget { place, priority, weight, resolver: resolver.clone() }
            };
            Ok(found.into_iter().map(target).collect())
        }
    }
}

fn ask(
    given: &dyn HostDirectory,
    service: &str,
    until_ns: u64,
) -> Result<Vec<ServiceTarget>, HostDirectoryError> {
    let wrong = |text: &str| {
        let mut end = text.len().min(TEXT_BYTES_MAX);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        HostDirectoryError::Given(text[..end].into())
    };
    let left = until_ns.saturating_sub(monotonic_ns());
    let left = (until_ns != u64::MAX).then(|| Duration::from_nanos(left));
    // After a panic only the application's own state may be inconsistent; the library has none in
    // it.
    let look = || given.look_up(service, left).map_err(|error| error.to_string());
    let places = match catch_unwind(AssertUnwindSafe(look)) {
        Ok(found) => found.map_err(|error| wrong(&error))?,
        Err(panic) => {
            let text = match panic.downcast::<String>() {
                Ok(text) => *text,
                Err(panic) => panic.downcast::<&str>().map_or("", |text| *text).into(),
            };
            return Err(wrong(&std::format!("it panicked: {text}")));
        }
    };
    if places.len() > PLACES_MAX {
        let found = places.len();
        return Err(wrong(&std::format!("{found} places, and {PLACES_MAX} are most")));
    }
    // A place may have been constructed without checks.
    for place in &places {
        place.to_string().parse::<Place>().map_err(|error| wrong(&error.to_string()))?;
    }
    if places.is_empty() {
        return Err(HostDirectoryError::NotGiven);
    }
    Ok(places.into_iter().map(ServiceTarget::from).collect())
}

/// The order in which to try targets (RFC 2782): the lowest priority first; targets of one priority
/// at random in proportion to their weights, and those without any last. `random` returns a number
/// below its argument. Targets of a directory with an order of its own keep it.
pub(super) fn in_turn(
    mut targets: Vec<ServiceTarget>,
    mut random: impl FnMut(u64) -> u64,
) -> Vec<ServiceTarget> {
    targets.sort_by_key(|target| target.priority);
    for first in 0..targets.len() {
        let rest = &targets[first..];
        let same = rest.iter().take_while(|target| target.priority == rest[0].priority);
        let weights: Vec<u64> = same.map(|target| target.weight.into()).collect();
        let sum: u64 = weights.iter().sum();
        if sum == 0 {
            continue;
        }
        let mut left = random(sum);
        let taken = weights.iter().position(|weight| match left.checked_sub(*weight) {
            None => true,
            Some(rest) => {
                left = rest;
                false
            }
        });
        let taken = first + taken.unwrap_or(0);
        // The others keep their order.
        targets[first..=taken].rotate_right(1);
    }
    targets
}

/// The addresses of a place to be tried, after `before` other addresses and with `behind` places
/// still to come: the first ones, so that at least one is left for each of those places.
pub(super) fn within_bounds(
    mut addresses: Vec<SocketAddr>,
    before: usize,
    behind: usize,
) -> Vec<SocketAddr> {
    addresses.truncate(ADDRESSES_MAX.saturating_sub(before + behind));
    addresses
}

/// A random number below `end`, which is not 0, from the system; 0 if the system has none, which is
/// one of the possible orders.
pub(super) fn random_below(end: u64) -> u64 {
    let mut bytes = [0; 8];
    match getrandom::fill(&mut bytes) {
        // At most 64 weights of 16 bits: the bias of 2^64 does not matter.
        Ok(()) => u64::from_ne_bytes(bytes) % end,
        Err(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;
    use std::format;
    use std::path::PathBuf;

    fn target(host: &str, priority: u16, weight: u16) -> ServiceTarget {
        let place = Place { host: host.into(), port: 1 };
        ServiceTarget { priority, weight, ..ServiceTarget::from(place) }
    }

    fn hosts(targets: &[ServiceTarget]) -> String {
        targets.iter().map(|t| t.place.host.as_str()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn of_one_priority_each_is_the_first_in_proportion_to_its_weight() {
        let targets = || {
            std::vec![
                target("z", 20, 9),
                target("a", 10, 1),
                target("b", 10, 3),
                target("c", 10, 0),
                target("d", 5, 0),
            ]
        };
        let mut orders = HashMap::new();
        for draw in 0..4 {
            let turn = in_turn(targets(), |end| draw % end);
            *orders.entry(hosts(&turn)).or_insert(0) += 1;
        }
        // The lower priority first, whatever the weights; a weight of 0, the last of its priority.
        let expected = [("d a b c z".into(), 1), ("d b a c z".into(), 3)];
        assert_eq!(orders, HashMap::from(expected));
        let random: Vec<_> = (0..200).map(|_| hosts(&in_turn(targets(), random_below))).collect();
        assert!(random.iter().all(|order| expected_order(order)));
        assert!(random.iter().any(|order| order == "d a b c z"));
        assert!(random.iter().any(|order| order == "d b a c z"));
    }

    fn expected_order(order: &str) -> bool {
        order == "d a b c z" || order == "d b a c z"
    }

    #[test]
    fn an_order_that_is_given_is_kept() {
        let targets = ["c", "a", "b"].map(|host| target(host, 0, 0)).to_vec();
        assert_eq!(hosts(&in_turn(targets, |_| panic!("nothing to draw"))), "c a b");
    }

    #[test]
    fn the_addresses_of_all_places_are_bounded_and_each_place_keeps_one() {
        let address = |number| SocketAddr::from(([10, 0, 0, number], 7));
        let (mut all, places) = (0, PLACES_MAX);
        for tried in 0..places {
            let found = within_bounds((0..128).map(address).collect(), all, places - tried - 1);
            assert!(!found.is_empty() && found[0] == address(0));
            all += found.len();
        }
        assert_eq!(all, ADDRESSES_MAX);
        assert_eq!(within_bounds((0..128).map(address).collect(), 0, 1).len(), 63);
        assert_eq!(within_bounds((0..128).map(address).collect(), 63, 0).len(), 1);
    }

    struct Function<F>(F);

    impl<F> HostDirectory for Function<F>
    where
        F: Fn() -> Result<Vec<Place>, Box<dyn Error + Send + Sync>> + Send + Sync,
    {
        fn look_up(
            &self,
            service: &str,
            timeout: Option<Duration>,
        ) -> Result<Vec<Place>, Box<dyn Error + Send + Sync>> {
            assert_eq!(service, "quotes");
            assert!(timeout.is_some_and(|left| left <= Duration::from_secs(5)));
            (self.0)()
        }
    }

    fn given(
        found: impl Fn() -> Result<Vec<Place>, Box<dyn Error + Send + Sync>> + Send + Sync + 'static,
    ) -> Result<String, HostDirectoryError> {
        let given = Given::default();
        given.set(Some(Arc::new(Function(found))));
        let until = monotonic_ns() + 5_000_000_000;
        let config = Config::default().directory(PathBuf::from("/not/looked/into"));
        look_up(given.get(), &config, "quotes", until).map(|found| hosts(&found))
    }

    #[test]
    fn what_a_given_directory_does_wrong_is_an_error_of_the_attempt() {
        let place = |host: &str| Place { host: host.into(), port: 7 };
        assert_eq!(given(move || Ok(std::vec![place("b"), place("::1")])).unwrap(), "b ::1");
        for (error, says) in [
            (given(|| Err("no network".into())), "no network"),
            (given(|| panic!("not today")), "it panicked: not today"),
            (given(|| panic!("not {}", "today")), "it panicked: not today"),
            (given(|| std::panic::panic_any(7)), "it panicked: "),
            (given(move || Ok(std::vec![place("b c")])), "\"b c:7\" is no name"),
            (given(move || Ok(std::vec![place("b"); 65])), "65 places, and 64 are most"),
            (given(|| Ok(Vec::new())), "knows no place"),
        ] {
            let error = error.unwrap_err();
            assert!(error.to_string().contains(says), "{error}: {says}");
            assert_eq!(error.may_come(), matches!(error, HostDirectoryError::NotGiven));
        }
        let error = given(|| Err("é".repeat(2000).into())).unwrap_err().to_string();
        assert!(error.len() < 1100, "{}", error.len());
    }

    // `getaddrinfo` takes no time limit: without a thread of its own this would wait for `goes_on`.
    #[test]
    fn a_system_that_says_nothing_of_a_host_is_waited_for_no_longer_than_the_time_limit() {
        static ASKED: Running = Running::new(2);
        let address = SocketAddr::from(([127, 0, 0, 1], 7));
        let answers = || of_system(&ASKED, u64::MAX, move || Ok(std::vec![address]));
        let (goes_on, hangs) = std::sync::mpsc::channel::<()>();
        let hangs = Arc::new(Mutex::new(hangs));
        let ask = || {
            let hangs = hangs.clone();
            of_system(&ASKED, monotonic_ns(), move || {
                let _ = hangs.lock().unwrap().recv();
                Ok(Vec::new())
            })
        };
        assert_eq!(ask().unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert_eq!(answers().unwrap(), [address], "one that hangs keeps another");
        assert_eq!(ask().unwrap_err().kind(), io::ErrorKind::TimedOut);
        let error = answers().unwrap_err();
        assert!(error.to_string().contains("too many"), "as many hang as may: {error}");
        drop(goes_on);
        while answers().is_err() {
            std::thread::yield_now();
        }
        // An address needs no query.
        let target = ServiceTarget::from(Place { host: "::1".into(), port: 7 });
        assert_eq!(target.addresses(0).unwrap(), ["[::1]:7".parse().unwrap()]);
    }

    #[test]
    fn a_directory_that_is_not_a_file_is_asked_less_and_less_often() {
        let (given, start) = (Given::default(), Duration::from_millis(50));
        let dns = ServiceDirectory::Dns { domain: "a".into(), server: None };
        let config = Config::default().directory(dns);
        let mut pause = start;
        for _ in 0..10 {
            pause = given.pause_after(&config, pause);
        }
        assert_eq!(pause, Duration::from_secs(1));
        let file = Config::default().directory(PathBuf::from("/a"));
        assert_eq!(given.pause_after(&file, start), start);
        assert!(format!("{given:?}").contains("false"));
    }
}
