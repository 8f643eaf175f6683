//! `Manager`: a node that Python's threads and event loops share.
//!
//! ```text
//!   Manager, Area, Queue, Slot, Link ..  ---> Inner ---> protocol::Manager
//!   end points (end.rs)                  ---> Inner
//!   memoryview, numpy array  ---> Area        `- how many buffers are out: while there are any,
//!                                                the memory stays, whatever else is closed
//! ```
//! `inner.rs` has the rules for the two locks. Never: a call here waits with Python's lock.

use crate::byte_stream::{ByteListener, ByteStream};
use crate::bytes::with_bytes;
use crate::errors::{Kind, OrRaise, ToPy, error};
use crate::events::event_to_py;
use crate::inner::{HOLDING_SLICE, Inner, locked};
use crate::parts::{Area, Link, Queue, Slot, Ticket};
use crate::wait::{Limit, duration, on_thread, sliced};
use core::sync::atomic::Ordering;
use core::time::Duration;
use hamlyn::config::WaitMode;
use hamlyn::node::NodeSendError;
use hamlyn::os::environment;
use hamlyn::os::poller::Poller;
use hamlyn::protocol;
use hamlyn::{Accept, Access, Config, LinkId, Mode, SlotConfig};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyList};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::task::Waker;

/// A link that is ended when its waiter is gone.
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

fn setting_text(value: &Bound<'_, PyAny>) -> PyResult<String> {
    if let Ok(flag) = value.cast::<PyBool>() {
        return Ok(if flag.is_true() { "yes" } else { "no" }.into());
    }
    if let Ok(number) = value.extract::<i128>() {
        return Ok(number.to_string());
    }
    Ok(value.extract::<std::path::PathBuf>()?.to_string_lossy().into_owned())
}

pub fn config_of(settings: Option<&Bound<'_, PyDict>>) -> PyResult<Config> {
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
    Config::from_lookup(|variable| given.remove(variable).or_else(|| environment::text(variable)))
        .or_raise()
}

/// The processes that may connect: `"same_user"`, `"anyone"` or a group's number.
pub fn access_of(access: &Bound<'_, PyAny>) -> PyResult<Access> {
    // In Python `True` is the number 1, which is hardly meant as a group.
    if let Ok(group) = access.extract::<u32>()
        && !access.is_instance_of::<PyBool>()
    {
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

/// A process's part in Hamlyn: its links, names, message areas and waiting.
///
/// Any number of threads may use it. Settings are those of docs/settings.md, by name; the others
/// come from the variables `HAMLYN_*`. A context manager: leaving it closes it.
#[pyclass(module = "hamlyn", frozen, weakref)]
pub struct Manager {
    pub inner: Arc<Inner>,
}

#[pymethods]
impl Manager {
    #[new]
    #[pyo3(signature = (**settings: "Unpack[Settings]"))]
    fn new(py: Python<'_>, settings: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        let config = config_of(settings)?;
        let node = py.detach(|| protocol::Manager::with_config(config)).or_raise()?;
        Ok(Self { inner: Arc::new(Inner::new(node)?) })
    }

    /// The manager's name in tickets.
    #[getter]
    fn id(&self) -> u64 {
        self.inner.id.0
    }

    /// Whether it is closed.
    #[getter]
    fn closed(&self) -> bool {
        self.inner.is_closed.load(Ordering::Acquire)
    }

    /// Makes a message area of `nbytes` zero bytes, beginning on a page. It stays until it is
    /// removed or the manager is closed.
    fn area(&self, py: Python<'_>, nbytes: usize) -> PyResult<Area> {
        Area::new(py, &self.inner, nbytes)
    }

    /// Makes a message area of `nbytes` bytes from `offset` on, a multiple of the page size, of a
    /// memory file. The program may map the file itself, for instance with `mmap`, and protect it
    /// at any time: the library makes a mapping of its own, and does not keep the descriptor.
    ///
    /// The file comes from `os.memfd_create` with `os.MFD_ALLOW_SEALING`, is sealed with
    /// `fcntl.F_SEAL_SHRINK` (truncating the file would kill the process), and is not sealed
    /// against writing; no other process may write these bytes. Raises `Misuse` for any other file.
    #[pyo3(signature = (descriptor, nbytes, *, offset=0))]
    fn area_of_file(
        &self,
        py: Python<'_>,
        descriptor: i32,
        nbytes: usize,
        offset: u64,
    ) -> PyResult<Area> {
        Area::of_file(py, &self.inner, descriptor, offset, nbytes)
    }

    /// Makes a notification queue of `entries` entries.
    fn queue(&self, py: Python<'_>, entries: u32) -> PyResult<Queue> {
        let id = self.inner.with(py, |node| node.notification_queue(entries))?.or_raise()?;
        Ok(Queue::new(self.inner.clone(), id))
    }

    /// Makes a slot over bytes `start` to `stop` of `area`, which notifies through `queue`.
    ///
    /// `entries`: messages that may be on their way at once. `mode`: `"normal"`, `"paranoid"` or
    /// `"one_shot"` (paranoid, and the bytes of an arrived message are stable). `credit`: entries
    /// of the queue that it reserves, one for each metadata entry unless given.
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

    /// Offers a service. Every permitted process is accepted with `greeting` (often a ticket's
    /// bytes), or, if that is `None`, becomes a `LinkRequest` event.
    ///
    /// `access`: `"same_user"`, `"anyone"` or the number of a group.
    #[pyo3(signature = (name, greeting: "Buffer | None" = None, *, access: "Access | None" = None))]
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
        let node = self.inner.node()?;
        py.detach(|| node.serve_name(name, access, accept)).or_raise()?;
        locked(&self.inner.served).push(name.into());
        Ok(())
    }

    /// Sets the processes that may grow senders from this manager's seeds: `"same_user"` (unless
    /// set), `"anyone"` or the number of a group. To be set before the first seed is made.
    #[pyo3(signature = (access: "Access"))]
    fn set_seed_access(&self, py: Python<'_>, access: &Bound<'_, PyAny>) -> PyResult<()> {
        let (access, node) = (access_of(access)?, self.inner.node()?);
        py.detach(|| node.set_seed_access(access)).or_raise()
    }

    /// Sets the function that finds services of other hosts whose names give no place
    /// (`hamlyn://service`): `look_up(service, timeout)`, instead of the setting `directory`;
    /// `None`: the setting applies.
    ///
    /// It returns places, `"host:port"`, in the order in which to try them. No place means that no
    /// host offers the service yet: a connecting call that waits for names asks again, less and
    /// less often. An exception ends the attempt. It runs in a thread of its own for each look-up,
    /// and may wait: a connecting call still returns when its time limit has passed. `timeout` is
    /// the rest of that limit, in seconds, or `None`. A function that refers to this manager keeps
    /// it alive.
    #[pyo3(signature = (look_up: "Callable[[str, float | None], Sequence[str]] | None", /))]
    fn set_directory(&self, py: Python<'_>, look_up: &Bound<'_, PyAny>) -> PyResult<()> {
        #[cfg(feature = "tls")]
        {
            let directory = crate::directory::directory(py, look_up)?;
            let node = self.inner.node()?;
            py.detach(|| node.set_directory(directory)).or_raise()
        }
        #[cfg(not(feature = "tls"))]
        {
            let _ = (py, look_up);
            let text = "the package was built without links to other hosts (feature tls)";
            Err(error(Kind::Misuse, text))
        }
    }

    /// No longer offers a service; links made through it stay. `False`: it was not offered.
    fn stop_serving(&self, py: Python<'_>, name: &str) -> PyResult<bool> {
        locked(&self.inner.served).retain(|served| served != name);
        let node = self.inner.node()?;
        Ok(py.detach(|| node.stop_serving_name(name)))
    }

    /// Connects to the service `[user@]name`, waiting at most `timeout` seconds in all: for a
    /// server of the name, too, unless the setting `wait_for_names` is off. `greeting`, up to 4
    /// KiB, reaches the server before it decides.
    #[pyo3(signature = (name, greeting: "Buffer | None" = None, timeout=10.0))]
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

    /// The present links.
    fn links(&self, py: Python<'_>) -> PyResult<Vec<Link>> {
        let ids = self.inner.with(py, |node| node.links().collect::<Vec<_>>())?;
        Ok(ids.into_iter().map(|id| Link { inner: self.inner.clone(), id }).collect())
    }

    /// Sends one message: `data`, any object with the buffer protocol, lands at the ticket's bytes.
    ///
    /// `metadata`, up to 60 bytes, goes to the message's metadata entry. Waits for room at most
    /// `timeout` seconds (`None`: without limit), and receives meanwhile. When it returns, `data`
    /// may be changed again; until then no other thread may change `data`, or the receiver would
    /// get a mixture.
    #[pyo3(signature = (ticket, data: "Buffer", metadata: "Buffer | None" = None, timeout=None))]
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

    /// Sends one message if that needs no wait; `False`: not now.
    #[pyo3(signature = (ticket, data: "Buffer", metadata: "Buffer | None" = None))]
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
            Err(NodeSendError::Full) => Ok(false),
            Err(e) => Err(e.to_py()),
        };
        with_bytes(data, |data| match metadata {
            None => send(data, &[]),
            Some(metadata) => with_bytes(metadata, |metadata| send(data, metadata)),
        })
    }

    /// Sends one packet in fast mode, with a word of 32 bits beside it.
    #[pyo3(signature = (ticket, data: "Buffer", word=0, timeout=None))]
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
                Err(NodeSendError::Full) => {}
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
                    Err(NodeSendError::TimedOut { .. }) => Ok(None),
                    Err(e) => Err(e),
                }
            };
            let sent = sliced(py, &self.inner, limit, attempt)?.or_raise()?;
            sent.ok_or_else(|| NodeSendError::TimedOut { unfinished: None }.to_py())
        })
    }

    /// One turn: receives from the links and lets queued packets leave. Returns the number of
    /// packets received, refused ones included.
    fn poll(&self, py: Python<'_>) -> PyResult<usize> {
        let node = self.inner.node()?;
        py.detach(|| node.poll()).or_raise()
    }

    /// Waits until a packet has arrived or an event is there, at most `timeout` seconds; returns
    /// whether it succeeded. It returns at once as long as `next_event` has an event: in a loop
    /// that waits, read the events, too.
    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        self.inner.wait(py, Limit::new(timeout)?, true)
    }

    /// `wait`, without regard to unread events.
    fn _wait_for_packet(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        self.inner.wait(py, Limit::new(timeout)?, false)
    }

    /// Waits until every queued message has left, at most `timeout` seconds; returns whether they
    /// have.
    #[pyo3(signature = (timeout=None))]
    fn flush(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        self.inner.flush(py, Limit::new(timeout)?)
    }

    /// The next event, or `None`: a `LinkRequest`, `LinkRequestGone`, `Connected`, `LinkClosed`,
    /// `TicketRevoked` or `ApertureChanged`.
    #[pyo3(signature = () -> "Event | None")]
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
    /// `prepare_to_wait()` has returned `True`. `hamlyn.aio` uses it for asyncio.
    fn fileno(&self) -> PyResult<i32> {
        self.inner.check_open()?;
        Ok(self.inner.poller.as_fd_raw())
    }

    /// Call this before waiting for `fileno()`, after finding every end point empty. `False`:
    /// something has come; look again. `True`: any arrival from now on makes the descriptor
    /// readable; look at every end point once more, because another thread (a progress thread, too)
    /// may have received something since the look before, then wait. When the descriptor is
    /// readable, call `silence()` first, or it stays so.
    fn prepare_to_wait(&self, py: Python<'_>) -> PyResult<bool> {
        let node = self.inner.node()?;
        self.inner.bell.waits();
        let waker = Waker::from(self.inner.bell.clone());
        py.detach(|| node.prepare_to_wait(Some(&waker))).or_raise()
    }

    /// Call this when `fileno()` is readable, before looking at the end points.
    fn silence(&self) {
        self.inner.bell.silence();
    }

    /// `silence()` of the only event loop that watches `fileno()`: until it prepares to wait,
    /// messages received for it by other calls do not make the descriptor readable, since it looks
    /// before that.
    fn _awake(&self) {
        self.inner.bell.is_awake();
    }

    /// Takes a turn, and returns the places in the list of these byte streams and listeners that
    /// are ready. A closed stream or listener is ready.
    #[pyo3(signature = (ends: "list[ByteStream | ByteListener]"))]
    fn _ready(&self, py: Python<'_>, ends: &Bound<'_, PyList>) -> PyResult<Vec<usize>> {
        let node = self.inner.node()?;
        let poll = || node.poll().map(|_| ());
        if self.inner.is_slow() { py.detach(poll) } else { poll() }.or_raise()?;
        let mut ready = Vec::new();
        for (at, end) in ends.iter().enumerate() {
            let is_ready = match end.cast::<ByteStream>() {
                Ok(stream) => stream.get().is_ready(py),
                Err(_) => end.cast::<ByteListener>()?.get().is_ready(py),
            };
            if is_ready.unwrap_or(true) {
                ready.push(at);
            }
        }
        Ok(ready)
    }

    /// Seconds for which a waiting event loop polls before it sleeps, from the settings.
    #[getter]
    fn _spin(&self, py: Python<'_>) -> PyResult<f64> {
        self.inner.with(py, |node| match node.config().wait_mode {
            WaitMode::Polled => f64::INFINITY,
            WaitMode::Adaptive => node.config().spin_ns as f64 / 1e9,
            WaitMode::Blocking => 0.0,
        })
    }

    /// A key that all objects of this manager have in common.
    #[getter]
    fn _key(&self) -> usize {
        Arc::as_ptr(&self.inner).addr()
    }

    /// Starts a thread of the library that receives while the program makes no calls.
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

    /// Tells the manager that the program is alive: packets are not discarded for another
    /// `watchdog_ms`. Every call that receives or waits does the same: this is for a program that
    /// is busy with something else while a progress thread runs.
    fn reset_watchdog(&self, py: Python<'_>) -> PyResult<()> {
        self.inner.with(py, hamlyn::Node::reset_watchdog)
    }

    /// Name and value of each counter of the interface and the control plane. docs/refusals.md explains
    /// the protection behind each refusal.
    #[pyo3(signature = () -> "dict[str, int]")]
    fn counters<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let counters = self.inner.with(py, |node| node.counters())?;
        let found = PyDict::new(py);
        for (name, value) in counters {
            found.set_item(name, value)?;
        }
        Ok(found)
    }

    /// The address to which other hosts connect: the setting `listen`, such as `127.0.0.1:7000`,
    /// with the port that the system chose if the setting's was 0. `None`: the manager does not
    /// listen.
    #[getter]
    fn listens_at(&self, py: Python<'_>) -> PyResult<Option<String>> {
        self.inner.with(py, |node| {
            #[cfg(feature = "tls")]
            let at = node.listens_at().map(|at| at.to_string());
            #[cfg(not(feature = "tls"))]
            let at = {
                let _ = node;
                None
            };
            at
        })
    }

    /// Fallbacks and missing features because of this system or its limits, in words.
    fn notes(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        self.inner.with(py, |node| node.notes().to_vec())
    }

    /// Ends every link and name. Queued messages leave first, for at most `timeout` seconds. Memory
    /// that arrays still show stays until they are gone. Closing twice is allowed.
    #[pyo3(signature = (timeout=10.0))]
    fn close(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        self.inner.close(py, timeout)
    }

    fn __enter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exception: "object"))]
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

/// The settings: a list of name, variable, default, allowed values, and effect.
#[pyfunction]
pub fn settings() -> Vec<(&'static str, &'static str, String, String, &'static str)> {
    let rows = Config::default().settings();
    rows.into_iter().map(|r| (r.name, r.variable, r.value, r.allowed, r.meaning)).collect()
}
