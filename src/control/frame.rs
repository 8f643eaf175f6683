//! The frames of the control socket: how two processes find out what both can, and agree.
//!
//! ```text
//!   client                              server
//!   HELLO (link)      ------------->    who is it? is there room?  (may ask the application)
//!                     <-------------    WELCOME, or REFUSED
//!   second connection:
//!   HELLO (wake, cookie) ---------->
//!   the client's ring, as below
//!                     <-------------    the server's ring, as below
//!                     <-------------    READY
//!   bulk rings, apertures, BYE <--->
//!
//!   who writes the memory (for an aperture: its owner)       who reads it (its holder)
//!   MEMORY_OFFER      ------------->    is there room?
//!                     <-------------    MEMORY_TAKE: now it accepts one descriptor
//!   makes, fills, seals
//!   MEMORY_PASS, the descriptor --->    checks, maps
//!                     <-------------    MEMORY_HELD;  or, in the place of either answer,
//!                                       MEMORY_REFUSED
//!
//!   owner of an aperture                holder
//!   APERTURE_REVOKED  ------------->    each end says its word once, in either order;
//!                     <-------------    APERTURE_RELEASED (or MEMORY_REFUSED)
//! ```
//! The number of an aperture says who owns it: odd, the client; even, the server. It is not used
//! again on its link.
//!
//! A frame is one packet of the socket: a [`Head`], then a fixed part. The head and the first
//! words of a HELLO and of a REFUSED never change, so that any two versions can tell one another
//! what they are. A *major* version that differs is refused, by both numbers; a *minor* one that
//! is newer has only longer fixed parts, whose ends an older one passes over, and more feature
//! bits, of which the common ones hold.
//!
//! Everything that is read here was written by a stranger. Never: a length out of a frame is used
//! before it has been compared with the frame.

use super::{GREETING_BYTES_MAX, TOKEN_BYTES_MAX, printable_bytes};
use crate::wire::{ApertureAccess, NodeId};
use alloc::string::String;
use alloc::vec::Vec;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// First bytes of each frame.
pub const MAGIC: [u8; 4] = *b"HMLN";
/// Changes when two versions cannot talk.
pub const VERSION_MAJOR: u16 = 2;
/// Changes when something is added that an older one can do without.
pub const VERSION_MINOR: u16 = 0;
/// Largest frame in bytes.
pub const FRAME_BYTES_MAX: usize = 16 << 10;
/// Bytes of the cookie that pairs the two connections of a link.
pub const COOKIE_BYTES: usize = 16;
/// Bytes of an Ed25519 public key.
pub const PUBLIC_KEY_BYTES: usize = 32;
/// Bytes of an Ed25519 signature.
pub const SIGNATURE_BYTES: usize = 64;

bitflags::bitflags! {
    /// What a link can do beyond carrying packets; what both ends can is agreed.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct LinkFeatures: u64 {
        /// The process has registered for `MEMBARRIER_CMD_GLOBAL_EXPEDITED` and can issue it:
        /// its peers need no fence on each send to wake it, nor it to wake them.
        const BARRIER = 1;
        /// Bulk rings may be added.
        const BULK = 2;
        /// Apertures may be exported.
        const APERTURE = 4;
        /// The process wakes its peer by a word of its own page where the peer's sleep or room
        /// word asks for that, instead of by a byte on the wake socket.
        const BELL = 8;
    }
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $value:literal;)+) => {
        $($(#[$doc])* pub const $name: u16 = $value;)+
    };
}

/// Kinds of frames.
pub mod kind {
    kinds! {
        /// First frame of whoever connects.
        HELLO = 1;
        /// No, and why. The sender closes.
        REFUSED = 2;
        /// The server's answer to a HELLO that it agrees to.
        WELCOME = 3;
        /// The link is there.
        READY = 4;
        /// No more packets will be written; what was written is to be read.
        BYE = 5;
        /// Statistics, a piece of text.
        STAT_TEXT = 6;
        /// There is, or will be, a memory file for the other end.
        MEMORY_OFFER = 7;
        /// The other end may pass its descriptor now.
        MEMORY_TAKE = 8;
        /// Here it is.
        MEMORY_PASS = 9;
        /// It has been checked and mapped.
        MEMORY_HELD = 10;
        /// It will not be mapped, or will not be passed.
        MEMORY_REFUSED = 11;
        /// The owner of an aperture has taken its memory back.
        APERTURE_REVOKED = 12;
        /// The holder has let go of it.
        APERTURE_RELEASED = 13;
        /// Packets came with a key that is no longer valid: a ticket has been revoked.
        TICKET_REVOKED = 14;
    }
}

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// A new link.
    Link,
    /// The second connection of a link that is being made.
    Wake,
    /// Statistics.
    Stat,
}

/// Begins each frame.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Head {
    /// [`MAGIC`].
    pub magic: [u8; 4],
    /// One of [`kind`].
    pub kind: U16,
    /// Bytes of the fixed part, this head included; what follows is of variable length.
    pub fixed_bytes: U16,
}

/// What a process says, and proves, of its node: see [`Credential`].
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct CredentialWords {
    node: U64,
    process: U64,
    pid_namespace: U64,
    pid: U32,
    reserved: U32,
    boot: [u8; 16],
    public_key: [u8; PUBLIC_KEY_BYTES],
    signature: [u8; SIGNATURE_BYTES],
}

/// HELLO.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct HelloFrame {
    head: Head,
    major: U16,
    minor: U16,
    purpose: U16,
    greeting_bytes: U16,
    features: U64,
    features_required: U64,
    ring_bytes: U32,
    incoming_ring_bytes_max: U32,
    packet_bytes: U32,
    reserved: U32,
    cookie: [u8; COOKIE_BYTES],
    token: [u8; TOKEN_BYTES_MAX],
    credential: CredentialWords,
}

/// REFUSED.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RefusedFrame {
    head: Head,
    major: U16,
    minor: U16,
    reason: U16,
    text_bytes: U16,
}

/// WELCOME.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct WelcomeFrame {
    head: Head,
    minor: U16,
    greeting_bytes: U16,
    packet_bytes: U32,
    features: U64,
    client_ring_bytes: U32,
    server_ring_bytes: U32,
    cookie: [u8; COOKIE_BYTES],
    credential: CredentialWords,
}

/// MEMORY_..: all of them, APERTURE_..: both, and TICKET_REVOKED.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct MemoryFrame {
    head: Head,
    /// 0: a ring, 1: a bulk ring, 2: an aperture.
    memory: U16,
    /// Of a ring: which end writes it.
    writer: U16,
    /// Of an aperture, or the slot of a ticket.
    number: U32,
    access: U16,
    reason: U16,
    /// The metadata index of a ticket.
    index: U32,
    bytes: U64,
}

/// STAT_TEXT.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct StatFrame {
    head: Head,
    is_last: U16,
    reserved: U16,
    text_bytes: U32,
}

const _: () = {
    // The frames have no padding (they are `Unaligned`), and these sizes are those of version 2.
    assert!(size_of::<Head>() == 8 && size_of::<CredentialWords>() == 144);
    assert!(size_of::<HelloFrame>() == 240 && size_of::<RefusedFrame>() == 16);
    assert!(size_of::<WelcomeFrame>() == 192 && size_of::<StatFrame>() == 16);
    assert!(size_of::<MemoryFrame>() == 32);
    assert!(size_of::<HelloFrame>() + GREETING_BYTES_MAX <= FRAME_BYTES_MAX);
};

/// One end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum End {
    /// The end that connected.
    Client,
    /// The end that accepted.
    Server,
}

impl End {
    /// The one at the other end.
    pub fn other(self) -> Self {
        match self {
            Self::Client => Self::Server,
            Self::Server => Self::Client,
        }
    }
}

/// Memory that one end of a link makes and writes, and the other maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Memory {
    /// The ring that a link begins with, by who writes it.
    Ring(End),
    /// The ring that is added when large copies begin, by who writes it.
    Bulk(End),
    /// An aperture, by its number.
    Aperture(u32),
}

impl Memory {
    /// Who makes it and passes it on: who writes a ring, who owns an aperture.
    pub fn maker(self) -> End {
        match self {
            Self::Ring(end) | Self::Bulk(end) => end,
            Self::Aperture(number) => owner_of(number),
        }
    }
}

/// Why a peer says no.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// The versions cannot talk.
    Version,
    /// A feature that one requires, the other lacks.
    Feature,
    /// The user may not.
    User,
    /// The user has too many connections.
    Connections,
    /// The user has too many bytes mapped.
    Bytes,
    /// The process has too many links.
    Links,
    /// The application said no.
    Application,
    /// The frame made no sense.
    Malformed,
    /// It took too long.
    TooSlow,
    /// The memory was not as agreed.
    Memory,
    /// The process is ending, or could not get what it needed.
    Unavailable,
    /// More bytes of apertures, or more of them, than it holds for this link.
    Apertures,
    /// It claimed to be a node, and could not prove it.
    Identity,
    /// Something that a newer version has a word for.
    Other(u16),
}

impl Reason {
    const ALL: [(Self, u16, &'static str); 13] = [
        (Self::Version, 1, "the versions cannot talk"),
        (Self::Feature, 2, "a required feature is missing"),
        (Self::User, 3, "this user may not connect"),
        (Self::Connections, 4, "this user has too many connections"),
        (Self::Bytes, 5, "this user has too many bytes of rings"),
        (Self::Links, 6, "the process has too many links"),
        (Self::Application, 7, "the application refused"),
        (Self::Malformed, 8, "the request made no sense"),
        (Self::TooSlow, 9, "it took too long"),
        (Self::Memory, 10, "the memory was not as agreed"),
        (Self::Unavailable, 11, "the process cannot take links now"),
        (
            Self::Apertures,
            12,
            "the process holds no more apertures over this link, or of this user, or none so large",
        ),
        (Self::Identity, 13, "it is not the node that it says it is"),
    ];

    fn to_wire(self) -> u16 {
        match self {
            Self::Other(code) => code,
            _ => Self::ALL.iter().find(|row| row.0 == self).map_or(0, |row| row.1),
        }
    }

    fn from_wire(code: u16) -> Self {
        Self::ALL.iter().find(|row| row.1 == code).map_or(Self::Other(code), |row| row.0)
    }
}

impl core::fmt::Display for Reason {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Other(code) => write!(f, "for a reason with the number {code}"),
            _ => f.write_str(Self::ALL.iter().find(|row| row.0 == *self).map_or("", |row| row.2)),
        }
    }
}

/// What a client says first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Its version.
    pub version: (u16, u16),
    /// What the connection is for.
    pub purpose: Purpose,
    /// What it can.
    pub features: u64,
    /// What it cannot do without.
    pub features_required: u64,
    /// Which node it is.
    pub credential: Credential,
    /// Bytes of the ring that it will write.
    pub ring_bytes: u32,
    /// Most bytes of the ring that it will read; it pays for both.
    pub incoming_ring_bytes_max: u32,
    /// Most data bytes of a packet.
    pub packet_bytes: u32,
    /// Second connection only: which link it belongs to.
    pub cookie: [u8; COOKIE_BYTES],
    /// For a server that admits unknown users by token.
    pub token: [u8; TOKEN_BYTES_MAX],
    /// The application's own first words.
    pub greeting: Vec<u8>,
}

/// What a server agrees to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// Its minor version.
    pub minor: u16,
    /// Which node it is.
    pub credential: Credential,
    /// What was agreed.
    pub features: u64,
    /// Bytes of the ring that the client writes.
    pub client_ring_bytes: u32,
    /// Bytes of the ring that the server writes.
    pub server_ring_bytes: u32,
    /// Most data bytes of a packet.
    pub packet_bytes: u32,
    /// For the second connection.
    pub cookie: [u8; COOKIE_BYTES],
    /// The application's own first words.
    pub greeting: Vec<u8>,
}

/// What a process says of its node: that the node whose id is the hash of this public key is run
/// by this process, signed with the key. The kernel tells the other end which process is at the
/// socket, so nobody else can use the statement, though everybody may see it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Credential {
    /// The node.
    pub node: NodeId,
    /// The number that only its process has while the machine runs; 0 where the kernel has none.
    pub process: u64,
    /// The namespace in which `pid` is meant.
    pub pid_namespace: u64,
    /// Its process, in that namespace.
    pub pid: u32,
    /// Since when the machine has run: numbers of processes begin anew with each start.
    pub boot: [u8; 16],
    /// The node's public key.
    pub public_key: [u8; PUBLIC_KEY_BYTES],
    /// Of all of the above, by that key.
    pub signature: [u8; SIGNATURE_BYTES],
}

impl Credential {
    /// Of nobody: for a second connection, and for statistics.
    pub const NONE: Self = Self {
        node: NodeId(0),
        process: 0,
        pid_namespace: 0,
        pid: 0,
        boot: [0; 16],
        public_key: [0; PUBLIC_KEY_BYTES],
        signature: [0; SIGNATURE_BYTES],
    };

    fn to_words(self) -> CredentialWords {
        CredentialWords {
            node: self.node.0.into(),
            process: self.process.into(),
            pid_namespace: self.pid_namespace.into(),
            pid: self.pid.into(),
            reserved: 0.into(),
            boot: self.boot,
            public_key: self.public_key,
            signature: self.signature,
        }
    }

    fn from_words(words: &CredentialWords) -> Self {
        Self {
            node: NodeId(words.node.get()),
            process: words.process.get(),
            pid_namespace: words.pid_namespace.get(),
            pid: words.pid.get(),
            boot: words.boot,
            public_key: words.public_key,
            signature: words.signature,
        }
    }
}

impl core::fmt::Debug for Credential {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Credential({:?}, process {})", self.node, self.pid)
    }
}

/// A frame that has been read and makes sense by itself. Whether it was its turn is for the
/// reader's state to say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// See [`kind::HELLO`].
    Hello(Hello),
    /// See [`kind::REFUSED`].
    Refused {
        /// Why.
        reason: Reason,
        /// The other's version.
        version: (u16, u16),
        /// In words, at most 1 KiB as it came; nothing in it but what can be read
        /// ([`printable`](super::printable)).
        text: String,
    },
    /// See [`kind::WELCOME`].
    Welcome(Welcome),
    /// See [`kind::READY`].
    Ready,
    /// See [`kind::BYE`].
    Bye,
    /// See [`kind::STAT_TEXT`].
    StatText {
        /// A piece of it.
        text: Vec<u8>,
        /// Whether it is the last.
        is_last: bool,
    },
    /// One of [`kind`]'s MEMORY_.. frames.
    Memory {
        /// Which memory.
        memory: Memory,
        /// What is said of it.
        word: MemoryWord,
    },
    /// See [`kind::APERTURE_REVOKED`].
    ApertureRevoked {
        /// Which, on this link.
        number: u32,
    },
    /// See [`kind::APERTURE_RELEASED`].
    ApertureReleased {
        /// Which, on this link.
        number: u32,
    },
    /// See [`kind::TICKET_REVOKED`].
    TicketRevoked {
        /// The slot of the ticket, at the end that says so.
        slot: u32,
        /// Its metadata index.
        index: u32,
    },
}

/// What is said of memory that is to be passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryWord {
    /// See [`kind::MEMORY_OFFER`].
    Offer {
        /// Bytes of the file, of a ring those of the ring alone.
        bytes: u64,
        /// What the other end may do with it.
        access: ApertureAccess,
    },
    /// See [`kind::MEMORY_TAKE`].
    Take {
        /// Bytes of the file, of a ring those of the ring alone; for a bulk ring, fewer than were
        /// offered if less is allowed.
        bytes: u64,
    },
    /// See [`kind::MEMORY_PASS`].
    Pass,
    /// See [`kind::MEMORY_HELD`].
    Held,
    /// See [`kind::MEMORY_REFUSED`].
    Refused(Reason),
}

/// Who owns the aperture with a number.
pub fn owner_of(number: u32) -> End {
    if number % 2 == 1 { End::Client } else { End::Server }
}

/// Bytes that are no frame of any version that this one can talk to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Not ours at all.
    #[error("not a frame of this protocol")]
    NotOurs,
    /// Shorter than its kind is.
    #[error("a frame of {0} bytes is too short for its kind")]
    TooShort(usize),
    /// A length in it does not fit.
    #[error("a length in the frame does not fit it")]
    WrongLength,
    /// A kind without a meaning.
    #[error("a frame of kind {0} has no meaning")]
    UnknownKind(u16),
    /// A value without a meaning.
    #[error("the frame's {0} has no meaning")]
    WrongValue(&'static str),
    /// A HELLO of another major version.
    #[error("the peer speaks version {major}.{minor}")]
    Version {
        /// Its major version.
        major: u16,
        /// Its minor version.
        minor: u16,
    },
}

const REFUSED_TEXT_MAX: usize = 1024;

fn head(kind: u16, fixed_bytes: usize) -> Head {
    Head { magic: MAGIC, kind: kind.into(), fixed_bytes: (fixed_bytes as u16).into() }
}

fn simple(kind: u16) -> Vec<u8> {
    head(kind, size_of::<Head>()).as_bytes().to_vec()
}

fn with_tail(fixed: &[u8], tail: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(fixed.len() + tail.len());
    bytes.extend_from_slice(fixed);
    bytes.extend_from_slice(tail);
    bytes
}

fn numbered(kind: u16, number: u32, index: u32) -> MemoryFrame {
    MemoryFrame {
        head: head(kind, size_of::<MemoryFrame>()),
        memory: 2.into(),
        writer: 0.into(),
        number: number.into(),
        access: 0.into(),
        reason: 0.into(),
        index: index.into(),
        bytes: 0.into(),
    }
}

fn memory_frame(memory: Memory, word: MemoryWord) -> Vec<u8> {
    let kind = match word {
        MemoryWord::Offer { .. } => kind::MEMORY_OFFER,
        MemoryWord::Take { .. } => kind::MEMORY_TAKE,
        MemoryWord::Pass => kind::MEMORY_PASS,
        MemoryWord::Held => kind::MEMORY_HELD,
        MemoryWord::Refused(_) => kind::MEMORY_REFUSED,
    };
    let mut frame = numbered(kind, 0, 0);
    match memory {
        Memory::Ring(end) => (frame.memory, frame.writer) = (0.into(), (end as u16).into()),
        Memory::Bulk(end) => (frame.memory, frame.writer) = (1.into(), (end as u16).into()),
        Memory::Aperture(number) => frame.number = number.into(),
    }
    match word {
        MemoryWord::Offer { bytes, access } => {
            frame.bytes = bytes.into();
            frame.access = u16::from(access == ApertureAccess::ReadOnly).into();
        }
        MemoryWord::Take { bytes } => frame.bytes = bytes.into(),
        MemoryWord::Refused(why) => frame.reason = why.to_wire().into(),
        MemoryWord::Pass | MemoryWord::Held => {}
    }
    frame.as_bytes().to_vec()
}

impl Frame {
    /// The frame as it is sent.
    pub fn to_bytes(&self) -> Vec<u8> {
        match self {
            Self::Hello(hello) => {
                let frame = HelloFrame {
                    head: head(kind::HELLO, size_of::<HelloFrame>()),
                    major: hello.version.0.into(),
                    minor: hello.version.1.into(),
                    purpose: (hello.purpose as u16).into(),
                    greeting_bytes: (hello.greeting.len() as u16).into(),
                    features: hello.features.into(),
                    features_required: hello.features_required.into(),
                    ring_bytes: hello.ring_bytes.into(),
                    incoming_ring_bytes_max: hello.incoming_ring_bytes_max.into(),
                    packet_bytes: hello.packet_bytes.into(),
                    reserved: 0.into(),
                    cookie: hello.cookie,
                    token: hello.token,
                    credential: hello.credential.to_words(),
                };
                with_tail(frame.as_bytes(), &hello.greeting)
            }
            Self::Refused { reason, version, text } => {
                let text = &text.as_bytes()[..text.len().min(REFUSED_TEXT_MAX)];
                let frame = RefusedFrame {
                    head: head(kind::REFUSED, size_of::<RefusedFrame>()),
                    major: version.0.into(),
                    minor: version.1.into(),
                    reason: reason.to_wire().into(),
                    text_bytes: (text.len() as u16).into(),
                };
                with_tail(frame.as_bytes(), text)
            }
            Self::Welcome(welcome) => {
                let frame = WelcomeFrame {
                    head: head(kind::WELCOME, size_of::<WelcomeFrame>()),
                    minor: welcome.minor.into(),
                    greeting_bytes: (welcome.greeting.len() as u16).into(),
                    packet_bytes: welcome.packet_bytes.into(),
                    features: welcome.features.into(),
                    client_ring_bytes: welcome.client_ring_bytes.into(),
                    server_ring_bytes: welcome.server_ring_bytes.into(),
                    cookie: welcome.cookie,
                    credential: welcome.credential.to_words(),
                };
                with_tail(frame.as_bytes(), &welcome.greeting)
            }
            Self::Ready => simple(kind::READY),
            Self::Bye => simple(kind::BYE),
            Self::StatText { text, is_last } => {
                let frame = StatFrame {
                    head: head(kind::STAT_TEXT, size_of::<StatFrame>()),
                    is_last: (*is_last as u16).into(),
                    reserved: 0.into(),
                    text_bytes: (text.len() as u32).into(),
                };
                with_tail(frame.as_bytes(), text)
            }
            Self::Memory { memory, word } => memory_frame(*memory, *word),
            Self::ApertureRevoked { number } => {
                numbered(kind::APERTURE_REVOKED, *number, 0).as_bytes().to_vec()
            }
            Self::ApertureReleased { number } => {
                numbered(kind::APERTURE_RELEASED, *number, 0).as_bytes().to_vec()
            }
            Self::TicketRevoked { slot, index } => {
                numbered(kind::TICKET_REVOKED, *slot, *index).as_bytes().to_vec()
            }
        }
    }

    /// Reads what anybody may have written.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, FrameError> {
        let (head, _) = Head::read_from_prefix(bytes).map_err(|_| FrameError::NotOurs)?;
        if head.magic != MAGIC {
            return Err(FrameError::NotOurs);
        }
        let fixed = head.fixed_bytes.get() as usize;
        if fixed < size_of::<Head>() || fixed > bytes.len() {
            return Err(FrameError::WrongLength);
        }
        let (fixed, tail) = bytes.split_at(fixed);
        let too_short = || FrameError::TooShort(bytes.len());
        let whole_tail = |claimed: usize, max: usize| {
            if claimed == tail.len() && claimed <= max {
                Ok(tail.to_vec())
            } else {
                Err(FrameError::WrongLength)
            }
        };
        match head.kind.get() {
            kind::HELLO => {
                // The version lies where every version has it.
                let word = |at: usize| {
                    let pair = fixed.get(at..at + 2).ok_or_else(too_short)?;
                    Ok(u16::from_le_bytes([pair[0], pair[1]]))
                };
                let (major, minor) = (word(8)?, word(10)?);
                if major != VERSION_MAJOR {
                    return Err(FrameError::Version { major, minor });
                }
                let (hello, _) = HelloFrame::read_from_prefix(fixed).map_err(|_| too_short())?;
                Ok(Self::Hello(Hello {
                    version: (major, minor),
                    purpose: match hello.purpose.get() {
                        0 => Purpose::Link,
                        1 => Purpose::Wake,
                        2 => Purpose::Stat,
                        _ => return Err(FrameError::WrongValue("purpose")),
                    },
                    features: hello.features.get(),
                    features_required: hello.features_required.get(),
                    credential: Credential::from_words(&hello.credential),
                    ring_bytes: hello.ring_bytes.get(),
                    incoming_ring_bytes_max: hello.incoming_ring_bytes_max.get(),
                    packet_bytes: hello.packet_bytes.get(),
                    cookie: hello.cookie,
                    token: hello.token,
                    greeting: whole_tail(hello.greeting_bytes.get() as usize, GREETING_BYTES_MAX)?,
                }))
            }
            kind::REFUSED => {
                let (refused, _) =
                    RefusedFrame::read_from_prefix(fixed).map_err(|_| too_short())?;
                let text = whole_tail(refused.text_bytes.get() as usize, REFUSED_TEXT_MAX)?;
                // It will be printed on somebody's terminal.
                let text = printable_bytes(&text);
                Ok(Self::Refused {
                    reason: Reason::from_wire(refused.reason.get()),
                    version: (refused.major.get(), refused.minor.get()),
                    text,
                })
            }
            kind::WELCOME => {
                let (welcome, _) =
                    WelcomeFrame::read_from_prefix(fixed).map_err(|_| too_short())?;
                let greeting_bytes = welcome.greeting_bytes.get() as usize;
                Ok(Self::Welcome(Welcome {
                    minor: welcome.minor.get(),
                    credential: Credential::from_words(&welcome.credential),
                    features: welcome.features.get(),
                    client_ring_bytes: welcome.client_ring_bytes.get(),
                    server_ring_bytes: welcome.server_ring_bytes.get(),
                    packet_bytes: welcome.packet_bytes.get(),
                    cookie: welcome.cookie,
                    greeting: whole_tail(greeting_bytes, GREETING_BYTES_MAX)?,
                }))
            }
            kind::READY => Ok(Self::Ready),
            kind::BYE => Ok(Self::Bye),
            kind::STAT_TEXT => {
                let (stat, _) = StatFrame::read_from_prefix(fixed).map_err(|_| too_short())?;
                let text = whole_tail(stat.text_bytes.get() as usize, FRAME_BYTES_MAX)?;
                Ok(Self::StatText { text, is_last: stat.is_last.get() != 0 })
            }
            kind @ kind::MEMORY_OFFER..=kind::TICKET_REVOKED => {
                let (frame, _) = MemoryFrame::read_from_prefix(fixed).map_err(|_| too_short())?;
                let number = frame.number.get();
                match kind {
                    kind::APERTURE_REVOKED => return Ok(Self::ApertureRevoked { number }),
                    kind::APERTURE_RELEASED => return Ok(Self::ApertureReleased { number }),
                    kind::TICKET_REVOKED => {
                        return Ok(Self::TicketRevoked { slot: number, index: frame.index.get() });
                    }
                    _ => {}
                }
                let writer = match frame.writer.get() {
                    0 => End::Client,
                    1 => End::Server,
                    _ => return Err(FrameError::WrongValue("writer")),
                };
                let memory = match frame.memory.get() {
                    0 => Memory::Ring(writer),
                    1 => Memory::Bulk(writer),
                    2 => Memory::Aperture(number),
                    _ => return Err(FrameError::WrongValue("memory")),
                };
                let access = match frame.access.get() {
                    0 => ApertureAccess::ReadWrite,
                    1 => ApertureAccess::ReadOnly,
                    _ => return Err(FrameError::WrongValue("access")),
                };
                let word = match kind {
                    kind::MEMORY_OFFER => MemoryWord::Offer { bytes: frame.bytes.get(), access },
                    kind::MEMORY_TAKE => MemoryWord::Take { bytes: frame.bytes.get() },
                    kind::MEMORY_PASS => MemoryWord::Pass,
                    kind::MEMORY_HELD => MemoryWord::Held,
                    _ => MemoryWord::Refused(Reason::from_wire(frame.reason.get())),
                };
                Ok(Self::Memory { memory, word })
            }
            other => Err(FrameError::UnknownKind(other)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn credential() -> Credential {
        Credential {
            node: NodeId(u64::MAX - 7),
            process: 1 << 40,
            pid_namespace: 3,
            pid: 77,
            boot: [1; 16],
            public_key: [2; 32],
            signature: [3; 64],
        }
    }

    fn hello() -> Hello {
        Hello {
            version: (VERSION_MAJOR, 3),
            purpose: Purpose::Wake,
            features: 1 << 60 | 3,
            features_required: 2,
            credential: credential(),
            ring_bytes: 32768,
            incoming_ring_bytes_max: 65536,
            packet_bytes: 16384,
            cookie: [9; 16],
            token: [7; 32],
            greeting: alloc::vec![1, 2, 3],
        }
    }

    fn frames() -> Vec<Frame> {
        let memory = |memory, word| Frame::Memory { memory, word };
        let (bytes, access) = (1 << 40, ApertureAccess::ReadOnly);
        alloc::vec![
            Frame::Hello(hello()),
            Frame::Refused { reason: Reason::Bytes, version: (1, 2), text: "no".into() },
            Frame::Refused { reason: Reason::Other(999), version: (1, 2), text: String::new() },
            Frame::Welcome(Welcome {
                minor: 1,
                credential: credential(),
                features: 3,
                client_ring_bytes: 512,
                server_ring_bytes: 1024,
                packet_bytes: 64,
                cookie: [3; 16],
                greeting: alloc::vec![0; GREETING_BYTES_MAX],
            }),
            Frame::Ready,
            Frame::Bye,
            Frame::StatText { text: b"links 3".to_vec(), is_last: true },
            memory(Memory::Ring(End::Client), MemoryWord::Offer { bytes, access }),
            memory(Memory::Ring(End::Server), MemoryWord::Take { bytes: 4096 }),
            memory(Memory::Bulk(End::Client), MemoryWord::Pass),
            memory(Memory::Bulk(End::Server), MemoryWord::Held),
            memory(Memory::Aperture(u32::MAX), MemoryWord::Refused(Reason::Apertures)),
            Frame::ApertureRevoked { number: 1 },
            Frame::ApertureReleased { number: 2 },
            Frame::TicketRevoked { slot: 3, index: u32::MAX },
        ]
    }

    #[test]
    fn each_frame_survives_its_bytes() {
        for frame in frames() {
            let bytes = frame.to_bytes();
            assert!(bytes.len() <= FRAME_BYTES_MAX);
            assert_eq!(Frame::from_bytes(&bytes), Ok(frame));
        }
    }

    #[test]
    fn a_newer_minor_version_with_a_longer_frame_is_understood() {
        let mut bytes = Frame::Hello(hello()).to_bytes();
        let fixed = size_of::<HelloFrame>();
        bytes.splice(fixed..fixed, [0xee; 24]);
        bytes[6..8].copy_from_slice(&(fixed as u16 + 24).to_le_bytes());
        assert_eq!(Frame::from_bytes(&bytes), Ok(Frame::Hello(hello())));
    }

    #[test]
    fn another_major_version_is_told_apart_from_garbage() {
        let mut bytes = Frame::Hello(hello()).to_bytes();
        bytes[8..10].copy_from_slice(&9u16.to_le_bytes());
        // Whatever else that version has.
        bytes.truncate(20);
        bytes[6..8].copy_from_slice(&20u16.to_le_bytes());
        assert_eq!(Frame::from_bytes(&bytes), Err(FrameError::Version { major: 9, minor: 3 }));
        assert_eq!(Frame::from_bytes(b"GET / HTTP/1.1"), Err(FrameError::NotOurs));
        assert_eq!(Frame::from_bytes(b""), Err(FrameError::NotOurs));
    }

    #[test]
    fn a_refusal_carries_nothing_that_a_terminal_obeys() {
        let text = "a\x1b[2Jb\nc\u{202e}d".into();
        let bytes = Frame::Refused { reason: Reason::User, version: (1, 0), text }.to_bytes();
        let Ok(Frame::Refused { text, .. }) = Frame::from_bytes(&bytes) else { panic!() };
        assert_eq!(text, r"a\u{1b}[2Jb\nc\u{202e}d");
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_frame_or_an_error(
            kind in 0u16..20,
            fixed in 0u16..260,
            bytes in proptest::collection::vec(any::<u8>(), 0..300),
            from in any::<bool>(),
        ) {
            let mut bytes = bytes;
            if from && bytes.len() >= 8 {
                bytes[..4].copy_from_slice(&MAGIC);
                bytes[4..6].copy_from_slice(&kind.to_le_bytes());
                bytes[6..8].copy_from_slice(&fixed.to_le_bytes());
            }
            let _ = Frame::from_bytes(&bytes);
        }

        #[test]
        fn a_damaged_frame_is_a_frame_or_an_error(
            which in 0usize..15, at in any::<prop::sample::Index>(), value in any::<u8>(), cut in 0usize..9,
        ) {
            let mut bytes = frames()[which].to_bytes();
            let at = at.index(bytes.len());
            bytes[at] = value;
            bytes.truncate(bytes.len() - cut.min(bytes.len()));
            let _ = Frame::from_bytes(&bytes);
        }
    }
}
