//! A manager's events: requests, links that came or went, apertures, revoked tickets.
//!
//! `Manager.next_event` returns them. Never: the same event twice.

use crate::bytes::with_bytes;
use crate::errors::OrRaise;
use crate::inner::Inner;
use crate::parts::{Link, Peer};
use hamlyn::LinkId;
use hamlyn::node::CloseReason;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::sync::Arc;

/// A peer wants to connect to a service that asks. Without an answer the connection times out.
#[pyclass(module = "hamlyn", frozen)]
pub struct LinkRequest {
    inner: Arc<Inner>,
    id: hamlyn::control::RequestId,
    peer: hamlyn::Peer,
    greeting: Vec<u8>,
}

#[pymethods]
impl LinkRequest {
    /// A number that `Connected` and `LinkRequestGone` name.
    #[getter]
    fn id(&self) -> u64 {
        self.id.0
    }

    /// Its identity, from the kernel.
    #[getter]
    fn peer(&self) -> Peer {
        Peer { peer: self.peer.clone() }
    }

    /// The peer's greeting.
    #[getter]
    fn greeting<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.greeting)
    }

    /// Accepts the request; the peer gets `greeting`, up to 4 KiB. A `Connected` event reports the
    /// link.
    #[pyo3(signature = (greeting: "Buffer | None" = None))]
    fn accept(&self, py: Python<'_>, greeting: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let greeting =
            greeting.map_or(Ok(Vec::new()), |greeting| with_bytes(greeting, |b| Ok(b.to_vec())))?;
        self.inner.with(py, |node| node.accept(self.id, &greeting))?.or_raise()
    }

    /// Refuses the request; the peer gets `reason`.
    #[pyo3(signature = (reason=""))]
    fn refuse(&self, py: Python<'_>, reason: &str) -> PyResult<()> {
        self.inner.with(py, |node| node.refuse(self.id, reason))?.or_raise()
    }

    fn __repr__(&self) -> String {
        format!("<hamlyn.LinkRequest {} by {}>", self.id.0, self.peer().__repr__())
    }
}

/// A request was withdrawn before it was answered, or did not become a link.
#[pyclass(module = "hamlyn", frozen, get_all)]
pub struct LinkRequestGone {
    /// Its number.
    id: u64,
}

#[pymethods]
impl LinkRequestGone {
    fn __repr__(&self) -> String {
        format!("<hamlyn.LinkRequestGone {}>", self.id)
    }
}

/// Another manager has made a link.
#[pyclass(module = "hamlyn", frozen)]
pub struct Connected {
    inner: Arc<Inner>,
    link: LinkId,
    request: Option<u64>,
}

#[pymethods]
impl Connected {
    /// The link.
    #[getter]
    fn link(&self) -> Link {
        Link { inner: self.inner.clone(), id: self.link }
    }

    /// The number of the request that it comes from, if it was asked for.
    #[getter]
    fn request(&self) -> Option<u64> {
        self.request
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        format!("<hamlyn.Connected {}>", self.link().__repr__(py))
    }
}

/// A link is gone. All that its peer had sent before was received.
#[pyclass(module = "hamlyn", frozen)]
pub struct LinkClosed {
    inner: Arc<Inner>,
    link: LinkId,
    reason: String,
    unsent: usize,
}

#[pymethods]
impl LinkClosed {
    /// The ended link.
    #[getter]
    fn link(&self) -> Link {
        Link { inner: self.inner.clone(), id: self.link }
    }

    /// `"closed"`, `"died"`, `"hung up"`, `"expelled"`, or `"misbehaved: "` and the broken rule.
    #[getter]
    fn reason(&self) -> &str {
        &self.reason
    }

    /// Queued messages that did not leave.
    #[getter]
    fn unsent(&self) -> usize {
        self.unsent
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        format!("<hamlyn.LinkClosed {} {:?}>", self.link().__repr__(py), self.reason)
    }
}

/// The peer refused messages because one of its tickets has been revoked.
#[pyclass(module = "hamlyn", frozen)]
pub struct TicketRevoked {
    inner: Arc<Inner>,
    link: LinkId,
    slot: u32,
    index: u32,
}

#[pymethods]
impl TicketRevoked {
    /// The link over which they were sent.
    #[getter]
    fn link(&self) -> Link {
        Link { inner: self.inner.clone(), id: self.link }
    }

    /// The ticket's slot, at the peer.
    #[getter]
    fn slot(&self) -> u32 {
        self.slot
    }

    /// The ticket's metadata index.
    #[getter]
    fn index(&self) -> u32 {
        self.index
    }

    fn __repr__(&self) -> String {
        format!("<hamlyn.TicketRevoked slot {} entry {}>", self.slot, self.index)
    }
}

/// An aperture's state has changed.
#[pyclass(module = "hamlyn", frozen)]
pub struct ApertureChanged {
    inner: Arc<Inner>,
    id: hamlyn::ApertureId,
    what: String,
}

#[pymethods]
impl ApertureChanged {
    /// The link between its owner and its holder.
    #[getter]
    fn link(&self) -> Link {
        Link { inner: self.inner.clone(), id: self.id.link }
    }

    /// Its number on that link.
    #[getter]
    fn number(&self) -> u32 {
        self.id.number
    }

    /// At its owner `"ready"`, `"refused: "` and the reason, or `"released"`; at its holder
    /// `"held"` or `"revoked"`.
    #[getter]
    fn what(&self) -> &str {
        &self.what
    }

    fn __repr__(&self) -> String {
        format!("<hamlyn.ApertureChanged {} {:?}>", self.id.number, self.what)
    }
}

/// The reason why a link ended, in a word or two.
pub fn reason_text(reason: &CloseReason) -> String {
    match reason {
        CloseReason::Closed => "closed".into(),
        CloseReason::Died => "died".into(),
        CloseReason::HungUp => "hung up".into(),
        CloseReason::Expelled => "expelled".into(),
        CloseReason::TooSlow => "too slow".into(),
        CloseReason::Unwatched => "unwatched".into(),
        CloseReason::Misbehaved(how) => format!("misbehaved: {how}"),
    }
}

/// An event as an object of its class.
pub fn event_to_py<'py>(
    py: Python<'py>,
    inner: &Arc<Inner>,
    event: hamlyn::Event,
) -> PyResult<Bound<'py, PyAny>> {
    use hamlyn::{ApertureEvent, Event};
    let inner = inner.clone();
    Ok(match event {
        Event::Request { id, peer, greeting } => {
            Bound::new(py, LinkRequest { inner, id, peer, greeting })?.into_any()
        }
        Event::RequestGone { id } => Bound::new(py, LinkRequestGone { id: id.0 })?.into_any(),
        Event::Connected { link, request } => {
            let request = request.map(|request| request.0);
            Bound::new(py, Connected { inner, link, request })?.into_any()
        }
        Event::Closed { link, reason, unsent } => {
            let reason = reason_text(&reason);
            Bound::new(py, LinkClosed { inner, link, reason, unsent })?.into_any()
        }
        Event::TicketRevoked { link, slot, index } => {
            let (slot, index) = (slot.0, index.0);
            Bound::new(py, TicketRevoked { inner, link, slot, index })?.into_any()
        }
        Event::Aperture { aperture, what } => {
            let what = match what {
                ApertureEvent::Ready => "ready".into(),
                ApertureEvent::Refused(reason) => format!("refused: {reason}"),
                ApertureEvent::Released => "released".into(),
                ApertureEvent::Held => "held".into(),
                ApertureEvent::Revoked => "revoked".into(),
            };
            Bound::new(py, ApertureChanged { inner, id: aperture, what })?.into_any()
        }
    })
}
