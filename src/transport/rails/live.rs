//! The live rails of a link.

use crate::transport::late::Late;
use core::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::Arc;

/// The live rails of a link: updated when a rail joins or leaves, and read without the link's lock,
/// which its node's turns hold.
#[derive(Debug)]
pub struct Live {
    /// A bit for each rail.
    places: AtomicU8,
    /// The sum over all links: the connections beyond one each.
    more: Arc<AtomicUsize>,
    late: Arc<Late>,
}

impl Live {
    /// Without live rails, for one of the links that share `more`. A rail that leaves wakes the
    /// thread.
    pub fn new(more: &Arc<AtomicUsize>, late: &Arc<Late>) -> Arc<Self> {
        Arc::new(Self { places: AtomicU8::new(0), more: more.clone(), late: late.clone() })
    }

    /// A rail has joined.
    pub fn joined(&self, place: u8) {
        self.change(self.places.load(Ordering::Relaxed) | 1 << place);
    }

    /// A rail has left.
    pub fn left(&self, place: u8) {
        self.change(self.places.load(Ordering::Relaxed) & !(1 << place));
        self.late.rail_left();
    }

    /// Only the holder of the link's lock, or of the last reference, calls this.
    fn change(&self, places: u8) {
        let more = |places: u8| (places.count_ones() as usize).saturating_sub(1);
        let before = more(self.places.swap(places, Ordering::Relaxed));
        // The sum may fall; then the addition wraps around on purpose.
        self.more.fetch_add(more(places).wrapping_sub(before), Ordering::Relaxed);
    }

    /// Whether a rail lives.
    pub fn has(&self, place: u8) -> bool {
        self.places.load(Ordering::Relaxed) >> place & 1 != 0
    }

    /// The link's number of connections: at least one until the link is gone.
    pub fn connections(&self) -> usize {
        (self.places.load(Ordering::Relaxed).count_ones() as usize).max(1)
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.change(0);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn rails_are_counted_where_they_come_and_go_and_those_of_a_link_that_is_gone_are_not() {
        let more = Arc::new(AtomicUsize::new(0));
        let late = Arc::new(Late::new(crate::os::sys::Bell::new().unwrap()));
        let (one, other) = (Live::new(&more, &late), Live::new(&more, &late));
        let all = || more.load(Ordering::Relaxed);
        assert_eq!((one.connections(), all()), (1, 0));
        one.joined(0);
        assert_eq!((one.connections(), all()), (1, 0));
        (1..4).for_each(|place| one.joined(place));
        (0..8).for_each(|place| other.joined(place));
        assert_eq!((one.connections(), other.connections(), all()), (4, 8, 10));
        // Once for each place.
        one.joined(3);
        one.left(2);
        one.left(2);
        assert_eq!((one.connections(), one.has(2), one.has(3), all()), (3, false, true, 9));
        drop(other);
        assert_eq!(all(), 2);
        (0..4).for_each(|place| one.left(place));
        assert_eq!((one.connections(), all()), (1, 0));
    }
}
