//! The counters of both ends of a link with several rails: no batch is lost, and none is taken
//! twice.
//!
//! ```text
//!   sender                                       receiver
//!   put(): number, kept  ---- any rail ---->     take(): dropped if it had come, else had
//!   reported()           <--- had, freed ----    ready --> the node: freed
//!   left(): nowhere      ----- ASK ----------->  the batches that have come
//!   answered(): again    <---- ANSWER ---------
//! ```
//! Packets travel in *batches*. Each has a number, and its sender keeps it until the other end has
//! confirmed it. Batches of short packets also have a place among themselves; they are taken in the
//! order of their places, like in a link's base ring. Batches of long packets are taken as they
//! come, like from a bulk ring. When a rail is left, the sender asks over the others which batches
//! have come, and sends the missing ones again. (A batch that was on its way when the other end
//! answered may come twice: its number identifies the second, which is dropped.)
//!
//! An end that leaves a rail reports over another which batches came and were taken: a report sent
//! over the lost rail may be lost, and credit with it.
//!
//! Never: more bytes are kept, on either end, than the receiver's credit and one batch, or more
//! numbers than [`WINDOW`]; a number from the other end is used before it is checked against the
//! possible ones.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;

/// Bytes in front of each batch, and of each message about batches.
pub const HEAD_BYTES: usize = 40;
/// Most batches on their way; it limits the memory for batches that came out of order.
pub const WINDOW: u64 = 1024;
/// Bytes of an answer: a bit for each number from the first missing one on.
pub const ANSWER_BYTES: usize = WINDOW as usize / 8;

/// The contents behind a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RailKind {
    /// A batch of long packets.
    Long,
    /// A batch of short packets, with a place.
    Short,
    /// The last batch: no more follow.
    Last,
    /// Nothing: the head is the report.
    Report,
    /// A question, with a number: which batches have come?
    Ask,
    /// The answer to the question of that number.
    Answer,
}

const KINDS: [RailKind; 6] = [
    RailKind::Long,
    RailKind::Short,
    RailKind::Last,
    RailKind::Report,
    RailKind::Ask,
    RailKind::Answer,
];

/// The head of each message on a rail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RailHead {
    /// The kind of message.
    pub kind: RailKind,
    /// Bytes behind it.
    pub length: u32,
    /// The number of the batch or question.
    pub number: u64,
    /// The place of a batch of short packets.
    pub place: u64,
    /// The sender of this head has received all batches of lower numbers.
    pub had: u64,
    /// Bytes of batches that the sender's node has taken.
    pub freed: u64,
}

impl RailHead {
    /// The head in the form that is sent.
    pub fn to_bytes(self) -> [u8; HEAD_BYTES] {
        let kind = KINDS.iter().position(|kind| *kind == self.kind).unwrap_or(0) as u64;
        let words =
            [kind | u64::from(self.length) << 32, self.number, self.place, self.had, self.freed];
        let mut bytes = [0; HEAD_BYTES];
        for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Reads a head. `batch_bytes`: most bytes of a batch.
    pub fn read(bytes: &[u8; HEAD_BYTES], batch_bytes: usize) -> Result<Self, BatchViolation> {
        let mut words = [0; HEAD_BYTES / 8];
        for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = u64::from_le_bytes(bytes.try_into().expect("chunks of 8"));
        }
        let [first, number, place, had, freed] = words;
        let kind = KINDS.get((first as u32) as usize).copied();
        let kind =
            kind.ok_or(BatchViolation("something that is no batch and no word about one"))?;
        let length = (first >> 32) as u32;
        let fits = match kind {
            RailKind::Long | RailKind::Short => length > 0 && length as usize <= batch_bytes,
            RailKind::Last => length as usize <= batch_bytes,
            RailKind::Report | RailKind::Ask => length == 0,
            RailKind::Answer => length as usize == ANSWER_BYTES,
        };
        match fits {
            true => Ok(Self { kind, length, number, place, had, freed }),
            false => Err(BatchViolation("a batch of a length that none has")),
        }
    }
}

/// A message about batches that no honest host sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchViolation(pub &'static str);

/// The state of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Where {
    /// It was sent over this rail.
    On(u64),
    /// Its rail was left. It is sent again unless the answer to this question, or to a later one,
    /// confirms it.
    Nowhere(u64),
    /// It has come.
    There,
}

#[derive(Debug)]
struct KeptBatch {
    kind: RailKind,
    place: u64,
    /// With room for the head in front.
    bytes: Vec<u8>,
    is: Where,
}

/// The sending end's state.
#[derive(Debug)]
pub struct RailSending {
    /// Bytes that may be on their way.
    credit: u64,
    place: u64,
    /// Batches that the other end has not confirmed, from number `had` on.
    kept: VecDeque<KeptBatch>,
    had: u64,
    /// Their bytes: at most the credit and a batch, whatever the other end reports.
    kept_bytes: u64,
    put_bytes: u64,
    freed: u64,
    asked: u64,
    answered: u64,
    /// Batches that were sent a second time.
    again: u64,
}

impl RailSending {
    /// For a receiver that grants this number of bytes.
    pub fn new(credit: u64) -> Self {
        Self {
            credit,
            place: 0,
            kept: VecDeque::new(),
            had: 0,
            kept_bytes: 0,
            put_bytes: 0,
            freed: 0,
            asked: 0,
            answered: 0,
            again: 0,
        }
    }

    fn next(&self) -> u64 {
        self.had + self.kept.len() as u64
    }

    /// Whether the credit lasts for another batch.
    pub fn may_put(&self) -> bool {
        let bytes = self.kept_bytes.max(self.put_bytes - self.freed);
        (self.kept.len() as u64) < WINDOW && bytes < self.credit
    }

    /// Whether the other end has confirmed all batches.
    pub fn is_all_there(&self) -> bool {
        self.kept.is_empty()
    }

    /// Batches that were sent a second time.
    pub fn sent_again(&self) -> u64 {
        self.again
    }

    /// Keeps a batch that is to be sent over `rail`; returns its number for
    /// [`bytes_of`](Self::bytes_of).
    pub fn put(&mut self, kind: RailKind, bytes: &[u8], rail: u64) -> u64 {
        let place = self.place;
        self.place += u64::from(kind == RailKind::Short);
        let mut kept = Vec::with_capacity(HEAD_BYTES + bytes.len());
        kept.resize(HEAD_BYTES, 0);
        kept.extend_from_slice(bytes);
        let number = self.next();
        self.put_bytes += bytes.len() as u64;
        self.kept_bytes += bytes.len() as u64;
        self.kept.push_back(KeptBatch { kind, place, bytes: kept, is: Where::On(rail) });
        number
    }

    /// A batch with its head, which also reports the batches that came to this end.
    pub fn bytes_of(&mut self, number: u64, had: u64, freed: u64) -> &[u8] {
        let kept = &mut self.kept[(number - self.had) as usize];
        let length = (kept.bytes.len() - HEAD_BYTES) as u32;
        let head = RailHead { kind: kept.kind, length, number, place: kept.place, had, freed };
        kept.bytes[..HEAD_BYTES].copy_from_slice(&head.to_bytes());
        &kept.bytes
    }

    /// Handles the other end's report of batches that came and were taken there. Calls `went_over`
    /// with the rail of each batch that it confirms.
    pub fn reported(
        &mut self,
        had: u64,
        freed: u64,
        mut went_over: impl FnMut(u64),
    ) -> Result<(), BatchViolation> {
        if had > self.next() || freed > self.put_bytes {
            return Err(BatchViolation("that it has what was not sent"));
        }
        // A report over another rail may have overtaken this one.
        while self.had < had {
            if let Some(kept) = self.kept.pop_front() {
                self.kept_bytes -= (kept.bytes.len() - HEAD_BYTES) as u64;
                if let Where::On(rail) = kept.is {
                    went_over(rail);
                }
            }
            self.had += 1;
        }
        self.freed = self.freed.max(freed);
        Ok(())
    }

    /// Returns the number of a new question.
    pub fn ask(&mut self) -> u64 {
        self.asked += 1;
        self.asked
    }

    /// The last question that has been answered.
    pub fn answered(&self) -> u64 {
        self.answered
    }

    /// Handles the answer to a question: `had` and a bit for each number from there on.
    pub fn answer(
        &mut self,
        question: u64,
        had: u64,
        bits: &[u8],
        mut went_over: impl FnMut(u64),
    ) -> Result<(), BatchViolation> {
        if question == 0 || question > self.asked {
            return Err(BatchViolation("the answer to what was not asked"));
        }
        for (i, byte) in bits.iter().enumerate().filter(|(_, byte)| **byte != 0) {
            for bit in (0..8).filter(|bit| byte >> bit & 1 != 0) {
                let number = had.saturating_add(8 * i as u64 + bit);
                if number >= self.next() {
                    return Err(BatchViolation("that it has what was not sent"));
                }
                if let Some(at) = number.checked_sub(self.had) {
                    let is = &mut self.kept[at as usize].is;
                    if let Where::On(rail) = core::mem::replace(is, Where::There) {
                        went_over(rail);
                    }
                }
            }
        }
        self.answered = self.answered.max(question);
        Ok(())
    }

    /// Marks a rail as left. Returns whether there are batches whose arrival is unknown: then the
    /// caller has to ask over each of the other rails.
    pub fn left(&mut self, rail: u64) -> bool {
        let question = self.asked + 1;
        let mut any = false;
        for kept in &mut self.kept {
            if kept.is == Where::On(rail) {
                kept.is = Where::Nowhere(question);
                any = true;
            }
        }
        any || self.is_waiting()
    }

    /// Whether any batch is on no rail.
    pub fn is_waiting(&self) -> bool {
        self.kept.iter().any(|kept| matches!(kept.is, Where::Nowhere(_)))
    }

    /// Whether any batch sent over a rail is unconfirmed.
    pub fn is_on(&self, rail: u64) -> bool {
        self.kept.iter().any(|kept| kept.is == Where::On(rail))
    }

    /// Returns the number of the next batch to send again, from now on over `rail`.
    pub fn next_again(&mut self, rail: u64) -> Option<u64> {
        let answered = self.answered;
        let is_due =
            |kept: &KeptBatch| matches!(kept.is, Where::Nowhere(asked) if asked <= answered);
        let at = self.kept.iter().position(is_due)?;
        self.kept[at].is = Where::On(rail);
        self.again += 1;
        Some(self.had + at as u64)
    }
}

/// The receiving end's state.
#[derive(Debug)]
pub struct Receiving {
    credit: u64,
    batch_bytes: u64,
    had: u64,
    /// Batches that came before one of a lower number.
    above: BTreeSet<u64>,
    /// The place of the next batch of short packets, and the batches that came before their turn.
    place: u64,
    waiting: BTreeMap<u64, Vec<u8>>,
    /// Batches to be taken; `used` bytes of the first have been.
    ready: VecDeque<Vec<u8>>,
    used: usize,
    /// The last batch's number, and its bytes until they may be taken.
    last: Option<(u64, Option<Vec<u8>>)>,
    came_bytes: u64,
    freed: u64,
    /// Batches that came twice; and the most that there may be, since rails were left.
    twice: u64,
    twice_max: u64,
}

impl Receiving {
    /// Grants a number of bytes, in batches of limited size.
    pub fn new(credit: u64, batch_bytes: u64) -> Self {
        Self {
            credit,
            batch_bytes,
            had: 0,
            above: BTreeSet::new(),
            place: 0,
            waiting: BTreeMap::new(),
            ready: VecDeque::new(),
            used: 0,
            last: None,
            came_bytes: 0,
            freed: 0,
            twice: 0,
            twice_max: 0,
        }
    }

    /// The number below which all batches have come, and the bytes of batches that were taken.
    pub fn state(&self) -> (u64, u64) {
        (self.had, self.freed)
    }

    /// Batches that came twice.
    pub fn twice(&self) -> u64 {
        self.twice
    }

    /// A rail has joined: batches on it may have to be sent again.
    pub fn has_rail(&mut self) {
        self.twice_max += WINDOW;
    }

    /// Takes a whole batch.
    pub fn take(&mut self, head: &RailHead, bytes: &[u8]) -> Result<(), BatchViolation> {
        let number = head.number;
        if number >= self.had + WINDOW {
            return Err(BatchViolation("a batch beyond those that may be on their way"));
        }
        if number < self.had || self.above.contains(&number) {
            self.twice += 1;
            return match self.twice > self.twice_max {
                true => Err(BatchViolation("batches that it had sent, on and on")),
                false => Ok(()),
            };
        }
        if self.last.as_ref().is_some_and(|(last, _)| number > *last) {
            return Err(BatchViolation("more behind what it said was the last"));
        }
        let held = self.came_bytes - self.freed;
        if held + bytes.len() as u64 > self.credit + self.batch_bytes {
            return Err(BatchViolation("more than it was granted"));
        }
        match head.kind {
            RailKind::Long => self.ready.push_back(bytes.into()),
            RailKind::Short => {
                let place = head.place;
                let is_new = place >= self.place
                    && place - self.place <= WINDOW
                    && self.waiting.insert(place, bytes.into()).is_none();
                if !is_new {
                    return Err(BatchViolation("a batch at a place where there is another"));
                }
                while let Some(next) = self.waiting.remove(&self.place) {
                    self.ready.push_back(next);
                    self.place += 1;
                }
            }
            RailKind::Last => {
                let is_behind = self.above.last().is_none_or(|last| *last < number);
                if !is_behind || self.last.is_some() {
                    return Err(BatchViolation("more behind what it said was the last"));
                }
                self.last = Some((number, Some(bytes.into())));
            }
            RailKind::Report | RailKind::Ask | RailKind::Answer => {
                debug_assert!(false, "no batch");
            }
        }
        self.came_bytes += bytes.len() as u64;
        self.above.insert(number);
        while self.above.remove(&self.had) {
            self.had += 1;
        }
        let had = self.had;
        if let Some((number, last)) = &mut self.last
            && had > *number
            && let Some(last) = last.take()
        {
            if !self.waiting.is_empty() {
                return Err(BatchViolation("no batch at a place before others"));
            }
            if !last.is_empty() {
                self.ready.push_back(last);
            }
        }
        Ok(())
    }

    /// A bit for each number from the first missing one on.
    pub fn bits(&self) -> [u8; ANSWER_BYTES] {
        let mut bits = [0; ANSWER_BYTES];
        for number in &self.above {
            let at = (number - self.had) as usize;
            if let Some(byte) = bits.get_mut(at / 8) {
                *byte |= 1 << (at % 8);
            }
        }
        bits
    }

    /// The next bytes to be taken.
    pub fn plain(&self) -> &[u8] {
        self.ready.front().map_or(&[], |first| &first[self.used..])
    }

    /// Removes this number of them.
    pub fn taken(&mut self, bytes: usize) {
        self.used += bytes;
        let Some(first) = self.ready.front() else { return };
        debug_assert!(self.used <= first.len());
        if self.used >= first.len() {
            self.freed += first.len() as u64;
            self.used = 0;
            self.ready.pop_front();
        }
    }

    /// Discards all bytes that are to be taken.
    pub fn drop_ready(&mut self) {
        while !self.ready.is_empty() {
            self.taken(self.plain().len());
        }
    }

    /// Whether the last batch and all before it have come.
    pub fn has_all(&self) -> bool {
        self.last.as_ref().is_some_and(|(_, last)| last.is_none())
    }

    /// Whether the last batch has also been taken.
    pub fn is_over(&self) -> bool {
        self.has_all() && self.ready.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec;

    const BATCH: usize = 64;

    fn head(kind: RailKind, number: u64, place: u64, length: usize) -> RailHead {
        RailHead { kind, length: length as u32, number, place, had: 0, freed: 0 }
    }

    fn came(receiving: &mut Receiving, number: u64) -> Result<(), BatchViolation> {
        receiving.take(&head(RailKind::Long, number, 0, 1), &[number as u8])
    }

    #[test]
    fn a_head_is_read_as_it_was_written_and_nothing_else_is_one() {
        for kind in KINDS {
            let length = match kind {
                RailKind::Report | RailKind::Ask => 0,
                RailKind::Answer => ANSWER_BYTES,
                _ => 7,
            };
            let head = RailHead {
                kind,
                length: length as u32,
                number: 1,
                place: 2,
                had: 3,
                freed: u64::MAX,
            };
            assert_eq!(RailHead::read(&head.to_bytes(), BATCH), Ok(head));
            let wrong = RailHead { length: 4096, ..head };
            assert!(RailHead::read(&wrong.to_bytes(), BATCH).is_err(), "{kind:?}");
        }
        let mut bytes = head(RailKind::Ask, 1, 0, 0).to_bytes();
        bytes[0] = 6;
        assert!(RailHead::read(&bytes, BATCH).is_err());
    }

    #[test]
    fn a_batch_that_has_come_is_dropped_and_one_that_repeats_them_is_found() {
        let mut receiving = Receiving::new(1 << 20, BATCH as u64);
        receiving.has_rail();
        came(&mut receiving, 0).unwrap();
        came(&mut receiving, 2).unwrap();
        for i in 0..WINDOW {
            came(&mut receiving, 2 * (i % 2)).unwrap();
        }
        assert_eq!((receiving.twice(), receiving.state().0), (WINDOW, 1));
        assert!(came(&mut receiving, 0).is_err());
        let mut bytes = vec![];
        while !receiving.plain().is_empty() {
            bytes.push(receiving.plain()[0]);
            receiving.taken(1);
        }
        assert_eq!(bytes, [0, 2]);
    }

    #[test]
    fn no_more_than_the_credit_is_kept_for_one_that_frees_what_it_does_not_say_to_have() {
        let mut sending = RailSending::new(10 * BATCH as u64);
        let mut put = 0;
        while sending.may_put() {
            sending.put(RailKind::Long, &[7; BATCH], 1);
            put += 1;
            sending.reported(0, put * BATCH as u64, |_| ()).unwrap();
        }
        assert_eq!(put, 10);
        sending.reported(4, put * BATCH as u64, |_| ()).unwrap();
        assert!(sending.may_put());
    }

    #[test]
    fn numbers_that_cannot_be_are_told_from_those_that_can() {
        let new = || {
            let mut receiving = Receiving::new(100, BATCH as u64);
            receiving.has_rail();
            receiving
        };
        assert!(came(&mut new(), WINDOW - 1).is_ok());
        assert!(came(&mut new(), WINDOW).is_err());
        assert!(came(&mut new(), u64::MAX).is_err());
        // More than was granted, although none of it can be taken yet.
        let mut receiving = new();
        let short = |number: u64| (head(RailKind::Short, number, number, BATCH), [7; BATCH]);
        let mut taken = 0;
        let refused = loop {
            let (head, bytes) = short(1 + taken);
            match receiving.take(&head, &bytes) {
                Ok(()) => taken += 1,
                Err(refused) => break refused,
            }
        };
        assert_eq!((taken, refused.0), (2, "more than it was granted"));
        assert!(receiving.plain().is_empty());
        // Two at one place, or one too far from the next.
        let mut receiving = new();
        receiving.take(&head(RailKind::Short, 1, 3, 1), &[1]).unwrap();
        assert!(receiving.take(&head(RailKind::Short, 2, 3, 1), &[1]).is_err());
        assert!(new().take(&head(RailKind::Short, 0, WINDOW + 1, 1), &[1]).is_err());
        // Behind the last, and a last in front of others.
        let mut receiving = new();
        receiving.take(&head(RailKind::Last, 1, 0, 1), &[1]).unwrap();
        assert!(came(&mut receiving, 2).is_err());
        assert!(!receiving.has_all());
        came(&mut receiving, 0).unwrap();
        assert!(receiving.has_all() && !receiving.is_over());
        let mut receiving = new();
        came(&mut receiving, 5).unwrap();
        assert!(receiving.take(&head(RailKind::Last, 1, 0, 1), &[1]).is_err());
        // Places left out before the last.
        let mut receiving = new();
        receiving.take(&head(RailKind::Short, 0, 1, 1), &[1]).unwrap();
        assert!(receiving.take(&head(RailKind::Last, 1, 0, 1), &[1]).is_err());
    }

    #[test]
    fn what_is_said_to_have_come_was_sent() {
        let mut sending = RailSending::new(100);
        sending.put(RailKind::Long, &[1; 10], 0);
        assert!(sending.reported(2, 0, |_| ()).is_err());
        assert!(sending.reported(1, 11, |_| ()).is_err());
        assert!(sending.answer(1, 0, &[1], |_| ()).is_err(), "nothing was asked");
        let question = sending.ask();
        assert!(sending.answer(question, 0, &[2], |_| ()).is_err());
        assert!(sending.answer(question, u64::MAX - 7, &[1], |_| ()).is_err());
        sending.answer(question, 0, &[1], |_| ()).unwrap();
        sending.reported(1, 10, |_| ()).unwrap();
        // An old report that comes late has no effect.
        sending.reported(0, 0, |_| ()).unwrap();
        assert!(sending.is_all_there());
    }

    #[test]
    fn what_is_kept_is_bounded_by_the_credit_and_by_the_window() {
        let mut sending = RailSending::new(1000);
        let mut bytes = 0;
        while sending.may_put() {
            sending.put(RailKind::Long, &[0; BATCH], 0);
            bytes += BATCH;
        }
        assert!((1000..1000 + BATCH).contains(&bytes));
        let mut sending = RailSending::new(u64::MAX);
        for _ in 0..WINDOW {
            assert!(sending.may_put());
            sending.put(RailKind::Long, &[0], 0);
        }
        assert!(!sending.may_put());
    }

    proptest! {
        // Rails die with their batches, at any time, for good, and new ones join; rails stall, and
        // are left or go on; questions and answers are delayed at will. Every batch is taken once,
        // the short ones in their order, and the last behind all.
        #[test]
        fn nothing_is_lost_and_nothing_comes_twice(
            count in 2usize..=4,
            choices in proptest::collection::vec(any::<u8>(), 1..800),
        ) {
            let (mut sending, mut receiving) = (RailSending::new(300), Receiving::new(300, BATCH as u64));
            // For each rail: the messages on their way there, and back.
            type Way = VecDeque<(RailHead, Vec<u8>)>;
            let mut rails: BTreeMap<u64, (Way, Way)> = BTreeMap::new();
            // Rails on which nothing arrives.
            let mut stalls: BTreeSet<u64> = BTreeSet::new();
            let mut next_rail = 0;
            let (mut sent, mut seen, mut is_last_sent) = (vec![], vec![], false);
            let total = 100u32;
            let mut steps = choices.into_iter();
            for round in 0.. {
                prop_assert!(round < 200_000, "it does not come to an end");
                // When no choices are left no rail dies any more.
                let choice = steps.next();
                let what = choice.unwrap_or((round % 7) as u8);
                if choice.is_none() {
                    stalls.clear();
                }
                while rails.len() < count {
                    receiving.has_rail();
                    // Reports over the lost rail are lost.
                    let (had, freed) = receiving.state();
                    let report = RailHead { had, freed, ..head(RailKind::Report, 0, 0, 0) };
                    rails.values_mut().for_each(|rail| rail.1.push_back((report, vec![])));
                    rails.insert(next_rail, Default::default());
                    rails.get_mut(&next_rail).unwrap().1.push_back((report, vec![]));
                    if sending.is_waiting() {
                        let ask = head(RailKind::Ask, sending.ask(), 0, 0);
                        rails.get_mut(&next_rail).unwrap().0.push_back((ask, vec![]));
                    }
                    next_rail += 1;
                }
                let ids: Vec<u64> = rails.keys().copied().collect();
                let rail = ids[usize::from(what / 16) % count];
                match what % 16 {
                    0 if choice.is_some() => {
                        rails.remove(&rail);
                        if sending.left(rail) {
                            let ask = head(RailKind::Ask, sending.ask(), 0, 0);
                            for (there, _) in rails.values_mut() {
                                there.push_back((ask, vec![]));
                            }
                        }
                    }
                    10 if choice.is_some() && !stalls.remove(&rail) => {
                        stalls.insert(rail);
                    }
                    1..=4 | 11..=15 if sending.may_put() && (sent.len() as u32) < total => {
                        let kind = if what % 2 == 0 { RailKind::Long } else { RailKind::Short };
                        let id = sent.len() as u32;
                        let bytes = [&id.to_le_bytes()[..], &vec![7; usize::from(what) % 50]].concat();
                        sent.push((id, kind));
                        let number = sending.put(kind, &bytes, rail);
                        let all = sending.bytes_of(number, 0, 0).to_vec();
                        let head = RailHead::read(all.first_chunk().unwrap(), BATCH).unwrap();
                        rails.get_mut(&rail).unwrap().0.push_back((head, all[HEAD_BYTES..].to_vec()));
                    }
                    5 => {
                        if let Some(number) = sending.next_again(rail) {
                            let all = sending.bytes_of(number, 0, 0).to_vec();
                            let head = RailHead::read(all.first_chunk().unwrap(), BATCH).unwrap();
                            rails.get_mut(&rail).unwrap().0.push_back((head, all[HEAD_BYTES..].to_vec()));
                        }
                    }
                    6 if sent.len() as u32 == total && !is_last_sent => {
                        is_last_sent = true;
                        let number = sending.put(RailKind::Last, b"last", rail);
                        let all = sending.bytes_of(number, 0, 0).to_vec();
                        let head = RailHead::read(all.first_chunk().unwrap(), BATCH).unwrap();
                        rails.get_mut(&rail).unwrap().0.push_back((head, all[HEAD_BYTES..].to_vec()));
                    }
                    _ => {}
                }
                // A message arrives, on one of the live rails that do not stall.
                let from = ids[(usize::from(what) + round) % count];
                let (there, back) = match rails.get_mut(&from) {
                    Some(rail) if !stalls.contains(&from) => rail,
                    _ => continue,
                };
                if let Some((head, bytes)) = there.pop_front() {
                    if head.kind == RailKind::Ask {
                        let (had, freed) = receiving.state();
                        let answer = RailHead { kind: RailKind::Answer, had, freed, ..head };
                        back.push_back((answer, receiving.bits().to_vec()));
                    } else {
                        receiving.take(&head, &bytes).unwrap();
                        let (had, freed) = receiving.state();
                        let report = RailHead { kind: RailKind::Report, had, freed, ..head };
                        back.push_back((report, vec![]));
                    }
                }
                if what % 3 == 0 && let Some((head, bytes)) = back.pop_front() {
                    sending.reported(head.had, head.freed, |_| ()).unwrap();
                    if head.kind == RailKind::Answer {
                        sending.answer(head.number, head.had, &bytes, |_| ()).unwrap();
                    }
                }
                // The node takes some bytes.
                if what % 2 == 0 && !receiving.plain().is_empty() {
                    seen.push(receiving.plain()[..4].to_vec());
                    receiving.taken(receiving.plain().len());
                    let (had, freed) = receiving.state();
                    let report = RailHead { had, freed, ..head(RailKind::Report, 0, 0, 0) };
                    for (_, back) in rails.values_mut() {
                        back.push_back((report, vec![]));
                    }
                }
                if receiving.is_over() && sending.is_all_there() {
                    break;
                }
            }
            prop_assert_eq!(seen.pop().unwrap(), b"last");
            let ids: Vec<u32> = seen.iter().map(|id| u32::from_le_bytes(id[..].try_into().unwrap())).collect();
            let shorts: Vec<u32> = ids.iter().copied().filter(|id| sent[*id as usize].1 == RailKind::Short).collect();
            prop_assert!(shorts.is_sorted());
            let mut all = ids.clone();
            all.sort_unstable();
            prop_assert_eq!(all, (0..total).collect::<Vec<_>>());
        }
    }
}
