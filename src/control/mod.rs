//! The control plane: two processes find one another, agree, and learn of each other's end.
//!
//! There is no daemon. Each process that serves has a Unix socket with a name. A connecting process
//! exchanges two pieces of shared memory and a socket for wake-ups with it; from then on packets
//! flow without the system. Everything else is asleep until an event.
//!
//! The decisions are pure, and run in the simulator as they run here:
//! - [`frame`]: the frames of the control socket, versions and features.
//! - [`machine`]: accepting, agreeing, quotas, deadlines, deaths, memory that travels, apertures.
//! - `text`: strangers' text, made fit to be shown ([`printable`]).
//!
//! For a host's own processes these modules perform them:
//! - [`names`]: names of services, the places of their sockets, and the rights to a name.
//! - [`identity`]: a node's key, and whether a credential is that of the process at a socket.
//! - `receiver`: threads that receive a stranger's descriptors; nothing waits for them.
//! - `hosts` (feature `tls`): links to other hosts, over TCP and TLS.
//! - [`shell`]: [`Control`]: sockets, epoll, one thread, and the machine.
//!
//! The application (through [`crate::node`]) sees [`Control`], its [`Inbox`] and [`NewLink`]s.

pub mod frame;
pub mod machine;
mod text;

#[cfg(feature = "os")]
mod directories;
#[cfg(feature = "tls")]
pub mod hosts;
#[cfg(feature = "os")]
pub mod identity;
#[cfg(feature = "os")]
mod lookups;
#[cfg(feature = "os")]
mod memory;
#[cfg(feature = "os")]
pub mod names;
#[cfg(feature = "os")]
mod receiver;
#[cfg(feature = "os")]
pub mod shell;
#[cfg(feature = "os")]
mod within;

pub use frame::{LinkFeatures, Reason};
pub use machine::{
    Accept, AcceptError, ApertureError, ConnectFailure, ConnectionId, HostPeer, LinkEnd,
    MachineEvent, Peer, PeerUser, RefusedBy, RequestId, Wait,
};
#[cfg(feature = "os")]
use text::printable_line;
#[cfg(feature = "tls")]
use text::printable_lines;
pub use text::{printable, printable_bytes};

#[cfg(feature = "os")]
pub use identity::Identity;
#[cfg(feature = "os")]
pub use names::{
    Access, DirectoryError, FindError, Looked, NameError, ServeError, ServiceEntry, ServiceName,
    Services, is_of_other_host, list_services, private_dir, remove_stale, setup_shared_dir,
    setup_user_dir, uid_of,
};
#[cfg(feature = "os")]
pub use shell::{
    Answered, BuildError, ConnectError, Control, ControlEvent, Inbox, LinkToken, LinkWay, NewLink,
    Statistics, read_statistics, stat_of, statistics_of,
};

#[cfg(feature = "os")]
pub(crate) use shell::wait_of;

/// Most bytes of the application's own first words, each way.
pub const GREETING_BYTES_MAX: usize = 4096;

pub use crate::wire::TOKEN_BYTES_MAX;

/// Most bytes of statistics in one frame.
const FRAME_TEXT_MAX: usize = frame::FRAME_BYTES_MAX / 2;

/// For a user who asks for another's figures.
pub(crate) const FIGURES_ARE_FOR_ITS_USER: &str =
    "may not see the figures, which are for the service's own user and root";

const FORKED: &str = "this process is a forked child; the links belong to its parent, and a child \
                      starts its own";
