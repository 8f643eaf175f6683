//! Two nodes of one process, used like nodes of two processes: each claim of the node's
//! documentation.

use hamlyn::node::{CloseReason, Event};
use hamlyn::protocol::Manager;
use hamlyn::{
    Accept, Access, Config, LinkId, MetadataIndex, Mode, Node, NodeSendError, Piece, QueueId,
    SlotConfig, SlotId, Ticket,
};
use std::path::PathBuf;
use std::time::{Duration, Instant};

const LONG: Option<Duration> = Some(Duration::from_secs(20));

/// A private runtime directory that goes with the value.
struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("hamlyn-node-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir(&dir).unwrap();
        std::os::unix::fs::chown(&dir, None, None).unwrap();
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o700)).unwrap();
        Self(dir)
    }

    fn config(&self) -> Config {
        Config::default().dir(self.0.clone())
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

struct Receiver {
    node: Node,
    queue: QueueId,
    slot: SlotId,
    area: hamlyn::AreaId,
    ticket: Ticket,
}

fn receiver(config: Config, bytes: usize, entries: u32) -> Receiver {
    let mut node = Node::with_config(config).unwrap();
    let area = node.message_area(bytes).unwrap();
    let queue = node.notification_queue(entries).unwrap();
    let slot = node.slot(SlotConfig::new(area, queue).metadata(entries)).unwrap();
    let ticket = node.ticket(slot, MetadataIndex(0)).unwrap();
    node.serve("test", Access::SameUser, Accept::Automatic(ticket.to_bytes().to_vec())).unwrap();
    Receiver { node, queue, slot, area, ticket }
}

fn sender(config: Config) -> (Node, LinkId, Ticket) {
    let mut node = Node::with_config(config).unwrap();
    let link = node.connect("test", b"", Some(Duration::from_secs(10))).unwrap();
    let ticket = Ticket::from_bytes(node.greeting(link).unwrap()).unwrap();
    (node, link, ticket)
}

fn pattern(n: usize) -> Vec<u8> {
    (0..n).map(|i| (i * 31 + i / 251) as u8).collect()
}

fn wait_until(node: &mut Node, mut done: impl FnMut(&mut Node) -> bool) {
    let start = Instant::now();
    while !done(node) {
        assert!(start.elapsed() < Duration::from_secs(20), "waited too long");
        node.wait(Some(Duration::from_millis(50))).unwrap();
    }
}

fn closed(node: &mut Node) -> CloseReason {
    let mut reason = None;
    wait_until(node, |node| {
        while let Some(event) = node.next_event() {
            if let Event::Closed { reason: r, .. } = event {
                reason = Some(r);
            }
        }
        reason.is_some()
    });
    reason.unwrap()
}

#[test]
fn a_message_lands_where_its_ticket_says() {
    let dir = Dir::new("lands");
    let mut r = receiver(dir.config(), 4096, 8);
    let (mut s, ..) = sender(dir.config());
    for (data, metadata) in [
        (&b"0123456789abcdef"[..], &b""[..]),
        (b"01234567", b"meta"),
        (b"", b""),
        (b"", &[7; 60]),
        (&[5; 1000], &[9; 33]),
        (&[5; 17], b""),
    ] {
        s.send(&r.ticket, data, metadata, LONG).unwrap();
        let n = r.node.recv(r.queue, LONG).unwrap();
        assert!(n.is_for(r.slot));
        assert_eq!(&r.node.area(r.area).unwrap()[..data.len()], data);
        assert_eq!(r.node.metadata(r.slot, n.index).unwrap().user(), metadata);
    }
}

#[test]
fn a_prepared_ticket_sends_what_its_ticket_would_also_when_its_link_has_been_replaced() {
    let dir = Dir::new("prepared");
    let mut r = receiver(dir.config(), 4096, 8);
    let (mut s, first, ticket) = sender(dir.config());
    let inner = Ticket { base: 8, bound: 2000, ..ticket };
    let prepared = s.prepare(&inner).unwrap();
    assert_eq!((prepared.ticket(), prepared.link()), (&inner, first));
    let mut arrives = |s: &mut Node, data: &[u8], metadata: &[u8]| {
        s.send_prepared(&prepared, data, metadata, LONG).unwrap();
        let n = r.node.recv(r.queue, LONG).unwrap();
        assert_eq!(&r.node.area(r.area).unwrap()[8..8 + data.len()], data);
        assert_eq!(r.node.metadata(r.slot, n.index).unwrap().user(), metadata);
    };
    for length in [0, 1, 8, 15, 16, 17, 1992] {
        arrives(&mut s, &pattern(length), b"");
        arrives(&mut s, &pattern(length), b"meta");
    }
    let long = s.send_prepared(&prepared, &[0; 1993], b"", LONG);
    assert!(matches!(long, Err(NodeSendError::Post(_))), "{long:?}");
    s.disconnect(first).unwrap();
    let gone = s.send_prepared(&prepared, b"nobody", b"", LONG);
    assert!(matches!(gone, Err(NodeSendError::Unreachable(_))), "{gone:?}");
    let second = s.connect("test", b"", Some(Duration::from_secs(10))).unwrap();
    assert_eq!((second.index, second == first), (first.index, false));
    arrives(&mut s, b"by the other link", b"");
}

// The handles that bindings for other languages use instead of the types.
#[test]
fn what_is_named_by_numbers_is_the_same_and_an_area_stays_where_it_is() {
    let dir = Dir::new("bits");
    let mut r = receiver(dir.config(), 4096, 8);
    assert_eq!(hamlyn::AreaId::from_bits(r.area.to_bits()), r.area);
    assert_eq!(QueueId::from_bits(r.queue.to_bits()), r.queue);
    assert_eq!(SlotId::from_bits(r.slot.to_bits()), r.slot);
    assert!(r.node.area(hamlyn::AreaId::from_bits(u64::MAX)).is_err());
    let (mut sender, link, ticket) = sender(dir.config());
    let buffer = sender.send_buffer(sender.primary(), 8).unwrap();
    sender.send_buffer_mut(sender.primary(), buffer).unwrap()[..5].copy_from_slice(b"there");
    let piece = Piece { tag: buffer, offset: 0, length: 5 };
    let handle = sender.post_send(sender.primary(), &ticket, &[piece], b"").unwrap();
    assert!(sender.wait_reusable(&handle, LONG).unwrap());
    assert_eq!(hamlyn::SendHandle::from_bits(handle.to_bits()), handle);
    let nonsense = hamlyn::SendHandle::from_bits([u64::MAX; 3]);
    assert!(sender.is_reusable(&handle) && sender.is_reusable(&nonsense));
    assert_ne!(link, LinkId::SELF);
    let (address, bytes) = r.node.area_address(r.area).unwrap();
    r.node.recv(r.queue, LONG).unwrap();
    let area = r.node.area(r.area).unwrap();
    assert_eq!((area.as_ptr(), area.len()), (address.cast_const(), bytes));
    assert_eq!(&area[..5], b"there");
}

#[test]
fn a_long_message_arrives_whole_through_every_size_of_ring() {
    for ring in [512u32, 1024, 4096, 32768] {
        for bulk in [0u32, 1 << 20] {
            let dir = Dir::new(&format!("long-{ring}-{bulk}"));
            let config =
                dir.config().ring_bytes(ring).bulk_ring_bytes(bulk).bulk_after_bytes(100_000u64);
            let mut r = receiver(config.clone(), 3 << 20, 3);
            let data = pattern((3 << 20) - 5);
            let sent = data.clone();
            let thread = std::thread::spawn(move || {
                let (mut s, link, ticket) = sender(config);
                // Packets of two messages may overtake one another: an entry each.
                for i in 0..3 {
                    let ticket = Ticket { metadata_index: MetadataIndex(i), ..ticket };
                    s.send(&ticket, &sent, b"about it", LONG).unwrap();
                }
                let why = s.explain(link).unwrap();
                s.close(LONG).unwrap();
                why
            });
            for i in 0..3 {
                if let Err(e) = r.node.recv(r.queue, LONG) {
                    panic!("message {i}, ring {ring}, bulk {bulk}: {e}: {:?}", r.node.counters());
                }
            }
            assert!(r.node.area(r.area).unwrap()[..data.len()] == data[..], "ring {ring}");
            assert_eq!(r.node.metadata(r.slot, MetadataIndex(0)).unwrap().user(), b"about it");
            let why = thread.join().unwrap();
            let asked = why.contains("bulk ring of") || why.contains("bulk ring was asked for");
            assert_eq!(asked, bulk > 0, "{why}");
        }
    }
}

#[test]
fn two_nodes_that_send_to_each_other_without_receiving_first_do_not_deadlock() {
    let dir = Dir::new("cross");
    let config = dir.config().ring_bytes(512u32).bulk_ring_bytes(0u32);
    let mut a = receiver(config.clone(), 1 << 20, 1);
    let thread = std::thread::spawn(move || {
        let mut node = Node::with_config(config).unwrap();
        let area = node.message_area(1 << 20).unwrap();
        let queue = node.notification_queue(1).unwrap();
        let slot = node.slot(SlotConfig::new(area, queue)).unwrap();
        let mine = node.ticket(slot, MetadataIndex(0)).unwrap();
        let link = node.connect("test", &mine.to_bytes(), Some(Duration::from_secs(10))).unwrap();
        let theirs = Ticket::from_bytes(node.greeting(link).unwrap()).unwrap();
        node.send(&theirs, &pattern(1 << 20), b"", LONG).unwrap();
        node.recv(queue, LONG).unwrap();
        assert!(node.area(area).unwrap() == &pattern(1 << 20)[..]);
    });
    let mut link = None;
    wait_until(&mut a.node, |node| {
        if let Some(Event::Connected { link: l, .. }) = node.next_event() {
            link = Some(l);
        }
        link.is_some()
    });
    let theirs = Ticket::from_bytes(a.node.greeting(link.unwrap()).unwrap()).unwrap();
    a.node.send(&theirs, &pattern(1 << 20), b"", LONG).unwrap();
    a.node.recv(a.queue, LONG).unwrap();
    assert!(a.node.area(a.area).unwrap() == &pattern(1 << 20)[..]);
    thread.join().unwrap();
}

#[test]
fn a_node_sends_to_itself() {
    let dir = Dir::new("self");
    let mut r = receiver(dir.config().ring_bytes(512u32), 1 << 20, 1);
    let data = pattern(1 << 20);
    let ticket = r.ticket;
    for _ in 0..3 {
        r.node.send(&ticket, &data, b"x", LONG).unwrap();
        r.node.recv(r.queue, LONG).unwrap();
        assert!(r.node.area(r.area).unwrap() == &data[..]);
    }
}

#[test]
fn pieces_of_send_buffer_areas_are_gathered_and_then_reusable() {
    let dir = Dir::new("gather");
    let mut r = receiver(dir.config(), 1 << 16, 1);
    let (mut s, ..) = sender(dir.config());
    let t = s.primary();
    let (a, b) = (s.send_buffer(t, 4096).unwrap(), s.send_buffer(t, 100_000).unwrap());
    s.send_buffer_mut(t, a).unwrap().fill(1);
    s.send_buffer_mut(t, b).unwrap().copy_from_slice(&pattern(100_000));
    let pieces = [
        Piece { tag: a, offset: 10, length: 20 },
        Piece { tag: b, offset: 3, length: 50_000 },
        Piece { tag: a, offset: 0, length: 0 },
        Piece { tag: a, offset: 4095, length: 1 },
    ];
    let handle = s.post_send(t, &r.ticket, &pieces, b"gathered").unwrap();
    assert!(s.remove_send_buffer(t, a).is_err() || s.is_reusable(&handle));
    let thread = std::thread::spawn(move || {
        assert!(s.flush(LONG).unwrap());
        assert!(s.is_reusable(&handle));
        s.remove_send_buffer(t, a).unwrap();
        s
    });
    r.node.recv(r.queue, LONG).unwrap();
    let _s = thread.join().unwrap();
    let got = r.node.area(r.area).unwrap();
    assert!(got[..20] == [1; 20] && got[20..50_020] == pattern(100_000)[3..50_003]);
    assert_eq!(got[50_020], 1);
    assert_eq!(r.node.metadata(r.slot, MetadataIndex(0)).unwrap().user(), b"gathered");
}

#[test]
fn a_piece_outside_its_area_is_refused_and_nothing_is_queued() {
    let dir = Dir::new("piece");
    let r = receiver(dir.config(), 1 << 16, 1);
    let (mut s, ..) = sender(dir.config());
    let t = s.primary();
    let tag = s.send_buffer(t, 64).unwrap();
    for (offset, length) in [(0, 65), (65, 0), (u64::MAX, 1), (1, u64::MAX), (64, 1)] {
        let error = s.post_send(t, &r.ticket, &[Piece { tag, offset, length }], b"").unwrap_err();
        assert!(error.to_string().contains("not inside"), "{error}");
    }
    assert!(s.flush(Some(Duration::ZERO)).unwrap());
}

#[test]
fn a_one_shot_entry_takes_one_message_until_it_is_armed() {
    let dir = Dir::new("oneshot");
    let mut r = receiver(dir.config(), 4096, 8);
    let config = SlotConfig::new(r.area, r.node.notification_queue(4).unwrap())
        .metadata(4)
        .mode(Mode::ParanoidOneShot);
    let queue = r.queue;
    let slot = r.node.slot(config).unwrap();
    let index = MetadataIndex(2);
    r.node.arm(slot, index, Some(100..200)).unwrap();
    let first = r.node.ticket(slot, index).unwrap();
    let (mut s, ..) = sender(dir.config());
    s.send(&first, &[1; 100], b"", LONG).unwrap();
    s.send(&first, &[2; 100], b"", LONG).unwrap();
    s.send(&r.ticket, b"done", b"", LONG).unwrap();
    r.node.recv(queue, LONG).unwrap();
    assert!(r.node.area(r.area).unwrap()[100..200] == [1; 100]);
    let counters = r.node.counters();
    assert!(counters.contains(&("refused_entry_closed", 1)), "{counters:?}");
    r.node.arm(slot, index, Some(100..200)).unwrap();
    let second = r.node.ticket(slot, index).unwrap();
    assert_ne!(first.key, second.key);
    s.send(&first, &[3; 100], b"", LONG).unwrap();
    s.send(&second, &[4; 100], b"", LONG).unwrap();
    s.send(&r.ticket, b"done", b"", LONG).unwrap();
    r.node.recv(queue, LONG).unwrap();
    assert!(r.node.area(r.area).unwrap()[100..200] == [4; 100]);
    assert!(r.node.counters().contains(&("refused_stale_key", 1)));
}

#[test]
fn a_revoked_key_is_worthless_at_once_also_for_packets_on_their_way() {
    let dir = Dir::new("revoke");
    let mut r = receiver(dir.config(), 4096, 8);
    let (mut s, ..) = sender(dir.config());
    s.send(&r.ticket, b"in the ring", b"", LONG).unwrap();
    r.node.revoke(r.slot).unwrap();
    wait_until(&mut r.node, |node| node.counters().contains(&("refused_stale_key", 1)));
    assert_eq!(r.node.try_recv(r.queue).unwrap(), None);
    assert!(r.node.area(r.area).unwrap().iter().all(|b| *b == 0));
}

#[test]
fn what_was_sent_before_the_sender_left_arrives() {
    let dir = Dir::new("leave");
    let mut r = receiver(dir.config(), 4096, 100);
    let (mut s, ..) = sender(dir.config());
    for i in 0..100u8 {
        s.send(&r.ticket, &[i; 16], b"", LONG).unwrap();
    }
    s.close(LONG).unwrap();
    assert_eq!(closed(&mut r.node), CloseReason::Closed);
    for _ in 0..100 {
        assert!(r.node.try_recv(r.queue).unwrap().is_some());
    }
    assert_eq!(r.node.try_recv(r.queue).unwrap(), None);
}

#[test]
fn a_sender_to_a_node_that_left_is_told() {
    let dir = Dir::new("left");
    let r = receiver(dir.config(), 4096, 1);
    let (mut s, ..) = sender(dir.config());
    let ticket = r.ticket;
    drop(r);
    closed(&mut s);
    assert!(matches!(s.send(&ticket, b"x", b"", LONG), Err(NodeSendError::Unreachable(_))));
}

#[test]
fn a_send_that_times_out_can_be_finished() {
    let dir = Dir::new("timeout");
    let config = dir.config().ring_bytes(512u32).bulk_ring_bytes(0u32);
    let mut r = receiver(config.clone(), 1 << 16, 1);
    let (mut s, ..) = sender(config);
    let data = pattern(1 << 16);
    let error = s.send(&r.ticket, &data, b"", Some(Duration::from_millis(20))).unwrap_err();
    let NodeSendError::TimedOut { unfinished: Some(unfinished) } = error else { panic!("{error}") };
    assert!(unfinished.bytes_sent() > 0 && unfinished.bytes_sent() < 512);
    let thread = std::thread::spawn(move || {
        s.send_rest(*unfinished, &data, LONG).unwrap();
        s
    });
    r.node.recv(r.queue, LONG).unwrap();
    assert!(r.node.area(r.area).unwrap() == &pattern(1 << 16)[..]);
    thread.join().unwrap();
}

#[test]
fn guessing_keys_ends_the_link() {
    let dir = Dir::new("guess");
    let mut r = receiver(dir.config().wrong_keys_max(100u32), 4096, 1);
    let (mut s, _, mut ticket) = sender(dir.config());
    for i in 0..200 {
        ticket.key = hamlyn::Key(i);
        let _ = s.try_send(&ticket, b"guess", b"");
    }
    assert!(matches!(closed(&mut r.node), CloseReason::Misbehaved(_)));
    assert!(r.node.counters().contains(&("links_closed_guessing", 1)));
    closed(&mut s);
}

fn counter(node: &Node, name: &str) -> u64 {
    node.counters().iter().find(|(n, _)| *n == name).unwrap_or_else(|| panic!("{name}")).1
}

/// Waits, without a call of the node that takes anything, for what its control plane counts.
fn until_counted(node: &Node, name: &str, value: u64) {
    let start = Instant::now();
    while counter(node, name) < value {
        assert!(start.elapsed() < Duration::from_secs(20), "{name} stays below {value}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn wrong_keys_are_forgiven_as_packets_are_accepted() {
    let dir = Dir::new("forgiven");
    let mut r = receiver(dir.config().wrong_keys_max(3u32), 4096, 1);
    let (mut s, _, ticket) = sender(dir.config());
    let wrong = Ticket { key: hamlyn::Key(1), ..ticket };
    let silent = ticket.silent();
    let mut wrong_keys = 0;
    let mut guess = |s: &mut Node, r: &mut Receiver| {
        s.try_send(&wrong, b"guess", b"").unwrap();
        wrong_keys += 1;
        wait_until(&mut r.node, |node| counter(node, "refused_wrong_key") == wrong_keys);
    };
    for _ in 0..5 {
        guess(&mut s, &mut r);
        guess(&mut s, &mut r);
        for _ in 0..2048 {
            s.try_send(&silent, b"right", b"").unwrap();
            r.node.poll().unwrap();
        }
        let received = counter(&s, "packets_sent") - counter(&r.node, "refused_wrong_key");
        wait_until(&mut r.node, |node| counter(node, "packets_received") == received);
    }
    assert_eq!(r.node.links().count(), 1);
    // Not in advance: what was accepted before the first wrong key pays for none.
    guess(&mut s, &mut r);
    guess(&mut s, &mut r);
    s.try_send(&wrong, b"guess", b"").unwrap();
    assert!(matches!(closed(&mut r.node), CloseReason::Misbehaved(_)));
    closed(&mut s);
}

#[test]
fn a_sender_whose_entry_is_armed_again_under_a_long_message_is_not_taken_for_a_guesser() {
    let dir = Dir::new("stale");
    let config = dir.config().packet_bytes(64u32).bulk_ring_bytes(0u32).wrong_keys_max(100u32);
    let mut r = receiver(config.clone(), 64, 1);
    let length = 5000 * 64;
    let area = r.node.message_area(length).unwrap();
    let queue = r.node.notification_queue(1).unwrap();
    let slot = r.node.slot(SlotConfig::new(area, queue).mode(Mode::Paranoid)).unwrap();
    let entry = MetadataIndex(0);
    r.node.arm(slot, entry, Some(0..length as u64)).unwrap();
    let old = r.node.ticket(slot, entry).unwrap();
    let (mut s, ..) = sender(config);
    let thread = std::thread::spawn(move || {
        s.send(&old, &vec![1; length], b"", LONG).unwrap();
        s
    });
    wait_until(&mut r.node, |node| counter(node, "packets_received") > 0);
    r.node.arm(slot, entry, Some(0..length as u64)).unwrap();
    let all = |node: &mut Node| {
        counter(node, "packets_received") + counter(node, "refused_stale_key") == 5000
    };
    wait_until(&mut r.node, all);
    assert!(counter(&r.node, "refused_stale_key") > 1000);
    assert_eq!(counter(&r.node, "refused_wrong_key"), 0);
    let mut s = thread.join().unwrap();
    let new = r.node.ticket(slot, entry).unwrap();
    s.send(&new, b"goes on", b"", LONG).unwrap();
    r.node.recv(queue, LONG).unwrap();
    assert_eq!(&r.node.area(area).unwrap()[..7], b"goes on");
}

/// Tickets of `slot` at a peer that it was told are worthless.
fn revoked(node: &mut Node) -> usize {
    let events = std::iter::from_fn(|| node.next_event());
    events.filter(|event| matches!(event, Event::TicketRevoked { .. })).count()
}

#[test]
fn however_often_tickets_change_under_a_long_message_its_sender_stays_and_is_told_of_each_once() {
    let dir = Dir::new("stale-often");
    let config = dir.config().packet_bytes(64u32).bulk_ring_bytes(0u32).wrong_keys_max(100u32);
    let mut r = receiver(config.clone(), 64, 1);
    let length = 5000 * 64;
    let area = r.node.message_area(length).unwrap();
    let queue = r.node.notification_queue(4).unwrap();
    let paranoid = SlotConfig::new(area, queue).mode(Mode::Paranoid);
    let entry = MetadataIndex(0);
    let (s, ..) = sender(config);
    let mut s = Some(s);
    for change in ["armed", "revoked", "removed", "replaced"] {
        let is_paranoid = change == "armed";
        let config = if is_paranoid { paranoid.clone() } else { SlotConfig::new(area, queue) };
        let slot = r.node.slot(config).unwrap();
        if is_paranoid {
            r.node.arm(slot, entry, Some(0..length as u64)).unwrap();
        }
        let old = r.node.ticket(slot, entry).unwrap();
        let mut sending = s.take().unwrap();
        let before = counter(&r.node, "packets_received");
        let refused = |node: &Node| {
            counter(node, "refused_stale_key") + counter(node, "refused_no_such_slot")
        };
        let refused_before = refused(&r.node);
        let thread = std::thread::spawn(move || {
            sending.send(&old, &vec![1; length], b"", LONG).unwrap();
            sending
        });
        wait_until(&mut r.node, |node| counter(node, "packets_received") > before);
        match change {
            "armed" => {
                for _ in 0..10 {
                    r.node.arm(slot, entry, Some(0..length as u64)).unwrap();
                }
            }
            "revoked" => {
                for _ in 0..10 {
                    r.node.revoke(slot).unwrap();
                }
            }
            "removed" => r.node.remove_slot(slot).unwrap(),
            _ => {
                r.node.remove_slot(slot).unwrap();
                let new = r.node.slot(paranoid.clone()).unwrap();
                assert_eq!(new.index(), slot.index());
            }
        }
        wait_until(&mut r.node, |node| {
            counter(node, "packets_received") - before + refused(node) - refused_before == 5000
        });
        assert!(refused(&r.node) - refused_before > 1000, "{change}");
        assert_eq!(counter(&r.node, "refused_wrong_key"), 0, "{change}");
        let mut sent = thread.join().unwrap();
        let mut told = 0;
        wait_until(&mut sent, |node| {
            told += revoked(node);
            told > 0
        });
        // It was told before, or with, what comes after it.
        sent.send(&r.ticket, b"goes on", b"", LONG).unwrap();
        r.node.recv(r.queue, LONG).unwrap();
        told += revoked(&mut sent);
        assert_eq!(told, 1, "{change}");
        s = Some(sent);
    }
    assert_eq!(counter(&r.node, "links_closed"), 0);
}

#[test]
fn what_a_peer_left_behind_is_taken_in_turns_as_bounded_as_any_other() {
    let dir = Dir::new("drain");
    let config = dir.config().packets_per_turn(10u32);
    let mut r = receiver(config.clone(), 4096, 1000);
    let (mut s, ..) = sender(config.clone());
    let (mut other, ..) = sender(config);
    for i in 0..500u32 {
        s.try_send(&r.ticket, &i.to_le_bytes(), b"").unwrap();
    }
    s.close(LONG).unwrap();
    until_counted(&r.node, "control.closed_graceful", 1);
    let mut turns = 0;
    let reason = loop {
        let before = counter(&r.node, "packets_received");
        let event = r.node.next_event();
        let taken = counter(&r.node, "packets_received") - before;
        if let Some(Event::Closed { reason, .. }) = event {
            break reason;
        }
        assert!(taken <= 10 && r.node.poll().unwrap() <= 20, "{taken} packets in one turn");
        turns += 1;
        if turns == 5 {
            // The others' turn comes meanwhile.
            other.try_send(&r.ticket.at(64).unwrap(), b"other", b"").unwrap();
        }
        if turns == 10 {
            assert_eq!(&r.node.area(r.area).unwrap()[64..69], b"other");
        }
    };
    assert_eq!((reason, turns > 20), (CloseReason::Closed, true), "after {turns} turns");
    assert_eq!(counter(&r.node, "messages_received"), 501);
}

#[test]
fn nothing_is_sent_to_a_peer_that_has_left_while_what_it_left_is_taken() {
    let dir = Dir::new("leaving");
    let mut r = receiver(dir.config().packets_per_turn(1u32), 4096, 100);
    let (mut s, ..) = sender(dir.config());
    let area = s.message_area(64).unwrap();
    let queue = s.notification_queue(1).unwrap();
    let slot = s.slot(SlotConfig::new(area, queue)).unwrap();
    let back = s.ticket(slot, MetadataIndex(0)).unwrap();
    for _ in 0..50 {
        s.try_send(&r.ticket, b"bye", b"").unwrap();
    }
    s.close(LONG).unwrap();
    until_counted(&r.node, "control.closed_graceful", 1);
    wait_until(&mut r.node, |node| counter(node, "packets_received") > 0);
    let link = r.node.links().next().unwrap();
    assert!(matches!(r.node.try_send(&back, b"x", b""), Err(NodeSendError::Unreachable(_))));
    let over = r.node.try_send_fast_over(link, &back, b"x", 0);
    assert!(matches!(over, Err(NodeSendError::LinkEnded(_))), "{over:?}");
    // A link that the application ends meanwhile is not reported.
    r.node.disconnect(link).unwrap();
    for _ in 0..100 {
        r.node.poll().unwrap();
    }
    assert_eq!(counter(&r.node, "links_closed"), 1);
    while let Some(event) = r.node.next_event() {
        assert!(!matches!(event, Event::Closed { .. }), "{event:?}");
    }
}

#[test]
fn blocking_and_adaptive_receivers_lose_no_wake_up() {
    for mode in [hamlyn::config::WaitMode::Blocking, hamlyn::config::WaitMode::Adaptive] {
        let dir = Dir::new(&format!("wake-{mode:?}"));
        let config = dir.config().wait_mode(mode).spin_ns(2_000u64);
        let mut a = receiver(config.clone(), 4096, 1);
        let thread = std::thread::spawn(move || {
            let mut node = Node::with_config(config).unwrap();
            let area = node.message_area(4096).unwrap();
            let queue = node.notification_queue(1).unwrap();
            let slot = node.slot(SlotConfig::new(area, queue)).unwrap();
            let mine = node.ticket(slot, MetadataIndex(0)).unwrap();
            let link =
                node.connect("test", &mine.to_bytes(), Some(Duration::from_secs(10))).unwrap();
            let theirs = Ticket::from_bytes(node.greeting(link).unwrap()).unwrap();
            for i in 0..2000u64 {
                node.send(&theirs, &i.to_le_bytes(), b"", LONG).unwrap();
                node.recv(queue, LONG).unwrap();
            }
        });
        let mut link = None;
        wait_until(&mut a.node, |node| {
            if let Some(Event::Connected { link: l, .. }) = node.next_event() {
                link = Some(l);
            }
            link.is_some()
        });
        let theirs = Ticket::from_bytes(a.node.greeting(link.unwrap()).unwrap()).unwrap();
        for i in 0..2000u64 {
            a.node.recv(a.queue, LONG).unwrap();
            assert_eq!(a.node.area(a.area).unwrap()[..8], i.to_le_bytes());
            a.node.send(&theirs, &i.to_le_bytes(), b"", LONG).unwrap();
        }
        thread.join().unwrap();
    }
}

#[test]
fn a_sleeping_sender_is_told_of_room() {
    let dir = Dir::new("room");
    let config = dir
        .config()
        .ring_bytes(512u32)
        .bulk_ring_bytes(0u32)
        .wait_mode(hamlyn::config::WaitMode::Blocking);
    let mut r = receiver(config.clone(), 1 << 20, 1);
    let thread = std::thread::spawn(move || {
        let (mut s, _, ticket) = sender(config);
        s.send(&ticket, &pattern(100_000), b"", LONG).unwrap();
        s
    });
    r.node.recv(r.queue, LONG).unwrap();
    assert!(r.node.area(r.area).unwrap()[..100_000] == pattern(100_000));
    thread.join().unwrap();
}

#[test]
fn a_fast_message_brings_its_word() {
    let dir = Dir::new("fast");
    let mut r = receiver(dir.config(), 4096, 8);
    let fast = r.node.fast_ticket(r.slot).unwrap();
    let (mut s, ..) = sender(dir.config());
    s.send_fast(&fast, b"payload", 0xdead_beef, LONG).unwrap();
    let n = r.node.recv(r.queue, LONG).unwrap();
    assert_eq!((n.index, n.word), (MetadataIndex::FAST, 0xdead_beef));
    assert_eq!(&r.node.area(r.area).unwrap()[..7], b"payload");
    let error = s.send_fast(&fast, &[0; 4096 * 8], 1, LONG).unwrap_err();
    assert!(error.to_string().contains("does not fit"), "{error}");
}

#[test]
fn data_moves_without_a_notification() {
    let dir = Dir::new("silent");
    let mut r = receiver(dir.config(), 4096, 8);
    let (mut s, ..) = sender(dir.config());
    s.send(&r.ticket.silent(), b"quiet", b"", LONG).unwrap();
    wait_until(&mut r.node, |node| node.area(hamlyn_area(&r.area)).unwrap()[..5] == *b"quiet");
    assert_eq!(r.node.try_recv(r.queue).unwrap(), None);
    fn hamlyn_area(area: &hamlyn::AreaId) -> hamlyn::AreaId {
        *area
    }
}

#[test]
fn a_group_is_announced_once_when_all_parts_have_come() {
    let dir = Dir::new("group");
    let mut r = receiver(dir.config(), 90_000, 8);
    let parts = r.ticket.split_evenly(3).unwrap();
    let threads: Vec<_> = parts
        .into_iter()
        .enumerate()
        .map(|(i, part)| {
            let config = dir.config();
            std::thread::spawn(move || {
                let (mut s, ..) = sender(config);
                s.send(&part, &vec![i as u8 + 1; 30_000], b"", LONG).unwrap();
                s.close(LONG).unwrap();
            })
        })
        .collect();
    r.node.recv(r.queue, LONG).unwrap();
    let area = r.node.area(r.area).unwrap();
    assert!((0..90_000).all(|i| area[i] == (i / 30_000) as u8 + 1));
    assert_eq!(r.node.try_recv(r.queue).unwrap(), None);
    threads.into_iter().for_each(|t| t.join().unwrap());
}

#[test]
fn a_request_can_be_refused_with_a_reason() {
    let dir = Dir::new("refuse");
    let mut node = Node::with_config(dir.config()).unwrap();
    node.serve("test", Access::SameUser, Accept::Ask).unwrap();
    let config = dir.config();
    let thread = std::thread::spawn(move || {
        let mut s = Node::with_config(config).unwrap();
        s.connect("test", b"let me in", Some(Duration::from_secs(10))).unwrap_err().to_string()
    });
    let mut asked = false;
    wait_until(&mut node, |node| {
        if let Some(Event::Request { id, greeting, .. }) = node.next_event() {
            assert_eq!(greeting, b"let me in");
            node.refuse(id, "not today").unwrap();
            asked = true;
        }
        asked
    });
    assert!(thread.join().unwrap().contains("not today"));
}

#[test]
fn a_shared_node_serves_several_threads_and_makes_progress_alone() {
    let dir = Dir::new("shared");
    let Receiver { node, queue, area, ticket, .. } = receiver(dir.config(), 4096, 64);
    let shared = Manager::from_node(node).unwrap();
    shared.start_progress().unwrap();
    let (mut s, ..) = sender(dir.config());
    s.send(&ticket, b"while nobody calls", b"", LONG).unwrap();
    let start = Instant::now();
    while &shared.lock().area(area).unwrap()[..5] != b"while" {
        assert!(start.elapsed() < Duration::from_secs(20));
        std::thread::sleep(Duration::from_millis(1));
    }
    for _ in 0..40 {
        s.send(&ticket, b"x", b"", LONG).unwrap();
    }
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let shared = shared.clone();
            std::thread::spawn(move || {
                for _ in 0..10 {
                    shared.recv(queue, LONG).unwrap();
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|t| t.join().unwrap());
    assert!(shared.recv(queue, LONG).is_ok());
    shared.stop_progress();
    assert!(shared.into_node().is_ok());
}

#[test]
fn an_interface_discards_until_it_is_enabled() {
    let dir = Dir::new("discard");
    let mut r = receiver(dir.config(), 4096, 8);
    r.node.disable();
    let (mut s, ..) = sender(dir.config());
    s.send(&r.ticket, b"lost", b"", LONG).unwrap();
    wait_until(&mut r.node, |node| node.counters().contains(&("packets_discarded", 1)));
    r.node.enable();
    s.send(&r.ticket, b"kept", b"", LONG).unwrap();
    r.node.recv(r.queue, LONG).unwrap();
    assert_eq!(&r.node.area(r.area).unwrap()[..4], b"kept");
}

#[test]
fn a_message_over_both_rings_is_taken_whole_or_not_at_all() {
    let dir = Dir::new("both");
    let config =
        dir.config().ring_bytes(4096u32).bulk_ring_bytes(65536u32).bulk_after_bytes(1u64 << 10);
    let mut r = receiver(config.clone(), 1 << 20, 200);
    let (mut s, link, ticket) = sender(config);
    s.send(&ticket, &pattern(3000), b"", LONG).unwrap();
    r.node.recv(r.queue, LONG).unwrap();
    wait_until(&mut s, |s| s.explain(link).unwrap().contains("messages in a bulk ring"));
    r.node.poll().unwrap();
    // The base ring is full, but for less than the message's last packet, and the bulk ring empty.
    let mut filled = 0;
    while s.try_send(&ticket, &[1; 300], b"").is_ok() {
        filled += 1;
    }
    let data = pattern(16256 + 500);
    let ticket = Ticket { metadata_index: MetadataIndex(1), ..ticket };
    assert!(matches!(s.try_send(&ticket, &data, b""), Err(NodeSendError::Full)));
    for _ in 0..filled {
        r.node.recv(r.queue, LONG).unwrap();
    }
    r.node.poll().unwrap();
    s.try_send(&ticket, &data, b"").unwrap();
    assert_eq!(r.node.recv(r.queue, LONG).unwrap().index, MetadataIndex(1));
    assert!(r.node.area(r.area).unwrap()[..data.len()] == data[..]);
}

#[test]
fn a_long_packet_overtakes_no_short_one_and_is_not_overtaken_if_its_ticket_keeps_order() {
    let dir = Dir::new("order");
    let config = dir.config().bulk_after_bytes(1u64 << 10);
    let mut r = receiver(config.clone(), 1 << 20, 200);
    let fast = r.node.fast_ticket(r.slot).unwrap();
    let (mut s, link, ticket) = sender(config);
    s.send(&ticket, &pattern(3000), b"", LONG).unwrap();
    r.node.recv(r.queue, LONG).unwrap();
    wait_until(&mut s, |s| s.explain(link).unwrap().contains("messages in a bulk ring"));
    r.node.poll().unwrap();
    let words = |s: &mut Node, r: &mut Receiver, tickets: [Ticket; 2]| {
        let lengths = [16, 3000, 16, 40, 3000, 2048, 16, 3000];
        for (word, length) in (0..).zip(lengths) {
            let ticket = tickets[usize::from(length >= 2048)];
            s.send_fast(&ticket, &pattern(length), word, LONG).unwrap();
        }
        lengths.map(|_| r.node.recv(r.queue, LONG).unwrap().word)
    };
    // Long packets are taken after all short ones of their turn.
    assert_eq!(words(&mut s, &mut r, [fast, fast]), [0, 2, 3, 6, 1, 4, 5, 7]);
    let kept = fast.in_order();
    assert_eq!(words(&mut s, &mut r, [fast, kept]), [0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(words(&mut s, &mut r, [kept; 2]), [0, 1, 2, 3, 4, 5, 6, 7]);

    // So do messages of many packets, in one call and from a send buffer area: the short message
    // finds all of their bytes.
    let data = pattern(20_000);
    let whole = Ticket { metadata_index: MetadataIndex(1), ..ticket }.in_order();
    let terminus = s.primary();
    let tag = s.send_buffer(terminus, data.len()).unwrap();
    s.send_buffer_mut(terminus, tag).unwrap().copy_from_slice(&data);
    for queued in [false, true] {
        r.node.area_mut(r.area).unwrap().fill(0);
        if queued {
            let pieces = [Piece { tag, offset: 0, length: data.len() as u64 }];
            let handle = s.post_send(terminus, &whole, &pieces, b"").unwrap();
            assert!(s.is_reusable(&handle), "the rings have room for it");
        } else {
            s.try_send(&whole, &data, b"").unwrap();
        }
        s.send_fast(&fast, b"", 8, LONG).unwrap();
        assert_eq!(r.node.recv(r.queue, LONG).unwrap().index, MetadataIndex(1));
        assert_eq!(r.node.recv(r.queue, LONG).unwrap().word, 8);
        assert!(r.node.area(r.area).unwrap()[..data.len()] == data[..]);
    }
    // The bulk ring was used by the packets without the flag alone, and goes on being used.
    assert_eq!(words(&mut s, &mut r, [fast, fast]), [0, 2, 3, 6, 1, 4, 5, 7]);
}

#[test]
fn a_bulk_ring_that_is_smaller_than_the_base_ring_is_not_used() {
    let dir = Dir::new("smaller");
    let config =
        dir.config().ring_bytes(32768u32).bulk_ring_bytes(4096u32).bulk_after_bytes(1u64 << 10);
    let mut r = receiver(config.clone(), 1 << 20, 8);
    let fast = r.node.fast_ticket(r.slot).unwrap();
    let (mut s, link, ticket) = sender(config);
    s.send(&ticket, &pattern(30000), b"", LONG).unwrap();
    r.node.recv(r.queue, LONG).unwrap();
    wait_until(&mut s, |s| s.explain(link).unwrap().contains("bulk ring was asked for"));
    r.node.poll().unwrap();
    for _ in 0..20 {
        s.wait(Some(Duration::from_millis(5))).unwrap();
    }
    // One packet, and so one notification.
    s.send_fast(&fast, &pattern(4000), 1, LONG).unwrap();
    s.send_fast(&fast, b"next", 2, LONG).unwrap();
    assert_eq!(r.node.recv(r.queue, LONG).unwrap().word, 1);
    assert_eq!(r.node.recv(r.queue, LONG).unwrap().word, 2);
    assert_eq!(&r.node.area(r.area).unwrap()[4..4000], &pattern(4000)[4..]);
}

// ---- what holds at the edges

#[test]
fn a_message_of_one_thread_to_the_node_itself_wakes_another() {
    let dir = Dir::new("self-shared");
    let config = dir.config().wait_mode(hamlyn::config::WaitMode::Blocking);
    let Receiver { node, queue, ticket, .. } = receiver(config, 4096, 1);
    let shared = Manager::from_node(node).unwrap();
    let sleeps = || shared.lock().counters().iter().find(|row| row.0 == "sleeps").unwrap().1;
    for _ in 0..50 {
        let (waiting, before) = (shared.clone(), sleeps());
        let thread = std::thread::spawn(move || waiting.recv(queue, LONG).unwrap());
        while sleeps() == before {
            std::thread::yield_now();
        }
        shared.send(&ticket, b"to myself", b"", LONG).unwrap();
        thread.join().unwrap();
    }
}

#[test]
fn the_last_user_of_a_shared_node_stops_its_progress_thread_and_parts() {
    let dir = Dir::new("last");
    let Receiver { node, .. } = receiver(dir.config(), 4096, 1);
    let shared = Manager::from_node(node).unwrap();
    shared.start_progress().unwrap();
    let (mut s, ..) = sender(dir.config());
    drop(shared);
    assert_eq!(closed(&mut s), CloseReason::Closed);
}

#[test]
fn events_that_nobody_takes_are_bounded_and_counted() {
    let dir = Dir::new("events");
    let mut r = receiver(dir.config(), 4096, 1);
    let (mut s, mut link, _) = sender(dir.config());
    for round in 1..=2100u64 {
        if round > 1 {
            link = s.connect("test", b"", LONG).unwrap();
        }
        s.disconnect(link).unwrap();
        wait_until_quietly(&mut r.node, |node| node.counters().contains(&("links_closed", round)));
    }
    let dropped = r.node.counters().iter().find(|c| c.0 == "events_dropped").unwrap().1;
    let mut kept = 0;
    while r.node.next_event().is_some() {
        kept += 1;
    }
    assert_eq!(kept + dropped, 2 * 2100);
    assert!(kept <= 4096);
}

fn wait_until_quietly(node: &mut Node, mut done: impl FnMut(&mut Node) -> bool) {
    let start = Instant::now();
    while !done(node) {
        assert!(start.elapsed() < Duration::from_secs(20), "waited too long");
        node.poll().unwrap();
        std::thread::sleep(Duration::from_micros(100));
    }
}

#[test]
fn an_application_that_runs_the_control_plane_learns_of_deaths_in_blocking_calls() {
    let dir = Dir::new("application");
    let r = receiver(dir.config(), 1 << 20, 1);
    let config = dir
        .config()
        .ring_bytes(512u32)
        .bulk_ring_bytes(0u32)
        .housekeeping(hamlyn::config::Housekeeping::Application);
    let (mut s, ..) = sender(config);
    let ticket = r.ticket;
    let thread = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(30));
        drop(r);
    });
    // More than the ring holds, to a node that does not receive and then goes.
    let error = s.send(&ticket, &pattern(1 << 20), b"", LONG).unwrap_err();
    assert!(
        matches!(error, NodeSendError::LinkEnded(_) | NodeSendError::Unreachable(_)),
        "{error}"
    );
    thread.join().unwrap();
}

#[test]
fn a_node_that_nobody_else_drives_never_discards_for_its_watchdog() {
    let dir = Dir::new("no-watchdog");
    let mut r = receiver(dir.config().watchdog_ms(1u32), 4096, 1);
    let (mut s, ..) = sender(dir.config());
    s.send(&r.ticket, b"kept", b"", LONG).unwrap();
    std::thread::sleep(Duration::from_millis(20));
    r.node.recv(r.queue, LONG).unwrap();
}

#[test]
fn a_close_that_loses_messages_is_not_reported_as_a_clean_one() {
    let dir = Dir::new("lossy");
    let config = dir.config().ring_bytes(512u32).bulk_ring_bytes(0u32);
    let mut r = receiver(config.clone(), 4096, 100);
    let (mut s, ..) = sender(config);
    for _ in 0..40 {
        s.try_send(&r.ticket, &[1; 100], b"").unwrap();
    }
    assert!(s.close(Some(Duration::ZERO)).unwrap() > 0);
    assert_eq!(closed(&mut r.node), CloseReason::HungUp);
}

#[test]
fn any_of_several_queues_can_be_waited_for() {
    let dir = Dir::new("any");
    let mut r = receiver(dir.config(), 4096, 1);
    let second = r.node.notification_queue(1).unwrap();
    let slot = r.node.slot(SlotConfig::new(r.area, second)).unwrap();
    let ticket = r.node.ticket(slot, MetadataIndex(0)).unwrap();
    let (mut s, link, first) = sender(dir.config());
    s.send_over(link, &ticket, b"second", b"", LONG).unwrap();
    assert_eq!(r.node.recv_any(&[r.queue, second], LONG).unwrap().0, second);
    s.send(&first, b"first", b"", LONG).unwrap();
    assert_eq!(r.node.recv_any(&[r.queue, second], LONG).unwrap().0, r.queue);
    let elsewhere = Ticket { destination: s.id(), ..ticket };
    assert!(matches!(
        s.send_over(link, &elsewhere, b"", b"", LONG),
        Err(NodeSendError::Unreachable(_))
    ));
}

#[test]
fn a_thread_takes_notifications_without_the_node() {
    let dir = Dir::new("consumer");
    let mut r = receiver(dir.config(), 4096, 100);
    let mut consumer = r.node.take_consumer(r.queue).unwrap();
    assert!(r.node.try_recv(r.queue).is_err());
    let thread = std::thread::spawn(move || {
        let mut taken = 0;
        while taken < 100 {
            taken += consumer.pop().is_some() as u32;
        }
    });
    let (mut s, ..) = sender(dir.config());
    for _ in 0..100 {
        s.send(&r.ticket, b"x", b"", LONG).unwrap();
    }
    wait_until(&mut r.node, |_| thread.is_finished());
    thread.join().unwrap();
}

#[test]
fn names_of_removed_parts_name_nothing_else() {
    let dir = Dir::new("stale");
    let mut node = Node::with_config(dir.config()).unwrap();
    let area = node.message_area(64).unwrap();
    let queue = node.notification_queue(4).unwrap();
    let slot = node.slot(SlotConfig::new(area, queue)).unwrap();
    let ticket = node.ticket(slot, MetadataIndex(0)).unwrap();
    node.send(&ticket, b"x", b"", LONG).unwrap();
    node.poll().unwrap();
    node.remove_slot(slot).unwrap();
    // Its notification waits, and is not another slot's.
    let other = node.slot(SlotConfig::new(area, queue)).unwrap();
    let notification = node.try_recv(queue).unwrap().unwrap();
    assert!(notification.is_for(slot) && !notification.is_for(other));
    node.remove_slot(other).unwrap();
    node.remove_queue(queue).unwrap();
    node.remove_area(area).unwrap();
    let (new_area, new_queue) =
        (node.message_area(128).unwrap(), node.notification_queue(1).unwrap());
    assert!(node.area(area).is_err() && node.try_recv(queue).is_err());
    assert!(node.area(new_area).is_ok() && node.try_recv(new_queue).is_ok());
}

#[test]
fn what_is_queued_with_a_higher_priority_leaves_before_a_direct_send() {
    let dir = Dir::new("priority");
    let config = dir.config().ring_bytes(1024u32).bulk_ring_bytes(0u32);
    let mut r = receiver(config.clone(), 1 << 20, 2);
    let (mut s, ..) = sender(config);
    let urgent = s.terminus();
    s.set_priority(urgent, 9).unwrap();
    let tag = s.send_buffer(urgent, 1 << 19).unwrap();
    let ticket = r.ticket;
    let piece = Piece { tag, offset: 0, length: 1 << 19 };
    let first = s.post_send(urgent, &ticket, &[piece], b"").unwrap();
    assert!(!s.is_reusable(&first));
    let thread = std::thread::spawn(move || {
        let second = Ticket { metadata_index: MetadataIndex(1), ..ticket };
        s.send(&second, &pattern(1 << 19), b"", LONG).unwrap();
        assert!(s.is_reusable(&first), "the urgent message was overtaken");
        assert!(s.wait_reusable(&first, LONG).unwrap());
        s.close(LONG).unwrap();
    });
    assert_eq!(r.node.recv(r.queue, LONG).unwrap().index, MetadataIndex(0));
    assert_eq!(r.node.recv(r.queue, LONG).unwrap().index, MetadataIndex(1));
    thread.join().unwrap();
}

/// Posts a message of many packets to `posted` and sends short ones to `direct`, and makes no other
/// call; the receivers take what comes. Says how many short ones had been taken when the posted one
/// had left.
fn only_try_send(
    s: &mut Node,
    posted: &Ticket,
    direct: &Ticket,
    mut receive: impl FnMut() -> u64,
) -> u64 {
    let other = s.terminus();
    let tag = s.send_buffer(other, 1 << 16).unwrap();
    let piece = Piece { tag, offset: 0, length: 1 << 16 };
    let handle = s.post_send(other, posted, &[piece], b"").unwrap();
    assert!(!s.is_reusable(&handle) && s.queued() == 1);
    let (mut taken, mut calls) = (0, 0);
    while !s.is_reusable(&handle) {
        match s.try_send(direct, b"short", b"") {
            Ok(()) | Err(NodeSendError::Full) => {}
            Err(e) => panic!("{e}"),
        }
        taken += receive();
        calls += 1;
        assert!(calls < 100_000, "what was posted does not leave");
    }
    taken
}

#[test]
fn what_waits_in_a_work_queue_leaves_while_the_program_only_ever_calls_try_send() {
    let dir = Dir::new("only-try-send");
    let config = dir.config().ring_bytes(1024u32).bulk_ring_bytes(0u32);
    let mut r = receiver(config.clone(), 1 << 17, 2);
    let other = {
        let mut node = Node::with_config(config.clone()).unwrap();
        let area = node.message_area(1 << 16).unwrap();
        let queue = node.notification_queue(1).unwrap();
        let slot = node.slot(SlotConfig::new(area, queue)).unwrap();
        let ticket = node.ticket(slot, MetadataIndex(0)).unwrap();
        node.serve("other", Access::SameUser, Accept::Automatic(vec![])).unwrap();
        (node, queue, ticket)
    };
    let (mut elsewhere, queue, there) = other;
    let (mut s, ..) = sender(config);
    s.connect("other", b"", Some(Duration::from_secs(10))).unwrap();
    let short = r.node.ticket(r.slot, MetadataIndex(1)).unwrap();
    // Another terminus of the same priority, over the same link: the two share it.
    let ticket = r.ticket;
    let taken = only_try_send(&mut s, &ticket, &short, || {
        r.node.poll().unwrap();
        let mut taken = 0;
        while let Some(message) = r.node.pop(r.queue).unwrap() {
            taken += u64::from(message.index == MetadataIndex(1));
        }
        taken
    });
    assert!(taken > 10, "the message that waited let {taken} of the others go first");
    // Over another link than the short ones, each of which finds room.
    let mut whole = 0;
    only_try_send(&mut s, &there, &short, || {
        r.node.poll().unwrap();
        while r.node.pop(r.queue).unwrap().is_some() {}
        elsewhere.poll().unwrap();
        whole += u64::from(elsewhere.pop(queue).unwrap().is_some());
        1
    });
    elsewhere.poll().unwrap();
    whole += u64::from(elsewhere.pop(queue).unwrap().is_some());
    assert_eq!(whole, 1);
}

fn asleep_in_an_event_loop(node: &mut Node) {
    let start = Instant::now();
    while !node.prepare_to_wait().unwrap() {
        node.poll().unwrap();
        while node.next_event().is_some() {}
        assert!(start.elapsed() < Duration::from_secs(20), "it may never wait");
    }
}

fn is_readable(node: &Node) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let fd = node.as_fd();
    poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&now)).unwrap() > 0
}

#[test]
fn nobody_is_woken_who_is_awake_or_was_not_to_be_and_once_is_enough() {
    let dir = Dir::new("woken");
    let mut r = receiver(dir.config(), 4096, 64);
    let (mut s, ..) = sender(dir.config());
    let wakes = |s: &Node| s.counters().iter().find(|row| row.0 == "wakes_sent").unwrap().1;
    let ticket = |r: &Receiver, i| r.node.ticket(r.slot, MetadataIndex(i)).unwrap();
    let take_all = |r: &mut Receiver| {
        r.node.poll().unwrap();
        let mut taken = 0;
        while r.node.pop(r.queue).unwrap().is_some() {
            taken += 1;
        }
        taken
    };
    take_all(&mut r);
    let before = wakes(&s);
    // An awake receiver: it finds each, without a signal.
    for i in 0..10 {
        s.send(&ticket(&r, i), b"awake", b"", LONG).unwrap();
        assert_eq!(take_all(&mut r), 1);
    }
    assert_eq!(wakes(&s), before);
    // Asleep, and a message without a wake-up.
    asleep_in_an_event_loop(&mut r.node);
    s.send(&ticket(&r, 10).silent(), b"silent", b"", LONG).unwrap();
    assert_eq!(wakes(&s), before);
    assert!(!is_readable(&r.node));
    // Then many that are: one signal for all, until it sleeps again.
    for i in 11..40 {
        s.send(&ticket(&r, i), b"wake", b"", LONG).unwrap();
        assert!(is_readable(&r.node));
    }
    assert_eq!(wakes(&s), before + 1);
    // The silent one came with them, without a notification or with one, as its flags say.
    assert!(take_all(&mut r) >= 29);
    asleep_in_an_event_loop(&mut r.node);
    assert!(!is_readable(&r.node));
    s.send(&ticket(&r, 40), b"again", b"", LONG).unwrap();
    assert_eq!(wakes(&s), before + 2);
    assert!(is_readable(&r.node));
}

#[test]
fn an_event_loop_that_does_the_housekeeping_is_told_when_by_its_own_descriptor() {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let dir = Dir::new("own-housekeeping");
    let config = dir.config().housekeeping(hamlyn::config::Housekeeping::Application);
    let mut r = receiver(config, 4096, 1);
    let client = dir.config();
    let thread = std::thread::spawn(move || {
        let (mut s, _, ticket) = sender(client);
        s.send(&ticket, b"hello", b"", LONG).unwrap();
        s.close(LONG).unwrap();
    });
    let start = Instant::now();
    let mut has_connected = false;
    while !has_connected {
        // No other thread of this process accepts clients: the descriptor has to report them.
        let slice = Timespec { tv_sec: 1, tv_nsec: 0 };
        let fd = r.node.housekeeping_fd();
        let is_ready = poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&slice)).unwrap() > 0;
        let is_due = r.node.housekeeping_deadline_ns().is_some();
        if is_ready || is_due {
            r.node.run_housekeeping(Some(Duration::ZERO)).unwrap();
        }
        while let Some(event) = r.node.next_event() {
            has_connected |= matches!(event, Event::Connected { .. });
        }
        assert!(start.elapsed() < Duration::from_secs(20), "nobody was accepted");
    }
    r.node.recv(r.queue, LONG).unwrap();
    thread.join().unwrap();
    assert_eq!(&r.node.area(r.area).unwrap()[..5], b"hello");
}

#[test]
fn a_notification_holds_the_slot_that_the_next_call_takes_also_when_that_was_removed() {
    let dir = Dir::new("named");
    let mut there = receiver(dir.config(), 64, 2);
    let (mut here, _, ticket) = sender(dir.config());
    for text in [b"first", b"other"] {
        here.send(&ticket, text, &text[..1], LONG).unwrap();
    }
    // Both paths of a notification: looked for while it comes in, and out of the queue.
    let message = there.node.recv(there.queue, LONG).unwrap();
    assert_eq!(message.slot, there.slot);
    assert_eq!(there.node.metadata(message.slot, message.index).unwrap().user().len(), 1);
    while there.node.counters().iter().all(|(name, n)| *name != "notifications" || *n < 2) {
        there.node.poll().unwrap();
    }

    // The slot goes, and another comes, before its last message is taken out.
    there.node.remove_slot(there.slot).unwrap();
    let queue = there.node.notification_queue(1).unwrap();
    let next = there.node.slot(SlotConfig::new(there.area, queue).metadata(1)).unwrap();
    let message = there.node.recv(there.queue, LONG).unwrap();
    assert_eq!(message.slot, there.slot);
    assert_ne!(message.slot, next);
    assert_eq!(
        there.node.metadata(message.slot, message.index).err(),
        Some(hamlyn::node::SlotError::NoSuchSlot(there.slot))
    );
}
