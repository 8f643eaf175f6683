//! Sends messages of an end point: written into a buffer, then given to the library, at once or
//! when it has room.
//!
//! A provider may have no room (`-FI_EAGAIN`) for one peer, for example one that makes no calls and
//! so accepts no connection, or for all. So a buffer waits only behind buffers with the same tag.

use super::{FabricEndPoint, FabricError, FabricEvent, FabricPeer, OpState, SendOutcome, sys};
use std::collections::{BTreeMap, VecDeque};
use std::vec::Vec;

/// Tags for which one call tries again whether the provider has room.
const TAGS_PER_CALL: usize = 8;

/// Buffers that are written and wait for room with the provider, in order for each tag.
#[derive(Debug, Default)]
pub(super) struct Unsent {
    of: BTreeMap<u64, VecDeque<usize>>,
    /// The last tag that was tried.
    asked: u64,
}

impl Unsent {
    /// The tag whose turn it is: the next with a waiting buffer, and after the last the first
    /// again.
    fn next(&mut self) -> Option<u64> {
        let next =
            self.of.range((core::ops::Bound::Excluded(self.asked), core::ops::Bound::Unbounded));
        let (tag, _) = next.chain(self.of.iter()).next()?;
        self.asked = *tag;
        Some(*tag)
    }
}

impl FabricEndPoint {
    /// Sends a message of these parts, together at most as long as a message may be.
    pub fn send(
        &mut self,
        to: FabricPeer,
        tag: u64,
        parts: &[&[u8]],
    ) -> Result<SendOutcome, FabricError> {
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        assert!(bytes <= self.message_bytes, "a message has at most so many bytes");
        self.send_with(to, tag, |memory| {
            let mut at = 0;
            for part in parts {
                memory[at..at + part.len()].copy_from_slice(part);
                at += part.len();
            }
            Some(at)
        })
    }

    /// Sends a message that `fill` writes into a buffer; `fill` returns its length, or `None` for
    /// no message. After an error nothing was sent.
    pub fn send_with(
        &mut self,
        to: FabricPeer,
        tag: u64,
        fill: impl FnOnce(&mut [u8]) -> Option<usize>,
    ) -> Result<SendOutcome, FabricError> {
        let waits = !self.unsent.of.is_empty() && self.unsent.of.contains_key(&tag);
        let Some(&index) = self.idle.last().filter(|_| !waits) else {
            return Ok(SendOutcome::NotNow);
        };
        let buffer = &mut self.buffers[index];
        debug_assert_eq!(buffer.state, OpState::Idle);
        // SAFETY: only this process uses the memory of an idle buffer, which has room for a
        // message.
        let memory =
            unsafe { core::slice::from_raw_parts_mut(buffer.at.as_ptr(), self.message_bytes) };
        let Some(bytes) = fill(memory) else { return Ok(SendOutcome::Nothing) };
        let bytes = bytes.min(self.message_bytes);
        buffer.state = OpState::Unsent { bytes, to, tag };
        self.idle.pop();
        match self.begin(index) {
            Ok(true) => Ok(SendOutcome::Leaves(bytes)),
            Ok(false) => {
                self.unsent.of.entry(tag).or_default().push_back(index);
                Ok(SendOutcome::Leaves(bytes))
            }
            Err(error) => {
                self.buffers[index].state = OpState::Idle;
                self.idle.push(index);
                Err(error)
            }
        }
    }

    /// Gives a buffer's message to the library. `false`: it has no room for that now.
    fn begin(&mut self, index: usize) -> Result<bool, FabricError> {
        let Some(_inside) = self.door.enter() else { return Ok(false) };
        let end = self.end();
        let buffer = &mut self.buffers[index];
        let OpState::Unsent { bytes, to, tag } = buffer.state else { return Ok(true) };
        // SAFETY: memory of this length that is not touched until the completion, and a context
        // that stays.
        let rc = unsafe {
            let send = (*(*end).msg).send.expect("each end point sends");
            let at = buffer.at.as_ptr().cast();
            send(end, at, bytes, buffer.descriptor, to.0, buffer.context.cast())
        };
        match rc {
            0 => {
                buffer.state = OpState::Sending { tag };
                Ok(true)
            }
            rc if rc as i64 == -i64::from(sys::FI_EAGAIN) => Ok(false),
            rc => Err(self.library().refused("sending", rc)),
        }
    }

    /// Sends waiting messages of a few tags, as far as there is room; later calls handle the
    /// others.
    pub(super) fn send_unsent(&mut self, events: &mut Vec<FabricEvent>) {
        self.send_unsent_of(TAGS_PER_CALL, events);
    }

    /// The same for all tags, before the caller sleeps: a completion may make room for several
    /// tags, but wakes the caller only once.
    pub fn send_all_unsent(&mut self, events: &mut Vec<FabricEvent>) {
        self.send_unsent_of(usize::MAX, events);
    }

    fn send_unsent_of(&mut self, tags: usize, events: &mut Vec<FabricEvent>) {
        for _ in 0..self.unsent.of.len().min(tags) {
            let Some(tag) = self.unsent.next() else { return };
            self.send_unsent_with(tag, events);
        }
    }

    fn send_unsent_with(&mut self, tag: u64, events: &mut Vec<FabricEvent>) {
        while let Some(&index) = self.unsent.of.get(&tag).and_then(VecDeque::front) {
            debug_assert!(matches!(self.buffers[index].state, OpState::Unsent { .. }));
            match self.begin(index) {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => {
                    self.buffers[index].state = OpState::Idle;
                    self.idle.push(index);
                    events.push(FabricEvent::NotSent { tag, why: std::format!("{error}") });
                }
            }
            self.unsent.of.get_mut(&tag).and_then(VecDeque::pop_front);
        }
        self.unsent.of.remove(&tag);
    }

    /// Whether messages with this tag wait for room.
    pub fn has_unsent(&self, tag: u64) -> bool {
        self.unsent.of.contains_key(&tag)
    }

    /// Discards the messages with this tag that wait for room; returns their number.
    pub fn forget_unsent(&mut self, tag: u64) -> u32 {
        let waiting = self.unsent.of.remove(&tag).unwrap_or_default();
        for &index in &waiting {
            self.buffers[index].state = OpState::Idle;
            self.idle.push(index);
        }
        waiting.len() as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_tag_for_which_something_waits_has_its_turn() {
        let mut unsent = Unsent::default();
        assert_eq!(unsent.next(), None);
        for tag in [3, 9, 5] {
            unsent.of.entry(tag).or_default().push_back(0);
        }
        let turns: Vec<_> = (0..6).map_while(|_| unsent.next()).collect();
        assert_eq!(turns, [3, 5, 9, 3, 5, 9]);
        // The tag whose turn it was has no messages any more.
        unsent.of.remove(&9);
        assert_eq!(unsent.next(), Some(3));
    }
}
