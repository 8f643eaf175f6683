//! `hamlyn recv` and `hamlyn send`: standard input to standard output.
//!
//! ```text
//!   send                                          recv
//!   greeting: a ticket for tickets  ---------->
//!                                   <----------   greeting: a ticket for each buffer
//!   chunk, with number and length   ---------->   one-shot entry: it can no longer change
//!                                   <----------   the buffer's next ticket, once it is written out
//!   end, with total and digest      ---------->
//!                                   <----------   verdict
//! ```
//! The receiver gives each right to send separately: one chunk, into one buffer, once. So its
//! memory is bounded, a slow reader of its output slows the sender, and what it hashes and writes
//! is what it will still have when the digest is compared.
//!
//! Chunks are numbered, because a link need not keep order. Never: `recv` exits with success
//! without having written every byte that the sender's digest covers, nor leaves a file of which a
//! part is missing; `send` exits with success
//! before it has been told so.

use crate::arguments::{RecvArguments, SendArguments};
use crate::output::Replacement;
use crate::tickets::ticket_of;
use crate::{ending, names, progress, standard};
use anyhow::{Context, Result, anyhow, ensure};
use hamlyn::Config;
use hamlyn::control::{Accept, RequestId, printable_bytes};
use hamlyn::interface::{AreaId, LinkId, Mode, QueueId, SlotConfig, SlotId};
use hamlyn::node::{CloseReason, Event, Node};
use hamlyn::wire::{MetadataIndex, TICKET_BYTES, Ticket};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

const PROTOCOL: &[u8] = b"hamlyn-pipe-1\n";
/// Bytes of a chunk, and how many may be on their way.
const CHUNK_BYTES: usize = 256 << 10;
const CHUNKS: u32 = 4;
/// A link that stays full for so long belongs to a process that has stopped.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a chunk's metadata says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Chunk {
    Data {
        number: u64,
        length: u32,
    },
    /// After all data; as many chunks and bytes as there were.
    End {
        number: u64,
        bytes: u64,
        digest: [u8; 32],
    },
}

impl Chunk {
    fn to_bytes(self) -> Vec<u8> {
        match self {
            Self::Data { number, length } => {
                [&[0][..], &number.to_le_bytes(), &length.to_le_bytes()].concat()
            }
            Self::End { number, bytes, digest } => {
                [&[1][..], &number.to_le_bytes(), &bytes.to_le_bytes(), &digest].concat()
            }
        }
    }

    /// Of bytes that anybody may have written.
    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (kind, rest) = bytes.split_first()?;
        let (number, rest) = rest.split_first_chunk()?;
        let number = u64::from_le_bytes(*number);
        match kind {
            0 => {
                let length = u32::from_le_bytes(rest.try_into().ok()?);
                (length as usize <= CHUNK_BYTES).then_some(Self::Data { number, length })
            }
            1 => {
                let (total, digest) = rest.split_first_chunk()?;
                let bytes = u64::from_le_bytes(*total);
                Some(Self::End { number, bytes, digest: digest.try_into().ok()? })
            }
            _ => None,
        }
    }
}

// ---- recv

/// `hamlyn recv NAME`.
pub fn recv(arguments: &RecvArguments) -> Result<()> {
    names::to_serve(&arguments.name)?;
    let mut target = match &arguments.output {
        Some(path) => Target::File(Replacement::new(path, "leave out --output")?),
        None => Target::standard_output()?,
    };
    let mut node = Node::with_config(arguments.allow.settings(Config::from_env()?))?;
    let access = arguments.allow.access();
    node.serve(&arguments.name, access, Accept::Ask)?;
    names::tell_other_hosts(&node, &arguments.name);
    ending::remove_name(node.config(), &arguments.name, access);
    ending::on_signals()?;
    let deadline = arguments.wait.map(|wait| Instant::now() + wait);
    let mut receiver = Receiver::wait_for_sender(node, deadline)
        .with_context(|| format!("no sender for {}", arguments.name))?;
    let bar = progress::bytes(None, "received");
    let result = receiver
        .run(&mut target, |bytes| bar.set_position(bytes))
        .and_then(|()| target.finish(arguments.sync));
    bar.finish_and_clear();
    receiver.tell(&result);
    result
}

/// Where the bytes go.
enum Target {
    /// Whoever reads has them at once.
    Output(File),
    /// A file that is there when it is whole.
    File(Replacement),
}

impl Target {
    fn standard_output() -> Result<Self> {
        standard::output_is_open()?;
        // Past the buffer of Rust's standard output, which would keep what has no line end.
        Ok(Self::Output(File::from(io::stdout().as_fd().try_clone_to_owned()?)))
    }

    /// Everything is there.
    fn finish(&mut self, sync: bool) -> Result<()> {
        match self {
            Self::Output(_) => Ok(()),
            Self::File(file) => file.finish(sync),
        }
    }
}

impl Write for Target {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Output(file) => file.write(bytes),
            Self::File(file) => file.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct Receiver {
    node: Node,
    link: LinkId,
    area: AreaId,
    queue: QueueId,
    slot: SlotId,
    /// For the sender's entry of each chunk, and one more for the verdict.
    tickets: Ticket,
    /// The sender is on another host, of which a death is not told from silence.
    is_of_host: bool,
}

impl Receiver {
    fn wait_for_sender(mut node: Node, deadline: Option<Instant>) -> Result<Self> {
        let area = node.message_area(CHUNKS as usize * CHUNK_BYTES)?;
        let queue = node.notification_queue(CHUNKS)?;
        let config = SlotConfig::new(area, queue).metadata(CHUNKS).mode(Mode::ParanoidOneShot);
        let slot = node.slot(config)?;
        let mut offer = Vec::new();
        for index in 0..CHUNKS {
            node.arm(slot, MetadataIndex(index), Some(limits(index)))?;
            offer.extend(node.ticket(slot, MetadataIndex(index))?.to_bytes());
        }
        let mut accepted: Option<(RequestId, Ticket)> = None;
        loop {
            match node.next_event() {
                Some(Event::Request { id, peer, greeting }) => {
                    let ticket = greeting.strip_prefix(PROTOCOL).map(|t| ticket_of(&peer, t));
                    match (ticket, accepted) {
                        (Some(Ok(tickets)), None) => {
                            if node.accept(id, &offer).is_ok() {
                                accepted = Some((id, tickets));
                            }
                        }
                        (Some(Ok(_)), Some(_)) => {
                            let _ = node.refuse(id, "it receives from another already");
                        }
                        _ => drop(node.refuse(id, "this is `hamlyn recv`: use `hamlyn send`")),
                    }
                }
                Some(Event::Connected { link, request }) => match accepted {
                    Some((id, tickets)) if request == Some(id) => {
                        let is_of_host = node.peer(link).is_ok_and(|peer| peer.host.is_some());
                        return Ok(Self { node, link, area, queue, slot, tickets, is_of_host });
                    }
                    _ => drop(node.disconnect(link)),
                },
                // It asked, was accepted, and went away: another may come.
                Some(Event::RequestGone { id }) => {
                    if accepted.is_some_and(|accepted| accepted.0 == id) {
                        accepted = None;
                    }
                }
                Some(
                    Event::Closed { .. } | Event::Aperture { .. } | Event::TicketRevoked { .. },
                ) => {}
                None => {
                    let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
                    ensure!(node.wait(left)?, "none came within the time limit");
                }
            }
        }
    }

    /// Until the end, or until there can be none.
    fn run(&mut self, output: &mut dyn Write, mut progress: impl FnMut(u64)) -> Result<()> {
        let mut hasher = blake3::Hasher::new();
        let (mut next, mut bytes) = (0, 0u64);
        // At most CHUNKS: each waits in an entry of its own.
        let mut early: BTreeMap<u64, (u32, Chunk)> = BTreeMap::new();
        let mut closed = None;
        loop {
            let notification = self.node.try_recv(self.queue)?;
            // Death is not the end of data: whatever had arrived stands in the queue.
            let Some(notification) = notification else {
                if let Some(reason) = closed {
                    return Err(died(&reason, self.is_of_host, bytes));
                }
                self.node.wait(None)?;
                closed = self.take_events()?;
                continue;
            };
            let index = notification.index;
            let metadata = self.node.metadata(self.slot, index)?.user();
            let chunk = Chunk::from_bytes(metadata)
                .ok_or_else(|| anyhow!("the sender wrote what no `hamlyn send` writes"))?;
            let (Chunk::Data { number, .. } | Chunk::End { number, .. }) = chunk;
            ensure!(
                number >= next && number - next < CHUNKS as u64 && !early.contains_key(&number),
                "the sender sent chunk {number}, and {next} was expected"
            );
            early.insert(number, (index.0, chunk));
            while let Some((index, chunk)) = early.remove(&next) {
                match chunk {
                    Chunk::Data { length, .. } => {
                        let start = limits(index).start as usize;
                        let data = &self.node.area(self.area)?[start..start + length as usize];
                        hasher.update(data);
                        output.write_all(data).context("cannot write what came")?;
                        bytes += length as u64;
                        progress(bytes);
                        self.give_back(index)?;
                    }
                    Chunk::End { bytes: total, digest, .. } => {
                        ensure!(
                            total == bytes && *hasher.finalize().as_bytes() == digest,
                            "{bytes} bytes arrived, and their digest is not that of the {total} \
                             bytes that were sent: the output is wrong"
                        );
                        return Ok(());
                    }
                }
                next += 1;
            }
        }
    }

    /// The buffer may be written again: a new key, told to the sender alone.
    fn give_back(&mut self, index: u32) -> Result<()> {
        self.node.arm(self.slot, MetadataIndex(index), Some(limits(index)))?;
        let ticket = self.node.ticket(self.slot, MetadataIndex(index))?.to_bytes();
        let to = Ticket { metadata_index: MetadataIndex(index), ..self.tickets };
        match self.node.send_over(self.link, &to, &[], &ticket, Some(PATIENCE)) {
            Ok(_) => Ok(()),
            // The end may have arrived already.
            Err(_) if self.node.peer(self.link).is_err() => Ok(()),
            Err(error) => Err(error).context("cannot ask the sender for more"),
        }
    }

    fn take_events(&mut self) -> Result<Option<CloseReason>> {
        let mut closed = None;
        while let Some(event) = self.node.next_event() {
            match event {
                Event::Request { id, .. } => {
                    let _ = self.node.refuse(id, "it receives from another already");
                }
                Event::Closed { link, reason, .. } if link == self.link => closed = Some(reason),
                _ => {}
            }
        }
        Ok(closed)
    }

    /// The verdict. If the sender is gone it needs none.
    fn tell(mut self, result: &Result<()>) {
        let text = match result {
            Ok(()) => Vec::new(),
            // There is room for a few words.
            Err(error) => reason(error).into_bytes(),
        };
        let verdict = [&[result.is_ok() as u8][..], &text[..text.len().min(59)]].concat();
        let to = Ticket { metadata_index: MetadataIndex(CHUNKS), ..self.tickets };
        if self.node.peer(self.link).is_ok() {
            let limit = Some(Duration::from_secs(1));
            let _ = self.node.send_over(self.link, &to, &[], &verdict, limit);
            let _ = self.node.close(Some(Duration::from_secs(1)));
        }
    }
}

/// What the sender is told, who may be another user: the last cause, or what the system said, without
/// where this user's files lie.
fn reason(error: &anyhow::Error) -> String {
    let of_system = error.chain().filter_map(|cause| cause.downcast_ref::<io::Error>());
    match of_system.filter_map(io::Error::raw_os_error).last() {
        Some(number) => io::Error::from_raw_os_error(number).to_string(),
        None => {
            let text = error.root_cause().to_string();
            text.split(' ').filter(|word| !word.contains('/')).collect::<Vec<_>>().join(" ")
        }
    }
}

fn limits(index: u32) -> std::ops::Range<u64> {
    let start = index as u64 * CHUNK_BYTES as u64;
    start..start + CHUNK_BYTES as u64
}

fn died(reason: &CloseReason, is_of_host: bool, bytes: u64) -> anyhow::Error {
    let how = match reason {
        CloseReason::Died if is_of_host => "died, or cannot be reached any more,",
        CloseReason::Died => "died",
        CloseReason::Misbehaved(why) => return anyhow!("the sender was sent away: {why}"),
        _ => "ended",
    };
    anyhow!("the sender {how} after {bytes} bytes, before the end: the output is not whole")
}

// ---- send

/// `hamlyn send NAME`.
pub fn send(arguments: &SendArguments) -> Result<()> {
    standard::input_is_open()?;
    let input = io::stdin();
    let total = input_bytes(&input);
    let mut sender = Sender::connect(&arguments.name, arguments.wait)?;
    let bar = progress::bytes(total, "sent");
    let result = sender.run(&mut input.lock(), |bytes| bar.set_position(bytes));
    bar.finish_and_clear();
    result
}

/// If it is a file: what is left of it.
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
    /// How the link ended.
    closed: Option<CloseReason>,
    /// The receiver is on another host, of which a death is not told from silence.
    is_of_host: bool,
}

impl Sender {
    fn connect(name: &str, wait: Duration) -> Result<Self> {
        // Without time to wait, who is not there is an error at once; the link itself takes time.
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
        let is_of_host = node.peer(link)?.host.is_some();
        let (own, closed) = (Vec::new(), None);
        let mut sender = Self { node, link, queue, slot, tickets: own, closed, is_of_host };
        tickets.into_iter().try_for_each(|ticket| sender.keep(ticket))?;
        Ok(sender)
    }

    /// A right to send: one for each buffer, and no more.
    fn keep(&mut self, ticket: Ticket) -> Result<()> {
        ensure!(
            self.tickets.len() < CHUNKS as usize,
            "the receiver gives more rights to send than it has buffers, which are {CHUNKS}"
        );
        self.tickets.push(ticket);
        Ok(())
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
            if !self.wait(may_send.then_some(input.as_fd()))? {
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
                // If the receiver gave a reason before it went, that is the better one.
                if let Ok(Some(Err(verdict))) = self.verdict() {
                    return Err(verdict);
                }
                Err(error).context("cannot send to the receiver")
            }
        }
    }

    /// What the receiver says of the whole, once it has said it; an error also when it is gone
    /// without having said anything. Tickets that came are kept. Takes at most as much as an honest
    /// receiver can have sent; the rest is for the next call.
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
                // It is gone where the link is; what it gave last is worthless then.
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

    /// Nothing waits: why nothing will come any more, if so. Its last words would have come before
    /// its end.
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

    /// Sleeps until there may be a message, or input if that is wanted; says whether there is.
    fn wait(&mut self, input: Option<impl AsFd>) -> Result<bool> {
        if !self.node.prepare_to_wait()? {
            self.node.poll()?;
            // Input must not starve while messages come, nor they while there is input.
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
        let ready = match &input {
            None => {
                let _ = poll(&mut [node], None);
                false
            }
            Some(input) => {
                let mut fds = [node, PollFd::from_borrowed_fd(input.as_fd(), PollFlags::IN)];
                poll(&mut fds, None).is_ok() && !fds[1].revents().is_empty()
            }
        };
        self.node.poll()?;
        Ok(ready)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_chunk_says_survives_its_bytes_and_fits_into_metadata() {
        for chunk in [
            Chunk::Data { number: 3, length: CHUNK_BYTES as u32 },
            Chunk::End { number: u64::MAX, bytes: 5, digest: [9; 32] },
        ] {
            let bytes = chunk.to_bytes();
            assert!(bytes.len() <= hamlyn::wire::METADATA_MAX);
            assert_eq!(Chunk::from_bytes(&bytes), Some(chunk));
        }
    }

    #[test]
    fn a_chunk_that_claims_more_than_its_buffer_is_none() {
        let chunk = Chunk::Data { number: 0, length: CHUNK_BYTES as u32 + 1 };
        assert_eq!(Chunk::from_bytes(&chunk.to_bytes()), None);
        assert_eq!(Chunk::from_bytes(&[]), None);
        assert_eq!(Chunk::from_bytes(&[2; 41]), None);
        assert_eq!(Chunk::from_bytes(&[1; 20]), None);
    }
}
