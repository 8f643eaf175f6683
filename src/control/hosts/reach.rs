//! Tests how far a connection to a service of another host gets, for `hamlyn why`: it asks the
//! server, and makes no link. The host's program does not see it.
//!
//! ```text
//!   address --> port --> TLS --> who --Wants, Said::Asks--> is it served, and for this end?
//! ```
//! Never: it takes longer than the time that it is given.

use super::HostName;
use super::dial::{self, HostError};
use super::directory;
use super::keys::Keys;
use super::meeting::{Meeting, MeetingError, MeetingStep, OwnData};
use super::said::Said;
use crate::config::Config;
use crate::control::identity::Identity;
use crate::control::{BuildError, Reason};
use crate::os::sys::{monotonic_ns, wait_for};
use crate::os::tcp;
use crate::transport::path::Path;
use core::net::SocketAddr;
use core::time::Duration;
use std::io;
use std::string::String;
use std::vec::Vec;

/// The steps that succeeded. Each needs the ones before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reached {
    /// No step.
    Nothing,
    /// The host's name has an address.
    Address,
    /// A process listens at its port.
    Port,
    /// It speaks TLS without an error.
    Tls,
    /// Each end accepts the other's identity.
    Identity,
    /// The service is there.
    Service,
}

/// The result of asking a host for a service.
#[derive(Debug)]
pub struct Asked {
    /// The last step that succeeded.
    pub reached: Reached,
    /// The reason why the next step failed.
    pub stopped: Option<Stopped>,
    /// Whether it gives this end its figures.
    pub tells_figures: bool,
}

/// The reason why a step failed.
#[derive(Debug)]
pub enum Stopped {
    /// The error that it ended with.
    By(HostError),
    /// It sent nothing until the time limit passed.
    Silent(Option<SocketAddr>),
}

/// Tests a connection to `name`, and asks whether the service is available to this end.
pub fn reach(config: &Config, name: &HostName, within: Duration) -> Asked {
    let until_ns = monotonic_ns().saturating_add(within.as_nanos() as u64);
    let met = connect(config, name, until_ns, &[Said::Asks]).and_then(|(own, mut meeting, at)| {
        meet(&own, &mut meeting, at, until_ns)?;
        // The server may have added its local name, too.
        let said = |bytes| Said::split(bytes);
        let (before, last) = said(&meeting.heard);
        Ok([last, said(before).1].contains(&Some(Said::Figures)))
    });
    match met {
        Ok(tells_figures) => Asked { reached: Reached::Service, stopped: None, tells_figures },
        Err((reached, stopped)) => Asked { reached, stopped: Some(stopped), tells_figures: false },
    }
}

pub(super) type Failed = (Reached, Stopped);

pub(super) fn connect(
    config: &Config,
    name: &HostName,
    until_ns: u64,
    asks: &[Said],
) -> Result<(OwnData, Meeting, SocketAddr), Failed> {
    let nothing = |error: HostError| (Reached::Nothing, Stopped::By(error));
    let own = own(config).map_err(|e| nothing(e.into()))?;
    let targets = match name.place() {
        Some(place) => std::vec![place.clone().into()],
        None => directory::look_up(None, config, name.service(), until_ns)
            .map_err(|e| nothing(e.into()))?,
    };
    let mut failed = nothing(HostError::Unknown("it has none".into()));
    let (mut before, mut targets_left) = (0, targets.len());
    for target in directory::in_turn(targets, directory::random_below) {
        targets_left -= 1;
        let host = target.place.host.clone();
        let found = match target.addresses(until_ns) {
            Ok(found) => found,
            // The failure of another address is more informative.
            Err(_) if failed.0 > Reached::Nothing => continue,
            Err(e) => {
                failed = nothing(HostError::Unknown(std::format!("{host}: {e}")));
                continue;
            }
        };
        let found = directory::within_bounds(found, before, targets_left);
        before += found.len();
        let count = found.len();
        for (tried, address) in found.into_iter().enumerate() {
            let left_ns = until_ns.saturating_sub(monotonic_ns()).max(1);
            let share = dial::share_of(left_ns, count - tried - 1 + targets_left);
            let opened = tcp::connect(&address, share);
            match opened.and_then(|tcp| dial::prepare(&tcp, config).map(|()| tcp)) {
                Ok(tcp) => {
                    let channel = dial::channel(&own, tcp, &host);
                    let channel =
                        channel.map_err(|e| (Reached::Port, Stopped::By(HostError::Meeting(e))))?;
                    let mut meeting = Meeting::of_client(channel, name.service(), Vec::new());
                    asks.iter().for_each(|asks| asks.put(&mut meeting.says));
                    return Ok((own, meeting, address));
                }
                Err(e) if e.kind() == io::ErrorKind::TimedOut => {
                    failed = (Reached::Address, Stopped::Silent(Some(address)));
                }
                Err(error) => {
                    let error = HostError::Unreachable { address, error };
                    failed = (Reached::Address, Stopped::By(error));
                }
            }
        }
    }
    Err(failed)
}

fn own(config: &Config) -> Result<OwnData, BuildError> {
    let identity = Identity::new().map_err(BuildError::os("making this process's own key"))?;
    Ok(OwnData { keys: Keys::load(config)?, identity, packet_bytes: config.packet_bytes })
}

/// Exchanges messages until the server has accepted.
pub(super) fn meet(
    own: &OwnData,
    meeting: &mut Meeting,
    address: SocketAddr,
    until_ns: u64,
) -> Result<String, Failed> {
    loop {
        match meeting.turn(own) {
            MeetingStep::Link(_, proved) => return Ok(proved.identity),
            MeetingStep::Failed(error) => {
                let reached = reached_before(&error);
                return Err((reached, Stopped::By(error.into())));
            }
            MeetingStep::Waits | MeetingStep::Wants(..) => {}
        }
        let fds = [(meeting.channel.tcp(), meeting.channel.wants_write())];
        if monotonic_ns() >= until_ns {
            let reached = if meeting.channel.is_open() { Reached::Tls } else { Reached::Port };
            return Err((reached, Stopped::Silent(Some(address))));
        }
        if let Err(e) = wait_for(&fds, until_ns) {
            let error = MeetingError::Gone(std::format!(": {e}"));
            return Err((Reached::Port, Stopped::By(error.into())));
        }
    }
}

/// The last step that succeeded before an error.
fn reached_before(error: &MeetingError) -> Reached {
    match error {
        MeetingError::Tls(_) | MeetingError::Gone(_) => Reached::Port,
        MeetingError::NoService => Reached::Identity,
        MeetingError::Refused(Reason::Identity, _) => Reached::Tls,
        MeetingError::Refused(..) => Reached::Service,
        _ => Reached::Tls,
    }
}
