//! A slot over an area of its own, whose memory is taken out with its message.

use crate::interface::{AreaId, Mode, QueueId, SlotConfig, SlotId};
use crate::node::Node;
use crate::os::memory::AreaMemory;
use crate::protocol::records::TicketGrant;
use crate::wire::MetadataIndex;
use std::string::{String, ToString};

/// A slot, its area, and the area's memory while it has no buffer.
#[derive(Debug)]
pub(super) struct MessageSlot {
    pub(super) id: SlotId,
    pub(super) area: AreaId,
    pub(super) empty: Option<AreaMemory>,
    pub(super) size: usize,
    /// Its ticket, which was not yet granted to the sender.
    pub(super) owed: Option<TicketGrant>,
}

impl MessageSlot {
    /// Makes one with a buffer and a ticket.
    pub(super) fn new(node: &mut Node, queue: QueueId, bytes: usize) -> Result<Self, String> {
        let empty = node.new_memory(1).map_err(|e| e.to_string())?;
        let area = match node.message_area(bytes) {
            Ok(area) => area,
            Err(e) => {
                node.drop_memory(empty);
                return Err(e.to_string());
            }
        };
        let config = SlotConfig::new(area, queue).mode(Mode::ParanoidOneShot);
        let id = match node.slot(config) {
            Ok(id) => id,
            Err(e) => {
                let _ = node.remove_area(area);
                node.drop_memory(empty);
                return Err(e.to_string());
            }
        };
        let mut slot = Self { id, area, empty: Some(empty), size: bytes, owed: None };
        match node.arm(id, MetadataIndex(0), Some(0..bytes as u64)) {
            Ok(()) => Ok(slot),
            Err(e) => {
                slot.remove(node);
                Err(e.to_string())
            }
        }
    }

    pub(super) fn remove(&mut self, node: &mut Node) {
        let _ = node.remove_slot(self.id);
        let _ = node.remove_area(self.area);
        self.empty.take().into_iter().for_each(|memory| node.drop_memory(memory));
    }
}

/// A slot over an area of its own. Nothing is left behind if that fails.
pub(super) fn fast_slot(
    node: &mut Node,
    bytes: usize,
    config: impl FnOnce(AreaId) -> SlotConfig,
) -> Result<(AreaId, SlotId), String> {
    let area = node.message_area(bytes).map_err(|e| e.to_string())?;
    node.slot(config(area)).map(|slot| (area, slot)).map_err(|e| {
        let _ = node.remove_area(area);
        e.to_string()
    })
}
