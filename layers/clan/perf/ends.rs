//! The far end of a measurement: this program again, in a process of its own, pinned to a processor of
//! its own, and ended with the near one. It has no state that a later measurement could find.

use crate::{Outcome, clan, sockets};
use rustix::process::{Signal, set_parent_process_death_signal};
use rustix::thread::{CpuSet, sched_setaffinity};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

pub const LIMIT: Option<Duration> = Some(Duration::from_secs(60));
/// A server looks so long for the next request before it sleeps (4.1 of the paper).
pub const SPIN: Duration = Duration::from_micros(15);

pub fn pin(core: usize) -> Outcome {
    let mut set = CpuSet::new();
    set.set(core);
    sched_setaffinity(None, &set).map_err(|e| format!("cannot pin to processor {core}: {e}").into())
}

/// Nanoseconds of a clock that all processes share.
pub fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// A near end with connections, whose server answers each request.
pub trait Client {
    fn send(&mut self, connection: usize) -> Outcome;
    /// The connection of the next answer.
    fn next(&mut self) -> Outcome<usize>;
}

/// A near end that sends so many messages, which begin with a stamp, and returns when all have been read.
pub trait Stream {
    fn send(&mut self, stamp: u64, count: u64) -> Outcome;
}

/// How late the messages of a log were seen: a line with the median of each so many; 0: no log.
pub struct Latencies(usize, Vec<f64>);

impl Latencies {
    #[inline(always)]
    pub fn see(&mut self, message: &[u8]) {
        if let (true, Some(stamp)) = (self.0 > 0, message.first_chunk()) {
            self.1.push(now_ns().saturating_sub(u64::from_le_bytes(*stamp)) as f64 / 1e3);
            if self.1.len() == self.0 {
                println!("{}", median(core::mem::take(&mut self.1)));
            }
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Role {
    /// Answers the requests of `count` end points, or sockets.
    ClanServer,
    SocketServer,
    /// Takes messages of `count` bytes.
    Checked,
    Mapped,
    Socket,
    File,
}

#[derive(Debug, clap::Args)]
pub struct FarArgs {
    role: Role,
    core: usize,
    path: PathBuf,
    count: usize,
    log: usize,
}

/// The far end's whole work.
pub fn be(args: &FarArgs) -> Outcome {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    pin(args.core)?;
    let FarArgs { role, path, count, log, .. } = args;
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let late = &mut Latencies(*log, Vec::new());
    match role {
        Role::ClanServer => clan::serve(name, *count),
        Role::SocketServer => sockets::serve(path, *count),
        Role::Checked | Role::Mapped => clan::receive(name, *count, *role == Role::Mapped, late),
        Role::Socket => sockets::receive(path, late),
        Role::File => sockets::read_file(path, late),
    }
}

pub struct Far {
    child: Child,
    said: BufReader<ChildStdout>,
    pub path: PathBuf,
}

impl Far {
    /// Returns when it listens.
    pub fn start(role: Role, core: usize, dir: &Path, count: usize, log: usize) -> Outcome<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let path = dir.join(format!("far-{}", NUMBER.fetch_add(1, Ordering::Relaxed)));
        let role = clap::ValueEnum::to_possible_value(&role).ok_or("no such role")?;
        let mut child = Command::new(std::env::current_exe()?)
            .args(["far", role.get_name(), &core.to_string()])
            .arg(&path)
            .args([count.to_string(), log.to_string()])
            .stdout(Stdio::piped())
            .spawn()?;
        let said = BufReader::new(child.stdout.take().ok_or("the far end has no output")?);
        let mut far = Self { child, said, path };
        far.line()?;
        Ok(far)
    }

    pub fn name(&self) -> String {
        self.path.file_name().unwrap_or_default().to_string_lossy().into()
    }

    pub fn line(&mut self) -> Outcome<String> {
        let mut line = String::new();
        match self.said.read_line(&mut line)? {
            0 => Err("the far end has failed".into()),
            _ => Ok(line.trim().into()),
        }
    }
}

impl Drop for Far {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
