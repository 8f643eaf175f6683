//! The cost of links to other hosts for this process, and its behaviour when the system refuses
//! resources for them: secrets that are wiped, memory that is released, places that are shared
//! between proved identities.
#![cfg(not(miri))]

mod support;

use hamlyn::node::{CloseReason, Event};
use hamlyn::protocol::{
    CallError, Client, Manager, Server, ServerConfig, TaggedConfig, TaggedReceiver, TaggedSender,
};
use hamlyn::{Accept, Access, Config, Node};
use rcgen::{CertificateParams, DnType, Issuer, KeyPair};
use std::io::{Read, Seek, SeekFrom, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use support::{Costs, Dir, LIMIT, Peer, Role, alone, refuse, say, until};

const LOOPBACK: &str = "127.0.0.1:0";

/// A byte of the secret, which is nowhere in this program.
fn secret_byte(i: usize) -> u8 {
    (i * 37 + 11) as u8
}

fn secret(dir: &Dir) -> PathBuf {
    let digits: String = (0..32).map(|i| format!("{:02x}", secret_byte(i))).collect();
    dir.write("secret", digits.as_bytes())
}

fn listening(config: Config) -> Config {
    config.listen(LOOPBACK.parse::<SocketAddr>().unwrap())
}

/// Answers calls of `double` until `ends`.
fn answer(server: &Server, ends: &AtomicBool) {
    while !ends.load(Ordering::Relaxed) {
        if let Ok(request) = server.receive(Some(Duration::from_millis(20))) {
            let twice = request.repeat(2);
            let _ = request.reply(&twice, LIMIT);
        }
    }
}

#[test]
fn a_thread_for_other_hosts_that_cannot_go_on_says_so_and_its_links_end() {
    let keys = Dir::new("ends-keys", &[]);
    let key = secret(&keys).display().to_string();
    let there = Dir::new("ends-there", &[]);
    let manager = Manager::with_config(listening(there.config().secret(key.as_str()))).unwrap();
    let server = Server::new(&manager, ServerConfig::default()).unwrap();
    server.serve("double", Access::SameUser).unwrap();
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| answer(&server, &ends));
        let settings =
            [("SECRET", key.as_str()), ("LISTEN", LOOPBACK), ("HOST_TIMEOUT_MS", "2000")];
        let dir = Dir::new("ends-here", &settings);
        let at = manager.listens_at().unwrap();
        let mut peer = Peer::start("without_epoll", &dir, &format!("hamlyn://{at}/double"));
        peer.expect("done");
        peer.end();
        ends.store(true, Ordering::Relaxed);
    });
}

fn without_epoll(role: &Role) {
    let manager = Manager::with_config(role.config()).unwrap();
    let at = manager.listens_at().unwrap();
    let client = Client::connect(&manager, &role.args[0], LIMIT).unwrap();
    assert_eq!(*client.call(b"ab", LIMIT).unwrap(), *b"abab");
    #[cfg(target_arch = "x86_64")]
    refuse(libc::SYS_epoll_wait);
    refuse(libc::SYS_epoll_pwait);
    until("the link has ended", || {
        !matches!(
            client.call(b"ab", Some(Duration::from_millis(50))),
            Ok(_) | Err(CallError::TimedOut)
        )
    });
    let error = client.call(b"ab", LIMIT).unwrap_err();
    assert!(matches!(error, CallError::Ended(CloseReason::Unwatched)), "{error}");
    let error = Client::connect(&manager, &role.args[0], LIMIT).err().unwrap().to_string();
    assert!(error.contains("the thread for other hosts"), "{error}");
    let error = TcpStream::connect(at).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
    assert_eq!(manager.listens_at(), None);
    say("done");
}

#[test]
fn a_process_that_runs_its_own_control_plane_is_told_that_other_hosts_need_a_thread() {
    let dir = Dir::new("no-thread", &[("HOUSEKEEPING", "application")]);
    let config = dir.config().secret(secret(&dir));
    let error = hamlyn::Node::with_config(listening(config.clone())).err().unwrap().to_string();
    assert!(error.contains("HAMLYN_HOUSEKEEPING"), "{error}");
    let mut node = hamlyn::Node::with_config(config).unwrap();
    let error = node.connect("hamlyn://127.0.0.1:1/x", b"", LIMIT).unwrap_err().to_string();
    assert!(error.contains("HAMLYN_HOUSEKEEPING"), "{error}");
}

// ---- secrets

/// How often `is` holds for the `length` bytes at each place of this process's memory.
fn found(length: usize, is: impl Fn(&[u8]) -> bool) -> usize {
    const CHUNK: usize = 1 << 20;
    let mut buffer = vec![0u8; CHUNK];
    let own = buffer.as_ptr() as usize..buffer.as_ptr() as usize + CHUNK;
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let mut memory = std::fs::File::open("/proc/self/mem").unwrap();
    let mut count = 0;
    for line in maps.lines() {
        let mut words = line.split_ascii_whitespace();
        let (range, rights) = (words.next().unwrap(), words.next().unwrap());
        let (start, end) = range.split_once('-').unwrap();
        let address = |text| usize::from_str_radix(text, 16).unwrap();
        let (mut at, end) = (address(start), address(end));
        if !rights.starts_with("rw") {
            continue;
        }
        while at + length <= end {
            // The search would find its own buffer.
            if own.contains(&at) {
                at = own.end;
                continue;
            }
            let next = if at < own.start { end.min(own.start) } else { end };
            let some = CHUNK.min(next - at);
            memory.seek(SeekFrom::Start(at as u64)).unwrap();
            if memory.read_exact(&mut buffer[..some]).is_err() {
                break;
            }
            count += buffer[..some].windows(length).filter(|window| is(window)).count();
            buffer.fill(0);
            at += if some < CHUNK { some } else { some - length + 1 };
        }
    }
    count
}

fn is_secret(bytes: &[u8]) -> bool {
    bytes.iter().enumerate().all(|(i, byte)| *byte == secret_byte(i))
}

fn is_secret_text(bytes: &[u8]) -> bool {
    let digit = |half: u8| char::from_digit(half.into(), 16).unwrap() as u8;
    let pairs = bytes.chunks_exact(2).enumerate();
    pairs
        .map(|(i, pair)| (pair, secret_byte(i)))
        .all(|(pair, byte)| pair[0] == digit(byte >> 4) && pair[1] == digit(byte & 15))
}

/// Bytes of a key's file are compared with what is written so.
const MASK: u8 = 0xa5;

#[test]
fn a_secret_is_wiped_when_nobody_has_it_any_more() {
    let authority = Authority::new();
    let dir = Dir::new("wiped", &[]);
    let (own, key) = authority.issue(&dir, "host.example");
    let masked: Vec<u8> = key.serialize_der().iter().map(|byte| byte ^ MASK).collect();
    dir.write("masked", masked);
    // A key alone, and both together.
    let path = secret(&dir).display().to_string();
    let file = |name: &str| dir.path.join(name).display().to_string();
    drop(own);
    let settings = [
        ("SECRET", path),
        ("CERTIFICATE", file("own.pem")),
        ("CERTIFICATE_KEY", file("key.pem")),
        ("TRUSTED", file("trusted.pem")),
    ];
    for with in [1, 4] {
        let settings: Vec<(&str, &str)> =
            settings[..with].iter().map(|(name, value)| (*name, value.as_str())).collect();
        let own = Dir::new("wiped-own", &[&settings[..], &[("LISTEN", LOOPBACK)]].concat());
        let mut peer = Peer::start("wipes", &own, &file("masked"));
        peer.expect("wiped");
        peer.end();
    }
}

fn wipes(role: &Role) {
    let masked = std::fs::read(&role.args[0]).unwrap();
    // The number that is the key itself lies behind 36 bytes of PKCS #8.
    let masked = masked[36..68].to_vec();
    let is_key =
        |bytes: &[u8]| bytes.iter().zip(&masked).all(|(byte, hidden)| byte ^ MASK == *hidden);
    let mut shown: Vec<u8> = masked.iter().map(|byte| byte ^ MASK).collect();
    assert!(found(32, is_key) > 0, "what is looked for would be found");
    shown.fill(std::hint::black_box(0));
    let manager = Manager::with_config(role.config()).unwrap();
    let at = manager.listens_at().unwrap();
    assert_eq!(found(32, is_secret), 1, "it is in one place, as long as it is needed");
    assert_eq!(found(64, is_secret_text), 0, "the text that it was read from");
    assert_eq!(found(32, is_key), 0, "what a key was read from");
    if role.config().certificate.is_none() {
        let here = Manager::with_config(role.config()).unwrap();
        let server = Server::new(&manager, ServerConfig::default()).unwrap();
        server.serve("double", Access::SameUser).unwrap();
        let ends = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| answer(&server, &ends));
            let client = Client::connect(&here, &format!("hamlyn://{at}/double"), LIMIT).unwrap();
            assert_eq!(*client.call(b"ab", LIMIT).unwrap(), *b"abab");
            ends.store(true, Ordering::Relaxed);
        });
    }
    drop(manager);
    assert_eq!(found(32, is_secret), 0, "nobody needs it any more");
    say("wiped");
}

// ---- memory

#[test]
fn an_idle_link_gives_back_what_it_needs_to_carry_something() {
    alone("an_idle_link_gives_back_what_it_needs_to_carry_something", || {
        const LINKS: usize = 16;
        // Of both ends of a link: TLS of each, and what the end points know of one another.
        const BYTES_MAX: usize = 64 << 10;
        let settings = [("HOST_TIMEOUT_MS", "2000")];
        let (there, here) = (Dir::new("idle-there", &settings), Dir::new("idle-here", &settings));
        let key = secret(&there);
        let manager = Manager::with_config(listening(there.config().secret(key.clone()))).unwrap();
        let server = Server::new(&manager, ServerConfig::default()).unwrap();
        server.serve("double", Access::SameUser).unwrap();
        let own = Manager::with_config(here.config().secret(key)).unwrap();
        let name = format!("hamlyn://{}/double", manager.listens_at().unwrap());
        let ends = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| answer(&server, &ends));
            let first = Client::connect(&own, &name, LIMIT).unwrap();
            first.call(&[7; 100_000], LIMIT).unwrap();
            let before = Costs::now().heap_bytes;
            let clients: Vec<Client> =
                (0..LINKS).map(|_| Client::connect(&own, &name, LIMIT).unwrap()).collect();
            for _ in 0..3 {
                for client in &clients {
                    let request: Vec<u8> = (0..100_000u32).map(|i| (i % 251) as u8).collect();
                    assert_eq!(*client.call(&request, LIMIT).unwrap(), *request.repeat(2));
                }
                let each = || Costs::now().heap_bytes.saturating_sub(before) / LINKS;
                let busy = each();
                until("an idle link has given memory back", || each() < BYTES_MAX);
                eprintln!("{busy} bytes on the heap for a link's two ends, then {}", each());
            }
            ends.store(true, Ordering::Relaxed);
        });
    });
}

#[test]
fn as_many_descriptors_and_as_much_memory_are_in_use_after_many_connections_as_before() {
    let name = "as_many_descriptors_and_as_much_memory_are_in_use_after_many_connections_as_before";
    support::alone_for(name, 600, || {
        let rounds =
            std::env::var("HAMLYN_TEST_ROUNDS").map_or(300, |n| 2 * n.parse::<usize>().unwrap());
        let (there, here) = (Dir::new("many-there", &[]), Dir::new("many-here", &[]));
        let key = secret(&there);
        let manager = Manager::with_config(listening(there.config().secret(key.clone()))).unwrap();
        let server = Server::new(&manager, ServerConfig::default()).unwrap();
        server.serve("double", Access::SameUser).unwrap();
        let own = Manager::with_config(here.config().secret(key)).unwrap();
        let at = manager.listens_at().unwrap();
        let name = format!("hamlyn://{at}/double");
        let ends = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| answer(&server, &ends));
            let connect = |i: usize| {
                // One in four leaves before it is a link.
                if i % 4 == 3 {
                    let mut stranger = TcpStream::connect(at).unwrap();
                    return drop(stranger.write_all(b"?"));
                }
                let client = Client::connect(&own, &name, LIMIT).unwrap();
                assert_eq!(*client.call(b"ab", LIMIT).unwrap(), *b"abab");
            };
            let costs = || {
                let costs = Costs::now();
                (costs.descriptors, costs.heap_bytes, costs.mappings)
            };
            (0..40).for_each(connect);
            let before = {
                let mut last = costs();
                until("what was left has gone", || {
                    std::thread::sleep(Duration::from_millis(100));
                    core::mem::replace(&mut last, costs()) == last
                });
                last
            };
            (0..rounds).for_each(connect);
            // Tables may have grown; a connection that is kept has 20,000 bytes and more, and two rings.
            let is_so = |now: (usize, usize, usize)| {
                now.0 <= before.0 && now.1 <= before.1 + 16_000 && now.2 <= before.2 + 8
            };
            let end = std::time::Instant::now() + support::LONG;
            while !is_so(costs()) && std::time::Instant::now() < end {
                std::thread::sleep(Duration::from_millis(10));
            }
            let now = costs();
            eprintln!(
                "{rounds} connections: descriptors, bytes, mappings {before:?}, then {now:?}"
            );
            assert!(is_so(now), "{before:?} before, {now:?} after {rounds} connections");
            ends.store(true, Ordering::Relaxed);
        });
    });
}

// ---- who is who

struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "an authority");
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Self { issuer: Issuer::new(params, key), pem }
    }

    fn issue(&self, dir: &Dir, name: &str) -> (Config, KeyPair) {
        let params = CertificateParams::new(vec![name.to_string()]).unwrap();
        let key = KeyPair::generate().unwrap();
        let own = params.signed_by(&key, &self.issuer).unwrap();
        let config = dir
            .config()
            .certificate(dir.write("own.pem", own.pem().as_bytes()))
            .certificate_key(dir.write("key.pem", key.serialize_pem().as_bytes()))
            .trusted(dir.write("trusted.pem", self.pem.as_bytes()));
        (config, key)
    }
}

#[test]
fn places_are_shared_out_by_who_another_host_has_proved_to_be() {
    let authority = Authority::new();
    let dirs = ["localhost", "one.example", "two.example"].map(|name| (name, Dir::new(name, &[])));
    let [there, one, two] = dirs.each_ref().map(|(name, dir)| authority.issue(dir, name).0);
    let manager = Manager::with_config(listening(there)).unwrap();
    manager.start_progress().unwrap();
    hamlyn::control::setup_shared_dir(&dirs[0].1.config()).unwrap();
    let mut config = TaggedConfig::new(64);
    config.senders_max = 8;
    let mut tags = TaggedReceiver::new(&manager, config).unwrap();
    tags.serve("tags", Access::Anyone).unwrap();
    let name = format!("hamlyn://localhost:{}/tags", manager.listens_at().unwrap().port());
    let (one, two) = (Manager::with_config(one).unwrap(), Manager::with_config(two).unwrap());
    let connect = |manager| TaggedSender::connect(manager, &name, LIMIT);
    let mut senders: Vec<TaggedSender> = (0..7).map(|_| connect(&one).unwrap()).collect();
    // The last place is for another identity, such as another host.
    let error = connect(&one).err().unwrap().to_string();
    assert!(error.contains("for users who have none"), "{error}");
    let mut other = connect(&two).unwrap();
    other.send(0, b"two", 2, LIMIT).unwrap();
    let tag = tags.get_tag(LIMIT).unwrap();
    assert_eq!(tag.tag, 2);
    let identity = |link| {
        let peer = manager.lock().peer(link).unwrap().clone();
        peer.host.unwrap().identity
    };
    assert_eq!(identity(tag.link), "two.example");
    senders[0].send(0, b"one", 1, LIMIT).unwrap();
    assert_eq!(identity(tags.get_tag(LIMIT).unwrap().link), "one.example");
}

#[test]
fn more_that_ask_at_once_than_may_wait_for_an_answer_are_connected_one_behind_the_other() {
    const CLIENTS: usize = 24;
    let there = Dir::new("asked-there", &[]);
    let key = secret(&there);
    let mut node = Node::with_config(listening(there.config().secret(key.clone()))).unwrap();
    node.serve("x", Access::SameUser, Accept::Ask).unwrap();
    let name = format!("hamlyn://{}/x", node.listens_at().unwrap());
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let client = || {
            let (name, key, ends) = (&name, key.clone(), &ends);
            scope.spawn(move || {
                let dir = Dir::new("asked-here", &[]);
                let mut node = Node::with_config(dir.config().secret(key)).unwrap();
                let connected = node.connect(name, b"", LIMIT).map(|_| ());
                until("all have been answered", || {
                    connected.is_err() || ends.load(Ordering::Relaxed)
                });
                connected.map_err(|error| error.to_string())
            })
        };
        let mut clients = Vec::new();
        let (mut requests, mut connected, mut tells) = (Vec::new(), 0, true);
        until("all are connected, or have given up", || {
            // Of one address 16 may have proved nothing yet.
            if clients.len() < CLIENTS && clients.len() <= requests.len() {
                clients.extend((0..8).map(|_| client()));
            }
            node.poll().unwrap();
            while let Some(event) = node.next_event() {
                match event {
                    Event::Request { id, .. } => requests.push(id),
                    Event::Connected { .. } => connected += 1,
                    other => panic!("{other:?}"),
                }
            }
            // No client gets an answer before another has been disconnected.
            if tells && clients.len() == CLIENTS {
                let told = hamlyn::control::stat_of(&there.config(), &"x".parse().unwrap(), LIMIT);
                tells = !told.unwrap().contains("of those that wait for an answer");
            } else if !tells {
                requests.drain(..).for_each(|id| node.accept(id, b"").unwrap());
            }
            connected == CLIENTS || clients.iter().any(|client| client.is_finished())
        });
        ends.store(true, Ordering::Relaxed);
        for client in clients {
            assert_eq!(client.join().unwrap(), Ok(()));
        }
    });
}

#[test]
fn role() {
    let Some(role) = Role::of_this_process() else { return };
    match role.name.as_str() {
        "without_epoll" => without_epoll(&role),
        "wipes" => wipes(&role),
        other => panic!("{other}"),
    }
}
