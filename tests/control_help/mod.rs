//! What the tests of the control plane share.
#![allow(dead_code)]

use hamlyn::config::Config;
use hamlyn::control::hello::{self, Frame, Hello, Purpose};
use hamlyn::control::*;
use hamlyn::os::{socket, sys};
use hamlyn::wire::NodeId;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Says so past the test harness, which keeps back what a passing test prints.
#[allow(unused_macros)]
macro_rules! skipped {
    ($($what:tt)+) => {{
        use std::io::Write;
        let line = format!("SKIPPED: {}\n", format_args!($($what)+));
        std::io::stderr().write_all(line.as_bytes()).unwrap()
    }};
}

pub const LONG: Duration = Duration::from_secs(20);

/// A directory of a test's own, removed afterwards.
pub struct Dir(pub PathBuf);

impl Dir {
    pub fn new(name: &str) -> Self {
        use std::os::unix::fs::DirBuilderExt;
        let path = std::env::temp_dir().join(format!("hamlyn-test-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::DirBuilder::new().mode(0o700).create(&path).unwrap();
        Self(path)
    }

    pub fn config(&self) -> Config {
        Config::default().dir(self.0.clone()).shared_dir(self.0.join("shared"))
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub fn start(config: &Config, node: u32) -> Control {
    Control::start(config, NodeId(node), Arc::new(move || format!("node {node}\n"))).unwrap()
}

pub fn next(control: &Control) -> ControlEvent {
    let end = Instant::now() + LONG;
    thread_local!(static LEFT: std::cell::RefCell<Vec<(usize, ControlEvent)>> = const { std::cell::RefCell::new(Vec::new()) });
    let key = Arc::as_ptr(control.inbox()) as usize;
    loop {
        let found = LEFT.with_borrow_mut(|left| {
            left.extend(control.inbox().take().into_iter().map(|event| (key, event)));
            left.iter().position(|row| row.0 == key).map(|at| left.remove(at).1)
        });
        if let Some(event) = found {
            return event;
        }
        assert!(Instant::now() < end, "no event came");
        control.run_once(Duration::from_millis(1)).unwrap();
    }
}

pub fn name(text: &str) -> ServiceName {
    text.parse().unwrap()
}

/// Two control planes with one link between them.
pub fn linked(config: &Config) -> (Control, NewLink, Control, NewLink) {
    let (server, client) = (start(config, 1), start(config, 2));
    server.serve(&name("x"), Access::SameUser, Accept::Automatic(b"welcome".to_vec())).unwrap();
    let ours = client.connect(&name("x"), b"hello", LONG).unwrap();
    let ControlEvent::Connected(theirs) = next(&server) else { panic!() };
    (server, theirs, client, ours)
}

pub fn counter(control: &Control, name: &str) -> u64 {
    let name = format!("control.{name}");
    control.counters().iter().find(|row| row.0 == name).unwrap().1
}

/// Waits until `is_so`.
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + LONG;
    while !is_so() {
        assert!(Instant::now() < end, "it never came to be that {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Descriptors of this process.
pub fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// The first words of an honest client.
pub fn hello_of(purpose: Purpose) -> Hello {
    Hello {
        version: (hello::VERSION_MAJOR, hello::VERSION_MINOR),
        purpose,
        features: 3,
        features_required: 0,
        node: 9,
        ring_bytes: 4096,
        incoming_ring_bytes_max: 65536,
        packet_bytes: 1024,
        cookie: [0; 16],
        token: [0; 32],
        greeting: Vec::new(),
    }
}

/// A stranger's connection to the service `x`.
pub fn stranger(dir: &Dir) -> OwnedFd {
    let deadline = sys::monotonic_ns() + LONG.as_nanos() as u64;
    socket::connect(&dir.0.join("x"), true, deadline).unwrap()
}

/// The next frame and the descriptors that came with it; `None` at the end.
pub fn receive(fd: &OwnedFd) -> Option<(Frame, Vec<OwnedFd>)> {
    use std::os::fd::AsFd;
    let deadline = sys::monotonic_ns() + LONG.as_nanos() as u64;
    assert!(sys::wait_for(&[(fd.as_fd(), false)], deadline).unwrap(), "nothing came");
    let mut buffer = vec![0; hello::FRAME_BYTES_MAX];
    let received = socket::receive(fd, &mut buffer).unwrap();
    (received.bytes != 0)
        .then(|| (Frame::from_bytes(&buffer[..received.bytes]).unwrap(), received.descriptors))
}

pub fn send(fd: &OwnedFd, frame: &Frame) {
    let _ = socket::send(fd, &frame.to_bytes(), &[]);
}

/// The peer says no for this reason, and then nothing more.
pub fn expect_refusal(fd: &OwnedFd, wanted: Reason) -> String {
    let Some((Frame::Refused { reason, text, .. }, _)) = receive(fd) else { panic!("no refusal") };
    assert_eq!(reason, wanted, "{text}");
    assert!(receive(fd).is_none());
    text
}
