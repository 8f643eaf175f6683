//! The receiver of a stream, and a record during a look at it.

use super::held::Lies;
use super::intake::{Intake, NextChecks};

use super::{FarOffer, PROTOCOL, Record, StreamConfig, StreamOffer};
use crate::node::Node;
use crate::protocol::ends::{explain, offered};
use crate::protocol::manager::{Guarded, OfferId, Offering};
use crate::protocol::records::Small;
use crate::protocol::{Connection, EndPoint, GrowError, Kind, Manager, ReceiveError};
use core::ops::Deref;
use core::time::Duration;
use std::format;
use std::string::String;

/// Receives a stream of records from the one sender that is grown. `Send`.
///
/// ```
/// # let dir = std::env::temp_dir().join(format!("hamlyn-doc-stream-{}", std::process::id()));
/// # let config = hamlyn::Config::from_env()?.dir(&dir);
/// use hamlyn::Access;
/// use hamlyn::protocol::{Manager, ReceiveError, StreamConfig, StreamReceiver, StreamSender};
/// use std::time::Duration;
///
/// let limit = Some(Duration::from_secs(10));
/// let manager = Manager::with_config(config.clone())?;
/// let mut receiver = StreamReceiver::new(&manager, StreamConfig::default())?;
/// receiver.serve("readings", Access::SameUser)?;
/// manager.start_progress()?;
///
/// // Usually another process. Short records leave together; `flush` sends waiting ones.
/// let mut sender = StreamSender::connect(&Manager::with_config(config)?, "readings", limit)?;
/// sender.send(b"17.5", limit)?;
/// sender.send(b"18.0", limit)?;
/// sender.close(limit)?;
///
/// for reading in [b"17.5", b"18.0"] {
///     let record = receiver.receive(limit)?;
///     assert_eq!(record[..], reading[..]); // In the memory in which they arrived.
///     drop(record); // The sender may use their place again.
/// }
/// assert!(matches!(receiver.receive(limit), Err(ReceiveError::Ended(_))));
/// # std::fs::remove_dir_all(&dir).ok();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct StreamReceiver {
    pub(in crate::protocol) manager: Manager,
    pub(in crate::protocol) offer: OfferId,
    intake: Intake,
}

impl StreamReceiver {
    /// A receiver with its first buffers.
    pub fn new(manager: &Manager, config: StreamConfig) -> Result<Self, GrowError> {
        Self::with_far(manager, config, None)
    }

    pub(in crate::protocol) fn with_far(
        manager: &Manager,
        config: StreamConfig,
        far: Option<FarOffer>,
    ) -> Result<Self, GrowError> {
        config.check()?;
        // Coalesced records are padded to four bytes, and so is their buffer.
        let config = StreamConfig { buffer_bytes: config.buffer_bytes & !3, ..config };
        let intake = Intake::new(&mut manager.lock(), config, far).map_err(GrowError::SetUp)?;
        let offer = manager
            .offer(Kind::STREAM, Offering::Other(Guarded::new(StreamOffer(intake.shared.clone()))));
        Ok(Self { manager: manager.clone(), offer, intake })
    }

    offered!("the [`StreamSender`](crate::protocol::StreamSender)");

    /// The next record, if it is there or comes in one turn.
    #[inline]
    pub fn try_receive(&mut self) -> Result<Option<RecordGuard<'_>>, ReceiveError> {
        ReceiveError::unless_timed_out(self.receive(Some(Duration::ZERO)))
    }

    /// The next record, in the order of sending; waits at most `timeout`. It is a slice of stable
    /// bytes; dropping it releases the record. After the sender's end, all records that it had
    /// committed come first; then [`ReceiveError::Ended`], with
    /// [`CloseReason::Closed`](crate::node::CloseReason::Closed) only if the sender had sent
    /// everything.
    ///
    /// ```no_run
    /// # use hamlyn::protocol::{ReceiveError, StreamReceiver};
    /// # fn f(mut receiver: StreamReceiver) -> Result<(), ReceiveError> {
    /// loop {
    ///     let record = receiver.receive(None)?;
    ///     println!("{} bytes, the first is {:?}", record.len(), record.first());
    /// }
    /// # }
    /// ```
    #[inline]
    pub fn receive(&mut self, timeout: Option<Duration>) -> Result<RecordGuard<'_>, ReceiveError> {
        self.receive_record(timeout)?;
        Ok(RecordGuard::new(self))
    }

    #[inline]
    pub(in crate::protocol) fn receive_record(
        &mut self,
        timeout: Option<Duration>,
    ) -> Result<(), ReceiveError> {
        if self.intake.next_of_run() || self.receive_at_once() {
            return Ok(());
        }
        self.receive_message(timeout)
    }

    /// A guard for a [kept](RecordGuard::keep) record. Dropping the guard [releases](Self::release)
    /// the record and all earlier kept ones. Forgetting it ([`mem::forget`](core::mem::forget))
    /// keeps the record until the next release.
    pub fn guard(&mut self, record: Record) -> Result<RecordGuard<'_>, ReceiveError> {
        self.look_at(record)?;
        Ok(RecordGuard::new(self))
    }

    pub(in crate::protocol) fn look_at(&mut self, record: Record) -> Result<(), ReceiveError> {
        self.bytes(&record)?;
        self.intake.look_at_all();
        self.intake.latest = record;
        Ok(())
    }

    /// The record in use.
    #[inline]
    pub(in crate::protocol) fn latest(&self) -> Record {
        self.intake.latest()
    }

    /// Its bytes.
    #[inline]
    pub(super) fn latest_bytes(&self) -> &[u8] {
        let intake = &self.intake;
        match intake.next {
            NextChecks::InHand(word) => {
                let small = Small::from_word(word);
                let bytes = intake.taken.bytes(Lies::Place(small.place));
                bytes.get(..small.length as usize).unwrap_or(&[])
            }
            // The record is this stream's, and is not released during a look at it.
            _ => self.bytes(&intake.latest).unwrap_or(&[]),
        }
    }

    #[inline(never)]
    fn receive_at_once(&mut self) -> bool {
        let Self { manager, intake, .. } = self;
        match intake.next {
            NextChecks::Direct => {
                manager.shared.at_once(|node, _| intake.take_one(node).then_some(())).is_some()
            }
            _ => intake.next_held(),
        }
    }

    #[inline(never)]
    fn receive_message(&mut self, timeout: Option<Duration>) -> Result<(), ReceiveError> {
        loop {
            if self.intake.next_record().is_some() {
                return Ok(());
            }
            if let Some(error) = self.intake.over() {
                self.expel();
                return Err(error);
            }
            // A receiving caller looks at no record: forgotten ones do not hold it up.
            if self.intake.released >= self.intake.kept {
                self.release_to(self.intake.given);
            }
            let intake = &mut self.intake;
            self.manager.shared.wait_until(timeout, |node, _| intake.look(node))?;
            if self.intake.fault.is_some() {
                self.expel();
            }
        }
    }

    #[cold]
    fn expel(&mut self) {
        let intake = &mut self.intake;
        let link = intake.connection().map(Connection::link);
        if let (Some(why), Some(link), false) = (&intake.fault, link, intake.is_expelled) {
            self.manager.expel(link, why);
            intake.is_expelled = true;
        }
    }

    /// The bytes of a kept record, in the memory in which they arrived. No lock, no copy.
    #[inline]
    pub fn bytes(&self, record: &Record) -> Result<&[u8], ReceiveError> {
        let intake = &self.intake;
        let start = record.start as usize;
        let is_own = record.stream == intake.stream && record.number >= intake.released;
        if let NextChecks::InHand(_) = intake.next
            && is_own
            && record.number + 1 == intake.given
        {
            return Ok(self.latest_bytes());
        }
        let held = intake.held.get(record.message).filter(|_| is_own);
        let bytes = held.map_or(&[][..], |held| intake.taken.bytes(held.lies));
        match bytes.get(start..start + record.length as usize).filter(|_| held.is_some()) {
            Some(bytes) => Ok(bytes),
            None => Err(ReceiveError::Misuse(format!(
                "record {} was released, or is another stream's",
                record.number
            ))),
        }
    }

    /// Releases all records up to and including this kept one; their buffers are used again, and a
    /// sender that waits for one goes on.
    #[inline]
    pub fn release(&mut self, record: &Record) -> Result<(), ReceiveError> {
        if record.stream != self.intake.stream {
            return Err(not_its_own(record));
        }
        self.intake.look_at_all();
        self.release_to(record.number + 1);
        Ok(())
    }

    #[inline]
    fn release_to(&mut self, end: u64) {
        let intake = &mut self.intake;
        // Records that were not kept are no longer in use.
        let end = if end >= intake.kept { intake.given } else { end };
        if end > intake.released {
            intake.released = end;
            if intake.has_released() {
                self.give_back();
            }
        }
    }

    #[inline]
    pub(in crate::protocol) fn keep(&mut self) -> Record {
        if let NextChecks::InHand(_) = self.intake.next {
            self.intake.look_at_all();
        }
        let record = self.intake.latest;
        self.intake.kept = self.intake.kept.max(record.number + 1);
        record
    }

    /// The look at the latest record is over. It is released now, or with earlier kept ones.
    #[inline]
    pub(in crate::protocol) fn let_go(&mut self) {
        let intake = &mut self.intake;
        if let NextChecks::InHand(_) = intake.next {
            if !intake.release_in_hand() {
                self.replenish();
            }
        } else if !intake.release_in_run() {
            self.let_go_slowly();
        }
    }

    #[inline(never)]
    fn let_go_slowly(&mut self) {
        let intake = &self.intake;
        if intake.released >= intake.kept {
            // No record is kept: all that were handed out are released, and this is the last of
            // them.
            self.release_to(intake.given);
        } else if intake.latest.number < intake.kept {
            self.release_to(intake.latest.number + 1);
        }
    }

    #[inline(never)]
    fn give_back(&mut self) {
        self.intake.drop_first();
        while self.intake.has_released() {
            self.intake.drop_first();
        }
        if self.intake.is_due() || self.intake.asked.is_some() {
            return self.replenish();
        }
        self.intake.settle();
    }

    #[cold]
    fn replenish(&mut self) {
        if self.intake.over().is_none() && !self.manager.is_forked() {
            self.intake.replenish(&mut self.manager.shared.lock());
        }
        self.intake.settle();
    }

    /// The sender made an impossible statement about the aperture.
    #[cold]
    pub(in crate::protocol) fn misbehaves(&mut self, why: &str) -> ReceiveError {
        let _ = self.intake.misbehaves(why.into());
        self.expel();
        ReceiveError::Misbehaved(why.into())
    }

    /// Records before this one are released.
    #[inline]
    pub(in crate::protocol) fn released(&self) -> u64 {
        self.intake.released
    }

    pub(in crate::protocol) fn record_bytes_max(&self) -> usize {
        self.intake.config.record_bytes_max
    }

    pub(in crate::protocol) fn far(&self) -> Option<&FarOffer> {
        self.intake.shared.far.as_ref()
    }

    /// The connection to the sender, once there is one.
    pub fn connection(&self) -> Option<&Connection> {
        self.intake.connection()
    }

    /// Buffers of the usual size that exist now.
    ///
    /// ```
    /// # let dir = std::env::temp_dir().join(format!("hamlyn-doc-abandoned-{}", std::process::id()));
    /// use hamlyn::node::CloseReason;
    /// use hamlyn::protocol::{Manager, ReceiveError, StreamConfig, StreamReceiver, StreamSender};
    /// # use std::time::Duration;
    ///
    /// # let limit = Some(Duration::from_secs(10));
    /// # let config = hamlyn::Config::from_env()?.dir(&dir);
    /// # let manager = Manager::with_config(config.clone())?;
    /// let small = StreamConfig { buffer_bytes: 4096, buffers: 4, ..StreamConfig::default() };
    /// let mut receiver = StreamReceiver::new(&manager, small)?;
    /// # manager.start_progress()?;
    /// receiver.set_admission(|peer| peer.is_proved.then_some(()).ok_or("who are you?".into()));
    /// let mut sender = StreamSender::grow(&Manager::with_config(config)?, &receiver.seed()?, limit)?;
    /// receiver.stop_serving(); // One sender is enough; it stays.
    /// assert_eq!(sender.bytes_max(), 64 << 20);
    /// sender.send(b"the beginning", limit)?;
    /// sender.flush(limit)?;
    /// assert!(sender.try_flush()?, "without waiting: whether everything is on its way");
    /// sender.abandon(); // The stream stays without an end.
    /// assert!(sender.connection().peer().is_proved);
    ///
    /// assert_eq!(receiver.receive(limit)?[..], b"the beginning"[..]);
    /// let end = receiver.receive(limit).err();
    /// assert!(matches!(end, Some(ReceiveError::Ended(CloseReason::HungUp))), "{end:?}");
    /// assert!(receiver.connection().is_some_and(|sender| sender.ended().is_some()));
    /// assert!(receiver.buffers() >= 4);
    /// # std::fs::remove_dir_all(&dir).ok();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn buffers(&self) -> u32 {
        self.intake.buffers
    }

    /// The path of the records, and the reason for it; also the reason if no more can come because
    /// this program holds every buffer.
    pub fn explain(&self) -> String {
        let text = match self.connection() {
            Some(connection) => explain(&self.manager, connection, PROTOCOL),
            None => format!("{PROTOCOL}; no sender yet"),
        };
        match self.intake.held_up() {
            Some(why) => format!("{text}; {why}"),
            None => text,
        }
    }

    /// The reason if no more records can come because this program holds every buffer; as of the
    /// last receiving call.
    #[cfg(feature = "unstable-internals")]
    pub fn held_up(&self) -> Option<String> {
        self.intake.held_up()
    }
}

#[cold]
fn not_its_own(record: &Record) -> ReceiveError {
    ReceiveError::Misuse(format!("record {} is another stream's", record.number))
}

impl EndPoint for StreamReceiver {
    fn is_ready_in(&self, node: &Node) -> bool {
        let intake = &self.intake;
        intake.held.is_unread()
            || intake.over().is_some()
            || intake.connection().is_some_and(|connection| {
                node.is_ready(intake.queue) == Ok(true) || connection.ended().is_some()
            })
    }

    fn manager(&self) -> &Manager {
        &self.manager
    }
}

impl Drop for StreamReceiver {
    fn drop(&mut self) {
        let Some(_) = self.manager.withdraw(self.offer) else { return };
        self.intake.remove(&mut self.manager.lock());
    }
}

/// A record that has arrived: a slice of its bytes, in the memory in which they arrived. They do
/// not change. Dropping the guard releases the record: its buffer is used again, and a sender that
/// waits for one goes on. If earlier records were kept, its buffer is free when those are released.
/// A forgotten guard ([`mem::forget`](core::mem::forget)) is released with the next one, or when
/// its receiver waits.
///
/// [Keep](Self::keep) records that you need several at a time, or later.
pub struct RecordGuard<'a> {
    /// The receiver; the record is its latest.
    receiver: &'a mut StreamReceiver,
}

impl<'a> RecordGuard<'a> {
    #[inline]
    fn new(receiver: &'a mut StreamReceiver) -> Self {
        Self { receiver }
    }

    /// The number of records before it.
    pub fn number(&self) -> u64 {
        self.receiver.latest().number
    }

    /// Keeps the record when this is dropped. [`StreamReceiver::release`] releases it, and must be
    /// called some time: until then the record and all later ones stay in memory, and
    /// [`StreamReceiver::bytes`] returns its bytes. The sender waits when no buffers are left.
    ///
    /// ```
    /// # let dir = std::env::temp_dir().join(format!("hamlyn-doc-keep-{}", std::process::id()));
    /// use hamlyn::protocol::{Manager, Record, StreamConfig, StreamReceiver, StreamSender};
    /// # use std::time::Duration;
    ///
    /// # let limit = Some(Duration::from_secs(10));
    /// # let config = hamlyn::Config::from_env()?.dir(&dir);
    /// # let manager = Manager::with_config(config.clone())?;
    /// let mut receiver = StreamReceiver::new(&manager, StreamConfig::default())?;
    /// # manager.start_progress()?;
    /// let mut sender = StreamSender::grow(&Manager::with_config(config)?, &receiver.seed()?, limit)?;
    /// assert!(sender.try_send(b"one")? && sender.try_send(b"two")? && sender.try_send(b"three")?);
    /// sender.flush(limit)?; // Or `try_flush`, until it returns `true`.
    ///
    /// let one: Record = receiver.receive(limit)?.keep();
    /// let two = receiver.receive(limit)?.keep();
    /// assert_eq!((one.number(), one.len(), receiver.bytes(&one)?), (0, 3, &b"one"[..]));
    /// println!("at byte {} of its buffer", one.start());
    /// // The second releases the first, too.
    /// assert_eq!(receiver.guard(two)?[..], b"two"[..]);
    /// let three = receiver.receive(limit)?.keep();
    /// receiver.release(&three)?;
    /// assert!(receiver.try_receive()?.is_none());
    /// # std::fs::remove_dir_all(&dir).ok();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn keep(self) -> Record {
        let record = self.receiver.keep();
        core::mem::forget(self);
        record
    }
}

impl core::fmt::Debug for RecordGuard<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("RecordGuard")
            .field("record", &self.receiver.latest())
            .finish_non_exhaustive()
    }
}

impl Deref for RecordGuard<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // The record is this stream's, and is not released while this guard lives.
        self.receiver.latest_bytes()
    }
}

impl AsRef<[u8]> for RecordGuard<'_> {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Drop for RecordGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        self.receiver.let_go();
    }
}
