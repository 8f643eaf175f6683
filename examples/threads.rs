//! Several threads: a manager of a node, with a progress thread that makes its calls, so that data
//! lands while the application computes; and threads that each send with a node of their own,
//! without a lock.

mod common;
use common::{Result, node, run};
use hamlyn::protocol::Manager;
use hamlyn::{Accept, Access, MetadataIndex, SlotConfig, Ticket};
use std::time::Duration;

const LIMIT: Option<Duration> = Some(Duration::from_secs(10));
const MESSAGES: usize = 1000;

fn receiver(ready: &dyn Fn() -> Result) -> Result {
    let mut node = node()?;
    let area = node.message_area(4096)?;
    let queue = node.notification_queue(3 * MESSAGES as u32)?;
    let slot = node.slot(SlotConfig::new(area, queue).credit(3 * MESSAGES as u32))?;
    let ticket = node.ticket(slot, MetadataIndex(0))?;
    node.serve("threads", Access::SameUser, Accept::Automatic(ticket.to_bytes().to_vec()))?;
    let node = Manager::from_node(node)?;
    node.start_progress()?;
    ready()?;
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..MESSAGES {
                    node.recv(queue, LIMIT).expect("a message");
                }
            });
        }
    });
    println!("{} messages taken by three threads", 3 * MESSAGES);
    node.stop_progress();
    Ok(())
}

fn sender() -> Result {
    let mut threads = Vec::new();
    for _ in 0..3 {
        let mut node = node()?;
        let link = node.connect("threads", b"", LIMIT)?;
        let ticket = Ticket::from_bytes(node.greeting(link)?)?;
        threads.push(std::thread::spawn(move || {
            (0..MESSAGES).try_for_each(|_| node.send(&ticket, b"no lock", b"", LIMIT))?;
            node.close(LIMIT)
        }));
    }
    for thread in threads {
        thread.join().expect("a sending thread")?;
    }
    Ok(())
}

fn main() -> Result {
    run(receiver, &[sender])
}
