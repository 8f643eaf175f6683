//! Apertures: memory that two processes map. Bytes are only ever copied in and out, because the
//! other process may change them, or take them back, at any time.

use crate::array::{self, HEAD_BYTES_MAX, Header};
use crate::bytes::{with_bytes, with_bytes_mut};
use crate::errors::{Kind, OrRaise, error};
use crate::inner::{Inner, locked};
use crate::parts::{Area, Link};
use hamlyn::node::{ExportError, NoSuchAperture};
use hamlyn::{AccessError, ApertureAccess, ApertureId, ApertureView};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::sync::{Arc, Mutex};

/// Copies from this size on are made without the interpreter's lock.
const HELD_BYTES_MAX: usize = 16 << 10;

/// An aperture: memory of its owner, mapped into a holder at the other end of a link; a read-only
/// one may have several holders, each over a link of its own (`Link.export_also`). Announce written
/// bytes with a message; copy bytes out that have to be stable.
#[pyclass(module = "hamlyn", frozen, weakref)]
pub struct Aperture {
    inner: Arc<Inner>,
    id: ApertureId,
    is_owner: bool,
    pages: Mutex<Option<Pages>>,
}

/// The pages of either side.
#[derive(Clone)]
enum Pages {
    Owned(ApertureView),
    Held(hamlyn::Aperture),
}

macro_rules! of_either {
    ($pages:expr, $side:ident => $call:expr) => {
        match $pages {
            Pages::Owned($side) => $call,
            Pages::Held($side) => $call,
        }
    };
}

impl Aperture {
    /// Exports new memory over a link.
    pub fn export(py: Python<'_>, link: &Link, nbytes: u64, writable: bool) -> PyResult<Self> {
        let access = if writable { ApertureAccess::ReadWrite } else { ApertureAccess::ReadOnly };
        let _slow = link.inner.slow();
        let id = link.inner.with(py, |node| node.export(link.id, nbytes, access))?.or_raise()?;
        Ok(Self { inner: link.inner.clone(), id, is_owner: true, pages: Mutex::new(None) })
    }

    /// Exports an aperture of this manager over another link as well.
    pub fn export_also(&self, py: Python<'_>, link: &Link) -> PyResult<Self> {
        if !Arc::ptr_eq(&self.inner, &link.inner) {
            let text = "the link is another manager's, and the aperture is not";
            return Err(error(Kind::Misuse, text.to_string()));
        }
        let id = self.inner.with(py, |node| node.export_also(self.id, link.id))?.or_raise()?;
        Ok(Self { inner: self.inner.clone(), id, is_owner: true, pages: Mutex::new(None) })
    }

    /// An aperture that this side holds.
    pub fn held(py: Python<'_>, link: &Link, number: u32) -> PyResult<Self> {
        let id = ApertureId { link: link.id, number };
        let held = link.inner.with(py, |node| node.aperture(id))?.or_raise()?;
        let pages = Mutex::new(Some(Pages::Held(held)));
        Ok(Self { inner: link.inner.clone(), id, is_owner: false, pages })
    }

    fn pages(&self, py: Python<'_>) -> PyResult<Pages> {
        self.inner.check_open()?;
        if let Some(pages) = &*locked(&self.pages) {
            return Ok(pages.clone());
        }
        let view = self.inner.with(py, |node| node.aperture_view(self.id))?.or_raise()?;
        let pages = Pages::Owned(view);
        *locked(&self.pages) = Some(pages.clone());
        Ok(pages)
    }

    /// Remembers the pages, if there are any yet, so that `revoked` can ask them when the node no
    /// longer knows them.
    fn remember(&self, py: Python<'_>) {
        let _ = self.pages(py);
    }

    fn must_be(&self, owner: bool, what: &str) -> PyResult<()> {
        if self.is_owner == owner {
            return Ok(());
        }
        let who = if owner { "owner" } else { "holder" };
        Err(error(Kind::Misuse, format!("only the {who} of an aperture can {what} it")))
    }
}

#[pymethods]
impl Aperture {
    /// Its number on its link, the same at both ends: messages refer to the aperture by it.
    #[getter]
    fn number(&self) -> u32 {
        self.id.number
    }

    /// The link between owner and holder.
    #[getter]
    fn link(&self) -> Link {
        Link { inner: self.inner.clone(), id: self.id.link }
    }

    /// Whether this side owns it.
    #[getter]
    fn owned(&self) -> bool {
        self.is_owner
    }

    /// Its size in bytes. At its owner raises `Unreachable` before the event `"ready"`.
    #[getter]
    fn nbytes(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(of_either!(&self.pages(py)?, pages => pages.bytes()))
    }

    /// Whether the holder may write.
    #[getter]
    fn writable(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(of_either!(&self.pages(py)?, pages => pages.access() == ApertureAccess::ReadWrite))
    }

    /// Whether it was revoked, or, at its holder, its link has ended. At an owner with several
    /// holders (`Link.export_also`), `False` until it was revoked for the last of them, or
    /// reclaimed.
    #[getter]
    fn revoked(&self, py: Python<'_>) -> PyResult<bool> {
        self.inner.check_open()?;
        if let Some(pages) = &*locked(&self.pages) {
            return Ok(of_either!(pages, pages => pages.is_revoked()));
        }
        match self.inner.with(py, |node| node.aperture_view(self.id))? {
            Ok(view) => Ok(view.is_revoked()),
            // It was exported, or this object would not exist: so it has been revoked.
            Err(NoSuchAperture::Gone(_)) => Ok(true),
            // The other side does not have it yet.
            Err(_) => Ok(false),
        }
    }

    /// Copies `data` to `offset`. A message sent afterwards makes the bytes visible to its
    /// receiver.
    #[pyo3(signature = (offset, data: "Buffer"))]
    fn write(&self, py: Python<'_>, offset: u64, data: &Bound<'_, PyAny>) -> PyResult<()> {
        let pages = self.pages(py)?;
        with_bytes(data, |data| {
            let write = || of_either!(&pages, pages => pages.write(offset, data));
            let written = if data.len() > HELD_BYTES_MAX { py.detach(write) } else { write() };
            written.or_raise()
        })
    }

    /// Copies `nbytes` bytes out, from `offset` on.
    fn read<'py>(
        &self,
        py: Python<'py>,
        offset: u64,
        nbytes: usize,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let pages = self.pages(py)?;
        // Before the memory for them is allocated.
        let bytes = of_either!(&pages, pages => pages.bytes());
        if offset > bytes || nbytes as u64 > bytes - offset {
            let length = nbytes as u64;
            return Err(AccessError::OutOfBounds { offset, length, bytes }).or_raise();
        }
        PyBytes::new_with(py, nbytes, |to| {
            let is_long = nbytes > HELD_BYTES_MAX;
            let mut read = || of_either!(&pages, pages => pages.read(offset, to));
            let read = if is_long { py.detach(read) } else { read() };
            read.or_raise()
        })
    }

    /// Copies from `offset` into `target`, a numpy array or another writable buffer, all of it.
    #[pyo3(signature = (offset, target: "Buffer"))]
    fn read_into(&self, py: Python<'_>, offset: u64, target: &Bound<'_, PyAny>) -> PyResult<()> {
        let pages = self.pages(py)?;
        with_bytes_mut(target, |to| {
            let is_long = to.len() > HELD_BYTES_MAX;
            let mut read = || of_either!(&pages, pages => pages.read(offset, to));
            let read = if is_long { py.detach(read) } else { read() };
            read.or_raise()
        })
    }

    /// Copies an array to `offset`, with its type and shape, for `read_array` at the other end.
    /// Returns the number of bytes written. Raises `BufferError` as `pack_array`.
    #[pyo3(signature = (offset, array: "Buffer"))]
    fn write_array(
        &self,
        py: Python<'_>,
        offset: u64,
        array: &Bound<'_, PyAny>,
    ) -> PyResult<usize> {
        let pages = self.pages(py)?;
        array::with_message(array, |data| {
            let write = || of_either!(&pages, pages => pages.write(offset, data));
            let written = if data.len() > HELD_BYTES_MAX { py.detach(write) } else { write() };
            written.or_raise().map(|()| data.len())
        })
    }

    /// Copies the array at `offset` out: its header first, which is checked, then the rest. Raises
    /// `ArrayError` if there is no array there, or it reaches outside. Needs numpy.
    #[pyo3(signature = (offset) -> "AnyArray")]
    fn read_array<'py>(&self, py: Python<'py>, offset: u64) -> PyResult<Bound<'py, PyAny>> {
        let pages = self.pages(py)?;
        let bytes = of_either!(&pages, pages => pages.bytes());
        let left = bytes.saturating_sub(offset);
        let mut head = vec![0; left.min(HEAD_BYTES_MAX as u64) as usize];
        of_either!(&pages, pages => pages.read(offset, &mut head)).or_raise()?;
        let header = Header::of_part(&head)?;
        if header.total() > left {
            let (total, bytes) = (header.total(), bytes);
            let text = format!(
                "the array at {offset} says that it has {total} bytes; the aperture ends at {bytes}"
            );
            return Err(error(Kind::Array, text));
        }
        header.filled(py, |to| {
            let is_long = to.len() > HELD_BYTES_MAX;
            let at = offset + header.start() as u64;
            let mut read = || of_either!(&pages, pages => pages.read(at, to));
            let read = if is_long { py.detach(read) } else { read() };
            read.or_raise()
        })
    }

    /// Reads the word of 8 bytes at `offset`, a multiple of 8, atomically; later reads see all that
    /// the writer wrote before it.
    fn read_word(&self, py: Python<'_>, offset: u64) -> PyResult<u64> {
        of_either!(&self.pages(py)?, pages => pages.read_u64(offset)).or_raise()
    }

    /// Stores the word at `offset`, atomically, after all earlier writes.
    fn write_word(&self, py: Python<'_>, offset: u64, value: u64) -> PyResult<()> {
        of_either!(&self.pages(py)?, pages => pages.write_u64(offset, value)).or_raise()
    }

    /// Owner: revokes it, at once; later writes of the holder reach no other process. If it has
    /// other holders (`Link.export_also`), only this holder is notified: the pages stay, and can
    /// still be read and written here, if that was done before.
    fn revoke(&self, py: Python<'_>) -> PyResult<()> {
        self.must_be(true, "revoke")?;
        self.remember(py);
        let _slow = self.inner.slow();
        self.inner.with(py, |node| node.revoke_aperture(self.id))?.or_raise()
    }

    /// Owner: revokes it, at once, for all holders, and makes a message area of its bytes,
    /// unchanged.
    fn reclaim(&self, py: Python<'_>) -> PyResult<Area> {
        self.must_be(true, "reclaim")?;
        self.remember(py);
        let _slow = self.inner.slow();
        let id = self.inner.with(py, |node| node.reclaim_aperture(self.id))?.or_raise()?;
        Area::of(py, &self.inner, id)
    }

    /// Holder: releases it, and notifies its owner.
    fn release(&self, py: Python<'_>) -> PyResult<()> {
        self.must_be(false, "release")?;
        self.inner.with(py, |node| node.release_aperture(self.id))?.or_raise()
    }

    fn __repr__(&self) -> String {
        let side = if self.is_owner { "owned" } else { "held" };
        format!("<hamlyn.Aperture {} {side}>", self.id.number)
    }
}

impl crate::errors::ToPy for NoSuchAperture {
    fn to_py(self) -> PyErr {
        error(Kind::Closed, self)
    }
}

impl crate::errors::ToPy for AccessError {
    fn to_py(self) -> PyErr {
        let kind = match &self {
            Self::Revoked => Kind::Closed,
            Self::Forked => Kind::Forked,
            Self::Silent | Self::Busy(_) => Kind::TimedOut,
            _ => Kind::Misuse,
        };
        error(kind, self)
    }
}

impl crate::errors::ToPy for ExportError {
    fn to_py(self) -> PyErr {
        let kind = match &self {
            Self::Link(_) => Kind::Closed,
            Self::Os { .. } => Kind::Os,
            Self::Forked(_) => Kind::Forked,
            _ => Kind::Misuse,
        };
        error(kind, self)
    }
}
