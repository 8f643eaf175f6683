//! Unix sockets that keep frames apart (`SOCK_SEQPACKET`), carry descriptors, and tell the identity
//! of the other end.
//!
//! A socket refuses descriptors, because an attacker's lingering socket, once passed, blocks its
//! receiver for as long as the attacker likes in `close`, or in the very `read` that drops it. It
//! accepts them only while a thread that nothing waits for reads it ([`accept_descriptors`],
//! [`receive_one`]). Before Linux 6.16 it cannot refuse; then [`receive`] has room for as many as
//! the kernel passes at once: none is dropped inside the call.
//!
//! Never: a call of this module blocks.

use super::call::OfCall;
use super::sys;
use core::mem::MaybeUninit;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::sync::OnceLock;
use std::vec::Vec;

/// Linux 6.16: whether a Unix socket accepts descriptors.
const SO_PASSRIGHTS: libc::c_int = 83;
/// Linux 6.5: a pidfd of the process at the other end.
const SO_PEERPIDFD: libc::c_int = 77;
/// Most descriptors that the kernel passes in one message.
const DESCRIPTORS_MAX: usize = 253;

fn socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        .of_call("socket")
}

/// Two sockets that are connected with one another.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        .of_call("socketpair")
}

fn set_int(fd: BorrowedFd<'_>, option: libc::c_int, value: libc::c_int) -> io::Result<()> {
    let size = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the pointer and size are those of a live integer, which the call only reads.
    let rc = unsafe {
        libc::setsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, option, (&raw const value).cast(), size)
    };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Makes a socket refuse descriptors. `false` before Linux 6.16: then a stranger's descriptors must
/// be closed on a thread that nothing waits for.
pub fn refuse_descriptors(fd: impl AsFd) -> bool {
    accept_descriptors(fd, false)
}

/// Makes a socket accept descriptors, or refuse them again.
pub fn accept_descriptors(fd: impl AsFd, accepts: bool) -> bool {
    set_int(fd.as_fd(), SO_PASSRIGHTS, accepts.into()).is_ok()
}

/// Ends all sending to this end. Frames in its queue can still be received.
pub fn end_incoming(fd: impl AsFd) {
    let _ = rustix::net::shutdown(fd, rustix::net::Shutdown::Read);
}

/// Limits the bytes from this end that may wait at the other to the kernel's minimum: a handful of
/// single bytes. Bytes that wait there are charged to this process, for as long as the other likes.
pub fn send_little(fd: impl AsFd) {
    // Below the minimum: the kernel raises it to that.
    let _ = rustix::net::sockopt::set_socket_send_buffer_size(fd, 0);
}

/// Whether [`refuse_descriptors`] works here.
pub fn has_pass_rights() -> bool {
    static FOUND: OnceLock<bool> = OnceLock::new();
    *FOUND.get_or_init(|| socket().is_ok_and(refuse_descriptors))
}

/// Returns once the socket's queue has every message whose sender had passed the check before this
/// call: the kernel checks and enqueues under a lock, which this call takes, too. (Asking for room
/// takes it only if there is room, which the other end can prevent.)
pub fn settle(fd: impl AsFd) {
    let _ = rustix::net::getpeername(fd);
}

/// A connection on which a stranger may have sent descriptors that no call has received: dropping
/// it waits for no stranger.
#[derive(Debug)]
pub struct SocketConnection(Option<OwnedFd>);

impl SocketConnection {
    /// The descriptor; from now on its owner must not close it on a thread that others wait for.
    pub fn into_fd(mut self) -> OwnedFd {
        match self.0.take() {
            Some(fd) => fd,
            None => unreachable!("it is taken out when it is dropped or this is called, once"),
        }
    }
}

impl From<OwnedFd> for SocketConnection {
    fn from(fd: OwnedFd) -> Self {
        Self(Some(fd))
    }
}

impl AsFd for SocketConnection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.0 {
            Some(fd) => fd.as_fd(),
            None => unreachable!("it is taken out when it is dropped, and only then"),
        }
    }
}

impl Drop for SocketConnection {
    fn drop(&mut self) {
        // A socket that refuses descriptors holds none.
        if !has_pass_rights() {
            super::memory::close_elsewhere(self.0.take().into_iter().collect());
        }
    }
}

pub(super) fn has_peer_pidfd() -> bool {
    pair().is_ok_and(|(a, _b)| peer_pidfd_exact(a.as_fd()).is_ok())
}

/// A socket that is bound to `path` and does not listen yet: connecting to it is refused.
pub fn bind(path: &Path) -> io::Result<OwnedFd> {
    let fd = socket()?;
    let address = SocketAddrUnix::new(path)?;
    rustix::net::bind(&fd, &address).of_call("bind")?;
    Ok(fd)
}

/// Begins to listen; the socket, and those that it accepts, refuse descriptors if they can.
pub fn listen(fd: &OwnedFd) -> io::Result<()> {
    refuse_descriptors(fd);
    rustix::net::listen(fd, 128).of_call("listen")
}

/// The next connection, or `None`.
pub fn accept(listener: &OwnedFd) -> io::Result<Option<OwnedFd>> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    match rustix::net::accept_with(listener, flags) {
        Ok(fd) => {
            refuse_descriptors(&fd);
            Ok(Some(fd))
        }
        Err(
            rustix::io::Errno::AGAIN | rustix::io::Errno::INTR | rustix::io::Errno::CONNABORTED,
        ) => Ok(None),
        Err(e) => Err(e).of_call("accept4"),
    }
}

/// Whether a process listens at `path`: tries once and does not wait. `WouldBlock` means that one
/// does and is busy. The connection refuses descriptors, since its peer is a stranger.
pub fn try_connect(path: &Path) -> io::Result<OwnedFd> {
    let fd = socket()?;
    refuse_descriptors(&fd);
    let address = SocketAddrUnix::new(path)?;
    match rustix::net::connect(&fd, &address) {
        Ok(()) => Ok(fd),
        // A retry, not an error to report.
        Err(e @ rustix::io::Errno::AGAIN) => Err(e.into()),
        Err(e) => Err(e).of_call("connect"),
    }
}

/// Whether the other end is gone.
pub fn is_hung_up(fd: impl AsFd) -> bool {
    use rustix::event::{PollFd, PollFlags, poll};
    let mut polled = [PollFd::new(&fd, PollFlags::empty())];
    let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut polled, Some(&now)).is_ok()
        && polled[0].revents().intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL)
}

/// Ends it for both ends, even if others have it open here: earlier frames can still be read.
pub fn shut_down(fd: impl AsFd) {
    let _ = rustix::net::shutdown(fd, rustix::net::Shutdown::Both);
}

/// Sends one frame, with descriptors, or nothing of it (`WouldBlock`).
pub fn send(fd: impl AsFd, frame: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    #[cfg(any(all(test, not(loom), not(miri)), feature = "simulation"))]
    if super::sim::is_killing() {
        return Ok(());
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    let iov = [IoSlice::new(frame)];
    loop {
        match rustix::net::sendmsg(&fd, &iov, &mut control, flags) {
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
            Ok(_) => return Ok(()),
        }
    }
}

/// A frame that has arrived.
#[derive(Debug, Default)]
pub struct ReceivedFrame {
    /// Bytes of it; 0 when the other end is gone, or has sent an empty frame, behind which there
    /// may be others.
    pub bytes: usize,
    /// Descriptors that came with it. From a stranger: see
    /// [`close_elsewhere`](super::memory::close_elsewhere).
    pub descriptors: Vec<OwnedFd>,
    /// The frame, or its descriptors, exceeded the room.
    pub is_truncated: bool,
}

/// Takes the next frame into `buffer`. `WouldBlock`: there is none.
pub fn receive(fd: impl AsFd, buffer: &mut [u8]) -> io::Result<ReceivedFrame> {
    let mut space =
        [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX), ScmCredentials(1))];
    receive_into(fd, buffer, &mut space)
}

/// The same, with room for one descriptor: the kernel drops any others inside the call, which waits
/// as long as the stranger who sent them likes; then the frame is truncated.
pub fn receive_one(fd: impl AsFd, buffer: &mut [u8]) -> io::Result<ReceivedFrame> {
    const PADDED: usize = rustix::cmsg_space!(ScmRights(1));
    #[repr(align(8))]
    struct AncillarySpace([MaybeUninit<u8>; PADDED]);
    let mut space = AncillarySpace([MaybeUninit::uninit(); PADDED]);
    // Without the padding behind the one, which has room for another.
    // SAFETY: a calculation with a number.
    let length = unsafe { libc::CMSG_LEN(size_of::<libc::c_int>() as u32) } as usize;
    receive_into(fd, buffer, &mut space.0[..length])
}

fn receive_into(
    fd: impl AsFd,
    buffer: &mut [u8],
    space: &mut [MaybeUninit<u8>],
) -> io::Result<ReceivedFrame> {
    let mut resets = 0;
    loop {
        let mut control = RecvAncillaryBuffer::new(space);
        let mut iov = [IoSliceMut::new(buffer)];
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let message = match rustix::net::recvmsg(&fd, &mut iov, &mut control, flags) {
            Ok(message) => message,
            Err(rustix::io::Errno::INTR) => continue,
            // The other end closed with frames of ours unread. Its earlier frames are still there,
            // behind this one error.
            Err(rustix::io::Errno::CONNRESET) if resets == 0 => {
                resets = 1;
                continue;
            }
            Err(rustix::io::Errno::CONNRESET) => return Ok(ReceivedFrame::default()),
            Err(e) => return Err(e.into()),
        };
        let mut received = ReceivedFrame {
            bytes: message.bytes,
            descriptors: Vec::new(),
            is_truncated: message.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC),
        };
        for ancillary in control.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = ancillary {
                received.descriptors.extend(fds);
            }
        }
        return Ok(received);
    }
}

/// The identity of the other end of a connection, from the kernel. For the side that connected, it
/// is the process that began to listen.
///
/// A number that the kernel could not express in this process's user namespace is `None`:
/// *unknown*, not a user called nobody.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SocketIdentity {
    /// Effective user.
    pub uid: Option<u32>,
    /// Effective group.
    pub gid: Option<u32>,
    /// Process; `None` if it is in a PID namespace that is not visible from here.
    pub pid: Option<u32>,
}

/// Reads an option of a socket into `value`; returns the bytes of it.
///
/// # Safety
/// Any bytes are a value of `T`.
unsafe fn read_option<T>(
    fd: BorrowedFd<'_>,
    option: libc::c_int,
    value: &mut T,
) -> io::Result<usize> {
    let mut size = size_of::<T>() as libc::socklen_t;
    let (level, to) = (libc::SOL_SOCKET, core::ptr::from_mut(value).cast());
    // SAFETY: pointer and size are those of a live value, which any bytes are, by the contract.
    match unsafe { libc::getsockopt(fd.as_raw_fd(), level, option, to, &mut size) } {
        0 => Ok(size as usize),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The identity of the other end.
pub fn identity(fd: impl AsFd) -> io::Result<SocketIdentity> {
    let mut found = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    // SAFETY: three integers.
    unsafe { read_option(fd.as_fd(), libc::SO_PEERCRED, &mut found)? };
    Ok(SocketIdentity {
        uid: known_uid(found.uid),
        gid: known_gid(found.gid),
        pid: u32::try_from(found.pid).ok().filter(|pid| *pid != 0),
    })
}

/// The number that stands for all users without a number here. A process's namespace is set up
/// before it begins to talk, so it is looked up once.
fn overflow_uid() -> Option<u32> {
    static FOUND: OnceLock<Option<u32>> = OnceLock::new();
    *FOUND.get_or_init(|| overflow_of("uid"))
}

fn overflow_gid() -> Option<u32> {
    static FOUND: OnceLock<Option<u32>> = OnceLock::new();
    *FOUND.get_or_init(|| overflow_of("gid"))
}

fn overflow_of(kind: &str) -> Option<u32> {
    // If every number has a meaning (in the initial namespace), the overflow number is a user like
    // any other.
    let map = std::fs::read_to_string(std::format!("/proc/self/{kind}_map")).unwrap_or_default();
    let mut fields = map.split_whitespace();
    if fields.next() == Some("0") && fields.nth(1) == Some("4294967295") {
        return None;
    }
    let text = std::fs::read_to_string(std::format!("/proc/sys/kernel/overflow{kind}"));
    Some(text.ok().and_then(|t| t.trim().parse().ok()).unwrap_or(65534))
}

/// The user, or `None` if the number stands for all users without a number here.
pub fn known_uid(uid: u32) -> Option<u32> {
    (uid != u32::MAX && overflow_uid() != Some(uid)).then_some(uid)
}

/// The group, likewise.
pub fn known_gid(gid: u32) -> Option<u32> {
    (gid != u32::MAX && overflow_gid() != Some(gid)).then_some(gid)
}

/// Whether the other end is in group `gid`, its supplementary groups included.
pub fn is_in_group(fd: impl AsFd, gid: u32) -> bool {
    if known_gid(gid).is_none() {
        // Any process with a group without a number here would be in it.
        return false;
    }
    let mut groups = [0 as libc::gid_t; 1024];
    // SAFETY: integers.
    let bytes = unsafe { read_option(fd.as_fd(), libc::SO_PEERGROUPS, &mut groups) };
    let count = bytes.unwrap_or(0) / size_of::<libc::gid_t>();
    groups[..count.min(groups.len())].contains(&gid)
        || identity(fd).is_ok_and(|identity| identity.gid == Some(gid))
}

fn peer_pidfd_exact(fd: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let mut pidfd: libc::c_int = -1;
    // SAFETY: an integer.
    unsafe { read_option(fd, SO_PEERPIDFD, &mut pidfd)? };
    if pidfd < 0 {
        return Err(io::ErrorKind::NotFound.into());
    }
    // SAFETY: the kernel has just made this descriptor for this call; it has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(pidfd) })
}

/// The process at the other end of a connection. A pidfd becomes readable when the process has
/// died, even if others hold its socket.
#[derive(Debug)]
pub enum PeerProcess {
    /// Exactly that process, even if another has its number now.
    Exact(OwnedFd),
    /// Before Linux 6.5: the process that has its number now. If the first has died, and a child of
    /// it holds its socket, that may be any process.
    ByNumber(OwnedFd),
    /// It has died, and was reaped: its number may be another's.
    Gone,
    /// It cannot be seen from here.
    Unseen,
}

impl PeerProcess {
    /// Its pidfd.
    pub fn into_pidfd(self) -> Option<OwnedFd> {
        match self {
            Self::Exact(pidfd) | Self::ByNumber(pidfd) => Some(pidfd),
            Self::Gone | Self::Unseen => None,
        }
    }
}

/// The process at the other end.
pub fn peer_process(fd: impl AsFd) -> PeerProcess {
    let fd = fd.as_fd();
    match peer_pidfd_exact(fd) {
        Ok(pidfd) => return PeerProcess::Exact(pidfd),
        // Before Linux 6.16 there is no pidfd of a process that was reaped.
        Err(e) if matches!(e.raw_os_error(), Some(libc::ESRCH | libc::EINVAL)) => {
            return PeerProcess::Gone;
        }
        Err(e) if e.raw_os_error() == Some(libc::ENOPROTOOPT) => {}
        Err(_) => return PeerProcess::Unseen,
    }
    let pid = identity(fd).ok().and_then(|identity| identity.pid);
    pid.and_then(|pid| rustix::process::Pid::from_raw(pid as i32))
        .and_then(|pid| rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).ok())
        .map_or(PeerProcess::Unseen, PeerProcess::ByNumber)
}

/// A number that a process keeps until the machine restarts, in any namespace: the inode of its
/// pidfd. `None` before Linux 6.9.
pub fn process_number(pidfd: impl AsFd) -> Option<u64> {
    /// File system type of pidfds; before it, all pidfds shared one inode.
    const PID_FS_MAGIC: u64 = 0x5049_4446;
    let is_its_own = rustix::fs::fstatfs(&pidfd).ok()?.f_type as u64 == PID_FS_MAGIC;
    let stat = rustix::fs::fstat(&pidfd).ok()?;
    is_its_own.then_some(stat.st_ino)
}

/// The number of this process.
pub fn own_process_number() -> Option<u64> {
    let flags = rustix::process::PidfdFlags::empty();
    process_number(rustix::process::pidfd_open(rustix::process::getpid(), flags).ok()?)
}

/// Whether the process of a pidfd has died.
pub fn is_dead(pidfd: impl AsFd) -> bool {
    sys::wait_for(&[(pidfd.as_fd(), false)], 0).unwrap_or(false)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn frames_stay_apart_and_carry_descriptors() {
        let (a, b) = pair().unwrap();
        let file = super::super::memory::create(4096).unwrap();
        send(&a, b"one", &[file.as_fd(), file.as_fd()]).unwrap();
        send(&a, b"two", &[]).unwrap();
        let mut buffer = [0; 64];
        let one = receive(&b, &mut buffer).unwrap();
        assert_eq!((&buffer[..one.bytes], one.descriptors.len()), (&b"one"[..], 2));
        let two = receive(&b, &mut buffer[..2]).unwrap();
        assert!(two.is_truncated && two.descriptors.is_empty());
        assert_eq!(receive(&b, &mut buffer).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop(a);
        assert_eq!(receive(&b, &mut buffer).unwrap().bytes, 0);
    }

    #[test]
    fn what_was_sent_before_closing_is_still_received() {
        let (a, b) = pair().unwrap();
        send(&b, b"unread", &[]).unwrap();
        send(&a, b"last", &[]).unwrap();
        drop(a);
        let mut buffer = [0; 64];
        assert_eq!(receive(&b, &mut buffer).unwrap().bytes, 4);
        assert_eq!(receive(&b, &mut buffer).unwrap().bytes, 0);
    }

    #[test]
    fn the_other_end_is_this_process() {
        let (a, _b) = pair().unwrap();
        assert_eq!(identity(&a).unwrap().pid, Some(std::process::id()));
        assert!(!is_dead(peer_process(&a).into_pidfd().unwrap()));
    }
}
