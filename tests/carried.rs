//! Each protocol over each kind of link, by the same code: a ring on one host, TLS over loopback
//! with one connection and with two, and libfabric over loopback with each provider that does TCP.
//! No protocol may know the kind of its link; and revoked rights are worthless over each.
#![cfg(not(miri))]

mod support;

use hamlyn::config::Fabric;
use hamlyn::node::{Event, ExportError};
use hamlyn::os::fabric::Library;
use hamlyn::protocol::{
    ByteConfig, ByteListener, ByteStream, CallError, Client, DatagramReceiver, DatagramSender,
    Group, GroupConfig, GroupMember, Manager, PublishConfig, Publisher, Server, ServerConfig,
    StreamConfig, StreamReceiver, StreamSender, SubscribeConfig, Subscriber, TaggedConfig,
    TaggedReceiver, TaggedSender,
};
use hamlyn::{Accept, Access, ApertureAccess, Config, MetadataIndex, Node, SlotConfig, Ticket};
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::mpsc;
use support::{Dir, LIMIT, skipped, until_node};

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Lengths about what a line, a packet, a message of a fabric and a ring hold.
const LENGTHS: [usize; 8] = [0, 1, 100, 4096, 16_000, 33_000, 200_000, 1_500_000];

/// Of samples that are copied to each subscriber.
const SAMPLES: [usize; 4] = [5, 0, 500, 1024];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Ring,
    /// With so many connections.
    Tls(u32),
    /// With this provider, and so many end points for each link.
    Fabric(&'static str, u32),
}

/// The settings of two hosts between which links are of one kind, or of one host.
fn configs(kind: Kind) -> (Vec<Dir>, Config, Config) {
    let dirs = vec![Dir::new("there", &[]), Dir::new("here", &[])];
    let config = |dir: &Dir| -> Config {
        if kind == Kind::Ring {
            return dirs[0].config();
        }
        let config = dir.config().secret(dir.secret());
        match kind {
            Kind::Tls(rails) => config.rails(rails),
            Kind::Fabric(provider, rails) => {
                let config = config.fabric(Fabric::Trusted).fabric_provider(provider).rails(rails);
                match std::env::var_os("HAMLYN_FABRIC_LIBRARY") {
                    Some(library) => config.fabric_library(library),
                    None => config,
                }
            }
            Kind::Ring => config,
        }
    };
    let (mut there, here) = (config(&dirs[0]), config(&dirs[1]));
    if kind != Kind::Ring {
        there = there.listen(SocketAddr::from((HERE, 0)));
    }
    (dirs, there, here)
}

/// Before a service's name.
fn before(at: Option<SocketAddr>) -> String {
    at.map_or(String::new(), |at| format!("hamlyn://{at}/"))
}

/// Whether it is what `explain` says of a link.
fn is_said(kind: Kind, path: &str) -> bool {
    let (tls, fabric) = (path.contains("TLS 1.3"), path.contains("libfabric "));
    match kind {
        Kind::Ring => !tls && !fabric,
        Kind::Tls(1) => tls && !fabric && !path.contains("rails"),
        Kind::Tls(rails) => tls && !fabric && path.contains(&format!("of {rails} rails")),
        Kind::Fabric(provider, rails) => {
            let is_spread = path.contains(&format!("of {rails} rails"));
            fabric && path.contains(provider) && is_spread == (rails > 1)
        }
    }
}

/// Two managers with a link of one kind between them, once they make one.
struct Pair {
    _dirs: Vec<Dir>,
    there: Manager,
    here: Manager,
    /// Before a service's name.
    at: String,
    kind: Kind,
}

impl Pair {
    fn of(kind: Kind) -> Self {
        let (dirs, there, here) = configs(kind);
        let there = Manager::with_config(there).unwrap();
        there.start_progress().unwrap();
        let here = Manager::with_config(here).unwrap();
        let at = before(there.listens_at());
        Self { _dirs: dirs, there, here, at, kind }
    }

    fn name(&self, service: &str) -> String {
        format!("{}{service}", self.at)
    }
}

/// Those that there are here.
fn kinds() -> Vec<Kind> {
    let mut kinds = vec![Kind::Ring, Kind::Tls(1), Kind::Tls(2)];
    let file = std::env::var_os("HAMLYN_FABRIC_LIBRARY").map(std::path::PathBuf::from);
    match Library::open(file.as_deref()) {
        Ok(library) => {
            for name in ["tcp", "net", "tcp;ofi_rxm"] {
                let choice = library.choose(Some(name), Some(HERE));
                if choice.is_ok_and(|choice| choice.provider() == name) {
                    kinds.extend([Kind::Fabric(name, 1), Kind::Fabric(name, 2)]);
                }
            }
        }
        Err(error) => eprintln!("{error}"),
    }
    if !kinds.iter().any(|kind| matches!(kind, Kind::Fabric(..))) {
        skipped("libfabric 1.17 or newer, with RDM over TCP (Debian: libfabric1)");
    }
    kinds
}

/// A test with each kind of link.
fn over_each_kind(test: impl Fn(&Pair)) {
    for kind in kinds() {
        eprintln!("over {kind:?}");
        test(&Pair::of(kind));
    }
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|i| (i % 251) as u8).collect()
}

#[test]
fn calls_are_answered_refused_and_given_up_over_each_kind_of_link() {
    over_each_kind(|pair| {
        let server = Server::new(&pair.there, ServerConfig::default()).unwrap();
        server.serve("calls", Access::SameUser).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..LENGTHS.len() + 1 {
                    let request = server.receive(LIMIT).unwrap();
                    match request.len() {
                        7 => request.fail(418, "seven", LIMIT).unwrap(),
                        _ => {
                            let twice = request.repeat(2);
                            request.reply(&twice, LIMIT).unwrap();
                        }
                    }
                }
            });
            let client = Client::connect(&pair.here, &pair.name("calls"), LIMIT).unwrap();
            let path = client.connection().explain(&pair.here);
            assert!(is_said(pair.kind, &path), "{:?}: {path}", pair.kind);
            for length in LENGTHS {
                let request = pattern(length);
                assert!(*client.call(&request, LIMIT).unwrap() == *request.repeat(2), "{length}");
            }
            let error = client.call(b"7 bytes", LIMIT).unwrap_err();
            assert!(matches!(&error, CallError::Application { code: 418, .. }), "{error}");
        });
    });
}

#[test]
fn records_of_every_length_arrive_whole_and_in_order_over_each_kind_of_link() {
    over_each_kind(|pair| {
        let mut records = StreamReceiver::new(&pair.there, StreamConfig::default()).unwrap();
        records.serve("records", Access::SameUser).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let name = pair.name("records");
                let mut sender = StreamSender::connect(&pair.here, &name, LIMIT).unwrap();
                for round in 0..4 {
                    for length in LENGTHS {
                        sender.send(&pattern(length + round), LIMIT).unwrap();
                    }
                }
                sender.flush(LIMIT).unwrap();
            });
            for round in 0..4 {
                for length in LENGTHS {
                    let record = records.receive(LIMIT).unwrap();
                    assert!(*record == *pattern(length + round), "{length} in round {round}");
                }
            }
        });
    });
}

#[test]
fn tagged_writes_lie_where_they_were_written_to_over_each_kind_of_link() {
    over_each_kind(|pair| {
        let mut tags = TaggedReceiver::new(&pair.there, TaggedConfig::new(6400)).unwrap();
        tags.serve("tags", Access::SameUser).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let name = pair.name("tags");
                let mut sender = TaggedSender::connect(&pair.here, &name, LIMIT).unwrap();
                for i in 0..100 {
                    sender.send(64 * u64::from(i), &[i as u8; 64], i, LIMIT).unwrap();
                }
            });
            for i in 0..100 {
                assert_eq!(tags.get_tag(LIMIT).unwrap().tag, i);
            }
        });
    });
}

#[test]
fn datagrams_are_answered_by_their_tickets_over_each_kind_of_link() {
    over_each_kind(|pair| {
        let mut receiver = DatagramReceiver::new(&pair.there, 200_000).unwrap();
        receiver.serve("datagrams", Access::SameUser).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..3 {
                    let datagram = receiver.receive(LIMIT).unwrap();
                    let back = receiver.with_bytes(&datagram, <[u8]>::to_vec).unwrap();
                    receiver.ready().unwrap();
                    receiver.reply(&datagram, &back, LIMIT).unwrap();
                }
            });
            let name = pair.name("datagrams");
            let mut sender = DatagramSender::connect(&pair.here, &name, LIMIT).unwrap();
            let mut answers = DatagramReceiver::new(&pair.here, 200_000).unwrap();
            let reply = answers.reply_ticket();
            for length in [10, 4096, 150_000] {
                sender.send(&pattern(length), 64, Some(&reply), LIMIT).unwrap();
                let answer = answers.receive(LIMIT).unwrap();
                answers.with_bytes(&answer, |back| assert!(back == pattern(length))).unwrap();
                answers.ready().unwrap();
            }
        });
    });
}

#[test]
fn a_group_is_reduced_and_answered_over_each_kind_of_link() {
    over_each_kind(|pair| {
        let config = GroupConfig { scatter_bytes: 16, ..GroupConfig::new(3, 100_000) };
        let mut group = Group::new(&pair.there, config).unwrap();
        group.serve("group", Access::SameUser).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let name = pair.name("group");
                    let mut member = GroupMember::connect(&pair.here, &name, 16, LIMIT).unwrap();
                    for round in 1..4u8 {
                        member.send(&vec![round; 90_000], LIMIT).unwrap();
                        assert_eq!(member.receive(LIMIT).unwrap(), [3 * round]);
                    }
                });
            }
            for round in 1..4u8 {
                let sum = group.reduce(LIMIT, 0, |sum, _, part| {
                    assert!(part.len() == 90_000 && part.iter().all(|byte| *byte == part[0]));
                    sum + part[0]
                });
                assert_eq!(sum.unwrap(), 3 * round);
                group.next_round();
                group.broadcast(&[3 * round], LIMIT).unwrap();
            }
        });
    });
}

#[test]
fn samples_reach_every_subscriber_over_each_kind_of_link() {
    over_each_kind(|pair| {
        // Without a pool, which ends at a host's edge.
        let publisher = Publisher::new(&pair.there, PublishConfig::default()).unwrap();
        publisher.serve("samples", Access::SameUser).unwrap();
        std::thread::scope(|scope| {
            let subscribed: Vec<_> = (0..2)
                .map(|_| {
                    scope.spawn(|| {
                        let (name, config) = (pair.name("samples"), SubscribeConfig::default());
                        let mut own =
                            Subscriber::connect(&pair.here, &name, config, LIMIT).unwrap();
                        for length in SAMPLES {
                            let sample = own.receive(LIMIT).unwrap();
                            let mut bytes = vec![0; sample.len()];
                            sample.copy_to(&mut bytes).unwrap();
                            assert!(bytes == pattern(length), "{length}");
                        }
                    })
                })
                .collect();
            let is_served = || publisher.subscribers().iter().filter(|one| one.is_served).count();
            while is_served() < 2 && !subscribed.iter().any(|one| one.is_finished()) {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            for length in SAMPLES {
                publisher.publish(&pattern(length), LIMIT).unwrap();
            }
            for one in subscribed {
                one.join().unwrap();
            }
        });
    });
}

#[test]
fn bytes_written_are_read_and_the_end_is_seen_over_each_kind_of_link() {
    over_each_kind(|pair| {
        let listener = ByteListener::new(&pair.there, ByteConfig::default()).unwrap();
        listener.serve("bytes", Access::SameUser).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut stream = listener.accept(LIMIT).unwrap();
                let mut all = Vec::new();
                stream.read_to_end(&mut all).unwrap();
                stream.write_all(&all).unwrap();
                stream.shut(LIMIT).unwrap();
            });
            let mut stream = ByteStream::connect(&pair.here, &pair.name("bytes"), LIMIT).unwrap();
            let bytes = pattern(3_000_000);
            stream.write_all(&bytes).unwrap();
            stream.shut(LIMIT).unwrap();
            let mut back = Vec::new();
            stream.read_to_end(&mut back).unwrap();
            assert!(back == bytes, "{} of {} bytes", back.len(), bytes.len());
        });
    });
}

#[test]
fn what_was_revoked_writes_nothing_more_over_each_kind_of_link_and_its_sender_is_told() {
    const BYTES: usize = 30_000;
    for kind in kinds() {
        eprintln!("over {kind:?}");
        let (_dirs, there, here) = configs(kind);
        let mut there = Node::with_config(there).unwrap();
        let area = there.message_area(BYTES).unwrap();
        let queue = there.notification_queue(8).unwrap();
        let slot = there.slot(SlotConfig::new(area, queue).metadata(8)).unwrap();
        let granted = |node: &Node| node.ticket(slot, MetadataIndex(0)).unwrap();
        let greeting = Accept::Automatic(granted(&there).to_bytes().to_vec());
        there.serve("x", Access::SameUser, greeting).unwrap();
        let name = format!("{}x", before(there.listens_at()));
        std::thread::scope(|scope| {
            // Waiting threads get an error if this thread fails.
            let (give, given) = mpsc::channel();
            let (stop, stopped) = mpsc::channel();
            let sends = scope.spawn(move || {
                let mut node = Node::with_config(here).unwrap();
                let link = node.connect(&name, &[], LIMIT).unwrap();
                let path = node.explain(link).unwrap();
                assert!(is_said(kind, &path), "{kind:?}: {path}");
                let first = Ticket::from_bytes(node.greeting(link).unwrap()).unwrap();
                // On and on, so that packets are on their way whenever the grant ends.
                let told = (1..=u8::MAX).cycle().find_map(|fill| {
                    node.send(&first, &[fill; BYTES], b"", LIMIT).unwrap();
                    node.next_event()
                });
                let Some(Event::TicketRevoked { slot, .. }) = told else { panic!("{told:?}") };
                assert_eq!(slot, first.slot);
                stop.send(()).unwrap();
                // The link is as good as before to a sender with a right to it.
                let next: Ticket = given.recv().unwrap();
                node.send(&next, &[77; BYTES], b"", LIMIT).unwrap();
                node.close(LIMIT).unwrap();
            });
            let mut came = 0;
            until_node(&mut there, "something came", |node| {
                while node.pop(queue).unwrap().is_some() {
                    came += 1;
                }
                came >= 3
            });
            there.revoke(slot).unwrap();
            let bytes = there.area(area).unwrap().to_vec();
            let mut has_stopped = false;
            until_node(&mut there, "what is on its way is refused, and its sender told", |node| {
                assert!(*node.area(area).unwrap() == *bytes, "written after it was revoked");
                has_stopped |= stopped.try_recv().is_ok();
                has_stopped
            });
            assert!(
                there.counters().iter().any(|(name, n)| *name == "refused_stale_key" && *n > 0)
            );
            // Parts that came before count to no message after.
            there.arm(slot, MetadataIndex(0), None).unwrap();
            while there.pop(queue).unwrap().is_some() {}
            give.send(granted(&there)).unwrap();
            until_node(&mut there, "the new grant's message", |node| {
                node.pop(queue).unwrap().is_some()
            });
            assert!(there.area(area).unwrap().iter().all(|byte| *byte == 77), "{kind:?}");
            // The sender leaves in its own time.
            until_node(&mut there, "the end", |node| {
                std::iter::from_fn(|| node.next_event())
                    .any(|event| matches!(event, Event::Closed { .. }))
            });
            sends.join().unwrap();
        });
    }
}

// No memory of a process is open over TLS, over several rails, or over a fabric whose provider does not do what
// is needed. Where it does: `fabric_memory`.
#[test]
fn an_aperture_to_another_host_is_refused_with_an_error_and_the_link_goes_on() {
    let has_none = |kind: &Kind| {
        matches!(kind, Kind::Tls(_) | Kind::Fabric("tcp;ofi_rxm", _) | Kind::Fabric(_, 2))
    };
    for kind in kinds().into_iter().filter(has_none) {
        let (_dirs, there, here) = configs(kind);
        let there = Manager::with_config(there).unwrap();
        there.start_progress().unwrap();
        let server = Server::new(&there, ServerConfig::default()).unwrap();
        server.serve("calls", Access::SameUser).unwrap();
        let name = format!("{}calls", before(there.listens_at()));
        let here = Manager::with_config(here).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..2 {
                    server.receive(LIMIT).unwrap().reply(b"yes", LIMIT).unwrap();
                }
            });
            let client = Client::connect(&here, &name, LIMIT).unwrap();
            assert_eq!(*client.call(b"?", LIMIT).unwrap(), *b"yes");
            let link = client.connection().link();
            for access in [ApertureAccess::ReadWrite, ApertureAccess::ReadOnly] {
                let error = here.lock().export(link, 1 << 20, access).unwrap_err();
                assert!(matches!(error, ExportError::OtherHost(_)), "{kind:?}: {error:?}");
            }
            assert_eq!(*client.call(b"?", LIMIT).unwrap(), *b"yes");
        });
    }
}
