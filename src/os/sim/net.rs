//! The network between simulated hosts: it serves the calls of [`tcp`](crate::os::tcp) while a task
//! runs.
//!
//! ```text
//!   host: a <--> near[0] --task: carries--> near[1] <--> b :host
//!                near[0] <--carries: task-- near[1]
//! ```
//! A connection is two pairs of Unix stream sockets, real ones of the kernel, and two tasks of no
//! process that carry bytes from one pair to the other: in pieces, late, and not at all while the
//! cable is cut. Bytes that they have not handed on are unacknowledged; that also gives
//! back-pressure.
//!
//! Host *h* has the address 10.0.*n*.*h+1* in each network *n*. It listens in all of them.
//!
//! Not simulated: TCP itself (it retransmits lost bytes), a connection that is reset amid earlier
//! bytes, and the kernel's own end of a connection to a host that does not answer, which the
//! library notices earlier by itself.

use super::{is_running, sleep, spawn_in, wait, with};
use core::cell::RefCell;
use core::time::Duration;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, Shutdown, SocketAddrUnix};
use rustix::net::{SocketFlags, SocketType, sockopt};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::rc::{Rc, Weak};
use std::vec::Vec;

/// The owner of the tasks that carry.
const NOBODY: usize = usize::MAX;
/// Bytes that a socket accepts before they are carried, about.
const SENT_BYTES: usize = 4 << 10;
/// Most bytes that are carried at a time.
const PIECE_BYTES: usize = 64 << 10;
/// Time after which the kernel probes an idle peer.
const PROBE_NS: u64 = 1_000_000_000;

/// One end of a connection.
#[derive(Clone, Copy)]
struct SimEnd {
    own: SocketAddr,
    other: SocketAddr,
    hosts: [usize; 2],
    net: u8,
}

struct Wire {
    near: [OwnedFd; 2],
    hosts: [usize; 2],
    net: u8,
}

struct SimListener {
    socket: u64,
    host: usize,
    address: SocketAddr,
    name: SocketAddrUnix,
    /// Connected ends that wait to be accepted, in order.
    waiting: VecDeque<SimEnd>,
}

/// A cut: nothing passes between a host and the others.
struct Cut {
    host: usize,
    /// In one network, or in all.
    net: Option<u8>,
    since_ns: u64,
    until_ns: u64,
}

#[derive(Default)]
struct Net {
    listeners: Vec<SimListener>,
    /// By the kernel's number of the socket, which is not used again.
    ends: BTreeMap<u64, SimEnd>,
    wires: Vec<Weak<Wire>>,
    cuts: Vec<Cut>,
    ports: u16,
    /// The host that has made each connection.
    made_by: Vec<usize>,
    /// Pieces that had to wait for a cable.
    held: u32,
}

std::thread_local! {
    static NET: RefCell<Net> = RefCell::default();
}

/// The address of a host in a network.
pub(crate) fn address_of(host: usize, net: u8, port: u16) -> SocketAddr {
    (Ipv4Addr::new(10, 0, net, host as u8 + 1), port).into()
}

/// Whether an address belongs to the host that asks.
pub(crate) fn is_here(address: SocketAddr) -> bool {
    let SocketAddr::V4(address) = address else { return false };
    address.ip().octets()[3] == host() as u8 + 1
}

/// Cuts the cable of a host in a network, or in all of them, for a time.
pub(crate) fn cut(host: usize, net: Option<u8>, time: Duration) {
    let now_ns = now_ns();
    let until_ns = now_ns.saturating_add(time.as_nanos().try_into().unwrap_or(u64::MAX));
    NET.with_borrow_mut(|all| all.cuts.push(Cut { host, net, since_ns: now_ns, until_ns }));
}

/// A host loses its power: nothing from it arrives any more, not even its end.
pub(crate) fn lose(host: usize) {
    cut(host, None, Duration::MAX);
    super::kill(host);
}

/// Connections that were made, and pieces of their data that had to wait for a cable.
pub(crate) fn counts() -> (u32, u32) {
    NET.with_borrow(|all| (all.ports.into(), all.held))
}

/// Connections that a host has made.
pub(crate) fn made_by(host: usize) -> usize {
    NET.with_borrow(|all| all.made_by.iter().filter(|made_by| **made_by == host).count())
}

/// A killed process sends nothing more; bytes that its kernel already had are carried.
pub(super) fn sever(host: usize) {
    NET.with_borrow_mut(|all| {
        all.listeners.retain(|listener| listener.host != host);
        all.wires.retain(|wire| wire.strong_count() > 0);
        for wire in all.wires.iter().filter_map(Weak::upgrade) {
            for (near, of) in wire.near.iter().zip(wire.hosts) {
                if of == host {
                    let _ = rustix::net::shutdown(near, Shutdown::Read);
                }
            }
        }
    });
}

/// The run is over.
pub(super) fn end() {
    NET.with_borrow_mut(|all| *all = Net::default());
}

pub(crate) fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let fd = socket()?;
    rustix::net::bind(&fd, &SocketAddrUnix::new_unnamed())?;
    rustix::net::listen(&fd, 64)?;
    let name = rustix::net::getsockname(&fd)?.try_into().map_err(io::Error::from)?;
    let (socket, host) = (number(fd.as_fd())?, host());
    NET.with_borrow_mut(|all| {
        let is_new = all.listeners.iter().all(|one| one.host != host || one.address != address);
        assert!(is_new, "one listener at an address");
        let waiting = VecDeque::new();
        all.listeners.push(SimListener { socket, host, address, name, waiting });
    });
    Ok(fd.into())
}

pub(crate) fn listens_at(listener: &TcpListener) -> Option<SocketAddr> {
    of_listener(listener, |found| found.address)
}

pub(crate) fn accept(listener: &TcpListener) -> Option<io::Result<(TcpStream, SocketAddr)>> {
    of_listener(listener, |_| ())?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let accepted = rustix::net::accept_with(listener, flags).map_err(io::Error::from);
    Some(accepted.and_then(|fd| {
        let end = of_listener(listener, |found| found.waiting.pop_front()).flatten();
        let end = end.ok_or(io::ErrorKind::ConnectionAborted)?;
        register(&fd, end)?;
        Ok((fd.into(), end.other))
    }))
}

pub(crate) fn connect(address: SocketAddr, within: Duration) -> io::Result<TcpStream> {
    if std::thread::panicking() {
        return Err(io::ErrorKind::ConnectionAborted.into());
    }
    let until_ns = now_ns().saturating_add(within.as_nanos().try_into().unwrap_or(u64::MAX));
    let SocketAddr::V4(to) = address else { return Err(io::ErrorKind::AddrNotAvailable.into()) };
    let [.., net, place] = to.ip().octets();
    let hosts = [host(), usize::from(place) - 1];
    let listener = loop {
        late();
        wait_for_cable(hosts, net, until_ns, || false);
        if now_ns() >= until_ns {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let found = NET.with_borrow(|all| {
            let is_it =
                |one: &&SimListener| one.host == hosts[1] && one.address.port() == to.port();
            all.listeners.iter().find(is_it).map(|one| (one.socket, one.name.clone()))
        });
        let (number, name) = found.ok_or(io::ErrorKind::ConnectionRefused)?;
        let fd = socket()?;
        match rustix::net::connect(&fd, &name) {
            Ok(()) => break (number, fd),
            // The listener's queue is full.
            Err(rustix::io::Errno::AGAIN) => _ = sleep(Duration::from_millis(1)),
            Err(_) => return Err(io::ErrorKind::ConnectionRefused.into()),
        }
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (own, near) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    for fd in [&own, &near, &listener.1] {
        sockopt::set_socket_send_buffer_size(fd, SENT_BYTES)?;
    }
    let end = NET.with_borrow_mut(|all| {
        all.ports += 1;
        all.made_by.push(hosts[0]);
        let at = address_of(hosts[0], net, 40_000 + all.ports);
        let (own, other) = (at, address);
        let there = SimEnd { own: other, other: own, hosts: [hosts[1], hosts[0]], net };
        if let Some(found) = all.listeners.iter_mut().find(|one| one.socket == listener.0) {
            found.waiting.push_back(there);
        }
        SimEnd { own, other, hosts, net }
    });
    register(&own, end)?;
    let wire = Rc::new(Wire { near: [near, listener.1], hosts, net });
    NET.with_borrow_mut(|all| all.wires.push(Rc::downgrade(&wire)));
    for from in [0, 1] {
        let wire = wire.clone();
        spawn_in(NOBODY, "the network", move || carry(&wire, from));
    }
    Ok(own.into())
}

/// One direction of a connection: runs until it ends, or its destination is gone.
fn carry(wire: &Wire, from: usize) {
    let (source, sink) = (&wire.near[from], &wire.near[1 - from]);
    let is_gone = || polls(sink, PollFlags::empty());
    let mut bytes = std::vec![0; PIECE_BYTES];
    let mut small = 0;
    loop {
        wait(|| polls(source, PollFlags::IN) || is_gone(), u64::MAX);
        late();
        wait_for_cable(wire.hosts, wire.net, u64::MAX, is_gone);
        let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
        let there = match rustix::net::recv(source, bytes.as_mut_slice(), flags) {
            Ok((0, _)) => break,
            Ok((there, _)) => there,
            Err(rustix::io::Errno::AGAIN) if is_gone() => 0,
            Err(rustix::io::Errno::AGAIN) => continue,
            Err(_) => break,
        };
        // Now and then one byte, or half of it; then the rest, so that the number of pieces does
        // not depend on the length.
        let piece = match (small, random_below(4)) {
            (0..3, 0) => 1,
            (0..3, 1) => there.div_ceil(2),
            _ => there,
        };
        small = if piece < there { small + 1 } else { 0 };
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        match rustix::net::send(sink, &bytes[..piece], flags) {
            Ok(sent) if !is_gone() => {
                _ = rustix::net::recv(source, &mut bytes[..sent], RecvFlags::DONTWAIT);
            }
            Err(rustix::io::Errno::AGAIN) if !is_gone() => {
                wait(|| polls(sink, PollFlags::OUT), u64::MAX);
            }
            // The sender gets an error.
            _ => {
                let _ = rustix::net::shutdown(source, Shutdown::Read);
                return;
            }
        }
    }
    let _ = rustix::net::shutdown(sink, Shutdown::Write);
}

pub(crate) fn addresses(tcp: &TcpStream) -> Option<(SocketAddr, SocketAddr)> {
    end_of(tcp.as_fd()).map(|end| (end.own, end.other))
}

/// Whether the cable to the other host has been cut for so long, and bytes are owed. `None`: not a
/// socket of this network.
pub(crate) fn is_silent(fd: BorrowedFd<'_>, limit: Duration) -> Option<bool> {
    let end = end_of(fd)?;
    let (now_ns, limit_ns) = (now_ns(), limit.as_nanos() as u64);
    let since_ns = NET.with_borrow(|all| {
        let cuts = all.cuts.iter().filter(|cut| cut.is_between(end.hosts, end.net, now_ns));
        cuts.map(|cut| now_ns - cut.since_ns).max()
    });
    let is_owed = |since_ns| since_ns >= PROBE_NS || crate::os::tcp::unacknowledged(fd) > 0;
    Some(since_ns.is_some_and(|since_ns| since_ns >= limit_ns && is_owed(since_ns)))
}

impl Cut {
    fn is_between(&self, hosts: [usize; 2], net: u8, now_ns: u64) -> bool {
        hosts.contains(&self.host)
            && self.net.is_none_or(|own| own == net)
            && (self.since_ns..self.until_ns).contains(&now_ns)
    }
}

/// Waits until nothing is cut, the condition is true, or the time limit has passed.
fn wait_for_cable(hosts: [usize; 2], net: u8, until_ns: u64, is_so: impl Fn() -> bool) {
    loop {
        let now_ns = now_ns();
        let until = NET.with_borrow(|all| {
            let cuts = all.cuts.iter().filter(|cut| cut.is_between(hosts, net, now_ns));
            cuts.map(|cut| cut.until_ns).max()
        });
        let Some(mended_ns) = until else { return };
        NET.with_borrow_mut(|all| all.held += 1);
        if wait(&is_so, mended_ns.min(until_ns)) || now_ns >= until_ns {
            return;
        }
    }
}

/// A while, mostly a short one.
fn late() {
    let ns = match random_below(16) {
        0 => random_below(3_000_000),
        1..8 => random_below(60_000),
        _ => 0,
    };
    if ns > 0 {
        sleep(Duration::from_nanos(ns));
    }
}

/// Whether one of these events is there, or the other end has closed it.
fn polls(fd: &OwnedFd, events: PollFlags) -> bool {
    let mut polled = [PollFd::new(fd, events)];
    let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
    let ends = PollFlags::HUP | PollFlags::ERR;
    poll(&mut polled, Some(&now)).is_ok() && polled[0].revents().intersects(events | ends)
}

fn socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?)
}

fn host() -> usize {
    with(|world| world.host).unwrap_or_default()
}

fn now_ns() -> u64 {
    with(|world| world.now_ns).unwrap_or_default()
}

fn random_below(bound: u64) -> u64 {
    with(|world| world.random.below(bound)).unwrap_or_default()
}

fn register(fd: &OwnedFd, end: SimEnd) -> io::Result<()> {
    let number = number(fd.as_fd())?;
    NET.with_borrow_mut(|all| all.ends.insert(number, end));
    Ok(())
}

fn end_of(fd: BorrowedFd<'_>) -> Option<SimEnd> {
    if !is_running() {
        return None;
    }
    let number = number(fd).ok()?;
    NET.with_borrow(|all| all.ends.get(&number).copied())
}

fn of_listener<R>(listener: &TcpListener, what: impl FnOnce(&mut SimListener) -> R) -> Option<R> {
    if !is_running() {
        return None;
    }
    let number = number(listener.as_fd()).ok()?;
    NET.with_borrow_mut(|all| all.listeners.iter_mut().find(|one| one.socket == number).map(what))
}

/// The kernel's number of a socket.
fn number(fd: BorrowedFd<'_>) -> io::Result<u64> {
    let (mut number, mut size) = (0u64, size_of::<u64>() as libc::socklen_t);
    let pointer = (&raw mut number).cast();
    // SAFETY: pointer and size are those of a live integer, the only memory that the call writes.
    let rc = unsafe {
        libc::getsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, libc::SO_COOKIE, pointer, &mut size)
    };
    if rc == 0 { Ok(number) } else { Err(io::Error::last_os_error()) }
}
