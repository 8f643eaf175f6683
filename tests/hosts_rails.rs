//! Links to other hosts over several connections: rails that are cut, stall and come back; hosts
//! that lie about batches or join links of others; the protocols with one rail and with two, from
//! the same code; and the bytes of a long message that may go before a short one.
//!
//! ```text
//!   node here --rail 0--> relay at 127.0.0.1 --+--> node there
//!             --rail 1--> relay at 127.0.0.2 --+
//! ```
#![cfg(not(miri))]

#[path = "support/cable.rs"]
mod cable;
mod support;

use cable::Cable;
use hamlyn::Ticket;
use hamlyn::control::hosts::keys::Keys;
use hamlyn::control::hosts::meeting::{Meeting, MeetingError, MeetingStep, OwnData};
use hamlyn::control::hosts::said::{RailsSecret, Said};
use hamlyn::control::{Identity, Reason};
use hamlyn::interface::terminus::Piece;
use hamlyn::node::{CloseReason, Event};
use hamlyn::protocol::{
    ByteConfig, ByteListener, ByteStream, Client, DatagramReceiver, DatagramSender, Group,
    GroupConfig, GroupMember, Manager, PublishConfig, Publisher, Server, ServerConfig,
    StreamConfig, StreamReceiver, StreamSender, SubscribeConfig, Subscriber, TaggedConfig,
    TaggedReceiver, TaggedSender,
};
use hamlyn::transport::channel::Channel;
use hamlyn::transport::path::Path as _;
use hamlyn::transport::rails::numbers::{RailHead, RailKind, WINDOW};
use hamlyn::{Accept, Access, Config, LinkId, MetadataIndex, Node, NodeSendError, SlotConfig};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use support::{Dir, LIMIT, listening, pattern, until};

// ---- two hosts

/// The least that there is, so that a rail is connected again within a quarter of a second.
const TIMEOUT: (&str, &str) = ("HOST_TIMEOUT_MS", "2000");

fn secret(dir: &Dir) -> Config {
    dir.config().secret(dir.secret())
}

/// Settings of both ends, and the cables between them, once the one that listens is there.
struct Hosts {
    there: Dir,
    here: Dir,
}

impl Hosts {
    fn new(rails: &str) -> Self {
        let settings = [TIMEOUT, ("RAILS", rails)];
        Self { there: Dir::new("there", &settings), here: Dir::new("here", &settings) }
    }

    fn server(&self) -> Config {
        listening(secret(&self.there))
    }

    /// Cables to where it listens, and the client's settings, with a directory that has their ends.
    fn cables(&self, at: SocketAddr, services: &[&str]) -> ([Cable; 2], Config) {
        let cables = [1, 2].map(|host| Cable::to(move || at, host));
        let line = |service: &&str| format!("{service} {} {}\n", cables[0].at, cables[1].at);
        let file = self.here.path.join("services");
        std::fs::write(&file, services.iter().map(line).collect::<String>()).unwrap();
        (cables, secret(&self.here).directory(file))
    }
}

/// Whether a link has so many rails.
fn lives(path: &str, rails: usize) -> bool {
    path.contains(&format!(" {rails} of 2 rails"))
}

// ---- nothing lost, nothing twice

/// One end of a link that is used without protocols: each message is one packet, with a number.
struct End {
    node: Node,
    queue: hamlyn::QueueId,
    ticket: Ticket,
    link: Option<LinkId>,
    theirs: Option<Ticket>,
    sent: u32,
    /// It sends no more than so many, for now.
    may_send: u32,
    /// How often each number came.
    came: Vec<u8>,
    count: u32,
    last_in_order: Option<u32>,
    closed: Option<CloseReason>,
}

/// Every third is long.
fn is_long(number: u32) -> bool {
    number.is_multiple_of(3)
}

/// Of the long ones, every second may overtake and be overtaken.
fn may_overtake(number: u32) -> bool {
    number.is_multiple_of(6)
}

impl End {
    fn new(config: Config, total: u32, serves: bool) -> Self {
        let mut node = Node::with_config(config).unwrap();
        let area = node.message_area(8192).unwrap();
        let queue = node.notification_queue(4 * total).unwrap();
        let slot = node.slot(SlotConfig::new(area, queue).credit(2 * total)).unwrap();
        let ticket = node.fast_ticket(slot).unwrap();
        if serves {
            let greeting = Accept::Automatic(ticket.to_bytes().to_vec());
            node.serve("x", Access::SameUser, greeting).unwrap();
        }
        let came = vec![0; total as usize];
        Self {
            node,
            queue,
            ticket,
            link: None,
            theirs: None,
            sent: 0,
            may_send: total,
            came,
            count: 0,
            last_in_order: None,
            closed: None,
        }
    }

    fn has_link(&mut self, link: LinkId) {
        self.link = Some(link);
        self.theirs = Some(Ticket::from_bytes(self.node.greeting(link).unwrap()).unwrap());
    }

    fn path(&mut self) -> String {
        self.link.map_or(String::new(), |link| self.node.explain(link).unwrap())
    }

    fn turn(&mut self) {
        self.node.poll().unwrap();
        while let Some(notification) = self.node.pop(self.queue).unwrap() {
            let number = notification.word;
            self.came[number as usize] += 1;
            assert_eq!(self.came[number as usize], 1, "message {number} came twice");
            self.count += 1;
            if !may_overtake(number) {
                let last = self.last_in_order;
                assert!(last < Some(number), "{number} behind {last:?}");
                self.last_in_order = Some(number);
            }
        }
        while let Some(event) = self.node.next_event() {
            match event {
                Event::Connected { link, .. } => self.has_link(link),
                Event::Closed { reason, .. } => self.closed = Some(reason),
                other => panic!("{other:?}"),
            }
        }
        let (Some(link), Some(ticket)) = (self.link, &self.theirs) else { return };
        // Some at a time, so that there is something for each rail.
        for _ in 0..40 {
            if self.sent >= self.may_send || self.closed.is_some() {
                return;
            }
            let long = [self.sent as u8; 6000];
            let length = if is_long(self.sent) { 6000 } else { self.sent as usize % 900 };
            let ticket = if may_overtake(self.sent) { *ticket } else { ticket.in_order() };
            match self.node.try_send_fast_over(link, &ticket, &long[..length], self.sent) {
                Ok(()) => self.sent += 1,
                Err(NodeSendError::Full) => return,
                Err(error) => panic!("{error}"),
            }
        }
    }

    fn is_done(&self) -> bool {
        self.sent as usize == self.came.len() && self.count as usize == self.came.len()
    }
}

/// For a moment, without the pause that [`until`] makes between two looks.
fn turns(here: &mut End, there: &mut End) {
    let end = Instant::now() + Duration::from_millis(10);
    while Instant::now() < end {
        here.turn();
        there.turn();
    }
}

/// A node that listens, two cables, and a node with a link over them.
fn two_ends(hosts: &Hosts, total: u32) -> (End, End, [Cable; 2]) {
    let there = End::new(hosts.server(), total, true);
    let (cables, config) = hosts.cables(there.node.listens_at().unwrap(), &["x"]);
    let mut here = End::new(config, total, false);
    let greeting = here.ticket.to_bytes();
    let link = here.node.connect("hamlyn://x", &greeting, LIMIT).unwrap();
    here.has_link(link);
    (here, there, cables)
}

enum State {
    Flows,
    Cut,
    Mended,
}

#[test]
fn rails_that_are_cut_in_turn_lose_nothing_and_double_nothing_and_are_used_again() {
    const TOTAL: u32 = 7_000;
    const CUTS: u32 = 6;
    let hosts = Hosts::new("2");
    let (mut here, mut there, cables) = two_ends(&hosts, TOTAL);
    let (mut cuts, mut state, mut since) = (0, State::Flows, 0);
    // Some of it for each cut, and some for what follows until the rail is back.
    const STEPS: u32 = 2 * CUTS + 2;
    let mut steps = 2;
    until("everything has come", || {
        turns(&mut here, &mut there);
        let closed = (&here.closed, &there.closed);
        assert!(closed.0.is_none() && closed.1.is_none(), "{closed:?}");
        let live = |here: &mut End, there: &mut End, rails| {
            lives(&here.path(), rails) && lives(&there.path(), rails)
        };
        let next = &cables[cuts as usize % 2];
        match state {
            // Since both live, more has gone over the one to be cut. What may be sent has come, so that
            // the first batch of what follows is on the rail that has been there for longest: this one.
            State::Flows
                if cuts < CUTS
                    && next.passed() > since
                    && (here.sent, there.sent) == (here.may_send, there.may_send)
                    && (here.count, there.count) == (there.sent, here.sent) =>
            {
                // Whole batches are on their way when it is cut.
                next.inside.is_stalled.store(true, Ordering::Relaxed);
                steps += 1;
                (here.may_send, there.may_send) = (TOTAL / STEPS * steps, TOTAL / STEPS * steps);
                let are_on_the_way = || {
                    let live = next.inside.live.lock().unwrap();
                    live.iter().any(|end| rustix::io::ioctl_fionread(end).unwrap() > 500)
                };
                for _ in 0..20 {
                    turns(&mut here, &mut there);
                    if are_on_the_way() {
                        break;
                    }
                }
                next.cut();
                state = State::Cut;
            }
            State::Cut if live(&mut here, &mut there, 1) => {
                next.mend();
                state = State::Mended;
            }
            State::Mended if live(&mut here, &mut there, 2) => {
                cuts += 1;
                since = cables[cuts as usize % 2].passed();
                state = State::Flows;
                steps += 1;
            }
            _ => {}
        }
        for end in [&mut here, &mut there] {
            end.may_send = if steps == STEPS { TOTAL } else { TOTAL / STEPS * steps };
        }
        here.is_done() && there.is_done()
    });
    assert_eq!(cuts, CUTS);
    let (path, other) = (here.path(), there.path());
    assert!(path.contains("left 3 times") && other.contains("left 3 times"), "{path}\n{other}");
    let again = |path: &str| {
        let before = path.split(" batches sent again").next().unwrap();
        before.rsplit(' ').next().unwrap().parse::<u64>().unwrap()
    };
    assert!(again(&path) + again(&other) > 0, "nothing had to be sent again: {path}");
}

#[test]
fn a_link_is_dead_only_when_its_last_rail_is() {
    let hosts = Hosts::new("2");
    let (mut here, mut there, cables) = two_ends(&hosts, 100);
    until("both live", || {
        here.turn();
        there.turn();
        lives(&here.path(), 2) && lives(&there.path(), 2)
    });
    cables[0].cut();
    until("one is left", || {
        here.turn();
        there.turn();
        lives(&here.path(), 1) && lives(&there.path(), 1)
    });
    until("everything has come", || {
        here.turn();
        there.turn();
        here.is_done() && there.is_done()
    });
    assert!(here.closed.is_none() && there.closed.is_none());
    let path = here.path();
    assert!(path.contains("rail 0 was left") && path.contains("rail 1 lives"), "{path}");
    cables[1].cut();
    until("both are told", || {
        here.turn();
        there.turn();
        here.closed.is_some() && there.closed.is_some()
    });
    assert_eq!((here.closed, there.closed), (Some(CloseReason::Died), Some(CloseReason::Died)));
}

#[test]
fn a_rail_that_stalls_without_closing_is_left_and_one_that_comes_back_is_used() {
    const TOTAL: u32 = 7_000;
    let hosts = Hosts::new("2");
    let (mut here, mut there, cables) = two_ends(&hosts, TOTAL);
    (here.may_send, there.may_send) = (0, 0);
    until("both live", || {
        here.turn();
        there.turn();
        lives(&here.path(), 2) && lives(&there.path(), 2)
    });
    (here.may_send, there.may_send) = (TOTAL, TOTAL);
    until("both are used", || {
        here.turn();
        there.turn();
        cables[1].passed() > 100_000
    });
    cables[1].inside.is_stalled.store(true, Ordering::Relaxed);
    until("everything has come", || {
        turns(&mut here, &mut there);
        here.is_done() && there.is_done()
    });
    let path = format!("{}\n{}", here.path(), there.path());
    assert!(path.contains("it took nothing while another did"), "{path}");
    cables[1].mend();
    until("it is used again", || {
        here.turn();
        there.turn();
        lives(&here.path(), 2) && lives(&there.path(), 2)
    });
}

#[test]
fn what_is_on_a_rail_that_stalls_arrives_over_the_other_though_its_sender_leaves() {
    const TOTAL: u32 = 3_000;
    let hosts = Hosts::new("2");
    let (mut here, mut there, cables) = two_ends(&hosts, TOTAL);
    (here.may_send, there.may_send) = (0, 0);
    until("both live", || {
        turns(&mut here, &mut there);
        lives(&here.path(), 2) && lives(&there.path(), 2)
    });
    here.may_send = 1_000;
    until("both are used", || {
        turns(&mut here, &mut there);
        there.count == 1_000 && cables[1].passed() > 50_000
    });
    cables[1].inside.is_stalled.store(true, Ordering::Relaxed);
    here.may_send = TOTAL;
    // As much as there is credit for; what is in the ring leaves later.
    let mut last = (0, 0);
    until("nothing more leaves", || {
        turns(&mut here, &mut there);
        let before = core::mem::replace(&mut last, (here.sent, there.count));
        before == last && here.sent > 1_000
    });
    let sent = here.sent;
    let live = cables[1].inside.live.lock().unwrap();
    let waiting = live.iter().map(|end| rustix::io::ioctl_fionread(end).unwrap()).sum::<u64>();
    drop(live);
    assert!(waiting > 0 && there.count < sent, "{} of {sent}, {waiting} bytes wait", there.count);
    // It waits until what it sent is there, or its time is up.
    let leaves = std::thread::spawn(move || drop(here));
    until("everything has come", || {
        for _ in 0..100 {
            there.turn();
        }
        assert!(there.count == sent || there.closed.is_none(), "{} of {sent}", there.count);
        there.count == sent
    });
    assert!(there.came[..sent as usize].iter().all(|count| *count == 1));
    until("its end is told", || {
        there.turn();
        there.closed.is_some()
    });
    leaves.join().unwrap();
}

// Looks at whether hosts are there are 450 s apart here.
#[test]
fn a_rail_is_connected_again_at_once_and_not_when_hosts_are_looked_at() {
    let hosts = Hosts::new("2");
    let mut there = End::new(hosts.server().host_timeout_ms(3_600_000u32), 10, true);
    let (cables, config) = hosts.cables(there.node.listens_at().unwrap(), &["x"]);
    let mut here = End::new(config.host_timeout_ms(3_600_000u32), 10, false);
    let greeting = here.ticket.to_bytes();
    let link = here.node.connect("hamlyn://x", &greeting, LIMIT).unwrap();
    here.has_link(link);
    for round in 0..3 {
        until("two rails", || {
            turns(&mut here, &mut there);
            lives(&here.path(), 2) && lives(&there.path(), 2)
        });
        cables[round % 2].cut();
        until("one rail", || {
            turns(&mut here, &mut there);
            lives(&here.path(), 1) && lives(&there.path(), 1)
        });
        cables[round % 2].mend();
    }
    until("two rails", || {
        turns(&mut here, &mut there);
        lives(&here.path(), 2) && lives(&there.path(), 2)
    });
}

#[test]
fn a_host_that_wants_one_rail_has_one() {
    let hosts = Hosts::new("2");
    let one = Dir::new("one", &[TIMEOUT]);
    let there = End::new(listening(secret(&one)), 10, true);
    let mut there = there;
    let (cables, config) = hosts.cables(there.node.listens_at().unwrap(), &["x"]);
    let mut here = End::new(config, 10, false);
    let greeting = here.ticket.to_bytes();
    let link = here.node.connect("hamlyn://x", &greeting, LIMIT).unwrap();
    here.has_link(link);
    until("everything has come", || {
        here.turn();
        there.turn();
        here.is_done() && there.is_done()
    });
    assert!(!here.path().contains("rail"), "{}", here.path());
    assert_eq!(cables[1].inside.count.load(Ordering::Relaxed), 0);
}

// ---- hosts that lie

/// A host that has the secret and speaks by hand.
struct Liar {
    channel: Channel,
    own: OwnData,
    number: u64,
}

fn connected(at: SocketAddr, dir: &Dir) -> (Channel, OwnData) {
    let (keys, identity) = (Keys::load(&secret(dir)).unwrap(), Identity::new().unwrap());
    let tcp = TcpStream::connect(at).unwrap();
    tcp.set_nonblocking(true).unwrap();
    let tls = rustls::ClientConnection::new(keys.client.clone(), "127.0.0.1".try_into().unwrap());
    (Channel::new(tcp, tls.unwrap().into()), OwnData { keys, identity, packet_bytes: 4096 })
}

fn meet(mut meeting: Meeting, own: &OwnData) -> Result<Meeting, MeetingError> {
    let mut met = None;
    until("it is answered", || {
        met = match meeting.turn(own) {
            MeetingStep::Waits => None,
            MeetingStep::Link(..) => Some(Ok(())),
            MeetingStep::Failed(error) => Some(Err(error)),
            step => panic!("{step:?}"),
        };
        met.is_some()
    });
    met.unwrap().map(|()| meeting)
}

impl Liar {
    fn link(at: SocketAddr, dir: &Dir) -> Self {
        let (channel, own) = connected(at, dir);
        let mut meeting = Meeting::of_client(channel, "x", Vec::new());
        Said::Offer { count: 2, credit: 1 << 20 }.put(&mut meeting.says);
        let meeting = meet(meeting, &own).unwrap();
        let said = Said::split(&meeting.heard).1;
        assert!(matches!(said, Some(Said::Offer { count: 2, .. })), "{said:?}");
        Self { channel: meeting.channel, own, number: 0 }
    }

    fn say(&mut self, head: RailHead, bytes: &[u8]) {
        self.channel.put(&[&head.to_bytes()[..], bytes].concat());
        let channel = &mut self.channel;
        until("it has left", || channel.flush() || channel.ended().is_some());
    }

    /// A batch of one frame that says that a ticket was revoked, which harms nobody.
    fn batch(&mut self, change: impl FnOnce(&mut RailHead)) {
        let mut head = head(RailKind::Short, self.number);
        head.length = 48;
        change(&mut head);
        self.number += 1;
        self.say(head, &stale());
    }
}

fn head(kind: RailKind, number: u64) -> RailHead {
    RailHead { kind, length: 0, number, place: number, had: 0, freed: 0 }
}

fn stale() -> Vec<u8> {
    use hamlyn::transport::frames::{HostFrame, put};
    let mut bytes = Vec::new();
    put(&mut bytes, &HostFrame::Stale { slot: 1, index: 2 });
    bytes
}

#[test]
fn a_host_that_lies_about_batches_is_sent_away_and_counted_and_nobody_else_is_harmed() {
    let hosts = Hosts::new("2");
    let (mut here, mut there, _cables) = two_ends(&hosts, 2000);
    let at = there.node.listens_at().unwrap();
    let by_hand = Dir::new("by-hand", &[]);
    type Lie = fn(&mut Liar);
    let lies: [(&str, &str, Lie); 9] = [
        ("a number that is too far", "beyond those that may be", |liar| {
            liar.batch(|head| head.number = WINDOW);
        }),
        ("a batch on and on", "on and on", |liar| {
            for _ in 0..2 * WINDOW + 2 {
                liar.batch(|head| head.number = 0);
            }
        }),
        ("one place twice", "at a place where", |liar| {
            liar.batch(|_| ());
            liar.batch(|head| head.place = 0);
        }),
        ("that it has what was not sent", "what was not sent", |liar| {
            liar.say(RailHead { had: 1000, ..head(RailKind::Report, 0) }, &[]);
        }),
        ("that it freed what was not sent", "what was not sent", |liar| {
            liar.say(RailHead { freed: 1 << 40, ..head(RailKind::Report, 0) }, &[]);
        }),
        ("an answer to no question", "what was not asked", |liar| {
            liar.say(RailHead { length: 128, ..head(RailKind::Answer, 7) }, &[0; 128]);
        }),
        ("more behind the last", "behind what it said was the last", |liar| {
            liar.batch(|head| (head.kind, head.number) = (RailKind::Last, 1));
            liar.batch(|head| (head.number, head.place) = (2, 0));
        }),
        ("a batch of 4 GiB", "a length that none has", |liar| {
            liar.batch(|head| head.length = u32::MAX);
        }),
        ("a part of a frame", "ends within a frame", |liar| {
            let head = RailHead { length: 20, ..head(RailKind::Short, 0) };
            liar.say(head, &stale()[..20]);
        }),
    ];
    let mut closed = 0;
    for (what, why, lie) in lies {
        let mut liar = Liar::link(at, &by_hand);
        lie(&mut liar);
        let mut reason = None;
        until(what, || {
            here.turn();
            there.node.poll().unwrap();
            while let Some(event) = there.node.next_event() {
                if let Event::Closed { reason: own, .. } = event {
                    reason = Some(own);
                }
            }
            reason.is_some()
        });
        let text = match reason.unwrap() {
            CloseReason::Misbehaved(text) => text,
            other => panic!("{what}: {other:?}"),
        };
        assert!(text.contains(why), "{what}: {text}");
        closed += 1;
        let counters = there.node.counters();
        let count = counters.iter().find(|row| row.0 == "links_closed_violation").unwrap().1;
        assert_eq!(count, closed, "{what}");
        let _ = &liar.own;
    }
    // One that leaves some out gets nothing of what is behind them taken, and harms itself alone.
    let mut liar = Liar::link(at, &by_hand);
    for _ in 0..100 {
        liar.batch(|head| (head.number, head.place) = (head.number + 1, head.place + 1));
    }
    // The honest one.
    there.link = None;
    let ticket = there.ticket;
    there.theirs = Some(here.ticket);
    here.theirs = Some(ticket);
    until("what is honest goes on", || {
        here.turn();
        there.node.poll().unwrap();
        while let Some(event) = there.node.next_event() {
            assert!(!matches!(event, Event::TicketRevoked { .. }), "{event:?}");
        }
        while let Some(notification) = there.node.pop(there.queue).unwrap() {
            there.count += 1;
            assert!(notification.word < 2000);
        }
        there.count == 2000
    });
}

#[test]
fn nobody_joins_a_link_that_is_not_his() {
    let hosts = Hosts::new("2");
    let mut there = End::new(hosts.server(), 10, true);
    let at = there.node.listens_at().unwrap();
    let (mine, other) = (Dir::new("mine", &[]), Dir::new("other", &[]));
    let liar = Liar::link(at, &mine);
    let secret = RailsSecret::of(&liar.channel).unwrap();
    let join = |own: OwnData, channel: Channel, place: u8, secret: RailsSecret| {
        let mut meeting = Meeting::of_client(channel, "x", Vec::new());
        meeting.joins = Some((place, secret));
        meet(meeting, &own)
    };
    // Another host that has the keys of all, and even those of the link.
    let (channel, own) = connected(at, &other);
    let error = join(own, channel, 1, secret.clone()).unwrap_err().to_string();
    assert!(error.contains("no such link"), "{error}");
    // The link's own end, with keys of another connection, and at a place that there is not.
    let again = || {
        let (channel, own) = connected(at, &mine);
        (OwnData { identity: liar.own.identity.clone(), ..own }, channel)
    };
    let (own, channel) = again();
    let wrong = RailsSecret::of(&Liar::link(at, &other).channel).unwrap();
    let error = join(own, channel, 1, wrong).unwrap_err().to_string();
    assert!(error.contains("no such link"), "{error}");
    let (own, channel) = again();
    let error = join(own, channel, 2, secret.clone()).unwrap_err().to_string();
    assert!(error.contains("no such rail"), "{error}");
    // Whoever is refused gets nothing but that; the right one is let in.
    let (own, channel) = again();
    let joined = join(own, channel, 1, secret.clone()).unwrap();
    assert!(matches!(Said::split(&joined.heard).1, Some(Said::Joined { .. })));
    let mut links = 0;
    until("the links are there", || {
        there.node.poll().unwrap();
        while let Some(event) = there.node.next_event() {
            if let Event::Connected { link, .. } = event {
                there.link.get_or_insert(link);
                links += 1;
            }
        }
        links == 2
    });
    assert!(lives(&there.path(), 2), "{}", there.path());
}

#[test]
fn a_link_that_is_being_left_counts_as_many_connections_as_it_has() {
    let settings = [
        TIMEOUT,
        ("RAILS", "2"),
        ("CONNECTIONS_PER_USER_MAX", "3"),
        ("HANDSHAKE_TIMEOUT_MS", "60000"),
    ];
    let dir = Dir::new("counts", &settings);
    let mut there = End::new(listening(secret(&dir)), 10, true);
    let at = there.node.listens_at().unwrap();
    let mine = Dir::new("mine", &[]);
    // One that never says that it has what was sent, so that it is waited for.
    let first = Liar::link(at, &mine);
    let secret = RailsSecret::of(&first.channel).unwrap();
    let (channel, own) = connected(at, &mine);
    let own = OwnData { identity: first.own.identity.clone(), ..own };
    let mut meeting = Meeting::of_client(channel, "x", Vec::new());
    meeting.joins = Some((1, secret));
    let _second = meet(meeting, &own).unwrap();
    until("both rails live", || {
        there.node.poll().unwrap();
        while let Some(event) = there.node.next_event() {
            if let Event::Connected { link, .. } = event {
                there.link = Some(link);
            }
        }
        lives(&there.path(), 2)
    });
    there.node.disconnect(there.link.unwrap()).unwrap();
    let _third = Liar::link(at, &mine);
    let (channel, own) = connected(at, &mine);
    let error = meet(Meeting::of_client(channel, "x", Vec::new()), &own).unwrap_err();
    assert!(matches!(error, MeetingError::Refused(Reason::Connections, _)), "{error}");
}

// ---- the protocols

/// Managers with so many rails; the second cable is slow, so that what goes over it comes late.
fn managers(rails: &str, services: &[&str]) -> (Hosts, Manager, Manager, [Cable; 2]) {
    let hosts = Hosts::new(rails);
    let server = Manager::with_config(hosts.server()).unwrap();
    server.start_progress().unwrap();
    let (cables, config) = hosts.cables(server.listens_at().unwrap(), services);
    cables[1].inside.delay_us.store(300, Ordering::Relaxed);
    let client = Manager::with_config(config).unwrap();
    (hosts, server, client, cables)
}

const SERVICES: [&str; 7] = ["calls", "records", "tags", "datagrams", "bytes", "parts", "samples"];

fn lengths() -> impl Iterator<Item = usize> {
    (0..300).map(|i| [0, 7, 100, 2047, 2048, 5000, 40_000][i % 7] + i % 5)
}

fn protocols(rails: &str) {
    let (_hosts, server, client, cables) = managers(rails, &SERVICES);
    let name = |service: &str| format!("hamlyn://{service}");

    let serving = Server::new(&server, ServerConfig::default()).unwrap();
    serving.serve("calls", Access::SameUser).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in lengths() {
                let request = serving.receive(LIMIT).unwrap();
                let twice = request.repeat(2);
                request.reply(&twice, LIMIT).unwrap();
            }
        });
        let calls = Client::connect(&client, &name("calls"), LIMIT).unwrap();
        if rails == "2" {
            until("both rails live", || lives(&calls.connection().explain(&client), 2));
        }
        for (i, length) in lengths().enumerate() {
            let request = pattern(length, i as u64);
            assert_eq!(*calls.call(&request, LIMIT).unwrap(), *request.repeat(2), "{i}");
        }
    });

    let mut records = StreamReceiver::new(&server, StreamConfig::default()).unwrap();
    records.serve("records", Access::SameUser).unwrap();
    let mut tags = TaggedReceiver::new(&server, TaggedConfig::new(1 << 16)).unwrap();
    tags.serve("tags", Access::SameUser).unwrap();
    let mut datagrams = DatagramReceiver::new(&server, 8192).unwrap();
    datagrams.serve("datagrams", Access::SameUser).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut sender = StreamSender::connect(&client, &name("records"), LIMIT).unwrap();
            for (i, length) in lengths().enumerate() {
                sender.send(&pattern(length, i as u64), LIMIT).unwrap();
            }
            sender.flush(LIMIT).unwrap();
            let mut sender = TaggedSender::connect(&client, &name("tags"), LIMIT).unwrap();
            for i in 0..64u32 {
                let length = if i % 2 == 0 { 64 } else { 4000 };
                let bytes = vec![i as u8; length];
                sender.send(u64::from(i % 16) * 4096, &bytes, i, LIMIT).unwrap();
            }
            let mut sender = DatagramSender::connect(&client, &name("datagrams"), LIMIT).unwrap();
            let mut answers = DatagramReceiver::new(&client, 8192).unwrap();
            let reply = answers.reply_ticket();
            for i in 0..64u64 {
                let bytes = pattern(if i % 2 == 0 { 64 } else { 4000 }, i);
                sender.send(&bytes, 0, Some(&reply), LIMIT).unwrap();
                let answer = answers.receive(LIMIT).unwrap();
                answers.with_bytes(&answer, |found| assert_eq!(found, bytes)).unwrap();
                answers.ready().unwrap();
            }
        });
        for (i, length) in lengths().enumerate() {
            assert_eq!(*records.receive(LIMIT).unwrap(), *pattern(length, i as u64), "record {i}");
        }
        // Tags may come in another order, and each comes once.
        let mut found: Vec<u32> = (0..64).map(|_| tags.get_tag(LIMIT).unwrap().tag).collect();
        found.sort_unstable();
        assert_eq!(found, (0..64).collect::<Vec<_>>());
        for _ in 0..64 {
            let datagram = datagrams.receive(LIMIT).unwrap();
            let bytes = datagrams.with_bytes(&datagram, <[u8]>::to_vec).unwrap();
            datagrams.ready().unwrap();
            datagrams.reply(&datagram, &bytes, LIMIT).unwrap();
        }
    });

    let listener = ByteListener::new(&server, ByteConfig::default()).unwrap();
    listener.serve("bytes", Access::SameUser).unwrap();
    let all = pattern(3_000_000, 9);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut stream = listener.accept(LIMIT).unwrap();
            let mut bytes = Vec::new();
            stream.read_to_end(&mut bytes).unwrap();
            stream.write_all(&bytes).unwrap();
        });
        let mut stream = ByteStream::connect(&client, &name("bytes"), LIMIT).unwrap();
        stream.write_all(&all).unwrap();
        stream.shut(LIMIT).unwrap();
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        assert!(bytes == all, "{} bytes came", bytes.len());
    });

    const ROUNDS: u64 = 20;
    let config = GroupConfig { scatter_bytes: 5000, ..GroupConfig::new(2, 50_000) };
    let mut group = Group::new(&server, config).unwrap();
    group.serve("parts", Access::SameUser).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut member =
                    GroupMember::connect(&client, &name("parts"), 5000, LIMIT).unwrap();
                let number = u64::from(member.number());
                for round in 0..ROUNDS {
                    member.send(&pattern(50_000, round * 2 + number), LIMIT).unwrap();
                    let answer = member.receive(LIMIT).unwrap();
                    assert_eq!(answer, pattern(5000, round));
                }
            });
        }
        for round in 0..ROUNDS {
            let parts = group.gather(LIMIT).unwrap();
            for (member, part) in parts.iter() {
                assert!(
                    part == pattern(50_000, round * 2 + u64::from(member)),
                    "{round}, {member}"
                );
            }
            drop(parts);
            group.broadcast(&pattern(5000, round), LIMIT).unwrap();
            group.next_round();
        }
    });

    const SAMPLES: u32 = 500;
    let config = PublishConfig { short_bytes_max: 2032, history: 64, ..PublishConfig::default() };
    let publisher = Publisher::new(&server, config).unwrap();
    publisher.serve("samples", Access::SameUser).unwrap();
    let mut subscriber =
        Subscriber::connect(&client, &name("samples"), SubscribeConfig::default(), LIMIT).unwrap();
    let sample =
        |i: u32| [&i.to_le_bytes()[..], &pattern(i as usize * 37 % 1990, i.into())].concat();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for i in 0..SAMPLES {
                publisher.publish(&sample(i), LIMIT).unwrap();
            }
        });
        // What is published before it is ready to be served is kept as far as there is history.
        let mut last = None;
        while last != Some(SAMPLES - 1) {
            let bytes = subscriber.receive(LIMIT).unwrap().to_vec().unwrap();
            let number = u32::from_le_bytes(bytes[..4].try_into().unwrap());
            assert!(last < Some(number), "{number} behind {last:?}");
            assert!(bytes == sample(number), "{number}");
            last = Some(number);
        }
    });
    let used = cables[1].passed();
    assert_eq!(used > 0, rails == "2", "{used} bytes over the second rail");
}

#[test]
fn each_protocol_keeps_its_promises_with_one_rail() {
    protocols("1");
}

#[test]
fn each_protocol_keeps_its_promises_with_two_rails() {
    protocols("2");
}

// Both ends of each link stand in one table then, and know the same secret.
#[test]
fn a_node_that_is_connected_to_itself_has_each_rail_at_the_right_end() {
    const LINKS: usize = 16;
    let dir = Dir::new("own", &[TIMEOUT, ("RAILS", "2")]);
    let manager = Manager::with_config(listening(secret(&dir))).unwrap();
    manager.start_progress().unwrap();
    let server = Server::new(&manager, ServerConfig::default()).unwrap();
    server.serve("own", Access::SameUser).unwrap();
    let name = format!("hamlyn://{}/own", manager.listens_at().unwrap());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..LINKS * 8 {
                let request = server.receive(LIMIT).unwrap();
                let bytes = request.to_vec();
                request.reply(&bytes, LIMIT).unwrap();
            }
        });
        let clients = [(); LINKS].map(|()| Client::connect(&manager, &name, LIMIT).unwrap());
        for (i, client) in clients.iter().enumerate() {
            until("both rails live", || lives(&client.connection().explain(&manager), 2));
            for round in 0..8 {
                let bytes = pattern(20_000, (i * 8 + round) as u64);
                assert_eq!(*client.call(&bytes, LIMIT).unwrap(), *bytes, "{i}, {round}");
            }
            let path = client.connection().explain(&manager);
            assert!(lives(&path, 2) && !path.contains(" left "), "{path}");
        }
    });
}

#[test]
fn what_was_sent_arrives_over_two_rails_though_its_sender_leaves_at_once() {
    let (_hosts, server, client, _cables) = managers("2", &["records"]);
    let mut records = StreamReceiver::new(&server, StreamConfig::default()).unwrap();
    records.serve("records", Access::SameUser).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut sender = StreamSender::connect(&client, "hamlyn://records", LIMIT).unwrap();
            for i in 0..64u64 {
                sender.send(&pattern(50_000, i), LIMIT).unwrap();
            }
            sender.flush(LIMIT).unwrap();
            drop(sender);
            drop(client);
        });
        for i in 0..64u64 {
            std::thread::sleep(Duration::from_millis(1));
            assert!(*records.receive(LIMIT).unwrap() == *pattern(50_000, i), "{i}");
        }
    });
}

// ---- what a long message keeps in front of a short one

/// As docs/two-hosts.md and the settings say: as much, and the link's ring.
const AHEAD_BYTES: u64 = 288 << 10;

/// Bytes that have left a socket of this process which is connected to `at`, and that the other end has
/// no room for or has not acknowledged: the network's, like those that wait at the other end.
fn left_and_not_there(at: SocketAddr) -> u64 {
    // linux/sockios.h: what is not acknowledged, and of that what has not left.
    const SIOCOUTQ: libc::Ioctl = 0x5411;
    const SIOCOUTQNSD: libc::Ioctl = 0x894b;
    let is_meant = |fd: &i32| {
        // SAFETY: asked of a number that may be closed meanwhile; the kernel then says so.
        let fd = unsafe { std::os::fd::BorrowedFd::borrow_raw(*fd) };
        let peer = rustix::net::getpeername(fd).ok().flatten();
        peer.and_then(|peer| SocketAddr::try_from(peer).ok()) == Some(at)
    };
    let fds = std::fs::read_dir("/proc/self/fd").unwrap();
    let fds = fds.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let fd = { fds }.find(is_meant).expect("a socket to the cable");
    let bytes = |what| {
        let mut bytes: libc::c_int = 0;
        // SAFETY: both of these write an int.
        assert_eq!(unsafe { libc::ioctl(fd, what, &mut bytes) }, 0);
        bytes as u64
    };
    bytes(SIOCOUTQ).saturating_sub(bytes(SIOCOUTQNSD))
}

#[test]
fn a_long_message_keeps_no_more_in_front_of_a_short_one_than_is_said() {
    const LONG: usize = 16 << 20;
    let (there_dir, here_dir) = (Dir::new("there", &[]), Dir::new("here", &[]));
    let mut there = Node::with_config(listening(secret(&there_dir))).unwrap();
    let area = there.message_area(LONG).unwrap();
    let queue = there.notification_queue(4).unwrap();
    let slot = there.slot(SlotConfig::new(area, queue).metadata(2)).unwrap();
    let long = there.ticket(slot, MetadataIndex(0)).unwrap();
    let short = there.ticket(slot, MetadataIndex(1)).unwrap();
    there.serve("x", Access::SameUser, Accept::Automatic(Vec::new())).unwrap();
    let at = there.listens_at().unwrap();
    let cable = Cable::to(move || at, 1);
    let mut here = Node::with_config(secret(&here_dir)).unwrap();
    here.connect(&format!("hamlyn://{}/x", cable.at), b"", LIMIT).unwrap();
    until("they have met", || {
        here.poll().unwrap();
        there.poll().unwrap();
        matches!(there.next_event(), Some(Event::Connected { .. }))
    });
    let before = cable.passed();
    cable.inside.allowed.store(before, Ordering::Relaxed);
    let first = here.primary();
    let tag = here.send_buffer(first, LONG).unwrap();
    let _ = here
        .post_send(first, &long, &[Piece { tag, offset: 0, length: LONG as u64 }], b"")
        .unwrap();
    let second = here.terminus();
    let tag = here.send_buffer(second, 8).unwrap();
    // As much as there is room for on the way.
    let waiting = || {
        let live = cable.inside.live.lock().unwrap();
        rustix::io::ioctl_fionread(&live[0]).unwrap() + left_and_not_there(cable.at)
    };
    let packets =
        |node: &Node| node.counters().iter().find(|row| row.0 == "packets_sent").unwrap().1;
    let (mut quiet, mut last) = (0, (0, 0));
    until("nothing more leaves", || {
        here.poll().unwrap();
        let now = (packets(&here), waiting());
        quiet = if now == last { quiet + 1 } else { 0 };
        last = now;
        quiet > 50
    });
    let on_the_way = waiting();
    let written = last.0 * 8000;
    assert!(written > on_the_way, "the way is full: {written} of {on_the_way}");
    let _ = here.post_send(second, &short, &[Piece { tag, offset: 0, length: 8 }], b"").unwrap();
    let mut has_come = false;
    until("it has come", || {
        cable.inside.allowed.fetch_add(4096, Ordering::Relaxed);
        let allowed = cable.inside.allowed.load(Ordering::Relaxed);
        let mut has_passed = false;
        // What has passed is taken before more may pass.
        while !has_passed && !has_come {
            has_passed = cable.passed() >= allowed;
            here.poll().unwrap();
            there.poll().unwrap();
            while let Some(notification) = there.pop(queue).unwrap() {
                assert_eq!(
                    notification.index,
                    MetadataIndex(1),
                    "the long one is not complete yet"
                );
                has_come = true;
            }
        }
        has_come
    });
    let ahead = cable.passed() - before - on_the_way;
    let ring = u64::from(here_dir.config().ring_bytes);
    eprintln!("{ahead} bytes were in front of it, beside {on_the_way} on the way");
    assert!(ahead <= ring + AHEAD_BYTES, "{ahead} bytes were in front of it");
}
