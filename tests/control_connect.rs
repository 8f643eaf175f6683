//! Connecting, accepting, closing, bulk rings and statistics between two control planes.
#![cfg(feature = "os")]

use hamlyn::config::Config;
use hamlyn::control::*;
use hamlyn::link::ring::{RingReader, RingWriter};
use hamlyn::link::{Body, Transmit};
use hamlyn::wire::{Flags, Header, Key, MetadataIndex, NodeId, SlotIndex};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(20);

/// A directory of a test's own, removed afterwards.
struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Self {
        use std::os::unix::fs::DirBuilderExt;
        let path = std::env::temp_dir().join(format!("hamlyn-test-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::DirBuilder::new().mode(0o700).create(&path).unwrap();
        Self(path)
    }

    fn config(&self) -> Config {
        Config::default().dir(self.0.clone()).shared_dir(self.0.join("shared"))
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn start(config: &Config, node: u32) -> Control {
    Control::start(config, NodeId(node), Arc::new(move || format!("node {node}\n"))).unwrap()
}

fn next(control: &Control) -> ControlEvent {
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

fn name(text: &str) -> ServiceName {
    text.parse().unwrap()
}

/// Two control planes with one link between them.
fn linked(config: &Config) -> (Control, NewLink, Control, NewLink) {
    let (server, client) = (start(config, 1), start(config, 2));
    server.serve(&name("x"), Access::SameUser, Accept::Automatic(b"welcome".to_vec())).unwrap();
    let ours = client.connect(&name("x"), b"hello", LONG).unwrap();
    let ControlEvent::Connected(theirs) = next(&server) else { panic!() };
    (server, theirs, client, ours)
}

fn counter(control: &Control, name: &str) -> u64 {
    let name = format!("control.{name}");
    control.counters().iter().find(|row| row.0 == name).unwrap().1
}

fn header() -> Header {
    Header {
        destination: NodeId(1),
        slot: SlotIndex(2),
        metadata_index: MetadataIndex(3),
        key: Key(4),
        offset: 5,
        length: 100,
        delta: 0,
        metadata_len: 0,
        flags: Flags::NOTIFY,
        word: 0,
    }
}

/// A packet of 100 bytes goes through.
fn pass(from: (&NewLink, &NewLink)) {
    let mut writer = RingWriter::new(from.0.outgoing.lines(), from.0.incoming.freed(), 16384);
    let mut reader = RingReader::new(from.1.incoming.lines(), from.1.outgoing.freed());
    assert!(reader.peek().unwrap().is_none());
    writer.transmit(&header(), &[], &[7u8; 100][..]).unwrap();
    let packet = reader.peek().unwrap().unwrap();
    assert_eq!(packet.header, header());
    let mut data = [0; 100];
    packet.copy_data(&mut data);
    assert_eq!(data, [7; 100]);
    let lines = packet.lines();
    reader.release(lines);
    reader.publish();
    assert!(writer.is_drained() && writer.violation().is_none());
}

#[test]
fn a_link_carries_packets_both_ways() {
    let dir = Dir::new("packets");
    let (server, theirs, client, ours) = linked(&dir.config());
    assert_eq!((ours.peer.node, &ours.greeting[..]), (NodeId(1), &b"welcome"[..]));
    assert_eq!((theirs.peer.node, &theirs.greeting[..]), (NodeId(2), &b"hello"[..]));
    assert_eq!(theirs.peer.pid, Some(std::process::id()));
    assert!(ours.initiated_by_us && !theirs.initiated_by_us);
    assert_eq!(ours.features, theirs.features);
    pass((&ours, &theirs));
    pass((&theirs, &ours));
    // One byte wakes, each way.
    for (a, b) in [(&ours, &theirs), (&theirs, &ours)] {
        hamlyn::os::socket::send(&a.wake, &[1], &[]).unwrap();
        assert_eq!(hamlyn::os::socket::receive(&b.wake, &mut [0; 8]).unwrap().bytes, 1);
    }
    client.close(ours.token);
    let ControlEvent::Closed { token, reason } = next(&server) else { panic!() };
    assert_eq!((token, reason), (theirs.token, CloseReason::Graceful));
}
