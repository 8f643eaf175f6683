//! `hamlyn names`: who serves what, and what dead processes have left.

use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

fn hamlyn(directory: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hamlyn"));
    command.args(arguments).env("HAMLYN_DIR", directory).output().unwrap()
}

fn server(directory: &Path, name: &str) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hamlyn"));
    command.args(["recv", name]).env("HAMLYN_DIR", directory);
    let child = command.stdout(Stdio::piped()).spawn().unwrap();
    let list = || String::from_utf8(hamlyn(directory, &["names"]).stdout).unwrap();
    while !list().lines().any(|line| line.contains(name) && line.contains("alive")) {
        std::thread::sleep(Duration::from_millis(5));
    }
    child
}

#[test]
fn names_tell_who_serves_them_and_stale_ones_are_removed_when_asked() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let output = hamlyn(directory, &["names"]);
    assert!(String::from_utf8(output.stdout).unwrap().starts_with("No service"));
    let mut living = server(directory, "living");
    drop(UnixListener::bind(directory.join("dead")).unwrap());
    std::fs::write(directory.join("file"), "").unwrap();

    let output = String::from_utf8(hamlyn(directory, &["names"]).stdout).unwrap();
    let line = |name: &str| output.lines().find(|line| line.contains(name)).unwrap().to_string();
    assert!(line("dead").contains("stale") && output.contains("--clean"), "{output}");
    let living_line = line("living");
    assert!(living_line.contains("alive") && living_line.contains("hamlyn"), "{output}");
    assert!(living_line.contains(&living.id().to_string()), "{output}");
    let output = hamlyn(directory, &["names", "--json"]);
    let rows: Vec<serde_json::Value> = String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let row = |name: &str| rows.iter().find(|row| row["name"] == name).unwrap();
    assert_eq!((rows.len(), &row("living")["process"]), (2, &living.id().into()));
    assert_eq!((&row("dead")["is_alive"], &row("dead")["process"]), (&false.into(), &().into()));

    assert_eq!(row("living")["is_stopped"], false);
    let pid = rustix::process::Pid::from_child(&living);
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    let stopped = || {
        let output = hamlyn(directory, &["names", "--json"]).stdout;
        String::from_utf8(output).unwrap().contains("\"is_stopped\":true")
    };
    while !stopped() {
        std::thread::sleep(Duration::from_millis(5));
    }
    rustix::process::kill_process(pid, rustix::process::Signal::CONT).unwrap();

    // What is no socket is nobody's service, whatever it is called.
    let why = hamlyn(directory, &["why", "file"]);
    let said = String::from_utf8(why.stdout).unwrap();
    assert!(said.contains("is no socket") && why.status.code() == Some(1), "{said}");

    let output = String::from_utf8(hamlyn(directory, &["names", "--clean"]).stdout).unwrap();
    assert!(output.starts_with("1 stale"), "{output}");
    let exists = |name: &str| directory.join(name).exists();
    assert!(exists("living") && exists("file") && !exists("dead"));
    living.kill().unwrap();
    living.wait().unwrap();
}
