//! The control plane: how two processes find one another, agree, and learn of each other's end.
//!
//! There is no daemon. Each process that serves has a Unix socket with a name; whoever connects
//! gets two pieces of shared memory and a socket for wake-ups, and from then on packets flow
//! without the system. What remains is asleep until something happens:
//!
//! - [`names`]: what services are called, where their sockets lie, who may take a name.
//! - [`hello`]: the frames of the control socket, versions and features.
//! - [`handshake`]: a shared-memory link's pages: who makes, pays for, seals and maps them.
//! - [`housekeeper`]: [`Control`]: accepting, quotas, deadlines, deaths, bulk rings, apertures,
//!   statistics.
//!
//! The application (through [`crate::node`]) sees [`Control`], its [`Inbox`] and [`NewLink`]s.

pub mod handshake;
pub mod hello;
pub mod housekeeper;
pub mod names;

pub use handshake::ConnectError;
pub use hello::{LinkFeatures, Reason};
pub use housekeeper::{
    Accept, AcceptError, ApertureError, CloseReason, Control, ControlEvent, Inbox, LinkToken,
    NewLink, Peer, RequestId, StartError, stat_of,
};
pub use names::{
    Access, DirectoryError, FindError, NameError, ServeError, ServiceEntry, ServiceName,
    list_services, setup_shared_dir,
};

/// Most bytes of the application's own first words, each way.
pub const GREETING_BYTES_MAX: usize = 4096;

const FORKED: &str = "this process is a forked child; the links belong to its parent, and a child \
                      starts its own";
