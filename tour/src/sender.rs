//! The honest sender: sends its standard input as messages, then small messages, each answered,
//! until it is told to stop. It would notice an attack that disturbed it.

use super::actor::Orders;
use super::receiver::{ANSWER_DIGEST, ANSWER_ECHO, Hello, Welcome, messages_of};
use anyhow::{Context, Result, ensure};
use hamlyn::interface::{AreaId, LinkId, QueueId, SlotConfig};
use hamlyn::node::Node;
use hamlyn::wire::{MetadataIndex, TICKET_BYTES, Ticket};
use hamlyn_tools::perf::clock;
use hamlyn_tools::tickets::ticket_of;
use serde::{Deserialize, Serialize};
use std::io::Read;
use std::time::Duration;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Order {
    /// Send standard input to the service.
    Send {
        service: String,
    },
    /// Send small messages until the next order.
    Beat,
    Stop,
}

/// Facts about the file's transfer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Sent {
    pub bytes: u64,
    pub messages: u64,
    pub packets: u64,
    /// From the first message to the confirmation that all have arrived.
    pub seconds: f64,
    pub digest: String,
    /// The path of the messages.
    pub path: String,
}

/// Facts about the small messages.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Beats {
    pub sent: u64,
    pub answered: u64,
    pub worst_ns: u64,
}

const PATIENCE: Duration = Duration::from_secs(10);
/// Between two small messages.
const PAUSE: Duration = Duration::from_millis(1);

struct Sender {
    node: Node,
    link: LinkId,
    queue: QueueId,
    answers: AreaId,
    echo: Ticket,
}

pub fn run(mut orders: Orders) -> Result<()> {
    let mut sender = None;
    while let Some(order) = orders.next()? {
        match order {
            Order::Send { service } => {
                let result = send(&service).map(|(it, sent)| {
                    sender = Some(it);
                    sent
                });
                orders.answer(result)?;
            }
            Order::Beat => {
                let result = match &mut sender {
                    Some(sender) => sender.beat(&orders),
                    None => Err(anyhow::anyhow!("nothing has been sent yet")),
                };
                let _: Option<Order> = orders.next()?;
                orders.answer(result)?;
            }
            Order::Stop => orders.answer(Ok(Beats::default()))?,
        }
    }
    Ok(())
}

fn send(service: &str) -> Result<(Sender, Sent)> {
    let mut file = Vec::new();
    std::io::stdin().read_to_end(&mut file).context("cannot read the file")?;
    let digest = blake3::hash(&file).to_hex().to_string();
    let mut node = Node::new()?;
    let queue = node.notification_queue(8)?;
    let count = messages_of(file.len() as u64);
    let ticket_area = node.message_area(count as usize * TICKET_BYTES)?;
    let ticket_slot = node.slot(SlotConfig::new(ticket_area, queue))?;
    let answers = node.message_area(16)?;
    let answer_slot = node.slot(SlotConfig::new(answers, queue).metadata(2))?;
    let hello = Hello::File {
        bytes: file.len() as u64,
        tickets: node.ticket(ticket_slot, MetadataIndex(0))?.to_bytes().to_vec(),
        answers: node.ticket(answer_slot, MetadataIndex(0))?.to_bytes().to_vec(),
    };
    let link = node.connect(service, &serde_json::to_vec(&hello)?, Some(PATIENCE))?;
    let welcome: Welcome = serde_json::from_slice(node.greeting(link)?)?;
    node.recv(queue, Some(PATIENCE)).context("no tickets came")?;
    let tickets: Vec<Ticket> = node
        .area(ticket_area)?
        .chunks(TICKET_BYTES)
        .map(|ticket| ticket_of(node.peer(link)?, ticket))
        .collect::<Result<_>>()?;
    let packets = counter(&node, "packets_sent");
    let mut result = Ok(());
    let seconds = clock::seconds(|| {
        result = (|| {
            for ticket in &tickets {
                let data = file.get(ticket.base as usize..ticket.bound as usize);
                let data = data.context("a ticket reaches outside of the file")?;
                node.send(ticket, data, &[], Some(PATIENCE))?;
            }
            let answer = node.recv(queue, Some(PATIENCE)).context("the file did not arrive")?;
            ensure!(answer.index == ANSWER_DIGEST, "another answer came");
            Ok(())
        })();
    });
    result?;
    let sent = Sent {
        bytes: file.len() as u64,
        messages: count as u64,
        packets: counter(&node, "packets_sent") - packets,
        seconds,
        digest,
        path: node.explain(link)?,
    };
    let echo = ticket_of(node.peer(link)?, &welcome.echo)?;
    Ok((Sender { node, link, queue, answers, echo }, sent))
}

fn counter(node: &Node, name: &str) -> u64 {
    node.counters().into_iter().find(|counter| counter.0 == name).map_or(0, |counter| counter.1)
}

impl Sender {
    fn beat(&mut self, orders: &Orders) -> Result<Beats> {
        let mut beats = Beats::default();
        while !orders.is_waiting() {
            beats.sent += 1;
            let message = [beats.sent.to_le_bytes(), (!beats.sent).to_le_bytes()].concat();
            let before = clock::ticks();
            self.node.send(&self.echo, &message, &[], Some(PATIENCE))?;
            let answer = self.node.recv(self.queue, Some(PATIENCE))?;
            let ns = clock::elapsed_ns(before, clock::ticks());
            ensure!(answer.link == self.link && answer.index == ANSWER_ECHO, "a strange answer");
            ensure!(self.node.area(self.answers)? == message, "the answer is not the message");
            beats.answered += 1;
            beats.worst_ns = beats.worst_ns.max(ns);
            std::thread::sleep(PAUSE);
        }
        Ok(beats)
    }
}
