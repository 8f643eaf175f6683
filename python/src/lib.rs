//! The extension module `hamlyn._hamlyn`: the library's objects for Python.
//!
//! - `manager.rs`: `Manager`; `inner.rs`: what all its objects share, waiting, closing
//! - `parts.rs`: areas, queues, slots, tickets, links; `events.rs`: what is told of links
//! - `end.rs`: what all end points have in common; `seed.rs`: seeds; `tagged.rs` and so on: one
//!   protocol each
//! - `bytes.rs`: the buffer protocol, both ways; the only `unsafe` code besides an area's address
//! - `admission.rs`: callbacks that decide who may grow a sender
//! - `wait.rs`: waiting without the interpreter's lock
//! - `errors.rs`: exceptions
//!
//! What Python programs see of it is documented in `hamlyn/__init__.py` and `hamlyn/_hamlyn.pyi`.

mod admission;
mod aperture;
mod bytes;
mod call;
mod datagram;
mod end;
mod errors;
mod events;
mod group;
mod inner;
mod manager;
mod parts;
mod seed;
mod stream;
mod tagged;
mod wait;

use pyo3::prelude::*;

/// Hamlyn's objects; see the package `hamlyn`.
#[pymodule]
mod _hamlyn {
    #[pymodule_export]
    use crate::aperture::Aperture;
    #[pymodule_export]
    use crate::call::{Call, Client, Request, Server};
    #[pymodule_export]
    use crate::datagram::{Datagram, DatagramReceiver, DatagramSender};
    #[pymodule_export]
    use crate::events::{
        ApertureChanged, Connected, LinkClosed, LinkRequest, LinkRequestGone, TicketRevoked,
    };
    #[pymodule_export]
    use crate::group::{DelegatedPart, Group, GroupHelper, GroupMember, GroupPart};
    #[pymodule_export]
    use crate::manager::{Manager, settings};
    #[pymodule_export]
    use crate::parts::{Area, Link, Notified, Peer, Queue, Slot, Ticket};
    #[pymodule_export]
    use crate::seed::Seed;
    #[pymodule_export]
    use crate::stream::{
        ApertureStreamReceiver, ApertureStreamSender, Record, StreamReceiver, StreamSender,
        VolatileRecord,
    };
    #[pymodule_export]
    use crate::tagged::{Tagged, TaggedReceiver, TaggedSender};

    #[pymodule_export]
    use crate::wait::_set_slice;

    #[pymodule_init]
    fn init(module: &pyo3::Bound<'_, pyo3::types::PyModule>) -> pyo3::PyResult<()> {
        crate::admission::register(module)
    }
}
