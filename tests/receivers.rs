//! Receivers of the application's own on slots: the hook, the observer, the sink. A packet without
//! the right to write reaches none of them; and the state after one panics.

mod model;

use hamlyn::interface::{
    AreaId, Arrival, Deposit, Interface, Message, Mode, NotDeposited, QueueId, Receiver, Refusal,
    SlotConfig, SlotId, Then,
};
use hamlyn::wire::{Flags, Header, Key, MetadataIndex, NodeId};
use model::{Bytes, LINK, header};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const ENTRY: MetadataIndex = MetadataIndex(0);
/// The slot's range in its area.
const BASE: u64 = 16;
const SIZE: u64 = 64;

/// Entry, word, metadata, the last packet's bytes, whether it was the only one.
type Arrived = (MetadataIndex, u32, Vec<u8>, Vec<u8>, bool);

/// Word, metadata, whether it is the first, and whether it completes.
type Told = (u32, Vec<u8>, bool, bool);

/// Notes everything, and behaves as configured.
#[derive(Default)]
struct Notes {
    asked: Vec<(u64, u32)>,
    /// Offset, length, bytes that were taken.
    observed: Vec<(u64, u32, u32)>,
    /// Of each packet, at both calls: word, metadata, whether it is the first, and the last.
    told: Vec<[Told; 2]>,
    /// The last packet's, in the area.
    bytes: Vec<u8>,
    arrived: Vec<Arrived>,
    /// Consumes what arrives.
    consumes: bool,
    /// Takes packets whose first byte goes there.
    takes: Option<(u64, Vec<u8>)>,
    /// Where it panics: asked, observing, processing.
    panics: [bool; 3],
    #[allow(dead_code)]
    dropped: Dropped,
}

fn told(deposit: &Deposit<'_>) -> Told {
    (deposit.word, deposit.user.to_vec(), deposit.is_first, deposit.completes)
}

/// Counts how many were dropped.
#[derive(Default)]
struct Dropped {
    count: Arc<AtomicU64>,
    panics: bool,
}

impl Receiver for Notes {
    fn place(&mut self, deposit: &Deposit<'_>) -> Option<&mut [u8]> {
        assert!(!self.panics[0], "asked");
        assert_eq!(deposit.taken, 0);
        self.asked.push((deposit.offset, deposit.length));
        self.told.push([told(deposit), Default::default()]);
        match &mut self.takes {
            Some((offset, place)) if *offset == deposit.offset => Some(place),
            _ => None,
        }
    }

    fn observe(&mut self, deposit: &Deposit<'_>, bytes: &[u8]) {
        assert!(!self.panics[1], "observing");
        self.observed.push((deposit.offset, deposit.length, deposit.taken));
        self.told.last_mut().unwrap()[1] = told(deposit);
        self.bytes = bytes.to_vec();
    }

    fn process_arrival(&mut self, message: Message<'_>) -> Then {
        assert!(!self.panics[2], "processing");
        assert_eq!(message.range, BASE..BASE + SIZE);
        assert_eq!(message.bytes.len() as u64, SIZE);
        assert_eq!(message.link, LINK);
        let last = message.last_bytes().to_vec();
        self.arrived.push((
            message.index,
            message.word,
            message.user.to_vec(),
            last,
            message.is_single,
        ));
        if self.consumes { Then::Consume } else { Then::Queue }
    }
}

impl Drop for Dropped {
    fn drop(&mut self) {
        self.count.fetch_add(1, Ordering::Relaxed);
        assert!(!self.panics, "dropped");
    }
}

struct World {
    interface: Interface<Vec<u8>>,
    area: AreaId,
    queue: QueueId,
    slot: SlotId,
}

fn world(mode: Mode, notes: Notes) -> World {
    let mut interface = Interface::new(NodeId(5), [5; 16]);
    interface.enable();
    let area = interface.create_area(vec![0xaa; 96]);
    let queue = interface.create_queue(2).unwrap();
    let config = SlotConfig::new(area, queue).range(BASE..BASE + SIZE).metadata(2).mode(mode);
    let slot = interface.create_slot(&config).unwrap();
    if mode != Mode::Normal {
        interface.arm_entry(slot, ENTRY, Some(8..40)).unwrap();
    }
    assert!(interface.install(slot, Box::new(notes), None).unwrap().is_none());
    World { interface, area, queue, slot }
}

impl World {
    fn header(&self, offset: u64, length: u32) -> Header {
        header(&self.interface.ticket(self.slot, ENTRY).unwrap(), offset, length, 0)
    }

    fn handle(&mut self, h: &Header, fill: u8) -> Result<Arrival, NotDeposited> {
        self.interface.handle_packet(LINK, h, 0, &Bytes::of(h, fill))
    }

    fn notes(&mut self) -> &mut Notes {
        self.interface.installed_mut(self.slot).unwrap().expect("the receiver is there")
    }

    fn slot_bytes(&self) -> &[u8] {
        &self.interface.area(self.area).unwrap()[BASE as usize..][..SIZE as usize]
    }

    fn count(&self, name: &str) -> u64 {
        let counters = self.interface.counters().snapshot();
        counters.into_iter().find(|(of, _)| *of == name).unwrap().1
    }
}

#[test]
fn a_hook_sees_the_message_and_lets_it_be_queued() {
    let mut world = world(Mode::Normal, Notes::default());
    let h = Header { metadata_len: 3, ..world.header(8, 20) };
    assert_eq!(world.handle(&h, 7), Ok(Arrival::Notified));
    let notes = world.notes();
    assert_eq!((notes.asked.clone(), notes.observed.clone()), (vec![(8, 20)], vec![(8, 20, 0)]));
    assert_eq!(notes.arrived, [(ENTRY, 0, vec![7; 3], vec![7; 20], true)]);
    assert_eq!(&world.slot_bytes()[8..28], [7; 20]);
    let queue = world.queue;
    assert_eq!(world.interface.pop(queue).unwrap().unwrap().index, ENTRY);
}

#[test]
fn what_a_hook_consumes_is_not_queued_and_uses_no_credit() {
    let mut world = world(Mode::Normal, Notes { consumes: true, ..Notes::default() });
    let queue = world.queue;
    // Many more than the queue has entries.
    for i in 0..50 {
        let h = world.header(0, 16);
        assert_eq!(world.handle(&h, i), Ok(Arrival::Consumed));
    }
    assert_eq!(world.interface.pop(queue), Ok(None));
    assert_eq!(world.notes().arrived.len(), 50);
    assert_eq!((world.count("messages_consumed"), world.count("notifications")), (50, 0));
    assert_eq!(world.count("messages_received"), 50);
    // A fast packet brings its word.
    let ticket = world.interface.fast_ticket(world.slot).unwrap();
    let h = Header { word: 42, ..header(&ticket, 0, 4, 0) };
    assert_eq!(world.handle(&h, 9), Ok(Arrival::Consumed));
    let last = world.notes().arrived.pop().unwrap();
    assert_eq!(last, (MetadataIndex::FAST, 42, vec![], vec![9; 4], true));
}

#[test]
fn a_message_of_several_packets_is_observed_in_each_and_arrives_once_whatever_their_order() {
    for order in [[0, 1, 2], [2, 0, 1], [1, 2, 0]] {
        let mut world = world(Mode::Normal, Notes { consumes: true, ..Notes::default() });
        let deltas = [2u32.wrapping_neg(), 1, 1];
        let mut came = Vec::new();
        for i in order {
            let h = Header { delta: deltas[i], ..world.header(i as u64 * 20, 20) };
            came.push(world.handle(&h, i as u8).unwrap());
        }
        assert_eq!(came, [Arrival::Part, Arrival::Part, Arrival::Consumed]);
        let notes = world.notes();
        assert_eq!(notes.observed.len(), 3);
        let [(_, _, _, last, is_single)] = &notes.arrived[..] else { panic!("not one") };
        assert_eq!((last, *is_single), (&vec![order[2] as u8; 20], false));
        let whole: Vec<u8> = (0..3u8).flat_map(|i| [i; 20]).collect();
        assert_eq!(world.slot_bytes()[..60], whole[..]);
    }
}

#[test]
fn a_message_that_announces_nothing_is_observed_and_not_processed() {
    let mut world = world(Mode::Normal, Notes::default());
    let h = Header { flags: Flags::empty(), ..world.header(0, 16) };
    assert_eq!(world.handle(&h, 1), Ok(Arrival::Complete));
    let notes = world.notes();
    assert_eq!((notes.observed.len(), notes.arrived.len()), (1, 0));
}

#[test]
fn a_sink_takes_a_packet_or_its_front_and_the_rest_goes_into_the_area() {
    let takes = Some((8, vec![0; 30]));
    let mut world = world(Mode::Normal, Notes { takes, ..Notes::default() });
    for (length, fill) in [(16, 1), (30, 2)] {
        let h = world.header(8, length);
        assert_eq!(world.handle(&h, fill), Ok(Arrival::Notified));
        let queue = world.queue;
        world.interface.pop(queue).unwrap().unwrap();
    }
    assert_eq!(world.notes().takes.as_ref().unwrap().1, [2; 30]);
    assert!(world.notes().arrived.iter().all(|(.., last, _)| last.is_empty()));
    assert!(world.slot_bytes().iter().all(|byte| *byte == 0xaa), "the area was not written");
    // One that its place is too short for, by a little and by much, and one that it wants nothing
    // of.
    for (offset, length, taken) in [(8, 31, 30), (8, 56, 30), (0, 5, 0), (8, 40, 0)] {
        let World { interface, area, queue, slot } = &mut world;
        interface.area_mut(*area).unwrap().fill(0xaa);
        interface.pop(*queue).unwrap();
        let notes = interface.installed_mut::<Notes>(*slot).unwrap().unwrap();
        if length == 40 {
            notes.takes = Some((8, vec![]));
        }
        let h = world.header(offset, length);
        let body: Vec<u8> = (1..=length as u8).collect();
        let bytes = Bytes { metadata: vec![], data: body.clone() };
        world.interface.handle_packet(LINK, &h, 0, &bytes).unwrap();
        let mut expected = [0xaa; SIZE as usize];
        let (front, rest) = body.split_at(taken);
        expected[offset as usize + taken..][..rest.len()].copy_from_slice(rest);
        assert_eq!(world.slot_bytes(), expected, "{length} bytes at {offset}");
        let notes = world.notes();
        assert_eq!(notes.observed.pop(), Some((offset, length, taken as u32)));
        assert_eq!(notes.bytes, rest);
        assert_eq!(notes.arrived.pop().unwrap().3, rest);
        if taken > 0 {
            assert_eq!(notes.takes.as_ref().unwrap().1, front);
        }
    }
}

#[test]
fn a_receiver_is_told_before_and_after_each_packet_what_its_message_is() {
    let mut world = world(Mode::Normal, Notes { consumes: true, ..Notes::default() });
    let packet = |world: &World, i: u64, metadata_len: u8| {
        let delta = [2u32.wrapping_neg(), 1, 1][i as usize];
        Header { delta, metadata_len, word: 9, ..world.header(i * 20, 20) }
    };
    // The packet with the metadata in the middle; then a message without any, and one of one
    // packet with some.
    for (i, metadata_len) in [(1, 0), (0, 7), (2, 0), (0, 0), (1, 0), (2, 0)] {
        let h = packet(&world, i, metadata_len);
        world.handle(&h, 5).unwrap();
    }
    let h = Header { metadata_len: 60, word: 9, ..world.header(0, 4) };
    world.handle(&h, 6).unwrap();
    let fast = world.interface.fast_ticket(world.slot).unwrap();
    world.handle(&Header { word: 9, ..header(&fast, 0, 4, 0) }, 7).unwrap();
    let (none, some) = (Vec::new(), vec![5; 7]);
    let expected = [
        (0, none.clone(), true, false),
        (0, some.clone(), false, false),
        (0, some, false, true),
        (0, none.clone(), true, false),
        (0, none.clone(), false, false),
        (0, none.clone(), false, true),
        (0, vec![6; 60], true, true),
        (9, none, true, true),
    ];
    // The same at both calls.
    let expected: Vec<_> = expected.into_iter().map(|told| [told.clone(), told]).collect();
    assert_eq!(world.notes().told, expected);
    let words = world.notes().arrived.iter().map(|arrived| arrived.1);
    assert_eq!(words.collect::<Vec<_>>(), [0, 0, 0, 9], "of a fast message alone");
    assert_eq!(world.interface.entry(world.slot, ENTRY).unwrap().user(), [6; 60]);
}

#[test]
fn a_packet_that_may_not_write_reaches_no_receiver() {
    let takes = Some((8, vec![0; 64]));
    let mut world = world(Mode::ParanoidOneShot, Notes { takes, ..Notes::default() });
    let good = world.header(8, 16);
    let bad = [
        (Header { key: Key(99), ..good }, Refusal::WrongKey),
        (Header { offset: u64::MAX, ..good }, Refusal::OutOfBounds),
        (Header { offset: 8, length: 57, ..good }, Refusal::OutOfBounds),
        (Header { offset: 7, ..good }, Refusal::OutsideLimits),
        (Header { length: 33, ..good }, Refusal::OutsideLimits),
        (Header { metadata_index: MetadataIndex(2), ..good }, Refusal::NoSuchEntry),
        (Header { metadata_len: 61, ..good }, Refusal::BadFormat),
    ];
    for (h, refusal) in bad {
        let body = Bytes::of(&Header { metadata_len: 0, ..h }, 9);
        let refused = world.interface.handle_packet(LINK, &h, 0, &body);
        assert_eq!(refused, Err(NotDeposited::Refused(refusal)));
    }
    world.interface.disable();
    assert!(matches!(world.handle(&good, 9), Err(NotDeposited::Discarded(_))));
    world.interface.enable();
    let notes = world.notes();
    assert_eq!((notes.asked.len(), notes.observed.len(), notes.arrived.len()), (0, 0, 0));
    assert_eq!(notes.takes.as_ref().unwrap().1, [0; 64]);
    // The one message of a one-shot entry; and no second one, though its bytes are elsewhere.
    assert_eq!(world.handle(&good, 1), Ok(Arrival::Notified));
    let again = world.handle(&good, 2);
    assert_eq!(again, Err(NotDeposited::Refused(Refusal::EntryClosed)));
    assert_eq!(world.notes().takes.as_ref().unwrap().1[..16], [1; 16]);
}

#[test]
fn beyond_its_credit_a_message_is_refused_before_the_hook() {
    let mut world = world(Mode::Normal, Notes::default());
    let h = world.header(0, 16);
    for _ in 0..2 {
        world.handle(&h, 1).unwrap();
    }
    assert_eq!(world.handle(&h, 2), Err(NotDeposited::Refused(Refusal::NoCredit)));
    assert_eq!(world.notes().observed.len(), 2);
    assert_eq!(world.slot_bytes()[0], 1);
}

#[test]
fn a_receiver_can_be_replaced_taken_back_and_is_asked_for_by_its_type() {
    struct Other;
    impl Receiver for Other {}
    let dropped = Arc::new(AtomicU64::new(0));
    let mut world = world(
        Mode::Normal,
        Notes { dropped: Dropped { count: dropped.clone(), panics: false }, ..Notes::default() },
    );
    let slot = world.slot;
    assert!(world.interface.installed::<Other>(slot).unwrap().is_none());
    let before = world.interface.install(slot, Box::new(Other), None).unwrap();
    assert!(before.is_some() && dropped.load(Ordering::Relaxed) == 0);
    drop(before);
    assert_eq!(dropped.load(Ordering::Relaxed), 1);
    assert!(world.interface.installed::<Other>(slot).unwrap().is_some());
    assert!(world.interface.uninstall(slot).unwrap().is_some());
    assert!(world.interface.uninstall(slot).unwrap().is_none());
    let notes =
        Notes { dropped: Dropped { count: dropped.clone(), panics: false }, ..Notes::default() };
    world.interface.install(slot, Box::new(notes), None).unwrap();
    world.interface.remove_slot(slot).unwrap();
    assert_eq!(dropped.load(Ordering::Relaxed), 2);
    assert!(world.interface.installed::<Other>(slot).is_err());
    assert!(world.interface.install(slot, Box::new(Other), None).is_err());
}

#[test]
#[cfg(feature = "os")]
fn a_receiver_that_panics_is_gone_and_its_slot_goes_on_without_it() {
    for at in 0..3 {
        for panics_when_dropped in [false, true] {
            let mut panics = [false; 3];
            panics[at] = true;
            let dropped = Arc::new(AtomicU64::new(0));
            let takes = Some((40, vec![0; 64]));
            let mut world = world(
                Mode::Normal,
                Notes {
                    panics,
                    takes,
                    dropped: Dropped { count: dropped.clone(), panics: panics_when_dropped },
                    consumes: true,
                    ..Notes::default()
                },
            );
            // The packet counts, and is announced, as though there had been no receiver.
            let h = Header { metadata_len: 2, ..world.header(8, 20) };
            assert_eq!(world.handle(&h, 7), Ok(Arrival::Notified));
            assert_eq!(&world.slot_bytes()[8..28], [7; 20]);
            assert_eq!(world.interface.entry(world.slot, ENTRY).unwrap().user(), [7, 7]);
            assert_eq!(dropped.load(Ordering::Relaxed), 1);
            assert_eq!(world.count("receivers_panicked"), 1);
            assert!(world.interface.installed::<Notes>(world.slot).unwrap().is_none());
            let h = world.header(40, 20);
            assert_eq!(world.handle(&h, 8), Ok(Arrival::Notified));
            assert_eq!(&world.slot_bytes()[40..60], [8; 20]);
            let queue = world.queue;
            assert!(world.interface.pop(queue).unwrap().is_some());
            assert!(world.interface.pop(queue).unwrap().is_some());
            assert_eq!(world.interface.pop(queue), Ok(None));
        }
    }
}

#[test]
fn a_receiver_is_asked_about_the_packets_of_its_filter_alone_also_on_the_short_way() {
    use hamlyn::interface::{Filter, Flow};
    for by_page in [true, false] {
        let mut world = world(Mode::Normal, Notes::default());
        let (slot, queue) = (world.slot, world.queue);
        let filter = if by_page { Filter::by_page(64, 16) } else { Filter::by_entry(2) };
        let notes = Notes { consumes: true, ..Notes::default() };
        let _ = world.interface.install(slot, Box::new(notes), Some(filter.clone())).unwrap();
        let h = world.header(0, 20);
        let (body, varying) = (Bytes::of(&h, 7), h.varying());
        let mut flow = Flow::NONE;
        // Asked about none; then about what the packet touches, and about something else.
        let touched = if by_page { 1 } else { ENTRY.0 as usize };
        for (index, asks, expected) in [
            (9, true, Arrival::Notified),
            (touched, true, Arrival::Consumed),
            (touched, false, Arrival::Notified),
            (2, true, Arrival::Notified),
        ] {
            filter.set(index, asks);
            // As the first packet of its flow, and as another.
            let handled = world.interface.handle_and_keep(LINK, &h, 0, &body, &mut flow);
            assert_eq!(handled, Ok(expected), "{index} {asks}");
            world.interface.pop(queue).unwrap();
            let again = world.interface.handle_again(&flow, LINK, &varying, &body);
            assert_eq!(again, expected == Arrival::Notified);
            world.interface.pop(queue).unwrap();
            let taken = world.interface.take_again(&flow, &varying, &body, queue, None);
            assert_eq!(taken.is_some(), expected == Arrival::Notified);
        }
        assert_eq!(world.notes().asked.len(), 1);
    }
}

#[test]
fn packets_for_a_slot_with_a_receiver_take_no_short_way_around_it() {
    use hamlyn::interface::Flow;
    let mut world = world(Mode::Normal, Notes { consumes: true, ..Notes::default() });
    let h = world.header(0, 16);
    let (body, varying) = (Bytes::of(&h, 7), h.varying());
    let mut flow = Flow::NONE;
    let (slot, queue) = (world.slot, world.queue);
    let receiver = world.interface.uninstall(slot).unwrap().unwrap();
    let handled = world.interface.handle_and_keep(LINK, &h, 0, &body, &mut flow);
    assert_eq!(handled, Ok(Arrival::Notified));
    world.interface.pop(queue).unwrap();
    let again = world.interface.handle_again(&flow, LINK, &varying, &body);
    assert!(again, "of a flow, without one");
    world.interface.pop(queue).unwrap();
    // State from before the receiver counts no more.
    world.interface.install(slot, receiver, None).unwrap();
    assert!(!world.interface.handle_again(&flow, LINK, &varying, &body));
    for _ in 0..3 {
        let handled = world.interface.handle_and_keep(LINK, &h, 0, &body, &mut flow);
        assert_eq!(handled, Ok(Arrival::Consumed));
        assert!(!world.interface.handle_again(&flow, LINK, &varying, &body));
        assert!(world.interface.take_again(&flow, &varying, &body, queue, None).is_none());
    }
}

#[cfg(feature = "os")]
mod nodes {
    use super::*;
    use hamlyn::protocol::Manager;
    use hamlyn::{Accept, Access, Config, Node, Ticket};
    use std::time::Duration;

    const LIMIT: Option<Duration> = Some(Duration::from_secs(20));

    struct Tally {
        messages: u64,
        panics_at: u64,
    }

    impl Receiver for Tally {
        fn process_arrival(&mut self, message: Message<'_>) -> Then {
            self.messages += 1;
            assert!(self.messages != self.panics_at, "as planned");
            assert!(message.is_single);
            Then::Consume
        }
    }

    fn receiver(config: Config, tally: Tally) -> (Node, QueueId, SlotId) {
        let mut node = Node::with_config(config).unwrap();
        let area = node.message_area(4096).unwrap();
        let queue = node.notification_queue(4).unwrap();
        let slot = node.slot(SlotConfig::new(area, queue).credit(4)).unwrap();
        node.install(slot, tally).unwrap();
        let ticket = node.fast_ticket(slot).unwrap();
        let greeting = Accept::Automatic(ticket.to_bytes().to_vec());
        node.serve("tally", Access::SameUser, greeting).unwrap();
        (node, queue, slot)
    }

    /// The polling thread runs the hook: here a progress thread. Messages after a panic are queued.
    #[test]
    fn a_hook_runs_in_a_progress_thread_and_its_panic_ends_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let config = Config::default().dir(dir.path());
        let (node, queue, slot) = receiver(config.clone(), Tally { messages: 0, panics_at: 1001 });
        let manager = Manager::from_node(node).unwrap();
        manager.start_progress().unwrap();
        let mut sender = Node::with_config(config).unwrap();
        let link = sender.connect("tally", b"", Some(Duration::from_secs(10))).unwrap();
        let ticket = Ticket::from_bytes(sender.greeting(link).unwrap()).unwrap();
        for word in 0..1003 {
            sender.send_fast(&ticket, &[1; 40], word, LIMIT).unwrap();
        }
        // Messages in a work queue leave in calls.
        sender.flush(LIMIT).unwrap();
        let words: Vec<u32> = (0..3).map(|_| manager.recv(queue, LIMIT).unwrap().word).collect();
        assert_eq!(words, [1000, 1001, 1002]);
        let node = manager.lock();
        assert!(node.installed::<Tally>(slot).unwrap().is_none());
        let counters = node.counters();
        let of = |name| counters.iter().find(|(of, _)| *of == name).unwrap().1;
        assert_eq!((of("messages_consumed"), of("receivers_panicked")), (1000, 1));
    }
}

#[test]
fn what_is_known_of_the_packet_before_lets_none_write_beyond_what_its_own_checks_allow() {
    use hamlyn::interface::Flow;
    const AREA: usize = 96;
    for (size, paranoid) in (0..=40).map(|size| (size, size % 2 == 1)) {
        let mut interface = Interface::<Vec<u8>>::new(NodeId(5), [5; 16]);
        interface.enable();
        let area = interface.create_area(vec![0xaa; AREA]);
        let queue = interface.create_queue(1).unwrap();
        // Where the entry has limits, they end before the slot does.
        let (mode, low, end) = match paranoid {
            true => (Mode::Paranoid, 3, size + 8),
            false => (Mode::Normal, 0, size),
        };
        let config = SlotConfig::new(area, queue).range(BASE..BASE + end).mode(mode);
        let slot = interface.create_slot(&config).unwrap();
        if paranoid {
            interface.arm_entry(slot, ENTRY, Some(low..low + size)).unwrap();
        }
        let ticket = interface.ticket(slot, ENTRY).unwrap();
        let at = |offset: u64, length: u32| Header { offset, ..header(&ticket, 0, length, 0) };
        let mut flow = Flow::NONE;
        let first = at(low, 0);
        interface.handle_and_keep(LINK, &first, 0, &Bytes::of(&first, 0), &mut flow).unwrap();
        interface.pop(queue).unwrap();
        let offsets = (0..=size + 24).chain([u64::MAX - 20, u64::MAX - 15, u64::MAX]);
        for offset in offsets {
            for length in 0..=20 {
                let h = at(offset, length);
                let (varying, body) = (h.varying(), Bytes::of(&h, 0xff));
                let fits = offset >= low
                    && offset.checked_add(length as u64).is_some_and(|to| to <= low + size);
                let case = format!("{length} bytes at {offset} of {low}..{}", low + size);
                assert_eq!(interface.handle_again(&flow, LINK, &varying, &body), fits, "{case}");
                interface.pop(queue).unwrap();
                let taken = interface.take_again(&flow, &varying, &body, queue, None);
                assert_eq!(taken.is_some(), fits, "{case}");
                let mut expected = vec![0xaa; AREA];
                if fits {
                    expected[(BASE + offset) as usize..][..length as usize].fill(0xff);
                }
                assert!(interface.area(area).unwrap() == expected, "{case}");
                interface.area_mut(area).unwrap().fill(0xaa);
            }
        }
    }
}
