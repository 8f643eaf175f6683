//! The receiver: takes a file from the sender, accepts strangers like a public service, and reports
//! its counters and the digest of the file's present bytes on request.

use super::actor::Orders;
use super::host::access;
use anyhow::{Context, Result, anyhow};
use hamlyn::control::{Accept, RequestId};
use hamlyn::interface::{AreaId, LinkId, Mode, QueueId, SlotConfig, SlotId};
use hamlyn::node::{Event, Node};
use hamlyn::wire::{MetadataIndex, Ticket};
use hamlyn_tools::tickets::ticket_of;
use rustix::event::{PollFd, PollFlags, poll};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

/// The service's name.
pub const NAME: &str = "tour";
/// Bytes of a message of the file.
pub const MESSAGE_BYTES: usize = 256 << 10;
/// Largest file: it is kept in one message area.
pub const FILE_BYTES_MAX: u64 = 1 << 30;
/// Bytes of the area that strangers may write to, and notifications that one may have unread.
pub const GUEST_BYTES: u64 = 64 << 10;
pub const GUEST_CREDIT: u32 = 4;

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum Order {
    Report,
}

/// The answer to a request for a report.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Report {
    pub counters: BTreeMap<String, u64>,
    /// The digest of the file's present bytes in the message area.
    pub digest: Option<String>,
    /// Present links.
    pub links: usize,
}

/// The greeting of a client.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Hello {
    /// A file of so many bytes. `tickets` leads to the place for the rights to send its messages,
    /// `answers` to the place for answers.
    File { bytes: u64, tickets: Vec<u8>, answers: Vec<u8> },
    /// Any other client.
    Guest,
}

/// A guest's rights, one of each kind.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Rights {
    pub normal: Vec<u8>,
    pub one_shot: Vec<u8>,
    pub paranoid: Vec<u8>,
    /// Revoked before it was given.
    pub revoked: Vec<u8>,
}

/// The sender's rights beside those to send its messages.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Welcome {
    pub echo: Vec<u8>,
}

/// Entries of the sender's slot for answers.
pub const ANSWER_ECHO: MetadataIndex = MetadataIndex(0);
pub const ANSWER_DIGEST: MetadataIndex = MetadataIndex(1);

struct File {
    request: RequestId,
    link: Option<LinkId>,
    area: AreaId,
    bytes: u64,
    slot: SlotId,
    messages: u32,
    arrived: u32,
    tickets: Ticket,
    answers: Ticket,
}

struct Guest {
    slots: [SlotId; 4],
}

struct Receiver {
    node: Node,
    /// Notifications of the file's messages and of echoes.
    queue: QueueId,
    echo: SlotId,
    echo_area: AreaId,
    file: Option<File>,
    /// Strangers' messages are deposited and announced here, and never read.
    guest_area: AreaId,
    guest_queue: QueueId,
    guests: HashMap<RequestId, Guest>,
    guest_links: HashMap<LinkId, RequestId>,
}

const PATIENCE: Duration = Duration::from_secs(10);

pub fn run(mut orders: Orders) -> Result<()> {
    let mut receiver = Receiver::new()?;
    loop {
        receiver.work()?;
        if orders.is_waiting() {
            let Some(Order::Report) = orders.next()? else { return Ok(()) };
            let report = receiver.report();
            orders.answer(report)?;
            continue;
        }
        if receiver.node.prepare_to_wait()? {
            let node = PollFd::from_borrowed_fd(receiver.node.as_fd(), PollFlags::IN);
            let _ =
                poll(&mut [node, PollFd::from_borrowed_fd(orders.as_fd(), PollFlags::IN)], None);
        }
    }
}

impl Receiver {
    fn new() -> Result<Self> {
        let mut node = Node::new()?;
        let queue = node.notification_queue(8192 + 16)?;
        let echo_area = node.message_area(16)?;
        let echo = node.slot(SlotConfig::new(echo_area, queue).credit(16))?;
        let guest_area = node.message_area(GUEST_BYTES as usize)?;
        let guest_queue = node.notification_queue(1 << 16)?;
        node.serve(NAME, access(), Accept::Ask)?;
        let (guests, guest_links) = (HashMap::new(), HashMap::new());
        Ok(Self {
            node,
            queue,
            echo,
            echo_area,
            file: None,
            guest_area,
            guest_queue,
            guests,
            guest_links,
        })
    }

    /// Handles all pending work.
    fn work(&mut self) -> Result<()> {
        loop {
            let taken = self.node.poll()?;
            let mut any = taken > 0;
            while let Some(event) = self.node.next_event() {
                any = true;
                self.handle(event)?;
            }
            while let Some(notification) = self.node.try_recv(self.queue)? {
                any = true;
                if notification.is_for(self.echo) {
                    self.send_echo()?;
                } else {
                    self.count_message()?;
                }
            }
            if !any {
                return Ok(());
            }
        }
    }

    fn handle(&mut self, event: Event) -> Result<()> {
        match event {
            Event::Request { id, peer, greeting } => {
                let answer = match serde_json::from_slice(&greeting) {
                    Ok(Hello::File { bytes, tickets, answers }) => {
                        let read = |ticket: &[u8]| ticket_of(&peer, ticket);
                        let tickets =
                            read(&tickets).and_then(|tickets| Ok((tickets, read(&answers)?)));
                        tickets.and_then(|tickets| self.prepare_file(id, bytes, tickets))
                    }
                    Ok(Hello::Guest) => self.prepare_guest(id),
                    Err(_) => Err(anyhow!("this is the receiver of a tour")),
                };
                // The client may be gone by now.
                let _ = match answer {
                    Ok(greeting) => self.node.accept(id, &greeting),
                    Err(error) => self.node.refuse(id, &format!("{error:#}")),
                };
            }
            Event::Connected { link, request: Some(id) } => {
                if self.file.as_ref().is_some_and(|file| file.request == id) {
                    self.give_tickets(link)?;
                } else {
                    self.guest_links.insert(link, id);
                }
            }
            Event::RequestGone { id } => self.remove_guest(id)?,
            Event::Closed { link, .. } => {
                if let Some(guest) = self.guest_links.remove(&link) {
                    self.remove_guest(guest)?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn prepare_file(
        &mut self,
        request: RequestId,
        bytes: u64,
        (tickets, answers): (Ticket, Ticket),
    ) -> Result<Vec<u8>> {
        anyhow::ensure!(self.file.is_none(), "there is a file already");
        anyhow::ensure!(
            bytes <= FILE_BYTES_MAX,
            "a file of {bytes} bytes, and {FILE_BYTES_MAX} at most"
        );
        let messages = messages_of(bytes);
        let area = self.node.message_area((bytes as usize).max(1))?;
        let config =
            SlotConfig::new(area, self.queue).metadata(messages).mode(Mode::ParanoidOneShot);
        let slot = self.node.slot(config)?;
        for index in 0..messages {
            let limits = limits(index, bytes);
            self.node.arm(slot, MetadataIndex(index), Some(limits))?;
        }
        let (link, arrived) = (None, 0);
        self.file =
            Some(File { request, link, area, bytes, slot, messages, arrived, tickets, answers });
        let echo = self.node.ticket(self.echo, MetadataIndex(0))?.to_bytes().to_vec();
        Ok(serde_json::to_vec(&Welcome { echo })?)
    }

    /// Sends the right to each message, once, to its place: all as one message of tickets.
    fn give_tickets(&mut self, link: LinkId) -> Result<()> {
        let file = self.file.as_mut().context("no file")?;
        file.link = Some(link);
        let mut all = Vec::new();
        for index in 0..file.messages {
            all.extend(self.node.ticket(file.slot, MetadataIndex(index))?.to_bytes());
        }
        self.node.send(&file.tickets, &all, &[], Some(PATIENCE))?;
        Ok(())
    }

    fn count_message(&mut self) -> Result<()> {
        let Some(file) = &mut self.file else { return Ok(()) };
        file.arrived += 1;
        if file.arrived == file.messages {
            let to = Ticket { metadata_index: ANSWER_DIGEST, ..file.answers };
            self.node.send(&to, &[], &[], Some(PATIENCE))?;
        }
        Ok(())
    }

    fn send_echo(&mut self) -> Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        let message = self.node.area(self.echo_area)?.to_vec();
        let to = Ticket { metadata_index: ANSWER_ECHO, ..file.answers };
        self.node.send(&to, &message, &[], Some(PATIENCE))?;
        Ok(())
    }

    fn prepare_guest(&mut self, id: RequestId) -> Result<Vec<u8>> {
        let config = || SlotConfig::new(self.guest_area, self.guest_queue);
        let normal = self.node.slot(config().metadata(4).credit(GUEST_CREDIT))?;
        let one_shot = self.node.slot(config().mode(Mode::ParanoidOneShot))?;
        let paranoid = self.node.slot(config().mode(Mode::Paranoid).credit(GUEST_CREDIT))?;
        let revoked = self.node.slot(config().credit(GUEST_CREDIT))?;
        self.guests.insert(id, Guest { slots: [normal, one_shot, paranoid, revoked] });
        let first = MetadataIndex(0);
        self.node.arm(one_shot, first, Some(0..GUEST_BYTES))?;
        self.node.arm(paranoid, first, Some(0..GUEST_BYTES / 2))?;
        let ticket = |slot| anyhow::Ok(self.node.ticket(slot, first)?.to_bytes().to_vec());
        let rights = Rights {
            normal: ticket(normal)?,
            one_shot: ticket(one_shot)?,
            paranoid: ticket(paranoid)?,
            revoked: ticket(revoked)?,
        };
        self.node.revoke(revoked)?;
        Ok(serde_json::to_vec(&rights)?)
    }

    fn remove_guest(&mut self, id: RequestId) -> Result<()> {
        if let Some(guest) = self.guests.remove(&id) {
            for slot in guest.slots {
                self.node.remove_slot(slot)?;
            }
        }
        Ok(())
    }

    fn report(&mut self) -> Result<Report> {
        let counters = self
            .node
            .counters()
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value))
            .collect();
        let digest = match &self.file {
            Some(file) if file.arrived == file.messages => {
                let bytes = &self.node.area(file.area)?[..file.bytes as usize];
                Some(blake3::hash(bytes).to_hex().to_string())
            }
            _ => None,
        };
        Ok(Report { counters, digest, links: self.node.links().count() })
    }
}

/// Messages of a file; an empty one has one.
pub fn messages_of(bytes: u64) -> u32 {
    bytes.div_ceil(MESSAGE_BYTES as u64).max(1) as u32
}

/// The range of message `index` in a file.
pub fn limits(index: u32, bytes: u64) -> std::ops::Range<u64> {
    let start = index as u64 * MESSAGE_BYTES as u64;
    start..(start + MESSAGE_BYTES as u64).min(bytes)
}
