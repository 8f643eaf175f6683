//! The parts of a manager: areas, queues, slots, tickets, links and notifications.

use crate::aperture::Aperture;
use crate::bytes::{export, with_bytes};
use crate::errors::{Kind, OrRaise, error};
use crate::inner::Inner;
use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use hamlyn::os::lock::Lock;
use hamlyn::wire::TICKET_BYTES;
use hamlyn::{AreaId, AreaPages, LinkId, MetadataIndex, Notification, QueueId, Share, SlotId};
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};
use std::sync::Arc;

/// A message area: the memory for arriving messages. It has the buffer protocol, so
/// `numpy.frombuffer(area, dtype=..)` and `memoryview(area)` show it without copying.
///
/// Bytes change only while the manager receives: in calls that receive, send, wait or poll, on any
/// thread, or at any time with a progress thread; and only those for which a ticket was made. A
/// one-shot slot's bytes are stable from the notification until the entry is armed.
#[pyclass(module = "hamlyn", frozen, weakref)]
pub struct Area {
    pub inner: Arc<Inner>,
    pub id: AreaId,
    pub length: usize,
    /// The address of its bytes, which does not change; the readers are responsible for their use.
    /// An atomic because any thread may use it.
    start: AtomicPtr<u8>,
    buffers: AtomicUsize,
    is_removed: AtomicBool,
}

impl Area {
    pub fn new(py: Python<'_>, inner: &Arc<Inner>, length: usize) -> PyResult<Self> {
        let id = inner.with(py, |node| node.message_area(length))?.or_raise()?;
        Self::of(py, inner, id)
    }

    /// Of a memory file.
    pub fn of_file(
        py: Python<'_>,
        inner: &Arc<Inner>,
        descriptor: c_int,
        offset: u64,
        length: usize,
    ) -> PyResult<Self> {
        if descriptor < 0 {
            return Err(error(
                Kind::Misuse,
                format!("the descriptor is {descriptor}, which is none"),
            ));
        }
        // SAFETY: the caller's descriptor, which stays open during this call (a number that is not
        // a descriptor is an error). The caller ensures that no other process writes the bytes
        // while the library uses them, as for every buffer of an area.
        let pages = unsafe {
            let file = std::os::fd::BorrowedFd::borrow_raw(descriptor);
            AreaPages::of_file(file, offset, length)
        }
        .or_raise()?;
        let id = inner.with(py, |node| node.message_area_of(pages))?.or_raise()?;
        Self::of(py, inner, id)
    }

    /// An existing area.
    pub fn of(py: Python<'_>, inner: &Arc<Inner>, id: AreaId) -> PyResult<Self> {
        let place = inner.with(py, |node| {
            node.area_address(id).map(|(start, length)| (AtomicPtr::new(start), length))
        })?;
        let (start, length) = place.or_raise()?;
        let (buffers, is_removed) = (AtomicUsize::new(0), AtomicBool::new(false));
        Ok(Self { inner: inner.clone(), id, length, start, buffers, is_removed })
    }
}

#[pymethods]
impl Area {
    fn __len__(&self) -> usize {
        self.length
    }

    /// Bytes of it from `offset` on as a numpy array that can be written, without a copy; the array
    /// keeps the memory. Raises `ValueError` if they are not inside. Needs numpy.
    #[pyo3(signature = (dtype: "DType", shape: "Shape", offset=0) -> "AnyArray")]
    fn array<'py>(
        slf: Bound<'py, Self>,
        py: Python<'py>,
        dtype: &Bound<'py, PyAny>,
        shape: &Bound<'py, PyAny>,
        offset: usize,
    ) -> PyResult<Bound<'py, PyAny>> {
        py.import("hamlyn._arrays")?.call_method1("area", (slf, dtype, shape, offset))
    }

    /// Its size in bytes.
    #[getter]
    fn nbytes(&self) -> usize {
        self.length
    }

    /// Whether huge pages and wiring were granted: two texts, `"not asked"`, `"granted"`, or a
    /// description of the substitute.
    fn report(&self, py: Python<'_>) -> PyResult<(String, String)> {
        use hamlyn::os::memory::Grant;
        let report = self.inner.with(py, |node| node.area_report(self.id).cloned())?.or_raise()?;
        let text = |grant| match grant {
            Grant::NotAsked => "not asked".into(),
            Grant::Granted => "granted".into(),
            Grant::Refused(why) => why,
        };
        Ok((text(report.huge_pages), text(report.locked)))
    }

    /// Frees the memory. Raises `Misuse` while slots name it, and `BufferError` while an array or a
    /// view shows it.
    fn remove(&self, py: Python<'_>) -> PyResult<()> {
        if self.is_removed.load(Ordering::Relaxed) {
            return Ok(());
        }
        let buffers = self.buffers.load(Ordering::Relaxed);
        if buffers > 0 {
            let text = format!("{buffers} views or arrays still show the area; release them first");
            return Err(PyBufferError::new_err(text));
        }
        self.is_removed.store(true, Ordering::Relaxed);
        let removed = self.inner.with(py, |node| node.remove_area(self.id)).map(OrRaise::or_raise);
        if !matches!(removed, Ok(Ok(()))) {
            self.is_removed.store(false, Ordering::Relaxed);
        }
        removed?
    }

    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let area = slf.get();
        area.inner.check_open()?;
        if area.is_removed.load(Ordering::Relaxed) {
            return Err(error(Kind::Closed, "the area was removed"));
        }
        area.inner.lend()?;
        // SAFETY: the area lies in memory of the node, which stays while `Inner` has lent a buffer
        // of it, also after it was closed, and which `remove` does not give back while this area
        // has lent one: that is looked at and changed under the interpreter's lock.
        let exported = unsafe {
            let start = area.start.load(Ordering::Relaxed);
            export(slf.as_any(), view, flags, start, area.length, false)
        };
        match exported {
            Ok(()) => drop(area.buffers.fetch_add(1, Ordering::Relaxed)),
            Err(_) => area.inner.take_back(),
        }
        exported
    }

    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {
        self.buffers.fetch_sub(1, Ordering::Relaxed);
        self.inner.take_back();
    }

    fn __repr__(&self) -> String {
        let removed = if self.is_removed.load(Ordering::Relaxed) { " removed" } else { "" };
        format!("<hamlyn.Area of {} bytes{removed}>", self.length)
    }
}

/// A notification queue.
#[pyclass(module = "hamlyn", frozen, weakref)]
pub struct Queue {
    pub inner: Arc<Inner>,
    pub id: QueueId,
    /// The last notification objects handed out. An object without other references is used again,
    /// since making and freeing one takes longer than a message. Two, because a loop holds one
    /// while it receives the next.
    told: Lock<[Option<Py<Notified>>; 2]>,
}

impl Queue {
    pub fn new(inner: Arc<Inner>, id: QueueId) -> Self {
        Self { inner, id, told: Lock::default() }
    }

    /// The object for a notification.
    #[inline]
    fn tell<'py>(
        &self,
        py: Python<'py>,
        notification: Notification,
    ) -> PyResult<Bound<'py, Notified>> {
        // Under the interpreter's lock, so that no other thread gets a reference meanwhile.
        if let Some(told) = self.told.try_lock() {
            for one in told.iter().flatten() {
                // SAFETY: the object is alive, and the interpreter's lock is held.
                if unsafe { ffi::Py_REFCNT(one.as_ptr()) } == 1 {
                    one.get().set(notification);
                    return Ok(one.bind(py).clone());
                }
            }
        }
        self.tell_anew(py, notification)
    }

    #[inline(never)]
    fn tell_anew<'py>(
        &self,
        py: Python<'py>,
        notification: Notification,
    ) -> PyResult<Bound<'py, Notified>> {
        let one = Bound::new(py, Notified::new(&self.inner, notification))?;
        let older = self.told.try_lock().and_then(|mut told| {
            told.swap(0, 1);
            told[0].replace(one.clone().unbind())
        });
        drop(older);
        Ok(one)
    }
}

#[pymethods]
impl Queue {
    /// Waits for the next notification, at most `timeout` seconds (`None`: without limit). Raises
    /// `TimedOut`.
    #[pyo3(signature = (timeout=None))]
    fn receive<'py>(
        &self,
        py: Python<'py>,
        timeout: Option<f64>,
    ) -> PyResult<Bound<'py, Notified>> {
        let found = match timeout {
            None => self.inner.at_once(|node| node.recv_at_once(self.id)),
            Some(_) => None,
        };
        let found = match found {
            Some(found) => found,
            None => self.inner.receive(py, self.id, timeout)?,
        };
        self.tell(py, found)
    }

    /// The next notification if a message has arrived, else `None`. Takes a turn over the links.
    fn try_receive<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, Notified>>> {
        let found = self.inner.try_receive(py, self.id)?;
        found.map(|found| self.tell(py, found)).transpose()
    }

    /// Removes the queue. Raises `Misuse` while slots use it.
    fn remove(&self, py: Python<'_>) -> PyResult<()> {
        self.inner.with(py, |node| node.remove_queue(self.id))?.or_raise()
    }

    #[getter]
    fn _manager(&self) -> crate::manager::Manager {
        crate::manager::Manager { inner: self.inner.clone() }
    }

    fn __repr__(&self) -> String {
        format!("<hamlyn.Queue {:?}>", self.id)
    }
}

/// A slot: the checks for packets, and the memory where they land.
#[pyclass(module = "hamlyn", frozen, weakref)]
pub struct Slot {
    pub inner: Arc<Inner>,
    pub id: SlotId,
}

#[pymethods]
impl Slot {
    /// Its index, as tickets give it.
    #[getter]
    fn index(&self) -> u32 {
        self.id.index().0
    }

    /// A ticket to send one message to a metadata entry.
    #[pyo3(signature = (index=0))]
    fn ticket(&self, py: Python<'_>, index: u32) -> PyResult<Ticket> {
        let made = self.inner.with(py, |node| node.ticket(self.id, MetadataIndex(index)))?;
        Ok(Ticket { ticket: made.or_raise()? })
    }

    /// A ticket to send single packets in fast mode.
    fn fast_ticket(&self, py: Python<'_>) -> PyResult<Ticket> {
        Ok(Ticket { ticket: self.inner.with(py, |node| node.fast_ticket(self.id))?.or_raise()? })
    }

    /// The metadata, up to 60 bytes, of the message that arrived last in an entry.
    #[pyo3(signature = (index=0))]
    fn metadata<'py>(&self, py: Python<'py>, index: u32) -> PyResult<Bound<'py, PyBytes>> {
        let mut user = [0; 60];
        let length = self
            .inner
            .with(py, |node| {
                let entry = node.metadata(self.id, MetadataIndex(index))?;
                user[..entry.user().len()].copy_from_slice(entry.user());
                Ok::<_, hamlyn::interface::SlotError>(entry.user().len())
            })?
            .or_raise()?;
        Ok(PyBytes::new(py, &user[..length]))
    }

    /// Arms an entry for the next message. In a paranoid slot the entry gets a new key, and accepts
    /// bytes `start` to `stop` of the slot only (the whole slot unless given).
    #[pyo3(signature = (index=0, start=None, stop=None))]
    fn arm(
        &self,
        py: Python<'_>,
        index: u32,
        start: Option<u64>,
        stop: Option<u64>,
    ) -> PyResult<()> {
        let armed = self.inner.with(py, |node| {
            let index = MetadataIndex(index);
            if start.is_some() || stop.is_some() {
                let (_, range) = node.slot_range(self.id)?;
                let stop = stop.unwrap_or(range.end - range.start);
                return node.arm(self.id, index, Some(start.unwrap_or(0)..stop));
            }
            match node.arm(self.id, index, None) {
                // A paranoid slot: all of it.
                Err(hamlyn::interface::SlotError::WrongMode { .. }) => {
                    let (_, range) = node.slot_range(self.id)?;
                    node.arm(self.id, index, Some(0..range.end - range.start))
                }
                other => other,
            }
        })?;
        armed.or_raise()
    }

    /// Closes a paranoid entry: it accepts nothing until it is armed again.
    fn close_entry(&self, py: Python<'_>, index: u32) -> PyResult<()> {
        self.inner.with(py, |node| node.close_entry(self.id, MetadataIndex(index)))?.or_raise()
    }

    /// Changes the slot's key: all existing tickets are worthless at once.
    fn revoke(&self, py: Python<'_>) -> PyResult<()> {
        self.inner.with(py, |node| node.revoke(self.id))?.or_raise()
    }

    /// Removes the slot. Packets for it are refused from now on.
    fn remove(&self, py: Python<'_>) -> PyResult<()> {
        self.inner.with(py, |node| node.remove_slot(self.id))?.or_raise()
    }

    fn __eq__(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner) && self.id == other.id
    }

    fn __hash__(&self) -> u64 {
        self.id.to_bits()
    }

    fn __repr__(&self) -> String {
        format!("<hamlyn.Slot {}>", self.id.index().0)
    }
}

/// The right to send one message: bytes that may travel anywhere. Their bearer has the right.
#[pyclass(module = "hamlyn", frozen, eq)]
#[derive(PartialEq)]
pub struct Ticket {
    pub ticket: hamlyn::Ticket,
}

#[pymethods]
impl Ticket {
    /// Reads a ticket. Raises `Misuse` (a `ValueError`) if the bytes are not a ticket.
    #[staticmethod]
    #[pyo3(signature = (data: "Buffer"))]
    fn from_bytes(data: &Bound<'_, PyAny>) -> PyResult<Self> {
        with_bytes(data, |bytes| Ok(Self { ticket: hamlyn::Ticket::from_bytes(bytes).or_raise()? }))
    }

    fn __bytes__<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.ticket.to_bytes())
    }

    /// The number of bytes that it may write.
    #[getter]
    fn capacity(&self) -> u64 {
        self.ticket.capacity()
    }

    /// The id of the manager that receives.
    #[getter]
    fn destination(&self) -> u64 {
        self.ticket.destination.0
    }

    /// The same right for the bytes from `offset` on.
    fn at(&self, offset: u64) -> PyResult<Self> {
        Ok(Self { ticket: self.ticket.at(offset).or_raise()? })
    }

    /// The same right without a notification: the data arrives silently.
    fn silent(&self) -> Self {
        Self { ticket: self.ticket.silent() }
    }

    /// Splits it among helpers: for each part `(start, stop, share)`, with shares that add up to
    /// 2**32.
    fn split(&self, parts: Vec<(u64, u64, u64)>) -> PyResult<Vec<Self>> {
        let share = |(start, stop, share)| Ok((start, stop, Share::new(share).or_raise()?));
        let parts = parts.into_iter().map(share).collect::<PyResult<Vec<_>>>()?;
        let tickets = self.ticket.split(&parts).or_raise()?;
        Ok(tickets.into_iter().map(|ticket| Self { ticket }).collect())
    }

    /// Splits it into `n` parts of equal size and share.
    fn split_evenly(&self, n: u64) -> PyResult<Vec<Self>> {
        let tickets = self.ticket.split_evenly(n).or_raise()?;
        Ok(tickets.into_iter().map(|ticket| Self { ticket }).collect())
    }

    fn __hash__(&self) -> u64 {
        let bytes = self.ticket.to_bytes();
        bytes.chunks(8).fold(0, |hash: u64, chunk| {
            let word = chunk.iter().fold(0u64, |word, byte| word << 8 | u64::from(*byte));
            (hash.rotate_left(5) ^ word).wrapping_mul(0x517c_c1b7_2722_0a95)
        })
    }

    #[pyo3(signature = () -> "tuple[object, tuple[bytes]]")]
    fn __reduce__<'py>(
        &self,
        py: Python<'py>,
    ) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyTuple>)> {
        let from_bytes = py.get_type::<Self>().getattr("from_bytes")?;
        Ok((from_bytes, PyTuple::new(py, [self.__bytes__(py)])?))
    }

    fn __repr__(&self) -> String {
        let ticket = &self.ticket;
        // Not the key: the reader of a log must not get the right.
        format!(
            "<hamlyn.Ticket to {} slot {} bytes {}..{}>",
            ticket.destination, ticket.slot.0, ticket.base, ticket.bound
        )
    }
}

const _: () = assert!(TICKET_BYTES == 44);

/// A link to another manager.
#[pyclass(module = "hamlyn", frozen)]
pub struct Link {
    pub inner: Arc<Inner>,
    pub id: LinkId,
}

#[pymethods]
impl Link {
    /// The identity of the other end, from the kernel.
    #[getter]
    fn peer(&self, py: Python<'_>) -> PyResult<Peer> {
        Ok(Peer { peer: self.inner.with(py, |node| node.peer(self.id).cloned())?.or_raise()? })
    }

    /// The other end's greeting when the link was made: often a ticket's bytes.
    #[getter]
    fn greeting<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let found = self.inner.with(py, |node| node.greeting(self.id).map(<[u8]>::to_vec))?;
        Ok(PyBytes::new(py, &found.or_raise()?))
    }

    /// The path that the link takes, and the reason.
    fn explain(&self, py: Python<'_>) -> PyResult<String> {
        self.inner.with(py, |node| node.explain(self.id))?.or_raise()
    }

    /// Sends one message over this link and no other: so a ticket from this peer is used for this
    /// peer alone. See `Manager.send`.
    #[pyo3(signature = (ticket, data: "Buffer", metadata: "Buffer | None" = None, timeout=None))]
    fn send(
        &self,
        py: Python<'_>,
        ticket: &Ticket,
        data: &Bound<'_, PyAny>,
        metadata: Option<&Bound<'_, PyAny>>,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        let (link, ticket) = (Some(self.id), &ticket.ticket);
        with_bytes(data, |data| match metadata {
            None => self.inner.send(py, link, ticket, data, &[], timeout),
            Some(metadata) => with_bytes(metadata, |metadata| {
                self.inner.send(py, link, ticket, data, metadata, timeout)
            }),
        })
    }

    /// Exports `nbytes` (whole pages of 4,096) of new zeroed memory as an aperture to the other
    /// end, which may read it and, if `writable`, write it. An `ApertureChanged` event reports that
    /// the holder has mapped it, or the reason why not.
    #[pyo3(signature = (nbytes, *, writable=true))]
    fn export(&self, py: Python<'_>, nbytes: u64, writable: bool) -> PyResult<Aperture> {
        Aperture::export(py, self, nbytes, writable)
    }

    /// Exports a read-only aperture of this manager to the other end of this link as well: both
    /// holders see the same pages. Each holder is revoked separately, and the memory is freed with
    /// the last; a revoked holder that keeps its mapping sees further writes as long as the memory
    /// exists.
    fn export_also(&self, py: Python<'_>, aperture: &Aperture) -> PyResult<Aperture> {
        aperture.export_also(py, self)
    }

    /// The aperture of this number that this side holds.
    fn aperture(&self, py: Python<'_>, number: u32) -> PyResult<Aperture> {
        Aperture::held(py, self, number)
    }

    /// Ends the link. Returns the number of queued messages that did not leave.
    fn close(&self, py: Python<'_>) -> PyResult<usize> {
        self.inner.with(py, |node| node.disconnect(self.id))?.or_raise()
    }

    fn __eq__(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner) && self.id == other.id
    }

    fn __hash__(&self) -> u64 {
        u64::from(self.id.index) << 16 | u64::from(self.id.generation)
    }

    pub(crate) fn __repr__(&self, py: Python<'_>) -> String {
        // Not for an ended link, nor after the manager is closed.
        let peer = match self.inner.with(py, |node| node.peer(self.id).cloned()) {
            Ok(Ok(peer)) => format!(" to {}", Peer { peer }.told()),
            _ => String::new(),
        };
        format!("<hamlyn.Link {}.{}{peer}>", self.id.index, self.id.generation)
    }
}

/// The identity of the other end of a link.
#[pyclass(module = "hamlyn", frozen, eq)]
#[derive(PartialEq)]
pub struct Peer {
    pub peer: hamlyn::Peer,
}

#[pymethods]
impl Peer {
    /// The id of its manager, by its own account.
    #[getter]
    fn id(&self) -> u64 {
        self.peer.node.0
    }

    /// Its user, from the kernel; `None`: of another user namespace.
    #[getter]
    fn uid(&self) -> Option<u32> {
        self.peer.uid
    }

    /// Its group, from the kernel; `None`: of another user namespace.
    #[getter]
    fn gid(&self) -> Option<u32> {
        self.peer.gid
    }

    /// Its process; `None` if it is not visible from here.
    #[getter]
    fn pid(&self) -> Option<u32> {
        self.peer.pid
    }

    /// The service through which the link was made.
    #[getter]
    fn service(&self) -> &str {
        &self.peer.service
    }

    /// For another host: the address that it is connected from, as address:port; `None`: it is on
    /// this host.
    #[getter]
    fn address(&self) -> Option<String> {
        self.peer.host.as_ref().map(|host| host.address.to_string())
    }

    /// For another host, its proven identity: the first name in its certificate; or the
    /// certificate's hash, if it has no name; or `"secret"`, for a peer that has this process's
    /// secret and no certificate.
    #[getter]
    fn identity(&self) -> Option<&str> {
        self.peer.host.as_ref().map(|host| host.identity.as_str())
    }

    pub(crate) fn __repr__(&self) -> String {
        format!("<hamlyn.Peer {}>", self.told())
    }
}

impl Peer {
    pub fn told(&self) -> String {
        format!("{} by {:?}", self.peer, self.peer.service)
    }
}

/// A message has arrived.
#[pyclass(module = "hamlyn", name = "Notification", frozen)]
pub struct Notified {
    inner: Arc<Inner>,
    // Its contents: its queue changes them once the object has no other reference. In the library's
    // own parts, so that a program that reads none of them does not pay for assembling them.
    slot: [AtomicU32; 2],
    index: AtomicU32,
    word: AtomicU32,
    link: [AtomicU32; 2],
}

impl Notified {
    fn new(inner: &Arc<Inner>, notification: Notification) -> Self {
        let new = Self {
            inner: inner.clone(),
            slot: Default::default(),
            index: AtomicU32::default(),
            word: AtomicU32::default(),
            link: Default::default(),
        };
        new.set(notification);
        new
    }

    #[inline]
    fn set(&self, notification: Notification) {
        let Notification { slot, index, word, link } = notification;
        let slot = slot.to_bits();
        self.slot[0].store((slot >> 32) as u32, Ordering::Relaxed);
        self.slot[1].store(slot as u32, Ordering::Relaxed);
        self.index.store(index.0, Ordering::Relaxed);
        self.word.store(word, Ordering::Relaxed);
        self.link[0].store(link.index, Ordering::Relaxed);
        self.link[1].store(link.generation.into(), Ordering::Relaxed);
    }

    fn notification(&self) -> Notification {
        let of = |part: &AtomicU32| part.load(Ordering::Relaxed);
        let slot = u64::from(of(&self.slot[0])) << 32 | u64::from(of(&self.slot[1]));
        Notification {
            slot: SlotId::from_bits(slot),
            index: MetadataIndex(of(&self.index)),
            word: of(&self.word),
            link: LinkId { index: of(&self.link[0]), generation: of(&self.link[1]) as u16 },
        }
    }
}

#[pymethods]
impl Notified {
    /// The slot in which it arrived, for `metadata`, `arm` and the like.
    #[getter]
    fn slot(&self) -> Slot {
        Slot { inner: self.inner.clone(), id: self.notification().slot }
    }

    /// Its metadata entry; `None` for a packet in fast mode.
    #[getter]
    fn index(&self) -> Option<u32> {
        let index = self.notification().index;
        (index != MetadataIndex::FAST).then_some(index.0)
    }

    /// In fast mode the word that the packet carried, else 0.
    #[getter]
    fn word(&self) -> u32 {
        self.notification().word
    }

    /// The link over which it came.
    #[getter]
    fn link(&self) -> Link {
        Link { inner: self.inner.clone(), id: self.notification().link }
    }

    fn __repr__(&self) -> String {
        let slot = self.notification().slot.index().0;
        match self.index() {
            Some(index) => format!("<hamlyn.Notification slot {slot} entry {index}>"),
            None => format!(
                "<hamlyn.Notification slot {slot} fast, word {:#x}>",
                self.notification().word
            ),
        }
    }
}
