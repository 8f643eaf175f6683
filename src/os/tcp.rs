//! TCP as links to other hosts use it: sockets that never wait, but for [`connect`], and what the kernel
//! knows of the host at the other end.
//!
//! In a simulation the network is that of `sim::net`, and the sockets are others; whoever calls this does
//! not notice.

use super::call::OfCall;
use core::time::Duration;
use rustix::net::{SendAncillaryBuffer, SendFlags};
use std::io::{self, IoSlice};
use std::net::{IpAddr, SocketAddr, SocketAddrV6, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};

#[cfg(all(test, not(loom), not(miri)))]
use super::sim;

/// Linux 6.15: the longest interval, in milliseconds, at which the kernel sends again what was not
/// acknowledged, and asks whoever has no room.
const TCP_RTO_MAX_MS: libc::c_int = 44;

/// Connections that the kernel keeps for [`accept`], or as many as the host's `net.core.somaxconn` says.
/// Whoever comes when there is no room tries again a second later, honest or not.
const WAITING_MAX: i32 = 4096;

/// Listens, without waiting in [`accept`].
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    #[cfg(all(test, not(loom), not(miri)))]
    if sim::is_running() {
        return sim::net::listen(address);
    }
    let listener = TcpListener::bind(address).of_call("bind")?;
    // It listens already, and for fewer: the kernel takes the new number.
    rustix::net::listen(&listener, WAITING_MAX).of_call("listen")?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Where it listens.
pub fn listens_at(listener: &TcpListener) -> io::Result<SocketAddr> {
    #[cfg(all(test, not(loom), not(miri)))]
    if let Some(address) = sim::net::listens_at(listener) {
        return Ok(address);
    }
    listener.local_addr()
}

/// The next that has connected; `WouldBlock`: there is none.
pub fn accept(listener: &TcpListener) -> io::Result<(TcpStream, SocketAddr)> {
    #[cfg(all(test, not(loom), not(miri)))]
    if let Some(accepted) = sim::net::accept(listener) {
        return accepted;
    }
    listener.accept()
}

/// Connects, and waits for that no longer than this.
pub fn connect(address: &SocketAddr, within: Duration) -> io::Result<TcpStream> {
    #[cfg(all(test, not(loom), not(miri)))]
    if sim::is_running() {
        return sim::net::connect(*address, within);
    }
    TcpStream::connect_timeout(address, within)
}

/// Whether an address is one of this host's, as this process's network namespace has it. Nothing is sent.
/// Of one that the system does not name (a route of type `local` alone leads to it) the answer is no.
pub fn is_here(address: SocketAddr) -> bool {
    #[cfg(all(test, not(loom), not(miri)))]
    if sim::is_running() {
        return sim::net::is_here(address);
    }
    // What an IPv6 listener calls an IPv4 address.
    let ip = address.ip().to_canonical();
    if ip.is_loopback() || ip.is_unspecified() {
        return true;
    }
    // The kernel binds a socket to what is its own; with `ip_nonlocal_bind` to anything.
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

/// Whether an interface has this address, in this scope if it says one.
fn is_of_an_interface(ip: IpAddr, scope: u32) -> io::Result<bool> {
    let mut first: *mut libc::ifaddrs = core::ptr::null_mut();
    // SAFETY: the pointer is that of a live one, which the call sets.
    if unsafe { libc::getifaddrs(&raw mut first) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let (mut next, mut is_found) = (first, false);
    while !next.is_null() && !is_found {
        // SAFETY: the list is this function's until it is freed below, and nobody changes it.
        let entry = unsafe { &*next };
        if !entry.ifa_addr.is_null() {
            // SAFETY: as above; each kind of address begins with its family.
            let family = libc::c_int::from(unsafe { (*entry.ifa_addr).sa_family });
            is_found = match (family, ip) {
                (libc::AF_INET, IpAddr::V4(v4)) => {
                    let at = entry.ifa_addr.cast::<libc::sockaddr_in>();
                    // SAFETY: an address of this family is such a structure, at whatever place.
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
    // SAFETY: the list that the call above has made, which nothing refers to any more.
    unsafe { libc::freeifaddrs(first) };
    Ok(is_found)
}

/// The addresses of this end and the other.
pub fn addresses(tcp: &TcpStream) -> io::Result<(SocketAddr, SocketAddr)> {
    #[cfg(all(test, not(loom), not(miri)))]
    if let Some(addresses) = sim::net::addresses(tcp) {
        return Ok(addresses);
    }
    Ok((tcp.local_addr()?, tcp.peer_addr()?))
}

/// A socket that never waits, sends at once, takes no more than `unsent_bytes` that have not left, and asks a
/// host that says nothing often enough for `timeout`.
pub fn prepare(tcp: &TcpStream, unsent_bytes: u32, timeout: Duration) -> io::Result<()> {
    use rustix::net::sockopt;
    tcp.set_nonblocking(true)?;
    #[cfg(all(test, not(loom), not(miri)))]
    if sim::is_running() {
        return Ok(());
    }
    tcp.set_nodelay(true)?;
    set_unsent_max(tcp, unsent_bytes)?;
    // Whoever has no room is asked as often as one that is idle; before Linux 6.15 the kernel does
    // that at ever longer intervals, and has to end it itself.
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

/// Pieces of a connection's bytes that one system call takes: records of TLS, of up to 16 KiB. As many
/// are named in capi/valgrind.supp.
const PIECES_MAX: usize = 8;

/// Writes to a connection, and says by an error that its other end is gone. `TcpStream` itself writes
/// several slices with `writev`, which says so by SIGPIPE, and that ends a program of C.
pub struct Writer<'a>(pub &'a TcpStream);

impl io::Write for Writer<'_> {
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

/// It sends again, and asks whoever has no room, at least as often as this, or once a second. An error
/// before Linux 6.15.
fn set_interval(fd: impl AsFd, interval: Duration) -> io::Result<()> {
    set(fd, TCP_RTO_MAX_MS, interval.as_millis().clamp(1000, 120_000) as libc::c_int)
}

/// It takes no more while so many bytes have not left for the first time: what was sent and not
/// acknowledged does not count, and so the window is as wide as ever.
fn set_unsent_max(fd: impl AsFd, bytes: u32) -> io::Result<()> {
    set(fd, libc::TCP_NOTSENT_LOWAT, bytes as libc::c_int)
}

/// Bytes that a connection was given and the other end has not acknowledged, its end included.
pub fn unacknowledged(fd: impl AsFd) -> usize {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the pointer is that of a live integer, which is what this call writes.
    let rc = unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    if rc == 0 { usize::try_from(bytes).unwrap_or(0) } else { 0 }
}

/// Whether the other end owes an acknowledgement, of bytes or of the kernel's question whether it is
/// there, and has acknowledged nothing for so long.
pub fn is_silent(fd: impl AsFd, limit: Duration) -> bool {
    let fd = fd.as_fd();
    #[cfg(all(test, not(loom), not(miri)))]
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

/// Keeps SIGPIPE from this thread, and says whether it would have come since: it is pending then, also
/// where the process ignores it.
#[cfg(all(test, not(loom), not(miri)))]
pub fn is_signalled() -> bool {
    // SAFETY: a set of signals is integers, of which zeros are values, and each pointer is that of a live
    // one, or null where that is allowed.
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
        // Those of documentation (RFC 5737, RFC 3849) are nobody's.
        for elsewhere in ["192.0.2.1:7000", "[2001:db8::1]:7000", "[::ffff:192.0.2.1]:7000"] {
            assert!(!is_here(elsewhere.parse().unwrap()), "{elsewhere}");
        }
    }
    // As on a load balancer.
    #[test]
    fn an_address_that_the_kernel_would_bind_to_though_it_is_not_here_is_elsewhere() {
        let inside = || {
            // SAFETY: a system call by which this thread alone is in another network.
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
