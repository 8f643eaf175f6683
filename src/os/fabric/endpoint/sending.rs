//! What leaves an end point: written into a buffer, then the library's, at once or when it has room.

use super::{EndPoint, Event, FabricError, Peer, Sent, State, sys};
use std::vec::Vec;

impl EndPoint {
    /// Sends a message of these parts, together of at most as many bytes as a message has.
    pub fn send(&mut self, to: Peer, tag: u64, parts: &[&[u8]]) -> Result<Sent, FabricError> {
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

    /// Sends a message that `fill` writes into a buffer, and of which it says how many bytes it has; or
    /// none, if it says so. On an error nothing was sent.
    pub fn send_with(
        &mut self,
        to: Peer,
        tag: u64,
        fill: impl FnOnce(&mut [u8]) -> Option<usize>,
    ) -> Result<Sent, FabricError> {
        let Some(&index) = self.idle.last().filter(|_| self.unsent.is_empty()) else {
            return Ok(Sent::NotNow);
        };
        let buffer = &mut self.buffers[index];
        debug_assert_eq!(buffer.state, State::Idle);
        // SAFETY: an idle buffer's memory is this process's alone; it has a message's bytes.
        let memory =
            unsafe { core::slice::from_raw_parts_mut(buffer.at.as_ptr(), self.message_bytes) };
        let Some(bytes) = fill(memory) else { return Ok(Sent::Nothing) };
        let bytes = bytes.min(self.message_bytes);
        buffer.state = State::Unsent { bytes, to, tag };
        self.idle.pop();
        match self.begin(index) {
            Ok(true) => Ok(Sent::Leaves(bytes)),
            Ok(false) => {
                self.unsent.push_back(index);
                Ok(Sent::Leaves(bytes))
            }
            Err(error) => {
                self.buffers[index].state = State::Idle;
                self.idle.push(index);
                Err(error)
            }
        }
    }

    /// Gives the library what is to be sent of a buffer. `false`: it has no room for that now.
    fn begin(&mut self, index: usize) -> Result<bool, FabricError> {
        let end = self.end();
        let buffer = &mut self.buffers[index];
        let State::Unsent { bytes, to, tag } = buffer.state else { return Ok(true) };
        // SAFETY: memory of so many bytes that nobody touches until the completion, and with it a
        // context that stays.
        let rc = unsafe {
            let send = (*(*end).msg).send.expect("each end point sends");
            let at = buffer.at.as_ptr().cast();
            send(end, at, bytes, buffer.descriptor, to.0, buffer.context.cast())
        };
        match rc {
            0 => {
                buffer.state = State::Sending { tag };
                Ok(true)
            }
            rc if rc as i64 == -i64::from(sys::FI_EAGAIN) => Ok(false),
            rc => Err(self.library().refused("sending", rc)),
        }
    }

    /// Sends what waits for room, in its order.
    pub(super) fn send_unsent(&mut self, events: &mut Vec<Event>) {
        while let Some(&index) = self.unsent.front() {
            let before = self.buffers[index].state;
            let State::Unsent { tag, .. } = before else { unreachable!("it waits to be sent") };
            match self.begin(index) {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => {
                    self.buffers[index].state = State::Idle;
                    self.idle.push(index);
                    events.push(Event::NotSent { tag, why: std::format!("{error}") });
                }
            }
            self.unsent.pop_front();
        }
    }
}
