//! A rank and its launcher, which is the test: it speaks like `hamlyn run`, is silent on command,
//! and counts requests. The rank is another process.
#![cfg(not(miri))]

mod support;

use hamlyn::job::{Job, JobError, Launcher};
use hamlyn::protocol::StreamSender;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;
use support::{Dir, LIMIT, LONG, Peer, Role, say};

/// The launcher's behaviour, and the requests it got.
#[derive(Default)]
struct State {
    /// It reads one more line at most, and answers nothing, as one that is stopped.
    is_silent: bool,
    /// Fences do not end.
    holds_fences: bool,
    /// The first words of what it has read.
    heard: Vec<String>,
    /// Whether the rank waits at a fence.
    is_waited_for: bool,
}

/// A launcher of two ranks, of which there is one.
struct Played {
    state: Arc<(Mutex<State>, Condvar)>,
    to: Arc<Mutex<UnixStream>>,
    _dir: Dir,
}

fn answer(line: &str, values: &mut BTreeMap<String, String>) -> String {
    let word = |name: &str| {
        line.split(' ').find_map(|word| word.strip_prefix(&format!("{name}="))).unwrap_or_default()
    };
    match word("cmd") {
        "init" => {
            format!("cmd=response_to_init rc=0 rank=0 size=2 secret={}", "ab".repeat(32))
        }
        "missing" => "cmd=missing_result rc=0 ranks=1".into(),
        "put" => {
            // Rank 1 is a picture of rank 0.
            for rank in ["hm-0-", "hm-1-"] {
                values.insert(word("key").replace("hm-0-", rank), word("value").into());
            }
            "cmd=put_result rc=0".into()
        }
        "get" => match values.get(word("key")) {
            Some(value) => format!("cmd=get_result rc=0 value={value}"),
            None => "cmd=get_result rc=-1".into(),
        },
        "barrier_in" => "cmd=barrier_out rc=0".into(),
        other => panic!("the rank said {other:?}"),
    }
}

impl Played {
    /// Starts the rank, and lets it come to a job.
    fn new(role: &str) -> (Self, Peer) {
        let (own, ranks) = UnixStream::pair().unwrap();
        let ranks = OwnedFd::from(ranks);
        let dir = Dir::new(role, &[]);
        let mut command = Peer::command(role, &dir, "", &[]);
        command.env("HAMLYN_JOB_FD", ranks.as_raw_fd().to_string());
        // SAFETY: changes a flag of a descriptor that is open.
        assert_eq!(unsafe { libc::fcntl(ranks.as_raw_fd(), libc::F_SETFD, 0) }, 0);
        let mut rank = Peer::run(role, command);
        drop(ranks);
        let state = Arc::<(Mutex<State>, Condvar)>::default();
        let to = Arc::new(Mutex::new(own.try_clone().unwrap()));
        let (states, out) = (state.clone(), to.clone());
        std::thread::spawn(move || {
            let mut values = BTreeMap::new();
            for line in BufReader::new(own).lines() {
                let Ok(line) = line else { return };
                let (state, changed) = &*states;
                let mut state = state.lock().unwrap();
                state.heard.push(line.split(' ').next().unwrap_or_default().into());
                changed.notify_all();
                let mut state = changed.wait_while(state, |state| state.is_silent).unwrap();
                if line.starts_with("cmd=barrier_in") && state.holds_fences {
                    state.is_waited_for = true;
                    continue;
                }
                drop(state);
                let answer = answer(&line, &mut values);
                let _ = out.lock().unwrap().write_all(format!("{answer}\n").as_bytes());
            }
        });
        rank.expect("has come");
        (Self { state, to, _dir: dir }, rank)
    }

    /// Changes what the launcher does from now on.
    fn does(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.0.lock().unwrap());
        self.state.1.notify_all();
    }

    /// Fences end from now on, and so does the one at which the rank waits.
    fn lets_fences_end(&self) {
        let mut state = self.state.0.lock().unwrap();
        state.holds_fences = false;
        if std::mem::take(&mut state.is_waited_for) {
            self.to.lock().unwrap().write_all(b"cmd=barrier_out rc=0\n").unwrap();
        }
    }

    /// How often it has heard this.
    fn count(&self, command: &str) -> usize {
        let state = self.state.0.lock().unwrap();
        state.heard.iter().filter(|heard| **heard == format!("cmd={command}")).count()
    }

    /// Waits until it has heard this so often.
    fn hears(&self, command: &str, times: usize) {
        let guard = self.state.0.lock().unwrap();
        let wanted = format!("cmd={command}");
        let is_missing = |state: &mut State| {
            state.heard.iter().filter(|heard| **heard == wanted).count() < times
        };
        let waited = self.state.1.wait_timeout_while(guard, LONG, is_missing).unwrap();
        assert!(!waited.1.timed_out(), "it was not said: {wanted}");
    }
}

/// Not a test: the rank.
#[test]
fn role() {
    let Some(role) = Role::of_this_process() else { return };
    let job = Job::from_env().unwrap();
    say("has come");
    role.hear();
    match role.name.as_str() {
        "polls" => polls(&job, &role),
        "outlives" => outlives(&job, &role),
        "fences" => fences(&job, &role),
        "limits" => limits(&job, &role),
        "asks" => asks(&job, &role),
        other => panic!("no role {other}"),
    }
    // Threads that still ask are not waited for.
    std::process::exit(0);
}

fn ms(ms: u64) -> Option<Duration> {
    Some(Duration::from_millis(ms))
}

fn polls(job: &Job, role: &Role) {
    for _ in 0..100 {
        let error = job.fence(ms(5)).unwrap_err();
        assert!(matches!(error, JobError::Missing { limit_ms: 5, .. }), "{error}");
    }
    say("has polled");
    role.hear();
    // The missing ranks are known all the same.
    while !matches!(job.fence(ms(5)), Err(JobError::Missing { ranks, .. }) if ranks == [1]) {}
    say("knows");
    role.hear();
    job.fence(LIMIT).unwrap();
}

#[test]
fn a_fence_that_is_gone_on_with_in_slices_asks_seldom_who_is_missing() {
    let (played, mut rank) = Played::new("polls");
    played.does(|state| state.holds_fences = true);
    rank.tell("go on");
    rank.expect("has polled");
    let asked = played.count("missing");
    assert!(asked < 50, "{asked} questions in 100 slices");
    rank.tell("go on");
    rank.expect("knows");
    played.lets_fences_end();
    rank.tell("go on");
    rank.end();
}

fn is_silent(error: &JobError, limit_ms: u64) -> bool {
    let launcher = Launcher::Run;
    matches!(error, JobError::LauncherSilent { launcher: of, limit_ms: told, .. }
        if *of == launcher && *told == limit_ms)
}

fn outlives(job: &Job, role: &Role) {
    for _ in 0..40 {
        let error = job.fence(ms(1)).unwrap_err();
        assert!(matches!(error, JobError::Missing { limit_ms: 1, .. }), "{error}");
    }
    // More questions than are remembered.
    for _ in 0..40 {
        let error = job.stream_to(1, ms(1)).map(drop).unwrap_err();
        assert!(is_silent(&error, 1), "{error}");
    }
    say("was patient");
    role.hear();
    job.put("z", b"1").unwrap();
    job.fence(LIMIT).unwrap();
    job.fence(LIMIT).unwrap();
    assert_eq!(job.get(1, "z").unwrap(), b"1");
}

#[test]
fn a_launcher_that_was_silent_is_usable_once_it_answers_again() {
    let (played, mut rank) = Played::new("outlives");
    played.does(|state| state.is_silent = true);
    rank.tell("go on");
    rank.expect("was patient");
    played.does(|state| state.is_silent = false);
    rank.tell("go on");
    rank.end();
    // It was asked once, since it had not answered.
    assert_eq!(played.count("missing"), 1);
}

fn fences(job: &Job, _: &Role) {
    let one = job.clone();
    let other = std::thread::spawn(move || one.fence(LIMIT));
    job.fence(LIMIT).unwrap();
    other.join().unwrap().unwrap();
}

#[test]
fn fences_of_two_threads_are_two_fences() {
    let (played, mut rank) = Played::new("fences");
    let before = played.count("barrier_in");
    played.does(|state| state.holds_fences = true);
    rank.tell("go on");
    played.hears("barrier_in", before + 1);
    // Time for the other thread to come, which decides nothing.
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(played.count("barrier_in"), before + 1);
    played.lets_fences_end();
    rank.end();
    assert_eq!(played.count("barrier_in"), before + 2);
}

fn limits(job: &Job, _: &Role) {
    let error = job.stream_to(1, ms(20)).map(drop).unwrap_err();
    assert!(is_silent(&error, 20), "{error}");
    let error = job.client(1, ms(21)).map(drop).unwrap_err();
    assert!(is_silent(&error, 21), "{error}");
    let grown = job.grow::<StreamSender>(1, "x", (), ms(22)).map(drop);
    let error = grown.unwrap_err();
    assert!(is_silent(&error, 22), "{error}");
}

#[test]
fn a_time_limit_bounds_asking_the_launcher_where_a_rank_is() {
    let (played, mut rank) = Played::new("limits");
    played.does(|state| state.is_silent = true);
    rank.tell("go on");
    rank.end();
}

fn asks(job: &Job, role: &Role) {
    let one = job.clone();
    let other = std::thread::spawn(move || one.get(1, "x"));
    say("asks");
    role.hear();
    let error = job.fence(ms(10)).unwrap_err();
    assert!(matches!(error, JobError::Missing { limit_ms: 10, .. }), "{error}");
    let error = job.stream_to(1, ms(11)).map(drop).unwrap_err();
    assert!(is_silent(&error, 11), "{error}");
    assert!(!other.is_finished(), "they waited for the other thread's answer");
}

#[test]
fn a_time_limit_bounds_waiting_for_another_threads_question() {
    let (played, mut rank) = Played::new("asks");
    let before = played.count("get");
    played.does(|state| state.is_silent = true);
    rank.tell("go on");
    rank.expect("asks");
    played.hears("get", before + 1);
    rank.tell("go on");
    rank.end();
}
