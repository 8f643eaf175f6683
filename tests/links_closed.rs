//! Links that a node closes because of a peer's act, each counted under its own name and no other.
//! The test acts as the peer with the other end of the link: its pages, its sockets.
#![cfg(feature = "os")]

mod control_help;

use control_help::{Connects, Dir, LONG, name, start};
use hamlyn::control::{Control, NewLink};
use hamlyn::link::cells::{Lines, Word};
use hamlyn::link::ring::RingWriter;
use hamlyn::link::{Transmit, cells};
use hamlyn::node::CloseReason;
use hamlyn::os::socket;
use hamlyn::{
    Accept, Access, Config, Event, MetadataIndex, Node, NodeSendError, QueueId, SlotConfig, Ticket,
};
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// A node that serves `x` and gives every client a ticket.
struct Victim {
    node: Node,
    queue: QueueId,
    ticket: Ticket,
    before: Vec<(&'static str, u64)>,
}

impl Victim {
    fn new(config: Config) -> Self {
        let mut node = Node::with_config(config).unwrap();
        let area = node.message_area(4096).unwrap();
        let queue = node.notification_queue(16).unwrap();
        let slot = node.slot(SlotConfig::new(area, queue)).unwrap();
        let ticket = node.ticket(slot, MetadataIndex(0)).unwrap();
        let greeting = Accept::Automatic(ticket.to_bytes().to_vec());
        node.serve("x", Access::SameUser, greeting).unwrap();
        Self { node, queue, ticket, before: Vec::new() }
    }

    /// The other end of a link to it, which is up.
    fn peer(&mut self, dir: &Dir) -> (Control, NewLink) {
        let control = start(&dir.config());
        let link = control.connect(&name("x"), b"", LONG).unwrap();
        self.until(|event| matches!(event, Event::Connected { .. }).then_some(()));
        self.before = self.closed_counters();
        (control, link)
    }

    fn closed_counters(&self) -> Vec<(&'static str, u64)> {
        let counters = self.node.counters().into_iter();
        counters.filter(|row| row.0.starts_with("links_closed")).collect()
    }

    fn until<R>(&mut self, mut found: impl FnMut(Event) -> Option<R>) -> R {
        let end = Instant::now() + LONG;
        loop {
            self.node.poll().unwrap();
            while let Some(event) = self.node.next_event() {
                if let Some(found) = found(event) {
                    return found;
                }
            }
            assert!(Instant::now() < end, "the event never came");
        }
    }

    /// The link is closed for what its peer did: only `counter` says so, and the text says `why`.
    fn closes_one(&mut self, counter: &str, why: &str) {
        let reason = self.until(|event| match event {
            Event::Closed { reason, .. } => Some(reason),
            _ => None,
        });
        let CloseReason::Misbehaved(text) = reason else { panic!("{reason:?}") };
        assert!(text.contains(why), "{text}");
        for ((name, was), (_, is)) in self.before.iter().zip(self.closed_counters()) {
            let counts = *name == "links_closed" || *name == counter;
            assert_eq!(is - was, counts as u64, "{name}");
        }
        // Nothing but the link has suffered.
        self.node.send(&self.ticket, b"to itself", b"", Some(LONG)).unwrap();
        self.node.recv(self.queue, Some(LONG)).unwrap();
    }
}

#[test]
fn links_closed_noise_counts_a_peer_whose_refusals_come_too_fast() {
    let dir = Dir::new("noise");
    let mut config = dir.config();
    config.refusals_per_second_max = 1000;
    let mut victim = Victim::new(config);
    victim.before = victim.closed_counters();
    let mut peer = Node::with_config(dir.config()).unwrap();
    let link = peer.connect("x", b"", Some(LONG)).unwrap();
    // The key is right, and the place is not.
    let outside = Ticket { base: 5000, bound: 6000, ..victim.ticket };
    let noisy = std::thread::spawn(move || {
        let end = Instant::now() + LONG;
        loop {
            match peer.send_over(link, &outside, b"noise", b"", Some(Duration::from_millis(100))) {
                Ok(_) | Err(NodeSendError::TimedOut { .. }) => {}
                Err(_) => return,
            }
            assert!(Instant::now() < end, "it was never sent away");
        }
    });
    victim.closes_one("links_closed_noise", "refused packets within a second");
    noisy.join().unwrap();
}

#[test]
fn links_closed_violation_counts_a_ring_with_what_no_writer_writes() {
    let dir = Dir::new("ring");
    let mut victim = Victim::new(dir.config());
    let (_control, link) = victim.peer(&dir);
    let lines = link.outgoing.lines();
    // The lines of a writer.
    let mut writer = RingWriter::new(lines.clone(), link.incoming.freed(), 1024);
    let ticket = victim.ticket;
    let header = hamlyn::wire::Header {
        destination: ticket.destination.destination(),
        slot: ticket.slot,
        metadata_index: ticket.metadata_index,
        key: ticket.key,
        offset: 0,
        length: 16,
        delta: 0,
        metadata_len: 0,
        flags: ticket.flags,
        word: 0,
    };
    writer.transmit(&header, &[], &[1u8; 16][..]).unwrap();
    victim.node.recv(victim.queue, Some(LONG)).unwrap();
    // The same again in the next line, with the same lap's stamp, but that it is longer than the
    // whole ring.
    let stamp = cells::load_at(lines.lines(), 0) & 0xffff_ffff;
    let longer = hamlyn::wire::Header { length: i32::MAX as u32, ..header };
    for (i, word) in longer.to_words().into_iter().enumerate().rev() {
        let word = if i == 0 { word | stamp } else { word };
        cells::store_at(lines.lines(), 64 + 8 * i, word);
    }
    victim.closes_one("links_closed_violation", "a packet claims");
}

#[test]
fn links_closed_violation_counts_a_reader_that_claims_what_it_cannot_have_read() {
    let dir = Dir::new("freed");
    let mut victim = Victim::new(dir.config());
    let (_control, link) = victim.peer(&dir);
    link.outgoing.freed().word().store(1 << 40, Ordering::Release);
    // It is looked at when there is something to send.
    let to = victim.node.links().find(|to| *to != hamlyn::LinkId::SELF).unwrap();
    let destination = victim.node.peer(to).unwrap().node;
    let nowhere = Ticket { destination, ..victim.ticket };
    let end = Instant::now() + LONG;
    while victim.node.send_over(to, &nowhere, &[1; 1000], b"", Some(Duration::ZERO)).is_ok() {
        assert!(Instant::now() < end, "the claim was never looked at");
    }
    victim.closes_one("links_closed_violation", "the reader claims");
}

#[test]
fn links_closed_descriptor_counts_a_descriptor_over_the_wake_up_connection() {
    let dir = Dir::new("descriptor");
    let mut victim = Victim::new(dir.config());
    let (_control, link) = victim.peer(&dir);
    // Since Linux 6.16 the kernel itself refuses the descriptor. What is tested is what holds
    // before, so every socket of this process takes them again.
    const SO_PASSRIGHTS: libc::c_int = 83;
    for entry in std::fs::read_dir("/proc/self/fd").unwrap().flatten() {
        let fd: libc::c_int = entry.file_name().to_str().unwrap().parse().unwrap();
        let (yes, size) = (1 as libc::c_int, size_of::<libc::c_int>() as libc::socklen_t);
        // SAFETY: pointer and size are those of a live integer, which the call only reads; what is
        // no socket, or closed by now, is refused.
        unsafe {
            libc::setsockopt(fd, libc::SOL_SOCKET, SO_PASSRIGHTS, (&raw const yes).cast(), size)
        };
    }
    let file = hamlyn::os::memory::create(4096).unwrap();
    socket::send(link.way.wake().unwrap(), &[1], &[file.as_fd()]).unwrap();
    // A thread that waits for the node's descriptor sees it: one that sleeps on words looks at
    // nothing that came over that connection.
    victim.node.prepare_to_wait().unwrap();
    let end = Instant::now() + LONG;
    while victim.closed_counters() == victim.before {
        let _ = victim.node.recv(victim.queue, Some(Duration::from_millis(10)));
        assert!(Instant::now() < end, "it was never seen");
    }
    victim.closes_one("links_closed_descriptor", "descriptor");
}
