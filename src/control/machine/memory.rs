//! Memory that travels from the end that writes it to the end that maps it.
//!
//! ```text
//!   maker:  None --OFFER--> Offered --TAKE--> Passed --HELD--> Said --a receiver is free--> Touching
//!                                                                     --paid, touched--> Held
//!   taker:  None --OFFER--> Wanted --a receiver is free--> Taking --mapped--> Held
//! ```
//! The maker of memory seals it before any other process has a descriptor of it, and never again
//! does anything to the file for which the kernel takes the inode's lock: a peer can hold that lock
//! for any time. The taker only asks for its seals, size and blocks, and maps it.
//!
//! A thread that nothing waits for receives a stranger's descriptor: dropping it may take as long
//! as the stranger likes. Of such threads, *receivers*, each user has a few; a receiver that a
//! descriptor has stopped counts until it goes on.
//!
//! Memory that the other end has paid for is touched before use, by such a thread: its pages may
//! lie in swap, and come back only when the other end's control group has memory.
//!
//! Never: a file of a stranger's is sealed, punched or resized; a receiver is waited for.

use super::super::frame::{Frame, LinkFeatures, LinkSide, Memory, MemoryWord, Reason, owner_of};
use super::account::{Accounts, User};
use super::table::{ConnectionStage, Transfer};
use super::{
    Action, ConnectFailure, ConnectionId, Expected, LinkEnd, Machine, MachineEvent, MemoryOutcome,
    Touched,
};
use crate::wire::ApertureAccess;
use alloc::string::String;
use alloc::vec::Vec;

/// Time that a receiver may take beyond its deadline before it counts as stopped.
const GRACE_NS: u64 = 1_000_000_000;

/// Whether a ring may have this size.
pub(super) fn is_ring_size(bytes: u64) -> bool {
    bytes.is_power_of_two() && (512..=1 << 30).contains(&bytes)
}

fn is_bulk_size(bytes: u64) -> bool {
    bytes.is_power_of_two() && (4096..=1 << 30).contains(&bytes)
}

impl Machine {
    /// Handles a frame about memory that travels.
    pub(super) fn handle_memory(
        &mut self,
        now_ns: u64,
        id: ConnectionId,
        memory: Memory,
        word: MemoryWord,
    ) {
        let Some(c) = self.table.get(id) else { return };
        let is_ours = memory.maker() == c.role;
        let is_meeting = matches!(c.stage(), ConnectionStage::Meeting(_));
        match memory {
            Memory::Ring(_) if is_meeting => {}
            Memory::Bulk(_) if c.is_linked() && c.features().contains(LinkFeatures::BULK) => {}
            Memory::Aperture(number)
                if c.is_linked() && c.features().contains(LinkFeatures::APERTURE) =>
            {
                return match is_ours {
                    true => self.handle_own_aperture(id, number, word),
                    false => self.handle_their_aperture(now_ns, id, number, word),
                };
            }
            _ => return self.out_of_turn(id),
        }
        let until_ns = now_ns.saturating_add(self.limits.step_timeout_ns);
        let Some(transfer) = self.transfer(id, memory) else { return };
        match (word, *transfer) {
            (MemoryWord::Offer { bytes, access }, Transfer::None) if !is_ours => {
                if access != ApertureAccess::ReadOnly {
                    return self.out_of_turn(id);
                }
                self.ring_offered(now_ns, id, memory, bytes);
            }
            (MemoryWord::Take { bytes }, Transfer::Offered { bytes: offered }) if is_ours => {
                let is_sound = match memory {
                    Memory::Bulk(_) => is_bulk_size(bytes) && bytes <= offered,
                    _ => bytes == offered,
                };
                if !is_sound {
                    return self.out_of_turn(id);
                }
                *transfer = Transfer::Passed { bytes, until_ns };
                // A bulk ring smaller than the offer costs less accordingly.
                self.table.give_back(id, offered - bytes);
                self.act(Action::Make { of: id, memory, bytes: bytes as u32 });
                self.set_memory_deadline(id);
            }
            (MemoryWord::Held, Transfer::Passed { bytes, until_ns }) if is_ours => {
                match memory.maker() {
                    // It has filled that itself.
                    LinkSide::Client => {
                        *transfer = Transfer::Touching { bytes };
                        self.touched(now_ns, id, memory, Touched::Yes);
                    }
                    LinkSide::Server => {
                        *transfer = Transfer::Said { bytes, until_ns };
                        self.want(now_ns, id, memory);
                    }
                }
            }
            (MemoryWord::Refused(why), Transfer::Offered { bytes })
            | (MemoryWord::Refused(why), Transfer::Passed { bytes, .. })
                if is_ours =>
            {
                if is_meeting {
                    return self.ring_refused(id, why);
                }
                *transfer = Transfer::None;
                self.table.give_back(id, bytes);
                self.act(Action::Drop { of: id, memory });
                self.tell(MachineEvent::BulkRefused { link: id, why });
                self.set_memory_deadline(id);
            }
            (MemoryWord::Held | MemoryWord::Refused(_), Transfer::Lapsed) if is_ours => {}
            // The maker will not pass it after all.
            (MemoryWord::Refused(why), Transfer::Wanted { .. }) if !is_ours => {
                if is_meeting {
                    return self.ring_refused(id, why);
                }
                self.no_longer_wanted(id, memory);
                self.forget_ring(id, memory);
            }
            // It crossed with our own refusal.
            (MemoryWord::Refused(_), Transfer::None) if !is_ours => {}
            _ => self.out_of_turn(id),
        }
    }

    fn transfer(&mut self, id: ConnectionId, memory: Memory) -> Option<&mut Transfer> {
        let c = self.table.get_mut(id)?;
        match memory {
            Memory::Ring(end) => c.meeting().map(|meeting| &mut meeting.rings[end as usize]),
            Memory::Bulk(end) => c.linked().map(|linked| &mut linked.bulk[end as usize]),
            Memory::Aperture(_) => None,
        }
    }

    /// Offers a ring to the other end.
    pub(super) fn offer_ring(&mut self, id: ConnectionId, memory: Memory, bytes: u64) {
        if let Some(transfer) = self.transfer(id, memory) {
            *transfer = Transfer::Offered { bytes };
            let access = ApertureAccess::ReadOnly;
            let word = MemoryWord::Offer { bytes, access };
            self.send(id, Frame::Memory { memory, word });
        }
    }

    fn ring_refused(&mut self, id: ConnectionId, why: Reason) {
        let Some(c) = self.table.get(id) else { return };
        match c.role {
            LinkSide::Client => {
                self.failed(id, ConnectFailure::Refused { reason: why, text: "its ring".into() })
            }
            LinkSide::Server => {
                self.counters.refused_memory += 1;
                self.refuse(id, Reason::Memory, "a ring was refused");
            }
        }
    }

    /// The other end offers a ring to this one.
    fn ring_offered(&mut self, now_ns: u64, id: ConnectionId, memory: Memory, bytes: u64) {
        let Some(c) = self.table.get_mut(id) else { return };
        let role = c.role;
        let mut wanted = bytes;
        match memory {
            Memory::Ring(end) => {
                let agreed = c.meeting().map(|meeting| meeting.ring_bytes[end as usize]);
                // The client pays first.
                let is_turn = match role {
                    LinkSide::Server => true,
                    LinkSide::Client => c.meeting().is_some_and(|meeting| {
                        matches!(meeting.rings[LinkSide::Client as usize], Transfer::Held)
                    }),
                };
                if agreed.map(u64::from) != Some(bytes) || !is_turn {
                    return self.out_of_turn(id);
                }
            }
            Memory::Bulk(_) => {
                if !is_bulk_size(bytes) {
                    return self.out_of_turn(id);
                }
                wanted = bytes.min(u64::from(self.limits.peer_ring_bytes_max));
                if wanted < 4096 || !self.table.charge(id, wanted, self.limits.bytes_per_user_max) {
                    return self.no_ring(id, memory, Reason::Bytes);
                }
            }
            Memory::Aperture(_) => return,
        }
        let until_ns = now_ns.saturating_add(self.limits.step_timeout_ns);
        if let Some(transfer) = self.transfer(id, memory) {
            *transfer = Transfer::Wanted { bytes: wanted, until_ns };
        }
        self.want(now_ns, id, memory);
    }

    /// The taker, this process, refuses the ring of a link that exists.
    fn no_ring(&mut self, id: ConnectionId, memory: Memory, why: Reason) {
        self.counters.refused_bulk += 1;
        let word = MemoryWord::Refused(why);
        self.send(id, Frame::Memory { memory, word });
        self.count_refusal(id);
    }

    /// More was refused to this link than was granted.
    pub(super) fn count_refusal(&mut self, id: ConnectionId) {
        let Some(c) = self.table.get_mut(id) else { return };
        c.refused += 1;
        if c.refused > super::REFUSED_MAX {
            self.misbehaved(id, "it goes on asking for what was refused");
        }
    }

    fn forget_ring(&mut self, id: ConnectionId, memory: Memory) {
        let Some(transfer) = self.transfer(id, memory) else { return };
        let bytes = match *transfer {
            Transfer::Wanted { bytes, .. } | Transfer::Taking { bytes } => bytes,
            _ => 0,
        };
        *transfer = Transfer::None;
        self.table.give_back(id, bytes);
        self.set_memory_deadline(id);
    }

    // ---- receivers

    /// Memory waits for a receiver.
    pub(super) fn want(&mut self, now_ns: u64, id: ConnectionId, memory: Memory) {
        self.table.want(id, memory);
        self.set_memory_deadline(id);
        self.start_receivers(now_ns);
    }

    pub(super) fn no_longer_wanted(&mut self, id: ConnectionId, memory: Memory) {
        self.table.no_longer_want(id, memory);
    }

    /// Gives free receivers to those that have waited longest, of the users who have fewest.
    fn start_receivers(&mut self, now_ns: u64) {
        while let Some((user, id)) = self.table.first_wanting() {
            self.looked_at += 1;
            let own = self.table.accounts.get(user).receivers;
            let taken = self.table.accounts.receivers;
            // No other user has fewer.
            if !Accounts::has_place(taken, own, self.limits.receivers_max) {
                return;
            }
            let Some(memory) = self.table.take_want(id) else { return };
            self.start_receiver(now_ns, id, memory);
        }
    }

    fn start_receiver(&mut self, now_ns: u64, id: ConnectionId, memory: Memory) {
        let Some(c) = self.table.get_mut(id) else { return };
        let role = c.role;
        let expected = match memory {
            Memory::Aperture(number) => {
                let Some(linked) = c.linked() else { return };
                let Some((bytes, access)) = linked.apertures.take(number) else { return };
                Expected { memory, bytes, access, is_paid_here: false }
            }
            Memory::Ring(_) | Memory::Bulk(_) => {
                let Some(transfer) = self.transfer(id, memory) else { return };
                let bytes = match *transfer {
                    Transfer::Wanted { bytes, .. } => bytes,
                    Transfer::Said { bytes, .. } => {
                        *transfer = Transfer::Touching { bytes };
                        self.act(Action::Touch { of: id, memory });
                        return self.receiver_started(now_ns, id, false);
                    }
                    _ => return,
                };
                *transfer = Transfer::Taking { bytes };
                let access = ApertureAccess::ReadOnly;
                // The end that asked for the link pays for both rings.
                Expected { memory, bytes, access, is_paid_here: role == LinkSide::Client }
            }
        };
        if let Some(c) = self.table.get_mut(id) {
            c.window = Some(memory);
        }
        let until_ns = now_ns.saturating_add(self.limits.step_timeout_ns);
        self.act(Action::Take { from: id, expected, until_ns });
        self.receiver_started(now_ns, id, true);
    }

    fn receiver_started(&mut self, now_ns: u64, id: ConnectionId, reads: bool) {
        let until_ns = now_ns.saturating_add(self.limits.step_timeout_ns);
        self.table.receiver_started(id, until_ns, reads);
        self.set_memory_deadline(id);
    }

    /// A receiver of this user has ended; its connection, if it still exists, is read in the usual
    /// way again.
    pub fn receiver_ended(&mut self, now_ns: u64, id: ConnectionId, user: User) {
        self.now_ns = now_ns;
        self.table.receiver_ended(id, user);
        if let Some(c) = self.table.get(id) {
            if c.is_dead {
                self.handle_death(id);
            }
            self.set_memory_deadline(id);
        }
        self.follow(now_ns, id);
        self.start_receivers(now_ns);
    }

    /// Receivers that run, those that a descriptor has stopped included.
    pub fn receivers(&self) -> u32 {
        self.table.accounts.receivers
    }

    /// Handles the result for memory that was expected.
    pub fn taken(&mut self, now_ns: u64, id: ConnectionId, memory: Memory, result: MemoryOutcome) {
        self.now_ns = now_ns;
        let Some(c) = self.table.get_mut(id) else { return };
        match c.window {
            Some(expected) if expected == memory => c.window = None,
            _ => return,
        }
        let is_meeting = matches!(c.stage(), ConnectionStage::Meeting(_));
        match (memory, result) {
            (Memory::Aperture(number), result) => self.aperture_taken(id, number, &result),
            (_, MemoryOutcome::Wrong) => self.bad_memory(id),
            (_, MemoryOutcome::Mapped) => self.ring_taken(now_ns, id, memory),
            (_, MemoryOutcome::TooSlow) if is_meeting => {
                self.counters.refused_slow += 1;
                match self.table.get(id).map(|c| c.role) {
                    Some(LinkSide::Client) => {
                        self.failed(id, ConnectFailure::TimedOut("waiting for the server's ring"));
                    }
                    _ => self.refuse(id, Reason::TooSlow, super::MEMORY_LATE),
                }
            }
            (_, MemoryOutcome::Withdrawn) if is_meeting => {
                self.no_memory(id, "the other end withdrew the memory of its ring");
            }
            (_, MemoryOutcome::Unavailable(why)) if is_meeting => self.no_memory(id, &why),
            (_, MemoryOutcome::Withdrawn) => self.forget_ring(id, memory),
            (_, MemoryOutcome::TooSlow) => {
                self.counters.refused_slow += 1;
                self.forget_ring(id, memory);
                self.no_ring(id, memory, Reason::TooSlow);
            }
            (_, MemoryOutcome::Unavailable(_)) => {
                self.forget_ring(id, memory);
                self.no_ring(id, memory, Reason::Unavailable);
            }
        }
        self.set_memory_deadline(id);
    }

    /// The system has no memory for a ring on the way to a link, for this reason. The other end
    /// gets the reason too: it reveals no more of this process than /proc shows to every user.
    fn no_memory(&mut self, id: ConnectionId, why: &str) {
        let text = alloc::format!("no memory for a ring: {why}");
        match self.table.get(id).map(|c| c.role) {
            Some(LinkSide::Client) => self.failed(id, ConnectFailure::Unavailable(text)),
            _ => {
                self.counters.refused_exhausted += 1;
                self.refuse(id, Reason::Unavailable, &text);
            }
        }
    }

    fn ring_taken(&mut self, now_ns: u64, id: ConnectionId, memory: Memory) {
        let Some(transfer) = self.transfer(id, memory) else { return };
        *transfer = Transfer::Held;
        if let Some(c) = self.table.get_mut(id) {
            c.refused = 0;
        }
        if let Memory::Bulk(_) = memory {
            // The application hears of it before the first packet can be in it.
            self.tell(MachineEvent::BulkIncoming { link: id });
        }
        self.send(id, Frame::Memory { memory, word: MemoryWord::Held });
        if let Memory::Ring(end) = memory {
            self.ring_is_there(now_ns, id, end);
        }
    }

    /// The memory has been made, and is passed; or could not be made, for this reason.
    pub fn made(&mut self, id: ConnectionId, memory: Memory, made: Result<(), String>) {
        let Some(transfer) = self.transfer(id, memory) else { return };
        if !matches!(transfer, Transfer::Passed { .. }) {
            return;
        }
        match made {
            Ok(()) => self.act(Action::Pass { to: id, memory }),
            Err(why) => self.cannot_have(id, memory, &why),
        }
    }

    /// The system lacks resources for memory of this process.
    fn cannot_have(&mut self, id: ConnectionId, memory: Memory, why: &str) {
        match memory {
            Memory::Ring(_) => self.no_memory(id, why),
            _ => {
                let Some(transfer) = self.transfer(id, memory) else { return };
                let why = Reason::Unavailable;
                let was = *transfer;
                *transfer = match was {
                    // The other end has it, and will find it empty.
                    Transfer::Touching { .. } => Transfer::Lapsed,
                    _ => Transfer::None,
                };
                let bytes = match was {
                    Transfer::Passed { bytes, .. } => {
                        self.send(id, Frame::Memory { memory, word: MemoryWord::Refused(why) });
                        bytes
                    }
                    Transfer::Touching { bytes } => bytes,
                    _ => 0,
                };
                self.table.give_back(id, bytes);
                self.act(Action::Drop { of: id, memory });
                self.tell(MachineEvent::BulkRefused { link: id, why });
                self.set_memory_deadline(id);
            }
        }
    }

    /// Handles the result for memory of this process that the other end claims to have mapped and
    /// paid for.
    pub fn touched(&mut self, now_ns: u64, id: ConnectionId, memory: Memory, touched: Touched) {
        self.now_ns = now_ns;
        let Some(transfer) = self.transfer(id, memory) else { return };
        if !matches!(transfer, Transfer::Touching { .. }) {
            return;
        }
        match touched {
            Touched::Yes => *transfer = Transfer::Held,
            Touched::NotPaid => return self.bad_memory(id),
            Touched::Unavailable(why) => return self.cannot_have(id, memory, &why),
        }
        match memory {
            Memory::Ring(end) => self.ring_is_there(now_ns, id, end),
            _ => self.tell(MachineEvent::BulkOutgoing { link: id }),
        }
        self.set_memory_deadline(id);
    }

    // ---- time

    /// Sets the deadline of a link to the first of those of its memory. On the way to a link the
    /// step has one.
    pub(super) fn set_memory_deadline(&mut self, id: ConnectionId) {
        let Some(c) = self.table.get_mut(id) else { return };
        let receiver = c.receiving_until_ns().map(|until_ns| until_ns.saturating_add(GRACE_NS));
        let Some(linked) = c.linked() else { return };
        let rings = linked.bulk.iter().filter_map(Transfer::until_ns);
        let first = rings.chain(linked.apertures.until_ns()).chain(receiver).min();
        self.table.set_deadline(id, first);
    }

    /// Something of a link's memory is late.
    pub(super) fn memory_is_late(&mut self, now_ns: u64, id: ConnectionId) {
        let Some(c) = self.table.get_mut(id) else { return };
        let ends = c.receiving_until_ns().map(|until_ns| until_ns.saturating_add(GRACE_NS));
        if ends.is_some_and(|ends| ends <= now_ns) {
            if c.is_dead {
                return self.gone(id, LinkEnd::Died);
            }
            // Its receiver is stopped: by something that is no memory, or by memory that is swapped
            // out and does not come back.
            self.counters.refused_descriptor += 1;
            return self.misbehaved(id, "what it passed stopped the thread that took it");
        }
        let role = c.role;
        let Some(linked) = c.linked() else { return };
        let late: Vec<usize> = (0..2)
            .filter(|at| linked.bulk[*at].until_ns().is_some_and(|until| until <= now_ns))
            .collect();
        let apertures = linked.apertures.late(now_ns);
        for at in late {
            let memory = Memory::Bulk(if at == 0 { LinkSide::Client } else { LinkSide::Server });
            self.counters.refused_slow += 1;
            if memory.maker() != role {
                self.no_longer_wanted(id, memory);
                self.forget_ring(id, memory);
                self.no_ring(id, memory, Reason::TooSlow);
                continue;
            }
            let Some(transfer) = self.transfer(id, memory) else { return };
            let was = core::mem::replace(transfer, Transfer::Lapsed);
            if let Transfer::Passed { bytes, .. } | Transfer::Said { bytes, .. } = was {
                self.table.give_back(id, bytes);
            }
            self.no_longer_wanted(id, memory);
            self.act(Action::Drop { of: id, memory });
            self.tell(MachineEvent::BulkRefused { link: id, why: Reason::TooSlow });
        }
        for number in apertures {
            self.counters.refused_slow += 1;
            self.no_longer_wanted(id, Memory::Aperture(number));
            self.no_aperture(id, number, Reason::TooSlow);
        }
        self.set_memory_deadline(id);
    }

    // ---- bulk rings

    /// Asks for a bulk ring that this process writes. The answer is an event.
    pub fn request_bulk(&mut self, id: ConnectionId) {
        if let Err(why) = self.try_request_bulk(id) {
            self.tell(MachineEvent::BulkRefused { link: id, why });
        }
    }

    fn try_request_bulk(&mut self, id: ConnectionId) -> Result<(), Reason> {
        let bytes = u64::from(self.limits.bulk_ring_bytes);
        let c = self.table.get(id).ok_or(Reason::Unavailable)?;
        let memory = Memory::Bulk(c.role);
        if !c.features().contains(LinkFeatures::BULK) || bytes == 0 {
            return Err(Reason::Feature);
        }
        match self.transfer(id, memory) {
            Some(Transfer::None) => {}
            _ => return Err(Reason::Unavailable),
        }
        if !self.table.charge(id, bytes, self.limits.bytes_per_user_max) {
            return Err(Reason::Bytes);
        }
        self.offer_ring(id, memory, bytes);
        Ok(())
    }

    /// Whether this process owns the aperture with this number.
    pub(super) fn owns(&self, id: ConnectionId, number: u32) -> bool {
        self.table.get(id).is_some_and(|c| c.role == owner_of(number))
    }
}
