//! The same over Unix stream sockets, with select, poll and epoll; and a file with inotify.

use crate::Outcome;
use crate::ends::{Client, Far, Latencies, SPIN, Stream};
use rustix::buffer::spare_capacity;
use rustix::event::{
    FdSetElement, FdSetIter, PollFd, PollFlags, Timespec, epoll, fd_set_insert,
    fd_set_num_elements, poll, select,
};
use rustix::fs::inotify;
use std::fs::File;
use std::io::{Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Instant;

/// How a server waits. Its client says so in the highest byte of each request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    Select,
    Poll,
    Epoll,
}

impl Way {
    pub const ALL: [(&str, Self); 3] =
        [("select", Self::Select), ("poll", Self::Poll), ("epoll", Self::Epoll)];
}

const AT_ONCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

struct Epoll(OwnedFd, Vec<epoll::Event>);

impl Epoll {
    fn new(sockets: &[UnixStream]) -> Outcome<Self> {
        let all = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for (number, socket) in sockets.iter().enumerate() {
            let data = epoll::EventData::new_u64(number as u64);
            epoll::add(&all, socket, data, epoll::EventFlags::IN)?;
        }
        Ok(Self(all, Vec::with_capacity(64)))
    }

    fn wait(&mut self, limit: Option<&Timespec>, ready: &mut Vec<usize>) -> Outcome {
        self.1.clear();
        epoll::wait(&self.0, spare_capacity(&mut self.1), limit)?;
        ready.extend(self.1.iter().map(|event| { event.data }.u64() as usize));
        Ok(())
    }
}

pub fn serve(path: &Path, count: usize) -> Outcome {
    let listener = UnixListener::bind(path)?;
    println!("ready");
    let sockets = listener.incoming().take(count).collect::<Result<Vec<_>, _>>()?;
    println!("ready");
    let mut way = Way::Select;
    loop {
        way = serve_by(way, &sockets)?;
    }
}

/// Serves until a client has asked for another way.
fn serve_by(way: Way, sockets: &[UnixStream]) -> Outcome<Way> {
    // Made only for its way: it would make the others slower.
    let mut epoll = (way == Way::Epoll).then(|| Epoll::new(sockets)).transpose()?;
    let mut polled: Vec<_> = sockets.iter().map(|s| PollFd::new(s, PollFlags::IN)).collect();
    let fds = || sockets.iter().map(AsRawFd::as_raw_fd).enumerate();
    let bound = fds().map(|(_, fd)| fd + 1).max().unwrap_or(0);
    let mut set = vec![FdSetElement::default(); fd_set_num_elements(sockets.len(), bound)];
    let mut number_of = vec![0; bound as usize];
    for (number, fd) in fds() {
        fd_set_insert(&mut set, fd);
        number_of[fd as usize] = number;
    }
    let (mut left, mut ready, mut last) = (set.clone(), Vec::new(), Instant::now());
    loop {
        let limit = (last.elapsed() < SPIN).then_some(&AT_ONCE);
        match (way, &mut epoll) {
            (Way::Epoll, Some(epoll)) => epoll.wait(limit, &mut ready)?,
            (Way::Poll, _) => {
                if poll(&mut polled, limit)? > 0 {
                    let came = polled.iter().map(|polled| !polled.revents().is_empty());
                    ready.extend(
                        came.enumerate().filter_map(|(number, came)| came.then_some(number)),
                    );
                }
            }
            _ => {
                left.copy_from_slice(&set);
                // SAFETY: the sockets are open while they are borrowed.
                let came = unsafe { select(bound, Some(&mut left), None, None, limit) }?;
                if came > 0 {
                    ready.extend(FdSetIter::new(&left).map(|fd| number_of[fd as usize]));
                }
            }
        }
        if !ready.is_empty() {
            last = Instant::now();
        }
        let mut wanted = way;
        for number in ready.drain(..) {
            let (mut socket, mut request) = (&sockets[number], [0; 8]);
            socket.read_exact(&mut request)?;
            socket.write_all(&request)?;
            wanted = Way::ALL[usize::from(request[7]) % 3].1;
        }
        if wanted != way {
            return Ok(wanted);
        }
    }
}

pub struct SocketClient {
    _far: Far,
    sockets: Vec<UnixStream>,
    epoll: Epoll,
    ready: Vec<usize>,
    pub way: Way,
}

impl SocketClient {
    pub fn new(mut far: Far, count: usize) -> Outcome<Self> {
        let connect = |_| UnixStream::connect(&far.path);
        let sockets = (0..count).map(connect).collect::<Result<Vec<_>, _>>()?;
        sockets.iter().try_for_each(|socket| socket.set_nonblocking(true))?;
        far.line()?;
        let epoll = Epoll::new(&sockets[..count.min(256)])?;
        Ok(Self { _far: far, sockets, epoll, ready: Vec::new(), way: Way::Select })
    }
}

impl Client for SocketClient {
    fn send(&mut self, number: usize) -> Outcome {
        Ok(self.sockets[number].write_all(&[7, 7, 7, 7, 7, 7, 7, self.way as u8])?)
    }

    fn next(&mut self) -> Outcome<usize> {
        while self.ready.is_empty() {
            self.epoll.wait(Some(&AT_ONCE), &mut self.ready)?;
        }
        let number = self.ready.pop().unwrap_or(0);
        self.sockets[number].read_exact(&mut [0; 8])?;
        Ok(number)
    }
}

/// First the number of all bytes of a burst, then these, then an answer.
pub fn receive(path: &Path, late: &mut Latencies) -> Outcome {
    let listener = UnixListener::bind(path)?;
    println!("ready");
    let (mut socket, _) = listener.accept()?;
    let (mut length, mut bytes) = ([0; 8], vec![0; 1 << 20]);
    loop {
        socket.read_exact(&mut length)?;
        let mut left = u64::from_le_bytes(length);
        while left > 0 {
            let most = left.min(bytes.len() as u64) as usize;
            let came = socket.read(&mut bytes[..most])?;
            late.see(&bytes[..came]);
            left = left.checked_sub(came.max(1) as u64).ok_or("too many bytes")?;
        }
        socket.write_all(&length)?;
    }
}

pub struct SocketStream(UnixStream, Vec<u8>);

impl SocketStream {
    pub fn new(far: &Far, size: usize) -> Outcome<Self> {
        Ok(Self(UnixStream::connect(&far.path)?, vec![7; size]))
    }
}

impl Stream for SocketStream {
    fn send(&mut self, stamp: u64, count: u64) -> Outcome {
        self.0.write_all(&(count * self.1.len() as u64).to_le_bytes())?;
        self.1[..8].copy_from_slice(&stamp.to_le_bytes());
        (0..count).try_for_each(|_| self.0.write_all(&self.1))?;
        Ok(self.0.read_exact(&mut [0; 8])?)
    }
}

/// Records of 16 bytes that another process appends to a file.
pub fn read_file(path: &Path, late: &mut Latencies) -> Outcome {
    File::create(path)?;
    let (mut file, notes) = (File::open(path)?, inotify::init(inotify::CreateFlags::CLOEXEC)?);
    inotify::add_watch(&notes, path, inotify::WatchFlags::MODIFY)?;
    println!("ready");
    let (mut buffer, mut record) = ([MaybeUninit::uninit(); 4096], [0; 16]);
    let mut notes = inotify::Reader::new(notes, &mut buffer);
    loop {
        notes.next()?;
        while file.read(&mut record)? == record.len() {
            late.see(&record);
        }
    }
}

pub struct FileStream(File);

impl FileStream {
    pub fn new(far: &Far) -> Outcome<Self> {
        Ok(Self(File::options().append(true).open(&far.path)?))
    }
}

impl Stream for FileStream {
    fn send(&mut self, stamp: u64, _: u64) -> Outcome {
        Ok(self.0.write_all(&[stamp.to_le_bytes(), [7; 8]].concat())?)
    }
}
