//! Links between processes: death at each step, forked children, other users, other namespaces.
//!
//! A peer is this test binary, run again with a role in its environment.
#![cfg(feature = "os")]

#[macro_use]
mod control_help;

use control_help::*;
use hamlyn::config::Config;
use hamlyn::control::frame::{Frame, Purpose};
use hamlyn::control::*;
use hamlyn::link::cells::Word;
use hamlyn::os::{memory, socket};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering;

const OTHER_USER: u32 = 54321;

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Says something to the process that started this one.
fn say_aloud(text: &str) {
    println!("\nSAID {text}");
}

/// Until the process that started this one lets go, or kills it.
fn wait_for_end() {
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}

/// Not a test: what the other process does.
#[test]
fn role() {
    let Ok(role) = std::env::var("HAMLYN_TEST_ROLE") else { return };
    let dir = std::env::var("HAMLYN_TEST_DIR").unwrap();
    let service = std::env::var("HAMLYN_TEST_SERVICE").unwrap();
    let base = std::path::PathBuf::from(dir);
    let config = Config::from_env().unwrap().dir(&base).shared_dir(base.join("shared"));
    let dir = std::mem::ManuallyDrop::new(Dir(base));
    let connect = || {
        let control = start(&config);
        let link = control.connect(&name(&service), b"", LONG);
        (control, link)
    };
    match role.as_str() {
        "serve" => {
            let control = start(&config);
            control.serve(&name("x"), Access::SameUser, Accept::Automatic(vec![])).unwrap();
            say_aloud("serving");
            wait_for_end();
        }
        "connect" => {
            let (_control, link) = connect();
            match &link {
                Ok(link) => say_aloud(&format!("linked {:?}", link.peer.uid)),
                Err(e) => say_aloud(&e.to_string()),
            }
            wait_for_end();
        }
        "stat" => match stat_of(&config, &name(&service), Some(LONG)) {
            Ok(text) => say_aloud(&text),
            Err(e) => say_aloud(&e.to_string()),
        },
        "write-and-exit" => {
            let (_control, link) = connect();
            link.unwrap().outgoing.sleep().word().store(77, Ordering::Release);
            // At once: no goodbye, nothing is dropped.
            std::process::exit(0);
        }
        "leave-a-child" => {
            let (_control, link) = connect();
            let _link = link.unwrap();
            // A child that inherits every descriptor, the sockets among them.
            for entry in std::fs::read_dir("/proc/self/fd").unwrap().flatten() {
                let number: i32 = entry.file_name().to_str().unwrap().parse().unwrap();
                // SAFETY: the number is that of an open descriptor, or the call fails.
                unsafe { libc::fcntl(number, libc::F_SETFD, 0) };
            }
            let mut command = Command::new("sleep");
            let mut child = command.arg("1000").stdout(Stdio::null()).spawn().unwrap();
            say_aloud(&format!("child {}", child.id()));
            wait_for_end();
            let _ = child.kill();
            let _ = child.wait();
        }
        "fork" => {
            let (control, link) = connect();
            link.unwrap();
            let guard = memory::ForkGuard::new().unwrap();
            assert!(guard.is_parent());
            // SAFETY: the child only looks at its guard, makes calls that refuse, and ends.
            let child = unsafe { libc::fork() };
            if child == 0 {
                let name = name(&service);
                let is_error = !guard.is_parent()
                    && matches!(control.connect(&name, b"", LONG), Err(ConnectError::Forked))
                    && matches!(
                        control.serve(&name, Access::SameUser, Accept::Ask),
                        Err(ServeError::Forked)
                    )
                    && control.run_once(std::time::Duration::ZERO).is_err();
                drop(control);
                // SAFETY: ends the process at once.
                unsafe { libc::_exit(if is_error { 0 } else { 1 }) };
            }
            let mut status = -1;
            // SAFETY: waits for the child just made, into a live integer.
            unsafe { libc::waitpid(child, &mut status, 0) };
            say_aloud(&format!("child ended {status}"));
            wait_for_end();
        }
        // A stranger that stops after so many steps.
        step => {
            let steps: u32 = step.strip_prefix("step-").unwrap().parse().unwrap();
            let kept: Box<dyn std::any::Any> = match steps {
                0 => Box::new(stranger(&*dir)),
                1 => {
                    let fd = stranger(&*dir);
                    send(&fd, &Frame::Hello(hello_of(Purpose::Link)));
                    Box::new(fd)
                }
                // The server waits for its ring.
                2 => {
                    let half = half_way(&*dir);
                    until_taken(&half.0, &half.2);
                    Box::new(half)
                }
                // It has paid, and has not taken the server's.
                3 => {
                    let half = half_way(&*dir);
                    let ring = until_paid(&half.0, &half.2);
                    Box::new((half, ring))
                }
                _ => Box::new(link_by_hand(&*dir)),
            };
            say_aloud("there");
            wait_for_end();
            drop(kept);
        }
    }
}

/// The pipe into it is kept to the end: closed earlier, it would be a request to end in peace.
struct Peer {
    child: Child,
    out: BufReader<std::process::ChildStdout>,
    _into: Option<std::process::ChildStdin>,
}

impl Peer {
    fn command(role: &str, dir: &Dir, service: &str, before: &[&str]) -> Command {
        let exe = std::env::current_exe().unwrap();
        let mut command = match before {
            [] => Command::new(exe),
            [first, rest @ ..] => {
                let mut command = Command::new(first);
                command.args(rest).arg(exe);
                command
            }
        };
        command
            .args(["--exact", "role", "--nocapture"])
            .env("HAMLYN_TEST_ROLE", role)
            .env("HAMLYN_TEST_DIR", &dir.0)
            .env("HAMLYN_TEST_SERVICE", service)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        command
    }

    fn run(mut command: Command) -> Self {
        let mut child = command.spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let _into = child.stdin.take();
        Self { child, out, _into }
    }

    fn new(role: &str, dir: &Dir) -> Self {
        Self::run(Self::command(role, dir, "x", &[]))
    }

    /// Its next line.
    fn says(&mut self) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            assert_ne!(self.out.read_line(&mut line).unwrap(), 0, "the other process ended");
            if let Some(text) = line.trim().strip_prefix("SAID ") {
                return text.into();
            }
        }
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn served(dir: &Dir) -> Control {
    let server = start(&dir.config());
    server.serve(&name("x"), Access::SameUser, Accept::Automatic(vec![])).unwrap();
    server
}

fn closed(control: &Control) -> LinkEnd {
    match next(control) {
        ControlEvent::Closed { reason, .. } => reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_client_that_dies_at_any_step_leaves_nothing() {
    let dir = Dir::new("steps");
    let server = served(&dir);
    for steps in 0..5 {
        let mut peer = Peer::new(&format!("step-{steps}"), &dir);
        assert_eq!(peer.says(), "there");
        peer.kill();
    }
    let ControlEvent::Connected(link) = next(&server) else { panic!() };
    assert_eq!(closed(&server), LinkEnd::Died);
    until("the others were seen to leave", || {
        (counter(&server, "left_silent"), counter(&server, "left_half_way")) == (1, 3)
    });
    drop(link);
    let client = start(&dir.config().bytes_per_user_max(200u64 << 10));
    client.connect(&name("x"), b"", LONG).unwrap();
}

#[test]
fn a_server_that_is_killed_is_dead_and_its_name_can_be_taken() {
    let dir = Dir::new("killed");
    let mut peer = Peer::new("serve", &dir);
    assert_eq!(peer.says(), "serving");
    let client = start(&dir.config());
    let link = client.connect(&name("x"), b"", LONG).unwrap();
    assert_eq!(link.peer.pid, Some(peer.child.id()));
    peer.kill();
    assert_eq!(closed(&client), LinkEnd::Died);
    assert!(dir.0.join("x").exists());
    let error = client.connect_to(&name("x"), b"", LONG, Wait::No);
    assert!(matches!(error, Err(ConnectError::Stale(_))));
    let next = served(&dir);
    client.connect(&name("x"), b"", LONG).unwrap();
    drop(next);
    assert_eq!(std::fs::read_dir(&dir.0).unwrap().count(), 0);
}

#[test]
fn what_was_written_before_a_death_can_still_be_read() {
    let dir = Dir::new("drain");
    let server = served(&dir);
    let mut peer = Peer::new("write-and-exit", &dir);
    let ControlEvent::Connected(link) = next(&server) else { panic!() };
    peer.child.wait().unwrap();
    assert_eq!(closed(&server), LinkEnd::Died);
    assert_eq!(link.incoming.sleep().word().load(Ordering::Acquire), 77);
}

#[test]
fn death_is_seen_though_a_forked_child_holds_the_socket() {
    let dir = Dir::new("child");
    let server = served(&dir);
    let mut peer = Peer::new("leave-a-child", &dir);
    let ControlEvent::Connected(link) = next(&server) else { panic!() };
    let said = peer.says();
    let child: i32 = said.strip_prefix("child ").unwrap().parse().unwrap();
    peer.kill();
    assert_eq!(closed(&server), LinkEnd::Died);
    // The child is alive, and so is its end of the socket: a hang-up would not have told.
    let pid = rustix::process::Pid::from_raw(child).unwrap();
    rustix::process::test_kill_process(pid).unwrap();
    let error = socket::receive(link.way.wake().unwrap(), &mut [0; 8]).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

#[test]
fn a_stopped_peer_is_not_a_dead_one() {
    let dir = Dir::new("stopped");
    let server = served(&dir);
    let mut peer = Peer::new("connect", &dir);
    assert!(peer.says().starts_with("linked"));
    let ControlEvent::Connected(_link) = next(&server) else { panic!() };
    let pid = rustix::process::Pid::from_child(&peer.child);
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    // Other clients go on meanwhile, and the server sees no event of this one.
    start(&dir.config()).connect(&name("x"), b"", LONG).unwrap();
    assert!(matches!(next(&server), ControlEvent::Connected(_)));
    assert_eq!(closed(&server), LinkEnd::Graceful);
    assert!(!server.inbox().is_pending());
    peer.kill();
    assert_eq!(closed(&server), LinkEnd::Died);
}

#[test]
fn a_socket_closed_by_a_process_that_lives_is_a_hang_up() {
    let dir = Dir::new("hangup");
    let server = served(&dir);
    let link = link_by_hand(&dir);
    let ControlEvent::Connected(_link) = next(&server) else { panic!() };
    drop(link.fd);
    assert_eq!(closed(&server), LinkEnd::HungUp);
}

#[test]
fn a_forked_child_gets_errors_and_harms_nothing() {
    let dir = Dir::new("fork");
    let server = served(&dir);
    let mut peer = Peer::new("fork", &dir);
    let ControlEvent::Connected(_link) = next(&server) else { panic!() };
    assert_eq!(peer.says(), "child ended 0");
    assert!(!server.inbox().is_pending());
    peer.kill();
    assert_eq!(closed(&server), LinkEnd::Died);
}

/// A peer of another user, if this one may make one.
fn other_user(role: &str, dir: &Dir, service: &str, groups: &[u32]) -> Option<Peer> {
    if !is_root() {
        skipped!("two users need root");
        return None;
    }
    // Through the directory, not into it.
    std::fs::set_permissions(&dir.0, std::fs::Permissions::from_mode(0o711)).unwrap();
    let exe = std::env::current_exe().unwrap();
    if exe.ancestors().skip(1).any(|d| d.metadata().unwrap().permissions().mode() & 1 == 0) {
        skipped!("another user cannot run {}", exe.display());
        return None;
    }
    let mut command = Peer::command(role, dir, service, &[]);
    let gid = groups.first().copied().unwrap_or(OTHER_USER);
    // Undumpable, too: its own /proc entries are then root's, and it must not need them.
    command.uid(OTHER_USER).gid(gid).env("HAMLYN_UNDUMPABLE", "yes");
    Some(Peer::run(command))
}

#[test]
fn another_user_connects_where_everybody_may() {
    let dir = Dir::new("users");
    let server = start(&dir.config());
    if is_root() {
        setup_shared_dir(&dir.config()).unwrap();
        server.serve(&name("x"), Access::Anyone, Accept::Automatic(vec![])).unwrap();
    }
    let Some(mut peer) = other_user("connect", &dir, "root@x", &[]) else { return };
    assert_eq!(peer.says(), "linked Some(0)");
    let ControlEvent::Connected(link) = next(&server) else { panic!() };
    assert_eq!((link.peer.uid, link.peer.gid), (Some(OTHER_USER), Some(OTHER_USER)));
    // Statistics are for the owner only.
    let text = stat_of(&dir.config(), &name("0@x"), Some(LONG)).unwrap();
    assert!(text.starts_with("nothing counted\ncontrol."), "{text}");
    let mut asks = other_user("stat", &dir, "root@x", &[]).unwrap();
    assert!(asks.says().contains("may not see the figures"));
    assert_eq!(counter(&server, "refused_statistics"), 1);
}

#[test]
fn another_user_connects_through_a_group_and_only_through_it() {
    let dir = Dir::new("groups");
    let server = start(&dir.config());
    if is_root() {
        setup_shared_dir(&dir.config()).unwrap();
        server.serve(&name("x"), Access::Group(777), Accept::Automatic(vec![])).unwrap();
    }
    let Some(mut peer) = other_user("connect", &dir, "root@x", &[777]) else { return };
    assert_eq!(peer.says(), "linked Some(0)");
    assert!(matches!(next(&server), ControlEvent::Connected(_)));
    let mut peer = other_user("connect", &dir, "root@x", &[778]).unwrap();
    assert!(peer.says().ends_with("is not permitted"));
}

#[test]
fn each_end_verifies_the_user_of_the_other() {
    let dir = Dir::new("verify");
    if !is_root() {
        return skipped!("two users need root");
    }
    // A service of the other user's own: root passes the socket's permissions, and is refused.
    std::os::unix::fs::chown(&dir.0, Some(OTHER_USER), None).unwrap();
    let Some(mut peer) = other_user("serve", &dir, "x", &[]) else { return };
    assert_eq!(peer.says(), "serving");
    let fd = stranger(&dir);
    send(&fd, &Frame::Hello(hello_of(Purpose::Link)));
    expect_refusal(&fd, Reason::User);
    // Root's statistics are allowed, though.
    let fd = stranger(&dir);
    send(&fd, &Frame::Hello(hello_of(Purpose::Stat)));
    assert!(matches!(receive(&fd), Some((Frame::StatText { is_last: true, .. }, _))));
    peer.kill();
    // In its own directory, served by another process.
    std::fs::remove_file(dir.0.join("x")).unwrap();
    let listener = socket::bind(&dir.0.join("x")).unwrap();
    let open = std::fs::Permissions::from_mode(0o666);
    std::fs::set_permissions(dir.0.join("x"), open).unwrap();
    socket::listen(&listener).unwrap();
    let mut peer = other_user("connect", &dir, "x", &[]).unwrap();
    let said = peer.says();
    assert!(said.ends_with(&format!("is served by user 0, and should be by user {OTHER_USER}")));
}

#[test]
fn processes_in_separate_namespaces_talk() {
    let all = ["unshare", "--user", "--pid", "--fork", "--kill-child", "--ipc", "--net", "--mount"];
    let mapped: Vec<_> = all.iter().copied().chain(["--map-root-user"]).collect();
    for (what, before) in [("with", mapped), ("without", all.to_vec())] {
        let probe = Command::new(before[0]).args(&before[1..]).arg("true").output();
        if !probe.as_ref().is_ok_and(|out| out.status.success()) {
            skipped!("namespaces {what} a user map: {probe:?}");
            continue;
        }
        let dir = Dir::new(&format!("namespaces-{what}"));
        let mut server = Peer::run(Peer::command("serve", &dir, "x", &before));
        assert_eq!(server.says(), "serving");
        let mut client = Peer::run(Peer::command("connect", &dir, "x", &before));
        let said = client.says();
        let user = if what == "with" { "Some(0)" } else { "None" };
        assert_eq!(said, format!("linked {user}"), "{what}");
        // And with a process outside.
        let outside = start(&dir.config());
        let link = outside.connect(&name("x"), b"", LONG).unwrap();
        server.kill();
        assert_eq!(closed(&outside), LinkEnd::Died);
        drop(link);
        client.kill();
    }
}

#[test]
fn an_unknown_user_is_admitted_as_configured() {
    use hamlyn::config::AdmitUnknown;
    let before = ["unshare", "--user"];
    let probe = Command::new(before[0]).args(&before[1..]).arg("true").output();
    if !probe.as_ref().is_ok_and(|out| out.status.success()) {
        return skipped!("a user namespace without a map: {probe:?}");
    }
    let dir = Dir::new("unknown");
    let token = || AdmitUnknown::Token("open sesame".into());
    // The unknown one is the client of this process, which sees all processes: so the namespace is
    // the server's, and the client's view decides. The server sees no process that it knows.
    for (policy, shown, wanted) in [
        ("never", AdmitUnknown::Permissions, Err(Reason::User)),
        ("permissions", AdmitUnknown::Permissions, Ok(())),
        ("token:open sesame", AdmitUnknown::Permissions, Err(Reason::User)),
        ("token:open sesame", token(), Ok(())),
    ] {
        let mut command = Peer::command("serve", &dir, "x", &before);
        command.env("HAMLYN_ADMIT_UNKNOWN", policy);
        let mut server = Peer::run(command);
        assert_eq!(server.says(), "serving");
        let client = start(&dir.config().admit_unknown(shown));
        match (client.connect(&name("x"), b"", LONG), wanted) {
            (Ok(_), Ok(())) => {}
            (Err(ConnectError::Refused { reason, .. }), Err(wanted)) => assert_eq!(reason, wanted),
            (got, wanted) => panic!("{policy}: {:?}, and not {wanted:?}", got.err()),
        }
        server.kill();
    }
}
