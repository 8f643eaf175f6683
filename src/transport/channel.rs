//! TLS over a TCP connection, without waiting.
//!
//! ```text
//!   socket --receive--> raw --TLS--> plain --take-->
//!   socket <---flush--- TLS <--------------put------
//! ```
//! Never: more of the other end's bytes are kept than the caller asked for; the socket is read
//! while so many are there already, so that TCP's window closes; one call takes more from the
//! socket than a fixed number of bytes, even if they contain no data.

use super::path::{Path, PathEnd};
use crate::os::tcp;
use rustls::Connection;
use std::format;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::string::{String, ToString};
use std::vec::Vec;
use zeroize::Zeroizing;

/// Bytes to read from the socket at a time.
const RAW_BYTES: usize = 64 << 10;
/// Bytes of the first read after a while without any.
const FIRST_BYTES: usize = 2 << 10;
/// Bytes from the socket after which one call takes no more, however little data they contain: a
/// record of TLS may contain one byte, and padding.
const CALL_BYTES: u64 = 256 << 10;

/// A TCP connection with TLS; it is encrypted once [`is_open`](Self::is_open).
#[derive(Debug)]
pub struct Channel {
    tcp: TcpStream,
    tls: Connection,
    raw: Vec<u8>,
    raw_used: usize,
    raw_end: usize,
    /// Bytes read from the socket.
    received: u64,
    /// The last read emptied the socket: it returned less than it had room for.
    is_drained: bool,
    /// A part of it contains the bytes that came and were not taken; it grows, and is never
    /// cleared.
    plain: Vec<u8>,
    plain_used: usize,
    plain_end: usize,
    /// Bytes that TLS has decrypted and that are not in `plain` yet.
    unread: usize,
    ended: Option<PathEnd>,
    /// The connection broke; nothing more can be sent.
    broken: Option<String>,
    /// Everything has been sent; nothing more follows.
    is_shut: bool,
    /// This end has announced its end: it discards everything that comes after that unread. (TLS
    /// sends one last alert; for invalid bytes it would send a second.)
    has_said_end: bool,
}

impl Channel {
    /// Over a nonblocking socket.
    pub fn new(tcp: TcpStream, mut tls: Connection) -> Self {
        // The caller limits the bytes that it puts.
        tls.set_buffer_limit(None);
        Self {
            tcp,
            tls,
            raw: Vec::new(),
            raw_used: 0,
            raw_end: 0,
            received: 0,
            is_drained: false,
            plain: Vec::new(),
            plain_used: 0,
            plain_end: 0,
            unread: 0,
            ended: None,
            broken: None,
            is_shut: false,
            has_said_end: false,
        }
    }

    /// Whether both ends have agreed on keys.
    pub fn is_open(&self) -> bool {
        !self.tls.is_handshaking()
    }

    /// The addresses of this end and the other.
    pub fn addresses(&self) -> io::Result<(SocketAddr, SocketAddr)> {
        tcp::addresses(&self.tcp)
    }

    /// The state of TLS.
    pub fn tls(&self) -> &Connection {
        &self.tls
    }

    /// A key that only the two ends of this connection can compute.
    pub fn key(&self) -> Result<Zeroizing<[u8; 32]>, rustls::Error> {
        self.exported(b"EXPORTER-hamlyn")
    }

    /// Another such key, for the purpose named by `label`.
    pub fn exported(&self, label: &[u8]) -> Result<Zeroizing<[u8; 32]>, rustls::Error> {
        let mut key = Zeroizing::new([0; 32]);
        self.tls.export_keying_material(key.as_mut_slice(), label, None)?;
        Ok(key)
    }

    /// Reads the socket. `false`: no bytes have come, or none will come any more.
    fn receive_raw(&mut self) -> bool {
        (self.raw_used, self.raw_end) = (0, 0);
        if self.raw.is_empty() {
            return self.receive_first();
        }
        let bytes = read_some(&self.tcp, &mut self.raw);
        self.has_read(bytes, RAW_BYTES)
    }

    /// The same without the buffer, which is allocated when bytes come: an idle connection costs no
    /// memory.
    #[cold]
    fn receive_first(&mut self) -> bool {
        let mut first = [0; FIRST_BYTES];
        let bytes = read_some(&self.tcp, &mut first);
        let came = self.has_read(bytes, FIRST_BYTES);
        if came {
            self.raw.resize(RAW_BYTES, 0);
            self.raw[..FIRST_BYTES].copy_from_slice(&first);
        }
        came
    }

    fn has_read(&mut self, bytes: io::Result<usize>, room: usize) -> bool {
        match bytes {
            Ok(0) => self.ended = Some(self.broken.clone().map_or(PathEnd::Cut, PathEnd::Broken)),
            Ok(bytes) => {
                self.raw_end = bytes;
                self.received += bytes as u64;
                self.is_drained = bytes < room;
                return true;
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            Err(e) => self.ended = Some(PathEnd::Broken(e.to_string())),
        }
        false
    }

    /// Whether it has read bytes that TLS has not yet decrypted; the socket does not signal these.
    pub fn holds_more(&self) -> bool {
        self.ended.is_none() && (self.unread > 0 || self.raw_used < self.raw_end)
    }

    fn receive_plain(&mut self, most: usize) -> bool {
        let mut moved = false;
        loop {
            let there = self.plain_end - self.plain_used;
            if there >= most || self.unread == 0 {
                return moved;
            }
            let wanted = (most - there).min(RAW_BYTES);
            if self.plain.len() - self.plain_end < wanted {
                self.plain.copy_within(self.plain_used..self.plain_end, 0);
                (self.plain_used, self.plain_end) = (0, there);
                if self.plain.len() < there + wanted {
                    self.plain.resize(there + wanted, 0);
                }
            }
            let room = self.plain_end..self.plain_end + wanted;
            let read = self.tls.reader().read(&mut self.plain[room]).unwrap_or(0);
            if read == 0 {
                return moved;
            }
            self.plain_end += read;
            self.unread = self.unread.saturating_sub(read);
            moved = true;
        }
    }

    /// Whether there are bytes to flush.
    pub fn wants_write(&self) -> bool {
        self.broken.is_none() && self.tls.wants_write()
    }
}

/// Whether an error describes a fault of a certificate, not one caused on the network.
fn is_of_certificate(error: &rustls::Error) -> bool {
    use rustls::{AlertDescription as Alert, Error};
    match error {
        Error::InvalidCertificate(_) | Error::NoCertificatesPresented => true,
        Error::AlertReceived(alert) => matches!(
            alert,
            Alert::BadCertificate
                | Alert::UnsupportedCertificate
                | Alert::CertificateRevoked
                | Alert::CertificateExpired
                | Alert::CertificateUnknown
                | Alert::CertificateRequired
                | Alert::UnknownCA
                | Alert::DecryptError
        ),
        _ => false,
    }
}

/// The error in words; for an unsupported algorithm, without the bytes of the list of known ones.
fn words(error: &rustls::Error) -> String {
    use rustls::CertificateError as Certificate;
    match error {
        rustls::Error::InvalidCertificate(
            Certificate::UnsupportedSignatureAlgorithmContext { .. }
            | Certificate::UnsupportedSignatureAlgorithmForPublicKeyContext { .. },
        ) => "invalid peer certificate: UnsupportedSignatureAlgorithm".into(),
        error => error.to_string(),
    }
}

fn read_some(mut tcp: &TcpStream, to: &mut [u8]) -> io::Result<usize> {
    loop {
        match tcp.read(to) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            read => return read,
        }
    }
}

impl Path for Channel {
    fn plain(&self) -> &[u8] {
        &self.plain[self.plain_used..self.plain_end]
    }

    fn take(&mut self, bytes: usize) {
        self.plain_used += bytes;
        debug_assert!(self.plain_used <= self.plain_end);
        if self.plain_used == self.plain_end {
            (self.plain_used, self.plain_end) = (0, 0);
        }
    }

    fn receive(&mut self, most: usize) -> bool {
        let (mut moved, before) = (false, self.received);
        self.is_drained = false;
        if self.has_said_end {
            while self.ended.is_none() && self.received - before < CALL_BYTES && self.receive_raw()
            {
                self.raw_used = self.raw_end;
            }
            return false;
        }
        loop {
            moved |= self.receive_plain(most);
            if self.ended.is_some() || self.plain().len() >= most {
                return moved;
            }
            // After a short read, asking the socket again would cost a system call in vain.
            let is_enough = self.is_drained || self.received - before >= CALL_BYTES;
            if self.raw_used == self.raw_end && (is_enough || !self.receive_raw()) {
                return moved;
            }
            moved = true;
            let mut raw = &self.raw[self.raw_used..self.raw_end];
            let read = self.tls.read_tls(&mut raw);
            self.raw_used = self.raw_end - raw.len();
            let processed = match read {
                Ok(_) => {
                    let processed = self.tls.process_new_packets();
                    processed.map_err(|e| (is_of_certificate(&e), words(&e)))
                }
                Err(e) => Err((false, e.to_string())),
            };
            match processed {
                Ok(state) if state.peer_has_closed() => {
                    self.unread = state.plaintext_bytes_to_read();
                    self.receive_plain(usize::MAX);
                    self.ended = Some(PathEnd::Said);
                }
                Ok(state) => self.unread = state.plaintext_bytes_to_read(),
                Err((is_of_certificate, why)) => {
                    // Earlier data can still be read.
                    self.unread = usize::MAX;
                    // Sends the alert to the other end, if possible.
                    self.flush();
                    // Before the handshake is over, the other end may be any program that listens
                    // or connects.
                    let words =
                        "what was sent was changed on the way, or the peer broke the rules of TLS";
                    // With TLS 1.3 a client learns only after the handshake that the server refused
                    // its certificate.
                    let is_plain = is_of_certificate || !self.is_open();
                    let why = if is_plain { why } else { format!("{words}: {why}") };
                    self.ended = Some(PathEnd::Nonsense(why));
                }
            }
        }
    }

    fn is_drained(&self) -> bool {
        // Bytes that are read but not yet decrypted are still there, although the socket has no
        // more.
        self.is_drained && self.raw_used == self.raw_end && self.unread == 0
    }

    fn received(&self) -> u64 {
        self.received
    }

    fn ended(&self) -> Option<&PathEnd> {
        self.ended.as_ref()
    }

    fn put(&mut self, bytes: &[u8]) {
        if self.is_broken() {
            return;
        }
        // Its buffer has no limit, so it takes all.
        let _ = self.tls.writer().write_all(bytes);
    }

    fn flush(&mut self) -> bool {
        while self.wants_write() {
            match self.tls.write_tls(&mut tcp::TcpWriter(&self.tcp)) {
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return false,
                Err(e) => {
                    // Earlier bytes can still be read; the error is reported after them.
                    self.broken = Some(e.to_string());
                    return true;
                }
            }
        }
        true
    }

    fn is_broken(&self) -> bool {
        self.broken.is_some()
    }

    fn put_end(&mut self) {
        self.has_said_end = true;
        self.tls.send_close_notify();
    }

    fn is_delivered(&mut self) -> bool {
        if !self.is_shut {
            self.is_shut = true;
            let _ = self.tcp.shutdown(std::net::Shutdown::Write);
        }
        self.receive(RAW_BYTES);
        let taken = self.plain().len();
        self.take(taken);
        self.ended.is_some() || tcp::unacknowledged(&self.tcp) == 0
    }

    fn break_off(&self) {
        let _ = self.tcp.shutdown(std::net::Shutdown::Both);
    }

    fn tcp(&self) -> BorrowedFd<'_> {
        self.tcp.as_fd()
    }

    fn takes_more(&self) -> Option<BorrowedFd<'_>> {
        Some(self.tcp.as_fd())
    }

    fn may_sleep(&mut self) -> bool {
        true
    }

    fn give_back(&mut self) {
        if self.raw_used == self.raw_end {
            (self.raw, self.raw_used, self.raw_end) = (Vec::new(), 0, 0);
        }
        if self.plain_used == self.plain_end {
            (self.plain, self.plain_used, self.plain_end) = (Vec::new(), 0, 0);
        }
    }

    fn explain(&self) -> String {
        let suite = self.tls.negotiated_cipher_suite();
        let suite = suite.and_then(|suite| suite.suite().as_str()).unwrap_or("TLS 1.3");
        std::format!("TCP with TLS 1.3 ({suite})")
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.tcp.as_fd()
    }
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use super::*;
    use rustls::pki_types::PrivateKeyDer;
    use std::net::TcpListener;
    use std::sync::Arc;

    fn provider() -> Arc<rustls::crypto::CryptoProvider> {
        Arc::new(rustls::crypto::ring::default_provider())
    }

    /// A client over loopback that waits for a server's first message, and the socket that writes
    /// to it.
    fn pair() -> (Channel, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let tcp = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        tcp.set_nonblocking(true).unwrap();
        let config = rustls::ClientConfig::builder_with_provider(provider());
        let config = config.with_safe_default_protocol_versions().unwrap();
        let config =
            config.with_root_certificates(rustls::RootCertStore::empty()).with_no_client_auth();
        let name = "127.0.0.1".try_into().unwrap();
        let tls = rustls::ClientConnection::new(Arc::new(config), name).unwrap();
        (Channel::new(tcp, tls.into()), listener.accept().unwrap().0)
    }

    #[test]
    fn a_read_that_fills_its_buffer_is_followed_by_another_and_a_shorter_one_is_not() {
        // The beginning of a record of TLS, never completed.
        let cases = [(5, true), (FIRST_BYTES - 1, true), (FIRST_BYTES, false)];
        for (bytes, is_drained) in cases {
            let (mut channel, mut other) = pair();
            let mut record = std::vec![0; bytes];
            record[..5].copy_from_slice(&[22, 3, 3, 0x40, 0]);
            other.write_all(&record).unwrap();
            let mut came = false;
            while channel.received() < bytes as u64 {
                came |= channel.receive(1);
            }
            assert!(came);
            assert_eq!(channel.is_drained(), is_drained, "{bytes} bytes");
            // The end, which arrives separately, is found all the same.
            drop(other);
            while channel.ended().is_none() {
                channel.receive(1);
            }
            assert_eq!(channel.ended(), Some(&PathEnd::Cut));
        }
    }

    #[test]
    fn a_host_that_is_gone_is_an_error_and_no_signal() {
        assert!(!tcp::is_signalled());
        let (mut client, server) = open_pair();
        // Unread data turns its end into a reset.
        client.put(b"unread");
        client.flush();
        // Writing, not reading, finds the end, since the server has already shut down its sending
        // side.
        server.tcp.shutdown(std::net::Shutdown::Write).unwrap();
        drop(server);
        while !client.is_broken() {
            client.put(b"to nobody");
            client.flush();
        }
        assert!(!tcp::is_signalled());
    }

    /// Both ends of a connection after the handshake.
    fn open_pair() -> (Channel, Channel) {
        let made = rcgen::generate_simple_self_signed(["127.0.0.1".into()]).unwrap();
        let (certificate, mut roots) = (made.cert.der().clone(), rustls::RootCertStore::empty());
        roots.add(certificate.clone()).unwrap();
        let config = rustls::ClientConfig::builder_with_provider(provider());
        let config = config.with_safe_default_protocol_versions().unwrap();
        let client = Arc::new(config.with_root_certificates(roots).with_no_client_auth());
        let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
        let config = rustls::ServerConfig::builder_with_provider(provider());
        let config = config.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
        let server = Arc::new(config.with_single_cert([certificate].into(), key).unwrap());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let tcp = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let other = listener.accept().unwrap().0;
        for tcp in [&tcp, &other] {
            tcp.set_nonblocking(true).unwrap();
        }
        let name = "127.0.0.1".try_into().unwrap();
        let client = rustls::ClientConnection::new(client, name).unwrap();
        let server = rustls::ServerConnection::new(server).unwrap();
        let (mut client, mut server) =
            (Channel::new(tcp, client.into()), Channel::new(other, server.into()));
        while !client.is_open() || !server.is_open() {
            for end in [&mut client, &mut server] {
                end.flush();
                end.receive(1);
                assert_eq!(end.ended(), None);
            }
        }
        client.flush();
        (client, server)
    }

    // The bytes behind the first record would have stayed until more came: a sleeping thread is
    // woken by bytes in the socket, and the socket was empty.
    #[test]
    fn what_was_read_and_is_not_made_out_yet_is_more_to_come() {
        let (mut client, mut server) = open_pair();
        let bytes: Vec<u8> = (0..20_000u32).map(|i| i as u8).collect();
        client.put(&bytes);
        assert!(client.flush());
        let end = std::time::Instant::now() + core::time::Duration::from_secs(20);
        while rustix::io::ioctl_fionread(&server.tcp).unwrap() < 20_000 {
            assert!(std::time::Instant::now() < end, "it does not arrive");
        }
        assert!(server.receive(16 << 10));
        assert!((16 << 10..20_000).contains(&server.plain().len()));
        assert!(!server.is_drained());
        assert!(server.receive(20_000));
        assert!(server.plain() == bytes);
    }
}
