//! The first message: a receiver offers a service whose greeting is a ticket; a sender connects,
//! reads the ticket, and writes straight into the receiver's message area.

mod common;
use common::{Result, node, run};
use hamlyn::{Accept, Access, MetadataIndex, SlotConfig, Ticket};
use std::time::Duration;

fn receiver(ready: &dyn Fn() -> Result) -> Result {
    let mut node = node()?;
    let area = node.message_area(4096)?;
    let queue = node.notification_queue(16)?;
    let slot = node.slot(SlotConfig::new(area, queue))?;
    let ticket = node.ticket(slot, MetadataIndex(0))?;
    node.serve("hello", Access::SameUser, Accept::Automatic(ticket.to_bytes().to_vec()))?;
    ready()?;

    let message = node.recv(queue, Some(Duration::from_secs(10)))?;
    let from = node.peer(message.link)?;
    let about = node.metadata(slot, message.index)?;
    let length = u32::from_le_bytes(about.user().try_into()?) as usize;
    let text = String::from_utf8_lossy(&node.area(area)?[..length]);
    println!("{from} says: {text}");
    Ok(())
}

fn sender() -> Result {
    let mut node = node()?;
    let link = node.connect("hello", b"", Some(Duration::from_secs(10)))?;
    let ticket = Ticket::from_bytes(node.greeting(link)?)?;
    let text = b"hello, without a system call";
    // The metadata, up to 60 bytes, is the sender's to use: here it says how long the data is.
    node.send(&ticket, text, &(text.len() as u32).to_le_bytes(), None)?;
    node.close(None)?;
    Ok(())
}

fn main() -> Result {
    run(receiver, &[sender])
}
