//! Instructions that a message costs, both sides together, against a committed table.
//!
//! `cargo bench --bench budgets` runs this program again under valgrind's callgrind, which counts
//! what each row executes, and compares the counts with `bench/budgets.txt`; `-- --write` writes
//! them there. Two nodes in one process and one thread, the release profile. Counts are exact on a
//! busy machine; time is not measured here. Without valgrind: exit status 99, and a sentence.
//!
//! ```text
//!   this program -----> valgrind --tool=callgrind this program --measure
//!                           measured(row): counting begins; the row's work; counting ends, dump
//!   compare <---------- one file of counts for each row
//! ```

use hamlyn::protocol::{
    Client, Manager, Server, ServerConfig, StreamConfig, StreamReceiver, StreamSender,
    TaggedConfig, TaggedReceiver, TaggedSender,
};
use hamlyn::{Accept, Access, Config, MetadataIndex, Node, QueueId, SlotConfig, Ticket};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

const LIMIT: Option<Duration> = Some(Duration::from_secs(60));
/// Messages of a row that are counted, after as many that are not.
const MESSAGES: u64 = 4096;
/// Messages sent before the first is received, where a row is in batches.
const BATCH: u64 = 16;
/// A count above the table's by more than this fails.
const TOLERANCE: f64 = 0.02;

type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;

/// A row's name, and the row that it stands on, so many times.
struct Row {
    name: &'static str,
    above: Option<(&'static str, f64)>,
    what: &'static str,
}

/// In the order in which they are measured.
const ROWS: &[Row] = &[
    Row { name: "batched", above: None, what: "send, recv of 16 bytes, 16 at a time" },
    Row { name: "single", above: None, what: "send, recv of 16 bytes, one by one" },
    Row { name: "prepared", above: None, what: "send_prepared, recv of 16 bytes, 16 at a time" },
    Row { name: "fast", above: None, what: "send_fast, recv of 16 bytes, one by one" },
    Row {
        name: "tagged",
        above: Some(("single", 1.0)),
        what: "tagged write of 16 bytes and its tag",
    },
    Row { name: "record", above: Some(("single", 1.0)), what: "record of 16 bytes, flushed" },
    Row { name: "call", above: Some(("single", 2.0)), what: "request and reply of 16 bytes" },
    Row { name: "coalesced", above: None, what: "record of 64 bytes, one of many" },
];

/// What callgrind counts: all that happens in here.
#[inline(never)]
fn measured(work: &mut dyn FnMut() -> Outcome) -> Outcome {
    // Not a jump: counting ends where this function returns.
    std::hint::black_box(work())
}

/// Runs a row's work once for warming up, and once to be counted.
fn row(mut work: impl FnMut() -> Outcome) -> Outcome {
    work()?;
    measured(&mut work)
}

/// A node that others write to, and one that writes.
struct Pair {
    receiver: Node,
    queue: QueueId,
    sender: Node,
    ticket: Ticket,
    fast: Ticket,
}

fn config(dir: &Path) -> Outcome<Config> {
    Ok(Config::default().dir(dir).wait_mode(hamlyn::config::WaitMode::Polled))
}

impl Pair {
    fn new(dir: &Path) -> Outcome<Self> {
        let mut receiver = Node::with_config(config(dir)?)?;
        let area = receiver.message_area(4096)?;
        let queue = receiver.notification_queue(64)?;
        let slot = receiver.slot(SlotConfig::new(area, queue).credit(64))?;
        let ticket = receiver.ticket(slot, MetadataIndex(0))?;
        let fast = receiver.fast_ticket(slot)?;
        receiver.serve("budget", Access::SameUser, Accept::Automatic(vec![]))?;
        let mut sender = Node::with_config(config(dir)?)?;
        sender.connect("budget", b"", Duration::from_secs(60))?;
        while receiver.next_event().is_none() {
            receiver.wait(LIMIT)?;
        }
        Ok(Self { receiver, queue, sender, ticket, fast })
    }

    #[inline(always)]
    fn recv(&mut self) -> Outcome {
        self.receiver.recv(self.queue, LIMIT)?;
        Ok(())
    }
}

fn raw(dir: &Path) -> Outcome {
    let mut pair = Pair::new(dir)?;
    let message = [7; 16];
    row(|| {
        for _ in 0..MESSAGES / BATCH {
            for _ in 0..BATCH {
                pair.sender.send(&pair.ticket, &message, b"", LIMIT)?;
            }
            for _ in 0..BATCH {
                pair.recv()?;
            }
        }
        Ok(())
    })?;
    row(|| {
        for _ in 0..MESSAGES {
            pair.sender.send(&pair.ticket, &message, b"", LIMIT)?;
            pair.recv()?;
        }
        Ok(())
    })?;
    let prepared = pair.sender.prepare(&pair.ticket)?;
    row(|| {
        for _ in 0..MESSAGES / BATCH {
            for _ in 0..BATCH {
                pair.sender.send_prepared(&prepared, &message, b"", LIMIT)?;
            }
            for _ in 0..BATCH {
                pair.recv()?;
            }
        }
        Ok(())
    })?;
    row(|| {
        for word in 0..MESSAGES {
            pair.sender.send_fast(&pair.fast, &message, word as u32, LIMIT)?;
            pair.recv()?;
        }
        Ok(())
    })
}

/// Connects in another thread while `there` answers; both ends are used by this thread afterwards.
fn connected<S: Send>(
    there: &Manager,
    connect: impl FnOnce() -> Result<S, hamlyn::protocol::GrowError> + Send,
) -> Outcome<S> {
    std::thread::scope(|scope| {
        let connecting = scope.spawn(connect);
        while !connecting.is_finished() {
            there.poll()?;
            std::thread::yield_now();
        }
        Ok(connecting.join().map_err(|_| "connecting panicked")??)
    })
}

fn protocols(dir: &Path) -> Outcome {
    let message = [7; 16];
    let (there, here) = (Manager::with_config(config(dir)?)?, Manager::with_config(config(dir)?)?);
    let mut receiver = TaggedReceiver::new(&there, TaggedConfig::new(4096))?;
    receiver.serve("tagged", Access::SameUser)?;
    let mut sender = connected(&there, || TaggedSender::connect(&here, "tagged", LIMIT))?;
    row(|| {
        for _ in 0..MESSAGES {
            sender.send(0, &message, 7, LIMIT)?;
            receiver.get_tag(LIMIT)?;
        }
        Ok(())
    })?;
    drop((sender, receiver));

    let (there, here) = (Manager::with_config(config(dir)?)?, Manager::with_config(config(dir)?)?);
    let mut receiver = StreamReceiver::new(&there, StreamConfig::default())?;
    receiver.serve("stream", Access::SameUser)?;
    let mut sender = connected(&there, || StreamSender::connect(&here, "stream", LIMIT))?;
    row(|| {
        for _ in 0..MESSAGES {
            sender.send(&message, LIMIT)?;
            sender.flush(LIMIT)?;
            let record = receiver.receive(LIMIT)?;
            receiver.release(&record)?;
        }
        Ok(())
    })?;

    let client_of = Manager::with_config(config(dir)?)?;
    let server_of = Manager::with_config(config(dir)?)?;
    let server = Server::new(&server_of, ServerConfig::default())?;
    server.serve("server", Access::SameUser)?;
    let client = connected(&server_of, || Client::connect(&client_of, "server", LIMIT))?;
    row(|| {
        for _ in 0..MESSAGES {
            let call = client.start(&message, LIMIT)?;
            server.receive(LIMIT)?.reply(&message, LIMIT)?;
            client.finish(call, LIMIT)?;
        }
        Ok(())
    })?;

    let message = [7; 64];
    row(|| {
        // A batch is what fits into a buffer, as it does where records come one after another.
        for _ in 0..MESSAGES / 64 {
            for _ in 0..64 {
                sender.send(&message, LIMIT)?;
            }
            sender.flush(LIMIT)?;
            for _ in 0..64 {
                let record = receiver.receive(LIMIT)?;
                receiver.release(&record)?;
            }
        }
        Ok(())
    })
}

fn measure() -> Outcome {
    let dir = tempfile::tempdir()?;
    raw(dir.path())?;
    protocols(dir.path())
}

/// One count for each row.
fn counts() -> Outcome<Vec<f64>> {
    let out = tempfile::tempdir()?;
    let file = out.path().join("counts");
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--tool=callgrind", "--quiet", "--collect-atstart=no"]);
    valgrind.args(["--toggle-collect=budgets::measured", "--dump-after=budgets::measured"]);
    valgrind.arg(format!("--callgrind-out-file={}", file.display()));
    let status = valgrind.arg(std::env::current_exe()?).arg("--measure").status()?;
    if !status.success() {
        return Err(format!("valgrind: {status}").into());
    }
    (1..=ROWS.len())
        .map(|i| {
            let text = std::fs::read_to_string(format!("{}.{i}", file.display()))?;
            let totals = text.lines().find_map(|line| line.strip_prefix("totals: "));
            let total: u64 = totals.ok_or("a file of counts without totals")?.trim().parse()?;
            Ok(total as f64 / MESSAGES as f64)
        })
        .collect()
}

fn table() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("bench/budgets.txt")
}

/// Lines of the table: name, instructions, the most that are owed.
fn read_table() -> Outcome<BTreeMap<String, (f64, f64)>> {
    let text = std::fs::read_to_string(table())?;
    let rows = text.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty());
    rows.map(|line| {
        let cells: Vec<&str> = line.split_whitespace().take(3).collect();
        let [name, count, owed] = cells[..] else { return Err("three cells a row".into()) };
        Ok((name.to_string(), (count.parse()?, owed.parse()?)))
    })
    .collect()
}

fn write_table(counts: &[f64], old: &BTreeMap<String, (f64, f64)>) -> Outcome {
    let mut text = String::from(
        "# Instructions of one message, both sides together (callgrind, release profile): written by\n\
         # `cargo bench --bench budgets -- --write`, checked by `cargo bench --bench budgets`, which\n\
         # fails above them by 2 %. `most` is what is wanted of the row, less the rows it stands on.\n\
         # row         instructions  most  what\n",
    );
    for (row, count) in ROWS.iter().zip(counts) {
        let owed = old.get(row.name).map_or(f64::NAN, |(_, owed)| *owed);
        text += &format!("{:<14}{count:>11.1}{owed:>7}  {}\n", row.name, row.what);
    }
    Ok(std::fs::write(table(), text)?)
}

fn check(write: bool) -> Outcome<bool> {
    let mut counts = counts()?;
    let table = read_table()?;
    // Hash maps are seeded anew in each run, and a few rows differ by some hundredths for it: the
    // least of three runs decides.
    let exceeds = |counts: &[f64]| {
        ROWS.iter().zip(counts).any(|(row, count)| {
            table.get(row.name).is_some_and(|(budget, _)| *count > budget * (1.0 + TOLERANCE))
        })
    };
    for _ in 0..2 {
        if write || exceeds(&counts) {
            for (least, count) in counts.iter_mut().zip(self::counts()?) {
                *least = least.min(count);
            }
        }
    }
    if write {
        write_table(&counts, &table)?;
    }
    let of = |name: &str| ROWS.iter().position(|row| row.name == name).map_or(0.0, |i| counts[i]);
    let mut within = true;
    println!("{:<12}{:>10}{:>10}{:>10}{:>8}", "row", "counted", "table", "above", "most");
    for (row, count) in ROWS.iter().zip(&counts) {
        let above = count - row.above.map_or(0.0, |(name, times)| times * of(name));
        let (budget, owed) =
            *table.get(row.name).ok_or(format!("{} is not in the table", row.name))?;
        let exceeds = !write && *count > budget * (1.0 + TOLERANCE);
        within &= !exceeds;
        let word = match () {
            () if exceeds => "  MORE than the table allows",
            () if !write && *count < budget * (1.0 - TOLERANCE) => "  less: write the table",
            () => "",
        };
        println!("{:<12}{count:>10.1}{budget:>10.1}{above:>10.1}{owed:>8}{word}", row.name);
    }
    Ok(within)
}

fn main() -> ExitCode {
    let has = |name: &str| std::env::args().any(|argument| argument == name);
    if has("--measure") {
        return match measure() {
            Ok(()) => ExitCode::SUCCESS,
            Err(e) => {
                eprintln!("{e}");
                ExitCode::FAILURE
            }
        };
    }
    if Command::new("valgrind").arg("--version").output().is_err() {
        eprintln!("there is no valgrind: no instruction was counted");
        return ExitCode::from(99);
    }
    match check(has("--write")) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("{e}");
            ExitCode::FAILURE
        }
    }
}
