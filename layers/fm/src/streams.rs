//! A message that is being received, and its handler: on the caller's stack, if the whole message is
//! here; else on a stack of its own, on which it is suspended until there is more.

use crate::{Endpoint, Error};
use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};
use std::cell::Cell;
use std::rc::Rc;
use zerocopy::{FromBytes, IntoBytes};

/// What a handler says at its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// `FM_CONTINUE`: [`Endpoint::extract`] goes on.
    Continue,
    /// `FM_ABORT`: it returns now, and the rest of the message is thrown away (as it always is).
    Abort,
}

/// A handler.
pub type Handler = dyn Fn(&mut Stream<'_>, u32) -> Verdict;

/// What the handler and [`Endpoint::extract`] tell each other about a message.
#[derive(Debug)]
pub(crate) struct Reading {
    /// Bytes of the packet that is being read, in the area of windows.
    pub at: Cell<usize>,
    pub bytes: Cell<usize>,
    /// The buffer of a suspended handler: what is still missing.
    pub to: Cell<*mut u8>,
    pub missing: Cell<usize>,
    /// Bytes that can still come, by the length that the sender said.
    pub left: Cell<u64>,
    /// No further packet comes.
    pub ended: Cell<bool>,
}

impl Reading {
    pub fn new(at: usize, bytes: usize, left: u64, ended: bool) -> Self {
        Self {
            at: Cell::new(at),
            bytes: Cell::new(bytes),
            to: Cell::new(core::ptr::null_mut()),
            missing: Cell::new(0),
            left: Cell::new(left),
            ended: Cell::new(ended),
        }
    }

    /// `bytes` of the suspended handler's buffer have been written.
    pub fn has_come(&self, bytes: usize) {
        debug_assert!(bytes <= self.missing.get());
        self.to.set(self.to.get().wrapping_add(bytes));
        self.missing.set(self.missing.get() - bytes);
    }
}

/// A message, in its handler (`FM_stream`).
pub struct Stream<'a> {
    pub(crate) endpoint: &'a Endpoint,
    pub(crate) reading: &'a Reading,
    pub(crate) yielder: Option<&'a Yielder<(), ()>>,
}

impl core::fmt::Debug for Stream<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Stream").field("left", &self.left()).finish()
    }
}

impl Stream<'_> {
    /// The node, to send from the handler.
    pub fn endpoint(&self) -> &Endpoint {
        self.endpoint
    }

    /// `FM_receive`: the next bytes of the message, as many as `to` holds. Waits until they have come;
    /// meanwhile [`Endpoint::extract`] runs other handlers, or returns. Returns how many have come:
    /// fewer at the message's end, or if its sender has died. The rest of `to` is unchanged.
    #[inline]
    pub fn receive(&mut self, to: &mut [u8]) -> usize {
        let reading = self.reading;
        let mut done = self.endpoint.take_read(reading, to);
        if done < to.len()
            && let Some(yielder) = self.yielder
            && !reading.ended.get()
        {
            done += wait_for(reading, yielder, &mut to[done..]);
        }
        reading.left.set(reading.left.get().saturating_sub(done as u64));
        done
    }

    /// [`receive`](Self::receive) of one value, if all of it comes.
    pub fn receive_value<T: FromBytes + IntoBytes>(&mut self) -> Option<T> {
        let mut value = T::new_zeroed();
        let bytes = value.as_mut_bytes();
        (self.receive(bytes) == bytes.len()).then_some(value)
    }

    /// Bytes that can still come, at most: the rest of the length that the sender said; 0 at the end.
    pub fn left(&self) -> u64 {
        match self.reading.ended.get() {
            true => self.reading.bytes.get() as u64,
            false => self.reading.left.get(),
        }
    }
}

/// Suspends the handler until `rest` is full, or its message has ended. Returns how many bytes have come.
#[inline(never)]
fn wait_for(reading: &Reading, yielder: &Yielder<(), ()>, rest: &mut [u8]) -> usize {
    reading.to.set(rest.as_mut_ptr());
    reading.missing.set(rest.len());
    yielder.suspend(());
    reading.to.set(core::ptr::null_mut());
    rest.len() - reading.missing.replace(0)
}

/// A handler on a stack of its own.
pub(crate) type Thread = Coroutine<(), (), Verdict, DefaultStack>;

/// A message of several packets.
pub(crate) struct Incoming {
    pub reading: Rc<Reading>,
    /// `None`: the handler has returned, or there is none; the rest is thrown away.
    pub thread: Option<Thread>,
    /// Bytes of packets to come that the sink has put into the buffer.
    pub in_buffer: usize,
}

/// Stacks that are not in use.
pub(crate) struct Stacks {
    bytes: usize,
    free: Vec<DefaultStack>,
}

/// Stacks that are kept for later.
const KEPT: usize = 64;

impl Stacks {
    pub fn new(bytes: usize) -> Self {
        Self { bytes, free: Vec::new() }
    }

    pub fn take(&mut self) -> Result<DefaultStack, Error> {
        let new = || {
            DefaultStack::new(self.bytes).map_err(|e| {
                Error::Os(format!("no stack of {} bytes for a handler: {e}", self.bytes))
            })
        };
        self.free.pop().map_or_else(new, Ok)
    }

    pub fn give_back(&mut self, stack: DefaultStack) {
        if self.free.len() < KEPT {
            self.free.push(stack);
        }
    }
}

/// A handler that waits for its first packet to be read.
pub(crate) fn thread(
    stack: DefaultStack,
    endpoint: Endpoint,
    reading: Rc<Reading>,
    handler: Rc<Handler>,
    sender: u32,
) -> Thread {
    Coroutine::with_stack(stack, move |yielder: &Yielder<(), ()>, ()| {
        let (endpoint, reading) = (&endpoint, &*reading);
        handler(&mut Stream { endpoint, reading, yielder: Some(yielder) }, sender)
    })
}

/// Runs a handler until it is suspended (the thread comes back) or has ended.
pub(crate) fn resume(mut thread: Thread) -> Result<Thread, (Verdict, DefaultStack)> {
    match thread.resume(()) {
        CoroutineResult::Yield(()) => Ok(thread),
        CoroutineResult::Return(verdict) => Err((verdict, thread.into_stack())),
    }
}
