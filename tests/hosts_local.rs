//! Names of services on other hosts that lead to this one: a ring if the process that has proved
//! its identity over TLS also serves the local name; TLS in every other case, with the reason.
#![cfg(not(miri))]

#[path = "support/hand.rs"]
mod hand;
mod support;

use hamlyn::control::Identity;
use hamlyn::control::frame::Credential;
use hamlyn::control::hosts::hello::Answer;
use hamlyn::control::hosts::keys::Keys;
use hamlyn::control::hosts::meeting::{Meeting, MeetingStep, OwnData};
use hamlyn::control::hosts::said::{Said, ServiceHere};
use hamlyn::node::{ApertureEvent, ConnectError, Event};
use hamlyn::protocol::{
    Client, Manager, Server, ServerConfig, TaggedConfig, TaggedReceiver, TaggedSender,
};
use hamlyn::{Accept, Access, ApertureAccess, Config, LinkId, Node};
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::time::Duration;
use support::*;

const RING: (&str, &str) = ("LOCAL", "ring");
const LOOPBACK: &str = "127.0.0.1:0";

fn config(dir: &Dir, key: &Path) -> Config {
    dir.config_with(&[RING]).secret(key)
}

fn listens(config: Config, at: &str) -> Config {
    config.listen(at.parse::<SocketAddr>().unwrap())
}

/// A node that serves `x` to both, and its name for other hosts.
fn server(config: Config, accept: Accept) -> (Node, String) {
    let mut node = Node::with_config(config).unwrap();
    node.serve("x", Access::SameUser, accept).unwrap();
    let at = format!("hamlyn://{}/x", node.listens_at().unwrap());
    (node, at)
}

fn yes() -> Accept {
    Accept::Automatic(b"welcome".to_vec())
}

fn count(node: &Node, name: &str) -> u64 {
    node.counters().iter().find(|row| row.0 == name).unwrap_or_else(|| panic!("{name}")).1
}

#[track_caller]
fn is_ring(node: &Node, link: LinkId) -> String {
    let path = node.explain(link).unwrap();
    assert!(path.starts_with("shared-memory ring to process"), "{path}");
    assert!(path.contains("asked for as hamlyn://"), "{path}");
    assert!(node.peer(link).unwrap().host.is_none());
    path
}

/// Over TLS, and why.
#[track_caller]
fn is_tls(node: &Node, link: LinkId, why: &str) {
    let path = node.explain(link).unwrap();
    assert!(path.starts_with("TCP with TLS 1.3"), "{path}");
    assert!(path.contains("not a ring, though this host: ") && path.contains(why), "{path}");
    assert!(node.peer(link).unwrap().host.is_some());
}

fn event_of(node: &mut Node, what: &str, is_it: impl Fn(&Event) -> bool) -> Event {
    let mut found = None;
    until_node(node, what, |node| {
        while let Some(event) = node.next_event() {
            if is_it(&event) {
                found = Some(event);
                return true;
            }
        }
        false
    });
    found.unwrap()
}

#[test]
fn a_name_that_turns_out_to_be_local_takes_the_ring_and_apertures_work_over_it() {
    let dir = Dir::new("ring", &[]);
    let key = dir.secret();
    let (mut there, at) = server(listens(config(&dir, &key), LOOPBACK), yes());
    let mut here = Node::with_config(config(&dir, &key)).unwrap();
    let link = here.connect(&at, b"hello", LIMIT).unwrap();
    let path = is_ring(&here, link);
    assert!(path.contains(&at) && path.contains("proved itself over TLS (secret)"), "{path}");
    assert_eq!(here.greeting(link).unwrap(), b"welcome");
    let peer = here.peer(link).unwrap();
    assert_eq!((peer.node, peer.is_proved), (there.id(), true));
    assert_eq!((peer.pid, peer.uid), (Some(std::process::id()), Some(0).filter(|_| is_root())));
    // The server sees one link, and no other event.
    let event = event_of(&mut there, "a link is there", |_| true);
    let Event::Connected { link: theirs, request: None } = event else { panic!("{event:?}") };
    assert_eq!(there.greeting(theirs).unwrap(), b"hello");
    assert!(there.next_event().is_none());
    assert_eq!(count(&there, "links_opened"), 1);
    for (name, value) in there.counters() {
        assert!(value == 0 || !name.contains("refused"), "{name} {value}");
    }
    let id = here.export(link, 1 << 20, ApertureAccess::ReadWrite).unwrap();
    let is_held =
        |event: &Event| matches!(event, Event::Aperture { what: ApertureEvent::Held, .. });
    let Event::Aperture { aperture, .. } = event_of(&mut there, "it is held", is_held) else {
        unreachable!("it was asked for")
    };
    there.aperture(aperture).unwrap().write(7, b"through shared pages").unwrap();
    let mut bytes = [0; 20];
    here.aperture_view(id).unwrap().read(7, &mut bytes).unwrap();
    assert_eq!(&bytes, b"through shared pages");
    // And ends as any other.
    here.disconnect(link).unwrap();
    event_of(&mut there, "it ends", |event| matches!(event, Event::Closed { .. }));
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[test]
fn calls_seeds_and_names_of_a_directory_take_the_ring_too() {
    let dir = Dir::new("managers", &[]);
    let key = dir.secret();
    let services = dir.path.join("services");
    let config = config(&dir, &key).directory(services.clone());
    let there = Manager::with_config(listens(config.clone(), LOOPBACK)).unwrap();
    there.start_progress().unwrap();
    let at = there.listens_at().unwrap();
    let here = Manager::with_config(config).unwrap();
    let server = Server::new(&there, ServerConfig::default()).unwrap();
    std::fs::write(&services, format!("double {at}\n")).unwrap();
    std::thread::scope(|scope| {
        let client = scope.spawn(|| {
            // The service does not exist yet: the client waits for it, and finds it.
            let client = Client::connect(&here, "hamlyn://double", LIMIT).unwrap();
            let path = client.explain();
            assert!(path.contains("shared-memory ring"), "{path}");
            assert!(path.contains("asked for as hamlyn://double, at 127.0.0.1"), "{path}");
            assert_eq!(*client.call(b"ab", LIMIT).unwrap(), *b"abab");
        });
        std::thread::sleep(Duration::from_millis(300));
        server.serve("double", Access::SameUser).unwrap();
        let request = server.receive(LIMIT).unwrap();
        let twice = request.repeat(2);
        request.reply(&twice, LIMIT).unwrap();
        client.join().unwrap();
    });
    let mut tags = TaggedReceiver::new(&there, TaggedConfig::new(64)).unwrap();
    let seed = tags.seed().unwrap().at_host(&at.to_string()).unwrap();
    let mut sender = TaggedSender::grow(&here, &seed, LIMIT).unwrap();
    let path = sender.explain();
    assert!(path.contains("shared-memory ring") && path.contains("asked for as"), "{path}");
    sender.send(0, b"near", 7, LIMIT).unwrap();
    assert_eq!(tags.get_tag(LIMIT).unwrap().tag, 7);
}

#[test]
fn so_does_the_loopback_of_ipv6_and_a_listener_of_both_versions() {
    if UdpSocket::bind("[::1]:0").is_err() {
        return skipped("this host has no IPv6");
    }
    let dir = Dir::new("six", &[]);
    let key = dir.secret();
    let mut here = Node::with_config(config(&dir, &key)).unwrap();
    let (there, at) = server(listens(config(&dir, &key), "[::1]:0"), yes());
    let link = here.connect(&at, b"", LIMIT).unwrap();
    is_ring(&here, link);
    drop(there);
    // It sees an IPv4 address as one of IPv6.
    let (there, _) = server(listens(config(&dir, &key), "[::]:0"), yes());
    let port = there.listens_at().unwrap().port();
    let link = here.connect(&format!("hamlyn://127.0.0.1:{port}/x"), b"", LIMIT).unwrap();
    is_ring(&here, link);
}

#[test]
fn another_process_that_serves_the_local_name_is_not_taken_and_hears_nothing() {
    let dir = Dir::new("liar", &[]);
    let key = dir.secret();
    let path = key.to_str().unwrap();
    let elsewhere = Dir::new("honest", &[("SECRET", path), ("LISTEN", LOOPBACK)]);
    let mut peer = Peer::start("server", &elsewhere, "");
    let at = format!("hamlyn://{}/x", peer.says());
    let (mut liar, _) = server(listens(config(&dir, &key), LOOPBACK), Accept::Ask);
    let mut here = Node::with_config(config(&dir, &key)).unwrap();
    let link = here.connect(&at, b"a secret word", LIMIT).unwrap();
    is_tls(&here, link, "who serves the local name is somebody else");
    peer.expect("connected: a secret word");
    liar.wait(Some(Duration::from_millis(200))).unwrap();
    assert!(liar.next_event().is_none());
    assert_eq!(count(&liar, "links_opened"), 0);
    peer.end();
}

#[test]
fn another_node_of_the_same_process_is_not_taken() {
    let (dir, elsewhere) = (Dir::new("second", &[]), Dir::new("first", &[]));
    let key = dir.secret();
    let (mut there, at) = server(listens(config(&elsewhere, &key), LOOPBACK), yes());
    let (liar, _) = server(listens(config(&dir, &key), LOOPBACK), yes());
    let mut here = Node::with_config(config(&dir, &key)).unwrap();
    let link = here.connect(&at, b"", LIMIT).unwrap();
    is_tls(&here, link, "another node serves the name");
    assert_eq!(here.peer(link).unwrap().node, there.id());
    event_of(&mut there, "a link is there", |event| matches!(event, Event::Connected { .. }));
    assert_eq!(count(&liar, "links_opened"), 0);
}

#[test]
fn who_is_refused_here_and_let_in_from_other_hosts_is_connected_over_tls() {
    let dir = Dir::new("refused", &[]);
    let key = dir.secret();
    let (mut there, at) = server(listens(config(&dir, &key), LOOPBACK), Accept::Ask);
    let asked = std::thread::spawn(move || {
        let mut asked = Vec::new();
        while asked.len() < 2 {
            let is_request = |event: &Event| matches!(event, Event::Request { .. });
            let Event::Request { id, peer, .. } = event_of(&mut there, "a request", is_request)
            else {
                unreachable!("it was asked for")
            };
            asked.push(peer.host.is_some());
            match peer.host {
                None => there.refuse(id, "by certificate alone").unwrap(),
                Some(_) => there.accept(id, b"").unwrap(),
            }
        }
        (there, asked)
    });
    let mut here = Node::with_config(config(&dir, &key)).unwrap();
    let link = here.connect(&at, b"", LIMIT).unwrap();
    is_tls(&here, link, "by certificate alone");
    let (_there, asked) = asked.join().unwrap();
    assert_eq!(asked, [false, true], "once each");
}

#[test]
fn without_the_local_name_or_a_directory_that_can_be_read_it_is_tls() {
    let (dir, other) = (Dir::new("there", &[]), Dir::new("here", &[]));
    let key = dir.secret();
    let (_there, at) = server(listens(config(&dir, &key), LOOPBACK), yes());
    let mut here = Node::with_config(config(&other, &key)).unwrap();
    let link = here.connect(&at, b"", LIMIT).unwrap();
    is_tls(&here, link, "nothing is called x");
    // One that cannot be read: it is none.
    let no_directory = other.path.join("file");
    std::fs::write(&no_directory, b"").unwrap();
    let mut here = Node::with_config(config(&other, &key).dir(no_directory)).unwrap();
    let link = here.connect(&at, b"", LIMIT).unwrap();
    is_tls(&here, link, "file");
    // The setting.
    let settings = dir.config_with(&[("LOCAL", "tls")]).secret(&*key);
    let mut here = Node::with_config(settings).unwrap();
    let link = here.connect(&at, b"", LIMIT).unwrap();
    is_tls(&here, link, "local (HAMLYN_LOCAL) is tls");
}

#[test]
fn who_is_not_let_in_from_other_hosts_is_not_let_in_by_the_ring() {
    let dir = Dir::new("group", &[]);
    let key = dir.secret();
    let mut there = Node::with_config(listens(config(&dir, &key), LOOPBACK)).unwrap();
    hamlyn::control::setup_shared_dir(&dir.config()).unwrap();
    let own_group = rustix::process::getegid().as_raw();
    there.serve("x", Access::Group(own_group), yes()).unwrap();
    let at = there.listens_at().unwrap();
    let mut here = Node::with_config(config(&dir, &key)).unwrap();
    let error = here.connect(&format!("hamlyn://{at}/x"), b"", LIMIT).unwrap_err();
    assert!(error.to_string().contains("not for other hosts"), "{error}");
    assert_eq!(count(&there, "links_opened"), 0);
    // With another secret, too.
    let stranger = Dir::new("stranger", &[]);
    std::fs::copy(&key, stranger.path.join("secret")).unwrap();
    let other = stranger.path.join("secret");
    std::fs::write(&other, "80".repeat(32)).unwrap();
    let mut here = Node::with_config(config(&dir, &other)).unwrap();
    let error = here.connect(&format!("hamlyn://{at}/x"), b"", LIMIT).unwrap_err();
    assert!(error.to_string().contains("same secret"), "{error}");
}

#[test]
fn a_server_that_says_neither_yes_nor_no_is_waited_for_no_longer_than_asked() {
    let dir = Dir::new("silent", &[]);
    let key = dir.secret();
    let (mut there, at) = server(listens(config(&dir, &key), LOOPBACK), Accept::Ask);
    let mut here = Node::with_config(config(&dir, &key)).unwrap();
    let error = here.connect(&at, b"", Some(Duration::from_millis(600))).unwrap_err();
    assert!(matches!(error, ConnectError::TimedOut(_)), "{error}");
    assert_eq!(here.links().filter(|link| link.index != 0).count(), 0);
    // And the next client is connected.
    let thread = std::thread::spawn(move || {
        // The one that was withdrawn may be told of, and its end later.
        loop {
            match event_of(&mut there, "a link", |_| true) {
                Event::Request { id, peer, .. } => {
                    assert!(peer.host.is_none());
                    let _ = there.accept(id, b"");
                }
                Event::Connected { .. } => return there,
                _ => {}
            }
        }
    });
    let link = here.connect(&at, b"", LIMIT).unwrap();
    is_ring(&here, link);
    drop(thread.join().unwrap());
}

#[test]
fn a_service_of_another_user_is_found_under_his_name_where_it_is_for_others() {
    let Some((dir, exe)) = for_users("users", &[("LISTEN", LOOPBACK)]) else { return };
    let key = dir.secret();
    // Its secret is a file of its own.
    let own = dir.path.join("its-secret");
    std::fs::copy(&key, &own).unwrap();
    std::os::unix::fs::chown(&own, Some(USER), Some(USER)).unwrap();
    let home = dir.path.join("home");
    std::fs::create_dir(&home).unwrap();
    std::os::unix::fs::chown(&home, Some(USER), Some(USER)).unwrap();
    let config_of_dir = config(&dir, &key);
    hamlyn::control::setup_user_dir(&config_of_dir, &USER.to_string()).unwrap();
    for (access, is_local) in [("anyone", true), ("same", false)] {
        let args = format!("{access} {} {}", own.display(), home.display());
        let mut peer = other_user(USER, "server", &dir, &exe, &args, &[]);
        let at = format!("hamlyn://{}/x", peer.says());
        let mut here = Node::with_config(config_of_dir.clone()).unwrap();
        let link = here.connect(&at, b"", LIMIT).unwrap();
        match is_local {
            true => {
                is_ring(&here, link);
                assert_eq!(here.peer(link).unwrap().uid, Some(USER));
            }
            false => is_tls(&here, link, "nothing is called x"),
        }
        peer.expect("connected:");
        peer.end();
    }
}

/// A false claim of a host by hand about its address on this one.
#[derive(Clone, Copy)]
enum Says {
    Nothing,
    Garbage,
    /// That it is the node at the local name.
    Credential(Credential),
}

fn here_of(credential: &Credential) -> ServiceHere {
    let (first, second) = credential.signature.split_at(32);
    ServiceHere {
        shared: None,
        process: (credential.process, credential.pid_namespace, credential.pid),
        boot: credential.boot,
        public_key: credential.public_key,
        signature: [first.try_into().unwrap(), second.try_into().unwrap()],
    }
}

/// Accepts questions, and then requests for a link; returns the number of questions.
fn lie(listener: &TcpListener, config: &Config, says: Says) -> (Vec<bool>, Meeting) {
    let hand = hand::Hand::new(config);
    let own = OwnData {
        keys: Keys::load(config).unwrap(),
        identity: hand.identity.clone(),
        packet_bytes: 4096,
    };
    let mut asked = Vec::new();
    loop {
        let (tcp, _) = listener.accept().unwrap();
        let mut meeting = Meeting::of_server(hand.server(tcp));
        let wants = loop {
            match meeting.turn(&own) {
                MeetingStep::Wants(wants, _) => break wants,
                MeetingStep::Waits => std::thread::sleep(Duration::from_micros(200)),
                step => panic!("{step:?}"),
            }
        };
        let asks = matches!(Said::split(&meeting.heard).1, Some(Said::Asks));
        asked.push(asks);
        assert!(!asks || wants.greeting.is_empty(), "it was told before it was proved where it is");
        match says {
            _ if !asks => {}
            Says::Nothing => {}
            Says::Garbage => meeting.says = b"\x05\xff\xff\x01\x04hamlyn-r".to_vec(),
            Says::Credential(of) => Said::Here(here_of(&of)).put(&mut meeting.says),
        }
        meeting.answer(&Answer::Yes(Vec::new()));
        if !asks {
            return (asked, meeting);
        }
    }
}

#[test]
fn a_host_that_says_what_is_not_so_of_where_it_is_is_connected_to_over_tls() {
    let dir = Dir::new("lies", &[]);
    let key = dir.secret();
    let config = config(&dir, &key);
    let (mut victim, _) = server(listens(config.clone(), LOOPBACK), Accept::Ask);
    // Of this process as the victim is, and of another node; and changed.
    let of_this = Identity::new().unwrap().credential();
    let changed = Credential { process: of_this.process + 1, ..of_this };
    for (says, why) in [
        (Says::Nothing, "knows no such links"),
        (Says::Garbage, "knows no such links"),
        (Says::Credential(of_this), "somebody else"),
        (Says::Credential(changed), "somebody else"),
        (Says::Credential(Credential::NONE), "somebody else"),
    ] {
        let listener = TcpListener::bind(LOOPBACK).unwrap();
        let at = listener.local_addr().unwrap();
        std::thread::scope(|scope| {
            let liar = scope.spawn(|| lie(&listener, &config, says));
            let mut here = Node::with_config(config.clone()).unwrap();
            let link = here.connect(&format!("hamlyn://{at}/x"), b"secret", LIMIT).unwrap();
            is_tls(&here, link, why);
            let (asked, _meeting) = liar.join().unwrap();
            assert_eq!(asked, [true, false]);
        });
    }
    victim.wait(Some(Duration::from_millis(100))).unwrap();
    assert!(victim.next_event().is_none());
}

/// Not a test: the other process.
#[test]
fn role() {
    let Some(role) = Role::of_this_process() else { return };
    let (mut access, mut config) = (Access::SameUser, role.config());
    if let [who, secret, home] = &role.args[..] {
        access = if who == "anyone" { Access::Anyone } else { access };
        config = config.secret(PathBuf::from(secret)).dir(PathBuf::from(home));
    }
    let mut node = Node::with_config(config).unwrap();
    node.serve("x", access, yes()).unwrap();
    say(&node.listens_at().unwrap().to_string());
    let is_link = |event: &Event| matches!(event, Event::Connected { .. });
    let Event::Connected { link, .. } = event_of(&mut node, "a link is there", is_link) else {
        unreachable!("it was asked for")
    };
    say(&format!("connected: {}", String::from_utf8_lossy(node.greeting(link).unwrap())));
    role.wait_for("end");
}
