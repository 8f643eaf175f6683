//! The machine's inputs, its actions, and the events that it reports.

pub use crate::link::LinkEnd;

use crate::control::frame::{Credential, Frame, Hello, LinkFeatures, Memory, Reason};
use crate::control::{FORKED, GREETING_BYTES_MAX, TOKEN_BYTES_MAX};
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

/// The identity of the other end of a socket, from the kernel. `None`: it cannot say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Who {
    /// Effective user.
    pub uid: Option<u32>,
    /// Effective group.
    pub gid: Option<u32>,
    /// Process.
    pub pid: Option<u32>,
    /// Of a connection to a service for a group: whether its user is in the group.
    pub is_in_group: bool,
}

/// Whether a connecting process waits for a name that no process serves yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Until a process serves the name, or the time limit has passed.
    ForName,
    /// A name without a server is an error at once.
    No,
}

/// Why a connection cannot be made at this moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotNow {
    /// The listener has no room for one more.
    Busy,
    /// No process has the name, or none listens at it.
    Absent,
}

/// The identity of the other end of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "unstable-internals"), non_exhaustive)]
pub struct Peer {
    /// Its node.
    pub node: NodeId,
    /// Whether it has proved that it is that node: if not, nothing is sent to the node over this
    /// link, unless the link is named.
    pub is_proved: bool,
    /// Its user, from the kernel; `None`: of another user namespace.
    pub uid: Option<u32>,
    /// Its group, likewise.
    pub gid: Option<u32>,
    /// Its process; `None` if it cannot be seen from here.
    pub pid: Option<u32>,
    /// A number that only its process has, even if it cannot be seen; `None` before Linux 6.9.
    pub process: Option<u64>,
    /// The service through which the link was made.
    pub service: String,
    /// The other host, if it is on another one.
    pub host: Option<Box<HostPeer>>,
}

/// The proved identity of a peer on another host.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "unstable-internals"), non_exhaustive)]
pub struct HostPeer {
    /// The address from which it is connected.
    pub address: core::net::SocketAddr,
    /// The first name in its certificate; the hash of a certificate without a name; or `secret`,
    /// for a host that has this process's secret and no certificate.
    pub identity: String,
}

/// The share in which a peer's place counts. Users that cannot be told apart have one together.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum PeerUser {
    /// A user of this host; `None`: one of another user namespace.
    Here(Option<u32>),
    /// Another host, by its proved name.
    Elsewhere(Box<str>),
}

/// `process 77 of user 1000`, each `unknown` if it is; `host 192.0.2.1:40112 (a.example)`, its
/// address and proved identity.
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
    /// The share in which its places count.
    #[cfg_attr(not(feature = "os"), allow(dead_code))]
    pub(crate) fn user(&self) -> PeerUser {
        match &self.host {
            None => PeerUser::Here(self.uid),
            Some(host) => PeerUser::Elsewhere(host.identity.as_str().into()),
        }
    }

    /// Whether they count in this peer's share.
    #[cfg_attr(not(feature = "os"), allow(dead_code))]
    pub(crate) fn is_of(&self, user: &PeerUser) -> bool {
        match (&self.host, user) {
            (None, PeerUser::Here(uid)) => self.uid == *uid,
            (Some(host), PeerUser::Elsewhere(identity)) => *host.identity == **identity,
            _ => false,
        }
    }
}

/// Why this process could not connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConnectFailure {
    /// The time limit has passed.
    TimedOut(&'static str),
    /// The server refused.
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
    /// It sent something that no honest server sends.
    Misbehaved(String),
    /// Its memory was not as agreed.
    Memory(String),
    /// Something was missing here.
    Unavailable(String),
}

/// The peers that may connect to a service, in the machine's terms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Admission {
    /// This process's user.
    SameUser,
    /// Members of a group, and this process's user.
    Group,
    /// Every user.
    Anyone,
}

/// The treatment of a peer whose user cannot be known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UnknownUsers {
    /// Refused.
    Refused,
    /// Admitted if the permissions of the socket let it through.
    Admitted,
    /// Admitted if it shows this token.
    Token([u8; TOKEN_BYTES_MAX]),
}

/// The way in which a service answers peers that may connect.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "unstable-internals"), non_exhaustive)]
pub enum Accept {
    /// It accepts them, with this greeting.
    Automatic(Vec<u8>),
    /// It asks the application (`Event::Request`).
    Ask,
}

/// The identity, features and limits of this process.
#[derive(Clone, Debug)]
pub struct MachineLimits {
    /// This process's user.
    pub uid: u32,
    /// This process's features.
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
    /// The setting or limit behind `links_max`.
    pub links_bound: &'static str,
    /// Most connections of one user.
    pub connections_per_user_max: u32,
    /// Most bytes mapped for links that one user asked for.
    pub bytes_per_user_max: u64,
    /// Most connections that have sent nothing; and, separately, most that have yet to pay.
    pub half_open_max: u32,
    /// Most of one user that have been heard and have yet to pay: as many of this user's
    /// credentials are verified, and as many requests wait for the application.
    pub unpaid_per_user_max: u32,
    /// Threads that receive descriptors.
    pub receivers_max: u32,
    /// Most of one user.
    pub receivers_per_user_max: u32,
    /// Most connections that have no place for a link yet: as many as there are descriptors for.
    pub waiting_max: u32,
    /// Time limit for each step of a peer.
    pub step_timeout_ns: u64,
    /// Most bytes of apertures held over one link.
    pub aperture_map_max: u64,
    /// Whether memory that both ends write is shared with processes of other users, too: either end
    /// can then stop the other for any time.
    pub apertures_of_others: bool,
    /// Most apertures of one link and owner.
    pub apertures_per_link_max: u32,
    /// Most apertures held for one user.
    pub apertures_per_user_max: u32,
    /// Most apertures held for all users: as many as there are mappings for.
    pub apertures_max: u32,
}

/// The actions for the driver of the machine, to be performed in order.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Send a frame, now or when there is room.
    Send {
        /// The receiver.
        to: ConnectionId,
        /// The frame.
        frame: Frame,
    },
    /// Send a frame if there is room: the connection is closed next.
    SendLast {
        /// The receiver.
        to: ConnectionId,
        /// The frame.
        frame: Frame,
    },
    /// Close its socket, and forget everything made for it.
    Close(ConnectionId),
    /// Find out which process is at the other end, watch it, and call
    /// [`Machine::verified`](super::Machine::verified): is this credential its own?
    Verify {
        /// The connection.
        of: ConnectionId,
        /// Its credential.
        credential: Box<Credential>,
    },
    /// Connect to the service once more, as the second connection, and send this.
    OpenWake {
        /// The connection.
        of: ConnectionId,
        /// The frame.
        hello: Box<Hello>,
    },
    /// The second socket belongs to a link.
    JoinWake {
        /// The link.
        link: ConnectionId,
        /// The second connection, whose socket it is; forgotten.
        wake: ConnectionId,
    },
    /// Make memory that this process writes, filled if this process pays for it, sealed; call
    /// [`Machine::made`](super::Machine::made).
    Make {
        /// The connection.
        of: ConnectionId,
        /// The memory.
        memory: Memory,
        /// Bytes of the ring.
        bytes: u32,
    },
    /// Send MEMORY_PASS with the descriptor of the memory that was made.
    Pass {
        /// The receiver.
        to: ConnectionId,
        /// The memory.
        memory: Memory,
    },
    /// Receive one descriptor in a thread that nothing else waits for, check and map it; call
    /// [`Machine::taken`](super::Machine::taken). Until then that thread reads the frames of the
    /// connection.
    Take {
        /// The connection.
        from: ConnectionId,
        /// The memory that is expected.
        expected: Expected,
        /// The time limit.
        until_ns: u64,
    },
    /// Check that the other end has paid for every page. If so, touch the pages in a thread that
    /// nothing else waits for; call [`Machine::touched`](super::Machine::touched), and then
    /// [`Machine::receiver_ended`](super::Machine::receiver_ended).
    Touch {
        /// The connection.
        of: ConnectionId,
        /// The memory.
        memory: Memory,
    },
    /// Forget memory that was made or mapped, unless the application has it.
    Drop {
        /// The connection.
        of: ConnectionId,
        /// The memory.
        memory: Memory,
    },
    /// Stop accepting at this listener, or accept again.
    Rest {
        /// The listener.
        service: ServiceId,
        /// Whether to stop.
        is_resting: bool,
    },
    /// Ask for the statistics; call [`Machine::tell_statistics`](super::Machine::tell_statistics).
    Statistics(ConnectionId),
    /// Tell the application. Events are numbered by the order of these, from 1; see
    /// [`Machine::events_taken`](super::Machine::events_taken).
    Tell(MachineEvent),
}

/// Memory that is expected from the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected {
    /// The memory.
    pub memory: Memory,
    /// Bytes; of a ring, those of the ring alone.
    pub bytes: u64,
    /// This process's rights to it.
    pub access: ApertureAccess,
    /// Whether this process pays, by touching it; otherwise the other end has paid.
    pub is_paid_here: bool,
}

/// The result of receiving expected memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemoryOutcome {
    /// Checked and mapped.
    Mapped,
    /// The other end withdrew it.
    Withdrawn,
    /// The system could not receive or map it, for this reason.
    Unavailable(String),
    /// It did not come in time.
    TooSlow,
    /// Something else came, or memory that is not as agreed.
    Wrong,
}

/// The result of touching memory that the other end was to pay for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Touched {
    /// It is paid for, and in memory.
    Yes,
    /// The other end has not paid for every page.
    NotPaid,
    /// The system could not touch it, for this reason.
    Unavailable(String),
}

/// The events for the application. Each is reported once.
#[derive(Clone, Debug, PartialEq)]
pub enum MachineEvent {
    /// A peer wants a link to a service that asks.
    Request {
        /// For the answer.
        id: RequestId,
        /// The peer.
        peer: Peer,
        /// Its first words.
        greeting: Vec<u8>,
    },
    /// A request was withdrawn before it was answered, or did not become a link afterwards.
    RequestGone {
        /// The request.
        id: RequestId,
    },
    /// A link exists: the driver of the machine has its rings and its second socket.
    Connected(AgreedLink),
    /// A link that this process asked for was not made.
    ConnectFailed {
        /// The connection.
        id: ConnectionId,
        /// The reason.
        why: ConnectFailure,
    },
    /// The bulk ring that this process writes exists.
    BulkOutgoing {
        /// The link.
        link: ConnectionId,
    },
    /// The bulk ring that the other process writes exists.
    BulkIncoming {
        /// The link.
        link: ConnectionId,
    },
    /// There will be no bulk ring that this process writes.
    BulkRefused {
        /// The link.
        link: ConnectionId,
        /// The reason.
        why: Reason,
    },
    /// The holder of an aperture has mapped it.
    ApertureReady {
        /// The link.
        link: ConnectionId,
        /// The aperture.
        number: u32,
    },
    /// The other end will not hold the aperture.
    ApertureRefused {
        /// The link.
        link: ConnectionId,
        /// The aperture.
        number: u32,
        /// The reason.
        why: Reason,
    },
    /// The holder has released an aperture.
    ApertureReleased {
        /// The link.
        link: ConnectionId,
        /// The aperture.
        number: u32,
    },
    /// This process holds an aperture of the other end.
    ApertureHeld {
        /// The link.
        link: ConnectionId,
        /// The aperture.
        number: u32,
    },
    /// The other end has taken an aperture back.
    ApertureRevoked {
        /// The link.
        link: ConnectionId,
        /// The aperture.
        number: u32,
    },
    /// The other end refused packets because it has revoked a ticket.
    TicketRevoked {
        /// The link.
        link: ConnectionId,
        /// The slot there.
        slot: u32,
        /// The metadata index there.
        index: u32,
    },
    /// A link ended.
    Closed {
        /// The link.
        link: ConnectionId,
        /// The reason.
        reason: LinkEnd,
    },
}

impl MachineEvent {
    /// The link whose memory or descriptors come with the event.
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
pub struct AgreedLink {
    /// Its name.
    pub link: ConnectionId,
    /// The identity of the other end.
    pub peer: Peer,
    /// The other end's first words.
    pub greeting: Vec<u8>,
    /// Most data bytes of a packet.
    pub packet_bytes: u32,
    /// The features that both ends have.
    pub features: LinkFeatures,
    /// Whether this process connected.
    pub initiated_by_us: bool,
    /// The request that this process accepted, if it was asked.
    pub request: Option<RequestId>,
}

/// An answer that could not be given. The request is unchanged, unless the variant says otherwise.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[cfg_attr(not(feature = "unstable-internals"), non_exhaustive)]
pub enum AcceptError {
    /// The request does not exist: it never did, was answered, or its process went away.
    #[error("request {} is not waiting for an answer", .0.0)]
    NoSuchRequest(RequestId),
    /// There is no room; the request was refused for that reason.
    #[error("the request was refused: {0}")]
    Refused(Reason),
    /// The greeting is longer than a frame takes.
    #[error("a greeting of {0} bytes; at most {GREETING_BYTES_MAX} are allowed")]
    GreetingTooLong(usize),
    /// This process is a child of the one that started the control plane.
    #[error("{FORKED}")]
    Forked,
}

/// The part that refused a request, for the counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusedBy {
    /// The program.
    Application,
    /// An end point, which has its maximum of peers, in all or of that user.
    Places,
    /// An end point, which cannot use the greeting; or there is no such end point.
    EndPoint,
    /// An end point that is ending: the next server of the name may accept.
    Ending,
}

impl RefusedBy {
    /// The reason that the other end gets.
    pub(in crate::control) fn reason(self) -> Reason {
        match self {
            Self::Application | Self::EndPoint => Reason::Application,
            Self::Places => Reason::Places,
            Self::Ending => Reason::Ending,
        }
    }
}

/// The places and bytes that connections and their users have. All zero without connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChargedPlaces {
    /// Connections, links included.
    pub connections: usize,
    /// Links, and places for them.
    pub links: u32,
    /// Links that have ended, whose last events the application has yet to take: they still count
    /// to their users.
    pub ended: usize,
    /// Users with anything in their account.
    pub users: usize,
    /// Bytes charged to the user who has most of them.
    pub bytes_of_one_user: u64,
    /// Threads that receive descriptors.
    pub receivers: u32,
    /// Memory that waits for a receiver.
    pub windows: usize,
}
