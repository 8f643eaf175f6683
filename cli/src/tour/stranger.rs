//! The stranger: tries to do harm through everything that a process can reach. Each attempt is
//! made for real; whether it was refused is for the receiver's counters to say, and for the bytes
//! of the file.

use super::actor::{Orders, Role, Stage};
use super::hostile::{self, HostileRing};
use super::receiver::{GUEST_BYTES, GUEST_CREDIT, Hello, Rights};
use super::rogue::{self, Rogue};
use anyhow::{Context, Result, bail, ensure};
use hamlyn::control::hello::{self, Frame, Purpose};
use hamlyn::interface::LinkId;
use hamlyn::node::{Node, SendError};
use hamlyn::wire::{Flags, Header, Key, MetadataIndex, NodeId, Share, SlotIndex, Ticket};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use serde::{Deserialize, Serialize};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// What the stranger is told to try.
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
    /// Goes on sending; the tour kills it.
    SendUntilKilled,
    /// Goes on connecting halfway; the tour kills it.
    BeginPacketsUntilKilled,
    /// Serves wrong descriptors to whoever connects.
    WrongDescriptors(WrongDescriptor),
    /// Speaks a protocol as no library would; the order's service is a seed.
    Rogue(Rogue),
    /// Writes into the memory of a process of the same user.
    OtherMemory {
        pid: u32,
        address: u64,
    },
}

/// What is wrong with a descriptor.
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
/// Where the stranger serves wrong descriptors.
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
                let saw = rogue::attempt(rogue, &order);
                orders.answer(saw)?;
            }
            _ => orders.answer(attempt(&order))?,
        }
    }
    Ok(())
}

/// What the stranger saw of it.
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
            // An honest library would hold it to its ticket; this one widens the ticket.
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
            guest.push(|header| header.destination = NodeId(!header.destination.0))
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
            let _ = guest.node.send_fast(&ticket, &[7; 16], 1, Some(PATIENCE))?;
            Ok("no answer".into())
        }
        Attempt::GuessKeys => guess_keys(guest()?),
        Attempt::RandomBytes => random_bytes(order),
        Attempt::ForeignPages => foreign_pages(guest()?),
        Attempt::UnpaidMemory => half_way(order, Frame::Filled),
        Attempt::GuessCookie => half_way(order, wake([0x5a; hello::COOKIE_BYTES])),
        Attempt::PassDescriptors => pass_descriptors(order),
        Attempt::Nonsense => nonsense(order),
        Attempt::NeverSpeak => never_speak(order),
        Attempt::ManyConnections => many_connections(order),
        Attempt::Statistics => match statistics(&order.service) {
            Ok(_) => bail!("it was told the statistics"),
            Err(error) => Ok(error.to_string()),
        },
        Attempt::OtherMemory { pid, address } => {
            let memory = std::fs::File::options().write(true).open(format!("/proc/{pid}/mem"));
            match memory.and_then(|memory| memory.write_all_at(b"changed", address)) {
                Ok(()) => Ok("written".into()),
                Err(error) => Ok(error.to_string()),
            }
        }
        Attempt::SendUntilKilled
        | Attempt::BeginPacketsUntilKilled
        | Attempt::WrongDescriptors(_)
        | Attempt::Rogue(_) => bail!("this attempt is made elsewhere"),
    }
}

fn statistics(service: &str) -> Result<String> {
    let config = hamlyn::Config::from_env()?;
    Ok(hamlyn::control::stat_of(&config, &service.parse()?, PATIENCE)?)
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
        let link = node.connect(service, &serde_json::to_vec(&Hello::Guest)?, PATIENCE)?;
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

    /// Through the library, which sends what it is told to.
    fn send(&mut self, ticket: Ticket) -> Result<String> {
        let _ = self.node.send(&ticket, &[7; 16], &[], Some(PATIENCE))?;
        Ok("no answer".into())
    }

    /// Past the library, straight into the ring.
    fn push(&mut self, change: impl FnOnce(&mut Header)) -> Result<String> {
        let mut header = self.header();
        change(&mut header);
        self.ring.push(header.to_words(), [7; 2])?;
        Ok("no answer".into())
    }

    /// Of a packet that would be accepted.
    fn header(&self) -> Header {
        Header {
            destination: self.normal.destination,
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
            let _ = self.node.send(&self.normal.silent(), &message, &[], Some(PATIENCE))?;
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
            Err(SendError::LinkEnded(_) | SendError::Unreachable(_)) => {
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

/// A generator that needs to be no better than this.
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
        // Half of them nearly right: lengths that fit, and a few bits of everything else.
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

fn introduction(greeting: Vec<u8>) -> hello::Hello {
    hello::Hello {
        version: (hello::VERSION_MAJOR, hello::VERSION_MINOR),
        purpose: Purpose::Link,
        features: 0,
        features_required: 0,
        node: 0x0bad_0bad,
        ring_bytes: 32 << 10,
        incoming_ring_bytes_max: 64 << 10,
        packet_bytes: 16 << 10,
        cookie: [0; hello::COOKIE_BYTES],
        token: [0; 32],
        greeting,
    }
}

fn wake(cookie: [u8; hello::COOKIE_BYTES]) -> Frame {
    Frame::Hello(hello::Hello { purpose: Purpose::Wake, cookie, ..introduction(Vec::new()) })
}

/// What became of a connection: the server's last words, or none.
fn last_words(socket: &OwnedFd) -> Result<String> {
    loop {
        match hostile::receive_frame(socket, PATIENCE)? {
            None => return Ok("closed without a word".into()),
            Some(frame) => {
                if let Ok(Frame::Refused { reason, text, .. }) = Frame::from_bytes(&frame) {
                    return Ok(format!("refused: {reason}; {text}"));
                }
            }
        }
    }
}

/// Gets an offer, and then does not do what it should.
fn half_way(order: &Order, next: Frame) -> Result<String> {
    let socket = hostile::connect_to(&order.socket)?;
    let greeting = serde_json::to_vec(&Hello::Guest)?;
    hostile::send_frame(&socket, &Frame::Hello(introduction(greeting)).to_bytes(), &[])?;
    let offer = hostile::receive_frame(&socket, PATIENCE)?.context("no offer")?;
    let Ok(Frame::Offer(offer)) = Frame::from_bytes(&offer) else { bail!("no offer") };
    if next == Frame::Filled {
        // Everything is as agreed, but for the pages: not one was touched.
        let second = hostile::connect_to(&order.socket)?;
        hostile::send_frame(&second, &wake(offer.cookie).to_bytes(), &[])?;
        hostile::send_frame(&socket, &next.to_bytes(), &[])?;
        last_words(&socket)
    } else {
        let second = hostile::connect_to(&order.socket)?;
        hostile::send_frame(&second, &next.to_bytes(), &[])?;
        last_words(&second)
    }
}

fn pass_descriptors(order: &Order) -> Result<String> {
    let socket = hostile::connect_to(&order.socket)?;
    // A socket that lingers, and so blocks whoever closes it last.
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    let lingering = std::net::TcpStream::connect(listener.local_addr()?)?;
    let frame = Frame::Hello(introduction(serde_json::to_vec(&Hello::Guest)?)).to_bytes();
    match hostile::send_frame(&socket, &frame, &[lingering.as_fd(), listener.as_fd()]) {
        Err(error) => Ok(format!("the kernel: {error}")),
        Ok(()) => last_words(&socket),
    }
}

fn nonsense(order: &Order) -> Result<String> {
    let mut random = generator();
    let mut words = String::new();
    for round in 0..200 {
        let socket = hostile::connect_to(&order.socket)?;
        let length = random() as usize % 600;
        let mut frame: Vec<u8> = (0..length).map(|_| random() as u8).collect();
        // Half of them look like frames.
        if round % 2 == 0 && length >= 8 {
            frame[..4].copy_from_slice(&hello::MAGIC);
            frame[4..8].copy_from_slice(&[random() as u8 % 14, 0, 96, 0]);
        }
        frame.push(0);
        hostile::send_frame(&socket, &frame, &[])?;
        words = last_words(&socket)?;
    }
    Ok(words)
}

fn never_speak(order: &Order) -> Result<String> {
    let socket = hostile::connect_to(&order.socket)?;
    let since = Instant::now();
    let words = last_words(&socket)?;
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
    Ok(format!("of 5000 connections {failed} were not made and {open} were left open"))
}

/// Offers a link whose memory is not as it must be.
fn serve_wrong_descriptors(listener: &OwnedFd, wrong: WrongDescriptor) -> Result<String> {
    let socket = hostile::accept_from(listener, PATIENCE)?;
    hostile::receive_frame(&socket, PATIENCE)?.context("no introduction")?;
    let offer = Frame::Offer(hello::Offer {
        minor: hello::VERSION_MINOR,
        node: 0x0bad_0bad,
        features: 0,
        client_ring_bytes: 32 << 10,
        server_ring_bytes: 32 << 10,
        packet_bytes: 4 << 10,
        cookie: [1; hello::COOKIE_BYTES],
        greeting: Vec::new(),
    });
    let good =
        || memory_file((32 << 10) + 4096, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL);
    let bad: OwnedFd = match wrong {
        WrongDescriptor::Kind => std::fs::File::open("/dev/zero")?.into(),
        WrongDescriptor::Size => {
            memory_file(4096, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?
        }
        // Its maker could shrink it at any time, and the reader would die of it.
        WrongDescriptor::Seals => memory_file((32 << 10) + 4096, SealFlags::empty())?,
    };
    let other = good()?;
    hostile::send_frame(&socket, &offer.to_bytes(), &[bad.as_fd(), other.as_fd()])?;
    // It may say why before it goes.
    while let Ok(Some(_)) = hostile::receive_frame(&socket, PATIENCE) {}
    Ok("the visitor went away".into())
}

fn memory_file(bytes: u64, seals: SealFlags) -> Result<OwnedFd> {
    let file = memfd_create("stranger", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&file, bytes)?;
    if !seals.is_empty() {
        fcntl_add_seals(&file, seals)?;
    }
    Ok(file)
}

/// For whoever sets the stage of wrong descriptors.
pub fn trap(stage: &Stage) -> (String, PathBuf) {
    (stage.service(Role::Stranger, TRAP), stage.socket(Role::Stranger, TRAP))
}
