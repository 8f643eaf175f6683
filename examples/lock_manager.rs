//! A lock manager, the middleware that the paper names (3.3): shared and exclusive locks, granted
//! in the order of requests, and taken back from owners that die.
//!
//! ```text
//!   client                                     manager
//!   one line: the lock, what is asked   --->   the hook: changes the table, keeps the answers
//!   one line: the lock, what became of it <--  after the poll: answers leave, none is waited for
//! ```
//! An owner is a link: its identity comes from the kernel, no other process can use it, and its end
//! means that the owner is gone, after everything that it had sent.

mod common;
#[path = "common/locks.rs"]
mod locks;
use common::{Result, node, run};
use hamlyn::node::Event;
use hamlyn::{
    Accept, Access, LinkId, Message, Node, NodeSendError, Receiver, SlotConfig, SlotId, Then,
    Ticket,
};
use locks::{Grant, LOCKS_MAX, Locks, Mode, Refused};
use std::collections::HashMap;
use std::time::Duration;

const LIMIT: Option<Duration> = Some(Duration::from_secs(10));

/// First byte of a request.
const RELEASE: u8 = 0;
const SHARED: u8 = 1;
const EXCLUSIVE: u8 = 2;
/// First byte of an answer; or the mode that was granted.
const REFUSED: u8 = 3;

/// The hook: runs for each request, in the manager's poll.
#[derive(Default)]
struct Manager {
    locks: Locks<LinkId>,
    /// Owner, lock and result: to be sent.
    answers: Vec<(LinkId, u32, u8)>,
}

impl Manager {
    fn granted(&mut self, granted: impl IntoIterator<Item = Grant<LinkId>>) {
        let answers = granted.into_iter().map(|grant| {
            let mode = if grant.mode == Mode::Shared { SHARED } else { EXCLUSIVE };
            (grant.owner, grant.lock, mode)
        });
        self.answers.extend(answers);
    }

    fn request(
        &mut self,
        owner: LinkId,
        lock: u32,
        what: &[u8],
    ) -> std::result::Result<(), Refused> {
        let mode = match what {
            [RELEASE] => {
                let granted = self.locks.release(owner, lock)?;
                self.granted(granted);
                return Ok(());
            }
            [SHARED] => Mode::Shared,
            [EXCLUSIVE] => Mode::Exclusive,
            _ => return Err(Refused::NotHeld),
        };
        let granted = self.locks.ask(owner, lock, mode)?;
        self.granted(granted);
        Ok(())
    }
}

impl Receiver for Manager {
    fn process_arrival(&mut self, message: Message<'_>) -> Then {
        let (owner, lock) = (message.link, message.word);
        if self.request(owner, lock, message.last_bytes()).is_err() {
            self.answers.push((owner, lock, REFUSED));
        }
        Then::Consume
    }
}

/// Handles arrivals, and sends the answers. `clients`: the tickets for answers.
fn turn(node: &mut Node, slot: SlotId, clients: &mut HashMap<LinkId, Ticket>) -> Result<usize> {
    // Answers that wait for room in a link are looked at again soon.
    node.wait(Some(Duration::from_millis(20)))?;
    let mut gone = Vec::new();
    while let Some(event) = node.next_event() {
        match event {
            Event::Connected { link, .. } => {
                // A client's greeting is the ticket for its answers.
                match Ticket::from_bytes(node.greeting(link)?) {
                    Ok(ticket) => drop(clients.insert(link, ticket)),
                    Err(_) => drop(node.disconnect(link)),
                }
            }
            Event::Closed { link, reason, .. } => {
                println!("{link} is gone: {reason}");
                clients.remove(&link);
                gone.push(link);
            }
            _ => {}
        }
    }
    let manager = node.installed_mut::<Manager>(slot)?.ok_or("the lock manager panicked")?;
    for owner in &gone {
        let granted = manager.locks.owner_is_gone(*owner);
        manager.granted(granted);
    }
    let mut answers = std::mem::take(&mut manager.answers);
    answers.retain(|(owner, lock, what)| {
        let Some(ticket) = clients.get(owner) else { return !gone.contains(owner) };
        // Over the owner's own link, if that leads where the ticket says; and without waiting.
        let sent = node.try_send_fast_over(*owner, ticket, &[*what], *lock);
        matches!(sent, Err(NodeSendError::Full))
    });
    // A client that keeps asking and takes no answers is disconnected.
    for owner in clients.keys() {
        if answers.iter().filter(|(of, ..)| of == owner).count() > 2 * LOCKS_MAX {
            node.disconnect(*owner)?;
        }
    }
    let manager = node.installed_mut::<Manager>(slot)?.ok_or("the lock manager panicked")?;
    manager.answers.splice(0..0, answers);
    Ok(gone.len())
}

fn manager(ready: &dyn Fn() -> Result) -> Result {
    let mut node = node()?;
    let (area, queue) = (node.message_area(1)?, node.notification_queue(1)?);
    let slot = node.slot(SlotConfig::new(area, queue))?;
    node.install(slot, Manager::default())?;
    let ticket = node.fast_ticket(slot)?;
    node.serve("locks", Access::SameUser, Accept::Automatic(ticket.to_bytes().to_vec()))?;
    ready()?;
    let (mut clients, mut gone) = (HashMap::new(), 0);
    while gone < 3 {
        gone += turn(&mut node, slot, &mut clients)?;
    }
    let manager = node.installed::<Manager>(slot)?.ok_or("the lock manager panicked")?;
    assert!(manager.locks.is_empty(), "all locks were given back, or taken back");
    Ok(())
}

/// A client's end.
struct Client {
    node: Node,
    link: LinkId,
    ask: Ticket,
    queue: hamlyn::QueueId,
    area: hamlyn::AreaId,
}

impl Client {
    fn new() -> Result<Self> {
        let mut node = node()?;
        let (area, queue) = (node.message_area(1)?, node.notification_queue(1)?);
        let slot = node.slot(SlotConfig::new(area, queue))?;
        let answers = node.fast_ticket(slot)?.to_bytes();
        let link = node.connect("locks", &answers, LIMIT)?;
        let ask = Ticket::from_bytes(node.greeting(link)?)?;
        Ok(Self { node, link, ask, queue, area })
    }

    /// Waits until the lock is granted.
    fn lock(&mut self, lock: u32, mode: u8) -> Result {
        self.node.try_send_fast_over(self.link, &self.ask, &[mode], lock)?;
        let answer = self.node.recv(self.queue, LIMIT)?;
        assert_eq!(answer.word, lock);
        if self.node.area(self.area)? == [mode] { Ok(()) } else { Err("refused".into()) }
    }

    fn release(&mut self, lock: u32) -> Result {
        Ok(self.node.try_send_fast_over(self.link, &self.ask, &[RELEASE], lock)?)
    }
}

/// Adds to a number in a file, a thousand times, under an exclusive lock.
fn adder() -> Result {
    let mut client = Client::new()?;
    let path = common::path("number")?;
    for _ in 0..1000 {
        client.lock(1, EXCLUSIVE)?;
        let number: u64 = std::fs::read_to_string(&path).unwrap_or("0".into()).parse()?;
        std::fs::write(&path, (number + 1).to_string())?;
        client.release(1)?;
    }
    // A lock that it has already is refused; with one that it keeps, it goes.
    client.lock(2, SHARED)?;
    assert!(client.lock(2, SHARED).is_err());
    client.release(2)?;
    client.lock(3, EXCLUSIVE)?;
    client.lock(1, EXCLUSIVE)?;
    let number: u64 = std::fs::read_to_string(&path)?.parse()?;
    println!("process {} ends with the number at {number}", std::process::id());
    assert!((1000..=2000).contains(&number));
    client.node.close(LIMIT)?;
    Ok(())
}

/// Dies with the lock that the others want.
fn dies() -> Result {
    let mut client = Client::new()?;
    client.lock(1, EXCLUSIVE)?;
    println!("process {} dies with lock 1", std::process::id());
    std::mem::forget(client);
    std::process::exit(0);
}

fn main() -> Result {
    run(manager, &[adder, adder, dies])
}
