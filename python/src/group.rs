//! Groups: the root, its members and their helpers.

use crate::bytes::{export, with_all_bytes, with_bytes};
use crate::end::{End, common, connect, grow, grown, peer_of, receiver, sender};
use crate::errors::{Kind, OrRaise, error};
use crate::job::Job;
use crate::manager::Manager;
use crate::parts::Peer;
use crate::seed::Seed;
use crate::wait::{Limit, duration};
use core::convert::identity;
use core::ffi::c_int;
use core::time::Duration;
use hamlyn::protocol::{self, GroupConfig, GroupError};
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::sync::Arc;

/// The root of a group: many members send a part each, and it gets one notification when all have
/// arrived; and it sends to all.
#[pyclass(module = "hamlyn", frozen, weakref)]
pub struct Group {
    end: Arc<End<protocol::Group>>,
}

/// A member's part of a round. It has the buffer protocol, read-only, without a copy: its bytes are
/// stable until the next round, which is refused while any view shows them. They begin at a
/// multiple of 64 bytes.
#[pyclass(module = "hamlyn", frozen, weakref)]
pub struct GroupPart {
    end: Arc<End<protocol::Group>>,
    member: u32,
    round: u64,
    length: usize,
}

#[pymethods]
impl GroupPart {
    /// The number of the member.
    #[getter]
    fn member(&self) -> u32 {
        self.member
    }

    /// The round that it belongs to.
    #[getter]
    fn round(&self) -> u64 {
        self.round
    }

    fn __len__(&self) -> usize {
        self.length
    }

    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let this = slf.get();
        this.end.lend()?;
        let place = |group: &mut protocol::Group| {
            let parts = (group.round() == this.round).then(|| group.parts())?;
            parts.part(this.member).map(|bytes| (bytes.as_ptr().expose_provenance(), bytes.len()))
        };
        let shown = this.end.with(slf.py(), place).and_then(|place| {
            let (start, length) =
                place.ok_or_else(|| error(Kind::Closed, "the part's round is over"))?;
            // SAFETY: the bytes lie in the group's area, which stays while `End` has lent a buffer
            // of it.
            unsafe { export(slf.as_any(), view, flags, start as *mut u8, length, true) }
        });
        if shown.is_err() {
            this.end.take_back();
        }
        shown
    }

    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {
        self.end.take_back();
    }

    fn __repr__(&self) -> String {
        format!("<hamlyn.GroupPart of member {}, {} bytes>", self.member, self.length)
    }
}

fn late<T>(result: Result<T, GroupError>) -> Result<Option<T>, GroupError> {
    match result {
        Ok(done) => Ok(Some(done)),
        Err(GroupError::TimedOut { .. } | GroupError::NotInTime) => Ok(None),
        Err(e) => Err(e),
    }
}

#[cold]
fn shown(buffers: usize) -> PyErr {
    PyBufferError::new_err(format!("{buffers} views or arrays still show parts"))
}

type Lengths = Vec<(u32, usize)>;

fn lengths_of(parts: protocol::Parts<'_>) -> Lengths {
    parts.iter().map(|(member, bytes)| (member, bytes.len())).collect()
}

#[pymethods]
impl Group {
    /// A group of `members` places, with parts of up to `part_nbytes` bytes; `scatter_nbytes`: most
    /// bytes that it sends to a member, the same number unless given.
    #[new]
    #[pyo3(signature = (manager, members, part_nbytes, *, scatter_nbytes=None))]
    fn new(
        py: Python<'_>,
        manager: &Manager,
        members: u32,
        part_nbytes: usize,
        scatter_nbytes: Option<usize>,
    ) -> PyResult<Self> {
        let node = manager.inner.node()?;
        let mut config = GroupConfig::new(members, part_nbytes);
        config.scatter_bytes = scatter_nbytes.unwrap_or(part_nbytes);
        let end = py.detach(|| protocol::Group::new(&node, config)).or_raise()?;
        Ok(Self { end: End::new(&manager.inner, end) })
    }

    /// A seed from which the member in one place can be grown, and its replacement, if it is lost.
    fn seed_of(&self, py: Python<'_>, member: u32) -> PyResult<Seed> {
        let _slow = self.end.inner.slow();
        Ok(Seed { seed: self.end.with(py, |end| end.seed_of(member))?.or_raise()? })
    }

    /// Waits at most `timeout` seconds until the part of every member has arrived. The parts are
    /// stable until `next_round()`. If a member dies before its part has arrived, raises `Closed`,
    /// which names it; parts that have arrived stay.
    #[pyo3(signature = (timeout=None))]
    fn gather(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Vec<GroupPart>> {
        let members = self.end.with(py, |end| end.members())?;
        self.wait_for(py, members, timeout)
    }

    /// Waits at most `timeout` seconds until the parts of any `k` members have arrived. A lost
    /// member is no error while `k` can still be reached.
    #[pyo3(signature = (k, timeout=None))]
    fn wait_for(&self, py: Python<'_>, k: u32, timeout: Option<f64>) -> PyResult<Vec<GroupPart>> {
        let found = self.end.wait(
            py,
            timeout,
            |end| late(end.wait_for(k, Some(Duration::ZERO)).map(lengths_of)),
            |end, slice| late(end.wait_for(k, Some(slice)).map(lengths_of)),
        )?;
        match found {
            Some(lengths) => self.hand_out(py, lengths),
            None => {
                let text = self.end.with(py, |end| {
                    let arrived: Vec<String> = end.arrived().map(|of| of.to_string()).collect();
                    let arrived = match &*arrived {
                        [] => "none has arrived".into(),
                        some => format!("arrived have those of {}", some.join(", ")),
                    };
                    format!("parts of {k} members were waited for within the time limit; {arrived}")
                })?;
                Err(error(Kind::TimedOut, text))
            }
        }
    }

    /// The parts that have arrived, without waiting.
    fn parts(&self, py: Python<'_>) -> PyResult<Vec<GroupPart>> {
        let lengths = self.end.with(py, |end| lengths_of(end.parts()))?;
        self.hand_out(py, lengths)
    }

    /// Ends the round: the bytes of its parts may change from now on. Raises `BufferError` while an
    /// array or a view shows them.
    fn next_round(&self, py: Python<'_>) -> PyResult<()> {
        // Checked with the group locked: a thread that lends a part afterwards gets an error.
        self.end
            .with(py, |end| match self.end.buffers() {
                0 => {
                    end.next_round();
                    Ok(())
                }
                n => Err(n),
            })?
            .map_err(shown)
    }

    /// Sends each member its item of `parts`; waits at most `timeout` seconds, and sees Ctrl-C
    /// after that.
    #[pyo3(signature = (parts: "Sequence[Buffer]", timeout=10.0))]
    fn scatter(
        &self,
        py: Python<'_>,
        parts: Vec<Bound<'_, PyAny>>,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        self.check_count(py, &parts)?;
        let _slow = self.end.inner.slow();
        with_all_bytes(&parts, |parts| {
            let timeout = duration(timeout)?;
            let scatter =
                |end: &mut protocol::Group| end.scatter(timeout, |member| parts[member as usize]);
            self.end.with(py, scatter)?.or_raise()
        })
    }

    // `scatter` to these members, as far as they have room; returns the numbers of those without
    // room.
    #[pyo3(signature = (parts: "Sequence[Buffer]", members))]
    fn _scatter_to(
        &self,
        py: Python<'_>,
        parts: Vec<Bound<'_, PyAny>>,
        members: Vec<u32>,
    ) -> PyResult<Vec<u32>> {
        self.check_count(py, &parts)?;
        with_all_bytes(&parts, |parts| self.send_to(py, &members, |member| parts[member as usize]))
    }

    // `broadcast` to these members, in the same way.
    #[pyo3(signature = (data: "Buffer", members))]
    fn _broadcast_to(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        members: Vec<u32>,
    ) -> PyResult<Vec<u32>> {
        with_bytes(data, |data| self.send_to(py, &members, |_| data))
    }

    // Whether all cut-off messages have left completely.
    fn _try_flush(&self, py: Python<'_>) -> PyResult<bool> {
        let flushed = self.end.with(py, |end| begun(end.flush(Some(Duration::ZERO))))?;
        Ok(flushed.or_raise()? == Some(true))
    }

    /// Sends the same bytes to each member, as `scatter` does.
    #[pyo3(signature = (data: "Buffer", timeout=10.0))]
    fn broadcast(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        let _slow = self.end.inner.slow();
        with_bytes(data, |data| {
            let timeout = duration(timeout)?;
            self.end.with(py, |end| end.broadcast(data, timeout))?.or_raise()
        })
    }

    /// Waits at most `timeout` seconds until every member has come to its barrier, and lets all of
    /// them continue; the round is over. After `TimedOut` the call may be repeated.
    #[pyo3(signature = (timeout=None))]
    fn barrier(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        let done = self.end.wait_more(py, Limit::new(timeout)?, |end, slice| {
            match self.end.buffers() {
                0 => late(end.barrier(Some(slice))).map(|done| done.map(Ok)),
                n => Ok(Some(Err(n))),
            }
        })?;
        done.ok_or_else(|| error(Kind::TimedOut, "not every member has come to the barrier"))?
            .map_err(shown)
    }

    /// Places of the group.
    #[getter]
    fn members(&self, py: Python<'_>) -> PyResult<u32> {
        self.end.with(py, |end| end.members())
    }

    /// Members that have a connection now.
    #[getter]
    fn joined(&self, py: Python<'_>) -> PyResult<u32> {
        self.end.with(py, |end| end.joined())
    }

    /// The number of the round, from 1 on.
    #[getter]
    fn round(&self, py: Python<'_>) -> PyResult<u64> {
        self.end.with(py, |end| end.round())
    }

    /// The identity of a member, from the kernel; `None` while the place is free.
    fn peer(&self, py: Python<'_>, member: u32) -> PyResult<Option<Peer>> {
        self.end.with(py, |end| end.connection(member).map(|connection| peer_of(&connection)))
    }
}

receiver!(Group);

impl Group {
    fn check_count(&self, py: Python<'_>, parts: &[Bound<'_, PyAny>]) -> PyResult<()> {
        let members = self.end.with(py, |end| end.members())?;
        if parts.len() == members as usize {
            return Ok(());
        }
        let text = format!("{} parts for {members} members; nothing was sent", parts.len());
        Err(error(Kind::Misuse, text))
    }

    /// Sends as far as there is room; returns the numbers of the members without room.
    fn send_to<'a>(
        &self,
        py: Python<'_>,
        members: &[u32],
        part: impl Fn(u32) -> &'a [u8] + Send,
    ) -> PyResult<Vec<u32>> {
        match self.end.with(py, |end| end.scatter_to(members, Some(Duration::ZERO), part))? {
            Err(GroupError::TimedOut { missing, .. }) => Ok(missing),
            done => done.or_raise().map(|()| Vec::new()),
        }
    }

    fn hand_out(&self, py: Python<'_>, lengths: Lengths) -> PyResult<Vec<GroupPart>> {
        let round = self.end.with(py, |end| end.round())?;
        let part = |(member, length)| GroupPart { end: self.end.clone(), member, round, length };
        Ok(lengths.into_iter().map(part).collect())
    }
}

/// Sends with `send`; `flush` sends the rest that a time limit has cut off, until `timeout`.
fn send_whole<T: Send>(
    py: Python<'_>,
    end: &End<T>,
    timeout: Option<f64>,
    mut send: impl FnMut(&mut T, Duration) -> Result<(), GroupError> + Send,
    mut flush: impl FnMut(&mut T, Duration) -> Result<(), GroupError> + Send,
) -> PyResult<()> {
    let limit = Limit::new(timeout)?;
    let mut is_cut_off = false;
    let sent = end.wait_more(py, limit, |end, slice| {
        let sent = if is_cut_off { flush(end, slice) } else { send(end, slice) };
        match sent {
            Err(GroupError::CutOff) => {
                is_cut_off = true;
                Ok(None)
            }
            sent => late(sent),
        }
    })?;
    sent.ok_or_else(|| match is_cut_off {
        true => error(Kind::CutOff, GroupError::CutOff),
        false => error(Kind::TimedOut, GroupError::NotInTime),
    })
}

/// How much of a message has left without waiting: `None`: nothing; `false`: it has begun, and
/// `flush` sends the rest.
fn begun(sent: Result<(), GroupError>) -> Result<Option<bool>, GroupError> {
    match late(sent) {
        Err(GroupError::CutOff) => Ok(Some(false)),
        sent => Ok(sent?.map(|()| true)),
    }
}

/// A delegated piece of a member's part: the right to send that many bytes to the root, once. It
/// travels as bytes.
#[pyclass(module = "hamlyn", frozen)]
pub struct DelegatedPart {
    part: protocol::Part,
}

#[pymethods]
impl DelegatedPart {
    /// Reads the bytes of `bytes(part)`. The root decides whether it is valid.
    #[staticmethod]
    #[pyo3(signature = (data: "Buffer"))]
    fn from_bytes(data: &Bound<'_, PyAny>) -> PyResult<Self> {
        with_bytes(data, |data| Ok(Self { part: protocol::Part::from_bytes(data).or_raise()? }))
    }

    fn __bytes__<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.part.to_bytes())
    }

    fn __len__(&self) -> usize {
        self.part.length()
    }

    fn __repr__(&self) -> String {
        format!("<hamlyn.DelegatedPart of {} bytes>", self.part.length())
    }
}

/// Sends pieces that members of a group have delegated. It takes no place in the group.
#[pyclass(module = "hamlyn", frozen, weakref)]
pub struct GroupHelper {
    end: Arc<End<protocol::GroupHelper>>,
}

#[pymethods]
impl GroupHelper {
    /// Sends `data`, all bytes of a piece, waiting at most `timeout` seconds for room.
    #[pyo3(signature = (part, data: "Buffer", timeout=None))]
    fn send(
        &self,
        py: Python<'_>,
        part: &DelegatedPart,
        data: &Bound<'_, PyAny>,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        with_bytes(data, |data| {
            let send =
                |end: &mut protocol::GroupHelper, slice| end.send(&part.part, data, Some(slice));
            send_whole(py, &self.end, timeout, send, |end, slice| end.flush(Some(slice)))
        })
    }

    // Whether the piece has left without waiting: `None`: nothing was sent; `False`: `_try_flush`
    // sends the rest.
    #[pyo3(signature = (part, data: "Buffer"))]
    fn _try_send(
        &self,
        py: Python<'_>,
        part: &DelegatedPart,
        data: &Bound<'_, PyAny>,
    ) -> PyResult<Option<bool>> {
        with_bytes(data, |data| {
            let now = Some(Duration::ZERO);
            self.end.with(py, |end| begun(end.send(&part.part, data, now)))?.or_raise()
        })
    }

    // Whether the rest has left.
    fn _try_flush(&self, py: Python<'_>) -> PyResult<bool> {
        let flushed = self.end.with(py, |end| begun(end.flush(Some(Duration::ZERO))))?;
        Ok(flushed.or_raise()? == Some(true))
    }

    /// The identity of the root, from the kernel.
    #[getter]
    fn peer(&self, py: Python<'_>) -> PyResult<Peer> {
        self.end.with(py, |end| peer_of(end.connection()))
    }

    /// The reason why the connection ended; `None` while it has not.
    #[getter]
    fn ended(&self, py: Python<'_>) -> PyResult<Option<String>> {
        self.end.with(py, |end| end.connection().ended().map(crate::events::reason_text))
    }
}

common!(GroupHelper, |end| Some(end.connection()));
grown!(GroupHelper);

/// A member of a group.
#[pyclass(module = "hamlyn", frozen, weakref)]
pub struct GroupMember {
    end: Arc<End<protocol::GroupMember>>,
}

#[pymethods]
impl GroupMember {
    /// Grows a member from a group's seed, waiting at most `timeout` seconds for the root's answer.
    /// The root may send it up to `receive_nbytes` bytes at once.
    #[staticmethod]
    #[pyo3(signature = (manager, seed: "Seed | Buffer | str", receive_nbytes, timeout=10.0))]
    fn grow(
        py: Python<'_>,
        manager: &Manager,
        seed: &Bound<'_, PyAny>,
        receive_nbytes: usize,
        timeout: Option<f64>,
    ) -> PyResult<Self> {
        let end =
            grow(py, manager, seed, receive_nbytes, timeout, identity::<protocol::GroupMember>)?;
        Ok(Self { end })
    }

    /// Grows a member of the group that a job's rank offers under `name`, waiting for it at most
    /// `timeout` seconds.
    #[staticmethod]
    #[pyo3(signature = (job, rank, name, receive_nbytes, timeout=10.0))]
    fn grow_from(
        py: Python<'_>,
        job: &Job,
        rank: u32,
        name: String,
        receive_nbytes: usize,
        timeout: Option<f64>,
    ) -> PyResult<Self> {
        let wrap = identity::<protocol::GroupMember>;
        Ok(Self { end: job.grow(py, (rank, name), receive_nbytes, timeout, wrap)? })
    }

    /// Grows a member of the group served as `[user@]name`.
    #[staticmethod]
    #[pyo3(signature = (manager, name, receive_nbytes, timeout=10.0))]
    fn connect(
        py: Python<'_>,
        manager: &Manager,
        name: String,
        receive_nbytes: usize,
        timeout: Option<f64>,
    ) -> PyResult<Self> {
        let wrap = identity::<protocol::GroupMember>;
        Ok(Self { end: connect(py, manager, name, receive_nbytes, timeout, wrap)? })
    }

    /// Its place in the group, from 0 on.
    #[getter]
    fn number(&self, py: Python<'_>) -> PyResult<u32> {
        self.end.with(py, |end| end.number())
    }

    /// Places of the group.
    #[getter]
    fn members(&self, py: Python<'_>) -> PyResult<u32> {
        self.end.with(py, |end| end.members())
    }

    /// Most bytes of a part.
    #[getter]
    fn part_nbytes(&self, py: Python<'_>) -> PyResult<usize> {
        self.end.with(py, |end| end.part_bytes())
    }

    /// Sends this member's part of the round, waiting at most `timeout` seconds for the round to
    /// begin and for room.
    #[pyo3(signature = (part: "Buffer", timeout=None))]
    fn send(&self, py: Python<'_>, part: &Bound<'_, PyAny>, timeout: Option<f64>) -> PyResult<()> {
        with_bytes(part, |part| {
            let send = |end: &mut protocol::GroupMember, slice| end.send(part, Some(slice));
            send_whole(py, &self.end, timeout, send, |end, slice| end.flush(Some(slice)))
        })
    }

    // Whether the part has left without waiting: `None`: nothing was sent; `False`: `_try_flush`
    // sends the rest.
    #[pyo3(signature = (part: "Buffer"))]
    fn _try_send(&self, py: Python<'_>, part: &Bound<'_, PyAny>) -> PyResult<Option<bool>> {
        with_bytes(part, |part| {
            let now = Some(Duration::ZERO);
            self.end.with(py, |end| begun(end.send(part, now)))?.or_raise()
        })
    }

    // The same of a piece.
    #[pyo3(signature = (part, data: "Buffer"))]
    fn _try_send_part(
        &self,
        py: Python<'_>,
        part: &DelegatedPart,
        data: &Bound<'_, PyAny>,
    ) -> PyResult<Option<bool>> {
        with_bytes(data, |data| {
            let now = Some(Duration::ZERO);
            self.end.with(py, |end| begun(end.send_part(&part.part, data, now)))?.or_raise()
        })
    }

    // Whether the rest has left.
    fn _try_flush(&self, py: Python<'_>) -> PyResult<bool> {
        let flushed = self.end.with(py, |end| begun(end.flush(Some(Duration::ZERO))))?;
        Ok(flushed.or_raise()? == Some(true))
    }

    /// Delegates this member's part of the round, `nbytes` bytes, in `n` nearly equal pieces; a
    /// `GroupHelper`, or another member, sends each, and the part has arrived when all have. Waits
    /// at most `timeout` seconds for the round to begin. This member is responsible for its
    /// helpers: if one does not send, the root waits until this member ends.
    #[pyo3(signature = (nbytes, n, timeout=None))]
    fn delegate(
        &self,
        py: Python<'_>,
        nbytes: usize,
        n: u32,
        timeout: Option<f64>,
    ) -> PyResult<Vec<DelegatedPart>> {
        let parts = self.end.wait(
            py,
            timeout,
            |end| late(end.delegate(nbytes, n, Some(Duration::ZERO))),
            |end, slice| late(end.delegate(nbytes, n, Some(slice))),
        )?;
        let parts = parts.ok_or_else(|| error(Kind::TimedOut, GroupError::NotInTime))?;
        Ok(parts.into_iter().map(|part| DelegatedPart { part }).collect())
    }

    /// Sends a piece that another member, or this one, has delegated; all of it. Waits at most
    /// `timeout` seconds for room.
    #[pyo3(signature = (part, data: "Buffer", timeout=None))]
    fn send_part(
        &self,
        py: Python<'_>,
        part: &DelegatedPart,
        data: &Bound<'_, PyAny>,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        with_bytes(data, |data| {
            let send = |end: &mut protocol::GroupMember, slice| {
                end.send_part(&part.part, data, Some(slice))
            };
            send_whole(py, &self.end, timeout, send, |end, slice| end.flush(Some(slice)))
        })
    }

    /// Receives the root's next scatter or broadcast; waits at most `timeout` seconds.
    #[pyo3(signature = (timeout=None))]
    fn receive<'py>(&self, py: Python<'py>, timeout: Option<f64>) -> PyResult<Bound<'py, PyBytes>> {
        let found = self.end.wait(
            py,
            timeout,
            |end| late(end.receive(Some(Duration::ZERO))),
            |end, slice| late(end.receive(Some(slice))),
        )?;
        let found = found.ok_or_else(|| error(Kind::TimedOut, GroupError::NotInTime))?;
        Ok(PyBytes::new(py, &found))
    }

    /// Comes to the barrier: waits at most `timeout` seconds until every member has, and the root
    /// lets all continue. After `TimedOut` repeat the call.
    #[pyo3(signature = (timeout=None))]
    fn barrier(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        let done = self
            .end
            .wait_more(py, Limit::new(timeout)?, |end, slice| late(end.barrier(Some(slice))))?;
        done.ok_or_else(|| error(Kind::TimedOut, GroupError::NotInTime))
    }
}

sender!(GroupMember);
