//! A relay: subscribes once to a publisher, most often one of another host, and publishes its
//! samples anew on its own host.
//!
//! ```text
//!   publisher --one link--> Subscriber --pass_on--> Publisher --a link each--> subscribers of this host
//!                n            parts are put together         n + offset
//!                             in a loan of the pool
//! ```
//! Samples keep their numbers, and a sample missing here is missing downstream: a relay skips the
//! numbers of samples that it did not get. When its connection ends it connects again, asks for the
//! newest samples that the publisher keeps, and passes on the new ones. A different publisher under
//! the name (`Answer::publisher` is a different number) counts from 0: `offset` is then chosen so
//! that at least one number is left out, and numbers go on growing.
//!
//! Never: a number is published twice, or one that is less than the last; subscribers see `Closed`
//! unless the publisher has closed.

use super::publisher::{Loan, PublishError, Publisher};
use super::sample::Sample;
use super::{PublishConfig, SubscribeConfig, Subscriber, SubscriberState};
use crate::node::{CloseReason, Forked, Look, Node, WaitError};
use crate::protocol::deadline::Deadline;
use crate::protocol::ends::offered;
use crate::protocol::reconnect::Outages;
use crate::protocol::{
    ConnectionState, EndPoint, GrowError, Manager, ReceiveError, ReconnectPolicy,
};
use core::time::Duration;
use std::format;
use std::io;
use std::string::{String, ToString};
use std::sync::Arc;
use std::time::Instant;
use std::vec::Vec;

/// Configuration of a [`Relay`].
#[derive(Clone, Debug)]
pub struct RelayConfig {
    /// For its own subscribers. If the publisher's samples may be longer than
    /// [`short_bytes_max`](PublishConfig::short_bytes_max) and
    /// [`sample_bytes_max`](PublishConfig::sample_bytes_max) say, these become the publisher's.
    pub publish: PublishConfig,
    /// For the connection to the publisher. Its `depth` is 2,048 unless set: some 4 MiB, for long
    /// samples that are on their way at once. Its `sample_bytes_max` holds for publishers of this
    /// host, too: it is the most that a place of the relay's pool may have.
    pub subscribe: SubscribeConfig,
    /// The reconnection policy; `calls_wait` has no effect here.
    pub reconnect: ReconnectPolicy,
    /// Whether the relay ends when the publisher closes ([`CloseReason::Closed`]), which is the
    /// default; otherwise it waits for the next publisher under the name.
    pub until_closed: bool,
}

impl Default for RelayConfig {
    fn default() -> Self {
        Self {
            publish: PublishConfig::default(),
            subscribe: SubscribeConfig { depth: 2048, ..SubscribeConfig::default() },
            reconnect: ReconnectPolicy::default(),
            until_closed: true,
        }
    }
}

/// A sample that was not passed on.
#[derive(Debug, thiserror::Error)]
#[cfg_attr(not(feature = "unstable-internals"), non_exhaustive)]
pub enum RelayError {
    /// The time limit has passed: no sample came, or there is no connection now, or a subscriber
    /// with [`Wait`](super::WhenSlow::Wait) has made no room. No sample is lost by it.
    #[error(
        "the time was up: no sample came, or a subscriber for which the relay waits had made no room"
    )]
    TimedOut,
    /// The publisher has closed ([`CloseReason::Closed`]); with [`CloseReason::HungUp`] it has
    /// closed, and its last samples could no longer be read. Later calls give the same.
    #[error("the publisher has ended: {0}")]
    Ended(CloseReason),
    /// The policy allows no more attempts to connect. Later calls give the same.
    #[error("there is no connection to the publisher, and no more is tried: {0}")]
    GivenUp(String),
    /// The calling process is a forked child.
    #[error(transparent)]
    Forked(#[from] Forked),
    /// Waiting failed.
    #[error("waiting failed: {0}")]
    Wait(Arc<io::Error>),
}

/// More samples than a publisher can publish, so that numbers here never run out. Samples with
/// larger numbers are left out.
const NUMBER_MAX: u64 = 1 << 63;

/// A sample that has no room yet.
enum WaitingSample {
    Sample(Sample),
    Loan(Loan),
}

/// Passes on one publisher's samples to any number of subscribers of its own host, in one place
/// that they all read: so each sample comes over the network once. `Send`.
///
/// Subscribers trust a relay as they trust a publisher: it can change samples, invent them and
/// leave them out. A subscriber can do no more to a relay than to any publisher. A slow subscriber
/// holds up neither the others nor the publisher, unless [`when_slow`](PublishConfig::when_slow) is
/// [`Wait`](super::WhenSlow::Wait).
///
/// ```
/// # let dir = std::env::temp_dir().join(format!("hamlyn-doc-relay-{}", std::process::id()));
/// # let config = hamlyn::Config::from_env()?.dir(&dir);
/// use hamlyn::Access;
/// use hamlyn::protocol::{
///     Manager, PublishConfig, Publisher, Relay, RelayConfig, RelayError, SubscribeConfig, Subscriber,
/// };
/// use std::time::Duration;
///
/// let limit = Some(Duration::from_secs(10));
/// # let there = Manager::with_config(config.clone())?;
/// # there.start_progress()?;
/// # let publisher = Publisher::new(&there, PublishConfig { history: 1, ..Default::default() })?;
/// # publisher.serve("prices", Access::SameUser)?;
/// # publisher.publish(b"7.20", limit)?;
/// # let manager = Manager::with_config(config.clone())?;
/// // On another host the publisher's name is hamlyn://HOST:PORT/prices.
/// let mut relay = Relay::connect(&manager, "prices", RelayConfig::default(), limit)?;
/// relay.set_admission(|peer| peer.is_proved.then_some(()).ok_or("who are you?".into()));
/// relay.serve("local-prices", Access::SameUser)?;
/// println!("for whoever is given it: {}", relay.seed()?);
/// # let subscribing = std::thread::spawn(move || {
/// #     let here = Manager::with_config(config).unwrap();
/// #     let config = SubscribeConfig::default();
/// #     let mut prices = Subscriber::connect(&here, "local-prices", config, limit).unwrap();
/// #     prices.receive(limit).unwrap().to_vec().unwrap()
/// # });
/// # while relay.subscribers().is_empty() {}
/// // Until the publisher ends.
/// while let Ok(number) = relay.pass_on(limit) {
///     println!("sample {number}, {} left out so far: {:?}", relay.missed(), relay.state());
///     # publisher.flush(limit)?;
///     # if number == 0 { break }
/// }
/// relay.stop_serving();
/// relay.drain(limit)?;
/// # assert_eq!(subscribing.join().unwrap(), b"7.20");
/// # drop(publisher);
/// # assert!(matches!(relay.pass_on(limit), Err(RelayError::Ended(_))));
/// # std::fs::remove_dir_all(&dir).ok();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Dropped after [`RelayError::Ended`], it ends as its publisher did. Otherwise its subscribers see
/// [`CloseReason::HungUp`]: the publisher has not closed.
pub struct Relay {
    manager: Manager,
    name: String,
    subscribe: SubscribeConfig,
    until_closed: bool,
    publisher: Publisher,
    upstream: Option<Upstream>,
    outages: Outages,
    /// Of its current publisher, or its last one.
    publisher_id: u64,
    /// Added to its numbers.
    offset: u64,
    /// The number of the next sample here, if no sample is left out.
    next: u64,
    missed: u64,
    waiting: Option<(u64, WaitingSample)>,
    ended: Option<CloseReason>,
    /// The sample behind the last published one could no longer be read.
    is_cut_off: bool,
}

/// A connection to the publisher.
struct Upstream {
    subscriber: Subscriber,
    has_passed: bool,
}

impl Relay {
    /// Subscribes to the publisher that is served as `[user@]name`, or `hamlyn://..`, within
    /// `timeout`; from then on it connects again by itself. It cannot be found before it is
    /// [served](Self::serve). Its pool has places as long as the publisher's samples may be, and is
    /// charged to this process now: [`PublishConfig::pool_bytes`]. On an error nothing is left of
    /// it.
    pub fn connect(
        manager: &Manager,
        name: &str,
        config: RelayConfig,
        timeout: Option<Duration>,
    ) -> Result<Self, GrowError> {
        let RelayConfig { mut publish, subscribe, reconnect, until_closed } = config;
        let subscriber = Subscriber::connect(manager, name, subscribe.clone(), timeout)?;
        let (short, long) = subscriber.bytes_max();
        // A publisher of another host was asked already; a place is a multiple of a line.
        let most = subscribe.sample_bytes_max;
        if long > most.saturating_add(63) {
            return Err(GrowError::SetUp(format!(
                "samples there may have {long} bytes, and this side takes {most} of one \
                 (SubscribeConfig::sample_bytes_max)"
            )));
        }
        publish.short_bytes_max = publish.short_bytes_max.max(short);
        publish.sample_bytes_max = publish.sample_bytes_max.max(long);
        // One is filled while another waits for room.
        publish.loans_max = publish.loans_max.max(2);
        let publisher = Publisher::new(manager, publish)?;
        let (publisher_id, next) = (subscriber.publisher_id(), subscriber.next());
        publisher.skip_to(next);
        let mut relay = Self {
            manager: manager.clone(),
            name: name.into(),
            subscribe,
            until_closed,
            publisher,
            upstream: None,
            outages: Outages::new(reconnect, Instant::now()),
            publisher_id,
            offset: 0,
            next,
            missed: 0,
            waiting: None,
            ended: None,
            is_cut_off: false,
        };
        relay.has_connected(subscriber);
        Ok(relay)
    }

    offered!("a [`Subscriber`](crate::protocol::Subscriber)", publisher);

    /// Passes on the next sample and returns its number here. Waits at most `timeout` for the
    /// sample and for room. While there is no connection it connects again, as the policy says; an
    /// attempt that has begun takes its own time
    /// ([`attempt_limit`](ReconnectPolicy::attempt_limit)), beyond `timeout` if need be. Calls of
    /// this function, or of any other end point of the manager, let in new subscribers and send
    /// samples to those that are behind.
    pub fn pass_on(&mut self, timeout: Option<Duration>) -> Result<u64, RelayError> {
        let deadline = Deadline::new(timeout);
        loop {
            if let Some(reason) = &self.ended {
                return Err(RelayError::Ended(reason.clone()));
            }
            if let Some((number, waiting)) = self.waiting.take() {
                if self.publish(number, waiting, deadline.left())? {
                    return Ok(number);
                }
                self.is_cut_off = true;
                if deadline.left().is_some_and(|left| left.is_zero()) {
                    return Err(RelayError::TimedOut);
                }
            }
            let Some(Upstream { subscriber, has_passed }) = &mut self.upstream else {
                self.connect_again(deadline)?;
                continue;
            };
            let lost = match subscriber.receive(deadline.left()) {
                Ok(sample) => {
                    let number = sample.number().wrapping_add(self.offset);
                    // Numbers below `next` were passed on before the connection ended.
                    if (self.next..NUMBER_MAX).contains(&number) {
                        *has_passed = true;
                        self.waiting = Some((number, WaitingSample::of(sample)));
                    } else if self.next >= NUMBER_MAX - 1 {
                        self.has_no_more_numbers();
                    } else if deadline.left().is_some_and(|left| left.is_zero()) {
                        // Such samples may come without end.
                        return Err(RelayError::TimedOut);
                    }
                    continue;
                }
                Err(ReceiveError::TimedOut) => return Err(RelayError::TimedOut),
                Err(ReceiveError::Ended(CloseReason::Closed)) if self.until_closed => {
                    let is_whole = !self.is_cut_off;
                    self.missed = self.missed.saturating_add(self.is_cut_off.into());
                    let (all, part) = (CloseReason::Closed, CloseReason::HungUp);
                    self.ended = Some(if is_whole { all } else { part });
                    self.upstream = None;
                    continue;
                }
                Err(ReceiveError::Forked(e)) => return Err(e.into()),
                Err(ReceiveError::Wait(e)) => return Err(RelayError::Wait(e)),
                Err(error) => error.to_string(),
            };
            self.outages.is_lost(lost, *has_passed, Instant::now());
            self.upstream = None;
        }
    }

    /// Whether it was published; `false`: its bytes are gone, or it is longer than a place.
    fn publish(
        &mut self,
        number: u64,
        waiting: WaitingSample,
        timeout: Option<Duration>,
    ) -> Result<bool, RelayError> {
        self.publisher.skip_to(number);
        let loan = match waiting {
            WaitingSample::Loan(loan) => loan,
            WaitingSample::Sample(sample) => match sample.as_slice() {
                Some(bytes) if bytes.len() <= self.publisher.short_bytes_max() => {
                    let published = self.publisher.publish(bytes, timeout).map(|_| ());
                    return self.has_published(number, WaitingSample::Sample(sample), published);
                }
                _ => {
                    // In the pool of a publisher of this host, or short but too long for a packet
                    // here.
                    let Ok(mut loan) = self.publisher.loan(sample.len()) else { return Ok(false) };
                    if sample.copy_to(&mut loan).is_err() {
                        return Ok(false);
                    }
                    loan
                }
            },
        };
        match self.publisher.publish_loan(loan, timeout) {
            Ok(_) => self.count(number),
            Err(e) => {
                let super::Unpublished { loan, error } = *e;
                return self.has_published(number, WaitingSample::Loan(loan), Err(error));
            }
        }
        Ok(true)
    }

    fn has_published(
        &mut self,
        number: u64,
        waiting: WaitingSample,
        published: Result<(), PublishError>,
    ) -> Result<bool, RelayError> {
        match published {
            Ok(()) => {
                self.count(number);
                Ok(true)
            }
            Err(PublishError::TimedOut) => {
                self.waiting = Some((number, waiting));
                Err(RelayError::TimedOut)
            }
            Err(PublishError::Forked(e)) => Err(e.into()),
            Err(PublishError::Wait(e)) => Err(RelayError::Wait(e)),
            Err(_) => Ok(false),
        }
    }

    fn count(&mut self, number: u64) {
        self.missed = self.missed.saturating_add(number - self.next);
        self.next = number + 1;
        self.is_cut_off = false;
    }

    /// One attempt, or the pause before it.
    fn connect_again(&mut self, deadline: Deadline) -> Result<(), RelayError> {
        let Some(at) = self.outages.next_attempt(Instant::now()) else {
            let why = self.outages.state().why().into();
            return Err(RelayError::GivenUp(why));
        };
        let pause = at.saturating_duration_since(Instant::now());
        if !pause.is_zero() {
            let left = deadline.left();
            let is_last = left.is_some_and(|left| left < pause);
            let pause = left.map_or(pause, |left| left.min(pause));
            // Subscribers are served meanwhile.
            let waited = self.manager.shared.wait_until(Some(pause), |_, _| Look::<()>::Nothing);
            return match waited {
                Err(WaitError::TimedOut) if is_last => Err(RelayError::TimedOut),
                Ok(()) | Err(WaitError::TimedOut) => Ok(()),
                Err(WaitError::Forked(e)) => Err(e.into()),
                Err(WaitError::Os(e)) => Err(RelayError::Wait(Arc::new(e))),
            };
        }
        self.outages.begins();
        let limit = Some(self.outages.policy().attempt_limit);
        match Subscriber::connect(&self.manager, &self.name, self.subscribe.clone(), limit) {
            Ok(subscriber) => self.is_another(subscriber),
            Err(GrowError::Forked(e)) => return Err(e.into()),
            Err(error) => self.outages.has_failed(error.to_string()),
        }
        Ok(())
    }

    /// It has a connection again, to the same publisher or to a different one.
    fn is_another(&mut self, subscriber: Subscriber) {
        let (short, long) = subscriber.bytes_max();
        let (bytes, max) = (short.max(long), self.publisher.bytes_max());
        if bytes > max {
            self.outages.give_up(format!(
                "the publisher that is there now has samples of up to {bytes} bytes, and the pool here is \
                 for {max} (PublishConfig::sample_bytes_max): start the relay anew"
            ));
            return;
        }
        if self.next >= NUMBER_MAX - 1 {
            return self.has_no_more_numbers();
        }
        let (id, first) = (subscriber.publisher_id(), subscriber.next());
        if id != self.publisher_id {
            self.publisher_id = id;
            // The number of missing samples is unknown: subscribers hear of at least one.
            self.offset = (self.next + 1).wrapping_sub(first);
        }
        self.outages.has_connected(Instant::now());
        self.has_connected(subscriber);
    }

    /// Ends the relay, and gives the caller an error.
    fn has_no_more_numbers(&mut self) {
        self.upstream = None;
        self.outages.give_up("its samples have no more numbers here: start the relay anew".into());
    }

    fn has_connected(&mut self, mut subscriber: Subscriber) {
        subscriber.gather_into(self.publisher.lender());
        self.upstream = Some(Upstream { subscriber, has_passed: false });
    }

    /// The state of its connection, as the last [`pass_on`](Self::pass_on) left it.
    pub fn state(&self) -> ConnectionState {
        self.outages.state().clone()
    }

    /// Samples that were left out between those that were passed on, because the relay was slow for
    /// its publisher or had no connection; at least one for each change of publisher.
    pub fn missed(&self) -> u64 {
        self.missed
    }

    /// Its subscribers, and the progress of each.
    pub fn subscribers(&self) -> Vec<SubscriberState> {
        self.publisher.subscribers()
    }

    /// Waits, at most `timeout`, until every subscriber has been sent all samples that are kept for
    /// it and has released them. Call it before you drop the relay, as with [`Publisher::drain`].
    pub fn drain(&self, timeout: Option<Duration>) -> Result<(), PublishError> {
        self.publisher.drain(timeout)
    }
}

impl WaitingSample {
    fn of(sample: Sample) -> Self {
        match sample.into_loan() {
            Ok(loan) => Self::Loan(loan),
            Err(sample) => Self::Sample(sample),
        }
    }
}

impl EndPoint for Relay {
    /// Whether [`Relay::pass_on`] has something to do: a sample to pass on, including one that
    /// waits for a slow subscriber and needs a time limit; or, without a connection, an attempt to
    /// be made.
    fn is_ready_in(&self, node: &Node) -> bool {
        let is_ready = match &self.upstream {
            Some(upstream) => upstream.subscriber.is_ready_in(node),
            None => self.due().is_none_or(|at| at <= Instant::now()),
        };
        self.waiting.is_some() || is_ready
    }

    fn due(&self) -> Option<Instant> {
        self.outages.due().filter(|_| self.upstream.is_none())
    }

    fn manager(&self) -> &Manager {
        &self.manager
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        // The publisher goes then, and the remaining subscribers see `Closed`.
        if self.ended != Some(CloseReason::Closed) {
            self.publisher.hang_up();
        }
    }
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::control::Access;

    const LIMIT: Option<Duration> = Some(Duration::from_secs(40));

    #[test]
    fn where_a_publisher_has_no_more_numbers_whoever_passes_on_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let manager = || Manager::with_config(Config::default().dir(dir.path())).unwrap();
        let (there, here) = (manager(), manager());
        there.start_progress().unwrap();
        let publisher = Publisher::new(&there, PublishConfig::default()).unwrap();
        publisher.serve("news", Access::SameUser).unwrap();
        let mut relay = Relay::connect(&here, "news", RelayConfig::default(), LIMIT).unwrap();
        publisher.skip_to(NUMBER_MAX - 1);
        publisher.publish(b"last", LIMIT).unwrap();
        assert_eq!(relay.pass_on(LIMIT).unwrap(), NUMBER_MAX - 1);
        publisher.publish(b"beyond", LIMIT).unwrap();
        let error = relay.pass_on(LIMIT).unwrap_err();
        assert!(matches!(error, RelayError::GivenUp(_)), "{error}");
        assert!(error.to_string().contains("no more numbers"), "{error}");
    }
}
