//! Messages that are being sent, as packets: the first piece of a long one leaves at once, later ones fill
//! packets; a packet of a handler that has no room waits in its peer's queue.
//!
//! Never: a number of a message is used again before its last packet is on its way.

use crate::Error;
use crate::flow::{LENGTH_BYTES, UNIT, Word};
use crate::state::{Pushed, State};
use std::time::Duration;

/// How far a message has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    /// Nothing has left.
    #[default]
    Begun,
    /// Its first packet has left, and others follow.
    Open,
    /// Its last packet has left.
    Ended,
    /// A packet did not leave in the time limit. It can only be ended.
    Failed,
}

/// A message that is being sent.
#[derive(Default)]
pub(crate) struct Out {
    to: u32,
    handler: usize,
    /// Bytes that may still follow, of those that were said.
    left: u64,
    /// Behind the length that was said: bytes that have not left.
    stage: Vec<u8>,
    /// Its number among those that are open.
    stream: Option<usize>,
    phase: Phase,
    /// Bytes of the queue that are kept for it, if a handler sends it.
    kept: usize,
    of_handler: bool,
}

/// A packet that waits for room: of a handler, or the end of a message that has failed.
pub(crate) struct Queued {
    pub(crate) word: Word,
    pub(crate) data: Box<[u8]>,
}

impl Queued {
    /// The room that it takes in the queue.
    pub(crate) fn bytes(&self) -> usize {
        self.data.len() + UNIT as usize
    }
}

/// The room in the queue for a message of so many bytes, in a few packets.
pub(crate) fn room_for(bytes: u64) -> u64 {
    bytes.saturating_add(2 * UNIT)
}

impl State {
    /// Begins a message; `kept` bytes of the queue are kept for it, if it is a handler's.
    #[inline]
    pub(crate) fn begin(
        &mut self,
        (to, handler): (u32, usize),
        bytes: u64,
        kept: Option<usize>,
    ) -> Result<usize, Error> {
        // Messages arrive in the order in which they were begun. In a handler nothing waits.
        if let Some(before) = self.peers[to as usize].unstarted {
            self.emit_stage(before, false, kept.is_some())?;
        }
        let key = self.free_outs.pop().unwrap_or_else(|| {
            self.outs.push(Out::default());
            self.outs.len() - 1
        });
        self.figures.messages_sent += 1;
        let out = &mut self.outs[key];
        (out.to, out.handler, out.left) = (to, handler, bytes);
        (out.of_handler, out.kept) = (kept.is_some(), kept.unwrap_or(0));
        (out.phase, out.stream) = (Phase::Begun, None);
        self.kept += out.kept;
        out.stage.clear();
        out.stage.extend_from_slice(&bytes.to_le_bytes());
        self.peers[to as usize].unstarted = Some(key);
        Ok(key)
    }

    /// A number for a message of several packets.
    fn stream_for(&mut self, rank: u32) -> Result<usize, Error> {
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

    fn enqueue(&mut self, rank: u32, word: Word, data: &[u8]) {
        let queued = Queued { word, data: data.into() };
        let peer = &mut self.peers[rank as usize];
        peer.queued += queued.bytes();
        self.queued += queued.bytes();
        peer.queue.push_back(queued);
    }

    /// Sends a packet, or queues it.
    fn push_or_queue(&mut self, rank: u32, word: Word, data: &[u8]) -> Result<(), Error> {
        let may_go = self.peers[rank as usize].queue.is_empty();
        if may_go && let Pushed::Sent = self.push(rank, word, data, Duration::ZERO)? {
            return Ok(());
        }
        self.dead(rank)?;
        self.enqueue(rank, word, data);
        Ok(())
    }

    /// The next packet of a message leaves; `queues`: or waits in the queue.
    fn emit(&mut self, key: usize, last: bool, data: &[u8], queues: bool) -> Result<(), Error> {
        let out = &self.outs[key];
        let (rank, handler, first) = (out.to, out.handler, out.phase == Phase::Begun);
        let stream = match out.stream {
            Some(stream) => Some(stream),
            None if first && last => None,
            None => Some(self.stream_for(rank)?),
        };
        let (length, number) = (data.len(), stream.unwrap_or(0));
        let word = Word { first, last, length, stream: number, handler };
        let sent = match queues {
            true => self.push_or_queue(rank, word, data),
            false => self.push_waiting(rank, word, data),
        };
        let (out, peer) = (&mut self.outs[key], &mut self.peers[rank as usize]);
        if peer.unstarted == Some(key) {
            peer.unstarted = None;
        }
        out.phase = match sent {
            Err(_) => Phase::Failed,
            Ok(()) if last => Phase::Ended,
            Ok(()) => Phase::Open,
        };
        // The number is free, unless the receiver has begun the message and not seen its end.
        let is_open = if sent.is_ok() { !last } else { !first };
        out.stream = stream.filter(|_| is_open);
        if let Some(stream) = stream.filter(|_| !is_open) {
            peer.streams &= !(1 << stream);
        }
        sent
    }

    /// [`emit`](Self::emit) of the bytes that are staged.
    fn emit_stage(&mut self, key: usize, last: bool, queues: bool) -> Result<(), Error> {
        let out = &mut self.outs[key];
        let stage = core::mem::take(&mut out.stage);
        // The length that was said goes only with a message of several packets.
        let is_whole = out.phase == Phase::Begun && last;
        let sent =
            self.emit(key, last, if is_whole { &stage[LENGTH_BYTES..] } else { &stage }, queues);
        let out = &mut self.outs[key];
        out.stage = stage;
        out.stage.clear();
        sent
    }

    #[inline]
    pub(crate) fn piece(&mut self, key: usize, data: &[u8]) -> Result<(), Error> {
        let out = &mut self.outs[key];
        let most = self.peers[out.to as usize].packet_bytes + LENGTH_BYTES;
        let has_room = out.left.saturating_add(out.stage.len() as u64) <= most as u64;
        // All that can still come fits into the first packet.
        if has_room && out.phase == Phase::Begun && data.len() as u64 <= out.left {
            out.left -= data.len() as u64;
            out.stage.extend_from_slice(data);
            return Ok(());
        }
        self.piece_of_long(key, data)
    }

    #[inline(never)]
    fn piece_of_long(&mut self, key: usize, mut data: &[u8]) -> Result<(), Error> {
        let out = &mut self.outs[key];
        let (rank, queues) = (out.to, out.of_handler);
        if out.phase == Phase::Failed {
            self.dead(rank)?;
            return Err(Error::Full(format!(
                "an earlier piece of this message to node {rank} had no room within the time limit: end it"
            )));
        }
        if data.len() as u64 > out.left {
            return Err(Error::Limit(format!(
                "a piece of {} bytes, where {} of what FM_begin_message said are left",
                data.len(),
                out.left
            )));
        }
        out.left -= data.len() as u64;
        while !data.is_empty() {
            let out = &mut self.outs[key];
            let begins = out.phase == Phase::Begun;
            // The first packet has the length that was said beside its bytes, so that those of all
            // packets begin at whole multiples.
            let most =
                self.peers[rank as usize].packet_bytes + if begins { LENGTH_BYTES } else { 0 };
            let (front, rest) = data.split_at(data.len().min(most - out.stage.len()));
            let is_last = out.left == 0 && rest.is_empty();
            // A message's first piece leaves at once, so that its handler chooses a place for the rest.
            match out.stage.is_empty() && (front.len() == most || is_last) {
                // From where it is.
                true => self.emit(key, is_last, front, queues)?,
                false => {
                    out.stage.extend_from_slice(front);
                    if out.stage.len() == most || begins || is_last {
                        self.emit_stage(key, is_last, queues)?;
                    }
                }
            }
            data = rest;
        }
        Ok(())
    }

    #[inline]
    pub(crate) fn end(&mut self, key: usize) -> Result<(), Error> {
        let out = &mut self.outs[key];
        if out.phase != Phase::Begun || out.of_handler {
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
    fn end_late(&mut self, key: usize) -> Result<(), Error> {
        let out = &self.outs[key];
        let rank = out.to;
        let mut done = match out.phase {
            Phase::Ended => Ok(()),
            Phase::Begun | Phase::Open => self.emit_stage(key, true, out.of_handler),
            Phase::Failed => self.dead(rank),
        };
        let (stream, failed) =
            (self.outs[key].stream.take(), Phase::Failed == self.outs[key].phase);
        if let Some(stream) = stream {
            // Its handler waits for more: the end goes as soon as there is room, before what follows.
            let word = Word { first: false, last: true, length: 0, stream, handler: 0 };
            self.peers[rank as usize].streams &= !(1 << stream);
            if self.dead(rank).is_ok() {
                self.enqueue(rank, word, &[]);
            }
        }
        if failed && done.is_ok() {
            done = Err(Error::Full(format!(
                "a message to node {rank} ends early: a piece of it had no room within the time limit"
            )));
        }
        self.kept -= core::mem::take(&mut self.outs[key].kept);
        self.free_outs.push(key);
        done
    }
}
