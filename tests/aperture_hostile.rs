//! Attacks by either end of a link on apertures, and their refusal: the test itself is the
//! attacking end, frame by frame.
#![cfg(feature = "os")]

#[macro_use]
mod control_help;

use control_help::*;
use hamlyn::control::frame::{Frame, Hello, Memory, MemoryWord, Purpose, Welcome};
use hamlyn::control::*;
use hamlyn::node::Event;
use hamlyn::os::aperture::{ExportLimits, Ledger, Owned, Reservation};
use hamlyn::os::memory::{self, RegionLines, SEALS_READ_ONLY, SEALS_SIZE, region_bytes};
use hamlyn::os::{socket, sys};
use hamlyn::{AccessError, ApertureAccess, Config, Node};
use rustix::fs::{FallocateFlags, SealFlags};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

const PAGE: u64 = 4096;
const RW: ApertureAccess = ApertureAccess::ReadWrite;
const RO: ApertureAccess = ApertureAccess::ReadOnly;
const LIMITS: ExportLimits = ExportLimits { all: u64::MAX, user: u64::MAX };
const NO: MemoryWord = MemoryWord::Refused(Reason::Apertures);

fn served(config: &Config) -> Control {
    let server = start(config);
    server.serve(&name("x"), Access::SameUser, Accept::Automatic(vec![])).unwrap();
    server
}

/// A control plane that serves, and a client's link to it.
fn against_server(dir: &Dir, config: &Config) -> (Control, LinkToken, ByHand) {
    let server = served(config);
    let link = link_by_hand(dir);
    let ControlEvent::Connected(new) = next(&server) else { panic!() };
    (server, new.token, link)
}

fn of(number: u32, w: MemoryWord) -> Frame {
    word(Memory::Aperture(number), w)
}

fn tell(fd: &OwnedFd, number: u32, w: MemoryWord) {
    send(fd, &of(number, w));
}

fn pass(fd: &OwnedFd, number: u32, files: &[&OwnedFd]) {
    pass_with(fd, Memory::Aperture(number), files).unwrap();
}

fn revoked(fd: &OwnedFd, number: u32) {
    send(fd, &Frame::ApertureRevoked { number });
}

#[track_caller]
fn expect(fd: &OwnedFd, number: u32, w: MemoryWord) -> Vec<OwnedFd> {
    expect_word(fd, Memory::Aperture(number), w)
}

#[track_caller]
fn expect_frame(fd: &OwnedFd, wanted: Frame) {
    let (frame, files) = receive(fd).expect("the link has ended");
    assert_eq!((frame, files.len()), (wanted, 0));
}

#[track_caller]
fn expect_released(fd: &OwnedFd, number: u32) {
    expect_frame(fd, Frame::ApertureReleased { number });
}

#[track_caller]
fn expect_violation(control: &Control, fd: &OwnedFd) {
    expect_refusal(fd, Reason::Malformed);
    let ControlEvent::Closed { reason, .. } = next(control) else { panic!() };
    assert_eq!(reason, LinkEnd::Violation);
}

fn offer_of(access: ApertureAccess, bytes: u64) -> MemoryWord {
    MemoryWord::Offer { access, bytes }
}

fn taken(bytes: u64) -> MemoryWord {
    MemoryWord::Take { bytes }
}

fn reserve(bytes: u64) -> Reservation {
    Arc::new(Ledger::default()).reserve(bytes, None, LIMITS).unwrap()
}

fn punch(file: &OwnedFd, from: u64, bytes: u64) -> rustix::io::Result<()> {
    rustix::fs::fallocate(file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, from, bytes)
}

fn seals(access: ApertureAccess) -> SealFlags {
    if access == RW { SEALS_SIZE | SealFlags::SEAL } else { SEALS_READ_ONLY }
}

/// A memory file of which the first `filled` bytes have been paid for.
fn file(bytes: u64, seals: SealFlags, filled: u64) -> OwnedFd {
    let file = memory::create(bytes as usize).unwrap();
    if filled > 0 {
        let lines = RegionLines::map_writable(&file, filled as usize).unwrap();
        lines.fill_by_writing().unwrap();
    }
    memory::seal(&file, seals).unwrap();
    file
}

fn good(access: ApertureAccess, bytes: u64) -> OwnedFd {
    file(bytes, seals(access), bytes)
}

/// Descriptors in place of an aperture of two pages that are not as agreed.
fn not_as_agreed() -> Vec<(&'static str, ApertureAccess, OwnedFd)> {
    const BYTES: u64 = 2 * PAGE;
    let punched = |access| {
        let file = file(BYTES, SealFlags::empty(), BYTES);
        punch(&file, PAGE, PAGE).unwrap();
        memory::seal(&file, seals(access)).unwrap();
        file
    };
    let null = || OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
    let (rw, ro) = (seals(RW), seals(RO));
    vec![
        ("no memory file", RW, null()),
        ("a socket", RO, socket::pair().unwrap().0),
        ("no seals", RO, file(BYTES, SealFlags::empty(), BYTES)),
        ("can shrink", RW, file(BYTES, SealFlags::GROW | SealFlags::SEAL, BYTES)),
        ("seals can be added", RW, file(BYTES, SEALS_SIZE, BYTES)),
        ("not writable", RW, file(BYTES, ro, BYTES)),
        ("writable by others", RO, file(BYTES, rw, BYTES)),
        ("too small", RW, file(PAGE, rw, PAGE)),
        ("too large", RW, file(3 * PAGE, rw, 3 * PAGE)),
        ("not paid for", RW, file(BYTES, rw, 0)),
        ("not paid for", RO, file(BYTES, ro, 0)),
        ("half of it paid for", RW, file(BYTES, rw, PAGE)),
        ("half of it paid for", RO, file(BYTES, ro, PAGE)),
        ("paid for and given back", RW, punched(RW)),
        ("paid for and given back", RO, punched(RO)),
    ]
}

// ---- a client, against a server

#[test]
fn words_out_of_turn_end_the_link_and_only_it() {
    let dir = Dir::new("apturn");
    let server = served(&dir.config());
    let bad = [
        // Of the client's own, which the server has not been offered.
        of(1, taken(PAGE)),
        of(1, MemoryWord::Pass),
        of(1, MemoryWord::Held),
        of(1, NO),
        Frame::ApertureRevoked { number: 1 },
        Frame::ApertureReleased { number: 1 },
        // Of the server's own, none of which it has exported.
        of(2, offer_of(RW, PAGE)),
        of(2, taken(PAGE)),
        of(2, MemoryWord::Held),
        of(2, MemoryWord::Refused(Reason::Bytes)),
        Frame::ApertureRevoked { number: 2 },
        Frame::ApertureReleased { number: 2 },
        of(0, offer_of(RW, PAGE)),
        Frame::ApertureReleased { number: 0 },
        // Impossible sizes.
        of(1, offer_of(RW, 0)),
        of(1, offer_of(RO, PAGE - 1)),
        of(1, offer_of(RW, u64::MAX - PAGE + 1)),
    ];
    for (i, frame) in bad.into_iter().enumerate() {
        let link = link_by_hand(&dir);
        let ControlEvent::Connected(_) = next(&server) else { panic!() };
        send(&link.fd, &frame);
        expect_violation(&server, &link.fd);
        assert_eq!(counter(&server, "refused_frame"), i as u64 + 1);
    }
    start(&dir.config()).connect(&name("x"), b"", LONG).unwrap();
}

#[test]
fn a_number_is_never_used_again() {
    let dir = Dir::new("apnumber");
    for again in [3, 5] {
        let (server, token, link) = against_server(&dir, &dir.config());
        let fd = &link.fd;
        hold(fd, 5, RW, PAGE);
        revoked(fd, 5);
        assert!(matches!(next(&server), ControlEvent::ApertureHeld { number: 5, .. }));
        assert!(matches!(next(&server), ControlEvent::ApertureRevoked { number: 5, .. }));
        // Not over before the holder has let go, and not again afterwards, nor one before it.
        server.release_aperture(token, 5);
        expect_released(fd, 5);
        tell(fd, again, offer_of(RW, PAGE));
        expect_violation(&server, fd);
    }
}

/// Offers one as an honest owner does, until it is held.
#[track_caller]
fn hold(fd: &OwnedFd, number: u32, access: ApertureAccess, bytes: u64) {
    tell(fd, number, offer_of(access, bytes));
    expect(fd, number, taken(bytes));
    pass(fd, number, &[&good(access, bytes)]);
    expect(fd, number, MemoryWord::Held);
}

#[test]
fn a_server_holds_nothing_that_is_not_as_agreed_or_not_paid_for() {
    let dir = Dir::new("apunpaid");
    let server = served(&dir.config());
    for (i, (what, access, file)) in not_as_agreed().into_iter().enumerate() {
        let link = link_by_hand(&dir);
        let ControlEvent::Connected(_) = next(&server) else { panic!() };
        tell(&link.fd, 1, offer_of(access, 2 * PAGE));
        expect(&link.fd, 1, taken(2 * PAGE));
        pass(&link.fd, 1, &[&file]);
        expect_violation(&server, &link.fd);
        assert_eq!(counter(&server, "refused_memory"), i as u64 + 1, "{what}");
    }
    assert_eq!(counter(&server, "apertures"), 0);
    for access in [RW, RO] {
        hold(&link_by_hand(&dir).fd, 1, access, 2 * PAGE);
    }
    assert_eq!(counter(&server, "apertures"), 2);
}

#[test]
fn what_an_owner_passes_out_of_turn_is_not_taken() {
    let dir = Dir::new("appass");
    let server = served(&dir.config());
    let own = good(RW, PAGE);
    // None; two; that of another; with another frame.
    let cases = [(MemoryWord::Pass, 1, 0), (MemoryWord::Pass, 1, 2), (MemoryWord::Pass, 3, 1)];
    for (i, (w, number, count)) in cases.into_iter().enumerate() {
        let link = link_by_hand(&dir);
        let ControlEvent::Connected(_) = next(&server) else { panic!() };
        tell(&link.fd, 1, offer_of(RW, PAGE));
        expect(&link.fd, 1, taken(PAGE));
        assert_eq!(w, MemoryWord::Pass);
        pass(&link.fd, number, &vec![&own; count]);
        expect_violation(&server, &link.fd);
        assert_eq!(counter(&server, "refused_memory"), i as u64 + 1);
    }
    // When the owner does not wait for it.
    let link = link_by_hand(&dir);
    let ControlEvent::Connected(_) = next(&server) else { panic!() };
    let passed = pass_with(&link.fd, Memory::Aperture(1), &[&own]);
    assert_eq!(passed.is_err(), socket::has_pass_rights(), "{passed:?}");
}

#[test]
fn beyond_the_limits_the_answer_is_no_and_the_link_lives() {
    let dir = Dir::new("aplimits");
    let config = dir.config().aperture_map_max(4 * PAGE).apertures_per_link_max(3u32);
    let (server, token, link) = against_server(&dir, &config);
    let fd = &link.fd;
    tell(fd, 1, offer_of(RW, 5 * PAGE));
    expect(fd, 1, NO);
    // One descriptor is waited for at a time.
    for number in [5, 7, 9] {
        tell(fd, number, offer_of(RW, PAGE));
    }
    expect(fd, 5, taken(PAGE));
    tell(fd, 11, offer_of(RW, PAGE));
    expect(fd, 11, NO);
    assert_eq!(counter(&server, "refused_aperture"), 2);
    revoked(fd, 1);
    revoked(fd, 11);
    // Taken back before it is taken, and while it is waited for.
    revoked(fd, 9);
    expect_released(fd, 9);
    revoked(fd, 5);
    expect_released(fd, 5);
    expect(fd, 7, taken(PAGE));
    revoked(fd, 7);
    expect_released(fd, 7);
    tell(fd, 13, offer_of(RW, 2 * PAGE));
    expect(fd, 13, taken(2 * PAGE));
    // The other end's exports do not count against those of this one.
    let export = |token| server.export_aperture(token, RW, PAGE, good(RW, PAGE));
    assert!(export(token).is_ok());
    assert_eq!(export(ConnectionId(u64::MAX)), Err(ApertureError::NoLink));
}

#[test]
fn a_users_bytes_are_counted_until_they_are_given_back() {
    let dir = Dir::new("apquota");
    let rings = (region_bytes(4096) + region_bytes(32 << 10)) as u64;
    let config = dir.config().bytes_per_user_max(rings + 2 * PAGE);
    let (server, _, link) = against_server(&dir, &config);
    let fd = &link.fd;
    for number in [1, 3, 5] {
        tell(fd, number, offer_of(RW, 3 * PAGE));
        expect(fd, number, MemoryWord::Refused(Reason::Bytes));
        revoked(fd, number);
    }
    for number in [7, 9, 11] {
        tell(fd, number, offer_of(RW, 2 * PAGE));
        expect(fd, number, taken(2 * PAGE));
        revoked(fd, number);
        expect_released(fd, number);
    }
    assert_eq!(counter(&server, "refused_aperture"), 3);
}

#[test]
fn a_users_apertures_are_counted_over_all_links_until_they_are_given_back() {
    let dir = Dir::new("apusers");
    let server = served(&dir.config().apertures_per_user_max(3u32));
    let mut tokens = Vec::new();
    let mut link = || {
        let link = link_by_hand(&dir);
        let ControlEvent::Connected(new) = next(&server) else { panic!() };
        tokens.push(new.token);
        link
    };
    let (first, second) = (link(), link());
    for number in [1, 3] {
        hold(&first.fd, number, RW, PAGE);
    }
    hold(&second.fd, 1, RO, PAGE);
    for (fd, number) in [(&first.fd, 5), (&second.fd, 3)] {
        tell(fd, number, offer_of(RW, PAGE));
        expect(fd, number, NO);
    }
    assert_eq!(counter(&server, "refused_aperture"), 2);
    // One that was held, and given back.
    server.release_aperture(tokens[1], 1);
    expect_released(&second.fd, 1);
    hold(&first.fd, 7, RW, PAGE);
    // Those of a link that has ended; one that was not passed and is taken back.
    drop(first);
    while !matches!(next(&server), ControlEvent::Closed { .. }) {}
    for number in [5, 7] {
        hold(&second.fd, number, RW, PAGE);
    }
    tell(&second.fd, 9, offer_of(RW, PAGE));
    expect(&second.fd, 9, taken(PAGE));
    tell(&second.fd, 11, offer_of(RW, PAGE));
    expect(&second.fd, 11, NO);
    revoked(&second.fd, 9);
    expect_released(&second.fd, 9);
    hold(&second.fd, 13, RW, PAGE);
}

#[test]
fn apertures_that_wait_are_bounded_and_the_end_of_a_link_waits_for_no_receiver() {
    let dir = Dir::new("apflood");
    // Far longer than the test waits.
    let config = dir.config().handshake_timeout_ms(600_000u32);
    let (server, _, link) = against_server(&dir, &config);
    for i in 0..17 {
        tell(&link.fd, 2 * i + 1, offer_of(RW, PAGE));
        if i == 0 {
            expect(&link.fd, 1, taken(PAGE));
        }
    }
    expect_violation(&server, &link.fd);
    until("no receiver waits for it any more", || counter(&server, "receivers") == 0);
    // Refusals that are never acknowledged are bounded, too.
    let dir = Dir::new("apflood2");
    let (server, _, link) = against_server(&dir, &dir.config().aperture_map_max(0u64));
    for i in 0..256 {
        tell(&link.fd, 2 * i + 1, offer_of(RW, PAGE));
        expect(&link.fd, 2 * i + 1, NO);
    }
    tell(&link.fd, 513, offer_of(RW, PAGE));
    expect_violation(&server, &link.fd);
}

#[test]
fn whoever_does_not_pass_in_time_is_told_and_keeps_the_link() {
    let dir = Dir::new("apslow");
    let (server, _, link) = against_server(&dir, &dir.config().handshake_timeout_ms(500u32));
    let fd = &link.fd;
    tell(fd, 1, offer_of(RW, PAGE));
    expect(fd, 1, taken(PAGE));
    expect(fd, 1, MemoryWord::Refused(Reason::TooSlow));
    assert_eq!(counter(&server, "refused_slow"), 1);
    revoked(fd, 1);
    hold(fd, 3, RW, PAGE);
    assert!(matches!(next(&server), ControlEvent::ApertureHeld { number: 3, .. }));
    // And what is over is over.
    tell(fd, 1, MemoryWord::Held);
    expect_violation(&server, fd);
}

/// The holder's messages about apertures of `control`'s own, by hand over `fd`.
fn what_the_holder_says_is_checked(control: &Control, token: LinkToken, fd: &OwnedFd) {
    let offer = |access| {
        let (owned, file) = Owned::make(access, reserve(PAGE)).unwrap();
        let number = control.export_aperture(token, access, PAGE, file).unwrap();
        expect(fd, number, offer_of(access, PAGE));
        (owned, number)
    };
    let expect_revoked = |number| expect_frame(fd, Frame::ApertureRevoked { number });
    let release = |number| send(fd, &Frame::ApertureReleased { number });
    // Refused: it has no holder; both have sent their last frame.
    let (_owned, number) = offer(RO);
    tell(fd, number, NO);
    expect_revoked(number);
    let ControlEvent::ApertureRefused { why, .. } = next(control) else { panic!() };
    assert_eq!(why, Reason::Apertures);
    // Refused when its descriptor had come.
    let (_owned, number) = offer(RO);
    tell(fd, number, taken(PAGE));
    assert_eq!(expect(fd, number, MemoryWord::Pass).len(), 1);
    tell(fd, number, MemoryWord::Refused(Reason::Unavailable));
    expect_revoked(number);
    assert!(matches!(next(control), ControlEvent::ApertureRefused { .. }));
    // Taken back before it was taken, and before it was mapped; the words crossed.
    let (_owned, number) = offer(RW);
    control.revoke_aperture(token, number);
    tell(fd, number, taken(PAGE));
    expect_revoked(number);
    release(number);
    assert!(matches!(next(control), ControlEvent::ApertureReleased { .. }));
    let (_owned, number) = offer(RW);
    tell(fd, number, taken(PAGE));
    expect(fd, number, MemoryWord::Pass);
    control.revoke_aperture(token, number);
    tell(fd, number, MemoryWord::Held);
    expect_revoked(number);
    release(number);
    assert!(matches!(next(control), ControlEvent::ApertureReleased { .. }));
    // Let go of by the holder.
    let (_owned, number) = offer(RW);
    tell(fd, number, taken(PAGE));
    expect(fd, number, MemoryWord::Pass);
    tell(fd, number, MemoryWord::Held);
    assert!(matches!(next(control), ControlEvent::ApertureReady { .. }));
    release(number);
    expect_revoked(number);
    assert!(matches!(next(control), ControlEvent::ApertureReleased { .. }));
    // Twice.
    release(number);
    expect_violation(control, fd);
}

#[test]
fn what_the_holder_says_of_the_servers_own_is_checked() {
    let dir = Dir::new("apanswers");
    let (server, token, link) = against_server(&dir, &dir.config());
    what_the_holder_says_is_checked(&server, token, &link.fd);
}

#[test]
fn what_the_holder_says_of_the_clients_own_is_checked() {
    let dir = Dir::new("apowner");
    let (client, token, fd, _wake) = against_client(&dir, &dir.config());
    what_the_holder_says_is_checked(&client, token, &fd);
}

#[test]
fn a_holder_takes_what_was_offered_once_and_holds_what_was_passed() {
    let dir = Dir::new("aptake");
    let bad: [&[MemoryWord]; 5] = [
        &[taken(2 * PAGE)],
        &[taken(0)],
        &[MemoryWord::Held],
        &[taken(PAGE), taken(PAGE)],
        &[taken(PAGE), MemoryWord::Held, MemoryWord::Held],
    ];
    for words in bad {
        let (server, token, link) = against_server(&dir, &dir.config());
        let number = server.export_aperture(token, RW, PAGE, good(RW, PAGE)).unwrap();
        expect(&link.fd, number, offer_of(RW, PAGE));
        for w in words {
            tell(&link.fd, number, *w);
        }
        if words[0] == taken(PAGE) {
            expect(&link.fd, number, MemoryWord::Pass);
        }
        expect_refusal(&link.fd, Reason::Malformed);
        assert_eq!(counter(&server, "refused_frame"), 1, "{words:?}");
    }
}

#[test]
fn exports_that_the_holder_never_maps_are_bounded() {
    let dir = Dir::new("apdeaf");
    let (server, token, _link) = against_server(&dir, &dir.config().apertures_per_link_max(20u32));
    let offer = || server.export_aperture(token, RW, PAGE, good(RW, PAGE));
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
        let link = link_by_hand(&dir);
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
                    let _ = server.export_aperture(token, access, PAGE, good(access, PAGE));
                }
                if random(4) == 0 {
                    server.revoke_aperture(token, 2 * random(8) as u32);
                }
                if let Some((number, pages)) = held.pop() {
                    // A held aperture can be used, for any messages of its owner meanwhile.
                    let mut bytes = [0; 64];
                    pages.read(pages.bytes() - 64, &mut bytes).unwrap();
                    server.release_aperture(token, number);
                }
            }
            // Mostly what an honest owner would say, so that most states are reached.
            let access = if random(2) == 0 { RW } else { RO };
            let frame = match random(12) {
                0..=6 => {
                    number += 2;
                    of(number, offer_of(access, (1 + random(3)) * PAGE))
                }
                7..=8 => Frame::ApertureRevoked { number: random(40) as u32 },
                9 => of(random(40) as u32, MemoryWord::Held),
                10 => Frame::ApertureReleased { number: random(40) as u32 },
                _ => of(random(40) as u32, MemoryWord::Refused(Reason::Bytes)),
            };
            if socket::send(&link.fd, &frame.to_bytes(), &[]).is_err() {
                break;
            }
            if !matches!(frame, Frame::Memory { word: MemoryWord::Offer { .. }, .. }) {
                continue;
            }
            // Every requested aperture is passed, and is mostly as agreed.
            if let Some((Frame::Memory { memory, word: MemoryWord::Take { bytes } }, _)) =
                receive(&link.fd)
            {
                let size = if random(8) == 0 { PAGE } else { bytes };
                let _ = pass_with(&link.fd, memory, &[&good(access, size)]);
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
    start(&dir.config()).connect(&name("x"), b"", LONG).unwrap();
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
    let _ = std::fs::remove_file(dir.0.join("x"));
    let listener = socket::bind(&dir.0.join("x")).unwrap();
    socket::listen(&listener).unwrap();
    let accept = || {
        let deadline = sys::monotonic_ns() + LONG.as_nanos() as u64;
        assert!(sys::wait_for(&[(listener.as_fd(), false)], deadline).unwrap());
        let fd = socket::accept(&listener).unwrap().unwrap();
        socket::accept_descriptors(&fd, true);
        fd
    };
    let client = start(config);
    let (token, fd, wake) = std::thread::scope(|scope| {
        let made = scope.spawn(|| client.connect(&name("x"), b"", LONG).unwrap());
        let fd = accept();
        assert!(matches!(receive(&fd), Some((Frame::Hello(_), _))));
        send(
            &fd,
            &Frame::Welcome(Welcome {
                minor: 0,
                credential: Identity::new().unwrap().credential(),
                features: LinkFeatures::APERTURE.bits(),
                client_ring_bytes: 4096,
                server_ring_bytes: 4096,
                packet_bytes: 64,
                cookie: [0; 16],
                greeting: vec![],
            }),
        );
        expect_word(&fd, RING, ring_offer(4096));
        say(&fd, RING, take(4096));
        expect_word(&fd, RING, MemoryWord::Pass);
        say(&fd, RING, MemoryWord::Held);
        say(&fd, THEIR_RING, ring_offer(4096));
        expect_word(&fd, THEIR_RING, take(4096));
        pass_with(&fd, THEIR_RING, &[&ring_file(4096).1]).unwrap();
        expect_word(&fd, THEIR_RING, MemoryWord::Held);
        let wake = accept();
        let Some((Frame::Hello(Hello { purpose: Purpose::Wake, .. }), _)) = receive(&wake) else {
            panic!()
        };
        send(&fd, &Frame::Ready);
        (made.join().unwrap().token, fd, wake)
    });
    (client, token, fd, wake)
}

#[test]
fn a_client_holds_nothing_that_is_not_as_agreed_or_not_paid_for() {
    let dir = Dir::new("apbadfile");
    for (what, access, file) in not_as_agreed() {
        let (client, _, fd, _wake) = against_client(&dir, &dir.config());
        tell(&fd, 2, offer_of(access, 2 * PAGE));
        expect(&fd, 2, taken(2 * PAGE));
        pass(&fd, 2, &[&file]);
        expect_violation(&client, &fd);
        assert_eq!(counter(&client, "refused_memory"), 1, "{what}");
    }
    let (client, _, fd, _wake) = against_client(&dir, &dir.config());
    for (number, access) in [(2, RW), (4, RO)] {
        hold(&fd, number, access, PAGE);
        assert!(matches!(next(&client), ControlEvent::ApertureHeld { .. }));
    }
}

#[test]
fn a_client_takes_no_offer_out_of_turn() {
    let dir = Dir::new("apbadoffer");
    let bad = [
        // For an aperture of its own that it never offered.
        of(1, offer_of(RW, PAGE)),
        of(0, offer_of(RW, PAGE)),
        of(2, offer_of(RW, PAGE + 1)),
        of(2, taken(PAGE)),
        of(2, MemoryWord::Pass),
        of(2, MemoryWord::Held),
        of(2, NO),
        Frame::ApertureRevoked { number: 2 },
        Frame::ApertureReleased { number: 2 },
    ];
    for frame in bad {
        let (client, _, fd, _wake) = against_client(&dir, &dir.config());
        send(&fd, &frame);
        expect_violation(&client, &fd);
        assert_eq!(counter(&client, "refused_frame"), 1, "{frame:?}");
    }
    // One that is there already: an aperture has one holder, once.
    let (client, _, fd, _wake) = against_client(&dir, &dir.config());
    hold(&fd, 2, RW, PAGE);
    assert!(matches!(next(&client), ControlEvent::ApertureHeld { .. }));
    tell(&fd, 2, offer_of(RW, PAGE));
    expect_violation(&client, &fd);
}

#[test]
fn offers_beyond_what_a_client_holds_are_refused_and_the_link_lives() {
    let dir = Dir::new("apmap");
    let (client, token, fd, _wake) = against_client(&dir, &dir.config().aperture_map_max(2 * PAGE));
    tell(&fd, 2, offer_of(RW, 3 * PAGE));
    expect(&fd, 2, NO);
    revoked(&fd, 2);
    hold(&fd, 4, RW, 2 * PAGE);
    // Revoked is not let go: it is still mapped here, so it counts.
    revoked(&fd, 4);
    tell(&fd, 6, offer_of(RW, PAGE));
    expect(&fd, 6, NO);
    revoked(&fd, 6);
    client.release_aperture(token, 4);
    expect_released(&fd, 4);
    hold(&fd, 8, RW, PAGE);
    assert_eq!(counter(&client, "refused_aperture"), 2);
}

#[test]
fn a_client_counts_the_apertures_of_a_user_too() {
    let dir = Dir::new("apmapuser");
    let config = dir.config().apertures_per_user_max(2u32);
    let (client, token, fd, _wake) = against_client(&dir, &config);
    for number in [2, 4] {
        hold(&fd, number, RW, PAGE);
    }
    tell(&fd, 6, offer_of(RW, PAGE));
    expect(&fd, 6, NO);
    client.release_aperture(token, 2);
    expect_released(&fd, 2);
    hold(&fd, 8, RW, PAGE);
}

// ---- a holder with the descriptor in its hands

#[test]
fn a_holder_that_punches_and_scribbles_harms_only_those_pages() {
    let dir = Dir::new("appunch");
    let mut node = Node::with_config(dir.config()).unwrap();
    let beside = node.message_area(1 << 16).unwrap();
    node.area_mut(beside).unwrap().fill(9);
    node.serve("x", Access::SameUser, Accept::Automatic(vec![])).unwrap();
    let by_hand = link_by_hand(&dir);
    let fd = &by_hand.fd;
    let mut link = None;
    until("it is connected", || {
        node.poll().unwrap();
        if let Some(Event::Connected { link: new, .. }) = node.next_event() {
            link = Some(new);
        }
        link.is_some()
    });
    let link = link.unwrap();
    let mut export = |access| {
        let id = node.export(link, 4 * PAGE, access).unwrap();
        expect(fd, id.number, offer_of(access, 4 * PAGE));
        tell(fd, id.number, taken(4 * PAGE));
        let file = expect(fd, id.number, MemoryWord::Pass).remove(0);
        tell(fd, id.number, MemoryWord::Held);
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
    // Taken back: what it does to the orphan is its own affair, and counts as its own.
    node.revoke_aperture(rw).unwrap();
    rustix::io::pwrite(&rw_file, &[7; 100], 0).unwrap();
    punch(&rw_file, 0, PAGE).unwrap();
    assert_eq!(rw_view.read(0, &mut bytes), Err(AccessError::Revoked));
    assert_eq!(node.aperture_bytes(), (8 * PAGE, 4 * PAGE));
    node.revoke_aperture(ro).unwrap();
    until("the read-only one is let go", || node.aperture_bytes() == (4 * PAGE, 4 * PAGE));
    drop(rw_file);
    until("the read-write one is let go", || node.aperture_bytes() == (0, 0));
}
