//! The reasons for refusing other hosts: counted, and reported to the operator with the host's
//! address.
//!
//! Never: a report waits for anything.

use super::meeting::Meeting;
use super::meeting::{MeetingError, Proved, refused};
use super::told::{Happened, Refused};
use super::{Answer, HostRow, HostsShared, HostsState, LeavingConnection, LeavingRest};
use crate::control::Reason;
use crate::control::shell::of_host;
use crate::log::Kind;
use crate::transport::path::Path;
use std::boxed::Box;
use std::net::SocketAddr;
use std::string::{String, ToString};

impl Refused {
    fn of_error(error: &MeetingError) -> Self {
        match error {
            MeetingError::Tls(_) => Self::Tls,
            MeetingError::Gone(_) => Self::Unproved,
            MeetingError::Secret => Self::Secret,
            MeetingError::Identity => Self::Identity,
            MeetingError::Version(_) => Self::Version,
            MeetingError::Nonsense(_) => Self::Frame,
            // Errors of clients; a server has none of them.
            MeetingError::NoService => Self::Service,
            MeetingError::Refused(..) => Self::Application,
            MeetingError::Fabric(_) => Self::Exhausted,
        }
    }

    fn of_reason(reason: Reason) -> Self {
        match reason {
            Reason::User => Self::User,
            Reason::Connections => Self::Connections,
            Reason::Links => Self::Links,
            Reason::Malformed => Self::Greeting,
            Reason::Identity => Self::Identity,
            _ => Self::Application,
        }
    }
}

impl HostsShared {
    /// Reports the refusal of a host with a proven identity.
    pub(super) fn note_refused(
        &self,
        address: SocketAddr,
        proved: &Proved,
        service: String,
        answer: &Answer,
    ) {
        let (why, service, words) = match answer {
            Answer::Yes(_) => return,
            // The host invented the name that it asked for, and may invent many.
            Answer::NoService => {
                (Refused::Service, String::new(), "it asked for what is not served here".into())
            }
            Answer::No { reason, text } => {
                let reason = Reason::from_wire(*reason);
                (Refused::of_reason(reason), service, refused(reason, text))
            }
        };
        self.note_host(why, address, Some(&proved.identity), service, &words);
    }

    /// Reports the refusal of a connection that has proved nothing.
    pub(super) fn note_stranger(&self, why: Refused, address: SocketAddr, words: &str) {
        self.note_host(why, address, None, String::new(), words);
    }

    /// The same, with the error of its meeting.
    pub(super) fn note_failed(&self, address: SocketAddr, error: &MeetingError) {
        let words = match error {
            // A client checks the server's proof first, and disconnects if it does not trust that.
            MeetingError::Gone(_) => {
                "it went before it had proved which it is, as who has another secret does".into()
            }
            error => error.to_string(),
        };
        self.note_stranger(Refused::of_error(error), address, &words);
    }

    fn note_host(
        &self,
        why: Refused,
        address: SocketAddr,
        who: Option<&str>,
        service: String,
        words: &str,
    ) {
        let entry = of_host(Kind::Refused, address.ip(), who, service, words);
        (self.note)(Happened::Refused(why), Some(entry));
    }

    /// Refuses a connection. The other end reads the refusal before the connection ends; otherwise
    /// a reset could overtake it.
    pub(super) fn refuse(
        &self,
        state: &mut HostsState,
        id: u64,
        mut meeting: Meeting,
        identity: String,
        answer: &Answer,
    ) {
        meeting.answer(answer);
        meeting.channel.put_end();
        meeting.channel.flush();
        self.leave_with(state, id, meeting, identity, false);
    }

    /// Keeps a connection that becomes no link until its last bytes have left. `tells`: it is for
    /// figures, of which the number is limited.
    pub(super) fn leave_with(
        &self,
        state: &mut HostsState,
        id: u64,
        meeting: Meeting,
        identity: String,
        tells: bool,
    ) {
        let what = LeavingRest::Refusal(Box::new(meeting));
        let (identity, deadline_ns) = (Some(identity), self.deadline());
        let leaving =
            LeavingConnection { what, identity, live: None, look_ns: 0, deadline_ns, tells };
        state.rows.insert(id, HostRow::Leaving(leaving));
        self.late.bell.ring();
    }

    /// Counts a refusal without details for the operator.
    pub(super) fn count_refused(&self, why: Refused) {
        (self.note)(Happened::Refused(why), None);
    }
}
