//! A sample at a subscriber: its bytes, or where in the pool they are, and what has to be told when it is
//! dropped.

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

/// A sample that has arrived. Dropping one of the pool lets the publisher use its place again, when all
/// others have dropped it, too; until then it counts against
/// [`SubscribeConfig::outstanding`](super::SubscribeConfig::outstanding). Not to be dropped while this
/// thread has the manager's lock. `Send`.
#[derive(Debug)]
pub struct Sample {
    number: u64,
    missed: u64,
    body: Body,
}

/// Short ones in words, so that they are moved as they were stored: bytes would begin right behind the
/// tag, and be moved from odd addresses, in parts that wait for the stores.
#[derive(Debug)]
pub(super) enum Body {
    /// What came in one line.
    Line {
        words: [u64; 2],
        length: usize,
    },
    Inline {
        words: [u64; INLINE_WORDS],
        length: usize,
    },
    Long(Long),
}

/// What has to be given back, in a call of its own: so a short sample is dropped without one, and need
/// not be in memory for it.
#[derive(Debug)]
pub(super) struct Long(Option<LongBody>);

#[derive(Debug)]
enum LongBody {
    Boxed(Box<[u8]>),
    Pool(Leased),
    /// In the pool of whoever passes it on.
    Lent(Loan),
}

impl Drop for Long {
    #[inline(always)]
    fn drop(&mut self) {
        give_back(self.0.take());
    }
}

#[inline(never)]
fn give_back(body: Option<LongBody>) {
    drop(body);
}

impl Long {
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

impl Body {
    pub fn boxed(bytes: Box<[u8]>) -> Self {
        Self::Long(Long(Some(LongBody::Boxed(bytes))))
    }

    pub fn lent(loan: Loan) -> Self {
        Self::Long(Long(Some(LongBody::Lent(loan))))
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
        Self::Long(Long(Some(LongBody::Pool(leased))))
    }
}

impl Sample {
    #[inline(always)]
    pub(super) fn new(number: u64, missed: u64, body: Body) -> Self {
        Self { number, missed, body }
    }

    /// The loan that it was put together in, of whoever passes it on; else the sample.
    pub(super) fn into_loan(mut self) -> Result<Loan, Self> {
        let Body::Long(Long(body)) = &mut self.body else { return Err(self) };
        match body.take() {
            Some(LongBody::Lent(loan)) => Ok(loan),
            other => {
                *body = other;
                Err(self)
            }
        }
    }

    /// How many samples were published before it, whoever got them.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// How many samples were left out between the one that this subscriber got before and this one.
    pub fn missed(&self) -> u64 {
        self.missed
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        match &self.body {
            Body::Line { length, .. } | Body::Inline { length, .. } => *length,
            Body::Long(long) => match long.bytes() {
                RecordBytes::Still(bytes) => bytes.len(),
                RecordBytes::Volatile(bytes) => bytes.len(),
            },
        }
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Its bytes: those of a short one, and of one from another host, stand still; one of the pool its publisher can change at any
    /// time, and an honest one does not before the sample is dropped. So those are only copied.
    pub fn bytes(&self) -> RecordBytes<'_> {
        match &self.body {
            Body::Line { words, length } => RecordBytes::Still(&words.as_bytes()[..*length]),
            Body::Inline { words, length } => RecordBytes::Still(&words.as_bytes()[..*length]),
            Body::Long(long) => long.bytes(),
        }
    }

    /// The bytes of a short one, or of one from another host; `None`: it is one of the pool, which is
    /// only copied.
    pub fn as_slice(&self) -> Option<&[u8]> {
        match self.bytes() {
            RecordBytes::Still(bytes) => Some(bytes),
            RecordBytes::Volatile(_) => None,
        }
    }

    /// Copies its first bytes, as many as `to` holds, and says how many. Fails where the link of a
    /// sample of the pool has ended.
    pub fn copy_to(&self, to: &mut [u8]) -> Result<usize, AccessError> {
        let length = self.len().min(to.len());
        let to = &mut to[..length];
        match self.bytes() {
            RecordBytes::Still(bytes) => to.copy_from_slice(&bytes[..length]),
            RecordBytes::Volatile(bytes) => bytes.read(0, to)?,
        }
        Ok(length)
    }

    /// A copy, which stands still whatever the publisher does. Fails as [`copy_to`](Self::copy_to)
    /// does.
    pub fn to_vec(&self) -> Result<Vec<u8>, AccessError> {
        let mut copy = vec![0; self.len()];
        self.copy_to(&mut copy)?;
        Ok(copy)
    }
}

/// What samples of the pool and their subscriber share.
#[derive(Debug)]
pub(super) struct Leases {
    manager: Held,
    pub link: LinkId,
    cell: Ticket,
    /// Those that samples here have, or of which the publisher has yet to be told that they are
    /// released. So it cannot use one again before, and what it is to be told has a bound.
    pub held: Arc<SamplesHeld>,
    /// Released, and the publisher has yet to be told: lease and word.
    untold: Mutex<Vec<(u32, u64)>>,
}

/// A manager without its `Debug`.
struct Held(Manager);

impl core::fmt::Debug for Held {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Manager(..)")
    }
}

impl Leases {
    /// None is held yet; what is released the publisher is told in `cell`.
    pub fn new(manager: Manager, link: LinkId, cell: Ticket, held: Arc<SamplesHeld>) -> Self {
        Self { manager: Held(manager), link, cell, held, untold: Mutex::default() }
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
            // Whoever waits in `receive` tells it.
            node.await_room(self.link);
            node.wake_waiters();
        }
    }

    /// `false`: the link has no room now.
    fn tell(&self, node: &mut Node, lease: u32, word: u64) -> bool {
        let at = Ticket { base: self.cell.base + 8 * (1 + lease as u64), ..self.cell };
        let sent = node.try_send_fast_over(self.link, &at, &word.to_le_bytes(), 0);
        if matches!(sent, Err(NodeSendError::Full)) {
            return false;
        }
        // Otherwise the publisher is gone: nobody to tell.
        self.held.leases.fetch_and(!(1 << lease), Ordering::Release);
        true
    }

    /// Whether nothing is left to be told.
    pub fn tell_untold(&self, node: &mut Node) -> bool {
        let mut untold = self.untold.lock().unwrap_or_else(PoisonError::into_inner);
        untold.retain(|(lease, word)| !self.tell(node, *lease, *word));
        untold.is_empty()
    }
}
