//! Links to other hosts that come, go or cannot be made: counts them, and reports them to the
//! operator like those of this host, with the host's address and proven identity.
//!
//! Never: a report waits for anything.

use super::{HostPeer, HostsShared};
use crate::control::LinkEnd;
use crate::control::machine::{Counters, Peer};
use crate::control::shell::{ConnectError, ended, of_host};
use crate::log::{Entry, Kind, LogAccount};
use core::fmt;
use std::boxed::Box;
use std::string::{String, ToString};
use std::sync::Arc;

/// The reason for refusing a host. Each has a counter, which [`Counters`] describes.
#[allow(missing_docs)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    Tls,
    Unproved,
    Secret,
    Identity,
    Version,
    Frame,
    Slow,
    HalfOpen,
    Links,
    Service,
    User,
    Connections,
    Greeting,
    Application,
    Exhausted,
}

impl Refused {
    /// Counts it.
    pub fn count(self, counters: &mut Counters) {
        let counter = match self {
            Self::Tls => &mut counters.hosts_refused_tls,
            Self::Unproved => &mut counters.hosts_refused_unproved,
            Self::Secret => &mut counters.hosts_refused_secret,
            Self::Identity => &mut counters.hosts_refused_identity,
            Self::Version => &mut counters.hosts_refused_version,
            Self::Frame => &mut counters.hosts_refused_frame,
            Self::Slow => &mut counters.hosts_refused_slow,
            Self::HalfOpen => &mut counters.hosts_refused_half_open,
            Self::Links => &mut counters.hosts_refused_links,
            Self::Service => &mut counters.hosts_refused_service,
            Self::User => &mut counters.hosts_refused_user,
            Self::Connections => &mut counters.hosts_refused_connections,
            Self::Greeting => &mut counters.hosts_refused_greeting,
            Self::Application => &mut counters.hosts_refused_application,
            Self::Exhausted => &mut counters.hosts_refused_exhausted,
        };
        *counter += 1;
    }
}

/// An event. Each has a counter, except a failed attempt to connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Happened {
    /// A host was refused.
    Refused(Refused),
    /// A link has been opened.
    Linked,
    /// The other end has ended a link, or its connection has ended.
    Ended(LinkEnd),
    /// This end has ended a link because of the other end's bytes.
    SentAway,
    /// This end could not connect.
    Failed,
}

impl Happened {
    /// Counts it.
    pub fn count(self, counters: &mut Counters) {
        match self {
            Self::Refused(why) => why.count(counters),
            Self::Linked => counters.links += 1,
            Self::Ended(reason) => counters.count_end(reason),
            Self::SentAway => counters.closed_by_us_violation += 1,
            Self::Failed => {}
        }
    }
}

/// Takes an event to count, and perhaps an entry for the operator. It is called under the lock of
/// this part or of a link, and waits for nothing.
pub type Note = Arc<dyn Fn(Happened, Option<Entry>) + Send + Sync>;

/// The callback for the end of a link, beside its node: gets the reason, and either the host's
/// violation or the failure of the connection.
pub struct OnEnd(Box<dyn Fn(LinkEnd, Option<String>) + Send>);

impl fmt::Debug for OnEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OnEnd").finish_non_exhaustive()
    }
}

impl OnEnd {
    /// Reports the end of the link.
    pub fn tell(&self, reason: LinkEnd, more: Option<String>) {
        self.0(reason, more);
    }
}

fn entry(kind: Kind, host: &HostPeer, service: &str, why: &str) -> Entry {
    of_host(kind, host.address.ip(), Some(&host.identity), service.into(), why)
}

impl HostsShared {
    /// Reports a new link; returns the callback for its end.
    pub(super) fn note_linked(&self, peer: &Peer, is_ours: bool) -> Option<OnEnd> {
        let host = peer.host.clone()?;
        let (note, service) = (self.note.clone(), peer.service.clone());
        let by = if is_ours { "this process connected" } else { "" };
        note(Happened::Linked, Some(entry(Kind::Connected, &host, &service, by)));
        Some(OnEnd(Box::new(move |reason, more| {
            let (kind, why) = match reason {
                LinkEnd::Died => (
                    Kind::Died,
                    "its connection ended without a word, or it has answered nothing for too long \
                     (host_timeout_ms)",
                ),
                LinkEnd::Violation => (Kind::SentAway, "it sent what no host sends"),
                reason => ended(reason),
            };
            let why = more.unwrap_or_else(|| why.into());
            note(Happened::Ended(reason), Some(entry(kind, &host, &service, &why)));
        })))
    }

    /// Reports a link that this process asked for and that cannot be made.
    pub(super) fn note_failed_dial(&self, service: &str, error: &ConnectError) {
        let reason = crate::control::printable(&error.to_string());
        let (kind, service) = (Kind::Failed, service.into());
        let of = LogAccount::Own;
        let entry = Entry { kind, user: None, process: None, service, reason, of };
        (self.note)(Happened::Failed, Some(entry));
    }
}
