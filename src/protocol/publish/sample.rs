//! A sample at a subscriber: its bytes, or their place in the pool, and the release that its drop
//! sends.

use super::publisher::Loan;
use crate::interface::LinkId;
use crate::node::{Aperture, Node, NodeSendError, SamplesHeld};
use crate::os::aperture::AccessError;
use crate::protocol::{Manager, RecordBytes, VolatileBytes};
use crate::wire::Ticket;
use core::sync::atomic::Ordering;
use std::boxed::Box;
use std::sync::{Arc, Mutex, PoisonError};
use std::vec;
use std::vec::Vec;
use zerocopy::IntoBytes;

/// Words of a sample that are kept beside it.
const INLINE_WORDS: usize = 8;

/// A sample that has arrived. The publisher uses the place of a pool sample again when all its
/// subscribers have dropped it; until then the sample counts against
/// [`SubscribeConfig::outstanding`](super::SubscribeConfig::outstanding). Do not drop it while this
/// thread has the manager's lock. `Send`.
#[derive(Debug)]
pub struct Sample {
    number: u64,
    missed: u64,
    body: SampleBody,
}

/// Short ones in words, so that they are moved as they were stored: bytes would begin right behind
/// the tag, and be moved from odd addresses, in parts that wait for the stores.
#[derive(Debug)]
pub(super) enum SampleBody {
    /// A sample that came in one line.
    Line {
        words: [u64; 2],
        length: usize,
    },
    Inline {
        words: [u64; INLINE_WORDS],
        length: usize,
    },
    Long(LongSample),
}

/// A body that has to be given back. It has a destructor of its own, so that a short sample is
/// dropped without a call and need not be in memory for it.
#[derive(Debug)]
pub(super) struct LongSample(Option<LongBody>);

#[derive(Debug)]
enum LongBody {
    Boxed(Box<[u8]>),
    Pool(Leased),
    /// In the pool of the relay that passes it on.
    Lent(Loan),
}

impl Drop for LongSample {
    #[inline]
    fn drop(&mut self) {
        give_back(self.0.take());
    }
}

#[inline(never)]
fn give_back(body: Option<LongBody>) {
    drop(body);
}

impl LongSample {
    fn bytes(&self) -> RecordBytes<'_> {
        match &self.0 {
            Some(LongBody::Boxed(bytes)) => RecordBytes::Still(bytes),
            Some(LongBody::Pool(Leased { aperture, offset, length, .. })) => {
                let (pages, offset, length) = (aperture.pages(), *offset, *length);
                RecordBytes::Volatile(VolatileBytes { pages, offset, length })
            }
            Some(LongBody::Lent(loan)) => RecordBytes::Still(loan),
            None => RecordBytes::Still(&[]),
        }
    }
}

/// A sample of the pool.
#[derive(Debug)]
pub(super) struct Leased {
    pub leases: Arc<Leases>,
    pub aperture: Aperture,
    pub lease: u32,
    pub number: u64,
    pub offset: u64,
    pub length: usize,
}

impl Drop for Leased {
    fn drop(&mut self) {
        self.leases.release(self.lease, self.number);
    }
}

impl SampleBody {
    pub fn boxed(bytes: Box<[u8]>) -> Self {
        Self::Long(LongSample(Some(LongBody::Boxed(bytes))))
    }

    pub fn lent(loan: Loan) -> Self {
        Self::Long(LongSample(Some(LongBody::Lent(loan))))
    }

    /// A copy of the bytes of a short sample.
    pub fn short(bytes: &[u8]) -> Self {
        let mut words = [0; INLINE_WORDS];
        match words.as_mut_bytes().get_mut(..bytes.len()) {
            Some(to) => {
                to.copy_from_slice(bytes);
                Self::Inline { words, length: bytes.len() }
            }
            None => Self::boxed(bytes.into()),
        }
    }

    pub fn pool(leased: Leased) -> Self {
        Self::Long(LongSample(Some(LongBody::Pool(leased))))
    }
}

impl Sample {
    #[inline]
    pub(super) fn new(number: u64, missed: u64, body: SampleBody) -> Self {
        Self { number, missed, body }
    }

    /// The relay's loan in which it was put together; else the sample.
    pub(super) fn into_loan(mut self) -> Result<Loan, Self> {
        let SampleBody::Long(LongSample(body)) = &mut self.body else { return Err(self) };
        match body.take() {
            Some(LongBody::Lent(loan)) => Ok(loan),
            other => {
                *body = other;
                Err(self)
            }
        }
    }

    /// The number of samples that were published before it, to any subscriber.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The number of samples that were left out between this sample and the previous one of this
    /// subscriber.
    pub fn missed(&self) -> u64 {
        self.missed
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        match &self.body {
            SampleBody::Line { length, .. } | SampleBody::Inline { length, .. } => *length,
            SampleBody::Long(long) => match long.bytes() {
                RecordBytes::Still(bytes) => bytes.len(),
                RecordBytes::Volatile(bytes) => bytes.len(),
            },
        }
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Its bytes. Those of a short sample, and of one from another host, are stable. The publisher
    /// can change the bytes of a pool sample at any time; an honest one does not before the sample
    /// is dropped. So pool samples can only be copied.
    pub fn bytes(&self) -> RecordBytes<'_> {
        match &self.body {
            SampleBody::Line { words, length } => RecordBytes::Still(&words.as_bytes()[..*length]),
            SampleBody::Inline { words, length } => {
                RecordBytes::Still(&words.as_bytes()[..*length])
            }
            SampleBody::Long(long) => long.bytes(),
        }
    }

    /// The bytes of a short sample, or of one from another host; `None` for a sample of the pool,
    /// which can only be copied.
    pub fn as_slice(&self) -> Option<&[u8]> {
        match self.bytes() {
            RecordBytes::Still(bytes) => Some(bytes),
            RecordBytes::Volatile(_) => None,
        }
    }

    /// Copies its first bytes, as many as fit into `to`, and returns how many. Fails if the link of
    /// a sample of the pool has ended.
    pub fn copy_to(&self, to: &mut [u8]) -> Result<usize, AccessError> {
        let length = self.len().min(to.len());
        let to = &mut to[..length];
        match self.bytes() {
            RecordBytes::Still(bytes) => to.copy_from_slice(&bytes[..length]),
            RecordBytes::Volatile(bytes) => bytes.read(0, to)?,
        }
        Ok(length)
    }

    /// A copy, which the publisher cannot change. Fails as [`copy_to`](Self::copy_to) does.
    pub fn to_vec(&self) -> Result<Vec<u8>, AccessError> {
        let mut copy = vec![0; self.len()];
        self.copy_to(&mut copy)?;
        Ok(copy)
    }
}

/// The state that samples of the pool share with their subscriber.
#[derive(Debug)]
pub(super) struct Leases {
    manager: QuietManager,
    pub link: LinkId,
    cell: Ticket,
    /// Leases of samples that are held here, or whose release the publisher has yet to hear. The
    /// publisher cannot use these again, so the releases to send are bounded.
    pub held: Arc<SamplesHeld>,
    /// Released, and not yet reported to the publisher: lease and word.
    untold: Mutex<Vec<(u32, u64)>>,
}

/// A manager without its `Debug`.
struct QuietManager(Manager);

impl core::fmt::Debug for QuietManager {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Manager(..)")
    }
}

impl Leases {
    /// No lease is held yet; releases are written to `cell`.
    pub fn new(manager: Manager, link: LinkId, cell: Ticket, held: Arc<SamplesHeld>) -> Self {
        Self { manager: QuietManager(manager), link, cell, held, untold: Mutex::default() }
    }

    #[cold]
    fn release(&self, lease: u32, number: u64) {
        let manager = &self.manager.0;
        if manager.is_forked() {
            return;
        }
        let mut guard = manager.shared.lock();
        let (node, word) = (guard.parts().0, number.wrapping_add(1));
        self.held.dropped.fetch_add(1, Ordering::Relaxed);
        if !self.tell(node, lease, word) {
            self.untold.lock().unwrap_or_else(PoisonError::into_inner).push((lease, word));
            // A thread that waits in `receive` reports it.
            node.await_room(self.link);
            node.wake();
        }
    }

    /// `false`: the link has no room now.
    fn tell(&self, node: &mut Node, lease: u32, word: u64) -> bool {
        let at = Ticket { base: self.cell.base + 8 * (1 + lease as u64), ..self.cell };
        let sent = node.try_send_fast_over(self.link, &at, &word.to_le_bytes(), 0);
        if matches!(sent, Err(NodeSendError::Full)) {
            return false;
        }
        // Otherwise the publisher is gone, and needs no report.
        self.held.leases.fetch_and(!(1 << lease), Ordering::Release);
        true
    }

    /// Whether all releases have been reported.
    pub fn tell_untold(&self, node: &mut Node) -> bool {
        let mut untold = self.untold.lock().unwrap_or_else(PoisonError::into_inner);
        untold.retain(|(lease, word)| !self.tell(node, *lease, *word));
        untold.is_empty()
    }
}
