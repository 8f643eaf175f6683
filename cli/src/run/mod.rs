//! `hamlyn run`: starts the ranks of a job, carries their messages and output, and ends them
//! together.
//!
//! ```text
//!   hamlyn run ---- agent of this host ---- ranks, each with a socket and two pipes
//!        |     \--- ssh, agent of another host ---- ranks
//!        +--> space: ranks and their hosts, values put, ranks at the fence
//!        +--> print: threads that write to standard output and standard error
//! ```
//! - [`frames`]: the frames between the launcher and an agent
//! - [`host`]: the state of one host, and its end
//! - [`agent`]: starts the ranks of one host
//! - [`print`]: prints the output of ranks
//! - [`space`]: the job's key-value space
//! - [`sweep`]: ends processes that ranks leave behind
//!
//! The thread that handles all events never blocks: not for an agent, and not for the reader of the
//! output. All ranks speak with the launcher through their agent, so no process listens, here or
//! there. A process that ends takes the processes it started with it: agents see the end of their
//! standard input, and ranks die with their agent. An agent answers questions, whatever its ranks
//! do; so the launcher notices a host that is gone, and waits neither for it nor for the program
//! that started ranks there.
//!
//! Silence and stalls are counted in looks, each after a wait: time for which this process itself
//! was stopped does not count.

pub mod agent;
mod frames;
mod host;
mod print;
mod space;
mod sweep;

use crate::arguments::RunArguments;
use anyhow::{Context, Result, bail, ensure};
use frames::{PIECE_BYTES_MAX, PIECES_MAX, Start, ToAgent, ToLauncher};
use hamlyn::job::lines::to_hex;
use host::{Host, PAUSE, end_child};
use print::{Printed, Printers};
use rustix::process::{Pid, Signal, getpid, kill_process, set_child_subreaper};
use rustix::rand::{GetRandomFlags, getrandom};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;
use space::{Answer, Space};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, channel, sync_channel};
use std::time::{Duration, Instant};
use sweep::{children, sweep};

/// Events that wait.
const EVENTS_MAX: usize = 64;
/// Most frames that wait for an agent beside those for its ranks: credit, questions whether it is
/// alive, signals.
const WAITING_MAX: u64 = 1024;
/// For each rank: the answer to a line, the frame that it was heard, and the end of a fence.
const WAITING_PER_RANK_MAX: u64 = 3;
/// The time in which the other ranks have to end when one has failed.
const GRACE_MS: u64 = 2_000;
/// After a signal to end, and the ranks' end: the longest time without progress of their output
/// until the rest is discarded.
const STUCK: Duration = Duration::from_secs(2);
/// After a second signal: the time limit for all output.
const HURRY: Duration = Duration::from_secs(1);
/// The interval between looks at output and hosts while ranks are to end.
const LOOK: Duration = Duration::from_millis(100);
/// Looks until hosts are asked again.
const LOOKS_AN_ASK: u32 = 10;
/// The longest silence of a host while its ranks are to end.
const ANSWER: Duration = Duration::from_secs(5);
/// After a second signal: the wait for hosts that are not done.
const ANSWER_HURRY: Duration = Duration::from_secs(2);
/// The interval between questions to other hosts in normal operation.
const BEAT: Duration = Duration::from_secs(10);
/// The longest silence of another host that has answered, in normal operation.
const SILENT: Duration = Duration::from_secs(60);
/// Ends ssh 45 s after its host has gone. Options before it in the command take precedence.
const SSH_ALIVE: &str = "ServerAliveInterval=15";
/// Ends ssh if a host is silent before the connection and its key are established.
const SSH_CONNECT: &str = "ConnectTimeout=45";
/// A process that ssh keeps for later connections would look like one that ranks left behind.
const SSH_ALONE: &str = "ControlPersist=no";
/// Pauses for frames on their way to agents, before this process stops.
const FLUSH_PAUSES: u32 = 500;

pub enum Event {
    Frame(usize, ToLauncher),
    /// The agent is gone; with the error, if its frames made no sense.
    Gone(usize, Option<String>),
    Signal(i32),
    Printed(Printed),
}

impl From<Printed> for Event {
    fn from(printed: Printed) -> Self {
        Self::Printed(printed)
    }
}

struct Launcher {
    hosts: Vec<Host>,
    /// Children of this process that it has not started.
    spared: Vec<Pid>,
    space: Space,
    out: Printers,
    /// The status of the first failure: a rank's, or 1.
    failed: Option<i32>,
    /// Signals to end.
    signals: u32,
    /// All ranks are to end, after a failure or a signal.
    is_ending: bool,
    /// The time of the next look at output and hosts.
    look_at: Instant,
    looks: u32,
    /// The time since the second signal.
    hurried: Option<Duration>,
}

/// `hamlyn run`.
pub fn run(arguments: &RunArguments) -> Result<()> {
    let size = arguments.ranks;
    let names = host_names(arguments)?;
    ensure!(names.len() <= size as usize, "{size} ranks are too few for {} hosts", names.len());
    let (events, came) = sync_channel(EVENTS_MAX);
    // Before any process is started that a signal would leave behind.
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2])?;
    let to_main = events.clone();
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        for signal in signals.forever() {
            if to_main.send(Event::Signal(signal)).is_err() {
                return;
            }
        }
    })?;
    let firsts: Vec<u32> = blocks(size, names.len() as u32);
    let host_of = |rank: u32| {
        let at = firsts.partition_point(|first| *first <= rank) - 1;
        names[at].clone()
    };
    let of_ranks = match names.len() {
        1 => Vec::new(),
        _ => (0..size).map(host_of).collect(),
    };
    // Processes that a killed agent leaves behind become children of this process.
    set_child_subreaper(Some(getpid())).context("becoming the parent of what agents leave")?;
    let mut launcher = Launcher {
        hosts: Vec::new(),
        spared: children(),
        space: Space::new(size, secret()?, of_ranks),
        out: Printers::new(arguments.label, &events)?,
        failed: None,
        signals: 0,
        is_ending: false,
        look_at: Instant::now() + BEAT,
        looks: 0,
        hurried: None,
    };
    let ends = firsts.iter().skip(1).copied().chain([size]);
    for ((name, first), end) in names.iter().zip(&firsts).zip(ends) {
        let started = launcher.start_host(arguments, name, *first, end - first, &events);
        started.with_context(|| format!("starting ranks on {name}"))?;
    }
    launcher.until(&came, |it| it.hosts.iter().all(|host| host.is_done))?;
    launcher.sweep();
    launcher.out.finish();
    launcher.until(&came, |it| it.out.is_idle())?;
    launcher.leave_hosts();
    match launcher.failed {
        None => Ok(()),
        Some(status) => std::process::exit(status),
    }
}

/// The first rank of each host.
fn blocks(size: u32, hosts: u32) -> Vec<u32> {
    (0..hosts).map(|host| (u64::from(host) * u64::from(size) / u64::from(hosts)) as u32).collect()
}

fn own_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

fn is_here(name: &str) -> bool {
    let own = own_name();
    name == "localhost" || name == own || Some(name) == own.split('.').next()
}

/// The hosts, by the names they use for one another.
fn host_names(arguments: &RunArguments) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for name in &arguments.hosts {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b".:_-".contains(&byte);
        ensure!(
            !name.is_empty() && name.bytes().all(allowed) && !name.starts_with('-'),
            "{name:?} is no name of a host and no address: allowed are a-z A-Z 0-9 . : _ -"
        );
        let is_one_of_many = arguments.hosts.len() > 1;
        let name = if is_one_of_many && name == "localhost" { own_name() } else { name.clone() };
        ensure!(!names.contains(&name), "{name} is named twice");
        names.push(name);
    }
    if names.is_empty() {
        names.push("localhost".into());
    }
    Ok(names)
}

fn secret() -> Result<String> {
    let mut bytes = [0u8; 32];
    let got = getrandom(&mut bytes, GetRandomFlags::empty()).context("no random bytes")?;
    ensure!(got == bytes.len(), "the system gave {got} random bytes of {}", bytes.len());
    Ok(to_hex(&bytes))
}

/// The command that starts the agent of a host.
fn agent(arguments: &RunArguments, name: &str) -> Result<Command> {
    let own = std::env::current_exe().context("where this command is")?;
    if is_here(name) {
        let mut command = Command::new(own);
        command.arg("run-agent");
        return Ok(command);
    }
    let path = arguments.hamlyn.as_deref().unwrap_or(&own);
    ensure!(
        is_plain(path),
        "{} holds characters that a shell there may read as others; --hamlyn says where it is",
        path.display()
    );
    let mut words = arguments.rsh.split_whitespace();
    let first = words.next().context("--rsh is empty; allowed is a command, such as ssh")?;
    let mut command = Command::new(first);
    command.args(words);
    if Path::new(first).file_name() == Some(OsStr::new("ssh")) {
        command.args(["-o", SSH_ALIVE, "-o", SSH_CONNECT, "-o", SSH_ALONE]);
    }
    command.arg(name).arg(path).arg("run-agent");
    Ok(command)
}

fn is_plain(path: &Path) -> bool {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"/._-+".contains(byte);
    path.as_os_str().as_bytes().iter().all(plain)
}

fn bytes(text: &OsStr) -> Vec<u8> {
    text.as_bytes().to_vec()
}

impl Launcher {
    fn start_host(
        &mut self,
        arguments: &RunArguments,
        name: &str,
        first: u32,
        count: u32,
        events: &SyncSender<Event>,
    ) -> Result<()> {
        let directory = std::env::current_dir().context("the working directory")?;
        let mut command = agent(arguments, name)?;
        // Signals of the terminal are for this process, which forwards them.
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0);
        let program = command.get_program().to_string_lossy().into_owned();
        let mut child = command.spawn().with_context(|| format!("cannot run {program}"))?;
        let mut from = child.stdout.take().context("no pipe from the agent")?;
        let mut to = child.stdin.take().context("no pipe to the agent")?;
        let is_here = is_here(name);
        let (input, frames) = channel::<ToAgent>();
        let written = Arc::new(AtomicU64::new(0));
        let counts = written.clone();
        let is_heard = Arc::new(AtomicBool::new(true));
        std::thread::Builder::new().name("to-agent".into()).spawn(move || {
            // The thread that reads its frames notices its end.
            while let Ok(frame) = frames.recv()
                && frames::write(&mut to, &frame).is_ok()
            {
                counts.fetch_add(1, Relaxed);
            }
        })?;
        let at = self.hosts.len();
        self.hosts.push(Host {
            name: name.to_owned(),
            is_here,
            input: Some(input),
            program,
            child,
            first,
            count,
            exited: BTreeSet::new(),
            unprinted: [0; 2],
            told: 0,
            written,
            is_heard: is_heard.clone(),
            has_answered: false,
            silent: Duration::ZERO,
            leaving: None,
            is_done: false,
        });
        let start = ToAgent::Start(Start {
            version: env!("CARGO_PKG_VERSION").into(),
            directory: bytes(directory.as_os_str()),
            program: arguments.program.iter().map(|word| bytes(word)).collect(),
            env: arguments.env.clone(),
            first,
            count,
            size: arguments.ranks,
            // An agent on this host always sees the launcher's end, and may be stopped.
            beat_ms: (!is_here).then_some(BEAT.as_millis() as u64),
        });
        self.tell(at, start);
        let to_main = events.clone();
        std::thread::Builder::new().name("agent".into()).spawn(move || {
            while is_heard.load(Relaxed) {
                let event = match frames::read(&mut from) {
                    Ok(Some(frame)) => Event::Frame(at, frame),
                    Ok(None) => Event::Gone(at, None),
                    Err(e) => Event::Gone(at, Some(format!("{e:#}"))),
                };
                let is_last = matches!(event, Event::Gone(..));
                if to_main.send(event).is_err() || is_last {
                    return;
                }
            }
        })?;
        Ok(())
    }

    fn tell(&mut self, at: usize, frame: ToAgent) {
        let host = &mut self.hosts[at];
        if let Some(input) = &host.input {
            let _ = input.send(frame);
            host.told += 1;
        }
    }

    fn tell_all(&mut self, frame: &ToAgent) {
        (0..self.hosts.len()).for_each(|at| self.tell(at, frame.clone()));
    }

    /// Handles events until `is_so`.
    fn until(&mut self, came: &Receiver<Event>, is_so: impl Fn(&Self) -> bool) -> Result<()> {
        while !is_so(self) {
            let now = Instant::now();
            if now >= self.look_at {
                self.look();
                self.look_at = now + self.period();
            }
            match came.recv_timeout(self.look_at.saturating_duration_since(now)) {
                Ok(Event::Signal(signal)) => self.signal(signal),
                Ok(Event::Frame(at, frame)) => self.hear(at, frame),
                Ok(Event::Gone(at, why)) => self.gone(at, why),
                Ok(Event::Printed(printed)) => self.printed(printed),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => bail!("its threads have ended"),
            }
        }
        Ok(())
    }

    /// Ends all ranks, and reports why.
    fn fails(&mut self, why: &str) {
        self.out.say(why);
        self.failed.get_or_insert(1);
        self.end();
    }

    /// All ranks are to end.
    fn end(&mut self) {
        self.tell_all(&ToAgent::End { grace_ms: GRACE_MS });
        self.is_to_end();
    }

    /// From now on looks are more frequent.
    fn is_to_end(&mut self) {
        if !std::mem::replace(&mut self.is_ending, true) {
            self.look_at = Instant::now();
            self.hosts.iter_mut().for_each(|host| host.silent = Duration::ZERO);
        }
    }

    /// The time between two looks.
    fn period(&self) -> Duration {
        if self.is_ending { LOOK } else { BEAT }
    }

    /// Notes a frame from a host.
    fn answers(&mut self, at: usize) {
        let host = &mut self.hosts[at];
        host.has_answered = true;
        host.silent = Duration::ZERO;
    }

    /// Gives up a host as gone.
    fn lose(&mut self, at: usize) {
        let host = &mut self.hosts[at];
        host.leave();
        let lost = match host.has_ended() {
            _ if !host.has_answered => "whether its ranks were started is not known",
            true => "its ranks have ended, and what else they printed is lost",
            false => "whether its ranks have ended is not known",
        };
        let words = format!("{} does not answer: {lost}", host.name);
        self.fails(&words);
    }

    /// Gives up hosts that may never be reached.
    fn lose_unheard(&mut self) {
        for at in 0..self.hosts.len() {
            let host = &self.hosts[at];
            if !host.is_here && !host.has_answered && !host.is_left() {
                self.lose(at);
            }
        }
    }

    /// Ends processes left behind by agents of this host that ended abnormally. It spares ssh or
    /// its replacement itself, but not processes that those leave, which look the same.
    fn sweep(&mut self) {
        if self.hosts.iter().all(|host| host.leaving.is_none()) {
            return;
        }
        let mut spared = self.spared.clone();
        for host in &mut self.hosts {
            if !host.is_here && matches!(host.child.try_wait(), Ok(None)) {
                spared.push(Pid::from_child(&host.child));
            }
        }
        let left = sweep(&spared);
        if !left.is_empty() {
            self.fails(&sweep::words(&left));
        }
    }

    /// Ends the programs that started ranks, which may otherwise stay if their host is gone.
    fn leave_hosts(&mut self) {
        let limit = if self.hurried.is_some() { LOOK } else { ANSWER };
        let by = Instant::now() + limit;
        self.hosts.iter_mut().for_each(|host| drop(host.input.take()));
        for host in &mut self.hosts {
            while matches!(host.child.try_wait(), Ok(None)) {
                if Instant::now() >= by {
                    end_child(&host.child);
                    break;
                }
                std::thread::sleep(PAUSE);
            }
        }
    }

    /// Stops like any process at its terminal's request, but informs its agents first.
    fn stop(&mut self) {
        self.tell_all(&ToAgent::Pause);
        let is_written = |host: &Host| host.is_left() || host.written.load(Relaxed) >= host.told;
        for _ in 0..FLUSH_PAUSES {
            if self.hosts.iter().all(is_written) {
                break;
            }
            std::thread::sleep(PAUSE);
        }
        let _ = kill_process(getpid(), Signal::STOP);
    }

    fn gone(&mut self, at: usize, why: Option<String>) {
        let host = &mut self.hosts[at];
        if host.is_left() {
            return;
        }
        if host.is_here || why.is_some() {
            host.leave();
        } else {
            drop(host.input.take());
            host.is_done = true;
        }
        let why = match why {
            Some(why) => why,
            None if !host.has_answered => host.not_started(),
            None => "what started its ranks went away".into(),
        };
        let why = format!("{}: {why}", host.name);
        self.fails(&why);
    }

    fn signal(&mut self, signal: i32) {
        if signal == SIGTSTP {
            return self.stop();
        }
        if matches!(signal, SIGINT | SIGTERM) {
            self.signals += 1;
            self.is_to_end();
        }
        match self.signals {
            0 => self.tell_all(&ToAgent::Signal(signal)),
            1 => {
                self.tell_all(&ToAgent::Signal(signal));
                self.lose_unheard();
            }
            _ => {
                self.hurried.get_or_insert(Duration::ZERO);
                self.tell_all(&ToAgent::End { grace_ms: 0 });
            }
        }
    }

    /// Checks whether a host is gone, or, when ranks are to end, whether their output is stuck.
    /// Each state seen now has lasted for another [`Self::period`].
    fn look(&mut self) {
        let period = self.period();
        self.looks += 1;
        self.hurried = self.hurried.map(|hurried| hurried + period);
        let is_asked = !self.is_ending || self.looks.is_multiple_of(LOOKS_AN_ASK);
        let limit = if self.is_ending { ANSWER } else { SILENT };
        for at in 0..self.hosts.len() {
            let host = &mut self.hosts[at];
            // The program that starts an agent may take its time.
            if self.is_ending || (!host.is_here && host.has_answered) {
                host.silent += period;
            }
            let is_late = self.hurried.is_some_and(|hurried| hurried >= ANSWER_HURRY);
            if host.is_done {
                continue;
            } else if host.leaving.is_some() {
                host.look(period);
            } else if is_late || host.silent >= limit {
                self.lose(at);
            } else if is_asked {
                self.tell(at, ToAgent::Alive);
            }
        }
        if self.signals == 0 || self.hosts.iter().any(|host| !host.is_done && !host.has_ended()) {
            return;
        }
        let patience = match self.hurried {
            None => STUCK,
            Some(hurried) if hurried < HURRY => LOOK,
            Some(_) => Duration::ZERO,
        };
        for is_error in [false, true] {
            if self.out.is_stuck(is_error, period, patience) {
                self.shut(is_error);
                self.failed.get_or_insert(1);
                let stream = if is_error { "standard error" } else { "standard output" };
                self.out
                    .say(&format!("{stream} is not read: the end of what ranks printed is lost"));
            }
        }
    }

    /// Discards output of ranks to this stream from now on.
    fn shut(&mut self, is_error: bool) {
        self.out.shut(is_error);
        for at in 0..self.hosts.len() {
            let pieces = std::mem::take(&mut self.hosts[at].unprinted[usize::from(is_error)]);
            if pieces > 0 {
                self.tell(at, ToAgent::Printed { is_error, pieces });
            }
        }
    }

    fn printed(&mut self, printed: Printed) {
        let Printed { is_error, host, outcome } = printed;
        self.out.printed(is_error);
        if self.out.is_shut(is_error) {
            return;
        }
        if let Some(at) = host {
            let unprinted = &mut self.hosts[at].unprinted[usize::from(is_error)];
            *unprinted = unprinted.saturating_sub(1);
            self.tell(at, ToAgent::Printed { is_error, pieces: 1 });
        }
        match outcome {
            // An error of standard error itself cannot be reported.
            Err(e) if !is_error => {
                self.shut(false);
                match e.kind() {
                    ErrorKind::BrokenPipe => self.fails("nobody reads standard output any more"),
                    _ => self.fails(&format!("standard output: {e}")),
                }
            }
            _ => {}
        }
    }

    fn hear(&mut self, at: usize, frame: ToLauncher) {
        if self.hosts[at].is_left() {
            return;
        }
        self.answers(at);
        if let Err(why) = self.frame(at, frame) {
            let why = format!("{}: {why:#}", self.hosts[at].name);
            self.hosts[at].leave();
            self.fails(&why);
        }
    }

    /// Handles a frame. An error: no agent of this command sends it.
    fn frame(&mut self, at: usize, frame: ToLauncher) -> Result<()> {
        let host = &self.hosts[at];
        let (first, end) = (host.first, host.first + host.count);
        let check = |rank: u32| {
            ensure!((first..end).contains(&rank), "rank {rank} is not there");
            Ok(rank)
        };
        match frame {
            ToLauncher::Line { rank, bytes } => {
                let waiting = host.told - host.written.load(Relaxed);
                let waiting_max = WAITING_MAX + WAITING_PER_RANK_MAX * u64::from(host.count);
                ensure!(waiting <= waiting_max, "its ranks ask, and no answers are taken");
                let answers = self.space.hear(check(rank)?, &bytes);
                self.answer(answers);
                self.tell(at, ToAgent::Heard { rank });
            }
            ToLauncher::Output { rank, is_error, bytes } => {
                let rank = check(rank)?;
                let unprinted = host.unprinted[usize::from(is_error)];
                ensure!(unprinted < PIECES_MAX, "more output came than was asked for");
                let length = bytes.len();
                ensure!(length <= PIECE_BYTES_MAX, "a piece of output of {length} bytes");
                if self.out.print(at, rank, is_error, bytes) {
                    self.hosts[at].unprinted[usize::from(is_error)] += 1;
                } else {
                    self.tell(at, ToAgent::Printed { is_error, pieces: 1 });
                }
            }
            ToLauncher::Exited { rank, status } => {
                let rank = check(rank)?;
                let is_first = self.hosts[at].exited.insert(rank);
                ensure!(is_first, "rank {rank} has ended twice");
                if status != 0 && self.failed.is_none() {
                    self.failed = Some(status);
                    let others = if self.signals > 0 { "" } else { "; the others are ended" };
                    let how = match status {
                        129..=192 => format!("was ended by signal {}", status - 128),
                        _ => format!("ended with status {status}"),
                    };
                    let name = &self.hosts[at].name;
                    self.out.say(&format!("rank {rank} on {name} {how}{others}"));
                    self.end();
                }
                let answers = self.space.end(rank);
                self.answer(answers);
            }
            ToLauncher::Failed(why) => {
                let host = &mut self.hosts[at];
                host.is_done = true;
                let why = format!("{}: {why}", host.name);
                self.fails(&why);
            }
            ToLauncher::Alive => {}
            ToLauncher::Done => {
                ensure!(host.has_ended(), "it is done before its ranks are");
                self.hosts[at].is_done = true;
            }
        }
        Ok(())
    }

    fn answer(&mut self, answers: Vec<Answer>) {
        for (rank, line) in answers {
            let on = |host: &Host| (host.first..host.first + host.count).contains(&rank);
            if let Some(at) = self.hosts.iter().position(on) {
                self.tell(at, ToAgent::Line { rank, bytes: line.to_bytes() });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A job of one host, which is not this one and whose agent is silent.
    fn launcher() -> Launcher {
        let (events, _) = sync_channel::<Event>(EVENTS_MAX);
        let host = Host {
            name: "elsewhere".into(),
            is_here: false,
            input: None,
            program: "true".into(),
            child: Command::new("true").process_group(0).spawn().unwrap(),
            first: 0,
            count: 1,
            exited: BTreeSet::new(),
            unprinted: [0; 2],
            told: 0,
            written: Arc::default(),
            is_heard: Arc::default(),
            has_answered: false,
            silent: Duration::ZERO,
            leaving: None,
            is_done: false,
        };
        Launcher {
            hosts: vec![host],
            spared: Vec::new(),
            space: Space::new(1, String::new(), Vec::new()),
            out: Printers::new(false, &events).unwrap(),
            failed: None,
            signals: 0,
            is_ending: false,
            look_at: Instant::now(),
            looks: 0,
            hurried: None,
        }
    }

    /// The number of looks until the host counts as gone.
    fn looks_until_lost(launcher: &mut Launcher) -> u32 {
        (1..10_000).find(|_| (launcher.look(), launcher.hosts[0].is_done).1).expect("never lost")
    }

    #[test]
    fn a_host_that_has_answered_and_is_silent_is_lost_after_a_minute() {
        let mut launcher = launcher();
        (0..100).for_each(|_| launcher.look());
        assert!(!launcher.hosts[0].is_done, "what starts an agent has time");
        launcher.answers(0);
        let looks = looks_until_lost(&mut launcher);
        assert_eq!(looks * BEAT.as_millis() as u32, 60_000);
        assert_eq!(launcher.failed, Some(1));
    }

    #[test]
    fn a_host_that_is_to_end_is_lost_after_five_seconds_without_a_word() {
        let mut launcher = launcher();
        launcher.is_to_end();
        (0..49).for_each(|_| launcher.look());
        launcher.answers(0);
        assert_eq!(looks_until_lost(&mut launcher) * LOOK.as_millis() as u32, 5_000);
    }

    #[test]
    fn a_signal_ends_a_host_that_was_never_heard_at_once_and_no_other() {
        for number in [SIGINT, SIGTERM] {
            let mut launcher = launcher();
            launcher.signal(number);
            assert!(launcher.hosts[0].is_done);
            assert_eq!(launcher.failed, Some(1));
        }
        let mut launcher = launcher();
        launcher.answers(0);
        launcher.signal(SIGINT);
        assert!(!launcher.hosts[0].is_done);
    }

    #[test]
    fn after_a_second_signal_a_host_has_two_seconds_in_all() {
        let mut launcher = launcher();
        launcher.answers(0);
        launcher.signal(SIGINT);
        launcher.signal(SIGINT);
        (0..10).for_each(|_| launcher.look());
        launcher.answers(0);
        assert_eq!((looks_until_lost(&mut launcher) + 10) * LOOK.as_millis() as u32, 2_000);
    }

    #[test]
    fn an_agent_that_asks_and_takes_no_answers_is_heard_no_more() {
        let mut launcher = launcher();
        let (input, _answers) = channel();
        launcher.hosts[0].input = Some(input);
        let lost = (1..10_000).find(|_| {
            launcher.hear(0, ToLauncher::Line { rank: 0, bytes: b"cmd=get key=x\n".into() });
            launcher.hosts[0].is_done
        });
        assert!(lost.is_some_and(|times| times > 500), "{lost:?}");
    }

    #[test]
    fn ranks_go_to_hosts_in_blocks() {
        assert_eq!(blocks(4, 1), [0]);
        assert_eq!(blocks(4, 2), [0, 2]);
        assert_eq!(blocks(5, 2), [0, 2]);
        assert_eq!(blocks(3, 3), [0, 1, 2]);
    }
}
