//! Links to other hosts: TCP and TLS over loopback.
#![cfg(not(miri))]

mod support;

use hamlyn::control::stat_of;
use hamlyn::node::{CloseReason, ConnectError, Event, HostError};
use hamlyn::protocol::{
    CallError, Client, Manager, Seed, SeedError, Server, ServerConfig, StreamConfig,
    StreamReceiver, StreamSender, TaggedConfig, TaggedReceiver, TaggedSender,
};
use hamlyn::{Accept, Access, Config, Node, NodeSendError, SlotConfig};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use support::{Dir, LIMIT, LONG, Peer, Role, alone, listening, say, until};

fn secret(dir: &Dir, name: &str, digits: &str) -> PathBuf {
    dir.write(name, digits.repeat(32))
}

fn config(dir: &Dir, secret: &Path) -> Config {
    dir.config().secret(secret)
}

/// Two managers that would be on two hosts: each with a directory of its own.
fn pair() -> (Dir, Dir, Manager, Manager, String) {
    let (there, here) = (Dir::new("there", &[]), Dir::new("here", &[]));
    let key = secret(&there, "secret", "7f");
    let listens = listening(config(&there, &key));
    let server = Manager::with_config(listens).unwrap();
    server.start_progress().unwrap();
    let client = Manager::with_config(config(&here, &key)).unwrap();
    let address = server.listens_at().unwrap();
    (there, here, server, client, format!("hamlyn://{address}"))
}

#[test]
fn what_the_network_does_not_take_leaves_though_the_node_sleeps_in_another_call() {
    const MESSAGES: u32 = 4000;
    let there = Dir::new("slow", &[]);
    let here = Dir::new("fast", &[("WAIT_MODE", "blocking")]);
    let key = secret(&there, "secret", "7f");
    let listens = listening(config(&there, &key));
    let mut slow = Node::with_config(listens).unwrap();
    let area = slow.message_area(4096).unwrap();
    let queue = slow.notification_queue(2 * MESSAGES).unwrap();
    let slot = slow.slot(SlotConfig::new(area, queue).credit(MESSAGES)).unwrap();
    let ticket = slow.fast_ticket(slot).unwrap();
    let greeting = Accept::Automatic(ticket.to_bytes().to_vec());
    slow.serve("x", Access::SameUser, greeting).unwrap();
    let at = slow.listens_at().unwrap();
    let fast = Manager::with_config(config(&here, &key)).unwrap();
    let serving = Server::new(&fast, ServerConfig::default()).unwrap();
    serving.serve("end", Access::SameUser).unwrap();
    std::thread::scope(|scope| {
        // The node's own thread, which is asleep in a call of its own until the end.
        scope.spawn(|| serving.receive(LIMIT).unwrap().reply(b"", LIMIT).unwrap());
        let sender = scope.spawn(|| {
            let link = fast.connect(&format!("hamlyn://{at}/x"), b"", LIMIT).unwrap();
            for _ in 0..MESSAGES {
                loop {
                    let tried = fast.lock().try_send_fast_over(link, &ticket, &[7; 4096], 0);
                    match tried {
                        Ok(()) => break,
                        Err(NodeSendError::Full) => std::thread::sleep(Duration::from_micros(100)),
                        Err(e) => panic!("{e}"),
                    }
                }
            }
        });
        for i in 0..MESSAGES {
            let came = slow.recv(queue, Some(LONG / 2));
            assert!(came.is_ok(), "{i} of {MESSAGES} came: {came:?}");
            if i % 64 == 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        sender.join().unwrap();
        let local = Manager::with_config(here.config()).unwrap();
        let client = Client::connect(&local, "end", LIMIT).unwrap();
        client.call(b"", LIMIT).unwrap();
    });
}

#[test]
fn a_link_that_its_node_has_never_looked_at_ends_with_it() {
    let (there, here) = (Dir::new("there", &[]), Dir::new("here", &[]));
    let key = secret(&there, "secret", "7f");
    let listens = listening(config(&there, &key));
    let mut server = Node::with_config(listens).unwrap();
    server.serve("x", Access::SameUser, Accept::Automatic(Vec::new())).unwrap();
    let at = server.listens_at().unwrap();
    let mut client = Node::with_config(config(&here, &key)).unwrap();
    let link = client.connect(&format!("hamlyn://{at}/x"), b"", LIMIT).unwrap();
    drop(server);
    let end = Instant::now() + LONG;
    loop {
        client.poll().unwrap();
        match client.next_event() {
            Some(Event::Closed { link: closed, .. }) if closed == link => break,
            _ => assert!(Instant::now() < end, "the link stays"),
        }
    }
}

#[test]
fn who_polls_once_a_millisecond_hears_from_its_only_link_to_another_host_before_long() {
    let (there, here) = (Dir::new("there", &[]), Dir::new("here", &[]));
    let key = secret(&there, "secret", "7f");
    let listens = listening(config(&there, &key));
    let mut server = Node::with_config(listens).unwrap();
    server.serve("x", Access::SameUser, Accept::Automatic(Vec::new())).unwrap();
    let at = server.listens_at().unwrap();
    let mut client = Node::with_config(config(&here, &key)).unwrap();
    client.connect(&format!("hamlyn://{at}/x"), b"", LIMIT).unwrap();
    // Until there has been nothing to do for a while.
    for _ in 0..16 {
        client.poll().unwrap();
        std::thread::sleep(Duration::from_millis(1));
    }
    drop(server);
    let mut polls = 0;
    while !matches!(client.next_event(), Some(Event::Closed { .. })) {
        client.poll().unwrap();
        polls += 1;
        assert!(polls < 512, "nothing has come");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn failed(connected: Result<Client, hamlyn::protocol::GrowError>) -> String {
    connected.err().expect("an error").to_string()
}

#[test]
fn a_name_without_a_place_is_looked_up() {
    let (there, here, server, client, at) = pair();
    let serving = Server::new(&server, ServerConfig::default()).unwrap();
    serving.serve("double", Access::SameUser).unwrap();
    let error = failed(Client::connect(&client, "hamlyn://double", LIMIT));
    assert!(error.contains("HAMLYN_DIRECTORY"), "{error}");

    let file = here.path.join("services");
    let keys = config(&here, &there.path.join("secret"));
    let client = Manager::with_config(keys.directory(file.clone())).unwrap();
    let error = failed(Client::connect(&client, "hamlyn://double", LIMIT));
    assert!(error.contains(file.to_str().unwrap()), "{error}");
    std::fs::write(&file, "double nowhere\nother 127.0.0.1:1\n").unwrap();
    let error = failed(Client::connect(&client, "hamlyn://double", LIMIT));
    assert!(error.contains("line 1") && error.contains("\"nowhere\""), "{error}");
    // It reports it when the time limit has passed, since the name may still appear.
    std::fs::write(&file, "other 127.0.0.1:1\n").unwrap();
    let short = Some(Duration::from_millis(200));
    let error = failed(Client::connect(&client, "hamlyn://double", short));
    assert!(error.contains("has no line of it"), "{error}");
    std::thread::scope(|scope| {
        let later = scope.spawn(|| Client::connect(&client, "hamlyn://double", LIMIT).map(drop));
        std::thread::sleep(Duration::from_millis(100));
        // Nothing is at the first of the two.
        let place = at.strip_prefix("hamlyn://").unwrap();
        let line = format!("double 127.0.0.1:1 {place} # the second\n");
        let written = here.path.join("written");
        std::fs::write(&written, line).unwrap();
        std::fs::rename(&written, &file).unwrap();
        later.join().unwrap().unwrap();
    });
}

#[test]
fn calls_are_answered() {
    let (_there, _here, server, client, at) = pair();
    let serving = Server::new(&server, ServerConfig::default()).unwrap();
    serving.serve("double", Access::SameUser).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..1002 {
                let request = serving.receive(LIMIT).unwrap();
                let twice = request.repeat(2);
                request.reply(&twice, LIMIT).unwrap();
            }
        });
        let manager = client;
        let client = Client::connect(&manager, &format!("{at}/double"), LIMIT).unwrap();
        let path = client.connection().explain(&manager);
        assert!(path.contains("TLS 1.3") && path.contains("127.0.0.1"), "{path}");
        for length in [0, 1, 100, 5000, 100_000, 1_000_000] {
            let request: Vec<u8> = (0..length).map(|i| (i % 251) as u8).collect();
            assert_eq!(*client.call(&request, LIMIT).unwrap(), *request.repeat(2));
        }
        for i in 0..996u32 {
            let twice = [i.to_le_bytes(), i.to_le_bytes()].concat();
            assert_eq!(*client.call(&i.to_le_bytes(), LIMIT).unwrap(), *twice);
        }
    });
    drop(serving);
}

#[test]
fn streams_and_tags_arrive_whole() {
    let (_there, _here, server, client, at) = pair();
    let mut records = StreamReceiver::new(&server, StreamConfig::default()).unwrap();
    records.serve("records", Access::SameUser).unwrap();
    let mut tags = TaggedReceiver::new(&server, TaggedConfig::new(64)).unwrap();
    tags.serve("tags", Access::SameUser).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut sender =
                StreamSender::connect(&client, &format!("{at}/records"), LIMIT).unwrap();
            for i in 0..200usize {
                sender.send(&vec![i as u8; i * 300], LIMIT).unwrap();
            }
            sender.flush(LIMIT).unwrap();
            let mut sender = TaggedSender::connect(&client, &format!("{at}/tags"), LIMIT).unwrap();
            for i in 0..100 {
                sender.send(0, &[i as u8; 64], i, LIMIT).unwrap();
            }
        });
        for i in 0..200usize {
            let record = records.receive(LIMIT).unwrap();
            let bytes = &*record;
            assert!(bytes.len() == i * 300 && bytes.iter().all(|byte| *byte == i as u8), "{i}");
        }
        for i in 0..100 {
            assert_eq!(tags.get_tag(LIMIT).unwrap().tag, i);
        }
    });
}

#[test]
fn who_has_another_secret_is_not_connected_to_and_may_not_connect() {
    let (there, here, server, client, at) = pair();
    let serving = Server::new(&server, ServerConfig::default()).unwrap();
    serving.serve("x", Access::SameUser).unwrap();
    let other = secret(&here, "other", "80");
    let stranger = Manager::with_config(config(&here, &other)).unwrap();
    let refused = |manager, name: &str, limit| match Client::connect(manager, name, limit) {
        Ok(_) => panic!("connected to {name}"),
        Err(error) => error.to_string(),
    };
    let error = refused(&stranger, &format!("{at}/x"), LIMIT);
    assert!(error.contains("does not have the same secret"), "{error}");
    let short = Some(Duration::from_millis(300));
    let error = refused(&client, &format!("{at}/y"), short);
    assert!(error.contains("nobody serves this name there"), "{error}");
    let error = refused(&client, "hamlyn://127.0.0.1:1/x", short);
    assert!(error.contains("refused"), "{error}");
    // Its operator sees who was refused, as of this host.
    serving.set_admission(|_| Err("not on the list".into()));
    let error = refused(&client, &format!("{at}/x"), LIMIT);
    assert!(error.contains("not on the list"), "{error}");
    let told = stat_of(&there.config(), &"x".parse().unwrap(), LIMIT).unwrap();
    let has = |name: &str, value: &str| {
        let line = |line: &str| {
            line.starts_with("refusal.") && line.ends_with(&format!(".{name} {value}"))
        };
        assert!(told.lines().any(line), "{name} {value}: {told}");
    };
    has("reason", "host 127.0.0.1, secret: not on the list");
    has("service", "x");
    has("reason", "host 127.0.0.1, secret: it asked for what is not served here");
    has(
        "reason",
        "host 127.0.0.1, which has proved nothing: it went before it had proved which it is, as who has \
         another secret does",
    );
    assert!(!told.contains("refusal.4."), "{told}");
    let nobody = Manager::with_config(here.config()).unwrap();
    let error = refused(&nobody, &format!("{at}/x"), LIMIT);
    assert!(error.contains("hamlyn keys"), "{error}");
}

#[test]
fn a_host_whose_name_has_no_address_is_an_error_of_its_own() {
    let here = Dir::new("here", &[]);
    let key = secret(&here, "secret", "7f");
    let mut node = Node::with_config(config(&here, &key)).unwrap();
    // The system knows that it has none without a query.
    let host = "fe80::1%nowhere";
    let error = node.connect(&format!("hamlyn://[{host}]:7000/x"), b"", LIMIT).unwrap_err();
    let ConnectError::Host { name, error: HostError::Unknown(why) } = &error else {
        panic!("{error}")
    };
    assert!(name.contains(host) && why.starts_with(host), "{error}");
    assert!(error.to_string().contains("has no address"), "{error}");
    // A part of a name has at most 63 bytes, so that no system is asked for this one.
    let host = format!("{}.example", "x".repeat(64));
    let error = node.connect(&format!("hamlyn://{host}:7000/x"), b"", LIMIT).unwrap_err();
    let ConnectError::Host { name, error: HostError::Name(why) } = &error else {
        panic!("{error}")
    };
    assert!(name.contains(&host) && why.to_string().contains("1 to 63"), "{error}");
}

#[test]
fn a_seed_grows_a_sender_wherever_its_bearer_is() {
    let (_there, here, server, client, at) = pair();
    let mut tags = TaggedReceiver::new(&server, TaggedConfig::new(64)).unwrap();
    let seed = tags.seed().unwrap();
    // Without the host it leads nowhere but on its own.
    let grow = |seed: &Seed| TaggedSender::grow(&client, seed, LIMIT);
    let error = grow(&seed).err().unwrap().to_string();
    assert!(error.contains("nothing is called"), "{error}");
    let address = at.strip_prefix("hamlyn://").unwrap();
    // It travels as bytes and text.
    let far: Seed = seed.at_host(address).unwrap().to_string().parse().unwrap();
    assert_eq!(Seed::from_bytes(&far.to_bytes()).unwrap(), far);
    let mut sender = grow(&far).unwrap();
    sender.send(0, b"far", 7, LIMIT).unwrap();
    assert_eq!(tags.get_tag(LIMIT).unwrap().tag, 7);
    // One that names a host already may name another.
    assert_eq!(far.at_host("[::1]:1").unwrap(), seed.at_host("[::1]:1").unwrap());
    for (host, why) in [("x", "host:port"), ("x:0", "1 to 65535"), ("a/b:1", "host:port")] {
        let error = seed.at_host(host).unwrap_err().to_string();
        assert!(error.contains(why), "{host}: {error}");
    }
    let long = format!("{}:7000", "a.".repeat(40));
    assert!(matches!(seed.at_host(&long), Err(SeedError::HostTooLong(_))));
    // A holder of the seed without the secret is not admitted.
    let other = secret(&here, "other", "80");
    let stranger = Manager::with_config(config(&here, &other)).unwrap();
    let error = TaggedSender::grow(&stranger, &far, LIMIT).err().unwrap().to_string();
    assert!(error.contains("same secret"), "{error}");
    // Nor is another node taken for the one that made it.
    let third = Dir::new("third", &[]);
    let key = secret(&third, "secret", "7f");
    let listens = listening(config(&third, &key));
    let impostor = Manager::with_config(listens).unwrap();
    let wrong = far.at_host(&impostor.listens_at().unwrap().to_string()).unwrap();
    assert!(TaggedSender::grow(&client, &wrong, Some(Duration::from_secs(2))).is_err());
}

#[test]
fn a_name_that_is_not_served_yet_is_asked_for_less_and_less_often_and_found_once_it_is() {
    let (there, _here, server, client, at) = pair();
    let other = Server::new(&server, ServerConfig::default()).unwrap();
    other.serve("other", Access::SameUser).unwrap();
    let asked = || {
        let told = stat_of(&there.config(), &"other".parse().unwrap(), LIMIT).unwrap();
        let counted =
            |line: &str| line.strip_prefix("control.hosts_refused_service ")?.parse().ok();
        told.lines().find_map(counted).unwrap_or(0u64)
    };
    let limit = Some(Duration::from_millis(2600));
    let error = failed(Client::connect(&client, &format!("{at}/later"), limit));
    // Also at the very end of the time it was looked for.
    assert!(error.contains("nobody serves this name there"), "{error}");
    // After 50, 150, 350, 750, 1550 ms and at the end, where no look takes any time.
    let first = asked();
    assert!((2..=8).contains(&first), "{first} times");
    std::thread::scope(|scope| {
        let found =
            scope.spawn(|| Client::connect(&client, &format!("{at}/later"), LIMIT).map(drop));
        until("it is asked for", || asked() > first);
        let serving = Server::new(&server, ServerConfig::default()).unwrap();
        serving.serve("later", Access::SameUser).unwrap();
        found.join().unwrap().unwrap();
    });
}

#[test]
fn an_end_is_told_to_whoever_waits() {
    let (_there, _here, server, client, at) = pair();
    let serving = Server::new(&server, ServerConfig::default()).unwrap();
    serving.serve("x", Access::SameUser).unwrap();
    let calls = Client::connect(&client, &format!("{at}/x"), LIMIT).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _request = serving.receive(LIMIT).unwrap().detach();
            server.stop_progress();
        });
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(100));
        });
        let error = calls.call(b"?", Some(Duration::from_millis(300))).unwrap_err();
        assert!(matches!(error, CallError::TimedOut), "{error}");
    });
    drop((serving, server));
    let error = calls.call(b"?", LIMIT).unwrap_err();
    assert!(matches!(error, CallError::Ended(_)), "{error}");
}

/// Another process that doubles what it is sent, and where it listens.
fn process(settings: &[(&str, &str)]) -> (Dir, Dir, Peer, String) {
    let keys = Dir::new("keys", &[]);
    let key = secret(&keys, "secret", "7f").display().to_string();
    let own = [("SECRET", key.as_str()), ("LISTEN", "127.0.0.1:0")];
    let dir = Dir::new("process", &[&own, settings].concat());
    let mut peer = Peer::start("server", &dir, "");
    let at = format!("hamlyn://{}/double", peer.says());
    (keys, dir, peer, at)
}

#[test]
fn a_server_that_is_killed_is_told_of_and_one_that_is_stopped_is_waited_for() {
    let (keys, _dir, peer, at) = process(&[]);
    let here = Dir::new("killed", &[]);
    let manager = Manager::with_config(config(&here, &keys.path.join("secret"))).unwrap();
    let client = Client::connect(&manager, &at, LIMIT).unwrap();
    assert_eq!(*client.call(b"ab", LIMIT).unwrap(), *b"abab");
    peer.stop();
    let error = client.call(b"ab", Some(Duration::from_millis(300))).unwrap_err();
    assert!(matches!(error, CallError::TimedOut), "{error}");
    peer.signal(libc::SIGCONT);
    assert_eq!(*client.call(b"ab", LIMIT).unwrap(), *b"abab");
    peer.stop();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| client.call(b"ab", LIMIT).unwrap_err());
        std::thread::sleep(Duration::from_millis(50));
        peer.kill();
        let error = waits.join().unwrap();
        assert!(matches!(error, CallError::Ended(CloseReason::Died)), "{error}");
    });
}

#[test]
fn both_ends_sleep_and_are_woken() {
    let (keys, _dir, mut peer, at) = process(&[("WAIT_MODE", "blocking")]);
    let here = Dir::new("asleep", &[("WAIT_MODE", "blocking")]);
    let manager = Manager::with_config(config(&here, &keys.path.join("secret"))).unwrap();
    let client = Client::connect(&manager, &at, LIMIT).unwrap();
    for i in 0..200u32 {
        if i % 50 == 0 {
            peer.fall_asleep();
        }
        let bytes = vec![i as u8; if i % 9 == 0 { 50_000 } else { 8 }];
        assert_eq!(*client.call(&bytes, LIMIT).unwrap(), *bytes.repeat(2));
    }
    drop(manager);
    drop(client);
    peer.tell("end");
    peer.expect("ended");
    peer.end();
}

// A packet and its header are more than one record of TLS; all of it is read from the socket at
// once, so no further event wakes a sleeper for the rest.
#[test]
fn a_packet_of_more_than_a_record_is_taken_before_its_node_sleeps() {
    let settings = [("WAIT_MODE", "blocking"), ("RING_BYTES", "128K"), ("PACKET_BYTES", "32K")];
    let (keys, _dir, mut peer, at) = process(&settings);
    let here = Dir::new("records", &settings);
    let manager = Manager::with_config(config(&here, &keys.path.join("secret"))).unwrap();
    let client = Client::connect(&manager, &at, LIMIT).unwrap();
    for length in (15_000..18_000).step_by(41) {
        peer.fall_asleep();
        let bytes = vec![length as u8; length];
        assert_eq!(*client.call(&bytes, LIMIT).unwrap(), *bytes.repeat(2), "{length} bytes");
    }
    drop(manager);
    drop(client);
    peer.tell("end");
    peer.expect("ended");
    peer.end();
}

#[test]
fn what_was_sent_arrives_though_its_sender_leaves_at_once() {
    let (_there, _here, server, client, at) = pair();
    let mut records = StreamReceiver::new(&server, StreamConfig::default()).unwrap();
    records.serve("records", Access::SameUser).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut sender =
                StreamSender::connect(&client, &format!("{at}/records"), LIMIT).unwrap();
            for i in 0..64usize {
                sender.send(&vec![i as u8; 50_000], LIMIT).unwrap();
            }
            sender.flush(LIMIT).unwrap();
            drop(sender);
            drop(client);
        });
        for i in 0..64usize {
            // It takes its time.
            std::thread::sleep(Duration::from_millis(1));
            let record = records.receive(LIMIT).unwrap();
            let bytes = &*record;
            assert!(bytes.len() == 50_000 && bytes.iter().all(|byte| *byte == i as u8), "{i}");
        }
    });
}

/// Of this process: threads that connect to other hosts.
fn dials() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
    names.filter(|name| name.trim_end() == "hamlyn-dial").count()
}

/// A server for so many clients, and a manager of its own for each client, with a directory.
fn for_many(clients: u32) -> ([Dir; 2], [Manager; 2], Server, PathBuf, String) {
    let (there_dir, here_dir) = (Dir::new("many-there", &[]), Dir::new("many-here", &[]));
    let key = secret(&there_dir, "secret", "7f");
    let listen = "127.0.0.1:0".parse::<std::net::SocketAddr>().unwrap();
    let there = Manager::with_config(config(&there_dir, &key).listen(listen)).unwrap();
    there.start_progress().unwrap();
    let config_of = ServerConfig {
        clients_max: 2 * clients,
        outstanding: 1,
        request_bytes_max: 64,
        ..ServerConfig::default()
    };
    let server = Server::new(&there, config_of).unwrap();
    server.serve("x", Access::SameUser).unwrap();
    let at = there.listens_at().unwrap().to_string();
    let directory = here_dir.path.join("services");
    std::fs::write(&directory, "").unwrap();
    let here = Manager::with_config(config(&here_dir, &key).directory(directory.clone())).unwrap();
    ([there_dir, here_dir], [there, here], server, directory, at)
}

#[test]
fn a_hundred_connections_that_are_begun_at_once_are_all_made() {
    alone("a_hundred_connections_that_are_begun_at_once_are_all_made", || {
        const CLIENTS: usize = 100;
        let (_dirs, [_there, here], server, _, at) = for_many(CLIENTS as u32);
        let name = format!("hamlyn://{at}/x");
        let begin = std::sync::Barrier::new(CLIENTS);
        let made: Vec<Result<Client, String>> = std::thread::scope(|scope| {
            let connect = |_| {
                scope.spawn(|| {
                    begin.wait();
                    Client::connect(&here, &name, LIMIT).map_err(|error| error.to_string())
                })
            };
            let threads: Vec<_> = (0..CLIENTS).map(connect).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let failed: Vec<_> = made.iter().filter_map(|made| made.as_ref().err()).collect();
        assert!(failed.is_empty(), "{} failed: {failed:?}", failed.len());
        until("the server has them all", || server.clients() == CLIENTS);
    });
}

#[test]
fn servers_that_are_not_there_keep_nobody_else_waiting() {
    alone("servers_that_are_not_there_keep_nobody_else_waiting", || {
        const CLIENTS: usize = 80;
        let (_dirs, [_there, here], server, directory, at) = for_many(CLIENTS as u32);
        std::thread::scope(|scope| {
            let connect = |_| {
                let later = "hamlyn://x";
                let connect = || Client::connect(&here, later, LIMIT).map_err(|e| e.to_string());
                scope.spawn(connect)
            };
            let threads: Vec<_> = (0..CLIENTS).map(connect).collect();
            until("as many connect as may at once", || dials() >= 64);
            let _one = Client::connect(&here, &format!("hamlyn://{at}/x"), LIMIT).unwrap();
            until("the server has it", || server.clients() == 1);
            assert!(threads.iter().all(|thread| !thread.is_finished()));
            std::fs::write(&directory, format!("x {at}\n")).unwrap();
            let made: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
            let failed: Vec<_> = made.iter().filter_map(|made| made.as_ref().err()).collect();
            assert!(failed.is_empty(), "{} failed: {failed:?}", failed.len());
        });
    });
}

#[test]
fn tasks_wait_for_other_hosts() {
    use hamlyn::protocol::AsyncManager;
    let (_there, _here, server, client, at) = pair();
    server.stop_progress();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.unwrap().block_on(async {
        let (there, here) =
            (AsyncManager::new(&server).unwrap(), AsyncManager::new(&client).unwrap());
        let serving = std::sync::Arc::new(Server::new(&server, ServerConfig::default()).unwrap());
        serving.serve("double", Access::SameUser).unwrap();
        let task = tokio::spawn(async move {
            for _ in 0..100 {
                let request = there.receive(&mut &*serving).await.unwrap().detach();
                let serving = serving.clone();
                let reply = move || {
                    let twice = request.repeat(2);
                    serving.attach(request).reply(&twice, LIMIT).unwrap();
                };
                tokio::task::block_in_place(reply);
            }
        });
        let name = format!("{at}/double");
        let client = here.set_up(move |m| Client::connect(m, &name, LIMIT).unwrap()).await;
        for i in 0..100u32 {
            let bytes = vec![i as u8; if i % 9 == 0 { 50_000 } else { 8 }];
            let called = tokio::time::timeout(support::LONG, here.call(&client, &bytes));
            assert_eq!(*called.await.unwrap().unwrap(), *bytes.repeat(2));
        }
        task.await.unwrap();
    });
}

#[test]
fn role() {
    let Some(role) = Role::of_this_process() else { return };
    assert_eq!(role.name, "server");
    let manager = Manager::with_config(role.config()).unwrap();
    let server = Server::new(&manager, ServerConfig::default()).unwrap();
    server.serve("double", Access::SameUser).unwrap();
    say(&manager.listens_at().unwrap().to_string());
    let ends = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let ends = &ends;
        scope.spawn(move || {
            role.wait_for("end");
            ends.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        while !ends.load(std::sync::atomic::Ordering::Relaxed) {
            if let Ok(request) = server.receive(Some(Duration::from_millis(500))) {
                let twice = request.repeat(2);
                request.reply(&twice, LIMIT).unwrap();
            }
        }
    });
    say("ended");
}
