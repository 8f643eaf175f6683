//! Death of a peer at each step of connecting, sending, receiving and closing. The survivor learns
//! of it within a bounded time, its other links go on, and it keeps no resources of the dead peer.

use crate::control_help::{self as by_hand, RING, THEIR_RING};
use crate::support::*;
use hamlyn::config::WaitMode;
use hamlyn::control::frame::{Frame, MemoryWord, Purpose, Welcome};
use hamlyn::control::{Accept, Access, Identity};
use hamlyn::node::{CloseReason, ConnectError, Event, NodeReceiveError, NodeSendError};
use hamlyn::os::{socket, sys};
use hamlyn::{LinkId, MetadataIndex, Node, QueueId, SlotConfig, SlotId, Ticket};
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

/// Smallest rings, so that every message of some length is cut.
const SMALLEST: &[(&str, &str)] = &[("RING_BYTES", "512"), ("BULK_RING_BYTES", "0")];
const BLOCKING: &[(&str, &str)] =
    &[("RING_BYTES", "512"), ("BULK_RING_BYTES", "0"), ("WAIT_MODE", "blocking")];
const BULK: &[(&str, &str)] = &[("BULK_RING_BYTES", "65536"), ("BULK_AFTER_BYTES", "1")];

const ENTRIES: u32 = 100;
const ENTRY_BYTES: usize = 1 << 20;

/// The process that goes on living, and a peer of it that must never notice anything.
struct Survivor {
    station: Station,
    friend: Peer,
    friend_ticket: Ticket,
    replies: (QueueId, SlotId),
    rounds: u64,
    dir: Dir,
}

impl Survivor {
    fn new(name: &str, settings: &[(&str, &str)]) -> Self {
        let dir = Dir::new(name, settings);
        let mut station = Station::new(dir.config(), ENTRY_BYTES, ENTRIES).serve("survivor");
        let area = station.node.message_area(64).unwrap();
        let queue = station.node.notification_queue(1).unwrap();
        let slot = station.node.slot(SlotConfig::new(area, queue)).unwrap();
        let friend = Peer::start("echo", &dir, "");
        let link = connected(&mut station.node);
        let friend_ticket = ticket_of(&station.node, link);
        Self { station, friend, friend_ticket, replies: (queue, slot), rounds: 0, dir }
    }

    fn node(&mut self) -> &mut Node {
        &mut self.station.node
    }

    /// A victim and its link.
    fn victim(&mut self, role: &str) -> (Peer, LinkId) {
        let peer = Peer::start(role, &self.dir, "");
        let link = connected(self.node());
        (peer, link)
    }

    /// One that lives until it is killed: and its ticket.
    fn victim_with_ticket(&mut self, role: &str) -> (Peer, LinkId, Ticket) {
        let (peer, link) = self.victim(role);
        let ticket = ticket_of(&self.station.node, link);
        (peer, link, ticket)
    }

    /// Sends a message to an echoing peer, and has it back.
    fn echo(&mut self, ticket: Ticket, data: &[u8]) {
        let reply = self.reply_ticket();
        self.node().send(&ticket, data, &reply, LIMIT).unwrap();
        self.echoed(data);
    }

    fn reply_ticket(&self) -> [u8; 44] {
        self.station.node.ticket(self.replies.1, MetadataIndex(0)).unwrap().to_bytes()
    }

    fn echoed(&mut self, data: &[u8]) {
        let (queue, slot) = self.replies;
        if let Err(e) = self.node().recv(queue, LIMIT) {
            panic!("no echo: {e}\n{}", state(&self.station.node));
        }
        let (area, _) = self.station.node.slot_range(slot).unwrap();
        assert_eq!(self.station.node.area(area).unwrap()[..8], data[..8]);
    }

    /// The other link goes on working, asleep and awake.
    fn friend_lives(&mut self) {
        self.rounds += 1;
        let ticket = self.friend_ticket;
        self.echo(ticket, &self.rounds.to_le_bytes());
        if self.node().config().wait_mode != WaitMode::Polled {
            self.friend.fall_asleep();
        }
        self.rounds += 1;
        self.echo(ticket, &self.rounds.to_le_bytes());
    }

    fn died(&mut self, link: LinkId) {
        assert_eq!(closed(self.node(), link), CloseReason::Died);
    }

    fn nothing_arrived(&mut self) {
        let queue = self.station.queue;
        assert_eq!(self.node().try_recv(queue).unwrap(), None);
    }
}

/// Lets a peer die several times, in a process that has nothing else to do, and looks whether it
/// has afterwards what it had after the first time.
fn survive(name: &str, settings: &[(&str, &str)], mut death: impl FnMut(&mut Survivor)) {
    alone(name, || {
        let mut survivor = Survivor::new(name, settings);
        let mut before = None;
        for _ in 0..3 {
            death(&mut survivor);
            survivor.friend_lives();
            let Some(before) = before else {
                // Everything allocated on first use is there, once nothing changes any more.
                let (mut last, mut times) = (Costs::now(), 0);
                until_node(survivor.node(), "it comes to rest", |_| {
                    let now = Costs::now();
                    times = if now.descriptors == last.descriptors { times + 1 } else { 0 };
                    last = now;
                    times > 10
                });
                before = Some(last);
                continue;
            };
            let before: Costs = before;
            let end = Instant::now() + LONG;
            loop {
                survivor.node().poll().unwrap();
                let now = Costs::now();
                if now.descriptors <= before.descriptors
                    && now.shared_mappings <= before.shared_mappings
                    // Stacks of threads that have ended are kept for the next ones.
                    && now.mappings <= before.mappings + 8
                    && now.heap_bytes <= before.heap_bytes + (64 << 10)
                {
                    break;
                }
                assert!(Instant::now() < end, "had {before:?}, has {now:?}");
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        let Survivor { station, friend, dir, .. } = survivor;
        assert_eq!(station.node.links().count(), 1, "{}", state(&station.node));
        drop(friend);
        drop(station);
        assert_eq!(std::fs::read_dir(&dir.path).unwrap().count(), 0, "a name was left");
    });
}

/// The calling thread, for another to see whether it sleeps.
fn thread_id() -> i32 {
    rustix::thread::gettid().as_raw_nonzero().get()
}

/// Kills `peer` from another thread once this one sleeps in what it is about to do.
fn kill_when_asleep(peer: Peer) -> std::thread::JoinHandle<()> {
    let me = thread_id();
    std::thread::spawn(move || {
        let mut times = 0;
        until("the survivor sleeps", || {
            let stat = std::fs::read_to_string(format!("/proc/self/task/{me}/stat")).unwrap();
            let sleeps = stat.rsplit_once(')').unwrap().1.trim_start().starts_with('S');
            times = if sleeps { times + 1 } else { 0 };
            times > 20
        });
        peer.kill();
    })
}

// ---- what the others do

/// Not a test: what the other processes do.
#[test]
fn role() {
    let Some(role) = Role::of_this_process() else { return };
    let station = |bytes| Station::new(role.config(), bytes, 1);
    match role.name.as_str() {
        "echo" => echo(station(ENTRY_BYTES), "survivor"),
        "stop-while-connecting" => stop_while_connecting(&role),
        "die-while-accepting" => die_while_accepting(&role),
        "die-when-asked" => {
            let mut node = Node::with_config(role.config()).unwrap();
            node.serve("victim", Access::SameUser, Accept::Ask).unwrap();
            say("serving");
            until_node(&mut node, "somebody asks", |node| {
                matches!(node.next_event(), Some(Event::Request { .. }))
            });
            die();
        }
        "serve" => {
            let _me = station(64).serve("victim");
            say("serving");
            role.wait_for("end");
        }
        "serve-and-fork" => {
            let mut me = Station::new(role.config(), 64, 1).serve("victim");
            say("serving");
            connected(&mut me.node);
            leave_a_child();
            role.wait_for("end");
        }
        "send-midway" => {
            let mut me = station(64);
            let (link, ticket) = me.connect("survivor");
            if me.node.config().bulk_ring_bytes > 0 {
                // Through the bulk ring, if there is one.
                me.node.send(&ticket, &pattern(1000, 1), b"", LIMIT).unwrap();
                me.node.send(&ticket, &pattern(200_000, 1), b"", LIMIT).unwrap();
                until_node(&mut me.node, "there is a bulk ring", |node| {
                    node.explain(link).unwrap().contains("long messages in a bulk ring")
                });
            }
            say("connected");
            role.wait_for("send");
            let data = pattern(ENTRY_BYTES, 2);
            let short = Some(Duration::from_millis(50));
            match me.node.send(&ticket, &data, b"", short) {
                Err(NodeSendError::TimedOut { unfinished: Some(_) }) => say("midway"),
                other => panic!("{other:?}"),
            }
            role.wait_for("end");
        }
        "receive-some" => {
            let mut me = station(ENTRY_BYTES);
            me.connect("survivor");
            while counter(&me.node, "bytes_received") == 0 {
                me.node.poll().unwrap();
            }
            die();
        }
        "receive-nothing" => {
            let mut me = station(ENTRY_BYTES);
            me.connect("survivor");
            say("connected");
            role.wait_for("end");
        }
        "sleep" => {
            let mut me = station(64);
            me.connect("survivor");
            say("connected");
            let _ = me.node.recv(me.queue, None);
        }
        "close" => {
            let mut me = station(64);
            let (_, ticket) = me.connect("survivor");
            let terminus = me.node.primary();
            let tag = me.node.send_buffer(terminus, ENTRY_BYTES).unwrap();
            let piece = hamlyn::Piece { tag, offset: 0, length: ENTRY_BYTES as u64 };
            let _ = me.node.post_send(terminus, &ticket, &[piece], b"").unwrap();
            say("closing");
            me.node.close(None).unwrap();
        }
        "send-and-die" => {
            let mut me = station(64);
            let (_, ticket) = me.connect("survivor");
            for i in 0..ENTRIES as u64 {
                me.node.send(&ticket, &i.to_le_bytes(), b"", LIMIT).unwrap();
            }
            die();
        }
        "send-long-and-die" => {
            let mut me = station(64);
            let (link, ticket) = me.connect("survivor");
            me.node.send(&ticket, &pattern(100_000, 0), b"", LIMIT).unwrap();
            until_node(&mut me.node, "there is a bulk ring", |node| {
                node.explain(link).unwrap().contains("long messages in a bulk ring")
            });
            for i in 1..4 {
                let ticket = Ticket { metadata_index: MetadataIndex(i), ..ticket };
                let ticket = ticket.at(i as u64 * 200_000).unwrap();
                me.node.send(&ticket, &pattern(200_000, i as u64), b"", LIMIT).unwrap();
            }
            die();
        }
        "leave-a-child" => {
            let mut me = station(64);
            let (_, ticket) = me.connect("survivor");
            me.node.send(&ticket, b"about to fork", b"", LIMIT).unwrap();
            leave_a_child();
            role.wait_for("end");
        }
        other => panic!("no role {other}"),
    }
}

/// Forks a child that only holds what was open, and says its number.
fn leave_a_child() {
    // SAFETY: the child only waits, holding every descriptor, until it is killed.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: system calls only.
        unsafe {
            libc::alarm(100);
            libc::close(1);
            loop {
                libc::pause();
            }
        }
    }
    say(&child.to_string());
}

/// A client that stops, to be killed, after so many steps.
fn stop_while_connecting(role: &Role) {
    let path = role.config().dir.unwrap().join("survivor");
    let kept: Box<dyn std::any::Any> = match role.number(0) {
        0 => Box::new(by_hand::stranger(&path)),
        1 => {
            let fd = by_hand::stranger(&path);
            by_hand::send(&fd, &Frame::Hello(by_hand::hello_of(Purpose::Link)));
            Box::new(fd)
        }
        // The server waits for its ring.
        2 => {
            let half = by_hand::half_way(&path);
            by_hand::until_taken(&half.0, &half.2);
            Box::new(half)
        }
        // It has paid, and has not taken the server's.
        3 => {
            let half = by_hand::half_way(&path);
            let ring = by_hand::until_paid(&half.0, &half.2);
            Box::new((half, ring))
        }
        _ => Box::new(by_hand::link_by_hand(&path)),
    };
    say("there");
    role.wait_for("end");
    drop(kept);
}

/// A server that dies after so many steps of accepting.
fn die_while_accepting(role: &Role) {
    let path = role.config().dir.unwrap().join("victim");
    let listener = socket::bind(Path::new(&path)).unwrap();
    socket::listen(&listener).unwrap();
    say("serving");
    let accept = || {
        let deadline = sys::monotonic_ns() + LONG.as_nanos() as u64;
        assert!(sys::wait_for(&[(listener.as_fd(), false)], deadline).unwrap());
        socket::accept(&listener).unwrap().unwrap()
    };
    // One that was being made when the server before died may come late, and ends at once.
    let accept_one_that_speaks = |mut fd: std::os::fd::OwnedFd| {
        loop {
            socket::accept_descriptors(&fd, true);
            match by_hand::receive(&fd) {
                None => fd = accept(),
                Some((Frame::Hello(_), _)) => break fd,
                Some(_) => panic!("the first frame is no Hello"),
            }
        }
    };
    let steps = role.number(0);
    let mut fd = accept();
    if steps > 0 {
        fd = accept_one_that_speaks(fd);
    }
    if steps > 1 {
        by_hand::send(
            &fd,
            &Frame::Welcome(Welcome {
                minor: 0,
                credential: Identity::new().unwrap().credential(),
                features: 0,
                client_ring_bytes: 512,
                server_ring_bytes: 512,
                packet_bytes: 64,
                cookie: [1; 16],
                greeting: Vec::new(),
            }),
        );
        by_hand::expect_word(&fd, RING, by_hand::ring_offer(512));
        by_hand::say(&fd, RING, by_hand::take(512));
    }
    if steps > 2 {
        by_hand::expect_word(&fd, RING, MemoryWord::Pass);
        by_hand::say(&fd, RING, MemoryWord::Held);
        by_hand::say(&fd, THEIR_RING, by_hand::ring_offer(512));
        by_hand::expect_word(&fd, THEIR_RING, by_hand::take(512));
        by_hand::pass_with(&fd, THEIR_RING, &[&by_hand::ring_file(512).1]).unwrap();
        by_hand::expect_word(&fd, THEIR_RING, MemoryWord::Held);
        accept_one_that_speaks(accept());
    }
    die();
}

// ---- connecting

#[test]
fn a_client_killed_at_any_step_of_connecting_leaves_nothing() {
    survive("a_client_killed_at_any_step_of_connecting_leaves_nothing", &[], |s| {
        for steps in 0..5 {
            let left = |node: &Node| {
                ["control.left_silent", "control.left_half_way", "control.closed_died"]
                    .map(|name| counter(node, name))
            };
            let mut expected = left(s.node());
            expected[[0, 1, 1, 1, 2][steps]] += 1;
            let mut peer = Peer::start("stop-while-connecting", &s.dir, &steps.to_string());
            peer.expect("there");
            peer.kill();
            until_node(s.node(), "the death was counted", |node| left(node) == expected);
        }
        // The last one was linked: the application has been told of both its coming and its going.
        let link = connected(s.node());
        s.died(link);
    });
}

#[test]
fn a_server_that_dies_while_it_is_connected_to_is_told_of() {
    survive("a_server_that_dies_while_it_is_connected_to_is_told_of", &[], |s| {
        for steps in 0..4 {
            let mut peer = Peer::start("die-while-accepting", &s.dir, &steps.to_string());
            peer.expect("serving");
            let error = s.node().connect("victim", b"", Some(LONG)).unwrap_err();
            let timed_out = matches!(&error, ConnectError::TimedOut(_));
            assert!(!timed_out, "{error}");
            peer.ends_killed();
            std::fs::remove_file(s.dir.path.join("victim")).unwrap();
        }
        let mut peer = Peer::start("die-when-asked", &s.dir, "");
        peer.expect("serving");
        let error = s.node().connect("victim", b"", Some(LONG)).unwrap_err();
        assert!(error.to_string().contains("went away"), "{error}");
        peer.ends_killed();
        // The name still exists, and is known to have no process.
        let limit = Duration::from_millis(30);
        let error = s.node().connect("victim", b"", Some(limit)).unwrap_err();
        assert!(error.to_string().contains("nobody listens"), "{error}");
        std::fs::remove_file(s.dir.path.join("victim")).unwrap();
    });
}

// ---- sending

fn sender_dies_midway(s: &mut Survivor) {
    let (mut peer, link) = s.victim("send-midway");
    if s.node().config().bulk_ring_bytes > 0 {
        s.station.recv();
        s.station.recv();
    }
    until_node(s.node(), "it has its bulk ring", |_| peer_said(&mut peer, "connected"));
    peer.tell("send");
    peer.expect("midway");
    peer.kill();
    s.died(link);
    s.nothing_arrived();
    let (slot, index) = (s.station.slot, MetadataIndex(0));
    let arrived = s.node().metadata(slot, index).unwrap().accumulator();
    assert!(arrived > 0 && arrived < 1 << 20, "{arrived} packets");
    // The owner of the entry ends the message that will never be whole.
    s.node().arm(slot, index, None).unwrap();
    assert_eq!(s.node().metadata(slot, index).unwrap().accumulator(), 0);
}

fn peer_said(peer: &mut Peer, text: &str) -> bool {
    peer.has_said().is_some_and(|said| said == text)
}

#[test]
fn a_sender_killed_between_packets_leaves_an_incomplete_message_and_no_notification() {
    survive(
        "a_sender_killed_between_packets_leaves_an_incomplete_message_and_no_notification",
        SMALLEST,
        sender_dies_midway,
    );
}

#[test]
fn so_does_one_that_had_a_bulk_ring() {
    survive("so_does_one_that_had_a_bulk_ring", BULK, sender_dies_midway);
}

#[test]
fn what_was_sent_before_the_death_arrives() {
    survive("what_was_sent_before_the_death_arrives", &[], |s| {
        let (peer, link) = s.victim("send-and-die");
        peer.ends_killed();
        s.died(link);
        for _ in 0..ENTRIES {
            s.station.recv();
        }
        assert_eq!(s.station.bytes()[..8], (ENTRIES as u64 - 1).to_le_bytes());
        s.nothing_arrived();
    });
}

#[test]
fn what_was_sent_through_a_bulk_ring_before_the_death_arrives() {
    let bulk = &[("BULK_RING_BYTES", "1M"), ("BULK_AFTER_BYTES", "1"), ("RING_BYTES", "4096")];
    survive("what_was_sent_through_a_bulk_ring_before_the_death_arrives", bulk, |s| {
        let (peer, link) = s.victim("send-long-and-die");
        s.died(link);
        peer.ends_killed();
        for _ in 0..4 {
            s.station.recv();
        }
        for i in 1..4 {
            let bytes = &s.station.bytes()[i * 200_000..][..200_000];
            assert!(bytes == pattern(200_000, i as u64), "message {i}");
        }
    });
}

// ---- receiving

fn receiver_dies(s: &mut Survivor) {
    let (peer, link, ticket) = s.victim_with_ticket("receive-some");
    let data = pattern(ENTRY_BYTES, 3);
    let error = s.node().send(&ticket, &data, b"", LIMIT).unwrap_err();
    assert!(matches!(error, NodeSendError::LinkEnded(_)), "{error}");
    s.died(link);
    let error = s.node().send(&ticket, b"more", b"", LIMIT).unwrap_err();
    assert!(matches!(error, NodeSendError::Unreachable(_)), "{error}");
    peer.ends_killed();
}

#[test]
fn who_sends_to_a_receiver_that_is_killed_is_told() {
    survive("who_sends_to_a_receiver_that_is_killed_is_told", SMALLEST, receiver_dies);
}

#[test]
fn who_sleeps_on_a_full_ring_is_told_of_the_receivers_death() {
    survive("who_sleeps_on_a_full_ring_is_told_of_the_receivers_death", BLOCKING, |s| {
        receiver_dies(s);
        let (mut peer, link, ticket) = s.victim_with_ticket("receive-nothing");
        peer.expect("connected");
        let killer = kill_when_asleep(peer);
        let data = pattern(ENTRY_BYTES, 3);
        let error = s.node().send(&ticket, &data, b"", LIMIT).unwrap_err();
        assert!(matches!(error, NodeSendError::LinkEnded(_)), "{error}");
        killer.join().unwrap();
        s.died(link);
        // Queued, and then flushed by a survivor that sleeps.
        let (mut peer, link, ticket) = s.victim_with_ticket("receive-nothing");
        peer.expect("connected");
        for _ in 0..20 {
            s.node().try_send(&ticket, b"queued", b"").unwrap();
        }
        let killer = kill_when_asleep(peer);
        assert!(s.node().flush(LIMIT).unwrap(), "nothing is left to be sent");
        killer.join().unwrap();
        let mut unsent = 0;
        while let Some(event) = s.node().next_event() {
            if let Event::Closed { link: l, reason: CloseReason::Died, unsent: n } = event {
                assert_eq!(l, link);
                unsent = n;
            }
        }
        assert!(unsent > 0 && unsent < 20, "{unsent} of 20 in a ring of 8 lines");
    });
}

/// A sender that waits for room, and does nothing else.
fn a_sender_is_told(s: &mut Survivor, role: &str) {
    let mut peer = Peer::start(role, &s.dir, "");
    peer.expect("serving");
    let link = s.node().connect("victim", b"", Some(LONG)).unwrap();
    let ticket = ticket_of(&s.station.node, link);
    let child = (role == "serve-and-fork").then(|| peer.says().parse::<i32>().unwrap());
    let killer = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(20));
        peer.kill();
    });
    // One packet after another: the ring is full before long.
    let error = loop {
        if let Err(e) = s.node().send(&ticket, &[0; 60], b"", LIMIT) {
            break e;
        }
    };
    killer.join().unwrap();
    if let Some(child) = child {
        // SAFETY: a system call on the number of a child that has not been waited for.
        assert_eq!(unsafe { libc::kill(child, libc::SIGKILL) }, 0);
    }
    assert!(matches!(error, NodeSendError::LinkEnded(_)), "{error}");
    until_node(s.node(), "the link has gone", |node| node.links().count() == 1);
    std::fs::remove_file(s.dir.path.join("victim")).unwrap();
}

#[test]
fn who_waits_for_room_is_told_of_the_receivers_death() {
    survive("who_waits_for_room_is_told_of_the_receivers_death", SMALLEST, |s| {
        a_sender_is_told(s, "serve");
    });
}

#[test]
fn also_one_that_never_sleeps() {
    let polled = &[("RING_BYTES", "512"), ("WAIT_MODE", "polled")];
    survive("also_one_that_never_sleeps", polled, |s| a_sender_is_told(s, "serve"));
}

#[test]
fn also_where_a_forked_child_holds_the_sockets() {
    survive("also_where_a_forked_child_holds_the_sockets", SMALLEST, |s| {
        a_sender_is_told(s, "serve-and-fork");
    });
}

#[test]
fn a_peer_killed_while_it_sleeps_is_told_of_to_one_that_sleeps() {
    survive("a_peer_killed_while_it_sleeps_is_told_of_to_one_that_sleeps", &[], |s| {
        let (mut peer, link, ticket) = s.victim_with_ticket("sleep");
        peer.expect("connected");
        peer.fall_asleep();
        let killer = kill_when_asleep(peer);
        assert!(s.node().wait(LIMIT).unwrap(), "nobody told the sleeper");
        killer.join().unwrap();
        s.died(link);
        let error = s.node().send(&ticket, b"x", b"", LIMIT).unwrap_err();
        assert!(matches!(error, NodeSendError::Unreachable(_)), "{error}");
    });
}

// ---- closing

#[test]
fn a_peer_killed_while_it_closes_has_died_and_its_last_message_is_incomplete() {
    survive(
        "a_peer_killed_while_it_closes_has_died_and_its_last_message_is_incomplete",
        BLOCKING,
        |s| {
            // Until it closes, the survivor does nothing.
            let mut peer = Peer::start("close", &s.dir, "");
            peer.expect("closing");
            peer.fall_asleep();
            peer.kill();
            let link = connected(s.node());
            s.died(link);
            s.nothing_arrived();
            let (slot, index) = (s.station.slot, MetadataIndex(0));
            assert!(s.node().metadata(slot, index).unwrap().accumulator() > 0);
            s.node().arm(slot, index, None).unwrap();
        },
    );
}

// ---- what is not death, and what hides it

#[test]
fn a_forked_child_that_holds_the_sockets_does_not_hide_the_death() {
    survive("a_forked_child_that_holds_the_sockets_does_not_hide_the_death", &[], |s| {
        let (mut peer, link) = s.victim("leave-a-child");
        let child: i32 = peer.says().parse().unwrap();
        peer.kill();
        s.died(link);
        s.station.recv();
        // SAFETY: system calls on the number of a child that has not been waited for.
        unsafe {
            assert_eq!(libc::kill(child, 0), 0, "the child lives, and so do its sockets");
            assert_eq!(libc::kill(child, libc::SIGKILL), 0);
        }
    });
}

#[test]
fn a_stopped_peer_is_not_dead_and_time_limits_hold() {
    survive("a_stopped_peer_is_not_dead_and_time_limits_hold", SMALLEST, |s| {
        let short = Some(Duration::from_millis(30));
        let (peer, link, ticket) = s.victim_with_ticket("echo");
        s.echo(ticket, b"at first");
        peer.stop();
        let data = pattern(16 << 10, 4);
        let reply = s.reply_ticket();
        let error = s.node().send(&ticket, &data, &reply, short).unwrap_err();
        let NodeSendError::TimedOut { unfinished: Some(unfinished) } = error else {
            panic!("{error}")
        };
        let queue = s.replies.0;
        let error = s.node().recv(queue, short).unwrap_err();
        assert!(matches!(error, NodeReceiveError::TimedOut), "{error}");
        // Others go on meanwhile.
        s.friend_lives();
        assert!(s.node().explain(link).is_ok());
        assert!(s.node().next_event().is_none());
        peer.signal(libc::SIGCONT);
        s.node().send_rest(*unfinished, &data, LIMIT).unwrap();
        s.echoed(&data);
        s.echo(ticket, b"and after");
        // A link to a stopped peer is closed without waiting for it.
        peer.stop();
        s.node().disconnect(link).unwrap();
        peer.kill();

        let mut server = Peer::start("serve", &s.dir, "");
        server.expect("serving");
        server.stop();
        let error = s.node().connect("victim", b"", Some(Duration::from_millis(30))).unwrap_err();
        assert!(error.to_string().contains("the time was up"), "{error}");
        server.signal(libc::SIGCONT);
        let link = s.node().connect("victim", b"", Some(LONG)).unwrap();
        s.node().disconnect(link).unwrap();
        server.end();
    });
}
