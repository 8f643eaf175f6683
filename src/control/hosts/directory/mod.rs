//! Directories: where services are whose names do not say.
//!
//! ```text
//!   dial --service--> look_up --> Given: the application's own, if it has given one; else
//!     ^                           file: the file that `directory` names
//!     |                           resolver: SRV records; records: what is in an answer
//!     +--- Targets, by their order
//! ```
//! All of it runs on the thread that connects, when something is connected to: whoever changes a
//! directory restarts nothing.
//!
//! It is trusted as a name server is: it says where a service is looked for, and the keys say whether
//! what is there is a host to speak with. With certificates that is the host that the directory names.
//!
//! Never: a lock is held while a directory is asked; what another says makes this end keep or try more
//! than [`PLACES_MAX`] places, and in all 64 addresses of them.

mod file;
#[cfg(feature = "dns")]
pub mod records;
#[cfg_attr(not(feature = "dns"), path = "no_resolver.rs")]
mod resolver;

use super::super::lookups::Running;
use super::name::Place;
use crate::config::{Config, ServiceDirectory};
use crate::os::sys::monotonic_ns;
use crate::os::tcp;
use core::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};
use core::time::Duration;
use resolver::Resolver;
use std::boxed::Box;
use std::error::Error;
use std::io;
use std::net::ToSocketAddrs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::string::{String, ToString};
use std::sync::{Arc, Mutex, PoisonError};
use std::vec::Vec;

/// Most places of one service.
pub const PLACES_MAX: usize = 64;
/// Most addresses of one service, of all its places together.
pub(super) const ADDRESSES_MAX: usize = 64;
/// Longest text of a directory of the application's that is told, in bytes.
const TEXT_BYTES_MAX: usize = 1000;
/// Between two looks at a directory that is not a file, while a service is waited for, at most.
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// The longest that the system is waited for, where no other time is given.
const ASKED_WITHIN_MAX: Duration = Duration::from_secs(3600);
/// Stack of a thread that calls the application.
pub(super) const GIVEN_STACK_BYTES: usize = 8 << 20;

/// A directory of the application's own: where services of other hosts are whose names say no place,
/// `hamlyn://service`. It takes the place of the setting `directory`; see
/// [`Node::set_directory`](crate::Node::set_directory).
///
/// It is called on a thread that connects, several of them at a time, and may wait: whoever connects is
/// told when its time limit is over, however long the directory takes. A thread that is still in it then
/// counts as one of the 64 that may be connecting.
pub trait HostDirectory: Send + Sync {
    /// Where `service` is: the places are tried in their order. None: nobody has it yet; whoever waits
    /// for names asks again, at first after 50 ms, then less often, at least once a second.
    ///
    /// An error ends the attempt, and its text is part of what whoever connects is told. So does a
    /// panic. `timeout` is what is left to whoever connects (`None`: no limit); an answer that comes
    /// later is not used.
    fn look_up(
        &self,
        service: &str,
        timeout: Option<Duration>,
    ) -> Result<Vec<Place>, Box<dyn Error + Send + Sync>>;
}

/// A name without a place, which could not be found. Nothing was connected to.
#[derive(Debug, thiserror::Error)]
#[cfg_attr(not(feature = "unstable-internals"), non_exhaustive)]
pub enum HostDirectoryError {
    /// None is configured.
    #[error(
        "the name says no place (hamlyn://host:port/service), and there is no directory to look it up \
         in: set directory (HAMLYN_DIRECTORY) to a file with lines `service host:port`, or to \
         dns:DOMAIN"
    )]
    None,
    /// It is one of the DNS, for which this library was built without the feature `dns`.
    #[error("the directory {0} is in the DNS, and this was built without the feature dns")]
    NoDns(String),
    /// It cannot be read.
    #[error("the directory {}: {error}", .path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// It does not have the service.
    #[error("the directory {} has no line of it", .0.display())]
    NotListed(PathBuf),
    /// Its line of the service cannot be used.
    #[error("line {line} of the directory {}: {why}", .path.display())]
    Line {
        /// Which.
        path: PathBuf,
        /// From 1.
        line: usize,
        /// What is wrong with it.
        why: String,
    },
    /// No name of the DNS can be made of the service's.
    #[error(
        "the service \"{service}\" cannot be looked up in the DNS, at _{service}._tcp.{domain}: {why}"
    )]
    NoLabel {
        /// Which.
        service: String,
        /// Below which domain.
        domain: String,
        /// What is allowed.
        why: String,
    },
    /// The DNS has no such record.
    #[error("the DNS has no SRV record of {0}")]
    NoRecord(String),
    /// The DNS says that the service is not to be had in this domain (RFC 2782: the target `.`).
    #[error(
        "the DNS says that there is no such service: the target of the SRV record of {0} is `.`"
    )]
    NotAvailable(String),
    /// No name server has answered the question.
    #[error("no name server has answered what {name} is: {why}")]
    Unanswered {
        /// What was asked for.
        name: String,
        /// Of each that was asked, what became of it last.
        why: String,
    },
    /// An answer of the DNS cannot be used.
    #[error("what the DNS says of {name} cannot be used: {why}")]
    Answer {
        /// What was asked for.
        name: String,
        /// What is wrong with it.
        why: String,
    },
    /// The application's own directory has failed, panicked, or given what cannot be used.
    #[error("the program's own directory: {0}")]
    Given(String),
    /// The application's own directory has no place of it.
    #[error("the program's own directory knows no place of it")]
    NotGiven,
}

impl HostDirectoryError {
    /// Whether somebody may yet enter the service.
    pub(super) fn may_come(&self) -> bool {
        matches!(self, Self::NotListed(_) | Self::NoRecord(_) | Self::NotGiven)
    }
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
    /// What is looked into from now on; whoever is in another stays there.
    pub fn set(&self, directory: Option<Arc<dyn HostDirectory>>) {
        let mut now = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = core::mem::replace(&mut *now, directory);
        // What it drops is the application's.
        drop(now);
        drop(before);
    }

    pub(super) fn get(&self) -> Option<Arc<dyn HostDirectory>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn is_there(&self) -> bool {
        self.get().is_some()
    }

    /// How long to wait before the next look, by how long it was before the last.
    pub(super) fn pause_after(&self, config: &Config, pause: Duration) -> Duration {
        match &config.directory {
            Some(ServiceDirectory::File(_)) if !self.is_there() => pause,
            _ => (pause * 2).min(PAUSE_MAX),
        }
    }
}

/// Where a service may be.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub place: Place,
    /// Of several the lowest first (RFC 2782).
    priority: u16,
    /// Among those of one priority: how often it is the first, by comparison.
    weight: u16,
    /// Who knows its addresses; `None`: the system.
    resolver: Option<Arc<Resolver>>,
}

impl From<Place> for Target {
    fn from(place: Place) -> Self {
        Self { place, priority: 0, weight: 0, resolver: None }
    }
}

impl Target {
    /// Its addresses, in the order in which they are to be tried.
    pub fn addresses(&self, until_ns: u64) -> io::Result<Vec<SocketAddr>> {
        let Place { host, port } = &self.place;
        match &self.resolver {
            Some(resolver) => resolver.addresses(host, *port, until_ns),
            None => {
                static ASKED: Running = Running::new(ASKED_MAX);
                // Which asks nobody.
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
    }
}

/// Questions to the system for a host's addresses that may run at a time.
const ASKED_MAX: usize = 256;

/// What the system says of a host, if it says it by then, and if no more than so many are asked for. The
/// system's own look-up (`getaddrinfo`) takes no time limit, and may be with a name server that does not
/// answer, or a file system that hangs: it runs on a thread of its own, which goes on, for nobody, when
/// the time is over.
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

/// Where a service is; at least one. They stand in an order that does not change between two looks:
/// [`in_turn`] is the one in which they are to be tried.
pub(super) fn look_up(
    given: Option<Arc<dyn HostDirectory>>,
    config: &Config,
    service: &str,
    until_ns: u64,
) -> Result<Vec<Target>, HostDirectoryError> {
    if let Some(given) = given {
        return ask(&*given, service, until_ns);
    }
    match &config.directory {
        None => Err(HostDirectoryError::None),
        Some(ServiceDirectory::File(path)) => {
            let places = file::look_up(path, service)?;
            Ok(places.into_iter().map(Target::from).collect())
        }
        Some(ServiceDirectory::Dns { domain, server }) => {
            resolver::look_up(domain, *server, service, until_ns)
        }
    }
}

fn ask(
    given: &dyn HostDirectory,
    service: &str,
    until_ns: u64,
) -> Result<Vec<Target>, HostDirectoryError> {
    let wrong = |text: &str| {
        let mut end = text.len().min(TEXT_BYTES_MAX);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        HostDirectoryError::Given(text[..end].into())
    };
    let left = until_ns.saturating_sub(monotonic_ns());
    let left = (until_ns != u64::MAX).then(|| Duration::from_nanos(left));
    // What it leaves half done is its own; nothing of the library's is in it.
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
    // A place can be made by hand.
    for place in &places {
        place.to_string().parse::<Place>().map_err(|error| wrong(&error.to_string()))?;
    }
    if places.is_empty() {
        return Err(HostDirectoryError::NotGiven);
    }
    Ok(places.into_iter().map(Target::from).collect())
}

/// The order in which targets are to be tried (RFC 2782): the lowest priority first; of one priority
/// each in proportion to its weight, and those without any last. `random` gives a number below its
/// argument. Those whose order is given keep it.
pub(super) fn in_turn(mut targets: Vec<Target>, mut random: impl FnMut(u64) -> u64) -> Vec<Target> {
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

/// Of a place's addresses those that are tried, where so many others were found before, and so many places
/// are behind it: the first, and one at least is left for each of those.
pub(super) fn within_bounds(
    mut addresses: Vec<SocketAddr>,
    before: usize,
    behind: usize,
) -> Vec<SocketAddr> {
    addresses.truncate(ADDRESSES_MAX.saturating_sub(before + behind));
    addresses
}

/// A number below `end`, which is not 0, by the system's random numbers; 0 where there are none, which
/// is one of the orders that there can be.
pub(super) fn random_below(end: u64) -> u64 {
    let mut bytes = [0; 8];
    match getrandom::fill(&mut bytes) {
        // Sums of 64 weights of 16 bits: what is uneven of 2^64 does not matter.
        Ok(()) => u64::from_ne_bytes(bytes) % end,
        Err(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;
    use std::format;

    fn target(host: &str, priority: u16, weight: u16) -> Target {
        let place = Place { host: host.into(), port: 1 };
        Target { priority, weight, ..Target::from(place) }
    }

    fn hosts(targets: &[Target]) -> String {
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
        // The lower priority first, whatever the weights; no weight, the last of its priority.
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
        // An address is not asked for.
        let target = Target::from(Place { host: "::1".into(), port: 7 });
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
