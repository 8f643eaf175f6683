//! Apertures of a link: exported, offered, held, revoked.
//!
//! ```text
//!   owned by this end                           owned by the other end
//!   Offered --TAKE--> Passed --HELD--> Live        Wanted --> Taking --mapped--> Held
//!      |                 |              |            |          |                  | REVOKED
//!      +---- revoke -----+--------------+            +-- no ----+                Recalled
//!      v                                             v                             | released
//!   Revoked --RELEASED or REFUSED--> (gone)       Released --REVOKED--> (gone) <---+
//! ```
//! Both ends send one last frame about each aperture, the owner REVOKED and the holder RELEASED or
//! REFUSED, in either order; frames that crossed on the way are no offence.
//!
//! Bounds on the state that a peer can make this process keep: rows by [`ROWS_MAX`], those on their
//! way by [`WAITING_MAX`], apertures by `apertures_per_link_max`, over all links with its user by
//! `apertures_per_user_max` and over all by `apertures_max`, the last of which are kept for users
//! who have none, bytes by `aperture_map_max` and, for the server, by its user's quota; all of them
//! stay counted until the *application* here has let go.

use super::super::frame::{Frame, LinkFeatures, Memory, MemoryWord, Reason};
use super::account::Accounts;
use super::table::{ApertureRow, ROWS_MAX, WAITING_MAX};
use super::{Action, ConnectionId, Machine, MachineEvent, MemoryOutcome};
use crate::wire::{APERTURE_PAGE_BYTES, ApertureAccess};

/// An aperture that could not be exported. Nothing was sent to the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[cfg_attr(not(feature = "unstable-internals"), non_exhaustive)]
pub enum ApertureError {
    /// There is no link for it.
    #[error("the link has ended")]
    NoLink,
    /// The other end does not know apertures.
    #[error("the other end does not know apertures")]
    Feature,
    /// The link has its maximum, including revoked apertures that the holder has not yet released.
    #[error(
        "{0} apertures are exported over this link, which is apertures_per_link_max \
             (HAMLYN_APERTURES_PER_LINK_MAX)"
    )]
    TooMany(usize),
    /// The holder is a process of another user, which could stop this process by its use of memory
    /// that it may write.
    #[error(
        "the holder is a process of another user, who could stop this process for as long as it \
             likes; read-write apertures are for such users only where apertures_of_others is set \
             (HAMLYN_APERTURES_OF_OTHERS), on both sides; read-only ones are for everybody"
    )]
    OtherUser,
    /// The holder has yet to map others. Later it can be done.
    #[error("not now: the holder has not yet mapped {0} others")]
    Waiting(usize),
}

impl Machine {
    /// Offers an aperture of this process, whose memory has been made, to the other end; returns
    /// its number. The answer is an event.
    pub fn export_aperture(
        &mut self,
        link: ConnectionId,
        access: ApertureAccess,
        bytes: u64,
    ) -> Result<u32, ApertureError> {
        let apertures_max = self.limits.apertures_per_link_max as usize;
        let c = self.table.get(link).ok_or(ApertureError::NoLink)?;
        let may_share = self.may_share(c.who.uid, access);
        let c = self.table.get_mut(link).ok_or(ApertureError::NoLink)?;
        let (role, features) = (c.role, c.features());
        let linked = c.linked().ok_or(ApertureError::NoLink)?;
        if !features.contains(LinkFeatures::APERTURE) {
            return Err(ApertureError::Feature);
        }
        if !may_share {
            return Err(ApertureError::OtherUser);
        }
        let apertures = &mut linked.apertures;
        let count = apertures.of(role).count();
        if count >= apertures_max.min(ROWS_MAX) {
            return Err(ApertureError::TooMany(count));
        }
        let waits =
            |row: &&ApertureRow| matches!(row, ApertureRow::Offered { .. } | ApertureRow::Passed);
        let waiting = apertures.of(role).filter(waits).count();
        if waiting >= WAITING_MAX {
            return Err(ApertureError::Waiting(waiting));
        }
        // The first is 1 of the client's and 2 of the server's.
        let number = match apertures.made {
            0 => 1 + role as u32,
            made => made.checked_add(2).ok_or(ApertureError::TooMany(count))?,
        };
        apertures.made = number;
        apertures.rows.insert(number, ApertureRow::Offered { bytes });
        let (memory, word) = (Memory::Aperture(number), MemoryWord::Offer { bytes, access });
        self.send(link, Frame::Memory { memory, word });
        Ok(number)
    }

    /// Whether an aperture may be shared with a process of this user. If both ends may write,
    /// either can punch pages out of the file, and thereby hold a lock of the kernel for which the
    /// other waits when it maps or unmaps the file: with all its threads, for they share its memory
    /// map. A file that only its maker writes is sealed against that.
    fn may_share(&self, uid: Option<u32>, access: ApertureAccess) -> bool {
        access == ApertureAccess::ReadOnly
            || self.limits.apertures_of_others
            || uid == Some(self.limits.uid)
            || uid == Some(0)
    }

    /// Tells the holder that the owner, this process, has taken its memory back.
    pub fn revoke_aperture(&mut self, link: ConnectionId, number: u32) {
        if self.owns(link, number)
            && let Some(row) = self.row(link, number)
            && matches!(row, ApertureRow::Offered { .. } | ApertureRow::Passed | ApertureRow::Live)
        {
            *row = ApertureRow::Revoked;
            self.act(Action::Drop { of: link, memory: Memory::Aperture(number) });
            self.send(link, Frame::ApertureRevoked { number });
        }
    }

    /// Tells the owner that the holder, this process, has released it.
    pub fn release_aperture(&mut self, link: ConnectionId, number: u32) {
        let next = match self.row(link, number) {
            Some(ApertureRow::Held { .. }) => Some(ApertureRow::Released),
            Some(ApertureRow::Recalled { .. }) => None,
            _ => return,
        };
        self.set_row(link, number, next);
        self.send(link, Frame::ApertureReleased { number });
    }

    fn row(&mut self, link: ConnectionId, number: u32) -> Option<&mut ApertureRow> {
        self.table.get_mut(link)?.linked()?.apertures.rows.get_mut(&number)
    }

    /// `None`: the aperture is over. The charge for an aperture that is no longer held is given
    /// back.
    fn set_row(&mut self, link: ConnectionId, number: u32, row: Option<ApertureRow>) {
        let Some(linked) = self.table.get_mut(link).and_then(|c| c.linked()) else { return };
        let rows = &mut linked.apertures.rows;
        let before = match row {
            Some(row) => rows.insert(number, row),
            None => rows.remove(&number),
        };
        let bytes = before.and_then(|row| row.bytes_held());
        let is_held = row.is_some_and(|row| row.bytes_held().is_some());
        match (bytes, is_held) {
            (None, true) => self.table.count_aperture(link, true),
            (Some(bytes), false) => {
                self.table.count_aperture(link, false);
                self.table.give_back(link, bytes);
            }
            _ => {}
        }
    }

    /// The holder, this process, refuses.
    pub(super) fn no_aperture(&mut self, link: ConnectionId, number: u32, why: Reason) {
        self.counters.refused_aperture += 1;
        self.set_row(link, number, Some(ApertureRow::Released));
        let (memory, word) = (Memory::Aperture(number), MemoryWord::Refused(why));
        self.send(link, Frame::Memory { memory, word });
        self.count_refusal(link);
    }

    /// Handles the holder's answer about an aperture of ours.
    pub(super) fn handle_own_aperture(
        &mut self,
        link: ConnectionId,
        number: u32,
        word: MemoryWord,
    ) {
        let Some(row) = self.row(link, number) else { return self.out_of_turn(link) };
        match (word, *row) {
            (MemoryWord::Take { bytes }, ApertureRow::Offered { bytes: offered })
                if bytes == offered =>
            {
                *row = ApertureRow::Passed;
                self.act(Action::Pass { to: link, memory: Memory::Aperture(number) });
            }
            (MemoryWord::Held, ApertureRow::Passed) => {
                *row = ApertureRow::Live;
                self.counters.apertures += 1;
                self.act(Action::Drop { of: link, memory: Memory::Aperture(number) });
                self.tell(MachineEvent::ApertureReady { link, number });
            }
            (MemoryWord::Refused(why), ApertureRow::Offered { .. } | ApertureRow::Passed) => {
                self.set_row(link, number, None);
                self.act(Action::Drop { of: link, memory: Memory::Aperture(number) });
                self.tell(MachineEvent::ApertureRefused { link, number, why });
                self.send(link, Frame::ApertureRevoked { number });
            }
            (MemoryWord::Refused(_), ApertureRow::Revoked) => {
                self.set_row(link, number, None);
                self.tell(MachineEvent::ApertureReleased { link, number });
            }
            // They crossed with our REVOKED.
            (MemoryWord::Take { .. } | MemoryWord::Held, ApertureRow::Revoked) => {}
            _ => self.out_of_turn(link),
        }
    }

    /// The holder of an aperture of ours has released it.
    pub(super) fn handle_aperture_released(&mut self, link: ConnectionId, number: u32) {
        if !self.owns(link, number) {
            return self.out_of_turn(link);
        }
        let Some(row) = self.row(link, number) else { return self.out_of_turn(link) };
        let was_live = match row {
            ApertureRow::Live => true,
            ApertureRow::Revoked => false,
            _ => return self.out_of_turn(link),
        };
        self.set_row(link, number, None);
        self.tell(MachineEvent::ApertureReleased { link, number });
        if was_live {
            self.send(link, Frame::ApertureRevoked { number });
        }
    }

    /// Handles the owner's frame about an aperture that we hold, or may hold.
    pub(super) fn handle_their_aperture(
        &mut self,
        now_ns: u64,
        link: ConnectionId,
        number: u32,
        word: MemoryWord,
    ) {
        let MemoryWord::Offer { bytes, access } = word else { return self.out_of_turn(link) };
        let Some(c) = self.table.get_mut(link) else { return };
        let (theirs, uid) = (c.role.other(), c.who.uid);
        let Some(linked) = c.linked() else { return };
        let apertures = &mut linked.apertures;
        let waits = |row: &&ApertureRow| {
            matches!(row, ApertureRow::Wanted { .. } | ApertureRow::Taking { .. })
        };
        let is_sound =
            bytes > 0 && bytes.is_multiple_of(APERTURE_PAGE_BYTES) && bytes <= i64::MAX as u64;
        if number <= apertures.last_theirs
            || !is_sound
            || apertures.of(theirs).count() >= ROWS_MAX
            || apertures.of(theirs).filter(waits).count() >= WAITING_MAX
        {
            return self.out_of_turn(link);
        }
        apertures.last_theirs = number;
        if !self.may_share(uid, access) {
            return self.no_aperture(link, number, Reason::User);
        }
        let Some(linked) = self.table.get_mut(link).and_then(|c| c.linked()) else { return };
        let apertures = &mut linked.apertures;
        let room = self.limits.aperture_map_max.saturating_sub(apertures.bytes_held());
        let held_by_link = apertures.held();
        let accounts = &self.table.accounts;
        let (taken, own) = (accounts.apertures(), accounts.get(uid).apertures);
        if bytes > room
            || held_by_link >= self.limits.apertures_per_link_max
            || own >= self.limits.apertures_per_user_max
            || !Accounts::has_place(taken, own, self.limits.apertures_max)
        {
            return self.no_aperture(link, number, Reason::Apertures);
        }
        if !self.table.charge(link, bytes, self.limits.bytes_per_user_max) {
            return self.no_aperture(link, number, Reason::Bytes);
        }
        let until_ns = now_ns.saturating_add(self.limits.step_timeout_ns);
        self.set_row(link, number, Some(ApertureRow::Wanted { bytes, access, until_ns }));
        self.want(now_ns, link, Memory::Aperture(number));
    }

    /// The owner has taken its memory back.
    pub(super) fn handle_aperture_revoked(&mut self, link: ConnectionId, number: u32) {
        if self.owns(link, number) {
            return self.out_of_turn(link);
        }
        let Some(row) = self.row(link, number) else { return self.out_of_turn(link) };
        match *row {
            ApertureRow::Wanted { .. } => {
                self.no_longer_wanted(link, Memory::Aperture(number));
                self.set_row(link, number, None);
                self.send(link, Frame::ApertureReleased { number });
                self.set_memory_deadline(link);
            }
            ApertureRow::Held { bytes } => {
                *row = ApertureRow::Recalled { bytes };
                self.tell(MachineEvent::ApertureRevoked { link, number });
            }
            ApertureRow::Released => self.set_row(link, number, None),
            _ => self.out_of_turn(link),
        }
    }

    pub(super) fn aperture_taken(
        &mut self,
        link: ConnectionId,
        number: u32,
        result: &MemoryOutcome,
    ) {
        let Some(&mut ApertureRow::Taking { bytes }) = self.row(link, number) else { return };
        match result {
            MemoryOutcome::Mapped => {
                self.set_row(link, number, Some(ApertureRow::Held { bytes }));
                self.counters.apertures += 1;
                if let Some(c) = self.table.get_mut(link) {
                    c.refused = 0;
                }
                // The application hears of it before the first packet about it can come.
                self.tell(MachineEvent::ApertureHeld { link, number });
                let (memory, word) = (Memory::Aperture(number), MemoryWord::Held);
                self.send(link, Frame::Memory { memory, word });
            }
            // The REVOKED that says so is read next.
            MemoryOutcome::Withdrawn => {
                self.set_row(link, number, Some(ApertureRow::Released));
                self.send(link, Frame::ApertureReleased { number });
            }
            MemoryOutcome::Unavailable(_) => self.no_aperture(link, number, Reason::Unavailable),
            MemoryOutcome::TooSlow => {
                self.counters.refused_slow += 1;
                self.no_aperture(link, number, Reason::TooSlow);
            }
            MemoryOutcome::Wrong => self.bad_memory(link),
        }
    }
}
