//! Send termini (Hamlyn 2.3): work queues, completion words, send buffer areas, segmentation.
//!
//! ```text
//! application --> begin / post_immediate / post_gather --> work queue of (terminus, link)
//!        link <-- transmit_turn: one packet of each terminus in turn, higher priorities first
//! application <-- is_reusable(handle): the completion word has passed the message
//! ```
//! Work queues and completion words are per terminus and link: a link that is full delays only its
//! own. A message is *reusable* when its bytes have been copied out; not when it is delivered.
//! Never: a piece that reaches outside its send buffer area; a message whose share is smaller than
//! the number of its packets; an allocation once a queue has been used.

use super::LinkId;
use crate::link::{Full, MessageParts, Source, Transmit};
use crate::wire::{Header, METADATA_MAX, MetadataIndex, ShareError, Ticket};
use alloc::{collections::VecDeque, vec::Vec};
use core::ops::Range;

/// Most pieces of a gathered message.
pub const PIECES_MAX: usize = 16;
/// Most data bytes of a message that is copied into its work queue entry.
pub const IMMEDIATE_MAX: usize = 256;
/// Work queue entries unless configured (Hamlyn 2.3).
pub const WORK_QUEUE_ENTRIES: usize = 63;
/// Send buffer areas of a terminus unless configured (Hamlyn 2.3).
pub const SEND_BUFFERS: usize = 8;

/// A terminus of one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TerminusId(pub(crate) u32);

impl core::fmt::Display for TerminusId {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "terminus {}", self.0)
    }
}

/// Names a send buffer area of a terminus.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BufferTag(pub u8);

impl core::fmt::Display for BufferTag {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        self.0.fmt(f)
    }
}

/// A piece of a gathered message: `<send_buffer_tag, offset, length>`, in bytes.
///
/// ```
/// # let dir = std::env::temp_dir().join(format!("hamlyn-doc-piece-{}", std::process::id()));
/// # let config = hamlyn::Config::from_env()?.dir(&dir);
///
/// use hamlyn::{MetadataIndex, Node, Piece, SlotConfig};
///
/// let mut node = Node::with_config(config)?;
/// let (area, queue) = (node.message_area(4096)?, node.notification_queue(1)?);
/// let slot = node.slot(SlotConfig::new(area, queue))?;
/// // A node sends to itself as to any other node.
/// let ticket = node.ticket(slot, MetadataIndex(0))?;
/// let terminus = node.primary();
/// let tag = node.send_buffer(terminus, 64)?;
/// node.send_buffer_mut(terminus, tag)?[..9].copy_from_slice(b"gathered!");
/// let pieces = [Piece { tag, offset: 4, length: 4 }, Piece { tag, offset: 0, length: 3 }];
/// // The message waits in the work queue; `recv`, which also sends, lets it leave.
/// let _ = node.post_send(terminus, &ticket, &pieces, b"")?;
/// node.recv(queue, None)?;
/// assert_eq!(&node.area(area)?[..7], b"eredgat");
/// # drop(node);
/// # std::fs::remove_dir_all(&dir).ok();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The send buffer area.
    pub tag: BufferTag,
    /// First byte.
    pub offset: u64,
    /// Number of bytes.
    pub length: u64,
}

/// Names a message that was sent, for the question whether its buffer may be used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use = "asks later whether the buffer may be used again; drop it with `let _ =`"]
pub struct SendHandle {
    pub(crate) terminus: u32,
    pub(crate) link: LinkId,
    pub(crate) sequence: u64,
}

impl SendHandle {
    /// As numbers, for languages that cannot hold this type.
    pub fn to_bits(self) -> [u64; 3] {
        let link = (self.link.index as u64) << 16 | self.link.generation as u64;
        [self.terminus as u64, link, self.sequence]
    }

    /// From [`to_bits`](Self::to_bits). The numbers of a message that was never sent only get the
    /// answer that its buffer may be used again, or not yet.
    pub fn from_bits(bits: [u64; 3]) -> Self {
        let link = LinkId { index: (bits[1] >> 16) as u32, generation: bits[1] as u16 };
        Self { terminus: bits[0] as u32, link, sequence: bits[2] }
    }
}

/// A message that was not taken. Nothing of it was sent and nothing was queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[cfg_attr(not(feature = "unstable-internals"), non_exhaustive)]
pub enum PostError {
    /// No terminus has this name.
    #[error("{0} does not exist: it belongs to another node")]
    NoSuchTerminus(TerminusId),
    /// Not now: the work queue or the link is full.
    #[error("the work queue is full: {0} messages wait")]
    QueueFull(usize),
    /// Longer than the ticket allows.
    #[error("a message of {length} bytes does not fit into the ticket's {capacity}")]
    TooLong {
        /// Bytes of the message.
        length: u64,
        /// Bytes that the ticket allows.
        capacity: u64,
    },
    /// More metadata than a message carries.
    #[error("{0} bytes of metadata, and a message carries at most {METADATA_MAX}")]
    TooMuchMetadata(usize),
    /// A message in fast mode is one packet and has no metadata but its word.
    #[error(
        "a fast message is one packet of at most {packet_bytes} bytes without metadata; this has {length} and {metadata} of metadata"
    )]
    NotFast {
        /// Bytes of the message.
        length: u64,
        /// Bytes of metadata.
        metadata: usize,
        /// Data bytes of a packet on this link.
        packet_bytes: u32,
    },
    /// The ticket's share cannot count the packets.
    #[error(transparent)]
    Share(#[from] ShareError),
    /// Too many pieces.
    #[error("{0} pieces, and a message is gathered from at most {PIECES_MAX}")]
    TooManyPieces(usize),
    /// No such send buffer area.
    #[error("the terminus has no send buffer area {0}")]
    NoSuchTag(BufferTag),
    /// A piece reaches outside its area.
    #[error(
        "the piece at {offset} of {length} bytes is not inside the {size} bytes of send buffer area {tag}"
    )]
    PieceOutsideArea {
        /// The area.
        tag: BufferTag,
        /// First byte.
        offset: u64,
        /// Number of bytes.
        length: u64,
        /// Bytes of the area.
        size: u64,
    },
    /// All tags of the terminus are in use.
    #[error("the terminus has {0} send buffer areas already, and no more are allowed")]
    TooManyBuffers(usize),
    /// The area is still being sent from.
    #[error("send buffer area {0} is still being sent from")]
    BufferBusy(BufferTag),
}

/// Cuts one message into packets: the header of Table 1 for each, metadata in the first only, the
/// deltas of 2.5.
#[derive(Clone, Debug)]
pub struct Segmenter {
    ticket: Ticket,
    word: u32,
    length: u64,
    metadata_len: u8,
    sent: u64,
    packets: u64,
    done: bool,
}

impl Segmenter {
    /// Refuses, before anything is sent, a message that the ticket does not allow.
    /// `packet_bytes` is the smallest that a packet of this message may be cut to.
    #[inline]
    pub fn new(
        ticket: &Ticket,
        length: u64,
        metadata_len: usize,
        word: u32,
        packet_bytes: u32,
    ) -> Result<Self, PostError> {
        if length > ticket.capacity() {
            return Err(PostError::TooLong { length, capacity: ticket.capacity() });
        }
        if metadata_len > METADATA_MAX {
            return Err(PostError::TooMuchMetadata(metadata_len));
        }
        if ticket.metadata_index == MetadataIndex::FAST {
            if metadata_len != 0 || length > packet_bytes as u64 {
                return Err(PostError::NotFast { length, metadata: metadata_len, packet_bytes });
            }
        } else {
            let packets = (length + metadata_len as u64).div_ceil(packet_bytes as u64).max(1);
            ticket.share.check_packets(packets)?;
        }
        Ok(Self {
            ticket: *ticket,
            word,
            length,
            metadata_len: metadata_len as u8,
            sent: 0,
            packets: 0,
            done: false,
        })
    }

    /// Whether the last packet has been taken.
    #[inline]
    pub fn is_done(&self) -> bool {
        self.done
    }

    /// Data bytes of the whole message.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// The message's destination.
    pub fn destination(&self) -> crate::wire::NodeId {
        self.ticket.destination
    }

    /// The flags of its packets.
    pub fn flags(&self) -> crate::wire::Flags {
        self.ticket.flags
    }

    /// Packets taken so far.
    pub fn packets(&self) -> u64 {
        self.packets
    }

    /// Data bytes taken so far.
    pub fn bytes(&self) -> u64 {
        self.sent
    }

    /// The next packet's header, and which bytes of the message it carries. The metadata goes with
    /// it if `header.metadata_len` is not zero.
    #[inline]
    pub fn next(&self, packet_bytes: u32) -> (Header, Range<u64>) {
        let metadata_len = if self.packets == 0 { self.metadata_len } else { 0 };
        let room = packet_bytes as u64 - metadata_len as u64;
        let left = self.length - self.sent;
        let (length, is_last) = if left <= room { (left, true) } else { (room, false) };
        let header = Header {
            destination: self.ticket.destination.destination(),
            slot: self.ticket.slot,
            metadata_index: self.ticket.metadata_index,
            key: self.ticket.key,
            offset: self.ticket.base + self.sent,
            length: length as u32,
            delta: self.ticket.share.delta(is_last, self.packets),
            metadata_len,
            flags: self.ticket.flags,
            word: self.word,
        };
        (header, self.sent..self.sent + length)
    }

    /// A link has taken the packet that [`next`](Self::next) described.
    #[inline]
    pub fn taken(&mut self, range: &Range<u64>) {
        self.sent = range.end;
        self.packets += 1;
        self.done = self.sent == self.length;
    }

    /// Gives packets of a message with this data to a link until it is full or the message has been
    /// taken. `Ok` means taken.
    #[inline]
    pub fn advance<T: Transmit>(
        &mut self,
        link: &mut T,
        data: impl MessageParts,
        metadata: &[u8],
    ) -> Result<(), Full> {
        while !self.done {
            self.advance_one(link, data, metadata)?;
        }
        Ok(())
    }

    /// Gives one packet of a message with this data to a link, if any is left.
    #[inline]
    pub fn advance_one<T: Transmit>(
        &mut self,
        link: &mut T,
        data: impl MessageParts,
        metadata: &[u8],
    ) -> Result<(), Full> {
        if !self.done {
            let (header, range) = self.next(link.packet_bytes_with(self.ticket.flags));
            let metadata = if header.metadata_len == 0 { &[] } else { metadata };
            link.transmit(&header, metadata, data.part(range.clone()))?;
            self.taken(&range);
        }
        Ok(())
    }
}

#[derive(Clone, Copy, Debug)]
enum WorkData {
    /// Direct I/O: the bytes are in the entry.
    Immediate([u8; IMMEDIATE_MAX]),
    /// To be gathered from send buffer areas.
    Gather { pieces: [Piece; PIECES_MAX], count: u8 },
}

#[derive(Clone, Debug)]
struct QueuedWork {
    segmenter: Segmenter,
    metadata: [u8; METADATA_MAX],
    data: WorkData,
}

/// The state of one terminus for one link.
#[derive(Debug)]
struct LinkQueue {
    link: LinkId,
    entries: VecDeque<QueuedWork>,
    /// Messages accepted since the link was made.
    posted: u64,
    /// The completion word: messages whose bytes have all been copied out.
    completed: u64,
}

/// A send terminus. `M` is the memory of send buffer areas.
#[derive(Debug)]
pub struct Terminus<M> {
    index: u32,
    priority: u8,
    work_queue_entries: usize,
    buffers: Vec<Option<M>>,
    queues: Vec<LinkQueue>,
}

impl<M: AsRef<[u8]> + AsMut<[u8]>> Terminus<M> {
    /// The terminus at place `index` of its interface; of priority 0, all alike.
    pub fn new(index: u32, work_queue_entries: usize, send_buffers: usize) -> Self {
        let buffers = (0..send_buffers).map(|_| None).collect();
        Self { index, priority: 0, work_queue_entries, buffers, queues: Vec::new() }
    }

    /// Packets of a terminus of higher priority go first, always; starving the others is then the
    /// application's choice.
    pub fn set_priority(&mut self, priority: u8) {
        self.priority = priority;
    }

    // ---- send buffer areas

    /// Makes `memory` a send buffer area.
    pub fn add_buffer(&mut self, memory: M) -> Result<BufferTag, PostError> {
        let free = self.buffers.iter().position(Option::is_none);
        let tag = free.ok_or(PostError::TooManyBuffers(self.buffers.len()))?;
        self.buffers[tag] = Some(memory);
        Ok(BufferTag(tag as u8))
    }

    /// Takes a send buffer area back. Refused while a queued message needs it.
    pub fn remove_buffer(&mut self, tag: BufferTag) -> Result<M, PostError> {
        self.buffer(tag)?;
        let needs = |work: &QueuedWork| match &work.data {
            WorkData::Gather { pieces, count } => {
                pieces[..*count as usize].iter().any(|piece| piece.tag == tag)
            }
            WorkData::Immediate(_) => false,
        };
        if self.queues.iter().any(|queue| queue.entries.iter().any(needs)) {
            return Err(PostError::BufferBusy(tag));
        }
        self.buffers[tag.0 as usize].take().ok_or(PostError::NoSuchTag(tag))
    }

    /// The bytes of a send buffer area.
    pub fn buffer(&self, tag: BufferTag) -> Result<&[u8], PostError> {
        match self.buffers.get(tag.0 as usize) {
            Some(Some(memory)) => Ok(memory.as_ref()),
            _ => Err(PostError::NoSuchTag(tag)),
        }
    }

    /// The bytes of a send buffer area, to be filled. Bytes of a queued message that is not yet
    /// reusable are sent as they are when their packet leaves.
    pub fn buffer_mut(&mut self, tag: BufferTag) -> Result<&mut [u8], PostError> {
        match self.buffers.get_mut(tag.0 as usize) {
            Some(Some(memory)) => Ok(memory.as_mut()),
            _ => Err(PostError::NoSuchTag(tag)),
        }
    }

    // ---- posting

    #[inline(always)]
    fn queue(&mut self, link: LinkId) -> &mut LinkQueue {
        let i = link.index as usize;
        if i >= self.queues.len() || self.queues[i].link != link {
            self.make_queue(link);
        }
        &mut self.queues[i]
    }

    #[cold]
    fn make_queue(&mut self, link: LinkId) {
        let empty = |index: usize| LinkQueue {
            link: LinkId { index: index as u32, generation: 0 },
            entries: VecDeque::new(),
            posted: 0,
            completed: 0,
        };
        while self.queues.len() <= link.index as usize {
            self.queues.push(empty(self.queues.len()));
        }
        self.queues[link.index as usize] = LinkQueue { link, ..empty(0) };
    }

    /// Whether nothing waits for `link`, so that a message may go to it directly.
    #[inline(always)]
    pub fn is_idle(&mut self, link: LinkId) -> bool {
        self.queue(link).entries.is_empty()
    }

    /// Messages that wait for `link`.
    pub fn waiting(&mut self, link: LinkId) -> usize {
        self.queue(link).entries.len()
    }

    fn post(&mut self, link: LinkId, work: QueuedWork) -> Result<SendHandle, PostError> {
        let (terminus, limit) = (self.index, self.work_queue_entries);
        let queue = self.queue(link);
        if queue.entries.len() >= limit {
            return Err(PostError::QueueFull(queue.entries.len()));
        }
        if queue.entries.capacity() < limit {
            queue.entries.reserve_exact(limit);
        }
        queue.entries.push_back(work);
        queue.posted += 1;
        Ok(SendHandle { terminus, link, sequence: queue.posted })
    }

    /// Queues a message of at most [`IMMEDIATE_MAX`] bytes, which are copied now.
    pub fn post_immediate(
        &mut self,
        link: LinkId,
        segmenter: Segmenter,
        data: impl MessageParts,
        metadata: &[u8],
    ) -> Result<SendHandle, PostError> {
        let length = data.bytes();
        if length > IMMEDIATE_MAX as u64 {
            let waiting = self.waiting(link);
            return Err(PostError::QueueFull(waiting));
        }
        let mut bytes = [0; IMMEDIATE_MAX];
        data.part(0..length)
            .for_each(|at, piece| bytes[at..at + piece.len()].copy_from_slice(piece));
        self.post(
            link,
            QueuedWork { segmenter, metadata: pad(metadata), data: WorkData::Immediate(bytes) },
        )
    }

    /// Queues a message gathered from send buffer areas; each piece is checked against its area.
    /// The metadata is copied now, the pieces when their packets leave.
    pub fn post_gather(
        &mut self,
        link: LinkId,
        ticket: &Ticket,
        gather: &[Piece],
        metadata: &[u8],
        packet_bytes: u32,
    ) -> Result<SendHandle, PostError> {
        if gather.len() > PIECES_MAX {
            return Err(PostError::TooManyPieces(gather.len()));
        }
        let mut length = 0u64;
        for piece in gather {
            let size = self.buffer(piece.tag)?.len() as u64;
            if piece.offset > size || piece.length > size - piece.offset {
                let Piece { tag, offset, length } = *piece;
                return Err(PostError::PieceOutsideArea { tag, offset, length, size });
            }
            length += piece.length;
        }
        let segmenter = Segmenter::new(ticket, length, metadata.len(), 0, packet_bytes)?;
        let mut pieces = [Piece { tag: BufferTag(0), offset: 0, length: 0 }; PIECES_MAX];
        pieces[..gather.len()].copy_from_slice(gather);
        let data = WorkData::Gather { pieces, count: gather.len() as u8 };
        self.post(link, QueuedWork { segmenter, metadata: pad(metadata), data })
    }

    // ---- completion

    /// Whether all bytes of the message have been copied out. A message to a link that is gone is
    /// reusable: nothing will read it.
    #[inline]
    pub fn is_reusable(&self, handle: &SendHandle) -> bool {
        match self.queues.get(handle.link.index as usize) {
            Some(queue) if queue.link == handle.link => queue.completed >= handle.sequence,
            _ => true,
        }
    }

    /// Drops the messages that wait for a link that is gone; returns their number.
    pub fn drop_link(&mut self, link: LinkId) -> usize {
        match self.queues.get_mut(link.index as usize) {
            Some(queue) if queue.link == link => {
                let lost = queue.entries.len();
                queue.entries = VecDeque::new();
                queue.completed = queue.posted;
                lost
            }
            _ => 0,
        }
    }

    /// Gives one packet to the link. `Ok(None)`: nothing waits.
    fn transmit_one<T: Transmit>(
        &mut self,
        link_id: LinkId,
        link: &mut T,
    ) -> Result<Option<SentPacket>, Full> {
        let Some(queue) = self.queues.get_mut(link_id.index as usize) else { return Ok(None) };
        if queue.link != link_id {
            return Ok(None);
        }
        let Some(work) = queue.entries.front_mut() else { return Ok(None) };
        let packet_bytes = link.packet_bytes_with(work.segmenter.flags());
        let (header, range) = work.segmenter.next(packet_bytes);
        let metadata = &work.metadata[..header.metadata_len as usize];
        match &work.data {
            WorkData::Immediate(bytes) => {
                link.transmit(&header, metadata, &bytes[range.start as usize..range.end as usize])?;
            }
            WorkData::Gather { pieces, count } => {
                let pieces = &pieces[..*count as usize];
                let source =
                    GatheredPieces { pieces, buffers: &self.buffers, range: range.clone() };
                link.transmit(&header, metadata, source)?;
            }
        }
        work.segmenter.taken(&range);
        let is_last = work.segmenter.is_done();
        if is_last {
            queue.entries.pop_front();
            queue.completed += 1;
        }
        Ok(Some(SentPacket { bytes: header.length, flags: header.flags, is_last }))
    }
}

fn pad(metadata: &[u8]) -> [u8; METADATA_MAX] {
    let mut padded = [0; METADATA_MAX];
    padded[..metadata.len()].copy_from_slice(metadata);
    padded
}

/// A packet that a link took.
#[derive(Clone, Copy, Debug)]
pub struct SentPacket {
    /// Data bytes.
    pub bytes: u32,
    /// The message's flags.
    pub flags: crate::wire::Flags,
    /// It was the message's last packet.
    pub is_last: bool,
}

/// Bytes `range` of a message that lies in pieces. Each piece was checked when it was posted, and
/// an area does not shrink or go while a message needs it.
struct GatheredPieces<'a, M> {
    pieces: &'a [Piece],
    buffers: &'a [Option<M>],
    range: Range<u64>,
}

impl<M: AsRef<[u8]>> Source for GatheredPieces<'_, M> {
    fn for_each(&self, mut put: impl FnMut(usize, &[u8])) {
        let mut start = 0;
        for piece in self.pieces {
            let end = start + piece.length;
            let (from, to) = (self.range.start.max(start), self.range.end.min(end));
            if from < to
                && let Some(Some(memory)) = self.buffers.get(piece.tag.0 as usize)
            {
                let at = (piece.offset + from - start) as usize;
                let bytes = &memory.as_ref()[at..at + (to - from) as usize];
                put((from - self.range.start) as usize, bytes);
            }
            start = end;
        }
    }
}

/// Whether a message of `terminus` for a link must wait for others: for earlier messages of
/// `terminus`, which leave in order, or for those of a terminus of higher priority.
pub fn comes_behind<M: AsRef<[u8]> + AsMut<[u8]>>(
    termini: &mut [Terminus<M>],
    terminus: usize,
    link: LinkId,
) -> bool {
    let Some(own) = termini.get_mut(terminus) else { return false };
    let priority = own.priority;
    !own.is_idle(link)
        || termini.iter_mut().any(|other| other.priority > priority && other.waiting(link) > 0)
}

/// One packet of each terminus in turn, higher priorities first, until `budget` packets have left,
/// nothing waits, or the link is full (Hamlyn 2.3: the interface interleaves packets from all
/// termini). `next` remembers the terminus whose turn it is. Calls `sent` for each packet; returns
/// whether anything still waits for this link.
pub fn transmit_turn<T: Transmit, M: AsRef<[u8]> + AsMut<[u8]>>(
    termini: &mut [Terminus<M>],
    link_id: LinkId,
    link: &mut T,
    next: &mut usize,
    budget: usize,
    mut sent: impl FnMut(SentPacket),
) -> bool {
    for _ in 0..budget {
        let count = termini.len();
        let has_work = |terminus: &Terminus<M>| {
            let queue = terminus.queues.get(link_id.index as usize);
            queue.is_some_and(|queue| queue.link == link_id && !queue.entries.is_empty())
        };
        let top = termini.iter().filter(|t| has_work(t)).map(|t| t.priority).max();
        let Some(top) = top else { return false };
        let turn = (0..count)
            .map(|i| (*next + i) % count)
            .find(|&i| termini[i].priority == top && has_work(&termini[i]));
        let Some(turn) = turn else { return false };
        match termini[turn].transmit_one(link_id, link) {
            Ok(Some(packet)) => {
                *next = turn + 1;
                sent(packet);
            }
            Ok(None) => return false,
            Err(Full) => return true,
        }
    }
    true
}
