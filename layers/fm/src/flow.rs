//! Credit, order and the word of a packet: the state machine of one pair of nodes, without I/O.
//!
//! ```text
//!   sender                                        receiver
//!   Sending::place(bytes) -> offset   --packet->  Receiving::take(bytes) -> the same offset
//!   Sending::credit(count)            <-count---  Receiving::owed() -> count
//! ```
//! The sender manages a window of the receiver's memory: packets lie there one behind the other, in
//! the order in which they are sent, each in one piece. They arrive in that order, so the receiver
//! computes the same offsets, and is told none.
//!
//! Never: a peer takes more of the receiver than its window; credit that was not earned is believed.

/// A packet takes this many bytes of its window, or a multiple: a line of the ring that carries it.
pub const UNIT: u64 = 64;
/// Bytes in front of a packet that are counted as part of it: its header in the ring.
const HEADER: u64 = 16;
/// Messages of one pair of nodes that can be open at once.
pub const STREAMS: usize = 64;
/// Identifiers of handlers are below.
pub const HANDLERS: usize = 1024;
/// A packet has fewer bytes.
pub const PACKET_BYTES: usize = 1 << 14;
/// In front of the first packet of a message that has several: the length that its sender said.
pub const LENGTH_BYTES: usize = 8;

/// A packet's word: everything about it but its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Word {
    /// It begins a message.
    pub first: bool,
    /// It ends its message.
    pub last: bool,
    /// Its bytes.
    pub length: usize,
    /// The number of its message, among those that are open; of a whole message 0.
    pub stream: usize,
    /// The handler's identifier, in a first packet.
    pub handler: usize,
}

impl Word {
    /// As it travels: first (bit 0), last (1), length (2 to 15), stream (16 to 21), handler.
    #[inline]
    pub fn to_bits(self) -> u32 {
        debug_assert!(self.length < PACKET_BYTES && self.stream < STREAMS);
        self.first as u32
            | (self.last as u32) << 1
            | (self.length as u32) << 2
            | (self.stream as u32) << 16
            | (self.handler as u32) << 22
    }

    /// All words mean something; whether it is allowed, its receiver knows.
    #[inline]
    pub fn from_bits(bits: u32) -> Self {
        Self {
            first: bits & 1 != 0,
            last: bits & 2 != 0,
            length: Bits(bits).length(),
            stream: (bits >> 16) as usize & (STREAMS - 1),
            handler: Bits(bits).handler(),
        }
    }
}

/// A word as it came: the common path reads what it needs, and takes nothing else apart.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bits(pub u32);

impl Bits {
    #[inline(always)]
    pub fn length(self) -> usize {
        (self.0 >> 2) as usize & (PACKET_BYTES - 1)
    }

    #[inline(always)]
    pub fn is_whole(self) -> bool {
        self.0 & 3 == 3
    }

    #[inline(always)]
    pub fn handler(self) -> usize {
        (self.0 >> 22) as usize
    }
}

/// A peer gave credit back for what was not sent, or took credit away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("credit for {told} bytes, where {sent} were sent and {before} were given back before")]
pub struct Violation {
    /// The count that it told.
    pub told: u64,
    /// The bytes that had been sent.
    pub sent: u64,
    /// The count that it told before.
    pub before: u64,
}

/// A position in a window since the beginning, and its offset in the window.
#[derive(Clone, Copy, Debug, Default)]
struct Position {
    count: u64,
    offset: u64,
}

impl Position {
    /// The offset of a packet that begins here, and the count behind it. A packet that would not lie in
    /// one piece begins at the window's start.
    #[inline(always)]
    fn place(self, window: u64, length: usize) -> (u64, u64) {
        let takes = (length as u64 + HEADER).next_multiple_of(UNIT);
        match self.offset + takes > window {
            true => (0, self.count + (window - self.offset) + takes),
            false => (self.offset, self.count + takes),
        }
    }

    /// Goes on to a count that [`place`](Self::place) returned: at most a window further.
    #[inline(always)]
    fn go_to(&mut self, window: u64, count: u64) {
        let offset = self.offset + (count - self.count);
        self.offset = if offset >= window { offset - window } else { offset };
        self.count = count;
    }
}

/// Most bytes of a packet, but for [`LENGTH_BYTES`] of a first one: so many that a sender whose peer takes
/// its packets can always go on.
pub fn packet_bytes_max(window: u64) -> usize {
    ((window / 6) as usize / UNIT as usize * UNIT as usize).min(PACKET_BYTES - UNIT as usize)
}

/// The sender's half.
#[derive(Debug)]
pub struct Sending {
    window: u64,
    position: Position,
    consumed: u64,
}

impl Sending {
    /// With a window of so many bytes, a multiple of [`UNIT`].
    pub fn new(window: u64) -> Self {
        Self { window, position: Position::default(), consumed: 0 }
    }

    /// The place of the next packet, and the position behind it; `None`: there is no credit for it.
    #[inline]
    pub fn place(&self, length: usize) -> Option<(u64, u64)> {
        let (at, next) = self.position.place(self.window, length);
        (next - self.consumed <= self.window).then_some((at, next))
    }

    /// The packet that was placed last has left.
    #[inline]
    pub fn has_left(&mut self, next: u64) {
        self.position.go_to(self.window, next);
    }

    /// The receiver says how much of its window has been consumed since the beginning.
    #[inline]
    pub fn credit(&mut self, told: u64) -> Result<(), Violation> {
        let (before, sent) = (self.consumed, self.position.count);
        if told < before || told > sent {
            return Err(Violation { told, sent, before });
        }
        self.consumed = told;
        Ok(())
    }
}

/// The receiver's half.
#[derive(Debug)]
pub struct Receiving {
    window: u64,
    taken: Position,
    told: u64,
}

impl Receiving {
    /// With a window of so many bytes, a multiple of [`UNIT`].
    pub fn new(window: u64) -> Self {
        Self { window, taken: Position::default(), told: 0 }
    }

    /// Takes the packet that has come next. Returns its place, which stays as it is until the sender is
    /// told. A packet longer than [`packet_bytes_max`] is a violation that the caller must see.
    #[inline]
    pub fn take(&mut self, length: usize) -> u64 {
        let (at, next) = self.taken.place(self.window, length);
        self.taken.go_to(self.window, next);
        at
    }

    /// The count that the sender should be told now, if it is time: a quarter of the window is to be
    /// given back.
    #[inline]
    pub fn owed(&self) -> Option<u64> {
        (self.taken.count - self.told >= self.window / 4).then_some(self.taken.count)
    }

    /// It was told.
    #[inline]
    pub fn has_told(&mut self, count: u64) {
        self.told = count;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_is_the_same_after_its_travel() {
        for bits in (0..=u32::MAX).step_by(65_521) {
            assert_eq!(Word::from_bits(bits).to_bits(), bits);
        }
    }

    /// With any lengths, a sender whose packets are taken goes on, both ends agree about each
    /// place, and no packet lies over one that has not been taken.
    #[test]
    fn both_ends_agree_about_places_and_the_sender_always_goes_on() {
        for window in [768u64, 832, 4096, 49152] {
            let most = packet_bytes_max(window) + LENGTH_BYTES;
            let (mut sending, mut receiving) = (Sending::new(window), Receiving::new(window));
            let mut waiting = std::collections::VecDeque::new();
            let mut seed = window;
            for _ in 0..20_000 {
                seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                let length = (seed >> 33) as usize % (most + 1);
                while sending.place(length).is_none() {
                    let (at, length) =
                        waiting.pop_front().expect("it does not wait for credit alone");
                    assert_eq!(receiving.take(length), at);
                    if let Some(count) = receiving.owed() {
                        receiving.has_told(count);
                        sending.credit(count).unwrap();
                    }
                }
                let (at, next) = sending.place(length).unwrap();
                sending.has_left(next);
                assert!(at + length as u64 <= window);
                for (other, bytes) in &waiting {
                    let ends = other + *bytes as u64;
                    assert!(at + length as u64 <= *other || ends <= at, "{at} {other}");
                }
                waiting.push_back((at, length));
            }
        }
    }

    #[test]
    fn a_sender_stops_at_its_credit_and_unearned_credit_is_a_violation() {
        let mut sending = Sending::new(768);
        for _ in 0..6 {
            let (_, next) = sending.place(100).unwrap();
            sending.has_left(next);
        }
        assert_eq!(sending.place(100), None);
        assert_eq!(sending.credit(128), Ok(()));
        assert_eq!(sending.place(100), Some((0, 896)));
        for told in [0, 769, u64::MAX] {
            assert_eq!(sending.credit(told), Err(Violation { told, sent: 768, before: 128 }));
        }
    }
}
