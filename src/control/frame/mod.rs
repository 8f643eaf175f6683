//! The frames of the control socket: two processes tell each other their features, and agree.
//!
//! ```text
//!   client                              server
//!   HELLO (link)      ------------->    may this user? is there room?  (may ask the application)
//!                     <-------------    WELCOME, or REFUSED
//!   second connection:
//!   HELLO (wake, cookie) ---------->
//!   the client's ring, as below
//!                     <-------------    the server's ring, as below
//!                     <-------------    READY
//!   bulk rings, apertures, BYE <--->
//!
//!   writer of the memory (an aperture's owner)               its reader (the holder)
//!   MEMORY_OFFER      ------------->    is there room?
//!                     <-------------    MEMORY_TAKE: now it accepts one descriptor
//!   makes, fills, seals
//!   MEMORY_PASS, the descriptor --->    checks, maps
//!                     <-------------    MEMORY_HELD;  or, in the place of either answer,
//!                                       MEMORY_REFUSED
//!
//!   owner of an aperture                holder
//!   APERTURE_REVOKED  ------------->    each end sends its frame once, in either order;
//!                     <-------------    APERTURE_RELEASED (or MEMORY_REFUSED)
//! ```
//! The number of an aperture tells its owner: odd, the client; even, the server. It is not used
//! again on its link.
//!
//! A frame is one packet of the socket: a [`FrameHead`], then a fixed part. The head and the first words
//! of a HELLO and of a REFUSED never change, so that any two versions can tell one another which
//! they are. A different *major* version is refused, with both numbers. A newer *minor* version
//! only has longer fixed parts, whose ends an older one skips, and more feature bits, of which the
//! common ones apply.
//!
//! This module has the contents of frames; `layout.rs` has their bytes. Never: the order of frames
//! is decided here; the machine decides it.

mod layout;

pub use layout::FrameHead;

pub use crate::wire::Reason;

use super::TOKEN_BYTES_MAX;
use crate::wire::{ApertureAccess, NodeId};
use alloc::string::String;
use alloc::vec::Vec;

/// First bytes of each frame.
pub const MAGIC: [u8; 4] = *b"HMLN";
/// Changes when two versions cannot talk.
pub const VERSION_MAJOR: u16 = 3;
/// Changes when something is added that an older version can do without.
pub const VERSION_MINOR: u16 = 0;
/// Largest frame in bytes.
pub const FRAME_BYTES_MAX: usize = 16 << 10;
/// Most bytes of the text of a REFUSED.
pub(super) const REFUSED_TEXT_MAX: usize = 1024;
/// Bytes of the cookie that pairs the two connections of a link.
pub const COOKIE_BYTES: usize = 16;
/// Bytes of an Ed25519 public key.
pub const PUBLIC_KEY_BYTES: usize = 32;
/// Bytes of an Ed25519 signature.
pub const SIGNATURE_BYTES: usize = 64;

bitflags::bitflags! {
    /// Features of a link beyond carrying packets; those that both ends have are agreed.
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
        /// First frame of the process that connects.
        HELLO = 1;
        /// A refusal, with the reason. The sender closes.
        REFUSED = 2;
        /// The server's consent to a HELLO.
        WELCOME = 3;
        /// The link exists.
        READY = 4;
        /// No more packets will be written; the reader may read those that were.
        BYE = 5;
        /// Statistics, a piece of text.
        STAT_TEXT = 6;
        /// There is, or will be, a memory file for the other end.
        MEMORY_OFFER = 7;
        /// The other end may pass its descriptor now.
        MEMORY_TAKE = 8;
        /// The descriptor comes with this frame.
        MEMORY_PASS = 9;
        /// It has been checked and mapped.
        MEMORY_HELD = 10;
        /// It will not be mapped, or will not be passed.
        MEMORY_REFUSED = 11;
        /// The owner of an aperture has taken its memory back.
        APERTURE_REVOKED = 12;
        /// The holder has released it.
        APERTURE_RELEASED = 13;
        /// Packets came with a key that is no longer valid: a ticket has been revoked.
        TICKET_REVOKED = 14;
    }
}

/// The purpose of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// A new link.
    Link,
    /// The second connection of a link that is being made.
    Wake,
    /// Statistics.
    Stat,
}

/// One end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LinkSide {
    /// The end that connected.
    Client,
    /// The end that accepted.
    Server,
}

impl LinkSide {
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
    /// The ring that a link begins with, by its writer.
    Ring(LinkSide),
    /// The ring that is added when large copies begin, by its writer.
    Bulk(LinkSide),
    /// An aperture, by its number.
    Aperture(u32),
}

impl Memory {
    /// The end that makes it and passes it on: the writer of a ring, the owner of an aperture.
    pub fn maker(self) -> LinkSide {
        match self {
            Self::Ring(end) | Self::Bulk(end) => end,
            Self::Aperture(number) => owner_of(number),
        }
    }
}

/// A client's first frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Its version.
    pub version: (u16, u16),
    /// The purpose of the connection.
    pub purpose: Purpose,
    /// Its features.
    pub features: u64,
    /// The features that it requires.
    pub features_required: u64,
    /// Its proof of the identity of its node.
    pub credential: Credential,
    /// Bytes of the ring that it will write.
    pub ring_bytes: u32,
    /// Most bytes of the ring that it will read; it pays for both.
    pub incoming_ring_bytes_max: u32,
    /// Most data bytes of a packet.
    pub packet_bytes: u32,
    /// Second connection only: the cookie of its link.
    pub cookie: [u8; COOKIE_BYTES],
    /// For a server that admits unknown users by token.
    pub token: [u8; TOKEN_BYTES_MAX],
    /// The application's own first words.
    pub greeting: Vec<u8>,
}

/// A server's consent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// Its minor version.
    pub minor: u16,
    /// Its proof of the identity of its node.
    pub credential: Credential,
    /// The agreed features.
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

/// A process's statement about its node: this process runs the node whose id is the hash of this
/// public key, signed with the key. The kernel tells the other end which process is at the socket,
/// so no other process can use the statement, though every process may see it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Credential {
    /// The node.
    pub node: NodeId,
    /// The number that only its process has until the machine restarts; 0 if the kernel has none.
    pub process: u64,
    /// The namespace in which `pid` counts.
    pub pid_namespace: u64,
    /// Its process, in that namespace.
    pub pid: u32,
    /// The start of the machine: numbers of processes begin anew with each start.
    pub boot: [u8; 16],
    /// The node's public key.
    pub public_key: [u8; PUBLIC_KEY_BYTES],
    /// Of all of the above, by that key.
    pub signature: [u8; SIGNATURE_BYTES],
}

impl Credential {
    /// No node's: for a second connection, and for statistics.
    pub const NONE: Self = Self {
        node: NodeId(0),
        process: 0,
        pid_namespace: 0,
        pid: 0,
        boot: [0; 16],
        public_key: [0; PUBLIC_KEY_BYTES],
        signature: [0; SIGNATURE_BYTES],
    };
}

impl core::fmt::Debug for Credential {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Credential({:?}, process {})", self.node, self.pid)
    }
}

/// A frame that has been read and makes sense by itself. The reader's state decides whether it was
/// its turn.
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
        /// In words, at most 1 KiB as it came; only printable characters
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
        /// The memory.
        memory: Memory,
        /// The statement about it.
        word: MemoryWord,
    },
    /// See [`kind::APERTURE_REVOKED`].
    ApertureRevoked {
        /// Its number on this link.
        number: u32,
    },
    /// See [`kind::APERTURE_RELEASED`].
    ApertureReleased {
        /// Its number on this link.
        number: u32,
    },
    /// See [`kind::TICKET_REVOKED`].
    TicketRevoked {
        /// The slot of the ticket, at the end that sends this.
        slot: u32,
        /// Its metadata index.
        index: u32,
    },
}

/// A frame's statement about memory that will be passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryWord {
    /// See [`kind::MEMORY_OFFER`].
    Offer {
        /// Bytes of the file, of a ring those of the ring alone.
        bytes: u64,
        /// The other end's rights to it.
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

/// The owner of the aperture with a number.
pub fn owner_of(number: u32) -> LinkSide {
    if number % 2 == 1 { LinkSide::Client } else { LinkSide::Server }
}

/// Bytes that are no frame of any version that this one can talk to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Not a frame of this library.
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
