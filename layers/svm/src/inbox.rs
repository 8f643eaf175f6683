//! Messages of several packets, over links that keep order.
//!
//! ```text
//!   split    head and body, in pieces of at most `PIECE` bytes; the last one's word says so
//!   Inbox    appends pieces to the message that its link has begun
//! ```
//! Never: a peer other than the one that is [asked](Inbox::listen_to) holds up an answer; a peer makes it
//! grow beyond `QUEUE_BYTES`; a piece of one link joins a message of another.

use crate::machine::wire::{BODY_BYTES_MAX, HEAD_BYTES};
use hamlyn::{Deposit, LinkId, Receiver};

/// Bytes of one packet: a page with its head fits.
pub const PIECE: usize = 8 << 10;
/// Bytes of the longest message.
pub const MESSAGE_BYTES_MAX: usize = HEAD_BYTES + BODY_BYTES_MAX;
/// Packets that a node takes from a link before these messages are handled.
pub const PACKETS_PER_TURN: u32 = 16;
const QUEUE_BYTES: usize = 2 * PACKETS_PER_TURN as usize * PIECE + MESSAGE_BYTES_MAX;
/// Messages that wait.
const QUEUED: usize = 4 * PACKETS_PER_TURN as usize;

/// The word of a message's last piece.
const LAST: u32 = 1;
/// The word of the farewell: the client has left.
pub const BYE: u32 = 2;

/// A message's pieces, with their words.
pub fn split<E>(
    head: &[u8],
    body: &[u8],
    piece: usize,
    mut send: impl FnMut(&[&[u8]], u32) -> Result<(), E>,
) -> Result<(), E> {
    let (first, mut rest) = body.split_at(body.len().min(piece - head.len()));
    send(&[head, first], if rest.is_empty() { LAST } else { 0 })?;
    while !rest.is_empty() {
        let (next, after) = rest.split_at(rest.len().min(piece));
        rest = after;
        send(&[next], if rest.is_empty() { LAST } else { 0 })?;
    }
    Ok(())
}

/// Whole messages, one behind the other, and where each ends.
#[derive(Debug)]
pub struct Messages {
    bytes: Vec<u8>,
    ends: Vec<(LinkId, usize)>,
}

impl Messages {
    /// Room for all that can come in a turn: nothing is allocated later.
    pub fn new() -> Self {
        Self { bytes: Vec::with_capacity(QUEUE_BYTES), ends: Vec::with_capacity(QUEUED) }
    }

    /// The messages in their order.
    pub fn iter(&self) -> impl Iterator<Item = (LinkId, &[u8])> {
        let starts = core::iter::once(0).chain(self.ends.iter().map(|(_, end)| *end));
        let spans = starts.zip(&self.ends);
        spans.map(|(start, (link, end))| (*link, &self.bytes[start..*end]))
    }

    /// Forgets them.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }
}

/// The receiver of a slot.
#[derive(Debug)]
pub struct Inbox {
    whole: Messages,
    begun: Vec<u8>,
    begun_by: Option<LinkId>,
    /// Of this link alone, pieces are taken.
    only: Option<LinkId>,
    /// The rest of a message that was refused comes.
    skips: bool,
    /// Packets that were thrown away.
    pub refused: u64,
    /// The client has said farewell.
    pub bye: bool,
}

impl Inbox {
    /// Without messages.
    pub fn new() -> Self {
        Self {
            whole: Messages::new(),
            begun: Vec::with_capacity(MESSAGE_BYTES_MAX),
            begun_by: None,
            only: None,
            skips: false,
            refused: 0,
            bye: false,
        }
    }

    /// Exchanges the messages that are complete for none. `false`: there are none.
    pub fn take(&mut self, empty: &mut Messages) -> bool {
        if self.whole.ends.is_empty() {
            return false;
        }
        core::mem::swap(&mut self.whole, empty);
        true
    }

    /// Pieces of other links are refused from now on: no peer but this one can hold up its messages.
    pub fn listen_to(&mut self, link: LinkId) {
        if self.only != Some(link) {
            self.only = Some(link);
            self.begun.clear();
            self.begun_by = None;
            self.skips = false;
        }
    }

    fn add(&mut self, link: LinkId, word: u32, bytes: &[u8]) {
        let is_last = word & LAST != 0;
        if self.only.is_some_and(|only| only != link) {
            self.refused += 1;
            return;
        }
        self.bye |= word & BYE != 0;
        if self.skips {
            self.skips = !is_last;
            return;
        }
        if self.begun_by.is_some_and(|by| by != link) {
            self.refused += 1;
            return;
        }
        let begun = self.begun.len() + bytes.len();
        let whole = self.whole.bytes.len() + begun;
        if begun > MESSAGE_BYTES_MAX || whole > QUEUE_BYTES || self.whole.ends.len() >= QUEUED {
            return self.refuse(is_last);
        }
        if !is_last {
            self.begun.extend_from_slice(bytes);
            self.begun_by = Some(link);
            return;
        }
        self.whole.bytes.extend_from_slice(&self.begun);
        self.whole.bytes.extend_from_slice(bytes);
        self.whole.ends.push((link, self.whole.bytes.len()));
        self.begun.clear();
        self.begun_by = None;
    }

    fn refuse(&mut self, is_last: bool) {
        self.refused += 1;
        self.skips = !is_last;
        self.begun.clear();
        self.begun_by = None;
    }
}

impl Receiver for Inbox {
    fn observe(&mut self, deposit: &Deposit<'_>, bytes: &[u8]) {
        self.add(deposit.link, deposit.word, bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_that_is_not_asked_cannot_hold_up_an_answer() {
        let [asked, hostile] = [1, 2].map(|index| LinkId { index, generation: 0 });
        let mut inbox = Inbox::new();
        inbox.listen_to(hostile);
        inbox.add(hostile, 0, b"without an end");
        inbox.listen_to(asked);
        // A message without an end, one that is too long, and more messages than wait.
        inbox.add(hostile, 0, b"again");
        (0..50).for_each(|_| inbox.add(hostile, 0, &[0; PIECE]));
        (0..2 * QUEUED).for_each(|_| inbox.add(hostile, LAST, b"no answer"));
        inbox.add(asked, 0, b"the an");
        inbox.add(asked, LAST, b"swer");
        let mut messages = Messages::new();
        assert!(inbox.take(&mut messages));
        assert_eq!(messages.iter().collect::<Vec<_>>(), [(asked, &b"the answer"[..])]);
        assert_eq!(inbox.refused, 51 + 2 * QUEUED as u64);
    }
}
