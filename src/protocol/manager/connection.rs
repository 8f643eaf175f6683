//! Connections, and the trait of end points for a wait for several of them.

use super::Manager;
use crate::control::Peer;
use crate::interface::LinkId;
use crate::node::{CloseReason, Node};
use crate::wire::NodeId;
use core::sync::atomic::{AtomicBool, Ordering};
use std::format;
use std::string::{String, ToString};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

/// The connection of one sender end point and one receiver end point: a link of their own.
#[derive(Debug)]
pub struct Connection {
    pub(super) node: NodeId,
    pub(super) link: LinkId,
    pub(super) peer: Peer,
    pub(super) ended: OnceLock<CloseReason>,
    /// The end point here uses an aperture that the peer exports.
    pub(super) takes_aperture: AtomicBool,
}

impl Connection {
    pub(super) fn new(node: &Node, link: LinkId, peer: Peer) -> Arc<Self> {
        let (ended, takes_aperture) = (OnceLock::new(), AtomicBool::new(false));
        Arc::new(Self { node: node.id(), link, peer, ended, takes_aperture })
    }

    /// The path of its messages and the reason for it, or the reason why it has ended. `manager` is
    /// its end point's.
    pub fn explain(&self, manager: &Manager) -> String {
        if let Some(reason) = self.ended() {
            return format!("the connection to the peer has ended: {reason}");
        }
        let node = manager.lock();
        if node.id() != self.node {
            return format!(
                "the connection is one of node {}, not of node {}",
                self.node,
                node.id()
            );
        }
        node.explain(self.link).unwrap_or_else(|e| e.to_string())
    }

    /// The link.
    pub fn link(&self) -> LinkId {
        self.link
    }

    /// The identity of the other end, from the kernel.
    pub fn peer(&self) -> &Peer {
        &self.peer
    }

    /// The end point here uses one aperture that the peer exports.
    pub(in crate::protocol) fn take_aperture(&self) {
        self.takes_aperture.store(true, Ordering::Relaxed);
    }

    /// The reason for its end, once it has ended. All earlier messages of the peer have arrived by
    /// then.
    pub fn ended(&self) -> Option<&CloseReason> {
        self.ended.get()
    }
}

/// An end point that may have something to receive, for [`Manager::wait_any`].
pub trait EndPoint {
    /// Whether a receive would return at once. `node` is its manager's.
    fn is_ready_in(&self, node: &Node) -> bool;
    /// Its manager.
    fn manager(&self) -> &Manager;
    /// The time at which it becomes ready without an arrival, for example to connect again; `None`:
    /// never. Wait for the manager's descriptor at most until then.
    fn due(&self) -> Option<Instant> {
        None
    }
    /// Whether a receive would return at once.
    fn is_ready(&self) -> bool {
        self.is_ready_in(&self.manager().lock())
    }
}

#[cfg(feature = "tls")]
impl Manager {
    /// Sets the directory in which services of other hosts are looked up if their names give no
    /// address; see [`Node::set_directory`](crate::Node::set_directory).
    ///
    /// ```
    /// # let dir = std::env::temp_dir().join(format!("hamlyn-doc-manager-{}", std::process::id()));
    /// # let config = hamlyn::Config::from_env()?.dir(&dir);
    /// let manager = hamlyn::protocol::Manager::with_config(config)?;
    /// manager.set_directory(None)?; // The setting `directory` decides again.
    /// assert_eq!(manager.listens_at(), None); // The setting `listen` is not set.
    /// # drop(manager);
    /// # std::fs::remove_dir_all(&dir).ok();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_directory(
        &self,
        directory: Option<std::sync::Arc<dyn crate::node::HostDirectory>>,
    ) -> Result<(), crate::node::Forked> {
        // The replaced directory is the application's, and its drop may wait for the lock.
        let guard = self.lock();
        guard.check_fork()?;
        let control = guard.control_apart();
        drop(guard);
        control.set_directory(directory);
        Ok(())
    }
}
