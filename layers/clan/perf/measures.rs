//! The rows: each measurement, its references and its number of runs.

use crate::clan::{ClanClient, ClanStream, Way};
use crate::ends::{Client, Far, Role, Stream, median, now_ns, pin};
use crate::sockets::{self, FileStream, SocketClient, SocketStream};
use crate::{Outcome, Perf};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Release};
use std::time::{Duration, Instant};

/// Figure 5: the server is idle, and sleeps, before each request.
const PAUSE: Duration = Duration::from_micros(150);

struct Measures<'a> {
    perf: &'a Perf,
    dir: &'a Path,
    rows: Vec<Value>,
}

pub fn run(perf: &Perf) -> Outcome {
    let dir = tempfile::tempdir()?;
    // SAFETY: this program has one thread yet.
    unsafe { std::env::set_var("HAMLYN_DIR", dir.path()) };
    if perf.cores[0] == perf.cores[1] {
        return Err("the near end polls, so each needs a processor of its own".into());
    }
    pin(perf.cores[0])?;
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })?;
    let mut of = Measures { perf, dir: dir.path(), rows: Vec::new() };
    of.section(Measures::bandwidth)?;
    of.section(Measures::round_trips)?;
    of.section(Measures::load)?;
    of.section(Measures::log)?;
    of.overhead();
    if let Some(path) = &perf.out {
        let lines: Vec<_> = of.rows.iter().map(|row| format!("{row}\n")).collect();
        std::fs::write(path, lines.concat())?;
    }
    match &perf.chart {
        Some(path) => crate::chart::draw(path, &of.rows),
        None => Ok(()),
    }
}

impl Measures<'_> {
    fn far(&self, role: Role, count: usize, log: usize) -> Outcome<Far> {
        Far::start(role, self.perf.cores[1], self.dir, count, log)
    }

    fn runs(&self) -> u32 {
        if self.perf.short { 1 } else { self.perf.runs }
    }

    /// So long, or a moment.
    fn length(&self, ms: u64) -> Duration {
        Duration::from_millis(if self.perf.short { ms.div_ceil(50) } else { ms })
    }

    /// Measures between two looks at the raw line.
    fn section(&mut self, measure: fn(&mut Self) -> Outcome) -> Outcome {
        let (from, before) = (self.rows.len(), self.raw_line()?);
        measure(self)?;
        let lines = json!([before, self.raw_line()?]);
        for row in &mut self.rows[from..] {
            row["raw_line_one_way_ns"] = lines.clone();
            println!("{row}");
        }
        Ok(())
    }

    /// One row; `of` says for what, `unit` names its value.
    fn row(&mut self, test: &str, system: &str, of: (&str, usize), unit: &str, values: Vec<f64>) {
        let spread = [f64::min, f64::max].map(|f| values.iter().copied().reduce(f));
        let mut row =
            json!({"test": test, "system": system, "runs": values.len(), "spread": spread});
        row[of.0] = of.1.into();
        row[unit] = median(values).into();
        self.rows.push(row);
    }

    /// Figure 4.
    fn bandwidth(&mut self) -> Outcome {
        for size in (3..=20).map(|log| 1usize << log) {
            let ways = [
                ("store", Role::Mapped, Some(Way::Store)),
                ("put", Role::Checked, Some(Way::Put)),
                ("request", Role::Checked, Some(Way::Request(1))),
                ("16 requests at once", Role::Checked, Some(Way::Request(16))),
                ("unix", Role::Socket, None),
            ];
            let mut streams = Vec::new();
            for (name, role, way) in ways {
                let far = self.far(role, size, 0)?;
                let stream: Box<dyn Stream> = match way {
                    Some(way) => Box::new(ClanStream::new(&far, size, way)?),
                    None => Box::new(SocketStream::new(&far, size)?),
                };
                // The far end is ended first.
                streams.push((far, name, stream, 8, Vec::new()));
            }
            for _ in 0..self.runs() {
                for (_, _, stream, burst, rates) in &mut streams {
                    // Twice as many until they take as long as is wanted.
                    let length = self.length(100);
                    loop {
                        let began = Instant::now();
                        stream.send(7, *burst)?;
                        let seconds = began.elapsed();
                        if seconds >= length / 2 {
                            let bytes = *burst as f64 * size as f64;
                            rates.push(bytes / seconds.as_secs_f64() / 1e6);
                            break;
                        }
                        *burst *= 2;
                    }
                }
            }
            for (_, name, _, _, rates) in streams {
                self.row("bandwidth", name, ("size_bytes", size), "mb_per_s", rates);
            }
        }
        Ok(())
    }

    /// Figure 5.
    fn round_trips(&mut self) -> Outcome {
        let most = if self.perf.short { 1000 } else { 10_000 };
        for idle in [0, 10, 100, 1000, 10_000].into_iter().filter(|idle| *idle <= most) {
            let far = self.far(Role::ClanServer, idle + 1, 0)?;
            let mut clan = ClanClient::new(far, idle + 1)?;
            let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
            let mut others = None;
            if idle as u64 + 64 < limit {
                let far = self.far(Role::SocketServer, idle + 1, 0)?;
                others = Some(SocketClient::new(far, idle + 1)?);
            } else {
                eprintln!("{idle} sockets are more than the {limit} descriptors of a process");
            }
            let mut found = vec![Vec::new(); 8];
            for _ in 0..self.runs() {
                for (place, pause) in [(0, PAUSE), (4, Duration::ZERO)] {
                    found[place].push(round_trip_us(&mut clan, pause, self.length(150))?);
                    for (number, (_, way)) in sockets::Way::ALL.into_iter().enumerate() {
                        if let Some(client) = &mut others {
                            client.way = way;
                            let us = round_trip_us(client, pause, self.length(150))?;
                            found[place + 1 + number].push(us);
                        }
                    }
                }
            }
            let tests = ["round trip, idle server", "round trip, busy server"];
            let systems = ["clan", "select", "poll", "epoll"];
            let names = tests.iter().flat_map(|test| systems.map(|system| (*test, system)));
            for ((test, system), us) in names.zip(found).filter(|(_, us)| !us.is_empty()) {
                self.row(test, system, ("idle_endpoints", idle), "round_trip_us", us);
            }
        }
        Ok(())
    }

    /// Figure 6.
    fn load(&mut self) -> Outcome {
        let mut clan = ClanClient::new(self.far(Role::ClanServer, 256, 0)?, 256)?;
        let mut epoll = SocketClient::new(self.far(Role::SocketServer, 256, 0)?, 256)?;
        epoll.way = sockets::Way::Epoll;
        for connections in (0..=8).map(|log| 1 << log) {
            let mut found = [Vec::new(), Vec::new()];
            for _ in 0..self.runs() {
                let length = self.length(200);
                found[0].push(requests_per_s(&mut clan, connections, length)?);
                found[1].push(requests_per_s(&mut epoll, connections, length)?);
            }
            for (system, rates) in ["clan", "epoll"].into_iter().zip(found) {
                self.row("load", system, ("connections", connections), "requests_per_s", rates);
            }
        }
        Ok(())
    }

    /// From the write of a record to the woken reader's having copied it.
    fn log(&mut self) -> Outcome {
        let each = if self.perf.short { 20 } else { 500 };
        let systems = [("clan", Role::Checked), ("unix", Role::Socket), ("inotify", Role::File)];
        let mut streams = Vec::new();
        for (name, role) in systems {
            let far = self.far(role, 16, each)?;
            let stream: Box<dyn Stream> = match role {
                Role::Checked => Box::new(ClanStream::new(&far, 16, Way::Put)?),
                Role::Socket => Box::new(SocketStream::new(&far, 16)?),
                _ => Box::new(FileStream::new(&far)?),
            };
            streams.push((far, name, stream, Vec::new()));
        }
        for _ in 0..self.runs() {
            for (far, _, stream, late) in &mut streams {
                for _ in 0..each {
                    spin(2 * PAUSE);
                    stream.send(now_ns(), 1)?;
                }
                late.push(far.line()?.parse()?);
            }
        }
        for (_, name, _, late) in streams {
            self.row("log", name, ("record_bytes", 16), "latency_us", late);
        }
        Ok(())
    }

    /// As in 4.2: at the highest load each end takes and sends a message in this time.
    fn overhead(&mut self) {
        let most = |system: &str| {
            let rows =
                self.rows.iter().filter(|row| row["test"] == "load" && row["system"] == system);
            rows.filter_map(|row| row["requests_per_s"].as_f64()).fold(f64::NAN, f64::max)
        };
        let [clan, epoll] = ["clan", "epoll"].map(|system| 1e6 / most(system));
        let lines = self.rows.iter().find(|row| row["test"] == "load");
        let lines = lines.map(|row| row["raw_line_one_way_ns"].clone());
        let from = self.rows.len();
        let of = ("connections", 256);
        self.row("overhead", "clan", of, "overhead_us", vec![clan]);
        self.row("overhead", "epoll", of, "overhead_us", vec![epoll]);
        self.row("overhead", "epoll to clan", of, "ratio", vec![epoll / clan]);
        for row in &mut self.rows[from..] {
            row["raw_line_one_way_ns"] = lines.clone().into();
            println!("{row}");
        }
    }

    /// One line from core to core, one way: the median of several, since each has its own time.
    fn raw_line(&self) -> Outcome<f64> {
        #[repr(align(128))]
        struct Line(AtomicU64);
        let (trips, far) = (if self.perf.short { 50 } else { 2000 }, self.perf.cores[1]);
        let memory: Vec<_> = (0..32 * 33).map(|_| Line(AtomicU64::new(0))).collect();
        let until = |line: &Line, value| while line.0.load(Acquire) != value {};
        std::thread::scope(|scope| {
            let back = scope.spawn(|| {
                let pinned = pin(far).map_err(|e| e.to_string());
                for line in memory.iter().step_by(33) {
                    (0..trips).for_each(|trip| {
                        until(line, 2 * trip + 1);
                        line.0.store(2 * trip + 2, Release);
                    });
                }
                pinned
            });
            let there = memory.iter().step_by(33).map(|line| {
                let began = Instant::now();
                (0..trips).for_each(|trip| {
                    line.0.store(2 * trip + 1, Release);
                    until(line, 2 * trip + 2);
                });
                began.elapsed().as_nanos() as f64 / trips as f64 / 2.0
            });
            let ns = median(there.collect());
            back.join().map_err(|_| "the other thread panicked")??;
            Ok(ns)
        })
    }
}

fn spin(length: Duration) {
    let began = Instant::now();
    while began.elapsed() < length {
        std::hint::spin_loop();
    }
}

/// The median of round trips, one after another.
fn round_trip_us(client: &mut dyn Client, pause: Duration, length: Duration) -> Outcome<f64> {
    let (began, mut trips) = (Instant::now(), Vec::new());
    while began.elapsed() < length || trips.len() < 3 {
        spin(pause);
        let began = Instant::now();
        client.send(0)?;
        client.next()?;
        trips.push(began.elapsed().as_nanos() as f64 / 1e3);
    }
    Ok(median(trips))
}

/// Each connection has one request on its way.
fn requests_per_s(client: &mut dyn Client, connections: usize, length: Duration) -> Outcome<f64> {
    (0..connections).try_for_each(|number| client.send(number))?;
    let (began, mut count) = (Instant::now(), 0);
    while count % 64 != 0 || began.elapsed() < length {
        let number = client.next()?;
        client.send(number)?;
        count += 1;
    }
    let seconds = began.elapsed().as_secs_f64();
    (0..connections).try_for_each(|_| client.next().map(drop))?;
    Ok(count as f64 / seconds)
}
