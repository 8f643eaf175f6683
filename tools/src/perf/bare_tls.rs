//! The comparison for links to other hosts: a bare TCP connection over loopback with TLS 1.3, with
//! the same library and cipher; its two ends are pinned like Hamlyn's, and poll.
//!
//! A message is one record and one write, with its bytes only: no header, no check, no deposit.

use super::clock;
use super::ends::{Plan, Test};
use super::pin::Cores;
use super::stats::RoundTrips;
use super::two_threads;
use anyhow::{Context, Result, bail};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, Connection, RootCertStore, ServerConfig};
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;

const NAME: &str = "localhost";
/// Bytes that one system call takes.
const READ_BYTES: usize = 256 << 10;

struct End {
    tcp: TcpStream,
    tls: Connection,
    raw: Vec<u8>,
    /// The range with data not yet given to TLS.
    there: std::ops::Range<usize>,
}

impl End {
    fn new(tcp: TcpStream, tls: impl Into<Connection>) -> Result<Self> {
        tcp.set_nodelay(true)?;
        tcp.set_nonblocking(true)?;
        Ok(Self { tcp, tls: tls.into(), raw: vec![0; READ_BYTES], there: 0..0 })
    }

    fn write(&mut self, mut message: &[u8]) -> Result<()> {
        while !message.is_empty() {
            let taken = self.tls.writer().write(message)?;
            message = &message[taken..];
            while self.tls.wants_write() {
                match self.tls.write_tls(&mut self.tcp) {
                    Ok(_) => {}
                    Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                    Err(e) => return Err(e.into()),
                }
            }
        }
        Ok(())
    }

    /// Reads at least one byte.
    fn read(&mut self, to: &mut [u8]) -> Result<usize> {
        loop {
            match self.tls.reader().read(to) {
                Ok(0) => bail!("the other end closed the connection"),
                Ok(bytes) => return Ok(bytes),
                Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                Err(e) => return Err(e.into()),
            }
            self.turn()?;
        }
    }

    /// Gives TLS as much of the data as it takes at a time.
    fn turn(&mut self) -> Result<()> {
        if self.there.is_empty() {
            self.there = match self.tcp.read(&mut self.raw) {
                Ok(0) => bail!("the other end closed the connection"),
                Ok(bytes) => 0..bytes,
                Err(e) if e.kind() == ErrorKind::WouldBlock => 0..0,
                Err(e) => return Err(e.into()),
            };
        }
        if !self.there.is_empty() {
            let mut raw = &self.raw[self.there.clone()];
            self.tls.read_tls(&mut raw)?;
            self.there.start = self.there.end - raw.len();
            self.tls.process_new_packets()?;
        }
        while self.tls.is_handshaking() && self.tls.wants_write() {
            match self.tls.write_tls(&mut self.tcp) {
                Err(e) if e.kind() != ErrorKind::WouldBlock => return Err(e.into()),
                _ => {}
            }
        }
        Ok(())
    }

    fn read_exact(&mut self, to: &mut [u8]) -> Result<()> {
        let mut done = 0;
        while done < to.len() {
            done += self.read(&mut to[done..])?;
        }
        Ok(())
    }

    fn agree(&mut self) -> Result<()> {
        while self.tls.is_handshaking() {
            self.turn()?;
        }
        self.write(&[0])?;
        self.read_exact(&mut [0])
    }
}

fn pair() -> Result<[End; 2]> {
    let own = rcgen::generate_simple_self_signed(vec![NAME.to_owned()])?;
    let certificate: CertificateDer<'static> = own.cert.der().clone();
    let key = PrivateKeyDer::try_from(own.signing_key.serialize_der())
        .map_err(|e| anyhow::anyhow!("a key that was just made: {e}"))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = RootCertStore::empty();
    roots.add(certificate.clone())?;
    let versions = &[&rustls::version::TLS13];
    let server = ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(versions)?
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)?;
    let client = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let near = TcpStream::connect(listener.local_addr()?)?;
    let (far, _) = listener.accept()?;
    let client = ClientConnection::new(Arc::new(client), ServerName::try_from(NAME)?)?;
    let server = rustls::ServerConnection::new(Arc::new(server))?;
    Ok([End::new(near, client)?, End::new(far, server)?])
}

/// In the unit of the test: nanoseconds one way, messages or bytes a second.
pub fn measure(cores: Cores, plan: Plan) -> Result<f64> {
    let [mut near, mut far] = pair().context("cannot make a TLS connection over loopback")?;
    let size = plan.size.max(1);
    let (warm_up, count) = ((plan.count / 10).max(1), plan.count);
    let total = warm_up + count;
    let echo = move || -> Result<()> {
        far.agree()?;
        let mut message = vec![0; size];
        match plan.test {
            Test::Latency => {
                for _ in 0..total {
                    far.read_exact(&mut message)?;
                    far.write(&message)?;
                }
            }
            Test::Rate | Test::Bandwidth => {
                message.resize(READ_BYTES.max(size), 0);
                for mut left in [warm_up * size as u64, count * size as u64] {
                    while left > 0 {
                        let most = message.len().min(left as usize);
                        left -= far.read(&mut message[..most])? as u64;
                    }
                    far.write(&[0])?;
                }
            }
        }
        Ok(())
    };
    let ask = move || -> Result<f64> {
        near.agree()?;
        let mut message = vec![7; size];
        match plan.test {
            Test::Latency => {
                let one = || {
                    near.write(&message)?;
                    near.read_exact(&mut message)
                };
                Ok(RoundTrips::make(warm_up, count, one)?.p50)
            }
            Test::Rate | Test::Bandwidth => {
                let mut all = |count: u64| -> Result<()> {
                    for _ in 0..count {
                        near.write(&message)?;
                    }
                    near.read_exact(&mut [0])
                };
                all(warm_up)?;
                let per_s = count as f64 / clock::timed(|| all(count))?;
                Ok(if plan.test == Test::Bandwidth { per_s * size as f64 } else { per_s })
            }
        }
    };
    let (near, far) = two_threads(cores, ask, echo)?;
    far.and(near)
}
