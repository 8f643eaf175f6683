//! Group receive and delegation (Hamlyn 2.5): one ticket is divided among helpers, both its buffer
//! space and its packet counter; the receiver gets one notification when all parts have arrived,
//! and need not know the number of helpers.

mod common;
use common::{Result, node, run};
use hamlyn::{Accept, Access, MetadataIndex, SlotConfig, Ticket};
use std::time::Duration;

const LIMIT: Option<Duration> = Some(Duration::from_secs(10));
const BYTES: usize = 300_000;

fn receiver(ready: &dyn Fn() -> Result) -> Result {
    let mut node = node()?;
    let area = node.message_area(BYTES)?;
    let queue = node.notification_queue(1)?;
    let slot = node.slot(SlotConfig::new(area, queue))?;
    let ticket = node.ticket(slot, MetadataIndex(0))?;
    node.serve("group", Access::SameUser, Accept::Automatic(ticket.to_bytes().to_vec()))?;
    ready()?;
    node.recv(queue, LIMIT)?;
    let sum: u64 = node.area(area)?.iter().map(|byte| *byte as u64).sum();
    println!("one notification for {BYTES} bytes of three helpers, sum {sum}");
    assert_eq!(sum, 100_000 * (1 + 2 + 3));
    Ok(())
}

fn helper(part: usize) -> Result {
    let mut node = node()?;
    let link = node.connect("group", b"", LIMIT)?;
    let whole = Ticket::from_bytes(node.greeting(link)?)?;
    // Usually one process divides its ticket and sends the parts on; each part is a ticket.
    let mine = whole.split_evenly(3)?[part];
    println!(
        "helper {part} fills {}..{} with {} of the counter",
        mine.base,
        mine.bound,
        mine.share.get()
    );
    node.send(&mine, &vec![part as u8 + 1; BYTES / 3], b"", LIMIT)?;
    node.close(LIMIT)?;
    Ok(())
}

fn main() -> Result {
    run(receiver, &[|| helper(0), || helper(1), || helper(2)])
}
