//! Tickets that other processes send to this command.
//!
//! Never: a ticket is used that leads to another node than its sender's. With such a ticket a
//! process could make this one write to memory that it may not write itself (`tests/tidy.rs` looks
//! for other readers).

use anyhow::{Result, ensure};
use hamlyn::control::Peer;
use hamlyn::wire::Ticket;

/// A ticket of a peer's, which leads to that peer.
pub fn ticket_of(peer: &Peer, bytes: &[u8]) -> Result<Ticket> {
    let ticket = Ticket::from_bytes(bytes)?;
    let (to, node) = (ticket.destination, peer.node);
    ensure!(to == node, "it is for node {to}, and came from node {node}");
    Ok(ticket)
}
