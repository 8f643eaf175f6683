//! Regions that peers may use: given, taken back, and the signals of puts onto them.
//!
//! Never: a region is taken back and something that a peer asked for before is still served; the closing of
//! one end point looks at the exports of all.

use super::{Board, Exported, Signals};
use crate::ends::{Door, unpoisoned};
use crate::memory::{RegionCore, Signal};
use crate::wire::{Head, Rights, kind};
use hamlyn::node::Node;
use hamlyn::{AreaId, SlotConfig, SlotId};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Regions given to one peer.
const EXPORTS_OF_PEER_MAX: u32 = 4096;
/// Of one peer, messages that something was taken back.
const REVOKED_MAX: usize = 1 << 17;
/// Signals of all exports together that wait.
const SIGNALS_MAX: u32 = 1 << 14;

impl Board {
    /// Gives a region to an end point: the number, under which the peer names it.
    pub fn export(
        &mut self,
        node: &mut Node,
        end: u64,
        region: &Arc<RegionCore>,
        rights: Rights,
        credit: u32,
    ) -> Result<(u32, [Option<SlotId>; 2]), String> {
        let link = self.place(end).ok_or("the end point is closed")?.link;
        let partner = self.partners.get(&link).ok_or("the peer is gone")?;
        if partner.exports >= EXPORTS_OF_PEER_MAX {
            return Err(format!("the peer has {EXPORTS_OF_PEER_MAX} regions, the most allowed"));
        }
        let door = match region.area() {
            Some(area) if rights.writes() => {
                let door = Door::new(node, area)?;
                region.watch(node, door.slot).inspect_err(|_| door.remove(node))?;
                Some(door)
            }
            _ => None,
        };
        let slot = match (region.area(), credit) {
            (Some(area), 1..) if rights.writes() => {
                let slot = self.signal_slot(node, area, credit);
                Some(slot.and_then(|slot| {
                    let watched = region.watch(node, slot).inspect_err(|_| {
                        let _ = node.remove_slot(slot);
                    });
                    watched.map(|()| slot)
                }))
            }
            _ => None,
        };
        let slot = slot.transpose().inspect_err(|_| {
            door.inspect(|door| door.remove(node));
        })?;
        let signals = Signals { slot, credit, ..Default::default() };
        self.next_export = self.next_export.wrapping_add(1);
        let number = self.next_export;
        if let Some(slot) = slot {
            self.signalled.insert(slot, number);
        }
        let region = region.clone();
        self.exports.insert(number, Exported { link, end, region, rights, door, signals });
        self.given.insert((end, number));
        if let Some(partner) = self.partners.get_mut(&link) {
            partner.exports += 1;
        }
        Ok((number, [door.map(|door| door.slot), slot]))
    }

    /// The slots that a region has already.
    pub fn watch_region(&self, node: &mut Node, region: &Arc<RegionCore>) -> Result<(), String> {
        let of_it = self.exports.values().filter(|export| Arc::ptr_eq(&export.region, region));
        let slots =
            of_it.flat_map(|export| [export.door.map(|door| door.slot), export.signals.slot]);
        slots.flatten().try_for_each(|slot| region.watch(node, slot))
    }

    /// A slot over a region that announces each packet.
    fn signal_slot(
        &mut self,
        node: &mut Node,
        area: AreaId,
        credit: u32,
    ) -> Result<SlotId, String> {
        let queue = match self.signals {
            Some(queue) => queue,
            None => node.notification_queue(SIGNALS_MAX).map_err(|e| e.to_string())?,
        };
        self.signals = Some(queue);
        node.slot(SlotConfig::new(area, queue).credit(credit)).map_err(|e| e.to_string())
    }

    /// Signals that have come go to their regions.
    pub(super) fn sort_signals(&mut self, node: &mut Node) {
        let Some(queue) = self.signals else { return };
        while let Ok(Some(came)) = node.pop(queue) {
            let number = self.signalled.get(&came.slot);
            let Some((number, export)) =
                number.and_then(|number| Some((number, self.exports.get_mut(number)?)))
            else {
                continue;
            };
            if export.signals.waiting >= export.signals.credit {
                self.figures.refused += 1;
                continue;
            }
            export.signals.waiting += 1;
            let signal = Signal { word: came.word, export: *number };
            let region = &export.region;
            let mut came = unpoisoned(&region.signals);
            came.queue.push_back(signal);
            region.signal_count.store(came.queue.len() as u32, Ordering::Release);
            if let Some(target) = &came.target {
                target.raise_in_turn();
            }
        }
    }

    pub fn take_signal(&mut self, node: &mut Node, region: &RegionCore) -> Option<Signal> {
        let signal = {
            let mut came = unpoisoned(&region.signals);
            let signal = came.queue.pop_front()?;
            region.signal_count.store(came.queue.len() as u32, Ordering::Release);
            signal
        };
        if let Some(export) = self.exports.get_mut(&signal.export) {
            let signals = &mut export.signals;
            signals.waiting -= 1;
            signals.taken += 1;
            if signals.taken * 2 >= signals.credit {
                let taken = core::mem::take(&mut signals.taken);
                let head = Head {
                    number: signal.export.into(),
                    length: u64::from(taken).into(),
                    ..Head::of(kind::CREDIT)
                };
                let link = export.link;
                self.answer(link, head);
                self.turn(node);
            }
        }
        Some(signal)
    }

    /// Takes regions back, and tells their holders.
    pub fn unexport_all(&mut self, node: &mut Node, which: impl Fn(&Exported) -> bool) {
        let found = self.exports.iter().filter(|(_, export)| which(export));
        for number in found.map(|(number, _)| *number).collect::<Vec<_>>() {
            self.unexport(node, number);
        }
    }

    pub fn unexport(&mut self, node: &mut Node, number: u32) {
        let Some(export) = self.exports.remove(&number) else { return };
        self.given.remove(&(export.end, number));
        if let Some(door) = export.door {
            door.remove(node);
        }
        if let Some(slot) = export.signals.slot {
            let _ = node.remove_slot(slot);
            self.signalled.remove(&slot);
        }
        if let Some(aperture) = export.region.aperture() {
            let _ = node.revoke_aperture(aperture);
        }
        // One that does not listen hears of it by the refusals.
        let Some(partner) = self.partners.get_mut(&export.link) else { return };
        partner.exports -= 1;
        if partner.answers.len() < REVOKED_MAX {
            self.answer(export.link, Head { number: number.into(), ..Head::of(kind::REVOKED) });
        }
    }

    /// Takes back what was given to an end point.
    pub(super) fn unexport_given(&mut self, node: &mut Node, end: u64) {
        while let Some((_, number)) = self.given.range((end, 0)..=(end, u32::MAX)).next() {
            self.unexport(node, *number);
        }
    }

    /// An export of another region is left alone.
    pub fn unexport_of(&mut self, node: &mut Node, region: &Arc<RegionCore>, number: u32) {
        let export = self.exports.get(&number);
        if export.is_some_and(|export| Arc::ptr_eq(&export.region, region)) {
            self.unexport(node, number);
        }
    }

    pub fn unexport_region(&mut self, node: &mut Node, region: &Arc<RegionCore>) {
        self.unexport_all(node, |export| Arc::ptr_eq(&export.region, region));
    }
}
