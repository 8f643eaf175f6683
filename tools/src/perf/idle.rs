//! `hamlyn perf idle`: the cost of unused links, and the delay of the first message on one.
//!
//! ```text
//!   this process                               the far end, pinned to the other core
//!   start it, connect, first message  ---->    (time from start to first message)
//!   sleep a second, both asleep                (its processor time)
//!   N links that stay idle            ---->    (resident memory of both, before and after)
//!   ping-pong on one link  <------------>      looks at the busy link and the idle ones in turn
//!   one message on an idle link       ---->    answers when it finds it
//! ```

use super::least::{self, Least};
use super::others::{self, Others};
use super::stats::median;
use super::{clock, ends, pin, raw};
use crate::arguments::{IdleArguments, Mode};
use crate::ending;
use crate::tickets::ticket_of;
use anyhow::{Context, Result, ensure};
use hamlyn::control::{Accept, Access};
use hamlyn::interface::{LinkId, SlotConfig};
use hamlyn::node::{Event, Node};
use hamlyn::wire::{MetadataIndex, TICKET_BYTES, Ticket};
use serde::Serialize;
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(10);
const MESSAGE_BYTES: usize = 16;
/// Idle links on which a message is sent, in turn.
const SPEAKERS_MAX: u32 = 16;
/// Busy turns between two of them: more than a link needs to count as idle again.
const TURNS_BETWEEN: usize = 20_000;

/// One line of figures.
#[derive(Debug, Serialize)]
struct Row {
    test: &'static str,
    links: u32,
    /// From the start of the other process to its first message.
    start_to_first_message_ns: f64,
    /// Of an idle link, in both processes together; shared pages count in both.
    idle_link_resident_bytes: f64,
    /// Processor time that the far end used while it slept, all threads.
    blocked_cpu_ns_per_s: f64,
    /// From sending on an idle link to its answer, less a round trip on the busy link.
    idle_link_found_ns: Found,
    raw_line_one_way_ns: f64,
    /// Of the bare checked ring, for messages of the same length, measured after everything else.
    least_one_way_ns: f64,
    least_per_s: f64,
    placement: super::placement::Placement,
    /// The share of the two processors that other processes used meanwhile.
    #[serde(skip_serializing_if = "Option::is_none")]
    others_percent: Option<f64>,
}

#[derive(Debug, Serialize)]
struct Found {
    p50: f64,
    max: f64,
}

/// The hidden far end: answers each message with a fast one that names the entry it came to.
pub fn run_end(name: &str, core: usize, links: u32) -> Result<()> {
    pin::pin(core)?;
    std::thread::spawn(|| {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        ending::exit(0);
    });
    let mut node = Node::with_config(ends::config(Mode::Adaptive, links)?)?;
    let area = node.message_area(4096)?;
    let queue = node.notification_queue(64)?;
    let slot = node.slot(SlotConfig::new(area, queue).metadata(2).credit(64))?;
    let ticket = node.ticket(slot, MetadataIndex(0))?;
    node.serve(name, Access::SameUser, Accept::Ask)?;
    ending::on_signals()?;
    ending::remove_name(node.config(), name, Access::SameUser);
    std::io::stdout().write_all(b"\n")?;
    std::io::stdout().flush()?;
    let mut reply = None;
    loop {
        while let Some(event) = node.next_event() {
            if let Event::Request { id, peer, greeting } = event {
                if greeting.len() == TICKET_BYTES {
                    reply = Some(ticket_of(&peer, &greeting)?);
                }
                node.accept(id, &ticket.to_bytes())?;
            }
        }
        let answer = |node: &mut Node, index: MetadataIndex| -> Result<()> {
            let reply = reply.as_ref().context("a message before a reply ticket")?;
            node.send_fast(reply, &[], index.0, Some(PATIENCE))?;
            Ok(())
        };
        // While busy: messages for a while; then events; sleep if there is nothing.
        let mut found = false;
        for _ in 0..1024 {
            while let Some(notification) = node.try_recv(queue)? {
                found = true;
                answer(&mut node, notification.index)?;
            }
        }
        if !found {
            // Wakes for a message or for a client that wants to connect.
            node.wait(None)?;
        }
    }
}

struct FarEnd {
    name: String,
    child: Child,
}

impl FarEnd {
    fn start(core: usize, links: u32) -> Result<Self> {
        let name = format!("perf-idle-{}", std::process::id());
        let mut child = Command::new(std::env::current_exe()?)
            .args(["perf-idle-end", &name, &core.to_string(), &links.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start the other end")?;
        let ready = child.stdout.take().context("no output")?.read_exact(&mut [0]);
        let end = Self { name, child };
        ready.context("the other end failed")?;
        Ok(end)
    }
}

impl Drop for FarEnd {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// Measures and prints.
pub fn run(arguments: &IdleArguments) -> Result<()> {
    let cores = pin::two_cores()?;
    let before = raw::line_one_way_ns(cores, 10_000)?;
    let others = Others::begin(cores);
    let start = Instant::now();
    // Not from the pinned thread: its child could run on no other processor.
    let end = FarEnd::start(cores.far, arguments.links + SPEAKERS_MAX)?;
    let row = super::on_core(cores.near, || measure(&end, start, arguments))??;
    drop(end);
    let others_percent = others.percent();
    let after = raw::line_one_way_ns(cores, 10_000)?;
    let shape = super::ring_shape(&ends::config(Mode::Adaptive, 0)?, MESSAGE_BYTES);
    let Least { one_way_ns: least_one_way_ns, per_s: least_per_s } =
        least::measure(cores, MESSAGE_BYTES, shape, 10_000)?;
    let raw_line_one_way_ns = (before + after) / 2.0;
    let placement = super::placement::Placement::of_raw_line_ns(raw_line_one_way_ns);
    let row = Row {
        raw_line_one_way_ns,
        least_one_way_ns,
        least_per_s,
        placement,
        others_percent,
        ..row
    };
    if !super::placement::agree(before, after) {
        eprintln!("hamlyn: the cores were moved meanwhile: {before:.0} to {after:.0} ns one way");
    }
    if arguments.json {
        println!("{}", serde_json::to_string(&row)?);
        return Ok(());
    }
    let title = format!("{} idle links", row.links);
    let mut table = super::row::table([title.as_str(), ""]);
    let us = super::row::ns;
    table.add_row(["start to first message".into(), us(row.start_to_first_message_ns)]);
    let kib = format!("{:.1} KiB", row.idle_link_resident_bytes / 1024.0);
    table.add_row(["resident for an idle link, both processes together".into(), kib]);
    let cpu = format!("{} a second", us(row.blocked_cpu_ns_per_s));
    table.add_row(["processor time of a blocked receiver".into(), cpu]);
    table.add_row([
        "a message on an idle link is found, median".into(),
        us(row.idle_link_found_ns.p50),
    ]);
    table.add_row(["the same, the slowest of 200".into(), us(row.idle_link_found_ns.max)]);
    table.add_row(["raw cache line, one way".into(), us(row.raw_line_one_way_ns)]);
    table.add_row(["least checked message, one way".into(), us(row.least_one_way_ns)]);
    let rate = super::row::per_second(row.least_per_s, "");
    table.add_row(["least checked messages".into(), rate]);
    table.add_row(["placement".into(), row.placement.to_string()]);
    println!("{table}");
    if let Some(sentence) = others::sentence(row.others_percent) {
        println!("{sentence}");
    }
    Ok(())
}

fn measure(end: &FarEnd, start: Instant, arguments: &IdleArguments) -> Result<Row> {
    let links = arguments.links;
    // From the start of the other process to its first message, this process's own node included.
    let mut node = Node::with_config(ends::config(Mode::Adaptive, links + SPEAKERS_MAX)?)?;
    let area = node.message_area(64)?;
    let queue = node.notification_queue(64)?;
    let slot = node.slot(SlotConfig::new(area, queue).credit(64))?;
    let reply = node.fast_ticket(slot)?;
    let link = node.connect(&end.name, &reply.to_bytes(), Some(PATIENCE))?;
    let ticket = ticket_of(node.peer(link)?, node.greeting(link)?)?;
    node.send(&ticket, &[7; MESSAGE_BYTES], &[], Some(PATIENCE))?;
    node.recv(queue, Some(PATIENCE))?;
    let start_to_first_message_ns = start.elapsed().as_nanos() as f64;

    // Asleep: the far end has nothing to do for a second.
    std::thread::sleep(Duration::from_millis(100));
    let pid = end.child.id();
    let (cpu, since) = (cpu_ns(pid)?, Instant::now());
    std::thread::sleep(Duration::from_secs(1));
    let blocked_cpu_ns_per_s = (cpu_ns(pid)? - cpu) as f64 / since.elapsed().as_secs_f64();

    // Idle links, and their memory.
    let resident =
        || Ok::<_, anyhow::Error>(resident_bytes(pid)? + resident_bytes(std::process::id())?);
    let before = resident()?;
    for _ in 0..links {
        node.connect(&end.name, &[], Some(PATIENCE))?;
    }
    let idle_link_resident_bytes = match links {
        0 => 0.0,
        _ => resident()?.saturating_sub(before) as f64 / links as f64,
    };

    // A busy link, and occasional messages on idle ones.
    let speakers = links.min(SPEAKERS_MAX);
    let speakers: Vec<LinkId> = (0..speakers)
        .map(|_| Ok(node.connect(&end.name, &[], Some(PATIENCE))?))
        .collect::<Result<_>>()?;
    let idle = Ticket { metadata_index: MetadataIndex(1), ..ticket };
    let mut found = Vec::new();
    let mut round_trips = Vec::new();
    let mut ping_pong = |node: &mut Node| -> Result<bool> {
        let from = clock::ticks();
        node.send(&ticket, &[7; MESSAGE_BYTES], &[], Some(PATIENCE))?;
        let mut idle_found = false;
        loop {
            match node.recv(queue, Some(PATIENCE))?.word {
                0 => break,
                _ => idle_found = true,
            }
        }
        round_trips.push(clock::elapsed_ns(from, clock::ticks()) as f64);
        Ok(idle_found)
    };
    for number in 0..arguments.count as usize {
        if speakers.is_empty() {
            break;
        }
        for _ in 0..TURNS_BETWEEN {
            ensure!(!ping_pong(&mut node)?, "an answer that nobody asked for");
        }
        let speaker = number % speakers.len();
        let from = clock::ticks();
        node.send_over(speakers[speaker], &idle, &[7; MESSAGE_BYTES], &[], Some(PATIENCE))?;
        while !ping_pong(&mut node)? {
            ensure!(clock::elapsed_ns(from, clock::ticks()) < 10_000_000_000, "never found");
        }
        found.push(clock::elapsed_ns(from, clock::ticks()) as f64);
    }
    let round_trip = median(round_trips).unwrap_or(0.0);
    let max = found.iter().copied().fold(0.0, f64::max);
    let p50 = median(found).unwrap_or(0.0);
    let less = |ns: f64| (ns - round_trip).max(0.0);
    Ok(Row {
        test: "idle",
        links,
        start_to_first_message_ns,
        idle_link_resident_bytes,
        blocked_cpu_ns_per_s,
        idle_link_found_ns: Found { p50: less(p50), max: less(max) },
        raw_line_one_way_ns: f64::NAN,
        least_one_way_ns: f64::NAN,
        least_per_s: f64::NAN,
        placement: super::placement::Placement::Other,
        others_percent: None,
    })
}

/// Resident bytes of a process, shared pages included.
pub fn resident_bytes(pid: u32) -> Result<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("Rss:")).context("no Rss")?;
    let kib: u64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kib * 1024)
}

/// Processor time of all threads of a process.
fn cpu_ns(pid: u32) -> Result<u64> {
    let mut total = 0;
    for thread in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let text = std::fs::read_to_string(thread?.path().join("schedstat"))?;
        total += text.split(' ').next().context("no schedstat")?.parse::<u64>()?;
    }
    Ok(total)
}
