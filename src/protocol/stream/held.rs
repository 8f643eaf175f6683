//! The messages of a stream that were taken and not yet released, by number.
//!
//! ```text
//!   first ......... reading ......... next        numbers, counted from the first message on
//!     handed out     records are left   to be taken
//! ```

use std::boxed::Box;
use std::vec;

/// One message that was taken.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeldMessage {
    pub(super) lies: Lies,
    pub(super) length: u32,
    pub(super) framed: bool,
    pub(super) last: bool,
    /// The next record.
    pub(super) at: u32,
    /// Number of the first record behind it, once all of its own were handed out.
    pub(super) end: u64,
}

/// [`HeldMessage::end`] while records are left.
pub(super) const NOT_YET: u64 = u64::MAX;

/// The place of a message's bytes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Lies {
    /// In the stable copy of a place.
    Place(u32),
    /// In the buffer with this number, counted from the first message on, modulo 2^32.
    Buffer(u32),
}

/// A ring, whose size is a power of two: a message's number gives its cell.
#[derive(Debug)]
pub(super) struct Messages {
    cells: Box<[HeldMessage]>,
    first: u64,
    reading: u64,
    next: u64,
}

const EMPTY: HeldMessage = HeldMessage {
    lies: Lies::Place(0),
    length: 0,
    framed: false,
    last: false,
    at: 0,
    end: NOT_YET,
};

impl Messages {
    pub(super) fn new() -> Self {
        Self { cells: vec![EMPTY; 64].into(), first: 0, reading: 0, next: 0 }
    }

    #[inline]
    fn cell(&self, number: u64) -> Option<&HeldMessage> {
        self.cells.get(number as usize & self.cells.len().wrapping_sub(1))
    }

    #[inline]
    fn cell_mut(&mut self, number: u64) -> Option<&mut HeldMessage> {
        self.cells.get_mut(number as usize & self.cells.len().wrapping_sub(1))
    }

    /// A message that is not yet released.
    #[inline]
    pub(super) fn get(&self, number: u64) -> Option<&HeldMessage> {
        if (self.first..self.next).contains(&number) { self.cell(number) } else { None }
    }

    /// The first one; the next to be released.
    #[inline]
    pub(super) fn first(&self) -> Option<&HeldMessage> {
        if self.first < self.next { self.cell(self.first) } else { None }
    }

    /// The first one is released.
    #[inline]
    pub(super) fn drop_first(&mut self) {
        self.first += 1;
    }

    /// Whether every message is released.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.first == self.next
    }

    /// Number of the next one that is taken.
    #[inline]
    pub(super) fn next_number(&self) -> u64 {
        self.next
    }

    /// Whether records are left to be handed out.
    #[inline]
    pub(super) fn is_unread(&self) -> bool {
        self.reading < self.next
    }

    /// The first of which records are left, and its number.
    #[inline]
    pub(super) fn reading(&mut self) -> Option<(u64, &mut HeldMessage)> {
        let number = self.reading;
        if !self.is_unread() {
            return None;
        }
        self.cell_mut(number).map(|held| (number, held))
    }

    /// Its last record was handed out.
    #[inline]
    pub(super) fn has_read(&mut self) {
        self.reading += 1;
    }

    /// Drops the last one, whose remaining records are invalid.
    pub(super) fn take_back(&mut self) -> Option<HeldMessage> {
        if !self.is_unread() {
            return None;
        }
        self.next -= 1;
        self.cell(self.next).copied()
    }

    /// Adds a message; returns its number.
    #[inline]
    pub(super) fn push(&mut self, held: HeldMessage) -> u64 {
        if self.next - self.first == self.cells.len() as u64 {
            self.grow();
        }
        let number = self.next;
        self.next += 1;
        if let Some(cell) = self.cell_mut(number) {
            *cell = held;
        }
        number
    }

    #[cold]
    #[inline(never)]
    fn grow(&mut self) {
        let before = core::mem::take(&mut self.cells);
        self.cells = vec![EMPTY; 2 * before.len()].into();
        for number in self.first..self.next {
            let held = before[number as usize & (before.len() - 1)];
            if let Some(cell) = self.cell_mut(number) {
                *cell = held;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_known_by_their_numbers_however_many_are_held() {
        let mut messages = Messages::new();
        let (mut first, mut next) = (0, 0);
        let of = |number| HeldMessage { length: number as u32, ..EMPTY };
        for round in 0..1000u64 {
            for _ in 0..round % 7 + 1 {
                assert_eq!(messages.push(of(next)), next);
                next += 1;
            }
            while let Some((number, held)) = messages.reading() {
                assert_eq!(held.length, number as u32);
                messages.has_read();
            }
            while first + round / 2 < next {
                assert_eq!(messages.first().map(|held| held.length), Some(first as u32));
                messages.drop_first();
                first += 1;
            }
            assert!(
                messages.get(next).is_none() && (first == 0 || messages.get(first - 1).is_none())
            );
            for number in first..next {
                assert_eq!(messages.get(number).map(|held| held.length), Some(number as u32));
            }
        }
        assert!(next - first > 64, "it has grown");
    }

    #[test]
    fn only_messages_of_which_records_are_left_are_taken_back() {
        let mut messages = Messages::new();
        (0..3).for_each(|number| assert_eq!(messages.push(EMPTY), number));
        messages.has_read();
        assert!(messages.take_back().is_some() && messages.take_back().is_some());
        assert!(messages.take_back().is_none() && !messages.is_unread());
        assert!(messages.get(0).is_some() && messages.get(1).is_none());
        assert_eq!(messages.push(EMPTY), 1);
    }
}
