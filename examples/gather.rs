//! Queued gather sends (Hamlyn 2.3): a message made of pieces of send buffer areas leaves packet by
//! packet while the program does other things; a handle says when its bytes may change.

mod common;
use common::{Result, node, run};
use hamlyn::{Accept, Access, MetadataIndex, Piece, SlotConfig, Ticket};
use std::time::Duration;

const LIMIT: Option<Duration> = Some(Duration::from_secs(10));

fn receiver(ready: &dyn Fn() -> Result) -> Result {
    let mut node = node()?;
    let area = node.message_area(1 << 20)?;
    let queue = node.notification_queue(1)?;
    let slot = node.slot(SlotConfig::new(area, queue))?;
    let ticket = node.ticket(slot, MetadataIndex(0))?;
    node.serve("gather", Access::SameUser, Accept::Automatic(ticket.to_bytes().to_vec()))?;
    ready()?;
    node.recv(queue, LIMIT)?;
    let bytes = node.area(area)?;
    assert!(bytes[..5] == *b"head:" && bytes[5..500_005].iter().all(|byte| *byte == 7));
    println!("500,005 bytes, gathered from two areas");
    Ok(())
}

fn sender() -> Result {
    let mut node = node()?;
    let link = node.connect("gather", b"", LIMIT)?;
    let ticket = Ticket::from_bytes(node.greeting(link)?)?;
    let terminus = node.primary();
    let (head, body) = (node.send_buffer(terminus, 64)?, node.send_buffer(terminus, 500_000)?);
    node.send_buffer_mut(terminus, head)?[..5].copy_from_slice(b"head:");
    node.send_buffer_mut(terminus, body)?.fill(7);
    let pieces = [
        Piece { tag: head, offset: 0, length: 5 },
        Piece { tag: body, offset: 0, length: 500_000 },
    ];
    let handle = node.post_send(terminus, &ticket, &pieces, b"")?;
    let mut other_work = 0;
    while !node.is_reusable(&handle) {
        other_work += 1;
        node.poll()?;
    }
    println!("the areas may be used again after {other_work} turns of other work");
    node.close(LIMIT)?;
    Ok(())
}

fn main() -> Result {
    run(receiver, &[sender])
}
