//! `hamlyn recv`: tries senders in turn until something is written, then stays with that sender.

use super::{CHUNK_BYTES, CHUNKS, Chunk, PATIENCE, PROTOCOL, idle_max};
use crate::arguments::RecvArguments;
use anyhow::{Context, Result, anyhow, bail, ensure};
use hamlyn::Config;
use hamlyn::control::{Accept, Peer, RequestId};
use hamlyn::interface::{AreaId, LinkId, Mode, QueueId, SlotConfig, SlotId};
use hamlyn::node::{CloseReason, Event, Node};
use hamlyn::wire::{MetadataIndex, Ticket};
use hamlyn_tools::output::Replacement;
use hamlyn_tools::serving::is_own;
use hamlyn_tools::tickets::ticket_of;
use hamlyn_tools::{ending, progress, standard};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// The silence after which a sender of another user or host gives way to another that asks. Shorter
/// than the time for which the other's request is kept (`handshake_timeout_ms`).
const SILENT_BESIDE_ANOTHER: Duration = Duration::from_secs(2);
/// Every sender may be silent for this long, however late it was linked.
const SILENT_AT_LEAST: Duration = Duration::from_secs(1);
/// Requests that wait for a sender to begin.
const WAITING_MAX: usize = 64;
/// The same of one user or host.
const WAITING_OF_ONE_MAX: usize = 8;

/// `hamlyn recv NAME`.
pub fn recv(arguments: &RecvArguments) -> Result<()> {
    hamlyn_tools::serving::to_serve(&arguments.name)?;
    let mut target = match &arguments.output {
        Some(path) => Target::File(Replacement::new(path, "leave out --output")?),
        None => Target::standard_output()?,
    };
    let mut node = Node::with_config(arguments.allow.settings(Config::from_env()?))?;
    let access = arguments.allow.access();
    node.serve(&arguments.name, access, Accept::Ask)?;
    hamlyn_tools::serving::tell_other_hosts(&node, &arguments.name);
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

/// The destination of the bytes.
enum Target {
    /// The reader has the bytes at once.
    Output(File),
    /// A file that is replaced when complete.
    File(Replacement),
}

impl Target {
    fn standard_output() -> Result<Self> {
        standard::output_is_open()?;
        // Not through the buffer of Rust's standard output, which keeps bytes until a line ends.
        Ok(Self::Output(File::from(io::stdout().as_fd().try_clone_to_owned()?)))
    }

    /// Completes the output.
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
    /// The time limit until a sender has sent something.
    deadline: Option<Instant>,
    idle: Option<Duration>,
    /// Requests made while another sender was linked that had sent nothing.
    waiting: VecDeque<Request>,
    /// Users and hosts with a sender that failed before it had sent anything: others come first.
    failed: BTreeSet<String>,
}

struct Request {
    id: RequestId,
    /// Its user or host.
    who: String,
    /// For the sender's entry of each chunk, and one more for the verdict.
    tickets: Ticket,
}

/// The present sender.
struct From {
    link: LinkId,
    since: Instant,
    who: String,
    tickets: Ticket,
    is_own: bool,
    idle_max: Option<Duration>,
    /// It is on another host, where a death looks like silence.
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

    /// Opens every buffer with new keys, for the sender that is accepted next.
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
                // The accepted sender has left: another may come.
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
        let who = match &peer.host {
            Some(host) => host.identity.clone(),
            None => peer.uid.map_or("unknown".into(), |user| user.to_string()),
        };
        let of_one = self.waiting.iter().filter(|request| request.who == who).count();
        if of_one >= WAITING_OF_ONE_MAX || self.waiting.len() >= WAITING_MAX {
            return drop(self.node.refuse(id, ANOTHER));
        }
        self.waiting.push_back(Request { id, who, tickets });
    }

    /// The oldest request of a user or host without a failed sender, or else the oldest.
    fn next_request(&mut self) -> Option<Request> {
        let fresh = self.waiting.iter().position(|request| !self.failed.contains(&request.who));
        self.waiting.remove(fresh.unwrap_or(0))
    }

    fn refuse_others(&mut self) {
        for request in self.waiting.drain(..) {
            let _ = self.node.refuse(request.id, ANOTHER);
        }
    }

    /// The longest wait now. An error: the sender has been silent for too long.
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

    /// Receives until the end, or an error. `has_begun`: something was written, or tried to.
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
            // Death is not the end of data: messages that had arrived are in the queue.
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
            // A chunk out of order is no progress, however many come.
            let before = next;
            if last.is_none() && number == next {
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
            // Without the time that the output took.
            if next > before {
                last = Some(Instant::now());
            }
        }
    }

    /// Opens the buffer again, with a new key for this sender only.
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

    /// Sends the verdict. A sender that has gone needs none.
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

    /// Removes everything of this sender's, and revokes its keys.
    fn forget(&mut self, from: &From) -> Result<()> {
        let _ = self.node.disconnect(from.link);
        for index in 0..CHUNKS {
            self.node.arm(self.slot, MetadataIndex(index), Some(limits(index)))?;
        }
        while self.node.try_recv(self.queue)?.is_some() {}
        Ok(())
    }
}

/// The answer to a sender that comes while another sends.
const ANOTHER: &str = "it receives from another already";

/// The reason for the sender, which may be another user: the last cause, or the system's error,
/// without the paths of this user's files.
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
