//! Messages that are being sent, as packets: the first piece of a long one leaves at once, later ones fill
//! packets; what a handler sends and has no room waits in its peer's queue.

use crate::Error;
use crate::flow::{LENGTH_BYTES, Word};
use crate::state::{Pushed, State};
use std::time::Duration;

/// A message that is being sent.
#[derive(Default)]
pub(crate) struct Out {
    pub(crate) to: u32,
    pub(crate) handler: usize,
    /// Bytes that may still follow, of those that were said.
    pub(crate) left: u64,
    /// Behind the length that was said: bytes that have not left.
    pub(crate) stage: Vec<u8>,
    /// Its number among those that are open, once its first packet has left and others follow.
    pub(crate) stream: Option<usize>,
    pub(crate) has_started: bool,
    pub(crate) has_ended: bool,
    /// Bytes of the queue that are kept for it, if a handler sends it.
    pub(crate) kept: usize,
    pub(crate) of_handler: bool,
}

/// A packet that a handler has sent and that waits for room.
pub(crate) struct Queued {
    pub(crate) word: Word,
    pub(crate) data: Box<[u8]>,
}

impl State {
    pub(crate) fn new_out(&mut self) -> usize {
        self.free_outs.pop().unwrap_or_else(|| {
            self.outs.push(Out::default());
            self.outs.len() - 1
        })
    }

    /// Whether it came to the rules of the hello.
    pub(crate) fn stream_for(&mut self, rank: u32) -> Result<usize, Error> {
        let peer = &mut self.peers[rank as usize];
        let stream = peer.streams.trailing_ones() as usize;
        if stream >= peer.streams_max {
            return Err(Error::Limit(format!(
                "{stream} messages to node {rank} are open, and it takes no more: end one"
            )));
        }
        peer.streams |= 1 << stream;
        Ok(stream)
    }

    /// A packet of the message leaves, or is queued in a handler.
    pub(crate) fn emit(
        &mut self,
        rank: u32,
        word: Word,
        data: &[u8],
        of_handler: bool,
    ) -> Result<(), Error> {
        if !of_handler {
            return self.push_waiting(rank, word, data);
        }
        if self.peers[rank as usize].queue.is_empty()
            && let Pushed::Sent = self.push(rank, word, data, Duration::ZERO)?
        {
            return Ok(());
        }
        let peer = &mut self.peers[rank as usize];
        peer.queue.push_back(Queued { word, data: data.into() });
        peer.queued += data.len();
        self.queued += data.len();
        Ok(())
    }

    /// Sends a packet of what is staged: the first, or a further one.
    pub(crate) fn emit_stage(&mut self, key: usize, last: bool) -> Result<(), Error> {
        let out = &mut self.outs[key];
        let (rank, handler, first) = (out.to, out.handler, !out.has_started);
        let is_whole = first && last;
        let stream = match out.stream {
            Some(stream) => stream,
            None if is_whole => 0,
            None => {
                let stream = self.stream_for(rank)?;
                self.outs[key].stream = Some(stream);
                stream
            }
        };
        let out = &mut self.outs[key];
        (out.has_started, out.has_ended) = (true, last);
        let stage = core::mem::take(&mut out.stage);
        let of_handler = out.of_handler;
        let peer = &mut self.peers[rank as usize];
        if peer.unstarted == Some(key) {
            peer.unstarted = None;
        }
        if last && !is_whole {
            peer.streams &= !(1 << stream);
        }
        // The length that was said goes only with a message of several packets.
        let data = if is_whole { &stage[LENGTH_BYTES..] } else { &stage[..] };
        let word = Word { first, last, length: data.len(), stream, handler };
        let done = self.emit(rank, word, data, of_handler);
        let out = &mut self.outs[key];
        out.stage = stage;
        out.stage.clear();
        done
    }

    #[inline]
    pub(crate) fn piece(&mut self, key: usize, data: &[u8]) -> Result<(), Error> {
        let out = &mut self.outs[key];
        let most = self.peers[out.to as usize].packet_bytes + LENGTH_BYTES;
        let has_room = out.left.saturating_add(out.stage.len() as u64) <= most as u64;
        // All that can still come fits into the first packet.
        if has_room && !out.has_started && data.len() as u64 <= out.left {
            out.left -= data.len() as u64;
            out.stage.extend_from_slice(data);
            return Ok(());
        }
        self.piece_of_long(key, data)
    }

    #[inline(never)]
    pub(crate) fn piece_of_long(&mut self, key: usize, mut data: &[u8]) -> Result<(), Error> {
        let out = &mut self.outs[key];
        let (rank, most) = (out.to, self.peers[out.to as usize].packet_bytes);
        if data.len() as u64 > out.left {
            return Err(Error::Limit(format!(
                "a piece of {} bytes, where {} of what FM_begin_message said are left",
                data.len(),
                out.left
            )));
        }
        out.left -= data.len() as u64;
        if data.is_empty() {
            return Ok(());
        }
        loop {
            let out = &mut self.outs[key];
            let is_end = out.left == 0;
            // What is long leaves from where it is.
            if out.has_started && out.stage.is_empty() && data.len() >= most {
                let (front, rest) = data.split_at(most);
                let stream = out.stream.unwrap_or(0);
                let last = is_end && rest.is_empty();
                let word = Word { first: false, last, length: most, stream, handler: 0 };
                out.has_ended = last;
                let of_handler = out.of_handler;
                if last {
                    self.peers[rank as usize].streams &= !(1 << stream);
                }
                self.emit(rank, word, front, of_handler)?;
                data = rest;
                if data.is_empty() {
                    return Ok(());
                }
                continue;
            }
            // The first packet has the length that was said beside its bytes, so that those of all
            // packets begin at whole multiples.
            let most = most + if out.has_started { 0 } else { LENGTH_BYTES };
            let takes = (most - out.stage.len()).min(data.len());
            out.stage.extend_from_slice(&data[..takes]);
            data = &data[takes..];
            let is_last = is_end && data.is_empty();
            // A message's first piece leaves at once, so that its handler chooses a place for the rest.
            // A whole one waits for the end, which may say that it is shorter than was said.
            if is_last && !out.has_started {
                return Ok(());
            }
            if out.stage.len() == most || !out.has_started || is_last {
                self.emit_stage(key, is_last)?;
            }
            if data.is_empty() {
                return Ok(());
            }
        }
    }

    #[inline]
    pub(crate) fn end(&mut self, key: usize) -> Result<(), Error> {
        let out = &mut self.outs[key];
        if out.has_started || out.of_handler {
            return self.end_late(key);
        }
        let stage = core::mem::take(&mut out.stage);
        let (rank, data) = (out.to, stage.get(LENGTH_BYTES..).unwrap_or_default());
        let (length, handler) = (data.len(), out.handler);
        let word = Word { first: true, last: true, length, stream: 0, handler };
        self.peers[rank as usize].unstarted = None;
        let done = self.push_waiting(rank, word, data);
        self.outs[key].stage = stage;
        self.free_outs.push(key);
        done
    }

    #[inline(never)]
    pub(crate) fn end_late(&mut self, key: usize) -> Result<(), Error> {
        let out = &self.outs[key];
        let done = match out.has_ended || self.peers[out.to as usize].dead.is_some() {
            true if out.has_ended => Ok(()),
            true => self.dead(out.to),
            false => self.emit_stage(key, true),
        };
        let out = &mut self.outs[key];
        self.kept -= core::mem::take(&mut out.kept);
        let (rank, stream) = (out.to, out.stream);
        let peer = &mut self.peers[rank as usize];
        if peer.unstarted == Some(key) {
            peer.unstarted = None;
        }
        if let Some(stream) = stream.filter(|_| !out.has_ended) {
            peer.streams &= !(1 << stream);
        }
        self.free_outs.push(key);
        done
    }
}
