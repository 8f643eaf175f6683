//! The two ends of a measurement, each a process of its own on the public library.
//!
//! ```text
//!   initiator                                  the end that serves
//!   connect, greeting: Task  -------------->   makes a slot with the credit that the test needs
//!                            <--------------   greeting: Offer, the slot's ticket
//!   latency: message --->    <--- message      both into a metadata entry, with a notification
//!   rate, bandwidth: messages, at most the credit on their way   --->
//!                            <--- fast message: how many have arrived, every quarter of it
//! ```
//! Each message has its key and bounds checked, is deposited, and stands in a notification queue.
//! The serving end trusts no input: sizes and counts of a task have limits, and a peer that leaves
//! ends its own measurement only.

use super::clock;
use super::pin::pin;
use super::stats::RoundTrips;
use crate::allow::Allow;
use crate::arguments::{Mode, Over};
use crate::tickets::ticket_of;
use crate::{ending, serving};
use anyhow::{Context, Result, bail, ensure};
use hamlyn::config::{Config, WaitMode};
use hamlyn::control::{Accept, Access, Peer};
use hamlyn::interface::{AreaId, LinkId, Notification, QueueId, SlotConfig, SlotId};
use hamlyn::node::{Event, Node, NodeReceiveError};
use hamlyn::wire::{MetadataIndex, Ticket};
use rustix::event::{PollFd, PollFlags, poll};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

/// The kinds of measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Test {
    Latency,
    Rate,
    Bandwidth,
}

impl fmt::Display for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Latency => "latency",
            Self::Rate => "rate",
            Self::Bandwidth => "bandwidth",
        })
    }
}

/// The greeting of a client.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "hamlyn-perf-1", rename_all = "lowercase")]
enum Hello {
    /// A link that stays idle.
    Idle,
    /// A link over which the server sends a message every so many microseconds, until it ends.
    Now {
        into: Vec<u8>,
        every_us: u64,
    },
    Task(Task),
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Task {
    test: Test,
    /// Bytes of a message.
    size: usize,
    /// Messages until the first pause, to warm up.
    warm_up: u64,
    /// Messages after it.
    count: u64,
    /// A ticket into the initiator's slot: for echoes or, in fast mode, for the count of arrivals.
    reply: Vec<u8>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Offer {
    ticket: Vec<u8>,
    /// Most messages on their way.
    credit: u32,
}

/// The arguments of the hidden subcommand for the far end of a measurement on one machine.
#[derive(clap::Args, Clone, Debug)]
pub struct EndArguments {
    #[arg(long)]
    name: String,
    #[arg(long)]
    core: usize,
    #[arg(long, value_enum)]
    mode: Mode,
    #[arg(long)]
    links: u32,
    #[arg(long)]
    smallest_rings: bool,
}

/// The pause in microseconds between two messages of a busy peer.
const PAUSES_US: std::ops::RangeInclusive<u64> = 1..=1_000_000;
/// A peer that sends nothing for this long has hung.
const PATIENCE: Duration = Duration::from_secs(30);
/// The longest measurement for another user or host, so that others can follow.
const MEASUREMENT_MAX: Duration = Duration::from_secs(600);
/// The time in which an accepted peer must connect.
const LINK_WITHIN: Duration = Duration::from_secs(10);
/// Largest message that is served, since this end provides the memory.
pub const SIZE_MAX: usize = 1 << 30;
/// Notifications of short messages on their way.
const CREDIT_MAX: usize = 1024;
/// A message up to this size is one packet, and any number of them may be on their way to one
/// metadata entry. A longer one needs an entry of its own.
const ONE_PACKET_BYTES: usize = 4096;
/// Bytes of long messages on their way.
const BYTES_ON_THE_WAY: usize = 8 << 20;

/// The settings from the environment, with the mode and room for `links` idle links.
pub fn config(mode: Mode, links: u32) -> Result<Config> {
    let mut config = Config::from_env()?;
    config.wait_mode = match mode {
        Mode::Polled => WaitMode::Polled,
        Mode::Adaptive => WaitMode::Adaptive,
        Mode::Blocking => WaitMode::Blocking,
    };
    let links = links + 64;
    config.links_max = config.links_max.max(links);
    config.connections_per_user_max = config.connections_per_user_max.max(links);
    Ok(config)
}

/// The next notification; gives up if the link is gone, or the time limit has passed without one.
#[inline(always)]
fn next(
    node: &mut Node,
    queue: QueueId,
    link: LinkId,
    mode: Mode,
    until: Option<Instant>,
) -> Result<Notification> {
    if mode == Mode::Polled {
        for _ in 0..1 << 16 {
            if let Some(notification) = node.try_recv(queue)? {
                return Ok(notification);
            }
        }
    }
    next_slowly(node, queue, link, until)
}

/// Checks the time limit of a measurement.
fn in_time(until: Option<Instant>) -> Result<()> {
    let is_over = until.is_some_and(|until| Instant::now() >= until);
    ensure!(!is_over, "it took longer than {} s", MEASUREMENT_MAX.as_secs());
    Ok(())
}

#[cold]
#[inline(never)]
fn next_slowly(
    node: &mut Node,
    queue: QueueId,
    link: LinkId,
    until: Option<Instant>,
) -> Result<Notification> {
    for _ in 0..PATIENCE.as_secs() {
        match node.recv(queue, Some(Duration::from_secs(1))) {
            Err(NodeReceiveError::TimedOut) => {
                ensure!(node.peer(link).is_ok(), "the other end is gone");
                in_time(until)?;
            }
            other => return Ok(other?),
        }
    }
    bail!("nothing arrived for {} s", PATIENCE.as_secs())
}

// ---- the initiator

/// The parameters of the initiator's measurement.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub test: Test,
    pub size: usize,
    pub count: u64,
    pub mode: Mode,
    pub links: u32,
    /// Use rings of 512 bytes only.
    pub smallest_rings: bool,
}

impl Plan {
    /// The settings of the initiator's node.
    pub fn config(&self) -> Result<Config> {
        Ok(rings(config(self.mode, self.links)?, self.smallest_rings))
    }
}

fn rings(config: Config, smallest: bool) -> Config {
    match smallest {
        true => config.ring_bytes(512u32).bulk_ring_bytes(0u32),
        false => config,
    }
}

/// The address of the other end.
#[derive(Clone, Copy, Debug)]
pub struct Far<'a> {
    /// Its service's name, with a host if needed.
    pub name: &'a str,
    /// The secret's file, for an end on another host.
    pub secret: Option<&'a Path>,
    /// The kind of link.
    pub over: Over,
}

/// The initiator's node, with its idle links.
pub struct Initiator {
    node: Node,
    name: String,
    /// Of the next run; its mode and its links are those of the first.
    pub plan: Plan,
    over: Over,
}

impl Initiator {
    /// Runs on the calling thread, which is pinned already.
    pub fn new(far: Far<'_>, plan: Plan) -> Result<Self> {
        let Far { name, secret, over } = far;
        let mut config = plan.config()?;
        if let Some(secret) = secret {
            config.secret = Some(secret.into());
            // The measured path is that between hosts, even if both ends are on this one.
            config.local = hamlyn::config::Local::Tls;
        }
        if over.is_fabric() {
            config.fabric = hamlyn::config::Fabric::Trusted;
        }
        let node = Node::with_config(config)?;
        let mut initiator = Self { node, name: name.to_owned(), plan, over };
        for number in 0..plan.links {
            initiator
                .connect(&Hello::Idle)
                .with_context(|| format!("idle link {} of {}", number + 1, plan.links))?;
        }
        Ok(initiator)
    }

    fn connect(&mut self, hello: &Hello) -> Result<LinkId> {
        let greeting = serde_json::to_vec(hello)?;
        Ok(self.node.connect(&self.name, &greeting, Some(Duration::from_secs(10)))?)
    }

    /// One run.
    pub fn run(&mut self) -> Result<super::row::Figure> {
        let Plan { test, size, count, .. } = self.plan;
        let area = self.node.message_area(size.max(1))?;
        let queue = self.node.notification_queue(64)?;
        let slot = self.node.slot(SlotConfig::new(area, queue).credit(64))?;
        let reply = match test {
            Test::Latency => self.node.ticket(slot, MetadataIndex(0))?,
            Test::Rate | Test::Bandwidth => self.node.fast_ticket(slot)?,
        };
        let warm_up = (count / 10).max(1);
        let reply = reply.to_bytes().to_vec();
        let link = self.connect(&Hello::Task(Task { test, size, warm_up, count, reply }))?;
        let offer: Offer = serde_json::from_slice(self.node.greeting(link)?)
            .context("the other end is no `hamlyn perf serve`")?;
        if self.over.is_fabric() {
            let path = self.node.explain(link)?;
            ensure!(path.contains("libfabric ") && !path.contains("not libfabric"), "{path}");
        }
        let ticket = ticket_of(self.node.peer(link)?, &offer.ticket)?;
        let run = Run { queue, link, ticket, warm_up, plan: self.plan };
        let figure = match test {
            Test::Latency => run.latency(&mut self.node),
            Test::Rate | Test::Bandwidth => run.stream(&mut self.node, offer.credit),
        }?;
        self.node.disconnect(link)?;
        self.node.remove_slot(slot)?;
        self.node.remove_queue(queue)?;
        self.node.remove_area(area)?;
        while self.node.next_event().is_some() {}
        Ok(figure)
    }
}

/// Messages from other hosts meanwhile.
#[cfg(feature = "tls")]
mod heard {
    use super::*;
    use hamlyn::{Message, Receiver, Then};

    impl Initiator {
        /// Makes a link to another end, which sends a message so often, or none; returns the slot
        /// they come to.
        pub fn hear(&mut self, name: &str, every: Option<Duration>) -> Result<SlotId> {
            let (area, queue) = (self.node.message_area(64)?, self.node.notification_queue(1)?);
            let slot = self.node.slot(SlotConfig::new(area, queue))?;
            self.node.install(slot, Heard(0))?;
            let into = self.node.ticket(slot, MetadataIndex(0))?.to_bytes().to_vec();
            let hello = match every.map(|every| every.as_micros() as u64) {
                None => Hello::Idle,
                Some(every_us) => Hello::Now { into, every_us },
            };
            self.node.connect(name, &serde_json::to_vec(&hello)?, Some(Duration::from_secs(10)))?;
            Ok(slot)
        }

        /// The messages that have arrived there.
        pub fn heard(&self, slot: Option<SlotId>) -> Result<u64> {
            let Some(slot) = slot else { return Ok(0) };
            Ok(self.node.installed::<Heard>(slot)?.map_or(0, |heard| heard.0))
        }
    }

    /// Counts messages, and queues none of them.
    struct Heard(u64);

    impl Receiver for Heard {
        fn process_arrival(&mut self, _: Message<'_>) -> Then {
            self.0 += 1;
            Then::Consume
        }
    }
}

struct Run {
    queue: QueueId,
    link: LinkId,
    ticket: Ticket,
    warm_up: u64,
    plan: Plan,
}

impl Run {
    fn latency(&self, node: &mut Node) -> Result<super::row::Figure> {
        let message = vec![7; self.plan.size];
        let one_way_ns = RoundTrips::make(self.warm_up, self.plan.count, || {
            send(node, &self.ticket, &message)?;
            next(node, self.queue, self.link, self.plan.mode, None)
        })?;
        Ok(super::row::Figure::Latency { one_way_ns })
    }

    /// Messages one after another, at most the credit on their way.
    fn stream(&self, node: &mut Node, credit: u32) -> Result<super::row::Figure> {
        let Plan { size, mode, .. } = self.plan;
        let message = vec![7; size];
        let entries = if size <= ONE_PACKET_BYTES { 1 } else { credit };
        let (mut sent, mut arrived, mut entry) = (0u64, 0u64, 0);
        let mut ticket = self.ticket;
        let mut stream = |until: u64| -> Result<()> {
            while sent < until {
                let many = (until - sent).min(credit as u64 - (sent - arrived));
                if many == 0 {
                    let word = next(node, self.queue, self.link, mode, None)?.word;
                    arrived += word.wrapping_sub(arrived as u32) as u64;
                    continue;
                }
                if entries == 1 {
                    send_many(node, &ticket, &message, many)?;
                } else {
                    for _ in 0..many {
                        ticket.metadata_index = MetadataIndex(entry);
                        send(node, &ticket, &message)?;
                        entry = if entry + 1 == entries { 0 } else { entry + 1 };
                    }
                }
                sent += many;
            }
            while arrived < until {
                let word = next(node, self.queue, self.link, mode, None)?.word;
                arrived += word.wrapping_sub(arrived as u32) as u64;
            }
            Ok(())
        };
        stream(self.warm_up)?;
        let seconds = clock::timed(|| stream(self.warm_up + self.plan.count))?;
        let messages_per_s = self.plan.count as f64 / seconds;
        Ok(match self.plan.test {
            Test::Bandwidth => super::row::Figure::Bandwidth {
                bytes_per_s: messages_per_s * self.plan.size as f64,
            },
            _ => super::row::Figure::Rate { messages_per_s },
        })
    }
}

#[inline(always)]
fn send(node: &mut Node, ticket: &Ticket, message: &[u8]) -> Result<()> {
    node.send(ticket, message, &[], Some(PATIENCE))?;
    Ok(())
}

/// Sends messages one after another. A loop of its own: the caller's registers would be stored and
/// loaded for each message, and such stores wait behind those of a line that is still on its way.
#[inline(never)]
fn send_many(node: &mut Node, ticket: &Ticket, message: &[u8], many: u64) -> Result<()> {
    for _ in 0..many {
        send(node, ticket, message)?;
    }
    Ok(())
}

// ---- the end that serves

/// `hamlyn perf serve`: any number of measurements, one after another.
pub fn serve(name: &str, allow: &Allow, mode: Mode) -> Result<()> {
    serving::to_serve(name)?;
    let node = Node::with_config(allow.settings(config(mode, 4096)?))?;
    Server { node, mode }.serve(name, allow.access(), |node| {
        eprintln!("hamlyn: serving {name}");
        serving::tell_other_hosts(node, name);
    })
}

/// The far end on one machine: pinned; prints its address on standard output once it is ready; ends
/// with its standard input, that is, with the process that started it.
pub fn run_end(arguments: EndArguments) -> Result<()> {
    pin(arguments.core)?;
    std::thread::spawn(|| {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        ending::exit(0);
    });
    let config = config(arguments.mode, arguments.links)?;
    let node = Node::with_config(rings(config, arguments.smallest_rings))?;
    let name = &arguments.name;
    Server { node, mode: arguments.mode }.serve(name, Access::SameUser, |node| {
        let at = serving::for_other_hosts(node, name).unwrap_or_else(|| name.clone());
        let mut output = std::io::stdout();
        let _ = writeln!(output, "{at}").and_then(|()| output.flush());
    })
}

struct Server {
    node: Node,
    mode: Mode,
}

/// The resources of one task.
struct Parts {
    task: Task,
    reply: Ticket,
    area: AreaId,
    queue: QueueId,
    slot: SlotId,
    credit: u32,
}

impl Server {
    fn serve(&mut self, name: &str, access: Access, ready: impl FnOnce(&Node)) -> Result<()> {
        self.node.serve(name, access, Accept::Ask)?;
        ending::remove_name(self.node.config(), name, access);
        ending::on_signals()?;
        ready(&self.node);
        loop {
            let Some(event) = self.node.next_event() else {
                sleep_until_something_happens(&mut self.node)?;
                continue;
            };
            let Event::Request { id, peer, greeting } = event else { continue };
            match serde_json::from_slice(&greeting) {
                Ok(Hello::Idle) => drop(self.node.accept(id, &[])),
                Ok(Hello::Now { into, every_us }) => match now_and_then(&peer, &into, every_us) {
                    Ok((into, pause)) => {
                        if let Err(error) = self.send_now(&into, pause, id) {
                            eprintln!("hamlyn: messages now and then ended early: {error:#}");
                        }
                    }
                    Err(error) => drop(self.node.refuse(id, &format!("{error:#}"))),
                },
                Ok(Hello::Task(task)) => match self.prepare(&peer, task) {
                    Ok(parts) => {
                        if let Err(error) = self.run(&parts, id) {
                            eprintln!("hamlyn: a measurement ended early: {error:#}");
                        }
                        self.remove(parts)?;
                    }
                    Err(error) => drop(self.node.refuse(id, &format!("{error:#}"))),
                },
                Err(_) => drop(self.node.refuse(id, "this is a `hamlyn perf serve`")),
            }
        }
    }

    fn prepare(&mut self, peer: &Peer, task: Task) -> Result<Parts> {
        let size = task.size;
        ensure!(size <= SIZE_MAX, "a message of {size} bytes; at most {SIZE_MAX} are served");
        let reply = ticket_of(peer, &task.reply).context("the ticket for replies")?;
        let credit = (BYTES_ON_THE_WAY / size.max(1)).clamp(4, CREDIT_MAX) as u32;
        let area = self.node.message_area(size.max(1))?;
        let queue = self.node.notification_queue(credit)?;
        let entries = if size <= ONE_PACKET_BYTES { 1 } else { credit };
        let config = SlotConfig::new(area, queue).metadata(entries).credit(credit);
        let slot = self.node.slot(config)?;
        Ok(Parts { task, reply, area, queue, slot, credit })
    }

    fn remove(&mut self, parts: Parts) -> Result<()> {
        self.node.remove_slot(parts.slot)?;
        self.node.remove_queue(parts.queue)?;
        self.node.remove_area(parts.area)?;
        Ok(())
    }

    fn run(&mut self, parts: &Parts, request: hamlyn::control::RequestId) -> Result<()> {
        let Parts { task, reply, queue, slot, credit, .. } = parts;
        let ticket = self.node.ticket(*slot, MetadataIndex(0))?.to_bytes().to_vec();
        let offer = serde_json::to_vec(&Offer { ticket, credit: *credit })?;
        self.node.accept(request, &offer)?;
        let link = self.wait_for_link(request)?;
        let end = self.until(link);
        let total = task.warm_up.saturating_add(task.count);
        match task.test {
            Test::Latency => {
                let message = vec![7; task.size];
                for number in 0..total {
                    next(&mut self.node, *queue, link, self.mode, end)?;
                    if number % 256 == 0 {
                        in_time(end)?;
                    }
                    send(&mut self.node, reply, &message)?;
                }
            }
            Test::Rate | Test::Bandwidth => {
                let lot = (*credit / 4).max(1) as u64;
                // No division for each message: it would cost a fifth of the rate.
                let mut arrived = 0;
                while arrived < total {
                    in_time(end)?;
                    let pause = if arrived < task.warm_up { task.warm_up } else { total };
                    let until = pause.min(arrived + lot);
                    while arrived < until {
                        next(&mut self.node, *queue, link, self.mode, end)?;
                        arrived += 1;
                    }
                    self.node.send_fast(reply, &[], arrived as u32, Some(PATIENCE))?;
                }
            }
        }
        Ok(())
    }

    /// The time limit of a measurement; `None` for this user's own.
    fn until(&self, link: LinkId) -> Option<Instant> {
        let is_own = self.node.peer(link).is_ok_and(serving::is_own);
        (!is_own).then(|| Instant::now() + MEASUREMENT_MAX)
    }

    /// Sends a message after each pause, until the other end has left.
    fn send_now(
        &mut self,
        into: &Ticket,
        pause: Duration,
        request: hamlyn::control::RequestId,
    ) -> Result<()> {
        self.node.accept(request, &[])?;
        let link = self.wait_for_link(request)?;
        let until = self.until(link);
        while self.node.peer(link).is_ok() && send(&mut self.node, into, &[7; 16]).is_ok() {
            in_time(until)?;
            std::thread::sleep(pause);
        }
        Ok(())
    }

    fn wait_for_link(&mut self, wanted: hamlyn::control::RequestId) -> Result<LinkId> {
        let mut others = Vec::new();
        let until = Instant::now() + LINK_WITHIN;
        let result = loop {
            let left = until.saturating_duration_since(Instant::now());
            ensure!(!left.is_zero(), "the peer asked, and did not connect");
            match self.node.next_event() {
                Some(Event::Connected { link, request: Some(id) }) if id == wanted => {
                    break Ok(link);
                }
                // Other clients are refused, and may try again.
                Some(Event::Request { id, .. }) => others.push(id),
                Some(_) => {}
                None => drop(self.node.wait(Some(left))?),
            }
        };
        for id in others {
            let _ = self.node.refuse(id, "another measurement is running");
        }
        result
    }
}

/// The destination of a busy peer's messages, and the pause between two, after which it checks that
/// the other end is still there.
fn now_and_then(peer: &Peer, into: &[u8], every_us: u64) -> Result<(Ticket, Duration)> {
    let (least, most) = (PAUSES_US.start(), PAUSES_US.end());
    ensure!(
        PAUSES_US.contains(&every_us),
        "a message each {every_us} microseconds; {least} to {most} are served"
    );
    Ok((ticket_of(peer, into)?, Duration::from_micros(every_us)))
}

/// Sleeps in any mode: between measurements there is nothing to poll for.
fn sleep_until_something_happens(node: &mut Node) -> Result<()> {
    if node.prepare_to_wait()? {
        let mut fds = [PollFd::from_borrowed_fd(node.as_fd(), PollFlags::IN)];
        match poll(&mut fds, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error).context("cannot wait for connections"),
        }
    }
    node.poll()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_measurement_for_another_user_ends_in_time_and_one_of_this_user_does_not() {
        assert!(in_time(None).is_ok() && in_time(Some(Instant::now() + MEASUREMENT_MAX)).is_ok());
        assert!(in_time(Some(Instant::now())).is_err());
    }

    #[test]
    fn nobody_who_asks_for_messages_holds_the_end_that_serves_without_its_looking_at_him() {
        let ticket = [0; hamlyn::wire::TICKET_BYTES];
        let (uid, gid, pid, process, host) = (None, None, None, None, None);
        let (node, is_proved, service) = (hamlyn::NodeId(0), true, String::new());
        let peer = Peer { node, is_proved, uid, gid, pid, process, service, host };
        let now_and_then = |ticket: &[u8], every_us| now_and_then(&peer, ticket, every_us);
        assert_eq!(now_and_then(&ticket, 100).unwrap().1, Duration::from_micros(100));
        for every_us in [0, 1_000_001, u64::MAX] {
            let error = now_and_then(&ticket, every_us).unwrap_err().to_string();
            assert!(error.contains(&every_us.to_string()) && error.contains("1000000"), "{error}");
        }
        assert!(now_and_then(&ticket[1..], 100).is_err());
    }
}
