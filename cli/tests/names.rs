//! `hamlyn names`: the services with their processes, and the names left by dead processes.

mod support;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, bind, connect, listen, socket};
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

    // A file that is no socket is no service, with any name.
    let why = hamlyn(directory, &["why", "file"]);
    let said = String::from_utf8(why.stdout).unwrap();
    assert!(said.contains("is no socket") && why.status.code() == Some(1), "{said}");

    let output = String::from_utf8(hamlyn(directory, &["names", "--clean"]).stdout).unwrap();
    assert!(output.starts_with("1 stale name removed."), "{output}");
    let exists = |name: &str| directory.join(name).exists();
    assert!(exists("living") && exists("file") && !exists("dead"));
    living.kill().unwrap();
    living.wait().unwrap();
}

#[test]
fn one_name_that_is_served_to_its_user_and_to_others_is_two_services_everywhere() {
    let (own, shared) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let user = rustix::process::geteuid().as_raw();
    if user != 0 {
        return support::skipped("the shared directory must be root's");
    }
    let command = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_hamlyn"));
        command.args(arguments).env("HAMLYN_DIR", own.path());
        command.env("HAMLYN_SHARED_DIR", shared.path()).stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    };
    let said = |arguments: &[&str]| {
        let output = command(arguments).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let mut to_others = command(&["recv", "report", "--allow", "anyone"]).spawn().unwrap();
    while !said(&["names"]).contains("report") {}
    // As long as there is one, it has the short name.
    assert!(said(&["stat", "--json"]).contains("\"name\":\"report\""));
    let mut to_itself = command(&["recv", "report"]).spawn().unwrap();
    while said(&["names"]).matches("report").count() < 2 {}
    let by_user = format!("{user}@report");
    for (name, process) in [("report", to_itself.id()), (&by_user, to_others.id())] {
        let why = said(&["why", name]);
        assert!(why.contains(&format!("by process {process} ")), "{name}: {why}");
        let stat = said(&["stat", name, "--json"]);
        assert!(stat.contains(&format!("\"process\":{process},")), "{name}: {stat}");
    }
    let all = said(&["stat", "--json"]);
    assert_eq!(all.lines().count(), 2, "{all}");
    // Sending by the name that others use reaches the service that others reach.
    said(&["send", &by_user]);
    assert!(to_others.wait().unwrap().success() && to_itself.try_wait().unwrap().is_none());
    to_itself.kill().unwrap();
    to_itself.wait().unwrap();
}

// Every user that may connect can fill it. The kernel names the listening process only for a
// connection.
#[test]
fn a_name_whose_queue_is_full_is_not_taken_for_that_of_a_process_of_another_namespace() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let address = SocketAddrUnix::new(directory.join("full")).unwrap();
    let socket = || socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
    let (listener, one) = (socket(), socket());
    bind(&listener, &address).unwrap();
    listen(&listener, 0).unwrap();
    connect(&one, &address).unwrap();

    let output = hamlyn(directory, &["names"]).stdout;
    let output = String::from_utf8(output).unwrap();
    assert!(output.contains("alive, queue full"), "{output}");
    let output = hamlyn(directory, &["names", "--json"]).stdout;
    let row: serde_json::Value = serde_json::from_slice(&output).unwrap();
    let of_row = (&row["is_alive"], &row["is_full"], &row["process"]);
    assert_eq!(of_row, (&true.into(), &true.into(), &().into()));

    let output = String::from_utf8(hamlyn(directory, &["why", "full"]).stdout).unwrap();
    assert!(output.contains("its queue of connections is full at this moment"), "{output}");
    assert!(!output.contains("namespace"), "{output}");
    drop((listener, one));
}
