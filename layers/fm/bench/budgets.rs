//! Instructions that a message of Fast Messages costs, both sides together, against a committed table.
//!
//! `cargo bench -p hamlyn-fm --bench fm_budgets`; how it counts: see `counted`. Two nodes in one process,
//! the release profile.
//!
//! Rows without a number wanted show the parts of others: the paper's Figures 2 and 3(a).

#[path = "../../counted.rs"]
mod counted;

use counted::{Outcome, Row, counted_if, row_ends};
use hamlyn::node::PreparedTicket;
use hamlyn::{Accept, Access, Flags, Node, QueueId, SlotConfig, Ticket};
use hamlyn_fm::{Config, Fm, Verdict};
use std::cell::Cell;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

const LIMIT: Option<Duration> = Some(Duration::from_secs(60));
/// Messages of a row that are counted, after as many that are not.
const MESSAGES: u64 = 2048;
/// Messages sent before the first is received, where a row is in batches.
const BATCH: u64 = 16;
/// Credit that is given back so seldom that it costs nothing, and so often that it can be seen.
const MUCH: u32 = 1 << 20;
const LITTLE: u32 = 768;
/// Bytes of a packet with the usual credit.
const PACKET: usize = 8000;

const ROWS: &[Row] = &[
    (
        "raw-silent",
        None,
        "raw: send_prepared of 16 bytes and a turn; without notification and credit",
    ),
    ("raw-unordered", None, "raw: the same, notified, and recv; without IN_ORDER"),
    ("raw", None, "raw: the same with IN_ORDER: the reference"),
    ("raw-200", None, "raw: 200 bytes, one by one"),
    ("raw-8000", None, "raw: 8000 bytes, one by one"),
    ("send_4", Some((330.0, None)), "send_4 to its handler, 16 at a time"),
    ("send_4-single", None, "the same, one by one"),
    (
        "piece-16",
        Some((450.0, None)),
        "begin, a piece of 16 bytes, end, to its handler, 16 at a time",
    ),
    ("piece-16-single", None, "the same, one by one"),
    (
        "first-byte",
        Some((600.0, None)),
        "16 bytes to their handler before the message ends: on a stack",
    ),
    ("rest", None, "of that message: a second packet, and its handler ends"),
    ("length-200", None, "a message of 200 bytes, one by one"),
    (
        "long",
        None,
        "a message of 64,000 bytes (8 packets) in pieces of 16 KiB; beyond 8 of raw-8000: 600",
    ),
    ("credit-seldom", None, "send_4, 4 at a time, credit of 1 MiB"),
    (
        "credit-often",
        None,
        "send_4, 4 at a time, credit of 768 bytes: given back each third message",
    ),
];

/// Runs a row's work for warming up, and to be counted.
fn row(mut work: impl FnMut() -> Outcome) -> Outcome {
    work()?;
    counted_if(true, &mut work)?;
    row_ends();
    Ok(())
}

/// A node, moved as a whole to the thread that uses it.
struct Moved(Fm);

// SAFETY: what it shares, it shares with itself alone, and it is used by one thread after another.
unsafe impl Send for Moved {}

/// Two nodes, which this thread uses; the second's handlers 0 and 1 count in `Two::came` what came.
struct Two {
    from: Fm,
    to: Fm,
    came: Rc<Cell<u64>>,
}

fn two(config: &Config) -> Outcome<Two> {
    let name = format!("fm-{}", config.credit_bytes);
    let meet = || Fm::meet(&name, config.clone()).map(Moved).map_err(|e| e.to_string());
    let (one, other) = std::thread::scope(|scope| {
        let other = scope.spawn(meet);
        Outcome::Ok((meet()?.0, other.join().map_err(|_| "meeting panicked")??.0))
    })?;
    let (from, to) = if one.node() == 0 { (one, other) } else { (other, one) };
    let came = Rc::new(Cell::new(0));
    let seen = came.clone();
    to.register(Some(0), move |stream, _| {
        let words: Option<[u32; 4]> = stream.receive_value();
        seen.set(seen.get() + u64::from(words.is_some()));
        Verdict::Continue
    })?;
    let (seen, mut place) = (came.clone(), std::cell::RefCell::new(vec![0; 16 << 10]));
    place.get_mut().fill(1);
    to.register(Some(1), move |stream, _| {
        let place = &mut *place.borrow_mut();
        while stream.receive(place) > 0 {
            seen.set(seen.get() + 1);
        }
        Verdict::Continue
    })?;
    Ok(Two { from, to, came })
}

impl Two {
    #[inline(always)]
    fn extract(&self, until: u64) {
        while self.came.get() < until {
            self.to.extract(usize::MAX);
        }
    }

    /// So many messages at a time, sent and then extracted.
    fn batches(&self, batch: u64, mut send: impl FnMut(&Fm) -> Outcome) -> Outcome {
        row(|| {
            for _ in 0..MESSAGES / batch {
                let until = self.came.get() + batch;
                for _ in 0..batch {
                    send(&self.from)?;
                }
                self.extract(until);
            }
            Ok(())
        })
    }
}

fn piece(fm: &Fm, handler: u32, data: &[u8]) -> Outcome {
    let mut message = fm.begin(1, data.len() as u64, handler)?;
    message.piece(data)?;
    Ok(message.end()?)
}

/// Two raw nodes.
struct Pair {
    receiver: Node,
    queue: QueueId,
    sender: Node,
    fast: Ticket,
}

impl Pair {
    fn new() -> Outcome<Self> {
        let mut receiver = Node::with_config(hamlyn::Config::from_env()?)?;
        let area = receiver.message_area(16 << 10)?;
        let queue = receiver.notification_queue(64)?;
        let slot = receiver.slot(SlotConfig::new(area, queue).credit(64))?;
        let fast = receiver.fast_ticket(slot)?;
        receiver.serve("budget", Access::SameUser, Accept::Automatic(vec![]))?;
        let mut sender = Node::with_config(hamlyn::Config::from_env()?)?;
        sender.connect("budget", b"", LIMIT)?;
        while receiver.next_event().is_none() {
            receiver.wait(LIMIT)?;
        }
        Ok(Self { receiver, queue, sender, fast })
    }

    fn prepared(&mut self, flags: Flags) -> Outcome<PreparedTicket> {
        Ok(self.sender.prepare(&self.fast.with_flags(flags))?)
    }

    fn batches(&mut self, batch: u64, to: &PreparedTicket, data: &[u8]) -> Outcome {
        row(|| {
            for _ in 0..MESSAGES / batch {
                for word in 0..batch {
                    self.sender.send_prepared_at(to, 0, data, word as u32, LIMIT)?;
                }
                for _ in 0..batch {
                    self.receiver.recv(self.queue, LIMIT)?;
                }
            }
            Ok(())
        })
    }
}

fn raw() -> Outcome {
    let mut pair = Pair::new()?;
    let notified = Flags::NOTIFY | Flags::WAKE;
    let silent = pair.prepared(Flags::WAKE)?;
    row(|| {
        for _ in 0..MESSAGES / BATCH {
            for word in 0..BATCH {
                pair.sender.send_prepared_at(&silent, 0, &[7; 16], word as u32, LIMIT)?;
            }
            let mut came = 0;
            while came < BATCH as usize {
                came += pair.receiver.poll()?;
            }
        }
        Ok(())
    })?;
    let unordered = pair.prepared(notified)?;
    pair.batches(BATCH, &unordered, &[7; 16])?;
    let ordered = pair.prepared(notified | Flags::IN_ORDER)?;
    pair.batches(BATCH, &ordered, &[7; 16])?;
    pair.batches(1, &ordered, &[7; 200])?;
    pair.batches(1, &ordered, &[7; PACKET])
}

fn short() -> Outcome {
    let two = two(&Config::default())?;
    let send_4 = |fm: &Fm| -> Outcome { Ok(fm.send_4(1, 0, [1, 2, 3, 4])?) };
    two.batches(BATCH, send_4)?;
    two.batches(1, send_4)?;
    two.batches(BATCH, |fm| piece(fm, 0, &[7; 16]))?;
    two.batches(1, |fm| piece(fm, 0, &[7; 16]))?;
    // A message that has begun, and is not over: its handler runs on a stack.
    for counts_rest in [false, true] {
        for is_counted in [false, true] {
            for _ in 0..MESSAGES {
                let mut message = None;
                counted_if(is_counted && !counts_rest, &mut || {
                    let of = message.insert(two.from.begin(1, 32, 1)?);
                    of.piece(&[7; 16])?;
                    two.to.extract(usize::MAX);
                    Ok(())
                })?;
                counted_if(is_counted && counts_rest, &mut || {
                    let mut of = message.take().ok_or("no message")?;
                    of.piece(&[7; 16])?;
                    of.end()?;
                    two.to.extract(usize::MAX);
                    Ok(())
                })?;
            }
        }
        row_ends();
    }
    two.batches(1, |fm| piece(fm, 1, &[7; 200]))?;
    let long = vec![7; 8 * PACKET];
    row(|| {
        for _ in 0..MESSAGES {
            let (mut message, until) =
                (two.from.begin(1, long.len() as u64, 1)?, two.came.get() + 4);
            for part in long.chunks(2 * PACKET) {
                message.piece(part)?;
                two.to.extract(usize::MAX);
            }
            message.end()?;
            two.extract(until);
        }
        Ok(())
    })
}

fn credits() -> Outcome {
    for credit_bytes in [MUCH, LITTLE] {
        let two = two(&Config { credit_bytes, ..Config::default() })?;
        two.batches(4, |fm| Ok(fm.send_4(1, 0, [1, 2, 3, 4])?))?;
    }
    Ok(())
}

fn measure() -> Outcome {
    raw()?;
    short()?;
    credits()
}

fn main() -> ExitCode {
    counted::run(ROWS, MESSAGES, measure)
}
