//! Two programs, here two nodes of one process: everything that the README promises.

use hamlyn::Access;
use hamlyn_vmmc::{
    Combining, Config, Error, Exporting, PAGE, Proxy, Rights, Tracking, Users, Vmmc,
};
use std::sync::mpsc;
use std::time::Duration;

const LIMIT: Option<Duration> = Some(Duration::from_secs(60));

struct Two {
    _dir: tempfile::TempDir,
    exporter: Vmmc,
    importer: Vmmc,
}

fn two() -> Two {
    let dir = tempfile::tempdir().unwrap();
    let mut config = Config::from_env().unwrap();
    config.node = config.node.dir(dir.path());
    let exporter = Vmmc::new(config.clone()).unwrap();
    exporter.serve("two", Access::SameUser).unwrap();
    Two { _dir: dir, exporter, importer: Vmmc::new(config).unwrap() }
}

fn until(mut holds: impl FnMut() -> bool) {
    let began = std::time::Instant::now();
    while !holds() {
        assert!(began.elapsed() < Duration::from_secs(60), "it does not come true");
        std::thread::yield_now();
    }
}

fn bytes_of(buffer: &hamlyn_vmmc::Buffer, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    buffer.region().read(0, &mut bytes).unwrap();
    bytes
}

#[test]
fn an_update_of_any_length_arrives_and_can_be_got_back() {
    let two = two();
    two.exporter.start_thread(|_| {}).unwrap();
    let buffer = two.exporter.export("b", 1_000_003, Exporting::default()).unwrap();
    let proxy = two.importer.import("two", "b", LIMIT).unwrap();
    assert_eq!(proxy.bytes(), 1_000_003);
    let bytes: Vec<u8> = (0..1_000_003u32).map(|n| (n / 7) as u8).collect();
    for length in [1, 3, 8, 64, 100, 5000, 1_000_000] {
        proxy.send(3, &bytes[..length], LIMIT).unwrap();
        until(|| bytes_of(&buffer, 3 + length)[3..] == bytes[..length]);
    }
    let mut got = vec![0; 1_000_000];
    proxy.get(3, &mut got, LIMIT).unwrap();
    assert!(got == bytes[..1_000_000]);
    assert!(matches!(proxy.send(1_000_003, b"x", LIMIT), Err(Error::Misuse(_))));
}

#[test]
fn a_buffer_is_for_its_users_and_rights_and_each_importer_stands_alone() {
    let two = two();
    two.exporter.start_thread(|_| {}).unwrap();
    let nobody = Exporting { users: Users::These(vec![54_321]), ..Exporting::default() };
    let _hidden = two.exporter.export("hidden", 4096, nobody).unwrap();
    let reads = Exporting { rights: Rights::Read, notifications: 0, ..Exporting::default() };
    let read = two.exporter.export("read", 4096, reads).unwrap();
    let same =
        [two.importer.import("two", "hidden", LIMIT), two.importer.import("two", "no", LIMIT)]
            .map(|result| result.unwrap_err().to_string());
    assert_eq!(same[0].replace("hidden", ""), same[1].replace("no\"", "\""));
    let proxies = [(); 2].map(|()| two.importer.import("two", "read", LIMIT).unwrap());
    assert!(matches!(proxies[0].send(0, b"x", LIMIT), Err(Error::Misuse(_))));
    proxies[0].get(0, &mut [0], LIMIT).unwrap();
    let [first, second] = proxies;
    drop(first);
    second.get(0, &mut [0], LIMIT).unwrap();
    assert!(two.exporter.export("read", 1, Exporting::default()).is_err());
    drop(read);
    until(|| second.get(0, &mut [0], LIMIT) == Err(Error::Revoked));
    // The name is free again.
    let _again = two.exporter.export("read", 8, Exporting::default()).unwrap();
    assert_eq!(two.importer.import("two", "read", LIMIT).unwrap().bytes(), 8);
}

#[test]
fn notifications_come_if_both_bits_are_set_and_wait_while_blocked() {
    let two = two();
    let (told, tell) = mpsc::channel();
    two.exporter.start_thread(move |notification| drop(told.send(notification))).unwrap();
    let buffer = two.exporter.export("b", 4096, Exporting::default()).unwrap();
    let other = Exporting { notifications: 4, ..Exporting::default() };
    let _other = two.exporter.export("c", 4096, other).unwrap();
    let proxy = two.importer.import("two", "b", LIMIT).unwrap();
    let small = two.importer.import("two", "c", LIMIT).unwrap();
    for word in 0..1000 {
        proxy.send(0, &[1; 10], LIMIT).unwrap();
        proxy.send_notify(0, &[2; 10], word, LIMIT).unwrap();
    }
    let next = || tell.recv_timeout(Duration::from_secs(60)).unwrap();
    for word in 0..1000 {
        let notification = next();
        assert_eq!((&*notification.buffer, notification.word), ("b", word));
    }
    // The receiver's bit.
    buffer.take_notifications(false);
    for word in 0..200 {
        proxy.send_notify(0, b"not heard", word, LIMIT).unwrap();
    }
    two.exporter.block();
    for word in 0..4 {
        small.send_notify(0, b"waits", word, LIMIT).unwrap();
    }
    let none = Some(Duration::from_millis(50));
    assert_eq!(small.send_notify(0, b"no credit", 4, none), Err(Error::TimedOut));
    assert!(tell.try_recv().is_err());
    two.exporter.unblock();
    for word in 0..4 {
        let notification = next();
        assert_eq!((&*notification.buffer, notification.word), ("c", word));
    }
    small.send_notify(0, b"again", 5, LIMIT).unwrap();
    assert_eq!(next().word, 5);
}

#[test]
fn without_a_thread_calls_answer_and_take() {
    let two = two();
    let _buffer = two.exporter.export("b", 4096, Exporting::default()).unwrap();
    std::thread::scope(|scope| {
        let importing = scope.spawn(|| {
            let proxy = two.importer.import("two", "b", LIMIT).unwrap();
            proxy.send_notify(8, b"hello", 7, LIMIT).unwrap();
        });
        let notification = loop {
            match two.exporter.take_notification() {
                Some(notification) => break notification,
                None => two.exporter.wait(LIMIT).unwrap(),
            }
        };
        assert_eq!(notification.word, 7);
        importing.join().unwrap();
    });
}

#[test]
fn two_programs_without_threads_import_from_one_another_and_wait_for_words() {
    let two = two();
    two.importer.serve("other", Access::SameUser).unwrap();
    let both = [(&two.exporter, "other"), (&two.importer, "two")];
    std::thread::scope(|scope| {
        for (vmmc, other) in both {
            scope.spawn(move || {
                let buffer = vmmc.export("b", 4096, Exporting::default()).unwrap();
                // The other may not have exported it yet.
                let proxy = import(vmmc, other, "b");
                for word in 1..=1000u64 {
                    proxy.send(64, &word.to_ne_bytes(), LIMIT).unwrap();
                    vmmc.wait_until(LIMIT, || buffer.region().load(64).unwrap() >= word).unwrap();
                }
                let none = Some(Duration::from_millis(1));
                assert_eq!(vmmc.wait_until(none, || false), Err(Error::TimedOut));
                proxy.send(72, &[1], LIMIT).unwrap();
                vmmc.wait_until(LIMIT, || buffer.region().load(72) == Ok(1)).unwrap();
            });
        }
    });
}

fn links(vmmc: &Vmmc) -> usize {
    vmmc.clan().manager().lock().links().count()
}

/// Imports until it is exported.
fn import(vmmc: &Vmmc, program: &str, buffer: &str) -> Proxy {
    loop {
        match vmmc.import(program, buffer, LIMIT) {
            Ok(proxy) => break proxy,
            Err(Error::Refused(_)) => vmmc.poll().unwrap(),
            Err(e) => panic!("{e}"),
        }
    }
}

#[test]
fn two_programs_share_one_link_whichever_asks_first_and_under_all_names() {
    for is_at_once in [false, true, true, true, true, true, true, true] {
        let two = two();
        two.exporter.serve("two.again", Access::SameUser).unwrap();
        two.importer.serve("other", Access::SameUser).unwrap();
        let buffers = [&two.exporter, &two.importer]
            .map(|vmmc| vmmc.export("b", 4096, Exporting::default()).unwrap());
        for vmmc in [&two.exporter, &two.importer] {
            vmmc.start_thread(|_| {}).unwrap();
        }
        let together = std::sync::Barrier::new(2);
        let ask = |vmmc: &Vmmc, name: &str| {
            if is_at_once {
                together.wait();
            }
            import(vmmc, name, "b")
        };
        let proxies = if is_at_once {
            std::thread::scope(|scope| {
                let here = scope.spawn(|| ask(&two.importer, "two"));
                [ask(&two.exporter, "other"), here.join().unwrap()]
            })
        } else {
            let here = ask(&two.importer, "two");
            [ask(&two.exporter, "other"), here]
        };
        let again = import(&two.importer, "two.again", "b");
        until(|| [&two.exporter, &two.importer].map(links) == [1, 1]);
        for (proxy, buffer) in proxies.iter().zip([&buffers[1], &buffers[0]]) {
            proxy.send(0, b"over it", LIMIT).unwrap();
            until(|| bytes_of(buffer, 7) == b"over it");
        }
        again.send(0, b"as well", LIMIT).unwrap();
        until(|| bytes_of(&buffers[0], 7) == b"as well");
    }
}

#[test]
fn an_import_that_timed_out_ends_no_proxy_and_its_late_answer_is_no_other_question_s() {
    let two = two();
    let buffers = ["b", "c"].map(|name| {
        two.exporter.export(name, name.len() as u64 * 64, Exporting::default()).unwrap()
    });
    let early = import_polled(&two, "b");
    for _ in 0..3 {
        let none = Some(Duration::from_millis(20));
        assert!(matches!(two.importer.import("two", "b", none), Err(Error::TimedOut)));
    }
    two.exporter.start_thread(|_| {}).unwrap();
    let late = import(&two.importer, "two", "c");
    late.send(0, b"c", LIMIT).unwrap();
    until(|| bytes_of(&buffers[1], 1) == b"c");
    early.send(0, b"b", LIMIT).unwrap();
    until(|| bytes_of(&buffers[0], 1) == b"b");
    assert_eq!([&two.exporter, &two.importer].map(links), [1, 1]);
}

/// A buffer of a program with a thread, and its proxy.
fn bound(two: &Two, bytes: u64) -> (hamlyn_vmmc::Buffer, Proxy) {
    two.exporter.start_thread(|_| {}).unwrap();
    let buffer = two.exporter.export("b", bytes, Exporting::default()).unwrap();
    let proxy = two.importer.import("two", "b", LIMIT).unwrap();
    (buffer, proxy)
}

#[test]
fn a_store_that_finds_no_room_has_not_happened_and_those_before_it_arrive() {
    let two = two();
    let (asks, go) = mpsc::channel();
    let exporter = two.exporter.clone();
    let buffer = two.exporter.export("b", 4096, Exporting::default()).unwrap();
    // Its turns are taken until the import is done, and then no more: the ring fills.
    let turns = std::thread::spawn(move || {
        while go.try_recv().is_err() {
            exporter.poll().unwrap();
        }
    });
    let proxy = two.importer.import("two", "b", LIMIT).unwrap();
    asks.send(()).unwrap();
    turns.join().unwrap();
    for sub_page in [0, 4096] {
        let combining = Combining { sub_page, timer: None };
        let mut bound = proxy.bind(0, 4096, combining, None, Some(Duration::ZERO)).unwrap();
        // Scattered: each is a run of its own.
        let places = || (0..4096).step_by(16).cycle();
        let (mut stored, mut refused) = (Vec::new(), None);
        for (value, at) in (1..100_000).zip(places()) {
            match bound.store_u64(at, value) {
                Ok(()) => stored.push((at, value)),
                Err(e) => {
                    assert_eq!(e, Error::TimedOut);
                    refused = Some(at);
                    break;
                }
            }
        }
        let refused = refused.expect("the ring has an end");
        let mut local = vec![0; 4096];
        for (at, value) in stored {
            local[at..at + 8].copy_from_slice(&value.to_ne_bytes());
        }
        assert!(local == bound.bytes(), "the store at {refused} has happened in part");
        assert_eq!(bound.flush(), Err(Error::TimedOut));
        until(|| {
            two.exporter.poll().unwrap();
            bound.flush().is_ok()
        });
        until(|| {
            two.exporter.poll().unwrap();
            bytes_of(&buffer, 4096) == local
        });
        drop(bound);
        let zeros = [0; 4096];
        until(|| {
            two.exporter.poll().unwrap();
            proxy.send(0, &zeros, Some(Duration::ZERO)).is_ok()
        });
    }
}

#[test]
fn bound_stores_happen_here_and_there_and_consecutive_ones_are_combined() {
    let two = two();
    let (buffer, proxy) = bound(&two, 65_536);
    let mut bound = proxy.bind(4096, 8192, Combining::default(), None, LIMIT).unwrap();
    for at in (0..256).step_by(8) {
        bound.store_u64(at, at as u64 + 1).unwrap();
    }
    assert_eq!(bound.counts(), (32, 1), "one run, when it was full");
    bound.store_u32(1000, 77).unwrap();
    bound.store_u32(1004, 78).unwrap();
    bound.store_u32(500, 79).unwrap();
    assert_eq!(bound.counts(), (35, 2));
    bound.flush().unwrap();
    // A page's end.
    for at in (4000..4200).step_by(8) {
        bound.store_u64(at, 5).unwrap();
    }
    assert_eq!(bound.counts(), (60, 4));
    bound.flush().unwrap();
    proxy.send(0, b"behind", LIMIT).unwrap();
    until(|| bytes_of(&buffer, 6) == b"behind");
    assert!(bytes_of(&buffer, 4096 + 8192)[4096..] == *bound.bytes());
    assert!(matches!(bound.store(8190, &[0; 3]), Err(Error::Misuse(_))));
    drop(bound);
    // Without combining.
    let single = Combining { sub_page: 0, timer: None };
    let mut bound = proxy.bind(0, 4096, single, None, LIMIT).unwrap();
    for at in (0..80).step_by(8) {
        bound.store_u64(at, 3).unwrap();
    }
    assert_eq!(bound.counts(), (10, 10));
    bound.store(100, &[4; 21]).unwrap();
    assert_eq!(bound.counts(), (11, 13), "a copy leaves in words");
    let timed = Combining { sub_page: 4096, timer: Some(Duration::ZERO) };
    let mut bound = proxy.bind(0, 4096, timed, None, LIMIT).unwrap();
    bound.store_u64(0, 3).unwrap();
    assert_eq!(bound.counts(), (1, 1));
    for wrong in [(1, 8), (65_536, 8), (0, 65_537), (u64::MAX - 7, 8)] {
        assert!(proxy.bind(wrong.0, wrong.1, Combining::default(), None, LIMIT).is_err());
    }
}

/// Imports from a program without a thread.
fn import_polled(two: &Two, buffer: &str) -> Proxy {
    std::thread::scope(|scope| {
        let importing = scope.spawn(|| import(&two.importer, "two", buffer));
        until(|| {
            two.exporter.poll().unwrap();
            importing.is_finished()
        });
        importing.join().unwrap()
    })
}

#[test]
fn a_store_that_may_not_wait_fails_while_the_ring_is_full_and_loses_nothing() {
    let two = two();
    let buffer = two.exporter.export("b", 1 << 20, Exporting::default()).unwrap();
    let proxy = import_polled(&two, "b");
    let mut bound = proxy.bind(0, 1 << 20, Combining::default(), None, LIMIT).unwrap();
    let mut failed = 0;
    for number in 0..40_000 {
        // Each leaves when the next one comes.
        while let Err(e) = bound.try_store(number * 24, &[number as u8; 8]) {
            assert!(matches!(e, Error::Full(_)), "{e}");
            failed += 1;
            two.exporter.poll().unwrap();
        }
    }
    assert!(failed > 2, "{failed}");
    bound.flush().unwrap();
    until(|| {
        two.exporter.poll().unwrap();
        buffer.region().load(39_999 * 24).unwrap() != 0
    });
    assert!(bytes_of(&buffer, 1 << 20) == bound.bytes());
}

#[test]
fn each_engine_is_explained_and_a_second_tracker_of_one_memory_compares() {
    let two = two();
    let (buffer, proxy) = bound(&two, 8 * PAGE as u64);
    let explained =
        |combining| proxy.bind(0, 64, combining, None, LIMIT).unwrap().explain().unwrap();
    let path = proxy.explain().unwrap();
    assert!(path.starts_with("packets, over shared-memory ring"), "{path}");
    assert_eq!(
        explained(Combining::default()),
        format!("store, combined: up to 256 bytes, and to multiples of 4096; {path}")
    );
    let timed = Combining { sub_page: 64, timer: Some(Duration::from_micros(5)) };
    assert!(explained(timed).contains("to multiples of 64, for 5"));
    let single = Combining { sub_page: 0, timer: None };
    assert!(explained(single).starts_with("store, not combined: each leaves at once; packets"));
    let source = two.importer.clan().region(2 * PAGE as u64, 0).unwrap();
    let start = source.address().unwrap();
    // SAFETY: it lives longer.
    let mut mirrors = [0, 4]
        .map(|page| unsafe { proxy.mirror(page * PAGE as u64, start, 2 * PAGE, LIMIT).unwrap() });
    let said = [0, 1].map(|number: usize| mirrors[number].explain().unwrap());
    match mirrors[0].tracking() {
        Tracking::Kernel => {
            assert!(said[0].starts_with("tracked by the kernel (PAGEMAP_SCAN); "), "{}", said[0]);
        }
        Tracking::Compare => {
            eprintln!("\x1b[1;33m!! SKIPPED the kernel's engine: {}\x1b[0m", said[0])
        }
    }
    assert!(said[1].starts_with("tracked by comparing all pages ("), "{}", said[1]);
    // Both find the change.
    // SAFETY: inside of the region.
    unsafe { start.add(PAGE + 7).write_volatile(7) };
    for mirror in &mut mirrors {
        mirror.flush().unwrap();
        assert_eq!(mirror.counts(), (1, 1, 1));
    }
    until(|| {
        let there = bytes_of(&buffer, 8 * PAGE);
        [PAGE + 7, 5 * PAGE + 7].iter().all(|at| there[*at] == 7)
    });
}

#[test]
fn a_mirror_sends_what_plain_stores_have_changed_and_nothing_else() {
    let two = two();
    let (buffer, proxy) = bound(&two, 16 * PAGE as u64);
    let source = two.importer.clan().region(8 * PAGE as u64, 0).unwrap();
    let start = source.address().unwrap();
    let store = |at: usize, byte: u8| {
        // SAFETY: inside of the region, which nobody else uses.
        unsafe { start.add(at).write_volatile(byte) }
    };
    store(3, 9);
    // SAFETY: it lives longer.
    let mut mirror = unsafe { proxy.mirror(4 * PAGE as u64, start, 8 * PAGE, LIMIT) }.unwrap();
    let there = || bytes_of(&buffer, 12 * PAGE)[4 * PAGE..].to_vec();
    until(|| there()[3] == 9);
    // A byte that only the other side has changed stays.
    buffer.region().write(4 * PAGE as u64 + 5, &[44]).unwrap();
    for at in [4, 6, PAGE - 1, PAGE, 8 * PAGE - 1] {
        store(at, 7);
    }
    mirror.flush().unwrap();
    until(|| there()[8 * PAGE - 1] == 7);
    let there_now = there();
    assert_eq!(there_now[..8], [0, 0, 0, 9, 7, 44, 7, 0]);
    assert_eq!(mirror.counts(), (1, 5, 5));
    mirror.told(100, &[0]);
    assert!(!mirror.flush_after(Duration::from_secs(1000)).unwrap());
    mirror.flush().unwrap();
    assert_eq!(mirror.counts(), (2, 5, 5));
    // SAFETY: refused.
    assert!(unsafe { proxy.mirror(0, start.add(8), PAGE, LIMIT) }.is_err());
}

/// Two programs write one memory: a tracked binding of an exported buffer in each.
#[test]
fn an_update_into_an_exported_buffer_that_is_tracked_is_not_sent_back() {
    let two = two();
    two.importer.serve("other", Access::SameUser).unwrap();
    let both = [&two.exporter, &two.importer];
    let buffers = both.map(|vmmc| {
        vmmc.start_thread(|_| {}).unwrap();
        vmmc.export("b", 4 * PAGE as u64, Exporting::default()).unwrap()
    });
    let starts = [0, 1].map(|number| buffers[number].region().address().unwrap());
    let mut mirrors = [(0, "other"), (1, "two")].map(|(number, other)| {
        let proxy = import(both[number], other, "b");
        // SAFETY: the buffer lives longer.
        let mirror = unsafe {
            proxy.mirror(PAGE as u64, starts[number].add(PAGE), 2 * PAGE, LIMIT).unwrap()
        };
        // All of it has arrived, and overwrites no store there.
        proxy.get(0, &mut [0], LIMIT).unwrap();
        mirror
    });
    let store = |number: usize, at: usize, byte: u8| {
        // SAFETY: inside of the buffer; words of their own.
        unsafe { starts[number].add(at).write_volatile(byte) }
    };
    let load = |number: usize, at: usize| {
        let mut byte = [0];
        buffers[number].region().read(at as u64, &mut byte).unwrap();
        byte[0]
    };
    for round in 1..=100 {
        for number in [0, 1] {
            // Bytes of the same page, and of the same word.
            store(number, 2 * PAGE - 3 + 4 * number, round);
        }
        for mirror in &mut mirrors {
            mirror.flush().unwrap();
        }
        until(|| {
            let there = |number: usize| load(1 - number, 2 * PAGE - 3 + 4 * number);
            [there(0), there(1)] == [round; 2]
        });
    }
    // Each change was sent once, to the byte.
    for mirror in &mut mirrors {
        mirror.flush().unwrap();
        assert_eq!(mirror.counts(), (101, 100, 100), "{:?}", mirror.tracking());
    }
    // SAFETY: refused.
    let part = unsafe {
        let proxy = import(both[0], "other", "b");
        proxy.mirror(0, starts[0].add(3 * PAGE), 2 * PAGE, LIMIT).map(drop)
    };
    assert!(part.is_err());
}

#[test]
fn a_program_that_ends_ends_its_proxies_and_its_imports() {
    let Two { _dir, exporter, importer } = two();
    exporter.start_thread(|_| {}).unwrap();
    let buffer = exporter.export("b", 4096, Exporting::default()).unwrap();
    let proxy = importer.import("two", "b", LIMIT).unwrap();
    drop((buffer, exporter));
    until(|| matches!(proxy.send(0, b"x", LIMIT), Err(Error::Closed(_) | Error::Revoked)));
    assert!(importer.import("two", "b", Some(Duration::from_millis(20))).is_err());
}

#[test]
fn an_import_waits_no_longer_than_its_limit_for_another_import() {
    let two = two();
    let buffer = two.exporter.export("b", 64, Exporting::default()).unwrap();
    let proxy = import_polled(&two, "b");
    // The exporter takes no turn from now on, and so answers nothing. Questions that are given up leave
    // room for an answer to a later one.
    for _ in 0..100 {
        let waited = two.importer.import("two", "c", Some(Duration::from_millis(2)));
        assert!(matches!(waited, Err(Error::TimedOut)), "{waited:?}");
    }
    let importer = two.importer.clone();
    let (said, ends) = mpsc::channel();
    let other = std::thread::spawn(move || {
        said.send(()).unwrap();
        importer.import("two", "b", Some(Duration::from_secs(40)))
    });
    ends.recv().unwrap();
    let began = std::time::Instant::now();
    while !other.is_finished() && began.elapsed() < Duration::from_secs(1) {
        let again = std::time::Instant::now();
        let waited = two.importer.import("two", "c", Some(Duration::from_millis(50)));
        assert!(matches!(waited, Err(Error::TimedOut)), "{waited:?}");
        let waited = again.elapsed();
        assert!(waited < Duration::from_secs(15), "it waited for the other import: {waited:?}");
    }
    // Now it is answered.
    two.exporter.start_thread(|_| {}).unwrap();
    assert_eq!(other.join().unwrap().unwrap().bytes(), 64);
    drop((proxy, buffer));
}

#[test]
fn a_peer_that_imports_without_end_is_stopped_and_others_are_not() {
    let two = two();
    two.exporter.start_thread(|_| {}).unwrap();
    let exporting = Exporting { notifications: 0, ..Exporting::default() };
    let _buffer = two.exporter.export("b", 4096, exporting).unwrap();
    let mut proxies = Vec::new();
    let stopped = loop {
        match two.importer.import("two", "b", LIMIT) {
            Ok(proxy) => proxies.push(proxy),
            Err(e) => break e,
        }
    };
    assert!(matches!(stopped, Error::Refused(_)) && proxies.len() == 4096, "{stopped}");
    drop(proxies.pop());
    proxies.push(two.importer.import("two", "b", LIMIT).unwrap());
}

#[test]
fn notifications_that_nobody_takes_hold_their_sender_and_no_memory() {
    let two = two();
    let few = Exporting { notifications: 8, ..Exporting::default() };
    let _buffer = two.exporter.export("b", 4096, few).unwrap();
    let proxy = import_polled(&two, "b");
    for word in 0..8 {
        proxy.send_notify(0, b"x", word, LIMIT).unwrap();
    }
    // The exporter takes turns, and takes none.
    for _ in 0..100 {
        two.exporter.poll().unwrap();
        let now = Some(Duration::ZERO);
        assert_eq!(proxy.send_notify(0, b"x", 8, now), Err(Error::TimedOut));
    }
    for word in 0..8 {
        assert_eq!(two.exporter.take_notification().unwrap().word, word);
    }
    assert_eq!(two.exporter.take_notification(), None);
    two.exporter.poll().unwrap();
    proxy.send_notify(0, b"x", 9, LIMIT).unwrap();
}

#[test]
fn notifications_that_nobody_wants_hold_none_of_several_importers() {
    let two = two();
    let buffer = two.exporter.export("b", 64, Exporting::default()).unwrap();
    buffer.take_notifications(false);
    let mut config = Config::from_env().unwrap();
    config.node = config.node.dir(two._dir.path());
    let others: Vec<Vmmc> = (0..3).map(|_| Vmmc::new(config.clone()).unwrap()).collect();
    let import = |importer: &Vmmc| {
        std::thread::scope(|scope| {
            let importing = scope.spawn(|| import(importer, "two", "b"));
            until(|| {
                two.exporter.poll().unwrap();
                importing.is_finished()
            });
            importing.join().unwrap()
        })
    };
    let proxies: Vec<Proxy> = others.iter().map(import).collect();
    // All that each may send, before the exporter takes a turn.
    for proxy in &proxies {
        (0..64).for_each(|word| proxy.send_notify(0, b"x", word, LIMIT).unwrap());
    }
    // The last can go on, although the others send no more.
    until(|| {
        two.exporter.poll().unwrap();
        proxies[2].send_notify(0, b"x", 0, Some(Duration::ZERO)).is_ok()
    });
}
