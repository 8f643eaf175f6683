//! The newest samples of a publisher, by number, once for all subscribers.
//!
//! Never: it holds more than it was made for; a number is given twice.

use crate::os::pool::PoolPlace;
use crate::wire::INLINE_BYTES;
use std::sync::Arc;
use std::vec::Vec;

/// A sample that is being published.
#[derive(Clone, Copy, Debug)]
pub(super) enum PublishedBody<'a> {
    Short(&'a [u8]),
    Pool { place: &'a Arc<PoolPlace>, length: u64 },
}

#[derive(Debug)]
enum LoggedBody {
    /// This many bytes, at most those of a line.
    Line {
        bytes: [u8; INLINE_BYTES],
        length: u8,
    },
    /// The memory is used again.
    Short(Vec<u8>),
    Pool {
        place: Arc<PoolPlace>,
        length: u64,
    },
    /// No sample was published under the number.
    Gap,
}

#[derive(Debug)]
pub(super) struct SampleLog {
    /// The sample of a number lies at the number, modulo `kept_max`.
    kept: Vec<LoggedBody>,
    kept_max: usize,
    /// The index for the next one. Counted, since a division costs as much as the rest.
    at: usize,
    /// The number of the next sample.
    next: u64,
}

impl SampleLog {
    pub fn new(kept_max: usize) -> Self {
        Self { kept: Vec::new(), kept_max: kept_max.max(1), at: 0, next: 0 }
    }

    /// The number of the next sample, which is the count of samples so far.
    #[inline]
    pub fn next(&self) -> u64 {
        self.next
    }

    /// The number of the oldest sample that is kept; that of the next if the log is empty.
    pub fn first(&self) -> u64 {
        self.next - self.kept.len() as u64
    }

    /// The number of the sample that the next one will replace.
    #[inline]
    pub fn leaves_next(&self) -> Option<u64> {
        (self.kept.len() == self.kept_max).then(|| self.first())
    }

    /// [`push`](Self::push) of a short sample. Usually it and the sample that leaves are lines.
    #[inline]
    pub fn push_short(&mut self, sample: &[u8]) {
        match (self.kept.get_mut(self.at), <&[u8; INLINE_BYTES]>::try_from(sample)) {
            (Some(LoggedBody::Line { bytes, length }), Ok(sample)) => {
                (*bytes, *length) = (*sample, INLINE_BYTES as u8);
                self.pushed();
            }
            _ => self.push(PublishedBody::Short(sample)),
        }
    }

    /// Keeps the next sample, in place of the oldest if the log is full.
    #[inline(never)]
    pub fn push(&mut self, body: PublishedBody<'_>) {
        match (self.kept.get_mut(self.at), body) {
            (Some(kept), PublishedBody::Short(bytes)) if bytes.len() <= INLINE_BYTES => {
                *kept = LoggedBody::of(body);
            }
            (Some(LoggedBody::Short(kept)), PublishedBody::Short(bytes)) => {
                kept.clear();
                kept.extend_from_slice(bytes);
            }
            (Some(kept), body) => *kept = LoggedBody::of(body),
            // It grows until it is full.
            (None, body) => self.kept.push(LoggedBody::of(body)),
        }
        self.pushed();
    }

    #[inline]
    fn pushed(&mut self) {
        self.next += 1;
        self.at += 1;
        if self.at == self.kept_max {
            self.at = 0;
        }
    }

    /// The next sample gets this number, and the numbers before it have no sample.
    pub fn skip_to(&mut self, number: u64, mut leaves: impl FnMut(&Self, u64)) {
        let count = number.saturating_sub(self.next);
        for _ in 0..count.min(self.kept_max as u64) {
            if let Some(left) = self.leaves_next() {
                leaves(self, left);
            }
            match self.kept.get_mut(self.at) {
                Some(kept) => *kept = LoggedBody::Gap,
                None => self.kept.push(LoggedBody::Gap),
            }
            self.pushed();
        }
        // All entries are gaps, if there were more.
        self.next = self.next.max(number);
    }

    /// Begins at this number: no subscriber is to hear of an earlier one.
    pub fn begin_at(&mut self, number: u64) {
        if self.kept.is_empty() {
            self.next = number;
        }
    }

    /// Whether no sample was published under the number, among those that are kept.
    pub fn is_gap(&self, number: u64) -> bool {
        number >= self.first() && number < self.next && self.get(number).is_none()
    }

    /// The sample of a number, if it is kept.
    #[inline]
    pub fn get(&self, number: u64) -> Option<PublishedBody<'_>> {
        if number < self.first() || number >= self.next {
            return None;
        }
        // At most as many behind the next one as are kept.
        let behind = (self.next - number) as usize;
        let at = if behind <= self.at { self.at } else { self.at + self.kept_max };
        Some(match self.kept.get(at - behind)? {
            LoggedBody::Line { bytes, length } => {
                PublishedBody::Short(bytes.get(..*length as usize)?)
            }
            LoggedBody::Short(bytes) => PublishedBody::Short(bytes),
            LoggedBody::Pool { place, length } => PublishedBody::Pool { place, length: *length },
            LoggedBody::Gap => return None,
        })
    }
}

impl LoggedBody {
    fn of(body: PublishedBody<'_>) -> Self {
        match body {
            PublishedBody::Short(short) if short.len() <= INLINE_BYTES => {
                let mut bytes = [0; INLINE_BYTES];
                bytes[..short.len()].copy_from_slice(short);
                Self::Line { bytes, length: short.len() as u8 }
            }
            PublishedBody::Short(bytes) => Self::Short(bytes.to_vec()),
            PublishedBody::Pool { place, length } => Self::Pool { place: place.clone(), length },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_of_any_length_is_kept_as_it_is_in_the_place_of_any_other() {
        let lengths = [16, 16, 0, 17, 16, 15, 1024, 16, 3, 40, 40, 16];
        for kept_max in 1..5 {
            let mut log = SampleLog::new(kept_max);
            let samples: Vec<Vec<u8>> =
                (0..).zip(lengths).map(|(i, length)| std::vec![i; length]).collect();
            for sample in samples.iter().cycle().take(5 * samples.len()) {
                log.push_short(sample);
                let first = log.first();
                for number in first..log.next() {
                    let expected = &samples[number as usize % samples.len()];
                    assert!(
                        matches!(log.get(number), Some(PublishedBody::Short(bytes)) if bytes == expected)
                    );
                }
            }
        }
    }

    #[test]
    fn numbers_that_were_skipped_have_no_sample_and_those_that_are_kept_leave_in_order() {
        for (skipped, length) in [(1, 4), (2, 3), (4, 4), (5, 3), (1 << 40, 3)] {
            let mut log = SampleLog::new(4);
            log.begin_at(7);
            (0..length).for_each(|i: u64| log.push(PublishedBody::Short(&i.to_le_bytes())));
            let (first, next) = (log.first(), log.next());
            assert_eq!((first, next), (7, 7 + length));
            log.begin_at(100);
            let mut left = Vec::new();
            log.skip_to(next + skipped, |log, number| left.push((number, log.is_gap(number))));
            assert_eq!(log.next(), next + skipped);
            // Of the gap itself, at most as many entries leave as there is room for.
            let leaves = (length + skipped.min(4)).saturating_sub(4);
            let expected: Vec<_> = (7..7 + leaves).map(|number| (number, false)).collect();
            assert_eq!(left, expected, "{skipped} behind {length}");
            log.push(PublishedBody::Short(b"next"));
            for number in log.first()..log.next() {
                let is_gap = (next..next + skipped).contains(&number);
                assert_eq!((log.is_gap(number), log.get(number).is_none()), (is_gap, is_gap));
            }
            assert!(matches!(log.get(next + skipped), Some(PublishedBody::Short(b"next"))));
            log.skip_to(3, |_, _| panic!("it is behind"));
        }
    }

    #[test]
    fn the_newest_are_kept_by_number() {
        let mut log = SampleLog::new(3);
        assert_eq!((log.first(), log.next(), log.leaves_next()), (0, 0, None));
        for number in 0..10u64 {
            assert_eq!(log.leaves_next(), number.checked_sub(3));
            log.push(PublishedBody::Short(&number.to_le_bytes()));
            assert_eq!((log.first(), log.next()), (number.saturating_sub(2), number + 1));
            for kept in 0..=number + 1 {
                let found = log.get(kept);
                match (log.first()..=number).contains(&kept) {
                    true => {
                        assert!(
                            matches!(found, Some(PublishedBody::Short(b)) if b == kept.to_le_bytes())
                        )
                    }
                    false => assert!(found.is_none(), "{kept} of {number}"),
                }
            }
        }
        // One is always kept: the one that is being published.
        assert_eq!(SampleLog::new(0).kept_max, 1);
    }
}
