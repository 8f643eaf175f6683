//! The short way of a packet against the general one: an interface behind a ring, which takes packets by
//! the flows that it has kept, and another that is given each packet's whole header. Whatever is sent,
//! and whatever a hostile writer makes of it in the ring, both do the same.

use hamlyn::interface::{Flow, Interface, LinkId, Mode, NotDeposited, QueueId, SlotConfig, SlotId};
use hamlyn::link::cells::{self, Line};
use hamlyn::link::ring::{FLOWS, RingReader, RingWriter, packet_lines_max};
use hamlyn::link::sim::Rng;
use hamlyn::link::{Body, Transmit};
use hamlyn::wire::{
    BodyLayout, FlowWords, HEADER_WORDS, Header, Key, MetadataIndex, NodeId, SHORT_HEADER_WORDS,
    SlotIndex, Varying,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

const LINK: LinkId = LinkId { index: 3, generation: 9 };
const LINES: usize = 64;
const AREA: usize = 1 << 12;
const PACKETS: u64 = 20_000;

/// One of the two, with the same slots.
struct Side {
    interface: Interface<Vec<u8>>,
    queue: QueueId,
    area: hamlyn::interface::AreaId,
    slots: Vec<SlotId>,
}

impl Side {
    fn new() -> Self {
        let mut interface = Interface::new(NodeId(5), [5; 16]);
        interface.enable();
        let area = interface.create_area(vec![0xaa; AREA]);
        let queue = interface.create_queue(64).unwrap();
        let modes = [Mode::Normal, Mode::Paranoid, Mode::ParanoidOneShot];
        let slots = (0..9u64).map(|i| {
            let range = 400 * i..400 * i + 40 + 40 * i;
            let mode = modes[i as usize % 3];
            let config = SlotConfig::new(area, queue).range(range).mode(mode).metadata(2);
            let config = if mode == Mode::ParanoidOneShot { config } else { config.credit(4) };
            interface.create_slot(&config).unwrap()
        });
        let slots = slots.collect();
        Self { interface, queue, area, slots }
    }

    /// The same change on either side, one that may end what was kept.
    fn change(&mut self, slot: usize, choice: u64) {
        let (slot, index) = (self.slots[slot], MetadataIndex(choice as u32 % 2));
        match choice % 6 {
            5 => {
                self.interface.disable();
                self.interface.enable();
            }
            0 => drop(self.interface.arm_entry(slot, index, Some(8..8 + choice))),
            1 => drop(self.interface.arm_entry(slot, index, None)),
            2 => drop(self.interface.change_key(slot)),
            3 => drop(self.interface.close_entry(slot, index)),
            _ => drop(self.interface.arm_entry(slot, index, None)),
        }
    }
}

/// The bytes of a packet as they are in the ring.
struct Bytes(Vec<u8>, usize);

impl Body for Bytes {
    fn words(&self) -> [u64; 2] {
        let mut all = self.0[self.1..].to_vec();
        all.resize(16.max(all.len()), 0);
        [0, 8].map(|i| u64::from_le_bytes(all[i..i + 8].try_into().unwrap()))
    }

    fn copy_metadata(&self, to: &mut [u8]) {
        to.copy_from_slice(&self.0[..to.len()]);
    }

    fn copy_data(&self, to: &mut [u8]) {
        to.copy_from_slice(&self.0[self.1..][..to.len()]);
    }
}

type Ring =
    (RingWriter<Arc<[Line]>, Arc<AtomicU64>>, RingReader<Arc<[Line]>, Arc<AtomicU64>>, Arc<[Line]>);

fn ring() -> Ring {
    let lines: Arc<[Line]> = (0..LINES).map(|_| Line::default()).collect();
    let freed = Arc::new(AtomicU64::new(0));
    let writer = RingWriter::new(lines.clone(), freed.clone(), u32::MAX);
    (writer, RingReader::new(lines.clone(), freed), lines)
}

/// The bytes of a body in a ring, from `at` on.
fn body_at(lines: &[Line], at: usize, bytes: u64) -> Vec<u8> {
    let byte = |i: usize| cells::load_at(lines, i % (64 * LINES) / 8 * 8).to_le_bytes()[i % 8];
    (at..at + bytes as usize).map(byte).collect()
}

/// Runs a seed. Counts what it met.
fn run(seed: u64, met: &mut BTreeMap<&'static str, u64>) {
    let mut rng = Rng::new(seed);
    let (mut short, mut whole) = (Side::new(), Side::new());
    let (mut writer, mut reader, mut lines) = ring();
    let mut flows = vec![Flow::NONE; FLOWS];
    let mut told: [Option<FlowWords>; FLOWS] = [None; FLOWS];
    let mut ended = false;
    let mut headers: Vec<Header> = Vec::new();
    for number in 0..PACKETS {
        if ended {
            (writer, reader, lines) = ring();
            (flows, told) = (vec![Flow::NONE; FLOWS], [None; FLOWS]);
        }
        let mut chance = |of: u64| rng.below(of) == 0;
        let (changes, forgets) = (chance(200), chance(50));
        let (is_wrong, is_hostile) = (chance(10), chance(20));
        if changes {
            let (slot, choice) = (rng.below(9) as usize, rng.below(1000));
            short.change(slot, choice);
            whole.change(slot, choice);
        }
        if headers.is_empty() || forgets {
            // The headers of a sender's present tickets.
            headers = (0..9)
                .flat_map(|i| (0..3).map(move |j| (i, j)))
                .filter_map(|(i, j)| {
                    let (slot, index) = (short.slots[i], MetadataIndex(j as u32 % 2));
                    let fast = short.interface.fast_ticket(slot).ok().filter(|_| j == 2);
                    let ticket = fast.or_else(|| short.interface.ticket(slot, index).ok());
                    let ticket = ticket?;
                    Some(Header {
                        destination: ticket.destination.destination(),
                        slot: ticket.slot,
                        metadata_index: ticket.metadata_index,
                        key: ticket.key,
                        offset: 0,
                        length: 0,
                        delta: ticket.share.to_wire(),
                        metadata_len: 0,
                        flags: ticket.flags,
                        word: 0,
                    })
                })
                .collect();
        }
        // A few of them again and again, others now and then.
        let which = if rng.below(4) == 0 { rng.below(27) } else { number / 100 + rng.below(2) };
        let mut header = headers[which as usize % headers.len()];
        (header.length, header.word) = (rng.below(120) as u32, rng.below(9) as u32);
        header.offset = if rng.below(8) == 0 { rng.below(1 << 33) } else { rng.below(300) };
        if is_wrong {
            match rng.below(5) {
                0 => header.key = Key(header.key.0 ^ 1),
                1 => header.slot = SlotIndex(rng.below(12) as u32),
                2 => header.metadata_index = MetadataIndex(rng.below(4) as u32),
                3 => header.delta = rng.below(3) as u32,
                _ => header.metadata_len = rng.below(61) as u8,
            }
        }
        let body: Vec<u8> = (0..header.body_bytes()).map(|i| (number + i) as u8).collect();
        let (metadata, data) = body.split_at(header.metadata_len as usize);
        let at = writer.written() as usize % LINES * 64;
        writer.transmit(&header, metadata, data).expect("the ring is empty");
        // A hostile writer changes the words that say where a packet goes.
        let mut first = cells::load_at(&lines, at);
        let is_short = first >> 63 == 1;
        if is_hostile && is_short {
            let (length, of) = (1 << rng.below(17), 1 << rng.below(16));
            match rng.below(3) {
                0 => cells::store_at(&lines, at + 8, rng.below(1 << 40)),
                1 => first = first & !(0xffff << 32) | rng.below(length) << 32,
                _ => first = first & !(0x7fff << 48) | rng.below(of) << 48,
            }
            *met.entry("hostile").or_default() += 1;
            cells::store_at(&lines, at, first);
        }
        // The packet as it now is in the ring.
        let (expected, reserved) = match is_short {
            false => (header, 0),
            true => {
                let word = cells::load_at(&lines, at + 8);
                let (offset, length) = (word as u32 as u64, (first >> 32) as u32 & 0xffff);
                let varying = Varying { offset, length, word: (word >> 32) as u32 };
                match told.get((first >> 48) as usize & 0x7fff) {
                    Some(Some(flow)) => Header::of_flow(flow, &varying),
                    _ => {
                        assert!(reader.peek().is_err(), "of a flow that was not told");
                        *met.entry("untold").or_default() += 1;
                        ended = true;
                        continue;
                    }
                }
            }
        };
        let words = if is_short { SHORT_HEADER_WORDS } else { HEADER_WORDS };
        let layout = BodyLayout::new(words, expected.body_bytes());
        if layout.lines > packet_lines_max(writer.packet_bytes()) {
            assert!(reader.peek_line().expect("it was sent").short::<true>().is_none());
            assert!(reader.peek().is_err(), "of more lines than a packet can have");
            *met.entry("too_long").or_default() += 1;
            ended = true;
            continue;
        }
        let tells = (cells::load_at(&lines, at + 40) >> 16) as u8 as usize;
        if !is_short && tells > 0 {
            told[tells - 1] = Some(header.flow());
        }
        // The short way, as a node goes it.
        let empty = number % 3 == 0 && !short.interface.is_ready(short.queue).unwrap();
        let mut handed = None;
        let line = reader.peek_line().expect("it was sent");
        let packet = line.short::<true>().or_else(|| line.short::<false>());
        let taken = packet.filter(|packet| {
            let (flow, varying) = (&flows[packet.number], packet.varying());
            let interface = &mut short.interface;
            if empty {
                let taken = interface.take_again(flow, &varying, packet, short.queue, None);
                handed = taken.map(|taken| taken.handed(flow, LINK).notification);
                if handed.is_some() {
                    return true;
                }
            }
            interface.handle_again(flow, LINK, &varying, packet)
        });
        let (got, lines_taken) = match taken {
            Some(packet) => {
                *met.entry(if empty { "taken" } else { "again" }).or_default() += 1;
                *met.entry("longer").or_default() += u64::from(packet.lines() > 1);
                (Ok(()), packet.lines())
            }
            None => {
                let packet = reader.peek().expect("no violation").expect("it was sent");
                assert_eq!((packet.header, packet.reserved), (expected, reserved));
                let mut none = Flow::NONE;
                let keep = packet.flow.map_or(&mut none, |number| &mut flows[number]);
                let header = packet.header;
                let interface = &mut short.interface;
                let got = interface.handle_and_keep(LINK, &header, packet.reserved, &packet, keep);
                (got.map(drop), packet.lines())
            }
        };
        let bytes = body_at(&lines, at + layout.at, expected.body_bytes());
        let body = Bytes(bytes, expected.metadata_len as usize);
        let said = whole.interface.handle_packet(LINK, &expected, reserved, &body).map(drop);
        assert_eq!(got, said, "seed {seed}, packet {number}: {expected:?}");
        if let Err(NotDeposited::Refused(refusal)) = said {
            *met.entry(refusal.counter_name()).or_default() += 1;
        }
        if let Some(handed) = handed {
            assert_eq!(whole.interface.pop(whole.queue), Ok(Some(handed)));
        }
        // Of another number of lines than were written: the link would end in nonsense.
        ended = lines_taken != writer.written() - reader.position();
        if !ended {
            reader.release(lines_taken);
            reader.publish();
        }
        if rng.below(3) == 0 {
            let notes =
                [&mut short, &mut whole].map(|side| side.interface.pop(side.queue).unwrap());
            assert_eq!(notes[0], notes[1]);
        }
        if number % 50 == 0 {
            let [a, b] = [&short, &whole].map(|side| side.interface.area(side.area).unwrap());
            assert!(a == b, "seed {seed}, packet {number}: the areas differ");
        }
    }
    let [a, b] = [&short, &whole].map(|side| side.interface.counters().snapshot());
    assert_eq!(a, b);
}

#[test]
fn the_short_way_does_what_the_general_one_does() {
    let seeds = std::env::var("HAMLYN_SIM_SEEDS").map_or(100, |seeds| seeds.parse().unwrap());
    let mut met = BTreeMap::new();
    (0..seeds).for_each(|seed| run(seed, &mut met));
    for (name, least) in [
        ("taken", 1000),
        ("again", 1000),
        ("longer", 1000),
        ("hostile", 1000),
        ("untold", 100),
        ("too_long", 100),
    ] {
        assert!(met[name] > least, "{met:?}");
    }
    for name in ["refused_out_of_bounds", "refused_wrong_key", "refused_stale_key"] {
        assert!(met.get(name).is_some_and(|count| *count > 20), "{name}: {met:?}");
    }
}
