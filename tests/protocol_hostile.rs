//! The protocols against peers that lie: a raw node that speaks the greeting of growth by hand,
//! and then sends what it likes to the tickets that it got, or answers what it likes.
//!
//! What is claimed: nobody panics or hangs, honest peers go on, the liar at most is sent away, and
//! what is kept for it is bounded.
#![cfg(all(feature = "os", not(miri)))]

use hamlyn::protocol::{
    CallError, Client, ClientConfig, EndPoint, Manager, ReceiveError, Server, ServerConfig,
    TaggedConfig, TaggedReceiver, TaggedSender,
};
use hamlyn::{Access, Config, LinkId, Node, SlotConfig, Ticket};
use std::path::PathBuf;
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(20);
const LIMIT: Option<Duration> = Some(LONG);
const SHORT: Option<Duration> = Some(Duration::from_millis(50));

struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("hamlyn-liar-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Self(dir)
    }

    fn config(&self) -> Config {
        Config::from_env().unwrap().dir(&self.0)
    }

    fn manager(&self) -> Manager {
        Manager::with_config(self.config()).unwrap()
    }

    fn answering(&self) -> Manager {
        let manager = self.manager();
        manager.start_progress().unwrap();
        manager
    }

    fn node(&self) -> Node {
        Node::with_config(self.config()).unwrap()
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

/// Waits for a condition.
#[track_caller]
fn until(mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < LONG, "what was waited for has not come");
        std::thread::sleep(Duration::from_millis(1));
    }
}

// ---- tagged remote write

#[test]
fn a_sender_that_comes_after_another_gets_its_own_credit() {
    let dir = Dir::new("tagged-after");
    let (there, here) = (dir.answering(), dir.manager());
    let config = TaggedConfig { tags: 4, senders_max: 1, ..TaggedConfig::new(64) };
    let mut receiver = TaggedReceiver::new(&there, config).unwrap();
    for round in 0..3 {
        let mut sender = TaggedSender::grow(&here, &receiver.seed().unwrap(), LIMIT).unwrap();
        for tag in 0..10 {
            sender.send(0, &[], tag, LIMIT).unwrap_or_else(|e| panic!("{round} {tag}: {e}"));
            assert_eq!(receiver.get_tag(LIMIT).unwrap().tag, tag);
        }
        drop(sender);
        until(|| receiver.senders() == 0);
    }
}

#[test]
fn tags_that_a_sender_left_behind_are_not_held_against_the_next() {
    let dir = Dir::new("tagged-left");
    let (there, here) = (dir.answering(), dir.manager());
    let config = TaggedConfig { tags: 4, senders_max: 1, ..TaggedConfig::new(64) };
    let mut receiver = TaggedReceiver::new(&there, config).unwrap();
    let mut first = TaggedSender::grow(&here, &receiver.seed().unwrap(), LIMIT).unwrap();
    for _ in 0..3 {
        first.send(0, &[], 7, LIMIT).unwrap();
    }
    assert!(matches!(receiver.get_specific_tag(1, SHORT), Err(ReceiveError::TimedOut)));
    drop(first);
    until(|| receiver.senders() == 0);
    let mut second = TaggedSender::grow(&here, &receiver.seed().unwrap(), LIMIT).unwrap();
    for tag in [7, 7, 1] {
        second.send(0, &[], tag, LIMIT).unwrap();
    }
    assert_eq!(receiver.get_specific_tag(1, LIMIT).unwrap().tag, 1);
    // What was passed over is bounded: three, two, and there are four places.
    drop(second);
    until(|| receiver.senders() == 0);
    let refused = TaggedSender::grow(&here, &receiver.seed().unwrap(), LIMIT).err().unwrap();
    assert!(refused.to_string().contains("4 tags wait"), "{refused}");
    assert_eq!(receiver.get_tag(LIMIT).unwrap().tag, 7);
    assert_eq!(receiver.get_tag(LIMIT).unwrap().tag, 7);
    TaggedSender::grow(&here, &receiver.seed().unwrap(), LIMIT).unwrap();
}

#[test]
fn other_tags_do_not_make_a_time_limit_longer() {
    let dir = Dir::new("tagged-limit");
    let (there, here) = (dir.answering(), dir.manager());
    let mut receiver = TaggedReceiver::new(&there, TaggedConfig::new(64)).unwrap();
    let mut sender = TaggedSender::grow(&here, &receiver.seed().unwrap(), LIMIT).unwrap();
    let stop = std::sync::atomic::AtomicBool::new(false);
    let stopped = || stop.load(std::sync::atomic::Ordering::Relaxed);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for tag in 0..200 {
                if !stopped() {
                    sender.send(0, &[], tag, LIMIT).unwrap();
                    std::thread::sleep(Duration::from_millis(20));
                }
            }
        });
        let waited = receiver.get_specific_tag(1000, Some(Duration::from_millis(200)));
        assert!(matches!(waited, Err(ReceiveError::TimedOut)));
        assert!(!receiver_is_full(&mut receiver), "all 200 tags had come by then");
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

/// Whether the last of the 200 tags has come.
fn receiver_is_full(receiver: &mut TaggedReceiver) -> bool {
    receiver.get_specific_tag(199, Some(Duration::ZERO)).is_ok()
}

#[test]
fn what_an_admission_has_captured_may_be_an_end_point() {
    let dir = Dir::new("admission");
    let (there, here) = (dir.answering(), dir.manager());
    let receiver = TaggedReceiver::new(&there, TaggedConfig::new(64)).unwrap();
    let other = TaggedReceiver::new(&there, TaggedConfig::new(64)).unwrap();
    receiver.set_admission(move |_| {
        let _ = &other;
        Ok(())
    });
    receiver.set_admission(|_| Err("not you".into()));
    let refused = TaggedSender::grow(&here, &receiver.seed().unwrap(), LIMIT).err().unwrap();
    assert!(refused.to_string().contains("not you"), "{refused}");
}

// ---- request and reply

fn serve(manager: &Manager, config: ServerConfig) -> Server {
    let server = Server::new(manager, config).unwrap();
    server.serve("calls", Access::SameUser).unwrap();
    server
}

#[test]
fn a_long_reply_that_comes_too_late_does_not_end_the_connection() {
    let dir = Dir::new("late");
    let (there, here) = (dir.answering(), dir.answering());
    let server = serve(&there, ServerConfig::default());
    let config = ClientConfig { outstanding: 1, ..ClientConfig::default() };
    let client = Client::connect_with(&here, "calls", config, LIMIT).unwrap();
    for _ in 0..3 {
        assert!(matches!(client.call(b"late", SHORT), Err(CallError::TimedOut)));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let refused = server.receive(LIMIT).unwrap().reply(&[1; 10_000], LIMIT);
                assert!(matches!(refused, Err(CallError::TooLong { .. })), "{refused:?}");
                server.receive(LIMIT).unwrap().reply(b"fine", LIMIT).unwrap();
            });
            assert_eq!(&*client.call(b"next", LIMIT).unwrap(), b"fine");
        });
    }
    assert!(client.connection().ended().is_none());
    assert_eq!(server.misbehaved(), 0);
}

#[test]
fn a_reply_that_is_too_long_costs_no_call() {
    let dir = Dir::new("too-long");
    let (there, here) = (dir.answering(), dir.answering());
    let server = serve(&there, ServerConfig::default());
    let config = ClientConfig { outstanding: 1, reply_bytes_max: 5000, ..ClientConfig::default() };
    let client = Client::connect_with(&here, "calls", config, LIMIT).unwrap();
    for _ in 0..5 {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let refused = server.receive(LIMIT).unwrap().reply(&[1; 6000], LIMIT);
                assert!(matches!(refused, Err(CallError::TooLong { .. })), "{refused:?}");
            });
            let failed = client.call(b"much", LIMIT);
            assert!(matches!(failed, Err(CallError::TooLong { max: 5000, .. })), "{failed:?}");
        });
    }
}

#[test]
fn a_thread_that_waits_for_a_free_call_is_woken_when_there_is_one() {
    let dir = Dir::new("free-call");
    let (there, here) = (dir.answering(), dir.manager());
    let server = serve(&there, ServerConfig::default());
    let config = ClientConfig { outstanding: 1, ..ClientConfig::default() };
    let client = Client::connect_with(&here, "calls", config, LIMIT).unwrap();
    let first = client.start(b"first", LIMIT).unwrap();
    server.receive(LIMIT).unwrap().reply(b"done", LIMIT).unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| client.start(b"second", LIMIT).map(|_| Instant::now()));
        // Long enough for it to sleep; the test holds if it does not.
        std::thread::sleep(Duration::from_millis(100));
        let freed = Instant::now();
        client.finish(first, LIMIT).unwrap();
        let started = waiting.join().unwrap().unwrap();
        assert!(started - freed < LONG / 2, "it waited for its time limit");
    });
}

#[test]
fn a_call_of_another_client_is_none_of_this_one() {
    let dir = Dir::new("call-id");
    let (there, here) = (dir.answering(), dir.manager());
    let _server = serve(&there, ServerConfig::default());
    let clients = [(); 2].map(|()| Client::connect(&here, "calls", LIMIT).unwrap());
    let calls = [0, 1].map(|i| clients[i].start(b"x", LIMIT).unwrap());
    for (client, call) in [(&clients[0], calls[1]), (&clients[1], calls[0])] {
        assert!(matches!(client.try_finish(call), Err(CallError::NoSuchCall(_))));
    }
}

// ---- a raw node against the protocols

/// A liar: a raw node, and a slot in which it takes what the other side sends.
struct Liar {
    node: Node,
    link: LinkId,
    answer: Vec<u8>,
}

/// Memory of a liar for what it is sent, and the fast ticket for it.
fn lent(node: &mut Node, bytes: usize, credit: u32) -> Ticket {
    let area = node.message_area(bytes).unwrap();
    let queue = node.notification_queue(credit.max(1)).unwrap();
    let slot = node.slot(SlotConfig::new(area, queue).credit(credit)).unwrap();
    node.fast_ticket(slot).unwrap()
}

const CALL: u8 = 4;

impl Liar {
    fn grow(dir: &Dir, name: &str, kind: u8, body: impl FnOnce(&mut Node) -> Vec<u8>) -> Self {
        let mut node = dir.node();
        let body = body(&mut node);
        Self::grow_with(node, name, kind, &body)
    }

    fn grow_with(mut node: Node, name: &str, kind: u8, body: &[u8]) -> Self {
        let greeting = [b"HGr1", &[kind][..], &[0; 16], body].concat();
        let link = node.connect(name, &greeting, LONG).unwrap();
        let answer = node.greeting(link).unwrap();
        assert_eq!(answer[..5], [b"HAn1", &[kind][..]].concat());
        let answer = answer[5..].to_vec();
        Self { node, link, answer }
    }

    fn ticket_at(&self, at: usize) -> Ticket {
        Ticket::from_bytes(&self.answer[at..at + 44]).unwrap()
    }

    /// Whether the other side has sent it away.
    fn is_gone(&mut self) -> bool {
        self.node.poll().unwrap();
        while self.node.next_event().is_some() {}
        !self.node.links().any(|link| link == self.link)
    }

    /// Sends a fast packet, waiting for room; `false`: the link has ended.
    fn say(&mut self, ticket: &Ticket, data: &[u8], word: u32) -> bool {
        let start = Instant::now();
        loop {
            match self.node.try_send_fast_over(self.link, ticket, data, word) {
                Ok(_) => return true,
                Err(hamlyn::SendError::Full) => assert!(start.elapsed() < LONG, "no room"),
                Err(_) => return false,
            }
            std::thread::yield_now();
            if self.is_gone() {
                return false;
            }
        }
    }
}

/// A greeting of a client with `calls` blocks of 64 bytes.
fn client_body(calls: u32) -> impl FnOnce(&mut Node) -> Vec<u8> {
    move |node| {
        let ticket = lent(node, 64 * calls as usize, calls);
        [&ticket.to_bytes()[..], &64u32.to_le_bytes(), &calls.to_le_bytes()].concat()
    }
}

const ASK: u32 = 4095 << 20;

#[test]
fn a_client_that_asks_and_never_listens_is_sent_away() {
    let dir = Dir::new("deaf");
    let there = dir.answering();
    let config = ServerConfig { request_bytes_max: 100, outstanding: 512, ..Default::default() };
    let server = serve(&there, config);
    std::thread::scope(|scope| {
        let serving = scope.spawn(|| {
            until(|| {
                server.try_receive().unwrap();
                server.misbehaved() > 0
            });
        });
        let mut liar = Liar::grow(&dir, "calls", CALL, client_body(512));
        let blocks = liar.ticket_at(0);
        let mut said = 0u32;
        // Without polling, so its ring fills with refusals.
        let start = Instant::now();
        while server.misbehaved() == 0 && start.elapsed() < LONG {
            let too_long = u64::MAX.to_le_bytes();
            match liar.node.try_send_fast_over(liar.link, &blocks, &too_long, ASK) {
                // Slowly enough that its credit lasts.
                Ok(_) => {
                    said += 1;
                    if said.is_multiple_of(128) {
                        std::thread::sleep(Duration::from_millis(2));
                    }
                }
                Err(hamlyn::SendError::Full) => std::thread::yield_now(),
                Err(_) => break,
            }
        }
        assert!(server.misbehaved() > 0, "{said} refusals are kept for it");
        serving.join().unwrap();
        until(|| liar.is_gone());
    });
    let client = Client::connect(&there, "calls", LIMIT).unwrap();
    let call = client.start(b"honest", LIMIT).unwrap();
    server.receive(LIMIT).unwrap().reply(b"yes", LIMIT).unwrap();
    assert_eq!(&*client.finish(call, LIMIT).unwrap(), b"yes");
}

#[test]
fn clients_that_come_and_go_leave_a_bounded_number_of_requests() {
    let dir = Dir::new("come-and-go");
    let there = dir.answering();
    let server = serve(&there, ServerConfig { clients_max: 3, ..ServerConfig::default() });
    let here = dir.manager();
    let mut connected = 0;
    let refused = loop {
        match Client::connect(&here, "calls", LIMIT) {
            Ok(client) => {
                client.start(b"unread", LIMIT).unwrap();
                connected += 1;
                drop(client);
                until(|| server.clients() == 0);
            }
            Err(e) => break e,
        }
        assert!(connected <= 3, "more clients than it may have left something");
    };
    assert!(refused.to_string().contains("3 of them gone"), "{refused}");
    for _ in 0..3 {
        assert_eq!(&*server.receive(LIMIT).unwrap(), b"unread");
    }
    Client::connect(&here, "calls", LIMIT).unwrap();
}

#[test]
fn the_nonsense_of_one_client_hides_no_request_of_one_that_leaves() {
    let dir = Dir::new("hides");
    // Nobody polls but this thread, so both clients' words come in one turn.
    let there = dir.manager();
    let server = serve(&there, ServerConfig::default());
    let here = dir.manager();
    let joined = |count| until(|| there.poll().is_ok() && server.clients() == count);
    std::thread::scope(|scope| {
        let grown = scope.spawn(|| Liar::grow(&dir, "calls", CALL, client_body(2)));
        until(|| there.poll().is_ok() && grown.is_finished());
        let mut liar = grown.join().unwrap();
        let grown = scope.spawn(|| Client::connect(&here, "calls", LIMIT).unwrap());
        until(|| there.poll().is_ok() && grown.is_finished());
        let client = grown.join().unwrap();
        joined(2);
        let blocks = liar.ticket_at(0);
        for call in [2, 3, 4] {
            assert!(liar.say(&blocks, b"no such call", 12 << 20 | call));
        }
        until(|| there.poll().is_ok() && server.is_ready());
        client.start(b"last words", LIMIT).unwrap();
        drop(client);
        joined(1);
        assert_eq!(&*server.receive(LIMIT).unwrap(), b"last words");
        let nothing = server.try_receive().unwrap();
        assert!(nothing.is_none());
        assert!(server.misbehaved() > 0);
        until(|| liar.is_gone());
    });
}
