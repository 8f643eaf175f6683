//! What the next call that receives has to look for. Most records take a short path, on which nothing
//! but themselves is looked at: whatever else there may be was looked at before.
//!
//! ```text
//!   Direct --- a small message comes ---------> InHand     nothing is written of it but the record
//!   Direct <-- it is released, nothing is due - InHand
//!   All ------ a coalesced record, not the last -> Run --- the last one, or none ---> All
//!   All ------ nothing is held, owed or wrong ---> Direct
//!   any ------ whatever is unusual -------------> All
//! ```
//! Never: a message is in [`Messages`](super::held::Messages) while this is `Direct` or `InHand`, or
//! none is while it is `Run`; something that is due waits while this is `Direct`.

use super::Record;
use super::held::{Held, Lies};
use super::intake::Intake;
use crate::protocol::records::{HEAD_BYTES, Small};

/// What the next call that receives has to look for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Next {
    /// Anything.
    All,
    /// A message, and nothing else: nothing is held, owed to the sender, or wrong.
    Direct,
    /// A record was handed out that is all of a small message with this word, in its place. It is
    /// not among the messages that are held, and is the only one that is not released.
    InHand(u32),
    /// Another coalesced record of the message that is read.
    Run(Run),
}

/// Coalesced records of one message, of which one was handed out. [`Held::at`] is behind meanwhile.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    buffer: u32,
    at: u32,
    length: u32,
}

impl Intake {
    /// Whatever is there will be looked for, and is where it is looked for.
    #[inline]
    pub(super) fn look_at_all(&mut self) {
        match self.next {
            Next::All | Next::Direct => self.next = Next::All,
            Next::InHand(_) | Next::Run(_) => self.put_down(),
        }
    }

    #[inline(never)]
    fn put_down(&mut self) {
        match core::mem::replace(&mut self.next, Next::All) {
            Next::InHand(word) => {
                let Small { place, length, framed, .. } = Small::from_word(word);
                let (number, message) = (self.given - 1, self.held.next_number());
                let (start, stream, is_far) = (0, self.stream, false);
                self.latest = Record { number, message, start, length, stream, is_far };
                let (lies, last, at, end) = (Lies::Place(place), false, length, self.given);
                self.held.push(Held { lies, length, framed, last, at, end });
                self.held.has_read();
            }
            Next::Run(run) => {
                if let Some((_, held)) = self.held.reading() {
                    held.at = run.at;
                }
            }
            Next::All | Next::Direct => {}
        }
    }

    /// Where nothing but a message is to be looked for, only that will be.
    #[inline]
    pub(super) fn settle(&mut self) {
        if matches!(self.next, Next::All)
            && self.held.is_empty()
            && self.from.is_some()
            && self.fault.is_none()
            && !self.has_last
            && self.asked.is_none()
            && !self.is_due()
        {
            self.next = Next::Direct;
        }
    }

    /// The record that was handed out is one of several, of which some are left.
    #[inline]
    pub(super) fn begin_run(&mut self) {
        if let Some((number, held)) = self.held.reading()
            && number == self.latest.message
            && held.framed
            && let Lies::Buffer(buffer) = held.lies
        {
            self.next = Next::Run(Run { buffer, at: held.at, length: held.length });
        }
    }

    /// The next record of the message that is read, if it is not the last one there; whether it
    /// was handed out. It differs from the one before in where it lies, and in nothing else.
    #[inline(always)]
    pub(super) fn next_of_run(&mut self) -> bool {
        let Next::Run(run) = &mut self.next else { return false };
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

    /// The record that was handed out last, or is looked at.
    #[inline]
    pub(super) fn latest(&self) -> Record {
        match self.next {
            Next::InHand(word) => Record {
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

    /// The record that is in hand is released; whether its place can stay the sender's affair.
    #[inline(always)]
    pub(super) fn release_in_hand(&mut self) -> bool {
        self.released = self.given;
        self.places.free();
        let is_due = self.places.is_due();
        self.next = if is_due { Next::All } else { Next::Direct };
        !is_due
    }

    /// A record of a [run](Next::Run) is released, of which those before are; `false`: it is not so.
    #[inline(always)]
    pub(super) fn release_in_run(&mut self) -> bool {
        // It is not kept, for somebody looks at it, and so none is: all before it are released. The
        // message has records left, and is the first.
        let is_next = matches!(self.next, Next::Run(_)) && self.released + 1 == self.given;
        if is_next {
            self.released = self.given;
        }
        is_next
    }
}
