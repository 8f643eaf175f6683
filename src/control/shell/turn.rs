//! One turn of the control plane: events of sockets, receivers and the clock.

use super::error::refused;
use super::refusals::{Refusals, of_host};
use super::{
    ACCEPTS_PER_TURN, BELL, EVENTS_MAX, FRAMES_OF_THE_DEAD, FRAMES_PER_TURN, LISTENER,
    MESSAGES_PER_TURN, OUTBOX_MAX, PIDFD, Posted, SOCKET, ShellRow, ShellShared, ShellState, WAKE,
    tag,
};
use crate::control::frame::Frame;
use crate::control::machine::{ConnectionId, Counters, Peer, ServiceId, Who};
use crate::control::names::{Access, NameListener};
use crate::control::receiver::ReceiverMessage;
use crate::control::{Reason, printable};
use crate::log::{self, Entry, Kind};
use crate::os::memory::{self};
use crate::os::poller::Ready;
use crate::os::socket;
use crate::os::sys::{self, monotonic_ns};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::string::String;
use std::sync::{MutexGuard, PoisonError};
use std::vec::Vec;

impl ShellShared {
    /// Every decision under the lock is based on the events that the application has taken so far,
    /// and on the current user of this process.
    pub(super) fn lock(&self) -> MutexGuard<'_, ShellState> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.machine.user_is(rustix::process::geteuid().as_raw());
        state.machine.events_taken(self.inbox.taken());
        state
    }

    /// Performs the machine's actions, releases the lock, and then closes the descriptors that must
    /// be closed elsewhere.
    pub(super) fn finish(&self, mut state: MutexGuard<'_, ShellState>) {
        self.perform_all(&mut state);
        let discarded = core::mem::take(&mut state.discarded);
        drop(state);
        memory::close_elsewhere(discarded);
    }

    /// The thread cannot go on: waiting callers get an error, every link ends, no name is served
    /// any more.
    #[cold]
    pub(super) fn fail(&self, error: &io::Error) {
        let why = std::format!("its housekeeping has ended: {error}");
        let mut state = self.lock();
        state.machine.fail_all(&why);
        state.failed = Some(why);
        let listeners = core::mem::take(&mut state.listeners);
        self.finish(state);
        drop(listeners);
    }

    pub(super) fn posted(&self) -> MutexGuard<'_, VecDeque<(ConnectionId, Posted)>> {
        self.posted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for an event, until the next deadline, for at most `limit_ns`; handles it.
    pub(super) fn turn(&self, limit_ns: Option<u64>) -> io::Result<()> {
        let next = self.lock().deadline_ns();
        let until = next.map(|at| at.saturating_sub(monotonic_ns()));
        let timeout = match (until, limit_ns) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        let mut ready = Vec::with_capacity(64);
        self.poller.wait(timeout, &mut ready)?;
        let mut state = self.lock();
        for ready in ready {
            self.handle(&mut state, ready);
            self.perform_all(&mut state);
        }
        let now = monotonic_ns();
        self.dial_again(&mut state, now);
        state.machine.handle_timeout(now);
        self.perform_all(&mut state);
        let asked = core::mem::take(&mut state.asked);
        let due = state.remains.iter().take_while(|row| row.0 <= now).count();
        let remains = state.remains.drain(..due).flat_map(|row| row.1).collect();
        self.finish(state);
        memory::copy_elsewhere(remains);
        if !asked.is_empty() {
            let text = self.figures();
            let mut state = self.lock();
            for id in asked {
                state.machine.tell_statistics(id, &text, OUTBOX_MAX);
                self.perform_all(&mut state);
                if state.rows.get(&id).is_some_and(|row| row.outbox.is_empty()) {
                    state.machine.sent_all(id);
                }
            }
            self.finish(state);
        }
        self.tell_log();
        Ok(())
    }

    /// All counters, and the last refusals, as text. The application's code runs, without the lock.
    pub(super) fn figures(&self) -> String {
        let mut text = (self.stat)();
        for (name, value) in self.counters(&self.lock()) {
            text.push_str(&std::format!("{name} {value}\n"));
        }
        self.refusals().text(monotonic_ns(), &mut text);
        text
    }

    pub(super) fn refusals(&self) -> MutexGuard<'_, Refusals> {
        self.refusals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg_attr(not(feature = "tls"), allow(dead_code))]
    pub(super) fn of_hosts(&self) -> MutexGuard<'_, Counters> {
        self.of_hosts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All counters, by name.
    pub(super) fn counters(&self, state: &ShellState) -> Vec<(&'static str, u64)> {
        let mut counters = state.machine.counters().list();
        // The counters of other hosts and those of the machine do not overlap.
        for (all, (_, of_hosts)) in counters.iter_mut().zip(self.of_hosts().list()) {
            all.1 += of_hosts;
        }
        counters.push(("control.receivers", u64::from(state.machine.receivers())));
        counters.push(("control.descriptors_leaked", memory::descriptors_leaked()));
        counters.push(("control.memory_unlocked", memory::memory_unlocked()));
        counters.push(("control.apertures_still_mapped", memory::apertures_still_mapped()));
        counters
    }

    /// Keeps an entry for an operator: a refusal, until newer ones replace it, for statistics; and
    /// if there is a listener, every entry, which the housekeeping reports without a lock.
    pub(super) fn note(&self, entry: Entry) {
        let now = monotonic_ns();
        if matches!(entry.kind, Kind::Refused | Kind::SentAway) {
            self.refusals().add(now, entry.clone());
        }
        if !log::is_wanted() {
            return;
        }
        let is_first = {
            let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
            log.add(now, entry)
        };
        if is_first {
            self.bell.ring();
        }
    }

    pub(super) fn note_sent_away(&self, token: ConnectionId, peer: &Peer, why: &str) {
        let entry = match &peer.host {
            Some(host) => {
                let (who, service) = (host.identity.as_str(), peer.service.clone());
                Some(of_host(Kind::SentAway, host.address.ip(), Some(who), service, why))
            }
            None => {
                let state = self.lock();
                state.rows.get(&token).map(|row| row.entry(Kind::SentAway, printable(why)))
            }
        };
        if let Some(entry) = entry {
            self.note(entry);
        }
    }

    /// Reports all entries that were kept.
    pub(super) fn tell_log(&self) {
        if !log::is_wanted() {
            return;
        }
        let entries = {
            let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
            log.take(monotonic_ns())
        };
        entries.iter().for_each(log::tell);
    }

    /// Notes a refusal of a peer that has no link.
    pub(super) fn note_refused(
        &self,
        listeners: &HashMap<ServiceId, NameListener>,
        row: &ShellRow,
        reason: Reason,
        text: &str,
    ) {
        if row.dial.is_none() && row.peer.is_none() {
            let mut entry = row.entry(Kind::Refused, refused(reason, &printable(text)));
            let listener = row.service.and_then(|service| listeners.get(&service));
            entry.service = listener.map_or(String::new(), |listener| listener.name().into());
            self.note(entry);
        }
    }

    pub(super) fn handle(&self, state: &mut ShellState, ready: Ready) {
        if ready.tag == BELL {
            self.bell.silence();
            return self.take_messages(state);
        }
        let id = ready.tag >> 2;
        match ready.tag & 3 {
            LISTENER => self.accept_some(state, ServiceId(id)),
            PIDFD => self.process_died(state, ConnectionId(id)),
            WAKE => self.read_wake(state, ConnectionId(id)),
            _ => {
                let id = ConnectionId(id);
                if ready.writable {
                    self.flush(state, id);
                }
                if ready.readable && !self.is_shut_while_lent(state, id) {
                    self.read_some(state, id, FRAMES_PER_TURN);
                }
            }
        }
    }

    /// A socket that a receiver reads is watched here for room alone, and for its other end's
    /// shutdown: then there will be no room, and no reader for the frames that wait.
    pub(super) fn is_shut_while_lent(&self, state: &mut ShellState, id: ConnectionId) -> bool {
        if let Some(row) = state.rows.get_mut(&id)
            && row.is_lent
            && row.is_writing
            && let Some(socket) = &row.socket
            && socket::is_hung_up(&**socket)
        {
            self.poller.remove(&**socket);
            row.is_writing = false;
            row.outbox.clear();
            // A receiver that waited for room to ask finds the earlier frames, and the end.
            self.start_receiver(state, id);
            return true;
        }
        false
    }

    /// Handles the messages of receivers.
    pub(super) fn take_messages(&self, state: &mut ShellState) {
        for _ in 0..MESSAGES_PER_TURN {
            let Some((id, posted)) = self.posted().pop_front() else { return };
            let now = monotonic_ns();
            let message = match posted {
                Posted::Received(message) => *message,
                Posted::Found(found) => {
                    self.found(state, id, found);
                    self.perform_all(state);
                    continue;
                }
            };
            match message {
                ReceiverMessage::Frame(frame, has_descriptor) => {
                    state.machine.handle_frame(now, id, frame, has_descriptor);
                }
                ReceiverMessage::HungUp => self.hung_up(state, id),
                ReceiverMessage::Taken(memory, taken, mapped) => {
                    if let (Some(mapped), Some(row)) = (mapped, state.rows.get_mut(&id)) {
                        row.mapped.insert(memory, mapped);
                    }
                    state.machine.taken(now, id, memory, taken);
                }
                ReceiverMessage::Touched(memory, touched) => {
                    state.machine.touched(now, id, memory, touched);
                }
                ReceiverMessage::Ended => self.receiver_ended(state, id),
            }
            self.perform_all(state);
        }
        // There may be more.
        self.bell.ring();
    }

    pub(super) fn receiver_ended(&self, state: &mut ShellState, id: ConnectionId) {
        if let Some(users) = state.receivers.get_mut(&id) {
            let user = users.pop();
            if users.is_empty() {
                state.receivers.remove(&id);
            }
            if let Some(user) = user {
                state.machine.receiver_ended(monotonic_ns(), id, user);
            }
        }
        // The socket is read here again; the machine may have lent it anew meanwhile.
        if let Some(row) = state.rows.get_mut(&id)
            && !state.receivers.contains_key(&id)
            && row.is_lent
            && let Some(socket) = &row.socket
        {
            row.is_lent = false;
            row.is_writing = false;
            self.poller.remove(&**socket);
            if self.poller.add(&**socket, tag(id.0, SOCKET)).is_err() {
                self.hung_up(state, id);
            } else if !row.outbox.is_empty() {
                self.want_write(row, id);
            }
        }
    }

    /// Frames that a process sent before it died come first: there may be a goodbye. Bounded,
    /// because a child of it may hold the socket and go on sending.
    pub(super) fn process_died(&self, state: &mut ShellState, id: ConnectionId) {
        if let Some(pidfd) = state.rows.get(&id).and_then(|row| row.pidfd.as_ref()) {
            // It stays readable, and is checked again when the end of the socket is read.
            self.poller.remove(pidfd);
        }
        if state.rows.get(&id).is_some_and(|row| !row.is_lent) {
            self.read_some(state, id, FRAMES_OF_THE_DEAD);
        }
        state.machine.handle_death(id);
    }

    pub(super) fn hung_up(&self, state: &mut ShellState, id: ConnectionId) {
        let Some(row) = state.rows.get(&id) else { return };
        if let Some(socket) = &row.socket {
            self.poller.remove(&**socket);
        }
        let is_dead = row.pidfd.as_ref().map(socket::is_dead);
        state.machine.handle_hang_up(monotonic_ns(), id, is_dead);
    }

    /// Reads at most `most` frames.
    pub(super) fn read_some(&self, state: &mut ShellState, id: ConnectionId, most: usize) {
        for _ in 0..most {
            if !self.read_one(state, id) {
                return;
            }
            self.perform_all(state);
        }
    }

    /// Reads one frame. `false`: there is none, or a receiver reads the socket.
    pub(super) fn read_one(&self, state: &mut ShellState, id: ConnectionId) -> bool {
        let mut buffer = [0; crate::control::frame::FRAME_BYTES_MAX];
        let Some(row) = state.rows.get(&id).filter(|row| !row.is_lent) else { return false };
        let Some(socket) = &row.socket else { return false };
        let received = match socket::receive(&**socket, &mut buffer) {
            Ok(received) => received,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return false,
            Err(_) => socket::ReceivedFrame::default(),
        };
        let has_descriptors = !received.descriptors.is_empty();
        state.discarded.extend(received.descriptors);
        if received.bytes == 0 {
            self.hung_up(state, id);
            return false;
        }
        let frame = match received.is_truncated {
            true => Err(crate::control::frame::FrameError::WrongLength),
            false => Frame::from_bytes(&buffer[..received.bytes]),
        };
        state.machine.handle_frame(monotonic_ns(), id, frame, has_descriptors);
        true
    }

    pub(super) fn accept_some(&self, state: &mut ShellState, id: ServiceId) {
        for _ in 0..ACCEPTS_PER_TURN {
            let Some(listener) = state.listeners.get(&id) else { return };
            let access = listener.access;
            let accepted = match self.inbox.len() < EVENTS_MAX {
                true => socket::accept(&listener.fd),
                false => Err(io::ErrorKind::ResourceBusy.into()),
            };
            match accepted {
                Ok(Some(socket)) => self.accepted(state, id, access, socket),
                Ok(None) => return,
                // Connections in the listener's queue are served when there is room again.
                Err(_) => return state.machine.exhausted(monotonic_ns(), id),
            }
            self.perform_all(state);
        }
    }

    pub(super) fn accepted(
        &self,
        state: &mut ShellState,
        service: ServiceId,
        access: Access,
        socket: OwnedFd,
    ) {
        let (Ok(identity), Ok(cookie)) = (socket::identity(&socket), sys::random()) else {
            return self.discard(state, socket);
        };
        let who = Who {
            uid: identity.uid,
            gid: identity.gid,
            pid: identity.pid,
            is_in_group: match access {
                Access::Group(gid) => socket::is_in_group(&socket, gid),
                _ => false,
            },
        };
        match state.machine.accepted(monotonic_ns(), service, who, cookie) {
            Err(last) => {
                if let Frame::Refused { reason, text, .. } = &*last {
                    let row = ShellRow { service: Some(service), ..ShellRow::new(None, who) };
                    self.note_refused(&state.listeners, &row, *reason, text);
                }
                let _ = socket::send(&socket, &last.to_bytes(), &[]);
                self.discard(state, socket);
            }
            Ok(id) => {
                let is_watched = self.poller.add(&socket, tag(id.0, SOCKET)).is_ok();
                let row = ShellRow { service: Some(service), ..ShellRow::new(Some(socket), who) };
                state.rows.insert(id, row);
                if !is_watched {
                    state.machine.dropped(id);
                }
            }
        }
    }

    /// A socket that refuses descriptors holds none; any other may.
    pub(super) fn discard(&self, state: &mut ShellState, socket: OwnedFd) {
        if !self.has_pass_rights {
            state.discarded.push(socket);
        }
    }
}
