//! What a stranger can try on a control socket, on either side of it, and what becomes of it.
#![cfg(feature = "os")]

#[macro_use]
mod control_help;

use control_help::*;
use hamlyn::control::hello::{Frame, Hello, Offer, Purpose, VERSION_MAJOR, VERSION_MINOR, Writer};
use hamlyn::control::*;
use hamlyn::os::memory::{self, Region, SEALS_READ_ONLY, SEALS_SIZE, region_bytes};
use hamlyn::os::{socket, sys};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

fn served(dir: &Dir) -> Control {
    let server = start(&dir.config(), 1);
    server.serve(&name("x"), Access::SameUser, Accept::Automatic(vec![])).unwrap();
    server
}

/// An honest client still gets a link.
fn still_serves(dir: &Dir) {
    start(&dir.config(), 77).connect(&name("x"), b"", LONG).unwrap();
}

#[test]
fn another_major_version_is_refused_with_both_numbers() {
    let dir = Dir::new("version");
    let server = served(&dir);
    let fd = stranger(&dir);
    let hello = Hello { version: (VERSION_MAJOR + 1, 4), ..hello_of(Purpose::Link) };
    send(&fd, &Frame::Hello(hello));
    let text = expect_refusal(&fd, Reason::Version);
    let both = format!(
        "this process speaks version {VERSION_MAJOR}.{VERSION_MINOR}, and not {}.4",
        VERSION_MAJOR + 1
    );
    assert_eq!(text, both);
    assert_eq!(counter(&server, "refused_version"), 1);
    still_serves(&dir);
}

#[test]
fn a_newer_minor_version_gets_the_common_features() {
    let dir = Dir::new("minor");
    let _server = served(&dir);
    let fd = stranger(&dir);
    let version = (VERSION_MAJOR, VERSION_MINOR + 9);
    send(&fd, &Frame::Hello(Hello { version, features: u64::MAX, ..hello_of(Purpose::Link) }));
    let (Frame::Offer(offer), _) = receive(&fd).unwrap() else { panic!() };
    assert_eq!(offer.features & !LinkFeatures::all().bits(), 0);
    assert_ne!(offer.features, 0);
}

#[test]
fn a_client_learns_that_the_server_has_another_version() {
    let dir = Dir::new("serverversion");
    let error = against(&dir, |fd| {
        receive(&fd);
        let reason = Reason::Version;
        send(&fd, &Frame::Refused { reason, version: (9, 2), text: String::new() });
    });
    let ConnectError::Version { ours, theirs } = error else { panic!("{error}") };
    assert_eq!((ours, theirs), ((VERSION_MAJOR, VERSION_MINOR), (9, 2)));
}

#[test]
fn a_feature_that_is_required_and_missing_is_refused() {
    let dir = Dir::new("feature");
    let server = served(&dir);
    let fd = stranger(&dir);
    send(&fd, &Frame::Hello(Hello { features_required: 1 << 40, ..hello_of(Purpose::Link) }));
    expect_refusal(&fd, Reason::Feature);
    assert_eq!(counter(&server, "refused_feature"), 1);
}

#[test]
fn garbage_is_refused_and_counted() {
    let dir = Dir::new("garbage");
    let server = served(&dir);
    for bytes in [&b"GET / HTTP/1.1\r\n"[..], &[0; 16384], &[0xff; 3], b"HMLN"] {
        let fd = stranger(&dir);
        socket::send(&fd, bytes, &[]).unwrap();
        expect_refusal(&fd, Reason::Malformed);
    }
    // Too long for any frame.
    let fd = stranger(&dir);
    let mut long = Frame::Hello(hello_of(Purpose::Link)).to_bytes();
    long.resize(20_000, 0);
    socket::send(&fd, &long, &[]).unwrap();
    expect_refusal(&fd, Reason::Malformed);
    // Out of turn.
    for frame in [Frame::Filled, Frame::Ready, Frame::Bye, Frame::BulkRequest { bytes: 4096 }] {
        let fd = stranger(&dir);
        send(&fd, &frame);
        expect_refusal(&fd, Reason::Malformed);
    }
    assert_eq!(counter(&server, "refused_frame"), 9);
    // Impossible sizes.
    for (ring_bytes, incoming_ring_bytes_max, packet_bytes) in
        [(513, 65536, 64), (0, 65536, 64), (u32::MAX, 65536, 64), (4096, 0, 64), (4096, 4096, 0)]
    {
        let fd = stranger(&dir);
        let hello = hello_of(Purpose::Link);
        send(
            &fd,
            &Frame::Hello(Hello { ring_bytes, incoming_ring_bytes_max, packet_bytes, ..hello }),
        );
        expect_refusal(&fd, Reason::Malformed);
    }
    still_serves(&dir);
}

#[test]
fn random_frames_change_nothing_for_others() {
    let dir = Dir::new("random");
    let server = served(&dir);
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    };
    for _ in 0..300 {
        let fd = stranger(&dir);
        let purpose = [Purpose::Link, Purpose::Wake, Purpose::Stat][random() as usize % 3];
        let mut frames = [
            Frame::Hello(hello_of(purpose)),
            Frame::Filled,
            Frame::Bye,
            Frame::BulkRequest { bytes: random() as u32 },
            Frame::BulkFilled { writer: Writer::Client },
            Frame::BulkFilled { writer: Writer::Server },
        ];
        let n = 1 + random() as usize % 6;
        frames.rotate_left(if random() % 4 == 0 { n % 6 } else { 0 });
        for frame in &frames[..n] {
            let mut bytes = frame.to_bytes();
            if random() % 3 == 0 {
                let at = random() as usize % bytes.len();
                bytes[at] ^= 1 << (random() % 8);
            }
            let _ = socket::send(&fd, &bytes, &[]);
        }
    }
    still_serves(&dir);
    assert_eq!(counter(&server, "links"), 1);
}

#[test]
fn a_connection_that_never_speaks_is_dropped_while_others_connect() {
    let dir = Dir::new("silent");
    let server = start(&dir.config().handshake_timeout_ms(300u32), 1);
    server.serve(&name("x"), Access::SameUser, Accept::Automatic(vec![])).unwrap();
    let begin = Instant::now();
    let fd = stranger(&dir);
    // It stops half way, too: after HELLO, without FILLED.
    let half = stranger(&dir);
    send(&half, &Frame::Hello(hello_of(Purpose::Link)));
    assert!(matches!(receive(&half), Some((Frame::Offer(_), _))));
    still_serves(&dir);
    expect_refusal(&fd, Reason::TooSlow);
    expect_refusal(&half, Reason::TooSlow);
    assert!(begin.elapsed() >= Duration::from_millis(300));
    assert_eq!((counter(&server, "refused_silent"), counter(&server, "refused_slow")), (1, 1));
}

#[test]
fn thousands_of_connections_meet_a_quota_and_a_clear_error() {
    let dir = Dir::new("thousands");
    let config = dir.config().connections_per_user_max(64u32);
    let server = start(&config, 1);
    server.serve(&name("x"), Access::SameUser, Accept::Automatic(vec![])).unwrap();
    let mut kept = Vec::new();
    let mut refusals = 0;
    for _ in 0..3000 {
        let fd = stranger(&dir);
        kept.push(fd);
        if kept.len() >= 64 + 16 {
            // Beyond the quota each is told so.
            let last = kept.pop().unwrap();
            let text = expect_refusal(&last, Reason::Connections);
            assert_eq!(text, "64 connections, which is connections_per_user_max");
            refusals += 1;
        }
    }
    assert!(refusals > 2900 && counter(&server, "refused_connections") >= refusals);
    let client = start(&dir.config(), 2);
    let error = client.connect(&name("x"), b"", LONG).unwrap_err();
    let wanted = "the server refused: this user has too many connections: 64 connections, which \
                  is connections_per_user_max";
    assert_eq!(error.to_string(), wanted);
    drop(kept);
    until("there is room again", || client.connect(&name("x"), b"", LONG).is_ok());
}

#[test]
fn beyond_the_limit_of_silent_ones_the_oldest_is_dropped() {
    let dir = Dir::new("halfopen");
    let server = start(&dir.config().half_open_max(4u32), 1);
    server.serve(&name("x"), Access::SameUser, Accept::Automatic(vec![])).unwrap();
    let fds: Vec<_> = (0..5).map(|_| stranger(&dir)).collect();
    expect_refusal(&fds[0], Reason::Connections);
    assert_eq!(counter(&server, "refused_half_open"), 1);
    still_serves(&dir);
}

#[test]
fn a_listener_refuses_descriptors() {
    let dir = Dir::new("descriptors");
    let server = served(&dir);
    let file = memory::create(4096).unwrap();
    let fd = stranger(&dir);
    let hello = Frame::Hello(hello_of(Purpose::Link)).to_bytes();
    let sent = socket::send(&fd, &hello, &[file.as_fd()]);
    if socket::has_pass_rights() {
        assert!(sent.is_err(), "the kernel passes descriptors to a listener that refuses them");
    } else {
        skipped!("the kernel's refusal (SO_PASSRIGHTS needs Linux 6.16)");
        expect_refusal(&fd, Reason::Malformed);
        assert_eq!(counter(&server, "refused_descriptor"), 1);
    }
    still_serves(&dir);
}

#[test]
fn a_wake_connection_without_the_cookie_joins_nothing() {
    let dir = Dir::new("cookie");
    let server = served(&dir);
    let link = stranger(&dir);
    send(&link, &Frame::Hello(hello_of(Purpose::Link)));
    assert!(matches!(receive(&link), Some((Frame::Offer(_), _))));
    let wake = stranger(&dir);
    send(&wake, &Frame::Hello(Hello { cookie: [1; 16], ..hello_of(Purpose::Wake) }));
    expect_refusal(&wake, Reason::Malformed);
    assert_eq!(counter(&server, "refused_cookie"), 1);
}

/// An offer, mapped as far as the stranger likes, then FILLED and the second connection.
fn half_way(dir: &Dir) -> (OwnedFd, OwnedFd, Offer, Vec<OwnedFd>) {
    let fd = stranger(dir);
    send(&fd, &Frame::Hello(hello_of(Purpose::Link)));
    let Some((Frame::Offer(offer), files)) = receive(&fd) else { panic!() };
    assert_eq!(files.len(), 2);
    let wake = stranger(dir);
    send(&wake, &Frame::Hello(Hello { cookie: offer.cookie, ..hello_of(Purpose::Wake) }));
    (fd, wake, offer, files)
}

#[test]
fn memory_that_nobody_paid_for_is_refused() {
    let dir = Dir::new("unpaid");
    let server = served(&dir);
    // Nothing, only its own, only the server's, and all but one page: not enough.
    for case in 0..4 {
        let (fd, _wake, offer, files) = half_way(&dir);
        let own = region_bytes(offer.client_ring_bytes as usize);
        let other = region_bytes(offer.server_ring_bytes as usize);
        if case == 1 || case == 3 {
            Region::map_writable(&files[0], own).unwrap().fill_by_writing().unwrap();
        }
        if case == 2 {
            Region::map_read_only(&files[1], other).unwrap().fill_by_reading().unwrap();
        }
        if case == 3 {
            use std::os::unix::fs::FileExt;
            let file = std::fs::File::from(files[1].try_clone().unwrap());
            for at in (4096..other).step_by(4096) {
                // Reading a file that has no page makes none; mapping does.
                file.read_at(&mut [0], at as u64).unwrap();
            }
        }
        send(&fd, &Frame::Filled);
        expect_refusal(&fd, Reason::Memory);
    }
    assert_eq!(counter(&server, "refused_memory"), 4);
    // Given back after it was paid for, before it was sealed.
    let (fd, _wake, offer, files) = half_way(&dir);
    let own = region_bytes(offer.client_ring_bytes as usize);
    let other = region_bytes(offer.server_ring_bytes as usize);
    Region::map_writable(&files[0], own).unwrap().fill_by_writing().unwrap();
    Region::map_read_only(&files[1], other).unwrap().fill_by_reading().unwrap();
    let punch = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
    assert!(rustix::fs::fallocate(&files[1], punch, 0, 4096).is_err());
    rustix::fs::fallocate(&files[0], punch, 0, 4096).unwrap();
    send(&fd, &Frame::Filled);
    expect_refusal(&fd, Reason::Memory);
    still_serves(&dir);
}

#[test]
fn nobody_can_change_the_size_of_what_the_other_maps() {
    let dir = Dir::new("size");
    let _server = served(&dir);
    let (_fd, _wake, _offer, files) = half_way(&dir);
    for file in &files {
        assert!(rustix::fs::ftruncate(file, 0).is_err());
        assert!(rustix::fs::ftruncate(file, 1 << 30).is_err());
    }
}

#[test]
fn a_file_that_the_client_sealed_itself_is_refused() {
    let dir = Dir::new("sealed");
    let server = served(&dir);
    let (fd, _wake, _offer, files) = half_way(&dir);
    // Now the server can no longer seal it.
    memory::seal(&files[0], rustix::fs::SealFlags::SEAL).unwrap();
    send(&fd, &Frame::Filled);
    expect_refusal(&fd, Reason::Memory);
    assert_eq!(counter(&server, "refused_memory"), 1);
}

#[test]
fn frames_out_of_turn_on_a_link_end_it_and_only_it() {
    let dir = Dir::new("turn");
    let server = served(&dir);
    for bad in [
        Frame::Ready,
        Frame::Filled,
        Frame::BulkFilled { writer: Writer::Client },
        Frame::BulkReady { writer: Writer::Server },
        Frame::BulkRequest { bytes: 4097 },
        Frame::StatText { text: vec![], is_last: false },
    ] {
        let (fd, _wake, offer, files) = half_way(&dir);
        let own = region_bytes(offer.client_ring_bytes as usize);
        let other = region_bytes(offer.server_ring_bytes as usize);
        Region::map_writable(&files[0], own).unwrap().fill_by_writing().unwrap();
        Region::map_read_only(&files[1], other).unwrap().fill_by_reading().unwrap();
        send(&fd, &Frame::Filled);
        assert!(matches!(receive(&fd), Some((Frame::Ready, _))));
        assert!(matches!(next(&server), ControlEvent::Connected(_)));
        send(&fd, &bad);
        expect_refusal(&fd, Reason::Malformed);
        let ControlEvent::Closed { reason, .. } = next(&server) else { panic!() };
        assert_eq!(reason, CloseReason::Violation);
    }
    still_serves(&dir);
}

/// Connects to a server that does what `serve` does with its first connection.
fn against(dir: &Dir, serve: impl FnOnce(OwnedFd) + Send) -> ConnectError {
    let listener = socket::bind(&dir.0.join("x")).unwrap();
    socket::listen(&listener).unwrap();
    let client = start(&dir.config(), 2);
    std::thread::scope(|scope| {
        let listener = &listener;
        scope.spawn(move || {
            let deadline = sys::monotonic_ns() + LONG.as_nanos() as u64;
            assert!(sys::wait_for(&[(listener.as_fd(), false)], deadline).unwrap());
            serve(socket::accept(listener).unwrap().unwrap());
        });
        client.connect(&name("x"), b"", Duration::from_secs(3)).unwrap_err()
    })
}

fn offer() -> Offer {
    Offer {
        minor: 0,
        node: 1,
        features: 0,
        client_ring_bytes: 4096,
        server_ring_bytes: 4096,
        packet_bytes: 64,
        cookie: [0; 16],
        greeting: vec![],
    }
}

/// The client's error for an offer with these files.
fn offered(dir: &Dir, files: Vec<OwnedFd>) -> ConnectError {
    against(dir, move |fd| {
        receive(&fd);
        let fds: Vec<_> = files.iter().map(AsFd::as_fd).collect();
        socket::send(&fd, &Frame::Offer(offer()).to_bytes(), &fds).unwrap();
        // Until the client has gone.
        while receive(&fd).is_some() {}
    })
}

fn file(bytes: usize, seals: rustix::fs::SealFlags) -> OwnedFd {
    let file = memory::create(bytes).unwrap();
    memory::seal(&file, seals).unwrap();
    file
}

#[test]
fn a_client_maps_nothing_that_is_not_as_agreed() {
    let dir = Dir::new("badfiles");
    let good = region_bytes(4096);
    let null = || OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
    let (socket, _other) = socket::pair().unwrap();
    let huge = rustix::fs::memfd_create(
        "huge",
        rustix::fs::MemfdFlags::HUGETLB | rustix::fs::MemfdFlags::ALLOW_SEALING,
    );
    let mut cases = vec![
        ("not a memory file", vec![null(), null()]),
        ("not a memory file", vec![socket, null()]),
        ("seals", vec![memory::create(good).unwrap(), file(good, SEALS_READ_ONLY)]),
        ("seals", vec![file(good, SEALS_READ_ONLY), file(good, SEALS_READ_ONLY)]),
        ("seals", vec![file(good, SEALS_SIZE), file(good, SEALS_SIZE)]),
        ("bytes", vec![file(good + 1, SEALS_SIZE), file(good, SEALS_READ_ONLY)]),
        ("bytes", vec![file(good, SEALS_SIZE), file(4096, SEALS_READ_ONLY)]),
        ("without its two descriptors", vec![]),
        ("without its two descriptors", vec![file(good, SEALS_SIZE)]),
        ("without its two descriptors", (0..4).map(|_| file(good, SEALS_SIZE)).collect()),
    ];
    match huge {
        Ok(huge) => cases.push(("file system", vec![huge, null()])),
        Err(e) => skipped!("a memory file of huge pages ({e})"),
    }
    for (what, files) in cases {
        let _ = std::fs::remove_file(dir.0.join("x"));
        let error = offered(&dir, files).to_string();
        assert!(error.contains(what), "{what}: {error}");
    }
}

#[test]
fn a_client_takes_no_sizes_that_it_did_not_ask_for() {
    let dir = Dir::new("badsizes");
    for bad in [
        Offer { client_ring_bytes: 1 << 30, ..offer() },
        Offer { server_ring_bytes: 1 << 30, ..offer() },
        Offer { server_ring_bytes: 4097, ..offer() },
        Offer { packet_bytes: 1 << 30, ..offer() },
        Offer { packet_bytes: 0, ..offer() },
        Offer { features: 1 << 50, ..offer() },
    ] {
        let _ = std::fs::remove_file(dir.0.join("x"));
        let error = against(&dir, move |fd| {
            receive(&fd);
            send(&fd, &Frame::Offer(bad));
        });
        assert!(matches!(error, ConnectError::Misbehaved(_)), "{error}");
    }
}

#[test]
fn connecting_never_takes_longer_than_its_time_limit() {
    let dir = Dir::new("limit");
    // Nobody accepts at all, and the queue is full.
    let listener = socket::bind(&dir.0.join("x")).unwrap();
    rustix::net::listen(&listener, 0).unwrap();
    let _filler = stranger(&dir);
    let client = start(&dir.config(), 2);
    for _ in 0..2 {
        let error = client.connect(&name("x"), b"", Duration::from_millis(50)).unwrap_err();
        assert!(matches!(error, ConnectError::TimedOut(_)), "{error}");
    }
    // Somebody accepts and then says nothing, or leaves.
    std::fs::remove_file(dir.0.join("x")).unwrap();
    let error = against(&dir, drop);
    assert!(matches!(error, ConnectError::Gone(_)), "{error}");
}
