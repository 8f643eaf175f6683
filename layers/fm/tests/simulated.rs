//! Three nodes in a simulation, with the smallest credit: any order of events that follows from a seed, no
//! time limit anywhere. A pattern that stops everybody ends the run with an error.

use hamlyn::config::WaitMode;
use hamlyn::simulation::{self, Rng};
use hamlyn::{Config as Settings, Node};
use hamlyn_fm::{Config, Error, Fm, Verdict};
use std::cell::{Cell, RefCell};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

const NODES: u32 = 3;
/// Messages of each node to each other one.
const MESSAGES: u32 = 25;
/// Handlers: a message with bytes, its reply, and the word that all have been replied to.
const BYTES: u32 = 0;
const REPLY: u32 = 1;
const DONE: u32 = 2;

fn join(dir: &Path, rank: u32, rng: &mut Rng) -> Fm {
    let modes = [WaitMode::Polled, WaitMode::Adaptive, WaitMode::Blocking];
    let settings = Settings::default()
        .dir(dir)
        .shared_dir(dir.join("shared"))
        .ring_bytes(4096u32)
        .bulk_ring_bytes(0u32)
        .packets_per_turn(1 + rng.below(3) as u32)
        .wait_mode(modes[rng.below(3) as usize]);
    let config = Config {
        time_limit: None,
        credit_bytes: 768,
        queue_bytes: 256,
        open_messages: 2,
        ..Config::default()
    };
    Fm::meet_all(Node::with_config(settings).unwrap(), "sim", rank, NODES, config).unwrap()
}

/// A send beyond the credit waits until the other node extracts, which it does not while it waits itself.
/// So a node sends what is longer than the credit to those above it only, and one message to each.
fn bytes(from: u32, to: u32, number: u32) -> Vec<u8> {
    let mut rng = Rng::new(u64::from(from) << 32 | u64::from(number));
    let most = [20, 100, if from < to { 5000 } else { 100 }][rng.below(3) as usize];
    let length = rng.below(most);
    (0..length).map(|i| (i * 7) as u8 ^ from as u8 ^ number as u8).collect()
}

/// Sends to all, replies to all, and ends when each has had all. Returns how many others died.
fn node(dir: &Path, rank: u32, mut rng: Rng) -> u32 {
    let fm = join(dir, rank, &mut rng);
    // By peer: the next number, replies, and whether it is done.
    let next = Rc::new(RefCell::new([0u32; NODES as usize]));
    let replies = Rc::new(RefCell::new([0u32; NODES as usize]));
    let done = Rc::new(Cell::new(0u32));
    let (expected, seed) = (next.clone(), rng.number());
    fm.register(Some(BYTES), move |stream, sender| {
        let Some(number) = stream.receive_value::<u32>() else { return Verdict::Continue };
        {
            let expected = &mut expected.borrow_mut()[sender as usize];
            assert_eq!(number, *expected, "handlers start in order");
            *expected += 1;
        }
        let mut rng = Rng::new(seed ^ u64::from(number));
        let whole = bytes(sender, rank, number);
        let mut found = Vec::new();
        while stream.left() > 0 {
            let mut piece = vec![0; 1 + rng.below(700) as usize];
            let wanted = piece.len();
            let came = stream.receive(&mut piece);
            found.extend_from_slice(&piece[..came]);
            if came < wanted {
                break;
            }
        }
        assert!(whole.starts_with(&found));
        if found.len() == whole.len() {
            let of = stream.endpoint();
            match of.send(sender, REPLY, &number.to_le_bytes()) {
                Ok(()) | Err(Error::Dead(..)) => {}
                Err(error) => panic!("a reply always has room: {error}"),
            }
        }
        Verdict::Continue
    })
    .unwrap();
    let (count, end) = (replies.clone(), done.clone());
    fm.register(Some(REPLY), move |stream, sender| {
        let number = stream.receive_value::<u32>().unwrap();
        let of = &mut count.borrow_mut()[sender as usize];
        assert!(number < MESSAGES);
        *of += 1;
        Verdict::Continue
    })
    .unwrap();
    fm.register(Some(DONE), move |_, _| {
        end.set(end.get() + 1);
        Verdict::Continue
    })
    .unwrap();

    let others: Vec<u32> = (0..NODES).filter(|other| *other != rank).collect();
    for number in 0..MESSAGES {
        for &other in &others {
            while number > replies.borrow()[other as usize] && !fm.has_left(other) {
                if fm.extract(1 + rng.below(2000) as usize) == 0 {
                    fm.wait(None).unwrap();
                }
            }
            let (data, size) = (bytes(rank, other, number), 1 + rng.below(900) as usize);
            let sent = fm.begin(other, 4 + data.len() as u64, BYTES).and_then(|mut message| {
                message.value(&number)?;
                for piece in data.chunks(size) {
                    message.piece(piece)?;
                }
                message.end()
            });
            assert!(matches!(sent, Ok(()) | Err(Error::Dead(..))), "{sent:?}");
        }
        if rng.below(5) == 0 {
            simulation::sleep(Duration::from_micros(rng.below(300)));
        }
    }
    let mut told = Vec::new();
    loop {
        for &other in &others {
            if !told.contains(&other)
                && (replies.borrow()[other as usize] == MESSAGES || fm.has_left(other))
            {
                told.push(other);
                let _ = fm.send(other, DONE, b"");
            }
        }
        let dead = others.iter().filter(|other| fm.has_left(**other)).count() as u32;
        // What a dead one sent has been extracted when nothing more comes.
        let given = fm.extract(usize::MAX);
        if given == 0 && told.len() == others.len() && done.get() + dead >= others.len() as u32 {
            let figures = fm.figures();
            assert_eq!(figures.refused, 0);
            return dead;
        }
        if given == 0 {
            fm.wait(Some(Duration::from_millis(1))).unwrap();
        }
    }
}

fn run(seed: u64, kills: bool) -> Vec<u32> {
    let dir = tempfile::tempdir().unwrap();
    let mut rng = Rng::new(seed);
    let ended = Rc::new(RefCell::new(Vec::new()));
    let mut hosts: Vec<Box<dyn FnOnce()>> = Vec::new();
    for rank in 0..NODES {
        let (path, own, ended) = (PathBuf::from(dir.path()), Rng::new(rng.number()), ended.clone());
        hosts.push(Box::new(move || {
            let dead = node(&path, rank, own);
            ended.borrow_mut().push(dead);
        }));
    }
    let at = Duration::from_nanos(3_000_000 + rng.below(3_000_000));
    hosts.push(Box::new(move || {
        simulation::sleep(at);
        simulation::stop(1, Duration::from_millis(1));
        if kills {
            simulation::kill(2);
        }
    }));
    simulation::run(seed, hosts).unwrap_or_else(|stuck| panic!("seed {seed}: {stuck:?}"));
    ended.take()
}

fn seeds() -> std::ops::RangeInclusive<u64> {
    1..=std::env::var("HAMLYN_SIM_SEEDS").map_or(20, |seeds| seeds.parse().unwrap())
}

#[test]
fn messages_and_replies_of_all_arrive_whatever_the_order_of_events() {
    for seed in seeds() {
        assert_eq!(run(seed, false).len(), NODES as usize, "seed {seed}");
    }
}

#[test]
fn a_node_that_is_killed_ends_nobody_else() {
    let mut died = 0;
    for seed in seeds() {
        let ended = run(seed, true);
        assert!(ended.len() >= NODES as usize - 1, "seed {seed}");
        died += ended.iter().filter(|dead| **dead > 0).count();
    }
    assert!(died > 0, "some were killed while they sent");
}
