//! `Manager`: a node that Python's threads and event loops share.
//!
//! ```text
//!   Manager, Area, Queue, Slot, Link ..  ---> Inner ---> protocol::Manager
//!   end points (end.rs)                  ---> Inner
//!   memoryview, numpy array  ---> Area        `- how many buffers are out: while there are any,
//!                                                the memory stays, whatever else is closed
//! ```
//! `inner.rs` says which of the two locks may be held when. Never: a call here waits with Python's
//! lock.

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

/// Who may connect: `"same_user"`, `"anyone"` or a group's number.
pub fn access_of(access: &Bound<'_, PyAny>) -> PyResult<Access> {
    // In Python `True` is the number 1, and no group that anybody means.
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
    #[pyo3(signature = (**settings: "Unpack[Settings]"))]
    fn new(py: Python<'_>, settings: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        let config = config_of(settings)?;
        let node = py.detach(|| protocol::Manager::with_config(config)).or_raise()?;
        Ok(Self { inner: Arc::new(Inner::new(node)?) })
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

    /// A message area of `nbytes` bytes from `offset` on, a multiple of the page size, of a memory file
    /// that the program has mapped itself, for instance with `mmap`, and may protect as it likes: the
    /// library makes a mapping of its own, and does not keep the descriptor.
    ///
    /// The file is one of `os.memfd_create` with `os.MFD_ALLOW_SEALING`, sealed with
    /// `fcntl.F_SEAL_SHRINK` (a file that can be cut short would kill the process), and not against
    /// writing; no other process may write these bytes. Raises `Misuse` for any other.
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

    /// A notification queue of `entries` entries.
    fn queue(&self, py: Python<'_>, entries: u32) -> PyResult<Queue> {
        let id = self.inner.with(py, |node| node.notification_queue(entries))?.or_raise()?;
        Ok(Queue::new(self.inner.clone(), id))
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

    /// Who may grow senders from this manager's seeds: `"same_user"` (unless set), `"anyone"` or the
    /// number of a group. To be set before the first seed is made.
    #[pyo3(signature = (access: "Access"))]
    fn set_seed_access(&self, py: Python<'_>, access: &Bound<'_, PyAny>) -> PyResult<()> {
        let (access, node) = (access_of(access)?, self.inner.node()?);
        py.detach(|| node.set_seed_access(access)).or_raise()
    }

    /// From now on `look_up(service, timeout)` says where services of other hosts are whose names say
    /// no place (`hamlyn://service`), in the place of the setting `directory`; `None`: the setting does.
    ///
    /// It returns places, `"host:port"`, in the order in which they are to be tried; none, if nobody
    /// has the service yet: whoever waits for names asks again, less and less often. What it raises
    /// ends the attempt. It runs in a thread of its own for each look-up, and may wait: whoever connects
    /// is told when its time limit is over. `timeout` is what is left of that, in seconds, or `None`. A
    /// function that has this manager keeps it from going away by itself.
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

    /// Connects to the service `[user@]name`, waiting at most `timeout` seconds for everything: for
    /// somebody to serve the name, too, unless the setting `wait_for_names` is off. `greeting`, up to 4 KiB, reaches the server before it decides.
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

    /// Sends one message if it can be taken now; `False`: not now.
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
        self.inner.bell.waits();
        let waker = Waker::from(self.inner.bell.clone());
        py.detach(|| node.prepare_to_wait(Some(&waker))).or_raise()
    }

    /// To be called when `fileno()` was found readable, before the end points are looked at.
    fn silence(&self) {
        self.inner.bell.silence();
    }

    /// `silence()` of the only event loop that watches `fileno()`: until it prepares to wait, nothing
    /// that other calls take for it makes the descriptor readable, for it looks before that.
    fn _awake(&self) {
        self.inner.bell.is_awake();
    }

    /// Takes a turn, and says which of these byte streams and listeners have something: their places in
    /// the list. A stream or listener that is closed has.
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

    /// Seconds for which whoever waits in an event loop looks, before he sleeps, as the settings say.
    #[getter]
    fn _spin(&self, py: Python<'_>) -> PyResult<f64> {
        self.inner.with(py, |node| match node.config().wait_mode {
            WaitMode::Polled => f64::INFINITY,
            WaitMode::Adaptive => node.config().spin_ns as f64 / 1e9,
            WaitMode::Blocking => 0.0,
        })
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
    #[pyo3(signature = () -> "dict[str, int]")]
    fn counters<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let counters = self.inner.with(py, |node| node.counters())?;
        let found = PyDict::new(py);
        for (name, value) in counters {
            found.set_item(name, value)?;
        }
        Ok(found)
    }

    /// Where other hosts connect: the setting `listen`, with the port that the system chose where
    /// that was 0, such as `127.0.0.1:7000`. `None`: nothing listens.
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

/// The settings: a list of name, variable, default, what is allowed, and what it does.
#[pyfunction]
pub fn settings() -> Vec<(&'static str, &'static str, String, String, &'static str)> {
    let rows = Config::default().settings();
    rows.into_iter().map(|r| (r.name, r.variable, r.value, r.allowed, r.meaning)).collect()
}
