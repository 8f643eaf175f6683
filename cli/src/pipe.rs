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
//! Chunks are numbered, because a link need not keep order. Until something is written, `recv` may turn to
//! another sender: if this one ends, breaks the protocol, or stays silent for too long. Never: `recv` exits
//! with success without having written every byte that the sender's digest covers, nor leaves a file of
//! which a part is missing; `send` exits with success before it has been told so; a peer of another user or
//! host holds either of them without making progress.

use crate::arguments::{RecvArguments, SendArguments};
use crate::output::Replacement;
use crate::{ending, names, progress, standard};
use anyhow::{Context, Result, anyhow, bail, ensure};
use hamlyn::Config;
use hamlyn::control::{Accept, Peer, RequestId, printable_bytes};
use hamlyn::interface::{AreaId, LinkId, Mode, QueueId, SlotConfig, SlotId};
use hamlyn::node::{CloseReason, Event, Node};
use hamlyn::wire::{MetadataIndex, TICKET_BYTES, Ticket};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

const PROTOCOL: &[u8] = b"hamlyn-pipe-1\n";
/// Bytes of a chunk, and how many may be on their way.
const CHUNK_BYTES: usize = 256 << 10;
const CHUNKS: u32 = 4;
/// A link that stays full for so long belongs to a process that has stopped; and a peer of another user or
/// host may go for so long without progress (`--idle`).
const PATIENCE: Duration = Duration::from_secs(60);
/// A sender of another user or host that has sent nothing for so long gives way to another that asks. Less
/// than the other's request is kept (`handshake_timeout_ms`).
const SILENT_BESIDE_ANOTHER: Duration = Duration::from_secs(2);
/// However late it was linked, it may be silent for so long.
const SILENT_AT_LEAST: Duration = Duration::from_secs(1);
/// Requests that wait for a sender to begin.
const WAITING_MAX: usize = 64;

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
                // One of no bytes would be no progress.
                let is_one = (1..=CHUNK_BYTES).contains(&(length as usize));
                is_one.then_some(Self::Data { number, length })
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

/// A ticket of a peer's, which leads to it: with another's, it could have this process write where it
/// may not write itself.
fn ticket_of(peer: &Peer, bytes: &[u8]) -> Result<Ticket> {
    let ticket = Ticket::from_bytes(bytes)?;
    let (to, node) = (ticket.destination, peer.node);
    ensure!(to == node, "it is for node {to}, and came from node {node}");
    Ok(ticket)
}

/// Whether a peer is a process of this user, which may do to this process what it likes anyway.
pub fn is_own(peer: &Peer) -> bool {
    peer.host.is_none() && peer.uid == Some(rustix::process::geteuid().as_raw())
}

/// How long a peer may go without progress; `None`: for ever.
fn idle_max(asked: Option<Duration>, peer: &Peer) -> Option<Duration> {
    asked.or((!is_own(peer)).then_some(PATIENCE))
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
    let mut receiver = Receiver::new(node, deadline, arguments.idle)?;
    loop {
        let sender = receiver
            .wait_for_sender()
            .with_context(|| format!("no sender for {}", arguments.name))?;
        let bar = progress::bytes(None, "received");
        let mut has_begun = false;
        let result = receiver
            .run(&sender, &mut target, &mut has_begun, |bytes| bar.set_position(bytes))
            .and_then(|()| target.finish(arguments.sync));
        bar.finish_and_clear();
        receiver.tell(&sender, &result);
        match result {
            Err(error) if !has_begun => {
                receiver.forget(&sender)?;
                if receiver.failed.insert(sender.who) {
                    eprintln!(
                        "hamlyn: {error:#}; nothing was written, and another sender may come"
                    );
                }
            }
            result => {
                receiver.close();
                return result;
            }
        }
    }
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
    area: AreaId,
    queue: QueueId,
    slot: SlotId,
    /// Until a sender has sent something.
    deadline: Option<Instant>,
    idle: Option<Duration>,
    /// Those who asked while another was linked that had sent nothing.
    waiting: VecDeque<Request>,
    /// Users and hosts of whom a sender failed before it had sent anything: others come first.
    failed: BTreeSet<String>,
}

struct Request {
    id: RequestId,
    /// Its user or host.
    who: String,
    /// For the sender's entry of each chunk, and one more for the verdict.
    tickets: Ticket,
}

/// Who sends.
struct From {
    link: LinkId,
    since: Instant,
    who: String,
    tickets: Ticket,
    is_own: bool,
    idle_max: Option<Duration>,
    /// It is on another host, of which a death is not told from silence.
    is_of_host: bool,
}

impl Receiver {
    fn new(mut node: Node, deadline: Option<Instant>, idle: Option<Duration>) -> Result<Self> {
        let area = node.message_area(CHUNKS as usize * CHUNK_BYTES)?;
        let queue = node.notification_queue(CHUNKS)?;
        let config = SlotConfig::new(area, queue).metadata(CHUNKS).mode(Mode::ParanoidOneShot);
        let slot = node.slot(config)?;
        let (waiting, failed) = (VecDeque::new(), BTreeSet::new());
        Ok(Self { node, area, queue, slot, deadline, idle, waiting, failed })
    }

    /// Every buffer may be written, with new keys, which are told to whoever is accepted next.
    fn offer(&mut self) -> Result<Vec<u8>> {
        let mut offer = Vec::new();
        for index in 0..CHUNKS {
            self.node.arm(self.slot, MetadataIndex(index), Some(limits(index)))?;
            offer.extend(self.node.ticket(self.slot, MetadataIndex(index))?.to_bytes());
        }
        Ok(offer)
    }

    fn wait_for_sender(&mut self) -> Result<From> {
        let mut accepted: Option<Request> = None;
        loop {
            if accepted.is_none()
                && let Some(request) = self.next_request()
            {
                let offer = self.offer()?;
                if self.node.accept(request.id, &offer).is_ok() {
                    accepted = Some(request);
                }
            }
            match self.node.next_event() {
                Some(Event::Request { id, peer, greeting }) => self.asked(id, &peer, &greeting),
                Some(Event::Connected { link, request }) => {
                    match accepted.take_if(|accepted| request == Some(accepted.id)) {
                        Some(Request { who, tickets, .. }) => {
                            let (since, peer) = (Instant::now(), self.node.peer(link)?);
                            let (is_own, is_of_host) = (is_own(peer), peer.host.is_some());
                            let idle_max = idle_max(self.idle, peer);
                            return Ok(From {
                                link,
                                since,
                                who,
                                tickets,
                                is_own,
                                idle_max,
                                is_of_host,
                            });
                        }
                        None => drop(self.node.disconnect(link)),
                    }
                }
                // It asked, was accepted, and went away: another may come.
                Some(Event::RequestGone { id }) => {
                    accepted.take_if(|accepted| accepted.id == id);
                    self.waiting.retain(|request| request.id != id);
                }
                Some(
                    Event::Closed { .. } | Event::Aperture { .. } | Event::TicketRevoked { .. },
                ) => {}
                None => {
                    let left = self.deadline.map(|at| at.saturating_duration_since(Instant::now()));
                    ensure!(self.node.wait(left)?, "none came within the time limit");
                }
            }
        }
    }

    fn asked(&mut self, id: RequestId, peer: &Peer, greeting: &[u8]) {
        let tickets = greeting.strip_prefix(PROTOCOL).map(|ticket| ticket_of(peer, ticket));
        let Some(Ok(tickets)) = tickets else {
            return drop(self.node.refuse(id, "this is `hamlyn recv`: use `hamlyn send`"));
        };
        if self.waiting.len() >= WAITING_MAX {
            return drop(self.node.refuse(id, ANOTHER));
        }
        let who = match &peer.host {
            Some(host) => host.identity.clone(),
            None => peer.uid.map_or("unknown".into(), |user| user.to_string()),
        };
        self.waiting.push_back(Request { id, who, tickets });
    }

    /// The first that asked, of those whose user or host has not failed if there are any.
    fn next_request(&mut self) -> Option<Request> {
        let fresh = self.waiting.iter().position(|request| !self.failed.contains(&request.who));
        self.waiting.remove(fresh.unwrap_or(0))
    }

    fn refuse_others(&mut self) {
        for request in self.waiting.drain(..) {
            let _ = self.node.refuse(request.id, ANOTHER);
        }
    }

    /// How long is waited now. An error: the sender has been silent for too long.
    fn patience(&mut self, from: &From, last: Option<Instant>) -> Result<Option<Duration>> {
        let mut limits = vec![from.idle_max.map(|max| last.unwrap_or(from.since) + max)];
        if last.is_none() && !from.is_own {
            limits.push(self.deadline.map(|at| at.max(from.since + SILENT_AT_LEAST)));
            let beside = (!self.waiting.is_empty()).then(|| from.since + SILENT_BESIDE_ANOTHER);
            limits.push(beside);
        }
        let Some(until) = limits.into_iter().flatten().min() else { return Ok(None) };
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            let silent = last.unwrap_or(from.since).elapsed().as_secs_f64();
            bail!("the sender has sent nothing for {silent:.1} s");
        }
        Ok(Some(left))
    }

    /// Until the end, or until there can be none. `has_begun`: something was written, or tried to.
    fn run(
        &mut self,
        from: &From,
        output: &mut dyn Write,
        has_begun: &mut bool,
        mut progress: impl FnMut(u64),
    ) -> Result<()> {
        if from.is_own {
            self.refuse_others();
        }
        let mut last = None;
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
                    return Err(died(&reason, from.is_of_host, bytes));
                }
                let patience = self.patience(from, last)?;
                self.node.wait(patience)?;
                closed = self.take_events(from, last.is_some())?;
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
            if last.is_none() {
                self.refuse_others();
            }
            while let Some((index, chunk)) = early.remove(&next) {
                match chunk {
                    Chunk::Data { length, .. } => {
                        let start = limits(index).start as usize;
                        let data = &self.node.area(self.area)?[start..start + length as usize];
                        hasher.update(data);
                        *has_begun = true;
                        output.write_all(data).context("cannot write what came")?;
                        bytes += length as u64;
                        progress(bytes);
                        self.give_back(from, index)?;
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
            // Not the time that the output took.
            last = Some(Instant::now());
        }
    }

    /// The buffer may be written again: a new key, told to the sender alone.
    fn give_back(&mut self, from: &From, index: u32) -> Result<()> {
        self.node.arm(self.slot, MetadataIndex(index), Some(limits(index)))?;
        let ticket = self.node.ticket(self.slot, MetadataIndex(index))?.to_bytes();
        let to = Ticket { metadata_index: MetadataIndex(index), ..from.tickets };
        match self.node.send_over(from.link, &to, &[], &ticket, Some(PATIENCE)) {
            Ok(_) => Ok(()),
            // The end may have arrived already.
            Err(_) if self.node.peer(from.link).is_err() => Ok(()),
            Err(error) => Err(error).context("cannot ask the sender for more"),
        }
    }

    fn take_events(&mut self, from: &From, has_sent: bool) -> Result<Option<CloseReason>> {
        let mut closed = None;
        while let Some(event) = self.node.next_event() {
            match event {
                Event::Request { id, peer, greeting } if !from.is_own && !has_sent => {
                    self.asked(id, &peer, &greeting);
                }
                Event::Request { id, .. } => drop(self.node.refuse(id, ANOTHER)),
                Event::RequestGone { id } => self.waiting.retain(|request| request.id != id),
                Event::Closed { link, reason, .. } if link == from.link => closed = Some(reason),
                _ => {}
            }
        }
        Ok(closed)
    }

    /// The verdict. If the sender is gone it needs none.
    fn tell(&mut self, from: &From, result: &Result<()>) {
        let text = match result {
            Ok(()) => Vec::new(),
            // There is room for a few words.
            Err(error) => reason(error).into_bytes(),
        };
        let verdict = [&[result.is_ok() as u8][..], &text[..text.len().min(59)]].concat();
        let to = Ticket { metadata_index: MetadataIndex(CHUNKS), ..from.tickets };
        if self.node.peer(from.link).is_ok() {
            let limit = Some(Duration::from_secs(1));
            let _ = self.node.send_over(from.link, &to, &[], &verdict, limit);
        }
    }

    fn close(self) {
        let _ = self.node.close(Some(Duration::from_secs(1)));
    }

    /// Nothing of this sender's is left, and its keys open nothing.
    fn forget(&mut self, from: &From) -> Result<()> {
        let _ = self.node.disconnect(from.link);
        for index in 0..CHUNKS {
            self.node.arm(self.slot, MetadataIndex(index), Some(limits(index)))?;
        }
        while self.node.try_recv(self.queue)?.is_some() {}
        Ok(())
    }
}

/// To a sender that comes while another sends.
const ANOTHER: &str = "it receives from another already";

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
    let mut sender = Sender::connect(&arguments.name, arguments.wait, arguments.idle)?;
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
    idle_max: Option<Duration>,
    /// When the receiver last gave a right to send, or was last sent something.
    progressed: Instant,
    /// The receiver is on another host, of which a death is not told from silence.
    is_of_host: bool,
}

impl Sender {
    fn connect(name: &str, wait: Duration, idle: Option<Duration>) -> Result<Self> {
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

    /// A right to send: one for each buffer, and no more.
    fn keep(&mut self, ticket: Ticket) -> Result<()> {
        ensure!(
            self.tickets.len() < CHUNKS as usize,
            "the receiver gives more rights to send than it has buffers, which are {CHUNKS}"
        );
        self.tickets.push(ticket);
        self.progressed = Instant::now();
        Ok(())
    }

    /// How long the receiver is waited for now. An error: it has been too long.
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
            // Its own input is waited for as long as it takes.
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

    /// Sleeps until there may be a message, or input if that is wanted, or the time is up; says whether
    /// there is input.
    fn wait(&mut self, input: Option<impl AsFd>, patience: Option<Duration>) -> Result<bool> {
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
        let nothing = Chunk::Data { number: 0, length: 0 };
        assert_eq!(Chunk::from_bytes(&nothing.to_bytes()), None);
        assert_eq!(Chunk::from_bytes(&[]), None);
        assert_eq!(Chunk::from_bytes(&[2; 41]), None);
        assert_eq!(Chunk::from_bytes(&[1; 20]), None);
    }
}
