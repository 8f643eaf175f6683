//! End points attacked by another user's process, or by one that speaks a protocol by hand: the
//! attacker harms only itself. Each of these attacks succeeded once.
#![cfg(feature = "os")]

#[path = "control_help/attackers.rs"]
mod attackers;
mod control_help;
mod support;

use attackers::*;
use control_help::{hello_of, link_with, pass_with, receive, say as speak, send, stranger};
use hamlyn::control::LinkFeatures;
use hamlyn::control::frame::{Frame, Hello, Memory, MemoryWord, Purpose};
use hamlyn::os::aperture::{ExportLimits, Ledger, Owned};
use hamlyn::protocol::*;
use hamlyn::{
    Accept, Access, ApertureAccess, Config, Flags, Key, LinkId, MetadataIndex, Node, Share,
    SlotConfig, SlotIndex, Ticket,
};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use support::*;

fn manager(dir: &Dir) -> Manager {
    Manager::with_config(dir.config()).unwrap()
}

/// One that answers while its program does something else.
fn answering(dir: &Dir) -> Manager {
    answering_of(dir.config())
}

fn answering_of(config: Config) -> Manager {
    let manager = Manager::with_config(config).unwrap();
    manager.start_progress().unwrap();
    manager
}

fn count(manager: &Manager, name: &str) -> u64 {
    manager.lock().counters().iter().find(|row| row.0 == name).unwrap().1
}

fn lent(node: &mut Node, bytes: usize, credit: u32) -> Ticket {
    let area = node.message_area(bytes).unwrap();
    let queue = node.notification_queue(credit.max(1)).unwrap();
    let slot = node.slot(SlotConfig::new(area, queue).credit(credit)).unwrap();
    node.fast_ticket(slot).unwrap()
}

const STREAM: u8 = Kind::STREAM.number() as u8;
const DATAGRAM: u8 = Kind::DATAGRAM.number() as u8;
const CALL: u8 = Kind::CALL.number() as u8;
const TICKET: usize = 44;

/// A sender that was grown with these words, and does as it likes then.
struct Liar {
    node: Node,
    link: LinkId,
    answer: Vec<u8>,
}

fn greeting(kind: u8, body: &[u8]) -> Vec<u8> {
    [b"HGr2", &[kind, 0, 0, 0][..], &[0; 16], body].concat()
}

impl Liar {
    fn grow(config: Config, name: &str, kind: u8, body: impl FnOnce(&mut Node) -> Vec<u8>) -> Self {
        let mut node = Node::with_config(config).unwrap();
        let body = body(&mut node);
        let link = node.connect(name, &greeting(kind, &body), Some(LONG)).unwrap();
        let answer = node.greeting(link).unwrap()[8..].to_vec();
        Self { node, link, answer }
    }

    fn ticket_at(&self, at: usize) -> Ticket {
        Ticket::from_bytes(&self.answer[at..at + TICKET]).unwrap()
    }
}

/// Not a test: what attackers and victims do. Arguments: directory, user, and more.
#[test]
fn role() {
    let Some(role) = Role::of_this_process() else { return };
    let at = socket_of(&PathBuf::from(&role.args[0]));
    match role.name.as_str() {
        // As many clients as it may have.
        "all-places" => {
            become_user(&role);
            let here = Manager::with_config(role.config()).unwrap();
            let mut clients = Vec::new();
            let why = loop {
                match Client::connect(&here, "0@calls", LIMIT) {
                    Ok(client) => clients.push(client),
                    Err(e) => break e,
                }
            };
            say(&format!("{} clients, then: {why}", clients.len()));
            role.wait_for("end");
        }
        // Says hello to two end points, and nothing more: as often as they are large.
        "hellos" => {
            become_user(&role);
            let mut node = Node::with_config(role.config()).unwrap();
            let identity = hamlyn::control::Identity::new().unwrap();
            let ticket = lent(&mut node, 64 * 256, 64);
            let ticket = Ticket { destination: identity.node(), ..ticket }.to_bytes();
            let call = [&ticket[..], &64u32.to_le_bytes(), &64u32.to_le_bytes()].concat();
            let stream = [&ticket[..], &[0]].concat();
            let say_hello = |name: &str, kind, body: &[u8]| {
                let fd = stranger(&at.with_file_name(name));
                let greeting = greeting(kind, body);
                let credential = identity.credential();
                send(&fd, &Frame::Hello(Hello { greeting, credential, ..hello_of(Purpose::Link) }));
                fd
            };
            let mut held = vec![say_hello("stream", STREAM, &stream)];
            held.extend((0..8).map(|_| say_hello("calls", CALL, &call)));
            // One of each has its answer, and with it its place.
            for half in &held[..2] {
                assert!(matches!(receive(half), Some((Frame::Welcome(_), _))));
            }
            say("held");
            role.wait_for("end");
        }
        // All at once.
        "at-once" => {
            become_user(&role);
            let here = answering_of(role.config());
            std::thread::scope(|scope| {
                let connect = || Client::connect(&here, "0@calls", LIMIT).unwrap();
                let all: Vec<_> = (0..role.number(2)).map(|_| scope.spawn(connect)).collect();
                let all: Vec<_> = all.into_iter().map(|client| client.join().unwrap()).collect();
                say(&format!("{} clients", all.len()));
                role.wait_for("end");
            });
        }
        // Exports and revokes 64 apertures on each of 20 links.
        "apertures" => {
            become_user(&role);
            let features = LinkFeatures::all().bits();
            let hello = || Hello { features, ..hello_of(Purpose::Link) };
            let links: Vec<_> = (0..20).map(|_| link_with(&at, hello())).collect();
            say("linked");
            role.wait_for("go");
            for link in &links {
                for number in (1..129).step_by(2) {
                    let (memory, access) = (Memory::Aperture(number), ApertureAccess::ReadWrite);
                    speak(&link.fd, memory, MemoryWord::Offer { bytes: 4096, access });
                    let Some((Frame::Memory { word: MemoryWord::Take { .. }, .. }, _)) =
                        receive(&link.fd)
                    else {
                        break;
                    };
                    let (ledger, limits) =
                        (Arc::new(Ledger::default()), ExportLimits { all: 1 << 20, user: 1 << 20 });
                    let bytes = ledger.reserve(4096, None, limits).unwrap();
                    let (_owned, file) = Owned::make(access, bytes).unwrap();
                    pass_with(&link.fd, memory, &[&file]).unwrap();
                    let Some((Frame::Memory { word: MemoryWord::Held, .. }, _)) = receive(&link.fd)
                    else {
                        break;
                    };
                    send(&link.fd, &Frame::ApertureRevoked { number });
                }
            }
            say("revoked");
            role.wait_for("end");
        }
        // An honest sender, which dies.
        "dies" => {
            let here = Manager::with_config(role.config()).unwrap();
            let mut sender = StreamSender::connect(&here, "stream", LIMIT).unwrap();
            sender.send(b"one", LIMIT).unwrap();
            sender.flush(LIMIT).unwrap();
            say("sent");
            role.wait_for("die");
            die();
        }
        other => panic!("{other}"),
    }
}

/// Messages of a peer that had a stream's keys and did not join hold no room in the receiver's
/// queue.
#[test]
fn records_of_a_sender_arrive_whatever_one_that_never_joined_has_sent() {
    let dir = Dir::new("never-joined", &[]);
    let there = answering(&dir);
    let mut receiver = StreamReceiver::new(&there, StreamConfig::default()).unwrap();
    receiver.serve("stream", Access::SameUser).unwrap();
    let door = DatagramReceiver::new(&there, 64).unwrap();
    door.serve("door", Access::SameUser).unwrap();
    let mut liar = Liar::grow(dir.config(), "door", DATAGRAM, |_| Vec::new());
    let mut node = Node::with_config(dir.config()).unwrap();
    let identity = hamlyn::control::Identity::new().unwrap();
    let grants = Ticket { destination: identity.node(), ..lent(&mut node, 16 * 256 + 8, 0) };
    let greeting = greeting(STREAM, &[&grants.to_bytes()[..], &[0]].concat());
    let hello = Hello { greeting, credential: identity.credential(), ..hello_of(Purpose::Link) };
    let half = stranger(&dir.path.join("stream"));
    send(&half, &Frame::Hello(hello));
    let Some((Frame::Welcome(welcome), _)) = receive(&half) else { panic!("no welcome") };
    // It sends over the link that it has.
    liar.answer = welcome.greeting[8..].to_vec();
    let (ask, places) = (liar.ticket_at(12), liar.ticket_at(12 + TICKET));
    let lanes = liar.answer[12 + 2 * TICKET..].chunks_exact(12).map(|lane| Ticket {
        slot: SlotIndex(u32::from_le_bytes(lane[..4].try_into().unwrap())),
        key: Key(u64::from_le_bytes(lane[4..].try_into().unwrap())),
        metadata_index: MetadataIndex(0),
        base: 0,
        bound: 64 << 10,
        flags: Flags::NOTIFY | Flags::WAKE,
        share: Share::WHOLE,
        ..ask
    });
    let lanes: Vec<Ticket> = lanes.collect();
    let before = count(&there, "packets_received");
    for _ in 0..64 {
        liar.node.try_send_fast_over(liar.link, &places, b"forged", 6).unwrap();
    }
    for lane in &lanes {
        liar.node.send_over(liar.link, lane, b"forged", &6u32.to_le_bytes(), LIMIT).unwrap();
    }
    let all = before + 64 + lanes.len() as u64;
    until("all of it is there", || count(&there, "packets_received") == all);
    drop(half);
    let here = manager(&dir);
    let mut sender = None;
    until("an honest sender joins", || {
        sender = StreamSender::connect(&here, "stream", LIMIT).ok();
        sender.is_some()
    });
    let mut sender = sender.unwrap();
    let before = count(&there, "packets_received");
    sender.send(b"honest", LIMIT).unwrap();
    sender.flush(LIMIT).unwrap();
    // Taken while the receiver's program is busy with something else.
    until("it is there", || {
        count(&there, "packets_received") > before || count(&there, "refused_no_credit") > 0
    });
    assert_eq!(count(&there, "refused_no_credit"), 0);
    let record = receiver.receive(LIMIT).unwrap();
    assert_eq!(record[..], *b"honest");
}

#[test]
fn one_user_leaves_places_of_a_server_to_others() {
    let Some(dir) = shared("all-places") else { return };
    let there = answering(&dir);
    let config = ServerConfig { clients_max: 16, ..ServerConfig::default() };
    let server = Server::new(&there, config).unwrap();
    server.serve("calls", Access::Anyone).unwrap();
    let mut peer = Peer::start("all-places", &dir, &format!("{} {ATTACKER}", dir.path.display()));
    let said = peer.says();
    assert!(said.contains("14 clients") && said.contains("the last 2 are for users"), "{said}");
    let mut other =
        Peer::start("all-places", &dir, &format!("{} {}", dir.path.display(), ATTACKER + 1));
    let said = other.says();
    assert!(said.contains("1 clients"), "{said}");
    // The process's own user has what is left.
    let here = manager(&dir);
    let client = Client::connect(&here, "0@calls", LIMIT).unwrap();
    let error = Client::connect(&here, "0@calls", LIMIT).err().unwrap().to_string();
    assert!(error.contains("16 clients, as many as it may"), "{error}");
    drop(client);
    for mut peer in [peer, other] {
        peer.tell("end");
        peer.end();
    }
}

/// A place is had by words alone, and kept by paying.
#[test]
fn words_hold_two_places_of_a_server_and_the_place_of_a_stream_for_a_moment() {
    let Some(dir) = shared("words") else { return };
    let there = answering(&dir);
    let config = ServerConfig { clients_max: 8, ..ServerConfig::default() };
    let server = Server::new(&there, config).unwrap();
    server.serve("calls", Access::Anyone).unwrap();
    let mut receiver = StreamReceiver::new(&there, StreamConfig::default()).unwrap();
    receiver.serve("stream", Access::Anyone).unwrap();
    let mut peer = attacker("hellos", &dir, ATTACKER);
    peer.expect("held");
    let mut others =
        Peer::start("at-once", &dir, &format!("{} {} 4", dir.path.display(), ATTACKER + 1));
    others.expect("4 clients");
    // In time, or after a moment: within what its hello has.
    let here = manager(&dir);
    let mut sender = StreamSender::connect(&here, "0@stream", LIMIT).unwrap();
    sender.send(b"honest", LIMIT).unwrap();
    sender.flush(LIMIT).unwrap();
    let record = receiver.receive(LIMIT).unwrap();
    assert_eq!(record[..], *b"honest");
    for mut peer in [peer, others] {
        peer.tell("end");
        peer.end();
    }
}

#[test]
fn the_clients_of_one_user_that_connect_at_once_have_their_places() {
    let Some(dir) = shared("at-once") else { return };
    let there = answering(&dir);
    let config = ServerConfig { clients_max: 80, ..ServerConfig::default() };
    let server = Server::new(&there, config).unwrap();
    server.serve("calls", Access::Anyone).unwrap();
    let mut peer = Peer::start("at-once", &dir, &format!("{} {ATTACKER} 64", dir.path.display()));
    peer.expect("64 clients");
    peer.tell("end");
    peer.end();
}

/// The loop of the README's first service, and a client that never looks at its ring.
#[test]
fn a_client_that_takes_no_replies_holds_up_no_other() {
    let dir = Dir::new("no-replies", &[]);
    // The smallest ring, which is the server's to choose: eight lines.
    let there = Manager::with_config(dir.config_with(&[("RING_BYTES", "512")])).unwrap();
    let server = Server::new(&there, ServerConfig::default()).unwrap();
    server.serve("shout", Access::SameUser).unwrap();
    std::thread::spawn(move || {
        let _there = there;
        while let Ok(request) = server.receive(None) {
            let reply = request.to_ascii_uppercase();
            let _ = request.reply(&reply, None);
        }
    });
    let here = manager(&dir);
    let client = Client::connect(&here, "shout", LIMIT).unwrap();
    assert_eq!(&*client.call(b"hello", LIMIT).unwrap(), b"HELLO");
    let mut liar = Liar::grow(dir.config(), "shout", CALL, |node| {
        let ticket = lent(node, 64 * 64, 64);
        [&ticket.to_bytes()[..], &64u32.to_le_bytes(), &64u32.to_le_bytes()].concat()
    });
    let blocks = liar.ticket_at(0);
    // Four bytes for each of its calls.
    for call in 0..64 {
        let word = call | 4 << 20;
        let sent =
            |liar: &mut Liar| liar.node.try_send_fast_over(liar.link, &blocks, b"word", word);
        until("the request has left", || sent(&mut liar).is_ok());
        assert_eq!(&*client.call(b"hello", LIMIT).unwrap(), b"HELLO");
    }
    // One that begins to take them gets them all: nothing was lost.
    let replies = |liar: &Liar| {
        let counters = liar.node.counters();
        counters.iter().find(|row| row.0 == "messages_received").unwrap().1
    };
    until("it has its replies", || {
        liar.node.poll().unwrap();
        // The server's program goes on, too.
        client.call(b"hello", LIMIT).unwrap();
        replies(&liar) == 64
    });
}

/// The place for its reply is taken with the request, and free when the reply has left.
#[test]
fn a_client_whose_ring_is_full_is_owed_one_reply_a_call_and_sent_away_if_it_asks_for_more() {
    let dir = Dir::new("owed-one", &[]);
    // The smallest ring, which is the server's to choose: eight lines, and a reply needs two.
    let there = Manager::with_config(dir.config_with(&[("RING_BYTES", "512")])).unwrap();
    let server = Arc::new(Server::new(&there, ServerConfig::default()).unwrap());
    server.serve("shout", Access::SameUser).unwrap();
    let answers = server.clone();
    std::thread::spawn(move || {
        while let Ok(request) = answers.receive(None) {
            let _ = match request.is_empty() {
                true => request.fail(400, "nothing to shout", None),
                false => request.reply(&[7; 64], None),
            };
        }
    });
    let here = manager(&dir);
    let client = Client::connect(&here, "shout", LIMIT).unwrap();
    const CALLS: u32 = 16;
    let mut liar = Liar::grow(dir.config(), "shout", CALL, |node| {
        let ticket = lent(node, CALLS as usize * 64, CALLS);
        [&ticket.to_bytes()[..], &64u32.to_le_bytes(), &CALLS.to_le_bytes()].concat()
    });
    let blocks = liar.ticket_at(0);
    let mut ask = |call: u32, length: u32| {
        let (word, data) = (call | length << 20, &b"word"[..length as usize]);
        until("the request has left", || {
            liar.node.try_send_fast_over(liar.link, &blocks, data, word).is_ok()
        });
        assert_eq!(client.call(b"hello", LIMIT).unwrap().len(), 64);
    };
    // As many as it may have, and it takes no turn.
    (0..CALLS).for_each(|call| ask(call, 4));
    assert_eq!((server.misbehaved(), server.clients()), (0, 2));
    // Any call whose reply has not left, and those of the last have not.
    ask(CALLS - 1, 4);
    until("it was sent away", || {
        client.call(b"hello", LIMIT).unwrap();
        (server.misbehaved(), server.clients()) == (1, 1)
    });
}

/// Events caused by strangers push out none that the program has to know.
#[test]
fn the_death_of_a_peer_is_told_whatever_strangers_make_happen_meanwhile() {
    let Some(dir) = shared("pushed-out") else { return };
    let there = manager(&dir);
    there.lock().serve("x", Access::Anyone, Accept::Automatic(vec![])).unwrap();
    let mut receiver = StreamReceiver::new(&there, StreamConfig::default()).unwrap();
    receiver.serve("stream", Access::SameUser).unwrap();
    let mut honest = Peer::start("dies", &dir, &dir.path.display().to_string());
    assert_eq!(receiver.receive(LIMIT).unwrap()[..], *b"one");
    honest.expect("sent");
    let user = |i| format!("{} {}", dir.path.display(), ATTACKER + i);
    let mut peers: Vec<_> = (0..2).map(|i| Peer::start("apertures", &dir, &user(i))).collect();
    for peer in &mut peers {
        peer.expect("linked");
    }
    there.poll().unwrap();
    while there.next_event().is_some() {}
    // From here on the program is busy with something else.
    honest.tell("die");
    honest.ends_killed();
    for peer in &mut peers {
        peer.tell("go");
    }
    for peer in &mut peers {
        peer.expect("revoked");
    }
    // It is back, and waits for the next record of its sender, which died long ago.
    let told = receiver.receive(LIMIT);
    assert!(matches!(told, Err(ReceiveError::Ended(_))), "{:?}", told.err());
    for mut peer in peers {
        peer.tell("end");
        peer.end();
    }
}

#[test]
fn the_long_requests_of_one_user_have_one_bound_together() {
    let dir = Dir::new("long-requests", &[]);
    let (there, here, also) = (answering(&dir), manager(&dir), manager(&dir));
    let config =
        ServerConfig { request_bytes_max: 1 << 20, long_bytes_max: 1 << 20, ..Default::default() };
    let server = Server::new(&there, config).unwrap();
    server.serve("calls", Access::SameUser).unwrap();
    let one = Client::connect(&here, "calls", LIMIT).unwrap();
    let other = Client::connect(&also, "calls", LIMIT).unwrap();
    let request = vec![7; 1 << 20];
    // The server's program hears of what is announced as it receives.
    let began = |client: &Client, limit: Duration| {
        std::thread::scope(|scope| {
            let starting = scope.spawn(|| client.start(&request, Some(limit)));
            let mut received = None;
            while !starting.is_finished() || received.is_none() {
                if let Ok(request) = server.receive(Some(Duration::from_millis(5))) {
                    received = Some(request);
                }
                if starting.is_finished() && limit < LONG {
                    break;
                }
            }
            (starting.join().unwrap(), received)
        })
    };
    let (call, held) = began(&one, LONG);
    let (call, held) = (call.unwrap(), held.unwrap());
    let (waits, received) = began(&other, Duration::from_millis(300));
    assert!(matches!(waits, Err(CallError::TimedOut)), "{waits:?}");
    assert!(received.is_none());
    // Short ones go on.
    let short = other.start(b"short", LIMIT).unwrap();
    server.receive(LIMIT).unwrap().reply(b"reply", LIMIT).unwrap();
    assert_eq!(&*other.finish(short, LIMIT).unwrap(), b"reply");
    // The other's goes on as soon as this one's is replied to.
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| other.call(&request, LIMIT));
        held.reply(b"done", LIMIT).unwrap();
        let second = server.receive(LIMIT).unwrap();
        assert_eq!(second.len(), 1 << 20);
        second.reply(b"done, too", LIMIT).unwrap();
        assert_eq!(&*waiting.join().unwrap().unwrap(), b"done, too");
    });
    assert_eq!(&*one.finish(call, LIMIT).unwrap(), b"done");
}

/// `user@name` is the name that others use, and its owner may, too.
#[test]
fn a_service_of_ones_own_user_answers_and_its_name_goes_with_it() {
    let dir = Dir::new("own-name", &[]);
    let there = answering(&dir);
    // SAFETY: a system call without arguments.
    let name = format!("{}@calls", unsafe { libc::geteuid() });
    let server = Server::new(&there, ServerConfig::default()).unwrap();
    server.serve(&name, Access::SameUser).unwrap();
    let here = manager(&dir);
    for name in [&*name, "calls"] {
        Client::connect(&here, name, LIMIT).unwrap();
    }
    drop(server);
    // As long as a process may still serve it.
    let error = Client::connect(&here, "calls", Some(Duration::from_secs(1))).err().unwrap();
    assert!(matches!(error, GrowError::Connect(_)), "{error}");
}
