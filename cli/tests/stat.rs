//! `hamlyn stat`, `top`, `exporter` and `why`: an operator's view of a process and its links.

mod support;

use hamlyn::control::stat_of;
use hamlyn::protocol::{ByteConfig, ByteListener, ByteStream};
use hamlyn::protocol::{Client, Manager, Server, ServerConfig};
use hamlyn::protocol::{PublishConfig, Publisher, SubscribeConfig, Subscriber, WhenSlow};
use hamlyn::protocol::{StreamConfig, StreamReceiver, StreamSender};
use hamlyn::{Accept, Access, Config, MetadataIndex, Node, SlotConfig, Ticket};
use std::fs::Permissions;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(20);

/// The command, in this directory.
fn command(directory: &Path, line: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hamlyn"));
    command.env("HAMLYN_DIR", directory).env("HAMLYN_SHARED_DIR", directory.join("shared"));
    command.args(line.split(' '));
    command
}

fn hamlyn(directory: &Path, line: &str) -> Output {
    command(directory, line).output().unwrap()
}

/// A process of the command that serves this name, without a word.
fn serve(directory: &Path, name: &str) -> Running {
    let mut command = command(directory, &format!("recv {name}"));
    let running = Running(command.stdout(Stdio::null()).spawn().unwrap());
    let start = Instant::now();
    while !hamlyn(directory, &format!("stat {name}")).status.success() {
        assert!(start.elapsed() < LONG, "{name} does not serve");
    }
    running
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
    client.connect("watched", b"", Some(LONG)).unwrap();
    for _ in 0..10 {
        client.send(&ticket, b"hello", b"", Some(LONG)).unwrap();
        server.recv(queue, Some(LONG)).unwrap();
    }
    // The next finds nothing, and leaves how things stand before it sleeps, which on a busy machine
    // may be later than its time limit.
    let slept = || stat_of(&config(directory), &"watched".parse().unwrap(), Some(LONG)).unwrap();
    while !slept().contains("waits 1\n") {
        assert!(server.recv(queue, Some(Duration::from_millis(20))).is_err());
    }
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
    assert!(link["peer_program"].as_str().unwrap().starts_with("stat"), "{line}");
    assert_eq!((&link["peer_user"], &link["made_by"]), (&uid.into(), &"the peer".into()));
    assert_eq!((&link["packets_taken"], &link["service"]), (&10.into(), &"watched".into()));
    // Each was one line of 64 bytes.
    assert_eq!(link["ring_bytes_taken"], 640);
    assert!(link["path"].as_str().unwrap().contains("shared-memory ring to process"), "{line}");
    assert_eq!((&link["packets_refused"], &link["waits_for_room_ms"]), (&0.into(), &0.into()));
    assert!(link["age_ms"].as_u64().unwrap() > 0, "{line}");
    // The serving process comes from the kernel, its start time from the process itself.
    assert_eq!((&told["process"], &told["user"]), (&link["peer_process"], &uid.into()));
    assert!(told["program"].as_str().unwrap().starts_with("stat"), "{line}");
    assert!(told["counters"]["uptime_ms"].as_u64().unwrap() > 0, "{line}");
    // The same for people.
    let table = text(directory, "stat watched");
    assert!(!table.contains("taken"), "{table}");
    assert!(table.contains("link 1: user") && table.contains("10 packets received"), "{table}");
    let process = format!("watched: process {} (stat", std::process::id());
    assert!(table.starts_with(&process) && table.contains("its program has waited"), "{table}");
    // Links stand before the counters, of which those that are 0 are left out.
    assert!(table.find("link 1").unwrap() < table.find("packets_received").unwrap(), "{table}");
    assert!(!table.contains("refused_wrong_key") && table.contains("--all"), "{table}");
    assert!(text(directory, "stat watched --all").contains("refused_wrong_key"));
}

fn json(directory: &Path, name: &str) -> serde_json::Value {
    serde_json::from_str(&text(directory, &format!("stat {name} --json"))).unwrap()
}

#[test]
fn who_was_refused_last_is_told_and_whether_the_program_or_a_limit_said_no() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let manager = Manager::with_config(config(directory)).unwrap();
    let one = ServerConfig { clients_max: 1, ..ServerConfig::default() };
    let server = Server::new(&manager, one).unwrap();
    server.serve("orders", Access::SameUser).unwrap();
    manager.start_progress().unwrap();
    let others = Manager::with_config(config(directory)).unwrap();
    let client = Client::connect(&others, "orders", Some(LONG)).unwrap();
    let refused = || Client::connect(&others, "orders", Some(LONG)).err().unwrap().to_string();
    let error = refused();
    assert!(error.contains("it has 1 client, as many as it may (clients_max)"), "{error}");
    let said = text(directory, "why orders");
    assert!(said.contains("Since it started 1 was refused: an end point had no place"), "{said}");
    assert!(said.contains("clients_max") && !said.contains("the program itself"), "{said}");
    let user = rustix::process::geteuid().as_raw();
    let who = format!("ago, user {user}, process {} (stat", std::process::id());
    assert!(said.contains(&who) && said.contains("as many as it may (clients_max)."), "{said}");
    refused();
    let told = json(directory, "orders");
    let counted = |told: &serde_json::Value, name: &str| told["counters"][name].as_u64().unwrap();
    assert_eq!(counted(&told, "control.refused_places"), 2);
    assert_eq!(counted(&told, "control.refused_application"), 0);
    let refusals = told["refusals"].as_array().unwrap();
    assert_eq!(refusals.len(), 1, "{told}");
    assert_eq!((&refusals[0]["count"], &refusals[0]["user"]), (&2.into(), &user.into()));
    assert_eq!(refusals[0]["process"], std::process::id());
    assert_eq!(refusals[0]["service"], "orders");
    drop(client);
    // A client that wants another protocol, and one that the program refuses.
    assert!(StreamSender::connect(&others, "orders", Some(LONG)).is_err());
    server.set_admission(|_| Err("not on the list".into()));
    assert!(refused().contains("not on the list"));
    let told = json(directory, "orders");
    assert_eq!(counted(&told, "control.refused_places"), 2);
    assert_eq!(counted(&told, "control.refused_end_point"), 1);
    assert_eq!(counted(&told, "control.refused_application"), 1);
    let shown = text(directory, "stat orders");
    let lines: Vec<&str> = shown.lines().skip_while(|line| *line != "Refused last:").collect();
    assert!(lines[1].ends_with("service orders: not on the list"), "{shown}");
    assert!(lines[2].contains("the receiver is of kind"), "{shown}");
    assert!(lines[3].contains("(clients_max); 2 times since"), "{shown}");
}

#[test]
fn requests_that_wait_for_a_reply_are_counted_and_said_to_be_slow() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let manager = Manager::with_config(config(directory)).unwrap();
    let server = Server::new(&manager, ServerConfig::default()).unwrap();
    server.serve("slow", Access::SameUser).unwrap();
    manager.start_progress().unwrap();
    let others = Manager::with_config(config(directory)).unwrap();
    let client = Client::connect(&others, "slow", Some(LONG)).unwrap();
    assert_eq!(json(directory, "slow")["counters"]["requests_held"], 0);
    let calls: Vec<_> =
        (0..8).map(|_| client.start(b"take your time", Some(LONG)).unwrap()).collect();
    let requests: Vec<_> = calls.iter().map(|_| server.receive(Some(LONG)).unwrap()).collect();
    let told = json(directory, "slow");
    assert_eq!(told["counters"]["requests_held"], 8, "{told}");
    assert_eq!(told["links"][0]["requests_held"], 8, "{told}");
    assert!(text(directory, "stat slow").contains("8 requests received and not replied to"));
    // Nothing comes between the two looks, so that each of them is older than the pause.
    let said = text(directory, "why slow");
    assert!(said.contains("8 requests are received and not replied to"), "{said}");
    assert!(said.contains("nothing has come for"), "{said}");
    // And whose they are, in each text.
    let user = rustix::process::geteuid().as_raw();
    let client = format!("Link 1 (user {user}, process {} (stat", std::process::id());
    let line = said.lines().find(|line| line.starts_with(&client)).expect(&said);
    assert!(line.contains("8 requests of this client's are received and not replied to"), "{said}");
    for line in ["stat slow", "top slow --once --links --interval 0.2"] {
        let shown = text(directory, line);
        let words = "8 requests of the peer's are received and not replied to, for";
        assert!(
            shown.contains(words) && shown.contains(&*std::process::id().to_string()),
            "{shown}"
        );
    }
    let shown = text(directory, "stat slow --watch=0.2 --times 1");
    assert!(shown.contains("8 requests of the peer's are received"), "{shown}");
    let told = json(directory, "slow");
    assert!(told["counters"]["requests_held_ms"].as_u64().unwrap() >= 1000, "{told}");
    requests.into_iter().for_each(|request| request.reply(b"done", Some(LONG)).unwrap());
    let told = json(directory, "slow");
    assert_eq!(told["counters"]["requests_held"], 0, "{told}");
    assert_eq!(told["counters"]["requests_held_ms"], 0, "{told}");
}

#[test]
fn a_receiver_that_keeps_its_records_is_named_at_both_ends() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let manager = Manager::with_config(config(directory)).unwrap();
    let few = StreamConfig { buffers: 2, buffers_max: 4, ..StreamConfig::default() };
    let mut receiver = StreamReceiver::new(&manager, few).unwrap();
    receiver.serve("kept", Access::SameUser).unwrap();
    manager.start_progress().unwrap();
    let others = Manager::with_config(config(directory)).unwrap();
    // So that it can be asked, too.
    let server = Server::new(&others, ServerConfig::default()).unwrap();
    server.serve("sends", Access::SameUser).unwrap();
    others.start_progress().unwrap();
    let mut sender = StreamSender::connect(&others, "kept", Some(LONG)).unwrap();
    let record = vec![7; 60 << 10];
    let mut kept = Vec::new();
    for _ in 0..4 {
        sender.send(&record, Some(LONG)).unwrap();
        kept.push(receiver.receive(Some(LONG)).unwrap().keep());
    }
    let held = |told: &serde_json::Value, name: &str| told["links"][0][name].as_u64().unwrap();
    let told = json(directory, "kept");
    assert_eq!((held(&told, "buffers_held"), held(&told, "buffers_max")), (4, 4), "{told}");
    let stops = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| {
            while !stops.load(Ordering::Relaxed) {
                match sender.send(&record, Some(Duration::from_secs(3600))) {
                    Ok(()) => {}
                    Err(error) => panic!("{error}"),
                }
            }
        });
        // A receiver that asks for more, and gets none, since it has released nothing.
        assert!(receiver.try_receive().unwrap().is_none());
        let start = Instant::now();
        while held(&json(directory, "sends"), "waits_for_buffer_ms") == 0 {
            assert!(start.elapsed() < LONG, "the sender does not wait");
        }
        let said = text(directory, "why kept");
        assert!(said.contains("4 buffers hold records that this process has received"), "{said}");
        assert!(said.contains("4 may be there (buffers_max)"), "{said}");
        let said = text(directory, "why sends");
        assert!(
            said.contains("a sender here has found no buffer of the peer's free for"),
            "{said}"
        );
        let shown = text(directory, "stat kept");
        assert!(shown.contains("its program holds 4 of 4 buffers, for"), "{shown}");
        let shown = text(directory, "stat sends");
        assert!(shown.contains("has waited for a buffer of the peer's for"), "{shown}");
        // Once they are released neither end says so.
        stops.store(true, Ordering::Relaxed);
        receiver.release(kept.last().unwrap()).unwrap();
        waits.join().unwrap();
    });
    let told = json(directory, "kept");
    assert!(held(&told, "buffers_held") <= 1 && held(&told, "buffers_held_ms") == 0, "{told}");
    assert_eq!(held(&json(directory, "sends"), "waits_for_buffer_ms"), 0);
    assert!(!text(directory, "why kept").contains("buffers_max"));
    assert!(!text(directory, "why sends").contains("no buffer of the peer's"));
}

/// A publisher that can be asked, with a subscriber that can, too.
fn published(
    directory: &Path,
    config_of: PublishConfig,
    subscribes: SubscribeConfig,
) -> (Manager, Publisher, Manager, Server, Subscriber) {
    published_after(directory, config_of, 0, subscribes)
}

/// The same, after so many samples were published.
fn published_after(
    directory: &Path,
    config_of: PublishConfig,
    samples: usize,
    subscribes: SubscribeConfig,
) -> (Manager, Publisher, Manager, Server, Subscriber) {
    let manager = Manager::with_config(config(directory)).unwrap();
    let publisher = Publisher::new(&manager, config_of).unwrap();
    for _ in 0..samples {
        publisher.publish(b"old", Some(LONG)).unwrap();
    }
    publisher.serve("news", Access::SameUser).unwrap();
    manager.start_progress().unwrap();
    let others = Manager::with_config(config(directory)).unwrap();
    let server = Server::new(&others, ServerConfig::default()).unwrap();
    server.serve("reads", Access::SameUser).unwrap();
    others.start_progress().unwrap();
    let subscriber = Subscriber::connect(&others, "news", subscribes, Some(LONG)).unwrap();
    let start = Instant::now();
    while !publisher.subscribers().first().is_some_and(|subscriber| subscriber.is_served) {
        assert!(start.elapsed() < LONG, "the subscriber is not served");
    }
    (manager, publisher, others, server, subscriber)
}

fn of_link(directory: &Path, name: &str, figure: &str) -> u64 {
    let told = json(directory, name);
    told["links"][0][figure].as_u64().unwrap_or_else(|| panic!("no {figure}: {told}"))
}

/// Until the link of a service says so.
fn until_link(directory: &Path, name: &str, figure: &str, is_so: impl Fn(u64) -> bool) {
    let start = Instant::now();
    while !is_so(of_link(directory, name, figure)) {
        assert!(start.elapsed() < LONG, "{figure} of {name}: {}", json(directory, name));
    }
}

#[test]
fn a_subscriber_that_keeps_its_samples_is_named_at_both_ends() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let when_slow = WhenSlow::Wait;
    let pool = PublishConfig {
        sample_bytes_max: 4096,
        short_bytes_max: 64,
        outstanding_max: 2,
        when_slow,
        ..PublishConfig::default()
    };
    let (_manager, publisher, _others, _server, mut subscriber) =
        published(directory, pool, SubscribeConfig::default());
    let mut kept = Vec::new();
    for _ in 0..2 {
        publisher.publish(&[7; 4096], Some(LONG)).unwrap();
        kept.push(subscriber.receive(Some(LONG)).unwrap());
    }
    assert_eq!(
        (of_link(directory, "reads", "samples_held"), of_link(directory, "reads", "samples_max")),
        (2, 2)
    );
    assert_eq!(of_link(directory, "news", "waits_for_buffer_ms"), 0, "nobody waits yet");
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| publisher.publish(&[8; 4096], None).unwrap());
        until_link(directory, "news", "waits_for_buffer_ms", |ms| ms > 0);
        let said = text(directory, "why reads");
        assert!(
            said.contains("2 of 2 samples of the peer's pool are with this process's program"),
            "{said}"
        );
        let said = text(directory, "why news");
        assert!(
            said.contains("a sender here has found no buffer of the peer's free for"),
            "{said}"
        );
        let shown = text(directory, "stat reads");
        assert!(shown.contains("its program holds 2 of 2 samples of the pool, for"), "{shown}");
        assert!(text(directory, "stat news").contains("has waited for a buffer of the peer's for"));
        let metrics = text(directory, "stat reads --prometheus");
        let row = metrics.lines().find(|line| line.contains("samples_held{")).unwrap();
        assert!(row.ends_with(" 2"), "{row}");
        kept.clear();
        waits.join().unwrap();
    });
    until_link(directory, "news", "waits_for_buffer_ms", |ms| ms == 0);
    assert_eq!(of_link(directory, "reads", "samples_held"), 0);
    assert!(!text(directory, "why reads").contains("samples of the peer's pool"));
    assert!(!text(directory, "why news").contains("no buffer of the peer's"));
}

/// Ends what goes on meanwhile, however it is left.
struct Stops<'a>(&'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn samples_that_a_slow_subscriber_was_not_sent_are_counted_and_stay_counted() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let drops = PublishConfig { when_slow: WhenSlow::DropNewest, ..PublishConfig::default() };
    let few = SubscribeConfig { depth: 4, ..SubscribeConfig::default() };
    let (_manager, publisher, _others, _server, subscriber) = published(directory, drops, few);
    for _ in 0..20 {
        publisher.publish(b"news", Some(LONG)).unwrap();
    }
    until_link(directory, "news", "samples_dropped", |dropped| dropped == 16);
    let told = json(directory, "news");
    assert_eq!(told["counters"]["samples_dropped"], 16, "{told}");
    let said = text(directory, "why news");
    assert!(said.contains("16 samples were not sent to it, 0 within this second"), "{said}");
    let metrics = text(directory, "stat news --prometheus");
    let row = metrics.lines().find(|line| line.contains("link_samples_dropped_total{")).unwrap();
    assert!(row.ends_with(" 16"), "{row}");
    drop(subscriber);
    let start = Instant::now();
    while json(directory, "news")["links"] != serde_json::json!([]) {
        assert!(start.elapsed() < LONG, "its link has not ended");
        let _ = publisher.try_publish(b"more");
    }
    let dropped = json(directory, "news")["counters"]["samples_dropped"].as_u64().unwrap();
    assert!(dropped >= 16, "{dropped}");
}

/// It takes each record at once, and is at it for a while.
#[test]
fn a_stream_s_receiver_that_is_slower_than_its_sender_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let manager = Manager::with_config(config(directory)).unwrap();
    let few = StreamConfig { buffers: 4, buffers_max: 8, ..StreamConfig::default() };
    let mut receiver = StreamReceiver::new(&manager, few).unwrap();
    receiver.serve("slow", Access::SameUser).unwrap();
    manager.start_progress().unwrap();
    let others = Manager::with_config(config(directory)).unwrap();
    let mut sender = StreamSender::connect(&others, "slow", Some(LONG)).unwrap();
    let stops = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stops = Stops(&stops);
        scope.spawn(|| {
            let record = vec![7; 60 << 10];
            while !stops.load(Ordering::Relaxed) {
                let _ = sender.send(&record, Some(Duration::from_millis(50)));
            }
        });
        scope.spawn(|| {
            while !stops.load(Ordering::Relaxed) {
                drop(receiver.receive(Some(LONG)).unwrap());
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        until_link(directory, "slow", "messages_short", |short| short == 1);
        let start = Instant::now();
        let said = loop {
            let said = text(directory, "why slow");
            if said.contains("receives more slowly than the peer sends") {
                break said;
            }
            assert!(start.elapsed() < LONG, "{said}");
        };
        assert!(said.contains("4 are the most (buffers)"), "{said}");
    });
}

/// As Python's calls wait, so that Ctrl-C is heard meanwhile.
#[test]
fn whoever_waits_for_messages_in_pieces_has_waited_all_the_while() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let (mut server, mut client, ticket) = watched(directory);
    let queue = server.notification_queue(1).unwrap();
    let stops = AtomicBool::new(false);
    let waited = || json(directory, "watched")["counters"]["waiting_ms"].as_u64().unwrap();
    let took = {
        let began = Instant::now();
        waited();
        began.elapsed().as_millis() as u64
    };
    std::thread::scope(|scope| {
        let _stops = Stops(&stops);
        scope.spawn(|| {
            while !stops.load(Ordering::Relaxed) {
                let _ = server.recv(queue, Some(Duration::from_millis(10)));
            }
        });
        let began = Instant::now();
        let mut before = 0;
        while before < 300 + 10 * took {
            before = waited();
            assert!(began.elapsed() < LONG, "it has waited for {before} ms");
        }
        // Any arrival ends the wait: then it has not gone on since before.
        let after = Instant::now();
        client.send(&ticket, b"hello", b"", Some(LONG)).unwrap();
        loop {
            let since = after.elapsed().as_millis() as u64;
            let now = waited();
            if now + 2 < before + since {
                break;
            }
            assert!(after.elapsed() < LONG, "it has waited for {before} ms, and then for {now}");
        }
    });
}

/// It looks for what has come now and then, and is at other things for most of the time.
#[test]
fn whoever_does_something_else_in_between_has_not_waited_all_the_while() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let (mut server, _client, _) = watched(directory);
    let queue = server.notification_queue(1).unwrap();
    let start = Instant::now();
    for _ in 0..4 {
        assert!(server.recv(queue, Some(Duration::from_millis(5))).is_err());
        std::thread::sleep(Duration::from_millis(150));
    }
    let ms = json(directory, "watched")["counters"]["waiting_ms"].as_u64().unwrap();
    assert!(ms + 300 < start.elapsed().as_millis() as u64, "{ms}");
}

/// As Python's calls wait, so that Ctrl-C is heard meanwhile.
#[test]
fn whoever_waits_in_pieces_has_waited_all_the_while() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let short = PublishConfig { when_slow: WhenSlow::Wait, ..PublishConfig::default() };
    let few = SubscribeConfig { depth: 4, ..SubscribeConfig::default() };
    let (_manager, publisher, _others, _server, mut subscriber) = published(directory, short, few);
    while publisher.try_publish(b"news").unwrap().is_some() {}
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| {
            let (piece, end) = (Some(Duration::from_millis(10)), Instant::now() + 2 * LONG);
            while publisher.publish(b"more", piece).is_err() {
                assert!(Instant::now() < end, "there is no room");
            }
        });
        until_link(directory, "news", "waits_for_buffer_ms", |ms| ms > 300);
        drop(subscriber.receive(Some(LONG)).unwrap());
        waits.join().unwrap();
    });
}

/// It waited for the last of what it came too late for, and got it.
#[test]
fn nobody_is_said_to_wait_for_a_subscriber_that_has_all_and_has_no_room_for_more() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let kept = PublishConfig { when_slow: WhenSlow::Wait, history: 5, ..PublishConfig::default() };
    let few = SubscribeConfig { depth: 4, history: 5, ..SubscribeConfig::default() };
    let (_manager, publisher, _others, _server, mut subscriber) =
        published_after(directory, kept, 5, few);
    until_link(directory, "reads", "places_held", |held| held == 4);
    until_link(directory, "news", "waits_for_buffer_ms", |ms| ms > 0);
    drop(subscriber.receive(Some(LONG)).unwrap());
    until_link(directory, "reads", "places_held", |held| held == 4);
    until_link(directory, "news", "waits_for_buffer_ms", |ms| ms == 0);
    assert_eq!(publisher.subscribers()[0].behind, 0);
}

/// Its program tried to publish, was told that there is no room, and published when there was.
#[test]
fn nobody_is_said_to_wait_for_whom_a_sample_was_tried_that_has_left_since() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let short = PublishConfig { when_slow: WhenSlow::Wait, ..PublishConfig::default() };
    let few = SubscribeConfig { depth: 4, ..SubscribeConfig::default() };
    let (_manager, publisher, _others, _server, mut subscriber) = published(directory, short, few);
    while publisher.try_publish(b"news").unwrap().is_some() {}
    until_link(directory, "news", "waits_for_buffer_ms", |ms| ms > 0);
    drop(subscriber.receive(Some(LONG)).unwrap());
    let end = Instant::now() + LONG;
    while publisher.try_publish(b"more").unwrap().is_none() {
        assert!(Instant::now() < end, "there is no room for what was taken");
    }
    // It is full again, and no thread wants to publish.
    until_link(directory, "reads", "places_held", |held| held == 4);
    until_link(directory, "news", "waits_for_buffer_ms", |ms| ms == 0);
    publisher.flush(Some(LONG)).unwrap();
    until_link(directory, "news", "waits_for_buffer_ms", |ms| ms == 0);
}

#[test]
fn a_subscriber_that_receives_nothing_is_named_at_both_ends() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let short = PublishConfig { when_slow: WhenSlow::Wait, ..PublishConfig::default() };
    let few = SubscribeConfig { depth: 4, ..SubscribeConfig::default() };
    let (_manager, publisher, _others, _server, mut subscriber) = published(directory, short, few);
    for _ in 0..4 {
        publisher.publish(b"news", Some(LONG)).unwrap();
    }
    until_link(directory, "reads", "places_held", |held| held == 4);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| publisher.publish(b"more", None).unwrap());
        until_link(directory, "news", "waits_for_buffer_ms", |ms| ms > 0);
        let said = text(directory, "why reads");
        assert!(said.contains("4 samples have come from the peer, of which this process's program has received none"), "{said}");
        let shown = text(directory, "stat reads");
        assert!(shown.contains("its program has not received 4 samples, for"), "{shown}");
        (0..5).for_each(|_| drop(subscriber.receive(Some(LONG)).unwrap()));
        waits.join().unwrap();
    });
    until_link(directory, "news", "waits_for_buffer_ms", |ms| ms == 0);
    assert_eq!(of_link(directory, "reads", "places_held"), 0);
}

#[test]
fn a_byte_stream_that_is_not_read_is_named_at_both_ends() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let manager = Manager::with_config(config(directory)).unwrap();
    let small = ByteConfig { window_bytes: 16 << 10, ..ByteConfig::default() };
    let listener = ByteListener::new(&manager, small).unwrap();
    listener.serve("bytes", Access::SameUser).unwrap();
    manager.start_progress().unwrap();
    let others = Manager::with_config(config(directory)).unwrap();
    let server = Server::new(&others, ServerConfig::default()).unwrap();
    server.serve("writes", Access::SameUser).unwrap();
    others.start_progress().unwrap();
    let writer = ByteStream::connect(&others, "bytes", Some(LONG)).unwrap();
    let mut reader = listener.accept(Some(LONG)).unwrap();
    const BYTES: usize = 64 << 10;
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| {
            let mut left = BYTES;
            while left > 0 {
                let piece = [7; 4096];
                let slices = [std::io::IoSlice::new(&piece[..left.min(4096)])];
                left -= writer.write_within(&slices, None).unwrap();
            }
        });
        until_link(directory, "writes", "waits_for_buffer_ms", |ms| ms > 0);
        until_link(directory, "bytes", "window_held", |held| held == 16 << 10);
        assert_eq!(of_link(directory, "bytes", "window_max"), 16 << 10);
        let said = text(directory, "why bytes");
        assert!(
            said.contains(
                "16384 bytes have come from the peer, of which this process's program has read none"
            ),
            "{said}"
        );
        let shown = text(directory, "stat bytes");
        assert!(shown.contains("its program has not read 16384 bytes, for"), "{shown}");
        assert!(
            text(directory, "stat writes").contains("has waited for a buffer of the peer's for")
        );
        let mut all = vec![0; BYTES];
        std::io::Read::read_exact(&mut reader, &mut all).unwrap();
        assert!(all.iter().all(|byte| *byte == 7));
        waits.join().unwrap();
    });
    until_link(directory, "writes", "waits_for_buffer_ms", |ms| ms == 0);
    assert_eq!(of_link(directory, "bytes", "window_held"), 0);
    assert!(!text(directory, "why bytes").contains("bytes have come from the peer"));
}

#[test]
fn a_service_for_others_has_one_name_and_tells_them_that_its_figures_are_not_theirs() {
    if !rustix::process::geteuid().is_root() {
        return support::skipped("only root can serve other users, and be another one");
    }
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    std::fs::set_permissions(directory, Permissions::from_mode(0o755)).unwrap();
    text(directory, "setup");
    let mut node = Node::with_config(config(directory)).unwrap();
    node.serve("open", Access::Anyone, Accept::Automatic(vec![])).unwrap();
    for line in ["stat", "stat open", "stat 0@open", "stat root@open"] {
        let metrics = text(directory, &format!("{line} --prometheus"));
        assert!(metrics.contains("hamlyn_up{service=\"open\"} 1"), "{line}: {metrics}");
        let told: serde_json::Value =
            serde_json::from_str(&text(directory, &format!("{line} --json"))).unwrap();
        assert_eq!(told["name"], "open", "{line}");
    }
    assert!(text(directory, "why open").starts_with("open is served at "));
    // Another user, who may connect.
    let binary = directory.join("hamlyn");
    std::fs::copy(env!("CARGO_BIN_EXE_hamlyn"), &binary).unwrap();
    let mut command = Command::new(binary);
    command.env("HAMLYN_DIR", directory.join("no")).args(["stat", "root@open"]);
    command.env("HAMLYN_SHARED_DIR", directory.join("shared")).uid(65534).gid(65534);
    let error = String::from_utf8(command.output().unwrap().stderr).unwrap();
    assert!(error.contains("its own user and to root alone: this is user 65534"), "{error}");
    assert!(!error.contains("may not connect"), "{error}");
    assert_eq!(json(directory, "open")["counters"]["control.refused_statistics"], 1);
}

#[test]
fn why_says_that_a_process_is_stopped() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let child = serve(directory, "held");
    let pid = rustix::process::Pid::from_child(&child.0);
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    let said = text(directory, "why held");
    let stopped = format!("Process {} is stopped", child.0.id());
    assert!(said.contains(&stopped) && said.contains("kill -CONT"), "{said}");
    assert!(said.contains("does not answer within"), "{said}");
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
    assert!(has("hamlyn_packets_received_total{service=\"watched\"}", " 10"), "{metrics}");
    assert!(
        has("hamlyn_link_ring_taken_bytes_total{service=\"watched\",link=\"1\"", " 640"),
        "{metrics}"
    );
    assert!(has("# TYPE hamlyn_links", "gauge") && has("# HELP hamlyn_links ", "."), "{metrics}");
    // As a file: it is there whole or not at all, nothing lies beside it, and others may read it.
    let folder = directory.join("collected");
    std::fs::create_dir(&folder).unwrap();
    let file = folder.join("hamlyn.prom");
    text(directory, &format!("stat watched --prometheus --output {}", file.display()));
    let found = std::fs::read_to_string(&file).unwrap();
    assert!(found.contains("hamlyn_up{service=\"watched\"} 1"), "{found}");
    let mode = std::os::unix::fs::PermissionsExt::mode(&file.metadata().unwrap().permissions());
    assert_eq!(mode & 0o044, 0o044 & !umask(), "{mode:o}");
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1);
    // A service that has ended is down, and the file says so.
    let output =
        hamlyn(directory, &format!("stat nobody --prometheus --output {}", file.display()));
    assert!(!output.status.success());
    let found = std::fs::read_to_string(&file).unwrap();
    assert!(found.contains("hamlyn_up{service=\"nobody\"} 0"), "{found}");
    let watched = text(directory, "stat watched --watch=0.2 --times 2");
    assert_eq!(watched.matches("link 1").count(), 2, "{watched}");
    assert!(watched.contains("received/s") && !watched.contains("taken"), "{watched}");
    // The first question is the one thing that has gone up between the two.
    assert_eq!(watched.matches("control.statistics +1").count(), 2, "{watched}");
    let output = hamlyn(directory, "stat watched --watch=0.1");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("0.2 or more"), "{said}");
}

/// The bits that new files of this process do not get.
fn umask() -> u32 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("Umask:")).unwrap();
    u32::from_str_radix(line.trim(), 8).unwrap()
}

#[test]
fn top_shows_services_and_links_without_a_terminal() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let (_server, mut client, _) = watched(directory);
    client.serve("another", Access::SameUser, Accept::Automatic(vec![])).unwrap();
    let shown = text(directory, "top --once --interval 0.2");
    let process = std::process::id().to_string();
    for name in ["watched", "another"] {
        let line = shown.lines().find(|line| line.contains(name)).expect(name);
        assert!(line.contains(&process), "{shown}");
    }
    assert!(shown.contains("2 processes asked, each once in 0.2 s"), "{shown}");
    let shown = text(directory, "top watched --once --links --interval 0.2");
    assert!(shown.contains("received/s") && !shown.contains("taken"), "{shown}");
    assert!(shown.lines().filter(|line| line.contains("watched")).count() == 1, "{shown}");
    assert!(shown.contains(&format!(" {process} (stat")), "{shown}");
    // One that is not there is said to be so, and the others are shown.
    let output = hamlyn(directory, "top watched nobody --once --interval 0.2");
    assert_eq!(output.status.code(), Some(1));
    let shown = String::from_utf8(output.stdout).unwrap();
    assert!(shown.contains("nobody: nothing is called") && shown.contains("1 answered"), "{shown}");
}

/// A process that ends with this.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn http(address: &str, request: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8(answer).unwrap()
}

#[test]
fn the_exporter_answers_prometheus_and_nobody_else() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let (_server, _client, _) = watched(directory);
    let mut command = command(directory, "exporter watched --listen 127.0.0.1:0");
    let mut exporter = Running(command.stdout(Stdio::piped()).spawn().unwrap());
    let mut line = String::new();
    BufReader::new(exporter.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.split("http://").nth(1).unwrap().split('/').next().unwrap();
    let get = |path: &str, host: &str| {
        http(address, &format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n"))
    };
    let answer = get("/metrics", address);
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("version=0.0.4"), "{answer}");
    assert!(answer.contains("hamlyn_packets_received_total{service=\"watched\"} 10"), "{answer}");
    // However many ask within a second, the process is asked once.
    let asked = |answer: &str| {
        let line = answer.lines().find(|l| l.starts_with("hamlyn_control_statistics_total{"));
        line.and_then(|line| line.rsplit(' ').next()).unwrap().to_owned()
    };
    let (mut answers, mut looks) = (0, std::collections::BTreeSet::new());
    let began = Instant::now();
    while answers < 20 {
        looks.insert(asked(&get("/metrics", "localhost")));
        answers += 1;
    }
    let most = began.elapsed().as_secs() as usize + 2;
    assert!(looks.len() <= most, "{looks:?}");
    for (request, status) in [
        ("GET /other HTTP/1.1\r\nHost: localhost\r\n\r\n", "404"),
        ("POST /metrics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n", "405"),
        // A page in a browser that has taken a name for this address.
        ("GET /metrics HTTP/1.1\r\nHost: evil.example:9464\r\n\r\n", "421"),
        ("GET /metrics HTTP/1.1\r\n\r\n", "421"),
        ("nonsense\r\n\r\n", "400"),
    ] {
        let answer = http(address, request);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{request}: {answer}");
    }
    // A head without an end is not waited for, nor one of any length.
    assert!(!http(address, "GET /metrics HTTP/1.1\r\nHost: loc").contains("200"));
    let long =
        format!("GET /metrics HTTP/1.1\r\nHost: localhost\r\nX: {}\r\n\r\n", "x".repeat(1 << 17));
    assert!(!http(address, &long).starts_with("HTTP/1.1 200"));
    // No client keeps it from answering: silent ones have their time limit, and others room.
    let silent: Vec<_> = (0..40).map(|_| TcpStream::connect(address).unwrap()).collect();
    assert!(get("/metrics", "localhost").starts_with("HTTP/1.1 200"));
    drop(silent);
}

#[test]
fn the_exporter_listens_beyond_this_machine_only_if_that_is_meant() {
    let directory = tempfile::tempdir().unwrap();
    let output = hamlyn(directory.path(), "exporter --listen 0.0.0.0:0");
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && error.contains("--beyond-loopback"), "{error}");
}

#[test]
fn why_says_what_is_wrong_with_a_name_and_with_a_link() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let output = hamlyn(directory, "why nobody");
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(
        said.contains("nothing is called nobody") && said.contains("is there and has"),
        "{said}"
    );
    assert_eq!(output.status.code(), Some(1), "{said}");
    drop(std::os::unix::net::UnixListener::bind(directory.join("stale")).unwrap());
    let said = text(directory, "why stale");
    assert!(said.contains("nobody listens") && said.contains("names --clean"), "{said}");
    // The server makes no call, and the client goes on sending.
    let (mut server, mut client, ticket) = watched(directory);
    server.poll().unwrap();
    // Until the ring is full and the rest waits; the client waits, too, and its figures are shown.
    client.serve("sender", Access::SameUser, Accept::Automatic(vec![])).unwrap();
    let sent = loop {
        match client.send(&ticket, &[7; 200], b"", Some(Duration::from_millis(10))) {
            Ok(()) => {}
            Err(error) => break error.to_string(),
        }
    };
    assert!(sent.contains("start_progress"), "{sent}");
    let said = text(directory, "why sender");
    assert!(said.contains("Link 1") && said.contains("the peer has taken nothing"), "{said}");
    let process = format!("process {}", std::process::id());
    assert!(said.contains(&process), "{said}");
    // A wait is shown while it lasts, with its end of the link and its start: this program has
    // given up, and the peer has still taken nothing.
    let line = text(directory, "stat sender --json");
    let told: serde_json::Value = serde_json::from_str(&line).unwrap();
    assert!(told["links"][0]["waits_for_room_ms"].as_u64().unwrap() >= 10, "{line}");
    let shown = text(directory, "stat sender");
    assert!(shown.contains("has waited for the peer for"), "{shown}");
}

// Messages that have arrived are taken without a turn of the node: that is neither silence nor
// waiting.
#[test]
fn why_says_that_a_receiver_is_slow_and_not_that_it_is_silent() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let is_over = AtomicBool::new(false);
    let limit = Some(Duration::from_secs(60));
    // A ring that holds no more than a few records.
    let config = |directory| config(directory).bulk_ring_bytes(1u32 << 20);
    std::thread::scope(|scope| {
        let over = Stops(&is_over);
        scope.spawn(|| {
            let manager = Manager::with_config(config(directory)).unwrap();
            let mut slow = StreamReceiver::new(&manager, StreamConfig::default()).unwrap();
            slow.serve("slow", Access::SameUser).unwrap();
            while let Ok(record) = slow.receive(limit) {
                drop(record);
                std::thread::sleep(Duration::from_millis(50));
            }
        });
        scope.spawn(|| {
            let manager = Manager::with_config(config(directory)).unwrap();
            let mut sender = StreamSender::connect(&manager, "slow", limit).unwrap();
            // So long that it leaves in pieces, and waits for room rather than for a buffer.
            let record = [7; 300_000];
            while !is_over.load(Ordering::Relaxed) {
                sender.send(&record, limit).unwrap();
            }
        });
        // Until the sender has filled the ring.
        let look = |_| String::from_utf8(hamlyn(directory, "why slow").stdout).unwrap();
        let mut looks = (0..60).map(look);
        let said = looks.find(|said| said.contains("the peer waits")).unwrap();
        assert!(said.contains("slower than the peer: it took"), "{said}");
        assert!(!said.contains("has taken nothing"), "{said}");
        let line = text(directory, "stat slow --json");
        let told: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(told["counters"]["waiting_ms"], 0, "{line}");
        drop(over);
    });
}

#[test]
fn a_process_that_is_stopped_is_named_so_and_the_others_are_shown() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let (held, _goes_on) = (serve(directory, "held"), serve(directory, "goes-on"));
    let pid = rustix::process::Pid::from_child(&held.0);
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    let is_stopped = format!("its process {} (hamlyn) is stopped", held.0.id());
    let top = hamlyn(directory, "top --once");
    let said = String::from_utf8(top.stdout).unwrap();
    assert_eq!(top.status.code(), Some(1), "{said}");
    assert!(said.contains(&is_stopped) && said.contains("2 processes asked"), "{said}");
    assert!(said.contains("1 answered") && said.contains("goes-on"), "{said}");
    let stat = hamlyn(directory, "stat held");
    let said = String::from_utf8(stat.stderr).unwrap();
    assert!(said.contains(&is_stopped), "{said}");
    let names = text(directory, "names");
    let held = names.lines().find(|line| line.contains("held")).unwrap();
    assert!(held.contains("stopped"), "{names}");
}

#[test]
fn a_peer_that_is_stopped_is_seen_in_the_first_80_columns_of_both_tables() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let mut server = Node::with_config(config(directory)).unwrap();
    server.serve("waits", Access::SameUser, Accept::Ask).unwrap();
    // It has the link, and waits for what is no greeting of `hamlyn recv`; or it is on its way there.
    let mut command = command(directory, "send waits");
    let sender = Running(command.stdin(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap());
    let start = Instant::now();
    let pid = rustix::process::Pid::from_child(&sender.0);
    loop {
        server.wait(Some(Duration::from_millis(20))).unwrap();
        if let Some(hamlyn::Event::Request { id, .. }) = server.next_event() {
            server.accept(id, b"").unwrap();
        }
        if json(directory, "waits")["links"] != serde_json::json!([]) {
            break;
        }
        assert!(start.elapsed() < LONG, "no link");
    }
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    for (line, words) in [
        ("top --once --links --interval 0.2", "the peer is stopped"),
        ("top --once --interval 0.2", "1 peer is stopped"),
    ] {
        for columns in ["", "80", "100"] {
            let output = self::command(directory, line).env("COLUMNS", columns).output().unwrap();
            let shown = String::from_utf8(output.stdout).unwrap();
            let cut = |line: &str| line.chars().take(80).collect::<String>();
            assert!(shown.lines().any(|line| cut(line).contains(words)), "{columns}: {shown}");
        }
    }
}

#[test]
fn what_is_sent_over_a_link_from_which_nothing_comes_is_told_while_the_node_goes_on() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let mut server = Node::with_config(config(directory)).unwrap();
    server.serve("busy", Access::SameUser, Accept::Automatic(vec![])).unwrap();
    // More than are looked at in each turn.
    let clients: Vec<(Node, Ticket)> = (0..12)
        .map(|_| {
            let mut client = Node::with_config(config(directory)).unwrap();
            let area = client.message_area(4096).unwrap();
            let queue = client.notification_queue(16).unwrap();
            let slot = client.slot(SlotConfig::new(area, queue).metadata(16)).unwrap();
            let ticket = client.ticket(slot, MetadataIndex(0)).unwrap();
            client.connect("busy", b"", Some(LONG)).unwrap();
            (client, ticket)
        })
        .collect();
    let turns = |server: &mut Node| (0..100_000).for_each(|_| _ = server.poll().unwrap());
    turns(&mut server);
    for (_, ticket) in &clients {
        server.send(ticket, b"hello", b"", Some(LONG)).unwrap();
    }
    let start = Instant::now();
    loop {
        turns(&mut server);
        let told = json(directory, "busy");
        let links = told["links"].as_array().unwrap();
        let sent: u64 = links.iter().map(|link| link["messages_sent"].as_u64().unwrap()).sum();
        if sent == 12 {
            break;
        }
        assert!(start.elapsed() < LONG, "{told}");
    }
}

#[cfg(feature = "tls")]
#[test]
fn why_says_how_far_a_connection_to_another_host_comes_and_the_link_names_the_host() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let secret = |name: &str, digit: &str| {
        let path = directory.join(name);
        std::fs::write(&path, digit.repeat(64)).unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        path
    };
    let (ours, another) = (secret("ours", "7"), secret("another", "8"));
    let at = std::net::SocketAddr::from(([127, 0, 0, 1], 0));
    let listens = config(directory).listen(at).secret(ours.clone());
    let mut server = Node::with_config(listens).unwrap();
    server.serve("far", Access::SameUser, Accept::Automatic(vec![])).unwrap();
    let at = server.listens_at().unwrap();
    let why = |name: &str, secret: &Path| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_hamlyn"));
        command.args(["why", name]).env("HAMLYN_DIR", directory).env("HAMLYN_SECRET", secret);
        let output = command.output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    let (status, said) = why(&format!("hamlyn://{at}/far"), &ours);
    assert!(status == Some(0) && said.contains("the service is served there"), "{said}");
    assert!(said.contains("All of it works"), "{said}");
    let (status, said) = why(&format!("hamlyn://{at}/nobody"), &ours);
    assert!(status == Some(1) && said.contains("nobody serves this name there"), "{said}");
    assert!(said.contains("each end takes the other") && !said.contains("served there;"), "{said}");
    let (status, said) = why(&format!("hamlyn://{at}/far"), &another);
    assert!(status == Some(1) && said.contains("does not have the same secret"), "{said}");
    assert!(said.contains("TLS with it.\n"), "{said}");
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let (status, said) = why(&format!("hamlyn://{closed}/far"), &ours);
    assert!(status == Some(1) && said.contains("has an address.\nThis does not"), "{said}");
    // A link says which host is at its other end, and nothing of what is of this host.
    let over_tls = config(directory).secret(ours).local(hamlyn::config::Local::Tls);
    let mut client = Node::with_config(over_tls).unwrap();
    client.connect(&format!("hamlyn://{at}/far"), b"", Some(LONG)).unwrap();
    let start = Instant::now();
    let told = loop {
        server.poll().unwrap();
        let told = json(directory, "far");
        if told["links"][0]["path"].as_str().is_some_and(|path| !path.is_empty()) {
            break told;
        }
        assert!(start.elapsed() < LONG, "{told}");
    };
    let link = &told["links"][0];
    let host = link["peer_host"].as_str().unwrap();
    assert!(host.starts_with("127.0.0.1:") && host.ends_with(" (secret)"), "{told}");
    assert!(!link["path"].as_str().unwrap().contains("membarrier"), "{told}");
    assert!(text(directory, "stat far").contains(": host 127.0.0.1:"));
    assert!(text(directory, "stat --prometheus").contains("peer_host=\"127.0.0.1:"));
}
