//! Connects to another host: looks up its address and opens the connection, on a thread of its own.

use super::course::{Course, NextTry};
use super::directory::{self, HostDirectoryError, ServiceTarget};
use super::meeting::{Meeting, MeetingError, OwnData};
use super::near::Near;
use super::rail_links::RailDial;
use super::said::Said;
use super::{BuildError, HostName, HostRow, HostsShared, HostsState, Met};
use crate::config::{self, Config};
use crate::control::shell::ConnectError;
use crate::control::{NameError, Wait};
use crate::os::sys::monotonic_ns;
use crate::os::{tcp, thread};
use crate::transport::channel::Channel;
use core::time::Duration;
use rustls::pki_types::ServerName;
use std::boxed::Box;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::string::{String, ToString};
use std::sync::{Arc, Weak};
use std::vec::Vec;

/// Threads that connect at the same time. Further dials wait for one of them, up to the limit on
/// links.
const DIALS_MAX: usize = 64;
/// Bytes that the system accepts of a connection before they leave: they limit how much of a long
/// message can delay a short one.
const UNSENT_BYTES: u32 = 128 << 10;
/// The share of the remaining time for an address with others behind it: at least, and at most.
const SHARE_MIN: Duration = Duration::from_millis(250);
const SHARE_MAX: Duration = Duration::from_secs(10);
/// A connection that this process makes.
#[derive(Clone, Debug)]
pub(super) struct HostDial {
    pub name: HostName,
    pub greeting: Vec<u8>,
    pub until_ns: u64,
    pub wait: Wait,
    /// Set if the connection is to be a rail of an existing link.
    pub rail: Option<RailDial>,
    /// Whether the server is on this host, as far as that is known.
    pub near: Near,
    /// The places of the name that are left.
    pub course: Course,
}

impl HostDial {
    /// For the first attempt.
    pub fn new(name: HostName, greeting: Vec<u8>, until_ns: u64, wait: Wait) -> Self {
        let course = Course::default();
        Self { name, greeting, until_ns, wait, rail: None, near: Near::Unasked, course }
    }

    /// Nanoseconds until the time limit.
    pub fn left_ns(&self) -> u64 {
        self.until_ns.saturating_sub(monotonic_ns())
    }

    pub fn error(&self, error: HostError) -> ConnectError {
        ConnectError::Host { name: self.name.to_string(), error }
    }
}

/// The reason why there is no link to a service of another host.
#[derive(Debug, thiserror::Error)]
#[cfg_attr(not(feature = "unstable-internals"), non_exhaustive)]
pub enum HostError {
    /// The name is not valid.
    #[error(transparent)]
    Name(#[from] NameError),
    /// This process has no keys for it, or cannot make links to other hosts.
    #[error(transparent)]
    Hosts(#[from] BuildError),
    /// The thread for other hosts could not go on. All links to other hosts have ended; those
    /// within this host have not.
    #[error("the system refuses the thread for other hosts what it needs: {0}")]
    Ended(String),
    /// The name contains no address, and the directory found none.
    #[error(transparent)]
    Directory(#[from] HostDirectoryError),
    /// The name of the host has no address.
    #[error("the name of the host has no address: {0}")]
    Unknown(String),
    /// Its address cannot be reached, or no process listens there.
    #[error("{address}: {error}{}", advice(.error))]
    Unreachable {
        /// The last address that was tried.
        address: SocketAddr,
        /// The system's error.
        error: io::Error,
    },
    /// It was reached, but no link was made.
    #[error(transparent)]
    Meeting(#[from] MeetingError),
    /// It has several places, and each of them failed.
    #[error("none of its places: {said}")]
    Places {
        /// The most informative of their errors.
        telling: Box<HostError>,
        /// The error of each place, in words.
        said: String,
    },
    /// Too many connections are being made.
    #[error(
        "{DIALS_MAX} connections to other hosts are being made, and as many wait for that as there may be \
         links (links_max)"
    )]
    TooMany,
}

impl HostError {
    /// Of several places the most informative error; else this error itself.
    ///
    /// ```
    /// use hamlyn::node::{ConnectError, HostError, MeetingError};
    ///
    /// fn has_other_keys(error: &ConnectError) -> bool {
    ///     let ConnectError::Host { error, .. } = error else { return false };
    ///     matches!(error.telling(), HostError::Meeting(MeetingError::Secret | MeetingError::Tls(_)))
    /// }
    /// # let error = HostError::Meeting(MeetingError::Secret);
    /// # assert!(has_other_keys(&ConnectError::Host { name: "hamlyn://quotes".into(), error }));
    /// ```
    pub fn telling(&self) -> &Self {
        match self {
            Self::Places { telling, .. } => telling.telling(),
            error => error,
        }
    }
}

/// A hint for the user about an error of the system.
fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => {
            "; nothing listens at that port: the server's HAMLYN_LISTEN says where it does"
        }
        _ => "",
    }
}

/// Connects after a pause, once a thread is free, in the order of the calls, and within the dial's
/// time limit.
pub(super) fn start(
    shared: &Arc<HostsShared>,
    state: &mut HostsState,
    id: u64,
    dial: HostDial,
    pause: Duration,
) -> Result<(), ConnectError> {
    let HostsState { rows, dials_wait, .. } = state;
    if state.dials < DIALS_MAX && dials_wait.is_empty() {
        return spawn(shared, state, id, dial, pause);
    }
    let most = shared.config.links_max as usize;
    if dials_wait.len() >= most {
        // Some of them may have been given up.
        dials_wait.retain(|(id, _)| matches!(rows.get(id), Some(HostRow::Dialing(_))));
    }
    if dials_wait.len() >= most {
        return Err(dial.error(HostError::TooMany));
    }
    dials_wait.push_back((id, pause));
    rows.insert(id, HostRow::Dialing(dial));
    Ok(())
}

/// A thread is free: starts the dials that wait.
fn start_waiting(shared: &Arc<HostsShared>, state: &mut HostsState) {
    while state.dials < DIALS_MAX
        && let Some((id, pause)) = state.dials_wait.pop_front()
    {
        let Some(HostRow::Dialing(dial)) = state.rows.get(&id) else { continue };
        let dial = dial.clone();
        if let Err(error) = spawn(shared, state, id, dial.clone(), pause) {
            state.rows.remove(&id);
            shared.dial_failed(state, id, &dial, error);
        }
    }
    if state.rails_wait {
        shared.connect_rails(state);
    }
}

fn spawn(
    shared: &Arc<HostsShared>,
    state: &mut HostsState,
    id: u64,
    dial: HostDial,
    pause: Duration,
) -> Result<(), ConnectError> {
    let weak = Arc::downgrade(shared);
    let mut own = dial.clone();
    // Another thread, with the stack for it, asks a directory that is set later.
    let may_ask = shared.given.is_there();
    // The first thread asks libfabric, too, and its providers' libraries.
    let is_of_others = may_ask || shared.config.fabric != config::Fabric::Off;
    let stack_bytes = if is_of_others { directory::GIVEN_STACK_BYTES } else { 256 << 10 };
    let run = move || {
        thread::sleep(pause);
        // The application's code may panic, including its errors' texts and destructors; this
        // thread must be counted as finished all the same.
        let connected = catch_unwind(AssertUnwindSafe(|| connect(&weak, id, &mut own, may_ask)));
        let connected = connected.unwrap_or_else(|payload| {
            core::mem::forget(payload);
            Err(NoConnection::Ended(HostDirectoryError::Given("it panicked".into()).into()))
        });
        let Some(shared) = weak.upgrade() else { return };
        let meeting = connected.and_then(|reached| {
            let OpenConnection { tcp, address, host } = reached;
            own.near = shared.near(&own, address);
            let meeting = meeting(&shared, tcp, &host, &own).map_err(NoConnection::Here)?;
            Ok((meeting, address))
        });
        let mut state = shared.lock();
        state.dials -= 1;
        // Otherwise it was given up, or came too late.
        if matches!(state.rows.get(&id), Some(HostRow::Dialing(_))) {
            state.rows.remove(&id);
            match meeting {
                Ok((meeting, address)) => shared.meet(&mut state, id, meeting, address, own),
                // Queues behind the waiting dials.
                Err(NoConnection::Again(pause)) => shared.again(&mut state, id, own, Ok(pause)),
                Err(NoConnection::Here(error)) => {
                    let next = own.missed(error, false, (&shared.given, &shared.config));
                    shared.again(&mut state, id, own, next);
                }
                Err(NoConnection::Ended(error)) => {
                    shared.dial_failed(&mut state, id, &own, own.error(error));
                }
            }
        }
        start_waiting(&shared, &mut state);
        drop(state);
        shared.late.bell.ring();
    };
    thread::spawn("hamlyn-dial", stack_bytes, run)
        .map_err(|error| ConnectError::Os { doing: "starting a thread that connects", error })?;
    state.dials += 1;
    state.rows.insert(id, HostRow::Dialing(dial));
    Ok(())
}

impl HostsShared {
    /// Continues connecting after a pause, or reports the error to the caller.
    fn again(
        self: &Arc<Self>,
        state: &mut HostsState,
        id: u64,
        dial: HostDial,
        next: Result<Duration, ConnectError>,
    ) {
        let started = next.and_then(|pause| start(self, state, id, dial.clone(), pause));
        if let Err(error) = started {
            self.dial_failed(state, id, &dial, error);
        }
    }

    /// The meeting with the current address has failed.
    pub(super) fn missed(
        self: &Arc<Self>,
        state: &mut HostsState,
        id: u64,
        mut dial: HostDial,
        error: HostError,
    ) {
        let next = dial.missed(error, false, (&self.given, &self.config));
        self.again(state, id, dial, next);
    }

    /// The current address has used its share of the time, and its connection is gone.
    pub(super) fn too_slow(
        self: &Arc<Self>,
        state: &mut HostsState,
        id: u64,
        mut dial: HostDial,
        doing: &'static str,
    ) {
        let next = dial.late(doing, (&self.given, &self.config));
        self.again(state, id, dial, next);
    }

    /// At an address's time limit, while the dial has time left: tries the next one, or gives this
    /// one the rest if it has proved itself. Returns whether it did either.
    pub(super) fn goes_on(self: &Arc<Self>, state: &mut HostsState, id: u64) -> bool {
        let Some(HostRow::Meeting(met)) = state.rows.get_mut(&id) else { return false };
        let (doing, is_told) = (met.meeting.doing(), met.meeting.is_told());
        match &met.dial {
            Some(dial) if dial.rail.is_none() && dial.left_ns() > 0 => {
                if is_told && dial.answer_until_ns() > monotonic_ns() {
                    met.deadline_ns = dial.answer_until_ns();
                    return true;
                }
            }
            _ => return false,
        }
        let Some(HostRow::Meeting(met)) = state.rows.remove(&id) else { return false };
        self.poller.remove(&met.meeting.channel);
        let Met { meeting, dial: Some(dial), .. } = *met else { return false };
        // Closes this connection before the next is opened.
        drop(meeting);
        self.too_slow(state, id, dial, doing);
        true
    }
}

/// The reason why no connection is open.
enum NoConnection {
    /// Try again after this pause.
    Again(Duration),
    /// The place was reached, and failed.
    Here(HostError),
    /// Do not try again.
    Ended(HostError),
}

/// An open connection.
struct OpenConnection {
    tcp: TcpStream,
    address: SocketAddr,
    /// The name of the intended host.
    host: String,
}

/// TLS with a host whose certificate must have this name.
pub(super) fn channel(own: &OwnData, tcp: TcpStream, host: &str) -> Result<Channel, MeetingError> {
    let tls = |e: String| MeetingError::Tls(e);
    own.keys.check_client().map_err(tls)?;
    // The number of the interface concerns this end only, and is in no certificate.
    let host = host.split_once('%').map_or(host, |(address, _)| address);
    let name = ServerName::try_from(host.to_string()).map_err(|e| tls(e.to_string()))?;
    let client = rustls::ClientConnection::new(own.keys.client.clone(), name);
    let client = client.map_err(|e| tls(e.to_string()))?;
    Ok(Channel::new(tcp, client.into()))
}

fn meeting(
    shared: &HostsShared,
    tcp: TcpStream,
    host: &str,
    dial: &HostDial,
) -> Result<Meeting, HostError> {
    let channel = channel(&shared.own, tcp, host)?;
    if let Some(rail) = &dial.rail {
        let offer = if rail.is_of_fabric { shared.fabric.offer(&channel, host) } else { None };
        let mut meeting = Meeting::of_client(channel, dial.name.service(), Vec::new());
        meeting.joins = Some((rail.place, rail.secret.clone()));
        meeting.offer(offer);
        return Ok(meeting);
    }
    if matches!(dial.near, Near::Asks) {
        let mut meeting = Meeting::of_client(channel, dial.name.service(), Vec::new());
        Said::Asks.put(&mut meeting.says);
        return Ok(meeting);
    }
    let offer = shared.fabric.offer(&channel, host);
    let mut meeting = Meeting::of_client(channel, dial.name.service(), dial.greeting.clone());
    meeting.offer(offer);
    shared.offer_rails(&mut meeting.says);
    Ok(meeting)
}

/// Tries each place and address. Tries again until the time limit, if the dial waits for a server
/// and no other dial waits for the thread.
fn connect(
    shared: &Weak<HostsShared>,
    id: u64,
    dial: &mut HostDial,
    may_ask: bool,
) -> Result<OpenConnection, NoConnection> {
    loop {
        let pause = match connect_once(shared, id, dial, may_ask) {
            Err(NoConnection::Again(pause)) => pause,
            other => return other,
        };
        let goes_on_here = || {
            shared.upgrade().is_some_and(|shared| {
                shared.lock().dials_wait.is_empty() && shared.given.is_there() == may_ask
            })
        };
        if !is_wanted(shared, id) || !goes_on_here() {
            return Err(NoConnection::Again(pause));
        }
        thread::sleep(pause);
    }
}

fn is_wanted(shared: &Weak<HostsShared>, id: u64) -> bool {
    shared.upgrade().is_some_and(|shared| shared.lock().rows.contains_key(&id))
}

/// Tries the places and addresses that are left.
fn connect_once(
    shared: &Weak<HostsShared>,
    id: u64,
    dial: &mut HostDial,
    may_ask: bool,
) -> Result<OpenConnection, NoConnection> {
    let own = shared.upgrade().map(|shared| (shared.config.clone(), shared.given.clone()));
    let Some((config, given)) = own else { return Err(NoConnection::Ended(dial.outcome())) };
    // Set after the question whether the server is on this host.
    if let Some(at) = dial.course.at.take()
        && let Some(reached) = open(&config, dial, *at)
    {
        return Ok(reached);
    }
    if !dial.course.has_begun() {
        let asked = if may_ask { given.get() } else { None };
        let targets = match dial.name.place() {
            Some(place) => Ok(std::vec![place.clone().into()]),
            None => directory::look_up(asked, &config, dial.name.service(), dial.until_ns),
        };
        let targets = match targets {
            Ok(targets) => targets,
            Err(error) if error.may_come() && dial.may_try_again() => {
                return Err(NoConnection::Again(dial.look_pause(&given, &config)));
            }
            Err(error) => return Err(NoConnection::Ended(error.into())),
        };
        if let Some(rail) = &dial.rail {
            return connect_rail(&config, dial, rail, targets).map_err(NoConnection::Ended);
        }
        dial.course.begin(directory::in_turn(targets, directory::random_below));
    }
    while let Some(stop) = dial.course.next() {
        // Each lookup takes time.
        if dial.left_ns() == 0 || !is_wanted(shared, id) {
            return Err(NoConnection::Ended(dial.outcome()));
        }
        let reached = match stop {
            NextTry::Place(target) => {
                find(dial, &target);
                None
            }
            NextTry::Address(address, host) => open(&config, dial, (address, host)),
        };
        if let Some(reached) = reached {
            return Ok(reached);
        }
    }
    match dial.round_is_over(&given, &config) {
        Some(pause) => Err(NoConnection::Again(pause)),
        None => Err(NoConnection::Ended(dial.outcome())),
    }
}

/// Finds the addresses of a place, to be tried next.
fn find(dial: &mut HostDial, target: &ServiceTarget) {
    let host = &target.place.host;
    let why = match target.addresses(dial.until_ns) {
        Ok(found) if !found.is_empty() => return dial.course.found(host, found),
        Ok(_) => "it has none".into(),
        Err(error) => error.to_string(),
    };
    let error = HostError::Unknown(std::format!("{host}: {why}"));
    dial.course.add(target.place.to_string(), error, false);
}

/// Connects to an address within its share of the time.
fn open(config: &Config, dial: &mut HostDial, at: (SocketAddr, String)) -> Option<OpenConnection> {
    let share = dial.turn_of(at.clone());
    let (address, host) = at;
    let opened = tcp::connect(&address, share);
    match opened.and_then(|tcp| prepare(&tcp, config).map(|()| tcp)) {
        Ok(tcp) => Some(OpenConnection { tcp, address, host }),
        Err(error) => {
            dial.course.at = None;
            let unreachable = HostError::Unreachable { address, error };
            dial.course.add(address.to_string(), unreachable, false);
            None
        }
    }
}

/// The share of the remaining time for one address with `behind` others after it: a silent address
/// leaves time for the others.
pub(super) fn share_of(left_ns: u64, behind: usize) -> Duration {
    let left = Duration::from_nanos(left_ns);
    match behind {
        0 => left,
        behind => (left / (behind as u32 + 1)).clamp(SHARE_MIN, SHARE_MAX).min(left),
    }
}

/// A rail goes to the address behind that of the rail before it, in the order of places and their
/// addresses, and around, if there are fewer addresses than rails.
fn connect_rail(
    config: &Config,
    dial: &HostDial,
    rail: &RailDial,
    targets: Vec<ServiceTarget>,
) -> Result<OpenConnection, HostError> {
    let mut all: Vec<(SocketAddr, String)> = Vec::new();
    let (mut before, mut behind) = (0, targets.len());
    for target in targets {
        if dial.left_ns() == 0 {
            break;
        }
        behind -= 1;
        let found = target.addresses(dial.until_ns).unwrap_or_default();
        let found = directory::within_bounds(found, before, behind);
        before += found.len();
        for address in found {
            if all.iter().all(|(known, _)| *known != address) {
                all.push((address, target.place.host.clone()));
            }
        }
    }
    if all.is_empty() {
        return Err(HostError::Unknown("none was found, or none in time".into()));
    }
    let first = all.iter().position(|(address, _)| *address == rail.first).unwrap_or(0);
    let at = (first + usize::from(rail.place) + rail.skip) % all.len();
    let (address, host) = all.swap_remove(at);
    let left = dial.left_ns().max(1);
    let opened = tcp::connect(&address, Duration::from_nanos(left));
    match opened.and_then(|tcp| prepare(&tcp, config).map(|()| tcp)) {
        Ok(tcp) => Ok(OpenConnection { tcp, address, host }),
        Err(error) => Err(HostError::Unreachable { address, error }),
    }
}

/// Prepares a socket that never waits, sends at once, and probes a silent host often enough for
/// `host_timeout_ms`.
pub(super) fn prepare(tcp: &TcpStream, config: &Config) -> io::Result<()> {
    let timeout = Duration::from_millis(u64::from(config.host_timeout_ms));
    tcp::prepare(tcp, UNSENT_BYTES, timeout)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_says_nothing_leaves_time_for_those_behind_it() {
        let seconds = |seconds: u64| seconds * 1_000_000_000;
        assert_eq!(share_of(seconds(5), 0), Duration::from_secs(5));
        assert_eq!(share_of(seconds(5), 1), Duration::from_millis(2500));
        // Without a limit, too.
        assert_eq!(share_of(u64::MAX, 1), SHARE_MAX);
        assert_eq!(share_of(u64::MAX, 0), Duration::from_nanos(u64::MAX));
        // With many behind it: a useful share, but never more than there is.
        assert_eq!(share_of(seconds(5), 63), SHARE_MIN);
        assert_eq!(share_of(1000, 63), Duration::from_nanos(1000));
    }
}
