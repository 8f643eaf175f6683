//! A stream whose long records go straight into the receiver's memory, without a ring in between.
//!
//! ```text
//!   send: copied into the aperture,        receive: in place
//!   at a place that the sender chose       bytes: a slice of a short one, a volatile view of a
//!         ---- a frame of the stream --->         long one
//!   a count    <------ credit word ------  release: that many long ones are free
//! ```
//! With the sender's first message the receiver exports an aperture to it over the stream's own
//! link, read-write. The sender manages it as a ring, each record in one piece. A frame among the
//! stream's others announces a record, so order, end and flow are the stream's. A long record costs
//! one copy at the sender; the receiver reads it in place.
//!
//! The price shows in the types: the sender can change these bytes at any time, even after it
//! announced them. So a long record is a [`VolatileBytes`], which only copies, and a short one is a
//! slice. If you need long records with stable bytes, use a plain stream.
//!
//! If a limit of either side rules out the aperture, or until it is there, long records go through
//! the link as in a plain stream; [`explain`](ApertureStreamSender::explain) says which.

use super::credit::{CreditReturn, CreditWord};
use super::deadline::Deadline;
use super::ends::{ended, grown, offered};
use super::manager::Target;
use super::records::{ApertureSpace, FarRecord};
use super::stream::{FarOffer, THROUGH_AN_APERTURE};
use super::{
    Connection, EndPoint, GrowError, Manager, ReceiveError, Record, SendError, StreamConfig,
    StreamReceiver, StreamSender,
};
use crate::node::{Aperture, ApertureView, Look, Node};
use crate::os::aperture::{AccessError, PAGE_BYTES, Pages};
use core::time::Duration;
use std::collections::VecDeque;
use std::format;
use std::string::String;
use std::vec;
use std::vec::Vec;

/// Records of at least this many bytes go through the aperture.
const FAR_BYTES_MIN: usize = 64 << 10;
/// The same for an aperture of another host: for shorter records, messages are as fast or faster
/// (measured; `docs/providers.md`).
const FAR_BYTES_MIN_OF_HOST: usize = 256 << 10;

fn far_bytes_min(connection: &Connection) -> usize {
    if connection.peer().host.is_some() { FAR_BYTES_MIN_OF_HOST } else { FAR_BYTES_MIN }
}

/// A record that was [kept](ApertureRecordGuard::keep), in a buffer or in the aperture, until it is
/// [released](ApertureStreamReceiver::release).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a record that was kept is to be released"]
pub struct ApertureRecord {
    record: Record,
    far: Option<FarRecord>,
}

impl ApertureRecord {
    /// The number of records before it.
    pub fn number(&self) -> u64 {
        self.record.number()
    }

    /// Bytes.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.far.map_or(self.record.len(), |far| far.length as usize)
    }

    /// Whether it lies in the aperture, where its sender can still change it.
    pub fn is_volatile(&self) -> bool {
        self.far.is_some()
    }
}

/// A record that has arrived, in a buffer or in the aperture. Dropping it releases the record: its
/// place is used again, and a sender that waits for room goes on. [Keep](Self::keep) records that
/// you need several at a time.
pub struct ApertureRecordGuard<'a> {
    receiver: &'a mut ApertureStreamReceiver,
    record: ApertureRecord,
}

impl ApertureRecordGuard<'_> {
    /// The number of records before it.
    pub fn number(&self) -> u64 {
        self.record.number()
    }

    /// Bytes.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.record.len()
    }

    /// Whether it lies in the aperture, where its sender can still change it.
    pub fn is_volatile(&self) -> bool {
        self.record.is_volatile()
    }

    /// Its bytes, in the memory in which they arrived.
    #[inline]
    pub fn bytes(&self) -> Result<RecordBytes<'_>, ReceiveError> {
        self.receiver.bytes(&self.record)
    }

    /// Keeps the record when this is dropped. [`ApertureStreamReceiver::release`] releases it, and
    /// must be called some time: until then the record and all later ones stay in memory.
    #[inline]
    pub fn keep(self) -> ApertureRecord {
        let record = self.record;
        let _ = self.receiver.inner.keep();
        core::mem::forget(self);
        record
    }
}

impl core::fmt::Debug for ApertureRecordGuard<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("ApertureRecordGuard").field("record", &self.record).finish_non_exhaustive()
    }
}

impl Drop for ApertureRecordGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        self.receiver.inner.let_go();
        self.receiver.has_released();
    }
}

/// The bytes of a record.
#[derive(Debug)]
pub enum RecordBytes<'a> {
    /// Stable bytes.
    Still(&'a [u8]),
    /// Bytes that the sender can still change.
    Volatile(VolatileBytes<'a>),
}

impl RecordBytes<'_> {
    /// A copy, which the sender cannot change.
    pub fn to_vec(&self) -> Result<Vec<u8>, AccessError> {
        match self {
            Self::Still(bytes) => Ok(bytes.to_vec()),
            Self::Volatile(bytes) => {
                let mut copy = vec![0; bytes.len()];
                bytes.read(0, &mut copy)?;
                Ok(copy)
            }
        }
    }
}

/// Bytes in an aperture that their writer may change between any two calls and during each. Copy
/// them first, then check the copy, then use it.
#[derive(Clone, Copy, Debug)]
pub struct VolatileBytes<'a> {
    pub(super) pages: &'a Pages,
    pub(super) offset: u64,
    pub(super) length: usize,
}

impl VolatileBytes<'_> {
    /// Bytes.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Copies from byte `at` of the record on.
    #[inline]
    pub fn read(&self, at: usize, to: &mut [u8]) -> Result<(), AccessError> {
        if at > self.length || to.len() > self.length - at {
            let (offset, length) = (at as u64, to.len() as u64);
            return Err(AccessError::OutOfBounds { offset, length, bytes: self.length as u64 });
        }
        self.pages.read(self.offset + at as u64, to)
    }
}

/// Receives a stream of records from the one sender that is grown, long ones in an aperture.
/// `Send`.
///
/// ```
/// # let dir = std::env::temp_dir().join(format!("hamlyn-doc-apertures-{}", std::process::id()));
/// # let config = hamlyn::Config::from_env()?.dir(&dir);
/// use hamlyn::Access;
/// use hamlyn::protocol::{
///     ApertureStreamReceiver, ApertureStreamSender, Manager, RecordBytes, StreamConfig,
/// };
/// use std::time::Duration;
///
/// let limit = Some(Duration::from_secs(10));
/// let manager = Manager::with_config(config.clone())?;
/// let mut receiver = ApertureStreamReceiver::new(&manager, StreamConfig::default(), 4 << 20)?;
/// receiver.serve("pictures", Access::SameUser)?;
/// manager.start_progress()?;
///
/// // Usually another process.
/// let other = Manager::with_config(config)?;
/// let mut sender = ApertureStreamSender::connect(&other, "pictures", limit)?;
/// sender.send(b"a caption", limit)?;
/// sender.close(limit)?;
///
/// let record = receiver.receive(limit)?;
/// match record.bytes()? {
///     RecordBytes::Still(bytes) => assert_eq!(bytes, b"a caption"),
///     // A long one, which its sender can still change: copy, then check, then use.
///     RecordBytes::Volatile(bytes) => bytes.read(0, &mut [0; 16])?,
/// }
/// # std::fs::remove_dir_all(&dir).ok();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct ApertureStreamReceiver {
    inner: StreamReceiver,
    /// Numbers of the records in the aperture that are not released.
    unreleased: VecDeque<u64>,
    credit: Option<CreditReturn>,
}

impl ApertureStreamReceiver {
    /// A receiver that will export an aperture of `aperture_bytes` to its sender, rounded up to
    /// whole pages: choose a few times the longest record, so that one is written while another is
    /// read. At least `aperture_stream_bytes_min` (4 MiB unless set), because the link would be
    /// faster than a smaller one. A record that is longer than the aperture goes through the link.
    pub fn new(
        manager: &Manager,
        config: StreamConfig,
        aperture_bytes: u64,
    ) -> Result<Self, GrowError> {
        let least = manager.lock().config().aperture_stream_bytes_min;
        let bytes = aperture_bytes.max(least).checked_next_multiple_of(PAGE_BYTES);
        let bytes = bytes.ok_or_else(|| {
            GrowError::SetUp(format!("an aperture of {aperture_bytes} bytes is too large"))
        })?;
        let far = FarOffer::new(bytes);
        let inner = StreamReceiver::with_far(manager, config, Some(far))?;
        Ok(Self { inner, unreleased: VecDeque::new(), credit: None })
    }

    offered!("the [`ApertureStreamSender`], or a plain [`StreamSender`],", inner);

    /// See [`StreamReceiver::try_receive`].
    pub fn try_receive(&mut self) -> Result<Option<ApertureRecordGuard<'_>>, ReceiveError> {
        ReceiveError::unless_timed_out(self.receive(Some(Duration::ZERO)))
    }

    /// See [`StreamReceiver::receive`].
    #[inline]
    pub fn receive(
        &mut self,
        timeout: Option<Duration>,
    ) -> Result<ApertureRecordGuard<'_>, ReceiveError> {
        // If the link was full before.
        self.tell();
        self.inner.receive_record(timeout)?;
        let record = self.inner.latest();
        let far = if record.is_far { Some(self.receive_far(&record)?) } else { None };
        Ok(ApertureRecordGuard { receiver: self, record: ApertureRecord { record, far } })
    }

    /// See [`StreamReceiver::guard`]: dropped, it releases all records up to this one.
    ///
    /// ```
    /// # let dir = std::env::temp_dir().join(format!("hamlyn-doc-volatile-{}", std::process::id()));
    /// use hamlyn::protocol::{ApertureRecord, ApertureStreamReceiver, ApertureStreamSender};
    /// use hamlyn::protocol::{Manager, RecordBytes, StreamConfig};
    /// # use std::time::Duration;
    ///
    /// # let limit = Some(Duration::from_secs(10));
    /// # let config = hamlyn::Config::from_env()?.dir(&dir);
    /// # let manager = Manager::with_config(config.clone())?;
    /// # manager.start_progress()?;
    /// let mut receiver = ApertureStreamReceiver::new(&manager, StreamConfig::default(), 4 << 20)?;
    /// receiver.set_admission(|peer| peer.is_proved.then_some(()).ok_or("who are you?".into()));
    /// let (other, seed) = (Manager::with_config(config)?, receiver.seed()?);
    /// let mut sender = ApertureStreamSender::grow(&other, &seed, limit)?;
    /// receiver.stop_serving(); // One sender is enough; it stays.
    /// assert!(sender.bytes_max() >= 1 << 19 && sender.connection().ended().is_none());
    /// assert!(sender.try_send(b"short")? && sender.try_send(b"another")?);
    /// sender.flush(limit)?;
    /// assert!(sender.try_flush()?, "without waiting: whether everything is on its way");
    /// std::thread::scope(|scope| -> Result<(), Box<dyn std::error::Error>> {
    ///     // Until the aperture is there a long record needs one of the receiver's buffers, too.
    ///     let sending = scope.spawn(|| {
    ///         sender.send(&vec![7; 1 << 19], limit)?;
    ///         sender.flush(limit)
    ///     });
    ///     let first: ApertureRecord = receiver.receive(limit)?.keep();
    ///     let second = receiver.receive(limit)?.keep();
    ///     assert_eq!((first.number(), first.len(), first.is_volatile()), (0, 5, false));
    ///     receiver.release(&first)?;
    ///     assert_eq!((receiver.guard(second)?.number()), 1);
    ///     let long = receiver.receive(limit)?;
    ///     let bytes = long.bytes()?;
    ///     assert_eq!((bytes.to_vec()?[0], long.len()), (7, 1 << 19));
    ///     if let RecordBytes::Volatile(bytes) = bytes {
    ///         println!("its sender can change {} bytes: {}", bytes.len(), long.is_volatile());
    ///     }
    ///     drop(long);
    ///     Ok(sending.join().expect("a thread")?)
    /// })?;
    /// assert!(receiver.try_receive()?.is_none() && receiver.connection().is_some());
    /// sender.abandon(); // The stream stays without an end: see `StreamSender::abandon`.
    /// # std::fs::remove_dir_all(&dir).ok();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn guard(
        &mut self,
        record: ApertureRecord,
    ) -> Result<ApertureRecordGuard<'_>, ReceiveError> {
        self.inner.look_at(record.record)?;
        Ok(ApertureRecordGuard { receiver: self, record })
    }

    fn receive_far(&mut self, record: &Record) -> Result<FarRecord, ReceiveError> {
        let far = FarRecord::from_bytes(self.inner.bytes(record)?);
        let bytes = self.view().map_or(0, ApertureView::bytes);
        let longest = self.inner.record_bytes_max();
        let fits = |far: &FarRecord| {
            far.offset < bytes
                && far.length as u64 <= bytes - far.offset
                && far.length as usize <= longest
        };
        match far.filter(fits) {
            Some(far) => {
                self.unreleased.push_back(record.number());
                Ok(far)
            }
            None => {
                Err(self.inner.misbehaves("a record that is outside of the aperture, or too long"))
            }
        }
    }

    fn view(&self) -> Option<&ApertureView> {
        self.inner.far()?.view()
    }

    /// The bytes of a kept record, in the memory in which they arrived.
    #[inline]
    pub fn bytes(&self, record: &ApertureRecord) -> Result<RecordBytes<'_>, ReceiveError> {
        let still = self.inner.bytes(&record.record)?;
        match (record.far, self.view()) {
            (None, _) => Ok(RecordBytes::Still(still)),
            (Some(FarRecord { offset, length }), Some(view)) => {
                let length = length as usize;
                let pages = view.pages();
                Ok(RecordBytes::Volatile(VolatileBytes { pages, offset, length }))
            }
            (Some(_), None) => Err(ReceiveError::Misuse("the stream has no aperture".into())),
        }
    }

    /// Releases all records up to and including this kept one, and tells a sender that waits for
    /// room.
    #[inline]
    pub fn release(&mut self, record: &ApertureRecord) -> Result<(), ReceiveError> {
        self.inner.release(&record.record)?;
        self.has_released();
        Ok(())
    }

    #[inline]
    fn has_released(&mut self) {
        let released = self.inner.released();
        let mut count = 0;
        while self.unreleased.front().is_some_and(|number| *number < released) {
            self.unreleased.pop_front();
            count += 1;
        }
        if count > 0 {
            if self.credit.is_none()
                && let Some((ticket, link, _)) = self.inner.far().and_then(|far| far.joined.get())
            {
                self.credit = Some(CreditReturn::new(*ticket, *link, 1));
            }
            if let Some(credit) = &mut self.credit {
                credit.consumed += count;
            }
            self.tell();
        }
    }

    #[inline]
    fn tell(&mut self) {
        if let Some(credit) = &mut self.credit
            && credit.is_due()
            && !self.inner.manager().is_forked()
        {
            credit.tell(&mut self.inner.manager().lock());
        }
    }

    /// The connection to the sender, once there is one.
    pub fn connection(&self) -> Option<&Connection> {
        self.inner.connection()
    }

    /// The path of the records, and the reason for it.
    pub fn explain(&self) -> String {
        let far = match self.inner.far().and_then(|far| far.joined.get()) {
            None => "no aperture: no sender that wants one yet".into(),
            Some((_, _, Err(why))) => format!("no aperture: {why}"),
            Some((_, _, Ok(view))) => through(self.inner.connection(), view.bytes()),
        };
        format!("{far}; {}", self.inner.explain())
    }

    /// The same as for a [`StreamReceiver`].
    #[cfg(feature = "unstable-internals")]
    pub fn held_up(&self) -> Option<String> {
        self.inner.held_up()
    }
}

fn through(connection: Option<&Connection>, bytes: u64) -> String {
    let least = connection.map_or(FAR_BYTES_MIN, far_bytes_min);
    format!("records of {least} bytes and more through an aperture of {bytes}")
}

impl EndPoint for ApertureStreamReceiver {
    fn is_ready_in(&self, node: &Node) -> bool {
        self.inner.is_ready_in(node)
    }

    fn manager(&self) -> &Manager {
        self.inner.manager()
    }
}

/// Sends a stream of records, long ones straight into the receiver's memory. `Send`. The first long
/// record waits until the receiver's program receives: that makes the aperture ready.
/// [`ApertureStreamReceiver`] shows both ends.
pub struct ApertureStreamSender {
    inner: StreamSender,
    manager: Manager,
    credit: CreditWord,
    /// Long records announced.
    sent: u64,
    aperture: Option<(Aperture, ApertureSpace)>,
    far_bytes_min: usize,
}

impl ApertureStreamSender {
    grown!("the sender", "a receiver");

    fn to(
        manager: &Manager,
        target: Target<'_>,
        timeout: Option<Duration>,
    ) -> Result<Self, GrowError> {
        let (credit, ticket) = CreditWord::new(&mut manager.lock()).map_err(GrowError::SetUp)?;
        let path = [&[THROUGH_AN_APERTURE][..], &ticket.to_bytes()].concat();
        match StreamSender::over(manager, target, &path, timeout) {
            Ok(inner) => {
                // The receiver exports it with the first message, which has yet to leave.
                inner.connection().take_aperture();
                let (manager, far_bytes_min) = (manager.clone(), far_bytes_min(inner.connection()));
                Ok(Self { inner, manager, credit, sent: 0, aperture: None, far_bytes_min })
            }
            Err(e) => {
                credit.remove(&mut manager.lock());
                Err(e)
            }
        }
    }

    /// The aperture, once it is there: the receiver exports it with the first message.
    fn find(&mut self) -> bool {
        if self.aperture.is_none() {
            let link = self.inner.connection().link();
            let mut node = self.manager.lock();
            let held = node.apertures_held().find(|id| id.link == link);
            let found = held.and_then(|id| node.aperture(id).ok());
            self.aperture = found.map(|aperture| {
                let space = ApertureSpace::new(aperture.bytes());
                (aperture, space)
            });
        }
        self.aperture.is_some()
    }

    /// Longest record.
    pub fn bytes_max(&self) -> usize {
        self.inner.bytes_max()
    }

    /// See [`StreamSender::send`]. A long record waits for room in the aperture, and leaves at
    /// once.
    #[inline]
    pub fn send(&mut self, record: &[u8], timeout: Option<Duration>) -> Result<(), SendError> {
        if record.len() < self.far_bytes_min || record.len() > self.inner.bytes_max() {
            return self.inner.send(record, timeout);
        }
        self.send_long(record, timeout)
    }

    fn send_long(&mut self, record: &[u8], timeout: Option<Duration>) -> Result<(), SendError> {
        self.find();
        let length = record.len() as u64;
        let Self { inner, manager, credit, sent, aperture, .. } = self;
        let Some((pages, space)) = aperture.as_mut().filter(|(pages, _)| length <= pages.bytes())
        else {
            return inner.send(record, timeout);
        };
        let deadline = Deadline::new(timeout);
        let connection = inner.connection();
        let mut waited = false;
        let place = manager.shared.wait_until(timeout, |node, _| {
            space.release(credit.read(node, *sent));
            match space.place(length) {
                Some(place) => Look::Found(Ok(place)),
                None if connection.ended().is_some() => Look::Found(Err(ended(connection))),
                None => {
                    waited = true;
                    node.waits_for_buffer(connection.link(), true);
                    Look::Nothing
                }
            }
        });
        // A caller that does not wait in a call tries again.
        if waited && (place.is_ok() || timeout != Some(Duration::ZERO)) {
            manager.lock().waits_for_buffer(connection.link(), false);
        }
        let place = place??;
        let offset = space.offset(place);
        // No lock is held while the bytes are copied.
        match pages.write(offset, record) {
            Ok(()) => {}
            // Too many writes wait there: this record goes through the link, and the aperture
            // stays.
            Err(AccessError::Busy(_)) => return inner.send(record, deadline.left()),
            // It was taken back, or the link has ended, as the link will report.
            Err(_) => {
                *aperture = None;
                return inner.send(record, deadline.left());
            }
        }
        inner.announce(FarRecord { offset, length: record.len() as u32 }, deadline)?;
        space.take(place, length);
        *sent += 1;
        Ok(())
    }

    /// See [`StreamSender::flush`].
    #[inline]
    pub fn flush(&mut self, timeout: Option<Duration>) -> Result<(), SendError> {
        self.inner.flush(timeout)
    }

    /// [`send`](Self::send) without waiting: `false` if it would have to wait, and then no part of
    /// this record was taken.
    pub fn try_send(&mut self, record: &[u8]) -> Result<bool, SendError> {
        Ok(SendError::unless_timed_out(self.send(record, Some(Duration::ZERO)))?.is_some())
    }

    /// [`flush`](Self::flush) without waiting; returns whether everything is on its way.
    pub fn try_flush(&mut self) -> Result<bool, SendError> {
        Ok(SendError::unless_timed_out(self.flush(Some(Duration::ZERO)))?.is_some())
    }

    /// See [`StreamSender::close`].
    pub fn close(&mut self, timeout: Option<Duration>) -> Result<(), SendError> {
        self.inner.close(timeout)
    }

    /// See [`StreamSender::abandon`].
    pub fn abandon(&mut self) {
        self.inner.abandon();
    }

    /// The connection.
    pub fn connection(&self) -> &Connection {
        self.inner.connection()
    }

    /// The path of the records, and the reason for it.
    pub fn explain(&mut self) -> String {
        self.find();
        let far = match &self.aperture {
            Some((aperture, _)) => through(Some(self.inner.connection()), aperture.bytes()),
            None => {
                "no aperture yet: the receiver has not exported one, or it is on its way".into()
            }
        };
        format!("{far}; {}", self.inner.explain())
    }
}

impl Drop for ApertureStreamSender {
    fn drop(&mut self) {
        if self.manager.is_forked() {
            return;
        }
        // The connection goes first, so that no credit comes for a slot that is gone.
        self.inner.end();
        self.credit.remove(&mut self.manager.lock());
    }
}
