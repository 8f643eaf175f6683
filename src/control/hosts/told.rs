//! Links to other hosts that come, go or cannot be made: counted, and told to the operator as those of this
//! host are, with the host's address and what it has proved to be.
//!
//! Never: telling waits for anything.

use super::{HostPeer, Shared};
use crate::control::LinkEnd;
use crate::control::machine::{Counters, Peer};
use crate::control::shell::{ConnectError, ended, of_host};
use crate::log::{Account, Entry, Kind};
use core::fmt;
use std::boxed::Box;
use std::string::{String, ToString};
use std::sync::Arc;

use super::refused::Refused;

/// What happened, of which there is a counter; and of an attempt that failed, which has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Happened {
    /// A host was refused.
    Refused(Refused),
    /// A link is there.
    Linked,
    /// The other end has ended one, or its connection has.
    Ended(LinkEnd),
    /// This end has ended one, for what the other end wrote.
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

/// Takes what is counted, and what an operator is to be told. Called under the lock of this part or of a
/// link, and waits for nothing.
pub type Note = Arc<dyn Fn(Happened, Option<Entry>) + Send + Sync>;

/// What the end of a link is told to, beside its node: why, and what the host did that none does, or how the
/// way to it broke.
pub struct OnEnd(Box<dyn Fn(LinkEnd, Option<String>) + Send>);

impl fmt::Debug for OnEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OnEnd").finish_non_exhaustive()
    }
}

impl OnEnd {
    /// The link has ended.
    pub fn tell(&self, reason: LinkEnd, more: Option<String>) {
        self.0(reason, more);
    }
}

fn entry(kind: Kind, host: &HostPeer, service: &str, why: &str) -> Entry {
    of_host(kind, host.address.ip(), Some(&host.identity), service.into(), why)
}

impl Shared {
    /// A link is there; what its end is to be told to.
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

    /// A link that this process asked for cannot be made.
    pub(super) fn note_failed_dial(&self, service: &str, error: &ConnectError) {
        let reason = crate::control::printable(&error.to_string());
        let (kind, service) = (Kind::Failed, service.into());
        let of = Account::Own;
        let entry = Entry { kind, user: None, process: None, service, reason, of };
        (self.note)(Happened::Failed, Some(entry));
    }
}
