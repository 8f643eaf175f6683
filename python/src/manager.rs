//! `Manager`: a node that Python's threads and event loops share.
//!
//! ```text
//!   Manager, Area, Queue, Slot, Link ..  ---> Inner ---> protocol::Manager
//!   end points (end.rs)                  ---> Inner
//!   memoryview, numpy array  ---> Area        `- how many buffers are out: while there are any,
//!                                                the memory stays, whatever else is closed
//! ```
//! Two locks: Python's, and the node's. Never: the node's lock is held while Python's is asked for
//! (but by admission callbacks, see `admission.rs`); Python's lock is held while the node's may be
//! kept for long (`slow`).

use crate::admission;
use crate::bytes::with_bytes;
use crate::errors::{Kind, OrRaise, ToPy, error};
use crate::parts::{Area, Link, Notified, Queue, Slot, Ticket, event_to_py};
use crate::wait::{LOOKS, Limit, duration, on_thread, sliced};
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use core::time::Duration;
use hamlyn::node::SendError;
use hamlyn::os::memory::ForkGuard;
use hamlyn::os::sys::{Bell, Poller, wait_for};
use hamlyn::protocol;
use hamlyn::{Accept, Access, Config, LinkId, Mode, Node, NodeId, QueueId, SlotConfig};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict};
use std::cell::RefCell;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Wake, Waker};

/// Messages up to this size are sent with the interpreter's lock held, since copying them takes
/// less than giving the lock up.
const HELD_BYTES_MAX: usize = 16 << 10;

/// How long a call may keep the node while it waits.
const HOLDING_SLICE: Duration = Duration::from_millis(1);

/// What all objects of one manager share.
pub struct Inner {
    /// `None` once it is closed and no buffer is out.
    node: Mutex<Option<protocol::Manager>>,
    id: NodeId,
    fork_guard: ForkGuard,
    is_closed: AtomicBool,
    /// Calls in progress that may keep the node's lock for long, and admission callbacks.
    pub slow: Arc<AtomicUsize>,
    /// Buffers of message areas that Python has.
    buffers: AtomicUsize,
    /// Makes `poller` readable when another call has taken from a link what an event loop waits
    /// for.
    bell: Arc<Ringer>,
    /// The node's descriptor.
    node_fd: OwnedFd,
    /// The node's descriptor and the bell.
    poller: Poller,
    served: Mutex<Vec<String>>,
    /// The next event, once somebody has looked whether there is one.
    event: Mutex<Option<hamlyn::Event>>,
    /// End points, to be closed with the manager.
    ends: Mutex<Vec<Weak<dyn Close>>>,
}

/// A call that may keep the node's lock for long.
pub struct Slow<'a>(&'a Inner);

impl Drop for Slow<'_> {
    fn drop(&mut self) {
        self.0.slow.fetch_sub(1, Ordering::Relaxed);
    }
}

/// An end point that is closed with its manager.
pub trait Close: Send + Sync {
    /// Closes it; called without the interpreter's lock.
    fn close(&self);
}

/// Rings a bell where a task of Rust would be woken.
struct Ringer(Bell);

impl Wake for Ringer {
    fn wake(self: Arc<Self>) {
        self.0.ring();
    }
}

/// Packets that have arrived so far.
fn packets_received(node: &protocol::Manager) -> Option<u64> {
    let counters = node.lock().counters();
    counters.iter().find(|(name, _)| *name == "packets_received").map(|(_, count)| *count)
}

/// The bell of this thread's waits. One for each thread, since a manager remembers wakers until
/// something moves; a forked child has one of its own.
fn bell_of_thread() -> PyResult<Arc<Ringer>> {
    thread_local! {
        static BELL: RefCell<Option<(u32, Arc<Ringer>)>> = const { RefCell::new(None) };
    }
    let process = std::process::id();
    BELL.with_borrow_mut(|kept| match kept {
        Some((of, bell)) if *of == process => Ok(bell.clone()),
        _ => {
            let bell = Arc::new(Ringer(Bell::new().or_raise()?));
            *kept = Some((process, bell.clone()));
            Ok(bell)
        }
    })
}

pub fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Inner {
    /// The node. Raises `Forked` in a forked child, before any lock is touched: one of them may
    /// have been held by a thread that the child does not have; and `Closed`.
    #[inline]
    pub fn node(&self) -> PyResult<protocol::Manager> {
        self.check_open()?;
        locked(&self.node).clone().ok_or_else(closed)
    }

    /// Raises in a forked child.
    #[inline]
    pub fn check_fork(&self) -> PyResult<()> {
        if self.fork_guard.is_parent() { Ok(()) } else { Err(hamlyn::node::Forked.to_py()) }
    }

    /// Raises if the manager is closed or belongs to a parent process, and in a callback.
    #[inline]
    pub fn check_open(&self) -> PyResult<()> {
        self.check_fork()?;
        admission::check()?;
        if self.is_closed.load(Ordering::Acquire) { Err(closed()) } else { Ok(()) }
    }

    /// To be held, from before the interpreter's lock is given up, by a call that may keep the
    /// node's lock for long.
    pub fn slow(&self) -> Slow<'_> {
        self.slow.fetch_add(1, Ordering::Relaxed);
        Slow(self)
    }

    /// Calls `use_it` with the node's lock held, and the interpreter's unless the node's may be
    /// taken for long: `slow` changes under the interpreter's lock only, so what it says holds
    /// until that is given up. What polls is not for here, but for the manager: others wait.
    #[inline]
    pub fn with<R: Send>(
        &self,
        py: Python<'_>,
        use_it: impl FnOnce(&mut Node) -> R + Send,
    ) -> PyResult<R> {
        let node = self.node()?;
        let call = || use_it(&mut node.lock());
        if self.is_slow() { Ok(py.detach(call)) } else { Ok(call()) }
    }

    /// Whether the node's lock may be taken for long.
    #[inline]
    pub fn is_slow(&self) -> bool {
        self.slow.load(Ordering::Relaxed) > 0
    }

    /// Wakes the event loops.
    pub fn ring(&self) {
        self.bell.0.ring();
    }

    /// Returns when nobody has the node's lock.
    pub fn wait_for_lock(&self) {
        if self.check_fork().is_ok() {
            let node = locked(&self.node).clone();
            node.iter().for_each(|node| drop(node.lock()));
        }
    }

    /// Says that an end point is to be closed with the manager.
    pub fn register(&self, end: Weak<dyn Close>) {
        let mut ends = locked(&self.ends);
        if ends.len() == ends.capacity() {
            ends.retain(|end| end.strong_count() > 0);
        }
        ends.push(end);
    }

    /// A buffer goes out: the node stays until it has come back. Raises if it is gone already.
    pub fn lend(&self) -> PyResult<()> {
        // Under the lock, as the last look in `drop_if_done` is.
        let node = locked(&self.node);
        if node.is_none() {
            return Err(closed());
        }
        self.buffers.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// A buffer has come back.
    pub fn take_back(&self) {
        // In a forked child the memory is a copy, and everything else is the parent's.
        if self.check_fork().is_ok() && self.buffers.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.drop_if_done();
        }
    }

    /// Lets the node go when it is closed and no buffer of its memory is out.
    fn drop_if_done(&self) {
        let mut node = locked(&self.node);
        if self.is_closed.load(Ordering::Acquire) && self.buffers.load(Ordering::Acquire) == 0 {
            let node_alone = node.take();
            drop(node);
            admission::outside(self, move || drop(node_alone));
        }
    }

    /// Waits for a notification.
    pub fn receive(
        self: &Arc<Self>,
        py: Python<'_>,
        queue: QueueId,
        timeout: Option<f64>,
    ) -> PyResult<Notified> {
        let limit = Limit::new(timeout)?;
        for _ in 0..if timeout == Some(0.0) { 1 } else { LOOKS } {
            if let Some(found) = self.try_receive(py, queue)? {
                return Ok(found);
            }
        }
        let node = self.node()?;
        let attempt = |slice| match node.recv(queue, Some(slice)) {
            Ok(notification) => Ok(Some(notification)),
            Err(hamlyn::RecvError::TimedOut) => Ok(None),
            Err(e) => Err(e),
        };
        match sliced(py, self, limit, attempt)?.or_raise()? {
            Some(notification) => Ok(Notified::new(self, notification)),
            None => Err(hamlyn::RecvError::TimedOut.to_py()),
        }
    }

    /// The next notification that is there, or comes in one turn.
    #[inline]
    pub fn try_receive(
        self: &Arc<Self>,
        py: Python<'_>,
        queue: QueueId,
    ) -> PyResult<Option<Notified>> {
        let node = self.node()?;
        let look = || {
            if let Some(notification) = node.lock().pop(queue)? {
                return Ok(Some(notification));
            }
            node.poll()?;
            Ok::<_, hamlyn::RecvError>(node.lock().pop(queue)?)
        };
        let found = if self.is_slow() { py.detach(look) } else { look() };
        Ok(found.or_raise()?.map(|notification| Notified::new(self, notification)))
    }

    /// Whether an event waits.
    fn look_for_event(&self, node: &protocol::Manager) -> bool {
        let mut kept = locked(&self.event);
        if kept.is_none() {
            *kept = node.next_event();
        }
        kept.is_some()
    }

    /// Waits until something has arrived, at most until `limit`; an event that waits to be read
    /// counts if `takes_events`.
    fn wait(&self, py: Python<'_>, limit: Limit, takes_events: bool) -> PyResult<bool> {
        let node = self.node()?;
        // Not the bell of the event loops: it is theirs to silence.
        let bell = bell_of_thread()?;
        let waker = Waker::from(bell.clone());
        let has_event = || takes_events && self.look_for_event(&node);
        let attempt = |slice: Duration| {
            bell.0.silence();
            if node.poll()? > 0 || has_event() {
                return Ok(Some(()));
            }
            let deadline = hamlyn::os::sys::monotonic_ns() + slice.as_nanos() as u64;
            // It takes a turn of its own, whose packets are seen by nobody else.
            let before = packets_received(&node);
            if !node.prepare_to_wait(Some(&waker))?
                || packets_received(&node) != before
                || has_event()
            {
                return Ok(Some(()));
            }
            let fds = [(self.node_fd.as_fd(), false), (bell.0.as_fd(), false)];
            let woken = wait_for(&fds, deadline);
            match woken.map_err(|e| hamlyn::RecvError::Wait(Arc::new(e)))? {
                true => Ok(Some(())),
                false => Ok::<_, hamlyn::RecvError>(None),
            }
        };
        Ok(sliced(py, self, limit, attempt)?.or_raise()?.is_some())
    }

    /// Sends one message, over `link` if that is given.
    pub fn send(
        &self,
        py: Python<'_>,
        link: Option<LinkId>,
        ticket: &hamlyn::Ticket,
        data: &[u8],
        metadata: &[u8],
        timeout: Option<f64>,
    ) -> PyResult<()> {
        if data.len() <= HELD_BYTES_MAX && link.is_none() {
            match self.with(py, |node| node.try_send(ticket, data, metadata))? {
                Err(SendError::Full | SendError::TooLongToTry { .. }) => {}
                sent => return sent.map(|_| ()).or_raise(),
            }
        }
        let limit = Limit::new(timeout)?;
        let node = self.node()?;
        let mut unfinished = None;
        let _slow = self.slow();
        let attempt = |slice: Duration| {
            // These keep the node while they wait.
            let short = Some(slice.min(HOLDING_SLICE));
            let sent = match (unfinished.take(), link) {
                (Some(rest), _) => node.lock().send_rest(rest, data, short),
                (None, Some(link)) => node.lock().send_over(link, ticket, data, metadata, short),
                (None, None) => node.send(ticket, data, metadata, Some(slice)),
            };
            // They poll, too: whoever waits for what they have taken is told.
            let _ = node.poll();
            match sent {
                Ok(_) => Ok(Some(())),
                Err(SendError::TimedOut { unfinished: rest }) => {
                    unfinished = rest.map(|rest| *rest);
                    Ok(None)
                }
                Err(e) => Err(e),
            }
        };
        match sliced(py, self, limit, attempt)?.or_raise()? {
            Some(()) => Ok(()),
            None => {
                let left = unfinished.as_ref().map_or(0, |rest| rest.bytes_sent());
                let text = format!(
                    "the link stayed full for the whole time limit; {left} of {} bytes have left{}",
                    data.len(),
                    if left == 0 { "" } else { ", and the message will never be complete" }
                );
                Err(error(Kind::TimedOut, text))
            }
        }
    }

    /// Waits until nothing is queued; says whether that is so.
    fn flush(&self, py: Python<'_>, limit: Limit) -> PyResult<bool> {
        let (node, _slow) = (self.node()?, self.slow());
        let attempt = |slice: Duration| {
            let left = node.lock().flush(Some(slice.min(HOLDING_SLICE)));
            let _ = node.poll();
            left.map(|left| left.then_some(()))
        };
        Ok(sliced(py, self, limit, attempt)?.or_raise()?.is_some())
    }

    /// Ends every link and name. Messages that wait leave first, for at most `timeout`.
    fn close(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        if !self.fork_guard.is_parent() || self.is_closed.load(Ordering::Acquire) {
            return Ok(());
        }
        admission::check()?;
        let limit = Limit::new(timeout)?;
        let node = self.node()?;
        let flushed = self.flush(py, limit);
        // Also after Ctrl-C: what could not leave is then told to the other ends as a hang-up.
        if self.is_closed.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let names = core::mem::take(&mut *locked(&self.served));
        let ends = core::mem::take(&mut *locked(&self.ends));
        py.detach(move || {
            for end in ends.iter().filter_map(Weak::upgrade) {
                end.close();
            }
            let mut guard = node.lock();
            for name in names {
                guard.stop_serving(&name);
            }
            let links: Vec<LinkId> = guard.links().collect();
            for link in links {
                let _ = guard.disconnect(link);
            }
            drop(guard);
            drop(node);
            self.drop_if_done();
        });
        self.ring();
        if flushed? {
            return Ok(());
        }
        let text = "the manager is closed, and messages were left that could not leave in time";
        Err(error(Kind::TimedOut, text))
    }
}

/// A link that is ended where nobody waits for it any more.
struct Linked(Option<(protocol::Manager, LinkId)>);

impl Linked {
    fn keep(mut self) -> LinkId {
        let (_, link) = self.0.take().expect("present until it is kept");
        link
    }
}

impl Drop for Linked {
    fn drop(&mut self) {
        if let Some((node, link)) = self.0.take() {
            let _ = node.lock().disconnect(link);
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let node = self.node.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        match self.fork_guard.is_parent() {
            true => admission::outside(self, move || drop(node)),
            // The parent's node; its locks may be held by threads that are not in this process.
            false => core::mem::forget(node),
        }
    }
}

#[cold]
fn closed() -> PyErr {
    error(Kind::Closed, "the manager is closed")
}

fn setting_text(value: &Bound<'_, PyAny>) -> PyResult<String> {
    if let Ok(flag) = value.cast::<PyBool>() {
        return Ok(if flag.is_true() { "yes" } else { "no" }.into());
    }
    if let Ok(number) = value.extract::<i128>() {
        return Ok(number.to_string());
    }
    Ok(value.extract::<std::path::PathBuf>()?.to_string_lossy().into_owned())
}

fn config_of(settings: Option<&Bound<'_, PyDict>>) -> PyResult<Config> {
    let rows = Config::default().settings();
    let mut given = std::collections::HashMap::new();
    for (name, value) in settings.into_iter().flatten() {
        let name: String = name.extract()?;
        let row = rows.iter().find(|row| row.name == name).ok_or_else(|| {
            let names: Vec<_> = rows.iter().map(|row| row.name).collect();
            let text = format!("there is no setting {name:?}; there are: {}", names.join(", "));
            PyTypeError::new_err(text)
        })?;
        if !value.is_none() {
            given.insert(row.variable, setting_text(&value)?);
        }
    }
    Config::from_lookup(|variable| {
        given
            .remove(variable)
            .or_else(|| Some(std::env::var_os(variable)?.to_string_lossy().into_owned()))
    })
    .or_raise()
}

/// Who may connect: `"same_user"`, `"anyone"` or a group's number.
pub fn access_of(access: &Bound<'_, PyAny>) -> PyResult<Access> {
    if let Ok(group) = access.extract::<u32>() {
        return Ok(Access::Group(group));
    }
    match access.extract::<String>().as_deref() {
        Ok("same_user") => Ok(Access::SameUser),
        Ok("anyone") => Ok(Access::Anyone),
        _ => Err(PyValueError::new_err(format!(
            "access is {}; it is 'same_user', 'anyone' or the number of a group",
            access.repr()?
        ))),
    }
}

/// What one process has of Hamlyn: its links, names, message areas and waiting.
///
/// Any number of threads may use it. Settings are those of docs/settings.md, by name; what is not
/// given comes from the variables `HAMLYN_*`. A context manager: leaving it closes it.
#[pyclass(module = "hamlyn", frozen, weakref)]
pub struct Manager {
    pub inner: Arc<Inner>,
}

#[pymethods]
impl Manager {
    #[new]
    #[pyo3(signature = (**settings))]
    fn new(py: Python<'_>, settings: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        let config = config_of(settings)?;
        let node = py.detach(|| protocol::Manager::with_config(config)).or_raise()?;
        let id = node.id();
        let (bell, poller) = (Bell::new().or_raise()?, Poller::new().or_raise()?);
        let node_fd = node.try_clone_fd().or_raise()?;
        poller.add(&node_fd, 0).or_raise()?;
        poller.add(&bell, 1).or_raise()?;
        let inner = Inner {
            id,
            fork_guard: ForkGuard::new().or_raise()?,
            is_closed: AtomicBool::new(false),
            slow: Arc::default(),
            buffers: AtomicUsize::new(0),
            bell: Arc::new(Ringer(bell)),
            node_fd,
            poller,
            served: Mutex::default(),
            event: Mutex::new(None),
            ends: Mutex::default(),
            node: Mutex::new(Some(node)),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The name that tickets for this manager carry.
    #[getter]
    fn id(&self) -> u64 {
        self.inner.id.0
    }

    /// Whether it is closed.
    #[getter]
    fn closed(&self) -> bool {
        self.inner.is_closed.load(Ordering::Acquire)
    }

    /// A message area of `nbytes` zero bytes, beginning on a page. It stays until it is removed or
    /// the manager is closed.
    fn area(&self, py: Python<'_>, nbytes: usize) -> PyResult<Area> {
        Area::new(py, &self.inner, nbytes)
    }

    /// A notification queue of `entries` entries.
    fn queue(&self, py: Python<'_>, entries: u32) -> PyResult<Queue> {
        let id = self.inner.with(py, |node| node.notification_queue(entries))?.or_raise()?;
        Ok(Queue { inner: self.inner.clone(), id })
    }

    /// A slot over bytes `start` to `stop` of `area`, which notifies through `queue`.
    ///
    /// `entries`: messages that may be on their way at once. `mode`: `"normal"`, `"paranoid"` or
    /// `"one_shot"` (paranoid, and what has arrived can no longer change). `credit`: entries of the
    /// queue that it reserves, one for each metadata entry unless given.
    #[pyo3(signature = (area, queue, *, start=0, stop=None, entries=1, mode="normal", credit=None))]
    #[allow(clippy::too_many_arguments)]
    fn slot(
        &self,
        py: Python<'_>,
        area: &Area,
        queue: &Queue,
        start: u64,
        stop: Option<u64>,
        entries: u32,
        mode: &str,
        credit: Option<u32>,
    ) -> PyResult<Slot> {
        self.must_own(&area.inner, "area")?;
        self.must_own(&queue.inner, "queue")?;
        let mode = match mode {
            "normal" => Mode::Normal,
            "paranoid" => Mode::Paranoid,
            "one_shot" => Mode::ParanoidOneShot,
            _ => {
                let text =
                    format!("the mode is {mode:?}; it is 'normal', 'paranoid' or 'one_shot'");
                return Err(PyValueError::new_err(text));
            }
        };
        let range = start..stop.unwrap_or(area.length as u64);
        let mut config = SlotConfig::new(area.id, queue.id).range(range);
        config = config.metadata(entries).mode(mode);
        if let Some(credit) = credit {
            config = config.credit(credit);
        }
        let id = self.inner.with(py, |node| node.slot(config))?.or_raise()?;
        Ok(Slot { inner: self.inner.clone(), id })
    }

    /// Offers a service. Whoever connects is accepted with `greeting` (often a ticket's bytes), or,
    /// where that is `None`, becomes a `LinkRequest` among the events.
    ///
    /// `access`: `"same_user"`, `"anyone"` or the number of a group.
    #[pyo3(signature = (name, greeting=None, *, access=None))]
    fn serve(
        &self,
        py: Python<'_>,
        name: &str,
        greeting: Option<&Bound<'_, PyAny>>,
        access: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let access = access.map_or(Ok(Access::SameUser), access_of)?;
        let accept = match greeting {
            None => Accept::Ask,
            Some(greeting) => with_bytes(greeting, |b| Ok(Accept::Automatic(b.to_vec())))?,
        };
        let _slow = self.inner.slow();
        self.inner.with(py, |node| node.serve(name, access, accept))?.or_raise()?;
        locked(&self.inner.served).push(name.into());
        Ok(())
    }

    /// Who may grow senders from this manager's seeds: `"same_user"` (unless set), `"anyone"` or the
    /// number of a group. To be set before the first seed is made.
    fn set_seed_access(&self, py: Python<'_>, access: &Bound<'_, PyAny>) -> PyResult<()> {
        let (access, node) = (access_of(access)?, self.inner.node()?);
        py.detach(|| node.set_seed_access(access)).or_raise()
    }

    /// No longer offers a service; links made through it stay. `False`: it was not offered.
    fn stop_serving(&self, py: Python<'_>, name: &str) -> PyResult<bool> {
        locked(&self.inner.served).retain(|served| served != name);
        self.inner.with(py, |node| node.stop_serving(name))
    }

    /// Connects to the service `[user@]name`, waiting at most `timeout` seconds for everything: for
    /// somebody to serve the name, too, unless the setting `wait_for_names` is off. `greeting`, up to 4 KiB, reaches the server before it decides.
    #[pyo3(signature = (name, greeting=None, timeout=10.0))]
    fn connect(
        &self,
        py: Python<'_>,
        name: &str,
        greeting: Option<&Bound<'_, PyAny>>,
        timeout: Option<f64>,
    ) -> PyResult<Link> {
        let timeout = duration(timeout)?;
        let greeting =
            greeting.map_or(Ok(Vec::new()), |greeting| with_bytes(greeting, |b| Ok(b.to_vec())))?;
        let (node, name) = (self.inner.node()?, name.to_owned());
        let connect = move || {
            let link = node.connect(&name, &greeting, timeout)?;
            Ok::<_, protocol::GrowError>(Linked(Some((node, link))))
        };
        let id = on_thread(py, &self.inner, || false, connect)?.or_raise()?.keep();
        Ok(Link { inner: self.inner.clone(), id })
    }

    /// The links that there are.
    fn links(&self, py: Python<'_>) -> PyResult<Vec<Link>> {
        let ids = self.inner.with(py, |node| node.links().collect::<Vec<_>>())?;
        Ok(ids.into_iter().map(|id| Link { inner: self.inner.clone(), id }).collect())
    }

    /// Sends one message: `data`, any object with the buffer protocol, lands where the ticket says.
    ///
    /// `metadata`, up to 60 bytes, goes to the message's metadata entry. Waits for room at most
    /// `timeout` seconds (`None`: as long as it takes), and accepts whatever arrives meanwhile.
    /// When it returns, `data` may be changed again. `data` must not be changed by another thread
    /// before: the receiver would get a mixture.
    #[pyo3(signature = (ticket, data, metadata=None, timeout=None))]
    fn send(
        &self,
        py: Python<'_>,
        ticket: &Ticket,
        data: &Bound<'_, PyAny>,
        metadata: Option<&Bound<'_, PyAny>>,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        let ticket = &ticket.ticket;
        with_bytes(data, |data| match metadata {
            None => self.inner.send(py, None, ticket, data, &[], timeout),
            Some(metadata) => with_bytes(metadata, |metadata| {
                self.inner.send(py, None, ticket, data, metadata, timeout)
            }),
        })
    }

    /// Sends one message if it can be taken now; `False`: not now.
    #[pyo3(signature = (ticket, data, metadata=None))]
    fn try_send(
        &self,
        py: Python<'_>,
        ticket: &Ticket,
        data: &Bound<'_, PyAny>,
        metadata: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<bool> {
        let ticket = &ticket.ticket;
        let send = |data: &[u8], metadata: &[u8]| match self
            .inner
            .with(py, |node| node.try_send(ticket, data, metadata))?
        {
            Ok(_) => Ok(true),
            Err(SendError::Full) => Ok(false),
            Err(e) => Err(e.to_py()),
        };
        with_bytes(data, |data| match metadata {
            None => send(data, &[]),
            Some(metadata) => with_bytes(metadata, |metadata| send(data, metadata)),
        })
    }

    /// Sends one packet in fast mode, with a word of 32 bits beside it.
    #[pyo3(signature = (ticket, data, word=0, timeout=None))]
    fn send_fast(
        &self,
        py: Python<'_>,
        ticket: &Ticket,
        data: &Bound<'_, PyAny>,
        word: u32,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        let ticket = &ticket.ticket;
        with_bytes(data, |data| {
            match self.inner.with(py, |node| node.try_send_fast(ticket, data, word))? {
                Err(SendError::Full) => {}
                sent => return sent.map(|_| ()).or_raise(),
            }
            let (limit, node) = (Limit::new(timeout)?, self.inner.node()?);
            let _slow = self.inner.slow();
            let attempt = |slice: Duration| {
                let short = Some(slice.min(HOLDING_SLICE));
                let sent = node.lock().send_fast(ticket, data, word, short);
                let _ = node.poll();
                match sent {
                    Ok(_) => Ok(Some(())),
                    Err(SendError::TimedOut { .. }) => Ok(None),
                    Err(e) => Err(e),
                }
            };
            let sent = sliced(py, &self.inner, limit, attempt)?.or_raise()?;
            sent.ok_or_else(|| SendError::TimedOut { unfinished: None }.to_py())
        })
    }

    /// One turn: takes what has arrived from the links and lets queued packets leave. Returns how
    /// many packets were taken, refused ones included.
    fn poll(&self, py: Python<'_>) -> PyResult<usize> {
        let node = self.inner.node()?;
        py.detach(|| node.poll()).or_raise()
    }

    /// Waits until a packet has arrived or an event is there, at most `timeout` seconds; says
    /// whether that is so. It returns at once as long as `next_event` has an event to give: whoever
    /// waits in a loop takes the events in it, too.
    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        self.inner.wait(py, Limit::new(timeout)?, true)
    }

    /// `wait` for those who are not interested in events that nobody has read.
    fn _wait_for_packet(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        self.inner.wait(py, Limit::new(timeout)?, false)
    }

    /// Waits until every queued message has left, at most `timeout` seconds; says whether they
    /// have.
    #[pyo3(signature = (timeout=None))]
    fn flush(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        self.inner.flush(py, Limit::new(timeout)?)
    }

    /// The next event, or `None`: a `LinkRequest`, `LinkRequestGone`, `Connected`, `LinkClosed`, `TicketRevoked` or
    /// `ApertureChanged`.
    fn next_event<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let node = self.inner.node()?;
        let event = py.detach(|| {
            let _ = node.poll();
            self.inner.look_for_event(&node);
            locked(&self.inner.event).take()
        });
        event.map(|event| event_to_py(py, &self.inner, event)).transpose()
    }

    /// A descriptor for an event loop: readable when something may have arrived after
    /// `prepare_to_wait()` has said `True`. `hamlyn.aio` uses it for asyncio.
    fn fileno(&self) -> PyResult<i32> {
        self.inner.check_open()?;
        Ok(self.inner.poller.as_fd_raw())
    }

    /// To be called before waiting for `fileno()`, after every end point was found empty. `False`:
    /// something has come; look again. `True`: whatever comes from now on makes the descriptor
    /// readable; look at every end point once more, because another thread (a progress thread, too)
    /// may have taken something since the look before, then wait. When the descriptor is readable,
    /// call `silence()` first, or it stays so.
    fn prepare_to_wait(&self, py: Python<'_>) -> PyResult<bool> {
        let node = self.inner.node()?;
        let waker = Waker::from(self.inner.bell.clone());
        py.detach(|| node.prepare_to_wait(Some(&waker))).or_raise()
    }

    /// To be called when `fileno()` was found readable, before the end points are looked at.
    fn silence(&self) {
        self.inner.bell.0.silence();
    }

    /// What all objects of this manager have in common.
    #[getter]
    fn _key(&self) -> usize {
        Arc::as_ptr(&self.inner).addr()
    }

    /// A thread of the library takes what arrives while the program makes no calls.
    fn start_progress(&self, py: Python<'_>) -> PyResult<()> {
        let node = self.inner.node()?;
        py.detach(|| node.start_progress()).or_raise()
    }

    /// Stops that thread.
    fn stop_progress(&self, py: Python<'_>) -> PyResult<()> {
        let node = self.inner.node()?;
        py.detach(|| node.stop_progress());
        Ok(())
    }

    /// Tells the manager that the program lives: packets are not discarded for another
    /// `watchdog_ms`. Whatever receives or waits says so, too: this is for a program that is busy
    /// with something else while a progress thread runs.
    fn reset_watchdog(&self, py: Python<'_>) -> PyResult<()> {
        self.inner.with(py, hamlyn::Node::reset_watchdog)
    }

    /// Name and value of each counter of the interface and the control plane. SECURITY.md says
    /// what each refusal protects.
    fn counters<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let counters = self.inner.with(py, |node| node.counters())?;
        let found = PyDict::new(py);
        for (name, value) in counters {
            found.set_item(name, value)?;
        }
        Ok(found)
    }

    /// What was done or is missing because of this system or its limits, in words.
    fn notes(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        self.inner.with(py, |node| node.notes().to_vec())
    }

    /// Ends every link and name. Messages that wait leave first, for at most `timeout` seconds.
    /// Memory that arrays still show stays until they are gone. Closing twice is closing once.
    #[pyo3(signature = (timeout=10.0))]
    fn close(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        self.inner.close(py, timeout)
    }

    fn __enter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyAny>) -> PyResult<()> {
        self.inner.close(py, Some(10.0))
    }

    fn __repr__(&self) -> String {
        let state = if self.closed() { " closed" } else { "" };
        format!("<hamlyn.Manager {}{state}>", self.inner.id)
    }
}

impl Manager {
    fn must_own(&self, inner: &Arc<Inner>, what: &str) -> PyResult<()> {
        if Arc::ptr_eq(&self.inner, inner) {
            return Ok(());
        }
        Err(error(Kind::Misuse, format!("the {what} belongs to another manager")))
    }
}

trait RawFd {
    fn as_fd_raw(&self) -> i32;
}

impl RawFd for Poller {
    fn as_fd_raw(&self) -> i32 {
        self.as_fd().as_raw_fd()
    }
}

/// The settings: a list of name, variable, default, what is allowed, and what it does.
#[pyfunction]
pub fn settings() -> Vec<(&'static str, &'static str, String, String, &'static str)> {
    let rows = Config::default().settings();
    rows.into_iter().map(|r| (r.name, r.variable, r.value, r.allowed, r.meaning)).collect()
}
