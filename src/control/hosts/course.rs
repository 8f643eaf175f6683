//! The places of a name, tried one after the other: the ones left, and the failure of each.
//!
//! ```text
//!   directory --> Place, Place, ..    a place gives its addresses, which are tried first
//!                   |
//!                Address --connect, meet--> a link, or a refusal by the service: the end
//!                   |                       other failures are kept, and the next is tried
//!                 none is left: all of them again, after a pause, if the caller waits for the name
//! ```
//! An address with others behind it has a share of the remaining time, from the connection to the
//! server's answer. The last, once it has proved itself, has all of it.
//!
//! Never: the connection to one address is kept while the next is tried.

use super::dial::{HostDial, HostError, share_of};
use super::directory::{self, Given, ServiceTarget};
use super::meeting::MeetingError;
use super::near::Near;
use super::{ASKED_REFUSED, ConnectError};
use crate::config::Config;
use crate::control::{Reason, Wait};
use crate::os::sys::monotonic_ns;
use crate::os::thread;
use core::time::Duration;
use std::boxed::Box;
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::string::{String, ToString};
use std::sync::{Arc, Mutex};
use std::vec::Vec;

/// The pause between two attempts at a server that is not there yet.
pub(super) const PAUSE: Duration = Duration::from_millis(50);
/// The first pause while too many clients ask at once; the next constant is the longest.
const CROWDED_PAUSE: Duration = Duration::from_millis(5);
const CROWDED_PAUSE_MAX: Duration = Duration::from_millis(200);
/// The longest pause while the name is not served yet: each attempt costs both ends a handshake.
const ABSENT_PAUSE_MAX: Duration = Duration::from_secs(1);
/// For how long to retry a host that ends connections without a message. A host with too many
/// connections does so, but the port may also belong to another program.
const GONE_NS: u64 = 5_000_000_000;
/// For how long a failure of an earlier round is still reported.
const SAID_NS: u64 = 2 * ABSENT_PAUSE_MAX.as_nanos() as u64;
/// Most places whose failures are reported.
const TOLD_MAX: usize = 16;

/// The next thing to try.
#[derive(Clone, Debug)]
pub(super) enum NextTry {
    /// A place, whose addresses are to be looked up.
    Place(ServiceTarget),
    /// An address, and the name of its intended host.
    Address(SocketAddr, String),
}

/// A dial's position among the places of its name.
#[derive(Clone, Debug)]
pub(super) struct Course {
    /// `None`: they are not looked up yet.
    left: Option<VecDeque<NextTry>>,
    /// Addresses found in this round.
    found: usize,
    /// The address being connected to or met, and the name of its intended host.
    pub at: Option<Box<(SocketAddr, String)>>,
    /// The end of that address's share of the time.
    share_until_ns: u64,
    /// Shared by the threads and rows that have the dial.
    said: Arc<Mutex<Failures>>,
    /// The pause before the next round, if nothing was reached.
    look_pause: Duration,
    /// The same if too many clients ask at once.
    crowded_pause: Duration,
    /// The same if the name is not served yet.
    absent_pause: Duration,
    /// Set once the other end has ended a connection without a message: the time after which that
    /// is not retried.
    gone_ns: Option<u64>,
}

/// The failures of the places: the last of each address.
#[derive(Debug, Default)]
struct Failures {
    round: u64,
    /// The number of places.
    places: usize,
    all: Vec<PlaceFailure>,
}

#[derive(Debug)]
struct PlaceFailure {
    at: String,
    error: HostError,
    /// It was given up at the end of its share.
    is_late: bool,
    round: u64,
    came_ns: u64,
}

/// Whether a failure is temporary, and which kind it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Passes {
    /// Nothing listens there yet.
    Closed,
    /// The name is not served there yet.
    Absent,
    /// Too many clients ask at once.
    Crowded,
    /// The connection was ended without a message.
    Gone,
    /// It is permanent; `true`: it cost the other end a handshake.
    Never(bool),
}

impl Default for Course {
    fn default() -> Self {
        Self {
            left: None,
            found: 0,
            at: None,
            share_until_ns: 0,
            said: Arc::default(),
            look_pause: PAUSE,
            crowded_pause: CROWDED_PAUSE,
            absent_pause: PAUSE,
            gone_ns: None,
        }
    }
}

impl Course {
    /// Whether the places have been looked up.
    pub fn has_begun(&self) -> bool {
        self.left.is_some()
    }

    /// Begins a round with these places, in the order in which to try them.
    pub fn begin(&mut self, targets: Vec<ServiceTarget>) {
        let mut said = thread::lock(&self.said);
        said.round += 1;
        said.places = targets.len();
        drop(said);
        self.found = 0;
        self.left = Some(targets.into_iter().map(NextTry::Place).collect());
    }

    pub fn next(&mut self) -> Option<NextTry> {
        self.left.as_mut()?.pop_front()
    }

    /// Adds a place's addresses, to be tried before the next place, up to the limit.
    pub fn found(&mut self, host: &str, addresses: Vec<SocketAddr>) {
        // `left` contains the places behind this one: all addresses of this one go in front of
        // them.
        let left = self.left.get_or_insert_default();
        let addresses = directory::within_bounds(addresses, self.found, left.len());
        self.found += addresses.len();
        for address in addresses.into_iter().rev() {
            left.push_front(NextTry::Address(address, host.into()));
        }
    }

    /// Whether no other place or address is behind the current one.
    pub fn is_last(&self) -> bool {
        self.left.as_ref().is_none_or(VecDeque::is_empty)
    }

    fn len(&self) -> usize {
        self.left.as_ref().map_or(0, VecDeque::len)
    }

    /// Adds the failure of an address, or of a place without addresses.
    pub fn add(&self, at: String, error: HostError, is_late: bool) {
        thread::lock(&self.said).add(at, error, is_late);
    }
}

impl Failures {
    fn add(&mut self, at: String, error: HostError, is_late: bool) {
        self.all.retain(|failure| failure.at != at);
        let (round, came_ns) = (self.round, monotonic_ns());
        self.all.push(PlaceFailure { at, error, is_late, round, came_ns });
    }

    fn of_round(&self) -> impl Iterator<Item = &PlaceFailure> {
        self.all.iter().filter(|failure| failure.round == self.round)
    }

    /// Takes the most informative failure, with a summary of all; `None`: there is no recent one.
    fn take(&mut self) -> Option<HostError> {
        let (now_ns, round) = (monotonic_ns(), self.round);
        let mut all = core::mem::take(&mut self.all);
        all.retain(|said| said.round == round || now_ns.saturating_sub(said.came_ns) < SAID_NS);
        let said = (self.places > 1 && all.len() > 1).then(|| {
            let mut said: Vec<_> = all.iter().take(TOLD_MAX).map(ToString::to_string).collect();
            if all.len() > TOLD_MAX {
                said.push(std::format!("and {} others", all.len() - TOLD_MAX));
            }
            said.join("; ")
        });
        // Among equals, the last.
        let telling = all.into_iter().max_by_key(|failure| rank(&failure.error))?.error;
        Some(match said {
            Some(said) => HostError::Places { telling: Box::new(telling), said },
            None => telling,
        })
    }
}

impl core::fmt::Display for PlaceFailure {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match &self.error {
            HostError::Meeting(error) => write!(f, "{}: {error}", self.at),
            // These errors name the address.
            error => write!(f, "{error}"),
        }
    }
}

impl PlaceFailure {
    fn passes(&self) -> Passes {
        match &self.error {
            _ if self.is_late => Passes::Absent,
            HostError::Unreachable { error, .. } => match error.kind() {
                io::ErrorKind::ConnectionRefused => Passes::Closed,
                _ => Passes::Never(false),
            },
            // The server is ending: the same as a name that is not served.
            HostError::Meeting(
                MeetingError::NoService | MeetingError::Refused(Reason::Ending, _),
            ) => Passes::Absent,
            HostError::Meeting(MeetingError::Refused(Reason::Connections, why))
                if why == ASKED_REFUSED =>
            {
                Passes::Crowded
            }
            HostError::Meeting(MeetingError::Gone(_)) => Passes::Gone,
            HostError::Meeting(_) => Passes::Never(true),
            _ => Passes::Never(false),
        }
    }
}

/// Ranks errors by the help that they give: keys that do not match come before a service that is
/// not there.
fn rank(error: &HostError) -> u8 {
    match error {
        HostError::Meeting(MeetingError::Refused(..)) => 4,
        HostError::Meeting(MeetingError::NoService) => 3,
        HostError::Meeting(MeetingError::Gone(_)) => 2,
        HostError::Meeting(_) => 5,
        HostError::Unreachable { error, .. } if error.kind() == io::ErrorKind::TimedOut => 0,
        _ => 1,
    }
}

/// Whether this answer ends the search: the service was reached, and refuses. A server without
/// room, one that is ending and one that cannot be talked to do not answer for the others.
fn is_final(error: &MeetingError) -> bool {
    match error {
        MeetingError::Refused(reason, _) => !matches!(
            reason,
            Reason::Version
                | Reason::Identity
                | Reason::Connections
                | Reason::Bytes
                | Reason::Links
                | Reason::Places
                | Reason::TooSlow
                | Reason::Unavailable
                | Reason::Ending
        ),
        // An error of this end.
        MeetingError::Fabric(_) => true,
        _ => false,
    }
}

impl HostDial {
    /// Whether to wait for a server that is not there yet, and there is time for it.
    pub fn may_try_again(&self) -> bool {
        let pause = PAUSE.as_nanos() as u64;
        self.wait == Wait::ForName && monotonic_ns().saturating_add(pause) < self.until_ns
    }

    /// Begins an address's turn; returns its time for connecting. The rest of its share is for the
    /// meeting.
    pub fn turn_of(&mut self, at: (SocketAddr, String)) -> Duration {
        let left_ns = self.left_ns();
        // A server that may be there in the next round has a share, too.
        let again = self.may_try_again() && thread::lock(&self.course.said).may_pass();
        let share = share_of(left_ns, self.course.len() + usize::from(again));
        self.course.share_until_ns =
            monotonic_ns().saturating_add(share.as_nanos().try_into().unwrap_or(u64::MAX));
        self.course.at = Some(Box::new(at));
        share
    }

    /// The time by which the current address must have proved itself.
    pub fn share_until_ns(&self) -> u64 {
        match self.rail {
            Some(_) => self.until_ns,
            None => self.until_ns.min(self.course.share_until_ns),
        }
    }

    /// The time by which it must then have answered: for the last address, the end of all remaining
    /// time.
    pub fn answer_until_ns(&self) -> u64 {
        if self.course.is_last() { self.until_ns } else { self.share_until_ns() }
    }

    /// The pause if no server is there yet, or the directory knows none.
    pub fn look_pause(&mut self, given: &Given, config: &Config) -> Duration {
        let pause = self.course.look_pause;
        if self.name.place().is_none() {
            self.course.look_pause = given.pause_after(config, pause);
        }
        self.until_last(pause)
    }

    /// Shortens a pause so that there is one more attempt before the time limit.
    fn until_last(&self, pause: Duration) -> Duration {
        pause.min(Duration::from_nanos(self.left_ns()).saturating_sub(PAUSE))
    }

    /// Every place has failed. Returns the pause before the next round if one of the failures is
    /// temporary. Each attempt may cost both ends a handshake, so the pauses grow.
    pub fn round_is_over(&mut self, given: &Given, config: &Config) -> Option<Duration> {
        (self.course.left, self.course.at) = (None, None);
        let passes: Vec<_> =
            thread::lock(&self.course.said).of_round().map(PlaceFailure::passes).collect();
        let is_any = |one: Passes| passes.contains(&one);
        let now_ns = monotonic_ns();
        let gone = is_any(Passes::Gone) && {
            let until_ns = *self.course.gone_ns.get_or_insert(now_ns.saturating_add(GONE_NS));
            now_ns < until_ns
        };
        let (closed, absent) = (is_any(Passes::Closed), is_any(Passes::Absent));
        let crowded = is_any(Passes::Crowded) || gone;
        if !(closed || absent || crowded) || !self.may_try_again() {
            return None;
        }
        let next = |pause: &mut Duration, most| {
            let next = (*pause * 2).min(most);
            core::mem::replace(pause, next)
        };
        let mut pause = Duration::ZERO;
        if closed {
            pause = self.look_pause(given, config);
        }
        if absent || is_any(Passes::Never(true)) {
            pause = pause.max(next(&mut self.course.absent_pause, ABSENT_PAUSE_MAX));
        }
        if crowded {
            pause = pause.max(next(&mut self.course.crowded_pause, CROWDED_PAUSE_MAX));
        }
        Some(self.until_last(pause))
    }

    /// The current address has failed. Returns the pause before the next address or round, or the
    /// error for the caller.
    pub fn missed(
        &mut self,
        error: HostError,
        is_late: bool,
        (given, config): (&Given, &Config),
    ) -> Result<Duration, ConnectError> {
        let is_final = matches!(&error, HostError::Meeting(error) if is_final(error));
        if self.rail.is_some() || is_final {
            return Err(self.error(error));
        }
        // The next server may be on this host, or not.
        self.near = Near::Unasked;
        let at = self.course.at.take().map_or_else(String::new, |at| at.0.to_string());
        self.course.add(at, error, is_late);
        let again = match self.course.is_last() || self.left_ns() == 0 {
            true => self.round_is_over(given, config),
            false => Some(Duration::ZERO),
        };
        again.ok_or_else(|| self.error(self.outcome()))
    }

    /// The same at the end of the address's share.
    pub fn late(
        &mut self,
        doing: &'static str,
        of: (&Given, &Config),
    ) -> Result<Duration, ConnectError> {
        let Some(at) = self.course.at.as_deref() else {
            return Err(self.error(self.outcome()));
        };
        let error = silent(at.0, doing);
        match self.missed(error, true, of) {
            // Nothing came from any: the same error as where the caller's limit passes first.
            Err(ConnectError::Host { error, .. }) if rank(error.telling()) == 0 => {
                Err(ConnectError::TimedOut(doing))
            }
            result => result,
        }
    }

    /// The result of all the places.
    pub fn outcome(&self) -> HostError {
        let none = || HostError::Unknown("there was no time to look for it".into());
        thread::lock(&self.course.said).take().unwrap_or_else(none)
    }

    /// The time limit has passed in this attempt: an earlier failure, or that of another place,
    /// says more.
    pub fn too_late(&self, doing: &'static str) -> ConnectError {
        let mut said = thread::lock(&self.course.said);
        if let Some(at) = self.course.at.as_deref()
            && said.all.iter().all(|failure| failure.at != at.0.to_string())
        {
            said.add(at.0.to_string(), silent(at.0, doing), true);
        }
        match said.take() {
            Some(error) if rank(error.telling()) > 0 => self.error(error),
            _ => ConnectError::TimedOut(doing),
        }
    }
}

impl Failures {
    /// Whether a failure of this round is temporary.
    fn may_pass(&self) -> bool {
        self.of_round().any(|failure| !matches!(failure.passes(), Passes::Never(_)))
    }
}

/// The failure of an address that was given up.
fn silent(address: SocketAddr, doing: &str) -> HostError {
    let text = std::format!("nothing came in time while {doing}");
    HostError::Unreachable { address, error: io::Error::new(io::ErrorKind::TimedOut, text) }
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use super::*;

    const SECONDS: u64 = 1_000_000_000;

    fn address(last: u8) -> SocketAddr {
        SocketAddr::from(([192, 0, 2, last], 7))
    }

    /// A dial with this number of places, each an address.
    fn dial(count: u8, wait: Wait) -> HostDial {
        let name = "hamlyn://service".parse().unwrap();
        let until_ns = monotonic_ns() + 60 * SECONDS;
        let mut dial = HostDial::new(name, Vec::new(), until_ns, wait);
        begin(&mut dial, count);
        dial
    }

    fn begin(dial: &mut HostDial, count: u8) {
        let target = |last| {
            ServiceTarget::from(super::super::Place {
                host: address(last).ip().to_string(),
                port: 7,
            })
        };
        dial.course.begin((1..=count).map(target).collect());
    }

    /// Its next address fails with this error.
    fn comes_to(dial: &mut HostDial, error: MeetingError) -> Result<Duration, ConnectError> {
        let Some(NextTry::Place(target)) = dial.course.next() else { panic!("none is left") };
        let at = target.addresses(0).unwrap()[0];
        dial.turn_of((at, target.place.host));
        let (given, config) = (Given::default(), Config::default());
        dial.missed(error.into(), false, (&given, &config))
    }

    fn refused(reason: Reason) -> MeetingError {
        MeetingError::Refused(reason, "no".into())
    }

    #[test]
    fn what_another_place_may_do_better_is_left_to_it_and_what_the_service_says_is_not() {
        for error in [
            MeetingError::Tls("another program's".into()),
            MeetingError::Secret,
            MeetingError::Identity,
            MeetingError::Version((7, 0)),
            MeetingError::NoService,
            MeetingError::Gone(String::new()),
            MeetingError::Nonsense("of what it said"),
            refused(Reason::Ending),
            refused(Reason::Links),
            refused(Reason::Places),
        ] {
            let mut dial = dial(2, Wait::No);
            let next = comes_to(&mut dial, error.clone());
            assert_eq!(next.ok(), Some(Duration::ZERO), "{error}");
            // And the last has no successor.
            let error = comes_to(&mut dial, error).unwrap_err();
            assert!(matches!(error, ConnectError::Host { error: HostError::Places { .. }, .. }));
        }
        for error in [refused(Reason::Application), refused(Reason::User)] {
            let said = comes_to(&mut dial(2, Wait::ForName), error.clone()).unwrap_err();
            let ConnectError::Host { error: HostError::Meeting(said), .. } = said else {
                panic!("{said}")
            };
            assert_eq!(said, error);
        }
    }

    #[test]
    fn all_places_are_asked_again_where_one_may_yet_serve_the_name() {
        let mut dial = dial(2, Wait::ForName);
        let mut pauses = Vec::new();
        for round in 0..8 {
            if round > 0 {
                begin(&mut dial, 2);
            }
            comes_to(&mut dial, MeetingError::NoService).unwrap();
            pauses.push(comes_to(&mut dial, MeetingError::Secret).unwrap());
            assert!(!dial.course.has_begun());
        }
        // Each round costs handshakes.
        assert_eq!(pauses[..3], [PAUSE, 2 * PAUSE, 4 * PAUSE]);
        assert!(pauses.ends_with(&[ABSENT_PAUSE_MAX; 3]), "{pauses:?}");
        // Keys that do not match stay so.
        begin(&mut dial, 2);
        comes_to(&mut dial, MeetingError::Secret).unwrap();
        let error = comes_to(&mut dial, MeetingError::Identity).unwrap_err().to_string();
        for last in [1, 2] {
            assert!(error.contains(&address(last).to_string()), "{error}");
        }
        assert!(!error.contains("nobody serves"), "{error}");
    }

    #[test]
    fn a_place_behind_which_there_are_others_has_a_share_of_the_time() {
        let mut dial = dial(3, Wait::No);
        comes_to(&mut dial, MeetingError::NoService).unwrap();
        let Some(NextTry::Place(_)) = dial.course.next() else { panic!("none is left") };
        dial.turn_of((address(2), String::new()));
        assert!(dial.share_until_ns() < dial.until_ns - 40 * SECONDS);
        assert_eq!(dial.answer_until_ns(), dial.share_until_ns());
        let Some(NextTry::Place(_)) = dial.course.next() else { panic!("none is left") };
        dial.turn_of((address(3), String::new()));
        let left_ns = dial.until_ns - dial.share_until_ns();
        assert!(left_ns < SECONDS, "{left_ns}");
        assert_eq!(dial.answer_until_ns(), dial.until_ns);
    }
}
