//! Fast mode (Hamlyn 2.7): single packets without a metadata entry; the notification itself brings
//! a word. And data that moves without any notification, the last packet announcing the rest.

mod common;
use common::{Result, node, run};
use hamlyn::{Accept, Access, SlotConfig, Ticket};
use std::time::Duration;

const LIMIT: Option<Duration> = Some(Duration::from_secs(10));

fn receiver(ready: &dyn Fn() -> Result) -> Result {
    let mut node = node()?;
    let area = node.message_area(4096)?;
    let queue = node.notification_queue(8)?;
    // Eight notifications may wait at once; a ninth would be refused until one is taken.
    let slot = node.slot(SlotConfig::new(area, queue).credit(8))?;
    let ticket = node.fast_ticket(slot)?;
    node.serve("fast", Access::SameUser, Accept::Automatic(ticket.to_bytes().to_vec()))?;
    ready()?;
    let message = node.recv(queue, LIMIT)?;
    let sum: u32 = node.area(area)?.iter().map(|byte| *byte as u32).sum();
    println!("word {}: {sum} in the area, though nothing else was announced", message.word);
    assert_eq!((message.word, sum), (42, 4096));
    Ok(())
}

fn sender() -> Result {
    let mut node = node()?;
    let link = node.connect("fast", b"", LIMIT)?;
    let ticket = Ticket::from_bytes(node.greeting(link)?)?;
    for offset in (0..4096).step_by(64) {
        node.send_fast(&ticket.at(offset)?.silent(), &[1; 64], 0, LIMIT)?;
    }
    // This link keeps its order; without order, each message would have to identify its data.
    node.send_fast(&ticket, &[], 42, LIMIT)?;
    node.close(LIMIT)?;
    Ok(())
}

fn main() -> Result {
    run(receiver, &[sender])
}
