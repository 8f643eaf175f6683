//! Where the two cores stand to one another, as the raw cache line tells it.
//!
//! A virtual machine's cores are moved about by its host: the same line takes 27, 54 or 240 ns
//! from minute to minute. So a figure is judged only in a stated placement, and a run during
//! which the placement changed is thrown away.

use serde::{Deserialize, Serialize};
use std::fmt;

/// By the raw line's time one way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Placement {
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
    pub fn of_raw_line_ns(ns: f64) -> Self {
        match ns {
            _ if ns < 46.0 => Self::Shared,
            _ if ns <= 66.0 => Self::Near,
            _ if ns > 200.0 => Self::Far,
            _ => Self::Other,
        }
    }
}

/// Whether the raw line changed by more than a quarter from before a run to after it.
pub fn has_moved(before_ns: f64, after_ns: f64) -> bool {
    (after_ns - before_ns).abs() > before_ns / 4.0
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
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
    fn the_limits_of_each_placement_belong_to_it() {
        let of = Placement::of_raw_line_ns;
        assert_eq!(of(45.9), Placement::Shared);
        assert_eq!((of(46.0), of(66.0)), (Placement::Near, Placement::Near));
        assert_eq!((of(66.1), of(200.0)), (Placement::Other, Placement::Other));
        assert_eq!(of(200.1), Placement::Far);
    }

    #[test]
    fn a_change_of_more_than_a_quarter_is_a_move() {
        assert!(!has_moved(60.0, 75.0) && !has_moved(60.0, 45.0));
        assert!(has_moved(60.0, 75.1) && has_moved(60.0, 44.9) && has_moved(54.0, 240.0));
    }
}
