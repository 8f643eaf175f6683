//! Both ends of a connection between hosts: an honest one, and one that has the secret and sends
//! frames made from bytes. By chance under `cargo test`, by search under a fuzzer (`fuzz/`).

use hamlyn::control::hosts::hello::{self, Answer, HelloIdentity, VERSION, Wants};
use hamlyn::control::hosts::keys::{Keys, TlsEnd};
use hamlyn::control::hosts::meeting::{Meeting, MeetingStep, OwnData};
use hamlyn::control::hosts::said::{RailsSecret, Said};
use hamlyn::control::{Accept, Access, Identity};
use hamlyn::node::{CloseReason, Event};
use hamlyn::transport::channel::Channel;
use hamlyn::transport::frames::{HEADER_BYTES, HostFrame, ReadFrame, put, read};
use hamlyn::transport::path::Path;
use hamlyn::transport::rails::numbers::{RailHead, RailKind};
use hamlyn::wire::{Destination, Flags, Header, Key, MetadataIndex, SlotIndex};
use hamlyn::{Config, Node};
use std::cell::RefCell;
use std::fs;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// The state that outlives one case: making keys takes time.
struct World {
    dir: PathBuf,
    /// Of the honest end, and of the other.
    own: OwnData,
    other: OwnData,
    listener: TcpListener,
    node: Node,
    at: SocketAddr,
}

impl World {
    fn new() -> Self {
        let name = format!("hamlyn-ends-{}-{:?}", std::process::id(), std::thread::current().id());
        let dir = std::env::temp_dir().join(name);
        fs::DirBuilder::new().mode(0o700).create(&dir).unwrap();
        let secret = dir.join("secret");
        fs::write(&secret, "7f".repeat(32)).unwrap();
        fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
        let config = Config::default().dir(dir.clone()).shared_dir(dir.join("shared"));
        let config = config.secret(secret).listen("127.0.0.1:0".parse::<SocketAddr>().unwrap());
        let config = config.rails(u32::from(RAILS)).local(hamlyn::config::Local::Tls);
        let own = || {
            let (keys, identity) = (Keys::load(&config).unwrap(), Identity::new().unwrap());
            OwnData { keys, identity, packet_bytes: 4096 }
        };
        let (own, other) = (own(), own());
        let mut node = Node::with_config(config).unwrap();
        node.serve("x", Access::SameUser, Accept::Automatic(Vec::new())).unwrap();
        let at = node.listens_at().unwrap();
        Self { dir, own, other, listener: TcpListener::bind("127.0.0.1:0").unwrap(), node, at }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

fn with_world<R>(case: impl FnOnce(&mut World) -> R) -> R {
    thread_local!(static WORLD: RefCell<Option<World>> = const { RefCell::new(None) });
    WORLD.with_borrow_mut(|world| case(world.get_or_insert_with(World::new)))
}

/// Until there is something; a case that waits without end is a failure.
fn until<R>(what: &str, mut look: impl FnMut() -> Option<R>) -> R {
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < end, "it never came to be that {what}");
        std::thread::yield_now();
    }
}

fn client(tcp: TcpStream, own: &OwnData) -> Channel {
    tcp.set_nonblocking(true).unwrap();
    let name = "127.0.0.1".try_into().unwrap();
    let tls = rustls::ClientConnection::new(own.keys.client.clone(), name).unwrap();
    Channel::new(tcp, tls.into())
}

fn server(tcp: TcpStream, own: &OwnData) -> Channel {
    tcp.set_nonblocking(true).unwrap();
    let tls = rustls::ServerConnection::new(own.keys.server.clone()).unwrap();
    Channel::new(tcp, tls.into())
}

// ---- a meeting

/// An honest end's message of its identity.
fn who(own: &OwnData, channel: &Channel, end: TlsEnd) -> HelloIdentity {
    let key = channel.key().unwrap();
    let statement =
        [b"hamlyn host 1 ".as_slice(), &[u8::from(end == TlsEnd::Client)], key.as_slice()].concat();
    let (public_key, signature) = own.identity.sign(&statement);
    HelloIdentity {
        version: VERSION,
        node: own.identity.node().0,
        public_key,
        signature: signature.to_vec(),
        proof: own.keys.proof(end, &key),
        packet_bytes: 4096,
    }
}

/// The frame in place of `honest`; whether it equals that, and whether the connection ends after
/// it.
fn said(data: &mut &[u8], honest: Vec<u8>) -> (Vec<u8>, bool, bool) {
    let mut next = || match data.split_first() {
        Some((first, rest)) => {
            *data = rest;
            *first
        }
        None => 0,
    };
    let what = next();
    let (at, by) = (usize::from(next()) << 4 | usize::from(next()) & 15, next());
    let mut bytes = honest.clone();
    let at = at % bytes.len();
    match what % 4 {
        0 => {}
        1 => bytes[at] ^= by,
        2 => bytes.truncate(at),
        _ => bytes = data[..data.len().min(usize::from(by) << 4)].to_vec(),
    }
    let is_honest = bytes == honest;
    (bytes, is_honest, what & 4 != 0 || !is_honest)
}

/// A meeting, either end of it, whose other end says at each step what the bytes make of that. Whether
/// the honest end took it for one.
pub fn meeting(data: &[u8]) -> bool {
    let Some((first, data)) = data.split_first() else { return false };
    with_world(|world| meet(world, first & 1 == 1, data))
}

fn meet(world: &mut World, tests_client: bool, mut data: &[u8]) -> bool {
    let World { own, other, listener, .. } = world;
    let from = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (to, _) = listener.accept().unwrap();
    let (mut met, mut hand) = match tests_client {
        true => (Meeting::of_client(client(from, own), "x", vec![7; 10]), server(to, other)),
        false => (Meeting::of_server(server(to, own)), client(from, other)),
    };
    until("keys are agreed on", || {
        assert!(matches!(met.turn(own), MeetingStep::Waits));
        hand.receive(1);
        hand.flush();
        // A server has said who it is by then.
        (hand.is_open() && met.channel.is_open() && (tests_client || !hand.plain().is_empty()))
            .then_some(())
    });
    let steps = match tests_client {
        true => {
            let who = hello::to_bytes(&who(other, &hand, TlsEnd::Server));
            vec![who, hello::to_bytes(&Answer::Yes(vec![9; 20]))]
        }
        false => {
            let who = who(other, &hand, TlsEnd::Client);
            vec![hello::to_bytes(&Wants { who, service: "x".into(), greeting: vec![7; 10] })]
        }
    };
    let (count, mut all_honest) = (steps.len(), true);
    for (i, honest) in steps.into_iter().enumerate() {
        let (bytes, is_honest, ends) = said(&mut data, honest);
        all_honest &= is_honest;
        hand.put(&bytes);
        if ends {
            hand.put_end();
        }
        let before = hand.received();
        let step = until("it has been heard", || {
            hand.flush();
            hand.receive(1 << 16);
            match met.turn(own) {
                // The next is said once this has been answered.
                MeetingStep::Waits if i + 1 < count && !ends && hand.received() > before => {
                    Some(None)
                }
                MeetingStep::Waits => None,
                step => Some(Some(step)),
            }
        });
        match step {
            None => continue,
            Some(MeetingStep::Link(greeting, proved)) => {
                assert!(tests_client && proved.node == other.identity.node());
                assert!(!all_honest || greeting == [9; 20]);
            }
            Some(MeetingStep::Wants(wants, proved)) => {
                assert!(!tests_client && proved.node == other.identity.node());
                assert!(!all_honest || (wants.service == "x" && wants.greeting == [7; 10]));
            }
            Some(MeetingStep::Failed(error)) => {
                assert!(!all_honest || (ends && i + 1 < count), "an honest host: {error}");
                return false;
            }
            Some(MeetingStep::Waits) => unreachable!(),
        }
        return true;
    }
    false
}

// ---- a link

/// The events expected from a host that sends these bytes, and then its end.
struct Model {
    packets: u64,
    revoked: usize,
    end: &'static str,
}

fn model(mut bytes: &[u8], packet_bytes: usize) -> Model {
    let mut model = Model { packets: 0, revoked: 0, end: "hung up" };
    loop {
        let (frame, used) = match read(bytes, packet_bytes) {
            ReadFrame::Cut(_) => return model,
            ReadFrame::Violation => return Model { end: "misbehaved", ..model },
            ReadFrame::Whole(frame, used) => (frame, used),
        };
        match frame {
            HostFrame::Packet { .. } => model.packets += 1,
            HostFrame::Stale { .. } => model.revoked += 1,
            HostFrame::Goodbye => return Model { end: "closed", ..model },
            HostFrame::SentAway { .. } => return Model { end: "expelled", ..model },
        }
        bytes = &bytes[used..];
    }
}

/// A link to a node, over which any bytes come, in pieces: complete messages are counted, and the
/// link ends once, with the right reason.
pub fn link(data: &[u8]) -> &'static str {
    let Some((piece, data)) = data.split_first() else { return "" };
    // Fewer packets than wrong keys are allowed.
    let data = &data[..data.len().min(64 << 10)];
    with_world(|world| speak(world, 1 + usize::from(*piece) * 8, data))
}

/// Packets that a node has refused.
fn refused(node: &Node) -> u64 {
    let counters = node.counters();
    counters.iter().filter(|row| row.0.starts_with("refused_")).map(|row| row.1).sum()
}

fn end_of(ends: &[CloseReason]) -> &'static str {
    match ends {
        [CloseReason::Closed] => "closed",
        [CloseReason::HungUp] => "hung up",
        [CloseReason::Expelled | CloseReason::TooSlow] => "expelled",
        [CloseReason::Misbehaved(_)] => "misbehaved",
        [CloseReason::Died] => "died",
        other => panic!("{other:?}"),
    }
}

fn speak(world: &mut World, piece: usize, data: &[u8]) -> &'static str {
    let World { other, node, at, .. } = world;
    let before = refused(node);
    let mut meeting =
        Meeting::of_client(client(TcpStream::connect(*at).unwrap(), other), "x", Vec::new());
    let packet_bytes = until("there is a link", || match meeting.turn(other) {
        MeetingStep::Waits => None,
        MeetingStep::Link(_, proved) => Some(proved.packet_bytes as usize),
        step => panic!("{step:?}"),
    });
    let hand = &mut meeting.channel;
    let (mut connected, mut revoked, mut ends) = (0, 0, Vec::new());
    let mut turn = |node: &mut Node, ends: &mut Vec<CloseReason>| {
        node.poll().unwrap();
        while let Some(event) = node.next_event() {
            match event {
                Event::Connected { .. } => connected += 1,
                Event::TicketRevoked { .. } => revoked += 1,
                Event::Closed { reason, .. } => ends.push(reason),
                other => panic!("{other:?}"),
            }
        }
    };
    for piece in data.chunks(piece) {
        hand.put(piece);
        hand.flush();
        turn(node, &mut ends);
    }
    hand.put_end();
    until("the link has ended", || {
        if hand.flush() {
            hand.is_delivered();
        }
        turn(node, &mut ends);
        (!ends.is_empty()).then_some(())
    });
    let model = model(data, packet_bytes);
    let end = end_of(&ends);
    assert_eq!((end, connected), (model.end, 1));
    assert!(revoked <= model.revoked);
    assert_eq!(refused(node) - before, model.packets, "packets that were whole");
    end
}

// ---- a link over several connections

/// Rails that the honest end takes.
const RAILS: u8 = 3;
/// Steps of one case: fewer packets than wrong keys are allowed, and fewer repeated batches than may be.
const STEPS: usize = 300;
/// Connections of one case: each costs a proof.
const JOINS: u64 = 6;

/// One batch, and the rail over which it went last.
struct Batch {
    head: RailHead,
    bytes: Vec<u8>,
    over: Option<u64>,
}

struct Rail {
    id: u64,
    place: u8,
    channel: Channel,
    /// It stalls: what is put on it waits here.
    stalled: Option<Vec<u8>>,
}

/// A host that sends batches over rails by hand.
struct Hand {
    secret: RailsSecret,
    rails: Vec<Rail>,
    next_id: u64,
    batches: Vec<Batch>,
    /// Batches of short packets.
    shorts: u64,
    packets: u64,
}

impl Hand {
    fn add(&mut self, place: u8, channel: Channel) {
        self.rails.push(Rail { id: self.next_id, place, channel, stalled: None });
        self.next_id += 1;
    }

    fn put(&mut self, rail: usize, bytes: &[u8]) {
        let rail = &mut self.rails[rail];
        match &mut rail.stalled {
            Some(waits) => waits.extend_from_slice(bytes),
            None => rail.channel.put(bytes),
        }
    }

    fn send(&mut self, rail: usize, batch: usize) {
        let id = self.rails[rail].id;
        let batch = &mut self.batches[batch];
        batch.over = Some(id);
        let bytes = [&batch.head.to_bytes()[..], &batch.bytes].concat();
        self.put(rail, &bytes);
    }

    /// One more, which is not sent yet: its number.
    fn batch(&mut self, kind: RailKind, packets: u8, with: u8) -> usize {
        let mut bytes = Vec::new();
        for _ in 0..packets {
            let header = Header {
                destination: Destination(1),
                slot: SlotIndex(2),
                metadata_index: MetadataIndex(0),
                key: Key(3),
                offset: 0,
                length: with.into(),
                delta: 0,
                metadata_len: 0,
                flags: Flags::NOTIFY,
                word: 0,
            };
            let data = vec![with; with.into()];
            put(&mut bytes, &HostFrame::Packet { header, metadata: &[], data: &data });
        }
        self.packets += u64::from(packets);
        let (number, place) = (self.batches.len() as u64, self.shorts);
        self.shorts += u64::from(kind == RailKind::Short);
        let head = RailHead { kind, length: bytes.len() as u32, number, place, had: 0, freed: 0 };
        self.batches.push(Batch { head, bytes, over: None });
        number as usize
    }

    fn stall(&mut self, rail: usize, stalls: bool) {
        let own = &mut self.rails[rail];
        if stalls {
            own.stalled.get_or_insert_default();
        } else if let Some(waits) = own.stalled.take() {
            own.channel.put(&waits);
        }
    }

    /// As an honest host does: what was sent over it is sent again over another.
    fn cut(&mut self, rail: usize) {
        let gone = self.rails.remove(rail);
        for batch in 0..self.batches.len() {
            if self.batches[batch].over == Some(gone.id) {
                self.send(batch % self.rails.len(), batch);
            }
        }
    }

    /// Whether everything has left that does not stall; what comes is let go.
    fn flush(&mut self) -> bool {
        self.rails.iter_mut().fold(true, |all, rail| {
            rail.channel.receive(1 << 16);
            let come = rail.channel.plain().len();
            rail.channel.take(come);
            all & (rail.channel.flush() || rail.channel.ended().is_some())
        })
    }
}

/// A link to a node over several connections, whose other end does what the bytes say: batches in any
/// order, over any rail, twice; rails that stall, are cut and come back; and, at the end, what no host
/// does. The link ends once, and what an honest host has sent is counted once.
pub fn rails(data: &[u8]) -> &'static str {
    with_world(|world| speak_over_rails(world, data))
}

fn joined(mut meeting: Meeting, own: &OwnData) -> Meeting {
    until("it is let in", || match meeting.turn(own) {
        MeetingStep::Waits => None,
        MeetingStep::Link(..) => Some(()),
        step => panic!("{step:?}"),
    });
    meeting
}

fn speak_over_rails(world: &mut World, mut data: &[u8]) -> &'static str {
    let World { other, node, at, .. } = world;
    let before = refused(node);
    let tcp = || TcpStream::connect(*at).unwrap();
    let mut meeting = Meeting::of_client(client(tcp(), other), "x", Vec::new());
    Said::Offer { count: RAILS, credit: 1 << 20 }.put(&mut meeting.says);
    let first = joined(meeting, other).channel;
    let secret = RailsSecret::of(&first).unwrap();
    let (rails, batches) = (Vec::new(), Vec::new());
    let mut hand = Hand { secret, rails, next_id: 0, batches, shorts: 0, packets: 0 };
    hand.add(0, first);
    let mut next = || match data.split_first() {
        Some((first, rest)) => {
            data = rest;
            Some(*first)
        }
        None => None,
    };
    let (mut ends, mut is_honest) = (Vec::new(), true);
    let turn = |node: &mut Node, ends: &mut Vec<CloseReason>| {
        node.poll().unwrap();
        while let Some(event) = node.next_event() {
            match event {
                Event::Connected { .. } => {}
                Event::Closed { reason, .. } => ends.push(reason),
                other => panic!("{other:?}"),
            }
        }
    };
    for _ in 0..STEPS {
        let (Some(what), Some(which)) = (next(), next()) else { break };
        let rail = usize::from(which) % hand.rails.len();
        let one = usize::from(which >> 2);
        match what % 16 {
            0..=3 => {
                let kind = if what % 2 == 0 { RailKind::Short } else { RailKind::Long };
                let batch = hand.batch(kind, 1 + what / 128, which);
                // Some are sent later.
                if which % 5 > 0 {
                    hand.send(rail, batch);
                }
            }
            4 | 5 => {
                let waits = hand.batches.iter().position(|batch| batch.over.is_none());
                if let Some(batch) = waits {
                    hand.send(rail, batch);
                }
            }
            6 if !hand.batches.is_empty() => hand.send(rail, one % hand.batches.len()),
            7 | 8 if hand.next_id < JOINS => {
                let place = (0..RAILS).find(|p| hand.rails.iter().all(|rail| rail.place != *p));
                if let Some(place) = place {
                    let channel = client(tcp(), other);
                    let mut meeting = Meeting::of_client(channel, "x", Vec::new());
                    meeting.joins = Some((place, hand.secret.clone()));
                    hand.add(place, joined(meeting, other).channel);
                }
            }
            9 if hand.rails.len() > 1 => hand.cut(rail),
            10 => hand.stall(rail, true),
            11 => hand.stall(rail, false),
            12 => {
                let kind = if what < 128 { RailKind::Ask } else { RailKind::Report };
                let number = which.into();
                let word = RailHead { kind, length: 0, number, place: 0, had: 0, freed: 0 };
                hand.put(rail, &word.to_bytes());
            }
            13 | 14 => {
                hand.flush();
                turn(node, &mut ends);
            }
            // Rarely, and nothing behind it.
            15 if what > 200 && which < 64 => {
                is_honest = false;
                let batch = hand.batch(RailKind::Short, 1, 7);
                let batch = &hand.batches[batch];
                let mut bytes = [&batch.head.to_bytes()[..], &batch.bytes].concat();
                let at = usize::from(next().unwrap_or(0)) % bytes.len();
                bytes[at] ^= next().unwrap_or(1).max(1);
                hand.stall(rail, false);
                hand.put(rail, &bytes);
                break;
            }
            _ => {}
        }
        assert!(ends.is_empty() || !is_honest, "{ends:?}");
    }
    let says_goodbye = hand.batches.len().is_multiple_of(2);
    for rail in 0..hand.rails.len() {
        hand.stall(rail, false);
    }
    if is_honest {
        for batch in 0..hand.batches.len() {
            if hand.batches[batch].over.is_none() {
                hand.send(batch % hand.rails.len(), batch);
            }
        }
        let last = hand.batch(RailKind::Last, 0, 0);
        if says_goodbye {
            put(&mut hand.batches[last].bytes, &HostFrame::Goodbye);
            hand.batches[last].head.length = hand.batches[last].bytes.len() as u32;
        }
        hand.send(last % hand.rails.len(), last);
    }
    let mut all_left = false;
    until("the link has ended", || {
        // One that is not honest, and is not found out, closes its connections.
        if core::mem::replace(&mut all_left, hand.flush()) && !is_honest {
            hand.rails.clear();
        }
        turn(node, &mut ends);
        (!ends.is_empty()).then_some(())
    });
    let (end, count) = (end_of(&ends), refused(node) - before);
    match is_honest {
        true => {
            let expected = if says_goodbye { "closed" } else { "hung up" };
            assert_eq!((end, count), (expected, hand.packets), "packets that were sent");
        }
        false => {
            let bytes = hand.batches.iter().map(|batch| batch.bytes.len()).sum::<usize>();
            assert!(count <= hand.packets + (bytes / HEADER_BYTES) as u64, "{count} packets");
        }
    }
    end
}
