//! Looks at hostile processes: `hamlyn stat`, `top`, `exporter`, `why`.

mod support;

use hamlyn::control::frame::Frame;
use hamlyn::{Accept, Access, Config, Node};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketType};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

fn command(directory: &Path, line: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hamlyn"));
    command.env("HAMLYN_DIR", directory).env("HAMLYN_SHARED_DIR", directory.join("shared"));
    command.args(line.split(' ')).stdin(Stdio::null());
    command
}

fn hamlyn(directory: &Path, line: &str) -> Output {
    command(directory, line).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A listening socket, with room for so many connections that are not accepted.
fn listen(path: &Path, backlog: i32) -> OwnedFd {
    let listener = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
    rustix::net::bind(&listener, &SocketAddrUnix::new(path).unwrap()).unwrap();
    rustix::net::listen(&listener, backlog).unwrap();
    listener
}

/// Answers each question with the same text, in a thread; how often it was asked.
fn answer(listener: OwnedFd, text: Vec<u8>) -> Arc<AtomicUsize> {
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = asked.clone();
    std::thread::spawn(move || {
        while let Ok(socket) = rustix::net::accept(&listener) {
            // A search for names connects, and asks nothing.
            let mut question = [0; 1024];
            if !rustix::net::recv(&socket, &mut question, RecvFlags::empty()).is_ok_and(|n| n.0 > 0)
            {
                continue;
            }
            counted.fetch_add(1, Ordering::SeqCst);
            let mut pieces = text.chunks(8 << 10).peekable();
            while let Some(piece) = pieces.next() {
                let frame =
                    Frame::StatText { text: piece.to_vec(), is_last: pieces.peek().is_none() };
                if rustix::net::send(&socket, &frame.to_bytes(), SendFlags::NOSIGNAL).is_err() {
                    break;
                }
            }
        }
    });
    asked
}

/// As many links as fit into `bytes`.
fn invented_links(bytes: usize) -> Vec<u8> {
    let line = |i| format!("link.{i}.messages_sent 1\n").into_bytes();
    let mut text: Vec<u8> = (0..)
        .map(line)
        .take_while({
            let mut all = 0;
            move |line| {
                all += line.len();
                all < bytes
            }
        })
        .flatten()
        .collect();
    text.extend(b"node 1\n");
    text
}

/// Rows of a metric.
fn rows(metrics: &str, name: &str) -> usize {
    metrics.lines().filter(|line| line.starts_with(&format!("{name}{{"))).count()
}

const LINKS: &str = "hamlyn_link_messages_sent_total";

#[test]
fn one_socket_with_many_names_is_asked_once_and_its_links_are_told_once() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let first = directory.join("n0");
    let asked = answer(listen(&first, 128), invented_links(1_000_000));
    (1..40).for_each(|i| std::fs::hard_link(&first, directory.join(format!("n{i}"))).unwrap());
    let output = hamlyn(directory, "stat --prometheus");
    let metrics = text(&output.stdout);
    assert_eq!(asked.load(Ordering::SeqCst), 1, "{}", text(&output.stderr));
    for i in 0..40 {
        assert!(metrics.contains(&format!("hamlyn_up{{service=\"n{i}\"}} 1\n")), "n{i}");
    }
    let links = rows(&metrics, LINKS);
    assert!((1..=2048).contains(&links), "{links} links");
    assert!(
        text(&output.stderr).contains("lines of the answers, or more, were left out"),
        "{output:?}"
    );
    let again = hamlyn(directory, "stat");
    assert!(text(&again.stdout).contains("n39: the process of n0.\n"));
}

/// A process of its own with services in a directory, as another test wants it.
struct Liar(Child);

impl Drop for Liar {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts this program as a process that serves `names`, and waits until it does.
fn liar(program: &Path, directory: &Path, names: &str, kind: &str, user: Option<u32>) -> Liar {
    let mut command = Command::new(program);
    command.args(["--exact", "another_process_that_other_tests_start", "--nocapture"]);
    command.env("LIAR_DIRECTORY", directory).env("LIAR_NAMES", names).env("LIAR_KIND", kind);
    command.current_dir(directory).stdout(Stdio::piped());
    if let Some(user) = user {
        command.uid(user).gid(user);
    }
    let mut liar = Liar(command.spawn().unwrap());
    let lines = BufReader::new(liar.0.stdout.take().unwrap()).lines();
    assert!(lines.map_while(Result::ok).any(|line| line.contains("the liar serves")), "it ended");
    liar
}

#[test]
fn another_process_that_other_tests_start() {
    let Some(directory) = std::env::var_os("LIAR_DIRECTORY").map(PathBuf::from) else { return };
    let names = std::env::var("LIAR_NAMES").unwrap();
    let is_silent = std::env::var("LIAR_KIND").unwrap() == "silent";
    let mut silent = Vec::new();
    for name in names.split(' ') {
        let path = directory.join(name);
        if is_silent {
            silent.push(listen(&path, 0));
            // A queue that is full does not say whose it is.
            let kind = SocketType::SEQPACKET;
            let filling = rustix::net::socket(AddressFamily::UNIX, kind, None).unwrap();
            rustix::net::connect(&filling, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        } else {
            answer(listen(&path, 128), invented_links(4_000_000));
        }
    }
    println!("the liar serves");
    // Until its parent ends it, or is gone.
    let parent = rustix::process::getppid();
    while rustix::process::getppid() == parent {
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn answers_of_many_processes_share_one_budget_of_memory_and_of_rows() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let program = std::env::current_exe().unwrap();
    let start = |i| liar(&program, directory, &format!("n{i}"), "links", None);
    let _liars: Vec<Liar> = (0..8).map(start).collect();
    let mut exporter = command(directory, "exporter --listen 127.0.0.1:0");
    let mut exporter = Liar(exporter.stdout(Stdio::piped()).spawn().unwrap());
    let mut line = String::new();
    BufReader::new(exporter.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.split("http://").nth(1).unwrap().split('/').next().unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut metrics = String::new();
    stream.read_to_string(&mut metrics).unwrap();
    let links = rows(&metrics, LINKS);
    assert!((1..=2048).contains(&links), "{links} links");
    // Each is there, if only with its name.
    let there = (0..8).filter(|i| metrics.contains(&format!("{{service=\"n{i}\"}}"))).count();
    assert_eq!(there, 8);
    let left_out = "hamlyn_look_left_out{what=\"lines\",user=\"\"} ";
    let left_out = metrics.lines().find_map(|line| line.strip_prefix(left_out)).unwrap();
    assert!(left_out.parse::<u64>().unwrap() >= 1000, "{left_out}");
    let status = std::fs::read_to_string(format!("/proc/{}/status", exporter.0.id())).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let peak: u64 = peak.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(peak < 300 << 10, "{peak} KiB resident");
}

#[test]
fn silent_names_hold_up_no_look_and_hide_no_service_of_another_user() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    std::fs::set_permissions(directory, PermissionsExt::from_mode(0o755)).unwrap();
    let names: Vec<String> = (0..600).map(|i| format!("s{i}")).collect();
    let is_root = rustix::process::geteuid().is_root();
    let (place, program, user) = match is_root {
        true => {
            assert!(hamlyn(directory, "setup 1").status.success());
            let program = directory.join("liar");
            std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
            (directory.join("shared/1"), program, Some(1))
        }
        false => {
            support::skipped(
                "only root can run a process of another user: its services are this user's",
            );
            (directory.to_path_buf(), std::env::current_exe().unwrap(), None)
        }
    };
    if let Some(user) = user {
        chown(&place, Some(user), Some(user)).unwrap();
    }
    let _silent = liar(&program, &place, &names.join(" "), "silent", user);
    let config = Config::default().dir(directory).shared_dir(directory.join("shared"));
    let mut honest = Node::with_config(config).unwrap();
    honest.serve("honest", Access::SameUser, Accept::Automatic(vec![])).unwrap();
    let began = Instant::now();
    let output = hamlyn(directory, "stat");
    // One after the other they would take 50 s.
    let took = began.elapsed();
    assert!(took < Duration::from_secs(30), "{took:?}");
    let error = text(&output.stderr);
    assert!(error.contains("were not asked") && error.contains("has not answered"), "{error}");
    if is_root {
        let out = text(&output.stdout);
        assert!(out.contains("honest: process"), "{out}{error}");
        assert!(error.contains("names of user 1 were not asked"), "{error}");
    }
}

#[test]
fn a_long_name_and_a_long_value_make_no_row_of_another_figure_longer() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let long = "x".repeat(80_000);
    let counters: String = (0..600).map(|i| format!("a{i} 1\nlink.{i}.peer_user 1\n")).collect();
    let links =
        format!("link.1.peer_process {long}\nlink.1.peer_host {long}\nlink.1.service {long}\n");
    let refusal = format!("refusal.1.reason {long}\nrefusal.1.service {long}\n");
    let answers = format!("{counters}long {long}\n{long} 1\nversion {long}\n{links}{refusal}");
    let _asked = answer(listen(&directory.join("x"), 128), answers.into_bytes());
    for line in [
        "stat x --all",
        "stat x --json",
        "stat x --prometheus",
        "stat x --watch=0.2 --times 1",
        "top x --once --interval 0.2",
        "top x --once --interval 0.2 --links",
        "why x",
    ] {
        let output = hamlyn(directory, line);
        assert!(output.status.success(), "{line}: {}", text(&output.stderr));
        let bytes = output.stdout.len();
        assert!((200..2_000_000).contains(&bytes), "{line}: {bytes} bytes");
        assert!(!text(&output.stdout).contains(&"x".repeat(600)), "{line}");
    }
}
