//! A message above 4 GiB. It needs 9 GiB of memory, so it runs only with `HAMLYN_TEST_LARGE=1`.

use crate::support::*;
use hamlyn::MetadataIndex;
use std::time::Instant;

const BYTES: usize = (4 << 30) + 12_345;
const LARGE: &str = "HAMLYN_TEST_LARGE";

/// Each word says where it lies.
fn word(i: usize) -> u64 {
    (i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Not a test: the sender.
#[test]
fn role() {
    let Some(role) = Role::of_this_process() else { return };
    let mut station = Station::new(role.config(), 64, 1);
    let (link, ticket) = station.connect("service");
    let mut data = vec![0; BYTES];
    for (i, chunk) in data.chunks_mut(8).enumerate() {
        chunk.copy_from_slice(&word(i).to_le_bytes()[..chunk.len()]);
    }
    let began = Instant::now();
    station.node.send(&ticket, &data, b"large", LIMIT.map(|limit| limit * 3)).unwrap();
    let seconds = began.elapsed().as_secs_f64();
    say(&format!("{BYTES} bytes in {seconds:.2} s; {}", station.node.explain(link).unwrap()));
    station.node.close(LIMIT).unwrap();
}

#[test]
fn a_message_above_4_gib_arrives_whole() {
    if std::env::var(LARGE).as_deref() != Ok("1") {
        return skipped(&format!("a message above 4 GiB needs 9 GiB of memory and {LARGE}=1"));
    }
    let dir = Dir::new("large", &[]);
    let mut station = Station::new(dir.config(), BYTES, 1).serve("service");
    let mut peer = Peer::start("role", &dir, "");
    station.node.recv(station.queue, LIMIT.map(|limit| limit * 3)).unwrap();
    loud(&peer.says());
    for (i, chunk) in station.bytes().chunks(8).enumerate() {
        assert_eq!(chunk, &word(i).to_le_bytes()[..chunk.len()], "word {i}");
    }
    let entry = station.node.metadata(station.slot, MetadataIndex(0)).unwrap();
    assert_eq!(entry.user(), b"large");
    assert_eq!(counter(&station.node, "bytes_received"), BYTES as u64);
    peer.end();
}
