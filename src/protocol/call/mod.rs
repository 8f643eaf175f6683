//! Request and reply: calls of a named service, many outstanding, for any number of threads.
//!
//! ```text
//!   Client                                                          Server
//!   call  ---- one fast packet: word = call and length ---->  request block of the call   receive
//!         <--- one fast packet: word = call and length -----  reply block of the call     reply
//!
//!   longer than a block:
//!         ---- ASK, 8 bytes: the length -------------------->
//!         <--- ASK, 44 bytes: a ticket for one message ------
//!         ==== a message of many packets ===================>      (and a long reply, mirrored)
//! ```
//! When a client is grown, each side lends the other one block for each outstanding call. So a call
//! of up to 16 bytes is one cache line each way, and an outstanding one costs a block and two or
//! three entries of a queue. The reply's ticket of Hamlyn 3.3 is lent once, for all calls.
//!
//! A word is the number of the call (20 bits) and a code (12 bits): a length of up to
//! [`LENGTH_MAX`], or one of the codes below. A call is in one state at a time on each side, so a
//! code and the state say what a message is:
//! ```text
//!   client: Free -> Waiting -> Done -> Free          long request: Asked -> Granted -> Waiting
//!                      \-> Receiving -> Done         (a long reply arrives)
//!                      \-> Failed, Declined, Draining, Left -> Free
//!   server: Idle -> Busy -> Idle                     Idle -> Receiving -> Busy (a long request)
//!             \         \-> Asked -> Granted -> Idle   (a long reply)
//!              \-> Shut: the server drains           Busy -> Cancelled -> Idle
//! ```
//! A request with a time limit is `LIMITED` and begins with 8 bytes; an announced one has room for
//! that. `CANCEL` says that a caller has given up; the number of the call is free only when the
//! server has answered. A closing server sends `LEFT` for each request that it took and does not
//! answer, and `CLOSING`: it took no others.
//!
//! A message that fits no state is a violation: its sender is disconnected. Bytes are copied out of
//! the blocks under the manager's lock, before any other turn, so readers see stable bytes.

mod at_client;
mod at_server;
mod client;
mod drain;
mod handling;
mod long;
mod server;

pub use at_client::CallId;
pub(super) use at_client::ClientState;
pub(super) use at_server::ServerState;
pub(super) use client::CallProgress;
pub use client::{Client, ClientConfig};
pub use handling::ERROR_TEXT_MAX;
#[cfg(feature = "unstable-internals")]
pub use handling::Which;
#[cfg(feature = "tokio")]
pub(crate) use long::LongReply;
pub use server::{Arrived, Request, Server, ServerConfig};

use super::Connection;
use super::manager::of_wait;
use super::tickets::fast_ticket_from;
use crate::control::Peer;
use crate::interface::{AreaId, LinkId, Mode, QueueId, SlotConfig, SlotId};
use crate::node::{CloseReason, Forked, Node, NodeSendError, PreparedTicket};
use crate::os::memory::AreaMemory;
use crate::wire::{MetadataIndex, TICKET_BYTES, Ticket};
use core::ops::Deref;
use std::boxed::Box;
use std::format;
use std::io;
use std::string::{String, ToString};
use std::sync::Arc;
use std::time::Instant;
use std::vec::Vec;
use zerocopy::IntoBytes;

pub(super) const CALL_BITS: u32 = 20;
/// Most calls of one client that may be outstanding.
pub const OUTSTANDING_MAX: u32 = 1 << CALL_BITS;
pub(super) const ASK: u32 = 4095;
pub(super) const DECLINED: u32 = 4094;
pub(super) const TOO_LONG: u32 = 4093;
/// To a client: the reply is an application error, which lies in the block.
pub(super) const FAILED: u32 = 4092;
/// To a client: the server drains, and has not taken the request.
pub(super) const DRAINING: u32 = 4091;
/// To a server: a request that begins with its length and its caller's time limit.
pub(super) const LIMITED: u32 = 4090;
/// To a server: the caller has given up.
pub(super) const CANCEL: u32 = 4089;
/// To a client: the server closes, and this request, which it took, gets no reply.
pub(super) const LEFT: u32 = CANCEL;
/// To a client: the server closes. It has taken no other requests than those that it has answered
/// or named by `LEFT`, and takes no more.
pub(super) const CLOSING: u32 = LIMITED;
/// Most bytes that are sent at once; longer ones are asked for first.
pub const LENGTH_MAX: u32 = 4088;

pub(super) fn word_of(call: u32, code: u32) -> u32 {
    call | code << CALL_BITS
}

/// A call that failed.
#[derive(Debug, thiserror::Error)]
#[cfg_attr(not(feature = "unstable-internals"), non_exhaustive)]
pub enum CallError {
    /// The time limit has passed. The server may still be at work: its handler can see that the
    /// caller has given up ([`Request::is_cancelled`]), and its reply will be dropped.
    #[error(
        "no reply came within the time limit: the server is at work on it, or looks for no requests \
         (a program that does other things meanwhile starts a progress thread, start_progress)"
    )]
    TimedOut,
    /// Of a reply: the client has made no room for it within the time limit. The client is told
    /// that no reply will come.
    #[error(
        "the reply did not leave within the time limit: the client takes nothing, or makes no room for a \
         long one; it is told that none will come"
    )]
    NoRoom,
    /// All calls that may be outstanding wait for their replies, including abandoned ones, and no
    /// call became free within the time limit. Nothing was sent.
    #[error(
        "no call is free within the time limit: {0} of {0} (outstanding) wait for replies; nothing was \
         sent"
    )]
    NoneFree(usize),
    /// The server took the request and will not reply: its handler dropped it.
    #[error(
        "the server will not reply to this request: its handler dropped it or failed, or this client did not \
         take its reply in time"
    )]
    Declined,
    /// The server's program answered with an application error ([`Request::fail`]).
    #[error("the server answered with error {code}: {text}")]
    Application {
        /// The application defines its meaning.
        code: u32,
        /// The application's text, of at most [`ERROR_TEXT_MAX`] bytes; control and invisible
        /// characters are escaped as in `\u{202e}`.
        text: String,
    },
    /// The server drains, and has not taken the request: it can be sent to the next server of the
    /// name.
    #[error("the server is about to close, and has not taken the request")]
    Draining,
    /// A reconnecting client has no connection, and the request was not sent.
    #[error("there is no connection to the server, and the request was not sent: {0}")]
    NotConnected(String),
    /// Longer than the other side takes.
    #[error("{}", too_long(*length, *max, limit))]
    TooLong {
        /// Bytes of the message; of a reply, 0: only the server knows.
        length: u64,
        /// Most bytes; 0: only the other side knows.
        max: u64,
        /// The setting that limits it, and the side that set it.
        limit: &'static str,
    },
    /// The peer is gone; all its calls fail at once. It may or may not have executed them.
    #[error("the peer is gone: {0}")]
    Ended(CloseReason),
    /// The peer broke the protocol's rules; its link has been closed.
    #[error("the peer broke the rules and was sent away: {0}")]
    Misbehaved(String),
    /// No such call: it was finished, or is another client's.
    #[error("{0} does not exist: it was finished, or is another client's")]
    NoSuchCall(CallId),
    /// The request was replied to already, or is being replied to.
    #[error("the request was replied to already")]
    Replied,
    /// A task's long reply to a user whose clients have not taken earlier ones. The request may
    /// still be answered in another way.
    #[error(
        "a reply of {length} bytes cannot wait: {held} bytes of long replies to this user's clients \
         wait for those before to be taken, and the server's waiting_bytes_max is {max}"
    )]
    Untaken {
        /// Bytes of the reply.
        length: u64,
        /// Bytes of the replies that wait.
        held: u64,
        /// Most bytes.
        max: u64,
    },
    /// This process has no memory or slots left for a long message.
    #[error("a long message cannot be received here: {0}")]
    Memory(String),
    /// The node's own error.
    #[error(transparent)]
    Node(#[from] NodeSendError),
    /// The calling process is a forked child.
    #[error(transparent)]
    Forked(#[from] Forked),
    /// Waiting failed.
    #[error("waiting failed: {0}")]
    Wait(Arc<io::Error>),
}

impl CallError {
    /// The same as a reply's failure.
    pub(super) fn of_reply(self) -> Self {
        match self {
            Self::TimedOut => Self::NoRoom,
            other => other,
        }
    }

    /// The error of a call whose server was told of `deadline`: a request that the handler drops
    /// after that has timed out, though the handler noticed first.
    pub(in crate::protocol) fn at(self, deadline: Option<Instant>) -> Self {
        match self {
            Self::Declined if deadline.is_some_and(|at| at <= Instant::now()) => Self::TimedOut,
            other => other,
        }
    }
}

const REQUEST_LIMIT: &str = "the server's request_bytes_max";
const REPLY_LIMIT: &str = "the client's reply_bytes_max";

fn too_long(length: u64, max: u64, limit: &str) -> String {
    let what = match length {
        0 => "the reply".into(),
        length => format!("a message of {length} bytes"),
    };
    let most = if max == 0 { String::new() } else { format!(", which is {max}") };
    format!("{what} is longer than {limit}{most}")
}

of_wait!(CallError);

/// Bytes of a request or reply; they do not change.
pub struct Bytes(BytesSource);

// Without a gap between the discriminant and the rest.
#[repr(u32)]
enum BytesSource {
    /// Words, so that they are moved as such, with the count of bytes.
    Inline(u32, [u64; INLINE / 8]),
    Heap(Box<[u8]>),
    /// In a box, because these are moved about as often as short ones.
    Area(Box<AreaMemory>),
}

/// Bytes that are kept in place: a longer `Bytes` would take longer to move.
pub(super) const INLINE: usize = 24;

impl Default for Bytes {
    fn default() -> Self {
        Self(BytesSource::Inline(0, [0; INLINE / 8]))
    }
}

impl Bytes {
    /// Becomes a copy of `bytes`. Filled in place: moving freshly written pieces stalls the
    /// processor at each move.
    #[inline]
    pub(super) fn copy(&mut self, bytes: &[u8]) {
        let BytesSource::Inline(length, inline) = &mut self.0 else {
            self.0 = BytesSource::Heap(bytes.into());
            return;
        };
        let inline = inline.as_mut_bytes();
        // A copy of a length that the compiler knows needs no call.
        match bytes.len() {
            8 => inline[..8].copy_from_slice(bytes),
            16 => inline[..16].copy_from_slice(bytes),
            length if length <= INLINE => inline[..length].copy_from_slice(bytes),
            _ => {
                self.0 = BytesSource::Heap(bytes.into());
                return;
            }
        }
        *length = bytes.len() as u32;
    }
}

impl Bytes {
    /// The bytes, if they are kept in place.
    #[inline]
    pub(super) fn is_inline(&self) -> bool {
        matches!(self.0, BytesSource::Inline(..))
    }

    /// Up to 16 bytes in two words, made in their final place.
    #[inline]
    pub(super) fn of_words(words: [u64; 2], length: u32) -> Self {
        Self(BytesSource::Inline(length, [words[0].to_le(), words[1].to_le(), 0]))
    }

    /// [`copy`](Self::copy) of up to 16 bytes in two words.
    #[inline]
    pub(super) fn set(&mut self, words: [u64; 2], length: u32) {
        match &mut self.0 {
            BytesSource::Inline(to, inline) => {
                (inline[0], inline[1], *to) = (words[0].to_le(), words[1].to_le(), length);
            }
            _ => self.0 = BytesSource::Inline(length, [words[0].to_le(), words[1].to_le(), 0]),
        }
    }
}

impl Deref for Bytes {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &[u8] {
        match &self.0 {
            BytesSource::Inline(length, words) => &words.as_bytes()[..*length as usize],
            BytesSource::Heap(bytes) => bytes,
            BytesSource::Area(memory) => (**memory).as_ref(),
        }
    }
}

impl core::fmt::Debug for Bytes {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Bytes({} bytes)", self.len())
    }
}

// ---- both sides

/// Checks the setting of this name, the bytes that are sent at once.
pub(super) fn check_block(setting: &str, bytes: u32) -> Result<(), crate::protocol::GrowError> {
    if bytes <= LENGTH_MAX {
        return Ok(());
    }
    Err(crate::protocol::GrowError::SetUp(format!(
        "{setting} is {bytes}: at most {LENGTH_MAX} bytes are sent at once; longer ones, up to \
         {setting}_max, go by themselves"
    )))
}

pub(super) fn check_outstanding(calls: u32) -> Result<(), crate::protocol::GrowError> {
    if (1..=OUTSTANDING_MAX).contains(&calls) {
        return Ok(());
    }
    Err(crate::protocol::GrowError::SetUp(format!(
        "outstanding is {calls}: from 1 to {OUTSTANDING_MAX} calls are allowed"
    )))
}

/// The blocks that one side lends the other: an area, a slot, one block for each call.
pub(super) struct Blocks {
    pub(super) area: AreaId,
    pub(super) slot: SlotId,
    pub(super) block: u32,
    most: u32,
}

impl Blocks {
    /// Most bytes that a block takes.
    #[inline]
    pub(super) fn at_once(&self) -> u32 {
        self.most
    }

    /// With `bytes` each, `max` of which at most are taken. `credit`: messages that may wait for
    /// this side.
    fn new(
        node: &mut Node,
        queue: QueueId,
        calls: u32,
        (bytes, max): (u32, u64),
        credit: u32,
    ) -> Result<Self, String> {
        // A ticket for a long message must fit, too.
        let block = bytes.clamp(TICKET_BYTES as u32, LENGTH_MAX).next_multiple_of(16);
        // The other side knows the block's size, and sends at once up to that.
        let most = u64::from(block.min(LENGTH_MAX)).min(max) as u32;
        let bytes = (calls as usize).saturating_mul(block as usize);
        let area = node.message_area(bytes).map_err(|e| e.to_string())?;
        match node.slot(SlotConfig::new(area, queue).credit(credit)) {
            Ok(slot) => Ok(Self { area, slot, block, most }),
            Err(e) => {
                let _ = node.remove_area(area);
                Err(e.to_string())
            }
        }
    }

    /// Blocks, and their description for the other side. Nothing is left behind if that fails.
    pub(super) fn lend(
        node: &mut Node,
        queue: QueueId,
        calls: u32,
        sizes: (u32, u64),
        credit: u32,
    ) -> Result<(Self, Vec<u8>), String> {
        let blocks = Self::new(node, queue, calls, sizes, credit)?;
        let ticket = node.fast_ticket(blocks.slot).map_err(|e| {
            blocks.remove(node);
            e.to_string()
        })?;
        let mut told = ticket.to_bytes().to_vec();
        told.extend_from_slice(&blocks.block.to_le_bytes());
        told.extend_from_slice(&calls.to_le_bytes());
        Ok((blocks, told))
    }

    pub(super) fn bytes<'a>(&self, node: &'a Node, call: u32, length: usize) -> &'a [u8] {
        let from = call as usize * self.block as usize;
        node.area(self.area).ok().and_then(|a| a.get(from..from + length)).unwrap_or(&[])
    }

    /// Copies the first `length` bytes of a block to `to`; `words`: the bytes that have just been
    /// written there, if they came straight from a ring.
    #[inline]
    pub(super) fn copy(
        &self,
        node: &Node,
        call: u32,
        length: u32,
        words: Option<[u64; 2]>,
        to: &mut Bytes,
    ) {
        match words {
            Some(words) if length <= 16 => to.set(words, length),
            _ => to.copy(self.bytes(node, call, length as usize)),
        }
    }

    pub(super) fn remove(&self, node: &mut Node) {
        let _ = node.remove_slot(self.slot);
        let _ = node.remove_area(self.area);
    }
}

/// The blocks that the other side lends.
#[derive(Clone, Debug)]
pub(super) struct LentBlocks {
    pub(super) ticket: Ticket,
    pub(super) block: u32,
    /// Most bytes of a message in a block.
    most: u32,
    /// Once its link is known.
    prepared: Option<PreparedTicket>,
}

impl LentBlocks {
    pub(super) const BYTES: usize = TICKET_BYTES + 8;

    /// The blocks, and the number of calls.
    fn from_bytes(bytes: &[u8], peer: &Peer) -> Result<(Self, u32), String> {
        let number = |i: usize| -> Option<u32> {
            Some(u32::from_le_bytes(bytes.get(i..i + 4)?.try_into().ok()?))
        };
        let ticket = fast_ticket_from(bytes, peer)?;
        let block = number(TICKET_BYTES).ok_or("the size of its blocks is missing")?;
        let calls = number(TICKET_BYTES + 4).ok_or("the number of its calls is missing")?;
        let fits = calls as u64 * block as u64 <= ticket.capacity();
        if !(TICKET_BYTES as u32..=LENGTH_MAX + 8).contains(&block)
            || !(1..=OUTSTANDING_MAX).contains(&calls)
            || !fits
        {
            return Err(format!("{calls} blocks of {block} bytes cannot be"));
        }
        Ok((Self { ticket, block, most: block.min(LENGTH_MAX), prepared: None }, calls))
    }

    /// Each message goes the general way from now on.
    pub(super) fn go_slowly(&mut self) {
        self.prepared = None;
    }

    /// The link over which the other side is reached.
    pub(super) fn go_over(&mut self, link: LinkId) {
        self.prepared = Some(PreparedTicket::new(&self.ticket, link));
    }

    /// [`send`](Self::send) over the known link; false: nothing was done.
    #[inline]
    pub(super) fn send_packet(&self, node: &mut Node, call: u32, code: u32, data: &[u8]) -> bool {
        let offset = call as u64 * self.block as u64;
        let Some(prepared) = &self.prepared else { return false };
        data.len() <= self.most as usize
            && node.push_prepared(prepared, offset, data, word_of(call, code))
    }

    /// The other side takes at most `most` bytes.
    pub(super) fn takes(&mut self, most: u64) {
        self.most = self.most.min(most.try_into().unwrap_or(u32::MAX));
    }

    /// Bytes that are sent at once over a link with these packets.
    pub(super) fn at_once(&self, packet_bytes: usize) -> usize {
        (self.block.min(LENGTH_MAX) as usize).min(packet_bytes)
    }

    #[inline]
    pub(super) fn send(
        &self,
        node: &mut Node,
        link: LinkId,
        call: u32,
        code: u32,
        data: &[u8],
    ) -> Result<(), NodeSendError> {
        if self.send_packet(node, call, code, data) {
            return Ok(());
        }
        let base = self.ticket.base + call as u64 * self.block as u64;
        let ticket = Ticket { base, ..self.ticket };
        node.try_send_fast_over(link, &ticket, data, word_of(call, code)).map(|_| ())
    }
}

/// A place for one long message: an area and a one-shot slot of its own.
#[derive(Clone, Copy)]
pub(super) struct LongPlace {
    pub(super) area: AreaId,
    pub(super) slot: SlotId,
}

impl LongPlace {
    pub(super) fn open(
        node: &mut Node,
        queue: QueueId,
        length: u64,
    ) -> Result<(Self, Ticket), String> {
        let bytes = usize::try_from(length).map_err(|e| e.to_string())?;
        let area = node.message_area(bytes.max(1)).map_err(|e| e.to_string())?;
        let config = SlotConfig::new(area, queue).mode(Mode::ParanoidOneShot).range(0..length);
        let made = node.slot(config).and_then(|slot| {
            let index = MetadataIndex(0);
            let ticket =
                node.arm(slot, index, Some(0..length)).and_then(|()| node.ticket(slot, index));
            if ticket.is_err() {
                let _ = node.remove_slot(slot);
            }
            ticket.map(|ticket| (Self { area, slot }, ticket))
        });
        if made.is_err() {
            let _ = node.remove_area(area);
        }
        made.map_err(|e| e.to_string())
    }

    /// The message has arrived: its memory, without copying.
    pub(super) fn take(self, node: &mut Node) -> Option<Bytes> {
        let _ = node.remove_slot(self.slot);
        node.take_area(self.area).ok().map(|memory| Bytes(BytesSource::Area(Box::new(memory))))
    }

    pub(super) fn remove(self, node: &mut Node) {
        let _ = node.remove_slot(self.slot);
        let _ = node.remove_area(self.area);
    }
}

pub(super) fn number_from(bytes: &[u8]) -> u64 {
    bytes.first_chunk::<8>().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

/// The peer broke the rules; the text says how.
pub(super) struct Broken(pub String);

#[cold]
pub(super) fn failed(e: NodeSendError, connection: &Connection) -> CallError {
    match e {
        NodeSendError::LinkEnded(_) => ended(connection),
        e => e.into(),
    }
}

pub(super) fn ended(connection: &Connection) -> CallError {
    CallError::Ended(connection.ended().cloned().unwrap_or(CloseReason::Closed))
}
