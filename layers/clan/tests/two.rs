//! Two programs, here two nodes of one process: everything that the README promises.

use hamlyn::Access;
use hamlyn_clan::{
    Clan, Completion, Config, Endpoint, Error, EventQueue, Region, Request, Rights, Target, Trip,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const LIMIT: Option<Duration> = Some(Duration::from_secs(60));

fn config(dir: &std::path::Path) -> Config {
    let mut config = Config::from_env().unwrap();
    config.node = config.node.dir(dir);
    config
}

struct Two {
    _dir: tempfile::TempDir,
    /// It has a thread of progress.
    server: Clan,
    client: Clan,
    accepted: Endpoint,
    connected: Endpoint,
}

fn two_of(change: impl Fn(&mut Config)) -> Two {
    let dir = tempfile::tempdir().unwrap();
    let mut of = config(dir.path());
    change(&mut of);
    let (server, client) = (Clan::new(of.clone()).unwrap(), Clan::new(of).unwrap());
    server.listen("two", Access::SameUser).unwrap();
    server.start_progress().unwrap();
    let connected = client.connect("two", LIMIT).unwrap();
    let accepted = server.accept(LIMIT).unwrap();
    Two { _dir: dir, server, client, accepted, connected }
}

fn two() -> Two {
    two_of(|_| {})
}

fn target(queue: &EventQueue, user: u64) -> Target {
    Target { queue: queue.clone(), event: queue.register(user).unwrap() }
}

/// Waits until a condition holds, which the other node's thread makes true.
fn until(mut holds: impl FnMut() -> bool) {
    let began = std::time::Instant::now();
    while !holds() {
        assert!(began.elapsed() < Duration::from_secs(60), "it does not come true");
        std::thread::yield_now();
    }
}

/// A region of the server, and the client's aperture onto it.
fn window(two: &Two, bytes: u64, rights: Rights) -> (Region, hamlyn_clan::Aperture) {
    let region = two.server.region(bytes, 128).unwrap();
    let export = region.export(&two.accepted, rights).unwrap();
    (region, two.connected.import(&export.handle, LIMIT).unwrap())
}

#[test]
fn a_put_trips_the_wires_on_its_bytes_and_no_others() {
    let two = two();
    let (region, aperture) = window(&two, 1 << 20, Rights::Write);
    let queue = two.server.event_queue(128).unwrap();
    let hit = region.wire(100..104, Trip::Write, Some(target(&queue, 1))).unwrap();
    let beside = region.wire(104..108, Trip::Write, Some(target(&queue, 2))).unwrap();
    let reads = region.wire(100..104, Trip::Read, Some(target(&queue, 3))).unwrap();
    aperture.put(96, b"12345678", LIMIT).unwrap();
    assert_eq!(two.server.wait(&queue, LIMIT).unwrap().user, 1);
    assert!(hit.has_fired() && !beside.has_fired() && !reads.has_fired());
    let (word, bit) = hit.place();
    assert_eq!(region.fired(word), 1 << bit);
    assert_eq!(region.load(96).unwrap(), u64::from_le_bytes(*b"12345678"));

    // Fired, it is silent until it is armed; disabled, for good.
    aperture.put(100, b"again", LIMIT).unwrap();
    assert_eq!(two.server.wait(&queue, LIMIT).unwrap().user, 2);
    assert!(hit.arm() && !hit.arm() && beside.arm());
    hit.disable();
    aperture.put(100, b"hidden!!", LIMIT).unwrap();
    assert_eq!(two.server.wait(&queue, LIMIT).unwrap().user, 2);
    assert!(!hit.has_fired() && queue.take().is_none());
    hit.enable();
    beside.arm();
    // Many packets, of which one touches the wires.
    aperture.put(0, &vec![7; 1 << 20], LIMIT).unwrap();
    let mut users = [0; 2].map(|_| two.server.wait(&queue, LIMIT).unwrap().user);
    users.sort_unstable();
    assert_eq!(users, [1, 2]);
    until(|| region.load((1 << 20) - 8).unwrap() == u64::from_le_bytes([7; 8]));
    drop((hit, beside));
    aperture.put(100, b"no wires", LIMIT).unwrap();
    until(|| region.load(96).unwrap() >> 32 == u32::from_le_bytes(*b"no w").into());
    assert!(queue.take().is_none());
}

#[test]
fn a_waiter_misses_no_put() {
    let two = two();
    let (region, aperture) = window(&two, 4096, Rights::Write);
    let queue = two.server.event_queue(1).unwrap();
    let wire = region.wire(0..8, Trip::Write, Some(target(&queue, 0))).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 1..=2000u64 {
                aperture.put(0, &number.to_le_bytes(), LIMIT).unwrap();
                if number % 100 == 0 {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        });
        let mut seen = 0;
        while seen < 2000 {
            two.server.wait(&queue, LIMIT).unwrap();
            // Armed first, then looked at.
            wire.arm();
            seen = region.load(0).unwrap();
        }
    });
}

#[test]
fn a_get_is_answered_by_the_owner_and_trips_its_wires_for_reads() {
    let two = two();
    let (region, aperture) = window(&two, 100_000, Rights::ReadWrite);
    let queue = two.server.event_queue(4).unwrap();
    let _read = region.wire(50_000..50_001, Trip::Read, Some(target(&queue, 5))).unwrap();
    let bytes: Vec<u8> = (0..100_000u32).map(|n| n as u8).collect();
    region.write(0, &bytes).unwrap();
    let mut got = vec![0; 99_000];
    aperture.get(1000, &mut got, LIMIT).unwrap();
    assert!(got == bytes[1000..]);
    assert_eq!(two.server.wait(&queue, LIMIT).unwrap().user, 5);
    aperture.get(0, &mut got[..1], LIMIT).unwrap();
    assert_eq!(got[0], 0);
    assert_eq!(two.server.figures().bytes_read_by_peers, 99_001);
    aperture.get(0, &mut [], LIMIT).unwrap();
}

#[test]
fn rights_and_bounds_are_kept_at_both_ends() {
    let two = two();
    let (_region, write) = window(&two, 100, Rights::Write);
    let (_other, read) = window(&two, 100, Rights::Read);
    for error in [
        write.get(0, &mut [0], LIMIT).unwrap_err(),
        read.put(0, b"x", LIMIT).unwrap_err(),
        write.put(100, b"x", LIMIT).unwrap_err(),
        write.put(u64::MAX, b"xy", LIMIT).unwrap_err(),
        write.put(90, &[0; 11], LIMIT).unwrap_err(),
        write.store(0, b"x").unwrap_err(),
    ] {
        assert!(matches!(error, Error::Misuse(_)), "{error:?}");
    }
    for wrong in [&[][..], &[0; 119], &[0; 120], &[0xFF; 120]] {
        assert!(matches!(two.connected.import(wrong, LIMIT), Err(Error::Refused(_))));
    }
    assert!(two.server.region(0, 0).is_err());
    assert!(_region.wire(99..101, Trip::Write, None).is_err());
    assert!(_region.wire(5..5, Trip::Write, None).is_err());
}

#[test]
fn a_region_that_was_taken_back_is_revoked_for_its_holder() {
    let two = two();
    let region = two.server.region(4096, 0).unwrap();
    let exports = [Rights::Write, Rights::ReadWrite]
        .map(|rights| region.export(&two.accepted, rights).unwrap());
    let [first, second] =
        exports.map(|export| two.connected.import(&export.handle, LIMIT).unwrap());
    // Of another region: nothing.
    two.server.region(64, 0).unwrap().revoke(&exports[1]);
    region.revoke(&exports[0]);
    until(|| {
        two.client.manager().poll().unwrap();
        first.put(0, b"late", LIMIT) == Err(Error::Revoked)
    });
    // The other's rights stand on their own.
    second.put(0, b"fine", LIMIT).unwrap();
    until(|| region.load(0).unwrap() == u64::from(u32::from_le_bytes(*b"fine")));
    drop(region);
    until(|| second.get(0, &mut [0], LIMIT) == Err(Error::Revoked));
}

#[test]
fn stores_through_a_mapped_aperture_need_nobody_and_a_put_trips() {
    let two = two();
    let region = two.accepted.mapped_region(8192, Rights::ReadWrite, 8).unwrap();
    let export = region.export(&two.accepted, Rights::ReadWrite).unwrap();
    let aperture = two.connected.import(&export.handle, LIMIT).unwrap();
    let queue = two.server.event_queue(4).unwrap();
    let wire = region.wire(4096..4100, Trip::Write, Some(target(&queue, 9))).unwrap();
    assert!(aperture.is_mapped() && aperture.bytes() == 8192);
    aperture.store(4096, b"not heard").unwrap();
    assert_eq!(region.load(4096).unwrap(), u64::from_le_bytes(*b"not hear"));
    assert!(!wire.has_fired());
    aperture.put(4096, b"heard", LIMIT).unwrap();
    assert_eq!(two.server.wait(&queue, LIMIT).unwrap().user, 9);
    let mut bytes = [0; 9];
    aperture.load(4096, &mut bytes).unwrap();
    assert_eq!(&bytes, b"heardeard");
    aperture.get(4096, &mut bytes, LIMIT).unwrap();
    assert_eq!(&bytes, b"heardeard");
    // A word after the bytes that it announces, as between threads.
    aperture.store(4096, &[0; 8]).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 1..=20_000u64 {
                aperture.store(8 * (number % 100), &number.to_ne_bytes()).unwrap();
                aperture.store(4096, &number.to_ne_bytes()).unwrap();
            }
        });
        until(|| {
            let number = region.load(4096).unwrap();
            let told = region.load(8 * (number % 100)).unwrap();
            // Or a later one of the same place.
            assert!(told >= number, "{told} where {number} was announced");
            number == 20_000
        });
    });
    region.revoke(&export);
    until(|| {
        two.client.manager().poll().unwrap();
        aperture.store(0, b"x") == Err(Error::Revoked)
    });
}

#[test]
fn out_of_band_messages_beyond_the_queue_are_thrown_away_and_counted() {
    let two = two_of(|config| config.oob_max = 4);
    for number in 0..10u8 {
        two.connected.send_oob(&[number], LIMIT).unwrap();
    }
    until(|| two.accepted.oob_lost() == 6);
    for number in 0..4 {
        assert_eq!(two.accepted.receive_oob(LIMIT).unwrap()[..2], [number, 0]);
    }
    assert_eq!(two.accepted.take_oob(), Ok(None));
    assert!(matches!(two.connected.send_oob(&[0; 129], LIMIT), Err(Error::Misuse(_))));
}

#[test]
fn a_close_is_found_by_sends_and_by_receivers_of_nothing() {
    let two = two();
    let queue = two.server.event_queue(4).unwrap();
    two.accepted.set_event(Some(target(&queue, 1)));
    two.connected.send_oob(b"last words", LIMIT).unwrap();
    let (_region, aperture) = window(&two, 4096, Rights::Write);
    aperture.put(0, b"last bytes", LIMIT).unwrap();
    drop(two.connected);
    two.server.wait(&queue, LIMIT).unwrap();
    assert!(two.accepted.receive_oob(LIMIT).unwrap().starts_with(b"last words"));
    assert!(matches!(two.accepted.receive_oob(LIMIT), Err(Error::Closed(_))));
    assert!(matches!(two.accepted.send_oob(b"x", LIMIT), Err(Error::Closed(_))));
    assert!(matches!(aperture.put(0, b"x", LIMIT), Err(Error::Closed(_))));
    let mut bytes = [0; 10];
    _region.read(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"last bytes");
}

#[test]
fn a_program_that_ends_closes_all_its_end_points() {
    let Two { _dir, server, client, accepted, connected } = two();
    let more: Vec<_> = (0..10).map(|_| connected.open(LIMIT).unwrap()).collect();
    let others: Vec<_> = (0..10).map(|_| server.accept(LIMIT).unwrap()).collect();
    drop((more, connected, client));
    for end in others.iter().chain([&accepted]) {
        assert!(matches!(end.receive_oob(LIMIT), Err(Error::Closed(_))));
    }
}

#[test]
fn a_full_backlog_refuses_and_accepting_makes_room() {
    let two = two_of(|config| config.backlog = 2);
    let waiting = [(); 2].map(|()| two.connected.open(LIMIT).unwrap());
    assert!(matches!(two.connected.open(LIMIT), Err(Error::Full(_))));
    let first = two.server.accept(LIMIT).unwrap();
    let third = two.connected.open(LIMIT).unwrap();
    waiting[0].send_oob(b"to the first", LIMIT).unwrap();
    assert!(first.receive_oob(LIMIT).unwrap().starts_with(b"to the first"));
    drop(third);
    assert!(two.server.accept(Some(Duration::ZERO)).is_ok());
}

#[test]
fn requests_complete_as_groups_by_event_and_by_word() {
    let two = two();
    let (region, aperture) = window(&two, 1 << 20, Rights::ReadWrite);
    let source = two.client.region(1 << 20, 0).unwrap();
    let bytes: Vec<u8> = (0..1u32 << 20).map(|n| (n / 3) as u8).collect();
    source.write(0, &bytes).unwrap();
    let queue = two.client.request_queue(4, 0, 4096).unwrap();
    let events = two.client.event_queue(4).unwrap();
    let (to, from) = (&aperture, &source);
    let put = |offset, at, length| Request::Put { from, offset, to, at, length };
    let all = Completion::Event(target(&events, 3));
    let whole = queue.submit(&[put(0, 0, 1 << 20)], all).unwrap();
    let word = Arc::new(AtomicU64::new(7));
    let group = [put(0, 10, 100), put(500, 200, 300)];
    let two_of_them = queue.submit(&group, Completion::Word(word.clone())).unwrap();
    assert_eq!(two.client.wait(&events, LIMIT).unwrap().user, 3);
    assert_eq!(queue.take_done().unwrap(), hamlyn_clan::Done { group: whole, result: Ok(()) });
    let done = queue.wait(LIMIT).unwrap();
    assert_eq!((done.group, word.load(Ordering::Acquire)), (two_of_them, 1));
    let back = two.client.region(1000, 0).unwrap();
    let gets = [(0, 0, 500), (500, 500, 500)].map(|(offset, at, length)| Request::Get {
        from: to,
        offset,
        to: &back,
        at,
        length,
    });
    queue.submit(&gets, Completion::None).unwrap();
    queue.wait(LIMIT).unwrap().result.unwrap();
    let mut got = vec![0; 1000];
    back.read(0, &mut got).unwrap();
    let mut wanted = bytes[..1000].to_vec();
    wanted[10..110].copy_from_slice(&bytes[..100]);
    wanted[200..500].copy_from_slice(&bytes[500..800]);
    assert!(got == wanted);
    let mut last = [0; 8];
    region.read((1 << 20) - 8, &mut last).unwrap();
    assert_eq!(last, bytes[(1 << 20) - 8..]);
    assert_eq!(two.client.figures().bytes_moved, (1 << 20) + 400);
}

#[test]
fn wrong_requests_are_refused_and_a_full_queue_says_so() {
    let two = two();
    let (region, aperture) = window(&two, 4096, Rights::Write);
    let source = two.client.region(4096, 0).unwrap();
    let queue = two.client.request_queue(2, 0, 4096).unwrap();
    let (to, from) = (&aperture, &source);
    let put = |offset, at, length| Request::Put { from, offset, to, at, length };
    let get = Request::Get { from: to, offset: 0, to: from, at: 0, length: 1 };
    for wrong in [
        &[put(0, 4095, 2)][..],
        &[put(4095, 0, 2)],
        &[put(0, 0, 0)],
        &[put(0, u64::MAX, 1)],
        &[put(0, 0, 1), get],
        &[],
        &[put(0, 0, 1); 65],
    ] {
        assert!(matches!(queue.submit(wrong, Completion::None), Err(Error::Misuse(_))));
    }
    for _ in 0..2 {
        queue.submit(&[put(0, 0, 1)], Completion::None).unwrap();
    }
    // Complete or not: they have not been taken.
    assert!(matches!(queue.submit(&[put(0, 0, 1)], Completion::None), Err(Error::Full(_))));
    queue.wait(LIMIT).unwrap();
    queue.submit(&[put(0, 0, 1)], Completion::None).unwrap();
    for _ in 0..2 {
        queue.wait(LIMIT).unwrap().result.unwrap();
    }
    // Taken back between being queued and being served.
    drop(region);
    until(|| {
        two.client.manager().poll().unwrap();
        aperture.put(0, b"x", LIMIT).is_err()
    });
    assert_eq!(queue.submit(&[put(0, 0, 1)], Completion::None), Err(Error::Revoked));
    assert!(two.client.request_queue(0, 0, 64).is_err());
}

#[test]
fn signals_come_in_order_each_once_and_never_more_than_allowed() {
    let two = two();
    let region = two.server.region(1 << 20, 0).unwrap();
    let queue = two.server.event_queue(4).unwrap();
    region.set_signal_event(Some(target(&queue, 6)));
    let export = region.export_signalled(&two.accepted, Rights::Write, 4).unwrap();
    let aperture = two.connected.import(&export.handle, LIMIT).unwrap();
    for word in 0..4 {
        aperture.put_signal(8 * u64::from(word), &[word as u8 + 1; 8], word, LIMIT).unwrap();
    }
    // The owner has not taken one.
    let none = Some(Duration::from_millis(50));
    assert_eq!(aperture.put_signal(0, b"x", 9, none), Err(Error::TimedOut));
    assert_eq!(two.server.wait(&queue, LIMIT).unwrap().user, 6);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for word in 4..1000 {
                aperture.put_signal(0, &[0; 20_000], word, LIMIT).unwrap();
            }
            aperture.put_signal(0, &[], 1000, LIMIT).unwrap();
        });
        for word in 0..=1000 {
            let signal = loop {
                match region.take_signal() {
                    Some(signal) => break signal,
                    None => drop(two.server.wait(&queue, LIMIT).unwrap()),
                }
            };
            assert_eq!(signal, hamlyn_clan::Signal { word, export: export.number });
        }
    });
    assert_eq!(region.take_signal(), None);
    let (_plain, aperture) = window(&two, 4096, Rights::Write);
    assert!(matches!(aperture.put_signal(0, b"x", 0, LIMIT), Err(Error::Misuse(_))));
}

/// A peer that takes no turns, so that its ring fills up: the order of service can be seen.
#[test]
fn the_engine_serves_high_priorities_first_and_equals_in_turn() {
    let dir = tempfile::tempdir().unwrap();
    let (server, client) =
        (Clan::new(config(dir.path())).unwrap(), Clan::new(config(dir.path())).unwrap());
    server.listen("slow", Access::SameUser).unwrap();
    let connected = std::thread::scope(|scope| {
        let connected = scope.spawn(|| client.connect("slow", LIMIT).unwrap());
        let accepted = server.accept(LIMIT).unwrap();
        let region = server.region(1 << 20, 0).unwrap();
        let export = region.export(&accepted, Rights::Write).unwrap();
        (connected.join().unwrap(), accepted, region, export)
    });
    let (endpoint, _accepted, region, export) = connected;
    let aperture = endpoint.import(&export.handle, LIMIT).unwrap();
    let source = client.region(1 << 20, 0).unwrap();
    source.write(0, &vec![1; 1 << 20]).unwrap();
    let queues = [(0, 8192), (0, 8192), (9, 8192)]
        .map(|(priority, at_once)| client.request_queue(4, priority, at_once).unwrap());
    let put =
        |at: u64, length| Request::Put { from: &source, offset: at, to: &aperture, at, length };
    // The ring is full before the first is complete.
    queues[0].submit(&[put(0, 300_000)], Completion::None).unwrap();
    queues[1].submit(&[put(300_000, 300_000)], Completion::None).unwrap();
    queues[2].submit(&[put(600_000, 200_000)], Completion::None).unwrap();
    let mut order = Vec::new();
    let began = std::time::Instant::now();
    while order.len() < 3 {
        assert!(began.elapsed() < Duration::from_secs(60));
        server.manager().poll().unwrap();
        client.manager().poll().unwrap();
        for (number, queue) in queues.iter().enumerate() {
            if queue.take_done().is_some() {
                order.push(number);
                if number == 2 {
                    // Its equals share the ring: neither has waited for the other.
                    let shares = [8, 300_008].map(|at| region.load(at).unwrap() != 0);
                    assert!(shares[0]);
                }
            }
        }
    }
    assert_eq!(order[0], 2, "the last to come has the highest priority");
    let mut bytes = vec![0; 800_000];
    let began = std::time::Instant::now();
    while bytes.contains(&0) {
        assert!(began.elapsed() < Duration::from_secs(60));
        server.manager().poll().unwrap();
        region.read(0, &mut bytes).unwrap();
    }
}

#[test]
fn many_threads_raise_and_one_takes_each_event_after_its_last_raise() {
    let queue = EventQueue::new(64, || {}).unwrap();
    let events: Vec<_> = (0..64).map(|user| queue.register(user).unwrap()).collect();
    let counts: Vec<_> = (0..64).map(|_| AtomicU64::new(0)).collect();
    let mut seen = vec![0; 64];
    std::thread::scope(|scope| {
        for first in 0..4 {
            let (queue, events, counts) = (&queue, &events, &counts);
            scope.spawn(move || {
                for round in 0..20_000 {
                    let number = (first * 7 + round * 13) % 64;
                    counts[number].fetch_add(1, Ordering::Relaxed);
                    queue.raise(events[number]);
                }
            });
        }
        let began = std::time::Instant::now();
        while seen.iter().sum::<u64>() < 80_000 {
            assert!(began.elapsed() < Duration::from_secs(60), "an event was lost");
            if let Some(event) = queue.take() {
                let number = event.user as usize;
                seen[number] = counts[number].load(Ordering::Relaxed);
            }
        }
    });
    while queue.take().is_some() {}
    assert!(!queue.has_any());
}

#[test]
fn an_unregistered_event_is_not_taken_and_its_place_is_used_again() {
    let queue = EventQueue::new(2, || {}).unwrap();
    let [a, b] = [1, 2].map(|user| queue.register(user).unwrap());
    assert!(matches!(queue.register(3), Err(Error::Full(_))));
    assert!(queue.raise(a) && queue.raise(b) && queue.unregister(a) && !queue.unregister(a));
    // Its place is free when its entry has been taken.
    assert!(queue.register(3).is_err());
    assert_eq!(queue.take().unwrap().user, 2);
    assert!(!queue.raise(a));
    let c = queue.register(3).unwrap();
    assert!(queue.take().is_none() && queue.raise(c));
    assert_eq!(queue.take().unwrap().id, c);
    assert!(EventQueue::new(0, || {}).is_err());
}

#[test]
fn an_event_loop_sleeps_on_the_descriptor() {
    let two = two();
    let queue = two.client.event_queue(4).unwrap();
    let other = target(&queue, 8);
    let descriptor = two.client.descriptor().unwrap();
    let (region, aperture) = {
        let region = two.client.region(4096, 4).unwrap();
        let export = region.export(&two.connected, Rights::Write).unwrap();
        (region, two.accepted.import(&export.handle, LIMIT).unwrap())
    };
    let _wire = region.wire(0..8, Trip::Write, Some(target(&queue, 4))).unwrap();
    for user in [4, 8] {
        while two.client.poll(&queue).unwrap().is_some() {}
        until(|| two.client.prepare_to_wait(&queue).unwrap());
        match user {
            4 => aperture.put(0, b"wake up", LIMIT).unwrap(),
            _ => assert!(other.queue.raise(other.event)),
        }
        assert!(becomes_readable(&descriptor));
        until(|| two.client.poll(&queue).unwrap().is_some_and(|event| event.user == user));
    }
}

fn becomes_readable(descriptor: &std::os::fd::BorrowedFd<'_>) -> bool {
    let mut polled = [rustix::event::PollFd::new(descriptor, rustix::event::PollFlags::IN)];
    let limit = rustix::time::Timespec { tv_sec: 60, tv_nsec: 0 };
    rustix::event::poll(&mut polled, Some(&limit)) == Ok(1)
}

#[test]
fn events_that_are_set_late_and_groups_complete_at_once_wake_a_sleeper() {
    let two = two();
    let queue = two.client.event_queue(4).unwrap();
    let descriptor = two.client.descriptor().unwrap();
    let sleep = || {
        while two.client.poll(&queue).unwrap().is_some() {}
        until(|| two.client.prepare_to_wait(&queue).unwrap());
    };
    let is_woken = |user| {
        assert!(becomes_readable(&descriptor), "nothing wakes for {user}");
        assert_eq!(two.client.wait(&queue, LIMIT).unwrap().user, user);
    };
    let turn = || two.client.manager().poll().unwrap();

    two.accepted.send_oob(b"here already", LIMIT).unwrap();
    until(|| {
        turn();
        two.client.figures().oob_received == 1
    });
    sleep();
    two.connected.set_event(Some(target(&queue, 1)));
    is_woken(1);

    let _opened = std::thread::scope(|scope| {
        let opened = scope.spawn(|| two.accepted.open(LIMIT).unwrap());
        until(|| {
            turn();
            opened.is_finished()
        });
        opened.join().unwrap()
    });
    sleep();
    two.client.set_accept_event(Some(target(&queue, 2)));
    is_woken(2);

    // Of a mapped region: no packet comes or leaves.
    let region = two.accepted.mapped_region(4096, Rights::ReadWrite, 0).unwrap();
    let export = region.export(&two.accepted, Rights::ReadWrite).unwrap();
    let from = &two.connected.import(&export.handle, LIMIT).unwrap();
    let to = &two.client.region(4096, 0).unwrap();
    let requests = two.client.request_queue(1, 0, 4096).unwrap();
    let event = Completion::Event(target(&queue, 3));
    sleep();
    let get = Request::Get { from, offset: 0, to, at: 0, length: 4096 };
    requests.submit(&[get], event).unwrap();
    is_woken(3);
}

#[test]
fn a_call_back_hears_of_tripwires_and_of_raises_while_somebody_sleeps() {
    let two = two();
    let (region, aperture) = window(&two, 64, Rights::Write);
    let calls = Arc::new(AtomicU64::new(0));
    let counted = calls.clone();
    let count = move || {
        counted.fetch_add(1, Ordering::Relaxed);
    };
    let queue = EventQueue::new(4, count).unwrap();
    let wire = region.wire(0..8, Trip::Write, Some(target(&queue, 1))).unwrap();
    aperture.put(0, b"no sleep", LIMIT).unwrap();
    until(|| queue.take().is_some());
    assert_eq!(calls.load(Ordering::Relaxed), 0);
    let sleeping = queue.sleep();
    wire.arm();
    aperture.put(0, b"asleep..", LIMIT).unwrap();
    until(|| calls.load(Ordering::Relaxed) == 1);
    queue.raise(queue.register(2).unwrap());
    assert_eq!(calls.load(Ordering::Relaxed), 2);
    drop(sleeping);
}
