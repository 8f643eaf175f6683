//! Medians and percentiles.

use super::clock;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// Of the time one way, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Percentiles {
    pub p50: f64,
    pub p99: f64,
    pub p999: f64,
    /// For comparison with channels that report only a mean.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub mean: Option<f64>,
}

/// Round trips one after another, each beginning where the last ended.
pub struct RoundTrips {
    /// The time at which each ended, and before the first, at which it began; in ticks of the
    /// clock. Sorted into a histogram only afterwards, because that would take longer than a
    /// message does.
    ends: Vec<u64>,
}

impl RoundTrips {
    /// Makes `warm_up` and then `count` of them.
    #[inline(always)]
    pub fn make<T, E>(
        warm_up: u64,
        count: u64,
        mut one: impl FnMut() -> Result<T, E>,
    ) -> Result<Percentiles, E> {
        let mut trips = Self::begin(warm_up + count);
        for _ in 0..warm_up + count {
            one()?;
            trips.end_one();
        }
        Ok(trips.one_way_ns(warm_up))
    }

    /// For `count` of them; the first begins now.
    pub fn begin(count: u64) -> Self {
        let mut ends = vec![1; count as usize + 1];
        ends.clear();
        ends.push(clock::ticks());
        Self { ends }
    }

    /// A round trip ends, and the next begins.
    #[inline(always)]
    pub fn end_one(&mut self) {
        self.ends.push(clock::ticks());
    }

    /// Half of the mean of all but the first `warm_up`.
    pub fn mean_one_way_ns(&self, warm_up: u64) -> f64 {
        let ends = &self.ends[warm_up as usize..];
        let ns = clock::elapsed_ns(ends[0], ends[ends.len() - 1]);
        ns as f64 / (ends.len() - 1) as f64 / 2.0
    }

    /// Half of each but the first `warm_up`.
    pub fn one_way_ns(&self, warm_up: u64) -> Percentiles {
        let mut histogram = Trips::new();
        for ends in self.ends.windows(2).skip(warm_up as usize) {
            histogram.record_ns(clock::elapsed_ns(ends[0], ends[1]));
        }
        Percentiles { mean: Some(self.mean_one_way_ns(warm_up)), ..histogram.one_way_ns() }
    }
}

/// A histogram of round trips.
struct Trips(Histogram<u64>);

impl Trips {
    fn new() -> Self {
        // Three digits of anything from 1 ns to a minute, in some 200 KiB.
        Self(Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("these bounds are allowed"))
    }

    /// One round trip of `ns` nanoseconds.
    fn record_ns(&mut self, ns: u64) {
        self.0.saturating_record(ns);
    }

    /// Half of each round trip.
    fn one_way_ns(&self) -> Percentiles {
        let half = |quantile| self.quantile(quantile) / 2.0;
        Percentiles { p50: half(0.5), p99: half(0.99), p999: half(0.999), mean: None }
    }

    /// The value below which `quantile` of the round trips lie; `NaN` without any.
    ///
    /// Time stamp counters advance in steps (10 ns on some machines), which is more than the
    /// differences of interest. So each recorded value stands for the range up to the middle
    /// between it and its neighbours, and the quantile is interpolated in its range.
    fn quantile(&self, quantile: f64) -> f64 {
        let values: Vec<(f64, f64)> = self
            .0
            .iter_recorded()
            .map(|step| (step.value_iterated_to() as f64, step.count_at_value() as f64))
            .collect();
        let rank = quantile * self.0.len() as f64;
        let mut below = 0.0;
        for (i, &(value, count)) in values.iter().enumerate() {
            if below + count >= rank {
                let half_way = |other: Option<&(f64, f64)>| other.map(|o| (o.0 + value) / 2.0);
                let next = half_way(values.get(i + 1));
                let before = half_way(i.checked_sub(1).and_then(|i| values.get(i)));
                let from = before.or(next.map(|next| 2.0 * value - next)).unwrap_or(value);
                let to = next.or(before.map(|before| 2.0 * value - before)).unwrap_or(value);
                return from + (to - from) * (rank - below) / count;
            }
            below += count;
        }
        f64::NAN
    }
}

/// The median; of an even number, the upper of the two in the middle. `None` without values.
pub fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_half_a_round_trip() {
        let mut trips = Trips::new();
        (1..=1000).for_each(|ns| trips.record_ns(ns));
        let Percentiles { p50, p99, p999, .. } = trips.one_way_ns();
        let near = |a: f64, b: f64| assert!((a - b).abs() < 0.5, "{a} is not {b}");
        near(p50, 250.0);
        near(p99, 495.0);
        near(p999, 499.5);
    }

    #[test]
    fn a_coarse_clock_does_not_make_coarse_medians() {
        // Round trips of 104 ns on a clock of 10 ns steps: six of ten show 100.
        let mut trips = Trips::new();
        (0..1000).for_each(|i| trips.record_ns(if i % 10 < 6 { 100 } else { 110 }));
        let p50 = trips.one_way_ns().p50;
        assert!((p50 - 52.0).abs() < 1.0, "{p50}");
        let mut one = Trips::new();
        one.record_ns(100);
        assert_eq!(one.one_way_ns().p50, 50.0);
    }

    #[test]
    fn the_median_stands_in_the_middle() {
        assert_eq!(median([3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median([]), None);
    }
}
