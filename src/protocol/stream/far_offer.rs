//! A receiver's offer of an aperture to its sender: see [`aperture_stream`](super::super::aperture_stream).

use crate::control::Peer;
use crate::interface::LinkId;
use crate::node::{ApertureView, Node};
use crate::os::aperture::ApertureAccess;
use crate::protocol::tickets::fast_ticket_from;
use crate::wire::{TICKET_BYTES, Ticket};
use std::string::{String, ToString};
use std::sync::{Mutex, OnceLock, PoisonError};

/// The receiver's offer of an aperture, and the result.
#[derive(Debug)]
pub(in crate::protocol) struct FarOffer {
    bytes: u64,
    /// The ticket for returning credit to the sender that was admitted last.
    credit: Mutex<Option<Ticket>>,
    /// The sender has joined: its credit, and the aperture, or the reason why there is no aperture.
    pub joined: OnceLock<(Ticket, LinkId, Result<ApertureView, String>)>,
}

impl FarOffer {
    pub fn new(bytes: u64) -> Self {
        Self { bytes, credit: Mutex::new(None), joined: OnceLock::new() }
    }

    pub fn admit(&self, credit: &[u8], peer: &Peer) -> Result<(), String> {
        let ticket = fast_ticket_from(credit, peer)?;
        if credit.len() != TICKET_BYTES {
            return Err("the sender's greeting has something behind its end".into());
        }
        *self.credit.lock().unwrap_or_else(PoisonError::into_inner) = Some(ticket);
        Ok(())
    }

    /// A sender that takes no aperture was admitted.
    pub fn admit_plain(&self) {
        *self.credit.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Exports the aperture: its pages are charged to this process now, once a stream.
    pub fn joined(&self, node: &mut Node, link: LinkId) {
        let credit = *self.credit.lock().unwrap_or_else(PoisonError::into_inner);
        // A plain sender has no credit ticket, and needs no aperture.
        let Some(credit) = credit else { return };
        let exported = node.export(link, self.bytes, ApertureAccess::ReadWrite);
        let view = exported
            .map_err(|e| e.to_string())
            .and_then(|id| node.aperture_view(id).map_err(|e| e.to_string()));
        let _ = self.joined.set((credit, link, view));
    }

    pub fn view(&self) -> Option<&ApertureView> {
        self.joined.get()?.2.as_ref().ok()
    }
}
