//! Messages over the kernel's stream sockets, for comparison: a length in front of each, one `write`
//! for each, no delay; a reader takes as much as there is.

use crate::Outcome;
use std::io::{BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

pub struct Socket {
    writer: Box<dyn Write>,
    reader: BufReader<Box<dyn Read>>,
    frame: Vec<u8>,
}

impl Socket {
    fn new(writer: impl Write + 'static, reader: impl Read + 'static) -> Self {
        let reader = BufReader::with_capacity(64 << 10, Box::new(reader) as Box<dyn Read>);
        Self { writer: Box::new(writer), reader, frame: Vec::new() }
    }

    /// A Unix stream socket and a TCP connection over loopback to the other end, by files in `dir`. The
    /// near end comes later, or waits.
    pub fn pair(is_near: bool, dir: &Path) -> Outcome<[Self; 2]> {
        let path = dir.join("perf.socket");
        let (unix, port) = if is_near {
            let mut unix = loop {
                match UnixStream::connect(&path) {
                    Ok(unix) => break unix,
                    Err(_) if dir.exists() => std::thread::yield_now(),
                    Err(e) => return Err(e.into()),
                }
            };
            let mut port = [0; 2];
            unix.read_exact(&mut port)?;
            (unix, u16::from_le_bytes(port))
        } else {
            let listener = UnixListener::bind(&path)?;
            let tcp = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
            let (mut unix, _) = listener.accept()?;
            unix.write_all(&tcp.local_addr()?.port().to_le_bytes())?;
            let (tcp, _) = tcp.accept()?;
            return Self::both(unix, tcp);
        };
        Self::both(unix, TcpStream::connect((Ipv4Addr::LOCALHOST, port))?)
    }

    fn both(unix: UnixStream, tcp: TcpStream) -> Outcome<[Self; 2]> {
        tcp.set_nodelay(true)?;
        Ok([Self::new(unix.try_clone()?, unix), Self::new(tcp.try_clone()?, tcp)])
    }

    pub fn send(&mut self, data: &[u8]) -> Outcome {
        self.frame.clear();
        self.frame.extend_from_slice(&(data.len() as u32).to_le_bytes());
        self.frame.extend_from_slice(data);
        Ok(self.writer.write_all(&self.frame)?)
    }

    pub fn receive(&mut self, to: &mut Vec<u8>) -> Outcome {
        let mut length = [0; 4];
        self.reader.read_exact(&mut length)?;
        to.resize(u32::from_le_bytes(length) as usize, 0);
        Ok(self.reader.read_exact(to)?)
    }
}
