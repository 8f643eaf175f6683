//! Waiting: poll, then yield, then sleep (adaptive); or only one of them.
//!
//! A wake-up costs hundreds of messages, so sleeping is the last resort; spinning for a peer that
//! cannot run, or whose messages come seldom, only takes the processor from others. What to do next
//! is decided by [`Backoff::decide`], which looks at no clock and makes no call: it is told the time,
//! and whether a peer may be running. What it learns from one wait to the next is in [`Learnt`]. How
//! a thread sleeps is in `sleep.rs`.

use super::Node;
use crate::config::{Config, WaitMode};
use crate::interface::LinkId;
use crate::os::sys;
use crate::os::thread;
use core::time::Duration;
use std::io;

/// Turns between two looks at the clock while spinning.
const TURNS_PER_LOOK: u32 = 32;

/// Between two looks at the clock lie a microsecond or two of turns. After so long a time something
/// else has had the processor.
const INTERRUPTED_NS: u64 = 100_000;

/// Most failures that are told apart: after so many, 256 short sleeps go by without a spin.
const FAILURES_MAX: u32 = 8;

/// Links whose processors are looked at, at most.
const PEERS_MAX: usize = 8;

/// What earlier waits have shown.
#[derive(Debug, Default)]
pub(super) struct Learnt {
    /// A spin has begun, and nothing has ended it yet. If the next wait still finds it so, what was
    /// waited for came.
    spins: bool,
    /// Spins that ended in vain one behind the other though the sleep after them was short: the
    /// peer could not run because this thread did.
    failures: u32,
    /// Short sleeps to come without a spin before them.
    pause: u32,
    /// The peers were last seen on this thread's processor.
    is_alone: bool,
}

impl Learnt {
    /// A spin has taken its whole time, or others wanted the processor meanwhile.
    fn fail(&mut self) {
        self.failures = (self.failures + 1).min(FAILURES_MAX);
        self.pause = 1 << self.failures;
        self.spins = false;
    }

    /// A thread has slept for `slept_ns`; a spin would have taken `spin_ns`.
    pub fn slept(&mut self, slept_ns: u64, spin_ns: u64) {
        let is_short = slept_ns < spin_ns;
        match (self.spins, is_short) {
            (true, true) => self.fail(),
            // Messages are rare. One that comes soon after another says that they no longer are.
            (true, false) => (self.failures, self.pause) = (0, 1),
            (false, true) => self.pause = self.pause.saturating_sub(1),
            (false, false) => {}
        }
        self.spins = false;
    }
}

/// How long something has been waited for, and what to do next.
pub(super) struct Backoff {
    mode: WaitMode,
    spin_ns: u64,
    yields: u32,
    timeout_ns: u64,
    /// By the monotonic clock, from the first look at it on; 0 before: most messages come sooner,
    /// and a look costs as much as a turn or two.
    deadline_ns: u64,
    started_ns: u64,
    looked_ns: u64,
    /// Never starts again: however much arrives, the deadline is looked at.
    turns: u32,
    yielded: u32,
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Look again at once.
    Spin,
    /// Let others run, then look again.
    Yield,
    /// Sleep until the deadline at most.
    Sleep {
        /// By the monotonic clock; `u64::MAX`: none.
        deadline_ns: u64,
    },
    /// The time is over.
    TimedOut,
}

impl Backoff {
    pub fn new(config: &Config, timeout: Option<Duration>) -> Self {
        let whole_ns = |timeout: Duration| u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
        Self {
            mode: config.wait_mode,
            spin_ns: config.spin_ns,
            yields: config.yield_count,
            timeout_ns: timeout.map_or(u64::MAX, whole_ns),
            deadline_ns: 0,
            started_ns: 0,
            looked_ns: 0,
            turns: 0,
            yielded: 0,
        }
    }

    /// Something happened: spin again from the start.
    pub fn restart(&mut self) {
        self.started_ns = 0;
        self.yielded = 0;
    }

    /// Whether the time is over, where something moves in each turn; looks at the clock now and
    /// then.
    pub fn is_over(&mut self) -> bool {
        self.turns = self.turns.wrapping_add(1);
        self.turns.is_multiple_of(TURNS_PER_LOOK) && self.is_past(sys::monotonic_ns())
    }

    fn is_past(&mut self, now: u64) -> bool {
        if self.deadline_ns == 0 {
            self.deadline_ns = now.saturating_add(self.timeout_ns);
        }
        now >= self.deadline_ns
    }

    /// Whether there is nothing to decide in this turn: spin.
    #[inline]
    pub fn spins_on(&mut self, learnt: &Learnt) -> bool {
        self.turns = self.turns.wrapping_add(1);
        !self.turns.is_multiple_of(TURNS_PER_LOOK)
            && self.mode != WaitMode::Blocking
            && self.yielded == 0
            && learnt.pause == 0
            && !learnt.is_alone
    }

    /// What to do next, at `now_ns` of the monotonic clock. `peer_may_run`: some peer was last seen
    /// on another processor than this thread's.
    pub fn decide(&mut self, now_ns: u64, peer_may_run: bool, learnt: &mut Learnt) -> Step {
        if self.is_past(now_ns) {
            return Step::TimedOut;
        }
        let begins = self.started_ns == 0;
        if begins {
            (self.started_ns, self.looked_ns) = (now_ns, now_ns);
        }
        let since_ns = now_ns - core::mem::replace(&mut self.looked_ns, now_ns);
        learnt.is_alone = !peer_may_run;
        let sleep = Step::Sleep { deadline_ns: self.deadline_ns };
        if self.mode == WaitMode::Blocking {
            return sleep;
        }
        if begins && core::mem::replace(&mut learnt.spins, false) {
            // It found what it waited for, or this wait would not be another.
            learnt.failures = 0;
        }
        if since_ns > INTERRUPTED_NS && (learnt.spins || self.yielded > 0) {
            learnt.fail();
        }
        match self.mode {
            // One that never sleeps still lets others run where it only keeps them from it.
            WaitMode::Polled if !peer_may_run => Step::Yield,
            WaitMode::Polled if learnt.pause > 0 => {
                learnt.pause -= 1;
                self.yielded += 1;
                Step::Yield
            }
            WaitMode::Polled if now_ns - self.started_ns < self.spin_ns => {
                (learnt.spins, self.yielded) = (true, 0);
                Step::Spin
            }
            WaitMode::Polled => {
                (self.started_ns, self.yielded) = (now_ns, 1);
                Step::Yield
            }
            // Whoever yields waits behind all others, and whoever sleeps is let in before them.
            _ if !peer_may_run || learnt.pause > 0 => sleep,
            _ if now_ns - self.started_ns < self.spin_ns => {
                learnt.spins = true;
                Step::Spin
            }
            _ if self.yielded < self.yields => {
                self.yielded += 1;
                Step::Yield
            }
            _ => sleep,
        }
    }
}

impl Node {
    /// One step of waiting for something to arrive. `false`: the time is over.
    #[inline]
    pub(super) fn wait_for_arrival(&mut self, backoff: &mut Backoff) -> io::Result<bool> {
        match self.step(backoff) {
            Step::Spin => Ok(true),
            Step::Yield => {
                thread::yield_now();
                Ok(true)
            }
            Step::Sleep { deadline_ns } => self.sleep(deadline_ns, None).map(|()| true),
            Step::TimedOut => Ok(false),
        }
    }

    /// One step of waiting for room on one link, or on each link that has queued messages.
    #[inline]
    pub(super) fn wait_for_room(
        &mut self,
        backoff: &mut Backoff,
        link: Option<LinkId>,
    ) -> io::Result<bool> {
        match self.step(backoff) {
            Step::Spin => Ok(true),
            Step::Yield => {
                // One that never sleeps says here that it waits.
                if let Some(Ok(link)) = link.map(|id| self.link(id))
                    && let Some(figures) = &link.figures
                {
                    figures.waits_for_room();
                }
                thread::yield_now();
                Ok(true)
            }
            Step::Sleep { deadline_ns } => self.sleep(deadline_ns, Some(link)).map(|()| true),
            Step::TimedOut => Ok(false),
        }
    }

    /// What to do next for whoever waits.
    #[inline]
    pub(super) fn step(&mut self, backoff: &mut Backoff) -> Step {
        if backoff.spins_on(&self.learnt) { Step::Spin } else { self.decide(backoff) }
    }

    #[cold]
    fn decide(&mut self, backoff: &mut Backoff) -> Step {
        let peer_may_run = self.peer_may_run();
        backoff.decide(sys::monotonic_ns(), peer_may_run, &mut self.learnt)
    }

    /// Tells the peers on which processor this thread runs, and says whether one of them may be
    /// running elsewhere, as it says itself. A lie costs a wake-up or a spin, and only where all
    /// peers tell it.
    fn peer_may_run(&mut self) -> bool {
        let here = sys::processor();
        let (mut any, mut elsewhere) = (false, false);
        for &index in self.turns.all_active().iter().take(PEERS_MAX) {
            if let Some(Some(link)) = self.links.get_mut(index as usize)
                && link.token.is_some()
            {
                any = true;
                elsewhere |= link.rx.peer_processor(here) != Some(here);
            }
        }
        elsewhere || !any || self.turns.all_active().len() > PEERS_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    const SPIN_NS: u64 = 50_000;

    fn backoff(mode: WaitMode) -> Backoff {
        Backoff {
            mode,
            spin_ns: SPIN_NS,
            yields: 2,
            timeout_ns: 1_000_000_000,
            deadline_ns: 0,
            started_ns: 0,
            looked_ns: 0,
            turns: 0,
            yielded: 0,
        }
    }

    /// One wait from `now`, a microsecond for each decision, until it sleeps or `found_ns` are over.
    /// Returns the steps that were not spins.
    fn wait(mode: WaitMode, learnt: &mut Learnt, elsewhere: bool, found_ns: u64) -> Vec<Step> {
        let (mut backoff, mut steps) = (backoff(mode), Vec::new());
        for now in (1_000_000..1_000_000 + found_ns).step_by(1000) {
            match backoff.decide(now, elsewhere, learnt) {
                Step::Spin => {}
                step => steps.push(step),
            }
            if matches!(steps.last(), Some(Step::Sleep { .. } | Step::TimedOut)) {
                break;
            }
        }
        steps
    }

    fn sleeps(steps: &[Step]) -> bool {
        matches!(steps.last(), Some(Step::Sleep { .. }))
    }

    #[test]
    fn an_adaptive_wait_spins_then_yields_then_sleeps() {
        let steps = wait(WaitMode::Adaptive, &mut Learnt::default(), true, 10 * SPIN_NS);
        assert_eq!(steps.len(), 3);
        assert_eq!(steps[..2], [Step::Yield, Step::Yield]);
        assert!(sleeps(&steps));
    }

    #[test]
    fn whoever_shares_the_processor_with_its_peers_sleeps_at_once_and_if_polled_yields() {
        let mut learnt = Learnt::default();
        assert!(matches!(
            wait(WaitMode::Adaptive, &mut learnt, false, SPIN_NS)[..],
            [Step::Sleep { .. }]
        ));
        // Nor does the next wait begin with turns that cannot help.
        assert!(!backoff(WaitMode::Adaptive).spins_on(&learnt));
        let steps = wait(WaitMode::Polled, &mut learnt, false, 10_000);
        assert_eq!(steps, [Step::Yield; 10]);
        assert!(wait(WaitMode::Adaptive, &mut learnt, true, 10_000).is_empty());
        assert!(backoff(WaitMode::Adaptive).spins_on(&learnt));
    }

    #[test]
    fn spins_that_keep_the_peer_from_running_become_rarer_and_come_back() {
        let mut learnt = Learnt::default();
        let (mut spins, waits) = (0, 10_000);
        for _ in 0..waits {
            let steps = wait(WaitMode::Adaptive, &mut learnt, true, 10 * SPIN_NS);
            assert!(sleeps(&steps));
            spins += u32::from(steps.len() > 1);
            // The peer answers as soon as this thread no longer runs.
            learnt.slept(5_000, SPIN_NS);
        }
        assert!(spins < waits / 200, "{spins} of {waits}");
        // From now on it answers while this thread spins.
        for _ in 0..300 {
            match sleeps(&wait(WaitMode::Adaptive, &mut learnt, true, 2_000)) {
                true => learnt.slept(5_000, SPIN_NS),
                false => assert_eq!(learnt.pause, 0),
            }
        }
        for _ in 0..100 {
            assert!(wait(WaitMode::Adaptive, &mut learnt, true, 2_000).is_empty());
        }
    }

    #[test]
    fn messages_that_are_rare_are_not_spun_for_until_one_comes_soon() {
        let mut learnt = Learnt::default();
        assert_eq!(wait(WaitMode::Adaptive, &mut learnt, true, 10 * SPIN_NS).len(), 3);
        for _ in 0..100 {
            learnt.slept(1_000_000, SPIN_NS);
            assert_eq!(wait(WaitMode::Adaptive, &mut learnt, true, 10 * SPIN_NS).len(), 1);
        }
        learnt.slept(10_000, SPIN_NS);
        assert!(wait(WaitMode::Adaptive, &mut learnt, true, 10_000).is_empty());
    }

    #[test]
    fn one_that_lost_the_processor_while_it_spun_gives_it_up_for_a_while() {
        for mode in [WaitMode::Adaptive, WaitMode::Polled] {
            let (mut learnt, mut backoff) = (Learnt::default(), backoff(mode));
            assert_eq!(backoff.decide(1_000, true, &mut learnt), Step::Spin);
            let step = backoff.decide(1_000 + 4_000_000, true, &mut learnt);
            assert_ne!(step, Step::Spin, "{mode:?}");
            assert_ne!(backoff.decide(4_002_000, true, &mut learnt), Step::Spin, "{mode:?}");
        }
    }

    #[test]
    fn one_that_polls_yields_once_for_each_spin_and_never_sleeps() {
        let steps = wait(WaitMode::Polled, &mut Learnt::default(), true, 10 * SPIN_NS);
        assert!(steps.iter().all(|step| *step == Step::Yield));
        assert!((8..=10).contains(&steps.len()), "{steps:?}");
    }

    #[test]
    fn whatever_was_learnt_the_time_limit_ends_a_wait() {
        for mode in [WaitMode::Adaptive, WaitMode::Polled, WaitMode::Blocking] {
            for elsewhere in [false, true] {
                let (mut learnt, mut backoff) = (Learnt::default(), backoff(mode));
                assert_ne!(backoff.decide(5, elsewhere, &mut learnt), Step::TimedOut);
                let over = backoff.decide(5 + 1_000_000_000, elsewhere, &mut learnt);
                assert_eq!(over, Step::TimedOut);
            }
        }
    }
}
