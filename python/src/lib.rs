//! The extension module `hamlyn._hamlyn`: the library's objects for Python.
//!
//! - `manager.rs`: `Manager`; `inner.rs`: the common state of its objects, waiting, closing
//! - `parts.rs`: areas, queues, slots, tickets, links; `events.rs`: events of links
//! - `end.rs`: common parts of all end points; `seed.rs`: seeds; `tagged.rs` and so on: one
//!   protocol each
//! - `job.rs`: the ranks of a parallel program
//! - `bytes.rs`: the buffer protocol, both ways; the only `unsafe` code besides an area's address and
//!   the memory of loans
//! - `array.rs`: arrays with type and shape in messages; `record_loan.rs`: records that are written first
//! - `admission.rs`: callbacks that decide who may grow a sender
//! - `directory.rs`: callbacks that find the hosts of services
//! - `log.rs`: log entries for an operator, on their way to `logging`
//! - `wait.rs`: waiting without the interpreter's lock
//! - `errors.rs`: exceptions
//!
//! `hamlyn/__init__.py` and `hamlyn/_hamlyn.pyi` document the module for Python programs.

mod admission;
mod aperture;
mod array;
mod byte_stream;
mod bytes;
mod call;
mod datagram;
#[cfg(feature = "tls")]
mod directory;
mod end;
mod errors;
mod events;
mod group;
mod inner;
mod job;
mod lent;
mod log;
mod manager;
mod parts;
mod publish;
mod reconnect;
mod record_loan;
mod request;
mod seed;
mod stream;
mod stream_sender;
mod subscribe;
mod tagged;
mod wait;

use pyo3::prelude::*;

/// Hamlyn's objects; see the package `hamlyn`.
// The interpreter's lock protects the counts of views of loans and areas: without it they are
// unsound.
#[pymodule(gil_used = true)]
mod _hamlyn {
    #[pymodule_export]
    use crate::aperture::Aperture;
    #[pymodule_export]
    use crate::array::{Loan, pack_array, unpack_array};
    #[pymodule_export]
    use crate::byte_stream::{ByteListener, ByteStream};
    #[pymodule_export]
    use crate::call::{Call, Client, Server};
    #[pymodule_export]
    use crate::datagram::{Datagram, DatagramReceiver, DatagramSender};
    #[cfg(feature = "tls")]
    #[pymodule_export]
    use crate::directory::_Answer;
    #[pymodule_export]
    use crate::events::{
        ApertureChanged, Connected, LinkClosed, LinkRequest, LinkRequestGone, TicketRevoked,
    };
    #[pymodule_export]
    use crate::group::{DelegatedPart, Group, GroupHelper, GroupMember, GroupPart};
    #[pymodule_export]
    use crate::job::Job;
    #[pymodule_export]
    use crate::manager::{Manager, settings};
    #[pymodule_export]
    use crate::parts::{Area, Link, Notified, Peer, Queue, Slot, Ticket};
    #[pymodule_export]
    use crate::publish::{Publisher, SampleLoan, SubscriberState};
    #[pymodule_export]
    use crate::reconnect::{_ReconnectingCall, ReconnectingClient};
    #[pymodule_export]
    use crate::record_loan::RecordLoan;
    #[pymodule_export]
    use crate::request::Request;
    #[pymodule_export]
    use crate::seed::Seed;
    #[pymodule_export]
    use crate::stream::{ApertureStreamReceiver, Record, StreamReceiver, VolatileRecord};
    #[pymodule_export]
    use crate::stream_sender::{ApertureStreamSender, StreamSender};
    #[pymodule_export]
    use crate::subscribe::{Sample, Samples, Subscriber};
    #[pymodule_export]
    use crate::tagged::{Tagged, TaggedReceiver, TaggedSender};

    #[pymodule_export]
    use crate::log::{_close_log, _next_entry, _open_log};
    #[pymodule_export]
    use crate::wait::{_Work, _set_slice};

    /// The version of this package and of the library in it.
    #[pymodule_export]
    #[allow(non_upper_case_globals)]
    const __version__: &str = env!("CARGO_PKG_VERSION");

    #[pymodule_init]
    fn init(py: pyo3::Python<'_>) -> pyo3::PyResult<()> {
        crate::admission::register(py)
    }
}
