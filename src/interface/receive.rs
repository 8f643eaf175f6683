//! The handling of an arriving packet (Hamlyn, Figure 2).

use super::keys::InterfaceKeys;
use super::notification::Consumer;
use super::receiver::Checked;
use super::tables::Interface;
use super::{EntryState, LinkId, Mode, Notification, QueueId, Refusal, SlotId};
use crate::link::Body;
use crate::wire::{Flags, Header, INLINE_BYTES, METADATA_MAX, MetadataIndex, Varying};

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

/// The results of all checks that depend on neither offset, length, word nor bytes of a packet: made
/// for each packet once, and kept for those that a link brings again and again.
///
/// Only plain packets are deposited by it alone: messages of one packet without metadata, to an
/// entry that is not one-shot and holds no metadata, in a slot without a receiver. A kept one is
/// valid until a change that could make a difference: the interface's epoch.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub struct Flow {
    /// 0: it is not plain, or nothing was kept. With [`FILTERED`]: it may be.
    epoch: u64,
    /// The bits of the queue for its notifications; [`SILENT`]: it makes none.
    queue: u64,
    /// First offset that may be written, and bytes from there on.
    low: u64,
    span: u64,
    /// That first byte's position in the area.
    at: usize,
    area: u32,
    share: u32,
    /// Index and generation of the slot, side by side as in a notification.
    slot: [u32; 2],
    index: u32,
    /// The bits of the fast word that count: all, or none.
    fast: u32,
}

/// The contents of a message that was taken past its queue. Everything else belongs to its flow,
/// and need not be kept meanwhile.
#[derive(Clone, Copy, Debug)]
pub struct TakenMessage {
    word: u32,
    length: u32,
    body: [u64; 2],
}

impl TakenMessage {
    /// The message, which came over `link` and is of `flow`.
    #[inline(always)]
    pub fn handed(self, flow: &Flow, link: LinkId) -> Handed {
        let Self { word, length, body } = self;
        Handed { notification: flow.notification(link, word), length, body }
    }
}

/// A message that was handed over past its queue. Its bytes lie in the area, too; a caller that
/// reads up to 16 of them here need not wait for that.
#[derive(Clone, Copy, Debug)]
pub struct Handed {
    /// The notification that the queue would have held.
    pub notification: Notification,
    length: u32,
    body: [u64; 2],
}

impl Handed {
    /// Its bytes, if the packet had at most 16, whatever its sender says in a word; behind them,
    /// arbitrary bytes of the sender.
    #[inline(always)]
    pub fn words(&self) -> Option<[u64; 2]> {
        (self.length <= INLINE_BYTES as u32).then_some(self.body)
    }
}

impl Flow {
    /// Of no packet.
    pub const NONE: Self = Self {
        epoch: 0,
        queue: SILENT,
        low: 0,
        span: 0,
        at: 0,
        area: 0,
        share: 0,
        slot: [0; 2],
        index: 0,
        fast: 0,
    };

    #[inline(always)]
    fn queue_index(&self) -> u32 {
        QueueId::from_bits(self.queue).index()
    }

    #[inline(always)]
    fn notifies(&self) -> bool {
        self.queue != SILENT
    }

    /// The notification of one of its packets, whose fast word is `word`.
    #[inline(always)]
    fn notification(&self, link: LinkId, word: u32) -> Notification {
        Notification {
            slot: SlotId { index: self.slot[0], generation: self.slot[1] },
            index: MetadataIndex(self.index),
            word: word & self.fast,
            link,
        }
    }

    /// The position in the area of the packet's first byte; `None`: it does not lie in its limits.
    #[inline(always)]
    fn place(&self, varying: &Varying) -> Option<usize> {
        let offset = varying.offset.wrapping_sub(self.low);
        let fits = offset <= self.span && varying.length as u64 <= self.span - offset;
        fits.then(|| self.at + offset as usize)
    }
}

impl<M: AsRef<[u8]> + AsMut<[u8]>> Interface<M> {
    /// Copies the bytes of a plain packet into its area, from position `at`, and counts it. Returns
    /// the bytes, if they are at most 16. `None`: nothing was done.
    #[inline(always)]
    fn deposit(
        &mut self,
        flow: &Flow,
        at: usize,
        length: u32,
        body: &impl Body,
        notifies: bool,
    ) -> Option<[u64; 2]> {
        let Some(Some(area)) = self.areas.get_mut(flow.area as usize) else { return None };
        let to = area.memory.as_mut().get_mut(at..)?.get_mut(..length as usize)?;
        let mut words = [0; 2];
        if let Ok(to) = <&mut [u8; INLINE_BYTES]>::try_from(&mut *to) {
            words = body.words();
            to[..8].copy_from_slice(&words[0].to_le_bytes());
            to[8..].copy_from_slice(&words[1].to_le_bytes());
        } else if length as usize > INLINE_BYTES {
            body.copy_data(to);
        } else {
            words = body.words();
            deposit_short(words, to);
        }
        self.counters.packet_received(length as u64, notifies);
        Some(words)
    }

    /// A packet arrived over a link that kept `flow` for it. Deposits the packet if that is valid, and
    /// if it announces a message to `queue`, which is empty; the caller then has the notification.
    /// `consumer` is the queue's consuming end, if that was handed out. `None`: nothing was done.
    #[inline(always)]
    pub fn take_again(
        &mut self,
        flow: &Flow,
        varying: &Varying,
        body: &impl Body,
        queue: QueueId,
        consumer: Option<&Consumer>,
    ) -> Option<TakenMessage> {
        // Of a flow that is valid there is the slot, and with it the slot's queue, which had credit
        // for it, and has again when it is empty.
        if (self.epoch != flow.epoch && !self.is_let_by(flow, varying))
            || flow.queue != queue.to_bits()
            || !self.is_empty(queue.index(), consumer)
        {
            return None;
        }
        let at = flow.place(varying)?;
        let body = self.deposit(flow, at, varying.length, body, true)?;
        Some(TakenMessage { word: varying.word, length: varying.length, body })
    }

    /// As [`take_again`](Self::take_again), for any request of the packet. False: nothing was done,
    /// and [`handle_packet`](Self::handle_packet) decides.
    #[inline(always)]
    pub fn handle_again(
        &mut self,
        flow: &Flow,
        link: LinkId,
        varying: &Varying,
        body: &impl Body,
    ) -> bool {
        if (self.epoch != flow.epoch && !self.is_let_by(flow, varying)) || !self.has_credit(flow) {
            return false;
        }
        let Some(at) = flow.place(varying) else { return false };
        let done = self.deposit(flow, at, varying.length, body, flow.notifies()).is_some();
        if done && flow.notifies() {
            let notification = flow.notification(link, varying.word);
            self.announce(flow.queue_index(), flow.share, &notification);
        }
        done
    }

    /// Whether a packet would be plain in a slot without a receiver, and this one's is not asked about
    /// it.
    #[inline(never)]
    fn is_let_by(&self, flow: &Flow, varying: &Varying) -> bool {
        let Some(Some(slot)) = self.slots.get(flow.slot[0] as usize) else { return false };
        let Varying { offset, length, .. } = *varying;
        flow.epoch == self.epoch | FILTERED
            && matches!(&slot.receiver, Some(installed)
                if !installed.is_asked(MetadataIndex(flow.index), offset, length))
    }

    #[inline(always)]
    fn has_credit(&self, flow: &Flow) -> bool {
        !flow.notifies()
            || matches!(self.queues.get(flow.queue_index() as usize),
                Some(Some(queue)) if queue.producer.has_credit(flow.share))
    }

    /// Appends to a queue. The share has credit.
    #[inline(always)]
    pub(super) fn announce(&mut self, queue: u32, share: u32, notification: &Notification) {
        let index = queue as usize;
        let Some(Some(queue)) = self.queues.get_mut(index) else { return };
        queue.producer.push(share, notification);
        self.waiting[index] += queue.consumer.is_some() as u64;
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
        self.handle_and_keep(link, header, reserved, body, &mut Flow::NONE.clone())
    }

    /// The same; `keep` becomes the packet's flow, if it was plain and deposited; otherwise one
    /// that is never valid.
    #[inline(always)]
    pub fn handle_and_keep<B: Body>(
        &mut self,
        link: LinkId,
        header: &Header,
        reserved: u32,
        body: &B,
        keep: &mut Flow,
    ) -> Result<Arrival, NotDeposited> {
        keep.epoch = 0;
        if let Some(discard) = self.discard {
            self.counters.packets_discarded.add(1);
            return Err(NotDeposited::Discarded(discard));
        }
        self.accept(link, header, reserved, body, keep).map_err(|refusal| {
            self.counters.refusal(refusal).add(1);
            NotDeposited::Refused(refusal)
        })
    }

    /// The checks that depend on neither offset nor length, and their results.
    #[inline(always)]
    fn look_up(&self, header: &Header, reserved: u32) -> Result<(Flow, u64), Refusal> {
        if header.destination != self.id.destination() {
            return Err(Refusal::WrongDestination);
        }
        if reserved != 0 || header.metadata_len as usize > METADATA_MAX {
            return Err(Refusal::BadFormat);
        }
        let Some(Some(slot)) = self.slots.get(header.slot.0 as usize) else {
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
        let entry = slot.entries.get(header.metadata_index.0 as usize);
        if entry.is_none() && !is_fast {
            return Err(Refusal::NoSuchEntry);
        }
        // The key is checked before the bounds, so a stranger learns nothing of the slot's size.
        let (key, low, high, is_open) = match (slot.mode, entry) {
            (Mode::Normal, _) | (_, None) => (slot.key, 0, slot.size, true),
            (Mode::Paranoid | Mode::ParanoidOneShot, Some(entry)) => {
                let is_open = entry.state == EntryState::Open && slot.mode == Mode::Paranoid;
                (entry.key, entry.low, entry.high.min(slot.size), is_open)
            }
        };
        if key != header.key {
            return Err(wrong_key(&self.keys, header));
        }
        // Hamlyn 2.5: a zero delta announces a single-packet message; the accumulator is not
        // consulted. A fast packet is always a whole message.
        let keeps = header.metadata_len == 0 && entry.is_none_or(|entry| entry.user_len == 0);
        let is_single = is_fast || header.delta == 0;
        let epoch = match &slot.receiver {
            _ if !(is_single && keeps && is_open) => 0,
            None => self.epoch,
            Some(installed) if installed.is_filtered() => self.epoch | FILTERED,
            Some(_) => 0,
        };
        // Where the low limit is above the high one, nothing fits.
        let low = if low <= high { low } else { u64::MAX };
        let flow = Flow {
            epoch,
            queue: match header.flags.contains(Flags::NOTIFY) {
                true => slot.queue.to_bits(),
                false => SILENT,
            },
            low,
            span: high.saturating_sub(low),
            at: slot.base.wrapping_add(low) as usize,
            area: slot.area,
            share: slot.share,
            slot: [header.slot.0, slot.generation],
            index: header.metadata_index.0,
            fast: if is_fast { u32::MAX } else { 0 },
        };
        Ok((flow, slot.size))
    }

    #[inline(always)]
    fn accept<B: Body>(
        &mut self,
        link: LinkId,
        header: &Header,
        reserved: u32,
        body: &B,
        keep: &mut Flow,
    ) -> Result<Arrival, Refusal> {
        let (flow, size) = self.look_up(header, reserved)?;
        let (varying, length) = (header.varying(), header.length as u64);
        if header.offset > size || length > size - header.offset {
            return Err(Refusal::OutOfBounds);
        }
        let at = flow.place(&varying).ok_or(Refusal::OutsideLimits)?;
        if flow.epoch != self.epoch && !self.is_let_by(&flow, &varying) {
            let accepted = self.accept_counted(link, header, at, body)?;
            *keep = flow;
            return Ok(accepted);
        }
        if !self.has_credit(&flow) {
            return Err(Refusal::NoCredit);
        }
        let notifies = flow.notifies();
        self.deposit(&flow, at, header.length, body, notifies).ok_or(Refusal::OutOfBounds)?;
        if notifies {
            let notification = flow.notification(link, header.word);
            self.announce(flow.queue_index(), flow.share, &notification);
        }
        *keep = flow;
        Ok(if notifies { Arrival::Notified } else { Arrival::Complete })
    }

    /// A packet that is not plain, and passed the checks so far: its entry counts it, or keeps its
    /// metadata, or its slot has a receiver. `at`: the position of its first byte in the area.
    #[inline(never)]
    fn accept_counted<B: Body>(
        &mut self,
        link: LinkId,
        header: &Header,
        at: usize,
        body: &B,
    ) -> Result<Arrival, Refusal> {
        let Some(Some(slot)) = self.slots.get_mut(header.slot.0 as usize) else {
            return Err(Refusal::NoSuchSlot);
        };
        let mut entry = slot.entries.get_mut(header.metadata_index.0 as usize);
        let mut before = entry.as_ref().map_or(0, |entry| entry.accumulator);
        if let (Mode::Paranoid | Mode::ParanoidOneShot, Some(entry)) = (slot.mode, &mut entry)
            && entry.state != EntryState::Open
        {
            before = entry.let_through(link, header.delta)?;
        }
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
        let (index, offset) = (header.metadata_index, header.offset);
        if let Some(installed) = &slot.receiver
            && installed.is_asked(index, offset, header.length)
        {
            return self.accept_installed(link, header, body, &checked);
        }
        // The deposit:
        let Some(to) =
            area.memory.as_mut().get_mut(at..).and_then(|to| to.get_mut(..header.length as usize))
        else {
            return Err(Refusal::OutOfBounds);
        };
        body.copy_data(to);
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
        self.counters.packets_received.add(1);
        self.counters.bytes_received.add(header.length as u64);
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

/// In the epoch of a flow: it is plain where the slot's receiver is not asked.
const FILTERED: u64 = 1 << 63;

/// No queue: the packets of a flow announce nothing.
const SILENT: u64 = u64::MAX;

/// The first bytes of a body, up to 15.
#[inline(never)]
fn deposit_short(body: [u64; 2], to: &mut [u8]) {
    // In pieces of known length.
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
fn wrong_key(keys: &InterfaceKeys, header: &Header) -> Refusal {
    match keys.has_made(header.slot, header.metadata_index, header.key) {
        true => Refusal::StaleKey,
        false => Refusal::WrongKey,
    }
}
