//! Peers that speak the wire by hand, lie in each field, never read, or die: they reach their own end
//! points, and no others'.

use hamlyn::node::Node;
use hamlyn::protocol::{Connection, Kind, Manager, Protocol, Seat};
use hamlyn::{
    Access, Deposit, Flags, LinkId, NodeSendError, Peer, Receiver, RequestId, SlotConfig, SlotId,
    Ticket,
};
use hamlyn_clan::{
    Clan, Completion, Config, Endpoint, Error, OOB_BYTES, Request, Rights, Target, Trip,
};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const LIMIT: Option<Duration> = Some(Duration::from_secs(60));
const CLAN: Kind = Kind::new(*b"clan");
const MESSAGE_BYTES: usize = 40 + 4096;

// The numbers of the wire, said again: a peer has its own.
const OPEN: u32 = 1;
const OPENED: u32 = 2;
const CLOSE: u32 = 4;
const OOB: u32 = 5;
const TOUCH: u32 = 6;
const GET: u32 = 7;
const DATA: u32 = 8;
const REVOKED: u32 = 1;

fn config(dir: &Path) -> Config {
    let mut config = Config::from_env().unwrap();
    config.node = config.node.dir(dir).shared_dir(dir.join("shared"));
    config
}

fn server(config: &Config) -> Clan {
    let server = Clan::new(config.clone()).unwrap();
    server.listen("server", Access::SameUser).unwrap();
    server
}

/// Waits until a condition holds, which another thread makes true.
fn until(mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < Duration::from_secs(60), "it does not come true");
        std::thread::yield_now();
    }
}

struct Rng(u64);

impl Rng {
    fn number(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, end: u64) -> u64 {
        self.number() % end
    }

    fn one_of(&mut self, values: &[u64]) -> u64 {
        values[self.below(values.len() as u64) as usize]
    }
}

#[derive(Clone, Copy, Default)]
struct Head {
    kind: u32,
    number: u32,
    to: u64,
    from: u64,
    offset: u64,
    length: u64,
}

impl Head {
    fn bytes(self) -> Vec<u8> {
        let mut bytes = [self.kind.to_le_bytes(), self.number.to_le_bytes()].concat();
        for word in [self.to, self.from, self.offset, self.length] {
            bytes.extend(word.to_le_bytes());
        }
        bytes
    }

    fn of(bytes: &[u8]) -> Self {
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        let kind = word(0);
        let (number, kind) = ((kind >> 32) as u32, kind as u32);
        Self { kind, number, to: word(8), from: word(16), offset: word(24), length: word(32) }
    }
}

/// The messages to the hand.
struct Ear(Arc<Mutex<Vec<Vec<u8>>>>);

impl Receiver for Ear {
    fn observe(&mut self, _: &Deposit<'_>, bytes: &[u8]) {
        self.0.lock().unwrap().push(bytes.to_vec());
    }
}

fn inbox(node: &mut Node) -> (SlotId, Ticket) {
    let area = node.message_area(MESSAGE_BYTES).unwrap();
    let queue = node.notification_queue(1).unwrap();
    let slot = node.slot(SlotConfig::new(area, queue)).unwrap();
    (slot, node.fast_ticket(slot).unwrap())
}

fn hello(ticket: &Ticket) -> Vec<u8> {
    [&1u32.to_le_bytes()[..], &ticket.to_bytes()].concat()
}

/// A peer without the layer.
struct Hand {
    seat: Seat<()>,
    link: LinkId,
    to: Ticket,
    heard: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Hand {
    fn connect(config: &Config) -> Self {
        let manager = Manager::with_config(config.node.clone()).unwrap();
        let seat = manager.seat(CLAN, ());
        let heard = Arc::<Mutex<Vec<_>>>::default();
        let own = {
            let mut node = manager.lock();
            let (slot, own) = inbox(&mut node);
            node.install(slot, Ear(heard.clone())).unwrap();
            own
        };
        let (connection, answer) = seat.connect("server", &hello(&own), LIMIT).unwrap();
        let to = Ticket::from_bytes(&answer[4..]).unwrap();
        let to = to.with_flags(Flags::WAKE | Flags::IN_ORDER);
        Self { link: connection.link(), seat, to, heard }
    }

    fn try_send(&self, to: &Ticket, bytes: &[u8]) -> Result<(), NodeSendError> {
        self.seat.manager().lock().try_send_fast_over(self.link, to, bytes, 0)
    }

    /// Takes no turns meanwhile.
    fn send(&self, head: Head, body: &[u8]) {
        let bytes = [&head.bytes(), body].concat();
        until(|| match self.try_send(&self.to, &bytes) {
            Err(NodeSendError::Full) => false,
            sent => {
                sent.unwrap();
                true
            }
        });
    }

    /// The next message that fits; takes turns.
    fn hear<R>(&self, mut fits: impl FnMut(Head, &[u8]) -> Option<R>) -> R {
        let mut found = None;
        until(|| {
            self.seat.manager().poll().unwrap();
            let heard = core::mem::take(&mut *self.heard.lock().unwrap());
            for message in heard {
                found = found.take().or_else(|| fits(Head::of(&message), &message[40..]));
            }
            found.is_some()
        });
        found.unwrap()
    }

    /// An end point of its own: that of the server, which accepts it, and its name there.
    fn open(&self, server: &Clan) -> (Endpoint, u64) {
        self.send(Head { kind: OPEN, from: 77, ..Head::default() }, &[]);
        let accepted = server.accept(LIMIT).unwrap();
        let name = self.hear(|head, _| (head.kind == OPENED).then_some(head.from));
        (accepted, name)
    }

    /// Returns when the server has handled everything that was sent before.
    fn is_heard(&self, end: &Endpoint, name: u64) {
        self.send(Head { kind: OOB, to: name, ..Head::default() }, &[9; OOB_BYTES]);
        while end.receive_oob(LIMIT).unwrap() != [9; OOB_BYTES] {}
    }
}

/// The number by which a peer names a region.
fn number(handle: &[u8]) -> u32 {
    u32::from_le_bytes(handle[8..12].try_into().unwrap())
}

fn attack(seed: u64) -> u64 {
    let dir = tempfile::tempdir().unwrap();
    let mut of = config(dir.path());
    of.backlog = 16;
    let server = server(&of);
    server.start_progress().unwrap();
    let honest = Clan::new(of.clone()).unwrap();
    let here = honest.connect("server", LIMIT).unwrap();
    let there = server.accept(LIMIT).unwrap();
    let shared = server.region(1 << 16, 64).unwrap();
    let secret = server.region(1 << 16, 64).unwrap();
    let wire = secret.wire(0..1 << 16, Trip::Write, None).unwrap();
    let export = shared.export(&there, Rights::ReadWrite).unwrap();
    let aperture = here.import(&export.handle, LIMIT).unwrap();

    let hand = Hand::connect(&of);
    let (to_hand, name) = hand.open(&server);
    let readable = server.region(1 << 16, 64).unwrap();
    let untouched = readable.wire(0..1 << 16, Trip::Write, None).unwrap();
    let for_hand = number(&readable.export(&to_hand, Rights::Read).unwrap().handle);

    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // The honest peer's traffic, and the server's own.
        let (is_done, server, there) = (&is_done, &server, &there);
        scope.spawn(move || {
            let mut round = 0u64;
            while !is_done.load(Ordering::Acquire) || round < 20 {
                round += 1;
                aperture.put(0, &round.to_le_bytes(), LIMIT).unwrap();
                let mut bytes = [0; 5000];
                aperture.get(0, &mut bytes, LIMIT).unwrap();
                assert_eq!(bytes[..8], round.to_le_bytes());
                here.send_oob(&round.to_le_bytes(), LIMIT).unwrap();
                assert_eq!(there.receive_oob(LIMIT).unwrap()[..8], round.to_le_bytes());
            }
            here.check().unwrap();
        });
        scope.spawn(move || {
            let mut held = Vec::new();
            while !is_done.load(Ordering::Acquire) {
                match server.accept(Some(Duration::from_millis(1))) {
                    Ok(end) => held.push(end),
                    Err(e) => assert_eq!(e, Error::TimedOut),
                }
                if held.len() > 20 {
                    held.drain(..10);
                }
            }
        });

        let mut rng = Rng(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let mut sent = 0;
        while sent < 3000 {
            let wide = [0, 1, 40, 4096, 1 << 16, 1 << 40, u64::MAX, rng.number()];
            let ends = [0, name, name ^ 1, 1 << 32, 2 << 32 | 1, rng.number()];
            let numbers = [0, 1, 2, u64::from(for_hand), rng.number()];
            let head = Head {
                kind: rng.one_of(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, u64::MAX]) as u32,
                number: rng.one_of(&numbers) as u32,
                to: rng.one_of(&ends),
                from: rng.one_of(&ends),
                offset: rng.one_of(&wide),
                length: rng.one_of(&wide),
            };
            // Its own end point stays, or there would be nothing to lie about.
            if head.kind == CLOSE && head.to == name {
                continue;
            }
            let mut bytes = head.bytes();
            let body = rng.one_of(&[0, 0, 1, OOB_BYTES as u64, 4096]) as usize;
            bytes.resize(40 + body, rng.number() as u8);
            if rng.below(8) == 0 {
                bytes.truncate(rng.below(40) as usize);
            }
            let to = match rng.below(8) {
                0 => hand.to.at(rng.below(MESSAGE_BYTES as u64)).unwrap(),
                _ => hand.to,
            };
            match hand.try_send(&to, &bytes) {
                Err(NodeSendError::Full) => {
                    // Mostly it does not read the answers.
                    if rng.below(100) == 0 {
                        hand.seat.manager().poll().unwrap();
                    }
                    std::thread::yield_now();
                }
                Err(NodeSendError::LinkEnded(_)) => panic!("lies end no link"),
                // One that lies outside of the ticket does not even leave.
                _ => sent += 1,
            }
        }
        until(|| server.figures().late > 0);
        is_done.store(true, Ordering::Release);
    });
    to_hand.check().unwrap();
    assert!(!wire.has_fired() && !untouched.has_fired());
    for region in [&secret, &readable] {
        let mut bytes = vec![1; 1 << 16];
        region.read(0, &mut bytes).unwrap();
        assert!(bytes.iter().all(|byte| *byte == 0));
    }
    server.figures().refused
}

#[test]
fn a_peer_that_lies_in_every_field_harms_nobody_else() {
    let refused = (1..=6).map(attack).min();
    assert!(refused > Some(100), "lies were seen: {refused:?}");
}

#[test]
fn a_get_that_is_being_served_ends_when_its_region_is_taken_back() {
    const BYTES: usize = 4 << 20;
    let dir = tempfile::tempdir().unwrap();
    let server = server(&config(dir.path()));
    server.start_progress().unwrap();
    let hand = Hand::connect(&config(dir.path()));
    let (end, _) = hand.open(&server);
    let region = server.region(BYTES as u64, 0).unwrap();
    region.write(0, &vec![1; BYTES]).unwrap();
    let export = region.export(&end, Rights::Read).unwrap();
    let number = number(&export.handle);
    let length = BYTES as u64;
    hand.send(Head { kind: GET, number, to: 5, length, ..Head::default() }, &[]);
    // It does not read, so the answer stands still.
    let mut served = 0;
    until(|| {
        std::thread::sleep(Duration::from_millis(2));
        let before = core::mem::replace(&mut served, server.figures().bytes_read_by_peers);
        served > 0 && served == before
    });
    assert!(served < length);
    region.revoke(&export);
    region.write(0, &vec![2; BYTES]).unwrap();
    let mut came = 0;
    hand.hear(|head, body| {
        if head.kind != DATA || head.to != 5 {
            return None;
        }
        assert!(!body.contains(&2), "bytes that were written after the region was taken back");
        came += body.len();
        (head.number == REVOKED || came >= BYTES).then_some(())
    });
    assert!(came < BYTES);
}

#[test]
fn words_about_stores_count_only_from_peers_that_can_store() {
    let dir = tempfile::tempdir().unwrap();
    let server = server(&config(dir.path()));
    server.start_progress().unwrap();
    let hand = Hand::connect(&config(dir.path()));
    let (end, name) = hand.open(&server);
    let checked = server.region(1 << 20, 4).unwrap();
    let mapped = end.mapped_region(1 << 20, Rights::ReadWrite, 4).unwrap();
    let wires = [&checked, &mapped].map(|region| region.wire(0..64, Trip::Write, None).unwrap());
    let handles = [(&checked, Rights::ReadWrite), (&mapped, Rights::Read)]
        .map(|(region, rights)| region.export(&end, rights).unwrap().handle);
    let writable = mapped.export(&end, Rights::Write).unwrap().handle;
    let touch = |handle: &[u8], length| {
        let head = Head { kind: TOUCH, number: number(handle), length, ..Head::default() };
        hand.send(head, &[]);
        hand.is_heard(&end, name);
        wires.each_ref().map(|wire| wire.has_fired())
    };
    assert_eq!(handles.map(|handle| touch(&handle, 64)), [[false; 2]; 2]);
    // So many lines at once would keep the node from others.
    assert_eq!(touch(&writable, 1 << 20), [false; 2]);
    assert_eq!(server.figures().refused, 3);
    assert_eq!(touch(&writable, 1), [false, true]);
}

#[test]
fn an_end_point_is_closed_once() {
    let dir = tempfile::tempdir().unwrap();
    let server = server(&config(dir.path()));
    server.start_progress().unwrap();
    let hand = Hand::connect(&config(dir.path()));
    let (end, name) = hand.open(&server);
    let (other, other_name) = hand.open(&server);
    for _ in 0..3 {
        hand.send(Head { kind: CLOSE, to: name, ..Head::default() }, &[]);
    }
    hand.is_heard(&other, other_name);
    assert!(matches!(end.check(), Err(Error::Closed(_))));
    assert_eq!(server.figures().refused, 2);
}

#[test]
fn a_peer_that_says_much_in_one_turn_takes_nobodys_place() {
    let dir = tempfile::tempdir().unwrap();
    let of = config(dir.path());
    let server = server(&of);
    let connect = |by: &(dyn Fn() + Sync)| {
        std::thread::scope(|scope| {
            let done = scope.spawn(by);
            until(|| {
                server.manager().poll().unwrap();
                done.is_finished()
            });
        });
    };
    let hands = Mutex::new(Vec::new());
    connect(&|| hands.lock().unwrap().push(Hand::connect(&of)));
    let honest = Clan::new(of.clone()).unwrap();
    let here = Mutex::new(None);
    connect(&|| *here.lock().unwrap() = Some(honest.connect("server", LIMIT).unwrap()));
    let (hands, here) = (hands.into_inner().unwrap(), here.into_inner().unwrap().unwrap());
    let there = server.accept(LIMIT).unwrap();
    // The program takes turns of the node alone, as it may.
    let turn = || while server.manager().lock().poll().unwrap() > 0 {};
    for round in 1..=3u8 {
        let mut said = 0;
        while said < 10_000 {
            match hands[0].try_send(&hands[0].to, &Head::default().bytes()) {
                Ok(()) => said += 1,
                Err(_) => turn(),
            }
        }
        here.send_oob(&[round], LIMIT).unwrap();
        turn();
        server.manager().poll().unwrap();
        assert_eq!(there.take_oob().unwrap().map(|oob| oob[0]), Some(round));
    }
    assert!(server.figures().thrown_away > 10_000, "and what was too much is counted");
}

/// Lets peers in, and ends their links at once.
struct Trap(Option<Ticket>);

impl Protocol for Trap {
    fn admit(
        &mut self,
        node: &mut Node,
        _: RequestId,
        _: &Peer,
        _: &[u8],
    ) -> Result<Vec<u8>, String> {
        let ticket = *self.0.get_or_insert_with(|| inbox(node).1);
        Ok(hello(&ticket))
    }

    fn joined(&mut self, node: &mut Node, _: RequestId, connection: &Arc<Connection>) {
        node.disconnect(connection.link()).unwrap();
    }
}

#[test]
fn connecting_to_a_peer_that_ends_the_link_at_once_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let of = config(dir.path());
    let manager = Manager::with_config(of.node.clone()).unwrap();
    let trap = manager.seat(CLAN, Trap(None));
    trap.serve("server", Access::SameUser).unwrap();
    manager.start_progress().unwrap();
    let client = Clan::new(of).unwrap();
    for _ in 0..30 {
        let error = client.connect("server", LIMIT).unwrap_err();
        assert!(matches!(error, Error::Closed(_) | Error::Full(_) | Error::Refused(_)), "{error}");
    }
}

#[test]
fn a_link_ends_with_the_last_end_point_of_the_side_that_made_it() {
    let dir = tempfile::tempdir().unwrap();
    let mut of = config(dir.path());
    of.peers_max = 2;
    let server = server(&of);
    server.start_progress().unwrap();
    let client = Clan::new(of).unwrap();
    for _ in 0..10 {
        let mut connected = None;
        until(|| {
            connected = client.connect("server", LIMIT).ok();
            connected.is_some()
        });
        let (connected, accepted) = (connected.unwrap(), server.accept(LIMIT).unwrap());
        let other = connected.open(LIMIT).unwrap();
        drop(connected);
        assert!(matches!(accepted.receive_oob(LIMIT), Err(Error::Closed(_))));
        let accepted = server.accept(LIMIT).unwrap();
        other.send_oob(b"the last one", LIMIT).unwrap();
        drop(other);
        assert!(accepted.receive_oob(LIMIT).unwrap().starts_with(b"the last one"));
        assert!(matches!(accepted.receive_oob(LIMIT), Err(Error::Closed(_))));
    }
}

/// Threads that sleep at once: nothing goes on by the way.
#[test]
fn threads_of_progress_alone_move_requests_of_any_length() {
    const BYTES: u64 = 16 << 20;
    let dir = tempfile::tempdir().unwrap();
    let mut of = config(dir.path());
    of.node = of.node.wait_mode(hamlyn::config::WaitMode::Blocking);
    let server = server(&of);
    let client = Clan::new(of).unwrap();
    server.start_progress().unwrap();
    client.start_progress().unwrap();
    let here = client.connect("server", LIMIT).unwrap();
    let there = server.accept(LIMIT).unwrap();
    let region = server.region(BYTES, 0).unwrap();
    let export = region.export(&there, Rights::ReadWrite).unwrap();
    let aperture = here.import(&export.handle, LIMIT).unwrap();
    let own = client.region(BYTES, 0).unwrap();
    own.write(BYTES - 8, &[7; 8]).unwrap();
    let queue = client.request_queue(2, 0, 1 << 20).unwrap();
    let word = Arc::new(AtomicU64::new(0));
    let (from, to, length) = (&own, &aperture, BYTES);
    let put = Request::Put { from, offset: 0, to, at: 0, length };
    queue.submit(&[put], Completion::Word(word.clone())).unwrap();
    until(|| word.load(Ordering::Acquire) == 1);
    until(|| region.load(BYTES - 8).unwrap() == u64::from_le_bytes([7; 8]));
    region.write(0, &[8; 8]).unwrap();
    let get = Request::Get { from: &aperture, offset: 0, to: &own, at: 0, length };
    queue.submit(&[get], Completion::Word(word.clone())).unwrap();
    until(|| word.load(Ordering::Acquire) == 1);
    assert_eq!(own.load(0).unwrap(), u64::from_le_bytes([8; 8]));
}

#[test]
fn an_event_between_two_queues_being_prepared_makes_the_descriptor_readable() {
    let dir = tempfile::tempdir().unwrap();
    let clan = server(&config(dir.path()));
    let queues = [(); 2].map(|()| clan.event_queue(1).unwrap());
    let target = Target { queue: queues[0].clone(), event: queues[0].register(1).unwrap() };
    let descriptor = clan.descriptor().unwrap();
    until(|| clan.prepare_to_wait(&queues[0]).unwrap());
    target.queue.raise(target.event);
    if clan.prepare_to_wait(&queues[1]).unwrap() {
        let mut polled = [rustix::event::PollFd::new(&descriptor, rustix::event::PollFlags::IN)];
        let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
        assert_eq!(rustix::event::poll(&mut polled, Some(&now)), Ok(1), "it would sleep on");
    }
}

#[test]
fn a_window_that_was_opened_twice_stays_until_both_are_dropped() {
    let dir = tempfile::tempdir().unwrap();
    let server = server(&config(dir.path()));
    server.start_progress().unwrap();
    let client = Clan::new(config(dir.path())).unwrap();
    let here = client.connect("server", LIMIT).unwrap();
    let there = server.accept(LIMIT).unwrap();
    let region = server.region(64, 4).unwrap();
    let wire = region.wire(8..16, Trip::Write, None).unwrap();
    let export = region.export_signalled(&there, Rights::Write, 1).unwrap();
    let [first, second] = [(); 2].map(|()| here.import(&export.handle, LIMIT).unwrap());
    for window in [first, second] {
        // By the slot that announces, too, wires trip.
        window.put_signal(8, &[1; 8], 3, LIMIT).unwrap();
        until(|| region.take_signal().is_some_and(|signal| signal.word == 3));
        assert!(wire.arm());
    }
}

/// This program's own threads: each makes and drops everything, in any order and while others wait.
#[test]
fn threads_that_drop_in_any_order_wait_for_nobody_for_ever() {
    let dir = tempfile::tempdir().unwrap();
    let server = server(&config(dir.path()));
    server.start_progress().unwrap();
    let client = Clan::new(config(dir.path())).unwrap();
    client.start_progress().unwrap();
    let is_done = AtomicBool::new(false);
    let run = |seed: u64| {
        let mut rng = Rng(seed);
        let mut held: Vec<Box<dyn std::any::Any>> = Vec::new();
        let events = client.event_queue(64).unwrap();
        let queue = client.request_queue(4, 0, 4096).unwrap();
        for _ in 0..60 {
            let end = match client.connect("server", LIMIT) {
                Ok(end) => end,
                // Its first message was lost.
                Err(Error::TimedOut) => panic!("nobody answers"),
                Err(_) => continue,
            };
            let target = Target { queue: events.clone(), event: events.register(0).unwrap() };
            end.set_event(Some(target.clone()));
            // The server gives each end point a region, and drops both some time.
            let handle = loop {
                match end.receive_oob(LIMIT) {
                    Ok(oob) if oob[0] == 0 => continue,
                    other => break other.ok(),
                }
            };
            let own = client.region(1 << 16, 8).unwrap();
            let wire = own.wire(0..64, Trip::Write, Some(target.clone())).unwrap();
            let window = handle.and_then(|handle| end.import(&handle, LIMIT).ok());
            if let Some(window) = window {
                let _ = window.put(8, &[1; 5000], LIMIT);
                let (from, to, length) = (&own, &window, 1 << 16);
                let put = Request::Put { from, offset: 0, to, at: 0, length };
                let get = Request::Get { from: &window, offset: 0, to: &own, at: 0, length };
                let _ = queue.submit(&[put, get], Completion::Event(target));
                let _ = client.wait(&events, Some(Duration::from_millis(rng.below(3))));
                while queue.take_done().is_some() {}
                held.push(Box::new(window));
            }
            held.push(Box::new((end, own)));
            held.push(Box::new(wire));
            while held.len() > 8 {
                let at = rng.below(held.len() as u64) as usize;
                drop(held.swap_remove(at));
            }
            while events.take().is_some_and(|event| events.unregister(event.id)) {}
        }
    };
    std::thread::scope(|scope| {
        let serving = scope.spawn(|| {
            let mut rng = Rng(99);
            let mut held: Vec<Box<dyn std::any::Any>> = Vec::new();
            while !is_done.load(Ordering::Acquire) {
                let Ok(end) = server.accept(Some(Duration::from_millis(1))) else { continue };
                let region = server.region(1 << 16, 8).unwrap();
                let wire = region.wire(0..64, Trip::Read, None).unwrap();
                if let Ok(export) = region.export(&end, Rights::ReadWrite) {
                    let _ = end.send_oob(&export.handle, LIMIT);
                }
                held.push(Box::new(end));
                held.push(Box::new((wire, region)));
                while held.len() > 12 {
                    let at = rng.below(held.len() as u64) as usize;
                    drop(held.swap_remove(at));
                }
            }
        });
        let run = &run;
        let running: Vec<_> = (1..=3).map(|seed| scope.spawn(move || run(seed))).collect();
        let panicked = running.into_iter().filter_map(|running| running.join().err()).count();
        is_done.store(true, Ordering::Release);
        serving.join().unwrap();
        assert_eq!(panicked, 0);
    });
}
