//! The control plane as a state machine: it decides who may connect, the terms of a link, which
//! memory travels, and when a link ends. It has no I/O, no thread and no clock: its driver reports
//! each event and its time, and performs the [`Action`]s that the machine asks for, in their order.
//!
//! ```text
//!   inputs                                                 actions
//!   accepted, connected, handle_frame, handle_hang_up  ->  Send, Close, Watch
//!   made, taken, touched, verified                     ->  Make, Pass, Take, Touch, Verify
//!   calls of the application, handle_timeout           ->  Tell
//!   events_taken: the application has taken events
//! ```
//! - `interface.rs`: its inputs, actions and events
//! - `table/`: the connections and their states; the one way out of them
//! - `account.rs`: each user's use of places and bytes
//! - `queue.rs`: connections that wait for something of which each user has a maximum, and their
//!   turns
//! - `meeting.rs`: the way from the first frame to a link, at both ends
//! - `memory.rs`: memory that travels: rings, bulk rings, apertures
//! - `aperture.rs`: apertures of a link
//! - `counters.rs`: the counters
//!
//! A hang-up is not death: a forked child keeps the socket open when its parent has died, and a
//! living process may close its socket. So the process itself is watched, too, and the frames that
//! its socket still holds are read before its death is reported.
//!
//! A stranger wrote every byte of a frame. Never: a frame makes this panic, loop, or keep more than
//! the quotas of [`MachineLimits`] allow its user.

mod account;
mod aperture;
mod counters;
mod interface;
mod meeting;
mod memory;
mod queue;
mod table;

pub use aperture::ApertureError;
pub use counters::Counters;
pub use interface::{
    Accept, AcceptError, Action, Admission, AgreedLink, ChargedPlaces, ConnectFailure,
    ConnectionId, Expected, HostPeer, LinkEnd, MachineEvent, MachineLimits, MemoryOutcome, NotNow,
    Peer, PeerUser, RefusedBy, RequestId, ServiceId, Touched, UnknownUsers, Wait, Who,
};
pub use meeting::Verdict;

use super::FRAME_TEXT_MAX;
use super::frame::{
    COOKIE_BYTES, Frame, FrameError, LinkSide, REFUSED_TEXT_MAX, Reason, VERSION_MAJOR,
    VERSION_MINOR,
};
use account::{Rank, User};
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use table::{ConnectionStage, LeaveReason, Report, Table, TableConnection};

#[derive(Debug)]
struct ServedName {
    name: String,
    admission: Admission,
    accept: Accept,
    /// The user who took the name: this user's own processes are let in.
    user: u32,
    /// The time until which it accepts no connection.
    rests_until_ns: Option<u64>,
}

/// Time that the kernel may take from closing a dying process's socket to reporting its death.
const PARTING_NS: u64 = 500_000_000;
/// The text for a client that is refused for that reason.
const MEMORY_LATE: &str =
    "the link's memory was not there in time (handshake_timeout_ms); another attempt may do";

/// Pause of a listener when there are no descriptors left.
const REST_NS: u64 = 50_000_000;

/// Most refused requests of one link beyond those granted, before it counts as a nuisance.
const REFUSED_MAX: u32 = 1024;

/// The control plane of one process. See the [module](self).
#[derive(Debug)]
pub struct Machine {
    limits: MachineLimits,
    services: BTreeMap<ServiceId, ServedName>,
    table: Table,
    actions: VecDeque<Action>,
    counters: Counters,
    /// The time of the last call.
    now_ns: u64,
    /// An unpaid connection has left: others may be heard.
    has_room: bool,
    looked_at: u64,
}

impl Machine {
    /// A machine without connections.
    pub fn new(limits: MachineLimits) -> Self {
        let table = Table::new(limits.unpaid_per_user_max, limits.receivers_per_user_max);
        Self {
            limits,
            services: BTreeMap::new(),
            table,
            actions: VecDeque::new(),
            counters: Counters::default(),
            now_ns: 0,
            has_room: false,
            looked_at: 0,
        }
    }

    /// The next action. Call this after each other call, until it returns `None`.
    pub fn poll_action(&mut self) -> Option<Action> {
        loop {
            if let Some(action) = self.actions.pop_front() {
                return Some(action);
            }
            if !core::mem::take(&mut self.has_room) {
                return None;
            }
            self.hear_some(self.now_ns);
        }
    }

    /// The counters.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The places and bytes in use now.
    pub fn places(&self) -> ChargedPlaces {
        let (users, accounts) = (self.table.accounts.users(), &self.table.accounts);
        ChargedPlaces {
            connections: self.table.ids().count(),
            links: accounts.links,
            ended: self.table.ended(),
            users,
            bytes_of_one_user: accounts.bytes_of_one_user(),
            receivers: accounts.receivers,
            windows: self.table.wants(),
        }
    }

    /// The number of waiting connections (for their turn, for a receiver) that have been examined
    /// since the start: in each step, as many as can go on, and one more. The rest of a step
    /// concerns one connection.
    pub fn looked_at(&self) -> u64 {
        self.looked_at
    }

    /// The identity, features and limits of this process.
    pub fn limits(&self) -> &MachineLimits {
        &self.limits
    }

    /// The time at which [`handle_timeout`](Self::handle_timeout) must be called.
    pub fn deadline_ns(&self) -> Option<u64> {
        let rests = self.services.values().filter_map(|service| service.rests_until_ns).min();
        let first = self.table.first_deadline().map(|first| first.0);
        [rests, first].into_iter().flatten().min()
    }

    fn act(&mut self, action: Action) {
        self.actions.push_back(action);
    }

    fn tell(&mut self, event: MachineEvent) {
        self.table.tell(&event);
        self.actions.push_back(Action::Tell(event));
    }

    fn send(&mut self, to: ConnectionId, frame: Frame) {
        self.actions.push_back(Action::Send { to, frame });
    }

    fn step_deadline(&self, now_ns: u64) -> Option<u64> {
        Some(now_ns.saturating_add(self.limits.step_timeout_ns))
    }

    // ---- calls of the application

    /// The application has taken the first `count` events, with the memory and descriptors that
    /// they hand over. Until then links that have ended, and their memory, count to their users.
    pub fn events_taken(&mut self, count: u64) {
        self.table.events_taken(count);
    }

    /// Sets the current user of this process: a program may change it at any time. Names that it
    /// serves already keep the user who took them.
    pub fn user_is(&mut self, uid: u32) {
        self.limits.uid = uid;
    }

    /// Serves a name, by a listener whose connections go to [`accepted`](Self::accepted).
    pub fn serve(&mut self, name: String, admission: Admission, accept: Accept) -> ServiceId {
        let id = ServiceId(self.table.next_id().0);
        let user = self.limits.uid;
        let service = ServedName { name, admission, accept, user, rests_until_ns: None };
        self.services.insert(id, service);
        id
    }

    /// No longer serves a name; its links stay.
    pub fn stop_serving(&mut self, name: &str) -> Vec<ServiceId> {
        let is_it = |row: (&ServiceId, &ServedName)| (row.1.name == name).then_some(*row.0);
        let found: Vec<ServiceId> = self.services.iter().filter_map(is_it).collect();
        for id in &found {
            self.services.remove(id);
        }
        found
    }

    /// Ends a link with a goodbye; the other end can still read everything that was written.
    pub fn close(&mut self, link: ConnectionId) {
        self.end(link, Some(Frame::Bye));
    }

    /// Ends a link without a goodbye, because not everything has been written; the other end can
    /// still read everything that was.
    pub fn hang_up(&mut self, link: ConnectionId) {
        self.end(link, None);
    }

    /// Ends a link whose other end wrote something that no honest process writes.
    pub fn violated(&mut self, link: ConnectionId) {
        self.counters.closed_by_us_violation += 1;
        let text = "the ring held what no honest process writes";
        self.end(link, Some(refusal(Reason::Malformed, text)));
    }

    /// Ends a link whose other end does not keep up with the packets sent to it.
    pub fn too_slow(&mut self, link: ConnectionId) {
        self.end(link, Some(refusal(Reason::TooSlow, "it did not take what it was sent")));
    }

    fn end(&mut self, link: ConnectionId, last: Option<Frame>) {
        if let Some(c) = self.table.get(link)
            && matches!(c.stage(), ConnectionStage::Linked(_) | ConnectionStage::Parting(_))
        {
            self.leave(link, LeaveReason::Ours, last);
        }
    }

    /// Gives up a connection that this process is making.
    pub fn give_up(&mut self, id: ConnectionId) {
        if let Some(c) = self.table.get(id)
            && c.role == LinkSide::Client
            && !matches!(c.stage(), ConnectionStage::Linked(_) | ConnectionStage::Parting(_))
        {
            self.leave(id, LeaveReason::Ours, Some(Frame::Bye));
        }
    }

    /// Ends everything: a goodbye to each link, a refusal to each other.
    pub fn end_all(&mut self) {
        let ids: Vec<ConnectionId> = self.table.ids().collect();
        for id in ids {
            let is_linked = self.table.get(id).is_some_and(TableConnection::is_linked);
            let no = || refusal(Reason::Ending, "the process is ending");
            let last = if is_linked { Frame::Bye } else { no() };
            self.leave(id, LeaveReason::Ours, Some(last));
        }
        self.services.clear();
    }

    /// This process cannot go on, for this reason. Each link ends without a goodbye, since no
    /// process would notice the death of its other end; connections that were begun fail; waiting
    /// callers get an error.
    pub fn fail_all(&mut self, why: &str) {
        let ids: Vec<ConnectionId> = self.table.ids().collect();
        for id in ids {
            let Some(c) = self.table.get(id) else { continue };
            let (leave, last) = match (c.role, c.stage()) {
                (_, ConnectionStage::Linked(_) | ConnectionStage::Parting(_)) => {
                    (LeaveReason::Theirs(LinkEnd::Unwatched), None)
                }
                (LinkSide::Client, _) => {
                    (LeaveReason::Failed(ConnectFailure::Unavailable(why.into())), None)
                }
                (LinkSide::Server, _) => (
                    LeaveReason::Refused(Reason::Unavailable, why.into()),
                    Some(refusal(Reason::Unavailable, "the process cannot go on")),
                ),
            };
            self.leave(id, leave, last);
        }
        self.services.clear();
    }

    /// Tells the other end that its packets were refused because a ticket has been revoked.
    pub fn tell_stale(&mut self, link: ConnectionId, slot: u32, index: u32) {
        if self.table.get(link).is_some_and(TableConnection::is_linked) {
            self.send(link, Frame::TicketRevoked { slot, index });
        }
    }

    /// The statistics that a client asked for, as text.
    pub fn tell_statistics(&mut self, id: ConnectionId, text: &str, outbox_max: usize) {
        let Some(c) = self.table.get(id) else { return };
        if !matches!(c.stage(), ConnectionStage::Telling) {
            return;
        }
        self.counters.statistics += 1;
        // The part beyond the outbox's limit is cut; a megabyte of counters fits.
        let bytes = text.as_bytes();
        let bytes = &bytes[..bytes.len().min(FRAME_TEXT_MAX * (outbox_max - 1))];
        let mut chunks = bytes.chunks(FRAME_TEXT_MAX).peekable();
        loop {
            let text = chunks.next().unwrap_or_default().to_vec();
            let is_last = chunks.peek().is_none();
            self.send(id, Frame::StatText { text, is_last });
            if is_last {
                break;
            }
        }
    }

    /// Every frame for a connection has been sent.
    pub fn sent_all(&mut self, id: ConnectionId) {
        // Before the answer is there, nothing has been sent; then the connection has a deadline
        // and stays.
        if self.table.get(id).is_some_and(|c| matches!(c.stage(), ConnectionStage::Telling)) {
            self.leave(id, LeaveReason::Ours, None);
        }
    }

    // ---- inputs from outside

    /// A listener has a new connection, from `who`; `cookie` is random. An error is the last frame
    /// to it: there is no place for it.
    pub fn accepted(
        &mut self,
        now_ns: u64,
        service: ServiceId,
        who: Who,
        cookie: [u8; COOKIE_BYTES],
    ) -> Result<ConnectionId, Box<Frame>> {
        self.now_ns = now_ns;
        self.counters.connections += 1;
        let Some(name) = self.services.get(&service).map(|service| service.name.clone()) else {
            let text = "the name is no longer served";
            return Err(Box::new(refusal(Reason::Ending, text)));
        };
        let max = self.limits.connections_per_user_max;
        if self.table.accounts.get(who.uid).connections >= max {
            self.counters.refused_connections += 1;
            let text = format!("{max} connections, which is connections_per_user_max");
            return Err(Box::new(refusal(Reason::Connections, &text)));
        }
        if self.table.silent() >= self.limits.half_open_max as usize {
            self.drop_silent();
        }
        if self.table.accounts.waiting() >= self.limits.waiting_max {
            self.drop_waiting();
        }
        let id = self.table.next_id();
        let mut c =
            TableConnection::new(LinkSide::Server, who, name, service.0, ConnectionStage::Silent);
        c.cookie = cookie;
        self.table.enter(id, c);
        self.table.set_deadline(id, self.step_deadline(now_ns));
        Ok(id)
    }

    /// A listener could not accept: no descriptors, no memory, or an application that takes no
    /// events. It rests, or it would be ready all the time.
    pub fn exhausted(&mut self, now_ns: u64, service: ServiceId) {
        if let Some(row) = self.services.get_mut(&service) {
            self.counters.rests += 1;
            row.rests_until_ns = Some(now_ns.saturating_add(REST_NS));
            self.act(Action::Rest { service, is_resting: true });
        }
    }

    /// A connection was accepted and could not be watched.
    pub fn dropped(&mut self, id: ConnectionId) {
        self.counters.refused_exhausted += 1;
        let why = LeaveReason::Failed(ConnectFailure::Unavailable(
            "the socket could not be watched".into(),
        ));
        self.leave(id, why, None);
    }

    /// Drops the oldest silent connection of the user who has most of them: a user who floods loses
    /// only connections of its own.
    fn drop_silent(&mut self) {
        let most = self.table.accounts.most(Rank::Silent);
        if let Some(id) = most.and_then(|user| self.table.first_silent(user)) {
            self.counters.refused_half_open += 1;
            self.refuse(id, Reason::Connections, "too many connections said nothing yet");
        }
    }

    /// The same for connections that have no place for a link: each costs descriptors.
    fn drop_waiting(&mut self) {
        let most = self.table.accounts.most(Rank::Waiting);
        let Some(id) = most.and_then(|user| self.table.first_waiting(user)) else { return };
        self.counters.refused_half_open += 1;
        self.refuse(
            id,
            Reason::Connections,
            "too many connections have no place yet (half_open_max, or its limit on descriptors)",
        );
    }

    /// A frame has come. `descriptors`: descriptors came with it, which is not allowed.
    pub fn handle_frame(
        &mut self,
        now_ns: u64,
        id: ConnectionId,
        frame: Result<Frame, FrameError>,
        has_descriptors: bool,
    ) {
        self.now_ns = now_ns;
        let Some(c) = self.table.get(id) else { return };
        if has_descriptors {
            self.counters.refused_descriptor += 1;
            return self.misbehaved(id, "descriptors are not accepted here");
        }
        if matches!(c.stage(), ConnectionStage::Telling | ConnectionStage::Parting(_)) {
            return;
        }
        match (frame, c.role) {
            (Ok(frame), _) => self.handle_known_frame(now_ns, id, frame),
            // Only a client that has no answer with a version yet may have another one.
            (Err(FrameError::Version { major, minor }), LinkSide::Server)
                if matches!(c.stage(), ConnectionStage::Silent) =>
            {
                self.counters.refused_version += 1;
                let text = format!(
                    "this process speaks version {VERSION_MAJOR}.{VERSION_MINOR}, and not \
                     {major}.{minor}"
                );
                self.refuse(id, Reason::Version, &text);
            }
            (Err(e), _) => {
                self.counters.refused_frame += 1;
                self.misbehaved(id, &format!("a frame made no sense: {e}"));
            }
        }
    }

    fn handle_known_frame(&mut self, now_ns: u64, id: ConnectionId, frame: Frame) {
        let Some(c) = self.table.get(id) else { return };
        match (c.stage(), frame) {
            (ConnectionStage::Silent, Frame::Hello(hello)) => self.greeted(now_ns, id, hello),
            (ConnectionStage::Greeting, Frame::Welcome(welcome)) => {
                self.welcomed(now_ns, id, welcome)
            }
            (ConnectionStage::Meeting(_), Frame::Ready) => self.ready(now_ns, id),
            (_, Frame::Refused { reason, version, text }) if c.role == LinkSide::Client => {
                self.told_no(id, reason, version, text);
            }
            (
                ConnectionStage::Linked(_) | ConnectionStage::Meeting(_),
                Frame::Refused { reason, .. },
            ) => {
                self.gone(id, sent_away(reason));
            }
            // A client that changes its mind on the way, too.
            (
                ConnectionStage::Linked(_)
                | ConnectionStage::Queued(_)
                | ConnectionStage::Checking(_)
                | ConnectionStage::Following(..)
                | ConnectionStage::Asking(_)
                | ConnectionStage::Meeting(_),
                Frame::Bye,
            ) => self.gone(id, LinkEnd::Graceful),
            (
                ConnectionStage::Meeting(_) | ConnectionStage::Linked(_),
                Frame::Memory { memory, word },
            ) => {
                self.handle_memory(now_ns, id, memory, word);
            }
            (ConnectionStage::Linked(_), Frame::ApertureRevoked { number }) => {
                self.handle_aperture_revoked(id, number);
            }
            (ConnectionStage::Linked(_), Frame::ApertureReleased { number }) => {
                self.handle_aperture_released(id, number);
            }
            (ConnectionStage::Linked(_), Frame::TicketRevoked { slot, index }) => {
                self.tell(MachineEvent::TicketRevoked { link: id, slot, index });
            }
            _ => self.out_of_turn(id),
        }
    }

    /// Its socket has ended. `is_dead`: whether its process has died; `None`: unknown.
    pub fn handle_hang_up(&mut self, now_ns: u64, id: ConnectionId, is_dead: Option<bool>) {
        self.now_ns = now_ns;
        let Some(c) = self.table.get_mut(id) else { return };
        // The memory that its receiver waited for will not come.
        c.window = None;
        match (c.stage(), if c.is_dead { Some(true) } else { is_dead }) {
            (ConnectionStage::Linked(_), Some(false)) => {
                self.table.part(id);
                self.table.set_deadline(id, Some(now_ns.saturating_add(PARTING_NS)));
            }
            (ConnectionStage::Linked(_), Some(_)) => self.gone(id, LinkEnd::Died),
            (ConnectionStage::Parting(_), _) => {}
            _ => self.gone(id, LinkEnd::HungUp),
        }
    }

    /// Its process has died, and every frame that it had sent has been handed in.
    pub fn handle_death(&mut self, id: ConnectionId) {
        let Some(c) = self.table.get_mut(id) else { return };
        c.is_dead = true;
        // If a receiver runs, its last words come through it, and it ends soon.
        if c.receiving_until_ns().is_none() {
            self.gone(id, LinkEnd::Died);
        }
    }

    /// It sends requests, and does not read the answers.
    pub fn handle_overflow(&mut self, id: ConnectionId) {
        self.counters.refused_slow += 1;
        self.misbehaved(id, "it does not read what it is sent");
    }

    /// Sets the time.
    pub fn handle_timeout(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
        let mut rested = Vec::new();
        for (id, service) in &mut self.services {
            if service.rests_until_ns.is_some_and(|until| until <= now_ns) {
                service.rests_until_ns = None;
                rested.push(*id);
            }
        }
        for service in rested {
            self.act(Action::Rest { service, is_resting: false });
        }
        while let Some((at, id)) = self.table.first_deadline() {
            if at > now_ns {
                break;
            }
            self.table.set_deadline(id, None);
            self.late(now_ns, id);
        }
    }

    fn late(&mut self, now_ns: u64, id: ConnectionId) {
        let Some(c) = self.table.get(id) else { return };
        match c.stage() {
            ConnectionStage::Silent => {
                self.counters.refused_silent += 1;
                self.refuse(id, Reason::TooSlow, "nothing was said in time");
            }
            ConnectionStage::Queued(_) | ConnectionStage::Checking(_) => {
                self.counters.refused_slow += 1;
                let text = "connections of this user that were asked for before it are still being made, and \
                            did not get done in time: ask for fewer at once";
                self.refuse(id, Reason::TooSlow, text);
            }
            ConnectionStage::Following(..) => {
                self.counters.refused_slow += 1;
                let text = "memory of an earlier link of this node has yet to come";
                self.refuse(id, Reason::TooSlow, text);
            }
            ConnectionStage::Asking(_) => {
                self.refuse(id, Reason::TooSlow, "the application did not answer in time");
            }
            ConnectionStage::Meeting(_) if c.role == LinkSide::Server => {
                self.counters.refused_slow += 1;
                self.refuse(id, Reason::TooSlow, MEMORY_LATE);
            }
            ConnectionStage::Dialing(_) => self.failed(id, ConnectFailure::TimedOut("connecting")),
            ConnectionStage::Greeting => {
                let doing =
                    "waiting for the server's answer: its program makes no calls, or is behind";
                self.failed(id, ConnectFailure::TimedOut(doing));
            }
            ConnectionStage::Meeting(_) => {
                let doing = "waiting for the server's program to take the link's memory: it makes \
                             no calls, or is behind";
                self.failed(id, ConnectFailure::TimedOut(doing));
            }
            ConnectionStage::Parting(_) if c.is_dead => self.gone(id, LinkEnd::Died),
            ConnectionStage::Parting(_) => self.gone(id, LinkEnd::HungUp),
            ConnectionStage::Linked(_) => self.memory_is_late(now_ns, id),
            ConnectionStage::Telling => self.leave(id, LeaveReason::Ours, None),
        }
    }

    // ---- leaving

    /// The one way in which a connection ends: its places and bytes are given back, and callers
    /// that wait for it get an error.
    fn leave(&mut self, id: ConnectionId, why: LeaveReason, last: Option<Frame>) {
        let reason = match &why {
            LeaveReason::Theirs(reason) => Some(*reason),
            _ => None,
        };
        let Some(left) = self.table.leave(id, why) else { return };
        if let Some(frame) = last {
            self.act(Action::SendLast { to: id, frame });
        }
        self.has_room |= left.was_unpaid;
        let counters = &mut self.counters;
        counters.left_silent += u64::from(left.was_silent);
        counters.left_half_way += u64::from(left.was_half_way && reason.is_some());
        match left.report {
            Report::Nothing => {}
            Report::Closed(reason) => {
                counters.count_end(reason);
                // The table has counted it.
                self.act(Action::Tell(MachineEvent::Closed { link: id, reason }));
            }
            Report::RequestGone(id) => self.tell(MachineEvent::RequestGone { id }),
            Report::ConnectFailed(why) => self.tell(MachineEvent::ConnectFailed { id, why }),
        }
        self.act(Action::Close(id));
    }

    /// The other end is gone, or counts as gone.
    fn gone(&mut self, id: ConnectionId, reason: LinkEnd) {
        self.leave(id, LeaveReason::Theirs(reason), None);
    }

    /// Refuses, and ends.
    fn refuse(&mut self, id: ConnectionId, reason: Reason, text: &str) {
        self.leave(id, LeaveReason::Refused(reason, text.into()), Some(refusal(reason, text)));
    }

    /// This process gives up connecting.
    fn failed(&mut self, id: ConnectionId, why: ConnectFailure) {
        self.leave(id, LeaveReason::Failed(why), None);
    }

    fn out_of_turn(&mut self, id: ConnectionId) {
        self.counters.refused_frame += 1;
        self.misbehaved(id, "a frame came out of turn");
    }

    /// The other end sent something that no honest process sends.
    fn misbehaved(&mut self, id: ConnectionId, text: &str) {
        let Some(c) = self.table.get(id) else { return };
        let last = Some(refusal(Reason::Malformed, text));
        let why = match (c.role, c.stage()) {
            (_, ConnectionStage::Linked(_) | ConnectionStage::Parting(_)) => {
                LeaveReason::Theirs(LinkEnd::Violation)
            }
            (LinkSide::Client, _) => LeaveReason::Failed(ConnectFailure::Misbehaved(text.into())),
            (LinkSide::Server, _) => LeaveReason::Refused(Reason::Malformed, text.into()),
        };
        self.leave(id, why, last);
    }

    /// The other end's memory was not as agreed.
    fn bad_memory(&mut self, id: ConnectionId) {
        self.counters.refused_memory += 1;
        const TEXT: &str = "the memory was not as agreed";
        let Some(c) = self.table.get(id) else { return };
        match (c.role, c.stage()) {
            (_, ConnectionStage::Linked(_)) => self.misbehaved(id, TEXT),
            (LinkSide::Client, _) => {
                let last = Some(refusal(Reason::Memory, TEXT));
                self.leave(id, LeaveReason::Failed(ConnectFailure::Memory(TEXT.into())), last);
            }
            (LinkSide::Server, _) => self.refuse(id, Reason::Memory, TEXT),
        }
    }
}

/// The reason for the end of a link that the other end refuses.
fn sent_away(reason: Reason) -> LinkEnd {
    if reason == Reason::TooSlow { LinkEnd::TooSlow } else { LinkEnd::Expelled }
}

/// A refusal, with its text cut to the length that fits a frame.
pub(crate) fn refusal(reason: Reason, text: &str) -> Frame {
    let mut end = text.len().min(REFUSED_TEXT_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let version = (VERSION_MAJOR, VERSION_MINOR);
    Frame::Refused { reason, version, text: text[..end].into() }
}
