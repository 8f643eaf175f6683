//! Apertures of a link: exported, offered, held, revoked.
//!
//! ```text
//!   what this end owns                          what the other end owns
//!   Requested --OFFER--> Offered --READY--> Live        Awaited --FILLED--> Held
//!        |                  |                |             |                  | REVOKED
//!        +---- revoke ------+----------------+             | too slow      Recalled
//!        v                                                 v                  | released
//!     Revoked --RELEASED or REFUSED--> (gone)           Released --REVOKED--> (gone)
//! ```
//! Both ends say one last word about each aperture, the owner REVOKED and the holder RELEASED or
//! REFUSED, in either order; words that crossed on the way are no offence. Where the client owns,
//! the server makes the file all the same: descriptors flow one way.
//!
//! What a peer can make this process keep is bounded: rows by [`ROWS_MAX`], files that wait by
//! [`WAITING_MAX`], apertures by `apertures_per_link_max` and, over all links with its user, by
//! `apertures_per_user_max`, bytes by `aperture_map_max` and, for the server, by its user's quota;
//! all of them stay counted until the *application* here has let go.

use super::{Connection, Control, ControlEvent, LinkToken, Shared, Stage, State, count};
use crate::control::hello::{ApertureWord, Frame, LinkFeatures, Reason, Writer, owner_of};
use crate::os::aperture::{
    ApertureAccess, Owned, PAGE_BYTES, Pages, Reservation, make_for_owner, seal_filled,
};
use crate::os::memory::DescriptorError;
use crate::os::socket;
use crate::os::sys::monotonic_ns;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// Most apertures of one owner on a link, whatever the settings say.
const ROWS_MAX: usize = 256;
/// Most of them that the holder has not yet mapped.
const WAITING_MAX: usize = 16;

/// An aperture that could not be exported. Nothing was said to the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ApertureError {
    /// There is no link for it.
    #[error("the link has ended")]
    NoLink,
    /// The other end does not know apertures.
    #[error("the other end does not know apertures")]
    Feature,
    /// As many as the link may have, revoked ones that the holder has not yet let go of included.
    #[error(
        "{0} apertures are exported over this link, which is apertures_per_link_max \
             (HAMLYN_APERTURES_PER_LINK_MAX)"
    )]
    TooMany(usize),
    /// The holder has yet to map others. Later it can be done.
    #[error("not now: the holder has not yet mapped {0} others")]
    Waiting(usize),
    /// The other end has yet to read what was said before. Later it can be done.
    #[error("not now: the other end has not yet read what was said to it before")]
    NotNow,
}

/// One aperture of a link.
enum Row {
    /// Ours; we are the client and wait for the server's file.
    Requested { access: ApertureAccess, reservation: Reservation },
    /// Ours; not yet mapped by its holder.
    Offered,
    /// Ours; held.
    Live,
    /// Ours; the holder has been told, and has yet to say that it let go.
    Revoked,
    /// Theirs; we are the server, and they have yet to fill our file.
    Awaited { file: OwnedFd, access: ApertureAccess, bytes: u64, until_ns: u64 },
    /// Theirs; mapped here.
    Held { bytes: u64 },
    /// Theirs; revoked, and the application has yet to let go.
    Recalled { bytes: u64 },
    /// Theirs; we have refused it or let go of it.
    Released,
}

impl Row {
    /// Whether this process has it, or has made the file for it.
    fn is_held(&self) -> bool {
        matches!(self, Self::Awaited { .. } | Self::Held { .. } | Self::Recalled { .. })
    }
}

/// All of one link.
#[derive(Default)]
pub(super) struct Apertures {
    made: u32,
    last_theirs: u32,
    rows: BTreeMap<u32, Row>,
}

impl Apertures {
    fn of(&self, owner: Writer) -> impl Iterator<Item = &Row> {
        self.rows.iter().filter(move |row| owner_of(*row.0) == owner).map(|row| row.1)
    }

    /// How many this process holds of the other end's.
    pub(super) fn held(&self) -> u32 {
        self.rows.values().filter(|row| row.is_held()).count() as u32
    }

    /// Bytes that this process holds of the other end's.
    fn bytes_held(&self) -> u64 {
        let bytes = |row: &Row| match row {
            Row::Awaited { bytes, .. } | Row::Held { bytes } | Row::Recalled { bytes } => *bytes,
            _ => 0,
        };
        self.rows.values().map(bytes).sum()
    }

    /// When the first file that is waited for has waited long enough.
    pub(super) fn deadline(&self) -> Option<u64> {
        let until = |row: &Row| match row {
            Row::Awaited { until_ns, .. } => Some(*until_ns),
            _ => None,
        };
        self.rows.values().filter_map(until).min()
    }
}

impl Control {
    /// Offers the server's aperture, whose memory is `file`, to the client; says its number. The
    /// answer is an event.
    pub fn offer_aperture(
        &self,
        token: LinkToken,
        access: ApertureAccess,
        bytes: u64,
        file: &OwnedFd,
    ) -> Result<u32, ApertureError> {
        let shared = &*self.shared;
        if !shared.guard.is_parent() {
            return Err(ApertureError::NoLink);
        }
        let mut state = shared.lock();
        let result = shared.new_number(&state, token.0, Writer::Server).and_then(|number| {
            let frame = Frame::Aperture { number, word: ApertureWord::Offer { access, bytes } };
            let sent = shared.send_with(&state, token.0, &frame, file);
            sent.map_err(|_| ApertureError::NotNow).map(|()| number)
        });
        if let Ok(number) = result
            && let Some(c) = state.connections.get_mut(&token.0)
        {
            c.apertures.made = number;
            c.apertures.rows.insert(number, Row::Offered);
        }
        shared.finish(state);
        result
    }

    /// Asks the server for the memory of the client's aperture; says its number. The answers are
    /// events.
    pub fn request_aperture(
        &self,
        token: LinkToken,
        access: ApertureAccess,
        reservation: Reservation,
    ) -> Result<u32, ApertureError> {
        let shared = &*self.shared;
        if !shared.guard.is_parent() {
            return Err(ApertureError::NoLink);
        }
        let mut state = shared.lock();
        let result = shared.new_number(&state, token.0, Writer::Client);
        if let Ok(number) = result
            && let Some(c) = state.connections.get_mut(&token.0)
        {
            let word = ApertureWord::Request { access, bytes: reservation.bytes() };
            c.apertures.made = number;
            c.apertures.rows.insert(number, Row::Requested { access, reservation });
            shared.send(&mut state, token.0, &Frame::Aperture { number, word });
        }
        shared.finish(state);
        result
    }

    /// Tells the holder that the owner, this process, has taken its memory back.
    pub fn revoke_aperture(&self, token: LinkToken, number: u32) {
        let shared = &*self.shared;
        if !shared.guard.is_parent() {
            return;
        }
        let mut state = shared.lock();
        if let Some(row) = linked_row(&mut state, token.0, number)
            && matches!(row, Row::Requested { .. } | Row::Offered | Row::Live)
        {
            *row = Row::Revoked;
            shared.say(&mut state, token.0, number, ApertureWord::Revoked);
        }
        shared.finish(state);
    }

    /// Tells the owner that the holder, this process, has let go.
    pub fn release_aperture(&self, token: LinkToken, number: u32) {
        let shared = &*self.shared;
        if !shared.guard.is_parent() {
            return;
        }
        let mut state = shared.lock();
        let found = match linked_row(&mut state, token.0, number) {
            Some(Row::Held { bytes }) => Some((*bytes, Some(Row::Released))),
            Some(Row::Recalled { bytes }) => Some((*bytes, None)),
            _ => None,
        };
        if let Some((bytes, next)) = found {
            shared.uncharge(&mut state, token.0, bytes);
            set_row(&mut state, token.0, number, next);
            shared.say(&mut state, token.0, number, ApertureWord::Released);
        }
        shared.finish(state);
    }
}

fn linked_row(state: &mut State, id: u64, number: u32) -> Option<&mut Row> {
    let c = state.connections.get_mut(&id)?;
    matches!(c.stage, Stage::Linked(_)).then_some(())?;
    c.apertures.rows.get_mut(&number)
}

/// `None`: the aperture is over.
fn set_row(state: &mut State, id: u64, number: u32, row: Option<Row>) {
    let Some(c) = state.connections.get_mut(&id) else { return };
    let is_held = row.as_ref().is_some_and(Row::is_held);
    let before = match row {
        Some(row) => c.apertures.rows.insert(number, row),
        None => c.apertures.rows.remove(&number),
    };
    let was_held = before.is_some_and(|row| row.is_held());
    let uid = c.identity.uid;
    if is_held != was_held {
        let usage = state.user(uid);
        let less = usage.apertures.saturating_sub(1);
        usage.apertures = if is_held { usage.apertures + 1 } else { less };
    }
}

impl Shared {
    /// The number of a new aperture of this process.
    fn new_number(&self, state: &State, id: u64, role: Writer) -> Result<u32, ApertureError> {
        let c = state.connections.get(&id).ok_or(ApertureError::NoLink)?;
        if !matches!(c.stage, Stage::Linked(_)) || c.role != role {
            return Err(ApertureError::NoLink);
        }
        if !c.features.contains(LinkFeatures::APERTURE) {
            return Err(ApertureError::Feature);
        }
        let count = c.apertures.of(role).count();
        if count >= (self.config.apertures_per_link_max as usize).min(ROWS_MAX) {
            return Err(ApertureError::TooMany(count));
        }
        let waits = |row: &&Row| matches!(row, Row::Requested { .. } | Row::Offered);
        let waiting = c.apertures.of(role).filter(waits).count();
        if waiting >= WAITING_MAX {
            return Err(ApertureError::Waiting(waiting));
        }
        // The first is 1 of the client's and 2 of the server's.
        let first = 1 + role as u32;
        match c.apertures.made {
            0 => Ok(first),
            made => made.checked_add(2).ok_or(ApertureError::TooMany(count)),
        }
    }

    fn say(&self, state: &mut State, id: u64, number: u32, word: ApertureWord) {
        self.send(state, id, &Frame::Aperture { number, word });
    }

    /// Sends a frame with a descriptor: now, or not at all.
    fn send_with(&self, state: &State, id: u64, frame: &Frame, file: &OwnedFd) -> io::Result<()> {
        let c = state.connections.get(&id).ok_or(io::ErrorKind::NotConnected)?;
        if !c.outbox.is_empty() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        socket::send(&c.socket, &frame.to_bytes(), &[file.as_fd()])
    }

    fn uncharge(&self, state: &mut State, id: u64, bytes: u64) {
        // A client is charged to nobody; its own limit is that of the link.
        if state.connections.get(&id).is_some_and(|c| c.role == Writer::Server) {
            state.give_back(id, bytes);
        }
    }

    /// The holder, this process, says no.
    fn no_aperture(&self, state: &mut State, id: u64, number: u32, why: Reason) {
        count(&self.counters.refused_aperture);
        set_row(state, id, number, Some(Row::Released));
        self.say(state, id, number, ApertureWord::Refused(why));
    }

    /// Files that the other end did not fill in time.
    pub(super) fn expire_apertures(&self, state: &mut State, id: u64) {
        let now = monotonic_ns();
        let Some(c) = state.connections.get(&id) else { return };
        let late = |row: (&u32, &Row)| match row.1 {
            Row::Awaited { bytes, until_ns, .. } if *until_ns <= now => Some((*row.0, *bytes)),
            _ => None,
        };
        let late: std::vec::Vec<_> = c.apertures.rows.iter().filter_map(late).collect();
        for (number, bytes) in late {
            count(&self.counters.refused_slow);
            self.uncharge(state, id, bytes);
            self.no_aperture(state, id, number, Reason::TooSlow);
        }
    }

    pub(super) fn handle_aperture(
        &self,
        state: &mut State,
        id: u64,
        number: u32,
        word: ApertureWord,
        fds: &[OwnedFd],
    ) {
        let Some(c) = state.connections.get_mut(&id) else { return };
        if !c.features.contains(LinkFeatures::APERTURE) {
            return self.out_of_turn(state, id);
        }
        if owner_of(number) == c.role {
            self.handle_own(state, id, number, word, fds);
        } else {
            self.handle_theirs(state, id, number, word, fds);
        }
    }

    /// What the holder, or the server that makes the client's memory, says of an aperture of ours.
    fn handle_own(
        &self,
        state: &mut State,
        id: u64,
        number: u32,
        word: ApertureWord,
        fds: &[OwnedFd],
    ) {
        let token = LinkToken(id);
        let Some(row) = linked_row(state, id, number) else { return self.out_of_turn(state, id) };
        match (word, &*row) {
            (
                ApertureWord::Offer { access, bytes },
                Row::Requested { access: a, reservation: r },
            ) if access == *a && bytes == r.bytes() && fds.len() == 1 => {
                let Row::Requested { reservation, .. } = core::mem::replace(row, Row::Offered)
                else {
                    return;
                };
                let adopted = fds[0]
                    .try_clone()
                    .map_err(DescriptorError::Map)
                    .and_then(|file| Owned::adopt(file, access, reservation));
                match adopted {
                    Ok(owned) => {
                        // The application has its memory before the first packet can be about it.
                        self.inbox.put(ControlEvent::ApertureMapped { token, number, owned });
                        self.say(state, id, number, ApertureWord::Filled);
                    }
                    Err(DescriptorError::Map(_)) => {
                        // Our own want of memory.
                        set_row(state, id, number, Some(Row::Revoked));
                        let why = Reason::Unavailable;
                        self.inbox.put(ControlEvent::ApertureRefused { token, number, why });
                        self.say(state, id, number, ApertureWord::Revoked);
                    }
                    Err(_) => {
                        count(&self.counters.refused_memory);
                        self.misbehaved(state, id, "the memory was not as agreed");
                    }
                }
            }
            (ApertureWord::Ready, Row::Offered) => {
                *row = Row::Live;
                count(&self.counters.apertures);
                self.inbox.put(ControlEvent::ApertureReady { token, number });
            }
            (ApertureWord::Refused(why), Row::Requested { .. } | Row::Offered) => {
                set_row(state, id, number, None);
                self.inbox.put(ControlEvent::ApertureRefused { token, number, why });
                self.say(state, id, number, ApertureWord::Revoked);
            }
            (ApertureWord::Released, Row::Live) => {
                set_row(state, id, number, None);
                self.inbox.put(ControlEvent::ApertureReleased { token, number });
                self.say(state, id, number, ApertureWord::Revoked);
            }
            (ApertureWord::Released | ApertureWord::Refused(_), Row::Revoked) => {
                set_row(state, id, number, None);
                self.inbox.put(ControlEvent::ApertureReleased { token, number });
            }
            // They crossed with our REVOKED.
            (ApertureWord::Offer { .. } | ApertureWord::Ready, Row::Revoked) => {}
            _ => self.out_of_turn(state, id),
        }
    }

    /// What the owner says of an aperture that we hold, or may.
    fn handle_theirs(
        &self,
        state: &mut State,
        id: u64,
        number: u32,
        word: ApertureWord,
        fds: &[OwnedFd],
    ) {
        let token = LinkToken(id);
        let Some(c) = state.connections.get_mut(&id) else { return };
        let role = c.role;
        match word {
            ApertureWord::Request { access, bytes } if role == Writer::Server => {
                self.offered(state, id, number, access, bytes, None);
            }
            ApertureWord::Offer { access, bytes } if role == Writer::Client => {
                let [file] = fds else { return self.out_of_turn(state, id) };
                self.offered(state, id, number, access, bytes, Some(file));
            }
            ApertureWord::Filled if role == Writer::Server => {
                match c.apertures.rows.get_mut(&number) {
                    Some(row @ &mut Row::Awaited { bytes, .. }) => {
                        let Row::Awaited { file, access, .. } =
                            core::mem::replace(row, Row::Held { bytes })
                        else {
                            return;
                        };
                        self.filled(state, id, number, file, access, bytes);
                    }
                    // It crossed with our refusal.
                    Some(Row::Released) => {}
                    _ => self.out_of_turn(state, id),
                }
                self.link_deadline(state, id);
            }
            ApertureWord::Revoked => match c.apertures.rows.get(&number) {
                Some(&Row::Awaited { bytes, .. }) => {
                    self.uncharge(state, id, bytes);
                    set_row(state, id, number, None);
                    self.say(state, id, number, ApertureWord::Released);
                    self.link_deadline(state, id);
                }
                Some(&Row::Held { bytes }) => {
                    set_row(state, id, number, Some(Row::Recalled { bytes }));
                    self.inbox.put(ControlEvent::ApertureRevoked { token, number });
                }
                Some(Row::Released) => set_row(state, id, number, None),
                _ => self.out_of_turn(state, id),
            },
            _ => self.out_of_turn(state, id),
        }
    }

    /// The other end wants this one to hold an aperture: a client's, for which the server makes
    /// the file, or a server's, which came with it.
    fn offered(
        &self,
        state: &mut State,
        id: u64,
        number: u32,
        access: ApertureAccess,
        bytes: u64,
        file: Option<&OwnedFd>,
    ) {
        let Some(c) = state.connections.get_mut(&id) else { return };
        let theirs = owner_of(number);
        let count_theirs = c.apertures.of(theirs).count();
        let awaited = |row: &&Row| matches!(row, Row::Awaited { .. });
        let is_sound = bytes > 0 && bytes.is_multiple_of(PAGE_BYTES) && bytes <= i64::MAX as u64;
        if number <= c.apertures.last_theirs
            || !is_sound
            || count_theirs >= ROWS_MAX
            || c.apertures.of(theirs).filter(awaited).count() >= WAITING_MAX
        {
            return self.out_of_turn(state, id);
        }
        c.apertures.last_theirs = number;
        let held = c.apertures.held();
        let room = self.config.aperture_map_max.saturating_sub(c.apertures.bytes_held());
        let uid = c.identity.uid;
        if bytes > room
            || held >= self.config.apertures_per_link_max
            || state.user(uid).apertures >= self.config.apertures_per_user_max
        {
            return self.no_aperture(state, id, number, Reason::Apertures);
        }
        if let Some(file) = file {
            return self.hold(state, id, number, file, access, bytes);
        }
        if !self.charge(state, id, bytes) {
            return self.no_aperture(state, id, number, Reason::Bytes);
        }
        let made = make_for_owner(bytes, access).and_then(|file| {
            let frame = Frame::Aperture { number, word: ApertureWord::Offer { access, bytes } };
            self.send_with(state, id, &frame, &file)?;
            Ok(file)
        });
        match made {
            Ok(file) => {
                let until_ns = monotonic_ns() + self.timeout_ns();
                let row = Row::Awaited { file, access, bytes, until_ns };
                set_row(state, id, number, Some(row));
                self.link_deadline(state, id);
            }
            Err(_) => {
                self.uncharge(state, id, bytes);
                self.no_aperture(state, id, number, Reason::Unavailable);
            }
        }
    }

    /// The client says that it has filled what the server made for it.
    fn filled(
        &self,
        state: &mut State,
        id: u64,
        number: u32,
        file: OwnedFd,
        access: ApertureAccess,
        bytes: u64,
    ) {
        match seal_filled(&file, access) {
            Ok(()) => self.hold(state, id, number, &file, access, bytes),
            Err(_) => {
                count(&self.counters.refused_memory);
                self.misbehaved(state, id, "the memory was not as agreed");
            }
        }
    }

    /// Checks and maps. What was charged for it stays charged until it is released.
    fn hold(
        &self,
        state: &mut State,
        id: u64,
        number: u32,
        file: &OwnedFd,
        access: ApertureAccess,
        bytes: u64,
    ) {
        match Pages::hold(file, bytes, access) {
            Ok(pages) => {
                set_row(state, id, number, Some(Row::Held { bytes }));
                count(&self.counters.apertures);
                // The application hears of it before the first packet about it can come.
                let token = LinkToken(id);
                self.inbox.put(ControlEvent::ApertureHeld { token, number, pages });
                self.say(state, id, number, ApertureWord::Ready);
            }
            Err(DescriptorError::Map(_)) => {
                self.uncharge(state, id, bytes);
                self.no_aperture(state, id, number, Reason::Unavailable);
            }
            Err(_) => {
                count(&self.counters.refused_memory);
                self.misbehaved(state, id, "the memory was not as agreed");
            }
        }
    }
}

impl Connection {
    /// When something that this process keeps for the other end has waited long enough.
    pub(super) fn link_deadline(&self) -> Option<u64> {
        let all = [self.bulk_until, self.apertures.deadline()];
        all.into_iter().flatten().min()
    }
}
