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

use super::{socket, sys, thread};
use std::boxed::Box;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, OnceLock, PoisonError};

const STACK_BYTES: usize = 128 << 10;

type Work = Box<dyn FnOnce(OwnedFd) + Send>;

/// The threads of one control plane that have it; started when they are needed first.
#[derive(Debug, Default)]
pub(crate) struct Strangers(OnceLock<Option<Keeper>>);

/// Starts them. It ends with the other end of its socket.
#[derive(Debug)]
struct Keeper {
    /// Under one lock with what is done there, since both arrive in their order.
    to: Mutex<(OwnedFd, Sender<Work>)>,
}

impl Strangers {
    /// Does `work` with a copy of `socket`, on a thread of its own. Where this kernel, or a filter of its
    /// calls, gives no second table (Linux 5.9), the thread has the program's.
    pub fn run(
        &self,
        socket: BorrowedFd<'_>,
        work: impl FnOnce(OwnedFd) + Send + 'static,
    ) -> io::Result<()> {
        #[cfg(all(test, not(loom), not(miri)))]
        if super::sim::is_running() {
            return start(socket.try_clone_to_owned()?, Box::new(work));
        }
        match self.0.get_or_init(|| Keeper::start().ok()) {
            Some(keeper) => keeper.run(socket, Box::new(work)),
            None => start(socket.try_clone_to_owned()?, Box::new(work)),
        }
    }
}

/// A thread with the table of whoever calls this.
fn start(socket: OwnedFd, work: Work) -> io::Result<()> {
    thread::spawn("hamlyn-take", STACK_BYTES, move || work(socket)).map(drop)
}

impl Keeper {
    fn start() -> io::Result<Self> {
        let (to, from) = socket::pair()?;
        let number = from.as_raw_fd();
        let (work, works) = channel();
        let (say, said) = channel();
        thread::spawn("hamlyn-keep", STACK_BYTES, move || {
            // SAFETY: nothing of this thread's closure is a descriptor. The number is open until this has
            // been said.
            let from = unsafe { only(number) };
            let started = from.as_ref().map(drop).map_err(io::Error::kind);
            if say.send(started).is_ok()
                && let Ok(from) = from
            {
                keep(&from, &works);
            }
        })?;
        let started = said.recv().unwrap_or(Err(io::ErrorKind::BrokenPipe));
        drop(from);
        started?;
        Ok(Self { to: Mutex::new((to, work)) })
    }

    fn run(&self, socket: BorrowedFd<'_>, work: Work) -> io::Result<()> {
        let to = self.to.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            match socket::send(&to.0, &[0], &[socket]) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    sys::wait_for(&[(to.0.as_fd(), true)], u64::MAX)?;
                }
                Err(e) => return Err(e),
                Ok(()) => break,
            }
        }
        to.1.send(work).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

/// Gives the calling thread a table of its own, in which there is only this descriptor.
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
    // SAFETY: it is open in this table, which nobody else has.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Starts a thread, with this one's table, for each socket that comes.
fn keep(from: &OwnedFd, works: &Receiver<Work>) {
    loop {
        let received = match socket::receive_one(from, &mut [0]) {
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
        let Ok(work) = works.recv() else { return };
        // Where there is no room for it, or no thread, whoever waits for the work sees that it has gone.
        if let Some(socket) = received.descriptors.into_iter().next() {
            let _ = start(socket, work);
        }
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
                let table = fs::read_dir("/proc/thread-self/fd").unwrap().count();
                say.send((received.descriptors.len(), named("/proc/thread-self/fd"), table))
                    .unwrap();
                let _: Result<(), _> = released.recv();
            };
            strangers.run(ours.as_fd(), work).unwrap();
            let (count, there, table) = said.recv().unwrap();
            assert_eq!((count, there, named("/proc/self/fd")), (1, 1, 0));
            // The keeper's, the socket, what was passed, and the table's own; those before may still be
            // on their way out.
            assert!(table <= 4 + 2 * 2, "{table} descriptors");
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
