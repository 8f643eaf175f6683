//! Connecting to another host: looking up its address and opening the connection, on a thread that
//! nothing waits for.

use super::channel::Channel;
use super::directory::{self, HostDirectoryError, Target};
use super::meeting::{Meeting, MeetingError, Own};
use super::near::Near;
use super::rails::RailDial;
use super::rails::said::Said;
use super::{ASKED_REFUSED, HostName, HostNameError, HostsError, Row, Shared, State};
use crate::config::{self, Config};
use crate::control::shell::ConnectError;
use crate::control::{Reason, Wait};
use crate::os::sys::monotonic_ns;
use crate::os::{tcp, thread};
use core::time::Duration;
use rustls::pki_types::ServerName;
use std::boxed::Box;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::string::{String, ToString};
use std::sync::{Arc, Weak};
use std::vec::Vec;

/// Threads that connect at a time. More wait for one of them, as many as there may be links.
const DIALS_MAX: usize = 64;
/// Bytes that the system takes of a connection before they leave: a part of what a long message may keep
/// in front of a short one.
const UNSENT_BYTES: u32 = 128 << 10;
/// Of the time that is left, what an address gets behind which there are others: at least, and at most.
const SHARE_MIN: Duration = Duration::from_millis(250);
const SHARE_MAX: Duration = Duration::from_secs(10);
/// Between two attempts at a server that is not there yet.
const PAUSE: Duration = Duration::from_millis(50);
/// The same where too many ask at once, at first and at most.
const CROWDED_PAUSE: Duration = Duration::from_millis(5);
const CROWDED_PAUSE_MAX: Duration = Duration::from_millis(200);
/// The longest where nobody serves the name there yet: each attempt costs both ends a handshake.
const ABSENT_PAUSE_MAX: Duration = Duration::from_secs(1);
/// For how long a host is asked again that ends connections without a word, as it does those that are too
/// many at once; or nothing of ours may be there.
const GONE_NS: u64 = 5_000_000_000;

/// A connection that this process makes.
#[derive(Clone, Debug)]
pub(super) struct Dial {
    pub name: HostName,
    pub greeting: Vec<u8>,
    pub until_ns: u64,
    pub wait: Wait,
    /// It is to be a rail of a link that there is.
    pub rail: Option<RailDial>,
    /// Whether it is on this host, as far as that is known; and where that was asked.
    pub near: Near,
    pub at: Option<Box<(SocketAddr, String)>>,
    /// Before the next attempt, where too many ask at once.
    pub pause: Duration,
    /// The same where nobody serves the name yet.
    pub absent_pause: Duration,
    /// When the other end is not asked again if it ends the connection without a word, once it has.
    pub gone_ns: Option<u64>,
    /// What the attempt before this one came to at the other host, and when.
    pub before: Option<Box<(u64, MeetingError)>>,
}

impl Dial {
    /// The first attempt.
    pub fn new(name: HostName, greeting: Vec<u8>, until_ns: u64, wait: Wait) -> Self {
        Self {
            name,
            greeting,
            until_ns,
            wait,
            rail: None,
            near: Near::Unasked,
            at: None,
            pause: CROWDED_PAUSE,
            absent_pause: PAUSE,
            gone_ns: None,
            before: None,
        }
    }

    /// Whether a server that is not there yet is waited for, and there is time for it.
    pub fn may_try_again(&self) -> bool {
        let pause = PAUSE.as_nanos() as u64;
        self.wait == Wait::ForName && monotonic_ns().saturating_add(pause) < self.until_ns
    }

    /// How long to wait before it is tried again, where what kept it from being a link passes: nobody
    /// serves the name yet; as many of this end's identity wait for an answer as may; or so many of this
    /// end's address meet it that it has let the oldest go. Each attempt costs both ends a handshake, so the
    /// pauses grow. It is tried once more before the time is up.
    pub fn again_after(&mut self, error: &MeetingError) -> Option<Duration> {
        let pause = match error {
            // Whoever was there is ending: the name is as one that nobody serves.
            MeetingError::NoService | MeetingError::Refused(Reason::Ending, _) => {
                let next = (self.absent_pause * 2).min(ABSENT_PAUSE_MAX);
                core::mem::replace(&mut self.absent_pause, next)
            }
            MeetingError::Refused(Reason::Connections, why) if why == ASKED_REFUSED => {
                self.next_pause()
            }
            MeetingError::Gone(_) => {
                let now_ns = monotonic_ns();
                let until_ns = *self.gone_ns.get_or_insert(now_ns.saturating_add(GONE_NS));
                (now_ns < until_ns).then(|| self.next_pause())?
            }
            _ => return None,
        };
        let left = Duration::from_nanos(self.left_ns()).saturating_sub(PAUSE);
        self.before = Some(Box::new((monotonic_ns(), error.clone())));
        self.forget_near();
        self.may_try_again().then_some(pause.min(left))
    }

    /// Whoever is there next may be on this host, or not.
    fn forget_near(&mut self) {
        (self.near, self.at) = (Near::Unasked, None);
    }

    fn next_pause(&mut self) -> Duration {
        let next = (self.pause * 2).min(CROWDED_PAUSE_MAX);
        core::mem::replace(&mut self.pause, next)
    }

    /// Nanoseconds that are left to whoever connects.
    pub fn left_ns(&self) -> u64 {
        self.until_ns.saturating_sub(monotonic_ns())
    }

    pub fn error(&self, error: HostError) -> ConnectError {
        ConnectError::Host { name: self.name.to_string(), error }
    }

    /// The time is up in this attempt: what the one before came to says more.
    pub fn too_late(&self, doing: &'static str) -> ConnectError {
        match self.before() {
            Some(before) => self.error(before.clone().into()),
            None => ConnectError::TimedOut(doing),
        }
    }

    /// What the attempt before this one came to, if that was just now.
    fn before(&self) -> Option<&MeetingError> {
        let (came_ns, error) = self.before.as_deref()?;
        let most_ns = 2 * ABSENT_PAUSE_MAX.as_nanos() as u64;
        (monotonic_ns().saturating_sub(*came_ns) < most_ns).then_some(error)
    }
}

/// Why there is no link to a service of another host.
#[derive(Debug, thiserror::Error)]
#[cfg_attr(not(feature = "unstable-internals"), non_exhaustive)]
pub enum HostError {
    /// The name is none.
    #[error(transparent)]
    Name(#[from] HostNameError),
    /// This process has no keys for it, or cannot speak with other hosts.
    #[error(transparent)]
    Hosts(#[from] HostsError),
    /// The name says no place, and none was found.
    #[error(transparent)]
    Directory(#[from] HostDirectoryError),
    /// The name of the host leads nowhere.
    #[error("the name of the host has no address: {0}")]
    Unknown(String),
    /// Its address cannot be reached, or nothing listens there.
    #[error("{address}: {error}{}", advice(.error))]
    Unreachable {
        /// The last address that was tried.
        address: SocketAddr,
        /// What the system said.
        error: io::Error,
    },
    /// It was reached, and did not become a link.
    #[error(transparent)]
    Meeting(#[from] MeetingError),
    /// Too many are being connected.
    #[error(
        "{DIALS_MAX} connections to other hosts are being made, and as many wait for that as there may be \
         links (links_max)"
    )]
    TooMany,
}

/// What to look at, of what the system says.
fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => {
            "; nothing listens at that port: the server's HAMLYN_LISTEN says where it does"
        }
        _ => "",
    }
}

/// Connects after a pause: when there is a thread for it, in the order in which it is asked for, and within
/// the time that there is.
pub(super) fn start(
    shared: &Arc<Shared>,
    state: &mut State,
    id: u64,
    dial: Dial,
    pause: Duration,
) -> Result<(), ConnectError> {
    let State { rows, dials_wait, .. } = state;
    if state.dials < DIALS_MAX && dials_wait.is_empty() {
        return spawn(shared, state, id, dial, pause);
    }
    let most = shared.config.links_max as usize;
    if dials_wait.len() >= most {
        // Of those some may have been given up.
        dials_wait.retain(|(id, _)| matches!(rows.get(id), Some(Row::Dialing(_))));
    }
    if dials_wait.len() >= most {
        return Err(dial.error(HostError::TooMany));
    }
    dials_wait.push_back((id, pause));
    rows.insert(id, Row::Dialing(dial));
    Ok(())
}

/// A thread is free: for those that wait.
fn start_waiting(shared: &Arc<Shared>, state: &mut State) {
    while state.dials < DIALS_MAX
        && let Some((id, pause)) = state.dials_wait.pop_front()
    {
        let Some(Row::Dialing(dial)) = state.rows.get(&id) else { continue };
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
    shared: &Arc<Shared>,
    state: &mut State,
    id: u64,
    dial: Dial,
    pause: Duration,
) -> Result<(), ConnectError> {
    let weak = Arc::downgrade(shared);
    let mut own = dial.clone();
    // One that is given later is asked by another thread, which has the stack for it.
    let may_ask = shared.given.is_there();
    // The first asks libfabric, too, and its providers' libraries.
    let is_of_others = may_ask || shared.config.fabric != config::Fabric::Off;
    let stack_bytes = if is_of_others { directory::GIVEN_STACK_BYTES } else { 256 << 10 };
    let run = move || {
        thread::sleep(pause);
        // What is the application's may panic, its errors' texts and destructors, too; that it was
        // here is to be counted all the same.
        let connected = catch_unwind(AssertUnwindSafe(|| connect(&weak, id, &own, may_ask)));
        let connected = connected.unwrap_or_else(|payload| {
            core::mem::forget(payload);
            Err(HostDirectoryError::Given("it panicked".into()).into())
        });
        let Some(shared) = weak.upgrade() else { return };
        let meeting = connected.and_then(|reached| {
            let Reached { tcp, address, host } = reached;
            own.near = shared.near(&own, address);
            let meeting = meeting(&shared, tcp, &host, &own)?;
            own.at = matches!(own.near, Near::Asks).then(|| Box::new((address, host)));
            Ok((meeting, address))
        });
        let mut state = shared.lock();
        state.dials -= 1;
        // Given up, or too late: nobody wants it.
        if matches!(state.rows.get(&id), Some(Row::Dialing(_))) {
            state.rows.remove(&id);
            match meeting {
                Ok((meeting, address)) => shared.meet(&mut state, id, meeting, address, own),
                // Behind those that wait.
                Err(error) if may_come(&error) && own.may_try_again() => {
                    own.forget_near();
                    let pause = match own.name.place() {
                        Some(_) => PAUSE,
                        None => shared.given.pause_after(&shared.config, PAUSE),
                    };
                    if let Err(error) = start(&shared, &mut state, id, own.clone(), pause) {
                        shared.dial_failed(&mut state, id, &own, error);
                    }
                }
                Err(error) => shared.dial_failed(&mut state, id, &own, own.error(error)),
            }
        }
        start_waiting(&shared, &mut state);
        drop(state);
        shared.late.bell.ring();
    };
    thread::spawn("hamlyn-dial", stack_bytes, run)
        .map_err(|error| ConnectError::Os { doing: "starting a thread that connects", error })?;
    state.dials += 1;
    state.rows.insert(id, Row::Dialing(dial));
    Ok(())
}

/// A connection that is open.
struct Reached {
    tcp: TcpStream,
    address: SocketAddr,
    /// Whom it is meant to lead to.
    host: String,
}

/// TLS with a host that is meant to be called so.
pub(super) fn channel(own: &Own, tcp: TcpStream, host: &str) -> Result<Channel, MeetingError> {
    let tls = |e: String| MeetingError::Tls(e);
    let name = ServerName::try_from(host.to_string()).map_err(|e| tls(e.to_string()))?;
    let client = rustls::ClientConnection::new(own.keys.client.clone(), name);
    let client = client.map_err(|e| tls(e.to_string()))?;
    Ok(Channel::new(tcp, client.into()))
}

fn meeting(shared: &Shared, tcp: TcpStream, host: &str, dial: &Dial) -> Result<Meeting, HostError> {
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

/// Tries each place and address, and again until the time is up where a server is waited for and nobody
/// waits for the thread.
fn connect(
    shared: &Weak<Shared>,
    id: u64,
    dial: &Dial,
    may_ask: bool,
) -> Result<Reached, HostError> {
    let mut pause = PAUSE;
    loop {
        let error = match connect_once(shared, id, dial, may_ask) {
            Ok(reached) => return Ok(reached),
            Err(error) => error,
        };
        let goes_on_here = || {
            shared.upgrade().is_some_and(|shared| {
                shared.lock().dials_wait.is_empty() && shared.given.is_there() == may_ask
            })
        };
        if !may_come(&error) || !dial.may_try_again() || !is_wanted(shared, id) || !goes_on_here() {
            return Err(error);
        }
        // It is looked at once more before the time is up.
        let left =
            dial.until_ns.saturating_sub(monotonic_ns()).saturating_sub(PAUSE.as_nanos() as u64);
        thread::sleep(pause.min(Duration::from_nanos(left)));
        if let (None, Some(shared)) = (dial.name.place(), shared.upgrade()) {
            pause = shared.given.pause_after(&shared.config, pause);
        }
    }
}

/// Whether nobody is there yet.
fn may_come(error: &HostError) -> bool {
    match error {
        HostError::Unreachable { error, .. } => error.kind() == io::ErrorKind::ConnectionRefused,
        HostError::Directory(error) => error.may_come(),
        _ => false,
    }
}

fn is_wanted(shared: &Weak<Shared>, id: u64) -> bool {
    shared.upgrade().is_some_and(|shared| shared.lock().rows.contains_key(&id))
}

fn connect_once(
    shared: &Weak<Shared>,
    id: u64,
    dial: &Dial,
    may_ask: bool,
) -> Result<Reached, HostError> {
    let none = || match dial.before() {
        Some(before) => before.clone().into(),
        None => HostError::Unknown("there was no time to look for it".into()),
    };
    let own = shared.upgrade().map(|shared| (shared.config.clone(), shared.given.clone()));
    let Some((config, given)) = own else { return Err(none()) };
    let given = if may_ask { given.get() } else { None };
    // Where it was asked whether it is on this host.
    if let Some((address, host)) = dial.at.as_deref()
        && let Ok(tcp) = tcp::connect(address, share_of(dial.left_ns(), 1))
        && prepare(&tcp, &config).is_ok()
    {
        return Ok(Reached { tcp, address: *address, host: host.clone() });
    }
    let targets = match dial.name.place() {
        Some(place) => std::vec![place.clone().into()],
        None => directory::look_up(given, &config, dial.name.service(), dial.until_ns)?,
    };
    if let Some(rail) = &dial.rail {
        return connect_rail(&config, dial, rail, targets);
    }
    let mut error = Failures { last: none(), refused: None };
    let mut targets_left = targets.len();
    for target in directory::in_turn(targets, directory::random_below) {
        targets_left -= 1;
        // Each look takes its time.
        if dial.left_ns() == 0 || !is_wanted(shared, id) {
            return Err(error.last);
        }
        let found = target.addresses(dial.until_ns);
        let place = target.place;
        if let Err(e) = &found {
            error.then(HostError::Unknown(std::format!("{}: {e}", place.host)));
        }
        let is_known = found.is_ok();
        let found = found.unwrap_or_default();
        let addresses = found.len();
        if is_known && addresses == 0 {
            error.then(HostError::Unknown(std::format!("{}: it has none", place.host)));
        }
        for (tried, address) in found.into_iter().enumerate() {
            let left_ns = dial.left_ns();
            if left_ns == 0 || !is_wanted(shared, id) {
                return Err(error.last);
            }
            let again = usize::from(error.has_refused() && dial.wait == Wait::ForName);
            let share = share_of(left_ns, addresses - tried - 1 + targets_left + again);
            let opened = tcp::connect(&address, share);
            match opened.and_then(|tcp| prepare(&tcp, &config).map(|()| tcp)) {
                Ok(tcp) => return Ok(Reached { tcp, address, host: place.host }),
                Err(e) => error.then(HostError::Unreachable { address, error: e }),
            }
        }
    }
    // Whoever refused may have begun to listen: it is tried again.
    Err(if dial.may_try_again() { error.refused_or_last() } else { error.last })
}

/// What came of the addresses of one attempt.
struct Failures {
    last: HostError,
    /// One that refused, where another failed in another way behind it.
    refused: Option<HostError>,
}

impl Failures {
    fn then(&mut self, error: HostError) {
        let before = core::mem::replace(&mut self.last, error);
        if may_come(&before) {
            self.refused = Some(before);
        }
    }

    fn has_refused(&self) -> bool {
        self.refused.is_some() || may_come(&self.last)
    }

    fn refused_or_last(self) -> HostError {
        let Self { last, refused } = self;
        if may_come(&last) { last } else { refused.unwrap_or(last) }
    }
}

/// How long one address is tried, of the time that is left, where so many are behind it: one that says
/// nothing does not take what the others need.
pub(super) fn share_of(left_ns: u64, behind: usize) -> Duration {
    let left = Duration::from_nanos(left_ns);
    match behind {
        0 => left,
        behind => (left / (behind as u32 + 1)).clamp(SHARE_MIN, SHARE_MAX).min(left),
    }
}

/// A rail goes to the address behind the one that the rail before it goes to, in the order of places and
/// their addresses; around, where there are fewer than rails.
fn connect_rail(
    config: &Config,
    dial: &Dial,
    rail: &RailDial,
    targets: Vec<Target>,
) -> Result<Reached, HostError> {
    let mut all: Vec<(SocketAddr, String)> = Vec::new();
    for target in targets {
        if dial.left_ns() == 0 {
            break;
        }
        let found = target.addresses(dial.until_ns);
        for address in found.into_iter().flatten() {
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
        Ok(tcp) => Ok(Reached { tcp, address, host }),
        Err(error) => Err(HostError::Unreachable { address, error }),
    }
}

/// A socket that never waits, sends at once, and asks a host that says nothing often enough for
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
        // Many of them: what is of use to the first, and never more than there is.
        assert_eq!(share_of(seconds(5), 63), SHARE_MIN);
        assert_eq!(share_of(1000, 63), Duration::from_nanos(1000));
    }
}
