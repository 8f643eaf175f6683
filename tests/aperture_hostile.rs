//! What either end of a link can try with apertures, and what becomes of it: the other end is
//! played by hand, frame by frame.
#![cfg(feature = "os")]

#[macro_use]
mod control_help;

use control_help::*;
use hamlyn::control::hello::{ApertureWord, Frame, Hello, Offer, Purpose};
use hamlyn::control::*;
use hamlyn::os::aperture::{Ledger, Limits, Owned, Reservation, make_for_owner};
use hamlyn::os::memory::{self, Region, RegionLines, SEALS_READ_ONLY, SEALS_SIZE, region_bytes};
use hamlyn::os::{socket, sys};
use hamlyn::{AccessError, ApertureAccess, Config, Node};
use rustix::fs::{FallocateFlags, SealFlags};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

const PAGE: u64 = 4096;
const RW: ApertureAccess = ApertureAccess::ReadWrite;
const RO: ApertureAccess = ApertureAccess::ReadOnly;
const LIMITS: Limits = Limits { all: u64::MAX, user: u64::MAX };

fn served(config: &Config) -> Control {
    let server = start(config, 1);
    server.serve(&name("x"), Access::SameUser, Accept::Automatic(vec![])).unwrap();
    server
}

/// A client's link, made by hand: its control socket, and its wake-up connection.
fn link_by_hand(dir: &Dir) -> (OwnedFd, OwnedFd) {
    let features = LinkFeatures::all().bits();
    let fd = stranger(dir);
    send(&fd, &Frame::Hello(Hello { features, ..hello_of(Purpose::Link) }));
    let Some((Frame::Offer(offer), files)) = receive(&fd) else { panic!() };
    let wake = stranger(dir);
    send(&wake, &Frame::Hello(Hello { cookie: offer.cookie, ..hello_of(Purpose::Wake) }));
    let own = region_bytes(offer.client_ring_bytes as usize);
    let other = region_bytes(offer.server_ring_bytes as usize);
    Region::map_writable(&files[0], own).unwrap().fill_by_writing().unwrap();
    Region::map_read_only(&files[1], other).unwrap().fill_by_reading().unwrap();
    send(&fd, &Frame::Filled);
    assert!(matches!(receive(&fd), Some((Frame::Ready, _))));
    (fd, wake)
}

/// A control plane that serves, and a client's link to it.
fn against_server(dir: &Dir, config: &Config) -> (Control, LinkToken, OwnedFd, OwnedFd) {
    let server = served(config);
    let (fd, wake) = link_by_hand(dir);
    let ControlEvent::Connected(new) = next(&server) else { panic!() };
    (server, new.token, fd, wake)
}

fn word(number: u32, word: ApertureWord) -> Frame {
    Frame::Aperture { number, word }
}

fn say(fd: &OwnedFd, number: u32, w: ApertureWord) {
    send(fd, &word(number, w));
}

fn say_with(fd: &OwnedFd, number: u32, w: ApertureWord, files: &[&OwnedFd]) {
    let fds: Vec<_> = files.iter().map(|file| file.as_fd()).collect();
    socket::send(fd, &word(number, w).to_bytes(), &fds).unwrap();
}

#[track_caller]
fn expect(fd: &OwnedFd, number: u32, w: ApertureWord) -> Vec<OwnedFd> {
    let (frame, files) = receive(fd).expect("the link has ended");
    assert_eq!(frame, word(number, w));
    files
}

#[track_caller]
fn expect_violation(control: &Control, fd: &OwnedFd) {
    expect_refusal(fd, Reason::Malformed);
    let ControlEvent::Closed { reason, .. } = next(control) else { panic!() };
    assert_eq!(reason, CloseReason::Violation);
}

fn request(access: ApertureAccess, bytes: u64) -> ApertureWord {
    ApertureWord::Request { access, bytes }
}

fn offer_of(access: ApertureAccess, bytes: u64) -> ApertureWord {
    ApertureWord::Offer { access, bytes }
}

fn reserve(bytes: u64) -> Reservation {
    Arc::new(Ledger::default()).reserve(bytes, None, LIMITS).unwrap()
}

fn punch(file: &OwnedFd, from: u64, bytes: u64) -> rustix::io::Result<()> {
    rustix::fs::fallocate(file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, from, bytes)
}

// ---- a client, against a server

#[test]
fn words_out_of_turn_end_the_link_and_only_it() {
    let dir = Dir::new("apturn");
    let server = served(&dir.config());
    let bad = [
        (1, ApertureWord::Filled),
        (1, ApertureWord::Revoked),
        (1, ApertureWord::Ready),
        (1, offer_of(RW, PAGE)),
        // Of the server's own, none of which it has exported.
        (2, ApertureWord::Ready),
        (2, ApertureWord::Released),
        (2, ApertureWord::Refused(Reason::Bytes)),
        (2, request(RW, PAGE)),
        (0, ApertureWord::Released),
        // Impossible sizes.
        (1, request(RW, 0)),
        (1, request(RO, PAGE - 1)),
        (1, request(RW, u64::MAX - PAGE + 1)),
    ];
    for (i, (number, w)) in bad.into_iter().enumerate() {
        let (fd, _wake) = link_by_hand(&dir);
        let ControlEvent::Connected(_) = next(&server) else { panic!() };
        say(&fd, number, w);
        expect_violation(&server, &fd);
        assert_eq!(counter(&server, "refused_frame"), i as u64 + 1);
    }
    start(&dir.config(), 77).connect(&name("x"), b"", LONG).unwrap();
}

#[test]
fn a_number_is_never_used_again() {
    let dir = Dir::new("apnumber");
    let (server, token, fd, _wake) = against_server(&dir, &dir.config());
    say(&fd, 5, request(RW, PAGE));
    let files = expect(&fd, 5, offer_of(RW, PAGE));
    RegionLines::map_writable(&files[0], 4096).unwrap().fill_by_writing().unwrap();
    say(&fd, 5, ApertureWord::Filled);
    expect(&fd, 5, ApertureWord::Ready);
    say(&fd, 5, ApertureWord::Revoked);
    assert!(matches!(next(&server), ControlEvent::ApertureHeld { number: 5, .. }));
    assert!(matches!(next(&server), ControlEvent::ApertureRevoked { number: 5, .. }));
    // Not over before the holder has let go, and not again afterwards, nor one before it.
    server.release_aperture(token, 5);
    expect(&fd, 5, ApertureWord::Released);
    say(&fd, 3, request(RW, PAGE));
    expect_violation(&server, &fd);
}

#[test]
fn memory_that_nobody_paid_for_is_not_held() {
    let dir = Dir::new("apunpaid");
    let server = served(&dir.config());
    let mut violations = 0;
    for access in [RW, RO] {
        for case in 0..4 {
            let (fd, _wake) = link_by_hand(&dir);
            let ControlEvent::Connected(_) = next(&server) else { panic!() };
            say(&fd, 1, request(access, 2 * PAGE));
            let files = expect(&fd, 1, offer_of(access, 2 * PAGE));
            let lines = RegionLines::map_writable(&files[0], 8192).unwrap();
            // Nothing; given back before it said so; sealed so that the server cannot; half of it.
            match case {
                0 => {}
                1 => {
                    lines.fill_by_writing().unwrap();
                    punch(&files[0], PAGE, PAGE).unwrap();
                }
                2 => {
                    lines.fill_by_writing().unwrap();
                    let seals = SealFlags::FUTURE_WRITE | SealFlags::SEAL;
                    if memory::seal(&files[0], seals).is_err() {
                        // A read-write one is sealed for good before it is offered.
                        assert_eq!(access, RW);
                        punch(&files[0], 0, PAGE).unwrap();
                    }
                }
                _ => drop(RegionLines::map_writable(&files[0], 4096).unwrap().fill_by_writing()),
            }
            say(&fd, 1, ApertureWord::Filled);
            expect_violation(&server, &fd);
            violations += 1;
            assert_eq!(counter(&server, "refused_memory"), violations);
        }
    }
    assert_eq!(counter(&server, "apertures"), 0);
}

#[test]
fn beyond_the_limits_the_answer_is_no_and_the_link_lives() {
    let dir = Dir::new("aplimits");
    let config = dir.config().aperture_map_max(4 * PAGE).apertures_per_link_max(3u32);
    let (server, token, fd, _wake) = against_server(&dir, &config);
    say(&fd, 1, request(RW, 5 * PAGE));
    expect(&fd, 1, ApertureWord::Refused(Reason::Apertures));
    for number in [5, 7, 9] {
        say(&fd, number, request(RW, PAGE));
        expect(&fd, number, offer_of(RW, PAGE));
    }
    say(&fd, 11, request(RW, PAGE));
    expect(&fd, 11, ApertureWord::Refused(Reason::Apertures));
    assert_eq!(counter(&server, "refused_aperture"), 2);
    for number in [1, 5, 7, 9, 11] {
        say(&fd, number, ApertureWord::Revoked);
        if (5..11).contains(&number) {
            expect(&fd, number, ApertureWord::Released);
        }
    }
    say(&fd, 13, request(RW, 2 * PAGE));
    expect(&fd, 13, offer_of(RW, 2 * PAGE));
    // What the other end exports does not count against what this one does.
    let file = memory::create(4096).unwrap();
    assert!(server.offer_aperture(token, RW, PAGE, &file).is_ok());
    let other = LinkToken(u64::MAX);
    assert_eq!(server.offer_aperture(other, RW, PAGE, &file), Err(ApertureError::NoLink));
}

#[test]
fn a_users_bytes_are_counted_until_they_are_given_back() {
    let dir = Dir::new("apquota");
    let rings = (region_bytes(4096) + region_bytes(32 << 10)) as u64;
    let config = dir.config().bytes_per_user_max(rings + 2 * PAGE);
    let (server, _, fd, _wake) = against_server(&dir, &config);
    for number in [1, 3, 5] {
        say(&fd, number, request(RW, 3 * PAGE));
        expect(&fd, number, ApertureWord::Refused(Reason::Bytes));
        say(&fd, number, ApertureWord::Revoked);
    }
    for number in [7, 9, 11] {
        say(&fd, number, request(RW, 2 * PAGE));
        expect(&fd, number, offer_of(RW, 2 * PAGE));
        say(&fd, number, ApertureWord::Revoked);
        expect(&fd, number, ApertureWord::Released);
    }
    assert_eq!(counter(&server, "refused_aperture"), 3);
}

#[test]
fn a_users_apertures_are_counted_over_all_links_until_they_are_given_back() {
    let dir = Dir::new("apusers");
    let server = served(&dir.config().apertures_per_user_max(3u32));
    let ((first, _w1), (second, _w2)) = (link_by_hand(&dir), link_by_hand(&dir));
    let no = ApertureWord::Refused(Reason::Apertures);
    for number in [1, 3] {
        say(&first, number, request(RW, PAGE));
        expect(&first, number, offer_of(RW, PAGE));
    }
    say(&second, 1, request(RW, PAGE));
    let files = expect(&second, 1, offer_of(RW, PAGE));
    for (fd, number) in [(&first, 5), (&second, 3)] {
        say(fd, number, request(RW, PAGE));
        expect(fd, number, no);
    }
    assert_eq!(counter(&server, "refused_aperture"), 2);
    // One that was held, and given back.
    RegionLines::map_writable(&files[0], 4096).unwrap().fill_by_writing().unwrap();
    say(&second, 1, ApertureWord::Filled);
    expect(&second, 1, ApertureWord::Ready);
    say(&first, 7, request(RW, PAGE));
    expect(&first, 7, no);
    let (token, held) = loop {
        if let ControlEvent::ApertureHeld { token, pages, .. } = next(&server) {
            break (token, pages);
        }
    };
    drop(held);
    server.release_aperture(token, 1);
    expect(&second, 1, ApertureWord::Released);
    say(&first, 9, request(RW, PAGE));
    expect(&first, 9, offer_of(RW, PAGE));
    // Those of a link that has ended; one that was not filled and is revoked.
    drop(first);
    while !matches!(next(&server), ControlEvent::Closed { .. }) {}
    for number in [5, 7, 9, 11] {
        say(&second, number, request(RW, PAGE));
        let answer = if number < 11 { offer_of(RW, PAGE) } else { no };
        expect(&second, number, answer);
    }
    say(&second, 9, ApertureWord::Revoked);
    expect(&second, 9, ApertureWord::Released);
    say(&second, 13, request(RW, PAGE));
    expect(&second, 13, offer_of(RW, PAGE));
}

#[test]
fn files_that_wait_are_bounded() {
    let dir = Dir::new("apflood");
    let (server, _, fd, _wake) = against_server(&dir, &dir.config());
    for i in 0..16 {
        say(&fd, 2 * i + 1, request(RW, PAGE));
        drop(expect(&fd, 2 * i + 1, offer_of(RW, PAGE)));
    }
    say(&fd, 33, request(RW, PAGE));
    expect_violation(&server, &fd);
    // Refusals that are never acknowledged are bounded, too.
    let dir = Dir::new("apflood2");
    let (server, _, fd, _wake) = against_server(&dir, &dir.config().aperture_map_max(0u64));
    for i in 0..256 {
        say(&fd, 2 * i + 1, request(RW, PAGE));
        expect(&fd, 2 * i + 1, ApertureWord::Refused(Reason::Apertures));
    }
    say(&fd, 513, request(RW, PAGE));
    expect_violation(&server, &fd);
}

#[test]
fn whoever_does_not_fill_in_time_is_told_and_keeps_the_link() {
    let dir = Dir::new("apslow");
    let (server, _, fd, _wake) = against_server(&dir, &dir.config().handshake_timeout_ms(100u32));
    say(&fd, 1, request(RW, PAGE));
    let files = expect(&fd, 1, offer_of(RW, PAGE));
    expect(&fd, 1, ApertureWord::Refused(Reason::TooSlow));
    // What it says now crossed with that.
    RegionLines::map_writable(&files[0], 4096).unwrap().fill_by_writing().unwrap();
    say(&fd, 1, ApertureWord::Filled);
    say(&fd, 1, ApertureWord::Revoked);
    say(&fd, 3, request(RW, PAGE));
    expect(&fd, 3, offer_of(RW, PAGE));
    assert_eq!(counter(&server, "refused_slow"), 1);
    // And once is enough.
    say(&fd, 1, ApertureWord::Filled);
    expect_violation(&server, &fd);
}

#[test]
fn what_the_holder_says_of_the_servers_own_is_checked() {
    let dir = Dir::new("apanswers");
    let (server, token, fd, _wake) = against_server(&dir, &dir.config());
    let offer = |access| {
        let (owned, file) = Owned::make(access, reserve(PAGE)).unwrap();
        (owned, server.offer_aperture(token, access, PAGE, &file).unwrap())
    };
    // Refused: nobody holds it; both have said their last word.
    let (_owned, number) = offer(RO);
    expect(&fd, number, offer_of(RO, PAGE));
    say(&fd, number, ApertureWord::Refused(Reason::Apertures));
    expect(&fd, number, ApertureWord::Revoked);
    let ControlEvent::ApertureRefused { why, .. } = next(&server) else { panic!() };
    assert_eq!(why, Reason::Apertures);
    // Revoked before it was mapped, and the words crossed.
    let (_owned, number) = offer(RW);
    expect(&fd, number, offer_of(RW, PAGE));
    server.revoke_aperture(token, number);
    say(&fd, number, ApertureWord::Ready);
    expect(&fd, number, ApertureWord::Revoked);
    say(&fd, number, ApertureWord::Released);
    assert!(matches!(next(&server), ControlEvent::ApertureReleased { .. }));
    // Let go of by the holder.
    let (_owned, number) = offer(RW);
    expect(&fd, number, offer_of(RW, PAGE));
    say(&fd, number, ApertureWord::Ready);
    assert!(matches!(next(&server), ControlEvent::ApertureReady { .. }));
    say(&fd, number, ApertureWord::Released);
    expect(&fd, number, ApertureWord::Revoked);
    assert!(matches!(next(&server), ControlEvent::ApertureReleased { .. }));
    // Twice.
    say(&fd, number, ApertureWord::Released);
    expect_violation(&server, &fd);
}

#[test]
fn exports_that_the_holder_never_maps_are_bounded() {
    let dir = Dir::new("apdeaf");
    let (server, token, _fd, _wake) =
        against_server(&dir, &dir.config().apertures_per_link_max(20u32));
    let offer = || {
        let (_owned, file) = Owned::make(RW, reserve(PAGE)).unwrap();
        server.offer_aperture(token, RW, PAGE, &file)
    };
    let mut numbers: Vec<u32> = (0..16).map(|_| offer().unwrap()).collect();
    assert_eq!(offer(), Err(ApertureError::Waiting(16)));
    // Revoked ones count until the holder has said that it let go: it never does.
    for _ in 0..4 {
        server.revoke_aperture(token, numbers.pop().unwrap());
        numbers.insert(0, offer().unwrap());
    }
    assert_eq!(offer(), Err(ApertureError::TooMany(20)));
}

#[test]
fn random_words_are_refused_or_harmless() {
    let dir = Dir::new("aprandom");
    let config = dir.config().aperture_map_max(64 * PAGE);
    let server = served(&config);
    let mut seed = 0x2545_f491_4f6c_dd1d_u64;
    let mut random = move |n: u64| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed % n
    };
    let (mut links, mut ended) = (0, 0);
    while links < 40 {
        let (fd, _wake) = link_by_hand(&dir);
        links += 1;
        let mut token = None;
        let mut held = Vec::new();
        let mut number = 1;
        for _ in 0..60 {
            for event in std::iter::from_fn(|| next_now(&server)) {
                match event {
                    ControlEvent::Connected(new) => token = Some(new.token),
                    ControlEvent::ApertureHeld { number, pages, .. } => held.push((number, pages)),
                    ControlEvent::Closed { .. } => ended += 1,
                    _ => {}
                }
            }
            if let Some(token) = token {
                if random(4) == 0 {
                    let access = if random(2) == 0 { RW } else { RO };
                    let (_owned, file) = Owned::make(access, reserve(PAGE)).unwrap();
                    let _ = server.offer_aperture(token, access, PAGE, &file);
                }
                if random(4) == 0 {
                    server.revoke_aperture(token, 2 * random(8) as u32);
                }
                if let Some((number, pages)) = held.pop() {
                    // What is held can be used, whatever its owner says meanwhile.
                    let mut bytes = [0; 64];
                    pages.read(pages.bytes() - 64, &mut bytes).unwrap();
                    server.release_aperture(token, number);
                }
            }
            // Mostly what an honest owner would say, so that most states are reached.
            let word = match random(12) {
                0..=4 => {
                    number += 2;
                    request(if random(2) == 0 { RW } else { RO }, (1 + random(3)) * PAGE)
                }
                5..=7 => ApertureWord::Filled,
                8 => ApertureWord::Revoked,
                9 => ApertureWord::Ready,
                10 => ApertureWord::Released,
                _ => ApertureWord::Refused(Reason::Bytes),
            };
            let own = matches!(word, ApertureWord::Request { .. } | ApertureWord::Filled);
            let number = if own { number } else { random(40) as u32 };
            if socket::send(&fd, &Frame::Aperture { number, word }.to_bytes(), &[]).is_err() {
                break;
            }
            if matches!(word, ApertureWord::Request { .. })
                && let Some((Frame::Aperture { .. }, files)) = receive(&fd)
                && let Some(file) = files.first()
                && random(8) != 0
                && let Ok(size) = rustix::fs::fstat(file)
                && let Ok(lines) = RegionLines::map_writable(file, size.st_size as usize)
            {
                lines.fill_by_writing().unwrap();
            }
        }
    }
    until("every link has ended", || {
        while let Some(event) = next_now(&server) {
            ended += usize::from(matches!(event, ControlEvent::Closed { .. }));
        }
        ended == links
    });
    assert!(counter(&server, "apertures") > 0 && counter(&server, "refused_frame") > 0);
    start(&dir.config(), 77).connect(&name("x"), b"", LONG).unwrap();
}

/// The next event, if there is one.
fn next_now(control: &Control) -> Option<ControlEvent> {
    thread_local!(static LEFT: std::cell::RefCell<std::collections::VecDeque<ControlEvent>> = const { std::cell::RefCell::new(std::collections::VecDeque::new()) });
    LEFT.with_borrow_mut(|left| {
        left.extend(control.inbox().take());
        left.pop_front()
    })
}

// ---- a server, against a client

/// A server played by hand that makes one link with a control plane.
fn against_client(dir: &Dir, config: &Config) -> (Control, LinkToken, OwnedFd, OwnedFd) {
    let listener = socket::bind(&dir.0.join("x")).unwrap();
    socket::listen(&listener).unwrap();
    let accept = || {
        let deadline = sys::monotonic_ns() + LONG.as_nanos() as u64;
        assert!(sys::wait_for(&[(listener.as_fd(), false)], deadline).unwrap());
        socket::accept(&listener).unwrap().unwrap()
    };
    let client = start(config, 2);
    std::thread::scope(|scope| {
        let made = scope.spawn(|| client.connect(&name("x"), b"", LONG).unwrap());
        let fd = accept();
        assert!(matches!(receive(&fd), Some((Frame::Hello(_), _))));
        let bytes = region_bytes(4096);
        let own = memory::create(bytes).unwrap();
        memory::seal(&own, SEALS_READ_ONLY).unwrap();
        let theirs = memory::create(bytes).unwrap();
        memory::seal(&theirs, SEALS_SIZE).unwrap();
        let offer = Frame::Offer(Offer {
            minor: 0,
            node: 1,
            features: LinkFeatures::APERTURE.bits(),
            client_ring_bytes: 4096,
            server_ring_bytes: 4096,
            packet_bytes: 64,
            cookie: [0; 16],
            greeting: vec![],
        });
        socket::send(&fd, &offer.to_bytes(), &[theirs.as_fd(), own.as_fd()]).unwrap();
        let wake = accept();
        assert!(matches!(receive(&wake), Some((Frame::Hello(_), _))));
        assert!(matches!(receive(&fd), Some((Frame::Filled, _))));
        send(&fd, &Frame::Ready);
        (client_token(made.join().unwrap()), fd, wake)
    })
    .pipe(|(token, fd, wake)| (client, token, fd, wake))
}

fn client_token(new: NewLink) -> LinkToken {
    new.token
}

/// So that what borrows can end before what is borrowed is handed on.
trait Pipe: Sized {
    fn pipe<R>(self, body: impl FnOnce(Self) -> R) -> R {
        body(self)
    }
}
impl<T> Pipe for T {}

fn file(bytes: u64, seals: SealFlags, filled: bool) -> OwnedFd {
    let file = memory::create(bytes as usize).unwrap();
    if filled {
        RegionLines::map_writable(&file, bytes as usize).unwrap().fill_by_writing().unwrap();
    }
    memory::seal(&file, seals).unwrap();
    file
}

#[test]
fn a_client_holds_nothing_that_is_not_as_agreed() {
    let good_rw = SEALS_SIZE | SealFlags::SEAL;
    let null = || OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
    let cases: Vec<(&str, ApertureAccess, OwnedFd)> = vec![
        ("no memory file", RW, null()),
        ("can shrink", RW, file(PAGE, SealFlags::GROW | SealFlags::SEAL, true)),
        ("seals can be added", RW, file(PAGE, SEALS_SIZE, true)),
        ("not writable", RW, file(PAGE, SEALS_READ_ONLY, true)),
        ("writable by others", RO, file(PAGE, good_rw, true)),
        ("too small", RW, file(0, good_rw, false)),
        ("too large", RW, file(2 * PAGE, good_rw, true)),
        ("not paid for", RW, file(PAGE, good_rw, false)),
        ("not paid for", RO, file(PAGE, SEALS_READ_ONLY, false)),
    ];
    for (what, access, file) in cases {
        let dir = Dir::new("apbadfile");
        let (client, _, fd, _wake) = against_client(&dir, &dir.config());
        say_with(&fd, 2, offer_of(access, PAGE), &[&file]);
        expect_violation(&client, &fd);
        assert_eq!(counter(&client, "refused_memory"), 1, "{what}");
    }
    let dir = Dir::new("apgoodfile");
    let (client, _, fd, _wake) = against_client(&dir, &dir.config());
    for (number, access, seals) in [(2, RW, good_rw), (4, RO, SEALS_READ_ONLY)] {
        say_with(&fd, number, offer_of(access, PAGE), &[&file(PAGE, seals, true)]);
        expect(&fd, number, ApertureWord::Ready);
        assert!(matches!(next(&client), ControlEvent::ApertureHeld { .. }));
    }
}

#[test]
fn a_client_takes_no_offer_out_of_turn() {
    let good = || file(PAGE, SEALS_SIZE | SealFlags::SEAL, true);
    let cases: Vec<(u32, ApertureWord, Vec<OwnedFd>)> = vec![
        // For an aperture of its own that it never asked about.
        (1, offer_of(RW, PAGE), vec![good()]),
        // Without its descriptor, or with too many.
        (2, offer_of(RW, PAGE), vec![]),
        (2, offer_of(RW, PAGE), vec![good(), good()]),
        (0, offer_of(RW, PAGE), vec![good()]),
        (2, offer_of(RW, PAGE + 1), vec![good()]),
        (2, request(RW, PAGE), vec![]),
        (2, ApertureWord::Filled, vec![]),
        (2, ApertureWord::Revoked, vec![]),
    ];
    for (number, w, files) in cases {
        let dir = Dir::new("apbadoffer");
        let (client, _, fd, _wake) = against_client(&dir, &dir.config());
        say_with(&fd, number, w, &files.iter().collect::<Vec<_>>());
        expect_violation(&client, &fd);
        assert_eq!(counter(&client, "refused_frame"), 1);
    }
    // One that is there already: an aperture has one holder, once.
    let dir = Dir::new("aptwice");
    let (client, _, fd, _wake) = against_client(&dir, &dir.config());
    say_with(&fd, 2, offer_of(RW, PAGE), &[&good()]);
    expect(&fd, 2, ApertureWord::Ready);
    assert!(matches!(next(&client), ControlEvent::ApertureHeld { .. }));
    say_with(&fd, 2, offer_of(RW, PAGE), &[&good()]);
    expect_violation(&client, &fd);
}

#[test]
fn offers_beyond_what_a_client_holds_are_refused_and_the_link_lives() {
    let dir = Dir::new("apmap");
    let (client, token, fd, _wake) = against_client(&dir, &dir.config().aperture_map_max(2 * PAGE));
    let good = |bytes| file(bytes, SEALS_SIZE | SealFlags::SEAL, true);
    say_with(&fd, 2, offer_of(RW, 3 * PAGE), &[&good(3 * PAGE)]);
    expect(&fd, 2, ApertureWord::Refused(Reason::Apertures));
    say(&fd, 2, ApertureWord::Revoked);
    say_with(&fd, 4, offer_of(RW, 2 * PAGE), &[&good(2 * PAGE)]);
    expect(&fd, 4, ApertureWord::Ready);
    // Revoked is not let go: it is still mapped here, so it counts.
    say(&fd, 4, ApertureWord::Revoked);
    say_with(&fd, 6, offer_of(RW, PAGE), &[&good(PAGE)]);
    expect(&fd, 6, ApertureWord::Refused(Reason::Apertures));
    say(&fd, 6, ApertureWord::Revoked);
    client.release_aperture(token, 4);
    expect(&fd, 4, ApertureWord::Released);
    say_with(&fd, 8, offer_of(RW, PAGE), &[&good(PAGE)]);
    expect(&fd, 8, ApertureWord::Ready);
    assert_eq!(counter(&client, "refused_aperture"), 2);
}

#[test]
fn a_client_counts_the_apertures_of_a_user_too() {
    let dir = Dir::new("apmapuser");
    let config = dir.config().apertures_per_user_max(2u32);
    let (client, token, fd, _wake) = against_client(&dir, &config);
    let offer = |number| {
        let file = file(PAGE, SEALS_SIZE | SealFlags::SEAL, true);
        say_with(&fd, number, offer_of(RW, PAGE), &[&file]);
    };
    for number in [2, 4] {
        offer(number);
        expect(&fd, number, ApertureWord::Ready);
    }
    offer(6);
    expect(&fd, 6, ApertureWord::Refused(Reason::Apertures));
    client.release_aperture(token, 2);
    expect(&fd, 2, ApertureWord::Released);
    offer(8);
    expect(&fd, 8, ApertureWord::Ready);
}

#[test]
fn a_client_that_exports_maps_only_what_it_asked_for() {
    let cases: Vec<(ApertureAccess, u64, Vec<OwnedFd>, &str)> = vec![
        (RO, PAGE, vec![make_for_owner(PAGE, RO).unwrap()], "refused_frame"),
        (RW, 2 * PAGE, vec![make_for_owner(2 * PAGE, RW).unwrap()], "refused_frame"),
        (RW, PAGE, vec![], "refused_frame"),
        (RW, PAGE, vec![file(PAGE, SEALS_SIZE, false)], "refused_memory"),
        (RW, PAGE, vec![file(2 * PAGE, SEALS_SIZE | SealFlags::SEAL, false)], "refused_memory"),
        (RW, PAGE, vec![file(PAGE, SEALS_READ_ONLY, false)], "refused_memory"),
    ];
    for (access, bytes, files, counted) in cases {
        let dir = Dir::new("apowner");
        let (client, token, fd, _wake) = against_client(&dir, &dir.config());
        let ledger = Arc::new(Ledger::default());
        let number = client
            .request_aperture(token, RW, ledger.reserve(PAGE, None, LIMITS).unwrap())
            .unwrap();
        expect(&fd, number, request(RW, PAGE));
        say_with(&fd, number, offer_of(access, bytes), &files.iter().collect::<Vec<_>>());
        expect_violation(&client, &fd);
        assert_eq!(counter(&client, counted), 1);
        assert_eq!(ledger.bytes(), 0, "what was set aside is given back");
    }
    // A server that says no, and one that answers after the client has thought better of it.
    let dir = Dir::new("apowner2");
    let (client, token, fd, _wake) = against_client(&dir, &dir.config());
    let number = client.request_aperture(token, RW, reserve(PAGE)).unwrap();
    expect(&fd, number, request(RW, PAGE));
    say(&fd, number, ApertureWord::Refused(Reason::Apertures));
    expect(&fd, number, ApertureWord::Revoked);
    assert!(matches!(next(&client), ControlEvent::ApertureRefused { .. }));
    let number = client.request_aperture(token, RW, reserve(PAGE)).unwrap();
    expect(&fd, number, request(RW, PAGE));
    client.revoke_aperture(token, number);
    expect(&fd, number, ApertureWord::Revoked);
    say_with(&fd, number, offer_of(RW, PAGE), &[&make_for_owner(PAGE, RW).unwrap()]);
    say(&fd, number, ApertureWord::Released);
    assert!(matches!(next(&client), ControlEvent::ApertureReleased { .. }));
}

// ---- a holder with the descriptor in its hands

#[test]
fn a_holder_that_punches_and_scribbles_harms_only_those_pages() {
    let dir = Dir::new("appunch");
    let mut node = Node::with_config(dir.config()).unwrap();
    let beside = node.message_area(1 << 16).unwrap();
    node.area_mut(beside).unwrap().fill(9);
    node.serve("x", Access::SameUser, Accept::Automatic(vec![])).unwrap();
    let (fd, _wake) = link_by_hand(&dir);
    let mut link = None;
    until("it is connected", || {
        node.poll().unwrap();
        link = node.links().find(|link| node.peer(*link).is_ok_and(|peer| peer.node.0 == 9));
        link.is_some()
    });
    let link = link.unwrap();
    let mut export = |access| {
        let id = node.export(link, 4 * PAGE, access).unwrap();
        let file = expect(&fd, id.number, offer_of(access, 4 * PAGE)).remove(0);
        say(&fd, id.number, ApertureWord::Ready);
        let view = node.aperture_view(id).unwrap();
        view.write(0, &[5; 4 * PAGE as usize]).unwrap();
        (id, view, file)
    };
    let (rw, rw_view, rw_file) = export(RW);
    let (ro, ro_view, ro_file) = export(RO);
    // The read-only one: nothing that changes it is allowed, through any descriptor.
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&ro_file));
    let again = rustix::fs::open(&path, rustix::fs::OFlags::RDWR, rustix::fs::Mode::empty());
    for file in std::iter::once(ro_file).chain(again) {
        assert!(RegionLines::map_writable(&file, 4096).is_err());
        assert!(rustix::io::pwrite(&file, b"x", 0).is_err());
        assert!(punch(&file, 0, PAGE).is_err());
        assert!(rustix::fs::ftruncate(&file, 0).is_err());
        assert!(memory::seal(&file, SealFlags::WRITE).is_err());
    }
    // The read-write one: its bytes, and no more.
    punch(&rw_file, 0, PAGE).unwrap();
    rustix::io::pwrite(&rw_file, &[6; 100], PAGE).unwrap();
    assert!(rustix::fs::ftruncate(&rw_file, 0).is_err());
    assert!(memory::seal(&rw_file, SealFlags::WRITE).is_err());
    let mut bytes = vec![0; 4 * PAGE as usize];
    rw_view.read(0, &mut bytes).unwrap();
    assert!(bytes[..4096] == [0; 4096] && bytes[4096..4196] == [6; 100] && bytes[4196] == 5);
    ro_view.read(0, &mut bytes).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 5));
    assert!(node.area(beside).unwrap().iter().all(|byte| *byte == 9));
    // Revoked: its pages are given back, and what it does to the orphan is its own affair.
    node.revoke_aperture(rw).unwrap();
    assert_eq!(rustix::fs::fstat(&rw_file).unwrap().st_blocks, 0);
    rustix::io::pwrite(&rw_file, &[7; 100], 0).unwrap();
    assert_eq!(rw_view.read(0, &mut bytes), Err(AccessError::Revoked));
    node.revoke_aperture(ro).unwrap();
    until("the read-only one is let go", || node.aperture_bytes() == (0, 0));
}
