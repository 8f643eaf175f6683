//! Connecting: a request, which the machine answers with an event.
//!
//! A Unix socket never says "in progress": a listener whose queue is full refuses at once, and so
//! does a name that no process serves yet. The machine decides whether and when to try again.

use super::super::GREETING_BYTES_MAX;
use super::super::frame::{Credential, FRAME_BYTES_MAX, Frame, FrameError, Hello};
use super::super::identity;
use super::super::machine::{ConnectFailure, ConnectionId, NotNow, Verdict, Wait, Who};
use super::super::names::{self, FindError, ServiceName, ServicePlace};
use super::super::within::{self, Running};
use super::inbox::LinkToken;
use super::other_hosts::FoundLink;
use super::{
    ConnectError, Control, Posted, SOCKET, ShellRow, ShellShared, ShellState, WAKE, deadline_of,
    tag,
};
use crate::config::{AdmitUnknown, Config};
use crate::os::socket::{self, PeerProcess, SocketConnection};
use crate::os::sys::monotonic_ns;
use core::time::Duration;
use std::boxed::Box;
use std::io;
use std::path::PathBuf;
use std::string::{String, ToString};
use std::sync::Arc;
use std::vec::Vec;

/// Time limit for finding the names of other users, which serve only as advice; and most threads
/// that may look into strangers' places for them at a time.
const NAMESAKES_WITHIN: Duration = Duration::from_millis(500);
const NAMESAKES_LOOKUPS_MAX: usize = 8;

/// Time that a first look may take even beyond the time limit: its result is worth more to a caller
/// that does not want to wait than the error that the time limit has passed.
const FIRST_LOOK_NS: u64 = 400_000_000;

/// A connection that is being made.
pub(super) struct SocketDial {
    /// The time limit, until the first look has come back.
    until_ns: Option<u64>,
    /// `None`: a thread is using it.
    finder: Option<Box<Finder>>,
    wait: Wait,
    /// The frame for the second connection; `None`: the first one is being made.
    wake: Option<Box<Hello>>,
    /// The error of the last try.
    error: Option<ConnectError>,
    /// The names under which other users serve the service, if it was not found.
    namesakes: Vec<String>,
}

/// Finds a service and connects to it. The owner of a directory on the way can hold it for any
/// time, and then a thread that looks into it waits and cannot be killed; a server of user names
/// can have the same effect. So a thread that nothing waits for does this, or a caller with nothing
/// else to do.
pub(super) struct Finder {
    service: ServiceName,
    /// The place of the name, with the address to connect to; found anew if no process was there.
    found: Option<(ServicePlace, PathBuf)>,
    /// No process was there at the last try.
    was_absent: bool,
    has_tried: bool,
    /// The credential that the process there must have, before anything is sent to it.
    expected: Option<Box<Credential>>,
}

/// A try that made no connection.
pub(super) enum MissedTry {
    NotNow(NotNow, ConnectError),
    Failed(ConnectError),
}

/// The result of a try.
pub(super) type OpenedSocket = Result<(SocketConnection, Who), MissedTry>;

/// The results of a thread that looks for a service.
pub(super) enum FoundService {
    /// Once.
    Opened(Box<(Finder, OpenedSocket)>),
    /// After that, perhaps.
    Namesakes(Vec<String>),
}

impl SocketDial {
    fn to(finder: Finder, wait: Wait, until_ns: u64) -> Self {
        let finder = Some(Box::new(finder));
        Self {
            until_ns: Some(until_ns),
            finder,
            wait,
            wake: None,
            error: None,
            namesakes: Vec::new(),
        }
    }

    /// The error.
    pub(super) fn take_error(&mut self) -> Option<ConnectError> {
        let error = self.error.take()?;
        let namesakes = core::mem::take(&mut self.namesakes);
        Some(if namesakes.is_empty() { error } else { with_namesakes(error, || namesakes) })
    }
}

impl Finder {
    pub(super) fn of(service: &ServiceName) -> Self {
        let (found, was_absent, has_tried, expected) = (None, false, false, None);
        Self { service: service.clone(), found, was_absent, has_tried, expected }
    }

    /// One try. The listener may have sent something by the time it returns, but it has the right
    /// identity.
    pub(super) fn open(&mut self, config: &Config) -> OpenedSocket {
        self.has_tried = true;
        let missed = match self.try_open(config) {
            Ok(opened) => {
                self.was_absent = false;
                return Ok(opened);
            }
            Err(missed) => missed,
        };
        let was_absent = self.was_absent;
        self.was_absent = matches!(missed, MissedTry::NotNow(NotNow::Absent, _));
        match missed {
            // The maker of a directory or a socket sets its permissions a moment later.
            MissedTry::Failed(error) if was_absent => {
                self.found = None;
                Err(MissedTry::NotNow(NotNow::Absent, error))
            }
            missed => Err(missed),
        }
    }

    fn try_open(&mut self, config: &Config) -> Result<(SocketConnection, Who), MissedTry> {
        let absent = |error| MissedTry::NotNow(NotNow::Absent, error);
        if self.found.is_none() {
            let place = names::find(config, &self.service).map_err(|error| match error {
                FindError::NotFound { .. } => absent(error.into()),
                error => MissedTry::Failed(error.into()),
            })?;
            let address = place.address().map_err(|error| MissedTry::Failed(error.into()))?;
            self.found = Some((place, address));
        }
        let Some((place, address)) = &self.found else { unreachable!("it was found above") };
        let path = place.path();
        let error = match socket::try_connect(address).map(SocketConnection::from) {
            Ok(socket) => {
                let who = check(config, place, &socket).map_err(MissedTry::Failed)?;
                if let Some(expected) = &self.expected {
                    check_process(expected, who.pid, &socket).map_err(MissedTry::Failed)?;
                }
                return Ok((socket, who));
            }
            Err(error) => error,
        };
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => {
                Err(MissedTry::NotNow(NotNow::Busy, ConnectError::TimedOut("connecting")))
            }
            // It went away between the two looks, or its process did.
            io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => {
                self.found = None;
                Err(absent(ConnectError::Stale(path)))
            }
            io::ErrorKind::PermissionDenied => {
                Err(MissedTry::Failed(ConnectError::NotPermitted(path)))
            }
            _ => Err(MissedTry::Failed(ConnectError::Os { doing: "connecting", error })),
        }
    }
}

/// The identity of the other end, if it is the right one.
fn check(
    config: &Config,
    place: &ServicePlace,
    socket: &SocketConnection,
) -> Result<Who, ConnectError> {
    let identity = socket::identity(socket)
        .map_err(|error| ConnectError::Os { doing: "connecting", error })?;
    let wrong = |found: String| {
        let (path, wanted) = (place.path(), place.uid);
        Err(ConnectError::WrongUser { path, found, wanted })
    };
    match identity.uid {
        Some(uid) if uid != place.uid => wrong(std::format!("user {uid}")),
        None if config.admit_unknown == AdmitUnknown::Never => {
            wrong("a user of another user namespace".into())
        }
        _ => {
            Ok(Who { uid: identity.uid, gid: identity.gid, pid: identity.pid, is_in_group: false })
        }
    }
}

/// Whether the process there is that of a node which has shown this credential elsewhere.
fn check_process(
    expected: &Credential,
    pid: Option<u32>,
    socket: &SocketConnection,
) -> Result<(), ConnectError> {
    let found = socket::peer_process(socket);
    let (process, pid) = match &found {
        PeerProcess::Exact(pidfd) => (socket::process_number(pidfd), pid),
        PeerProcess::ByNumber(_) => (None, pid),
        PeerProcess::Unseen | PeerProcess::Gone => (None, None),
    };
    let why = match identity::verify(expected, process, pid) {
        Verdict::Proved => return Ok(()),
        Verdict::Unproved => "the kernel cannot say whether its process is the same".into(),
        Verdict::False(why) => std::format!("its process is another one ({why})"),
    };
    Err(ConnectError::Misbehaved(std::format!("who serves the local name is somebody else: {why}")))
}

/// The treatment of a name that no process serves yet.
pub(crate) fn wait_of(config: &Config) -> Wait {
    if config.wait_for_names { Wait::ForName } else { Wait::No }
}

/// If a name was not found: adds the names under which other users serve it.
pub(super) fn with_namesakes(
    error: ConnectError,
    namesakes: impl FnOnce() -> Vec<String>,
) -> ConnectError {
    match error {
        ConnectError::Find(FindError::NotFound { name, looked, .. }) => {
            ConnectError::Find(FindError::NotFound { name, looked, namesakes: namesakes() })
        }
        error => error,
    }
}

/// The same name of other users; empty if that takes long: a user may hold the directory.
pub(super) fn namesakes_soon(config: &Config, service: &ServiceName) -> Vec<String> {
    static LOOKING: Running = Running::new(NAMESAKES_LOOKUPS_MAX);
    let (config, service) = (config.clone(), service.clone());
    let found = LOOKING.within(NAMESAKES_WITHIN, move || names::namesakes(&config, &service));
    found.ok().flatten().unwrap_or_default()
}

impl Control {
    /// Begins to connect to a service. [`ControlEvent::Connected`](super::ControlEvent::Connected)
    /// or [`ControlEvent::ConnectFailed`](super::ControlEvent::ConnectFailed) with this token
    /// follows, within the time limit. A failure that is known at once is an error at once.
    pub fn begin_connect(
        &self,
        service: &ServiceName,
        greeting: &[u8],
        timeout: Duration,
        wait: Wait,
    ) -> Result<LinkToken, ConnectError> {
        let shared = &*self.shared;
        if !shared.guard.is_parent() {
            return Err(ConnectError::Forked);
        }
        if greeting.len() > GREETING_BYTES_MAX {
            return Err(ConnectError::GreetingTooLong(greeting.len()));
        }
        let until_ns = deadline_of(timeout);
        let dial = SocketDial::to(Finder::of(service), wait, until_ns);
        let looked_by_ns = until_ns.max(monotonic_ns().saturating_add(FIRST_LOOK_NS));
        shared.begin(dial, greeting, looked_by_ns, None)
    }

    /// Gives up a connection that was begun; no event follows, unless it is there already.
    pub fn give_up(&self, token: LinkToken) {
        if self.give_up_host(token) {
            return;
        }
        self.call_if_parent(|machine, _| machine.give_up(token));
    }
}

impl ShellShared {
    fn begin(
        &self,
        dial: SocketDial,
        greeting: &[u8],
        looked_by_ns: u64,
        found: Option<Box<FoundLink>>,
    ) -> Result<LinkToken, ConnectError> {
        let Some(finder) = &dial.finder else { unreachable!("nobody looks yet") };
        let (service, wait) = (finder.service.to_string(), dial.wait);
        let expected = finder.expected.as_ref().map(|credential| credential.node);
        let mut state = self.lock();
        if let Some(why) = &state.failed {
            return Err(ConnectError::Unavailable(why.clone()));
        }
        let begun = state.machine.connect(service, greeting.to_vec(), looked_by_ns, wait);
        let id = begun.map_err(ConnectError::TooManyLinks)?;
        if let Some(node) = expected {
            state.machine.expect(id, node);
        }
        let row =
            ShellRow { dial: Some(Box::new(dial)), found, ..ShellRow::new(None, Who::default()) };
        state.rows.insert(id, row);
        self.dial(&mut state, id, monotonic_ns());
        self.finish(state);
        // Its deadline may be the earliest.
        self.bell.ring();
        Ok(id)
    }

    /// The same for a node that has proved its identity elsewhere: no other node there is spoken
    /// to, and if none is found soon, the attempt ends.
    #[cfg(feature = "tls")]
    pub(super) fn begin_expecting(
        &self,
        service: &ServiceName,
        credential: Credential,
        greeting: &[u8],
        until_ns: u64,
        found: Box<FoundLink>,
    ) -> Result<LinkToken, ConnectError> {
        let finder = Finder { expected: Some(Box::new(credential)), ..Finder::of(service) };
        let dial = SocketDial::to(finder, Wait::No, until_ns);
        let looked_by_ns = until_ns.min(monotonic_ns().saturating_add(FIRST_LOOK_NS));
        self.begin(dial, greeting, looked_by_ns, Some(found))
    }

    /// One try to make the first connection, or the second, by a thread that nothing waits for.
    fn dial(&self, state: &mut ShellState, id: ConnectionId, now_ns: u64) {
        let Some(dial) = state.rows.get_mut(&id).and_then(|row| row.dial.as_mut()) else { return };
        let Some(finder) = dial.finder.take() else { return };
        let (service, wait) = (finder.service.clone(), dial.wait);
        if let Err((finder, why)) = self.look(id, finder, wait) {
            let error = ConnectError::Unavailable(why);
            let finder = finder.map_or_else(|| Finder::of(&service), |finder| *finder);
            self.opened(state, id, now_ns, finder, Err(MissedTry::NotNow(NotNow::Busy, error)));
        }
    }

    /// Starts a thread that looks; an error says why that is impossible.
    fn look(
        &self,
        id: ConnectionId,
        mut finder: Box<Finder>,
        wait: Wait,
    ) -> Result<(), (Option<Box<Finder>>, String)> {
        let Some(shared) = self.this.get().cloned() else { return Ok(()) };
        let running = match self.lookups.begin(&finder.service) {
            Ok(running) => running,
            Err(why) => return Err((Some(finder), why)),
        };
        let config = self.config.clone();
        let looks = move || {
            let post = |found| {
                // No part of the library is left to hear of it.
                let Some(shared) = shared.upgrade() else { return };
                shared.posted().push_back((id, Posted::Found(found)));
                shared.bell.ring();
            };
            let is_first = !finder.has_tried;
            let mut opened = finder.open(&config);
            let is_absent = matches!(&opened, Err(MissedTry::NotNow(NotNow::Absent, _)));
            let is_asked = finder.expected.is_none();
            let service = (is_first && is_absent && is_asked).then(|| finder.service.clone());
            match (service, wait) {
                (Some(service), Wait::No) => {
                    opened = opened.map_err(|missed| match missed {
                        MissedTry::NotNow(why, error) => MissedTry::NotNow(
                            why,
                            with_namesakes(error, || namesakes_soon(&config, &service)),
                        ),
                        missed => missed,
                    });
                    post(FoundService::Opened(Box::new((*finder, opened))));
                }
                (Some(service), Wait::ForName) => {
                    post(FoundService::Opened(Box::new((*finder, opened))));
                    post(FoundService::Namesakes(namesakes_soon(&config, &service)));
                }
                (None, _) => post(FoundService::Opened(Box::new((*finder, opened)))),
            }
            drop(running);
        };
        within::spawn(looks)
            .map_err(|e| (None, std::format!("no thread to look for the name with: {e}")))
    }

    /// Handles the result of a thread that looked.
    pub(super) fn found(&self, state: &mut ShellState, id: ConnectionId, found: FoundService) {
        match found {
            FoundService::Opened(opened) => {
                let (finder, opened) = *opened;
                self.opened(state, id, monotonic_ns(), finder, opened);
            }
            FoundService::Namesakes(namesakes) => {
                if let Some(dial) = state.rows.get_mut(&id).and_then(|row| row.dial.as_mut()) {
                    dial.namesakes = namesakes;
                }
            }
        }
    }

    fn opened(
        &self,
        state: &mut ShellState,
        id: ConnectionId,
        now_ns: u64,
        finder: Finder,
        opened: OpenedSocket,
    ) {
        let Some(dial) = state.rows.get_mut(&id).and_then(|row| row.dial.as_mut()) else {
            // It was given up meanwhile.
            if let Ok((socket, _)) = opened {
                self.discard(state, socket.into_fd());
            }
            return;
        };
        dial.finder = Some(Box::new(finder));
        if let Some(until_ns) = dial.until_ns.take() {
            state.machine.connect_until(id, until_ns);
        }
        let Some(dial) = state.rows.get_mut(&id).and_then(|row| row.dial.as_mut()) else { return };
        let (socket, who) = match opened {
            Ok(opened) => opened,
            Err(MissedTry::Failed(error)) => return self.dial_failed(state, id, error),
            Err(MissedTry::NotNow(why, error)) => {
                match state.machine.not_now(now_ns, id, why) {
                    // The error if its time limit passes.
                    Some(again_ns) => {
                        dial.error = Some(error);
                        state.dialing.insert(id, again_ns);
                    }
                    None => self.dial_failed(state, id, error),
                }
                return;
            }
        };
        dial.error = None;
        if let Some(hello) = dial.wake.take() {
            return self.second(state, id, socket, who, *hello);
        }
        let Some(row) = state.rows.get_mut(&id) else { return };
        (row.uid, row.pid) = (who.uid, who.pid);
        if let Err(error) = self.poller.add(&socket, tag(id.0, SOCKET)) {
            let doing = "watching the connection";
            return self.dial_failed(state, id, ConnectError::Os { doing, error });
        }
        row.socket = Some(Arc::new(socket.into_fd()));
        state.machine.connected(id, who);
    }

    /// The second connection exists: to the same process, or to none.
    fn second(
        &self,
        state: &mut ShellState,
        id: ConnectionId,
        wake: SocketConnection,
        who: Who,
        hello: Hello,
    ) {
        let Some(row) = state.rows.get_mut(&id) else { return };
        if (row.uid, row.pid) != (who.uid, who.pid) {
            let why = "its name passed to another process meanwhile";
            return state.machine.connect_failed(id, ConnectFailure::Misbehaved(why.into()));
        }
        let said = match socket::send(&wake, &Frame::Hello(hello).to_bytes(), &[]) {
            // Closed already: the other end has sent the reason before, which is read next; or it
            // is gone.
            Err(e)
                if matches!(
                    e.kind(),
                    io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset
                ) =>
            {
                Ok(())
            }
            said => said,
        };
        socket::send_little(&wake);
        let said = said.and_then(|()| self.poller.add(&wake, tag(id.0, WAKE)));
        if let Err(e) = said {
            let why = std::format!("opening the wake-up connection: {e}");
            return state.machine.connect_failed(id, ConnectFailure::Unavailable(why));
        }
        row.wake = Some(wake);
        state.machine.wake_opened(id);
    }

    pub(super) fn open_wake(&self, state: &mut ShellState, id: ConnectionId, hello: Hello) {
        if let Some(dial) = state.rows.get_mut(&id).and_then(|row| row.dial.as_mut()) {
            dial.wake = Some(Box::new(hello));
            self.dial(state, id, monotonic_ns());
        }
    }

    fn dial_failed(&self, state: &mut ShellState, id: ConnectionId, error: ConnectError) {
        let why = ConnectFailure::Unavailable(error.to_string());
        if let Some(dial) = state.rows.get_mut(&id).and_then(|row| row.dial.as_mut()) {
            dial.error = Some(error);
        }
        state.machine.connect_failed(id, why);
    }

    /// Tries those again whose listeners were busy.
    pub(super) fn dial_again(&self, state: &mut ShellState, now_ns: u64) {
        let due = state.dialing.iter().filter(|row| *row.1 <= now_ns).map(|row| *row.0);
        let due: Vec<ConnectionId> = due.collect();
        for id in due {
            state.dialing.remove(&id);
            self.dial(state, id, now_ns);
            self.perform_all(state);
        }
    }

    /// The server sends a frame on the second connection before the link exists: a refusal.
    pub(super) fn read_wake(&self, state: &mut ShellState, id: ConnectionId) {
        let Some(wake) = state.rows.get(&id).and_then(|row| row.wake.as_ref()) else { return };
        let mut buffer = std::vec![0; FRAME_BYTES_MAX];
        let received = match socket::receive(wake, &mut buffer) {
            // It was closed before our HELLO was read: frames that it sent before come after that
            // error.
            Err(e) if e.kind() == io::ErrorKind::ConnectionReset => {
                socket::receive(wake, &mut buffer)
            }
            received => received,
        };
        let received = match received {
            Ok(received) => received,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
            Err(_) => socket::ReceivedFrame::default(),
        };
        state.discarded.extend(received.descriptors);
        let failure = match Frame::from_bytes(&buffer[..received.bytes]) {
            Ok(Frame::Refused { reason, text, .. }) => ConnectFailure::Refused { reason, text },
            _ if received.bytes == 0 => {
                // The first connection has the reason; or its deadline passes.
                self.poller.remove(wake);
                return;
            }
            // A link's first signal, which comes before this process has read READY.
            Err(FrameError::NotOurs) => return,
            _ => ConnectFailure::Misbehaved("a frame came on its wake-up connection".into()),
        };
        state.machine.connect_failed(id, failure);
    }
}
