//! One packet, taken from a ring and given to the interface; and the consequence of a refusal.

use super::conduct::RefusalCharge;
use super::link::Link;
use super::receive::Misbehaviour;
use crate::config::Config;
use crate::interface::{Flow, Interface, LinkId, NotDeposited, Refusal};
use crate::link::ring::FLOWS;
use crate::os::memory::AreaMemory;
use crate::os::sys;
use crate::wire::{MetadataIndex, SlotIndex};
use std::boxed::Box;
use std::vec::Vec;

/// The result of one packet.
pub(super) struct PacketOutcome {
    pub lines: u64,
    pub freed: bool,
    pub ended: Option<Misbehaviour>,
}

/// The parts needed to take a packet, beside its link.
pub(super) struct Taking<'a> {
    pub interface: &'a mut Interface<AreaMemory>,
    pub config: &'a Config,
    pub stale: &'a mut Vec<(LinkId, SlotIndex, MetadataIndex)>,
}

impl Taking<'_> {
    /// Takes the next packet of a ring, of any kind. Its flow is kept, if it is of one.
    #[inline(never)]
    pub fn packet(self, link: &mut Link, is_bulk: bool) -> PacketOutcome {
        let ring = match &mut link.rx.bulk {
            Some(bulk) if is_bulk => bulk,
            _ => &mut link.rx.ring,
        };
        let packet = match ring.peek() {
            Ok(Some(packet)) => packet,
            Ok(None) => return PacketOutcome { lines: 0, freed: false, ended: None },
            Err(violation) => {
                let ended = Some(Misbehaviour::Violation(violation));
                return PacketOutcome { lines: 0, freed: false, ended };
            }
        };
        // A bulk ring has numbers of its own, and is not worth it.
        let number = packet.flow.filter(|_| !is_bulk);
        let none = || Box::new([const { Flow::NONE }; FLOWS]);
        let flows = number.map(|number| &mut link.flows.get_or_insert_with(none)[number % FLOWS]);
        let (header, lines) = (packet.header, packet.lines());
        let mut none = Flow::NONE;
        let keep = flows.unwrap_or(&mut none);
        let result =
            self.interface.handle_and_keep(link.id, &header, packet.reserved, &packet, keep);
        let mut ended = None;
        if let Err(NotDeposited::Refused(refusal)) = result {
            let position = ring.position();
            let refused = match refusal {
                Refusal::WrongKey => RefusalCharge::Guess,
                Refusal::StaleKey => RefusalCharge::Stale,
                // The slot has gone, or another of its index has fewer entries, or another mode.
                Refusal::NoSuchSlot | Refusal::NoSuchEntry | Refusal::FastIntoParanoid
                    if self.interface.had_ticket(&header) =>
                {
                    RefusalCharge::Stale
                }
                _ => RefusalCharge::Other,
            };
            ended = link.conduct.refused(
                self.config,
                refused,
                is_bulk,
                position..position + lines,
                sys::monotonic_ns,
            );
            if refused == RefusalCharge::Stale
                && link.conduct.is_to_be_told(header.key, sys::monotonic_ns)
            {
                self.stale.push((link.id, header.slot, header.metadata_index));
            }
        }
        PacketOutcome { lines, freed: ring.release(lines), ended }
    }

    /// Takes a turn's packets from the bulk ring: a share of its own, so that a busy base ring does
    /// not starve it.
    #[inline(never)]
    pub fn bulk(self, link: &mut Link, budget: usize, lines_max: u64) -> (usize, PacketOutcome) {
        let mut sum = PacketOutcome { lines: 0, freed: false, ended: None };
        let mut taken = 0;
        while taken < budget && sum.lines < lines_max {
            let Some(bulk) = &mut link.rx.bulk else { break };
            if !bulk.is_ready() {
                sum.freed |= bulk.publish();
                break;
            }
            taken += 1;
            let again = Taking {
                interface: &mut *self.interface,
                config: self.config,
                stale: &mut *self.stale,
            };
            let step = again.packet(link, true);
            sum.lines += step.lines;
            sum.freed |= step.freed;
            if step.ended.is_some() {
                sum.ended = step.ended;
                break;
            }
        }
        (taken, sum)
    }
}
