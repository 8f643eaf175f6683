//! Calls of a node that layers are made of: messages gathered from slices, with every choice of
//! sending; prepared tickets at an offset and over one link; lines with their bytes.

use hamlyn::node::{NodeSendError, PostError};
use hamlyn::{
    Accept, Access, AreaId, Config, Envelope, LinkId, MetadataIndex, Node, NodeReceiveError,
    PIECES_MAX, QueueId, SlotConfig, SlotId, Ticket,
};
use std::time::Duration;

const LIMIT: Option<Duration> = Some(Duration::from_secs(20));
const NOW: Option<Duration> = Some(Duration::ZERO);
const AREA_BYTES: usize = 1 << 20;

/// Two nodes with two links between them.
struct World {
    _dir: tempfile::TempDir,
    here: Node,
    links: [LinkId; 2],
    there: Node,
    area: AreaId,
    queue: QueueId,
    slot: SlotId,
    fast: Ticket,
    entry: Ticket,
}

fn world() -> World {
    let dir = tempfile::tempdir().unwrap();
    let config = Config::default().dir(dir.path()).shared_dir(dir.path().join("shared"));
    // No other ring, so that a link is full soon.
    let config = config.ring_bytes(4096u32).bulk_ring_bytes(0u32);
    let mut there = Node::with_config(config.clone()).unwrap();
    let (area, queue) =
        (there.message_area(AREA_BYTES).unwrap(), there.notification_queue(200).unwrap());
    let slot = there.slot(SlotConfig::new(area, queue).metadata(2).credit(200)).unwrap();
    let fast = there.fast_ticket(slot).unwrap();
    let entry = there.ticket(slot, MetadataIndex(1)).unwrap();
    there.serve("there", Access::SameUser, Accept::Automatic(vec![])).unwrap();
    let mut here = Node::with_config(config).unwrap();
    let links = [(); 2].map(|()| here.connect("there", b"", LIMIT).unwrap());
    World { _dir: dir, here, links, there, area, queue, slot, fast, entry }
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|i| (i * 31 + i / 251) as u8).collect()
}

/// Cuts `bytes` into slices that end there.
fn cut<'a>(bytes: &'a [u8], ends: &[usize]) -> Vec<&'a [u8]> {
    let starts = [0].into_iter().chain(ends.iter().copied());
    let ends = ends.iter().copied().chain([bytes.len()]);
    starts.zip(ends).map(|(start, end)| &bytes[start..end]).collect()
}

#[test]
fn slices_of_any_length_arrive_as_one_message_with_its_metadata() {
    let World { mut here, mut there, area, queue, slot, entry, _dir, .. } = world();
    let whole = pattern(100_000);
    let cuts: [(usize, &[usize]); 8] = [
        (0, &[]),
        (0, &[0, 0]),
        (16, &[3, 3, 9]),
        (17, &[16]),
        (64, &[1, 63]),
        (300, &[16, 100]),
        (5000, &[1, 2, 3, 900, 4999]),
        (100_000, &[7, 1000, 1001, 65_000]),
    ];
    for metadata in [&b""[..], b"nine byte", &[9; 60]] {
        for (length, ends) in cuts {
            let bytes = &whole[..length];
            let slices = cut(bytes, ends);
            there.area_mut(area).unwrap().fill(0);
            let envelope = Envelope::new(&entry).metadata(metadata);
            std::thread::scope(|scope| {
                let sent = scope.spawn(|| here.send_gathered(&envelope, &slices, LIMIT).unwrap());
                let message = there.recv(queue, LIMIT).unwrap();
                assert_eq!(message.index, MetadataIndex(1));
                sent.join().unwrap();
            });
            assert!(there.area(area).unwrap()[..length] == *bytes, "{length} {ends:?}");
            assert!(there.area(area).unwrap()[length..].iter().all(|byte| *byte == 0));
            assert_eq!(there.metadata(slot, MetadataIndex(1)).unwrap().user(), metadata);
        }
    }
}

#[test]
fn a_gathered_message_in_fast_mode_brings_its_word_over_the_link_that_was_asked_for() {
    let World { mut here, links, mut there, area, queue, fast, _dir, .. } = world();
    let long = pattern(800);
    let mut came = Vec::new();
    for (word, link) in (1..).zip([0, 1, 1, 0]) {
        for slices in [[&b"short"[..], b"er"], [&long[..40], &long[40..]]] {
            let envelope = Envelope::new(&fast).word(word).over(links[link]);
            here.try_send_gathered(&envelope, &slices).unwrap();
            let message = there.recv(queue, LIMIT).unwrap();
            let bytes = slices.concat();
            assert_eq!(message.word, word);
            assert!(there.area(area).unwrap()[..bytes.len()] == bytes[..]);
            came.push((link, message.link));
        }
    }
    let of = |link| came.iter().find(|of| of.0 == link).unwrap().1;
    assert_ne!(of(0), of(1));
    assert!(came.iter().all(|(link, found)| of(*link) == *found), "{came:?}");
    // A link that leads elsewhere, and one that has ended.
    let elsewhere = Envelope::new(&fast).over(LinkId::SELF);
    let refused = here.send_gathered(&elsewhere, &[b"x"], LIMIT);
    assert!(matches!(refused, Err(NodeSendError::Unreachable(_))), "{refused:?}");
    here.disconnect(links[0]).unwrap();
    let ended = here.send_gathered(&Envelope::new(&fast).over(links[0]), &[b"x"], LIMIT);
    assert!(matches!(ended, Err(NodeSendError::Unreachable(_))), "{ended:?}");
    here.send_gathered(&Envelope::new(&fast), &[b"x"], LIMIT).unwrap();
}

#[test]
fn a_gathered_message_that_is_not_allowed_leaves_nothing_behind() {
    let World { mut here, mut there, queue, fast, entry, _dir, .. } = world();
    let many = [&b"0123456789"[..]; PIECES_MAX + 1];
    let refused = here.send_gathered(&Envelope::new(&entry), &many, LIMIT);
    assert!(matches!(refused, Err(NodeSendError::Post(PostError::TooManyPieces(17)))));
    let whole = pattern(AREA_BYTES);
    let refused = here.try_send_gathered(&Envelope::new(&entry), &[&whole, b"one more"]);
    assert!(matches!(refused, Err(NodeSendError::Post(PostError::TooLong { .. }))));
    let refused = here.send_gathered(&Envelope::new(&fast).metadata(b"no"), &[b"x"], LIMIT);
    assert!(matches!(refused, Err(NodeSendError::Post(PostError::NotFast { .. }))));
    let other = Node::with_config(Config::default().dir(_dir.path())).unwrap().primary();
    here.send_gathered(&Envelope::new(&fast).word(3).from(other), &[b"x"], LIMIT).unwrap();
    let message = there.recv(queue, LIMIT).unwrap();
    assert_eq!((message.word, there.try_recv(queue).unwrap()), (3, None));
}

#[test]
fn a_gathered_message_that_timed_out_goes_on_where_it_was() {
    let World { mut here, mut there, area, queue, entry, _dir, .. } = world();
    let whole = pattern(AREA_BYTES);
    let slices = cut(&whole, &[5, 70_000]);
    let sent = here.send_gathered(&Envelope::new(&entry), &slices, NOW);
    let Err(NodeSendError::TimedOut { unfinished: Some(unfinished) }) = sent else {
        panic!("{sent:?}")
    };
    assert!(unfinished.bytes_sent() > 0);
    std::thread::scope(|scope| {
        scope.spawn(|| here.send_rest(*unfinished, &whole, LIMIT).unwrap());
        there.recv(queue, LIMIT).unwrap();
    });
    assert!(there.area(area).unwrap()[..] == whole[..]);
}

#[test]
fn a_short_gathered_message_waits_in_the_work_queue_of_its_terminus_while_its_link_is_full() {
    let World { mut here, links, mut there, area, queue, fast, _dir, .. } = world();
    let mut sent = 0;
    // Over each link, since any may lead there.
    for link in links {
        while here.try_send_fast_over(link, &fast, &[1; 16], sent).is_ok() {
            sent += 1;
        }
    }
    let terminus = here.terminus();
    let envelope = Envelope::new(&fast).word(sent).from(terminus);
    here.try_send_gathered(&envelope, &[&[2; 20], &[3; 100]]).unwrap();
    assert_eq!(here.queued(), 1);
    let mut words: Vec<u32> = (0..sent).map(|_| there.recv(queue, LIMIT).unwrap().word).collect();
    words.sort_unstable();
    assert!(words.into_iter().eq(0..sent));
    assert!(here.flush(LIMIT).unwrap());
    assert_eq!(there.recv(queue, LIMIT).unwrap().word, sent);
    assert_eq!(there.area(area).unwrap()[..120], [vec![2; 20], vec![3; 100]].concat());
}

#[test]
fn a_prepared_ticket_sends_to_any_offset_over_its_own_link_alone() {
    let World { mut here, links, mut there, area, queue, fast, entry, _dir, .. } = world();
    let prepared = here.prepare_over(links[1], &fast.at(100).unwrap()).unwrap();
    assert_eq!(prepared.link(), links[1]);
    let mut over = None;
    for (word, (offset, length)) in
        (0..).zip([(0, 16), (16, 5), (999, 16), (3, 0), (50, 17), (40_000, 800)])
    {
        let data = pattern(length);
        here.send_prepared_at(&prepared, offset, &data, word, LIMIT).unwrap();
        let message = there.recv(queue, LIMIT).unwrap();
        assert_eq!(message.word, word);
        assert!(there.area(area).unwrap()[100 + offset as usize..][..length] == data[..]);
        assert_eq!(*over.get_or_insert(message.link), message.link);
    }
    // Many packets, of an entry.
    let whole = here.prepare_over(links[0], &entry).unwrap();
    let data = pattern(50_000);
    std::thread::scope(|scope| {
        scope.spawn(|| here.send_prepared_at(&whole, 1000, &data, 0, LIMIT).unwrap());
        let message = there.recv(queue, LIMIT).unwrap();
        assert_ne!(Some(message.link), over);
    });
    assert!(there.area(area).unwrap()[1000..51_000] == data[..]);
    // Behind the ticket's end, by one byte and by all.
    let capacity = prepared.ticket().capacity();
    for (offset, length) in [(capacity - 15, 16), (capacity + 1, 0), (u64::MAX, 16)] {
        let refused = here.send_prepared_at(&prepared, offset, &data[..length], 0, LIMIT);
        assert!(matches!(refused, Err(NodeSendError::Post(PostError::TooLong { .. }))));
    }
    here.send_prepared_at(&prepared, capacity - 16, &data[..16], 9, LIMIT).unwrap();
    assert_eq!(there.recv(queue, LIMIT).unwrap().word, 9);
    // Not over the other link.
    here.disconnect(links[1]).unwrap();
    for length in [16, 100] {
        let ended = here.send_prepared_at(&prepared, 0, &data[..length], 1, LIMIT);
        assert!(matches!(ended, Err(NodeSendError::Unreachable(_))), "{ended:?}");
    }
    assert!(matches!(here.prepare_over(links[1], &fast), Err(NodeSendError::Unreachable(_))));
    assert!(matches!(here.prepare_over(LinkId::SELF, &fast), Err(NodeSendError::Unreachable(_))));
    // To the node itself, before it has a link there.
    let (area, own) = (here.message_area(16).unwrap(), here.notification_queue(1).unwrap());
    let slot = here.slot(SlotConfig::new(area, own)).unwrap();
    let ticket = here.fast_ticket(slot).unwrap();
    assert!(here.links().all(|link| link != LinkId::SELF));
    let prepared = here.prepare_over(LinkId::SELF, &ticket).unwrap();
    here.send_prepared_at(&prepared, 0, b"to itself", 5, LIMIT).unwrap();
    assert_eq!(here.recv(own, LIMIT).unwrap().word, 5);
    assert_eq!(there.try_recv(queue).unwrap(), None);
}

#[test]
fn a_line_that_is_taken_straight_from_its_ring_brings_its_bytes_and_each_is_in_the_area() {
    let World { mut here, mut there, area, queue, fast, _dir, .. } = world();
    let mut with_bytes = 0;
    for word in 0..100u32 {
        let data = [word as u8; 16];
        let length = if word % 3 == 0 { 7 } else { 16 };
        here.send_fast(&fast, &data[..length], word, LIMIT).unwrap();
        let message = there.recv_line(queue, LIMIT).unwrap();
        assert_eq!(message.notification.word, word);
        assert_eq!(there.area(area).unwrap()[..length], data[..length]);
        if let Some(line) = message.line {
            with_bytes += 1;
            assert_eq!(line[..length], data[..length]);
        }
    }
    assert!(with_bytes > 50, "{with_bytes}");
    // Messages that wait in the queue come first, without bytes.
    for word in [200, 201] {
        here.send_fast(&fast, &[1; 16], word, LIMIT).unwrap();
    }
    while there.poll().unwrap() > 0 {}
    for word in [200, 201] {
        let message = there.recv_line(queue, NOW).unwrap();
        assert_eq!((message.notification.word, message.line), (word, None));
    }
    assert!(matches!(there.recv_line(queue, NOW), Err(NodeReceiveError::TimedOut)));
    there.remove_queue(queue).unwrap_err();
}
