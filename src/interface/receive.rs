//! The handling of an arriving packet (Hamlyn, Figure 2).

use super::keys::Keys;
use super::notification::Consumer;
use super::receiver::Checked;
use super::tables::Interface;
use super::{EntryState, LinkId, Mode, Notification, QueueId, Refusal, SlotId};
use crate::link::Body;
use crate::wire::{Flags, Header, INLINE_BYTES, LINE_WORDS, METADATA_MAX, MetadataIndex};

/// A packet was dropped because the interface accepts none (Hamlyn 2.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Discard {
    /// It has not been enabled.
    NotEnabled,
    /// The application has not reset its watchdog in time.
    Watchdog,
}

/// Why a packet was not deposited. Nothing but a counter was changed (at a
/// [shared](Interface::share_entry) entry also the sum of its own link).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotDeposited {
    /// The interface accepts nothing now.
    Discarded(Discard),
    /// The packet was refused, for this reason.
    Refused(Refusal),
}

impl From<Refusal> for NotDeposited {
    #[inline(always)]
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

/// A packet was deposited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// More packets of the message are on their way.
    Part,
    /// The message is complete, and its sender asked for no notification.
    Complete,
    /// The message is complete and stands in the notification queue.
    Notified,
    /// The message is complete, and the slot's [receiver](super::Receiver) has dealt with it.
    Consumed,
}

/// Cached results for packets of one line that a link brings again and again: packets that differ
/// only in their offset and their bytes are not looked up anew.
/// | Only accepted packets are cached: messages of one packet without metadata, to an entry that is
/// not one-shot and holds no metadata. The cache is valid until a change that could make a
/// difference: the interface's epoch.
#[derive(Clone, Debug, Default)]
#[repr(C, align(64))]
pub struct Flow {
    epoch: u64,
    /// Destination and slot, entry and delta, key, and the half of the last header word without the
    /// fast word: in the layout of the line.
    words: [u64; 3],
    flags: u32,
    /// The bits of the queue for its notifications; [`SILENT`]: it makes none.
    queue: u64,
    /// First offset that may be written, and bytes from there on.
    low: u64,
    span: u64,
    /// That first byte's position in the area.
    at: usize,
    /// At offsets below this, the bytes of a whole line fit.
    whole: u64,
    area: u32,
    share: u32,
    /// Index and generation of the slot, side by side as in a notification.
    slot: [u32; 2],
    /// The bits of the fast word that count: all, or none.
    fast: u32,
    /// The words of a packet that came once and was not remembered yet, folded together.
    seen: u64,
}

/// The contents of a message that was taken past its queue. Everything else belongs to its flow,
/// and need not be kept meanwhile.
#[derive(Clone, Copy, Debug)]
pub struct Taken {
    word: u32,
    body: [u64; 2],
}

impl Taken {
    /// The message, which came over `link` and is of `flow`.
    #[inline(always)]
    pub fn handed(self, flow: &Flow, link: LinkId) -> Handed {
        Handed { notification: flow.notification(link, self.word), body: self.body }
    }
}

/// A message that was handed over past its queue. Its bytes lie in the area, too; a caller that
/// reads them here need not wait for that.
#[derive(Clone, Copy, Debug)]
pub struct Handed {
    /// The notification that the queue would have held.
    pub notification: Notification,
    /// Its bytes, up to 16; the rest holds arbitrary bytes of the sender.
    pub body: [u64; 2],
}

impl Flow {
    #[inline(always)]
    fn queue_index(&self) -> u32 {
        QueueId::from_bits(self.queue).index()
    }

    /// The notification of one of its packets, whose fast word is `word`.
    #[inline(always)]
    fn notification(&self, link: LinkId, word: u32) -> Notification {
        Notification {
            slot: SlotId { index: self.slot[0], generation: self.slot[1] },
            index: MetadataIndex(self.words[1] as u32),
            word: word & self.fast,
            link,
        }
    }
}

impl<M: AsRef<[u8]> + AsMut<[u8]>> Interface<M> {
    /// A packet of one line arrived; `word` returns a private copy of each word, called once for
    /// each. Deposits the packet if it is of `flow` and `may` says that its notification has a
    /// place. Returns the words that the flow does not determine: the fast word, and the body.
    #[inline(always)]
    fn deposit_again(
        &mut self,
        flow: &Flow,
        word: impl Fn(usize) -> u64,
        notifies: bool,
        may: impl FnOnce(&mut Self) -> bool,
    ) -> Option<(u32, [u64; 2])> {
        let last = word(5);
        if word(1) != flow.words[0]
            || word(2) != flow.words[1]
            || word(3) != flow.words[2]
            || last as u32 != flow.flags
            || self.epoch != flow.epoch
        {
            return None;
        }
        if !may(self) {
            return None;
        }
        let length = word(0) >> 32;
        let offset = word(4).wrapping_sub(flow.low);
        // The usual length has a path of its own to the end, without the values that others need.
        if length != INLINE_BYTES as u64 || offset >= flow.whole {
            let body = [word(6), word(7)];
            if !self.deposit_short(flow, length, offset, body, notifies) {
                return None;
            }
            return Some(((last >> 32) as u32, body));
        }
        let Some(Some(area)) = self.areas.get_mut(flow.area as usize) else { return None };
        let to = area.memory.as_mut().get_mut(flow.at + offset as usize..)?;
        // Between the two bounds checks, so that these are not combined first.
        let body = [word(6), word(7)];
        let to = to.first_chunk_mut::<INLINE_BYTES>()?;
        to[..8].copy_from_slice(&body[0].to_le_bytes());
        to[8..].copy_from_slice(&body[1].to_le_bytes());
        self.counters.line_received(INLINE_BYTES as u64, notifies);
        Some(((last >> 32) as u32, body))
    }

    /// A packet of `flow` that needs another check: it has less than a line's bytes, or does not
    /// fit. False: nothing was done.
    #[inline(never)]
    fn deposit_short(
        &mut self,
        flow: &Flow,
        length: u64,
        offset: u64,
        body: [u64; 2],
        notifies: bool,
    ) -> bool {
        if length > INLINE_BYTES as u64 || offset > flow.span || length > flow.span - offset {
            return false;
        }
        let Some(Some(area)) = self.areas.get_mut(flow.area as usize) else { return false };
        let from = flow.at + offset as usize;
        let Some(to) = area.memory.as_mut().get_mut(from..from + length as usize) else {
            return false;
        };
        deposit(body, to);
        self.counters.line_received(length, notifies);
        true
    }

    /// A packet of one line arrived over `link`; `word` returns a private copy of each word, called
    /// once for each. Deposits the packet if it is of `flow` and announces a message to `queue`,
    /// which is empty; the caller then has the notification. `consumer` is the queue's consuming
    /// end, if that was handed out. `None`: nothing was done.
    #[inline(always)]
    pub fn take_again(
        &mut self,
        flow: &Flow,
        word: impl Fn(usize) -> u64,
        queue: QueueId,
        consumer: Option<&Consumer>,
    ) -> Option<Taken> {
        // Of a flow that counts there is the slot, and with it the slot's queue.
        if flow.queue != queue.to_bits() || !self.is_empty(queue.index(), consumer) {
            return None;
        }
        let (word, body) = self.deposit_again(flow, word, true, |_| true)?;
        Some(Taken { word, body })
    }

    /// As [`take_again`](Self::take_again), for any request of the packet. False: nothing was done,
    /// and [`handle_packet`](Self::handle_packet) decides.
    #[inline(always)]
    pub fn handle_again(&mut self, flow: &Flow, link: LinkId, word: impl Fn(usize) -> u64) -> bool {
        let notifies = flow.queue != SILENT;
        let has_credit = |interface: &mut Self| {
            !notifies
                || matches!(interface.queues.get(flow.queue_index() as usize),
                    Some(Some(queue)) if queue.producer.has_credit(flow.share))
        };
        let Some((word, _)) = self.deposit_again(flow, word, notifies, has_credit) else {
            return false;
        };
        if notifies {
            self.announce(flow.queue_index(), flow.share, &flow.notification(link, word));
        }
        true
    }

    /// Appends to a queue. The share has credit.
    #[inline(always)]
    pub(super) fn announce(&mut self, queue: u32, share: u32, notification: &Notification) {
        let index = queue as usize;
        let Some(Some(queue)) = self.queues.get_mut(index) else { return };
        queue.producer.push(share, notification);
        self.waiting[index] += queue.consumer.is_some() as u64;
    }

    /// A packet of one line was accepted; if it was like the one before, those that follow may be
    /// [of a flow](Self::handle_again).
    #[inline]
    pub fn remember(&self, flow: &mut Flow, words: &[u64; LINE_WORDS]) {
        let seen = words[1] ^ words[2].rotate_left(7) ^ words[3] ^ words[5] << 32;
        if flow.seen == seen {
            if let Some(found) = self.flow_of(words) {
                *flow = found;
            }
        } else {
            flow.seen = seen;
        }
    }

    #[inline(never)]
    fn flow_of(&self, words: &[u64; LINE_WORDS]) -> Option<Flow> {
        let (header, _) = Header::from_words(words.first_chunk()?);
        let slot = self.slots.get(header.slot.0 as usize)?.as_ref()?;
        if slot.receiver.is_some() {
            return None;
        }
        let entry = slot.entries.get(header.metadata_index.0 as usize);
        let is_single = header.metadata_index == MetadataIndex::FAST || header.delta == 0;
        let keeps = header.metadata_len == 0 && entry.is_none_or(|entry| entry.user_len == 0);
        let (low, high) = match (slot.mode, entry) {
            (Mode::Normal, _) => (0, slot.size),
            (Mode::Paranoid, Some(entry)) if entry.state == EntryState::Open => {
                (entry.low, entry.high.min(slot.size))
            }
            _ => return None,
        };
        let queue = self.queues.get(slot.queue.index() as usize)?.as_ref()?;
        // If the caller requires an empty queue, credit need not be checked.
        let notifies = header.flags.contains(Flags::NOTIFY);
        let has_credit = !notifies || queue.producer.credit(slot.share) > 0;
        (is_single && keeps && has_credit && low <= high).then_some(Flow {
            epoch: self.epoch,
            words: [words[1], words[2], words[3]],
            flags: words[5] as u32,
            queue: if notifies { slot.queue.to_bits() } else { SILENT },
            low,
            span: high - low,
            at: (slot.base + low) as usize,
            whole: (high - low).saturating_sub(INLINE_BYTES as u64 - 1),
            area: slot.area,
            share: slot.share,
            slot: [header.slot.0, slot.generation],
            fast: if header.metadata_index == MetadataIndex::FAST { u32::MAX } else { 0 },
            seen: 0,
        })
    }

    /// A packet arrived over `link`. `header` is a private copy, `reserved` its reserved bits,
    /// `body` the packet's bytes in place; each byte is read at most once, and none before every
    /// check has passed.
    #[inline(always)]
    pub fn handle_packet<B: Body>(
        &mut self,
        link: LinkId,
        header: &Header,
        reserved: u32,
        body: &B,
    ) -> Result<Arrival, NotDeposited> {
        let result = match self.discard {
            None => self.accept(link, header, reserved, body).map_err(NotDeposited::Refused),
            Some(discard) => Err(NotDeposited::Discarded(discard)),
        };
        match result {
            Ok(_) => {
                self.counters.packets_received.add(1);
                self.counters.bytes_received.add(header.length as u64);
            }
            Err(NotDeposited::Refused(refusal)) => self.counters.refusal(refusal).add(1),
            Err(NotDeposited::Discarded(_)) => self.counters.packets_discarded.add(1),
        }
        result
    }

    #[inline(always)]
    fn accept<B: Body>(
        &mut self,
        link: LinkId,
        header: &Header,
        reserved: u32,
        body: &B,
    ) -> Result<Arrival, Refusal> {
        if header.destination != self.id.destination() {
            return Err(Refusal::WrongDestination);
        }
        if reserved != 0 || header.metadata_len as usize > METADATA_MAX {
            return Err(Refusal::BadFormat);
        }
        let Some(Some(slot)) = self.slots.get_mut(header.slot.0 as usize) else {
            return Err(Refusal::NoSuchSlot);
        };
        let is_fast = header.metadata_index == MetadataIndex::FAST;
        if is_fast {
            if slot.mode != Mode::Normal {
                return Err(Refusal::FastIntoParanoid);
            }
            if header.metadata_len != 0 {
                return Err(Refusal::BadFormat);
            }
        }
        let mut entry = slot.entries.get_mut(header.metadata_index.0 as usize);
        if entry.is_none() && !is_fast {
            return Err(Refusal::NoSuchEntry);
        }
        // The key is checked before the bounds, so a stranger learns nothing of the slot's size.
        let key = match (slot.mode, &entry) {
            (Mode::Normal, _) | (_, None) => slot.key,
            (Mode::Paranoid | Mode::ParanoidOneShot, Some(entry)) => entry.key,
        };
        if key != header.key {
            return Err(wrong_key(&self.keys, header));
        }
        let mut before = entry.as_ref().map_or(0, |entry| entry.accumulator);
        let length = header.length as u64;
        let fits = |low: u64, high: u64| {
            header.offset >= low && header.offset <= high && length <= high - header.offset
        };
        if !fits(0, slot.size) {
            return Err(Refusal::OutOfBounds);
        }
        if let (Mode::Paranoid | Mode::ParanoidOneShot, Some(entry)) = (slot.mode, &mut entry) {
            if !fits(entry.low, entry.high) {
                return Err(Refusal::OutsideLimits);
            }
            if entry.state != EntryState::Open {
                before = entry.let_through(link, header.delta)?;
            }
        }
        // Hamlyn 2.5: a zero delta announces a single-packet message; the accumulator is not
        // consulted. A fast packet is always a whole message.
        let (completes, accumulator) = match &entry {
            None => (true, 0),
            Some(_) if header.delta == 0 => (true, 0),
            Some(_) => {
                let sum = before.wrapping_add(header.delta);
                (sum == 0, sum)
            }
        };
        let notifies = completes && header.flags.contains(Flags::NOTIFY);
        let Some(Some(queue)) = self.queues.get(slot.queue.index() as usize) else {
            return Err(Refusal::NoCredit);
        };
        if notifies && !queue.producer.has_credit(slot.share) {
            return Err(Refusal::NoCredit);
        }
        let Some(Some(area)) = self.areas.get_mut(slot.area as usize) else {
            return Err(Refusal::OutOfBounds);
        };

        // Every check has passed.
        let checked = Checked { before, accumulator, completes, notifies };
        if slot.receiver.is_some() {
            return self.accept_installed(link, header, body, &checked);
        }
        // The deposit:
        let at = (slot.base + header.offset) as usize;
        let Some(to) = area.memory.as_mut().get_mut(at..at + length as usize) else {
            return Err(Refusal::OutOfBounds);
        };
        if header.metadata_len == 0 && length <= INLINE_BYTES as u64 {
            deposit(body.inline(), to);
        } else {
            body.copy_data(to);
        }
        if let Some(entry) = entry {
            // Packets of a flow leave no metadata, and take none away.
            if header.metadata_len != 0 {
                self.epoch += 1;
            }
            entry.count(link, header, body, &checked);
            if completes && slot.mode == Mode::ParanoidOneShot {
                entry.close();
            }
        }
        if !completes {
            return Ok(Arrival::Part);
        }
        self.counters.messages_received.add(1);
        if !notifies {
            return Ok(Arrival::Complete);
        }
        let Header { metadata_index: index, word, .. } = *header;
        let to = SlotId { index: header.slot.0, generation: slot.generation };
        let (queue, share) = (slot.queue.index(), slot.share);
        self.counters.notifications.add(1);
        self.announce(queue, share, &Notification { slot: to, index, word, link });
        Ok(Arrival::Notified)
    }
}

/// No queue: the packets of a flow announce nothing.
const SILENT: u64 = u64::MAX;

/// The body of a packet without metadata that lies behind its header, up to 16 bytes.
#[inline(always)]
fn deposit(body: [u64; 2], to: &mut [u8]) {
    // In pieces of known length: a copy of variable length is a call, which would spill the
    // message's values from registers.
    let (words, rest) = to.as_chunks_mut::<8>();
    let mut left = if words.is_empty() { body[0] } else { body[1] };
    for (to, word) in words.iter_mut().zip(body) {
        *to = word.to_le_bytes();
    }
    let (halves, rest) = rest.as_chunks_mut::<4>();
    if let Some(to) = halves.first_mut() {
        *to = (left as u32).to_le_bytes();
        left >>= 32;
    }
    let (pairs, rest) = rest.as_chunks_mut::<2>();
    if let Some(to) = pairs.first_mut() {
        *to = (left as u16).to_le_bytes();
        left >>= 16;
    }
    if let Some(to) = rest.first_mut() {
        *to = left as u8;
    }
}

/// Why a packet is refused whose key is not the one that counts now.
#[cold]
fn wrong_key(keys: &Keys, header: &Header) -> Refusal {
    match keys.has_made(header.slot, header.metadata_index, header.key) {
        true => Refusal::StaleKey,
        false => Refusal::WrongKey,
    }
}
