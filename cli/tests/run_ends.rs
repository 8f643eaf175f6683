//! `hamlyn run` without a reader of its output, or with a slow one: its ranks go on, and end. Hosts
//! that are gone. And its agent, with this test in place of the launcher.

#[path = "../src/run/frames.rs"]
#[allow(dead_code)]
mod frames;
mod support;

use frames::{Start, ToAgent, ToLauncher};
use hamlyn::job::Job;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process, setpgid};
use std::io::{Read, Write};
use std::ops::{Deref, DerefMut};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use support::ranks::{Done, LIMIT, LONG, ROLE, as_role, command, text, with_role};

const PAUSE: Duration = Duration::from_millis(10);
/// Longer than what is still there is waited for.
const LATE: Duration = Duration::from_secs(4);

#[test]
fn role() {
    let Ok(role) = std::env::var(ROLE) else { return };
    as_role(&role, || match role.as_str() {
        "floods" => floods(),
        "fills" => fills(),
        "joins" => joins(),
        other => panic!("no role {other}"),
    })
}

fn hamlyn(dir: &Path, options: &str) -> Command {
    let mut command = command(env!("CARGO_BIN_EXE_hamlyn"), dir);
    command.arg("run").args(options.split_whitespace()).arg("--");
    command
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let by = Instant::now() + LONG;
    while !is_so() {
        assert!(Instant::now() < by, "never: {what}");
        std::thread::sleep(PAUSE);
    }
}

fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

fn pid(number: u32) -> Pid {
    Pid::from_raw(number as i32).unwrap()
}

/// Ends with the test, also with one that fails.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Deref for Running {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.0
    }
}

impl DerefMut for Running {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

/// The children of a process that it has not waited for.
fn children(parent: u32) -> Vec<u32> {
    let tasks = std::fs::read_dir(format!("/proc/{parent}/task")).unwrap();
    let of = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("children"));
    let all: String = tasks.map(|task| of(task.unwrap()).unwrap_or_default()).collect();
    all.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

/// The output until `word` was there so many times.
fn said(mut from: impl Read + Send + 'static, word: &str, times: usize) -> String {
    let (pieces, came) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut bytes = [0; 1024];
        while let Ok(length @ 1..) = from.read(&mut bytes)
            && pieces.send(text(&bytes[..length])).is_ok()
        {}
    });
    let mut said = String::new();
    while said.matches(word).count() < times {
        let more = came.recv_timeout(LONG);
        said += &more.unwrap_or_else(|e| panic!("{word} does not come: {e}: {said}"));
    }
    said
}

/// Its end, which must come.
fn ended(child: Running) -> ExitStatus {
    ended_after(child, |_| {})
}

/// The same after signals: again and again, because two at once may be taken for one.
fn ended_by(child: Running, number: Signal) -> ExitStatus {
    ended_after(child, |child| signal(child, number))
}

fn ended_after(mut child: Running, doing: impl Fn(&Child)) -> ExitStatus {
    let by = Instant::now() + LONG;
    while Instant::now() < by {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        doing(&child);
        std::thread::sleep(PAUSE);
    }
    panic!("hamlyn run does not end");
}

/// Until its standard output takes no more.
fn until_full(child: &Child) {
    let fd = child.stdout.as_ref().unwrap().as_raw_fd();
    let to = std::fs::File::options().write(true).open(format!("/proc/self/fd/{fd}")).unwrap();
    let now = Some(&Timespec { tv_sec: 0, tv_nsec: 0 });
    let mut times = 0;
    until("standard output is full", || {
        times += u32::from(poll(&mut [PollFd::new(&to, PollFlags::OUT)], now).unwrap() == 0);
        // And more waits for room.
        times >= 20
    });
}

#[test]
fn a_second_signal_ends_a_job_whose_output_nobody_takes() {
    for number in [Signal::INT, Signal::TERM] {
        let dir = tempfile::tempdir().unwrap();
        let script = "trap '' INT TERM; while :; do echo yes; done";
        let child = Running(hamlyn(dir.path(), "-n 2").args(["sh", "-c", script]).spawn().unwrap());
        until_full(&child);
        assert_eq!(ended_by(child, number).code(), Some(128 + 9));
    }
}

#[test]
fn one_signal_ends_it_too_and_that_output_is_lost_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let script = "trap 'exit 0' TERM; while :; do echo yes; done";
    let mut child =
        Running(hamlyn(dir.path(), "-n 2").args(["bash", "-c", script]).spawn().unwrap());
    until_full(&child);
    signal(&child, Signal::TERM);
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(said.contains("standard output"), "{said}");
    // No rank has failed.
    assert_eq!(ended(child).code(), Some(1), "{said}");
}

#[test]
fn when_a_rank_fails_the_others_end_whoever_takes_their_output() {
    let dir = tempfile::tempdir().unwrap();
    // A rank that has room in its pipe is not held up by the other.
    let script = "case $HAMLYN_JOB_RANK in \
         0) echo $$ >pid; trap '' TERM; while :; do echo yes; done ;; \
         1) while ! [ -e fail ]; do sleep 0.05; done; exit 7 ;; esac";
    let mut child = Running(hamlyn(dir.path(), "-n 2").args(["sh", "-c", script]).spawn().unwrap());
    until_full(&child);
    std::fs::write(dir.path().join("fail"), "").unwrap();
    let pid = std::fs::read_to_string(dir.path().join("pid")).unwrap();
    let proc = Path::new("/proc").join(pid.trim());
    until("the rank ends", || !proc.exists());
    // Its output is there for a late reader.
    let mut out = Vec::new();
    child.stdout.take().unwrap().read_to_end(&mut out).unwrap();
    assert!(out.len() > 100_000, "{}", out.len());
    assert_eq!(ended(child).code(), Some(7));
}

/// Rank 0 prints without an end, until its printing comes to a stop.
fn floods() -> Done {
    static PRINTED: AtomicU64 = AtomicU64::new(0);
    let job = Job::from_env()?;
    if job.rank() == 0 {
        std::thread::spawn(|| {
            while std::io::stdout().write_all(&[b'y'; 1024]).is_ok() {
                PRINTED.fetch_add(1, Relaxed);
            }
        });
        let mut before = 0;
        until("nobody takes it", || {
            std::thread::sleep(20 * PAUSE);
            let now = PRINTED.load(Relaxed);
            now > 0 && std::mem::replace(&mut before, now) == now
        });
    }
    let me = job.rank();
    job.put("x", &[me as u8])?;
    job.fence(LIMIT)?;
    for rank in 0..job.size() {
        assert_eq!(job.get(rank, "x")?, [rank as u8]);
    }
    eprintln!("met");
    Ok(())
}

#[test]
fn ranks_meet_while_nobody_takes_their_output() {
    let dir = tempfile::tempdir().unwrap();
    let mut child = Running(with_role(&mut hamlyn(dir.path(), "-n 3"), "floods").spawn().unwrap());
    let out = child.stdout.take();
    let errors = child.stderr.take();
    said(errors.unwrap(), "met\n", 3);
    let mut all = Vec::new();
    out.unwrap().read_to_end(&mut all).unwrap();
    assert!(ended(child).success());
}

/// Bytes left behind by a rank in its pipe of one MiB; the test harness's first line may still be
/// in it.
const FILLED: usize = (1 << 20) - (64 << 10);

fn fills() -> Done {
    let mut out = std::io::stdout();
    rustix::pipe::fcntl_setpipe_size(&out, FILLED)?;
    eprintln!("ready");
    until("it may go on", || Path::new("go").exists());
    out.write_all(&[b'x'; FILLED])?;
    Ok(out.flush()?)
}

#[test]
fn whoever_takes_the_output_late_gets_all_of_it() {
    let dir = tempfile::tempdir().unwrap();
    let ranks = 8;
    let options = format!("-n {ranks}");
    let mut child = Running(with_role(&mut hamlyn(dir.path(), &options), "fills").spawn().unwrap());
    let errors = child.stderr.take();
    said(errors.unwrap(), "ready\n", ranks);
    // All ranks have ended, with their output in their pipes, before anything is read of it.
    let agent = children(child.id()).pop().unwrap();
    let ranks_there = children(agent);
    assert_eq!(ranks_there.len(), ranks);
    kill_process(pid(agent), Signal::STOP).unwrap();
    std::fs::write(dir.path().join("go"), "").unwrap();
    let stat = |pid: &u32| std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    until("the ranks end", || ranks_there.iter().all(|pid| stat(pid).contains(") Z ")));
    kill_process(pid(agent), Signal::CONT).unwrap();
    until_full(&child);
    std::thread::sleep(LATE);
    let mut all = Vec::new();
    child.stdout.take().unwrap().read_to_end(&mut all).unwrap();
    let printed = all.iter().filter(|byte| **byte == b'x').count();
    assert!(printed >= ranks * FILLED, "{printed} of {}", ranks * FILLED);
    assert!(ended(child).success());
}

/// An agent with one rank, to which this test says what the launcher would.
struct Agent {
    child: Running,
    to: ChildStdin,
    from: ChildStdout,
}

impl Agent {
    fn new(dir: &Path, script: &str, beat_ms: Option<u64>) -> Self {
        let mut command = command(env!("CARGO_BIN_EXE_hamlyn"), dir);
        let mut child = Running(command.arg("run-agent").stdin(Stdio::piped()).spawn().unwrap());
        let (to, from) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let mut agent = Self { child, to, from };
        agent.tell(&ToAgent::Start(Start {
            version: env!("CARGO_PKG_VERSION").into(),
            directory: dir.as_os_str().as_encoded_bytes().to_vec(),
            program: ["bash", "-c", script].map(|word| word.as_bytes().to_vec()).into(),
            env: Vec::new(),
            first: 0,
            count: 1,
            size: 1,
            beat_ms,
        }));
        assert!(matches!(agent.next(), ToLauncher::Alive), "its rank is started");
        agent
    }

    fn tell(&mut self, frame: &ToAgent) {
        frames::write(&mut self.to, frame).unwrap();
    }

    fn next(&mut self) -> ToLauncher {
        frames::read(&mut self.from).unwrap().expect("a frame")
    }
}

#[test]
fn a_rank_that_asks_and_does_not_listen_is_heard_once() {
    let dir = tempfile::tempdir().unwrap();
    let asks = "for i in {1..100}; do echo cmd=get key=hm-0-x >&$HAMLYN_JOB_FD || exit 5; done";
    let script = format!("{asks}; echo asked; while :; do sleep 0.05; done");
    let mut agent = Agent::new(dir.path(), &script, None);
    let mut heard = 0;
    let mut hear = |agent: &mut Agent| match agent.next() {
        ToLauncher::Line { .. } => heard += 1,
        ToLauncher::Output { bytes, .. } => assert_eq!(text(&bytes), "asked\n"),
        other => panic!("{other:?}"),
    };
    // All have been written, and one is acknowledged.
    hear(&mut agent);
    hear(&mut agent);
    // As many answers as the rank has room for, and more.
    let bytes = vec![b'x'; 64 << 10];
    for _ in 0..20 {
        agent.tell(&ToAgent::Line { rank: 0, bytes: bytes.clone() });
    }
    for _ in 0..100 {
        agent.tell(&ToAgent::Heard { rank: 0 });
    }
    agent.tell(&ToAgent::End { grace_ms: 0 });
    loop {
        match agent.next() {
            ToLauncher::Line { .. } => heard += 1,
            ToLauncher::Exited { .. } => {}
            ToLauncher::Done => break,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(heard, 1);
    assert!(ended(agent.child).success());
}

/// Ended, or a zombie until its new parent looks.
fn is_gone(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
    stat.is_empty() || stat.contains(") Z ")
}

#[test]
fn an_agent_to_which_nothing_is_said_any_more_ends_its_rank() {
    let dir = tempfile::tempdir().unwrap();
    let mut agent = Agent::new(dir.path(), "echo $$; exec sleep 98765", Some(1000));
    let ToLauncher::Output { bytes, .. } = agent.next() else { panic!("no output") };
    let ToLauncher::Failed(why) = agent.next() else { panic!("it goes on") };
    assert!(why.contains("6000 ms"), "{why}");
    assert!(is_gone(&text(&bytes)));
    assert!(ended(agent.child).success());
}

#[test]
fn an_agent_whose_launcher_is_stopped_waits_for_it() {
    let dir = tempfile::tempdir().unwrap();
    let mut agent = Agent::new(dir.path(), "exec sleep 98765", Some(300));
    agent.tell(&ToAgent::Pause);
    std::thread::sleep(LATE);
    agent.tell(&ToAgent::End { grace_ms: 0 });
    assert!(matches!(agent.next(), ToLauncher::Exited { rank: 0, .. }));
    assert!(matches!(agent.next(), ToLauncher::Done));
    assert!(ended(agent.child).success());
}

#[test]
fn an_agent_whose_launcher_is_stopped_keeps_what_its_ranks_have_printed() {
    let dir = tempfile::tempdir().unwrap();
    let script = format!("head -c {FILLED} /dev/zero | tr '\\0' x");
    let mut agent = Agent::new(dir.path(), &script, Some(300));
    agent.tell(&ToAgent::Pause);
    std::thread::sleep(LATE);
    let mut printed = 0;
    loop {
        match agent.next() {
            ToLauncher::Output { bytes, .. } => {
                printed += bytes.len();
                // An agent that has said all is gone.
                let _ =
                    frames::write(&mut agent.to, &ToAgent::Printed { is_error: false, pieces: 1 });
            }
            ToLauncher::Exited { status: 0, .. } => {}
            ToLauncher::Done => break,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(printed, FILLED);
    assert!(ended(agent.child).success());
}

#[test]
fn what_an_outsider_prints_in_a_rank_s_place_keeps_no_job_from_ending() {
    for (length, pause) in [(4096, Duration::ZERO), (1, PAUSE)] {
        let dir = tempfile::tempdir().unwrap();
        let mut agent = Agent::new(dir.path(), "echo $$; exec sleep 98765", None);
        let ToLauncher::Output { bytes, .. } = agent.next() else { panic!("no output") };
        agent.tell(&ToAgent::Printed { is_error: false, pieces: 1 });
        // As one to which the rank has passed it.
        let stdout = format!("/proc/{}/fd/1", text(&bytes).trim());
        let mut stdout = std::fs::File::options().write(true).open(stdout).unwrap();
        let outsider = std::thread::spawn(move || {
            while stdout.write_all(&vec![b'y'; length]).is_ok() {
                std::thread::sleep(pause);
            }
        });
        agent.tell(&ToAgent::End { grace_ms: 0 });
        let by = Instant::now() + LONG;
        loop {
            assert!(Instant::now() < by, "it prints {length} bytes at a time, and no end comes");
            match agent.next() {
                ToLauncher::Output { .. } => {
                    let printed = ToAgent::Printed { is_error: false, pieces: 1 };
                    let _ = frames::write(&mut agent.to, &printed);
                }
                ToLauncher::Exited { .. } => {}
                ToLauncher::Done => break,
                other => panic!("{other:?}"),
            }
        }
        assert!(ended(agent.child).success());
        outsider.join().unwrap();
    }
}

#[test]
fn what_a_rank_has_started_and_left_is_no_zombie_when_it_has_ended() {
    let dir = tempfile::tempdir().unwrap();
    let script = "for i in {1..20}; do (sleep 0 &); done; echo started; exec sleep 98765";
    let mut agent = Agent::new(dir.path(), script, None);
    assert!(matches!(agent.next(), ToLauncher::Output { .. }));
    until("the rank alone is left", || children(agent.child.id()).len() == 1);
    agent.tell(&ToAgent::End { grace_ms: 0 });
    assert!(matches!(agent.next(), ToLauncher::Exited { rank: 0, .. }));
    assert!(matches!(agent.next(), ToLauncher::Done));
    assert!(ended(agent.child).success());
}

/// `hamlyn run` on this host and on one that is reached through a script in the place of ssh.
fn through(dir: &Path, rsh: &str, program: &str) -> Command {
    std::fs::write(dir.join("rsh"), rsh).unwrap();
    let options = "-n 2 --hosts localhost,elsewhere --rsh";
    let mut command = command(env!("CARGO_BIN_EXE_hamlyn"), dir);
    command.arg("run").args(options.split(' ')).arg("sh rsh").args(["--", "sh", "-c", program]);
    command
}

/// One that takes nothing, says nothing and does not end.
const SILENT: &str = "sleep 98765 & echo $! >sleeper; echo $$ >script; wait";

fn assert_script_ended(dir: &Path) {
    for name in ["sleeper", "script"] {
        let pid = std::fs::read_to_string(dir.join(name)).unwrap();
        until("what is in the place of ssh ends", || is_gone(&pid));
    }
}

#[test]
fn a_second_signal_ends_a_job_of_which_a_host_is_gone() {
    let dir = tempfile::tempdir().unwrap();
    let program = "trap '' INT TERM; echo ready; while :; do sleep 0.05; done";
    // That its ranks are started is 5 bytes.
    let script = "shift; echo $$ >script; sleep 98765 & echo $! >sleeper; \
         \"$@\" | head -c 5; echo >started; wait";
    let mut child = Running(through(dir.path(), script, program).spawn().unwrap());
    said(child.stdout.take().unwrap(), "ready", 1);
    until("the ranks there are started", || dir.path().join("started").exists());
    let errors = child.stderr.take();
    assert!(!ended_by(child, Signal::INT).success());
    said(errors.unwrap(), "elsewhere does not answer", 1);
    assert_script_ended(dir.path());
}

#[test]
fn one_signal_ends_a_job_of_which_a_host_was_never_heard() {
    let dir = tempfile::tempdir().unwrap();
    let mut child =
        Running(through(dir.path(), SILENT, "echo ready; exec sleep 98765").spawn().unwrap());
    said(child.stdout.take().unwrap(), "ready", 1);
    until("the script has begun", || dir.path().join("script").exists());
    signal(&child, Signal::INT);
    let errors = child.stderr.take();
    assert_eq!(ended(child).code(), Some(1));
    said(errors.unwrap(), "elsewhere does not answer: whether its ranks were started", 1);
    assert_script_ended(dir.path());
}

#[test]
fn when_a_rank_fails_a_host_that_is_gone_is_not_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let mut child = Running(through(dir.path(), SILENT, "exit 7").spawn().unwrap());
    said(child.stderr.take().unwrap(), "elsewhere does not answer", 1);
    assert_eq!(ended(child).code(), Some(7));
    assert_script_ended(dir.path());
}

#[test]
fn a_host_that_goes_between_its_last_ranks_end_and_its_own_is_not_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    // That its ranks are started is 5 bytes, and a rank's end 7.
    let script = "shift; echo $$ >script; sleep 98765 & echo $! >sleeper; \
         (\"$@\" | head -c 12; echo >exited; wait); wait";
    let program =
        "[ $HAMLYN_JOB_RANK = 1 ] || { while ! [ -e exited ]; do sleep 0.05; done; exit 7; }";
    let mut child = Running(through(dir.path(), script, program).spawn().unwrap());
    said(child.stderr.take().unwrap(), "elsewhere does not answer: its ranks have ended", 1);
    assert_eq!(ended(child).code(), Some(7));
    assert_script_ended(dir.path());
}

/// A job of which one host says this, and no more.
fn with_frames(dir: &Path, frames: &[ToLauncher]) -> Running {
    let mut bytes = Vec::new();
    frames.iter().for_each(|frame| frames::write(&mut bytes, frame).unwrap());
    std::fs::write(dir.join("frames"), bytes).unwrap();
    let script = "echo $$ >script; sleep 98765 & echo $! >sleeper; cat frames; wait";
    Running(through(dir, script, "exec sleep 98765").spawn().unwrap())
}

#[test]
fn a_host_that_breaks_the_rules_is_named_once_and_heard_no_more() {
    let dir = tempfile::tempdir().unwrap();
    let ended_there = |_| ToLauncher::Exited { rank: 9, status: 0 };
    let mut child = with_frames(dir.path(), &(0..20_000).map(ended_there).collect::<Vec<_>>());
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(said.matches("elsewhere: rank 9 is not there").count(), 1, "{}", said.len());
    assert_eq!(ended(child).code(), Some(1));
    assert_script_ended(dir.path());
}

#[test]
fn what_no_agent_says_is_refused() {
    let output =
        |length| ToLauncher::Output { rank: 1, is_error: false, bytes: vec![b'x'; length] };
    let exited = || ToLauncher::Exited { rank: 1, status: 0 };
    let line = |length| ToLauncher::Line { rank: 1, bytes: vec![b'x'; length] };
    for (frames, words) in [
        (vec![output(frames::PIECE_BYTES_MAX + 1)], "a piece of output of 32769 bytes"),
        (vec![exited(), exited()], "rank 1 has ended twice"),
        (vec![ToLauncher::Done], "it is done before its ranks are"),
        (vec![line(1 << 20)], "something else came"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let mut child = with_frames(dir.path(), &frames);
        said(child.stderr.take().unwrap(), words, 1);
        assert_eq!(ended(child).code(), Some(1), "{words}");
        assert_script_ended(dir.path());
    }
}

/// Ctrl-Z, and `fg` after so long.
fn stop_for(child: &Child, time: Duration) {
    signal(child, Signal::TSTP);
    let stat = format!("/proc/{}/stat", child.id());
    until("it stops", || std::fs::read_to_string(&stat).unwrap().contains(") T "));
    std::thread::sleep(time);
    signal(child, Signal::CONT);
}

#[test]
fn the_time_for_which_it_is_stopped_is_no_hosts_silence() {
    let dir = tempfile::tempdir().unwrap();
    let script = "shift; exec \"$@\"";
    let program = "[ $HAMLYN_JOB_RANK = 1 ] || exit 7; trap '' TERM; while :; do sleep 0.05; done";
    let mut child = Running(through(dir.path(), script, program).spawn().unwrap());
    let mut errors = child.stderr.take().unwrap();
    let mut words = [0; 1024];
    let length = errors.read(&mut words).unwrap();
    assert!(text(&words[..length]).contains("status 7"), "{}", text(&words[..length]));
    // The rank there is ended after two seconds, and nothing is heard of that.
    stop_for(&child, 2 * LATE);
    let mut rest = String::new();
    errors.read_to_string(&mut rest).unwrap();
    assert!(rest.is_empty(), "{rest}");
    assert_eq!(ended(child).code(), Some(7));
}

#[test]
fn the_time_for_which_it_is_stopped_counts_for_nobody_who_reads_its_output() {
    let dir = tempfile::tempdir().unwrap();
    let mut child = Running(with_role(&mut hamlyn(dir.path(), "-n 1"), "fills").spawn().unwrap());
    let errors = child.stderr.take();
    said(errors.unwrap(), "ready\n", 1);
    let agent = children(child.id()).pop().unwrap();
    let rank = children(agent).pop().unwrap().to_string();
    std::fs::write(dir.path().join("go"), "").unwrap();
    until("the rank ends", || is_gone(&rank));
    until_full(&child);
    signal(&child, Signal::TERM);
    // It is seen that its output is not taken.
    std::thread::sleep(LATE / 8);
    stop_for(&child, LATE);
    let mut all = Vec::new();
    child.stdout.take().unwrap().read_to_end(&mut all).unwrap();
    let printed = all.iter().filter(|byte| **byte == b'x').count();
    assert!(printed >= FILLED, "{printed} of {FILLED}");
    assert!(ended(child).success());
}

/// A pipe whose writers do not wait, as `ssh` leaves the standard error that it shares.
#[test]
fn output_to_a_pipe_that_another_program_has_set_not_to_wait_is_whole() {
    let dir = tempfile::tempdir().unwrap();
    let script = format!("head -c {FILLED} /dev/zero | tee /dev/stderr");
    let mut command = hamlyn(dir.path(), "-n 1");
    let pipe = || rustix::pipe::pipe_with(rustix::pipe::PipeFlags::NONBLOCK).unwrap();
    let ((out, its_out), (errors, its_errors)) = (pipe(), pipe());
    command.args(["sh", "-c", &script]).stdout(its_out).stderr(its_errors);
    let child = Running(command.spawn().unwrap());
    // Its ends of the pipes.
    drop(command);
    let mut lengths = [0; 2];
    std::thread::scope(|scope| {
        for (from, length) in [out, errors].into_iter().zip(&mut lengths) {
            scope.spawn(move || {
                rustix::io::ioctl_fionbio(&from, false).unwrap();
                let mut from = std::fs::File::from(from);
                let mut bytes = [0; 4096];
                while let Ok(more @ 1..) = from.read(&mut bytes) {
                    *length += more;
                    // More slowly than it is printed.
                    std::thread::yield_now();
                }
            });
        }
    });
    assert_eq!(lengths, [FILLED; 2]);
    assert!(ended(child).success());
}

#[test]
fn what_started_ranks_and_does_not_end_after_them_is_ended() {
    let dir = tempfile::tempdir().unwrap();
    let script = "shift; echo $$ >script; sleep 98765 & echo $! >sleeper; \"$@\"; wait";
    let child = Running(through(dir.path(), script, "exit 0").spawn().unwrap());
    assert!(ended(child).success());
    assert_script_ended(dir.path());
}

#[test]
fn ssh_is_asked_to_notice_that_its_host_is_gone() {
    let dir = tempfile::tempdir().unwrap();
    let ssh = dir.path().join("ssh");
    std::fs::write(&ssh, "#!/bin/sh\necho $* >words\n").unwrap();
    std::fs::set_permissions(&ssh, std::fs::Permissions::from_mode(0o700)).unwrap();
    let rsh = format!("{} -p 22 -o ServerAliveInterval=60", ssh.display());
    let mut command = command(env!("CARGO_BIN_EXE_hamlyn"), dir.path());
    command.args(["run", "-n", "1", "--hosts", "elsewhere", "--rsh", &rsh, "--", "true"]);
    assert!(!command.output().unwrap().status.success());
    let words = std::fs::read_to_string(dir.path().join("words")).unwrap();
    // Of ssh's words the first counts.
    let wanted = "-p 22 -o ServerAliveInterval=60 -o ServerAliveInterval=15 -o ConnectTimeout=45 -o ControlPersist=no elsewhere ";
    assert!(words.starts_with(wanted), "{words}");
}

#[test]
fn a_launcher_that_the_terminal_stops_tells_its_agents_before() {
    let dir = tempfile::tempdir().unwrap();
    let script = "shift; tee frames | \"$@\"";
    let program = "echo ready; exec sleep 98765";
    let mut child = Running(through(dir.path(), script, program).spawn().unwrap());
    said(child.stdout.take().unwrap(), "ready", 2);
    signal(&child, Signal::TSTP);
    let stat = format!("/proc/{}/stat", child.id());
    until("it stops", || std::fs::read_to_string(&stat).unwrap().contains(") T "));
    until("its agent is told", || {
        let told = std::fs::read(dir.path().join("frames")).unwrap();
        let mut told = &told[..];
        let mut frames = std::iter::from_fn(|| frames::read(&mut told).unwrap());
        frames.any(|frame| matches!(frame, ToAgent::Pause))
    });
    signal(&child, Signal::CONT);
    signal(&child, Signal::INT);
    assert_eq!(ended(child).code(), Some(128 + 2));
}

/// A rank in the process group of what it has started.
fn joins() -> Done {
    let started = Command::new("sleep").arg("98765").process_group(0).spawn()?;
    setpgid(None, Some(Pid::from_child(&started)))?;
    eprintln!("ready {}", started.id());
    std::thread::sleep(2 * LONG);
    Ok(())
}

#[test]
fn a_rank_that_has_left_its_process_group_ends_with_the_others() {
    let dir = tempfile::tempdir().unwrap();
    let mut child = Running(with_role(&mut hamlyn(dir.path(), "-n 2"), "joins").spawn().unwrap());
    said(child.stderr.take().unwrap(), "ready", 2);
    let agent = children(child.id()).pop().unwrap();
    let ranks = children(agent);
    // The test ends one, and the other ends with it.
    kill_process(pid(ranks[0]), Signal::USR1).unwrap();
    assert_eq!(ended(child).code(), Some(128 + 10));
    assert!(is_gone(&ranks[1].to_string()));
}

/// A process that a test has seen left behind, perhaps for good.
struct Left(String);

impl Left {
    /// The process whose number is in the file.
    fn of(file: &Path) -> Self {
        let mut text = String::new();
        until("it is started", || {
            text = std::fs::read_to_string(file).unwrap_or_default();
            text.ends_with('\n')
        });
        Self(text.trim().into())
    }

    fn is_gone(&self) -> bool {
        is_gone(&self.0)
    }
}

impl Drop for Left {
    fn drop(&mut self) {
        if !self.is_gone() {
            let _ = kill_process(pid(self.0.parse().unwrap()), Signal::KILL);
        }
    }
}

#[test]
fn with_an_agent_that_is_killed_goes_what_has_left_its_ranks() {
    let dir = tempfile::tempdir().unwrap();
    let script = "setsid sleep 98765 & echo $! >left; kill -9 $PPID; exec sleep 98765";
    let mut child = Running(hamlyn(dir.path(), "-n 1").args(["sh", "-c", script]).spawn().unwrap());
    let left = Left::of(&dir.path().join("left"));
    let errors = child.stderr.take();
    assert_eq!(ended(child).code(), Some(1));
    said(errors.unwrap(), "localhost", 1);
    assert!(left.is_gone());
}

#[test]
fn with_an_agent_that_is_stopped_goes_what_has_left_its_ranks() {
    let dir = tempfile::tempdir().unwrap();
    let script = "setsid sleep 98765 & echo $! >left; kill -STOP $PPID; exec sleep 98765";
    let child = Running(hamlyn(dir.path(), "-n 1").args(["sh", "-c", script]).spawn().unwrap());
    let left = Left::of(&dir.path().join("left"));
    let stat = format!("/proc/{}/stat", children(child.id()).pop().unwrap());
    until("the agent stops", || std::fs::read_to_string(&stat).unwrap().contains(") T "));
    assert!(!ended_by(child, Signal::TERM).success());
    assert!(left.is_gone());
}

#[test]
fn what_hamlyn_run_has_not_started_is_not_ended_with_a_lost_agent() {
    let dir = tempfile::tempdir().unwrap();
    let script =
        "sleep 98765 & echo $! >left; exec \"$0\" run -n 1 -- sh -c 'kill -9 $PPID; exec sleep 9'";
    let mut shell = command("sh", dir.path());
    let shell = shell.args(["-c", script, env!("CARGO_BIN_EXE_hamlyn")]).spawn().unwrap();
    let shell = Running(shell);
    let left = Left::of(&dir.path().join("left"));
    assert_eq!(ended(shell).code(), Some(1));
    assert!(!left.is_gone());
}

/// Each watches over the one that has started it, and starts another when that has ended. They are
/// there as long as the file.
const WATCHER: &str = "$file = shift; $up = getppid; \
     open($ready, '>>', \"$file.ready\"); syswrite($ready, \"\\n\"); \
     for (;;) { \
         while (-e $file && getppid == $up) { select(undef, undef, undef, 0.0005) } \
         exit if !-e $file; \
         $up = $$; \
         if (fork) { wait; exit } \
     }";

/// Whose command lines name it.
fn named(path: &Path) -> Vec<Left> {
    let name = path.as_os_str().as_encoded_bytes();
    let all = std::fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
    let is_it = |process: &std::path::PathBuf| {
        let line = std::fs::read(process.join("cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).any(|word| word == name)
    };
    let numbers = all.filter(is_it).map(|path| path.file_name().unwrap().to_owned());
    numbers.map(|number| Left(number.into_string().unwrap())).collect()
}

#[test]
fn what_starts_itself_again_when_it_is_ended_is_ended() {
    let dir = tempfile::tempdir().unwrap();
    let watchers = dir.path().join("watchers");
    std::fs::write(&watchers, "").unwrap();
    let script = "for i in {1..16}; do setsid perl -e \"$1\" $0 & done; \
         until [ \"$(wc -l <$0.ready)\" = 16 ]; do sleep 0.05; done";
    let mut command = hamlyn(dir.path(), "-n 1");
    command.args(["bash", "-c", script]).arg(&watchers).arg(WATCHER);
    assert!(ended(Running(command.spawn().unwrap())).success());
    assert_eq!(named(&watchers).len(), 0);
}

#[test]
fn what_cannot_be_ended_is_named_and_is_a_failure() {
    if !rustix::process::getuid().is_root() {
        return support::skipped("what may not be ended: it takes another user");
    }
    let dir = tempfile::tempdir().unwrap();
    let all = |mode| std::fs::Permissions::from_mode(mode);
    std::fs::set_permissions(dir.path(), all(0o777)).unwrap();
    // A program that becomes another user's, for any parent.
    std::fs::copy("/usr/bin/setpriv", dir.path().join("becomes")).unwrap();
    std::fs::set_permissions(dir.path().join("becomes"), all(0o4755)).unwrap();
    std::fs::copy(env!("CARGO_BIN_EXE_hamlyn"), dir.path().join("hamlyn")).unwrap();
    let script = "./becomes --reuid=0 --clear-groups setsid sleep 98765 >&2 & \
         while read -r name </proc/$!/comm && [ $name != sleep ]; do :; done; echo $! >left";
    let mut command = command("./hamlyn", dir.path());
    command.args(["run", "-n", "1", "--", "bash", "-c", script]).uid(65534).gid(65534);
    let mut child = Running(command.spawn().unwrap());
    let left = Left::of(&dir.path().join("left"));
    let errors = child.stderr.take();
    assert_eq!(ended(child).code(), Some(1));
    said(errors.unwrap(), &format!("could not be ended: pids {}", left.0), 1);
}
