//! Services of other hosts that turn out to be on this one: shared memory in place of TLS.
//!
//! ```text
//!   client                                             server
//!   TLS, who, Wants with Said::Asks ---------------->  is it served, and for this end?
//!                               <--------------------  Yes, Said::Here: local name, credential
//!   is that the node of this TLS? is the process at the local name's socket that of the
//!   credential? then: HELLO -------- Unix socket --->  as from any process of this host
//!   else, or after a refusal there: TLS as to any other host
//! ```
//! The address decides only whether to ask. Two things decide about the link: the node that proved
//! itself over TLS has signed the identity of its process, and the kernel confirms, before any
//! message, that this process is at the other end of the Unix socket. The process then proves its
//! node like any process of this host.
//!
//! A server discloses its local name only to a client that has proved itself, that it would admit,
//! and whose address belongs to the server's own host.
//!
//! Never: a greeting goes to another process than that of the proven node; a server's answer makes
//! the client take longer than its time limit.

use super::dial::{self, HostDial};
use super::meeting::Proved;
use super::said::{Said, ServiceHere};
use super::{HostRow, HostsShared, HostsState, Met, Wants};
use crate::config::Local;
use crate::control::frame::Credential;
use crate::control::names::Access;
use crate::control::shell::{ConnectError, LinkToken};
use crate::os::sys::monotonic_ns;
use crate::os::tcp;
use crate::wire::NodeId;
use core::time::Duration;
use std::boxed::Box;
use std::format;
use std::net::SocketAddr;
use std::string::{String, ToString};
use std::sync::{Arc, Mutex, PoisonError};
use std::vec::Vec;

/// Whether it is known that the other host is this one.
#[derive(Clone, Debug, Default)]
pub(super) enum Near {
    /// Not asked.
    #[default]
    Unasked,
    /// The current connection is the question.
    Asks,
    /// Use TLS: the question has been answered, or need not be asked. The reason for no shared
    /// memory, if the address is this host's.
    Not(Option<Box<str>>),
}

/// A service to look for on this host, in place of a link to another.
#[derive(Debug)]
pub struct Sought {
    /// The link's identifier at the caller.
    pub asked: LinkToken,
    /// The local name.
    pub name: String,
    /// The credential that the process there must show, node included.
    pub credential: Credential,
    /// The greeting for it.
    pub greeting: Vec<u8>,
    /// The time limit.
    pub until_ns: u64,
    /// How the link came to be, for `explain`.
    pub how: Box<str>,
}

/// Called once with the result: `None`: the link exists, and its node has been told.
pub type WhenEnded = Box<dyn FnOnce(Option<ConnectError>) + Send>;

/// The part of the control plane that connects to processes of this host.
pub trait OnThisHost: Send + Sync {
    /// Begins to connect, without waiting. `ended` may be called before this returns, and with a
    /// lock held.
    fn begin(&self, sought: Sought, ended: WhenEnded) -> Result<LinkToken, ConnectError>;

    /// The process's counters and refusals as text, the same that its own user gets. It may take a
    /// while, and runs the node's code.
    fn figures(&self) -> String;

    /// Gives up; `ended` is not called any more, unless its result is already queued.
    fn give_up(&self, token: LinkToken);
}

/// The results of the services looked for on this host.
#[derive(Debug, Default)]
pub(super) struct Outcomes(Mutex<Vec<(u64, Option<ConnectError>)>>);

impl Outcomes {
    fn push(&self, id: u64, outcome: Option<ConnectError>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push((id, outcome));
    }

    fn take(&self) -> Vec<(u64, Option<ConnectError>)> {
        core::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl ServiceHere {
    fn new(shared: Option<u32>, credential: &Credential) -> Self {
        let (first, second) = credential.signature.split_at(32);
        let half = |bytes: &[u8]| bytes.try_into().expect("32 bytes are half of a signature");
        Self {
            shared,
            process: (credential.process, credential.pid_namespace, credential.pid),
            boot: credential.boot,
            public_key: credential.public_key,
            signature: [half(first), half(second)],
        }
    }

    /// The credential of the node that has proved itself.
    fn credential(&self, node: NodeId) -> Credential {
        let (process, pid_namespace, pid) = self.process;
        let mut signature = [0; 64];
        signature[..32].copy_from_slice(&self.signature[0]);
        signature[32..].copy_from_slice(&self.signature[1]);
        let (boot, public_key) = (self.boot, self.public_key);
        Credential { node, process, pid_namespace, pid, boot, public_key, signature }
    }
}

impl HostsShared {
    /// Whether a new connection has to ask first; if it does not, although its address is this
    /// host's, the reason.
    pub(super) fn near(&self, dial: &HostDial, address: SocketAddr) -> Near {
        match &dial.near {
            Near::Unasked if dial.rail.is_none() && tcp::is_here(address) => {
                match self.config.local {
                    Local::Ring => Near::Asks,
                    Local::Tls => Near::Not(Some("local (HAMLYN_LOCAL) is tls".into())),
                }
            }
            Near::Unasked | Near::Asks => Near::Not(None),
            Near::Not(why) => Near::Not(why.clone()),
        }
    }

    /// At a server: adds to the answer to a client that asks, and that would be admitted: whether
    /// it may have figures, and the local name, if the client is on the same host.
    pub(super) fn tell_where(
        &self,
        state: &HostsState,
        met: &mut Met,
        wants: &Wants,
        proved: &Proved,
    ) {
        let Some((access, _)) = state.services.get(&wants.service) else { return };
        if self.tells_figures(proved) {
            Said::Figures.put(&mut met.meeting.says);
        }
        if !tcp::is_here(met.address) {
            return;
        }
        let shared = match access {
            Access::SameUser => None,
            Access::Group(_) | Access::Anyone => Some(rustix::process::geteuid().as_raw()),
        };
        let here = ServiceHere::new(shared, &self.own.identity.credential());
        Said::Here(here).put(&mut met.meeting.says);
    }

    /// At a client: the server would admit it.
    pub(super) fn near_answered(
        self: &Arc<Self>,
        state: &mut HostsState,
        id: u64,
        met: Met,
        proved: &Proved,
    ) {
        let Met { meeting, address, dial: Some(mut dial), .. } = met else { return };
        let said = Said::split(&meeting.heard).1;
        // The question is over: the server keeps nothing of it.
        drop(meeting);
        let begun = match said {
            Some(Said::Here(here)) => self.look_here(id, &dial, address, here, proved),
            _ => {
                Err("it does not take this end for one of its host, or knows no such links".into())
            }
        };
        match begun {
            Ok(local) => drop(state.rows.insert(id, HostRow::Near(dial, local))),
            Err(why) => {
                dial.near = Near::Not(Some(why.into()));
                self.over_tls(state, id, dial);
            }
        }
    }

    fn look_here(
        self: &Arc<Self>,
        id: u64,
        dial: &HostDial,
        address: SocketAddr,
        here: ServiceHere,
        proved: &Proved,
    ) -> Result<LinkToken, String> {
        let service = dial.name.service();
        let name = match here.shared {
            Some(user) => format!("{user}@{service}"),
            None => service.to_string(),
        };
        let who = crate::control::printable(&proved.identity);
        let how = format!(
            "asked for as {}, at {address}, where its node has proved itself over TLS ({who})",
            dial.name
        );
        let sought = Sought {
            asked: crate::control::ConnectionId(id),
            name,
            credential: here.credential(proved.node),
            greeting: dial.greeting.clone(),
            until_ns: dial.answer_until_ns(),
            how: how.into(),
        };
        let of_outcome = Arc::downgrade(self);
        let ended = move |outcome| {
            // The caller holds the other part's lock, so this part's thread handles the result.
            let Some(shared) = of_outcome.upgrade() else { return };
            shared.outcomes.push(id, outcome);
            shared.late.bell.ring();
        };
        self.here.begin(sought, Box::new(ended)).map_err(|error| error.to_string())
    }

    /// Handles the results of the services looked for on this host.
    pub(super) fn take_outcomes(self: &Arc<Self>, state: &mut HostsState) {
        for (id, outcome) in self.outcomes.take() {
            let Some(HostRow::Near(..)) = state.rows.get(&id) else { continue };
            let Some(HostRow::Near(mut dial, _)) = state.rows.remove(&id) else { continue };
            let service = dial.name.service();
            match outcome {
                None => continue,
                Some(error @ ConnectError::TimedOut(_)) if dial.left_ns() == 0 => {
                    self.tell_failed(id, service, error);
                    continue;
                }
                Some(ConnectError::TimedOut(doing)) if dial.answer_until_ns() <= monotonic_ns() => {
                    self.too_slow(state, id, dial, doing);
                    continue;
                }
                Some(error) => dial.near = Near::Not(Some(error.to_string().into())),
            }
            self.over_tls(state, id, dial);
        }
    }

    /// Connects at once over TLS, as to any other host.
    fn over_tls(self: &Arc<Self>, state: &mut HostsState, id: u64, dial: HostDial) {
        let service = dial.name.service().to_string();
        if let Err(error) = dial::start(self, state, id, dial, Duration::ZERO) {
            self.tell_failed(id, &service, error);
        }
    }
}

impl Near {
    /// The reason why the link is over TLS although the address is this host's, in words for
    /// `explain`.
    pub fn why(&self) -> Option<Box<str>> {
        match self {
            Self::Not(Some(why)) => Some(format!("not a ring, though this host: {why}").into()),
            _ => None,
        }
    }
}
