//! Bytes on the wire: the control message, and the handle of a region.
//!
//! ```text
//!   head: kind, to, from, number, offset, length   40 bytes
//!   body: of a fixed length for each kind, but for Data
//! ```
//! They are in little-endian order. A peer's bytes are copied, checked here, and then used.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The version of everything below.
pub const VERSION: u32 = 1;

/// Bytes of an out-of-band message.
pub const OOB_BYTES: usize = 128;
/// Bytes of a region's handle. It fits into an out-of-band message.
pub const HANDLE_BYTES: usize = 120;
pub const TICKET_BYTES: usize = hamlyn::TICKET_BYTES;
/// Most bytes of one answer to a get.
pub const DATA_BYTES_MAX: usize = 4096;
/// Most bytes of one word about stores: its receiver looks for wires on each line.
pub const TOUCH_BYTES_MAX: u64 = 64 << 10;
/// Bytes of the area for one control message.
pub const MESSAGE_BYTES_MAX: usize = size_of::<Head>() + DATA_BYTES_MAX;

/// Of a control message.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Head {
    pub kind: U32,
    /// A number that the kind explains.
    pub number: U32,
    /// End point at the receiver.
    pub to: U64,
    /// End point at the sender.
    pub from: U64,
    pub offset: U64,
    pub length: U64,
}

impl Head {
    pub fn of(kind: u32) -> Self {
        Self { kind: kind.into(), ..Self::default() }
    }
}

/// Kinds of control messages.
pub mod kind {
    /// A new end point `from`: the answer is `OPENED` or `REFUSED`.
    pub const OPEN: u32 = 1;
    /// `to` is connected to `from`.
    pub const OPENED: u32 = 2;
    /// `to` will not be connected: the backlog is full.
    pub const REFUSED: u32 = 3;
    /// The other end of `to` is closed.
    pub const CLOSE: u32 = 4;
    /// For the user of `to`.
    pub const OOB: u32 = 5;
    /// `length` bytes at `offset` of the mapped region `number`, were written.
    pub const TOUCH: u32 = 6;
    /// Read so many bytes of region `number`; `to` is the number of the answer.
    pub const GET: u32 = 7;
    /// Bytes of the answer `to`, from `offset` on; `number` is a [`status`](super::status).
    pub const DATA: u32 = 8;
    /// Region `number` was taken back.
    pub const REVOKED: u32 = 9;
    /// `length` more signals of region `number` have been taken.
    pub const CREDIT: u32 = 10;
    /// The sender uses region `number` no more.
    pub const RELEASED: u32 = 11;
}

/// Of an answer to a get.
pub mod status {
    pub const FINE: u32 = 0;
    /// No such region, or it was taken back, or may not be read.
    pub const REVOKED: u32 = 1;
    /// The owner has too many gets of this peer.
    pub const BUSY: u32 = 2;
}

/// A peer may use a region so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rights {
    /// Gets.
    Read,
    /// Puts. Through a mapped aperture also reads: memory is not mapped for writing alone.
    Write,
    /// Both.
    ReadWrite,
}

impl Rights {
    pub(crate) fn reads(self) -> bool {
        self != Self::Write
    }

    pub(crate) fn writes(self) -> bool {
        self != Self::Read
    }
}

/// The words for a peer by which it uses a region: [`Endpoint::import`](crate::Endpoint::import). Worth
/// nothing to others.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct Handle {
    version: U32,
    /// 1: reads; 2: writes; 4: mapped.
    bits: U32,
    pub number: U32,
    /// The aperture's, of a mapped region.
    pub aperture: U32,
    pub bytes: U64,
    ticket: [u8; TICKET_BYTES],
    /// For puts with a signal, and how many of them at once.
    signal_ticket: [u8; TICKET_BYTES],
    pub signals: U32,
    _zero: U32,
}

const _: () = assert!(size_of::<Handle>() == HANDLE_BYTES && HANDLE_BYTES <= OOB_BYTES);

impl Handle {
    pub fn new(rights: Rights, number: u32, bytes: u64) -> Self {
        let bits = rights.reads() as u32 | (rights.writes() as u32) << 1;
        Self {
            version: VERSION.into(),
            bits: bits.into(),
            number: number.into(),
            aperture: 0.into(),
            bytes: bytes.into(),
            ticket: [0; TICKET_BYTES],
            signal_ticket: [0; TICKET_BYTES],
            signals: 0.into(),
            _zero: 0.into(),
        }
    }

    pub fn with_ticket(self, ticket: hamlyn::Ticket) -> Self {
        Self { ticket: ticket.to_bytes(), ..self }
    }

    pub fn with_signals(self, signals: u32, ticket: hamlyn::Ticket) -> Self {
        Self { signals: signals.into(), signal_ticket: ticket.to_bytes(), ..self }
    }

    pub fn mapped(self, aperture: u32) -> Self {
        Self { bits: (self.bits.get() | 4).into(), aperture: aperture.into(), ..self }
    }

    pub fn is_mapped(&self) -> bool {
        self.bits.get() & 4 != 0
    }

    pub fn check(bytes: &[u8]) -> Result<(Self, Rights), String> {
        let Ok((handle, _)) = Self::read_from_prefix(bytes) else {
            return Err(format!("a handle of {} bytes, not {HANDLE_BYTES}", bytes.len()));
        };
        if handle.version.get() != VERSION {
            return Err(format!("a handle of version {}, not {VERSION}", handle.version));
        }
        let rights = match handle.bits.get() & 3 {
            1 => Rights::Read,
            2 => Rights::Write,
            3 => Rights::ReadWrite,
            _ => return Err("a handle without rights".into()),
        };
        Ok((handle, rights))
    }

    /// The ticket for puts, and that for puts with a signal, if there are any.
    pub fn tickets(&self) -> Result<(hamlyn::Ticket, Option<hamlyn::Ticket>), String> {
        let ticket = |bytes: &[u8]| {
            let ticket = hamlyn::Ticket::from_bytes(bytes);
            let ticket = ticket.map_err(|e| format!("the handle's ticket: {e}"))?;
            match ticket.capacity() < self.bytes.get() {
                true => Err("its ticket is for fewer bytes than it says".to_owned()),
                false => Ok(ticket),
            }
        };
        let signal = (self.signals.get() > 0).then(|| ticket(&self.signal_ticket)).transpose()?;
        Ok((ticket(&self.ticket)?, signal))
    }
}
