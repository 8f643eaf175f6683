//! A man in the middle who ends TLS at both sides: a server to the client, and a client to the
//! server. He reads and forwards the messages. An end's proof is bound to its own connection, and
//! useless on another: without the secret he learns nothing, and with the secret, or a certificate
//! for the name, he can pass only for himself.
//!
//! ```text
//!   client --TLS of one key--> he takes each message out, and puts it in --TLS of another--> server
//! ```
#![cfg(not(miri))]

#[path = "support/hand.rs"]
mod hand;
mod support;

use hamlyn::control::hosts::hello::{self, HelloIdentity, Wants};
use hamlyn::control::hosts::keys::TlsEnd;
use hamlyn::control::{Accept, Reason};
use hamlyn::node::{ConnectError, Event, HostError, MeetingError};
use hamlyn::transport::channel::Channel;
use hamlyn::transport::path::Path;
use hamlyn::wire::NodeId;
use hamlyn::{Access, Config, LinkId, Node};
use hand::Hand;
use rcgen::{CertificateParams, DnType, Issuer, KeyPair};
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use support::{Dir, LIMIT, LONG, until};

const LOOPBACK: &str = "127.0.0.1:0";
/// The client's greeting to a proved server, and to no other.
const GREETING: &[u8] = b"what it wants";

/// Keys with the secret of the two ends.
fn with_secret(dir: &Dir) -> Config {
    dir.config().secret(dir.secret())
}

/// Keys with another secret: only a certificate that proves nothing to these ends.
fn without_secret(dir: &Dir) -> Config {
    dir.config().secret(dir.write("secret", "00".repeat(32)))
}

/// Certificates for `localhost`, each with a key of its own, of one authority.
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

    fn issue(&self, dir: &Dir) -> Config {
        let params = CertificateParams::new(vec!["localhost".to_string()]).unwrap();
        let key = KeyPair::generate().unwrap();
        let own = params.signed_by(&key, &self.issuer).unwrap();
        dir.config()
            .certificate(dir.write("own.pem", own.pem()))
            .certificate_key(dir.write("key.pem", key.serialize_pem()))
            .trusted(dir.write("trusted.pem", &self.pem))
    }
}

// ---- the ends

/// An honest server, whose application is asked.
struct There {
    node: Node,
    at: SocketAddr,
    _dir: Dir,
}

impl There {
    fn new(keys: impl FnOnce(&Dir) -> Config) -> Self {
        let dir = Dir::new("between-there", &[]);
        let listen = LOOPBACK.parse::<SocketAddr>().unwrap();
        let mut node = Node::with_config(keys(&dir).listen(listen)).unwrap();
        node.serve("x", Access::SameUser, Accept::Ask).unwrap();
        let at = node.listens_at().unwrap();
        Self { node, at, _dir: dir }
    }

    /// One connection is refused for this reason and for no other, and the application is asked nothing.
    #[track_caller]
    fn refuses(&mut self, why: &str) {
        let refused = |node: &Node| -> Vec<_> {
            let counters = node.counters().into_iter();
            counters
                .filter(|row| row.0.starts_with("control.hosts_refused_") && row.1 > 0)
                .collect()
        };
        until("it is counted", || {
            self.node.poll().unwrap();
            !refused(&self.node).is_empty()
        });
        let refused = refused(&self.node);
        assert!(refused.len() == 1 && refused[0].1 == 1, "{refused:?}");
        assert_eq!(refused[0].0, format!("control.{why}"));
        self.node.poll().unwrap();
        assert!(self.node.next_event().is_none());
    }
}

/// An honest client connects to the listener there.
fn connect(keys: impl FnOnce(&Dir) -> Config, at: SocketAddr) -> Result<(), MeetingError> {
    let dir = Dir::new("between-here", &[]);
    let mut node = Node::with_config(keys(&dir)).unwrap();
    let name = format!("hamlyn://localhost:{}/x", at.port());
    match node.connect(&name, GREETING, LIMIT) {
        Ok(_) => Ok(()),
        Err(ConnectError::Host { error: HostError::Meeting(error), .. }) => Err(error),
        Err(error) => panic!("{error}"),
    }
}

// ---- who is between

/// The attacker's change of an end's identity message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Passes {
    /// Every byte as it came.
    All,
    /// The node and its signature as they came, and that he has the secret.
    Node,
    /// His own identity; the rest unchanged.
    Himself,
}

/// The messages to him, from the client and from the server.
type Heard = Arc<[Mutex<Vec<u8>>; 2]>;

struct Between {
    at: SocketAddr,
    node: NodeId,
    heard: Heard,
    thread: JoinHandle<()>,
}

impl Between {
    /// Between the first client and `to`; the treatment of the client's messages, and of the
    /// server's.
    fn new(to: SocketAddr, keys: impl FnOnce(&Dir) -> Config, passes: [Passes; 2]) -> Self {
        let listener = TcpListener::bind(LOOPBACK).unwrap();
        let at = listener.local_addr().unwrap();
        let hand = Hand::new(&keys(&Dir::new("between", &[])));
        let node = hand.identity.node();
        let heard = Heard::default();
        let hears = heard.clone();
        let thread = std::thread::spawn(move || {
            let (tcp, _) = listener.accept().unwrap();
            let ends = [hand.server(tcp), hand.client(to)];
            stand(&hand, ends, passes, &hears);
        });
        Self { at, node, heard, thread }
    }

    /// The bytes he has read from the client and from the server, once one of them has gone.
    fn heard(self) -> [Vec<u8>; 2] {
        self.thread.join().unwrap();
        [0, 1].map(|i| std::mem::take(&mut *self.heard[i].lock().unwrap()))
    }
}

/// Passes on what is said until one of them has gone.
fn stand(hand: &Hand, mut ends: [Channel; 2], passes: [Passes; 2], heard: &Heard) {
    let limit = Instant::now() + LONG;
    let mut is_first = [true, true];
    let mut has_gone = false;
    while !has_gone {
        assert!(Instant::now() < limit, "neither of them goes");
        for end in &mut ends {
            end.receive(1 << 16);
            end.flush();
            has_gone |= end.ended().is_some();
        }
        for (from, to) in [(0, 1), (1, 0)] {
            // His own proof is of the connection that it goes to.
            if ends[from].plain().is_empty() || !ends[to].is_open() {
                continue;
            }
            let said = ends[from].plain().to_vec();
            let passed = match is_first[from] {
                true => pass(hand, &said, passes[from], from, &ends[to]),
                false => Some(said.clone()),
            };
            let Some(passed) = passed else { continue };
            is_first[from] = false;
            heard[from].lock().unwrap().extend_from_slice(&said);
            ends[from].take(said.len());
            ends[to].put(&passed);
            ends[to].flush();
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    // The one that is left hears all of it.
    until("what he passes on has left", || {
        ends.iter_mut().all(|end| end.flush() || end.ended().is_some())
    });
}

/// The first words of an end, as he passes them on; `None`: they are not whole yet.
fn pass(hand: &Hand, said: &[u8], passes: Passes, from: usize, to: &Channel) -> Option<Vec<u8>> {
    let own = if from == 0 { TlsEnd::Client } else { TlsEnd::Server };
    let change = |who: HelloIdentity| match passes {
        Passes::All => who,
        Passes::Node => HelloIdentity { proof: hand.proof(own, to), ..who },
        Passes::Himself => hand.who(own, to),
    };
    if from == 0 {
        let (wants, behind, used) = hello::from_bytes_with::<Wants>(said).unwrap()?;
        let wants = Wants { who: change(wants.who), ..wants };
        assert_eq!(used, said.len());
        Some(hello::to_bytes_with(&wants, behind))
    } else {
        let (who, behind, used) = hello::from_bytes_with::<HelloIdentity>(said).unwrap()?;
        assert_eq!(used, said.len());
        Some(hello::to_bytes_with(&change(who), behind))
    }
}

/// Whether that is all that he has heard of the server: who it is.
fn is_who(said: &[u8], there: &There) {
    let (who, used) = hello::from_bytes::<HelloIdentity>(said).unwrap().unwrap();
    assert_eq!((who.node, used), (there.node.id().0, said.len()));
}

#[test]
fn whoever_ends_tls_at_both_sides_without_the_secret_is_found_out_and_told_nothing() {
    let mut there = There::new(with_secret);
    let between = Between::new(there.at, without_secret, [Passes::All; 2]);
    assert_eq!(connect(with_secret, between.at), Err(MeetingError::Secret));
    there.refuses("hosts_refused_unproved");
    let [of_client, of_server] = between.heard();
    is_who(&of_server, &there);
    assert!(of_client.is_empty(), "a client told him: {of_client:?}");
}

#[test]
fn what_shows_a_client_s_secret_on_one_connection_shows_it_on_no_other() {
    let mut there = There::new(with_secret);
    let between = Between::new(there.at, without_secret, [Passes::All; 2]);
    // One with the secret that does not look whom it speaks with.
    let hand = Hand::new(&with_secret(&Dir::new("between-hand", &[])));
    let mut channel = hand.client(between.at);
    until("the server has said who it is", || {
        channel.receive(1 << 16);
        channel.flush();
        !channel.plain().is_empty()
    });
    is_who(channel.plain(), &there);
    channel.take(channel.plain().len());
    let who = hand.who(TlsEnd::Client, &channel);
    channel.put(&hello::to_bytes(&Wants { who, service: "x".into(), greeting: Vec::new() }));
    until("it has its answer", || {
        channel.receive(1 << 16);
        channel.flush();
        channel.ended().is_some()
    });
    let told = String::from_utf8_lossy(channel.plain()).into_owned();
    assert!(told.contains(&MeetingError::Secret.to_string()), "{told:?}");
    there.refuses("hosts_refused_secret");
}

/// An attacker with such keys passes for no other node, neither to a client nor to a server.
fn passes_for_nobody(keys: &dyn Fn(&Dir) -> Config) {
    // For the server.
    let mut there = There::new(keys);
    let between = Between::new(there.at, keys, [Passes::Node; 2]);
    assert_eq!(connect(keys, between.at), Err(MeetingError::Identity));
    there.refuses("hosts_refused_unproved");
    let [of_client, of_server] = between.heard();
    is_who(&of_server, &there);
    assert!(of_client.is_empty(), "a client told him: {of_client:?}");
    // For the client, to which he says who he is: what he hears is of no use to him.
    let mut there = There::new(keys);
    let between = Between::new(there.at, keys, [Passes::Node, Passes::Himself]);
    let error = connect(keys, between.at).unwrap_err();
    let MeetingError::Refused(Reason::Identity, why) = error else { panic!("{error}") };
    assert_eq!(why, MeetingError::Identity.to_string());
    there.refuses("hosts_refused_identity");
    let (wants, _) = hello::from_bytes::<Wants>(&between.heard()[0]).unwrap().unwrap();
    assert_eq!(wants.greeting, GREETING);
}

#[test]
fn whoever_has_the_secret_and_is_between_passes_for_no_other_node() {
    passes_for_nobody(&with_secret);
}

#[test]
fn whoever_has_a_certificate_for_the_name_and_is_between_passes_for_no_other_node() {
    let authority = Authority::new();
    passes_for_nobody(&|dir| authority.issue(dir));
}

#[test]
fn whoever_has_the_secret_and_is_between_is_known_as_himself_to_both() {
    let mut there = There::new(with_secret);
    let between = Between::new(there.at, with_secret, [Passes::Himself; 2]);
    let dir = Dir::new("between-here", &[]);
    let mut here = Node::with_config(with_secret(&dir)).unwrap();
    let name = format!("hamlyn://{}/x", between.at);
    std::thread::scope(|scope| {
        let connects = scope.spawn(|| {
            let link = here.connect(&name, GREETING, LIMIT).unwrap();
            assert_eq!(here.peer(link).unwrap().node, between.node);
        });
        let mut link: Option<LinkId> = None;
        until("there is a link", || {
            there.node.poll().unwrap();
            match there.node.next_event() {
                Some(Event::Request { id, peer, .. }) => {
                    assert_eq!(peer.node, between.node);
                    there.node.accept(id, b"").unwrap();
                }
                Some(Event::Connected { link: connected, .. }) => link = Some(connected),
                Some(other) => panic!("{other:?}"),
                None => {}
            }
            link.is_some()
        });
        assert_eq!(there.node.peer(link.unwrap()).unwrap().node, between.node);
        connects.join().unwrap();
    });
    drop(here);
    let (wants, _) = hello::from_bytes::<Wants>(&between.heard()[0]).unwrap().unwrap();
    assert_eq!(wants.greeting, GREETING);
}
