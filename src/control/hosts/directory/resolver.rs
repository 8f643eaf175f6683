//! Asks the DNS for the places of a service, on a thread that may wait: SRV records (RFC 2782).
//!
//! ```text
//!   look_up --> ask --question--> the servers in turn, by UDP; by TCP after a truncated answer
//!                   <--reply----- the first valid answer
//! ```
//! If the directory names no server, this asks those of `/etc/resolv.conf`, with its options
//! `timeout` and `attempts`, and the system finds the hosts' addresses; else it asks that server
//! for those, too. There is no cache: name servers have one.
//!
//! Each question has a random number and source port that an attacker has to guess, and the socket
//! accepts datagrams from that server alone. Without DNSSEC no more is possible, and it is not
//! enough to trust an answer: see docs/security-hosts.md.
//!
//! Never: it goes on after the caller's time limit; more is kept than one message, of at most 64
//! KiB.

use super::error::HostDirectoryError;
use super::records::{DnsReply, Question, RecordKind, SrvRecord};
use crate::os::sys::monotonic_ns;
use crate::os::tcp;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::time::Duration;
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{SocketAddrV6, TcpStream, UdpSocket};
use std::path::Path;
use std::string::String;
use std::sync::Arc;
use std::vec::Vec;
use std::{format, vec};

/// Port of a name server (RFC 1035).
const PORT: u16 = 53;
/// Longest label, of which the first character is the `_` of a service.
const LABEL_BYTES_MAX: usize = 63;
/// Longest name, as text without the dot at its end.
const NAME_BYTES_MAX: usize = 253;
/// Longest datagram: larger than any that is asked for.
const DATAGRAM_BYTES: usize = 4096;
/// The default time for a server's answer, and the default number of attempts.
const TIMEOUT: Duration = Duration::from_secs(5);
const ATTEMPTS: u32 = 2;
/// The upper limits of the same.
const TIMEOUT_MAX: Duration = Duration::from_secs(30);
const ATTEMPTS_MAX: u32 = 5;
/// Most name servers to ask (resolv.conf(5)).
const SERVERS_MAX: usize = 3;
/// Longest such file, in bytes.
const RESOLV_CONF_BYTES: u64 = 64 << 10;

/// The servers, and the limits for asking them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolver {
    servers: Vec<SocketAddr>,
    timeout: Duration,
    attempts: u32,
}

/// The SRV records of a service, in an order that is the same in each look-up, and the resolver for
/// the addresses of their hosts; `None`: the system's.
pub fn look_up(
    domain: &str,
    server: Option<SocketAddr>,
    service: &str,
    until_ns: u64,
) -> Result<(Vec<SrvRecord>, Option<Arc<Resolver>>), HostDirectoryError> {
    let name = name_of(service, domain)?;
    let own = server.map(|server| Arc::new(Resolver::of(vec![server])));
    let system = || Arc::new(Resolver::of_system(Path::new("/etc/resolv.conf")));
    let asked = own.clone().unwrap_or_else(system);
    match asked.ask(&name, RecordKind::Service, until_ns)? {
        DnsReply::Services(mut found) => {
            // Servers change the order of records, but a link's rails need the same each time.
            found.sort();
            Ok((found, own))
        }
        DnsReply::NotAvailable => Err(HostDirectoryError::NotAvailable(name)),
        _ => Err(HostDirectoryError::NoRecord(name)),
    }
}

/// The name of the SRV records of a service.
fn name_of(service: &str, domain: &str) -> Result<String, HostDirectoryError> {
    let wrong = |why| {
        let (service, domain) = (service.into(), domain.into());
        HostDirectoryError::NoLabel { service, domain, why }
    };
    let known = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    if service.len() >= LABEL_BYTES_MAX || !service.bytes().all(known) {
        let most = LABEL_BYTES_MAX - 1;
        return Err(wrong(format!("there a service's name has at most {most} of a-z A-Z 0-9 - _")));
    }
    let name = format!("_{service}._tcp.{domain}");
    if name.len() > NAME_BYTES_MAX {
        return Err(wrong(format!("{} bytes, and {NAME_BYTES_MAX} are most", name.len())));
    }
    Ok(name)
}

impl Resolver {
    fn of(servers: Vec<SocketAddr>) -> Self {
        Self { servers, timeout: TIMEOUT, attempts: ATTEMPTS }
    }

    /// The system's servers; if it names none, the one on this host.
    fn of_system(file: &Path) -> Self {
        let mut text = Vec::new();
        let read = File::open(file).and_then(|file| {
            let taken = file.take(RESOLV_CONF_BYTES);
            { taken }.read_to_end(&mut text)
        });
        if read.is_err() {
            text.clear();
        }
        // Invalid lines are skipped, like in the C library.
        let (found, _) = resolv_conf::Config::parse_with_errors(&text);
        let servers = found.get_nameservers_or_local().into_iter().take(SERVERS_MAX).map(address);
        let mut resolver = Self::of(servers.collect());
        let timeout = Duration::from_secs(found.timeout.into());
        resolver.timeout = timeout.clamp(Duration::from_secs(1), TIMEOUT_MAX);
        resolver.attempts = found.attempts.clamp(1, ATTEMPTS_MAX);
        resolver
    }

    /// A host's addresses, IPv6 first.
    pub fn addresses(&self, host: &str, port: u16, until_ns: u64) -> io::Result<Vec<SocketAddr>> {
        if let Ok(address) = host.parse::<IpAddr>() {
            return Ok(vec![SocketAddr::new(address, port)]);
        }
        let (mut found, mut failed) = (Vec::new(), None);
        // Some name servers do not answer one of the two questions (RFC 4074): that one gets half
        // of the time.
        let now = monotonic_ns();
        let half = now.saturating_add(until_ns.saturating_sub(now) / 2);
        for (kind, until_ns) in [(RecordKind::V6, half), (RecordKind::V4, until_ns)] {
            match self.ask(host, kind, until_ns) {
                Ok(DnsReply::Addresses(addresses)) => {
                    found.extend(addresses.into_iter().map(|a| SocketAddr::new(a, port)));
                }
                Ok(_) => {}
                // Addresses of the other kind may exist.
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        match failed {
            Some(error) if found.is_empty() => Err(io::Error::other(error)),
            _ => Ok(found),
        }
    }

    /// The answer of the first server that gives one.
    fn ask(
        &self,
        name: &str,
        kind: RecordKind,
        until_ns: u64,
    ) -> Result<DnsReply, HostDirectoryError> {
        let mut said: Vec<String> = vec![String::new(); self.servers.len()];
        for _ in 0..self.attempts {
            for (server, said) in self.servers.iter().zip(&mut said) {
                let now = monotonic_ns();
                if now >= until_ns {
                    break;
                }
                let timeout = now.saturating_add(self.timeout.as_nanos() as u64);
                let until_ns = timeout.min(until_ns);
                let mut number = [0; 2];
                if let Err(error) = getrandom::fill(&mut number) {
                    *said = format!("{server}: no random number: {error}");
                    continue;
                }
                let name: String = name.into();
                let question = match Question::new(u16::from_ne_bytes(number), &name, kind) {
                    Ok(question) => question,
                    Err(why) => return Err(HostDirectoryError::Answer { name, why }),
                };
                *said = match exchange(*server, &question, until_ns) {
                    Ok(DnsReply::Failed(why)) => format!("{server}: {why}"),
                    Ok(DnsReply::Wrong(why)) => {
                        return Err(HostDirectoryError::Answer { name, why });
                    }
                    Ok(reply) => return Ok(reply),
                    Err(error) if is_late(&error) => format!("{server}: it does not answer"),
                    Err(error) => format!("{server}: {error}"),
                };
            }
        }
        said.retain(|said| !said.is_empty());
        let why = if said.is_empty() { "there was no time".into() } else { said.join("; ") };
        Err(HostDirectoryError::Unanswered { name: name.into(), why })
    }
}

fn address(server: resolv_conf::ScopedIp) -> SocketAddr {
    match server {
        resolv_conf::ScopedIp::V4(address) => SocketAddr::new(address.into(), PORT),
        resolv_conf::ScopedIp::V6(address, scope) => {
            let scope = scope.and_then(|scope| tcp::interface(&scope).ok());
            SocketAddrV6::new(address, PORT, 0, scope.unwrap_or(0)).into()
        }
    }
}

/// Asks one server; the answer is never [`Reply::Foreign`] nor [`Reply::Cut`].
fn exchange(server: SocketAddr, question: &Question, until_ns: u64) -> io::Result<DnsReply> {
    let any: IpAddr = match server {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect(server)?;
    socket.send(question.bytes())?;
    let mut bytes = [0; DATAGRAM_BYTES];
    loop {
        socket.set_read_timeout(Some(left(until_ns)?))?;
        let length = match socket.recv(&mut bytes) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            received => received?,
        };
        match question.reply(&bytes[..length]) {
            DnsReply::Foreign => {}
            DnsReply::Cut => return exchange_by_tcp(server, question, until_ns),
            reply => return Ok(reply),
        }
    }
}

fn exchange_by_tcp(server: SocketAddr, question: &Question, until_ns: u64) -> io::Result<DnsReply> {
    let mut tcp = TcpStream::connect_timeout(&server, left(until_ns)?)?;
    let length = question.bytes().len() as u16;
    tcp.set_write_timeout(Some(left(until_ns)?))?;
    tcp.write_all(&[&length.to_be_bytes(), question.bytes()].concat())?;
    let mut length = [0; 2];
    read_all(&mut tcp, &mut length, until_ns)?;
    let mut bytes = vec![0; u16::from_be_bytes(length).into()];
    read_all(&mut tcp, &mut bytes, until_ns)?;
    match question.reply(&bytes) {
        DnsReply::Foreign => Err(io::Error::other("by TCP it does not answer the question")),
        DnsReply::Cut => Err(io::Error::other("by TCP, too, it says that its answer is cut")),
        reply => Ok(reply),
    }
}

fn read_all(tcp: &mut TcpStream, mut bytes: &mut [u8], until_ns: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        tcp.set_read_timeout(Some(left(until_ns)?))?;
        match tcp.read(bytes) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(length) => bytes = &mut bytes[length..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn left(until_ns: u64) -> io::Result<Duration> {
    match until_ns.saturating_sub(monotonic_ns()) {
        0 => Err(io::ErrorKind::TimedOut.into()),
        left => Ok(Duration::from_nanos(left)),
    }
}

fn is_late(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn a_service_is_a_label_of_its_name_in_the_dns() {
        assert_eq!(name_of("quotes-2_b", "a.org").unwrap(), "_quotes-2_b._tcp.a.org");
        for service in ["a.b", &"a".repeat(63)] {
            let error = name_of(service, "a.org").unwrap_err().to_string();
            assert!(error.contains("at most 62 of a-z"), "{error}");
            assert!(error.contains(&format!("\"{service}\"")), "{error}");
        }
        let domain = ["a".repeat(60), "b".repeat(60), "c".repeat(60), "d".repeat(60)].join(".");
        name_of("a", &domain).unwrap();
        let error = name_of("quotes", &domain).unwrap_err().to_string();
        assert!(error.contains("256 bytes, and 253 are most"), "{error}");
    }

    #[test]
    fn name_servers_and_their_options_are_those_of_resolv_conf() {
        let dir = std::env::temp_dir();
        let file = dir.join(format!("hamlyn-resolv-conf-{}", std::process::id()));
        let read = |text: &str| {
            std::fs::write(&file, text).unwrap();
            Resolver::of_system(&file)
        };
        let text = "# ours\nnameserver 192.0.2.1\nnameserver 2001:db8::1\nsearch a b\n\
                    options timeout:2 attempts:3 ndots:2\nnonsense\nnameserver fe80::1%3\n\
                    nameserver 192.0.2.4\n";
        let found = read(text);
        let v6 = |address: &str, scope| SocketAddrV6::new(address.parse().unwrap(), 53, 0, scope);
        let expected = ["192.0.2.1:53".parse().unwrap(), v6("2001:db8::1", 0).into()];
        assert_eq!(found.servers[..2], expected);
        assert_eq!(found.servers[2..], [SocketAddr::from(v6("fe80::1", 3))]);
        assert_eq!((found.timeout, found.attempts), (Duration::from_secs(2), 3));
        let found = read("options timeout:0 attempts:4000000000\n");
        assert!(found.servers.contains(&"127.0.0.1:53".parse().unwrap()), "{found:?}");
        assert_eq!((found.timeout, found.attempts), (Duration::from_secs(1), 5));
        std::fs::remove_file(&file).unwrap();
        assert_eq!(Resolver::of_system(&file), Resolver::of_system(Path::new("/nowhere")));
    }
}
