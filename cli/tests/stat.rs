//! `hamlyn stat` and `hamlyn why`: what an operator sees of a process and its links.

use hamlyn::{Accept, Access, Config, MetadataIndex, Node, SlotConfig, Ticket};
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

const LONG: Duration = Duration::from_secs(20);

fn hamlyn(directory: &Path, line: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hamlyn"));
    command.env("HAMLYN_DIR", directory).env("HAMLYN_SHARED_DIR", directory.join("shared"));
    command.args(line.split(' ')).output().unwrap()
}

fn text(directory: &Path, line: &str) -> String {
    let output = hamlyn(directory, line);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{line}: {error}");
    String::from_utf8(output.stdout).unwrap()
}

fn config(directory: &Path) -> Config {
    Config::default().dir(directory).shared_dir(directory.join("shared"))
}

/// A node that serves `watched`, with one link, over which ten messages have come and been taken.
fn watched(directory: &Path) -> (Node, Node, Ticket) {
    let mut server = Node::with_config(config(directory)).unwrap();
    let area = server.message_area(4096).unwrap();
    let queue = server.notification_queue(16).unwrap();
    let slot = server.slot(SlotConfig::new(area, queue).metadata(16)).unwrap();
    let ticket = server.ticket(slot, MetadataIndex(0)).unwrap();
    server.serve("watched", Access::SameUser, Accept::Automatic(vec![])).unwrap();
    let mut client = Node::with_config(config(directory)).unwrap();
    client.connect("watched", b"", LONG).unwrap();
    for _ in 0..10 {
        client.send(&ticket, b"hello", b"", Some(LONG)).unwrap();
        server.recv(queue, Some(LONG)).unwrap();
    }
    // The next finds nothing, and leaves how things stand before it sleeps.
    assert!(server.recv(queue, Some(Duration::from_millis(1))).is_err());
    (server, client, ticket)
}

#[test]
fn each_link_is_told_with_its_peer_its_path_and_what_has_gone_over_it() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let (_server, _client, _) = watched(directory);
    let line = text(directory, "stat watched --json");
    let told: serde_json::Value = serde_json::from_str(&line).unwrap();
    assert_eq!(told["counters"]["packets_received"], 10);
    assert!(told["counters"]["control.links"].as_u64().is_some(), "{line}");
    let links = told["links"].as_array().unwrap();
    assert_eq!(links.len(), 1, "{line}");
    let link = &links[0];
    assert_eq!(link["peer_process"], u64::from(std::process::id()));
    let uid = u64::from(rustix::process::geteuid().as_raw());
    assert_eq!((&link["peer_user"], &link["made_by"]), (&uid.into(), &"the peer".into()));
    assert_eq!((&link["packets_taken"], &link["service"]), (&10.into(), &"watched".into()));
    // Each was one line of 64 bytes.
    assert_eq!(link["ring_bytes_taken"], 640);
    assert!(link["path"].as_str().unwrap().contains("shared-memory ring to process"), "{line}");
    // The same for people.
    let table = text(directory, "stat watched");
    assert!(table.contains("link 1: user") && table.contains("10 packets taken"), "{table}");
}

#[test]
fn prometheus_and_those_who_watch_get_the_same() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let (_server, _client, _) = watched(directory);
    let metrics = text(directory, "stat --prometheus");
    let has = |start: &str, end: &str| {
        metrics.lines().any(|line| line.starts_with(start) && line.ends_with(end))
    };
    assert!(has("hamlyn_packets_received{service=\"watched\"}", " 10"), "{metrics}");
    assert!(
        has("hamlyn_link_ring_bytes_taken{service=\"watched\",link=\"1\"", " 640"),
        "{metrics}"
    );
    assert!(has("# TYPE hamlyn_links", "gauge"), "{metrics}");
    let watched = text(directory, "stat watched --watch=0.01 --times 2");
    assert_eq!(watched.matches("link 1").count(), 2, "{watched}");
    // The first question is the one thing that has gone up between the two.
    assert!(watched.contains("control.statistics +1"), "{watched}");
}

#[test]
fn why_says_what_is_wrong_with_a_name_and_with_a_link() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let said = text(directory, "why nobody");
    assert!(
        said.contains("nothing is called nobody") && said.contains("is there and has"),
        "{said}"
    );
    drop(std::os::unix::net::UnixListener::bind(directory.join("stale")).unwrap());
    let said = text(directory, "why stale");
    assert!(said.contains("nobody listens") && said.contains("names --clean"), "{said}");
    // The server makes no call, and the client goes on sending.
    let (mut server, mut client, ticket) = watched(directory);
    server.poll().unwrap();
    // Until the ring is full and the rest waits; the client waits, too, and its figures are told.
    client.serve("sender", Access::SameUser, Accept::Automatic(vec![])).unwrap();
    let sent = loop {
        match client.send(&ticket, &[7; 200], b"", Some(Duration::from_millis(10))) {
            Ok(()) => {}
            Err(error) => break error.to_string(),
        }
    };
    assert!(sent.contains("start_progress"), "{sent}");
    let said = text(directory, "why sender");
    assert!(said.contains("Link 1") && said.contains("the peer takes nothing"), "{said}");
    let process = format!("process {}", std::process::id());
    assert!(said.contains(&process), "{said}");
}
