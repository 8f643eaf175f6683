//! Every reason for refusing another host has a counter, which rises by one for each refusal, and
//! no other counter rises with it.
#![cfg(not(miri))]

mod support;

use hamlyn::control::hosts::hello::{self, HelloIdentity, VERSION, Wants};
use hamlyn::control::hosts::keys::{Keys, TlsEnd};
use hamlyn::control::hosts::meeting::{Meeting, MeetingError, MeetingStep, OwnData};
use hamlyn::control::{Accept, Identity, Reason, stat_of};
use hamlyn::transport::channel::Channel;
use hamlyn::transport::path::Path;
use hamlyn::{Access, Config, Event, GREETING_BYTES_MAX, Node};
use std::collections::BTreeMap;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use support::*;

fn secret(dir: &Dir, name: &str, digits: &str) -> Config {
    dir.config().secret(dir.write(name, digits.repeat(32)))
}

/// A node that other hosts may connect to.
struct There {
    node: Node,
    at: SocketAddr,
    /// The refusals of other hosts, at the last look.
    seen: BTreeMap<&'static str, u64>,
    dir: Dir,
}

impl There {
    fn new(settings: &[(&str, &str)]) -> Self {
        let dir = Dir::new("refused", settings);
        let listen = "127.0.0.1:0".parse::<SocketAddr>().unwrap();
        let mut node = Node::with_config(secret(&dir, "secret", "7f").listen(listen)).unwrap();
        node.serve("x", Access::SameUser, Accept::Automatic(Vec::new())).unwrap();
        node.serve("ask", Access::SameUser, Accept::Ask).unwrap();
        let at = node.listens_at().unwrap();
        let mut this = Self { node, at, seen: BTreeMap::new(), dir };
        this.seen = this.refused();
        assert!(this.seen.len() >= 15 && this.seen.values().all(|count| *count == 0));
        this
    }

    fn refused(&self) -> BTreeMap<&'static str, u64> {
        let counters = self.node.counters().into_iter();
        counters.filter(|(name, _)| name.starts_with("control.hosts_refused_")).collect()
    }

    /// `name` goes up, by `times`, and nothing else does.
    #[track_caller]
    fn counts(&mut self, name: &'static str, times: u64) {
        let name = format!("control.{name}");
        let (at, before) = self.seen.iter_mut().find(|(known, _)| **known == name).unwrap();
        *before += times;
        let (at, wanted) = (*at, *before);
        until(&name, || {
            while self.node.next_event().is_some() {}
            self.refused()[at] >= wanted
        });
        assert_eq!(self.refused(), self.seen, "after {name}");
    }
}

/// The ways in which a client's host speaks by hand, with the secret.
fn connected(at: SocketAddr, dir: &Dir) -> (Channel, OwnData) {
    let keys = Keys::load(&secret(dir, "secret", "7f")).unwrap();
    let identity = Identity::new().unwrap();
    let tcp = TcpStream::connect(at).unwrap();
    tcp.set_nonblocking(true).unwrap();
    let tls = rustls::ClientConnection::new(keys.client.clone(), "127.0.0.1".try_into().unwrap());
    (Channel::new(tcp, tls.unwrap().into()), OwnData { keys, identity, packet_bytes: 4096 })
}

/// A meeting that goes on until it waits for the application, or has come to something.
fn meets(at: SocketAddr, dir: &Dir, service: &str, greeting: Vec<u8>) -> (Meeting, OwnData) {
    let (channel, own) = connected(at, dir);
    (Meeting::of_client(channel, service, greeting), own)
}

fn fails(at: SocketAddr, dir: &Dir, service: &str, greeting: Vec<u8>) -> MeetingError {
    let (mut meeting, own) = meets(at, dir, service, greeting);
    let mut error = None;
    until("it is refused", || match meeting.turn(&own) {
        MeetingStep::Waits => false,
        MeetingStep::Failed(failed) => {
            error = Some(failed);
            true
        }
        step => panic!("{step:?}"),
    });
    error.unwrap()
}

/// A host that says who it is by hand.
fn says(at: SocketAddr, dir: &Dir, change: fn(&mut HelloIdentity)) -> Channel {
    let (mut channel, own) = connected(at, dir);
    until("keys are agreed on", || {
        channel.receive(1);
        channel.flush();
        channel.is_open() && !channel.plain().is_empty()
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
    let wants = Wants { who, service: "x".into(), greeting: Vec::new() };
    channel.put(&hello::to_bytes(&wants));
    channel.flush();
    channel
}

#[test]
fn what_a_host_says_wrong_is_counted_by_what_it_is() {
    let mut there = There::new(&[]);
    let (at, dir) = (there.at, Dir::new("refused-here", &[]));
    let mut stranger = TcpStream::connect(at).unwrap();
    stranger.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    there.counts("hosts_refused_tls", 1);
    drop(TcpStream::connect(at).unwrap());
    there.counts("hosts_refused_unproved", 1);
    let _secret = says(at, &dir, |who| who.proof[31] ^= 1);
    there.counts("hosts_refused_secret", 1);
    let _identity = says(at, &dir, |who| who.signature[0] ^= 1);
    there.counts("hosts_refused_identity", 1);
    let _version = says(at, &dir, |who| who.version = (VERSION.0 + 1, 0));
    there.counts("hosts_refused_version", 1);
    let (mut channel, _own) = connected(at, &dir);
    until("keys are agreed on", || {
        channel.receive(1);
        channel.flush();
        channel.is_open()
    });
    // As long as it says it is, and no hello.
    channel.put(&[4u32.to_le_bytes().as_slice(), &[0xff; 4]].concat());
    channel.flush();
    there.counts("hosts_refused_frame", 1);
    // Also a client that sends more before its answer.
    let (mut meeting, own) = meets(at, &dir, "ask", Vec::new());
    until("it is asked for", || {
        assert!(matches!(meeting.turn(&own), MeetingStep::Waits));
        matches!(there.node.next_event(), Some(Event::Request { .. }))
    });
    meeting.channel.put(&[0; 6000]);
    meeting.channel.flush();
    there.counts("hosts_refused_frame", 1);

    assert_eq!(fails(at, &dir, "y", Vec::new()), MeetingError::NoService);
    there.counts("hosts_refused_service", 1);
    fails(at, &dir, "x", vec![0; GREETING_BYTES_MAX + 1]);
    there.counts("hosts_refused_greeting", 1);
    // A service for a group of this host's users is not for hosts. It has its name where root says.
    match hamlyn::control::setup_shared_dir(&there.dir.config()) {
        Err(e) => skipped(&format!("services for others need a shared directory: {e}")),
        Ok(_) => {
            let group = Access::Group(rustix::process::getegid().as_raw());
            there.node.serve("not-for-hosts", group, Accept::Automatic(Vec::new())).unwrap();
            fails(at, &dir, "not-for-hosts", Vec::new());
            there.counts("hosts_refused_user", 1);
        }
    }
    let (mut meeting, own) = meets(at, &dir, "ask", Vec::new());
    until("it is asked for, and refused", || {
        let step = meeting.turn(&own);
        if let Some(Event::Request { id, .. }) = there.node.next_event() {
            there.node.refuse(id, "not on the list").unwrap();
        }
        matches!(step, MeetingStep::Failed(_))
    });
    there.counts("hosts_refused_application", 1);

    // An operator sees it, like any other counter.
    let told = stat_of(&there.dir.config(), &"x".parse().unwrap(), LIMIT).unwrap();
    assert!(told.contains("control.hosts_refused_frame 2\n"), "{told}");
}

#[test]
fn a_host_that_does_not_go_on_is_counted_and_so_are_those_that_make_room() {
    let mut there = There::new(&[("HANDSHAKE_TIMEOUT_MS", "300")]);
    let silent = TcpStream::connect(there.at).unwrap();
    there.counts("hosts_refused_slow", 1);
    drop(silent);
    // So long that none of them is late.
    let mut there = There::new(&[("HANDSHAKE_TIMEOUT_MS", "60000"), ("HALF_OPEN_MAX", "16")]);
    let silent: Vec<_> = (0..18).map(|_| TcpStream::connect(there.at).unwrap()).collect();
    there.counts("hosts_refused_half_open", 2);
    drop(silent);
}

#[test]
fn hosts_beyond_the_limits_are_counted() {
    let mut there = There::new(&[("CONNECTIONS_PER_USER_MAX", "2")]);
    let (at, dir) = (there.at, Dir::new("refused-many", &[]));
    let links: Vec<_> = (0..2)
        .map(|_| {
            let (mut meeting, own) = meets(at, &dir, "x", Vec::new());
            until("there is a link", || matches!(meeting.turn(&own), MeetingStep::Link(..)));
            meeting
        })
        .collect();
    fails(at, &dir, "x", Vec::new());
    there.counts("hosts_refused_connections", 1);
    drop(links);

    let mut there = There::new(&[("LINKS_MAX", "1")]);
    let (mut meeting, own) = meets(there.at, &dir, "x", Vec::new());
    until("there is a link", || matches!(meeting.turn(&own), MeetingStep::Link(..)));
    let error = fails(there.at, &dir, "x", Vec::new());
    let said = |error: &MeetingError| match error {
        MeetingError::Refused(reason, why) => *reason == Reason::Links && why.contains("links_max"),
        _ => false,
    };
    assert!(said(&error), "{error:?}");
    there.counts("hosts_refused_links", 1);
}

#[test]
fn a_host_for_which_no_descriptor_is_left_is_counted() {
    alone("a_host_for_which_no_descriptor_is_left_is_counted", || {
        let there = There::new(&[]);
        let any = "127.0.0.1:0".parse::<SocketAddr>().unwrap();
        let socket = rustix::net::socket(
            rustix::net::AddressFamily::INET,
            rustix::net::SocketType::STREAM,
            None,
        )
        .unwrap();
        rustix::net::bind(&socket, &any).unwrap();
        let before = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        let none = rustix::process::Rlimit { current: Some(0), maximum: before.maximum };
        rustix::process::setrlimit(rustix::process::Resource::Nofile, none).unwrap();
        rustix::net::connect(&socket, &there.at).unwrap();
        // Others of this process may look for a descriptor meanwhile; and it is tried again.
        let exhausted = || there.refused()["control.hosts_refused_exhausted"];
        until("it is counted", || exhausted() > 0);
        rustix::process::setrlimit(rustix::process::Resource::Nofile, before).unwrap();
        let others: u64 = there.refused().values().sum();
        assert_eq!(others, exhausted());
    });
}

/// One that connects while the system refuses this call is counted, and nothing else with it.
fn refused_by_the_system(name: &str, call: libc::c_long) {
    alone(name, || {
        let mut there = There::new(&[]);
        refuse(call);
        let mut here = TcpStream::connect(there.at).unwrap();
        // Of one that says nothing no more is asked for than to watch it.
        let _ = here.write_all(&[22]);
        there.counts("hosts_refused_exhausted", 1);
    });
}

#[test]
fn a_host_whose_socket_the_system_does_not_prepare_is_counted() {
    let name = "a_host_whose_socket_the_system_does_not_prepare_is_counted";
    refused_by_the_system(name, libc::SYS_setsockopt);
}

#[test]
fn a_host_whose_socket_the_system_does_not_watch_is_counted() {
    let name = "a_host_whose_socket_the_system_does_not_watch_is_counted";
    refused_by_the_system(name, libc::SYS_epoll_ctl);
}
