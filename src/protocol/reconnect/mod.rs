//! A client that connects again when its server goes, in threads (`threads.rs`) and in tasks
//! (`tasks.rs`); here what both have: the policy, and when the next attempt is made.
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
//! Never: a request that a server may have is sent to another, unless its caller says that this does
//! no harm.

#[cfg(feature = "tokio")]
mod tasks;
mod threads;

#[cfg(feature = "tokio")]
pub use tasks::AsyncReconnectingClient;
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
/// connects again, and what calls do meanwhile. It tries again whatever was wrong, another secret or
/// version too: on the other side that can be mended.
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
    /// Before the first attempt, at most `delay_max`; 0: at once. 10 ms unless set. To each delay a random part of up to its own
    /// length is added, so that not all clients of a server come back at once.
    pub first_delay: Duration,
    /// What each delay is multiplied with to be the next, at least 1. 2 unless set.
    pub factor: f32,
    /// The longest delay, before the random part. 5 s unless set.
    pub delay_max: Duration,
    /// How long one attempt may take; a name that nobody serves is waited for as long. 1 s unless
    /// set.
    pub attempt_limit: Duration,
    /// Attempts in one outage; `None`, as it is unless set: as many as it takes.
    pub attempts_max: Option<usize>,
    /// Most time of one outage, at the end of which no further attempt begins; `None`, as it is
    /// unless set: as long as it takes.
    pub outage_max: Option<Duration>,
    /// What calls do while there is no connection: wait for the next, within their own time limit,
    /// as it is unless set, or fail at once with [`CallError::NotConnected`].
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
            .with_min_delay(self.first_delay.min(self.delay_max))
            .with_max_delay(self.delay_max)
            .with_factor(factor)
            .with_jitter();
        match self.attempts_max {
            Some(attempts) => builder.with_max_times(attempts).build(),
            None => builder.without_max_times().build(),
        }
    }
}

/// Where a client that connects again stands.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "unstable-internals"), non_exhaustive)]
pub enum ConnectionState {
    /// It has a connection.
    Connected {
        /// Which: 1 for the first, one more for each after it, so that whoever looks late sees that
        /// there was an outage.
        number: u64,
    },
    /// It tries to connect.
    Reconnecting {
        /// Attempts that have failed in this outage.
        failed: usize,
        /// Why the last failed, or, before the first, why the connection has ended.
        why: String,
    },
    /// The policy allows no more attempts. It stays so.
    GivenUp {
        /// Why the last failed.
        why: String,
    },
}

impl ConnectionState {
    /// Why there is no connection.
    pub(in crate::protocol) fn why(&self) -> &str {
        match self {
            Self::Reconnecting { why, .. } | Self::GivenUp { why } => why,
            // It has not been heard of yet.
            Self::Connected { .. } => "it has just ended",
        }
    }

    /// Of a call that has waited for as long as it may.
    fn not_in_time(&self) -> CallError {
        let why = self.why();
        CallError::NotConnected(format!(
            "none came within the time limit, and the last ended, or failed, because: {why}"
        ))
    }
}

/// How a call is made: [`ReconnectingClient::call_with`].
#[derive(Clone, Copy, Debug, Default)]
pub struct CallOptions {
    /// For the whole call, outages included; the server is told what is left of it
    /// ([`Request::deadline`](super::Request::deadline)). `None`: as long as it takes, and the server is
    /// told nothing.
    pub limit: Option<Duration>,
    /// Twice does what once does: where the connection ends before the reply has come, the request is
    /// sent again over the next one.
    pub is_idempotent: bool,
}

/// Between two attempts of one outage, whatever the policy says.
const DELAY_LEAST: Duration = Duration::from_millis(1);

const DRAINS: &str = "the server is about to close";

/// What is known of connections that come and go, and when the next attempt may begin. Told the time.
pub(in crate::protocol) struct Outages {
    policy: ReconnectPolicy,
    /// Left of the outage at hand.
    delays: ExponentialBackoff,
    state: ConnectionState,
    /// Of the connection that there is, or was last.
    number: u64,
    /// When that began.
    began: Instant,
    /// When the outage at hand began.
    since: Option<Instant>,
    failed: usize,
    /// When the next attempt may begin; none while nobody has asked since the last.
    next_at: Option<Instant>,
}

impl Outages {
    /// There is a first connection.
    pub fn new(policy: ReconnectPolicy, now: Instant) -> Self {
        Self {
            delays: policy.delays(),
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

    /// Where it stands.
    pub fn state(&self) -> &ConnectionState {
        &self.state
    }

    /// An attempt had success.
    pub fn has_connected(&mut self, now: Instant) {
        self.number += 1;
        self.began = now;
        self.state = ConnectionState::Connected { number: self.number };
    }

    /// An attempt had none.
    pub fn has_failed(&mut self, why: String) {
        self.failed += 1;
        self.state = ConnectionState::Reconnecting { failed: self.failed, why };
    }

    /// There are to be no more attempts.
    pub fn give_up(&mut self, why: String) {
        self.state = ConnectionState::GivenUp { why };
    }

    /// The connection is of no use any more; `has_replied`: its server has answered something.
    pub fn is_lost(&mut self, why: String, has_replied: bool, now: Instant) {
        // One that ends before anything has come of it is part of the same outage: a server that
        // lets clients in and sends them away is not asked without end or rest.
        let has_lasted = now.saturating_duration_since(self.began) >= self.policy.delay_max;
        if has_replied || has_lasted {
            (self.delays, self.failed, self.since) = (self.policy.delays(), 0, None);
        }
        self.next_at = None;
        self.state = ConnectionState::Reconnecting { failed: self.failed, why };
    }

    /// When the next attempt may begin; none, if no more may be made.
    pub fn next_attempt(&mut self, now: Instant) -> Option<Instant> {
        let why = match &self.state {
            ConnectionState::GivenUp { .. } => return None,
            state => state.why().into(),
        };
        let since = *self.since.get_or_insert(now);
        let passed = now.saturating_duration_since(since);
        let is_over = self.policy.outage_max.is_some_and(|max| passed >= max);
        if self.next_at.is_none() && !is_over {
            // One that is too far away to be told is never.
            let delay = self.delays.next().map(|delay| delay.max(self.delay_least()));
            self.next_at = delay.and_then(|delay| now.checked_add(delay));
        }
        if is_over || self.next_at.is_none() {
            self.give_up(why);
            return None;
        }
        self.due()
    }

    /// When the next attempt is to be asked for, once that has been done; none also where none may be made.
    pub fn due(&self) -> Option<Instant> {
        // At the end of the outage it is asked once more, and there is none.
        let end = self.policy.outage_max.and_then(|max| self.since?.checked_add(max));
        self.next_at.map(|at| end.map_or(at, |end| at.min(end)))
    }

    /// A server that refuses at once is not asked without rest: only the first attempt may be made at
    /// once.
    fn delay_least(&self) -> Duration {
        if self.failed == 0 { Duration::ZERO } else { DELAY_LEAST }
    }

    /// It begins.
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

    /// Seconds from one attempt to the next, of which each fails at once, until no more is made.
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
        // Each time the second attempt has success.
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
