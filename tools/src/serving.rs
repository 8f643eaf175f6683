//! The name that a program serves, and its peers.

use anyhow::{Result, ensure};
use hamlyn::control::{Peer, is_of_other_host};

/// Checks the name of a service that this process will offer; other hosts reach it if `listen` is
/// set.
pub fn to_serve(name: &str) -> Result<()> {
    ensure!(
        !is_of_other_host(name),
        "{name} is a service of another host: give its name alone, and set HAMLYN_LISTEN to the \
         address and port at which other hosts are to connect"
    );
    Ok(())
}

/// The name by which other hosts reach an offered service, if they can.
pub fn for_other_hosts(node: &hamlyn::Node, name: &str) -> Option<String> {
    #[cfg(feature = "tls")]
    {
        node.listens_at().map(|address| format!("hamlyn://{address}/{name}"))
    }
    #[cfg(not(feature = "tls"))]
    {
        let _ = (node, name);
        None
    }
}

/// The same, on standard error.
pub fn tell_other_hosts(node: &hamlyn::Node, name: &str) {
    if let Some(name) = for_other_hosts(node, name) {
        eprintln!("hamlyn: for other hosts at {name}");
    }
}

/// Whether a peer is a process of this user, which could harm this process in other ways anyway.
pub fn is_own(peer: &Peer) -> bool {
    peer.host.is_none() && peer.uid == Some(rustix::process::geteuid().as_raw())
}
