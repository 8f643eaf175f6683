//! Connecting, accepting, closing, bulk rings and statistics between two control planes.
#![cfg(feature = "os")]

mod control_help;

use control_help::*;
use hamlyn::config::{Config, Housekeeping};
use hamlyn::control::frame::{Frame, Hello, Purpose};
use hamlyn::control::*;
use hamlyn::link::cells::Lines;
use hamlyn::link::ring::{RingReader, RingWriter};
use hamlyn::link::{Body, Transmit};
use hamlyn::wire::{Destination, Flags, Header, Key, MetadataIndex, SlotIndex};
use std::time::Duration;

fn header() -> Header {
    Header {
        destination: Destination(1),
        slot: SlotIndex(2),
        metadata_index: MetadataIndex(3),
        key: Key(4),
        offset: 5,
        length: 50,
        delta: 0,
        metadata_len: 0,
        flags: Flags::NOTIFY,
        word: 0,
    }
}

/// A packet of 50 bytes goes through.
fn pass(from: (&NewLink, &NewLink)) {
    let mut writer = RingWriter::new(from.0.outgoing.lines(), from.0.incoming.freed(), 16384);
    let mut reader = RingReader::new(from.1.incoming.lines(), from.1.outgoing.freed());
    assert!(reader.peek().unwrap().is_none());
    writer.transmit(&header(), &[], &[7u8; 50][..]).unwrap();
    let packet = reader.peek().unwrap().unwrap();
    assert_eq!(packet.header, header());
    let mut data = [0; 50];
    packet.copy_data(&mut data);
    assert_eq!(data, [7; 50]);
    let lines = packet.lines();
    reader.release(lines);
    reader.publish();
    assert!(writer.is_drained() && writer.violation().is_none());
}

#[test]
fn a_link_carries_packets_both_ways() {
    let dir = Dir::new("packets");
    let (server, theirs, client, ours) = linked(&dir.config());
    assert_eq!((&ours.greeting[..], &theirs.greeting[..]), (&b"welcome"[..], &b"hello"[..]));
    assert_eq!((ours.peer.node, theirs.peer.node), (server.node(), client.node()));
    assert!(ours.peer.is_proved && theirs.peer.is_proved);
    assert_eq!(theirs.peer.pid, Some(std::process::id()));
    assert!(ours.initiated_by_us && !theirs.initiated_by_us);
    assert_eq!(ours.features, theirs.features);
    pass((&ours, &theirs));
    pass((&theirs, &ours));
    // One byte wakes, each way.
    for (a, b) in [(&ours, &theirs), (&theirs, &ours)] {
        hamlyn::os::socket::send(a.way.wake().unwrap(), &[1], &[]).unwrap();
        assert_eq!(
            hamlyn::os::socket::receive(b.way.wake().unwrap(), &mut [0; 8]).unwrap().bytes,
            1
        );
    }
    client.close(ours.token);
    let ControlEvent::Closed { token, reason } = next(&server) else { panic!() };
    assert_eq!((token, reason), (theirs.token, LinkEnd::Graceful));
}

#[test]
fn a_request_waits_for_the_application() {
    let dir = Dir::new("ask");
    let config = dir.config();
    let (server, client) = (start(&config), start(&config));
    server.serve(&name("x"), Access::SameUser, Accept::Ask).unwrap();
    std::thread::scope(|scope| {
        let yes = scope.spawn(|| client.connect(&name("x"), b"please", LONG).unwrap());
        let ControlEvent::Request { id, peer, greeting } = next(&server) else { panic!() };
        assert_eq!((peer.node, &greeting[..]), (client.node(), &b"please"[..]));
        assert!(matches!(server.accept(id, &[0; 4097]), Err(AcceptError::GreetingTooLong(4097))));
        server.accept(id, b"yes").unwrap();
        assert!(matches!(server.accept(id, b"yes"), Err(AcceptError::NoSuchRequest(_))));
        let ControlEvent::Connected(link) = next(&server) else { panic!() };
        assert_eq!(link.request, Some(id));
        assert_eq!(yes.join().unwrap().greeting, b"yes");
    });
    std::thread::scope(|scope| {
        let no = scope.spawn(|| client.connect(&name("x"), b"", LONG).unwrap_err());
        let ControlEvent::Request { id, .. } = next(&server) else { panic!() };
        server.refuse(id, "not today").unwrap();
        let error = no.join().unwrap().to_string();
        assert_eq!(error, "the server refused: not today");
    });
    assert_eq!(counter(&server, "refused_application"), 1);
}

#[test]
fn a_request_whose_time_is_up_is_withdrawn() {
    let dir = Dir::new("withdrawn");
    let config = dir.config();
    let (server, client) = (start(&config), start(&config));
    server.serve(&name("x"), Access::SameUser, Accept::Ask).unwrap();
    let error = client.connect(&name("x"), b"", Duration::from_millis(20)).unwrap_err();
    assert!(matches!(error, ConnectError::TimedOut(_)), "{error}");
    assert!(error.to_string().contains("its program makes no calls"), "{error}");
    // It was withdrawn before the server saw it.
    until("it is withdrawn", || counter(&server, "left_half_way") == 1);
    assert!(server.inbox().take().is_empty());
    std::thread::scope(|scope| {
        scope.spawn(|| client.connect(&name("x"), b"", Duration::from_millis(200)).unwrap_err());
        let ControlEvent::Request { id, .. } = next(&server) else { panic!() };
        let ControlEvent::RequestGone { id: gone } = next(&server) else { panic!() };
        assert_eq!(id, gone);
        assert!(matches!(server.accept(id, b""), Err(AcceptError::NoSuchRequest(_))));
    });
}

#[test]
fn either_side_gets_a_bulk_ring() {
    let dir = Dir::new("bulk");
    let (server, theirs, client, ours) = linked(&dir.config().bulk_ring_bytes(1u32 << 20));
    for (a, ta, b, tb) in
        [(&client, ours.token, &server, theirs.token), (&server, theirs.token, &client, ours.token)]
    {
        a.request_bulk(ta);
        let ControlEvent::BulkIncoming { token, lines: incoming } = next(b) else { panic!() };
        assert_eq!(token, tb);
        let ControlEvent::BulkOutgoing { token, lines: outgoing } = next(a) else { panic!() };
        assert_eq!(token, ta);
        assert_eq!(outgoing.lines().len(), (1 << 20) / 64);
        assert_eq!(incoming.lines().len(), outgoing.lines().len());
        let (own, other) = if ta == ours.token && std::ptr::eq(a, &client) {
            (&ours, &theirs)
        } else {
            (&theirs, &ours)
        };
        let mut writer = RingWriter::new(outgoing, own.incoming.bulk_freed(), 1 << 16);
        let mut reader = RingReader::new(incoming, other.outgoing.bulk_freed());
        writer.transmit(&header(), &[], &[7u8; 50][..]).unwrap();
        assert!(reader.peek().unwrap().is_some());
        // Once is enough.
        a.request_bulk(ta);
        assert!(matches!(next(a), ControlEvent::BulkRefused { .. }));
    }
}

#[test]
fn a_side_that_wants_no_bulk_rings_gets_none() {
    let dir = Dir::new("nobulk");
    let (server, client) = (start(&dir.config().bulk_ring_bytes(0u32)), start(&dir.config()));
    server.serve(&name("x"), Access::SameUser, Accept::Automatic(vec![])).unwrap();
    let link = client.connect(&name("x"), b"", LONG).unwrap();
    assert!(!link.features.contains(LinkFeatures::BULK));
    client.request_bulk(link.token);
    let ControlEvent::BulkRefused { why, .. } = next(&client) else { panic!() };
    assert_eq!(why, Reason::Feature);
}

#[test]
fn bytes_beyond_the_quota_are_refused() {
    let dir = Dir::new("bytes");
    let server = start(&dir.config().bytes_per_user_max(200u64 << 10));
    let client = start(&dir.config());
    server.serve(&name("x"), Access::SameUser, Accept::Automatic(vec![])).unwrap();
    let first = client.connect(&name("x"), b"", LONG).unwrap();
    client.request_bulk(first.token);
    assert!(matches!(next(&client), ControlEvent::BulkRefused { why: Reason::Bytes, .. }));
    let _second = client.connect(&name("x"), b"", LONG).unwrap();
    let error = client.connect(&name("x"), b"", LONG).unwrap_err();
    assert!(matches!(error, ConnectError::Refused { reason: Reason::Bytes, .. }), "{error}");
    assert!(counter(&server, "refused_bytes") == 1);
    // A freed place can be used again, but no sooner than the server's application has taken the
    // event that holds it.
    client.close(first.token);
    until("the link has ended", || counter(&server, "closed_graceful") == 1);
    let error = client.connect(&name("x"), b"", LONG).unwrap_err();
    assert!(matches!(error, ConnectError::Refused { reason: Reason::Bytes, .. }), "{error}");
    drop(server.inbox().take());
    client.connect(&name("x"), b"", LONG).unwrap();
}

#[test]
fn links_beyond_the_limit_are_refused_on_either_side() {
    let dir = Dir::new("links");
    let server = start(&dir.config().links_max(2u32));
    let client = start(&dir.config().links_max(3u32));
    server.serve(&name("x"), Access::SameUser, Accept::Automatic(vec![])).unwrap();
    let _links = [(); 2].map(|()| client.connect(&name("x"), b"", LONG).unwrap());
    let error = client.connect(&name("x"), b"", LONG).unwrap_err();
    assert!(matches!(error, ConnectError::Refused { reason: Reason::Links, .. }), "{error}");
    let other = start(&dir.config());
    other.serve(&name("y"), Access::SameUser, Accept::Automatic(vec![])).unwrap();
    let _third = client.connect(&name("y"), b"", LONG).unwrap();
    let error = client.connect(&name("y"), b"", LONG).unwrap_err();
    assert!(matches!(error, ConnectError::TooManyLinks(3)), "{error}");
}

#[test]
fn a_violation_tells_the_other_end() {
    let dir = Dir::new("violation");
    let (server, theirs, client, ours) = linked(&dir.config());
    server.violated(theirs.token);
    let ControlEvent::Closed { token, reason } = next(&client) else { panic!() };
    assert_eq!((token, reason), (ours.token, LinkEnd::Expelled));
    assert_eq!(counter(&server, "closed_by_us_violation"), 1);
    assert_eq!(counter(&client, "closed_expelled"), 1);
}

#[test]
fn the_end_of_a_control_plane_is_a_goodbye() {
    let dir = Dir::new("goodbye");
    let (server, theirs, client, _ours) = linked(&dir.config());
    drop(server);
    assert!(!dir.0.join("x").exists());
    assert!(matches!(next(&client), ControlEvent::Closed { reason: LinkEnd::Graceful, .. }));
    drop(theirs);
}

#[test]
fn statistics_are_text_from_the_owner() {
    let dir = Dir::new("stat");
    let config = dir.config();
    let long = "counter 1\n".repeat(20_000);
    let text = long.clone();
    let server = Control::start(
        &config,
        &Identity::new().unwrap(),
        std::sync::Arc::new(move || text.clone()),
    );
    let server = server.unwrap();
    server.serve(&name("x"), Access::SameUser, Accept::Ask).unwrap();
    // Whole, and then the control plane's own counters.
    let told = stat_of(&config, &name("x"), Some(LONG)).unwrap();
    let own = told.strip_prefix(&long).expect("the application's text comes first, whole");
    assert!(own.contains("control.connections 1\n"), "{own}");
    let services = list_services(&config);
    assert_eq!(services.entries.len(), 1);
    assert_eq!((&services.entries[0].name[..], services.entries[0].is_alive), ("x", Some(true)));
}

#[test]
fn an_application_that_keeps_house_itself_connects_to_itself() {
    let dir = Dir::new("self");
    let config = dir.config().housekeeping(Housekeeping::Application);
    let control = start(&config);
    control.serve(&name("x"), Access::SameUser, Accept::Automatic(vec![])).unwrap();
    let ours = control.connect(&name("x"), b"", LONG).unwrap();
    let ControlEvent::Connected(theirs) = next(&control) else { panic!() };
    pass((&ours, &theirs));
    pass((&theirs, &ours));
}

#[test]
fn the_smallest_rings_and_unequal_ones_make_links() {
    let dir = Dir::new("small");
    for (a, b) in [(512u32, 512u32), (512, 1 << 20), (1 << 20, 512)] {
        let (server, client) =
            (start(&dir.config().ring_bytes(a)), start(&dir.config().ring_bytes(b)));
        server.serve(&name("x"), Access::SameUser, Accept::Automatic(vec![])).unwrap();
        let ours = client.connect(&name("x"), b"", LONG).unwrap();
        let ControlEvent::Connected(theirs) = next(&server) else { panic!() };
        assert_eq!(ours.outgoing.lines().lines().len(), b as usize / 64);
        assert_eq!(ours.outgoing.bytes(), theirs.incoming.bytes());
        assert_eq!(ours.incoming.bytes(), theirs.outgoing.bytes());
        pass((&ours, &theirs));
        pass((&theirs, &ours));
    }
}

#[test]
fn a_greeting_that_is_too_long_is_refused_before_anything_happens() {
    let dir = Dir::new("greeting");
    let config = dir.config();
    let control = start(&config);
    let long = vec![0; GREETING_BYTES_MAX + 1];
    let error = control.connect(&name("x"), &long, LONG).unwrap_err();
    assert!(matches!(error, ConnectError::GreetingTooLong(4097)));
    let error = control.serve(&name("x"), Access::SameUser, Accept::Automatic(long)).unwrap_err();
    assert!(matches!(error, ServeError::GreetingTooLong(4097)));
    assert!(!dir.0.join("x").exists());
}

#[test]
fn a_setting_that_is_not_allowed_starts_nothing() {
    let config = Config::default().links_max(0u32);
    let error =
        Control::start(&config, &Identity::new().unwrap(), std::sync::Arc::new(String::new))
            .unwrap_err();
    assert!(error.to_string().contains("HAMLYN_LINKS_MAX"), "{error}");
}

#[test]
fn a_program_that_takes_no_events_is_not_filled_with_them() {
    let dir = Dir::new("events");
    let (server, client) =
        (start(&dir.config().ring_bytes(512u32)), start(&dir.config().ring_bytes(512u32)));
    server.serve(&name("x"), Access::SameUser, Accept::Automatic(vec![])).unwrap();
    // Each link that comes and goes leaves two events.
    let mut made = 0;
    while counter(&server, "rests") == 0 {
        if let Ok(link) = client.connect(&name("x"), b"", Duration::from_millis(500)) {
            client.close(link.token);
            made += 1;
        }
        assert!(made < 1000);
    }
    let events = server.inbox().take();
    assert!((1000..1100).contains(&events.len()), "{}", events.len());
    drop(events);
    client.connect(&name("x"), b"", LONG).unwrap();
}

#[test]
fn a_feature_that_a_peer_requires_is_agreed_or_it_is_told_that_it_is_missing() {
    let dir = Dir::new("required");
    let server = start(&dir.config());
    server.serve(&name("x"), Access::SameUser, Accept::Automatic(vec![])).unwrap();
    let unknown = Hello { features_required: 1 << 40, ..hello_of(Purpose::Link) };
    let fd = stranger(&dir);
    send(&fd, &Frame::Hello(unknown));
    let text = expect_refusal(&fd, Reason::Feature);
    assert!(!text.is_empty());
    assert_eq!(counter(&server, "refused_feature"), 1);
    // One that both know is not refused.
    let known = LinkFeatures::all().bits();
    let hello = hello_of(Purpose::Link);
    let required = hello.features & known;
    let (_fd, _wake, welcome) = half_way_with(&dir, Hello { features_required: required, ..hello });
    assert_eq!(welcome.features & required, required);
    assert_eq!(counter(&server, "refused_feature"), 1);
}
