//! The layout of frames on the socket: their fixed parts, written and read.
//!
//! A fixed part is a structure without padding, whose numbers are little-endian; the parts of
//! variable length follow it.
//!
//! A stranger wrote every byte that is read here. Never: a length out of a frame is used before it
//! has been compared with the frame.

use super::{
    COOKIE_BYTES, Credential, FRAME_BYTES_MAX, Frame, FrameError, Hello, LinkSide, MAGIC, Memory,
    MemoryWord, PUBLIC_KEY_BYTES, Purpose, REFUSED_TEXT_MAX, Reason, SIGNATURE_BYTES,
    VERSION_MAJOR, Welcome, kind,
};
use crate::control::{GREETING_BYTES_MAX, TOKEN_BYTES_MAX, printable_bytes};
use crate::wire::{ApertureAccess, NodeId};
use alloc::vec::Vec;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Begins each frame.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct FrameHead {
    /// [`MAGIC`].
    pub magic: [u8; 4],
    /// One of [`kind`].
    pub kind: U16,
    /// Bytes of the fixed part, this head included; the rest is of variable length.
    pub fixed_bytes: U16,
}

/// A process's proof of the identity of its node: see [`Credential`].
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
    head: FrameHead,
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
    head: FrameHead,
    major: U16,
    minor: U16,
    reason: U16,
    text_bytes: U16,
}

/// WELCOME.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct WelcomeFrame {
    head: FrameHead,
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
    head: FrameHead,
    /// 0: a ring, 1: a bulk ring, 2: an aperture.
    memory: U16,
    /// Of a ring: the end that writes it.
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
    head: FrameHead,
    is_last: U16,
    reserved: U16,
    text_bytes: U32,
}

const _: () = {
    // The frames have no padding (they are `Unaligned`), and these sizes are those of version 3.
    assert!(size_of::<FrameHead>() == 8 && size_of::<CredentialWords>() == 144);
    assert!(size_of::<HelloFrame>() == 240 && size_of::<RefusedFrame>() == 16);
    assert!(size_of::<WelcomeFrame>() == 192 && size_of::<StatFrame>() == 16);
    assert!(size_of::<MemoryFrame>() == 32);
    assert!(size_of::<HelloFrame>() + GREETING_BYTES_MAX <= FRAME_BYTES_MAX);
};

impl Credential {
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

fn head(kind: u16, fixed_bytes: usize) -> FrameHead {
    FrameHead { magic: MAGIC, kind: kind.into(), fixed_bytes: (fixed_bytes as u16).into() }
}

fn simple(kind: u16) -> Vec<u8> {
    head(kind, size_of::<FrameHead>()).as_bytes().to_vec()
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

    /// Reads bytes that any process may have written.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, FrameError> {
        let (head, _) = FrameHead::read_from_prefix(bytes).map_err(|_| FrameError::NotOurs)?;
        if head.magic != MAGIC {
            return Err(FrameError::NotOurs);
        }
        let fixed = head.fixed_bytes.get() as usize;
        if fixed < size_of::<FrameHead>() || fixed > bytes.len() {
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
                // Every version has the version at this offset.
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
                // It will be printed on a terminal.
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
                    0 => LinkSide::Client,
                    1 => LinkSide::Server,
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
    use alloc::string::String;
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
            memory(Memory::Ring(LinkSide::Client), MemoryWord::Offer { bytes, access }),
            memory(Memory::Ring(LinkSide::Server), MemoryWord::Take { bytes: 4096 }),
            memory(Memory::Bulk(LinkSide::Client), MemoryWord::Pass),
            memory(Memory::Bulk(LinkSide::Server), MemoryWord::Held),
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
        // The rest is unknown in that version.
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
