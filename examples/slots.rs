//! Slots: several over one message area, each with bounds and a key of its own; and the refusal of
//! a packet that exceeds its rights (Hamlyn 2.2).

mod common;
use common::{Result, node, run};
use hamlyn::{Accept, Access, Key, MetadataIndex, SlotConfig, Ticket};
use std::time::Duration;

const LIMIT: Option<Duration> = Some(Duration::from_secs(10));

fn receiver(ready: &dyn Fn() -> Result) -> Result {
    let mut node = node()?;
    let area = node.message_area(8192)?;
    let queue = node.notification_queue(16)?;
    let left = node.slot(SlotConfig::new(area, queue).range(0..4096))?;
    let right = node.slot(SlotConfig::new(area, queue).range(4096..8192))?;
    let tickets = [left, right].map(|slot| node.ticket(slot, MetadataIndex(0)));
    let mut greeting = Vec::new();
    for ticket in tickets {
        greeting.extend(ticket?.to_bytes());
    }
    node.serve("slots", Access::SameUser, Accept::Automatic(greeting))?;
    ready()?;

    for _ in 0..2 {
        let message = node.recv(queue, LIMIT)?;
        println!(
            "a message in the {}",
            if message.is_for(left) { "left half" } else { "right half" }
        );
    }
    assert!(node.area(area)?[..4096].iter().all(|byte| *byte == b'l'));
    assert!(node.area(area)?[4096..].iter().all(|byte| *byte == b'r'));

    // A key is taken back: from now on the left ticket is worthless, also for packets that have
    // left their sender.
    node.revoke(left)?;
    for (name, value) in node.counters() {
        if name.starts_with("refused") && value > 0 {
            println!("{name}: {value}");
        }
    }
    Ok(())
}

fn sender() -> Result {
    let mut node = node()?;
    let link = node.connect("slots", b"", LIMIT)?;
    let tickets = node.greeting(link)?.to_vec();
    let left = Ticket::from_bytes(&tickets[..44])?;
    let right = Ticket::from_bytes(&tickets[44..])?;
    // Packets that an honest library would not send: with a guessed key, and with bounds stretched.
    // Nothing tells the sender that they were refused.
    node.send(&Ticket { key: Key(1), ..left }, b"guess", b"", LIMIT)?;
    node.send(&Ticket { bound: 8192, ..left }, &[b'x'; 4097], b"", LIMIT)?;
    node.send(&left, &[b'l'; 4096], b"", LIMIT)?;
    node.send(&right, &[b'r'; 4096], b"", LIMIT)?;
    node.close(LIMIT)?;
    Ok(())
}

fn main() -> Result {
    run(receiver, &[sender])
}
