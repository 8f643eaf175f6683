//! Waiting: look again, then let others run, then sleep (adaptive); or only one of them.
//!
//! ```text
//!   no clock is needed    spins_on: look again at once
//!   each 32nd turn        decide(now, whether a peer may be running) -> Spin, Yield, Sleep, TimedOut
//!   something came        restart
//!   after a sleep         Learnt::slept(how long)
//! ```
//! A wake-up costs hundreds of messages, so sleeping is the last resort; spinning for a peer that
//! cannot run, or whose messages come seldom, only takes the processor from others. Every waiting
//! thread asks a [`Backoff`] for its next step. [`Learnt`] carries experience from one wait to the
//! next. `sleep.rs` has the sleep itself.

/// Turns between two looks at the clock while spinning.
const TURNS_PER_LOOK: u32 = 32;

/// Between two looks at the clock lie a microsecond or two of turns. After so long a time something
/// else has had the processor.
const INTERRUPTED_NS: u64 = 100_000;

/// Most failures that are told apart: after so many, 256 short sleeps go by without a spin.
const FAILURES_MAX: u32 = 8;

/// Links whose processors are looked at, at most.
const PEERS_MAX: usize = 8;

/// A node's way of waiting, from its settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manner {
    /// It spins for so long, lets others run once, and repeats.
    Polled {
        /// Nanoseconds.
        spin_ns: u64,
    },
    /// It spins for so long, lets others run so many times, then sleeps.
    Adaptive {
        /// Nanoseconds.
        spin_ns: u64,
        /// Times that others are let run.
        yields: u32,
    },
    /// It sleeps at once.
    Blocking,
}

/// Experience from earlier waits.
#[derive(Debug, Default)]
pub(crate) struct Learnt {
    /// A spin has begun, and nothing has ended it yet. If the next wait still finds it so, the
    /// event came during the spin.
    spins: bool,
    /// Spins in a row that ended in vain although the sleep after them was short: the peer could
    /// not run because this thread did.
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

/// The course of one wait, which decides the next step.
pub(crate) struct Backoff {
    manner: Manner,
    timeout_ns: u64,
    /// By the monotonic clock, from the first look at it on; 0 before: most messages come sooner,
    /// and a look costs as much as a turn or two.
    deadline_ns: u64,
    started_ns: u64,
    looked_ns: u64,
    /// Never restarts: the deadline is checked even while messages keep arriving.
    turns: u32,
    yielded: u32,
}

/// The next step of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitStep {
    /// Look again at once.
    Spin,
    /// Let others run, then look again.
    Yield,
    /// Sleep until the deadline at most.
    Sleep {
        /// By the monotonic clock; `u64::MAX`: none.
        deadline_ns: u64,
    },
    /// The time limit has passed.
    TimedOut,
}

impl Backoff {
    /// At most for `timeout_ns`, from the first look at the clock on; `u64::MAX`: without limit.
    pub fn new(manner: Manner, timeout_ns: u64) -> Self {
        Self {
            manner,
            timeout_ns,
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

    /// Whether the time limit has passed, for callers with progress in each turn; asks for the time
    /// now and then.
    pub fn is_over(&mut self, now_ns: impl FnOnce() -> u64) -> bool {
        self.turns = self.turns.wrapping_add(1);
        self.turns.is_multiple_of(TURNS_PER_LOOK) && self.is_past(now_ns())
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
            && self.manner != Manner::Blocking
            && self.yielded == 0
            && learnt.pause == 0
            && !learnt.is_alone
    }

    /// The next step, at `now_ns` of the monotonic clock. `peer_may_run`: some peer was last seen
    /// on another processor than this thread's.
    pub fn decide(&mut self, now_ns: u64, peer_may_run: bool, learnt: &mut Learnt) -> WaitStep {
        if self.is_past(now_ns) {
            return WaitStep::TimedOut;
        }
        let begins = self.started_ns == 0;
        if begins {
            (self.started_ns, self.looked_ns) = (now_ns, now_ns);
        }
        let since_ns = now_ns - core::mem::replace(&mut self.looked_ns, now_ns);
        learnt.is_alone = !peer_may_run;
        let sleep = WaitStep::Sleep { deadline_ns: self.deadline_ns };
        let (spin_ns, yields) = match self.manner {
            Manner::Polled { spin_ns } => (spin_ns, None),
            Manner::Adaptive { spin_ns, yields } => (spin_ns, Some(yields)),
            Manner::Blocking => return sleep,
        };
        if begins && core::mem::replace(&mut learnt.spins, false) {
            // That spin found its event, or this would not be another wait.
            learnt.failures = 0;
        }
        if since_ns > INTERRUPTED_NS && (learnt.spins || self.yielded > 0) {
            learnt.fail();
        }
        let spins = now_ns - self.started_ns < spin_ns;
        match yields {
            // A polling thread still lets others run if it only takes the processor from them.
            None if !peer_may_run => WaitStep::Yield,
            None if learnt.pause > 0 => {
                learnt.pause -= 1;
                self.yielded += 1;
                WaitStep::Yield
            }
            None if spins => {
                (learnt.spins, self.yielded) = (true, 0);
                WaitStep::Spin
            }
            None => {
                (self.started_ns, self.yielded) = (now_ns, 1);
                WaitStep::Yield
            }
            // A thread that yields waits behind all others; one that sleeps runs before them when
            // it wakes.
            _ if !peer_may_run || learnt.pause > 0 => sleep,
            _ if spins => {
                learnt.spins = true;
                WaitStep::Spin
            }
            Some(yields) if self.yielded < yields => {
                self.yielded += 1;
                WaitStep::Yield
            }
            _ => sleep,
        }
    }
}

/// Turns in which nothing came, and no other thread had the lock, between two looks of [`Looks`].
const TURNS_WITHOUT_LOOK: u32 = 64;

/// Decides when a thread that shares its node looks for its event: a look takes longer than a turn
/// that finds nothing.
///
/// Never: it sleeps or gives up when a turn was taken after its last look. Events of the control
/// plane in a turn, such as the end of connecting, do not count as arrivals, and are not reported
/// again.
#[derive(Debug, Default)]
pub(crate) struct Looks {
    /// 0: the next turn is followed by one.
    turns_to_look: u32,
}

impl Looks {
    /// Whether the next turn is followed by a look in any case.
    #[inline]
    pub fn must(&self) -> bool {
        self.turns_to_look == 0
    }

    /// Asks for a look after the next turn.
    #[inline]
    pub fn look_next(&mut self) {
        self.turns_to_look = 0;
    }

    /// After a turn in which something `came`, or nothing: whether to look now, and the step to
    /// take if that finds nothing, if it had to be decided first.
    #[inline]
    pub fn after_turn(
        &mut self,
        came: bool,
        decide: impl FnOnce() -> WaitStep,
    ) -> (bool, Option<WaitStep>) {
        let step = if came || self.must() { None } else { Some(decide()) };
        let looks = matches!(step, None | Some(WaitStep::Sleep { .. } | WaitStep::TimedOut));
        self.turns_to_look = if looks { TURNS_WITHOUT_LOOK } else { self.turns_to_look } - 1;
        (looks, step)
    }
}

/// Whether one of the peers may be running, by their own words: some peer was last seen on another
/// processor than this thread's, or has not named its processor. A lie costs a wake-up or a spin,
/// and only if all peers tell it. Asks [`PEERS_MAX`] of them: of more, one may.
pub(crate) fn peer_may_run(here: u32, peers: impl IntoIterator<Item = Option<u32>>) -> bool {
    let (mut asked, mut elsewhere) = (0, false);
    for there in peers {
        if asked == PEERS_MAX {
            return true;
        }
        asked += 1;
        elsewhere |= there != Some(here);
    }
    elsewhere || asked == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    const SPIN_NS: u64 = 50_000;

    const POLLED: Manner = Manner::Polled { spin_ns: SPIN_NS };
    const ADAPTIVE: Manner = Manner::Adaptive { spin_ns: SPIN_NS, yields: 2 };

    fn backoff(manner: Manner) -> Backoff {
        Backoff::new(manner, 1_000_000_000)
    }

    /// One wait from `now`, a microsecond for each decision, until it sleeps or `found_ns` are
    /// over. Returns the steps that were not spins.
    fn wait(manner: Manner, learnt: &mut Learnt, elsewhere: bool, found_ns: u64) -> Vec<WaitStep> {
        let (mut backoff, mut steps) = (backoff(manner), Vec::new());
        for now in (1_000_000..1_000_000 + found_ns).step_by(1000) {
            match backoff.decide(now, elsewhere, learnt) {
                WaitStep::Spin => {}
                step => steps.push(step),
            }
            if matches!(steps.last(), Some(WaitStep::Sleep { .. } | WaitStep::TimedOut)) {
                break;
            }
        }
        steps
    }

    fn sleeps(steps: &[WaitStep]) -> bool {
        matches!(steps.last(), Some(WaitStep::Sleep { .. }))
    }

    #[test]
    fn an_adaptive_wait_spins_then_yields_then_sleeps() {
        let steps = wait(ADAPTIVE, &mut Learnt::default(), true, 10 * SPIN_NS);
        assert_eq!(steps.len(), 3);
        assert_eq!(steps[..2], [WaitStep::Yield, WaitStep::Yield]);
        assert!(sleeps(&steps));
    }

    #[test]
    fn whoever_shares_the_processor_with_its_peers_sleeps_at_once_and_if_polled_yields() {
        let mut learnt = Learnt::default();
        assert!(matches!(
            wait(ADAPTIVE, &mut learnt, false, SPIN_NS)[..],
            [WaitStep::Sleep { .. }]
        ));
        // Nor does the next wait begin with turns that cannot help.
        assert!(!backoff(ADAPTIVE).spins_on(&learnt));
        let steps = wait(POLLED, &mut learnt, false, 10_000);
        assert_eq!(steps, [WaitStep::Yield; 10]);
        assert!(wait(ADAPTIVE, &mut learnt, true, 10_000).is_empty());
        assert!(backoff(ADAPTIVE).spins_on(&learnt));
    }

    #[test]
    fn spins_that_keep_the_peer_from_running_become_rarer_and_come_back() {
        let mut learnt = Learnt::default();
        let (mut spins, waits) = (0, 10_000);
        for _ in 0..waits {
            let steps = wait(ADAPTIVE, &mut learnt, true, 10 * SPIN_NS);
            assert!(sleeps(&steps));
            spins += u32::from(steps.len() > 1);
            // The peer answers as soon as this thread no longer runs.
            learnt.slept(5_000, SPIN_NS);
        }
        assert!(spins < waits / 200, "{spins} of {waits}");
        // From now on it answers while this thread spins.
        for _ in 0..300 {
            match sleeps(&wait(ADAPTIVE, &mut learnt, true, 2_000)) {
                true => learnt.slept(5_000, SPIN_NS),
                false => assert_eq!(learnt.pause, 0),
            }
        }
        for _ in 0..100 {
            assert!(wait(ADAPTIVE, &mut learnt, true, 2_000).is_empty());
        }
    }

    #[test]
    fn messages_that_are_rare_are_not_spun_for_until_one_comes_soon() {
        let mut learnt = Learnt::default();
        assert_eq!(wait(ADAPTIVE, &mut learnt, true, 10 * SPIN_NS).len(), 3);
        for _ in 0..100 {
            learnt.slept(1_000_000, SPIN_NS);
            assert_eq!(wait(ADAPTIVE, &mut learnt, true, 10 * SPIN_NS).len(), 1);
        }
        learnt.slept(10_000, SPIN_NS);
        assert!(wait(ADAPTIVE, &mut learnt, true, 10_000).is_empty());
    }

    #[test]
    fn one_that_lost_the_processor_while_it_spun_gives_it_up_for_a_while() {
        for manner in [ADAPTIVE, POLLED] {
            let (mut learnt, mut backoff) = (Learnt::default(), backoff(manner));
            assert_eq!(backoff.decide(1_000, true, &mut learnt), WaitStep::Spin);
            let step = backoff.decide(1_000 + 4_000_000, true, &mut learnt);
            assert_ne!(step, WaitStep::Spin, "{manner:?}");
            assert_ne!(backoff.decide(4_002_000, true, &mut learnt), WaitStep::Spin, "{manner:?}");
        }
    }

    #[test]
    fn one_that_polls_yields_once_for_each_spin_and_never_sleeps() {
        let steps = wait(POLLED, &mut Learnt::default(), true, 10 * SPIN_NS);
        assert!(steps.iter().all(|step| *step == WaitStep::Yield));
        assert!((8..=10).contains(&steps.len()), "{steps:?}");
    }

    // The thread did not look at events that a turn had taken from the control plane, if it lost
    // its processor in that very turn, after which it does not spin: it slept until its time limit.
    #[test]
    fn whoever_sleeps_or_gives_up_has_looked_since_its_last_turn() {
        for limit_ns in [u64::MAX, 300_000] {
            // Turns for which it has the processor, before it loses it once.
            for turns in 0..200 {
                let mut learnt = Learnt::default();
                let (mut backoff, mut looks) = (Backoff::new(ADAPTIVE, limit_ns), Looks::default());
                let mut now_ns = 1_000_000;
                for turn in 0.. {
                    now_ns += if turn == turns { 4_000_000 } else { 10 };
                    let mut step = || match backoff.spins_on(&learnt) {
                        true => WaitStep::Spin,
                        false => backoff.decide(now_ns, true, &mut learnt),
                    };
                    let (looked, decided) = looks.after_turn(false, &mut step);
                    match decided.unwrap_or_else(step) {
                        WaitStep::Spin => {}
                        WaitStep::Yield => looks.look_next(),
                        last => {
                            assert!(looked, "{last:?} in turn {turn}, that of the pause {turns}");
                            break;
                        }
                    }
                    assert!(turn < 20_000, "it neither sleeps nor gives up");
                }
            }
        }
    }

    #[test]
    fn a_thread_that_spins_looks_where_something_came_and_once_in_a_number_of_turns() {
        let mut looks = Looks::default();
        let looked = (0..200).filter(|turn| looks.after_turn(*turn == 10, || WaitStep::Spin).0);
        assert_eq!(looked.collect::<Vec<_>>(), [0, 10, 74, 138]);
    }

    #[test]
    fn whatever_was_learnt_the_time_limit_ends_a_wait() {
        for manner in [ADAPTIVE, POLLED, Manner::Blocking] {
            for elsewhere in [false, true] {
                let (mut learnt, mut backoff) = (Learnt::default(), backoff(manner));
                assert_ne!(backoff.decide(5, elsewhere, &mut learnt), WaitStep::TimedOut);
                let over = backoff.decide(5 + 1_000_000_000, elsewhere, &mut learnt);
                assert_eq!(over, WaitStep::TimedOut);
            }
        }
    }

    #[test]
    fn the_time_is_asked_for_once_in_a_number_of_turns_also_where_something_moves_in_each() {
        let (mut backoff, learnt) = (backoff(ADAPTIVE), Learnt::default());
        let spins = (0..10 * TURNS_PER_LOOK).filter(|_| backoff.spins_on(&learnt)).count() as u32;
        assert_eq!(spins, 10 * (TURNS_PER_LOOK - 1));
        let mut looks = 0;
        let mut now_ns = 0;
        let mut turns = 0u32;
        // A hundredth of the limit each turn.
        loop {
            (turns, now_ns) = (turns + 1, now_ns + 10_000_000);
            backoff.restart();
            let asked = || {
                looks += 1;
                now_ns
            };
            if backoff.is_over(asked) {
                break;
            }
            assert!(turns < 1000, "it never ends");
        }
        assert_eq!(looks, turns / TURNS_PER_LOOK);
    }

    #[test]
    fn however_much_else_arrives_a_wait_ends_with_the_first_look_at_the_clock_after_its_time() {
        for manner in [POLLED, ADAPTIVE] {
            let (mut backoff, mut learnt) = (backoff(manner), Learnt::default());
            let mut now_ns = 5;
            let mut turns = 0;
            loop {
                // A microsecond a turn, in each of which something comes.
                (turns, now_ns) = (turns + 1, now_ns + 1000);
                backoff.restart();
                if backoff.spins_on(&learnt) {
                    continue;
                }
                match backoff.decide(now_ns, true, &mut learnt) {
                    WaitStep::TimedOut => break,
                    step => assert_eq!(step, WaitStep::Spin),
                }
            }
            // The time begins with the first look.
            let most = 1_000_000 + 2 * TURNS_PER_LOOK;
            assert!((1_000_000..=most).contains(&turns), "{turns} turns");
        }
    }

    #[test]
    fn what_was_once_learnt_of_one_processor_is_asked_anew_before_each_sleep() {
        let ask = |peers: &[Option<u32>]| peer_may_run(3, peers.iter().copied());
        // No peer; a peer that has not named its processor; one on another processor.
        assert!(ask(&[]) && ask(&[None]) && ask(&[Some(3), Some(4)]));
        assert!(!ask(&[Some(3)]) && !ask(&[Some(3); PEERS_MAX]));
        // Of more than are asked, one may be.
        let mut asked = 0;
        let peers = core::iter::repeat_with(|| {
            asked += 1;
            Some(3)
        });
        assert!(peer_may_run(3, peers.take(1000)));
        assert!(asked <= PEERS_MAX + 1);
    }
}
