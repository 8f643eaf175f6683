//! Each refusal: how it comes about, that its counter is the one that goes up, and that nothing
//! else changes, byte for byte. A new refusal without a case here does not compile.

mod model;

use hamlyn::interface::{
    AreaId, Arrival, Discard, Interface, Mode, NotDeposited, QueueId, Refusal, SlotConfig, SlotId,
};
use hamlyn::wire::{Flags, Header, Key, MetadataIndex, NodeId, SlotIndex};
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

fn provoke(refusal: Refusal) {
    let r = &mut receiver();
    let good = r.header(r.normal, 16);
    match refusal {
        Refusal::WrongDestination => {
            r.refuses(refusal, &Header { destination: NodeId(6), ..good }, 0);
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
            r.accepts(&paranoid);
            // A key that was right a moment ago.
            r.accepts(&good);
            r.next_key += 1;
            r.interface.set_key(r.normal, Key(r.next_key)).unwrap();
            r.refuses(refusal, &good, 0);
            r.next_key += 1;
            r.interface.arm_entry(r.paranoid, ENTRY, Some((Key(r.next_key), 32..96))).unwrap();
            r.refuses(refusal, &paranoid, 0);
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
            r.interface.arm_entry(r.one_shot, ENTRY, Some((one_shot.key, 32..96))).unwrap();
            r.accepts(&one_shot);
        }
        Refusal::NoCredit => {
            let silent = Header { flags: Flags::empty(), ..good };
            for _ in 0..2 {
                r.accepts(&good);
            }
            r.refuses(refusal, &good, 0);
            // Data that nobody is told of needs no credit; a part needs none yet.
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
