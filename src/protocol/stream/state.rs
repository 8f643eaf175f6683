//! The checks that the next receiving call needs. Most records take a short path, which checks only
//! the record itself: all other checks were made before.
//!
//! ```text
//!   Direct --- a small message comes ---------> InHand     nothing is written of it but the record
//!   Direct <-- it is released, nothing is due - InHand
//!   All ------ a coalesced record, not the last -> Run --- the last one, or no more -> All
//!   All ------ nothing is held, owed or wrong ---> Direct
//!   any ------ an unusual case -----------------> All
//! ```
//! Never: a message is in [`Messages`](super::held::Messages) while this is `Direct` or `InHand`,
//! or no message is while it is `Run`; due work waits while this is `Direct`.

use super::Record;
use super::held::{HeldMessage, Lies};
use super::intake::{Intake, NextChecks, Run};
use crate::protocol::records::{HEAD_BYTES, Small};

impl Intake {
    /// Makes all checks due, and brings the state up to date for them.
    #[inline]
    pub(super) fn look_at_all(&mut self) {
        match self.next {
            NextChecks::All | NextChecks::Direct => self.next = NextChecks::All,
            NextChecks::InHand(_) | NextChecks::Run(_) => self.put_down(),
        }
    }

    #[inline(never)]
    fn put_down(&mut self) {
        match core::mem::replace(&mut self.next, NextChecks::All) {
            NextChecks::InHand(word) => {
                let Small { place, length, framed, .. } = Small::from_word(word);
                let (number, message) = (self.given - 1, self.held.next_number());
                let (start, stream, is_far) = (0, self.stream, false);
                self.latest = Record { number, message, start, length, stream, is_far };
                let (lies, last, at, end) = (Lies::Place(place), false, length, self.given);
                self.held.push(HeldMessage { lies, length, framed, last, at, end });
                self.held.has_read();
            }
            NextChecks::Run(run) => {
                if let Some((_, held)) = self.held.reading() {
                    held.at = run.at;
                }
            }
            NextChecks::All | NextChecks::Direct => {}
        }
    }

    /// Makes only the check for a message due, if no other is needed.
    #[inline]
    pub(super) fn settle(&mut self) {
        if matches!(self.next, NextChecks::All)
            && self.held.is_empty()
            && self.from.is_some()
            && self.fault.is_none()
            && !self.has_last
            && self.asked.is_none()
            && !self.is_due()
        {
            self.next = NextChecks::Direct;
        }
    }

    /// The record that was handed out is one of several, and some of them are left.
    #[inline]
    pub(super) fn begin_run(&mut self) {
        if let Some((number, held)) = self.held.reading()
            && number == self.latest.message
            && held.framed
            && let Lies::Buffer(buffer) = held.lies
        {
            self.next = NextChecks::Run(Run { buffer, at: held.at, length: held.length });
        }
    }

    /// The next record of the current message, if it is not the last one there; returns whether it
    /// was handed out. It differs from the one before in its position only.
    #[inline]
    pub(super) fn next_of_run(&mut self) -> bool {
        let NextChecks::Run(run) = &mut self.next else { return false };
        let start = run.at as usize + HEAD_BYTES;
        let head = self.taken.buffer(run.buffer).get(run.at as usize..start);
        let Some(head) = head.and_then(|head| head.first_chunk()) else { return false };
        let length = u32::from_le_bytes(*head);
        // In 64 bits, which no length of 32 fills; and up to a multiple of four.
        let after = start as u64 + ((length as u64 + 3) & !3);
        if after >= run.length as u64 || length as usize > self.config.record_bytes_max {
            return false;
        }
        run.at = after as u32;
        self.latest.number = self.given;
        self.latest.start = start as u32;
        self.latest.length = length;
        self.given += 1;
        true
    }

    /// The latest record that was handed out, or the one in use.
    #[inline]
    pub(super) fn latest(&self) -> Record {
        match self.next {
            NextChecks::InHand(word) => Record {
                number: self.given - 1,
                message: self.held.next_number(),
                start: 0,
                length: Small::from_word(word).length,
                stream: self.stream,
                is_far: false,
            },
            _ => self.latest,
        }
    }

    /// Releases the record in hand; returns whether its place can stay with the sender.
    #[inline]
    pub(super) fn release_in_hand(&mut self) -> bool {
        self.released = self.given;
        self.places.free();
        let is_due = self.places.is_due();
        self.next = if is_due { NextChecks::All } else { NextChecks::Direct };
        !is_due
    }

    /// Releases a record of a [run](Next::Run) after all earlier ones; `false`: the state is
    /// another.
    #[inline]
    pub(super) fn release_in_run(&mut self) -> bool {
        // It is in use, so it is not kept, and no record is: all earlier ones are released. The
        // message has records left, and is the first.
        let is_next = matches!(self.next, NextChecks::Run(_)) && self.released + 1 == self.given;
        if is_next {
            self.released = self.given;
        }
        is_next
    }
}
