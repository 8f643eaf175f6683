//! Reads the tickets that peers send. Each must lead to its sender: a ticket of another process
//! would have this process write where the sender may not write itself.

use crate::control::Peer;
use crate::wire::{MetadataIndex, TICKET_BYTES, Ticket};
use std::format;
use std::string::{String, ToString};

fn ticket_from(bytes: &[u8], peer: &Peer) -> Result<Ticket, String> {
    let ticket = Ticket::from_bytes(bytes).map_err(|e| e.to_string())?;
    if ticket.destination != peer.node {
        let (to, node) = (ticket.destination, peer.node);
        return Err(format!("the ticket leads to node {to}, not to node {node}, which sent it"));
    }
    Ok(ticket)
}

/// A ticket of fast mode, at the beginning of `bytes`.
pub(super) fn fast_ticket_from(bytes: &[u8], peer: &Peer) -> Result<Ticket, String> {
    let ticket = ticket_from(bytes.get(..TICKET_BYTES).unwrap_or(bytes), peer)?;
    if ticket.metadata_index != MetadataIndex::FAST {
        return Err("the ticket is not one of fast mode".into());
    }
    Ok(ticket)
}

/// A ticket for a counted message of up to `length` bytes, with no byte behind it.
pub(super) fn message_ticket_from(
    bytes: &[u8],
    peer: &Peer,
    length: u64,
) -> Result<Ticket, String> {
    let ticket = ticket_from(bytes, peer)?;
    if ticket.metadata_index == MetadataIndex::FAST {
        return Err("the ticket is one of fast mode, and one for a counted message is due".into());
    }
    let room = ticket.capacity();
    if room < length {
        return Err(format!("the ticket is for {room} bytes, and {length} are to be sent"));
    }
    Ok(ticket)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Flags, Key, NodeId, Share, SlotIndex};

    #[test]
    fn a_ticket_of_a_peer_leads_to_it_and_is_of_the_kind_and_size_that_is_due() {
        let (uid, gid, pid, process) = (None, None, None, None);
        let (is_proved, service) = (true, String::new());
        let peer = Peer { node: NodeId(7), is_proved, uid, gid, pid, process, service, host: None };
        let fast = Ticket {
            destination: NodeId(7),
            slot: SlotIndex(1),
            metadata_index: MetadataIndex::FAST,
            key: Key(2),
            base: 8,
            bound: 24,
            flags: Flags::WAKE,
            share: Share::WHOLE,
        };
        let counted = Ticket { metadata_index: MetadataIndex(0), ..fast };
        assert_eq!(fast_ticket_from(&fast.to_bytes(), &peer), Ok(fast));
        assert_eq!(fast_ticket_from(&[&fast.to_bytes()[..], b"more"].concat(), &peer), Ok(fast));
        assert_eq!(message_ticket_from(&counted.to_bytes(), &peer, 16), Ok(counted));

        type Read = fn(&[u8], &Peer) -> Result<Ticket, String>;
        let message: Read = |bytes, peer| message_ticket_from(bytes, peer, 16);
        let elsewhere = |ticket| Ticket { destination: NodeId(8), ..ticket };
        for (read, bytes, why) in [
            (fast_ticket_from as Read, counted.to_bytes().to_vec(), "not one of fast mode"),
            (fast_ticket_from, elsewhere(fast).to_bytes().to_vec(), "leads to node"),
            (fast_ticket_from, fast.to_bytes()[..43].to_vec(), "these are 43"),
            (message, fast.to_bytes().to_vec(), "is one of fast mode"),
            (message, elsewhere(counted).to_bytes().to_vec(), "leads to node"),
            (message, counted.to_bytes()[..43].to_vec(), "these are 43"),
            (message, [&counted.to_bytes()[..], b"more"].concat(), "these are 48"),
            (message, Ticket { bound: 23, ..counted }.to_bytes().to_vec(), "is for 15 bytes"),
        ] {
            let error = read(&bytes, &peer).unwrap_err();
            assert!(error.contains(why), "{error:?} does not say {why:?}");
        }
    }
}
