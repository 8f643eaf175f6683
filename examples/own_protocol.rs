//! A protocol of the program's own, by the public interface alone: a kind, a seed, credit, waits in
//! threads and in tasks, and death.
//! ```text
//!   grow(seed), with a ticket for the credit  --->  admit: a slot with places, a ticket for it
//!   a letter, while there is credit           --->  the queue of the inbox
//!   the credit, deposited without a notice    <---  after each turn, as letters were taken
//!   a process dies                            --->  left: its slot is given back
//! ```

mod common;

use common::Result as Done;
use hamlyn::node::{CloseReason, Look, Node};
use hamlyn::protocol::{AsyncManager, Connection, Kind, Manager, Protocol};
use hamlyn::{AreaId, Flags, LinkId, NodeSendError, Peer, QueueId, RequestId};
use hamlyn::{SlotConfig, SlotId, Ticket};
use std::{collections::HashMap, sync::Arc, time::Duration};

const LIMIT: Option<Duration> = Some(Duration::from_secs(10));
const MAIL: Kind = Kind::new(*b"mail");
/// Letters of one sender that may lie in the queue.
const PLACES: u64 = 4;
const LETTERS: u64 = 100;

struct Sender {
    of: Result<LinkId, RequestId>,
    credit: Ticket,
    taken: u64,
    owed: bool,
}

struct Inbox {
    area: AreaId,
    queue: QueueId,
    senders: HashMap<SlotId, Sender>,
    died: usize,
}

impl Inbox {
    fn take(node: &mut Node, inbox: &mut Self) -> Look<u32> {
        let Ok(Some(letter)) = node.pop(inbox.queue) else { return Look::Nothing };
        if let Some(sender) = inbox.senders.get_mut(&letter.slot) {
            (sender.taken, sender.owed) = (sender.taken + 1, true);
        }
        Look::Found(letter.word)
    }
    fn remove(&mut self, node: &mut Node, of: Result<LinkId, RequestId>) {
        self.senders.retain(|slot, sender| sender.of != of || node.remove_slot(*slot).is_err());
    }
}

impl Protocol for Inbox {
    fn admit(
        &mut self,
        node: &mut Node,
        request: RequestId,
        peer: &Peer,
        body: &[u8],
    ) -> Result<Vec<u8>, String> {
        let credit = Ticket::from_bytes(body).map_err(|e| e.to_string())?;
        if credit.destination != peer.node {
            return Err("a ticket of somebody else".into());
        }
        let config = SlotConfig::new(self.area, self.queue).credit(PLACES as u32);
        let slot = node.slot(config).map_err(|e| e.to_string())?;
        self.senders.insert(slot, Sender { of: Err(request), credit, taken: 0, owed: false });
        Ok(node.fast_ticket(slot).map_err(|e| e.to_string())?.to_bytes().to_vec())
    }
    fn withdrawn(&mut self, node: &mut Node, request: RequestId) {
        self.remove(node, Err(request));
    }
    fn joined(&mut self, _: &mut Node, request: RequestId, connection: &Arc<Connection>) {
        let its = self.senders.values_mut().find(|sender| sender.of == Err(request));
        its.into_iter().for_each(|sender| sender.of = Ok(connection.link()));
    }
    fn left(&mut self, node: &mut Node, connection: &Connection) {
        self.died += usize::from(connection.ended() == Some(&CloseReason::Died));
        self.remove(node, Ok(connection.link()));
    }
    fn takes_turns(&self) -> bool {
        true
    }
    fn after_poll(&mut self, node: &mut Node) {
        for Sender { of, credit, taken, owed } in self.senders.values_mut() {
            if let (Ok(link), true) = (*of, *owed) {
                *owed = node.try_send_fast_over(link, credit, &taken.to_le_bytes(), 0).is_err();
            }
        }
    }
}

fn receiver(ready: &dyn Fn() -> Done) -> Done {
    let mut node = Node::new()?;
    let (area, queue) = (node.message_area(8)?, node.notification_queue(64)?);
    let manager = Manager::from_node(node)?;
    let seat = manager.seat(MAIL, Inbox { area, queue, senders: HashMap::new(), died: 0 });
    std::fs::write(common::path("seed")?, seat.seed()?.to_string())?;
    manager.start_progress()?;
    ready()?;
    for _ in 0..LETTERS {
        seat.wait_for(LIMIT, Inbox::take)?;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let tasks = AsyncManager::new(&manager)?;
        for _ in 0..LETTERS {
            tasks.wait_for(&seat, Inbox::take).await?;
        }
        Done::Ok(())
    })?;
    let died = seat.wait_for(LIMIT, |_, inbox| match inbox.senders.len() {
        0 => Look::Found(inbox.died),
        _ => Look::Nothing,
    })?;
    println!("{} letters from two senders, of which {died} died", 2 * LETTERS);
    Ok(())
}

fn sender(dies: bool) -> Done {
    let seat = Manager::new()?.seat(MAIL, ());
    let (area, credit) = seat.with(|node, _| {
        let (area, queue) = (node.message_area(8)?, node.notification_queue(1)?);
        let slot = node.slot(SlotConfig::new(area, queue).credit(0))?;
        Done::Ok((area, node.fast_ticket(slot)?.with_flags(Flags::WAKE).to_bytes()))
    })?;
    let seed = std::fs::read_to_string(common::path("seed")?)?.parse()?;
    let (connection, answer) = seat.grow(&seed, &credit, LIMIT)?;
    let (ticket, link) = (Ticket::from_bytes(&answer)?, connection.link());
    for sent in 0..LETTERS {
        seat.wait_for(LIMIT, |node, _| {
            let count = node.area(area).ok().and_then(|area| area.first_chunk().copied());
            let taken = u64::from_le_bytes(count.unwrap_or_default());
            if connection.ended().is_none() && taken + PLACES <= sent {
                return Look::Nothing;
            }
            match node.try_send_fast_over(link, &ticket, b"", sent as u32) {
                Err(NodeSendError::Full) => Look::Room(link),
                done => Look::Found(done),
            }
        })??;
    }
    if dies {
        std::process::exit(0); // Without a goodbye.
    }
    Ok(())
}

fn main() -> Done {
    common::run(receiver, &[|| sender(false), || sender(true)])
}
