//! Which runs can be compared, from the raw cache line, and words for the placement of the cores.
//!
//! A virtual machine's cores are moved about by its host: the same line takes 27, 54, 120 or 240 ns
//! from minute to minute. So a figure says nothing without the raw line of its run; runs are
//! compared only if their raw lines agree, and a run during which the line changed is discarded.
//! The words for some ranges of the line only describe it; no decision depends on them.

use serde::{Deserialize, Serialize};
use std::fmt;

/// A word for the raw line's time one way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Placement {
    /// Both ends on one processor: there is no raw line.
    OneCore,
    /// Below 46 ns: two threads of one physical core.
    Shared,
    /// 46 to 66 ns: two cores below one cache.
    Near,
    /// Above 200 ns: different chiplets or sockets.
    Far,
    /// Anything else.
    Other,
}

impl Placement {
    /// The word for a raw line in nanoseconds; `NaN` if both ends share a processor.
    pub fn of_raw_line_ns(ns: f64) -> Self {
        match ns {
            _ if ns.is_nan() => Self::OneCore,
            _ if ns < 46.0 => Self::Shared,
            _ if ns <= 66.0 => Self::Near,
            _ if ns > 200.0 => Self::Far,
            _ => Self::Other,
        }
    }
}

/// Whether two raw lines, in nanoseconds, differ by at most a quarter of the shorter one: then the
/// cores are in the same placement. Without a raw line (`NaN`) the placement cannot change.
pub fn agree(a_ns: f64, b_ns: f64) -> bool {
    let differ = (a_ns - b_ns).abs() > a_ns.min(b_ns) / 4.0;
    !differ
}

/// The raw line with which most of `lines_ns` agree, the shortest of several; `None` of an empty
/// list.
pub fn commonest_line_ns(lines_ns: &[f64]) -> Option<f64> {
    let mut lines = lines_ns.to_vec();
    // Backwards, because `max_by_key` returns the last of several greatest ones.
    lines.sort_by(|a, b| b.total_cmp(a));
    let agreeing = |line: &f64| lines_ns.iter().filter(|other| agree(*line, **other)).count();
    lines.iter().copied().max_by_key(agreeing)
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::OneCore => "one core",
            Self::Shared => "shared",
            Self::Near => "near",
            Self::Far => "far",
            Self::Other => "other",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_range_of_the_raw_line_has_its_word() {
        let of = Placement::of_raw_line_ns;
        assert_eq!(of(45.9), Placement::Shared);
        assert_eq!((of(46.0), of(66.0)), (Placement::Near, Placement::Near));
        assert_eq!((of(66.1), of(200.0)), (Placement::Other, Placement::Other));
        assert_eq!(of(200.1), Placement::Far);
        assert_eq!(of(f64::NAN), Placement::OneCore);
    }

    #[test]
    fn raw_lines_agree_within_a_quarter_of_the_shorter_whatever_their_words() {
        assert!(agree(60.0, 75.0) && agree(75.0, 60.0) && agree(120.0, 110.0));
        assert!(!agree(60.0, 75.1) && !agree(75.1, 60.0) && !agree(54.0, 240.0));
        // One is "near" and one "other"; two that are "other" do not agree.
        assert!(agree(64.0, 70.0) && !agree(90.0, 180.0));
        assert!(agree(f64::NAN, f64::NAN));
    }

    #[test]
    fn the_commonest_line_is_the_one_with_which_most_agree() {
        assert_eq!(commonest_line_ns(&[240.0, 125.0, 118.0, 54.0, 120.0]), Some(118.0));
        assert_eq!(commonest_line_ns(&[54.0, 240.0]), Some(54.0));
        // The one in the middle agrees with both of its neighbours.
        assert_eq!(commonest_line_ns(&[50.0, 75.0, 62.0]), Some(62.0));
        assert_eq!(commonest_line_ns(&[f64::NAN]).map(f64::is_nan), Some(true));
        assert_eq!(commonest_line_ns(&[]), None);
    }
}
