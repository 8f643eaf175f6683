//! Records that came over a link and that its receiver's program keeps, or has not received: the
//! cause of a sender's wait. The reader of figures reads these, which costs the program at most a
//! store.
//!
//! Never: the reader takes a lock that the program takes on its way.

use crate::interface::notification::QueueView;
use crate::os::sys;
use core::fmt::{Debug, Write};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::string::String;
use std::sync::{Arc, Mutex};

/// The current state of a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeptNow {
    /// The count in use, of at most `max`.
    pub held: u64,
    pub max: u64,
    /// Changes at each release.
    pub given_back: u64,
    /// The sender may have no free one left.
    pub is_short: bool,
}

/// A resource of which a receiver has a bounded number, or size.
pub(crate) trait BoundedResource: Send + Sync + Debug {
    fn now(&self) -> KeptNow;
}

/// One such resource as shown: `buffers_held`, `buffers_max` and so on.
#[derive(Debug)]
pub(super) struct Shown {
    what: &'static str,
    kept: Arc<dyn BoundedResource>,
    /// The released count when a look first found the current held count, and the time of that
    /// look; 0: no resource is held.
    since: Mutex<(u64, u64)>,
}

impl Shown {
    pub fn new(what: &'static str, kept: Arc<dyn BoundedResource>) -> Self {
        Self { what, kept, since: Mutex::default() }
    }

    pub fn text(&self, link: u32, text: &mut String) {
        let KeptNow { held, max, given_back, is_short } = self.kept.now();
        let mut since = super::figures::locked(&self.since);
        // A lower bound; a later look knows more.
        let ms = match *since {
            (then, since_ns) if held > 0 && then == given_back && since_ns != 0 => {
                super::figures::ms_since(since_ns)
            }
            _ => {
                *since = (given_back, if held > 0 { sys::monotonic_ns() } else { 0 });
                0
            }
        };
        let (what, short) = (self.what, u64::from(is_short));
        let _ = write!(
            text,
            "link.{link}.{what}_held {held}\nlink.{link}.{what}_max {max}\n\
             link.{link}.{what}_held_ms {ms}\nlink.{link}.{what}_short {short}\n"
        );
    }
}

/// The buffers of a receiver whose records its program has taken and not released. The program
/// stores the counts, and only when a buffer is taken, released or wanted.
#[derive(Debug)]
pub(crate) struct BuffersHeld {
    held: AtomicU32,
    /// How many were released, modulo 2^32.
    released: AtomicU32,
    /// No buffer is left for a ticket that is due to the sender.
    is_short: AtomicBool,
    /// Most buffers of the usual size.
    max: u32,
}

impl BuffersHeld {
    pub fn new(max: u32) -> Self {
        let (held, released) = (AtomicU32::new(0), AtomicU32::new(0));
        Self { held, released, is_short: AtomicBool::new(false), max }
    }

    #[inline]
    pub fn took(&self, held: usize) {
        self.held.store(held as u32, Ordering::Relaxed);
    }

    #[inline]
    pub fn released(&self, held: usize, released: u32) {
        self.held.store(held as u32, Ordering::Relaxed);
        self.released.store(released, Ordering::Relaxed);
    }

    #[inline]
    pub fn is_short(&self, is_short: bool) {
        self.is_short.store(is_short, Ordering::Relaxed);
    }
}

impl BoundedResource for BuffersHeld {
    fn now(&self) -> KeptNow {
        KeptNow {
            held: self.held.load(Ordering::Relaxed).into(),
            max: self.max.into(),
            given_back: self.released.load(Ordering::Relaxed).into(),
            is_short: self.is_short.load(Ordering::Relaxed),
        }
    }
}

/// Samples of a publisher's pool that a subscriber's program holds.
#[derive(Debug)]
pub(crate) struct SamplesHeld {
    /// A bit for each lease that a sample has, or whose release has yet to be reported to the
    /// publisher.
    pub leases: AtomicU64,
    /// How many were dropped.
    pub dropped: AtomicU64,
    /// Leases.
    pub max: u32,
}

impl BoundedResource for SamplesHeld {
    fn now(&self) -> KeptNow {
        let held = self.leases.load(Ordering::Relaxed).count_ones();
        KeptNow {
            held: held.into(),
            max: self.max.into(),
            given_back: self.dropped.load(Ordering::Relaxed),
            is_short: held >= self.max,
        }
    }
}

/// Places of a subscriber with samples that its program has not received.
#[derive(Debug)]
pub(crate) struct PlacesHeld {
    pub waiting: QueueView,
    pub depth: u32,
}

impl BoundedResource for PlacesHeld {
    fn now(&self) -> KeptNow {
        let (held, received) = self.waiting.count();
        let max = self.depth.into();
        // The publisher may not have heard yet that a quarter of them is free.
        KeptNow { held, max, given_back: received, is_short: nearly_all(held, max) }
    }
}

/// Messages of a stream that have come and that its receiver's program has not received: those in
/// buffers, or small ones, which have places of their own.
#[derive(Debug)]
pub(crate) struct MessagesHeld {
    pub waiting: QueueView,
    pub small: bool,
    /// Most such messages.
    pub max: u64,
}

impl BoundedResource for MessagesHeld {
    fn now(&self) -> KeptNow {
        let (_, held, received) = self.waiting.sum(|is_fast, _| u64::from(is_fast == self.small));
        // The sender's asks come in the same way as small messages.
        let held = held.min(self.max);
        // The sender may not have heard yet that a quarter of them is free.
        let is_short = nearly_all(held, self.max);
        KeptNow { held, max: self.max, given_back: received, is_short }
    }
}

/// Bytes in the window of a byte stream that its program has not read.
#[derive(Debug)]
pub(crate) struct WindowHeld {
    pub waiting: QueueView,
    /// The byte count in a packet's word.
    pub bytes_of: fn(u32) -> u64,
    pub packets: u32,
    pub window: u64,
    /// Unread bytes of the packets that were taken out of the queue; and the count of read bytes.
    pub unread: AtomicU64,
    pub read: AtomicU64,
}

impl BoundedResource for WindowHeld {
    fn now(&self) -> KeptNow {
        let (packets, bytes, _) = self.waiting.sum(|_, word| (self.bytes_of)(word));
        let held = (bytes + self.unread.load(Ordering::Relaxed)).min(self.window);
        // The writer may not have heard yet that a quarter of it is free.
        let is_short = nearly_all(held, self.window) || nearly_all(packets, self.packets.into());
        let given_back = self.read.load(Ordering::Relaxed);
        KeptNow { held, max: self.window, given_back, is_short }
    }
}

fn nearly_all(held: u64, max: u64) -> bool {
    held >= max - max / 4
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_is_told_with_how_long_none_was_given_back() {
        let held =
            Arc::new(SamplesHeld { leases: AtomicU64::new(0), dropped: AtomicU64::new(0), max: 2 });
        let shown = Shown::new("samples", held.clone());
        let told = |shown: &Shown| {
            let mut text = String::new();
            shown.text(7, &mut text);
            let number = |name: &str| -> u64 {
                let name = std::format!("link.7.samples_{name} ");
                let line = text.lines().find_map(|line| line.strip_prefix(&name)).unwrap();
                line.parse().unwrap()
            };
            (number("held"), number("max"), number("held_ms"), number("short"))
        };
        assert_eq!(told(&shown), (0, 2, 0, 0));
        held.leases.store(0b101, Ordering::Relaxed);
        assert_eq!(told(&shown), (2, 2, 0, 1));
        while told(&shown).2 == 0 {
            std::thread::yield_now();
        }
        held.dropped.store(1, Ordering::Relaxed);
        assert_eq!(told(&shown), (2, 2, 0, 1), "one was given back, and another taken");
    }
}
