//! The protocols against peers that lie: a raw node that speaks the greeting of growth by hand, and
//! then sends any data to its tickets, or any answers.
//!
//! The claims: no thread panics or hangs, honest peers go on, at most the liar is disconnected, and
//! the memory kept for it is bounded.

use crate::help::*;
use hamlyn::config::WaitMode;
use hamlyn::control::frame::{Frame, Hello, Purpose};
use hamlyn::protocol::{
    CallError, Client, ClientConfig, DatagramReceiver, DatagramSender, EndPoint, Group,
    GroupConfig, GroupMember, GrowError, Manager, ReceiveError, Server, ServerConfig, StreamConfig,
    StreamReceiver, StreamSender, TaggedConfig, TaggedReceiver, TaggedSender,
};
use hamlyn::{
    Accept, Access, Event, Flags, Key, LinkId, MetadataIndex, Node, NodeId, Share, SlotConfig,
    SlotIndex, Ticket,
};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const SHORT: Option<Duration> = Some(Duration::from_millis(50));

/// Waits for a condition.
#[track_caller]
// ---- tagged remote write
#[test]
fn a_sender_that_comes_after_another_gets_its_own_credit() {
    let dir = Dir::new("tagged-after");
    let (there, here) = (dir.answering(), dir.manager());
    let config = TaggedConfig { tags: 4, senders_max: 1, ..TaggedConfig::new(64) };
    let mut receiver = TaggedReceiver::new(&there, config).unwrap();
    for round in 0..3 {
        let mut sender =
            TaggedSender::grow(&here, &receiver.seed().unwrap().reached(), LIMIT).unwrap();
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
    let mut first = TaggedSender::grow(&here, &receiver.seed().unwrap().reached(), LIMIT).unwrap();
    for _ in 0..3 {
        first.send(0, &[], 7, LIMIT).unwrap();
    }
    assert!(matches!(receiver.get_specific_tag(1, SHORT), Err(ReceiveError::TimedOut)));
    drop(first);
    until(|| receiver.senders() == 0);
    let mut second = TaggedSender::grow(&here, &receiver.seed().unwrap().reached(), LIMIT).unwrap();
    for tag in [7, 7, 1] {
        second.send(0, &[], tag, LIMIT).unwrap();
    }
    assert_eq!(receiver.get_specific_tag(1, LIMIT).unwrap().tag, 1);
    // The number of skipped places is bounded: three, two, and there are four places. Those of the
    // first sender have gone, and so has it.
    assert_eq!(receiver.dropped(), 3);
    for _ in 0..2 {
        assert_eq!(receiver.get_tag(LIMIT).unwrap().link, only_link(&there));
    }
    assert!(receiver.try_get_tag().unwrap().is_none());
}

/// The only link of a manager, as it names it.
fn only_link(manager: &Manager) -> LinkId {
    let node = manager.lock();
    let mut links = node.links().filter(|link| *link != LinkId::SELF);
    let link = links.next().unwrap();
    assert!(links.next().is_none());
    link
}

#[test]
fn senders_that_come_and_go_keep_no_other_from_coming() {
    if only_on_one_host(
        "the last place is for users who have none, and all of another host are one",
    ) {
        return;
    }
    let dir = Dir::new("tagged-come-and-go");
    let (there, here) = (dir.answering(), dir.manager());
    let config = TaggedConfig { tags: 4, senders_max: 2, ..TaggedConfig::new(64) };
    let mut receiver = TaggedReceiver::new(&there, config).unwrap();
    let mut honest = TaggedSender::grow(&here, &receiver.seed().unwrap().reached(), LIMIT).unwrap();
    honest.send(0, &[], 7, LIMIT).unwrap();
    for round in 0..10 {
        let mut sender =
            TaggedSender::grow(&here, &receiver.seed().unwrap().reached(), LIMIT).unwrap();
        for _ in 0..4 {
            sender.send(0, &[], round, LIMIT).unwrap();
        }
        drop(sender);
        until(|| receiver.senders() == 1);
        assert!(matches!(receiver.get_specific_tag(1000, SHORT), Err(ReceiveError::TimedOut)));
    }
    // There are eight places: one for the tag of the sender that is here, and four for those of
    // the last that has gone. The others were dropped sender by sender.
    assert_eq!(receiver.dropped(), 36);
    let kept: Vec<u32> = (0..5).map(|_| receiver.get_tag(LIMIT).unwrap().tag).collect();
    assert_eq!(kept, [7, 9, 9, 9, 9]);
    assert!(receiver.try_get_tag().unwrap().is_none());
}

#[test]
fn a_tag_that_one_sender_left_behind_does_not_cost_the_next_its_credit() {
    let dir = Dir::new("tagged-credit");
    let (there, here) = (dir.answering(), dir.manager());
    let config = TaggedConfig { tags: 4, senders_max: 1, ..TaggedConfig::new(64) };
    let mut receiver = TaggedReceiver::new(&there, config).unwrap();
    let mut first = TaggedSender::grow(&here, &receiver.seed().unwrap().reached(), LIMIT).unwrap();
    first.send(0, &[], 7, LIMIT).unwrap();
    assert!(matches!(receiver.get_specific_tag(1, SHORT), Err(ReceiveError::TimedOut)));
    drop(first);
    until(|| receiver.senders() == 0);
    // It has the slot that the first had.
    let mut second = TaggedSender::grow(&here, &receiver.seed().unwrap().reached(), LIMIT).unwrap();
    for i in 0..40 {
        second.send(0, &[], 1, LIMIT).unwrap_or_else(|e| panic!("{i}: {e}"));
        assert_eq!(receiver.get_specific_tag(1, LIMIT).unwrap().tag, 1);
        if i == 20 {
            assert_eq!(receiver.get_tag(LIMIT).unwrap().tag, 7);
        }
    }
}

#[test]
fn a_ticket_that_is_used_over_other_links_keeps_no_more_tags() {
    if only_on_one_host(
        "the last place is for users who have none, and all of another host are one",
    ) {
        return;
    }
    let dir = Dir::new("tagged-lent");
    let there = dir.answering();
    let config = TaggedConfig { tags: 4, senders_max: 2, ..TaggedConfig::new(64) };
    let mut receiver = TaggedReceiver::new(&there, config).unwrap();
    receiver.serve("tags", Access::SameUser).unwrap();
    let mut owner = Liar::grow(&dir, "tags", TAGGED, tags_body);
    let ticket = owner.ticket_at(0);
    assert!(owner.say(&ticket, &[], 7));
    assert!(matches!(receiver.get_specific_tag(1, SHORT), Err(ReceiveError::TimedOut)));
    let mut helper = Liar::grow(&dir, "tags", TAGGED, tags_body);
    assert!(helper.say(&ticket, &[], 7));
    let error = receiver.get_specific_tag(1, LIMIT).unwrap_err();
    assert!(matches!(error, ReceiveError::Misbehaved(_)), "{error}");
    until(|| helper.is_gone());
    assert!(!owner.is_gone());
    // Only the owner's tag was kept.
    assert_eq!(receiver.get_tag(LIMIT).unwrap().tag, 7);
    assert!(receiver.try_get_tag().unwrap().is_none());
}

#[test]
fn other_tags_do_not_make_a_time_limit_longer() {
    let dir = Dir::new("tagged-limit");
    let (there, here) = (dir.answering(), dir.manager());
    let mut receiver = TaggedReceiver::new(&there, TaggedConfig::new(64)).unwrap();
    let mut sender = TaggedSender::grow(&here, &receiver.seed().unwrap().reached(), LIMIT).unwrap();
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
    let refused =
        TaggedSender::grow(&here, &receiver.seed().unwrap().reached(), LIMIT).err().unwrap();
    assert!(refused.to_string().contains("not you"), "{refused}");
}

// ---- request and reply

pub fn serve(manager: &Manager, config: ServerConfig) -> Server {
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
    let client = Client::connect_with(&here, &at("calls"), config, LIMIT).unwrap();
    for _ in 0..3 {
        assert!(matches!(client.call(b"late", SHORT), Err(CallError::TimedOut)));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // Dropped, as a short one is.
                server.receive(LIMIT).unwrap().reply(&[1; 10_000], LIMIT).unwrap();
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
    let client = Client::connect_with(&here, &at("calls"), config, LIMIT).unwrap();
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
    let client = Client::connect_with(&here, &at("calls"), config, LIMIT).unwrap();
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
    let clients = [(); 2].map(|()| Client::connect(&here, &at("calls"), LIMIT).unwrap());
    let calls = [0, 1].map(|i| clients[i].start(b"x", LIMIT).unwrap());
    for (client, call) in [(&clients[0], calls[1]), (&clients[1], calls[0])] {
        assert!(matches!(client.try_finish(call), Err(CallError::NoSuchCall(_))));
    }
}

// ---- a raw node against the protocols

/// A liar: a raw node, and a slot in which it takes what the other side sends.
pub struct Liar {
    pub node: Node,
    pub link: LinkId,
    pub answer: Vec<u8>,
}

/// Memory of a liar for what it is sent, and the fast ticket for it.
pub fn lent(node: &mut Node, bytes: usize, credit: u32) -> Ticket {
    let area = node.message_area(bytes).unwrap();
    let queue = node.notification_queue(credit.max(1)).unwrap();
    let slot = node.slot(SlotConfig::new(area, queue).credit(credit)).unwrap();
    node.fast_ticket(slot).unwrap()
}

pub const CALL: u8 = 4;

impl Liar {
    pub fn grow(dir: &Dir, name: &str, kind: u8, body: impl FnOnce(&mut Node) -> Vec<u8>) -> Self {
        let mut node = dir.node();
        let body = body(&mut node);
        Self::grow_with(node, name, kind, &body)
    }

    fn grow_with(mut node: Node, name: &str, kind: u8, body: &[u8]) -> Self {
        let greeting = [b"HGr2", &[kind, 0, 0, 0][..], &[0; 16], body].concat();
        let link = node.connect(&at(name), &greeting, Some(LONG)).unwrap();
        let answer = node.greeting(link).unwrap();
        assert_eq!(answer[..8], [b"HAn2", &[kind, 0, 0, 0][..]].concat());
        let answer = answer[8..].to_vec();
        Self { node, link, answer }
    }

    pub fn ticket_at(&self, at: usize) -> Ticket {
        Ticket::from_bytes(&self.answer[at..at + 44]).unwrap()
    }

    /// Whether the other side has sent it away.
    pub fn is_gone(&mut self) -> bool {
        self.node.poll().unwrap();
        while self.node.next_event().is_some() {}
        !self.node.links().any(|link| link == self.link)
    }

    /// Sends a fast packet, waiting for room; `false`: the link has ended.
    pub fn say(&mut self, ticket: &Ticket, data: &[u8], word: u32) -> bool {
        let start = Instant::now();
        loop {
            match self.node.try_send_fast_over(self.link, ticket, data, word) {
                Ok(_) => return true,
                Err(hamlyn::NodeSendError::Full) => assert!(start.elapsed() < LONG, "no room"),
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
pub fn client_body(calls: u32) -> impl FnOnce(&mut Node) -> Vec<u8> {
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
                Err(hamlyn::NodeSendError::Full) => std::thread::yield_now(),
                Err(_) => break,
            }
        }
        assert!(server.misbehaved() > 0, "{said} refusals are kept for it");
        serving.join().unwrap();
        // Over several connections, of which each is tried again, it takes longer.
        let end = Instant::now() + 3 * LONG;
        while !liar.is_gone() {
            assert!(Instant::now() < end, "nobody told it");
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    let client = Client::connect(&there, &at("calls"), LIMIT).unwrap();
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
        match Client::connect(&here, &at("calls"), LIMIT) {
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
    Client::connect(&here, &at("calls"), LIMIT).unwrap();
}

#[test]
fn the_nonsense_of_one_client_hides_no_request_of_one_that_leaves() {
    let dir = Dir::new("hides");
    // Only this thread polls, so both clients' messages come in one turn.
    let there = dir.manager();
    let server = serve(&there, ServerConfig::default());
    let here = dir.manager();
    let joined = |count| until(|| there.poll().is_ok() && server.clients() == count);
    std::thread::scope(|scope| {
        let grown = scope.spawn(|| Liar::grow(&dir, "calls", CALL, client_body(2)));
        until(|| there.poll().is_ok() && grown.is_finished());
        let mut liar = grown.join().unwrap();
        let grown = scope.spawn(|| Client::connect(&here, &at("calls"), LIMIT).unwrap());
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

// ---- storms: random messages of a liar

const DATAGRAM: u8 = 1;
const TAGGED: u8 = 2;
const STREAM: u8 = 3;
const GROUP: u8 = 5;

/// Numbers that are the same in each run.
pub struct Numbers(pub u64);

impl Numbers {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// Values at which things change, and others.
    fn word(&mut self) -> u32 {
        let codes = [0, 1, 8, 44, 64, 4087, 4088, 4089, 4090, 4091, 4092, 4093, 4094, 4095];
        let code = codes[self.below(codes.len() as u64) as usize];
        match self.below(4) {
            0 => self.next() as u32,
            _ => self.below(6) as u32 | code << 20,
        }
    }

    pub fn bytes(&mut self, max: u64) -> Vec<u8> {
        let length = self.below(max + 1);
        let small = self.below(2) == 0;
        (0..length).map(|_| if small { self.below(3) as u8 } else { self.next() as u8 }).collect()
    }
}

impl Liar {
    /// The tickets in the answer of a receiver of a kind.
    fn tickets(&self, kind: u8) -> Vec<Ticket> {
        match kind {
            STREAM => {
                let (ask, places) = (self.ticket_at(12), self.ticket_at(56));
                let lanes = self.answer[100..].chunks_exact(12).map(|lane| Ticket {
                    slot: SlotIndex(u32::from_le_bytes(lane[..4].try_into().unwrap())),
                    key: Key(u64::from_le_bytes(lane[4..].try_into().unwrap())),
                    metadata_index: MetadataIndex(0),
                    base: 0,
                    bound: u32::from_le_bytes(self.answer[4..8].try_into().unwrap()) as u64,
                    flags: Flags::NOTIFY | Flags::WAKE,
                    share: Share::WHOLE,
                    ..ask
                });
                [ask, places].into_iter().chain(lanes).collect()
            }
            GROUP => vec![self.ticket_at(24), self.ticket_at(68)],
            _ => vec![self.ticket_at(0)],
        }
    }

    /// Says one thing or another; `false`: it was sent away.
    fn rave(&mut self, numbers: &mut Numbers, tickets: &[Ticket]) -> bool {
        let mut ticket = tickets[numbers.below(tickets.len() as u64) as usize];
        if numbers.below(8) == 0 {
            ticket.base += numbers.below(ticket.capacity().max(1));
        }
        let data = numbers.bytes(ticket.capacity().min(100));
        if ticket.metadata_index == MetadataIndex::FAST {
            return self.say(&ticket, &data, numbers.word()) && !self.is_gone();
        }
        let metadata = match numbers.below(4) {
            0 => numbers.bytes(60),
            1 => (numbers.next() as u32).to_le_bytes().to_vec(),
            2 => (data.len() as u32 | (numbers.next() as u32 & 3) << 30).to_le_bytes().to_vec(),
            _ => (data.len() as u64).to_le_bytes().to_vec(),
        };
        match self.node.send_over(self.link, &ticket, &data, &metadata, LIMIT) {
            Ok(_) => !self.is_gone(),
            Err(_) => false,
        }
    }
}

/// Lets liars rave against a receiver of a kind, one after the other.
fn storm(dir: &Dir, name: &str, kind: u8, seed: u64, body: impl FnOnce(&mut Node) -> Vec<u8>) {
    let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15 ^ seed << 8 ^ kind as u64);
    let mut liar = Liar::grow(dir, name, kind, body);
    let tickets = liar.tickets(kind);
    for _ in 0..200 {
        if !liar.rave(&mut numbers, &tickets) {
            return;
        }
        if numbers.below(16) == 0 {
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

const STORMS: u64 = 40;

fn tags_body(node: &mut Node) -> Vec<u8> {
    lent(node, 8, 0).to_bytes().to_vec()
}

fn member_body(node: &mut Node) -> Vec<u8> {
    let cell = lent(node, 52, 0);
    let area = node.message_area(64).unwrap();
    let queue = node.notification_queue(1).unwrap();
    let slot = node.slot(SlotConfig::new(area, queue)).unwrap();
    let down = node.ticket(slot, MetadataIndex(0)).unwrap();
    [&[0][..], &cell.to_bytes(), &down.to_bytes()].concat()
}

fn grants_body(node: &mut Node) -> Vec<u8> {
    [&lent(node, 16 * 256, 0).to_bytes()[..], &[0]].concat()
}

#[test]
fn tags_survive_whatever_a_sender_sends() {
    let dir = Dir::new("storm-tagged");
    let (there, here) = (dir.answering(), dir.manager());
    let mut receiver = TaggedReceiver::new(&there, TaggedConfig::new(64)).unwrap();
    receiver.serve("tags", Access::SameUser).unwrap();
    let mut honest = TaggedSender::connect(&here, &at("tags"), LIMIT).unwrap();
    for seed in 0..STORMS {
        std::thread::scope(|scope| {
            let raving = scope.spawn(|| storm(&dir, "tags", TAGGED, seed, tags_body));
            until(|| receiver.try_get_tag().is_ok() && raving.is_finished());
        });
        honest.send(8, b"honest", 0xdead_beef, LIMIT).unwrap();
        while receiver.get_tag(LIMIT).unwrap().tag != 0xdead_beef {}
        until(|| receiver.senders() == 1);
    }
}

#[test]
fn a_server_survives_whatever_a_client_sends() {
    let dir = Dir::new("storm-call");
    let (there, here) = (dir.answering(), dir.manager());
    let server = serve(&there, ServerConfig { request_bytes_max: 10_000, ..Default::default() });
    let honest = Client::connect(&here, &at("calls"), LIMIT).unwrap();
    for seed in 0..STORMS {
        std::thread::scope(|scope| {
            let raving = scope.spawn(|| storm(&dir, "calls", CALL, seed, client_body(6)));
            let mut replies = 0;
            until(|| {
                if let Some(request) = server.try_receive().unwrap() {
                    replies += 1;
                    request.is_cancelled();
                    let short = Some(Duration::from_millis(1));
                    match replies % 4 {
                        0 => drop(request),
                        3 => drop(request.fail(7, "not today", short)),
                        1 => drop(request.reply(&[7; 16], Some(Duration::from_millis(1)))),
                        _ => drop(request.reply(&[7; 5000], Some(Duration::from_millis(1)))),
                    }
                }
                raving.is_finished()
            });
        });
        until(|| server.try_receive().is_ok() && server.clients() == 1);
        let call = honest.start(b"honest", LIMIT).unwrap();
        loop {
            let request = server.receive(LIMIT).unwrap();
            if *request == *b"honest" {
                request.reply(b"yes", LIMIT).unwrap();
                break;
            }
        }
        assert_eq!(&*honest.finish(call, LIMIT).unwrap(), b"yes");
    }
}

#[test]
fn a_stream_survives_whatever_a_sender_sends() {
    let dir = Dir::new("storm-stream");
    let (there, here) = (dir.answering(), dir.manager());
    let config = StreamConfig { record_bytes_max: 5000, ..StreamConfig::default() };
    let mut other = StreamReceiver::new(&there, config.clone()).unwrap();
    let mut honest = StreamSender::grow(&here, &other.seed().unwrap().reached(), LIMIT).unwrap();
    for seed in 0..STORMS {
        let mut receiver = StreamReceiver::new(&there, config.clone()).unwrap();
        receiver.serve("stream", Access::SameUser).unwrap();
        std::thread::scope(|scope| {
            let raving = scope.spawn(|| storm(&dir, "stream", STREAM, seed, grants_body));
            until(|| {
                if let Ok(Some(record)) = receiver.try_receive() {
                    assert!(record[..].len() <= 5000);
                }
                raving.is_finished()
            });
        });
        let over = loop {
            match receiver.receive(LIMIT) {
                Ok(_) => {}
                Err(e) => break e,
            }
        };
        assert!(matches!(over, ReceiveError::Misbehaved(_) | ReceiveError::Ended(_)), "{over}");
        honest.send(b"honest", LIMIT).unwrap();
        honest.flush(LIMIT).unwrap();
        let record = other.receive(LIMIT).unwrap().keep();
        assert_eq!(other.bytes(&record).unwrap(), b"honest");
        other.release(&record).unwrap();
    }
}

/// Asks for a sender as its first frame does, and takes no further step: the connection, and what
/// the receiver answers. `body` is that of a node.
fn half_a_sender(
    dir: &Dir,
    name: &str,
    kind: u8,
    body: impl FnOnce(NodeId) -> Vec<u8>,
) -> (OwnedFd, Vec<u8>) {
    let identity = hamlyn::control::Identity::new().unwrap();
    let greeting = [&b"HGr2"[..], &[kind, 0, 0, 0], &[0; 16], &body(identity.node())].concat();
    let credential = identity.credential();
    let hello = Hello { greeting, credential, ..crate::control_help::hello_of(Purpose::Link) };
    let socket = crate::control_help::stranger(&dir.0.join(name));
    crate::control_help::send(&socket, &Frame::Hello(hello));
    let Some((Frame::Welcome(welcome), _)) = crate::control_help::receive(&socket) else {
        panic!("no welcome");
    };
    (socket, welcome.greeting[8..].to_vec())
}

#[test]
fn what_a_sender_that_never_joined_has_sent_is_none_of_the_stream() {
    if only_on_one_host("half a sender speaks to a Unix socket by hand") {
        return;
    }
    for looks in [false, true] {
        let dir = Dir::new("stream-withdrawn");
        let there = dir.answering();
        let mut receiver = StreamReceiver::new(&there, StreamConfig::default()).unwrap();
        receiver.serve("stream", Access::SameUser).unwrap();
        let door = DatagramReceiver::new(&there, 64).unwrap();
        door.serve("door", Access::SameUser).unwrap();
        // The accomplice has a link of its own to the same process.
        let mut accomplice = Liar::grow(&dir, "door", DATAGRAM, |_| Vec::new());
        let mut node = dir.node();
        let grants = lent(&mut node, 16 * 256, 0);
        let body = |destination| [&Ticket { destination, ..grants }.to_bytes()[..], &[0]].concat();
        let (half, answer) = half_a_sender(&dir, "stream", STREAM, body);
        accomplice.answer = answer;
        let tickets = accomplice.tickets(STREAM);
        let (places, lane) = (tickets[1], tickets[2]);
        let taken = || {
            let counters = there.lock().counters();
            counters.iter().find(|row| row.0 == "packets_received").unwrap().1
        };
        let before = taken();
        // A record of 6 bytes as it is, and a small one before it.
        let mark = [6u32.to_le_bytes(), 1u32.to_le_bytes()].concat();
        let sent = accomplice.node.send_over(accomplice.link, &lane, b"forged", &mark, LIMIT);
        assert!(sent.is_ok(), "{sent:?}");
        assert!(accomplice.say(&places, b"forged", 6));
        until(|| taken() == before + 2);
        if looks {
            assert!(receiver.try_receive().unwrap().is_none());
            assert!(!receiver.is_ready());
        }
        drop(half);
        let here = dir.manager();
        let mut sender = None;
        until(|| {
            sender = StreamSender::connect(&here, &at("stream"), LIMIT).ok();
            sender.is_some()
        });
        let mut sender = sender.unwrap();
        for (record, is_flushed) in [(&[1; 5][..], true), (&[2; 100_000], false), (&[3; 5], true)] {
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    sender.send(record, LIMIT).unwrap();
                    if is_flushed {
                        sender.flush(LIMIT).unwrap();
                    }
                });
                let found = receiver.receive(LIMIT).unwrap().keep();
                assert!(receiver.bytes(&found).unwrap() == record);
                receiver.release(&found).unwrap();
            });
        }
    }
}

#[test]
fn a_group_survives_whatever_a_member_sends() {
    let dir = Dir::new("storm-group");
    let (there, here) = (dir.answering(), dir.answering());
    let mut group = Group::new(&there, GroupConfig::new(2, 64)).unwrap();
    group.serve("group", Access::SameUser).unwrap();
    let mut honest = GroupMember::connect(&here, &at("group"), 64, LIMIT).unwrap();
    let number = honest.number();
    for seed in 0..STORMS {
        std::thread::scope(|scope| {
            let raving = scope.spawn(|| storm(&dir, "group", GROUP, seed, member_body));
            until(|| {
                let _ = group.wait_for(2, Some(Duration::ZERO));
                raving.is_finished()
            });
        });
        until(|| {
            let _ = group.wait_for(2, Some(Duration::ZERO));
            group.joined() == 1
        });
        honest.send(b"honest", LIMIT).unwrap();
        until(|| {
            let _ = group.wait_for(2, Some(Duration::ZERO));
            group.parts().part(number) == Some(b"honest")
        });
        group.next_round();
    }
}

#[test]
fn a_datagram_receiver_survives_whatever_a_sender_sends() {
    let dir = Dir::new("storm-datagram");
    let (there, here) = (dir.answering(), dir.manager());
    let mut receiver = DatagramReceiver::new(&there, 64).unwrap();
    receiver.serve("datagrams", Access::SameUser).unwrap();
    for seed in 0..STORMS {
        std::thread::scope(|scope| {
            let raving = scope.spawn(|| storm(&dir, "datagrams", DATAGRAM, seed, |_| Vec::new()));
            until(|| {
                if let Ok(Some(datagram)) = receiver.try_receive() {
                    receiver.with_bytes(&datagram, |bytes| bytes.len()).unwrap();
                    let _ = receiver.reply(&datagram, b"?", Some(Duration::ZERO));
                    receiver.ready().unwrap();
                }
                raving.is_finished()
            });
        });
        until(|| receiver.senders() == 0);
        receiver.ready_anew().unwrap();
        let mut honest = DatagramSender::connect(&here, &at("datagrams"), LIMIT).unwrap();
        honest.send(b"honest", 3, None, LIMIT).unwrap();
        let datagram = receiver.receive(LIMIT).unwrap();
        assert_eq!(receiver.with_bytes(&datagram, <[u8]>::to_vec).unwrap(), b"honest");
        drop(honest);
        receiver.ready().unwrap();
        until(|| receiver.senders() == 0);
    }
}

// ---- receivers that lie

/// A raw node that answers every client of `name` with the same bytes.
pub fn false_receiver(mut node: Node, name: &str, kind: u8, answer: &[u8]) -> Node {
    let answer = [b"HAn2", &[kind, 0, 0, 0][..], answer].concat();
    node.serve(name, Access::SameUser, Accept::Automatic(answer)).unwrap();
    node
}

/// The link of a client, and the first ticket of its greeting.
pub fn grown(node: &mut Node) -> (LinkId, Ticket) {
    let start = Instant::now();
    loop {
        node.poll().unwrap();
        if let Some(Event::Connected { link, .. }) = node.next_event() {
            let greeting = node.greeting(link).unwrap();
            return (link, Ticket::from_bytes(&greeting[24..68]).unwrap());
        }
        assert!(start.elapsed() < LONG, "nobody has connected");
    }
}

#[test]
fn an_answer_that_makes_no_sense_is_an_error() {
    let dir = Dir::new("answers");
    let here = dir.manager();
    let mut numbers = Numbers(7);
    for round in 0..12 {
        let mut node = dir.node();
        // A ticket that leads to a third node, now and then; noise otherwise.
        let ticket = lent(&mut node, 64, 1);
        let ticket = Ticket { destination: NodeId(ticket.destination.0 ^ 1), ..ticket };
        let mut answer = numbers.bytes(200);
        if round % 2 == 0 {
            answer = [&ticket.to_bytes()[..], &4u32.to_le_bytes()].concat();
        }
        let kinds = [DATAGRAM, TAGGED, STREAM, CALL, GROUP];
        let kind = kinds[round % kinds.len()];
        let _node = false_receiver(node, "false", kind, &answer);
        let grown = match kind {
            DATAGRAM => DatagramSender::connect(&here, &at("false"), LIMIT).err(),
            TAGGED => TaggedSender::connect(&here, &at("false"), LIMIT).err(),
            STREAM => StreamSender::connect(&here, &at("false"), LIMIT).err(),
            CALL => Client::connect(&here, &at("false"), LIMIT).err(),
            _ => GroupMember::connect(&here, &at("false"), 64, LIMIT).err(),
        };
        assert!(matches!(grown, Some(GrowError::Answer(_))), "{kind}: {grown:?}");
        assert_eq!(here.lock().links().count(), 0, "{kind}");
    }
}

#[test]
fn credit_that_goes_back_or_too_far_is_not_believed() {
    let dir = Dir::new("false-credit");
    let here = dir.manager();
    let mut node = dir.node();
    let ticket = lent(&mut node, 64, 1000);
    let answer = [&ticket.to_bytes()[..], &4u32.to_le_bytes()].concat();
    let mut node = false_receiver(node, "false", TAGGED, &answer);
    let mut sender = TaggedSender::connect(&here, &at("false"), LIMIT).unwrap();
    let (link, credit) = grown(&mut node);
    let received = || {
        let counters = here.lock().counters();
        counters.iter().find(|row| row.0 == "packets_received").unwrap().1
    };
    let mut tell = |count: u64| {
        let before = received();
        node.try_send_fast_over(link, &credit, &count.to_le_bytes(), 0).unwrap();
        until(|| {
            node.poll().unwrap();
            here.poll().unwrap();
            received() > before
        });
    };
    for tag in 0..4 {
        assert!(sender.try_send(0, &[], tag).unwrap());
    }
    for lie in [5, u64::MAX, 1 << 63, 0] {
        tell(lie);
        assert!(!sender.try_send(0, &[], 9).unwrap(), "{lie} of 4 was believed");
    }
    tell(4);
    assert!(sender.try_send(0, &[], 9).unwrap());
    tell(1);
    for _ in 0..3 {
        assert!(sender.try_send(0, &[], 9).unwrap());
    }
    assert!(!sender.try_send(0, &[], 9).unwrap());
}

#[test]
fn a_ticket_that_is_too_small_sends_the_server_away() {
    let dir = Dir::new("false-ticket");
    let here = dir.answering();
    let mut node = dir.node();
    let area = node.message_area(64 * 2).unwrap();
    let queue = node.notification_queue(2).unwrap();
    let slot = node.slot(SlotConfig::new(area, queue).credit(2)).unwrap();
    let blocks = node.fast_ticket(slot).unwrap();
    let small = lent(&mut node, 16, 1);
    let sizes = [64u32.to_le_bytes(), 2u32.to_le_bytes()].concat();
    let answer = [&blocks.to_bytes()[..], &sizes, &(1u64 << 20).to_le_bytes()].concat();
    let mut node = false_receiver(node, "false", CALL, &answer);
    let client = Client::connect(&here, &at("false"), LIMIT).unwrap();
    let (link, ticket) = grown(&mut node);
    std::thread::scope(|scope| {
        let calling = scope.spawn(|| client.call(&[1; 10_000], LIMIT));
        let asked = node.recv(queue, LIMIT).unwrap();
        let number = asked.word & 0xf_ffff;
        assert_eq!(asked.word >> 20, 4095);
        // Its blocks are of 4,096 bytes.
        let at = Ticket { base: ticket.base + number as u64 * 4096, ..ticket };
        node.try_send_fast_over(link, &at, &small.to_bytes(), ASK | number).unwrap();
        let failed = calling.join().unwrap();
        assert!(matches!(failed, Err(CallError::Misbehaved(_))), "{failed:?}");
    });
    assert!(client.connection().ended().is_some());
    assert!(matches!(client.call(b"x", LIMIT), Err(CallError::Ended(_))));
}

// ---- many threads

/// Eight threads serve, eight threads call, with fewer calls than threads; some messages are long.
fn many_threads(dir: &Dir, wait_mode: WaitMode) {
    let manager = || manager_with(dir.config().wait_mode(wait_mode));
    let (there, here) = (manager(), manager());
    let server = serve(&there, ServerConfig::default());
    there.start_progress().unwrap();
    let config = ClientConfig { outstanding: 3, ..ClientConfig::default() };
    let client = Client::connect_with(&here, &at("calls"), config, LIMIT).unwrap();
    let left = AtomicUsize::new(8);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                while left.load(Ordering::Relaxed) > 0 {
                    match server.receive(SHORT) {
                        Ok(request) => {
                            let reply = request.to_vec();
                            request.reply(&reply, LIMIT).unwrap();
                        }
                        Err(ReceiveError::TimedOut) => {}
                        Err(e) => panic!("{e}"),
                    }
                }
            });
        }
        for thread in 0..8u8 {
            let (client, left) = (&client, &left);
            scope.spawn(move || {
                for i in 0..100u8 {
                    let length = if i % 16 == 7 { 9000 } else { 2 + i as usize };
                    let mut request = vec![i; length];
                    request[0] = thread;
                    assert_eq!(*client.call(&request, LIMIT).unwrap(), request[..]);
                }
                left.fetch_sub(1, Ordering::Relaxed);
            });
        }
    });
    assert_eq!(server.misbehaved(), 0);
}

#[test]
fn eight_threads_serve_eight_threads_that_call() {
    many_threads(&Dir::new("many"), WaitMode::Adaptive);
}

#[test]
fn eight_threads_serve_eight_threads_that_call_and_only_sleep() {
    many_threads(&Dir::new("many-asleep"), WaitMode::Blocking);
}

// ---- a forked child

#[test]
fn a_forked_child_is_told_so_while_a_thread_of_its_parent_polls() {
    let dir = Dir::new("forked");
    let there = manager_with(dir.config().wait_mode(WaitMode::Polled));
    let mut receiver = Some(TaggedReceiver::new(&there, TaggedConfig::new(64)).unwrap());
    there.start_progress().unwrap();
    for _ in 0..20 {
        // SAFETY: the child has this thread alone, and ends with `_exit`, or by its alarm.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: a timer of the child, whose signal ends it.
            unsafe { libc::alarm(5) };
            let mut receiver = receiver.take().unwrap();
            let told = matches!(receiver.get_tag(SHORT), Err(ReceiveError::Forked(_)));
            drop((receiver, there));
            // SAFETY: ends the process.
            unsafe { libc::_exit(!told as i32) };
        }
        let mut status = -1;
        // SAFETY: waits for the child just made, into a live integer.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0, "the child was not told, or hung");
    }
}
