//! The publisher: samples out, for any number of threads.

use super::log::PublishedBody;
use super::serving::NoRoom;
use super::state::PublisherState;
use super::{PublishConfig, SubscriberState};
use crate::node::{Attached, ExportError, Forked, Look, Node};
use crate::os::pool::{Pool, PoolPlace};
use crate::os::sys;
use crate::protocol::ends::offered;
use crate::protocol::manager::{OfferId, Offering, Protocols, of_wait, set_up};
use crate::protocol::{EndPoint, GrowError, Kind, Manager};
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;
use std::boxed::Box;
use std::io;
use std::sync::Arc;
use std::vec::Vec;

/// A sample that was not published. No subscriber gets it, and it has no number.
#[derive(Debug, thiserror::Error)]
#[cfg_attr(not(feature = "unstable-internals"), non_exhaustive)]
pub enum PublishError {
    /// The time limit has passed.
    #[error(
        "the time was up, and a subscriber for which the publisher waits had made no room, or had not \
         released what it has; a sample that was to be published was not"
    )]
    TimedOut,
    /// Longer than a sample may be.
    #[error(
        "{length} bytes are too long: at most {max} are allowed, {limit}; nothing was published"
    )]
    TooLong {
        /// Bytes of the sample.
        length: usize,
        /// Most bytes.
        max: usize,
        /// The setting that limits it.
        limit: &'static str,
    },
    /// The most samples that may be on loan at once are on loan.
    #[error("{0} samples are on loan, as many as may be (loans_max)")]
    Loans(u32),
    /// The sample is of another publisher's pool.
    #[error("the sample is on loan from another publisher")]
    Foreign,
    /// The calling process is a forked child.
    #[error(transparent)]
    Forked(#[from] Forked),
    /// Waiting failed.
    #[error("waiting failed: {0}")]
    Wait(Arc<io::Error>),
}

of_wait!(PublishError);

/// A loan that was not published, and the reason. It can be published again.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct Unpublished {
    /// The sample, unchanged.
    pub loan: Loan,
    /// The reason.
    pub error: PublishError,
}

/// A sample of the pool that has yet to be published: bytes to be written in place. They begin with
/// the bytes of an earlier sample; dropping the loan frees its place. Access to its bytes panics in
/// a forked child, which does not have the memory. `Send`.
#[derive(Debug)]
pub struct Loan {
    place: Arc<PoolPlace>,
    length: usize,
    _one: OneLoan,
}

impl Deref for Loan {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.place.bytes()[..self.length]
    }
}

impl DerefMut for Loan {
    fn deref_mut(&mut self) -> &mut [u8] {
        let place =
            Arc::get_mut(&mut self.place).expect("nobody else has it before it is published");
        &mut place.bytes_mut()[..self.length]
    }
}

impl Loan {
    /// Makes the sample shorter; a sample of at most `length` bytes stays as it is.
    ///
    /// At a [`Subscriber`](super::Subscriber):
    ///
    /// ```
    /// # let dir = std::env::temp_dir().join(format!("hamlyn-doc-loan-truncate-{}", std::process::id()));
    /// use hamlyn::protocol::{Manager, PublishConfig, Publisher, Sample, SubscribeConfig, Subscriber};
    /// # use std::time::Duration;
    ///
    /// # let limit = Some(Duration::from_secs(10));
    /// # let config = hamlyn::Config::from_env()?.dir(&dir);
    /// # let manager = Manager::with_config(config.clone())?;
    /// # manager.start_progress()?;
    /// # let pool = PublishConfig { sample_bytes_max: 4096, ..PublishConfig::default() };
    /// # let publisher = Publisher::new(&manager, pool)?;
    /// # let (other, options) = (Manager::with_config(config)?, SubscribeConfig::default());
    /// # let mut subscriber = Subscriber::grow(&other, &publisher.seed()?, options, limit)?;
    /// let mut loan = publisher.loan(4096)?; // As long as it may become.
    /// loan[..3].copy_from_slice(b"yes");
    /// loan.truncate(3);
    /// publisher.publish_loan(loan, limit)?;
    /// publisher.flush(limit)?;
    /// let sample: Sample = subscriber.receive(limit)?;
    /// assert_eq!((sample.len(), sample.is_empty(), sample.to_vec()?), (3, false, b"yes".to_vec()));
    /// assert_eq!((sample.number(), sample.missed()), (0, 0));
    /// // Another process can write the pool, so its bytes are copied.
    /// let mut first = [0; 1];
    /// assert!(sample.as_slice().is_none() && sample.copy_to(&mut first)? == 1);
    /// assert_eq!(sample.bytes().to_vec()?, b"yes");
    /// # drop(sample);
    /// assert!(subscriber.try_receive()?.is_none() && subscriber.connection().ended().is_none());
    /// # std::fs::remove_dir_all(&dir).ok();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn truncate(&mut self, length: usize) {
        self.length = self.length.min(length);
    }
}

/// One of the loans that may exist at once.
#[derive(Debug)]
struct OneLoan(Arc<AtomicU32>);

impl OneLoan {
    fn of(count: &Arc<AtomicU32>, max: u32) -> Option<Self> {
        let more = |n: u32| (n < max).then_some(n + 1);
        count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        Some(Self(count.clone()))
    }
}

impl Drop for OneLoan {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Publishes samples to all its subscribers, from any number of threads at once.
///
/// Calls of any end point of the manager let in new subscribers and send samples to those that are
/// behind. A program that publishes only now and then starts a thread for this work, be it in
/// threads or in tasks ([`Manager::start_progress`]).
///
/// ```
/// use hamlyn::Access;
/// use hamlyn::protocol::{Manager, PublishConfig, Publisher, SubscribeConfig, Subscriber};
/// use std::time::Duration;
/// # std::thread::scope(|scope| -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = std::env::temp_dir().join(format!("hamlyn-doc-publish-{}", std::process::id()));
/// # let config = hamlyn::Config::from_env()?.dir(&dir);
/// # let config2 = config.clone();
/// # let manager = Manager::with_config(config)?;
/// let limit = Some(Duration::from_secs(5));
/// let long = PublishConfig { sample_bytes_max: 1 << 20, history: 1, ..PublishConfig::default() };
/// let publisher = Publisher::new(&manager, long)?;
/// publisher.serve("frames", Access::SameUser)?;
/// publisher.publish(b"a short one", limit)?;
///
/// // Usually another process, of any user with access.
/// # let subscriber = scope.spawn(move || -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// # let manager = Manager::with_config(config2)?;
/// let mut subscriber = Subscriber::connect(&manager, "frames", SubscribeConfig::default(), limit)?;
/// assert_eq!(subscriber.receive(limit)?.to_vec()?, b"a short one");
/// let frame = subscriber.receive(limit)?;
/// assert_eq!((frame.len(), frame.number(), frame.missed()), (1 << 20, 1, 0));
/// drop(frame); // The publisher may use its place again.
/// # Ok(()) });
///
/// // It admits subscribers in calls, or in a thread of its own.
/// # manager.start_progress()?;
/// # while publisher.subscribers().is_empty() { std::thread::yield_now(); }
/// let mut frame = publisher.loan(1 << 20)?;
/// frame.fill(7); // In place, without a copy.
/// publisher.publish_loan(frame, limit)?;
/// publisher.drain(limit)?;
/// # subscriber.join().unwrap().unwrap();
/// # std::fs::remove_dir_all(&dir).ok();
/// # Ok(()) }).unwrap();
/// ```
///
/// [Flush](Self::flush) or [drain](Self::drain) the publisher before you drop it. Dropped without
/// that, it sends only as much as it can without waiting, and a subscriber that is still behind, or
/// that missed the last samples, sees [`CloseReason::TooSlow`](crate::node::CloseReason::TooSlow),
/// a sign that it has not had everything.
pub struct Publisher {
    pub(super) manager: Manager,
    pub(super) offer: OfferId,
    short_bytes_max: usize,
    lender: Lender,
}

/// Lends places of a publisher's pool, also to code that does not have the publisher.
#[derive(Clone, Debug)]
pub(super) struct Lender {
    sample_bytes_max: usize,
    loans_max: u32,
    pool: Option<Arc<Pool>>,
    loans: Arc<AtomicU32>,
}

impl Lender {
    /// As [`Publisher::loan`].
    pub fn lend(&self, length: usize) -> Result<Loan, PublishError> {
        let Some(pool) = self.pool.as_ref().filter(|_| length <= self.sample_bytes_max) else {
            let (max, limit) = (self.sample_bytes_max, "PublishConfig::sample_bytes_max");
            return Err(PublishError::TooLong { length, max, limit });
        };
        let loans = || PublishError::Loans(self.loans_max);
        let one = OneLoan::of(&self.loans, self.loans_max).ok_or_else(loans)?;
        let place = pool.take().ok_or_else(loans)?;
        Ok(Loan { place: Arc::new(place), length, _one: one })
    }
}

impl Publisher {
    /// A publisher without subscribers. Its pool, if it has one, is charged to this process now:
    /// [`PublishConfig::pool_bytes`]. Fails if a value of `config` is not allowed, or if the pool
    /// cannot be allocated, for example because a control group has no room for it; nothing is left then.
    pub fn new(manager: &Manager, config: PublishConfig) -> Result<Self, GrowError> {
        config.check().map_err(GrowError::SetUp)?;
        let pool =
            match config.layout() {
                None => None,
                Some(layout) => {
                    let reservation = manager.lock().reserve_pool(layout).map_err(set_up)?;
                    let bytes = reservation.bytes();
                    // This touches all its pages: not while other threads wait for the manager.
                    let made = Pool::make(layout, reservation);
                    Some(made.map_err(|error| {
                        set_up(config.no_pool(&ExportError::Os { bytes, error }))
                    })?)
                }
            };
        let PublishConfig { short_bytes_max, sample_bytes_max, loans_max, .. } = config;
        let id = u64::from_le_bytes(sys::random().map_err(set_up)?);
        let state = Box::new(PublisherState::new(config, pool.clone(), id));
        let offer = manager.offer(Kind::PUBLISH, Offering::Publisher(state));
        let (manager, loans) = (manager.clone(), Arc::default());
        let lender = Lender { sample_bytes_max, loans_max, pool, loans };
        Ok(Self { manager, offer, short_bytes_max, lender })
    }

    offered!(many "a [`Subscriber`](crate::protocol::Subscriber)");

    /// Publishes a sample and returns its number; the first is 0. A sample of at most
    /// [`PublishConfig::short_bytes_max`] bytes is copied to each subscriber; a longer one is
    /// copied once, into the pool, of which it takes a loan for the duration of the call.
    ///
    /// Subscribers get it now or later, or miss it, according to their
    /// [`WhenSlow`](super::WhenSlow). The call waits, at most `timeout`, only for subscribers with
    /// [`Wait`](super::WhenSlow::Wait). Later calls of any thread that uses the manager, or its
    /// progress thread, send the samples that are still outstanding.
    #[inline]
    pub fn publish(&self, sample: &[u8], timeout: Option<Duration>) -> Result<u64, PublishError> {
        if sample.len() > self.short_bytes_max {
            return self.publish_long(sample, timeout);
        }
        let offer = self.offer;
        let published = self.manager.shared.at_once(|node, protocols| {
            let state = protocols.publisher(offer)?;
            let sent = match state.publish_at_once(node, sample) {
                None if state.has_used_places() => {
                    publish_in_new_places(node, protocols, offer, sample)
                }
                sent => sent,
            };
            let (number, have_left) = sent?;
            if !have_left {
                protocols.advance_publisher(node, offer);
            }
            Some(number)
        });
        match published {
            Some(number) => Ok(number),
            None => self.publish_slowly(PublishedBody::Short(sample), timeout),
        }
    }

    #[inline(never)]
    fn publish_long(&self, sample: &[u8], timeout: Option<Duration>) -> Result<u64, PublishError> {
        if self.lender.pool.is_none() {
            let (length, max) = (sample.len(), self.short_bytes_max);
            let limit = "PublishConfig::short_bytes_max, without a pool (sample_bytes_max)";
            return Err(PublishError::TooLong { length, max, limit });
        }
        let mut loan = self.loan(sample.len())?;
        loan.copy_from_slice(sample);
        self.publish_loan(loan, timeout).map_err(|unpublished| unpublished.error)
    }

    /// [`publish`](Self::publish) without waiting: `None` if it would have to wait, and then
    /// nothing was published.
    ///
    /// ```
    /// # let dir = std::env::temp_dir().join(format!("hamlyn-doc-try-publish-{}", std::process::id()));
    /// use hamlyn::protocol::{Manager, PublishConfig, Publisher, SubscribeConfig, Subscriber};
    /// use hamlyn::protocol::WhenSlow;
    /// # use std::time::Duration;
    ///
    /// # let limit = Some(Duration::from_secs(10));
    /// # let config = hamlyn::Config::from_env()?.dir(&dir);
    /// # let manager = Manager::with_config(config.clone())?;
    /// # manager.start_progress()?;
    /// let settings = PublishConfig { when_slow: WhenSlow::Wait, ..PublishConfig::default() };
    /// let publisher = Publisher::new(&manager, settings)?;
    /// let seed = publisher.seed()?;
    /// publisher.set_admission(|peer| peer.is_proved.then_some(()).ok_or("who are you?".into()));
    /// let other = Manager::with_config(config)?;
    /// let mut subscriber = Subscriber::grow(&other, &seed, SubscribeConfig::default(), limit)?;
    /// publisher.stop_serving(); // No more of them.
    /// // Until a sample would have to wait for a slow subscriber.
    /// while publisher.try_publish(b"tick")?.is_some() {}
    /// assert_eq!(subscriber.receive(limit)?.number(), 0);
    /// let _everything_has_left = publisher.try_flush()?;
    /// // No subscriber has missed a sample, been too slow or broken the rules.
    /// assert_eq!((publisher.dropped(), publisher.sent_away(), publisher.misbehaved()), (0, 0, 0));
    /// println!("{}", publisher.connections()[0].explain(&manager));
    /// # std::fs::remove_dir_all(&dir).ok();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn try_publish(&self, sample: &[u8]) -> Result<Option<u64>, PublishError> {
        PublishError::unless_timed_out(self.publish(sample, Some(Duration::ZERO)))
    }

    /// A sample of `length` bytes of the pool, to be written in place. Never waits: there is a
    /// place for each of the [`loans_max`](PublishConfig::loans_max) loans, no matter what
    /// subscribers hold.
    pub fn loan(&self, length: usize) -> Result<Loan, PublishError> {
        if self.manager.is_forked() {
            return Err(Forked.into());
        }
        self.lender.lend(length)
    }

    /// [`publish`](Self::publish) of a loan: its bytes stay in place, and one packet announces them
    /// to each subscriber. On an error the loan comes back.
    pub fn publish_loan(
        &self,
        loan: Loan,
        timeout: Option<Duration>,
    ) -> Result<u64, Box<Unpublished>> {
        let is_own = self.lender.pool.as_ref().is_some_and(|pool| loan.place.is_of(pool));
        let published = match is_own {
            true => {
                let body = PublishedBody::Pool { place: &loan.place, length: loan.length as u64 };
                self.publish_slowly(body, timeout)
            }
            false => Err(PublishError::Foreign),
        };
        published.map_err(|error| Box::new(Unpublished { loan, error }))
    }

    #[inline(never)]
    fn publish_slowly(
        &self,
        body: PublishedBody<'_>,
        timeout: Option<Duration>,
    ) -> Result<u64, PublishError> {
        // The link's pages are missing in the child, and nothing else would show it.
        if self.manager.is_forked() {
            return Err(Forked.into());
        }
        let offer = self.offer;
        let is_pool = matches!(body, PublishedBody::Pool { .. });
        let mut waited = false;
        let mut is_first = true;
        let published = self.manager.shared.wait_until(timeout, |node, protocols| {
            // A thread that only publishes must see the taken counts of subscribers before they
            // miss anything.
            if core::mem::take(&mut is_first)
                && protocols.publisher(offer).is_some_and(|state| state.lacks_room(node, is_pool))
                && node.poll().is_ok()
            {
                protocols.after_poll(node);
            }
            match publish_now(node, protocols, offer, body) {
                Ok(number) => Look::Found(number),
                Err(no_room) => {
                    waited = true;
                    if let Some(state) = protocols.publisher(offer) {
                        state.show_waits(node, Some(is_pool));
                    }
                    no_room.look()
                }
            }
        });
        // A caller that does not wait in a call tries again.
        if waited && (published.is_ok() || timeout != Some(Duration::ZERO)) {
            let mut guard = self.manager.shared.lock();
            let (node, protocols) = guard.parts();
            if let Some(state) = protocols.publisher(offer) {
                state.show_waits(node, None);
            }
        }
        Ok(published?)
    }

    /// Waits, at most `timeout`, until every subscriber has been sent all samples that are kept for
    /// it. Subscribers receive sent short samples even if this process ends; subscribers of another
    /// host do unless it is killed before the network has taken the samples. Samples of the pool
    /// can be read only while this process lives: see [`drain`](Self::drain).
    pub fn flush(&self, timeout: Option<Duration>) -> Result<(), PublishError> {
        let offer = self.offer;
        Ok(self.manager.shared.wait_until(timeout, |node, protocols| {
            protocols.take_events(node);
            protocols.advance_publisher(node, offer);
            match protocols.publisher(offer).and_then(|state| state.waits_for()) {
                None => Look::Found(()),
                Some(no_room) => no_room.look(),
            }
        })?)
    }

    /// [`flush`](Self::flush) without waiting; returns whether everything has been sent.
    pub fn try_flush(&self) -> Result<bool, PublishError> {
        Ok(PublishError::unless_timed_out(self.flush(Some(Duration::ZERO)))?.is_some())
    }

    /// [`flush`](Self::flush), and waits until subscribers have released every sample of the pool.
    /// Call it before you drop the publisher, since the pool goes with it. A subscriber that keeps
    /// a sample makes this wait for the whole `timeout`. The publisher keeps its names, and new
    /// subscribers may come, until it is dropped or [gives the names up](Self::stop_serving).
    pub fn drain(&self, timeout: Option<Duration>) -> Result<(), PublishError> {
        let offer = self.offer;
        Ok(self.manager.shared.wait_until(timeout, |node, protocols| {
            protocols.take_events(node);
            protocols.advance_publisher(node, offer);
            let Some(state) = protocols.publisher(offer) else { return Look::Found(()) };
            match state.waits_for() {
                None if state.states(node).iter().any(|state| state.outstanding > 0) => {
                    Look::Nothing
                }
                None => Look::Found(()),
                Some(no_room) => no_room.look(),
            }
        })?)
    }

    fn with_state<R>(&self, look: impl FnOnce(&Node, &mut PublisherState) -> R) -> R {
        let mut guard = self.manager.shared.lock();
        let (node, protocols) = guard.parts();
        // A thread that only looks sees new and departed subscribers.
        if node.may_be_told() && node.poll().is_ok() {
            protocols.after_poll(node);
        }
        look(node, protocols.publisher(self.offer).expect("as long as its end point"))
    }

    /// Sets the number of the next sample, unless that many were published already; the numbers
    /// between are left out, and the next sample tells subscribers so.
    pub(super) fn skip_to(&self, number: u64) {
        self.with_state(|_, state| state.skip_to(number));
    }

    pub(super) fn short_bytes_max(&self) -> usize {
        self.short_bytes_max
    }

    /// Longest sample.
    pub(super) fn bytes_max(&self) -> usize {
        self.short_bytes_max.max(self.lender.sample_bytes_max)
    }

    pub(super) fn lender(&self) -> Lender {
        self.lender.clone()
    }

    /// Ends all its connections and gives up its names. Subscribers get the samples that were sent
    /// to them, and see [`CloseReason::HungUp`](crate::node::CloseReason::HungUp): there may be
    /// more.
    pub(super) fn hang_up(&self) {
        if self.manager.is_forked() {
            return;
        }
        self.stop_serving();
        let mut guard = self.manager.shared.lock();
        let (node, protocols) = guard.parts();
        protocols.take_events(node);
        protocols.advance_publisher(node, self.offer);
        protocols.hang_up(node, self.offer);
    }

    /// Its subscribers, and the progress of each.
    pub fn subscribers(&self) -> Vec<SubscriberState> {
        self.with_state(|node, state| state.states(node))
    }

    /// Samples that were published so far.
    pub fn published(&self) -> u64 {
        self.with_state(|_, state| state.published())
    }

    /// Samples that subscribers did not get because they were slow, those that have gone included.
    pub fn dropped(&self) -> u64 {
        self.with_state(|node, state| {
            let here: u64 = state.states(node).iter().map(|subscriber| subscriber.dropped).sum();
            state.dropped + here
        })
    }

    /// Subscribers whose link was ended because they were too slow
    /// ([`WhenSlow::SendAway`](super::WhenSlow::SendAway)), or cannot have the samples.
    pub fn sent_away(&self) -> u64 {
        self.with_state(|_, state| state.sent_away)
    }

    /// Subscribers whose link was ended because they broke the rules.
    pub fn misbehaved(&self) -> u64 {
        self.with_state(|_, state| state.misbehaved)
    }
}

/// The places that were known have been used: there may be more by now, or after a turn, since
/// subscribers report them in messages.
#[cold]
#[inline(never)]
fn publish_in_new_places(
    node: &mut Node,
    protocols: &mut Protocols,
    offer: OfferId,
    sample: &[u8],
) -> Option<(u64, bool)> {
    if !protocols.publisher(offer)?.count_places(node) {
        node.poll().ok()?;
        protocols.after_poll(node);
    }
    let state = protocols.publisher(offer)?;
    if state.count_places(node) { state.publish_at_once(node, sample) } else { None }
}

#[inline]
fn publish_now(
    node: &mut Node,
    protocols: &mut Protocols,
    offer: OfferId,
    body: PublishedBody<'_>,
) -> Result<u64, NoRoom> {
    // A forked child and a publisher that is gone have no state, or no node.
    let Some(state) = protocols.publisher(offer) else { return Err(NoRoom::InMemory) };
    let published = state.publish(node, body);
    protocols.settle(node, offer);
    published
}

impl NoRoom {
    fn look<R>(self) -> Look<R> {
        match self {
            Self::InMemory => Look::Nothing,
            Self::InLink(link) => Look::Room(link),
        }
    }
}

impl EndPoint for Publisher {
    /// Never: a publisher receives nothing.
    fn is_ready_in(&self, _: &Node) -> bool {
        false
    }

    fn manager(&self) -> &Manager {
        &self.manager
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        if self.manager.is_forked() {
            return;
        }
        {
            let mut guard = self.manager.shared.lock();
            let (node, protocols) = guard.parts();
            protocols.take_events(node);
            protocols.advance_publisher(node, self.offer);
            let behind = protocols.publisher(self.offer).map(|state| state.behind());
            for link in behind.into_iter().flatten() {
                let why =
                    "the publisher went before it had sent it everything, or had left out the last";
                protocols.send_away_slow(node, link, why);
            }
        }
        if let Some(Offering::Publisher(mut state)) = self.manager.withdraw(self.offer) {
            state.remove_all(&mut self.manager.lock());
        }
    }
}
