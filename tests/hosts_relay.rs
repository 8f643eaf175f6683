//! A man in the middle: a relay between two hosts that changes a byte, cuts the connection
//! anywhere, drops, repeats and reorders records, replays recorded ones, and delays. In each case
//! both ends get an error, or nothing is wrong. And strangers at the port who are slow, many, or
//! gone at once.
//!
//! ```text
//!   node here --TCP--> relay, which follows a plan for one direction --TCP--> node there
//! ```
#![cfg(not(miri))]

mod support;

use hamlyn::node::{CloseReason, Event};
use hamlyn::{
    Accept, Access, AreaId, Config, LinkId, Node, NodeSendError, QueueId, SlotConfig, Ticket,
};
use rustix::net::{AddressFamily, SocketType};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use support::{Costs, Dir, LIMIT, LONG, alone, listening, until};

const LOOPBACK: &str = "127.0.0.1:0";
/// Messages that each end sends.
const MESSAGES: u32 = 48;
const MESSAGE_BYTES: usize = 600;
/// A host's time limit for another that is silent before there is a link.
const TIMEOUT: (&str, &str) = ("HANDSHAKE_TIMEOUT_MS", "1500");

fn config(dir: &Dir) -> Config {
    dir.config().secret(dir.secret())
}

// ---- the relay

/// The treatment of one record of TLS.
enum Done {
    /// This is sent instead of it.
    Passes(Vec<u8>),
    /// This is sent, and then both directions end.
    Ends(Vec<u8>),
    /// Nothing more of this direction is passed, and nothing is ended.
    Holds,
}

/// Called with the number of a record, where it begins in the direction's bytes, and itself.
type Plan = Box<dyn FnMut(usize, usize, Vec<u8>) -> Done + Send>;

/// Leaves everything as it is.
fn honest() -> Plan {
    Box::new(|_, _, record| Done::Passes(record))
}

struct Relay {
    at: SocketAddr,
    /// Bytes that have come, of each direction.
    passed: Arc<[AtomicUsize; 2]>,
    /// The bytes sent on, of each direction.
    sent: Arc<[Mutex<Vec<u8>>; 2]>,
}

/// Between the first client and `to`. The first plan is for the bytes to `to`.
fn relay(to: SocketAddr, plans: [Plan; 2]) -> Relay {
    let listener = TcpListener::bind(LOOPBACK).unwrap();
    let at = listener.local_addr().unwrap();
    let counts: Arc<[AtomicUsize; 2]> = Arc::default();
    let copies: Arc<[Mutex<Vec<u8>>; 2]> = Arc::default();
    let found = Relay { at, passed: counts.clone(), sent: copies.clone() };
    std::thread::spawn(move || {
        let Ok((here, _)) = listener.accept() else { return };
        let there = TcpStream::connect(to).unwrap();
        for tcp in [&here, &there] {
            tcp.set_nodelay(true).unwrap();
        }
        let ends = [(&here, &there), (&there, &here)];
        std::thread::scope(|scope| {
            for (i, (plan, (from, onto))) in plans.into_iter().zip(ends).enumerate() {
                let (count, copy) = (&counts[i], &copies[i]);
                scope.spawn(move || pass(from, onto, plan, count, copy));
            }
        });
    });
    found
}

fn pass(
    mut from: &TcpStream,
    mut to: &TcpStream,
    mut plan: Plan,
    count: &AtomicUsize,
    copy: &Mutex<Vec<u8>>,
) {
    let (mut position, mut number) = (0, 0);
    let mut holds = false;
    loop {
        let mut record = vec![0; 5];
        if from.read_exact(&mut record).is_err() {
            break;
        }
        let length = u16::from_be_bytes([record[3], record[4]]) as usize;
        record.resize(5 + length, 0);
        if from.read_exact(&mut record[5..]).is_err() {
            break;
        }
        let start = position;
        position += record.len();
        count.store(position, Ordering::Relaxed);
        if holds {
            continue;
        }
        let (bytes, ends) = match plan(number, start, record) {
            Done::Passes(bytes) => (bytes, false),
            Done::Ends(bytes) => (bytes, true),
            Done::Holds => {
                holds = true;
                continue;
            }
        };
        copy.lock().unwrap().extend_from_slice(&bytes);
        if to.write_all(&bytes).is_err() {
            break;
        }
        if ends {
            let _ = from.shutdown(Shutdown::Both);
            break;
        }
        number += 1;
    }
    let _ = to.shutdown(if holds { Shutdown::Both } else { Shutdown::Write });
}

// ---- two nodes

/// One end, and what it has had.
struct End {
    dir: Dir,
    node: Node,
    area: AreaId,
    queue: QueueId,
    ticket: Ticket,
    link: Option<LinkId>,
    /// Where it is to write.
    theirs: Option<Ticket>,
    sent: u32,
    came: u32,
    closed: Option<CloseReason>,
}

impl End {
    fn new(name: &str, listens: bool) -> Self {
        let dir = Dir::new(name, &[TIMEOUT]);
        let config = config(&dir);
        let mut node = Node::with_config(if listens { listening(config) } else { config }).unwrap();
        let area = node.message_area(4096).unwrap();
        let queue = node.notification_queue(2 * MESSAGES).unwrap();
        let slot = node.slot(SlotConfig::new(area, queue).credit(MESSAGES)).unwrap();
        let ticket = node.fast_ticket(slot).unwrap();
        if listens {
            let greeting = Accept::Automatic(ticket.to_bytes().to_vec());
            node.serve("x", Access::SameUser, greeting).unwrap();
        }
        let (link, theirs, closed) = (None, None, None);
        Self { dir, node, area, queue, ticket, link, theirs, sent: 0, came: 0, closed }
    }

    fn has_link(&mut self, link: LinkId) {
        self.link = Some(link);
        self.theirs = Some(Ticket::from_bytes(self.node.greeting(link).unwrap()).unwrap());
    }

    /// Takes what has come, which must be what was sent, in order; sends what can be sent.
    fn turn(&mut self) {
        self.node.poll().unwrap();
        let before = self.came;
        while let Some(notification) = self.node.pop(self.queue).unwrap() {
            assert_eq!(notification.word, self.came, "messages come in order, and once");
            self.came += 1;
        }
        if self.came > before {
            let last = (self.came - 1) as u8;
            let bytes = self.node.area(self.area).unwrap();
            assert!(bytes[..MESSAGE_BYTES].iter().all(|byte| *byte == last), "message {last}");
        }
        while let Some(event) = self.node.next_event() {
            match event {
                Event::Connected { link, .. } => self.has_link(link),
                Event::Closed { reason, .. } => self.closed = Some(reason),
                other => panic!("{other:?}"),
            }
        }
        if let (Some(link), Some(ticket), None) = (self.link, &self.theirs, &self.closed)
            && self.sent < MESSAGES
        {
            let message = [self.sent as u8; MESSAGE_BYTES];
            match self.node.try_send_fast_over(link, ticket, &message, self.sent) {
                Ok(()) => self.sent += 1,
                Err(NodeSendError::Full | NodeSendError::LinkEnded(_)) => {}
                Err(error) => panic!("{error}"),
            }
        }
    }

    fn is_done(&self) -> bool {
        self.sent == MESSAGES && self.came == MESSAGES
    }

    /// The number of refused connections of strangers and hosts in its operator's log.
    fn refused(&self) -> u64 {
        let name = "x".parse().unwrap();
        let told = hamlyn::control::stat_of(&self.dir.config(), &name, LIMIT).unwrap();
        let row = |line: &str| {
            let (name, value) = line.split_once(' ')?;
            (name.starts_with("refusal.") && name.ends_with(".count"))
                .then(|| value.parse::<u64>().unwrap())
        };
        told.lines().filter_map(row).sum()
    }
}

#[derive(Debug)]
struct Seen {
    /// Of connecting.
    error: Option<String>,
    here: Option<CloseReason>,
    there: Option<CloseReason>,
    refused: u64,
    /// Everything that was to come has, and nothing has ended.
    is_whole: bool,
    passed: [usize; 2],
}

/// A link is made and used through a relay with these plans, until everything is said, or both ends
/// have been told that it will not be.
fn through(plans: [Plan; 2]) -> (Seen, Relay) {
    let mut there = End::new("there", true);
    let relay = relay(there.node.listens_at().unwrap(), plans);
    let mut here = End::new("here", false);
    let greeting = here.ticket.to_bytes();
    let begun = Instant::now();
    // Longer than the other end takes to give up.
    let limit = Some(Duration::from_secs(4));
    let connected = here.node.connect(&format!("hamlyn://{}/x", relay.at), &greeting, limit);
    let mut error = None;
    match connected {
        Ok(link) => here.has_link(link),
        Err(e) => {
            error = Some(e.to_string());
            drop(std::mem::replace(&mut here, End::new("none", false)));
        }
    }
    let is_over = |here: &End, there: &End| {
        (here.is_done() && there.is_done())
            || (here.closed.is_some() && there.closed.is_some())
            || (error.is_some() && (there.closed.is_some() || there.refused() > 0))
    };
    // A relay may hold records back for an unknown time, so each wait has a limit.
    let patience = Duration::from_secs(if error.is_some() { 40 } else { 3 });
    let mut since = Instant::now();
    let mut progress = 0;
    while !is_over(&here, &there) && since.elapsed() < patience {
        here.turn();
        there.turn();
        let now = here.came + there.came + here.closed.is_some() as u32;
        if now > progress {
            (progress, since) = (now, Instant::now());
        }
    }
    let is_whole = here.is_done() && there.is_done() && error.is_none();
    let passed = [0, 1].map(|i| relay.passed[i].load(Ordering::Relaxed));
    let own = here.closed.take();
    if error.is_none() && !is_whole && !(own.is_some() && there.closed.is_some()) {
        // One of them gave up; then the other gets an error.
        drop(here);
        let end = Instant::now() + LONG;
        while there.closed.is_none() && there.refused() == 0 {
            there.turn();
            assert!(Instant::now() < end, "the other end is never told");
        }
    }
    assert!(begun.elapsed() < LONG * 2);
    let refused = there.refused();
    let seen = Seen { error, here: own, there: there.closed.take(), refused, is_whole, passed };
    (seen, relay)
}

/// Cases, some at a time, since many of them wait.
fn for_each<T: Send>(cases: Vec<T>, run: impl Fn(T) + Sync) {
    let cases = Mutex::new(cases);
    std::thread::scope(|scope| {
        for _ in 0..12 {
            scope.spawn(|| {
                loop {
                    let Some(case) = cases.lock().unwrap().pop() else { return };
                    run(case);
                }
            });
        }
    });
}

fn plans(upstream: bool, plan: Plan) -> [Plan; 2] {
    if upstream { [plan, honest()] } else { [honest(), plan] }
}

/// Every so many bytes; with `HAMLYN_TEST_STEP=1` each, which takes a minute.
fn step() -> usize {
    std::env::var("HAMLYN_TEST_STEP").map_or(29, |step| step.parse().unwrap())
}

/// Bytes of each direction of a connection before the first message, and a little more.
fn handshake() -> [usize; 2] {
    let (seen, _relay) = through([honest(), honest()]);
    assert!(seen.is_whole && seen.refused == 0, "{seen:?}");
    let messages = MESSAGES as usize * MESSAGE_BYTES;
    seen.passed.map(|bytes| bytes - messages.min(bytes) + 2500)
}

/// Both ends were told that it ended, in words, and it was counted where no link was there yet.
fn is_told(seen: &Seen, what: &str) {
    assert!(!seen.is_whole, "{what}: {seen:?}");
    let graceful = |reason: &Option<CloseReason>| matches!(reason, Some(CloseReason::Closed));
    assert!(seen.error.is_some() || !graceful(&seen.here), "{what}: {seen:?}");
    assert!(seen.error.as_ref().is_none_or(|error| !error.is_empty()), "{what}: {seen:?}");
    assert!(seen.there.is_some() || seen.refused > 0, "{what}: {seen:?}");
    assert!(seen.refused <= 1, "{what} is counted once: {seen:?}");
}

#[test]
fn a_byte_that_is_changed_on_the_way_ends_the_link_at_both_ends() {
    let ends = handshake();
    let mut cases = Vec::new();
    for upstream in [true, false] {
        let end = ends[usize::from(!upstream)];
        // Heads of records are few, and lengths stand in them: the first bytes are all taken.
        cases.extend((0..12).chain((12..end).step_by(step())).map(|at| (upstream, at)));
    }
    let told = AtomicUsize::new(0);
    let count = cases.len();
    for_each(cases, |(upstream, at)| {
        let bit = 1 << (at % 8);
        let (seen, _relay) = through(plans(
            upstream,
            Box::new(move |_, start, mut record| {
                if let Some(byte) = at.checked_sub(start).and_then(|at| record.get_mut(at)) {
                    *byte ^= bit;
                }
                Done::Passes(record)
            }),
        ));
        if seen.is_whole {
            // Two bytes of each record's head mean nothing: a version that TLS 1.3 does not look at.
            return;
        }
        is_told(&seen, &format!("byte {at}, bit {bit:#x}, upstream {upstream}"));
        told.fetch_add(1, Ordering::Relaxed);
    });
    let told = told.into_inner();
    eprintln!("{told} of {count} changes ended the link");
    assert!(told * 10 >= count * 9, "{told} of {count}");
}

#[test]
fn a_connection_that_is_cut_after_any_byte_ends_at_both_ends() {
    let ends = handshake();
    let mut cases = Vec::new();
    for upstream in [true, false] {
        let end = ends[usize::from(!upstream)];
        cases.extend((0..end).step_by(step()).map(|at| (upstream, at)));
    }
    for_each(cases, |(upstream, at)| {
        let (seen, _relay) = through(plans(
            upstream,
            Box::new(move |_, start, mut record| {
                if at >= start + record.len() {
                    return Done::Passes(record);
                }
                record.truncate(at.saturating_sub(start));
                Done::Ends(record)
            }),
        ));
        is_told(&seen, &format!("cut after {at}, upstream {upstream}"));
        let has_died = |reason: &Option<CloseReason>| {
            reason.as_ref().is_none_or(|reason| matches!(reason, CloseReason::Died))
        };
        assert!(has_died(&seen.here) && has_died(&seen.there), "{at}, {upstream}: {seen:?}");
    });
}

/// The attack on a record of messages.
#[derive(Clone, Copy, Debug)]
enum Trick {
    LeaveOut,
    SayTwice,
    Swap,
    Hold,
}

#[test]
fn records_that_are_left_out_said_twice_or_in_another_order_end_the_link() {
    let mut cases = Vec::new();
    for upstream in [true, false] {
        for trick in [Trick::LeaveOut, Trick::SayTwice, Trick::Swap, Trick::Hold] {
            cases.extend((0..14).map(|at| (upstream, trick, at)));
        }
    }
    for_each(cases, |(upstream, trick, at)| {
        let mut kept = None;
        let mut done = false;
        // How many records there are is chance: what is queued together is one.
        let reached = Arc::new(AtomicUsize::new(0));
        let reaches = reached.clone();
        let plan: Plan = Box::new(move |number, _, record| {
            if let Some(first) = kept.take() {
                return Done::Passes([record, first].concat());
            }
            if done || number < at {
                return Done::Passes(record);
            }
            done = true;
            reaches.store(1, Ordering::Relaxed);
            match trick {
                Trick::LeaveOut => Done::Passes(Vec::new()),
                Trick::SayTwice => Done::Passes(record.repeat(2)),
                Trick::Swap => {
                    kept = Some(record);
                    Done::Passes(Vec::new())
                }
                Trick::Hold => Done::Holds,
            }
        });
        let (seen, _relay) = through(plans(upstream, plan));
        // Of one kind of record TLS 1.3 lets any number pass: it is for old relays, and says nothing.
        let was_done = reached.load(Ordering::Relaxed) == 1;
        // The last records come after all that the ends say, as may what is held back.
        let is_late = at > 6 || matches!(trick, Trick::Hold);
        let is_nothing = seen.is_whole && (at < 2 || !was_done || is_late);
        if !is_nothing {
            is_told(&seen, &format!("{trick:?} of record {at}, upstream {upstream}"));
        }
    });
}

#[test]
fn a_relay_that_only_takes_its_time_changes_nothing() {
    for_each((0..6u64).collect(), |seed| {
        let slow = |mut state: u64| -> Plan {
            Box::new(move |number, _, record| {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                // Within the time that a host gives another one before there is a link.
                let most = if number < 8 { 60 } else { 20 };
                std::thread::sleep(Duration::from_millis((state >> 33) % most));
                Done::Passes(record)
            })
        };
        let (seen, _relay) = through([slow(2 * seed + 1), slow(2 * seed + 2)]);
        assert!(seen.is_whole && seen.refused == 0, "{seen:?}");
    });
}

#[test]
fn what_was_recorded_of_a_connection_makes_no_other() {
    let mut there = End::new("there", true);
    let at = there.node.listens_at().unwrap();
    let recorded = {
        let relay = relay(at, [honest(), honest()]);
        let mut here = End::new("here", false);
        let greeting = here.ticket.to_bytes();
        let name = format!("hamlyn://{}/x", relay.at);
        let link = here.node.connect(&name, &greeting, LIMIT).unwrap();
        here.has_link(link);
        until("everything is said", || {
            here.turn();
            there.turn();
            here.is_done() && there.is_done()
        });
        [0, 1].map(|i| relay.sent[i].lock().unwrap().clone())
    };
    until("the link has ended", || {
        there.turn();
        there.closed.is_some()
    });
    // To the server, what the client said: at once, and in pieces as they came.
    for pieces in [recorded[0].len(), 517, 100] {
        let before = there.refused();
        let mut tcp = TcpStream::connect(at).unwrap();
        for piece in recorded[0].chunks(pieces) {
            if tcp.write_all(piece).is_err() {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        until("it is refused, and counted", || {
            there.turn();
            there.refused() == before + 1
        });
        assert_eq!(there.came, MESSAGES, "nothing came a second time");
    }
    // To a client, what the server said.
    let listener = TcpListener::bind(LOOPBACK).unwrap();
    let name = format!("hamlyn://{}/x", listener.local_addr().unwrap());
    let plays = std::thread::spawn(move || {
        let (mut tcp, _) = listener.accept().unwrap();
        tcp.set_read_timeout(LIMIT).unwrap();
        let _ = tcp.read(&mut [0; 4096]);
        let _ = tcp.write_all(&recorded[1]);
        while !matches!(tcp.read(&mut [0; 4096]), Ok(0) | Err(_)) {}
    });
    let mut here = End::new("here", false);
    let error = here.node.connect(&name, b"", LIMIT).unwrap_err().to_string();
    assert!(error.contains("TLS"), "{error}");
    plays.join().unwrap();
}

// ---- strangers

/// A connection from this address of the loopback network.
fn from(address: [u8; 4], to: SocketAddr) -> TcpStream {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    rustix::net::bind(&socket, &SocketAddr::V4(SocketAddrV4::new(address.into(), 0))).unwrap();
    rustix::net::connect(&socket, &to).unwrap();
    socket.into()
}

/// Whether an honest host is let in and heard.
fn is_served(there: &mut End) {
    let mut here = End::new("honest", false);
    let name = format!("hamlyn://{}/x", there.node.listens_at().unwrap());
    let greeting = here.ticket.to_bytes();
    let link = here.node.connect(&name, &greeting, LIMIT).unwrap();
    here.has_link(link);
    (there.sent, there.came, there.closed) = (0, 0, None);
    until("everything is said", || {
        here.turn();
        there.turn();
        here.is_done() && there.is_done()
    });
    drop(here);
    until("it has gone", || {
        there.turn();
        there.closed.is_some()
    });
    (there.link, there.theirs) = (None, None);
}

#[test]
fn whoever_says_a_byte_now_and_then_is_not_waited_for() {
    let mut there = End::new("there", true);
    let at = there.node.listens_at().unwrap();
    // The beginning of an honest connection.
    let hello = {
        let listener = TcpListener::bind(LOOPBACK).unwrap();
        let name = format!("hamlyn://{}/x", listener.local_addr().unwrap());
        let connects = std::thread::spawn(move || {
            let mut end = End::new("hello", false);
            end.node.connect(&name, b"", Some(Duration::from_secs(1))).unwrap_err();
        });
        let (mut tcp, _) = listener.accept().unwrap();
        let mut bytes = vec![0; 4096];
        let count = tcp.read(&mut bytes).unwrap();
        drop((tcp, listener));
        connects.join().unwrap();
        bytes.truncate(count);
        bytes
    };
    let begun = Instant::now();
    let mut slow: Vec<TcpStream> = (1..=8u8).map(|i| from([127, 0, 7, i], at)).collect();
    let mut said = 0;
    while !slow.is_empty() {
        assert!(begun.elapsed() < LONG, "{} are kept", slow.len());
        assert!(said + 1 < hello.len(), "as long as it says something it is kept");
        slow.retain_mut(|tcp| {
            tcp.set_nonblocking(true).unwrap();
            let is_there = match tcp.read(&mut [0; 64]) {
                Ok(0) => false,
                Err(e) => e.kind() == ErrorKind::WouldBlock,
                Ok(_) => true,
            };
            is_there && tcp.write_all(&hello[said..said + 1]).is_ok()
        });
        said += 1;
        std::thread::sleep(Duration::from_millis(50));
    }
    until("each is counted", || there.refused() == 8);
    is_served(&mut there);
}

#[test]
fn a_scan_of_the_port_leaves_nothing_behind() {
    alone("a_scan_of_the_port_leaves_nothing_behind", || {
        let mut there = End::new("there", true);
        let at = there.node.listens_at().unwrap();
        is_served(&mut there);
        let before = Costs::now();
        for i in 0..2000u32 {
            let mut tcp = TcpStream::connect(at).unwrap();
            match i % 3 {
                0 => {}
                1 => tcp.write_all(b"\x16\x03\x01").unwrap(),
                // A reset.
                _ => rustix::net::sockopt::set_socket_linger(&tcp, Some(Duration::ZERO)).unwrap(),
            }
        }
        until("all are let go of", || Costs::now().descriptors <= before.descriptors);
        is_served(&mut there);
        until("so is the honest one", || Costs::now().descriptors <= before.descriptors);
        let bytes = Costs::now().heap_bytes.saturating_sub(before.heap_bytes);
        assert!(bytes < 256 << 10, "{bytes} bytes are left of 2000 strangers");
    });
}

#[test]
fn strangers_from_many_addresses_are_as_many_as_may_be_and_keep_nobody_out() {
    alone("strangers_from_many_addresses_are_as_many_as_may_be_and_keep_nobody_out", || {
        // Also where there may be fewer links than strangers: these take no place of a link's.
        ["4096", "1"].into_iter().for_each(strangers_from_many_addresses);
    });
}

fn strangers_from_many_addresses(links_max: &'static str) {
    const MOST: usize = 24;
    // None of them goes by itself.
    let long = ("HANDSHAKE_TIMEOUT_MS", "300000");
    let most = MOST.to_string();
    let dir = Dir::new("many", &[long, ("HALF_OPEN_MAX", &most), ("LINKS_MAX", links_max)]);
    let mut there = End::new("there", true);
    there.node = Node::with_config(listening(config(&dir))).unwrap();
    there.area = there.node.message_area(4096).unwrap();
    there.queue = there.node.notification_queue(2 * MESSAGES).unwrap();
    let slot = SlotConfig::new(there.area, there.queue).credit(MESSAGES);
    let slot = there.node.slot(slot).unwrap();
    let greeting = there.node.fast_ticket(slot).unwrap().to_bytes().to_vec();
    there.node.serve("x", Access::SameUser, Accept::Automatic(greeting)).unwrap();
    let at = there.node.listens_at().unwrap();
    let before = Costs::now().descriptors;
    let mut stay = Vec::new();
    for i in 0..200u32 {
        stay.push(from([127, 0, (i / 50) as u8 + 1, (i % 50) as u8 + 1], at));
        let theirs = Costs::now().descriptors - before - stay.len();
        assert!(theirs <= MOST + 2, "{theirs} strangers are kept");
    }
    is_served(&mut there);
}
