//! What the machine is given, what it asks for, and what it tells.

use crate::control::TOKEN_BYTES_MAX;
use crate::control::frame::{Credential, Frame, Hello, LinkFeatures, Memory, Reason};
use crate::wire::{ApertureAccess, NodeId};
use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

/// Names a connection of this process, and the link that it becomes. Never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId(pub u64);

/// Names a request to be linked that waits for the application's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// Names a listener. Never used twice, nor for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServiceId(pub u64);

/// Who is at the other end of a socket, as the kernel says. `None`: it cannot say it here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Who {
    /// Effective user.
    pub uid: Option<u32>,
    /// Effective group.
    pub gid: Option<u32>,
    /// Process.
    pub pid: Option<u32>,
    /// Of a connection to a service for a group: whether it is in it.
    pub is_in_group: bool,
}

/// Whether whoever connects waits where nobody is yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Until somebody serves the name, or the time is up.
    ForName,
    /// A name that nobody serves is an error at once.
    No,
}

/// Why a connection cannot be made at this moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotNow {
    /// Whoever listens has no room for one more.
    Busy,
    /// Nobody has the name, or nobody listens at it.
    Absent,
}

/// Who is at the other end of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "unstable-internals"), non_exhaustive)]
pub struct Peer {
    /// Its node.
    pub node: NodeId,
    /// Whether it has proved that it is that node: nothing is sent to the node over a link whose
    /// other end has not, unless the link is named.
    pub is_proved: bool,
    /// Its user, as the kernel says; `None`: of another user namespace.
    pub uid: Option<u32>,
    /// Its group, likewise.
    pub gid: Option<u32>,
    /// Its process; `None` if it cannot be seen from here.
    pub pid: Option<u32>,
    /// A number that only its process has, also where it cannot be seen; `None` before Linux 6.9.
    pub process: Option<u64>,
    /// The service through which the link was made.
    pub service: String,
    /// The other host, if it is on another one.
    pub host: Option<Box<HostPeer>>,
}

/// A peer on another host, as it has proved to be.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "unstable-internals"), non_exhaustive)]
pub struct HostPeer {
    /// From where it is connected.
    pub address: core::net::SocketAddr,
    /// The first name in its certificate; or the hash of one that has none; or `secret`, for whoever
    /// has this process's secret and no certificate.
    pub identity: String,
}

/// Whose share a peer's place counts in. Whoever cannot be told apart has one together.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum PeerUser {
    /// A user of this host; `None`: one of another user namespace.
    Here(Option<u32>),
    /// Another host, by what it has proved to be called.
    Elsewhere(Box<str>),
}

/// `process 77 of user 1000`, each `unknown` where it is; `host 192.0.2.1:40112 (a.example)`, its address and
/// what it has proved to be.
impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(host) = &self.host {
            return write!(f, "host {} ({})", host.address, host.identity.escape_debug());
        }
        f.write_str("process ")?;
        match self.pid {
            Some(pid) => write!(f, "{pid}")?,
            None => f.write_str("unknown")?,
        }
        match self.uid {
            Some(uid) => write!(f, " of user {uid}"),
            None => f.write_str(" of user unknown"),
        }
    }
}

impl Peer {
    /// In whose share its places count.
    #[cfg_attr(not(feature = "os"), allow(dead_code))]
    pub(crate) fn user(&self) -> PeerUser {
        match &self.host {
            None => PeerUser::Here(self.uid),
            Some(host) => PeerUser::Elsewhere(host.identity.as_str().into()),
        }
    }

    /// Whether they count in this one's.
    #[cfg_attr(not(feature = "os"), allow(dead_code))]
    pub(crate) fn is_of(&self, user: &PeerUser) -> bool {
        match (&self.host, user) {
            (None, PeerUser::Here(uid)) => self.uid == *uid,
            (Some(host), PeerUser::Elsewhere(identity)) => *host.identity == **identity,
            _ => false,
        }
    }
}

/// How a link ended, as the machine sees it. What applications are told is
/// `node::CloseReason`, which says in words what a peer did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LinkEnd {
    /// The other end said that it was done; what it wrote is complete.
    Graceful,
    /// Its process died.
    Died,
    /// Its process lives and closed the connection without a word.
    HungUp,
    /// It sent what no honest process sends.
    Violation,
    /// It says that this process did.
    Expelled,
    /// It says that this process is too slow for it.
    TooSlow,
    /// This process can no longer watch over it.
    Unwatched,
}

/// Why this process could not connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The time was up.
    TimedOut(&'static str),
    /// The server said no.
    Refused {
        /// Why.
        reason: Reason,
        /// In its own words.
        text: String,
    },
    /// The server's major and minor version.
    Version((u16, u16)),
    /// It ended the connection without a word.
    Gone,
    /// It sent what no honest server sends.
    Misbehaved(String),
    /// Its memory was not as agreed.
    Memory(String),
    /// What was missing here.
    Unavailable(String),
}

/// Who may connect to a service, as the machine needs to know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Admission {
    /// This process's user.
    SameUser,
    /// Members of a group, and this process's user.
    Group,
    /// Everybody.
    Anyone,
}

/// What becomes of a peer whose user cannot be known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UnknownUsers {
    /// Refused.
    Refused,
    /// Admitted where the permissions of the socket let it through.
    Admitted,
    /// Admitted if it shows this token.
    Token([u8; TOKEN_BYTES_MAX]),
}

/// How a service answers who may connect.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "unstable-internals"), non_exhaustive)]
pub enum Accept {
    /// Yes, with this greeting.
    Automatic(Vec<u8>),
    /// The application is asked (`Event::Request`).
    Ask,
}

/// What this process is and allows.
#[derive(Clone, Debug)]
pub struct Limits {
    /// This process's user.
    pub uid: u32,
    /// What this process can.
    pub features: LinkFeatures,
    /// Unknown users.
    pub unknown: UnknownUsers,
    /// Its own token, for servers that want one.
    pub token: [u8; TOKEN_BYTES_MAX],
    /// Its node.
    pub credential: Credential,
    /// Bytes of the ring that this process writes.
    pub ring_bytes: u32,
    /// Most bytes of a ring, bulk rings included, that a peer writes.
    pub peer_ring_bytes_max: u32,
    /// Bytes of the bulk ring that this process writes; 0: none.
    pub bulk_ring_bytes: u32,
    /// Most data bytes of a packet.
    pub packet_bytes: u32,
    /// Most links.
    pub links_max: u32,
    /// What says so.
    pub links_bound: &'static str,
    /// Most connections of one user.
    pub connections_per_user_max: u32,
    /// Most bytes mapped for links that one user asked for.
    pub bytes_per_user_max: u64,
    /// Most connections that have said nothing; and, besides, most that have yet to pay.
    pub half_open_max: u32,
    /// Most of one user that have been heard and have yet to pay: as many credentials of his are
    /// looked into, and as many requests of his wait for the application.
    pub unpaid_per_user_max: u32,
    /// Threads that receive descriptors.
    pub receivers_max: u32,
    /// Of one user.
    pub receivers_per_user_max: u32,
    /// Most connections that have no place for a link yet: as many as there are descriptors for.
    pub waiting_max: u32,
    /// For each step of a peer.
    pub step_timeout_ns: u64,
    /// Most bytes of apertures held over one link.
    pub aperture_map_max: u64,
    /// Whether memory that both ends write is shared with processes of other users, too: either end
    /// can then stop the other for as long as it likes.
    pub apertures_of_others: bool,
    /// Most apertures of one link and owner.
    pub apertures_per_link_max: u32,
    /// Most apertures held for one user.
    pub apertures_per_user_max: u32,
    /// Most apertures held for all users: as many as there are mappings for.
    pub apertures_max: u32,
}

/// What whoever runs the machine is to do, in this order.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Send a frame, now or when there is room.
    Send {
        /// To.
        to: ConnectionId,
        /// What.
        frame: Frame,
    },
    /// Send a frame if there is room: the connection is closed next.
    SendLast {
        /// To.
        to: ConnectionId,
        /// What.
        frame: Frame,
    },
    /// Close its socket, and forget what was made for it.
    Close(ConnectionId),
    /// Find out which process is at the other end, watch it, and call
    /// [`Machine::verified`](super::Machine::verified): is this credential its own?
    Verify {
        /// Whose.
        of: ConnectionId,
        /// What it says.
        credential: Box<Credential>,
    },
    /// Connect to the service once more, as the second connection, and say this.
    OpenWake {
        /// Of which.
        of: ConnectionId,
        /// What.
        hello: Box<Hello>,
    },
    /// The second socket belongs to a link.
    JoinWake {
        /// The link.
        link: ConnectionId,
        /// The connection whose socket it is; forgotten.
        wake: ConnectionId,
    },
    /// Make memory that this process writes, filled if it is to be paid for here, sealed; call
    /// [`Machine::made`](super::Machine::made).
    Make {
        /// For.
        of: ConnectionId,
        /// Which.
        memory: Memory,
        /// Bytes of the ring.
        bytes: u32,
    },
    /// Send MEMORY_PASS with the descriptor of what was made.
    Pass {
        /// To.
        to: ConnectionId,
        /// Which.
        memory: Memory,
    },
    /// Receive one descriptor where nothing else waits for it, check and map it; call
    /// [`Machine::taken`](super::Machine::taken). Frames of the connection come from there until then.
    Take {
        /// From.
        from: ConnectionId,
        /// What is expected.
        expected: Expected,
        /// When it must have come.
        until_ns: u64,
    },
    /// Has the other end paid for every page? If so touch them, where nothing else waits for it;
    /// call [`Machine::touched`](super::Machine::touched), and then
    /// [`Machine::receiver_ended`](super::Machine::receiver_ended).
    Touch {
        /// Whose.
        of: ConnectionId,
        /// Which.
        memory: Memory,
    },
    /// Forget memory that was made or mapped, if it was not handed to the application.
    Drop {
        /// Whose.
        of: ConnectionId,
        /// Which.
        memory: Memory,
    },
    /// Accept nobody at this listener, or again.
    Rest {
        /// Which.
        service: ServiceId,
        /// Or again.
        is_resting: bool,
    },
    /// Ask for the statistics; call [`Machine::tell_statistics`](super::Machine::tell_statistics).
    Statistics(ConnectionId),
    /// Tell the application. Events are numbered by the order of these, from 1; see
    /// [`Machine::events_taken`](super::Machine::events_taken).
    Tell(Event),
}

/// Memory that is expected from the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected {
    /// Which.
    pub memory: Memory,
    /// Bytes, of a ring those of the ring alone.
    pub bytes: u64,
    /// What this process may do with it.
    pub access: ApertureAccess,
    /// Whether this process pays, by touching it; else the other end has.
    pub is_paid_here: bool,
}

/// What became of memory that was expected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Taken {
    /// Checked and mapped.
    Mapped,
    /// The other end withdrew it.
    Withdrawn,
    /// The system could not receive or map it, for this reason.
    Unavailable(String),
    /// It did not come in time.
    TooSlow,
    /// Something else came, or it was not as agreed.
    Wrong,
}

/// What became of memory that the other end was to pay for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Touched {
    /// It is paid for, and there.
    Yes,
    /// The other end has not paid for every page.
    NotPaid,
    /// The system could not touch it, for this reason.
    Unavailable(String),
}

/// What the application is told. Each is told once.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// Somebody wants a link to a service that asks.
    Request {
        /// For the answer.
        id: RequestId,
        /// Who.
        peer: Peer,
        /// Its first words.
        greeting: Vec<u8>,
    },
    /// A request was withdrawn before it was answered, or did not become a link afterwards.
    RequestGone {
        /// Which.
        id: RequestId,
    },
    /// A link is there: its rings and its second socket are with whoever runs the machine.
    Connected(Agreed),
    /// A link that this process asked for did not come to be.
    ConnectFailed {
        /// Which.
        id: ConnectionId,
        /// Why.
        why: Failure,
    },
    /// A bulk ring that this process writes is there.
    BulkOutgoing {
        /// Whose.
        link: ConnectionId,
    },
    /// A bulk ring that the other process writes is there.
    BulkIncoming {
        /// Whose.
        link: ConnectionId,
    },
    /// There will be no bulk ring that this process writes.
    BulkRefused {
        /// Whose.
        link: ConnectionId,
        /// Why.
        why: Reason,
    },
    /// The holder of an aperture has mapped it.
    ApertureReady {
        /// Whose.
        link: ConnectionId,
        /// Which.
        number: u32,
    },
    /// Nobody will hold the aperture.
    ApertureRefused {
        /// Whose.
        link: ConnectionId,
        /// Which.
        number: u32,
        /// Why.
        why: Reason,
    },
    /// The holder has let go of an aperture.
    ApertureReleased {
        /// Whose.
        link: ConnectionId,
        /// Which.
        number: u32,
    },
    /// This process holds an aperture of the other end.
    ApertureHeld {
        /// Whose.
        link: ConnectionId,
        /// Which.
        number: u32,
    },
    /// The other end has taken an aperture back.
    ApertureRevoked {
        /// Whose.
        link: ConnectionId,
        /// Which.
        number: u32,
    },
    /// The other end refused packets because a ticket of its was revoked.
    TicketRevoked {
        /// Whose.
        link: ConnectionId,
        /// The slot there.
        slot: u32,
        /// The metadata index there.
        index: u32,
    },
    /// A link ended.
    Closed {
        /// Which.
        link: ConnectionId,
        /// Why.
        reason: LinkEnd,
    },
}

impl Event {
    /// The link whose memory or descriptors come with it.
    pub(super) fn hands_over(&self) -> Option<ConnectionId> {
        match self {
            Self::Connected(agreed) => Some(agreed.link),
            Self::BulkOutgoing { link }
            | Self::BulkIncoming { link }
            | Self::ApertureHeld { link, .. } => Some(*link),
            _ => None,
        }
    }
}

/// A link that has been agreed.
#[derive(Clone, Debug, PartialEq)]
pub struct Agreed {
    /// Its name.
    pub link: ConnectionId,
    /// Who is at the other end.
    pub peer: Peer,
    /// The other end's first words.
    pub greeting: Vec<u8>,
    /// Most data bytes of a packet.
    pub packet_bytes: u32,
    /// What both can.
    pub features: LinkFeatures,
    /// Whether this process connected.
    pub initiated_by_us: bool,
    /// The request that this process accepted, if it was asked.
    pub request: Option<RequestId>,
}

/// An answer that could not be given. The request is as it was, unless it says otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[cfg_attr(not(feature = "unstable-internals"), non_exhaustive)]
pub enum AnswerError {
    /// It is not there: never was, was answered, or its process went away.
    #[error("request {} is not waiting for an answer", .0.0)]
    NoSuchRequest(RequestId),
    /// There is no room; the request was refused for that reason.
    #[error("the request was refused: {0}")]
    Refused(Reason),
}

/// Who said no to a request, for whoever counts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusedBy {
    /// The program.
    Application,
    /// An end point, which has as many peers as it may, or may have of that user.
    Places,
    /// An end point, which cannot do with what it was sent; or there is no such end point.
    EndPoint,
    /// An end point that is ending: whoever serves the name next may say yes.
    Ending,
}

impl RefusedBy {
    /// What the other end is told.
    pub(in crate::control) fn reason(self) -> Reason {
        match self {
            Self::Application | Self::EndPoint => Reason::Application,
            Self::Places => Reason::Places,
            Self::Ending => Reason::Ending,
        }
    }
}

/// What connections and their users have taken. All zero when nobody is there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Places {
    /// Connections, links included.
    pub connections: usize,
    /// Links, and places for them.
    pub links: u32,
    /// Links that have ended, of which the application has yet to take what it was told: they are
    /// counted to their users as if they were there.
    pub ended: usize,
    /// Users who have taken anything.
    pub users: usize,
    /// Bytes charged to the user who has most of them.
    pub bytes_of_one_user: u64,
    /// Threads that receive descriptors.
    pub receivers: u32,
    /// Memory that waits for one of those.
    pub windows: usize,
}
