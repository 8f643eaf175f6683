//! A stream (Hamlyn 3.3): records one way, in order, from one sender to one receiver.
//!
//! ```text
//!   send: copied into a buffer                              receive: a record's place, no copying
//!   flush ---- one message, into the ticket's slot ------>  the slot's memory is taken out of the
//!                                                           interface; the record lies in it
//!   tickets  <---- a grant: one line, silent -------------- release: the memory goes back to the
//!                                                           pool, and into a slot with a new key
//!   flush ---- few bytes: one fast packet to a place ----->  copied out of it: the record
//!   places   <---- a count, now and then ----------------- release: the place is free
//! ```
//! A *slot* is a one-shot slot over a buffer of its own. When its message is complete, the receiver
//! puts other memory into the slot, and the buffer belongs to the end point: no packet can write it
//! any more, whichever thread polls. So its bytes are lent as a slice, without a lock, until they
//! are released. Slots without memory have no ticket; so a sender whose receiver does not release
//! waits.
//!
//! A flush of at most 384 bytes, usually one record that the receiver waits for, needs none of
//! those steps: a line or two go to one of 64 *places*. Their bytes are copied out of it, since the
//! sender may write there at any time. No memory changes hands and no key changes. When every place
//! is in use, such messages take tickets.
//!
//! Small records are coalesced: they leave together when the buffer is full, when a long record
//! comes, and on [`flush`](StreamSender::flush). **Only these send them**: call `flush` before you
//! wait for an answer to a record. Records of more than a quarter of a buffer leave at once, each
//! as a message. For a record longer than a buffer the sender asks for a larger one, which the
//! receiver grants for the same ticket; larger buffers are used again, so that only the first few
//! long records pay for asking. A long record that a time limit cuts off is taken: the rest leaves
//! with later calls, and a successful `flush` means that all of it has left.
//!
//! If long records are to go straight into the receiver's memory, see `aperture_stream.rs`.
//!
//! Links may reorder (a link's bulk ring overtakes its base ring): a message's number is that of
//! its ticket or place, and messages are taken in one order; see `records.rs`.

mod far_offer;
mod grants;
mod held;
mod intake;
mod loan;
mod message_slot;
mod receiver;
mod sender;
mod state;

pub(super) use far_offer::FarOffer;
pub use loan::RecordLoan;
#[cfg(feature = "unstable-internals")]
pub use loan::RecordLoanApart;
pub use receiver::{RecordGuard, StreamReceiver};
pub use sender::StreamSender;

use super::manager::Protocol;
use super::records::{self, FREED_BYTES, GRANT_BYTES};
use super::tickets::fast_ticket_from;
use super::{Connection, GrowError};
use crate::control::{Peer, RequestId};
use crate::interface::{QueueId, SlotId};
use crate::node::{BoundedResource, BuffersHeld, MessagesHeld, Node};
use crate::wire::{MetadataIndex, TICKET_BYTES, Ticket};
use std::boxed::Box;
use std::format;
use std::string::{String, ToString};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::vec;
use std::vec::Vec;

/// Configuration of a [`StreamReceiver`].
#[derive(Clone, Debug)]
pub struct StreamConfig {
    /// Bytes of a buffer: the longest message of coalesced records. 64 KiB unless set.
    pub buffer_bytes: usize,
    /// Buffers that wait for messages, and so the most messages on their way: from 1 to 256. 8
    /// unless set. Small messages have additional places of their own.
    pub buffers: u32,
    /// All buffers, including those whose records are not yet released. 64 unless set.
    pub buffers_max: u32,
    /// Longest record. 64 MiB unless set, 1 GiB less a page at most. All buffers larger than
    /// `buffer_bytes` have up to three times as many bytes together, in whole pages, no matter how
    /// much the sender asks for. This includes buffers for messages that have not come, those of
    /// records that are not yet released, and free ones. With an honest sender at most two thirds
    /// are of the first kind.
    pub record_bytes_max: usize,
}

impl Default for StreamConfig {
    fn default() -> Self {
        Self { buffer_bytes: 64 << 10, buffers: 8, buffers_max: 64, record_bytes_max: 64 << 20 }
    }
}

impl StreamConfig {
    fn check(&self) -> Result<(), GrowError> {
        let limit = records::MESSAGE_BYTES_MAX;
        let tickets = records::TICKETS_MAX;
        let wrong = if !(64..=limit).contains(&self.buffer_bytes) {
            format!("buffer_bytes is {}, and 64 to {limit} are allowed", self.buffer_bytes)
        } else if !(1..=tickets).contains(&self.buffers) {
            format!("buffers is {}, and 1 to {tickets} are allowed", self.buffers)
        } else if self.buffers_max < self.buffers {
            format!("buffers_max is {}, less than buffers, {}", self.buffers_max, self.buffers)
        } else if !(1..=limit).contains(&self.record_bytes_max) {
            format!("record_bytes_max is {}, and 1 to {limit} are allowed", self.record_bytes_max)
        } else {
            return Ok(());
        };
        Err(GrowError::SetUp(wrong))
    }
}

/// A [kept](RecordGuard::keep) record: the position of its bytes, until it is
/// [released](StreamReceiver::release). A record that is never released keeps its buffer, and those
/// of all later records, until the sender waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a record that was kept is to be released"]
pub struct Record {
    number: u64,
    message: u64,
    start: u32,
    length: u32,
    stream: u32,
    /// The message gives the position of the record in an aperture.
    pub(super) is_far: bool,
}

impl Record {
    /// The number of records before it.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// First byte, counted from the start of its buffer.
    pub fn start(&self) -> usize {
        self.start as usize
    }

    /// Bytes.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.length as usize
    }
}

/// The state that the receiver's end point and its offer share.
#[derive(Debug)]
pub(super) struct ReceiverState {
    slots: Box<[SlotId]>,
    /// The slot for a sender's asks and its small messages.
    ask: SlotId,
    places: SlotId,
    /// The answer to every sender: numbers.
    answer: Vec<u8>,
    /// The one request that was admitted, and the ticket for its sender's grants.
    admitted: Mutex<Option<(RequestId, Ticket)>>,
    joined: OnceLock<(Arc<Connection>, Ticket)>,
    queue: QueueId,
    /// The buffers that its program keeps, for the statistics.
    buffers: Arc<BuffersHeld>,
    /// Memory for long records, if the receiver lends some.
    pub(super) far: Option<FarOffer>,
}

impl ReceiverState {
    fn admitted(&self) -> MutexGuard<'_, Option<(RequestId, Ticket)>> {
        self.admitted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct StreamOffer(Arc<ReceiverState>);

/// The way of a sender's messages: all of them through the link, or long ones through an aperture.
const THROUGH_THE_LINK: u8 = 0;

pub(super) const THROUGH_AN_APERTURE: u8 = 1;

impl Protocol for StreamOffer {
    fn check_place(&self, _: &Peer, _: &[u8]) -> Result<(), String> {
        match self.0.admitted().is_some() {
            true => Err("the stream has its sender already".into()),
            false => Ok(()),
        }
    }

    fn admit(
        &mut self,
        node: &mut Node,
        request: RequestId,
        peer: &Peer,
        body: &[u8],
    ) -> Result<Vec<u8>, String> {
        let shared = &*self.0;
        let grants = fast_ticket_from(body, peer)?;
        let path = match (body.get(TICKET_BYTES..), &shared.far) {
            (Some([THROUGH_THE_LINK]), _) => None,
            (Some([THROUGH_AN_APERTURE, credit @ ..]), Some(far)) => Some((far, credit)),
            _ => return Err("the sender wants a path that this receiver does not have".into()),
        };
        if grants.capacity() < (GRANT_BYTES * shared.slots.len() + FREED_BYTES) as u64 {
            return Err("the sender's memory is too small for its tickets".into());
        }
        let mut admitted = shared.admitted();
        let mut answer = shared.answer.clone();
        for slot in [shared.ask, shared.places] {
            let ticket = node.fast_ticket(slot).map_err(|e| e.to_string())?;
            answer.extend_from_slice(&ticket.to_bytes());
        }
        for slot in &shared.slots {
            let ticket = node.ticket(*slot, MetadataIndex(0)).map_err(|e| e.to_string())?;
            answer.extend_from_slice(&ticket.slot.0.to_le_bytes());
            answer.extend_from_slice(&ticket.key.0.to_le_bytes());
        }
        match (path, &shared.far) {
            (Some((far, credit)), _) => far.admit(credit, peer)?,
            (None, Some(far)) => far.admit_plain(),
            (None, None) => {}
        }
        *admitted = Some((request, grants));
        Ok(answer)
    }

    fn withdrawn(&mut self, node: &mut Node, request: RequestId) {
        let mut admitted = self.0.admitted();
        if admitted.is_some_and(|(id, _)| id == request) {
            *admitted = None;
            // It knows the keys, and may have used them over another link of its own: the next
            // sender gets new keys, and the whole room in the queue.
            let _ = node.revoke(self.0.ask);
            let _ = node.revoke(self.0.places);
            for slot in &self.0.slots {
                if let Ok(entry) = node.metadata(*slot, MetadataIndex(0)) {
                    let limits = entry.limits();
                    let _ = node.arm(*slot, MetadataIndex(0), Some(limits));
                }
            }
            while let Ok(Some(_)) = node.pop(self.0.queue) {}
        }
    }

    fn joined(&mut self, node: &mut Node, request: RequestId, connection: &Arc<Connection>) {
        if let Some((id, grants)) = *self.0.admitted()
            && id == request
        {
            let _ = self.0.joined.set((connection.clone(), grants));
            let mut kept: Vec<(_, Arc<dyn BoundedResource>)> =
                vec![("buffers", self.0.buffers.clone())];
            if let Ok(waiting) = node.watch_queue(self.0.queue) {
                let of = |small, max| {
                    let waiting = waiting.clone();
                    Arc::new(MessagesHeld { waiting, small, max })
                };
                kept.push(("messages", of(false, self.0.slots.len() as u64)));
                kept.push(("small_messages", of(true, records::PLACES)));
            }
            node.show_kept(connection.link(), kept);
            // Its messages may be here already, and count from now on.
            node.wake();
        }
    }

    // Its messages that have arrived wait in their slots; no more will come.
    fn left(&mut self, _: &mut Node, _: &Connection) {}
}

const PROTOCOL: &str = "stream: each message into a buffer of its own, through the link's ring";
