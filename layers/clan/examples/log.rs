//! A log with several readers, of other users, too. Nobody can change a record but the writer, no reader
//! holds up another, and one that slept, or came late, misses nothing.
//!
//! ```text
//!   writer                                    reader: any number, at any time
//!   records, and their count   ---puts--->    a ring of its own, with a wire on the count
//!   a word of the writer's     <---put----    how many it has read: so nothing is overrun
//! ```
//! - `log write NAME < LINES`, for readers of every user with a third word, `everyone`
//! - `log read [USER@]NAME`
//! - `log`: writes and reads in four processes, and checks that each reader got everything.
//!
//! The writer keeps all records in memory; one for long use would keep them in a file.

use hamlyn::Access;
use hamlyn_clan::{Aperture, Clan, Config, Endpoint, Region, Rights, Target, Trip, Wire};
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const LIMIT: Option<Duration> = Some(Duration::from_secs(60));
/// Nobody makes the writer wait.
const AT_ONCE: Option<Duration> = Some(Duration::ZERO);
/// Records of a ring. All of them, and their counts, have room in a link.
const SLOTS: u64 = 64;
/// Bytes of one, of which a longer line is cut.
const RECORD: usize = 256;

type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;

fn place(number: u64) -> u64 {
    64 + number % SLOTS * RECORD as u64
}

fn read(name: &str, slowly: bool) -> Outcome {
    let clan = Clan::new(Config::from_env()?)?;
    let writer = clan.connect(name, LIMIT)?;
    let (ring, events) = (clan.region(place(SLOTS - 1) + RECORD as u64, 1)?, clan.event_queue(1)?);
    let target = Target { queue: events.clone(), event: events.register(0)? };
    let wire = ring.wire(0..8, Trip::Write, Some(target.clone()))?;
    writer.set_event(Some(target));
    writer.send_oob(&ring.export(&writer, Rights::Write)?.handle, LIMIT)?;
    let position = writer.import(&writer.receive_oob(LIMIT)?, LIMIT)?;
    let (mut done, mut record) = (0u64, [0; RECORD]);
    loop {
        // Armed, then looked at, then asleep. All records are here when the end is seen.
        wire.arm();
        let is_over = writer.check().is_err();
        let count = ring.load(0)?;
        if count.wrapping_sub(done) > SLOTS {
            return Err("the writer breaks the rules".into());
        }
        for number in done..count {
            ring.read(place(number), &mut record)?;
            println!("{}", String::from_utf8_lossy(&record).trim_end_matches('\0'));
        }
        if slowly {
            std::thread::sleep(Duration::from_millis(5));
        }
        if is_over {
            return Ok(());
        }
        match core::mem::replace(&mut done, count) == count {
            true => drop(clan.wait(&events, None)?),
            // If the writer has ended, the next look says so.
            false => drop(position.put(0, &done.to_le_bytes(), LIMIT)),
        }
    }
}

/// The writer's side of a reader.
struct Reader {
    end: Endpoint,
    position: Region,
    wire: Wire,
    /// Once it has told where.
    ring: Option<Aperture>,
    written: u64,
}

impl Reader {
    /// Puts the records that it lacks, as far as there is room.
    fn feed(&mut self, log: &[String]) -> Outcome {
        self.end.check()?;
        if let (None, Some(handle)) = (&self.ring, self.end.take_oob()?) {
            self.ring = Some(self.end.import(&handle, AT_ONCE)?);
            let handle = self.position.export(&self.end, Rights::Write)?.handle;
            self.end.send_oob(&handle, AT_ONCE)?;
        }
        let Some(ring) = &self.ring else { return Ok(()) };
        self.wire.arm();
        let read = self.position.load(0)?;
        if self.written.checked_sub(read).is_none_or(|ahead| ahead > SLOTS) {
            return Err(format!("it says that it has read {read} of {}", self.written).into());
        }
        let until = (read + SLOTS).min(log.len() as u64);
        for number in self.written..until {
            let text = log[number as usize].bytes().chain([0; RECORD]).take(RECORD);
            ring.put(place(number), &text.collect::<Vec<u8>>(), AT_ONCE)?;
        }
        if core::mem::replace(&mut self.written, until) != until {
            ring.put(0, &until.to_le_bytes(), AT_ONCE)?;
        }
        Ok(())
    }
}

fn write(name: &str, access: Access) -> Outcome {
    let clan = Clan::new(Config::from_env()?)?;
    clan.listen(name, access)?;
    let events = clan.event_queue(1)?;
    // One event for everything; for thousands of readers, one each.
    let news = Target { queue: events.clone(), event: events.register(0)? };
    clan.set_accept_event(Some(news.clone()));
    // Lines, and whether there are more. The library knows nothing of this input: a thread raises the event.
    let (log, typed) = (Arc::new(Mutex::new((Vec::new(), true))), news.clone());
    let input = log.clone();
    std::thread::spawn(move || {
        for line in std::io::stdin().lines().map_while(Result::ok) {
            input.lock().unwrap().0.push(line);
            typed.queue.raise(typed.event);
        }
        input.lock().unwrap().1 = false;
        typed.queue.raise(typed.event);
    });
    let mut readers = Vec::new();
    loop {
        clan.wait(&events, None)?;
        while let Ok(end) = clan.accept(AT_ONCE) {
            end.set_event(Some(news.clone()));
            let position = clan.region(8, 1)?;
            let wire = position.wire(0..8, Trip::Write, Some(news.clone()))?;
            readers.push(Reader { end, position, wire, ring: None, written: 0 });
        }
        let log = log.lock().unwrap();
        readers.retain_mut(|reader: &mut Reader| {
            reader.feed(&log.0).inspect_err(|e| eprintln!("a reader is gone: {e}")).is_ok()
        });
        if !log.1 {
            return Ok(());
        }
    }
}

/// A writer and three readers, of which one is slow, and one comes when all is written.
fn try_all() -> Outcome {
    let dir = tempfile::tempdir()?;
    let start = |words: &[&str]| {
        let mut program = Command::new(std::env::current_exe()?);
        program.args(words).env("HAMLYN_DIR", dir.path());
        program.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()
    };
    let mut all = vec![start(&["read", "it"])?, start(&["read", "it", "slowly"])?];
    let mut writer = start(&["write", "it"])?;
    let mut input = writer.stdin.take().ok_or("no input")?;
    (0..2000).try_for_each(|number| writeln!(input, "record {number}"))?;
    all.push(start(&["read", "it"])?);
    for reader in &mut all {
        let mut lines = BufReader::new(reader.stdout.take().ok_or("no output")?).lines();
        for number in 0..2000 {
            assert_eq!(lines.next().ok_or("a reader has ended")??, format!("record {number}"));
        }
    }
    drop(input);
    all.push(writer);
    for mut child in all {
        assert!(child.wait()?.success());
    }
    println!("three readers have got 2000 records each, in order");
    Ok(())
}

fn main() -> Outcome {
    let words: Vec<_> = std::env::args().skip(1).collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => try_all(),
        ["write", name] => write(name, Access::SameUser),
        ["write", name, "everyone"] => write(name, Access::Anyone),
        ["read", name, ref nap @ ..] => read(name, !nap.is_empty()),
        _ => Err("log [write NAME [everyone] | read [USER@]NAME [slowly]]".into()),
    }
}
