//! The way out of the table: [`Table::leave`] gives back the places and bytes of a connection, and
//! returns the report that the application must get.
//!
//! Events about a link may hold its memory and descriptors, and wait until the application takes
//! them. So a link that has ended leaves [`LinkRemains`], which count to its user, place included,
//! until the application has taken the link's last event.
//!
//! Never: a connection is taken out anywhere else; `Linked` or `Parting` is left without a report;
//! memory waits for the application without counting to an account.

use super::{ConnectionStage, LinkRemains, Marks, Table};
use crate::control::frame::{LinkSide, Reason};
use crate::control::machine::{ConnectFailure, ConnectionId, LinkEnd, MachineEvent, RequestId};
use alloc::string::String;

/// Why a connection leaves the table.
#[derive(Debug)]
pub(in crate::control::machine) enum LeaveReason {
    /// The application here ended it.
    Ours,
    /// The other end ended it, or caused its end.
    Theirs(LinkEnd),
    /// It never became a link, for this reason.
    Refused(Reason, String),
    /// This process could not connect.
    Failed(ConnectFailure),
    /// It was the second connection of a link, and is now part of that.
    Joined,
}

/// The report that the application must get of a connection that has left.
#[derive(Debug)]
#[must_use = "whoever waits for this connection must be told"]
pub(in crate::control::machine) enum Report {
    /// No report: the application knows, or never knew of it.
    Nothing,
    /// A link ended.
    Closed(LinkEnd),
    /// A request that the application was asked about, or had granted, is gone.
    RequestGone(RequestId),
    /// It wanted to connect, and could not.
    ConnectFailed(ConnectFailure),
}

/// The connection that left.
#[derive(Debug)]
pub(in crate::control::machine) struct LeftConnection {
    pub report: Report,
    /// It had not yet sent anything.
    pub was_silent: bool,
    /// It had been welcomed, and had yet to pay.
    pub was_unpaid: bool,
    /// It was on its way to a link.
    pub was_half_way: bool,
}

impl Table {
    /// An event for the application.
    pub fn tell(&mut self, event: &MachineEvent) {
        self.told += 1;
        if let Some(c) = event.hands_over().and_then(|link| self.rows.get_mut(&link)) {
            c.handed = self.told;
        }
    }

    /// The application has taken the first `count` events.
    pub fn events_taken(&mut self, count: u64) {
        self.taken = self.taken.max(count.min(self.told));
        while let Some(first) = self.remains.first_entry()
            && *first.key() <= self.taken
        {
            let remains = first.remove();
            self.settle(remains);
        }
    }

    /// No more remains of a link, here or in events that wait for the application.
    fn settle(&mut self, remains: LinkRemains) {
        let LinkRemains { id, user, marks, bytes, apertures } = remains;
        self.accounts.change(user, |account| {
            account.bytes -= bytes;
            account.apertures = account.apertures.saturating_sub(apertures);
        });
        self.note(id, user, marks, Marks::default());
    }

    /// The one way out. Gives back the places and bytes of the connection; for a link that the
    /// application knows, once the application has taken its events. The report is the last event
    /// that the application must get. [`Report::Closed`] has been counted as an event.
    pub fn leave(&mut self, id: ConnectionId, why: LeaveReason) -> Option<LeftConnection> {
        self.set_deadline(id, None);
        self.change_wants(id, |_, wants| wants.clear());
        let c = self.rows.remove(&id)?;
        self.unsettled.remove(&id);
        self.following.remove(&id);
        if let ConnectionStage::Meeting(meeting) = &c.stage
            && c.role == LinkSide::Server
        {
            self.cookies.remove(&meeting.cookie);
        }
        let (user, before) = (c.who.uid, c.marks());
        let mut remains = LinkRemains { id, user, marks: before, bytes: c.bytes, apertures: 0 };
        if let ConnectionStage::Linked(linked) | ConnectionStage::Parting(linked) = &c.stage {
            remains.apertures = linked.apertures.held();
        }
        let mut left = LeftConnection {
            report: Report::Nothing,
            was_silent: false,
            was_unpaid: before.is_unpaid,
            was_half_way: false,
        };
        let role = c.role;
        left.report = match (c.stage, why) {
            (_, LeaveReason::Ours | LeaveReason::Joined) => Report::Nothing,
            (
                ConnectionStage::Linked(_) | ConnectionStage::Parting(_),
                LeaveReason::Theirs(reason),
            ) => Report::Closed(reason),
            // A link can no longer be refused anything; that leaves a violation.
            (
                ConnectionStage::Linked(_) | ConnectionStage::Parting(_),
                LeaveReason::Refused(..) | LeaveReason::Failed(_),
            ) => Report::Closed(LinkEnd::Violation),
            (ConnectionStage::Silent, LeaveReason::Theirs(_)) => {
                left.was_silent = true;
                Report::Nothing
            }
            (ConnectionStage::Asking(_), _) => {
                left.was_half_way = true;
                Report::RequestGone(RequestId(id.0))
            }
            (_, LeaveReason::Failed(failure)) if role == LinkSide::Client => {
                Report::ConnectFailed(failure)
            }
            (_, LeaveReason::Refused(reason, text)) if role == LinkSide::Client => {
                Report::ConnectFailed(ConnectFailure::Refused { reason, text })
            }
            (_, LeaveReason::Theirs(_)) if role == LinkSide::Client => {
                Report::ConnectFailed(ConnectFailure::Gone)
            }
            (ConnectionStage::Meeting(meeting), _) => {
                left.was_half_way = true;
                meeting.request.map_or(Report::Nothing, Report::RequestGone)
            }
            (
                ConnectionStage::Queued(_)
                | ConnectionStage::Checking(_)
                | ConnectionStage::Following(..),
                _,
            ) => {
                left.was_half_way = true;
                Report::Nothing
            }
            _ => Report::Nothing,
        };
        let last = match left.report {
            Report::Closed(_) => {
                self.told += 1;
                self.told
            }
            _ => c.handed,
        };
        if last > self.taken {
            self.remains.insert(last, remains);
        } else {
            self.settle(remains);
        }
        Some(left)
    }
}
