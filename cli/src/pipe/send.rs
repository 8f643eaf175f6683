//! `hamlyn send`: sends standard input, one chunk for each right that the receiver gives.

use super::{CHUNK_BYTES, CHUNKS, Chunk, PATIENCE, PROTOCOL, idle_max};
use crate::arguments::SendArguments;
use anyhow::{Context, Result, anyhow, ensure};
use hamlyn::Config;
use hamlyn::control::printable_bytes;
use hamlyn::interface::{LinkId, QueueId, SlotConfig, SlotId};
use hamlyn::node::{CloseReason, Event, Node};
use hamlyn::wire::{MetadataIndex, TICKET_BYTES, Ticket};
use hamlyn_tools::tickets::ticket_of;
use hamlyn_tools::{progress, standard};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// `hamlyn send NAME`.
pub fn send(arguments: &SendArguments) -> Result<()> {
    standard::input_is_open()?;
    let input = io::stdin();
    let total = input_bytes(&input);
    let mut sender = Sender::connect(&arguments.name, arguments.wait, arguments.idle)?;
    let bar = progress::bytes(total, "sent");
    let result = sender.run(&mut input.lock(), |bytes| bar.set_position(bytes));
    bar.finish_and_clear();
    result
}

/// The rest of the input in bytes, if it is a file.
fn input_bytes(input: impl AsFd) -> Option<u64> {
    let stat = rustix::fs::fstat(&input).ok()?;
    let is_file = rustix::fs::FileType::from_raw_mode(stat.st_mode).is_file();
    let position = is_file.then(|| rustix::fs::tell(&input).ok()).flatten()?;
    Some((stat.st_size as u64).saturating_sub(position))
}

struct Sender {
    node: Node,
    link: LinkId,
    queue: QueueId,
    slot: SlotId,
    /// Rights to send that have not been used: at most `CHUNKS`.
    tickets: Vec<Ticket>,
    /// The reason why the link ended.
    closed: Option<CloseReason>,
    idle_max: Option<Duration>,
    /// The last time the receiver gave a right to send, or was sent something.
    progressed: Instant,
    /// The receiver is on another host, where a death looks like silence.
    is_of_host: bool,
}

impl Sender {
    fn connect(name: &str, wait: Duration, idle: Option<Duration>) -> Result<Self> {
        // Without time to wait, an absent receiver is an error at once; making the link takes time
        // anyway.
        let mut config = Config::from_env()?;
        if wait.is_zero() {
            config = config.wait_for_names(false);
        }
        let wait = wait.max(Duration::from_secs(1));
        let mut node = Node::with_config(config)?;
        // Tickets and the verdict come as metadata; there is no data.
        let area = node.message_area(1)?;
        let queue = node.notification_queue(CHUNKS + 1)?;
        let slot = node.slot(SlotConfig::new(area, queue).metadata(CHUNKS + 1))?;
        let ticket = node.ticket(slot, MetadataIndex(0))?;
        let greeting = [PROTOCOL, &ticket.to_bytes()].concat();
        let link = node.connect(name, &greeting, Some(wait))?;
        let offer = node.greeting(link)?;
        let tickets = offer
            .chunks(TICKET_BYTES)
            .take(CHUNKS as usize + 1)
            .map(|ticket| ticket_of(node.peer(link)?, ticket))
            .collect::<Result<Vec<_>>>()
            .context("the service is no `hamlyn recv`")?;
        let peer = node.peer(link)?;
        let (is_of_host, idle_max) = (peer.host.is_some(), idle_max(idle, peer));
        let (own, closed, progressed) = (Vec::new(), None, Instant::now());
        let mut sender = Self {
            node,
            link,
            queue,
            slot,
            tickets: own,
            closed,
            idle_max,
            progressed,
            is_of_host,
        };
        tickets.into_iter().try_for_each(|ticket| sender.keep(ticket))?;
        Ok(sender)
    }

    /// Keeps a right to send: at most one for each buffer.
    fn keep(&mut self, ticket: Ticket) -> Result<()> {
        ensure!(
            self.tickets.len() < CHUNKS as usize,
            "the receiver gives more rights to send than it has buffers, which are {CHUNKS}"
        );
        self.tickets.push(ticket);
        self.progressed = Instant::now();
        Ok(())
    }

    /// The longest wait for the receiver now. An error: it has been too long.
    fn patience(&self) -> Result<Option<Duration>> {
        let Some(max) = self.idle_max else { return Ok(None) };
        let left = max.saturating_sub(self.progressed.elapsed());
        ensure!(
            !left.is_zero(),
            "the receiver has taken nothing for {} s (--idle allows more)",
            max.as_secs_f64()
        );
        Ok(Some(left))
    }

    fn run(&mut self, input: &mut (impl Read + AsFd), mut progress: impl FnMut(u64)) -> Result<()> {
        let mut hasher = blake3::Hasher::new();
        let mut buffer = vec![0; CHUNK_BYTES];
        let (mut number, mut bytes, mut is_sent) = (0, 0u64, false);
        loop {
            if let Some(verdict) = self.verdict()? {
                ensure!(verdict.is_err() || is_sent, "the receiver was content before the end");
                return verdict;
            }
            let may_send = !is_sent && !self.tickets.is_empty();
            // There is no limit on the wait for its own input.
            let patience = if may_send { None } else { self.patience()? };
            if !self.wait(may_send.then_some(input.as_fd()), patience)? {
                continue;
            }
            let length = match input.read(&mut buffer) {
                Ok(length) => length,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error).context("cannot read standard input"),
            };
            let Some(ticket) = self.tickets.pop() else { continue };
            let data = &buffer[..length];
            let chunk = match length {
                0 => Chunk::End { number, bytes, digest: *hasher.finalize().as_bytes() },
                _ => Chunk::Data { number, length: length as u32 },
            };
            is_sent = length == 0;
            hasher.update(data);
            self.send_chunk(&ticket, data, chunk)?;
            self.progressed = Instant::now();
            number += 1;
            bytes += length as u64;
            progress(bytes);
        }
    }

    fn send_chunk(&mut self, ticket: &Ticket, data: &[u8], chunk: Chunk) -> Result<()> {
        let metadata = chunk.to_bytes();
        match self.node.send_over(self.link, ticket, data, &metadata, Some(PATIENCE)) {
            Ok(_) => Ok(()),
            Err(error) => {
                // The receiver's own reason, if it gave one before it left, is better.
                if let Ok(Some(Err(verdict))) = self.verdict() {
                    return Err(verdict);
                }
                Err(error).context("cannot send to the receiver")
            }
        }
    }

    /// The receiver's verdict on the whole transfer, if it has arrived; an error also if the
    /// receiver has gone without one. Keeps the tickets that arrive. Takes at most as many messages
    /// as an honest receiver can have sent; the rest is for the next call.
    fn verdict(&mut self) -> Result<Option<Result<()>>> {
        for _ in 0..=CHUNKS {
            while let Some(event) = self.node.next_event() {
                match event {
                    Event::Closed { link, reason, .. } if link == self.link => {
                        self.closed = Some(reason);
                    }
                    _ => {}
                }
            }
            let Some(notification) = self.node.try_recv(self.queue)? else {
                return Ok(self.gone().map(Err));
            };
            let metadata = self.node.metadata(self.slot, notification.index)?.user();
            if notification.index != MetadataIndex(CHUNKS) {
                let metadata = metadata.to_vec();
                // The receiver is on the host of the link; its last rights are worthless when it
                // has gone.
                if let Ok(peer) = self.node.peer(self.link) {
                    let ticket = ticket_of(peer, &metadata).context("the receiver's ticket")?;
                    self.keep(ticket)?;
                }
                continue;
            }
            let (verdict, why) = metadata.split_first().context("an empty verdict")?;
            return Ok(Some(match verdict {
                1 => Ok(()),
                _ => Err(anyhow!("the receiver failed: {}", printable_bytes(why))),
            }));
        }
        Ok(None)
    }

    /// With nothing in the queue: the reason why nothing more will come, if so. The verdict would
    /// have arrived before the end of the link.
    fn gone(&self) -> Option<anyhow::Error> {
        if self.closed.is_none() && self.node.peer(self.link).is_ok() {
            return None;
        }
        Some(match self.closed {
            Some(CloseReason::Died) if self.is_of_host => {
                anyhow!(
                    "the receiver died, or cannot be reached any more, before it had everything"
                )
            }
            Some(CloseReason::Died) => anyhow!("the receiver died before it had everything"),
            _ => anyhow!("the receiver ended before it had everything"),
        })
    }

    /// Sleeps until there may be a message, or input if wanted, or the time limit has passed;
    /// returns whether there is input.
    fn wait(&mut self, input: Option<impl AsFd>, patience: Option<Duration>) -> Result<bool> {
        if !self.node.prepare_to_wait()? {
            self.node.poll()?;
            // Messages must not starve input, nor input messages.
            let now = Timespec { tv_sec: 0, tv_nsec: 0 };
            return Ok(match input {
                None => false,
                Some(input) => {
                    let mut fds = [PollFd::from_borrowed_fd(input.as_fd(), PollFlags::IN)];
                    poll(&mut fds, Some(&now))? > 0
                }
            });
        }
        let node = PollFd::from_borrowed_fd(self.node.as_fd(), PollFlags::IN);
        let patience = patience.and_then(|patience| Timespec::try_from(patience).ok());
        let ready = match &input {
            None => {
                let _ = poll(&mut [node], patience.as_ref());
                false
            }
            Some(input) => {
                let mut fds = [node, PollFd::from_borrowed_fd(input.as_fd(), PollFlags::IN)];
                poll(&mut fds, patience.as_ref()).is_ok() && !fds[1].revents().is_empty()
            }
        };
        self.node.poll()?;
        Ok(ready)
    }
}
