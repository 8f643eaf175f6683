//! The head of each message of a link over a fabric, and the limit on messages on their way.
//!
//! ```text
//!   token | data messages before this one | data messages that the other end may have sent in all
//! ```
//! each 8 bytes, little-endian; behind them a part of the link's bytes. A message without data is a
//! grant alone: it is used as soon as it comes. So at most two of them lie in buffers beside the
//! granted data, for each grants half a window that has been used.
//!
//! A provider assigns buffers to messages in the order of sending (`FI_ORDER_SAS`), but may
//! complete a short one while an earlier long one is still on its way: early messages are kept.
//!
//! Never: a number of the other end's makes this end send more than was granted, or keep more than
//! it granted.

/// Bytes before the link's.
pub const HEAD_BYTES: usize = 24;
/// Buffers for grants, beside those of the window.
pub const GRANTS_MAX: usize = 2;

/// The head of a message: see the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreditHead {
    /// The receiver's link: a random number that the receiver chose.
    pub token: u64,
    /// Messages with data before this one.
    pub before: u64,
    /// The total number of messages with data that the other end may have sent.
    pub granted: u64,
}

impl CreditHead {
    /// The head in the form that is sent.
    pub fn to_bytes(self) -> [u8; HEAD_BYTES] {
        let mut bytes = [0; HEAD_BYTES];
        for (to, word) in bytes.chunks_exact_mut(8).zip([self.token, self.before, self.granted]) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Splits a message into its head and its data; `None`: it is too short.
    pub fn read(message: &[u8]) -> Option<(Self, &[u8])> {
        let (head, data) = message.split_first_chunk::<HEAD_BYTES>()?;
        let word = |at: usize| {
            u64::from_le_bytes(head[at..at + 8].try_into().expect("8 bytes of the head"))
        };
        Some((Self { token: word(0), before: word(8), granted: word(16) }, data))
    }
}

/// The counters of one link's messages at one end.
#[derive(Clone, Debug)]
pub struct Credit {
    /// Messages that may be on their way to this end, and to the other.
    window: u64,
    other_window: u64,
    sent: u64,
    may_send: u64,
    came: u64,
    used: u64,
    granted: u64,
}

/// A violation of the rules by the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreditViolation(pub &'static str);

impl Credit {
    /// For ends that have announced these windows.
    pub fn new(window: u32, other_window: u32) -> Self {
        let (window, other_window) = (u64::from(window), u64::from(other_window));
        let (sent, came, used) = (0, 0, 0);
        Self { window, other_window, sent, may_send: other_window, came, used, granted: window }
    }

    /// Whether another message with data may be sent.
    pub fn may_send(&self) -> bool {
        self.sent < self.may_send
    }

    /// Messages with data that were sent.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// The number of these that the other end has used, from its grants.
    pub fn used_there(&self) -> u64 {
        self.may_send - self.other_window
    }

    /// Messages with data that came.
    pub fn came(&self) -> u64 {
        self.came
    }

    /// The head of the next message.
    pub fn head(&self, token: u64) -> CreditHead {
        CreditHead { token, before: self.sent, granted: self.used + self.window }
    }

    /// Counts a message as sent.
    pub fn has_sent(&mut self, head: &CreditHead, has_data: bool) {
        self.granted = head.granted;
        self.sent += u64::from(has_data);
    }

    /// Whether the other end is due a grant.
    pub fn grant_is_due(&self) -> bool {
        self.used + self.window - self.granted >= self.window.div_ceil(2)
    }

    /// Checks an incoming message. One with data is the next, or early; the caller, who keeps the
    /// early ones, states whether it `is_there` already.
    pub fn take(
        &mut self,
        head: &CreditHead,
        has_data: bool,
        is_there: bool,
    ) -> Result<(), CreditViolation> {
        // It cannot have used more of this end's messages than were sent.
        if head.granted > self.sent + self.other_window {
            return Err(CreditViolation("a grant of what it does not have"));
        }
        if has_data && head.before >= self.granted {
            return Err(CreditViolation("more messages than it was granted"));
        }
        if has_data && (head.before < self.came || is_there) {
            return Err(CreditViolation("a message twice"));
        }
        self.may_send = self.may_send.max(head.granted);
        Ok(())
    }

    /// The next message has come; call it for each, in order.
    pub fn has_come(&mut self) {
        self.came += 1;
    }

    /// A message with data has been used, and its buffer is free for another one.
    pub fn has_used(&mut self) {
        self.used += 1;
        debug_assert!(self.used <= self.came);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::{BTreeSet, VecDeque};

    const A: u64 = 7;

    #[test]
    fn a_head_is_read_as_it_is_written() {
        let head = CreditHead { token: u64::MAX, before: 1, granted: 2 };
        let bytes = head.to_bytes();
        assert_eq!(CreditHead::read(&bytes), Some((head, &[][..])));
        assert_eq!(CreditHead::read(&[&bytes[..], b"x"].concat()), Some((head, &b"x"[..])));
        assert_eq!(CreditHead::read(&bytes[..HEAD_BYTES - 1]), None);
    }

    #[test]
    fn what_no_honest_end_sends_is_refused_and_changes_nothing() {
        let credit = Credit::new(2, 4);
        let head = |before, granted| CreditHead { token: A, before, granted };
        for (head, has_data, why) in [
            (head(2, 4), true, "more messages"),
            (head(u64::MAX, 4), true, "more messages"),
            (head(0, 5), true, "a grant"),
            (head(0, u64::MAX), true, "a grant"),
            (head(0, 5), false, "a grant"),
        ] {
            let mut tried = credit.clone();
            let error = tried.take(&head, has_data, false).unwrap_err();
            assert!(error.0.contains(why), "{head:?}: {error:?}");
            assert_eq!(std::format!("{tried:?}"), std::format!("{credit:?}"));
        }
        let mut credit = credit;
        credit.take(&head(0, 4), true, false).unwrap();
        credit.has_come();
        for is_there in [false, true] {
            let error = credit.take(&head(u64::from(is_there), 4), true, is_there).unwrap_err();
            assert!(error.0.contains("twice"), "{error:?}");
        }
    }

    proptest! {
        // For two honest ends, in any order of events: everything arrives, no message is refused,
        // and no more lie at an end than it has buffers for.
        #[test]
        fn honest_ends_never_break_the_rules(
            windows in (2u32..9, 2u32..9),
            steps in proptest::collection::vec((any::<bool>(), 0u8..5), 0..400),
        ) {
            let mut ends = [Credit::new(windows.0, windows.1), Credit::new(windows.1, windows.0)];
            // The messages on their way to each end, and those that came there and were not used.
            let mut on_way: [VecDeque<(CreditHead, bool)>; 2] = Default::default();
            let mut waits = [0u64; 2];
            let mut early: [BTreeSet<u64>; 2] = Default::default();
            let mut sent = [0u64; 2];
            let all = steps.iter().copied().chain((0..4000).map(|i| (i % 2 == 0, (i / 2 % 4) as u8)));
            for (at, (is_first, what)) in all.enumerate() {
                let (own, other) = if is_first { (0, 1) } else { (1, 0) };
                match what {
                    0 if at < steps.len() && ends[own].may_send() => {
                        let head = ends[own].head(A);
                        ends[own].has_sent(&head, true);
                        on_way[other].push_back((head, true));
                        sent[own] += 1;
                    }
                    1 if ends[own].grant_is_due() => {
                        let head = ends[own].head(A);
                        ends[own].has_sent(&head, false);
                        on_way[other].push_back((head, false));
                    }
                    // The first, or a grant, which overtakes data.
                    2 | 4 => {
                        let overtakes = what == 4 && on_way[own].front().is_some_and(|first| first.1);
                        if let Some((head, has_data)) = on_way[own].remove(overtakes.into()) {
                            prop_assert_eq!(ends[own].take(&head, has_data, false), Ok(()));
                            if has_data {
                                early[own].insert(head.before);
                            }
                            while early[own].remove(&ends[own].came()) {
                                ends[own].has_come();
                                waits[own] += 1;
                            }
                        }
                    }
                    3 if waits[own] > 0 => {
                        ends[own].has_used();
                        waits[own] -= 1;
                    }
                    _ => {}
                }
                for end in 0..2 {
                    let window = if end == 0 { windows.0 } else { windows.1 };
                    let data = on_way[end].iter().filter(|message| message.1).count();
                    let kept = waits[end] + early[end].len() as u64;
                    prop_assert!(data as u64 + kept <= u64::from(window));
                    let lie = on_way[end].len() as u64 + kept;
                    prop_assert!(lie <= u64::from(window) + GRANTS_MAX as u64, "{} lie there", lie);
                }
            }
            prop_assert_eq!([ends[1].came(), ends[0].came()], sent);
            prop_assert!(ends[0].may_send() && ends[1].may_send());
        }
    }
}
