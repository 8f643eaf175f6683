//! A second table of descriptors, for those that strangers pass.
//!
//! ```text
//!   the program's table     a socket ---- copied ----> the strangers' table: the copy, and its
//!   (forks copy this one)                              descriptors (no fork copies this one)
//! ```
//! A fork gives the child each descriptor of the program, if only for the moment until the child
//! executes another program. Closing a stranger's descriptor can wait for as long as the stranger
//! likes: then the child waits, and so does a parent that waits for the child's exec. So threads
//! with a table of their own receive the descriptors that strangers pass.
//!
//! Never: a descriptor of the program is closed in the strangers' table, or the other way round;
//! the owner of each lives on one side alone.

use super::descriptor::Descriptor;
use super::{socket, sys, thread};
use core::time::Duration;
use std::boxed::Box;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, OnceLock, PoisonError};

const STACK_BYTES: usize = 128 << 10;

/// Time limit for making the second table: the program's open files are closed in it once, and a
/// file of a file system that hangs can delay that.
const PATIENCE: Duration = Duration::from_secs(1);

type StrangerWork = Box<dyn FnOnce(OwnedFd) + Send>;

/// The threads of one control plane that have it.
#[derive(Debug, Default)]
pub(crate) struct StrangerThreads(OnceLock<Option<Keeper>>);

/// Starts these threads. It ends with the other end of its socket.
#[derive(Debug)]
struct Keeper {
    to: Mutex<StrangerChannel>,
    process: u32,
}

/// A socket over one channel, its work over the other: under one lock, and with the same number.
#[derive(Debug)]
struct StrangerChannel {
    socket: Descriptor,
    work: Sender<(u64, StrangerWork)>,
    number: u64,
}

impl Drop for Keeper {
    fn drop(&mut self) {
        // A forked child may have the socket, too, and then closing it has no effect.
        if self.process == std::process::id() {
            let to = self.to.get_mut().unwrap_or_else(PoisonError::into_inner);
            let _ = rustix::net::shutdown(&to.socket, rustix::net::Shutdown::Both);
        }
    }
}

impl StrangerThreads {
    /// Makes the second table, which a filter of the program's calls may forbid later. `false`:
    /// this kernel (before Linux 5.9), or a filter, does not allow one, and the threads have the
    /// program's.
    pub fn prepare(&self) -> io::Result<bool> {
        #[cfg(any(all(test, not(loom), not(miri)), feature = "simulation"))]
        if super::sim::is_running() {
            return Ok(true);
        }
        let keeper = match self.0.get() {
            Some(keeper) => keeper,
            None => {
                let keeper = Keeper::start()?;
                self.0.get_or_init(|| keeper)
            }
        };
        Ok(keeper.is_some())
    }

    /// Runs `work` with a copy of `socket`, on a thread of its own.
    pub fn run(
        &self,
        socket: BorrowedFd<'_>,
        work: impl FnOnce(OwnedFd) + Send + 'static,
    ) -> io::Result<()> {
        let work: StrangerWork = Box::new(work);
        #[cfg(any(all(test, not(loom), not(miri)), feature = "simulation"))]
        if super::sim::is_running() {
            return start(socket.try_clone_to_owned()?, work);
        }
        self.prepare()?;
        let left = match self.0.get() {
            Some(Some(keeper)) => keeper.run(socket, work),
            _ => Err(work),
        };
        match left {
            Ok(()) => Ok(()),
            Err(work) => start(socket.try_clone_to_owned()?, work),
        }
    }
}

/// A thread with the caller's table. Not inlined: `valgrind.supp` knows such threads by their
/// module's name.
#[inline(never)]
fn start(socket: OwnedFd, work: StrangerWork) -> io::Result<()> {
    thread::spawn("hamlyn-take", STACK_BYTES, move || work(socket)).map(drop)
}

impl Keeper {
    /// `None`: there is no second table.
    #[inline(never)]
    fn start() -> io::Result<Option<Self>> {
        // For ThreadSanitizer, which knows descriptors by their numbers alone.
        if cfg!(one_descriptor_table) {
            return Ok(None);
        }
        let (to, from) = socket::pair()?;
        let number = from.as_raw_fd();
        let (work, works) = channel();
        let (say, said) = channel();
        thread::spawn("hamlyn-keep", STACK_BYTES, move || {
            // The program's signal handlers write to its descriptors, which are not in this table.
            sys::block_signals();
            // SAFETY: this thread's closure contains no descriptor. The number is open until this
            // message has been sent.
            let from = unsafe { only(number) };
            if say.send(from.is_ok()).is_ok()
                && let Ok(from) = from
            {
                keep(&from, &works);
            }
        })?;
        let keeper = Self {
            to: Mutex::new(StrangerChannel { socket: to.into(), work, number: 0 }),
            process: std::process::id(),
        };
        match said.recv_timeout(PATIENCE) {
            Ok(has_table) => Ok(has_table.then_some(keeper)),
            Err(_) => {
                // Another thread may still look for the number.
                core::mem::forget(from);
                Ok(None)
            }
        }
    }

    /// Returns the work if that is impossible.
    fn run(&self, socket: BorrowedFd<'_>, work: StrangerWork) -> Result<(), StrangerWork> {
        let mut to = self.to.lock().unwrap_or_else(PoisonError::into_inner);
        to.number += 1;
        let number = to.number;
        loop {
            match socket::send(&to.socket, &number.to_le_bytes(), &[socket]) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    if sys::wait_for(&[(to.socket.as_fd(), true)], u64::MAX).is_err() {
                        return Err(work);
                    }
                }
                Err(_) => return Err(work),
                Ok(()) => break,
            }
        }
        to.work.send((number, work)).map_err(|unsent| unsent.0.1)
    }
}

/// Gives the calling thread a table of its own with only this descriptor: at its own number, and at
/// those of the standard streams, so that no new descriptor takes their place.
///
/// # Safety
/// The thread uses no other descriptor from then on. `number` is open, and stays so during the
/// call.
unsafe fn only(number: RawFd) -> io::Result<OwnedFd> {
    let close = |first: u32, last: u32, flags: libc::c_uint| {
        // SAFETY: only numbers; the closed descriptors are this thread's, by the contract of this
        // function.
        match unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    let place = number as u32;
    // Those up to it are copied, and not the others.
    close(place + 1, u32::MAX, libc::CLOSE_RANGE_UNSHARE)?;
    if place > 0 {
        close(0, place - 1, 0)?;
    }
    for standard in (0..3).filter(|standard| *standard != number) {
        // SAFETY: only numbers, in a table that no other thread has.
        unsafe { libc::dup3(number, standard, libc::O_CLOEXEC) };
    }
    // SAFETY: it is open in this table, which no other thread has.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Starts a thread, with this one's table, for each socket that comes.
fn keep(from: &OwnedFd, works: &Receiver<(u64, StrangerWork)>) {
    let mut next = None;
    loop {
        let mut number = [0; 8];
        let received = match socket::receive_one(from, &mut number) {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                match sys::wait_for(&[(from.as_fd(), false)], u64::MAX) {
                    Ok(_) => continue,
                    Err(_) => return,
                }
            }
            Err(_) => return,
            Ok(received) => received,
        };
        if received.bytes == 0 {
            return;
        }
        let number = u64::from_le_bytes(number);
        let Some(socket) = received.descriptors.into_iter().next() else { continue };
        // If a socket did not come, the owner of the work sees that the channel has gone.
        let work = loop {
            match next.take().or_else(|| works.recv().ok()) {
                None => return,
                Some((of, work)) if of == number => break work,
                Some((of, work)) if of > number => {
                    next = Some((of, work));
                    break Box::new(drop);
                }
                Some(_) => {}
            }
        };
        // Without a thread there is nothing more to do.
        let _ = start(socket, work);
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use std::fs;
    use std::vec::Vec;

    /// The number of this test's descriptors in a table.
    fn named(table: &str) -> usize {
        let entries = fs::read_dir(table).unwrap().flatten();
        let links = entries.filter_map(|entry| fs::read_link(entry.path()).ok());
        links.filter(|link| link.to_string_lossy().contains("of-a-stranger")).count()
    }

    #[test]
    fn what_a_stranger_passes_is_in_no_table_that_forks_copy() {
        let strangers = StrangerThreads::default();
        if !strangers.prepare().unwrap() {
            return std::eprintln!("SKIPPED: there is no second table of descriptors here");
        }
        for _ in 0..3 {
            let (ours, theirs) = socket::pair().unwrap();
            let flags = rustix::fs::MemfdFlags::CLOEXEC;
            let passed = rustix::fs::memfd_create("of-a-stranger", flags).unwrap();
            socket::send(&theirs, &[0], &[passed.as_fd()]).unwrap();
            drop(passed);
            let (say, said) = channel();
            let (release, released) = channel::<()>();
            let work = move |socket: OwnedFd| {
                let received = socket::receive_one(&socket, &mut [0]).unwrap();
                let standard = fs::read_link("/proc/thread-self/fd/2").unwrap();
                let there = named("/proc/thread-self/fd");
                say.send((received.descriptors.len(), there, standard)).unwrap();
                let _: Result<(), _> = released.recv();
            };
            strangers.run(ours.as_fd(), work).unwrap();
            let (count, there, standard) = said.recv().unwrap();
            // Those of earlier rounds may be on their way out there, and never were here.
            assert!(count == 1 && there >= 1, "{count}, {there}");
            assert_eq!(named("/proc/self/fd"), 0);
            assert!(standard.to_string_lossy().starts_with("socket:"), "{standard:?}");
            drop(release);
        }
    }

    #[test]
    fn work_is_done_with_the_socket_that_it_came_with() {
        let strangers = StrangerThreads::default();
        let (say, said) = channel();
        let pairs: Vec<_> = (0..50u8).map(|_| socket::pair().unwrap()).collect();
        for (i, (ours, theirs)) in pairs.iter().enumerate() {
            socket::send(theirs, &[i as u8], &[]).unwrap();
            let say = say.clone();
            let work = move |socket: OwnedFd| {
                let mut byte = [0];
                socket::receive_one(&socket, &mut byte).unwrap();
                say.send((i as u8, byte[0])).unwrap();
            };
            strangers.run(ours.as_fd(), work).unwrap();
        }
        drop(say);
        let done: Vec<_> = said.iter().collect();
        assert_eq!(done.len(), 50);
        assert!(done.iter().all(|(i, byte)| i == byte), "{done:?}");
    }
}
