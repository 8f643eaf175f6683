//! Two nodes that are two threads of one process.

use hamlyn::Node;
use hamlyn_fm::{Config, Error, Fm, Verdict};
use std::cell::{Cell, RefCell};
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);

fn fm(dir: &Path, rank: u32, config: &Config) -> Fm {
    let settings = hamlyn::Config::default().dir(dir).shared_dir(dir.join("shared"));
    let node = Node::with_config(settings.ring_bytes(64u32 << 10).packets_per_turn(1u32)).unwrap();
    Fm::meet_all(node, "fm", rank, 2, config.clone()).unwrap()
}

/// Runs a program as each of two nodes.
fn two(config: Config, program: impl Fn(Fm) + Sync) {
    let dir = tempfile::tempdir().unwrap();
    std::thread::scope(|scope| {
        for rank in 0..2 {
            let (dir, config, program) = (dir.path(), &config, &program);
            scope.spawn(move || program(fm(dir, rank, config)));
        }
    });
}

/// Extracts until something has come about.
fn until(fm: &Fm, is_done: impl Fn() -> bool) {
    while !is_done() {
        if fm.extract(usize::MAX) == 0 && !is_done() {
            fm.wait(Some(Duration::from_millis(100))).unwrap();
        }
    }
}

fn bytes(seed: usize, count: usize) -> Vec<u8> {
    (0..count).map(|i| (seed * 31 + i * 7 + i / 251) as u8).collect()
}

#[test]
fn messages_of_all_lengths_in_pieces_that_do_not_match_arrive_whole_and_in_order() {
    const LENGTHS: [usize; 14] =
        [0, 1, 16, 47, 48, 49, 64, 200, 2040, 8184, 8192, 8193, 65_536, 300_001];
    for credit_bytes in [768, 48 << 10] {
        two(Config { credit_bytes, ..Config::default() }, |fm| {
            let count = Rc::new(Cell::new(0));
            let seen = count.clone();
            fm.register(Some(5), move |stream, _| {
                let number = seen.get();
                let expected = bytes(number, LENGTHS[number % LENGTHS.len()]);
                assert!(stream.left() >= expected.len() as u64);
                let mut found = Vec::new();
                for take in [3, 1000, 17, 16_384].into_iter().cycle() {
                    let mut piece = vec![0; take];
                    let came = stream.receive(&mut piece);
                    found.extend_from_slice(&piece[..came]);
                    if came < take {
                        break;
                    }
                }
                assert_eq!(found.len(), expected.len(), "message {number}");
                assert!(found == expected, "message {number}");
                assert_eq!(stream.left(), 0);
                seen.set(number + 1);
                Verdict::Continue
            })
            .unwrap();
            if fm.node() == 0 {
                for number in 0..4 * LENGTHS.len() {
                    let data = bytes(number, LENGTHS[number % LENGTHS.len()]);
                    let mut message = fm.begin(1, data.len() as u64, 5).unwrap();
                    let sizes = [1, 40, 5000, 100_000].into_iter().cycle();
                    let mut rest = &data[..];
                    for size in sizes {
                        let (front, behind) = rest.split_at(rest.len().min(size));
                        message.piece(front).unwrap();
                        rest = behind;
                        if rest.is_empty() {
                            break;
                        }
                    }
                    message.end().unwrap();
                }
                until(&fm, || fm.has_left(1));
            } else {
                until(&fm, || count.get() == 4 * LENGTHS.len());
                assert_eq!(fm.figures().bytes_discarded, 0);
            }
        });
    }
}

#[test]
fn a_handler_has_the_first_piece_before_the_sender_has_given_the_last() {
    two(Config::default(), |fm| {
        let (first, last) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
        let seen = (first.clone(), last.clone());
        fm.register(Some(1), move |stream, _| {
            seen.0.set(stream.receive_value::<u32>().unwrap());
            stream.endpoint().send_4(0, 2, [1, 2, 3, 4]).unwrap();
            let mut rest = vec![0; 100_000];
            assert_eq!(stream.receive(&mut rest), rest.len());
            seen.1.set(rest[99_999]);
            Verdict::Continue
        })
        .unwrap();
        let told = Rc::new(Cell::new(false));
        let was_told = told.clone();
        fm.register(Some(2), move |stream, _| {
            assert_eq!(stream.receive_value(), Some([1u32, 2, 3, 4]));
            was_told.set(true);
            Verdict::Continue
        })
        .unwrap();
        if fm.node() == 0 {
            let mut message = fm.begin(1, 100_004, 1).unwrap();
            message.value(&7u32).unwrap();
            until(&fm, || told.get());
            message.piece(&[9; 100_000]).unwrap();
            message.end().unwrap();
            until(&fm, || fm.has_left(1));
        } else {
            until(&fm, || last.get() == 9);
            assert_eq!(first.get(), 7);
        }
    });
}

#[test]
fn handlers_start_in_the_order_of_beginning_and_interleave() {
    two(Config::default(), |fm| {
        let said = Rc::new(RefCell::new(Vec::new()));
        for id in 0..3u32 {
            let said = said.clone();
            fm.register(Some(id), move |stream, _| {
                said.borrow_mut().push((id, "begins"));
                let mut all = vec![0; 20_000];
                let came = stream.receive(&mut all);
                assert!(all[..came].iter().all(|byte| *byte == id as u8));
                said.borrow_mut().push((id, "ends"));
                Verdict::Continue
            })
            .unwrap();
        }
        if fm.node() == 0 {
            let mut long = fm.begin(1, 20_000, 0).unwrap();
            let short = fm.begin(1, 10, 1).unwrap();
            let mut other = fm.begin(1, 20_000, 2).unwrap();
            other.piece(&[2; 20_000]).unwrap();
            short.end().unwrap();
            long.piece(&[0; 20_000]).unwrap();
            other.end().unwrap();
            long.end().unwrap();
            until(&fm, || fm.has_left(1));
        } else {
            until(&fm, || said.borrow().len() == 6);
            let said = said.borrow();
            let of = |what| {
                said.iter().filter(|(_, is)| *is == what).map(|(id, _)| *id).collect::<Vec<_>>()
            };
            assert_eq!(of("begins"), [0, 1, 2]);
            assert_eq!(of("ends"), [2, 1, 0]);
        }
    });
}

#[test]
fn most_bytes_of_long_messages_go_straight_to_the_buffer() {
    two(Config::default(), |fm| {
        let count = Rc::new(Cell::new(0));
        let seen = count.clone();
        fm.register(Some(0), move |stream, _| {
            let mut piece = vec![0; 16 << 10];
            while stream.receive(&mut piece) == piece.len() {}
            seen.set(seen.get() + 1);
            Verdict::Continue
        })
        .unwrap();
        if fm.node() == 0 {
            let data = vec![1; 64 << 10];
            (0..200).for_each(|_| fm.send(1, 0, &data).unwrap());
            until(&fm, || fm.has_left(1));
        } else {
            until(&fm, || count.get() == 200);
            let figures = fm.figures();
            assert_eq!(figures.bytes_received, 200 * (64 << 10));
            let share = figures.bytes_direct as f64 / figures.bytes_received as f64;
            println!("{share} {figures:?}");
            assert!(share >= 0.75, "{share}");
        }
    });
}

#[test]
fn two_programs_that_only_send_end_in_their_time_limit_with_a_sentence() {
    let time_limit = Some(Duration::from_millis(300));
    let both_know = std::sync::Barrier::new(2);
    two(Config { time_limit, ..Config::default() }, |fm| {
        let other = 1 - fm.node();
        let error = loop {
            if let Err(error) = fm.send(other, 0, &[0; 500]) {
                break error;
            }
        };
        assert!(matches!(error, Error::Full(_)), "{error}");
        assert!(error.to_string().contains("extracts nothing"), "{error}");
        fm.set_time_limit(Some(LIMIT));
        both_know.wait();
        // It is well again when the other extracts.
        fm.register(None, |_, _| Verdict::Continue).unwrap();
        while fm.figures().messages_handled < 20 {
            fm.extract(usize::MAX);
        }
        if let Err(error) = fm.send(other, 0, b"goodbye") {
            assert!(matches!(error, Error::Dead(..)), "it has had its twenty first: {error}");
        }
    });
}

#[test]
fn a_message_that_had_no_room_in_time_ends_early_and_later_ones_are_whole() {
    let has_failed = std::sync::Barrier::new(2);
    two(Config::default(), |fm| {
        let seen = Rc::new(RefCell::new(Vec::new()));
        let all = seen.clone();
        fm.register(Some(0), move |stream, _| {
            let mut buffer = vec![0; 200_000];
            let came = stream.receive(&mut buffer);
            assert!(buffer[..came].iter().all(|byte| *byte == buffer[0]));
            all.borrow_mut().push(came);
            Verdict::Continue
        })
        .unwrap();
        if fm.node() == 0 {
            fm.set_time_limit(Some(Duration::from_millis(100)));
            let mut message = fm.begin(1, 200_000, 0).unwrap();
            message.piece(&[1; 20_000]).unwrap();
            assert!(matches!(message.piece(&[1; 100_000]), Err(Error::Full(_))));
            let again = message.piece(&[2; 1000]).unwrap_err();
            assert!(again.to_string().contains("an earlier piece"), "{again}");
            let end = message.end().unwrap_err();
            assert!(end.to_string().contains("ends early"), "{end}");
            fm.set_time_limit(Some(LIMIT));
            has_failed.wait();
            for byte in 3..40 {
                fm.send(1, 0, &[byte; 20_000]).unwrap();
            }
            until(&fm, || fm.has_left(1));
        } else {
            has_failed.wait();
            until(&fm, || seen.borrow().len() == 38);
            let seen = seen.borrow();
            assert!(seen[0] >= 20_000 && seen[0] < 120_000, "{}", seen[0]);
            assert!(seen[1..].iter().all(|came| *came == 20_000), "{seen:?}");
            assert_eq!(fm.figures().refused, 0);
        }
    });
}

#[test]
fn a_reply_always_has_room_and_a_full_queue_refuses_other_messages() {
    const REQUESTS: usize = 3000;
    two(Config { credit_bytes: 768, queue_bytes: 1000, ..Config::default() }, |fm| {
        let (replies, refused) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
        let (to_reply, to_refuse) = (replies.clone(), refused.clone());
        fm.register(Some(0), move |stream, sender| {
            let of = stream.endpoint();
            of.send(sender, 1, &[1; 100]).unwrap();
            for _ in 0..3 {
                match of.send(sender, 2, &[2; 100]) {
                    Err(Error::Full(_)) => to_refuse.set(to_refuse.get() + 1),
                    sent => sent.unwrap(),
                }
            }
            Verdict::Continue
        })
        .unwrap();
        fm.register(Some(1), move |_, _| {
            to_reply.set(to_reply.get() + 1);
            Verdict::Continue
        })
        .unwrap();
        fm.register(Some(2), |_, _| Verdict::Continue).unwrap();
        if fm.node() == 0 {
            for sent in 0..REQUESTS {
                fm.send(1, 0, &[0; 20]).unwrap();
                until(&fm, || replies.get() + 6 > sent);
            }
            until(&fm, || replies.get() == REQUESTS);
            assert_eq!(fm.figures().refused, 0);
        } else {
            until(&fm, || fm.has_left(0));
            assert!(refused.get() > 0, "the queue was full at times");
        }
    });
}

#[test]
fn messages_to_itself_and_for_no_handler() {
    two(Config::default(), |fm| {
        let sum = Rc::new(Cell::new(0));
        let of = sum.clone();
        let id = fm
            .register(None, move |stream, sender| {
                while let Some(number) = stream.receive_value::<u32>() {
                    of.set(of.get() + number + sender);
                }
                Verdict::Continue
            })
            .unwrap();
        let own = fm.node();
        fm.send_4(own, id, [1, 2, 3, 4]).unwrap();
        fm.send(own, 77, b"nobody").unwrap();
        let long: Vec<u8> = (0..8000u32).flat_map(u32::to_le_bytes).collect();
        let mut message = fm.begin(own, long.len() as u64, id).unwrap();
        for piece in long.chunks(3000) {
            message.piece(piece).unwrap();
            fm.extract(usize::MAX);
        }
        message.end().unwrap();
        fm.extract(usize::MAX);
        assert_eq!(sum.get(), 10 + 4 * own + 8000 * 7999 / 2 + 8000 * own);
        assert_eq!((fm.figures().refused, fm.figures().stacks), (1, 1));
        assert!(matches!(fm.send(2, id, b""), Err(Error::Limit(_))));
        assert!(matches!(fm.send(own, 1024, b""), Err(Error::Limit(_))));
        let mut message = fm.begin(own, 3, id).unwrap();
        assert!(matches!(message.piece(b"four"), Err(Error::Limit(_))));
    });
}

#[test]
fn a_handler_sees_the_end_of_a_message_whose_sender_left_and_waits_end() {
    two(Config::default(), |fm| {
        if fm.node() == 0 {
            let mut message = fm.begin(1, 1_000_000, 0).unwrap();
            message.piece(&[3; 30_000]).unwrap();
            std::mem::forget(message);
        } else {
            let seen = Rc::new(RefCell::new(Vec::new()));
            let all = seen.clone();
            fm.register(Some(0), move |stream, _| {
                let mut buffer = vec![0; 40_000];
                let came = stream.receive(&mut buffer);
                let again = stream.receive(&mut buffer);
                all.borrow_mut().extend([came, again, stream.left() as usize]);
                Verdict::Continue
            })
            .unwrap();
            until(&fm, || !seen.borrow().is_empty());
            let seen = seen.borrow();
            assert!(seen[0] > 16_000 && seen[0] <= 30_000 && seen[1..] == [0, 0], "{seen:?}");
            assert!(fm.has_left(0));
            assert!(matches!(fm.send(0, 0, b"?"), Err(Error::Dead(0, _))));
        }
    });
}

#[test]
fn extract_gives_no_more_than_it_is_asked_for() {
    two(Config::default(), |fm| {
        let count = Rc::new(Cell::new(0u32));
        let of = count.clone();
        fm.register(Some(0), move |_, _| {
            of.set(of.get() + 1);
            Verdict::Continue
        })
        .unwrap();
        fm.register(Some(1), |_, _| Verdict::Abort).unwrap();
        if fm.node() == 0 {
            (0..10).for_each(|_| fm.send(1, 0, &[0; 100]).unwrap());
            (0..2).for_each(|_| fm.send(1, 1, &[0; 100]).unwrap());
            until(&fm, || fm.has_left(1));
        } else {
            while !fm.wait(Some(LIMIT)).unwrap() {}
            assert_eq!((fm.extract(0), count.get()), (0, 0));
            for more in 1..=5 {
                let mut given = 0;
                while given < 150 {
                    given += fm.extract(150 - given);
                }
                assert_eq!((given, count.get()), (200, 2 * more));
            }
            let mut given = 0;
            while given == 0 {
                given = fm.extract(usize::MAX);
            }
            assert_eq!(given, 100, "a handler that aborts ends the call");
        }
    });
}
