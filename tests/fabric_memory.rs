//! Memory that is open to another host over libfabric: deposits that arrive whole before they are
//! announced, memory that is revoked while it is written, wrong keys, hosts that die and hosts that
//! lie.
//!
//! `HAMLYN_FABRIC_LIBRARY` names another libfabric than the system's.
#![cfg(not(miri))]

mod support;
#[path = "support/fabric.rs"]
mod with;

use hamlyn::config::Fabric;
use hamlyn::control::Reason;
use hamlyn::node::{ApertureEvent, CloseReason, Event};
use hamlyn::os::fabric::endpoint::OperationMemory;
use hamlyn::os::fabric::{FabricEndPoint, FabricPeer as Address, FarMemory, Library};
use hamlyn::os::memory::RegionLines;
use hamlyn::protocol::{
    ApertureStreamReceiver, ApertureStreamSender, Manager, RecordBytes, StreamConfig,
};
use hamlyn::transport::channel::Channel;
use hamlyn::transport::fabric::words::{self, FabricWord, OpenedMemory};
use hamlyn::transport::offer::OfferReply;
use hamlyn::transport::path::Path as _;
use hamlyn::{
    Accept, Access, AccessError, Aperture, ApertureAccess, ApertureId, LinkId, MetadataIndex, Node,
    Ticket,
};
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use support::{
    Dir, LIMIT, LONG, Peer, Role, Station, aperture_event, closed, connected, listening, pattern,
    say, skipped, ticket_of, until_node,
};
use with::{HERE, named, offer, offer_of, strictly, trusted, until};

const RW: ApertureAccess = ApertureAccess::ReadWrite;
const RO: ApertureAccess = ApertureAccess::ReadOnly;
const NEEDED: &str =
    "libfabric 1.17 or newer, with a provider that writes to memory (Debian: libfabric1)";

/// Its providers whose end points can have memory: `tcp` is `net` in 1.17.
fn providers() -> Vec<&'static str> {
    let Ok(library) = Library::open(named("HAMLYN_FABRIC_LIBRARY").as_deref()) else {
        return Vec::new();
    };
    let has = |name: &&str| {
        let found = library.choose_for_memory(name, Some(HERE));
        found.is_ok_and(|choice| choice.provider() == **name)
    };
    ["tcp", "net"].into_iter().filter(has).collect()
}

fn with_each_provider(test: impl Fn(&str)) {
    let providers = providers();
    if providers.is_empty() {
        return skipped(NEEDED);
    }
    for provider in providers {
        eprintln!("with the provider {provider}");
        test(provider);
    }
}

/// The next aperture that this node is to hold.
#[track_caller]
fn held(node: &mut Node) -> Aperture {
    let (id, what) = aperture_event(node);
    assert_eq!(what, ApertureEvent::Held);
    node.aperture(id).unwrap()
}

/// Exports, and waits for the holder.
#[track_caller]
fn export(node: &mut Node, link: LinkId, bytes: u64, access: ApertureAccess) -> ApertureId {
    let id = node.export(link, bytes, access).unwrap();
    assert_eq!(aperture_event(node), (id, ApertureEvent::Ready));
    id
}

/// A message that says where in which aperture.
fn announce(me: &mut Station, ticket: &Ticket, number: u32, offset: u64, length: u64) {
    let words = [u64::from(number), offset, length].map(u64::to_le_bytes).concat();
    me.node.send(ticket, b"", &words, LIMIT).unwrap();
}

/// The content of the next message.
fn announced(me: &mut Station) -> (u32, u64, u64) {
    me.recv();
    let entry = me.node.metadata(me.slot, MetadataIndex(0)).unwrap();
    let at = |i: usize| u64::from_le_bytes(entry.user()[8 * i..8 * i + 8].try_into().unwrap());
    (at(0) as u32, at(1), at(2))
}

/// An owner, in a thread of its own, and a holder in this one, of as many bytes.
fn pair(
    provider: &str,
    owns: impl FnOnce(Station, LinkId) + Send,
    holds: impl FnOnce(Station, LinkId, Ticket),
) {
    // The owner's own thread looks for what was lost rarely, and moves nothing meanwhile.
    let rarely = Dir::new("owner", &[("HOST_TIMEOUT_MS", "600000")]);
    let dirs = [rarely, Dir::new("holder", &[("HOST_TIMEOUT_MS", "2000")])];
    let owner = Station::new(listening(trusted(&dirs[0], provider)), 64, 1).serve("memory");
    let name = format!("hamlyn://{}/memory", owner.node.listens_at().unwrap());
    let mut holder = Station::new(trusted(&dirs[1], provider), 64, 1);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut owner = owner;
            let link = connected(&mut owner.node);
            owns(owner, link);
        });
        let (link, ticket) = holder.connect(&name);
        holds(holder, link, ticket);
    });
}

#[test]
fn a_deposit_arrives_whole_and_is_announced_after() {
    const BYTES: u64 = 4 << 20;
    with_each_provider(|provider| {
        let lengths = [1, 8, 63, 4096, 100_000, 256 << 10, 1 << 20, BYTES as usize - 7];
        let rounds = || (0..200u64).map(|i| (i, lengths[i as usize % lengths.len()]));
        let place = |i: u64, length: usize| (i * 7919) % (BYTES - length as u64 + 1);
        pair(
            provider,
            |mut owner, link| {
                let id = export(&mut owner.node, link, BYTES, RW);
                let view = owner.node.aperture_view(id).unwrap();
                let explained = owner.node.explain(link).unwrap();
                assert!(explained.contains("memory: 1 open to it, 0 of its held"), "{explained}");
                for (i, length) in rounds() {
                    // It makes no calls for a while: nothing is announced before it is there.
                    if i % 16 == 0 {
                        std::thread::sleep(Duration::from_millis(5));
                    }
                    let told = announced(&mut owner);
                    assert_eq!(told, (id.number, place(i, length), length as u64));
                    let mut bytes = vec![0; length];
                    view.read(told.1, &mut bytes).unwrap();
                    assert!(bytes == pattern(length, i), "round {i}, {length} bytes");
                    let ticket = ticket_of(&owner.node, link);
                    announce(&mut owner, &ticket, id.number, i, 0);
                }
                assert_eq!(aperture_event(&mut owner.node), (id, ApertureEvent::Released));
                owner.node.revoke_aperture(id).unwrap();
                until_node(&mut owner.node, "its pages are back", |node| {
                    node.aperture_bytes() == (0, 0)
                });
            },
            |mut holder, link, ticket| {
                let aperture = held(&mut holder.node);
                assert_eq!((aperture.bytes(), aperture.access()), (BYTES, RW));
                let explained = holder.node.explain(link).unwrap();
                assert!(explained.contains("memory: 0 open to it, 1 of its held"), "{explained}");
                let number = aperture.id().number;
                for (i, length) in rounds() {
                    let offset = place(i, length);
                    aperture.write(offset, &pattern(length, i)).unwrap();
                    announce(&mut holder, &ticket, number, offset, length as u64);
                    assert_eq!(announced(&mut holder).1, i);
                }
                holder.node.release_aperture(aperture.id()).unwrap();
                assert!(aperture.is_revoked());
                until_node(&mut holder.node, "the link has ended", |node| {
                    node.links().count() == 0
                });
            },
        );
    });
}

#[test]
fn a_holder_that_may_only_read_reads_what_the_owner_has_written() {
    const BYTES: u64 = 1 << 20;
    with_each_provider(|provider| {
        let (says_so, has_waited) = std::sync::mpsc::channel();
        let (stops, has_stopped) = std::sync::mpsc::channel();
        pair(
            provider,
            move |mut owner, link| {
                let id = export(&mut owner.node, link, BYTES, RO);
                let view = owner.node.aperture_view(id).unwrap();
                view.write(3, &pattern(700_000, 5)).unwrap();
                let ticket = ticket_of(&owner.node, link);
                announce(&mut owner, &ticket, id.number, 3, 700_000);
                // It takes part while the other end reads.
                assert_eq!(announced(&mut owner).1, 1);
                // And now makes no calls for as long as the other end waits.
                stops.send(()).unwrap();
                has_waited.recv_timeout(LONG).unwrap();
                until_node(&mut owner.node, "it is over", |node| node.links().count() == 0);
            },
            move |mut holder, _, ticket| {
                let aperture = held(&mut holder.node);
                let (_, offset, length) = announced(&mut holder);
                let mut bytes = vec![0; length as usize];
                aperture.populate().unwrap();
                // Its program is in a call.
                aperture.read(offset, &mut bytes).unwrap();
                assert!(bytes == pattern(700_000, 5));
                assert_eq!(aperture.write(0, b"x"), Err(AccessError::ReadOnly));
                assert_eq!(aperture.read_u64(8), Err(AccessError::Word));
                let outside = aperture.read(BYTES - 1, &mut [0; 2]);
                assert!(matches!(outside, Err(AccessError::OutOfBounds { .. })), "{outside:?}");
                announce(&mut holder, &ticket, 0, 1, 0);
                has_stopped.recv_timeout(LONG).unwrap();
                assert_eq!(aperture.read(0, &mut [0; 8]), Err(AccessError::Silent));
                says_so.send(()).unwrap();
            },
        );
    });
}

#[test]
fn an_aperture_that_is_taken_back_while_it_is_written_ends_nothing_else() {
    const BYTES: u64 = 32 << 20;
    with_each_provider(|provider| {
        pair(
            provider,
            |mut owner, link| {
                let ticket = ticket_of(&owner.node, link);
                for round in 0..8 {
                    let id = export(&mut owner.node, link, BYTES, RW);
                    let view = owner.node.aperture_view(id).unwrap();
                    let mut first = [0];
                    until_node(&mut owner.node, "something has come", |_| {
                        view.read(round << 16, &mut first).unwrap();
                        first != [0]
                    });
                    owner.node.revoke_aperture(id).unwrap();
                    assert_eq!(view.read(0, &mut first), Err(AccessError::Revoked));
                    // The announcement of what did not arrive comes all the same, as on one host.
                    assert_eq!(announced(&mut owner).0, id.number);
                    announce(&mut owner, &ticket, id.number, 0, 0);
                    until_node(&mut owner.node, "its pages are back", |node| {
                        node.aperture_bytes() == (0, 0)
                    });
                }
                until_node(&mut owner.node, "it is over", |node| node.links().count() == 0);
            },
            |mut holder, link, ticket| {
                for _ in 0..8 {
                    let aperture = loop {
                        match aperture_event(&mut holder.node) {
                            (id, ApertureEvent::Held) => break holder.node.aperture(id).unwrap(),
                            (_, what) => assert_eq!(what, ApertureEvent::Revoked),
                        }
                    };
                    let written = aperture.write(0, &vec![7; BYTES as usize]);
                    assert!(matches!(written, Ok(()) | Err(AccessError::Revoked)), "{written:?}");
                    announce(&mut holder, &ticket, aperture.id().number, 0, BYTES);
                    assert_eq!(announced(&mut holder).0, aperture.id().number);
                }
                assert!(holder.node.explain(link).unwrap().contains("libfabric "));
            },
        );
    });
}

/// A host that has the secret, and says and writes by hand what it likes.
struct Hand {
    channel: Channel,
    /// For the link's messages, of which it sends none.
    _end: FabricEndPoint,
}

impl Hand {
    fn new(at: SocketAddr, dir: &Dir, provider: &str) -> Self {
        let library = Library::open(named("HAMLYN_FABRIC_LIBRARY").as_deref()).unwrap();
        let choice = library.choose(Some(provider), Some(HERE)).unwrap();
        let mut end = FabricEndPoint::open(choice, 32 << 10).unwrap();
        end.grow(8, 8).unwrap();
        let (channel, reply) = offer(at, dir, &offer_of(&end));
        assert!(matches!(reply, Some(OfferReply::Yes(_))), "{reply:?}");
        Self { channel, _end: end }
    }

    fn says(&mut self, bytes: &[u8]) {
        self.channel.put(bytes);
        self.channel.flush();
    }

    fn say(&mut self, word: &FabricWord) {
        let mut bytes = Vec::new();
        words::put(&mut bytes, word);
        self.says(&bytes);
    }

    /// The next word of the other end, which takes its turns.
    fn hears(&mut self, heard: &mut Heard) -> FabricWord {
        until("it says something", || {
            heard.turn();
            self.channel.receive(400);
            let (word, bytes) = words::read(self.channel.plain()).unwrap()?;
            self.channel.take(bytes);
            Some(word)
        })
    }
}

/// An end point of a hand's, for memory, with memory of its own in which every byte is 7.
struct Writer {
    end: FabricEndPoint,
    own: OperationMemory,
    bytes: usize,
}

impl Writer {
    fn new(provider: &str, bytes: usize) -> Self {
        let library = Library::open(named("HAMLYN_FABRIC_LIBRARY").as_deref()).unwrap();
        let choice = library.choose_for_memory(provider, Some(HERE)).unwrap();
        let mut end = FabricEndPoint::open_for_memory(choice).unwrap();
        let lines = RegionLines::private(bytes).unwrap();
        hamlyn::link::cells::write_at(
            hamlyn::link::cells::Lines::lines(&lines),
            0,
            &vec![7; bytes],
        );
        let own = end.keep(&lines).unwrap();
        Self { end, own, bytes }
    }

    fn find(&mut self, opened: &OpenedMemory) -> (Address, FarMemory) {
        let peer = self.end.insert(&opened.address).unwrap();
        (peer, FarMemory { base: opened.base, key: opened.key })
    }

    /// Writes; `false`: the provider has no room for it within this time, as without a listener.
    fn begins(
        &mut self,
        heard: &mut Heard,
        to: (Address, FarMemory),
        offset: u64,
        bytes: usize,
        op: usize,
    ) -> bool {
        let end = Instant::now() + Duration::from_millis(300);
        while Instant::now() < end {
            let range = 0..bytes.min(self.bytes);
            match self.end.begin_far(op, to, offset, (&self.own, range), false) {
                Ok(true) => return true,
                Ok(false) => {
                    self.turn();
                    heard.turn();
                }
                Err(_) => return false,
            }
        }
        false
    }

    /// The result of an operation that has ended, if any.
    fn turn(&mut self) -> Option<Result<(), String>> {
        let mut events = Vec::new();
        let _ = self.end.poll(&mut events);
        events.into_iter().find_map(|event| match event {
            hamlyn::os::fabric::FabricEvent::Far { ended, .. } => Some(ended),
            _ => None,
        })
    }
}

/// A node that hears from hosts.
struct Heard {
    _dir: Dir,
    node: Node,
    at: SocketAddr,
    apertures: Vec<(ApertureId, ApertureEvent)>,
    closed: Option<CloseReason>,
}

impl Heard {
    fn new(provider: &str, settings: &[(&str, &str)]) -> Self {
        let dir = Dir::new("heard", settings);
        let mut node = Node::with_config(listening(trusted(&dir, provider))).unwrap();
        node.serve("x", Access::SameUser, Accept::Automatic(Vec::new())).unwrap();
        let at = node.listens_at().unwrap();
        Self { _dir: dir, node, at, apertures: Vec::new(), closed: None }
    }

    fn turn(&mut self) {
        self.node.poll().unwrap();
        while let Some(event) = self.node.next_event() {
            match event {
                Event::Closed { reason, .. } => self.closed = Some(reason),
                Event::Aperture { aperture, what } => self.apertures.push((aperture, what)),
                _ => {}
            }
        }
    }

    fn turns(&mut self, milliseconds: u64, mut others: impl FnMut()) {
        let end = Instant::now() + Duration::from_millis(milliseconds);
        while Instant::now() < end {
            self.turn();
            others();
        }
    }

    fn link(&mut self) -> LinkId {
        until("there is a link", || {
            self.turn();
            self.node.links().next()
        })
    }

    /// Exports to a hand, which takes it; what that was told.
    fn exports(
        &mut self,
        hand: &mut Hand,
        bytes: u64,
        access: ApertureAccess,
    ) -> (ApertureId, OpenedMemory) {
        let link = self.link();
        let id = self.node.export(link, bytes, access).unwrap();
        let opened = loop {
            match hand.hears(self) {
                FabricWord::Offer(opened) => break opened,
                // Of an earlier one, which this hand never lets go of.
                FabricWord::Revoked(_) => {}
                word => panic!("{word:?}"),
            }
        };
        assert_eq!((opened.number, opened.bytes, opened.access), (id.number, bytes, access));
        hand.say(&FabricWord::Held(id.number));
        until("it is held", || {
            self.turn();
            self.apertures.contains(&(id, ApertureEvent::Ready)).then_some(())
        });
        (id, opened)
    }
}

// DESIGN.md, what must always hold, 1: with libfabric 1.17 and 2.5.1 a registration that is closed goes on
// being written to; the end point of its own is what ends that.
#[test]
fn a_write_that_was_begun_before_memory_was_taken_back_changes_nothing_after() {
    const BYTES: usize = 64 << 20;
    with_each_provider(|provider| {
        let dir = Dir::new("hand", &[]);
        let mut heard = Heard::new(provider, &[]);
        let mut hand = Hand::new(heard.at, &dir, provider);
        let mut writer = Writer::new(provider, BYTES);
        for keeps in [true, false] {
            let (id, opened) = heard.exports(&mut hand, BYTES as u64, RW);
            let view = heard.node.aperture_view(id).unwrap();
            let to = writer.find(&opened);
            assert!(writer.begins(&mut heard, to, 0, BYTES, 0), "the first write begins");
            let mut first = [0];
            until("the first bytes are there", || {
                heard.turn();
                writer.turn();
                view.read(64 << 10, &mut first).unwrap();
                (first == [7]).then_some(())
            });
            let area = match keeps {
                true => Some(heard.node.reclaim_aperture(id).unwrap()),
                false => heard.node.revoke_aperture(id).map(|()| None).unwrap(),
            };
            // Neither end has sent a frame, and the old pages have no owner any more. (A thread
            // unmaps them.)
            until("the old pages are back", || {
                (heard.node.aperture_bytes() == (0, 0)).then_some(())
            });
            let kept = area.map(|area| heard.node.area(area).unwrap().to_vec());
            if let Some(kept) = &kept {
                assert_eq!((kept[64 << 10], kept[BYTES - 1]), (7, 0), "it came in part");
            }
            let ended = until("the write has ended", || {
                heard.turn();
                writer.turn()
            });
            assert!(ended.is_err(), "{ended:?}");
            // The old key, at the old place and at the link's newer memory.
            let (other, newer) = heard.exports(&mut hand, 4096, RW);
            let (peer, memory) = writer.find(&newer);
            for to in [to, (peer, FarMemory { key: opened.key, ..memory })] {
                if writer.begins(&mut heard, to, 0, 4096, 1) {
                    let mut ended = None;
                    heard.turns(300, || ended = ended.take().or(writer.turn()));
                    assert!(!matches!(ended, Some(Ok(()))), "it was written: {ended:?}");
                }
            }
            let mut bytes = [0; 4096];
            heard.node.aperture_view(other).unwrap().read(0, &mut bytes).unwrap();
            assert_eq!(bytes, [0; 4096]);
            heard.node.revoke_aperture(other).unwrap();
            if let (Some(area), Some(kept)) = (area, kept) {
                assert!(heard.node.area(area).unwrap() == kept, "what was kept stands still");
            }
            // A new one, to abandon the operations that have not ended.
            writer = Writer::new(provider, BYTES);
        }
        assert_eq!((heard.closed.take(), heard.node.links().count()), (None, 1));
    });
}

#[test]
fn a_wrong_key_a_place_outside_and_memory_that_is_to_be_read_are_not_written() {
    with_each_provider(|provider| {
        let dir = Dir::new("hand", &[]);
        let mut heard = Heard::new(provider, &[]);
        let mut hand = Hand::new(heard.at, &dir, provider);
        let (writable, opened) = heard.exports(&mut hand, 8192, RW);
        let (readable, to_read) = heard.exports(&mut hand, 8192, RO);
        assert!(opened.key != to_read.key && opened.address != to_read.address);
        type Change = fn(&mut OpenedMemory, &OpenedMemory);
        let tries: [(&str, bool, u64, Change); 6] = [
            ("a key that differs by a bit", true, 0, |opened, _| opened.key ^= 1),
            ("no key", true, 0, |opened, _| opened.key = 0),
            ("the key of other memory", true, 0, |opened, other| opened.key = other.key),
            ("the first byte behind", true, 8192, |_, _| ()),
            ("across the end", true, 8000, |_, _| ()),
            ("what may be read", false, 0, |_, _| ()),
        ];
        for (what, is_writable, offset, change) in tries {
            let mut writer = Writer::new(provider, 4096);
            let mut to = if is_writable { opened.clone() } else { to_read.clone() };
            change(&mut to, &to_read);
            let to = writer.find(&to);
            if writer.begins(&mut heard, to, offset, 4096, 0) {
                let mut ended = None;
                heard.turns(200, || ended = ended.take().or(writer.turn()));
                assert!(!matches!(ended, Some(Ok(()))), "{what}: it was written");
            }
            for id in [writable, readable] {
                let mut bytes = [1; 8192];
                heard.node.aperture_view(id).unwrap().read(0, &mut bytes).unwrap();
                assert_eq!(bytes, [0; 8192], "{what}");
            }
        }
        // With everything right, the write succeeds.
        let mut writer = Writer::new(provider, 4096);
        let to = writer.find(&opened);
        assert!(writer.begins(&mut heard, to, 4096, 4096, 0));
        let mut ended = None;
        heard.turns(200, || ended = ended.take().or(writer.turn()));
        assert_eq!(ended, Some(Ok(())));
        assert_eq!((heard.closed.take(), heard.node.links().count()), (None, 1));
    });
}

#[test]
fn words_about_memory_that_no_host_says_end_the_link_and_those_that_ask_too_much_are_refused() {
    with_each_provider(|provider| {
        let dir = Dir::new("hand", &[]);
        let settings =
            [("APERTURE_MAP_MAX", "65536"), ("APERTURES_PER_LINK_MAX", "2"), ("SECRET", "")];
        let mut heard = Heard::new(provider, &settings[..2]);
        let of_memory = Writer::new(provider, 4096);
        let opened = |number: u32| OpenedMemory {
            number,
            bytes: 4096,
            base: 0,
            key: 5,
            access: RW,
            address: of_memory.end.address().to_vec(),
        };
        let mut hand = Hand::new(heard.at, &dir, provider);
        heard.link();
        let mut asks = |opened: OpenedMemory| {
            let number = opened.number;
            hand.say(&FabricWord::Offer(opened));
            match hand.hears(&mut heard) {
                FabricWord::Held(n) if n == number => None,
                FabricWord::Refused(n, why) if n == number => Some(why),
                word => panic!("{word:?}"),
            }
        };
        let too_long = OpenedMemory { bytes: 69632, ..opened(1) };
        assert_eq!(asks(too_long), Some(Reason::Apertures));
        let elsewhere = OpenedMemory { address: vec![0xff; 16], ..opened(3) };
        assert_eq!(asks(elsewhere), Some(Reason::Malformed));
        let unknown = OpenedMemory { address: vec![2, 0, 9], ..opened(5) };
        assert_eq!(asks(unknown), Some(Reason::Malformed));
        assert_eq!((asks(opened(7)), asks(opened(9))), (None, None));
        assert_eq!(asks(opened(11)), Some(Reason::Apertures), "a third");
        // Revoked memory makes room again, and is reported once.
        hand.say(&FabricWord::Revoked(7));
        assert_eq!(hand.hears(&mut heard), FabricWord::Released(7));
        hand.say(&FabricWord::Revoked(11));
        hand.say(&FabricWord::Offer(opened(13)));
        assert_eq!(hand.hears(&mut heard), FabricWord::Held(13));
        drop(hand);
        until("it is gone", || {
            heard.turn();
            heard.closed.take()
        });
        assert_eq!(heard.node.apertures_held().count(), 0);

        type Lie = Box<dyn Fn() -> Vec<FabricWord>>;
        let lies: Vec<(&str, Lie)> = vec![
            ("a number of this end's", Box::new(move || vec![FabricWord::Held(2)])),
            ("memory with this end's number", Box::new(move || vec![FabricWord::Revoked(2)])),
            ("what was never offered", Box::new(|| vec![FabricWord::Released(2)])),
            ("a refusal of nothing", Box::new(|| vec![FabricWord::Refused(2, Reason::Bytes)])),
            (
                "a word behind the last",
                Box::new(|| vec![FabricWord::Count(0), FabricWord::Held(2)]),
            ),
            ("one taken back twice", {
                let offer = opened(1);
                Box::new(move || {
                    vec![
                        FabricWord::Offer(offer.clone()),
                        FabricWord::Revoked(1),
                        FabricWord::Revoked(1),
                    ]
                })
            }),
            ("one number twice", {
                let offer = opened(1);
                Box::new(move || {
                    vec![FabricWord::Offer(offer.clone()), FabricWord::Offer(offer.clone())]
                })
            }),
            ("a number of the wrong end", {
                let offer = opened(2);
                Box::new(move || vec![FabricWord::Offer(offer.clone())])
            }),
            ("more than there may ever be", {
                let offer = OpenedMemory { bytes: 1 << 40, ..opened(1) };
                Box::new(move || {
                    let of = |i: u32| {
                        FabricWord::Offer(OpenedMemory { number: 2 * i + 1, ..offer.clone() })
                    };
                    (0..257).map(of).collect()
                })
            }),
        ];
        for (what, lie) in lies {
            let mut liar = Hand::new(heard.at, &dir, provider);
            heard.link();
            lie().iter().for_each(|word| liar.say(word));
            let reason = until(what, || {
                heard.turn();
                heard.closed.take()
            });
            assert!(matches!(reason, CloseReason::Misbehaved(_)), "{what}: {reason:?}");
        }
        for bytes in [&[9u8, 4, 0, 0, 0, 0][..], &[3, 5, 0, 0, 0, 0, 0], &[2, 255], &[0; 40]] {
            let mut liar = Hand::new(heard.at, &dir, provider);
            heard.link();
            liar.says(bytes);
            let reason = until("nonsense ends the link", || {
                heard.turn();
                heard.closed.take()
            });
            assert!(matches!(reason, CloseReason::Misbehaved(_)), "{bytes:?}: {reason:?}");
        }
    });
}

/// A process that owns, or holds and writes on and on.
fn process(provider: &str, role: &str) -> (Dir, Peer, String) {
    let dir = Dir::new("process", &[]);
    let key = dir.secret().display().to_string();
    let library = named("HAMLYN_FABRIC_LIBRARY").unwrap_or_default().display().to_string();
    let own = [
        ("SECRET", key.as_str()),
        ("LISTEN", "127.0.0.1:0"),
        ("FABRIC", "trusted"),
        ("FABRIC_PROVIDER", provider),
        ("FABRIC_LIBRARY", library.as_str()),
    ];
    let dir = Dir::new("process", &own);
    std::fs::copy(&key, dir.path.join("secret")).unwrap();
    let mut peer = Peer::start(role, &dir, "");
    let at = format!("hamlyn://{}/memory", peer.says());
    (dir, peer, at)
}

const OF_PROCESSES: u64 = 8 << 20;

#[test]
fn what_is_written_to_memory_where_nothing_arrives_ends_the_link_though_its_owner_answers() {
    with_each_provider(|provider| {
        let dir = Dir::new("hand", &[]);
        let mut heard = Heard::new(provider, &[("HOST_TIMEOUT_MS", "2000")]);
        // No thread looks after it.
        let of_memory = Writer::new(provider, 4096);
        let address = of_memory.end.address().to_vec();
        let mut hand = Hand::new(heard.at, &dir, provider);
        heard.link();
        hand.say(&FabricWord::Offer(OpenedMemory {
            number: 1,
            bytes: 4096,
            base: 0,
            key: 5,
            access: RW,
            address,
        }));
        assert_eq!(hand.hears(&mut heard), FabricWord::Held(1));
        let aperture = until("it is held", || {
            heard.turn();
            heard.node.aperture(heard.apertures.first()?.0).ok()
        });
        aperture.write(0, &[1; 100]).unwrap();
        let mut asked = 0;
        let reason = until("the link has ended", || {
            heard.turn();
            hand.channel.receive(400);
            while let Ok(Some((word, bytes))) = words::read(hand.channel.plain()) {
                hand.channel.take(bytes);
                assert_eq!(word, FabricWord::Asks(true));
                hand.say(&FabricWord::Came(0));
                asked += 1;
            }
            heard.closed.take()
        });
        assert_eq!(reason, CloseReason::Died);
        assert!(asked >= 4, "{asked}");
    });
}

#[test]
fn what_a_provider_asks_for_is_done() {
    if providers().is_empty() {
        return skipped(NEEDED);
    }
    let dir = Dir::new("strict", &[]);
    let tests = [
        "a_deposit_arrives_whole_and_is_announced_after",
        "a_holder_that_may_only_read_reads_what_the_owner_has_written",
        "an_aperture_that_is_taken_back_while_it_is_written_ends_nothing_else",
        "long_records_of_a_stream_go_through_memory_of_another_host",
    ];
    let Some(saw) = strictly(&dir, &tests) else { return };
    for what in ["descriptor", "bound", "context", "virtual address"] {
        assert!(saw.lines().any(|line| line == what), "{what} was not looked at: {saw}");
    }
}

/// Not a test: the other process.
#[test]
fn role() {
    let Some(role) = Role::of_this_process() else { return };
    let mut me = Station::new(role.config(), 64, 1).serve("memory");
    say(&me.node.listens_at().unwrap().to_string());
    let link = connected(&mut me.node);
    match role.name.as_str() {
        "owner" => {
            let id = export(&mut me.node, link, OF_PROCESSES, RW);
            let view = me.node.aperture_view(id).unwrap();
            let mut first = [0];
            until_node(&mut me.node, "it is written", |_| {
                view.read(0, &mut first).unwrap();
                first != [0]
            });
            say("written");
            loop {
                me.node.wait(Some(Duration::from_millis(20))).unwrap();
            }
        }
        "holder" => {
            let aperture = held(&mut me.node);
            let bytes = vec![7; OF_PROCESSES as usize];
            loop {
                let _ = aperture.write(0, &bytes);
                me.node.wait(Some(Duration::from_millis(1))).unwrap();
            }
        }
        name => panic!("{name}"),
    }
}

#[test]
fn memory_of_a_holder_that_is_killed_while_it_writes_is_its_owners_again() {
    with_each_provider(|provider| {
        let (_dir, peer, at) = process(provider, "holder");
        let dir = Dir::new("owner", &[]);
        let mut owner = Station::new(trusted(&dir, provider), 64, 1);
        let (link, _) = owner.connect(&at);
        let id = export(&mut owner.node, link, OF_PROCESSES, RW);
        let view = owner.node.aperture_view(id).unwrap();
        let mut first = [0];
        until_node(&mut owner.node, "something has come", |_| {
            view.read(1 << 20, &mut first).unwrap();
            first == [7]
        });
        peer.kill();
        assert_eq!(closed(&mut owner.node, link), CloseReason::Died);
        // Received bytes can be read as long as a view exists, and are stable.
        let read = || {
            let mut bytes = vec![0; OF_PROCESSES as usize];
            view.read(0, &mut bytes).unwrap();
            bytes
        };
        let before = read();
        owner.node.wait(Some(Duration::from_millis(50))).unwrap();
        assert!(read() == before);
        drop(view);
        until_node(&mut owner.node, "its pages are back", |node| node.aperture_bytes() == (0, 0));
    });
}

#[test]
fn an_owner_that_is_killed_while_its_memory_is_written_is_told_of() {
    with_each_provider(|provider| {
        let (_dir, mut peer, at) = process(provider, "owner");
        let dir = Dir::new("holder", &[]);
        let mut holder = Station::new(trusted(&dir, provider), 64, 1);
        let (link, ticket) = holder.connect(&at);
        let aperture = held(&mut holder.node);
        aperture.write(0, &vec![7; OF_PROCESSES as usize]).unwrap();
        until_node(&mut holder.node, "it has come", |_| peer.has_said().is_some());
        peer.stop();
        aperture.write(0, &vec![8; OF_PROCESSES as usize]).unwrap();
        let words = [0; 24];
        holder.node.send(&ticket, b"", &words, LIMIT).unwrap();
        peer.kill();
        assert_eq!(closed(&mut holder.node, link), CloseReason::Died);
        assert_eq!(aperture.write(0, &[9]), Err(AccessError::Revoked));
        assert_eq!(holder.node.apertures_held().count(), 0);
    });
}

/// Sends records of a stream that may go through an aperture; what either end says of that.
fn stream(there: hamlyn::Config, here: hamlyn::Config) -> [String; 2] {
    let server = Manager::with_config(listening(there)).unwrap();
    let mut receiver =
        ApertureStreamReceiver::new(&server, StreamConfig::default(), 4 << 20).unwrap();
    receiver.serve("records", Access::SameUser).unwrap();
    server.start_progress().unwrap();
    let name = format!("hamlyn://{}/records", server.listens_at().unwrap());
    let lengths = || (0..60u64).map(|i| (i, [9, 64 << 10, 1 << 20, 300_000][i as usize % 4]));
    std::thread::scope(|scope| {
        let sends = scope.spawn(move || {
            let client = Manager::with_config(here).unwrap();
            let mut sender = ApertureStreamSender::connect(&client, &name, LIMIT).unwrap();
            for (i, length) in lengths() {
                sender.send(&pattern(length, i), LIMIT).unwrap();
            }
            let explained = sender.explain();
            sender.close(LIMIT).unwrap();
            explained
        });
        let mut volatile = 0;
        for (i, length) in lengths() {
            let record = receiver.receive(LIMIT).unwrap();
            let bytes = record.bytes().unwrap();
            volatile += usize::from(matches!(bytes, RecordBytes::Volatile(_)));
            assert!(bytes.to_vec().unwrap() == pattern(length, i), "record {i}");
        }
        let explained = receiver.explain();
        [sends.join().unwrap(), format!("{volatile} records through memory: {explained}")]
    })
}

#[test]
fn long_records_of_a_stream_go_through_memory_of_another_host() {
    with_each_provider(|provider| {
        let dirs = [Dir::new("there", &[]), Dir::new("here", &[])];
        let said = stream(trusted(&dirs[0], provider), trusted(&dirs[1], provider));
        for explained in &said {
            let path = "records of 262144 bytes and more through an aperture of 4194304";
            assert!(explained.contains(path), "{explained}");
        }
        assert!(!said[1].starts_with("0 records"), "{said:?}");
    });
}

#[test]
fn where_a_provider_opens_no_memory_the_same_program_goes_on_with_copies_and_explain_says_why() {
    let Ok(library) = Library::open(named("HAMLYN_FABRIC_LIBRARY").as_deref()) else {
        return skipped(NEEDED);
    };
    // One that is not asked, and those that the library itself has none of it for.
    let error = library.choose_for_memory("tcp;ofi_rxm", Some(HERE)).unwrap_err().to_string();
    assert!(error.contains("takes a tenth of a second"), "{error}");
    assert!(library.choose_for_memory("no_such_provider", None).is_err());
    let dirs = [Dir::new("there", &[]), Dir::new("here", &[])];
    let provider = "tcp;ofi_rxm";
    if library.choose(Some(provider), Some(HERE)).is_ok() {
        let said = stream(trusted(&dirs[0], provider), trusted(&dirs[1], provider));
        assert!(said[1].starts_with("0 records"), "{said:?}");
        assert!(said[1].contains("takes a tenth of a second"), "{said:?}");
    }
    let over_tls = |dir: &Dir| trusted(dir, "net").fabric(Fabric::Off);
    let said = stream(over_tls(&dirs[0]), over_tls(&dirs[1]));
    assert!(
        said[1].starts_with("0 records") && said[1].contains("only over libfabric"),
        "{said:?}"
    );
}
