//! Counters: arrivals, and each reason for which a packet is refused.
//!
//! One writer (the thread that drives the interface), any number of readers that never slow it: a
//! counter is a word that the writer loads and stores without a locked instruction.

use core::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($(#[doc = $doc:expr] $field:ident,)* ; $(#[doc = $rdoc:expr] $variant:ident = $rfield:ident : $text:expr,)*) => {
        /// Why a packet was refused. The sender gets no answer (a refusal reveals nothing). The
        /// receiver's counter of the same name goes up by one. Nothing else changes, except the sum
        /// of the packet's own link in an entry that several links share.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
        #[cfg_attr(not(feature = "unstable-internals"), non_exhaustive)]
        pub enum Refusal { $(#[doc = $rdoc] #[error($text)] $variant,)* }

        /// The counters of one interface. Names are stable.
        #[derive(Debug, Default)]
        pub struct Counters {
            $(#[doc = $doc] pub $field: Counter,)*
            $(#[doc = $rdoc] pub $rfield: Counter,)*
            /// Messages of one line that were deposited and announced in the short way. Not
            /// reported by itself: each counts as a packet, a message and a notification.
            pub(crate) singles_announced: Counter,
        }

        impl Counters {
            /// Name and value of each counter, in a fixed order.
            pub fn snapshot(&self) -> alloc::vec::Vec<(&'static str, u64)> {
                let mut all = alloc::vec![
                    $((stringify!($field), self.$field.get()),)*
                    $((stringify!($rfield), self.$rfield.get()),)*
                ];
                for (name, value) in &mut all {
                    match *name {
                        "packets_sent" | "messages_sent" => *value += self.singles_sent.get(),
                        "packets_received" | "messages_received" | "notifications" => {
                            *value += self.singles_announced.get();
                        }
                        _ => {}
                    }
                }
                all
            }
            /// Name and meaning of each counter, in the same order.
            pub fn described() -> alloc::vec::Vec<(&'static str, &'static str)> {
                alloc::vec![
                    $((stringify!($field), $doc),)*
                    $((stringify!($rfield), $rdoc),)*
                ]
            }
            /// Packets that were deposited, in any way.
            pub(crate) fn packets(&self) -> u64 {
                self.packets_received.get() + self.singles_announced.get()
            }
            /// A message of one packet was deposited: counted with as few stores as possible.
            #[inline(always)]
            pub(crate) fn packet_received(&self, bytes: u64, notifies: bool) {
                if notifies {
                    self.singles_announced.add(1);
                } else {
                    self.packets_received.add(1);
                    self.messages_received.add(1);
                }
                self.bytes_received.add(bytes);
            }
            pub(crate) fn refusal(&self, refusal: Refusal) -> &Counter {
                match refusal { $(Refusal::$variant => &self.$rfield,)* }
            }
        }

        impl Refusal {
            /// Every reason.
            pub const ALL: &'static [Refusal] = &[$(Refusal::$variant,)*];
            /// The name of the counter that this refusal raises.
            pub fn counter_name(self) -> &'static str {
                match self { $(Refusal::$variant => stringify!($rfield),)* }
            }
        }
    };
}

/// One counter.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct Counter(AtomicU64);

impl Counter {
    /// The value now.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Adds, for the one writer.
    #[inline(always)]
    pub(crate) fn add(&self, n: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }
}

counters! {
    /// Packets that were deposited.
    packets_received,
    /// Bytes of data that were deposited.
    bytes_received,
    /// Messages that were complete, announced or not.
    messages_received,
    /// Notification queue entries written.
    notifications,
    /// Messages that a receiver of the application's dealt with, instead of their queue.
    messages_consumed,
    /// Receivers of the application's that panicked, and are gone.
    receivers_panicked,
    /// Protocols of the application's that panicked, and whose seats are over.
    protocols_panicked,
    /// Messages given to links as one packet each, at once; counted as packets and messages, too.
    singles_sent,
    /// Packets given to links.
    packets_sent,
    /// Bytes of data given to links.
    bytes_sent,
    /// Messages whose last packet was given to a link.
    messages_sent,
    /// Packets dropped because the interface was not enabled, or its watchdog had run out (2.8).
    packets_discarded,
    /// Wake-up signals sent to sleeping peers.
    wakes_sent,
    /// Those wake-ups that used the bell, a word of this process, instead of a byte.
    rings_sent,
    /// Times that this process slept.
    sleeps,
    /// Sleeps that were short because the kernel refused the barrier that was agreed with a peer.
    naps,
    /// Links that were made.
    links_opened,
    /// Links that ended, for any reason.
    links_closed,
    /// Links closed because the peer guessed keys: too many wrong ones.
    links_closed_guessing,
    /// Links closed because the peer's refusals came too fast.
    links_closed_noise,
    /// Links closed because the peer broke the rules of the ring, or of links between hosts.
    links_closed_violation,
    /// Links closed because the peer sent a descriptor over its wake-up connection.
    links_closed_descriptor,
    /// Events that the application did not take in time: notices, and arrivals and departures.
    events_dropped,
    ;
    /// The packet names another interface.
    WrongDestination = refused_wrong_destination: "the packet is for another interface",
    /// Reserved bits, unknown flags, more metadata than 60 bytes, or metadata in fast mode.
    BadFormat = refused_bad_format: "the packet has reserved bits or too much metadata",
    /// No slot has this index.
    NoSuchSlot = refused_no_such_slot: "no slot has this index",
    /// The slot has no metadata entry of this index.
    NoSuchEntry = refused_no_such_entry: "the slot has no such metadata entry",
    /// The key is not the slot's, or not the entry's where the slot is paranoid.
    WrongKey = refused_wrong_key: "the key does not match",
    /// The key was once the slot's, or the entry's, and has been changed since: the sender did not guess.
    StaleKey = refused_stale_key: "the key has been changed",
    /// The packet does not fit into the slot's base and bound.
    OutOfBounds = refused_out_of_bounds: "the packet does not fit into the slot",
    /// The packet does not fit into the entry's low and high limit (2.7).
    OutsideLimits = refused_outside_limits: "the packet does not fit into the entry's limits",
    /// The entry has had its one message and has not been armed again (2.7).
    EntryClosed = refused_entry_closed: "the one-shot entry has had its message",
    /// The notification would exceed the slot's credit in its queue (2.8).
    NoCredit = refused_no_credit: "the slot has no credit left in its notification queue",
    /// Fast mode into a paranoid slot, which has no entry to protect it.
    FastIntoParanoid = refused_fast_into_paranoid: "a paranoid slot takes no fast packet",
}
