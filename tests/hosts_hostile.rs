//! Attacks by other hosts and on the path to them: strangers at the port, hosts that have the
//! secret and lie, a relay that changes the traffic, invalid certificates.
#![cfg(not(miri))]

#[path = "model/host_ends.rs"]
mod ends;
#[path = "support/hand.rs"]
mod hand;
#[path = "model/hosts.rs"]
mod model;
mod support;

use hamlyn::control::Identity;
use hamlyn::control::hosts::hello::{self, HelloIdentity, VERSION, Wants};
use hamlyn::control::hosts::keys::{Keys, TlsEnd};
use hamlyn::control::hosts::meeting::{Meeting, MeetingStep, OwnData};
use hamlyn::node::{CloseReason, ConnectError, Event, HostError, MeetingError};
use hamlyn::protocol::{Client, Manager, Server, ServerConfig};
use hamlyn::transport::channel::Channel;
use hamlyn::transport::path::Path;
use hamlyn::wire::{Destination, Flags, Header, Key, MetadataIndex, SlotIndex};
use hamlyn::{Access, Config, Node};
use hand::Hand;
use rcgen::{CertificateParams, DnType, Issuer, KeyPair};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use support::{Dir, LIMIT, listening};

fn secret(dir: &Dir) -> Config {
    dir.config().secret(dir.secret())
}

/// A server that doubles what it is sent, until it is dropped.
struct Doubles {
    at: SocketAddr,
    _dir: Dir,
    server: Arc<Server>,
    manager: Manager,
    ends: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

fn doubles(name: &str, settings: &[(&str, &str)], config: impl FnOnce(&Dir) -> Config) -> Doubles {
    let dir = Dir::new(name, settings);
    let manager = Manager::with_config(listening(config(&dir))).unwrap();
    let server = Arc::new(Server::new(&manager, ServerConfig::default()).unwrap());
    server.serve("double", Access::SameUser).unwrap();
    let ends = Arc::new(AtomicBool::new(false));
    let (own, stop) = (server.clone(), ends.clone());
    let thread = std::thread::spawn(move || {
        while !stop.load(Ordering::Relaxed) {
            if let Ok(request) = own.receive(Some(Duration::from_millis(20))) {
                let twice = request.repeat(2);
                let _ = request.reply(&twice, LIMIT);
            }
        }
    });
    let (at, thread) = (manager.listens_at().unwrap(), Some(thread));
    Doubles { at, _dir: dir, server, manager, ends, thread }
}

impl Doubles {
    fn is_called_by(&self, manager: &Manager) {
        let name = format!("hamlyn://{}/double", self.at);
        let client = Client::connect(manager, &name, LIMIT).unwrap();
        assert_eq!(*client.call(b"ab", LIMIT).unwrap(), *b"abab");
    }
}

impl Drop for Doubles {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        let _ = (&self.server, &self.manager);
    }
}

/// Numbers that follow from a seed.
fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

#[test]
fn strangers_at_the_port_keep_nobody_else_out() {
    let there = doubles("strangers", &[("HANDSHAKE_TIMEOUT_MS", "2000")], secret);
    let here = Dir::new("honest", &[]);
    let honest = Manager::with_config(secret(&here)).unwrap();
    let mut seed = 7;
    // They say nothing, or nonsense, or the beginning of something, and stay.
    let mut stay = Vec::new();
    for i in 0..200u32 {
        let mut stream = TcpStream::connect(there.at).unwrap();
        let bytes: Vec<u8> = match i % 4 {
            0 => Vec::new(),
            1 => (0..100).map(|_| random(&mut seed) as u8).collect(),
            2 => b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec(),
            // The head of a TLS record that never comes.
            _ => vec![22, 3, 1, 64, 0],
        };
        let _ = stream.write_all(&bytes);
        stay.push(stream);
    }
    there.is_called_by(&honest);
    // A host without proof is not kept beyond the time limit.
    let end = Instant::now() + Duration::from_secs(20);
    for mut stream in stay {
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        while !matches!(stream.read(&mut [0; 512]), Ok(0) | Err(_)) {
            assert!(Instant::now() < end, "a stranger is kept");
        }
    }
    there.is_called_by(&honest);
}

/// A host that has the secret and speaks by hand.
struct Liar {
    channel: Channel,
    /// The slot and key that it could write to are not known to it.
    own: OwnData,
}

fn connected(at: SocketAddr, dir: &Dir) -> (Channel, OwnData) {
    let (keys, identity) = (Keys::load(&secret(dir)).unwrap(), Identity::new().unwrap());
    let tcp = TcpStream::connect(at).unwrap();
    tcp.set_nonblocking(true).unwrap();
    let tls = rustls::ClientConnection::new(keys.client.clone(), "127.0.0.1".try_into().unwrap());
    let channel = Channel::new(tcp, tls.unwrap().into());
    (channel, OwnData { keys, identity, packet_bytes: 4096 })
}

fn until<R>(what: &str, mut look: impl FnMut() -> Option<R>) -> R {
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < end, "it never came to be that {what}");
        std::thread::sleep(Duration::from_micros(200));
    }
}

impl Liar {
    fn link(at: SocketAddr, dir: &Dir) -> Self {
        let (channel, own) = connected(at, dir);
        let mut meeting = Meeting::of_client(channel, "x", Vec::new());
        until("there is a link", || match meeting.turn(&own) {
            MeetingStep::Waits => None,
            MeetingStep::Link(..) => Some(()),
            step => panic!("{step:?}"),
        });
        Self { channel: meeting.channel, own }
    }

    fn send(&mut self, bytes: &[u8]) {
        self.channel.put(bytes);
        let channel = &mut self.channel;
        until("it has left", || (channel.flush() || channel.ended().is_some()).then_some(()));
    }
}

fn packet(length: u32, metadata_len: u8) -> Header {
    Header {
        destination: Destination(1),
        slot: SlotIndex(2),
        metadata_index: MetadataIndex(0),
        key: Key(3),
        offset: 0,
        length,
        delta: 0,
        metadata_len,
        flags: Flags::NOTIFY,
        word: 0,
    }
}

fn bytes_of(words: [u64; 6]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

#[test]
fn what_no_host_sends_ends_its_own_link_and_nothing_else() {
    let dir = Dir::new("lies", &[("RING_BYTES", "8192")]);
    let mut node = Node::with_config(listening(secret(&dir))).unwrap();
    let greeting = hamlyn::control::Accept::Automatic(Vec::new());
    node.serve("x", Access::SameUser, greeting).unwrap();
    let at = node.listens_at().unwrap();
    let with = |change: fn(&mut [u64; 6])| {
        let mut words = packet(8, 0).to_words();
        change(&mut words);
        [bytes_of(words), vec![0; 8]].concat()
    };
    let lies: Vec<(&str, Vec<u8>)> = vec![
        ("a packet of more than was agreed", bytes_of(packet(4097, 0).to_words())),
        ("a packet of 4 GiB", bytes_of(packet(u32::MAX, 0).to_words())),
        ("61 bytes of metadata", bytes_of(packet(0, 61).to_words())),
        ("a frame of no kind", with(|words| words[0] |= 9)),
        ("reserved bits", with(|words| words[5] |= 1 << 20)),
        ("flags that mean nothing", with(|words| words[5] |= 0x80 << 8)),
    ];
    let liar_dir = Dir::new("liar", &[]);
    for (what, bytes) in lies {
        let mut liar = Liar::link(at, &liar_dir);
        liar.send(&bytes);
        let reason = until(what, || {
            node.poll().unwrap();
            match node.next_event() {
                Some(Event::Closed { reason, .. }) => Some(reason),
                _ => None,
            }
        });
        assert!(matches!(reason, CloseReason::Misbehaved(_)), "{what}: {reason:?}");
    }
    // One that is cut off in the middle of a packet has died, and what was whole is counted.
    let refused = |node: &Node| {
        let counters = node.counters();
        let of = counters.iter().filter(|row| row.0.starts_with("refused_"));
        of.map(|row| row.1).sum::<u64>()
    };
    let before = refused(&node);
    let mut liar = Liar::link(at, &liar_dir);
    let whole = [bytes_of(packet(8, 0).to_words()), vec![0; 8]].concat();
    liar.send(&[&whole[..], &whole[..50]].concat());
    let _ = &liar.own;
    drop(liar);
    let reason = until("it has died", || {
        node.poll().unwrap();
        match node.next_event() {
            Some(Event::Closed { reason, .. }) => Some(reason),
            _ => None,
        }
    });
    assert_eq!(reason, CloseReason::Died);
    assert_eq!(refused(&node), before + 1);
}

// It ends its connection in its own time, if ever.
#[test]
fn a_host_that_was_refused_and_stays_keeps_no_process_from_ending() {
    let dir = Dir::new("refuses", &[("HANDSHAKE_TIMEOUT_MS", "60000")]);
    let node = Node::with_config(listening(secret(&dir))).unwrap();
    let (channel, own) = connected(node.listens_at().unwrap(), &Dir::new("stays", &[]));
    let mut meeting = Meeting::of_client(channel, "nothing", Vec::new());
    until("it is refused", || match meeting.turn(&own) {
        MeetingStep::Waits => None,
        MeetingStep::Failed(MeetingError::NoService) => Some(()),
        step => panic!("{step:?}"),
    });
    let began = Instant::now();
    drop(node);
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    drop(meeting);
}

/// A node that listens, and a link to it from a host that speaks by hand.
fn with_a_liar(name: &str, settings: &[(&str, &str)]) -> (Dir, Node, hamlyn::LinkId, Liar) {
    let dir = Dir::new(name, settings);
    let mut node = Node::with_config(listening(secret(&dir))).unwrap();
    let greeting = hamlyn::control::Accept::Automatic(Vec::new());
    node.serve("x", Access::SameUser, greeting).unwrap();
    let liar = Liar::link(node.listens_at().unwrap(), &Dir::new("by-hand", &[]));
    let link = until("the node has the link", || {
        node.poll().unwrap();
        match node.next_event() {
            Some(Event::Connected { link, .. }) => Some(link),
            _ => None,
        }
    });
    (dir, node, link, liar)
}

#[test]
fn what_is_sent_to_a_host_that_is_gone_is_not_kept() {
    let (_dir, mut node, link, liar) = with_a_liar("gone", &[("RING_BYTES", "8192")]);
    let mut ticket = {
        let area = node.message_area(64).unwrap();
        let queue = node.notification_queue(64).unwrap();
        let slot = node.slot(hamlyn::SlotConfig::new(area, queue)).unwrap();
        node.fast_ticket(slot).unwrap()
    };
    ticket.destination = liar.own.identity.node();
    // A reset, since something that it was sent is unread.
    node.try_send_fast_over(link, &ticket, &[1; 16], 0).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    drop(liar);
    // A program that does nothing but send.
    let refused = (0..1_000_000u32).find(|i| {
        if i % 100 == 0 {
            std::thread::sleep(Duration::from_micros(100));
        }
        node.try_send_fast_over(link, &ticket, &[1; 16], 0).is_err()
    });
    assert!(refused.is_some(), "a million messages to nobody are kept");
    let reason = until("it is told of", || {
        node.poll().unwrap();
        match node.next_event() {
            Some(Event::Closed { reason, .. }) => Some(reason),
            _ => None,
        }
    });
    assert_eq!(reason, CloseReason::Died);
}

#[test]
fn a_host_that_says_on_and_on_that_tickets_were_revoked_is_not_kept_word_for_word() {
    let (_dir, mut node, _link, mut liar) = with_a_liar("stale", &[]);
    let mut stale = packet(0, 0).to_words();
    stale[0] = stale[0] & !0xffff_ffff | 2;
    let frames: Vec<u8> = (0..5000).flat_map(|_| bytes_of(stale)).collect();
    liar.send(&frames);
    std::thread::sleep(Duration::from_millis(100));
    let mut told = 0;
    let mut quiet = 0;
    // Other hosts are not looked at in each turn.
    until("all of them are read", || {
        node.poll().unwrap();
        let before = told;
        while let Some(event) = node.next_event() {
            assert!(matches!(event, Event::TicketRevoked { .. }), "{event:?}");
            told += 1;
        }
        quiet = if told > 0 && told == before { quiet + 1 } else { 0 };
        (quiet == 1000).then_some(())
    });
    assert!(told <= 1000, "{told} of 5000");
}

#[test]
fn a_host_that_wants_an_answer_waits_for_it() {
    let dir = Dir::new("asked", &[]);
    let mut node = Node::with_config(listening(secret(&dir))).unwrap();
    node.serve("x", Access::SameUser, hamlyn::control::Accept::Ask).unwrap();
    let at = node.listens_at().unwrap();
    let asks = |dir: &Dir| {
        let (channel, own) = connected(at, dir);
        (Meeting::of_client(channel, "x", Vec::new()), own)
    };
    let mut gone = 0;
    let mut requests = Vec::new();
    let mut events = |node: &mut Node, requests: &mut Vec<_>| {
        node.poll().unwrap();
        while let Some(event) = node.next_event() {
            match event {
                Event::Request { id, .. } => requests.push(id),
                Event::RequestGone { .. } => gone += 1,
                other => panic!("{other:?}"),
            }
        }
        gone
    };
    // One that says more has broken the rules.
    let own_dir = Dir::new("asks", &[]);
    let (mut meeting, own) = asks(&own_dir);
    until("it is asked for", || {
        assert!(matches!(meeting.turn(&own), MeetingStep::Waits));
        events(&mut node, &mut requests);
        (requests.len() == 1).then_some(())
    });
    meeting.channel.put(&[0; 6000]);
    meeting.channel.flush();
    until("it is gone", || (events(&mut node, &mut requests) == 1).then_some(()));
    // Of one identity some may wait at a time; the others are refused.
    let mut all: Vec<_> = (0..20).map(|_| asks(&own_dir)).collect();
    let mut refused = 0;
    until("all are asked for or refused", || {
        all.retain_mut(|(meeting, own)| match meeting.turn(own) {
            MeetingStep::Waits => true,
            MeetingStep::Failed(_) => {
                refused += 1;
                false
            }
            step => panic!("{step:?}"),
        });
        events(&mut node, &mut requests);
        (requests.len() - 1 + refused == 20).then_some(())
    });
    assert_eq!((requests.len() - 1, refused), (16, 4));
}

#[test]
fn packets_of_another_host_are_checked_as_any_others() {
    let dir = Dir::new("guesses", &[("WRONG_KEYS_MAX", "100")]);
    let mut node = Node::with_config(listening(secret(&dir))).unwrap();
    let greeting = hamlyn::control::Accept::Automatic(Vec::new());
    node.serve("x", Access::SameUser, greeting).unwrap();
    let area = node.message_area(64).unwrap();
    let queue = node.notification_queue(64).unwrap();
    let slot = node.slot(hamlyn::SlotConfig::new(area, queue)).unwrap();
    let ticket = node.fast_ticket(slot).unwrap();
    let mut liar = Liar::link(node.listens_at().unwrap(), &Dir::new("guesser", &[]));
    // It knows the slot, and tries keys.
    let mut guesses = Vec::new();
    for key in 0..200 {
        let mut header = packet(8, 0);
        header.destination = ticket.destination.destination();
        (header.slot, header.metadata_index) = (ticket.slot, ticket.metadata_index);
        header.key = Key(key);
        guesses.extend(bytes_of(header.to_words()));
        guesses.extend([0xff; 8]);
    }
    liar.send(&guesses);
    let reason = until("the guesser is sent away", || {
        node.poll().unwrap();
        match node.next_event() {
            Some(Event::Closed { reason, .. }) => Some(reason),
            _ => None,
        }
    });
    assert!(matches!(&reason, CloseReason::Misbehaved(why) if why.contains("wrong keys")));
    let told = hamlyn::control::stat_of(&dir.config(), &"x".parse().unwrap(), LIMIT).unwrap();
    let away = "refusal.1.kind sent-away\nrefusal.1.user unknown\n";
    assert!(told.contains(away) && told.contains("refusal.1.reason host 127.0.0.1, secret: "));
    assert!(node.area(area).unwrap().iter().all(|byte| *byte == 0));
}

#[test]
fn who_cannot_prove_what_it_says_is_told_so() {
    let there = doubles("proofs", &[], secret);
    let dir = Dir::new("prover", &[]);
    type Change = fn(&mut HelloIdentity);
    let changes: [(&str, Change); 5] = [
        ("cannot prove that it is the node", |who| who.node ^= 1),
        ("cannot prove that it is the node", |who| who.signature[0] ^= 1),
        ("cannot prove that it is the node", |who| who.signature.clear()),
        ("does not have the same secret", |who| who.proof[31] ^= 1),
        ("speaks version 2.0", |who| who.version = (2, 0)),
    ];
    for (why, change) in changes {
        let (mut channel, own) = connected(there.at, &dir);
        until("keys are agreed on", || {
            channel.receive(1);
            channel.flush();
            (channel.is_open() && !channel.plain().is_empty()).then_some(())
        });
        let key = channel.key().unwrap();
        let statement = [b"hamlyn host 1 \x01".as_slice(), &*key].concat();
        let (public_key, signature) = own.identity.sign(&statement);
        let mut who = HelloIdentity {
            version: VERSION,
            node: own.identity.node().0,
            public_key,
            signature: signature.to_vec(),
            proof: own.keys.proof(TlsEnd::Client, &key),
            packet_bytes: 4096,
        };
        change(&mut who);
        let wants = Wants { who, service: "double".into(), greeting: Vec::new() };
        channel.put(&hello::to_bytes(&wants));
        let told = until("it is refused", || {
            channel.receive(1 << 16);
            channel.flush();
            channel.ended().is_some().then(|| String::from_utf8_lossy(channel.plain()).into_owned())
        });
        assert!(told.contains(why), "{why}: {told:?}");
    }
}

#[test]
fn a_client_is_told_what_is_wrong_with_a_server_and_tells_it_nothing() {
    let dir = Dir::new("server-by-hand", &[]);
    let own = Hand::new(&secret(&dir));
    let here = Dir::new("its-client", &[]);
    let mut node = Node::with_config(secret(&here)).unwrap();
    type Change = fn(&mut HelloIdentity);
    let newer = (VERSION.0 + 1, 0);
    let changes: [(MeetingError, Change); 6] = [
        (MeetingError::Version(newer), |who| who.version = (VERSION.0 + 1, 0)),
        (MeetingError::Version((0, 9)), |who| who.version = (0, 9)),
        (MeetingError::Secret, |who| who.proof[31] ^= 1),
        (MeetingError::Identity, |who| who.node ^= 1),
        (MeetingError::Identity, |who| who.signature[0] ^= 1),
        (MeetingError::Identity, |who| who.signature.clear()),
    ];
    for (wanted, change) in changes {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let name = format!("hamlyn://{}/double", listener.local_addr().unwrap());
        std::thread::scope(|scope| {
            let connects = scope.spawn(|| node.connect(&name, b"what it wants", LIMIT));
            let mut channel = own.server(listener.accept().unwrap().0);
            until("keys are agreed on", || {
                channel.receive(1);
                channel.flush();
                channel.is_open().then_some(())
            });
            let mut who = own.who(TlsEnd::Server, &channel);
            change(&mut who);
            channel.put(&hello::to_bytes(&who));
            until("the client has gone", || {
                channel.receive(1 << 16);
                channel.flush();
                channel.ended().is_some().then_some(())
            });
            assert_eq!(channel.plain(), b"", "{wanted}");
            assert_eq!(failed(connects.join().unwrap()), wanted);
        });
    }
}

/// The reason why a connection to another host became no link.
#[track_caller]
fn failed(connected: Result<hamlyn::LinkId, ConnectError>) -> MeetingError {
    match connected {
        Err(ConnectError::Host { error: HostError::Meeting(error), .. }) => error,
        other => panic!("{other:?}"),
    }
}

#[test]
fn one_call_takes_no_more_than_its_share_of_what_has_come() {
    let dir = Dir::new("share", &[]);
    let keys = Keys::load(&secret(&dir)).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let tcp =
        [TcpStream::connect(listener.local_addr().unwrap()).unwrap(), listener.accept().unwrap().0];
    let [client, server] = tcp.map(|tcp| tcp.set_nonblocking(true).map(|()| tcp).unwrap());
    let name = "127.0.0.1".try_into().unwrap();
    let tls = rustls::ClientConnection::new(keys.client.clone(), name).unwrap();
    let mut client = Channel::new(client, tls.into());
    let tls = rustls::ServerConnection::new(keys.server.clone()).unwrap();
    let mut server = Channel::new(server, tls.into());
    until("keys are agreed on", || {
        for end in [&mut client, &mut server] {
            end.receive(1);
            end.flush();
        }
        (client.is_open() && server.is_open()).then_some(())
    });
    client.put(&vec![7; 8 << 20]);
    let (mut calls, mut most) = (0, 0);
    until("all of it has come", || {
        client.flush();
        let before = server.received();
        server.receive(usize::MAX);
        calls += 1;
        most = most.max(server.received() - before);
        (server.plain().len() == 8 << 20).then_some(())
    });
    assert!(most <= (256 << 10) + (32 << 10), "{most} bytes in one of {calls} calls");
}

/// Passes on what comes, but for one byte of one direction, which it changes.
fn relay(to: SocketAddr, upstream: bool, at: usize) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let passed = Arc::new(AtomicUsize::new(0));
    let counted = passed.clone();
    std::thread::spawn(move || {
        let (client, _) = listener.accept().unwrap();
        let server = TcpStream::connect(to).unwrap();
        let pass =
            |mut from: TcpStream, mut to: TcpStream, at: Option<usize>, count: Arc<AtomicUsize>| {
                move || {
                    let mut buffer = [0; 4096];
                    let mut position = 0;
                    while let Ok(bytes @ 1..) = from.read(&mut buffer) {
                        if let Some(at) = at
                            && (position..position + bytes).contains(&at)
                        {
                            buffer[at - position] ^= 0x20;
                        }
                        position += bytes;
                        if at.is_some() {
                            count.store(position, Ordering::Relaxed);
                        }
                        if to.write_all(&buffer[..bytes]).is_err() {
                            break;
                        }
                    }
                    let _ = to.shutdown(std::net::Shutdown::Both);
                }
            };
        let (c, s) = (client.try_clone().unwrap(), server.try_clone().unwrap());
        let up = pass(client, server, upstream.then_some(at), counted.clone());
        let mut down = pass(s, c, (!upstream).then_some(at), counted);
        let up = std::thread::spawn(up);
        down();
        let _ = up.join();
    });
    (address, passed)
}

#[test]
fn whoever_changes_a_byte_on_the_way_ends_the_connection_and_changes_nothing() {
    let there = doubles("changed", &[], secret);
    let here = Dir::new("changed-here", &[]);
    let honest = Manager::with_config(secret(&here)).unwrap();
    let (mut failed, mut passed_whole) = (0, 0);
    for upstream in [true, false] {
        // Every so many bytes of what connecting and one call take.
        for at in (0..4000).step_by(if cfg!(debug_assertions) { 23 } else { 7 }) {
            let (address, passed) = relay(there.at, upstream, at);
            let name = format!("hamlyn://{address}/double");
            let called = Client::connect_with_wait_no(&honest, &name).and_then(|client| {
                let answer = client.call(b"ab", Some(Duration::from_secs(5)));
                // Before it leaves: its goodbye passes, too.
                let passed = passed.load(Ordering::Relaxed);
                answer.map(|answer| (answer.to_vec(), passed)).map_err(|e| e.to_string())
            });
            match called {
                // The byte was behind all that.
                Ok((answer, passed)) => {
                    assert_eq!(answer, b"abab");
                    assert!(passed <= at + 64, "byte {at} of {upstream}");
                    passed_whole += 1;
                }
                Err(_) => failed += 1,
            }
            if passed_whole > 3 {
                passed_whole = 0;
                break;
            }
        }
    }
    assert!(failed > 60, "{failed}");
    there.is_called_by(&honest);
}

trait ConnectsOnce: Sized {
    fn connect_with_wait_no(manager: &Manager, name: &str) -> Result<Self, String>;
}

impl ConnectsOnce for Client {
    fn connect_with_wait_no(manager: &Manager, name: &str) -> Result<Self, String> {
        Client::connect(manager, name, Some(Duration::from_secs(5))).map_err(|e| e.to_string())
    }
}

/// Files with a certificate for a name, its key, and whom to trust.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl Authority {
    fn new(name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Self { issuer: Issuer::new(params, key), pem }
    }

    fn issue(&self, dir: &Dir, names: &[&str], trusted: &Self, is_expired: bool) -> Config {
        let names: Vec<String> = names.iter().map(|name| name.to_string()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        if is_expired {
            params.not_after = rcgen::date_time_ymd(2001, 1, 1);
        }
        let key = KeyPair::generate().unwrap();
        let own = params.signed_by(&key, &self.issuer).unwrap();
        dir.config()
            .certificate(dir.write("own.pem", own.pem()))
            .certificate_key(dir.write("key.pem", key.serialize_pem()))
            .trusted(dir.write("trusted.pem", &trusted.pem))
    }
}

#[test]
fn certificates_decide_who_connects() {
    let (good, other) = (Authority::new("good"), Authority::new("other"));
    let issue = |dir: &Dir| good.issue(dir, &["localhost", "server.example"], &good, false);
    let there = doubles("certificates", &[], issue);
    let connect = |config: Config, host: &str| {
        let manager = Manager::with_config(config).unwrap();
        let name = format!("hamlyn://{host}:{}/double", there.at.port());
        let client = Client::connect_with_wait_no(&manager, &name)?;
        client.call(b"ab", LIMIT).map(|reply| reply.to_vec()).map_err(|e| e.to_string())
    };
    let dir = Dir::new("certificates-here", &[]);
    // Of the same name as the server, so it is the same owner's.
    let same = good.issue(&dir, &["localhost"], &good, false);
    assert_eq!(connect(same.clone(), "localhost"), Ok(b"abab".to_vec()));
    let refused = |config: Config, host: &str, why: &str| {
        let error = connect(config, host).unwrap_err();
        assert!(error.contains(why), "{why}: {error}");
    };
    refused(same, "127.0.0.1", "not valid for name");
    refused(good.issue(&dir, &["elsewhere"], &good, false), "localhost", "not for other hosts");
    refused(good.issue(&dir, &["localhost"], &other, false), "localhost", "UnknownIssuer");
    // The server says so, in an alert.
    refused(other.issue(&dir, &["localhost"], &good, false), "localhost", "alert");
    refused(good.issue(&dir, &["localhost"], &good, true), "localhost", "alert");
    // An attacker with another secret.
    refused(secret(&dir), "localhost", "");
    // The server says whom else it lets in, by what they prove.
    let named =
        |dir: &Dir| issue(dir).links_from(vec!["elsewhere".to_owned(), "secret".to_owned()]);
    let there = doubles("named", &[], named);
    let connect = |config: Config| {
        let manager = Manager::with_config(config).unwrap();
        let name = format!("hamlyn://localhost:{}/double", there.at.port());
        let client = Client::connect_with_wait_no(&manager, &name)?;
        client.call(b"ab", LIMIT).map(|reply| reply.to_vec()).map_err(|e| e.to_string())
    };
    for names in [&["localhost"][..], &["elsewhere"], &["elsewhere", "third"]] {
        assert_eq!(connect(good.issue(&dir, names, &good, false)), Ok(b"abab".to_vec()));
    }
    // By the first name alone.
    let error = connect(good.issue(&dir, &["third", "elsewhere"], &good, false)).unwrap_err();
    assert!(error.contains("links_from (HAMLYN_LINKS_FROM)"), "{error}");
    let error = connect(other.issue(&dir, &["elsewhere"], &good, false)).unwrap_err();
    assert!(error.contains("alert"), "{error}");
    // Keys that cannot be used are an error at once, and say what to do.
    let error = |config: Config| Manager::with_config(listening(config)).map(|_| ()).unwrap_err();
    let open = dir.write("open", "7f".repeat(32));
    let chmod = |path: &std::path::Path, mode| {
        std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
    };
    chmod(&open, 0o644);
    let changeable = dir.write("changeable", "nothing of it is read");
    chmod(&changeable, 0o666);
    std::fs::create_dir(dir.path.join("directory")).unwrap();
    let in_open_directory = dir.config().secret(dir.write("directory/secret", "7f".repeat(32)));
    chmod(&dir.path.join("directory"), 0o777);
    for (config, why) in [
        (dir.config(), "hamlyn keys"),
        (dir.config().secret(open), "chmod 600"),
        (dir.config().secret(dir.write("short", "7f7f")), "64 hexadecimal digits"),
        (in_open_directory, "chmod go-w"),
        (good.issue(&dir, &["localhost"], &good, false).trusted(changeable), "chmod go-w"),
        (dir.config().secret(dir.path.join("none")), "No such file"),
        (dir.config().certificate(dir.path.join("none")), "certificate_key"),
    ] {
        let error = error(config).to_string();
        assert!(error.contains(why), "{why}: {error}");
    }
}

#[test]
fn a_client_is_told_that_the_server_s_certificate_has_expired_and_the_server_is_asked_nothing() {
    let good = Authority::new("good");
    let (there, here) = (Dir::new("expired", &[]), Dir::new("expired-here", &[]));
    let expired = good.issue(&there, &["localhost"], &good, true);
    let mut server = Node::with_config(listening(expired)).unwrap();
    server.serve("x", Access::SameUser, hamlyn::control::Accept::Ask).unwrap();
    let port = server.listens_at().unwrap().port();
    let mut client = Node::with_config(good.issue(&here, &["localhost"], &good, false)).unwrap();
    let error = failed(client.connect(&format!("hamlyn://localhost:{port}/x"), b"", LIMIT));
    // In TLS's words, and what to do about it.
    let MeetingError::Tls(why) = &error else { panic!("{error}") };
    assert!(why.contains("certificate expired"), "{why}");
    let advice = "the other end's certificate, or its authority's, has ended";
    assert!(error.to_string().contains(advice), "{error}");
    let refused = |node: &Node| support::counter(node, "control.hosts_refused_tls");
    until("it is counted", || {
        server.poll().unwrap();
        (refused(&server) == 1).then_some(())
    });
    assert!(server.next_event().is_none());
}

#[test]
fn whatever_another_host_says_is_read_or_refused() {
    let mut seed = 11;
    for i in 0..20_000 {
        let length = (random(&mut seed) % 300) as usize;
        let mut bytes: Vec<u8> = (0..length).map(|_| random(&mut seed) as u8).collect();
        // Such as have a meaning at all: kinds and lengths are small numbers.
        for at in [1, 5, 41, 42, 43] {
            if let Some(byte) = bytes.get_mut(at) {
                *byte &= if i % 2 == 0 { 3 } else { 63 };
            }
        }
        for at in [2, 3, 4, 6, 7, 8].into_iter().filter(|at| i % 3 > 0 && *at < length) {
            bytes[at] = 0;
        }
        model::hosts(&bytes);
    }
}

/// Bytes by chance for so many cases, and more where there is time.
fn by_chance<R>(mut seed: u64, cases: u32, case: impl Fn(&mut u64, u32) -> R) -> Vec<R> {
    let more = std::env::var("HAMLYN_TEST_ROUNDS").is_ok();
    (0..if more { 10 * cases } else { cases }).map(|i| case(&mut seed, i)).collect()
}

#[test]
fn whatever_is_said_at_each_step_of_a_meeting_nobody_is_taken_for_another() {
    let met = by_chance(13, 200, |seed, i| {
        let mut bytes: Vec<u8> = (0..64).map(|_| random(seed) as u8).collect();
        bytes[0] = i as u8;
        // Often the first step is honest, so that the second is come to.
        if random(seed).is_multiple_of(2) {
            bytes[1] &= !7;
        }
        ends::meeting(&bytes)
    });
    assert!(met.contains(&true) && met.contains(&false));
    // Honest ones, either end.
    assert_eq!([0, 1].map(|end| ends::meeting(&[end])), [true, true]);
}

#[test]
fn whatever_comes_over_a_link_it_ends_once_for_its_reason_and_what_was_whole_is_counted() {
    let ends = by_chance(17, 100, |seed, _| {
        let mut bytes = vec![random(seed) as u8];
        for _ in 0..random(seed) % 60 {
            let what = random(seed) % 40;
            let mut words = match what {
                0..9 => packet(0, 0),
                _ => packet(random(seed) as u32 % 80, random(seed) as u8 % 61),
            }
            .to_words();
            match what {
                0 => words[0] |= 1 + random(seed) % 4,
                // That tickets were revoked.
                1..9 => words[0] |= 2,
                9 => words[random(seed) as usize % 6] ^= 1 << (random(seed) % 64),
                _ => {}
            }
            let (header, _) = Header::from_words(&words);
            bytes.extend(bytes_of(words));
            let body = header.length as usize % 4097 + usize::from(header.metadata_len);
            bytes.extend((0..body).map(|_| random(seed) as u8));
        }
        bytes.truncate(bytes.len() - random(seed) as usize % bytes.len().min(100));
        ends::link(&bytes)
    });
    for end in ["hung up", "closed", "expelled", "misbehaved"] {
        assert!(ends.contains(&end), "none has {end}");
    }
}

/// Whether an epoll descriptor of this process watches a socket of this number for room to write, alone, as
/// the thread of other hosts does.
fn is_watched_for_room(inode: u64) -> bool {
    let files = std::fs::read_dir("/proc/self/fdinfo").unwrap().flatten();
    let mut texts = files.filter_map(|file| std::fs::read_to_string(file.path()).ok());
    let inode = format!(" ino:{inode:x} ");
    // EPOLLOUT, and what is always told of.
    let is_it =
        |line: &str| line.starts_with("tfd:") && line.contains(" 1c ") && line.contains(&inode);
    texts.any(|text| text.lines().any(is_it))
}

/// The number of the victim's socket, whose other end is at this port.
fn socket_towards(port: u16) -> u64 {
    let table = std::fs::read_to_string("/proc/self/net/tcp").unwrap();
    let other = format!(":{port:04X}");
    let mut rows = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let row = rows.find(|row| row.len() > 9 && row[2].ends_with(&other)).expect("a connection");
    row[9].parse().unwrap()
}

// A link that waits for the network, and ends: later acts of its other end wake no thread.
#[test]
fn a_connection_whose_link_has_ended_is_not_watched_any_more() {
    let settings = [("RING_BYTES", "8192"), ("HOST_TIMEOUT_MS", "3600000")];
    let (_dir, mut node, link, mut liar) = with_a_liar("watched", &settings);
    let inode = socket_towards(liar.channel.addresses().unwrap().0.port());
    let area = node.message_area(64).unwrap();
    let queue = node.notification_queue(64).unwrap();
    let slot = node.slot(hamlyn::SlotConfig::new(area, queue)).unwrap();
    let mut ticket = node.fast_ticket(slot).unwrap();
    ticket.destination = liar.own.identity.node();
    until("the thread waits for the network", || {
        while node.try_send_fast_over(link, &ticket, &[1; 16], 0).is_ok() {}
        is_watched_for_room(inode).then_some(())
    });
    // It says that it goes, and takes nothing.
    let mut words = [0; 6];
    words[0] = 1;
    liar.send(&bytes_of(words));
    until("the link has ended", || {
        node.poll().unwrap();
        std::iter::from_fn(|| node.next_event()).find(|event| matches!(event, Event::Closed { .. }))
    });
    // The thread has something to do, and sees that the link has.
    drop(TcpStream::connect(node.listens_at().unwrap()).unwrap());
    until("nobody watches its connection", || (!is_watched_for_room(inode)).then_some(()));
}

#[test]
fn whatever_comes_over_rails_in_whatever_order_what_is_whole_is_counted_once() {
    let ends = by_chance(19, 100, |seed, _| {
        let steps = 2 * (random(seed) % 200);
        let bytes: Vec<u8> = (0..steps).map(|_| random(seed) as u8).collect();
        ends::rails(&bytes)
    });
    for end in ["hung up", "closed", "misbehaved"] {
        assert!(ends.contains(&end), "none has {end}");
    }
}
