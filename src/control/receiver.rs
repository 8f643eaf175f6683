//! A thread that receives one descriptor from a stranger, or touches memory that a stranger pays
//! for.
//!
//! ```text
//!   the socket accepts no descriptors
//!   receiver: lets it accept them, says MEMORY_TAKE
//!             hands on frames without a descriptor; takes MEMORY_PASS with its one
//!             lets it accept none again, and hands on the frames that came meanwhile
//!   the socket accepts no descriptors, and none is in its queue
//! ```
//! A descriptor can be anything: an attacker's lingering socket stops the thread that drops it for
//! as long as the attacker likes. So descriptors are accepted only while a thread that nothing
//! waits for stands by, with room for one in its call: the kernel drops any others, in that thread.
//! The thread hands on its results before it drops anything. It has a table of descriptors that no
//! fork of the program copies ([`strangers`](crate::os::strangers)), and so only a copy of the
//! socket; a second thread, with the program's table, owns the socket and posts the results of the
//! first.
//!
//! Before Linux 6.16 a socket cannot refuse descriptors; its reader then closes those that come
//! elsewhere ([`close_elsewhere`](crate::os::memory::close_elsewhere)).
//!
//! Never: this thread is joined or waited for; the socket is closed elsewhere while descriptors may
//! be in its queue (the thread holds it until its queue is known to be empty, or it has the only
//! reference).

use super::frame::{FRAME_BYTES_MAX, Frame, FrameError, Memory, MemoryWord};
use super::machine::{ConnectionId, Expected, MemoryOutcome, Touched};
use super::memory::{MadeMemory, Mapped};
use crate::os::strangers::StrangerThreads;
use crate::os::{socket, sys, thread};
use std::boxed::Box;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::string::ToString;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};

/// Most frames that are handed on; an honest peer sends no more.
const FRAMES_MAX: usize = 256;

/// A wait that ends when the message comes, or its sender is gone.
const LONG: core::time::Duration = core::time::Duration::from_secs(3600);

/// The messages of a receiver, in this order.
#[derive(Debug)]
pub(super) enum ReceiverMessage {
    /// A frame; whether a descriptor came with it, which is not allowed.
    Frame(Result<Frame, FrameError>, bool),
    /// The socket has ended.
    HungUp,
    /// The result for the expected memory.
    Taken(Memory, MemoryOutcome, Option<Mapped>),
    /// The result for memory of this process.
    Touched(Memory, Touched),
    /// The thread has ended; the socket is read in the usual way again.
    Ended,
}

/// A message from the thread in the strangers' table to the thread in the program's.
enum ThreadMessage {
    Message(ReceiverMessage),
    /// This is to be kept for the message that says that it is there, and its pages pinned now: by
    /// descriptors, of the program's table.
    Mapped(Mapped, Sender<io::Result<()>>),
}

/// Where it hands them on.
pub(super) type MessagePost = Box<dyn Fn(ConnectionId, ReceiverMessage) + Send>;

/// In the strangers' table: reads the socket.
struct SocketReceiver<'a> {
    socket: BorrowedFd<'a>,
    expected: Expected,
    until_ns: u64,
    say: &'a Sender<ThreadMessage>,
    frames: usize,
}

/// The destination of a receiver's messages. When dropped, it reports that the thread has ended: in
/// any way, or without ever running.
pub(super) struct Ending {
    connection: ConnectionId,
    post: MessagePost,
}

impl Ending {
    pub(super) fn new(connection: ConnectionId, post: MessagePost) -> Self {
        Self { connection, post }
    }

    fn hand_on(&self, message: ReceiverMessage) {
        (self.post)(self.connection, message);
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.hand_on(ReceiverMessage::Ended);
    }
}

fn spawn(run: impl FnOnce() + Send + 'static) -> io::Result<()> {
    thread::spawn("hamlyn-receive", 128 << 10, run).map(drop)
}

/// Starts a receiver. [`ReceiverMessage::Ended`] follows even if it could not be started.
pub(super) fn start(
    socket: Arc<OwnedFd>,
    expected: Expected,
    until_ns: u64,
    ending: Ending,
    strangers: Arc<StrangerThreads>,
) -> io::Result<()> {
    spawn(move || receive(socket, expected, until_ns, &ending, &strangers))
}

/// Reads the socket in the strangers' table, and posts the results.
fn receive(
    socket: Arc<OwnedFd>,
    expected: Expected,
    until_ns: u64,
    ending: &Ending,
    strangers: &StrangerThreads,
) {
    let (say, said) = channel();
    let (release, released) = channel::<()>();
    let read = move |socket: OwnedFd| {
        let fd = socket.as_fd();
        let has_ended =
            SocketReceiver { socket: fd, expected, until_ns, say: &say, frames: 0 }.run();
        if !has_ended {
            drop(socket);
            drop(say);
        } else {
            drop(say);
            // A frame of no bytes looks like the end, and the last process that closes the socket
            // drops the frames in the queue behind it.
            while thread::receive(&released, LONG) != Err(RecvTimeoutError::Disconnected) {}
        }
    };
    let (mut is_told, mut has_ended, mut held) = (false, false, None);
    let started = strangers.run(socket.as_fd(), read);
    if started.is_ok() {
        loop {
            match thread::receive(&said, LONG) {
                Ok(ThreadMessage::Mapped(mapped, pinned)) => {
                    let _ = pinned.send(mapped.pin());
                    held = Some(mapped);
                }
                Ok(ThreadMessage::Message(mut message)) => {
                    if let ReceiverMessage::Taken(_, MemoryOutcome::Mapped, mapped) = &mut message {
                        *mapped = held.take();
                    }
                    has_ended |= matches!(message, ReceiverMessage::HungUp);
                    is_told |=
                        matches!(message, ReceiverMessage::HungUp | ReceiverMessage::Taken(..));
                    ending.hand_on(message);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
    }
    if !is_told {
        let why = started.err().map_or("its receiver ended".into(), |e| e.to_string());
        ending.hand_on(ReceiverMessage::Taken(
            expected.memory,
            MemoryOutcome::Unavailable(why),
            None,
        ));
    }
    // Until its connection is over, or will be at its deadline.
    let mut pause_ms = 1;
    while has_ended && Arc::strong_count(&socket) > 1 {
        thread::sleep(core::time::Duration::from_millis(pause_ms));
        pause_ms = (2 * pause_ms).min(50);
    }
    // Before the end is reported: if the connection has ended meanwhile, this is its last owner in
    // this table.
    drop(socket);
    drop(release);
}

/// Checks whether the other end has paid for memory of this process, and touches all of it, so that
/// it is locked in memory from then on: pages in swap take as long as the other end's control group
/// likes. [`ReceiverMessage::Ended`] follows as it does in [`start`].
pub(super) fn start_touching(memory: Memory, made: MadeMemory, ending: Ending) -> io::Result<()> {
    spawn(move || {
        let touched = made.touch();
        drop(made);
        ending.hand_on(ReceiverMessage::Touched(memory, touched));
    })
}

/// The result of one read.
enum ReadOutcome {
    Frame(Result<Frame, FrameError>),
    WithDescriptor(Result<Frame, FrameError>, OwnedFd, bool),
    End,
    Nothing,
}

impl SocketReceiver<'_> {
    fn hand_on(&self, message: ReceiverMessage) {
        // Whoever posts them is there as long as this says something.
        let _ = self.say.send(ThreadMessage::Message(message));
    }

    fn done(&self, taken: MemoryOutcome) {
        self.hand_on(ReceiverMessage::Taken(self.expected.memory, taken, None));
    }

    /// Hands on what was mapped, and waits until its pages are pinned.
    fn pin(&self, mapped: Mapped) -> Result<(), MemoryOutcome> {
        let (pinned, is_pinned) = channel();
        let _ = self.say.send(ThreadMessage::Mapped(mapped, pinned));
        match thread::receive(&is_pinned, LONG) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(e)) => Err(MemoryOutcome::Unavailable(e.to_string())),
            Err(_) => {
                Err(MemoryOutcome::Unavailable("the thread that pins its pages has ended".into()))
            }
        }
    }

    /// Whether the socket has ended.
    fn run(&mut self) -> bool {
        socket::accept_descriptors(self.socket, true);
        let memory = self.expected.memory;
        let word = MemoryWord::Take { bytes: self.expected.bytes };
        let said = self.say(&Frame::Memory { memory, word });
        let mut has_ended = false;
        while said.is_ok() && !has_ended {
            match self.read() {
                ReadOutcome::Nothing => {
                    let ready = sys::wait_for(&[(self.socket, false)], self.until_ns);
                    if !matches!(ready, Ok(true)) {
                        self.done(MemoryOutcome::TooSlow);
                        break;
                    }
                }
                ReadOutcome::End => {
                    self.hand_on(ReceiverMessage::HungUp);
                    has_ended = true;
                }
                ReadOutcome::WithDescriptor(frame, file, is_alone) => {
                    self.take(frame, file, is_alone);
                    break;
                }
                ReadOutcome::Frame(frame) => {
                    if self.is_pass(&frame) || self.frames >= FRAMES_MAX {
                        // Without its descriptor; or the other end only talks.
                        self.done(MemoryOutcome::Wrong);
                        break;
                    }
                    let is_withdrawn = self.is_withdrawal(&frame);
                    if is_withdrawn {
                        self.done(MemoryOutcome::Withdrawn);
                    }
                    self.frames += 1;
                    self.hand_on(ReceiverMessage::Frame(frame, false));
                    if is_withdrawn {
                        break;
                    }
                }
            }
        }
        socket::accept_descriptors(self.socket, false);
        socket::settle(self.socket);
        has_ended |= self.drain();
        if said.is_err() && !has_ended {
            self.done(MemoryOutcome::TooSlow);
        }
        has_ended
    }

    /// Sends a frame, waiting for room; an error if it cannot be sent: there was no room in time,
    /// or the other end has closed. Frames that the other end sent earlier come before its end.
    fn say(&self, frame: &Frame) -> Result<(), ()> {
        let bytes = frame.to_bytes();
        loop {
            match socket::send(self.socket, &bytes, &[]) {
                Ok(()) => return Ok(()),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    let ready = sys::wait_for(&[(self.socket, true)], self.until_ns);
                    if !matches!(ready, Ok(true)) {
                        return Err(());
                    }
                }
                Err(_) => return Err(()),
            }
        }
    }

    fn read(&self) -> ReadOutcome {
        let mut buffer = std::vec![0; FRAME_BYTES_MAX];
        let mut received = match socket::receive_one(self.socket, &mut buffer) {
            Ok(received) => received,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return ReadOutcome::Nothing,
            Err(_) => return ReadOutcome::End,
        };
        let is_alone = received.descriptors.len() == 1 && !received.is_truncated;
        let descriptor = received.descriptors.pop();
        let frame = match received.is_truncated && descriptor.is_none() {
            // Too long for any frame, or descriptors that found no room.
            true => Err(FrameError::WrongLength),
            false => Frame::from_bytes(&buffer[..received.bytes]),
        };
        match descriptor {
            Some(file) => ReadOutcome::WithDescriptor(frame, file, is_alone),
            None if received.bytes == 0 => ReadOutcome::End,
            None => ReadOutcome::Frame(frame),
        }
    }

    fn is_pass(&self, frame: &Result<Frame, FrameError>) -> bool {
        let memory = self.expected.memory;
        *frame == Ok(Frame::Memory { memory, word: MemoryWord::Pass })
    }

    /// Whether the other end declares that it will pass nothing.
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
            false => Err(MemoryOutcome::Wrong),
        };
        let pinned = mapped.and_then(|mapped| self.pin(mapped));
        match pinned.and_then(|()| Mapped::check_size(&file, &self.expected)) {
            Ok(()) => {
                // A memory file, as its seals say: closing it waits for nobody.
                drop(file);
                self.done(MemoryOutcome::Mapped);
            }
            Err(why) => {
                self.done(why);
                drop(file);
            }
        }
    }

    /// Empties the queue of frames that came while descriptors were accepted: all of them, because
    /// closing a socket drops the contents of its queue. Returns whether the socket has ended.
    fn drain(&mut self) -> bool {
        loop {
            let (frame, file) = match self.read() {
                ReadOutcome::Nothing => return false,
                ReadOutcome::End => {
                    self.hand_on(ReceiverMessage::HungUp);
                    return true;
                }
                ReadOutcome::Frame(frame) => (frame, None),
                ReadOutcome::WithDescriptor(frame, file, _) => (frame, Some(file)),
            };
            self.frames += 1;
            if self.frames <= FRAMES_MAX {
                self.hand_on(ReceiverMessage::Frame(frame, file.is_some()));
            } else if self.frames == FRAMES_MAX + 1 {
                // The sender decides how much a queue holds. Nothing is added to this one.
                socket::end_incoming(self.socket);
                self.hand_on(ReceiverMessage::Frame(Err(FrameError::WrongLength), file.is_some()));
            }
            drop(file);
        }
    }
}
