//! Instructions that a message of Fast Messages costs, both sides together, against a committed table.
//!
//! `cargo bench -p hamlyn-fm --bench fm_budgets` runs this program again under valgrind's callgrind,
//! which counts the instructions of each row, and compares the counts with `bench/budgets.txt`;
//! `-- --write` writes that file. Two nodes in one process, the release profile. Counts are exact on a
//! busy machine; time is not measured here. Without valgrind: exit status 99, and a sentence.
//!
//! ```text
//!   this program -----> valgrind --tool=callgrind this program --measure
//!                           measured(work)  counts while it runs, as often as a row calls it
//!                           row_ends()      writes the row's count
//!   compare <---------- one file of counts for each row
//! ```
//! Rows without a number wanted show the parts of others: the paper's Figures 2 and 3(a).

use hamlyn::node::PreparedTicket;
use hamlyn::{Accept, Access, Flags, Node, QueueId, SlotConfig, Ticket};
use hamlyn_fm::{Config, Fm, Verdict};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::rc::Rc;
use std::time::Duration;

const LIMIT: Option<Duration> = Some(Duration::from_secs(60));
/// Messages of a row that are counted, after as many that are not.
const MESSAGES: u64 = 2048;
/// Messages sent before the first is received, where a row is in batches.
const BATCH: u64 = 16;
/// A count above the table's by more than this share fails.
const TOLERANCE: f64 = 0.05;
/// Credit that is given back so seldom that it costs nothing, and so often that it can be seen.
const MUCH: u32 = 1 << 20;
const LITTLE: u32 = 768;
/// Bytes of a packet with the usual credit.
const PACKET: usize = 8000;

type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;

/// A row: its name, the most instructions wanted, and the work that is counted.
type Row = (&'static str, Option<f64>, &'static str);

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
    ("send_4", Some(330.0), "send_4 to its handler, 16 at a time"),
    ("send_4-single", None, "the same, one by one"),
    ("piece-16", Some(450.0), "begin, a piece of 16 bytes, end, to its handler, 16 at a time"),
    ("piece-16-single", None, "the same, one by one"),
    ("first-byte", Some(600.0), "16 bytes to their handler before the message ends: on a stack"),
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

/// callgrind counts the instructions of this function, and of all that it calls.
#[inline(never)]
fn measured(work: &mut dyn FnMut() -> Outcome) -> Outcome {
    // Not a jump: counting ends where this function returns.
    std::hint::black_box(work())
}

/// callgrind writes what was counted.
#[inline(never)]
fn row_ends() {
    std::hint::black_box(());
}

/// Runs a row's work for warming up, and to be counted.
fn row(mut work: impl FnMut() -> Outcome) -> Outcome {
    work()?;
    measured(&mut work)?;
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

fn counted_if(is_counted: bool, work: &mut dyn FnMut() -> Outcome) -> Outcome {
    if is_counted { measured(work) } else { work() }
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

/// One count for each row, a message.
fn counts() -> Outcome<Vec<f64>> {
    let out = tempfile::tempdir()?;
    let (file, log) = (out.path().join("counts"), out.path().join("valgrind.txt"));
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--tool=callgrind", "--quiet", "--collect-atstart=no"]);
    valgrind.args(["--toggle-collect=fm_budgets::measured", "--dump-after=fm_budgets::row_ends"]);
    valgrind.arg(format!("--callgrind-out-file={}", file.display()));
    // Valgrind of 2022 says five lines about each system call that is younger than it.
    valgrind.arg(format!("--log-file={}", log.display()));
    valgrind.env("HAMLYN_DIR", out.path()).env("HAMLYN_WAIT_MODE", "polled");
    let status = valgrind.arg(std::env::current_exe()?).arg("--measure").status()?;
    if !status.success() {
        return Err(format!("valgrind: {status}: {}", std::fs::read_to_string(log)?).into());
    }
    let total = |row: usize| -> Outcome<f64> {
        let text = std::fs::read_to_string(file.with_extension((row + 1).to_string()))?;
        let totals = text.lines().find_map(|line| line.strip_prefix("totals: "));
        let totals: f64 = totals.ok_or("a file of counts without totals")?.trim().parse()?;
        Ok(totals / MESSAGES as f64)
    };
    (0..ROWS.len()).map(total).collect()
}

fn table() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("bench/budgets.txt")
}

fn read_table() -> Outcome<BTreeMap<String, f64>> {
    let text = std::fs::read_to_string(table())?;
    let rows = text.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty());
    rows.map(|line| {
        let mut cells = line.split_whitespace();
        let (Some(name), Some(count)) = (cells.next(), cells.next()) else {
            return Err("a row has a name and a count".into());
        };
        Ok((name.to_owned(), count.parse()?))
    })
    .collect()
}

fn most(wanted: Option<f64>) -> String {
    wanted.map_or("-".into(), |wanted| format!("{wanted}"))
}

fn write_table(counts: &[f64]) -> Outcome {
    let mut text = String::from(
        "# Instructions of one message, both sides together (callgrind, release profile): written by\n\
         # `cargo bench -p hamlyn-fm --bench fm_budgets -- --write`; without it, the same command fails\n\
         # above them by 5 %. `most` is the number wanted.\n\
         # row          instructions   most  counted\n",
    );
    for ((name, wanted, what), count) in ROWS.iter().zip(counts) {
        text += &format!("{name:<16}{count:>11.1}{:>7}  {what}\n", most(*wanted));
    }
    Ok(std::fs::write(table(), text)?)
}

fn check(writes: bool) -> Outcome<bool> {
    // Addresses differ from run to run, and a few rows by some instructions for it: the least counts.
    let mut counts = counts()?;
    if writes {
        for (least, count) in counts.iter_mut().zip(self::counts()?) {
            *least = least.min(count);
        }
        write_table(&counts)?;
    }
    let table = read_table()?;
    let mut within = true;
    println!("{:<16}{:>10}{:>10}{:>8}", "row", "counted", "table", "most");
    for ((name, wanted, _), count) in ROWS.iter().zip(&counts) {
        let budget = *table.get(*name).ok_or(format!("{name} is not in the table"))?;
        let exceeds = *count > budget * (1.0 + TOLERANCE);
        within &= !exceeds;
        let word = if exceeds { "  MORE than the table allows" } else { "" };
        println!("{name:<16}{count:>10.1}{budget:>10.1}{:>8}{word}", most(*wanted));
    }
    Ok(within)
}

fn main() -> ExitCode {
    let has = |name: &str| std::env::args().any(|argument| argument == name);
    let done = match () {
        () if has("--measure") => measure().map(|()| true),
        () if Command::new("valgrind").arg("--version").output().is_err() => {
            eprintln!("there is no valgrind: no instruction was counted");
            return ExitCode::from(99);
        }
        () => check(has("--write")),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("{e}");
            ExitCode::FAILURE
        }
    }
}
