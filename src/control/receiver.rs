//! A thread that receives one descriptor of a stranger's, or touches memory that a stranger pays for.
//!
//! ```text
//!   the socket accepts no descriptors
//!   receiver: lets it accept them, says MEMORY_TAKE
//!             hands on frames that come without one; takes MEMORY_PASS with its one
//!             lets it accept none again, and hands on what came meanwhile
//!   the socket accepts no descriptors, and none is in its queue
//! ```
//! A descriptor can be anything: an attacker's lingering socket stops whoever drops it for as long
//! as the attacker likes. So descriptors are accepted only while a thread stands by that nothing
//! waits for, and there is room for one in its call: what comes besides is dropped by the kernel,
//! in that thread. What it hands on, it hands on before it drops anything.
//!
//! Before Linux 6.16 a socket cannot refuse descriptors; then whoever reads it closes what comes
//! elsewhere ([`close_elsewhere`](crate::os::memory::close_elsewhere)).
//!
//! Never: this thread is joined or waited for; the socket is closed elsewhere while descriptors may
//! be in its queue (the thread holds it until its queue is known to be empty, or nobody else has
//! it).

use super::frame::{FRAME_BYTES_MAX, Frame, FrameError, Memory, MemoryWord};
use super::machine::{ConnectionId, Expected, Taken, Touched};
use super::memory::{Made, Mapped};
use crate::os::thread;
use crate::os::{socket, sys};
use std::boxed::Box;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// Frames that are handed on; more come from nobody who is honest.
const FRAMES_MAX: usize = 256;

/// What a receiver hands on, in this order.
#[derive(Debug)]
pub(super) enum Message {
    /// A frame; whether a descriptor came with it, which it may not.
    Frame(Result<Frame, FrameError>, bool),
    /// The socket has ended.
    HungUp,
    /// What became of the memory.
    Taken(Memory, Taken, Option<Mapped>),
    /// What became of memory of this process.
    Touched(Memory, Touched),
    /// The thread has ended; the socket is read by others again.
    Ended,
}

/// Where it hands them on.
pub(super) type Post = Box<dyn Fn(ConnectionId, Message) + Send>;

struct Receiver {
    socket: Arc<OwnedFd>,
    expected: Expected,
    until_ns: u64,
    ending: Ending,
    frames: usize,
}

/// Where a receiver hands on what it has. Says that the thread has ended, when it is dropped:
/// however it ended, and if it never ran.
pub(super) struct Ending {
    connection: ConnectionId,
    post: Post,
}

impl Ending {
    pub(super) fn new(connection: ConnectionId, post: Post) -> Self {
        Self { connection, post }
    }

    fn hand_on(&self, message: Message) {
        (self.post)(self.connection, message);
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.hand_on(Message::Ended);
    }
}

fn spawn(run: impl FnOnce() + Send + 'static) -> io::Result<()> {
    thread::spawn("hamlyn-receive", 128 << 10, run).map(drop)
}

/// Starts one. Whether it could be started or not, [`Message::Ended`] follows.
pub(super) fn start(
    socket: Arc<OwnedFd>,
    expected: Expected,
    until_ns: u64,
    ending: Ending,
) -> io::Result<()> {
    // The socket is let go of before the end is said: if the connection has ended meanwhile, this is
    // its last owner.
    let mut receiver = Receiver { socket, expected, until_ns, ending, frames: 0 };
    spawn(move || receiver.run())
}

/// Sees whether memory of this process has been paid for by the other end, and touches all of it, so
/// that it is locked in memory from then on: where it lies in swap, that takes as long as the other
/// end's control group likes. [`Message::Ended`] follows as it does in [`start`].
pub(super) fn start_touching(memory: Memory, made: Made, ending: Ending) -> io::Result<()> {
    spawn(move || {
        let touched = made.touch();
        drop(made);
        ending.hand_on(Message::Touched(memory, touched));
    })
}

/// What was read.
enum Read {
    Frame(Result<Frame, FrameError>),
    WithDescriptor(Result<Frame, FrameError>, OwnedFd, bool),
    End,
    Nothing,
}

impl Receiver {
    fn done(&self, taken: Taken, mapped: Option<Mapped>) {
        self.ending.hand_on(Message::Taken(self.expected.memory, taken, mapped));
    }

    fn run(&mut self) {
        socket::accept_descriptors(self.socket.as_fd(), true);
        let memory = self.expected.memory;
        let word = MemoryWord::Take { bytes: self.expected.bytes };
        let said = self.say(&Frame::Memory { memory, word });
        let mut has_ended = false;
        while said.is_ok() && !has_ended {
            match self.read() {
                Read::Nothing => {
                    let ready = sys::wait_for(&[(self.socket.as_fd(), false)], self.until_ns);
                    if !matches!(ready, Ok(true)) {
                        self.done(Taken::TooSlow, None);
                        break;
                    }
                }
                Read::End => {
                    self.ending.hand_on(Message::HungUp);
                    has_ended = true;
                }
                Read::WithDescriptor(frame, file, is_alone) => {
                    self.take(frame, file, is_alone);
                    break;
                }
                Read::Frame(frame) => {
                    if self.is_pass(&frame) || self.frames >= FRAMES_MAX {
                        // Without its descriptor; or the other end only talks.
                        self.done(Taken::Wrong, None);
                        break;
                    }
                    let is_withdrawn = self.is_withdrawal(&frame);
                    if is_withdrawn {
                        self.done(Taken::Withdrawn, None);
                    }
                    self.frames += 1;
                    self.ending.hand_on(Message::Frame(frame, false));
                    if is_withdrawn {
                        break;
                    }
                }
            }
        }
        socket::accept_descriptors(self.socket.as_fd(), false);
        socket::settle(self.socket.as_fd());
        has_ended |= self.drain();
        if said.is_err() && !has_ended {
            self.done(Taken::TooSlow, None);
        }
    }

    /// Says something, waiting for room; an error where it cannot be said: there was no room in
    /// time, or the other end has closed. What that said before comes before its end.
    fn say(&self, frame: &Frame) -> Result<(), ()> {
        let bytes = frame.to_bytes();
        loop {
            match socket::send(&*self.socket, &bytes, &[]) {
                Ok(()) => return Ok(()),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    let ready = sys::wait_for(&[(self.socket.as_fd(), true)], self.until_ns);
                    if !matches!(ready, Ok(true)) {
                        return Err(());
                    }
                }
                Err(_) => return Err(()),
            }
        }
    }

    fn read(&self) -> Read {
        let mut buffer = std::vec![0; FRAME_BYTES_MAX];
        let mut received = match socket::receive_one(&*self.socket, &mut buffer) {
            Ok(received) => received,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Read::Nothing,
            Err(_) => return Read::End,
        };
        let is_alone = received.descriptors.len() == 1 && !received.is_truncated;
        let descriptor = received.descriptors.pop();
        let frame = match received.is_truncated && descriptor.is_none() {
            // Too long for any frame, or descriptors that found no room.
            true => Err(FrameError::WrongLength),
            false => Frame::from_bytes(&buffer[..received.bytes]),
        };
        match descriptor {
            Some(file) => Read::WithDescriptor(frame, file, is_alone),
            None if received.bytes == 0 => Read::End,
            None => Read::Frame(frame),
        }
    }

    fn is_pass(&self, frame: &Result<Frame, FrameError>) -> bool {
        let memory = self.expected.memory;
        *frame == Ok(Frame::Memory { memory, word: MemoryWord::Pass })
    }

    /// Whether the other end says that it will pass nothing.
    fn is_withdrawal(&self, frame: &Result<Frame, FrameError>) -> bool {
        match frame {
            Ok(Frame::Memory { memory, word: MemoryWord::Refused(_) }) => {
                *memory == self.expected.memory
            }
            Ok(Frame::ApertureRevoked { number }) => {
                Memory::Aperture(*number) == self.expected.memory
            }
            _ => false,
        }
    }

    fn take(&self, frame: Result<Frame, FrameError>, file: OwnedFd, is_alone: bool) {
        let mapped = match is_alone && self.is_pass(&frame) {
            true => Mapped::map(&file, &self.expected),
            false => Err(Taken::Wrong),
        };
        match mapped {
            Ok(mapped) => {
                // A memory file, as its seals say: closing it waits for nobody.
                drop(file);
                self.done(Taken::Mapped, Some(mapped));
            }
            Err(why) => {
                self.done(why, None);
                drop(file);
            }
        }
    }

    /// Empties the queue of what came while descriptors were accepted: all of it, because whoever
    /// closes a socket drops what is in its queue. Says whether it has ended.
    fn drain(&mut self) -> bool {
        loop {
            let (frame, file) = match self.read() {
                Read::Nothing => return false,
                Read::End => {
                    self.ending.hand_on(Message::HungUp);
                    self.outlive();
                    return true;
                }
                Read::Frame(frame) => (frame, None),
                Read::WithDescriptor(frame, file, _) => (frame, Some(file)),
            };
            self.frames += 1;
            if self.frames <= FRAMES_MAX {
                self.ending.hand_on(Message::Frame(frame, file.is_some()));
            } else if self.frames == FRAMES_MAX + 1 {
                // How much a queue holds is for its sender to say. Nothing is added to this one.
                socket::end_incoming(self.socket.as_fd());
                self.ending.hand_on(Message::Frame(Err(FrameError::WrongLength), file.is_some()));
            }
            drop(file);
        }
    }

    /// Waits until nobody else has the socket: its connection is over, or will be at its deadline.
    /// A frame of no bytes looks like the end, and what is in the queue behind it is dropped by
    /// whoever closes the socket.
    fn outlive(&self) {
        while Arc::strong_count(&self.socket) > 1 {
            thread::sleep(core::time::Duration::from_millis(1));
        }
    }
}
