//! Publish and subscribe: samples from one publisher to many subscribers.

use crate::boundary::{
    Done, Failure, bytes, bytes_out, elements_out, get, guard, h_status, h_status::*, limit, out,
    out_or_null, put,
};
use crate::common::{closed, connected, grown, offered};
use crate::endpoint::{End, One, full, give, handles};
use crate::links::h_peer_t;
use crate::node::h_node_t;
use core::ffi::c_void;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use hamlyn::os::memory::ForkGuard;
use hamlyn::protocol::{
    Exclusive, Loan, PublishConfig, PublishError, Publisher, RecordBytes, Sample, SubscribeConfig,
    Subscriber, SubscriberState, WhenSlow,
};
use std::sync::{Arc, Mutex, PoisonError};

/// Publishes samples. Any number of threads may publish at once.
pub struct h_publisher_t(End<Arc<Publisher>>);

/// Receives the samples of one publisher.
pub struct h_subscriber_t(pub(crate) One<Subscriber>);

handles!(h_publisher_t: Arc<Publisher>, h_subscriber_t: Exclusive<Subscriber>);

/// A sample of the publisher's pool that has yet to be published, to be written in place.
pub struct h_loan_t {
    /// `None` only while it is being published.
    loan: Mutex<Option<Loan>>,
    /// The address of its bytes, which stay there.
    data: AtomicPtr<u8>,
    length: AtomicUsize,
    fork: Arc<ForkGuard>,
}

/// A sample that has arrived, to be freed with h_sample_free.
pub struct h_sample_t {
    sample: Sample,
    fork: Arc<ForkGuard>,
}

/// The policy for a subscriber that does not keep up, from the costliest for the publisher to the
/// cheapest.
#[repr(C)]
pub enum h_when_slow {
    /// h_publisher_publish waits for it, within its time limit: for subscribers that are trusted to
    /// keep up.
    H_WHEN_SLOW_WAIT = 1,
    /// It misses the oldest samples that it has yet to be sent.
    H_WHEN_SLOW_DROP_OLDEST = 2,
    /// It misses each sample for which it has no room when that is published.
    H_WHEN_SLOW_DROP_NEWEST = 3,
    /// It is disconnected (H_HUNG_UP) when it would miss a sample. Samples of the pool that it
    /// still has may be overwritten by then.
    H_WHEN_SLOW_SEND_AWAY = 4,
}

/// For h_subscribe_config_t::history: no samples that were published before.
pub const H_HISTORY_NONE: u32 = 0xffff_ffff;

/// Configuration of a publisher; 0 for the default in brackets.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct h_publish_config_t {
    /// Most bytes of a sample that is copied to each subscriber; longer ones go into the pool
    /// (1,024; at most 2,032).
    pub short_bytes_max: usize,
    /// Most bytes of a sample in the pool, all of which every subscriber can read at any time, also
    /// loans that have yet to be published (no pool). The pool's memory is made at once: a place for
    /// each loan, each sample that is kept and each that subscribers may have.
    pub sample_bytes_max: usize,
    /// Samples of the pool that may be on loan at once (2).
    pub loans_max: u32,
    /// The newest samples, kept for subscribers that have no room now (16).
    pub backlog: u32,
    /// The newest samples that a new subscriber may ask for (none).
    pub history: u32,
    /// Samples of the pool that a subscriber may have at once, at most 64 (4).
    pub outstanding_max: u32,
    /// Subscribers at one time (16).
    pub subscribers_max: u32,
    /// An h_when_slow, for subscribers that do not ask for a cheaper policy
    /// (H_WHEN_SLOW_DROP_OLDEST).
    pub when_slow: u32,
}

/// Configuration of a subscriber, and its requests to the publisher; 0 for the default in brackets.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct h_subscribe_config_t {
    /// Samples in its own memory that wait to be received, some 2 KiB each (64; at most 32,768).
    pub depth: u32,
    /// An h_when_slow: the publisher's policy, or one that is cheaper for the publisher; the
    /// publisher refuses any other (the publisher's).
    pub when_slow: u32,
    /// The number of newest samples published before that come first, at most the publisher's
    /// history; H_HISTORY_NONE: none (the publisher's history).
    pub history: u32,
    /// Samples of the pool that it has at once, at most the publisher's outstanding_max (that
    /// number).
    pub outstanding: u32,
}

/// The counts of a publisher.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct h_publisher_counts_t {
    /// Samples that were published.
    pub published: u64,
    /// Samples that subscribers did not get because they were slow.
    pub dropped: u64,
    /// Subscribers that were disconnected because they were too slow, or cannot receive the
    /// samples.
    pub sent_away: u64,
    /// Subscribers that were disconnected because they broke the rules.
    pub misbehaved: u64,
    /// Present subscribers.
    pub subscribers: usize,
}

/// A publisher's view of one subscriber.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct h_subscriber_state_t {
    /// Its identity, from the kernel.
    pub peer: h_peer_t,
    /// An h_when_slow: the policy for samples for which it has no room.
    pub when_slow: u32,
    /// Whether it can be sent samples: it has mapped the pool, if there is one.
    pub is_served: bool,
    /// Samples that were sent to it.
    pub sent: u64,
    /// Messages in its own memory that it had not taken, by its last report.
    pub untaken: u64,
    /// Samples of the pool that were announced to it and that it has not released.
    pub outstanding: u32,
    /// Kept samples that it has yet to be sent.
    pub behind: u64,
    /// Samples that it will not get, because it was slow.
    pub dropped: u64,
}

/// A description of a sample.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct h_sample_info_t {
    /// The number of samples published before it, to any subscriber.
    pub number: u64,
    /// The number of samples left out between this subscriber's previous one and this one.
    pub missed: u64,
    /// Its bytes, which are stable until it is freed; null if it is volatile.
    pub data: *const c_void,
    /// The number of its bytes.
    pub length: usize,
    /// Whether it lies in the publisher's pool, where the publisher can change it at any time; then
    /// copy the bytes that you need with h_sample_read, check the copy, and use only that.
    pub is_volatile: bool,
}

fn when_slow_of(when: u32) -> Done<Option<WhenSlow>> {
    Ok(Some(match when {
        0 => return Ok(None),
        1 => WhenSlow::Wait,
        2 => WhenSlow::DropOldest,
        3 => WhenSlow::DropNewest,
        4 => WhenSlow::SendAway,
        n => {
            let text = format!("when_slow is {n}, and must be 0 or an h_when_slow");
            return Err(Failure::invalid(text));
        }
    }))
}

fn set<T: Default + PartialEq>(place: &mut T, value: T) {
    if value != T::default() {
        *place = value;
    }
}

/// Makes a publisher without subscribers; `config` may be null. To be freed with h_publisher_close
/// or h_publisher_free.
///
/// Errors: H_INVALID, a when_slow that is none; H_LIMIT, a number is not allowed, or there is no
/// memory for the pool. Nothing is left.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_publisher_new(
    node: *mut h_node_t,
    config: *const h_publish_config_t,
    publisher: *mut *mut h_publisher_t,
) -> h_status {
    guard(|| {
        let (node, place) = (get(node, "node")?, out(publisher, "publisher")?);
        let mut wanted = PublishConfig::default();
        if !config.is_null() {
            let config = get(config, "config")?;
            set(&mut wanted.short_bytes_max, config.short_bytes_max);
            set(&mut wanted.sample_bytes_max, config.sample_bytes_max);
            set(&mut wanted.loans_max, config.loans_max);
            set(&mut wanted.backlog, config.backlog);
            set(&mut wanted.history, config.history);
            set(&mut wanted.outstanding_max, config.outstanding_max);
            set(&mut wanted.subscribers_max, config.subscribers_max);
            if let Some(when_slow) = when_slow_of(config.when_slow)? {
                wanted.when_slow = when_slow;
            }
        }
        let made = Arc::new(Publisher::new(node.manager()?, wanted)?);
        place.write(give(node, made)?);
        Ok(())
    })
}

offered! {
    publisher: h_publisher_t, of "a subscriber", "subscribers";
    h_publisher_seed, h_publisher_serve, h_publisher_stop_serving,
    h_publisher_set_admission, h_publisher_offer
}

/// The result of a call that may wait.
fn waited<T>(result: Result<T, PublishError>, timeout_ns: i64) -> Done<T> {
    match result {
        Err(PublishError::TimedOut) if timeout_ns == 0 => Err(full()),
        other => Ok(other?),
    }
}

/// Publishes a sample of `length` bytes; `number`, which may be null, gets the number of samples
/// published before it. A short sample is copied to each subscriber, a longer one once, into the
/// pool; it takes a loan for the duration of the call.
///
/// Waits, at most `timeout_ns`, only for subscribers of H_WHEN_SLOW_WAIT. Samples that subscribers
/// have yet to be sent leave in later calls with the node, or in its progress thread.
///
/// Errors, nothing was published: H_FULL, the time limit was 0; H_TIMED_OUT; H_TOO_LONG; H_LIMIT,
/// every loan is out; H_FORKED; H_SYSTEM.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_publisher_publish(
    publisher: *mut h_publisher_t,
    data: *const c_void,
    length: usize,
    timeout_ns: i64,
    number: *mut u64,
) -> h_status {
    guard(|| {
        let publisher = get(publisher, "publisher")?.0.shared()?;
        let data = bytes(data, length, "data")?;
        let number = out_or_null(number, "number")?;
        put(number, waited(publisher.publish(data, limit(timeout_ns)), timeout_ns)?);
        Ok(())
    })
}

/// Lends a sample of `length` bytes of the pool, to be written in place; never waits. Its bytes are
/// those of any earlier sample. To be published with h_publisher_publish_loan, or freed with
/// h_loan_free. One thread at a time may use a loan, which ends when it is published.
///
/// Errors: H_TOO_LONG, more than sample_bytes_max, or there is no pool; H_LIMIT, every loan is out.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_publisher_loan(
    publisher: *mut h_publisher_t,
    length: usize,
    loan: *mut *mut h_loan_t,
) -> h_status {
    guard(|| {
        let (end, place) = (&get(publisher, "publisher")?.0, out(loan, "loan")?);
        let mut loan = end.shared()?.loan(length)?;
        let data = AtomicPtr::new(loan.as_mut_ptr());
        let length = AtomicUsize::new(loan.len());
        let (loan, fork) = (Mutex::new(Some(loan)), end.fork().clone());
        place.write(Box::into_raw(Box::new(h_loan_t { loan, data, length, fork })));
        Ok(())
    })
}

/// The address of a loan's bytes, and their number; `length` may be null. The caller may write them
/// until the loan is published or freed, and must not touch them afterwards.
///
/// Errors: H_FORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_loan_data(
    loan: *mut h_loan_t,
    data: *mut *mut c_void,
    length: *mut usize,
) -> h_status {
    guard(|| {
        let (loan, data) = (get(loan, "loan")?, out(data, "data")?);
        let length = out_or_null(length, "length")?;
        if !loan.fork.is_parent() {
            return Err(hamlyn::node::Forked.into());
        }
        data.write(loan.data.load(Ordering::Relaxed).cast());
        put(length, loan.length.load(Ordering::Relaxed));
        Ok(())
    })
}

/// Shortens a loan's sample to at most `length` bytes.
///
/// Errors: H_FORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_loan_truncate(loan: *mut h_loan_t, length: usize) -> h_status {
    guard(|| {
        let loan = get(loan, "loan")?;
        if !loan.fork.is_parent() {
            return Err(hamlyn::node::Forked.into());
        }
        let mut held = loan.loan.lock().unwrap_or_else(PoisonError::into_inner);
        held.as_mut().ok_or_else(gone)?.truncate(length);
        loan.length.fetch_min(length, Ordering::Relaxed);
        Ok(())
    })
}

/// A bug of the program, noticed only if the other thread has not published the loan.
fn gone() -> Failure {
    Failure::new(H_STATE, "another thread publishes the loan")
}

/// Publishes a loan: its bytes stay in place, and each subscriber gets a message with their
/// position. Otherwise as h_publisher_publish. H_OK: the loan is freed, and the pointer to its
/// bytes is no longer valid. On an error it is as it was, and can be published again.
///
/// Errors: also H_INVALID, a loan of another publisher.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_publisher_publish_loan(
    publisher: *mut h_publisher_t,
    loan: *mut h_loan_t,
    timeout_ns: i64,
    number: *mut u64,
) -> h_status {
    guard(|| {
        let publisher = get(publisher, "publisher")?.0.shared()?;
        let number = out_or_null(number, "number")?;
        let held = get(loan, "loan")?;
        let locked = || held.loan.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = locked().take().ok_or_else(gone)?;
        match publisher.publish_loan(taken, limit(timeout_ns)) {
            Ok(published) => {
                drop(Box::from_raw(loan));
                put(number, published);
                Ok(())
            }
            Err(unpublished) => {
                *locked() = Some(unpublished.loan);
                waited(Err(unpublished.error), timeout_ns)
            }
        }
    })
}

/// Frees a loan that was not published. Null is allowed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_loan_free(loan: *mut h_loan_t) {
    guard(|| {
        if !loan.is_null() {
            get(loan, "loan")?;
            let loan = Box::from_raw(loan);
            if !loan.fork.is_parent() {
                core::mem::forget(loan);
            }
        }
        Ok(())
    });
}

/// Waits, at most `timeout_ns`, until every subscriber has been sent all samples that are kept for
/// it. Short samples then arrive even if this process ends; samples of the pool are readable only
/// while it runs: see h_publisher_drain.
///
/// Errors: H_FULL, the time limit was 0; H_TIMED_OUT; H_FORKED; H_SYSTEM.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_publisher_flush(
    publisher: *mut h_publisher_t,
    timeout_ns: i64,
) -> h_status {
    guard(|| {
        let publisher = get(publisher, "publisher")?.0.shared()?;
        waited(publisher.flush(limit(timeout_ns)), timeout_ns)
    })
}

/// h_publisher_flush, and waits until subscribers have released every sample of the pool: call it
/// before freeing the publisher, which frees the pool.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_publisher_drain(
    publisher: *mut h_publisher_t,
    timeout_ns: i64,
) -> h_status {
    guard(|| {
        let publisher = get(publisher, "publisher")?.0.shared()?;
        waited(publisher.drain(limit(timeout_ns)), timeout_ns)
    })
}

/// The publisher's counts.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_publisher_counts(
    publisher: *mut h_publisher_t,
    counts: *mut h_publisher_counts_t,
) -> h_status {
    guard(|| {
        let (publisher, place) = (get(publisher, "publisher")?, out(counts, "counts")?);
        let publisher = publisher.0.shared()?;
        place.write(h_publisher_counts_t {
            published: publisher.published(),
            dropped: publisher.dropped(),
            sent_away: publisher.sent_away(),
            misbehaved: publisher.misbehaved(),
            subscribers: publisher.subscribers().len(),
        });
        Ok(())
    })
}

impl From<&SubscriberState> for h_subscriber_state_t {
    fn from(state: &SubscriberState) -> Self {
        Self {
            peer: state.connection.peer().into(),
            when_slow: state.when_slow as u32,
            is_served: state.is_served,
            sent: state.sent,
            untaken: state.untaken,
            outstanding: state.outstanding,
            behind: state.behind,
            dropped: state.dropped,
        }
    }
}

/// The publisher's subscribers, and how each keeps up: all of them, or as many as `capacity` holds;
/// `count` gets the number that there are.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_publisher_subscribers(
    publisher: *mut h_publisher_t,
    states: *mut h_subscriber_state_t,
    capacity: usize,
    count: *mut usize,
) -> h_status {
    guard(|| {
        let (publisher, count) = (get(publisher, "publisher")?, out(count, "count")?);
        let states = elements_out(states, capacity, "states")?;
        let found = publisher.0.shared()?.subscribers();
        count.write(found.len());
        for (place, state) in states.iter_mut().zip(&found) {
            place.write(state.into());
        }
        Ok(())
    })
}

closed! {
    /// Its subscribers get a goodbye, but one that has yet to be sent a sample, or that missed the
    /// last, gets H_HUNG_UP: see h_publisher_flush. Its pool is freed: see h_publisher_drain. The
    /// caller still has to free the loans.
    publisher: h_publisher_t, "every queued message of the node";
    h_publisher_close, h_publisher_free
}

/// # Safety
/// As [`get`], or null.
unsafe fn subscribe_config(config: *const h_subscribe_config_t) -> Done<SubscribeConfig> {
    let mut wanted = SubscribeConfig::default();
    if !config.is_null() {
        let config = get(config, "config")?;
        set(&mut wanted.depth, config.depth);
        set(&mut wanted.outstanding, config.outstanding);
        wanted.when_slow = when_slow_of(config.when_slow)?;
        match config.history {
            0 => {}
            H_HISTORY_NONE => wanted.history = 0,
            history => wanted.history = history,
        }
    }
    Ok(wanted)
}

grown! {
    /// `config` may be null.
    subscriber: h_subscriber_t, "a subscriber" of "publisher", Subscriber => Exclusive::new,
    config: *const h_subscribe_config_t => subscribe_config(config)?;
    h_subscriber_grow, h_subscriber_connect, h_subscriber_grow_from; h_subscriber_close, h_subscriber_free
}

/// Receives the next sample, in the order of publication, waiting at most `timeout_ns`. To be freed
/// with h_sample_free, which gives a sample of the pool back to the publisher.
///
/// Errors: H_NOTHING, no sample waits and the time limit was 0; H_TIMED_OUT; H_CLOSED, H_DIED,
/// H_HUNG_UP, the publisher is gone or has disconnected this subscriber, and all arrived samples
/// were received; H_MISBEHAVED; H_FORKED; H_SYSTEM.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_subscriber_receive(
    subscriber: *mut h_subscriber_t,
    timeout_ns: i64,
    sample: *mut *mut h_sample_t,
) -> h_status {
    guard(|| {
        let (end, place) = (&get(subscriber, "subscriber")?.0, out(sample, "sample")?);
        let sample = end.receive(timeout_ns, |subscriber, limit| subscriber.receive(limit))?;
        let fork = end.fork().clone();
        place.write(Box::into_raw(Box::new(h_sample_t { sample, fork })));
        Ok(())
    })
}

/// A sample's description, with the address of its bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_sample_info(
    sample: *const h_sample_t,
    info: *mut h_sample_info_t,
) -> h_status {
    guard(|| {
        let (sample, place) = (&get(sample, "sample")?.sample, out(info, "info")?);
        let still = sample.as_slice();
        place.write(h_sample_info_t {
            number: sample.number(),
            missed: sample.missed(),
            data: still.map_or(core::ptr::null(), |bytes| bytes.as_ptr().cast()),
            length: sample.len(),
            is_volatile: still.is_none(),
        });
        Ok(())
    })
}

/// Copies `length` bytes from `offset` of a sample to `to`. If the publisher has disconnected this
/// subscriber, which has yet to learn of it, the bytes of a volatile sample may be those of
/// another.
///
/// Errors: H_INVALID, outside the sample; H_CLOSED, it is volatile, and its publisher is gone;
/// H_FORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_sample_read(
    sample: *const h_sample_t,
    offset: usize,
    to: *mut c_void,
    length: usize,
) -> h_status {
    guard(|| {
        let sample = get(sample, "sample")?;
        let to = bytes_out(to, length, "to")?;
        if !sample.fork.is_parent() {
            return Err(hamlyn::node::Forked.into());
        }
        match sample.sample.bytes() {
            RecordBytes::Still(bytes) => {
                let Some(from) = bytes.get(offset..).and_then(|rest| rest.get(..length)) else {
                    let text = format!(
                        "{length} bytes from offset {offset} are not inside the sample's {}",
                        bytes.len()
                    );
                    return Err(Failure::invalid(text));
                };
                to.copy_from_slice(from);
            }
            RecordBytes::Volatile(bytes) => bytes.read(offset, to)?,
        }
        Ok(())
    })
}

/// Frees a sample; this releases one of the pool. Its bytes are no longer valid. Null is allowed. A
/// sample may be freed after its subscriber.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_sample_free(sample: *mut h_sample_t) {
    guard(|| {
        if !sample.is_null() {
            get(sample, "sample")?;
            let sample = Box::from_raw(sample);
            if !sample.fork.is_parent() {
                core::mem::forget(sample);
            }
        }
        Ok(())
    });
}

/// The number of samples left out so far, before the received ones.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_subscriber_missed(
    subscriber: *mut h_subscriber_t,
    missed: *mut u64,
) -> h_status {
    guard(|| {
        let (subscriber, place) = (get(subscriber, "subscriber")?, out(missed, "missed")?);
        place.write(subscriber.0.lock()?.missed());
        Ok(())
    })
}

connected!(subscriber: h_subscriber_t; h_subscriber_peer, h_subscriber_explain);

closed! {
    /// Samples that were not received are lost; the publisher is notified.
    subscriber: h_subscriber_t, "every queued message of the node";
    h_subscriber_close, h_subscriber_free
}
