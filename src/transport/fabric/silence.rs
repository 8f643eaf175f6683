//! Detects that messages sent over the fabric do not arrive, while the connection beside it lives.
//!
//! ```text
//!   this end's thread, a few times within host_timeout_ms      the other end's node, or its thread
//!   messages sent before the last look have not arrived --ASKS-->  takes incoming messages,
//!   nothing new again, and again, for the whole time    <--CAME--  even if its program rarely calls
//! ```
//! For most messages the other end's credit shows at no cost that they arrived. But credit counts
//! the messages that its program has used, and a program that uses none does not mean a fabric that
//! carries none: so this end asks, over TLS. A stopped process does not answer, and is waited for,
//! like over TLS alone. If a process answers, but no message arrives, the network drops the
//! provider's packets and no others.
//!
//! Writes to the other end's memory are checked separately: they use an end point of their own.
//!
//! Never: a link over which everything has arrived asks; a message costs any work here.

/// Answers in a row without a new arrival that silence requires: the other end has looked this
/// often.
const ANSWERS_MIN: u32 = 4;

/// The next step after a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SilenceStep {
    /// Nothing.
    Nothing,
    /// Ask the other end for the number of messages that have come.
    Ask,
    /// Nothing has arrived for too long over this part of the link.
    Silent(LinkPart),
}

/// A part of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkPart {
    /// Its messages.
    Messages,
    /// Writes to the other end's memory.
    Memory,
}

/// The input of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SilenceInput {
    /// Messages with data that have been sent.
    pub sent: u64,
    /// The number of these that the other end has used, from its credit.
    pub used: u64,
    /// The number of writes to its memory that have arrived; `None`: all have.
    pub writes: Option<u64>,
}

/// The state of these checks: see the module.
#[derive(Clone, Debug, Default)]
pub struct Silence {
    messages: Stretch,
    memory: Stretch,
    /// Messages that had come there at its last answer.
    came: u64,
    /// Messages that had been sent at the last check.
    sent: u64,
    /// A question is unanswered; `true`: its answer counts towards silence.
    asks: Option<bool>,
}

/// The time without a new arrival, over one part.
#[derive(Clone, Debug, Default)]
struct Stretch {
    arrived: u64,
    since_ns: Option<u64>,
    answers: u32,
}

impl Stretch {
    fn look(&mut self, now_ns: u64, arrived: u64, is_late: bool) {
        if core::mem::replace(&mut self.arrived, arrived) != arrived || !is_late {
            (self.since_ns, self.answers) = (None, 0);
        }
        if is_late {
            self.since_ns.get_or_insert(now_ns);
        }
    }

    fn is_silent(&self, now_ns: u64, limit_ns: u64) -> bool {
        let is_long = |since_ns| now_ns.saturating_sub(since_ns) >= limit_ns;
        self.answers >= ANSWERS_MIN && self.since_ns.is_some_and(is_long)
    }
}

impl Silence {
    /// Checks for silence; call it a few times within `limit_ns`, the longest time without an
    /// arrival.
    pub fn look(&mut self, now_ns: u64, found: SilenceInput, limit_ns: u64) -> SilenceStep {
        let arrived = found.used.max(self.came);
        let before = core::mem::replace(&mut self.sent, found.sent);
        self.messages.look(now_ns, arrived, arrived < before);
        self.memory.look(now_ns, found.writes.unwrap_or(0), found.writes.is_some());
        for (what, stretch) in
            [(LinkPart::Messages, &self.messages), (LinkPart::Memory, &self.memory)]
        {
            if stretch.is_silent(now_ns, limit_ns) {
                return SilenceStep::Silent(what);
            }
        }
        let is_late = self.messages.since_ns.is_some() || self.memory.since_ns.is_some();
        if !is_late {
            return SilenceStep::Nothing;
        }
        // An outstanding question counts from now on.
        match self.asks.replace(true) {
            None => SilenceStep::Ask,
            Some(_) => SilenceStep::Nothing,
        }
    }

    /// Whether the other end may be asked now, outside a check: the answer does not count towards
    /// silence.
    pub fn ask(&mut self) -> bool {
        let may_ask = self.asks.is_none();
        self.asks.get_or_insert(false);
        may_ask
    }

    /// Messages that had come there at its last answer.
    pub fn came(&self) -> u64 {
        self.came
    }

    /// Takes the other end's answer: `came` messages of `sent`. An error if that is not possible.
    pub fn answered(&mut self, came: u64, sent: u64) -> Result<(), &'static str> {
        let Some(counts) = self.asks.take() else {
            return Err("an answer to what it was not asked");
        };
        if came < self.came || came > sent {
            return Err("messages that came are fewer than before, or more than were sent");
        }
        self.came = came;
        // The next check finds new arrivals.
        for stretch in [&mut self.messages, &mut self.memory] {
            stretch.answers += u32::from(counts && stretch.since_ns.is_some());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LIMIT: u64 = 60;
    /// The pause between two checks.
    const STEP: u64 = 10;

    // Questions outside the checks neither count nor keep a check from asking.
    #[test]
    fn answers_to_other_questions_are_not_counted_and_keep_no_silence_hidden() {
        let mut silence = Silence::default();
        let mut now_ns = 0;
        let mut silent_at = None;
        for _ in 0..20 {
            for _ in 0..10 {
                assert!(silence.ask() && !silence.ask());
                silence.answered(0, 3).unwrap();
            }
            now_ns += STEP;
            // One is outstanding at each check.
            assert!(silence.ask());
            if silence.look(now_ns, found(3, 0), LIMIT) == SilenceStep::Silent(LinkPart::Messages) {
                silent_at = Some(now_ns);
                break;
            }
            silence.answered(0, 3).unwrap();
        }
        // The first check finds the sent message, the second that it has not arrived.
        assert_eq!(silent_at, Some(2 * STEP + LIMIT));
        // Three answers to checks are too few, however many there are to other questions.
        let mut silence = Silence::default();
        for look in 0.. {
            match silence.look(look * STEP, found(3, 0), 1) {
                SilenceStep::Silent(_) => {
                    assert_eq!(look, 1 + u64::from(ANSWERS_MIN));
                    break;
                }
                SilenceStep::Ask => silence.answered(0, 3).unwrap(),
                SilenceStep::Nothing => assert_eq!(look, 0),
            }
            for _ in 0..10 {
                assert!(silence.ask());
                silence.answered(0, 3).unwrap();
            }
        }
    }

    fn found(sent: u64, used: u64) -> SilenceInput {
        SilenceInput { sent, used, writes: None }
    }

    /// Makes checks, and answers each question with `came`. Returns the time of silence, and the
    /// number of questions.
    fn looks(
        silence: &mut Silence,
        found: SilenceInput,
        came: Option<u64>,
    ) -> (Option<(u64, LinkPart)>, u32) {
        looks_from(0, silence, found, came)
    }

    fn looks_from(
        first_ns: u64,
        silence: &mut Silence,
        found: SilenceInput,
        came: Option<u64>,
    ) -> (Option<(u64, LinkPart)>, u32) {
        let mut asked = 0;
        for i in 0..100 {
            match silence.look(first_ns + i * STEP, found, LIMIT) {
                SilenceStep::Silent(what) => return (Some((i * STEP, what)), asked),
                SilenceStep::Ask => {
                    asked += 1;
                    if let Some(came) = came {
                        silence.answered(came, found.sent).unwrap();
                    }
                }
                SilenceStep::Nothing => {}
            }
        }
        (None, asked)
    }

    #[test]
    fn where_everything_has_arrived_nothing_is_asked() {
        assert_eq!(looks(&mut Silence::default(), found(0, 0), None), (None, 0));
        assert_eq!(looks(&mut Silence::default(), found(5, 5), None), (None, 0));
    }

    #[test]
    fn what_credit_has_yet_to_tell_is_asked_once() {
        assert_eq!(looks(&mut Silence::default(), found(5, 3), Some(5)), (None, 1));
    }

    #[test]
    fn a_host_that_answers_and_to_which_nothing_comes_is_silent_after_the_time() {
        let (silent, _) = looks(&mut Silence::default(), found(5, 3), Some(3));
        // The first check finds messages sent since the one before, which may be new.
        assert_eq!(silent, Some((STEP + LIMIT, LinkPart::Messages)));
    }

    #[test]
    fn a_host_that_does_not_answer_is_waited_for_and_then_has_its_time() {
        let mut silence = Silence::default();
        assert_eq!(looks(&mut silence, found(5, 3), None), (None, 1));
        // It goes on, and answers a question from before it stopped.
        silence.answered(3, 5).unwrap();
        let (silent, asked) = looks_from(100 * STEP, &mut silence, found(5, 3), Some(3));
        assert_eq!((silent, asked), (Some((3 * STEP, LinkPart::Messages)), ANSWERS_MIN - 1));
    }

    #[test]
    fn writes_that_do_not_arrive_are_silent_though_messages_do() {
        let mut silence = Silence::default();
        let mut sent = 0;
        let after = (0..100).find(|i| {
            sent += 3;
            let found = SilenceInput { sent, used: sent - 1, writes: Some(7) };
            match silence.look(i * STEP, found, LIMIT) {
                SilenceStep::Silent(what) => {
                    assert_eq!(what, LinkPart::Memory);
                    return true;
                }
                SilenceStep::Ask => silence.answered(sent, sent).unwrap(),
                SilenceStep::Nothing => {}
            }
            false
        });
        // The first check is the first that finds this number.
        assert_eq!(after.map(|i| i * STEP), Some(LIMIT));
    }

    #[test]
    fn what_no_host_answers_is_an_error() {
        let mut silence = Silence::default();
        assert!(silence.answered(0, 5).is_err(), "not asked");
        let asked = |silence: &mut Silence| {
            (0..2).any(|now_ns| silence.look(now_ns, found(5, 0), LIMIT) == SilenceStep::Ask)
        };
        assert!(asked(&mut silence));
        assert!(silence.answered(6, 5).is_err(), "more than were sent");
        assert!(asked(&mut silence));
        silence.answered(3, 5).unwrap();
        assert!(asked(&mut silence));
        assert!(silence.answered(2, 5).is_err(), "fewer than before");
    }

    proptest! {
        // The link lives as long as, within each time limit, something arrives between two checks,
        // or nothing is late.
        #[test]
        fn a_fabric_that_carries_something_in_time_is_never_silent(
            steps in proptest::collection::vec((0u64..5, 1u64..4, any::<bool>()), 1..200),
        ) {
            let (mut silence, mut sent, mut came, mut now_ns) = (Silence::default(), 0, 0, 0);
            for (more, arrives, by_credit) in steps {
                sent += more;
                came = sent.min(came + arrives);
                now_ns += STEP;
                let used = if by_credit { came } else { 0 };
                match silence.look(now_ns, found(sent, used), LIMIT) {
                    SilenceStep::Silent(_) => prop_assert!(false, "silent with {came} of {sent}"),
                    SilenceStep::Ask => silence.answered(came, sent).unwrap(),
                    SilenceStep::Nothing => {}
                }
            }
        }
    }
}
