//! The common parts of the process tests: processes that are this test binary run again, a
//! directory and settings that all of them use, and the cost of a process for the machine.
//!
//! ```text
//!   cargo test                 process of one test              processes of its roles
//!   #[test] fn .. { alone }    the same test, run again         `role`, run again
//!                              counts descriptors, pages        tell() ---> hear()
//!                              starts, stops and kills          says() <--- say()
//! ```
//! Every wait is for a condition and has a time limit; a process that outlives its limit is ended
//! by its own alarm, and its children with it.
#![allow(dead_code)]

use hamlyn::control::setup_shared_dir;
use hamlyn::node::{ApertureEvent, CloseReason, Event};
use hamlyn::{
    Accept, Access, ApertureId, AreaId, Config, LinkId, MetadataIndex, Node, Notification, QueueId,
    SlotConfig, SlotId, Ticket,
};
use std::alloc::{GlobalAlloc, Layout, System};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::Permissions;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// Longer than anything takes, also on a slow and busy machine.
pub const LONG: Duration = Duration::from_secs(100);
/// [`LONG`], for calls with an optional limit.
pub const LIMIT: Option<Duration> = Some(LONG);
/// Seconds after which a process ends itself.
const ALARM_S: u32 = 400;

const ALONE: &str = "HAMLYN_TEST_ALONE";
const ROLE: &str = "HAMLYN_TEST_ROLE";
const ARGS: &str = "HAMLYN_TEST_ARGS";
/// Over which links tests run, which processes that they start have to know.
const KEPT: [&str; 2] = ["HAMLYN_TEST_OVER", "HAMLYN_FABRIC_LIBRARY"];

/// Says something that is seen also when the output of tests is captured.
pub fn loud(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}

/// Says that a test does not run here, and why.
pub fn skipped(why: &str) {
    loud(&format!("SKIPPED: {why}"));
}

/// Runs the body of the test `name` in a process of its own, so that what is counted there is its
/// own, and nothing of it is left in this one.
pub fn alone(name: &str, body: impl FnOnce()) {
    alone_for(name, ALARM_S, body);
}

/// [`alone`], ended after `seconds`.
pub fn alone_for(name: &str, seconds: u32, body: impl FnOnce()) {
    let path = format!("{}{name}", module());
    if std::env::var(ALONE).as_ref() == Ok(&path) {
        prepare(seconds);
        return body();
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", &path, "--nocapture", "--test-threads=1"])
        .env(ALONE, &path)
        // A thread's first allocation maps a heap of its own, at any time; mappings are counted.
        .env("MALLOC_ARENA_MAX", "1")
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    die_with_parent(&mut command);
    let status = command.status().unwrap();
    assert!(status.success(), "{name}: {status}");
}

/// The module of the present test, with the rest of the test's path: its thread has the test's
/// name, and a test that runs alone has it from its parent process.
pub fn module() -> String {
    let path = match std::env::var(ALONE) {
        Ok(path) => path,
        Err(_) => std::thread::current().name().unwrap_or_default().to_owned(),
    };
    path.rsplit_once("::").map_or(String::new(), |(module, _)| format!("{module}::"))
}

fn prepare(seconds: u32) {
    // SAFETY: sets a timer of this process; the signal's default action ends it.
    unsafe { libc::alarm(seconds) };
}

fn die_with_parent(command: &mut Command) {
    // SAFETY: between fork and exec only a system call is made.
    unsafe {
        command.pre_exec(|| {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            Ok(())
        });
    }
}

// ---- a directory and settings

/// A runtime directory and settings of a test's own.
pub struct Dir {
    pub path: PathBuf,
    settings: Vec<(String, String)>,
}

impl Dir {
    /// `settings`: variables without `HAMLYN_`, and their values. Two hosts are played on one: what is
    /// called as on another host is spoken with as if it were there, unless a test says otherwise.
    pub fn new(name: &str, settings: &[(&str, &str)]) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let (pid, count) = (std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(format!("hamlyn-{name}-{pid}-{count}"));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::DirBuilder::new().mode(0o700).create(&path).unwrap();
        let mut settings: Vec<(String, String)> =
            settings.iter().map(|(k, v)| (format!("HAMLYN_{k}"), v.to_string())).collect();
        if settings.iter().all(|(variable, _)| variable != "HAMLYN_LOCAL") {
            settings.push(("HAMLYN_LOCAL".into(), "tls".into()));
        }
        for (variable, sub) in [("HAMLYN_DIR", ""), ("HAMLYN_SHARED_DIR", "shared")] {
            settings.push((variable.into(), path.join(sub).to_str().unwrap().into()));
        }
        Self { path, settings }
    }

    /// A file that its owner alone may read.
    pub fn write(&self, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path.join(name);
        let mut options = std::fs::OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        options.open(&path).unwrap().write_all(text.as_ref()).unwrap();
        path
    }

    /// A file with the secret that the two hosts of most tests have.
    pub fn secret(&self) -> PathBuf {
        self.write("secret", "7f".repeat(32))
    }

    /// The settings, without variables of the user who runs the tests.
    pub fn config(&self) -> Config {
        self.config_with(&[])
    }

    /// The settings, some of them replaced.
    pub fn config_with(&self, other: &[(&str, &str)]) -> Config {
        Config::from_lookup(|variable| {
            let other = other.iter().find(|(k, _)| variable == format!("HAMLYN_{k}"));
            let own = self.settings.iter().find(|(k, _)| k == variable);
            other.map(|row| row.1.to_string()).or_else(|| own.map(|row| row.1.clone()))
        })
        .unwrap()
    }
}

/// The settings of a host that others connect to.
pub fn listening(config: Config) -> Config {
    config.listen(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

// ---- the process that starts another

/// Another process: this test binary, run again as `role`.
pub struct Peer {
    child: Child,
    lines: Receiver<String>,
    input: Option<ChildStdin>,
    role: String,
}

impl Peer {
    /// A command that runs `role` with `args`, separated by spaces. `before` is a program, with
    /// arguments, that runs it.
    pub fn command(role: &str, dir: &Dir, args: &str, before: &[&str]) -> Command {
        Self::command_of(std::env::current_exe().unwrap(), role, dir, args, before)
    }

    /// [`command`](Self::command) with a copy of the test binary.
    pub fn command_of(exe: PathBuf, role: &str, dir: &Dir, args: &str, before: &[&str]) -> Command {
        let mut command = match before {
            [] => Command::new(exe),
            [first, rest @ ..] => {
                let mut command = Command::new(first);
                command.args(rest).arg(exe);
                command
            }
        };
        for (variable, _) in std::env::vars_os() {
            let name = variable.to_string_lossy();
            if name.starts_with("HAMLYN_") && !KEPT.contains(&&*name) {
                command.env_remove(&variable);
            }
        }
        let role_of_module = format!("{}role", module());
        command
            .args(["--exact", &role_of_module, "--nocapture", "--test-threads=1"])
            .envs(dir.settings.iter().map(|(k, v)| (k, v)))
            .env(ROLE, role)
            .env(ARGS, args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        die_with_parent(&mut command);
        command
    }

    /// Starts it.
    pub fn start(role: &str, dir: &Dir, args: &str) -> Self {
        Self::run(role, Self::command(role, dir, args, &[]))
    }

    /// Starts what [`command`](Self::command) made.
    pub fn run(role: &str, mut command: Command) -> Self {
        let mut child = command.spawn().unwrap();
        let (sender, lines) = channel();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let input = child.stdin.take();
        std::thread::Builder::new()
            .stack_size(64 << 10)
            .spawn(move || read_said(&mut output, &sender))
            .unwrap();
        Self { child, lines, input, role: role.into() }
    }

    /// Its next line; `None`: it has ended.
    pub fn hears(&mut self) -> Option<String> {
        match self.lines.recv_timeout(LONG) {
            Ok(line) => Some(line),
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => panic!("{} said nothing in time", self.role),
        }
    }

    /// Its next line.
    pub fn says(&mut self) -> String {
        let role = self.role.clone();
        self.hears().unwrap_or_else(|| panic!("{role} ended without a word"))
    }

    /// The line it has printed, if there is one.
    pub fn has_said(&mut self) -> Option<String> {
        self.lines.try_recv().ok()
    }

    /// It says exactly this next.
    #[track_caller]
    pub fn expect(&mut self, text: &str) {
        assert_eq!(self.says(), text, "said by {}", self.role);
    }

    /// Something that [`Role::hear`] gets.
    pub fn tell(&mut self, text: &str) {
        writeln!(self.input.as_mut().unwrap(), "{text}").unwrap();
    }

    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    pub fn signal(&self, signal: i32) {
        // SAFETY: a system call on the number of a child that has not been waited for.
        assert_eq!(unsafe { libc::kill(self.pid(), signal) }, 0);
    }

    /// Whether every thread of it sleeps.
    pub fn is_asleep(&self) -> bool {
        states(self.pid()).iter().all(|state| *state == 'S')
    }

    /// Until every thread of it sleeps, and goes on doing so.
    pub fn fall_asleep(&self) {
        let mut times = 0;
        until("it sleeps", || {
            times = if self.is_asleep() { times + 1 } else { 0 };
            times > 20
        });
    }

    /// Until every thread of it is stopped.
    pub fn stop(&self) {
        self.signal(libc::SIGSTOP);
        until("it is stopped", || states(self.pid()).iter().all(|state| *state == 'T'));
    }

    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits for it to end by a signal of its own choice.
    pub fn ends_killed(mut self) {
        while self.hears().is_some() {}
        use std::os::unix::process::ExitStatusExt;
        assert_eq!(self.child.wait().unwrap().signal(), Some(libc::SIGKILL));
    }

    /// Lets it go, and waits for it to end well.
    pub fn end(mut self) {
        drop(self.input.take());
        while let Some(text) = self.hears() {
            eprintln!("{}: {text}", self.role);
        }
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{}: {status}", self.role);
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const SAID: &str = "SAID ";

fn read_said(output: &mut dyn BufRead, to: &Sender<String>) {
    let mut line = String::new();
    while output.read_line(&mut line).is_ok_and(|n| n > 0) {
        // Not always at the beginning: the test's name may stand before it.
        if let Some(at) = line.find(SAID)
            && to.send(line[at + SAID.len()..].trim_end().into()).is_err()
        {
            return;
        }
        line.clear();
    }
}

/// The states of all threads of a process.
pub fn states(pid: i32) -> Vec<char> {
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    tasks
        .flatten()
        .filter_map(|task| std::fs::read_to_string(task.path().join("stat")).ok())
        .filter_map(|stat| stat.rsplit_once(')')?.1.trim_start().chars().next())
        .collect()
}

// ---- the process that was started

/// This process was started by [`Peer`].
pub struct Role {
    pub name: String,
    pub args: Vec<String>,
}

impl Role {
    /// `None`: the test binary was not started as a role.
    pub fn of_this_process() -> Option<Self> {
        let name = std::env::var(ROLE).ok()?;
        prepare(ALARM_S);
        let args = std::env::var(ARGS).unwrap_or_default();
        Some(Self { name, args: args.split(' ').map(String::from).collect() })
    }

    pub fn config(&self) -> Config {
        Config::from_env().unwrap()
    }

    pub fn number(&self, i: usize) -> u64 {
        self.args[i].parse().unwrap()
    }

    /// Its next order; `None`: it is to end.
    pub fn hear(&self) -> Option<String> {
        let mut line = String::new();
        let n = std::io::stdin().lock().read_line(&mut line).unwrap();
        (n > 0).then(|| line.trim().into())
    }

    /// Waits for this order, or for the end.
    pub fn wait_for(&self, text: &str) {
        while let Some(line) = self.hear() {
            if line == text {
                return;
            }
        }
    }
}

/// From now on a system call fails in every thread of this process, as sandboxes make it fail.
pub fn refuse(call: libc::c_long) {
    let op = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let mut filter = [
        // The number of the system call is the first word of what a filter sees.
        op(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        op(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, call as u32),
        op(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        op(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    filter_calls(&mut filter);
}

/// From now on this program of seccomp's decides about the system calls of every thread of this process.
pub fn filter_calls(filter: &mut [libc::sock_filter]) {
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the program and what it points to live as long as the calls, which copy them.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let (mode, flags) = (libc::SECCOMP_SET_MODE_FILTER, libc::SECCOMP_FILTER_FLAG_TSYNC);
        assert_eq!(libc::syscall(libc::SYS_seccomp, mode, flags, &raw const program), 0);
    }
}

/// Says something to the process that started this one.
pub fn say(text: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{SAID}{text}").and_then(|()| out.flush()).unwrap();
}

/// Ends this process as `kill -9` does, now.
pub fn die() -> ! {
    // SAFETY: a signal that ends this process.
    unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    unreachable!()
}

// ---- other users

/// A user that nothing else has, and another.
pub const USER: u32 = 54_321;
pub const OTHER_USER: u32 = 54_322;

/// A directory that other users may pass through, and the test binary where they may run it.
/// `None`: said why there can be none.
pub fn for_users(name: &str, settings: &[(&str, &str)]) -> Option<(Dir, PathBuf)> {
    if !rustix::process::geteuid().is_root() {
        skipped("other users need root");
        return None;
    }
    let dir = Dir::new(name, settings);
    std::fs::set_permissions(&dir.path, Permissions::from_mode(0o711)).unwrap();
    setup_shared_dir(&dir.config()).unwrap();
    // A copy: the way to the original may be closed to others.
    let exe = dir.path.join("test");
    std::fs::copy(std::env::current_exe().unwrap(), &exe).unwrap();
    std::fs::set_permissions(&exe, Permissions::from_mode(0o755)).unwrap();
    let mut runs = as_user(Command::new(&exe).arg("--list"), USER, &[]).output();
    // A process that another thread has just forked holds the copy open for writing until it
    // executes its own program.
    until("nobody writes the copy", || {
        let is_busy = |e: &std::io::Error| e.kind() == std::io::ErrorKind::ExecutableFileBusy;
        if runs.as_ref().is_err_and(is_busy) {
            runs = as_user(Command::new(&exe).arg("--list"), USER, &[]).output();
        }
        !runs.as_ref().is_err_and(is_busy)
    });
    if !runs.as_ref().is_ok_and(|output| output.status.success()) {
        skipped(&format!("another user cannot run a program in {}: {runs:?}", dir.path.display()));
        return None;
    }
    Some((dir, exe))
}

/// The command is run by another user.
pub fn as_user<'a>(command: &'a mut Command, user: u32, groups: &[u32]) -> &'a mut Command {
    let groups = groups.to_vec();
    // SAFETY: between fork and exec only system calls are made.
    unsafe {
        command.pre_exec(move || {
            let steps = [
                libc::setgroups(groups.len(), groups.as_ptr()),
                libc::setgid(user),
                libc::setuid(user),
            ];
            if steps.iter().all(|rc| *rc == 0) {
                Ok(())
            } else {
                Err(std::io::Error::last_os_error())
            }
        })
    }
}

/// Another user's process.
pub fn other_user(
    user: u32,
    role: &str,
    dir: &Dir,
    exe: &Path,
    args: &str,
    groups: &[u32],
) -> Peer {
    let mut command = Peer::command_of(exe.to_path_buf(), role, dir, args, &[]);
    // Its own /proc entries are then root's: no ptrace right is needed for anything.
    command.env("HAMLYN_UNDUMPABLE", "yes");
    as_user(&mut command, user, groups);
    Peer::run(role, command)
}

// ---- a node that receives

/// A node with an area, a queue and a slot.
pub struct Station {
    pub node: Node,
    pub area: AreaId,
    pub queue: QueueId,
    pub slot: SlotId,
    pub ticket: Ticket,
}

impl Station {
    pub fn new(config: Config, bytes: usize, entries: u32) -> Self {
        let mut node = Node::with_config(config).unwrap();
        let area = node.message_area(bytes).unwrap();
        let queue = node.notification_queue(entries).unwrap();
        let slot = node.slot(SlotConfig::new(area, queue).metadata(entries)).unwrap();
        let ticket = node.ticket(slot, MetadataIndex(0)).unwrap();
        Self { node, area, queue, slot, ticket }
    }

    /// Every client gets the ticket.
    pub fn serve(mut self, name: &str) -> Self {
        let greeting = self.ticket.to_bytes().to_vec();
        self.node.serve(name, Access::SameUser, Accept::Automatic(greeting)).unwrap();
        self
    }

    /// Connects, giving the own ticket, and says which ticket it got.
    pub fn connect(&mut self, name: &str) -> (LinkId, Ticket) {
        let link = self.node.connect(name, &self.ticket.to_bytes(), Some(LONG)).unwrap();
        (link, ticket_of(&self.node, link))
    }

    pub fn recv(&mut self) -> Notification {
        match self.node.recv(self.queue, LIMIT) {
            Ok(notification) => notification,
            Err(e) => panic!("{e}\n{}", state(&self.node)),
        }
    }

    pub fn bytes(&self) -> &[u8] {
        self.node.area(self.area).unwrap()
    }

    /// A ticket for another entry.
    pub fn ticket_for(&self, index: u32) -> Ticket {
        self.node.ticket(self.slot, MetadataIndex(index)).unwrap()
    }
}

/// Connects to `service`, and sends the first 8 bytes of each message back with the ticket that
/// came with it, until the sender is gone.
pub fn echo(mut me: Station, service: &str) {
    me.connect(service);
    loop {
        me.recv();
        let entry = me.node.metadata(me.slot, MetadataIndex(0)).unwrap();
        let reply = Ticket::from_bytes(entry.user()).unwrap();
        let mut first = [0; 8];
        first.copy_from_slice(&me.bytes()[..8]);
        if me.node.send(&reply, &first, b"", LIMIT).is_err() {
            return;
        }
    }
}

/// The ticket that came as the other end's greeting.
pub fn ticket_of(node: &Node, link: LinkId) -> Ticket {
    Ticket::from_bytes(node.greeting(link).unwrap()).unwrap()
}

/// A node in words, for a test that failed.
pub fn state(node: &Node) -> String {
    let mut text = format!("node {}:\n", node.id());
    for link in node.links() {
        text.push_str(&format!("  {link:?} {}\n", node.explain(link).unwrap_or_default()));
    }
    for (name, value) in node.counters() {
        if value != 0 {
            text.push_str(&format!("  {name} {value}\n"));
        }
    }
    text
}

pub fn counter(node: &Node, name: &str) -> u64 {
    node.counters().iter().find(|row| row.0 == name).unwrap().1
}

/// Polls the node until `is_so`.
#[track_caller]
pub fn until_node(node: &mut Node, what: &str, mut is_so: impl FnMut(&mut Node) -> bool) {
    let end = Instant::now() + LONG;
    while !is_so(node) {
        assert!(Instant::now() < end, "it never came to be that {what}\n{}", state(node));
        node.wait(Some(Duration::from_millis(20))).unwrap();
    }
}

/// The next event about an aperture.
#[track_caller]
pub fn aperture_event(node: &mut Node) -> (ApertureId, ApertureEvent) {
    let mut found = None;
    until_node(node, "something became of an aperture", |node| {
        while let Some(event) = node.next_event() {
            if let Event::Aperture { aperture, what } = event {
                found = Some((aperture, what));
                return true;
            }
        }
        false
    });
    found.unwrap()
}

/// The next link that another node makes.
#[track_caller]
pub fn connected(node: &mut Node) -> LinkId {
    let mut found = None;
    until_node(node, "somebody connected", |node| {
        while let Some(event) = node.next_event() {
            if let Event::Connected { link, .. } = event {
                found = Some(link);
                return true;
            }
        }
        false
    });
    found.unwrap()
}

/// Why `link` ended; waits for it.
#[track_caller]
pub fn closed(node: &mut Node, link: LinkId) -> CloseReason {
    let mut found = None;
    until_node(node, "a link ended", |node| {
        while let Some(event) = node.next_event() {
            if let Event::Closed { link: l, reason, .. } = event
                && l == link
            {
                found = Some(reason);
                return true;
            }
        }
        false
    });
    found.unwrap()
}

/// Waits until `is_so`.
#[track_caller]
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + LONG;
    while !is_so() {
        assert!(Instant::now() < end, "it never came to be that {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Bytes that say where they lie.
pub fn pattern(n: usize, seed: u64) -> Vec<u8> {
    (0..n as u64).map(|i| (i * 31 + i / 251 + seed * 7) as u8).collect()
}

// ---- what a process costs

/// The countable resources of this process. Resident memory and times are left out, as they depend
/// on the other load of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs {
    pub descriptors: usize,
    /// Of memory that is shared with other processes.
    pub shared_mappings: usize,
    pub shared_bytes: usize,
    pub mappings: usize,
    /// Bytes that this process has allocated and not freed.
    pub heap_bytes: usize,
}

impl Costs {
    pub fn now() -> Self {
        let mut costs = Self {
            descriptors: std::fs::read_dir("/proc/self/fd").unwrap().count(),
            shared_mappings: 0,
            shared_bytes: 0,
            mappings: 0,
            heap_bytes: 0,
        };
        for line in std::fs::read_to_string("/proc/self/maps").unwrap().lines() {
            costs.mappings += 1;
            if line.contains("memfd:hamlyn") {
                costs.shared_mappings += 1;
                let range = line.split(' ').next().unwrap().split_once('-').unwrap();
                let address = |text| usize::from_str_radix(text, 16).unwrap();
                costs.shared_bytes += address(range.1) - address(range.0);
            }
        }
        // Last: what was read above is freed by now.
        costs.heap_bytes = HEAP_BYTES.load(Ordering::Relaxed);
        costs
    }
}

/// The system's allocator, counted.
struct Counting;

static HEAP_BYTES: AtomicUsize = AtomicUsize::new(0);

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: the system's allocator does the work, and is asked for what the caller asked for; `realloc`
// and `alloc_zeroed` are made of these two.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        HEAP_BYTES.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        HEAP_BYTES.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `dealloc`, and the block is the system's.
        unsafe { System.dealloc(block, layout) }
    }
}

/// How often each thread of this process has gone to sleep, for any reason.
pub fn times_asleep() -> BTreeMap<OsString, u64> {
    let of_thread = |status: String| -> u64 {
        let line = status.lines().find(|line| line.starts_with("voluntary_ctxt_switches")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    };
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    // A thread that ends meanwhile has no status any more.
    let statuses = tasks.filter_map(|task| {
        let status = std::fs::read_to_string(task.path().join("status")).ok()?;
        Some((task.file_name(), of_thread(status)))
    });
    statuses.collect()
}

/// Numbers that a seed decides.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x1234_5678_9abc_def1)
    }

    /// SplitMix64.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Less than `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}
