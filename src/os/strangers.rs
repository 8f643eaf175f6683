//! A second table of descriptors, for those that strangers pass.
//!
//! ```text
//!   the program's table     a socket ---- copied ----> the strangers' table: the copy, and what comes
//!   (forks copy this one)                              through it (no fork copies this one)
//! ```
//! A program that is forked gives its child each descriptor that it has, if only for the moment until the
//! child executes another. Closing a stranger's can wait for as long as that likes: then the child waits,
//! and whoever waits until it has executed. So what strangers pass is received by threads that have a
//! table of their own.
//!
//! Never: a descriptor of the program's is closed in the strangers' table, or the other way round; each is
//! owned by what lives on one side alone.

use super::descriptor::Descriptor;
use super::{socket, sys, thread};
use core::time::Duration;
use std::boxed::Box;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, OnceLock, PoisonError};

const STACK_BYTES: usize = 128 << 10;

/// How long the second table may take to be made: what the program has open is closed in it once, and a
/// file of a file system that hangs can keep that waiting.
const PATIENCE: Duration = Duration::from_secs(1);

type Work = Box<dyn FnOnce(OwnedFd) + Send>;

/// The threads of one control plane that have it.
#[derive(Debug, Default)]
pub(crate) struct Strangers(OnceLock<Option<Keeper>>);

/// Starts them. It ends with the other end of its socket.
#[derive(Debug)]
struct Keeper {
    to: Mutex<To>,
    process: u32,
}

/// A socket by one way, what is done with it by the other: under one lock, and by the same number.
#[derive(Debug)]
struct To {
    socket: Descriptor,
    work: Sender<(u64, Work)>,
    number: u64,
}

impl Drop for Keeper {
    fn drop(&mut self) {
        // A child that was forked may have the socket, too, and then closing it says nothing.
        if self.process == std::process::id() {
            let to = self.to.get_mut().unwrap_or_else(PoisonError::into_inner);
            let _ = rustix::net::shutdown(&to.socket, rustix::net::Shutdown::Both);
        }
    }
}

impl Strangers {
    /// Makes the second table, which a filter of the program's calls may forbid later. `false`: this
    /// kernel, or a filter that is there already, gives none (Linux 5.9), and the threads have the
    /// program's.
    pub fn prepare(&self) -> io::Result<bool> {
        #[cfg(all(test, not(loom), not(miri)))]
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

    /// Does `work` with a copy of `socket`, on a thread of its own.
    pub fn run(
        &self,
        socket: BorrowedFd<'_>,
        work: impl FnOnce(OwnedFd) + Send + 'static,
    ) -> io::Result<()> {
        let work: Work = Box::new(work);
        #[cfg(all(test, not(loom), not(miri)))]
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

/// A thread with the table of whoever calls this. Not inlined: `valgrind.supp` knows such threads by their
/// module's name.
#[inline(never)]
fn start(socket: OwnedFd, work: Work) -> io::Result<()> {
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
            // Handlers of the program's write to its descriptors, which are not those of this table.
            sys::block_signals();
            // SAFETY: nothing of this thread's closure is a descriptor. The number is open until this has
            // been said.
            let from = unsafe { only(number) };
            if say.send(from.is_ok()).is_ok()
                && let Ok(from) = from
            {
                keep(&from, &works);
            }
        })?;
        let keeper = Self {
            to: Mutex::new(To { socket: to.into(), work, number: 0 }),
            process: std::process::id(),
        };
        match said.recv_timeout(PATIENCE) {
            Ok(has_table) => Ok(has_table.then_some(keeper)),
            Err(_) => {
                // It may look for the number yet.
                core::mem::forget(from);
                Ok(None)
            }
        }
    }

    /// Gives the work back where that cannot be.
    fn run(&self, socket: BorrowedFd<'_>, work: Work) -> Result<(), Work> {
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

/// Gives the calling thread a table of its own, in which there is only this descriptor: by its number, and
/// where a program's standard ones are, so that nothing that comes takes their place.
///
/// # Safety
/// The thread uses no other from then on. `number` is open, and stays so for the duration of the call.
unsafe fn only(number: RawFd) -> io::Result<OwnedFd> {
    let close = |first: u32, last: u32, flags: libc::c_uint| {
        // SAFETY: numbers alone; what is closed is this thread's, as the caller says.
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
        // SAFETY: numbers alone, of a table that nobody else has.
        unsafe { libc::dup3(number, standard, libc::O_CLOEXEC) };
    }
    // SAFETY: it is open in this table, which nobody else has.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Starts a thread, with this one's table, for each socket that comes.
fn keep(from: &OwnedFd, works: &Receiver<(u64, Work)>) {
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
        // Of those whose sockets did not come whoever waits sees that they have gone.
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
        // Nor is there anything to be done where there is no thread.
        let _ = start(socket, work);
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use std::fs;
    use std::vec::Vec;

    /// What the descriptors of a table are called that are this test's.
    fn named(table: &str) -> usize {
        let entries = fs::read_dir(table).unwrap().flatten();
        let links = entries.filter_map(|entry| fs::read_link(entry.path()).ok());
        links.filter(|link| link.to_string_lossy().contains("of-a-stranger")).count()
    }

    #[test]
    fn what_a_stranger_passes_is_in_no_table_that_forks_copy() {
        let strangers = Strangers::default();
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
            // Those of rounds before may be on their way out there, and never were here.
            assert!(count == 1 && there >= 1, "{count}, {there}");
            assert_eq!(named("/proc/self/fd"), 0);
            assert!(standard.to_string_lossy().starts_with("socket:"), "{standard:?}");
            drop(release);
        }
    }

    #[test]
    fn work_is_done_with_the_socket_that_it_came_with() {
        let strangers = Strangers::default();
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
