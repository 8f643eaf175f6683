//! The agent of `hamlyn run` on one host: it starts the ranks there, carries their messages and
//! output, and leaves no rank behind.
//!
//! ```text
//!   launcher --frames--> standard input     each rank: a process group of its own, which ends with
//!            <--frames-- standard output    this process; a socket whose number is in HAMLYN_JOB_FD
//! ```
//! A rank gets the job's secret through that socket, on request. A variable could be read in /proc
//! by other processes of the user, would be in core files, and would be inherited by everything
//! that the rank starts. The library takes the socket for its own process alone.
//!
//! Output that is not read stays in the ranks' pipes: the part sent to the launcher is bounded
//! ([`Gate`]), and everything else goes on. A rank's lines, its end and signals do not wait for
//! output.
//!
//! On another host the agent may not see the launcher's end, because the launcher's host may be
//! gone with it. So the launcher sends something every few seconds; without that the agent ends the
//! ranks.
//!
//! Never: a rank lives longer than the agent, or the agent longer than the launcher.

use super::frames::{
    self, BEATS_MISSED_MAX, PIECE_BYTES_MAX, PIECES_MAX, Start, ToAgent, ToLauncher,
};
use super::sweep::{self, children, sweep};
use anyhow::{Context, Result, bail, ensure};
use hamlyn::job::lines::LINE_BYTES_MAX;
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::io::{Errno, FdFlags, fcntl_setfd, ioctl_fionread};
use rustix::net::{SendFlags, send};
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, getpgid, getpid, getppid, kill_process, kill_process_group,
    set_child_subreaper, set_parent_process_death_signal, waitid,
};
use signal_hook::consts::SIGCHLD;
use signal_hook::flag::register;
use std::collections::{BTreeMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::io::{BufRead, BufReader, Read, Stdin, Write as _};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// Events that wait.
const EVENTS_MAX: usize = 64;
const STACK_BYTES: usize = 128 << 10;
/// The time limit for output that a process outside of the job still holds open; and the interval
/// between two looks. A look counts only if no output waited for credit before it.
const DRAIN: Duration = Duration::from_secs(2);
const DRAIN_LOOK: Duration = Duration::from_millis(100);
/// The interval between looks for ended processes that ranks have left.
const REAP: Duration = Duration::from_secs(1);
/// The time limit for the last frames to a launcher that may have gone.
const LEAVE: Duration = Duration::from_secs(1);
/// The time limit for killed ranks to end; after that the agent no longer waits for them.
const KILLED: Duration = Duration::from_secs(5);

enum Event {
    Frame(ToAgent),
    /// The launcher is gone, or has sent nonsense.
    Gone(Option<String>),
    Line(u32, Vec<u8>),
    Output(u32, bool, Vec<u8>),
    OutputEnd,
    /// The rank has ended, and still has to be waited for.
    Exited(u32),
    /// Everything is written to the launcher, or it is gone.
    Written,
}

/// Credit for pieces of output.
#[derive(Default)]
struct Gate {
    passed: Mutex<Passed>,
    printed: Condvar,
}

#[derive(Default)]
struct Passed {
    /// Pieces sent and not printed yet.
    pieces: u32,
    /// Threads that hold a piece which may not be sent yet.
    waiting: u32,
    /// Whether threads have waited since the last look.
    has_waited: bool,
}

impl Gate {
    fn passed(&self) -> MutexGuard<'_, Passed> {
        self.passed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until another piece may be sent.
    fn pass(&self) {
        let mut passed = self.passed();
        passed.waiting += 1;
        passed.has_waited |= passed.pieces >= PIECES_MAX;
        let waited = self.printed.wait_while(passed, |passed| passed.pieces >= PIECES_MAX);
        passed = waited.unwrap_or_else(PoisonError::into_inner);
        passed.waiting -= 1;
        passed.pieces += 1;
    }

    fn printed(&self, pieces: u32) {
        let mut passed = self.passed();
        passed.pieces = passed.pieces.saturating_sub(pieces);
        self.printed.notify_all();
    }

    /// Whether a thread waits, or has waited since the last look.
    fn is_waited_for(&self) -> bool {
        let mut passed = self.passed();
        std::mem::take(&mut passed.has_waited) || passed.waiting > 0
    }
}

/// The source of a rank's output.
struct Output {
    from: OwnedFd,
    /// Pieces still to read: unlimited until the ranks have ended.
    left: AtomicU64,
}

impl Output {
    fn read(&self, bytes: &mut [u8]) -> usize {
        loop {
            match rustix::io::read(&self.from, &mut *bytes) {
                Err(Errno::INTR) => {}
                read => return read.unwrap_or(0),
            }
        }
    }

    /// Counts a piece that was read; returns whether it was the last.
    fn is_last(&self) -> bool {
        let before = self.left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1));
        before.is_ok_and(|left| left == 1)
    }

    /// Limits reading to the bytes in the pipe now and the piece that is on its way, not those that
    /// other processes go on to print.
    fn end(&self) {
        let there = ioctl_fionread(&self.from).unwrap_or(0);
        self.left.store(there.div_ceil(PIECE_BYTES_MAX as u64) + 1, Relaxed);
    }
}

/// The wait for the end of output, after all ranks have ended.
struct Drain {
    by: Instant,
    waited: Duration,
}

impl Drain {
    fn new() -> Self {
        Self { by: Instant::now() + DRAIN_LOOK, waited: Duration::ZERO }
    }

    /// Whether the wait is over: time in which the launcher took the output slowly does not count.
    fn is_over(&mut self, gates: &[Arc<Gate>]) -> bool {
        if Instant::now() >= self.by {
            self.by = Instant::now() + DRAIN_LOOK;
            let waiting = gates.iter().filter(|gate| gate.is_waited_for()).count();
            self.waited += if waiting == 0 { DRAIN_LOOK } else { Duration::ZERO };
        }
        self.waited >= DRAIN
    }
}

struct Rank {
    child: Child,
    socket: UnixStream,
    /// Lets its next line be read; `None` for a rank that has not taken an answer.
    heard: Option<Sender<()>>,
}

impl Rank {
    fn pid(&self) -> Option<Pid> {
        Pid::from_raw(self.child.id() as i32)
    }
}

struct Agent {
    ranks: BTreeMap<u32, Rank>,
    /// Children of this process that it has not started.
    spared: Vec<Pid>,
    outputs: usize,
    read: Vec<Weak<Output>>,
    /// Of standard output, and of standard error.
    gates: [Arc<Gate>; 2],
    /// A thread writes them. Ranks' questions and the gates bound their number.
    to_launcher: Sender<ToLauncher>,
    /// The time of the next look for ended processes that ranks have left, and whether any child
    /// has ended.
    reap_at: Instant,
    has_child_ended: Arc<AtomicBool>,
    /// From this time on every rank is killed.
    kill_at: Option<Instant>,
    /// From this time on the agent waits for no rank.
    killed_by: Option<Instant>,
    beats: Beats,
    /// The launcher has gone: it gets nothing more after this time.
    leave_by: Option<Instant>,
}

/// The launcher's signs of life. Each interval starts when the wait for it starts, so an agent that
/// was itself stopped first hears the frames that arrived in that time.
struct Beats {
    /// `None` if the launcher's end is always seen.
    every: Option<Duration>,
    /// The time limit for the launcher's next frame; `None` while it is stopped.
    by: Option<Instant>,
    missed: u32,
}

impl Beats {
    fn new(every: Option<Duration>) -> Self {
        Self { every, by: every.map(|every| Instant::now() + every), missed: 0 }
    }

    fn heard(&mut self, frame: &ToAgent) {
        let every = self.every.filter(|_| !matches!(frame, ToAgent::Pause));
        self.by = every.map(|every| Instant::now() + every);
        self.missed = 0;
    }

    /// Call it when [`Self::by`] has passed without a frame: returns the length of the silence if
    /// that is too long.
    fn silence(&mut self) -> Option<Duration> {
        let now = Instant::now();
        let every = self.every.filter(|_| self.by.is_some_and(|by| now >= by))?;
        self.by = Some(now + every);
        self.missed += 1;
        (self.missed >= BEATS_MISSED_MAX).then(|| every * BEATS_MISSED_MAX)
    }
}

fn thread(name: &str, run: impl FnOnce() + Send + 'static) -> Result<()> {
    std::thread::Builder::new().name(name.into()).stack_size(STACK_BYTES).spawn(run)?;
    Ok(())
}

/// `hamlyn run-agent`.
pub fn run() -> Result<()> {
    let mut input: BufReader<Stdin> = BufReader::new(std::io::stdin());
    // Nothing has been started yet: the launcher may be gone already.
    let Some(ToAgent::Start(start)) = frames::read(&mut input)? else { return Ok(()) };
    // Processes that ranks leave behind become children of this process.
    set_child_subreaper(Some(getpid())).context("becoming the parent of what ranks leave")?;
    let (events, came) = sync_channel(EVENTS_MAX);
    let (to_launcher, frames) = channel::<ToLauncher>();
    let gates = Default::default();
    let mut agent = Agent {
        ranks: BTreeMap::new(),
        spared: children(),
        outputs: 0,
        read: Vec::new(),
        gates,
        to_launcher,
        reap_at: Instant::now() + REAP,
        has_child_ended: Arc::default(),
        kill_at: None,
        killed_by: None,
        beats: Beats::new(start.beat_ms.map(Duration::from_millis)),
        leave_by: None,
    };
    register(SIGCHLD, agent.has_child_ended.clone())?;
    let to_main = events.clone();
    thread("to-launcher", move || {
        let mut out = std::io::stdout();
        while let Ok(frame) = frames.recv()
            && frames::write(&mut out, &frame).is_ok()
        {}
        let _ = to_main.send(Event::Written);
    })?;
    let to_main = events.clone();
    thread("launcher", move || {
        loop {
            let event = match frames::read(&mut input) {
                Ok(Some(frame)) => Event::Frame(frame),
                Ok(None) => Event::Gone(None),
                Err(e) => Event::Gone(Some(format!("{e:#}"))),
            };
            let is_last = matches!(event, Event::Gone(_));
            if to_main.send(event).is_err() || is_last {
                break;
            }
        }
    })?;
    let outcome = agent.start(&start, &events).and_then(|()| {
        // Tells the launcher that the ranks were started, even if they send nothing.
        agent.tell(ToLauncher::Alive);
        agent.turn(&came)
    });
    agent.kill_all();
    let mut wrong: Vec<String> = outcome.err().iter().map(|e| format!("{e:#}")).collect();
    // Includes ranks that the agent no longer waits for.
    let left = sweep(&agent.spared);
    if !left.is_empty() {
        wrong.push(sweep::words(&left));
    }
    agent.tell(match wrong.is_empty() {
        true => ToLauncher::Done,
        false => ToLauncher::Failed(wrong.join("; ")),
    });
    agent.leave(&came);
    Ok(())
}

impl Agent {
    fn start(&mut self, start: &Start, events: &SyncSender<Event>) -> Result<()> {
        let own = env!("CARGO_PKG_VERSION");
        ensure!(
            start.version == own,
            "hamlyn there is {own}, and {} here; they have to be the same",
            start.version
        );
        let own = std::env::current_exe().context("where this command is")?;
        let directory = OsStr::from_bytes(&start.directory);
        std::env::set_current_dir(directory)
            .with_context(|| format!("there is no directory {}", directory.to_string_lossy()))?;
        for rank in start.first..start.first + start.count {
            let (socket, its) = UnixStream::pair().context("making a socket for a rank")?;
            // This thread alone starts processes.
            fcntl_setfd(&its, FdFlags::empty())?;
            let mut command = Command::new(&own);
            command.arg("run-rank").arg(getpid().as_raw_nonzero().to_string()).arg("--");
            command.args(start.program.iter().map(|word| OsStr::from_bytes(word)));
            command.envs(start.env.iter().map(|(name, value)| (name, value)));
            command.env("HAMLYN_JOB_FD", its.as_raw_fd().to_string());
            command.env("HAMLYN_JOB_RANK", rank.to_string());
            command.env("HAMLYN_JOB_SIZE", start.size.to_string());
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
            let mut child = command.process_group(0).spawn().context("starting a rank")?;
            drop(its);
            let pid = Pid::from_raw(child.id() as i32).context("a process without a number")?;
            if let Some(stdout) = child.stdout.take() {
                self.read_output(rank, false, stdout, events)?;
            }
            if let Some(stderr) = child.stderr.take() {
                self.read_output(rank, true, stderr, events)?;
            }
            let lines = socket.try_clone()?;
            let (heard, next) = channel();
            self.ranks.insert(rank, Rank { child, socket, heard: Some(heard) });
            let to_main = events.clone();
            thread("lines", move || read_lines(rank, lines, &to_main, &next))?;
            let to_main = events.clone();
            thread("exit", move || {
                let until = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
                while matches!(waitid(WaitId::Pid(pid), until), Err(Errno::INTR)) {}
                let _ = to_main.send(Event::Exited(rank));
            })?;
        }
        Ok(())
    }

    fn read_output(
        &mut self,
        rank: u32,
        is_error: bool,
        from: impl Into<OwnedFd>,
        events: &SyncSender<Event>,
    ) -> Result<()> {
        self.outputs += 1;
        let to_main = events.clone();
        let gate = self.gates[usize::from(is_error)].clone();
        let output = Arc::new(Output { from: from.into(), left: AtomicU64::new(u64::MAX) });
        self.read.push(Arc::downgrade(&output));
        thread("output", move || {
            let mut bytes = vec![0; PIECE_BYTES_MAX];
            while let length @ 1.. = output.read(&mut bytes) {
                gate.pass();
                if to_main.send(Event::Output(rank, is_error, bytes[..length].to_vec())).is_err() {
                    return;
                }
                if output.is_last() {
                    break;
                }
            }
            let _ = to_main.send(Event::OutputEnd);
        })
    }

    /// Runs until all ranks have ended and their output was sent.
    fn turn(&mut self, came: &Receiver<Event>) -> Result<()> {
        let mut drain: Option<Drain> = None;
        loop {
            if self.ranks.is_empty() && drain.is_none() {
                // Processes left behind print no more.
                sweep(&self.spared);
                self.read.iter().filter_map(Weak::upgrade).for_each(|output| output.end());
                drain = Some(Drain::new());
            }
            let is_over = drain.as_mut().is_some_and(|drain| drain.is_over(&self.gates));
            if self.ranks.is_empty() && (self.outputs == 0 || is_over) {
                return Ok(());
            }
            if self.kill_at.is_some_and(|at| Instant::now() >= at) {
                self.kill_all();
                self.kill_at = None;
                self.killed_by.get_or_insert_with(|| Instant::now() + KILLED);
            }
            let ranks_by = self.killed_by.filter(|_| !self.ranks.is_empty());
            ensure!(ranks_by.is_none_or(|by| Instant::now() < by), "ranks were killed, and stay");
            if Instant::now() >= self.reap_at {
                self.reap();
            }
            let drain_by = drain.as_ref().map(|drain| drain.by);
            let next = [Some(self.reap_at), drain_by, self.kill_at, ranks_by, self.beats.by]
                .into_iter()
                .flatten()
                .min();
            let wait = next.map_or(Duration::from_secs(3600), |next| {
                next.saturating_duration_since(Instant::now())
            });
            let event = came.recv_timeout(wait);
            if let Ok(Event::Frame(frame)) = &event {
                self.beats.heard(frame);
            }
            match event {
                Ok(Event::Frame(ToAgent::Alive)) => self.tell(ToLauncher::Alive),
                Ok(Event::Frame(ToAgent::Pause)) => {}
                Ok(Event::Frame(ToAgent::Start(_))) => bail!("it was started twice"),
                Ok(Event::Frame(ToAgent::Line { rank, bytes })) => self.say(rank, &bytes),
                Ok(Event::Frame(ToAgent::Heard { rank })) => self.heard(rank),
                Ok(Event::Frame(ToAgent::Printed { is_error, pieces })) => {
                    self.gates[usize::from(is_error)].printed(pieces);
                }
                Ok(Event::Frame(ToAgent::Signal(number))) => self.signal(number),
                Ok(Event::Frame(ToAgent::End { grace_ms })) => {
                    self.signal(Signal::TERM.as_raw());
                    // Never later than before.
                    let at = Instant::now() + Duration::from_millis(grace_ms);
                    self.kill_at = Some(self.kill_at.map_or(at, |before| before.min(at)));
                }
                Ok(Event::Gone(why)) => {
                    self.leave_by = Some(Instant::now() + LEAVE);
                    bail!(why.unwrap_or_else(|| "the launcher went away".into()));
                }
                Ok(Event::Line(rank, bytes)) => self.tell(ToLauncher::Line { rank, bytes }),
                Ok(Event::Output(rank, is_error, bytes)) => {
                    self.tell(ToLauncher::Output { rank, is_error, bytes });
                }
                Ok(Event::OutputEnd) => self.outputs -= 1,
                Ok(Event::Exited(rank)) => self.exited(rank)?,
                Ok(Event::Written) => {
                    self.leave_by = Some(Instant::now());
                    bail!("the launcher takes nothing any more");
                }
                Err(RecvTimeoutError::Timeout) => {
                    if let Some(silence) = self.beats.silence() {
                        self.leave_by = Some(Instant::now() + LEAVE);
                        bail!("nothing came from hamlyn run for {} ms", silence.as_millis());
                    }
                }
                Err(RecvTimeoutError::Disconnected) => bail!("its threads have ended"),
            }
        }
    }

    /// Reaps other children. A rank stays a zombie until `exited` asks for its status, so
    /// that its number stays in use.
    fn reap(&mut self) {
        self.reap_at = Instant::now() + REAP;
        if self.has_child_ended.swap(false, Relaxed) {
            let mut kept: HashSet<Pid> = self.ranks.values().filter_map(Rank::pid).collect();
            kept.extend(&self.spared);
            sweep::reap(|pid| !kept.contains(&pid));
        }
    }

    fn exited(&mut self, rank: u32) -> Result<()> {
        let Some(mut gone) = self.ranks.remove(&rank) else { return Ok(()) };
        // While its number is still in use: kills the processes that it has started in its group.
        if let Some(pid) = gone.pid() {
            let _ = kill_process_group(pid, Signal::KILL);
        }
        let status = gone.child.wait().context("asking how a rank ended")?;
        let _ = gone.socket.shutdown(std::net::Shutdown::Both);
        let status = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
        self.tell(ToLauncher::Exited { rank, status });
        Ok(())
    }

    /// Sends an answer. A rank that does not take an answer it asked for may ask no more.
    fn say(&mut self, rank: u32, bytes: &[u8]) {
        let Some(to) = self.ranks.get_mut(&rank) else { return };
        match send(&to.socket, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Ok(sent) if sent == bytes.len() => {}
            _ => {
                to.heard = None;
                let _ = to.socket.shutdown(std::net::Shutdown::Both);
            }
        }
    }

    fn heard(&self, rank: u32) {
        if let Some(heard) = self.ranks.get(&rank).and_then(|rank| rank.heard.as_ref()) {
            let _ = heard.send(());
        }
    }

    /// Signals each rank once, even a rank in another process's group.
    fn signal(&self, number: i32) {
        let Some(signal) = Signal::from_named_raw(number) else { return };
        for pid in self.ranks.values().filter_map(Rank::pid) {
            let has_left = getpgid(Some(pid)) != Ok(pid);
            let _ = kill_process_group(pid, signal);
            if has_left || signal == Signal::KILL {
                let _ = kill_process(pid, signal);
            }
        }
    }

    fn kill_all(&self) {
        self.signal(Signal::KILL.as_raw());
    }

    /// The threads that read and write frames notice a launcher that has gone.
    fn tell(&self, frame: ToLauncher) {
        let _ = self.to_launcher.send(frame);
    }

    /// Writes all remaining frames, if the launcher is there.
    fn leave(mut self, came: &Receiver<Event>) {
        drop(self.to_launcher);
        let mut by = self.leave_by;
        while by.is_none_or(|by| Instant::now() < by) {
            let next = by.or(self.beats.by).unwrap_or_else(|| Instant::now() + LEAVE);
            match came.recv_timeout(next.saturating_duration_since(Instant::now())) {
                Ok(Event::Written) | Err(RecvTimeoutError::Disconnected) => return,
                Ok(Event::Frame(frame)) => self.beats.heard(&frame),
                Ok(Event::Gone(_)) => by = Some(Instant::now() + LEAVE),
                // Also gives up on a launcher that has gone without a sign.
                Err(RecvTimeoutError::Timeout) if self.beats.silence().is_some() => return,
                _ => {}
            }
        }
    }
}

/// One line at a time: a rank that asks and does not read makes no process keep its answers.
fn read_lines(rank: u32, from: UnixStream, to_main: &SyncSender<Event>, next: &Receiver<()>) {
    let mut from = BufReader::new(from);
    loop {
        let mut line = Vec::new();
        let read = from.by_ref().take(LINE_BYTES_MAX as u64).read_until(b'\n', &mut line);
        match read {
            Ok(1..) if line.ends_with(b"\n") => {
                if to_main.send(Event::Line(rank, line)).is_err() || next.recv().is_err() {
                    return;
                }
            }
            // The end, or a line that is too long: this rank is heard no more, and its socket tells
            // it so.
            _ => {
                let _ = from.get_ref().shutdown(std::net::Shutdown::Both);
                return;
            }
        }
    }
}

/// `hamlyn run-rank`: this process becomes the program, and ends with the agent.
pub fn become_rank(parent: i32, program: &[OsString]) -> Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    if getppid().map(|pid| pid.as_raw_nonzero().get()) != Some(parent) {
        bail!("the agent that started this rank has ended");
    }
    let [name, arguments @ ..] = program else { bail!("no program") };
    let error = Command::new(name).args(arguments).exec();
    // In one write: text of other ranks may come between two.
    let text = format!("hamlyn: cannot run {}: {error}\n", name.to_string_lossy());
    let _ = std::io::stderr().write_all(text.as_bytes());
    // The statuses that shells use.
    let is_missing = error.kind() == std::io::ErrorKind::NotFound;
    std::process::exit(if is_missing { 127 } else { 126 })
}
