//! The control socket's frames, sent by hand: the caller can stop anywhere, and send anything.

use super::hostile;
use anyhow::{Context, Result, anyhow, bail, ensure};
use hamlyn::ApertureAccess;
use hamlyn::control::frame::{
    self, Credential, Frame, Hello, LinkSide, Memory, MemoryWord, Purpose, Welcome,
};
use hamlyn::control::{Identity, LinkFeatures};
use hamlyn::os::memory::{self, Region, SEALS_READ_ONLY, region_bytes};
use hamlyn::os::socket;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

pub const PATIENCE: Duration = Duration::from_secs(10);
/// The ring that the client writes, and the one that the server writes.
pub const RING: Memory = Memory::Ring(LinkSide::Client);
pub const THEIR_RING: Memory = Memory::Ring(LinkSide::Server);

/// One end of a control socket.
pub struct Talk(pub OwnedFd);

impl Talk {
    pub fn connect(path: &Path) -> Result<Self> {
        hostile::connect_to(path).map(Self)
    }

    pub fn say(&self, frame: &Frame) -> Result<()> {
        Ok(hostile::send_frame(&self.0, &frame.to_bytes(), &[])?)
    }

    pub fn say_of(&self, memory: Memory, word: MemoryWord) -> Result<()> {
        self.say(&Frame::Memory { memory, word })
    }

    /// Sends MEMORY_PASS with these descriptors.
    pub fn pass(&self, memory: Memory, files: &[BorrowedFd<'_>]) -> rustix::io::Result<()> {
        let frame = Frame::Memory { memory, word: MemoryWord::Pass };
        hostile::send_frame(&self.0, &frame.to_bytes(), files)
    }

    /// The next frame, and the descriptors that came with it.
    pub fn hear(&self) -> Result<(Frame, Vec<OwnedFd>)> {
        ensure!(hostile::wait_readable(&self.0, PATIENCE)?, "nothing came");
        let mut frame = vec![0; frame::FRAME_BYTES_MAX];
        let received = socket::receive(self.0.as_fd(), &mut frame)?;
        ensure!(received.bytes > 0, "the connection has ended");
        let frame = Frame::from_bytes(&frame[..received.bytes]).map_err(|error| anyhow!(error))?;
        if let Frame::Refused { reason, text, .. } = frame {
            bail!("{}", refused(&reason.to_string(), &text));
        }
        Ok((frame, received.descriptors))
    }

    /// Expects this word in the next frame, and returns its descriptors.
    pub fn expect(&self, memory: Memory, word: MemoryWord) -> Result<Vec<OwnedFd>> {
        let (frame, files) = self.hear()?;
        ensure!(frame == Frame::Memory { memory, word }, "another answer came than is expected");
        Ok(files)
    }

    /// The end of the connection: the reason in the other end's last frame, or none.
    pub fn last_words(&self) -> Result<String> {
        loop {
            match hostile::receive_frame(&self.0, PATIENCE)? {
                None => return Ok("closed without a word".into()),
                Some(frame) => {
                    if let Ok(Frame::Refused { reason, text, .. }) = Frame::from_bytes(&frame) {
                        return Ok(refused(&reason.to_string(), &text));
                    }
                }
            }
        }
    }
}

/// The reason, and its text, if that says more.
fn refused(reason: &str, text: &str) -> String {
    match reason == text {
        true => format!("refused: {reason}"),
        false => format!("refused: {reason}; {text}"),
    }
}

/// The first frame of an honest client.
pub fn hello(purpose: Purpose, greeting: Vec<u8>) -> Result<Hello> {
    let credential = match purpose {
        Purpose::Link => Identity::new()?.credential(),
        _ => Credential::NONE,
    };
    Ok(Hello {
        version: (frame::VERSION_MAJOR, frame::VERSION_MINOR),
        purpose,
        features: LinkFeatures::all().bits(),
        features_required: 0,
        credential,
        ring_bytes: 32 << 10,
        incoming_ring_bytes_max: 64 << 10,
        packet_bytes: 4 << 10,
        cookie: [0; frame::COOKIE_BYTES],
        token: [0; 32],
        greeting,
    })
}

pub fn offer(bytes: u32) -> MemoryWord {
    MemoryWord::Offer { bytes: bytes.into(), access: ApertureAccess::ReadOnly }
}

pub fn take(bytes: u32) -> MemoryWord {
    MemoryWord::Take { bytes: bytes.into() }
}

/// A correct ring: made, filled, sealed.
pub fn ring(bytes: u32) -> Result<(Region, OwnedFd)> {
    let size = region_bytes(bytes as usize);
    let file = memory::create(size)?;
    let region = Region::map_writable(&file, size)?;
    region.fill_by_writing()?;
    memory::seal(&file, SEALS_READ_ONLY)?;
    Ok((region, file))
}

/// A client that the server has welcomed.
pub struct Guest {
    pub talk: Talk,
    pub welcome: Welcome,
    path: PathBuf,
}

impl Guest {
    pub fn connect(path: &Path, greeting: Vec<u8>) -> Result<Self> {
        let talk = Talk::connect(path)?;
        talk.say(&Frame::Hello(hello(Purpose::Link, greeting)?))?;
        let (Frame::Welcome(welcome), _) = talk.hear()? else { bail!("no welcome") };
        Ok(Self { talk, welcome, path: path.to_owned() })
    }

    /// Its second connection.
    pub fn wake(&self) -> Result<Talk> {
        let wake = Talk::connect(&self.path)?;
        let cookie = self.welcome.cookie;
        wake.say(&Frame::Hello(Hello { cookie, ..hello(Purpose::Wake, Vec::new())? }))?;
        Ok(wake)
    }

    /// Offers its ring; the server then waits for the descriptor.
    pub fn until_taken(&self) -> Result<()> {
        let bytes = self.welcome.client_ring_bytes;
        self.talk.say_of(RING, offer(bytes))?;
        self.talk.expect(RING, take(bytes)).map(drop)
    }

    /// Passes its ring, which the server accepts, and gets the offer of the server's.
    pub fn until_paid(&self) -> Result<Region> {
        self.until_taken()?;
        let (region, file) = ring(self.welcome.client_ring_bytes)?;
        self.talk.pass(RING, &[file.as_fd()])?;
        self.talk.expect(RING, MemoryWord::Held)?;
        self.talk.expect(THEIR_RING, offer(self.welcome.server_ring_bytes))?;
        Ok(region)
    }

    /// Completes the link.
    pub fn link(self) -> Result<Link> {
        let wake = self.wake()?;
        let outgoing = self.until_paid()?;
        let bytes = self.welcome.server_ring_bytes;
        self.talk.say_of(THEIR_RING, take(bytes))?;
        let files = self.talk.expect(THEIR_RING, MemoryWord::Pass)?;
        let file = files.first().context("no ring came")?;
        let incoming = Region::map_read_only(file, region_bytes(bytes as usize))?;
        incoming.fill_by_reading()?;
        self.talk.say_of(THEIR_RING, MemoryWord::Held)?;
        let (Frame::Ready, _) = self.talk.hear()? else { bail!("no link") };
        Ok(Link { talk: self.talk, _wake: wake, _rings: [outgoing, incoming] })
    }
}

/// A link, and the connections that keep it up.
pub struct Link {
    pub talk: Talk,
    _wake: Talk,
    _rings: [Region; 2],
}
