//! The frames of the control socket: how two processes find out what both can, and agree.
//!
//! ```text
//!   client                              server
//!   HELLO (link)      ------------->    who is it? is there room?  (may ask the application)
//!                     <-------------    OFFER, two memory files;  or REFUSED
//!   maps, touches every page
//!   second connection:
//!   HELLO (wake, cookie) ---------->
//!   FILLED            ------------->    seals, checks, maps
//!                     <-------------    READY
//!   BULK_.., BYE      <------------>
//!
//!   owner of an aperture                holder
//!   REQUEST (client)  ------------->    makes the memory file
//!                     <-------------    OFFER, one memory file;  or REFUSED
//!   maps, touches every page
//!   FILLED            ------------->    seals, checks, maps
//!                     <-------------    READY
//!   OFFER (server), a memory file -->   checks, maps
//!                     <-------------    READY;  or REFUSED
//!   REVOKED           ------------->    each end says its word once, in either order;
//!                     <-------------    RELEASED (or REFUSED)     with both the aperture is over
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

use super::GREETING_BYTES_MAX;
use crate::os::aperture::ApertureAccess;
use std::string::String;
use std::vec::Vec;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// First bytes of each frame.
pub const MAGIC: [u8; 4] = *b"HMLN";
/// Changes when two versions cannot talk.
pub const VERSION_MAJOR: u16 = 1;
/// Changes when something is added that an older one can do without.
pub const VERSION_MINOR: u16 = 0;
/// Largest frame in bytes.
pub const FRAME_BYTES_MAX: usize = 16 << 10;
/// Bytes of the cookie that pairs the two connections of a link.
pub const COOKIE_BYTES: usize = 16;

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
        /// The server's answer with its two memory files.
        OFFER = 3;
        /// The client has touched every page.
        FILLED = 4;
        /// The link is there.
        READY = 5;
        /// No more packets will be written; what was written is to be read.
        BYE = 6;
        /// The client wants to write a bulk ring.
        BULK_REQUEST = 7;
        /// The server's memory file for a bulk ring.
        BULK_OFFER = 8;
        /// The client has touched every page of it.
        BULK_FILLED = 9;
        /// The client may write it.
        BULK_READY = 10;
        /// No bulk ring.
        BULK_REFUSED = 11;
        /// Statistics, a piece of text.
        STAT_TEXT = 12;
        /// The client wants to export an aperture.
        APERTURE_REQUEST = 13;
        /// The server's memory file: of its own aperture, or for the client's.
        APERTURE_OFFER = 14;
        /// The client has touched every page of its own.
        APERTURE_FILLED = 15;
        /// The holder has mapped it.
        APERTURE_READY = 16;
        /// The holder will not hold it.
        APERTURE_REFUSED = 17;
        /// The owner has taken its memory back.
        APERTURE_REVOKED = 18;
        /// The holder has let go of it.
        APERTURE_RELEASED = 19;
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

/// HELLO.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct HelloFrame {
    head: Head,
    major: U16,
    minor: U16,
    purpose: U16,
    greeting_bytes: U16,
    features: U64,
    features_required: U64,
    node: U32,
    ring_bytes: U32,
    incoming_ring_bytes_max: U32,
    packet_bytes: U32,
    cookie: [u8; COOKIE_BYTES],
    token: [u8; crate::config::TOKEN_BYTES_MAX],
}

/// REFUSED.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RefusedFrame {
    head: Head,
    major: U16,
    minor: U16,
    reason: U16,
    text_bytes: U16,
}

/// OFFER.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct OfferFrame {
    head: Head,
    minor: U16,
    greeting_bytes: U16,
    node: U32,
    features: U64,
    client_ring_bytes: U32,
    server_ring_bytes: U32,
    packet_bytes: U32,
    reserved: U32,
    cookie: [u8; COOKIE_BYTES],
}

/// BULK_REQUEST, BULK_OFFER, BULK_FILLED, BULK_READY, BULK_REFUSED.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct BulkFrame {
    head: Head,
    writer: U16,
    reason: U16,
    bytes: U32,
}

/// APERTURE_..: all of them.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ApertureFrame {
    head: Head,
    number: U32,
    access: U16,
    reason: U16,
    bytes: U64,
}

const _: () = {
    // The frames have no padding (they are `Unaligned`), and these sizes are those of version 1.
    assert!(size_of::<Head>() == 8);
    assert!(size_of::<HelloFrame>() == 96 && size_of::<RefusedFrame>() == 16);
    assert!(size_of::<OfferFrame>() == 56 && size_of::<BulkFrame>() == 16);
    assert!(size_of::<ApertureFrame>() == 24);
    assert!(size_of::<HelloFrame>() + GREETING_BYTES_MAX <= FRAME_BYTES_MAX);
};

/// Which end writes a bulk ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Writer {
    /// The end that connected.
    Client,
    /// The end that accepted.
    Server,
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
    /// Something that a newer version has a word for.
    Other(u16),
}

impl Reason {
    const ALL: [(Self, u16, &'static str); 12] = [
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
    /// Its interface.
    pub node: u32,
    /// Bytes of the ring that it will write.
    pub ring_bytes: u32,
    /// Most bytes of the ring that it will read; it pays for both.
    pub incoming_ring_bytes_max: u32,
    /// Most data bytes of a packet.
    pub packet_bytes: u32,
    /// Second connection only: which link it belongs to.
    pub cookie: [u8; COOKIE_BYTES],
    /// For a server that admits unknown users by token.
    pub token: [u8; crate::config::TOKEN_BYTES_MAX],
    /// The application's own first words.
    pub greeting: Vec<u8>,
}

/// What a server offers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Its minor version.
    pub minor: u16,
    /// Its interface.
    pub node: u32,
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
        /// In words; at most 1 KiB, control characters removed.
        text: String,
    },
    /// See [`kind::OFFER`].
    Offer(Offer),
    /// See [`kind::FILLED`].
    Filled,
    /// See [`kind::READY`].
    Ready,
    /// See [`kind::BYE`].
    Bye,
    /// See [`kind::BULK_REQUEST`].
    BulkRequest {
        /// Bytes wanted.
        bytes: u32,
    },
    /// See [`kind::BULK_OFFER`].
    BulkOffer {
        /// Who will write.
        writer: Writer,
        /// Bytes of the file.
        bytes: u32,
    },
    /// See [`kind::BULK_FILLED`].
    BulkFilled {
        /// Who will write.
        writer: Writer,
    },
    /// See [`kind::BULK_READY`].
    BulkReady {
        /// Who may write.
        writer: Writer,
    },
    /// See [`kind::BULK_REFUSED`].
    BulkRefused {
        /// Who would have written.
        writer: Writer,
        /// Why not.
        reason: Reason,
    },
    /// One of [`kind`]'s APERTURE_.. frames.
    Aperture {
        /// Which, on this link.
        number: u32,
        /// What is said.
        word: ApertureWord,
    },
    /// See [`kind::STAT_TEXT`].
    StatText {
        /// A piece of it.
        text: Vec<u8>,
        /// Whether it is the last.
        is_last: bool,
    },
}

/// What is said of an aperture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApertureWord {
    /// See [`kind::APERTURE_REQUEST`].
    Request {
        /// What the server may do with it.
        access: ApertureAccess,
        /// Bytes wanted.
        bytes: u64,
    },
    /// See [`kind::APERTURE_OFFER`].
    Offer {
        /// What the holder may do with it.
        access: ApertureAccess,
        /// Bytes of the file.
        bytes: u64,
    },
    /// See [`kind::APERTURE_FILLED`].
    Filled,
    /// See [`kind::APERTURE_READY`].
    Ready,
    /// See [`kind::APERTURE_REFUSED`].
    Refused(Reason),
    /// See [`kind::APERTURE_REVOKED`].
    Revoked,
    /// See [`kind::APERTURE_RELEASED`].
    Released,
}

/// Who owns the aperture with a number.
pub fn owner_of(number: u32) -> Writer {
    if number % 2 == 1 { Writer::Client } else { Writer::Server }
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

impl Frame {
    /// The frame as it is sent.
    pub fn to_bytes(&self) -> Vec<u8> {
        let bulk = |kind: u16, writer: Writer, bytes: u32, reason: u16| {
            let frame = BulkFrame {
                head: head(kind, size_of::<BulkFrame>()),
                writer: (writer as u16).into(),
                reason: reason.into(),
                bytes: bytes.into(),
            };
            frame.as_bytes().to_vec()
        };
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
                    node: hello.node.into(),
                    ring_bytes: hello.ring_bytes.into(),
                    incoming_ring_bytes_max: hello.incoming_ring_bytes_max.into(),
                    packet_bytes: hello.packet_bytes.into(),
                    cookie: hello.cookie,
                    token: hello.token,
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
            Self::Offer(offer) => {
                let frame = OfferFrame {
                    head: head(kind::OFFER, size_of::<OfferFrame>()),
                    minor: offer.minor.into(),
                    greeting_bytes: (offer.greeting.len() as u16).into(),
                    node: offer.node.into(),
                    features: offer.features.into(),
                    client_ring_bytes: offer.client_ring_bytes.into(),
                    server_ring_bytes: offer.server_ring_bytes.into(),
                    packet_bytes: offer.packet_bytes.into(),
                    reserved: 0.into(),
                    cookie: offer.cookie,
                };
                with_tail(frame.as_bytes(), &offer.greeting)
            }
            Self::Filled => simple(kind::FILLED),
            Self::Ready => simple(kind::READY),
            Self::Bye => simple(kind::BYE),
            Self::BulkRequest { bytes } => bulk(kind::BULK_REQUEST, Writer::Client, *bytes, 0),
            Self::BulkOffer { writer, bytes } => bulk(kind::BULK_OFFER, *writer, *bytes, 0),
            Self::BulkFilled { writer } => bulk(kind::BULK_FILLED, *writer, 0, 0),
            Self::BulkReady { writer } => bulk(kind::BULK_READY, *writer, 0, 0),
            Self::BulkRefused { writer, reason } => {
                bulk(kind::BULK_REFUSED, *writer, 0, reason.to_wire())
            }
            Self::Aperture { number, word } => {
                let (kind, access, bytes, reason) = match word {
                    ApertureWord::Request { access, bytes } => {
                        (kind::APERTURE_REQUEST, Some(*access), *bytes, 0)
                    }
                    ApertureWord::Offer { access, bytes } => {
                        (kind::APERTURE_OFFER, Some(*access), *bytes, 0)
                    }
                    ApertureWord::Filled => (kind::APERTURE_FILLED, None, 0, 0),
                    ApertureWord::Ready => (kind::APERTURE_READY, None, 0, 0),
                    ApertureWord::Refused(why) => (kind::APERTURE_REFUSED, None, 0, why.to_wire()),
                    ApertureWord::Revoked => (kind::APERTURE_REVOKED, None, 0, 0),
                    ApertureWord::Released => (kind::APERTURE_RELEASED, None, 0, 0),
                };
                let frame = ApertureFrame {
                    head: head(kind, size_of::<ApertureFrame>()),
                    number: (*number).into(),
                    access: u16::from(access == Some(ApertureAccess::ReadOnly)).into(),
                    reason: reason.into(),
                    bytes: bytes.into(),
                };
                frame.as_bytes().to_vec()
            }
            Self::StatText { text, is_last } => {
                let frame = BulkFrame {
                    head: head(kind::STAT_TEXT, size_of::<BulkFrame>()),
                    writer: (*is_last as u16).into(),
                    reason: 0.into(),
                    bytes: (text.len() as u32).into(),
                };
                with_tail(frame.as_bytes(), text)
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
                    node: hello.node.get(),
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
                let text = String::from_utf8_lossy(&text);
                Ok(Self::Refused {
                    reason: Reason::from_wire(refused.reason.get()),
                    version: (refused.major.get(), refused.minor.get()),
                    text: text.chars().filter(|c| !c.is_control()).collect(),
                })
            }
            kind::OFFER => {
                let (offer, _) = OfferFrame::read_from_prefix(fixed).map_err(|_| too_short())?;
                Ok(Self::Offer(Offer {
                    minor: offer.minor.get(),
                    node: offer.node.get(),
                    features: offer.features.get(),
                    client_ring_bytes: offer.client_ring_bytes.get(),
                    server_ring_bytes: offer.server_ring_bytes.get(),
                    packet_bytes: offer.packet_bytes.get(),
                    cookie: offer.cookie,
                    greeting: whole_tail(offer.greeting_bytes.get() as usize, GREETING_BYTES_MAX)?,
                }))
            }
            kind::FILLED => Ok(Self::Filled),
            kind::READY => Ok(Self::Ready),
            kind::BYE => Ok(Self::Bye),
            kind @ (kind::BULK_REQUEST
            | kind::BULK_OFFER
            | kind::BULK_FILLED
            | kind::BULK_READY
            | kind::BULK_REFUSED) => {
                let (bulk, _) = BulkFrame::read_from_prefix(fixed).map_err(|_| too_short())?;
                let writer = match bulk.writer.get() {
                    0 => Writer::Client,
                    1 => Writer::Server,
                    _ => return Err(FrameError::WrongValue("writer")),
                };
                let bytes = bulk.bytes.get();
                Ok(match kind {
                    kind::BULK_REQUEST => Self::BulkRequest { bytes },
                    kind::BULK_OFFER => Self::BulkOffer { writer, bytes },
                    kind::BULK_FILLED => Self::BulkFilled { writer },
                    kind::BULK_READY => Self::BulkReady { writer },
                    _ => Self::BulkRefused { writer, reason: Reason::from_wire(bulk.reason.get()) },
                })
            }
            kind @ kind::APERTURE_REQUEST..=kind::APERTURE_RELEASED => {
                let (frame, _) = ApertureFrame::read_from_prefix(fixed).map_err(|_| too_short())?;
                let bytes = frame.bytes.get();
                let access = match frame.access.get() {
                    0 => ApertureAccess::ReadWrite,
                    1 => ApertureAccess::ReadOnly,
                    _ => return Err(FrameError::WrongValue("access")),
                };
                let word = match kind {
                    kind::APERTURE_REQUEST => ApertureWord::Request { access, bytes },
                    kind::APERTURE_OFFER => ApertureWord::Offer { access, bytes },
                    kind::APERTURE_FILLED => ApertureWord::Filled,
                    kind::APERTURE_READY => ApertureWord::Ready,
                    kind::APERTURE_REFUSED => {
                        ApertureWord::Refused(Reason::from_wire(frame.reason.get()))
                    }
                    kind::APERTURE_REVOKED => ApertureWord::Revoked,
                    _ => ApertureWord::Released,
                };
                Ok(Self::Aperture { number: frame.number.get(), word })
            }
            kind::STAT_TEXT => {
                let (stat, _) = BulkFrame::read_from_prefix(fixed).map_err(|_| too_short())?;
                let text = whole_tail(stat.bytes.get() as usize, FRAME_BYTES_MAX)?;
                Ok(Self::StatText { text, is_last: stat.writer.get() != 0 })
            }
            other => Err(FrameError::UnknownKind(other)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn hello() -> Hello {
        Hello {
            version: (VERSION_MAJOR, 3),
            purpose: Purpose::Wake,
            features: 1 << 60 | 3,
            features_required: 2,
            node: 77,
            ring_bytes: 32768,
            incoming_ring_bytes_max: 65536,
            packet_bytes: 16384,
            cookie: [9; 16],
            token: [7; 32],
            greeting: std::vec![1, 2, 3],
        }
    }

    fn aperture(word: ApertureWord) -> Frame {
        Frame::Aperture { number: u32::MAX, word }
    }

    fn frames() -> Vec<Frame> {
        std::vec![
            Frame::Hello(hello()),
            Frame::Refused { reason: Reason::Bytes, version: (1, 2), text: "no".into() },
            Frame::Refused { reason: Reason::Other(999), version: (1, 2), text: String::new() },
            Frame::Offer(Offer {
                minor: 1,
                node: 5,
                features: 3,
                client_ring_bytes: 512,
                server_ring_bytes: 1024,
                packet_bytes: 64,
                cookie: [3; 16],
                greeting: std::vec![0; GREETING_BYTES_MAX],
            }),
            Frame::Filled,
            Frame::Ready,
            Frame::Bye,
            Frame::BulkRequest { bytes: 1 << 20 },
            Frame::BulkOffer { writer: Writer::Server, bytes: 4096 },
            Frame::BulkFilled { writer: Writer::Client },
            Frame::BulkReady { writer: Writer::Client },
            Frame::BulkRefused { writer: Writer::Server, reason: Reason::Memory },
            Frame::StatText { text: b"links 3".to_vec(), is_last: true },
            aperture(ApertureWord::Request { access: ApertureAccess::ReadOnly, bytes: 1 << 40 }),
            aperture(ApertureWord::Offer { access: ApertureAccess::ReadWrite, bytes: 4096 }),
            aperture(ApertureWord::Filled),
            aperture(ApertureWord::Ready),
            aperture(ApertureWord::Refused(Reason::Apertures)),
            aperture(ApertureWord::Revoked),
            aperture(ApertureWord::Released),
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
        let text = "a\x1b[2Jb\nc".into();
        let bytes = Frame::Refused { reason: Reason::User, version: (1, 0), text }.to_bytes();
        let Ok(Frame::Refused { text, .. }) = Frame::from_bytes(&bytes) else { panic!() };
        assert_eq!(text, "a[2Jbc");
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_frame_or_an_error(
            kind in 0u16..24,
            fixed in 0u16..120,
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
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
            which in 0usize..20, at in any::<prop::sample::Index>(), value in any::<u8>(), cut in 0usize..9,
        ) {
            let mut bytes = frames()[which].to_bytes();
            let at = at.index(bytes.len());
            bytes[at] = value;
            bytes.truncate(bytes.len() - cut.min(bytes.len()));
            let _ = Frame::from_bytes(&bytes);
        }
    }
}
