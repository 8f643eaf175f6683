//! The stranger: attacks through everything that a process can reach. Each attempt is real; the
//! receiver's counters, and the bytes of the file, decide whether it was refused.

use super::actor::{Orders, Role, Stage};
use super::by_hand::{self, Talk};
use super::hostile::{self, HostileRing};
use super::receiver::{GUEST_BYTES, GUEST_CREDIT, Hello, Rights};
use super::rogue::{self, Rogue};
use anyhow::{Context, Result, bail, ensure};
use hamlyn::control::Identity;
use hamlyn::control::frame::{self, Frame, MemoryWord, Purpose};
use hamlyn::interface::LinkId;
use hamlyn::node::{Node, NodeSendError};
use hamlyn::os::memory::{SEALS_READ_ONLY, region_bytes};
use hamlyn::wire::{Flags, Header, Key, MetadataIndex, Share, SlotIndex, Ticket};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{
    MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, ftruncate, memfd_create,
};
use rustix::net::sockopt::set_socket_linger;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// The attempts in the stranger's orders.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Attempt {
    WrongKey,
    OutOfBounds,
    Overflow,
    NoSuchSlot,
    NoSuchEntry,
    WrongDestination,
    BadFormat,
    RevokedKey,
    SecondMessage,
    TooManyNotifications,
    OutsideLimits,
    FastIntoParanoid,
    GuessKeys,
    RandomBytes,
    ForeignPages,
    UnpaidMemory,
    GuessCookie,
    PassDescriptors,
    Nonsense,
    NeverSpeak,
    ManyConnections,
    Statistics,
    /// A HELLO of another version, over a link that is up.
    OtherVersion,
    /// Asks for statistics and for a link on one socket.
    StatisticsThenLink,
    /// Shows the credential of the receiver's node.
    CopiedCredential,
    /// Passes a file in place of its ring, and goes on writing to it.
    BusyRing,
    /// Passes a socket in place of its ring, which blocks the process that closes it.
    LingeringRing,
    /// Asks for links, and never pays for one.
    NeverPay,
    /// Goes on sending; the tour kills it.
    SendUntilKilled,
    /// Goes on connecting halfway; the tour kills it.
    BeginPacketsUntilKilled,
    /// Serves wrong descriptors to its clients.
    WrongDescriptors(WrongDescriptor),
    /// Breaks the rules of a protocol; the order's service is a seed.
    Rogue(Rogue),
    /// Writes into the memory of a process of the same user.
    OtherMemory {
        pid: u32,
        address: u64,
    },
}

/// The fault of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WrongDescriptor {
    Kind,
    Size,
    Seals,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Order {
    pub attempt: Attempt,
    pub service: String,
    pub socket: PathBuf,
}

const PATIENCE: Duration = Duration::from_secs(10);
/// The service with wrong descriptors.
pub const TRAP: &str = "trap";

pub fn run(mut orders: Orders) -> Result<()> {
    while let Some(order) = orders.next::<Order>()? {
        match order.attempt {
            Attempt::SendUntilKilled => {
                let mut guest = Guest::connect(&order.service)?;
                orders.answer(Ok("sending"))?;
                guest.send_for_ever()?;
            }
            Attempt::BeginPacketsUntilKilled => {
                let mut guest = Guest::connect(&order.service)?;
                guest.ring.begin_packets()?;
                orders.answer(Ok("half a packet in every line"))?;
                std::thread::park();
            }
            Attempt::BusyRing => hold(&mut orders, busy_ring(&order))?,
            Attempt::LingeringRing => hold(&mut orders, lingering_ring(&order))?,
            Attempt::NeverPay => hold(&mut orders, never_pay(&order))?,
            Attempt::WrongDescriptors(wrong) => {
                let listener = hostile::listen_at(&order.socket)?;
                orders.answer(Ok("serving"))?;
                orders.answer(serve_wrong_descriptors(&listener, wrong))?;
            }
            Attempt::Rogue(Rogue::Serve(trap)) => {
                let served = rogue::serve(trap, &order.service, &mut orders);
                orders.answer(served)?;
            }
            Attempt::Rogue(rogue) => {
                let saw = rogue::attempt(rogue, &order.service, &order.socket);
                orders.answer(saw)?;
            }
            _ => orders.answer(attempt(&order))?,
        }
    }
    Ok(())
}

/// Answers with its result, and keeps its resources until it is killed.
fn hold<T>(orders: &mut Orders, made: Result<(String, T)>) -> Result<()> {
    let (saw, kept) =
        made.map_or_else(|error| (Err(error), None), |(saw, kept)| (Ok(saw), Some(kept)));
    orders.answer(saw)?;
    if kept.is_some() {
        loop {
            std::thread::park();
        }
    }
    Ok(())
}

/// The stranger's result of an attempt.
fn attempt(order: &Order) -> Result<String> {
    let guest = || Guest::connect(&order.service);
    match order.attempt {
        Attempt::WrongKey => {
            let mut guest = guest()?;
            let key = Key(guest.normal.key.0 ^ 1);
            guest.send(Ticket { key, ..guest.normal })
        }
        Attempt::OutOfBounds => {
            let mut guest = guest()?;
            // An honest library would enforce its ticket; this one widens the ticket.
            let base = guest.normal.bound - 8;
            guest.send(Ticket { base, bound: base + 16, ..guest.normal })
        }
        Attempt::Overflow => {
            let mut guest = guest()?;
            guest.push(|header| header.offset = u64::MAX - 7)
        }
        Attempt::NoSuchSlot => {
            let mut guest = guest()?;
            guest.send(Ticket { slot: SlotIndex(u32::MAX), ..guest.normal })
        }
        Attempt::NoSuchEntry => {
            let mut guest = guest()?;
            guest.send(Ticket { metadata_index: MetadataIndex(4), ..guest.normal })
        }
        Attempt::WrongDestination => {
            let mut guest = guest()?;
            guest.push(|header| header.destination.0 = !header.destination.0)
        }
        Attempt::BadFormat => {
            let mut guest = guest()?;
            guest.push(|header| header.metadata_len = 200)
        }
        Attempt::RevokedKey => {
            let mut guest = guest()?;
            guest.send(guest.revoked)
        }
        Attempt::SecondMessage => {
            let mut guest = guest()?;
            guest.send(guest.one_shot)?;
            guest.send(guest.one_shot)
        }
        Attempt::TooManyNotifications => {
            let mut guest = guest()?;
            let mut saw = String::new();
            for _ in 0..2 * GUEST_CREDIT {
                saw = guest.send(guest.normal)?;
            }
            Ok(saw)
        }
        Attempt::OutsideLimits => {
            let mut guest = guest()?;
            let base = GUEST_BYTES / 2 - 8;
            guest.send(Ticket { base, bound: base + 16, ..guest.paranoid })
        }
        Attempt::FastIntoParanoid => {
            let mut guest = guest()?;
            let ticket = Ticket { metadata_index: MetadataIndex::FAST, ..guest.paranoid };
            guest.node.send_fast(&ticket, &[7; 16], 1, Some(PATIENCE))?;
            Ok("no answer".into())
        }
        Attempt::GuessKeys => guess_keys(guest()?),
        Attempt::RandomBytes => random_bytes(order),
        Attempt::ForeignPages => foreign_pages(guest()?),
        Attempt::UnpaidMemory => unpaid_memory(order),
        Attempt::GuessCookie => guess_cookie(order),
        Attempt::PassDescriptors => pass_descriptors(order),
        Attempt::Nonsense => nonsense(order),
        Attempt::NeverSpeak => never_speak(order),
        Attempt::ManyConnections => many_connections(order),
        Attempt::Statistics => match statistics(&order.service) {
            Ok(_) => bail!("it was told the statistics"),
            Err(error) => Ok(error.to_string()),
        },
        Attempt::OtherVersion => {
            let link = welcomed(order)?.link()?;
            let version = (frame::VERSION_MAJOR + 1, 0);
            let hello = by_hand::hello(Purpose::Link, Vec::new())?;
            link.talk.say(&Frame::Hello(frame::Hello { version, ..hello }))?;
            link.talk.last_words()
        }
        Attempt::StatisticsThenLink => {
            let talk = Talk::connect(&order.socket)?;
            talk.say(&Frame::Hello(by_hand::hello(Purpose::Stat, Vec::new())?))?;
            // The other end may be gone by now.
            let _ = talk.say(&introduction()?);
            while let Some(frame) = hostile::receive_frame(&talk.0, PATIENCE)? {
                if let Ok(Frame::Welcome(_)) = Frame::from_bytes(&frame) {
                    bail!("a socket that had asked for statistics was welcomed as a link");
                }
            }
            Ok("closed, and no link was made".into())
        }
        Attempt::CopiedCredential => {
            let credential = welcomed(order)?.welcome.credential;
            let hello = by_hand::hello(Purpose::Link, Vec::new())?;
            let own = hello.credential;
            let mut words = String::new();
            // Unchanged, and changed to name its own process.
            for credential in
                [credential, frame::Credential { process: own.process, pid: own.pid, ..credential }]
            {
                let talk = Talk::connect(&order.socket)?;
                talk.say(&Frame::Hello(frame::Hello { credential, ..hello.clone() }))?;
                words = talk.last_words()?;
            }
            Ok(words)
        }
        Attempt::OtherMemory { pid, address } => {
            let memory = std::fs::File::options().write(true).open(format!("/proc/{pid}/mem"));
            match memory.and_then(|memory| memory.write_all_at(b"changed", address)) {
                Ok(()) => Ok("written".into()),
                Err(error) => Ok(error.to_string()),
            }
        }
        Attempt::SendUntilKilled
        | Attempt::BeginPacketsUntilKilled
        | Attempt::BusyRing
        | Attempt::LingeringRing
        | Attempt::NeverPay
        | Attempt::WrongDescriptors(_)
        | Attempt::Rogue(_) => bail!("this attempt is made elsewhere"),
    }
}

fn statistics(service: &str) -> Result<String> {
    let config = hamlyn::Config::from_env()?;
    Ok(hamlyn::control::stat_of(&config, &service.parse()?, Some(PATIENCE))?)
}

/// A link with rights of its own, and its ring.
struct Guest {
    node: Node,
    link: LinkId,
    ring: HostileRing,
    normal: Ticket,
    one_shot: Ticket,
    paranoid: Ticket,
    revoked: Ticket,
}

impl Guest {
    fn connect(service: &str) -> Result<Self> {
        let mut node = Node::new()?;
        let before = hostile::shared_pages()?;
        let link = node.connect(service, &serde_json::to_vec(&Hello::Guest)?, Some(PATIENCE))?;
        let ring = HostileRing::new(&before)?;
        let rights: Rights = serde_json::from_slice(node.greeting(link)?)?;
        let [normal, one_shot, paranoid, revoked] =
            [&rights.normal, &rights.one_shot, &rights.paranoid, &rights.revoked]
                .map(|bytes| Ticket::from_bytes(bytes));
        Ok(Self {
            node,
            link,
            ring,
            normal: normal?,
            one_shot: one_shot?,
            paranoid: paranoid?,
            revoked: revoked?,
        })
    }

    /// Through the library, which sends any ticket.
    fn send(&mut self, ticket: Ticket) -> Result<String> {
        self.node.send(&ticket, &[7; 16], &[], Some(PATIENCE))?;
        Ok("no answer".into())
    }

    /// Past the library, directly into the ring.
    fn push(&mut self, change: impl FnOnce(&mut Header)) -> Result<String> {
        let mut header = self.header();
        change(&mut header);
        self.ring.push(header.to_words(), [7; 2])?;
        Ok("no answer".into())
    }

    /// The header of a packet that would be accepted.
    fn header(&self) -> Header {
        Header {
            destination: self.normal.destination.destination(),
            slot: self.normal.slot,
            metadata_index: self.normal.metadata_index,
            key: self.normal.key,
            offset: 0,
            length: 16,
            delta: Share::WHOLE.to_wire(),
            metadata_len: 0,
            flags: Flags::NOTIFY | Flags::WAKE,
            word: 0,
        }
    }

    fn send_for_ever(&mut self) -> Result<()> {
        let message = vec![7; GUEST_BYTES as usize];
        loop {
            self.node.send(&self.normal.silent(), &message, &[], Some(PATIENCE))?;
        }
    }

    fn is_sent_away(&mut self) -> bool {
        let _ = self.node.wait(Some(Duration::from_millis(1)));
        while self.node.next_event().is_some() {}
        self.node.peer(self.link).is_err()
    }
}

fn guess_keys(mut guest: Guest) -> Result<String> {
    for guess in 0..100_000u64 {
        let ticket = Ticket { key: Key(guess), ..guest.normal };
        match guest.node.send(&ticket, &[7; 16], &[], Some(PATIENCE)) {
            Ok(_) => {}
            Err(NodeSendError::LinkEnded(_) | NodeSendError::Unreachable(_)) => {
                return Ok(format!("sent away after at most {guess} guesses"));
            }
            Err(error) => return Err(error.into()),
        }
    }
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        if guest.is_sent_away() {
            return Ok("sent away".into());
        }
    }
    bail!("it was not sent away after 100,000 guesses")
}

/// A random generator of sufficient quality for this.
fn generator() -> impl FnMut() -> u64 {
    let mut state = u64::from(std::process::id()) | 1 << 40;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    }
}

const SCRIBBLES: usize = 32;

fn random_bytes(order: &Order) -> Result<String> {
    let mut random = generator();
    let mut sent_away = 0;
    let mut guests = Vec::new();
    for number in 0..SCRIBBLES {
        let mut guest = Guest::connect(&order.service)?;
        // Half of them nearly right: lengths that fit, and a few bits changed in the rest.
        let mut nearly = |header: Header| {
            let few = random() & random() & random() & random();
            (header.to_words(), [0x1f << 32, few & 7 << 32, few & 3, few, few >> 50, few])
        };
        let header = (number % 2 == 0).then(|| nearly(guest.header()));
        guest.ring.scribble(&mut random, header)?;
        guests.push(guest);
    }
    std::thread::sleep(Duration::from_millis(100));
    for guest in &mut guests {
        sent_away += usize::from(guest.is_sent_away());
    }
    Ok(format!("{sent_away} of {SCRIBBLES} links were closed at once"))
}

/// The pages of the ring that the receiver writes.
fn foreign_pages(guest: Guest) -> Result<String> {
    let memory = hostile::own_memory()?;
    let mut refusals = Vec::new();
    for pages in hostile::shared_pages()?.iter().filter(|pages| !pages.is_writable) {
        match memory.write_all_at(&[7; 64], pages.start) {
            Ok(()) => bail!("pages of the receiver were written"),
            Err(error) => refusals.push(error.to_string()),
        }
        let path = format!("/proc/self/map_files/{}", pages.name);
        match std::fs::File::options().write(true).open(path) {
            Ok(_) => bail!("pages of the receiver were opened for writing"),
            Err(error) => refusals.push(error.to_string()),
        }
    }
    drop(guest);
    ensure!(!refusals.is_empty(), "there are no pages of the receiver's");
    refusals.dedup();
    Ok(refusals.join(", "))
}

fn introduction() -> Result<Frame> {
    let greeting = serde_json::to_vec(&Hello::Guest)?;
    Ok(Frame::Hello(by_hand::hello(Purpose::Link, greeting)?))
}

/// Welcomed, and on its way to a link.
fn welcomed(order: &Order) -> Result<by_hand::Guest> {
    by_hand::Guest::connect(&order.socket, serde_json::to_vec(&Hello::Guest)?)
}

/// A ring as agreed, but without its pages: none was touched.
fn unpaid_memory(order: &Order) -> Result<String> {
    let guest = welcomed(order)?;
    let _wake = guest.wake()?;
    guest.until_taken()?;
    let bytes = region_bytes(guest.welcome.client_ring_bytes as usize);
    let ring = memory_file(bytes as u64, SEALS_READ_ONLY)?;
    guest.talk.pass(by_hand::RING, &[ring.as_fd()])?;
    guest.talk.last_words()
}

/// Threads that write to a file without a pause, and so hold the lock of its inode in turn: a
/// process that seals, punches or resizes the file waits for them.
fn busy_ring(order: &Order) -> Result<(String, impl Sized)> {
    const BYTES: usize = 4 << 20;
    const WRITERS: usize = 4;
    let guest = welcomed(order)?;
    guest.until_taken()?;
    let file = std::fs::File::from(memory_file(BYTES as u64, SealFlags::empty())?);
    for _ in 0..WRITERS {
        let file = file.try_clone()?;
        std::thread::spawn(move || {
            let bytes = vec![7; BYTES];
            // Until this process is killed, or the file is sealed.
            while file.write_all_at(&bytes, 0).is_ok() {}
        });
    }
    guest.talk.pass(by_hand::RING, &[file.as_fd()])?;
    let words = guest.talk.last_words()?;
    ensure!(fcntl_get_seals(&file)?.is_empty(), "the receiver has sealed the file");
    Ok((format!("{words}, while {WRITERS} threads write to it"), (guest, file)))
}

/// A TCP connection that blocks the process that closes it last, for an hour: its buffer stays
/// full, and the other end does not read.
fn lingering() -> Result<(std::net::TcpStream, std::net::TcpStream)> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    let stream = std::net::TcpStream::connect(listener.local_addr()?)?;
    let (other, _) = listener.accept()?;
    stream.set_nonblocking(true)?;
    while std::io::Write::write(&mut &stream, &[7; 1 << 16]).is_ok() {}
    stream.set_nonblocking(false)?;
    set_socket_linger(&stream, Some(Duration::from_secs(3600)))?;
    Ok((stream, other))
}

/// Blocks the few receivers that one user may block.
fn lingering_ring(order: &Order) -> Result<(String, impl Sized)> {
    let mut kept = Vec::new();
    let mut words = String::new();
    const MOST: usize = 8;
    for _ in 0..MOST {
        let guest = welcomed(order)?;
        if guest.until_taken().is_err() {
            // No receiver is left for this user.
            break;
        }
        let (socket, other) = lingering()?;
        guest.talk.pass(by_hand::RING, &[socket.as_fd()])?;
        // The last of the two that closes it is blocked.
        std::thread::spawn(move || drop(socket));
        words = guest.talk.last_words()?;
        kept.push((guest, other));
    }
    ensure!(!kept.is_empty(), "no socket was passed");
    let rest =
        if kept.len() < MOST { ", and then nobody took any more of this user's" } else { "" };
    Ok((format!("{words}; {} sockets were passed{rest}", kept.len()), kept))
}

/// Asks again and again for more links than a user has places for, and pays for none.
fn never_pay(order: &Order) -> Result<(String, impl Sized)> {
    const EACH: usize = 100;
    let (path, frame) = (order.socket.clone(), introduction()?);
    let ask = move || -> Vec<Talk> {
        // The listener's queue may be full for a moment.
        let talks = (0..EACH).filter_map(|_| Talk::connect(&path).ok());
        talks.filter(|talk| talk.say(&frame).is_ok()).collect()
    };
    let first = ask();
    let (Frame::Welcome(_), _) = first.first().context("no connection was made")?.hear()? else {
        bail!("no welcome")
    };
    std::thread::spawn(move || {
        let mut kept = VecDeque::from([first]);
        loop {
            kept.push_back(ask());
            // Some time after the other end has given them up.
            if kept.len() > 6 {
                kept.pop_front();
            }
            std::thread::sleep(Duration::from_millis(300));
        }
    });
    Ok((format!("{EACH} every 0.3 s, of which some are welcomed and none pays"), ()))
}

fn guess_cookie(order: &Order) -> Result<String> {
    let _guest = welcomed(order)?;
    let second = Talk::connect(&order.socket)?;
    let hello = by_hand::hello(Purpose::Wake, Vec::new())?;
    second.say(&Frame::Hello(frame::Hello { cookie: [0x5a; frame::COOKIE_BYTES], ..hello }))?;
    second.last_words()
}

fn pass_descriptors(order: &Order) -> Result<String> {
    let talk = Talk::connect(&order.socket)?;
    let (lingering, other) = lingering()?;
    let frame = introduction()?.to_bytes();
    match hostile::send_frame(&talk.0, &frame, &[lingering.as_fd(), other.as_fd()]) {
        Err(error) => Ok(format!("the kernel: {error}")),
        Ok(()) => talk.last_words(),
    }
}

fn nonsense(order: &Order) -> Result<String> {
    let mut random = generator();
    let mut words = String::new();
    for round in 0..200 {
        let talk = Talk::connect(&order.socket)?;
        let length = random() as usize % 600;
        let mut bytes: Vec<u8> = (0..length).map(|_| random() as u8).collect();
        // Half of them look like frames.
        if round % 2 == 0 && length >= 8 {
            bytes[..4].copy_from_slice(&frame::MAGIC);
            bytes[4..8].copy_from_slice(&[random() as u8 % 16, 0, 96, 0]);
        }
        bytes.push(0);
        hostile::send_frame(&talk.0, &bytes, &[])?;
        words = talk.last_words()?;
    }
    Ok(words)
}

fn never_speak(order: &Order) -> Result<String> {
    let talk = Talk::connect(&order.socket)?;
    let since = Instant::now();
    let words = talk.last_words()?;
    Ok(format!("after {:.1} s: {words}", since.elapsed().as_secs_f32()))
}

fn many_connections(order: &Order) -> Result<String> {
    let (mut held, mut failed) = (Vec::new(), 0);
    rustix::process::setrlimit(
        rustix::process::Resource::Nofile,
        rustix::process::Rlimit {
            current: rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum,
            ..rustix::process::getrlimit(rustix::process::Resource::Nofile)
        },
    )?;
    for _ in 0..5000 {
        match hostile::connect_to(&order.socket) {
            Ok(socket) => held.push(socket),
            Err(_) => {
                failed += 1;
                std::thread::sleep(Duration::from_micros(200));
            }
        }
    }
    let open = held
        .iter()
        .filter(|socket| !hostile::wait_readable(socket, Duration::ZERO).unwrap_or(true))
        .count();
    let closed = held.len() - open;
    Ok(format!("of 5,000 {failed} were not taken, {closed} were closed, and {open} stayed open"))
}

/// Does everything that a server does, but with a wrong ring.
fn serve_wrong_descriptors(listener: &OwnedFd, wrong: WrongDescriptor) -> Result<String> {
    let talk = Talk(hostile::accept_from(listener, PATIENCE)?);
    let (Frame::Hello(_), _) = talk.hear()? else { bail!("no introduction") };
    let bytes = 32 << 10;
    talk.say(&Frame::Welcome(frame::Welcome {
        minor: frame::VERSION_MINOR,
        credential: Identity::new()?.credential(),
        features: 0,
        client_ring_bytes: bytes,
        server_ring_bytes: bytes,
        packet_bytes: 4 << 10,
        cookie: [1; frame::COOKIE_BYTES],
        greeting: Vec::new(),
    }))?;
    talk.expect(by_hand::RING, by_hand::offer(bytes))?;
    talk.say_of(by_hand::RING, by_hand::take(bytes))?;
    talk.expect(by_hand::RING, MemoryWord::Pass)?;
    talk.say_of(by_hand::RING, MemoryWord::Held)?;
    talk.say_of(by_hand::THEIR_RING, by_hand::offer(bytes))?;
    talk.expect(by_hand::THEIR_RING, by_hand::take(bytes))?;
    let size = region_bytes(bytes as usize) as u64;
    let bad: OwnedFd = match wrong {
        WrongDescriptor::Kind => std::fs::File::open("/dev/zero")?.into(),
        WrongDescriptor::Size => memory_file(4096, SEALS_READ_ONLY)?,
        // Its maker could shrink it at any time, and the reader would die of it.
        WrongDescriptor::Seals => memory_file(size, SealFlags::empty())?,
    };
    talk.pass(by_hand::THEIR_RING, &[bad.as_fd()])?;
    talk.last_words()
}

fn memory_file(bytes: u64, seals: SealFlags) -> Result<OwnedFd> {
    let file = memfd_create("stranger", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&file, bytes)?;
    if !seals.is_empty() {
        fcntl_add_seals(&file, seals)?;
    }
    Ok(file)
}

/// The service of wrong descriptors, and its path.
pub fn trap(stage: &Stage) -> (String, PathBuf) {
    (stage.service(Role::Stranger, TRAP), stage.socket(Role::Stranger, TRAP))
}
