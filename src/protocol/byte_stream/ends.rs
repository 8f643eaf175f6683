//! The two ends of a connection: each is a [`ByteStream`].
//!
//! Never: bytes that a write took are kept here; a peer that breaks the rules stays connected.

use super::flow::ByteFlow;
use super::listener::ListenerPlaces;
use super::{ByteConfig, ByteStreamError};
use crate::control::Peer;
#[cfg(feature = "tokio")]
use crate::node::Attached;
use crate::node::{CloseReason, Look, Node};
use crate::protocol::ends::{connected, grown};
use crate::protocol::manager::{Protocols, StillWaits, Target, Wakeable};
use crate::protocol::{Connection, EndPoint, GrowError, Kind, Manager};
use core::sync::atomic::{AtomicU64, Ordering};
use core::task::Waker;
use core::time::Duration;
use std::format;
use std::io::{self, IoSlice};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// One connection, as a polling thread sees it. Its lock is taken under the manager's.
pub(super) struct StreamCore {
    state: Mutex<ByteStreamState>,
    pub(super) connection: OnceLock<Arc<Connection>>,
    /// The listener's place, by number.
    place: Option<(u64, Arc<ListenerPlaces>)>,
}

struct ByteStreamState {
    flow: ByteFlow,
    /// The tasks that wait to read and to write.
    reader: Option<Waker>,
    writer: Option<Waker>,
    /// The polling threads look at it.
    is_listed: bool,
    /// The end of this side's bytes could not be sent: the link was full.
    owes_end: bool,
}

impl ByteStreamState {
    /// Sends the end of this side's bytes, if that is owed.
    fn say_end(&mut self, node: &mut Node) {
        if !self.owes_end {
            return;
        }
        match self.flow.shut(node) {
            Look::Room(link) => node.await_room(link),
            Look::Again | Look::Nothing => {}
            // Otherwise the peer is gone, or gave a useless ticket, and needs no message.
            Look::Found(_) => self.owes_end = false,
        }
    }
}

/// The result of a task's look.
#[cfg(feature = "tokio")]
pub(crate) struct Turned<R> {
    /// The awaited result; `None`: the waker was left.
    pub ready: Option<R>,
    /// Tasks that sleep on the descriptor have to look and to arm once more: one of them now waits
    /// for room in a link, or this look polled, and may have taken the signal that would have woken
    /// them.
    pub arm: bool,
}

/// One of a stream's two wakers.
#[cfg(feature = "tokio")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Reader,
    Writer,
}

impl StreamCore {
    pub(super) fn new(flow: ByteFlow, place: Option<(u64, Arc<ListenerPlaces>)>) -> Self {
        let state =
            ByteStreamState { flow, reader: None, writer: None, is_listed: false, owes_end: false };
        Self { state: Mutex::new(state), connection: OnceLock::new(), place }
    }

    fn state(&self) -> MutexGuard<'_, ByteStreamState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ended(&self) -> Option<&CloseReason> {
        self.connection.get().and_then(|connection| connection.ended())
    }

    /// The link is there.
    pub(super) fn join(&self, node: &Node, connection: &Arc<Connection>) {
        let _ = self.connection.set(connection.clone());
        self.state().flow.go_over(node, connection.link());
    }

    /// The stream is no longer read or written: its memory goes back to the node, and its place to
    /// the listener.
    pub(super) fn forget(&self, node: &mut Node) {
        self.state().flow.remove(node);
        self.give_place_back();
    }

    fn give_place_back(&self) {
        if let Some((number, places)) = &self.place {
            places.give_back(*number);
        }
    }

    /// Disconnects a peer that broke the rules.
    fn judge(&self, node: &mut Node, protocols: &mut Protocols, fault: Option<&str>) {
        if let (Some(why), Some(connection)) = (fault, self.connection.get())
            && connection.ended().is_none()
        {
            if let Some((_, places)) = &self.place {
                places.misbehaved.fetch_add(1, Ordering::Relaxed);
            }
            protocols.expel(node, connection.link(), why);
        }
    }

    /// One look for bytes, at most `max` of them.
    #[inline]
    fn look_to_read(
        self: &Arc<Self>,
        node: &mut Node,
        protocols: &mut Protocols,
        max: usize,
        sink: &mut impl FnMut(&[u8]),
    ) -> Look<Result<usize, ByteStreamError>> {
        let mut state = self.state();
        let flow = &mut state.flow;
        flow.take_packets(node);
        let count = flow.copy_out(node, max, sink);
        let untold = flow.link().filter(|_| flow.untold);
        if count > 0 && flow.fault.is_none() {
            if untold.is_some() {
                self.list(state, protocols);
            }
            return Look::Found(Ok(count));
        }
        let (is_at_end, fault) = (flow.is_at_end(), flow.fault.clone());
        // The end of the connection locks this stream, too.
        drop(state);
        self.judge(node, protocols, fault.as_deref());
        match (fault, self.ended()) {
            _ if count > 0 => Look::Found(Ok(count)),
            (Some(why), _) => Look::Found(Err(ByteStreamError::Misbehaved(why))),
            // A dropped stream marks the end of its bytes by closing.
            _ if is_at_end => Look::Found(Ok(0)),
            (None, Some(CloseReason::Closed)) => Look::Found(Ok(0)),
            (None, Some(reason)) => Look::Found(Err(ByteStreamError::of(reason))),
            // The peer may be waiting for the credit that could not be sent.
            (None, None) => untold.map_or(Look::Nothing, Look::Room),
        }
    }

    /// Lists this for the polling threads.
    #[cold]
    fn list(
        self: &Arc<Self>,
        mut state: MutexGuard<'_, ByteStreamState>,
        protocols: &mut Protocols,
    ) {
        if !core::mem::replace(&mut state.is_listed, true) {
            protocols.list(self.clone());
        }
        if state.flow.untold || state.flow.wants_room || state.owes_end {
            protocols.look_soon();
        }
    }

    /// One look of a sender: of bytes, or of their end.
    #[inline]
    fn look_to_send<R>(
        &self,
        node: &mut Node,
        protocols: &mut Protocols,
        send: impl FnOnce(&mut ByteFlow, &mut Node) -> Look<Result<R, ByteStreamError>>,
    ) -> Look<Result<R, ByteStreamError>> {
        if let Some(reason) = self.ended() {
            return Look::Found(Err(ByteStreamError::of(reason)));
        }
        let mut state = self.state();
        let look = send(&mut state.flow, node);
        let fault = state.flow.fault.clone();
        drop(state);
        if fault.is_some() {
            self.judge(node, protocols, fault.as_deref());
        }
        look
    }
}

impl Wakeable for StreamCore {
    fn look(&self, node: &mut Node) -> StillWaits {
        let has_ended = self.ended().is_some();
        let mut state = self.state();
        state.flow.tell_rest(node);
        if !has_ended {
            state.say_end(node);
        }
        let ByteStreamState { flow, reader, writer, is_listed, owes_end } = &mut *state;
        let owes = flow.untold || *owes_end;
        if reader.is_some() && (has_ended || flow.is_readable(node)) {
            reader.take().into_iter().for_each(Waker::wake);
        }
        if writer.is_some() && (has_ended || flow.fault.is_some() || flow.is_writable(node)) {
            writer.take().into_iter().for_each(Waker::wake);
        }
        let wants_room = owes || writer.is_some() && flow.wants_room;
        *is_listed = !has_ended && (reader.is_some() || writer.is_some() || owes);
        match *is_listed {
            false => StillWaits::Not,
            true if wants_room => StillWaits::ForRoom,
            true => StillWaits::ForNews,
        }
    }

    fn give_up(&self) {
        let mut state = self.state();
        let ByteStreamState { reader, writer, .. } = &mut *state;
        reader.take().into_iter().chain(writer.take()).for_each(Waker::wake);
    }
}

/// One side of a connection: bytes both ways, in order. `Send` and `Sync`: one thread may read
/// while another writes.
///
/// Bytes that a write took are on their way, and arrive even if this process ends; there is nothing
/// to flush. Dropping a stream closes it: the peer reads the written bytes, and then the end. If a
/// peer dies, reads return its bytes and then [`ConnectionReset`](io::ErrorKind::ConnectionReset).
///
/// For tokio's tasks see `hamlyn::io`, of the feature `tokio`.
///
/// ```
/// # let dir = std::env::temp_dir().join(format!("hamlyn-doc-bytes-{}", std::process::id()));
/// # let config = hamlyn::Config::from_env()?.dir(&dir);
/// use hamlyn::Access;
/// use hamlyn::protocol::{ByteConfig, ByteListener, ByteStream, Manager};
/// use std::io::{Read, Write};
/// use std::time::Duration;
///
/// let limit = Some(Duration::from_secs(10));
/// # let server_config = config.clone();
/// let manager = Manager::with_config(server_config)?;
/// let listener = ByteListener::new(&manager, ByteConfig::default())?;
/// listener.serve("upper", Access::SameUser)?;
/// std::thread::scope(|scope| -> Result<(), Box<dyn std::error::Error>> {
///     scope.spawn(move || {
///         let mut stream = listener.accept(limit).unwrap();
///         let mut text = String::new();
///         stream.read_to_string(&mut text).unwrap();
///         stream.write_all(text.to_uppercase().as_bytes()).unwrap();
///     });
///     // Usually another process.
///     let mut stream = ByteStream::connect(&Manager::with_config(config)?, "upper", limit)?;
///     stream.write_all(b"both ways")?;
///     stream.shut(limit)?;
///     let mut answer = String::new();
///     stream.read_to_string(&mut answer)?;
///     assert_eq!(answer, "BOTH WAYS");
///     Ok(())
/// })?;
/// # std::fs::remove_dir_all(&dir).ok();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct ByteStream {
    manager: Manager,
    connection: Arc<Connection>,
    core: Arc<StreamCore>,
    /// Nanoseconds; all ones: without limit.
    timeout_ns: AtomicU64,
}

impl ByteStream {
    grown!("a stream", "a listener");
    grown!(
        grow_with, connect_with => with_config,
        "a stream",
        "a listener",
        config: ByteConfig,
        "With these settings; an error, if they cannot be."
    );

    fn to(
        manager: &Manager,
        target: Target<'_>,
        timeout: Option<Duration>,
    ) -> Result<Self, GrowError> {
        Self::with_config(manager, target, ByteConfig::default(), timeout)
    }

    fn with_config(
        manager: &Manager,
        target: Target<'_>,
        config: ByteConfig,
        timeout: Option<Duration>,
    ) -> Result<Self, GrowError> {
        config.check()?;
        let (flow, hello) =
            ByteFlow::new(&mut manager.lock(), &config).map_err(GrowError::SetUp)?;
        let core = StreamCore::new(flow, None);
        let read = |connection: &Arc<Connection>, answer: &[u8]| {
            let node = manager.lock();
            core.state().flow.lent(answer, connection.peer()).ok()?;
            core.join(&node, connection);
            Some(())
        };
        let expected = "no window that could be written";
        match manager.grow(target, Kind::BYTES, &hello, timeout, expected, read) {
            Ok((connection, ())) => Ok(Self::new(manager, connection, Arc::new(core))),
            Err(e) => {
                core.state().flow.remove(&mut manager.lock());
                Err(e)
            }
        }
    }

    pub(super) fn new(
        manager: &Manager,
        connection: Arc<Connection>,
        core: Arc<StreamCore>,
    ) -> Self {
        let timeout_ns = AtomicU64::new(u64::MAX);
        Self { manager: manager.clone(), connection, core, timeout_ns }
    }

    /// The identity of the other end, from the kernel.
    pub fn peer(&self) -> &Peer {
        self.connection.peer()
    }

    /// Limits the wait of each read and write of [`io::Read`] and [`io::Write`]; `None`, the
    /// default: no limit. More than 500 years count as no limit.
    pub fn set_timeout(&self, timeout: Option<Duration>) {
        let ns = timeout.and_then(|timeout| u64::try_from(timeout.as_nanos()).ok());
        self.timeout_ns.store(ns.unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    fn timeout(&self) -> Option<Duration> {
        match self.timeout_ns.load(Ordering::Relaxed) {
            u64::MAX => None,
            ns => Some(Duration::from_nanos(ns)),
        }
    }

    /// Reads the bytes that have come, at most as many as fit into `to`, waiting at most `timeout`
    /// for the first byte. 0: the peer has shut its side, and all its bytes were read; or `to` is
    /// empty.
    ///
    /// ```
    /// # let dir = std::env::temp_dir().join(format!("hamlyn-doc-within-{}", std::process::id()));
    /// use hamlyn::protocol::{ByteConfig, ByteListener, ByteStream, ByteStreamError, Manager};
    /// use std::io::{IoSlice, Read};
    /// use std::time::Duration;
    ///
    /// # let limit = Some(Duration::from_secs(10));
    /// # let config = hamlyn::Config::from_env()?.dir(&dir);
    /// # let manager = Manager::with_config(config.clone())?;
    /// # manager.start_progress()?;
    /// let small = ByteConfig { window_bytes: 4096, ..ByteConfig::default() };
    /// let listener = ByteListener::new(&manager, small.clone())?;
    /// let other = Manager::with_config(config)?;
    /// let stream = ByteStream::grow_with(&other, &listener.seed()?, small, limit)?;
    /// let mut accepted = listener.accept(limit)?;
    /// let _usual = ByteStream::grow(&other, &listener.seed()?, limit)?;
    /// let parts = [IoSlice::new(b"head"), IoSlice::new(b"body")];
    /// assert_eq!(accepted.write_within(&parts, limit)?, 8);
    /// let mut came = [0; 8];
    /// assert_eq!(stream.read_within(&mut came, limit)?, 8);
    /// let late = stream.read_within(&mut came, Some(Duration::ZERO));
    /// assert!(matches!(late, Err(ByteStreamError::TimedOut)));
    /// // The calls of `io::Read` and `io::Write` have no argument for it.
    /// accepted.set_timeout(Some(Duration::from_millis(1)));
    /// assert!(accepted.read(&mut came).is_err());
    /// assert_eq!(accepted.peer().pid, Some(std::process::id()));
    /// # std::fs::remove_dir_all(&dir).ok();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn read_within(
        &self,
        to: &mut [u8],
        timeout: Option<Duration>,
    ) -> Result<usize, ByteStreamError> {
        if to.is_empty() {
            return Ok(0);
        }
        let (mut at, max) = (0, to.len());
        let mut sink = |bytes: &[u8]| {
            to[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        };
        self.manager.shared.wait_until(timeout, |node, protocols| {
            self.core.look_to_read(node, protocols, max, &mut sink)
        })?
    }

    /// Sends as much of `slices` as the peer has room for, waiting at most `timeout` for the first
    /// byte of room. Small pieces leave together. Returns how many bytes were taken: they are on
    /// their way.
    pub fn write_within(
        &self,
        slices: &[IoSlice<'_>],
        timeout: Option<Duration>,
    ) -> Result<usize, ByteStreamError> {
        let written = self.manager.shared.wait_until(timeout, |node, protocols| {
            self.core.look_to_send(node, protocols, |flow, node| flow.write(node, slices))
        });
        // A caller that does not wait in a call tries again; and a forked child has no lock to
        // take.
        let is_over = written.is_err() && timeout != Some(Duration::ZERO);
        if is_over && !self.manager.is_forked() {
            let mut node = self.manager.lock();
            self.core.state().flow.waits_no_more(&mut node);
        }
        written?
    }

    /// Ends this side's bytes, waiting at most `timeout` for room to say so: the peer reads the
    /// written bytes, and then the end. Reading goes on. On [`ByteStreamError::TimedOut`] the end
    /// was not sent, and you may call `shut` again.
    pub fn shut(&self, timeout: Option<Duration>) -> Result<(), ByteStreamError> {
        self.manager.shared.wait_until(timeout, |node, protocols| {
            self.core.look_to_send(node, protocols, |flow, node| flow.shut(node))
        })?
    }

    connected!("bytes", |this| {
        let state = this.core.state();
        let at_once = state.flow.packet_bytes();
        format!(
            "byte stream: packets of up to {at_once} bytes into the reader's window, through the \
             link's ring"
        )
    });
}

// For tasks.
#[cfg(feature = "tokio")]
impl ByteStream {
    /// [`read_within`](Self::read_within) of a task: bytes go to `sink`.
    pub(crate) fn read_or_wait(
        &self,
        waker: &Waker,
        max: usize,
        sink: &mut impl FnMut(&[u8]),
    ) -> Result<Turned<usize>, ByteStreamError> {
        self.turn(Side::Reader, waker, |node, protocols| {
            self.core.look_to_read(node, protocols, max, sink)
        })
    }

    /// [`write_within`](Self::write_within) of a task.
    pub(crate) fn write_or_wait(
        &self,
        waker: &Waker,
        slices: &[IoSlice<'_>],
    ) -> Result<Turned<usize>, ByteStreamError> {
        self.turn(Side::Writer, waker, |node, protocols| {
            self.core.look_to_send(node, protocols, |flow, node| flow.write(node, slices))
        })
    }

    /// [`shut`](Self::shut) of a task.
    pub(crate) fn shut_or_wait(&self, waker: &Waker) -> Result<Turned<()>, ByteStreamError> {
        self.turn(Side::Writer, waker, |node, protocols| {
            self.core.look_to_send(node, protocols, |flow, node| flow.shut(node))
        })
    }

    /// [`shut`](Self::shut) of a writer that does not wait: if there is no room now, a polling
    /// thread sends the end as soon as there is. Returns whether that is so.
    pub(crate) fn shut_soon(&self) -> bool {
        if self.manager.is_forked() || self.core.ended().is_some() {
            return false;
        }
        let mut guard = self.manager.shared.lock();
        let (node, protocols) = guard.parts();
        let mut state = self.core.state();
        state.owes_end = true;
        state.say_end(node);
        let owes_end = state.owes_end;
        if owes_end {
            self.core.list(state, protocols);
        }
        owes_end
    }

    /// Looks, takes a turn if nothing is there, looks again, and then leaves a waker, all under one
    /// lock: any thread that takes a later arrival sees the waker.
    #[inline]
    fn turn<R>(
        &self,
        side: Side,
        waker: &Waker,
        mut look: impl FnMut(&mut Node, &mut Protocols) -> Look<Result<R, ByteStreamError>>,
    ) -> Result<Turned<R>, ByteStreamError> {
        if self.manager.is_forked() {
            return Err(crate::node::Forked.into());
        }
        let mut guard = self.manager.shared.lock();
        let (node, protocols) = guard.parts();
        let mut found = look(node, protocols);
        let polls = !matches!(found, Look::Found(_));
        if polls {
            node.poll()?;
            protocols.after_poll(node);
            found = look(node, protocols);
        }
        let mut state = self.core.state();
        let mut arm = polls || state.flow.untold;
        let ready = match found {
            Look::Found(found) => Some(found?),
            found => {
                if let Look::Room(link) = found {
                    node.await_room(link);
                    arm = true;
                }
                let ByteStreamState { reader, writer, .. } = &mut *state;
                let place = if side == Side::Reader { reader } else { writer };
                match place {
                    Some(known) => known.clone_from(waker),
                    None => *place = Some(waker.clone()),
                }
                self.core.list(state, protocols);
                None
            }
        };
        Ok(Turned { ready, arm })
    }
}

impl io::Read for &ByteStream {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        Ok(self.read_within(to, self.timeout())?)
    }
}

impl io::Write for &ByteStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(self.write_within(&[IoSlice::new(bytes)], self.timeout())?)
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        Ok(self.write_within(slices, self.timeout())?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl io::Read for ByteStream {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        io::Read::read(&mut &*self, to)
    }
}

impl io::Write for ByteStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        io::Write::write(&mut &*self, bytes)
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        io::Write::write_vectored(&mut &*self, slices)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl EndPoint for ByteStream {
    /// Whether a read would return at once: with bytes, with their end or with an error.
    fn is_ready_in(&self, node: &Node) -> bool {
        self.connection.ended().is_some() || self.core.state().flow.is_ready(node)
    }

    fn manager(&self) -> &Manager {
        &self.manager
    }
}

impl core::fmt::Debug for ByteStream {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("ByteStream").field("peer", self.peer()).finish_non_exhaustive()
    }
}

impl Drop for ByteStream {
    fn drop(&mut self) {
        self.manager.leave(&self.connection, |node| self.core.state().flow.remove(node));
        self.core.give_place_back();
    }
}
