//! The way from the first frame to a link, at both ends.
//!
//! ```text
//!   client                                     server
//!   connect, HELLO  ------------------------>  admitted? waits while others of its user have not paid
//!                                              credential its own? its earlier frames are read?
//!                                              (asks the application)
//!                   <------------------------  WELCOME
//!   its ring, filled ----------------------->  takes it: from here on the place is paid for
//!                   <------------------------  its own ring, which the client fills
//!   HELLO (wake)    ------------------------>
//!                   <------------------------  READY
//! ```
//! The end that asks pays, and pays first: the server makes nothing before the client's ring has
//! come, filled. A client that has not paid has a socket here, and a place of which its user has a
//! few. The credential of a client that waits for such a place is not looked into: it costs far
//! more to check than to send.

use super::super::FIGURES_ARE_FOR_ITS_USER;
use super::super::frame::{
    COOKIE_BYTES, Credential, Frame, Hello, LinkFeatures, LinkSide, Memory, Purpose, Reason,
    VERSION_MAJOR, VERSION_MINOR, Welcome,
};
use super::account::{Accounts, Rank};
use super::memory::is_ring_size;
use super::table::{ConnectionStage, LeaveReason, LinkMeeting, Linked, TableConnection, Transfer};
use super::{
    Accept, AcceptError, Action, Admission, AgreedLink, ConnectFailure, ConnectionId, Machine,
    MachineEvent, NotNow, RefusedBy, RequestId, UnknownUsers, Wait, Who,
};
use crate::link::cells::READER_WORDS_BYTES;
use crate::link::ring::packet_bytes_max;
use crate::wire::{LINE_BYTES, NodeId};
use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

/// The first pause before a connection that cannot be made is tried again; each is twice as long,
/// up to the second if a listener has no room, and to the third if there is none.
const PAUSE_NS: u64 = 50_000;
const PAUSE_BUSY_MAX_NS: u64 = 5_000_000;
const PAUSE_ABSENT_MAX_NS: u64 = 20_000_000;

/// The kernel's verdict on a credential: see [`Action::Verify`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is the credential of the process at the other end.
    Proved,
    /// The kernel cannot say which process is at the other end.
    Unproved,
    /// It is not, for this reason.
    False(&'static str),
}

/// Bytes of the files of two rings: before the ring lie its reader's words.
fn mapped_bytes(ring_bytes: &[u32; 2]) -> u64 {
    ring_bytes.iter().map(|bytes| READER_WORDS_BYTES as u64 + u64::from(*bytes)).sum()
}

impl Machine {
    // ---- the server's side

    pub(super) fn greeted(&mut self, now_ns: u64, id: ConnectionId, hello: Hello) {
        let Some(c) = self.table.get(id) else { return };
        match hello.purpose {
            Purpose::Wake => return self.join_wake(now_ns, id, &hello.cookie),
            Purpose::Stat => {
                let served = self.services.get(&super::ServiceId(c.listener));
                let user = served.map_or(self.limits.uid, |service| service.user);
                if c.who.uid == Some(user) || c.who.uid == Some(0) {
                    self.table.advance(id, ConnectionStage::Telling);
                    self.table.set_deadline(id, self.step_deadline(now_ns));
                    return self.act(Action::Statistics(id));
                }
                self.counters.refused_statistics += 1;
                return self.refuse(id, Reason::User, FIGURES_ARE_FOR_ITS_USER);
            }
            Purpose::Link => {}
        }
        let Some(service) = self.services.get(&super::ServiceId(c.listener)) else {
            return self.refuse(id, Reason::Ending, "the name is no longer served");
        };
        if !self.admits(c, service, &hello) {
            self.counters.refused_user += 1;
            let user = c.who.uid.map_or("an unknown user".into(), |uid| format!("user {uid}"));
            return self.refuse(id, Reason::User, &format!("for {user}"));
        }
        let own = self.limits.features.bits();
        if hello.features_required & !own != 0 {
            self.counters.refused_feature += 1;
            let required = hello.features_required;
            let text =
                format!("feature bits {required:#x} are required, and this process has {own:#x}");
            return self.refuse(id, Reason::Feature, &text);
        }
        if !is_ring_size(hello.ring_bytes.into())
            || hello.incoming_ring_bytes_max < 512
            || hello.packet_bytes == 0
        {
            self.counters.refused_frame += 1;
            let text = "a ring or packet size is impossible";
            return self.refuse(id, Reason::Malformed, text);
        }
        self.table.advance(id, ConnectionStage::Queued(Box::new(hello)));
        self.table.set_deadline(id, self.step_deadline(now_ns));
        self.hear_some(now_ns);
    }

    fn admits(&self, c: &TableConnection, service: &super::ServedName, hello: &Hello) -> bool {
        match c.who.uid {
            Some(uid) if uid == service.user => true,
            Some(_) => match service.admission {
                Admission::SameUser => false,
                Admission::Group => c.who.is_in_group,
                Admission::Anyone => true,
            },
            None => match &self.limits.unknown {
                UnknownUsers::Refused => false,
                // The kernel let it through the socket's permissions, which decide.
                UnknownUsers::Admitted => true,
                // All bytes are compared, so that the time taken reveals nothing.
                UnknownUsers::Token(token) => {
                    token.iter().zip(&hello.token).fold(0, |all, (a, b)| all | (a ^ b)) == 0
                }
            },
        }
    }

    /// The verdict on the credential of the other end, and the number of its process.
    pub fn verified(
        &mut self,
        now_ns: u64,
        id: ConnectionId,
        verdict: Verdict,
        process: Option<u64>,
    ) {
        self.now_ns = now_ns;
        let Some(c) = self.table.get_mut(id) else { return };
        if !matches!(
            (c.role, c.stage()),
            (LinkSide::Server, ConnectionStage::Checking(_)) | (LinkSide::Client, _)
        ) {
            return;
        }
        c.process = process;
        if let Verdict::False(why) = verdict {
            self.counters.refused_identity += 1;
            let role = self.table.get(id).map(|c| c.role);
            let last = Some(super::refusal(Reason::Identity, why));
            let failure =
                ConnectFailure::Misbehaved(format!("it is not the node that it says: {why}"));
            return match role {
                Some(LinkSide::Client) => self.leave(id, LeaveReason::Failed(failure), last),
                _ => self.leave(id, LeaveReason::Refused(Reason::Identity, why.into()), last),
            };
        }
        c.is_proved = verdict == Verdict::Proved;
        if c.expected.is_some() && !c.is_proved {
            let why = "the kernel cannot say whether it is the node that is looked for";
            return self.failed(id, ConnectFailure::Unavailable(why.into()));
        }
        match c.stage() {
            ConnectionStage::Checking(hello) => {
                let hello = hello.clone();
                c.peer_node = hello.credential.node;
                let links = self.settle(id);
                if links.is_empty() {
                    return self.ask_or_welcome(now_ns, id);
                }
                self.table.advance(id, ConnectionStage::Following(hello, links));
            }
            ConnectionStage::Meeting(meeting) if c.role == LinkSide::Client => {
                let bytes = u64::from(meeting.ring_bytes[LinkSide::Client as usize]);
                let hello = Hello {
                    purpose: Purpose::Wake,
                    cookie: meeting.cookie,
                    credential: Credential::NONE,
                    greeting: Vec::new(),
                    ..self.hello()
                };
                self.act(Action::OpenWake { of: id, hello: Box::new(hello) });
                self.offer_ring(id, Memory::Ring(LinkSide::Client), bytes);
            }
            _ => {}
        }
    }

    /// The links of a connection's node whose sockets receivers read. If a node closes a link and
    /// makes a new one, both must be handled in that order, or answers over the new link might
    /// leave by the old one. Links whose sockets have ended are closed here: everything was read,
    /// and the new connection proves that their process lives.
    fn settle(&mut self, id: ConnectionId) -> BTreeSet<ConnectionId> {
        let Some(c) = self.table.get(id).filter(|c| c.is_proved) else { return BTreeSet::new() };
        let earlier: Vec<_> = self.table.unsettled(c.peer_node).collect();
        for (link, _) in earlier.iter().filter(|row| row.1) {
            self.gone(*link, super::LinkEnd::HungUp);
        }
        earlier.into_iter().filter(|row| !row.1).map(|row| row.0).collect()
    }

    /// A link's receiver has ended: connections that waited for its frames go on.
    pub(super) fn follow(&mut self, now_ns: u64, link: ConnectionId) {
        for id in self.table.followed(link) {
            // A link that has ended since then, without a goodbye.
            self.settle(id);
            self.ask_or_welcome(now_ns, id);
        }
    }

    fn ask_or_welcome(&mut self, now_ns: u64, id: ConnectionId) {
        let Some(c) = self.table.get(id) else { return };
        let service = super::ServiceId(c.listener);
        let Some(service) = self.services.get(&service) else {
            return self.refuse(id, Reason::Ending, "the name is no longer served");
        };
        let accept = service.accept.clone();
        let Some(c) = self.table.get(id) else { return };
        match accept {
            Accept::Automatic(greeting) => {
                if let Err((reason, text)) = self.welcome(now_ns, id, greeting, None) {
                    self.refuse(id, reason, &text);
                }
            }
            Accept::Ask => {
                let (peer, Some(hello)) = (c.peer(), c.hello().cloned()) else { return };
                let greeting = hello.greeting.clone();
                self.table.advance(id, ConnectionStage::Asking(Box::new(hello)));
                // Twice a step: the application may be waiting for the step of another peer, which
                // holds its place without having paid until then.
                let until_ns = now_ns.saturating_add(self.limits.step_timeout_ns.saturating_mul(2));
                self.table.set_deadline(id, Some(until_ns));
                self.tell(MachineEvent::Request { id: RequestId(id.0), peer, greeting });
            }
        }
    }

    /// Accepts a request; [`MachineEvent::Connected`] follows when the peer has done its part.
    pub fn accept(
        &mut self,
        now_ns: u64,
        request: RequestId,
        greeting: Vec<u8>,
    ) -> Result<(), AcceptError> {
        self.now_ns = now_ns;
        let id = ConnectionId(request.0);
        let Some(ConnectionStage::Asking(_)) = self.table.get(id).map(TableConnection::stage)
        else {
            return Err(AcceptError::NoSuchRequest(request));
        };
        if let Err((reason, text)) = self.welcome(now_ns, id, greeting, Some(request)) {
            // The application hears of it from this call, and gets no event.
            self.leave(id, LeaveReason::Ours, Some(super::refusal(reason, &text)));
            return Err(AcceptError::Refused(reason));
        }
        Ok(())
    }

    /// Refuses a request, with a reason in words, of which at most 1 KiB is sent. `by` selects the
    /// counter, and the reason that the other end gets.
    pub fn refuse_request(
        &mut self,
        request: RequestId,
        by: RefusedBy,
        text: &str,
    ) -> Result<(), AcceptError> {
        let id = ConnectionId(request.0);
        let Some(ConnectionStage::Asking(_)) = self.table.get(id).map(TableConnection::stage)
        else {
            return Err(AcceptError::NoSuchRequest(request));
        };
        *match by {
            RefusedBy::Application => &mut self.counters.refused_application,
            RefusedBy::Places => &mut self.counters.refused_places,
            RefusedBy::EndPoint | RefusedBy::Ending => &mut self.counters.refused_end_point,
        } += 1;
        let last = super::refusal(by.reason(), text);
        self.leave(id, LeaveReason::Ours, Some(last));
        Ok(())
    }

    /// Checks for a place for a connection, of any user; counts a refusal if there is none.
    fn check_room(&mut self, id: ConnectionId) -> Result<(), (Reason, String)> {
        let Some(user) = self.table.user_of(id) else {
            return Err((Reason::Unavailable, String::new()));
        };
        let (taken, own) = (self.table.accounts.links, self.table.accounts.get(user).links);
        if !Accounts::has_place(taken, own, self.limits.links_max) {
            self.counters.refused_links += 1;
            let max = self.limits.links_max;
            let text = match taken >= max {
                true => format!("{taken} links, which is {}", self.limits.links_bound),
                false => {
                    format!("{taken} links of {max}, and the last are kept for users who have none")
                }
            };
            return Err((Reason::Links, text));
        }
        let bytes = mapped_bytes(&self.ring_sizes(id));
        let max = self.limits.bytes_per_user_max;
        if self.table.accounts.get(user).bytes.saturating_add(bytes) > max {
            self.counters.refused_bytes += 1;
            let text = format!("{bytes} more bytes, and bytes_per_user_max is {max}");
            return Err((Reason::Bytes, text));
        }
        Ok(())
    }

    /// Bytes of the rings that the client and the server would write.
    fn ring_sizes(&self, id: ConnectionId) -> [u32; 2] {
        let Some(hello) = self.table.get(id).and_then(TableConnection::hello) else {
            return [0; 2];
        };
        // The largest power of two that both want.
        let wanted = 1 << hello.incoming_ring_bytes_max.ilog2();
        let client = hello.ring_bytes.min(self.limits.peer_ring_bytes_max);
        [client, self.limits.ring_bytes.min(wanted)]
    }

    /// Verifies the credentials of connections that wait, as far as their users have paid for
    /// earlier ones.
    pub(super) fn hear_some(&mut self, now_ns: u64) {
        while let Some((user, id)) = self.table.first_queued() {
            self.looked_at += 1;
            // No other user who waits has fewer.
            if self.table.unpaid() >= self.limits.half_open_max as usize && !self.drop_unpaid(user)
            {
                return;
            }
            let Some(hello) = self.table.get(id).and_then(TableConnection::hello).cloned() else {
                return;
            };
            let credential = Box::new(hello.credential);
            self.table.advance(id, ConnectionStage::Checking(Box::new(hello)));
            self.table.set_deadline(id, self.step_deadline(now_ns));
            self.act(Action::Verify { of: id, credential });
        }
    }

    /// Drops the oldest unpaid connection of the user who has most of them, if `user` would have
    /// fewer even with one more.
    fn drop_unpaid(&mut self, user: super::User) -> bool {
        let Some(most) = self.table.accounts.most(Rank::Unpaid) else { return false };
        let accounts = &self.table.accounts;
        if accounts.get(user).unpaid + 1 >= accounts.get(most).unpaid {
            return false;
        }
        let Some(id) = self.table.first_unpaid(most) else { return false };
        self.counters.refused_unpaid += 1;
        self.refuse(id, Reason::TooSlow, "too many have not paid for their memory");
        true
    }

    /// Tells the client the terms of the link; or why there is no room for it.
    fn welcome(
        &mut self,
        now_ns: u64,
        id: ConnectionId,
        greeting: Vec<u8>,
        request: Option<RequestId>,
    ) -> Result<(), (Reason, String)> {
        self.check_room(id)?;
        let ring_bytes = self.ring_sizes(id);
        let bytes = mapped_bytes(&ring_bytes);
        self.table.charge(id, bytes, self.limits.bytes_per_user_max);
        let gone = || (Reason::Unavailable, String::new());
        let c = self.table.get(id).ok_or_else(gone)?;
        let cookie = c.cookie;
        let hello = c.hello().ok_or_else(gone)?;
        let features = LinkFeatures::from_bits_truncate(hello.features) & self.limits.features;
        let fits = |ring: u32| packet_bytes_max(ring as usize / LINE_BYTES);
        let largest = fits(ring_bytes[0]).max(fits(ring_bytes[1]));
        let packet_bytes = hello
            .packet_bytes
            .min(self.limits.packet_bytes)
            .min(largest.max(self.limits.bulk_ring_bytes / 4));
        let meeting = LinkMeeting {
            features,
            packet_bytes,
            ring_bytes,
            cookie,
            greeting: hello.greeting.clone(),
            has_wake: false,
            rings: [Transfer::None; 2],
            request,
        };
        let welcome = Welcome {
            minor: VERSION_MINOR,
            credential: self.limits.credential,
            features: features.bits(),
            client_ring_bytes: ring_bytes[0],
            server_ring_bytes: ring_bytes[1],
            packet_bytes,
            cookie,
            greeting,
        };
        self.table.advance(id, ConnectionStage::Meeting(Box::new(meeting)));
        self.table.set_deadline(id, self.step_deadline(now_ns));
        self.send(id, Frame::Welcome(welcome));
        Ok(())
    }

    /// The second connection of a link: same process, right cookie.
    fn join_wake(&mut self, now_ns: u64, wake: ConnectionId, cookie: &[u8; COOKIE_BYTES]) {
        let who = self.table.get(wake).map(|c| c.who);
        let fits = |c: &TableConnection| {
            // Membership of the group was asked for each connection separately, and may have
            // changed.
            let same = |who: Who| Who { is_in_group: false, ..who };
            who.map(same) == Some(same(c.who))
                && matches!(c.stage(), ConnectionStage::Meeting(meeting) if !meeting.has_wake)
        };
        let link = self.table.with_cookie(cookie);
        let Some(link) = link.filter(|link| self.table.get(*link).is_some_and(fits)) else {
            self.counters.refused_cookie += 1;
            return self.refuse(wake, Reason::Malformed, "no link waits for this connection");
        };
        self.counters.wake_connections += 1;
        // Its socket is the link's before the connection is forgotten.
        self.act(Action::JoinWake { link, wake });
        self.leave(wake, LeaveReason::Joined, None);
        if let Some(meeting) = self.table.get_mut(link).and_then(TableConnection::meeting) {
            meeting.has_wake = true;
        }
        self.try_link(now_ns, link);
    }

    // ---- the client's side

    /// This process wants a link: the driver of the machine connects, and calls
    /// [`connected`](Self::connected), or [`not_now`](Self::not_now) if that is not possible yet.
    pub fn connect(
        &mut self,
        service: String,
        greeting: Vec<u8>,
        until_ns: u64,
        wait: Wait,
    ) -> Result<ConnectionId, u32> {
        if self.table.accounts.links >= self.limits.links_max {
            return Err(self.table.accounts.links);
        }
        let id = self.table.next_id();
        let stage = ConnectionStage::Dialing(greeting);
        let mut c = TableConnection::new(LinkSide::Client, Who::default(), service, 0, stage);
        (c.wait, c.pause_ns) = (wait, PAUSE_NS);
        self.table.enter(id, c);
        self.table.set_deadline(id, Some(until_ns));
        Ok(id)
    }

    /// The link must be to this node, proved; otherwise it fails.
    pub fn expect(&mut self, id: ConnectionId, node: NodeId) {
        if let Some(c) = self.table.get_mut(id) {
            c.expected = Some(Box::new(node));
        }
    }

    /// Changes the time limit of connecting.
    pub fn connect_until(&mut self, id: ConnectionId, until_ns: u64) {
        if self.table.get(id).is_some_and(|c| c.role == LinkSide::Client && !c.is_linked()) {
            self.table.set_deadline(id, Some(until_ns));
        }
    }

    /// Connecting, or opening the second connection, is not possible now. Returns the time of the
    /// next try; the last is at the time limit. `None`: no more tries, and the driver of the
    /// machine reports the reason ([`connect_failed`](Self::connect_failed)).
    pub fn not_now(&mut self, now_ns: u64, id: ConnectionId, why: NotNow) -> Option<u64> {
        let c = self.table.get_mut(id)?;
        let until_ns = c.deadline_ns()?;
        let pause_max_ns = match (why, c.stage(), c.wait) {
            (NotNow::Busy, _, _) => PAUSE_BUSY_MAX_NS,
            // The process that listened a moment ago is gone: the next listener is another process.
            (NotNow::Absent, ConnectionStage::Dialing(_), Wait::ForName) if now_ns < until_ns => {
                PAUSE_ABSENT_MAX_NS
            }
            (NotNow::Absent, _, _) => return None,
        };
        let again_ns = now_ns.saturating_add(c.pause_ns.min(pause_max_ns));
        c.pause_ns = (c.pause_ns * 2).min(pause_max_ns);
        Some(again_ns.min(until_ns))
    }

    fn hello(&self) -> Hello {
        Hello {
            version: (VERSION_MAJOR, VERSION_MINOR),
            purpose: Purpose::Link,
            features: self.limits.features.bits(),
            features_required: 0,
            credential: self.limits.credential,
            ring_bytes: self.limits.ring_bytes,
            incoming_ring_bytes_max: self.limits.ring_bytes.max(64 << 10),
            packet_bytes: self.limits.packet_bytes,
            cookie: [0; COOKIE_BYTES],
            token: self.limits.token,
            greeting: Vec::new(),
        }
    }

    /// The HELLO that asks a service of this user for its statistics.
    pub fn hello_for_statistics(limits: &super::MachineLimits) -> Hello {
        let machine = Self::new(limits.clone());
        Hello { purpose: Purpose::Stat, credential: Credential::NONE, ..machine.hello() }
    }

    /// The socket is connected, to `who`.
    pub fn connected(&mut self, id: ConnectionId, who: Who) {
        let Some(c) = self.table.get_mut(id) else { return };
        (c.who, c.pause_ns) = (who, PAUSE_NS);
        let ConnectionStage::Dialing(greeting) = c.stage() else { return };
        let greeting = greeting.clone();
        let hello = Hello { greeting, ..self.hello() };
        self.table.advance(id, ConnectionStage::Greeting);
        self.send(id, Frame::Hello(hello));
    }

    /// Connecting, or opening the second connection, is not possible.
    pub fn connect_failed(&mut self, id: ConnectionId, why: ConnectFailure) {
        if self.table.get(id).is_some_and(|c| c.role == LinkSide::Client && !c.is_linked()) {
            self.failed(id, why);
        }
    }

    pub(super) fn welcomed(&mut self, _now_ns: u64, id: ConnectionId, welcome: Welcome) {
        let own = self.limits.features;
        let misbehaved = |machine: &mut Self, text: &str| {
            machine.counters.refused_frame += 1;
            machine.misbehaved(id, text);
        };
        if welcome.features & !own.bits() != 0 {
            return misbehaved(self, "it chose features that were not offered");
        }
        let hello = self.hello();
        if !is_ring_size(welcome.client_ring_bytes.into())
            || !is_ring_size(welcome.server_ring_bytes.into())
            || welcome.client_ring_bytes > hello.ring_bytes
            || welcome.server_ring_bytes > hello.incoming_ring_bytes_max
            || welcome.packet_bytes > hello.packet_bytes
            || welcome.packet_bytes == 0
        {
            return misbehaved(self, "its sizes are outside of what was asked for");
        }
        let meeting = LinkMeeting {
            features: LinkFeatures::from_bits_truncate(welcome.features),
            packet_bytes: welcome.packet_bytes,
            ring_bytes: [welcome.client_ring_bytes, welcome.server_ring_bytes],
            cookie: welcome.cookie,
            greeting: welcome.greeting,
            has_wake: false,
            rings: [Transfer::None; 2],
            request: None,
        };
        self.table.advance(id, ConnectionStage::Meeting(Box::new(meeting)));
        if let Some(c) = self.table.get_mut(id) {
            c.peer_node = welcome.credential.node;
            if c.expected.as_ref().is_some_and(|node| **node != c.peer_node) {
                let why = "another node serves the name there";
                return self.failed(id, ConnectFailure::Misbehaved(why.into()));
            }
        }
        self.act(Action::Verify { of: id, credential: Box::new(welcome.credential) });
    }

    /// The second connection is there, and has said its HELLO.
    pub fn wake_opened(&mut self, id: ConnectionId) {
        if let Some(meeting) = self.table.get_mut(id).and_then(TableConnection::meeting) {
            meeting.has_wake = true;
        }
    }

    pub(super) fn told_no(
        &mut self,
        id: ConnectionId,
        reason: Reason,
        version: (u16, u16),
        text: String,
    ) {
        match self.table.get(id).map(TableConnection::is_linked) {
            Some(true) => self.gone(id, super::sent_away(reason)),
            Some(false) if version.0 != VERSION_MAJOR => {
                self.failed(id, ConnectFailure::Version(version));
            }
            _ => self.failed(id, ConnectFailure::Refused { reason, text }),
        }
    }

    /// The server reports that the link exists.
    pub(super) fn ready(&mut self, _now_ns: u64, id: ConnectionId) {
        let Some(c) = self.table.get_mut(id) else { return };
        let role = c.role;
        let is_whole = c.meeting().is_some_and(|meeting| meeting.is_whole());
        if role != LinkSide::Client || !is_whole {
            return self.out_of_turn(id);
        }
        self.link_up(id);
    }

    // ---- both

    /// A ring has reached its reader, and is paid for.
    pub(super) fn ring_is_there(&mut self, now_ns: u64, id: ConnectionId, writer: LinkSide) {
        let Some(c) = self.table.get_mut(id) else { return };
        if c.role == LinkSide::Client {
            return;
        }
        let Some(meeting) = c.meeting() else { return };
        let bytes = u64::from(meeting.ring_bytes[LinkSide::Server as usize]);
        self.table.set_deadline(id, self.step_deadline(now_ns));
        match writer {
            LinkSide::Client => self.offer_ring(id, Memory::Ring(LinkSide::Server), bytes),
            LinkSide::Server => self.try_link(now_ns, id),
        }
    }

    /// Makes it a link when both the memory and the second connection are there.
    fn try_link(&mut self, now_ns: u64, id: ConnectionId) {
        let Some(c) = self.table.get_mut(id) else { return };
        if c.meeting().is_some_and(|meeting| meeting.is_whole()) {
            // The application hears of it before the other end can use it.
            self.link_up(id);
            self.send(id, Frame::Ready);
            self.hear_some(now_ns);
        }
    }

    fn link_up(&mut self, id: ConnectionId) {
        let linked = Linked { bulk: [Transfer::None; 2], apertures: Default::default() };
        let Some(meeting) = self.table.link(id, linked) else { return };
        // No deadline but that of a receiver.
        self.set_memory_deadline(id);
        self.counters.links += 1;
        let Some(c) = self.table.get(id) else { return };
        let agreed = AgreedLink {
            link: id,
            peer: c.peer(),
            greeting: meeting.greeting,
            packet_bytes: meeting.packet_bytes,
            features: meeting.features,
            initiated_by_us: c.role == LinkSide::Client,
            request: meeting.request,
        };
        self.tell(MachineEvent::Connected(agreed));
    }
}
