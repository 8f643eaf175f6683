//! The connections of a process and the states that they can be in.
//!
//! ```text
//!   accepted:   Silent --HELLO--> Queued --room--> (Asking --yes-->) Meeting ----> Linked
//!                  |  \--HELLO wake--> (joins the Meeting one with its cookie)       |
//!                  |  \--HELLO stat--> Telling                                       |
//!   connecting: Dialing --socket--> Greeting --WELCOME--> Meeting ---------------> Linked
//!                                                                                    |
//!                                          end of its socket, without BYE: Parting <-+
//! ```
//! This module alone can change a state or take a connection out, and [`Table::leave`] is its only
//! way out: it gives back the places that were taken, and says what the application must be told.
//! So no link can end without its application hearing of it, and no account can be forgotten.
//!
//! Never: a connection is in no account; `Linked` or `Parting` is left without a report.

use super::super::frame::{COOKIE_BYTES, End, Hello, LinkFeatures, Memory, Reason};
use super::account::{Accounts, User};
use super::aperture::Apertures;
use super::memory::Transfer;
use super::{CloseReason, ConnectionId, Failure, Peer, RequestId, Who};
use crate::wire::NodeId;
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::vec::Vec;

/// A link that is being agreed: the rings travel, the second connection joins.
#[derive(Debug)]
pub(super) struct Meeting {
    pub features: LinkFeatures,
    pub packet_bytes: u32,
    /// Bytes of the rings that the client and the server write.
    pub ring_bytes: [u32; 2],
    pub cookie: [u8; COOKIE_BYTES],
    /// The other end's first words.
    pub greeting: Vec<u8>,
    /// Whether the second connection is there.
    pub has_wake: bool,
    pub rings: [Transfer; 2],
    /// The request of this process's application that was granted.
    pub request: Option<RequestId>,
}

impl Meeting {
    /// Whether everything is there.
    pub fn is_whole(&self) -> bool {
        self.has_wake && self.rings.iter().all(|ring| *ring == Transfer::Held)
    }
}

/// A client that waits to be welcomed.
#[derive(Debug)]
pub(super) struct Queued {
    pub hello: Hello,
    /// What it will be told; `None`: it has not yet been decided that it will.
    pub greeting: Option<Vec<u8>>,
    /// The request of this process's application that was granted.
    pub request: Option<RequestId>,
}

/// A link.
#[derive(Debug)]
pub(super) struct Linked {
    /// The bulk rings that the client and the server write.
    pub bulk: [Transfer; 2],
    pub apertures: Apertures,
}

/// How far a connection has come.
#[derive(Debug)]
pub(super) enum Stage {
    /// Accepted; it has said nothing yet.
    Silent,
    /// It waits until others of its user have paid for their memory.
    Queued(Box<Queued>),
    /// The application has been asked.
    Asking(Box<Hello>),
    /// This process is to connect, and has this to say.
    Dialing(Vec<u8>),
    /// This process has connected and said HELLO.
    Greeting,
    /// Agreed; the memory travels.
    Meeting(Box<Meeting>),
    /// A link.
    Linked(Box<Linked>),
    /// Its socket ended; whether its process did is not yet known.
    Parting(Box<Linked>),
    /// Statistics are being sent; then it ends.
    Telling,
}

/// One connection.
#[derive(Debug)]
pub(super) struct Connection {
    /// Who this process is here.
    pub role: End,
    pub who: Who,
    pub service: String,
    /// Which listener; 0 for a connection that this process made.
    pub listener: u64,
    pub peer_node: NodeId,
    /// Whether the other end has proved that it is its node.
    pub is_proved: bool,
    /// The number that only its process has, if the kernel says.
    pub process: Option<u64>,
    /// Pairs the two connections of a link that this process accepted.
    pub cookie: [u8; COOKIE_BYTES],
    /// Which memory a receiver waits for.
    pub window: Option<Memory>,
    /// A receiver reads its socket, and should have ended soon after this. It may be stopped also
    /// when it has said what it waited for: by what else is in its queue.
    pub receiving_until_ns: Option<u64>,
    /// Its process has died; what it had sent is still being read.
    pub is_dead: bool,
    /// Asked for something that was refused so many times, more than was granted.
    pub refused: u32,
    stage: Stage,
    features: LinkFeatures,
    deadline_ns: Option<u64>,
    /// Bytes charged to its user.
    bytes: u64,
}

impl Connection {
    pub fn new(role: End, who: Who, service: String, listener: u64, stage: Stage) -> Self {
        Self {
            role,
            who,
            service,
            listener,
            peer_node: NodeId(0),
            is_proved: false,
            process: None,
            cookie: [0; COOKIE_BYTES],
            window: None,
            receiving_until_ns: None,
            is_dead: false,
            refused: 0,
            stage,
            features: LinkFeatures::empty(),
            deadline_ns: None,
            bytes: 0,
        }
    }

    pub fn stage(&self) -> &Stage {
        &self.stage
    }

    pub fn features(&self) -> LinkFeatures {
        self.features
    }

    pub fn queued(&mut self) -> Option<&mut Queued> {
        match &mut self.stage {
            Stage::Queued(queued) => Some(queued),
            _ => None,
        }
    }

    pub fn meeting(&mut self) -> Option<&mut Meeting> {
        match &mut self.stage {
            Stage::Meeting(meeting) => Some(meeting),
            _ => None,
        }
    }

    pub fn linked(&mut self) -> Option<&mut Linked> {
        match &mut self.stage {
            Stage::Linked(linked) => Some(linked),
            _ => None,
        }
    }

    pub fn is_linked(&self) -> bool {
        matches!(self.stage, Stage::Linked(_))
    }

    pub fn peer(&self) -> Peer {
        Peer {
            node: self.peer_node,
            is_proved: self.is_proved,
            uid: self.who.uid,
            gid: self.who.gid,
            pid: self.who.pid,
            process: self.process,
            service: self.service.clone(),
        }
    }

    fn has_link(&self) -> bool {
        matches!(self.stage, Stage::Meeting(_) | Stage::Linked(_) | Stage::Parting(_))
            || matches!(self.stage, Stage::Dialing(_) | Stage::Greeting)
    }

    fn is_unpaid(&self) -> bool {
        self.role == End::Server && matches!(self.stage, Stage::Meeting(_))
    }
}

/// Why a connection leaves the table.
#[derive(Debug)]
pub(super) enum Leave {
    /// The application here ended it, and knows.
    Ours,
    /// The other end, or what it did.
    Theirs(CloseReason),
    /// It never became a link, for this reason.
    Refused(Reason, String),
    /// This process could not connect.
    Failed(Failure),
    /// It was the second connection of a link, and is now part of that.
    Joined,
}

/// What the application must be told of a connection that has left.
#[derive(Debug)]
#[must_use = "whoever waits for this connection must be told"]
pub(super) enum Report {
    /// Nothing: it knows, or never knew of it.
    Nothing,
    /// A link ended.
    Closed(CloseReason),
    /// A request that it was asked about, or had granted, is gone.
    RequestGone(RequestId),
    /// It wanted to connect, and could not.
    ConnectFailed(Failure),
}

/// What left.
#[derive(Debug)]
pub(super) struct Left {
    pub report: Report,
    /// It had not yet said anything.
    pub was_silent: bool,
    /// It had been welcomed, and had yet to pay.
    pub was_unpaid: bool,
    /// It was on its way to a link.
    pub was_half_way: bool,
}

/// All connections, and the accounts of their users.
#[derive(Debug, Default)]
pub(super) struct Table {
    rows: BTreeMap<ConnectionId, Connection>,
    deadlines: BTreeSet<(u64, ConnectionId)>,
    cookies: BTreeMap<[u8; COOKIE_BYTES], ConnectionId>,
    /// Those that have said nothing, oldest first.
    silent: BTreeSet<ConnectionId>,
    /// Those that have been welcomed and have yet to pay, oldest first.
    unpaid: BTreeSet<ConnectionId>,
    /// Those that wait to be welcomed, oldest first.
    queued: BTreeSet<ConnectionId>,
    pub accounts: Accounts,
    last: u64,
}

impl Table {
    /// A name that was never used.
    pub fn next_id(&mut self) -> ConnectionId {
        self.last += 1;
        ConnectionId(self.last)
    }

    pub fn get(&self, id: ConnectionId) -> Option<&Connection> {
        self.rows.get(&id)
    }

    pub fn get_mut(&mut self, id: ConnectionId) -> Option<&mut Connection> {
        self.rows.get_mut(&id)
    }

    pub fn ids(&self) -> impl Iterator<Item = ConnectionId> + '_ {
        self.rows.keys().copied()
    }

    pub fn silent(&self) -> &BTreeSet<ConnectionId> {
        &self.silent
    }

    pub fn unpaid(&self) -> &BTreeSet<ConnectionId> {
        &self.unpaid
    }

    pub fn queued(&self) -> &BTreeSet<ConnectionId> {
        &self.queued
    }

    /// The oldest accepted connection of a user that has no place for a link.
    pub fn first_waiting(&self, user: User) -> Option<ConnectionId> {
        let waits = |c: &Connection| c.role == End::Server && c.who.uid == user && !c.has_link();
        self.rows.iter().find(|row| waits(row.1)).map(|row| *row.0)
    }

    pub fn user_of(&self, id: ConnectionId) -> Option<User> {
        self.rows.get(&id).map(|c| c.who.uid)
    }

    /// The first moment at which something is too late.
    pub fn first_deadline(&self) -> Option<(u64, ConnectionId)> {
        self.deadlines.first().copied()
    }

    /// When something of a connection will be too late; `None`: never.
    pub fn set_deadline(&mut self, id: ConnectionId, at_ns: Option<u64>) {
        let Some(c) = self.rows.get_mut(&id) else { return };
        if let Some(old) = c.deadline_ns.take() {
            self.deadlines.remove(&(old, id));
        }
        if let Some(at) = at_ns {
            c.deadline_ns = Some(at);
            self.deadlines.insert((at, id));
        }
    }

    /// A connection that was accepted, or that this process makes.
    pub fn enter(&mut self, id: ConnectionId, c: Connection) {
        if c.role == End::Server {
            self.accounts.of(c.who.uid).connections += 1;
        }
        if c.has_link() {
            // Only this process connects with a place for a link: nobody is charged for it.
            self.accounts.links += 1;
        }
        if matches!(c.stage, Stage::Silent) {
            self.accounts.of(c.who.uid).silent += 1;
            self.silent.insert(id);
        }
        self.rows.insert(id, c);
    }

    /// From one state on the way to a link to the next. A link is not left this way: anything but
    /// a connection on its way is an error of the caller's, and stays as it is.
    pub fn advance(&mut self, id: ConnectionId, to: Stage) {
        let Some(c) = self.rows.get_mut(&id) else { return };
        if matches!(c.stage, Stage::Linked(_) | Stage::Parting(_)) {
            debug_assert!(false, "a link is left by `leave` alone");
            return;
        }
        let of = (c.role, c.who.uid);
        let (had_link, was_unpaid) = (c.has_link(), c.is_unpaid());
        let old = core::mem::replace(&mut c.stage, to);
        let (has_link, is_unpaid) = (c.has_link(), c.is_unpaid());
        let is_queued = matches!(c.stage, Stage::Queued(_));
        let cookie = |stage: &Stage| match stage {
            Stage::Meeting(meeting) if c.role == End::Server => Some(meeting.cookie),
            _ => None,
        };
        let (old_cookie, new_cookie) = (cookie(&old), cookie(&c.stage));
        if let Some(cookie) = old_cookie {
            self.cookies.remove(&cookie);
        }
        if let Some(cookie) = new_cookie {
            self.cookies.insert(cookie, id);
        }
        self.note(id, of, (had_link, has_link), (was_unpaid, is_unpaid), is_queued);
    }

    fn note(
        &mut self,
        id: ConnectionId,
        (role, uid): (End, User),
        link: (bool, bool),
        unpaid: (bool, bool),
        is_queued: bool,
    ) {
        if self.silent.remove(&id) {
            self.accounts.of(uid).silent -= 1;
        }
        match is_queued {
            true => self.queued.insert(id),
            false => self.queued.remove(&id),
        };
        let own = u32::from(role == End::Server);
        match link {
            (false, true) => {
                self.accounts.of(uid).links += own;
                self.accounts.links += 1;
            }
            (true, false) => {
                self.accounts.of(uid).links -= own;
                self.accounts.links -= 1;
            }
            _ => {}
        }
        match unpaid {
            (false, true) => {
                self.accounts.of(uid).unpaid += 1;
                self.unpaid.insert(id);
            }
            (true, false) => {
                self.accounts.of(uid).unpaid -= 1;
                self.unpaid.remove(&id);
            }
            _ => {}
        }
    }

    /// The last step on the way to a link. Gives what was agreed.
    pub fn link(&mut self, id: ConnectionId, linked: Linked) -> Option<Box<Meeting>> {
        let c = self.rows.get_mut(&id)?;
        if !matches!(c.stage, Stage::Meeting(_)) {
            return None;
        }
        let (of, was_unpaid) = ((c.role, c.who.uid), c.is_unpaid());
        let old = core::mem::replace(&mut c.stage, Stage::Linked(Box::new(linked)));
        let Stage::Meeting(meeting) = old else { return None };
        c.features = meeting.features;
        // The cookie of a link that this process asked for is the other end's, who may say any.
        if c.role == End::Server {
            self.cookies.remove(&meeting.cookie);
        }
        self.note(id, of, (true, true), (was_unpaid, false), false);
        Some(meeting)
    }

    /// The socket of a link has ended, and its process may live.
    pub fn part(&mut self, id: ConnectionId) {
        let Some(c) = self.rows.get_mut(&id) else { return };
        // `Telling` is never seen: the state goes from one to the other within this call.
        c.stage = match core::mem::replace(&mut c.stage, Stage::Telling) {
            Stage::Linked(linked) => Stage::Parting(linked),
            other => other,
        };
    }

    /// Which connection is being agreed with this cookie.
    pub fn with_cookie(&self, cookie: &[u8; COOKIE_BYTES]) -> Option<ConnectionId> {
        self.cookies.get(cookie).copied()
    }

    /// Adds to the bytes that a user's links have mapped here, if there is room. What this process
    /// maps for links that it asked for is charged to nobody.
    pub fn charge(&mut self, id: ConnectionId, bytes: u64, bytes_max: u64) -> bool {
        let Some(c) = self.rows.get_mut(&id) else { return false };
        if c.role == End::Client {
            return true;
        }
        let account = self.accounts.of(c.who.uid);
        if account.bytes.saturating_add(bytes) > bytes_max {
            return false;
        }
        account.bytes += bytes;
        c.bytes += bytes;
        true
    }

    /// Gives bytes back that were charged.
    pub fn give_back(&mut self, id: ConnectionId, bytes: u64) {
        let Some(c) = self.rows.get_mut(&id) else { return };
        if c.role == End::Server {
            let bytes = bytes.min(c.bytes);
            c.bytes -= bytes;
            self.accounts.of(c.who.uid).bytes -= bytes;
        }
    }

    /// Counts an aperture that this process holds, or no longer holds, for a link's user.
    pub fn count_aperture(&mut self, id: ConnectionId, is_more: bool) {
        let Some(c) = self.rows.get(&id) else { return };
        let account = self.accounts.of(c.who.uid);
        account.apertures = match is_more {
            true => account.apertures + 1,
            false => account.apertures.saturating_sub(1),
        };
    }

    /// The one way out. Everything that the connection had taken is given back, and the report
    /// says what its application must hear.
    pub fn leave(&mut self, id: ConnectionId, why: Leave) -> Option<Left> {
        self.set_deadline(id, None);
        let c = self.rows.remove(&id)?;
        let uid = c.who.uid;
        self.note(id, (c.role, uid), (c.has_link(), false), (c.is_unpaid(), false), false);
        let account = self.accounts.of(uid);
        account.bytes -= c.bytes;
        if c.role == End::Server {
            account.connections -= 1;
        }
        if let Stage::Linked(linked) | Stage::Parting(linked) = &c.stage {
            account.apertures = account.apertures.saturating_sub(linked.apertures.held());
        }
        self.accounts.forget_if_empty(uid);
        if let Stage::Meeting(meeting) = &c.stage
            && c.role == End::Server
        {
            self.cookies.remove(&meeting.cookie);
        }
        let mut left = Left {
            report: Report::Nothing,
            was_silent: false,
            was_unpaid: c.is_unpaid(),
            was_half_way: false,
        };
        left.report = match (c.stage, why) {
            (_, Leave::Ours | Leave::Joined) => Report::Nothing,
            (Stage::Linked(_) | Stage::Parting(_), Leave::Theirs(reason)) => Report::Closed(reason),
            // A link can be refused nothing any more; what is left of it is a violation.
            (Stage::Linked(_) | Stage::Parting(_), Leave::Refused(..) | Leave::Failed(_)) => {
                Report::Closed(CloseReason::Violation)
            }
            (Stage::Silent, Leave::Theirs(_)) => {
                left.was_silent = true;
                Report::Nothing
            }
            (Stage::Asking(_), _) => {
                left.was_half_way = true;
                Report::RequestGone(RequestId(id.0))
            }
            (_, Leave::Failed(failure)) if c.role == End::Client => Report::ConnectFailed(failure),
            (_, Leave::Refused(reason, text)) if c.role == End::Client => {
                Report::ConnectFailed(Failure::Refused { reason, text })
            }
            (_, Leave::Theirs(_)) if c.role == End::Client => Report::ConnectFailed(Failure::Gone),
            (Stage::Meeting(meeting), _) => {
                left.was_half_way = true;
                meeting.request.map_or(Report::Nothing, Report::RequestGone)
            }
            (Stage::Queued(queued), _) => {
                left.was_half_way = true;
                queued.request.map_or(Report::Nothing, Report::RequestGone)
            }
            _ => Report::Nothing,
        };
        Some(left)
    }
}
