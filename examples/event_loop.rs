//! Waiting in an existing event loop: a node gives one descriptor that epoll, tokio or asyncio can
//! watch. Here `poll(2)` watches it beside a pipe.

mod common;
use common::{Result, node, run};
use hamlyn::{Accept, Access, MetadataIndex, SlotConfig, Ticket};
use rustix::event::{PollFd, PollFlags, poll};
use std::time::Duration;

const LIMIT: Option<Duration> = Some(Duration::from_secs(10));

fn receiver(ready: &dyn Fn() -> Result) -> Result {
    let mut node = node()?;
    let area = node.message_area(4096)?;
    let queue = node.notification_queue(4)?;
    let slot = node.slot(SlotConfig::new(area, queue).metadata(4))?;
    let ticket = node.ticket(slot, MetadataIndex(0))?;
    node.serve("event-loop", Access::SameUser, Accept::Automatic(ticket.to_bytes().to_vec()))?;
    let (pipe, _writer) = rustix::pipe::pipe()?;
    ready()?;
    let mut messages = 0;
    while messages < 3 {
        while node.try_recv(queue)?.is_some() {
            messages += 1;
        }
        // Says that this process is about to sleep, and looks once more.
        if messages < 3 && node.prepare_to_wait()? {
            let node_fd = node.as_fd();
            let mut watched =
                [PollFd::new(&node_fd, PollFlags::IN), PollFd::new(&pipe, PollFlags::IN)];
            poll(&mut watched, Some(&rustix::time::Timespec { tv_sec: 10, tv_nsec: 0 }))?;
        }
    }
    println!("three messages, asleep in between");
    Ok(())
}

fn sender() -> Result {
    let mut node = node()?;
    let link = node.connect("event-loop", b"", LIMIT)?;
    let ticket = Ticket::from_bytes(node.greeting(link)?)?;
    for _ in 0..3 {
        std::thread::sleep(Duration::from_millis(20));
        node.send(&ticket, b"wake up", b"", LIMIT)?;
    }
    node.close(LIMIT)?;
    Ok(())
}

fn main() -> Result {
    run(receiver, &[sender])
}
