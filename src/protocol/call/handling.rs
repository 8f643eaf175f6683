//! The means of a handler beside the reply: its caller's deadline, the caller's cancellation, and a
//! failure of the request.
//!
//! ```text
//!   LIMITED  8 bytes: the request's length (16 bits), the time limit in microseconds (48 bits); the request
//!   ASK      8 bytes: the length; 8 bytes: the time limit in microseconds, 0: no limit
//!   CANCEL   no bytes
//!   FAILED   8 bytes: the error's code, the length of its text (32 bits each); the text
//! ```
//! A limit is relative: the two sides need no common clock. It becomes a deadline when the server's
//! process takes the request out of its queue, so a request that waits in a queue gets more time
//! than its caller has; the caller's `CANCEL` makes up for that. Never: the server trusts the other
//! side's length to be inside of the block, or its text to be text.

use super::at_server::{CANCELLED, ServerState};
use super::server::{Arrived, CallAnswer, Request};
use super::{CallError, Server};
#[cfg(feature = "unstable-internals")]
use crate::control::Peer;
use crate::control::printable;
use crate::node::Attached;
#[cfg(feature = "tokio")]
use crate::node::Forked;
use crate::wire::SlotIndex;
#[cfg(feature = "tokio")]
use core::task::Waker;
use core::time::Duration;
use std::time::Instant;
use std::vec::Vec;

/// Most bytes of the text of an application's error ([`Request::fail`]).
pub const ERROR_TEXT_MAX: usize = 1024;

/// Bytes before the text.
const ERROR_HEAD: usize = 8;

/// Bytes before a request with a time limit.
pub(super) const LIMIT_BYTES: usize = 8;

const LIMIT_US_MAX: u64 = (1 << 48) - 1;

/// The time left until `deadline`, in microseconds; at least 1, because 0 means that there is no
/// limit.
pub(super) fn limit_us(deadline: Instant) -> u64 {
    let left = deadline.saturating_duration_since(Instant::now()).as_micros();
    u64::try_from(left).unwrap_or(LIMIT_US_MAX).clamp(1, LIMIT_US_MAX)
}

/// Fills `bytes` with the request's length and limit, and the request.
pub(super) fn limited(bytes: &mut Vec<u8>, request: &[u8], deadline: Instant) {
    let head = request.len() as u64 | limit_us(deadline) << 16;
    bytes.clear();
    bytes.extend_from_slice(&head.to_le_bytes());
    bytes.extend_from_slice(request);
}

/// The length and the deadline that a client wrote before its request.
pub(super) fn limit_from(head: u64) -> (u32, Option<Instant>) {
    ((head & 0xffff) as u32, deadline_from(head >> 16))
}

/// The deadline for a limit in microseconds. A limit beyond the range of our clock counts as no
/// limit.
pub(super) fn deadline_from(limit_us: u64) -> Option<Instant> {
    match limit_us {
        0 => None,
        us => Instant::now().checked_add(Duration::from_micros(us)),
    }
}

/// Reads the block of a call that failed: a stranger's bytes, of any kind.
pub(super) fn application_error(block: &[u8]) -> CallError {
    let read = || {
        let (code, rest) = block.split_first_chunk::<4>()?;
        let (length, rest) = rest.split_first_chunk::<4>()?;
        let length = u32::from_le_bytes(*length) as usize;
        let text = rest.get(..length).filter(|_| length <= ERROR_TEXT_MAX)?;
        Some((u32::from_le_bytes(*code), core::str::from_utf8(text).ok()?))
    };
    match read() {
        Some((code, text)) => CallError::Application { code, text: printable(text) },
        None => CallError::Misbehaved("an error whose text is too long, or no text".into()),
    }
}

/// An application error in the format of a client's block.
pub(super) struct CallFailure {
    bytes: [u8; ERROR_HEAD + ERROR_TEXT_MAX],
    length: usize,
}

impl CallFailure {
    pub fn new(code: u32, text: &str) -> Result<Self, CallError> {
        let length = text.len();
        if length > ERROR_TEXT_MAX {
            return Err(text_too_long(length, ERROR_TEXT_MAX, "ERROR_TEXT_MAX"));
        }
        let mut bytes = [0; ERROR_HEAD + ERROR_TEXT_MAX];
        bytes[..4].copy_from_slice(&code.to_le_bytes());
        bytes[4..8].copy_from_slice(&(length as u32).to_le_bytes());
        bytes[ERROR_HEAD..][..length].copy_from_slice(text.as_bytes());
        Ok(Self { bytes, length: ERROR_HEAD + length })
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    /// The error if it is longer than a client's block, which takes `at_once` bytes.
    pub fn beyond(bytes: &[u8], at_once: usize) -> CallError {
        let max = at_once.saturating_sub(ERROR_HEAD);
        text_too_long(bytes.len() - ERROR_HEAD, max, "the client's reply_bytes")
    }
}

fn text_too_long(length: usize, max: usize, limit: &'static str) -> CallError {
    CallError::TooLong { length: length as u64, max: max as u64, limit }
}

impl ServerState {
    /// Whether the caller of a request no longer waits for the reply.
    fn is_given_up(&mut self, which: Which) -> bool {
        match self.client_at(which.slot, which.client) {
            Some(client) => client.calls.get(which.call) == Some(CANCELLED),
            None => true,
        }
    }

    /// Wakes the task that waits for the caller to give up.
    pub(super) fn wake_watcher(&mut self, client: u64, call: u32) {
        if let Some((_, waker)) = self.watchers.remove(&(client, call)) {
            waker.wake();
        }
    }

    pub(super) fn wake_watchers_of(&mut self, client: u64) {
        for (_, (_, waker)) in self.watchers.extract_if(|(of, _), _| *of == client) {
            waker.wake();
        }
    }
}

impl Request<'_> {
    /// The time at which its caller gives up, if the caller told it
    /// ([`Client::call_within`](super::Client::call_within)): the caller's limit, counted from the
    /// moment when this process took the request from its queue. The limit is the caller's claim
    /// and may be arbitrarily long; a server that cannot work so long has a limit of its own.
    pub fn deadline(&self) -> Option<Instant> {
        self.arrived().parts.deadline
    }

    /// Whether the caller no longer waits for the reply: it has dropped the call or given it up,
    /// its client has gone, or its [`deadline`](Self::deadline) has passed. Takes a turn, so that
    /// it sees cancellations sent by now; requests that come in it are for other threads, or for
    /// later. A reply is still allowed, and is dropped at the client.
    pub fn is_cancelled(&self) -> bool {
        self.server.is_cancelled(self.arrived())
    }

    /// Replies if it can without waiting; otherwise returns the request. On an error the client is
    /// told that no reply will come.
    #[cfg(feature = "unstable-internals")]
    pub fn try_reply(self, data: &[u8]) -> Result<Option<Self>, CallError> {
        self.try_answer(CallAnswer::Reply(data))
    }

    /// Most bytes of a text that [`fail`](Self::fail) takes for this client.
    #[cfg(feature = "unstable-internals")]
    pub fn error_text_max(&self) -> usize {
        let Server { manager, offer, .. } = self.server;
        let mut guard = manager.shared.lock();
        let (_, protocols) = guard.parts();
        let state = protocols.server(*offer);
        let client = state.and_then(|state| state.client_of(self.arrived()));
        let max = client.map_or(usize::MAX, |client| client.at_once.saturating_sub(ERROR_HEAD));
        max.min(ERROR_TEXT_MAX)
    }

    /// [`fail`](Self::fail) if it can without waiting; otherwise returns the request.
    #[cfg(feature = "unstable-internals")]
    pub fn try_fail(self, code: u32, text: &str) -> Result<Option<Self>, CallError> {
        self.try_answer(CallAnswer::Failure(CallFailure::new(code, text)?.bytes()))
    }

    #[cfg(feature = "unstable-internals")]
    fn try_answer(mut self, answer: CallAnswer<'_>) -> Result<Option<Self>, CallError> {
        match self.answer(answer, false, Some(Duration::ZERO)) {
            Ok(true) => Ok(None),
            Ok(false) | Err(CallError::NoRoom) => Ok(Some(self)),
            Err(e) => Err(e),
        }
    }

    /// Answers that the request has failed: the caller gets
    /// [`CallError::Application`](super::CallError::Application) with this code, which the
    /// application defines, and this text. Waits as [`reply`](Self::reply) does for a reply of up
    /// to one block.
    ///
    /// Fails with [`CallError::TooLong`] if the text has more bytes than [`ERROR_TEXT_MAX`], or
    /// than the client's `reply_bytes` less 8 (36 at least). On an error the client is told that no
    /// reply will come.
    pub fn fail(
        mut self,
        code: u32,
        text: &str,
        timeout: Option<Duration>,
    ) -> Result<(), CallError> {
        let failure = CallFailure::new(code, text)?;
        self.answer(CallAnswer::Failure(failure.bytes()), timeout.is_none(), timeout).map(drop)
    }
}

/// A request's client and call, for a request that another thread may be replying to.
#[derive(Clone, Copy, Debug)]
pub struct Which {
    pub(super) slot: SlotIndex,
    pub(super) client: u64,
    call: u32,
}

impl Arrived {
    /// [`Request::deadline`].
    pub fn deadline(&self) -> Option<Instant> {
        self.parts.deadline
    }

    /// The request's name, for [`Server::is_given_up`] and [`Server::peer_of_which`].
    #[cfg(feature = "unstable-internals")]
    pub fn which(&self) -> Which {
        self.its_which()
    }

    pub(super) fn its_which(&self) -> Which {
        Which { slot: self.parts.slot, client: self.parts.client, call: self.parts.call }
    }

    /// Its client and its call.
    #[cfg(feature = "tokio")]
    pub(crate) fn names(&self) -> (u64, u32) {
        (self.parts.client, self.parts.call)
    }
}

impl Server {
    /// [`Request::is_cancelled`] of a request apart from this server.
    pub fn is_cancelled(&self, arrived: &Arrived) -> bool {
        if arrived.parts.deadline.is_some_and(|deadline| deadline <= Instant::now()) {
            return true;
        }
        self.look_for(arrived.its_which())
    }

    /// [`is_cancelled`](Self::is_cancelled) without the check of its deadline.
    #[cfg(feature = "unstable-internals")]
    pub fn is_given_up(&self, which: Which) -> bool {
        self.look_for(which)
    }

    /// [`Request::peer`]. `None`, too, for an answered request once its client has gone.
    #[cfg(feature = "unstable-internals")]
    pub fn peer_of_which(&self, which: Which) -> Option<Peer> {
        self.with_state(|state| state.peer_of(which))
    }

    fn look_for(&self, which: Which) -> bool {
        self.look_around(|state| state.is_given_up(which)).unwrap_or(true)
    }

    /// Whether a request's caller has given up; otherwise `waker` is woken when it does, in any
    /// turn that sees it, or when the request is answered. `watch`: a number that no other watch
    /// has, since a call's number is used again.
    #[cfg(feature = "tokio")]
    pub(crate) fn watch(&self, arrived: &Arrived, watch: u64, waker: &Waker) -> bool {
        let is_given_up = |state: &mut ServerState| {
            let is_given_up = state.is_given_up(arrived.its_which());
            if !is_given_up {
                state.watchers.insert(arrived.names(), (watch, waker.clone()));
            }
            is_given_up
        };
        let mut guard = self.manager.shared.lock();
        guard.parts().1.server(self.offer).is_none_or(is_given_up)
    }

    /// Ends that watch.
    #[cfg(feature = "tokio")]
    pub(crate) fn watch_no_more(&self, of: (u64, u32), watch: u64) {
        if !self.manager.is_forked() {
            self.with_state(|state| {
                if state.watchers.get(&of).is_some_and(|(known, _)| *known == watch) {
                    state.watchers.remove(&of);
                }
            });
        }
    }

    /// A thread replies to it: the watching task is woken.
    #[cfg(feature = "tokio")]
    pub(crate) fn is_replied_to(&self, (client, call): (u64, u32)) {
        if !self.manager.is_forked() {
            self.with_state(|state| state.wake_watcher(client, call));
        }
    }

    /// One turn, which sees the cancellations of callers.
    #[cfg(feature = "tokio")]
    pub(crate) fn look_for_cancelled(&self) -> Result<(), Forked> {
        self.look_around(|_| ()).ok_or(Forked)
    }

    /// One turn, all requests of which are for other threads; then a look.
    pub(super) fn look_around<R>(&self, look: impl FnOnce(&mut ServerState) -> R) -> Option<R> {
        if self.manager.is_forked() {
            return None;
        }
        let mut guard = self.manager.shared.lock();
        let (node, protocols) = guard.parts();
        node.poll().ok()?;
        protocols.after_poll(node);
        if let Some((link, why)) = protocols.server(self.offer)?.share_rest(node) {
            protocols.expel(node, link, &why);
        }
        let found = look(protocols.server(self.offer)?);
        protocols.after_look(node);
        Some(found)
    }
}
