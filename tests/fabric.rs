//! Links over libfabric, over loopback with each provider that does TCP: both ends ask for it, one
//! does not, hosts die, hosts lie.
//!
//! `HAMLYN_FABRIC_LIBRARY` names another libfabric than the system's for the tests;
//! `HAMLYN_FABRIC_OTHER_LIBRARY` names one of another version, for the other end (else that of
//! MPICH's wheel, installed by `bench/peers/install.sh`).
#![cfg(not(miri))]

#[path = "model/host_fabric.rs"]
mod model;
mod support;
#[path = "support/fabric.rs"]
mod with;

use hamlyn::config::Fabric;
use hamlyn::control::Reason;
use hamlyn::log::set_sink;
use hamlyn::node::{CloseReason, Event};
use hamlyn::os::fabric::{self, FabricEndPoint, FabricPeer as Address, Library, SendOutcome};
use hamlyn::protocol::{
    CallError, Client, Manager, Server, ServerConfig, StreamConfig, StreamReceiver, StreamSender,
    TaggedConfig, TaggedReceiver, TaggedSender,
};
use hamlyn::transport::channel::Channel;
use hamlyn::transport::fabric::credit::{CreditHead, HEAD_BYTES};
use hamlyn::transport::fabric::station::Station;
use hamlyn::transport::fabric::words::{self, FabricWord, OpenedMemory};
use hamlyn::transport::offer::{FabricOffer, OfferReply};
use hamlyn::transport::path::Path as _;
use hamlyn::{Accept, Access, ApertureAccess, Config, Node, NodeSendError, SlotConfig};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use support::{Dir, LIMIT, LONG, Peer, Random, Role, listening, say, skipped};
use with::{HERE, NEEDED, named, offer, offer_of, strictly, tls, trusted, until};

/// Its providers of reliable datagrams over TCP: `tcp` is `net` in 1.17.
fn providers() -> Vec<&'static str> {
    let Ok(library) = Library::open(named("HAMLYN_FABRIC_LIBRARY").as_deref()) else {
        return Vec::new();
    };
    let names = ["tcp", "net", "tcp;ofi_rxm"];
    let has = |name: &&str| {
        let found = library.choose(Some(name), Some(HERE));
        found.is_ok_and(|choice| choice.provider() == **name)
    };
    names.into_iter().filter(has).collect()
}

/// Each test with each provider.
fn with_each_provider(test: impl Fn(&str)) {
    let providers = providers();
    if providers.is_empty() {
        return skipped(NEEDED);
    }
    for provider in providers {
        eprintln!("with the provider {provider}");
        test(provider);
    }
}

/// Two managers that would be on two hosts.
struct Pair {
    _dirs: [Dir; 2],
    server: Manager,
    client: Manager,
    at: String,
}

fn pair_of(there: impl FnOnce(&Dir) -> Config, here: impl FnOnce(&Dir) -> Config) -> Pair {
    let dirs = [Dir::new("there", &[]), Dir::new("here", &[])];
    let server = Manager::with_config(listening(there(&dirs[0]))).unwrap();
    server.start_progress().unwrap();
    let client = Manager::with_config(here(&dirs[1])).unwrap();
    let at = format!("hamlyn://{}", server.listens_at().unwrap());
    Pair { _dirs: dirs, server, client, at }
}

fn pair(provider: &str) -> Pair {
    pair_of(|dir| trusted(dir, provider), |dir| trusted(dir, provider))
}

/// Calls both ways of several sizes, and how their link is carried, at either end.
fn call(pair: &Pair) -> [String; 2] {
    let serving = Server::new(&pair.server, ServerConfig::default()).unwrap();
    serving.serve("double", Access::SameUser).unwrap();
    let lengths = [0, 1, 100, 5000, 100_000, 1_000_000];
    std::thread::scope(|scope| {
        let there = scope.spawn(|| {
            let mut path = String::new();
            for _ in 0..lengths.len() + 500 {
                let request = serving.receive(LIMIT).unwrap();
                let twice = request.repeat(2);
                path = pair.server.explain(request.link()).unwrap();
                request.reply(&twice, LIMIT).unwrap();
            }
            path
        });
        let client = Client::connect(&pair.client, &format!("{}/double", pair.at), LIMIT).unwrap();
        for length in lengths {
            let request: Vec<u8> = (0..length).map(|i| (i % 251) as u8).collect();
            assert_eq!(*client.call(&request, LIMIT).unwrap(), *request.repeat(2));
        }
        for i in 0..500u32 {
            let twice = [i.to_le_bytes(), i.to_le_bytes()].concat();
            assert_eq!(*client.call(&i.to_le_bytes(), LIMIT).unwrap(), *twice);
        }
        [client.connection().explain(&pair.client), there.join().unwrap()]
    })
}

#[test]
fn calls_travel_over_the_fabric_where_both_ends_ask_for_it() {
    with_each_provider(|provider| {
        let pair = pair(provider);
        for path in call(&pair) {
            let says = ["libfabric ", provider, "trusted", "TLS 1.3", "127.0.0.1"];
            assert!(says.iter().all(|word| path.contains(word)), "{path}");
        }
    });
}

#[test]
fn what_may_crash_is_taken_only_where_it_is_named() {
    let Ok(library) = Library::open(named("HAMLYN_FABRIC_LIBRARY").as_deref()) else {
        return skipped(NEEDED);
    };
    let Ok(first) = library.choose(None, Some(HERE)) else { return skipped(NEEDED) };
    assert!(!first.stays_open() || providers().len() == 1, "{}", first.provider());
    let both = library.choose(Some("tcp;ofi_rxm"), Some(HERE));
    let stays_open = both.is_ok_and(|both| both.stays_open());
    assert_eq!(stays_open, library.version() < (1, 18) && providers().contains(&"tcp;ofi_rxm"));
}

#[test]
fn streams_and_tags_arrive_whole_from_several_hosts_at_once() {
    with_each_provider(|provider| {
        let pair = pair(provider);
        let mut records = StreamReceiver::new(&pair.server, StreamConfig::default()).unwrap();
        records.serve("records", Access::SameUser).unwrap();
        let mut tags = TaggedReceiver::new(&pair.server, TaggedConfig::new(64)).unwrap();
        tags.serve("tags", Access::SameUser).unwrap();
        std::thread::scope(|scope| {
            let (client, at) = (&pair.client, &pair.at);
            scope.spawn(move || {
                let mut sender =
                    StreamSender::connect(client, &format!("{at}/records"), LIMIT).unwrap();
                for i in 0..200usize {
                    sender.send(&vec![i as u8; i * 300], LIMIT).unwrap();
                }
                sender.flush(LIMIT).unwrap();
            });
            for _ in 0..3 {
                scope.spawn(move || {
                    let dir = Dir::new("another", &[]);
                    let another = Manager::with_config(trusted(&dir, provider)).unwrap();
                    let mut sender =
                        TaggedSender::connect(&another, &format!("{at}/tags"), LIMIT).unwrap();
                    for i in 0..100 {
                        sender.send(0, &[i as u8; 64], i, LIMIT).unwrap();
                    }
                });
            }
            for i in 0..200usize {
                let record = records.receive(LIMIT).unwrap();
                let bytes = &*record;
                assert!(bytes.len() == i * 300 && bytes.iter().all(|byte| *byte == i as u8), "{i}");
            }
            let mut came = [0; 100];
            for _ in 0..300 {
                came[tags.get_tag(LIMIT).unwrap().tag as usize] += 1;
            }
            assert_eq!(came, [3; 100]);
        });
    });
}

#[test]
fn where_the_other_host_has_not_asked_it_is_tls_and_explain_says_why() {
    let providers = providers();
    let Some(provider) = providers.first() else { return skipped(NEEDED) };
    let both = pair_of(tls, tls);
    for path in call(&both) {
        assert!(path.contains("TLS 1.3") && !path.contains("libfabric"), "{path}");
    }
    let one = pair_of(tls, |dir| trusted(dir, provider));
    let [here, there] = call(&one);
    assert!(here.contains("not libfabric (the other host has not asked for it"), "{here}");
    assert!(there.contains("TLS 1.3") && !there.contains("libfabric"), "{there}");
    let other = pair_of(|dir| trusted(dir, provider), tls);
    let [here, there] = call(&other);
    assert!(here.contains("TLS 1.3") && !here.contains("libfabric"), "{here}");
    assert!(there.contains("not libfabric (the other host has not asked for it"), "{there}");
}

#[test]
fn without_a_library_or_a_provider_it_is_tls_and_explain_says_why() {
    let nowhere = |dir: &Dir| {
        tls(dir).fabric(Fabric::Trusted).fabric_library(PathBuf::from("/nowhere/libfabric.so.1"))
    };
    for path in call(&pair_of(nowhere, nowhere)) {
        let says = ["TLS 1.3", "not libfabric", "/nowhere/libfabric.so.1"];
        assert!(says.iter().all(|word| path.contains(word)), "{path}");
    }
    let providers = providers();
    let Some(provider) = providers.first() else { return skipped(NEEDED) };
    let none = pair_of(|dir| trusted(dir, "no-such"), |dir| trusted(dir, provider));
    let [here, there] = call(&none);
    assert!(here.contains("not libfabric (the other host says: "), "{here}");
    for path in [here, there] {
        assert!(path.contains("has no provider no-such"), "{path}");
    }
}

/// Another process that doubles what it is sent, and where it listens.
fn process(provider: &str, settings: &[(&str, &str)]) -> (Dir, Peer, String) {
    let dir = Dir::new("process", &[]);
    let key = dir.secret().display().to_string();
    let library = named("HAMLYN_FABRIC_LIBRARY").unwrap_or_default().display().to_string();
    let own = [
        ("SECRET", key.as_str()),
        ("LISTEN", "127.0.0.1:0"),
        ("FABRIC", "trusted"),
        ("FABRIC_PROVIDER", provider),
        ("FABRIC_LIBRARY", library.as_str()),
    ];
    let dir = Dir::new("process", &[&own, settings].concat());
    std::fs::copy(&key, dir.path.join("secret")).unwrap();
    let mut peer = Peer::start("server", &dir, "");
    let at = format!("hamlyn://{}/double", peer.says());
    (dir, peer, at)
}

#[test]
fn a_server_that_is_killed_is_told_of_and_one_that_is_stopped_is_waited_for() {
    with_each_provider(|provider| {
        let (_dir, peer, at) = process(provider, &[]);
        let here = Dir::new("killed", &[]);
        let manager = Manager::with_config(trusted(&here, provider)).unwrap();
        let client = Client::connect(&manager, &at, LIMIT).unwrap();
        assert_eq!(*client.call(b"ab", LIMIT).unwrap(), *b"abab");
        assert!(client.connection().explain(&manager).contains("libfabric "));
        // Stopped wherever it is, also in a call that waits.
        for _ in 0..3 {
            peer.stop();
            let error = client.call(b"ab", Some(Duration::from_millis(300))).unwrap_err();
            assert!(matches!(error, CallError::TimedOut), "{error}");
            peer.signal(libc::SIGCONT);
            assert_eq!(*client.call(b"ab", LIMIT).unwrap(), *b"abab");
        }
        peer.stop();
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| client.call(b"ab", LIMIT).unwrap_err());
            std::thread::sleep(Duration::from_millis(50));
            peer.kill();
            let error = waits.join().unwrap();
            assert!(matches!(error, CallError::Ended(CloseReason::Died)), "{error}");
        });
    });
}

#[test]
fn a_process_that_ends_while_it_connects_ends_well() {
    let Some(provider) = providers().pop() else { return skipped(NEEDED) };
    let here = Dir::new("listens", &[]);
    let manager = Manager::with_config(listening(trusted(&here, provider))).unwrap();
    manager.start_progress().unwrap();
    let library = named("HAMLYN_FABRIC_LIBRARY").unwrap_or_default().display().to_string();
    let own = [("FABRIC", "trusted"), ("FABRIC_LIBRARY", library.as_str())];
    let dir = Dir::new("leaves", &own);
    let at = format!("hamlyn://{}/nothing", manager.listens_at().unwrap());
    let secret = here.secret();
    // Most of them while the first question is answered, which loads and unloads the providers' files.
    for milliseconds in (2..=152).step_by(10) {
        let args = format!("{at} {milliseconds}");
        let mut leaves = Peer::command("leaves", &dir, &args, &[]);
        let out = leaves.env("HAMLYN_SECRET", &secret).stderr(Stdio::piped()).output().unwrap();
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        let is_well = out.status.success() && !said.contains("signal");
        assert!(is_well, "after {milliseconds} ms: {} {said}", out.status);
        assert!(said.contains("leaves"), "{said}");
    }
}

#[test]
fn both_ends_sleep_and_are_woken() {
    with_each_provider(|provider| {
        let (_dir, mut peer, at) = process(provider, &[("WAIT_MODE", "blocking")]);
        let here = Dir::new("asleep", &[("WAIT_MODE", "blocking")]);
        let manager = Manager::with_config(trusted(&here, provider)).unwrap();
        let client = Client::connect(&manager, &at, LIMIT).unwrap();
        for i in 0..200u32 {
            if i % 50 == 0 {
                peer.fall_asleep();
            }
            let bytes = vec![i as u8; if i % 9 == 0 { 50_000 } else { 8 }];
            assert_eq!(*client.call(&bytes, LIMIT).unwrap(), *bytes.repeat(2));
        }
        assert!(client.connection().explain(&manager).contains("libfabric "));
        drop(manager);
        drop(client);
        peer.tell("end");
        peer.expect("ended");
        peer.end();
    });
}

// 1.17 calls `net` what 2.x calls `tcp`.
#[test]
fn one_version_of_the_library_speaks_with_another() {
    // MPICH's wheel, which bench/peers/install.sh installs, has 2.x.
    let peers = "bench/peers/build/mpich/lib/mpich/libfabric.so.1";
    let installed = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(peers);
    let installed = Some(installed).filter(|file| file.exists());
    let Some(other) = named("HAMLYN_FABRIC_OTHER_LIBRARY").or(installed) else {
        return skipped(&format!(
            "a libfabric of another version: named by HAMLYN_FABRIC_OTHER_LIBRARY, or as {peers}"
        ));
    };
    let other_path = other.display().to_string();
    let providers = providers();
    if providers.is_empty() {
        return skipped(NEEDED);
    }
    let library = Library::open(Some(&other)).unwrap();
    let here = Library::open(named("HAMLYN_FABRIC_LIBRARY").as_deref()).unwrap();
    if library.version() == here.version() {
        return skipped(&format!("a libfabric of another version than {:?}", here.version()));
    }
    let mut spoken = 0;
    for own in &providers {
        let own_protocol = here.choose(Some(own), Some(HERE)).unwrap().protocol();
        for name in ["tcp", "net", "tcp;ofi_rxm"] {
            let Ok(choice) = library.choose(Some(name), Some(HERE)) else { continue };
            if choice.provider() != name || choice.protocol() != own_protocol {
                continue;
            }
            let there = [("FABRIC_LIBRARY", other_path.as_str())];
            let (_dir, _peer, at) = process(name, &there);
            let dir = Dir::new("version", &[]);
            let manager = Manager::with_config(trusted(&dir, own)).unwrap();
            let client = Client::connect(&manager, &at, LIMIT).unwrap();
            for length in [1, 5000, 300_000] {
                let bytes = vec![7; length];
                assert_eq!(*client.call(&bytes, LIMIT).unwrap(), *bytes.repeat(2));
            }
            let path = client.connection().explain(&manager);
            assert!(path.contains("libfabric "), "{path}");
            eprintln!("{own} here and {name} there: {path}");
            spoken += 1;
        }
    }
    assert!(spoken > 0, "no two providers speak the same protocol");
}

#[test]
fn what_was_sent_arrives_though_its_sender_leaves_at_once() {
    with_each_provider(|provider| {
        let Pair { _dirs, server, client, at } = pair(provider);
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
    });
}

#[test]
fn a_node_leaves_at_once_though_its_peer_makes_no_calls_and_what_it_has_sent_is_there() {
    with_each_provider(|provider| leaves_at_once(provider, 1));
}

#[test]
fn a_node_leaves_a_link_of_two_rails_at_once_though_its_peer_makes_no_calls() {
    with_each_provider(|provider| leaves_at_once(provider, 2));
}

/// The other's library takes what comes in the place of its program, and says so. What is there stays, for
/// however long its program makes no calls.
fn leaves_at_once(provider: &str, rails: u32) {
    const MESSAGES: u32 = 5;
    let short = [("HOST_TIMEOUT_MS", "2000")];
    let dirs = [Dir::new("silent", &short), Dir::new("leaves", &short)];
    // A client that waited for that would not be done before the test is.
    let patient = |dir| {
        let config = trusted(dir, provider).handshake_timeout_ms(3_600_000u32);
        config.rails(rails)
    };
    let mut silent = Node::with_config(listening(patient(&dirs[0]))).unwrap();
    let area = silent.message_area(64).unwrap();
    let queue = silent.notification_queue(MESSAGES).unwrap();
    let slot = silent.slot(SlotConfig::new(area, queue).credit(MESSAGES)).unwrap();
    let ticket = silent.fast_ticket(slot).unwrap();
    silent.serve("x", Access::SameUser, Accept::Automatic(Vec::new())).unwrap();
    let at = format!("hamlyn://{}/x", silent.listens_at().unwrap());
    let leaves = Manager::with_config(patient(&dirs[1])).unwrap();
    let link = std::thread::scope(|scope| {
        let connects = scope.spawn(|| leaves.connect(&at, b"", LIMIT).unwrap());
        while silent.links().count() < 1 {
            silent.poll().unwrap();
            while silent.next_event().is_some() {}
        }
        connects.join().unwrap()
    });
    for i in 0..MESSAGES {
        leaves.lock().try_send_fast_over(link, &ticket, b"x", i).unwrap();
        // Each leaves as a message of its own.
        std::thread::sleep(Duration::from_millis(5));
    }
    let (done, has_left) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        drop(leaves);
        done.send(()).unwrap();
    });
    has_left.recv_timeout(LONG).expect("it waits for a program that makes no calls");
    std::thread::sleep(Duration::from_millis(2300));
    for i in 0..MESSAGES {
        assert_eq!(silent.recv(queue, LIMIT).unwrap().word, i);
    }
    let reason = until("the end of the link", || {
        silent.poll().unwrap();
        match silent.next_event() {
            Some(Event::Closed { reason, .. }) => Some(reason),
            _ => None,
        }
    });
    assert_eq!(reason, CloseReason::Closed);
}

#[test]
fn a_link_that_goes_while_its_peer_makes_no_calls_takes_nothing_of_another_to_the_same_process_along()
 {
    const MESSAGES: u32 = 3;
    with_each_provider(|provider| {
        let dirs = [Dir::new("silent", &[]), Dir::new("two", &[])];
        let mut silent = Node::with_config(listening(trusted(&dirs[0], provider))).unwrap();
        let area = silent.message_area(64).unwrap();
        let queue = silent.notification_queue(4 * MESSAGES).unwrap();
        let slot = silent.slot(SlotConfig::new(area, queue).credit(4 * MESSAGES)).unwrap();
        let ticket = silent.fast_ticket(slot).unwrap();
        let greeting = Accept::Automatic(ticket.to_bytes().to_vec());
        silent.serve("x", Access::SameUser, greeting).unwrap();
        let at = format!("hamlyn://{}/x", silent.listens_at().unwrap());
        let fast = Manager::with_config(trusted(&dirs[1], provider)).unwrap();
        let links = std::thread::scope(|scope| {
            let connects = scope.spawn(|| [(); 2].map(|()| fast.connect(&at, b"", LIMIT).unwrap()));
            while silent.links().count() < 2 {
                silent.poll().unwrap();
                while silent.next_event().is_some() {}
            }
            connects.join().unwrap()
        });
        for i in 0..MESSAGES {
            for (which, link) in links.iter().enumerate() {
                let word = 100 * which as u32 + i;
                fast.lock().try_send_fast_over(*link, &ticket, b"x", word).unwrap();
            }
            // Each leaves as a message of its own.
            std::thread::sleep(Duration::from_millis(20));
        }
        let [first, second] = links.map(|link| fast.explain(link).unwrap());
        assert!(first.contains("libfabric ") && second.contains("libfabric "), "{first}, {second}");
        let goes = std::thread::spawn(move || {
            fast.lock().disconnect(links[0]).unwrap();
            fast
        });
        std::thread::sleep(Duration::from_millis(100));
        let mut next = 100;
        while next < 100 + MESSAGES {
            let word = silent.recv(queue, LIMIT).unwrap().word;
            if word >= 100 {
                assert_eq!(word, next, "in its order, and none missing");
                next += 1;
            }
        }
        drop(goes.join().unwrap());
    });
}

#[test]
fn a_sender_has_to_wait_for_a_slow_receiver_and_loses_nothing() {
    with_each_provider(|provider| waits_for_a_slow_receiver(provider, 1));
}

#[test]
fn a_sender_over_two_rails_has_to_wait_for_a_slow_receiver_and_loses_nothing() {
    with_each_provider(|provider| waits_for_a_slow_receiver(provider, 2));
}

/// The rest of the data leaves after the last call of the sender's program.
fn waits_for_a_slow_receiver(provider: &str, rails: u32) {
    const MESSAGES: u32 = 2000;
    let dirs = [Dir::new("slow", &[("RING_BYTES", "65536")]), Dir::new("fast", &[])];
    let mut slow = Node::with_config(listening(trusted(&dirs[0], provider).rails(rails))).unwrap();
    let area = slow.message_area(4096).unwrap();
    let queue = slow.notification_queue(2 * MESSAGES).unwrap();
    let slot = slow.slot(SlotConfig::new(area, queue).credit(MESSAGES)).unwrap();
    let ticket = slow.fast_ticket(slot).unwrap();
    let greeting = Accept::Automatic(ticket.to_bytes().to_vec());
    slow.serve("x", Access::SameUser, greeting).unwrap();
    let at = slow.listens_at().unwrap();
    let fast = Manager::with_config(trusted(&dirs[1], provider).rails(rails)).unwrap();
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| {
            let link = fast.connect(&format!("hamlyn://{at}/x"), b"", LIMIT).unwrap();
            let is_whole = || {
                let path = fast.explain(link).unwrap();
                rails == 1 || path.contains("2 of 2 rails")
            };
            until("all rails are there", || is_whole().then_some(()));
            let (mut full, end) = (0, Instant::now() + LONG);
            for i in 0..MESSAGES {
                loop {
                    let bytes = [i as u8; 4096];
                    let tried = fast.lock().try_send_fast_over(link, &ticket, &bytes, 0);
                    match tried {
                        Ok(()) => break,
                        Err(NodeSendError::Full) => {
                            full += 1;
                            assert!(Instant::now() < end, "there is no room for {i}");
                            std::thread::sleep(Duration::from_micros(100));
                        }
                        Err(e) => panic!("{e}"),
                    }
                }
            }
            // The rest leaves without a call of this program's.
            std::thread::sleep(Duration::from_millis(300));
            (full, fast.explain(link).unwrap())
        });
        // No reader: credit, and then the sender's ring, are used up.
        while slow.links().next().is_none() {
            slow.poll().unwrap();
            while slow.next_event().is_some() {}
        }
        std::thread::sleep(Duration::from_millis(300));
        for i in 0..MESSAGES {
            let came = slow.recv(queue, Some(LONG / 2));
            assert!(came.is_ok(), "{i} of {MESSAGES} came: {came:?}");
            if i % 64 == 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        let (full, path) = sender.join().unwrap();
        assert!(full > 0, "nobody had to wait");
        assert!(path.contains("libfabric "), "{path}");
    });
}

/// A host that has the secret and an end point, and speaks by hand.
struct Liar {
    channel: Channel,
    end: FabricEndPoint,
    /// The other end's offer, and its address.
    told: FabricOffer,
    to: Address,
}

/// An end point whose messages are longer than those of a link.
fn end_point(provider: &str) -> FabricEndPoint {
    let library = Library::open(named("HAMLYN_FABRIC_LIBRARY").as_deref()).unwrap();
    let choice = library.choose(Some(provider), Some(HERE)).unwrap();
    let mut end = FabricEndPoint::open(choice, 128 << 10).unwrap();
    end.grow(16, 8).unwrap();
    end
}

impl Liar {
    fn link(at: SocketAddr, dir: &Dir, provider: &str) -> Self {
        let mut end = end_point(provider);
        let (channel, reply) = offer(at, dir, &offer_of(&end));
        let Some(OfferReply::Yes(told)) = reply else { panic!("{reply:?}") };
        let to = end.insert(&told.address).unwrap();
        Self { channel, end, told, to }
    }

    /// The client's end sends first, a message of no data.
    fn first(&mut self) {
        let head = CreditHead { token: self.told.token, before: 0, granted: 8 };
        until("it has left", || {
            let sent = self.end.send(self.to, 1, &[&head.to_bytes()]).unwrap();
            leaves(sent).then_some(())
        });
    }

    /// Sends a message while the other end takes its turns; how that ended the link, if it did.
    fn send(&mut self, heard: &mut Heard, parts: &[&[u8]]) -> Option<CloseReason> {
        let mut reason = None;
        until("it has left", || {
            reason = reason.take().or(heard.turn());
            self.end.poll(&mut Vec::new()).unwrap();
            (reason.is_some() || leaves(self.end.send(self.to, 0, parts).unwrap())).then_some(())
        });
        reason
    }

    /// How its link ends.
    fn ends(&mut self, heard: &mut Heard, what: &str) -> CloseReason {
        until(what, || {
            self.end.poll(&mut Vec::new()).unwrap();
            heard.turn()
        })
    }
}

/// A node that hears from hosts, and what it says of those who leave.
struct Heard {
    _dir: Dir,
    node: Node,
    at: SocketAddr,
}

impl Heard {
    fn new(provider: &str) -> Self {
        Self::with(provider, &[("RING_BYTES", "65536")])
    }

    fn with(provider: &str, settings: &[(&str, &str)]) -> Self {
        let dir = Dir::new("heard", settings);
        let mut node = Node::with_config(listening(trusted(&dir, provider))).unwrap();
        node.serve("x", Access::SameUser, Accept::Automatic(Vec::new())).unwrap();
        let at = node.listens_at().unwrap();
        Self { _dir: dir, node, at }
    }

    fn turn(&mut self) -> Option<CloseReason> {
        self.node.poll().unwrap();
        match self.node.next_event() {
            Some(Event::Closed { reason, .. }) => Some(reason),
            _ => None,
        }
    }

    fn turns(&mut self, milliseconds: u64) {
        let end = Instant::now() + Duration::from_millis(milliseconds);
        while Instant::now() < end {
            assert_eq!(self.turn(), None, "a link has ended");
        }
    }

    fn explain(&self) -> String {
        let link = self.node.links().next().unwrap();
        self.node.explain(link).unwrap()
    }
}

#[test]
fn messages_with_another_token_are_dropped_and_counted_and_the_link_goes_on() {
    with_each_provider(|provider| {
        let mut heard = Heard::new(provider);
        let dir = Dir::new("stranger", &[]);
        let mut liar = Liar::link(heard.at, &dir, provider);
        // A third host, which has found the end point and was told nothing.
        let mut third = end_point(provider);
        let to = third.insert(&liar.told.address).unwrap();
        until("there is a link", || {
            heard.turn();
            heard.node.links().next().map(drop)
        });
        assert!(heard.explain().contains(" 0 messages dropped"), "{}", heard.explain());
        let (window, token) = (u64::from(liar.told.window), liar.told.token);
        let foreign = |token: u64| CreditHead { token, before: 0, granted: 8 }.to_bytes();
        // More than all buffers that there are; each is given back.
        let mut sent = 0;
        for i in 0..100u64 {
            let head = foreign(token ^ (1 << (i % 64)));
            let whole = [head.as_slice(), &[7; 100]].concat();
            let part = &whole[..if i % 3 == 0 { (i % HEAD_BYTES as u64) as usize } else { 124 }];
            until("it has left", || {
                heard.turn();
                third.poll(&mut Vec::new()).unwrap();
                leaves(third.send(to, 0, &[part]).unwrap()).then_some(())
            });
            sent += 1;
        }
        let has_dropped = |heard: &mut Heard, third: &mut FabricEndPoint, sent: u32| {
            let end = Instant::now() + Duration::from_secs(10);
            let all = format!(" {sent} messages dropped");
            while !heard.explain().contains(&all) && Instant::now() < end {
                heard.turns(1);
                let _ = third.poll(&mut Vec::new());
            }
            heard.explain().contains(&all)
        };
        assert!(has_dropped(&mut heard, &mut third, sent), "{}", heard.explain());
        let big = [foreign(token).as_slice(), &vec![9u8; 100 << 10]].concat();
        until("it has left", || {
            heard.turn();
            third.poll(&mut Vec::new()).unwrap();
            leaves(third.send(to, 0, &[&big]).unwrap()).then_some(())
        });
        // Where a provider cuts a message into parts (`ofi_rxm`, of 16 KiB), what is behind the part that
        // has no room left is taken for further messages, of which each is counted by itself.
        let parts =
            if provider.ends_with("ofi_rxm") { big.len().div_ceil(16 << 10) as u32 } else { 1 };
        let dropped = |heard: &Heard| {
            let path = heard.explain();
            let before = path.split(" messages dropped").next().unwrap();
            before.rsplit(' ').next().unwrap().parse::<u32>().unwrap() - sent
        };
        until("the one that is too long is counted", || {
            heard.turn();
            let _ = third.poll(&mut Vec::new());
            (dropped(&heard) > 0).then_some(())
        });
        heard.turns(100);
        eprintln!("{provider} tells of one that is too long as {}", dropped(&heard));
        assert!((1..=parts).contains(&dropped(&heard)), "{}", heard.explain());
        // The link does what it did: all of its window.
        for before in 0..window {
            let head = CreditHead { token, before, granted: 8 }.to_bytes();
            let (end, to) = (&mut liar.end, liar.to);
            // A notice of a ticket that is none: 48 bytes.
            let mut frame = [0; 48];
            frame[0] = 2;
            until("it has left", || {
                heard.turn();
                end.poll(&mut Vec::new()).unwrap();
                leaves(end.send(to, 0, &[&head, &frame]).unwrap()).then_some(())
            });
        }
        heard.turns(50);
        assert_eq!(heard.node.links().count(), 1);
    });
}

// A host that takes nothing, and has link after link left: each would keep its buffers.
#[test]
fn of_links_that_were_left_with_something_on_its_way_there_are_few() {
    with_each_provider(|provider| {
        let station = Arc::new(Station::new(end_point(provider)).unwrap());
        let mut host = end_point(provider);
        let there = offer_of(&host);
        let mut events = Vec::new();
        let mut takes = |host: &mut FabricEndPoint| {
            host.poll(&mut events).unwrap();
            let mut any = false;
            for event in events.drain(..) {
                if let fabric::FabricEvent::Came(received) = event {
                    any = true;
                    host.give_back(received);
                }
            }
            any
        };
        let first = {
            let mut place = station.reserve(HERE, "a").unwrap();
            place.bind(&there, true).unwrap();
            place
        };
        until("there is a connection", || {
            station.nap();
            first.take_all();
            takes(&mut host).then_some(())
        });
        let why = (0..2000).find_map(|_| {
            let mut place = match station.reserve(HERE, "a") {
                Ok(place) => place,
                Err(why) => return Some(why),
            };
            place.bind(&there, true).unwrap();
            place.send(&[7; 100 << 10]);
            place.take_all();
            None
        });
        // One that does not take a message while there is no room for it leaves nothing.
        if provider == "tcp;ofi_rxm" && why.is_none() {
            return eprintln!("{provider} takes nothing that cannot leave");
        }
        let why = why.unwrap();
        assert!(why.contains("links to 127.0.0.1 that have ended"), "{why}");
        // Others are none the worse, and once it has taken what there was, neither is this.
        station.reserve([127, 0, 0, 2].into(), "b").unwrap();
        // An address does not make another host of it: half of all there may be is its.
        let why = (2..=255).find_map(|address| {
            let address = [127, 0, 0, address].into();
            let leave = |_| -> Result<(), String> {
                let mut place = station.reserve(address, "a")?;
                place.bind(&there, true).unwrap();
                place.send(&[7; 100 << 10]);
                place.take_all();
                Ok(())
            };
            (0..8).try_for_each(leave).err()
        });
        let why: String = why.unwrap();
        assert!(why.contains("links to hosts called a that have ended"), "{why}");
        station.reserve([127, 0, 1, 2].into(), "b").unwrap();
        station.reserve(HERE, "b").unwrap_err();
        until("what was on its way has left", || {
            takes(&mut host);
            station.reserve(HERE, "a").ok().map(drop)
        });
    });
}

#[test]
fn what_no_host_sends_ends_its_link_and_nothing_else() {
    with_each_provider(|provider| {
        let mut heard = Heard::new(provider);
        let dir = Dir::new("liar", &[]);
        let honest = Liar::link(heard.at, &dir, provider);
        until("there is a link", || {
            heard.turn();
            heard.node.links().next().map(drop)
        });
        type Lie = fn(&mut CreditHead);
        let lies: [(&str, bool, Lie); 4] = [
            ("a message beyond the window", true, |head| head.before = 8),
            ("a grant of what it does not have", true, |head| head.granted = u64::MAX),
            ("the same alone", false, |head| head.granted = 9),
            ("bytes that are no frame", true, |_| {}),
        ];
        for (what, has_data, lie) in lies {
            eprintln!("{what}");
            let mut liar = Liar::link(heard.at, &dir, provider);
            let mut head = CreditHead { token: liar.told.token, before: 0, granted: 8 };
            lie(&mut head);
            let data: &[u8] = if has_data { &[0xff; 48] } else { &[] };
            let reason = liar.send(&mut heard, &[&head.to_bytes(), data]);
            let reason = reason.unwrap_or_else(|| liar.ends(&mut heard, what));
            assert!(matches!(reason, CloseReason::Misbehaved(_)), "{what}: {reason:?}");
        }
        // One message twice.
        let mut liar = Liar::link(heard.at, &dir, provider);
        let head = CreditHead { token: liar.told.token, before: 1, granted: 8 }.to_bytes();
        let reason = (0..2).find_map(|_| liar.send(&mut heard, &[&head, &[0; 16]]));
        let reason = reason.unwrap_or_else(|| liar.ends(&mut heard, "one came twice"));
        assert!(matches!(reason, CloseReason::Misbehaved(_)), "{reason:?}");
        // One that is gone has died.
        let liar = Liar::link(heard.at, &dir, provider);
        drop(liar);
        let reason = until("a host is gone", || heard.turn());
        assert_eq!(reason, CloseReason::Died);
        assert_eq!(heard.node.links().count(), 1);
        drop(honest);
    });
}

#[test]
fn what_a_provider_asks_for_is_done() {
    if providers().is_empty() {
        return skipped(NEEDED);
    }
    let dir = Dir::new("strict", &[]);
    let tests = [
        "calls_travel_over_the_fabric_where_both_ends_ask_for_it",
        "streams_and_tags_arrive_whole_from_several_hosts_at_once",
        "what_was_sent_arrives_though_its_sender_leaves_at_once",
        "both_ends_sleep_and_are_woken",
    ];
    let Some(saw) = strictly(&dir, &tests) else { return };
    for what in ["descriptor", "bound", "context"] {
        assert!(saw.lines().any(|line| line == what), "{what} was not looked at: {saw}");
    }
}

// No host of this version sends one so; a message may be shorter than a frame.
#[test]
fn a_frame_that_lies_in_several_messages_is_read_as_one() {
    with_each_provider(|provider| {
        let mut heard = Heard::new(provider);
        let dir = Dir::new("parts", &[]);
        let mut liar = Liar::link(heard.at, &dir, provider);
        // A notice of a ticket that is none, and a goodbye.
        let mut frames = [0; 96];
        (frames[0], frames[48]) = (2, 1);
        let mut reason = None;
        let parts =
            [&frames[..10], &frames[10..40], &frames[40..50], &frames[50..95], &frames[95..]];
        for (before, part) in (0..).zip(parts) {
            assert_eq!(reason, None, "{provider}: the end is in the last part");
            let head = CreditHead { token: liar.told.token, before, granted: 8 }.to_bytes();
            reason = liar.send(&mut heard, &[&head, part]);
        }
        let reason = reason.unwrap_or_else(|| liar.ends(&mut heard, "it has said goodbye"));
        assert_eq!(reason, CloseReason::Closed, "{provider}");
    });
}

#[test]
fn an_offer_that_cannot_be_is_declined_with_the_reason() {
    let providers = providers();
    let Some(provider) = providers.first() else { return skipped(NEEDED) };
    let mut heard = Heard::new(provider);
    let dir = Dir::new("offers", &[]);
    let end = end_point(provider);
    type Change = fn(&mut FabricOffer);
    let changes: [(&str, Change); 7] = [
        ("protocol", |offer| offer.protocol.0 ^= 1),
        ("protocol", |offer| offer.format ^= 1),
        ("another family", |offer| offer.address.clear()),
        ("another family", |offer| offer.address[0] ^= 0xff),
        ("address", |offer| offer.address.push(0)),
        ("allowed are", |offer| offer.window = 0),
        ("allowed are", |offer| offer.message_bytes = 10),
    ];
    for (why, change) in changes {
        let mut lie = offer_of(&end);
        change(&mut lie);
        let (_channel, reply) = offer(heard.at, &dir, &lie);
        let Some(OfferReply::No(text)) = reply else { panic!("{why}: {reply:?}") };
        assert!(text.contains(why), "{why}: {text}");
        heard.turn();
    }
    // Its own address.
    let (_channel, reply) = offer(heard.at, &dir, &offer_of(&end));
    let Some(OfferReply::Yes(own)) = reply else { panic!("{reply:?}") };
    let (_channel, reply) = offer(heard.at, &dir, &own);
    assert!(matches!(&reply, Some(OfferReply::No(text)) if text.contains("this one")), "{reply:?}");
}

/// A host's answer to the question how many messages have come, from the true number.
type Answer = fn(u64) -> Option<u64>;

/// Sends some packets to a host with such an answer: how often it is asked, and how the link ends, if it does.
/// It sends first itself, or not.
fn asked(
    provider: &str,
    packets: u64,
    answer: Answer,
    is_first: bool,
) -> (u32, Option<CloseReason>) {
    let mut heard = Heard::with(provider, &[("HOST_TIMEOUT_MS", "2000")]);
    let area = heard.node.message_area(64).unwrap();
    let queue = heard.node.notification_queue(4).unwrap();
    let slot = heard.node.slot(SlotConfig::new(area, queue).credit(4)).unwrap();
    let mut ticket = heard.node.fast_ticket(slot).unwrap();
    let dir = Dir::new("asked", &[]);
    let mut host = Liar::link(heard.at, &dir, provider);
    if is_first {
        host.first();
    }
    let link = until("there is a link", || {
        heard.turn();
        heard.node.links().next()
    });
    ticket.destination = heard.node.peer(link).unwrap().node;
    let (mut left, mut came, mut asked, mut events) = (packets, 0, 0, Vec::new());
    // For much longer than nothing may arrive.
    let end = Instant::now() + Duration::from_millis(5000);
    while Instant::now() < end {
        if let Some(reason) = heard.turn() {
            return (asked, Some(reason));
        }
        if left > 0 && heard.node.try_send_fast_over(link, &ticket, b"x", 0).is_ok() {
            left -= 1;
        }
        host.end.poll(&mut events).unwrap();
        for event in events.drain(..) {
            if let hamlyn::os::fabric::FabricEvent::Came(message) = event {
                came += u64::from(message.bytes().len() > HEAD_BYTES);
                host.end.give_back(message);
            }
        }
        host.channel.receive(64);
        while let Ok(Some((word, bytes))) = words::read(host.channel.plain()) {
            assert_eq!(word, FabricWord::Asks(false));
            host.channel.take(bytes);
            asked += 1;
            if let Some(came) = answer(came) {
                let mut said = Vec::new();
                words::put(&mut said, &FabricWord::Came(came));
                host.channel.put(&said);
                host.channel.flush();
            }
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    (asked, None)
}

#[test]
fn a_fabric_that_carries_nothing_to_a_host_that_answers_over_tls_ends_the_link_and_the_reason_is_told()
 {
    let providers = providers();
    let Some(provider) = providers.first() else { return skipped(NEEDED) };
    let told = Arc::<Mutex<Vec<String>>>::default();
    let to = told.clone();
    set_sink(Some(Arc::new(move |entry| to.lock().unwrap().push(entry.to_string()))));
    std::thread::scope(|scope| {
        let cases: [(u64, Answer); 7] = [
            // Nothing comes there, or nothing more.
            (3, |_| Some(0)),
            (3, |came| Some(came.saturating_sub(1))),
            // Everything has come, though its program uses nothing.
            (3, Some),
            // It does not answer, as a process that is stopped.
            (3, |_| None),
            // Nothing was sent.
            (0, Some),
            // More than there were.
            (3, |came| Some(came + 9)),
            // It does not send first, as it has to, or that does not arrive.
            (3, |_| Some(0)),
        ];
        let mut number = 0;
        let ends = cases.map(|(packets, answer)| {
            number += 1;
            let is_first = number < 7;
            scope.spawn(move || asked(provider, packets, answer, is_first))
        });
        let [none, some, all, silent, idle, lies, last] = ends.map(|end| end.join().unwrap());
        for (asked, reason) in [none, some, last] {
            assert_eq!(reason, Some(CloseReason::Died));
            assert!(asked >= 4, "{asked}");
        }
        assert!(matches!(all, (1.., None)), "{all:?}");
        assert_eq!(silent, (1, None));
        assert_eq!(idle, (0, None));
        assert!(matches!(lies, (1, Some(CloseReason::Misbehaved(_)))), "{lies:?}");
    });
    until("it is told why", || {
        let told = told.lock().unwrap();
        let why = "nothing of what is sent to it over the fabric has arrived";
        (told.iter().filter(|entry| entry.contains(why)).count() == 3).then_some(())
    });
    set_sink(None);
}

#[test]
fn whatever_another_host_says_of_a_fabric_or_over_it_no_more_is_kept_or_sent_than_was_granted() {
    let mut random = Random::new(23);
    let mut most = 0;
    for i in 0..20_000 {
        let mut bytes: Vec<u8> = (0..random.below(400)).map(|_| random.next() as u8).collect();
        // Heads that mean something: numbers of messages, in about their order, and small grants.
        if let Some((_, messages)) = bytes.split_first_chunk_mut::<2>()
            && i % 4 > 0
        {
            for (number, message) in (0u64..).zip(messages.chunks_exact_mut(HEAD_BYTES + 1)) {
                let before = (number + random.below(2)).saturating_sub(random.below(2));
                let head = CreditHead { token: 0, before, granted: random.below(3) };
                message[..HEAD_BYTES].copy_from_slice(&head.to_bytes());
            }
        }
        most = most.max(model::fabric(&bytes));
    }
    assert!(most > 10, "{most} messages of a link are taken at most");
}

#[test]
fn whatever_another_host_says_beside_a_link_is_read_as_it_is_written_and_holds_nothing() {
    let mut random = Random::new(29);
    let (mut most, mut figures) = (0, 0);
    for i in 0..5_000 {
        let mut bytes = Vec::new();
        for number in (2..).step_by(2).take(random.below(12) as usize) {
            let number = if random.one_in(8) { random.below(9) as u32 } else { number };
            let size = if random.one_in(16) { random.next() } else { 4096 << random.below(8) };
            let word = match random.below(16) {
                0 => FabricWord::Count(random.next()),
                1 => FabricWord::Held(number),
                2 => FabricWord::Refused(number, Reason::Apertures),
                3 => FabricWord::Revoked(number),
                4 => FabricWord::Released(number),
                5 => FabricWord::Asks(random.one_in(2)),
                6 => FabricWord::Came(random.next()),
                _ => FabricWord::Offer(OpenedMemory {
                    number,
                    bytes: size,
                    base: random.next() >> 20,
                    key: random.next(),
                    access: ApertureAccess::ReadWrite,
                    address: vec![2; 1 + random.below(20) as usize],
                }),
            };
            words::put(&mut bytes, &word);
        }
        if i % 4 == 0 {
            bytes = (0..random.below(200)).map(|_| random.next() as u8).collect();
        }
        most = most.max(model::words(&bytes));
        let mut told = (random.below(40) as u32).to_le_bytes().to_vec();
        told.extend_from_slice(&bytes);
        figures += usize::from(model::figures(&told));
    }
    assert!(most > 3 && figures > 100, "{most} words are taken at most, and {figures} figures");
}

#[test]
fn role() {
    let Some(role) = Role::of_this_process() else { return };
    if role.name == "leaves" {
        let manager = Manager::with_config(role.config()).unwrap();
        let limit = Duration::from_millis(role.number(1));
        let connected = Client::connect(&manager, &role.args[0], Some(limit)).map(drop);
        eprintln!("leaves: {connected:?}");
        // As a `main` that returns does.
        std::process::exit(0);
    }
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

/// Whether a message is the library's.
fn leaves(sent: SendOutcome) -> bool {
    matches!(sent, SendOutcome::Leaves(_))
}
