//! The common parts of the control plane's tests.
#![allow(dead_code)]

use hamlyn::ApertureAccess;
use hamlyn::config::Config;
use hamlyn::control::frame::{self, Frame, Hello, LinkSide, Memory, MemoryWord, Purpose, Welcome};
use hamlyn::control::*;
use hamlyn::os::memory::{self, Region, SEALS_READ_ONLY, region_bytes};
use hamlyn::os::{socket, sys};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

/// Says so past the test harness, which keeps back what a passing test prints.
#[allow(unused_macros)]
macro_rules! skipped {
    ($($what:tt)+) => {{
        use std::io::Write;
        let line = format!("SKIPPED: {}\n", format_args!($($what)+));
        std::io::stderr().write_all(line.as_bytes()).unwrap()
    }};
}

pub const LONG: Duration = Duration::from_secs(20);

/// A directory of a test's own, removed afterwards.
pub struct Dir(pub PathBuf);

impl Dir {
    pub fn new(name: &str) -> Self {
        use std::os::unix::fs::DirBuilderExt;
        let path = std::env::temp_dir().join(format!("hamlyn-test-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::DirBuilder::new().mode(0o700).create(&path).unwrap();
        Self(path)
    }

    pub fn config(&self) -> Config {
        Config::default().dir(self.0.clone()).shared_dir(self.0.join("shared"))
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub fn start(config: &Config) -> Control {
    let identity = Identity::new().unwrap();
    Control::start(config, &identity, Arc::new(|| "nothing counted\n".into())).unwrap()
}

/// Events that were taken on the way to others.
static LEFT: Mutex<Vec<(Weak<Inbox>, ControlEvent)>> = Mutex::new(Vec::new());

/// The first event that is so.
fn next_of(
    control: &Control,
    limit: Duration,
    is_so: impl Fn(&ControlEvent) -> bool,
) -> ControlEvent {
    let (end, inbox) = (Instant::now() + limit, control.inbox());
    loop {
        let mut left = LEFT.lock().unwrap_or_else(PoisonError::into_inner);
        left.retain(|row| row.0.strong_count() > 0);
        left.extend(inbox.take().into_iter().map(|event| (Arc::downgrade(inbox), event)));
        let is_it = |row: &(Weak<Inbox>, _)| row.0.as_ptr() == Arc::as_ptr(inbox) && is_so(&row.1);
        if let Some(at) = left.iter().position(is_it) {
            return left.remove(at).1;
        }
        drop(left);
        assert!(Instant::now() < end, "no event came");
        control.run_once(Duration::from_millis(1)).unwrap();
    }
}

/// All events that wait.
pub fn events(control: &Control) -> Vec<ControlEvent> {
    let (mut left, inbox) = (LEFT.lock().unwrap_or_else(PoisonError::into_inner), control.inbox());
    let own = left.extract_if(.., |row| row.0.as_ptr() == Arc::as_ptr(inbox));
    own.map(|row| row.1).chain(inbox.take()).collect()
}

pub fn next(control: &Control) -> ControlEvent {
    next_of(control, LONG, |_| true)
}

/// Connects, as a program does that does nothing else meanwhile.
pub trait Connects {
    fn connect(
        &self,
        service: &ServiceName,
        greeting: &[u8],
        limit: Duration,
    ) -> Result<NewLink, ConnectError> {
        self.connect_to(service, greeting, limit, Wait::ForName)
    }

    fn connect_to(
        &self,
        service: &ServiceName,
        greeting: &[u8],
        limit: Duration,
        wait: Wait,
    ) -> Result<NewLink, ConnectError>;
}

impl Connects for Control {
    fn connect_to(
        &self,
        service: &ServiceName,
        greeting: &[u8],
        limit: Duration,
        wait: Wait,
    ) -> Result<NewLink, ConnectError> {
        let token = self.begin_connect(service, greeting, limit, wait)?;
        let found = next_of(self, limit + LONG, |event| match event {
            ControlEvent::Connected(link) => link.token == token,
            ControlEvent::ConnectFailed { token: failed, .. } => *failed == token,
            _ => false,
        });
        match found {
            ControlEvent::Connected(link) => Ok(link),
            ControlEvent::ConnectFailed { error, .. } => Err(error),
            other => panic!("{other:?}"),
        }
    }
}

pub fn name(text: &str) -> ServiceName {
    text.parse().unwrap()
}

/// Two control planes with one link between them.
pub fn linked(config: &Config) -> (Control, NewLink, Control, NewLink) {
    let (server, client) = (start(config), start(config));
    server.serve(&name("x"), Access::SameUser, Accept::Automatic(b"welcome".to_vec())).unwrap();
    let ours = client.connect(&name("x"), b"hello", LONG).unwrap();
    let ControlEvent::Connected(theirs) = next(&server) else { panic!() };
    (server, theirs, client, ours)
}

pub fn counter(control: &Control, name: &str) -> u64 {
    let name = format!("control.{name}");
    control.counters().iter().find(|row| row.0 == name).unwrap().1
}

/// Waits until `is_so`.
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + LONG;
    while !is_so() {
        assert!(Instant::now() < end, "it never came to be that {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Descriptors of this process.
pub fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// The first words of an honest client.
pub fn hello_of(purpose: Purpose) -> Hello {
    Hello {
        version: (frame::VERSION_MAJOR, frame::VERSION_MINOR),
        purpose,
        features: 3,
        features_required: 0,
        credential: Identity::new().unwrap().credential(),
        ring_bytes: 4096,
        incoming_ring_bytes_max: 65536,
        packet_bytes: 1024,
        cookie: [0; 16],
        token: [0; 32],
        greeting: Vec::new(),
    }
}

/// Where a service's socket is.
pub trait Served {
    fn socket(&self) -> PathBuf;
}

impl Served for Dir {
    /// That of the service `x`.
    fn socket(&self) -> PathBuf {
        self.0.join("x")
    }
}

impl Served for PathBuf {
    fn socket(&self) -> PathBuf {
        self.clone()
    }
}

/// A stranger's connection to a service, which takes descriptors.
pub fn stranger(at: &impl Served) -> OwnedFd {
    let fd = dial(&at.socket(), LONG).unwrap();
    socket::accept_descriptors(&fd, true);
    fd
}

/// The same, which refuses them. A listener whose queue is full is tried again until the limit.
pub fn dial(at: &Path, limit: Duration) -> io::Result<OwnedFd> {
    let end = Instant::now() + limit;
    loop {
        match socket::try_connect(at) {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock && Instant::now() < end => {
                std::thread::sleep(Duration::from_millis(1));
            }
            other => return other,
        }
    }
}

/// The next frame and the descriptors that came with it; `None` at the end.
pub fn receive(fd: &OwnedFd) -> Option<(Frame, Vec<OwnedFd>)> {
    use std::os::fd::AsFd;
    let deadline = sys::monotonic_ns() + LONG.as_nanos() as u64;
    assert!(sys::wait_for(&[(fd.as_fd(), false)], deadline).unwrap(), "nothing came");
    let mut buffer = vec![0; frame::FRAME_BYTES_MAX];
    let received = socket::receive(fd, &mut buffer).unwrap();
    (received.bytes != 0)
        .then(|| (Frame::from_bytes(&buffer[..received.bytes]).unwrap(), received.descriptors))
}

pub fn send(fd: &OwnedFd, frame: &Frame) {
    let _ = socket::send(fd, &frame.to_bytes(), &[]);
}

/// The peer says no for this reason, and then nothing more.
pub fn expect_refusal(fd: &OwnedFd, wanted: Reason) -> String {
    let Some((Frame::Refused { reason, text, .. }, _)) = receive(fd) else { panic!("no refusal") };
    assert_eq!(reason, wanted, "{text}");
    assert!(receive(fd).is_none());
    text
}

// ---- a client that speaks by hand

pub const RING: Memory = Memory::Ring(LinkSide::Client);
pub const THEIR_RING: Memory = Memory::Ring(LinkSide::Server);
pub const BULK: Memory = Memory::Bulk(LinkSide::Client);

pub fn word(memory: Memory, word: MemoryWord) -> Frame {
    Frame::Memory { memory, word }
}

pub fn say(fd: &OwnedFd, memory: Memory, w: MemoryWord) {
    send(fd, &word(memory, w));
}

pub fn ring_offer(bytes: u32) -> MemoryWord {
    MemoryWord::Offer { bytes: bytes.into(), access: ApertureAccess::ReadOnly }
}

pub fn take(bytes: u32) -> MemoryWord {
    MemoryWord::Take { bytes: bytes.into() }
}

/// MEMORY_PASS with these descriptors.
pub fn pass_with(fd: &OwnedFd, memory: Memory, files: &[&OwnedFd]) -> std::io::Result<()> {
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
    use std::os::fd::AsFd;
    let fds: Vec<_> = files.iter().map(|file| file.as_fd()).collect();
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(fds.is_empty() || control.push(SendAncillaryMessage::ScmRights(&fds)));
    let frame = word(memory, MemoryWord::Pass).to_bytes();
    let bytes = [std::io::IoSlice::new(&frame)];
    rustix::net::sendmsg(fd, &bytes, &mut control, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)?;
    Ok(())
}

/// The next frame is this; what came with it.
#[track_caller]
pub fn expect_word(fd: &OwnedFd, memory: Memory, w: MemoryWord) -> Vec<OwnedFd> {
    let (frame, files) = receive(fd).expect("the connection has ended");
    assert_eq!(frame, word(memory, w));
    files
}

/// A ring of this process's: made, filled, sealed.
pub fn ring_file(bytes: u32) -> (Region, OwnedFd) {
    let size = region_bytes(bytes as usize);
    let file = memory::create(size).unwrap();
    let region = Region::map_writable(&file, size).unwrap();
    region.fill_by_writing().unwrap();
    memory::seal(&file, SEALS_READ_ONLY).unwrap();
    (region, file)
}

/// Welcomed, with its second connection.
pub fn half_way_with(dir: &impl Served, hello: Hello) -> (OwnedFd, OwnedFd, Welcome) {
    let fd = stranger(dir);
    send(&fd, &Frame::Hello(hello));
    let Some((Frame::Welcome(welcome), _)) = receive(&fd) else { panic!("no welcome") };
    let wake = stranger(dir);
    send(&wake, &Frame::Hello(Hello { cookie: welcome.cookie, ..hello_of(Purpose::Wake) }));
    (fd, wake, welcome)
}

pub fn half_way(dir: &impl Served) -> (OwnedFd, OwnedFd, Welcome) {
    half_way_with(dir, hello_of(Purpose::Link))
}

/// Its ring is offered, and the server's receiver waits for it.
pub fn until_taken(fd: &OwnedFd, welcome: &Welcome) {
    say(fd, RING, ring_offer(welcome.client_ring_bytes));
    expect_word(fd, RING, take(welcome.client_ring_bytes));
}

/// Its ring has been passed and is held; the server's is offered.
pub fn until_paid(fd: &OwnedFd, welcome: &Welcome) -> Region {
    until_taken(fd, welcome);
    let (region, file) = ring_file(welcome.client_ring_bytes);
    pass_with(fd, RING, &[&file]).unwrap();
    expect_word(fd, RING, MemoryWord::Held);
    expect_word(fd, THEIR_RING, ring_offer(welcome.server_ring_bytes));
    region
}

/// The server's ring.
pub fn take_their_ring(fd: &OwnedFd, welcome: &Welcome) -> OwnedFd {
    say(fd, THEIR_RING, take(welcome.server_ring_bytes));
    expect_word(fd, THEIR_RING, MemoryWord::Pass).pop().expect("a descriptor")
}

/// A link, made by hand: its socket, its second connection, and both rings.
pub struct ByHand {
    pub fd: OwnedFd,
    pub wake: OwnedFd,
    pub outgoing: Region,
    pub incoming: Region,
}

pub fn link_with(dir: &impl Served, hello: Hello) -> ByHand {
    let (fd, wake, welcome) = half_way_with(dir, hello);
    let outgoing = until_paid(&fd, &welcome);
    let file = take_their_ring(&fd, &welcome);
    let size = region_bytes(welcome.server_ring_bytes as usize);
    let incoming = Region::map_read_only(&file, size).unwrap();
    incoming.fill_by_reading().unwrap();
    say(&fd, THEIR_RING, MemoryWord::Held);
    assert!(matches!(receive(&fd), Some((Frame::Ready, _))));
    ByHand { fd, wake, outgoing, incoming }
}

pub fn link_by_hand(dir: &impl Served) -> ByHand {
    let features = LinkFeatures::all().bits();
    link_with(dir, Hello { features, ..hello_of(Purpose::Link) })
}
