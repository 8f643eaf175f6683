//! Services of other hosts that turn out to be on this one: a ring in the place of TLS.
//!
//! ```text
//!   client                                             server
//!   TLS, who, Wants with Said::Asks ---------------->  is it served, and for this end?
//!                               <--------------------  Yes, Said::Here: local name, credential
//!   is that the node of this TLS? is the process at the local name's socket that of the
//!   credential? then: HELLO -------- Unix socket --->  as from any process of this host
//!   else, or if it is refused there: TLS as to any other host
//! ```
//! The address decides nothing but whether it is asked at all: what does is that the node which proved itself
//! over TLS has signed which process it is, and that the kernel says that this process is at the other end of
//! the Unix socket, before a word is said there. That it is that node of the process it shows as any does.
//!
//! A server says where it is to none but a client that has proved itself, that it would let in, and whose
//! address is one of the server's own host.
//!
//! Never: a greeting is said to anybody but the process of the node that has proved itself; what a server
//! says of itself takes more time than whoever connects has.

use super::dial::{self, Dial};
use super::meeting::Proved;
use super::rails::said::{Here, Said};
use super::{Met, Row, Shared, State, Wants};
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

/// How far a connection to another host has come with finding out whether it is this one.
#[derive(Clone, Debug, Default)]
pub(super) enum Near {
    /// Not at all.
    #[default]
    Unasked,
    /// The connection that is being made is the question.
    Asks,
    /// It is asked, or need not be: TLS. Why not a ring, where the address is this host's.
    Not(Option<Box<str>>),
}

/// What is looked for on this host, in the place of a link to another.
#[derive(Debug)]
pub struct Sought {
    /// What whoever connects calls the link so far.
    pub asked: LinkToken,
    /// The local name.
    pub name: String,
    /// What the process there has to show, node included.
    pub credential: Credential,
    /// For it.
    pub greeting: Vec<u8>,
    /// Until when.
    pub until_ns: u64,
    /// How it came to be, for `explain`.
    pub how: Box<str>,
}

/// Told once what became of it: `None`: the link is there, and its node has been told.
pub type Ended = Box<dyn FnOnce(Option<ConnectError>) + Send>;

/// The part of the control plane that connects to processes of this host.
pub trait OnThisHost: Send + Sync {
    /// Begins to, and waits for nothing. `ended` may be called before it returns, and by whoever has a lock.
    fn begin(&self, sought: Sought, ended: Ended) -> Result<LinkToken, ConnectError>;

    /// What the process has counted, and who was refused, as text: the same that its own user is told. It may
    /// take a while, and runs the node's code.
    fn figures(&self) -> String;

    /// Gives up; nothing is told any more, unless it is there already.
    fn give_up(&self, token: LinkToken);
}

/// What became of those that were looked for on this host.
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

impl Here {
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

    /// With the node that has proved itself.
    fn credential(&self, node: NodeId) -> Credential {
        let (process, pid_namespace, pid) = self.process;
        let mut signature = [0; 64];
        signature[..32].copy_from_slice(&self.signature[0]);
        signature[32..].copy_from_slice(&self.signature[1]);
        let (boot, public_key) = (self.boot, self.public_key);
        Credential { node, process, pid_namespace, pid, boot, public_key, signature }
    }
}

impl Shared {
    /// Whether a connection that is there is to be a question first, or why it is not, where its address is
    /// this host's.
    pub(super) fn near(&self, dial: &Dial, address: SocketAddr) -> Near {
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

    /// At a server: what one is told that asks whether there might be a link, and to which there might:
    /// whether it would be told figures, and where the service is, where that is its own host.
    pub(super) fn tell_where(&self, state: &State, met: &mut Met, wants: &Wants, proved: &Proved) {
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
        let here = Here::new(shared, &self.own.identity.credential());
        Said::Here(here).put(&mut met.meeting.says);
    }

    /// At a client: there might be a link, says the server.
    pub(super) fn near_answered(
        self: &Arc<Self>,
        state: &mut State,
        id: u64,
        met: Met,
        proved: &Proved,
    ) {
        let Met { meeting, address, dial: Some(mut dial), .. } = met else { return };
        let said = Said::split(&meeting.heard).1;
        // The question is over: nothing of it is left at the server.
        drop(meeting);
        let begun = match said {
            Some(Said::Here(here)) => self.look_here(id, &dial, address, here, proved),
            _ => {
                Err("it does not take this end for one of its host, or knows no such links".into())
            }
        };
        match begun {
            Ok(local) => drop(state.rows.insert(id, Row::Near(dial, local))),
            Err(why) => {
                dial.near = Near::Not(Some(why.into()));
                self.over_tls(state, id, dial);
            }
        }
    }

    fn look_here(
        self: &Arc<Self>,
        id: u64,
        dial: &Dial,
        address: SocketAddr,
        here: Here,
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
            // By whoever has the other part's lock: this one's thread looks at it.
            let Some(shared) = of_outcome.upgrade() else { return };
            shared.outcomes.push(id, outcome);
            shared.late.bell.ring();
        };
        self.here.begin(sought, Box::new(ended)).map_err(|error| error.to_string())
    }

    /// What has become of those that were looked for on this host.
    pub(super) fn take_outcomes(self: &Arc<Self>, state: &mut State) {
        for (id, outcome) in self.outcomes.take() {
            let Some(Row::Near(..)) = state.rows.get(&id) else { continue };
            let Some(Row::Near(mut dial, _)) = state.rows.remove(&id) else { continue };
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

    /// As to any other host, at once.
    fn over_tls(self: &Arc<Self>, state: &mut State, id: u64, dial: Dial) {
        let service = dial.name.service().to_string();
        if let Err(error) = dial::start(self, state, id, dial, Duration::ZERO) {
            self.tell_failed(id, &service, error);
        }
    }
}

impl Near {
    /// Why the link is over TLS though the address is this host's, in words for `explain`.
    pub fn why(&self) -> Option<Box<str>> {
        match self {
            Self::Not(Some(why)) => Some(format!("not a ring, though this host: {why}").into()),
            _ => None,
        }
    }
}
