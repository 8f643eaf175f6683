//! A shared-memory link's pages: who makes, pays for, seals and maps them; and the client's side
//! of connecting.
//!
//! ```text
//!   client                                server
//!                                         makes both files
//!                                         its own: maps writable, seals READ_ONLY
//!                                         the client's: seals SIZE
//!          <------- both descriptors ---
//!   checks both, maps both
//!   touches every page: its own by
//!   writing, the other by reading
//!          -------- FILLED ------------>
//!                                         the client's: seals READ_ONLY, checks blocks of both,
//!                                         maps read-only
//! ```
//! Who asks pays: memory is charged to whoever touches it first, and a file whose descriptor a
//! peer keeps stays charged after everybody else has closed it. So the client touches first, and
//! the server maps nothing that has not been paid for.
//!
//! Descriptors flow one way, to the client: a server never receives a stranger's.
//!
//! Nobody can change the size of either file before the other maps it; else the other's first
//! access behind the new end would kill it. Never: the server touches a page before FILLED.

use super::GREETING_BYTES_MAX;
use super::hello::{self, COOKIE_BYTES, Frame, FrameError, Hello, LinkFeatures, Offer, Reason};
use super::names::{self, FindError, Place, ServiceName};
use crate::config::{AdmitUnknown, Config, TOKEN_BYTES_MAX};
use crate::os::memory::{
    self, DescriptorError, Region, RegionLines, SEALS_READ_ONLY, SEALS_SIZE, Wanted, region_bytes,
};
use crate::os::socket::{self, Identity};
use crate::os::sys;
use rustix::fs::SealFlags;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::string::{String, ToString};
use std::vec::Vec;

const RING_BYTES_MIN: u32 = 512;
const RING_BYTES_MAX: u32 = 1 << 30;

/// Whether a ring may have this size.
pub(super) fn is_ring_size(bytes: u32) -> bool {
    bytes.is_power_of_two() && (RING_BYTES_MIN..=RING_BYTES_MAX).contains(&bytes)
}

/// What is wanted of a file that the other end writes and this one maps read-only.
pub(super) fn wanted_read_only(bytes: usize, filled: bool) -> Wanted {
    Wanted { seals: SEALS_READ_ONLY, seals_refused: SealFlags::WRITE, bytes, filled, huge: false }
}

/// What is wanted of a file that the other end made for this one to write.
pub(super) fn wanted_writable(bytes: usize) -> Wanted {
    Wanted {
        seals: SEALS_SIZE,
        seals_refused: SealFlags::WRITE | SealFlags::FUTURE_WRITE,
        bytes,
        filled: false,
        huge: false,
    }
}

/// The server's two files, from OFFER to FILLED.
#[derive(Debug)]
pub(super) struct ServerFiles {
    client_file: OwnedFd,
    client_bytes: usize,
    server_file: OwnedFd,
    server_bytes: usize,
    outgoing: Region,
}

impl ServerFiles {
    pub(super) fn make(client_ring: u32, server_ring: u32) -> io::Result<Self> {
        let client_bytes = region_bytes(client_ring as usize);
        let server_bytes = region_bytes(server_ring as usize);
        let server_file = memory::create(server_bytes)?;
        let outgoing = Region::map_writable(&server_file, server_bytes)?;
        memory::seal(&server_file, SEALS_READ_ONLY)?;
        let client_file = memory::create(client_bytes)?;
        memory::seal(&client_file, SEALS_SIZE)?;
        Ok(Self { client_file, client_bytes, server_file, server_bytes, outgoing })
    }

    /// First what the client writes, then what the server writes.
    pub(super) fn descriptors(&self) -> [BorrowedFd<'_>; 2] {
        [self.client_file.as_fd(), self.server_file.as_fd()]
    }

    /// After FILLED: outgoing and incoming, if the client has paid.
    pub(super) fn finish(self) -> Result<(Region, Region), DescriptorError> {
        seal_and_check(&self.client_file, self.client_bytes)?;
        let incoming = Region::map_read_only(&self.client_file, self.client_bytes)
            .map_err(DescriptorError::Map)?;
        memory::check(&self.server_file, &wanted_read_only(self.server_bytes, true))?;
        Ok((self.outgoing, incoming))
    }
}

/// Seals what the client writes and checks it; only then it may be mapped. The seal comes before
/// the check: afterwards no page can be given back.
pub(super) fn seal_and_check(file: &OwnedFd, bytes: usize) -> Result<(), DescriptorError> {
    memory::seal(file, SEALS_READ_ONLY).map_err(DescriptorError::Map)?;
    memory::check(file, &wanted_read_only(bytes, true))
}

/// A server that could not be connected to. Nothing is left of the attempt.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// There is no such name.
    #[error(transparent)]
    Find(#[from] FindError),
    /// The name is there, and its process is gone.
    #[error("nobody listens at {}: the process that did is gone", .0.display())]
    Stale(PathBuf),
    /// The permissions of the socket or its directory forbid it.
    #[error("connecting to {} is not permitted", .0.display())]
    NotPermitted(PathBuf),
    /// Somebody else serves it than should.
    #[error("{} is served by {found}, and should be by user {wanted}", .path.display())]
    WrongUser {
        /// The socket.
        path: PathBuf,
        /// Who serves it.
        found: String,
        /// Who should.
        wanted: u32,
    },
    /// The time was up.
    #[error("the time was up while {0}")]
    TimedOut(&'static str),
    /// The server said no.
    #[error("the server refused: {reason}{}{text}", if .text.is_empty() { "" } else { ": " })]
    Refused {
        /// Why.
        reason: Reason,
        /// In its own words.
        text: String,
    },
    /// The versions cannot talk.
    #[error("the server speaks version {}.{}, and this library {}.{}", .theirs.0, .theirs.1, .ours.0, .ours.1)]
    Version {
        /// This library's.
        ours: (u16, u16),
        /// The server's.
        theirs: (u16, u16),
    },
    /// It ended the connection without a word.
    #[error("the server went away while {0}")]
    Gone(&'static str),
    /// It sent what no honest server sends.
    #[error("the server misbehaved: {0}")]
    Misbehaved(String),
    /// It offered memory that is not as agreed.
    #[error("the server's memory is not as agreed: {0}")]
    Memory(#[from] DescriptorError),
    /// This process has as many links as it may.
    #[error("this process has {0} links, which is links_max (HAMLYN_LINKS_MAX)")]
    Links(u32),
    /// The greeting is longer than a frame takes.
    #[error("a greeting of {0} bytes; at most {GREETING_BYTES_MAX} are allowed")]
    GreetingTooLong(usize),
    /// This process is a child of the one that started the control plane.
    #[error("{}", super::FORKED)]
    Forked,
    /// The system refused.
    #[error("while {doing}: {source}")]
    Os {
        /// What was being done.
        doing: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

/// What this process says about itself.
pub(super) struct Ours {
    pub(super) node: u32,
    pub(super) features: LinkFeatures,
}

impl Ours {
    pub(super) fn hello(&self, config: &Config, purpose: hello::Purpose) -> Hello {
        let mut token = [0; TOKEN_BYTES_MAX];
        if let AdmitUnknown::Token(text) = &config.admit_unknown {
            let n = text.len().min(TOKEN_BYTES_MAX);
            token[..n].copy_from_slice(&text.as_bytes()[..n]);
        }
        Hello {
            version: (hello::VERSION_MAJOR, hello::VERSION_MINOR),
            purpose,
            features: self.features.bits(),
            features_required: 0,
            node: self.node,
            ring_bytes: config.ring_bytes,
            incoming_ring_bytes_max: config.ring_bytes.max(64 << 10),
            packet_bytes: config.packet_bytes,
            cookie: [0; COOKIE_BYTES],
            token,
            greeting: Vec::new(),
        }
    }
}

/// A connection on its way, which waits until its deadline and no longer.
pub(super) struct Attempt<'a> {
    pub(super) deadline_ns: u64,
    /// Lets the application's own housekeeping go on while this waits, so that a process can
    /// connect to itself.
    pub(super) meanwhile: Option<(BorrowedFd<'a>, &'a dyn Fn())>,
}

/// What the client has when the server has said READY.
pub(super) struct Connected {
    pub(super) control: OwnedFd,
    pub(super) wake: OwnedFd,
    pub(super) identity: Identity,
    pub(super) pidfd: Option<OwnedFd>,
    pub(super) offer: Offer,
    pub(super) outgoing: Region,
    pub(super) incoming: Region,
}

/// A control socket of the client. The server may have passed it anything: it is closed elsewhere.
pub(super) struct Guarded(pub(super) Option<OwnedFd>);

impl Drop for Guarded {
    fn drop(&mut self) {
        memory::close_elsewhere(self.0.take().into_iter().collect());
    }
}

impl Guarded {
    fn get(&self) -> &OwnedFd {
        self.0.as_ref().expect("present until it is taken")
    }
}

impl Attempt<'_> {
    fn wait(
        &self,
        fd: BorrowedFd<'_>,
        write: bool,
        doing: &'static str,
    ) -> Result<(), ConnectError> {
        let os = |source| ConnectError::Os { doing, source };
        let ready = match self.meanwhile {
            None => sys::wait_for(&[(fd, write)], self.deadline_ns),
            Some((other, go_on)) => {
                let ready = sys::wait_for(&[(fd, write), (other, false)], self.deadline_ns);
                go_on();
                ready
            }
        };
        if ready.map_err(os)? { Ok(()) } else { Err(ConnectError::TimedOut(doing)) }
    }

    fn send(&self, fd: &OwnedFd, frame: &Frame, doing: &'static str) -> Result<(), ConnectError> {
        let bytes = frame.to_bytes();
        loop {
            match socket::send(fd, &bytes, &[]) {
                Ok(()) => return Ok(()),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    self.wait(fd.as_fd(), true, doing)?;
                }
                // The server has closed; why, it may have said before.
                Err(e)
                    if matches!(
                        e.kind(),
                        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset
                    ) =>
                {
                    return Ok(());
                }
                Err(source) => return Err(ConnectError::Os { doing, source }),
            }
        }
    }

    /// The next frame, with exactly `wanted` descriptors if it is an OFFER, and with none if not.
    pub(super) fn receive(
        &self,
        fd: &OwnedFd,
        descriptors: &mut Vec<OwnedFd>,
        doing: &'static str,
    ) -> Result<Frame, ConnectError> {
        let mut buffer = std::vec![0; hello::FRAME_BYTES_MAX];
        loop {
            let received = match socket::receive(fd, &mut buffer) {
                Ok(received) => received,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    self.wait(fd.as_fd(), false, doing)?;
                    continue;
                }
                Err(source) => return Err(ConnectError::Os { doing, source }),
            };
            descriptors.extend(received.descriptors);
            if received.bytes == 0 {
                return Err(ConnectError::Gone(doing));
            }
            if received.is_truncated {
                return Err(ConnectError::Misbehaved("a frame is too long".into()));
            }
            return match Frame::from_bytes(&buffer[..received.bytes]) {
                Ok(Frame::Refused { version, .. }) if version.0 != hello::VERSION_MAJOR => {
                    Err(ConnectError::Version {
                        ours: (hello::VERSION_MAJOR, hello::VERSION_MINOR),
                        theirs: version,
                    })
                }
                Ok(Frame::Refused { reason, text, .. }) => {
                    Err(ConnectError::Refused { reason, text })
                }
                Ok(frame) => Ok(frame),
                Err(FrameError::Version { major, minor }) => Err(ConnectError::Version {
                    ours: (hello::VERSION_MAJOR, hello::VERSION_MINOR),
                    theirs: (major, minor),
                }),
                Err(e) => Err(ConnectError::Misbehaved(e.to_string())),
            };
        }
    }

    /// The server's last word; or its refusal of the second connection, which counts, too.
    fn receive_ready(
        &self,
        control: &OwnedFd,
        wake: &OwnedFd,
        descriptors: &mut Vec<OwnedFd>,
    ) -> Result<Frame, ConnectError> {
        const DOING: &str = "waiting for the server to map";
        let wait = |fds: &[_], deadline_ns| {
            sys::wait_for(fds, deadline_ns)
                .map_err(|source| ConnectError::Os { doing: DOING, source })
        };
        loop {
            let mut fds = std::vec![(control.as_fd(), false), (wake.as_fd(), false)];
            if let Some((other, _)) = self.meanwhile {
                fds.push((other, false));
            }
            let any = wait(&fds, self.deadline_ns)?;
            if let Some((_, go_on)) = self.meanwhile {
                go_on();
            }
            if wait(&fds[..1], 0)? {
                return self.receive(control, descriptors, DOING);
            }
            if wait(&fds[1..2], 0)? {
                return self.receive(wake, descriptors, DOING);
            }
            if !any {
                return Err(ConnectError::TimedOut(DOING));
            }
        }
    }

    /// Connects to the socket of a service, and checks who is there.
    fn open(
        &self,
        config: &Config,
        place: &Place,
        takes_descriptors: bool,
    ) -> Result<(OwnedFd, Identity), ConnectError> {
        const DOING: &str = "connecting";
        let address = place.address()?;
        let path = place.path();
        let fd = loop {
            // In slices, so that housekeeping goes on where this process may be the server, too.
            let slice = match self.meanwhile {
                None => self.deadline_ns,
                Some(_) => self.deadline_ns.min(sys::monotonic_ns() + 1_000_000),
            };
            match socket::connect(&address, takes_descriptors, slice) {
                Ok(fd) => break fd,
                Err(e) => match e.kind() {
                    io::ErrorKind::TimedOut if sys::monotonic_ns() < self.deadline_ns => {
                        if let Some((_, go_on)) = self.meanwhile {
                            go_on();
                        }
                    }
                    io::ErrorKind::TimedOut => return Err(ConnectError::TimedOut(DOING)),
                    io::ErrorKind::ConnectionRefused => return Err(ConnectError::Stale(path)),
                    io::ErrorKind::PermissionDenied => {
                        return Err(ConnectError::NotPermitted(path));
                    }
                    _ => return Err(ConnectError::Os { doing: DOING, source: e }),
                },
            }
        };
        let identity =
            socket::identity(&fd).map_err(|source| ConnectError::Os { doing: DOING, source })?;
        let wrong = |found: String| {
            Err(ConnectError::WrongUser { path: path.clone(), found, wanted: place.uid })
        };
        match identity.uid {
            Some(uid) if uid != place.uid => wrong(std::format!("user {uid}")),
            None if config.admit_unknown == AdmitUnknown::Never => {
                wrong("a user of another user namespace".into())
            }
            _ => Ok((fd, identity)),
        }
    }

    /// The client's side, from the name to READY.
    pub(super) fn connect(
        &self,
        config: &Config,
        ours: &Ours,
        service: &ServiceName,
        greeting: &[u8],
    ) -> Result<Connected, ConnectError> {
        if greeting.len() > GREETING_BYTES_MAX {
            return Err(ConnectError::GreetingTooLong(greeting.len()));
        }
        let place = names::find(config, service)?;
        let (control, identity) = self.open(config, &place, true)?;
        let pidfd = socket::peer_pidfd(&control);
        let mut control = Guarded(Some(control));
        let hello =
            Hello { greeting: greeting.to_vec(), ..ours.hello(config, hello::Purpose::Link) };
        self.send(control.get(), &Frame::Hello(hello.clone()), "introducing itself")?;
        let mut descriptors = Vec::new();
        let result = self.take_offer(config, ours, &place, &control, &hello, &mut descriptors);
        // Whatever came, good ones included: they are mapped or not needed.
        if result.is_ok() {
            drop(descriptors);
        } else {
            memory::close_elsewhere(descriptors);
        }
        let (offer, outgoing, incoming, wake) = result?;
        let control = control.0.take().expect("taken once");
        Ok(Connected { control, wake, identity, pidfd, offer, outgoing, incoming })
    }

    fn take_offer(
        &self,
        config: &Config,
        ours: &Ours,
        place: &Place,
        control: &Guarded,
        hello: &Hello,
        descriptors: &mut Vec<OwnedFd>,
    ) -> Result<(Offer, Region, Region, OwnedFd), ConnectError> {
        let misbehaved = |what: &str| ConnectError::Misbehaved(what.into());
        let doing = "waiting for the server's offer";
        let Frame::Offer(offer) = self.receive(control.get(), descriptors, doing)? else {
            return Err(misbehaved("no offer came"));
        };
        if offer.features & !ours.features.bits() != 0 {
            return Err(misbehaved("it chose features that were not offered"));
        }
        if !is_ring_size(offer.client_ring_bytes)
            || !is_ring_size(offer.server_ring_bytes)
            || offer.client_ring_bytes > hello.ring_bytes
            || offer.server_ring_bytes > hello.incoming_ring_bytes_max
            || offer.packet_bytes > hello.packet_bytes
            || offer.packet_bytes == 0
        {
            return Err(misbehaved("its sizes are outside of what was asked for"));
        }
        let [client_file, server_file] = &descriptors[..] else {
            return Err(misbehaved("the offer came without its two descriptors"));
        };
        let outgoing = {
            let bytes = region_bytes(offer.client_ring_bytes as usize);
            memory::check(client_file, &wanted_writable(bytes))?;
            let region = Region::map_writable(client_file, bytes).map_err(DescriptorError::Map)?;
            region.fill_by_writing().map_err(DescriptorError::Map)?;
            region
        };
        let incoming = {
            let bytes = region_bytes(offer.server_ring_bytes as usize);
            memory::check(server_file, &wanted_read_only(bytes, false))?;
            let region = Region::map_read_only(server_file, bytes).map_err(DescriptorError::Map)?;
            region.fill_by_reading().map_err(DescriptorError::Map)?;
            region
        };
        let (wake, who) = self.open(config, place, false)?;
        if Some(who) != socket::identity(control.get()).ok() {
            return Err(misbehaved("its name passed to another process meanwhile"));
        }
        let second = Hello { cookie: offer.cookie, ..ours.hello(config, hello::Purpose::Wake) };
        self.send(&wake, &Frame::Hello(second), "opening the wake-up connection")?;
        self.send(control.get(), &Frame::Filled, "handing over the memory")?;
        let mut more = Vec::new();
        let ready = self.receive_ready(control.get(), &wake, &mut more);
        memory::close_elsewhere(more);
        match ready? {
            Frame::Ready => Ok((offer, outgoing, incoming, wake)),
            _ => Err(misbehaved("something else came in place of READY")),
        }
    }

    /// The statistics of a service, for its owner and root.
    pub(super) fn stat(
        &self,
        config: &Config,
        service: &ServiceName,
    ) -> Result<String, ConnectError> {
        const BYTES_MAX: usize = 4 << 20;
        let place = names::find(config, service)?;
        let (fd, _) = self.open(config, &place, false)?;
        let ours = Ours { node: 0, features: LinkFeatures::empty() };
        let hello = ours.hello(config, hello::Purpose::Stat);
        self.send(&fd, &Frame::Hello(hello), "introducing itself")?;
        let (mut all, mut none) = (Vec::new(), Vec::new());
        loop {
            match self.receive(&fd, &mut none, "waiting for the statistics")? {
                Frame::StatText { text, is_last } if all.len() < BYTES_MAX => {
                    all.extend(text);
                    if is_last {
                        return Ok(String::from_utf8_lossy(&all).into_owned());
                    }
                }
                _ => return Err(ConnectError::Misbehaved("no statistics came".into())),
            }
        }
    }
}

/// The client's side of a bulk ring that it will write.
pub(super) fn map_bulk_writable(fd: &OwnedFd, bytes: u32) -> Result<RegionLines, DescriptorError> {
    memory::check(fd, &wanted_writable(bytes as usize))?;
    let lines = RegionLines::map_writable(fd, bytes as usize).map_err(DescriptorError::Map)?;
    lines.fill_by_writing().map_err(DescriptorError::Map)?;
    Ok(lines)
}

/// The client's side of a bulk ring that the server will write.
pub(super) fn map_bulk_read_only(fd: &OwnedFd, bytes: u32) -> Result<RegionLines, DescriptorError> {
    memory::check(fd, &wanted_read_only(bytes as usize, false))?;
    let lines = RegionLines::map_read_only(fd, bytes as usize).map_err(DescriptorError::Map)?;
    lines.fill_by_reading().map_err(DescriptorError::Map)?;
    Ok(lines)
}
