//! Performs the machine's actions.

use super::super::frame::{Frame, LinkSide, Memory, MemoryWord};
use super::super::identity;
use super::super::machine::{
    Action, AgreedLink, ConnectFailure, ConnectionId, LinkEnd, MachineEvent, MemoryOutcome, Touched,
};
use super::super::memory::{MadeMemory, Mapped};
use super::super::{printable, receiver};
use super::inbox::{ControlEvent, LinkWay, NewLink};
use super::{
    ConnectError, EVENTS_MAX, OUTBOX_MAX, PIDFD, Posted, SOCKET, ShellRow, ShellShared, ShellState,
    tag,
};
use crate::log::{self, Kind};
use crate::os::socket::{self, PeerProcess, SocketConnection};
use crate::os::sys::monotonic_ns;
use std::boxed::Box;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::string::ToString;
use std::sync::Arc;
use std::vec::Vec;

/// How long after the end of a link its memory is the peer's if the program makes no calls.
const REMAINS_NS: u64 = 1_000_000_000;

impl ShellShared {
    /// Performs all actions of the machine, including those that follow from these.
    pub(super) fn perform_all(&self, state: &mut ShellState) {
        while let Some(action) = state.machine.poll_action() {
            self.perform(state, action);
        }
    }

    fn perform(&self, state: &mut ShellState, action: Action) {
        match action {
            Action::Send { to, frame } => self.send(state, to, frame.to_bytes(), None),
            Action::SendLast { to, frame } => {
                if let (Some(row), Frame::Refused { reason, text, .. }) =
                    (state.rows.get(&to), &frame)
                {
                    self.note_refused(&state.listeners, row, *reason, text);
                }
                if let Some(row) = state.rows.get(&to)
                    && row.outbox.is_empty()
                    && let Some(socket) = &row.socket
                {
                    let _ = socket::send(&**socket, &frame.to_bytes(), &[]);
                }
            }
            Action::Close(id) => self.close(state, id),
            Action::Verify { of, credential } => {
                let Some(row) = state.rows.get_mut(&of) else { return };
                let Some(socket) = &row.socket else { return };
                let found = socket::peer_process(&**socket);
                let (process, pid) = match &found {
                    // While it lives, no other process has its number.
                    PeerProcess::Exact(pidfd) => {
                        (socket::process_number(pidfd), row.pid.filter(|_| !socket::is_dead(pidfd)))
                    }
                    PeerProcess::ByNumber(_) => (None, row.pid),
                    PeerProcess::Unseen => (None, None),
                    PeerProcess::Gone => return state.machine.handle_death(of),
                };
                row.pidfd = found.into_pidfd();
                if let Some(pidfd) = &row.pidfd {
                    // From here on the process matters, not only its socket.
                    let _ = self.poller.add(pidfd, tag(of.0, PIDFD));
                }
                let verdict = identity::verify(&credential, process, pid);
                state.machine.verified(monotonic_ns(), of, verdict, process);
            }
            Action::OpenWake { of, hello } => self.open_wake(state, of, *hello),
            Action::JoinWake { link, wake } => {
                let Some(second) = state.rows.remove(&wake) else { return };
                let Some(socket) = second.socket else { return };
                self.poller.remove(&*socket);
                // No receiver reads a second connection: there is no other reference.
                let socket = Arc::into_inner(socket).map(SocketConnection::from);
                if let Some(socket) = &socket {
                    socket::send_little(socket);
                }
                if let Some(row) = state.rows.get_mut(&link) {
                    row.wake = socket;
                }
            }
            Action::Make { of, memory, bytes } => {
                // The client pays for both rings: it fills its own.
                let fills = memory.maker() == LinkSide::Client;
                let made = MadeMemory::make(memory, bytes, fills);
                let made = made.map_err(|e| e.to_string()).map(|made| {
                    if let Some(row) = state.rows.get_mut(&of) {
                        row.made.insert(memory, made);
                    }
                });
                state.machine.made(of, memory, made);
            }
            Action::Pass { to, memory } => {
                let Some(made) = state.rows.get(&to).and_then(|row| row.made.get(&memory)) else {
                    return;
                };
                let file = made.file().clone();
                let frame = Frame::Memory { memory, word: MemoryWord::Pass };
                self.send(state, to, frame.to_bytes(), Some(file));
            }
            Action::Take { from, expected, until_ns } => {
                let Some(row) = state.rows.get_mut(&from) else { return };
                row.take = Some(Box::new((expected, until_ns)));
                state.receivers.entry(from).or_default().push(row.uid);
                if row.outbox.is_empty() {
                    return self.start_receiver(state, from);
                }
                // From now on all frames are for the receiver, even before it has been started: the
                // memory may be withdrawn.
                if let Some(socket) = &row.socket {
                    self.poller.remove(&**socket);
                }
                (row.is_lent, row.is_writing) = (true, false);
                self.want_write(row, from);
            }
            Action::Touch { of, memory } => {
                let Some(row) = state.rows.get(&of) else { return };
                let made = row.made.get(&memory).cloned();
                state.receivers.entry(of).or_default().push(row.uid);
                let started = self.post_of_receiver(of).and_then(|ending| {
                    let made = made.ok_or(io::ErrorKind::NotFound)?;
                    receiver::start_touching(memory, made, ending)
                });
                if let Err(e) = started {
                    let why = Touched::Unavailable(e.to_string());
                    state.machine.touched(monotonic_ns(), of, memory, why);
                }
            }
            Action::Drop { of, memory } => {
                if let Some(row) = state.rows.get_mut(&of) {
                    row.made.remove(&memory);
                    row.mapped.remove(&memory);
                }
            }
            Action::Rest { service, is_resting } => {
                if let Some(listener) = state.listeners.get(&service) {
                    let tag = tag(service.0, super::LISTENER);
                    let _ = match is_resting {
                        true => self.poller.pause(&listener.fd, tag),
                        false => self.poller.want_write(&listener.fd, tag, false),
                    };
                }
            }
            Action::Statistics(id) => state.asked.push(id),
            Action::Tell(event) => {
                self.note_event(state, &event);
                let told = self.told(state, event);
                self.inbox.put(told);
            }
        }
    }

    /// Sends bytes, or keeps them until there is room.
    fn send(
        &self,
        state: &mut ShellState,
        id: ConnectionId,
        bytes: Vec<u8>,
        file: Option<Arc<OwnedFd>>,
    ) {
        let Some(row) = state.rows.get_mut(&id) else { return };
        let Some(socket) = &row.socket else { return };
        if row.outbox.is_empty() {
            match send_now(socket, &bytes, &file) {
                Ok(()) => return,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                // The end of the socket will be read, after the frames before it; or the other end
                // takes no descriptor any more, and sends a frame that says so.
                Err(_) => return,
            }
        }
        if row.outbox.len() >= OUTBOX_MAX {
            return state.machine.handle_overflow(id);
        }
        row.outbox.push_back((bytes, file));
        self.want_write(row, id);
    }

    pub(super) fn want_write(&self, row: &mut ShellRow, id: ConnectionId) {
        let Some(socket) = &row.socket else { return };
        if !row.is_writing {
            let tag = tag(id.0, SOCKET);
            row.is_writing = match row.is_lent {
                // A receiver reads it, and this thread watches it for room alone.
                true => self.poller.add_write(&**socket, tag).is_ok(),
                false => self.poller.want_write(&**socket, tag, true).is_ok(),
            };
        }
    }

    /// There is room for the frames that wait.
    pub(super) fn flush(&self, state: &mut ShellState, id: ConnectionId) {
        let Some(row) = state.rows.get_mut(&id) else { return };
        let Some(socket) = row.socket.clone() else { return };
        while let Some((bytes, file)) = row.outbox.front() {
            match send_now(&socket, bytes, file) {
                Ok(()) => drop(row.outbox.pop_front()),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => row.outbox.clear(),
            }
        }
        if row.is_writing {
            row.is_writing = false;
            match row.is_lent {
                true => self.poller.remove(&*socket),
                false => {
                    let _ = self.poller.want_write(&*socket, tag(id.0, SOCKET), false);
                }
            }
        }
        let takes = row.take.is_some();
        state.machine.sent_all(id);
        if takes {
            self.start_receiver(state, id);
        }
    }

    /// All frames before it have been sent: a receiver asks for a descriptor, and reads the socket.
    pub(super) fn start_receiver(&self, state: &mut ShellState, id: ConnectionId) {
        let Some(row) = state.rows.get_mut(&id) else { return };
        let (Some(take), Some(socket)) = (row.take.take(), row.socket.clone()) else { return };
        let (expected, until_ns) = *take;
        self.poller.remove(&*socket);
        row.is_lent = true;
        row.is_writing = false;
        let started = self.post_of_receiver(id).and_then(|ending| {
            receiver::start(socket, expected, until_ns, ending, self.strangers.clone())
        });
        if let Err(e) = started {
            let why = MemoryOutcome::Unavailable(e.to_string());
            state.machine.taken(monotonic_ns(), id, expected.memory, why);
        }
    }

    /// The destination of a receiver's messages; its end is reported even if it cannot be started.
    fn post_of_receiver(&self, id: ConnectionId) -> io::Result<receiver::Ending> {
        let shared = self.this.get().cloned().ok_or(io::ErrorKind::NotFound)?;
        let post = move |id, message| {
            // No part of the library is left to hear of it: its contents are dropped with this.
            let Some(shared) = shared.upgrade() else { return };
            shared.posted().push_back((id, Posted::Received(Box::new(message))));
            shared.bell.ring();
        };
        Ok(receiver::Ending::new(id, Box::new(post)))
    }

    fn close(&self, state: &mut ShellState, id: ConnectionId) {
        state.dialing.remove(&id);
        let Some(mut row) = state.rows.remove(&id) else { return };
        if !row.remains.is_empty() {
            let at = monotonic_ns().saturating_add(REMAINS_NS);
            state.remains.push_back((at, core::mem::take(&mut row.remains)));
        }
        if let Some(pidfd) = &row.pidfd {
            self.poller.remove(pidfd);
        }
        if let Some(wake) = row.wake.take() {
            self.poller.remove(&wake);
        }
        if row.take.is_some() {
            // Its receiver had not yet been started.
            self.receiver_ended(state, id);
        }
        if let Some(socket) = row.socket.take() {
            self.poller.remove(&*socket);
            if row.is_lent {
                // Its receiver stops waiting now, and so does the other end.
                socket::shut_down(&*socket);
            }
            // A receiver with a reference closes the socket when it has emptied the queue. The last
            // of the two gets it.
            if let Some(socket) = Arc::into_inner(socket) {
                self.discard(state, socket);
            }
        }
    }

    /// The machine's event for the application, with the memory and sockets that belong to it;
    /// `None`: another part got the event, or none did.
    fn told(&self, state: &mut ShellState, event: MachineEvent) -> Option<ControlEvent> {
        Some(match event {
            MachineEvent::Connected(agreed) => return self.connected(state, agreed),
            MachineEvent::ConnectFailed { id, why } => return self.connect_failed(state, id, why),
            MachineEvent::Request { id, peer, greeting } => {
                ControlEvent::Request { id, peer, greeting }
            }
            MachineEvent::RequestGone { id } => ControlEvent::RequestGone { id },
            MachineEvent::BulkOutgoing { link } => {
                let lines = self.take_made(state, link)?;
                state.rows.get_mut(&link)?.remains.push(lines.remains());
                ControlEvent::BulkOutgoing { token: link, lines }
            }
            MachineEvent::BulkIncoming { link } => {
                let row = state.rows.get_mut(&link)?;
                let bulk = [Memory::Bulk(LinkSide::Client), Memory::Bulk(LinkSide::Server)];
                match bulk.into_iter().find_map(|memory| row.mapped.remove(&memory)) {
                    Some(Mapped::Bulk(lines)) => {
                        row.remains.push(lines.remains());
                        ControlEvent::BulkIncoming { token: link, lines }
                    }
                    _ => return None,
                }
            }
            MachineEvent::BulkRefused { link, why } => {
                ControlEvent::BulkRefused { token: link, why }
            }
            MachineEvent::ApertureReady { link, number } => {
                ControlEvent::ApertureReady { token: link, number }
            }
            MachineEvent::ApertureRefused { link, number, why } => {
                ControlEvent::ApertureRefused { token: link, number, why }
            }
            MachineEvent::ApertureReleased { link, number } => {
                ControlEvent::ApertureReleased { token: link, number }
            }
            MachineEvent::ApertureHeld { link, number } => {
                let row = state.rows.get_mut(&link)?;
                match row.mapped.remove(&Memory::Aperture(number)) {
                    Some(Mapped::Aperture(pages)) => {
                        ControlEvent::ApertureHeld { token: link, number, pages }
                    }
                    _ => return None,
                }
            }
            MachineEvent::ApertureRevoked { link, number } => {
                ControlEvent::ApertureRevoked { token: link, number }
            }
            MachineEvent::TicketRevoked { link, slot, index } => {
                // Only the application needs this event: an application that takes no events is not
                // made to keep it.
                // Nor does a peer that repeats it keep others from connecting.
                if self.inbox.len() >= EVENTS_MAX / 4 {
                    return None;
                }
                ControlEvent::TicketRevoked { token: link, slot, index }
            }
            MachineEvent::Closed { link, reason } => ControlEvent::Closed { token: link, reason },
        })
    }

    /// Tells an operator of an event for the application.
    fn note_event(&self, state: &ShellState, event: &MachineEvent) {
        let (link, kind, reason) = match event {
            MachineEvent::Closed { link, reason } => {
                let (kind, why) = ended(*reason);
                (link, kind, why.into())
            }
            _ if !log::is_wanted() => return,
            MachineEvent::TicketRevoked { link, slot, index } => {
                let what = std::format!("the ticket of its slot {slot}, entry {index}");
                (link, Kind::Revoked, what)
            }
            MachineEvent::ApertureRevoked { link, number } => {
                (link, Kind::Revoked, std::format!("its aperture {number}"))
            }
            _ => return,
        };
        if let Some(row) = state.rows.get(link) {
            self.note(row.entry(kind, reason));
        }
    }

    fn take_made(
        &self,
        state: &mut ShellState,
        link: ConnectionId,
    ) -> Option<crate::os::memory::RegionLines> {
        let row = state.rows.get_mut(&link)?;
        let bulk = [Memory::Bulk(LinkSide::Client), Memory::Bulk(LinkSide::Server)];
        match bulk.into_iter().find_map(|memory| row.made.remove(&memory)) {
            Some(MadeMemory::Bulk(lines, _)) => Some(lines),
            _ => None,
        }
    }

    fn connected(&self, state: &mut ShellState, agreed: AgreedLink) -> Option<ControlEvent> {
        let row = state.rows.get_mut(&agreed.link)?;
        let own = if agreed.initiated_by_us { LinkSide::Client } else { LinkSide::Server };
        let made = row.made.remove(&Memory::Ring(own));
        let mapped = row.mapped.remove(&Memory::Ring(own.other()));
        let (Some(MadeMemory::Ring(outgoing, _)), Some(Mapped::Ring(incoming)), Some(wake)) =
            (made, mapped, row.wake.take())
        else {
            return None;
        };
        if agreed.initiated_by_us {
            self.poller.remove(&wake);
        }
        let found = row.found.take();
        row.dial = None;
        row.peer = Some(agreed.peer.clone());
        row.remains = [outgoing.remains(), incoming.remains()].into();
        if log::is_wanted() {
            let by = if agreed.initiated_by_us { "this process connected" } else { "" };
            self.note(row.entry(Kind::Connected, by.into()));
        }
        let link = NewLink {
            token: agreed.link,
            peer: agreed.peer,
            greeting: agreed.greeting,
            outgoing,
            incoming,
            way: LinkWay::Memory(wake),
            packet_bytes: agreed.packet_bytes,
            features: agreed.features,
            initiated_by_us: agreed.initiated_by_us,
            request: agreed.request,
            asked: None,
            how: None,
        };
        Some(ControlEvent::Connected(match found {
            Some(found) => found.linked(link),
            None => link,
        }))
    }

    fn connect_failed(
        &self,
        state: &mut ShellState,
        id: ConnectionId,
        why: ConnectFailure,
    ) -> Option<ControlEvent> {
        let row = state.rows.get_mut(&id)?;
        let error = row.dial.as_mut().and_then(|dial| dial.take_error());
        let error = error.unwrap_or_else(|| ConnectError::of(why));
        if let Some(found) = row.found.take() {
            // It goes on over TLS.
            found.failed(error);
            return None;
        }
        if log::is_wanted() {
            self.note(row.entry(Kind::Failed, printable(&error.to_string())));
        }
        Some(ControlEvent::ConnectFailed { token: id, error })
    }
}

/// The text for the end of a link.
pub fn ended(reason: LinkEnd) -> (Kind, &'static str) {
    match reason {
        LinkEnd::Graceful => (Kind::Closed, ""),
        LinkEnd::Died => (Kind::Died, ""),
        LinkEnd::HungUp => (Kind::Lost, "it closed the connection before all messages had left"),
        LinkEnd::Violation => (Kind::SentAway, "it sent nonsense on its control socket"),
        LinkEnd::Expelled => (Kind::Expelled, ""),
        LinkEnd::TooSlow => (Kind::Lost, "it sent this process away, which was too slow for it"),
        LinkEnd::Unwatched => (
            Kind::Lost,
            "the system refuses this process's housekeeping what it needs to watch over it",
        ),
    }
}

fn send_now(socket: &OwnedFd, bytes: &[u8], file: &Option<Arc<OwnedFd>>) -> io::Result<()> {
    match file {
        Some(file) => socket::send(socket, bytes, &[file.as_fd()]),
        None => socket::send(socket, bytes, &[]),
    }
}
