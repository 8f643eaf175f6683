//! Each refusal: its cause, that its counter alone rises, and that nothing else changes, byte for
//! byte. A new refusal without a case here does not compile.

mod model;

use hamlyn::interface::EntryState::{Closed, Shared};
use hamlyn::interface::{
    AreaId, Arrival, Discard, Interface, LinkId, Mode, NotDeposited, QueueId, Refusal, SlotConfig,
    SlotId,
};
use hamlyn::wire::{Destination, Flags, Header, Key, MetadataIndex, NodeId, SlotIndex};
use model::{Bytes, LINK, header};

const ENTRY: MetadataIndex = MetadataIndex(1);

/// One area of 256 bytes and in it, at 64..192, a slot of each mode with two entries; entry 1 of
/// the paranoid ones is armed for bytes 32..96 of the slot.
struct Receiver {
    interface: Interface<Vec<u8>>,
    area: AreaId,
    queue: QueueId,
    normal: SlotId,
    paranoid: SlotId,
    one_shot: SlotId,
    next_key: u64,
}

fn receiver() -> Receiver {
    let mut interface = Interface::new(NodeId(5));
    interface.enable();
    let area = interface.create_area((0..=255).collect::<Vec<u8>>());
    let queue = interface.create_queue(16).unwrap();
    let mut next_key = 1000;
    let mut slot = |mode| {
        let config = SlotConfig::new(area, queue).range(64..192).metadata(2).mode(mode);
        let mut key = || {
            next_key += 1;
            Key(next_key)
        };
        let slot_key = key();
        interface.create_slot(&config, slot_key, key).unwrap()
    };
    let (normal, paranoid) = (slot(Mode::Normal), slot(Mode::Paranoid));
    let one_shot = slot(Mode::ParanoidOneShot);
    for slot in [paranoid, one_shot] {
        interface.arm_entry(slot, ENTRY, Some((Key(next_key + 1), 32..96))).unwrap();
        next_key += 1;
    }
    Receiver { interface, area, queue, normal, paranoid, one_shot, next_key }
}

/// All that can be seen of a receiver but its counters.
fn state(r: &Receiver) -> (Vec<u8>, Vec<String>, bool) {
    let mut entries = Vec::new();
    for slot in [r.normal, r.paranoid, r.one_shot] {
        for index in 0..2 {
            if let Ok(entry) = r.interface.entry(slot, MetadataIndex(index)) {
                entries.push(format!("{entry:?}"));
            }
        }
    }
    let area = r.interface.area(r.area).unwrap().to_vec();
    (area, entries, r.interface.is_ready(r.queue).unwrap())
}

impl Receiver {
    fn header(&self, slot: SlotId, length: u32) -> Header {
        let ticket = self.interface.ticket(slot, ENTRY).unwrap();
        header(&ticket, ticket.base, length, 0)
    }

    fn handle(&mut self, h: &Header, reserved: u32) -> Result<Arrival, NotDeposited> {
        self.interface.handle_packet(LINK, h, reserved, &Bytes::of(h, 0xee))
    }

    /// The packet is refused for this reason, counted there, and leaves no other trace.
    #[track_caller]
    fn refuses(&mut self, refusal: Refusal, h: &Header, reserved: u32) {
        let before = state(self);
        let counters = self.interface.counters().snapshot();
        assert_eq!(self.handle(h, reserved), Err(NotDeposited::Refused(refusal)), "{h:?}");
        assert_eq!(state(self), before, "{refusal:?} left a trace");
        for ((name, was), (_, is)) in counters.iter().zip(self.interface.counters().snapshot()) {
            assert_eq!(is - was, (*name == refusal.counter_name()) as u64, "{name}");
        }
    }

    /// And what differs from it only in being allowed is deposited.
    #[track_caller]
    fn accepts(&mut self, h: &Header) {
        assert!(self.handle(h, 0).is_ok(), "{h:?}");
    }
}

/// Deltas of parts and of whole messages.
const DELTAS: [u32; 6] = [0, 1, 2, 1 << 31, u32::MAX - 1, u32::MAX];

fn provoke(refusal: Refusal) {
    let r = &mut receiver();
    let good = r.header(r.normal, 16);
    match refusal {
        Refusal::WrongDestination => {
            r.refuses(refusal, &Header { destination: Destination(6), ..good }, 0);
        }
        Refusal::BadFormat => {
            r.refuses(refusal, &good, 1);
            r.refuses(refusal, &good, 0x8000);
            r.refuses(refusal, &Header { metadata_len: 61, ..good }, 0);
            r.refuses(refusal, &Header { metadata_len: 255, ..good }, 0);
            let fast = r.interface.fast_ticket(r.normal).unwrap();
            r.refuses(refusal, &header(&fast, 0, 8, 1), 0);
            r.accepts(&header(&fast, 0, 8, 0));
        }
        Refusal::NoSuchSlot => {
            for index in [3, 4, u32::MAX] {
                r.refuses(refusal, &Header { slot: SlotIndex(index), ..good }, 0);
            }
            r.accepts(&good);
            r.interface.remove_slot(r.normal).unwrap();
            r.refuses(refusal, &good, 0);
            return;
        }
        Refusal::NoSuchEntry => {
            for index in [2, 3, u32::MAX - 1] {
                r.refuses(refusal, &Header { metadata_index: MetadataIndex(index), ..good }, 0);
            }
        }
        Refusal::WrongKey => {
            for bit in 0..64 {
                r.refuses(refusal, &Header { key: Key(good.key.0 ^ 1 << bit), ..good }, 0);
            }
            // The slot's key is none of a paranoid entry, nor is another entry's.
            let paranoid = r.header(r.paranoid, 16);
            r.refuses(refusal, &Header { key: good.key, ..paranoid }, 0);
            let other = Header { metadata_index: MetadataIndex(0), ..paranoid };
            r.refuses(refusal, &other, 0);
            // A key that was never given away: that of an entry not yet armed, and, after an entry
            // was closed, the one that closed it.
            r.interface.arm_entry(r.paranoid, MetadataIndex(0), Some((Key(1), 0..9))).unwrap();
            for key in 1001..1010 {
                r.refuses(refusal, &Header { key: Key(key), ..other }, 0);
            }
            r.accepts(&paranoid);
            r.interface.close_entry(r.paranoid, MetadataIndex(0), Key(2)).unwrap();
            r.interface.arm_entry(r.paranoid, MetadataIndex(0), Some((Key(3), 0..9))).unwrap();
            r.refuses(refusal, &Header { key: Key(2), ..other }, 0);
        }
        Refusal::StaleKey => {
            let paranoid = r.header(r.paranoid, 16);
            r.accepts(&paranoid);
            r.accepts(&good);
            let mut next = || {
                r.next_key += 1;
                Key(r.next_key)
            };
            // The key that was right a moment ago, and no older one.
            let keys = [next(), next(), next(), next()];
            r.interface.set_key(r.normal, keys[0]).unwrap();
            r.interface.arm_entry(r.paranoid, ENTRY, Some((keys[1], 32..96))).unwrap();
            r.refuses(refusal, &good, 0);
            r.refuses(refusal, &paranoid, 0);
            // Also when the entry is closed, and is armed again after that.
            r.interface.close_entry(r.paranoid, ENTRY, keys[2]).unwrap();
            let second = Header { key: keys[1], ..paranoid };
            r.refuses(refusal, &second, 0);
            r.refuses(Refusal::WrongKey, &paranoid, 0);
            r.interface.arm_entry(r.paranoid, ENTRY, Some((keys[3], 32..96))).unwrap();
            r.refuses(refusal, &second, 0);
            r.accepts(&Header { key: keys[3], ..paranoid });
            r.accepts(&Header { key: keys[0], ..good });
            return;
        }
        Refusal::OutOfBounds => {
            let at = |offset, length| Header { offset, length, ..good };
            for (offset, length) in [
                (0, 129),
                (113, 16),
                (128, 1),
                (129, 0),
                (u64::MAX, 0),
                (u64::MAX, 16),
                (u64::MAX - 15, 16),
                (u64::MAX - 63, 64),
                (1 << 63, 16),
                (0, u32::MAX),
            ] {
                r.refuses(refusal, &at(offset, length), 0);
            }
            r.accepts(&at(112, 16));
            r.interface.pop(r.queue).unwrap().unwrap();
            r.accepts(&at(128, 0));
            r.interface.pop(r.queue).unwrap().unwrap();
        }
        Refusal::OutsideLimits => {
            let paranoid = r.header(r.paranoid, 16);
            let at = |offset, length| Header { offset, length, ..paranoid };
            for (offset, length) in [(31, 1), (31, 16), (81, 16), (96, 1), (97, 0), (0, 0)] {
                r.refuses(refusal, &at(offset, length), 0);
            }
            r.accepts(&at(80, 16));
            r.interface.pop(r.queue).unwrap().unwrap();
            r.accepts(&at(96, 0));
        }
        Refusal::EntryClosed => {
            let one_shot = r.header(r.one_shot, 16);
            r.accepts(&one_shot);
            r.refuses(refusal, &one_shot, 0);
            // Not even when there is credit again: only arming opens the entry.
            r.interface.pop(r.queue).unwrap().unwrap();
            r.refuses(refusal, &one_shot, 0);
            // Nor does what is refused count: a part of a message that comes too early is none of
            // the next.
            for delta in DELTAS {
                r.refuses(refusal, &Header { delta, ..one_shot }, 0);
            }
            r.interface.reopen_entry(r.one_shot, ENTRY).unwrap();
            r.accepts(&Header { delta: 7, ..one_shot });
            r.accepts(&Header { delta: 7u32.wrapping_neg(), ..one_shot });
            r.interface.pop(r.queue).unwrap().unwrap();
            for delta in DELTAS {
                r.refuses(refusal, &Header { delta, ..one_shot }, 0);
            }
            r.interface.arm_entry(r.one_shot, ENTRY, Some((one_shot.key, 32..96))).unwrap();
            r.accepts(&one_shot);
        }
        Refusal::NoCredit => {
            let silent = Header { flags: Flags::empty(), ..good };
            for _ in 0..2 {
                r.accepts(&good);
            }
            r.refuses(refusal, &good, 0);
            // Data without a notification needs no credit; a part needs none yet.
            r.accepts(&silent);
            r.accepts(&Header { delta: 1, ..good });
            r.refuses(refusal, &Header { delta: u32::MAX, ..good }, 0);
            r.interface.pop(r.queue).unwrap().unwrap();
            assert_eq!(r.handle(&Header { delta: u32::MAX, ..good }, 0), Ok(Arrival::Notified));
            return;
        }
        Refusal::FastIntoParanoid => {
            for slot in [r.paranoid, r.one_shot] {
                let fast = Header { metadata_index: MetadataIndex::FAST, ..r.header(slot, 16) };
                r.refuses(refusal, &fast, 0);
            }
            r.accepts(&Header { metadata_index: MetadataIndex::FAST, ..good });
            return;
        }
    }
    r.accepts(&good);
}

#[test]
fn every_refusal_is_counted_under_its_name_and_leaves_no_trace() {
    for &refusal in Refusal::ALL {
        provoke(refusal);
    }
}

#[test]
fn a_refusal_reveals_nothing_that_the_key_protects() {
    // With a wrong key, a packet inside the bounds and one far outside are refused alike.
    let r = &mut receiver();
    for slot in [r.normal, r.paranoid] {
        let wrong = Header { key: Key(0), ..r.header(slot, 16) };
        for offset in [wrong.offset, 1000, u64::MAX] {
            r.refuses(Refusal::WrongKey, &Header { offset, ..wrong }, 0);
        }
    }
    let one_shot = r.header(r.one_shot, 16);
    r.accepts(&one_shot);
    r.refuses(Refusal::WrongKey, &Header { key: Key(0), ..one_shot }, 0);
}

/// An entry that several links share: what may be refused, from whom, and what it leaves behind.
struct SharedEntry {
    r: Receiver,
    good: Header,
}

const OTHERS: [LinkId; 3] = [
    LinkId { index: 1, generation: 0 },
    LinkId { index: 2, generation: 0 },
    LinkId { index: 2, generation: 1 },
];

impl SharedEntry {
    fn new() -> Self {
        let mut r = receiver();
        r.interface.share_entry(r.one_shot, ENTRY).unwrap();
        let good = r.header(r.one_shot, 16);
        Self { r, good }
    }

    fn handle(&mut self, link: LinkId, delta: u32) -> Result<Arrival, NotDeposited> {
        let h = Header { delta, ..self.good };
        self.r.interface.handle_packet(link, &h, 0, &Bytes::of(&h, link.index as u8))
    }

    /// Refused; and nothing that is not the link's own has changed.
    #[track_caller]
    fn refuses(&mut self, link: LinkId, delta: u32) {
        let seen = |r: &Receiver| {
            let entry = r.interface.entry(r.one_shot, ENTRY).unwrap();
            let entry = (entry.state(), entry.accumulator(), entry.user().to_vec());
            (entry, r.interface.area(r.area).unwrap().to_vec())
        };
        let before = seen(&self.r);
        let refused = Err(NotDeposited::Refused(Refusal::EntryClosed));
        assert_eq!(self.handle(link, delta), refused, "{link:?} {delta}");
        assert_eq!(seen(&self.r), before);
    }

    fn take_and_reopen(&mut self, from: LinkId) {
        let taken = self.r.interface.pop(self.r.queue).unwrap().unwrap();
        assert_eq!(taken.link, from);
        assert_eq!(self.r.interface.entry(self.r.one_shot, ENTRY).unwrap().state(), Closed);
        self.r.interface.reopen_entry(self.r.one_shot, ENTRY).unwrap();
        assert_eq!(self.r.interface.entry(self.r.one_shot, ENTRY).unwrap().state(), Shared);
    }

    /// A message of two packets is taken.
    #[track_caller]
    fn takes_long_from(&mut self, link: LinkId) {
        assert_eq!(self.handle(link, 4), Ok(Arrival::Part));
        assert_eq!(self.handle(link, negative(4)), Ok(Arrival::Notified));
        self.take_and_reopen(link);
    }
}

fn negative(delta: u32) -> u32 {
    delta.wrapping_neg()
}

#[test]
fn a_sender_that_stays_silent_in_the_middle_of_a_message_keeps_no_other_from_an_entry() {
    let (silent, honest) = (OTHERS[0], OTHERS[1]);
    let e = &mut SharedEntry::new();
    assert_eq!(e.handle(silent, 5), Ok(Arrival::Part));
    for _ in 0..3 {
        assert_eq!(e.handle(honest, 1), Ok(Arrival::Part));
        // The rest of what another has overtaken is not mixed with it.
        e.refuses(silent, 1);
        assert_eq!(e.handle(honest, 2), Ok(Arrival::Part));
        e.refuses(silent, 1);
        assert_eq!(e.handle(honest, negative(3)), Ok(Arrival::Notified));
        e.refuses(silent, 1);
        e.take_and_reopen(honest);
        e.refuses(silent, 1);
    }
    // A message of one packet needs no count.
    assert_eq!(e.handle(silent, 0), Ok(Arrival::Notified));
    e.take_and_reopen(silent);
    e.takes_long_from(honest);
    // Its message is over when its deltas come out at zero; 5 and 12 were sent.
    e.refuses(silent, negative(17));
    e.takes_long_from(silent);
}

#[test]
fn a_message_that_began_too_early_is_refused_to_its_end_and_the_next_is_taken() {
    let (first, early) = (OTHERS[0], OTHERS[1]);
    let e = &mut SharedEntry::new();
    assert_eq!(e.handle(first, 0), Ok(Arrival::Notified));
    e.refuses(early, 10);
    e.take_and_reopen(first);
    e.refuses(early, 3);
    e.takes_long_from(first);
    e.refuses(early, negative(13));
    e.takes_long_from(early);
    // Also one that was open when it began, and is cut in two by a message of one packet.
    assert_eq!(e.handle(early, 10), Ok(Arrival::Part));
    assert_eq!(e.handle(first, 0), Ok(Arrival::Notified));
    e.take_and_reopen(first);
    e.refuses(early, negative(10));
    e.takes_long_from(early);
}

#[test]
fn what_a_link_left_unfinished_counts_neither_for_the_next_in_its_place_nor_with_a_new_key() {
    let (gone, next) = (OTHERS[1], OTHERS[2]);
    let e = &mut SharedEntry::new();
    assert_eq!(e.handle(gone, 5), Ok(Arrival::Part));
    e.takes_long_from(next);
    assert_eq!(e.handle(next, 5), Ok(Arrival::Part));
    e.r.interface.arm_entry(e.r.one_shot, ENTRY, Some((Key(1 << 50), 32..96))).unwrap();
    e.good = e.r.header(e.r.one_shot, 16);
    e.takes_long_from(next);
    // Where no place was set aside for a link there is no count, and accepting makes none.
    let far = LinkId { index: 1000, generation: 0 };
    e.refuses(far, 5);
    e.r.interface.reserve_links(1001);
    e.takes_long_from(far);
}

#[test]
fn an_interface_that_is_not_enabled_discards_and_counts_everything() {
    let r = &mut receiver();
    let good = r.header(r.normal, 16);
    r.interface.disable();
    let before = state(r);
    // Also what it would refuse: it does not look.
    for h in [good, Header { key: Key(0), ..good }] {
        assert_eq!(r.handle(&h, 0), Err(NotDeposited::Discarded(Discard::NotEnabled)));
    }
    assert_eq!(state(r), before);
    assert_eq!(r.interface.counters().packets_discarded.get(), 2);
    r.interface.enable();
    r.accepts(&good);
    assert_eq!(r.interface.counters().packets_discarded.get(), 2);
}

#[test]
fn a_watchdog_that_runs_out_discards_until_it_is_reset() {
    let r = &mut receiver();
    let good = r.header(r.normal, 16);
    r.interface.set_watchdog(1_000, 50);
    r.interface.check_watchdog(1_050);
    r.accepts(&good);
    r.interface.check_watchdog(1_051);
    assert_eq!(r.handle(&good, 0), Err(NotDeposited::Discarded(Discard::Watchdog)));
    r.interface.reset_watchdog(2_000);
    r.accepts(&good);
    // Off by default, and off again at 0: not polling never discards.
    r.interface.set_watchdog(2_000, 0);
    r.interface.check_watchdog(u64::MAX);
    r.interface.pop(r.queue).unwrap().unwrap();
    r.accepts(&good);
}

#[test]
fn a_removed_slots_index_does_not_bring_its_key_back() {
    let r = &mut receiver();
    let old = r.header(r.normal, 16);
    r.interface.remove_slot(r.normal).unwrap();
    let config = SlotConfig::new(r.area, r.queue);
    let new = r.interface.create_slot(&config, Key(1), || Key(2)).unwrap();
    assert_eq!(new.index(), old.slot);
    assert!(r.interface.entry(r.normal, MetadataIndex(0)).is_err(), "the old name is no name");
    let again = Header { metadata_index: MetadataIndex(0), ..old };
    let refused = Err(NotDeposited::Refused(Refusal::WrongKey));
    assert_eq!(r.handle(&again, 0), refused);
}
