//! A cable between two hosts, over loopback: it counts, stalls, is slow, and can be cut and mended.
#![allow(dead_code)]

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

#[derive(Default)]
pub struct Inside {
    /// New connections are closed at once.
    pub is_cut: AtomicBool,
    /// Bytes wait here.
    pub is_stalled: AtomicBool,
    ends: AtomicBool,
    /// Bytes that may pass to the server, of all connections.
    pub allowed: AtomicU64,
    /// Bytes that have passed to the server and come back, and connections that were passed on.
    pub passed: AtomicU64,
    returned: AtomicU64,
    pub count: AtomicUsize,
    /// Both ends of each connection that has been passed on, in turn.
    pub live: Mutex<Vec<TcpStream>>,
    /// Each part waits so many microseconds.
    pub delay_us: AtomicU64,
}

/// The way from one host to another, over loopback.
pub struct Cable {
    pub at: SocketAddr,
    pub inside: Arc<Inside>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Cable {
    /// At 127.0.0.`host`. `server` returns the destination of each new connection.
    pub fn to(server: impl Fn() -> SocketAddr + Send + 'static, host: u8) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::new(127, 0, 0, host), 0)).unwrap();
        let at = listener.local_addr().unwrap();
        listener.set_nonblocking(true).unwrap();
        let inside = Arc::new(Inside { allowed: AtomicU64::new(u64::MAX), ..Inside::default() });
        let own = inside.clone();
        let thread = std::thread::spawn(move || {
            std::thread::scope(|scope| {
                while !own.ends.load(Ordering::Relaxed) {
                    let Ok((here, _)) = listener.accept() else {
                        std::thread::sleep(Duration::from_millis(1));
                        continue;
                    };
                    if own.is_cut.load(Ordering::Relaxed) {
                        continue;
                    }
                    let Ok(there) = TcpStream::connect(server()) else { continue };
                    for tcp in [&here, &there] {
                        tcp.set_nonblocking(false).unwrap();
                        tcp.set_nodelay(true).unwrap();
                        own.live.lock().unwrap().push(tcp.try_clone().unwrap());
                    }
                    own.count.fetch_add(1, Ordering::Relaxed);
                    let (from, onto) = (here.try_clone().unwrap(), there.try_clone().unwrap());
                    let inside = &*own;
                    scope.spawn(move || inside.pass(&from, &onto, true));
                    scope.spawn(move || inside.pass(&there, &here, false));
                }
                own.cut();
            });
        });
        Self { at, inside, thread: Some(thread) }
    }

    /// Loses its content, and refuses new connections.
    pub fn cut(&self) {
        self.inside.is_cut.store(true, Ordering::Relaxed);
        self.inside.cut();
    }

    pub fn mend(&self) {
        self.inside.is_stalled.store(false, Ordering::Relaxed);
        self.inside.is_cut.store(false, Ordering::Relaxed);
    }

    /// Bytes that have passed to the server.
    pub fn passed(&self) -> u64 {
        self.inside.passed.load(Ordering::Relaxed)
    }

    /// Bytes that have come back.
    pub fn returned(&self) -> u64 {
        self.inside.returned.load(Ordering::Relaxed)
    }
}

impl Inside {
    fn cut(&self) {
        for tcp in self.live.lock().unwrap().drain(..) {
            let _ = tcp.shutdown(Shutdown::Both);
        }
    }

    fn pass(&self, mut from: &TcpStream, mut to: &TcpStream, counts: bool) {
        let mut bytes = vec![0; 16 << 10];
        loop {
            let held = || {
                self.is_stalled.load(Ordering::Relaxed)
                    || counts
                        && self.passed.load(Ordering::Relaxed)
                            >= self.allowed.load(Ordering::Relaxed)
            };
            while held()
                && !self.ends.load(Ordering::Relaxed)
                && !self.is_cut.load(Ordering::Relaxed)
            {
                std::thread::sleep(Duration::from_micros(200));
            }
            let most = match counts {
                true => {
                    let left =
                        self.allowed.load(Ordering::Relaxed) - self.passed.load(Ordering::Relaxed);
                    (left.max(1) as usize).min(bytes.len())
                }
                false => bytes.len(),
            };
            let Ok(count @ 1..) = from.read(&mut bytes[..most]) else { break };
            match self.delay_us.load(Ordering::Relaxed) {
                0 => {}
                us => std::thread::sleep(Duration::from_micros(us)),
            }
            // Bytes that came while it was stalled wait, too.
            while self.is_stalled.load(Ordering::Relaxed)
                && !self.ends.load(Ordering::Relaxed)
                && !self.is_cut.load(Ordering::Relaxed)
            {
                std::thread::sleep(Duration::from_micros(200));
            }
            // A cable that is cut loses what was in it.
            if self.is_cut.load(Ordering::Relaxed) || to.write_all(&bytes[..count]).is_err() {
                break;
            }
            let all = if counts { &self.passed } else { &self.returned };
            all.fetch_add(count as u64, Ordering::Relaxed);
        }
        let _ = to.shutdown(Shutdown::Both);
        let _ = from.shutdown(Shutdown::Both);
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        self.inside.ends.store(true, Ordering::Relaxed);
        self.inside.cut();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
