//! A server whose clients trust neither it nor one another: a paranoid one-shot slot, in which each
//! client has an entry, a key and bounds of its own; and replies by reply ticket (Hamlyn 2.7).

mod common;
use common::{Result, node, run};
use hamlyn::node::Event;
use hamlyn::{Accept, Access, MetadataIndex, Mode, SlotConfig, Ticket};
use std::time::Duration;

const LIMIT: Option<Duration> = Some(Duration::from_secs(10));
const REQUEST_BYTES: u64 = 1024;
const CLIENTS: u32 = 2;

fn server(ready: &dyn Fn() -> Result) -> Result {
    let mut node = node()?;
    let area = node.message_area((REQUEST_BYTES * CLIENTS as u64) as usize)?;
    let queue = node.notification_queue(CLIENTS)?;
    let slot =
        node.slot(SlotConfig::new(area, queue).metadata(CLIENTS).mode(Mode::ParanoidOneShot))?;
    node.serve("clients", Access::SameUser, Accept::Ask)?;
    ready()?;

    let (mut clients, mut served) = (0, 0);
    while served < CLIENTS {
        while let Some(event) = node.next_event() {
            if let Event::Request { id, peer, .. } = event {
                // A part of the area for this client alone, and the only key that opens it.
                let index = MetadataIndex(clients);
                let low = REQUEST_BYTES * clients as u64;
                node.arm(slot, index, Some(low..low + REQUEST_BYTES))?;
                let ticket = node.ticket(slot, index)?;
                node.accept(id, &ticket.to_bytes())?;
                println!("client {clients} is {peer}");
                clients += 1;
            }
        }
        // The message has come, and its entry is closed: the bytes can no longer change.
        if let Some(message) = node.try_recv(queue)? {
            let entry = node.metadata(slot, message.index)?;
            let (limits, reply) = (entry.limits(), Ticket::from_bytes(&entry.user()[..44])?);
            let request = &node.area(area)?[limits.start as usize..limits.end as usize];
            let answer: Vec<u8> = request[..16].iter().rev().copied().collect();
            node.send(&reply, &answer, b"", LIMIT)?;
            served += 1;
        } else {
            node.wait(Some(Duration::from_millis(100)))?;
        }
    }
    node.close(LIMIT)?;
    Ok(())
}

fn client() -> Result {
    let mut node = node()?;
    let area = node.message_area(64)?;
    let queue = node.notification_queue(1)?;
    let slot = node.slot(SlotConfig::new(area, queue))?;
    let reply = node.ticket(slot, MetadataIndex(0))?;
    let link = node.connect("clients", b"", LIMIT)?;
    let ticket = Ticket::from_bytes(node.greeting(link)?)?;
    node.send(&ticket, b"0123456789abcdef", &reply.to_bytes(), LIMIT)?;
    node.recv(queue, LIMIT)?;
    assert_eq!(&node.area(area)?[..16], b"fedcba9876543210");
    println!("process {} has its answer", std::process::id());
    Ok(())
}

fn main() -> Result {
    run(server, &[client, client])
}
