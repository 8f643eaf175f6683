//! A node that speaks the wire by hand and lies in every field: it reaches its own messages, and no others.

use hamlyn::simulation::Rng;
use hamlyn::{Accept, Access, Event, Flags, LinkId, Node, SlotConfig, Ticket};
use hamlyn_fm::flow::Word;
use hamlyn_fm::{Config, Error, Fm, Verdict};
use std::cell::{Cell, RefCell};
use std::path::Path;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const LIMIT: Option<Duration> = Some(Duration::from_secs(60));
const TICKET: usize = 44;

fn node(dir: &Path) -> Node {
    let settings = hamlyn::Config::default().dir(dir).shared_dir(dir.join("shared"));
    Node::with_config(settings.ring_bytes(64u32 << 10).packets_per_turn(1u32)).unwrap()
}

/// The last node, by hand. Returns its node, its link to node 0, and the hello of node 0 to it.
fn join(dir: &Path, rank: u32) -> (Node, LinkId, Vec<u8>) {
    let mut node = node(dir);
    let (hellos, queue) = (node.message_area(1024).unwrap(), node.notification_queue(8).unwrap());
    let slot = node.slot(SlotConfig::new(hellos, queue).credit(8)).unwrap();
    let own = node.fast_ticket(slot).unwrap().to_bytes();
    let greeting = [&own[..], &rank.to_le_bytes()].concat();
    let name = format!("fm-{rank}");
    node.serve(&name, Access::SameUser, Accept::Automatic(greeting.clone())).unwrap();
    let connect = |lower| node.connect(&format!("fm-{lower}"), &greeting, LIMIT).unwrap();
    let links: Vec<LinkId> = (0..rank).map(connect).collect();
    let numbers = [1u32, 48 << 10, 4].map(u32::to_le_bytes).concat();
    // Tickets of a slot for its own use: what others send to it is of no interest.
    let area = node.message_area(48 << 10).unwrap();
    let slot = node.slot(SlotConfig::new(area, queue).credit(0)).unwrap();
    let window = node.fast_ticket(slot).unwrap().to_bytes();
    for &link in &links {
        let to = Ticket::from_bytes(&node.greeting(link).unwrap()[..TICKET]).unwrap();
        let hello = [&numbers[..], &window, &window, &window].concat();
        node.send_fast(&to, &hello, 0, LIMIT).unwrap();
    }
    let mut of = Vec::new();
    // Both write the same place: the one of node 0 is read at once.
    while of.is_empty() {
        let said = node.recv(queue, LIMIT).unwrap();
        if said.link == links[0] {
            of = node.area(hellos).unwrap()[..12 + 3 * TICKET].to_vec();
        }
    }
    (node, links[0], of)
}

/// Nodes 0 and 1: they exchange messages until the third has done its worst.
fn honest(dir: &Path, rank: u32, hostile_is_done: &AtomicBool) -> u64 {
    let config = Config { time_limit: LIMIT, open_messages: 4, ..Config::default() };
    let fm = Fm::meet_all(node(dir), "fm", rank, 3, config).unwrap();
    let (came, finishes) = (Rc::new(Cell::new(0u32)), Rc::new(Cell::new(false)));
    let (count, ends_early) = (came.clone(), finishes.clone());
    fm.register(Some(0), move |stream, sender| {
        let mut all = vec![0; 30_000];
        let bytes = stream.receive(&mut all);
        if sender != 2 && !ends_early.get() {
            let whole = all[..bytes].iter().all(|byte| *byte == sender as u8);
            assert!(bytes == 20_000 && whole, "{bytes} bytes of node {sender}, whole: {whole}");
            count.set(count.get() + 1);
        }
        Verdict::Continue
    })
    .unwrap();
    let other = 1 - rank;
    let mut sent = 0;
    while (!hostile_is_done.load(Ordering::Acquire) || came.get() < 20) && !fm.has_left(other) {
        // Both send at once, so no more than the credit holds.
        if sent <= came.get() {
            match fm.send(other, 0, &[rank as u8; 20_000]) {
                Ok(()) => sent += 1,
                Err(Error::Dead(..)) => {}
                Err(error) => panic!("{error}"),
            }
        }
        fm.extract(usize::MAX);
        // What is sent to the liar is refused, or goes where it said.
        let _ = fm.begin(2, 3, 0).map(drop);
    }
    // The last messages of one that has left are still to be taken.
    while fm.has_left(other) && fm.extract(usize::MAX) > 0 {}
    let refused = fm.figures().refused;
    // A handler that is suspended sees the end of its message.
    finishes.set(true);
    fm.finish().unwrap();
    refused
}

fn attack(seed: u64) -> u64 {
    let dir = tempfile::tempdir().unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let run = |rank| {
            let (dir, done) = (dir.path(), &done);
            scope.spawn(move || honest(dir, rank, done))
        };
        let (first, second) = (run(0), run(1));
        let mut rng = Rng::new(seed);
        let (mut node, link, hello) = join(dir.path(), 2);
        let ticket = |at: usize| Ticket::from_bytes(&hello[12 + at * TICKET..][..TICKET]).unwrap();
        let flags = Flags::NOTIFY | Flags::WAKE | Flags::IN_ORDER;
        for _ in 0..3000 {
            // Now and then silent: bytes that nothing announces.
            let flags = if rng.below(4) == 0 { flags - Flags::NOTIFY } else { flags };
            let to = ticket(rng.below(2) as usize).with_flags(flags);
            let most = [64, 8192, 40_000][rng.below(3) as usize];
            let at = rng.below(most) / 64 * 64;
            let Ok(to) = to.at(at) else { continue };
            let most = [20, 300, 4000][rng.below(3) as usize];
            let length = rng.below(most) as usize;
            // Mostly true words, in which one field lies.
            let mut word = Word {
                first: rng.below(3) == 0,
                last: rng.below(3) == 0,
                length: length.min(16_383),
                stream: rng.below(5) as usize,
                handler: 0,
            };
            match rng.below(12) {
                0 => word.length = rng.below(16_384) as usize,
                1 => word.stream = rng.below(64) as usize,
                2 => word.handler = rng.below(1024) as usize,
                _ => {}
            }
            let data = vec![rng.number() as u8; length];
            if node.try_send_fast_over(link, &to, &data, word.to_bits()).is_err() {
                if !node.links().any(|of| of == link) {
                    break;
                }
                let _ = node.wait(Some(Duration::from_millis(1)));
            }
            if rng.below(20) == 0 {
                let count = [0, 64, rng.number()][rng.below(3) as usize].to_le_bytes();
                let _ = node.try_send_fast_over(link, &ticket(2), &count, 0);
            }
        }
        let _ = node.flush(Some(Duration::from_secs(10)));
        drop(node);
        done.store(true, Ordering::Release);
        let refused = first.join().unwrap();
        second.join().unwrap();
        refused
    })
}

#[test]
fn a_node_that_lies_in_every_field_harms_nobody_else() {
    let refused: u64 = (1..=10).map(attack).sum();
    assert!(refused > 0, "lies were seen");
}

#[test]
fn bytes_that_nothing_announces_stay_inside_of_their_handlers_buffer() {
    let dir = tempfile::tempdir().unwrap();
    let around = 4000..24_000;
    std::thread::scope(|scope| {
        let (path, inside) = (dir.path(), around.clone());
        let victim = scope.spawn(move || {
            let config = Config { time_limit: LIMIT, ..Config::default() };
            let fm = Fm::meet_all(node(path), "fm", 0, 2, config).unwrap();
            let memory = Rc::new(RefCell::new(vec![0u8; 28_000]));
            let (of, all) = (memory.clone(), inside);
            fm.register(Some(0), move |stream, _| {
                stream.receive(&mut of.borrow_mut()[all.clone()]);
                Verdict::Continue
            })
            .unwrap();
            while fm.figures().messages_handled == 0 {
                fm.extract(usize::MAX);
            }
            memory.take()
        });
        let (mut node, link, hello) = join(dir.path(), 1);
        let ticket = |at: usize| Ticket::from_bytes(&hello[12 + at * TICKET..][..TICKET]).unwrap();
        let flags = Flags::NOTIFY | Flags::IN_ORDER;
        let mut send = |to: Ticket, word: Word, data: &[u8]| {
            while node.try_send_fast_over(link, &to, data, word.to_bits()).is_err() {
                if !node.links().any(|of| of == link) {
                    return false;
                }
                node.wait(Some(Duration::from_millis(1))).unwrap();
            }
            true
        };
        let word = Word { first: true, last: false, length: 8, stream: 0, handler: 0 };
        assert!(send(ticket(0).with_flags(flags), word, &100_000u64.to_le_bytes()));
        let rest = Word { first: false, length: 6000, ..word };
        // Again and again, so that some come while the handler's buffer is where they go.
        for round in 0..400 {
            let last = round == 399;
            let to = ticket(1).with_flags(if round % 20 == 19 || last {
                flags
            } else {
                Flags::IN_ORDER
            });
            if !send(to, Word { last, ..rest }, &[7; 6000]) {
                break;
            }
        }
        let memory = victim.join().unwrap();
        let outside = memory[..around.start].iter().chain(&memory[around.end..]);
        assert!(outside.copied().all(|byte| byte == 0), "bytes beyond the buffer were written");
        assert!(memory[around].contains(&7));
    });
}

#[test]
fn a_hello_that_cannot_be_one_is_an_error_that_says_so() {
    let dir = tempfile::tempdir().unwrap();
    for (said, expected) in [
        (vec![0; 12], "12 bytes"),
        ([&7u32.to_le_bytes()[..], &[0; 140]].concat(), "version 7"),
        ([&1u32.to_le_bytes()[..], &[0; 140]].concat(), "credit of 0 bytes"),
    ] {
        std::thread::scope(|scope| {
            let path = dir.path();
            let victim = scope.spawn(move || {
                let config = Config { time_limit: LIMIT, ..Config::default() };
                Fm::meet_all(node(path), "fm", 0, 2, config).map(|_| ()).unwrap_err()
            });
            let mut node = node(path);
            let (area, queue) =
                (node.message_area(1024).unwrap(), node.notification_queue(1).unwrap());
            let slot = node.slot(SlotConfig::new(area, queue)).unwrap();
            let own = node.fast_ticket(slot).unwrap().to_bytes();
            let link = node.connect("fm-0", &[&own[..], &1u32.to_le_bytes()].concat(), LIMIT);
            let link = link.unwrap();
            let to = Ticket::from_bytes(&node.greeting(link).unwrap()[..TICKET]).unwrap();
            node.send_fast(&to, &said, 0, LIMIT).unwrap();
            let error = victim.join().unwrap().to_string();
            assert!(error.contains(expected), "{error}");
            while let Some(event) = node.next_event() {
                if let Event::Closed { .. } = event {
                    break;
                }
            }
        });
    }
}
