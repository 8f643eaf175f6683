//! A client that connects again when its server goes, in threads (`threads.rs`) and in tasks
//! (`tasks.rs`). This file has the common part: the policy, and the time of the next attempt.
//!
//! ```text
//!                  a reply has come, or it has lasted
//!   Connected(n) <------------------------------- Connected(n + 1)
//!       |  the connection ends, or the server drains            ^
//!       v                                                       |
//!   Reconnecting(failed) -- delay, try; delay times factor -----+
//!       |  as many attempts, or as long, as the policy allows
//!       v
//!   GivenUp: for good
//! ```
//! Never: a request that a server may have is sent to another, unless its caller declares that this
//! does no harm.

#[cfg(feature = "tokio")]
mod tasks;
mod threads;

#[cfg(feature = "tokio")]
pub use tasks::AsyncReconnectingClient;
#[cfg(feature = "unstable-internals")]
pub use threads::ReconnectingCall;
pub use threads::ReconnectingClient;

use super::call::CallError;
use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use core::time::Duration;
use std::format;
use std::string::String;
use std::time::Instant;

/// When a [`ReconnectingClient`], a [`Relay`](super::Relay) or an
#[cfg_attr(feature = "tokio", doc = "[`AsyncReconnectingClient`]")]
#[cfg_attr(not(feature = "tokio"), doc = "`AsyncReconnectingClient`")]
/// connects again, and the behaviour of calls meanwhile. Every failure is tried again, even another
/// secret or version, since the other side can correct those.
///
/// ```
/// use hamlyn::protocol::ReconnectPolicy;
/// use std::time::Duration;
///
/// // For a minute, and calls fail meanwhile instead of waiting.
/// let policy = ReconnectPolicy {
///     outage_max: Some(Duration::from_secs(60)),
///     calls_wait: false,
///     ..ReconnectPolicy::default()
/// };
/// # assert!(policy.attempts_max.is_none());
/// ```
#[derive(Clone, Debug)]
pub struct ReconnectPolicy {
    /// The delay before the first attempt, at most `delay_max`; 0: at once. 10 ms unless set. A
    /// random part of up to its own length is added to each delay, so that a server's clients do
    /// not all come back at once.
    pub first_delay: Duration,
    /// The factor from each delay to the next, at least 1. 2 unless set.
    pub factor: f32,
    /// The longest delay, before the random part. 5 s unless set.
    pub delay_max: Duration,
    /// Most time of one attempt, including the wait for the name to be served. 1 s unless set.
    pub attempt_limit: Duration,
    /// Attempts in one outage; `None`, the default: no limit.
    pub attempts_max: Option<usize>,
    /// Most time of one outage; no further attempt begins after it. `None`, the default: no limit.
    pub outage_max: Option<Duration>,
    /// Whether calls without a connection wait for the next one, within their own time limit (the
    /// default), or fail at once with [`CallError::NotConnected`].
    pub calls_wait: bool,
}

impl Default for ReconnectPolicy {
    fn default() -> Self {
        Self {
            first_delay: Duration::from_millis(10),
            factor: 2.0,
            delay_max: Duration::from_secs(5),
            attempt_limit: Duration::from_secs(1),
            attempts_max: None,
            outage_max: None,
            calls_wait: true,
        }
    }
}

impl ReconnectPolicy {
    /// The delays of one outage.
    fn delays(&self) -> ExponentialBackoff {
        let factor = if self.factor.is_finite() { self.factor.max(1.0) } else { 1.0 };
        let builder = ExponentialBuilder::default()
            // From 0 delays would not grow.
            .with_min_delay(self.first_delay.max(DELAY_LEAST).min(self.delay_max))
            .with_max_delay(self.delay_max)
            .with_factor(factor)
            .with_jitter();
        match self.attempts_max {
            Some(attempts) => builder.with_max_times(attempts).build(),
            None => builder.without_max_times().build(),
        }
    }
}

/// The state of a client that connects again.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "unstable-internals"), non_exhaustive)]
pub enum ConnectionState {
    /// It has a connection.
    Connected {
        /// The connection's number: 1 for the first, one more for each after it, so that late
        /// readers notice an outage.
        number: u64,
    },
    /// It tries to connect.
    Reconnecting {
        /// Attempts that have failed in this outage.
        failed: usize,
        /// The error of the last attempt, or, before the first, the reason for the connection's
        /// end.
        why: String,
    },
    /// The policy allows no more attempts. This state is final.
    GivenUp {
        /// The error of the last attempt.
        why: String,
    },
}

impl ConnectionState {
    /// The reason why there is no connection.
    pub(in crate::protocol) fn why(&self) -> &str {
        match self {
            Self::Reconnecting { why, .. } | Self::GivenUp { why } => why,
            // The news of its end has not come yet.
            Self::Connected { .. } => "it has just ended",
        }
    }

    /// The error of a call whose time limit has passed.
    fn not_in_time(&self) -> CallError {
        CallError::NotConnected(format!("none came within the time limit: {}", self.why()))
    }

    /// The error of a call that does not wait for a connection.
    fn not_connected(&self) -> CallError {
        CallError::NotConnected(match self {
            Self::GivenUp { why } => format!("no more attempts: {why}"),
            state => state.why().into(),
        })
    }
}

/// Options of a call: [`ReconnectingClient::call_with`].
#[derive(Clone, Copy, Debug, Default)]
pub struct CallOptions {
    /// The time limit of the whole call, outages included; the server is told the rest of it
    /// ([`Request::deadline`](super::Request::deadline)). `None`: no limit, and the server hears of
    /// no limit.
    pub limit: Option<Duration>,
    /// Executing the request twice does no harm: if the connection ends before the reply has come,
    /// the request is sent again over the next one.
    pub is_idempotent: bool,
}

/// The least time between two attempts of one outage, under any policy.
const DELAY_LEAST: Duration = Duration::from_millis(1);

const DRAINS: &str = "the server is about to close";

/// The history of the connections, and the time of the next attempt. The time is an argument.
pub(in crate::protocol) struct Outages {
    policy: ReconnectPolicy,
    /// The remaining delays of the current outage.
    delays: ExponentialBackoff,
    /// None of them has been taken.
    is_first: bool,
    state: ConnectionState,
    /// The number of the current connection, or of the last one.
    number: u64,
    /// The time at which that connection began.
    began: Instant,
    /// The time at which the current outage began.
    since: Option<Instant>,
    failed: usize,
    /// The earliest time of the next attempt; `None` until it is asked for.
    next_at: Option<Instant>,
}

impl Outages {
    /// There has been no connection, and the first attempt may be made at once.
    pub fn unconnected(policy: ReconnectPolicy, now: Instant) -> Self {
        let why = "it has not been connected yet".into();
        let state = ConnectionState::Reconnecting { failed: 0, why };
        Self { state, number: 0, next_at: Some(now), ..Self::new(policy, now) }
    }

    /// The first connection is there.
    pub fn new(policy: ReconnectPolicy, now: Instant) -> Self {
        Self {
            delays: policy.delays(),
            is_first: true,
            policy,
            state: ConnectionState::Connected { number: 1 },
            number: 1,
            began: now,
            since: None,
            failed: 0,
            next_at: None,
        }
    }

    pub fn policy(&self) -> &ReconnectPolicy {
        &self.policy
    }

    /// The state.
    pub fn state(&self) -> &ConnectionState {
        &self.state
    }

    /// An attempt succeeded.
    pub fn has_connected(&mut self, now: Instant) {
        self.number += 1;
        self.began = now;
        self.state = ConnectionState::Connected { number: self.number };
    }

    /// An attempt failed.
    pub fn has_failed(&mut self, why: String) {
        self.failed += 1;
        self.state = ConnectionState::Reconnecting { failed: self.failed, why };
    }

    /// Ends all attempts.
    pub fn give_up(&mut self, why: String) {
        self.state = ConnectionState::GivenUp { why };
    }

    /// The connection is lost; `has_replied`: its server has replied to a request.
    pub fn is_lost(&mut self, why: String, has_replied: bool, now: Instant) {
        // A connection that ends before a reply or a while is part of the same outage: so attempts
        // at a server that admits clients and disconnects them do not go on without end or pause.
        let has_lasted = now.saturating_duration_since(self.began) >= self.policy.delay_max;
        if has_replied || has_lasted {
            (self.delays, self.is_first) = (self.policy.delays(), true);
            (self.failed, self.since) = (0, None);
        }
        self.next_at = None;
        self.state = ConnectionState::Reconnecting { failed: self.failed, why };
    }

    /// The earliest time of the next attempt; `None` if no more may be made.
    pub fn next_attempt(&mut self, now: Instant) -> Option<Instant> {
        let why = match &self.state {
            ConnectionState::GivenUp { .. } => return None,
            state => state.why().into(),
        };
        let since = *self.since.get_or_insert(now);
        let passed = now.saturating_duration_since(since);
        let is_over = self.policy.outage_max.is_some_and(|max| passed >= max);
        if self.next_at.is_none() && !is_over {
            // A delay beyond the clock's range ends the attempts.
            let delay = self.next_delay();
            self.next_at = delay.and_then(|delay| now.checked_add(delay));
        }
        if is_over || self.next_at.is_none() {
            self.give_up(why);
            return None;
        }
        self.due()
    }

    /// The time of the next attempt, once that has been asked for; `None` also if no more may be
    /// made.
    pub fn due(&self) -> Option<Instant> {
        // It is asked for once more at the end of the outage, and then there is none.
        let end = self.policy.outage_max.and_then(|max| self.since?.checked_add(max));
        self.next_at.map(|at| end.map_or(at, |end| at.min(end)))
    }

    /// Attempts at a server that refuses at once, or that admits clients and disconnects them, need
    /// pauses: only the first attempt may be made at once.
    fn next_delay(&mut self) -> Option<Duration> {
        let delay = self.delays.next()?;
        let is_first = core::mem::take(&mut self.is_first);
        let at_once = is_first && self.policy.first_delay < DELAY_LEAST;
        Some(if at_once { self.policy.first_delay } else { delay.max(DELAY_LEAST) })
    }

    /// An attempt begins.
    pub fn begins(&mut self) {
        self.next_at = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    fn policy() -> ReconnectPolicy {
        ReconnectPolicy { first_delay: Duration::from_secs(1), ..ReconnectPolicy::default() }
    }

    /// Seconds between attempts that fail at once, until no more are made.
    fn delays(outages: &mut Outages, mut now: Instant, most: usize) -> Vec<f64> {
        let mut found = Vec::new();
        while found.len() < most
            && let Some(at) = outages.next_attempt(now)
        {
            assert_eq!(outages.next_attempt(now), Some(at), "it was asked for twice");
            found.push(at.duration_since(now).as_secs_f64());
            now = at;
            outages.begins();
            outages.has_failed("nobody".into());
        }
        found
    }

    #[test]
    fn delays_grow_to_the_longest_with_a_random_part_of_up_to_their_length() {
        let now = Instant::now();
        let mut outages = Outages::new(policy(), now);
        outages.is_lost("gone".into(), true, now);
        for (delay, least) in delays(&mut outages, now, 6).into_iter().zip([1., 2., 4., 5., 5., 5.])
        {
            assert!((least..=2.0 * least).contains(&delay), "{delay} s beside {least}");
        }
        assert_eq!(
            outages.state,
            ConnectionState::Reconnecting { failed: 6, why: "nobody".into() }
        );
    }

    #[test]
    fn the_first_attempt_of_a_client_without_a_connection_is_at_once_and_the_others_wait() {
        let now = Instant::now();
        let mut outages = Outages::unconnected(policy(), now);
        let found = delays(&mut outages, now, 3);
        assert_eq!(found[0], 0.0);
        assert!((1.0..=2.0).contains(&found[1]) && (2.0..=4.0).contains(&found[2]), "{found:?}");
        assert_eq!(outages.number, 0);
        outages.has_connected(now);
        assert_eq!(outages.state, ConnectionState::Connected { number: 1 });
    }

    #[test]
    fn without_a_first_delay_the_first_attempt_alone_is_at_once() {
        let now = Instant::now();
        let first_delay = Duration::ZERO;
        let mut outages = Outages::new(ReconnectPolicy { first_delay, ..policy() }, now);
        outages.is_lost("gone".into(), true, now);
        let found = delays(&mut outages, now, 4);
        assert_eq!(found[0], 0.0);
        for (delay, least) in found[1..].iter().zip([2e-3, 4e-3, 8e-3]) {
            assert!((least..=2.0 * least).contains(delay), "{delay} s beside {least}");
        }
        // Nor is a second one of a server that admits clients and disconnects them.
        let mut outages = Outages::new(ReconnectPolicy { first_delay, ..policy() }, now);
        for is_at_once in [true, false, false] {
            outages.is_lost("gone".into(), false, now);
            assert_eq!(outages.next_attempt(now).unwrap() == now, is_at_once);
            outages.begins();
            outages.has_connected(now);
        }
    }

    #[test]
    fn no_more_attempts_and_no_more_time_than_the_policy_says() {
        let now = Instant::now();
        for (attempts_max, outage_max) in [(Some(3), None), (None, Some(Duration::from_secs(3)))] {
            let mut outages =
                Outages::new(ReconnectPolicy { attempts_max, outage_max, ..policy() }, now);
            outages.is_lost("gone".into(), true, now);
            assert!((2..=3).contains(&delays(&mut outages, now, 9).len()));
            assert_eq!(outages.state, ConnectionState::GivenUp { why: "nobody".into() });
            assert_eq!(outages.next_attempt(now), None);
        }
    }

    #[test]
    fn a_connection_of_which_nothing_came_is_of_the_outage_before_it() {
        let four = || ReconnectPolicy { attempts_max: Some(4), ..policy() };
        // Each second attempt succeeds.
        let connect = |outages: &mut Outages, now: &mut Instant| {
            for _ in 0..2 {
                *now = outages.next_attempt(*now).unwrap();
                outages.begins();
            }
            outages.has_connected(*now);
        };
        for (has_replied, lasts, is_another) in
            [(false, 0, false), (true, 0, true), (false, 5, true)]
        {
            let mut now = Instant::now();
            let mut outages = Outages::new(four(), now);
            outages.is_lost("gone".into(), true, now);
            connect(&mut outages, &mut now);
            outages.is_lost("gone".into(), false, now);
            connect(&mut outages, &mut now);
            assert_eq!(outages.state, ConnectionState::Connected { number: 3 });
            now += Duration::from_secs(lasts);
            outages.is_lost("gone".into(), has_replied, now);
            assert_eq!(outages.next_attempt(now).is_some(), is_another, "{has_replied}, {lasts} s");
        }
    }
}
