//! TCP for links to other hosts: sockets that never wait, except in [`connect`], and the kernel's
//! knowledge of the host at the other end.
//!
//! In a simulation the network is that of `sim::net`, with other sockets; callers do not notice.

use super::call::OfCall;
use core::time::Duration;
use rustix::net::{SendAncillaryBuffer, SendFlags};
use std::io::{self, IoSlice};
use std::net::{IpAddr, SocketAddr, SocketAddrV6, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};

#[cfg(any(all(test, not(loom), not(miri)), feature = "simulation"))]
use super::sim;

/// Linux 6.15: the longest interval, in milliseconds, at which the kernel retransmits
/// unacknowledged bytes, and probes a peer without room.
const TCP_RTO_MAX_MS: libc::c_int = 44;

/// Connections that the kernel keeps for [`accept`], or the host's `net.core.somaxconn` if that is
/// lower. A peer that finds no room tries again a second later, honest or not.
const WAITING_MAX: i32 = 4096;

/// Listens, without waiting in [`accept`].
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    #[cfg(any(all(test, not(loom), not(miri)), feature = "simulation"))]
    if sim::is_running() {
        return sim::net::listen(address);
    }
    let listener = TcpListener::bind(address).of_call("bind")?;
    // It listens already, with a shorter queue: the kernel takes the new number.
    rustix::net::listen(&listener, WAITING_MAX).of_call("listen")?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// The address at which it listens.
pub fn listens_at(listener: &TcpListener) -> io::Result<SocketAddr> {
    #[cfg(any(all(test, not(loom), not(miri)), feature = "simulation"))]
    if let Some(address) = sim::net::listens_at(listener) {
        return Ok(address);
    }
    listener.local_addr()
}

/// The next connection; `WouldBlock`: there is none.
pub fn accept(listener: &TcpListener) -> io::Result<(TcpStream, SocketAddr)> {
    #[cfg(any(all(test, not(loom), not(miri)), feature = "simulation"))]
    if let Some(accepted) = sim::net::accept(listener) {
        return accepted;
    }
    listener.accept()
}

/// Connects, and waits for at most `within`.
pub fn connect(address: &SocketAddr, within: Duration) -> io::Result<TcpStream> {
    #[cfg(any(all(test, not(loom), not(miri)), feature = "simulation"))]
    if sim::is_running() {
        return sim::net::connect(*address, within);
    }
    TcpStream::connect_timeout(address, within)
}

/// Whether an address is one of this host's, in this process's network namespace. Nothing is sent.
/// For an address that the system does not list (only a route of type `local` leads to it) the
/// answer is no.
pub fn is_here(address: SocketAddr) -> bool {
    #[cfg(any(all(test, not(loom), not(miri)), feature = "simulation"))]
    if sim::is_running() {
        return sim::net::is_here(address);
    }
    // An IPv6 listener's form of an IPv4 address.
    let ip = address.ip().to_canonical();
    if ip.is_loopback() || ip.is_unspecified() {
        return true;
    }
    // The kernel binds a socket only to its own addresses; with `ip_nonlocal_bind` to any.
    let scope = match address {
        SocketAddr::V6(v6) => v6.scope_id(),
        SocketAddr::V4(_) => 0,
    };
    let bound = match ip {
        IpAddr::V6(v6) => SocketAddrV6::new(v6, 0, 0, scope).into(),
        ip => SocketAddr::new(ip, 0),
    };
    UdpSocket::bind(bound).is_ok() && is_of_an_interface(ip, scope).unwrap_or(false)
}

/// The number of an interface of this host, by its name or that number itself.
pub fn interface(name: &str) -> io::Result<u32> {
    if let Ok(number) = name.parse() {
        return Ok(number);
    }
    let any = UdpSocket::bind((std::net::Ipv4Addr::LOCALHOST, 0))?;
    rustix::net::netdevice::name_to_index(&any, name).map_err(|error| match error {
        rustix::io::Errno::NODEV => {
            let why = std::format!("no interface of this host is called {name:?} (`ip link`)");
            io::Error::new(io::ErrorKind::NotFound, why)
        }
        error => error.into(),
    })
}

/// Whether an interface has this address, in this scope if it has one.
fn is_of_an_interface(ip: IpAddr, scope: u32) -> io::Result<bool> {
    let mut first: *mut libc::ifaddrs = core::ptr::null_mut();
    // SAFETY: the pointer is that of a live pointer, which the call sets.
    if unsafe { libc::getifaddrs(&raw mut first) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let (mut next, mut is_found) = (first, false);
    while !next.is_null() && !is_found {
        // SAFETY: the list is this function's until it is freed below, and no other thread changes
        // it.
        let entry = unsafe { &*next };
        if !entry.ifa_addr.is_null() {
            // SAFETY: as above; each kind of address begins with its family.
            let family = libc::c_int::from(unsafe { (*entry.ifa_addr).sa_family });
            is_found = match (family, ip) {
                (libc::AF_INET, IpAddr::V4(v4)) => {
                    let at = entry.ifa_addr.cast::<libc::sockaddr_in>();
                    // SAFETY: an address of this family is such a structure, at any alignment.
                    let found = unsafe { at.read_unaligned() };
                    found.sin_addr.s_addr == u32::from_ne_bytes(v4.octets())
                }
                (libc::AF_INET6, IpAddr::V6(v6)) => {
                    let at = entry.ifa_addr.cast::<libc::sockaddr_in6>();
                    // SAFETY: the same.
                    let found = unsafe { at.read_unaligned() };
                    let is_there = scope == 0 || [0, scope].contains(&found.sin6_scope_id);
                    found.sin6_addr.s6_addr == v6.octets() && is_there
                }
                _ => false,
            };
        }
        next = entry.ifa_next;
    }
    // SAFETY: the list from the call above; nothing refers to it any more.
    unsafe { libc::freeifaddrs(first) };
    Ok(is_found)
}

/// The addresses of this end and the other.
pub fn addresses(tcp: &TcpStream) -> io::Result<(SocketAddr, SocketAddr)> {
    #[cfg(any(all(test, not(loom), not(miri)), feature = "simulation"))]
    if let Some(addresses) = sim::net::addresses(tcp) {
        return Ok(addresses);
    }
    Ok((tcp.local_addr()?, tcp.peer_addr()?))
}

/// Prepares a socket: it never waits, sends at once, accepts no more than `unsent_bytes` of unsent
/// data, and probes a silent host often enough for `timeout`.
pub fn prepare(tcp: &TcpStream, unsent_bytes: u32, timeout: Duration) -> io::Result<()> {
    use rustix::net::sockopt;
    tcp.set_nonblocking(true)?;
    #[cfg(any(all(test, not(loom), not(miri)), feature = "simulation"))]
    if sim::is_running() {
        return Ok(());
    }
    tcp.set_nodelay(true)?;
    set_unsent_max(tcp, unsent_bytes)?;
    // A peer without room is probed as often as an idle one; before Linux 6.15 the kernel does that
    // at ever longer intervals, and must end the connection itself.
    if set_interval(tcp, timeout / 4).is_err() {
        sockopt::set_tcp_user_timeout(tcp, timeout.as_millis() as u32)?;
    }
    sockopt::set_socket_keepalive(tcp, true)?;
    // The kernel's own probes, in whole seconds: two go unanswered within the time.
    let probe = Duration::from_secs((timeout.as_secs() / 3).max(1));
    sockopt::set_tcp_keepidle(tcp, probe)?;
    sockopt::set_tcp_keepintvl(tcp, probe)?;
    sockopt::set_tcp_keepcnt(tcp, 2)?;
    Ok(())
}

/// Pieces of a connection's bytes that one system call takes: records of TLS, of up to 16 KiB. As
/// many are named in capi/valgrind.supp.
const PIECES_MAX: usize = 8;

/// Writes to a connection, and reports a lost peer as an error. `TcpStream` itself writes several
/// slices with `writev`, which raises SIGPIPE in that case, and that ends a C program.
pub struct TcpWriter<'a>(pub &'a TcpStream);

impl io::Write for TcpWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut none = SendAncillaryBuffer::default();
        let slices = &slices[..slices.len().min(PIECES_MAX)];
        Ok(rustix::net::sendmsg(self.0, slices, &mut none, SendFlags::NOSIGNAL)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn set(fd: impl AsFd, option: libc::c_int, value: libc::c_int) -> io::Result<()> {
    let size = size_of::<libc::c_int>() as libc::socklen_t;
    let (fd, pointer) = (fd.as_fd().as_raw_fd(), (&raw const value).cast());
    // SAFETY: the pointer and size are those of a live integer, which the call only reads.
    let rc = unsafe { libc::setsockopt(fd, libc::IPPROTO_TCP, option, pointer, size) };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Sets the longest interval of retransmissions and of probes of a peer without room; a second at
/// most. An error before Linux 6.15.
fn set_interval(fd: impl AsFd, interval: Duration) -> io::Result<()> {
    set(fd, TCP_RTO_MAX_MS, interval.as_millis().clamp(1000, 120_000) as libc::c_int)
}

/// Sets the limit of bytes that have not left for the first time: bytes sent and not acknowledged
/// do not count, so the window is as wide as ever.
fn set_unsent_max(fd: impl AsFd, bytes: u32) -> io::Result<()> {
    set(fd, libc::TCP_NOTSENT_LOWAT, bytes as libc::c_int)
}

/// Bytes of a connection that the other end has not acknowledged, its end included.
pub fn unacknowledged(fd: impl AsFd) -> usize {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the pointer is that of a live integer, the only memory that this call writes.
    let rc = unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    if rc == 0 { usize::try_from(bytes).unwrap_or(0) } else { 0 }
}

/// Whether the other end owes an acknowledgement, of bytes or of a probe, and has acknowledged
/// nothing for so long.
pub fn is_silent(fd: impl AsFd, limit: Duration) -> bool {
    let fd = fd.as_fd();
    #[cfg(any(all(test, not(loom), not(miri)), feature = "simulation"))]
    if let Some(is_silent) = sim::net::is_silent(fd, limit) {
        return is_silent;
    }
    // SAFETY: integers, of which zeros are values.
    let mut info: libc::tcp_info = unsafe { core::mem::zeroed() };
    let mut size = size_of::<libc::tcp_info>() as libc::socklen_t;
    let pointer = (&raw mut info).cast();
    // SAFETY: pointer and size are those of a live structure of integers.
    let rc = unsafe {
        libc::getsockopt(fd.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, pointer, &mut size)
    };
    rc == 0
        && u128::from(info.tcpi_last_ack_recv) >= limit.as_millis()
        && (info.tcpi_probes > 0 || unacknowledged(fd) > 0)
}

/// Blocks SIGPIPE on this thread, and returns whether it would have come since: it is pending then,
/// even if the process ignores it.
#[cfg(all(test, not(loom), not(miri)))]
pub fn is_signalled() -> bool {
    // SAFETY: a set of signals is integers, of which zeros are values, and each pointer is that of
    // a live set, or null if that is allowed.
    unsafe {
        let mut set: libc::sigset_t = core::mem::zeroed();
        libc::sigaddset(&raw mut set, libc::SIGPIPE);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, core::ptr::null_mut());
        libc::sigpending(&raw mut set);
        libc::sigismember(&raw const set, libc::SIGPIPE) == 1
    }
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_this_host_are_told_from_others() {
        for here in ["127.0.0.1:7000", "127.9.9.9:1", "[::ffff:127.0.0.1]:7000"] {
            assert!(is_here(here.parse().unwrap()), "{here}");
        }
        // Addresses for documentation (RFC 5737, RFC 3849) belong to no host.
        for elsewhere in ["192.0.2.1:7000", "[2001:db8::1]:7000", "[::ffff:192.0.2.1]:7000"] {
            assert!(!is_here(elsewhere.parse().unwrap()), "{elsewhere}");
        }
    }
    // As on a load balancer.
    #[test]
    fn an_address_that_the_kernel_would_bind_to_though_it_is_not_here_is_elsewhere() {
        let inside = || {
            // SAFETY: a system call that moves only this thread to another network.
            if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
                return Err(io::Error::last_os_error());
            }
            for family in ["ipv4", "ipv6"] {
                std::fs::write(std::format!("/proc/sys/net/{family}/ip_nonlocal_bind"), "1")?;
            }
            for elsewhere in ["192.0.2.1:7000", "[2001:db8::1]:7000", "[::ffff:192.0.2.1]:7000"] {
                assert!(!is_here(elsewhere.parse().unwrap()), "{elsewhere}");
            }
            UdpSocket::bind("192.0.2.1:0").expect("the kernel binds to anything");
            assert!(is_here("127.0.0.1:7000".parse().unwrap()));
            Ok(())
        };
        if let Err(why) = std::thread::spawn(inside).join().unwrap() {
            let _ = std::io::Write::write_fmt(
                &mut io::stderr().lock(),
                format_args!("SKIPPED: no network namespace, or no settings of its own: {why}\n"),
            );
        }
    }
}
