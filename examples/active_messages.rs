//! Active messages (Hamlyn 3.3, 5.4): a message names the handler that runs at its receiver, in the
//! receiver's poll, before anything is queued. Each handler runs before the next message is
//! deposited, so one slot of one packet's length serves any number of senders.

mod common;
use common::{Result, node, run};
use hamlyn::{Accept, Access, LinkId, Message, MetadataIndex, Receiver, SlotConfig, Then, Ticket};
use std::collections::BTreeMap;
use std::time::Duration;

const LIMIT: Option<Duration> = Some(Duration::from_secs(10));
const CLIENTS: u64 = 2;

/// The state of the handlers. They cannot send: answers leave after the poll.
#[derive(Default)]
struct Table {
    sums: BTreeMap<u8, u64>,
    answers: Vec<(LinkId, Ticket, u64)>,
    /// Messages that name no handler, or whose arguments make no sense.
    wrong: u64,
}

/// `None`: the arguments make no sense. They are a stranger's.
type Handler = fn(&mut Table, LinkId, &[u8]) -> Option<()>;
const HANDLERS: [Handler; 2] = [add, read];
const ADD: u32 = 0;
const READ: u32 = 1;

fn add(table: &mut Table, _: LinkId, arguments: &[u8]) -> Option<()> {
    let (name, amount) = arguments.split_first()?;
    let sum = table.sums.entry(*name).or_default();
    *sum = sum.wrapping_add(u64::from_le_bytes(amount.try_into().ok()?));
    Some(())
}

fn read(table: &mut Table, from: LinkId, arguments: &[u8]) -> Option<()> {
    let (name, reply) = arguments.split_first()?;
    let sum = table.sums.get(name).copied().unwrap_or(0);
    table.answers.push((from, Ticket::from_bytes(reply).ok()?, sum));
    Some(())
}

impl Receiver for Table {
    fn process_arrival(&mut self, message: Message<'_>) -> Then {
        let handler = HANDLERS.get(message.word as usize);
        let done = handler.and_then(|run| run(self, message.link, message.last_bytes()));
        self.wrong += done.is_none() as u64;
        Then::Consume
    }
}

fn server(ready: &dyn Fn() -> Result) -> Result {
    let mut node = node()?;
    let (area, queue) = (node.message_area(64)?, node.notification_queue(1)?);
    let slot = node.slot(SlotConfig::new(area, queue))?;
    node.install(slot, Table::default())?;
    let ticket = node.fast_ticket(slot)?;
    node.serve("active", Access::SameUser, Accept::Automatic(ticket.to_bytes().to_vec()))?;
    ready()?;
    let mut answered = 0;
    while answered < CLIENTS {
        node.wait(LIMIT)?;
        let table = node.installed_mut::<Table>(slot)?.ok_or("a handler panicked")?;
        for (link, reply, sum) in std::mem::take(&mut table.answers) {
            // Only over the link of the request: a stranger's ticket may lead to any process.
            node.send_over(link, &reply, &sum.to_le_bytes(), b"", LIMIT)?;
            answered += 1;
        }
    }
    let table = node.installed::<Table>(slot)?.ok_or("a handler panicked")?;
    println!("{:?}, and {} messages that were wrong", table.sums, table.wrong);
    assert_eq!(table.wrong, CLIENTS);
    node.close(LIMIT)?;
    Ok(())
}

fn client(name: u8) -> Result {
    let mut node = node()?;
    let (area, queue) = (node.message_area(8)?, node.notification_queue(1)?);
    let slot = node.slot(SlotConfig::new(area, queue))?;
    let link = node.connect("active", b"", LIMIT)?;
    let ticket = Ticket::from_bytes(node.greeting(link)?)?;
    let argument = |bytes: &[u8]| [&[name], bytes].concat();
    for amount in 1..=1000u64 {
        node.send_fast(&ticket, &argument(&amount.to_le_bytes()), ADD, LIMIT)?;
    }
    node.send_fast(&ticket, &argument(b"no number"), ADD, LIMIT)?;
    let reply = node.ticket(slot, MetadataIndex(0))?.to_bytes();
    node.send_fast(&ticket, &argument(&reply), READ, LIMIT)?;
    node.recv(queue, LIMIT)?;
    assert_eq!(node.area(area)?, 500_500u64.to_le_bytes());
    Ok(())
}

fn main() -> Result {
    run(server, &[|| client(b'a'), || client(b'b')])
}
