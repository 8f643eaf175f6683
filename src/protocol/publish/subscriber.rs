//! The subscriber: samples in.
//!
//! The publisher's writes into the places are copied out under the manager's lock, before any other
//! turn, and checked afterwards; so a later write can become the next message at most. A one-line
//! message is read from the bytes that came with it, before they are written anywhere.

use super::gathered::GatheredSample;
use super::publisher::Lender;
use super::sample::{Leased, Leases, Sample, SampleBody};
use super::{
    ANNOUNCED_BYTES, AnnouncedSample, DEPTH_MAX, Greeting, LEASES_MAX, LongSamples, NUMBER_BYTES,
    NUMBERED, PART, PLACE_BYTES, PLACE_STRIDE, POOL, PublisherAnswer, WhenSlow,
};
use crate::interface::notification::{Consumer, QueueView};
use crate::interface::{AreaId, LinkId, Notification, QueueId, SlotConfig, SlotId};
use crate::node::{Aperture, BoundedResource, CloseReason, Look, Node, PlacesHeld, SamplesHeld};
use crate::os::pool::Layout;
use crate::protocol::credit::CreditReturn;
use crate::protocol::ends::{connected, grown};
use crate::protocol::manager::{Protocols, Target, set_up};
use crate::protocol::{Connection, EndPoint, GrowError, Kind, Manager, ReceiveError};
use crate::wire::{INLINE_BYTES as LINE_BYTES, Ticket};
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use std::format;
use std::string::String;
use std::sync::Arc;
use std::vec;
use std::vec::Vec;

/// Configuration of a [`Subscriber`], and its requests to its publisher.
#[derive(Clone, Debug)]
pub struct SubscribeConfig {
    /// Samples that lie in the subscriber's memory until they are received, from 1 to 32,768, of
    /// some 2 KiB each; a long one from another host takes one for each 2 KiB. 64 unless set.
    pub depth: u32,
    /// The policy of the publisher when this subscriber is slow: its own, or one that is cheaper
    /// for it ([`WhenSlow`] is in that order); the publisher refuses a costlier one. `None`, the
    /// default: the publisher's own.
    pub when_slow: Option<WhenSlow>,
    /// The number of already published samples to get first, at most the publisher's
    /// [`history`](super::PublishConfig::history). The whole history unless set.
    pub history: u32,
    /// Samples of the pool that it holds at once, from 1 to the publisher's
    /// [`outstanding_max`](super::PublishConfig::outstanding_max). The publisher's maximum unless
    /// set.
    pub outstanding: u32,
    /// Most bytes of a sample from another host; each takes memory of this process. Connecting to a
    /// publisher of another host fails if its samples may be longer
    /// ([`sample_bytes_max`](super::PublishConfig::sample_bytes_max)). 16 MiB unless set.
    pub sample_bytes_max: usize,
}

impl Default for SubscribeConfig {
    fn default() -> Self {
        Self {
            depth: 64,
            when_slow: None,
            history: u32::MAX,
            outstanding: u32::MAX,
            sample_bytes_max: 16 << 20,
        }
    }
}

/// Receives the samples of one publisher. `Send`. [`Publisher`](crate::protocol::Publisher) shows
/// both ends.
pub struct Subscriber {
    manager: Manager,
    connection: Arc<Connection>,
    memory: SubscriberMemory,
    consumer: Consumer,
    reading: Reading,
    credit: CreditReturn,
}

/// The places, and the notifications for them.
#[derive(Clone, Copy)]
struct SubscriberMemory {
    area: AreaId,
    queue: QueueId,
    slot: SlotId,
}

impl SubscriberMemory {
    fn new(node: &mut Node, depth: u32) -> Result<(Self, Consumer, QueueView, Ticket), GrowError> {
        let bytes = usize::try_from(depth as u64 * PLACE_STRIDE).map_err(set_up)?;
        let area = node.message_area(bytes).map_err(set_up)?;
        let queue = node.notification_queue(depth).map_err(|e| {
            let _ = node.remove_area(area);
            set_up(e)
        })?;
        let taken =
            node.watch_queue(queue).and_then(|waiting| Ok((waiting, node.take_consumer(queue)?)));
        let made = taken.map_err(set_up).and_then(|(waiting, consumer)| {
            let slot = node.slot(SlotConfig::new(area, queue).credit(depth)).map_err(set_up)?;
            let memory = Self { area, queue, slot };
            match node.fast_ticket(slot) {
                Ok(ticket) => Ok((memory, consumer, waiting, ticket)),
                Err(e) => {
                    let _ = node.remove_slot(slot);
                    Err(set_up(e))
                }
            }
        });
        if made.is_err() {
            let _ = node.remove_queue(queue);
            let _ = node.remove_area(area);
        }
        made
    }

    fn remove(&self, node: &mut Node) {
        let _ = node.remove_slot(self.slot);
        let _ = node.remove_queue(self.queue);
        let _ = node.remove_area(self.area);
    }
}

/// The state needed to read the next message.
struct Reading {
    depth: u64,
    short_bytes_max: usize,
    /// How many lengths a [`LineSample`] may have now, from 0 on; 0 after samples could not be read, or
    /// when numbers run out.
    line_lengths: u32,
    leases: Arc<Leases>,
    leases_max: u32,
    long: LongSamples,
    aperture: Option<Aperture>,
    /// A long sample of which some parts have arrived.
    gathered: Option<GatheredSample>,
    /// The pool of a relay, in which long samples are put together.
    lender: Option<Lender>,
    /// The publisher's random number.
    publisher: u64,
    /// The place of the message that `before` messages preceded; later places are counted from it.
    place: u64,
    before: u64,
    /// The number of the next sample, if no sample is left out.
    next: u64,
    /// The number of the next message without a number of its own, unless that is `next`: some
    /// samples that arrived could no longer be read.
    follows: Option<u64>,
    missed: u64,
    /// Some of the last samples were missed.
    is_cut_off: bool,
    /// A sample that came straight from the link and is not a [`LineSample`], until the call returns.
    taken: Option<Result<Sample, ReceiveError>>,
    /// A line that came straight from the link during a wait.
    waited: Option<LineSample>,
}

/// A short sample that is a line, and follows the one before. Its fields are numbers, which stay in
/// registers, and in this order, because adjacent words that are stored one by one would be read as
/// one.
#[repr(C)]
struct LineSample {
    first: u64,
    number: u64,
    second: u64,
    length: u8,
}

impl LineSample {
    #[inline]
    fn into_sample(self) -> Sample {
        let Self { first, number, second, length } = self;
        // In memory as on the wire.
        let words = [first.to_le(), second.to_le()];
        Sample::new(number, 0, SampleBody::Line { words, length: length as usize })
    }
}

impl Subscriber {
    grown!(
        "a subscriber", "a publisher",
        config: SubscribeConfig, "A publisher that has a pool shares it once this has returned."
    );

    fn to(
        manager: &Manager,
        target: Target<'_>,
        config: SubscribeConfig,
        timeout: Option<Duration>,
    ) -> Result<Self, GrowError> {
        let SubscribeConfig { depth, when_slow, history, outstanding, sample_bytes_max } = config;
        if !(1..=DEPTH_MAX).contains(&depth) {
            let text = format!("depth is {depth}, and may be from 1 to {DEPTH_MAX}");
            return Err(GrowError::SetUp(text));
        }
        if outstanding == 0 {
            return Err(GrowError::SetUp("outstanding is 0, and is at least 1".into()));
        }
        let outstanding = outstanding.min(LEASES_MAX);
        let (memory, consumer, waiting, places) =
            SubscriberMemory::new(&mut manager.lock(), depth)?;
        let body = Greeting { places, depth, when_slow, history, outstanding }.to_bytes();
        let expected = "it is not that of a publisher";
        let grown =
            manager.grow(target, Kind::PUBLISH, &body, timeout, expected, |connection, answer| {
                PublisherAnswer::from_bytes(answer, connection.peer(), outstanding)
            });
        match grown {
            Ok((connection, PublisherAnswer { long: LongSamples::Parts(bytes), .. }))
                if bytes > sample_bytes_max as u64 =>
            {
                manager.leave(&connection, |node| memory.remove(node));
                Err(GrowError::SetUp(format!(
                    "samples there may have {bytes} bytes, and this side takes {sample_bytes_max} of one \
                     from another host (SubscribeConfig::sample_bytes_max)"
                )))
            }
            Ok((connection, answer)) => {
                let PublisherAnswer {
                    cell,
                    short_bytes_max,
                    leases: leases_max,
                    long,
                    first,
                    publisher,
                } = answer;
                let link = connection.link();
                let (leases, dropped) = (AtomicU64::new(0), AtomicU64::new(0));
                let held = Arc::new(SamplesHeld { leases, dropped, max: leases_max });
                let places = Arc::new(PlacesHeld { waiting, depth });
                let mut kept: Vec<(_, Arc<dyn BoundedResource>)> = vec![("places", places)];
                if matches!(long, LongSamples::Pool(_)) {
                    kept.push(("samples", held.clone()));
                }
                manager.lock().show_kept(link, kept);
                let leases = Leases::new(manager.clone(), link, cell, held.clone());
                let leases = Arc::new(leases);
                let mut reading = Reading {
                    depth: depth as u64,
                    short_bytes_max: short_bytes_max as usize,
                    line_lengths: 0,
                    leases,
                    leases_max,
                    long,
                    aperture: None,
                    gathered: None,
                    lender: None,
                    publisher,
                    place: 0,
                    before: 0,
                    next: first,
                    follows: None,
                    missed: 0,
                    is_cut_off: false,
                    taken: None,
                    waited: None,
                };
                reading.find_line_lengths();
                let credit = CreditReturn::new(cell, link, depth as u64 / 4);
                let manager = manager.clone();
                Ok(Self { manager, connection, memory, consumer, reading, credit })
            }
            Err(e) => {
                memory.remove(&mut manager.lock());
                Err(e)
            }
        }
    }

    /// The next sample, if one is there or comes in one turn.
    pub fn try_receive(&mut self) -> Result<Option<Sample>, ReceiveError> {
        ReceiveError::unless_timed_out(self.receive(Some(Duration::ZERO)))
    }

    /// The next sample, in the order of publication; waits at most `timeout`. The next sample
    /// [counts](Sample::missed) the samples that were left out before it.
    ///
    /// [`ReceiveError::Ended`]: the publisher has gone, or has ended this subscriber's link, and
    /// every sample that had arrived has been received. Samples of the pool that were not looked at
    /// before then are gone with the publisher's memory: [`missed`](Self::missed) counts them, and
    /// if one of them was the last, the reason is `HungUp` instead of `Closed`.
    /// [`ReceiveError::Misbehaved`]: the publisher broke the rules, and its link was ended.
    #[inline]
    pub fn receive(&mut self, timeout: Option<Duration>) -> Result<Sample, ReceiveError> {
        let Self { manager, connection, memory, consumer, reading, credit } = self;
        let line = manager.shared.at_once(|node, protocols| {
            take_line(node, protocols, connection, memory, consumer, reading, credit)
        });
        let line = line.or_else(|| {
            self.receive_slowly(timeout);
            self.reading.waited.take()
        });
        // A sample is made here alone, out of registers: one that another function writes has to be
        // in memory, and is moved from there.
        match line {
            Some(line) => Ok(line.into_sample()),
            None => self.reading.taken.take().unwrap_or(Err(ReceiveError::TimedOut)),
        }
    }

    /// Leaves the result in `reading`: in `waited` or in `taken`.
    #[inline(never)]
    fn receive_slowly(&mut self, timeout: Option<Duration>) {
        if self.reading.taken.is_some() {
            return;
        }
        let Self { manager, connection, memory, consumer, reading, credit } = self;
        // The result stays in `reading`: moving a sample from look to look takes longer than all
        // the rest.
        let waited = manager.shared.wait_until(timeout, |node, protocols| {
            let is_told =
                reading.leases.tell_untold(node) & (!credit.is_due() || credit.tell(node));
            let (notification, body) = match consumer.pop() {
                Some(notification) => (notification, None),
                None => match node.take_direct(memory.queue, Some(consumer)) {
                    Some(handed) => (handed.notification, handed.words()),
                    None => {
                        return match connection.ended() {
                            Some(reason) => {
                                reading.taken = Some(Err(reading.end(reason)));
                                Look::Found(())
                            }
                            None if is_told => Look::Nothing,
                            // The publisher may wait for that, and then it sends nothing.
                            None => Look::Room(connection.link()),
                        };
                    }
                },
            };
            reading.waited = body.and_then(|body| reading.line(&notification, body, credit.link));
            if reading.waited.is_some() {
                credit.consumed += 1;
                if credit.is_due() {
                    credit.tell(node);
                }
                return Look::Found(());
            }
            let Notification { link, word, .. } = notification;
            reading.taken = read(node, protocols, connection, memory, reading, credit, link, word);
            if reading.taken.is_some() { Look::Found(()) } else { Look::Again }
        });
        if let Err(waited) = waited {
            reading.taken = Some(Err(waited.into()));
        }
    }

    /// The number of the next sample, if no sample is left out.
    pub(super) fn next(&self) -> u64 {
        self.reading.next
    }

    /// Distinguishes the publisher from another under the same name.
    pub(super) fn publisher_id(&self) -> u64 {
        self.reading.publisher
    }

    /// Most bytes of a short sample, and of a long one.
    pub(super) fn bytes_max(&self) -> (usize, usize) {
        let long = match self.reading.long {
            LongSamples::None => 0,
            LongSamples::Pool(pool) => pool.place_bytes,
            LongSamples::Parts(bytes) => bytes,
        };
        (self.reading.short_bytes_max, usize::try_from(long).unwrap_or(usize::MAX))
    }

    /// Long samples from another host are put together in loans of this pool from now on, if it has
    /// any.
    pub(super) fn gather_into(&mut self, lender: Lender) {
        self.reading.lender = Some(lender);
    }

    /// Samples that were left out so far, before those that were received.
    pub fn missed(&self) -> u64 {
        self.reading.missed
    }

    connected!("samples", |this| match this.reading.long {
        LongSamples::None => String::from("publish and subscribe: one fast packet each"),
        LongSamples::Parts(bytes) => format!(
            "publish and subscribe: one fast packet each, long samples, of up to {bytes} bytes, several"
        ),
        LongSamples::Pool(pool) => format!(
            "publish and subscribe: one fast packet each, long samples in a pool of {} places of {} bytes",
            pool.places, pool.place_bytes
        ),
    });
}

/// The next sample, if it is a [`LineSample`], comes straight from the link and follows the one before;
/// `None`: no such sample is there, and `reading.taken` holds one of another kind if it was taken.
#[inline]
fn take_line(
    node: &mut Node,
    protocols: &mut Protocols,
    connection: &Connection,
    memory: &SubscriberMemory,
    consumer: &Consumer,
    reading: &mut Reading,
    credit: &mut CreditReturn,
) -> Option<LineSample> {
    let handed = node.take_direct(memory.queue, Some(consumer))?;
    let notification = handed.notification;
    let line = handed.words().and_then(|body| reading.line(&notification, body, credit.link));
    if line.is_none() {
        let Notification { link, word, .. } = notification;
        reading.taken = read(node, protocols, connection, memory, reading, credit, link, word);
        return None;
    }
    credit.consumed += 1;
    if credit.is_due() {
        credit.tell(node);
    }
    line
}

/// Reads the message that a notification is for, which gives its sender and a word; `None`: it is
/// not the publisher's, or a part of a sample, or of a pool that has gone with its publisher.
#[allow(clippy::too_many_arguments)]
#[inline(never)]
fn read(
    node: &mut Node,
    protocols: &mut Protocols,
    connection: &Connection,
    memory: &SubscriberMemory,
    reading: &mut Reading,
    credit: &mut CreditReturn,
    from: LinkId,
    word: u32,
) -> Option<Result<Sample, ReceiveError>> {
    let link = connection.link();
    if from != link {
        let why = "it sent with a ticket of a publisher's";
        protocols.expel(node, from, why);
        return None;
    }
    let at = reading.place(credit.consumed);
    let result = reading.read(node, protocols, connection, memory.area, at, word);
    reading.find_line_lengths();
    credit.consumed += 1;
    if credit.is_due() {
        credit.tell(node);
    }
    result.transpose().map(|result| {
        result.map_err(|why| {
            protocols.expel(node, link, &why);
            ReceiveError::Misbehaved(why)
        })
    })
}

impl Reading {
    /// A message that came straight from the link, and its first bytes; `None`: it is not a
    /// [`LineSample`], and [`read`](Self::read) decides.
    #[inline]
    fn line(
        &mut self,
        notification: &Notification,
        body: [u64; 2],
        link: LinkId,
    ) -> Option<LineSample> {
        let length = notification.word;
        // With one of its bits set it is longer than any sample.
        if length >= self.line_lengths || notification.link != link {
            return None;
        }
        let number = self.next;
        self.next = number.wrapping_add(1);
        // The bytes behind it are the sender's own padding, and are ignored.
        let [first, second] = body;
        Some(LineSample { first, number, second, length: length as u8 })
    }

    /// Sets the lengths that [`line`](Self::line) may accept, after anything else was read.
    fn find_line_lengths(&mut self) {
        // Numbers end only after more samples than a publisher can send.
        let between = self.follows.is_none() && self.gathered.is_none();
        let follow = between && self.next <= u64::MAX / 2;
        let most = self.short_bytes_max.min(LINE_BYTES) as u32;
        self.line_lengths = if follow { most + 1 } else { 0 };
    }

    /// The place of the message before which `taken` were taken.
    fn place(&mut self, taken: u64) -> usize {
        let place = self.place + (taken - self.before);
        self.place = if place < self.depth { place } else { place % self.depth };
        self.before = taken;
        // All places together fit in memory.
        (self.place * PLACE_STRIDE) as usize
    }

    /// The sample in the next place, or the fault in it. `None`: it has gone with its publisher, or
    /// is incomplete.
    #[inline]
    fn read(
        &mut self,
        node: &mut Node,
        protocols: &mut Protocols,
        connection: &Connection,
        area: AreaId,
        at: usize,
        word: u32,
    ) -> Result<Option<Sample>, String> {
        let length = (word & !(POOL | NUMBERED | PART)) as usize;
        let place = node.area(area).ok().and_then(|area| area.get(at..at + PLACE_BYTES));
        let bytes = place.and_then(|place| place.get(..length));
        let too_long = || format!("a message of {length} bytes in a place of {PLACE_BYTES}");
        let mut bytes = bytes.ok_or_else(too_long)?;
        if let Some(gathered) = self.gathered.take() {
            return self.gather(gathered, bytes, word);
        }
        let follows = self.follows.unwrap_or(self.next);
        let mut number = follows;
        if word & NUMBERED != 0 {
            let cut_off = || format!("a numbered message of {length} bytes");
            let (told, rest) = bytes.split_first_chunk().ok_or_else(cut_off)?;
            (number, bytes) = (u64::from_le_bytes(*told), rest);
        }
        if number < follows {
            return Err(format!("sample {number} where {follows} is the next"));
        }
        let missed = number - self.next;
        let next = number.checked_add(1).ok_or("a sample that is the last of all numbers")?;
        let body = match word & (POOL | PART) {
            0 => self.read_short(bytes)?,
            PART => {
                let lender = self.lender.as_ref();
                let (gathered, bytes) = GatheredSample::begin(self.long, lender, number, bytes)?;
                return self.gather(gathered, bytes, bytes.len() as u32 | PART);
            }
            _ => {
                let announced = AnnouncedSample::from_bytes(bytes);
                let wrong = || format!("an announcement of {} bytes", bytes.len());
                let announced = announced.ok_or_else(wrong)?;
                match self.find(node, protocols, connection, announced, number)? {
                    Some(body) => body,
                    None => {
                        // Missed, as the next sample will say.
                        self.follows = Some(next);
                        return Ok(None);
                    }
                }
            }
        };
        (self.next, self.follows) = (next, None);
        self.missed = self.missed.saturating_add(missed);
        Ok(Some(Sample::new(number, missed, body)))
    }

    /// The sample, if these bytes are its last.
    fn gather(
        &mut self,
        mut gathered: GatheredSample,
        part: &[u8],
        word: u32,
    ) -> Result<Option<Sample>, String> {
        if !gathered.add(part, word)? {
            self.gathered = Some(gathered);
            return Ok(None);
        }
        let number = gathered.number;
        let missed = number - self.next;
        (self.next, self.follows) = (number + 1, None);
        self.missed = self.missed.saturating_add(missed);
        Ok(Some(Sample::new(number, missed, gathered.into_body())))
    }

    /// There is nothing more. Samples at the end that went with the publisher are missed, so not
    /// all has been received.
    #[cold]
    fn end(&mut self, reason: &CloseReason) -> ReceiveError {
        let begun = self.gathered.take().map(|gathered| gathered.number + 1);
        if let Some(follows) = begun.or(self.follows.take()) {
            self.missed = self.missed.saturating_add(follows - self.next);
            self.next = follows;
            self.is_cut_off = true;
        }
        ReceiveError::Ended(match reason {
            CloseReason::Closed if self.is_cut_off => CloseReason::HungUp,
            reason => reason.clone(),
        })
    }

    #[inline]
    fn read_short(&self, bytes: &[u8]) -> Result<SampleBody, String> {
        if bytes.len() > self.short_bytes_max {
            let (length, max) = (bytes.len(), self.short_bytes_max);
            return Err(format!("a short sample of {length} bytes, and {max} are the most"));
        }
        Ok(SampleBody::short(bytes))
    }

    /// A sample of the pool; `None`: it has gone with its publisher.
    fn find(
        &mut self,
        node: &mut Node,
        protocols: &mut Protocols,
        connection: &Connection,
        said: AnnouncedSample,
        number: u64,
    ) -> Result<Option<SampleBody>, String> {
        let AnnouncedSample { place, lease, length } = said;
        let LongSamples::Pool(pool) = self.long else {
            return Err("a sample of a pool, and there is none".into());
        };
        if place >= pool.places || length > pool.place_bytes {
            return Err(format!(
                "a sample of {length} bytes in place {place} of a pool of {} places of {} bytes",
                pool.places, pool.place_bytes
            ));
        }
        if lease >= self.leases_max {
            return Err(format!("a sample by lease {lease}, and there are {}", self.leases_max));
        }
        if self.leases.held.leases.load(Ordering::Acquire) & 1 << lease != 0 {
            return Err(format!("a sample by lease {lease}, which another sample has"));
        }
        let aperture = self.aperture(node, pool)?;
        if aperture.as_ref().is_none_or(Aperture::is_revoked) {
            protocols.take_events(node);
            if connection.ended().is_some() {
                return Ok(None);
            }
        }
        let aperture = aperture.ok_or("a sample of a pool that it does not share")?;
        self.leases.held.leases.fetch_or(1 << lease, Ordering::Relaxed);
        let (leases, offset) = (self.leases.clone(), pool.offset(place));
        // It was compared with the size of memory.
        let length = length as usize;
        let leased = Leased { leases, aperture, lease, number, offset, length };
        Ok(Some(SampleBody::pool(leased)))
    }

    /// The pool's memory. With an honest publisher it is here before the first announcement, and
    /// until its link ends.
    fn aperture(&mut self, node: &mut Node, pool: Layout) -> Result<Option<Aperture>, String> {
        if let Some(aperture) = &self.aperture {
            return Ok(Some(aperture.clone()));
        }
        let link = self.leases.link;
        let held = node.apertures_held().find(|id| id.link == link);
        let Some(aperture) = held.and_then(|id| node.aperture(id).ok()) else { return Ok(None) };
        let bytes = aperture.bytes();
        if pool.bytes().is_none_or(|needed| bytes < needed) {
            return Err(format!(
                "a pool of {} places of {} bytes in {bytes} bytes of memory",
                pool.places, pool.place_bytes
            ));
        }
        self.aperture = Some(aperture.clone());
        Ok(Some(aperture))
    }
}

const _: () = assert!(ANNOUNCED_BYTES + NUMBER_BYTES <= PLACE_BYTES);

impl EndPoint for Subscriber {
    fn is_ready_in(&self, _: &Node) -> bool {
        self.consumer.is_ready() || self.connection.ended().is_some()
    }

    fn manager(&self) -> &Manager {
        &self.manager
    }
}

impl Drop for Subscriber {
    fn drop(&mut self) {
        let memory = self.memory;
        self.manager.leave(&self.connection, |node| memory.remove(node));
    }
}
