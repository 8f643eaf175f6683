//! A stranger's attacks on a control socket, on either side of it, and their refusal.
#![cfg(feature = "os")]

#[macro_use]
mod control_help;
mod support;

use control_help::*;
use hamlyn::ApertureAccess;
use hamlyn::control::frame::{
    Credential, Frame, Hello, MemoryWord, Purpose, VERSION_MAJOR, VERSION_MINOR, Welcome,
};
use hamlyn::control::*;
use hamlyn::os::memory::{self, Region, SEALS_READ_ONLY, SEALS_SIZE, region_bytes};
use hamlyn::os::{socket, sys};
use hamlyn::wire::NodeId;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use support::alone;

fn served(dir: &Dir) -> Control {
    let server = start(&dir.config());
    server.serve(&name("x"), Access::SameUser, Accept::Automatic(vec![])).unwrap();
    server
}

/// An honest client still gets a link.
fn still_serves(dir: &Dir) {
    start(&dir.config()).connect(&name("x"), b"", LONG).unwrap();
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
    let (Frame::Welcome(welcome), _) = receive(&fd).unwrap() else { panic!() };
    assert_eq!(welcome.features & !LinkFeatures::all().bits(), 0);
    assert_ne!(welcome.features, 0);
}

#[test]
fn a_client_learns_that_the_server_has_another_version() {
    let error = against(|fd| {
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
    for frame in
        [word(RING, MemoryWord::Held), Frame::Ready, Frame::Bye, word(BULK, ring_offer(4096))]
    {
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
            word(RING, ring_offer(4096)),
            Frame::Bye,
            word(BULK, ring_offer(random() as u32)),
            word(RING, MemoryWord::Held),
            word(THEIR_RING, take(random() as u32)),
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
    let server = start(&dir.config().handshake_timeout_ms(300u32));
    server.serve(&name("x"), Access::SameUser, Accept::Automatic(vec![])).unwrap();
    let begin = Instant::now();
    let fd = stranger(&dir);
    // It stops half way, too: after HELLO, without a ring.
    let half = stranger(&dir);
    send(&half, &Frame::Hello(hello_of(Purpose::Link)));
    assert!(matches!(receive(&half), Some((Frame::Welcome(_), _))));
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
    let server = start(&config);
    server.serve(&name("x"), Access::SameUser, Accept::Automatic(vec![])).unwrap();
    let mut kept = Vec::new();
    let mut refusals = 0;
    for _ in 0..3000 {
        let fd = stranger(&dir);
        kept.push(fd);
        if kept.len() >= 64 + 16 {
            // Beyond the quota each gets a refusal.
            let last = kept.pop().unwrap();
            let text = expect_refusal(&last, Reason::Connections);
            assert_eq!(text, "64 connections, which is connections_per_user_max");
            refusals += 1;
        }
    }
    assert!(refusals > 2900 && counter(&server, "refused_connections") >= refusals);
    let client = start(&dir.config());
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
    let server = start(&dir.config().half_open_max(4u32));
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
    assert!(matches!(receive(&link), Some((Frame::Welcome(_), _))));
    let wake = stranger(&dir);
    send(&wake, &Frame::Hello(Hello { cookie: [1; 16], ..hello_of(Purpose::Wake) }));
    expect_refusal(&wake, Reason::Malformed);
    assert_eq!(counter(&server, "refused_cookie"), 1);
}

#[test]
fn a_ring_that_is_not_as_agreed_is_refused() {
    let dir = Dir::new("badring");
    let server = served(&dir);
    let size = region_bytes(4096);
    let filled = |bytes: usize| {
        let file = memory::create(bytes).unwrap();
        Region::map_writable(&file, bytes).unwrap().fill_by_writing().unwrap();
        file
    };
    let sealed = |file: OwnedFd, seals| {
        memory::seal(&file, seals).unwrap();
        file
    };
    let halved = {
        let file = filled(size);
        let punch = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&file, punch, 0, 4096).unwrap();
        file
    };
    let (one, _other) = socket::pair().unwrap();
    let null = OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
    let read_only = || memory::create(size).unwrap();
    let behind = {
        let file = memory::create(size).unwrap();
        let keep = rustix::fs::FallocateFlags::KEEP_SIZE;
        let from = size.next_multiple_of(4096) as u64;
        rustix::fs::fallocate(&file, keep, from, from).unwrap();
        file
    };
    // Not a memory file; unsealed; sealed in part; of another size; not paid for; in part; paid
    // for behind its end, where it can be given back.
    let cases = [
        one,
        null,
        filled(size),
        sealed(filled(size), SEALS_SIZE),
        sealed(filled(size + 4096), SEALS_READ_ONLY),
        sealed(read_only(), SEALS_READ_ONLY),
        sealed(halved, SEALS_READ_ONLY),
        sealed(behind, SEALS_READ_ONLY),
    ];
    let count = cases.len() as u64;
    for file in cases {
        let (fd, _wake, welcome) = half_way(&dir);
        until_taken(&fd, &welcome);
        pass_with(&fd, RING, &[&file]).unwrap();
        expect_refusal(&fd, Reason::Memory);
    }
    assert_eq!(counter(&server, "refused_memory"), count);
    still_serves(&dir);
}

#[test]
fn more_descriptors_than_one_or_none_are_refused() {
    alone("more_descriptors_than_one_or_none_are_refused", || {
        let dir = Dir::new("many");
        let server = served(&dir);
        let (_region, file) = ring_file(4096);
        for files in [vec![], vec![&file, &file], vec![&file; 250]] {
            let (fd, _wake, welcome) = half_way(&dir);
            until_taken(&fd, &welcome);
            pass_with(&fd, RING, &files).unwrap();
            expect_refusal(&fd, Reason::Memory);
        }
        // With another frame, while one is waited for; and a second one behind the first.
        let (fd, _wake, welcome) = half_way(&dir);
        until_taken(&fd, &welcome);
        socket::send(&fd, &Frame::Bye.to_bytes(), &[file.as_fd()]).unwrap();
        expect_refusal(&fd, Reason::Memory);
        assert_eq!(counter(&server, "refused_memory"), 4);
        until("no receiver runs", || counter(&server, "receivers") == 0);
        let before = descriptors();
        let (fd, _wake, welcome) = half_way(&dir);
        until_taken(&fd, &welcome);
        let mut sent = 0;
        while pass_with(&fd, RING, &[&file]).is_ok() {
            sent += 1;
            if sent > 1000 {
                break;
            }
        }
        assert!((1..1000).contains(&sent), "{sent}: the socket takes descriptors on and on");
        while receive(&fd).is_some() {}
        drop((fd, _wake));
        until("nothing is left", || counter(&server, "receivers") == 0 && descriptors() <= before);
        still_serves(&dir);
    });
}

#[test]
fn nobody_maps_the_servers_ring_before_it_is_asked_for_and_paid_for() {
    let dir = Dir::new("unpaid");
    let server = served(&dir);
    // It never touches the server's ring.
    let (fd, _wake, welcome) = half_way(&dir);
    let _own = until_paid(&fd, &welcome);
    let file = take_their_ring(&fd, &welcome);
    say(&fd, THEIR_RING, MemoryWord::Held);
    expect_refusal(&fd, Reason::Memory);
    // The file is sealed before it leaves the server.
    let punch = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
    assert!(rustix::fs::fallocate(&file, punch, 0, 4096).is_err());
    assert!(
        rustix::fs::ftruncate(&file, 0).is_err() && rustix::fs::ftruncate(&file, 1 << 30).is_err()
    );
    assert!(Region::map_writable(&file, region_bytes(welcome.server_ring_bytes as usize)).is_err());
    // Nor is it offered to a client that has not paid.
    let (fd, _wake, welcome) = half_way(&dir);
    say(&fd, THEIR_RING, take(welcome.server_ring_bytes));
    expect_refusal(&fd, Reason::Malformed);
    assert_eq!(counter(&server, "refused_memory"), 1);
    still_serves(&dir);
}

#[test]
fn frames_out_of_turn_on_a_link_end_it_and_only_it() {
    let dir = Dir::new("turn");
    let server = served(&dir);
    for bad in [
        Frame::Ready,
        Frame::Hello(hello_of(Purpose::Stat)),
        word(RING, ring_offer(4096)),
        word(RING, MemoryWord::Held),
        word(BULK, MemoryWord::Held),
        word(BULK, MemoryWord::Pass),
        word(BULK, ring_offer(4097)),
        word(BULK, MemoryWord::Offer { bytes: 4096, access: ApertureAccess::ReadWrite }),
        Frame::StatText { text: vec![], is_last: false },
    ] {
        let link = link_by_hand(&dir);
        assert!(matches!(next(&server), ControlEvent::Connected(_)));
        send(&link.fd, &bad);
        expect_refusal(&link.fd, Reason::Malformed);
        let ControlEvent::Closed { reason, .. } = next(&server) else { panic!("{bad:?}") };
        assert_eq!(reason, LinkEnd::Violation);
    }
    assert_eq!(counter(&server, "closed_violation"), 9);
    still_serves(&dir);
}

#[test]
fn a_hello_of_another_version_on_a_link_ends_it_and_the_application_hears_of_it() {
    alone("a_hello_of_another_version_on_a_link_ends_it_and_the_application_hears_of_it", || {
        let dir = Dir::new("linkedversion");
        let server = served(&dir);
        let before = descriptors();
        for round in 0..20 {
            let link = link_by_hand(&dir);
            let ControlEvent::Connected(new) = next(&server) else { panic!() };
            let version = (VERSION_MAJOR + 1, 0);
            send(&link.fd, &Frame::Hello(Hello { version, ..hello_of(Purpose::Link) }));
            let ControlEvent::Closed { token, reason } = next(&server) else { panic!() };
            assert_eq!((token, reason), (new.token, LinkEnd::Violation), "round {round}");
        }
        until("nothing is left of them", || descriptors() <= before);
        assert_eq!((counter(&server, "links"), counter(&server, "closed_violation")), (20, 20));
        // Nor does a client keep a link to a server that does so.
        let client = start(&dir.config());
        let ours = client.connect(&name("x"), b"", LONG).unwrap();
        let ControlEvent::Connected(_theirs) = next(&server) else { panic!() };
        drop(server);
        let ControlEvent::Closed { token, .. } = next(&client) else { panic!() };
        assert_eq!(token, ours.token);
    });
}

#[test]
fn statistics_and_then_a_link_on_one_socket_is_a_place_given_back() {
    let dir = Dir::new("statlink");
    let server = start(&dir.config().links_max(4u32));
    server.serve(&name("x"), Access::SameUser, Accept::Automatic(vec![])).unwrap();
    for _ in 0..50 {
        let fd = stranger(&dir);
        send(&fd, &Frame::Hello(hello_of(Purpose::Stat)));
        send(&fd, &Frame::Hello(hello_of(Purpose::Link)));
        while receive(&fd).is_some() {}
    }
    // Every place is still there.
    let client = start(&dir.config());
    let links: Vec<_> = (0..4).map(|_| client.connect(&name("x"), b"", LONG).unwrap()).collect();
    assert_eq!((links.len(), counter(&server, "refused_links")), (4, 0));
}

#[test]
fn a_node_that_a_peer_cannot_prove_to_be_is_refused() {
    let dir = Dir::new("identity");
    let server = served(&dir);
    let own = hello_of(Purpose::Link).credential;
    let other = Identity::new().unwrap().credential();
    let bad = [
        Credential { node: server.node(), ..own },
        Credential { node: other.node, ..own },
        Credential { signature: other.signature, ..own },
        Credential { process: own.process + 1, ..own },
        Credential { boot: [9; 16], ..own },
        Credential { node: NodeId(0), ..Credential::NONE },
    ];
    for credential in bad {
        let fd = stranger(&dir);
        send(&fd, &Frame::Hello(Hello { credential, ..hello_of(Purpose::Link) }));
        expect_refusal(&fd, Reason::Identity);
    }
    assert_eq!(counter(&server, "refused_identity"), 6);
    still_serves(&dir);
}

#[test]
fn a_peer_that_asks_for_what_is_refused_again_and_again_is_sent_away() {
    let dir = Dir::new("nuisance");
    let server = start(&dir.config().aperture_map_max(0u64));
    server.serve(&name("x"), Access::SameUser, Accept::Automatic(vec![])).unwrap();
    let link = link_by_hand(&dir);
    let ControlEvent::Connected(_) = next(&server) else { panic!() };
    let offer = MemoryWord::Offer { bytes: 4096, access: ApertureAccess::ReadOnly };
    let mut asked = 0;
    for number in (1..10_000).step_by(2) {
        let memory = hamlyn::control::frame::Memory::Aperture(number);
        say(&link.fd, memory, offer);
        match receive(&link.fd) {
            Some((Frame::Refused { reason, .. }, _)) => {
                assert_eq!(reason, Reason::Malformed);
                break;
            }
            Some((frame, _)) => {
                assert_eq!(frame, word(memory, MemoryWord::Refused(Reason::Apertures)));
            }
            None => break,
        }
        send(&link.fd, &Frame::ApertureRevoked { number });
        asked += 1;
    }
    assert!((1000..1100).contains(&asked), "{asked}");
    let ControlEvent::Closed { reason, .. } = next(&server) else { panic!() };
    assert_eq!(reason, LinkEnd::Violation);
    assert!(counter(&server, "refused_aperture") > 1000);
}

#[test]
fn an_aperture_may_be_withdrawn_while_other_frames_still_wait_to_be_sent() {
    let dir = Dir::new("withdrawn");
    let server = start(&dir.config().aperture_map_max(4096u64));
    server.serve(&name("x"), Access::SameUser, Accept::Automatic(vec![])).unwrap();
    let link = link_by_hand(&dir);
    let ControlEvent::Connected(new) = next(&server) else { panic!() };
    let offer = |bytes| MemoryWord::Offer { bytes, access: ApertureAccess::ReadOnly };
    let memory = hamlyn::control::frame::Memory::Aperture;
    let put = |frame: Frame| {
        let bytes = frame.to_bytes();
        until("there is room", || socket::send(&link.fd, &bytes, &[]).is_ok());
    };
    // More answers than the socket holds, unread: what comes next waits behind them.
    const ANSWERS: u32 = 400;
    let numbers = |n: u32| 1 + 2 * n;
    for number in (0..ANSWERS).map(numbers) {
        put(word(memory(number), offer(8192)));
        put(Frame::ApertureRevoked { number });
    }
    let number = numbers(ANSWERS);
    put(word(memory(number), offer(4096)));
    put(Frame::ApertureRevoked { number });
    until("it waits for its receiver", || counter(&server, "receivers") == 1);
    for number in (0..ANSWERS).map(numbers) {
        expect_word(&link.fd, memory(number), MemoryWord::Refused(Reason::Apertures));
    }
    expect_word(&link.fd, memory(number), MemoryWord::Take { bytes: 4096 });
    assert_eq!(receive(&link.fd).unwrap().0, Frame::ApertureReleased { number });
    // Nothing is left of it, and the link lives.
    let number = number + 2;
    put(word(memory(number), offer(4096)));
    expect_word(&link.fd, memory(number), MemoryWord::Take { bytes: 4096 });
    server.close(new.token);
}

#[test]
fn with_a_connection_its_receiver_ends() {
    let dir = Dir::new("endsnow");
    let server = start(&dir.config().handshake_timeout_ms(600_000u32));
    server.serve(&name("x"), Access::SameUser, Accept::Automatic(vec![])).unwrap();
    let link = link_by_hand(&dir);
    let ControlEvent::Connected(new) = next(&server) else { panic!() };
    say(&link.fd, BULK, ring_offer(4096));
    expect_word(&link.fd, BULK, take(4096));
    assert_eq!(counter(&server, "receivers"), 1);
    server.close(new.token);
    assert_eq!(receive(&link.fd).unwrap().0, Frame::Bye);
    assert!(receive(&link.fd).is_none());
    until("it has ended", || counter(&server, "receivers") == 0);
}

#[test]
fn a_bulk_ring_is_cut_to_what_is_allowed_and_refused_beyond_the_quota() {
    let dir = Dir::new("bulkcut");
    let quota = (region_bytes(4096) + region_bytes(32 << 10) + (1 << 20)) as u64;
    let config = dir.config().bulk_ring_bytes(1u32 << 20).peer_ring_bytes_max(1u32 << 20);
    let server = start(&config.bytes_per_user_max(quota));
    server.serve(&name("x"), Access::SameUser, Accept::Automatic(vec![])).unwrap();
    let link = link_by_hand(&dir);
    let ControlEvent::Connected(new) = next(&server) else { panic!() };
    // 512 MiB are wanted, and 1 MiB is what a peer may write.
    say(&link.fd, BULK, ring_offer(512 << 20));
    expect_word(&link.fd, BULK, take(1 << 20));
    say(&link.fd, BULK, MemoryWord::Refused(Reason::Unavailable));
    until("it is withdrawn", || counter(&server, "receivers") == 0);
    // It is given back, so it can be had again; but not beside another.
    server.request_bulk(new.token);
    expect_word(
        &link.fd,
        hamlyn::control::frame::Memory::Bulk(hamlyn::control::frame::LinkSide::Server),
        ring_offer(1 << 20),
    );
    say(&link.fd, BULK, ring_offer(1 << 20));
    expect_word(&link.fd, BULK, MemoryWord::Refused(Reason::Bytes));
    assert_eq!(counter(&server, "refused_bulk"), 1);
}

#[test]
fn who_has_not_paid_gives_way_and_the_last_links_are_for_those_without_one() {
    alone("who_has_not_paid_gives_way_and_the_last_links_are_for_those_without_one", || {
        let dir = Dir::new("places");
        let server = start(&dir.config().handshake_timeout_ms(60_000u32));
        server.serve(&name("x"), Access::SameUser, Accept::Automatic(vec![])).unwrap();
        // Of one user 16 are welcomed; the others wait for their turn.
        let mut waiting = Vec::new();
        let before = descriptors();
        for _ in 0..40 {
            let fd = stranger(&dir);
            send(&fd, &Frame::Hello(hello_of(Purpose::Link)));
            waiting.push(fd);
        }
        let is_welcomed =
            |fd: &OwnedFd| sys::wait_for(&[(fd.as_fd(), false)], sys::monotonic_ns() + 1).unwrap();
        until("16 are welcomed", || waiting.iter().filter(|fd| is_welcomed(fd)).count() == 16);
        // Two descriptors here for each: its socket, and its process's.
        assert!(descriptors() - before <= 40 * 3, "{}", descriptors() - before);
        // As they go, others come.
        waiting.drain(..16);
        until("the next are welcomed", || {
            waiting.iter().filter(|fd| is_welcomed(fd)).count() == 16
        });
        drop(waiting);
        still_serves(&dir);
        let server = start(&dir.config().links_max(16u32));
        server.serve(&name("y"), Access::SameUser, Accept::Automatic(vec![])).unwrap();
        let client = start(&dir.config());
        let mut links = Vec::new();
        let error = loop {
            match client.connect(&name("y"), b"", LONG) {
                Ok(link) => links.push(link),
                Err(e) => break e.to_string(),
            }
        };
        assert_eq!(links.len(), 14);
        assert!(error.contains("kept for users who have none"), "{error}");
        assert_eq!(counter(&server, "refused_links"), 1);
    });
}

#[test]
fn a_revoked_ticket_is_told_to_the_application() {
    let dir = Dir::new("revoked");
    let server = served(&dir);
    let link = link_by_hand(&dir);
    let ControlEvent::Connected(_) = next(&server) else { panic!() };
    send(&link.fd, &Frame::TicketRevoked { slot: 7, index: 9 });
    let ControlEvent::TicketRevoked { slot, index, .. } = next(&server) else { panic!() };
    assert_eq!((slot, index), (7, 9));
}

/// Connects to a server that does what `serve` does with its first connection. In a place of its
/// own: a connection that was given up elsewhere may still come there.
fn against(serve: impl FnOnce(OwnedFd) + Send) -> ConnectError {
    static PLACES: AtomicU32 = AtomicU32::new(0);
    let dir = Dir::new(&format!("against-{}", PLACES.fetch_add(1, Ordering::Relaxed)));
    let listener = socket::bind(&dir.0.join("x")).unwrap();
    socket::listen(&listener).unwrap();
    let client = start(&dir.config());
    std::thread::scope(|scope| {
        let listener = &listener;
        let server = scope.spawn(move || {
            let deadline = sys::monotonic_ns() + LONG.as_nanos() as u64;
            assert!(sys::wait_for(&[(listener.as_fd(), false)], deadline).unwrap());
            serve(socket::accept(listener).unwrap().unwrap());
        });
        let error = client.connect(&name("x"), b"", LONG).unwrap_err();
        assert!(server.join().is_ok(), "the client said: {error}");
        error
    })
}

fn welcome() -> Welcome {
    Welcome {
        minor: 0,
        credential: Identity::new().unwrap().credential(),
        features: 0,
        client_ring_bytes: 4096,
        server_ring_bytes: 4096,
        packet_bytes: 64,
        cookie: [0; 16],
        greeting: vec![],
    }
}

/// The client's error for a server's ring that is these files.
fn passed(files: Vec<OwnedFd>) -> ConnectError {
    against(move |fd| {
        receive(&fd);
        send(&fd, &Frame::Welcome(welcome()));
        expect_word(&fd, RING, ring_offer(4096));
        socket::accept_descriptors(&fd, true);
        say(&fd, RING, take(4096));
        expect_word(&fd, RING, MemoryWord::Pass);
        say(&fd, RING, MemoryWord::Held);
        say(&fd, THEIR_RING, ring_offer(4096));
        expect_word(&fd, THEIR_RING, take(4096));
        let files: Vec<_> = files.iter().collect();
        pass_with(&fd, THEIR_RING, &files).unwrap();
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
    let good = region_bytes(4096);
    let null = || OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
    let (socket, _other) = socket::pair().unwrap();
    let huge = rustix::fs::memfd_create(
        "huge",
        rustix::fs::MemfdFlags::HUGETLB | rustix::fs::MemfdFlags::ALLOW_SEALING,
    );
    let mut cases = vec![
        vec![null()],
        vec![socket],
        vec![memory::create(good).unwrap()],
        vec![file(good, SEALS_SIZE)],
        vec![file(good + 1, SEALS_READ_ONLY)],
        vec![file(4096, SEALS_READ_ONLY)],
        vec![],
        (0..4).map(|_| file(good, SEALS_READ_ONLY)).collect(),
    ];
    match huge {
        Ok(huge) => cases.push(vec![huge]),
        Err(e) => skipped!("a memory file of huge pages ({e})"),
    }
    for (i, files) in cases.into_iter().enumerate() {
        let error = passed(files);
        assert!(matches!(error, ConnectError::Memory(_)), "{i}: {error}");
    }
}

#[test]
fn a_client_of_a_server_that_sends_descriptors_when_it_likes_keeps_none() {
    if !socket::has_pass_rights() {
        return skipped!("sockets that refuse descriptors (Linux 6.16)");
    }
    let error = against(|fd| {
        receive(&fd);
        let file = memory::create(4096).unwrap();
        let files = [file.as_fd(); 200];
        let welcome = Frame::Welcome(welcome()).to_bytes();
        assert!(socket::send(&fd, &welcome, &files[..4]).is_err());
        assert!(socket::send(&fd, &welcome, &files).is_err());
    });
    assert!(matches!(error, ConnectError::Gone), "{error}");
}

#[test]
fn a_client_takes_no_sizes_that_it_did_not_ask_for() {
    for bad in [
        Welcome { client_ring_bytes: 1 << 30, ..welcome() },
        Welcome { server_ring_bytes: 1 << 30, ..welcome() },
        Welcome { server_ring_bytes: 4097, ..welcome() },
        Welcome { packet_bytes: 1 << 30, ..welcome() },
        Welcome { packet_bytes: 0, ..welcome() },
        Welcome { features: 1 << 50, ..welcome() },
    ] {
        let error = against(move |fd| {
            receive(&fd);
            send(&fd, &Frame::Welcome(bad));
        });
        assert!(matches!(error, ConnectError::Misbehaved(_)), "{error}");
    }
}

#[test]
fn connecting_never_takes_longer_than_its_time_limit() {
    let dir = Dir::new("limit");
    // No process accepts at all, and the queue is full.
    let listener = socket::bind(&dir.0.join("x")).unwrap();
    rustix::net::listen(&listener, 0).unwrap();
    let _filler = stranger(&dir);
    let client = start(&dir.config());
    for _ in 0..2 {
        let error = client.connect(&name("x"), b"", Duration::from_millis(50)).unwrap_err();
        assert!(matches!(error, ConnectError::TimedOut(_)), "{error}");
    }
    // A process accepts and then is silent, or leaves.
    let error = against(drop);
    assert!(matches!(error, ConnectError::Gone), "{error}");
}
