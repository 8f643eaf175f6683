//! The connections of a process and the states that they can be in.
//!
//! ```text
//!   accepted:   Silent --HELLO--> Queued --turn--> Checking --> (Following -->)
//!                  |                                  (Asking --yes-->) Meeting ------------> Linked
//!                  |  \--HELLO wake--> (joins the Meeting one with its cookie)                   |
//!                  |  \--HELLO stat--> Telling                                                   |
//!   connecting: Dialing --socket--> Greeting --WELCOME--> Meeting ---------------------------> Linked
//!                                                                                                |
//!                                                      end of its socket, without BYE: Parting <-+
//! ```
//! Only this module can change a state or take a connection out, and [`Table::leave`]
//! (`leaving.rs`) is its only way out: it gives back the places that were taken, and returns the
//! report for the application. So no link can end without its application hearing of it, and no
//! account can be forgotten. `receivers.rs` has the connections that wait for a receiver.
//!
//! Never: a connection is in no account.

mod apertures;
mod leaving;
mod receivers;
mod transfer;

pub(super) use apertures::{ApertureRow, LinkApertures, ROWS_MAX, WAITING_MAX};
pub(super) use leaving::{LeaveReason, Report};
pub(super) use transfer::Transfer;

use super::super::frame::{COOKIE_BYTES, Hello, LinkFeatures, LinkSide, Memory};
use super::account::{Accounts, User};
use super::queue::UserQueue;
use super::{ConnectionId, Peer, RequestId, Wait, Who};
use crate::wire::NodeId;
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::string::String;
use alloc::vec::Vec;

/// A link that is being agreed: the rings travel, the second connection joins.
#[derive(Debug)]
pub(super) struct LinkMeeting {
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

impl LinkMeeting {
    /// Whether both rings and the second connection are there.
    pub fn is_whole(&self) -> bool {
        self.has_wake && self.rings.iter().all(|ring| *ring == Transfer::Held)
    }
}

/// A link.
#[derive(Debug)]
pub(super) struct Linked {
    /// The bulk rings that the client and the server write.
    pub bulk: [Transfer; 2],
    pub apertures: LinkApertures,
}

/// How far a connection has come.
#[derive(Debug)]
pub(super) enum ConnectionStage {
    /// Accepted; it has not sent anything yet.
    Silent,
    /// It waits until others of its user have paid for their memory. Nothing that it sent has been
    /// checked.
    Queued(Box<Hello>),
    /// Its turn has come: its credential is being verified.
    Checking(Box<Hello>),
    /// Its credential is its own. Links of the same node may still hold frames, perhaps their
    /// goodbye, that a receiver has yet to hand on: those come first.
    Following(Box<Hello>, BTreeSet<ConnectionId>),
    /// The application has been asked.
    Asking(Box<Hello>),
    /// This process is connecting, and then sends this.
    Dialing(Vec<u8>),
    /// This process has connected and said HELLO.
    Greeting,
    /// Agreed; the memory travels.
    Meeting(Box<LinkMeeting>),
    /// A link.
    Linked(Box<Linked>),
    /// Its socket ended; whether its process did is not yet known.
    Parting(Box<Linked>),
    /// Statistics are being sent; then it ends.
    Telling,
}

/// One connection.
#[derive(Debug)]
pub(super) struct TableConnection {
    /// This process's end of the connection.
    pub role: LinkSide,
    pub who: Who,
    pub service: String,
    /// The listener; 0 for a connection that this process made.
    pub listener: u64,
    pub peer_node: NodeId,
    /// Whether the other end has proved that it is its node.
    pub is_proved: bool,
    /// The number that only its process has, if the kernel tells it.
    pub process: Option<u64>,
    /// Pairs the two connections of a link that this process accepted.
    pub cookie: [u8; COOKIE_BYTES],
    /// The memory that a receiver waits for.
    pub window: Option<Memory>,
    /// A receiver reads its socket, and should have ended soon after this time. Other descriptors
    /// in its queue may stop it, even after it has reported its result.
    receiving_until_ns: Option<u64>,
    /// Its process has died; the frames that it had sent are still being read.
    pub is_dead: bool,
    /// The number of refused requests beyond those granted.
    pub refused: u32,
    stage: ConnectionStage,
    features: LinkFeatures,
    /// The node that has to be at the other end, proved; `None`: any.
    pub expected: Option<Box<NodeId>>,
    /// Whether to wait for a server of the name, if there is none yet.
    pub wait: Wait,
    /// Pause before the next try to connect.
    pub pause_ns: u64,
    deadline_ns: Option<u64>,
    /// Bytes charged to its user.
    bytes: u64,
    /// The number of the last event that handed memory of this link's to the application; 0: none.
    handed: u64,
}

/// The accounts and lists in which a connection counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Marks {
    /// Accepted by this process, so that it counts to its user.
    is_accepted: bool,
    is_silent: bool,
    is_queued: bool,
    is_unpaid: bool,
    has_link: bool,
}

impl Marks {
    fn is_waiting(self) -> bool {
        self.is_accepted && !self.has_link
    }
}

impl TableConnection {
    pub fn new(
        role: LinkSide,
        who: Who,
        service: String,
        listener: u64,
        stage: ConnectionStage,
    ) -> Self {
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
            expected: None,
            wait: Wait::No,
            pause_ns: 0,
            deadline_ns: None,
            bytes: 0,
            handed: 0,
        }
    }

    pub fn stage(&self) -> &ConnectionStage {
        &self.stage
    }

    /// The time limit for becoming a link.
    pub fn deadline_ns(&self) -> Option<u64> {
        self.deadline_ns
    }

    pub fn features(&self) -> LinkFeatures {
        self.features
    }

    /// Its HELLO, until it is welcomed.
    pub fn hello(&self) -> Option<&Hello> {
        match &self.stage {
            ConnectionStage::Queued(hello)
            | ConnectionStage::Checking(hello)
            | ConnectionStage::Following(hello, _)
            | ConnectionStage::Asking(hello) => Some(hello),
            _ => None,
        }
    }

    /// The time by which its receiver should have ended; `None`: none runs.
    pub fn receiving_until_ns(&self) -> Option<u64> {
        self.receiving_until_ns
    }

    pub fn meeting(&mut self) -> Option<&mut LinkMeeting> {
        match &mut self.stage {
            ConnectionStage::Meeting(meeting) => Some(meeting),
            _ => None,
        }
    }

    pub fn linked(&mut self) -> Option<&mut Linked> {
        match &mut self.stage {
            ConnectionStage::Linked(linked) => Some(linked),
            _ => None,
        }
    }

    pub fn is_linked(&self) -> bool {
        matches!(self.stage, ConnectionStage::Linked(_))
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
            host: None,
        }
    }

    fn marks(&self) -> Marks {
        let is_accepted = self.role == LinkSide::Server;
        let marks = Marks { is_accepted, ..Marks::default() };
        match self.stage {
            ConnectionStage::Silent => Marks { is_silent: true, ..marks },
            ConnectionStage::Queued(_) => Marks { is_queued: true, ..marks },
            ConnectionStage::Checking(_)
            | ConnectionStage::Following(..)
            | ConnectionStage::Asking(_) => Marks { is_unpaid: is_accepted, ..marks },
            ConnectionStage::Meeting(_) => {
                Marks { is_unpaid: is_accepted, has_link: true, ..marks }
            }
            ConnectionStage::Dialing(_) | ConnectionStage::Greeting => {
                Marks { has_link: true, ..marks }
            }
            ConnectionStage::Linked(_) | ConnectionStage::Parting(_) => {
                Marks { has_link: true, ..marks }
            }
            ConnectionStage::Telling => marks,
        }
    }
}

/// Memory of one connection that waits for a receiver, with the order of the request among those of
/// all connections.
type WantedMemory = VecDeque<(u64, Memory)>;

/// Connections with their users: those of one user are found together, oldest first.
type ByUser = BTreeSet<(User, ConnectionId)>;

/// The remains of a link that has ended, until the application has taken its events.
#[derive(Debug)]
struct LinkRemains {
    id: ConnectionId,
    user: User,
    marks: Marks,
    bytes: u64,
    apertures: u32,
}

/// All connections, and the accounts of their users.
#[derive(Debug)]
pub(super) struct Table {
    rows: BTreeMap<ConnectionId, TableConnection>,
    deadlines: BTreeSet<(u64, ConnectionId)>,
    cookies: BTreeMap<[u8; COOKIE_BYTES], ConnectionId>,
    /// Those that have sent nothing.
    silent: ByUser,
    /// Those that have been heard and have yet to pay.
    unpaid: ByUser,
    /// Those that were accepted and have no place for a link.
    waiting: ByUser,
    /// Those that wait to be heard.
    queued: UserQueue<ConnectionId>,
    /// Those that want a receiver and have none, by the order of their requests.
    wanting: UserQueue<(u64, ConnectionId)>,
    /// Those whose sockets are read by receivers, or have ended: more frames may come from them
    /// soon.
    unsettled: BTreeSet<ConnectionId>,
    /// Those in `Following`.
    following: BTreeSet<ConnectionId>,
    /// The memory for which each connection wants a receiver.
    wants: BTreeMap<ConnectionId, WantedMemory>,
    wanted: u64,
    /// Remains of ended links, by the number of the event that the application has yet to take.
    remains: BTreeMap<u64, LinkRemains>,
    /// The number of events so far; `taken` of them the application has taken.
    told: u64,
    taken: u64,
    pub accounts: Accounts,
    last: u64,
}

impl Table {
    /// Of one user, at most so many connections may have yet to pay, and at most so many receivers
    /// run.
    pub fn new(unpaid_per_user_max: u32, receivers_per_user_max: u32) -> Self {
        Self {
            rows: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            cookies: BTreeMap::new(),
            silent: ByUser::new(),
            unpaid: ByUser::new(),
            waiting: ByUser::new(),
            queued: UserQueue::new(unpaid_per_user_max),
            wanting: UserQueue::new(receivers_per_user_max),
            unsettled: BTreeSet::new(),
            following: BTreeSet::new(),
            wants: BTreeMap::new(),
            wanted: 0,
            remains: BTreeMap::new(),
            told: 0,
            taken: 0,
            accounts: Accounts::default(),
            last: 0,
        }
    }

    /// A name that was never used.
    pub fn next_id(&mut self) -> ConnectionId {
        self.last += 1;
        ConnectionId(self.last)
    }

    pub fn get(&self, id: ConnectionId) -> Option<&TableConnection> {
        self.rows.get(&id)
    }

    pub fn get_mut(&mut self, id: ConnectionId) -> Option<&mut TableConnection> {
        self.rows.get_mut(&id)
    }

    pub fn ids(&self) -> impl Iterator<Item = ConnectionId> + '_ {
        self.rows.keys().copied()
    }

    /// The number of connections that have sent nothing.
    pub fn silent(&self) -> usize {
        self.silent.len()
    }

    /// The number of connections that have been heard and have yet to pay.
    pub fn unpaid(&self) -> usize {
        self.unpaid.len()
    }

    /// The number of ended links whose events the application has yet to take.
    pub fn ended(&self) -> usize {
        self.remains.len()
    }

    /// The connection to be heard next, and its user; skips users with the maximum of unpaid
    /// connections.
    pub fn first_queued(&self) -> Option<(User, ConnectionId)> {
        self.queued.first()
    }

    /// The connection to get the next receiver, likewise.
    pub fn first_wanting(&self) -> Option<(User, ConnectionId)> {
        self.wanting.first().map(|(user, (_, id))| (user, id))
    }

    /// The oldest silent connection of a user.
    pub fn first_silent(&self, user: User) -> Option<ConnectionId> {
        first_of(&self.silent, user)
    }

    /// The oldest unpaid connection of a user.
    pub fn first_unpaid(&self, user: User) -> Option<ConnectionId> {
        first_of(&self.unpaid, user)
    }

    /// The oldest accepted connection of a user that has no place for a link.
    pub fn first_waiting(&self, user: User) -> Option<ConnectionId> {
        first_of(&self.waiting, user)
    }

    pub fn user_of(&self, id: ConnectionId) -> Option<User> {
        self.rows.get(&id).map(|c| c.who.uid)
    }

    /// The earliest deadline, and its connection.
    pub fn first_deadline(&self) -> Option<(u64, ConnectionId)> {
        self.deadlines.first().copied()
    }

    /// Sets the deadline of a connection; `None`: it has none.
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
    pub fn enter(&mut self, id: ConnectionId, c: TableConnection) {
        // Only this process's own connections enter with a place for a link: no user is charged for
        // it.
        self.note(id, c.who.uid, Marks::default(), c.marks());
        self.rows.insert(id, c);
    }

    /// Moves a connection on its way to a link to the next state. A link is not left this way: for
    /// any other connection the call is an error of the caller's, and changes nothing.
    pub fn advance(&mut self, id: ConnectionId, to: ConnectionStage) {
        let Some(c) = self.rows.get_mut(&id) else { return };
        if matches!(c.stage, ConnectionStage::Linked(_) | ConnectionStage::Parting(_)) {
            debug_assert!(false, "a link is left by `leave` alone");
            return;
        }
        let (user, before) = (c.who.uid, c.marks());
        let old = core::mem::replace(&mut c.stage, to);
        let after = c.marks();
        let cookie = |stage: &ConnectionStage| match stage {
            ConnectionStage::Meeting(meeting) if c.role == LinkSide::Server => Some(meeting.cookie),
            _ => None,
        };
        let (old_cookie, new_cookie) = (cookie(&old), cookie(&c.stage));
        if let Some(cookie) = old_cookie {
            self.cookies.remove(&cookie);
        }
        if let Some(cookie) = new_cookie {
            self.cookies.insert(cookie, id);
        }
        match matches!(c.stage, ConnectionStage::Following(..)) {
            true => drop(self.following.insert(id)),
            false => drop(self.following.remove(&id)),
        }
        self.note(id, user, before, after);
    }

    /// The lists and accounts in which a connection counts have changed: the one place that updates
    /// them.
    fn note(&mut self, id: ConnectionId, user: User, before: Marks, after: Marks) {
        let lists = [
            (&mut self.silent, before.is_silent, after.is_silent),
            (&mut self.unpaid, before.is_unpaid, after.is_unpaid),
            (&mut self.waiting, before.is_waiting(), after.is_waiting()),
        ];
        for (list, was, is) in lists {
            match (was, is) {
                (false, true) => drop(list.insert((user, id))),
                (true, false) => drop(list.remove(&(user, id))),
                _ => {}
            }
        }
        match (before.is_queued, after.is_queued) {
            (false, true) => self.queued.put(user, id),
            (true, false) => self.queued.remove(user, id),
            _ => {}
        }
        let count = |of: &mut u32, was: bool, is: bool| *of = *of + u32::from(is) - u32::from(was);
        count(&mut self.accounts.links, before.has_link, after.has_link);
        if before.is_accepted || after.is_accepted {
            self.accounts.change(user, |account| {
                count(&mut account.connections, before.is_accepted, after.is_accepted);
                count(&mut account.silent, before.is_silent, after.is_silent);
                count(&mut account.unpaid, before.is_unpaid, after.is_unpaid);
                count(&mut account.links, before.has_link, after.has_link);
            });
            self.queued.set_taken(user, self.accounts.get(user).unpaid);
        }
    }

    /// The last step on the way to a link. Returns the terms that were agreed.
    pub fn link(&mut self, id: ConnectionId, linked: Linked) -> Option<Box<LinkMeeting>> {
        let c = self.rows.get_mut(&id)?;
        if !matches!(c.stage, ConnectionStage::Meeting(_)) {
            return None;
        }
        let (user, before) = (c.who.uid, c.marks());
        let old = core::mem::replace(&mut c.stage, ConnectionStage::Linked(Box::new(linked)));
        let ConnectionStage::Meeting(meeting) = old else { return None };
        c.features = meeting.features;
        let after = c.marks();
        // The cookie of a link that this process asked for is the other end's choice, and may be
        // any value.
        if c.role == LinkSide::Server {
            self.cookies.remove(&meeting.cookie);
        }
        self.note(id, user, before, after);
        Some(meeting)
    }

    /// The socket of a link has ended, and its process may live.
    pub fn part(&mut self, id: ConnectionId) {
        let Some(c) = self.rows.get_mut(&id) else { return };
        // `Telling` is never seen: the state goes from one to the other within this call.
        c.stage = match core::mem::replace(&mut c.stage, ConnectionStage::Telling) {
            ConnectionStage::Linked(linked) => ConnectionStage::Parting(linked),
            other => other,
        };
        self.unsettled.insert(id);
    }

    /// The links of a node, with proved identity, of which more may be known soon; and for each
    /// whether its socket has ended, so that only the cause is unknown.
    pub fn unsettled(&self, node: NodeId) -> impl Iterator<Item = (ConnectionId, bool)> {
        self.unsettled.iter().filter_map(move |id| {
            let c = self.rows.get(id).filter(|c| c.is_proved && c.peer_node == node)?;
            match c.stage {
                ConnectionStage::Linked(_) => Some((*id, false)),
                ConnectionStage::Parting(_) => Some((*id, true)),
                _ => None,
            }
        })
    }

    /// A receiver has read everything that came over a link, or the link is gone: returns the
    /// connections that waited for nothing else.
    pub fn followed(&mut self, link: ConnectionId) -> Vec<ConnectionId> {
        let mut followed = Vec::new();
        for id in &self.following {
            if let Some(ConnectionStage::Following(_, links)) =
                self.rows.get_mut(id).map(|c| &mut c.stage)
            {
                links.remove(&link);
                if links.is_empty() {
                    followed.push(*id);
                }
            }
        }
        followed
    }

    /// The connection in `Meeting` that has this cookie.
    pub fn with_cookie(&self, cookie: &[u8; COOKIE_BYTES]) -> Option<ConnectionId> {
        self.cookies.get(cookie).copied()
    }

    /// Adds to the bytes that a user's links have mapped here, if there is room. Bytes that this
    /// process maps for links that it asked for are charged to no user.
    pub fn charge(&mut self, id: ConnectionId, bytes: u64, bytes_max: u64) -> bool {
        let Some(c) = self.rows.get_mut(&id) else { return false };
        if c.role == LinkSide::Client {
            return true;
        }
        if self.accounts.get(c.who.uid).bytes.saturating_add(bytes) > bytes_max {
            return false;
        }
        self.accounts.change(c.who.uid, |account| account.bytes += bytes);
        c.bytes += bytes;
        true
    }

    /// Gives bytes back that were charged.
    pub fn give_back(&mut self, id: ConnectionId, bytes: u64) {
        let Some(c) = self.rows.get_mut(&id) else { return };
        if c.role == LinkSide::Server {
            let bytes = bytes.min(c.bytes);
            c.bytes -= bytes;
            self.accounts.change(c.who.uid, |account| account.bytes -= bytes);
        }
    }

    /// Counts an aperture that this process holds, or no longer holds, for a link's user.
    pub fn count_aperture(&mut self, id: ConnectionId, is_more: bool) {
        let Some(c) = self.rows.get(&id) else { return };
        self.accounts.change(c.who.uid, |account| {
            account.apertures = match is_more {
                true => account.apertures + 1,
                false => account.apertures.saturating_sub(1),
            };
        });
    }
}

fn first_of(list: &ByUser, user: User) -> Option<ConnectionId> {
    let all = (user, ConnectionId(0))..=(user, ConnectionId(u64::MAX));
    list.range(all).next().map(|row| row.1)
}
