//! Publish and subscribe: one publisher, any number of subscribers of different users.
//!
//! ```text
//!   Publisher                                              Subscriber, each with a link of its own
//!   publish(bytes)   ---- one fast packet: word = length ---->   a place of its own memory; copied out
//!   loan, publish    ---- one fast packet: the place -------->   reads the publisher's pool
//!   cell:  taken     <--- the count of messages taken --------   receive
//!          released  <--- the lease released -----------------   the sample is dropped
//!
//!   to another host: loan, publish
//!                    ---- fast packets, one part in each ----->   places; put together by `receive`
//! ```
//! Each subscriber lends the publisher a ring of places in its own memory. The publisher writes
//! short samples and announcements into them in turn, so samples that one subscriber does not take
//! obstruct no other. Long samples lie in the publisher's *pool*: memory that the publisher alone
//! writes, and that every subscriber maps and reads ([`crate::os::pool`]). An announcement gives a
//! *lease*: the sample's place is not used again before each subscriber that got the announcement
//! has released it, or is gone.
//!
//! A pool is memory of one host. The publisher sends a long sample to a subscriber of another host
//! in parts, each in a place like a short sample, from the sample's place in the pool; that place
//! is not used again before the last part has left. A part counts as a message, and the parts of
//! one sample are consecutive.
//!
//! A word is the length of the written bytes (29 bits) and three bits: `POOL`, an announcement;
//! `PART`, a part of a long sample, the first of which begins with the whole length; `NUMBERED`,
//! the message begins with the sample's number, because others were left out before it. Otherwise a
//! sample's number is one more than that of the sample before.
//!
//! # Slow subscribers
//!
//! A subscriber has room while it has a free place, for a sample of the pool also a free lease, and
//! its link has room. The publisher keeps its newest samples ([`PublishConfig::backlog`],
//! [`PublishConfig::history`]), once for all subscribers, and sends each subscriber its outstanding
//! samples in order, as it makes room. [`WhenSlow`] decides what happens when a sample would leave
//! that *log* before a subscriber has got it. The publisher never overwrites a sample that a
//! subscriber may read.
//!
//! A subscriber writes only the words of its own cell at the publisher: a count that is at most the
//! number of messages sent, and for each lease the number of the sample that it was for. Any other
//! value disconnects the subscriber. So it can neither release another's sample nor make the
//! publisher keep more than [`PublishConfig::outstanding_max`] of them.
//!
//! - `log.rs`: the newest samples, by number; `state.rs`: the subscribers and the samples each is
//!   to get, as the publisher's offer under the manager's lock; `serving.rs`: one subscriber, as
//!   the publisher knows it
//! - `publisher.rs`, `subscriber.rs`: the end points; `sample.rs`, `gathered.rs`: a sample at a
//!   subscriber, and an incomplete one; `relay.rs`: one end point of each kind, which publishes the
//!   samples that it receives
//!
//! Never: the publisher reads a subscriber's statements other than through its cell; a subscriber
//! waits for another.

mod gathered;
mod log;
mod publisher;
mod relay;
mod sample;
mod serving;
mod state;
mod subscriber;

pub use publisher::{Loan, PublishError, Publisher, Unpublished};
pub use relay::{Relay, RelayConfig, RelayError};
pub use sample::Sample;
pub use serving::SubscriberState;
pub(super) use state::{Behind, PublisherState};
pub use subscriber::{SubscribeConfig, Subscriber};

use super::tickets::fast_ticket_from;
use crate::control::Peer;
use crate::node::ExportError;
use crate::os::pool::Layout;
use crate::wire::{TICKET_BYTES, Ticket};
use core::fmt;
use std::format;
use std::string::{String, ToString};
use std::vec::Vec;

/// Most bytes of a sample outside the pool, for any configuration: it goes through a link's base
/// ring with its number, where packets keep their order.
pub const SHORT_BYTES_MAX: usize = 2032;
/// Most bytes written to a place: a number and a sample.
const PLACE_BYTES: usize = NUMBER_BYTES + SHORT_BYTES_MAX;
/// From one place to the next. An odd number of lines, so that the places are spread over many sets
/// of a cache.
const PLACE_STRIDE: u64 = 2112;
const _: () = assert!(PLACE_BYTES as u64 <= PLACE_STRIDE && PLACE_STRIDE / 64 % 2 == 1);
/// Places of a subscriber.
const DEPTH_MAX: u32 = 1 << 15;
/// Leases of a subscriber, a bit each.
const LEASES_MAX: u32 = 64;

const PART: u32 = 1 << 29;
const POOL: u32 = 1 << 30;
const NUMBERED: u32 = 1 << 31;
const NUMBER_BYTES: usize = 8;

/// The treatment of samples for a subscriber that does not keep up, ordered from the costliest for
/// the publisher to the cheapest. It holds from the moment the subscriber [is
/// served](SubscriberState::is_served), soon after it has connected; the next sample tells the
/// subscriber how many it missed before then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
#[cfg_attr(not(feature = "unstable-internals"), non_exhaustive)]
pub enum WhenSlow {
    /// `publish` waits until the subscriber has room, within its time limit. Each such subscriber
    /// can hold up the publisher, and with it all other subscribers, for that long on every call:
    /// choose it for trusted subscribers only.
    Wait = 1,
    /// The subscriber gets samples from the publisher's log in order, as it makes room, and misses
    /// the oldest: those that have left the log by then. It still gets the samples that are already
    /// in its own memory.
    DropOldest = 2,
    /// The subscriber misses the newest: each sample for which it has no room at publication. The
    /// next sample tells it how many. If samples at the very end were left out, it learns so when
    /// the publisher goes ([`CloseReason::TooSlow`](crate::node::CloseReason::TooSlow)).
    DropNewest = 3,
    /// The subscriber's link is ended when it would miss a sample, so connected subscribers get
    /// every sample. The subscriber sees
    /// [`CloseReason::TooSlow`](crate::node::CloseReason::TooSlow); samples of the pool that it
    /// still holds may be overwritten by then.
    SendAway = 4,
}

impl WhenSlow {
    fn from_wire(byte: u8) -> Option<Self> {
        [Self::Wait, Self::DropOldest, Self::DropNewest, Self::SendAway]
            .into_iter()
            .find(|when| *when as u8 == byte)
    }
}

impl fmt::Display for WhenSlow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Wait => "wait for it",
            Self::DropOldest => "drop the oldest",
            Self::DropNewest => "drop the newest",
            Self::SendAway => "send it away",
        })
    }
}

/// Configuration of a [`Publisher`].
///
/// ```
/// use hamlyn::protocol::PublishConfig;
///
/// // Images of up to 1 MiB, written in place, of which each subscriber may hold two.
/// let config = PublishConfig {
///     sample_bytes_max: 1 << 20,
///     outstanding_max: 2,
///     subscribers_max: 8,
///     ..PublishConfig::default()
/// };
/// // Made at once, when the publisher is.
/// assert!(config.pool_bytes() >= 16 << 20);
/// ```
#[derive(Clone, Debug)]
pub struct PublishConfig {
    /// Most bytes of a sample that is copied to each subscriber, in one packet; longer ones go into
    /// the pool. At most [`SHORT_BYTES_MAX`]. 1,024 unless set.
    pub short_bytes_max: usize,
    /// Most bytes of a sample in the pool. Every subscriber of this host can read the whole pool at
    /// any time, including loans that have yet to be published. Subscribers of other hosts get such
    /// a sample in parts. 0, the default: no pool.
    pub sample_bytes_max: usize,
    /// Samples of the pool that may be on loan at once. 2 unless set.
    pub loans_max: u32,
    /// The newest samples that are kept for subscribers that have no room now. 16 unless set.
    pub backlog: u32,
    /// The newest samples that a new subscriber may ask for. 0 unless set.
    pub history: u32,
    /// Samples of the pool that a subscriber may have at once, from 1 to 64. 4 unless set.
    pub outstanding_max: u32,
    /// Subscribers at one time. 16 unless set.
    pub subscribers_max: u32,
    /// The treatment of samples for slow subscribers, unless a subscriber asks for a cheaper one.
    /// [`WhenSlow::DropOldest`] unless set.
    pub when_slow: WhenSlow,
}

impl Default for PublishConfig {
    fn default() -> Self {
        Self {
            short_bytes_max: 1024,
            sample_bytes_max: 0,
            loans_max: 2,
            backlog: 16,
            history: 0,
            outstanding_max: 4,
            subscribers_max: 16,
            when_slow: WhenSlow::DropOldest,
        }
    }
}

impl PublishConfig {
    /// Samples in the log. At least the one that is being published.
    fn kept(&self) -> u32 {
        self.backlog.max(self.history).max(1)
    }

    /// Bytes of the pool, charged to the publisher's process when it is made: a place for each
    /// loan, for each sample in the log and for each sample that any subscriber may hold, so that a
    /// loan always finds a free place, whatever subscribers hold. 0: there is no pool.
    pub fn pool_bytes(&self) -> u64 {
        self.layout().and_then(|layout| layout.bytes()).unwrap_or(0)
    }

    /// Says which settings make the pool as large as it is.
    fn no_pool(&self, error: &ExportError) -> String {
        let places = self.layout().map_or(0, |layout| layout.places);
        format!(
            "a pool of {places} samples of {} bytes (sample_bytes_max) is taken at once: {} \
             (subscribers_max) times {} (outstanding_max), {} that are kept (backlog, history) and {} on \
             loan (loans_max). {error}",
            self.sample_bytes_max,
            self.subscribers_max,
            self.outstanding_max,
            self.kept(),
            self.loans_max,
        )
    }

    fn layout(&self) -> Option<Layout> {
        let places = (self.subscribers_max as u64)
            .saturating_mul(self.outstanding_max as u64)
            .saturating_add(self.kept() as u64)
            .saturating_add(self.loans_max as u64);
        let places = u32::try_from(places).unwrap_or(u32::MAX);
        // Too large in any case, and not zero.
        let most = !63u64;
        let bytes = self.sample_bytes_max as u64;
        let place_bytes = bytes.checked_next_multiple_of(64).unwrap_or(most);
        (place_bytes > 0).then_some(Layout { places, place_bytes })
    }

    fn check(&self) -> Result<(), String> {
        const KEPT_MAX: u32 = 1 << 16;
        let within = |name: &str, value: u64, from: u64, to: u64| match (from..=to).contains(&value)
        {
            true => Ok(()),
            false => Err(format!("{name} is {value}, and may be from {from} to {to}")),
        };
        within("short_bytes_max", self.short_bytes_max as u64, 1, SHORT_BYTES_MAX as u64)?;
        within("backlog", self.backlog as u64, 0, KEPT_MAX as u64)?;
        within("history", self.history as u64, 0, KEPT_MAX as u64)?;
        within("subscribers_max", self.subscribers_max as u64, 1, 1 << 16)?;
        within("outstanding_max", self.outstanding_max as u64, 1, LEASES_MAX as u64)?;
        within("loans_max", self.loans_max as u64, 1, 1 << 16)?;
        let Some(layout) = self.layout() else { return Ok(()) };
        match layout.bytes() {
            Some(_) => Ok(()),
            None => Err(format!(
                "a pool of {} samples of {} bytes is too large",
                layout.places, self.sample_bytes_max
            )),
        }
    }
}

/// A subscriber's request when it is grown.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Greeting {
    /// Its places.
    places: Ticket,
    depth: u32,
    /// `None`: the publisher's own policy.
    when_slow: Option<WhenSlow>,
    history: u32,
    outstanding: u32,
}

const GREETING_BYTES: usize = TICKET_BYTES + 13;

impl Greeting {
    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = self.places.to_bytes().to_vec();
        bytes.extend_from_slice(&self.depth.to_le_bytes());
        bytes.extend_from_slice(&self.history.to_le_bytes());
        bytes.extend_from_slice(&self.outstanding.to_le_bytes());
        bytes.push(self.when_slow.map_or(0, |when| when as u8));
        bytes
    }

    /// Parses untrusted bytes.
    fn from_bytes(bytes: &[u8], peer: &Peer) -> Result<Self, String> {
        let places = fast_ticket_from(bytes, peer)?;
        let Some(([depth, history, outstanding], when)) = words_behind_ticket(bytes) else {
            let length = bytes.len();
            return Err(format!(
                "a subscriber's greeting has {GREETING_BYTES} bytes, and this {length}"
            ));
        };
        let &[when] = when else {
            return Err("there is something behind the greeting".to_string());
        };
        let when_slow = match when {
            0 => None,
            _ => Some(WhenSlow::from_wire(when).ok_or_else(|| {
                format!("what to do when it is slow is {when}, and may be from 0 to 4")
            })?),
        };
        if !(1..=DEPTH_MAX).contains(&depth) || outstanding == 0 {
            return Err(format!(
                "it has {depth} places and takes {outstanding} samples, and at least 1 and at most \
                     {DEPTH_MAX} places are allowed, and at least 1 sample"
            ));
        }
        let (room, needed) = (places.capacity(), depth as u64 * PLACE_STRIDE);
        if room < needed {
            return Err(format!("its ticket is for {room} bytes, and its places have {needed}"));
        }
        Ok(Self { places, depth, when_slow, history, outstanding })
    }
}

/// Three words behind a ticket, and the rest.
fn words_behind_ticket(bytes: &[u8]) -> Option<([u32; 3], &[u8])> {
    let (words, rest) = bytes.get(TICKET_BYTES..)?.split_first_chunk::<12>()?;
    let word = |i: usize| u32::from_le_bytes([words[i], words[i + 1], words[i + 2], words[i + 3]]);
    Some(([word(0), word(4), word(8)], rest))
}

/// The publisher's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
struct PublisherAnswer {
    /// The subscriber's cell.
    cell: Ticket,
    short_bytes_max: u32,
    leases: u32,
    long: LongSamples,
    /// The number of the first sample that it can get.
    first: u64,
    /// The identity of the publisher: a random number, so that a subscriber that connects again
    /// notices a different publisher, which counts from 0.
    publisher: u64,
}

/// The way in which a subscriber gets samples that are not short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LongSamples {
    /// Long samples are not published.
    None,
    /// It reads the publisher's pool.
    Pool(Layout),
    /// In parts, of at most so many bytes together.
    Parts(u64),
}

const ANSWER_BYTES: usize = TICKET_BYTES + 12 + 24;

impl PublisherAnswer {
    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = self.cell.to_bytes().to_vec();
        let (places, place_bytes) = match self.long {
            LongSamples::None => (0, 0),
            LongSamples::Pool(Layout { places, place_bytes }) => (places, place_bytes),
            LongSamples::Parts(bytes) => (0, bytes),
        };
        for word in [self.short_bytes_max, self.leases, places] {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        for word in [place_bytes, self.first, self.publisher] {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Parses a publisher's untrusted answer; `asked` leases at most.
    fn from_bytes(bytes: &[u8], peer: &Peer, asked: u32) -> Option<Self> {
        let cell = fast_ticket_from(bytes, peer).ok()?;
        if bytes.len() != ANSWER_BYTES {
            return None;
        }
        let ([short_bytes_max, leases, places], rest) = words_behind_ticket(bytes)?;
        let ([place_bytes, first, publisher], _) = rest.as_chunks::<8>() else { return None };
        let word = |bytes: &[u8; 8]| u64::from_le_bytes(*bytes);
        let (place_bytes, first, publisher) = (word(place_bytes), word(first), word(publisher));
        let long = match (places, place_bytes) {
            (0, 0) => LongSamples::None,
            (0, bytes) => LongSamples::Parts(bytes),
            _ => {
                let layout = Layout { places, place_bytes };
                layout.bytes()?;
                LongSamples::Pool(layout)
            }
        };
        let fits = (1..=asked.min(LEASES_MAX)).contains(&leases)
            && short_bytes_max as usize <= SHORT_BYTES_MAX
            && cell.capacity() >= cell_bytes(leases) as u64;
        fits.then_some(Self { cell, short_bytes_max, leases, long, first, publisher })
    }
}

/// A cell: the count of messages taken, then for each lease the number, plus one, of the sample
/// that was released last.
fn cell_bytes(leases: u32) -> usize {
    8 * (1 + leases as usize)
}

/// An announcement: the place in the pool, the lease and the length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct AnnouncedSample {
    place: u32,
    lease: u32,
    length: u64,
}

const ANNOUNCED_BYTES: usize = 16;

impl AnnouncedSample {
    fn to_bytes(self) -> [u8; ANNOUNCED_BYTES] {
        let mut bytes = [0; ANNOUNCED_BYTES];
        bytes[..4].copy_from_slice(&self.place.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.lease.to_le_bytes());
        bytes[8..].copy_from_slice(&self.length.to_le_bytes());
        bytes
    }

    /// `None`: of another length.
    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let [a, b, c, d, e, f, g, h, length @ ..] =
            <[u8; ANNOUNCED_BYTES]>::try_from(bytes).ok()?;
        Some(Self {
            place: u32::from_le_bytes([a, b, c, d]),
            lease: u32::from_le_bytes([e, f, g, h]),
            length: u64::from_le_bytes(length),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Flags, Key, MetadataIndex, NodeId, Share, SlotIndex};

    fn peer() -> Peer {
        let (uid, gid, pid, process) = (None, None, None, None);
        let (is_proved, service) = (true, String::new());
        Peer { node: NodeId(7), is_proved, uid, gid, pid, process, service, host: None }
    }

    fn ticket(bytes: u64) -> Ticket {
        Ticket {
            destination: NodeId(7),
            slot: SlotIndex(1),
            metadata_index: MetadataIndex::FAST,
            key: Key(2),
            base: 0,
            bound: bytes,
            flags: Flags::WAKE,
            share: Share::WHOLE,
        }
    }

    #[test]
    fn a_greeting_is_read_as_it_was_written_and_nothing_else_is() {
        let (depth, history, outstanding) = (3, 9, 2);
        let when_slow = Some(WhenSlow::DropNewest);
        let places = ticket(3 * PLACE_STRIDE);
        let greeting = Greeting { places, depth, when_slow, history, outstanding };
        let bytes = greeting.to_bytes();
        assert_eq!(bytes.len(), GREETING_BYTES);
        assert_eq!(Greeting::from_bytes(&bytes, &peer()), Ok(greeting.clone()));
        for cut in 0..bytes.len() {
            assert!(Greeting::from_bytes(&bytes[..cut], &peer()).is_err(), "cut to {cut}");
        }
        assert!(Greeting::from_bytes(&[&bytes[..], &[0]].concat(), &peer()).is_err());
        for (wrong, why) in [
            (Greeting { depth: 0, ..greeting.clone() }, "0 places"),
            (Greeting { depth: DEPTH_MAX + 1, ..greeting.clone() }, "32769 places"),
            (Greeting { outstanding: 0, ..greeting.clone() }, "takes 0 samples"),
            (Greeting { depth: 4, ..greeting.clone() }, "6336 bytes, and its places have 8448"),
        ] {
            let error = Greeting::from_bytes(&wrong.to_bytes(), &peer()).unwrap_err();
            assert!(error.contains(why), "{error:?} does not say {why:?}");
        }
        let mut unknown = bytes;
        *unknown.last_mut().unwrap() = 5;
        assert!(Greeting::from_bytes(&unknown, &peer()).unwrap_err().contains("is 5"));
    }

    #[test]
    fn an_answer_is_read_as_it_was_written_and_nothing_else_is() {
        let long = LongSamples::Pool(Layout { places: 3, place_bytes: 64 });
        let cell = ticket(cell_bytes(4) as u64);
        let (short_bytes_max, leases, first, publisher) = (100, 4, 1 << 40, 7);
        let answer = PublisherAnswer { cell, short_bytes_max, leases, long, first, publisher };
        let bytes = answer.to_bytes();
        let read = |bytes: &[u8]| PublisherAnswer::from_bytes(bytes, &peer(), 4);
        assert_eq!(read(&bytes), Some(answer.clone()));
        assert_eq!(
            PublisherAnswer::from_bytes(&bytes, &peer(), 3),
            None,
            "more leases than asked for"
        );
        for cut in 0..bytes.len() {
            assert_eq!(read(&bytes[..cut]), None, "cut to {cut}");
        }
        assert_eq!(read(&[&bytes[..], &[0]].concat()), None);
        for long in [LongSamples::None, LongSamples::Parts(1), LongSamples::Parts(u64::MAX)] {
            let other = PublisherAnswer { long, ..answer.clone() };
            assert_eq!(read(&other.to_bytes()), Some(other));
        }
        let pool = |places, place_bytes| LongSamples::Pool(Layout { places, place_bytes });
        for wrong in [
            PublisherAnswer { leases: 0, ..answer.clone() },
            PublisherAnswer { cell: ticket(39), ..answer.clone() },
            PublisherAnswer { short_bytes_max: SHORT_BYTES_MAX as u32 + 1, ..answer.clone() },
            PublisherAnswer { long: pool(3, 0), ..answer.clone() },
            PublisherAnswer { long: pool(9, u64::MAX), ..answer.clone() },
        ] {
            assert_eq!(read(&wrong.to_bytes()), None, "{wrong:?}");
        }
    }

    #[test]
    fn a_configuration_that_cannot_be_says_which_value_and_what_is_allowed() {
        let good = PublishConfig { sample_bytes_max: 100, ..PublishConfig::default() };
        assert_eq!(good.check(), Ok(()));
        // 16 subscribers of 4 samples, 16 kept, 2 on loan, of 128 bytes.
        assert_eq!(good.pool_bytes(), 12288);
        assert_eq!(PublishConfig::default().pool_bytes(), 0);
        for (wrong, why) in [
            (PublishConfig { short_bytes_max: 2033, ..good.clone() }, "short_bytes_max is 2033"),
            (PublishConfig { outstanding_max: 65, ..good.clone() }, "from 1 to 64"),
            (PublishConfig { loans_max: 0, ..good.clone() }, "loans_max is 0"),
            (PublishConfig { history: 1 << 17, ..good.clone() }, "history is 131072"),
            (PublishConfig { sample_bytes_max: usize::MAX / 4, ..good }, "is too large"),
            (PublishConfig { sample_bytes_max: usize::MAX, ..good }, "is too large"),
        ] {
            let error = wrong.check().unwrap_err();
            assert!(error.contains(why), "{error:?} does not say {why:?}");
        }
    }
}
